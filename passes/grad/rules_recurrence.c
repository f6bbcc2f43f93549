/* passes/grad/rules_recurrence.c: the gradient rule of recurrent layers.
 *
 * One op goes back through the steps.  It gives the gradients of what every step reads; the gradient of the weights is
 * then one product over all steps and samples, as of any layer. */
#include "passes/grad/rules.h"

#include "ir/recurrence.h"

/* [T,B,C] as [T*B,C] */
static Value *rows(Builder *b, Value *x)
{
	const Type *t = &x->type;
	return ir_reshape(b, x, 2, (int64_t[]){t->dim[0] * t->dim[1], t->dim[2]});
}

static Value *product_over_rows(Builder *b, Value *x, Value *y)
{
	Value *left = rows(b, x), *right = rows(b, y);
	return ir_emit(b, OP_MATMUL, 2, (Value *[]){left, right}, attr_int(b->m, attr_int(b->m, NULL, "ta", 1), "tb", 0));
}

static Value *columns(Builder *b, Value *x, int64_t start, int64_t size)
{
	const Type *t = &x->type;
	Attr *a = attr_ints(b->m, NULL, "starts", 3, (int64_t[]){0, 0, start});
	a = attr_ints(b->m, a, "sizes", 3, (int64_t[]){t->dim[0], t->dim[1], size});
	return ir_emit(b, OP_SLICE, 1, &x, attr_ints(b->m, a, "steps", 3, (int64_t[]){1, 1, 1}));
}

/* dr = sum over steps and samples of d(h r^T) h_{t-1}; of a gru whose last gate multiplies r h_{t-1}, in two parts. */
static Value *weights_grad(Builder *b, const Recurrence *r, const Op *g)
{
	if (r->cell != CELL_GRU)
		return product_over_rows(b, g->out[RECG_DX], g->out[RECG_BEFORE]);
	if (r->after)
		return product_over_rows(b, g->out[RECG_PRODUCT], g->out[RECG_BEFORE]);
	Value *dzr = columns(b, g->out[RECG_DX], 0, 2 * r->h), *dn = columns(b, g->out[RECG_DX], 2 * r->h, r->h);
	Value *first = product_over_rows(b, dzr, g->out[RECG_BEFORE]);
	Value *second = product_over_rows(b, dn, g->out[RECG_PRODUCT]);
	return ir_emit(b, OP_CONCAT, 2, (Value *[]){first, second}, attr_int(b->m, NULL, "axis", 0));
}

/* h_t = cell(x_t, h_{t-1} r^T);  dx and d(h r^T) of all steps by one op, dr = d(h r^T)^T h_{t-1}, dbias their sum */
void grad_recurrence(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Recurrence r;
	if (!recurrence_read(op, &r, NULL))
		ice("a recurrence that cannot be read");
	bool lstm = r.cell == CELL_LSTM;
	if (dout[REC_GATES] || (lstm && dout[REC_ALL_C])) {
		grad_refuse(c, op, "the gradient through the gates of a recurrence is not supported");
		return;
	}
	Value *in[RECG_OPERANDS] = {op_in(op, REC_R), op->out[REC_Y], op->out[REC_GATES], dout[REC_Y], dout[REC_H],
		lstm ? dout[REC_C] : NULL, lstm ? op->out[REC_ALL_C] : NULL, op_in(op, REC_H0), op_in(op, REC_C0),
		op_in(op, REC_LENGTHS), op_in(op, REC_P)};
	const Op *g = ir_emit_op(b, OP_RECURRENCE_GRAD, RECG_OPERANDS, in, op->attrs, NULL);
	grad_give(c, op_in(op, REC_X), g->out[RECG_DX]);
	if (grad_wanted(c, in[RECG_R]))
		grad_give(c, in[RECG_R], weights_grad(b, &r, g));
	grad_give(c, in[RECG_H0], g->out[RECG_DH0]);
	if (lstm) {
		grad_give(c, in[RECG_C0], g->out[RECG_DC0]);
		grad_give(c, in[RECG_P], g->out[RECG_DP]);
	}
	Value *bias = op_in(op, REC_BIAS);
	if (grad_wanted(c, bias))
		grad_give(c, bias, ir_reduce(b, OP_REDUCE_SUM, g->out[RECG_PRODUCT], 2, (int64_t[]){0, 1}, false));
}
