/* base/npy.h: NumPy's .npy files, read in place and written whole. */
#ifndef SHARDC_NPY_H
#define SHARDC_NPY_H

#include "base/file.h"

enum { NPY_MAX_RANK = 8, NPY_WHY = 240 };

typedef struct NpyHeader {
	DType dtype;
	int rank;
	int64_t dim[NPY_MAX_RANK];
	int64_t numel, data_offset, bytes; /* of the elements, which start at data_offset */
} NpyHeader;

/* A file mapped read-only.  data is aligned to 64 bytes only if the writer aligned it. */
typedef struct Npy {
	NpyHeader header;
	const char *path;
	const uint8_t *data;
	FileView view;
} Npy;

/* Reads the header at the start of `bytes` bytes; false: why says what is wrong, without the file's name. */
bool npy_parse(const void *file, int64_t bytes, NpyHeader *out, char why[NPY_WHY]);
/* Reports to d by the path; path must outlive the Npy. */
bool npy_open(Npy *out, const char *path, Diag *d);
void npy_close(Npy *npy);
/* False: errno tells.  The file is removed when it could not be written whole. */
bool npy_write(const char *path, DType dtype, int rank, const int64_t *dim, const void *data);
/* FOLDER/NAME.npy of a tensor of a model, in the arena: a '/' of its name would leave the folder, so it is '_'. */
const char *npy_path(Arena *a, const char *folder, const char *name);
/* Where the K-th input is looked for: npy_path, else FOLDER/input_K.npy; NULL: there is neither. */
const char *npy_input(Arena *a, const char *folder, const char *name, int k);

/* "[1797,8,8] f64" into out, for messages. */
const char *npy_shape_text(char *out, size_t n, DType dtype, int rank, const int64_t *dim);

#endif
