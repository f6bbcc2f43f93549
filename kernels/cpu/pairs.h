/* kernels/cpu/pairs.h: bf16 as operands of products of pairs (gemm_pairs): two of them lie in the place of a float. */
#ifndef SHARDC_CPU_PAIRS_H
#define SHARDC_CPU_PAIRS_H

#include "kernels/cpu/gemm.h"
#if defined __AVX512BF16__
#include <immintrin.h>
#endif

typedef uint16_t Half __attribute__((may_alias)); /* bf16 in a buffer of floats */
typedef uint32_t Pair __attribute__((may_alias)); /* two of them, the first one in the lower half */

INLINE void pair_two(Pair *restrict to, const Half *restrict low, const Half *restrict high, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = low[i] | (uint32_t)high[i] << 16;
}

INLINE void pair_one(Pair *restrict to, const Half *restrict low, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = low[i];
}

/* to (ceil(n / 2), width) = pairs of rows of bf16, the last of an odd number with zeros. */
INLINE void pair_rows(float *to, const void *from, int64_t row, int64_t n, int64_t width)
{
	const Half *half = from;
	Pair *pair = (void *)to;
	for (int64_t j = 0; j + 1 < n; j += 2)
		pair_two(pair + j / 2 * width, half + j * row, half + (j + 1) * row, width);
	if (n % 2)
		pair_one(pair + n / 2 * width, half + (n - 1) * row, width);
}

/* weigh_half: half (n) = s, rounded.  weigh_pairs: paired = pairs of the sn rows of s, as in pair_rows, rounded; tb is
 * a multiple of vectors.  Only where vectors multiply bf16; denormals become zero, as products count them. */
#if defined __AVX512BF16__
INLINE void weigh_half(uint16_t *half, const float *s, int64_t n)
{
	for (int64_t i = 0; i < n; i += VW)
		_mm256_storeu_si256((__m256i *)(void *)(half + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(s + i)));
}

INLINE void weigh_pairs(float *paired, const float *s, int64_t tb, int64_t sn)
{
	const __m512i turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
		21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
	for (int64_t j = 0; j < sn; j += 2)
		for (int64_t t = 0; t < tb; t += VW) {
			__m512 low = _mm512_loadu_ps(s + j * tb + t);
			__m512 high = j + 1 < sn ? _mm512_loadu_ps(s + (j + 1) * tb + t) : _mm512_setzero_ps();
			__m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
			_mm512_storeu_si512(paired + j / 2 * tb + t, _mm512_permutexvar_epi16(turns, both));
		}
}
#else
INLINE void weigh_half(uint16_t *half, const float *s, int64_t n) { (void)half, (void)s, (void)n; }
INLINE void weigh_pairs(float *paired, const float *s, int64_t tb, int64_t sn)
{
	(void)paired, (void)s, (void)tb, (void)sn;
}
#endif

#endif
