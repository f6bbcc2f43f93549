/* passes/canon/linear.c: rules of canon for matmul, convolution, attention and rope.
 *
 * Work that the kernels do at no extra cost moves into them: transposed operands, biases, scales, and either order
 * of the heads and sequence dims. */
#include "passes/canon/canon.h"

/* ---- matmul ---- */

/* Finds the value behind a transpose that ta and tb can express: one that swaps the last two dims, or one that
 * moves the contiguous dim to the last place but one (then those two are swapped back). */
static Value *untransposed(Rewriter *r, Value *v)
{
	Op *t = def_of(v, OP_TRANSPOSE);
	int perm[IR_MAX_RANK], n = v->type.rank;
	if (!t)
		return NULL;
	perm_of(t, perm);
	if (perm[n - 2] != n - 1)
		return NULL;
	perm[n - 2] = perm[n - 1];
	perm[n - 1] = n - 1;
	return ir_transpose(&r->b, t->in[0].value, perm);
}

Value *canon_matmul_transpose(Rewriter *r, Op *op)
{
	static const char *const flag[] = {"ta", "tb"};
	Value *in[3] = {op_in(op, 0), op_in(op, 1), op_in(op, 2)};
	Attr *attrs = op->attrs;
	bool changed = false;
	for (int i = 0; i < 2; i++) {
		Value *x = untransposed(r, in[i]);
		if (!x)
			continue;
		in[i] = x;
		attrs = attr_int(r->m, attrs, flag[i], !attr_get_int(attrs, flag[i], 0));
		changed = true;
	}
	return changed ? ir_emit(&r->b, OP_MATMUL, op->n_in, in, attrs) : NULL;
}

Value *canon_matmul_leading(Rewriter *r, Op *op)
{
	Value *in[3] = {op_in(op, 0), op_in(op, 1), op_in(op, 2)};
	Op *t = def_of(in[0], OP_TRANSPOSE);
	int perm[IR_MAX_RANK], n = in[0]->type.rank;
	if (!t || attr_get_int(op->attrs, "ta", 0) || in[1]->type.rank != 2)
		return NULL;
	perm_of(t, perm);
	if (perm[n - 1] != n - 1)
		return NULL;
	in[0] = t->in[0].value;
	return ir_transpose(&r->b, ir_emit(&r->b, OP_MATMUL, op->n_in, in, op->attrs), perm);
}

static int dims_above_one(const Type *t)
{
	int n = 0;
	for (int k = 0; k < t->rank; k++)
		n += t->dim[k] != 1;
	return n;
}

Value *canon_matmul_reshape(Rewriter *r, Op *op)
{
	Value *in[3] = {op_in(op, 0), op_in(op, 1), op_in(op, 2)};
	Op *flat = def_of(in[0], OP_RESHAPE);
	Value *x = flat ? flat->in[0].value : NULL;
	if (!x || attr_get_int(op->attrs, "ta", 0) || in[0]->type.rank != 2 || in[1]->type.rank != 2
			|| dims_above_one(&x->type) <= 2 || x->type.dim[x->type.rank - 1] != in[0]->type.dim[1])
		return NULL;
	in[0] = x;
	return ir_reshape(&r->b, ir_emit(&r->b, OP_MATMUL, op->n_in, in, op->attrs), 2, op->out[0]->type.dim);
}

/* The matmul that computes v, possibly through a reshape of leading dims, provided nothing else reads it. */
static Op *only_matmul(Value *v)
{
	Op *flat = def_of(v, OP_RESHAPE);
	Value *x = flat ? flat->in[0].value : v;
	Op *mm = def_of(x, OP_MATMUL);
	if (!mm || v->n_uses != 1 || x->n_uses != 1 || !v->type.rank
			|| x->type.dim[x->type.rank - 1] != v->type.dim[v->type.rank - 1])
		return NULL;
	return mm;
}

Value *canon_matmul_bias(Rewriter *r, Op *op)
{
	const Type *t = &op->out[0]->type;
	for (int i = 0; i < 2; i++) {
		Op *mm = only_matmul(op->in[i].value);
		Value *bias = op->in[1 - i].value;
		if (!mm || op_in(mm, 2) || bias->type.rank != 1 || !type_equal(&op->in[i].value->type, t)
				|| bias->type.dim[0] != t->dim[t->rank - 1])
			continue;
		Value *in[3] = {op_in(mm, 0), op_in(mm, 1), bias};
		r->b.loc = mm->loc;
		return ir_reshape(&r->b, ir_emit(&r->b, OP_MATMUL, 3, in, mm->attrs), t->rank, t->dim);
	}
	return NULL;
}

/* ---- convolution ---- */

/* Exporters give convolutions that have no bias a bias of zeros.  Kernels would have to fill and read it. */
Value *canon_zero_bias(Rewriter *r, Op *op)
{
	double number;
	if (!op_in(op, 2) || !match_number(op_in(op, 2), &number) || number != 0)
		return NULL;
	return ir_emit(&r->b, op->kind, 2, (Value *[]){op_in(op, 0), op_in(op, 1)}, op->attrs);
}

/* Whether v has one number per channel of a convolution's result t. */
static bool is_per_channel(const Value *v, const Type *t, int channel)
{
	int extra = t->rank - v->type.rank;
	for (int k = 0; k < v->type.rank; k++)
		if (v->type.dim[k] != (k + extra == channel ? t->dim[channel] : 1))
			return false;
	return extra <= channel;
}

Value *canon_conv_bias(Rewriter *r, Op *op)
{
	for (int i = 0; i < 2; i++) {
		Op *conv = def_of(op->in[i].value, OP_CONV);
		const Type *t = &op->out[0]->type;
		if (!conv || op_in(conv, 2) || conv->out[0]->n_uses != 1 || !type_equal(&conv->out[0]->type, t))
			continue;
		int channel = attr_get_int(conv->attrs, "layout", 0) ? t->rank - 1 : 1;
		if (!is_per_channel(op->in[1 - i].value, t, channel))
			continue;
		Value *bias = ir_reshape(&r->b, op->in[1 - i].value, 1, &t->dim[channel]);
		r->b.loc = conv->loc;
		return ir_emit(&r->b, OP_CONV, 3, (Value *[]){op_in(conv, 0), op_in(conv, 1), bias}, conv->attrs);
	}
	return NULL;
}

/* ---- attention ---- */

static const int heads_swapped[4] = {0, 2, 1, 3};

Value *canon_attention_scale(Rewriter *r, Op *op)
{
	Value *in[5] = {op_in(op, 0), op_in(op, 1), op_in(op, 2), op_in(op, 3), op_in(op, 4)};
	double scale = attr_get_float(op->attrs, "scale", 1), number;
	bool changed = false;
	for (int i = 0; i < 2; i++) {
		Op *mul = def_of(in[i], OP_MUL), *div = def_of(in[i], OP_DIV);
		Value *x;
		if ((!mul && !div) || !match_with_number(in[i]->op, &x, &number) || !type_equal(&x->type, &in[i]->type)
				|| number == 0)
			continue;
		in[i] = x;
		scale = mul ? scale * number : scale / number;
		changed = true;
	}
	return changed ? rewrite_again(r, op, op->n_in, in, attr_float(r->m, op->attrs, "scale", scale)) : NULL;
}

Value *canon_attention_layout(Rewriter *r, Op *op)
{
	Value *in[5] = {NULL, NULL, NULL, op_in(op, 3), op_in(op, 4)};
	if (attr_get_int(op->attrs, "layout", 0))
		return NULL;
	for (int i = 0; i < 3; i++) {
		in[i] = match_transpose(op_in(op, i), 4, heads_swapped);
		if (!in[i])
			return NULL;
	}
	Value *o = rewrite_again(r, op, op->n_in, in, attr_int(r->m, op->attrs, "layout", 1));
	return ir_transpose(&r->b, o, heads_swapped);
}

Value *canon_rope_layout(Rewriter *r, Op *op)
{
	Value *x = match_transpose(op_in(op, 0), 4, heads_swapped);
	if (!x || attr_get_int(op->attrs, "layout", 0))
		return NULL;
	Value *y = rewrite_again(r, op, 3, (Value *[]){x, op_in(op, 1), op_in(op, 2)},
		attr_int(r->m, op->attrs, "layout", 1));
	return ir_transpose(&r->b, y, heads_swapped);
}
