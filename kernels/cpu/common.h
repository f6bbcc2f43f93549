/* kernels/cpu/common.h: what CPU kernels share: limits of types, walks over indices, maxima, index operands. */
#ifndef SHARDC_CPU_COMMON_H
#define SHARDC_CPU_COMMON_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels/dims.h"

#define INLINE static inline __attribute__((always_inline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define CONCAT_(a, b) a##_##b
#define CONCAT(a, b) CONCAT_(a, b)

/* false for integers */
#define is_nan(x) __builtin_isnan((double)(x))

/* The ends of each type's range: what maxima and minima start from. */
#define LOWEST_f32 (-INFINITY)
#define HIGHEST_f32 INFINITY
#define LOWEST_f64 ((double)-INFINITY)
#define HIGHEST_f64 ((double)INFINITY)
#define LOWEST_bf16 (-INFINITY)
#define HIGHEST_bf16 INFINITY
#define LOWEST_f16 (-INFINITY)
#define HIGHEST_f16 INFINITY
#define LOWEST_i64 INT64_MIN
#define HIGHEST_i64 INT64_MAX
#define LOWEST_i32 INT32_MIN
#define HIGHEST_i32 INT32_MAX
#define LOWEST_i16 INT16_MIN
#define HIGHEST_i16 INT16_MAX
#define LOWEST_i8 INT8_MIN
#define HIGHEST_i8 INT8_MAX
#define LOWEST_u64 0
#define HIGHEST_u64 UINT64_MAX
#define LOWEST_u32 0
#define HIGHEST_u32 UINT32_MAX
#define LOWEST_u16 0
#define HIGHEST_u16 UINT16_MAX
#define LOWEST_u8 0
#define HIGHEST_u8 UINT8_MAX

/* With fewer elements a parallel region costs more than it saves. */
enum { PARALLEL_MIN = 16384 };

INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/* Adds one to the multi-index `at` and returns the new offset under `stride`. */
INLINE int64_t advance(int rank, const int64_t *dim, const int64_t *stride, int64_t *at, int64_t offset)
{
	for (int d = rank - 1; d >= 0; d--) {
		offset += stride[d];
		if (++at[d] < dim[d])
			return offset;
		offset -= dim[d] * stride[d];
		at[d] = 0;
	}
	return offset;
}

/* Columns of rows that lie far apart are fetched ROWS_EARLY rows early: a processor's own prefetching ends with a
 * page. */
enum { ROWS_EARLY = 8 };
INLINE void fetch_early(const void *from, int64_t bytes)
{
	for (int64_t i = 0; i < bytes; i += 64)
		__builtin_prefetch((const char *)from + i);
}

/* The largest of n elements; NaN is ignored.  64 lanes, which compilers vectorise without -ffast-math. */
#define MAX_OF(T, t) \
INLINE T max_of_##t(const T *x, int64_t n) \
{ \
	T lane[64], m; \
	int64_t i = 0; \
	for (int j = 0; j < 64; j++) \
		lane[j] = -(T)INFINITY; \
	for (; i + 64 <= n; i += 64) \
		for (int j = 0; j < 64; j++) \
			lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j]; \
	m = lane[0]; \
	for (int j = 1; j < 64; j++) \
		m = lane[j] > m ? lane[j] : m; \
	for (; i < n; i++) \
		m = x[i] > m ? x[i] : m; \
	return m; \
}
K_FLOATS(MAX_OF)
#undef MAX_OF

/* Index i of an operand of 4 or 8 bytes an index, for an axis of n; negative ones count from the end.  An index out of
 * range is reported as bad input and read as 0. */
INLINE int64_t load_index(const void *ids, int64_t i, int id_size, int64_t n)
{
	int64_t v = id_size == 8 ? ((const int64_t *)ids)[i] : ((const int32_t *)ids)[i];
	int64_t at = v < 0 ? v + n : v;
	if (at >= 0 && at < n)
		return at;
	k_bad_input("index %lld at position %lld is outside an axis of %lld", (long long)v, (long long)i,
		(long long)n);
	return 0;
}

#endif
