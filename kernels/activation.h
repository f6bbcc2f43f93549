/* kernels/activation.h: the activations of recurrent cells and their derivatives, on one element, for both targets.
 *
 * act_<dtype>(a, alpha, beta, x) is the value; slope_<dtype>(a, alpha, beta, y) is the derivative where the value is y
 * (base/activations.def has no activation whose value would not tell). */
#ifndef SHARDC_ACTIVATION_H
#define SHARDC_ACTIVATION_H

#include "kernels/ew.h"
#include "kernels/kernels.h"

#define ACTIVATIONS(T, t, fabs_, expm1_) \
EW T act_##t(KActivation a, T alpha, T beta, T x) \
{ \
	switch (a) { \
	case K_ACT_SIGMOID: return ew_sigmoid_##t(x); \
	case K_ACT_TANH: return ew_tanh_##t(x); \
	case K_ACT_RELU: return x <= 0 ? 0 : x; \
	case K_ACT_AFFINE: return alpha * x + beta; \
	case K_ACT_LEAKY_RELU: return x < 0 ? alpha * x : x; \
	case K_ACT_THRESHOLDED_RELU: return x > alpha || x != x ? x : 0; \
	case K_ACT_SCALED_TANH: return alpha * ew_tanh_##t(beta * x); \
	case K_ACT_HARD_SIGMOID: x = alpha * x + beta; return x < 0 ? 0 : x > 1 ? 1 : x; \
	case K_ACT_ELU: return x < 0 ? alpha * expm1_(x) : x; \
	case K_ACT_SOFTSIGN: return x / (1 + fabs_(x)); \
	default: return ew_softplus_##t(x); \
	} \
} \
EW T slope_##t(KActivation a, T alpha, T beta, T y) \
{ \
	switch (a) { \
	case K_ACT_SIGMOID: return y * (1 - y); \
	case K_ACT_TANH: return 1 - y * y; \
	case K_ACT_RELU: return y > 0 ? 1 : 0; \
	case K_ACT_AFFINE: return alpha; \
	case K_ACT_LEAKY_RELU: return y > 0 ? 1 : alpha; \
	case K_ACT_THRESHOLDED_RELU: return y > alpha ? 1 : 0; \
	case K_ACT_SCALED_TANH: return alpha == 0 ? 0 : beta * (alpha - y * y / alpha); \
	case K_ACT_HARD_SIGMOID: return y > 0 && y < 1 ? alpha : 0; \
	case K_ACT_ELU: return y > 0 ? 1 : y + alpha; \
	case K_ACT_SOFTSIGN: return (1 - fabs_(y)) * (1 - fabs_(y)); \
	default: return -expm1_(-y); \
	} \
}
ACTIVATIONS(float, f32, fabsf, expm1f)
ACTIVATIONS(double, f64, fabs, expm1)
#undef ACTIVATIONS

#endif
