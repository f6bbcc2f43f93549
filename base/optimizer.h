/* base/optimizer.h: the optimizers (optimizers.def), as --optimizer and a module's train block name them. */
#ifndef SHARDC_OPTIMIZER_H
#define SHARDC_OPTIMIZER_H

#include "base/groups.h"

enum { OPTIMIZER_STATES = 2 }; /* at most */

typedef enum OptimizerId {
#define OPTIMIZER(kernel, ...) OPTIMIZER_##kernel,
#include "base/optimizers.def"
	OPTIMIZER_COUNT
} OptimizerId;

typedef struct OptimizerInfo {
	const char *name;          /* "sgd" */
	const char *text;          /* "sgd:momentum" */
	bool nesterov;             /* it may be asked for */
	int n_states;
	const char *states[OPTIMIZER_STATES]; /* per parameter element, f32: "exp_avg", ... */
	const char *counted;       /* the state beside which PyTorch counts updates; NULL: it does not */
	double lr, number[GROUP_KEYS];        /* where no flag is given; NaN: not read */
	const char *number_text[GROUP_KEYS];  /* "1e-8"; NULL: not told */
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

/* "adamw", "sgd:momentum,nesterov"; NULL: the default.  False: no optimizer, flags that it has not, or nesterov without
 * momentum, which out->nesterov says then. */
bool optimizer_read(const char *text, OptimizerChoice *out);
static inline bool optimizer_reads(const OptimizerInfo *info, GroupKey key) { return info->number[key] >= 0; }
/* Those that read a key: "adam, adamw and lion", by what stands before the last and before others. */
const char *optimizer_readers(Arena *a, GroupKey key, const char *comma, const char *last);
/* "adam, adamw (default 0.9,0.999) and lion (default 0.9,0.99)"; second: the key of the second number, or as key. */
const char *optimizer_defaults(Arena *a, GroupKey key, GroupKey second);
/* "0.01 for adamw": those that decay weights where no flag is given. */
const char *optimizer_decays(Arena *a);
/* The texts of all, the default first: "adamw|sgd|sgd:momentum|adam|..". */
const char *optimizer_choices(Arena *a);

#endif
