/* tests/unit/kernel_f8.c: 8-bit floats: every bf16 number against a search of all 256, scales, products.
 *
 * What rounds here is base/narrow.h's table of numbers, which has nothing in common with kernels/f8.h. */
#include "base/narrow.h"
#include "tests/unit/kernel_cases.h"

static const KDType types[] = {K_E4M3, K_E5M2};

static const Narrow *narrow_of(KDType t)
{
	return narrow_from_text(t == K_E4M3 ? "f8e4m3fn" : "f8e5m2");
}

/* The finite number that is nearest to x and, of two, the one with an even fraction; NaN is 0x7f. */
static uint8_t nearest(const Narrow *t, double x)
{
	double best = INFINITY;
	uint8_t found = 0x7f;
	for (unsigned bits = 0; bits < 128 && !isnan(x); bits++) {
		double v = narrow_decode(t, bits), far = fabs(v - fmin(fabs(x), t->max));
		if (isfinite(v) && (far < best || (far <= best && bits % 2 == 0))) {
			best = far;
			found = (uint8_t)(bits | (signbit(x) ? 0x80 : 0));
		}
	}
	return found;
}

/* x (m, k) by 1 / scale: rows alone, columns alone, and both. */
static void check_to_f8(KDType t, const uint16_t *x, float scale, int64_t m, int64_t k)
{
	int64_t n = m * k;
	float *wide = case_widened(x, n, K_BF16), *s = case_alloc(sizeof *s), inverse = 1 / scale;
	uint8_t *rows = case_alloc(n), *columns = case_alloc(n), *want = case_alloc(n), *turned = case_alloc(n);
	*s = scale;
	for (int64_t i = 0; i < n; i++)
		turned[i % k * m + i / k] = want[i] = nearest(narrow_of(t), wide[i] * inverse);
	k_to_f8_bf16(rows, NULL, x, s, t, m, k);
	case_equal("to_f8 rows", rows, want, n);
	k_to_f8_bf16(NULL, columns, x, s, t, m, k);
	case_equal("to_f8 columns", columns, turned, n);
	memset(rows, 1, (size_t)n);
	memset(columns, 1, (size_t)n);
	k_to_f8_bf16(rows, columns, x, s, t, m, k);
	case_equal("to_f8 rows of both", rows, want, n);
	case_equal("to_f8 columns of both", columns, turned, n);
}

static void check_turn(const uint8_t *x, int64_t m, int64_t k)
{
	uint8_t *got = case_alloc(m * k), *want = case_alloc(m * k);
	for (int64_t i = 0; i < m * k; i++)
		want[i % k * m + i / k] = x[i];
	k_turn_f8(got, x, m, k);
	case_equal("turn_f8", got, want, m * k);
}

void case_to_f8(void)
{
	uint16_t *all = case_alloc(65536 * 2);
	for (int64_t i = 0; i < 65536; i++)
		all[i] = (uint16_t)i;
	for (int t = 0; t < 2; t++) {
		check_to_f8(types[t], all, 1, 256, 256);
		check_to_f8(types[t], all, 0.37f, 64, 1024);
		check_to_f8(types[t], all, INFINITY, 4096, 16);
		check_to_f8(types[t], all + 3, 0x1p-9f, 37, 51);
		check_to_f8(types[t], all + 40000, 3, 80, 48);
		check_to_f8(types[t], all + 16000, 1, 1, 5);
	}
	check_turn((const uint8_t *)all, 256, 64);
	check_turn((const uint8_t *)all, 80, 144);
	check_turn((const uint8_t *)all + 1, 32, 48);
	check_turn((const uint8_t *)all, 37, 51);
}

static void check_scale(KDType t, uint16_t *x, int64_t n, float want)
{
	float *scale = case_alloc(sizeof *scale);
	void *work = case_alloc(kwork_cuda_f8_scale(NULL));
	k_f8_scale_bf16(scale, x, t, n, work);
	case_sync();
	case_true(isnan(want) ? isnan(*scale) : memcmp(scale, &want, sizeof want) == 0, "f8_scale");
}

static void check_largest(const float *x, int64_t n, float before, float want)
{
	float *most = case_alloc(sizeof *most);
	*most = before;
	k_f8_largest_f32(most, x, n);
	case_sync();
	case_true(isnan(want) ? isnan(*most) : memcmp(most, &want, sizeof want) == 0, "f8_largest");
}

/* Weights: the largest of several parts, and what is rounded twice, to bf16 and by the scale. */
static void check_weights(int64_t n, int64_t skip)
{
	int64_t at = skip + case_random(n);
	float *x = case_floats(n + skip, -2, 2), *scale = case_alloc(sizeof *scale);
	uint8_t *got = case_alloc(n + skip), *want = case_alloc(n + skip);
	x[at] = -1794.9f;
	*scale = 4;
	x[skip + (at - skip + n / 2) % n] = n > 1 ? 0x1.01p-9f : x[at]; /* a tie of bf16, then of e4m3 */
	float *rounded = case_widened(case_halves(case_bytes(x, (n + skip) * 4), n + skip, K_BF16), n + skip, K_BF16);
	for (int64_t i = skip; i < n + skip; i++)
		want[i] = nearest(narrow_of(K_E4M3), rounded[i] * 0.25f);
	k_cast_f8_wide(got + skip, x + skip, scale, n);
	case_equal("cast_f8", got + skip, want + skip, n);
	check_largest(x + skip, n, 3, 1794.9f);
	check_largest(x + skip, n, 1795, 1795);
	x[at] = -INFINITY;
	check_largest(x + skip, n, 3, INFINITY);
	x[skip] = -NAN;
	check_largest(x + skip, n, 3, NAN);
	check_largest(x + skip, n, NAN, NAN);
}

void case_f8_scale(void)
{
	static const int64_t sizes[] = {1, 7, 16, 1000, 70001};
	for (int i = 0; i < 5; i++)
		for (int skip = 0; skip < 2; skip++)
			check_weights(sizes[i], skip);
	for (int t = 0; t < 2; t++)
		for (int i = 0; i < 5; i++) {
			int64_t n = sizes[i], at = case_random(n);
			float most = t ? 57344 : 448, *x = case_floats(n, -2, 2);
			x[at] = -1792;
			uint16_t *h = case_halves(x, n, K_BF16);
			check_scale(types[t], h, n, 1792 / most);
			h[at] = 0xff80; /* -infinity */
			check_scale(types[t], h, n, INFINITY);
			h[(at + 1) % n] = 0x7fc0;
			check_scale(types[t], h, n, NAN);
			memset(h, 0, (size_t)n * 2);
			h[0] = 0x8000;
			check_scale(types[t], h, n, 0x1p-100f / most);
			h[at] = 1; /* the least number */
			check_scale(types[t], h, n, 0x1p-100f / most);
		}
}

typedef struct F8Product { int64_t m, n, k; KDType a, b, to; bool bias, add; } F8Product;

/* Numbers of type t, not NaN, and what they stand for. */
static uint8_t *numbers(KDType t, int64_t n, double *stand)
{
	uint8_t *x = case_alloc(n);
	for (int64_t i = 0; i < n; i++) {
		x[i] = (uint8_t)(case_random(2) << 7 | (0x18 + case_random(0x30)));
		stand[i] = narrow_decode(narrow_of(t), x[i]);
	}
	return x;
}

static void check_product(const F8Product *p)
{
	double *a = case_doubles(p->m * p->k), *b = case_doubles(p->n * p->k), *want = case_doubles(p->m * p->n);
	uint8_t *qa = numbers(p->a, p->m * p->k, a), *qb = numbers(p->b, p->n * p->k, b);
	float *scale = case_alloc(8), *bias = case_floats(p->n, -100, 100), *sum = case_floats(p->m * p->n, -100, 100);
	uint16_t *half = case_halves(bias, p->n, K_BF16);
	int64_t count = p->m * p->n, size = p->to == K_F32 ? 4 : 2;
	scale[0] = 0.37f;
	scale[1] = 0x1p-5f;
	for (int64_t i = 0; i < count; i++) {
		for (int64_t k = 0; k < p->k; k++)
			want[i] += a[i / p->n * p->k + k] * b[i % p->n * p->k + k];
		want[i] = want[i] * (double)scale[0] * (double)scale[1] + (p->bias ? bias[i % p->n] : 0)
			+ (p->add ? sum[i] : 0);
	}
	KMatmulDesc d = {.dtype = p->a, .b_dtype = p->b, .to = p->to, .m = p->m, .n = p->n, .k = p->k, .tb = true,
		.bias = p->bias, .add = p->add, .work_bytes = 32 << 20};
	KPrim *prim = k_matmul_f8_create(&d);
	void *y = case_bytes(sum, count * size), *work = case_alloc(k_prim_work(prim));
	k_matmul_f8_run(prim, y, qa, qb, scale, scale + 1, p->bias ? half : NULL, work);
	case_sync();
	case_close("matmul_f8", case_widened(y, count, p->to), want, count, p->to == K_F32 ? 2e-6 : 3e-3);
	k_prim_free(prim);
}

void case_matmul_f8(void)
{
	static const F8Product products[] = {
		{16, 16, 16, K_E4M3, K_E4M3, K_BF16, false, false}, {48, 32, 80, K_E4M3, K_E4M3, K_BF16, true, false},
		{5, 64, 128, K_E5M2, K_E4M3, K_BF16, false, false}, {64, 48, 160, K_E4M3, K_E5M2, K_F32, false, false},
		{32, 112, 96, K_E5M2, K_E4M3, K_F32, false, true}, {33, 16, 64, K_E4M3, K_E4M3, K_F32, true, false},
	};
	for (int i = 0; i < (int)(sizeof products / sizeof *products); i++)
		check_product(&products[i]);
}
