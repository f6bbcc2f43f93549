/* base/npy.h: NumPy's .npy files: mapped for reading, written as a whole. */
#ifndef SHARDC_NPY_H
#define SHARDC_NPY_H

#include "base/file.h"

enum { NPY_MAX_RANK = 8, NPY_WHY = 240 };

typedef struct NpyHeader {
	DType dtype;
	int rank;
	int64_t dim[NPY_MAX_RANK];
	int64_t numel, data_offset, bytes; /* bytes: of the elements, which begin at data_offset */
	bool narrow; /* the elements are bytes of a type of narrow.def, which the file does not name; dtype is u8 */
} NpyHeader;

/* A file mapped read-only.  data is aligned to 64 bytes only if the writer aligned it. */
typedef struct Npy {
	NpyHeader header;
	const char *path;
	const uint8_t *data;
	FileView view;
} Npy;

/* Parses the header at the start of a file of `bytes` bytes.  False: why says what is wrong, without the file's
 * name. */
bool npy_parse(const void *file, int64_t bytes, NpyHeader *out, char why[NPY_WHY]);
/* Opens a file; false after an error, which names path.  path must outlive the Npy.  npy_open refuses narrow
 * elements. */
bool npy_open(Npy *out, const char *path, Diag *d);
bool npy_open_any(Npy *out, const char *path, Diag *d);
void npy_close(Npy *npy);
/* Writes a file.  False: errno says why, and the unfinished file is removed. */
bool npy_write(const char *path, DType dtype, int rank, const int64_t *dim, const void *data);
/* Writes bytes of a type of narrow.def, as ml_dtypes does. */
bool npy_write_narrow(const char *path, int rank, const int64_t *dim, const uint8_t *data);
/* The file for a model's tensor, FOLDER/NAME.npy, in the arena.  A '/' in the name becomes '_', so that the file lies
 * in the folder. */
const char *npy_path(Arena *a, const char *folder, const char *name);
/* The file that holds the K-th input: npy_path, or else FOLDER/input_K.npy; NULL: neither exists. */
const char *npy_input(Arena *a, const char *folder, const char *name, int k);

/* Writes the shape for messages, such as "[1797,8,8] f64", to out. */
const char *npy_shape_text(char *out, size_t n, DType dtype, int rank, const int64_t *dim);

#endif
