/* passes/rewrite/progress.h: watches that rewriting terminates.
 *
 * Every application of a rule must lower the measure of the module (measure.h).  progress_rule checks this when the
 * environment has SHARDC_CHECK_REWRITES=1, and in builds with AddressSanitizer.  Whether checked or not, more
 * applications than a bound that is linear in the size of the module end the program with an internal error, which
 * names the two rules that alternate and the op at which they do. */
#ifndef SHARDC_PROGRESS_H
#define SHARDC_PROGRESS_H

#include "ir/ir.h"

typedef struct Progress Progress;
Progress *progress_new(Module *m, Arena *a);
/* Records that a rule, known by its pattern, was applied to an op from loc. */
void progress_rule(Progress *p, const char *pattern, OpKind kind, const Loc *loc);

/* The number of applications that a module of n_ops ops may take. */
int64_t progress_limit(int64_t n_ops);

#endif
