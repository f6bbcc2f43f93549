/* options.h: the command line of shardc, as one table.  --config FILE.json holds the same names; an option on the
 * command line replaces that of a file, a list as a whole. */
#ifndef SHARDC_OPTIONS_H
#define SHARDC_OPTIONS_H

#include "base/base.h"

enum { OPTION_LIST_MAX = 64 };
typedef struct OptionList { const char *at[OPTION_LIST_MAX]; int n; } OptionList;

/* What the user asked for, as given; unset strings are NULL, unset numbers 0. */
typedef struct Options {
	/* what to do */
	const char *command;         /* "compile" | "plan" | "run" | "params" */
	const char *input, *output, *emit, *stop_after, *passes, *format, *save, *inputs_dir, *outputs_dir;
	OptionList config;
	/* graph */
	OptionList bind, input_shape, constants, freeze, param_group, bn_list;
	OptionList bn_frozen;        /* expressions of --bn=frozen:REGEX; bn is what it says of all */
	const char *loss, *loss_norm, *loss_reduce, *optimizer, *trainable, *init, *untie, *bn, *bn_sync, *dropout;
	bool strict_params, bn_biased, no_decay_1d, check_nan;
	const char *accum, *sync, *micro_batch, *clip, *grad_norm;
	/* precision */
	const char *comm_hook;
	const char *param_dtype, *reduce_dtype, *buffer_dtype, *bcast_dtype, *loss_scale;
	bool keep_low_precision_grads, stochastic_rounding;
	/* sharding */
	OptionList wrap, ignore, unit_strategy;
	const char *strategy, *forward_prefetch, *backward_prefetch, *limit_all_gathers, *comm;
	bool reshard_root;
	int64_t world, shard_size, hosts;
	/* memory */
	const char *remat, *offload;
	int64_t memory_limit, workspace;
	/* target */
	const char *target, *arch, *cc, *nvcc, *optimize, *matmul_precision;
	bool verbose;
	int64_t threads;
	/* inspection */
	const char *dump_ir, *print_after, *schedule_out, *schedule_in;
	bool print_changed, check_passes;
	/* information */
	bool help, version, list_ops, list_passes;
	char *canonical;             /* the options that change the program, one text: --a=b --c=d */
	char *canonical_program, *canonical_target; /* its parts: what the program does, what it is built for */
	const char **given;          /* by row of options.def: its value, as given; NULL where it is not */
} Options;

/* Reads argv (and the files named by --config).  Reports every problem to d: errors in *usage are wrong
 * use of the command line (exit 2), others are bad values (exit 1).  Strings live in the arena. */
bool options_parse(int argc, char **argv, Options *o, Arena *a, Diag *d, bool *usage);
/* Options in one text, as `canonical` is, or with blanks for "=": `where` begins messages.  Refused are options that do
 * not change a program; of a recorded text, which another version may have written, only those of the group "graph" are
 * read.  False after messages. */
bool options_read(const char *text, const char *where, bool recorded, Options *o, Arena *a, Diag *d);
void options_help(FILE *f);

/* Whether what reads an option ("frontend", the name of a pass, ..) runs; where not, *why: "by shardc plan". */
typedef bool ReaderRuns(const void *context, const char *reader, const char **why);
/* Warns of each given option none of whose readers runs. */
void options_warn_unread(const Options *o, ReaderRuns *runs, const void *context, Arena *a, Diag *d);

#endif
