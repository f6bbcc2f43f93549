/* kernels/cpu/matmul_wide.c: products of bf16 and f16 matrices, for processors that the library has no kernel for and
 * where its scratch is not allowed.
 *
 * Tiles of both operands are widened to f32 in cache and multiplied there (gemm.h); a tile of y stays in f32 over all
 * of k and is rounded once.  It needs no work.  One thread computes a tile, in order, so any number of threads gives
 * equal bits. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/prim.h"

/* The sides of a tile.  Rows of KB floats are padded to AR or RR, so that they do not collide in the cache. */
enum { MB = 16 * MR, NB = 128, KB = 256, AR = KB + 16, RR = KB + 1, LANES = 16 };

typedef struct Tile { int64_t i, j, k, m, n, depth; } Tile; /* its first indices and its sizes */

/* Widens rows of n elements, `stride` apart, to rows of floats, `row` apart. */
static void widen_rows(float *to, int64_t row, const uint16_t *from, int64_t stride, KDType t, int64_t rows, int64_t n)
{
	for (int64_t r = 0; r < rows; r++)
		widen(to + r * row, from + r * stride, t, n);
}

/* bt (depth, NB) from b (n, k): columns of bt are rows of b, followed by zeros up to a multiple of LANES. */
static void widen_transposed(float *bt, const uint16_t *from, int64_t stride, KDType t, int64_t n, int64_t depth)
{
	float rows[LANES * RR] = {0};
	for (int64_t j = 0; j < n; j += LANES) {
		int64_t lanes = MIN(LANES, n - j);
		widen_rows(rows, RR, from + j * stride, stride, t, lanes, depth);
		for (int64_t p = 0; p < depth; p++)
			for (int64_t i = 0; i < LANES; i++)
				bt[p * NB + j + i] = rows[i * RR + p];
	}
}

static void put_tile(const KMatmulDesc *d, const Tile *t, void *y, const float *c, const uint16_t *bias)
{
	float row[NB], add[NB] = {0};
	if (bias)
		widen(add, bias + t->j, d->dtype, t->n);
	for (int64_t i = 0; i < t->m; i++) {
		char *to = (char *)y + ((t->i + i) * d->ldy + t->j) * type_bytes(d->to);
		if (d->add)
			memcpy(add, to, (size_t)t->n * sizeof *add);
		for (int64_t j = 0; j < t->n; j++)
			row[j] = c[i * NB + j] + add[j];
		narrow(to, row, d->to, t->n);
	}
}

static void make_tile(const KMatmulDesc *d, Tile t, void *y, const uint16_t *a, const uint16_t *b, const uint16_t *bias)
{
	float at[MB * AR], bt[KB * NB], c[MB * NB];
	int64_t wide = round_up(t.n, VW); /* columns beyond n come from zeros and are not stored */
	memset(bt, 0, (size_t)(MIN(KB, d->k) * NB) * sizeof *bt);
	memset(c, 0, (size_t)(t.m * NB) * sizeof *c);
	for (t.k = 0; t.k < d->k; t.k += KB) {
		t.depth = MIN(KB, d->k - t.k);
		if (d->ta)
			widen_rows(at, MB, a + t.k * d->lda + t.i, d->lda, d->dtype, t.depth, t.m);
		else
			widen_rows(at, AR, a + t.i * d->lda + t.k, d->lda, d->dtype, t.m, t.depth);
		if (d->tb)
			widen_transposed(bt, b + t.j * d->ldb + t.k, d->ldb, d->dtype, t.n, t.depth);
		else
			widen_rows(bt, NB, b + t.k * d->ldb + t.j, d->ldb, d->dtype, t.depth, t.n);
		gemm_small(t.m, wide, t.depth, at, d->ta ? 1 : AR, d->ta ? MB : 1, bt, NB, c, NB, true);
	}
	put_tile(d, &t, y, c, bias);
}

static void run_wide(KPrim *p, PrimArgs *args, char *work)
{
	const KMatmulDesc *d = &p->matmul;
	int64_t rows = ceil_div(d->m, MB), cols = ceil_div(d->n, NB), count = numel(d->n_batch, d->batch);
	(void)work;
	#pragma omp parallel for schedule(static) if (count * d->m * d->n * d->k > PARALLEL_MIN)
	for (int64_t i = 0; i < count * rows * cols; i++) {
		int64_t at[6], c = i / (rows * cols), i0 = i / cols % rows * MB, j0 = i % cols * NB;
		unravel(c, d->n_batch, d->batch, at);
		make_tile(d, (Tile){.i = i0, .j = j0, .m = MIN(MB, d->m - i0), .n = MIN(NB, d->n - j0)},
			(char *)args->at[0] + c * d->m * d->ldy * type_bytes(d->to),
			(const uint16_t *)args->at[1] + offset_of(d->n_batch, at, d->sa),
			(const uint16_t *)args->at[2] + offset_of(d->n_batch, at, d->sb), args->at[3]);
	}
}

KPrim *matmul_wide_create(const KMatmulDesc *d)
{
	KPrim *p = prim_new("own:widened");
	p->matmul = *d;
	p->run = run_wide;
	return p;
}
