/* kernels/cuda/pool.cu: max and average pooling and their gradients, one to three spatial dims.
 *
 * A thread makes one result element: an output position or, in a gradient, an input position, for which it visits the
 * windows over it in order.  So no two threads add to one element, and 16-bit results are rounded once.
 * Channels-first data is treated as n * c samples of one channel.  Positions inside a sample have 32 bits. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/window.cuh"
#include "kernels/dims.h"

enum { THREADS = 256 };

/* KPool with 32-bit numbers, except for the total. */
struct Plane {
	int rank, in[3], out[3], kernel[3], stride[3], dilation[3], pad[3], pad_end[3];
	int c, n_in, n_out, n_kernel;
	int64_t samples;
	bool count_pad;
};

static int product(int rank, const int64_t *dim)
{
	int64_t n = numel(rank, dim);
	if (n > INT32_MAX)
		k_fail("pooling: a sample has %lld positions, at most 2^31 - 1 are supported", (long long)n);
	return (int)n;
}

static Plane plane_of(const KPool *p)
{
	Plane q = {.rank = p->rank, .c = p->layout ? (int)p->c : 1, .n_in = product(p->rank, p->in),
		.n_out = product(p->rank, p->out), .n_kernel = product(p->rank, p->kernel),
		.samples = p->layout ? p->n : p->n * p->c, .count_pad = p->count_pad};
	for (int i = 0; i < p->rank; i++) {
		q.in[i] = (int)p->in[i];
		q.out[i] = (int)p->out[i];
		q.kernel[i] = (int)p->kernel[i];
		q.stride[i] = (int)p->stride[i];
		q.dilation[i] = (int)p->dilation[i];
		q.pad[i] = (int)p->pad[i];
		q.pad_end[i] = (int)p->pad_end[i];
	}
	return q;
}

/* The divisor of an average at output position q: padding counts when count_pad is set, what ceil mode adds never
 * does. */
__device__ static int window(const Plane &p, int q)
{
	int count = 1;
	for (int i = p.rank - 1; i >= 0; i--) {
		int lo = p.count_pad ? -p.pad[i] : 0, hi = p.in[i] + (p.count_pad ? p.pad_end[i] : 0), c = 0;
		for (int k = 0; k < p.kernel[i]; k++) {
			int x = q % p.out[i] * p.stride[i] + k * p.dilation[i] - p.pad[i];
			c += x >= lo && x < hi;
		}
		count *= c;
		q /= p.out[i];
	}
	return count > 0 ? count : 1;
}

template <class T> struct Lowest { static constexpr T value = (T)(T(-1) < T(0) ? T(1) << (sizeof(T) * 8 - 1) : 0); };
template <> struct Lowest<float> { static constexpr float value = -INFINITY; };
template <> struct Lowest<double> { static constexpr double value = -INFINITY; };

template <class T> static __global__ void max_pooled(T *y, int32_t *idx, const T *x, Plane p, int64_t total)
{
	GRID_STRIDE(t, total) {
		int64_t row = t / p.c, n = row / p.n_out;
		int c = (int)(t - row * p.c), q = (int)(row - n * p.n_out), at = -1;
		const T *from = x + n * p.n_in * p.c + c;
		Wide<T> best = Lowest<Wide<T>>::value;
		for (int k = 0; k < p.n_kernel; k++) {
			int i = window_input(p, q, k);
			if (i < 0)
				continue;
			Wide<T> v = widen(from[(int64_t)i * p.c]);
			if (at < 0 || v > best || v != v) {
				best = v;
				at = i;
			}
		}
		y[t] = narrow<T>(best);
		if (idx)
			idx[t] = at;
	}
}

template <class T> static __global__ void averaged(T *y, const T *x, Plane p, int64_t total)
{
	GRID_STRIDE(t, total) {
		int64_t row = t / p.c, n = row / p.n_out;
		int c = (int)(t - row * p.c), q = (int)(row - n * p.n_out);
		const T *from = x + n * p.n_in * p.c + c;
		Wide<T> sum = 0;
		for (int k = 0; k < p.n_kernel; k++) {
			int i = window_input(p, q, k);
			if (i >= 0)
				sum += widen(from[(int64_t)i * p.c]);
		}
		y[t] = narrow<T>(sum / (Wide<T>)window(p, q));
	}
}

/* idx is that of max pooling, NULL for average pooling. */
template <class T> static __global__ void pool_grad(T *dx, const T *dy, const int32_t *idx, Plane p, int64_t total)
{
	GRID_STRIDE(t, total) {
		int64_t row = t / p.c, n = row / p.n_in;
		int c = (int)(t - row * p.c), i = (int)(row - n * p.n_in);
		Wide<T> sum = 0;
		for (int k = 0; k < p.n_kernel; k++) {
			int q = window_output(p, i, k);
			if (q < 0)
				continue;
			int64_t at = (n * p.n_out + q) * p.c + c;
			if (idx)
				sum += idx[at] == i ? widen(dy[at]) : (Wide<T>)0;
			else
				sum += widen(dy[at]) / (Wide<T>)window(p, q);
		}
		dx[t] = narrow<T>(sum);
	}
}

template <class T> static void max_pool(void *y, int32_t *idx, const void *x, const KPool *pool)
{
	Plane p = plane_of(pool);
	int64_t total = p.samples * p.n_out * p.c;
	LAUNCH((max_pooled<T>), blocks_for(total, THREADS), THREADS, 0, k_stream, (T *)y, idx, (const T *)x, p, total);
}

template <class T> static void avg_pool(void *y, const void *x, const KPool *pool)
{
	Plane p = plane_of(pool);
	int64_t total = p.samples * p.n_out * p.c;
	LAUNCH((averaged<T>), blocks_for(total, THREADS), THREADS, 0, k_stream, (T *)y, (const T *)x, p, total);
}

template <class T> static void grad(void *dx, const void *dy, const int32_t *idx, const KPool *pool)
{
	Plane p = plane_of(pool);
	int64_t total = p.samples * p.n_in * p.c;
	LAUNCH((pool_grad<T>), blocks_for(total, THREADS), THREADS, 0, k_stream, (T *)dx, (const T *)dy, idx, p, total);
}

#define MAX_POOL(T, t) \
	void k_max_pool_##t(T *y, int32_t *idx, const T *x, const KPool *p) { max_pool<T>(y, idx, x, p); }
K_NUMBERS(MAX_POOL)
void k_max_pool_bf16(uint16_t *y, int32_t *idx, const uint16_t *x, const KPool *p) { max_pool<Bf16>(y, idx, x, p); }
void k_max_pool_f16(uint16_t *y, int32_t *idx, const uint16_t *x, const KPool *p) { max_pool<F16>(y, idx, x, p); }

#define POOLS(C, T, t) \
	void k_max_pool_grad_##t(C *dx, const C *dy, const int32_t *idx, const KPool *p) { grad<T>(dx, dy, idx, p); } \
	void k_avg_pool_##t(C *y, const C *x, const KPool *p) { avg_pool<T>(y, x, p); } \
	void k_avg_pool_grad_##t(C *dx, const C *dy, const KPool *p) { grad<T>(dx, dy, NULL, p); }
POOLS(float, float, f32)
POOLS(double, double, f64)
POOLS(uint16_t, Bf16, bf16)
POOLS(uint16_t, F16, f16)
