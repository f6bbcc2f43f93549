/* kernels/cuda/scan.cu: cumulative sums, arg max and min, top k, iota, ranges that are checked.
 *
 * One thread works in order along the axis, so sums are those of the CPU; threads share the other dims.  NaN counts as
 * both the largest and the smallest element. */
#include "kernels/cuda/common.cuh"
#include "kernels/dims.h"

enum { THREADS = 128 };

/* (outer, n, inner) along n */
struct Line { int64_t outer, n, inner; };

/* Whether a comes before b in the order of topk; NaN comes before all numbers. */
template <class T> __device__ __forceinline__ bool better(T a, T b, bool largest)
{
	if (a != a || b != b)
		return a != a && b == b;
	return largest ? a > b : a < b;
}

template <class T> static __global__ void summed(T *y, const T *x, Line s, bool exclusive, bool reverse)
{
	GRID_STRIDE(r, s.outer * s.inner) {
		int64_t base = r / s.inner * s.n * s.inner + r % s.inner;
		T sum = 0;
		for (int64_t i = 0; i < s.n; i++) {
			int64_t at = base + (reverse ? s.n - 1 - i : i) * s.inner;
			T v = x[at];
			y[at] = exclusive ? sum : (T)(sum + v);
			sum = (T)(sum + v);
		}
	}
}

template <class T> static __global__ void arg(int64_t *y, const T *x, Line s, bool last, bool largest)
{
	GRID_STRIDE(r, s.outer * s.inner) {
		const T *from = x + r / s.inner * s.n * s.inner + r % s.inner;
		int64_t best = 0;
		for (int64_t i = 1; i < s.n; i++) {
			T v = from[i * s.inner], b = from[best * s.inner];
			if (better(v, b, largest) || (last && !better(b, v, largest)))
				best = i;
		}
		y[r] = best;
	}
}

/* Each pick is the best of the elements that come after the previous pick in the order (value, then index). */
template <class T> static __global__ void top(T *y, int64_t *idx, const T *x, Line s, int64_t k, bool largest)
{
	GRID_STRIDE(r, s.outer * s.inner) {
		const T *from = x + r / s.inner * s.n * s.inner + r % s.inner;
		int64_t to = r / s.inner * k * s.inner + r % s.inner, prev = -1;
		for (int64_t j = 0; j < k; j++) {
			int64_t best = -1;
			for (int64_t i = 0; i < s.n; i++) {
				T v = from[i * s.inner];
				bool open = prev < 0 || better(from[prev * s.inner], v, largest) ||
					(i > prev && !better(v, from[prev * s.inner], largest));
				if (open && (best < 0 || better(v, from[best * s.inner], largest)))
					best = i;
			}
			y[to + j * s.inner] = from[best * s.inner];
			idx[to + j * s.inner] = best;
			prev = best;
		}
	}
}

template <class T>
static __global__ void counted(T *y, int64_t n, int64_t inner, int64_t total, double start, double step)
{
	GRID_STRIDE(i, total)
		y[i] = (T)(start + step * (double)(i / inner % n));
}

template <class T>
static __global__ void checked(T *y, const T *x, int64_t n, double low, double high, const char *what, Bad bad)
{
	GRID_STRIDE(i, n) {
		double v = (double)x[i];
		bool good = v >= low && v <= high;
		if (!good)
			report_outside(bad, what, v, i, low, high);
		y[i] = good ? x[i] : (T)low;
	}
}

#define SCAN(T, t) \
	void k_cumsum_##t(T *y, const T *x, int64_t outer, int64_t n, int64_t inner, bool exclusive, bool reverse) \
	{ \
		LAUNCH((summed<T>), blocks_for(outer * inner, THREADS), THREADS, 0, k_stream, y, x, Line{outer, n, inner}, \
			exclusive, reverse); \
	} \
	void k_argmax_##t(int64_t *y, const T *x, int64_t outer, int64_t n, int64_t inner, bool last) \
	{ \
		LAUNCH((arg<T>), blocks_for(outer * inner, THREADS), THREADS, 0, k_stream, y, x, Line{outer, n, inner}, last, \
			true); \
	} \
	void k_argmin_##t(int64_t *y, const T *x, int64_t outer, int64_t n, int64_t inner, bool last) \
	{ \
		LAUNCH((arg<T>), blocks_for(outer * inner, THREADS), THREADS, 0, k_stream, y, x, Line{outer, n, inner}, last, \
			false); \
	} \
	void k_topk_##t(T *y, int64_t *idx, const T *x, int64_t outer, int64_t n, int64_t inner, int64_t k, bool largest) \
	{ \
		LAUNCH((top<T>), blocks_for(outer * inner, THREADS), THREADS, 0, k_stream, y, idx, x, Line{outer, n, inner}, \
			k, largest); \
	} \
	void k_iota_##t(T *y, int rank, const int64_t *dim, int axis, double start, double step) \
	{ \
		int64_t n = rank ? dim[axis] : 1, inner = rank ? numel(rank - axis - 1, dim + axis + 1) : 1; \
		int64_t total = numel(rank, dim); \
		LAUNCH((counted<T>), blocks_for(total, THREADS), THREADS, 0, k_stream, y, n, inner, total, start, step); \
	} \
	void k_in_range_##t(T *y, const T *x, int64_t n, double low, double high, const char *what) \
	{ \
		LAUNCH((checked<T>), blocks_for(n, THREADS), THREADS, 0, k_stream, y, x, n, low, high, what, bad_here()); \
	}
K_NUMBERS(SCAN)
