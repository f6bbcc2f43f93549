/* base/safetensors.h: files of named tensors: weights in, checkpoints in and out. */
#ifndef SHARDC_SAFETENSORS_H
#define SHARDC_SAFETENSORS_H

#include "base/base.h"

enum { SAFETENSORS_MAX_RANK = 8 };

typedef struct SafeTensor {
	const char *name;
	DType dtype;
	int rank;
	int64_t dim[SAFETENSORS_MAX_RANK];
	int64_t offset, bytes; /* reader: of the elements, from the file's start */
	const void *data;      /* bytes; from the reader: into the map, aligned to nothing */
} SafeTensor;

/* A file mapped read-only. */
typedef struct SafeFile {
	const char *path;
	SafeTensor *tensors;   /* in file order */
	int n;
	Map *by_name;          /* SafeTensor * */
	Map *meta;             /* __metadata__: const char * */
	void *map;
	int64_t map_bytes;
} SafeFile;

/* NULL after a message to d that begins with path.  The result lives in a until safetensors_close. */
SafeFile *safetensors_open(Arena *a, const char *path, Diag *d);
const SafeTensor *safetensors_find(const SafeFile *f, const char *name); /* NULL when absent */
void safetensors_close(SafeFile *f);

/* A metadata entry: strings only. */
typedef struct SafeMeta { const char *key, *value; } SafeMeta;

/* Writes path anew, tensors in the given order, and syncs it to the disk.  Names must be unique UTF-8.
 * False: errno tells, and the file is removed. */
bool safetensors_write(const char *path, const SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta);

/* The same in steps, for files that several processes fill.  False: errno tells.
 *   place   sets each tensor's offset and bytes; returns the file's length
 *   create  writes the header of placed tensors into path, anew, takes room for the rest, syncs nothing
 *   put     writes elements, or parts of them, at an offset of an open file */
int64_t safetensors_place(SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta);
bool safetensors_create(const char *path, const SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta);
bool safetensors_put(int fd, const void *data, int64_t bytes, int64_t offset);

#endif
