/* kernels/cuda/arrive.cuh: the last block of a group joins what all of them made, so that no second kernel is launched
 * (NVIDIA's sample threadFenceReduction). */
#ifndef SHARDC_CUDA_ARRIVE_CUH
#define SHARDC_CUDA_ARRIVE_CUH

#include "kernels/cuda/common.cuh"

/* Whether this block is the last of `blocks` that come here, so that what they wrote can be read, past the nearest
 * cache (__ldcg).  All threads of the block must call it.  *arrived: of this group; 0 before the first block and behind
 * the last one. */
__device__ __forceinline__ bool arrives_last(unsigned *arrived, int64_t blocks)
{
	__shared__ bool last;
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0 && threadIdx.y == 0) {
		last = atomicAdd(arrived, 1u) + 1 == (unsigned)blocks;
		if (last)
			*arrived = 0;
		__threadfence();
	}
	__syncthreads();
	return last;
}

#endif
