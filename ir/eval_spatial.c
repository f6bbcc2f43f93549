/* ir/eval_spatial.c: reference of grid_sample, roi_pool and det, with their gradients.
 *
 * Sampling and its two gradients sum over the same triples (pixel, point, weight), so one list of a point's pixels
 * serves all three. */
#include "ir/eval.h"

#include <math.h>
#include <string.h>

/* ---- points of a grid ---- */

typedef enum { NEAREST, LINEAR, CUBIC } Mode;
typedef enum { ZEROS, BORDER, REFLECTION } Padding;
typedef enum { PIXELS, CENTRES, EDGES } Coords;

typedef struct Sampler {
	Mode mode;
	Padding padding;
	Coords coords;
	int rank;
	int64_t n, c, points, plane;
	const int64_t *in;
	const double *grid;
} Sampler;

static Sampler sampler_of(const Op *op, const Type *x, const EvalTensor *grid)
{
	char mode = *attr_get_str(op->attrs, "mode", ""), pad = *attr_get_str(op->attrs, "padding", "");
	char coords = *attr_get_str(op->attrs, "coords", "");
	Sampler s = {.mode = mode == 'n' ? NEAREST : mode == 'l' ? LINEAR : CUBIC,
		.padding = pad == 'z' ? ZEROS : pad == 'b' ? BORDER : REFLECTION,
		.coords = coords == 'p' ? PIXELS : coords == 'c' ? CENTRES : EDGES, .rank = x->rank - 2, .n = x->dim[0],
		.c = x->dim[1], .points = 1, .plane = 1, .in = x->dim + 2, .grid = grid->f};
	for (int i = 0; i < s.rank; i++) {
		s.plane *= s.in[i];
		s.points *= grid->type.dim[1 + i];
	}
	return s;
}

/* Where padding puts position x of a dim of n pixels; the slope is multiplied by what that does to it. */
static double padded(const Sampler *s, double n, double x, double *slope)
{
	double low = s->coords == EDGES ? -0.5 : 0, high = s->coords == EDGES ? n - 0.5 : n - 1;
	if (s->padding == ZEROS)
		return x;
	for (; s->padding == REFLECTION && isfinite(x) && fabs(x) < 1e6 && (x < low || x > high) && high > low;
			*slope = -*slope)
		x = x < low ? 2 * low - x : 2 * high - x;
	if (s->padding == REFLECTION && high <= low)
		x = 0;
	*slope = x > 0 && x < n - 1 ? *slope : 0;
	return isnan(x) ? x : fmin(fmax(x, 0), n - 1);
}

/* The weight of a pixel at distance d from the point and, of cubic ones, its derivative in the point's position. */
static double weight_at(const Sampler *s, double d, double *slope)
{
	static const double a = -0.75;
	double x = fabs(d), sign = d < 0 ? 1 : -1; /* of the derivative of x in the position */
	bool near = x <= 1;
	*slope = s->mode != CUBIC ? 0
		: sign * (near ? 3 * (a + 2) * x * x - 2 * (a + 3) * x : 3 * a * x * x - 10 * a * x + 8 * a);
	if (s->mode != CUBIC)
		return s->mode == NEAREST ? 1 : 1 - x;
	return near ? (a + 2) * pow(x, 3) - (a + 3) * x * x + 1 : a * pow(x, 3) - 5 * a * x * x + 8 * a * x - 4 * a;
}

/* The pixels of one dim. */
typedef struct Taps { int n; double at[4], weight[4], slope[4]; } Taps;

static Taps taps_of(const Sampler *s, int dim, double g)
{
	double n = (double)s->in[dim], none = 1;
	double scale = s->coords == PIXELS ? 1 : s->coords == CENTRES ? (n - 1) / 2 : n / 2;
	double x = s->coords == PIXELS ? g : (g + 1) * scale - (s->coords == EDGES ? 0.5 : 0);
	Taps t = {.n = s->mode == NEAREST ? 1 : s->mode == LINEAR ? 2 : 4};
	if (s->mode != CUBIC)
		x = padded(s, n, x, &scale);
	double first = s->mode == NEAREST ? rint(x) : floor(x) - (s->mode == CUBIC);
	for (int k = 0; k < t.n; k++) {
		t.weight[k] = weight_at(s, first + k - x, &t.slope[k]);
		if (s->mode == LINEAR)
			t.slope[k] = k ? 1 : -1; /* at a kink, that of the cell behind it */
		t.slope[k] *= scale;
		t.at[k] = s->mode == CUBIC ? padded(s, n, first + k, &none) : first + k;
	}
	return t;
}

/* A pixel that a point reads: its offset in the plane, its weight, and the derivatives in the coordinates. */
typedef struct Pixel { int64_t at; double weight, slope[3]; } Pixel;

static int pixels_of(const Sampler *s, int64_t point, Pixel *out)
{
	Taps t[3];
	int64_t count[3];
	int n = 0;
	for (int d = 0; d < s->rank; d++) {
		t[d] = taps_of(s, d, s->grid[point * s->rank + s->rank - 1 - d]);
		count[d] = t[d].n;
	}
	for (Walk w = walk_over(s->rank, count); w.left; walk_next(&w)) {
		Pixel p = {.weight = 1, .slope = {1, 1, 1}};
		bool inside = true;
		for (int d = 0; d < s->rank; d++) {
			double at = t[d].at[w.at[d]];
			inside = inside && at >= 0 && at < (double)s->in[d];
			p.at = inside ? p.at * s->in[d] + (int64_t)at : 0;
			p.weight *= t[d].weight[w.at[d]];
			for (int j = 0; j < s->rank; j++)
				p.slope[j] *= j == s->rank - 1 - d ? t[d].slope[w.at[d]] : t[d].weight[w.at[d]];
		}
		if (inside)
			out[n++] = p;
	}
	return n;
}

/* Runs the statement for every pixel p that a point of a sample reads, and channel: x and y are the offsets of the
 * pixel and of the result. */
#define FOR_PIXELS(s, ...) \
	for (int64_t point = 0; point < (s)->n * (s)->points; point++) { \
		Pixel list[64]; \
		int count = pixels_of((s), point, list); \
		for (int64_t c = point / (s)->points * (s)->c; c < (point / (s)->points + 1) * (s)->c; c++) \
			for (int k = 0; k < count; k++) { \
				const Pixel *p = &list[k]; \
				int64_t x = c * (s)->plane + p->at, y = c * (s)->points + point % (s)->points; \
				__VA_ARGS__ \
			} \
	}

RULE(grid_sample)
{
	Sampler s = sampler_of(op, &in[0]->type, in[1]);
	FOR_PIXELS(&s, out[0]->f[y] += p->weight * in[0]->f[x];)
	return true;
}

RULE(grid_sample_grad_x)
{
	Sampler s = sampler_of(op, &out[0]->type, in[1]);
	FOR_PIXELS(&s, out[0]->f[x] += p->weight * in[0]->f[y];)
	return true;
}

RULE(grid_sample_grad_grid)
{
	Sampler s = sampler_of(op, &in[1]->type, in[2]);
	FOR_PIXELS(&s, for (int j = 0; j < s.rank; j++)
		out[0]->f[point * s.rank + j] += p->slope[j] * in[0]->f[y] * in[1]->f[x];)
	return true;
}

/* ---- boxes ---- */

/* A box and one of its bins; at [0] the vertical, at [1] the horizontal. */
typedef struct Boxes {
	char mode; /* 'a', 'm', 'p' */
	bool half_pixel;
	double scale;
	int64_t ratio, n[2], bins[2];
} Boxes;
typedef struct Bin { double begin, step; int64_t count; } Bin;

static Boxes boxes_of(const Op *op, const Type *x)
{
	const Attr *size = attr_find(op->attrs, "size");
	return (Boxes){*attr_get_str(op->attrs, "mode", ""), attr_get_int(op->attrs, "half_pixel", 0),
		attr_get_float(op->attrs, "scale", 1), attr_get_int(op->attrs, "ratio", 0), {x->dim[2], x->dim[3]},
		{size->ints[0], size->ints[1]}};
}

static bool bin_of(const Boxes *b, const double *box, int dim, int64_t at, Bin *out)
{
	double low = box[1 - dim] * b->scale, high = box[3 - dim] * b->scale, bins = (double)b->bins[dim];
	if (!(fabs(low) <= 1e6 && fabs(high) <= 1e6))
		return false;
	if (b->mode == 'p') {
		double begin = round(low), one = fmax(1, round(high) - begin + 1) / bins, n = (double)b->n[dim];
		double first = fmin(n, fmax(0, floor((double)at * one) + begin));
		double end = fmin(n, fmax(0, ceil((double)(at + 1) * one) + begin));
		*out = (Bin){first, 1, (int64_t)fmax(0, end - first)};
		return true;
	}
	double length = (b->half_pixel ? high - low : fmax(1, high - low)) / bins;
	int64_t count = b->ratio ? b->ratio : (int64_t)fmax(0, ceil(length));
	double step = length / (double)count;
	*out = (Bin){low + length * (double)at + step / 2 - (b->half_pixel ? 0.5 : 0), step, count};
	return true;
}

/* The pixels that position (y, x) is interpolated from, none if it is outside. */
static int around(const Boxes *b, double y, double x, Pixel *out)
{
	double at[2] = {y, x};
	int n = 0;
	for (int d = 0; d < 2; d++) {
		if (at[d] < -1 || at[d] > (double)b->n[d])
			return 0;
		at[d] = fmin(fmax(at[d], 0), (double)b->n[d] - 1);
	}
	for (int k = 0; k < 4; k++) {
		double r = fmin(floor(at[0]) + k / 2, (double)b->n[0] - 1), c = fmin(floor(at[1]) + k % 2, (double)b->n[1] - 1);
		double fy = at[0] - floor(at[0]), fx = at[1] - floor(at[1]);
		out[n++] = (Pixel){.at = (int64_t)r * b->n[1] + (int64_t)c,
			.weight = (k / 2 ? fy : 1 - fy) * (k % 2 ? fx : 1 - fx)};
	}
	return n;
}

/* The value of bin k of a box in a plane of x.  grow: NULL, or the plane of a gradient to which dy is added. */
static double bin_value(const Boxes *b, const double *box, int64_t k, const double *plane, double dy, double *grow)
{
	Bin v, h;
	Pixel p[4], best = {.at = -1};
	double sum = 0, most = 0;
	bool any = false;
	if (!bin_of(b, box, 0, k / b->bins[1], &v) || !bin_of(b, box, 1, k % b->bins[1], &h))
		return NAN;
	double share = (double)MAX(v.count * h.count, 1);
	for (int64_t i = 0; i < v.count * h.count; i++) {
		double y = v.begin + (double)(i / h.count) * v.step, x = h.begin + (double)(i % h.count) * h.step;
		int n = around(b, y, x, p);
		if (b->mode == 'p')
			p[0].weight = 1, n = 1;
		for (int j = 0; j < MAX(n, 1); j++) {
			Pixel one = n ? p[j] : (Pixel){.at = -1};
			double part = n ? one.weight * plane[one.at] : 0;
			sum += part;
			best = !any || part > most ? one : best;
			most = !any || part > most ? part : most;
			any = true;
			if (grow && b->mode == 'a' && n)
				grow[one.at] += dy * one.weight / share;
		}
	}
	if (grow && b->mode != 'a' && best.at >= 0)
		grow[best.at] += dy * best.weight;
	return b->mode == 'a' ? sum / share : most;
}

/* Values of all bins, or (grow) the gradient of x. */
static bool each_bin(const Op *op, const EvalTensor *x, const EvalTensor *rois, const EvalTensor *ids, EvalTensor *y,
	EvalTensor *grow)
{
	Boxes b = boxes_of(op, &x->type);
	int64_t channels = x->type.dim[1], plane = b.n[0] * b.n[1], bins = b.bins[0] * b.bins[1];
	for (int64_t k = 0; k < type_numel(&y->type); k++) {
		int64_t roi = k / bins / channels, image = ids->i[roi];
		image += image < 0 ? x->type.dim[0] : 0;
		if (image < 0 || image >= x->type.dim[0])
			return false;
		int64_t at = (image * channels + k / bins % channels) * plane;
		double v = bin_value(&b, rois->f + roi * 4, k % bins, x->f + at, grow ? y->f[k] : 0,
			grow ? grow->f + at : NULL);
		if (!grow)
			y->f[k] = v;
	}
	return true;
}

RULE(roi_pool)
{
	return each_bin(op, in[0], in[1], in[2], out[0], NULL);
}

RULE(roi_pool_grad)
{
	return each_bin(op, in[1], in[2], in[3], in[0], out[0]);
}

/* ---- determinants ---- */

enum { DET_MAX = 32 };

/* The determinant of x (n, n) without one row and column (-1: with all), by elimination with the largest pivots. */
static double determinant(const double *x, int64_t n, int64_t row, int64_t column)
{
	double a[DET_MAX][DET_MAX], det = 1;
	int64_t m = n - (row >= 0);
	for (int64_t i = 0; i < m; i++)
		for (int64_t j = 0; j < m; j++)
			a[i][j] = x[(i + (row >= 0 && i >= row)) * n + j + (column >= 0 && j >= column)];
	for (int64_t c = 0; c < m; c++) {
		int64_t p = c, q = c;
		for (int64_t i = c; i < m; i++)
			for (int64_t j = c; j < m; j++)
				if (fabs(a[i][j]) > fabs(a[p][q]))
					p = i, q = j;
		det *= a[p][q] * (p != c ? -1 : 1) * (q != c ? -1 : 1);
		if (a[p][q] == 0)
			return det;
		for (int64_t k = 0; k < m; k++) {
			double v = a[p][k];
			a[p][k] = a[c][k], a[c][k] = v;
		}
		for (int64_t k = 0; k < m; k++) {
			double v = a[k][q];
			a[k][q] = a[k][c], a[k][c] = v;
		}
		for (int64_t i = c + 1; i < m; i++)
			for (int64_t k = m - 1; k >= c; k--)
				a[i][k] -= a[i][c] / a[c][c] * a[c][k];
	}
	return det;
}

RULE(det)
{
	int64_t n = in[0]->type.dim[in[0]->type.rank - 1];
	for (int64_t k = 0; k < type_numel(&out[0]->type); k++)
		out[0]->f[k] = determinant(in[0]->f + k * n * n, n, -1, -1);
	return true;
}

RULE(det_grad)
{
	int64_t n = out[0]->type.dim[out[0]->type.rank - 1];
	for (int64_t k = 0; k < type_numel(&out[0]->type); k++) {
		int64_t row = k / n % n, column = k % n;
		double minor = determinant(in[1]->f + k / (n * n) * n * n, n, row, column);
		out[0]->f[k] = in[0]->f[k / (n * n)] * ((row + column) % 2 ? -minor : minor);
	}
	return true;
}
