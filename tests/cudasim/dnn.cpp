/* tests/cudasim/dnn.cpp: cuDNN's handle, emulated, and convolutions: plain loops.
 *
 * The one idea: three kinds of convolution are one walk over (output position, kernel position, channels). */
#include "tests/cudasim/dnn.h"

/* ---- handles ---- */

const char *cudnnGetErrorString(cudnnStatus_t s)
{
	return s == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : s == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM"
		: "CUDNN_STATUS_NOT_SUPPORTED";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
	*handle = new cudnnContext{};
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
	delete handle;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
	handle->stream = stream;
	return CUDNN_STATUS_SUCCESS;
}

/* ---- convolutions ---- */

/* The walk: for each pair of a row of outputs and a kernel position, visit(y row, x row, w, outputs from .. to). */
template <class Visit> static void walk(const SimConv &s, Visit visit)
{
	int64_t ig = s.c / s.groups, og = s.o / s.groups, in = s.in[0] * s.in[1] * s.in[2];
	int64_t out = s.out[0] * s.out[1] * s.out[2], taps = s.kernel[0] * s.kernel[1] * s.kernel[2];
	for (int64_t i = 0; i < s.n * s.o * ig; i++) {
		int64_t n = i / ig / s.o, o = i / ig % s.o, c = o / og * ig + i % ig;
		for (int64_t t = 0; t < taps; t++) {
			int64_t k[3] = {t / s.kernel[2] / s.kernel[1], t / s.kernel[2] % s.kernel[1], t % s.kernel[2]};
			int64_t shift = k[2] * s.dilation[2] - s.pad[2], from = 0, to = s.out[2];
			while (from < to && from * s.stride[2] + shift < 0)
				from++;
			while (to > from && (to - 1) * s.stride[2] + shift >= s.in[2])
				to--;
			for (int64_t q = 0; q < s.out[0] * s.out[1]; q++) {
				int64_t p0 = q / s.out[1] * s.stride[0] + k[0] * s.dilation[0] - s.pad[0];
				int64_t p1 = q % s.out[1] * s.stride[1] + k[1] * s.dilation[1] - s.pad[1];
				if (p0 >= 0 && p0 < s.in[0] && p1 >= 0 && p1 < s.in[1])
					visit((n * s.o + o) * out + q * s.out[2], (n * s.c + c) * in + (p0 * s.in[1] + p1) * s.in[2]
						+ shift, (o * ig + i % ig) * taps + t, from, to);
			}
		}
	}
}

void sim_convolve(SimConvKind kind, const SimConv &s, double *x, double *w, double *y)
{
	int64_t step = s.stride[2];
	walk(s, [=](int64_t yr, int64_t xr, int64_t wi, int64_t from, int64_t to) {
		double sum = 0;
		if (kind == SIM_CONV)
			for (int64_t q = from; q < to; q++)
				y[yr + q] += w[wi] * x[xr + q * step];
		else if (kind == SIM_CONV_GRAD_X)
			for (int64_t q = from; q < to; q++)
				x[xr + q * step] += w[wi] * y[yr + q];
		else
			for (int64_t q = from; q < to; q++)
				sum += x[xr + q * step] * y[yr + q];
		if (kind == SIM_CONV_GRAD_W)
			w[wi] += sum;
	});
}
