/* frontend/onnx_data.h: the file of tensors beside a model that is written; inside frontend/ only. */
#ifndef SHARDC_ONNX_DATA_H
#define SHARDC_ONNX_DATA_H

#include "frontend/onnx_rope.h"

/* A file of the model that is read, and where it lies in the one that is written. */
typedef struct DataSource { const char *path; int64_t base, bytes; } DataSource; /* bytes -1: there is no such file */
/* A tensor: elements of a symbol, or bytes of the model, or of a source. */
typedef struct DataPart {
	int64_t offset, n;
	const OnnxFill *fill;   /* else */
	Span bytes;             /* else, where bytes.at is NULL */
	const char *source; int64_t from;
} DataPart;
typedef struct DataFile {
	Arena *arena;
	VEC(DataSource) sources;
	VEC(DataPart) parts;
	Map *taken;             /* "SOURCE:OFFSET:BYTES" -> index of its part, from 1 */
	int64_t end;
} DataFile;

void data_init(DataFile *f, Arena *a);
/* Where bytes [offset, offset + n) of a source will lie, with the fill's elements in them (NULL: as they are): where
 * they were, moved by the source's base, unless another tensor that shares them has other elements now.  -1: the source
 * has no such bytes. */
int64_t data_keep(DataFile *f, const char *source, int64_t offset, int64_t n, const OnnxFill *fill);
/* The same for n bytes that lay in the model. */
int64_t data_add(DataFile *f, Span bytes, const OnnxFill *fill, int64_t n);
/* Sorts the parts; false: two that are not the same share bytes. */
bool data_sort(DataFile *f);
/* Of sorted parts.  False: errno tells. */
bool data_write(const DataFile *f, int fd, const RopeValues *values);

#endif
