/* ckpt/output.h: files and folders that are planned first, then written in pieces.
 *
 *	OutputFile *f = output_file(a, "model.safetensors");
 *	output_tensor(a, f, "w", DT_F32, 2, dim);
 *	output_run(a, f, from, first, at, n);  .. for what it is made of; the rest is zeros */
#ifndef SHARDC_CKPT_OUTPUT_H
#define SHARDC_CKPT_OUTPUT_H

#include "ckpt/ckpt.h"

/* Elements [at, at + n) of a tensor that is written are [first, first + n) of one that was read; or of memory, where
 * `from` is NULL: at + n elements at `data`. */
typedef struct OutputRun { const CheckpointTensor *from; const void *data; int64_t first, at, n; } OutputRun;
typedef struct OutputRuns { OutputRun *at; int n, cap; } OutputRuns; /* by rising `at` */
typedef struct OutputFile {
	const char *name;
	VEC(SafeTensor) tensor;
	VEC(OutputRuns) runs;   /* of each tensor */
	const SafeMeta *meta;   /* "format": "pt", unless it is changed */
	int n_meta;
	Map *names;             /* of tensors */
	const char *twice;      /* one that is there twice: the file is not written */
} OutputFile;
typedef struct OutputText { const char *name; const Buf *text; } OutputText;

OutputFile *output_file(Arena *a, const char *name);
void output_tensor(Arena *a, OutputFile *f, const char *name, DType dtype, int rank, const int64_t *dim);
void output_run(Arena *a, OutputFile *f, OutputRun run);
/* The whole tensor, under a name. */
void output_copy(Arena *a, OutputFile *f, const char *name, const CheckpointTensor *t);

/* Whether a file, or a folder, can be made there: the path is absent, or an empty one.  False after a message. */
bool output_is_free(const char *path, bool folder, Diag *d);
/* A file, or a folder with files and texts, the last one last; synced, then renamed to `path`.  False after a message:
 * nothing is left, nor by a signal (base/unfinished.h). */
bool output_write_text(const Buf *text, const char *path, Diag *d);
bool output_write_file(OutputFile *f, const char *path, Diag *d);
bool output_write_folder(OutputFile *const *files, int n, const OutputText *texts, int n_texts, const char *path,
	Diag *d);

#endif
