/* kernels/cpu/loss.c: softmax cross-entropy, its gradient, and accuracy.
 *
 * A row's logits are read once: pieces that fit the nearest cache give a running maximum and sum.  A row is
 * one thread's; sums over rows are made per chunk (by the number of rows only) and then in order. */
#include "kernels/cpu/common.h"
#include "kernels/ew.h"

enum { PIECE = 1024, CHUNKS = 256 };

static float exp_sum(const float *x, int64_t n, float shift)
{
	float s = 0;
	#pragma omp simd reduction(+:s)
	for (int64_t i = 0; i < n; i++)
		s += ew_exp_f32(x[i] - shift);
	return s;
}

static float log_sum_exp(const float *x, int64_t n)
{
	float m = -INFINITY;
	double sum = 0;
	for (int64_t p = 0; p < n; p += PIECE) {
		int64_t len = MIN(PIECE, n - p);
		float pm = max_of_f32(x + p, len);
		if (pm > m) {
			sum *= exp((double)m - (double)pm);
			m = pm;
		}
		sum += (double)exp_sum(x + p, len, m == -INFINITY ? 0 : m);
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
static double row_loss(const float *x, int64_t label, const float *weights, float lse, int64_t c,
	double smoothing)
{
	double w = weights ? weights[label] : 1, loss = w * ((double)lse - x[label]);
	if (smoothing == 0)
		return loss;
	double all = 0;
	if (weights)
		for (int64_t i = 0; i < c; i++)
			all += weights[i] * ((double)lse - x[i]);
	else
		for (int64_t i = 0; i < c; i++)
			all += (double)lse - x[i];
	return (1 - smoothing) * loss + smoothing / (double)c * all;
}

void k_cross_entropy_f32(float *sum, float *weight, float *lse, const float *logits, const int64_t *labels,
	const float *weights, int64_t rows, int64_t c, int64_t ignore_index, double smoothing, void *work)
{
	double part[CHUNKS][2];
	(void)work;
	int64_t chunks = MIN(CHUNKS, rows);
	#pragma omp parallel for schedule(static) if (rows * c > PARALLEL_MIN)
	for (int64_t k = 0; k < chunks; k++) {
		double s = 0, w = 0;
		for (int64_t r = rows * k / chunks; r < rows * (k + 1) / chunks; r++) {
			const float *x = logits + r * c;
			lse[r] = log_sum_exp(x, c);
			if (labels[r] == ignore_index || !label_ok(labels[r], r, c, ignore_index))
				continue;
			s += row_loss(x, labels[r], weights, lse[r], c, smoothing);
			w += weights ? weights[labels[r]] : 1;
		}
		part[k][0] = s;
		part[k][1] = w;
	}
	double s = 0, w = 0;
	for (int64_t k = 0; k < chunks; k++) {
		s += part[k][0];
		w += part[k][1];
	}
	*sum = (float)s;
	*weight = (float)w;
}

/* d x[j] = g ((1-e) w[y] (p[j] - [j=y]) + e/C (W p[j] - w[j])),  p = softmax(x), W = sum of all w */
void k_cross_entropy_grad_f32(float *dlogits, const float *dloss, const float *logits, const int64_t *labels,
	const float *weights, const float *lse, int64_t rows, int64_t c, int64_t ignore_index, double smoothing)
{
	double all = (double)c;
	if (weights && smoothing != 0) {
		all = 0;
		for (int64_t i = 0; i < c; i++)
			all += weights[i];
	}
	#pragma omp parallel for schedule(static) if (rows * c > PARALLEL_MIN)
	for (int64_t r = 0; r < rows; r++) {
		float *d = dlogits + r * c;
		const float *x = logits + r * c;
		int64_t y = labels[r];
		if (y == ignore_index || y < 0 || y >= c) {
			memset(d, 0, (size_t)c * sizeof *d);
			continue;
		}
		double w = (1 - smoothing) * (weights ? weights[y] : 1), e = smoothing / (double)c;
		float g = *dloss, p = (float)(g * (w + e * all)), u = (float)(g * e), l = lse[r];
		if (smoothing == 0)
			for (int64_t i = 0; i < c; i++)
				d[i] = ew_exp_f32(x[i] - l) * p;
		else
			for (int64_t i = 0; i < c; i++)
				d[i] = ew_exp_f32(x[i] - l) * p - u * (weights ? weights[i] : 1);
		d[y] -= (float)(g * w);
	}
}

void k_accuracy_f32(double out[2], const float *logits, const int64_t *labels, int64_t rows, int64_t c,
	int64_t ignore_index)
{
	int64_t right = 0, counted = 0;
	#pragma omp parallel for schedule(static) reduction(+:right, counted) if (rows * c > PARALLEL_MIN)
	for (int64_t r = 0; r < rows; r++) {
		const float *x = logits + r * c;
		if (labels[r] == ignore_index)
			continue;
		int64_t best = 0;
		for (int64_t i = 1; i < c; i++)
			best = x[i] > x[best] ? i : best;
		counted++;
		right += best == labels[r];
	}
	out[0] += (double)right;
	out[1] += (double)counted;
}
