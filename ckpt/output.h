/* ckpt/output.h: files and folders that are planned first, then written in pieces.
 *
 *	OutputFile *f = output_file(a, "model.safetensors");
 *	output_tensor(a, f, "w", DT_F32, 2, dim);
 *	output_run(a, f, run);   .. for each run of elements of that tensor; elements of no run are zeros */
#ifndef SHARDC_CKPT_OUTPUT_H
#define SHARDC_CKPT_OUTPUT_H

#include "ckpt/ckpt.h"

/* Elements [at, at + n) of a tensor to write are elements [first, first + n) of the tensor `from` or, if that is NULL,
 * of the memory at `data`. */
typedef struct OutputRun { const CheckpointTensor *from; const void *data; int64_t first, at, n; } OutputRun;
typedef struct OutputRuns { OutputRun *at; int n, cap; } OutputRuns; /* in rising order of `at` */
typedef struct OutputFile {
	const char *name;
	VEC(SafeTensor) tensor;
	VEC(OutputRuns) runs;   /* for each tensor */
	const SafeMeta *meta;   /* "format": "pt", unless the caller changes it */
	int n_meta;
	Map *names;             /* the names of tensors so far */
	const char *twice;      /* a name that two tensors have, so the file is refused; else NULL */
} OutputFile;
typedef struct OutputText { const char *name; const Buf *text; } OutputText;

OutputFile *output_file(Arena *a, const char *name);
void output_tensor(Arena *a, OutputFile *f, const char *name, DType dtype, int rank, const int64_t *dim);
void output_run(Arena *a, OutputFile *f, OutputRun run);
/* Plans a copy of the whole tensor under the given name. */
void output_copy(Arena *a, OutputFile *f, const char *name, const CheckpointTensor *t);

/* Whether a file, or a folder, can be made at path: nothing is there, or an empty file or folder.  False after an
 * error. */
bool output_is_free(const char *path, bool folder, Diag *d);
/* Write a file, or a folder with files and texts, of which the last text is written last.  Everything is synced, then
 * renamed to `path`.  False after an error: then nothing is left at all, even if a signal ends the process
 * (base/unfinished.h). */
bool output_write_text(const Buf *text, const char *path, Diag *d);
bool output_write_file(OutputFile *f, const char *path, Diag *d);
bool output_write_folder(OutputFile *const *files, int n, const OutputText *texts, int n_texts, const char *path,
	Diag *d);

#endif
