/* tests/unit/kernel_half.c: compares kernels of bf16 and f16 with the f64 (attention, rope: f32) kernels on the same
 * rounded numbers: a result that is computed in f32 and rounded once is off by half a unit in the last place at
 * most. */
#include "tests/unit/kernel_cases.h"

static const KDType types[] = {K_BF16, K_F16};
static KDType type;

/* The same numbers three times, rounded to what the type at work holds. */
typedef struct Num { float *f; double *d; uint16_t *h; int64_t n; } Num;

static Num numbers(int64_t n, double lo, double hi)
{
	Num x = {.f = case_floats(n, lo, hi), .d = case_doubles(n), .n = n};
	x.h = case_halves(x.f, n, type);
	for (int64_t i = 0; i < n; i++)
		x.d[i] = x.f[i];
	return x;
}

static double *doubles_of(const float *x, int64_t n)
{
	double *d = case_doubles(n);
	case_sync();
	for (int64_t i = 0; i < n; i++)
		d[i] = x[i];
	return d;
}

static void close_half(const char *name, const uint16_t *got, const double *want, int64_t n)
{
	case_close(name, case_widened(got, n, type), want, n, case_half_bound(type));
}

/* Equal bits for any number of threads, of one of the types. */
#define SAME_BITS(name, out, bytes, body) do { \
	if (type == K_BF16) \
		CASE_SAME_BITS("16-bit " name, out, bytes, body); \
	else \
		body; \
} while (0)
#define HALF(f, ...) (type == K_BF16 ? f##_bf16(__VA_ARGS__) : f##_f16(__VA_ARGS__))

/* ---- norms ---- */

/* a + b, rounded, of 16-bit numbers. */
static uint16_t *sum_of(const uint16_t *a, const uint16_t *b, int64_t n)
{
	float *fa = case_widened(a, n, type), *fb = case_widened(b, n, type);
	for (int64_t i = 0; i < n; i++)
		fa[i] += fb[i];
	return case_halves(fa, n, type);
}

/* The fused kernels give the bits of an add and a norm behind it, or of an add behind a gradient; dx: that of
 * rms_norm. */
static void check_residual(const Num *x, const Num *dy, const uint16_t *w, const float *rstd, const uint16_t *dx,
	int64_t rows, int64_t cols, void *work)
{
	int64_t n = rows * cols;
	uint16_t *sum = sum_of(x->h, dy->h, n), *y = case_alloc(n * 2), *s = case_alloc(n * 2), *want = case_alloc(n * 2);
	HALF(k_layer_norm, want, NULL, NULL, NULL, sum, w, NULL, NULL, rows, cols, 1e-5);
	HALF(k_layer_norm, y, NULL, NULL, s, x->h, w, NULL, dy->h, rows, cols, 1e-5);
	case_equal("16-bit layer_norm with a residual", y, want, n * 2);
	case_equal("16-bit layer_norm with a residual: the sum", s, sum, n * 2);
	HALF(k_rms_norm, want, NULL, NULL, sum, w, NULL, rows, cols, 1e-5);
	HALF(k_rms_norm, y, NULL, s, x->h, w, dy->h, rows, cols, 1e-5);
	case_equal("16-bit rms_norm with a residual", y, want, n * 2);
	HALF(k_rms_norm_grad, y, NULL, dy->h, x->h, w, rstd, x->h, rows, cols, work);
	case_equal("16-bit rms_norm_grad: dx + ds", y, sum_of(dx, x->h, n), n * 2);
}

/* f32 sums are those of f64, to what f32 holds, and the 16-bit result is what they round to. */
static void check_sums(const char *name, const float *sum, const double *want, const uint16_t *rounded, int64_t n)
{
	float *copy = case_alloc(n * 4);
	case_close(name, sum, want, n, 1e-5);
	memcpy(copy, sum, (size_t)n * 4);
	case_equal(name, case_halves(copy, n, type), rounded, n * 2); /* which leaves in copy what halves hold */
}

/* The gradients with dw and db in f32. */
static void check_f32_sums(const uint16_t *dy, const uint16_t *x, const uint16_t *w, const float *mean,
	const float *rstd, int64_t rows, int64_t cols, const uint16_t *dw, const uint16_t *db, const double *wdw,
	const double *wdb, void *work)
{
	int64_t n = rows * cols;
	uint16_t *dx = case_alloc(n * 2), *same = case_alloc(n * 2);
	float *sums = case_alloc(2 * cols * 4), *sw = sums, *sb = sums + cols;
	if (db) {
		SAME_BITS("layer_norm_grad to f32", sums, 2 * cols * 4, (type == K_BF16 ? k_layer_norm_grad_bf16_f32
			: k_layer_norm_grad_f16_f32)(dx, sw, sb, dy, x, w, mean, rstd, NULL, rows, cols, work));
		HALF(k_layer_norm_grad, same, NULL, NULL, dy, x, w, mean, rstd, NULL, rows, cols, work);
		check_sums("16-bit layer_norm_grad to f32: db", sb, wdb, db, cols);
	} else {
		SAME_BITS("rms_norm_grad to f32", sums, cols * 4, (type == K_BF16 ? k_rms_norm_grad_bf16_f32
			: k_rms_norm_grad_f16_f32)(dx, sw, dy, x, w, rstd, NULL, rows, cols, work));
		HALF(k_rms_norm_grad, same, NULL, dy, x, w, rstd, NULL, rows, cols, work);
	}
	check_sums("16-bit norm_grad to f32: dw", sw, wdw, dw, cols);
	case_equal("16-bit norm_grad to f32: dx", dx, same, n * 2);
}

static void check_norms(int64_t rows, int64_t cols, int flags)
{
	int64_t n = rows * cols, dim[2] = {rows, cols};
	Num x = numbers(n, -1, 3), w = numbers(cols, -1, 1), b = numbers(cols, -1, 1), dy = numbers(n, -1, 1);
	uint16_t *hw = flags & 1 ? w.h : NULL, *hb = flags & 2 ? b.h : NULL;
	double *fw = flags & 1 ? w.d : NULL, *fb = flags & 2 ? b.d : NULL;
	uint16_t *y = case_alloc(n * 2), *dx = case_alloc((n + 2 * cols) * 2), *dw = dx + n, *db = dw + cols;
	float *mean = case_alloc(rows * 4), *rstd = case_alloc(rows * 4);
	double *wy = case_doubles(n), *wm = case_doubles(rows), *wr = case_doubles(rows), *wdx = case_doubles(n);
	double *wdw = case_doubles(cols), *wdb = case_doubles(cols);
	void *work = case_work("layer_norm_grad", (KWorkArgs){.in = {{2, dim, 2}}, .axis = 1});
	void *work64 = case_work("layer_norm_grad", (KWorkArgs){.in = {{2, dim, 8}}, .axis = 1});
	SAME_BITS("layer_norm", y, n * 2, HALF(k_layer_norm, y, mean, rstd, NULL, x.h, hw, hb, NULL, rows, cols,
		1e-5));
	k_layer_norm_f64(wy, wm, wr, NULL, x.d, fw, fb, NULL, rows, cols, 1e-5);
	close_half("16-bit layer_norm", y, wy, n);
	case_close("16-bit layer_norm: mean", mean, wm, rows, 1e-6);
	case_close("16-bit layer_norm: rstd", rstd, wr, rows, 3e-6);
	SAME_BITS("layer_norm_grad", dx, (n + 2 * cols) * 2,
		HALF(k_layer_norm_grad, dx, dw, db, dy.h, x.h, hw, mean, rstd, NULL, rows, cols, work));
	k_layer_norm_grad_f64(wdx, wdw, wdb, dy.d, x.d, fw, doubles_of(mean, rows), doubles_of(rstd, rows), NULL, rows,
		cols, work64);
	if (cols > 1)
		close_half("16-bit layer_norm_grad: dx", dx, wdx, n);
	close_half("16-bit layer_norm_grad: dw", dw, wdw, cols);
	close_half("16-bit layer_norm_grad: db", db, wdb, cols);
	check_f32_sums(dy.h, x.h, hw, mean, rstd, rows, cols, dw, db, wdw, wdb, work);
	HALF(k_rms_norm, y, rstd, NULL, x.h, hw, NULL, rows, cols, 1e-5);
	k_rms_norm_f64(wy, wr, NULL, x.d, fw, NULL, rows, cols, 1e-5);
	close_half("16-bit rms_norm", y, wy, n);
	SAME_BITS("rms_norm_grad", dx, (n + cols) * 2,
		HALF(k_rms_norm_grad, dx, dw, dy.h, x.h, hw, rstd, NULL, rows, cols, work));
	k_rms_norm_grad_f64(wdx, wdw, dy.d, x.d, fw, doubles_of(rstd, rows), NULL, rows, cols, work64);
	if (cols > 1)
		close_half("16-bit rms_norm_grad: dx", dx, wdx, n);
	close_half("16-bit rms_norm_grad: dw", dw, wdw, cols);
	check_f32_sums(dy.h, x.h, hw, NULL, rstd, rows, cols, dw, NULL, wdw, NULL, work);
	check_residual(&x, &dy, hw, rstd, dx, rows, cols, work);
	HALF(k_rms_norm_grad, dy.h, NULL, dy.h, x.h, hw, rstd, NULL, rows, cols, work);
	case_equal("16-bit rms_norm_grad: dx over dy", dy.h, dx, n * 2);
}

static void half_norms(void)
{
	static const int64_t shapes[][2] = {{5, 33}, {90, 768}, {64, 1}, {3, 5000}};
	for (int s = 0; s < 4; s++)
		for (int flags = 0; flags < 4; flags += 3)
			check_norms(shapes[s][0], shapes[s][1], flags);
}

/* ---- softmax ---- */

/* Statistics of 16-bit elements are f32: they are off by no more than those of f32 elements. */
static void check_batch_norm(int64_t n, int64_t c, int64_t s, int layout)
{
	int64_t all = n * c * s, dim[3] = {n, layout ? s : c, layout ? c : s};
	Num x = numbers(all, 2, 4), dy = numbers(all, -1, 1); /* far from zero: the variance must not cancel */
	float *a = case_alloc(2 * c * 4), *mean = case_alloc(c * 4), *var = case_alloc(c * 4);
	double *wa = case_doubles(c), *wb = case_doubles(c), *wmean = case_doubles(c), *wvar = case_doubles(c);
	KShape xs = {3, dim, 2};
	void *work = case_work("bn_stats", (KWorkArgs){.in = {xs, xs}, .layout = layout});
	SAME_BITS("bn_stats", a, 2 * c * 4, HALF(k_bn_stats, a, a + c, x.h, n, c, s, layout, work));
	k_bn_stats_f64(wmean, wvar, x.d, n, c, s, layout, work);
	case_close("16-bit bn_stats: mean", a, wmean, c, 1e-6);
	case_close("16-bit bn_stats: variance", a + c, wvar, c, 1e-6);
	case_sync();
	for (int64_t i = 0; i < c; i++) {
		mean[i] = (float)wmean[i], var[i] = (float)wvar[i];
		wmean[i] = mean[i], wvar[i] = var[i];
	}
	SAME_BITS("bn_grad_stats", a, 2 * c * 4,
		HALF(k_bn_grad_stats, a, a + c, dy.h, x.h, mean, var, n, c, s, layout, 1e-5, work));
	k_bn_grad_stats_f64(wa, wb, dy.d, x.d, wmean, wvar, n, c, s, layout, 1e-5, work);
	case_close("16-bit bn_grad_stats: sum of dy", a, wa, c, 1e-5);
	case_close("16-bit bn_grad_stats: sum of dy xhat", a + c, wb, c, 1e-5);
}

static void half_batch_norm(void)
{
	static const int64_t shapes[][3] = {{4, 70, 37}, {9, 1, 300}, {2, 130, 5000}, {3, 64, 64}, {2, 264, 500},
		{2, 64, 3000}};
	for (int i = 0; i < 6; i++)
		for (int layout = 0; layout < 2; layout++)
			check_batch_norm(shapes[i][0], shapes[i][1], shapes[i][2], layout);
}

static void half_softmax(void)
{
	static const int64_t shapes[][3] = {{7, 33, 1}, {2, 2500, 1}, {3, 17, 70}, {1, 1, 1}, {40, 600, 1}};
	for (int s = 0; s < 5; s++) {
		const int64_t *d = shapes[s], n = d[0] * d[1] * d[2];
		Num x = numbers(n, -4, 4), dy = numbers(n, -1, 1);
		uint16_t *y = case_alloc(n * 2), *dx = case_alloc(n * 2);
		double *want = case_doubles(n), *read = case_doubles(n);
		for (int logarithm = 0; logarithm < 2; logarithm++) {
			SAME_BITS("softmax", y, n * 2, (logarithm ? HALF(k_log_softmax, y, x.h, d[0], d[1], d[2])
				: HALF(k_softmax, y, x.h, d[0], d[1], d[2])));
			(logarithm ? k_log_softmax_f64 : k_softmax_f64)(want, x.d, d[0], d[1], d[2]);
			close_half("16-bit softmax", y, want, n);
			SAME_BITS("softmax_grad", dx, n * 2,
				(logarithm ? HALF(k_log_softmax_grad, dx, dy.h, y, d[0], d[1], d[2])
				: HALF(k_softmax_grad, dx, dy.h, y, d[0], d[1], d[2])));
			read = doubles_of(case_widened(y, n, type), n);
			(logarithm ? k_log_softmax_grad_f64 : k_softmax_grad_f64)(want, dy.d, read, d[0], d[1], d[2]);
			if (d[1] > 1)
				close_half("16-bit softmax_grad", dx, want, n);
		}
		HALF(k_softmax, y, x.h, d[0], d[1], d[2]);
		HALF(k_softmax, x.h, x.h, d[0], d[1], d[2]);
		case_equal("16-bit softmax in place", x.h, y, n * 2);
	}
}

/* ---- attention, rope ---- */

/* Documents of 37 positions each, for a problem with id_stride. */
static int64_t *some_documents(const KAttention *a)
{
	int64_t n = a->b * a->id_stride, *ids = n ? case_alloc(n * 8) : NULL;
	for (int64_t i = 0; i < n; i++)
		ids[i] = i / 37;
	return ids;
}

/* What a problem reads besides q, k, v and dy, and its results where q, k and v are whole. */
typedef struct Attn { KAttention a; Num q, k, v, dy; const void *mask; const int64_t *ids; uint16_t *o, *dq, *dk, *dv;
	float *lse; const StepScalars *scalars; void *work; } Attn;
enum { ATTN_ID = 5 };

/* The columns of rows `got` from `at` on against x: equal bits, or as close as two ways to compute are.  They become
 * NaN, so that what lies beside them can be compared. */
static void check_columns(const char *name, void *got, int64_t pitch, int64_t at, const uint16_t *x, int64_t rows,
	int64_t width, bool same)
{
	uint16_t *taken = case_take_columns(got, pitch, at, rows, width, 2);
	if (same)
		case_equal(name, taken, x, rows * width * 2);
	else
		close_half(name, taken, doubles_of(case_widened(x, rows * width, type), rows * width), rows * width);
	void *nan = memset(case_alloc(rows * width * 2), 0xFF, (size_t)(rows * width * 2));
	case_put_columns(got, pitch, at, nan, rows, width, 2);
}

/* q, k and v as columns of rows, with `gap` elements before and between them and `behind` elements behind them.  CUDA's
 * kernels for tensor cores want multiples of 8 elements, and others compute in another order. */
static void check_wide(const Attn *c, int64_t gap, int64_t behind)
{
	KAttention a = c->a;
	int64_t rows = a.b * a.t, keys = a.b * a.s, qn = a.h * a.d, kn = a.hk * a.d, vn = a.hk * a.dv, n = rows * a.h;
	int64_t row = gap + qn + behind, v_at = kn + 2 * gap, key = v_at + vn + behind;
	uint16_t *q = case_wide(rows, row, 2), *kv = case_wide(keys, key, 2), *dq = case_wide(rows, row, 2);
	uint16_t *dkv = case_wide(keys, key, 2), *o = case_alloc(n * a.dv * 2);
	float *lse = case_alloc(n * 4);
	bool same = !case_cuda() || (gap | behind) % 8 == 0 || a.d % 8 != 0;
	a.q_pitch = a.dq_pitch = row;
	a.k_pitch = a.v_pitch = a.dk_pitch = a.dv_pitch = key;
	case_put_columns(q, row, gap, c->q.h, rows, qn, 2);
	case_put_columns(kv, key, gap, c->k.h, keys, kn, 2);
	case_put_columns(kv, key, v_at, c->v.h, keys, vn, 2);
	HALF(k_attention, o, lse, q + gap, kv + gap, kv + v_at, c->mask, c->ids, &a, ATTN_ID, c->scalars, NULL);
	check_columns("16-bit attention of columns", o, a.h * a.dv, 0, c->o, rows, a.h * a.dv, same);
	HALF(k_attention_grad, dq + gap, dkv + gap, dkv + v_at, c->dy.h, q + gap, kv + gap, kv + v_at, c->mask, c->ids,
		c->o, c->lse, &a, ATTN_ID, c->scalars, c->work);
	check_columns("16-bit attention_grad to columns: dq", dq, row, gap, c->dq, rows, qn, same);
	check_columns("16-bit attention_grad to columns: dk", dkv, key, gap, c->dk, keys, kn, same);
	check_columns("16-bit attention_grad to columns: dv", dkv, key, v_at, c->dv, keys, vn, same);
	case_equal("16-bit attention_grad: beside dq", dq, case_wide(rows, row, 2), rows * row * 2);
	case_equal("16-bit attention_grad: beside dk and dv", dkv, case_wide(keys, key, 2), keys * key * 2);
}

static void check_attention(KAttention a)
{
	StepScalars *scalars = case_alloc(sizeof *scalars);
	int64_t *ids = some_documents(&a);
	*scalars = (StepScalars){.seed = 5, .rng_step = 3, .sample0 = 4};
	int64_t nq = a.b * a.h * a.t, nk = a.b * a.hk * a.s, nm = a.b * a.h * a.t * a.s, out = nq * a.d + nk * (a.d + a.dv);
	int64_t kd[4] = {a.b, a.hk, a.s, a.d}, vd[4] = {a.b, a.hk, a.s, a.dv}, od[4] = {a.b, a.h, a.t, a.dv};
	Num q = numbers(nq * a.d, -2, 2), k = numbers(nk * a.d, -2, 2), v = numbers(nk * a.dv, -1, 1);
	Num dy = numbers(nq * a.dv, -1, 1), added = numbers(nm, -3, 3);
	uint8_t *seen = case_alloc(nm);
	case_hide(added.f, nm, a.s, type);
	added.h = case_halves(added.f, nm, type);
	for (int64_t i = 0; i < nm; i++)
		seen[i] = case_random(3) != 0;
	const void *mask32 = !a.mask ? NULL : a.mask == K_MASK_BOOL ? (void *)seen : added.f;
	const void *mask = a.mask == K_MASK_HALF ? added.h : mask32;
	KAttention a32 = a;
	uint16_t *o = case_alloc(nq * a.dv * 2), *d = case_alloc(out * 2), *dk = d + nq * a.d, *dv = dk + nk * a.d;
	float *lse = case_alloc(nq * 4), *wlse = case_alloc(nq * 4), *wo = case_alloc(nq * a.dv * 4);
	float *w = case_alloc(out * 4), *wk = w + nq * a.d, *wv = wk + nk * a.d;
	void *work = case_work("attention_grad", (KWorkArgs){.in = {{4, od, 2}, {0}, {4, kd, 2}, {4, vd, 2}}});
	a32.mask = a.mask == K_MASK_HALF ? K_MASK_FLOAT : a.mask;
	SAME_BITS("attention", o, nq * a.dv * 2, HALF(k_attention, o, lse, q.h, k.h, v.h, mask, ids, &a, ATTN_ID, scalars,
		NULL));
	k_attention_f32(wo, wlse, q.f, k.f, v.f, mask32, ids, &a32, ATTN_ID, scalars, NULL);
	close_half("16-bit attention", o, doubles_of(wo, nq * a.dv), nq * a.dv);
	case_close("16-bit attention: lse", lse, doubles_of(wlse, nq), nq, 1e-6);
	SAME_BITS("attention_grad", d, out * 2, HALF(k_attention_grad, d, dk, dv, dy.h, q.h, k.h, v.h, mask, ids, o, lse,
		&a, ATTN_ID, scalars, work));
	k_attention_grad_f32(w, wk, wv, dy.f, q.f, k.f, v.f, mask32, ids, case_widened(o, nq * a.dv, type), lse, &a32,
		ATTN_ID, scalars, work);
	close_half("16-bit attention_grad: dq", d, doubles_of(w, nq * a.d), nq * a.d);
	close_half("16-bit attention_grad: dk", dk, doubles_of(wk, nk * a.d), nk * a.d);
	close_half("16-bit attention_grad: dv", dv, doubles_of(wv, nk * a.dv), nk * a.dv);
	for (int i = 0; a.layout && i < 3; i++)
		check_wide(&(Attn){a, q, k, v, dy, mask, ids, o, d, dk, dv, lse, scalars, work}, i ? 8 : 3, i == 1 ? 8 : 3);
}

static void half_attention(void)
{
	static const KAttention cases[] = {
		{.b = 2, .h = 3, .hk = 3, .t = 70, .s = 70, .d = 16, .dv = 16, .has_right = 1},
		{.b = 1, .h = 4, .hk = 2, .t = 65, .s = 130, .d = 20, .dv = 24, .has_right = 1, .right = 65},
		{.b = 2, .h = 2, .hk = 1, .t = 90, .s = 150, .d = 64, .dv = 64, .softcap = 2},
		{.b = 2, .h = 2, .hk = 2, .t = 17, .s = 41, .d = 5, .dv = 7, .mask = K_MASK_HALF,
			.mask_stride = {1394, 697, 41, 1}},
		{.b = 1, .h = 1, .hk = 1, .t = 40, .s = 50, .d = 300, .dv = 600, .has_right = 1},
		/* sizes that tiles of a GPU's tensor cores take, around the tiles' borders */
		{.b = 1, .h = 8, .hk = 2, .t = 65, .s = 63, .d = 64, .dv = 64, .has_right = 1},
		{.b = 1, .h = 2, .hk = 1, .t = 130, .s = 64, .d = 40, .dv = 80, .has_right = 1, .right = -66,
			.empty_nan = 1},
		{.b = 2, .h = 1, .hk = 1, .t = 64, .s = 130, .d = 128, .dv = 64, .has_right = 1, .right = 66},
		{.b = 1, .h = 2, .hk = 2, .t = 63, .s = 65, .d = 80, .dv = 128, .softcap = 3, .mask = K_MASK_HALF,
			.mask_stride = {0, 63 * 65, 65, 1}},
		{.b = 1, .h = 2, .hk = 1, .t = 130, .s = 130, .d = 64, .dv = 64, .mask = K_MASK_BOOL,
			.mask_stride = {130, 0, 1, 0}, .has_right = 1},
		{.b = 1, .h = 2, .hk = 2, .t = 1, .s = 65, .d = 128, .dv = 128, .mask = K_MASK_FLOAT,
			.mask_stride = {0, 65, 0, 1}, .has_right = 1, .right = 64},
		/* windows, documents, dropout */
		{.b = 1, .h = 2, .hk = 1, .t = 300, .s = 300, .d = 64, .dv = 64, .has_left = 1, .left = 40, .has_right = 1},
		{.b = 1, .h = 1, .hk = 1, .t = 130, .s = 330, .d = 128, .dv = 96, .has_left = 1, .left = -100, .has_right = 1,
			.right = 131},
		{.b = 2, .h = 2, .hk = 2, .t = 200, .s = 200, .d = 64, .dv = 64, .id_stride = 200, .has_right = 1},
		{.b = 2, .h = 2, .hk = 1, .t = 130, .s = 130, .d = 128, .dv = 128, .id_stride = 130, .has_left = 1, .left = 9},
		{.b = 2, .h = 2, .hk = 1, .t = 130, .s = 132, .d = 64, .dv = 64, .p = 0.3, .pre = 1, .rows = 2},
		{.b = 2, .h = 2, .hk = 2, .t = 65, .s = 131, .d = 128, .dv = 80, .p = 0.3, .pre = 2, .rows = 1, .has_left = 1,
			.left = 12},
		{.b = 2, .h = 2, .hk = 2, .t = 65, .s = 65, .d = 5, .dv = 7, .p = 0.3, .pre = 1, .id_stride = 65},
	};
	for (int i = 0; i < 2 * (int)(sizeof cases / sizeof *cases); i++) {
		KAttention a = cases[i / 2];
		a.layout = i % 2;
		a.scale = 1 / sqrtf((float)a.d);
		check_attention(a);
	}
}

/* Columns of rows of `pitch` elements, turned in place, get the bits of y; what lies beside them stays. */
static void check_wide_rope(KRope r, const uint16_t *y, const uint16_t *x, const uint16_t *cs, const uint16_t *sn,
	int64_t pitch, int64_t at)
{
	int64_t rows = r.b * r.t, width = r.h * r.d;
	uint16_t *wide = case_wide(rows, pitch, 2);
	r.pitch = pitch;
	case_put_columns(wide, pitch, at, x, rows, width, 2);
	HALF(k_rope, wide + at, wide + at, cs, sn, &r);
	check_columns("16-bit rope of columns", wide, pitch, at, y, rows, width, true);
	case_equal("16-bit rope: beside the columns", wide, case_wide(rows, pitch, 2), rows * pitch * 2);
}

static void half_rope(void)
{
	for (int flags = 0; flags < 16; flags++) {
		KRope r = {.b = 2, .h = 3, .t = 70, .d = flags & 8 ? 40 : 20, .r = flags & 8 ? 32 : 14, .layout = flags & 1,
			.interleaved = flags & 2, .cos_batched = flags & 4};
		int64_t n = r.b * r.h * r.t * r.d, width = r.h * r.d;
		Num x = numbers(n, -1, 1), cs = numbers(n, -1, 1), sn = numbers(n, -1, 1);
		float *y = case_alloc(n * 4);
		uint16_t *before = memcpy(case_alloc(n * 2), x.h, (size_t)n * 2);
		k_rope_f32(y, x.f, cs.f, sn.f, &r);
		HALF(k_rope, x.h, x.h, cs.h, sn.h, &r);
		close_half("16-bit rope, in place", x.h, doubles_of(y, n), n);
		if (!r.layout)
			continue;
		check_wide_rope(r, x.h, before, cs.h, sn.h, width + 3, 0);
		check_wide_rope(r, x.h, before, cs.h, sn.h, width + 8, 1);
		check_wide_rope(r, x.h, before, cs.h, sn.h, width + 16, 8);
	}
}

/* ---- dropout, gathers, pooling, reductions ---- */

static void half_dropout(void)
{
	StepScalars *s = case_bytes(&(StepScalars){.seed = 5, .rng_step = 3}, sizeof *s);
	Num x = numbers(3 * 41 * 130, -1, 1);
	uint16_t *y = case_alloc(x.n * 2);
	double *want = case_doubles(x.n);
	SAME_BITS("dropout", y, x.n * 2, HALF(k_dropout, y, x.h, 3, 41, 130, 0.3, 7, s));
	k_dropout_f64(want, x.d, 3, 41, 130, 0.3, 7, s);
	close_half("16-bit dropout", y, want, x.n);
}

static void half_gather_grad(void)
{
	for (int add = 0; add < 2; add++)
		for (int64_t outer = 1; outer < 4; outer += 2) {
			int64_t n = 37, inner = 700, m = 900, dim[3] = {outer, m, inner}, *ids = case_ids(m, n);
			Num dy = numbers(outer * m * inner, -1, 1), dx = numbers(outer * n * inner, -1, 1);
			uint16_t *got = case_alloc(dx.n * 2);
			void *work = case_work("gather_grad", (KWorkArgs){.in = {{3, dim, 8}, {1, dim + 1, 8}}});
			for (int64_t i = 0; i < m; i += 5)
				ids[i] = i % 2 ? -1 : 3; /* counted from the end; many of one */
			SAME_BITS("gather_grad", got, dx.n * 2, (memcpy(got, dx.h, (size_t)dx.n * 2),
				HALF(k_gather_grad, got, dy.h, ids, outer, n, inner, m, add, 8, work)));
			k_gather_grad_f64(dx.d, dy.d, ids, outer, n, inner, m, add, 8, work);
			close_half("16-bit gather_grad", got, dx.d, dx.n);
		}
}

static void check_pool(KPool p)
{
	int64_t in = case_numel(p.rank, p.in), out = case_numel(p.rank, p.out);
	Num x = numbers(p.n * p.c * in, -1, 1), dy = numbers(p.n * p.c * out, -1, 1);
	uint16_t *y = case_alloc(dy.n * 2), *dx = case_alloc(x.n * 2);
	int32_t *idx = case_alloc(dy.n * 4), *want_idx = case_alloc(dy.n * 4);
	double *wy = case_doubles(dy.n), *wx = case_doubles(x.n);
	SAME_BITS("max_pool", y, dy.n * 2, HALF(k_max_pool, y, idx, x.h, &p));
	k_max_pool_f64(wy, want_idx, x.d, &p);
	case_close("16-bit max_pool", case_widened(y, dy.n, type), wy, dy.n, 0);
	case_equal("16-bit max_pool: positions", idx, want_idx, dy.n * 4);
	SAME_BITS("max_pool_grad", dx, x.n * 2, HALF(k_max_pool_grad, dx, dy.h, idx, &p));
	k_max_pool_grad_f64(wx, dy.d, idx, &p);
	close_half("16-bit max_pool_grad", dx, wx, x.n);
	SAME_BITS("avg_pool", y, dy.n * 2, HALF(k_avg_pool, y, x.h, &p));
	k_avg_pool_f64(wy, x.d, &p);
	close_half("16-bit avg_pool", y, wy, dy.n);
	SAME_BITS("avg_pool_grad", dx, x.n * 2, HALF(k_avg_pool_grad, dx, dy.h, &p));
	k_avg_pool_grad_f64(wx, dy.d, &p);
	close_half("16-bit avg_pool_grad", dx, wx, x.n);
}

static void half_pool(void)
{
	for (int flags = 0; flags < 4; flags++) {
		int layout = flags & 1;
		bool count_pad = flags & 2;
		check_pool((KPool){.rank = 2, .n = 2, .c = 70, .in = {13, 11}, .out = {7, 6}, .kernel = {3, 3},
			.stride = {2, 2}, .dilation = {1, 1}, .pad = {1, 1}, .pad_end = {1, 1}, .layout = layout,
			.count_pad = count_pad});
		check_pool((KPool){.rank = 2, .n = 1, .c = 5, .in = {9, 10}, .out = {5, 6}, .kernel = {3, 2}, .stride = {1, 1},
			.dilation = {2, 3}, .pad = {0, 0}, .pad_end = {0, 0}, .layout = layout, .count_pad = count_pad});
		check_pool((KPool){.rank = 1, .n = 3, .c = 4, .in = {17}, .out = {6}, .kernel = {3}, .stride = {3},
			.dilation = {1}, .pad = {0}, .pad_end = {1}, .extra = {0}, .layout = layout, .count_pad = count_pad});
		check_pool((KPool){.rank = 3, .n = 1, .c = 3, .in = {5, 4, 6}, .out = {4, 3, 5}, .kernel = {2, 2, 2},
			.stride = {1, 1, 1}, .dilation = {1, 1, 1}, .pad = {0}, .pad_end = {0}, .layout = layout,
			.count_pad = count_pad});
	}
}

typedef void ReduceHalf(uint16_t *, const uint16_t *, int, const int64_t *, unsigned, void *);
typedef void ReduceF64(double *, const double *, int, const int64_t *, unsigned, void *);

static void half_reduce(void)
{
	static const struct { ReduceHalf *bf16, *f16; ReduceF64 *f64; } kernels[] = {
		{k_reduce_sum_bf16, k_reduce_sum_f16, k_reduce_sum_f64},
		{k_reduce_mean_bf16, k_reduce_mean_f16, k_reduce_mean_f64},
		{k_reduce_max_bf16, k_reduce_max_f16, k_reduce_max_f64},
		{k_reduce_min_bf16, k_reduce_min_f16, k_reduce_min_f64},
		{k_reduce_prod_bf16, k_reduce_prod_f16, k_reduce_prod_f64},
	};
	static const struct { int64_t dim[3]; unsigned axes; } shapes[] = {
		{{300, 70, 5}, 1}, {{9, 300, 33}, 5}, {{1024, 1, 768}, 1}, {{3, 5, 9000}, 4}, {{20, 30, 11}, 7},
		{{4, 5, 6}, 2}, {{2, 3000, 264}, 2}, {{5000, 1, 263}, 1}, {{64, 70, 384}, 3}};
	for (int s = 0; s < 9; s++)
		for (int k = 0; k < 5; k++) {
			Num x = numbers(case_numel(3, shapes[s].dim), k == 4 ? 0.9 : -0.5, k == 4 ? 1.1 : 1);
			int64_t n = 1, out[3];
			for (int d = 0; d < 3; d++)
				n *= out[d] = shapes[s].axes >> d & 1 ? 1 : shapes[s].dim[d];
			void *work = case_work("reduce_sum", (KWorkArgs){.in = {{3, shapes[s].dim, 2}}, .out = {{3, out, 2}}});
			uint16_t *y = case_alloc(n * 2);
			double *want = case_doubles(n);
			SAME_BITS("reduce", y, n * 2, (type == K_BF16 ? kernels[k].bf16 : kernels[k].f16)(y, x.h, 3,
				shapes[s].dim, shapes[s].axes, work));
			kernels[k].f64(want, x.d, 3, shapes[s].dim, shapes[s].axes, work);
			if (k < 4 || x.n / n < 2000) /* else products underflow */
				close_half("16-bit reduction", y, want, n);
			if (k > 0)
				continue;
			float *sum = case_alloc(n * 4);
			SAME_BITS("reduce_sum to f32", sum, n * 4, (type == K_BF16 ? k_reduce_sum_bf16_f32
				: k_reduce_sum_f16_f32)(sum, x.h, 3, shapes[s].dim, shapes[s].axes, work));
			check_sums("16-bit reduce_sum to f32", sum, want, y, n);
		}
}

/* The sums are those of f32 logits of the same values; the gradient, of those too, is rounded once. */
static void check_cross_entropy(int64_t rows, int64_t c, bool weighted, double e)
{
	Num x = numbers(rows * c, -5, 5), out = numbers(rows * c, 0, 1);
	float *w = weighted ? case_floats(c, 0.2, 2) : NULL, *dloss = case_floats(1, 0.37, 0.37);
	float *got = case_alloc((rows + 2) * 4), *want = case_alloc((rows + 2) * 4), *grad = case_alloc(rows * c * 4);
	int64_t *labels = case_ids(rows, c), dim[2] = {rows, c};
	void *work = case_work("cross_entropy", (KWorkArgs){.in = {{2, dim, 2}}});
	double *hits[2] = {case_doubles(2), case_doubles(2)};
	for (int64_t i = 0; i < rows; i += 3)
		labels[i] = -100;
	SAME_BITS("cross_entropy", got, (rows + 2) * 4, HALF(k_cross_entropy, got, got + 1, got + 2, x.h, labels, w, rows,
		c, c, -100, e, work));
	k_cross_entropy_f32(want, want + 1, want + 2, x.f, labels, w, rows, c, c, -100, e, work);
	case_sync();
	case_close("16-bit cross_entropy", got, doubles_of(want, rows + 2), rows + 2, 1e-6);
	HALF(k_cross_entropy_grad, out.h, dloss, x.h, labels, w, want + 2, rows, c, c, -100, e);
	k_cross_entropy_grad_f32(grad, dloss, x.f, labels, w, want + 2, rows, c, c, -100, e);
	case_sync();
	close_half("16-bit cross_entropy_grad", out.h, doubles_of(grad, rows * c), rows * c);
	k_accuracy(hits[0], x.h, type, labels, rows, c, -100);
	k_accuracy(hits[1], x.f, K_F32, labels, rows, c, -100);
	case_equal("16-bit accuracy", hits[0], hits[1], 16);
	case_true(hits[0][1] > 0, "16-bit accuracy counts");
	HALF(k_cross_entropy_grad, x.h, dloss, x.h, labels, w, want + 2, rows, c, c, -100, e);
	case_equal("16-bit cross_entropy_grad over logits", x.h, out.h, rows * c * 2);
}

static void half_cross_entropy(void)
{
	for (int weighted = 0; weighted < 2; weighted++)
		for (int smooth = 0; smooth < 2; smooth++) {
			check_cross_entropy(31, 1003, weighted, 0.1 * smooth);
			check_cross_entropy(200, 7, weighted, 0.1 * smooth);
			check_cross_entropy(2, 5001, weighted, 0.1 * smooth);
		}
}

/* f32 sums of three micro-batches: what is added is widened without loss, so each sum is that of floats, to the bit. */
static void add_halves(float *sum, const float *start, const Num x[3])
{
	memcpy(sum, start, (size_t)(x->n + 1) * 4);
	for (int k = 0; k < 3; k++)
		HALF(k_accumulate, sum, x[k].h, x->n);
}

static void add_floats(float *sum, const float *start, const Num x[3])
{
	memcpy(sum, start, (size_t)(x->n + 1) * 4);
	for (int k = 0; k < 3; k++)
		k_accumulate_f32(sum, x[k].f, x->n);
}

static void half_accumulate(void)
{
	static const int64_t sizes[] = {0, 1, 7, 17, 16383, 16384, 16385, 100003};
	for (int s = 0; s < 8; s++) {
		int64_t n = sizes[s];
		Num x[3];
		float *start = case_floats(n + 1, -1, 1), *sum = case_alloc((n + 1) * 4), *want = case_alloc((n + 1) * 4);
		memcpy(want, start, (size_t)(n + 1) * 4);
		for (int k = 0; k < 3; k++) {
			x[k] = numbers(n, -2, 2);
			for (int64_t i = 0; i < n; i++)
				want[i] += x[k].f[i];
		}
		CASE_SAME_BITS("accumulate of 16 bits", sum, (n + 1) * 4, add_halves(sum, start, x));
		case_equal("accumulate of 16 bits", sum, want, (n + 1) * 4);
		CASE_SAME_BITS("accumulate", sum, (n + 1) * 4, add_floats(sum, start, x));
		case_equal("accumulate", sum, want, (n + 1) * 4);
	}
}

#define EACH_TYPE(name) void case_half_##name(void) \
{ \
	for (int i = 0; i < 2; i++) { \
		type = types[i]; \
		half_##name(); \
	} \
}
KERNEL_HALF_CASES(EACH_TYPE)
