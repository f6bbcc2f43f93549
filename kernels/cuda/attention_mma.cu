/* kernels/cuda/attention_mma.cu: attention of 16-bit tensors on tensor cores, by the algorithm of FlashAttention-2
 * (Dao 2023): scores stay in registers.
 *
 * A warp owns 16 or 32 query rows from beginning to end.  The tensor cores leave its scores in the registers in which
 * the product with the values takes its left operand, so they are rounded and used there; the maximum and the sum of a
 * row concern four neighbouring lanes.  Keys and values pass through shared memory in two tiles: one is computed with
 * while the other arrives. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

enum { WARPS = 4, THREADS = WARPS * WARP };

/* By head size, what fits in registers: query rows (a warp has 16 ROWS) and keys of a tile. */
template <int D, Kind KIND> struct ForwardShape;
template <Kind KIND> struct ForwardShape<64, KIND> {
	static constexpr int ROWS = KIND == PLAIN ? 2 : 1, KEYS = 64;
	static constexpr bool HOLD_Q = true;
};
template <Kind KIND> struct ForwardShape<128, KIND> {
	static constexpr int ROWS = KIND == PLAIN ? 2 : 1, KEYS = 32;
	static constexpr bool HOLD_Q = false;
};

/* Turns raw scores into what `power` takes, -inf where a key is hidden.  r: the row of the lane's first score. */
template <class T, Kind KIND, int MT, int NT> __device__ __forceinline__ void hide(float (&s)[MT][NT][4],
	const Attention &a, int b, int64_t mask_head, int r, int key)
{
	#pragma unroll
	for (int m = 0; m < MT; m++)
		#pragma unroll
		for (int e = 0; e < 4; e++) {
			int row = r + 16 * m + e / 2 * 8, begin = first_key(a, row), end = row < a.t ? end_key(a, row) : 0;
			#pragma unroll
			for (int n = 0; n < NT; n++) {
				int at = key + 8 * n + e % 2;
				float cap, x = s[m][n][e];
				bool seen = at >= begin && at < end && (KIND == PLAIN || same_document(a, b, row, at));
				s[m][n][e] = !seen ? -INFINITY : KIND == PLAIN ? x : score<T>(a, mask_head, row, at, x, cap);
			}
		}
}

/* 2^(unit (score - max)); base is max, times unit where scores are raw. */
template <Kind KIND> __device__ __forceinline__ float power(float score, float base, float unit)
{
	return exp2_fast(KIND == PLAIN ? score * unit - base : (score - base) * unit);
}

/* Turns the scores of a tile into factors 2^(unit (score - max)), and rescales o, sum and max to the new maximum. */
template <Kind KIND, int MT, int NT, int OT> __device__ __forceinline__ void soften(float (&s)[MT][NT][4],
	float (&o)[MT][OT][4], float (&max)[MT][2], float (&sum)[MT][2], float unit)
{
	#pragma unroll
	for (int m = 0; m < MT; m++)
		#pragma unroll
		for (int half = 0; half < 2; half++) {
			float top = max[m][half];
			#pragma unroll
			for (int n = 0; n < NT; n++)
				top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
			top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
			top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
			float base = top == -INFINITY ? 0 : KIND == PLAIN ? top * unit : top, part = 0;
			float keep = power<KIND>(max[m][half], base, unit);
			max[m][half] = top;
			#pragma unroll
			for (int n = 0; n < NT; n++)
				#pragma unroll
				for (int e = 2 * half; e < 2 * half + 2; e++) {
					s[m][n][e] = power<KIND>(s[m][n][e], base, unit);
					part += s[m][n][e];
				}
			sum[m][half] = sum[m][half] * keep + part;
			#pragma unroll
			for (int n = 0; n < OT; n++) {
				o[m][n][2 * half] *= keep;
				o[m][n][2 * half + 1] *= keep;
			}
		}
}

/* Drops factors of a tile. */
template <int MT, int NT> __device__ __forceinline__ void drop(float (&s)[MT][NT][4], const Attention &a,
	const Chance &chance, int r, int key)
{
	#pragma unroll
	for (int m = 0; m < MT; m++)
		#pragma unroll
		for (int n = 0; n < NT; n++) {
			uint32_t keep = keep_rows(a, chance, r + 16 * m, key + 8 * n);
			#pragma unroll
			for (int e = 0; e < 4; e++)
				s[m][n][e] = keep >> e & 1 ? s[m][n][e] * a.kept : 0;
		}
}

/* Divides o by the sums and fills rows that see no key.  scale: of max.  lse: that of row 0, or NULL. */
template <int MT, int OT> __device__ __forceinline__ void finish(float (&o)[MT][OT][4], const float (&max)[MT][2],
	const float (&sum)[MT][2], float scale, const Attention &a, float *lse, int r)
{
	#pragma unroll
	for (int m = 0; m < MT; m++)
		#pragma unroll
		for (int half = 0; half < 2; half++) {
			float all = sum[m][half];
			all += __shfl_xor_sync(0xFFFFFFFFu, all, 1);
			all += __shfl_xor_sync(0xFFFFFFFFu, all, 2);
			bool empty = max[m][half] == -INFINITY;
			float part = empty ? 0 : 1 / all;
			#pragma unroll
			for (int n = 0; n < OT; n++)
				#pragma unroll
				for (int e = 2 * half; e < 2 * half + 2; e++)
					o[m][n][e] = empty && a.empty_nan ? NAN : o[m][n][e] * part;
			int row = r + 16 * m + 8 * half;
			if (lse && threadIdx.x % 4 == 0 && row < a.t)
				lse[row] = empty ? -INFINITY : max[m][half] * scale + log2f(all) * LN_2;
		}
}

/* Begins to copy a tile of keys and one of values, whose own_chunks k and v are. */
template <class T, int D, int KEYS> __device__ __forceinline__ void keys_begin(T *tile, const T *k, const T *v,
	const Attention &a, int s0)
{
	tile_next<KEYS, D, THREADS>(tile, k, a.k.row, a.s - s0, a.d);
	tile_next<KEYS, D, THREADS>(tile + KEYS * D, v, a.v.row, a.s - s0, a.dv);
}

/* One block computes 64 ROWS query rows of one head.  The blocks of a head are neighbours; the one with the most keys
 * comes first. */
template <class T, int D, Kind KIND> static __global__ void __launch_bounds__(THREADS) forward(Forward<T> x,
	Attention a, int blocks)
{
	using Of = ForwardShape<D, KIND>;
	constexpr int MT = Of::ROWS, KEYS = Of::KEYS, NT = KEYS / 8, KS = D / 16, ROWS = 16 * MT * WARPS;
	SHARED(T, tiles); /* q, then two tiles each of k and v */
	int h = (int)blockIdx.x / blocks % a.h, b = (int)blockIdx.x / blocks / a.h, lane = (int)threadIdx.x % WARP;
	int t0 = (blocks - 1 - (int)blockIdx.x % blocks) * ROWS, mine = (int)threadIdx.x / WARP * 16 * MT;
	if (KIND == MASKED && !head_wanted(a, b, h))
		return;
	const T *k = own_chunk<D>(x.k + head_at(a.k, b, h / a.group), a.k.row);
	const T *v = own_chunk<D>(x.v + head_at(a.v, b, h / a.group), a.v.row);
	int64_t mask_head = b * a.mask_stride[0] + h * a.mask_stride[1];
	int end = end_key(a, (t0 + ROWS < a.t ? t0 + ROWS : a.t) - 1), r = t0 + mine + lane / 4;
	Ids ids = KIND != PLAIN && a.ids ? ids_of(a, b, t0, ROWS) : Ids{};
	Chance chance = KIND == DROPPED ? chance_of(a, b, h) : Chance{};
	float scale = KIND == PLAIN ? a.scale : 1, unit = scale * LOG2_E;
	float o[MT][D / 8][4] = {}, max[MT][2], sum[MT][2] = {};
	uint32_t q[MT][KS][4];
	#pragma unroll
	for (int m = 0; m < MT; m++)
		max[m][0] = max[m][1] = -INFINITY;
	tile_begin<ROWS, D, THREADS>(tiles, x.q + head_at(a.q, b, h), a.q.row, t0, a.t, a.d);
	int first = first_key(a, t0) / KEYS * KEYS;
	first = KIND == PLAIN ? first : next_tile<KEYS>(a, b, ids, first, end);
	k += first * a.k.row;
	v += first * a.v.row;
	copies_wait();
	__syncthreads();
	if (first < end)
		keys_begin<T, D, KEYS>(tiles + ROWS * D, k, v, a, first);
	if constexpr (Of::HOLD_Q)
		#pragma unroll
		for (int i = 0; i < MT * KS; i++)
			load_a<D>(q[i / KS][i % KS], tiles, mine + i / KS * 16, i % KS * 16);
	for (int s0 = first, next, turn = 0; s0 < end; s0 = next, turn ^= 1) {
		T *now = tiles + ROWS * D + turn * 2 * KEYS * D, *then = tiles + ROWS * D + (turn ^ 1) * 2 * KEYS * D;
		copies_wait();
		__syncthreads();
		next = KIND == PLAIN ? s0 + KEYS : next_tile<KEYS>(a, b, ids, s0 + KEYS, end);
		k += (next - s0) * a.k.row;
		v += (next - s0) * a.v.row;
		if (next < end)
			keys_begin<T, D, KEYS>(then, k, v, a, next);
		float s[MT][NT][4] = {};
		if constexpr (Of::HOLD_Q)
			product_bt<T, D>(s, q, now);
		else
			product_tiles_bt<T, D>(s, tiles, mine, now);
		if (KIND != PLAIN || s0 + KEYS > end_key(a, t0) || s0 < first_key(a, t0 + ROWS - 1))
			hide<T, KIND>(s, a, b, mask_head, r, s0 + lane % 4 * 2);
		soften<KIND>(s, o, max, sum, unit);
		if constexpr (KIND == DROPPED)
			drop(s, a, chance, r, s0 + lane % 4 * 2);
		product_rounded<T, D>(o, s, now + KEYS * D);
	}
	finish(o, max, sum, scale, a, x.lse ? x.lse + ((int64_t)b * a.h + h) * a.t : NULL, r);
	store_rows<T, D>(x.o + head_at(a.o, b, h), a.o.row, t0, a.t, a.dv, tiles, mine, o);
}

template <class T, int D, Kind KIND> static void launch(const Forward<T> &x, const Attention &a, int b)
{
	using Of = ForwardShape<D, KIND>;
	constexpr int ROWS = 16 * Of::ROWS * WARPS, bytes = (ROWS + 4 * Of::KEYS) * D * (int)sizeof(T);
	int blocks = (int)ceil_div(a.t, ROWS);
	want_shared(forward<T, D, KIND>, bytes);
	LAUNCH((forward<T, D, KIND>), (unsigned)(b * a.h * blocks), THREADS, bytes, k_stream, x, a, blocks);
}

template <class T> void attention_mma(const Forward<T> &x, const Attention &a, int b)
{
	static void (*const runs[2][3])(const Forward<T> &, const Attention &, int) = {
		{launch<T, 64, PLAIN>, launch<T, 64, MASKED>, launch<T, 64, DROPPED>},
		{launch<T, 128, PLAIN>, launch<T, 128, MASKED>, launch<T, 128, DROPPED>}};
	Kind kind = kind_of(a); /* raw scores are compared before a positive scale only */
	runs[a.d > 64 || a.dv > 64][kind == PLAIN && !(a.scale > 0) ? MASKED : kind](x, a, b);
}

template void attention_mma(const Forward<Bf16> &x, const Attention &a, int b);
template void attention_mma(const Forward<F16> &x, const Attention &a, int b);
