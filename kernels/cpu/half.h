/* kernels/cpu/half.h: converts runs of bf16 and f16 (raw bits) to f32 and back, by blocks that stay in cache.
 *
 * Rounding is to nearest even, and NaN stays NaN.  Every way to convert gives the same bits, so a program computes the
 * same with any --arch: bf16 uses integer arithmetic that compilers vectorise (the processor's own instruction takes
 * denormals for zero; matmul_amx.c and attention.c use it, whose products do so, too), f16 uses F16C where the
 * processor has it. */
#ifndef SHARDC_CPU_HALF_H
#define SHARDC_CPU_HALF_H

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "kernels/cpu/common.h"
#include "kernels/ew.h"

INLINE int64_t type_bytes(KDType t) { return t == K_F64 ? 8 : t == K_F32 ? 4 : 2; }
INLINE const void *at_element(const void *p, KDType t, int64_t i) { return (const char *)p + i * type_bytes(t); }

INLINE void widen_bf16(float *restrict to, const uint16_t *restrict from, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = ew_cast_bf16_f32(from[i]);
}

INLINE void widen_f16(float *restrict to, const uint16_t *restrict from, int64_t n)
{
	int64_t i = 0;
#if defined(__F16C__)
	for (; i + 8 <= n; i += 8)
		_mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + i))));
#endif
	for (; i < n; i++)
		to[i] = ew_cast_f16_f32(from[i]);
}

INLINE void narrow_bf16(uint16_t *restrict to, const float *restrict from, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = ew_cast_f32_bf16(from[i]);
}

INLINE void narrow_f16(uint16_t *restrict to, const float *restrict from, int64_t n)
{
	int64_t i = 0;
#if defined(__F16C__)
	for (; i + 8 <= n; i += 8)
		_mm_storeu_si128((__m128i *)(void *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
#endif
	for (; i < n; i++)
		to[i] = ew_cast_f32_f16(from[i]);
}

/* For templates over element types: the type to compute in, and functions that read and round one element.  WIDE, LOAD
 * and STORE follow SUFFIX; only 16-bit types differ from their storage. */
#define WIDE CONCAT(Wide, SUFFIX)
#define LOAD CONCAT(load, SUFFIX)
#define STORE CONCAT(store, SUFFIX)
#define HALF_PLAIN(T, t) typedef T Wide_##t; \
	INLINE T load_##t(T x) { return x; } \
	INLINE T store_##t(T x) { return x; }
K_NUMBERS(HALF_PLAIN)
#undef HALF_PLAIN
typedef float Wide_bf16, Wide_f16;
INLINE float load_bf16(uint16_t x) { return ew_cast_bf16_f32(x); }
INLINE float load_f16(uint16_t x) { return ew_cast_f16_f32(x); }
INLINE uint16_t store_bf16(float x) { return ew_cast_f32_bf16(x); }
INLINE uint16_t store_f16(float x) { return ew_cast_f32_f16(x); }

/* to = from as f32; t is f32, bf16 or f16.  from and to do not overlap. */
INLINE void widen(float *to, const void *from, KDType t, int64_t n)
{
	if (t == K_F32)
		memcpy(to, from, (size_t)n * sizeof(*to));
	else if (t == K_BF16)
		widen_bf16(to, from, n);
	else
		widen_f16(to, from, n);
}

INLINE void narrow(void *to, const float *from, KDType t, int64_t n)
{
	if (t == K_F32)
		memcpy(to, from, (size_t)n * sizeof(*from));
	else if (t == K_BF16)
		narrow_bf16(to, from, n);
	else
		narrow_f16(to, from, n);
}

#endif
