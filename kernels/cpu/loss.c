/* kernels/cpu/loss.c: softmax cross-entropy, its gradient, and accuracy.
 *
 * The logits of a row are read from memory once, in pieces that fit the nearest cache, with a running maximum and sum.
 * 16-bit pieces are widened there, so everything is computed in f32.  A row belongs to one thread; losses are summed
 * by chunks of rows, whose number depends on the number of rows alone, then over chunks in order. */
#include "kernels/cpu/half.h"
#include "kernels/cpu/loss.h"

enum { PIECE = 1024, CHUNKS = 256 };

/* n logits from element `at` on as f32: where they are, or widened into buf. */
INLINE const float *piece_of(const Logits *x, int64_t at, int64_t n, float *buf)
{
	const void *from = at_element(x->at, x->type, at);
	if (x->type == K_F32)
		return from;
	widen(buf, from, x->type, n);
	return buf;
}

INLINE double logit(const Logits *x, int64_t at)
{
	float buf[1];
	return (double)*piece_of(x, at, 1, buf);
}

static float exp_sum(const float *x, int64_t n, float shift)
{
	float s = 0;
	#pragma omp simd reduction(+:s)
	for (int64_t i = 0; i < n; i++)
		s += ew_exp_f32(x[i] - shift);
	return s;
}

static float log_sum_exp(const Logits *x, int64_t row)
{
	float m = -INFINITY, buf[PIECE];
	double sum = 0;
	for (int64_t p = 0; p < x->c; p += PIECE) {
		int64_t len = MIN(PIECE, x->c - p);
		const float *v = piece_of(x, row * x->pitch + p, len, buf);
		float pm = max_of_f32(v, len);
		if (pm > m) {
			sum *= exp((double)m - (double)pm);
			m = pm;
		}
		sum += (double)exp_sum(v, len, m == -INFINITY ? 0 : m);
	}
	return (float)((double)m + log(sum));
}

static bool label_ok(int64_t label, int64_t row, int64_t c, int64_t ignore_index)
{
	if (label >= 0 && label < c)
		return true;
	k_bad_input("label %lld in row %lld is neither in 0..%lld nor the ignored index %lld", (long long)label,
		(long long)row, (long long)c - 1, (long long)ignore_index);
	return false;
}

/* Loss of one row:  (1-e) w[y] (lse - x[y]) + e/C sum_c w[c] (lse - x[c]) */
static double row_loss(const Logits *x, int64_t row, const LossRule *r, float lse)
{
	int64_t label = r->labels[row], first = row * x->pitch;
	double w = r->weights ? r->weights[label] : 1, loss = w * ((double)lse - logit(x, first + label));
	if (r->smoothing == 0)
		return loss;
	float buf[PIECE];
	double all = 0;
	for (int64_t p = 0; p < x->c; p += PIECE) {
		int64_t len = MIN(PIECE, x->c - p);
		const float *v = piece_of(x, first + p, len, buf), *weights = r->weights ? r->weights + p : NULL;
		if (weights)
			for (int64_t i = 0; i < len; i++)
				all += weights[i] * ((double)lse - v[i]);
		else
			for (int64_t i = 0; i < len; i++)
				all += (double)lse - v[i];
	}
	return (1 - r->smoothing) * loss + r->smoothing / (double)x->c * all;
}

LossSums loss_of_rows(float *lse, Logits x, LossRule rule)
{
	double part[CHUNKS][2];
	int64_t chunks = MIN(CHUNKS, x.rows);
	#pragma omp parallel for schedule(static) if (x.rows * x.c > PARALLEL_MIN)
	for (int64_t k = 0; k < chunks; k++) {
		double s = 0, w = 0;
		for (int64_t r = x.rows * k / chunks; r < x.rows * (k + 1) / chunks; r++) {
			int64_t label = rule.labels[r];
			lse[r] = log_sum_exp(&x, r);
			if (label == rule.ignore_index || !label_ok(label, rule.first + r, x.c, rule.ignore_index))
				continue;
			s += row_loss(&x, r, &rule, lse[r]);
			w += rule.weights ? rule.weights[label] : 1;
		}
		part[k][0] = s;
		part[k][1] = w;
	}
	LossSums s = {0, 0};
	for (int64_t k = 0; k < chunks; k++) {
		s.loss += part[k][0];
		s.weight += part[k][1];
	}
	return s;
}

/* d x[j] = g ((1-e) w[y] (p[j] - [j=y]) + e/C (W p[j] - w[j])),  p = softmax(x), W = sum of all w (parameter `all`). */
static void grad_row(void *dlogits, float dloss, const Logits *x, int64_t row, const LossRule *r, float lse, double all)
{
	int64_t y = r->labels[row];
	double w = (1 - r->smoothing) * (r->weights ? r->weights[y] : 1), e = r->smoothing / (double)x->c;
	float g = dloss, p = (float)(g * (w + e * all)), u = (float)(g * e), own = (float)(g * w);
	float in[PIECE], out[PIECE];
	for (int64_t first = 0; first < x->c; first += PIECE) {
		int64_t len = MIN(PIECE, x->c - first), at = row * x->pitch + first;
		const float *v = piece_of(x, at, len, in), *weights = r->weights ? r->weights + first : NULL;
		float *d = x->type == K_F32 ? (float *)dlogits + at : out;
		if (r->smoothing == 0)
			for (int64_t i = 0; i < len; i++)
				d[i] = ew_exp_f32(v[i] - lse) * p;
		else
			for (int64_t i = 0; i < len; i++)
				d[i] = ew_exp_f32(v[i] - lse) * p - u * (weights ? weights[i] : 1);
		if (y >= first && y < first + len)
			d[y - first] -= own;
		if (d == out)
			narrow((uint16_t *)dlogits + at, out, x->type, len);
	}
}

void loss_grad_rows(void *dlogits, float dloss, const float *lse, Logits x, LossRule rule)
{
	double all = (double)x.c;
	if (rule.weights && rule.smoothing != 0) {
		all = 0;
		for (int64_t i = 0; i < x.c; i++)
			all += rule.weights[i];
	}
	#pragma omp parallel for schedule(static) if (x.rows * x.c > PARALLEL_MIN)
	for (int64_t r = 0; r < x.rows; r++) {
		int64_t y = rule.labels[r], bytes = type_bytes(x.type);
		if (y == rule.ignore_index || y < 0 || y >= x.c)
			memset((char *)dlogits + r * x.pitch * bytes, 0, (size_t)(x.c * bytes));
		else
			grad_row(dlogits, dloss, &x, r, &rule, lse[r], all);
	}
}

#define LOSS(T, t, TYPE) \
	void k_cross_entropy_##t(float *sum, float *weight, float *lse, const T *logits, const int64_t *labels, \
		const float *weights, int64_t rows, int64_t c, int64_t pitch, int64_t ignore_index, double smoothing, \
		void *work) \
	{ \
		(void)work; \
		LossSums s = loss_of_rows(lse, (Logits){logits, TYPE, rows, c, pitch}, \
			(LossRule){labels, weights, ignore_index, smoothing, 0}); \
		*sum = (float)s.loss; \
		*weight = (float)s.weight; \
	} \
	void k_cross_entropy_grad_##t(T *dlogits, const float *dloss, const T *logits, const int64_t *labels, \
		const float *weights, const float *lse, int64_t rows, int64_t c, int64_t pitch, int64_t ignore_index, \
		double smoothing) \
	{ \
		loss_grad_rows(dlogits, *dloss, lse, (Logits){logits, TYPE, rows, c, pitch}, \
			(LossRule){labels, weights, ignore_index, smoothing, 0}); \
	}
LOSS(float, f32, K_F32)
LOSS(uint16_t, bf16, K_BF16)
LOSS(uint16_t, f16, K_F16)

/* ---- accuracy ---- */

static int64_t arg_max(const Logits *x, int64_t row)
{
	float buf[PIECE], most = (float)logit(x, row * x->pitch);
	int64_t best = 0;
	for (int64_t p = 0; p < x->c; p += PIECE) {
		int64_t len = MIN(PIECE, x->c - p);
		const float *v = piece_of(x, row * x->pitch + p, len, buf);
		for (int64_t i = 0; i < len; i++)
			if (v[i] > most) {
				most = v[i];
				best = p + i;
			}
	}
	return best;
}

void loss_arg_max(int64_t *best, Logits x)
{
	#pragma omp parallel for schedule(static) if (x.rows * x.c > PARALLEL_MIN)
	for (int64_t r = 0; r < x.rows; r++)
		best[r] = arg_max(&x, r);
}

void k_accuracy(double out[2], const void *logits, KDType type, const int64_t *labels, int64_t rows, int64_t c,
	int64_t ignore_index)
{
	Logits x = {logits, type, rows, c, c};
	int64_t right = 0, counted = 0;
	#pragma omp parallel for schedule(static) reduction(+:right, counted) if (rows * c > PARALLEL_MIN)
	for (int64_t r = 0; r < rows; r++) {
		if (labels[r] == ignore_index)
			continue;
		counted++;
		right += (type == K_I64 ? ((const int64_t *)logits)[r] : arg_max(&x, r)) == labels[r];
	}
	out[0] += (double)right;
	out[1] += (double)counted;
}
