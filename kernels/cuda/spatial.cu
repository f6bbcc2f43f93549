/* kernels/cuda/spatial.cu: sampling at the points of a grid and in boxes, determinants, and their gradients.
 *
 * A thread makes one result element, or those of a few channels that read the same pixels.  Gradients in x add what
 * points give to pixels that they share.  In f32 the sums are integers of 64 bits, multiples of a power of two that
 * follows from the largest element of dy and the number of terms, so they have the same bits in any order and 30 bits
 * more than f32.  In f64 a thread has one channel of one sample and adds points, or boxes, in their order. */
#include "kernels/cuda/common.cuh"
#include "kernels/det.h"
#include "kernels/sample.h"

#define CONCAT_(a, b) a##_##b
#define CONCAT(a, b) CONCAT_(a, b)
typedef unsigned long long Fixed;
/* Only device code calls it; roi.h's functions are compiled for the host, too. */
DIMS void fixed_add(Fixed *sum, double v)
{
#if defined(__CUDA_ARCH__) || defined(CUDASIM)
	atomicAdd(sum, (Fixed)(long long)rint(v));
#else
	(void)sum, (void)v;
#endif
}
#define T float
#define SUFFIX f32
#define ROI_SUM Fixed
#define ROI_ADD(sum, v) fixed_add(sum, v)
#include "kernels/roi.h"
#undef ROI_SUM
#undef ROI_ADD
#define T double
#define SUFFIX f64
#define ROI_SUM double
#define ROI_ADD(sum, v) (*(sum) += (v))
#include "kernels/roi.h"

enum { THREADS = 128, CHANNELS = 8 };

template <class E> __device__ static void read_point(double *g, const E *grid, int64_t point, int rank)
{
	for (int d = 0; d < rank; d++)
		g[d] = (double)grid[point * rank + d];
}

/* ---- sums in any order ---- */

/* largest: the bits of the largest |dy|, which are ordered as the numbers are. */
struct Sums { int *largest; Fixed *sum; };

static __global__ void find_largest(int *largest, const float *dy, int64_t n)
{
	int most = 0;
	GRID_STRIDE(i, n) {
		int bits = __float_as_int(fabsf(dy[i]));
		most = bits > most ? bits : most;
	}
	atomicMax(largest, most);
}

/* What terms are multiplied with: `bits` bits hold how many of them, up to dy each, a sum has. */
__device__ static double fixed_scale(const Sums &s, int bits)
{
	int exponent = 0;
	frexpf(__int_as_float(*s.largest), &exponent);
	return ldexp(1.0, 61 - bits - exponent);
}

static __global__ void fixed_to_float(float *dx, Sums s, int bits, int64_t n)
{
	double scale = fixed_scale(s, bits);
	bool finite = isfinite(__int_as_float(*s.largest));
	GRID_STRIDE(i, n)
		dx[i] = finite ? (float)((double)(long long)s.sum[i] / scale) : NAN;
}

static Sums sums_begin(void *work, const float *dy, int64_t n_dy, int64_t n)
{
	Sums s = {(int *)work, (Fixed *)((char *)work + 16)};
	int64_t zero = 0;
	k_fill(work, &zero, 2 + n, 8);
	if (n_dy > 0)
		LAUNCH(find_largest, blocks_for(n_dy, THREADS), THREADS, 0, k_stream, s.largest, dy, n_dy);
	return s;
}

static int bits_of(int64_t n)
{
	int bits = 1;
	while (bits < 60 && n >> bits)
		bits++;
	return bits;
}

/* ---- points of a grid ---- */

template <class E> static __global__ void sampled(E *y, const E *x, const E *grid, KSample s, int64_t plane,
	int64_t blocks, int64_t total)
{
	GRID_STRIDE(r, total) {
		int64_t at, point = r % s.points, i = r / s.points / blocks, first = r / s.points % blocks * CHANNELS;
		int n = s.c - first < CHANNELS ? (int)(s.c - first) : (int)CHANNELS;
		double g[3], weight, sum[CHANNELS] = {0};
		const E *from = x + (i * s.c + first) * plane;
		KTaps taps[3];
		read_point(g, grid, i * s.points + point, s.rank);
		int total_taps = sample_read(&s, g, taps);
		for (int t = 0; t < total_taps; t++)
			if (sample_tap(&s, taps, t, &at, &weight, nullptr))
				for (int c = 0; c < CHANNELS; c++)
					sum[c] += c < n ? weight * (double)from[c * plane + at] : 0;
		for (int c = 0; c < CHANNELS; c++)
			if (c < n)
				y[(i * s.c + first + c) * s.points + point] = (E)sum[c];
	}
}

static __global__ void spread_fixed(Sums sums, int bits, const float *dy, const float *grid, KSample s, int64_t plane,
	int64_t blocks, int64_t total)
{
	double scale = fixed_scale(sums, bits);
	GRID_STRIDE(r, total) {
		int64_t at, point = r % s.points, i = r / s.points / blocks, first = r / s.points % blocks * CHANNELS;
		int n = s.c - first < CHANNELS ? (int)(s.c - first) : (int)CHANNELS;
		double g[3], weight, v[CHANNELS];
		KTaps taps[3];
		for (int c = 0; c < CHANNELS; c++)
			v[c] = c < n ? (double)dy[(i * s.c + first + c) * s.points + point] * scale : 0;
		read_point(g, grid, i * s.points + point, s.rank);
		int total_taps = sample_read(&s, g, taps);
		for (int t = 0; t < total_taps; t++)
			if (sample_tap(&s, taps, t, &at, &weight, nullptr))
				for (int c = 0; c < CHANNELS; c++)
					if (c < n)
						fixed_add(&sums.sum[(i * s.c + first + c) * plane + at], weight * v[c]);
	}
}

static __global__ void spread_in_order(double *dx, const double *dy, const double *grid, KSample s, int64_t plane,
	int64_t total)
{
	GRID_STRIDE(c, total) {
		double g[3], weight;
		int64_t at;
		KTaps taps[3];
		for (int64_t k = 0; k < plane; k++)
			dx[c * plane + k] = 0;
		for (int64_t point = 0; point < s.points; point++) {
			read_point(g, grid, c / s.c * s.points + point, s.rank);
			int total_taps = sample_read(&s, g, taps);
			for (int t = 0; t < total_taps; t++)
				if (sample_tap(&s, taps, t, &at, &weight, nullptr))
					dx[c * plane + at] += weight * dy[c * s.points + point];
		}
	}
}

template <class E> static __global__ void moved(E *dgrid, const E *dy, const E *x, const E *grid, KSample s,
	int64_t plane, int64_t total)
{
	GRID_STRIDE(r, total) {
		double g[3], weight, slope[3], sum[3] = {0, 0, 0};
		int64_t at, i = r / s.points, point = r % s.points;
		KTaps taps[3];
		read_point(g, grid, r, s.rank);
		int total_taps = sample_read(&s, g, taps);
		for (int t = 0; t < total_taps; t++) {
			double product = 0; /* of the pixel and dy, over channels */
			if (!sample_tap(&s, taps, t, &at, &weight, slope))
				continue;
			for (int64_t c = i * s.c; c < (i + 1) * s.c; c++)
				product += (double)x[c * plane + at] * (double)dy[c * s.points + point];
			for (int d = 0; d < s.rank; d++)
				sum[d] += slope[d] * product;
		}
		for (int d = 0; d < s.rank; d++)
			dgrid[r * s.rank + d] = (E)sum[d];
	}
}

template <class E> static void sample(E *y, const E *x, const E *grid, const KSample *s)
{
	int64_t blocks = ceil_div(s->c, CHANNELS), total = s->n * blocks * s->points;
	if (total)
		LAUNCH((sampled<E>), blocks_for(total, THREADS), THREADS, 0, k_stream, y, x, grid, *s, numel(s->rank, s->in),
			blocks, total);
}

/* The weights of a point have at most 1.25 for each dim in all. */
static void sample_grad_x(float *dx, const float *dy, const float *grid, const KSample *s, void *work)
{
	int64_t plane = numel(s->rank, s->in), blocks = ceil_div(s->c, CHANNELS), total = s->n * blocks * s->points;
	int64_t n = s->n * s->c * plane;
	int bits = bits_of(2 * s->points);
	if (n == 0)
		return;
	Sums sums = sums_begin(work, dy, s->n * s->c * s->points, n);
	if (total > 0)
		LAUNCH(spread_fixed, blocks_for(total, THREADS), THREADS, 0, k_stream, sums, bits, dy, grid, *s, plane, blocks,
			total);
	LAUNCH(fixed_to_float, blocks_for(n, THREADS), THREADS, 0, k_stream, dx, sums, bits, n);
}

static void sample_grad_x(double *dx, const double *dy, const double *grid, const KSample *s, void *)
{
	if (s->n * s->c > 0)
		LAUNCH(spread_in_order, blocks_for(s->n * s->c, WARP), WARP, 0, k_stream, dx, dy, grid, *s,
			numel(s->rank, s->in), s->n * s->c);
}

template <class E> static void sample_grad_grid(E *dgrid, const E *dy, const E *x, const E *grid, const KSample *s)
{
	int64_t total = s->n * s->points;
	if (total)
		LAUNCH((moved<E>), blocks_for(total, THREADS), THREADS, 0, k_stream, dgrid, dy, x, grid, *s,
			numel(s->rank, s->in), total);
}

/* ---- boxes ---- */

__device__ static double value_of(const KRoi *r, const double *box, int64_t bin, const float *plane)
{
	return roi_value_f32(r, box, bin, plane);
}

__device__ static double value_of(const KRoi *r, const double *box, int64_t bin, const double *plane)
{
	return roi_value_f64(r, box, bin, plane);
}

template <class E> static __global__ void pooled(E *y, const E *x, const E *rois, const int64_t *ids, KRoi r,
	int64_t total, Bad bad)
{
	GRID_STRIDE(t, total) {
		int64_t bins = r.ph * r.pw, c = t / bins % r.c, roi = t / bins / r.c;
		int64_t image = load_index(ids, roi, 8, r.n, bad);
		double box[4];
		read_point(box, rois, roi, 4);
		y[t] = (E)value_of(&r, box, t % bins, x + (image * r.c + c) * r.h * r.w);
	}
}

static __global__ void pooled_grad_fixed(Sums sums, int bits, const float *dy, const float *x, const float *rois,
	const int64_t *ids, KRoi r, int64_t total, Bad bad)
{
	double scale = fixed_scale(sums, bits);
	GRID_STRIDE(t, total) {
		int64_t bins = r.ph * r.pw, c = t / bins % r.c, roi = t / bins / r.c;
		int64_t plane = (load_index(ids, roi, 8, r.n, bad) * r.c + c) * r.h * r.w;
		double box[4];
		read_point(box, rois, roi, 4);
		roi_spread_f32(&r, box, t % bins, (double)dy[t] * scale, x + plane, sums.sum + plane);
	}
}

static __global__ void pooled_grad_in_order(double *dx, const double *dy, const double *x, const double *rois,
	const int64_t *ids, KRoi r, int64_t total, Bad bad)
{
	GRID_STRIDE(t, total) {
		int64_t bins = r.ph * r.pw, plane = r.h * r.w;
		for (int64_t k = 0; k < plane; k++)
			dx[t * plane + k] = 0;
		for (int64_t roi = 0; roi < r.rois; roi++) {
			double box[4];
			if (load_index(ids, roi, 8, r.n, bad) != t / r.c)
				continue;
			read_point(box, rois, roi, 4);
			for (int64_t k = 0; k < bins; k++)
				roi_spread_f64(&r, box, k, dy[(roi * r.c + t % r.c) * bins + k], x + t * plane, dx + t * plane);
		}
	}
}

template <class E> static void pool(E *y, const E *x, const E *rois, const int64_t *ids, const KRoi *r)
{
	int64_t total = r->rois * r->c * r->ph * r->pw;
	if (total)
		LAUNCH((pooled<E>), blocks_for(total, THREADS), THREADS, 0, k_stream, y, x, rois, ids, *r, total, bad_here());
}

/* The weights that a bin gives to a pixel are at most 1 in all. */
static void pool_grad(float *dx, const float *dy, const float *x, const float *rois, const int64_t *ids, const KRoi *r,
	void *work)
{
	int64_t n = r->n * r->c * r->h * r->w, total = r->rois * r->c * r->ph * r->pw;
	int bits = bits_of(r->rois * r->ph * r->pw);
	if (n == 0)
		return;
	Sums sums = sums_begin(work, dy, total, n);
	if (total > 0)
		LAUNCH(pooled_grad_fixed, blocks_for(total, THREADS), THREADS, 0, k_stream, sums, bits, dy, x, rois, ids, *r,
			total, bad_here());
	LAUNCH(fixed_to_float, blocks_for(n, THREADS), THREADS, 0, k_stream, dx, sums, bits, n);
}

static void pool_grad(double *dx, const double *dy, const double *x, const double *rois, const int64_t *ids,
	const KRoi *r, void *)
{
	if (r->n * r->c > 0)
		LAUNCH(pooled_grad_in_order, blocks_for(r->n * r->c, WARP), WARP, 0, k_stream, dx, dy, x, rois, ids, *r,
			r->n * r->c, bad_here());
}

/* ---- determinants ---- */

template <class E> static __global__ void determinants(E *y, const E *x, double *work, int64_t n, int64_t count)
{
	GRID_STRIDE(m, count) {
		double *a = work + m * n * n;
		for (int64_t i = 0; i < n * n; i++)
			a[i] = (double)x[m * n * n + i];
		y[m] = (E)det_eliminate(a, n);
	}
}

template <class E> static __global__ void cofactors(E *dx, const E *dy, const E *x, double *work, int64_t n,
	int64_t count)
{
	GRID_STRIDE(m, count) {
		double *a = work + 3 * m * n * n, *b = a + n * n, *c = b + n * n;
		for (int64_t i = 0; i < n * n; i++)
			a[i] = b[i] = (double)x[m * n * n + i];
		det_cofactors(c, a, b, n);
		for (int64_t i = 0; i < n * n; i++)
			dx[m * n * n + i] = (E)((double)dy[m] * c[i]);
	}
}

template <class E> static void det(E *y, const E *x, int64_t count, int64_t n, void *work)
{
	if (count)
		LAUNCH((determinants<E>), blocks_for(count, WARP), WARP, 0, k_stream, y, x, (double *)work, n,
			count);
}

template <class E> static void det_grad(E *dx, const E *dy, const E *x, int64_t count, int64_t n,
	void *work)
{
	if (count)
		LAUNCH((cofactors<E>), blocks_for(count, WARP), WARP, 0, k_stream, dx, dy, x, (double *)work, n,
			count);
}

#define SPATIAL(E, t) \
	void k_grid_sample_##t(E *y, const E *x, const E *grid, const KSample *s) { sample(y, x, grid, s); } \
	void k_grid_sample_grad_x_##t(E *dx, const E *dy, const E *grid, const KSample *s, void *work) \
	{ \
		sample_grad_x(dx, dy, grid, s, work); \
	} \
	void k_grid_sample_grad_grid_##t(E *dgrid, const E *dy, const E *x, const E *grid, const KSample *s) \
	{ \
		sample_grad_grid(dgrid, dy, x, grid, s); \
	} \
	void k_roi_pool_##t(E *y, const E *x, const E *rois, const int64_t *ids, const KRoi *r) \
	{ \
		pool(y, x, rois, ids, r); \
	} \
	void k_roi_pool_grad_##t(E *dx, const E *dy, const E *x, const E *rois, const int64_t *ids, const KRoi *r, \
		void *work) \
	{ \
		pool_grad(dx, dy, x, rois, ids, r, work); \
	} \
	void k_det_##t(E *y, const E *x, int64_t count, int64_t n, void *work) { det(y, x, count, n, work); } \
	void k_det_grad_##t(E *dx, const E *dy, const E *x, int64_t count, int64_t n, void *work) \
	{ \
		det_grad(dx, dy, x, count, n, work); \
	}
K_FLOATS(SPATIAL)
