/* kernels/sample.h: which pixels a point of grid_sample reads, and by which weights, for kernels of both targets.
 *
 * Positions and weights are f64 for all element types, so both targets read the same pixels. */
#ifndef SHARDC_KERNELS_SAMPLE_H
#define SHARDC_KERNELS_SAMPLE_H

#include <math.h>

#include "kernels/dims.h"

enum { K_TAPS_MAX = 64 }; /* 4 in each of 3 dims */

/* What a point reads along one dim.  at: -1 outside; slope: the derivative of the weight in the grid's coordinate. */
typedef struct KTaps { int n; int64_t at[4]; double weight[4], slope[4]; } KTaps;

/* The pixel coordinate of coordinate g, and its derivative. */
DIMS double sample_unnormalise(const KSample *s, int64_t n, double g, double *slope)
{
	if (s->coords == K_COORDS_PIXELS) {
		*slope = 1;
		return g;
	}
	*slope = (double)(s->coords == K_COORDS_CENTRES ? n - 1 : n) / 2;
	return s->coords == K_COORDS_CENTRES ? (g + 1) / 2 * (double)(n - 1) : ((g + 1) * (double)n - 1) / 2;
}

/* Reflects x at the outer centres, or at the edges of the outer pixels. */
DIMS double sample_reflect(const KSample *s, int64_t n, double x, double *slope)
{
	double low = s->coords == K_COORDS_EDGES ? -0.5 : 0, span = (double)n - (s->coords == K_COORDS_EDGES ? 0 : 1);
	if (span <= 0) {
		*slope = 0;
		return 0;
	}
	double from = fabs(x - low), rest = fmod(from, span);
	bool odd = fmod(floor(from / span), 2.0) != 0;
	*slope *= (x < low) != odd ? -1 : 1;
	return odd ? span - rest + low : rest + low;
}

/* x with what padding does to it, never far outside; a position that is no number is outside. */
DIMS double sample_pad(const KSample *s, int64_t n, double x, double *slope)
{
	if (s->outside == K_OUTSIDE_REFLECTION)
		x = sample_reflect(s, n, x, slope);
	if (s->outside != K_OUTSIDE_ZEROS && x <= 0)
		*slope = 0, x = 0;
	if (s->outside != K_OUTSIDE_ZEROS && x >= (double)(n - 1))
		*slope = 0, x = (double)(n - 1);
	return fabs(x) < 1e15 ? x : -100;
}

/* The pixel at a whole position; -1: it is outside. */
DIMS int64_t sample_pixel(int64_t n, double x)
{
	return x >= 0 && x <= (double)(n - 1) ? (int64_t)x : -1;
}

/* The cubic kernel at distance d, and its derivative. */
DIMS double sample_cubic(double d, double *slope)
{
	const double a = -0.75;
	double x = fabs(d), sign = d < 0 ? -1 : 1;
	if (x <= 1) {
		*slope = sign * (3 * (a + 2) * x - 2 * (a + 3)) * x;
		return ((a + 2) * x - (a + 3)) * x * x + 1;
	}
	*slope = sign * ((3 * a * x - 10 * a) * x + 8 * a);
	return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}

/* Padding moves each pixel that a cubic kernel reads, not the position. */
DIMS void sample_cubic_taps(const KSample *s, int64_t n, double x, double slope, KTaps *t)
{
	double first = fabs(x) < 1e15 ? floor(x) - 1 : -100, unused = 1;
	x = fabs(x) < 1e15 ? x : -100;
	t->n = 4;
	for (int k = 0; k < 4; k++) {
		t->weight[k] = sample_cubic(x - (first + k), &t->slope[k]);
		t->slope[k] *= slope;
		t->at[k] = sample_pixel(n, sample_pad(s, n, first + k, &unused));
	}
}

DIMS void sample_taps(const KSample *s, int64_t n, double g, KTaps *t)
{
	double slope, x = sample_unnormalise(s, n, g, &slope);
	if (s->mode == K_CUBIC) {
		sample_cubic_taps(s, n, x, slope, t);
		return;
	}
	x = sample_pad(s, n, x, &slope);
	if (s->mode == K_NEAREST) {
		t->n = 1;
		t->at[0] = sample_pixel(n, rint(x));
		t->weight[0] = 1;
		t->slope[0] = 0;
		return;
	}
	double first = floor(x);
	t->n = 2;
	for (int k = 0; k < 2; k++) {
		t->at[k] = sample_pixel(n, first + k);
		t->weight[k] = k ? x - first : 1 - (x - first);
		t->slope[k] = k ? slope : -slope;
	}
}

/* The pixels of each dim that a point reads; g: its coordinates.  Returns the number of combinations of them. */
DIMS int sample_read(const KSample *s, const double *g, KTaps *t)
{
	int total = 1;
	for (int d = 0; d < s->rank; d++) {
		sample_taps(s, s->in[d], g[s->rank - 1 - d], &t[d]);
		total *= t[d].n;
	}
	return total;
}

/* Combination k: its offset in a plane and its weight; false: it lies outside.  slope: NULL, or the derivatives of the
 * weight in the coordinates of the point, in the grid's order. */
DIMS bool sample_tap(const KSample *s, const KTaps *t, int k, int64_t *at, double *weight, double *slope)
{
	bool inside = true;
	*at = 0;
	*weight = 1;
	for (int j = 0; slope && j < s->rank; j++)
		slope[j] = 1;
	for (int d = 0; d < s->rank; k /= t[d++].n) {
		int i = k % t[d].n;
		inside = inside && t[d].at[i] >= 0;
		*at = *at * s->in[d] + t[d].at[i];
		*weight *= t[d].weight[i];
		for (int j = 0; slope && j < s->rank; j++)
			slope[j] *= s->rank - 1 - j == d ? t[d].slope[i] : t[d].weight[i];
	}
	return inside;
}

#endif
