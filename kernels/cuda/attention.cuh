/* kernels/cuda/attention.cuh: what the attention kernels share: the problem as kernels get it, its masks, and the
 * random numbers of its dropout.
 *
 * A key is hidden from a row in three ways.  The band (row r sees keys from r - left to r + right, of those there are)
 * and documents are tested for a whole block first: blocks outside of the band, and those whose documents are all below
 * the least or above the largest of the rows, are skipped.  A bias or a bit of a mask at strides is looked up only
 * where these let the key be seen.
 *
 * The factor of a pair is exp(score - log-sum-exp).  Kernels that compute powers of two have log2(e) in their scale
 * where no mask is; times log2(e), the huge numbers of a mask would overflow or round differently. */
#ifndef SHARDC_CUDA_ATTENTION_CUH
#define SHARDC_CUDA_ATTENTION_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/work.h"
#include "kernels/place.h"
#include "kernels/weights.h"

struct Attention {
	int h, group;          /* query heads; query heads of one kv head */
	int t, s, d, dv;
	int left, right;       /* at most +-2^30 */
	float scale, softcap;
	bool empty_nan;
	int mask_kind;         /* K_MASK_ */
	const void *mask;
	int64_t mask_stride[4];
	Place q, k, v, o;      /* o: of dy, too */
	Place grad_q, grad_k, grad_v;
	const void *ids;       /* documents, or NULL; as k_attention_* takes them */
	bool ids32;
	int64_t id_stride;
	float kept;            /* the factor of weights that dropout keeps; 0 = no dropout */
	uint32_t threshold;
	uint64_t id;
	int64_t heads, pre, rows;
	const StepScalars *scalars;
	const int *redo;       /* (B, HK), of a mask: 0 where kv heads are left as they are; NULL = all are computed */
};

template <class T> struct Forward { T *o; float *lse; const T *q, *k, *v; };
/* delta, shift and share (B, H, T) are what attention.cu computes of rows: sums of dy o; log-sum-exps times the unit of
 * the scores; what factors are multiplied with, 1 but for coarse rows.  0, infinity and 1 for rows that see no key. */
template <class T> struct Backward {
	T *dq, *dk, *dv;
	const T *dy, *q, *k, *v, *o;
	const float *lse, *delta, *shift, *share;
};

/* attention_mma.cu and attention_mma_grad.cu serve 16-bit types on tensor cores, with D and Dv multiples of 8 up to
 * 128 and all rows aligned to 16 bytes.  attention_plain.cu serves everything else.  b: samples, hk: kv heads. */
template <class T> void attention_mma(const Forward<T> &x, const Attention &a, int b);
template <class T> void attention_mma_grad(const Backward<T> &x, const Attention &a, int b, int hk);
template <class T> void attention_plain(const Forward<T> &x, const Attention &a, int b);
template <class T> void attention_plain_grad(const Backward<T> &x, const Attention &a, int b, int hk);

/* Of masked attentions that a library has computed, in attention.cu: computes all rows and keys of those kv heads anew
 * that have a row whose log-sum-exp is coarse (K_LSE_COARSE), -inf or NaN.  The others' results stay as they are.
 * redo: scratch, an int for each kv head of each sample.  Heads and rows as attention_mma takes them. */
void attention_redo(KDType type, uint16_t *o, float *lse, const uint16_t *q, const uint16_t *k, const uint16_t *v,
	const void *mask, const KAttention *a, int *redo);
void attention_grad_redo(KDType type, uint16_t *dq, uint16_t *dk, uint16_t *dv, const uint16_t *dy, const uint16_t *q,
	const uint16_t *k, const uint16_t *v, const void *mask, const uint16_t *o, const float *lse, const KAttention *a,
	int *redo, void *work);

/* What the kernels for tensor cores do besides the products and the band; each does what those before it do.  Registers
 * are scarce, so there is a kernel for each. */
enum Kind { PLAIN, MASKED /* masks, documents, soft caps */, DROPPED };
static inline Kind kind_of(const Attention &a)
{
	return a.kept != 0 ? DROPPED : a.mask_kind != K_MASK_NONE || a.softcap > 0 || a.ids ? MASKED : PLAIN;
}

static const float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

/* Whether a head of q is computed. */
__device__ __forceinline__ bool head_wanted(const Attention &a, int b, int h)
{
	return !a.redo || a.redo[(b * a.h + h) / a.group];
}

__device__ __forceinline__ int64_t head_at(const Place &p, int b, int h) { return b * p.batch + h * p.head; }

/* The band: row r sees keys from first_key to before end_key; rows from first_row to before end_row see key s. */
__device__ __forceinline__ int within(int x, int end) { return x < 0 ? 0 : x < end ? x : end; }
__device__ __forceinline__ int first_key(const Attention &a, int r) { return within(r - a.left, a.s); }
__device__ __forceinline__ int end_key(const Attention &a, int r) { return within(r + a.right + 1, a.s); }
__device__ __forceinline__ int first_row(const Attention &a, int s) { return within(s - a.right, a.t); }
__device__ __forceinline__ int end_row(const Attention &a, int s) { return within(s + a.left + 1, a.t); }

/* ---- documents ---- */

__device__ __forceinline__ int64_t id_of(const Attention &a, int b, int i)
{
	int64_t at = b * a.id_stride + i;
	return a.ids32 ? static_cast<const int32_t *>(a.ids)[at] : static_cast<const int64_t *>(a.ids)[at];
}

/* Whether a key that the band shows is of the row's document. */
__device__ __forceinline__ bool same_document(const Attention &a, int b, int r, int s)
{
	return !a.ids || id_of(a, b, r) == id_of(a, b, s);
}

struct Ids { int64_t low, high; };

/* The least and the largest document at positions [first, first + n) below S, for all lanes of a warp. */
__device__ __forceinline__ Ids ids_of(const Attention &a, int b, int first, int n)
{
	Ids x = {INT64_MAX, INT64_MIN};
	for (int i = first + (int)threadIdx.x % WARP; i < first + n && i < a.s; i += WARP) {
		int64_t id = id_of(a, b, i);
		x.low = id < x.low ? id : x.low;
		x.high = id > x.high ? id : x.high;
	}
	for (int d = WARP / 2; d > 0; d /= 2) {
		int64_t low = __shfl_xor_sync(0xFFFFFFFFu, x.low, d), high = __shfl_xor_sync(0xFFFFFFFFu, x.high, d);
		x.low = low < x.low ? low : x.low;
		x.high = high > x.high ? high : x.high;
	}
	return x;
}

/* The first of the tiles of N positions at `at`, at + N, .. below `end` that may have a document of `of`, for whole
 * warps; a number of at least `end` if there is none. */
template <int N> __device__ __forceinline__ int next_tile(const Attention &a, int b, const Ids &of, int at, int end)
{
	for (; a.ids && at < end; at += N) {
		Ids x = ids_of(a, b, at, N);
		if (x.low <= of.high && of.low <= x.high)
			break;
	}
	return at;
}

/* ---- dropout ---- */

/* The random numbers of a head's weights: weight (r,s) has inner index first + r*S + s. */
struct Chance { uint64_t key, row, step; int64_t first; };

__device__ __forceinline__ Chance chance_of(const Attention &a, int b, int h)
{
	if (a.kept == 0)
		return {};
	WeightsAt at = weights_at((int64_t)b * a.h + h, a.heads, a.pre, a.rows, (int64_t)a.t * a.s);
	int64_t row = at.row + (a.rows > 0 ? a.scalars->sample0 : 0);
	return {philox_key(a.scalars->seed, a.id), (uint64_t)row, a.scalars->rng_step, at.inner};
}

/* Bit i: whether dropout keeps weight (r, s + i), for i < 4. */
__device__ __forceinline__ uint32_t keep4(const Attention &a, const Chance &c, int r, int s)
{
	uint64_t inner = (uint64_t)(c.first + (int64_t)r * a.s + s);
	uint32_t skip = (uint32_t)inner % 4, bits = 0, n[4];
	#pragma unroll 1
	for (uint32_t j = 0; j < (skip ? 2 : 1); j++) {
		philox_block(n, c.key, c.row, inner / 4 + j, c.step);
		#pragma unroll
		for (int k = 0; k < 4; k++)
			bits |= (uint32_t)(n[k] >= a.threshold) << (4 * j + k);
	}
	return bits >> skip & 15;
}

/* Whether dropout keeps the elements of a fragment C of mma.cuh whose first one is weight (r, s).  For whole warps,
 * whose lanes have rows r0 + lane / 4 and keys s0 + 2 (lane % 4), s0 a multiple of 4.  Two lanes share four keys of two
 * rows, so each draws for one row. */
__device__ __forceinline__ uint32_t keep_rows(const Attention &a, const Chance &c, int r, int s)
{
	bool second = s % 4 != 0;
	uint32_t mine = keep4(a, c, second ? r + 8 : r, second ? s - 2 : s), other = __shfl_xor_sync(0xFFFFFFFFu, mine, 1);
	return second ? other >> 2 | (mine >> 2) << 2 : (mine & 3) | (other & 3) << 2;
}

/* The same of a fragment of keys x rows, whose lanes have keys s0 + lane / 4 and rows r0 + 2 (lane % 4).  Four lanes
 * share four keys, twice, of two rows. */
__device__ __forceinline__ uint32_t keep_keys(const Attention &a, const Chance &c, int r, int s)
{
	int lane = (int)threadIdx.x % WARP, part = lane / 4 % 4; /* the element of the fragment that this lane draws for */
	uint32_t mine = keep4(a, c, r + part % 2, s - part + part / 2 * 8), keep = 0;
	#pragma unroll
	for (int e = 0; e < 4; e++)
		keep |= (__shfl_sync(0xFFFFFFFFu, mine, (lane & ~12) | e << 2) >> part & 1) << e;
	return keep;
}

/* ---- scores ---- */

/* The score of a pair that band and documents show, whose product q k is raw; -inf where a bool mask hides it.  cap
 * gets the derivative of the soft cap. */
template <class T> __device__ __forceinline__ float score(const Attention &a, int64_t mask_head, int r, int s,
	float raw, float &cap)
{
	float x = raw * a.scale;
	if (a.softcap > 0) {
		float u = ew_tanh_f32(x / a.softcap);
		x = a.softcap * u;
		cap = 1 - u * u;
	}
	int64_t at = mask_head + r * a.mask_stride[2] + s * a.mask_stride[3];
	if (a.mask_kind == K_MASK_BOOL)
		x = static_cast<const uint8_t *>(a.mask)[at] ? x : -INFINITY;
	else if (a.mask_kind == K_MASK_FLOAT)
		x += static_cast<const float *>(a.mask)[at];
	else if (a.mask_kind == K_MASK_HALF)
		x += (float)widen(static_cast<const T *>(a.mask)[at]);
	return x;
}

#endif
