/* kernels/cpu/move.c: copies that only change where elements stand: transpose, broadcast, slice, pad, concat, split.
 *
 * All but the last three are one strided copy y[ys . i] = x[xs . i].  Its dims are merged where both sides allow it.
 * Then it is made of runs (memcpy or fill), or of square tiles where y and x are contiguous along different dims.
 * Elements are moved as unsigned integers of their size. */
#include "kernels/cpu/common.h"

enum { TILE_STRIP = 128 }; /* elements of a task along the dim that x is contiguous along */

#define T uint8_t
#define SUFFIX 1
#include "kernels/cpu/move.h"
#define T uint16_t
#define SUFFIX 2
#include "kernels/cpu/move.h"
#define T uint32_t
#define SUFFIX 4
#include "kernels/cpu/move.h"
#define T uint64_t
#define SUFFIX 8
#include "kernels/cpu/move.h"

static void move_strided(void *y, const void *x, int rank, const int64_t *dim, const int64_t *xs,
	const int64_t *ys, int size)
{
	if (numel(rank, dim) == 0)
		return;
	Move m = move_plan(rank, dim, xs, ys);
	switch (size) {
	case 1: move_1(y, x, &m); break;
	case 2: move_2(y, x, &m); break;
	case 4: move_4(y, x, &m); break;
	case 8: move_8(y, x, &m); break;
	}
}

void k_set(void *y, const void *values, int64_t bytes)
{
	memcpy(y, values, (size_t)bytes);
}

void k_copy(void *y, const void *x, int64_t bytes)
{
	enum { PART = 1 << 18 };
	#pragma omp parallel for schedule(static) if (bytes > PART)
	for (int64_t i = 0; i < bytes; i += PART)
		memcpy((char *)y + i, (const char *)x + i, (size_t)MIN((int64_t)PART, bytes - i));
}

void k_fill(void *y, const void *value, int64_t n, int size)
{
	int64_t zero = 0;
	move_strided(y, value, 1, &n, &zero, (int64_t[]){1}, size);
}

/* Copies rows of `bytes` bytes between two row pitches. */
static void copy_rows(void *y, int64_t y_pitch, const void *x, int64_t x_pitch, int64_t rows, int64_t bytes)
{
	if (rows == 1) {
		k_copy(y, x, bytes);
		return;
	}
	#pragma omp parallel for schedule(static) if (rows * bytes > PARALLEL_MIN * 4)
	for (int64_t r = 0; r < rows; r++)
		memcpy((char *)y + r * y_pitch, (const char *)x + r * x_pitch, (size_t)bytes);
}

#include "kernels/strided.h"

void k_pad(void *y, const void *x, int rank, const int64_t *xdim, const int64_t *before, const int64_t *after,
	KPadMode mode, const void *value, int size)
{
	int64_t dim[K_MAX_RANK] = {0}, xs[K_MAX_RANK], ys[K_MAX_RANK], first = 0;
	for (int i = 0; i < rank; i++)
		dim[i] = before[i] + xdim[i] + after[i];
	if (rank == 0 || mode == K_PAD_CONSTANT) {
		strides_of(rank, dim, ys);
		strides_of(rank, xdim, xs);
		for (int i = 0; i < rank; i++)
			first += before[i] * ys[i];
		k_fill(y, value, numel(rank, dim), size);
		if (numel(rank, xdim) > 0)
			move_strided((char *)y + first * size, x, rank, xdim, xs, ys, size);
		return;
	}
	if (rank < 1 || numel(rank, dim) == 0)
		return;
	switch (size) {
	case 1: pad_1(y, x, rank, dim, xdim, before, mode); break;
	case 2: pad_2(y, x, rank, dim, xdim, before, mode); break;
	case 4: pad_4(y, x, rank, dim, xdim, before, mode); break;
	case 8: pad_8(y, x, rank, dim, xdim, before, mode); break;
	}
}
