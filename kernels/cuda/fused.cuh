/* kernels/cuda/fused.cuh: what the kernels of an emitted fused.cu share.
 *
 * A thread computes a few neighbours along the innermost dim and moves them in one access each.  Indices have 32 bits
 * where a tensor has few enough elements.
 *
 * The one idea: a division by a size that all threads know is a product and a shift (Granlund and Montgomery 1994). */
#ifndef SHARDC_CUDA_FUSED_CUH
#define SHARDC_CUDA_FUSED_CUH

#include "kernels/cuda/common.cuh"

enum { FUSED_THREADS = 256 };

/* Computes t / n; with 32-bit indices for t and n below 2^31.  With shift = ceil(log2 n) the factor would be
 * floor(2^(32 + shift) / n) + 1, which has 33 bits: `factor` is without the highest, 2^32, whose product is added as
 * t. */
template <class Index> struct Divider {
	Index n;
	explicit Divider(int64_t by) : n((Index)by) {}
	__device__ __forceinline__ Index of(Index t) const { return t / n; }
};
template <> struct Divider<uint32_t> {
	uint32_t n, factor, shift;
	explicit Divider(int64_t by) : n((uint32_t)by), shift(0)
	{
		while (((uint64_t)1 << shift) < n)
			shift++;
		factor = (uint32_t)(((((uint64_t)1 << shift) - n) << 32) / n + 1);
	}
	__device__ __forceinline__ uint32_t of(uint32_t t) const
	{
		return ((uint32_t)((uint64_t)t * factor >> 32) + t) >> shift;
	}
};

static inline unsigned fused_blocks(int64_t items) { return (unsigned)ceil_div(items, FUSED_THREADS); }
template <class Index> __device__ __forceinline__ Index fused_item()
{
	return (Index)blockIdx.x * FUSED_THREADS + threadIdx.x;
}

#endif
