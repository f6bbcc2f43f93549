/* kernels/strided.h: the kernels that are strided copies and nothing else, for CPU and CUDA.
 *
 * One file of each target includes it and defines before:
 *   move_strided(y, x, rank, dim, xs, ys, size)        y[ys . i] = x[xs . i]; nothing where a dim is 0
 *   copy_rows(y, y_pitch, x, x_pitch, rows, bytes)     copies rows of `bytes` bytes between two row pitches */
#ifndef SHARDC_KERNELS_STRIDED_H
#define SHARDC_KERNELS_STRIDED_H

#include "kernels/dims.h"

void k_transpose(void *y, const void *x, int rank, const int64_t *dim, const int64_t *perm, int size)
{
	int64_t xs[K_MAX_RANK], ys[K_MAX_RANK], from[K_MAX_RANK], out[K_MAX_RANK];
	strides_of(rank, dim, from);
	for (int i = 0; i < rank; i++) {
		out[i] = dim[perm[i]];
		xs[i] = from[perm[i]];
	}
	strides_of(rank, out, ys);
	move_strided(y, x, rank, out, xs, ys, size);
}

void k_broadcast(void *y, const void *x, int rank, const int64_t *dim, const int64_t *stride, int size)
{
	int64_t ys[K_MAX_RANK];
	strides_of(rank, dim, ys);
	move_strided(y, x, rank, dim, stride, ys, size);
}

void k_slice(void *y, const void *x, int rank, const int64_t *dim, const int64_t *xdim, const int64_t *start,
	const int64_t *step, int size)
{
	int64_t xs[K_MAX_RANK], ys[K_MAX_RANK];
	int64_t first = slice_strides(rank, xdim, start, step, xs);
	strides_of(rank, dim, ys);
	if (numel(rank, dim) > 0)
		move_strided(y, (const char *)x + first * size, rank, dim, xs, ys, size);
}

void k_slice_grad(void *dx, const void *dy, int rank, const int64_t *dim, const int64_t *xdim, const int64_t *start,
	const int64_t *step, int size)
{
	int64_t xs[K_MAX_RANK], ys[K_MAX_RANK], zero = 0;
	int64_t first = slice_strides(rank, xdim, start, step, xs);
	strides_of(rank, dim, ys);
	k_fill(dx, &zero, numel(rank, xdim), size);
	if (numel(rank, dim) > 0)
		move_strided((char *)dx + first * size, dy, rank, dim, ys, xs, size);
}

void k_concat(void *y, const void *const *x, int n, int64_t outer, const int64_t *chunk)
{
	int64_t pitch = 0, at = 0;
	for (int i = 0; i < n; i++)
		pitch += chunk[i];
	for (int i = 0; i < n; at += chunk[i++])
		copy_rows((char *)y + at, pitch, x[i], chunk[i], outer, chunk[i]);
}

void k_split(void *const *y, const void *x, int n, int64_t outer, const int64_t *chunk)
{
	int64_t pitch = 0, at = 0;
	for (int i = 0; i < n; i++)
		pitch += chunk[i];
	for (int i = 0; i < n; at += chunk[i++])
		if (y[i])
			copy_rows(y[i], chunk[i], (const char *)x + at, pitch, outer, chunk[i]);
}

#endif
