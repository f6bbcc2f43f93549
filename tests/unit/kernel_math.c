/* tests/unit/kernel_math.c: kernels/ew.h against f64 in ulp; special values, integers, casts. */
#include "kernels/ew.h"
#include "tests/unit/kernel_cases.h"

static double ulps(float got, double want)
{
	if (isnan(want) || isinf((float)want) || want == 0)
		return (isnan(want) && isnan(got)) || (float)want == got ? 0 : 1e9;
	int e;
	frexp(want, &e);
	return fabs((double)got - want) / ldexp(1, e - 24 > -149 ? e - 24 : -149);
}

typedef struct Function {
	const char *name;
	float (*f)(float);
	double (*ref)(double);
	double lo, hi, tol;
} Function;

static double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double ref_softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double ref_silu(double x) { return x / (1 + exp(-x)); }
static float exp_f(float x) { return ew_exp_f32(x); }
static float log_f(float x) { return ew_log_f32(x); }
static float log1p_f(float x) { return ew_log1p_f32(x); }
static float sigmoid_f(float x) { return ew_sigmoid_f32(x); }
static float softplus_f(float x) { return ew_softplus_f32(x); }
static float silu_f(float x) { return ew_silu_f32(x); }
static float tanh_f(float x) { return ew_tanh_f32(x); }
static float erf_f(float x) { return ew_erf_f32(x); }
static float sin_f(float x) { return ew_sin_f32(x); }
static float cos_f(float x) { return ew_cos_f32(x); }

static const Function functions[] = {
	{"exp", exp_f, exp, -103, 88.7, 2}, {"exp", exp_f, exp, -1, 1, 2}, {"log", log_f, log, 1e-42, 10, 3},
	{"log", log_f, log, 0.5, 2, 3}, {"log", log_f, log, 1, 1e30, 3}, {"log1p", log1p_f, log1p, -0.999, 3, 4},
	{"log1p", log1p_f, log1p, -1e-4, 1e-4, 4}, {"sigmoid", sigmoid_f, ref_sigmoid, -80, 30, 4},
	{"softplus", softplus_f, ref_softplus, -80, 30, 4}, {"silu", silu_f, ref_silu, -80, 30, 4},
	{"tanh", tanh_f, tanh, -12, 12, 4}, {"tanh", tanh_f, tanh, -1e-3, 1e-3, 4}, {"erf", erf_f, erf, -5, 5, 3},
	{"erf", erf_f, erf, -1e-3, 1e-3, 3}, {"sin", sin_f, sin, -1e6, 1e6, 3}, {"sin", sin_f, sin, -4, 4, 3},
	{"cos", cos_f, cos, -1e6, 1e6, 3}, {"cos", cos_f, cos, -4, 4, 3},
};

static void check_functions(void)
{
	enum { N = 200000 };
	for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
		const Function *f = &functions[k];
		double worst = 0;
		char text[128];
		for (int i = 0; i <= N; i++) {
			float x = (float)(f->lo + (f->hi - f->lo) * i / N);
			worst = fmax(worst, ulps(f->f(x), f->ref((double)x)));
		}
		snprintf(text, sizeof text, "%s on [%g, %g]: %.2f ulp, at most %g", f->name, f->lo, f->hi, worst,
			f->tol);
		case_true(worst <= f->tol, text);
	}
}

static void check_special(void)
{
	case_true(ew_exp_f32(-INFINITY) == 0 && ew_exp_f32(INFINITY) == INFINITY && isnan(ew_exp_f32(NAN)),
		"exp");
	case_true(ew_exp_f32(200) == INFINITY && ew_exp_f32(-200) == 0 && ew_exp_f32(0) == 1, "exp, far");
	case_true(ew_log_f32(0) == -INFINITY && ew_log_f32(INFINITY) == INFINITY && isnan(ew_log_f32(-1))
		&& isnan(ew_log_f32(NAN)) && ew_log_f32(1) == 0, "log");
	case_true(ew_log1p_f32(-1) == -INFINITY && ew_log1p_f32(INFINITY) == INFINITY && isnan(ew_log1p_f32(-2)),
		"log1p");
	case_true(ew_tanh_f32(INFINITY) == 1 && ew_tanh_f32(-INFINITY) == -1 && isnan(ew_tanh_f32(NAN))
		&& signbit(ew_tanh_f32(-0.0f)), "tanh");
	case_true(ew_erf_f32(INFINITY) == 1 && ew_erf_f32(-INFINITY) == -1 && isnan(ew_erf_f32(NAN)), "erf");
	case_true(ew_sigmoid_f32(-INFINITY) == 0 && ew_sigmoid_f32(INFINITY) == 1, "sigmoid");
	case_true(isnan(ew_relu_f32(NAN)) && ew_relu_f32(-1) == 0, "relu");
	case_true(isnan(ew_max_f32(NAN, 1)) && isnan(ew_max_f32(1, NAN)) && isnan(ew_min_f32(1, NAN)),
		"max, min");
	case_true(ew_mod_f32(-3, 2, 0) == 1 && ew_mod_f32(-3, 2, 1) == -1 && ew_mod_i32(-3, 2, 0) == 1
		&& ew_mod_i32(-3, 2, 1) == -1 && ew_mod_i32(3, -2, 0) == -1, "mod");
	case_true(ew_div_i32(INT32_MIN, -1) == INT32_MIN && ew_div_i32(5, 0) == 0 && ew_div_i64(-7, 2) == -3,
		"div");
	case_true(ew_pow_i64(3, 4) == 81 && ew_pow_i32(-2, 3) == -8 && ew_pow_i32(2, -1) == 0
		&& ew_pow_i8(-1, -3) == -1, "pow");
	case_true(ew_add_i32(INT32_MAX, 1) == INT32_MIN && ew_mul_u16(65535, 65535) == 1
		&& ew_neg_i8(-128) == -128
		&& ew_abs_i16(-5) == 5 && ew_sign_i64(-9) == -1 && ew_sign_u8(200) == 1, "wrapping");
	case_true(ew_shl_u8(1, 9) == 0 && ew_shl_i32(3, 4) == 48 && ew_shr_u32(256, 4) == 16, "shifts");
	case_true(ew_round_f32(2.5f) == 2 && ew_round_f32(-1.5f) == -2 && ew_floor_f32(-0.5f) == -1, "rounding");
	case_true(ew_not_bool(1) == 0 && ew_not_i8(5) == -6 && ew_cast_f32_bool(0.5f) == 1, "not");
	case_true(ew_isinf_f32(-INFINITY, 1, 0) == 0 && ew_isinf_f32(-INFINITY, 1, 1) == 1, "isinf");
}

/* Derivatives of gelu by central differences in f64. */
static void check_gelu(void)
{
	for (int form = 0; form < 2; form++)
		for (double x = -8; x <= 8; x += 0.037) {
			double h = 1e-5, d = (ew_gelu_f64(x + h, form) - ew_gelu_f64(x - h, form)) / (2 * h);
			case_true(fabs(ew_gelu_f32((float)x, form) - ew_gelu_f64((double)(float)x, form)) <= 1e-6,
				"gelu");
			case_true(fabs(ew_gelu_grad_f32((float)x, 1, form) - d) <= 2e-6, "gelu_grad");
			case_true(fabs(ew_gelu_grad_f64(x, 1, form) - d) <= 1e-8, "gelu_grad f64");
		}
}

/* Far out gelu is 0 or x, and its derivative 0 or 1: what overflows on the way there must not show. */
static void check_gelu_far(void)
{
	static const float far[] = {9.5f, 100, 6300, 65504, 1e20f};
	for (int form = 0; form < 2; form++) {
		for (int i = 0; i < 5; i++) {
			case_true(ew_gelu_grad_f32(far[i], 3, form) == 3 && ew_gelu_grad_f32(far[i], 0, form) == 0,
				"gelu_grad, far right");
			case_true(fabsf(ew_gelu_grad_f32(-far[i], 3, form)) < 1e-18f && ew_gelu_grad_f32(-far[i], 0, form) == 0,
				"gelu_grad, far left");
		}
		case_true(isnan(ew_gelu_grad_f32(NAN, 1, form)) && isnan(ew_gelu_grad_f32(1, NAN, form)), "gelu_grad of NaN");
		for (uint32_t h = 0; h < 65536; h++)
			if ((h & 0x7C00) != 0x7C00)
				case_true((ew_gelu_grad_f16((f16)h, 0x3C00, form) & 0x7C00) != 0x7C00, "gelu_grad of f16");
	}
}

static void check_halves(void)
{
	for (uint32_t h = 0; h < 65536; h++) {
		float f = ew_cast_f16_f32((f16)h), b = ew_cast_bf16_f32((bf16)h);
		if (!isnan(f))
			case_true(ew_cast_f32_f16(f) == h, "f16 round trip");
		if (!isnan(b))
			case_true(ew_cast_f32_bf16(b) == h, "bf16 round trip");
	}
	case_true(ew_cast_f16_f32(0x3C00) == 1 && ew_cast_f16_f32(1) == ldexpf(1, -24)
		&& ew_cast_f16_f32(0xFBFF) == -65504 && ew_cast_f16_f32(0x7C00) == INFINITY, "f16 values");
	case_true(ew_cast_f32_f16(65520) == 0x7C00 && ew_cast_f32_f16(65519) == 0x7BFF && isnan(ew_cast_f16_f32(
		ew_cast_f32_f16(NAN))) && ew_cast_f32_f16(1e-9f) == 0 && ew_cast_f32_f16(-ldexpf(3, -26)) == 0x8001,
		"f16 rounding");
	case_true(ew_cast_f32_bf16(1 + ldexpf(1, -8)) == 0x3F80 && ew_cast_f32_bf16(1 + ldexpf(3, -8)) == 0x3F82
		&& isnan(ew_cast_bf16_f32(ew_cast_f32_bf16(NAN))), "bf16 rounding to even");
	case_true(ew_add_f16(0x3C00, 0x4000) == 0x4200 && ew_lt_bf16(0x3F80, 0x4000) == 1, "half arithmetic");
	case_true(ew_cast_i32_f16(3) == 0x4200 && ew_cast_f16_i8(0xC200) == -3 && ew_cast_f32_u8(-1) == 255
		&& ew_cast_f64_u64(1.8e19) == 18000000000000000000u, "casts");
}

void case_elementwise(void);
void case_elementwise(void)
{
	check_functions();
	check_special();
	check_gelu();
	check_gelu_far();
	check_halves();
}
