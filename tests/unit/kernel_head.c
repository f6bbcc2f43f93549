/* tests/unit/kernel_head.c: loss heads by blocks of rows against plain f64 loops over all rows at once. */
#include "tests/unit/kernel_cases.h"

enum { ROWS = 37, IGNORED = -100 };

typedef struct Head {
	KLossHeadDesc d;
	float *h, *w, *weights, *bias; /* what the kernel reads, widened; the last two may be NULL */
	void *h_at, *w_at, *bias_at;
	int64_t *labels;
	double *dh, *dw, *db, loss, weight; /* what is expected */
	int64_t *best;
} Head;

/* The logits of row r into x; returns their log-sum-exp. */
static double logits_of(Head *a, int64_t r, double *x)
{
	const KLossHeadDesc *d = &a->d;
	double sum = 0;
	a->best[r] = 0;
	for (int64_t j = 0; j < d->c; j++) {
		x[j] = a->bias ? (double)a->bias[j] : 0;
		for (int64_t k = 0; k < d->d; k++)
			x[j] += (double)a->h[r * d->d + k] * a->w[d->tb ? j * d->d + k : k * d->c + j];
		sum += exp(x[j]);
		a->best[r] = x[j] > x[a->best[r]] ? j : a->best[r];
	}
	return log(sum);
}

static void add_row(Head *a, int64_t r, double dloss, double all, double *x)
{
	const KLossHeadDesc *d = &a->d;
	double lse = logits_of(a, r, x), e = d->smoothing, even = e / (double)d->c;
	int64_t y = a->labels[r];
	if (y == IGNORED)
		return;
	double wy = a->weights ? (double)a->weights[y] : 1;
	a->loss += (1 - e) * wy * (lse - x[y]);
	a->weight += wy;
	for (int64_t j = 0; j < d->c; j++) {
		double wj = a->weights ? (double)a->weights[j] : 1, p = exp(x[j] - lse);
		double g = dloss * ((1 - e) * wy * (p - (j == y)) + even * (all * p - wj));
		a->loss += even * wj * (lse - x[j]);
		a->db[j] += g;
		for (int64_t k = 0; k < d->d; k++) {
			int64_t at = d->tb ? j * d->d + k : k * d->c + j;
			a->dh[r * d->d + k] += g * (double)a->w[at];
			a->dw[at] += g * (double)a->h[r * d->d + k];
		}
	}
}

static Head head_new(KDType type, int64_t block, int64_t c, int64_t width, int flags, double dloss)
{
	Head a = {.d = {.dtype = type, .to = flags & 8 ? K_F32 : type, .rows = ROWS, .block = block, .c = c, .d = width,
		.tb = flags & 1, .bias = flags & 2, .ignore_index = IGNORED, .smoothing = flags & 4 ? 0.1 : 0}};
	double all = 0, *x = case_doubles(c);
	a.h = case_floats(ROWS * width, -1, 1);
	a.w = case_floats(c * width, -1, 1);
	a.h_at = case_halves(a.h, ROWS * width, type);
	a.w_at = case_halves(a.w, c * width, type);
	a.bias = flags & 2 ? case_floats(c, -1, 1) : NULL;
	a.bias_at = flags & 2 ? case_halves(a.bias, c, type) : NULL;
	a.weights = flags & 4 ? case_floats(c, 0.2, 2) : NULL;
	a.labels = case_ids(ROWS, c);
	a.best = case_ids(ROWS, 1);
	a.dh = case_doubles(ROWS * width);
	a.dw = case_doubles(c * width);
	a.db = case_doubles(c);
	for (int64_t r = 0; r < ROWS; r += 5)
		a.labels[r] = IGNORED;
	for (int64_t j = 0; j < c; j++)
		all += a.weights ? (double)a.weights[j] : 1;
	for (int64_t r = 0; r < ROWS; r++)
		add_row(&a, r, dloss, all, x);
	return a;
}

static void *work_of(const char *op, KLossHeadDesc *d, int h)
{
	int64_t x[] = {d->rows, d->d}, w[] = {d->tb ? d->c : d->d, d->tb ? d->d : d->c};
	int bytes = d->dtype == K_F32 ? 4 : 2;
	KWorkArgs args = {.tb = d->tb, .block = d->block, .wide = d->to == K_F32};
	args.in[h] = (KShape){2, x, bytes};
	args.in[h + 1] = (KShape){2, w, bytes};
	args.in[h + 2] = (KShape){1, x, 8};
	int64_t cpu = kwork_loss_head(&args, h, false, K_GEMM_WORK), cuda = kwork_loss_head(&args, h, true, K_LT_WORK);
	d->work_bytes = case_cuda() ? cuda : cpu;
	return case_work(op, args);
}

static double bound(KDType t) { return t == K_F32 ? 1e-5 : 4 * case_half_bound(t); }

static void check_forward(KDType type, int64_t block, int64_t c, int flags)
{
	Head a = head_new(type, block, c, 12, flags, 0);
	float *sums = case_alloc(2 * 4);
	int64_t *best = case_alloc(ROWS * 8), near = 0;
	void *work = work_of("linear_cross_entropy", &a.d, 0);
	KPrim *p = k_linear_cross_entropy_create(&a.d);
	k_linear_cross_entropy_run(p, sums, sums + 1, best, NULL, NULL, NULL, NULL, a.h_at, a.w_at, a.labels, a.weights,
		a.bias_at, work);
	case_close("linear_cross_entropy", sums, &a.loss, 1, bound(type));
	case_close("linear_cross_entropy: weight", sums + 1, &a.weight, 1, 1e-6);
	for (int64_t r = 0; r < ROWS; r++)
		near += best[r] == a.best[r];
	case_true(type == K_F32 || flags & 8 ? near == ROWS : near >= ROWS - 4, "linear_cross_entropy: classes");
	k_prim_free(p);
}

static void check_gradients(KDType type, int64_t block, int64_t c, int flags, bool add)
{
	float *dloss = case_floats(1, 0.2, 0.5), *sums = case_alloc(2 * 4);
	Head a = head_new(type, block, c, 12, flags, (double)*dloss);
	a.d.dh = a.d.dw = true;
	a.d.db = flags & 2;
	a.d.add = add;
	void *work = work_of("linear_cross_entropy_grad", &a.d, 1), *dh = case_alloc(ROWS * 12 * 4);
	float *dw = case_floats(c * 12, -1, 1), *db = a.d.db ? case_alloc(c * 4) : NULL;
	for (int64_t i = 0; add && i < c * 12; i++)
		a.dw[i] += (double)dw[i];
	KPrim *p = k_linear_cross_entropy_create(&a.d);
	case_true(k_prim_work(p) <= a.d.work_bytes, "linear_cross_entropy_grad: work");
	k_linear_cross_entropy_run(p, sums, sums + 1, NULL, dh, dw, db, dloss, a.h_at, a.w_at, a.labels, a.weights,
		a.bias_at, work);
	case_close("linear_cross_entropy_grad: loss", sums, &a.loss, 1, bound(type));
	case_sync();
	case_close("linear_cross_entropy_grad: dh", case_widened(dh, ROWS * 12, type), a.dh, ROWS * 12, bound(type));
	case_close("linear_cross_entropy_grad: dw", dw, a.dw, c * 12, bound(type));
	if (db)
		case_close("linear_cross_entropy_grad: db", db, a.db, c, bound(type));
	k_prim_free(p);
}

static const struct { KDType type; int flags; } kinds[] = {{K_F32, 0}, {K_BF16, 0}, {K_BF16, 8}, {K_F16, 8},
	{K_F16, 0}};
static const int64_t blocks[] = {8, 36, ROWS};
static const int variants[] = {1, 2, 4, 7}; /* tb, bias, weights and smoothing, all of them */

void case_linear_cross_entropy(void)
{
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
		for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
			for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
				check_forward(kinds[k].type, blocks[b], b % 2 ? 5 : 1030, variants[v] | kinds[k].flags);
	float *h = case_floats(4, 1, 1.1), *sums = case_alloc(8);
	int64_t *labels = case_ids(4, 2);
	labels[2] = 7;
	labels[3] = IGNORED;
	KLossHeadDesc d = {.rows = 4, .block = 2, .c = 2, .d = 1, .tb = true, .ignore_index = IGNORED};
	void *work = work_of("linear_cross_entropy", &d, 0);
	KPrim *p = k_linear_cross_entropy_create(&d);
	k_linear_cross_entropy_run(p, sums, sums + 1, NULL, NULL, NULL, NULL, NULL, h, h, labels, NULL, NULL, work);
	case_sync();
	case_true(case_bad_inputs() == 1 && sums[1] > 1.5f && sums[1] < 2.5f, "a label of a loss head out of range");
	k_prim_free(p);
}

void case_linear_cross_entropy_grad(void)
{
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
		for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
			for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
				check_gradients(kinds[k].type, blocks[b], b % 2 ? 5 : 1030, variants[v] | kinds[k].flags, v % 2);
	check_gradients(K_F32, 8, 60001, 5, false); /* a row that does not fit into shared memory */
}
