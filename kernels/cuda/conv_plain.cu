/* kernels/cuda/conv_plain.cu: convolutions by loops, for what cuDNN does not serve: empty tensors, negative padding,
 * addresses that are no multiples of 16, and less scratch than its engines need.
 *
 * A thread computes an element of y or dx, a warp an element of dw; a sum has one order for one shape. */
#include "kernels/cuda/prim.cuh"
#include "kernels/cuda/window.cuh"
#include "kernels/dims.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

typedef struct ConvShape {
	KConvDesc d;
	int64_t in, out, kernel; /* products of the spatial dims */
	int64_t ig, og;          /* channels per group */
	int64_t xn, xc, xs, yn, yc, ys; /* strides of sample, channel, position */
} ConvShape;

static ConvShape conv_shape(const KConvDesc *d)
{
	ConvShape s = {};
	s.d = *d;
	s.in = numel(d->rank, d->in);
	s.out = numel(d->rank, d->out);
	s.kernel = numel(d->rank, d->kernel);
	s.ig = d->c / d->group;
	s.og = d->o / d->group;
	s.xn = s.in * d->c;
	s.yn = s.out * d->o;
	s.xc = d->layout ? 1 : s.in;
	s.yc = d->layout ? 1 : s.out;
	s.xs = d->layout ? d->c : 1;
	s.ys = d->layout ? d->o : 1;
	return s;
}

/* The sample, channel and position of element e of an image with this many channels and positions. */
static __device__ void place(int64_t e, int64_t channels, int64_t positions, int layout, int64_t *n, int64_t *c,
	int64_t *at)
{
	*n = e / (channels * positions);
	*c = layout ? e % channels : e / positions % channels;
	*at = layout ? e / channels % positions : e % positions;
}

template <class T> static __global__ void __launch_bounds__(THREADS) forward(T *y, const T *x, const T *w,
	const T *bias, ConvShape s)
{
	GRID_STRIDE(e, s.d.n * s.yn) {
		int64_t n, o, q;
		place(e, s.d.o, s.out, s.d.layout, &n, &o, &q);
		int64_t first = o / s.og * s.ig;
		Wide<T> acc = bias ? widen(bias[o]) : Wide<T>(0);
		for (int64_t k = 0; k < s.kernel; k++) {
			int64_t p = window_input(s.d, q, k);
			for (int64_t i = 0; p >= 0 && i < s.ig; i++)
				acc += widen(x[n * s.xn + (first + i) * s.xc + p * s.xs]) * widen(w[(o * s.ig + i) * s.kernel + k]);
		}
		y[e] = narrow<T>(acc);
	}
}

template <class T> static __global__ void __launch_bounds__(THREADS) grad_x(T *dx, const T *dy, const T *w,
	const T *bias, ConvShape s)
{
	GRID_STRIDE(e, s.d.n * s.xn) {
		int64_t n, c, p;
		place(e, s.d.c, s.in, s.d.layout, &n, &c, &p);
		int64_t g = c / s.ig, i = c % s.ig;
		Wide<T> acc = bias ? widen(bias[c]) : Wide<T>(0);
		for (int64_t k = s.kernel - 1; k >= 0; k--) {
			int64_t q = window_output(s.d, p, k);
			for (int64_t o = g * s.og; q >= 0 && o < (g + 1) * s.og; o++)
				acc += widen(dy[n * s.yn + o * s.yc + q * s.ys]) * widen(w[(o * s.ig + i) * s.kernel + k]);
		}
		dx[e] = narrow<T>(acc);
	}
}

template <class T, class O> static __global__ void __launch_bounds__(THREADS) grad_w(O *dw, const T *x, const T *dy,
	ConvShape s)
{
	int lane = (int)threadIdx.x % WARP;
	int64_t first = (int64_t)blockIdx.x * WARPS + (int)threadIdx.x / WARP;
	for (int64_t e = first; e < s.d.o * s.ig * s.kernel; e += (int64_t)gridDim.x * WARPS) {
		int64_t k = e % s.kernel, o = e / s.kernel / s.ig, c = o / s.og * s.ig + e / s.kernel % s.ig;
		Wide<T> acc = 0;
		for (int64_t j = lane; j < s.d.n * s.out; j += WARP) {
			int64_t n = j / s.out, q = j % s.out, p = window_input(s.d, q, k);
			if (p >= 0)
				acc += widen(x[n * s.xn + c * s.xc + p * s.xs]) * widen(dy[n * s.yn + o * s.yc + q * s.ys]);
		}
		acc = warp_reduce(acc, Sum());
		if (lane == 0)
			dw[e] = narrow<O>(acc);
	}
}

template <class T> static void run(KPrim *p, void *out, const void *a, const void *b, const void *bias, char *)
{
	ConvShape s = conv_shape(&p->conv);
	bool x = p->kind == CONV_GRAD_X;
	int64_t numel = s.d.n * (x ? s.xn : s.yn);
	if (numel == 0)
		return;
	if (x)
		LAUNCH(grad_x<T>, blocks_for(numel, THREADS), THREADS, 0, k_stream, (T *)out, (const T *)a, (const T *)b,
			(const T *)bias, s);
	else
		LAUNCH(forward<T>, blocks_for(numel, THREADS), THREADS, 0, k_stream, (T *)out, (const T *)a, (const T *)b,
			(const T *)bias, s);
}

template <class T, class O> static void run_grad_w(KPrim *p, void *dw, const void *x, const void *dy, const void *,
	char *)
{
	ConvShape s = conv_shape(&p->conv);
	int64_t numel = s.d.o * s.ig * s.kernel;
	if (numel > 0)
		LAUNCH((grad_w<T, O>), blocks_for(numel, WARPS), THREADS, 0, k_stream, (O *)dw, (const T *)x,
			(const T *)dy, s);
}

PrimRun *conv_plain_run(const KPrim *p)
{
	static PrimRun *const images[4] = {run<float>, run<double>, run<F16>, run<Bf16>};
	static PrimRun *const filters[2][4] = {
		{run_grad_w<float, float>, run_grad_w<double, double>, run_grad_w<F16, F16>, run_grad_w<Bf16, Bf16>},
		{run_grad_w<float, float>, run_grad_w<double, double>, run_grad_w<F16, float>, run_grad_w<Bf16, float>}};
	KDType t = p->conv.dtype;
	if (t > K_BF16)
		k_fail("conv has no kernel for dtype %d", (int)t);
	return p->kind == CONV_GRAD_W ? filters[p->conv.to == K_F32][t] : images[t];
}
