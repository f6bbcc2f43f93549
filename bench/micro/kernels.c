/* bench/micro/kernels.c: times every kernel of a training step alone, at the shapes of GPT-2 124M (4 x 256 tokens),
 * ResNet-50 (8 x 3 x 224 x 224), an LSTM of two layers (32 x 64 tokens), and of the depthwise convolutions of
 * MobileNetV2 (8 x 3 x 224 x 224).  Prints the best time of several runs, and the sum over all calls of a step.
 *
 * usage: bench_kernels [PART-OF-A-NAME]          (bench/micro/build builds it)
 * With one thread (OMP_NUM_THREADS=1) processor time is measured, so that other processes disturb less. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"
#include "kernels/work.h"

enum { REPEATS = 15, WORK = 64 << 20 };
static const char *only;
static bool own; /* products run on our own kernels */
static double total;
static char *work;

int omp_get_max_threads(void);

static double now(void)
{
	struct timespec t;
	clock_gettime(omp_get_max_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float *floats(int64_t n)
{
	float *p = aligned_alloc(64, (size_t)(n * 4 + 127) / 64 * 64);
	for (int64_t i = 0; i < n; i++)
		p[i] = (float)(i * 7919 % 1000) / 500 - 1;
	return p;
}

/* Runs body; prints its best time, GB/s of `bytes` and GF/s of `flops`; adds `count` times the best time to total. */
#define TIME(name, count, bytes, flops, body) do { \
	double best_ = 1e9; \
	for (int r_ = 0; r_ < REPEATS; r_++) { \
		double t_ = now(); \
		body; \
		t_ = now() - t_; \
		best_ = t_ < best_ ? t_ : best_; \
	} \
	printf("%-44s %9.3f ms %7.1f GB/s %7.1f GF/s  x%-3d %9.2f ms\n", (name), best_ * 1e3, \
		(double)(bytes) / best_ * 1e-9, (double)(flops) / best_ * 1e-9, (count), best_ * (count) * 1e3); \
	total += best_ * (count); \
} while (0)

static bool wanted(const char *name) { return !only || strstr(name, only); }

static KDType dtype = K_F32; /* of products; 16-bit weight gradients (ta) are f32 */

static float *operand(int64_t n)
{
	float *p = floats(n);
	if (dtype != K_F32)
		memset(p, 0x3C, (size_t)n * 2); /* 1.06 in f16, 0.011 in bf16 */
	return p;
}

static void matmul(int count, int64_t m, int64_t n, int64_t k, bool ta, bool tb, bool bias)
{
	static const char *const types[] = {[K_F32] = "f32", [K_BF16] = "bf16", [K_F16] = "f16"};
	char name[128];
	KPrim *p;
	snprintf(name, sizeof name, "matmul %s %ldx%ldx%ld%s%s%s", types[dtype], (long)m, (long)n, (long)k,
		ta ? " ta" : "", tb ? " tb" : "", bias ? " bias" : "");
	if (!wanted(name))
		return;
	p = k_matmul_create(&(KMatmulDesc){.dtype = dtype, .to = ta ? K_F32 : dtype, .m = m, .n = n, .k = k,
		.ta = ta, .tb = tb, .bias = bias, .work_bytes = own ? -1 : K_GEMM_WORK});
	float *a = operand(m * k), *b = operand(k * n), *y = floats(m * n), *c = operand(n);
	snprintf(name + strlen(name), 40, " %s", k_prim_impl(p));
	TIME(name, count, 4 * (m * k + k * n + m * n), 2.0 * (double)m * (double)n * (double)k,
		k_matmul_run(p, y, a, b, bias ? c : NULL, work));
	k_prim_free(p);
	free(a), free(b), free(y), free(c);
}

static void conv(int count, int64_t c, int64_t in, int64_t o, int64_t k, int64_t stride, int64_t group,
	bool grad_x)
{
	static const char *const kinds[] = {"conv", "conv_grad_x", "conv_grad_w"};
	int64_t n = 8, pad = k / 2, out = (in + 2 * pad - k) / stride + 1;
	KConvDesc d = {.dtype = dtype, .to = K_F32, .rank = 2, .n = n, .c = c, .o = o, .group = group, .in = {in, in},
		.out = {out, out},
		.kernel = {k, k}, .stride = {stride, stride}, .dilation = {1, 1}, .pad = {pad, pad},
			.pad_end = {pad, pad},
		.layout = 1, .work_bytes = WORK};
	float *x = NULL, *y = NULL, *w = NULL;
	int64_t bytes = dtype == K_F32 ? 4 : 2;
	for (int kind = 0; kind < 3; kind++) {
		char name[128];
		snprintf(name, sizeof name, "%s %ld@%ld->%ld k%ld s%ld g%ld", kinds[kind], (long)c, (long)in,
			(long)o, (long)k,
			(long)stride, (long)group);
		if (!wanted(name) || (kind == 1 && !grad_x))
			continue;
		x = x ? x : operand(n * c * in * in);
		y = y ? y : operand(n * o * out * out);
		w = w ? w : operand(o * c / group * k * k);
		KPrim *p = kind == 0 ? k_conv_create(&d) : kind == 1 ? k_conv_grad_x_create(&d)
			: k_conv_grad_w_create(&d);
		double flops = 2.0 * (double)(n * out * out) * (double)(o * c / group * k * k);
		snprintf(name + strlen(name), 40, " %s", k_prim_impl(p));
		TIME(name, count, bytes * (n * c * in * in + n * o * out * out), flops,
			kind == 0 ? k_conv_run(p, y, x, w, NULL, work) : kind == 1 ? k_conv_grad_x_run(p, x, y, w, NULL,
				work)
			: k_conv_grad_w_run(p, w, x, y, work));
		k_prim_free(p);
	}
	free(x), free(y), free(w);
}

static void bn(int count, int64_t c, int64_t in)
{
	int64_t n = 8, s = in * in;
	if (!wanted("bn_stats"))
		return;
	float *x = floats(n * c * s), *dy = floats(n * c * s), *st = floats(4 * c);
	char name[64];
	snprintf(name, sizeof name, "bn_stats %ld@%ld", (long)c, (long)in);
	TIME(name, count, 4 * n * c * s, 0, k_bn_stats_f32(st, st + c, x, n, c, s, 1, work));
	snprintf(name, sizeof name, "bn_grad_stats %ld@%ld", (long)c, (long)in);
	TIME(name, count, 8 * n * c * s, 0,
		k_bn_grad_stats_f32(st + 2 * c, st + 3 * c, dy, x, st, st + c, n, c, s, 1, 1e-5, work));
	free(x), free(dy), free(st);
}

static void sum(const char *what)
{
	printf("%-44s %9.2f ms\n\n", what, total * 1e3);
	total = 0;
}

static void gpt2_products(void)
{
	matmul(12, 1024, 2304, 768, 0, 0, 1);
	matmul(12, 1024, 768, 768, 0, 0, 1);
	matmul(12, 1024, 3072, 768, 0, 0, 1);
	matmul(12, 1024, 768, 3072, 0, 0, 1);
	matmul(1, 1024, 50257, 768, 0, 1, 0);
	matmul(12, 1024, 768, 2304, 0, 1, 0);
	matmul(12, 1024, 768, 768, 0, 1, 0);
	matmul(12, 1024, 768, 3072, 0, 1, 0);
	matmul(12, 1024, 3072, 768, 0, 1, 0);
	matmul(1, 1024, 768, 50257, 0, 0, 0);
	matmul(12, 768, 2304, 1024, 1, 0, 0);
	matmul(12, 768, 768, 1024, 1, 0, 0);
	matmul(12, 768, 3072, 1024, 1, 0, 0);
	matmul(12, 3072, 768, 1024, 1, 0, 0);
	matmul(1, 50257, 768, 1024, 1, 0, 0);
}

static void gpt2_rest(void)
{
	int64_t rows = 1024, c = 768, v = 50257, big = rows * v;
	float *x = floats(big), *dx = floats(big), *o = floats(rows * c), *w = floats(v * c), *st = floats(8 * v);
	int64_t *ids = malloc((size_t)rows * 8);
	KAttention a = {.b = 4, .h = 12, .hk = 12, .t = 256, .s = 256, .d = 64, .dv = 64, .scale = 0.125f,
		.has_right = true};
	double half = 0.5 * 4 * 12 * 2 * 256.0 * 256 * 64;
	for (int64_t i = 0; i < rows; i++)
		ids[i] = i * 7919 % v;
	for (a.layout = 0; a.layout < 2 && wanted("attention"); a.layout++) {
		TIME(a.layout ? "attention (B,T,H,D)" : "attention (B,H,T,D)", a.layout ? 0 : 12, 0, 2 * half,
			k_attention_f32(o, st, x, x + rows * c, x + 2 * rows * c, NULL, NULL, &a, 0, NULL, work));
		TIME(a.layout ? "attention_grad (B,T,H,D)" : "attention_grad (B,H,T,D)", a.layout ? 0 : 12, 0,
			5 * half,
			k_attention_grad_f32(dx, dx + rows * c, dx + 2 * rows * c, w, x, x + rows * c, x + 2 * rows * c,
				NULL, NULL, o, st, &a, 0, NULL, work));
	}
	if (wanted("layer_norm")) {
		TIME("layer_norm", 25, 8 * rows * c, 0, k_layer_norm_f32(o, st, st + rows, NULL, x, w, w + c, NULL,
			rows, c, 1e-5));
		TIME("layer_norm_grad", 25, 12 * rows * c, 0, k_layer_norm_grad_f32(o, st + 4 * rows, st + 8 * rows,
			dx, x, w,
			st, st + rows, NULL, rows, c, work));
	}
	if (wanted("cross_entropy")) {
		TIME("cross_entropy", 1, 4 * big, 0, k_cross_entropy_f32(w, w + 1, st, x, ids, NULL, rows, v, v, -100,
			0, NULL));
		TIME("cross_entropy_grad in place", 1, 8 * big, 0,
			k_cross_entropy_grad_f32(x, w, x, ids, NULL, st, rows, v, v, -100, 0));
	}
	if (wanted("gather")) {
		TIME("gather", 2, 8 * rows * c, 0, k_gather(o, w, ids, 1, v, c, rows, 4, 8));
		TIME("gather_grad", 1, 4 * v * c, 0, k_gather_grad_f32(w, o, ids, 1, v, c, rows, false, 8, NULL));
	}
	if (wanted("reduce")) {
		int64_t dim[2] = {rows, 2304}, dim3[2] = {rows, 3072}, flat = 38597376;
		TIME("reduce_sum 1024x2304, rows away", 12, 4 * rows * 2304, 0, k_reduce_sum_f32(st, x, 2, dim, 1,
			work));
		TIME("reduce_sum 1024x3072, rows away", 12, 4 * rows * 3072, 0, k_reduce_sum_f32(st, x, 2, dim3, 1,
			work));
		TIME("reduce_sum all", 0, 4 * flat, 0, k_reduce_sum_f32(st, w, 1, &flat, 1, work));
	}
	if (wanted("transpose")) {
		int64_t dim[4] = {4, 256, 12, 64}, perm[4] = {0, 2, 1, 3}, two[2] = {3072, 768}, p2[2] = {1, 0};
		int64_t chunk[3] = {768 * 4, 768 * 4, 768 * 4};
		void *parts[3] = {dx, dx + rows * c, dx + 2 * rows * c};
		TIME("transpose (B,T,H,D) -> (B,H,T,D)", 12 * 8, 8 * rows * c, 0, k_transpose(o, x, 4, dim, perm, 4));
		TIME("transpose 3072x768", 0, 8 * 3072 * 768, 0, k_transpose(dx, x, 2, two, p2, 4));
		TIME("split qkv", 12, 8 * rows * 2304, 0, k_split(parts, x, 3, rows, chunk));
		TIME("concat qkv", 12, 8 * rows * 2304, 0, k_concat(x, (const void *const *)parts, 3, rows, chunk));
	}
	free(x), free(dx), free(o), free(w), free(st), free(ids);
}

/* The 16-bit versions of the kernels in gpt2_rest: the same work on half the bytes. */
static void gpt2_rest_bf16(void)
{
	int64_t rows = 1024, c = 768, v = 50257, dim[2] = {rows, 2304}, dim3[2] = {rows, 3072};
	uint16_t *x = (uint16_t *)operand(rows * 3072), *dx = (uint16_t *)operand(rows * 3072);
	uint16_t *w = (uint16_t *)operand(v * c), *o = (uint16_t *)operand(rows * c);
	float *st = floats(64 * rows);
	int64_t *ids = malloc((size_t)rows * 8);
	StepScalars s = {.seed = 1};
	KAttention a = {.b = 4, .h = 12, .hk = 12, .t = 256, .s = 256, .d = 64, .dv = 64, .scale = 0.125f,
		.has_right = true};
	double half = 0.5 * 4 * 12 * 2 * 256.0 * 256 * 64;
	for (int64_t i = 0; i < rows; i++)
		ids[i] = i * 7919 % v;
	if (wanted("attention")) {
		TIME("attention bf16 (B,H,T,D)", 12, 0, 2 * half,
			k_attention_bf16(o, st, x, x + rows * c, x + 2 * rows * c, NULL, NULL, &a, 0, NULL, work));
		TIME("attention_grad bf16 (B,H,T,D)", 12, 0, 5 * half, k_attention_grad_bf16(dx, dx + rows * c,
			dx + 2 * rows * c, w, x, x + rows * c, x + 2 * rows * c, NULL, NULL, o, st, &a, 0, NULL, work));
	}
	if (wanted("layer_norm")) {
		TIME("layer_norm bf16", 25, 4 * rows * c, 0, k_layer_norm_bf16(o, st, st + rows, NULL, x, w, w + c, NULL,
			rows, c, 1e-5));
		TIME("layer_norm_grad bf16", 25, 6 * rows * c, 0, k_layer_norm_grad_bf16(o, w, w + c, dx, x, w, st, st + rows,
			NULL, rows, c, work));
	}
	if (wanted("gather_grad"))
		TIME("gather_grad bf16", 1, 2 * v * c, 0, k_gather_grad_bf16(w, o, ids, 1, v, c, rows, false, 8, work));
	if (wanted("reduce")) {
		TIME("reduce_sum bf16 1024x2304, rows away", 12, 2 * rows * 2304, 0, k_reduce_sum_bf16(o, x, 2, dim, 1,
			work));
		TIME("reduce_sum bf16 1024x3072, rows away", 12, 2 * rows * 3072, 0, k_reduce_sum_bf16(o, x, 2, dim3, 1,
			work));
	}
	if (wanted("softmax"))
		TIME("softmax bf16 1024x3072", 0, 4 * rows * 3072, 0, k_softmax_bf16(dx, x, rows, 3072, 1));
	if (wanted("dropout"))
		TIME("dropout bf16 1024x3072", 0, 4 * rows * 3072, 0, k_dropout_bf16(dx, x, 1, rows, 3072, 0.1, 3, &s));
	free(x), free(dx), free(w), free(o), free(st), free(ids);
}

static void updates(void)
{
	int64_t n = 124439808;
	float *p = floats(n), *m = floats(n), *v = floats(n), *g = floats(n);
	Segment seg[64];
	Group group = {1, 0.01f, 0.9f, 0.999f, 1e-8f};
	StepScalars s = {.lr = 1e-3f, .grad_scale = 1, .clip_coef = 1, .step = 1};
	double out;
	for (int i = 0; i < 64; i++)
		seg[i] = (Segment){n / 64 * i, n / 64, 0, i, 0};
	KUpdate u = {p, {m, v}, g, K_F32, seg, 64, &group, &s, false};
	TIME("adamw, 124 M", 1, 28 * n, 0, k_adamw_f32(&u));
	TIME("sgd with momentum, 124 M", 0, 20 * n, 0, k_momentum_f32(&u));
	TIME("sumsq, 124 M", 1, 4 * n, 0, k_norm(&out, g, K_F32, seg, 64, 2, NULL));
	free(p), free(m), free(v), free(g);
}

/* count, channels, size, outputs, kernel, stride */
static const int resnet50[][6] = {
	{1, 3, 224, 64, 7, 2}, {1, 64, 56, 64, 1, 1}, {3, 64, 56, 64, 3, 1}, {4, 64, 56, 256, 1, 1}, {2, 256,
		56, 64, 1, 1},
	{1, 256, 56, 128, 1, 1}, {1, 128, 56, 128, 3, 2}, {4, 128, 28, 512, 1, 1}, {1, 256, 56, 512, 1, 2},
	{3, 512, 28, 128, 1, 1}, {3, 128, 28, 128, 3, 1}, {1, 512, 28, 256, 1, 1}, {1, 256, 28, 256, 3, 2},
	{6, 256, 14, 1024, 1, 1}, {1, 512, 28, 1024, 1, 2}, {5, 1024, 14, 256, 1, 1}, {5, 256, 14, 256, 3, 1},
	{1, 1024, 14, 512, 1, 1}, {1, 512, 14, 512, 3, 2}, {3, 512, 7, 2048, 1, 1}, {1, 1024, 14, 2048, 1, 2},
	{2, 2048, 7, 512, 1, 1}, {2, 512, 7, 512, 3, 1}};

/* The same for the depthwise convolutions of MobileNetV2: count, channels, size, stride. */
static const int mobilenet[][4] = {{1, 32, 112, 1}, {1, 96, 112, 2}, {1, 144, 56, 1}, {1, 144, 56, 2}, {2, 192, 28, 1},
	{1, 192, 28, 2}, {4, 384, 14, 1}, {2, 576, 14, 1}, {1, 576, 14, 2}, {3, 960, 7, 1}};

static void depthwise(void)
{
	for (size_t i = 0; i < sizeof mobilenet / sizeof *mobilenet; i++) {
		const int *c = mobilenet[i];
		conv(c[0], c[1], c[2], c[1], 3, c[3], c[1], true);
	}
}

static void resnet_convolutions(void)
{
	for (size_t i = 0; i < sizeof resnet50 / sizeof *resnet50; i++) {
		const int *c = resnet50[i];
		conv(c[0], c[1], c[2], c[3], c[4], c[5], 1, i > 0);
	}
}

static void pools(void)
{
	if (!wanted("pool"))
		return;
	KPool p = {.rank = 2, .n = 8, .c = 64, .in = {112, 112}, .out = {56, 56}, .kernel = {3, 3},
		.stride = {2, 2},
		.dilation = {1, 1}, .pad = {1, 1}, .pad_end = {1, 1}, .layout = 1};
	int64_t nx = 8 * 64 * 112 * 112;
	float *x = floats(nx), *y = floats(nx / 4);
	int32_t *idx = malloc((size_t)nx);
	TIME("max_pool", 1, 6 * nx, 0, k_max_pool_f32(y, idx, x, &p));
	TIME("max_pool_grad", 1, 6 * nx, 0, k_max_pool_grad_f32(x, y, idx, &p));
	TIME("avg_pool", 0, 5 * nx, 0, k_avg_pool_f32(y, x, &p));
	TIME("avg_pool_grad", 0, 5 * nx, 0, k_avg_pool_grad_f32(x, y, &p));
	free(x), free(y), free(idx);
}

/* One sample of a head of 64 and 4,096 positions: what windows, documents and dropout change. */
static void attention_forms(void)
{
	int64_t t = 4096, d = 64, n = t * d, *ids = malloc((size_t)t * 8);
	float *x = floats(4 * n), *dx = floats(3 * n), *o = floats(n), *lse = floats(t);
	StepScalars s = {.seed = 1};
	const KAttention a = {.b = 1, .h = 1, .hk = 1, .t = t, .s = t, .d = d, .dv = d, .scale = 0.125f, .has_right = true};
	KAttention window = a, drops = a;
	window.has_left = true;
	window.left = 511;
	drops.p = 0.1;
	drops.pre = drops.rows = 1;
	const struct { const char *name, *grad; const KAttention *a; bool ids; } form[] = {
		{"attention 4096, causal", "its gradient", &a, false},
		{"attention 4096, window of 512", "its gradient", &window, false},
		{"attention 4096, documents of 512", "its gradient", &a, true},
		{"attention 4096, causal, dropout", "its gradient", &drops, false}};
	for (int64_t i = 0; i < t; i++)
		ids[i] = i / 512;
	for (size_t i = 0; i < sizeof form / sizeof *form && wanted("attention"); i++) {
		const int64_t *documents = form[i].ids ? ids : NULL;
		TIME(form[i].name, 0, 0, 0, k_attention_f32(o, lse, x, x + n, x + 2 * n, NULL, documents,
			form[i].a, 1, &s, work));
		TIME(form[i].grad, 0, 0, 0, k_attention_grad_f32(dx, dx + n, dx + 2 * n, x + 3 * n, x, x + n,
			x + 2 * n, NULL, documents, o, lse, form[i].a, 1, &s, work));
	}
	free(ids);
}

/* In bf16: the heads of a block of GPT-2 124M and of ViT-B/16, in rows of packed q, k and v. */
static void attention_half(void)
{
	const struct { const char *name, *grad; int64_t t; bool causal; } form[] = {
		{"attention bf16, 4 x 12 heads, 256, causal", "its gradient", 256, true},
		{"attention bf16, 4 x 12 heads, 197", "its gradient", 197, false}};
	for (size_t i = 0; i < sizeof form / sizeof *form && wanted("attention"); i++) {
		int64_t b = 4, h = 12, t = form[i].t, d = 64, row = 3 * h * d, n = b * t * row, scores = b * h * t * t;
		const KAttention a = {.b = b, .h = h, .hk = h, .t = t, .s = t, .d = d, .dv = d, .scale = 0.125f, .layout = 1,
			.q_pitch = row, .k_pitch = row, .v_pitch = row, .dq_pitch = row, .dk_pitch = row, .dv_pitch = row,
			.has_right = form[i].causal};
		StepScalars s = {.seed = 1};
		float *wide = floats(n), *lse = floats(b * h * t);
		uint16_t *qkv = malloc((size_t)n * 2), *grad = malloc((size_t)n * 2), *o = malloc((size_t)n * 2);
		for (int64_t k = 0; k < n; k++)
			memcpy(qkv + k, (const char *)(wide + k) + 2, 2);
		int64_t flops = 4 * scores * d / (form[i].causal ? 2 : 1);
		TIME(form[i].name, 0, 0, flops, k_attention_bf16(o, lse, qkv, qkv + h * d, qkv + 2 * h * d, NULL, NULL, &a, 1,
			&s, work));
		TIME(form[i].grad, 0, 0, 5 * flops / 2, k_attention_grad_bf16(grad, grad + h * d, grad + 2 * h * d, o, qkv,
			qkv + h * d, qkv + 2 * h * d, NULL, NULL, o, lse, &a, 1, &s, work));
		free(wide), free(lse), free(qkv), free(grad), free(o);
	}
}

/* A layer of the LSTM language model of the step benchmark: 32 samples of 64 steps, 512 states. */
static void recurrences(void)
{
	int64_t t = 64, b = 32, h = 512, state = t * b * h, flops = 8 * state * h;
	const KRecurrenceDesc d = {.dtype = K_F32, .cell = K_CELL_LSTM, .t = t, .b = b, .h = h,
		.act = {K_ACT_SIGMOID, K_ACT_TANH, K_ACT_TANH}};
	dtype = K_F32;
	own = false;
	matmul(2, t * b, 4 * h, h, false, true, true);
	matmul(4, 4 * h, h, t * b, true, false, false);
	matmul(2, t * b, h, 4 * h, false, false, false);
	matmul(1, t * b, 10000, h, false, true, true);
	matmul(1, t * b, h, 10000, false, false, false);
	matmul(1, 10000, h, t * b, true, false, false);
	if (!wanted("lstm"))
		return;
	KPrim *run = k_recurrence_create(&d), *back = k_recurrence_grad_create(&d);
	float *x = floats(4 * state), *r = floats(4 * h * h), *y = floats(state), *gates = floats(4 * state);
	float *c = floats(state), *dx = floats(4 * state), *before = floats(state);
	TIME("lstm 512, 32 x 64", 2, 40 * state, flops,
		k_recurrence_run(run, y, NULL, gates, NULL, c, x, r, NULL, NULL, NULL, NULL, NULL, work));
	TIME("lstm_grad", 2, 60 * state, flops, k_recurrence_grad_run(back, dx, before, NULL, NULL, NULL, NULL, r, y,
		gates, y, NULL, NULL, c, NULL, NULL, NULL, NULL, work));
	k_prim_free(run), k_prim_free(back);
	free(x), free(r), free(y), free(gates), free(c), free(dx), free(before);
}

int main(int argc, char **argv)
{
	only = argc > 1 ? argv[1] : NULL;
	work = aligned_alloc(64, WORK);
	memset(work, 0, WORK);
	static const struct { KDType type; bool own; const char *name; } products[] = {
		{K_F32, false, "GPT-2: products"}, {K_BF16, false, "GPT-2: products, bf16"},
		{K_F16, false, "GPT-2: products, f16"}, {K_BF16, true, "GPT-2: products, bf16, widened by our kernel"}};
	for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
		dtype = products[i].type;
		own = products[i].own;
		gpt2_products();
		sum(products[i].name);
	}
	gpt2_rest();
	if (wanted("adamw"))
		updates();
	sum("GPT-2: the rest");
	attention_forms();
	attention_half();
	recurrences();
	sum("LSTM: recurrences and products");
	dtype = K_BF16;
	gpt2_rest_bf16();
	sum("GPT-2: the rest in bf16, short of the loss");
	static const struct { KDType type; const char *resnet, *mobilenet; } images[] = {
		{K_F32, "ResNet-50: convolutions", "MobileNetV2: depthwise convolutions"},
		{K_BF16, "ResNet-50: convolutions, bf16", "MobileNetV2: depthwise convolutions, bf16"},
		{K_F16, "ResNet-50: convolutions, f16", "MobileNetV2: depthwise convolutions, f16"}};
	for (size_t i = 0; i < sizeof images / sizeof *images; i++) {
		dtype = images[i].type;
		resnet_convolutions();
		sum(images[i].resnet);
		depthwise();
		sum(images[i].mobilenet);
	}
	bn(1, 64, 112);
	bn(6, 64, 56);
	bn(4, 256, 56);
	bn(1, 128, 56);
	bn(7, 128, 28);
	bn(5, 512, 28);
	bn(1, 256, 28);
	bn(11, 256, 14);
	bn(7, 1024, 14);
	bn(1, 512, 14);
	bn(5, 512, 7);
	bn(4, 2048, 7);
	pools();
	sum("ResNet-50: statistics and pooling");
	free(work);
	return 0;
}
