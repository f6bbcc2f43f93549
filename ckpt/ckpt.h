/* ckpt/ckpt.h: `shardc ckpt COMMAND ..`: inspects and converts checkpoints without a program, ranks or GPUs.
 *
 * Elements are read from mapped files and written in pieces, and pages that were read are released, so memory use does
 * not grow with the size of checkpoints.  An output is planned completely before anything is written, then made under a
 * temporary name and renamed. */
#ifndef SHARDC_CKPT_H
#define SHARDC_CKPT_H

#include "base/checkpoint.h"
#include "frontend/frontend.h"

enum { CKPT_OK, CKPT_INPUT, CKPT_USAGE, CKPT_RUN }; /* exit status: 1 the input is wrong, or differs; 3 the output could
                                                       not be written */

/* The options that a model is read with, and the same options in shardc's canonical text. */
typedef struct CkptModelOptions { FrontendOptions frontend; const char *text; } CkptModelOptions;
/* Reads a text of compiler options; main.c has the implementation.  Messages begin with `where`.  recorded: a program
 * recorded the text, so options that do not concern the model are accepted.  False after errors. */
typedef bool CkptReadOptions(const char *text, const char *where, bool recorded, CkptModelOptions *out, Arena *a,
	Diag *d);
typedef struct CkptCall {
	int argc;
	char **argv;            /* argv[0]: "ckpt", or the name of the command */
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
const CkptCommand *ckpt_command(const char *name); /* NULL: there is no such command */

/* ---- args.c ---- */

typedef enum CkptOptionKind { CKPT_FLAG, CKPT_TEXT, CKPT_CHOICE, CKPT_COUNT, CKPT_NUMBER } CkptOptionKind;
/* to: the variable that is set if the option is given: bool for a flag; const char * for a text or a choice; int64_t,
 * at least 1, for a count; double, at least 0, for a number. */
typedef struct CkptOption {
	const char *name;   /* "--world", "-o" */
	CkptOptionKind kind;
	void *to;
	const char *values; /* "N"; for a choice "text|json" */
	const char *help;
	bool wanted;        /* leaving it out is an error */
} CkptOption;
typedef struct CkptArgs {
	const char **at;    /* the arguments that are not options */
	int n;
	int status;         /* the exit status when ckpt_parse is false: CKPT_OK after --help */
} CkptArgs;
/* Parses the command's options, --name=value or --name value, and `least` to `most` other arguments (most 0: any
 * number).  False: the command must return args->status. */
bool ckpt_parse(const CkptCall *call, const CkptOption *options, int n, int least, int most, Arena *a, CkptArgs *args);

/* ---- input.c ---- */

/* path itself if it is a checkpoint's folder, or the latest checkpoint in a folder of checkpoints.  NULL after an
 * error. */
const char *ckpt_folder(Arena *a, const char *path, Diag *d);
/* Opens such a folder or a safetensors file (checkpoint_open_file).  NULL after errors. */
Checkpoint *ckpt_open(Arena *a, const char *path, Diag *d);
/* The metadata of a section's first file, or of the single file; NULL: there are none. */
const Map *ckpt_meta(const Checkpoint *c, CheckpointSection s);

/* ---- values.c ---- */

enum { CKPT_PIECE = 1 << 20 }; /* the most elements that are held in memory at a time */
/* One element as a number; p need not be aligned. */
double ckpt_number(const char *p, DType t);
/* ckpt_numbers and ckpt_bytes read elements [first, first + n), as numbers or unchanged; ckpt_release releases the
 * pages of the file that they were read from. */
void ckpt_numbers(const CheckpointTensor *t, int64_t first, int64_t n, double *out);
void ckpt_bytes(const CheckpointTensor *t, int64_t first, int64_t n, char *out);
void ckpt_release(const CheckpointTensor *t, int64_t first, int64_t n);

#endif
