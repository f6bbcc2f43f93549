/* kernels/cpu/softmax.c: softmax and log-softmax along any axis, and their gradients.  A row of -inf gives NaN, as 0/0
 * does.  Along the last axis a thread takes whole rows, along others neighbouring columns together. */
#include "kernels/cpu/half.h"

enum { PIECE = 1024, LANES = 64 };

/* Functions in the type that an element type is computed in. */
#define WIDE_F64(op) INLINE double wide_##op##_f64(double x) { return ew_##op##_f64(x); }
#define WIDE_F32(op, t) INLINE float wide_##op##_##t(float x) { return ew_##op##_f32(x); }
WIDE_F64(exp) WIDE_F64(log)
WIDE_F32(exp, f32) WIDE_F32(exp, bf16) WIDE_F32(exp, f16)
WIDE_F32(log, f32) WIDE_F32(log, bf16) WIDE_F32(log, f16)

/* The largest of n elements; NaN is ignored. */
INLINE float max_of_half(const uint16_t *x, KDType t, int64_t n)
{
	float wide[PIECE], m = -INFINITY;
	for (int64_t i = 0; i < n; i += PIECE) {
		widen(wide, x + i, t, MIN(PIECE, n - i));
		float top = max_of_f32(wide, MIN(PIECE, n - i));
		m = top > m ? top : m;
	}
	return m;
}
INLINE float max_of_bf16(const uint16_t *x, int64_t n) { return max_of_half(x, K_BF16, n); }
INLINE float max_of_f16(const uint16_t *x, int64_t n) { return max_of_half(x, K_F16, n); }

#define TEMPLATE "kernels/cpu/softmax.h"
#include "kernels/cpu/each_half.h"
#define TEMPLATE "kernels/cpu/softmax.h"
#include "kernels/cpu/each_float.h"
