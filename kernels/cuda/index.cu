/* kernels/cuda/index.cu: gathers and scatters.  An index that is out of range is reported and read as 0.
 *
 * The order in which a scatter applies updates of one target is part of its result.  Targets can be equal only along
 * the indexed dims, so a thread takes one index of all other dims and walks the indexed dims in order.  A scatter_nd
 * of single elements has no other dims: one thread does all of it. */
#include "kernels/cuda/common.cuh"
#include "kernels/dims.h"

enum { THREADS = 256 };

struct Shape { int rank; int64_t dim[K_MAX_RANK]; };

static Shape shape_of(int rank, const int64_t *dim)
{
	Shape s = {.rank = rank};
	for (int i = 0; i < rank; i++)
		s.dim[i] = dim[i];
	return s;
}

/* ---- gathers: rows of `width` elements ---- */

template <class T>
static __global__ void gathered(T *y, const T *x, const void *ids, int64_t n, int64_t width, int64_t n_ids,
	int64_t total, int id_size, Bad bad)
{
	GRID_STRIDE(i, total) {
		int64_t row = i / width, outer = row / n_ids;
		int64_t id = load_index(ids, row - outer * n_ids, id_size, n, bad);
		y[i] = x[(outer * n + id) * width + (i - row * width)];
	}
}

template <class T> static void gather(void *y, const void *x, const void *ids, int64_t outer, int64_t n, int64_t bytes,
	int64_t n_ids, int id_size)
{
	int64_t width = bytes / (int64_t)sizeof(T), total = outer * n_ids * width;
	LAUNCH((gathered<T>), blocks_for(total, THREADS), THREADS, 0, k_stream, (T *)y, (const T *)x, ids, n, width, n_ids,
		total, id_size, bad_here());
}

void k_gather(void *y, const void *x, const void *ids, int64_t outer, int64_t n, int64_t inner, int64_t n_ids, int size,
	int id_size)
{
	int64_t bytes = inner * size;
	if (outer * n_ids * bytes == 0)
		return;
	switch (widest(bytes | address_of(x) | address_of(y))) {
	case 1: gather<uint8_t>(y, x, ids, outer, n, bytes, n_ids, id_size); break;
	case 2: gather<uint16_t>(y, x, ids, outer, n, bytes, n_ids, id_size); break;
	case 4: gather<uint32_t>(y, x, ids, outer, n, bytes, n_ids, id_size); break;
	case 8: gather<uint64_t>(y, x, ids, outer, n, bytes, n_ids, id_size); break;
	default: gather<Bytes16>(y, x, ids, outer, n, bytes, n_ids, id_size);
	}
}

template <class T> static __global__ void picked(T *y, const T *x, const void *ids, Shape to, Shape from, int axis,
	int64_t total, int id_size, Bad bad)
{
	GRID_STRIDE(i, total) {
		int64_t rest = i, at = 0, stride = 1;
		for (int d = to.rank - 1; d >= 0; d--) {
			int64_t k = d == axis ? load_index(ids, i, id_size, from.dim[d], bad) : rest % to.dim[d];
			at += k * stride;
			rest /= to.dim[d];
			stride *= from.dim[d];
		}
		y[i] = x[at];
	}
}

template <class T> static void pick(void *y, const void *x, const void *ids, Shape to, Shape from, int axis,
	int id_size)
{
	int64_t total = numel(to.rank, to.dim);
	LAUNCH((picked<T>), blocks_for(total, THREADS), THREADS, 0, k_stream, (T *)y, (const T *)x, ids, to, from, axis,
		total, id_size, bad_here());
}

void k_gather_elements(void *y, const void *x, const void *ids, int rank, const int64_t *dim, const int64_t *xdim,
	int axis, int size, int id_size)
{
	Shape to = shape_of(rank, dim), from = shape_of(rank, xdim);
	if (numel(rank, dim) == 0)
		return;
	switch (size) {
	case 1: pick<uint8_t>(y, x, ids, to, from, axis, id_size); break;
	case 2: pick<uint16_t>(y, x, ids, to, from, axis, id_size); break;
	case 4: pick<uint32_t>(y, x, ids, to, from, axis, id_size); break;
	default: pick<uint64_t>(y, x, ids, to, from, axis, id_size);
	}
}

/* The number of the row that the indices from element `first` of ids on select.  x: the dims that are indexed. */
__device__ static int64_t row_of(const void *ids, int64_t first, const Shape &x, int id_size, Bad bad)
{
	int64_t at = 0;
	for (int d = 0; d < x.rank; d++)
		at = at * x.dim[d] + load_index(ids, first + d, id_size, x.dim[d], bad);
	return at;
}

template <class T>
static __global__ void gathered_nd(T *y, const T *x, const void *ids, int64_t n, Shape of, int64_t whole,
	int64_t width, int64_t total, int id_size, Bad bad)
{
	GRID_STRIDE(i, total) {
		int64_t row = i / width;
		y[i] = x[row / n * whole + row_of(ids, row * of.rank, of, id_size, bad) * width + (i - row * width)];
	}
}

template <class T> static void gather_nd(void *y, const void *x, const void *ids, int64_t batch, int64_t n, Shape of,
	int64_t bytes, int id_size)
{
	int64_t width = bytes / (int64_t)sizeof(T), total = batch * n * width;
	LAUNCH((gathered_nd<T>), blocks_for(total, THREADS), THREADS, 0, k_stream, (T *)y, (const T *)x, ids, n, of,
		numel(of.rank, of.dim) * width, width, total, id_size, bad_here());
}

void k_gather_nd(void *y, const void *x, const void *ids, int64_t batch, int64_t n, int depth, const int64_t *xdim,
	int64_t inner, int size, int id_size)
{
	Shape of = shape_of(depth, xdim);
	int64_t bytes = inner * size;
	if (batch * n * bytes == 0)
		return;
	switch (widest(bytes | address_of(x) | address_of(y))) {
	case 1: gather_nd<uint8_t>(y, x, ids, batch, n, of, bytes, id_size); break;
	case 2: gather_nd<uint16_t>(y, x, ids, batch, n, of, bytes, id_size); break;
	case 4: gather_nd<uint32_t>(y, x, ids, batch, n, of, bytes, id_size); break;
	case 8: gather_nd<uint64_t>(y, x, ids, batch, n, of, bytes, id_size); break;
	default: gather_nd<Bytes16>(y, x, ids, batch, n, of, bytes, id_size);
	}
}

/* ---- scatters ---- */

template <class T> __device__ __forceinline__ void put(T *at, T v, KScatter mode)
{
	switch (mode) {
	case K_SCATTER_NONE: *at = v; break;
	case K_SCATTER_ADD: *at = (T)(*at + v); break;
	case K_SCATTER_MUL: *at = (T)(*at * v); break;
	case K_SCATTER_MAX: *at = v > *at || v != v ? v : *at; break;
	case K_SCATTER_MIN: *at = v < *at || v != v ? v : *at; break;
	}
}

/* A thread has one index of the dims of ids without the axis. */
template <class T>
static __global__ void scattered(T *y, const void *ids, const T *updates, Shape of, Shape to, int axis,
	int64_t places, KScatter mode, int id_size, Bad bad)
{
	GRID_STRIDE(i, places) {
		int64_t rest = i, from = 0, at = 0, step = 1, from_stride = 1, stride = 1, along = 1;
		for (int d = of.rank - 1; d >= 0; d--) {
			if (d == axis) {
				step = from_stride;
				along = stride;
			} else {
				from += rest % of.dim[d] * from_stride;
				at += rest % of.dim[d] * stride;
				rest /= of.dim[d];
			}
			from_stride *= of.dim[d];
			stride *= to.dim[d];
		}
		for (int64_t k = 0; k < of.dim[axis]; k++, from += step)
			put(y + at + load_index(ids, from, id_size, to.dim[axis], bad) * along, updates[from], mode);
	}
}

template <class T> static void scatter_elements(T *y, const T *x, const void *ids, const T *updates, int rank,
	const int64_t *dim, const int64_t *xdim, int axis, KScatter mode, int id_size)
{
	int64_t n = numel(rank, dim);
	if (y != x)
		k_copy(y, x, numel(rank, xdim) * (int64_t)sizeof(T));
	if (n == 0)
		return;
	Shape of = shape_of(rank, dim), to = shape_of(rank, xdim);
	if (!rank) { /* a scalar is handled as a vector of one */
		of.rank = to.rank = 1;
		of.dim[0] = to.dim[0] = 1;
	}
	int64_t places = n / of.dim[axis];
	LAUNCH((scattered<T>), blocks_for(places, THREADS), THREADS, 0, k_stream, y, ids, updates, of, to, axis, places,
		mode, id_size, bad_here());
}

/* A thread has one element of the rows. */
template <class T> static __global__ void scattered_nd(T *y, const void *ids, const T *updates, int64_t n, Shape to,
	int64_t inner, KScatter mode, int id_size, Bad bad)
{
	GRID_STRIDE(j, inner)
		for (int64_t i = 0; i < n; i++)
			put(y + row_of(ids, i * to.rank, to, id_size, bad) * inner + j, updates[i * inner + j], mode);
}

template <class T> static void scatter_nd(T *y, const T *x, const void *ids, const T *updates, int64_t n, int depth,
	const int64_t *xdim, int64_t inner, KScatter mode, int id_size)
{
	if (y != x)
		k_copy(y, x, numel(depth, xdim) * inner * (int64_t)sizeof(T));
	if (n * inner > 0)
		LAUNCH((scattered_nd<T>), blocks_for(inner, THREADS), THREADS, 0, k_stream, y, ids, updates, n,
			shape_of(depth, xdim), inner, mode, id_size, bad_here());
}

#define SCATTER(T, t) \
	void k_scatter_elements_##t(T *y, const T *x, const void *ids, const T *updates, int rank, const int64_t *dim, \
		const int64_t *xdim, int axis, KScatter mode, int id_size) \
	{ \
		scatter_elements(y, x, ids, updates, rank, dim, xdim, axis, mode, id_size); \
	} \
	void k_scatter_nd_##t(T *y, const T *x, const void *ids, const T *updates, int64_t n, int depth, \
		const int64_t *xdim, int64_t inner, KScatter mode, int id_size) \
	{ \
		scatter_nd(y, x, ids, updates, n, depth, xdim, inner, mode, id_size); \
	}
K_NUMBERS(SCATTER)
