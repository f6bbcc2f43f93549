/* kernels/cuda/window.cuh: which positions the windows of convolutions and pooling meet.
 *
 * W is a type with rank and, for each spatial dim, in, out, kernel, stride, dilation and pad; I is the type of its
 * positions. */
#ifndef SHARDC_CUDA_WINDOW_CUH
#define SHARDC_CUDA_WINDOW_CUH

/* The flat input position that output position q meets at kernel position k; -1 in the padding. */
template <class W, class I> static __device__ __forceinline__ I window_input(const W &w, I q, I k)
{
	I at = 0, scale = 1;
	for (int i = w.rank - 1; i >= 0; i--) {
		I p = q % w.out[i] * w.stride[i] + k % w.kernel[i] * w.dilation[i] - w.pad[i];
		if (p < 0 || p >= w.in[i])
			return -1;
		at += p * scale;
		scale *= w.in[i];
		q /= w.out[i];
		k /= w.kernel[i];
	}
	return at;
}

/* The flat output position that meets input position p at kernel position k; -1 when there is none. */
template <class W, class I> static __device__ __forceinline__ I window_output(const W &w, I p, I k)
{
	I at = 0, scale = 1;
	for (int i = w.rank - 1; i >= 0; i--) {
		I q = p % w.in[i] + w.pad[i] - k % w.kernel[i] * w.dilation[i];
		if (q < 0 || q % w.stride[i] || q / w.stride[i] >= w.out[i])
			return -1;
		at += q / w.stride[i] * scale;
		scale *= w.out[i];
		p /= w.in[i];
		k /= w.kernel[i];
	}
	return at;
}

#endif
