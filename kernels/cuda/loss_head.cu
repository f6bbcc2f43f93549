/* kernels/cuda/loss_head.cu: the loss head by blocks of rows: product, losses, gradient and its products.
 *
 * A block of logits lies in work alone.  The last block may have fewer rows than the others and has products of its
 * own.  The first block writes dw where the others add to it. */
#include "kernels/cuda/loss.cuh"
#include "kernels/cuda/prim.cuh"
#include "kernels/loss_head.h"

#include <stdio.h>

static_assert((int)HEAD_PRODUCTS <= (int)PRIM_MAX_PRODUCTS, "a loss head has more products than a primitive can hold");

enum { CAST_THREADS = 256 };

static int64_t pitch_of(const KLossHeadDesc *d) { return kwork_logits_pitch(d->c, true); }
static KLossBlocks places(const KLossHeadDesc *d) { return head_places(d, pitch_of(d), d->rows * 2 * 8); }

KPrim *k_linear_cross_entropy_create(const KLossHeadDesc *d)
{
	KPrim *p = prim_new();
	int64_t before = places(d).product;
	p->head = *d;
	p->work = before + head_create(p->product, d, pitch_of(d), d->work_bytes - before);
	snprintf(p->impl, sizeof p->impl, "blocks:%.40s", k_prim_impl(p->product[HEAD_LAST + HEAD_LOGITS]));
	return p;
}

/* db += the sums of the columns of x (rows, c), a thread for each column; set: it begins from 0. */
template <class T> static __global__ void add_columns(float *db, const T *x, int64_t rows, int64_t c, int64_t pitch,
	bool set)
{
	GRID_STRIDE(i, c) {
		float sum = set ? 0 : db[i];
		for (int64_t r = 0; r < rows; r++)
			sum += widen(x[r * pitch + i]);
		db[i] = sum;
	}
}

template <class T> static void sum_columns(float *db, const void *dx, const LossBlock &x, bool set)
{
	LAUNCH((add_columns<T>), blocks_for(x.c, 256), 256, 0, k_stream, db, (const T *)dx, x.rows, x.c, x.pitch, set);
}

/* y = x, rounded, of (rows, c); rows begin `pitch` elements apart, at multiples of 16 bytes, and what lies between them
 * is neither read nor written.  A thread has 4 neighbours of a row. */
template <class T> static __global__ void __launch_bounds__(CAST_THREADS) narrow_rows(T *y, const float *x, int64_t c,
	int64_t pitch)
{
	int64_t at = (int64_t)blockIdx.x * pitch, i = 4 * ((int64_t)blockIdx.y * CAST_THREADS + (int)threadIdx.x);
	if (i + 4 <= c) {
		Vec<float, 4> from = load<4>(x + at + i);
		Vec<T, 4> to;
		#pragma unroll
		for (int k = 0; k < 4; k++)
			to.at[k] = narrow<T>(from.at[k]);
		store<4>(y + at + i, to);
		return;
	}
	for (; i < c; i++)
		y[at + i] = narrow<T>(x[at + i]);
}

template <class T> static void narrow_block(void *y, const LossBlock &x)
{
	dim3 grid((unsigned)x.rows, (unsigned)ceil_div(x.c, 4 * CAST_THREADS));
	LAUNCH((narrow_rows<T>), grid, CAST_THREADS, 0, k_stream, (T *)y, (const float *)x.logits, x.c, x.pitch);
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
	KPrim **products = a.p->product + (number == head_blocks(d) - 1 ? HEAD_LAST : 0);
	const void *dx = x.logits, *h = a.h + row;
	void *work = a.work + at.product;
	if (head_is_wide(d)) {
		dx = a.work + at.narrow;
		(d->dtype == K_BF16 ? narrow_block<Bf16> : narrow_block<F16>)(a.work + at.narrow, x);
	}
	if (a.dh)
		k_matmul_run(products[HEAD_DH], (char *)a.dh + row, dx, a.w, nullptr, work);
	if (a.dw) {
		KPrim *first = number == 0 ? a.p->product[HEAD_FIRST_DW] : nullptr;
		k_matmul_run(first ? first : products[HEAD_DW], a.dw, d->tb ? dx : h, d->tb ? h : dx, nullptr, work);
	}
	if (a.db && d->dtype == K_BF16)
		sum_columns<Bf16>(a.db, dx, x, number == 0);
	else if (a.db && d->dtype == K_F16)
		sum_columns<F16>(a.db, dx, x, number == 0);
	else if (a.db)
		sum_columns<float>(a.db, dx, x, number == 0);
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
	for (int64_t k = 0, n = head_blocks(d); k < n; k++) {
		int64_t first = k * d->block;
		KPrim *logits = p->product[(k == n - 1 ? HEAD_LAST : 0) + HEAD_LOGITS];
		LossBlock x = {a.work + at.block, head_logits(d), weights, labels + first, (float *)(a.work + at.lse),
			k == n - 1 ? head_last_rows(d) : d->block, d->c, pitch_of(d), d->ignore_index, d->smoothing, first};
		k_matmul_run(logits, x.logits, a.h + first * d->d * dtype_bytes(d->dtype), w, bias, a.work + at.product);
		if (best)
			loss_block_arg_max(best + first, x);
		chunks += dloss ? loss_block_grad(x, parts + 2 * chunks, dloss) : loss_block(x, parts + 2 * chunks);
		if (dloss)
			multiply(a, k, x);
	}
	loss_join(sum, weight, parts, chunks);
}
