/* passes/grad/rules_spatial.c: gradient rules of sampling at points and in boxes, and of determinants. */
#include "passes/grad/rules.h"

/* y = x at the points of a grid, each a weighted sum of pixels;  dx = dy added to the pixels by their weights,
 * dgrid = dy times the derivatives of the weights */
void grad_grid_sample(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0), *grid = op_in(op, 1), *dy = dout[0];
	if (grad_wanted(c, x))
		grad_give(c, x, ir_emit(b, OP_GRID_SAMPLE_GRAD_X, 2, (Value *[]){dy, grid},
			attr_shape(b->m, op->attrs, &x->type)));
	if (grad_wanted(c, grid))
		grad_give(c, grid, ir_emit(b, OP_GRID_SAMPLE_GRAD_GRID, 3, (Value *[]){dy, x, grid}, op->attrs));
}

/* y = means or maxima of weighted pixels;  dx = dy added to these pixels.  Boxes get none. */
void grad_roi_pool(GradCtx *c, Op *op, Value *const *dout)
{
	Value *x = op_in(op, 0);
	if (grad_wanted(c, x))
		grad_give(c, x, ir_emit(grad_builder(c), OP_ROI_POOL_GRAD, 4,
			(Value *[]){dout[0], x, op_in(op, 1), op_in(op, 2)}, op->attrs));
}

/* y = det x;  dx = dy times the cofactors of x */
void grad_det(GradCtx *c, Op *op, Value *const *dout)
{
	Value *x = op_in(op, 0);
	grad_give(c, x, ir_emit(grad_builder(c), OP_DET_GRAD, 2, (Value *[]){dout[0], x}, NULL));
}
