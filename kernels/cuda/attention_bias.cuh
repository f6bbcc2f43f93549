/* kernels/cuda/attention_bias.cuh: a mask as cuDNN's attention takes it: a bias, f32 numbers that are added to the
 * scaled scores.  (Its engines take no bool tensors.)
 *
 * A hidden key gets -2^100, not -inf: an engine that begins with a tile of hidden keys would subtract -inf from -inf.
 * A power of two is exact times log2(e), and so low that no 16-bit scores but absurd ones reach it.  Numbers of a mask
 * that are lower, as the lowest f32, become that, too.  So a row that sees no key has a log-sum-exp of about -2^100;
 * attention_redo computes its heads anew, and those of rows in which rounding has lost the scores (K_LSE_COARSE). */
#ifndef SHARDC_CUDA_ATTENTION_BIAS_CUH
#define SHARDC_CUDA_ATTENTION_BIAS_CUH

#include "kernels/cuda/work.h"
#include "kernels/kernels.h"

/* The bias (b, h, t, s): b, h and t are 1 where the mask is the same for all; a row has s elements, which are the keys
 * and, up to a whole tile, hidden ones. */
struct BiasShape { int64_t b, h, t, s; };
static inline BiasShape bias_shape(const KAttention *a)
{
	const int64_t *stride = a->mask_stride;
	return {stride[0] ? a->b : 1, stride[1] ? a->h : 1, stride[2] ? a->t : 1, kwork_up(a->s, K_DNN_TILE)};
}

void attention_bias(float *bias, const void *mask, const KAttention *a, KDType type);

#endif
