/* kernels/cuda/random.cu: tensors of random numbers by counters (kernels/random.h), with the CPU's numbers.
 *
 * A thread makes one Philox block and stores the up to four elements of a row that share it.  Seed, step and sample are
 * read from device memory, so that a captured step draws anew each time it runs. */
#include "kernels/cuda/common.cuh"
#include "kernels/random.h"

enum { RANDOM_BLOCK = 256 };

/* y is (pre, rows, post).  shared: y has no samples and is one row.  groups: the most groups of four inner indices that
 * a row of post elements meets. */
typedef struct Random {
	int64_t pre, rows, post, groups;
	bool shared;
	KDraw kind;
	int bits;
	uint64_t id, threshold;
	double lo, hi;
	const StepScalars *s;
} Random;

__device__ __forceinline__ void numbers_of(const uint32_t b[4], const Random &d, float x[4])
{
	if (d.kind == K_DRAW_NORMAL) {
		random_normal_f32(b[0], b[1], &x[0], &x[1]);
		random_normal_f32(b[2], b[3], &x[2], &x[3]);
		return;
	}
	for (int k = 0; k < 4; k++)
		x[k] = d.kind == K_DRAW_UNIFORM ? random_unit(b[k], d.bits) : (float)(b[k] >= d.threshold ? d.hi : d.lo);
}

__device__ __forceinline__ void numbers_of(const uint32_t b[4], const Random &d, double x[4])
{
	if (d.kind == K_DRAW_NORMAL) {
		random_normal_f64(b[0], b[1], &x[0], &x[1]);
		random_normal_f64(b[2], b[3], &x[2], &x[3]);
		return;
	}
	for (int k = 0; k < 4; k++)
		x[k] = d.kind == K_DRAW_UNIFORM ? (double)random_unit(b[k], d.bits) : b[k] >= d.threshold ? d.hi : d.lo;
}

template <class T> static __global__ void __launch_bounds__(RANDOM_BLOCK) random_numbers(T *y, Random d)
{
	uint64_t key = philox_key(d.s->seed, d.id), step = d.s->rng_step;
	int64_t sample0 = d.s->sample0, own = d.s->own;
	GRID_STRIDE(t, d.pre * d.rows * d.groups) {
		int64_t r = t / d.groups, p = r / d.rows, at = r - p * d.rows, base = p * d.post;
		int64_t block = base / 4 + (t - r * d.groups), j = block * 4 - base; /* index in the row of the first element */
		int64_t row = d.shared ? 0 : sample0 + (own && at >= own ? 0 : at);
		uint32_t b[4];
		Wide<T> x[4];
		if (j >= d.post)
			continue;
		philox_block(b, key, (uint64_t)row, (uint64_t)block, step);
		numbers_of(b, d, x);
		for (int k = 0; k < 4; k++)
			if (j + k >= 0 && j + k < d.post)
				y[r * d.post + j + k] = narrow<T>(x[k]);
	}
}

/* D is the type of elements on the device; for 16-bit ones it differs from the raw type of the interface. */
#define RANDOM(T, D, t, B) \
void k_draw_##t(T *y, int64_t pre, int64_t rows, int64_t post, KDraw kind, double p, double lo, double hi, \
	uint64_t id, const StepScalars *s) \
{ \
	int64_t groups = post % 4 == 0 ? post / 4 : post / 4 + 2; \
	Random d = {pre, rows > 0 ? rows : 1, post, groups, rows == 0, kind, B, id, philox_threshold(p), lo, hi, s}; \
	if (d.pre * d.rows * d.post > 0) \
		LAUNCH(random_numbers<D>, blocks_for(d.pre * d.rows * d.groups, RANDOM_BLOCK), RANDOM_BLOCK, 0, k_stream, \
			(D *)y, d); \
}
RANDOM(float, float, f32, 24)
RANDOM(double, double, f64, 24)
RANDOM(uint16_t, Bf16, bf16, 8)
RANDOM(uint16_t, F16, f16, 11)
