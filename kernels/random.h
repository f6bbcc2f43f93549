/* kernels/random.h: random numbers of an element from a block of Philox (base/philox.h), the same on the CPU and on
 * CUDA up to the rounding of f32 functions.
 *
 * Uniform: the top 24 bits of the element's word, so every number is exact in f32, and 1 is never drawn.  16-bit types
 * have their 11 or 8 top bits, for the same reason.
 * Normal: Box and Muller, "A note on the generation of random normal deviates" (1958).  Words 0 and 1 of a block make
 * the first two of its four numbers, words 2 and 3 the other two.  The radius comes from all 32 bits, (w + 1/2) / 2^32
 * rounded to f32, so that tails reach 6.76 deviations; the angle comes from 24 bits, exact in f32. */
#ifndef SHARDC_KERNELS_RANDOM_H
#define SHARDC_KERNELS_RANDOM_H

#include "base/philox.h"
#include "kernels/ew.h"

EW float random_unit(uint32_t w, int bits)
{
	return (float)(w >> (32 - bits)) * ew_float((uint32_t)(127 - bits) << 23);
}

/* (w + 1/2) / 2^32, rounded once. */
EW float random_open(uint32_t w) { return (float)(((double)w + 0.5) * 0x1p-32); }

/* Both numbers that words u and v make.  The angle of v is q quarter turns and a rest of at most 1/2 quarter. */
EW void random_normal_f32(uint32_t u, uint32_t v, float *x, float *y)
{
	float r = sqrtf(-2.0f * ew_log_f32(random_open(u)));
	int32_t turn = (int32_t)(v >> 8), q = (turn + (1 << 21)) >> 22;
	float a = (float)(turn - (q << 22)) * 3.74507028e-07f, s = a * a; /* pi/2 / 2^22 */
	float p = 2.71686918e-06f;
	p = EW_FMA(p, s, -0.000198391819f);
	p = EW_FMA(p, s, 0.00833332911f);
	p = EW_FMA(p, s, -0.166666672f);
	float sine = EW_FMA(p * s, a, a);
	float c = 2.44251787e-05f;
	c = EW_FMA(c, s, -0.00138872559f);
	c = EW_FMA(c, s, 0.0416666456f);
	float cosine = EW_FMA(c * s, s, EW_FMA(s, -0.5f, 1.0f));
	float cx = q & 1 ? sine : cosine, sx = q & 1 ? cosine : sine;
	*x = r * ((q + 1) & 2 ? -cx : cx);
	*y = r * (q & 2 ? -sx : sx);
}

EW void random_normal_f64(uint32_t u, uint32_t v, double *x, double *y)
{
	double r = sqrt(-2 * log((double)random_open(u))), a = (double)(v >> 8) * (6.283185307179586477 * 0x1p-24);
	*x = r * cos(a);
	*y = r * sin(a);
}

#endif
