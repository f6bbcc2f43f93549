/* kernels/cuda/move.cu: copies that only change where elements stand: transpose, broadcast, slice, pad, concat, split.
 *
 * All but padding with x's own elements are one strided copy (kernels/dims.h).  Its plan is made on the host, so a
 * kernel only divides an index by the merged dims.  Elements are moved as unsigned integers of their size, and runs of
 * them in up to 16 bytes; where y and x are contiguous along different dims they go through square tiles in shared
 * memory.  Memory in one piece is left to the driver's copies. */
#include "kernels/cuda/common.cuh"
#include "kernels/dims.h"

enum { THREADS = 256, SIDE = 32, ROWS = 8 };

/* ---- one strided copy ---- */

template <class T> static __global__ void strided(T *y, const T *x, Move m, int64_t total)
{
	GRID_STRIDE(i, total) {
		int64_t rest = i, xo = 0, yo = 0;
		for (int d = m.rank - 1; d > 0; d--) {
			int64_t q = rest / m.dim[d], at = rest - q * m.dim[d];
			xo += at * m.xs[d];
			yo += at * m.ys[d];
			rest = q;
		}
		y[yo + rest * m.ys[0]] = x[xo + rest * m.xs[0]];
	}
}

/* The same with 32-bit indices, whose divisions are several times faster. */
template <class T> static __global__ void strided_small(T *y, const T *x, Move m, unsigned total)
{
	for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
		unsigned rest = i;
		int64_t xo = 0, yo = 0;
		for (int d = m.rank - 1; d > 0; d--) {
			unsigned n = (unsigned)m.dim[d], q = rest / n, at = rest - q * n;
			xo += at * m.xs[d];
			yo += at * m.ys[d];
			rest = q;
		}
		y[yo + rest * m.ys[0]] = x[xo + rest * m.xs[0]];
	}
}

/* Squares of the dims tile_dim (along which x is contiguous) and the last (along which y is); blocks share the other
 * dims. */
template <class T> static __global__ void tiled(T *y, const T *x, Move m, int64_t across, int64_t down)
{
	__shared__ T square[SIDE][SIDE + 1];
	int last = m.rank - 1, j = m.tile_dim;
	for (int64_t task = blockIdx.x;; task += gridDim.x) {
		int64_t rest = task / (across * down), l0 = task % across * SIDE, j0 = task / across % down * SIDE;
		int64_t xo = 0, yo = 0;
		for (int d = last - 1; d >= 0; d--) {
			if (d == j)
				continue;
			xo += rest % m.dim[d] * m.xs[d];
			yo += rest % m.dim[d] * m.ys[d];
			rest /= m.dim[d];
		}
		if (rest > 0)
			return;
		for (int r = (int)threadIdx.y; r < SIDE; r += ROWS)
			if (l0 + r < m.dim[last] && j0 + threadIdx.x < m.dim[j])
				square[r][threadIdx.x] = x[xo + (l0 + r) * m.xs[last] + j0 + threadIdx.x];
		__syncthreads();
		for (int r = (int)threadIdx.y; r < SIDE; r += ROWS)
			if (j0 + r < m.dim[j] && l0 + threadIdx.x < m.dim[last])
				y[yo + (j0 + r) * m.ys[j] + l0 + threadIdx.x] = square[threadIdx.x][r];
		__syncthreads();
	}
}

template <class T> static void run(void *y, const void *x, const Move *m)
{
	int64_t total = numel(m->rank, m->dim);
	if (m->tile_dim >= 0) {
		int64_t across = ceil_div(m->dim[m->rank - 1], SIDE), down = ceil_div(m->dim[m->tile_dim], SIDE);
		int64_t tasks = total / m->dim[m->rank - 1] / m->dim[m->tile_dim] * across * down;
		LAUNCH((tiled<T>), blocks_for(tasks, 1), dim3(SIDE, ROWS), 0, k_stream, (T *)y, (const T *)x, *m, across, down);
	} else if (total < INT64_C(1) << 31) {
		LAUNCH((strided_small<T>), blocks_for(total, THREADS), THREADS, 0, k_stream, (T *)y, (const T *)x, *m,
			(unsigned)total);
	} else {
		LAUNCH((strided<T>), blocks_for(total, THREADS), THREADS, 0, k_stream, (T *)y, (const T *)x, *m, total);
	}
}

/* Turns runs of the last dim into wider elements as far as sizes, strides and addresses allow; returns the new size. */
static int widened(Move *m, const void *y, const void *x, int size)
{
	int last = m->rank - 1;
	if (m->xs[last] != 1 || m->ys[last] != 1)
		return size;
	int64_t all = m->dim[last] * size | address_of(x) | address_of(y);
	for (int d = 0; d < last; d++)
		all |= m->xs[d] * size | m->ys[d] * size;
	int wide = widest(all);
	for (int d = 0; d < last; d++) {
		m->xs[d] = m->xs[d] * size / wide;
		m->ys[d] = m->ys[d] * size / wide;
	}
	m->dim[last] = m->dim[last] * size / wide;
	return wide;
}

static void move_strided(void *y, const void *x, int rank, const int64_t *dim, const int64_t *xs, const int64_t *ys,
	int size)
{
	if (numel(rank, dim) == 0)
		return;
	Move m = move_plan(rank, dim, xs, ys);
	switch (widened(&m, y, x, size)) {
	case 1: run<uint8_t>(y, x, &m); break;
	case 2: run<uint16_t>(y, x, &m); break;
	case 4: run<uint32_t>(y, x, &m); break;
	case 8: run<uint64_t>(y, x, &m); break;
	default: run<Bytes16>(y, x, &m);
	}
}

/* ---- copies ---- */

void k_copy(void *y, const void *x, int64_t bytes)
{
	if (bytes > 0)
		launched(cudaMemcpyAsync(y, x, (size_t)bytes, cudaMemcpyDeviceToDevice, k_stream), "k_copy");
}

/* Copies rows of `bytes` bytes between two row pitches. */
static void copy_rows(void *y, int64_t y_pitch, const void *x, int64_t x_pitch, int64_t rows, int64_t bytes)
{
	const int64_t dim[] = {rows, bytes}, xs[] = {x_pitch, 1}, ys[] = {y_pitch, 1};
	move_strided(y, x, 2, dim, xs, ys, 1);
}

#include "kernels/strided.h"

/* ---- values from the host ---- */

/* Sets every element to value; a wide value is several elements. */
template <class T> static __global__ void filled(T *y, T value, int64_t n)
{
	GRID_STRIDE(i, n)
		y[i] = value;
}

template <class T> static void fill(void *y, const void *value, int64_t n)
{
	T v;
	memcpy(&v, value, sizeof(v));
	if (!aligned16(y) || n % vec_of<T>) {
		LAUNCH((filled<T>), blocks_for(n, THREADS), THREADS, 0, k_stream, (T *)y, v, n);
		return;
	}
	Bytes16 wide;
	for (int i = 0; i < vec_of<T>; i++)
		memcpy((char *)&wide + i * (int)sizeof(T), &v, sizeof(T));
	LAUNCH((filled<Bytes16>), blocks_for(n / vec_of<T>, THREADS), THREADS, 0, k_stream, (Bytes16 *)y, wide,
		n / vec_of<T>);
}

void k_fill(void *y, const void *value, int64_t n, int size)
{
	if (n <= 0)
		return;
	switch (size) {
	case 1: fill<uint8_t>(y, value, n); break;
	case 2: fill<uint16_t>(y, value, n); break;
	case 4: fill<uint32_t>(y, value, n); break;
	default: fill<uint64_t>(y, value, n);
	}
}

/* Bytes that travel with a launch, whose parameters may have at most 4 KB. */
struct Page { unsigned char at[2048]; };

static __global__ void set_page(unsigned char *y, Page page, int n)
{
	for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
		y[i] = page.at[i];
}

void k_set(void *y, const void *values, int64_t bytes)
{
	for (int64_t at = 0; at < bytes; at += (int64_t)sizeof(Page)) {
		Page page;
		int n = (int)(bytes - at < (int64_t)sizeof(page) ? bytes - at : (int64_t)sizeof(page));
		memcpy(page.at, (const char *)values + at, (size_t)n);
		LAUNCH(set_page, 1, THREADS, 0, k_stream, (unsigned char *)y + at, page, n);
	}
}

/* ---- padding ---- */

struct Pad {
	int rank;
	int64_t dim[K_MAX_RANK], xdim[K_MAX_RANK], before[K_MAX_RANK];
	KPadMode mode;
};

template <class T> static __global__ void padded(T *y, const T *x, Pad p, int64_t total)
{
	GRID_STRIDE(i, total) {
		int64_t rest = i, from = 0, stride = 1;
		for (int d = p.rank - 1; d >= 0; d--) {
			from += pad_source(rest % p.dim[d] - p.before[d], p.xdim[d], p.mode) * stride;
			rest /= p.dim[d];
			stride *= p.xdim[d];
		}
		y[i] = x[from];
	}
}

template <class T> static void pad(void *y, const void *x, const Pad *p)
{
	int64_t total = numel(p->rank, p->dim);
	LAUNCH((padded<T>), blocks_for(total, THREADS), THREADS, 0, k_stream, (T *)y, (const T *)x, *p, total);
}

void k_pad(void *y, const void *x, int rank, const int64_t *xdim, const int64_t *before, const int64_t *after,
	KPadMode mode, const void *value, int size)
{
	Pad p = {.rank = rank, .mode = mode};
	int64_t xs[K_MAX_RANK], ys[K_MAX_RANK], first = 0;
	for (int i = 0; i < rank; i++) {
		p.dim[i] = before[i] + xdim[i] + after[i];
		p.xdim[i] = xdim[i];
		p.before[i] = before[i];
	}
	if (rank == 0 || mode == K_PAD_CONSTANT) {
		strides_of(rank, p.dim, ys);
		strides_of(rank, xdim, xs);
		for (int i = 0; i < rank; i++)
			first += before[i] * ys[i];
		k_fill(y, value, numel(rank, p.dim), size);
		move_strided((char *)y + first * size, x, rank, xdim, xs, ys, size);
		return;
	}
	if (numel(rank, p.dim) == 0)
		return;
	switch (size) {
	case 1: pad<uint8_t>(y, x, &p); break;
	case 2: pad<uint16_t>(y, x, &p); break;
	case 4: pad<uint32_t>(y, x, &p); break;
	default: pad<uint64_t>(y, x, &p);
	}
}
