/* ckpt/ckpt.h: `shardc ckpt COMMAND ..`: checkpoints looked at and converted without a program, ranks or GPUs.
 *
 * Elements are read from mapped files and let go of, written in pieces: memory does not grow with checkpoints.
 * Output is planned before anything is written, made under a temporary name, then renamed. */
#ifndef SHARDC_CKPT_H
#define SHARDC_CKPT_H

#include "base/checkpoint.h"
#include "frontend/frontend.h"

enum { CKPT_OK, CKPT_INPUT, CKPT_USAGE, CKPT_RUN }; /* exit status: 1 wrong input, or what differs; 3 the disk */

/* What a model is read with, and all options in shardc's canonical text. */
typedef struct CkptModelOptions { FrontendOptions frontend; const char *text; } CkptModelOptions;
/* The compiler's reader of a text of options; messages begin with `where`.  A recorded text is a program's, which is
 * not refused for options that say nothing about the model.  False after messages. */
typedef bool CkptReadOptions(const char *text, const char *where, bool recorded, CkptModelOptions *out, Arena *a,
	Diag *d);
typedef struct CkptCall {
	int argc;
	char **argv;            /* argv[0]: "ckpt"; of a command its name */
	CkptReadOptions *read_options;
	Diag *d;
} CkptCall;

int ckpt_main(const CkptCall *call);

#define COMMAND(name, ...) int ckpt_##name(const CkptCall *call);
#include "ckpt/commands.def"
typedef struct CkptCommand {
	const char *name, *arguments, *help;
	int (*run)(const CkptCall *call);
} CkptCommand;
const CkptCommand *ckpt_command(const char *name); /* NULL: there is none */

/* ---- args.c ---- */

typedef enum CkptOptionKind { CKPT_FLAG, CKPT_TEXT, CKPT_CHOICE, CKPT_COUNT, CKPT_NUMBER } CkptOptionKind;
/* to: bool; const char * of a text and a choice; int64_t, at least 1; double, at least 0.  Left alone where the option
 * is not given. */
typedef struct CkptOption {
	const char *name;   /* "--world", "-o" */
	CkptOptionKind kind;
	void *to;
	const char *values; /* "N"; of a choice "text|json" */
	const char *help;
	bool wanted;        /* it is wrong usage to leave it out */
} CkptOption;
typedef struct CkptArgs {
	const char **at;    /* what is no option */
	int n;
	int status;         /* where the command ends here: CKPT_OK after --help */
} CkptArgs;
/* --name=value, --name value; least to most arguments beside them (most 0: any number).  False: args->status is what
 * the command returns. */
bool ckpt_parse(const CkptCall *call, const CkptOption *options, int n, int least, int most, Arena *a, CkptArgs *args);

/* ---- input.c ---- */

/* A checkpoint's folder, or the latest of a folder of them; NULL after a message. */
const char *ckpt_folder(Arena *a, const char *path, Diag *d);
/* What such a folder or a safetensors file holds (checkpoint_open_file).  NULL after messages. */
Checkpoint *ckpt_open(Arena *a, const char *path, Diag *d);
/* Metadata of a section's files, or of the one file; NULL: there is none. */
const Map *ckpt_meta(const Checkpoint *c, CheckpointSection s);

/* ---- values.c ---- */

enum { CKPT_PIECE = 1 << 20 }; /* elements that are held at a time, at most */
/* One element, aligned to nothing, as a number. */
double ckpt_number(const char *p, DType t);
/* Elements [first, first + n) as numbers, or as they are; and letting go of the pages that they were read from. */
void ckpt_numbers(const CheckpointTensor *t, int64_t first, int64_t n, double *out);
void ckpt_bytes(const CheckpointTensor *t, int64_t first, int64_t n, char *out);
void ckpt_release(const CheckpointTensor *t, int64_t first, int64_t n);

#endif
