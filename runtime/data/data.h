/* runtime/data/data.h: samples: files or a caller's arrays into the input arena. */
#ifndef SHARDC_RUNTIME_DATA_H
#define SHARDC_RUNTIME_DATA_H

#include "base/npy.h"
#include "runtime/exec/exec.h"
#include "runtime/model.h"

/* ---- data.c ---- */

/* Where the rows of one input come from: rows of an array, or cuts of a token stream. */
typedef struct DataColumn {
	const RtTensor *input;
	const char *path;
	Npy npy;                /* the map; for raw token files without a header */
	const uint8_t *first;
	int64_t n_samples, stride, row_bytes; /* sample i: row_bytes from first + i * stride */
	DType token; /* token streams: element type in the file, widened to the input's; else DT_COUNT */
} DataColumn;
typedef struct DataSet {
	DataColumn *columns;
	int n_columns;
	int64_t n_samples, batch;
	bool shuffle;
	uint64_t seed;
	int64_t tokens_per_sample; /* 0: not a token model */
} DataSet;
/* data: NAME=FILE of each batched input; tokens: [NAME=]FILE or NULL.  flag names them in messages. */
bool data_open(DataSet *set, const RtModel *model, Arena *a, const TextList *data, const char *tokens,
	const char *flag, Diag *d);
void data_close(DataSet *set);
/* Copies samples into inputs, laid out as their arena: row b of the batch = sample sample_of(first + b). */
void data_load(const DataSet *set, char *input, int64_t first);
/* As data_load, but from row n on every row is `filler`, a position as well. */
void data_load_part(const DataSet *set, char *input, int64_t first, int64_t n, int64_t filler);
/* The error of a kernel that met bad data in the batch from `first` on: names the file, the step, samples. */
void data_blame(const DataSet *set, int64_t first, const char *when, const char *bad, const char *program, Diag *d);
void data_prefetch(const DataSet *set, int64_t first); /* starts reading from the disk; returns at once */
/* Of each --const: given[its tensor's index] becomes true. */
bool data_load_consts(const Rt *rt, const TextList *consts, bool *given, Diag *d);
bool data_check_consts(const Rt *rt, const bool *given, Diag *d); /* no input without a sample axis is missing */

/* ---- arrays.c: a caller's arrays as a data set ---- */

/* Fills set, whose columns have room for every input.  rows: what the sample axis must have, -1 = any number, at
 * least 1.  given[tensor]: inputs without a sample axis whose values are there already.  False after messages. */
bool arrays_open(DataSet *set, const RtModel *m, const ModelArray *x, int n, int64_t rows, const bool *given, Diag *d);
/* Of arrays that arrays_open took: inputs without a sample axis get their values, and given becomes true. */
void arrays_put_consts(const Rt *rt, const ModelArray *x, int n, bool *given);

#endif
