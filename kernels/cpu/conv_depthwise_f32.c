/* kernels/cpu/conv_depthwise_f32.c: weight gradients of large f32 depthwise convolutions, channels-last, one or two
 * spatial dims.
 *
 * The library goes through all rows once for each block of channels, so that memory gives it a line or two of every
 * position at a time.  Here a row of dy and the rows of x that it meets are used for all channels while they are in
 * cache, and the next ones are fetched meanwhile, evenly.  Sums of K_DEPTHWISE_CHUNKS runs of rows are added in order,
 * so the number of threads changes no bit.
 *
 * Returns NULL for other types and layouts, several outputs for a channel, channels that fill no whole vectors, kernels
 * wider than WIDEST, vectors of other than 8 floats, where this has not been measured, and small operands or rows of
 * dy, where the library is as fast or faster. */
#include "kernels/cpu/conv_axis.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/prim.h"
#include "kernels/work.h"

enum { TAPS = 3, DV = 4, WIDEST = 32, LINE = 64 / sizeof(float), LARGE = 1 << 19 /* bytes of x and dy */, NARROW = 12 };

typedef struct Rows {
	ConvAxis h, w;
	int64_t n, c;
	int64_t first[WIDEST], end[WIDEST]; /* columns of dy that meet x at each tap of a row */
} Rows;

/* What is fetched for the rows to come, by lines of a cache: for each column one of dy and one of x, or three where
 * strides leave x more. */
typedef struct Ahead { const float *dy, *x; bool more; } Ahead;

static Rows rows_of(const KConvDesc *d)
{
	Rows s = {.h = conv_axis(d, d->rank - 2, false), .w = conv_axis(d, d->rank - 1, false), .n = d->n, .c = d->c};
	for (int64_t k = 0; k < MIN(WIDEST, s.w.taps); k++) {
		int64_t before = s.w.left - k * s.w.dilation;
		s.first[k] = before <= 0 ? 0 : MIN(s.w.to, ceil_div(before, s.w.step));
		s.end[k] = s.w.from + before <= 0 ? 0 : MIN(s.w.to, ceil_div(s.w.from + before, s.w.step));
		s.end[k] = MAX(s.first[k], s.end[k]);
	}
	return s;
}

static int64_t sums_of(const Rows *s) { return s->h.taps * s->w.taps * s->c; }
static int64_t chunks_of(const Rows *s) { return MIN(K_DEPTHWISE_CHUNKS, s->n * s->h.to); }

INLINE void fetch_column(const Ahead *a, int64_t i)
{
	__builtin_prefetch(a->dy + i * LINE);
	if (a->more)
		fetch_early(a->x + i * 3 * LINE, 3 * 64);
	else
		__builtin_prefetch(a->x + i * LINE);
}

/* acc (taps, c) += sums over columns [from, to) of nv vectors of channels; taps and nv are constants once this is
 * inlined.  x: where column 0 meets it at the first tap; ahead: may be NULL. */
INLINE void sum_taps(int taps, int nv, const Rows *s, float *acc, const float *dy, const float *x, int64_t from,
	int64_t to, const Ahead *ahead)
{
	Vec sum[TAPS][DV];
	int64_t step = s->w.step * s->c, dilation = s->w.dilation * s->c;
	#pragma GCC unroll 4
	for (int k = 0; k < taps; k++)
		#pragma GCC unroll 4
		for (int j = 0; j < nv; j++)
			sum[k][j] = vec_load(acc + k * s->c + j * VW);
	for (int64_t i = from; i < to; i++) {
		if (ahead)
			fetch_column(ahead, i);
		#pragma GCC unroll 4
		for (int j = 0; j < nv; j++) {
			Vec g = vec_load(dy + i * s->c + j * VW);
			#pragma GCC unroll 4
			for (int k = 0; k < taps; k++)
				vec_fma(&sum[k][j], g, vec_load(x + i * step + k * dilation + j * VW));
		}
	}
	#pragma GCC unroll 4
	for (int k = 0; k < taps; k++)
		#pragma GCC unroll 4
		for (int j = 0; j < nv; j++)
			vec_store(acc + k * s->c + j * VW, sum[k][j]);
}

/* All taps of a row of the kernel: by threes where all three meet x, else one by one.  x: the row's first element. */
INLINE void sum_row(int nv, const Rows *s, float *acc, const float *dy, const float *x, const Ahead *ahead)
{
	x -= s->w.left * s->c;
	for (int64_t k = 0, n; k < s->w.taps; k += n) {
		n = k + TAPS <= s->w.taps ? TAPS : 1;
		int64_t from = s->first[k], to = MAX(from, s->end[k + n - 1]);
		const float *at = x + k * s->w.dilation * s->c;
		if (n == TAPS)
			sum_taps(TAPS, nv, s, acc + k * s->c, dy, at, from, to, k == 0 ? ahead : NULL);
		else
			sum_taps(1, nv, s, acc + k * s->c, dy, at, from, to, k == 0 ? ahead : NULL);
		for (int64_t l = k; l < k + n; l++, at += s->w.dilation * s->c) {
			sum_taps(1, nv, s, acc + l * s->c, dy, at, s->first[l], MIN(from, s->end[l]), NULL);
			sum_taps(1, nv, s, acc + l * s->c, dy, at, MAX(to, s->first[l]), s->end[l], NULL);
		}
	}
}

/* Part b of `parts` of what row r + 1 of dy meets and row r does not. */
static Ahead ahead_of(const Rows *s, const float *x, const float *dy, int64_t r, int64_t b, int64_t parts)
{
	int64_t n = s->w.to * s->c, nx = s->w.from * s->c * s->h.step;
	int64_t below = r % s->h.to * s->h.step + (s->h.taps - 1) * s->h.dilation - s->h.left + 1;
	return (Ahead){dy + (r + 1) * n + n * b / parts,
		x + (r / s->h.to * s->h.from + below) * s->w.from * s->c + nx * b / parts,
		s->h.step * s->w.step > 1};
}

/* Row r of dy, counted over all images: nv vectors of channels, from c0 on. */
INLINE void sum_block(int nv, const Rows *s, float *acc, const float *x, const float *dy, int64_t r, int64_t c0)
{
	int64_t image = r / s->h.to, row = s->w.from * s->c, taps = s->h.taps, blocks = ceil_div(s->c, nv * VW);
	for (int64_t k = 0; k < taps; k++) {
		int64_t q = conv_axis_met(&s->h, r % s->h.to, k);
		Ahead ahead = ahead_of(s, x, dy, r, c0 / (nv * VW) * taps + k, blocks * taps);
		if (q >= 0)
			sum_row(nv, s, acc + k * s->w.taps * s->c + c0, dy + r * s->w.to * s->c + c0,
				x + (image * s->h.from + q) * row + c0, &ahead);
	}
}

static void sum_chunk(const Rows *s, float *acc, const float *x, const float *dy, int64_t chunk)
{
	int64_t rows = s->n * s->h.to, chunks = chunks_of(s), wide = DV * VW, parts = ceil_div(s->c, wide);
	memset(acc, 0, (size_t)sums_of(s) * sizeof *acc);
	for (int64_t r = rows * chunk / chunks; r < rows * (chunk + 1) / chunks; r++)
		for (int64_t b = 0; b < parts; b++) {
			int64_t c = b * wide;
			if (c + wide <= s->c) {
				sum_block(DV, s, acc, x, dy, r, c);
				continue;
			}
			for (; c + 2 * VW <= s->c; c += 2 * VW)
				sum_block(2, s, acc, x, dy, r, c);
			for (; c < s->c; c += VW)
				sum_block(1, s, acc, x, dy, r, c);
		}
}

static void run(KPrim *p, PrimArgs *t, char *work)
{
	Rows s = rows_of(&p->conv);
	int64_t chunks = chunks_of(&s), taps = s.h.taps * s.w.taps;
	float *acc = (float *)(void *)work, *dw = t->at[0];
	#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < chunks; i++)
		sum_chunk(&s, acc + i * sums_of(&s), t->at[1], t->at[2], i);
	#pragma omp parallel for schedule(static)
	for (int64_t k = 0; k < taps; k++) {
		float *sum = acc + k * s.c;
		for (int64_t i = 1; i < chunks; i++)
			for (int64_t c = 0; c < s.c; c++)
				sum[c] += acc[(i * taps + k) * s.c + c];
		for (int64_t c = 0; c < s.c; c++)
			dw[c * taps + k] = sum[c];
	}
}

KPrim *conv_depthwise_grad_w_create(const KConvDesc *d)
{
	if (VW != 8 || d->dtype != K_F32 || d->layout != 1 || d->rank > 2 || d->c != d->group || d->o != d->group
		|| d->c % VW || d->kernel[d->rank - 1] > WIDEST)
		return NULL;
	Rows s = rows_of(d);
	int64_t work = chunks_of(&s) * sums_of(&s) * (int64_t)sizeof(float);
	int64_t bytes = d->n * d->c * (numel(d->rank, d->in) + numel(d->rank, d->out)) * (int64_t)sizeof(float);
	if (work > d->work_bytes || bytes < LARGE || s.w.to < NARROW)
		return NULL;
	KPrim *p = prim_new("own:depthwise");
	p->conv = *d;
	p->work = work;
	p->run = run;
	return p;
}
