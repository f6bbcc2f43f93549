/* passes/grad/rules_nn.c: gradient rules of matmul, convolution, pooling, norms, attention, losses.
 *
 * Ops with statistics (norms, softmax, attention, losses) keep what backward needs as additional results and have
 * one gradient op each; gradients that this op does not give are composed of other ops here. */
#include "passes/grad/rules.h"

#include <string.h>

/* ---- linear algebra ---- */

static Value *matmul(Builder *b, Value *x, Value *y, bool ta, bool tb)
{
	Attr *attrs = attr_int(b->m, attr_int(b->m, NULL, "ta", ta), "tb", tb);
	return ir_emit(b, OP_MATMUL, 2, (Value *[]){x, y}, attrs);
}

/* The number of matrices: the product of the dims in front of the last two. */
static int64_t batch_numel(const Type *t)
{
	int64_t n = 1;
	for (int i = 0; i < t->rank - 2; i++)
		n *= t->dim[i];
	return n;
}

/* x [.., R, C], or with `swapped` [.., C, R], as one matrix of rows of C elements.  *ta: the matrix is [C, R], as a
 * single one is left. */
static Value *as_rows(Builder *b, Value *x, bool swapped, bool *ta)
{
	const Type *t = &x->type;
	int perm[IR_MAX_RANK], last = t->rank - 1;
	*ta = swapped && batch_numel(t) == 1;
	if (*ta)
		return ir_reshape(b, x, 2, (int64_t[]){t->dim[last - 1], t->dim[last]});
	for (int i = 0; i <= last; i++)
		perm[i] = swapped && i >= last - 1 ? 2 * last - 1 - i : i;
	x = ir_transpose(b, x, perm);
	t = &x->type;
	return ir_reshape(b, x, 2, (int64_t[]){batch_numel(t) * t->dim[last - 1], t->dim[last]});
}

/* A matrix w that a whole batch shares gets its gradient by one product x^T y over the rows of all matrices: it is a
 * sum over them, which is rounded once. */
static Value *rows_product(Builder *b, const Value *w, Value *x, bool x_swapped, Value *y, bool y_swapped)
{
	bool tx, ty;
	Value *rows = as_rows(b, x, x_swapped, &tx), *of_y = as_rows(b, y, y_swapped, &ty);
	return ir_reshape(b, matmul(b, rows, of_y, !tx, ty), w->type.rank, w->type.dim);
}

static Value *matmul_da(Builder *b, Value *a, Value *w, Value *dy, bool ta, bool tb)
{
	bool shared = batch_numel(&a->type) == 1 && (batch_numel(&w->type) != 1 || w->type.rank > a->type.rank);
	if (!shared)
		return ta ? matmul(b, w, dy, tb, true) : matmul(b, dy, w, false, !tb);
	return ta ? rows_product(b, a, w, !tb, dy, true) : rows_product(b, a, dy, true, w, !tb);
}

static Value *matmul_dw(Builder *b, Value *a, Value *w, Value *dy, bool ta, bool tb)
{
	if (batch_numel(&w->type) != 1)
		return tb ? matmul(b, dy, a, true, ta) : matmul(b, a, dy, !ta, false);
	return tb ? rows_product(b, w, dy, false, a, ta) : rows_product(b, w, a, ta, dy, false);
}

/* y = a w + bias;  da = dy w^T, dw = a^T dy, dbias = sum of dy's rows; transposes as ta, tb say */
void grad_matmul(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *a = op_in(op, 0), *w = op_in(op, 1), *dy = dout[0];
	bool ta = attr_get_int(op->attrs, "ta", 0), tb = attr_get_int(op->attrs, "tb", 0);
	if (grad_wanted(c, a))
		grad_give(c, a, matmul_da(b, a, w, dy, ta, tb));
	if (grad_wanted(c, w))
		grad_give(c, w, matmul_dw(b, a, w, dy, ta, tb));
	grad_give(c, op_in(op, 2), dy);
}

/* ---- convolution and pooling ---- */

static Attr *attrs_without(Module *m, const Attr *list, const char *name)
{
	Attr *head = NULL, **tail = &head;
	for (; list; list = list->next) {
		if (!strcmp(list->name, name))
			continue;
		*tail = NEW(m->arena, Attr);
		**tail = *list;
		tail = &(*tail)->next;
		*tail = NULL;
	}
	return head;
}

/* Axis of the channels of an image-like value. */
static int channel_axis(const Op *op, int rank)
{
	return attr_get_int(op->attrs, "layout", 0) ? rank - 1 : 1;
}

/* Sum over all but the channels: [C] */
static Value *channel_sum(Builder *b, const Op *op, Value *x)
{
	int64_t axes[IR_MAX_RANK];
	int n = 0, channel = channel_axis(op, x->type.rank);
	for (int i = 0; i < x->type.rank; i++)
		if (i != channel)
			axes[n++] = i;
	return ir_reduce(b, OP_REDUCE_SUM, x, n, axes, false);
}

/* The three sides of the trilinear form <conv(x, w), dy>: each gradient of a convolution is one of them. */
static Value *conv_y(Builder *b, const Op *op, Value *x, Value *w)
{
	return ir_emit(b, OP_CONV, 2, (Value *[]){x, w}, attrs_without(b->m, op->attrs, "shape"));
}

static Value *conv_x(Builder *b, const Op *op, Value *dy, Value *w, const Type *x)
{
	return ir_emit(b, OP_CONV_GRAD_X, 2, (Value *[]){dy, w}, attr_shape(b->m, op->attrs, x));
}

static Value *conv_w(Builder *b, const Op *op, Value *x, Value *dy, const Type *w)
{
	return ir_emit(b, OP_CONV_GRAD_W, 2, (Value *[]){x, dy}, attr_shape(b->m, op->attrs, w));
}

static void conv_bias(GradCtx *c, const Op *op, Value *dy)
{
	if (grad_wanted(c, op_in(op, 2)))
		grad_give(c, op_in(op, 2), channel_sum(grad_builder(c), op, dy));
}

/* y = conv(x, w) + bias;  dx = conv_grad_x(dy, w), dw = conv_grad_w(x, dy), dbias = sum of dy per channel */
void grad_conv(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0), *w = op_in(op, 1), *dy = dout[0];
	if (grad_wanted(c, x))
		grad_give(c, x, conv_x(b, op, dy, w, &x->type));
	if (grad_wanted(c, w))
		grad_give(c, w, conv_w(b, op, x, dy, &w->type));
	conv_bias(c, op, dy);
}

/* y = conv_grad_x(u, w) + bias;  du = conv(dy, w), dw = conv_grad_w(dy, u) */
void grad_conv_grad_x(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *u = op_in(op, 0), *w = op_in(op, 1), *dy = dout[0];
	if (grad_wanted(c, u))
		grad_give(c, u, conv_y(b, op, dy, w));
	if (grad_wanted(c, w))
		grad_give(c, w, conv_w(b, op, dy, u, &w->type));
	conv_bias(c, op, dy);
}

/* y = conv_grad_w(x, u);  dx = conv_grad_x(u, dy), du = conv(x, dy) */
void grad_conv_grad_w(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0), *u = op_in(op, 1), *dy = dout[0];
	if (grad_wanted(c, x))
		grad_give(c, x, conv_x(b, op, u, dy, &x->type));
	if (grad_wanted(c, u))
		grad_give(c, u, conv_y(b, op, x, dy));
}

/* y, i = max over windows;  dx = dy added at i */
void grad_max_pool(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	if (dout[0])
		grad_give(c, x, ir_emit(b, OP_MAX_POOL_GRAD, 2, (Value *[]){dout[0], op->out[1]},
			attr_shape(b->m, op->attrs, &x->type)));
}

/* y = mean over windows;  dx = dy / count spread over each window */
void grad_avg_pool(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	grad_give(c, x, ir_emit(b, OP_AVG_POOL_GRAD, 1, dout, attr_shape(b->m, op->attrs, &x->type)));
}

/* ---- norms ---- */

/* [C] shaped to broadcast against x. */
static Value *per_channel(Builder *b, const Op *op, Value *v, const Type *x)
{
	int64_t dim[IR_MAX_RANK];
	if (channel_axis(op, x->rank) == x->rank - 1)
		return v;
	for (int i = 0; i < x->rank; i++)
		dim[i] = i == 1 ? x->dim[1] : 1;
	return ir_reshape(b, v, x->rank, dim);
}

/* m = mean x;  dx = dm / n.    v = mean (x - m)^2;  dx = 2 dv (x - m) / n */
static void batch_statistics(GradCtx *c, Op *op, Value *dm, Value *dv)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	double n = (double)type_numel(&x->type) / (double)type_numel(&op->out[1]->type);
	if (dm)
		grad_give(c, x, ir_broadcast(b, per_channel(b, op, e_scale(b, dm, 1 / n), &x->type), &x->type));
	if (dv) {
		Value *mean = per_channel(b, op, op->out[1], &x->type);
		Value *centered = e_sub(b, ir_cast(b, x, mean->type.dtype), mean);
		Value *k = per_channel(b, op, e_scale(b, dv, 2 / n), &x->type);
		grad_give(c, x, e_mul(b, centered, k));
	}
}

/* y = w xhat + b, xhat = (x - mean) rstd;  db = sum dy, dw = sum dy xhat,
 * dx = w rstd (dy - db/n - xhat dw/n); and see batch_statistics */
void grad_batch_norm(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	if (dout[0]) {
		Attr *attrs = attr_float(b->m, NULL, "eps", attr_get_float(op->attrs, "eps", 0));
		attrs = attr_int(b->m, attrs, "layout", attr_get_int(op->attrs, "layout", 0));
		Value *in[] = {dout[0], x, op_in(op, 1), op->out[1], op->out[2]};
		Op *g = ir_emit_op(b, OP_BATCH_NORM_GRAD, 5, in, attrs, NULL);
		for (int i = 0; i < 3; i++)
			grad_give(c, op_in(op, i), g->out[i]);
	}
	if (grad_wanted(c, x))
		batch_statistics(c, op, dout[1], dout[2]);
}

static double row_numel(const Op *op)
{
	return (double)type_numel(&op_in(op, 0)->type) / (double)type_numel(&op->out[1]->type);
}

/* r = 1/sqrt(mean u^2 + eps);  du = -dr r^3 u / n */
static Value *rstd_grad(Builder *b, const Op *op, Value *r, Value *dr, Value *u)
{
	Value *cube = e_mul(b, e_mul(b, r, r), r);
	Value *k = e_scale(b, e_mul(b, dr, cube), -1 / row_numel(op));
	return e_mul(b, ir_cast(b, u, k->type.dtype), k);
}

/* The value that a norm normalises: x, or x plus its residual, which is the last result. */
static Value *norm_input(const Op *op)
{
	return op_residual(op) ? op->out[op->n_out - 1] : op_in(op, 0);
}

static bool norm_input_wanted(GradCtx *c, const Op *op)
{
	return grad_wanted(c, op_in(op, 0)) || (op_residual(op) && grad_wanted(c, op_residual(op)));
}

static void give_norm_input(GradCtx *c, const Op *op, Value *dx)
{
	grad_give(c, op_in(op, 0), dx);
	if (op_residual(op))
		grad_give(c, op_residual(op), dx);
}

/* y = w xhat + b, xhat = (x - mean) rstd per row;  db = sum dy, dw = sum dy xhat,
 * dx = rstd (g - mean g - xhat mean(g xhat)), g = w dy;  dmean/n and see rstd_grad */
void grad_layer_norm(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = norm_input(op), *mean = op->out[1], *rstd = op->out[2];
	bool wanted = norm_input_wanted(c, op);
	if (dout[0]) {
		Attr *axis = attr_int(b->m, NULL, "axis", op_axis(op));
		Value *in[] = {dout[0], x, op_in(op, 1), mean, rstd};
		Op *g = ir_emit_op(b, OP_LAYER_NORM_GRAD, 5, in, axis, NULL);
		give_norm_input(c, op, g->out[0]);
		for (int i = 1; i < 3; i++)
			grad_give(c, op_in(op, i), g->out[i]);
	}
	if (dout[1] && wanted)
		give_norm_input(c, op, ir_broadcast(b, e_scale(b, dout[1], 1 / row_numel(op)), &x->type));
	if (dout[2] && wanted)
		give_norm_input(c, op, rstd_grad(b, op, rstd, dout[2], e_sub(b, ir_cast(b, x, mean->type.dtype), mean)));
	if (op_residual(op))
		give_norm_input(c, op, dout[3]);
}

/* y = w x r, r = 1/rms per row;  dw = sum dy x r, dx = r (g - x r^2 mean(g x)), g = w dy; see rstd_grad */
void grad_rms_norm(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = norm_input(op), *rstd = op->out[1];
	if (dout[0]) {
		Attr *axis = attr_int(b->m, NULL, "axis", op_axis(op));
		Op *g = ir_emit_op(b, OP_RMS_NORM_GRAD, 4, (Value *[]){dout[0], x, op_in(op, 1), rstd}, axis, NULL);
		give_norm_input(c, op, g->out[0]);
		grad_give(c, op_in(op, 1), g->out[1]);
	}
	if (dout[1] && norm_input_wanted(c, op))
		give_norm_input(c, op, rstd_grad(b, op, rstd, dout[1], x));
	if (op_residual(op))
		give_norm_input(c, op, dout[2]);
}

/* In a forward, whose gradients are differentiated again, those of softmax are written as parts that have gradients. */
static bool in_parts(GradCtx *c)
{
	return grad_builder(c)->section == SEC_FORWARD;
}

static Value *sum_over_axis(Builder *b, Value *x, const Op *op)
{
	return ir_reduce(b, OP_REDUCE_SUM, x, 1, (int64_t[]){op_axis(op)}, true);
}

/* y = softmax x;  dx = y (dy - sum dy y) */
void grad_softmax(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *y = op->out[0], *dy = dout[0], *dx;
	if (in_parts(c))
		dx = e_mul(b, y, e_sub(b, dy, sum_over_axis(b, e_mul(b, dy, y), op)));
	else
		dx = ir_emit(b, OP_SOFTMAX_GRAD, 2, (Value *[]){dy, y}, op->attrs);
	grad_give(c, op_in(op, 0), dx);
}

/* y = log softmax x;  dx = dy - e^y sum dy */
void grad_log_softmax(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *y = op->out[0], *dy = dout[0], *dx;
	if (in_parts(c)) {
		Value *sum = sum_over_axis(b, dy, op);
		dx = e_sub(b, dy, e_mul(b, sum, e_exp(b, y)));
	} else {
		dx = ir_emit(b, OP_LOG_SOFTMAX_GRAD, 2, (Value *[]){dy, y}, op->attrs);
	}
	grad_give(c, op_in(op, 0), dx);
}

/* ---- attention ---- */

/* Puts heads before rows and splits their dim into groups that share keys: [B,Hk,H/Hk,rows,D]. */
static Value *grouped_heads(Builder *b, const Op *op, Value *x, int64_t groups)
{
	if (attr_get_int(op->attrs, "layout", 0))
		x = ir_transpose(b, x, (int[]){0, 2, 1, 3});
	const int64_t *d = x->type.dim;
	return ir_reshape(b, x, 5, (int64_t[]){d[0], groups, d[1] / groups, d[2], d[3]});
}

/* x y^T for every head: [B,H,T,S] */
static Value *head_products(Builder *b, const Op *op, Value *x, Value *y)
{
	bool rows_first = attr_get_int(op->attrs, "layout", 0);
	int64_t groups = y->type.dim[rows_first ? 2 : 1];
	Value *gx = grouped_heads(b, op, x, groups), *gy = grouped_heads(b, op, y, groups);
	Value *p = matmul(b, gx, gy, false, true);
	const int64_t *d = p->type.dim;
	return ir_reshape(b, p, 4, (int64_t[]){d[0], d[1] * d[2], d[3], d[4]});
}

/* The positions from start on along dim `axis` of two, as i64. */
static Value *positions(Builder *b, int axis, int64_t n, int64_t start)
{
	Attr *attrs = attr_float(b->m, attr_int(b->m, NULL, "axis", axis), "start", (double)start);
	Type t = type_tensor(DT_I64, 2, (int64_t[]){1, 1});
	t.dim[axis] = n;
	return ir_emit_typed(b, OP_IOTA, 0, NULL, attrs, t);
}

/* Those of `seen` that the attention's band and documents show, too. */
static Value *within_limits(Builder *b, const Op *op, Value *seen)
{
	int64_t rows = seen->type.dim[2], keys = seen->type.dim[3];
	const Attr *left = attr_find(op->attrs, "left"), *right = attr_find(op->attrs, "right");
	Value *key = left || right ? positions(b, 1, keys, 0) : NULL, *ids = op_in(op, 4);
	if (left)
		seen = e_and(b, seen, ir_emit2(b, OP_LE, positions(b, 0, rows, -left->i), key));
	if (right)
		seen = e_and(b, seen, ir_emit2(b, OP_LE, key, positions(b, 0, rows, right->i)));
	if (ids) {
		int64_t n = ids->type.dim[0];
		seen = e_and(b, seen, ir_emit2(b, OP_EQ, ir_reshape(b, ids, 4, (int64_t[]){n, 1, rows, 1}),
			ir_reshape(b, ids, 4, (int64_t[]){n, 1, 1, keys})));
	}
	return seen;
}

/* Recomputes the probabilities: e^(scores - lse), 0 where the mask hides the position. */
static Value *probabilities(Builder *b, const Op *op)
{
	double softcap = attr_get_float(op->attrs, "softcap", 0);
	Value *s = head_products(b, op, op_in(op, 0), op_in(op, 1));
	s = ir_cast(b, s, op->out[1]->type.dtype);
	s = e_scale(b, s, attr_get_float(op->attrs, "scale", 1));
	if (softcap > 0)
		s = e_scale(b, ir_emit1(b, OP_TANH, e_scale(b, s, 1 / softcap)), softcap);
	s = e_add(b, s, ir_cast(b, op_in(op, 3), s->type.dtype));
	Type t = op->out[1]->type;
	t.dim[t.rank++] = 1;
	Value *lse = ir_reshape(b, op->out[1], t.rank, t.dim);
	Value *seen = e_gt(b, s, ir_const_float(b, s->type.dtype, -1e38));
	seen = within_limits(b, op, seen);
	return e_select(b, seen, e_exp(b, e_sub(b, s, lse)));
}

/* What the attention's dropout makes of x, which has the shape of its weights. */
static Value *dropped(Builder *b, const Op *op, Value *x)
{
	int64_t pre = attr_get_int(op->attrs, "pre", 1), rows = attr_get_int(op->attrs, "rows", 0);
	int64_t dim[3] = {pre, MAX(rows, 1), type_numel(&x->type) / (pre * MAX(rows, 1))};
	Type t = x->type;
	if (!op_draws(op))
		return x;
	Attr *attrs = attr_float(b->m, NULL, "p", attr_get_float(op->attrs, "p", 0));
	attrs = attr_int(b->m, attr_int(b->m, attrs, "id", attr_get_int(op->attrs, "id", 0)), "axis", rows ? 1 : -1);
	x = ir_reshape(b, x, 3, dim);
	return ir_reshape(b, ir_emit(b, OP_DROPOUT, 1, &x, attrs), t.rank, t.dim);
}

/* p = softmax(.. + mask);  dmask = p (dropped dp - sum dy o), dp = dy v^T.  Needs memory for all scores. */
static Value *mask_grad(Builder *b, const Op *op, Value *dy)
{
	Value *p = probabilities(b, op);
	Value *dp = dropped(b, op, head_products(b, op, dy, op_in(op, 2)));
	Value *delta = ir_reduce(b, OP_REDUCE_SUM, e_mul(b, dy, op->out[0]), 1, &(int64_t){3}, true);
	if (attr_get_int(op->attrs, "layout", 0))
		delta = ir_transpose(b, delta, (int[]){0, 2, 1, 3});
	return e_mul(b, p, ir_cast(b, e_sub(b, dp, delta), p->type.dtype));
}

/* o = softmax(scale q k^T + mask) v;  dq, dk, dv by one op; dmask by mask_grad */
void grad_attention(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	if (dout[1]) {
		grad_refuse(c, op, "the gradient through the log-sum-exp of an attention is not supported");
		return;
	}
	Value *in[] = {dout[0], op_in(op, 0), op_in(op, 1), op_in(op, 2), op_in(op, 3), op_in(op, 4), op->out[0],
		op->out[1]};
	if (grad_wanted(c, in[1]) || grad_wanted(c, in[2]) || grad_wanted(c, in[3])) {
		Op *g = ir_emit_op(b, OP_ATTENTION_GRAD, 8, in, op->attrs, NULL);
		for (int i = 0; i < 3; i++)
			grad_give(c, op_in(op, i), g->out[i]);
	}
	if (grad_wanted(c, in[4]))
		grad_give(c, in[4], mask_grad(b, op, dout[0]));
}

/* The first or second half of the rotated part of x. */
static Value *rope_half(Builder *b, const Op *op, Value *x, int second)
{
	int rank = x->type.rank;
	int64_t start[IR_MAX_RANK] = {0}, size[IR_MAX_RANK], step[IR_MAX_RANK];
	const Type *table = &op_in(op, 1)->type;
	int64_t half = table->dim[table->rank - 1];
	bool interleaved = attr_get_int(op->attrs, "interleaved", 0);
	for (int i = 0; i < rank; i++) {
		size[i] = i == rank - 1 ? half : x->type.dim[i];
		step[i] = i == rank - 1 && interleaved ? 2 : 1;
	}
	start[rank - 1] = second * (interleaved ? 1 : half);
	Attr *attrs = attr_ints(b->m, NULL, "starts", rank, start);
	attrs = attr_ints(b->m, attrs, "sizes", rank, size);
	return ir_emit(b, OP_SLICE, 1, &x, attr_ints(b->m, attrs, "steps", rank, step));
}

/* x' y' + x'' y'' (cross: x' y'' - x'' y'), summed over heads; ' and '' name the halves. */
static Value *rope_table_grad(Builder *b, const Op *op, Value *x, Value *y, bool cross)
{
	Value *x1 = rope_half(b, op, x, 0), *x2 = rope_half(b, op, x, 1);
	Value *y1 = rope_half(b, op, y, cross), *y2 = rope_half(b, op, y, !cross);
	Value *p = e_mul(b, x1, y1), *q = e_mul(b, x2, y2);
	Value *sum = cross ? e_sub(b, p, q) : e_add(b, p, q);
	int64_t heads = attr_get_int(op->attrs, "layout", 0) ? 2 : 1;
	return ir_reduce(b, OP_REDUCE_SUM, sum, 1, &heads, false);
}

/* y' = x' cos - x'' sin, y'' = x'' cos + x' sin;  dx = dy turned back, dcos = dy' x' + dy'' x'',
 * dsin = x' dy'' - x'' dy' (negated when inverse) */
void grad_rope(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0), *cos = op_in(op, 1), *sin = op_in(op, 2);
	int inverse = (int)attr_get_int(op->attrs, "inverse", 0);
	if (grad_wanted(c, x))
		grad_give(c, x, ir_emit(b, OP_ROPE, 3, (Value *[]){dout[0], cos, sin},
			attr_int(b->m, op->attrs, "inverse", !inverse)));
	if (grad_wanted(c, cos))
		grad_give(c, cos, rope_table_grad(b, op, x, dout[0], false));
	if (grad_wanted(c, sin)) {
		Value *d = rope_table_grad(b, op, x, dout[0], true);
		grad_give(c, sin, inverse ? e_neg(b, d) : d);
	}
}

/* ---- losses, randomness ---- */

/* s = sum of w (lse - x[label]) over valid rows, with smoothing mixed towards all classes;
 * dx = ds w (softmax x - target); and l = lse;  dx = dl softmax x */
void grad_cross_entropy(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0), *lse = op->out[2];
	if (grad_wanted(c, op_in(op, 2))) {
		grad_refuse(c, op, "the gradient for class weights is not supported (freeze them)");
		return;
	}
	if (dout[0]) {
		Value *in[] = {dout[0], x, op_in(op, 1), op_in(op, 2), lse};
		grad_give(c, x, ir_emit(b, OP_CROSS_ENTROPY_GRAD, 5, in, op->attrs));
	}
	if (dout[2]) {
		Type t = lse->type;
		t.dim[t.rank++] = 1;
		lse = ir_reshape(b, lse, t.rank, t.dim);
		Value *p = e_exp(b, e_sub(b, ir_cast(b, x, lse->type.dtype), lse));
		Value *dl = ir_reshape(b, dout[2], t.rank, t.dim);
		grad_give(c, x, ir_cast(b, e_mul(b, p, dl), x->type.dtype));
	}
}

/* y = x kept / (1 - p);  dx = dy kept / (1 - p), with the same draw */
void grad_dropout(GradCtx *c, Op *op, Value *const *dout)
{
	grad_give(c, op_in(op, 0), ir_emit(grad_builder(c), OP_DROPOUT, 1, dout, op->attrs));
}
