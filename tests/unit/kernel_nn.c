/* tests/unit/kernel_nn.c: norms, softmax, losses and dropout against f64 loops. */
#include "base/philox.h"
#include "tests/unit/kernel_cases.h"

/* ---- batch norm ---- */

static const int64_t bn_shapes[][3] = {{4, 70, 37}, {1, 3, 1}, {9, 1, 300}, {2, 130, 5000}, {3, 64, 64}, {2, 264, 500},
	{1, 4100, 3}};
enum { BN_SHAPES = sizeof bn_shapes / sizeof *bn_shapes };

static void check_bn(bool grad)
{
	for (int c = 0; c < BN_SHAPES; c++)
		for (int layout = 0; layout < 2; layout++) {
			int64_t n = bn_shapes[c][0], ch = bn_shapes[c][1], s = bn_shapes[c][2], total = n * ch * s;
			float *x = case_floats(total, -1, 1), *dy = case_floats(total, -1, 1);
			float *a = case_alloc(ch * 8), *b = a + ch, *mean = case_alloc(ch * 4), *var = case_alloc(ch * 4);
			double *m = case_doubles(ch), *v = case_doubles(ch), *sd = case_doubles(ch),
				*sx = case_doubles(ch);
			int64_t dim[3] = {n, layout ? s : ch, layout ? ch : s};
			KShape xs = {3, dim, 4};
			void *work = case_work("bn_stats", (KWorkArgs){.in = {xs, xs}, .layout = layout});
#define CHANNEL(i) (layout ? (i) % ch : (i) / s % ch)
			for (int64_t i = 0; i < total; i++)
				x[i] += 30; /* far from zero: the variance must not cancel */
			for (int64_t i = 0; i < total; i++)
				m[CHANNEL(i)] += x[i] / (double)(n * s);
			for (int64_t i = 0; i < total; i++)
				v[CHANNEL(i)] += (x[i] - m[CHANNEL(i)]) * (x[i] - m[CHANNEL(i)]) / (double)(n * s);
			for (int64_t i = 0; i < ch; i++)
				mean[i] = (float)m[i], var[i] = (float)v[i];
			for (int64_t i = 0; i < total; i++) {
				int64_t k = CHANNEL(i);
				sd[k] += dy[i];
				sx[k] += dy[i] * ((double)x[i] - mean[k]) / sqrt((double)var[k] + 1e-5);
			}
			if (grad) {
				CASE_SAME_BITS("bn_grad_stats", a, ch * 8,
					k_bn_grad_stats_f32(a, b, dy, x, mean, var, n, ch, s, layout, 1e-5, work));
				case_close("bn_grad_stats: sum of dy", a, sd, ch, 1e-5);
				case_close("bn_grad_stats: sum of dy xhat", b, sx, ch, 1e-5);
			} else {
				CASE_SAME_BITS("bn_stats", a, ch * 8, k_bn_stats_f32(a, b, x, n, ch, s, layout, work));
				case_close("bn_stats: mean", a, m, ch, 1e-6);
				case_close("bn_stats: variance", b, v, ch, 1e-6);
			}
		}
}

void case_bn_stats(void) { check_bn(false); }
void case_bn_grad_stats(void) { check_bn(true); }

/* ---- layer and RMS norm ---- */

typedef struct Norm {
	int64_t rows, cols;
	bool centred, has_w, has_b;
	float *x, *w, *b, *dy, *mean, *rstd;
	double *y, *dx, *dw, *db;
	void *work;
} Norm;

static Norm norm_want(int64_t rows, int64_t cols, bool centred, int flags)
{
	Norm r = {.rows = rows, .cols = cols, .centred = centred, .has_w = flags & 1, .has_b = flags & 2};
	int64_t n = rows * cols, dim[2] = {rows, cols};
	r.x = case_floats(n, -1, 3);
	r.w = r.has_w ? case_floats(cols, -1, 1) : NULL;
	r.b = r.has_b ? case_floats(cols, -1, 1) : NULL;
	r.dy = case_floats(n, -1, 1);
	r.mean = case_alloc(rows * 4);
	r.rstd = case_alloc(rows * 4);
	r.y = case_doubles(n);
	r.dx = case_doubles(n);
	r.dw = case_doubles(cols);
	r.db = case_doubles(cols);
	r.work = case_work("layer_norm_grad", (KWorkArgs){.in = {{2, dim, 4}}, .axis = 1});
	for (int64_t i = 0; i < rows; i++) {
		const float *x = r.x + i * cols, *dy = r.dy + i * cols;
		double m = 0, q = 0, sg = 0, sh = 0;
		for (int64_t j = 0; j < cols; j++)
			m += centred ? x[j] / (double)cols : 0;
		for (int64_t j = 0; j < cols; j++)
			q += (x[j] - m) * (x[j] - m) / (double)cols;
		double rs = 1 / sqrt(q + 1e-5);
		r.mean[i] = (float)m;
		r.rstd[i] = (float)rs;
		for (int64_t j = 0; j < cols; j++) {
			double h = (x[j] - m) * rs, g = dy[j] * (r.w ? (double)r.w[j] : 1);
			r.y[i * cols + j] = h * (r.w ? (double)r.w[j] : 1) + (r.b ? (double)r.b[j] : 0);
			r.dw[j] += dy[j] * h;
			r.db[j] += dy[j];
			sg += centred ? g / (double)cols : 0;
			sh += g * h / (double)cols;
		}
		for (int64_t j = 0; j < cols; j++)
			r.dx[i * cols + j] = rs * (dy[j] * (r.w ? (double)r.w[j] : 1) - sg - (x[j] - m) * rs * sh);
	}
	return r;
}

static const int64_t norm_shapes[][2] = {{5, 33}, {300, 768}, {1, 1}, {64, 1}, {3, 10000}};

static void norm_of(const Norm *r, float *y, float *s, const float *x, const float *residual)
{
	if (r->centred)
		k_layer_norm_f32(y, r->mean, r->rstd, s, x, r->w, r->b, residual, r->rows, r->cols, 1e-5);
	else
		k_rms_norm_f32(y, r->rstd, s, x, r->w, residual, r->rows, r->cols, 1e-5);
}

/* The fused kernel gives the bits of an add and a norm behind it, whichever operands share memory. */
static void check_residual(const Norm *r)
{
	int64_t n = r->rows * r->cols;
	float *a = case_floats(n, -1, 1), *sum = case_alloc(n * 4), *y = case_alloc(n * 4), *want = case_alloc(n * 4);
	float *s = case_alloc(n * 4);
	for (int64_t i = 0; i < n; i++)
		sum[i] = r->x[i] + a[i];
	norm_of(r, want, NULL, sum, NULL);
	norm_of(r, y, s, r->x, a);
	case_equal("norm with a residual", y, want, n * 4);
	case_equal("norm with a residual: the sum", s, sum, n * 4);
	norm_of(r, r->x, a, r->x, a);
	case_equal("norm with a residual over x", r->x, want, n * 4);
	case_equal("norm with a residual: the sum over r", a, sum, n * 4);
}

void case_layer_norm(void)
{
	for (int c = 0; c < 5; c++)
		for (int flags = 0; flags < 4; flags++) {
			Norm r = norm_want(norm_shapes[c][0], norm_shapes[c][1], true, flags);
			int64_t n = r.rows * r.cols;
			float *y = case_alloc(n * 4), *mean = case_alloc(r.rows * 4), *rstd = case_alloc(r.rows * 4);
			k_layer_norm_f32(y, mean, rstd, NULL, r.x, r.w, r.b, NULL, r.rows, r.cols, 1e-5);
			case_close("layer_norm", y, r.y, n, 3e-6);
			for (int64_t i = 0; i < r.rows; i++)
				case_true(fabsf(rstd[i] - r.rstd[i]) <= 3e-6f * r.rstd[i]
					&& fabsf(mean[i] - r.mean[i]) <= 1e-6f, "layer_norm: statistics");
			k_layer_norm_f32(y, NULL, NULL, NULL, r.x, r.w, r.b, NULL, r.rows, r.cols, 1e-5);
			check_residual(&r);
		}
}

void case_rms_norm(void)
{
	for (int c = 0; c < 5; c++)
		for (int flags = 0; flags < 2; flags++) {
			Norm r = norm_want(norm_shapes[c][0], norm_shapes[c][1], false, flags);
			float *y = case_alloc(r.rows * r.cols * 4), *rstd = case_alloc(r.rows * 4);
			k_rms_norm_f32(y, rstd, NULL, r.x, r.w, NULL, r.rows, r.cols, 1e-5);
			case_close("rms_norm", y, r.y, r.rows * r.cols, 1e-6);
			check_residual(&r);
		}
}

static void norm_grad_of(const Norm *r, float *dx, float *dw, float *db, const float *ds)
{
	if (r->centred)
		k_layer_norm_grad_f32(dx, dw, db, r->dy, r->x, r->w, r->mean, r->rstd, ds, r->rows, r->cols, r->work);
	else
		k_rms_norm_grad_f32(dx, dw, r->dy, r->x, r->w, r->rstd, ds, r->rows, r->cols, r->work);
}

static void check_norm_grad(bool centred)
{
	for (int c = 0; c < 5; c++)
		for (int flags = 0; flags < 2; flags++) {
			Norm r = norm_want(norm_shapes[c][0], norm_shapes[c][1], centred, flags);
			int64_t n = r.rows * r.cols;
			float *out = case_alloc((n + 2 * r.cols) * 4), *dx = out, *dw = out + n, *db = dw + r.cols;
			memset(db, 0, (size_t)r.cols * 4);
			CASE_SAME_BITS("norm_grad", out, (n + 2 * r.cols) * 4,
				norm_grad_of(&r, dx, dw, db, NULL));
			case_close("norm_grad: dw", dw, r.dw, r.cols, 1e-5);
			if (centred)
				case_close("norm_grad: db", db, r.db, r.cols, 1e-5);
			if (r.cols > 1) /* one column: the true dx of layer norm is zero */
				case_close("norm_grad: dx", dx, r.dx, n, 1e-5);
			float *ds = case_floats(n, -1, 1), *sum = case_alloc(n * 4);
			norm_grad_of(&r, sum, NULL, NULL, ds);
			case_sync();
			for (int64_t i = 0; i < n; i++)
				ds[i] += dx[i];
			case_equal("norm_grad: dx + ds", sum, ds, n * 4);
			norm_grad_of(&r, r.dy, NULL, NULL, NULL);
			case_equal("norm_grad: dx over dy", r.dy, dx, n * 4);
		}
}

void case_layer_norm_grad(void) { check_norm_grad(true); }
void case_rms_norm_grad(void) { check_norm_grad(false); }

/* ---- softmax ---- */

/* Of numbers from `least` to 40 more: below -88 and above 88 e to their power is 0 or infinite in f32. */
static void check_softmax_from(double least, bool logarithm, bool grad)
{
	static const int64_t shapes[][3] = {{7, 33, 1}, {1, 5000, 1}, {3, 17, 70}, {200, 130, 1}, {2, 1, 9}};
	for (int c = 0; c < 5; c++) {
		int64_t outer = shapes[c][0], n = shapes[c][1], inner = shapes[c][2], total = outer * n * inner;
		float *x = case_floats(total, least, least + 40), *dy = case_floats(total, -1, 1), *y = case_alloc(total * 4);
		float *out = case_alloc(total * 4);
		double *want = case_doubles(total), *dx = case_doubles(total);
		for (int64_t r = 0; r < outer * inner; r++) {
			int64_t base = r / inner * n * inner + r % inner;
			double m = -INFINITY, s = 0, dot = 0;
			for (int64_t i = 0; i < n; i++)
				m = fmax(m, x[base + i * inner]);
			for (int64_t i = 0; i < n; i++)
				s += exp(x[base + i * inner] - m);
			for (int64_t i = 0; i < n; i++) {
				int64_t at = base + i * inner;
				want[at] = logarithm ? x[at] - m - log(s) : exp(x[at] - m) / s;
				dot += dy[at] * (logarithm ? 1 : want[at]);
			}
			for (int64_t i = 0; i < n; i++) {
				int64_t at = base + i * inner;
				dx[at] = logarithm ? dy[at] - exp(want[at]) * dot : want[at] * (dy[at] - dot);
				y[at] = (float)want[at];
			}
		}
		if (grad) {
			(logarithm ? k_log_softmax_grad_f32 : k_softmax_grad_f32)(out, dy, y, outer, n, inner);
			case_close("softmax_grad", out, dx, total, n == 1 ? 1e-3 : 1e-5);
			(logarithm ? k_log_softmax_grad_f32 : k_softmax_grad_f32)(dy, dy, y, outer, n, inner);
			case_equal("softmax_grad over dy", dy, out, total * 4);
		} else {
			(logarithm ? k_log_softmax_f32 : k_softmax_f32)(out, x, outer, n, inner);
			case_close("softmax", out, want, total, 1e-6);
			(logarithm ? k_log_softmax_f32 : k_softmax_f32)(x, x, outer, n, inner);
			case_equal("softmax in place", x, out, total * 4);
		}
	}
}

static void check_softmax(bool logarithm, bool grad)
{
	check_softmax_from(-20, logarithm, grad);
	check_softmax_from(-190, logarithm, grad);
	check_softmax_from(150, logarithm, grad);
	check_softmax_from(-2e9, logarithm, grad);
	check_softmax_from(1e5, logarithm, grad);
}

void case_softmax(void) { check_softmax(false, false); }
void case_softmax_grad(void) { check_softmax(false, true); }
void case_log_softmax(void) { check_softmax(true, false); }
void case_log_softmax_grad(void) { check_softmax(true, true); }

/* ---- cross-entropy ---- */

/* Logits lie between least and 10 above it, or where f32 is too coarse for that, at its next numbers. */
static void check_cross_entropy(int64_t rows, int64_t n, int flags, double least)
{
	float *x = case_floats(rows * n, least, least + 10), *w = flags & 1 ? case_floats(n, 0.2, 2) : NULL;
	float *lse = case_alloc(rows * 4), *d = case_alloc(rows * n * 4), *dloss = case_floats(1, 0.37, 0.37);
	float *sum = case_alloc(4), *weight = case_alloc(4);
	double *grad = case_doubles(rows * n), e = flags & 2 ? 0.1 : 0, s = 0, total = 0, all = 0;
	int64_t *labels = case_ids(rows, n), dim[2] = {rows, n};
	void *work = case_work("cross_entropy", (KWorkArgs){.in = {{2, dim, 4}}});
	for (int64_t i = 0; i < rows; i += 3)
		labels[i] = -100;
	for (int64_t j = 0; j < n; j++)
		all += w ? (double)w[j] : 1;
	for (int64_t i = 0; i < rows; i++) {
		double m = 0, wy = w && labels[i] >= 0 ? (double)w[labels[i]] : 1;
		for (int64_t j = 0; j < n; j++)
			m += exp(x[i * n + j] - least);
		if (labels[i] == -100)
			continue;
		total += wy;
		s += (1 - e) * wy * (log(m) - (x[i * n + labels[i]] - least));
		for (int64_t j = 0; j < n; j++) {
			double p = exp(x[i * n + j] - least) / m, wj = w ? (double)w[j] : 1;
			s += e / (double)n * wj * (log(m) - (x[i * n + j] - least));
			grad[i * n + j] = *dloss * ((1 - e) * wy * (p - (j == labels[i])) + e / (double)n * (all * p - wj));
		}
	}
	CASE_SAME_BITS("cross_entropy", sum, 4,
		k_cross_entropy_f32(sum, weight, lse, x, labels, w, rows, n, n, -100, e, work));
	case_close("cross_entropy", sum, &s, 1, 1e-6);
	case_close("cross_entropy: weight", weight, &total, 1, 1e-6);
	k_cross_entropy_grad_f32(d, dloss, x, labels, w, lse, rows, n, n, -100, e);
	case_close("cross_entropy_grad", d, grad, rows * n, 1e-5);
	k_cross_entropy_grad_f32(x, dloss, x, labels, w, lse, rows, n, n, -100, e);
	case_equal("cross_entropy_grad over logits", x, d, rows * n * 4);
}

static void check_cross_entropies(void)
{
	for (int flags = 0; flags < 4; flags++) {
		check_cross_entropy(50, 1000, flags, -5);
		check_cross_entropy(300, 7, flags, -5);
		check_cross_entropy(77, 64, flags, -5);
		check_cross_entropy(2, 5001, flags, -5);
		check_cross_entropy(3, 50257, flags, -5);
		check_cross_entropy(50, 100, flags, -150);
		check_cross_entropy(7, 5001, flags, -150);
		check_cross_entropy(50, 100, flags, 150);
		for (int far = -1; far <= 1; far += 2) {
			check_cross_entropy(50, 100, flags, far * 1e5);
			check_cross_entropy(40, 7, flags, far * 1e5);
			check_cross_entropy(30, 64, flags, far * 2e9);
			check_cross_entropy(7, 5001, flags, far * 2e9);
		}
	}
}

void case_cross_entropy(void)
{
	float *x = case_bytes((float[]){1, 2, 3, 4, 5, 6}, 24), *sum = case_alloc(4), *weight = case_alloc(4);
	float *lse = case_alloc(8);
	int64_t *labels = case_bytes((int64_t[]){3, -1}, 16), dim[2] = {2, 3};
	void *work = case_work("cross_entropy", (KWorkArgs){.in = {{2, dim, 4}}});
	double *acc = case_doubles(2);
	check_cross_entropies();
	check_pitched_losses();
	k_cross_entropy_f32(sum, weight, lse, x, labels, NULL, 2, 3, 3, -100, 0, work);
	case_true(case_bad_inputs() == (case_cuda() ? 1 : 2) && *weight == 0, "labels out of range");
	labels[0] = 2;
	labels[1] = -100;
	k_accuracy(acc, x, K_F32, labels, 2, 3, -100);
	case_sync();
	case_true(acc[0] == 1 && acc[1] == 1, "accuracy");
}

void case_cross_entropy_grad(void) { check_cross_entropies(); }

/* ---- dropout ---- */

void case_dropout(void)
{
	StepScalars *s = case_bytes(&(StepScalars){.seed = 42, .rng_step = 9, .sample0 = 17}, sizeof *s);
	int64_t pre = 3, rows = 5, post = 1500, n = pre * rows * post, kept = 0;
	float *x = case_floats(n, 1, 2), *y = case_alloc(n * 4), *part = case_alloc(n * 4);
	uint8_t *mask = case_alloc(n);
	CASE_SAME_BITS("dropout", y, n * 4, k_dropout_f32(y, x, pre, rows, post, 0.3, 7, s));
	k_dropout_mask(mask, pre, rows, post, 0.3, 7, s);
	case_sync();
	for (int64_t i = 0; i < n; i++) {
		uint64_t row = 17 + (uint64_t)(i / post % rows),
			inner = (uint64_t)(i / post / rows * post + i % post);
		uint32_t b[4];
		philox_block(b, philox_key(42, 7), row, inner / 4, 9);
		bool keep = b[inner % 4] >= philox_threshold(0.3);
		kept += keep;
		case_true(mask[i] == keep && fabsf(y[i] - (keep ? x[i] / 0.7f : 0)) < 1e-6f * 3, "dropout");
	}
	case_true(fabs((double)kept / (double)n - 0.7) < 0.02, "dropout keeps 70%");
	/* the second half of a batch on another rank: the same mask */
	s->sample0 = 17 + 2;
	k_dropout_f32(part, x + 2 * post, 1, 3, post, 0.3, 7, s);
	case_equal("dropout by global row", part, y + 2 * post, 3 * post * 4);
	k_dropout_f32(y, x, pre, rows, post, 1, 7, s);
	case_sync();
	case_true(y[0] == 0 && y[n - 1] == 0, "dropout of all");
}

void case_dropout_mask(void)
{
	StepScalars *s = case_bytes(&(StepScalars){.seed = 1}, sizeof *s);
	uint8_t *a = case_alloc(64), *b = case_alloc(64);
	k_dropout_mask(a, 1, 2, 32, 0.5, 3, s);
	k_dropout_mask(b, 1, 2, 32, 0.5, 4, s);
	case_sync();
	case_true(memcmp(a, b, 64) != 0, "another node has another mask");
	k_dropout_mask(a, 1, 2, 32, 0, 3, s);
	case_sync();
	case_true(memchr(a, 0, 64) == NULL, "p = 0 keeps all");
	k_dropout_mask(a, 1, 0, 64, 0.5, 3, s);
	case_sync();
	s->sample0 = 5;
	k_dropout_mask(b, 1, 0, 64, 0.5, 3, s);
	case_sync();
	case_true(memcmp(a, b, 64) == 0 && memchr(a, 0, 64) && memchr(a, 1, 64), "without samples all ranks have one mask");
	s->rng_step = 1;
	k_dropout_mask(b, 1, 0, 64, 0.5, 3, s);
	case_sync();
	case_true(memcmp(a, b, 64) != 0, "another step has another mask");
}
