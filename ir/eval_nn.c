/* ir/eval_nn.c: reference of matmul, convolution, pooling and normalisation, with their adjoints.
 *
 * Convolution and its two adjoints sum over the same triples (x, w, y), so one walk serves all three: the tensor that
 * is the result receives the product of the other two. */
#include "ir/eval.h"

#include <math.h>
#include <string.h>

/* ---- matmul ---- */

/* Offset of a batch's matrix in an operand whose leading dims are broadcast. */
static int64_t batch_offset(const Walk *w, const Type *x)
{
	Type batch = *x, full = {.rank = w->rank};
	int64_t stride[IR_MAX_RANK];
	batch.rank -= 2;
	memcpy(full.dim, w->dim, sizeof(int64_t) * (size_t)w->rank);
	eval_broadcast_strides(&batch, &full, stride);
	return walk_offset(w, stride) * x->dim[x->rank - 2] * x->dim[x->rank - 1];
}

/* One product of matrices: y[i][j] = bias[j] + sum[i][j] + sum over k of a[i][k] * b[k][j], with the strides of a and
 * b. */
typedef struct Product { int64_t rows, cols, inner, a_row, a_inner, b_inner, b_col; } Product;
#define PRODUCT(name, T, U) \
	static void name(const Product *p, T *y, const T *a, const T *b, const T *bias, const T *sum) \
	{ \
		for (int64_t i = 0; i < p->rows; i++) { \
			T *row = y + i * p->cols; \
			for (int64_t j = 0; j < p->cols; j++) \
				row[j] = bias ? bias[j] : sum ? sum[i * p->cols + j] : 0; \
			for (int64_t k = 0; k < p->inner; k++) { \
				T x = a[i * p->a_row + k * p->a_inner]; \
				for (int64_t j = 0; j < p->cols; j++) \
					row[j] = (T)((U)row[j] + (U)x * (U)b[k * p->b_inner + j * p->b_col]); \
			} \
		} \
	}
PRODUCT(product_float, double, double)
PRODUCT(product_int, int64_t, uint64_t)

void eval_product(const Op *op, EvalTensor *const *in, EvalTensor *out)
{
	const Type *a = &in[0]->type, *b = &in[1]->type, *y = &out->type;
	int64_t ta = attr_get_int(op->attrs, "ta", 0), tb = attr_get_int(op->attrs, "tb", 0);
	int64_t a_cols = a->dim[a->rank - 1], b_cols = b->dim[b->rank - 1];
	Product p = {.rows = y->dim[y->rank - 2], .cols = y->dim[y->rank - 1], .inner = a->dim[a->rank - 1 - ta],
		.a_row = ta ? 1 : a_cols, .a_inner = ta ? a_cols : 1,
		.b_inner = tb ? 1 : b_cols, .b_col = tb ? b_cols : 1};
	const EvalTensor *bias = in[2], *sum = in[3];
	for (Walk w = walk_over(y->rank - 2, y->dim); w.left; walk_next(&w)) {
		int64_t ka = batch_offset(&w, a), kb = batch_offset(&w, b), ky = w.k * p.rows * p.cols;
		if (dtype_is_float(y->dtype))
			product_float(&p, out->f + ky, in[0]->f + ka, in[1]->f + kb, bias ? bias->f : NULL,
				sum ? sum->f + ky : NULL);
		else
			product_int(&p, out->i + ky, in[0]->i + ka, in[1]->i + kb, bias ? bias->i : NULL, NULL);
	}
}

RULE(matmul)
{
	EvalTensor *operands[4] = {in[0], in[1], op_in(op, 2) ? in[2] : NULL, op_in(op, 3) ? in[3] : NULL};
	eval_product(op, operands, out[0]);
	return true;
}

/* ---- windows over spatial dims ---- */

typedef struct Window {
	int n;                          /* spatial dims */
	int64_t batch, cx, cy;          /* cx, cy: channels of x and y */
	int64_t x[IR_MAX_RANK], y[IR_MAX_RANK], k[IR_MAX_RANK];
	const int64_t *strides, *pads, *dilations;
	int64_t x_channel, x_batch, y_channel, y_batch; /* strides in elements */
	int64_t x_spatial, y_spatial;   /* stride of the flat spatial index */
} Window;

static void window_init(Window *w, const Op *op, const Type *x, const Type *y, const int64_t *kernel)
{
	bool last = attr_get_int(op->attrs, "layout", 0);
	int64_t nx = 1, ny = 1;
	w->n = x->rank - 2;
	w->batch = x->dim[0];
	w->cx = x->dim[last ? x->rank - 1 : 1];
	w->cy = y->dim[last ? y->rank - 1 : 1];
	for (int i = 0; i < w->n; i++) {
		nx *= w->x[i] = x->dim[i + (last ? 1 : 2)];
		ny *= w->y[i] = y->dim[i + (last ? 1 : 2)];
		w->k[i] = kernel[i];
	}
	w->strides = attr_find(op->attrs, "strides")->ints;
	w->pads = attr_find(op->attrs, "pads")->ints;
	w->dilations = attr_find(op->attrs, "dilations")->ints;
	w->x_channel = last ? 1 : nx;
	w->y_channel = last ? 1 : ny;
	w->x_spatial = last ? w->cx : 1;
	w->y_spatial = last ? w->cy : 1;
	w->x_batch = w->cx * nx;
	w->y_batch = w->cy * ny;
}

/* The flat spatial index in x of kernel position k in the window of y; -1 = in the padding. */
static int64_t window_at(const Window *w, const int64_t *y, const int64_t *k)
{
	int64_t at = 0;
	for (int i = 0; i < w->n; i++) {
		int64_t c = y[i] * w->strides[i] - w->pads[i] + k[i] * w->dilations[i];
		if (c < 0 || c >= w->x[i])
			return -1;
		at = at * w->x[i] + c;
	}
	return at;
}

/* ---- convolution ---- */

typedef enum { GIVES_Y, GIVES_X, GIVES_W } Gives;

/* Adds the products of all channels at one window position; s and t are flat spatial indices in x and y, k in the
 * kernel. */
static void conv_channels(const Window *w, int64_t group, Gives gives, int64_t k, int64_t n_k, double *x,
	double *weight, double *y)
{
	int64_t og = w->cy / group, ig = w->cx / group;
	for (int64_t o = 0; o < w->cy; o++)
		for (int64_t i = 0; i < ig; i++) {
			double *px = x + (o / og * ig + i) * w->x_channel, *py = y + o * w->y_channel;
			double *pw = weight + (o * ig + i) * n_k + k;
			if (gives == GIVES_Y)
				*py += *px * *pw;
			else if (gives == GIVES_X)
				*px += *py * *pw;
			else
				*pw += *px * *py;
		}
}

static void conv_walk(const Op *op, Gives gives, EvalTensor *x, EvalTensor *weight, EvalTensor *y)
{
	Window w;
	int64_t group = attr_get_int(op->attrs, "group", 1);
	window_init(&w, op, &x->type, &y->type, weight->type.dim + 2);
	for (int64_t n = 0; n < w.batch; n++)
		for (Walk t = walk_over(w.n, w.y); t.left; walk_next(&t)) {
			Walk k = walk_over(w.n, w.k);
			for (int64_t n_k = k.left; k.left; walk_next(&k)) {
				int64_t s = window_at(&w, t.at, k.at);
				if (s >= 0)
					conv_channels(&w, group, gives, k.k, n_k, x->f + n * w.x_batch + s * w.x_spatial,
						weight->f, y->f + n * w.y_batch + t.k * w.y_spatial);
			}
		}
}

static void add_bias(const Op *op, EvalTensor *y, const EvalTensor *bias)
{
	Axis c = eval_axis(&y->type, attr_get_int(op->attrs, "layout", 0) ? y->type.rank - 1 : 1);
	for (int64_t i = 0, n = type_numel(&y->type); i < n; i++)
		y->f[i] += bias->f[i / c.inner % c.n];
}

RULE(conv)
{
	conv_walk(op, GIVES_Y, in[0], in[1], out[0]);
	if (op_in(op, 2))
		add_bias(op, out[0], in[2]);
	return true;
}

RULE(conv_grad_x)
{
	conv_walk(op, GIVES_X, out[0], in[1], in[0]);
	if (op_in(op, 2))
		add_bias(op, out[0], in[2]);
	return true;
}

RULE(conv_grad_w)
{
	conv_walk(op, GIVES_W, in[0], out[0], in[1]);
	return true;
}

/* ---- pooling ---- */

/* Visits, for every window and channel, the positions in x that are not padding. */
typedef struct Pool {
	Window w;
	int64_t n, c;        /* sample, channel */
	Walk t;              /* window */
	int64_t x, y;        /* offsets of the channel's plane in x, of the window's result in y */
} Pool;

static void pool_init(Pool *p, const Op *op, const Type *x, const Type *y)
{
	*p = (Pool){0};
	window_init(&p->w, op, x, y, attr_find(op->attrs, "kernel")->ints);
}

#define FOR_WINDOWS(p) \
	for ((p)->n = 0; (p)->n < (p)->w.batch; (p)->n++) \
		for ((p)->c = 0; (p)->c < (p)->w.cx; (p)->c++) \
			for ((p)->t = walk_over((p)->w.n, (p)->w.y); (p)->t.left && pool_place(p); walk_next(&(p)->t))

static bool pool_place(Pool *p)
{
	p->x = p->n * p->w.x_batch + p->c * p->w.x_channel;
	p->y = p->n * p->w.y_batch + p->c * p->w.y_channel + p->t.k * p->w.y_spatial;
	return true;
}

/* The first of equal maxima; NaN wins.  A window of padding only gives the lowest value and index 0. */
RULE(max_pool)
{
	Pool p;
	bool is_float = dtype_is_float(in[0]->type.dtype);
	ScalarFn *less = eval_scalar_fn(OP_LT, in[0]->type.dtype);
	pool_init(&p, op, &in[0]->type, &out[0]->type);
	FOR_WINDOWS(&p) {
		int64_t best = -1;
		for (Walk k = walk_over(p.w.n, p.w.k); k.left; walk_next(&k)) {
			int64_t s = window_at(&p.w, p.t.at, k.at);
			if (s < 0)
				continue;
			Scalar v[] = {eval_get(in[0], p.x + MAX(best, 0) * p.w.x_spatial),
				eval_get(in[0], p.x + s * p.w.x_spatial)};
			if (best < 0 || (is_float && isnan(v[1].f) && !isnan(v[0].f)) || less(op, v).i)
				best = s;
		}
		Scalar lowest = is_float ? (Scalar){.f = -INFINITY} : (Scalar){.i = INT64_MIN};
		eval_put(out[0], p.y, best < 0 ? lowest : eval_get(in[0], p.x + best * p.w.x_spatial));
		out[1]->i[p.y] = MAX(best, 0);
	}
	return true;
}

RULE(max_pool_grad)
{
	Pool p;
	pool_init(&p, op, &out[0]->type, &in[0]->type);
	FOR_WINDOWS(&p)
		out[0]->f[p.x + in[1]->i[p.y] * p.w.x_spatial] += in[0]->f[p.y];
	return true;
}

/* The number that the sum of a window is divided by. */
static double pool_divisor(const Op *op, const Pool *p)
{
	int64_t count = 0;
	for (Walk k = walk_over(p->w.n, p->w.k); k.left; walk_next(&k)) {
		bool counts = true;
		for (int i = 0; i < p->w.n; i++) {
			int64_t c = p->t.at[i] * p->w.strides[i] - p->w.pads[i] + k.at[i] * p->w.dilations[i];
			counts = counts && c >= -p->w.pads[i] && c < p->w.x[i] + p->w.pads[p->w.n + i];
		}
		if (attr_get_int(op->attrs, "count_pad", 0) ? counts : window_at(&p->w, p->t.at, k.at) >= 0)
			count++;
	}
	return (double)count;
}

RULE(avg_pool)
{
	Pool p;
	pool_init(&p, op, &in[0]->type, &out[0]->type);
	FOR_WINDOWS(&p) {
		double sum = 0;
		for (Walk k = walk_over(p.w.n, p.w.k); k.left; walk_next(&k)) {
			int64_t s = window_at(&p.w, p.t.at, k.at);
			sum += s >= 0 ? in[0]->f[p.x + s * p.w.x_spatial] : 0;
		}
		out[0]->f[p.y] = sum / pool_divisor(op, &p);
	}
	return true;
}

RULE(avg_pool_grad)
{
	Pool p;
	pool_init(&p, op, &out[0]->type, &in[0]->type);
	FOR_WINDOWS(&p) {
		double share = in[0]->f[p.y] / pool_divisor(op, &p);
		for (Walk k = walk_over(p.w.n, p.w.k); k.left; walk_next(&k)) {
			int64_t s = window_at(&p.w, p.t.at, k.at);
			if (s >= 0)
				out[0]->f[p.x + s * p.w.x_spatial] += share;
		}
	}
	return true;
}

/* ---- batch norm ---- */

static Axis channels(const Op *op, const Type *x)
{
	return eval_axis(x, attr_get_int(op->attrs, "layout", 0) ? x->rank - 1 : 1);
}

/* Index of element k of channel c, 0 <= k < outer * inner. */
static int64_t channel_at(Axis x, int64_t c, int64_t k)
{
	return (k / x.inner * x.n + c) * x.inner + k % x.inner;
}

static void batch_stats(Axis a, const double *x, double *mean, double *var)
{
	double count = (double)(a.outer * a.inner);
	for (int64_t c = 0; c < a.n; c++) {
		mean[c] = var[c] = 0;
		for (int64_t k = 0; k < a.outer * a.inner; k++)
			mean[c] += x[channel_at(a, c, k)] / count;
		for (int64_t k = 0; k < a.outer * a.inner; k++)
			var[c] += pow(x[channel_at(a, c, k)] - mean[c], 2) / count;
	}
}

RULE(batch_norm)
{
	Axis a = channels(op, &in[0]->type);
	double eps = attr_get_float(op->attrs, "eps", 0), *mean = out[1]->f, *var = out[2]->f;
	batch_stats(a, in[0]->f, mean, var);
	for (int64_t c = 0; c < a.n; c++)
		for (int64_t k = 0; k < a.outer * a.inner; k++) {
			int64_t i = channel_at(a, c, k);
			out[0]->f[i] = (in[0]->f[i] - mean[c]) / sqrt(var[c] + eps) * in[1]->f[c] + in[2]->f[c];
		}
	return true;
}

RULE(bn_stats)
{
	batch_stats(channels(op, &in[0]->type), in[0]->f, out[0]->f, out[1]->f);
	return true;
}

/* On one rank the collectives return their operands. */
static void same_vectors(EvalTensor *const *in, EvalTensor *const *out, const int *from, int n)
{
	for (int k = 0; k < n; k++)
		for (int64_t c = 0; c < type_numel(&out[k]->type); c++)
			out[k]->f[c] = in[from[k]]->f[c];
}

RULE(moments)
{
	same_vectors(in, out, (const int[]){0, 1, 1}, 3);
	return true;
}

RULE(means)
{
	same_vectors(in, out, (const int[]){0, 1}, 2);
	return true;
}

/* Per channel: the sum of dy, and the sum of dy * xhat. */
static void batch_grad_stats(Axis a, const double *dy, const double *x, const double *mean, const double *var,
	double eps, double *sum, double *sum_xhat)
{
	for (int64_t c = 0; c < a.n; c++) {
		sum[c] = sum_xhat[c] = 0;
		for (int64_t k = 0; k < a.outer * a.inner; k++) {
			int64_t i = channel_at(a, c, k);
			sum[c] += dy[i];
			sum_xhat[c] += dy[i] * (x[i] - mean[c]) / sqrt(var[c] + eps);
		}
	}
}

RULE(bn_grad_stats)
{
	batch_grad_stats(channels(op, &in[1]->type), in[0]->f, in[1]->f, in[2]->f, in[3]->f,
		attr_get_float(op->attrs, "eps", 0), out[0]->f, out[1]->f);
	return true;
}

/* dx = w rstd (dy - mean(dy) - xhat mean(dy xhat)),  dw = sum(dy xhat),  db = sum(dy) */
RULE(batch_norm_grad)
{
	Axis a = channels(op, &in[1]->type);
	const double *dy = in[0]->f, *x = in[1]->f, *w = in[2]->f, *mean = in[3]->f, *var = in[4]->f;
	double eps = attr_get_float(op->attrs, "eps", 0), count = (double)(a.outer * a.inner);
	batch_grad_stats(a, dy, x, mean, var, eps, out[2]->f, out[1]->f);
	for (int64_t c = 0; c < a.n; c++)
		for (int64_t k = 0; k < a.outer * a.inner; k++) {
			int64_t i = channel_at(a, c, k);
			double rstd = 1 / sqrt(var[c] + eps), xhat = (x[i] - mean[c]) * rstd;
			out[0]->f[i] = w[c] * rstd * (dy[i] - out[2]->f[c] / count - xhat * out[1]->f[c] / count);
		}
	return true;
}

/* ---- layer norm and rms norm ---- */

typedef struct Rows { int64_t rows, n; } Rows; /* x as [rows, n]; n covers the dims from axis on */

static Rows rows_of(const Op *op, const Type *x)
{
	Rows r = {1, 1};
	for (int i = 0; i < x->rank; i++)
		*(i < attr_get_int(op->attrs, "axis", 0) ? &r.rows : &r.n) *= x->dim[i];
	return r;
}

/* sum[i] = x[i] + r[i], rounded. */
static void add_residual(const EvalEnv *e, EvalTensor *sum, const EvalTensor *x, const EvalTensor *r)
{
	DType d = sum->type.dtype;
	for (int64_t i = 0, n = type_numel(&sum->type); i < n; i++)
		sum->f[i] = eval_fit(d, (Scalar){.f = x->f[i] + r->f[i]}, eval_rounds(e, d)).f;
}

/* What a norm normalises: x or, with a residual, the last result, which is set to x + r. */
static const double *norm_input(const EvalEnv *e, const Op *op, EvalTensor *const *in, EvalTensor *const *out)
{
	if (!op_residual(op))
		return in[0]->f;
	add_residual(e, out[op->n_out - 1], in[0], in[op->n_in - 1]);
	return out[op->n_out - 1]->f;
}

RULE(layer_norm)
{
	Rows r = rows_of(op, &in[0]->type);
	const double *rows = norm_input(e, op, in, out);
	for (int64_t t = 0; t < r.rows; t++) {
		const double *x = rows + t * r.n;
		double mean = 0, var = 0;
		for (int64_t i = 0; i < r.n; i++)
			mean += x[i] / (double)r.n;
		for (int64_t i = 0; i < r.n; i++)
			var += pow(x[i] - mean, 2) / (double)r.n;
		double rstd = 1 / sqrt(var + attr_get_float(op->attrs, "eps", 0));
		for (int64_t i = 0; i < r.n; i++)
			out[0]->f[t * r.n + i] = (x[i] - mean) * rstd * (op_in(op, 1) ? in[1]->f[i] : 1)
				+ (op_in(op, 2) ? in[2]->f[i] : 0);
		out[1]->f[t] = mean;
		out[2]->f[t] = rstd;
	}
	return true;
}

RULE(rms_norm)
{
	Rows r = rows_of(op, &in[0]->type);
	const double *rows = norm_input(e, op, in, out);
	for (int64_t t = 0; t < r.rows; t++) {
		const double *x = rows + t * r.n;
		double square = 0;
		for (int64_t i = 0; i < r.n; i++)
			square += x[i] * x[i] / (double)r.n;
		double rstd = 1 / sqrt(square + attr_get_float(op->attrs, "eps", 0));
		for (int64_t i = 0; i < r.n; i++)
			out[0]->f[t * r.n + i] = x[i] * rstd * (op_in(op, 1) ? in[1]->f[i] : 1);
		out[1]->f[t] = rstd;
	}
	return true;
}

/* For one row, with g = dy w and xhat = (x - mean) rstd: dx = rstd (g - mean(g) - xhat mean(g xhat)); the term mean(g)
 * is left out if x is not centred. */
static void norm_grad_row(int64_t n, double *dx, const double *dy, const double *x, const double *w,
	double mean, double rstd, bool centred)
{
	double sum = 0, sum_xhat = 0;
	for (int64_t i = 0; i < n; i++) {
		double g = dy[i] * (w ? w[i] : 1);
		sum += centred ? g : 0;
		sum_xhat += g * (x[i] - mean) * rstd;
	}
	for (int64_t i = 0; i < n; i++) {
		double g = dy[i] * (w ? w[i] : 1), xhat = (x[i] - mean) * rstd;
		dx[i] = rstd * (g - sum / (double)n - xhat * sum_xhat / (double)n);
	}
}

static void norm_grad(const EvalEnv *e, const Op *op, EvalTensor *const *in, EvalTensor *const *out,
	const double *mean, const double *rstd)
{
	Rows r = rows_of(op, &in[1]->type);
	for (int64_t t = 0; t < r.rows; t++) {
		const double *dy = in[0]->f + t * r.n, *x = in[1]->f + t * r.n, m = mean ? mean[t] : 0;
		norm_grad_row(r.n, out[0]->f + t * r.n, dy, x, op_in(op, 2) ? in[2]->f : NULL, m, rstd[t], mean);
		for (int64_t i = 0; i < r.n; i++) {
			out[1]->f[i] += dy[i] * (x[i] - m) * rstd[t];
			if (op->n_out > 2)
				out[2]->f[i] += dy[i];
		}
	}
	for (int64_t i = 0; op_residual(op) && i < r.rows * r.n; i++) {
		DType d = out[0]->type.dtype;
		out[0]->f[i] = eval_fit(d, (Scalar){.f = out[0]->f[i]}, eval_rounds(e, d)).f + in[op->n_in - 1]->f[i];
	}
}

RULE(layer_norm_grad)
{
	norm_grad(e, op, in, out, in[3]->f, in[4]->f);
	return true;
}

RULE(rms_norm_grad)
{
	norm_grad(e, op, in, out, NULL, in[3]->f);
	return true;
}
