/* kernels/cpu/loss_head.c: the loss head by blocks of rows: product, losses, gradient and its products.
 *
 * A block of logits lives in work alone.  The last block may have fewer rows than the others and has products of its
 * own.  The first block writes dw where the others add to it. */
#include "kernels/cpu/half.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/prim.h"
#include "kernels/loss_head.h"

#include <stdio.h>

_Static_assert((int)HEAD_PRODUCTS <= (int)PRIM_MAX_PRODUCTS, "a loss head has more products than a primitive can hold");

static KLossBlocks places(const KLossHeadDesc *d) { return head_places(d, d->c, 0); }

KPrim *k_linear_cross_entropy_create(const KLossHeadDesc *d)
{
	KPrim *p = prim_new("");
	int64_t before = places(d).product;
	p->head = *d;
	p->work = before + head_create(p->product, d, d->c, d->work_bytes - before);
	snprintf(p->impl, sizeof p->impl, "blocks:%.40s", k_prim_impl(p->product[HEAD_LAST + HEAD_LOGITS]));
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
	int64_t n = head_blocks(d), row = number * d->block * d->d * type_bytes(d->dtype);
	KPrim **products = a->p->product + (number == n - 1 ? HEAD_LAST : 0);
	const void *dx = x.at, *h = a->h + row;
	void *work = a->work + at.product;
	if (head_is_wide(d)) {
		k_cast_wide(a->work + at.narrow, d->dtype, x.at, K_F32, x.rows * x.c);
		dx = a->work + at.narrow;
	}
	if (a->dh)
		k_matmul_run(products[HEAD_DH], (char *)a->dh + row, dx, a->w, NULL, work);
	if (a->dw) {
		KPrim *first = number == 0 ? a->p->product[HEAD_FIRST_DW] : NULL;
		k_matmul_run(first ? first : products[HEAD_DW], a->dw, d->tb ? dx : h, d->tb ? h : dx, NULL, work);
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
	for (int64_t k = 0, n = head_blocks(d); k < n; k++) {
		int64_t first = k * d->block;
		KPrim *logits = p->product[(k == n - 1 ? HEAD_LAST : 0) + HEAD_LOGITS];
		Logits x = {a.work + at.block, head_logits(d), k == n - 1 ? head_last_rows(d) : d->block, d->c, d->c};
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
