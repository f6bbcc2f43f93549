/* ir/eval_attention.c: reference of the softmax family, attention, rope, losses and dropout. */
#include "ir/eval.h"

#include "base/philox.h"

#include <math.h>
#include <string.h>

/* ---- softmax ---- */

static Axis axis_of(const Op *op, const Type *x)
{
	return eval_axis(x, (int)attr_get_int(op->attrs, "axis", 0));
}

static double max_of(const double *x, int64_t n, int64_t stride)
{
	double most = -INFINITY;
	for (int64_t k = 0; k < n; k++)
		most = x[k * stride] > most || isnan(x[k * stride]) ? x[k * stride] : most;
	return most;
}

/* The log-sum-exp of n elements at a stride, minus their maximum; 0 if all are -inf, NaN if one is inf, as in
 * PyTorch and in what decomposed softmaxes compute. */
static double log_sum_above(const double *x, int64_t n, int64_t stride, double most)
{
	double sum = 0;
	for (int64_t k = 0; k < n && most != -INFINITY; k++)
		sum += exp(x[k * stride] - most);
	return most == -INFINITY ? 0 : log(sum);
}

/* The log-sum-exp of n elements at a stride; -inf if all of them are -inf. */
static double log_sum_exp(const double *x, int64_t n, int64_t stride)
{
	double most = max_of(x, n, stride);
	return most + log_sum_above(x, n, stride, most);
}

static void softmax(const Op *op, const EvalTensor *x, EvalTensor *y, bool as_log)
{
	Axis a = axis_of(op, &x->type);
	for (int64_t o = 0; o < a.outer; o++)
		for (int64_t i = 0; i < a.inner; i++) {
			int64_t at = o * a.n * a.inner + i;
			/* subtracted first: beside large elements the logarithm of the sum would be lost */
			double most = max_of(x->f + at, a.n, a.inner);
			double rest = log_sum_above(x->f + at, a.n, a.inner, most);
			for (int64_t k = 0; k < a.n; k++, at += a.inner) {
				double log_y = x->f[at] - most - rest;
				y->f[at] = as_log ? log_y : exp(log_y);
			}
		}
}

RULE(softmax)
{
	softmax(op, in[0], out[0], false);
	return true;
}

RULE(log_softmax)
{
	softmax(op, in[0], out[0], true);
	return true;
}

/* dx = y (dy - sum(dy y)); for the logarithm dx = dy - exp(y) sum(dy). */
static void softmax_grad(const Op *op, const EvalTensor *dy, const EvalTensor *y, EvalTensor *dx, bool of_log)
{
	Axis a = axis_of(op, &y->type);
	for (int64_t o = 0; o < a.outer; o++)
		for (int64_t i = 0; i < a.inner; i++) {
			double sum = 0;
			for (int64_t k = 0, at = o * a.n * a.inner + i; k < a.n; k++, at += a.inner)
				sum += of_log ? dy->f[at] : dy->f[at] * y->f[at];
			for (int64_t k = 0, at = o * a.n * a.inner + i; k < a.n; k++, at += a.inner)
				dx->f[at] = of_log ? dy->f[at] - exp(y->f[at]) * sum : y->f[at] * (dy->f[at] - sum);
		}
}

RULE(softmax_grad)
{
	softmax_grad(op, in[0], in[1], out[0], false);
	return true;
}

RULE(log_softmax_grad)
{
	softmax_grad(op, in[0], in[1], out[0], true);
	return true;
}

/* ---- the random numbers of dropout ---- */

/* Whether dropout keeps an element.  rows.n = 0: x has no samples, so all share one mask. */
static bool is_kept(const EvalEnv *e, const Op *op, Axis rows, int64_t at)
{
	uint32_t b[4];
	uint64_t row = rows.n ? e->sample0 + (uint64_t)(at / rows.inner % rows.n) : 0;
	uint64_t inner = (uint64_t)(rows.n ? at / rows.inner / rows.n * rows.inner + at % rows.inner : at);
	uint64_t key = philox_key(e->seed, (uint64_t)attr_get_int(op->attrs, "id", 0));
	philox_block(b, key, row, inner / 4, e->step);
	return b[inner % 4] >= philox_threshold(attr_get_float(op->attrs, "p", 0));
}

/* A factor in (1 - p, 1) for even dropout: the same for all elements, different for different ids. */
static double even_factor(const Op *op)
{
	uint32_t b[4];
	philox_block(b, philox_key(1, (uint64_t)attr_get_int(op->attrs, "id", 0)), 0, 0, 0);
	return 1 - attr_get_float(op->attrs, "p", 0) * (b[0] + 1.0) / 0x1.00001p32;
}

/* What dropout multiplies element `at` with. */
static double chance(const EvalEnv *e, const Op *op, Axis rows, int64_t at)
{
	if (e->even_dropout)
		return even_factor(op);
	return is_kept(e, op, rows, at) ? 1 / (1 - attr_get_float(op->attrs, "p", 0)) : 0;
}

/* ---- attention ---- */

typedef struct Heads {
	int64_t b, h, hk, t, s, d, dv;
	double scale, cap;      /* cap 0 = no soft cap */
	bool by_rows;           /* layout 1: [B,T,H,D] */
	bool nan_empty;
	int64_t left, right;    /* row t sees t - left <= s <= t + right */
	const EvalTensor *mask, *documents; /* NULL = none */
	int64_t mask_stride[4];
	int64_t document_stride; /* from sample to sample */
	bool drops;
	Axis rows;              /* of the weights as dropout takes them */
} Heads;

/* Reads the attributes and shapes; first: index of q among the operands. */
static Heads heads_of(const Op *op, EvalTensor *const *in, int first)
{
	const Type *q = &in[first]->type, *k = &in[first + 1]->type;
	Heads n = {.by_rows = attr_get_int(op->attrs, "layout", 0)};
	int head = n.by_rows ? 2 : 1, row = 3 - head;
	n.b = q->dim[0];
	n.h = q->dim[head];
	n.t = q->dim[row];
	n.hk = k->dim[head];
	n.s = k->dim[row];
	n.d = q->dim[3];
	n.dv = in[first + 2]->type.dim[3];
	n.scale = attr_get_float(op->attrs, "scale", 1);
	n.cap = attr_get_float(op->attrs, "softcap", 0);
	n.left = attr_get_int(op->attrs, "left", n.t);
	n.right = attr_get_int(op->attrs, "right", n.s);
	n.nan_empty = !strcmp(attr_get_str(op->attrs, "empty", "zero"), "nan");
	n.drops = op_draws(op);
	n.rows.n = attr_get_int(op->attrs, "rows", 0);
	n.rows.inner = n.b * n.h * n.t * n.s / (attr_get_int(op->attrs, "pre", 1) * MAX(n.rows.n, 1));
	n.mask = op_in(op, first + 3) ? in[first + 3] : NULL;
	n.documents = op_in(op, first + 4) ? in[first + 4] : NULL;
	n.document_stride = n.documents && n.documents->type.dim[0] == n.b ? n.t : 0;
	if (n.mask) {
		Type scores = type_tensor(DT_F64, 4, (int64_t[]){n.b, n.h, n.t, n.s});
		eval_broadcast_strides(&n.mask->type, &scores, n.mask_stride);
	}
	return n;
}

/* Offset of row t of head h in a tensor that has `heads` heads and `rows` rows of width d. */
static int64_t row_at(const Heads *n, int64_t b, int64_t h, int64_t t, int64_t heads, int64_t rows, int64_t d)
{
	return n->by_rows ? ((b * rows + t) * heads + h) * d : ((b * heads + h) * rows + t) * d;
}

static double dot(const double *a, const double *b, int64_t n)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* The scaled and capped score before the mask; *slope: its derivative by q.k. */
static double raw_score(const Heads *n, const double *q, const double *k, double *slope)
{
	double s = n->scale * dot(q, k, n->d), t = n->cap > 0 ? tanh(s / n->cap) : 0;
	*slope = n->scale * (n->cap > 0 ? 1 - t * t : 1);
	return n->cap > 0 ? n->cap * t : s;
}

static double masked(const Heads *n, double score, int64_t b, int64_t h, int64_t t, int64_t s)
{
	const int64_t *ids = n->documents ? n->documents->i + b * n->document_stride : NULL;
	if (s < t - n->left || s > t + n->right || (ids && ids[t] != ids[s]))
		return -INFINITY;
	if (!n->mask)
		return score;
	const int64_t *m = n->mask_stride, at = b * m[0] + h * m[1] + t * m[2] + s * m[3];
	if (n->mask->type.dtype == DT_BOOL)
		return n->mask->i[at] ? score : -INFINITY;
	return score + n->mask->f[at];
}

/* The weights of row t of head h, with the slopes of their scores unless slope is NULL, and the log-sum-exp.  They are
 * divided by their sum: that of a row masked by numbers as large as -1e38 is lost in the log-sum-exp. */
static double weights_of_row(const Heads *n, EvalTensor *const *qk, int64_t b, int64_t h, int64_t t, double *p,
	double *slope)
{
	const double *q = qk[0]->f + row_at(n, b, h, t, n->h, n->t, n->d);
	double sum = 0, unused;
	for (int64_t s = 0; s < n->s; s++) {
		const double *k = qk[1]->f + row_at(n, b, h / (n->h / n->hk), s, n->hk, n->s, n->d);
		p[s] = masked(n, raw_score(n, q, k, slope ? &slope[s] : &unused), b, h, t, s);
	}
	double lse = log_sum_exp(p, n->s, 1);
	for (int64_t s = 0; s < n->s && lse != -INFINITY; s++)
		sum += p[s] = exp(p[s] - lse);
	for (int64_t s = 0; s < n->s && lse != -INFINITY; s++)
		p[s] /= sum;
	return lse;
}

RULE(attention)
{
	Heads n = heads_of(op, in, 0);
	double *p = NEW_N(e->arena, double, MAX(n.s, 1));
	for (Walk w = walk_over(3, (int64_t[]){n.b, n.h, n.t}); w.left; walk_next(&w)) {
		int64_t b = w.at[0], h = w.at[1], t = w.at[2], kv = h / (n.h / n.hk);
		double *o = out[0]->f + row_at(&n, b, h, t, n.h, n.t, n.dv);
		double lse = out[1]->f[w.k] = weights_of_row(&n, in, b, h, t, p, NULL);
		bool empty = lse == -INFINITY;
		for (int64_t i = 0; i < n.dv && empty; i++)
			o[i] = n.nan_empty ? NAN : 0;
		for (int64_t s = 0; s < n.s && !empty; s++) {
			const double *v = in[2]->f + row_at(&n, b, kv, s, n.hk, n.s, n.dv);
			double f = n.drops ? chance(e, op, n.rows, w.k * n.s + s) : 1;
			for (int64_t i = 0; i < n.dv; i++)
				o[i] += p[s] * f * v[i];
		}
	}
	return true;
}

/* dv += p f dy;  dscore = p (f dy.v - dy.o);  dq += dscore slope k;  dk += dscore slope q.  f is what dropout
 * multiplies the weights p with; o has it in it.  A row that sees no key contributes nothing. */
RULE(attention_grad)
{
	Heads n = heads_of(op, in, 1);
	double *p = NEW_N(e->arena, double, MAX(n.s, 1)), *slope = NEW_N(e->arena, double, MAX(n.s, 1));
	for (Walk w = walk_over(3, (int64_t[]){n.b, n.h, n.t}); w.left; walk_next(&w)) {
		int64_t b = w.at[0], h = w.at[1], t = w.at[2], kv = h / (n.h / n.hk);
		int64_t at_q = row_at(&n, b, h, t, n.h, n.t, n.d), at_o = row_at(&n, b, h, t, n.h, n.t, n.dv);
		const double *dy = in[0]->f + at_o, *q = in[1]->f + at_q;
		if (weights_of_row(&n, in + 1, b, h, t, p, slope) == -INFINITY)
			continue;
		double delta = dot(dy, in[6]->f + at_o, n.dv);
		for (int64_t s = 0; s < n.s; s++) {
			int64_t at_k = row_at(&n, b, kv, s, n.hk, n.s, n.d), at_v = row_at(&n, b, kv, s, n.hk, n.s, n.dv);
			double f = n.drops ? chance(e, op, n.rows, w.k * n.s + s) : 1;
			double dscore = p[s] ? p[s] * (f * dot(dy, in[3]->f + at_v, n.dv) - delta) * slope[s] : 0;
			for (int64_t i = 0; i < n.dv && p[s]; i++)
				out[2]->f[at_v + i] += p[s] * f * dy[i];
			for (int64_t i = 0; i < n.d && p[s]; i++) {
				out[0]->f[at_q + i] += dscore * in[2]->f[at_k + i];
				out[1]->f[at_k + i] += dscore * q[i];
			}
		}
	}
	return true;
}

/* Rotates the pairs (i, i + R/2), or (2i, 2i + 1) if interleaved, by the angle whose cos and sin are given. */
RULE(rope)
{
	const Type *x = &in[0]->type, *c = &in[1]->type;
	bool by_rows = attr_get_int(op->attrs, "layout", 0), pairs = attr_get_int(op->attrs, "interleaved", 0);
	double sign = attr_get_int(op->attrs, "inverse", 0) ? -1 : 1;
	int64_t half = c->dim[c->rank - 1], rows = x->dim[by_rows ? 1 : 2], start = attr_get_int(op->attrs, "start", 0);
	int64_t heads = attr_get_int(op->attrs, "heads", x->dim[2]), pitch = type_columns(x, 2);
	int64_t d = x->rank == 4 ? x->dim[3] : attr_get_int(op->attrs, "size", 0) / heads;
	int64_t outer[] = {x->dim[0], x->dim[1], heads};
	memcpy(out[0]->f, in[0]->f, sizeof(double) * (size_t)type_numel(x));
	for (Walk w = walk_over(3, outer); w.left; walk_next(&w)) {
		int64_t angle = (w.at[by_rows ? 1 : 2] + (c->rank == 3 ? w.at[0] * rows : 0)) * half;
		int64_t head = w.k / heads * pitch + start + w.k % heads * d;
		for (int64_t i = 0; i < half; i++) {
			int64_t a = head + (pairs ? 2 * i : i), b = pairs ? a + 1 : a + half;
			double cosine = in[1]->f[angle + i], sine = sign * in[2]->f[angle + i];
			out[0]->f[a] = in[0]->f[a] * cosine - in[0]->f[b] * sine;
			out[0]->f[b] = in[0]->f[b] * cosine + in[0]->f[a] * sine;
		}
	}
	return true;
}

/* ---- cross entropy ---- */

typedef struct Losses {
	int64_t rows, c, ignore;
	double smoothing, sum_weights; /* sum_weights: over all classes */
	const double *weight;          /* per class; NULL = 1 each */
} Losses;

static Losses losses_of(const Op *op, EvalTensor *const *in, int first)
{
	const Type *x = &in[first]->type;
	Losses l = {.rows = type_numel(&in[first + 1]->type), .c = x->dim[x->rank - 1]};
	l.ignore = attr_get_int(op->attrs, "ignore_index", -100);
	l.smoothing = attr_get_float(op->attrs, "smoothing", 0);
	l.weight = op_in(op, first + 2) ? in[first + 2]->f : NULL;
	for (int64_t c = 0; c < l.c; c++)
		l.sum_weights += l.weight ? l.weight[c] : 1;
	return l;
}

/* The loss of a row with label y: (1-a) w[y] (lse - x[y]) + a/C sum over c of w[c] (lse - x[c]), with a = smoothing. */
RULE(cross_entropy)
{
	Losses l = losses_of(op, in, 0);
	for (int64_t r = 0; r < l.rows; r++) {
		const double *x = in[0]->f + r * l.c;
		double lse = out[2]->f[r] = log_sum_exp(x, l.c, 1);
		int64_t y = in[1]->i[r];
		if (y == l.ignore)
			continue;
		if (y < 0 || y >= l.c)
			return false;
		double w = l.weight ? l.weight[y] : 1;
		out[0]->f[0] += (1 - l.smoothing) * w * (lse - x[y]);
		for (int64_t c = 0; c < l.c && l.smoothing > 0; c++)
			out[0]->f[0] += l.smoothing / (double)l.c * (l.weight ? l.weight[c] : 1) * (lse - x[c]);
		out[1]->f[0] += w;
	}
	return true;
}

RULE(cross_entropy_grad)
{
	Losses l = losses_of(op, in, 1);
	for (int64_t r = 0; r < l.rows; r++) {
		const double *x = in[1]->f + r * l.c, lse = in[4]->f[r];
		int64_t y = in[2]->i[r];
		if (y == l.ignore)
			continue;
		if (y < 0 || y >= l.c)
			return false;
		double w = (1 - l.smoothing) * (l.weight ? l.weight[y] : 1), even = l.smoothing / (double)l.c;
		for (int64_t c = 0; c < l.c; c++) {
			double dx = exp(x[c] - lse) * (w + even * l.sum_weights) - even * (l.weight ? l.weight[c] : 1);
			out[0]->f[r * l.c + c] = in[0]->f[0] * (dx - (c == y ? w : 0));
		}
	}
	return true;
}

/* ---- dropout ---- */

static Axis sample_rows(const Op *op, const Type *t)
{
	return attr_get_int(op->attrs, "axis", 0) < 0 ? (Axis){0} : axis_of(op, t);
}

RULE(dropout)
{
	Axis rows = sample_rows(op, &in[0]->type);
	double keep = 1 - attr_get_float(op->attrs, "p", 0), even = e->even_dropout ? even_factor(op) : 0;
	for (int64_t i = 0, n = type_numel(&in[0]->type); even > 0 && i < n; i++)
		out[0]->f[i] = in[0]->f[i] * even;
	if (even > 0)
		return true;
	for (int64_t i = 0, n = type_numel(&in[0]->type); i < n; i++)
		out[0]->f[i] = is_kept(e, op, rows, i) ? in[0]->f[i] / keep : 0;
	return true;
}

RULE(dropout_mask)
{
	Axis rows = sample_rows(op, &in[0]->type);
	for (int64_t i = 0, n = type_numel(&in[0]->type); i < n; i++)
		out[0]->i[i] = e->even_dropout || is_kept(e, op, rows, i);
	return true;
}
