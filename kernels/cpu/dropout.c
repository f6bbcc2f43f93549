/* kernels/cpu/dropout.c: dropout by counters (base/philox.h).  An element's random number depends on the seed, the
 * node, its global sample row, its index inside the sample and the step, never on ranks or threads.  pre = 1, rows = 0
 * means a tensor without samples: one mask for all ranks and micro-batches of the step. */
#include "base/philox.h"
#include "kernels/cpu/half.h"

/* Fills keep[i] for n inner indices, from `inner` on, of one sample row. */
static void keep_run(uint8_t *keep, int64_t inner, int64_t n, uint64_t key, int64_t row, uint64_t step,
	uint64_t threshold)
{
	int64_t i = 0;
	uint32_t b[4];
	for (; i < n && (inner + i) % 4; i++) {
		philox_block(b, key, (uint64_t)row, (uint64_t)(inner + i) / 4, step);
		keep[i] = b[(inner + i) % 4] >= threshold;
	}
	int64_t whole = (n - i) / 4, base = (inner + i) / 4;
	uint8_t *to = keep + i;
	for (int64_t j = 0; j < whole; j++) {
		uint32_t c[4];
		philox_block(c, key, (uint64_t)row, (uint64_t)(base + j), step);
		for (int k = 0; k < 4; k++)
			to[4 * j + k] = c[k] >= threshold;
	}
	for (i += 4 * whole; i < n; i++) {
		philox_block(b, key, (uint64_t)row, (uint64_t)(inner + i) / 4, step);
		keep[i] = b[(inner + i) % 4] >= threshold;
	}
}

enum { PIECE = 1024 };

/* A piece of x (pre, rows, post): the flat index of its first element, its length, and its keep flags. */
typedef struct Piece { int64_t at, n; uint8_t keep[PIECE]; } Piece;

static void piece_make(Piece *p, int64_t t, int64_t pieces, int64_t rows, int64_t post, double drop,
	uint64_t id, const StepScalars *s)
{
	int64_t r = t / pieces, from = t % pieces * PIECE, before = rows ? r / rows * post : 0;
	p->n = MIN(PIECE, post - from);
	p->at = r * post + from;
	keep_run(p->keep, before + from, p->n, philox_key(s->seed, id), rows ? s->sample0 + r % rows : 0, s->rng_step,
		philox_threshold(drop));
}

#define DROPOUT(T, W, t) \
void k_dropout_##t(T *y, const T *x, int64_t pre, int64_t rows, int64_t post, double p, uint64_t id, \
	const StepScalars *s) \
{ \
	int64_t pieces = ceil_div(post, PIECE); \
	W scale = (W)(p < 1 ? 1 / (1 - p) : 0); \
	_Pragma("omp parallel for schedule(static) if (pre * MAX(rows, 1) * post > PARALLEL_MIN / 4)") \
	for (int64_t i = 0; i < pre * MAX(rows, 1) * pieces; i++) { \
		Piece c; \
		piece_make(&c, i, pieces, rows, post, p, id, s); \
		for (int64_t j = 0; j < c.n; j++) \
			y[c.at + j] = store_##t(c.keep[j] ? load_##t(x[c.at + j]) * scale : 0); \
	} \
}
K_REALS(DROPOUT)

void k_dropout_mask(uint8_t *y, int64_t pre, int64_t rows, int64_t post, double p, uint64_t id,
	const StepScalars *s)
{
	int64_t pieces = ceil_div(post, PIECE);
	#pragma omp parallel for schedule(static) if (pre * MAX(rows, 1) * post > PARALLEL_MIN / 4)
	for (int64_t i = 0; i < pre * MAX(rows, 1) * pieces; i++) {
		Piece c;
		piece_make(&c, i, pieces, rows, post, p, id, s);
		memcpy(y + c.at, c.keep, (size_t)c.n);
	}
}
