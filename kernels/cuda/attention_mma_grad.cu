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
 * a warp has 16 ROWS rows, a tile TILE_KEYS keys, and HOLD_DY says whether dy's fragments stay in registers. */
template <int D, Kind KIND> struct GradShape;
template <Kind KIND> struct GradShape<64, KIND> {
	static constexpr int TILE = KIND == PLAIN ? 64 : 32, ROWS = KIND == PLAIN ? 2 : 1, TILE_KEYS = 32;
	static constexpr bool HOLD = true, HOLD_DY = KIND != PLAIN;
};
template <Kind KIND> struct GradShape<128, KIND> {
	static constexpr int TILE = 32, ROWS = 1, TILE_KEYS = 32;
	static constexpr bool HOLD = false, HOLD_DY = true;
};

/* s: a raw score -> its factor.  ds: dy v -> the derivative of the score, without the scale.  test: whether the pair
 * may be hidden.  share: 1 where KIND is PLAIN.  kept: what dropout multiplies the factor with. */
template <class T, Kind KIND> __device__ __forceinline__ void differentiate(float &s, float &ds, const Attention &a,
	int b, int64_t mask_head, bool test, int row, int key, float delta, float shift, float share, float kept)
{
	if constexpr (KIND == PLAIN) {
		s = exp2_fast(s * (a.scale * LOG2_E) - shift);
		if (test && (key >= end_key(a, row) || key < first_key(a, row)))
			s = 0;
		ds = s * (ds - delta);
	} else {
		float cap = 1;
		bool seen = row < a.t && key < end_key(a, row) && key >= first_key(a, row) && same_document(a, b, row, key);
		s = !seen ? 0 : exp2_fast((score<T>(a, mask_head, row, key, s, cap) - shift) * LOG2_E) * share;
		ds = s * ((KIND == DROPPED ? ds * kept : ds) - delta) * cap;
		s = KIND == DROPPED ? s * kept : s;
	}
}

/* The numbers of each row of a tile that grad_keys reads: delta, shift and, but for PLAIN, share. */
template <int TILE, Kind KIND> constexpr int known_of = (KIND == PLAIN ? 2 : 3) * TILE;

/* Begins to copy a tile of rows with these numbers. */
template <class T, int D, int TILE, Kind KIND> __device__ __forceinline__ void rows_begin(T *tile, float *known,
	const Backward<T> &x, const Attention &a, int b, int h, int t0)
{
	int64_t row = ((int64_t)b * a.h + h) * a.t;
	tile_begin<TILE, D, THREADS>(tile, x.q + head_at(a.q, b, h), a.q.row, t0, a.t, a.d);
	tile_begin<TILE, D, THREADS>(tile + TILE * D, x.dy + head_at(a.o, b, h), a.o.row, t0, a.t, a.dv);
	int i = (int)threadIdx.x;
	static_assert(known_of<TILE, KIND> <= THREADS, "a thread copies one number");
	if (i < known_of<TILE, KIND>) {
		int at = t0 + i % TILE;
		const float *from = i < TILE ? x.delta : i < 2 * TILE ? x.shift : x.share;
		copy4_async(known + i, from + row + (at < a.t ? at : 0), at >= a.t);
	}
}

/* The first pair of a head and a tile of rows, of those from `pair` on, that may have a document of `of`. */
template <int TILE> __device__ __forceinline__ int next_rows(const Attention &a, int b, const Ids &of, int pair,
	int tile0, int tiles_each)
{
	if (!a.ids || tiles_each == 0)
		return pair;
	int head = pair / tiles_each, end = (tile0 + tiles_each) * TILE;
	int t0 = next_tile<TILE>(a, b, of, (tile0 + pair % tiles_each) * TILE, end);
	if (t0 >= end && ++head < a.group)
		t0 = next_tile<TILE>(a, b, of, tile0 * TILE, end);
	return t0 < end ? head * tiles_each + t0 / TILE - tile0 : a.group * tiles_each;
}

/* One block computes dk and dv of 64 keys of one kv head. */
template <class T, int D, Kind KIND> static __global__ void __launch_bounds__(THREADS) grad_keys(Backward<T> x,
	Attention a, int heads, int blocks)
{
	using Of = GradShape<D, KIND>;
	constexpr int TILE = Of::TILE, NT = TILE / 8, KS = D / 16, KNOWN = known_of<TILE, KIND>;
	SHARED(T, tiles); /* k, v, then two tiles each of q and dy, then two of known_of */
	float *known = reinterpret_cast<float *>(tiles + (2 * KEYS + 4 * TILE) * D);
	int s0 = (int)blockIdx.x % blocks * KEYS, head = (int)blockIdx.x / blocks, hk = head % heads, b = head / heads;
	int lane = (int)threadIdx.x % WARP, mine = (int)threadIdx.x / WARP * 16, col = lane % 4 * 2;
	if (KIND == MASKED && !head_wanted(a, b, hk * a.group))
		return;
	int last = (s0 + KEYS < a.s ? s0 + KEYS : a.s) - 1, tile0 = first_row(a, s0) / TILE;
	int all = (end_row(a, last) + TILE - 1) / TILE, tiles_each = all > tile0 ? all - tile0 : 0;
	Ids ids = KIND != PLAIN && a.ids ? ids_of(a, b, s0, KEYS) : Ids{};
	float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
	uint32_t k[1][KS][4], v[1][KS][4];
	tile_begin<KEYS, D, THREADS>(tiles, x.k + head_at(a.k, b, hk), a.k.row, s0, a.s, a.d);
	tile_begin<KEYS, D, THREADS>(tiles + KEYS * D, x.v + head_at(a.v, b, hk), a.v.row, s0, a.s, a.dv);
	int next = KIND == PLAIN ? 0 : next_rows<TILE>(a, b, ids, 0, tile0, tiles_each);
	for (int pair = -1, turn = 1; pair < a.group * tiles_each; turn ^= 1) {
		T *now = tiles + (2 * KEYS + turn * 2 * TILE) * D, *then = tiles + (2 * KEYS + (turn ^ 1) * 2 * TILE) * D;
		int i = pair;
		copies_wait();
		__syncthreads();
		pair = next;
		if (next < a.group * tiles_each) {
			rows_begin<T, D, TILE, KIND>(then, known + (turn ^ 1) * KNOWN, x, a, b, hk * a.group + next / tiles_each,
				(tile0 + next % tiles_each) * TILE);
			next = KIND == PLAIN ? next + 1 : next_rows<TILE>(a, b, ids, next + 1, tile0, tiles_each);
		}
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
		bool test = end_key(a, t0) <= last || first_key(a, t0 + TILE - 1) > s0;
		const float *delta = known + turn * KNOWN, *shift = delta + TILE, *share = shift + TILE;
		Chance chance = KIND == DROPPED ? chance_of(a, b, h) : Chance{};
		#pragma unroll
		for (int n = 0; n < NT; n++) {
			uint32_t keep = KIND == DROPPED ? keep_keys(a, chance, t0 + 8 * n + col, s0 + mine + lane / 4) : 0;
			#pragma unroll
			for (int e = 0; e < 4; e++) {
				int r = 8 * n + col + e % 2, key = s0 + mine + lane / 4 + e / 2 * 8;
				differentiate<T, KIND>(s[0][n][e], ds[0][n][e], a, b, mask_head, test, t0 + r, key, delta[r], shift[r],
					KIND == PLAIN ? 1 : share[r], keep >> e & 1 ? a.kept : 0);
			}
		}
		product_rounded<T, D>(dv, s, now + TILE * D);
		product_rounded<T, D>(dk, ds, now);
	}
	#pragma unroll
	for (int n = 0; n < D / 2; n++)
		dk[0][n / 4][n % 4] *= a.scale;
	store_rows<T, D>(x.dk + head_at(a.grad_k, b, hk), a.grad_k.row, s0, a.s, a.d, tiles, mine, dk);
	store_rows<T, D>(x.dv + head_at(a.grad_v, b, hk), a.grad_v.row, s0, a.s, a.dv, tiles + KEYS * D, mine, dv);
}

/* One block computes dq of 64 ROWS query rows of one head. */
template <class T, int D, Kind KIND> static __global__ void __launch_bounds__(THREADS) grad_rows(Backward<T> x,
	Attention a, int blocks)
{
	using Of = GradShape<D, KIND>;
	constexpr int MT = Of::ROWS, TILE = Of::TILE_KEYS, NT = TILE / 8, KS = D / 16, ROWS = 16 * MT * WARPS;
	SHARED(T, tiles); /* q, dy, then two tiles each of k and v */
	int h = (int)blockIdx.x / blocks % a.h, b = (int)blockIdx.x / blocks / a.h, lane = (int)threadIdx.x % WARP;
	int t0 = (blocks - 1 - (int)blockIdx.x % blocks) * ROWS, mine = (int)threadIdx.x / WARP * 16 * MT;
	if (KIND == MASKED && !head_wanted(a, b, h))
		return;
	const T *keys = x.k + head_at(a.k, b, h / a.group), *values = x.v + head_at(a.v, b, h / a.group);
	int last = (t0 + ROWS < a.t ? t0 + ROWS : a.t) - 1, end = end_key(a, last), r = t0 + mine + lane / 4;
	int64_t mask_head = b * a.mask_stride[0] + h * a.mask_stride[1];
	Ids ids = KIND != PLAIN && a.ids ? ids_of(a, b, t0, ROWS) : Ids{};
	Chance chance = KIND == DROPPED ? chance_of(a, b, h) : Chance{};
	float dq[MT][D / 8][4] = {}, delta[MT][2], shift[MT][2], share[MT][2];
	uint32_t q[MT][KS][4], dy[MT][KS][4];
	#pragma unroll
	for (int i = 0; i < 2 * MT; i++) {
		int64_t row = r + 8 * i, at = ((int64_t)b * a.h + h) * a.t + row;
		delta[i / 2][i % 2] = row < a.t ? x.delta[at] : 0;
		shift[i / 2][i % 2] = row < a.t ? x.shift[at] : INFINITY;
		share[i / 2][i % 2] = KIND != PLAIN && row < a.t ? x.share[at] : 1;
	}
	tile_begin<ROWS, D, THREADS>(tiles, x.q + head_at(a.q, b, h), a.q.row, t0, a.t, a.d);
	tile_begin<ROWS, D, THREADS>(tiles + ROWS * D, x.dy + head_at(a.o, b, h), a.o.row, t0, a.t, a.dv);
	int next = first_key(a, t0) / TILE * TILE;
	next = KIND == PLAIN ? next : next_tile<TILE>(a, b, ids, next, end);
	for (int s0 = -1, turn = 1; s0 < end; turn ^= 1) {
		T *now = tiles + (2 * ROWS + turn * 2 * TILE) * D, *then = tiles + (2 * ROWS + (turn ^ 1) * 2 * TILE) * D;
		int at = s0;
		copies_wait();
		__syncthreads();
		s0 = next;
		if (next < end) {
			tile_begin<TILE, D, THREADS>(then, keys, a.k.row, next, a.s, a.d);
			tile_begin<TILE, D, THREADS>(then + TILE * D, values, a.v.row, next, a.s, a.dv);
			next = KIND == PLAIN ? next + TILE : next_tile<TILE>(a, b, ids, next + TILE, end);
		}
		if (at < 0) { /* the rows have arrived */
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
		bool test = at + TILE > end_key(a, t0) || at < first_key(a, last);
		#pragma unroll
		for (int m = 0; m < MT; m++)
			#pragma unroll
			for (int n = 0; n < NT; n++) {
				int key = at + 8 * n + lane % 4 * 2;
				uint32_t keep = KIND == DROPPED ? keep_rows(a, chance, r + 16 * m, key) : 0;
				#pragma unroll
				for (int e = 0; e < 4; e++)
					differentiate<T, KIND>(s[m][n][e], ds[m][n][e], a, b, mask_head, test, r + 16 * m + e / 2 * 8,
						key + e % 2, delta[m][e / 2], shift[m][e / 2], share[m][e / 2], keep >> e & 1 ? a.kept : 0);
			}
		product_rounded<T, D>(dq, ds, now);
	}
	#pragma unroll
	for (int i = 0; i < MT * D / 2; i++)
		dq[i / (D / 2)][i / 4 % (D / 8)][i % 4] *= a.scale;
	store_rows<T, D>(x.dq + head_at(a.grad_q, b, h), a.grad_q.row, t0, a.t, a.d, tiles, mine, dq);
}

template <class T, int D, Kind KIND> static void launch(const Backward<T> &x, const Attention &a, int b, int hk)
{
	using Of = GradShape<D, KIND>;
	constexpr int ROWS = 16 * Of::ROWS * WARPS, TILE = Of::TILE;
	constexpr int known_bytes = 2 * known_of<TILE, KIND> * (int)sizeof(float);
	constexpr int keys_bytes = (2 * KEYS + 4 * TILE) * D * (int)sizeof(T) + known_bytes;
	constexpr int rows_bytes = (2 * ROWS + 4 * Of::TILE_KEYS) * D * (int)sizeof(T);
	unsigned key_blocks = (unsigned)ceil_div(a.s, KEYS), row_blocks = (unsigned)ceil_div(a.t, ROWS);
	want_shared(grad_keys<T, D, KIND>, keys_bytes);
	want_shared(grad_rows<T, D, KIND>, rows_bytes);
	if (key_blocks > 0)
		LAUNCH((grad_keys<T, D, KIND>), b * hk * key_blocks, THREADS, keys_bytes, k_stream, x, a, hk, (int)key_blocks);
	if (row_blocks > 0)
		LAUNCH((grad_rows<T, D, KIND>), b * a.h * row_blocks, THREADS, rows_bytes, k_stream, x, a, (int)row_blocks);
}

template <class T> void attention_mma_grad(const Backward<T> &x, const Attention &a, int b, int hk)
{
	static void (*const runs[2][3])(const Backward<T> &, const Attention &, int, int) = {
		{launch<T, 64, PLAIN>, launch<T, 64, MASKED>, launch<T, 64, DROPPED>},
		{launch<T, 128, PLAIN>, launch<T, 128, MASKED>, launch<T, 128, DROPPED>}};
	runs[a.d > 64 || a.dv > 64][kind_of(a)](x, a, b, hk);
}

template void attention_mma_grad(const Backward<Bf16> &x, const Attention &a, int b, int hk);
template void attention_mma_grad(const Backward<F16> &x, const Attention &a, int b, int hk);
