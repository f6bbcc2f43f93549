/* kernels/cpu/chance.c: casts to 16 bits that round up or down by chance (--stochastic-rounding).
 *
 * The random number of an element comes from counters (base/philox.h), so no bit depends on the number of ranks,
 * pieces or threads.  Numbers are made block by block, in loops that compilers vectorise. */
#include "base/philox.h"
#include "kernels/cpu/half.h"

enum { BLOCK = 256 };

/* The random numbers of inner indices [4 * at, 4 * (at + n)). */
static void make_numbers(uint32_t *restrict out, uint64_t key, uint64_t at, int64_t n, uint64_t step)
{
	for (int64_t j = 0; j < n; j++) {
		uint32_t b[4];
		philox_block(b, key, 0, at + (uint64_t)j, step);
		for (int k = 0; k < 4; k++)
			out[4 * j + k] = b[k];
	}
}

static void round_block(uint16_t *out, KDType t, const float *in, const uint32_t *number, int64_t n)
{
	if (t == K_BF16)
		for (int64_t i = 0; i < n; i++)
			out[i] = ew_round_f32_bf16(in[i], number[i]);
	else
		for (int64_t i = 0; i < n; i++)
			out[i] = ew_round_f32_f16(in[i], number[i]);
}

void k_cast_by_chance(void *out, KDType out_type, const float *in, int64_t n, uint64_t key, int64_t first,
	uint64_t step)
{
	int64_t skip = first % 4; /* elements of the first block of four that come before `first` */
	#pragma omp parallel for schedule(static) if (n > PARALLEL_MIN / 4)
	for (int64_t at = -skip; at < n; at += BLOCK) {
		uint32_t number[BLOCK];
		int64_t from = MAX(at, 0), to = MIN(at + BLOCK, n);
		make_numbers(number, key, (uint64_t)(first + at) / 4, ceil_div(to - at, 4), step);
		round_block((uint16_t *)out + from, out_type, in + from, number + (from - at), to - from);
	}
}
