/* kernels/cuda/flat.cu: kernels on flat buffers: gaps, norms of gradients, sums over micro-batches, casts, and the
 * search for what is not finite.
 *
 * A part of a norm is the sum over the elements that one segment has in one chunk of the flat.  When the parts of
 * chunk c and segment k are visited in order, c + k grows by one, so part (c, k) is kept at c + k in work.  The block
 * that is done last joins the parts, for each segment and then over all. */
#include "kernels/cuda/arrive.cuh"
#include "kernels/cuda/segments.cuh"

enum { FLAT_BLOCK = 256, FLAT_WARPS = FLAT_BLOCK / (int)WARP, GAP_PARTS = 16, PER = 8 };

/* ---- gaps ---- */

/* The grid is gaps (before each segment, and behind the last one) x GAP_PARTS. */
template <class T> static __global__ void __launch_bounds__(FLAT_BLOCK)
zero_gaps(T *flat, int64_t numel, const Segment *seg,
	int64_t n_seg)
{
	int64_t k = blockIdx.x, begin = k > 0 ? seg[k - 1].begin + seg[k - 1].length : 0;
	int64_t end = k < n_seg ? seg[k].begin : numel;
	for (int64_t i = begin + (int64_t)blockIdx.y * FLAT_BLOCK + threadIdx.x; i < end; i += FLAT_BLOCK * GAP_PARTS)
		flat[i] = 0;
}

void k_zero_gaps(void *flat, int64_t numel, const Segment *seg, int64_t n_seg, int size)
{
	dim3 grid((unsigned)(n_seg + 1), GAP_PARTS);
	if (size == 1)
		LAUNCH(zero_gaps<uint8_t>, grid, FLAT_BLOCK, 0, k_stream, (uint8_t *)flat, numel, seg, n_seg);
	else if (size == 2)
		LAUNCH(zero_gaps<uint16_t>, grid, FLAT_BLOCK, 0, k_stream, (uint16_t *)flat, numel, seg, n_seg);
	else if (size == 4)
		LAUNCH(zero_gaps<uint32_t>, grid, FLAT_BLOCK, 0, k_stream, (uint32_t *)flat, numel, seg, n_seg);
	else
		LAUNCH(zero_gaps<uint64_t>, grid, FLAT_BLOCK, 0, k_stream, (uint64_t *)flat, numel, seg, n_seg);
}

/* ---- norms ---- */

typedef enum NormOf { NORM_1, NORM_2, NORM_P, NORM_MAX } NormOf;

template <NormOf N> __device__ __forceinline__ double norm_term(double x, double p)
{
	if constexpr (N == NORM_2)
		return x * x;
	else if constexpr (N == NORM_P)
		return pow(fabs(x), p);
	else
		return fabs(x);
}

/* Joins two parts, as k_norm_join does. */
template <NormOf N> struct NormJoin {
	__device__ double operator()(double a, double b) const
	{
		if constexpr (N == NORM_MAX)
			return a != a || a > b ? a : b;
		else
			return a + b;
	}
};

static __device__ unsigned norm_arrived;

/* Joins all parts to *norm: a warp has every so many segments, a lane so many parts of one. */
template <NormOf N> __device__ void join_parts(double *norm, const double *part, const Segment *seg, int64_t n_seg)
{
	__shared__ double of_warp[FLAT_WARPS];
	int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
	int64_t length = flat_chunk_length(seg, n_seg);
	NormJoin<N> join;
	double all = 0;
	for (int64_t k = warp; k < n_seg; k += FLAT_WARPS) {
		double s = 0;
		int64_t first = seg[k].begin / length;
		int64_t last = seg[k].length > 0 ? (seg[k].begin + seg[k].length - 1) / length : first - 1;
		for (int64_t c = first + lane; c <= last; c += WARP)
			s = join(s, __ldcg(&part[c + k]));
		all = join(all, warp_reduce(s, join));
	}
	if (lane == 0)
		of_warp[warp] = all;
	__syncthreads();
	for (int i = 1; threadIdx.x == 0 && i < FLAT_WARPS; i++)
		all = join(all, of_warp[i]);
	if (threadIdx.x == 0)
		*norm = join(*norm, all);
}

template <NormOf N, class G> static __global__ void __launch_bounds__(FLAT_BLOCK) norm_parts(double *norm, double *part,
	const G *g, const Segment *seg, int64_t n_seg, double p)
{
	__shared__ double scratch[33];
	FlatChunk chunk = flat_chunk(seg, n_seg);
	NormJoin<N> join;
	for (int64_t k = first_segment(seg, n_seg, chunk.begin); k < n_seg && seg[k].begin < chunk.end; k++) {
		double s = 0;
		each_of_part(chunk_of_segment(chunk, seg[k]),
			[&](int64_t i) { s = join(s, norm_term<N>((double)widen(g[i]), p)); },
			[&](int64_t i) {
				Vec<G, 4> v = load<4>(g + i);
				#pragma unroll
				for (int e = 0; e < 4; e++)
					s = join(s, norm_term<N>((double)widen(v.at[e]), p));
			});
		s = block_reduce(s, join, scratch);
		if (threadIdx.x == 0)
			part[(int64_t)blockIdx.x + k] = s;
	}
	if (arrives_last(&norm_arrived, gridDim.x))
		join_parts<N>(norm, part, seg, n_seg);
}

template <NormOf N, class G>
static void norm_of(double *norm, const void *g, const Segment *seg, int64_t n_seg, double p, void *work)
{
	LAUNCH((norm_parts<N, G>), K_FLAT_CHUNKS, FLAT_BLOCK, 0, k_stream, norm, (double *)work, (const G *)g, seg, n_seg,
		p);
}

template <class G>
static void norm_as(double *norm, const void *g, const Segment *seg, int64_t n_seg, double p, void *work)
{
	if (p == (double)INFINITY)
		norm_of<NORM_MAX, G>(norm, g, seg, n_seg, p, work);
	else if (p == 1)
		norm_of<NORM_1, G>(norm, g, seg, n_seg, p, work);
	else if (p == 2)
		norm_of<NORM_2, G>(norm, g, seg, n_seg, p, work);
	else
		norm_of<NORM_P, G>(norm, g, seg, n_seg, p, work);
}

void k_norm(double *norm, const void *g, KDType g_type, const Segment *seg, int64_t n_seg, double p, void *work)
{
	want_flat(g, "gradients");
	if (n_seg == 0)
		return;
	if (g_type == K_F32)
		norm_as<float>(norm, g, seg, n_seg, p, work);
	else if (g_type == K_BF16)
		norm_as<Bf16>(norm, g, seg, n_seg, p, work);
	else
		norm_as<F16>(norm, g, seg, n_seg, p, work);
}

/* ---- one result for each element ---- */

/* N elements a thread; those behind the last N one by one. */
template <int N, class One, class Many> __device__ __forceinline__ void each_element(int64_t n, One one, Many many)
{
	GRID_STRIDE(i, n / N)
		many(i * N);
	GRID_STRIDE(i, n % N)
		one(n / N * N + i);
}

template <class T, int N> static __global__ void __launch_bounds__(FLAT_BLOCK)
accumulate(float *sum, const T *x, int64_t n)
{
	each_element<N>(n, [&](int64_t i) { sum[i] += widen(x[i]); }, [&](int64_t i) {
		Vec<T, N> v = load<N>(x + i);
		Vec<float, N> s = load<N>(sum + i);
		#pragma unroll
		for (int e = 0; e < N; e++)
			s.at[e] += widen(v.at[e]);
		store<N>(sum + i, s);
	});
}

template <class T> static void accumulate_any(float *sum, const T *x, int64_t n)
{
	unsigned grid = blocks_for(n, FLAT_BLOCK * PER);
	if (n > 0 && aligned16(sum) && aligned16(x))
		LAUNCH((accumulate<T, vec_of<T>>), grid, FLAT_BLOCK, 0, k_stream, sum, x, n);
	else if (n > 0)
		LAUNCH((accumulate<T, 1>), grid, FLAT_BLOCK, 0, k_stream, sum, x, n);
}

void k_accumulate_f32(float *sum, const float *x, int64_t n) { accumulate_any(sum, x, n); }
void k_accumulate_f16(float *sum, const uint16_t *x, int64_t n) { accumulate_any(sum, (const F16 *)x, n); }
void k_accumulate_bf16(float *sum, const uint16_t *x, int64_t n) { accumulate_any(sum, (const Bf16 *)x, n); }

/* out = in * scale, rounded once; out may be in where the types are the same.  A scale of 1 changes no bit. */
template <class T, class F, int N>
static __global__ void __launch_bounds__(FLAT_BLOCK) cast_scaled(T *out, const F *in, int64_t n, float scale)
{
	each_element<N>(n, [&](int64_t i) { out[i] = narrow<T>(widen(in[i]) * scale); }, [&](int64_t i) {
		Vec<F, N> v = load<N>(in + i);
		Vec<T, N> y;
		#pragma unroll
		for (int e = 0; e < N; e++)
			y.at[e] = narrow<T>(widen(v.at[e]) * scale);
		store<N>(out + i, y);
	});
}

template <class T, class F> static void cast_pair(void *out, const void *in, int64_t n, float scale)
{
	unsigned grid = blocks_for(n, FLAT_BLOCK * PER);
	if (aligned16(out) && aligned16(in))
		LAUNCH((cast_scaled<T, F, PER>), grid, FLAT_BLOCK, 0, k_stream, (T *)out, (const F *)in, n, scale);
	else
		LAUNCH((cast_scaled<T, F, 1>), grid, FLAT_BLOCK, 0, k_stream, (T *)out, (const F *)in, n, scale);
}

template <class F> static void cast_from(void *out, KDType out_type, const void *in, int64_t n, float scale)
{
	if (out_type == K_F32)
		cast_pair<float, F>(out, in, n, scale);
	else if (out_type == K_BF16)
		cast_pair<Bf16, F>(out, in, n, scale);
	else
		cast_pair<F16, F>(out, in, n, scale);
}

static void cast_any(void *out, KDType out_type, const void *in, KDType in_type, int64_t n, float scale)
{
	if (n == 0)
		return;
	if (in_type == K_F32)
		cast_from<float>(out, out_type, in, n, scale);
	else if (in_type == K_BF16)
		cast_from<Bf16>(out, out_type, in, n, scale);
	else
		cast_from<F16>(out, out_type, in, n, scale);
}

void k_device_cast(void *out, KDType out_type, const void *in, KDType in_type, int64_t n)
{
	cast_any(out, out_type, in, in_type, n, 1);
}

void k_device_scale(void *x, KDType type, int64_t n, float scale) { cast_any(x, type, x, type, n, scale); }

/* ---- what is not finite ---- */

/* Keeps the least index as an unsigned number, so that -1 (none) is the largest. */
template <class B>
static __global__ void __launch_bounds__(FLAT_BLOCK)
not_finite(int64_t *nan, int64_t *inf, const B *x, int64_t n, B exponent,
	B fraction)
{
	GRID_STRIDE(i, n) {
		if ((x[i] & exponent) != exponent)
			continue;
		int64_t *at = x[i] & fraction ? nan : inf;
		if ((unsigned long long)i < *reinterpret_cast<volatile unsigned long long *>(at))
			atomicMin(reinterpret_cast<unsigned long long *>(at), (unsigned long long)i);
	}
}

void k_not_finite(int64_t *nan, int64_t *inf, const void *x, int64_t n, KDType t)
{
	unsigned grid = blocks_for(n, FLAT_BLOCK * PER);
	launched(cudaMemsetAsync(nan, 0xFF, sizeof(*nan), k_stream), "no NaN");
	launched(cudaMemsetAsync(inf, 0xFF, sizeof(*inf), k_stream), "no infinity");
	if (n == 0)
		return;
	if (t == K_F32)
		LAUNCH(not_finite<uint32_t>, grid, FLAT_BLOCK, 0, k_stream, nan, inf, (const uint32_t *)x, n, 0x7f800000u,
			0x7fffffu);
	else if (t == K_F64)
		LAUNCH(not_finite<uint64_t>, grid, FLAT_BLOCK, 0, k_stream, nan, inf, (const uint64_t *)x, n,
			(uint64_t)0x7ff << 52, ((uint64_t)1 << 52) - 1);
	else
		LAUNCH(not_finite<uint16_t>, grid, FLAT_BLOCK, 0, k_stream, nan, inf, (const uint16_t *)x, n,
			(uint16_t)(t == K_F16 ? 0x7c00 : 0x7f80), (uint16_t)(t == K_F16 ? 0x3ff : 0x7f));
}
