/* tests/unit/kernel_random.c: draws against their own definition, by moments, and by which sample they belong to. */
#include "base/philox.h"
#include "tests/unit/kernel_cases.h"

enum { PRE = 3, ROWS = 41, POST = 130, N = PRE * ROWS * POST, MANY = 1 << 20 };

static const StepScalars step = {.seed = 42, .rng_step = 9, .sample0 = 17};

static void draw(float *y, int64_t rows, KDraw kind, const StepScalars *s)
{
	k_draw_f32(y, rows ? PRE : 1, rows, rows ? POST : N, kind, 0.3, -2, 3, 7, s);
	case_sync();
}

/* Element (p, r, i) has the word of sample 17 + r, inner index p * POST + i. */
static void check_words(void)
{
	float *u = case_alloc(N * 4), *b = case_alloc(N * 4);
	StepScalars *s = case_alloc(sizeof(*s));
	int64_t wrong = 0;
	*s = step;
	CASE_SAME_BITS("draw", u, N * 4, draw(u, ROWS, K_DRAW_UNIFORM, s));
	draw(b, ROWS, K_DRAW_BERNOULLI, s);
	for (int64_t i = 0; i < N; i++) {
		int64_t r = i / POST % ROWS, inner = i / POST / ROWS * POST + i % POST;
		uint32_t w[4];
		philox_block(w, philox_key(42, 7), (uint64_t)(17 + r), (uint64_t)inner / 4, 9);
		wrong += u[i] != (float)(w[inner % 4] >> 8) / 16777216;
		wrong += b[i] != (w[inner % 4] >= philox_threshold(0.3) ? 3 : -2);
	}
	case_true(!wrong, "draw of uniform and bernoulli numbers");
}

static void check_samples(void)
{
	float *all = case_alloc(N * 4), *part = case_alloc(N * 4);
	StepScalars *s = case_alloc(sizeof(*s));
	*s = step;
	k_draw_f32(all, 1, ROWS, POST, K_DRAW_NORMAL, 0, 0, 0, 7, s);
	case_sync();
	s->sample0 = 19;
	k_draw_f32(part, 1, 3, POST, K_DRAW_NORMAL, 0, 0, 0, 7, s);
	case_sync();
	case_equal("draw by global row", part, all + 2 * POST, 3 * POST * 4);
	s->sample0 = 17;
	s->own = 2;
	k_draw_f32(part, 1, 4, POST, K_DRAW_NORMAL, 0, 0, 0, 7, s);
	case_sync();
	case_equal("draw of samples of their own", part, all, 2 * POST * 4);
	case_equal("draw of a copied sample", part + 2 * POST, all, POST * 4);
	case_equal("draw of a copied sample", part + 3 * POST, all, POST * 4);
	*s = (StepScalars){.seed = 42, .rng_step = 9, .sample0 = 5};
	draw(part, 0, K_DRAW_NORMAL, s);
	s->sample0 = 6;
	draw(all, 0, K_DRAW_NORMAL, s);
	case_equal("draw without samples", part, all, N * 4);
	s->rng_step = 10;
	draw(all, 0, K_DRAW_NORMAL, s);
	case_true(all[0] != part[0] && all[N - 1] != part[N - 1], "draw of another step");
}

/* Mean, variance, and the third and fourth moment of n normal numbers, within 4 sigma; and the share beyond 3. */
static void check_moments(void)
{
	float *y = case_alloc(MANY * 4);
	double sum[5] = {0}, n = MANY, most = 0, beyond = 0;
	StepScalars *s = case_alloc(sizeof(*s));
	*s = step;
	k_draw_f32(y, 1, 0, MANY, K_DRAW_NORMAL, 0, 0, 0, 3, s);
	case_sync();
	for (int64_t i = 0; i < MANY; i++) {
		double x = (double)y[i], power = 1;
		for (int k = 0; k < 5; k++, power *= x)
			sum[k] += power;
		most = fmax(most, fabs(x));
		beyond += fabs(x) > 3;
	}
	case_true(fabs(sum[1] / n) < 4 / sqrt(n) && fabs(sum[2] / n - 1) < 4 * sqrt(2 / n), "normal: mean, variance");
	case_true(fabs(sum[3] / n) < 4 * sqrt(15 / n) && fabs(sum[4] / n - 3) < 4 * sqrt(96 / n), "normal: skew, kurtosis");
	case_true(fabs(beyond / n - 0.002699796) < 4 * sqrt(0.0027 / n) && most > 4.4 && most < 6.8, "normal: tails");
}

/* f32 and 16-bit numbers are the f64 ones, rounded; no uniform number is 1 in any of them. */
static void check_types(void)
{
	float *y = case_alloc(N * 4);
	double *want = case_alloc(N * 8);
	uint16_t *h = case_alloc(N * 2);
	int64_t wrong = 0;
	StepScalars *s = case_alloc(sizeof(*s));
	*s = step;
	k_draw_f64(want, PRE, ROWS, POST, K_DRAW_NORMAL, 0, 0, 0, 7, s);
	draw(y, ROWS, K_DRAW_NORMAL, s);
	case_close("draw of normal numbers", y, want, N, 3e-7);
	for (int64_t i = 0; i < N; i++)
		wrong += !(fabs((double)y[i] - want[i]) < 2e-6);
	k_draw_bf16(h, PRE, ROWS, POST, K_DRAW_NORMAL, 0, 0, 0, 7, s);
	case_close("draw of bf16", case_widened(h, N, K_BF16), want, N, 0x1p-8);
	k_draw_f64(want, PRE, ROWS, POST, K_DRAW_UNIFORM, 0, 0, 0, 7, s);
	k_draw_f16(h, PRE, ROWS, POST, K_DRAW_UNIFORM, 0, 0, 0, 7, s);
	const float *f16 = case_widened(h, N, K_F16);
	for (int64_t i = 0; i < N; i++)
		wrong += (double)f16[i] != floor(want[i] * 2048) / 2048;
	k_draw_bf16(h, PRE, ROWS, POST, K_DRAW_UNIFORM, 0, 0, 0, 7, s);
	const float *bf16 = case_widened(h, N, K_BF16);
	for (int64_t i = 0; i < N; i++)
		wrong += (double)bf16[i] != floor(want[i] * 256) / 256;
	case_true(!wrong, "draw of each type");
}

void case_draw(void)
{
	check_words();
	check_samples();
	check_moments();
	check_types();
}
