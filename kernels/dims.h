/* kernels/dims.h: index arithmetic on shapes and plans of strided copies, for kernels of both targets.
 *
 * A strided copy is y[ys . i] = x[xs . i] for every index i of dims dim[0..rank), where xs . i is the sum of xs[d] *
 * i[d]; strides may be 0 or negative. */
#ifndef SHARDC_KERNELS_DIMS_H
#define SHARDC_KERNELS_DIMS_H

#include "kernels/kernels.h"

#ifdef __CUDACC__
#define DIMS static __host__ __device__ __forceinline__ __attribute__((unused))
#else
#define DIMS static inline __attribute__((always_inline, unused))
#endif

DIMS int64_t numel(int rank, const int64_t *dim)
{
	int64_t n = 1;
	for (int i = 0; i < rank; i++)
		n *= dim[i];
	return n;
}

/* Row-major strides in elements. */
DIMS void strides_of(int rank, const int64_t *dim, int64_t *stride)
{
	int64_t s = 1;
	for (int i = rank - 1; i >= 0; i--) {
		stride[i] = s;
		s *= dim[i];
	}
}

/* The multi-index `at` of a linear row-major index.  offset_of gives its offset under other strides. */
DIMS void unravel(int64_t i, int rank, const int64_t *dim, int64_t *at)
{
	for (int d = rank - 1; d >= 0; d--) {
		at[d] = i % dim[d];
		i /= dim[d];
	}
}

DIMS int64_t offset_of(int rank, const int64_t *at, const int64_t *stride)
{
	int64_t o = 0;
	for (int d = 0; d < rank; d++)
		o += at[d] * stride[d];
	return o;
}

/* Merges the dims of a reduction over `axes` (bits) into runs that are alternately kept and reduced.  Fills the sizes
 * of the runs, the strides of their last dims, and which are reduced, and returns how many there are.  Dims of 1 are
 * in no run. */
DIMS int axis_runs(int rank, const int64_t *dim, unsigned axes, int64_t *size, int64_t *stride, bool *reduced)
{
	int64_t s[K_MAX_RANK];
	int m = 0;
	strides_of(rank, dim, s);
	for (int i = 0; i < rank; i++) {
		bool now = axes >> i & 1;
		if (dim[i] == 1)
			continue;
		if (m && reduced[m - 1] == now)
			size[m - 1] *= dim[i], stride[m - 1] = s[i];
		else
			size[m] = dim[i], stride[m] = s[i], reduced[m++] = now;
	}
	return m;
}

/* ---- strided copies ---- */

typedef struct Move {
	int rank;
	int64_t dim[K_MAX_RANK], xs[K_MAX_RANK], ys[K_MAX_RANK];
	int tile_dim; /* copied by tiles: x is contiguous along this dim, y along the last; -1 = no tiles */
} Move;

/* The plan of a copy: drops dims of 1 and merges neighbouring dims that are one dim to both x and y. */
DIMS Move move_plan(int rank, const int64_t *dim, const int64_t *xs, const int64_t *ys)
{
	Move m;
	m.rank = 0;
	m.tile_dim = -1;
	for (int i = 0; i < rank; i++) {
		int l = m.rank - 1;
		if (dim[i] == 1)
			continue;
		if (m.rank && m.xs[l] == xs[i] * dim[i] && m.ys[l] == ys[i] * dim[i]) {
			m.dim[l] *= dim[i];
			m.xs[l] = xs[i];
			m.ys[l] = ys[i];
			continue;
		}
		m.dim[m.rank] = dim[i];
		m.xs[m.rank] = xs[i];
		m.ys[m.rank++] = ys[i];
	}
	if (!m.rank)
		m.dim[m.rank] = 1, m.xs[0] = 1, m.ys[m.rank++] = 1;
	int last = m.rank - 1;
	for (int i = 0; i < last; i++)
		if (m.xs[i] == 1 && m.ys[last] == 1 && m.xs[last] > 1 && m.dim[i] >= 4 && m.dim[last] >= 4)
			m.tile_dim = i;
	return m;
}

/* Fills s with the strides of the part of xdim that start and step pick, and returns the offset of its first
 * element. */
DIMS int64_t slice_strides(int rank, const int64_t *xdim, const int64_t *start, const int64_t *step, int64_t *s)
{
	int64_t whole[K_MAX_RANK], first = 0;
	strides_of(rank, xdim, whole);
	for (int i = 0; i < rank; i++) {
		s[i] = whole[i] * step[i];
		first += whole[i] * start[i];
	}
	return first;
}

/* The index that a padded dim of n reads for index i, which may be outside [0, n). */
DIMS int64_t pad_source(int64_t i, int64_t n, KPadMode mode)
{
	if (i >= 0 && i < n)
		return i;
	if (mode == K_PAD_EDGE || n == 1)
		return i < 0 ? 0 : n - 1;
	if (mode == K_PAD_WRAP)
		return (i % n + n) % n;
	int64_t period = 2 * (n - 1), p = (i % period + period) % period;
	return p < n ? p : period - p;
}

#endif
