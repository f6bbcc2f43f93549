/* base/safetensors.h: safetensors files, which hold named tensors: read for weights, read and written for
 * checkpoints. */
#ifndef SHARDC_SAFETENSORS_H
#define SHARDC_SAFETENSORS_H

#include "base/file.h"

enum { SAFETENSORS_MAX_RANK = 8 };

typedef struct SafeTensor {
	const char *name;
	DType dtype;
	int rank;
	int64_t dim[SAFETENSORS_MAX_RANK];
	int64_t offset, bytes; /* of the elements, from the start of the file */
	const void *data;      /* the elements; after reading, a pointer into the map that need not be aligned */
	int listed;            /* after reading: its index in the header's list */
	bool has_crc;          /* after reading: __metadata__ has "crc32:NAME" */
	uint32_t crc;          /* of its elements (base/crc32.h) */
	int64_t crc_at;        /* of placed tensors: where the eight digits of crc are in the file */
} SafeTensor;

/* A file mapped read-only. */
typedef struct SafeFile {
	const char *path;
	SafeTensor *tensors;   /* in the order of their offsets */
	int n;
	Map *by_name;          /* name -> SafeTensor */
	Map *meta;             /* __metadata__: key -> const char * */
	FileView view;
} SafeFile;

/* Opens a file and checks its header.  NULL after an error to d.  The result lives in a, until safetensors_close. */
SafeFile *safetensors_open(Arena *a, const char *path, Diag *d);
const SafeTensor *safetensors_find(const SafeFile *f, const char *name); /* NULL: there is no such tensor */
void safetensors_close(SafeFile *f);

/* Verifies a tensor's checksum; false after an error that names file and tensor.  A tensor without a checksum is
 * accepted.  Reads the tensor once, and releases its pages if `release` is set. */
bool safetensors_verify(const SafeFile *f, const SafeTensor *t, bool release, Diag *d);
/* Releases the pages of bytes [begin, begin + n) of the file, if they are not needed again soon: so memory use stays
 * bounded whatever the size of the file. */
void safetensors_release(const SafeFile *f, int64_t begin, int64_t n);

/* Why no file can hold a tensor of this name, as "is ..."; NULL: a file can. */
const char *safetensors_refuses(const char *name);

/* An entry of __metadata__; the values are strings. */
typedef struct SafeMeta { const char *key, *value; } SafeMeta;

/* Writes path anew, with checksums, and syncs it to the disk.  Names must be unique, and none that
 * safetensors_refuses.  False: errno says why, and the file is removed. */
bool safetensors_write(const char *path, const SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta);

/* The same in steps, for files that several processes fill.  create and put_crc are false on failure; errno says why.
 *
 *   place    sets each tensor's offset, bytes and crc_at, and returns the length of the file.  Elements begin at a
 *            multiple of 64 bytes.  Tensors whose size is a multiple of 64 bytes come first, so each of them is aligned
 *            to 64; the others follow in falling order of their element size, each aligned to it
 *   create   writes path anew: the header of placed tensors, with zeros as checksums, and room for the elements, which
 *            are written with file_put (base/file.h).  Nothing is synced
 *   put_crc  writes t->crc into the header */
int64_t safetensors_place(SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta);
bool safetensors_create(const char *path, const SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta);
bool safetensors_put_crc(int fd, const SafeTensor *t);

#endif
