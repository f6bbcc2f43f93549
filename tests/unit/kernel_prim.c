/* tests/unit/kernel_prim.c: matrix products, convolutions, packing and pooling against plain loops. */
#include "kernels/cuda/work.h"
#include "kernels/layouts.h"
#include "tests/unit/kernel_cases.h"

/* ---- matmul ---- */

typedef struct Product {
	int64_t m, n, k;
	bool ta, tb, bias;
	int n_batch;
	int64_t batch[2], bcast_a, bcast_b; /* bit i: operand is broadcast along batch dim i */
} Product;

static KMatmulDesc product_desc(const Product *p, KDType t)
{
	KMatmulDesc d = {.dtype = t, .m = p->m, .n = p->n, .k = p->k, .ta = p->ta, .tb = p->tb, .bias = p->bias,
		.n_batch = p->n_batch, .work_bytes = K_GEMM_MIN};
	int64_t a = p->m * p->k, b = p->k * p->n;
	for (int i = p->n_batch - 1; i >= 0; i--) {
		d.batch[i] = p->batch[i];
		d.sa[i] = p->bcast_a >> i & 1 ? 0 : a;
		d.sb[i] = p->bcast_b >> i & 1 ? 0 : b;
		a *= d.sa[i] ? p->batch[i] : 1;
		b *= d.sb[i] ? p->batch[i] : 1;
	}
	return d;
}

static void product_want(const KMatmulDesc *d, double *y, const float *a, const float *b, const float *bias)
{
	int64_t count = case_numel(d->n_batch, d->batch), at[6];
	for (int64_t c = 0; c < count; c++) {
		const float *pa = a, *pb = b;
		case_unravel(c, d->n_batch, d->batch, at);
		for (int i = 0; i < d->n_batch; i++)
			pa += at[i] * d->sa[i], pb += at[i] * d->sb[i];
		for (int64_t i = 0; i < d->m; i++)
			for (int64_t j = 0; j < d->n; j++) {
				double s = bias ? bias[j] : 0;
				for (int64_t k = 0; k < d->k; k++)
					s += (double)pa[d->ta ? k * d->m + i : i * d->k + k] * pb[d->tb ? j * d->k + k
						: k * d->n + j];
				y[(c * d->m + i) * d->n + j] = s;
			}
	}
}

static const Product products[] = {
	{.m = 33, .n = 47, .k = 65}, {.m = 33, .n = 47, .k = 65, .ta = 1}, {.m = 33, .n = 47, .k = 65, .tb = 1},
	{.m = 33, .n = 47, .k = 65, .ta = 1, .tb = 1}, {.m = 1, .n = 1, .k = 1}, {.m = 1, .n = 300, .k = 17,
		.bias = 1},
	{.m = 130, .n = 5, .k = 400, .tb = 1, .bias = 1}, {.m = 7, .n = 9, .k = 0, .bias = 1}, {.m = 0, .n = 9,
		.k = 3},
	{.m = 64, .n = 128, .k = 256, .bias = 1}, {.m = 200, .n = 64, .k = 300, .ta = 1},
	{.m = 9, .n = 17, .k = 21, .n_batch = 2, .batch = {3, 5}},
	{.m = 9, .n = 17, .k = 21, .n_batch = 2, .batch = {3, 5}, .bcast_b = 3, .bias = 1},
	{.m = 9, .n = 17, .k = 21, .tb = 1, .n_batch = 2, .batch = {3, 5}, .bcast_b = 2},
	{.m = 9, .n = 17, .k = 21, .ta = 1, .n_batch = 2, .batch = {3, 5}, .bcast_a = 1, .bias = 1},
	{.m = 9, .n = 17, .k = 21, .n_batch = 2, .batch = {3, 5}, .bcast_a = 2, .bcast_b = 1},
	{.m = 60, .n = 70, .k = 30, .ta = 1, .tb = 1, .n_batch = 1, .batch = {6}, .bcast_a = 1},
};

/* Above the sides and depths of blocks in which own:amx computes; with less scratch blocks are smaller. */
static const Product long_ones[] = {
	{.m = 1070, .n = 50, .k = 45, .bias = 1}, {.m = 50, .n = 1070, .k = 45, .tb = 1, .bias = 1},
	{.m = 45, .n = 210, .k = 6200, .ta = 1, .bias = 1}, {.m = 1070, .n = 40, .k = 3090, .bias = 1},
	{.m = 40, .n = 1070, .k = 3090, .tb = 1, .bias = 1}, {.m = 70, .n = 1070, .k = 64, .bias = 1},
	{.m = 1070, .n = 40, .k = 4096, .tb = 1, .bias = 1}, {.m = 1200, .n = 900, .k = 96, .ta = 1},
	{.m = 300, .n = 1500, .k = 64, .ta = 1, .tb = 1}, {.m = 40, .n = 1000, .k = 1990, .ta = 1, .bias = 1},
	{.m = 1100, .n = 700, .k = 1500, .bias = 1},
};

/* Each run starts from the sum again; without a sum the product is written to y as it is. */
typedef struct Running { KPrim *prim; void *y, *a, *b, *bias, *work; const float *sum; int64_t n; } Running;
static void run_product(const Running *r)
{
	case_sync();
	if (r->sum)
		memcpy(r->y, r->sum, (size_t)r->n * sizeof *r->sum);
	k_matmul_run(r->prim, r->y, r->a, r->b, r->bias, r->work);
}

/* A sum to which the product is added, which is then wanted; NULL: d adds to none. */
static float *sum_before(const KMatmulDesc *d, double *want, int64_t n)
{
	float *sum = d->add ? case_floats(n, -50, 50) : NULL;
	for (int64_t i = 0; i < n && sum; i++)
		want[i] += sum[i];
	return sum;
}

/* f32 sums are rounded once, by the library and by our own kernels: with a scratch of -1 bytes, into which nothing
 * fits, by the one that needs none. */
static void check_halves(const Product *shape, KDType type, KDType to, int64_t work_bytes, bool add)
{
	bool own = work_bytes < 0;
	KMatmulDesc d = product_desc(shape, type);
	d.to = to;
	d.add = add;
	d.bias = d.bias && !add;
	d.work_bytes = work_bytes;
	int64_t count = case_numel(d.n_batch, d.batch), ny = count * d.m * d.n;
	float *a = case_floats(count * d.m * d.k, -1, 1), *b = case_floats(count * d.k * d.n, -1, 1);
	float *bias = case_floats(d.n, -1, 1);
	void *ha = case_halves(a, count * d.m * d.k, type), *hb = case_halves(b, count * d.k * d.n, type);
	void *hbias = case_halves(bias, d.n, type), *y = case_alloc(ny * 4);
	double *want = case_doubles(ny);
	KPrim *p = k_matmul_create(&d);
	void *work = case_alloc(k_prim_work(p));
	case_true(k_prim_work(p) <= (own ? 0 : work_bytes), "16-bit matmul: more scratch than there is");
	bool library = strncmp(k_prim_impl(p), "own", 3) != 0, exact = own || !strcmp(k_prim_impl(p), "own:amx");
	case_true(strncmp(k_prim_impl(p), "ref", 3) != 0 && !(own && library), k_prim_impl(p));
	product_want(&d, want, a, b, d.bias ? bias : NULL);
	Running r = {p, y, ha, hb, d.bias ? hbias : NULL, work, sum_before(&d, want, ny), ny};
	if (exact && d.n > 200)
		CASE_SAME_BITS("16-bit matmul", y, ny * 4, run_product(&r));
	else
		run_product(&r);
	k_prim_free(p);
	case_close(own ? "16-bit matmul, own" : "16-bit matmul", case_widened(y, ny, to), want, ny,
		to == K_F32 ? 1e-6 * sqrt((double)d.k + 1) : case_half_bound(to));
}

static void check_half_products(void)
{
	static const Product large = {.m = 201, .n = 300, .k = 601, .bias = 1};
	static const int64_t room[] = {K_GEMM_WORK, -1};
	for (int t = 0; t < 4; t++) {
		KDType type = t % 2 ? K_BF16 : K_F16;
		int64_t work = room[t / 2];
		for (size_t c = 0; c < sizeof products / sizeof *products; c++) {
			check_halves(&products[c], type, type, work, false);
			check_halves(&products[c], type, K_F32, work, false);
			check_halves(&products[c], type, K_F32, work, true);
		}
		for (int tr = 0; tr < 4; tr++) {
			Product p = large;
			p.ta = tr & 1, p.tb = tr & 2;
			check_halves(&p, type, type, work, false);
			check_halves(&p, type, K_F32, work, true);
		}
	}
	for (size_t c = 0; c < sizeof long_ones / sizeof *long_ones; c++)
		for (int64_t work = K_GEMM_WORK; work > 1 << 16; work /= 5) {
			check_halves(&long_ones[c], K_BF16, K_BF16, work, false);
			check_halves(&long_ones[c], K_BF16, K_F32, work, c % 2);
		}
}

/* Integers, and an f64 bias that f32 could not hold. */
static void check_other_products(void)
{
	static const int64_t ia[6] = {1, -2, 3, 4, 5, -6}, ib[6] = {7, 8, 9, 1, 2, 3}, want[4] = {18, 6, 14, -4};
	static const double da[2] = {1.5, 2}, db[2] = {4, 0.25}, bias = 1 + 0x1p-40, sum = 7.5 + 0x1p-40;
	int64_t *iy = case_alloc(sizeof want);
	double *dy = case_alloc(sizeof sum);
	KPrim *p = k_matmul_create(&(KMatmulDesc){.dtype = K_I64, .m = 2, .n = 2, .k = 3, .tb = true});
	k_matmul_run(p, iy, case_bytes(ia, sizeof ia), case_bytes(ib, sizeof ib), NULL, NULL);
	k_prim_free(p);
	case_equal("matmul i64", iy, want, sizeof want);
	p = k_matmul_create(&(KMatmulDesc){.dtype = K_F64, .m = 1, .n = 1, .k = 2, .bias = true});
	k_matmul_run(p, dy, case_bytes(da, sizeof da), case_bytes(db, sizeof db), case_bytes(&bias, sizeof bias), NULL);
	k_prim_free(p);
	case_equal("matmul f64", dy, &sum, sizeof sum);
}

static void check_floats(const Product *shape, bool scratch, bool add)
{
	KMatmulDesc d = product_desc(shape, K_F32);
	d.work_bytes = scratch ? d.work_bytes : 0;
	d.add = add;
	d.bias = d.bias && !add;
	int64_t count = case_numel(d.n_batch, d.batch), ny = count * d.m * d.n;
	float *a = case_floats(count * d.m * d.k, -1, 1), *b = case_floats(count * d.k * d.n, -1, 1);
	float *bias = d.bias ? case_floats(d.n, -1, 1) : NULL, *y = case_alloc(ny * 4);
	double *want = case_doubles(ny);
	void *work = case_alloc(d.work_bytes);
	KPrim *p = k_matmul_create(&d);
	case_true(strncmp(k_prim_impl(p), "ref", 3) != 0 && k_prim_work(p) <= d.work_bytes, k_prim_impl(p));
	product_want(&d, want, a, b, bias);
	Running r = {p, y, a, b, bias, work, sum_before(&d, want, ny), ny};
	for (int run = 0; run < 2; run++)
		run_product(&r);
	k_prim_free(p);
	case_close(add ? "matmul that adds" : "matmul", y, want, ny, 1e-6 * sqrt((double)d.k + 1));
}

void case_matmul(void)
{
	check_half_products();
	for (size_t c = 0; c < sizeof products / sizeof *products; c++)
		for (int v = 0; v < 4; v++)
			check_floats(&products[c], v & 1, v & 2);
	check_other_products();
	check_pitched_products();
}

/* ---- convolution ---- */

typedef struct Conv { int rank; int64_t n, c, o, group, in[3], kernel[3], stride[3], dilation[3], pad[3],
	end[3]; } Conv;
static const Conv convs[] = {
	{2, 2, 3, 16, 1, {13, 11}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
	{2, 2, 16, 24, 1, {9, 10}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
	{2, 1, 3, 8, 1, {20, 23}, {7, 7}, {2, 2}, {1, 1}, {3, 3}, {3, 3}},
	{2, 2, 20, 33, 1, {7, 6}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
	{2, 2, 20, 33, 1, {7, 6}, {1, 1}, {2, 2}, {1, 1}, {0, 0}, {0, 0}},
	{2, 2, 32, 32, 32, {9, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
	{2, 2, 20, 20, 20, {9, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
	{2, 2, 12, 18, 6, {9, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
	{2, 2, 32, 64, 2, {9, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
	{2, 1, 5, 10, 5, {6, 6}, {3, 3}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
	{2, 1, 6, 7, 1, {12, 14}, {3, 2}, {1, 2}, {2, 3}, {2, 1}, {1, 0}},
	{2, 3, 1, 16, 1, {8, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
	{2, 3, 24, 30, 1, {12, 14}, {3, 2}, {1, 2}, {2, 3}, {2, 1}, {1, 0}},
	{2, 2, 17, 13, 1, {40, 30}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}, /* several chunks of an image */
	{2, 9, 16, 16, 1, {9, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}, /* several images in a chunk */
	{1, 2, 40, 17, 1, {31}, {5}, {2}, {2}, {2}, {3}},
	{1, 2, 6, 9, 1, {31}, {5}, {2}, {1}, {2}, {3}},
	{1, 2, 16, 16, 1, {31}, {1}, {1}, {1}, {0}, {0}},
	{1, 2, 16, 32, 16, {31}, {4}, {1}, {1}, {3}, {0}},
	{3, 1, 4, 6, 1, {5, 6, 7}, {3, 2, 3}, {1, 2, 1}, {1, 1, 1}, {1, 0, 1}, {1, 1, 1}},
	{2, 1, 40, 40, 40, {40, 67}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}, /* several tiles and bands of rows */
	{2, 2, 34, 34, 34, {11, 12}, {5, 4}, {2, 1}, {1, 2}, {2, 3}, {1, 3}},
	{2, 2, 32, 32, 32, {12, 11}, {4, 5}, {3, 2}, {2, 1}, {2, 2}, {3, 1}},
	{2, 1, 1200, 2, 1, {11, 11}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}, /* several chunks of patches */
	{3, 1, 16, 16, 1, {5, 4, 6}, {1, 3, 3}, {1, 1, 1}, {1, 1, 2}, {0, 1, 2}, {0, 1, 2}},
	{2, 2, 32, 64, 1, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}, /* from here, of channels for conv_tiles.c */
	{2, 1, 64, 32, 1, {11, 10}, {3, 2}, {2, 3}, {1, 2}, {1, 0}, {0, 1}},
	{2, 2, 32, 32, 1, {10, 9}, {2, 2}, {3, 3}, {1, 1}, {0, 1}, {1, 0}}, /* positions that meet nothing */
	{2, 1, 416, 32, 1, {4, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}, /* channels in parts */
	{2, 1, 32, 416, 1, {5, 4}, {3, 3}, {2, 1}, {1, 1}, {1, 1}, {1, 1}},
	{1, 2, 32, 32, 1, {31}, {5}, {2}, {2}, {2}, {3}},
	{3, 1, 32, 32, 1, {5, 4, 6}, {1, 3, 3}, {2, 1, 1}, {1, 1, 2}, {0, 1, 2}, {0, 1, 2}},
	{2, 3, 32, 32, 1, {13, 14}, {3, 3}, {1, 1}, {1, 1}, {3, 0}, {0, 3}}, /* several blocks of positions */
	{2, 4, 32, 40, 1, {17, 16}, {2, 3}, {1, 1}, {1, 1}, {1, 1}, {0, 1}}, /* several parts of a sum on tiles */
	{2, 2, 3, 40, 1, {20, 23}, {7, 7}, {2, 2}, {1, 1}, {3, 3}, {3, 2}}, /* lines of taps on tiles */
	{2, 1, 5, 33, 1, {9, 40}, {3, 6}, {1, 3}, {2, 1}, {1, 7}, {0, 9}},
	{1, 3, 4, 32, 1, {31}, {8}, {2}, {1}, {9}, {7}},
	{3, 1, 64, 4, 1, {6, 7, 8}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, /* from here, the library's */
	{2, 1, 128, 5, 1, {20, 22}, {3, 3}, {1, 1}, {12, 12}, {12, 12}, {12, 12}}, /* own scratch would be too large */
	{1, 1, 64, 20, 4, {300}, {64}, {1}, {1}, {32}, {31}},
	{2, 2, 34, 34, 34, {0, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}, /* nothing but padding */
	{1, 2, 6, 9, 1, {0}, {2}, {1}, {1}, {1}, {2}},
	{2, 1, 48, 48, 48, {61, 64}, {2, 4}, {2, 1}, {1, 2}, {1, 2}, {1, 4}}, /* large enough for conv_depthwise_f32.c */
	{2, 2, 3, 24, 1, {9, 67}, {3, 3}, {2, 2}, {2, 1}, {1, 1}, {1, 1}}, /* from here, rows for conv_grad_w_thin.c */
	{2, 1, 13, 16, 1, {3, 33}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
	{1, 2, 5, 16, 1, {70}, {2}, {2}, {1}, {0}, {0}},
};
enum { N_CONVS = sizeof convs / sizeof *convs };

static KConvDesc conv_desc(const Conv *c, int layout, bool bias)
{
	KConvDesc d = {.dtype = K_F32, .rank = c->rank, .n = c->n, .c = c->c, .o = c->o, .group = c->group,
		.layout = layout, .bias = bias};
	for (int i = 0; i < c->rank; i++) {
		d.in[i] = c->in[i];
		d.kernel[i] = c->kernel[i];
		d.stride[i] = c->stride[i];
		d.dilation[i] = c->dilation[i];
		d.pad[i] = c->pad[i];
		d.pad_end[i] = c->end[i];
		d.out[i] = (c->in[i] + c->pad[i] + c->end[i] - c->dilation[i] * (c->kernel[i] - 1) - 1) / c->stride[i] + 1;
	}
	return d;
}

static bool only_padding(const KConvDesc *d) { return case_numel(d->rank, d->in) == 0; }

/* What the plan would give: 0 forward, 1 gradient of x, 2 of w. */
static int64_t conv_work(const KConvDesc *d, int which)
{
	typedef int64_t Work(const KWorkArgs *);
	static Work *const work[2][3] = {{kwork_conv, kwork_conv_grad_x, kwork_conv_grad_w},
		{kwork_cuda_conv, kwork_cuda_conv_grad_x, kwork_cuda_conv_grad_w}};
	int64_t w[5] = {d->o, d->c / d->group}, x[5] = {d->n}, y[5] = {d->n}, pads[6];
	int at = d->layout ? 1 : 2;
	x[d->layout ? d->rank + 1 : 1] = d->c;
	y[d->layout ? d->rank + 1 : 1] = d->o;
	for (int i = 0; i < d->rank; i++) {
		w[2 + i] = d->kernel[i];
		x[at + i] = d->in[i];
		y[at + i] = d->out[i];
		pads[i] = d->pad[i];
		pads[d->rank + i] = d->pad_end[i];
	}
	KShape ws = {2 + d->rank, w, 4}, xs = {2 + d->rank, x, 4}, ys = {2 + d->rank, y, 4};
	KWorkArgs a = {.group = d->group, .layout = d->layout, .pads = pads};
	a.in[0] = which == 1 ? ys : xs;
	a.in[1] = which == 2 ? ys : ws;
	a.out[0] = which == 0 ? ys : which == 1 ? xs : ws;
	return work[case_cuda()][which](&a);
}

static int64_t image_at(const KConvDesc *d, int64_t n, int64_t channel, int64_t c, int64_t at,
	const int64_t *spatial)
{
	int64_t s = case_numel(d->rank, spatial);
	return d->layout ? (n * s + at) * c + channel : (n * c + channel) * s + at;
}

/* Calls visit for every product of an input and a weight element in an output element. */
static void conv_visit(const KConvDesc *d, void (*visit)(void *, int64_t y, int64_t x, int64_t w),
	void *context)
{
	int64_t ig = d->c / d->group, og = d->o / d->group, ks = case_numel(d->rank, d->kernel), q[3], k[3];
	for (int64_t n = 0; n < d->n; n++)
		for (int64_t o = 0; o < d->o; o++)
			for (int64_t i = 0; i < ig; i++)
				for (int64_t qi = 0; qi < case_numel(d->rank, d->out); qi++)
					for (int64_t ki = 0; ki < ks; ki++) {
						bool inside = true;
						case_unravel(qi, d->rank, d->out, q);
						case_unravel(ki, d->rank, d->kernel, k);
						for (int r = 0; r < d->rank; r++) {
							q[r] = q[r] * d->stride[r] + k[r] * d->dilation[r] - d->pad[r];
							inside &= q[r] >= 0 && q[r] < d->in[r];
						}
						if (inside)
							visit(context, image_at(d, n, o, d->o, qi, d->out), image_at(d, n,
								o / og * ig + i,
								d->c, case_ravel(d->rank, d->in, q), d->in), (o * ig + i) * ks + ki);
					}
}

typedef struct Visit { double *to; const float *a, *b; } Visit;
static void visit_y(void *v, int64_t y, int64_t x, int64_t w)
{
	Visit *c = v;
	c->to[y] += (double)c->a[x] * c->b[w];
}
static void visit_x(void *v, int64_t y, int64_t x, int64_t w)
{
	Visit *c = v;
	c->to[x] += (double)c->a[y] * c->b[w];
}
static void visit_w(void *v, int64_t y, int64_t x, int64_t w)
{
	Visit *c = v;
	c->to[w] += (double)c->a[x] * c->b[y];
}

static void check_prim(const KPrim *p, const KConvDesc *d)
{
	case_true(strncmp(k_prim_impl(p), "ref", 3) != 0 && k_prim_work(p) <= d->work_bytes, k_prim_impl(p));
}

/* starve: only the kernels that need no scratch may run.  On CUDA the plan's is enough for the library, always. */
static void check_conv(int c, int layout, bool starve, int which)
{
	KConvDesc d = conv_desc(&convs[c], layout, which != 2 && c % 2);
	int64_t nx = d.n * d.c * case_numel(d.rank, d.in), ny = d.n * d.o * case_numel(d.rank, d.out);
	int64_t nw = d.o * d.c / d.group * case_numel(d.rank, d.kernel);
	float *x = case_floats(nx, -1, 1), *w = case_floats(nw, -1, 1), *dy = case_floats(ny, -1, 1),
		*bias = NULL;
	int64_t n = which == 0 ? ny : which == 1 ? nx : nw, channels = which ? d.c : d.o;
	float *got = case_alloc(n * 4);
	double *want = case_doubles(n);
	void *work;
	d.work_bytes = starve ? 0 : conv_work(&d, which);
	work = case_alloc(d.work_bytes);
	if (d.bias) {
		bias = case_floats(channels, -1, 1);
		for (int64_t i = 0; i < n; i++)
			want[i] = bias[layout ? i % channels
				: i / case_numel(d.rank, which ? d.in : d.out) % channels];
	}
	KPrim *p = which == 0 ? k_conv_create(&d) : which == 1 ? k_conv_grad_x_create(&d)
		: k_conv_grad_w_create(&d);
	check_prim(p, &d);
	case_true(!case_cuda() || starve || only_padding(&d) || strncmp(k_prim_impl(p), "cudnn", 5) == 0,
		"loops, though there is scratch");
	case_true(case_cuda() || starve || !layout || only_padding(&d) || strcmp(k_prim_impl(p), "own:plain") != 0,
		"loops, though there is scratch");
	for (int run = 0; run < 2; run++)
		if (which == 0)
			k_conv_run(p, got, x, w, bias, work);
		else if (which == 1)
			k_conv_grad_x_run(p, got, dy, w, bias, work);
		else
			k_conv_grad_w_run(p, got, x, dy, work);
	conv_visit(&d, which == 0 ? visit_y : which == 1 ? visit_x : visit_w,
		&(Visit){want, which == 1 ? dy : x, which == 2 ? dy : w});
	char name[128];
	snprintf(name, sizeof name, "conv %d of case %d, layout %d, %s", which, c, layout, k_prim_impl(p));
	case_close(name, got, want, n, 3e-6);
	if (which == 2 && strncmp(k_prim_impl(p), "own", 3) == 0)
		CASE_SAME_BITS("conv_grad_w", got, n * 4, k_conv_grad_w_run(p, got, x, dy, work));
	k_prim_free(p);
}

/* Every element is the 16-bit number next to what is wanted, but for what f32 sums of so many terms err. */
static void rounded_once(const char *name, const float *got, const double *want, int64_t n, int64_t terms, KDType type)
{
	double most = type == K_BF16 ? 0x1p-8 : 0x1p-11;
	int64_t off = 0;
	case_sync();
	for (int64_t i = 0; i < n; i++)
		off += !(fabs(got[i] - want[i]) <= most * fabs(want[i]) + 1e-5 + 1e-7 * (double)terms);
	case_true(off == 0, name);
}

typedef struct HalfConv { KPrim *prim; int which; void *got, *x, *w, *dy, *bias, *work; } HalfConv;
static void run_half_conv(const HalfConv *r)
{
	if (r->which == 0)
		k_conv_run(r->prim, r->got, r->x, r->w, r->bias, r->work);
	else if (r->which == 1)
		k_conv_grad_x_run(r->prim, r->got, r->dy, r->w, r->bias, r->work);
	else
		k_conv_grad_w_run(r->prim, r->got, r->x, r->dy, r->work);
}

/* By kernels with scratch, and by loops: nothing fits into less than no scratch.  cuDNN's gradients of weights are of
 * their operands' type before they are f32. */
static void check_half_conv(int c, int layout, bool own, int which, KDType type, KDType to)
{
	KConvDesc d = conv_desc(&convs[c], layout, which != 2 && c % 2);
	int64_t nx = d.n * d.c * case_numel(d.rank, d.in), ny = d.n * d.o * case_numel(d.rank, d.out);
	int64_t nw = d.o * d.c / d.group * case_numel(d.rank, d.kernel), n = which == 0 ? ny : which == 1 ? nx : nw;
	int64_t channels = which ? d.c : d.o;
	float *x = case_floats(nx, -1, 1), *w = case_floats(nw, -1, 1), *dy = case_floats(ny, -1, 1);
	float *bias = case_floats(channels, -1, 1);
	void *hx = case_halves(x, nx, type), *hw = case_halves(w, nw, type), *hdy = case_halves(dy, ny, type);
	void *hbias = case_halves(bias, channels, type), *got = case_alloc(n * 4), *work = case_alloc(16 << 20);
	double *want = case_doubles(n);
	d.dtype = type;
	d.to = to;
	d.work_bytes = own ? -1 : 16 << 20;
	for (int64_t i = 0; d.bias && i < n; i++)
		want[i] = bias[layout ? i % channels : i / case_numel(d.rank, which ? d.in : d.out) % channels];
	KPrim *p = which == 0 ? k_conv_create(&d) : which == 1 ? k_conv_grad_x_create(&d) : k_conv_grad_w_create(&d);
	case_true(strncmp(k_prim_impl(p), "ref", 3) != 0, k_prim_impl(p));
	HalfConv r = {p, which, got, hx, hw, hdy, d.bias ? hbias : NULL, work};
	if (strcmp(k_prim_impl(p), "own:depthwise") == 0 || strcmp(k_prim_impl(p), "own:amx") == 0)
		CASE_SAME_BITS("16-bit conv", got, n * (to == K_F32 ? 4 : 2), run_half_conv(&r));
	else
		run_half_conv(&r);
	bool depthwise = !own && !case_cuda() && layout && !only_padding(&d) && d.group == d.c && d.group == d.o;
	case_true(!depthwise || strcmp(k_prim_impl(p), "own:depthwise") == 0, k_prim_impl(p));
	case_true(own || case_cuda() || !layout || only_padding(&d) || strcmp(k_prim_impl(p), "own:plain") != 0,
		"loops, though there is scratch");
	conv_visit(&d, which == 0 ? visit_y : which == 1 ? visit_x : visit_w,
		&(Visit){want, which == 1 ? dy : x, which == 2 ? dy : w});
	char name[128];
	snprintf(name, sizeof name, "16-bit conv %d of case %d, layout %d, %s", which, c, layout, k_prim_impl(p));
	case_close(name, case_widened(got, n, to), want, n, to != K_F32 ? case_half_bound(to)
		: strncmp(k_prim_impl(p), "cudnn", 5) == 0 ? case_half_bound(type) : 3e-6);
	bool fused = strstr(k_prim_impl(p), ", bias"), plain = !d.bias || own || which || !layout || d.rank != 2 ||
		only_padding(&d) || d.group > 1 || d.c % 8 || d.o % 8;
	case_true(!case_cuda() || plain || fused, "the library does not add the bias");
	if (case_cuda() && to != K_F32 && (fused || strncmp(k_prim_impl(p), "cudnn", 5) != 0))
		rounded_once(name, case_widened(got, n, to), want, n, which == 2 ? ny / d.o : nw / channels, to);
	k_prim_free(p);
}

/* f64, to more digits than f32 has. */
static void check_double_conv(int c, int layout, int which)
{
	KConvDesc d = conv_desc(&convs[c], layout, false);
	int64_t nx = d.n * d.c * case_numel(d.rank, d.in), ny = d.n * d.o * case_numel(d.rank, d.out);
	int64_t nw = d.o * d.c / d.group * case_numel(d.rank, d.kernel), numel[3] = {ny, nx, nw};
	float *part[3] = {case_floats(ny, -1, 1), case_floats(nx, -1, 1), case_floats(nw, -1, 1)};
	double *wide[3] = {case_doubles(ny), case_doubles(nx), case_doubles(nw)}, *want = case_doubles(numel[which]);
	void *work = case_alloc(16 << 20);
	d.dtype = K_F64;
	d.to = K_F64;
	d.work_bytes = 16 << 20;
	for (int i = 0; i < 3; i++)
		for (int64_t j = 0; j < numel[i]; j++)
			wide[i][j] = part[i][j];
	KPrim *p = which == 0 ? k_conv_create(&d) : which == 1 ? k_conv_grad_x_create(&d) : k_conv_grad_w_create(&d);
	if (which == 0)
		k_conv_run(p, wide[0], wide[1], wide[2], NULL, work);
	else if (which == 1)
		k_conv_grad_x_run(p, wide[1], wide[0], wide[2], NULL, work);
	else
		k_conv_grad_w_run(p, wide[2], wide[1], wide[0], work);
	conv_visit(&d, which == 0 ? visit_y : which == 1 ? visit_x : visit_w,
		&(Visit){want, part[which == 1 ? 0 : 1], part[which == 2 ? 0 : 2]});
	case_close64("conv f64", wide[which], want, numel[which], 1e-14);
	k_prim_free(p);
}

static void check_convs(int which)
{
	for (int layout = 0; layout < 2; layout++) {
		check_double_conv(1, layout, which);
		check_double_conv(10, layout, which);
	}
	for (int c = 0; c < N_CONVS; c++)
		for (int layout = 0; layout < 2; layout++)
			for (int starve = 0; starve < 2; starve++)
				check_conv(c, layout, starve, which);
	for (int c = 0; c < N_CONVS; c++)
		for (int i = 0; i < 6; i++) { /* by loops in one layout, with scratch in both */
			KDType type = i % 2 ? K_BF16 : K_F16;
			check_half_conv(c, i < 2 ? (c + i) % 2 : i / 2 - 1, i < 2, which, type,
				which == 2 && c / 2 % 2 ? K_F32 : type);
		}
}

void case_conv(void) { check_convs(0); }
void case_conv_grad_x(void) { check_convs(1); }
void case_conv_grad_w(void) { check_convs(2); }

/* Bytes of the registers for which layouts of weights are made. */
static int vector_bytes(void)
{
#if defined(__x86_64__)
	return __builtin_cpu_supports("avx512f") ? 64 : 32;
#else
	return 32;
#endif
}

/* A packed copy must give what the plain weights give. */
void case_pack(void)
{
	static const Conv shapes[] = {
		{2, 2, 32, 48, 1, {9, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
		{2, 2, 3, 20, 1, {9, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
		{2, 2, 40, 40, 40, {9, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}};
	for (int c = 0; c < 3; c++)
		for (int use = 0; use < 2; use++) {
			KConvDesc d = conv_desc(&shapes[c], 1, false);
			d.work_bytes = conv_work(&d, use);
			int64_t og = d.o / d.group, ig = d.c / d.group;
			const KLayout *l = klayout_choose((KConvUse)use, d.group, og, ig, vector_bytes());
			int64_t nx = d.n * d.c * case_numel(2, d.in), ny = d.n * d.o * case_numel(2, d.out);
			float *a = case_floats(use ? ny : nx, -1, 1), *w = case_floats(d.o * ig * 9, -1, 1);
			float *plain = case_alloc((nx > ny ? nx : ny) * 4), *packed = case_alloc((nx > ny ? nx : ny) * 4);
			float *wp = case_alloc(klayout_numel(l, d.group, og, ig, 9) * 4),
				*work = case_alloc(d.work_bytes);
			double *want = case_doubles(use ? nx : ny);
			k_pack_f32(wp, w, l->name, og, ig, 9, d.group);
			for (int with = 0; with < 2; with++) {
				d.w_layout = with ? l->name : NULL;
				KPrim *p = use ? k_conv_grad_x_create(&d) : k_conv_create(&d);
				(use ? k_conv_grad_x_run : k_conv_run)(p, with ? packed : plain, a, with ? wp : w, NULL,
					work);
				k_prim_free(p);
			}
			conv_visit(&d, use ? visit_x : visit_y, &(Visit){want, a, w});
			case_close("conv of plain weights", plain, want, use ? nx : ny, 3e-6);
			case_close(l->name, packed, want, use ? nx : ny, 3e-6);
		}
}

/* ---- pooling ---- */

static const KPool pools[] = {
	{.rank = 2, .n = 2, .c = 70, .in = {9, 11}, .out = {5, 6}, .kernel = {3, 3}, .stride = {2, 2},
		.dilation = {1, 1},
		.pad = {1, 1}, .pad_end = {1, 1}},
	{.rank = 2, .n = 3, .c = 5, .in = {10, 9}, .out = {5, 4}, .kernel = {2, 2}, .stride = {2, 2},
		.dilation = {1, 1}},
	{.rank = 2, .n = 1, .c = 3, .in = {7, 7}, .out = {3, 4}, .kernel = {3, 2}, .stride = {2, 2},
		.dilation = {1, 1},
		.pad_end = {0, 0}, .extra = {0, 1}}, /* ceil mode */
	{.rank = 1, .n = 2, .c = 4, .in = {12}, .out = {4}, .kernel = {3}, .stride = {2}, .dilation = {2},
		.pad = {1}},
	{.rank = 3, .n = 1, .c = 3, .in = {4, 5, 6}, .out = {4, 2, 3}, .kernel = {2, 3, 2}, .stride = {1, 2, 2},
		.dilation = {1, 1, 1}, .pad = {1, 0, 0}, .pad_end = {0, 0, 0}},
};
enum { N_POOLS = sizeof pools / sizeof *pools };

/* Input position of kernel position k at output q, -1 outside; *counts: an average counts it. */
static int64_t window(const KPool *p, int64_t q, int64_t k, bool *counts)
{
	int64_t qa[3], ka[3];
	bool inside = true;
	*counts = true;
	case_unravel(q, p->rank, p->out, qa);
	case_unravel(k, p->rank, p->kernel, ka);
	for (int i = 0; i < p->rank; i++) {
		qa[i] = qa[i] * p->stride[i] + ka[i] * p->dilation[i] - p->pad[i];
		inside &= qa[i] >= 0 && qa[i] < p->in[i];
		*counts &= qa[i] < p->in[i] + p->pad_end[i];
	}
	*counts = p->count_pad ? *counts : inside;
	return inside ? case_ravel(p->rank, p->in, qa) : -1;
}

typedef struct Pooled { int64_t nx, ny; float *x, *y, *dy, *dx; int32_t *idx; double *avg, *davg, *max,
	*dmax; int32_t *want_idx; } Pooled;

static int64_t pool_at(const KPool *p, int64_t n, int64_t c, int64_t at, const int64_t *spatial)
{
	int64_t s = case_numel(p->rank, spatial);
	return p->layout ? (n * s + at) * p->c + c : (n * p->c + c) * s + at;
}

static Pooled pool_want(const KPool *p)
{
	Pooled r = {.nx = p->n * p->c * case_numel(p->rank, p->in), .ny = p->n * p->c * case_numel(p->rank,
		p->out)};
	int64_t qs = case_numel(p->rank, p->out), ks = case_numel(p->rank, p->kernel);
	r.x = case_floats(r.nx, -1, 1);
	r.dy = case_floats(r.ny, -1, 1);
	r.y = case_alloc(r.ny * 4);
	r.dx = case_alloc(r.nx * 4);
	r.idx = case_alloc(r.ny * 4);
	r.want_idx = case_alloc(r.ny * 4);
	r.avg = case_doubles(r.ny);
	r.max = case_doubles(r.ny);
	r.davg = case_doubles(r.nx);
	r.dmax = case_doubles(r.nx);
	for (int64_t i = 0; i < p->n * p->c * qs; i++) {
		int64_t n = i / qs / p->c, c = i / qs % p->c, q = i % qs, y = pool_at(p, n, c, q, p->out),
			best = -1, count = 0;
		bool counts;
		for (int64_t k = 0; k < ks; k++) {
			int64_t at = window(p, q, k, &counts);
			count += counts;
			if (at >= 0)
				r.avg[y] += r.x[pool_at(p, n, c, at, p->in)];
			if (at >= 0 && (best < 0 || r.x[pool_at(p, n, c, at, p->in)] > r.x[pool_at(p, n, c, best,
				p->in)]))
				best = at;
		}
		for (int64_t k = 0; k < ks; k++) {
			int64_t at = window(p, q, k, &counts);
			if (at >= 0)
				r.davg[pool_at(p, n, c, at, p->in)] += (double)r.dy[y] / (double)count;
		}
		r.avg[y] /= (double)count;
		r.want_idx[y] = (int32_t)best;
		r.max[y] = r.x[pool_at(p, n, c, best, p->in)];
		r.dmax[pool_at(p, n, c, best, p->in)] += r.dy[y];
	}
	return r;
}

static void check_pool(int which)
{
	for (int c = 0; c < N_POOLS; c++)
		for (int flags = 0; flags < 4; flags++) {
			KPool p = pools[c];
			p.layout = flags & 1;
			p.count_pad = flags & 2;
			Pooled r = pool_want(&p);
			if (which == 0) {
				k_max_pool_f32(r.y, r.idx, r.x, &p);
				case_close("max_pool", r.y, r.max, r.ny, 0);
				case_equal("max_pool indices", r.idx, r.want_idx, r.ny * 4);
			} else if (which == 1) {
				k_max_pool_grad_f32(r.dx, r.dy, r.want_idx, &p);
				case_close("max_pool_grad", r.dx, r.dmax, r.nx, 1e-6);
			} else if (which == 2) {
				k_avg_pool_f32(r.y, r.x, &p);
				case_close("avg_pool", r.y, r.avg, r.ny, 1e-6);
			} else {
				k_avg_pool_grad_f32(r.dx, r.dy, &p);
				case_close("avg_pool_grad", r.dx, r.davg, r.nx, 1e-6);
			}
		}
}

void case_max_pool(void)
{
	KPool p = {.rank = 1, .n = 1, .c = 1, .in = {5}, .out = {3}, .kernel = {3}, .stride = {2},
		.dilation = {1}, .pad = {1},
		.pad_end = {1}};
	int8_t *x = case_bytes((int8_t[]){-5, -3, -9, -128, -7}, 5), *y = case_alloc(3);
	check_pool(0);
	k_max_pool_i8(y, NULL, x, &p);
	case_sync();
	case_true(y[0] == -3 && y[1] == -3 && y[2] == -7, "max_pool i8");
}
void case_max_pool_grad(void) { check_pool(1); }
void case_avg_pool(void) { check_pool(2); }
void case_avg_pool_grad(void) { check_pool(3); }
