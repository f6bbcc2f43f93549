/* frontend/onnx_data.h: the external data file of a model that is written; for use inside frontend/ only. */
#ifndef SHARDC_ONNX_DATA_H
#define SHARDC_ONNX_DATA_H

#include "frontend/onnx_rope.h"

/* A data file of the model that is read; base is where it begins in the file that is written. */
typedef struct DataSource { const char *path; int64_t base, bytes; } DataSource; /* bytes -1: no such file */
/* A tensor in the file that is written, with its data from one of three places: the elements of a symbol (fill), bytes
 * of the model's own file (bytes), or bytes of a data file that is read (source, from). */
typedef struct DataPart {
	int64_t offset, n;
	const OnnxFill *fill;   /* used when not NULL */
	Span bytes;             /* else used when bytes.at is not NULL */
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
/* Plans n bytes that lie at `offset` of a data file that is read, and returns their offset in the file that is
 * written.  With a fill they are replaced by its elements; with NULL they are copied.  The offset within the source is
 * kept, unless another tensor that shares these bytes has different elements now.  -1: the source has no such bytes. */
int64_t data_keep(DataFile *f, const char *source, int64_t offset, int64_t n, const OnnxFill *fill);
/* Plans n bytes that lay in the model's own file, or a fill of n bytes; returns their offset. */
int64_t data_add(DataFile *f, Span bytes, const OnnxFill *fill, int64_t n);
/* Sorts the parts by offset; call it before data_write.  False: two parts overlap without being the same. */
bool data_sort(DataFile *f);
/* Writes all parts to fd.  The parts must be sorted.  False: errno says why. */
bool data_write(const DataFile *f, int fd, const RopeValues *values);

#endif
