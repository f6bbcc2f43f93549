/* tests/cudasim/kernels_attention.c: attention as a primitive of CUDA programs, by the library and by our own kernels,
 * against the f32 kernels on the same rounded numbers.
 *
 * Either kernel's log-sum-exps must serve either gradient, so both gradients are made of both.  And attention of more
 * heads than a grid has rows, against f64. */
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "tests/cudasim/kernels_cuda.h"

typedef struct Attn {
	KAttention a;
	KDType type;
	int64_t nq, nk, nv, no, rows; /* elements of q, k, v and o; rows of all heads */
	uint16_t *q, *k, *v, *dy;
	float *o, *lse, *dq, *dk, *dv; /* what is right */
} Attn;

static uint16_t *halves(float *x, int64_t n, KDType type) { return case_halves(x, n, type); }

static double *wide(const float *x, int64_t n)
{
	double *d = case_doubles(n);
	case_sync();
	for (int64_t i = 0; i < n; i++)
		d[i] = x[i];
	return d;
}

static Attn attn_of(KAttention a, KDType type)
{
	int64_t rows = a.b * a.h * a.t, keys = a.b * a.hk * a.s, od[4] = {a.b, a.h, a.t, a.dv};
	Attn c = {.a = a, .type = type, .nq = rows * a.d, .nk = keys * a.d, .nv = keys * a.dv, .no = rows * a.dv,
		.rows = rows};
	float *q = case_floats(c.nq, -2, 2), *k = case_floats(c.nk, -2, 2), *v = case_floats(c.nv, -1, 1);
	float *dy = case_floats(c.no, -1, 1);
	c.q = halves(q, c.nq, type), c.k = halves(k, c.nk, type), c.v = halves(v, c.nv, type);
	c.dy = halves(dy, c.no, type);
	c.o = case_alloc(c.no * 4), c.lse = case_alloc(rows * 4);
	c.dq = case_alloc(c.nq * 4), c.dk = case_alloc(c.nk * 4), c.dv = case_alloc(c.nv * 4);
	void *work = case_work("attention_grad", (KWorkArgs){.in = {{4, od, 4}}});
	k_attention_f32(c.o, c.lse, q, k, v, NULL, NULL, &a, 0, NULL, NULL);
	k_attention_grad_f32(c.dq, c.dk, c.dv, dy, q, k, v, NULL, NULL, c.o, c.lse, &a, 0, NULL, work);
	return c;
}

static void close_to(const char *name, const Attn *c, const uint16_t *got, const float *want, int64_t n)
{
	case_close(name, case_widened(got, n, c->type), wide(want, n), n, 2 * case_half_bound(c->type));
}

bool cuda_by_library(const KPrim *p) { return strncmp(k_prim_impl(p), "cudnn:", 6) == 0; }

static void check_grad(const Attn *c, KPrim *p, const uint16_t *o, const float *lse, void *work)
{
	uint16_t *dq = case_alloc(c->nq * 2), *dk = case_alloc(c->nk * 2), *dv = case_alloc(c->nv * 2);
	CASE_SAME_BITS("attention_grad of a primitive", dq, c->nq * 2,
		k_attention_grad_run(p, dq, dk, dv, c->dy, c->q, c->k, c->v, NULL, o, lse, work));
	close_to("attention_grad of a primitive: dq", c, dq, c->dq, c->nq);
	close_to("attention_grad of a primitive: dk", c, dk, c->dk, c->nk);
	close_to("attention_grad of a primitive: dv", c, dv, c->dv, c->nv);
}

/* Rows of q, k and v as columns of one wider row, and their gradients as columns of another. */
static void check_columns(const Attn *c, int64_t work_bytes, const uint16_t *o, const float *lse)
{
	KAttentionDesc d = {.dtype = c->type, .a = c->a, .stats = true, .work_bytes = work_bytes};
	int64_t tokens = c->a.b * c->a.t, q = c->a.h * c->a.d, k = c->a.hk * c->a.d, v = c->a.hk * c->a.dv;
	int64_t pitch = q + k + v + 16;
	uint16_t *in = case_wide(tokens, pitch, 2), *out = case_wide(tokens, pitch, 2), *y = case_alloc(c->no * 2);
	float *got = case_alloc(c->rows * 4);
	void *work = case_alloc(work_bytes);
	d.a.q_pitch = d.a.k_pitch = d.a.v_pitch = d.a.dq_pitch = d.a.dk_pitch = d.a.dv_pitch = pitch;
	case_put_columns(in, pitch, 8, c->q, tokens, q, 2);
	case_put_columns(in, pitch, 8 + q, c->k, tokens, k, 2);
	case_put_columns(in, pitch, 8 + q + k, c->v, tokens, v, 2);
	KPrim *forward = k_attention_create(&d), *grad = k_attention_grad_create(&d);
	k_attention_run(forward, y, got, in + 8, in + 8 + q, in + 8 + q + k, NULL, work);
	case_equal("attention of a primitive, of columns", y, o, c->no * 2);
	case_equal("attention of a primitive, of columns: lse", got, lse, c->rows * 4);
	k_attention_grad_run(grad, out + 8, out + 8 + q, out + 8 + q + k, c->dy, in + 8, in + 8 + q, in + 8 + q + k, NULL,
		o, lse, work);
	close_to("attention_grad of a primitive, to columns: dq", c, case_take_columns(out, pitch, 8, tokens, q, 2), c->dq,
		c->nq);
	close_to("attention_grad of a primitive, to columns: dk", c, case_take_columns(out, pitch, 8 + q, tokens, k, 2),
		c->dk, c->nk);
	close_to("attention_grad of a primitive, to columns: dv", c,
		case_take_columns(out, pitch, 8 + q + k, tokens, v, 2), c->dv, c->nv);
	k_prim_free(forward);
	k_prim_free(grad);
}

bool cuda_before_blackwell(void)
{
	int major = 0;
	cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
	return major < 10;
}

bool cuda_serves_all(void)
{
#ifdef CUDASIM_CUDA_RUNTIME_API_H
	return !getenv("CUDASIM_CUDNN");
#else
	return false;
#endif
}

AttentionDims cuda_attention_dims(const KAttention *a)
{
	bool rows = a->layout; /* in front of heads */
	int64_t q1 = rows ? a->t : a->h, q2 = rows ? a->h : a->t, k1 = rows ? a->s : a->hk, k2 = rows ? a->hk : a->s;
	return (AttentionDims){.q = {a->b, q1, q2, a->d}, .k = {a->b, k1, k2, a->d}, .v = {a->b, k1, k2, a->dv},
		.o = {a->b, q1, q2, a->dv}};
}

/* Returns how many of the two the library serves. */
static int check(const Attn *c)
{
	const KAttention *a = &c->a;
	AttentionDims n = cuda_attention_dims(a);
	KWorkArgs args = {.layout = a->layout, .library = true, .in = {{4, n.o, 2}, {4, n.q, 2}, {4, n.k, 2}, {4, n.v, 2}}};
	int64_t bytes = kwork_cuda_attention_grad(&args);
	KAttentionDesc d = {.dtype = c->type, .a = *a, .stats = true, .work_bytes = bytes}, none = d;
	none.work_bytes = 0;
	KPrim *lib = k_attention_create(&d), *lib_grad = k_attention_grad_create(&d);
	KPrim *own_grad = k_attention_grad_create(&none);
	uint16_t *o = case_alloc(c->no * 2), *own = case_alloc(c->no * 2);
	float *lse = case_alloc(c->rows * 4), *own_lse = case_alloc(c->rows * 4);
	void *work = case_alloc(bytes);
	case_true(!cuda_by_library(own_grad), "a gradient without scratch is our own kernel's");
	case_true(cuda_before_blackwell() || !cuda_by_library(lib_grad),
		"from compute capability 10 on gradients are our kernels'");
	case_true(k_prim_work(lib) <= K_DNN_WORK && k_prim_work(lib_grad) <= bytes, "an attention's scratch is planned");
	CASE_SAME_BITS("attention of a primitive", o, c->no * 2,
		k_attention_run(lib, o, lse, c->q, c->k, c->v, NULL, work));
	close_to("attention of a primitive", c, o, c->o, c->no);
	case_close("attention of a primitive: lse", lse, wide(c->lse, c->rows), c->rows, 2e-6);
	(c->type == K_BF16 ? k_attention_bf16 : k_attention_f16)(own, own_lse, c->q, c->k, c->v, NULL, NULL, a, 0, NULL,
		NULL);
	check_grad(c, lib_grad, o, lse, work);
	check_grad(c, lib_grad, own, own_lse, work);
	check_grad(c, own_grad, o, lse, work);
	if (a->layout && a->t == a->s)
		check_columns(c, bytes, o, lse);
	int served = cuda_by_library(lib) + cuda_by_library(lib_grad);
	k_prim_free(lib);
	k_prim_free(lib_grad);
	k_prim_free(own_grad);
	return served;
}

/* Without log-sum-exps, as evaluations want it; and where an address is not aligned. */
static void check_rest(const Attn *c)
{
	KAttentionDesc d = {.dtype = c->type, .a = c->a, .work_bytes = K_DNN_WORK};
	KPrim *p = k_attention_create(&d);
	uint16_t *o = case_alloc((c->no + 1) * 2);
	void *work = case_alloc(K_DNN_WORK);
	k_attention_run(p, o, NULL, c->q, c->k, c->v, NULL, work);
	close_to("attention of a primitive without lse", c, o, c->o, c->no);
	k_attention_run(p, o + 1, NULL, c->q, c->k, c->v, NULL, work);
	close_to("attention of a primitive at an odd place", c, o + 1, c->o, c->no);
	k_prim_free(p);
}

void case_cuda_attention(void)
{
	static const KAttention cases[] = {
		{.b = 2, .h = 3, .hk = 3, .t = 70, .s = 70, .d = 16, .dv = 16, .has_right = 1},
		{.b = 1, .h = 4, .hk = 2, .t = 128, .s = 128, .d = 64, .dv = 64, .has_right = 1},
		{.b = 2, .h = 4, .hk = 1, .t = 33, .s = 70, .d = 40, .dv = 24},
		{.b = 1, .h = 2, .hk = 2, .t = 40, .s = 65, .d = 128, .dv = 128, .has_right = 1, .right = 25},
		{.b = 1, .h = 2, .hk = 1, .t = 130, .s = 130, .d = 8, .dv = 64, .has_left = 1, .left = 40, .has_right = 1},
		{.b = 1, .h = 1, .hk = 1, .t = 66, .s = 90, .d = 32, .dv = 32, .has_left = 1, .left = 9, .has_right = 1,
			.right = 3},
		{.b = 1, .h = 2, .hk = 2, .t = 40, .s = 24, .d = 16, .dv = 16, .has_left = 1, .left = (int64_t)1 << 40,
			.has_right = 1, .right = (int64_t)1 << 40}, /* limits that hide nothing */
		{.b = 1, .h = 2, .hk = 2, .t = 40, .s = 40, .d = 16, .dv = 16, .has_right = 1, .right = INT32_MAX},
		/* what the library does not serve: rows that see no key, heads of odd sizes, a scale below 0 */
		{.b = 1, .h = 2, .hk = 2, .t = 40, .s = 30, .d = 16, .dv = 16, .has_right = 1, .right = -5},
		{.b = 1, .h = 2, .hk = 2, .t = 20, .s = 20, .d = 12, .dv = 20, .has_right = 1},
		{.b = 1, .h = 2, .hk = 2, .t = 20, .s = 20, .d = 16, .dv = 16, .scale = -0.25f},
	};
	enum { SERVED = 8 };
	int served = 0;
	for (int i = 0; i < 2 * (int)(sizeof cases / sizeof *cases); i++) {
		KAttention a = cases[i / 2];
		a.layout = i % 2;
		a.scale = a.scale < 0 ? a.scale : 1 / sqrtf((float)a.d);
		Attn c = attn_of(a, (i / 2 + i) % 2 ? K_F16 : K_BF16);
		int n = check(&c);
		case_true(i / 2 < SERVED || n == 0, "our own kernels compute what the library may not");
		served += n;
		check_rest(&c);
	}
	case_true(served > 0, "the library serves some attentions");
}

/* ---- more heads than a grid has rows ---- */

enum { SAMPLES = 1000, HEADS = 70, MANY = SAMPLES * HEADS, SEEN = 100, D = 8, KEYS = 2 };

/* One head of one row in f64: o, dq, and dk and dv of each key; returns the log-sum-exp. */
static double one_row(const float *q, const float *k, const float *v, const float *dy, double *o, double *dq,
	double *dk, double *dv)
{
	double score[KEYS] = {0}, dp[KEYS] = {0}, sum = 0, mean = 0;
	for (int s = 0; s < KEYS; s++) {
		for (int i = 0; i < D; i++) {
			score[s] += (double)q[i] * k[s * D + i];
			dp[s] += (double)dy[i] * v[s * D + i];
		}
		sum += exp(score[s]);
	}
	for (int s = 0; s < KEYS; s++)
		mean += exp(score[s]) / sum * dp[s];
	for (int s = 0; s < KEYS; s++)
		for (int i = 0; i < D; i++) {
			double share = exp(score[s]) / sum, ds = share * (dp[s] - mean);
			o[i] += share * v[s * D + i];
			dq[i] += ds * k[s * D + i];
			dk[s * D + i] = ds * q[i];
			dv[s * D + i] = share * dy[i];
		}
	return log(sum);
}

/* Our own kernels of the type, f32's or those for tensor cores; of the heads the last SEEN are looked at. */
static void check_heads(KDType type)
{
	static const char *const names[] = {"attention of many heads", "attention_grad of many heads: dq",
		"attention_grad of many heads: dk", "attention_grad of many heads: dv"};
	const KAttention a = {.b = SAMPLES, .h = HEADS, .hk = HEADS, .t = 1, .s = KEYS, .d = D, .dv = D, .scale = 1};
	const int64_t row = D, keys = D * KEYS, from = MANY - SEEN, od[4] = {SAMPLES, HEADS, 1, D};
	const int64_t in_size[] = {row, keys, keys, row}, out_size[] = {row, row, keys, keys};
	float *in[4], *lse = case_alloc(MANY * 4);
	void *x[4], *y[4], *work = case_work("attention_grad", (KWorkArgs){.in = {{4, od, 4}, {4, od, 4}, {4, od, 4}}});
	double *want[4], *want_lse = case_doubles(SEEN);
	for (int i = 0; i < 4; i++) {
		in[i] = case_floats(MANY * in_size[i], -1, 1);
		x[i] = case_halves(in[i], MANY * in_size[i], type);
		y[i] = case_alloc(MANY * out_size[i] * (type == K_F32 ? 4 : 2));
		want[i] = case_doubles(SEEN * out_size[i]);
	}
	if (type == K_F32) {
		k_attention_f32(y[0], lse, x[0], x[1], x[2], NULL, NULL, &a, 0, NULL, NULL);
		k_attention_grad_f32(y[1], y[2], y[3], x[3], x[0], x[1], x[2], NULL, NULL, y[0], lse, &a, 0, NULL, work);
	} else {
		k_attention_bf16(y[0], lse, x[0], x[1], x[2], NULL, NULL, &a, 0, NULL, NULL);
		k_attention_grad_bf16(y[1], y[2], y[3], x[3], x[0], x[1], x[2], NULL, NULL, y[0], lse, &a, 0, NULL, work);
	}
	case_sync();
	for (int64_t i = 0, h = from; i < SEEN; i++, h++)
		want_lse[i] = one_row(in[0] + h * row, in[1] + h * keys, in[2] + h * keys, in[3] + h * row, want[0] + i * row,
			want[1] + i * row, want[2] + i * keys, want[3] + i * keys);
	case_close("attention of many heads: lse", lse + from, want_lse, SEEN, 3e-6);
	for (int i = 0; i < 4; i++) {
		int64_t n = SEEN * out_size[i], at = from * out_size[i];
		float *got = type == K_F32 ? (float *)y[i] + at : case_widened((uint16_t *)y[i] + at, n, type);
		case_close(names[i], got, want[i], n, type == K_F32 ? 1e-5 : 2 * case_half_bound(type));
	}
}

/* Under emulation the heads before are left out, which would take minutes. */
void case_cuda_many_heads(void)
{
	_Static_assert(MANY - SEEN > 1 << 16, "heads behind the rows of a grid are looked at");
	setenv("CUDASIM_LAST", "500", 1);
	check_heads(K_F32);
	check_heads(K_BF16);
	unsetenv("CUDASIM_LAST");
}
