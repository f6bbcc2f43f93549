/* kernels/cpu/finite.c: finds the first NaN and the first infinity of an array (--check-nan).
 *
 * It tests bits, for every float type of base/dtypes.def; the answer does not depend on threads. */
#include "kernels/cpu/common.h"

enum { BLOCK = 8192 };

/* Elements whose exponent is all ones: infinities, and NaN where the fraction is not zero. */
#define K_SCAN(name, T, exponent, fraction) \
	static void name(const T *x, int64_t begin, int64_t end, int64_t *nan, int64_t *inf) \
	{ \
		T any = 0; \
		for (int64_t i = begin; i < end; i++) \
			any |= (T)((x[i] & (exponent)) == (exponent)); \
		for (int64_t i = begin; any && i < end; i++) { \
			if ((x[i] & (exponent)) != (exponent)) \
				continue; \
			int64_t *at = x[i] & (fraction) ? nan : inf; \
			*at = MIN(*at, i); \
		} \
	}
K_SCAN(scan_f16, uint16_t, 0x7c00, 0x3ff)
K_SCAN(scan_bf16, uint16_t, 0x7f80, 0x7f)
K_SCAN(scan_f32, uint32_t, 0x7f800000u, 0x7fffffu)
K_SCAN(scan_f64, uint64_t, UINT64_C(0x7ff) << 52, (UINT64_C(1) << 52) - 1)

static void scan(const void *x, KDType t, int64_t begin, int64_t end, int64_t *nan, int64_t *inf)
{
	if (t == K_F32)
		scan_f32(x, begin, end, nan, inf);
	else if (t == K_F64)
		scan_f64(x, begin, end, nan, inf);
	else if (t == K_F16)
		scan_f16(x, begin, end, nan, inf);
	else
		scan_bf16(x, begin, end, nan, inf);
}

void k_not_finite(int64_t *nan, int64_t *inf, const void *x, int64_t n, KDType t)
{
	int64_t a = INT64_MAX, b = INT64_MAX;
	#pragma omp parallel for schedule(static) reduction(min:a, b) if (n > PARALLEL_MIN)
	for (int64_t i = 0; i < n; i += BLOCK)
		scan(x, t, i, MIN(i + BLOCK, n), &a, &b);
	*nan = a == INT64_MAX ? -1 : a;
	*inf = b == INT64_MAX ? -1 : b;
}
