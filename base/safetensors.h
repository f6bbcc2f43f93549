/* base/safetensors.h: files of named tensors: weights in, checkpoints in and out. */
#ifndef SHARDC_SAFETENSORS_H
#define SHARDC_SAFETENSORS_H

#include "base/file.h"

enum { SAFETENSORS_MAX_RANK = 8 };

typedef struct SafeTensor {
	const char *name;
	DType dtype;
	int rank;
	int64_t dim[SAFETENSORS_MAX_RANK];
	int64_t offset, bytes; /* of the elements, from the file's start */
	const void *data;      /* bytes; from the reader: into the map, aligned to nothing */
	int listed;            /* reader: its place in the header's list */
	bool has_crc;          /* reader: __metadata__ has "crc32:NAME" */
	uint32_t crc;          /* of its bytes (base/crc32.h) */
	int64_t crc_at;        /* placed tensors: where its eight digits lie in the file */
} SafeTensor;

/* A file mapped read-only. */
typedef struct SafeFile {
	const char *path;
	SafeTensor *tensors;   /* in file order */
	int n;
	Map *by_name;          /* SafeTensor * */
	Map *meta;             /* __metadata__: const char * */
	FileView view;
} SafeFile;

/* NULL after a message to d that begins with path.  The result lives in a until safetensors_close. */
SafeFile *safetensors_open(Arena *a, const char *path, Diag *d);
const SafeTensor *safetensors_find(const SafeFile *f, const char *name); /* NULL when absent */
void safetensors_close(SafeFile *f);

/* Checksums.  verify: false after a message that names file and tensor; a tensor without a checksum is taken as it is.
 * Reads the tensor once, and lets go of its pages where `release`. */
bool safetensors_verify(const SafeFile *f, const SafeTensor *t, bool release, Diag *d);
/* What of bytes [begin, begin + n) of the file was read is not wanted again soon: memory that the process holds stays
 * bounded whatever the size of the file. */
void safetensors_release(const SafeFile *f, int64_t begin, int64_t n);

/* A metadata entry: strings only. */
typedef struct SafeMeta { const char *key, *value; } SafeMeta;

/* Writes path anew, with checksums, and syncs it to the disk.  Names must be unique UTF-8.
 * False: errno tells, and the file is removed. */
bool safetensors_write(const char *path, const SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta);

/* The same in steps, for files that several processes fill.  False: errno tells.
 *   place    sets each tensor's offset, bytes and crc_at; returns the file's length.  Elements begin at a multiple of
 *            64 bytes; tensors whose size is one come first, so each of them does, too; the rest follows by falling
 *            size of an element, each aligned to its own
 *   create   writes the header of placed tensors into path, anew, takes room for the rest, syncs nothing; checksums are
 *            zeros; elements, or parts of them, come with file_put (base/file.h)
 *   put_crc  writes t->crc into the header */
int64_t safetensors_place(SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta);
bool safetensors_create(const char *path, const SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta);
bool safetensors_put_crc(int fd, const SafeTensor *t);

#endif
