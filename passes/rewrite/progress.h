/* passes/rewrite/progress.h: rewriting ends, and this watches that it does.
 *
 * Every application of a rule must lower the measure of the module (measure.h); progress_rule checks that where
 * SHARDC_CHECK_REWRITES=1 stands in the environment, and in programs built with AddressSanitizer.  Checked or
 * not, a number of applications that is linear in the size of the module ends the program with an internal
 * error that names the two rules that alternate and the op they do it at. */
#ifndef SHARDC_PROGRESS_H
#define SHARDC_PROGRESS_H

#include "ir/ir.h"

typedef struct Progress Progress;
Progress *progress_new(Module *m, Arena *a);
/* A rule, known by its pattern, was applied to an op from loc. */
void progress_rule(Progress *p, const char *pattern, OpKind kind, const Loc *loc);

/* How many applications a module of that many ops may take. */
int64_t progress_limit(int64_t n_ops);

#endif
