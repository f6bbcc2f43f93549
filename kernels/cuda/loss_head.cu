/* kernels/cuda/loss_head.cu: the loss head by blocks of rows: product, losses, gradient and its products.
 *
 * A block of logits lies in work alone.  The last block may have fewer rows than the others and has products of its
 * own.  The first block writes dw where the others add to it. */
#include "kernels/cuda/loss.cuh"
#include "kernels/cuda/prim.cuh"
#include "kernels/cuda/work.h"

#include <stdio.h>

enum { LOGITS, DH, DW, PRODUCTS };
enum { FIRST_DW = 2 * PRODUCTS };
static_assert((int)FIRST_DW < (int)PRIM_MAX_PRODUCTS, "a loss head has a product more than a primitive can hold");

static KDType logits_of(const KLossHeadDesc *d) { return is_half(d->dtype) ? d->to : d->dtype; }
static bool is_wide(const KLossHeadDesc *d) { return logits_of(d) != d->dtype; }
static int64_t blocks_of(const KLossHeadDesc *d) { return ceil_div(d->rows, d->block); }
static int64_t last_rows(const KLossHeadDesc *d) { return d->rows - (blocks_of(d) - 1) * d->block; }

static KLossBlocks places(const KLossHeadDesc *d)
{
	return kwork_loss_blocks(d->block, d->c, dtype_bytes(d->dtype), is_wide(d), d->rows * 2 * 8);
}

static KPrim *product(const KLossHeadDesc *d, int which, int64_t rows, bool add)
{
	KMatmulDesc p = {};
	p.dtype = d->dtype;
	p.work_bytes = d->work_bytes - places(d).product;
	p.apart = d->block * d->d * dtype_bytes(d->dtype);
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
	KPrim *p = prim_new();
	int64_t n = blocks_of(d), most = 0;
	p->head = *d;
	if (n > 1)
		create_products(p, 0, d->block, true);
	create_products(p, PRODUCTS, last_rows(d), d->add || n > 1);
	if (n > 1 && d->dw && !d->add)
		p->product[FIRST_DW] = product(d, DW, d->block, false);
	for (KPrim *of : p->product)
		if (of && k_prim_work(of) > most)
			most = k_prim_work(of);
	p->work = places(d).product + most;
	snprintf(p->impl, sizeof p->impl, "blocks:%.40s", k_prim_impl(p->product[PRODUCTS + LOGITS]));
	return p;
}

/* db += the sums of the columns of x (rows, c), a thread for each column; set: it begins from 0. */
template <class T> static __global__ void add_columns(float *db, const T *x, int64_t rows, int64_t c, bool set)
{
	GRID_STRIDE(i, c) {
		float sum = set ? 0 : db[i];
		for (int64_t r = 0; r < rows; r++)
			sum += widen(x[r * c + i]);
		db[i] = sum;
	}
}

template <class T> static void sum_columns(float *db, const void *x, int64_t rows, int64_t c, bool set)
{
	LAUNCH((add_columns<T>), blocks_for(c, 1024), 256, 0, k_stream, db, (const T *)x, rows, c, set);
}

struct Head {
	KPrim *p;
	void *dh;
	float *dw, *db;
	const char *h, *w;
	char *work;
};

/* Multiplies the gradient of a block's logits, which have become x. */
static void multiply(const Head &a, int64_t number, const LossBlock &x)
{
	const KLossHeadDesc *d = &a.p->head;
	KLossBlocks at = places(d);
	int64_t row = x.first * d->d * dtype_bytes(d->dtype);
	KPrim **products = a.p->product + (number == blocks_of(d) - 1 ? PRODUCTS : 0);
	const void *dx = x.logits, *h = a.h + row;
	void *work = a.work + at.product;
	if (is_wide(d)) {
		k_device_cast(a.work + at.narrow, d->dtype, x.logits, K_F32, x.rows * x.c);
		dx = a.work + at.narrow;
	}
	if (a.dh)
		k_matmul_run(products[DH], (char *)a.dh + row, dx, a.w, nullptr, work);
	if (a.dw) {
		KPrim *first = number == 0 ? a.p->product[FIRST_DW] : nullptr;
		k_matmul_run(first ? first : products[DW], a.dw, d->tb ? dx : h, d->tb ? h : dx, nullptr, work);
	}
	if (a.db && d->dtype == K_BF16)
		sum_columns<Bf16>(a.db, dx, x.rows, x.c, number == 0);
	else if (a.db && d->dtype == K_F16)
		sum_columns<F16>(a.db, dx, x.rows, x.c, number == 0);
	else if (a.db)
		sum_columns<float>(a.db, dx, x.rows, x.c, number == 0);
}

void k_linear_cross_entropy_run(KPrim *p, float *sum, float *weight, int64_t *best, void *dh, float *dw, float *db,
	const float *dloss, const void *h, const void *w, const int64_t *labels, const float *weights, const void *bias,
	void *work)
{
	const KLossHeadDesc *d = &p->head;
	Head a = {p, dh, dw, db, (const char *)h, (const char *)w, (char *)work};
	KLossBlocks at = places(d);
	double *parts = (double *)(a.work + at.losses);
	int64_t chunks = 0;
	for (int64_t k = 0, n = blocks_of(d); k < n; k++) {
		int64_t first = k * d->block;
		KPrim *logits = p->product[(k == n - 1 ? PRODUCTS : 0) + LOGITS];
		LossBlock x = {a.work + at.block, logits_of(d), weights, labels + first, (float *)(a.work + at.lse),
			k == n - 1 ? last_rows(d) : d->block, d->c, d->ignore_index, d->smoothing, first};
		k_matmul_run(logits, x.logits, a.h + first * d->d * dtype_bytes(d->dtype), w, bias, a.work + at.product);
		chunks += loss_block(x, parts + 2 * chunks);
		if (best)
			loss_block_arg_max(best + first, x);
		if (!dloss)
			continue;
		loss_block_grad(x, dloss);
		multiply(a, k, x);
	}
	loss_join(sum, weight, parts, chunks);
}
