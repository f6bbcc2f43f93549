/* kernels/cpu/random.c: tensors of random numbers by counters (kernels/random.h).
 *
 * A number depends on the seed, the node, its global sample row, its index inside the sample and the step, never on
 * ranks or threads, as dropout's (dropout.c).  Blocks of four numbers are made in loops that compilers vectorise. */
#include "kernels/cpu/half.h"
#include "kernels/random.h"

enum { PIECE = 1024 };

/* What to draw.  Words of a piece: those of inner indices 4 * at to 4 * (at + n). */
typedef struct Draw {
	KDraw kind;
	int bits;           /* of a uniform number */
	uint64_t threshold;
	double lo, hi;
} Draw;

static void make_words(uint32_t *restrict out, uint64_t key, uint64_t row, uint64_t at, int64_t n, uint64_t step)
{
	for (int64_t j = 0; j < n; j++) {
		uint32_t b[4];
		philox_block(b, key, row, at + (uint64_t)j, step);
		for (int k = 0; k < 4; k++)
			out[4 * j + k] = b[k];
	}
}

#define NUMBERS(W, SUFFIX) \
static void numbers_##SUFFIX(W *restrict out, const uint32_t *restrict word, int64_t n, const Draw *d) \
{ \
	if (d->kind == K_DRAW_UNIFORM) \
		for (int64_t i = 0; i < n; i++) \
			out[i] = (W)random_unit(word[i], d->bits); \
	else if (d->kind == K_DRAW_BERNOULLI) \
		for (int64_t i = 0; i < n; i++) \
			out[i] = (W)(word[i] >= d->threshold ? d->hi : d->lo); \
	else \
		for (int64_t i = 0; i < n; i += 2) \
			random_normal_##SUFFIX(word[i], word[i + 1], &out[i], &out[i + 1]); \
}
NUMBERS(float, f32)
NUMBERS(double, f64)

/* The row of Philox of sample r: samples from s->own on are copies of sample 0. */
static uint64_t row_of(const StepScalars *s, int64_t r)
{
	return (uint64_t)(s->sample0 + (s->own && r >= s->own ? 0 : r));
}

#define RANDOM(T, W, S, t, B) \
void k_draw_##t(T *y, int64_t pre, int64_t rows, int64_t post, KDraw kind, double p, double lo, double hi, \
	uint64_t id, const StepScalars *s) \
{ \
	Draw d = {kind, B, philox_threshold(p), lo, hi}; \
	uint64_t key = philox_key(s->seed, id); \
	int64_t pieces = ceil_div(post, PIECE); \
	_Pragma("omp parallel for schedule(static) if (pre * MAX(rows, 1) * post > PARALLEL_MIN / 4)") \
	for (int64_t i = 0; i < pre * MAX(rows, 1) * pieces; i++) { \
		uint32_t word[PIECE + 8]; \
		W number[PIECE + 8]; \
		int64_t r = i / pieces, from = i % pieces * PIECE, n = MIN(PIECE, post - from); \
		int64_t inner = (rows ? r / rows * post : 0) + from, skip = inner % 4, blocks = ceil_div(skip + n, 4); \
		make_words(word, key, rows ? row_of(s, r % rows) : 0, (uint64_t)(inner / 4), blocks, s->rng_step); \
		numbers_##S(number, word, 4 * blocks, &d); \
		for (int64_t j = 0; j < n; j++) \
			y[r * post + from + j] = store_##t(number[skip + j]); \
	} \
}
RANDOM(float, float, f32, f32, 24)
RANDOM(double, double, f64, f64, 24)
RANDOM(uint16_t, float, f32, bf16, 8)
RANDOM(uint16_t, float, f32, f16, 11)
