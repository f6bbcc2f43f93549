/* kernels/cpu/grad_norm.c: what the p-norm of gradients is made of: sums of |g|^p in f64, or the largest |g|.
 *
 * Chunks are cut by length alone and their sums are added in order, so the bits do not depend on threads.  A maximum
 * compares the bits of |g| as integers, among which those of NaN are the largest, so a NaN is never lost. */
#include "kernels/cpu/half.h"

enum { BLOCK = 8192, PIECE = 1024, CHUNKS = 256 };

static double sum_1(const float *g, int64_t n)
{
	double s = 0;
	#pragma omp simd reduction(+:s)
	for (int64_t i = 0; i < n; i++)
		s += fabs((double)g[i]);
	return s;
}

static double sum_2(const float *g, int64_t n)
{
	double s = 0;
	#pragma omp simd reduction(+:s)
	for (int64_t i = 0; i < n; i++)
		s += (double)g[i] * g[i];
	return s;
}

static double sum_p(const float *g, int64_t n, double p)
{
	double s = 0;
	for (int64_t i = 0; i < n; i++)
		s += pow(fabs((double)g[i]), p);
	return s;
}

static double largest(const float *g, int64_t n)
{
	uint32_t most = 0;
	float x;
	#pragma omp simd reduction(max:most)
	for (int64_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, g + i, sizeof(bits));
		bits &= 0x7fffffffu;
		most = bits > most ? bits : most;
	}
	memcpy(&x, &most, sizeof(x));
	return x;
}

static double piece_of(const float *g, int64_t n, double p)
{
	return isinf(p) ? largest(g, n) : p == 1 ? sum_1(g, n) : p == 2 ? sum_2(g, n) : sum_p(g, n, p);
}

/* 16-bit gradients are widened piece by piece, in the nearest cache. */
static double part_of(const void *g, KDType type, int64_t n, double p)
{
	float wide[PIECE];
	double s = 0;
	if (type == K_F32)
		return piece_of(g, n, p);
	for (int64_t i = 0; i < n; i += PIECE) {
		widen(wide, at_element(g, type, i), type, MIN(PIECE, n - i));
		s = k_norm_join(s, piece_of(wide, MIN(PIECE, n - i), p), p);
	}
	return s;
}

void k_norm(double *norm, const void *g, KDType g_type, const Segment *seg, int64_t n_seg, double p, void *work)
{
	double part[CHUNKS], total = 0;
	(void)work;
	for (int64_t k = 0; k < n_seg; k++) {
		const void *from = at_element(g, g_type, seg[k].begin);
		int64_t n = seg[k].length, chunks = MAX(1, MIN(CHUNKS, n / BLOCK));
		#pragma omp parallel for schedule(static) if (n > 4 * PARALLEL_MIN)
		for (int64_t c = 0; c < chunks; c++) {
			int64_t begin = n * c / chunks;
			part[c] = part_of(at_element(from, g_type, begin), g_type, n * (c + 1) / chunks - begin, p);
		}
		double s = 0;
		for (int64_t c = 0; c < chunks; c++)
			s = k_norm_join(s, part[c], p);
		total = k_norm_join(total, s, p);
	}
	*norm = k_norm_join(*norm, total, p);
}
