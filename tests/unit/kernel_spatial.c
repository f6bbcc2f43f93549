/* tests/unit/kernel_spatial.c: sampling at points and in boxes, and determinants, against plain formulas. */
#include "tests/unit/kernel_cases.h"

/* A point as pixel coordinate of a dim of n: what padding makes of it. */
static double placed(const KSample *s, double g, double n)
{
	double low = s->coords == K_COORDS_EDGES ? -0.5 : 0, high = n - 1 - low;
	double x = s->coords == K_COORDS_PIXELS ? g : s->coords == K_COORDS_EDGES ? ((g + 1) * n - 1) / 2
		: (g + 1) / 2 * (n - 1);
	if (s->outside == K_OUTSIDE_ZEROS)
		return x;
	while (s->outside == K_OUTSIDE_REFLECTION && (x < low || x > high))
		x = x < low ? 2 * low - x : 2 * high - x;
	return fmin(fmax(x, 0), n - 1);
}

/* The weight of pixel (i, j) for a point at (y, x): of tents of width 1, or of the nearest pixel. */
static double weight(const KSample *s, double y, double x, double i, double j)
{
	if (s->mode == K_NEAREST)
		return rint(y) == i && rint(x) == j;
	return fmax(0, 1 - fabs(y - i)) * fmax(0, 1 - fabs(x - j));
}

typedef struct Sampled { KSample s; float *x, *grid, *dy; double *y, *dx, *dgrid; } Sampled;

/* Sums over all pixels; the gradient in the grid is a difference of values. */
static Sampled sampled(int mode, int outside, int coords)
{
	Sampled c = {.s = {.rank = 2, .n = 2, .c = 19, .points = 67, .in = {5, 6}, .mode = mode, .outside = outside,
		.coords = coords}};
	int64_t plane = 30, points = c.s.n * c.s.points;
	double scale = coords == K_COORDS_PIXELS ? 3 : 1;
	c.x = case_floats(c.s.n * c.s.c * plane, -1, 1);
	c.grid = case_floats(points * 2, -1.7 * scale, 1.7 * scale);
	c.dy = case_floats(points * c.s.c, -1, 1);
	c.y = case_doubles(points * c.s.c);
	c.dx = case_doubles(c.s.n * c.s.c * plane);
	c.dgrid = case_doubles(points * 2);
	for (int64_t p = 0; p < points; p++) {
		double gx = c.grid[2 * p], gy = c.grid[2 * p + 1], e = 1e-7;
		double at[5][2] = {{gy, gx}, {gy, gx + e}, {gy, gx - e}, {gy + e, gx}, {gy - e, gx}};
		for (int k = 0; k < 5; k++)
			for (int d = 0; d < 2; d++)
				at[k][d] = placed(&c.s, at[k][d], (double)c.s.in[d]);
		for (int64_t ch = p / c.s.points * c.s.c; ch < (p / c.s.points + 1) * c.s.c; ch++)
			for (int64_t i = 0; i < plane; i++) {
				double w[5], dy = c.dy[ch * c.s.points + p % c.s.points], x = c.x[ch * plane + i];
				for (int k = 0; k < 5; k++)
					w[k] = weight(&c.s, at[k][0], at[k][1], (double)(i / 6), (double)(i % 6));
				c.y[ch * c.s.points + p % c.s.points] += w[0] * x;
				c.dx[ch * plane + i] += w[0] * dy;
				c.dgrid[2 * p] += (w[1] - w[2]) / (2 * e) * x * dy;
				c.dgrid[2 * p + 1] += (w[3] - w[4]) / (2 * e) * x * dy;
			}
	}
	return c;
}

#define FOR_SAMPLES(...) \
	for (int k = 0; k < 18; k++) { \
		Sampled c = sampled(k % 2 ? K_LINEAR : K_NEAREST, k / 2 % 3, k / 6); \
		int64_t plane = 30; \
		if (c.s.coords == K_COORDS_PIXELS && c.s.outside == K_OUTSIDE_REFLECTION) \
			continue; \
		(void)plane; \
		__VA_ARGS__ \
	}

void case_grid_sample(void)
{
	FOR_SAMPLES({
		int64_t n = c.s.n * c.s.c * c.s.points;
		float *y = case_alloc(n * 4);
		CASE_SAME_BITS("grid_sample", y, n * 4, k_grid_sample_f32(y, c.x, c.grid, &c.s));
		case_close("grid_sample", y, c.y, n, 1e-5);
	})
}

void case_grid_sample_grad_x(void)
{
	FOR_SAMPLES({
		int64_t n = c.s.n * c.s.c * plane;
		float *dx = case_alloc(n * 4);
		int64_t dim[] = {n};
		void *work = case_work("grid_sample_grad_x", (KWorkArgs){.out = {{1, dim, 4}}});
		CASE_SAME_BITS("grid_sample_grad_x", dx, n * 4, k_grid_sample_grad_x_f32(dx, c.dy, c.grid, &c.s, work));
		case_close("grid_sample_grad_x", dx, c.dx, n, 1e-5);
	})
}

void case_grid_sample_grad_grid(void)
{
	FOR_SAMPLES({
		int64_t n = c.s.n * c.s.points * 2;
		float *dgrid = case_alloc(n * 4);
		CASE_SAME_BITS("grid_sample_grad_grid", dgrid, n * 4,
			k_grid_sample_grad_grid_f32(dgrid, c.dy, c.x, c.grid, &c.s));
		case_close("grid_sample_grad_grid", dgrid, c.dgrid, n, 1e-5);
	})
}

/* ---- boxes: whole pixels, whose means and maxima are known ---- */

/* Box r covers 4 x 4 pixels from (r % 3, r % 2) of image 1 - r % 2, and each bin 2 x 2 of them. */
typedef struct Boxes { KRoi r; float *x, *rois, *dy; int64_t *ids; double *y, *dx; } Boxes;

static Boxes boxes(int mode)
{
	Boxes b = {.r = {.n = 2, .c = 3, .h = 7, .w = 8, .rois = 40, .ph = 2, .pw = 2,
		.ratio = mode == K_ROI_PIXELS ? 0 : 2, .scale = 0.5, .half_pixel = true, .mode = mode}};
	b.x = case_floats(2 * 3 * 56, 1, 2);
	b.rois = case_alloc(40 * 4 * 4);
	b.dy = case_floats(40 * 12, -1, 1);
	b.ids = case_alloc(40 * 8);
	b.y = case_doubles(40 * 12);
	b.dx = case_doubles(2 * 3 * 56);
	for (int64_t t = 0; t < 40 * 12; t++) {
		int64_t r = t / 12, c = t / 4 % 3, top = r % 3 + t / 2 % 2 * 2, left = r % 2 + t % 2 * 2, best = -1;
		double end = mode == K_ROI_PIXELS ? 6 : 8; /* a box of whole pixels names its last one */
		int64_t plane = ((1 - r % 2) * 3 + c) * 56;
		float box[4] = {(float)(r % 2 * 2), (float)(r % 3 * 2), (float)(r % 2 * 2 + end), (float)(r % 3 * 2 + end)};
		memcpy(b.rois + r * 4, box, sizeof box);
		b.ids[r] = 1 - r % 2;
		for (int64_t k = 0; k < 4; k++) {
			int64_t at = plane + (top + k / 2) * 8 + left + k % 2;
			best = best < 0 || b.x[at] > b.x[best] ? at : best;
			b.y[t] += mode == K_ROI_AVG ? b.x[at] / 4.0 : 0;
			b.dx[at] += mode == K_ROI_AVG ? b.dy[t] / 4.0 : 0;
		}
		b.y[t] += mode == K_ROI_AVG ? 0 : (double)b.x[best];
		b.dx[best] += mode == K_ROI_AVG ? 0 : (double)b.dy[t];
	}
	return b;
}

void case_roi_pool(void)
{
	for (int mode = K_ROI_AVG; mode <= K_ROI_PIXELS; mode++) {
		Boxes b = boxes(mode);
		float *y = case_alloc(40 * 12 * 4);
		CASE_SAME_BITS("roi_pool", y, 40 * 12 * 4, k_roi_pool_f32(y, b.x, b.rois, b.ids, &b.r));
		case_close("roi_pool", y, b.y, 40 * 12, 1e-6);
	}
	Boxes b = boxes(K_ROI_AVG);
	float *y = case_alloc(40 * 12 * 4);
	b.ids[7] = 2;
	b.rois[4] = INFINITY;
	k_roi_pool_f32(y, b.x, b.rois, b.ids, &b.r);
	case_sync();
	case_true(case_bad_inputs() > 0, "roi_pool: an image out of range is bad input");
	case_true(isnan(y[12]) && !isnan(y[0]), "roi_pool: a box without an end is not a number");
}

void case_roi_pool_grad(void)
{
	for (int mode = K_ROI_AVG; mode <= K_ROI_PIXELS; mode++) {
		Boxes b = boxes(mode);
		float *dx = case_alloc(2 * 3 * 56 * 4);
		int64_t dim[] = {2 * 3 * 56};
		void *work = case_work("roi_pool_grad", (KWorkArgs){.out = {{1, dim, 4}}});
		CASE_SAME_BITS("roi_pool_grad", dx, 2 * 3 * 56 * 4,
			k_roi_pool_grad_f32(dx, b.dy, b.x, b.rois, b.ids, &b.r, work));
		case_close("roi_pool_grad", dx, b.dx, 2 * 3 * 56, 1e-6);
	}
}

/* ---- determinants: of triangles whose rows are turned ---- */

enum { MATRICES = 50 };

/* Matrices whose first k rows are multiples of each other have rank n - k + 1. */
static double *matrices(int64_t n, double *det)
{
	double *x = case_doubles(MATRICES * n * n);
	for (int64_t m = 0; m < MATRICES; m++) {
		det[m] = (n / 2) % 2 ? -1 : 1;
		for (int64_t i = 0; i < n; i++)
			for (int64_t j = i; j < n; j++)
				x[(m * n + n - 1 - i) * n + j] = (double)(case_random(9) + 1) / 4;
		for (int64_t i = 0; i < n; i++)
			det[m] *= x[(m * n + n - 1 - i) * n + i];
	}
	return x;
}

void case_det(void)
{
	for (int64_t n = 0; n <= 32; n += n < 4 ? 1 : 14) {
		double *want = case_doubles(MATRICES), *x = matrices(n, want), *y = case_alloc(MATRICES * 8);
		int64_t dim[] = {MATRICES * n * n};
		void *work = case_work("det", (KWorkArgs){.in = {{1, dim, 8}}});
		CASE_SAME_BITS("det", y, MATRICES * 8, k_det_f64(y, x, MATRICES, n, work));
		case_close64("det", y, want, MATRICES, 1e-9);
	}
}

/* The determinant of the rows from `row` on, of the columns that are not in `taken`, by its expansion. */
static double expanded(const double *x, int64_t n, int64_t row, unsigned taken)
{
	double sum = row == n, sign = 1;
	for (int64_t j = 0; j < n && row < n; j++) {
		if (taken >> j & 1)
			continue;
		sum += sign * x[row * n + j] * expanded(x, n, row + 1, taken | 1u << j);
		sign = -sign;
	}
	return sum;
}

void case_det_grad(void)
{
	for (int64_t n = 1; n <= 6; n++) {
		double *det = case_doubles(MATRICES), *x = matrices(n, det), *dx = case_alloc(MATRICES * n * n * 8);
		double *dy = case_doubles(MATRICES), *want = case_doubles(MATRICES * n * n);
		int64_t dim[] = {MATRICES * n * n};
		void *work = case_work("det_grad", (KWorkArgs){.out = {{1, dim, 8}}});
		for (int64_t m = 0; m < MATRICES; m++) {
			dy[m] = m % 5 - 2;
			if (m % 3 == 0 && n > 1) /* singular: the second row is the first one doubled */
				for (int64_t j = 0; j < n; j++)
					x[(m * n + 1) * n + j] = 2 * x[m * n * n + j];
			double *one = x + m * n * n, before = expanded(one, n, 0, 0);
			for (int64_t k = 0; k < n * n; k++) { /* a determinant is linear in each element */
				one[k] += 1;
				want[m * n * n + k] = dy[m] * (expanded(one, n, 0, 0) - before);
				one[k] -= 1;
			}
		}
		k_det_grad_f64(dx, dy, x, MATRICES, n, work);
		case_close64("det_grad", dx, want, MATRICES * n * n, 1e-9);
	}
}
