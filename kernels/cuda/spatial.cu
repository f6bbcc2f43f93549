/* kernels/cuda/spatial.cu: sampling at the points of a grid and in boxes, determinants, and their gradients.
 *
 * A thread makes one result element, or those of a few channels that read the same pixels.  In a gradient in x it has
 * one channel of one sample and adds points, or boxes, in their order, so that no two threads add to one element. */
#include "kernels/cuda/common.cuh"
#include "kernels/det.h"
#include "kernels/sample.h"

#define CONCAT_(a, b) a##_##b
#define CONCAT(a, b) CONCAT_(a, b)
#define T float
#define SUFFIX f32
#include "kernels/roi.h"
#define T double
#define SUFFIX f64
#include "kernels/roi.h"

enum { THREADS = 128, CHANNELS = 8 };

template <class E> __device__ static void read_point(double *g, const E *grid, int64_t point, int rank)
{
	for (int d = 0; d < rank; d++)
		g[d] = (double)grid[point * rank + d];
}

/* ---- points of a grid ---- */

template <class E> static __global__ void sampled(E *y, const E *x, const E *grid, KSample s, int64_t plane,
	int64_t blocks, int64_t total)
{
	GRID_STRIDE(r, total) {
		double g[3], weight[K_TAPS_MAX];
		int64_t at[K_TAPS_MAX], point = r % s.points, i = r / s.points / blocks, block = r / s.points % blocks;
		read_point(g, grid, i * s.points + point, s.rank);
		int taps = sample_point(&s, g, at, weight, nullptr);
		for (int64_t c = block * CHANNELS; c < s.c && c < (block + 1) * CHANNELS; c++) {
			const E *from = x + (i * s.c + c) * plane;
			double sum = 0;
			for (int t = 0; t < taps; t++)
				sum += weight[t] * (double)from[at[t]];
			y[(i * s.c + c) * s.points + point] = (E)sum;
		}
	}
}

template <class E> static __global__ void spread(E *dx, const E *dy, const E *grid, KSample s, int64_t plane,
	int64_t total)
{
	GRID_STRIDE(c, total) {
		double g[3], weight[K_TAPS_MAX];
		int64_t at[K_TAPS_MAX];
		for (int64_t k = 0; k < plane; k++)
			dx[c * plane + k] = 0;
		for (int64_t point = 0; point < s.points; point++) {
			read_point(g, grid, c / s.c * s.points + point, s.rank);
			int taps = sample_point(&s, g, at, weight, nullptr);
			for (int t = 0; t < taps; t++)
				dx[c * plane + at[t]] += (E)(weight[t] * (double)dy[c * s.points + point]);
		}
	}
}

template <class E> static __global__ void moved(E *dgrid, const E *dy, const E *x, const E *grid, KSample s,
	int64_t plane, int64_t total)
{
	GRID_STRIDE(r, total) {
		double g[3], weight[K_TAPS_MAX], slope[K_TAPS_MAX][3], sum[3] = {0, 0, 0};
		int64_t at[K_TAPS_MAX], i = r / s.points, point = r % s.points;
		read_point(g, grid, r, s.rank);
		int taps = sample_point(&s, g, at, weight, slope);
		for (int64_t c = i * s.c; c < (i + 1) * s.c; c++)
			for (int t = 0; t < taps; t++)
				for (int d = 0; d < s.rank; d++)
					sum[d] += slope[t][d] * (double)x[c * plane + at[t]] * (double)dy[c * s.points + point];
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

template <class E> static void sample_grad_x(E *dx, const E *dy, const E *grid, const KSample *s)
{
	if (s->n * s->c > 0)
		LAUNCH((spread<E>), blocks_for(s->n * s->c, WARP), WARP, 0, k_stream, dx, dy, grid, *s,
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

__device__ static void spread_of(const KRoi *r, const double *box, int64_t bin, double dy, const float *plane,
	float *dx)
{
	roi_spread_f32(r, box, bin, dy, plane, dx);
}

__device__ static void spread_of(const KRoi *r, const double *box, int64_t bin, double dy, const double *plane,
	double *dx)
{
	roi_spread_f64(r, box, bin, dy, plane, dx);
}

template <class E> static __global__ void pooled(E *y, const E *x, const E *rois, const int64_t *ids, KRoi r,
	int64_t total, KBad *bad)
{
	GRID_STRIDE(t, total) {
		int64_t bins = r.ph * r.pw, c = t / bins % r.c, roi = t / bins / r.c;
		int64_t image = load_index(ids, roi, 8, r.n, bad);
		double box[4];
		read_point(box, rois, roi, 4);
		y[t] = (E)value_of(&r, box, t % bins, x + (image * r.c + c) * r.h * r.w);
	}
}

template <class E> static __global__ void pooled_grad(E *dx, const E *dy, const E *x, const E *rois, const int64_t *ids,
	KRoi r, int64_t total, KBad *bad)
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
				spread_of(&r, box, k, (double)dy[(roi * r.c + t % r.c) * bins + k], x + t * plane, dx + t * plane);
		}
	}
}

template <class E> static void pool(E *y, const E *x, const E *rois, const int64_t *ids, const KRoi *r)
{
	int64_t total = r->rois * r->c * r->ph * r->pw;
	if (total)
		LAUNCH((pooled<E>), blocks_for(total, THREADS), THREADS, 0, k_stream, y, x, rois, ids, *r, total, k_bad_report);
}

template <class E> static void pool_grad(E *dx, const E *dy, const E *x, const E *rois, const int64_t *ids,
	const KRoi *r)
{
	if (r->n * r->c > 0)
		LAUNCH((pooled_grad<E>), blocks_for(r->n * r->c, WARP), WARP, 0, k_stream, dx, dy, x, rois, ids, *r,
			r->n * r->c, k_bad_report);
}

/* ---- determinants ---- */

template <class E> static __global__ void determinants(E *y, const E *x, int64_t n, int64_t count)
{
	GRID_STRIDE(m, count) {
		double a[K_DET_MAX * K_DET_MAX];
		for (int64_t i = 0; i < n * n; i++)
			a[i] = (double)x[m * n * n + i];
		y[m] = (E)det_eliminate(a, n);
	}
}

template <class E> static __global__ void cofactors(E *dx, const E *dy, const E *x, int64_t n, int64_t count)
{
	GRID_STRIDE(m, count) {
		double a[K_DET_MAX * K_DET_MAX], b[K_DET_MAX * K_DET_MAX], c[K_DET_MAX * K_DET_MAX];
		for (int64_t i = 0; i < n * n; i++)
			a[i] = b[i] = (double)x[m * n * n + i];
		det_cofactors(c, a, b, n);
		for (int64_t i = 0; i < n * n; i++)
			dx[m * n * n + i] = (E)((double)dy[m] * c[i]);
	}
}

template <class E> static void det(E *y, const E *x, int64_t count, int64_t n)
{
	if (count)
		LAUNCH((determinants<E>), blocks_for(count, WARP), WARP, 0, k_stream, y, x, n, count);
}

template <class E> static void det_grad(E *dx, const E *dy, const E *x, int64_t count, int64_t n)
{
	if (count)
		LAUNCH((cofactors<E>), blocks_for(count, WARP), WARP, 0, k_stream, dx, dy, x, n, count);
}

#define SPATIAL(E, t) \
	void k_grid_sample_##t(E *y, const E *x, const E *grid, const KSample *s) { sample(y, x, grid, s); } \
	void k_grid_sample_grad_x_##t(E *dx, const E *dy, const E *grid, const KSample *s) \
	{ \
		sample_grad_x(dx, dy, grid, s); \
	} \
	void k_grid_sample_grad_grid_##t(E *dgrid, const E *dy, const E *x, const E *grid, const KSample *s) \
	{ \
		sample_grad_grid(dgrid, dy, x, grid, s); \
	} \
	void k_roi_pool_##t(E *y, const E *x, const E *rois, const int64_t *ids, const KRoi *r) \
	{ \
		pool(y, x, rois, ids, r); \
	} \
	void k_roi_pool_grad_##t(E *dx, const E *dy, const E *x, const E *rois, const int64_t *ids, const KRoi *r) \
	{ \
		pool_grad(dx, dy, x, rois, ids, r); \
	} \
	void k_det_##t(E *y, const E *x, int64_t count, int64_t n) { det(y, x, count, n); } \
	void k_det_grad_##t(E *dx, const E *dy, const E *x, int64_t count, int64_t n) { det_grad(dx, dy, x, count, n); }
K_FLOATS(SPATIAL)
