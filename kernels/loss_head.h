/* kernels/loss_head.h: the products of a loss head by blocks of rows, and where a block lies; the same on both targets.
 *
 * The last block may have fewer rows than the others and has products of its own.  The first block writes dw where the
 * others add to it.  The code is valid C and C++. */
#ifndef SHARDC_LOSS_HEAD_H
#define SHARDC_LOSS_HEAD_H

#include "kernels/kernels.h"
#include "kernels/work.h"

#include <string.h>

/* Of a whole block; those of the last one follow, then the first block's dw. */
enum { HEAD_LOGITS, HEAD_DH, HEAD_DW, HEAD_LAST, HEAD_FIRST_DW = 2 * HEAD_LAST, HEAD_PRODUCTS };

static inline bool head_is_half(const KLossHeadDesc *d) { return d->dtype == K_BF16 || d->dtype == K_F16; }
static inline KDType head_logits(const KLossHeadDesc *d) { return head_is_half(d) ? d->to : d->dtype; }
static inline bool head_is_wide(const KLossHeadDesc *d) { return head_logits(d) != d->dtype; }
static inline int64_t head_blocks(const KLossHeadDesc *d) { return (d->rows + d->block - 1) / d->block; }
static inline int64_t head_last_rows(const KLossHeadDesc *d) { return d->rows - (head_blocks(d) - 1) * d->block; }

/* pitch: elements from row to row of a block; losses: bytes for the parts of sums. */
static inline KLossBlocks head_places(const KLossHeadDesc *d, int64_t pitch, int64_t losses)
{
	return kwork_loss_blocks(d->block, pitch, head_is_half(d) ? 2 : 4, head_is_wide(d), losses);
}

/* work_bytes: what a product may use. */
static inline KPrim *head_product(const KLossHeadDesc *d, int which, int64_t rows, int64_t pitch, bool add,
	int64_t work_bytes)
{
	KMatmulDesc p;
	memset(&p, 0, sizeof p);
	p.dtype = d->dtype;
	p.work_bytes = work_bytes;
	p.apart = d->block * d->d * (head_is_half(d) ? 2 : 4);
	switch (which) {
	case HEAD_LOGITS:
		p.to = d->to, p.m = rows, p.n = d->c, p.k = d->d, p.tb = d->tb, p.bias = d->bias, p.ldy = pitch;
		break;
	case HEAD_DH:
		p.to = d->dtype, p.m = rows, p.n = d->d, p.k = d->c, p.tb = !d->tb, p.lda = pitch;
		break;
	default:
		p.to = K_F32, p.m = d->tb ? d->c : d->d, p.n = d->tb ? d->d : d->c, p.k = rows, p.ta = true, p.add = add;
		*(d->tb ? &p.lda : &p.ldb) = pitch;
		break;
	}
	return k_matmul_create(&p);
}

/* Creates the products that are wanted; the others stay NULL.  Returns the most bytes of work that one uses. */
static inline int64_t head_create(KPrim **product, const KLossHeadDesc *d, int64_t pitch, int64_t work_bytes)
{
	int64_t n = head_blocks(d), most = 0;
	for (int last = n > 1 ? 0 : 1; last < 2; last++) {
		KPrim **of = product + last * HEAD_LAST;
		int64_t rows = last ? head_last_rows(d) : d->block;
		of[HEAD_LOGITS] = head_product(d, HEAD_LOGITS, rows, pitch, false, work_bytes);
		if (d->dh)
			of[HEAD_DH] = head_product(d, HEAD_DH, rows, pitch, false, work_bytes);
		if (d->dw)
			of[HEAD_DW] = head_product(d, HEAD_DW, rows, pitch, d->add || n > 1, work_bytes);
	}
	if (n > 1 && d->dw && !d->add)
		product[HEAD_FIRST_DW] = head_product(d, HEAD_DW, d->block, pitch, false, work_bytes);
	for (int i = 0; i < HEAD_PRODUCTS; i++) {
		int64_t bytes = product[i] ? k_prim_work(product[i]) : 0;
		most = bytes > most ? bytes : most;
	}
	return most;
}

#endif
