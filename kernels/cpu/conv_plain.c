/* kernels/cpu/conv_plain.c: convolutions by loops, for f64, empty results, and what oneDNN serves by its reference
 * implementation only (f16 up to its version 2, negative padding, exotic dilation).  Any layout of x, groups, one to
 * three spatial dims; weights are row-major.  Each element is summed by one thread, in order. */
#include "kernels/cpu/half.h"
#include "kernels/cpu/prim.h"

typedef struct ConvShape {
	const KConvDesc *d;
	int64_t in, out, kernel; /* products of the spatial dims */
	int64_t ig, og;          /* channels per group */
	int64_t xn, xc, xs, yn, yc, ys; /* strides of sample, channel, position */
} ConvShape;

static ConvShape conv_shape(const KConvDesc *d)
{
	ConvShape s = {.d = d, .in = numel(d->rank, d->in), .out = numel(d->rank, d->out),
		.kernel = numel(d->rank, d->kernel), .ig = d->c / d->group, .og = d->o / d->group};
	s.xn = s.in * d->c;
	s.yn = s.out * d->o;
	s.xc = d->layout ? 1 : s.in;
	s.yc = d->layout ? 1 : s.out;
	s.xs = d->layout ? d->c : 1;
	s.ys = d->layout ? d->o : 1;
	return s;
}

/* The flat output position that meets input position p at kernel position k; -1 when there is none. */
static int64_t conv_output_at(const KConvDesc *d, int64_t p, int64_t k)
{
	int64_t pa[3], ka[3], at = 0;
	unravel(p, d->rank, d->in, pa);
	unravel(k, d->rank, d->kernel, ka);
	for (int i = 0; i < d->rank; i++) {
		int64_t q = pa[i] + d->pad[i] - ka[i] * d->dilation[i];
		if (q < 0 || q % d->stride[i] || q / d->stride[i] >= d->out[i])
			return -1;
		at = at * d->out[i] + q / d->stride[i];
	}
	return at;
}

/* The flat input position that output position q meets at kernel position k; -1 in the padding. */
static int64_t conv_input_at(const KConvDesc *d, int64_t q, int64_t k)
{
	int64_t qa[3], ka[3], at = 0;
	unravel(q, d->rank, d->out, qa);
	unravel(k, d->rank, d->kernel, ka);
	for (int i = 0; i < d->rank; i++) {
		int64_t p = qa[i] * d->stride[i] + ka[i] * d->dilation[i] - d->pad[i];
		if (p < 0 || p >= d->in[i])
			return -1;
		at = at * d->in[i] + p;
	}
	return at;
}

#define T float
#define SUFFIX f32
#include "kernels/cpu/conv_plain.h"
#define T double
#define SUFFIX f64
#include "kernels/cpu/conv_plain.h"
#define TEMPLATE "kernels/cpu/conv_plain.h"
#include "kernels/cpu/each_half.h"

KPrim *conv_plain_create(const KConvDesc *d, ConvKind kind)
{
	typedef void Run(KPrim *, PrimArgs *, char *);
	static Run *const run[3][4] = {
		{forward_f32, forward_f64, forward_f16, forward_bf16}, {grad_x_f32, grad_x_f64, grad_x_f16, grad_x_bf16},
		{grad_w_f32, grad_w_f64, grad_w_f16, grad_w_bf16}};
	if (d->dtype > K_BF16)
		k_fail("conv has no kernel for dtype %d", (int)d->dtype);
	if (d->w_layout)
		k_fail("conv: for this shape weights must be row-major; they are packed as %s", d->w_layout);
	KPrim *p = prim_new("own:plain");
	p->conv = *d;
	p->run = run[kind][d->dtype];
	return p;
}
