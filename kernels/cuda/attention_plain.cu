/* kernels/cuda/attention_plain.cu: attention and its gradient in f32 arithmetic, for any head size and alignment.
 *
 * Every product is of 64 rows with 64 columns for a block and 4 x 4 for a thread.  Operands pass through shared memory
 * as [k][row] in slices of 32, so sizes have no limit.  A block keeps N * 64 columns of its result; wider results are
 * made by several blocks, which compute the same scores. */
#include "kernels/cuda/attention.cuh"

enum { SIDE = 64, PITCH = SIDE + 4, SLICE = 32, THREADS = 256, KEEP = SIDE / 16 };

/* Rows of a matrix in a block: pointer to row 0, elements from row to row, the first row, and the number of rows of
 * the matrix. */
template <class T> struct Rows { const T *at; int64_t stride; int first, count; };

/* to[k][i] = element k0 + k of row first + i, 0 outside the matrix; k < SLICE, i < SIDE. */
template <class T> __device__ __forceinline__ void slice_columns(float (*to)[PITCH], const Rows<T> &m, int k0,
	int width)
{
	int k = (int)threadIdx.x % SLICE;
	for (int i = (int)threadIdx.x / SLICE; i < SIDE; i += THREADS / SLICE) {
		bool inside = m.first + i < m.count && k0 + k < width;
		to[k][i] = inside ? (float)widen(m.at[(m.first + i) * m.stride + k0 + k]) : 0;
	}
}

/* to[i][c] = element c0 + c of row first + i0 + i, 0 outside the matrix; i < SLICE, c < SIDE. */
template <class T> __device__ __forceinline__ void slice_rows(float (*to)[PITCH], const Rows<T> &m, int i0, int c0,
	int width)
{
	int c = (int)threadIdx.x % SIDE;
	for (int i = (int)threadIdx.x / SIDE; i < SLICE; i += THREADS / SIDE) {
		int row = m.first + i0 + i;
		to[i][c] = row < m.count && c0 + c < width ? (float)widen(m.at[row * m.stride + c0 + c]) : 0;
	}
}

/* s += left right^T over n elements of a slice. */
__device__ __forceinline__ void multiply(float (&s)[KEEP][KEEP], const float (*left)[PITCH],
	const float (*right)[PITCH], int n)
{
	int y = (int)threadIdx.x / 16 * 4, x = (int)threadIdx.x % 16 * 4;
	#pragma unroll 8
	for (int k = 0; k < n; k++) {
		Vec<float, 4> l = load<4>(&left[k][y]), r = load<4>(&right[k][x]);
		#pragma unroll
		for (int i = 0; i < 16; i++)
			s[i / 4][i % 4] += l.at[i / 4] * r.at[i % 4];
	}
}

/* Rows against rows: s = a b^T over `width` elements. */
template <class T> __device__ __forceinline__ void product_bt(float (&s)[KEEP][KEEP], float (*left)[PITCH],
	float (*right)[PITCH], const Rows<T> &a, const Rows<T> &b, int width)
{
	#pragma unroll
	for (int i = 0; i < 16; i++)
		s[i / 4][i % 4] = 0;
	for (int k = 0; k < width; k += SLICE) {
		__syncthreads();
		slice_columns(left, a, k, width);
		slice_columns(right, b, k, width);
		__syncthreads();
		multiply(s, left, right, SLICE);
	}
}

/* c (64 x 64 N) += p b, where p is [k][row] in shared memory and b is 64 rows with columns from c0 on. */
template <int N, class T> __device__ __forceinline__ void product(float (&c)[N][KEEP][KEEP], const float (*p)[PITCH],
	float (*right)[PITCH], const Rows<T> &b, int c0, int width)
{
	for (int k = 0; k < SIDE; k += SLICE)
		#pragma unroll
		for (int n = 0; n < N; n++) {
			__syncthreads();
			slice_rows(right, b, k, c0 + n * SIDE, width);
			__syncthreads();
			multiply(c[n], p + k, right, SLICE);
		}
}

/* Stores what a thread has of a result's columns from c0 on, times scale[row]. */
template <int N, class T> __device__ __forceinline__ void put(T *to, int64_t stride, int first, int rows, int c0,
	int width, const float (&c)[N][KEEP][KEEP], const float (&scale)[KEEP])
{
	int y = first + (int)threadIdx.x / 16 * 4, x = c0 + (int)threadIdx.x % 16 * 4;
	#pragma unroll
	for (int n = 0; n < N; n++)
		#pragma unroll
		for (int i = 0; i < 16; i++) {
			int row = y + i / 4, col = x + n * SIDE + i % 4;
			if (row < rows && col < width)
				to[row * stride + col] = narrow<T>(c[n][i / 4][i % 4] * scale[i / 4]);
		}
}

/* Puts the elements that a thread has at rows y and columns x into shared memory: as to[x][y], the left operand of
 * `product` for rows y; with straight as to[y][x], for rows x. */
__device__ __forceinline__ void put_shared(float (*to)[PITCH], const float (&s)[KEEP][KEEP], bool straight)
{
	int y = (int)threadIdx.x / 16 * 4, x = (int)threadIdx.x % 16 * 4;
	#pragma unroll
	for (int i = 0; i < 16; i++)
		to[straight ? y + i / 4 : x + i % 4][straight ? x + i % 4 : y + i / 4] = s[i / 4][i % 4];
}

/* What the blocks of one head read: its sample, its number, where its mask begins, and the numbers of its dropout. */
struct Head { int b, h; int64_t mask; Chance chance; };

template <bool DROPS> __device__ __forceinline__ Head head_of(const Attention &a, int b, int h)
{
	return {b, h, b * a.mask_stride[0] + h * a.mask_stride[1], DROPS ? chance_of(a, b, h) : Chance{}};
}

/* Whether row r sees key s, without the mask. */
__device__ __forceinline__ bool sees(const Attention &a, const Head &head, int r, int s)
{
	return r < a.t && s >= first_key(a, r) && s < end_key(a, r) && same_document(a, head.b, r, s);
}

/* Reduces over the 16 threads of a row. */
template <class Op> __device__ __forceinline__ float row_reduce(float x, Op op)
{
	for (int d = 8; d > 0; d /= 2)
		x = op(x, __shfl_xor_sync(0xFFFFFFFFu, x, d));
	return x;
}

struct Larger { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };

/* Drops factors of a tile; x, y: the first key and row of this thread. */
__device__ __forceinline__ void drop(float (&s)[KEEP][KEEP], const Attention &a, const Head &head, int y, int x)
{
	#pragma unroll
	for (int i = 0; i < KEEP; i++) {
		uint32_t keep = keep4(a, head.chance, y + i, x);
		#pragma unroll
		for (int j = 0; j < KEEP; j++)
			s[i][j] = keep >> j & 1 ? s[i][j] * a.kept : 0;
	}
}

/* Turns the raw scores of a tile into factors exp(score - max), and rescales c, max and sum to the new maximum. */
template <int N, bool DROPS, class T> __device__ __forceinline__ void soften(float (&s)[KEEP][KEEP],
	float (&c)[N][KEEP][KEEP], float (&max)[KEEP], float (&sum)[KEEP], const Attention &a, const Head &head, int t0,
	int s0)
{
	int y = t0 + (int)threadIdx.x / 16 * 4, x = s0 + (int)threadIdx.x % 16 * 4;
	#pragma unroll
	for (int i = 0; i < KEEP; i++) {
		float top = -INFINITY, part = 0, cap;
		#pragma unroll
		for (int j = 0; j < KEEP; j++) {
			s[i][j] = sees(a, head, y + i, x + j) ? score<T>(a, head.mask, y + i, x + j, s[i][j], cap) : -INFINITY;
			top = fmaxf(top, s[i][j]);
		}
		top = fmaxf(max[i], row_reduce(top, Larger()));
		float base = top == -INFINITY ? 0 : top, keep = expf(max[i] - base);
		#pragma unroll
		for (int j = 0; j < KEEP; j++) {
			s[i][j] = expf(s[i][j] - base);
			part += s[i][j];
		}
		sum[i] = sum[i] * keep + row_reduce(part, Sum());
		max[i] = top;
		#pragma unroll
		for (int j = 0; j < N * KEEP; j++)
			c[j / KEEP][i][j % KEEP] *= keep;
	}
	if constexpr (DROPS)
		drop(s, a, head, y, x);
}

/* One block computes N * 64 columns of the results of 64 query rows of one head. */
template <class T, int N, bool DROPS> static __global__ void __launch_bounds__(THREADS) forward(Forward<T> x,
	Attention a, int blocks)
{
	__shared__ __align__(16) float left[SLICE][PITCH], right[SLICE][PITCH], p[SIDE][PITCH];
	int t0 = (blocks - 1 - (int)blockIdx.x % blocks) * SIDE, c0 = (int)blockIdx.y * N * SIDE;
	Head head = head_of<DROPS>(a, (int)blockIdx.x / blocks / a.h, (int)blockIdx.x / blocks % a.h);
	int b = head.b, h = head.h, y = (int)threadIdx.x / 16 * 4;
	Rows<T> q = {x.q + head_at(a.q, b, h), a.q.row, t0, a.t};
	int end = end_key(a, (t0 + SIDE < a.t ? t0 + SIDE : a.t) - 1);
	Ids ids = a.ids ? ids_of(a, b, t0, SIDE) : Ids{};
	float c[N][KEEP][KEEP] = {}, s[KEEP][KEEP], max[KEEP], sum[KEEP] = {};
	#pragma unroll
	for (int i = 0; i < KEEP; i++)
		max[i] = -INFINITY;
	for (int s0 = first_key(a, t0) / SIDE * SIDE; (s0 = next_tile<SIDE>(a, b, ids, s0, end)) < end; s0 += SIDE) {
		Rows<T> k = {x.k + head_at(a.k, b, h / a.group), a.k.row, s0, a.s};
		Rows<T> v = {x.v + head_at(a.v, b, h / a.group), a.v.row, s0, a.s};
		product_bt(s, left, right, q, k, a.d);
		soften<N, DROPS, T>(s, c, max, sum, a, head, t0, s0);
		put_shared(p, s, false);
		product<N>(c, p, right, v, c0, a.dv);
	}
	#pragma unroll
	for (int i = 0; i < KEEP; i++) {
		bool empty = max[i] == -INFINITY;
		if (x.lse && c0 == 0 && threadIdx.x % 16 == 0 && t0 + y + i < a.t)
			x.lse[((int64_t)b * a.h + h) * a.t + t0 + y + i] = empty ? -INFINITY : max[i] + logf(sum[i]);
		sum[i] = !empty ? 1 / sum[i] : a.empty_nan ? NAN : 0;
	}
	put<N>(x.o + head_at(a.o, b, h), a.o.row, t0, a.t, c0, a.dv, c, sum);
}

/* s: raw scores -> factors.  ds: dy v -> derivatives of q k.  With dropout dy v is multiplied by what the factors are
 * multiplied with in the end. */
template <bool DROPS, class T> __device__ __forceinline__ void differentiate(float (&s)[KEEP][KEEP],
	float (&ds)[KEEP][KEEP], const Backward<T> &x, const Attention &a, const Head &head, int t0, int s0)
{
	int y = t0 + (int)threadIdx.x / 16 * 4, key = s0 + (int)threadIdx.x % 16 * 4;
	#pragma unroll
	for (int i = 0; i < KEEP; i++) {
		uint32_t keep = DROPS ? keep4(a, head.chance, y + i, key) : 0;
		int64_t at = ((int64_t)head.b * a.h + head.h) * a.t + y + i;
		float delta = y + i < a.t ? x.delta[at] : 0, shift = y + i < a.t ? x.shift[at] : 0;
		float share = y + i < a.t ? x.share[at] : 0;
		#pragma unroll
		for (int j = 0; j < KEEP; j++) {
			float cap = 1, kept = !DROPS ? 1 : keep >> j & 1 ? a.kept : 0;
			bool seen = sees(a, head, y + i, key + j);
			s[i][j] = seen ? expf(score<T>(a, head.mask, y + i, key + j, s[i][j], cap) - shift) * share : 0;
			ds[i][j] = s[i][j] * (ds[i][j] * kept - delta) * cap * a.scale;
			s[i][j] *= kept;
		}
	}
}

/* The factors and derivatives of the scores of one tile, in registers. */
template <bool DROPS, class T> __device__ __forceinline__ void grad_tile(float (&s)[KEEP][KEEP],
	float (&ds)[KEEP][KEEP], float (*left)[PITCH], float (*right)[PITCH], const Backward<T> &x, const Attention &a,
	const Head &head, int t0, int s0)
{
	int b = head.b, h = head.h;
	Rows<T> q = {x.q + head_at(a.q, b, h), a.q.row, t0, a.t}, dy = {x.dy + head_at(a.o, b, h), a.o.row, t0, a.t};
	Rows<T> k = {x.k + head_at(a.k, b, h / a.group), a.k.row, s0, a.s};
	Rows<T> v = {x.v + head_at(a.v, b, h / a.group), a.v.row, s0, a.s};
	product_bt(s, left, right, q, k, a.d);
	product_bt(ds, left, right, dy, v, a.dv);
	differentiate<DROPS>(s, ds, x, a, head, t0, s0);
}

/* One block computes N * 64 columns of dk and dv of 64 keys of one kv head, over heads and rows in order. */
template <class T, int N, bool DROPS> static __global__ void __launch_bounds__(THREADS) grad_keys(Backward<T> x,
	Attention a, int heads, int blocks)
{
	__shared__ __align__(16) float left[SLICE][PITCH], right[SLICE][PITCH], p[SIDE][PITCH];
	int s0 = (int)blockIdx.x % blocks * SIDE, c0 = (int)blockIdx.y * N * SIDE;
	int hk = (int)blockIdx.x / blocks % heads, b = (int)blockIdx.x / blocks / heads;
	float dk[N][KEEP][KEEP] = {}, dv[N][KEEP][KEEP] = {}, s[KEEP][KEEP], ds[KEEP][KEEP], one[KEEP];
	Ids ids = a.ids ? ids_of(a, b, s0, SIDE) : Ids{};
	int end = end_row(a, (s0 + SIDE < a.s ? s0 + SIDE : a.s) - 1);
	for (int h = hk * a.group; h < (hk + 1) * a.group; h++) {
		Head head = head_of<DROPS>(a, b, h);
		for (int t0 = first_row(a, s0) / SIDE * SIDE; (t0 = next_tile<SIDE>(a, b, ids, t0, end)) < end; t0 += SIDE) {
			Rows<T> q = {x.q + head_at(a.q, b, h), a.q.row, t0, a.t};
			Rows<T> dy = {x.dy + head_at(a.o, b, h), a.o.row, t0, a.t};
			grad_tile<DROPS>(s, ds, left, right, x, a, head, t0, s0);
			put_shared(p, s, true);
			product<N>(dv, p, right, dy, c0, a.dv);
			__syncthreads();
			put_shared(p, ds, true);
			product<N>(dk, p, right, q, c0, a.d);
		}
	}
	#pragma unroll
	for (int i = 0; i < KEEP; i++)
		one[i] = 1;
	put<N>(x.dk + head_at(a.grad_k, b, hk), a.grad_k.row, s0, a.s, c0, a.d, dk, one);
	put<N>(x.dv + head_at(a.grad_v, b, hk), a.grad_v.row, s0, a.s, c0, a.dv, dv, one);
}

/* One block computes N * 64 columns of dq of 64 query rows of one head. */
template <class T, int N, bool DROPS> static __global__ void __launch_bounds__(THREADS) grad_rows(Backward<T> x,
	Attention a, int blocks)
{
	__shared__ __align__(16) float left[SLICE][PITCH], right[SLICE][PITCH], p[SIDE][PITCH];
	int t0 = (blocks - 1 - (int)blockIdx.x % blocks) * SIDE, c0 = (int)blockIdx.y * N * SIDE;
	Head head = head_of<DROPS>(a, (int)blockIdx.x / blocks / a.h, (int)blockIdx.x / blocks % a.h);
	int b = head.b, h = head.h, end = end_key(a, (t0 + SIDE < a.t ? t0 + SIDE : a.t) - 1);
	Ids ids = a.ids ? ids_of(a, b, t0, SIDE) : Ids{};
	float dq[N][KEEP][KEEP] = {}, s[KEEP][KEEP], ds[KEEP][KEEP], one[KEEP];
	for (int s0 = first_key(a, t0) / SIDE * SIDE; (s0 = next_tile<SIDE>(a, b, ids, s0, end)) < end; s0 += SIDE) {
		Rows<T> k = {x.k + head_at(a.k, b, h / a.group), a.k.row, s0, a.s};
		grad_tile<DROPS>(s, ds, left, right, x, a, head, t0, s0);
		put_shared(p, ds, false);
		product<N>(dq, p, right, k, c0, a.d);
	}
	#pragma unroll
	for (int i = 0; i < KEEP; i++)
		one[i] = 1;
	put<N>(x.dq + head_at(a.grad_q, b, h), a.grad_q.row, t0, a.t, c0, a.d, dq, one);
}

template <class T, int N, bool DROPS> static void launch(const Forward<T> &x, const Attention &a, int b)
{
	int blocks = (int)ceil_div(a.t, SIDE);
	dim3 grid((unsigned)(b * a.h * blocks), (unsigned)ceil_div(a.dv, N * SIDE));
	LAUNCH((forward<T, N, DROPS>), grid, THREADS, 0, k_stream, x, a, blocks);
}

template <class T, int N, bool DROPS> static void launch_grad(const Backward<T> &x, const Attention &a, int b, int hk)
{
	unsigned key_blocks = (unsigned)ceil_div(a.s, SIDE), row_blocks = (unsigned)ceil_div(a.t, SIDE);
	dim3 keys(b * hk * key_blocks, (unsigned)ceil_div(a.d > a.dv ? a.d : a.dv, N * SIDE));
	dim3 rows(b * a.h * row_blocks, (unsigned)ceil_div(a.d, N * SIDE));
	if (keys.x > 0)
		LAUNCH((grad_keys<T, N, DROPS>), keys, THREADS, 0, k_stream, x, a, hk, (int)key_blocks);
	if (rows.x > 0)
		LAUNCH((grad_rows<T, N, DROPS>), rows, THREADS, 0, k_stream, x, a, (int)row_blocks);
}

template <class T> void attention_plain(const Forward<T> &x, const Attention &a, int b)
{
	static void (*const runs[2][2])(const Forward<T> &, const Attention &, int) = {
		{launch<T, 1, false>, launch<T, 1, true>}, {launch<T, 2, false>, launch<T, 2, true>}};
	runs[a.dv > SIDE][a.kept != 0](x, a, b);
}

template <class T> void attention_plain_grad(const Backward<T> &x, const Attention &a, int b, int hk)
{
	static void (*const runs[2][2])(const Backward<T> &, const Attention &, int, int) = {
		{launch_grad<T, 1, false>, launch_grad<T, 1, true>}, {launch_grad<T, 2, false>, launch_grad<T, 2, true>}};
	runs[a.d > SIDE || a.dv > SIDE][a.kept != 0](x, a, b, hk);
}

template void attention_plain(const Forward<float> &x, const Attention &a, int b);
template void attention_plain(const Forward<Bf16> &x, const Attention &a, int b);
template void attention_plain(const Forward<F16> &x, const Attention &a, int b);
template void attention_plain_grad(const Backward<float> &x, const Attention &a, int b, int hk);
template void attention_plain_grad(const Backward<Bf16> &x, const Attention &a, int b, int hk);
template void attention_plain_grad(const Backward<F16> &x, const Attention &a, int b, int hk);
