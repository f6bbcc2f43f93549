/* tests/unit/kernel_epilogue.c: products with an epilogue against plain loops in f64. */
#include "tests/unit/kernel_cases.h"

typedef struct Sizes { int64_t m, n, k; bool ta, tb; } Sizes;

static double gelu(double x)
{
	return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

static double slope(double x)
{
	double t = tanh(0.79788456080286536 * (x + 0.044715 * x * x * x));
	return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286536 * (1 + 3 * 0.044715 * x * x);
}

/* Operands of type t, as numbers that it holds and as its elements; the product of the numbers. */
typedef struct Operands { float *a, *b; void *ha, *hb; double *product; } Operands;

static Operands operands_of(const Sizes *s, KDType t)
{
	Operands o = {.a = case_floats(s->m * s->k, -1, 1), .b = case_floats(s->k * s->n, -1, 1),
		.product = case_doubles(s->m * s->n)};
	o.ha = case_halves(o.a, s->m * s->k, t);
	o.hb = case_halves(o.b, s->k * s->n, t);
	for (int64_t i = 0; i < s->m; i++)
		for (int64_t j = 0; j < s->n; j++)
			for (int64_t k = 0; k < s->k; k++)
				o.product[i * s->n + j] += (double)o.a[s->ta ? k * s->m + i : i * s->k + k]
					* o.b[s->tb ? j * s->k + k : k * s->n + j];
	return o;
}

static KPrim *product_with(const Sizes *s, KDType t, KEpilogue e, bool bias, bool add, void **work)
{
	bool sums = e == K_SUMS_A || e == K_SUMS_B;
	KMatmulDesc d = {.dtype = t, .to = sums ? K_F32 : t, .m = s->m, .n = s->n, .k = s->k, .ta = s->ta, .tb = s->tb,
		.bias = bias, .add = add, .epilogue = e, .work_bytes = 8 << 20};
	*work = case_alloc(d.work_bytes);
	return k_matmul_epilogue_create(&d);
}

static void check_gelu(const Sizes *s, KDType t, bool with_bias)
{
	int64_t count = s->m * s->n;
	Operands o = operands_of(s, t);
	float *bias = case_floats(s->n, -1, 1);
	void *hbias = case_halves(bias, s->n, t), *y = case_alloc(count * 2), *x = case_alloc(count * 2), *work;
	double *want = case_doubles(count);
	for (int64_t i = 0; i < count; i++) {
		o.product[i] += with_bias ? bias[i % s->n] : 0;
		want[i] = gelu(o.product[i]);
	}
	KPrim *p = product_with(s, t, K_GELU, with_bias, false, &work);
	CASE_SAME_BITS("product with gelu", y, count * 2, k_matmul_epilogue_run(p, y, x, o.ha, o.hb,
		with_bias ? hbias : NULL, work));
	case_sync();
	k_prim_free(p);
	case_close("operand of gelu", case_widened(x, count, t), o.product, count, case_half_bound(t));
	case_close("product with gelu", case_widened(y, count, t), want, count, 2 * case_half_bound(t));
}

static void check_gelu_grad(const Sizes *s, KDType t)
{
	int64_t count = s->m * s->n;
	Operands o = operands_of(s, t);
	float *x = case_floats(count, -6, 6);
	x[0] = 40, x[count - 1] = -40;
	void *hx = case_halves(x, count, t), *y = case_alloc(count * 2), *work;
	for (int64_t i = 0; i < count; i++)
		o.product[i] *= slope(x[i]);
	KPrim *p = product_with(s, t, K_GELU_GRAD, false, false, &work);
	k_matmul_epilogue_run(p, y, hx, o.ha, o.hb, NULL, work);
	case_sync();
	k_prim_free(p);
	case_close("product with gelu's gradient", case_widened(y, count, t), o.product, count, 2 * case_half_bound(t));
}

static void check_sums(const Sizes *s, KDType t, bool of_b, bool add)
{
	int64_t count = s->m * s->n, cols = of_b ? s->n : s->m;
	Operands o = operands_of(s, t);
	float *y = case_floats(count, -9, 9), *sums = case_alloc(cols * 4);
	double *want = case_doubles(cols);
	void *work;
	for (int64_t i = 0; i < count; i++)
		o.product[i] += add ? y[i] : 0;
	for (int64_t i = 0; i < s->k * cols; i++)
		want[i % cols] += (of_b ? o.b : o.a)[i];
	KPrim *p = product_with(s, t, of_b ? K_SUMS_B : K_SUMS_A, false, add, &work);
	k_matmul_epilogue_run(p, y, sums, o.ha, o.hb, NULL, work);
	case_sync();
	k_prim_free(p);
	case_close("product with sums", y, o.product, count, 1e-5);
	case_close("sums of columns", sums, want, cols, 1e-5);
}

void case_matmul_epilogue(void)
{
	static const Sizes rows[] = {{48, 72, 40, false, false}, {17, 8, 64, false, true}, {130, 96, 200, false, true},
		{3, 12, 24, false, false}}, gradients[] = {{24, 40, 128, true, false}, {200, 72, 1100, true, false}};
	for (int t = 0; t < 2; t++) {
		KDType type = t ? K_F16 : K_BF16;
		for (int i = 0; i < 4; i++) {
			check_gelu(&rows[i], type, false);
			check_gelu(&rows[i], type, true);
			check_gelu_grad(&rows[i], type);
		}
		for (int i = 0; i < 8; i++)
			check_sums(&gradients[i & 1], type, i & 2, i & 4);
	}
}
