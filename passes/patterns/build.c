/* passes/patterns/build.c: builds the ops that replace matches of patterns.def, and checks the conditions that the
 * text of a pattern cannot state: which axes are reduced, and which shapes weights have. */
#include "passes/patterns/patterns.h"

/* ---- activations ---- */

static Value *emit_gelu(Rewriter *r, const Match *mt, int tanh_form)
{
	Value *x = match_value(mt, "x");
	return ir_emit(&r->b, OP_GELU, 1, &x, attr_int(r->m, NULL, "tanh", tanh_form));
}

Value *build_gelu_erf(Rewriter *r, Op *root, const Match *mt)
{
	(void)root;
	return emit_gelu(r, mt, 0);
}

Value *build_gelu_tanh(Rewriter *r, Op *root, const Match *mt)
{
	(void)root;
	return emit_gelu(r, mt, 1);
}

Value *build_sigmoid(Rewriter *r, Op *root, const Match *mt)
{
	(void)root;
	return ir_emit1(&r->b, OP_SIGMOID, match_value(mt, "x"));
}

Value *build_silu(Rewriter *r, Op *root, const Match *mt)
{
	(void)root;
	return ir_emit1(&r->b, OP_SILU, match_value(mt, "x"));
}

Value *build_softplus(Rewriter *r, Op *root, const Match *mt)
{
	(void)root;
	return ir_emit1(&r->b, OP_SOFTPLUS, match_value(mt, "x"));
}

/* ---- reductions ---- */

/* The first of the reduced axes when the reduction keeps its dims and these axes are the last ones, else -1. */
static int trailing_axis(const Value *reduced)
{
	const Op *op = reduced->op;
	const Attr *axes = attr_find(op->attrs, "axes");
	int rank = op->in[0].value->type.rank;
	unsigned seen = 0;
	if (!attr_get_int(op->attrs, "keepdims", 0) || !axes->n)
		return -1;
	for (int i = 0; i < axes->n; i++)
		seen |= 1u << axes->ints[i];
	for (int k = rank - axes->n; k < rank; k++)
		if (!(seen >> k & 1))
			return -1;
	return rank - axes->n;
}

/* The axis of a reduction over a single axis that keeps its dims, else -1. */
static int single_axis(const Value *reduced)
{
	const Attr *axes = attr_find(reduced->op->attrs, "axes");
	if (axes->n != 1 || !attr_get_int(reduced->op->attrs, "keepdims", 0))
		return -1;
	return (int)axes->ints[0];
}

static Value *emit_softmax(Rewriter *r, OpKind kind, Value *x, int axis)
{
	return axis < 0 ? NULL : ir_emit(&r->b, kind, 1, &x, attr_int(r->m, NULL, "axis", axis));
}

Value *build_softmax(Rewriter *r, Op *root, const Match *mt)
{
	(void)root;
	return emit_softmax(r, OP_SOFTMAX, match_value(mt, "x"), single_axis(match_value(mt, "sum")));
}

static Value *softmax_less_max(Rewriter *r, OpKind kind, const Match *mt)
{
	int axis = single_axis(match_value(mt, "sum"));
	return single_axis(match_value(mt, "max")) == axis ? emit_softmax(r, kind, match_value(mt, "x"), axis) : NULL;
}

Value *build_softmax_max(Rewriter *r, Op *root, const Match *mt)
{
	(void)root;
	return softmax_less_max(r, OP_SOFTMAX, mt);
}

Value *build_log_softmax_max(Rewriter *r, Op *root, const Match *mt)
{
	(void)root;
	return softmax_less_max(r, OP_LOG_SOFTMAX, mt);
}

Value *build_log_of_softmax(Rewriter *r, Op *root, const Match *mt)
{
	(void)root;
	const Value *y = match_value(mt, "y");
	return emit_softmax(r, OP_LOG_SOFTMAX, match_value(mt, "x"), axis_of(y->op));
}

/* ---- losses ---- */

enum { IGNORED_LABEL = -100 };

/* The op whose results are the sum of the losses and their number; NULL when there is not one label for each row of
 * logits, or when some labels are left out of the sum. */
static Op *emit_cross_entropy(Rewriter *r, const Match *mt)
{
	Value *x = match_value(mt, "x"), *ids = match_value(mt, "ids");
	int axis = axis_of(match_value(mt, "l")->op), rank = x->type.rank;
	bool of_classes = axis == rank - 1 && axis_of(match_value(mt, "p")->op) == axis;
	if (!of_classes || ids->type.rank != rank || ids->type.dim[axis] != 1 || ids->type.dtype != DT_I64
			|| type_numel(&ids->type) * x->type.dim[axis] != type_numel(&x->type)
			|| type_numel(&match_value(mt, "all")->type) != 1)
		return NULL;
	Value *in[2] = {x, ir_reshape(&r->b, ids, rank - 1, ids->type.dim)};
	Attr *attrs = attr_int(r->m, NULL, "ignore_index", IGNORED_LABEL);
	return ir_emit_op(&r->b, OP_CROSS_ENTROPY, 2, in, attr_float(r->m, attrs, "smoothing", 0), NULL);
}

static Value *as_root(Rewriter *r, const Op *root, Value *loss)
{
	const Type *t = &root->out[0]->type;
	return ir_reshape(&r->b, ir_cast(&r->b, loss, t->dtype), t->rank, t->dim);
}

Value *build_mean_loss(Rewriter *r, Op *root, const Match *mt)
{
	Op *ce = emit_cross_entropy(r, mt);
	return ce ? as_root(r, root, ir_emit2(&r->b, OP_DIV, ce->out[0], ce->out[1])) : NULL;
}

Value *build_sum_loss(Rewriter *r, Op *root, const Match *mt)
{
	Op *ce = emit_cross_entropy(r, mt);
	return ce ? as_root(r, root, ce->out[0]) : NULL;
}

/* ---- norms ---- */

static Value *emit_norm(Rewriter *r, OpKind kind, const Match *mt, int axis)
{
	Value *x = match_value(mt, "x");
	Attr *attrs = attr_float(r->m, NULL, "eps", match_bound_number(mt, "eps"));
	return axis < 0 ? NULL : ir_emit(&r->b, kind, 1, &x, attr_int(r->m, attrs, "axis", axis));
}

Value *build_layer_norm(Rewriter *r, Op *root, const Match *mt)
{
	int axis = trailing_axis(match_value(mt, "mean"));
	if (axis < 0 || trailing_axis(match_value(mt, "var")) != axis) {
		pattern_refuse(r, root, "layer_norm", "it does not normalise over the last axes");
		return NULL;
	}
	return emit_norm(r, OP_LAYER_NORM, mt, axis);
}

Value *build_rms_norm(Rewriter *r, Op *root, const Match *mt)
{
	int axis = trailing_axis(match_value(mt, "mean"));
	if (axis < 0)
		pattern_refuse(r, root, "rms_norm", "it does not normalise over the last axes");
	return emit_norm(r, OP_RMS_NORM, mt, axis);
}

/* Whether w has exactly the dims that the norm normalises. */
static bool fits_norm(const Op *norm, const Value *w)
{
	const Type *x = &norm->in[0].value->type;
	int axis = axis_of(norm);
	if (w->type.rank != x->rank - axis)
		return false;
	for (int k = 0; k < w->type.rank; k++)
		if (w->type.dim[k] != x->dim[axis + k])
			return false;
	return true;
}

static Value *absorb(Rewriter *r, Op *root, const Match *mt, const char *operand)
{
	Op *norm = match_value(mt, "n")->op;
	Value *w = match_value(mt, operand);
	Value *in[3] = {op_in(norm, 0), op_in(norm, 1), NULL};
	if (!fits_norm(norm, w))
		return NULL;
	in[norm->n_in] = ir_cast(&r->b, w, norm->out[0]->type.dtype);
	return ir_cast(&r->b, ir_emit(&r->b, norm->kind, norm->n_in + 1, in, norm->attrs),
		root->out[0]->type.dtype);
}

Value *build_norm_weight(Rewriter *r, Op *root, const Match *mt)
{
	return absorb(r, root, mt, "w");
}

Value *build_norm_weight_cast(Rewriter *r, Op *root, const Match *mt)
{
	return absorb(r, root, mt, "w");
}

Value *build_norm_bias(Rewriter *r, Op *root, const Match *mt)
{
	return absorb(r, root, mt, "b");
}
