/* kernels/det.h: determinants and cofactors of small matrices in f64, for kernels of both targets. */
#ifndef SHARDC_KERNELS_DET_H
#define SHARDC_KERNELS_DET_H

#include <math.h>

#include "kernels/dims.h"

DIMS void det_swap_rows(double *a, int64_t n, int64_t i, int64_t j)
{
	for (int64_t k = 0; k < n; k++) {
		double v = a[i * n + k];
		a[i * n + k] = a[j * n + k];
		a[j * n + k] = v;
	}
}

/* The determinant of a (n, n) by elimination with pivots from columns; a is overwritten. */
DIMS double det_eliminate(double *a, int64_t n)
{
	double det = 1;
	for (int64_t c = 0; c < n; c++) {
		int64_t p = c;
		for (int64_t i = c + 1; i < n; i++)
			p = fabs(a[i * n + c]) > fabs(a[p * n + c]) ? i : p;
		if (p != c) {
			det_swap_rows(a, n, p, c);
			det = -det;
		}
		det *= a[c * n + c];
		for (int64_t i = c + 1; i < n && a[c * n + c] != 0; i++) {
			double f = a[i * n + c] / a[c * n + c];
			for (int64_t k = c; k < n; k++)
				a[i * n + k] -= f * a[c * n + k];
		}
	}
	return det;
}

/* The cofactor of element (row, column): the signed determinant without its row and column.  a: scratch (n-1, n-1). */
DIMS double det_cofactor(double *a, const double *x, int64_t n, int64_t row, int64_t column)
{
	int64_t at = 0;
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < n; j++)
			if (i != row && j != column)
				a[at++] = x[i * n + j];
	double det = det_eliminate(a, n - 1);
	return (row + column) % 2 ? -det : det;
}

/* inv = the inverse of a, which is overwritten; false: a pivot is 0. */
DIMS bool det_invert(double *a, double *inv, int64_t n)
{
	for (int64_t i = 0; i < n * n; i++)
		inv[i] = i / n == i % n;
	for (int64_t c = 0; c < n; c++) {
		int64_t p = c;
		for (int64_t i = c + 1; i < n; i++)
			p = fabs(a[i * n + c]) > fabs(a[p * n + c]) ? i : p;
		det_swap_rows(a, n, p, c);
		det_swap_rows(inv, n, p, c);
		if (a[c * n + c] == 0)
			return false;
		double scale = a[c * n + c];
		for (int64_t k = 0; k < n; k++) {
			a[c * n + k] /= scale;
			inv[c * n + k] /= scale;
		}
		for (int64_t i = 0; i < n; i++) {
			double f = i == c ? 0 : a[i * n + c];
			for (int64_t k = 0; k < n; k++) {
				a[i * n + k] -= f * a[c * n + k];
				inv[i * n + k] -= f * inv[c * n + k];
			}
		}
	}
	return true;
}

/* c = the cofactors of x: its determinant times the transpose of its inverse where it has one.  x and a, which equals
 * x, are overwritten. */
DIMS void det_cofactors(double *c, double *a, double *x, int64_t n)
{
	if (n > 3 && det_invert(a, c, n)) {
		double det = det_eliminate(x, n);
		for (int64_t i = 0; i < n; i++)
			for (int64_t j = 0; j < i; j++) {
				double v = c[i * n + j];
				c[i * n + j] = c[j * n + i];
				c[j * n + i] = v;
			}
		for (int64_t i = 0; i < n * n; i++)
			c[i] *= det;
		return;
	}
	for (int64_t i = 0; i < n * n; i++)
		c[i] = det_cofactor(a, x, n, i / n, i % n);
}

#endif
