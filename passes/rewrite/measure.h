/* passes/rewrite/measure.h: a number for a module that every rewrite rule of canon, patterns and layout lowers.
 *
 * It is four numbers, compared in this order: LAYOUT, WORK, SHAPE and PLACE.  Each number gives every value a cost that
 * is made of its operands' costs: factor * (their sum) + a constant, by the tables of measure.def.  The module's number
 * is the sum of the costs of the values that its effects read.  Since factors are at least 1, lowering the cost of one
 * value lowers the module's number, however many ops share the value; values that nothing reads cost nothing.  So to
 * show that a rule `before -> after` lowers a number, one compares two polynomials in the costs of its operands:
 *
 *   LAYOUT  an op in channels-first layout, and a transpose of a value that a channels-last op made, have a cost; ops
 *           double the costs above them, so the cost of such a transpose falls when it moves down
 *   WORK    ops cost what they compute, and transposes cost too; ops double, so the cost of transposes falls when they
 *           move down, merge or become matmul's ta and tb.  Reshapes and broadcasts are free
 *   SHAPE   reshapes multiply, so the cost of transposes falls when they move below reshapes; an operand that is
 *           broadcast, by an op or implicitly by its rank, costs more; literals cost their extents
 *   PLACE   transposes double, so the cost of broadcasts falls when they move below transposes or other ops
 *
 * A rule may raise a number only if it lowers one before it. */
#ifndef SHARDC_MEASURE_H
#define SHARDC_MEASURE_H

#include "ir/ir.h"

typedef struct Measure Measure;
Measure *measure_new(const Module *m);
void measure_free(Measure *x);
/* Returns a number below 0 when a is smaller than b, 0 when they are equal. */
int measure_compare(const Measure *a, const Measure *b);
/* For a message: which of the four numbers decides between two measures, and both its values. */
const char *measure_text(const Measure *now, const Measure *before, Arena *a);

/* Whether layout makes op channels-last, which makes it an anchor of LAYOUT; and whether a result of op counts as
 * made by an anchor when an operand does. */
bool measure_is_anchor(const Op *op);
bool measure_passes_anchor(const Op *op);

/* Whether v is a constant or an iota, possibly behind reshapes and broadcasts.  Folding such a value adds no new
 * literal.  When an op may swap its operands, as comparisons may too, canon puts the operand that is not a literal
 * first. */
bool measure_is_literal(const Value *v);
bool measure_literal_is_first(const Op *op);

#endif
