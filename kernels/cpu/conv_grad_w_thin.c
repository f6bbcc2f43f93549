/* kernels/cpu/conv_grad_w_thin.c: f32 weight gradients of channels-last convolutions of one or two spatial dims whose
 * input has few channels, as a network's first convolution has.
 *
 * Taps along a row lie side by side with their channels.  So for each row of the kernel a row of dy adds the product
 * (taps x channels, outputs) += x^T dy over its positions, with x as it lies, or copied between zeros where the kernel
 * reaches beyond it.  Sums of CHUNKS runs of rows are added in order: the number of threads changes no bit.
 *
 * Returns NULL for other types and layouts, groups, dilation along a row, outputs that fill no whole vectors, vectors
 * of other than 8 floats, where this has not been measured, and where others are faster: for more channels, of which
 * there are more than outputs or than THIN, and for rows below LONG positions. */
#include "kernels/cpu/conv_axis.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/prim.h"

enum { MOST = 6 /* rows of a tile */, CHUNKS = 16, THIN = 24 /* channels */, LONG = 32 /* positions of a row */ };

typedef struct Thin {
	ConvAxis h, w;
	int64_t n, c, o;
	int64_t wide;  /* columns that a row of dy meets */
	bool copied;   /* not all of them are x's */
} Thin;

static Thin thin_of(const KConvDesc *d)
{
	Thin t = {.h = conv_axis(d, d->rank - 2, false), .w = conv_axis(d, d->rank - 1, false), .n = d->n, .c = d->c,
		.o = d->o};
	t.wide = (t.w.to - 1) * t.w.step + t.w.taps;
	t.copied = t.w.left > 0 || t.wide > t.w.from;
	return t;
}

static int64_t chunks_of(const Thin *t) { return MIN(CHUNKS, t->n * t->h.to); }
static int64_t row_floats(const Thin *t) { return t->copied ? round_up(t->wide * t->c, 16) : 0; }
static int64_t sum_floats(const Thin *t) { return t->h.taps * t->w.taps * t->c * t->o; }

/* A row of x from column -left on */
static const float *row_at(const Thin *t, float *copy, const float *x)
{
	int64_t before = MIN(t->w.left, t->wide), inside = MIN(t->w.from, t->wide - before);
	if (!t->copied)
		return x;
	memset(copy, 0, (size_t)(before * t->c) * sizeof *x);
	memcpy(copy + before * t->c, x, (size_t)(inside * t->c) * sizeof *x);
	memset(copy + (before + inside) * t->c, 0, (size_t)((t->wide - before - inside) * t->c) * sizeof *x);
	return copy;
}

/* Sums over the positions of one row; ahead: NULL, or what is fetched meanwhile, a vector for each. */
typedef void Tile(const Thin *t, const float *a, const float *b, float *c, const float *ahead);
#define TILE(m, nv) \
static void tile_##m##_##nv(const Thin *t, const float *a, const float *b, float *c, const float *ahead) \
{ \
	gemm_tile(false, m, nv, t->w.to, a, 1, t->w.step * t->c, b, t->o, c, t->o, true, ahead); \
}
#define TILES(X, nv) X(1, nv) X(2, nv) X(3, nv) X(4, nv) X(5, nv) X(6, nv)
TILES(TILE, 1)
TILES(TILE, 2)
#define NAME(m, nv) tile_##m##_##nv,
static Tile *const tiles[3][MOST + 1] = {{NULL}, {NULL, TILES(NAME, 1)}, {NULL, TILES(NAME, 2)}};

/* acc (taps x channels, outputs) += x^T dy of one row.  Meanwhile [*ahead, end) is fetched, or a part of it. */
static void add_product(const Thin *t, float *acc, const float *x, const float *dy, const float **ahead,
	const float *end)
{
	int64_t m = t->w.taps * t->c;
	for (int64_t j = 0, nv; j < t->o; j += nv * VW) {
		nv = j + NR <= t->o ? NV : 1;
		for (int64_t i = 0; i < m; i += MOST) {
			tiles[nv][MIN(MOST, m - i)](t, x + i, dy + j, acc + i * t->o + j, *ahead < end ? *ahead : NULL);
			*ahead += t->w.to * VW;
		}
	}
}

/* Sums of a chunk of rows of dy, counted over all images: (rows of the kernel, taps x channels, outputs). */
static void sum_chunk(const Thin *t, float *acc, float *copy, const float *x, const float *dy, int64_t chunk)
{
	int64_t rows = t->n * t->h.to, chunks = chunks_of(t), m = t->w.taps * t->c, row = t->w.to * t->o;
	memset(acc, 0, (size_t)sum_floats(t) * sizeof *acc);
	for (int64_t r = rows * chunk / chunks; r < rows * (chunk + 1) / chunks; r++) {
		const float *ahead = dy + (r + 1) * row, *end = r + 1 < rows ? ahead + row : ahead;
		for (int64_t k = 0; k < t->h.taps; k++) {
			int64_t q = conv_axis_met(&t->h, r % t->h.to, k);
			if (q < 0)
				continue;
			const float *a = row_at(t, copy, x + (r / t->h.to * t->h.from + q) * t->w.from * t->c);
			add_product(t, acc + k * m * t->o, a, dy + r * row, &ahead, end);
		}
	}
}

/* Row i of the sums, added over the chunks, is dw (o, c, taps) of one tap and channel. */
static void join_chunks(const Thin *t, float *dw, float *acc, int64_t i)
{
	int64_t taps = t->h.taps * t->w.taps, at = i % t->c * taps + i / t->c;
	float *sum = acc + i * t->o;
	for (int64_t k = 1; k < chunks_of(t); k++)
		for (int64_t o = 0; o < t->o; o++)
			sum[o] += acc[k * sum_floats(t) + i * t->o + o];
	for (int64_t o = 0; o < t->o; o++)
		dw[o * t->c * taps + at] = sum[o];
}

static void run(KPrim *p, PrimArgs *args, char *work)
{
	Thin t = thin_of(&p->conv);
	int64_t chunks = chunks_of(&t), n = sum_floats(&t);
	float *acc = (float *)(void *)work, *copies = acc + chunks * n;
	#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < chunks; i++)
		sum_chunk(&t, acc + i * n, copies + i * row_floats(&t), args->at[1], args->at[2], i);
	#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < n / t.o; i++)
		join_chunks(&t, args->at[0], acc, i);
}

KPrim *conv_grad_w_thin_create(const KConvDesc *d)
{
	int last = d->rank - 1;
	if (VW != 8 || d->dtype != K_F32 || d->layout != 1 || d->rank > 2 || d->group != 1 || d->c > MIN(THIN, d->o)
		|| d->o % VW || d->out[last] < LONG || (d->kernel[last] > 1 && d->dilation[last] > 1))
		return NULL;
	Thin t = thin_of(d);
	int64_t work = chunks_of(&t) * (sum_floats(&t) + row_floats(&t)) * (int64_t)sizeof(float);
	if (work > d->work_bytes)
		return NULL;
	KPrim *p = prim_new("own:thin");
	p->conv = *d;
	p->work = work;
	p->run = run;
	return p;
}
