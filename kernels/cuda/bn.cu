/* kernels/cuda/bn.cu: batch-norm statistics, forward and for the gradient.
 *
 * T is stored, and the statistics are Wide<T>.  Each channel is summed in f64 after one of its own values is
 * subtracted, so that the variance does not cancel.  The elements of a channel are cut into chunks by shape alone; the
 * sums of chunks (in work) are added in order. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/work.h"

enum { FIRST_BLOCK = 256, LAST_COLS = 32, LAST_ROWS = 8, JOIN_BLOCK = 128 };

/* Forward, where dy is NULL: sums of x - x[first of the channel] and of its square.  Gradient: sums of dy and of dy (x
 * - mean). */
template <class T> struct BnStats {
	const T *x, *dy;
	const Wide<T> *mean;
	double *part;            /* [chunk][2][c] */
	int64_t n, c, s, chunks;
};

/* Adds element `at` of a channel to the two sums. */
template <class T>
__device__ __forceinline__ void bn_add(double &a, double &b, const BnStats<T> &t, int64_t at, Wide<T> centre)
{
	double d = (double)widen(t.x[at]) - (double)centre, g = t.dy ? (double)widen(t.dy[at]) : d;
	a += g;
	b += g * d;
}

/* Channels first, (n, c, s).  The grid is channels x chunks; a block has a part of the n * s elements of a channel. */
template <class T> static __global__ void __launch_bounds__(FIRST_BLOCK) bn_first(BnStats<T> t)
{
	__shared__ double scratch[33];
	int64_t i = blockIdx.x, k = blockIdx.y, all = t.n * t.s, end = all * (k + 1) / t.chunks;
	bool small = all <= UINT32_MAX; /* 64-bit division is slow */
	Wide<T> centre = t.dy ? t.mean[i] : widen(t.x[i * t.s]);
	double a = 0, b = 0;
	for (int64_t e = all * k / t.chunks + threadIdx.x; e < end; e += FIRST_BLOCK) {
		int64_t sample = small ? (int64_t)((uint32_t)e / (uint32_t)t.s) : e / t.s;
		bn_add(a, b, t, (sample * t.c + i) * t.s + e - sample * t.s, centre);
	}
	a = block_reduce(a, Sum(), scratch);
	b = block_reduce(b, Sum(), scratch);
	if (threadIdx.x == 0) {
		t.part[2 * k * t.c + i] = a;
		t.part[(2 * k + 1) * t.c + i] = b;
	}
}

/* Channels last, (rows, c).  The grid is tiles of LAST_COLS channels x chunks of rows. */
template <class T> static __global__ void __launch_bounds__(LAST_COLS * LAST_ROWS) bn_last(BnStats<T> t)
{
	__shared__ double sums[2][LAST_ROWS][LAST_COLS];
	int64_t i = (int64_t)blockIdx.x * LAST_COLS + threadIdx.x, k = blockIdx.y, rows = t.n * t.s;
	int64_t end = rows * (k + 1) / t.chunks;
	double a = 0, b = 0;
	if (i < t.c) {
		Wide<T> centre = t.dy ? t.mean[i] : widen(t.x[i]);
		#pragma unroll 4
		for (int64_t r = rows * k / t.chunks + threadIdx.y; r < end; r += LAST_ROWS)
			bn_add(a, b, t, r * t.c + i, centre);
	}
	sums[0][threadIdx.y][threadIdx.x] = a;
	sums[1][threadIdx.y][threadIdx.x] = b;
	__syncthreads();
	if (threadIdx.y > 1 || i >= t.c)
		return;
	double s = 0;
	for (int r = 0; r < LAST_ROWS; r++)
		s += sums[threadIdx.y][r][threadIdx.x];
	t.part[(2 * k + threadIdx.y) * t.c + i] = s;
}

/* Joins the chunks' sums to mean and var, or to sum_dy and sum_dy_xhat. */
template <class T>
static __global__ void __launch_bounds__(JOIN_BLOCK)
bn_join(Wide<T> *first, Wide<T> *second, BnStats<T> t, const Wide<T> *var, double eps, int layout)
{
	double count = (double)(t.n * t.s);
	GRID_STRIDE(i, t.c) {
		double a = 0, b = 0;
		for (int64_t k = 0; k < t.chunks; k++) {
			a += t.part[2 * k * t.c + i];
			b += t.part[(2 * k + 1) * t.c + i];
		}
		double centre = t.dy ? 0 : (double)widen(t.x[layout ? i : i * t.s]), m2 = b - a * a / count;
		first[i] = (Wide<T>)(t.dy ? a : centre + a / count);
		second[i] = (Wide<T>)(t.dy ? b / sqrt((double)var[i] + eps) : m2 > 0 || m2 != m2 ? m2 / count : 0);
	}
}

template <class T>
static void bn_sums(Wide<T> *first, Wide<T> *second, BnStats<T> t, const Wide<T> *var, double eps, int layout)
{
	if (t.c == 0 || t.n * t.s == 0)
		return;
	t.chunks = kwork_bn_chunks(t.n * t.s, t.c, layout);
	if (layout)
		LAUNCH(bn_last<T>, dim3((unsigned)ceil_div(t.c, LAST_COLS), (unsigned)t.chunks), dim3(LAST_COLS, LAST_ROWS), 0,
			k_stream, t);
	else
		LAUNCH(bn_first<T>, dim3((unsigned)t.c, (unsigned)t.chunks), FIRST_BLOCK, 0, k_stream, t);
	LAUNCH(bn_join<T>, blocks_for(t.c, JOIN_BLOCK), JOIN_BLOCK, 0, k_stream, first, second, t, var, eps, layout);
}

/* D is the type of elements on the device; for 16-bit ones it differs from the raw type of the interface. */
#define BN(T, W, D, t) \
void k_bn_stats_##t(W *mean, W *var, const T *x, int64_t n, int64_t c, int64_t s, int layout, void *work) \
{ \
	bn_sums(mean, var, BnStats<D>{(const D *)x, nullptr, nullptr, (double *)work, n, c, s, 0}, (const W *)nullptr, 0, \
		layout); \
} \
void k_bn_grad_stats_##t(W *sum_dy, W *sum_dy_xhat, const T *dy, const T *x, const W *mean, const W *var, int64_t n, \
	int64_t c, int64_t s, int layout, double eps, void *work) \
{ \
	bn_sums(sum_dy, sum_dy_xhat, BnStats<D>{(const D *)x, (const D *)dy, mean, (double *)work, n, c, s, 0}, var, eps, \
		layout); \
}
BN(float, float, float, f32)
BN(double, double, double, f64)
BN(uint16_t, float, Bf16, bf16)
BN(uint16_t, float, F16, f16)
