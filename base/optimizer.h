/* base/optimizer.h: the optimizers (optimizers.def), as --optimizer and a module's train block name them. */
#ifndef SHARDC_OPTIMIZER_H
#define SHARDC_OPTIMIZER_H

#include "base/groups.h"

enum { OPTIMIZER_STATES = 2 }; /* the most states that an optimizer has */

typedef enum OptimizerId {
#define OPTIMIZER(kernel, ...) OPTIMIZER_##kernel,
#include "base/optimizers.def"
	OPTIMIZER_COUNT
} OptimizerId;

typedef struct OptimizerInfo {
	const char *name;          /* "sgd" */
	const char *text;          /* "sgd:momentum" */
	bool nesterov;             /* the flag may be given */
	int n_states;
	const char *states[OPTIMIZER_STATES]; /* per parameter element, f32: "exp_avg", ... */
	const char *counted;       /* the state beside which PyTorch stores "step"; NULL: none */
	double lr, number[GROUP_KEYS];        /* defaults of the program's flags; NaN: not read */
	const char *number_text[GROUP_KEYS];  /* "1e-8"; NULL: not printed */
} OptimizerInfo;

typedef struct OptimizerChoice {
	const OptimizerInfo *info;
	bool nesterov;
} OptimizerChoice;

extern const OptimizerInfo optimizer_info[OPTIMIZER_COUNT];
extern const char optimizer_form_list[], optimizer_help_list[];
#define OPTIMIZER_FORMS (optimizer_form_list + sizeof(", ") - 1) /* "sgd[:momentum[,nesterov]], adam, .." */
#define OPTIMIZER_HELP (optimizer_help_list + sizeof(" | ") - 1) /* "sgd[:momentum,nesterov] | adam | .." */
#define OPTIMIZER_DEFAULT "adamw"

/* Parses "adamw" or "sgd:momentum,nesterov"; NULL: the default.  Returns false for an unknown optimizer, for flags
 * that it does not have, and for nesterov without momentum, in which case out->nesterov is set. */
bool optimizer_read(const char *text, OptimizerChoice *out);
static inline bool optimizer_reads(const OptimizerInfo *info, GroupKey key) { return info->number[key] >= 0; }
/* The optimizers that read a key: "adam, adamw and lion".  comma and last separate the names. */
const char *optimizer_readers(Arena *a, GroupKey key, const char *comma, const char *last);
/* "adam, adamw (default 0.9,0.999) and lion (default 0.9,0.99)"; second: the key of the second number; key itself
 * if there is only one. */
const char *optimizer_defaults(Arena *a, GroupKey key, GroupKey second);
/* "0.01 for adamw": the optimizers that decay weights by default. */
const char *optimizer_decays(Arena *a);
/* The texts of all optimizers, the default first: "adamw|sgd|sgd:momentum|adam|..". */
const char *optimizer_choices(Arena *a);

#endif
