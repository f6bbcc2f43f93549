/* kernels/cpu/loss_head.c: the loss head by blocks of rows: product, losses, gradient and its products.
 *
 * A block of logits lives in work alone.  The last block may have fewer rows than the others and has products of its
 * own.  The first block writes dw where the others add to it. */
#include "kernels/cpu/half.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/prim.h"
#include "kernels/work.h"

#include <stdio.h>

enum { LOGITS, DH, DW, PRODUCTS };
enum { FIRST_DW = 2 * PRODUCTS };
_Static_assert((int)FIRST_DW < (int)PRIM_MAX_PRODUCTS, "a loss head has a product more than a primitive can hold");

static KDType logits_of(const KLossHeadDesc *d) { return is_half(d->dtype) ? d->to : d->dtype; }
static bool is_wide(const KLossHeadDesc *d) { return logits_of(d) != d->dtype; }
static int64_t blocks_of(const KLossHeadDesc *d) { return ceil_div(d->rows, d->block); }
static int64_t last_rows(const KLossHeadDesc *d) { return d->rows - (blocks_of(d) - 1) * d->block; }

static KLossBlocks places(const KLossHeadDesc *d)
{
	return kwork_loss_blocks(d->block, d->c, (int)type_bytes(d->dtype), is_wide(d), 0);
}

static KPrim *product(const KLossHeadDesc *d, int which, int64_t rows, bool add)
{
	KMatmulDesc p = {.dtype = d->dtype, .work_bytes = d->work_bytes - places(d).product};
	switch (which) {
	case LOGITS:
		p.to = d->to, p.m = rows, p.n = d->c, p.k = d->d, p.tb = d->tb, p.bias = d->bias;
		break;
	case DH:
		p.to = d->dtype, p.m = rows, p.n = d->d, p.k = d->c, p.tb = !d->tb;
		break;
	default:
		p.to = K_F32, p.m = d->tb ? d->c : d->d, p.n = d->tb ? d->d : d->c, p.k = rows, p.ta = true, p.add = add;
		break;
	}
	return k_matmul_create(&p);
}

static void create_products(KPrim *p, int at, int64_t rows, bool add)
{
	const KLossHeadDesc *d = &p->head;
	p->product[at + LOGITS] = product(d, LOGITS, rows, false);
	if (d->dh)
		p->product[at + DH] = product(d, DH, rows, false);
	if (d->dw)
		p->product[at + DW] = product(d, DW, rows, add);
}

KPrim *k_linear_cross_entropy_create(const KLossHeadDesc *d)
{
	KPrim *p = prim_new("");
	int64_t n = blocks_of(d);
	p->head = *d;
	p->work = places(d).product;
	if (n > 1)
		create_products(p, 0, d->block, true);
	create_products(p, PRODUCTS, last_rows(d), d->add || n > 1);
	if (n > 1 && d->dw && !d->add)
		p->product[FIRST_DW] = product(d, DW, d->block, false);
	int64_t most = 0;
	for (int i = 0; i < PRIM_MAX_PRODUCTS; i++)
		most = p->product[i] ? MAX(most, k_prim_work(p->product[i])) : most;
	p->work += most;
	snprintf(p->impl, sizeof p->impl, "blocks:%.40s", k_prim_impl(p->product[PRODUCTS + LOGITS]));
	return p;
}

/* db += the sums of the columns of x (rows, c). */
static void add_columns(float *db, const void *x, KDType t, int64_t rows, int64_t c)
{
	enum { COLUMNS = 256 };
	#pragma omp parallel for schedule(static) if (rows * c > PARALLEL_MIN)
	for (int64_t first = 0; first < c; first += COLUMNS) {
		int64_t n = MIN(COLUMNS, c - first);
		float buf[COLUMNS];
		for (int64_t r = 0; r < rows; r++) {
			const float *v = at_element(x, t, r * c + first);
			if (t != K_F32) {
				widen(buf, v, t, n);
				v = buf;
			}
			for (int64_t i = 0; i < n; i++)
				db[first + i] += v[i];
		}
	}
}

typedef struct Head {
	KPrim *p;
	void *dh;
	float *dw, *db, dloss;
	const char *h, *w;
	char *work;
} Head;

/* Multiplies the gradient of a block's logits, which have become x. */
static void multiply(const Head *a, int64_t number, Logits x)
{
	const KLossHeadDesc *d = &a->p->head;
	KLossBlocks at = places(d);
	int64_t n = blocks_of(d), row = number * d->block * d->d * type_bytes(d->dtype);
	KPrim **products = a->p->product + (number == n - 1 ? PRODUCTS : 0);
	const void *dx = x.at, *h = a->h + row;
	void *work = a->work + at.product;
	if (is_wide(d)) {
		k_cast_wide(a->work + at.narrow, d->dtype, x.at, K_F32, x.rows * x.c);
		dx = a->work + at.narrow;
	}
	if (a->dh)
		k_matmul_run(products[DH], (char *)a->dh + row, dx, a->w, NULL, work);
	if (a->dw) {
		KPrim *first = number == 0 ? a->p->product[FIRST_DW] : NULL;
		k_matmul_run(first ? first : products[DW], a->dw, d->tb ? dx : h, d->tb ? h : dx, NULL, work);
	}
	if (a->db)
		add_columns(a->db, dx, d->dtype, x.rows, x.c);
}

void k_linear_cross_entropy_run(KPrim *p, float *sum, float *weight, int64_t *best, void *dh, float *dw, float *db,
	const float *dloss, const void *h, const void *w, const int64_t *labels, const float *weights, const void *bias,
	void *work)
{
	const KLossHeadDesc *d = &p->head;
	Head a = {p, dh, dw, db, dloss ? *dloss : 0, h, w, work};
	KLossBlocks at = places(d);
	float *lse = (float *)(void *)(a.work + at.lse);
	double loss = 0, all = 0;
	if (db)
		memset(db, 0, (size_t)d->c * sizeof *db);
	for (int64_t k = 0, n = blocks_of(d); k < n; k++) {
		int64_t first = k * d->block;
		KPrim *logits = p->product[(k == n - 1 ? PRODUCTS : 0) + LOGITS];
		Logits x = {a.work + at.block, logits_of(d), k == n - 1 ? last_rows(d) : d->block, d->c};
		LossRule rule = {labels + first, weights, d->ignore_index, d->smoothing, first};
		const char *rows = a.h + first * d->d * type_bytes(d->dtype);
		k_matmul_run(logits, a.work + at.block, rows, w, bias, a.work + at.product);
		LossSums s = loss_of_rows(lse, x, rule);
		loss += s.loss;
		all += s.weight;
		if (best)
			loss_arg_max(best + first, x);
		if (!dloss)
			continue;
		loss_grad_rows(a.work + at.block, a.dloss, lse, x, rule);
		multiply(&a, k, x);
	}
	*sum = (float)loss;
	*weight = (float)all;
}
