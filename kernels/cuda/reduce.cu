/* kernels/cuda/reduce.cu: sum, mean, max, min and product over any axes.
 *
 * Dims are merged into alternating runs of kept and reduced ones.  If the last run is reduced, a result is the sum of
 * contiguous rows, made by one warp or one block.  If it is kept, a block makes neighbouring columns, and its rows of
 * threads share the reduced elements.  The reduced elements of a result are cut into chunks by shape alone
 * (kernels/cuda/work.h); with several chunks their partial results stand in work and are merged in order: of columns by
 * the block that ends last, of rows by a second kernel.
 *
 * Sums and products of f32 and f64 run in f64, of 16-bit floats in f32, of integers in 64 bits that wrap.  Kernels for
 * integers are told the reduction when they run rather than when they are compiled, since there are many integer types
 * and such reductions are rare. */
#include <type_traits>

#include "kernels/cuda/arrive.cuh"
#include "kernels/cuda/work.h"
#include "kernels/dims.h"

enum { THREADS = 256, COLS = 32, ROWS = THREADS / COLS, GROUPS = 4096 };

/* How many blocks of a group have written their parts; 0 between kernels, which follow each other on one stream. */
static __device__ unsigned arrived[GROUPS];

/* ---- what is reduced ---- */

typedef enum Rule { SUM, MEAN, MOST, LEAST, PRODUCT } Rule;

template <class T> struct AccOf { using type = float; };
template <> struct AccOf<float> { using type = double; };
template <> struct AccOf<double> { using type = double; };

template <class T> struct Add {
	using Acc = typename AccOf<T>::type;
	bool mean;
	__device__ Acc start() const { return 0; }
	__device__ Acc step(Acc s, Acc v) const { return s + v; }
	__device__ Wide<T> finish(Acc s, int64_t n) const { return (Wide<T>)(mean ? s / (Acc)n : s); }
};

template <class T> struct Times {
	using Acc = typename AccOf<T>::type;
	__device__ Acc start() const { return 1; }
	__device__ Acc step(Acc s, Acc v) const { return s * v; }
	__device__ Wide<T> finish(Acc s, int64_t) const { return (Wide<T>)s; }
};

/* A NaN wins. */
template <class T, bool LARGEST> struct Extreme {
	using Acc = Wide<T>;
	__device__ Acc start() const { return LARGEST ? -(Acc)INFINITY : (Acc)INFINITY; }
	__device__ Acc step(Acc s, Acc v) const { return (LARGEST ? v > s : v < s) || v != v ? v : s; }
	__device__ Wide<T> finish(Acc s, int64_t) const { return s; }
};

template <class T> struct OfIntegers {
	using Acc = typename std::conditional<std::is_signed<T>::value, int64_t, uint64_t>::type;
	Rule rule;
	/* The start of a maximum is the least number of the type, that of a minimum the largest. */
	__device__ Acc start() const
	{
		constexpr uint64_t top = (uint64_t)1 << (sizeof(T) * 8 - 1), least = std::is_signed<T>::value ? top : 0;
		return rule == MOST ? (Acc)(T)least : rule == LEAST ? (Acc)(T)~least : rule == PRODUCT ? 1 : 0;
	}
	__device__ Acc step(Acc s, Acc v) const
	{
		switch (rule) {
		case MOST: return v > s ? v : s;
		case LEAST: return v < s ? v : s;
		case PRODUCT: return (Acc)((uint64_t)s * (uint64_t)v);
		default: return (Acc)((uint64_t)s + (uint64_t)v);
		}
	}
	__device__ T finish(Acc s, int64_t n) const
	{
		return rule != MEAN ? (T)s : n ? (T)(s / (Acc)n) : (T)0;
	}
};

/* ---- shapes ---- */

struct Dims { int rank; int64_t dim[K_MAX_RANK], stride[K_MAX_RANK]; };

/* The kept and the reduced dims of the merged shape without the last one, whose n elements are contiguous. */
struct Reduction {
	Dims kept, red;
	int64_t n, outputs, count, chunks; /* count: reduced elements of a result */
	bool last_kept;
};

__device__ static int64_t offset_at(const Dims &d, int64_t i)
{
	int64_t o = 0;
	for (int k = d.rank - 1; k > 0; k--) {
		o += i % d.dim[k] * d.stride[k];
		i /= d.dim[k];
	}
	return d.rank ? o + i * d.stride[0] : 0;
}

static void push(Dims *d, int64_t n, int64_t stride)
{
	d->dim[d->rank] = n;
	d->stride[d->rank++] = stride;
}

static Reduction reduction_of(int rank, const int64_t *dim, unsigned axes)
{
	Reduction r = {.n = 1, .outputs = 1, .count = 1};
	int64_t d[K_MAX_RANK], s[K_MAX_RANK];
	bool red[K_MAX_RANK];
	int m = axis_runs(rank, dim, axes, d, s, red);
	for (int i = 0; i < rank; i++)
		*(axes >> i & 1 ? &r.count : &r.outputs) *= dim[i];
	if (m) {
		r.n = d[m - 1];
		r.last_kept = !red[m - 1];
	}
	for (int i = 0; i < m - 1; i++)
		push(red[i] ? &r.red : &r.kept, d[i], s[i]);
	r.chunks = kwork_cuda_chunks(r.outputs, r.count);
	return r;
}

/* Where chunk c of the reduced elements begins; it ends where chunk c + 1 begins. */
__device__ static int64_t chunk_begin(const Reduction &r, int64_t c)
{
	return r.count * c / r.chunks;
}

template <class Y, class Op> __device__ __forceinline__ void put(Y *y, typename Op::Acc *part, const Reduction &r,
	Op op, int64_t chunk, int64_t output, typename Op::Acc acc)
{
	if (r.chunks == 1)
		y[output] = narrow<Y>(op.finish(acc, r.count));
	else
		part[chunk * r.outputs + output] = acc;
}

/* ---- kernels ---- */

/* Contiguous rows: `lanes` threads, 32 or the whole block, make one chunk of one result. */
template <class Y, class T, class Op> static __global__ void __launch_bounds__(THREADS)
rows(Y *y, typename Op::Acc *part, const T *x, Reduction r, Op op, int lanes)
{
	using Acc = typename Op::Acc;
	__shared__ Acc scratch[33];
	int64_t groups = r.outputs * r.chunks, per = THREADS / lanes;
	int lane = (int)threadIdx.x % lanes;
	for (int64_t b = (int64_t)blockIdx.x * per; b < groups; b += (int64_t)gridDim.x * per) {
		int64_t g = b + (int)threadIdx.x / lanes, chunk = g / r.outputs, output = g - chunk * r.outputs;
		Acc acc = op.start();
		if (g < groups) {
			const T *from = x + offset_at(r.kept, output);
			int64_t end = chunk_begin(r, chunk + 1);
			for (int64_t i = chunk_begin(r, chunk) + lane; i < end; i += lanes) {
				int64_t row = r.red.rank ? i / r.n : 0;
				acc = op.step(acc, (Acc)widen(from[offset_at(r.red, row) + i - row * r.n]));
			}
		}
		auto step = [op](Acc a, Acc v) { return op.step(a, v); };
		acc = lanes == WARP ? warp_reduce(acc, step) : block_reduce(acc, step, scratch);
		if (lane == 0 && g < groups)
			put(y, part, r, op, chunk, output, acc);
	}
}

/* Reduces elements [begin, end) of the block's columns: step(acc, i) adds element i to a thread's V results, which
 * begin at column threadIdx.x * V; a thread takes every ROWS-th element.  put(c, result) gets each column.  All threads
 * of the block must call it. */
template <int V, class Op, class Step, class Put>
__device__ __forceinline__ void reduce_rows(typename Op::Acc (*sums)[COLS * V], Op op, int64_t begin, int64_t end,
	Step step, Put put)
{
	using Acc = typename Op::Acc;
	Acc acc[V];
	#pragma unroll
	for (int v = 0; v < V; v++)
		acc[v] = op.start();
	#pragma unroll 4
	for (int64_t i = begin + threadIdx.y; i < end; i += ROWS)
		step(acc, i);
	#pragma unroll
	for (int v = 0; v < V; v++)
		sums[threadIdx.y][threadIdx.x * V + v] = acc[v];
	__syncthreads();
	for (int c = (int)(threadIdx.y * COLS + threadIdx.x); c < COLS * V; c += THREADS) {
		Acc sum = sums[0][c];
		for (int k = 1; k < ROWS; k++)
			sum = op.step(sum, sums[k][c]);
		put(c, sum);
	}
	__syncthreads();
}

/* Kept columns: a block makes one chunk of COLS * V neighbouring results, a thread V of them.  joins: the last block of
 * the same columns merges their chunks. */
template <class Y, class T, class Op, int V> static __global__ void __launch_bounds__(THREADS, 3)
cols(Y *y, typename Op::Acc *part, const T *x, Reduction r, Op op, bool joins)
{
	using Acc = typename Op::Acc;
	__shared__ Acc sums[ROWS][COLS * V];
	int64_t blocks = (r.n + COLS * V - 1) / (COLS * V), tasks = r.outputs / r.n * blocks * r.chunks;
	for (int64_t t = blockIdx.x; t < tasks; t += gridDim.x) {
		int64_t group = t / r.chunks, chunk = t - group * r.chunks, kept = group / blocks;
		int64_t first = (group - kept * blocks) * COLS * V, c0 = first + (int)threadIdx.x * V, to = kept * r.n + first;
		const T *from = x + offset_at(r.kept, kept) + c0;
		reduce_rows<V>(sums, op, chunk_begin(r, chunk), c0 < r.n ? chunk_begin(r, chunk + 1) : 0,
			[&](Acc *acc, int64_t i) {
				Vec<T, V> got = load<V>(from + offset_at(r.red, i));
				#pragma unroll
				for (int v = 0; v < V; v++)
					acc[v] = op.step(acc[v], (Acc)widen(got.at[v]));
			}, [&](int c, Acc sum) {
				if (first + c < r.n)
					put(y, part, r, op, chunk, to + c, sum);
			});
		if (!joins || !arrives_last(&arrived[group], r.chunks))
			continue;
		reduce_rows<V>(sums, op, 0, c0 < r.n ? r.chunks : 0, [&](Acc *acc, int64_t i) {
			#pragma unroll
			for (int v = 0; v < V; v++)
				if (c0 + v < r.n)
					acc[v] = op.step(acc[v], __ldcg(&part[i * r.outputs + kept * r.n + c0 + v]));
		}, [&](int c, Acc sum) {
			if (first + c < r.n)
				y[to + c] = narrow<Y>(op.finish(sum, r.count));
		});
	}
}

template <class Y, class Op> static __global__ void merged(Y *y, const typename Op::Acc *part, Reduction r, Op op)
{
	GRID_STRIDE(o, r.outputs) {
		typename Op::Acc acc = part[o];
		for (int64_t c = 1; c < r.chunks; c++)
			acc = op.step(acc, part[c * r.outputs + o]);
		y[o] = narrow<Y>(op.finish(acc, r.count));
	}
}

/* Whether columns can be read V at a time. */
static bool wide_columns(const Reduction *r, const void *x, int v)
{
	int64_t common = r->n | (aligned16(x) ? 0 : 1);
	for (int i = 0; i < r->kept.rank; i++)
		common |= r->kept.stride[i];
	for (int i = 0; i < r->red.rank; i++)
		common |= r->red.stride[i];
	return common % v == 0;
}

/* Y is T, or the type that T is computed in. */
template <class Y, class T, class Op> static void reduce(Y *y, const T *x, int rank, const int64_t *dim, unsigned axes,
	Op op, void *work)
{
	Reduction r = reduction_of(rank, dim, axes);
	auto *part = (typename Op::Acc *)work;
	bool joined = false; /* the chunks, by the kernel that makes them */
	if (r.outputs == 0)
		return;
	if (!r.last_kept || r.count == 0) {
		int lanes = r.count / r.chunks <= 1024 ? (int)WARP : (int)THREADS;
		LAUNCH((rows<Y, T, Op>), blocks_for(r.outputs * r.chunks, THREADS / lanes), THREADS, 0, k_stream, y, part, x, r,
			op, lanes);
	} else {
		constexpr int V = std::is_integral<T>::value ? 1 : sizeof(T) <= 4 ? vec_of<T> : 1;
		bool wide = V > 1 && r.n >= COLS * V && wide_columns(&r, x, V);
		int64_t groups = r.outputs / r.n * ceil_div(r.n, wide ? COLS * V : COLS);
		joined = r.chunks > 1 && groups <= GROUPS;
		unsigned grid = blocks_for(groups * r.chunks, 1);
		if (wide)
			LAUNCH((cols<Y, T, Op, V>), grid, dim3(COLS, ROWS), 0, k_stream, y, part, x, r, op, joined);
		else
			LAUNCH((cols<Y, T, Op, 1>), grid, dim3(COLS, ROWS), 0, k_stream, y, part, x, r, op, joined);
	}
	if (r.chunks > 1 && !joined)
		LAUNCH((merged<Y, Op>), blocks_for(r.outputs, THREADS), THREADS, 0, k_stream, y, part, r, op);
}

template <class T> static void reduce_by(Rule rule, T *y, const T *x, int rank, const int64_t *dim, unsigned axes,
	void *work)
{
	if constexpr (std::is_integral<T>::value) {
		reduce(y, x, rank, dim, axes, OfIntegers<T>{rule}, work);
		return;
	} else switch (rule) {
	case SUM:
	case MEAN: reduce(y, x, rank, dim, axes, Add<T>{rule == MEAN}, work); break;
	case MOST: reduce(y, x, rank, dim, axes, Extreme<T, true>{}, work); break;
	case LEAST: reduce(y, x, rank, dim, axes, Extreme<T, false>{}, work); break;
	case PRODUCT: reduce(y, x, rank, dim, axes, Times<T>{}, work); break;
	}
}

#define REDUCE_BY(C, T, t, name, rule) \
	void k_reduce_##name##_##t(C *y, const C *x, int rank, const int64_t *dim, unsigned axes, void *work) \
	{ \
		reduce_by(rule, (T *)y, (const T *)x, rank, dim, axes, work); \
	}
#define REDUCE(C, T, t) REDUCE_BY(C, T, t, sum, SUM) REDUCE_BY(C, T, t, mean, MEAN) REDUCE_BY(C, T, t, max, MOST) \
	REDUCE_BY(C, T, t, min, LEAST) REDUCE_BY(C, T, t, prod, PRODUCT)
#define REDUCE_SAME(T, t) REDUCE(T, T, t)
K_NUMBERS(REDUCE_SAME)
REDUCE(uint16_t, Bf16, bf16)
REDUCE(uint16_t, F16, f16)

#define SUM_TO_F32(C, T, t) \
	void k_reduce_sum_##t##_f32(float *y, const C *x, int rank, const int64_t *dim, unsigned axes, void *work) \
	{ \
		reduce(y, (const T *)x, rank, dim, axes, Add<T>{false}, work); \
	}
SUM_TO_F32(uint16_t, Bf16, bf16)
SUM_TO_F32(uint16_t, F16, f16)
