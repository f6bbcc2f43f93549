/* base/options.h: the values of all options: one struct for each owner of options, made from the rows of
 * base/options.def.  options.c fills them; main.c, frontend, passes and codegen read them as they are.  A struct of
 * zeros is a command line without options, except for numbers that have another default (options_parse sets them). */
#ifndef SHARDC_BASE_OPTIONS_H
#define SHARDC_BASE_OPTIONS_H

#include <stdlib.h>
#include <string.h>

#include "base/communicators.h"
#include "base/layout.h"
#include "base/sizes.h"
#include "base/variant.h"

#define UNSAID(id) id,
#define WORD(id, text) id,
#define ENUM_TYPE(type, ...) typedef enum type { __VA_ARGS__ } type;
#include "base/options.def"

typedef enum Command { COMMAND_COMPILE, COMMAND_PLAN, COMMAND_RUN, COMMAND_PARAMS, COMMAND_INIT,
	COMMAND_CALIBRATE } Command;

typedef const char *OptionText;
enum { OPTION_LIST_MAX = 64 };
typedef struct OptionList { const char *at[OPTION_LIST_MAX]; int n; } OptionList;

/* NORM_AUTO: when inferring, as the node says.  When training a model with metadata, also as the node says, or as the
 * metadata does where the node says nothing.  When training without metadata a batch norm trains, unless its node says
 * that it does not and another norm or a dropout of the model trains (docs/export.md). */
typedef enum NormMode { NORM_AUTO, NORM_TRAIN, NORM_FROZEN } NormMode;
typedef struct OptionNorms {
	OptionList given;   /* as on the command line; the fields below are parsed from it */
	NormMode all;
	OptionList frozen;  /* regular expressions: batch norms of matching modules keep their statistics */
} OptionNorms;

#define GROUP(owner, type) typedef struct type {
#define OPTION(owner, name, kind, type, field, ...) type field;
#define END(owner, type) } type;
#include "base/options.def"

typedef struct OptionsGiven {
#define OPTION(owner, name, kind, type, field, ...) bool field;
#include "base/options.def"
} OptionsGiven;

typedef struct Options {
	Command command;
	const char *input;
#define GROUP(owner, type) type owner;
#include "base/options.def"
	OptionsGiven given;
	char *canonical;             /* one text of the options that change the program: --a=b --c=d */
	char *canonical_program, *canonical_target; /* its two parts: what the program does; what it is built for */
	const char *typed;           /* the command line, in words of a shell */
	const char **value;          /* by row of options.def: the value as given; NULL = not given */
} Options;

/* Whether the input is a text of the IR rather than a model. */
static inline bool options_reads_text(const Options *o)
{
	size_t n = o->input ? strlen(o->input) : 0;
	return n > 3 && !strcmp(o->input + n - 3, ".ir");
}
/* Whether the command is shardc run: no loss and no training, only section eval, made from the forward. */
static inline bool options_infer(const Options *o) { return o->command == COMMAND_RUN; }
static inline bool options_cuda(const Options *o) { return o->target.target == TARGET_CUDA; }
/* The compute capability of --arch, 90 of "sm_90a"; that of Hopper where the name has none, as the emulation's, or no
 * number of two digits, which is refused later. */
static inline int options_sm(const Options *o)
{
	const char *arch = o->target.arch;
	int sm = arch && !strncmp(arch, "sm_", 3) ? atoi(arch + 3) : 0;
	return sm < 10 ? 90 : sm;
}
/* Whether the program has a plan for each of several sizes. */
static inline bool options_sizes(const Options *o)
{
	for (int i = 0; i < o->graph.bind.n; i++)
		if (sizes_several(o->graph.bind.at[i]))
			return true;
	return false;
}
/* Whether a step may have several micro-batches, whose gradients are summed in f32 flats. */
static inline bool options_many(const Options *o) { return o->graph.accum == ACCUM_MANY; }

#endif
