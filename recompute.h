/* recompute.h: --remat=auto: the values that backward recomputes so that a plan keeps to --memory-limit. */
#ifndef SHARDC_RECOMPUTE_H
#define SHARDC_RECOMPUTE_H

#include "passes/passes.h"
#include "predict/machine.h"

/* What is known of a module, and of its plans, before a limit is asked about. */
typedef struct Recompute Recompute;
/* m: as it was read with these options; freed by recompute_end.  machine: whose times count; NULL: rates that
 * processors of the target have at least. */
Recompute *recompute_begin(Module *m, const Options *o, Sync sync, const Machine *machine);
/* Chooses for a limit in bytes, and says what and why.  may_each: micro-batches may be reduced one by one where no
 * choice is enough without that; then it may be asked once.  Returns a policy of passes/remat, in the arena, "none" if
 * nothing needs to be recomputed, and NULL after messages. */
const char *recompute_within(Recompute *r, int64_t limit, bool may_each, Arena *a, Diag *d);
void recompute_end(Recompute *r);

#endif
