/* runtime/data/arrays.h: a caller's arrays as a data set. */
#ifndef SHARDC_RUNTIME_ARRAYS_H
#define SHARDC_RUNTIME_ARRAYS_H

#include "runtime/internal.h"
#include "runtime/model.h"

/* Fills set, whose columns have room for every input.  rows: what the sample axis must have, -1 = any number, at
 * least 1.  given[tensor]: inputs without a sample axis whose values are there already.  False after messages. */
bool arrays_open(DataSet *set, const RtModel *m, const ModelArray *x, int n, int64_t rows, const bool *given, Diag *d);
/* Of arrays that arrays_open took: inputs without a sample axis get their values, and given becomes true. */
void arrays_put_consts(const Rt *rt, const ModelArray *x, int n, bool *given);

#endif
