/* ir/shape_nn.c: shape rules of convolution, pooling, normalisation, attention and losses.
 *
 * Adjoints have the shape of the operand whose gradient they compute as an attribute.  Their rule infers the forward op
 * for that shape and compares.  Statistics of 16-bit tensors are f32. */
#include "ir/shape.h"

#include <math.h>
#include <string.h>

/* ---- windows: what convolution and pooling share ---- */

typedef struct Window {
	int n;                 /* spatial dims */
	int64_t kernel[IR_MAX_RANK];
	const int64_t *strides, *pads, *dilations, *extra; /* extra may be NULL */
	int channel, spatial;  /* axes of x */
} Window;

static bool window_init(const Op *op, const Type *x, Window *w, Buf *err)
{
	int64_t layout = attr_get_int(op->attrs, "layout", 0);
	w->n = x->rank - 2;
	if (w->n < 1)
		return shape_wrong(err, "%s needs at least one spatial dimension, the tensor has %d in all",
			op_info[op->kind].text, x->rank);
	w->channel = layout ? x->rank - 1 : 1;
	w->spatial = layout ? 1 : 2;
	const Attr *strides = shape_ints(err, op, "strides", w->n), *pads = shape_ints(err, op, "pads", 2 * w->n);
	const Attr *dilations = shape_ints(err, op, "dilations", w->n);
	if (!strides || !pads || !dilations)
		return false;
	w->strides = strides->ints;
	w->pads = pads->ints;
	w->dilations = dilations->ints;
	for (int i = 0; i < w->n; i++)
		if (w->strides[i] < 1 || w->dilations[i] < 1 || w->pads[i] < 0 || w->pads[w->n + i] < 0)
			return shape_wrong(err, "%s: dimension %d has stride %lld, dilation %lld, pads %lld and %lld",
				op_info[op->kind].text, i, (long long)w->strides[i], (long long)w->dilations[i],
				(long long)w->pads[i], (long long)w->pads[w->n + i]);
	return true;
}

/* The spatial dims of the result of sliding w over x. */
static bool window_slide(const Op *op, const Type *x, const Window *w, Type *out, Buf *err)
{
	const int64_t limit = INT64_C(1) << 40;
	for (int i = 0; i < w->n; i++) {
		int64_t in = x->dim[w->spatial + i], k = w->kernel[i], extra = w->extra ? w->extra[i] : 0;
		if (k < 1 || k > limit || in > limit || w->pads[i] > limit || w->pads[w->n + i] > limit
			|| w->dilations[i] > limit / k || extra < 0 || extra > limit)
			return shape_wrong(err, "%s: dimension %d has a kernel of %lld over %lld elements",
				op_info[op->kind].text, i, (long long)k, (long long)in);
		int64_t room = in + w->pads[i] + w->pads[w->n + i] + extra, reach = w->dilations[i] * (k - 1) + 1;
		if (room < reach)
			return shape_wrong(err, "%s: dimension %d has a kernel of reach %lld over %lld padded elements",
				op_info[op->kind].text, i, (long long)reach, (long long)room);
		out->dim[w->spatial + i] = (room - reach) / w->strides[i] + 1;
	}
	return true;
}

/* ---- convolution ---- */

/* The type of conv(x, w).  w is [O, I/group, kernel...] in every layout. */
static bool convolved(Module *m, const Op *op, const Type *x, const Type *w, Type *out, Buf *err)
{
	Window win = {0};
	int64_t group = attr_get_int(op->attrs, "group", 1);
	if (x->dtype != w->dtype || !dtype_is_float(x->dtype))
		return shape_wrong(err, "%s of %s with weights of %s", op_info[op->kind].text,
			dtype_info[x->dtype].text, dtype_info[w->dtype].text);
	if (!window_init(op, x, &win, err))
		return false;
	if (w->rank != x->rank)
		return shape_wrong(err, "weights %s do not have the rank of %s", type_str(m->arena, w),
			type_str(m->arena, x));
	int64_t channels = x->dim[win.channel];
	if (group < 1 || w->dim[0] % group || channels % group || channels / group != w->dim[1])
		return shape_wrong(err, "%lld channels in %lld group(s) do not fit weights %s", (long long)channels,
			(long long)group, type_str(m->arena, w));
	for (int i = 0; i < win.n; i++)
		win.kernel[i] = w->dim[2 + i];
	*out = *x;
	out->dim[win.channel] = w->dim[0];
	return window_slide(op, x, &win, out, err);
}

static Type channels_type(const Op *op, const Type *x, DType dtype)
{
	return type_tensor(dtype, 1, &x->dim[attr_get_int(op->attrs, "layout", 0) ? x->rank - 1 : 1]);
}

RULE(conv)
{
	if (!convolved(m, op, shape_in(op, 0), shape_in(op, 1), out, err))
		return false;
	Type bias = channels_type(op, out, out->dtype);
	return shape_want(m, err, op, 2, &bias);
}

RULE(conv_grad_x)
{
	Type dy;
	if (!shape_from_attr(err, op, shape_in(op, 0)->dtype, out)
		|| !convolved(m, op, out, shape_in(op, 1), &dy, err))
		return false;
	Type bias = channels_type(op, out, out->dtype);
	return shape_want(m, err, op, 0, &dy) && shape_want(m, err, op, 2, &bias);
}

RULE(conv_grad_w)
{
	Type dy;
	return shape_from_attr(err, op, shape_in(op, 0)->dtype, out)
		&& convolved(m, op, shape_in(op, 0), out, &dy, err) && shape_want(m, err, op, 1, &dy)
		&& shape_to(err, op, out);
}

RULE(pack)
{
	const Type *w = shape_in(op, 0);
	*out = *w;
	out->layout = ir_intern(m, attr_get_str(op->attrs, "layout", ""));
	if (w->kind != TYPE_TENSOR || w->layout || w->rank < 3)
		return shape_wrong(err, "pack of %s, expected row-major convolution weights", type_str(m->arena, w));
	return true;
}

/* ---- pooling ---- */

/* The type of pooling x. */
static bool pooled(const Op *op, const Type *x, Type *out, Buf *err)
{
	Window w = {0};
	if (!window_init(op, x, &w, err))
		return false;
	const Attr *kernel = shape_ints(err, op, "kernel", w.n);
	const Attr *extra = attr_find(op->attrs, "extra");
	if (!kernel || (extra && !(extra = shape_ints(err, op, "extra", w.n))))
		return false;
	memcpy(w.kernel, kernel->ints, sizeof(*w.kernel) * (size_t)w.n);
	w.extra = extra ? extra->ints : NULL;
	*out = *x;
	return window_slide(op, x, &w, out, err);
}

RULE(max_pool)
{
	if (!shape_want_number(err, op, 0) || !pooled(op, shape_in(op, 0), out, err))
		return false;
	out[1] = out[0];
	out[1].dtype = DT_I32;
	return true;
}

RULE(max_pool_grad)
{
	Type dy, idx;
	if (!shape_from_attr(err, op, shape_in(op, 0)->dtype, out) || !pooled(op, out, &dy, err))
		return false;
	idx = dy;
	idx.dtype = DT_I32;
	return shape_want_float(err, op, 0) && shape_want(m, err, op, 0, &dy) && shape_want(m, err, op, 1, &idx);
}

RULE(avg_pool)
{
	return shape_want_float(err, op, 0) && pooled(op, shape_in(op, 0), out, err);
}

RULE(avg_pool_grad)
{
	Type dy;
	return shape_from_attr(err, op, shape_in(op, 0)->dtype, out) && shape_want_float(err, op, 0)
		&& pooled(op, out, &dy, err) && shape_want(m, err, op, 0, &dy);
}

/* ---- normalisation ---- */

/* Checks the per-channel operands `first` ..  `last`.  Scale and shift may have x's dtype or that of statistics. */
static bool want_channels(Module *m, const Op *op, const Type *x, int first, int last, Buf *err)
{
	if (x->rank < 2)
		return shape_wrong(err, "%s of %s, which has no channel axis", op_info[op->kind].text,
			type_str(m->arena, x));
	Type c = channels_type(op, x, x->dtype);
	for (int i = first; i <= last; i++)
		if (!shape_want_shape(m, err, op, i, &c) || !shape_want_float(err, op, i))
			return false;
	return shape_want_float(err, op, 0);
}

RULE(batch_norm)
{
	const Type *x = shape_in(op, 0);
	if (!want_channels(m, op, x, 1, 2, err))
		return false;
	out[0] = *x;
	out[1] = out[2] = channels_type(op, x, shape_stat_dtype(x->dtype));
	return true;
}

RULE(batch_norm_grad)
{
	const Type *x = shape_in(op, 1);
	if (!shape_want(m, err, op, 0, x) || !want_channels(m, op, x, 2, 4, err))
		return false;
	out[0] = *x;
	out[1] = out[2] = *shape_in(op, 2);
	return true;
}

RULE(bn_stats)
{
	const Type *x = shape_in(op, 0);
	if (!want_channels(m, op, x, 1, 0, err))
		return false;
	out[0] = out[1] = channels_type(op, x, shape_stat_dtype(x->dtype));
	return true;
}

RULE(bn_grad_stats)
{
	const Type *x = shape_in(op, 1);
	if (!shape_want(m, err, op, 0, x) || !want_channels(m, op, x, 2, 3, err))
		return false;
	out[0] = out[1] = channels_type(op, x, shape_stat_dtype(x->dtype));
	return true;
}

/* Checks per-channel statistics, which must all have the type of the first. */
static bool want_vectors(Module *m, const Op *op, int n_out, Type *out, Buf *err)
{
	const Type *x = shape_in(op, 0);
	if (!shape_want_rank(err, op, 0, 1) || !shape_want_float(err, op, 0) || !shape_want(m, err, op, 1, x))
		return false;
	if (x->dtype != DT_F32 && x->dtype != DT_F64)
		return shape_wrong(err, "operand 1 of %s is %s, expected f32 or f64", op_info[op->kind].text,
			type_str(m->arena, x));
	for (int i = 0; i < n_out; i++)
		out[i] = *x;
	return true;
}

RULE(moments)
{
	if (attr_get_int(op->attrs, "n", 0) < 0)
		return shape_wrong(err, "n=%lld is no number of elements", (long long)attr_get_int(op->attrs, "n", 0));
	return want_vectors(m, op, 3, out, err);
}

RULE(means)
{
	return want_vectors(m, op, 2, out, err);
}

/* The type of a norm's statistics: x's shape with 1 for all dims from axis on. */
static Type norm_stats(const Type *x, int axis)
{
	Type t = *x;
	t.dtype = shape_stat_dtype(x->dtype);
	for (int i = axis; i < x->rank; i++)
		t.dim[i] = 1;
	return t;
}

static bool want_scale(Module *m, const Op *op, const Type *x, int axis, int first, int last, Buf *err)
{
	Type w = shape_tail(x, axis, x->dtype);
	for (int i = first; i <= last; i++)
		if (!shape_want_shape(m, err, op, i, &w) || !shape_want_float(err, op, i))
			return false;
	return true;
}

RULE(layer_norm)
{
	const Type *x = shape_in(op, 0);
	int axis, r = op_info[op->kind].n_in_max - 1, n = op_info[op->kind].n_out;
	if (!shape_want_float(err, op, 0) || !shape_axis(err, op, x, &axis)
		|| !want_scale(m, op, x, axis, 1, r - 1, err) || !shape_want(m, err, op, r, x))
		return false;
	if (op->n_out != n + (op_residual(op) != NULL))
		return shape_wrong(err, "%s has %d results, with a residual one more; got %d", op_info[op->kind].text, n,
			op->n_out);
	out[0] = *x;
	for (int i = 1; i < n; i++)
		out[i] = norm_stats(x, axis);
	if (op->n_out > n)
		out[n] = *x;
	return true;
}

RULE(rms_norm)
{
	return shape_layer_norm(m, op, given, out, err);
}

/* Types of dx, dw[, db] from (dy, x, w or _, statistics...[, ds]). */
static bool norm_grad(Module *m, const Op *op, int n_stats, Type *out, Buf *err)
{
	const Type *x = shape_in(op, 1), *w = shape_in(op, 2);
	int axis;
	if (!shape_want_float(err, op, 1) || !shape_want(m, err, op, 0, x) || !shape_axis(err, op, x, &axis)
		|| !want_scale(m, op, x, axis, 2, 2, err))
		return false;
	Type stats = norm_stats(x, axis);
	for (int i = 0; i < n_stats; i++) {
		if (!shape_in(op, 3 + i))
			return shape_wrong(err, "operand %d of %s is absent", 4 + i, op_info[op->kind].text);
		if (!shape_want(m, err, op, 3 + i, &stats))
			return false;
	}
	if (!shape_want(m, err, op, 3 + n_stats, x))
		return false;
	out[0] = *x;
	for (int i = 1; i < op->n_out; i++) {
		out[i] = shape_tail(x, axis, w ? w->dtype : x->dtype);
		if (!shape_to(err, op, &out[i]))
			return false;
	}
	return true;
}

RULE(layer_norm_grad)
{
	return norm_grad(m, op, 2, out, err);
}

RULE(rms_norm_grad)
{
	return norm_grad(m, op, 1, out, err);
}

RULE(softmax_grad)
{
	return shape_float(m, op, given, out, err) && shape_want(m, err, op, 1, out);
}

/* ---- attention ---- */

typedef struct Heads { int64_t b, h, hk, t, s, d, dv; } Heads;

static bool read_heads(Module *m, const Op *op, int first, Heads *n, Buf *err)
{
	const Type *q = shape_in(op, first), *k = shape_in(op, first + 1), *v = shape_in(op, first + 2);
	int head = attr_get_int(op->attrs, "layout", 0) ? 2 : 1, row = 3 - head;
	for (int i = first; i < first + 3; i++)
		if (!shape_want_rank(err, op, i, 4) || !shape_want_float(err, op, i))
			return false;
	*n = (Heads){q->dim[0], q->dim[head], k->dim[head], q->dim[row], k->dim[row], q->dim[3], v->dim[3]};
	bool agree = k->dim[0] == n->b && v->dim[0] == n->b && v->dim[head] == n->hk && v->dim[row] == n->s
		&& k->dim[3] == n->d && q->dtype == k->dtype && k->dtype == v->dtype;
	if (!agree || n->hk < 1 || n->h % n->hk)
		return shape_wrong(err, "%s: q %s, k %s and v %s do not fit", op_info[op->kind].text,
			type_str(m->arena, q), type_str(m->arena, k), type_str(m->arena, v));
	return true;
}

/* Checks left and right, which are added to positions, and the operand of documents. */
static bool check_band(Module *m, const Op *op, int documents, const Heads *n, Buf *err)
{
	static const char *const name[] = {"left", "right"};
	static const int64_t most = INT64_C(1) << 48;
	const Type *ids = shape_in(op, documents);
	for (int i = 0; i < 2; i++) {
		int64_t limit = attr_get_int(op->attrs, name[i], 0);
		if (limit < -most || limit > most)
			return shape_wrong(err, "%s of %s is %lld, expected -2^48 to 2^48", name[i], op_info[op->kind].text,
				(long long)limit);
	}
	if (!ids)
		return true;
	if (!shape_want_index(err, op, documents))
		return false;
	if (n->t != n->s)
		return shape_wrong(err, "%s has documents, but %lld queries and %lld keys", op_info[op->kind].text,
			(long long)n->t, (long long)n->s);
	if (ids->rank != 2 || (ids->dim[0] != n->b && ids->dim[0] != 1) || ids->dim[1] != n->t)
		return shape_wrong(err, "the documents of %s are %s, expected [%lld,%lld] or [1,%lld]",
			op_info[op->kind].text, type_str(m->arena, ids), (long long)n->b, (long long)n->t, (long long)n->t);
	return true;
}

/* Checks the dropout of the weights. */
static bool check_chance(const Op *op, const Heads *n, Buf *err)
{
	static const char *const with[] = {"id", "pre", "rows"};
	const Attr *p = attr_find(op->attrs, "p");
	const char *text = op_info[op->kind].text;
	for (int i = 0; i < COUNT_OF(with); i++)
		if (!attr_find(op->attrs, with[i]) != !p)
			return shape_wrong(err, "%s has %s without %s", text, p ? "p" : with[i], p ? with[i] : "p");
	if (!p)
		return true;
	int64_t heads = n->b * n->h, pre = attr_get_int(op->attrs, "pre", 0), rows = attr_get_int(op->attrs, "rows", 0);
	if (!(p->f >= 0 && p->f < 1))
		return shape_wrong(err, "p of %s is %g, expected 0 to below 1", text, p->f);
	if (pre < 1 || rows < 0 || (rows == 0 && pre != 1) || heads % pre || heads / pre % MAX(rows, 1))
		return shape_wrong(err, "%s with pre=%lld and rows=%lld does not divide its %lld x %lld heads", text,
			(long long)pre, (long long)rows, (long long)n->b, (long long)n->h);
	if ((double)heads / (double)MAX(rows, 1) * (double)n->t * (double)n->s > 0x1p42)
		return shape_wrong(err, "%s has more than 2^42 weights of one sample: their random numbers would repeat", text);
	return true;
}

/* What library=1 leaves to cuDNN is called without all that would stand for these. */
static bool check_library(const Op *op, int first, Buf *err)
{
	DType q = shape_in(op, first)->dtype;
	bool plain = !shape_in(op, first + 4) && attr_get_float(op->attrs, "softcap", 0) == 0 && !op_draws(op)
		&& (q == DT_BF16 || q == DT_F16);
	if (attr_get_int(op->attrs, "library", 0) && !plain)
		return shape_wrong(err, "%s has library=1, which is for 16 bits without documents, soft cap and dropout",
			op_info[op->kind].text);
	return true;
}

static bool check_attention(Module *m, const Op *op, int first, const Heads *n, Buf *err)
{
	const Type *mask = shape_in(op, first + 3);
	const char *empty = attr_get_str(op->attrs, "empty", "");
	if (strcmp(empty, "zero") && strcmp(empty, "nan"))
		return shape_wrong(err, "empty of %s is \"%s\", expected zero or nan", op_info[op->kind].text, empty);
	if (!check_band(m, op, first + 4, n, err) || !check_chance(op, n, err) || !check_library(op, first, err))
		return false;
	if (!mask)
		return true;
	Type scores = type_tensor(mask->dtype, 4, (int64_t[]){n->b, n->h, n->t, n->s}), both;
	if (mask->dtype != DT_BOOL && !dtype_is_float(mask->dtype))
		return shape_wrong(err, "the mask is %s, expected bool or floats", type_str(m->arena, mask));
	if (!type_broadcast(mask, &scores, &both) || !type_same_shape(&both, &scores))
		return shape_wrong(err, "the mask %s does not broadcast to the scores %s", type_str(m->arena, mask),
			type_str(m->arena, &scores));
	return true;
}

static Type attention_out(const Type *q, const Heads *n)
{
	Type o = *q;
	o.dim[3] = n->dv;
	return o;
}

RULE(attention)
{
	Heads n;
	const Type *q = shape_in(op, 0);
	if (!read_heads(m, op, 0, &n, err) || !check_attention(m, op, 0, &n, err))
		return false;
	out[0] = attention_out(q, &n);
	out[1] = type_tensor(shape_stat_dtype(q->dtype), 3, (int64_t[]){n.b, n.h, n.t});
	return true;
}

RULE(attention_grad)
{
	Heads n;
	if (!read_heads(m, op, 1, &n, err) || !check_attention(m, op, 1, &n, err))
		return false;
	const Type *q = shape_in(op, 1);
	Type o = attention_out(q, &n);
	Type lse = type_tensor(shape_stat_dtype(q->dtype), 3, (int64_t[]){n.b, n.h, n.t});
	if (!shape_in(op, 6) || !shape_in(op, 7))
		return shape_wrong(err, "attention_grad lacks the output or the log-sum-exp");
	for (int i = 0; i < 3; i++)
		out[i] = *shape_in(op, 1 + i);
	return shape_want(m, err, op, 0, &o) && shape_want(m, err, op, 6, &o) && shape_want(m, err, op, 7, &lse);
}

/* The heads of a rope [B,T,H,D] or [B,H,T,D]; of columns of rows, as if they stood alone. */
static bool rope_heads(const Op *op, Type *x, Buf *err)
{
	int64_t start = attr_get_int(op->attrs, "start", 0), size = attr_get_int(op->attrs, "size", 0);
	int64_t heads = attr_get_int(op->attrs, "heads", 0);
	*x = *shape_in(op, 0);
	if (!attr_find(op->attrs, "heads"))
		return shape_want_rank(err, op, 0, 4);
	if (!shape_want_rank(err, op, 0, 3))
		return false;
	if (start < 0 || size < 1 || start > x->dim[2] - size || heads < 1 || size % heads
		|| !attr_get_int(op->attrs, "layout", 0))
		return shape_wrong(err, "rope of columns %lld to %lld of %lld as %lld heads, in layout %d, expected 1",
			(long long)start, (long long)start + size, (long long)x->dim[2], (long long)heads,
			(int)attr_get_int(op->attrs, "layout", 0));
	x->rank = 4;
	x->dim[2] = heads;
	x->dim[3] = size / heads;
	return true;
}

RULE(rope)
{
	Type heads;
	const Type *x = &heads, *c = shape_in(op, 1);
	if (!rope_heads(op, &heads, err) || !shape_want_float(err, op, 0))
		return false;
	int64_t rows = x->dim[attr_get_int(op->attrs, "layout", 0) ? 1 : 2];
	bool batch = c->rank == 3;
	if ((c->rank != 2 && !batch) || (batch && c->dim[0] != x->dim[0]) || c->dim[batch] != rows
		|| 2 * c->dim[c->rank - 1] > x->dim[3] || c->dtype != x->dtype)
		return shape_wrong(err, "rope of %s by cos %s, expected [%lld,R/2] or [%lld,%lld,R/2]",
			type_str(m->arena, x), type_str(m->arena, c), (long long)rows, (long long)x->dim[0],
			(long long)rows);
	*out = *shape_in(op, 0);
	return shape_want(m, err, op, 2, c);
}

/* ---- losses, randomness ---- */

/* Checks (logits, labels, class weights or _), beginning at operand `first`; *rows is the type of labels. */
static bool check_losses(Module *m, const Op *op, int first, Type *rows, Buf *err)
{
	const Type *logits = shape_in(op, first);
	double smoothing = attr_get_float(op->attrs, "smoothing", 0);
	if (!shape_want_float(err, op, first) || !shape_want_dtype(err, op, first + 1, DT_I64))
		return false;
	if (!logits->rank)
		return shape_wrong(err, "logits of %s have no axis of classes", op_info[op->kind].text);
	if (!(smoothing >= 0 && smoothing <= 1))
		return shape_wrong(err, "smoothing is %g, expected 0 to 1", smoothing);
	Type classes = type_tensor(logits->dtype, 1, &logits->dim[logits->rank - 1]);
	*rows = *logits;
	rows->rank--;
	rows->dtype = DT_I64;
	return shape_want_shape(m, err, op, first + 1, rows) && shape_want_shape(m, err, op, first + 2, &classes)
		&& shape_want_float(err, op, first + 2);
}

RULE(cross_entropy)
{
	Type rows;
	if (!check_losses(m, op, 0, &rows, err))
		return false;
	DType dtype = shape_stat_dtype(shape_in(op, 0)->dtype);
	out[0] = out[1] = type_scalar(dtype);
	out[2] = rows;
	out[2].dtype = dtype;
	return true;
}

RULE(cross_entropy_grad)
{
	Type rows;
	if (!check_losses(m, op, 1, &rows, err) || !shape_want_rank(err, op, 0, 0))
		return false;
	if (!shape_in(op, 4))
		return shape_wrong(err, "cross_entropy_grad lacks the log-sum-exp");
	rows.dtype = shape_stat_dtype(shape_in(op, 1)->dtype);
	*out = *shape_in(op, 1);
	return shape_want(m, err, op, 4, &rows);
}

/* Checks (h, w, labels, class weights or _, bias or _), beginning at operand `first`; *logits is what one whole product
 * of h and w would be, [rows, classes]. */
static bool check_head(Module *m, const Op *op, int first, Type *logits, Buf *err)
{
	const Type *h = shape_in(op, first), *w = shape_in(op, first + 1), *labels = shape_in(op, first + 2);
	int64_t tb = attr_get_int(op->attrs, "tb", 0), block = attr_get_int(op->attrs, "block", 0);
	double smoothing = attr_get_float(op->attrs, "smoothing", 0);
	if (!shape_want_float(err, op, first) || !shape_want_dtype(err, op, first + 2, DT_I64)
			|| !shape_want_rank(err, op, first + 1, 2))
		return false;
	int64_t width = h->rank ? h->dim[h->rank - 1] : 0, rows = type_numel(labels);
	if (h->dtype != w->dtype || width != w->dim[1 - !tb] || !width || type_numel(h) != rows * width || rows < 1)
		return shape_wrong(err, "%s of %s by weights %s (tb=%d) and labels %s: expected one label for each row, and "
			"weights of %s over the last dimension", op_info[op->kind].text, type_str(m->arena, h),
			type_str(m->arena, w), (int)tb, type_str(m->arena, labels), dtype_info[h->dtype].text);
	if (block < 1 || block > rows)
		return shape_wrong(err, "block is %lld, expected 1 to %lld, the number of rows", (long long)block,
			(long long)rows);
	if (!(smoothing >= 0 && smoothing <= 1))
		return shape_wrong(err, "smoothing is %g, expected 0 to 1", smoothing);
	int64_t dim[] = {rows, w->dim[tb ? 0 : 1]};
	*logits = type_tensor(h->dtype, 2, dim);
	Type bias = type_tensor(h->dtype, 1, &dim[1]);
	return shape_to(err, op, logits) && shape_want_shape(m, err, op, first + 3, &bias)
		&& shape_want_float(err, op, first + 3) && shape_want(m, err, op, first + 4, &bias);
}

RULE(linear_cross_entropy)
{
	Type logits;
	if (!check_head(m, op, 0, &logits, err))
		return false;
	out[0] = out[1] = type_scalar(shape_stat_dtype(logits.dtype));
	out[2] = *shape_in(op, 2);
	return true;
}

RULE(linear_cross_entropy_grad)
{
	Type logits, dw = *shape_in(op, 2);
	int n = 2;
	if (!check_head(m, op, 1, &logits, err) || !shape_want_rank(err, op, 0, 0))
		return false;
	out[0] = out[1] = type_scalar(shape_stat_dtype(logits.dtype));
	dw.dtype = shape_stat_dtype(dw.dtype);
	if (attr_get_int(op->attrs, "dh", 0))
		out[n++] = *shape_in(op, 1);
	if (attr_get_int(op->attrs, "dw", 0))
		out[n++] = dw;
	else if (op_in(op, 6))
		return shape_wrong(err, "there is a sum, and dw=0: nothing is added to it");
	if (attr_get_int(op->attrs, "db", 0))
		out[n++] = type_tensor(dw.dtype, 1, &logits.dim[1]);
	if (op->n_out != n)
		return shape_wrong(err, "dh, dw and db ask for %d results, there are %d", n, op->n_out);
	return shape_want(m, err, op, 6, &dw);
}

static bool check_dropout(const Op *op, Buf *err)
{
	const Type *x = shape_in(op, 0);
	double p = attr_get_float(op->attrs, "p", 0);
	int axis;
	if (!(p >= 0 && p <= 1))
		return shape_wrong(err, "p of %s is %g, expected 0 to 1", op_info[op->kind].text, p);
	return attr_get_int(op->attrs, "axis", 0) == -1 || shape_axis(err, op, x, &axis);
}

RULE(dropout)
{
	*out = *shape_in(op, 0);
	return shape_want_float(err, op, 0) && check_dropout(op, err);
}

RULE(dropout_mask)
{
	*out = *shape_in(op, 0);
	out->dtype = DT_BOOL;
	return check_dropout(op, err);
}
