/* base/philox.h: Philox4x32-10, the counter-based random numbers of dropout and of random ops.
 *
 * A number depends only on (seed, id of the ONNX node; global sample row, index inside the sample, step).  So the
 * number of ranks, recomputation, fusion and threads do not change it.  For x as (pre, rows, post) the inner index of
 * an element is pre_index * post + post_index.  One block holds the four numbers for the inner indices 4i .. 4i+3.  The
 * code is valid C, C++ and CUDA.  Range: row and step below 2^44, inner index below 2^42; beyond that, numbers repeat.
 *
 *	philox_block(b, philox_key(seed, id), row, inner / 4, step);    b[inner % 4] is the element's number
 *	kept = b[inner % 4] >= philox_threshold(p);                     true with probability 1 - p */
#ifndef SHARDC_PHILOX_H
#define SHARDC_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_FN static __host__ __device__ __forceinline__
#else
#define PHILOX_FN static inline
#endif

/* Spreads seed and id over the 64 bits of the key (the finalizer of SplitMix64, applied twice). */
PHILOX_FN uint64_t philox_mix(uint64_t z)
{
	z += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

PHILOX_FN uint64_t philox_key(uint64_t seed, uint64_t id)
{
	return philox_mix(philox_mix(seed) ^ id);
}

/* Ten rounds over counter c with the key (low word k0, high word k1); c is replaced by the result. */
PHILOX_FN void philox_rounds(uint32_t c[4], uint32_t k0, uint32_t k1)
{
	for (int i = 0; i < 10; i++) {
		uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
		uint32_t c1 = c[1], c3 = c[3];
		c[0] = (uint32_t)(b >> 32) ^ c1 ^ k0;
		c[1] = (uint32_t)b;
		c[2] = (uint32_t)(a >> 32) ^ c3 ^ k1;
		c[3] = (uint32_t)a;
		k0 += 0x9e3779b9u;
		k1 += 0xbb67ae85u;
	}
}

PHILOX_FN void philox_block(uint32_t out[4], uint64_t key, uint64_t row, uint64_t inner_div_4, uint64_t step)
{
	out[0] = (uint32_t)inner_div_4;
	out[1] = (uint32_t)row;
	out[2] = (uint32_t)step;
	out[3] = (uint32_t)(inner_div_4 >> 32 & 0xff) | (uint32_t)(row >> 32 & 0xfff) << 8
		| (uint32_t)(step >> 32 & 0xfff) << 20;
	philox_rounds(out, (uint32_t)key, (uint32_t)(key >> 32));
}

/* Elements whose number is below the result are dropped; 2^32 (all of them) for p = 1. */
PHILOX_FN uint64_t philox_threshold(double p)
{
	return p <= 0 ? 0 : p >= 1 ? (uint64_t)1 << 32 : (uint64_t)(p * 4294967296.0);
}

/* A single number in [0, 1). */
PHILOX_FN double philox_uniform(uint64_t seed, uint64_t id, uint64_t row, uint64_t inner, uint64_t step)
{
	uint32_t b[4];
	philox_block(b, philox_key(seed, id), row, inner / 4, step);
	return (double)b[inner % 4] / 4294967296.0;
}

#endif
