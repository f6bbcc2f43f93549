/* frontend/onnx_sinusoid.c: detects tables of sines and cosines of positions.
 *
 * The order of columns, the base and the offset are not assumed.  Each column of such a table obeys x[p+1] + x[p-1] = k
 * x[p] + c for one k and one c, whatever its frequency, phase, scale and shift; numbers that were trained or drawn do
 * not.  In a table of positions in a plane the recurrence breaks at the ends of rows; there each sine must have its
 * cosine beside it, half a row or a quarter of a row away, with squares that sum to 1.  Rows of zeros (padding, a class
 * token) are skipped.  At most 256 rows and 64 columns are read. */
#include "frontend/onnx_params.h"

#include <math.h>

enum { ROWS_MAX = 256, COLUMNS_MAX = 64, ROWS_MIN = 6, COLUMNS_MIN = 4 };

typedef struct Table {
	HostTensor h;
	int64_t rows, cols;
	bool *zero;          /* by row: all its elements are 0 */
} Table;

static double at(const Table *t, int64_t row, int64_t col)
{
	return host_get_float(&t->h, row * t->cols + col);
}

static bool read_table(Import *im, const Weight *w, Table *t)
{
	const Type *type = &w->type;
	for (int i = 0; i + 2 < type->rank; i++)
		if (type->dim[i] != 1)
			return false;
	if (type->rank < 2)
		return false;
	t->rows = MIN(type->dim[type->rank - 2], (int64_t)ROWS_MAX);
	t->cols = type->dim[type->rank - 1];
	if (t->rows < ROWS_MIN || t->cols < COLUMNS_MIN || !weight_values(im, w, &t->h))
		return false;
	t->zero = NEW_N(im->arena, bool, t->rows);
	for (int64_t r = 0; r < t->rows; r++) {
		t->zero[r] = true;
		for (int64_t c = 0; t->zero[r] && c < t->cols; c++)
			t->zero[r] = at(t, r, c) == 0;
	}
	return true;
}

/* The least squares fit of k and c in y = k x + c: x is an element of a column and y the sum of its two neighbours. */
typedef struct Fit { double n, sx, sy, sxx, sxy, most, det, k, c; } Fit;

/* The r-th row's x and y; false if it or a row beside it is a row of zeros. */
static bool sample(const Table *t, int64_t r, int64_t col, double *x, double *y)
{
	if (t->zero[r - 1] || t->zero[r] || t->zero[r + 1])
		return false;
	*x = at(t, r, col);
	*y = at(t, r - 1, col) + at(t, r + 1, col);
	return true;
}

static Fit fit_column(const Table *t, int64_t col)
{
	Fit f = {0};
	double x, y;
	for (int64_t r = 1; r + 1 < t->rows; r++) {
		if (!sample(t, r, col, &x, &y))
			continue;
		f.n++;
		f.sx += x;
		f.sy += y;
		f.sxx += x * x;
		f.sxy += x * y;
		f.most = fmax(f.most, fabs(x));
	}
	f.det = f.n * f.sxx - f.sx * f.sx;
	f.k = f.det > 1e-12 * f.n * f.sxx ? (f.n * f.sxy - f.sx * f.sy) / f.det : 0;
	f.c = f.n > 0 ? (f.sy - f.k * f.sx) / f.n : 0;
	return f;
}

/* Whether the column obeys the recurrence.  *turns is set when it oscillates and is not a ramp. */
static bool column_recurs(const Table *t, int64_t col, bool *turns)
{
	Fit f = fit_column(t, col);
	double x, y;
	for (int64_t r = 1; r + 1 < t->rows; r++)
		if (sample(t, r, col, &x, &y) && !(fabs(y - f.k * x - f.c) <= 2e-3 * (f.most + 1e-30)))
			return false;
	*turns = *turns || (f.k < 1.9 && f.det > 1e-6 * f.n * f.sxx);
	return f.n >= ROWS_MIN - 2;
}

static bool all_columns_recur(const Table *t)
{
	bool turns = false;
	int64_t step = MAX(t->cols / COLUMNS_MAX, 1);
	for (int64_t c = 0; c < t->cols; c += step)
		if (!column_recurs(t, c, &turns))
			return false;
	return turns;
}

/* Whether, in spans of 2 * apart columns, each sine has its cosine `apart` columns behind it. */
static bool pairs_are_units(const Table *t, int64_t apart)
{
	bool varied = false;
	int64_t used = 0;
	if (apart < 1 || t->cols % (2 * apart))
		return false;
	int64_t step = MAX(t->cols / COLUMNS_MAX, 1);
	for (int64_t r = 0; r < t->rows; r++) {
		for (int64_t c = 0; !t->zero[r] && c < t->cols; c += step) {
			int64_t first = c - (c / apart % 2) * apart;
			double x = at(t, r, first), y = at(t, r, first + apart);
			if (!(fabs(x * x + y * y - 1) < 2e-3))
				return false;
			varied = varied || (fabs(x) > 0.01 && fabs(y) > 0.01);
		}
		used += !t->zero[r];
	}
	return varied && used >= ROWS_MIN;
}

bool weight_is_sinusoidal(Import *im, const Weight *w)
{
	Table t;
	return read_table(im, w, &t) && (all_columns_recur(&t) || pairs_are_units(&t, 1)
		|| pairs_are_units(&t, t.cols / 2) || pairs_are_units(&t, t.cols / 4));
}
