/* kernels/cuda/chance.cu: casts to 16 bits that round up or down by chance (--stochastic-rounding), with the same bits
 * as on the CPU.
 *
 * A thread makes one Philox block and rounds the up to four elements that share it.  Seed and step are read from
 * device memory, so that a captured step rounds anew each time it runs. */
#include "base/philox.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/ew.h"

enum { CHANCE_BLOCK = 256 };

template <bool BF> __device__ __forceinline__ uint16_t round_by(float x, uint32_t r)
{
	return BF ? ew_round_f32_bf16(x, r) : ew_round_f32_f16(x, r);
}

/* whole: groups of four elements begin where vectors do. */
template <bool BF> static __global__ void __launch_bounds__(CHANCE_BLOCK)
cast_by_chance(uint16_t *out, const float *in, int64_t n, uint64_t id, int64_t first, bool next, const StepScalars *s,
	bool whole)
{
	uint64_t key = philox_key(s->seed, id), step = (uint64_t)(s->step + (next && !s->skip));
	int64_t skip = first % 4, groups = (skip + n + 3) / 4;
	GRID_STRIDE(g, groups) {
		uint32_t b[4];
		int64_t at = 4 * g - skip;
		philox_block(b, key, 0, (uint64_t)(first / 4 + g), step);
		if (whole && at + 4 <= n) {
			Vec<float, 4> x = load<4>(in + at);
			store<4>(out + at, Vec<uint16_t, 4>{{round_by<BF>(x.at[0], b[0]), round_by<BF>(x.at[1], b[1]),
				round_by<BF>(x.at[2], b[2]), round_by<BF>(x.at[3], b[3])}});
			continue;
		}
		for (int k = 0; k < 4; k++)
			if (at + k >= 0 && at + k < n)
				out[at + k] = round_by<BF>(in[at + k], b[k]);
	}
}

void k_device_cast_by_chance(void *out, KDType out_type, const float *in, int64_t n, uint64_t id, int64_t first,
	bool next, const StepScalars *s)
{
	bool whole = first % 4 == 0 && aligned16(out) && aligned16(in);
	unsigned grid = blocks_for((n + 7) / 4, CHANCE_BLOCK);
	if (n == 0)
		return;
	uint16_t *to = (uint16_t *)out;
	if (out_type == K_BF16)
		LAUNCH(cast_by_chance<true>, grid, CHANCE_BLOCK, 0, k_stream, to, in, n, id, first, next, s, whole);
	else
		LAUNCH(cast_by_chance<false>, grid, CHANCE_BLOCK, 0, k_stream, to, in, n, id, first, next, s, whole);
}
