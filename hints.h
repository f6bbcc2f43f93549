/* hints.h: which options would take memory away from a plan. */
#ifndef SHARDC_HINTS_H
#define SHARDC_HINTS_H

#include "codegen/codegen.h"
#include "passes/passes.h"

enum { HINTS_MAX = 16 };
/* Plans again with each option that may help, and fills `out` with those that take at least one part in HINTS_PART of
 * the total away, the best first.  start: where planning begins again; plan: what was planned, which is freed, so that
 * no two plans need memory at a time.  Returns their number. */
enum { HINTS_PART = 20 };
int hints_find(const Restart *start, const Options *o, Variants *plan, CodegenHint out[HINTS_MAX]);

#endif
