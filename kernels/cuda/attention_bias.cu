/* kernels/cuda/attention_bias.cu: makes the bias of a mask. */
#include "kernels/cuda/attention_bias.cuh"

#include "kernels/cuda/common.cuh"

enum { THREADS = 256 };

struct Mask { const void *at; int kind; int64_t stride[4], keys; };

/* A number that is not one stays: it makes the row's log-sum-exp NaN, too. */
template <class T> static __global__ void __launch_bounds__(THREADS) fill(float *bias, Mask m, BiasShape to, int64_t n)
{
	const float hidden = -0x1p100f;
	GRID_STRIDE(i, n) {
		int64_t s = i % to.s, t = i / to.s % to.t, h = i / (to.s * to.t) % to.h, b = i / (to.s * to.t * to.h);
		int64_t at = b * m.stride[0] + h * m.stride[1] + t * m.stride[2] + s * m.stride[3];
		float x = hidden;
		if (s < m.keys && m.kind == K_MASK_BOOL)
			x = static_cast<const uint8_t *>(m.at)[at] ? 0 : hidden;
		else if (s < m.keys)
			x = m.kind == K_MASK_FLOAT ? static_cast<const float *>(m.at)[at] : widen(static_cast<const T *>(m.at)[at]);
		bias[i] = x < hidden ? hidden : x;
	}
}

void attention_bias(float *bias, const void *mask, const KAttention *a, KDType type)
{
	BiasShape to = bias_shape(a);
	int64_t n = to.b * to.h * to.t * to.s;
	Mask m = {mask, a->mask, {a->mask_stride[0], a->mask_stride[1], a->mask_stride[2], a->mask_stride[3]}, a->s};
	if (type == K_BF16)
		LAUNCH(fill<Bf16>, blocks_for(n, THREADS), THREADS, 0, k_stream, bias, m, to, n);
	else
		LAUNCH(fill<F16>, blocks_for(n, THREADS), THREADS, 0, k_stream, bias, m, to, n);
}
