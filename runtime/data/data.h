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
	/* of programs with several sizes: */
	int index;              /* of the input among all inputs */
	int64_t dim[8];         /* from axis 1 on: of a row of the file */
	const Npy *lengths;     /* elements of each sample along axes that depend on the size; NULL: as many as a row has */
	int64_t more;           /* which are added to each length */
} DataColumn;
/* Samples of one pool by size; number: of the pool, counted over all epochs; -1: none. */
typedef struct DataPool { int64_t number, *order; } DataPool;
/* What a program with several sizes knows of its samples (sizes.c); model NULL: it has one size. */
typedef struct DataSizes {
	const RtModel *model;
	int now;                /* the size at which rows are loaded */
	bool other;             /* with other numbers as padding, where any would do */
	uint8_t *of_sample;     /* the smallest size that a sample fits in; NULL: all are of size of_all */
	int of_all;
	int64_t bucket;         /* samples of a pool */
	DataPool pool[2];
	Npy *lengths;
	int n_lengths;
	uint64_t hash;          /* of of_sample, for comparing ranks */
} DataSizes;
typedef struct DataSet {
	DataColumn *columns;
	int n_columns;
	int64_t n_samples, batch;
	bool shuffle;
	uint64_t seed;
	int64_t tokens_per_sample; /* 0: not a token model */
	DataSizes sizes;
} DataSet;
/* Where a set comes from.  data: NAME=FILE for each batched input; tokens: [NAME=]FILE or NULL; lengths: [NAME=]FILE of
 * the samples' lengths.  The flags name them in messages. bucket: samples that are ordered by size together; 0: the
 * default. */
typedef struct DataFiles {
	const TextList *data, *lengths;
	const char *tokens, *flag, *lengths_flag;
	int64_t bucket;
} DataFiles;
/* False after a message. */
bool data_open(DataSet *set, const RtModel *model, Arena *a, const DataFiles *files, Diag *d);
void data_close(DataSet *set);
int64_t data_tokens(const DataSet *set, int size); /* of a sample at a size, padding included; 0: not a token model */
/* Copies samples into `input`, which has the places of the input arena: row b of the batch gets the sample at position
 * first + b of the run. */
void data_load(DataSet *set, char *input, int64_t first);
/* As data_load, but every row from n on gets the sample at position `filler`. */
void data_load_part(DataSet *set, char *input, int64_t first, int64_t n, int64_t filler);
/* Reports the error of a kernel that met bad data in the batch from `first` on: names the file, the step and the
 * samples. */
void data_blame(DataSet *set, int64_t first, const char *when, const BadInput *bad, const char *program,
	Diag *d);
void data_prefetch(DataSet *set, int64_t first); /* starts reading a batch from the disk and returns at once */
/* The smallest size that the samples at positions [first, first + n) of the run fit in; 0 where there is one size. */
int data_size(DataSet *set, int64_t first, int64_t n);
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
