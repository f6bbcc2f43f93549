/* passes/patterns/patterns.h: patterns over ops, written as text.
 *
 *   ?x            any value; the same one wherever the name stands again
 *   ?x:op(...)    a value that is also the result of op
 *   #c            a number that fills its tensor, bound to the name
 *   0.5           that number, as far as the dtype can hold it
 *   op(a, b)      result 0 of an op with these operands; either order where the op commutes
 *   [a | b]       either
 *
 * A match takes all orders and alternatives into account.  What it covers must not be used elsewhere. */
#ifndef SHARDC_PATTERNS_H
#define SHARDC_PATTERNS_H

#include "passes/rewrite/rewrite.h"

typedef struct Match Match;
Value *match_value(const Match *mt, const char *name); /* an ice when the pattern does not bind it */
double match_bound_number(const Match *mt, const char *name);

/* What stands for the root of a match; NULL when a condition beyond the pattern does not hold. */
typedef Value *BuildFn(Rewriter *r, Op *root, const Match *mt);
#define PATTERN(name, text, build) BuildFn build;
#include "passes/patterns/patterns.def"

/* Says once per op, under -v, why it was not recognised as what it looks like. */
void pattern_refuse(Rewriter *r, Op *op, const char *what, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* The values that ops inner[0..n) compute are used by these ops and by root only; else the refusal is said. */
bool pattern_is_closed(Rewriter *r, Op *root, const char *what, Op *const *inner, int n);

/* data.c: lets rules evaluate what is constant, though not in the text: data of the model's file,
 * and buffers that nothing writes. */
PrepareFn patterns_see_data;

/* tables.c: a table whose last axis holds everything twice, as halves or as neighbouring pairs, with
 * half of it left; NULL when that is not known. */
Value *pattern_angles_once(Rewriter *r, Value *table, bool pairs);

/* Rules for what text cannot say. */
RuleFn pattern_attention, pattern_attention_groups, pattern_attention_mask, pattern_rope, pattern_rope_part;

#endif
