/* runtime/data/data.h: training samples: brings files or a caller's arrays into the input arena. */
#ifndef SHARDC_RUNTIME_DATA_H
#define SHARDC_RUNTIME_DATA_H

#include "base/npy.h"
#include "runtime/exec/exec.h"
#include "runtime/model.h"

/* ---- data.c ---- */

/* Where the rows of one input come from: rows of an array, or sections of a token stream. */
typedef struct DataColumn {
	const RtTensor *input;
	const char *path;
	Npy npy;                /* the mapped file; raw token files have no header */
	const uint8_t *first;
	int64_t n_samples, stride, row_bytes; /* sample i is row_bytes bytes at first + i * stride */
	DType token; /* token streams: element type in the file, which is widened to the input's; else DT_COUNT */
} DataColumn;
typedef struct DataSet {
	DataColumn *columns;
	int n_columns;
	int64_t n_samples, batch;
	bool shuffle;
	uint64_t seed;
	int64_t tokens_per_sample; /* 0: not a token model */
} DataSet;
/* data: NAME=FILE for each batched input; tokens: [NAME=]FILE or NULL.  flag names them in messages.  False after a
 * message. */
bool data_open(DataSet *set, const RtModel *model, Arena *a, const TextList *data, const char *tokens,
	const char *flag, Diag *d);
void data_close(DataSet *set);
/* Copies samples into `input`, which has the places of the input arena: row b of the batch gets the sample at position
 * first + b of the run. */
void data_load(const DataSet *set, char *input, int64_t first);
/* As data_load, but every row from n on gets the sample at position `filler`. */
void data_load_part(const DataSet *set, char *input, int64_t first, int64_t n, int64_t filler);
/* Reports the error of a kernel that met bad data in the batch from `first` on: names the file, the step and the
 * samples. */
void data_blame(const DataSet *set, int64_t first, const char *when, const char *bad, const char *program, Diag *d);
void data_prefetch(const DataSet *set, int64_t first); /* starts reading a batch from the disk and returns at once */
/* Loads the file of each --const; given[its tensor's index] becomes true. */
bool data_load_consts(const Rt *rt, const TextList *consts, bool *given, Diag *d);
/* False after a message: an input without a sample axis is not given. */
bool data_check_consts(const RtModel *model, const bool *given, Diag *d);

/* ---- arrays.c: a caller's arrays as a data set ---- */

/* Fills set, whose columns have room for every input.  rows: the length that the sample axis must have; -1 = any from 1
 * on.  given[tensor]: inputs without a sample axis whose values are set already.  False after messages. */
bool arrays_open(DataSet *set, const RtModel *m, const ModelArray *x, int n, int64_t rows, const bool *given, Diag *d);
/* Copies those arrays, which arrays_open accepted, that are inputs without a sample axis, into `input`, the input
 * arena; given becomes true for them. */
void arrays_put_consts(const RtModel *m, char *input, const ModelArray *x, int n, bool *given);

#endif
