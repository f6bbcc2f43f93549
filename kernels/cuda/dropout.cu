/* kernels/cuda/dropout.cu: dropout by counters (base/philox.h), with the CPU's bits: an element's random number
 * depends on the seed, the node, its global sample row, its index inside the sample and the step.
 *
 * A thread makes one Philox block and serves the up to four elements of a row that share it. */
#include "base/philox.h"
#include "kernels/cuda/common.cuh"

enum { DROPOUT_BLOCK = 256 };

/* x is (pre, rows, post).  shared: x has no samples and is one row.  groups: the most groups of four inner indices
 * that a row of post elements meets. */
typedef struct Dropout {
	int64_t pre, rows, post, groups;
	bool shared;
	uint64_t id, threshold;
	const StepScalars *s;
} Dropout;

/* Visits all groups.  Calls four(index, keep[4]) for a group whose four elements are in the row and, where `whole` is
 * set, begin at a multiple of four; for other groups put(index, keep) for each element. */
template <class One, class Four>
__device__ __forceinline__ void each_group(const Dropout &d, bool whole, One one, Four four)
{
	uint64_t key = philox_key(d.s->seed, d.id), step = d.s->rng_step;
	int64_t sample0 = d.shared ? 0 : d.s->sample0, all = d.pre * d.rows * d.groups;
	bool small = all <= UINT32_MAX; /* 64-bit division is slow */
	GRID_STRIDE(t, all) {
		int64_t r = small ? (int64_t)((uint32_t)t / (uint32_t)d.groups) : t / d.groups, g = t - r * d.groups;
		int64_t p = small ? (int64_t)((uint32_t)r / (uint32_t)d.rows) : r / d.rows, base = p * d.post;
		int64_t block = base / 4 + g, j = block * 4 - base; /* index in the row of the group's first element */
		uint32_t b[4];
		bool keep[4];
		if (j >= d.post)
			continue;
		philox_block(b, key, (uint64_t)(sample0 + r - p * d.rows), (uint64_t)block, step);
		for (int k = 0; k < 4; k++)
			keep[k] = b[k] >= d.threshold;
		if (whole) {
			four(r * d.post + j, keep);
			continue;
		}
		for (int k = 0; k < 4; k++)
			if (j + k >= 0 && j + k < d.post)
				one(r * d.post + j + k, keep[k]);
	}
}

template <class T> static __global__ void __launch_bounds__(DROPOUT_BLOCK)
dropout(T *y, const T *x, Dropout d, Wide<T> scale,
	bool whole)
{
	each_group(d, whole, [&](int64_t i, bool keep) { y[i] = narrow<T>(keep ? widen(x[i]) * scale : (Wide<T>)0); },
		[&](int64_t i, const bool *keep) {
			constexpr int N = sizeof(T) == 8 ? 2 : 4; /* within 16 bytes */
			#pragma unroll
			for (int k = 0; k < 4; k += N) {
				Vec<T, N> v = load<N>(x + i + k);
				#pragma unroll
				for (int e = 0; e < N; e++)
					v.at[e] = narrow<T>(keep[k + e] ? widen(v.at[e]) * scale : (Wide<T>)0);
				store<N>(y + i + k, v);
			}
		});
}

static __global__ void __launch_bounds__(DROPOUT_BLOCK) dropout_mask(uint8_t *y, Dropout d, bool whole)
{
	each_group(d, whole, [&](int64_t i, bool keep) { y[i] = keep; }, [&](int64_t i, const bool *keep) {
		store<4>(y + i, Vec<uint8_t, 4>{{keep[0], keep[1], keep[2], keep[3]}});
	});
}

/* With post a multiple of four, a row begins with a group and all groups are whole. */
static Dropout dropout_of(int64_t pre, int64_t rows, int64_t post, double p, uint64_t id, const StepScalars *s)
{
	int64_t groups = post % 4 == 0 ? post / 4 : post / 4 + 2;
	return {pre, rows > 0 ? rows : 1, post, groups, rows == 0, id, philox_threshold(p), s};
}

template <class T> static void dropout_any(T *y, const T *x, const Dropout &d, Wide<T> scale)
{
	bool whole = d.post % 4 == 0 && aligned16(x) && aligned16(y);
	int64_t all = d.pre * d.rows * d.groups;
	if (d.pre * d.rows * d.post > 0)
		LAUNCH(dropout<T>, blocks_for(all, DROPOUT_BLOCK), DROPOUT_BLOCK, 0, k_stream, y, x, d, scale, whole);
}

/* D is the type of elements on the device; for 16-bit ones it differs from the raw type of the interface. */
#define DROPOUT(T, D, t) \
void k_dropout_##t(T *y, const T *x, int64_t pre, int64_t rows, int64_t post, double p, uint64_t id, \
	const StepScalars *s) \
{ \
	dropout_any((D *)y, (const D *)x, dropout_of(pre, rows, post, p, id, s), (Wide<D>)(p < 1 ? 1 / (1 - p) : 0)); \
}
DROPOUT(float, float, f32)
DROPOUT(double, double, f64)
DROPOUT(uint16_t, Bf16, bf16)
DROPOUT(uint16_t, F16, f16)

void k_dropout_mask(uint8_t *y, int64_t pre, int64_t rows, int64_t post, double p, uint64_t id, const StepScalars *s)
{
	Dropout d = dropout_of(pre, rows, post, p, id, s);
	bool whole = post % 4 == 0 && aligned16(y);
	if (d.pre * d.rows * d.post > 0)
		LAUNCH(dropout_mask, blocks_for(d.pre * d.rows * d.groups, DROPOUT_BLOCK), DROPOUT_BLOCK, 0, k_stream, y, d,
			whole);
}
