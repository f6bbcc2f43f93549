/* tests/unit/kernel_nn.c: norms, softmax, attention, rope, losses, dropout, updates against f64 loops. */
#include "base/philox.h"
#include "tests/unit/kernel_cases.h"

/* ---- batch norm ---- */

static const int64_t bn_shapes[][3] = {{4, 70, 37}, {1, 3, 1}, {9, 1, 300}, {2, 130, 5000}, {3, 64, 64}};

static void check_bn(bool grad)
{
	for (int c = 0; c < 5; c++)
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

static void check_softmax(bool logarithm, bool grad)
{
	static const int64_t shapes[][3] = {{7, 33, 1}, {1, 5000, 1}, {3, 17, 70}, {200, 130, 1}, {2, 1, 9}};
	for (int c = 0; c < 5; c++) {
		int64_t outer = shapes[c][0], n = shapes[c][1], inner = shapes[c][2], total = outer * n * inner;
		float *x = case_floats(total, -20, 20), *dy = case_floats(total, -1, 1), *y = case_alloc(total * 4);
		float *out = case_alloc(total * 4);
		double *want = case_doubles(total), *dx = case_doubles(total);
		for (int64_t r = 0; r < outer * inner; r++) {
			int64_t base = r / inner * n * inner + r % inner;
			double m = -1e9, s = 0, dot = 0;
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

void case_softmax(void) { check_softmax(false, false); }
void case_softmax_grad(void) { check_softmax(false, true); }
void case_log_softmax(void) { check_softmax(true, false); }
void case_log_softmax_grad(void) { check_softmax(true, true); }

/* ---- attention ---- */

/* keep: what dropout makes of a tensor of ones in place of the weights. */
typedef struct Attn { KAttention a; float *q, *k, *v, *dy, *o, *lse, *keep; void *mask, *ids; double *wo, *wlse, *dq,
	*dk, *dv; StepScalars *scalars; } Attn;
enum { ATTN_ID = 5 };

static int64_t at4(const KAttention *a, int64_t heads, int64_t rows, int64_t width, int64_t b, int64_t h,
	int64_t r)
{
	return (a->layout ? (b * rows + r) * heads + h : (b * heads + h) * rows + r) * width;
}

static bool attn_sees(const Attn *c, int64_t b, int64_t t, int64_t s)
{
	const KAttention *a = &c->a;
	const int32_t *i32 = c->ids;
	const int64_t *i64 = c->ids;
	int64_t at = b * a->id_stride;
	if ((a->has_right && s > t + a->right) || (a->has_left && s < t - a->left))
		return false;
	return !c->ids || (a->ids32 ? i32[at + s] == i32[at + t] : i64[at + s] == i64[at + t]);
}

/* Scores of one row, -inf where masked; dcap: derivative of the soft cap. */
static void attn_scores(const Attn *c, int64_t b, int64_t h, int64_t t, double *s, double *dcap)
{
	const KAttention *a = &c->a;
	const float *q = c->q + at4(a, a->h, a->t, a->d, b, h, t);
	for (int64_t i = 0; i < a->s; i++) {
		const float *k = c->k + at4(a, a->hk, a->s, a->d, b, h / (a->h / a->hk), i);
		int64_t m = b * a->mask_stride[0] + h * a->mask_stride[1] + t * a->mask_stride[2] + i * a->mask_stride[3];
		s[i] = 0;
		dcap[i] = 1;
		for (int64_t d = 0; d < a->d; d++)
			s[i] += (double)q[d] * k[d];
		s[i] *= a->scale;
		if (a->softcap > 0) {
			double u = tanh(s[i] / a->softcap);
			dcap[i] = 1 - u * u;
			s[i] = a->softcap * u;
		}
		if (a->mask == K_MASK_FLOAT && ((float *)c->mask)[m] < -1e6f)
			s[i] = (float)(s[i] + ((float *)c->mask)[m]); /* f32 has no digits left for a score */
		else if (a->mask == K_MASK_FLOAT)
			s[i] += ((float *)c->mask)[m];
		if ((a->mask == K_MASK_BOOL && !((uint8_t *)c->mask)[m])
			|| !attn_sees(c, b, t, i))
			s[i] = -INFINITY;
	}
}

static void attn_row(Attn *c, int64_t b, int64_t h, int64_t t, double *s, double *dcap)
{
	const KAttention *a = &c->a;
	int64_t hk = h / (a->h / a->hk), qo = at4(a, a->h, a->t, a->d, b, h, t), oo = at4(a, a->h, a->t, a->dv,
		b, h, t);
	const float *keep = c->keep + ((b * a->h + h) * a->t + t) * a->s;
	double m = -INFINITY, sum = 0, delta = 0;
	attn_scores(c, b, h, t, s, dcap);
	for (int64_t i = 0; i < a->s; i++)
		m = fmax(m, s[i]);
	for (int64_t i = 0; i < a->s; i++)
		sum += m == -INFINITY ? 0 : (s[i] = exp(s[i] - m));
	c->wlse[(b * a->h + h) * a->t + t] = m == -INFINITY ? m : m + log(sum);
	for (int64_t d = 0; d < a->dv; d++)
		c->wo[oo + d] = m == -INFINITY && a->empty_nan ? NAN : 0;
	if (m == -INFINITY)
		return;
	for (int64_t i = 0; i < a->s; i++)
		for (int64_t d = 0; d < a->dv; d++)
			c->wo[oo + d] += s[i] / sum * keep[i] * c->v[at4(a, a->hk, a->s, a->dv, b, hk, i) + d];
	for (int64_t d = 0; d < a->dv; d++)
		delta += c->wo[oo + d] * c->dy[oo + d];
	for (int64_t i = 0; i < a->s; i++) {
		int64_t ko = at4(a, a->hk, a->s, a->d, b, hk, i), vo = at4(a, a->hk, a->s, a->dv, b, hk, i);
		double p = s[i] / sum, dp = 0;
		for (int64_t d = 0; d < a->dv; d++) {
			dp += (double)c->dy[oo + d] * c->v[vo + d];
			c->dv[vo + d] += p * keep[i] * c->dy[oo + d];
		}
		double ds = p * (dp * keep[i] - delta) * dcap[i] * a->scale;
		for (int64_t d = 0; d < a->d; d++) {
			c->dq[qo + d] += ds * c->k[ko + d];
			c->dk[ko + d] += ds * c->q[qo + d];
		}
	}
}

/* Documents of uneven lengths, some of which come back; samples may share them. */
static void *attn_ids(const KAttention *a)
{
	int64_t n = a->id_stride ? a->b * a->s : a->s, id = 0;
	void *ids = case_alloc(n * 8);
	for (int64_t i = 0; i < n; i++) {
		id = i % a->s == 0 || case_random(20) == 0 ? (int64_t)case_random(5) - 2 : id;
		if (a->ids32)
			((int32_t *)ids)[i] = (int32_t)id;
		else
			((int64_t *)ids)[i] = id * (INT64_C(1) << 33);
	}
	return ids;
}

/* By the kernel that drops elements of a tensor. */
static void attn_dropout(Attn *c)
{
	const KAttention *a = &c->a;
	int64_t n = a->b * a->h * a->t * a->s, rows = a->rows ? a->rows : 1;
	c->keep = case_alloc(n * 4);
	*(c->scalars = case_alloc(sizeof *c->scalars)) = (StepScalars){.seed = 42, .rng_step = 9, .sample0 = 17};
	for (int64_t i = 0; i < n; i++)
		c->keep[i] = 1;
	if (a->p > 0)
		k_dropout_f32(c->keep, c->keep, a->pre, a->rows, n / (a->pre * rows), a->p, ATTN_ID, c->scalars);
	case_sync();
}

static Attn attn_make(KAttention a, bool documents)
{
	int64_t nq = a.b * a.h * a.t, nk = a.b * a.hk * a.s;
	Attn c = {.a = a, .q = case_floats(nq * a.d, -2, 2), .k = case_floats(nk * a.d, -2, 2),
		.v = case_floats(nk * a.dv, -1, 1), .dy = case_floats(nq * a.dv, -1, 1),
			.o = case_alloc(nq * a.dv * 4),
		.lse = case_alloc(nq * 4), .wo = case_doubles(nq * a.dv), .wlse = case_doubles(nq),
		.dq = case_doubles(nq * a.d), .dk = case_doubles(nk * a.d), .dv = case_doubles(nk * a.dv)};
	int64_t nm = a.b * a.h * a.t * a.s;
	if (a.mask == K_MASK_BOOL) {
		c.mask = case_alloc(nm);
		for (int64_t i = 0; i < nm; i++)
			((uint8_t *)c.mask)[i] = case_random(3) != 0 && i / a.s % 7 != 3; /* some rows see nothing */
	} else if (a.mask == K_MASK_FLOAT) {
		c.mask = case_floats(nm, -3, 3);
		case_hide(c.mask, nm, a.s, K_F32);
	}
	c.ids = documents ? attn_ids(&a) : NULL;
	attn_dropout(&c);
	double *s = case_doubles(a.s), *dcap = case_doubles(a.s);
	for (int64_t b = 0; b < a.b; b++)
		for (int64_t h = 0; h < a.h; h++)
			for (int64_t t = 0; t < a.t; t++)
				attn_row(&c, b, h, t, s, dcap);
	return c;
}

/* The last cases have documents. */
enum { N_ATTN = 52, FIRST_IDS = 46 };
static KAttention attn_case(int i)
{
	static const KAttention cases[] = {
		{.b = 2, .h = 3, .hk = 3, .t = 70, .s = 70, .d = 16, .dv = 16, .has_right = 1},
		{.b = 1, .h = 4, .hk = 2, .t = 65, .s = 130, .d = 20, .dv = 24, .has_right = 1, .right = 65},
		{.b = 2, .h = 2, .hk = 1, .t = 90, .s = 30, .d = 8, .dv = 8, .has_right = 1, .right = -60},
		{.b = 2, .h = 2, .hk = 2, .t = 33, .s = 150, .d = 64, .dv = 64},
		{.b = 2, .h = 2, .hk = 2, .t = 17, .s = 41, .d = 5, .dv = 7, .mask = K_MASK_BOOL,
			.mask_stride = {1394, 697, 41, 1}},
		{.b = 2, .h = 2, .hk = 2, .t = 17, .s = 41, .d = 5, .dv = 7, .mask = K_MASK_BOOL,
			.mask_stride = {41, 0, 0, 1},
			.has_right = 1, .empty_nan = 1},
		{.b = 2, .h = 2, .hk = 2, .t = 100, .s = 41, .d = 32, .dv = 32, .mask = K_MASK_FLOAT,
			.mask_stride = {0, 4100, 41, 1},
			.softcap = 2},
		{.b = 1, .h = 2, .hk = 2, .t = 1, .s = 1, .d = 3, .dv = 3},
		{.b = 1, .h = 1, .hk = 1, .t = 40, .s = 50, .d = 300, .dv = 600, .has_right = 1},
		{.b = 1, .h = 8, .hk = 2, .t = 65, .s = 63, .d = 64, .dv = 40, .has_right = 1},
		{.b = 1, .h = 2, .hk = 1, .t = 130, .s = 64, .d = 80, .dv = 128, .has_right = 1, .right = -66,
			.empty_nan = 1},
		{.b = 1, .h = 2, .hk = 1, .t = 64, .s = 1, .d = 8, .dv = 8, .has_right = 1, .right = -63},
		/* windows */
		{.b = 1, .h = 4, .hk = 2, .t = 201, .s = 201, .d = 16, .dv = 8, .has_left = 1, .left = 9, .has_right = 1},
		{.b = 1, .h = 2, .hk = 2, .t = 131, .s = 300, .d = 8, .dv = 8, .has_left = 1, .left = -70, .has_right = 1,
			.right = 150},
		{.b = 1, .h = 1, .hk = 1, .t = 200, .s = 100, .d = 8, .dv = 8, .has_left = 1, .left = 64},
		{.b = 1, .h = 1, .hk = 1, .t = 70, .s = 200, .d = 8, .dv = 8, .has_left = 1, .left = 3, .has_right = 1,
			.right = -5, .mask = K_MASK_BOOL, .mask_stride = {0, 0, 200, 1}},
		{.b = 1, .h = 1, .hk = 1, .t = 70, .s = 20, .d = 8, .dv = 8, .has_right = 1, .right = -90, .empty_nan = 1},
		{.b = 1, .h = 1, .hk = 1, .t = 130, .s = 40, .d = 8, .dv = 8, .has_left = 1, .left = -39},
		/* dropout: rows that begin with a group of four numbers, and rows that do not */
		{.b = 2, .h = 2, .hk = 2, .t = 70, .s = 132, .d = 16, .dv = 16, .p = 0.3, .pre = 1, .rows = 2},
		{.b = 2, .h = 4, .hk = 2, .t = 67, .s = 67, .d = 8, .dv = 24, .has_right = 1, .p = 0.4, .pre = 1, .rows = 2,
			.softcap = 2},
		{.b = 4, .h = 1, .hk = 1, .t = 30, .s = 70, .d = 8, .dv = 8, .has_left = 1, .left = 17, .p = 0.1, .pre = 2,
			.rows = 2},
		{.b = 2, .h = 3, .hk = 1, .t = 65, .s = 129, .d = 300, .dv = 8, .p = 0.25, .pre = 1, .mask = K_MASK_FLOAT,
			.mask_stride = {0, 65 * 129, 129, 1}, .has_right = 1, .right = 64},
		{.b = 1, .h = 2, .hk = 2, .t = 64, .s = 64, .d = 64, .dv = 64, .p = 0.9, .pre = 1, .rows = 1},
		/* documents */
		{.b = 2, .h = 2, .hk = 1, .t = 300, .s = 300, .d = 8, .dv = 8, .id_stride = 300},
		{.b = 2, .h = 1, .hk = 1, .t = 130, .s = 130, .d = 8, .dv = 16, .has_right = 1, .ids32 = 1},
		{.b = 3, .h = 2, .hk = 2, .t = 201, .s = 201, .d = 16, .dv = 16, .has_left = 1, .left = 30, .has_right = 1,
			.right = 3, .id_stride = 201, .p = 0.2, .pre = 1, .rows = 3},
	};
	_Static_assert(N_ATTN == 2 * sizeof cases / sizeof *cases, "cases in both layouts");
	KAttention a = cases[i / 2];
	a.layout = i % 2;
	a.scale = 1 / sqrtf((float)a.d);
	return a;
}

/* q as columns of wider rows, k and v as neighbours in others, with `gap` elements before, between and behind them; and
 * places for the gradients. */
typedef struct Wide { KAttention a; int64_t rows, keys, row, key, v_at; float *q, *k, *v, *dq, *dk, *dv; } Wide;

static Wide attn_wide(const Attn *c, int64_t gap)
{
	Wide w = {.a = c->a, .rows = c->a.b * c->a.t, .keys = c->a.b * c->a.s, .row = c->a.h * c->a.d + 2 * gap};
	int64_t kn = c->a.hk * c->a.d, vn = c->a.hk * c->a.dv;
	w.v_at = kn + 2 * gap;
	w.key = w.v_at + vn + gap;
	w.a.q_pitch = w.a.dq_pitch = w.row;
	w.a.k_pitch = w.a.v_pitch = w.a.dk_pitch = w.a.dv_pitch = w.key;
	w.q = (float *)case_wide(w.rows, w.row, 4) + gap;
	w.k = (float *)case_wide(w.keys, w.key, 4) + gap;
	w.v = w.k - gap + w.v_at;
	w.dq = (float *)case_wide(w.rows, w.row, 4) + gap;
	w.dk = (float *)case_wide(w.keys, w.key, 4) + gap;
	w.dv = w.dk - gap + w.v_at;
	case_put_columns(w.q - gap, w.row, gap, c->q, w.rows, c->a.h * c->a.d, 4);
	case_put_columns(w.k - gap, w.key, gap, c->k, w.keys, kn, 4);
	case_put_columns(w.k - gap, w.key, w.v_at, c->v, w.keys, vn, 4);
	return w;
}

/* Columns of wider rows give the bits of whole tensors: c->o and c->lse, and dq, dk, dv where they are not NULL. */
static void check_wide(const Attn *c, int64_t gap, const float *dq, const float *dk, const float *dv, void *work)
{
	Wide w = attn_wide(c, gap);
	int64_t n = w.rows * c->a.h, kn = c->a.hk * c->a.d;
	float *o = case_alloc(n * c->a.dv * 4), *lse = case_alloc(n * 4);
	if (!dq) {
		k_attention_f32(o, lse, w.q, w.k, w.v, c->mask, c->ids, &w.a, ATTN_ID, c->scalars, NULL);
		case_equal("attention of columns", o, c->o, n * c->a.dv * 4);
		case_equal("attention of columns: lse", lse, c->lse, n * 4);
		return;
	}
	k_attention_grad_f32(w.dq, w.dk, w.dv, c->dy, w.q, w.k, w.v, c->mask, c->ids, c->o, c->lse, &w.a, ATTN_ID,
		c->scalars, work);
	float *rows = case_wide(w.rows, w.row, 4), *keys = case_wide(w.keys, w.key, 4);
	case_put_columns(rows, w.row, gap, dq, w.rows, c->a.h * c->a.d, 4);
	case_put_columns(keys, w.key, gap, dk, w.keys, kn, 4);
	case_put_columns(keys, w.key, w.v_at, dv, w.keys, c->a.hk * c->a.dv, 4);
	case_equal("attention_grad to columns: dq and what lies beside", w.dq - gap, rows, w.rows * w.row * 4);
	case_equal("attention_grad to columns: dk, dv and what lies beside", w.dk - gap, keys, w.keys * w.key * 4);
}

void case_attention(void)
{
	for (int i = 0; i < N_ATTN; i++) {
		Attn c = attn_make(attn_case(i), i >= FIRST_IDS);
		int64_t n = c.a.b * c.a.h * c.a.t;
		CASE_SAME_BITS("attention", c.o, n * c.a.dv * 4,
			k_attention_f32(c.o, c.lse, c.q, c.k, c.v, c.mask, c.ids, &c.a, ATTN_ID, c.scalars, NULL));
		case_close("attention", c.o, c.wo, n * c.a.dv, 3e-6);
		case_close("attention: lse", c.lse, c.wlse, n, 3e-6);
		for (int64_t gap = 0; c.a.layout && gap < 4; gap += 3)
			check_wide(&c, gap, NULL, NULL, NULL, NULL);
	}
}

void case_attention_grad(void)
{
	for (int i = 0; i < N_ATTN; i++) {
		Attn c = attn_make(attn_case(i), i >= FIRST_IDS);
		int64_t nq = c.a.b * c.a.h * c.a.t * c.a.d, ns = c.a.b * c.a.hk * c.a.s, nk = ns * c.a.d,
			nv = ns * c.a.dv;
		float *out = case_alloc((nq + nk + nv) * 4), *dq = out, *dk = out + nq, *dv = dk + nk;
		int64_t od[4] = {c.a.b, c.a.h, c.a.t, c.a.dv}, none[4] = {0};
		KShape empty = {4, none, 4};
		void *work = case_work("attention_grad", (KWorkArgs){.in = {{4, od, 4}, empty, empty, empty}});
		k_attention_f32(c.o, c.lse, c.q, c.k, c.v, c.mask, c.ids, &c.a, ATTN_ID, c.scalars, NULL);
		CASE_SAME_BITS("attention_grad", out, (nq + nk + nv) * 4,
			k_attention_grad_f32(dq, dk, dv, c.dy, c.q, c.k, c.v, c.mask, c.ids, c.o, c.lse, &c.a, ATTN_ID,
				c.scalars, work));
		if (c.a.s > 1) { /* one key: the true dq and dk are zero */
			case_close("attention_grad: dq", dq, c.dq, nq, 1e-5);
			case_close("attention_grad: dk", dk, c.dk, nk, 1e-5);
		}
		case_close("attention_grad: dv", dv, c.dv, nv, 1e-5);
		for (int64_t gap = 0; c.a.layout && gap < 4; gap += 3)
			check_wide(&c, gap, dq, dk, dv, work);
	}
}

/* Columns of wider rows give y, the bits of a whole tensor; in place and to other rows. */
static void check_wide_rope(KRope r, const float *y, const float *x, const float *cs, const float *sn, int64_t gap)
{
	int64_t rows = r.b * r.t, width = r.h * r.d, pitch = width + 2 * gap;
	float *from = case_wide(rows, pitch, 4), *to = case_wide(rows, pitch, 4), *want = case_wide(rows, pitch, 4);
	r.pitch = pitch;
	case_put_columns(from, pitch, gap, x, rows, width, 4);
	case_put_columns(want, pitch, gap, y, rows, width, 4);
	k_rope_f32(to + gap, from + gap, cs, sn, &r);
	case_equal("rope of columns", to, want, rows * pitch * 4);
	k_rope_f32(from + gap, from + gap, cs, sn, &r);
	case_equal("rope of columns, in place", from, want, rows * pitch * 4);
}

void case_rope(void)
{
	for (int flags = 0; flags < 8; flags++) {
		KRope r = {.b = 2, .h = 3, .t = 70, .d = 20, .r = 14, .layout = flags & 1, .interleaved = flags & 2,
			.cos_batched = flags & 4};
		int64_t n = r.b * r.h * r.t * r.d, half = r.r / 2;
		float *x = case_floats(n, -1, 1), *y = case_alloc(n * 4), *cs = case_alloc(n * 4),
			*sn = case_alloc(n * 4);
		double *want = case_doubles(n), *same = case_doubles(n);
		for (int64_t i = 0; i < r.b * r.t * half; i++) {
			float angle = (float)case_random(1000) / 100;
			cs[i] = cosf(angle);
			sn[i] = sinf(angle);
		}
		for (int64_t i = 0; i < n; i++) {
			int64_t row = i / r.d, d = i % r.d, b = row / (r.h * r.t), t = r.layout ? row / r.h % r.t
				: row % r.t;
			int64_t pair = r.interleaved ? d / 2 : d % half, at = ((r.cos_batched ? b * r.t
				: 0) + t) * half + pair;
			bool second = r.interleaved ? d % 2 : d >= half;
			int64_t other = row * r.d + (r.interleaved ? d ^ 1 : second ? d - half : d + half);
			same[i] = x[i];
			want[i] = d >= r.r ? x[i] : x[i] * (double)cs[at] + (second ? 1 : -1) * (double)x[other] * sn[at];
		}
		k_rope_f32(y, x, cs, sn, &r);
		case_close("rope", y, want, n, 1e-6);
		for (int64_t gap = 3; r.layout && gap < 6; gap++)
			check_wide_rope(r, y, x, cs, sn, gap);
		r.inverse = true;
		k_rope_f32(y, y, cs, sn, &r);
		case_close("rope and back, in place", y, same, n, 1e-6);
	}
}

/* ---- cross-entropy ---- */

static void check_cross_entropy(int64_t rows, int64_t n, int flags)
{
	float *x = case_floats(rows * n, -5, 5), *w = flags & 1 ? case_floats(n, 0.2, 2) : NULL;
	float sum, weight, *lse = case_alloc(rows * 4), *d = case_alloc(rows * n * 4), dloss = 0.37f;
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
			m += exp(x[i * n + j]);
		if (labels[i] == -100)
			continue;
		total += wy;
		s += (1 - e) * wy * (log(m) - x[i * n + labels[i]]);
		for (int64_t j = 0; j < n; j++) {
			double p = exp(x[i * n + j]) / m, wj = w ? (double)w[j] : 1;
			s += e / (double)n * wj * (log(m) - x[i * n + j]);
			grad[i * n + j] = dloss * ((1 - e) * wy * (p - (j == labels[i])) + e / (double)n * (all * p - wj));
		}
	}
	CASE_SAME_BITS("cross_entropy", &sum, 4,
		k_cross_entropy_f32(&sum, &weight, lse, x, labels, w, rows, n, -100, e, work));
	case_close("cross_entropy", &sum, &s, 1, 1e-6);
	case_close("cross_entropy: weight", &weight, &total, 1, 1e-6);
	k_cross_entropy_grad_f32(d, &dloss, x, labels, w, lse, rows, n, -100, e);
	case_close("cross_entropy_grad", d, grad, rows * n, 1e-5);
	k_cross_entropy_grad_f32(x, &dloss, x, labels, w, lse, rows, n, -100, e);
	case_equal("cross_entropy_grad over logits", x, d, rows * n * 4);
}

static void check_cross_entropies(void)
{
	for (int flags = 0; flags < 4; flags++) {
		check_cross_entropy(50, 1000, flags);
		check_cross_entropy(300, 7, flags);
		check_cross_entropy(2, 5001, flags);
		check_cross_entropy(3, 50257, flags);
	}
}

void case_cross_entropy(void)
{
	float x[6] = {1, 2, 3, 4, 5, 6}, sum, weight, lse[2];
	int64_t labels[2] = {3, -1}, dim[2] = {2, 3};
	void *work = case_work("cross_entropy", (KWorkArgs){.in = {{2, dim, 4}}});
	double acc[2] = {0, 0};
	check_cross_entropies();
	k_cross_entropy_f32(&sum, &weight, lse, x, labels, NULL, 2, 3, -100, 0, work);
	case_true(case_bad_inputs() == (case_cuda() ? 1 : 2) && weight == 0, "labels out of range");
	labels[0] = 2;
	labels[1] = -100;
	k_accuracy(acc, x, K_F32, labels, 2, 3, -100);
	case_true(acc[0] == 1 && acc[1] == 1, "accuracy");
}

void case_cross_entropy_grad(void) { check_cross_entropies(); }

/* ---- dropout ---- */

void case_dropout(void)
{
	StepScalars s = {.seed = 42, .rng_step = 9, .sample0 = 17};
	int64_t pre = 3, rows = 5, post = 1500, n = pre * rows * post, kept = 0;
	float *x = case_floats(n, 1, 2), *y = case_alloc(n * 4), *part = case_alloc(n * 4);
	uint8_t *mask = case_alloc(n);
	CASE_SAME_BITS("dropout", y, n * 4, k_dropout_f32(y, x, pre, rows, post, 0.3, 7, &s));
	k_dropout_mask(mask, pre, rows, post, 0.3, 7, &s);
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
	s.sample0 = 17 + 2;
	k_dropout_f32(part, x + 2 * post, 1, 3, post, 0.3, 7, &s);
	case_equal("dropout by global row", part, y + 2 * post, 3 * post * 4);
	k_dropout_f32(y, x, pre, rows, post, 1, 7, &s);
	case_true(y[0] == 0 && y[n - 1] == 0, "dropout of all");
}

void case_dropout_mask(void)
{
	StepScalars s = {.seed = 1};
	uint8_t a[64], b[64];
	k_dropout_mask(a, 1, 2, 32, 0.5, 3, &s);
	k_dropout_mask(b, 1, 2, 32, 0.5, 4, &s);
	case_true(memcmp(a, b, 64) != 0, "another node has another mask");
	k_dropout_mask(a, 1, 2, 32, 0, 3, &s);
	case_true(memchr(a, 0, 64) == NULL, "p = 0 keeps all");
	k_dropout_mask(a, 1, 0, 64, 0.5, 3, &s);
	s.sample0 = 5;
	k_dropout_mask(b, 1, 0, 64, 0.5, 3, &s);
	case_true(memcmp(a, b, 64) == 0 && memchr(a, 0, 64) && memchr(a, 1, 64), "without samples all ranks have one mask");
	s.rng_step = 1;
	k_dropout_mask(b, 1, 0, 64, 0.5, 3, &s);
	case_true(memcmp(a, b, 64) != 0, "another step has another mask");
}

/* ---- flat buffers and updates ---- */

static const Segment segments[3] = {{0, 1000, 0, 0, 0}, {1024, 20000, 1, 1, 0}, {21056, 7, 0, 2, 0}};
enum { FLAT = 21120 };

void case_zero_gaps(void)
{
	float *x = case_floats(FLAT, 1, 2);
	k_zero_gaps(x, FLAT, segments, 3, 4);
	for (int64_t i = 0; i < FLAT; i++) {
		bool inside = false;
		for (int k = 0; k < 3; k++)
			inside |= i >= segments[k].begin && i < segments[k].begin + segments[k].length;
		case_true((x[i] != 0) == inside, "zero_gaps");
	}
}

static void case_norm_of(double p, KDType type)
{
	float *x = case_floats(FLAT, -1, 1);
	void *g = case_halves(x, FLAT, type);
	double got, by[3] = {0}, want = 0, by_want[3] = {0};
	void *work = case_alloc(kwork_cuda_norm_parts(3));
	for (int k = 0; k < 3; k++)
		for (int64_t i = 0; i < segments[k].length; i++) {
			double v = fabs((double)x[segments[k].begin + i]);
			by_want[k] = isinf(p) ? fmax(by_want[k], v) : by_want[k] + pow(v, p);
		}
	for (int k = 0; k < 3; k++)
		want = isinf(p) ? fmax(want, by_want[k]) : want + by_want[k];
	CASE_SAME_BITS("norm", &got, 8, k_norm(&got, NULL, g, type, segments, 3, p, work));
	k_norm(&got, by, g, type, segments, 3, p, work);
	case_close64("norm", &got, &want, 1, 1e-12);
	case_close64("norm by tensor", by, by_want, 3, 1e-12);
}

/* What is not finite stays so, wherever it stands; what lies in a gap does not count. */
static void case_norm_not_finite(double p)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	void *work = case_alloc(kwork_cuda_norm_parts(3));
	for (int b = 0; b < 3; b++)
		for (int k = 0; k < 3; k++) {
			float *x = case_floats(FLAT, -1, 1);
			double got;
			x[segments[k].begin + (k == 1 ? segments[k].length - 1 : 0)] = bad[b];
			k_norm(&got, NULL, x, K_F32, segments, 3, p, work);
			case_true(b ? got == (double)INFINITY : isnan(got), "norm of what is not finite");
		}
	float *x = case_floats(FLAT, -1, 1);
	double got;
	for (int64_t i = segments[2].begin + segments[2].length; i < FLAT; i++)
		x[i] = NAN;
	k_norm(&got, NULL, x, K_F32, segments, 3, p, work);
	case_true(isfinite(got), "norm beside a gap");
}

void case_norm(void)
{
	static const double p[] = {1, 2, 3, 1.5, INFINITY};
	for (int i = 0; i < 5; i++) {
		case_norm_of(p[i], K_F32);
		case_norm_of(p[i], K_BF16);
		case_norm_of(p[i], K_F16);
		case_norm_not_finite(p[i]);
	}
	case_true(isnan(k_norm_join(NAN, 1, INFINITY)) && isnan(k_norm_join(1, NAN, INFINITY)), "NaN in a maximum");
}

typedef enum { SGD, MOMENTUM, NESTEROV, ADAM, ADAMW, ADAGRAD, LION } Rule;

/* One element, by the books, in f64. */
static void rule_one(Rule r, const Group *h, double lr, int t, double *p, double *m, double *v, double g)
{
	double b1 = h->beta1, b2 = h->beta2, wd = h->weight_decay;
	if (r == ADAMW || r == LION)
		*p *= 1 - lr * wd;
	else
		g += wd * *p;
	if (r == SGD)
		*p -= lr * g;
	if (r == MOMENTUM || r == NESTEROV) {
		*m = b1 * *m + g;
		*p -= lr * (r == NESTEROV ? g + b1 * *m : *m);
	}
	if (r == ADAM || r == ADAMW) {
		*m = b1 * *m + (1 - b1) * g;
		*v = b2 * *v + (1 - b2) * g * g;
		*p -= lr * (*m / (1 - pow(b1, t))) / (sqrt(*v / (1 - pow(b2, t))) + h->eps);
	}
	if (r == ADAGRAD) {
		*m += g * g;
		*p -= lr * g / (sqrt(*m) + h->eps);
	}
	if (r == LION) {
		double c = b1 * *m + (1 - b1) * g;
		*p -= lr * (c > 0 ? 1 : c < 0 ? -1 : 0);
		*m = b2 * *m + (1 - b2) * g;
	}
}

static void check_update_of(Rule r, void (*update)(const KUpdate *u), KDType type)
{
	static const Group groups[2] = {{1, 0.1f, 0.9f, 0.99f, 1e-6f}, {0.5f, 0, 0.8f, 0.95f, 1e-6f}};
	float *p = case_floats(FLAT, -1, 1), *m = case_alloc(FLAT * 4), *v = case_alloc(FLAT * 4);
	float *before = case_alloc(FLAT * 4);
	double *wp = case_doubles(FLAT), *wm = case_doubles(FLAT), *wv = case_doubles(FLAT);
	memset(m, 0, FLAT * 4);
	memset(v, 0, FLAT * 4);
	for (int64_t i = 0; i < FLAT; i++)
		wp[i] = p[i];
	for (int t = 1; t <= 5; t++) {
		float *read = case_floats(FLAT, -3, 3);
		void *g = case_halves(read, FLAT, type); /* read: what is left after rounding */
		StepScalars s = {.lr = 0.01f, .grad_scale = 0.5f, .clip_coef = 0.8f, .clip_value = 1, .step = t,
			.skip = t == 4};
		memcpy(before, p, FLAT * 4);
		KUpdate u = {.p = p, .state = {r == SGD ? NULL : m, r == ADAM || r == ADAMW ? v : NULL}, .g = g, .g_type = type,
			.segment = segments, .n_segments = 3, .group = groups, .s = &s, .nesterov = r == NESTEROV};
		update(&u);
		for (int k = 0; k < 3 && !s.skip; k++)
			for (int64_t i = segments[k].begin; i < segments[k].begin + segments[k].length; i++) {
				const Group *h = &groups[segments[k].group];
				rule_one(r, h, 0.01 * h->lr_scale, t, wp + i, wm + i, wv + i, fmax(-1, fmin(1, read[i] * 0.4)));
			}
		case_true(!s.skip || memcmp(p, before, FLAT * 4) == 0, "a skipped step changes nothing");
	}
	case_close("update: parameters", p, wp, FLAT, 1e-6);
	if (r != SGD)
		case_close("update: first state", m, wm, FLAT, 1e-5);
}

static void check_update(Rule r, void (*update)(const KUpdate *u))
{
	check_update_of(r, update, K_F32);
	check_update_of(r, update, K_BF16);
	check_update_of(r, update, K_F16);
}

void case_momentum(void)
{
	check_update(MOMENTUM, k_momentum_f32);
	check_update(NESTEROV, k_momentum_f32);
}
void case_sgd(void) { check_update(SGD, k_sgd_f32); }
void case_adam(void) { check_update(ADAM, k_adam_f32); }
void case_adamw(void) { check_update(ADAMW, k_adamw_f32); }
void case_adagrad(void) { check_update(ADAGRAD, k_adagrad_f32); }
void case_lion(void) { check_update(LION, k_lion_f32); }
