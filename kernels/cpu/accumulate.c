/* kernels/cpu/accumulate.c: adds gradients of micro-batches to sums in f32, whatever their type.
 *
 * Each element is a sum of its own, in the order of the calls, so the number of threads changes no bit. */
#include "kernels/cpu/common.h"
#include "kernels/ew.h"

#define ACCUMULATE(T, t, load) \
	void k_accumulate_##t(float *sum, const T *x, int64_t n) \
	{ \
		_Pragma("omp parallel for simd schedule(static) if (n > PARALLEL_MIN)") \
		for (int64_t i = 0; i < n; i++) \
			sum[i] += load(x[i]); \
	}
ACCUMULATE(float, f32, )
ACCUMULATE(uint16_t, f16, ew_cast_f16_f32)
ACCUMULATE(uint16_t, bf16, ew_cast_bf16_f32)
