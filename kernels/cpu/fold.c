/* kernels/cpu/fold.c: what collectives do with the memory of several ranks: sums in rank order, casts, copies.
 *
 * A sum is made block by block in a buffer that stays in the nearest cache, so that every source is read once and the
 * result is written once.  Each element is summed from left to right on its own, so no bit depends on threads, blocks
 * or pieces.  16-bit sources are widened into the buffer, and 16-bit results are rounded once, from it.  Results of
 * PAST_CACHES bytes or more are written past the caches. */
#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "kernels/cpu/half.h"
#include "kernels/f8.h"

enum { BLOCK = 1024, LINE = 64, COPY_PIECE = 1 << 18, PAST_CACHES = 8 << 20 };

/* Writes whole cache lines past the caches, for data that is not read again soon; `to` begins at a line, bytes are
 * whole lines. */
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

/* sum may be first. */
static void add_block(float *sum, const float *first, const float *restrict second, int64_t n)
{
	#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		sum[i] = first[i] + second[i];
}

typedef struct Source { const void *const *in; KDType type; int n; } Source;

/* n elements of source k from `at` on as f32: where they are, or widened into the buffer. */
INLINE const float *source_at(const Source *s, int k, int64_t at, int64_t n, float *buffer)
{
	const void *from = at_element(s->in[k], s->type, at);
	if (s->type == K_F32)
		return from;
	widen(buffer, from, s->type, n);
	return buffer;
}

/* Returns where the sum is: in `sum`, or where it comes from if that is all of it. */
static const float *fold_block(float *restrict sum, const Source *s, int64_t at, int64_t n, float scale)
{
	float wide[BLOCK] __attribute__((aligned(LINE)));
	const float *first = source_at(s, 0, at, n, sum);
	if (s->n == 1 && scale == 1)
		return first;
	if (s->n == 1 && first != sum)
		memcpy(sum, first, (size_t)n * sizeof(*sum));
	if (s->n > 1) {
		const float *second = source_at(s, 1, at, n, wide);
		add_block(sum, first, second, n);
	}
	for (int k = 2; k < s->n; k++) {
		const float *x = source_at(s, k, at, n, wide);
		for (int64_t i = 0; i < n; i++)
			sum[i] += x[i];
	}
	if (scale != 1)
		for (int64_t i = 0; i < n; i++)
			sum[i] *= scale;
	return sum;
}

void k_fold(void *out, KDType out_type, const void *const *in, KDType in_type, int n_in, int64_t n, float scale)
{
	Source s = {in, in_type, n_in};
	int64_t bytes = type_bytes(out_type);
	bool past_caches = n * bytes >= PAST_CACHES;
	#pragma omp parallel if (n > PARALLEL_MIN)
	{
		float sum[BLOCK] __attribute__((aligned(LINE)));
		uint16_t rounded[BLOCK] __attribute__((aligned(LINE)));
		#pragma omp for schedule(static)
		for (int64_t at = 0; at < n; at += BLOCK) {
			int64_t part = MIN(BLOCK, n - at);
			const float *folded = fold_block(sum, &s, at, part, scale);
			if (out_type != K_F32)
				narrow(rounded, folded, out_type, part);
			put((char *)out + at * bytes, out_type == K_F32 ? (const void *)folded : rounded, part * bytes,
				past_caches);
		}
		streams_done();
	}
}

void k_cast_wide(void *out, KDType out_type, const void *in, KDType in_type, int64_t n)
{
	if (out_type == in_type)
		k_copy_wide(out, in, n * type_bytes(in_type));
	else
		k_fold(out, out_type, &in, in_type, 1, n, 1);
}

void k_cast_f8_wide(uint8_t *out, const float *in, const float *scale, int64_t n)
{
	float inverse = 1 / *scale;
	#pragma omp parallel for schedule(static) if (n > PARALLEL_MIN)
	for (int64_t i = 0; i < n; i++)
		out[i] = f8_from_weight(in[i], inverse);
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
