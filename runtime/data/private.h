/* runtime/data/private.h: what the files of data share. */
#ifndef SHARDC_RUNTIME_DATA_PRIVATE_H
#define SHARDC_RUNTIME_DATA_PRIVATE_H

#include "runtime/data/data.h"

/* The input that "NAME=FILE" names, and *file; NULL after a message. */
const RtTensor *data_split_name(
	const RtModel *model, const char *text, const char **file, const char *flag, Diag *d);
int data_index(const RtModel *model, const RtTensor *t); /* of an input, among all inputs */
const RtTensor *data_find_input(const RtModel *model, const char *name);
/* Appends to set->columns the columns of the inputs that a token stream feeds.  False after a message. */
bool tokens_open(DataSet *set, const RtModel *model, const char *text, const char *flag, Diag *d);
/* The sample at a position of the run; and at position i of an epoch, before samples are ordered by size. */
int64_t data_sample_at(DataSet *set, int64_t position);
int64_t data_shuffled(const DataSet *set, int64_t epoch, int64_t i);

/* ---- sizes.c ---- */

/* Whether samples of an input may have n elements along an axis where the largest size has another number. */
bool sizes_may_have(const RtModel *m, const RtTensor *t, int axis, int64_t n);
/* Finds the size of each sample; the columns are open.  lengths may be NULL.  False after a message. */
bool sizes_open(DataSet *set, const RtModel *m, Arena *a, const TextList *lengths, int64_t bucket, const char *flag,
	Diag *d);
void sizes_close(DataSet *set);
int64_t sizes_sample_at(DataSet *set, int64_t epoch, int64_t i);
int64_t sizes_row_bytes(const DataSet *set, const DataColumn *c); /* of a row at the size `now` */
void sizes_load_row(const DataSet *set, const DataColumn *c, char *out, int64_t sample);
void tokens_load_row(const DataColumn *c, void *out, int64_t sample);

#endif
