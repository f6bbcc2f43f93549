/* tests/oracle/oracle.h: runs the schedule of a PLAN on poisoned memory, to say whether it is right.
 *
 * The second opinion on the verifier of ir/: it shares no code with it, proves nothing, and knows no rule
 * about schedules.  It only knows what each op touches. */
#ifndef SHARDC_TEST_ORACLE_H
#define SHARDC_TEST_ORACLE_H

#include "ir/ir.h"

/* Runs step, step, eval, eval, step.  m is one of several micro-batches: steps of two, three and four of them, with
 * m in its place among `others` (by Variant; else NULL).  Returns the first thing that goes wrong as a sentence in
 * a, NULL when nothing does.  m is at level PLAN, its operands and use lists are consistent; order may be anything:
 * an operand that was not computed is one of the things that go wrong ("structure: ..."). */
const char *oracle_run(const Module *m, Module *const others[VARIANT_COUNT], Arena *a);

#endif
