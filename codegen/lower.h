/* codegen/lower.h: the `lower` column of ops.def: op -> lines of step.c. */
#ifndef SHARDC_LOWER_H
#define SHARDC_LOWER_H

#include "codegen/emit.h"

typedef void LowerFn(Emit *e, const Op *op);
#define OP(id, text, imin, imax, out, flags, first, last, attrs, shape, grad, eval, lower, ...) \
	LowerFn lower_##lower;
#include "ir/ops.def"

void lower_op(Emit *e, const Op *op);
/* Copies x to the place of that result, which the op works on in place, if it does not lie there. */
void lower_in_place(Emit *e, const Op *op, int result, const Value *x);
/* Whether the op adds to op_sum, which is copied to the place of its result if it does not lie there. */
bool lower_sum(Emit *e, const Op *op);

#endif
