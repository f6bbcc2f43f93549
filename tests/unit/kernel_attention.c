/* tests/unit/kernel_attention.c: attention and rope against f64 loops, with columns of wider rows, too. */
#include "tests/unit/kernel_cases.h"

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

static void attn_rows(Attn *c)
{
	double *s = case_doubles(c->a.s), *dcap = case_doubles(c->a.s);
	for (int64_t b = 0; b < c->a.b; b++)
		for (int64_t h = 0; h < c->a.h; h++)
			for (int64_t t = 0; t < c->a.t; t++)
				attn_row(c, b, h, t, s, dcap);
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
	attn_rows(&c);
	return c;
}

void case_attention_f64(const KAttention *a, const CaseAttention *x)
{
	int64_t pairs = a->b * a->h * a->t * a->s;
	Attn c = {.a = *a, .q = x->q, .k = x->k, .v = x->v, .dy = x->dy, .mask = x->mask, .keep = case_alloc(pairs * 4),
		.wo = x->o, .wlse = x->lse, .dq = x->dq, .dk = x->dk, .dv = x->dv};
	for (int64_t i = 0; i < pairs; i++)
		c.keep[i] = 1;
	attn_rows(&c);
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
