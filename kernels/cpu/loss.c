/* kernels/cpu/loss.c: softmax cross-entropy, its gradient, and accuracy.
 *
 * The logits of a row are read from memory once, in pieces that fit the nearest cache, with a running maximum and sum.
 * 16-bit pieces are widened there, so everything is computed in f32.  A row belongs to one thread; losses are summed
 * by chunks of rows, whose number depends on the number of rows alone, then over chunks in order.
 *
 * Of short rows, which would leave most of a vector's lanes idle, a group is computed at once: for log-sum-exps it is
 * turned, so that each row has a lane; a gradient's elements are independent, and are one run. */
#include "kernels/cpu/half.h"
#include "kernels/cpu/loss.h"

enum { PIECE = 1024, CHUNKS = 256, SHORT = 64, GROUP = PIECE / SHORT };

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

/* The log-sum-exp of a row is max + log.  One f32 number for both has few digits of log where max is far from 0. */
typedef struct LogSum { float max; double log; } LogSum;

static LogSum log_sum_exp(const Logits *x, int64_t row)
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
	return (LogSum){m, log(sum)};
}

/* The same of n <= GROUP rows of up to SHORT elements. */
static void short_log_sum_exps(LogSum *of, const Logits *x, int64_t row, int64_t n)
{
	float turned[PIECE], buf[SHORT], m[GROUP], s[GROUP] = {0};
	memset(turned, 0, (size_t)(x->c * GROUP) * sizeof *turned);
	for (int64_t j = 0; j < n; j++) {
		const float *v = piece_of(x, (row + j) * x->pitch, x->c, buf);
		for (int64_t i = 0; i < x->c; i++)
			turned[i * GROUP + j] = v[i];
	}
	for (int j = 0; j < GROUP; j++)
		m[j] = -INFINITY;
	for (int64_t i = 0; i < x->c; i++)
		for (int j = 0; j < GROUP; j++)
			m[j] = turned[i * GROUP + j] > m[j] ? turned[i * GROUP + j] : m[j];
	for (int j = 0; j < GROUP; j++)
		m[j] = m[j] == -INFINITY ? 0 : m[j];
	for (int64_t i = 0; i < x->c; i++)
		for (int j = 0; j < GROUP; j++)
			s[j] += ew_exp_f32(turned[i * GROUP + j] - m[j]);
	for (int j = 0; j < GROUP; j++)
		s[j] = ew_log_f32(s[j]);
	for (int64_t j = 0; j < n; j++)
		of[j] = (LogSum){m[j], s[j]};
}

static bool label_ok(int64_t label, int64_t row, int64_t c, int64_t ignore_index)
{
	if (label >= 0 && label < c)
		return true;
	k_bad_input("label %lld in row %lld is neither in 0..%lld nor the ignored index %lld", (long long)label,
		(long long)row, (long long)c - 1, (long long)ignore_index);
	return false;
}

/* lse - x, with all digits wherever both lie. */
INLINE double above(LogSum lse, double x) { return ((double)lse.max - x) + lse.log; }

/* Loss of one row:  (1-e) w[y] (lse - x[y]) + e/C sum_c w[c] (lse - x[c]) */
static double row_loss(const Logits *x, int64_t row, const LossRule *r, LogSum lse)
{
	int64_t label = r->labels[row], first = row * x->pitch;
	double w = r->weights ? r->weights[label] : 1, loss = w * above(lse, logit(x, first + label));
	if (r->smoothing == 0)
		return loss;
	float buf[PIECE];
	double all = 0;
	for (int64_t p = 0; p < x->c; p += PIECE) {
		int64_t len = MIN(PIECE, x->c - p);
		const float *v = piece_of(x, first + p, len, buf), *weights = r->weights ? r->weights + p : NULL;
		if (weights)
			for (int64_t i = 0; i < len; i++)
				all += weights[i] * above(lse, v[i]);
		else
			for (int64_t i = 0; i < len; i++)
				all += above(lse, v[i]);
	}
	return (1 - r->smoothing) * loss + r->smoothing / (double)x->c * all;
}

/* Rows [from, to) */
static LossSums loss_of_chunk(float *lse, const Logits *x, const LossRule *rule, int64_t from, int64_t to)
{
	LossSums s = {0, 0};
	LogSum of[GROUP];
	for (int64_t g = from, n; g < to; g += n) {
		n = x->c <= SHORT ? MIN(GROUP, to - g) : 1;
		if (x->c <= SHORT)
			short_log_sum_exps(of, x, g, n);
		else
			of[0] = log_sum_exp(x, g);
		for (int64_t r = g; r < g + n; r++) {
			int64_t label = rule->labels[r];
			lse[r] = (float)((double)of[r - g].max + of[r - g].log);
			if (label == rule->ignore_index || !label_ok(label, rule->first + r, x->c, rule->ignore_index))
				continue;
			s.loss += row_loss(x, r, rule, of[r - g]);
			s.weight += rule->weights ? rule->weights[label] : 1;
		}
	}
	return s;
}

LossSums loss_of_rows(float *lse, Logits x, LossRule rule)
{
	LossSums part[CHUNKS];
	int64_t chunks = MIN(CHUNKS, x.rows);
	#pragma omp parallel for schedule(static) if (x.rows * x.c > PARALLEL_MIN)
	for (int64_t k = 0; k < chunks; k++)
		part[k] = loss_of_chunk(lse, &x, &rule, x.rows * k / chunks, x.rows * (k + 1) / chunks);
	LossSums s = {0, 0};
	for (int64_t k = 0; k < chunks; k++) {
		s.loss += part[k].loss;
		s.weight += part[k].weight;
	}
	return s;
}

/* softmax(x)[j] is e^(x[j] - shift) scale. */
typedef struct Softmax { float shift, scale; } Softmax;

/* By the row's log-sum-exp where its digits suffice, else by the row itself. */
static Softmax softmax_of(const Logits *x, int64_t row, float lse)
{
	if (fabsf(lse) < (float)K_LSE_COARSE)
		return (Softmax){lse, 1};
	LogSum of = log_sum_exp(x, row);
	return (Softmax){of.max, (float)exp(-of.log)};
}

/* d x[j] = g ((1-e) w[y] (p[j] - [j=y]) + e/C (W p[j] - w[j])),  p = softmax(x), W = sum of all w (parameter `all`). */
static void grad_row(void *dlogits, float dloss, const Logits *x, int64_t row, const LossRule *r, float lse, double all)
{
	Softmax s = softmax_of(x, row, lse);
	int64_t y = r->labels[row];
	double w = (1 - r->smoothing) * (r->weights ? r->weights[y] : 1), e = r->smoothing / (double)x->c;
	float g = dloss, p = (float)(g * (w + e * all)) * s.scale, u = (float)(g * e), own = (float)(g * w);
	float in[PIECE], out[PIECE];
	for (int64_t first = 0; first < x->c; first += PIECE) {
		int64_t len = MIN(PIECE, x->c - first), at = row * x->pitch + first;
		const float *v = piece_of(x, at, len, in), *weights = r->weights ? r->weights + first : NULL;
		float *d = x->type == K_F32 ? (float *)dlogits + at : out;
		if (r->smoothing == 0)
			for (int64_t i = 0; i < len; i++)
				d[i] = ew_exp_f32(v[i] - s.shift) * p;
		else
			for (int64_t i = 0; i < len; i++)
				d[i] = ew_exp_f32(v[i] - s.shift) * p - u * (weights ? weights[i] : 1);
		if (y >= first && y < first + len)
			d[y - first] -= own;
		if (d == out)
			narrow((uint16_t *)dlogits + at, out, x->type, len);
	}
}

static bool counted(const Logits *x, const LossRule *r, int64_t row)
{
	int64_t y = r->labels[row];
	return y != r->ignore_index && y >= 0 && y < x->c;
}

static void any_grad_row(void *dlogits, float dloss, const Logits *x, int64_t row, const LossRule *r, float lse,
	double all)
{
	int64_t bytes = type_bytes(x->type);
	if (counted(x, r, row))
		grad_row(dlogits, dloss, x, row, r, lse, all);
	else
		memset((char *)dlogits + row * x->pitch * bytes, 0, (size_t)(x->c * bytes));
}

/* The same of n <= GROUP rows of up to SHORT elements without gaps between them, where nothing is smoothed. */
static void short_grad_rows(void *dlogits, float dloss, const float *lse, const Logits *x, int64_t row, int64_t n,
	const LossRule *r)
{
	float in[PIECE], out[PIECE], shift[PIECE], scale[PIECE], own[GROUP];
	int64_t at = row * x->c, len = n * x->c;
	const float *v = piece_of(x, at, len, in);
	float *d = x->type == K_F32 ? (float *)dlogits + at : out;
	for (int64_t j = 0; j < n; j++) {
		own[j] = dloss * (r->weights && counted(x, r, row + j) ? r->weights[r->labels[row + j]] : 1);
		Softmax s = softmax_of(x, row + j, lse[row + j]);
		for (int64_t i = 0; i < x->c; i++) {
			shift[j * x->c + i] = s.shift;
			scale[j * x->c + i] = own[j] * s.scale;
		}
	}
	#pragma omp simd
	for (int64_t i = 0; i < len; i++)
		d[i] = ew_exp_f32(v[i] - shift[i]) * scale[i];
	for (int64_t j = 0; j < n; j++)
		if (counted(x, r, row + j))
			d[j * x->c + r->labels[row + j]] -= own[j];
		else
			memset(d + j * x->c, 0, (size_t)x->c * sizeof *d);
	if (d == out)
		narrow((uint16_t *)dlogits + at, out, x->type, len);
}

void loss_grad_rows(void *dlogits, float dloss, const float *lse, Logits x, LossRule rule)
{
	double all = (double)x.c;
	if (rule.weights && rule.smoothing != 0) {
		all = 0;
		for (int64_t i = 0; i < x.c; i++)
			all += rule.weights[i];
	}
	int64_t group = x.c <= SHORT && x.pitch == x.c && rule.smoothing == 0 ? GROUP : 1;
	#pragma omp parallel for schedule(static) if (x.rows * x.c > PARALLEL_MIN)
	for (int64_t r = 0; r < x.rows; r += group)
		if (group > 1)
			short_grad_rows(dlogits, dloss, lse, &x, r, MIN(group, x.rows - r), &rule);
		else
			any_grad_row(dlogits, dloss, &x, r, &rule, lse[r], all);
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
