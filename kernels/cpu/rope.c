/* kernels/cpu/rope.c: rotary position embedding.  Each pair of a head's first R dims turns by the angle of
 * its position; inverse turns back, which is the adjoint.  Safe in place: a pair is read before written. */
#include "kernels/cpu/common.h"

static void rope_row(float *y, const float *x, const float *cs, const float *sn, const KRope *r)
{
	int64_t half = r->r / 2;
	float sign = r->inverse ? -1.0f : 1.0f;
	if (r->interleaved)
		for (int64_t i = 0; i < half; i++) {
			float a = x[2 * i], b = x[2 * i + 1], s = sign * sn[i];
			y[2 * i] = a * cs[i] - b * s;
			y[2 * i + 1] = b * cs[i] + a * s;
		}
	else
		for (int64_t i = 0; i < half; i++) {
			float a = x[i], b = x[half + i], s = sign * sn[i];
			y[i] = a * cs[i] - b * s;
			y[half + i] = b * cs[i] + a * s;
		}
	for (int64_t i = r->r; i < r->d; i++)
		y[i] = x[i];
}

void k_rope_f32(float *y, const float *x, const float *cos, const float *sin, const KRope *r)
{
	int64_t rows = r->b * r->h * r->t, half = r->r / 2;
	#pragma omp parallel for schedule(static) if (rows * r->d > PARALLEL_MIN)
	for (int64_t i = 0; i < rows; i++) {
		int64_t t = r->layout ? i / r->h % r->t : i % r->t, b = i / (r->h * r->t);
		int64_t at = ((r->cos_batched ? b * r->t : 0) + t) * half;
		rope_row(y + i * r->d, x + i * r->d, cos + at, sin + at, r);
	}
}
