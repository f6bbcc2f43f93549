/* ckpt/ckpt.h: `shardc ckpt COMMAND ..`: checkpoints looked at and converted without a program, ranks or GPUs.
 *
 * Elements are read from mapped files and let go of, written in pieces: memory does not grow with checkpoints.
 * Output is planned before anything is written, made under a temporary name, then renamed. */
#ifndef SHARDC_CKPT_H
#define SHARDC_CKPT_H

#include "base/checkpoint.h"

enum { CKPT_OK, CKPT_INPUT, CKPT_USAGE, CKPT_RUN }; /* exit status: 1 wrong input, or what differs; 3 the disk */

/* argv[0] is "ckpt". */
int ckpt_main(int argc, char **argv, Diag *d);

#define COMMAND(name, ...) int ckpt_##name(int argc, char **argv, Diag *d);
#include "ckpt/commands.def"
typedef struct CkptCommand {
	const char *name, *arguments, *help;
	int (*run)(int argc, char **argv, Diag *d);
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
bool ckpt_parse(int argc, char **argv, const CkptOption *options, int n, int least, int most, Arena *a, CkptArgs *args,
	Diag *d);

/* ---- input.c ---- */

/* A checkpoint's folder, a folder of checkpoints (its `latest`), or a safetensors file (checkpoint_open_file).  NULL
 * after messages. */
Checkpoint *ckpt_open(Arena *a, const char *path, Diag *d);

/* ---- values.c ---- */

enum { CKPT_PIECE = 1 << 20 }; /* elements that are held at a time, at most */
/* One element, aligned to nothing, as a number. */
double ckpt_number(const char *p, DType t);
/* Elements [first, first + n) as numbers, or as they are; and letting go of the pages that they were read from. */
void ckpt_numbers(const CheckpointTensor *t, int64_t first, int64_t n, double *out);
void ckpt_bytes(const CheckpointTensor *t, int64_t first, int64_t n, char *out);
void ckpt_release(const CheckpointTensor *t, int64_t first, int64_t n);

#endif
