/* kernels/cuda/attention.cuh: what the attention kernels share: the problem as kernels get it, and its masks.
 *
 * A key is hidden from a row in two ways.  Limits (row r sees keys below r + shift, and below S) are tested for a
 * whole block.  A bias or a bit of a mask at strides is looked up only where the limits let the key be seen.
 *
 * The factor of a pair is exp(score - log-sum-exp); kernels that compute powers of two have log2(e) in their scale. */
#ifndef SHARDC_CUDA_ATTENTION_CUH
#define SHARDC_CUDA_ATTENTION_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/work.h"

/* Elements from sample to sample, head to head, row to row. */
struct Place { int64_t batch, head, row; };

struct Attention {
	int h, group;          /* query heads; query heads of one kv head */
	int t, s, d, dv;
	int shift;             /* row r sees keys below r + shift */
	float scale, softcap;
	bool empty_nan;
	int mask_kind;         /* K_MASK_ */
	const void *mask;
	int64_t mask_stride[4];
	Place q, k, v, o;      /* a gradient has the strides of its tensor */
};

template <class T> struct Forward { T *o; float *lse; const T *q, *k, *v; };
/* delta and shift (B, H, T) are what row_sums of attention.cu writes: row sums of dy o, and log-sum-exps times the
 * unit of the scores; 0 and infinity for rows that see no key. */
template <class T> struct Backward {
	T *dq, *dk, *dv;
	const T *dy, *q, *k, *v, *o;
	const float *lse, *delta, *shift;
};

/* attention_mma.cu and attention_mma_grad.cu serve 16-bit types on tensor cores, with D and Dv multiples of 8 up to
 * 128 and tensors aligned to 16 bytes.  attention_plain.cu serves everything else.  b: samples, hk: kv heads. */
template <class T> void attention_mma(const Forward<T> &x, const Attention &a, int b);
template <class T> void attention_mma_grad(const Backward<T> &x, const Attention &a, int b, int hk);
template <class T> void attention_plain(const Forward<T> &x, const Attention &a, int b);
template <class T> void attention_plain_grad(const Backward<T> &x, const Attention &a, int b, int hk);

static const float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

__device__ __forceinline__ int64_t head_at(const Place &p, int b, int h) { return b * p.batch + h * p.head; }

/* How many keys row r sees; they are the first ones. */
__device__ __forceinline__ int keys_of(const Attention &a, int r)
{
	int n = r + a.shift;
	return n < 0 ? 0 : n < a.s ? n : a.s;
}

/* The first row that sees key s. */
__device__ __forceinline__ int first_row(const Attention &a, int s)
{
	int r = s + 1 - a.shift;
	return r < 0 ? 0 : r;
}

/* The score of a pair within the limits whose product q k is raw; -inf where a bool mask hides it.  cap gets the
 * derivative of the soft cap. */
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

/* Allows a kernel more dynamic shared memory than the 48 KiB that every kernel may have. */
template <class Kernel> void want_shared(Kernel *kernel, int bytes)
{
	if (bytes > 48 << 10)
		launched(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "attention");
}

#endif
