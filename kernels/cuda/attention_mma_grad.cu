/* kernels/cuda/attention_mma_grad.cu: attention's gradient for 16-bit tensors on tensor cores.
 *
 * Scores are computed twice, once for each side, so that every sum has one owner and one order and nothing is added in
 * memory.  grad_keys: a warp owns 16 keys, computes scores as keys x rows, and sums dk and dv in registers over all
 * rows of all heads that share the keys.  grad_rows: a warp owns query rows and sums dq over keys.  In both, the
 * tensor cores leave the factors and their derivatives in the registers in which the next product takes its left
 * operand.  The rounded derivatives do not contain the scale of the scores; it is applied to the sums. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

enum { WARPS = 4, THREADS = WARPS * WARP, KEYS = 16 * WARPS };

/* grad_keys: TILE is the rows of a tile, HOLD whether the fragments of keys and values stay in registers.  grad_rows:
 * a warp has 16 ROWS rows, a tile TILE_KEYS keys, and HOLD_DY says whether dy's fragments stay in registers.  PLAIN:
 * no mask and no soft cap, whose arithmetic needs registers, too. */
template <int D, bool PLAIN> struct GradShape;
template <bool PLAIN> struct GradShape<64, PLAIN> {
	static constexpr int TILE = PLAIN ? 64 : 32, ROWS = PLAIN ? 2 : 1, TILE_KEYS = 32;
	static constexpr bool HOLD = true, HOLD_DY = !PLAIN;
};
template <bool PLAIN> struct GradShape<128, PLAIN> {
	static constexpr int TILE = 32, ROWS = 1, TILE_KEYS = 32;
	static constexpr bool HOLD = false, HOLD_DY = true;
};

/* s: a raw score -> its factor.  ds: dy v -> the derivative of the score, without the scale.  test: whether the pair
 * may be hidden. */
template <class T, bool PLAIN> __device__ __forceinline__ void differentiate(float &s, float &ds, const Attention &a,
	int64_t mask_head, bool test, int row, int key, float delta, float shift)
{
	if constexpr (PLAIN) {
		s = exp2_fast(s * (a.scale * LOG2_E) - shift);
		if (test && key >= keys_of(a, row))
			s = 0;
		ds = s * (ds - delta);
	} else {
		float cap = 1;
		bool seen = row < a.t && key < keys_of(a, row);
		s = !seen ? 0 : exp2_fast(score<T>(a, mask_head, row, key, s, cap) * LOG2_E - shift);
		ds = s * (ds - delta) * cap;
	}
}

/* Begins to copy a tile of rows with their delta and shift. */
template <class T, int D, int TILE> __device__ __forceinline__ void rows_begin(T *tile, float *known,
	const Backward<T> &x, const Attention &a, int b, int h, int t0)
{
	int64_t row = ((int64_t)b * a.h + h) * a.t;
	tile_begin<TILE, D, THREADS>(tile, x.q + head_at(a.q, b, h), a.q.row, t0, a.t, a.d);
	tile_begin<TILE, D, THREADS>(tile + TILE * D, x.dy + head_at(a.o, b, h), a.o.row, t0, a.t, a.dv);
	int i = (int)threadIdx.x;
	if (i < 2 * TILE) {
		int at = t0 + i % TILE;
		copy4_async(known + i, (i < TILE ? x.delta : x.shift) + row + (at < a.t ? at : 0), at >= a.t);
	}
}

/* One block computes dk and dv of 64 keys of one kv head. */
template <class T, int D, bool PLAIN> static __global__ void __launch_bounds__(THREADS) grad_keys(Backward<T> x,
	Attention a, int heads, int blocks)
{
	using Of = GradShape<D, PLAIN>;
	constexpr int TILE = Of::TILE, NT = TILE / 8, KS = D / 16;
	SHARED(T, tiles); /* k, v, then two tiles each of q and dy, then two of delta and shift */
	float *known = reinterpret_cast<float *>(tiles + (2 * KEYS + 4 * TILE) * D);
	int s0 = (int)blockIdx.x % blocks * KEYS, head = (int)blockIdx.x / blocks, hk = head % heads, b = head / heads;
	int lane = (int)threadIdx.x % WARP, mine = (int)threadIdx.x / WARP * 16, col = lane % 4 * 2;
	int tile0 = first_row(a, s0) / TILE, all = (a.t + TILE - 1) / TILE, tiles_each = all > tile0 ? all - tile0 : 0;
	float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
	uint32_t k[1][KS][4], v[1][KS][4];
	tile_begin<KEYS, D, THREADS>(tiles, x.k + head_at(a.k, b, hk), a.k.row, s0, a.s, a.d);
	tile_begin<KEYS, D, THREADS>(tiles + KEYS * D, x.v + head_at(a.v, b, hk), a.v.row, s0, a.s, a.dv);
	for (int i = -1; i < a.group * tiles_each; i++) {
		T *now = tiles + (2 * KEYS + (i & 1) * 2 * TILE) * D, *next = tiles + (2 * KEYS + (~i & 1) * 2 * TILE) * D;
		copies_wait();
		__syncthreads();
		if (i + 1 < a.group * tiles_each)
			rows_begin<T, D, TILE>(next, known + (~i & 1) * 2 * TILE, x, a, b, hk * a.group + (i + 1) / tiles_each,
				(tile0 + (i + 1) % tiles_each) * TILE);
		if (i < 0) { /* keys and values have arrived */
			if constexpr (Of::HOLD)
				#pragma unroll
				for (int n = 0; n < KS; n++) {
					load_a<D>(k[0][n], tiles, mine, n * 16);
					load_a<D>(v[0][n], tiles + KEYS * D, mine, n * 16);
				}
			continue;
		}
		float s[1][NT][4] = {}, ds[1][NT][4] = {};
		if constexpr (Of::HOLD) {
			product_bt<T, D>(s, k, now);
			product_bt<T, D>(ds, v, now + TILE * D);
		} else {
			product_tiles_bt<T, D>(s, tiles, mine, now);
			product_tiles_bt<T, D>(ds, tiles + KEYS * D, mine, now + TILE * D);
		}
		int h = hk * a.group + i / tiles_each, t0 = (tile0 + i % tiles_each) * TILE;
		int64_t mask_head = b * a.mask_stride[0] + h * a.mask_stride[1];
		bool test = keys_of(a, t0) < (s0 + KEYS < a.s ? s0 + KEYS : a.s);
		const float *delta = known + (i & 1) * 2 * TILE, *shift = delta + TILE;
		#pragma unroll
		for (int n = 0; n < NT; n++)
			#pragma unroll
			for (int e = 0; e < 4; e++) {
				int r = 8 * n + col + e % 2, key = s0 + mine + lane / 4 + e / 2 * 8;
				differentiate<T, PLAIN>(s[0][n][e], ds[0][n][e], a, mask_head, test, t0 + r, key, delta[r], shift[r]);
			}
		product_rounded<T, D>(dv, s, now + TILE * D);
		product_rounded<T, D>(dk, ds, now);
	}
	#pragma unroll
	for (int n = 0; n < D / 2; n++)
		dk[0][n / 4][n % 4] *= a.scale;
	store_rows<T, D>(x.dk + head_at(a.k, b, hk), a.k.row, s0, a.s, a.d, tiles, mine, dk);
	store_rows<T, D>(x.dv + head_at(a.v, b, hk), a.v.row, s0, a.s, a.dv, tiles + KEYS * D, mine, dv);
}

/* One block computes dq of 64 ROWS query rows of one head. */
template <class T, int D, bool PLAIN> static __global__ void __launch_bounds__(THREADS) grad_rows(Backward<T> x,
	Attention a, int blocks)
{
	using Of = GradShape<D, PLAIN>;
	constexpr int MT = Of::ROWS, TILE = Of::TILE_KEYS, NT = TILE / 8, KS = D / 16, ROWS = 16 * MT * WARPS;
	SHARED(T, tiles); /* q, dy, then two tiles each of k and v */
	int h = (int)blockIdx.x / blocks % a.h, b = (int)blockIdx.x / blocks / a.h, lane = (int)threadIdx.x % WARP;
	int t0 = (blocks - 1 - (int)blockIdx.x % blocks) * ROWS, mine = (int)threadIdx.x / WARP * 16 * MT;
	const T *keys = x.k + head_at(a.k, b, h / a.group), *values = x.v + head_at(a.v, b, h / a.group);
	int end = keys_of(a, (t0 + ROWS < a.t ? t0 + ROWS : a.t) - 1), r = t0 + mine + lane / 4;
	int64_t mask_head = b * a.mask_stride[0] + h * a.mask_stride[1];
	float dq[MT][D / 8][4] = {}, delta[MT][2], shift[MT][2];
	uint32_t q[MT][KS][4], dy[MT][KS][4];
	#pragma unroll
	for (int i = 0; i < 2 * MT; i++) {
		int row = r + 8 * i;
		int64_t at = ((int64_t)b * a.h + h) * a.t + row;
		delta[i / 2][i % 2] = row < a.t ? x.delta[at] : 0;
		shift[i / 2][i % 2] = row < a.t ? x.shift[at] : INFINITY;
	}
	tile_begin<ROWS, D, THREADS>(tiles, x.q + head_at(a.q, b, h), a.q.row, t0, a.t, a.d);
	tile_begin<ROWS, D, THREADS>(tiles + ROWS * D, x.dy + head_at(a.o, b, h), a.o.row, t0, a.t, a.dv);
	for (int s0 = -TILE, turn = 1; s0 < end; s0 += TILE, turn ^= 1) {
		T *now = tiles + (2 * ROWS + turn * 2 * TILE) * D, *next = tiles + (2 * ROWS + (turn ^ 1) * 2 * TILE) * D;
		copies_wait();
		__syncthreads();
		if (s0 + TILE < end) {
			tile_begin<TILE, D, THREADS>(next, keys, a.k.row, s0 + TILE, a.s, a.d);
			tile_begin<TILE, D, THREADS>(next + TILE * D, values, a.v.row, s0 + TILE, a.s, a.dv);
		}
		if (s0 < 0) { /* the rows have arrived */
			#pragma unroll
			for (int i = 0; i < MT * KS; i++) {
				load_a<D>(q[i / KS][i % KS], tiles, mine + i / KS * 16, i % KS * 16);
				if constexpr (Of::HOLD_DY)
					load_a<D>(dy[i / KS][i % KS], tiles + ROWS * D, mine + i / KS * 16, i % KS * 16);
			}
			continue;
		}
		float s[MT][NT][4] = {}, ds[MT][NT][4] = {};
		product_bt<T, D>(s, q, now);
		if constexpr (Of::HOLD_DY)
			product_bt<T, D>(ds, dy, now + TILE * D);
		else
			product_tiles_bt<T, D>(ds, tiles + ROWS * D, mine, now + TILE * D);
		bool test = s0 + TILE > keys_of(a, t0);
		#pragma unroll
		for (int m = 0; m < MT; m++)
			#pragma unroll
			for (int n = 0; n < NT; n++)
				#pragma unroll
				for (int e = 0; e < 4; e++)
					differentiate<T, PLAIN>(s[m][n][e], ds[m][n][e], a, mask_head, test, r + 16 * m + e / 2 * 8,
						s0 + 8 * n + lane % 4 * 2 + e % 2, delta[m][e / 2], shift[m][e / 2]);
		product_rounded<T, D>(dq, ds, now);
	}
	#pragma unroll
	for (int m = 0; m < MT; m++)
		#pragma unroll
		for (int n = 0; n < D / 2; n++)
			dq[m][n / 4][n % 4] *= a.scale;
	store_rows<T, D>(x.dq + head_at(a.q, b, h), a.q.row, t0, a.t, a.d, tiles, mine, dq);
}

template <class T, int D, bool PLAIN> static void launch(const Backward<T> &x, const Attention &a, int b, int hk)
{
	using Of = GradShape<D, PLAIN>;
	constexpr int ROWS = 16 * Of::ROWS * WARPS, TILE = Of::TILE;
	constexpr int keys_bytes = (2 * KEYS + 4 * TILE) * D * (int)sizeof(T) + 4 * TILE * (int)sizeof(float);
	constexpr int rows_bytes = (2 * ROWS + 4 * Of::TILE_KEYS) * D * (int)sizeof(T);
	unsigned key_blocks = (unsigned)ceil_div(a.s, KEYS), row_blocks = (unsigned)ceil_div(a.t, ROWS);
	want_shared(grad_keys<T, D, PLAIN>, keys_bytes);
	want_shared(grad_rows<T, D, PLAIN>, rows_bytes);
	if (key_blocks > 0)
		LAUNCH((grad_keys<T, D, PLAIN>), b * hk * key_blocks, THREADS, keys_bytes, k_stream, x, a, hk, (int)key_blocks);
	if (row_blocks > 0)
		LAUNCH((grad_rows<T, D, PLAIN>), b * a.h * row_blocks, THREADS, rows_bytes, k_stream, x, a, (int)row_blocks);
}

template <class T> void attention_mma_grad(const Backward<T> &x, const Attention &a, int b, int hk)
{
	bool plain = a.mask_kind == K_MASK_NONE && !(a.softcap > 0), small = a.d <= 64 && a.dv <= 64;
	auto run = small ? plain ? launch<T, 64, true> : launch<T, 64, false>
		: plain ? launch<T, 128, true> : launch<T, 128, false>;
	run(x, a, b, hk);
}

template void attention_mma_grad(const Backward<Bf16> &x, const Attention &a, int b, int hk);
template void attention_mma_grad(const Backward<F16> &x, const Attention &a, int b, int hk);
