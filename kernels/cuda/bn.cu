/* kernels/cuda/bn.cu: batch-norm statistics, forward and for the gradient.
 *
 * T is stored, and the statistics are Wide<T>.  Each channel is summed after one of its own values, or its mean, is
 * subtracted, so that the variance does not cancel.  A thread reads 16 bytes at once where shapes and addresses allow.
 * It sums 16-bit elements in f32, a few at a time, and all else in f64.  The elements of a channel are cut into chunks
 * by shape alone; the sums of chunks (in work) are added in one order by the block that comes last. */
#include <type_traits>

#include "kernels/cuda/arrive.cuh"
#include "kernels/cuda/work.h"

enum { THREADS = 256, COLS = 32, RUN = 32, GROUPS = 4096 };

/* How many blocks of a group of channels have written their sums; 0 between kernels, which follow each other on one
 * stream. */
static __device__ unsigned arrived[GROUPS];

/* Of up to RUN elements. */
template <class T> using Short = typename std::conditional<sizeof(T) == 2, float, double>::type;

/* Forward: sums of x - x[first of the channel] and of its square, which become mean and variance.  Gradient: sums of dy
 * and of dy (x - mean), which becomes that of dy xhat. */
template <class T> struct BnStats {
	Wide<T> *first, *second; /* the two results */
	const T *x, *dy;         /* dy, mean, var and eps: of the gradient */
	const Wide<T> *mean, *var;
	double eps;
	double *part;            /* [chunk][2][c] */
	int64_t n, c, s, from, chunks; /* from: the first channel of a launch */
};

/* ---- the sums of a thread ---- */

/* Adds elements begin, begin + step .. before end, each of V neighbours that begin at at(element). */
template <bool GRAD, int V, class T, class At>
__device__ __forceinline__ void add_elements(double (&a)[V], double (&b)[V], const BnStats<T> &t,
	const Short<T> (&centre)[V], int64_t begin, int64_t end, int64_t step, At at)
{
	for (int64_t from = begin; from < end; from += RUN * step) {
		int64_t to = from + RUN * step < end ? from + RUN * step : end;
		Short<T> sum[V] = {}, product[V] = {};
		#pragma unroll 4
		for (int64_t i = from; i < to; i += step) {
			const int64_t place = at(i);
			const Vec<T, V> x = load<V>(t.x + place), dy = GRAD ? load<V>(t.dy + place) : x;
			#pragma unroll
			for (int v = 0; v < V; v++) {
				Short<T> d = (Short<T>)widen(x.at[v]) - centre[v], g = GRAD ? (Short<T>)widen(dy.at[v]) : d;
				sum[v] += g;
				product[v] += g * d;
			}
		}
		#pragma unroll
		for (int v = 0; v < V; v++) {
			a[v] += (double)sum[v];
			b[v] += (double)product[v];
		}
	}
}

/* What is subtracted from channel i, whose first element is at `at`. */
template <bool GRAD, class T> __device__ __forceinline__ Wide<T> centre_of(const BnStats<T> &t, int64_t i, int64_t at)
{
	return GRAD ? t.mean[i] : widen(t.x[at]);
}

/* The results of channel i of its sums. */
template <bool GRAD, class T>
__device__ __forceinline__ void finish(const BnStats<T> &t, int64_t i, int64_t at, double a, double b)
{
	const double count = (double)(t.n * t.s), m2 = b - a * a / count;
	t.first[i] = (Wide<T>)(GRAD ? a : (double)centre_of<GRAD>(t, i, at) + a / count);
	t.second[i] = (Wide<T>)(GRAD ? b / sqrt((double)t.var[i] + t.eps) : m2 > 0 || m2 != m2 ? m2 / count : 0);
}

/* ---- channels first, (n, c, s) ---- */

/* The grid is channels x chunks; a block has a part of the n * s elements of a channel, V of them at once. */
template <bool GRAD, int V, class T> static __global__ void __launch_bounds__(THREADS) bn_first(BnStats<T> t)
{
	__shared__ double scratch[33];
	const int64_t i = t.from + blockIdx.x, k = blockIdx.y, s = t.s / V, all = t.n * s;
	const bool small = all <= UINT32_MAX; /* 64-bit division is slow */
	Short<T> centre[V];
	double sums[2][V] = {}, a = 0, b = 0;
	for (int v = 0; v < V; v++)
		centre[v] = (Short<T>)centre_of<GRAD>(t, i, i * t.s);
	add_elements<GRAD>(sums[0], sums[1], t, centre, all * k / t.chunks + threadIdx.x, all * (k + 1) / t.chunks,
		(int64_t)THREADS, [&](int64_t e) {
			int64_t sample = small ? (int64_t)((uint32_t)e / (uint32_t)s) : e / s;
			return ((sample * t.c + i) * s + e - sample * s) * V;
		});
	for (int v = 0; v < V; v++)
		a += sums[0][v], b += sums[1][v];
	a = block_reduce(a, Sum(), scratch);
	b = block_reduce(b, Sum(), scratch);
	if (t.chunks > 1) {
		if (threadIdx.x == 0) {
			t.part[2 * k * t.c + i] = a;
			t.part[(2 * k + 1) * t.c + i] = b;
		}
		if (!arrives_last(&arrived[blockIdx.x], t.chunks))
			return;
		a = b = 0;
		for (int64_t j = threadIdx.x; j < t.chunks; j += THREADS) {
			a += __ldcg(&t.part[2 * j * t.c + i]);
			b += __ldcg(&t.part[(2 * j + 1) * t.c + i]);
		}
		a = block_reduce(a, Sum(), scratch);
		b = block_reduce(b, Sum(), scratch);
	}
	if (threadIdx.x == 0)
		finish<GRAD>(t, i, i * t.s, a, b);
}

/* ---- channels last, (rows, c) ---- */

/* Adds up the two sums of V channels over the block's rows of threads; those of row 0 get the results.  All threads of
 * the block call it.  scratch: 2 V THREADS elements of shared memory. */
template <int V> __device__ __forceinline__ void join_rows(double (&a)[V], double (&b)[V], double *scratch)
{
	const unsigned id = threadIdx.y * blockDim.x + threadIdx.x;
	#pragma unroll
	for (int v = 0; v < V; v++) {
		scratch[2 * v * THREADS + id] = a[v];
		scratch[(2 * v + 1) * THREADS + id] = b[v];
	}
	for (unsigned d = blockDim.y / 2; d > 0; d /= 2) {
		__syncthreads();
		#pragma unroll
		for (int v = 0; v < V && threadIdx.y < d; v++) {
			a[v] += scratch[2 * v * THREADS + id + d * blockDim.x];
			b[v] += scratch[(2 * v + 1) * THREADS + id + d * blockDim.x];
			scratch[2 * v * THREADS + id] = a[v];
			scratch[(2 * v + 1) * THREADS + id] = b[v];
		}
	}
	__syncthreads();
}

/* The grid is tiles of channels x chunks of rows; a thread has V channels of every blockDim.y-th row. */
template <bool GRAD, int V, class T> static __global__ void __launch_bounds__(THREADS, 2) bn_last(BnStats<T> t)
{
	__shared__ double scratch[2 * V * THREADS];
	const int64_t i = t.from + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V, k = blockIdx.y, rows = t.n * t.s;
	const bool mine = i < t.c;
	Short<T> centre[V];
	double a[V] = {}, b[V] = {};
	for (int v = 0; v < V; v++)
		centre[v] = mine ? (Short<T>)centre_of<GRAD>(t, i + v, i + v) : 0;
	add_elements<GRAD>(a, b, t, centre, rows * k / t.chunks + threadIdx.y, mine ? rows * (k + 1) / t.chunks : 0,
		(int64_t)blockDim.y, [&](int64_t r) { return r * t.c + i; });
	join_rows(a, b, scratch);
	if (t.chunks > 1) {
		for (int v = 0; v < V && mine && threadIdx.y == 0; v++) {
			t.part[2 * k * t.c + i + v] = a[v];
			t.part[(2 * k + 1) * t.c + i + v] = b[v];
		}
		if (!arrives_last(&arrived[blockIdx.x], t.chunks))
			return;
		for (int v = 0; v < V; v++)
			a[v] = b[v] = 0;
		#pragma unroll 2
		for (int64_t j = threadIdx.y; j < t.chunks && mine; j += blockDim.y)
			#pragma unroll
			for (int v = 0; v < V; v++) {
				a[v] += __ldcg(&t.part[2 * j * t.c + i + v]);
				b[v] += __ldcg(&t.part[(2 * j + 1) * t.c + i + v]);
			}
		join_rows(a, b, scratch);
	}
	for (int v = 0; v < V && mine && threadIdx.y == 0; v++)
		finish<GRAD>(t, i + v, i + v, a[v], b[v]);
}

/* ---- launches ---- */

template <bool GRAD, int V, class T> static void launch(BnStats<T> t, int layout)
{
	int cols = 1;
	while (cols < COLS && cols * V < t.c)
		cols *= 2;
	int64_t tile = layout ? cols * V : 1;
	for (; t.from < t.c; t.from += GROUPS * tile) {
		int64_t groups = kwork_clamp(ceil_div(t.c - t.from, tile), 1, GROUPS);
		dim3 grid((unsigned)groups, (unsigned)t.chunks);
		if (layout)
			LAUNCH((bn_last<GRAD, V, T>), grid, dim3((unsigned)cols, (unsigned)(THREADS / cols)), 0, k_stream, t);
		else
			LAUNCH((bn_first<GRAD, V, T>), grid, THREADS, 0, k_stream, t);
	}
}

template <bool GRAD, class T> static void bn_sums(BnStats<T> t, int layout)
{
	constexpr int V = vec_of<T>;
	if (t.c == 0 || t.n * t.s == 0)
		return;
	t.chunks = kwork_bn_chunks(t.n * t.s, t.c, layout);
	if ((layout ? t.c : t.s) % V == 0 && aligned16(t.x) && aligned16(t.dy))
		launch<GRAD, V>(t, layout);
	else
		launch<GRAD, 1>(t, layout);
}

/* D is the type of elements on the device; for 16-bit ones it differs from the raw type of the interface. */
#define BN(T, W, D, t) \
void k_bn_stats_##t(W *mean, W *var, const T *x, int64_t n, int64_t c, int64_t s, int layout, void *work) \
{ \
	bn_sums<false>(BnStats<D>{mean, var, (const D *)x, nullptr, nullptr, nullptr, 0, (double *)work, n, c, s, 0, 0}, \
		layout); \
} \
void k_bn_grad_stats_##t(W *sum_dy, W *sum_dy_xhat, const T *dy, const T *x, const W *mean, const W *var, int64_t n, \
	int64_t c, int64_t s, int layout, double eps, void *work) \
{ \
	bn_sums<true>(BnStats<D>{sum_dy, sum_dy_xhat, (const D *)x, (const D *)dy, mean, var, eps, (double *)work, n, c, \
		s, 0, 0}, layout); \
}
BN(float, float, float, f32)
BN(double, double, double, f64)
BN(uint16_t, float, Bf16, bf16)
BN(uint16_t, float, F16, f16)
