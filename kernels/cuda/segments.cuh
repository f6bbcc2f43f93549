/* kernels/cuda/segments.cuh: cuts a flat into K_FLAT_CHUNKS chunks, one for each block.
 *
 * Segments are in device memory, so the host does not know their sizes.  Chunks have equal lengths, multiples of 4
 * elements, and reach to the end of the last segment; the flat's start is aligned to 16 bytes.  In a short flat the
 * first blocks have all elements. */
#ifndef SHARDC_CUDA_SEGMENTS_CUH
#define SHARDC_CUDA_SEGMENTS_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/work.h"

typedef struct FlatChunk { int64_t begin, end; } FlatChunk;

enum { FLAT_CHUNK_LEAST = 2048 };

/* Fails where a flat is not aligned to 16 bytes.  Flats, and shards of them, begin at multiples of 64 elements. */
static inline void want_flat(const void *flat, const char *what)
{
	if (!aligned16(flat))
		k_fail("a flat of %s does not begin at a multiple of 16 bytes", what);
}

/* The elements of a chunk. */
__device__ __forceinline__ int64_t flat_chunk_length(const Segment *seg, int64_t n_seg)
{
	int64_t groups = (seg[n_seg - 1].begin + seg[n_seg - 1].length + 3) / 4;
	int64_t length = (groups + K_FLAT_CHUNKS - 1) / K_FLAT_CHUNKS * 4;
	return length > FLAT_CHUNK_LEAST ? length : (int64_t)FLAT_CHUNK_LEAST;
}

/* The chunk of this block. */
__device__ __forceinline__ FlatChunk flat_chunk(const Segment *seg, int64_t n_seg)
{
	int64_t length = flat_chunk_length(seg, n_seg);
	return {length * blockIdx.x, length * (blockIdx.x + 1)};
}

/* The first segment that ends behind `at`; n_seg when there is none. */
__device__ inline int64_t first_segment(const Segment *seg, int64_t n_seg, int64_t at)
{
	int64_t low = 0, high = n_seg;
	while (low < high) {
		int64_t mid = (low + high) / 2;
		if (seg[mid].begin + seg[mid].length > at)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

/* The part of a segment that is in the chunk. */
__device__ __forceinline__ FlatChunk chunk_of_segment(FlatChunk chunk, const Segment &s)
{
	int64_t end = s.begin + s.length;
	return {s.begin > chunk.begin ? s.begin : chunk.begin, end < chunk.end ? end : chunk.end};
}

/* Visits a part by the threads of the block: one(i) for elements before the first and after the last multiple of 4,
 * four(i) for the four elements from i on. */
template <class One, class Four> __device__ __forceinline__ void each_of_part(FlatChunk part, One one, Four four)
{
	int64_t first = (part.begin + 3) / 4 * 4, last = part.end / 4 * 4;
	if (first >= last) {
		for (int64_t i = part.begin + threadIdx.x; i < part.end; i += blockDim.x)
			one(i);
		return;
	}
	if (part.begin + threadIdx.x < first)
		one(part.begin + threadIdx.x);
	#pragma unroll 2
	for (int64_t i = first + 4 * (int64_t)threadIdx.x; i < last; i += 4 * (int64_t)blockDim.x)
		four(i);
	if (last + threadIdx.x < part.end)
		one(last + threadIdx.x);
}

#endif
