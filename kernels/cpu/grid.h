/* kernels/cpu/grid.h: cuts a product's result into rectangles, of which each thread gets one. */
#ifndef SHARDC_CPU_GRID_H
#define SHARDC_CPU_GRID_H

#include "kernels/cpu/common.h"

/* Rows [i, i + m) and columns [j, j + n). */
typedef struct Rectangle { int64_t i, j, m, n; } Rectangle;

/* rows x cols rectangles, none of which is empty. */
typedef struct Grid { int64_t rows, cols; } Grid;

/* Of m x n in tiles of mr x nr, for so many threads: the grid whose largest rectangle costs least.  Packing an element
 * costs what PACK multiply-adds do. */
INLINE Grid grid_for(int64_t m, int64_t n, int64_t mr, int64_t nr, int64_t threads)
{
	enum { PACK = 10 };
	Grid best = {1, 1};
	int64_t down = ceil_div(m, mr), across = ceil_div(n, nr), least = INT64_MAX;
	for (int64_t rows = 1; rows <= MIN(threads, down); rows++) {
		int64_t cols = MIN(threads / rows, across);
		int64_t high = ceil_div(down, rows) * mr, wide = ceil_div(across, cols) * nr;
		int64_t cost = high * wide + PACK * (high + wide);
		if (cost < least) {
			best = (Grid){rows, cols};
			least = cost;
		}
	}
	return best;
}

/* Rectangle number `at`, of whole tiles but for the last ones. */
INLINE Rectangle grid_at(Grid g, int64_t m, int64_t n, int64_t mr, int64_t nr, int64_t at)
{
	int64_t down = ceil_div(m, mr), across = ceil_div(n, nr), r = at / g.cols, c = at % g.cols;
	Rectangle t = {down * r / g.rows * mr, across * c / g.cols * nr, 0, 0};
	t.m = MIN(m, down * (r + 1) / g.rows * mr) - t.i;
	t.n = MIN(n, across * (c + 1) / g.cols * nr) - t.j;
	return t;
}

#endif
