/* hints.h: which options would take memory away from a plan. */
#ifndef SHARDC_HINTS_H
#define SHARDC_HINTS_H

#include "codegen/codegen.h"
#include "passes/passes.h"

enum { HINTS_MAX = 16 };
/* Plans again with each option that may help, and fills `out` with those that take at least one part in HINTS_PART of
 * the total away, the best first.  r: where planning begins again; memory: what the plan maps.  Returns their
 * number. */
enum { HINTS_PART = 20 };
int hints_find(const Restart *r, const Options *o, Sync sync, const LayoutMemory *memory, CodegenHint out[HINTS_MAX]);

#endif
