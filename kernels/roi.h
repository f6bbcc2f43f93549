/* kernels/roi.h: the bins of roi_pool for elements of type T, for kernels of both targets; they include it once per
 * type.  A bin of one channel is a function of that channel's plane of h x w.  ROI_ADD(sum, v) adds the f64 v to *sum
 * of type ROI_SUM. */
#ifndef SHARDC_KERNELS_ROI_H
#define SHARDC_KERNELS_ROI_H

#include <math.h>

#include "kernels/dims.h"

/* Boxes along one dim: where a bin begins, its size, how many points it has, and how many pixels the plane has. */
typedef struct KBin { double begin, size; int64_t points, n; } KBin;

/* Bin `at` of `bins` between the box's ends.  False where the box is not finite or too large. */
DIMS bool roi_bin(const KRoi *r, double first, double last, int64_t at, int64_t bins, int64_t n, KBin *b)
{
	double begin = first * r->scale, end = last * r->scale;
	if (!(fabs(begin) <= 1e6) || !(fabs(end) <= 1e6))
		return false;
	if (r->mode == K_ROI_PIXELS) {
		begin = round(begin);
		double size = fmax(round(end) - begin + 1, 1.0) / (double)bins;
		double low = fmin(fmax(begin + floor((double)at * size), 0.0), (double)n);
		double high = fmin(fmax(begin + ceil((double)(at + 1) * size), 0.0), (double)n);
		KBin pixels = {low, 1, high > low ? (int64_t)(high - low) : 0, n};
		*b = pixels;
		return true;
	}
	double size = r->half_pixel ? end - begin : fmax(end - begin, 1.0), bin = size / (double)bins;
	int64_t points = r->ratio > 0 ? r->ratio : (int64_t)fmax(ceil(bin), 0.0);
	KBin whole = {begin - (r->half_pixel ? 0.5 : 0) + (double)at * bin, bin, points, n};
	*b = whole;
	return true;
}

/* The two pixels around point i of a bin, and the weight of the second; at[0] is -1 where the point is outside. */
DIMS double roi_point(const KBin *b, int64_t i, int64_t *at)
{
	double x = b->begin + ((double)i + 0.5) * b->size / (double)b->points;
	at[0] = at[1] = -1;
	if (x < -1 || x > (double)b->n)
		return 0;
	x = fmax(x, 0.0);
	at[0] = (int64_t)x;
	if (at[0] >= b->n - 1) {
		at[0] = at[1] = b->n - 1;
		return 0;
	}
	at[1] = at[0] + 1;
	return x - (double)at[0];
}

/* The four pixels of a point, as offsets in the plane, and their weights; false: it is outside. */
DIMS bool roi_corners(const KBin *b, int64_t i, int64_t j, int64_t *at, double *weight)
{
	int64_t y[2], x[2];
	double wy = roi_point(&b[0], i, y), wx = roi_point(&b[1], j, x);
	if (y[0] < 0 || x[0] < 0)
		return false;
	for (int k = 0; k < 4; k++) {
		at[k] = y[k / 2] * b[1].n + x[k % 2];
		weight[k] = (k / 2 ? wy : 1 - wy) * (k % 2 ? wx : 1 - wx);
	}
	return true;
}

/* Both dims of bin (i, j) of a box. */
DIMS bool roi_bins(const KRoi *r, const double *box, int64_t bin, KBin *b)
{
	return roi_bin(r, box[1], box[3], bin / r->pw, r->ph, r->h, &b[0])
		&& roi_bin(r, box[0], box[2], bin % r->pw, r->pw, r->w, &b[1]);
}

/* For the means: what the sum over points is divided by. */
DIMS double roi_count(const KBin *b)
{
	int64_t n = b[0].points * b[1].points;
	return n > 0 ? (double)n : 1;
}

#endif

/* The largest candidate of a bin: a pixel, or a weighted pixel of a point.  *best: its pixel, -1 if there is none;
 * *scale: its weight.  The first of equals. */
DIMS double CONCAT(roi_largest, SUFFIX)(const KRoi *r, const KBin *b, const T *plane, int64_t *best, double *scale)
{
	double largest = 0;
	bool any = false;
	*best = -1;
	*scale = 0;
	for (int64_t i = 0; i < b[0].points; i++)
		for (int64_t j = 0; j < b[1].points; j++) {
			int64_t at[4] = {((int64_t)b[0].begin + i) * r->w + (int64_t)b[1].begin + j};
			double weight[4] = {1};
			bool inside = r->mode == K_ROI_PIXELS || roi_corners(b, i, j, at, weight);
			for (int k = 0; k < (r->mode == K_ROI_PIXELS || !inside ? 1 : 4); k++) {
				double v = inside ? weight[k] * (double)plane[at[k]] : 0;
				if (any && !(v > largest))
					continue;
				any = true;
				largest = v;
				*best = inside ? at[k] : -1;
				*scale = weight[k];
			}
		}
	return largest;
}

/* The value of one bin of one channel. */
DIMS double CONCAT(roi_value, SUFFIX)(const KRoi *r, const double *box, int64_t bin, const T *plane)
{
	KBin b[2];
	int64_t at[4];
	double weight[4], sum = 0;
	if (!roi_bins(r, box, bin, b))
		return (double)NAN;
	if (r->mode != K_ROI_AVG)
		return CONCAT(roi_largest, SUFFIX)(r, b, plane, at, weight);
	for (int64_t i = 0; i < b[0].points; i++)
		for (int64_t j = 0; j < b[1].points; j++)
			if (roi_corners(b, i, j, at, weight))
				for (int k = 0; k < 4; k++)
					sum += weight[k] * (double)plane[at[k]];
	return sum / roi_count(b);
}

/* Adds to dx what dy, the gradient of a bin of one channel, gives to the channel's plane. */
DIMS void CONCAT(roi_spread, SUFFIX)(const KRoi *r, const double *box, int64_t bin, double dy, const T *plane,
	ROI_SUM *dx)
{
	KBin b[2];
	int64_t at[4];
	double weight[4];
	if (!roi_bins(r, box, bin, b))
		return;
	if (r->mode != K_ROI_AVG) {
		CONCAT(roi_largest, SUFFIX)(r, b, plane, at, weight);
		if (at[0] >= 0)
			ROI_ADD(&dx[at[0]], dy * weight[0]);
		return;
	}
	dy /= roi_count(b);
	for (int64_t i = 0; i < b[0].points; i++)
		for (int64_t j = 0; j < b[1].points; j++)
			if (roi_corners(b, i, j, at, weight))
				for (int k = 0; k < 4; k++)
					ROI_ADD(&dx[at[k]], dy * weight[k]);
}
#undef T
#undef SUFFIX
