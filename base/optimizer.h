/* base/optimizer.h: the optimizers (optimizers.def), as --optimizer and a module's train block name them. */
#ifndef SHARDC_OPTIMIZER_H
#define SHARDC_OPTIMIZER_H

#include <stdbool.h>

typedef struct Optimizer {
	const char *name;          /* "sgd" */
	bool momentum, nesterov;   /* sgd only */
	int n_states;
	const char *states[2];     /* per parameter element, f32: "exp_avg", ... */
} Optimizer;

extern const Optimizer optimizer_known[];
extern const int optimizer_count;
extern const char optimizer_forms[]; /* "sgd[:momentum[,nesterov]], adam, .." */

/* "adamw", "sgd:momentum,nesterov"; false: no optimizer, flags that it has not, or nesterov without momentum, which
 * *out has then. */
bool optimizer_read(const char *text, Optimizer *out);

#endif
