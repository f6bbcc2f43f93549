/* kernels/cpu/conv_axis.h: which positions of its operand a convolution's result meets, along one spatial dim. */
#ifndef SHARDC_CPU_CONV_AXIS_H
#define SHARDC_CPU_CONV_AXIS_H

#include "kernels/kernels.h"

/* Position i of the result, of `to`, meets position (i * step + k * dilation - left) / up of the operand, of `from`, at
 * tap k of `taps`, where that is a whole number in [0, from). */
typedef struct ConvAxis { int64_t from, to, taps, step, up, dilation, left; } ConvAxis;

/* Of spatial dim i; below 0: of a dim of size 1, as which an image's height is seen where there is one dim.  turned: of
 * the gradient of x, which is the forward of dy with its taps turned round, and zeros that strides leave between. */
static inline ConvAxis conv_axis(const KConvDesc *d, int i, bool turned)
{
	if (i < 0)
		return (ConvAxis){1, 1, 1, 1, 1, 1, 0};
	int64_t reach = (d->kernel[i] - 1) * d->dilation[i];
	if (turned)
		return (ConvAxis){d->out[i], d->in[i], d->kernel[i], 1, d->stride[i], d->dilation[i], reach - d->pad[i]};
	return (ConvAxis){d->in[i], d->out[i], d->kernel[i], d->stride[i], 1, d->dilation[i], d->pad[i]};
}

/* The operand's position that position `at` of the result meets at tap `tap`; -1: none. */
static inline int64_t conv_axis_met(const ConvAxis *a, int64_t at, int64_t tap)
{
	int64_t t = at * a->step + tap * a->dilation - a->left;
	if (a->up == 1) /* most are, and divisions are slow */
		return t < 0 || t >= a->from ? -1 : t;
	return t < 0 || t % a->up || t / a->up >= a->from ? -1 : t / a->up;
}

#endif
