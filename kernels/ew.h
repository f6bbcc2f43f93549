/* kernels/ew.h: the elementwise ops of ir/ops.def on one element: ew_<op>_<dtype>(operands, attributes).
 *
 * Included by emitted loops and by kernels, on the CPU and on CUDA; needs stdint.h and math.h only.  <dtype> is the
 * dtype of the operands (for where: of x and y); casts are ew_cast_<from>_<to>(x).  Comparisons, isnan and isinf give
 * uint8_t 0 or 1.  Attributes follow the operands: gelu(x, tanh), gelu_grad(x, dy, tanh), clip(x, lo, hi), isinf(x,
 * pos, neg), mod(x, y, fmod), round_to(x, fraction, emin, max, over, negzero), quantize(x, zero, lo, hi).
 *
 * f16 and bf16 elements are raw bits; they are computed in f32 and rounded once.  Integers wrap; x / 0 is 0; a shift
 * by the width or more is 0.
 *
 * The f32 functions exp, log, log1p, sigmoid, tanh, erf, softplus, sin and cos are branch-free polynomials that
 * compilers vectorise (-O3 -fno-math-errno -fno-trapping-math).  Their errors, measured by tests/unit/test_kernels.c,
 * are at most 3 ulp (sin and cos for |x| <= 1e6).  Other functions come from math.h. */
#ifndef SHARDC_EW_H
#define SHARDC_EW_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define EW static __host__ __device__ __forceinline__ __attribute__((unused))
#else
#define EW static inline __attribute__((always_inline, unused))
#endif

typedef uint16_t f16;
typedef uint16_t bf16;

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__CUDA_ARCH__)
#define EW_FMA(a, b, c) __builtin_fmaf((a), (b), (c))
#define EW_FMAD(a, b, c) __builtin_fma((a), (b), (c))
#else
#define EW_FMA(a, b, c) ((a) * (b) + (c))
#define EW_FMAD(a, b, c) ((a) * (b) + (c))
#endif

EW uint32_t ew_bits(float x) { union { float f; uint32_t u; } v = {.f = x}; return v.u; }
EW float ew_float(uint32_t u) { union { uint32_t u; float f; } v = {.u = u}; return v.f; }

/* ---- f32 functions ---- */

/* 2^n for -126 <= n <= 127 */
EW float ew_exp2i(int32_t n) { return ew_float((uint32_t)(n + 127) << 23); }

/* x = n ln 2 + r; returns e^r - 1 = r + r^2 q(r), |r| <= ln 2 / 2 */
EW float ew_exp_reduce(float x, int32_t *n)
{
	float t = EW_FMA(x, 1.44269504f, 12582912.0f); /* 1.5 * 2^23: rounds to an integer in the low bits */
	*n = (int32_t)(ew_bits(t) - 0x4B400000u);
	t -= 12582912.0f;
	float r = EW_FMA(t, -0.693145752f, x);
	r = EW_FMA(t, -1.42860677e-6f, r);
	float q = 0.00139493612f;
	q = EW_FMA(q, r, 0.00836828537f);
	q = EW_FMA(q, r, 0.0416662395f);
	q = EW_FMA(q, r, 0.166665271f);
	q = EW_FMA(q, r, 0.5f);
	return EW_FMA(r * r, q, r);
}

EW float ew_exp_f32(float x)
{
	int32_t n;
	int none = x < -104.0f; /* then the result is 0: not by way of denormals, with which some CPUs are slow */
	x = x > 89.0f ? 89.0f : none ? 0.0f : x;
	float p = ew_exp_reduce(x, &n) + 1.0f;
	int32_t half = n >> 1; /* scaled in two steps, so that results overflow and underflow as they should */
	p = p * ew_exp2i(half) * ew_exp2i(n - half);
	return none ? 0.0f : p;
}

/* e^x - 1 for 0 <= x <= 88 */
EW float ew_expm1_pos(float x)
{
	int32_t n;
	float p = ew_exp_reduce(x, &n), s = ew_exp2i(n);
	return EW_FMA(p, s, s - 1.0f);
}

EW float ew_log_f32(float x)
{
	int small = x < 1.17549435e-38f;
	float y = small ? x * 33554432.0f : x;
	uint32_t u = ew_bits(y);
	int32_t e = (int32_t)(u - 0x3F3504F3u) >> 23; /* y = 2^e m, sqrt(1/2) <= m < sqrt(2) */
	float f = ew_float(u - ((uint32_t)e << 23)) - 1.0f;
	float n = (float)(small ? e - 25 : e);
	float p = -0.076321207f;
	p = EW_FMA(p, f, 0.127564296f);
	p = EW_FMA(p, f, -0.131584868f);
	p = EW_FMA(p, f, 0.142023981f);
	p = EW_FMA(p, f, -0.166236311f);
	p = EW_FMA(p, f, 0.200012103f);
	p = EW_FMA(p, f, -0.250008106f);
	p = EW_FMA(p, f, 0.333333313f);
	float f2 = f * f;
	float r = EW_FMA(n, -2.12194440e-4f, f2 * f * p);
	r = EW_FMA(f2, -0.5f, r) + f;
	r = EW_FMA(n, 0.693359375f, r);
	r = x < INFINITY ? r : x; /* inf, NaN */
	r = x == 0.0f ? -INFINITY : r;
	return x < 0.0f ? NAN : r;
}

/* ln(1+x) = ln(u) + (x - (u - 1)) / u, u = 1 + x rounded */
EW float ew_log1p_f32(float x)
{
	float u = 1.0f + x, c = (x - (u - 1.0f)) / u, l = ew_log_f32(u);
	return u > 0.0f && u < INFINITY ? l + c : l;
}

EW float ew_sigmoid_f32(float x) { return 1.0f / (1.0f + ew_exp_f32(-x)); }

EW float ew_softplus_f32(float x)
{
	float a = fabsf(x), l = ew_log1p_f32(ew_exp_f32(-a));
	return (x > 0.0f || x != x ? x : 0.0f) + l;
}

/* tanh x = m / (m + 2), m = e^2x - 1 */
EW float ew_tanh_f32(float x)
{
	float a = fabsf(x);
	a = a > 10.0f ? 10.0f : a;
	float m = ew_expm1_pos(a + a), r = m / (m + 2.0f);
	return x < 0.0f ? -r : x == 0.0f ? x : r;
}

/* x + x P(x^2) for |x| up to 0.92, 1 - e^Q(|x|) above. */
EW float ew_erf_f32(float x)
{
	float a = fabsf(x), s = x * x;
	float p = 8.36742183e-05f;
	p = EW_FMA(p, s, -0.000814266677f);
	p = EW_FMA(p, s, 0.00520109199f);
	p = EW_FMA(p, s, -0.0268594529f);
	p = EW_FMA(p, s, 0.112836972f);
	p = EW_FMA(p, s, -0.376126349f);
	p = EW_FMA(p, s, 0.128379166f);
	float inner = EW_FMA(p, x, x);
	float t = a > 4.0f ? 4.0f : a;
	float q = -2.10838934e-05f;
	q = EW_FMA(q, t, 0.000434312591f);
	q = EW_FMA(q, t, -0.00417023199f);
	q = EW_FMA(q, t, 0.0251169614f);
	q = EW_FMA(q, t, -0.108275853f);
	q = EW_FMA(q, t, -0.633351147f);
	q = EW_FMA(q, t, -1.12951267f);
	q = EW_FMA(q, t, 0.000174172121f);
	float outer = 1.0f - ew_exp_f32(q);
	outer = x < 0.0f ? -outer : outer;
	return a > 0.921875f ? outer : inner;
}

/* The sine of x (shift 0) or its cosine (shift 1), by the quadrant of x and its remainder by pi/2.  The reduction is
 * in f64, so that large arguments keep their digits. */
EW float ew_trig(float x, int32_t shift)
{
	double n = rint((double)x * 0.63661977236758138);
	double r64 = EW_FMAD(n, -1.57079632673412561, (double)x); /* 33 bits, so that the product with n is exact */
	r64 = EW_FMAD(n, -6.0771005065061922e-11, r64);
	float r = (float)r64, s = r * r;
	int32_t k = (int32_t)n + shift;
	float p = 2.71686918e-06f;
	p = EW_FMA(p, s, -0.000198391819f);
	p = EW_FMA(p, s, 0.00833332911f);
	p = EW_FMA(p, s, -0.166666672f);
	float sine = EW_FMA(p * s, r, r);
	float c = 2.44251787e-05f;
	c = EW_FMA(c, s, -0.00138872559f);
	c = EW_FMA(c, s, 0.0416666456f);
	float cosine = EW_FMA(c * s, s, EW_FMA(s, -0.5f, 1.0f));
	float v = k & 1 ? cosine : sine;
	return k & 2 ? -v : v;
}
EW float ew_sin_f32(float x) { return ew_trig(x, 0); }
EW float ew_cos_f32(float x) { return ew_trig(x, 1); }
EW float ew_silu_f32(float x) { return x / (1.0f + ew_exp_f32(-x)); }

EW float ew_gelu_f32(float x, int tanh_form)
{
	if (tanh_form) /* 0.5 (1 + tanh u) = sigmoid(2u) */
		return x / (1.0f + ew_exp_f32(-1.59576912f * EW_FMA(0.044715f * x * x, x, x)));
	return 0.5f * x * (1.0f + ew_erf_f32(x * 0.707106781f));
}

EW float ew_gelu_grad_f32(float x, float dy, int tanh_form)
{
	if (tanh_form) {
		x = x > 9.0f ? 9.0f : x < -9.0f ? -9.0f : x; /* beyond, the derivative is 1 or 0; what follows would overflow */
		float e = ew_exp_f32(-1.59576912f * EW_FMA(0.044715f * x * x, x, x)), s = 1.0f / (1.0f + e);
		float du = 1.59576912f * EW_FMA(0.134145f * x, x, 1.0f);
		return dy * s * EW_FMA(x * e * s, du, 1.0f);
	}
	float phi = 0.398942280f * ew_exp_f32(-0.5f * x * x);
	return dy * EW_FMA(x, phi, 0.5f * (1.0f + ew_erf_f32(x * 0.707106781f)));
}

/* ---- f64 functions ---- */

EW double ew_sigmoid_f64(double x) { return 1.0 / (1.0 + exp(-x)); }
EW double ew_softplus_f64(double x) { return (x > 0 || x != x ? x : 0) + log1p(exp(-fabs(x))); }
EW double ew_silu_f64(double x) { return x / (1.0 + exp(-x)); }
EW double ew_gelu_f64(double x, int tanh_form)
{
	return tanh_form ? 0.5 * x * (1.0 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)))
		: 0.5 * x * (1.0 + erf(x * 0.70710678118654752));
}
EW double ew_gelu_grad_f64(double x, double dy, int tanh_form)
{
	if (tanh_form) {
		double t = tanh(0.79788456080286536 * (x + 0.044715 * x * x * x));
		double du = 0.79788456080286536 * (1.0 + 0.134145 * x * x);
		return dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du);
	}
	double phi = 0.39894228040143268 * exp(-0.5 * x * x);
	return dy * (0.5 * (1.0 + erf(x * 0.70710678118654752)) + x * phi);
}
#define EW_LIBM(op) EW double ew_##op##_f64(double x) { return op(x); }
EW_LIBM(exp) EW_LIBM(log) EW_LIBM(log1p) EW_LIBM(sin) EW_LIBM(cos) EW_LIBM(tanh) EW_LIBM(erf)
#undef EW_LIBM

/* ---- both float types, from math.h or plain arithmetic ---- */

#define EW_LIBM(op) \
	EW float ew_##op##_f32(float x) { return op##f(x); } \
	EW double ew_##op##_f64(double x) { return op(x); }
EW_LIBM(sqrt) EW_LIBM(tan) EW_LIBM(asin) EW_LIBM(acos) EW_LIBM(atan) EW_LIBM(sinh) EW_LIBM(cosh)
EW_LIBM(asinh) EW_LIBM(acosh) EW_LIBM(atanh) EW_LIBM(floor) EW_LIBM(ceil)
#undef EW_LIBM
EW float ew_round_f32(float x) { return rintf(x); }
EW double ew_round_f64(double x) { return rint(x); }
EW float ew_abs_f32(float x) { return fabsf(x); }
EW double ew_abs_f64(double x) { return fabs(x); }
/* Small constant exponents become products once this is inlined. */
EW float ew_pow_f32(float x, float y) { return y == 2.0f ? x * x : y == 1.0f ? x : powf(x, y); }
EW double ew_pow_f64(double x, double y) { return y == 2.0 ? x * x : y == 1.0 ? x : pow(x, y); }
EW float ew_mod_f32(float x, float y, int c)
{
	float r = fmodf(x, y);
	return !c && r != 0.0f && (r < 0.0f) != (y < 0.0f) ? r + y : r;
}
EW double ew_mod_f64(double x, double y, int c)
{
	double r = fmod(x, y);
	return !c && r != 0.0 && (r < 0.0) != (y < 0.0) ? r + y : r;
}

#define EW_FLOAT(T, t) \
	EW T ew_neg_##t(T x) { return -x; } \
	EW T ew_sign_##t(T x) { return x > 0 ? 1 : x < 0 ? -1 : x; } \
	EW T ew_rsqrt_##t(T x) { return 1 / ew_sqrt_##t(x); } \
	EW T ew_recip_##t(T x) { return 1 / x; } \
	EW T ew_relu_##t(T x) { return x < 0 ? 0 : x; } \
	EW T ew_clip_##t(T x, T lo, T hi) { T v = x < lo ? lo : x; return v > hi ? hi : v; } \
	EW T ew_add_##t(T x, T y) { return x + y; } \
	EW T ew_sub_##t(T x, T y) { return x - y; } \
	EW T ew_mul_##t(T x, T y) { return x * y; } \
	EW T ew_div_##t(T x, T y) { return x / y; } \
	EW T ew_max_##t(T x, T y) { return x > y || x != x ? x : y; } \
	EW T ew_min_##t(T x, T y) { return x < y || x != x ? x : y; } \
	EW uint8_t ew_isnan_##t(T x) { return x != x; } \
	EW uint8_t ew_isinf_##t(T x, int pos, int neg) \
	{ \
		return (uint8_t)((pos && x == (T)INFINITY) | (neg && x == (T)-INFINITY)); \
	}
EW_FLOAT(float, f32)
EW_FLOAT(double, f64)
#undef EW_FLOAT

/* ---- integers: arithmetic in the unsigned type U, so that it wraps ---- */

#define EW_INT(T, t, U, is_signed, bits) \
	EW T ew_neg_##t(T x) { return (T)((U)0 - (U)x); } \
	EW T ew_abs_##t(T x) { return is_signed && x < (T)1 ? (T)((U)0 - (U)x) : x; } \
	EW T ew_sign_##t(T x) { return (T)((x > 0) - (is_signed && x < (T)1 && x != 0)); } \
	EW T ew_relu_##t(T x) { return x > 0 ? x : 0; } \
	EW T ew_clip_##t(T x, T lo, T hi) { T v = x < lo ? lo : x; return v > hi ? hi : v; } \
	EW T ew_not_##t(T x) { return (T)~x; } \
	EW T ew_floor_##t(T x) { return x; } \
	EW T ew_ceil_##t(T x) { return x; } \
	EW T ew_round_##t(T x) { return x; } \
	EW uint8_t ew_isnan_##t(T x) { (void)x; return 0; } \
	EW uint8_t ew_isinf_##t(T x, int pos, int neg) { (void)x; (void)pos; (void)neg; return 0; } \
	EW T ew_add_##t(T x, T y) { return (T)((U)x + (U)y); } \
	EW T ew_sub_##t(T x, T y) { return (T)((U)x - (U)y); } \
	EW T ew_mul_##t(T x, T y) { return (T)((uint64_t)(U)x * (uint64_t)(U)y); } \
	EW T ew_div_##t(T x, T y) { return y == 0 ? 0 : is_signed && y == (T)-1 ? (T)((U)0 - (U)x) \
		: (T)(x / y); } \
	EW T ew_mod_##t(T x, T y, int c) \
	{ \
		T r = y == 0 || (is_signed && y == (T)-1) ? 0 : (T)(x % y); \
		return is_signed && !c && r != 0 && ((r < (T)1) != (y < (T)1)) ? (T)(r + y) : r; \
	} \
	EW T ew_pow_##t(T x, T y) \
	{ \
		uint64_t r = 1, b = (uint64_t)x; \
		if (is_signed && y < (T)1 && y != 0) \
			return x == 1 ? 1 : x == (T)-1 ? (y & 1 ? (T)-1 : 1) : 0; \
		for (U e = (U)y; e; e = (U)(e >> 1), b *= b) \
			r *= e & 1 ? b : 1; \
		return (T)r; \
	} \
	EW T ew_max_##t(T x, T y) { return x > y ? x : y; } \
	EW T ew_min_##t(T x, T y) { return x < y ? x : y; } \
	EW T ew_and_##t(T x, T y) { return (T)(x & y); } \
	EW T ew_or_##t(T x, T y) { return (T)(x | y); } \
	EW T ew_xor_##t(T x, T y) { return (T)(x ^ y); } \
	EW T ew_shl_##t(T x, T y) { return (U)y >= bits ? 0 : (T)((uint64_t)(U)x << ((U)y % bits)); } \
	EW T ew_shr_##t(T x, T y) { return (U)y >= bits ? 0 : (T)(x >> ((U)y % bits)); }
EW_INT(int64_t, i64, uint64_t, 1, 64)
EW_INT(int32_t, i32, uint32_t, 1, 32)
EW_INT(int16_t, i16, uint16_t, 1, 16)
EW_INT(int8_t, i8, uint8_t, 1, 8)
EW_INT(uint64_t, u64, uint64_t, 0, 64)
EW_INT(uint32_t, u32, uint32_t, 0, 32)
EW_INT(uint16_t, u16, uint16_t, 0, 16)
EW_INT(uint8_t, u8, uint8_t, 0, 8)
#undef EW_INT

/* ---- bool ---- */

EW uint8_t ew_not_bool(uint8_t x) { return !x; }
EW uint8_t ew_and_bool(uint8_t x, uint8_t y) { return x & y; }
EW uint8_t ew_or_bool(uint8_t x, uint8_t y) { return x | y; }
EW uint8_t ew_xor_bool(uint8_t x, uint8_t y) { return x ^ y; }
EW uint8_t ew_max_bool(uint8_t x, uint8_t y) { return x | y; }
EW uint8_t ew_min_bool(uint8_t x, uint8_t y) { return x & y; }
EW uint8_t ew_add_bool(uint8_t x, uint8_t y) { return x | y; }
EW uint8_t ew_mul_bool(uint8_t x, uint8_t y) { return x & y; }

/* ---- comparisons and selection, all but the half types ---- */

#define EW_COMPARE(T, t) \
	EW uint8_t ew_eq_##t(T x, T y) { return x == y; } \
	EW uint8_t ew_lt_##t(T x, T y) { return x < y; } \
	EW uint8_t ew_le_##t(T x, T y) { return x <= y; } \
	EW uint8_t ew_gt_##t(T x, T y) { return x > y; } \
	EW uint8_t ew_ge_##t(T x, T y) { return x >= y; }
#define EW_WHERE(T, t) EW T ew_where_##t(uint8_t c, T x, T y) { return c ? x : y; }
#define EW_EACH(X) X(float, f32) X(double, f64) X(int64_t, i64) X(int32_t, i32) X(int16_t, i16) \
	X(int8_t, i8) X(uint64_t, u64) X(uint32_t, u32) X(uint16_t, u16) X(uint8_t, u8) X(uint8_t, bool)
EW_EACH(EW_COMPARE)
EW_EACH(EW_WHERE)
EW_WHERE(f16, f16)
EW_WHERE(bf16, bf16)

/* ---- casts ---- */

EW float ew_cast_bf16_f32(bf16 h) { return ew_float((uint32_t)h << 16); }
EW bf16 ew_cast_f32_bf16(float x)
{
	uint32_t u = ew_bits(x), r = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
	return (bf16)(x != x ? (u >> 16) | 0x40u : r);
}
EW float ew_cast_f16_f32(f16 h)
{
	uint32_t a = (uint32_t)(h & 0x7FFFu) << 13, s = (uint32_t)(h & 0x8000u) << 16;
	uint32_t finite = ew_bits(ew_float(a) * 5.19229686e33f); /* 2^112 moves the exponent's bias */
	return ew_float(s | ((h & 0x7C00u) == 0x7C00u ? a | 0x7F800000u : finite));
}
EW f16 ew_cast_f32_f16(float x)
{
	uint32_t u = ew_bits(x), a = u & 0x7FFFFFFFu, s = (u >> 16) & 0x8000u;
	uint32_t normal = (a + 0xFFFu + ((a >> 13) & 1u) - 0x38000000u) >> 13;
	uint32_t tiny = ew_bits(ew_float(a) + 0.5f) - 0x3F000000u; /* below 2^-14 the unit is 2^-24 */
	uint32_t r = a < 0x38800000u ? tiny : a >= 0x477FF000u ? 0x7C00u : normal;
	return (f16)(s | (a > 0x7F800000u ? 0x7E00u | (a >> 13 & 0x3FFu) : r));
}

/* Rounding by chance: x goes to its neighbour above in magnitude with the probability of its distance from the
 * neighbour below, as the 32 random bits r decide, so that the mean over all r is x (for f16 numbers below 2^-14: to
 * 2^-32 of a unit).  Numbers that the type holds stay; beyond the type's largest number these functions are the casts
 * above. */
EW bf16 ew_round_f32_bf16(float x, uint32_t r)
{
	uint32_t u = ew_bits(x);
	return (u & 0x7FFFFFFFu) > 0x7F7F0000u ? ew_cast_f32_bf16(x) : (bf16)((u + (r >> 16)) >> 16);
}
EW f16 ew_round_f32_f16(float x, uint32_t r)
{
	uint32_t u = ew_bits(x), a = u & 0x7FFFFFFFu, s = (u >> 16) & 0x8000u;
	uint32_t normal = (a + (r >> 19) - 0x38000000u) >> 13;
	float units = ew_float(a < 0x38800000u ? a : 0) * 16777216.0f;
	uint32_t below = (uint32_t)units;
	uint32_t tiny = below + ((uint64_t)((units - (float)below) * 4294967296.0f) > r);
	return a > 0x477FE000u ? ew_cast_f32_f16(x) : (f16)(s | (a < 0x38800000u ? tiny : normal));
}

/* Floats are cast to unsigned integers through the signed integer of 64 bits, so that negative ones wrap. */
#define EW_CAST(T, t, V, v) EW V ew_cast_##t##_##v(T x) { return (V)x; }
#define EW_CAST_FLOAT(T, t, V, v) EW V ew_cast_##t##_##v(T x) { return (V)(int64_t)x; }
#define EW_CAST_BOOL(T, t) EW uint8_t ew_cast_##t##_bool(T x) { return x != 0; }
#define EW_CAST_HALF(T, t) \
	EW f16 ew_cast_##t##_f16(T x) { return ew_cast_f32_f16((float)x); } \
	EW bf16 ew_cast_##t##_bf16(T x) { return ew_cast_f32_bf16((float)x); } \
	EW T ew_cast_f16_##t(f16 x) { return ew_cast_f32_##t(ew_cast_f16_f32(x)); } \
	EW T ew_cast_bf16_##t(bf16 x) { return ew_cast_f32_##t(ew_cast_bf16_f32(x)); }
#define EW_CAST_INTS(X, T, t) X(T, t, int64_t, i64) X(T, t, int32_t, i32) X(T, t, int16_t, i16) \
	X(T, t, int8_t, i8) X(T, t, uint32_t, u32) X(T, t, uint16_t, u16) X(T, t, uint8_t, u8)
#define EW_CAST_ROW(T, t) EW_CAST_INTS(EW_CAST, T, t) EW_CAST(T, t, uint64_t, u64) EW_CAST(T, t, float, f32) \
	EW_CAST(T, t, double, f64) EW_CAST_BOOL(T, t)
#define EW_CAST_FLOAT_ROW(T, t) EW_CAST_INTS(EW_CAST_FLOAT, T, t) EW_CAST(T, t, float, f32) \
	EW_CAST(T, t, double, f64) EW_CAST_BOOL(T, t) \
	EW uint64_t ew_cast_##t##_u64(T x) { return x < 0 ? (uint64_t)(int64_t)x : (uint64_t)x; }
EW_CAST_FLOAT_ROW(float, f32)
EW_CAST_FLOAT_ROW(double, f64)
EW_CAST_ROW(int64_t, i64)
EW_CAST_ROW(int32_t, i32)
EW_CAST_ROW(int16_t, i16)
EW_CAST_ROW(int8_t, i8)
EW_CAST_ROW(uint64_t, u64)
EW_CAST_ROW(uint32_t, u32)
EW_CAST_ROW(uint16_t, u16)
EW_CAST_ROW(uint8_t, u8)
EW_CAST_ROW(uint8_t, bool)
EW_CAST_HALF(double, f64)
EW_CAST_HALF(int64_t, i64)
EW_CAST_HALF(int32_t, i32)
EW_CAST_HALF(int16_t, i16)
EW_CAST_HALF(int8_t, i8)
EW_CAST_HALF(uint64_t, u64)
EW_CAST_HALF(uint32_t, u32)
EW_CAST_HALF(uint16_t, u16)
EW_CAST_HALF(uint8_t, u8)
EW_CAST_HALF(uint8_t, bool)
EW f16 ew_cast_f16_f16(f16 x) { return x; }
EW bf16 ew_cast_bf16_bf16(bf16 x) { return x; }
EW bf16 ew_cast_f16_bf16(f16 x) { return ew_cast_f32_bf16(ew_cast_f16_f32(x)); }
EW f16 ew_cast_bf16_f16(bf16 x) { return ew_cast_f32_f16(ew_cast_bf16_f32(x)); }

/* ---- the same bits in another type, and numbers of narrow types ---- */

#define EW_SAME_BITS(A, a, B, b) EW B ew_bitcast_##a##_##b(A x) { union { A x; B y; } v = {.x = x}; return v.y; }
#define EW_SAME_BITS2(A, a, B, b) EW_SAME_BITS(A, a, B, b) EW_SAME_BITS(B, b, A, a)
#define EW_SAME_BITS3(A, a, B, b, C, c) EW_SAME_BITS2(A, a, B, b) EW_SAME_BITS2(A, a, C, c) EW_SAME_BITS2(B, b, C, c)
EW_SAME_BITS3(double, f64, int64_t, i64, uint64_t, u64)
EW_SAME_BITS3(float, f32, int32_t, i32, uint32_t, u32)
EW_SAME_BITS3(f16, f16, int16_t, i16, uint16_t, u16)
EW_SAME_BITS2(bf16, bf16, int16_t, i16)
EW_SAME_BITS2(bf16, bf16, uint16_t, u16)
EW_SAME_BITS2(bf16, bf16, f16, f16)
EW_SAME_BITS2(int8_t, i8, uint8_t, u8)
EW uint8_t ew_bitcast_bool_u8(uint8_t x) { return x; }
EW int8_t ew_bitcast_bool_i8(uint8_t x) { return (int8_t)x; }
EW uint8_t ew_bitcast_u8_bool(uint8_t x) { return x != 0; }
EW uint8_t ew_bitcast_i8_bool(int8_t x) { return x != 0; }

/* x in units of the last place that a type with this fraction has there, rounded.  exponent: x without its fraction.
 * The quotient and the product are exact. */
#define EW_ROUND_TO(T, t, rint_, fabs_, exponent, exp2i_) \
	EW T ew_round_to_##t(T x, int fraction, int emin, T max, int over, int negzero) \
	{ \
		T a = fabs_(x), p = exponent, low = exp2i_(emin); \
		T unit = (p > low ? p : low) * exp2i_(-fraction), y = rint_(a / unit) * unit; \
		y = y <= max ? y : over == 0 ? max : over == 1 ? (T)INFINITY : (T)NAN; \
		y = a == a ? y : a; \
		return x < 0 || (negzero && 1 / x < 0) ? (y == 0 && !negzero ? y : -y) : y; \
	} \
	EW T ew_quantize_##t(T x, T zero, T lo, T hi) \
	{ \
		T q = rint_(x) + zero; \
		q = q > lo ? q : lo; \
		return q < hi ? q : hi; \
	}
EW double ew_exp2i64(int64_t n) { return ew_bitcast_i64_f64((n + 1023) << 52); }
EW_ROUND_TO(float, f32, rintf, fabsf, ew_float(ew_bits(x) & 0x7F800000u), ew_exp2i)
EW_ROUND_TO(double, f64, rint, fabs, ew_bitcast_u64_f64(ew_bitcast_f64_u64(x) & 0x7FF0000000000000u), ew_exp2i64)
#undef EW_ROUND_TO

/* ---- f16 and bf16: through f32 ---- */

#define EW_HALF1(H, op) EW H ew_##op##_##H(H x) \
	{ return ew_cast_f32_##H(ew_##op##_f32(ew_cast_##H##_f32(x))); }
#define EW_HALF2(H, op) EW H ew_##op##_##H(H x, H y) \
	{ return ew_cast_f32_##H(ew_##op##_f32(ew_cast_##H##_f32(x), ew_cast_##H##_f32(y))); }
#define EW_HALFC(H, op) EW uint8_t ew_##op##_##H(H x, H y) \
	{ return ew_##op##_f32(ew_cast_##H##_f32(x), ew_cast_##H##_f32(y)); }
#define EW_HALF(H) \
	EW_HALF1(H, neg) EW_HALF1(H, abs) EW_HALF1(H, sign) EW_HALF1(H, exp) EW_HALF1(H, log) EW_HALF1(H, log1p) \
	EW_HALF1(H, sqrt) EW_HALF1(H, rsqrt) EW_HALF1(H, recip) EW_HALF1(H, sin) EW_HALF1(H, cos) \
	EW_HALF1(H, tan) EW_HALF1(H, asin) EW_HALF1(H, acos) EW_HALF1(H, atan) EW_HALF1(H, sinh) \
	EW_HALF1(H, cosh) EW_HALF1(H, asinh) EW_HALF1(H, acosh) EW_HALF1(H, atanh) EW_HALF1(H, tanh) \
	EW_HALF1(H, sigmoid) EW_HALF1(H, softplus) EW_HALF1(H, erf) EW_HALF1(H, relu) EW_HALF1(H, silu) \
	EW_HALF1(H, floor) EW_HALF1(H, ceil) EW_HALF1(H, round) \
	EW_HALF2(H, add) EW_HALF2(H, sub) EW_HALF2(H, mul) EW_HALF2(H, div) EW_HALF2(H, pow) EW_HALF2(H, max) \
	EW_HALF2(H, min) \
	EW_HALFC(H, eq) EW_HALFC(H, lt) EW_HALFC(H, le) EW_HALFC(H, gt) EW_HALFC(H, ge) \
	EW uint8_t ew_isnan_##H(H x) { return ew_isnan_f32(ew_cast_##H##_f32(x)); } \
	EW uint8_t ew_isinf_##H(H x, int p, int n) { return ew_isinf_f32(ew_cast_##H##_f32(x), p, n); } \
	EW H ew_gelu_##H(H x, int tanh_form) \
		{ return ew_cast_f32_##H(ew_gelu_f32(ew_cast_##H##_f32(x), tanh_form)); } \
	EW H ew_gelu_grad_##H(H x, H dy, int tanh_form) \
		{ return ew_cast_f32_##H(ew_gelu_grad_f32(ew_cast_##H##_f32(x), ew_cast_##H##_f32(dy), \
			tanh_form)); } \
	EW H ew_clip_##H(H x, float lo, float hi) \
		{ return ew_cast_f32_##H(ew_clip_f32(ew_cast_##H##_f32(x), lo, hi)); } \
	EW H ew_round_to_##H(H x, int fraction, int emin, float max, int over, int negzero) \
		{ return ew_cast_f32_##H(ew_round_to_f32(ew_cast_##H##_f32(x), fraction, emin, max, over, negzero)); } \
	EW H ew_quantize_##H(H x, H zero, float lo, float hi) \
		{ return ew_cast_f32_##H(ew_quantize_f32(ew_cast_##H##_f32(x), ew_cast_##H##_f32(zero), lo, hi)); } \
	EW H ew_mod_##H(H x, H y, int c) \
		{ return ew_cast_f32_##H(ew_mod_f32(ew_cast_##H##_f32(x), ew_cast_##H##_f32(y), c)); }
EW_HALF(f16)
EW_HALF(bf16)
#undef EW_HALF

#endif
