/* recompute.h: --remat=auto: the values that backward recomputes so that a plan keeps to --memory-limit. */
#ifndef SHARDC_RECOMPUTE_H
#define SHARDC_RECOMPUTE_H

#include "passes/passes.h"
#include "predict/machine.h"

/* Chooses for the module, which was read with these options and is freed, and says what and why.  machine: whose times
 * count; NULL: rates that processors of the target have at least.  may_each: micro-batches may be reduced one by one
 * where no choice is enough without that.  Returns a policy of passes/remat, in the arena, "none" if nothing needs to
 * be recomputed, and NULL after messages. */
const char *recompute_choose(Module *m, const Options *o, Sync sync, bool may_each, const Machine *machine, Arena *a,
	Diag *d);

#endif
