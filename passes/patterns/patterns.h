/* passes/patterns/patterns.h: patterns over ops, written as text.
 *
 *   ?x            any value; the same value wherever the name occurs again
 *   ?x:op(...)    a value that is also the result of op
 *   #c            a number that fills its tensor, bound to the name
 *   0.5           that number, as precisely as the dtype can hold it
 *   op(a, b)      result 0 of an op with these operands; either order if the op is commutative
 *   [a | b]       a or b
 *
 * A match tries all orders and alternatives.  The values that it covers must not be used elsewhere. */
#ifndef SHARDC_PATTERNS_H
#define SHARDC_PATTERNS_H

#include "passes/passes.h"
#include "passes/rewrite/rewrite.h"

typedef struct Match Match;
Value *match_value(const Match *mt, const char *name); /* an ice when the pattern does not bind it */
double match_bound_number(const Match *mt, const char *name);

/* Builds the value that replaces the root of a match; NULL when a condition beyond the pattern does not hold. */
typedef Value *BuildFn(Rewriter *r, Op *root, const Match *mt);
#define PATTERN(name, text, build) BuildFn build;
#include "passes/patterns/patterns.def"

/* Notes once per op, under -v, why it was not recognised although it looks like `what`. */
void pattern_refuse(Rewriter *r, Op *op, const char *what, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* Whether the values of ops inner[0..n) are used only by these ops and by root; otherwise notes the refusal. */
bool pattern_is_closed(Rewriter *r, Op *root, const char *what, Op *const *inner, int n);

/* data.c: lets rules evaluate constants that are not in the text: data of the model's file, and buffers that no op
 * writes. */
PrepareFn patterns_see_data;
/* Whether the last axis of data in the model's file, which no op writes, holds every element twice: as two halves, or
 * (pairs) next to each other.  v: a read.  The file is read once, row by row. */
bool data_is_doubled(Rewriter *r, const Value *v, bool pairs);

/* tables.c: for a table whose last axis holds every angle twice, as two halves or as neighbouring pairs, the table
 * with each angle once; NULL when that cannot be proved. */
Value *pattern_angles_once(Rewriter *r, Value *table, bool pairs);

/* experts.c: warns once of lookups that copy weights of experts for every token. */
void name_copied_weights(Module *m, const Options *o, Diag *d);

/* Rules for forms that the text of a pattern cannot express. */
RuleFn pattern_attention, pattern_attention_groups, pattern_attention_mask, pattern_rope, pattern_rope_part;
RuleFn pattern_banded_data;

#endif
