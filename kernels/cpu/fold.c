/* kernels/cpu/fold.c: what collectives do with the memory of several ranks: sums in rank order, copies.
 *
 * The one idea: a sum is made block by block in a buffer that stays in the nearest cache, so that every
 * source is read once and the result is written once; each element is its own left fold, so neither
 * threads nor blocks nor pieces alter a bit.  Results larger than the caches go past them. */
#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "kernels/cpu/common.h"

enum { BLOCK = 1024, LINE = 64, COPY_PIECE = 1 << 18, PAST_CACHES = 8 << 20 };

/* Whole lines to where nobody reads them soon; both ends at a line's start. */
static void stream_lines(char *to, const char *from, int64_t bytes)
{
#if defined(__AVX__)
	for (int64_t i = 0; i < bytes; i += 32)
		_mm256_stream_si256((__m256i *)(void *)(to + i), _mm256_loadu_si256((const __m256i *)(const void *)(from + i)));
#else
	memcpy(to, from, (size_t)bytes);
#endif
}

static void streams_done(void)
{
#if defined(__AVX__)
	_mm_sfence();
#endif
}

static void put(void *to, const void *from, int64_t bytes, bool past_caches)
{
	char *t = to;
	const char *f = from;
	if (!past_caches) {
		memcpy(to, from, (size_t)bytes);
		return;
	}
	int64_t head = MIN((int64_t)(-(uintptr_t)to & (LINE - 1)), bytes), lines = (bytes - head) / LINE * LINE;
	memcpy(t, f, (size_t)head);
	stream_lines(t + head, f + head, lines);
	memcpy(t + head + lines, f + head + lines, (size_t)(bytes - head - lines));
}

static void fold_block(float *restrict sum, const float *const *in, int n_in, int64_t at, int64_t n, float scale)
{
	const float *first = in[0] + at, *second = in[n_in > 1] + at;
	if (n_in == 1)
		memcpy(sum, first, (size_t)n * sizeof(*sum));
	else
		for (int64_t i = 0; i < n; i++)
			sum[i] = first[i] + second[i];
	for (int k = 2; k < n_in; k++) {
		const float *x = in[k] + at;
		for (int64_t i = 0; i < n; i++)
			sum[i] += x[i];
	}
	if (scale != 1)
		for (int64_t i = 0; i < n; i++)
			sum[i] *= scale;
}

void k_fold_f32(float *out, const float *const *in, int n_in, int64_t n, float scale)
{
	bool past_caches = n * (int64_t)sizeof(*out) >= PAST_CACHES;
	#pragma omp parallel if (n > PARALLEL_MIN)
	{
		float sum[BLOCK] __attribute__((aligned(LINE)));
		#pragma omp for schedule(static)
		for (int64_t at = 0; at < n; at += BLOCK) {
			fold_block(sum, in, n_in, at, MIN(BLOCK, n - at), scale);
			put(out + at, sum, MIN(BLOCK, n - at) * (int64_t)sizeof(*out), past_caches);
		}
		streams_done();
	}
}

void k_copy_wide(void *out, const void *in, int64_t bytes)
{
	bool past_caches = bytes >= PAST_CACHES;
	#pragma omp parallel if (bytes > 4 * PARALLEL_MIN)
	{
		#pragma omp for schedule(static)
		for (int64_t at = 0; at < bytes; at += COPY_PIECE)
			put((char *)out + at, (const char *)in + at, MIN(COPY_PIECE, bytes - at), past_caches);
		streams_done();
	}
}
