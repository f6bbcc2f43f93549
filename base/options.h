/* base/options.h: what the user asked for, as values: one struct for each owner of options, made from the rows of
 * base/options.def.  options.c fills it; main.c, frontend, passes and codegen read it as it is.  A struct of zeros is a
 * command line without options, but for numbers that have another value then (options_parse sets them). */
#ifndef SHARDC_BASE_OPTIONS_H
#define SHARDC_BASE_OPTIONS_H

#include "base/layout.h"
#include "base/variant.h"

#define UNSAID(id) id,
#define WORD(id, text) id,
#define ENUM_TYPE(type, ...) typedef enum type { __VA_ARGS__ } type;
#include "base/options.def"

typedef enum Command { COMMAND_COMPILE, COMMAND_PLAN, COMMAND_RUN, COMMAND_PARAMS } Command;

typedef const char *OptionText;
enum { OPTION_LIST_MAX = 64 };
typedef struct OptionList { const char *at[OPTION_LIST_MAX]; int n; } OptionList;

/* NORM_AUTO: as the node says when inferring; else as the metadata and the exporter say of each, and training where
 * they say nothing, or of all that they do not train (docs/export.md). */
typedef enum NormMode { NORM_AUTO, NORM_TRAIN, NORM_FROZEN } NormMode;
typedef struct OptionNorms {
	OptionList given;   /* as on the command line; what it says is below */
	NormMode all;
	OptionList frozen;  /* expressions over modules of batch norms: those keep their statistics */
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
	char *canonical;             /* the options that change the program, one text: --a=b --c=d */
	char *canonical_program, *canonical_target; /* its parts: what the program does, what it is built for */
	const char **value;          /* by row of options.def: its value, as given; NULL where it is not */
} Options;

/* shardc run: no loss, no training, only section eval, made from the forward. */
static inline bool options_infer(const Options *o) { return o->command == COMMAND_RUN; }
static inline bool options_cuda(const Options *o) { return o->target.target == TARGET_CUDA; }
/* Several micro-batches a step: gradients are summed in f32 flats. */
static inline bool options_many(const Options *o) { return o->graph.accum == ACCUM_MANY; }

#endif
