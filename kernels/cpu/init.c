/* kernels/cpu/init.c: random initial values by counters (base/philox.h).  Element i of a tensor depends on its key and
 * on i, not on where the part of a rank begins.
 *
 * Numbers are made in whole pieces at multiples of PIECE, also at the ends of a part, so that the same instructions
 * compute an element for every part.  A piece keeps the four words of its Philox blocks in separate arrays, so that
 * rounds and transforms are loops over lanes. */
#include "base/philox.h"
#include "kernels/cpu/common.h"
#include "kernels/ew.h"

enum { PIECE = 1024, LANES = PIECE / 4 };

typedef struct Words { uint32_t c[4][LANES]; } Words;

/* philox_block for LANES blocks at once. */
static void make_words(Words *w, uint64_t key, uint64_t block)
{
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
	for (int j = 0; j < LANES; j++) {
		w->c[0][j] = (uint32_t)(block + (uint64_t)j);
		w->c[1][j] = w->c[2][j] = 0;
		w->c[3][j] = (uint32_t)((block + (uint64_t)j) >> 32) & 0xff;
	}
	for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
#pragma omp simd
		for (int j = 0; j < LANES; j++) {
			uint64_t a = (uint64_t)0xd2511f53u * w->c[0][j], b = (uint64_t)0xcd9e8d57u * w->c[2][j];
			uint32_t c1 = w->c[1][j], c3 = w->c[3][j];
			w->c[0][j] = (uint32_t)(b >> 32) ^ c1 ^ k0;
			w->c[1][j] = (uint32_t)b;
			w->c[2][j] = (uint32_t)(a >> 32) ^ c3 ^ k1;
			w->c[3][j] = (uint32_t)a;
		}
	}
}

/* The middles of 2^24 equal parts of [-bound, bound]: odd multiples of a unit, exact in f32, rounded once by the
 * product. */
static void uniform_piece(float *out, const Words *w, float bound)
{
	float unit = bound * 0x1p-24f;
	for (int k = 0; k < 4; k++)
		for (int j = 0; j < LANES; j++)
			out[4 * j + k] = (float)((int32_t)(w->c[k][j] >> 8) * 2 + 1 - (1 << 24)) * unit;
}

/* Box-Muller: two words make two values; none lies beyond 5.77 std. */
static void normal_piece(float *out, const Words *w, float std)
{
	for (int k = 0; k < 4; k += 2) {
		float z0[LANES], z1[LANES];
#pragma omp simd
		for (int j = 0; j < LANES; j++) {
			float u = (float)(int32_t)((w->c[k][j] >> 8) + 1) * 0x1p-24f;
			float angle = (float)(int32_t)(w->c[k + 1][j] >> 8) * (0x1p-24f * 6.28318531f);
			float r = std * sqrtf(-2.0f * ew_log_f32(u));
			z0[j] = r * ew_cos_f32(angle);
			z1[j] = r * ew_sin_f32(angle);
		}
		for (int j = 0; j < LANES; j++) {
			out[4 * j + k] = z0[j];
			out[4 * j + k + 1] = z1[j];
		}
	}
}

typedef void PieceFn(float *out, const Words *w, float scale);

static void fill_pieces(float *out, uint64_t key, int64_t first, int64_t n, float scale, PieceFn *piece)
{
	int64_t from = first / PIECE, to = (first + n + PIECE - 1) / PIECE;
#pragma omp parallel for schedule(static) if (n > PARALLEL_MIN / 4)
	for (int64_t p = from; p < to; p++) {
		Words w;
		float made[PIECE];
		int64_t begin = MAX(p * PIECE, first), end = MIN((p + 1) * PIECE, first + n);
		make_words(&w, key, (uint64_t)p * LANES);
		piece(made, &w, scale);
		memcpy(out + (begin - first), made + (begin - p * PIECE), (size_t)(end - begin) * sizeof(float));
	}
}

void k_init_uniform_f32(float *out, uint64_t key, int64_t first, int64_t n, float bound)
{
	fill_pieces(out, key, first, n, bound, uniform_piece);
}

void k_init_normal_f32(float *out, uint64_t key, int64_t first, int64_t n, float std)
{
	fill_pieces(out, key, first, n, std, normal_piece);
}
