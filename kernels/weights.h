/* kernels/weights.h: where the weights of an attention stand among the random numbers of its dropout.
 *
 * Weight (b,h,t,s) is element ((b*H + h)*T + t)*S + s of x (pre, rows, post) as k_dropout takes it.  A head's weights
 * lie in one row, so all of them share the counter of a sample and have consecutive inner indices.  The code is valid
 * C, C++ and CUDA. */
#ifndef SHARDC_WEIGHTS_H
#define SHARDC_WEIGHTS_H

#include "base/philox.h"

/* The row, counted from the first sample of the micro-batch (0 without samples); the inner index of weight (0,0). */
typedef struct WeightsAt { int64_t row, inner; } WeightsAt;

/* head: b*H + h of `heads` = B*H; rows: 0 = no samples; plane: T*S. */
PHILOX_FN WeightsAt weights_at(int64_t head, int64_t heads, int64_t pre, int64_t rows, int64_t plane)
{
	int64_t samples = rows > 0 ? rows : 1, each = heads / (pre * samples), r = head / each;
	WeightsAt at = {r % samples, (r / samples * each + head % each) * plane};
	return at;
}

#endif
