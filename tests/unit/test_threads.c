/* tests/unit/test_threads.c: primitives that are created under k_threads_exact have the same bits for any number of
 * threads, and the values of those that are created without it. */
#include "kernels/cpu/prim.h"
#include "kernels/work.h"
#include "tests/unit/kernel_cases.h"

#include <stdio.h>

static const int counts[] = {1, 2, 3, 4, 5, 7, 8, 16};
enum { COUNTS = sizeof counts / sizeof *counts };

/* A primitive that is made and run anew: of a product or of a convolution. */
typedef struct Tried {
	const char *name;
	const KMatmulDesc *matmul;
	const KConvDesc *conv;
	int which; /* of a convolution: 0 forward, 1 gradient of x, 2 of w */
	void *y, *before, *work;
	const void *a, *b, *bias;
	int64_t bytes, n;
	KDType type;
} Tried;

static void try_once(const Tried *t, char impl[64])
{
	KPrim *p = t->matmul ? k_matmul_create(t->matmul) : t->which == 0 ? k_conv_create(t->conv)
		: t->which == 1 ? k_conv_grad_x_create(t->conv) : k_conv_grad_w_create(t->conv);
	memcpy(t->y, t->before, (size_t)t->bytes);
	snprintf(impl, 64, "%.63s", k_prim_impl(p));
	int64_t room = t->matmul ? t->matmul->work_bytes : t->conv->work_bytes;
	case_true(k_prim_work(p) <= (room > 0 ? room : 0), impl);
	if (t->matmul)
		k_matmul_run(p, t->y, t->a, t->b, t->bias, t->work);
	else if (t->which == 0)
		k_conv_run(p, t->y, t->a, t->b, t->bias, t->work);
	else if (t->which == 1)
		k_conv_grad_x_run(p, t->y, t->a, t->b, t->bias, t->work);
	else
		k_conv_grad_w_run(p, t->y, t->a, t->b, t->work);
	k_prim_free(p);
}

/* Equal bits over all counts, near to what the library gives.  Says the first count that differs. */
static void check_exact(const Tried *t, double tol)
{
	char impl[64], name[320];
	void *first = case_alloc(t->bytes);
	double *want = case_doubles(t->n);
	case_threads(2);
	try_once(t, impl);
	float *wide = case_widened(t->y, t->n, t->type);
	for (int64_t i = 0; i < t->n; i++)
		want[i] = wide[i];
	k_threads_exact = true;
	for (int i = 0; i < COUNTS; i++) {
		case_threads(counts[i]);
		try_once(t, impl);
		if (i == 0)
			memcpy(first, t->y, (size_t)t->bytes);
		snprintf(name, sizeof name, "%s, %s: %d threads have other bits than one", t->name, impl, counts[i]);
		case_equal(name, t->y, first, t->bytes);
	}
	k_threads_exact = false;
	case_threads(2);
	snprintf(name, sizeof name, "%s, %s, beside the library", t->name, impl);
	case_close(name, case_widened(t->y, t->n, t->type), want, t->n, tol);
}

/* ---- products ---- */

typedef struct Product { int64_t m, n, k, batch; } Product;
static const Product products[] = {
	{64, 64, 12544, 0}, {5, 7, 4096, 0}, {33, 47, 2100, 0}, /* parts of k */
	{64, 100, 1024, 0}, {256, 192, 300, 0}, {8, 1009, 128, 0}, {1009, 31, 65, 0}, {1, 300, 1000, 0}, {300, 1, 700, 0},
	{1, 1, 1, 0}, {150, 1100, 530, 0}, {6, 2, 3, 0}, {17, 33, 64, 24}, {130, 50, 270, 3},
};

static void check_product(const Product *s, int turned, KDType type, KDType to, int how)
{
	bool add = how == 1, bias = how == 2;
	int64_t count = s->batch ? s->batch : 1, pad = how == 3 ? 5 : 0;
	KMatmulDesc d = {.dtype = type, .to = to, .m = s->m, .n = s->n, .k = s->k, .ta = turned & 1, .tb = turned >> 1,
		.add = add, .bias = bias, .work_bytes = how == 3 ? 0 : K_GEMM_WORK};
	d.lda = (d.ta ? d.m : d.k) + pad;
	d.ldb = (d.tb ? d.k : d.n) + pad;
	d.ldy = d.n + pad;
	int64_t na = (d.ta ? d.k : d.m) * d.lda, nb = (d.tb ? d.n : d.k) * d.ldb, ny = count * d.m * d.ldy;
	if (s->batch)
		d.n_batch = 1, d.batch[0] = count, d.sa[0] = na, d.sb[0] = turned == 3 ? 0 : nb;
	float *a = case_floats(count * na, -1, 1), *b = case_floats(count * nb, -1, 1), *c = case_floats(d.n, -1, 1);
	float *before = case_floats(ny, -1, 1);
	int64_t bytes = ny * (to == K_F32 ? 4 : 2);
	Tried t = {.matmul = &d, .y = case_alloc(bytes), .work = case_alloc(K_GEMM_WORK), .bytes = bytes, .n = ny,
		.type = to, .before = case_halves(before, ny, to), .a = case_halves(a, count * na, type),
		.b = case_halves(b, count * nb, type), .bias = bias ? case_halves(c, d.n, type) : NULL};
	char name[128];
	snprintf(name, sizeof name, "product %lld x %lld x %lld, ta %d tb %d, type %d, case %d", (long long)s->m,
		(long long)s->n, (long long)s->k, d.ta, d.tb, (int)type, how);
	t.name = name;
	check_exact(&t, to == K_F32 ? 1e-6 * sqrt((double)d.k + 1) : case_half_bound(to));
}

static void test_products(void)
{
	for (size_t i = 0; i < sizeof products / sizeof *products; i++)
		for (int turned = 0; turned < 4; turned++) {
			for (int how = 0; how < 4; how++)
				check_product(&products[i], turned, K_F32, K_F32, how);
			check_product(&products[i], turned, K_BF16, turned & 1 ? K_F32 : K_BF16, turned & 1);
			case_end();
		}
	check_product(&products[4], 2, K_F16, K_F16, 0);
	case_end();
}

/* Under the flag, products of f32 are ours. */
static void test_road(void)
{
	KMatmulDesc d = {.dtype = K_F32, .m = 64, .n = 64, .k = 64, .work_bytes = K_GEMM_WORK};
	for (int exact = 0; exact < 2; exact++) {
		k_threads_exact = exact;
		KPrim *p = k_matmul_create(&d);
		UNIT_CHECK((strcmp(k_prim_impl(p), "own:packed") == 0) == (exact == 1), k_prim_impl(p));
		k_prim_free(p);
	}
	k_threads_exact = false;
}

/* ---- convolutions ---- */

typedef struct Conv { int rank; int64_t n, c, o, group, in, kernel, stride, pad; } Conv;
static const Conv convs[] = {
	{2, 4, 3, 32, 1, 32, 3, 2, 1}, {2, 4, 3, 16, 1, 32, 7, 2, 3}, {2, 3, 32, 40, 1, 16, 3, 1, 1},
	{2, 4, 32, 64, 1, 16, 1, 1, 0}, {2, 4, 32, 64, 1, 16, 1, 2, 0}, {2, 4, 48, 48, 48, 16, 3, 1, 1},
	{2, 35, 48, 48, 48, 8, 3, 2, 1}, {2, 4, 32, 32, 4, 16, 3, 1, 1}, {1, 3, 16, 24, 1, 40, 5, 2, 2},
	{3, 2, 16, 24, 1, 6, 3, 1, 1}, {2, 1, 64, 64, 1, 7, 3, 1, 1}, {2, 40, 1, 16, 1, 8, 3, 1, 1},
	{2, 2, 5, 7, 1, 9, 2, 1, 0},
};

static void check_conv(const Conv *s, int which, int layout, KDType type, KDType to)
{
	KConvDesc d = {.dtype = type, .to = to, .rank = s->rank, .n = s->n, .c = s->c, .o = s->o, .group = s->group,
		.layout = layout, .bias = which == 1 || s->o % 16, .work_bytes = 16 << 20};
	int64_t nx = d.n * d.c, ny = d.n * d.o, nw = d.o * d.c / d.group;
	for (int i = 0; i < d.rank; i++) {
		d.in[i] = s->in, d.kernel[i] = s->kernel, d.stride[i] = s->stride, d.dilation[i] = 1;
		d.pad[i] = d.pad_end[i] = s->pad;
		d.out[i] = (s->in + 2 * s->pad - s->kernel) / s->stride + 1;
		nx *= d.in[i], ny *= d.out[i], nw *= d.kernel[i];
	}
	d.bias = d.bias && which < 2;
	float *x = case_floats(nx, -1, 1), *w = case_floats(nw, -1, 1), *dy = case_floats(ny, -1, 1);
	float *bias = case_floats(d.c + d.o, -1, 1);
	int64_t n = which == 0 ? ny : which == 1 ? nx : nw, bytes = n * (to == K_F32 ? 4 : 2);
	Tried t = {.conv = &d, .which = which, .y = case_alloc(bytes), .before = case_alloc(bytes),
		.work = case_alloc(d.work_bytes), .bytes = bytes, .n = n, .type = to,
		.a = which == 1 ? case_halves(dy, ny, type) : case_halves(x, nx, type),
		.b = which == 2 ? case_halves(dy, ny, type) : case_halves(w, nw, type),
		.bias = d.bias ? case_halves(bias, d.c + d.o, type) : NULL};
	char name[128];
	snprintf(name, sizeof name, "convolution %d, of %d dims, %lld x %lld -> %lld channels, layout %d, type %d", which,
		s->rank, (long long)s->n, (long long)s->c, (long long)s->o, layout, (int)type);
	t.name = name;
	check_exact(&t, to == K_F32 ? 1e-5 : 2 * case_half_bound(to));
	case_end();
}

static void test_convs(void)
{
	for (size_t i = 0; i < sizeof convs / sizeof *convs; i++)
		for (int which = 0; which < 3; which++) {
			for (int layout = 0; layout < 2; layout++)
				check_conv(&convs[i], which, layout, K_F32, K_F32);
			check_conv(&convs[i], which, 1, K_BF16, which == 2 ? K_F32 : K_BF16);
		}
}

/* ---- convolutions by tiles, which conv.c takes on vectors of 8 floats only, and by patches ---- */

static const Conv tiled[] = {
	{2, 3, 32, 64, 1, 11, 3, 1, 1}, {2, 2, 64, 32, 1, 12, 3, 2, 1}, {2, 2, 32, 32, 1, 10, 2, 3, 0},
	{2, 1, 416, 32, 1, 5, 3, 1, 1}, {2, 1, 32, 416, 1, 5, 3, 2, 2}, {1, 3, 64, 64, 1, 40, 5, 2, 2},
	{3, 1, 32, 32, 1, 5, 3, 1, 1}, {2, 1, 32, 32, 1, 1, 3, 1, 1},
};

/* As what create makes, with so much work, beside loops */
static void check_own(const Conv *s, ConvKind kind, ConvCreate *create, int64_t work_bytes)
{
	KConvDesc d = {.dtype = K_F32, .to = K_F32, .rank = s->rank, .n = s->n, .c = s->c, .o = s->o, .group = s->group,
		.layout = 1, .bias = kind == CONV_FORWARD, .work_bytes = work_bytes};
	int64_t nx = d.n * d.c, ny = d.n * d.o, nw = d.o * d.c / d.group;
	for (int i = 0; i < d.rank; i++) {
		d.in[i] = s->in, d.kernel[i] = s->kernel, d.stride[i] = s->stride, d.dilation[i] = 1;
		d.pad[i] = d.pad_end[i] = s->pad;
		d.out[i] = (s->in + 2 * s->pad - s->kernel) / s->stride + 1;
		nx *= d.in[i], ny *= d.out[i], nw *= d.kernel[i];
	}
	int64_t n = kind == CONV_FORWARD ? ny : kind == CONV_GRAD_X ? nx : nw;
	float *a = case_floats(kind == CONV_GRAD_X ? ny : nx, -1, 1);
	float *b = case_floats(kind == CONV_GRAD_W ? ny : nw, -1, 1);
	float *bias = d.bias ? case_floats(d.o, -1, 1) : NULL, *y = case_alloc(n * 4), *first = case_alloc(n * 4);
	double *want = case_doubles(n);
	char *work = case_alloc(d.work_bytes);
	PrimArgs args = {{y, a, b, bias}};
	KPrim *plain = conv_plain_create(&d, kind), *own = create(&d, kind);
	UNIT_CHECK(own && k_prim_work(own) <= d.work_bytes, "a kernel of ours does not serve a convolution");
	plain->run(plain, &args, work);
	for (int64_t i = 0; i < n; i++)
		want[i] = y[i];
	for (int i = 0; own && i < COUNTS; i++) {
		case_threads(counts[i]);
		memset(work, 0xff, (size_t)d.work_bytes);
		own->run(own, &args, work);
		case_close(own->impl, y, want, n, 3e-6);
		if (i == 0)
			memcpy(first, y, (size_t)(n * 4));
		case_equal("bits for any number of threads", y, first, n * 4);
	}
	case_threads(2);
	k_prim_free(plain);
	k_prim_free(own);
	case_end();
}

static void test_tiles(void)
{
	for (size_t i = 0; i < sizeof tiled / sizeof *tiled; i++) {
		check_own(&tiled[i], CONV_FORWARD, conv_tiles_create, 16 << 20);
		check_own(&tiled[i], CONV_GRAD_X, conv_tiles_create, 16 << 20);
	}
	KConvDesc d = {.dtype = K_F32, .rank = 1, .n = 1, .c = 32, .o = 32, .group = 1, .layout = 1, .in = {9}, .out = {7},
		.kernel = {3}, .stride = {1}, .dilation = {1}, .work_bytes = 1 << 20};
	KConvDesc few = d, groups = d, half = d, first = d, poor = d;
	few.c = 8, groups.group = 2, half.dtype = K_BF16, first.layout = 0, poor.work_bytes = 64;
	const KConvDesc *refused[] = {&few, &groups, &half, &first, &poor};
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
		UNIT_CHECK(!conv_tiles_create(refused[i], CONV_FORWARD), "tiles serve what they cannot");
	UNIT_CHECK(!conv_tiles_create(&d, CONV_GRAD_W), "tiles serve a gradient of weights");
}

/* Patches in one chunk and in several. */
static void test_patches(void)
{
	static const Conv patched[] = {
		{2, 3, 33, 20, 1, 11, 3, 2, 1}, {2, 2, 24, 36, 4, 9, 3, 1, 1}, {3, 1, 17, 8, 1, 6, 3, 1, 1},
		{1, 2, 48, 32, 2, 90, 16, 3, 7},
	};
	k_threads_exact = true;
	for (size_t i = 0; i < sizeof patched / sizeof *patched; i++)
		for (int kind = 0; kind < 6; kind++)
			check_own(&patched[i], (ConvKind)(kind % 3), conv_patch_create, kind < 3 ? 16 << 20 : 100 << 10);
	k_threads_exact = false;
}

void suite_threads(void)
{
	CU_pSuite s = CU_add_suite("threads", NULL, NULL);
	CU_add_test(s, "products", test_products);
	CU_add_test(s, "which products", test_road);
	CU_add_test(s, "convolutions", test_convs);
	CU_add_test(s, "convolutions by tiles", test_tiles);
	CU_add_test(s, "convolutions by patches", test_patches);
}
