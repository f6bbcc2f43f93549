/* passes/grad/rules_quant.c: gradients of rounding, straight through: as if the number had not been rounded. */
#include "passes/grad/rules.h"

/* y = x rounded to a narrow type;  dx = dy, as of a cast */
void grad_round_to(GradCtx *c, Op *op, Value *const *dout)
{
	grad_give(c, op_in(op, 0), dout[0]);
}

/* y = min(max(q, lo), hi), q = round(x) + zero;  dx = dzero = lo <= q <= hi ? dy : 0 */
void grad_quantize(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0), *zero = op_in(op, 1);
	DType t = x->type.dtype;
	if (!grad_wanted(c, x) && !grad_wanted(c, zero))
		return;
	Value *q = e_add(b, e_round(b, x), zero);
	Value *above = ir_emit2(b, OP_GE, q, ir_const_float(b, t, attr_get_float(op->attrs, "lo", 0)));
	Value *below = ir_emit2(b, OP_LE, q, ir_const_float(b, t, attr_get_float(op->attrs, "hi", 0)));
	Value *dy = e_select(b, e_and(b, above, below), dout[0]);
	grad_give(c, x, dy);
	grad_give(c, zero, dy);
}
