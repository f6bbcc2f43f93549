/* runtime/data/private.h: what the files of data share. */
#ifndef SHARDC_RUNTIME_DATA_PRIVATE_H
#define SHARDC_RUNTIME_DATA_PRIVATE_H

#include "runtime/data/data.h"

/* The input that "NAME=FILE" names, and *file; NULL after a message. */
const RtTensor *data_split_name(
	const RtModel *model, const char *text, const char **file, const char *flag, Diag *d);
const RtTensor *data_find_input(const RtModel *model, const char *name);
/* Appends to set->columns the columns of the inputs that a token stream feeds.  False after a message. */
bool tokens_open(DataSet *set, const RtModel *model, const char *text, const char *flag, Diag *d);
void tokens_load_row(const DataColumn *c, void *out, int64_t sample);

#endif
