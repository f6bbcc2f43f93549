/* kernels/cpu/conv_grad_w.c: weight gradients of channels-last convolutions of one or two spatial dims.
 *
 * dw[o][c][kh][kw] = the sum over positions of dy[position][o] x[position * stride + tap][c].  For each tap this is a
 * matrix product whose k axis is the positions.  Chunks of positions are packed once: dy as [o tile][position][MR], x
 * as [c tile][row][column][NV vectors] with its padding, so that all taps read the same copy at different offsets and
 * none has a special case at the edge.  One thread keeps a tile of dw in registers over a chunk and adds chunk by
 * chunk, in order, so the number of threads changes no bit.
 *
 * 16-bit operands are widened as they are packed.  bf16 is not where vectors multiply it: then an element of a packed
 * row is a pair of two positions that follow each other in a row of dy, which a single step adds to dw.
 *
 * Returns NULL for groups, three spatial dims, channels-first data, f64, and few channels; and for what tile units
 * multiply as patches, two to five times as fast.  conv.c then asks oneDNN, conv_patch.c or conv_plain.c. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/prim.h"
#include "kernels/work.h"

enum { CT = NV * VW, OT = MR, CHUNK = K_TAPS_CHUNK }; /* channels and outputs of a tile */

typedef struct Taps {
	int64_t n, c, o, h, w, oh, ow, kh, kw, sh, sw, dh, dw, ph, pw;
	int64_t wp;            /* columns of a packed row of x */
	bool pairs;            /* of positions, in bf16 */
	int64_t steps;         /* of a row of dy: its positions, or pairs of them */
	int64_t images, rows;  /* images of a chunk, and output rows of each in it */
	int64_t c_tiles, o_tiles;
	KDType type, to;       /* of x and dy; of dw */
} Taps;

/* Where a chunk begins and how much of it there is. */
typedef struct Chunk { int64_t image, images, row, rows, x_rows; } Chunk;

static Taps taps_of(const KConvDesc *d)
{
	int a = d->rank == 2 ? 0 : -1, b = d->rank - 1; /* one spatial dim is an image of height 1 */
#define DIM(array, otherwise) (a < 0 ? (otherwise) : (array)[0])
	Taps t = {.n = d->n, .c = d->c, .o = d->o, .h = DIM(d->in, 1), .w = d->in[b], .oh = DIM(d->out, 1),
		.ow = d->out[b], .kh = DIM(d->kernel, 1), .kw = d->kernel[b], .sh = DIM(d->stride, 1),
		.sw = d->stride[b], .dh = DIM(d->dilation, 1), .dw = d->dilation[b], .ph = DIM(d->pad, 0),
		.pw = d->pad[b]};
#undef DIM
	t.wp = (t.ow - 1) * t.sw + (t.kw - 1) * t.dw + 1;
	t.rows = MIN(t.oh, ceil_div(CHUNK, t.ow));
	t.images = t.rows < t.oh ? 1 : MIN(t.n, ceil_div(CHUNK, t.oh * t.ow));
	t.type = d->dtype;
	t.pairs = HAS_PAIRS && t.type == K_BF16;
	t.steps = t.pairs ? ceil_div(t.ow, 2) : t.ow;
	t.to = is_half(d->dtype) ? d->to : K_F32;
	t.c_tiles = ceil_div(t.c, CT);
	t.o_tiles = ceil_div(t.o, OT);
	return t;
}

static int64_t x_rows(const Taps *t, int64_t rows) { return (rows - 1) * t->sh + (t->kh - 1) * t->dh + 1; }
static int64_t x_floats(const Taps *t)
{
	return round_up(t->c_tiles * t->images * x_rows(t, t->rows) * t->wp * CT, 16);
}
static int64_t dy_floats(const Taps *t)
{
	return round_up(t->o_tiles * t->images * t->rows * t->steps * OT, 16);
}
static int64_t dw_floats(const Taps *t) { return t->c_tiles * t->o_tiles * t->kh * t->kw * OT * CT; }

/* to (`all`) = pairs of n elements of a and of b; NULL, and what is behind n: zeros. */
INLINE void put_pairs(float *to, int64_t all, const uint16_t *a, const uint16_t *b, int64_t n)
{
	uint32_t pair[MAX(CT, OT)] = {0};
	for (int64_t i = 0; a && i < n; i++)
		pair[i] = a[i];
	for (int64_t i = 0; b && i < n; i++)
		pair[i] |= (uint32_t)b[i] << 16;
	memcpy(to, pair, (size_t)all * sizeof *to);
}

/* One row of x, n channels of it, as pairs of columns that positions next to each other read.  The last pair of an odd
 * row meets a zero of dy, which hides any x but inf and NaN. */
static void pack_x_pairs(const Taps *t, float *to, const uint16_t *row, int64_t n)
{
	for (int64_t i = 0; i < t->wp; i++, to += CT) {
		int64_t w = i - t->pw, next = w + t->sw;
		put_pairs(to, CT, row && w >= 0 && w < t->w ? row + w * t->c : NULL,
			row && next >= 0 && next < t->w ? row + next * t->c : NULL, n);
	}
}

/* Packs one row of x; task = (c tile, image, row). */
static void pack_x(const Taps *t, const Chunk *k, float *to, const void *x, int64_t task)
{
	int64_t row = task % k->x_rows, image = task / k->x_rows % k->images;
	int64_t c0 = task / k->x_rows / k->images * CT;
	int64_t h = k->row * t->sh - t->ph + row, n = MIN(CT, t->c - c0);
	int64_t at = ((k->image + image) * t->h + h) * t->w * t->c + c0;
	const float *from = (const float *)x + (t->type == K_F32 ? at : 0);
	if (t->pairs) {
		pack_x_pairs(t, to, h >= 0 && h < t->h ? (const uint16_t *)x + at : NULL, n);
		return;
	}
	for (int64_t i = 0; i < t->wp; i++, to += CT) {
		int64_t w = i - t->pw;
		bool inside = h >= 0 && h < t->h && w >= 0 && w < t->w;
		if (t->type != K_F32) {
			if (inside)
				widen(to, at_element(x, t->type, at + w * t->c), t->type, n);
			memset(to + (inside ? n : 0), 0, (size_t)(CT - (inside ? n : 0)) * sizeof *to);
			continue;
		}
		if (inside && n == CT) {
			for (int j = 0; j < NV; j++)
				vec_store(to + j * VW, vec_load(from + w * t->c + j * VW));
			continue;
		}
		for (int64_t j = 0; j < CT; j++)
			to[j] = inside && j < n ? from[w * t->c + j] : 0;
	}
}

/* Packs the outputs of one position, or of two (both: the second is in the image), tile by tile; tiles are `tile`
 * floats apart. */
static void pack_dy(const Taps *t, float *to, int64_t tile, const void *dy, int64_t at, bool both)
{
	const float *from = (const float *)dy + (t->type == K_F32 ? at : 0);
	const uint16_t *pair = (const uint16_t *)dy + (t->pairs ? at : 0);
	int64_t o = 0;
	for (; t->pairs && o < t->o; o += OT, to += tile)
		put_pairs(to, OT, pair + o, both ? pair + t->o + o : NULL, MIN(OT, t->o - o));
	for (; t->type != K_F32 && o < t->o; o += OT, to += tile) {
		int64_t n = MIN(OT, t->o - o);
		widen(to, at_element(dy, t->type, at + o), t->type, n);
		memset(to + n, 0, (size_t)(OT - n) * sizeof *to);
	}
	for (; o + OT <= t->o; o += OT, to += tile)
		memcpy(to, from + o, OT * sizeof *to);
	for (int64_t i = 0; o < t->o && i < OT; i++)
		to[i] = o + i < t->o ? from[o + i] : 0;
}

/* acc (rows, CT) = the sum over a chunk's positions, or += with add.  pairs and rows are constants once this is
 * inlined. */
INLINE void sum_rows(bool pairs, int rows, float *acc, const float *dy, const float *x, const Taps *t, const Chunk *k,
	bool add)
{
	Vec s[OT][NV];
	int64_t xc = (pairs ? 2 : 1) * t->sw * CT, xr = t->sh * t->wp * CT, xi = k->x_rows * t->wp * CT;
	#pragma GCC unroll 16
	for (int i = 0; i < rows; i++)
		#pragma GCC unroll 4
		for (int j = 0; j < NV; j++)
			s[i][j] = add ? vec_load(acc + i * CT + j * VW) : (Vec){0};
	for (int64_t r = 0; r < k->images * k->rows; r++) {
		const float *b = x + r / k->rows * xi + r % k->rows * xr;
		int64_t p = 0;
		for (; p + TURN <= t->steps; p += TURN, dy += TURN * OT)
			gemm_steps(pairs, rows, NV, TURN, s, dy, 1, OT, b + p * xc, xc);
		for (; p < t->steps; p++, dy += OT)
			gemm_steps(pairs, rows, NV, 1, s, dy, 1, OT, b + p * xc, xc);
	}
	#pragma GCC unroll 16
	for (int i = 0; i < rows; i++)
		#pragma GCC unroll 4
		for (int j = 0; j < NV; j++)
			vec_store(acc + i * CT + j * VW, s[i][j]);
}

/* The last tile, which has few outputs, in as few rows as will do. */
INLINE void sum_outputs(bool pairs, float *acc, const float *dy, const float *x, const Taps *t, const Chunk *k,
	int64_t outputs, bool add)
{
	if (outputs <= OT / 3)
		sum_rows(pairs, OT / 3, acc, dy, x, t, k, add);
	else if (outputs <= OT * 2 / 3)
		sum_rows(pairs, OT * 2 / 3, acc, dy, x, t, k, add);
	else
		sum_rows(pairs, OT, acc, dy, x, t, k, add);
}

static void sum_tile(float *acc, const float *dy, const float *x, const Taps *t, const Chunk *k, int64_t outputs,
	bool add)
{
	if (HAS_PAIRS && t->pairs)
		sum_outputs(true, acc, dy, x, t, k, outputs, add);
	else
		sum_outputs(false, acc, dy, x, t, k, outputs, add);
}

/* Tiles [c tile][o tile][tap][OT][CT] -> dw (o, c, taps) */
static void unpack(const Taps *t, void *dw, const float *acc, int64_t task)
{
	int64_t taps = t->kh * t->kw, o0 = task % t->o_tiles * OT, c0 = task / t->o_tiles * CT;
	const float *from = acc + task * taps * OT * CT;
	for (int64_t o = 0; o < OT && o0 + o < t->o; o++)
		for (int64_t c = 0; c < CT && c0 + c < t->c; c++)
			for (int64_t k = 0; k < taps; k++)
				narrow((char *)dw + (((o0 + o) * t->c + c0 + c) * taps + k) * type_bytes(t->to),
					from + (k * OT + o) * CT + c, t->to, 1);
}

static Chunk chunk_at(const Taps *t, int64_t i)
{
	int64_t per_image = ceil_div(t->oh, t->rows);
	Chunk k = {.image = i / per_image * t->images, .row = i % per_image * t->rows};
	k.images = MIN(t->images, t->n - k.image);
	k.rows = MIN(t->rows, t->oh - k.row);
	k.x_rows = x_rows(t, k.rows);
	return k;
}

static void run(KPrim *p, PrimArgs *args, char *work)
{
	Taps t = taps_of(&p->conv);
	const void *x = args->at[1], *dy = args->at[2];
	float *xp = (float *)(void *)work, *dyp = xp + x_floats(&t), *acc = dyp + dy_floats(&t);
	int64_t chunks = ceil_div(t.n, t.images) * ceil_div(t.oh, t.rows), tiles = t.c_tiles * t.o_tiles;
	#pragma omp parallel
	for (int64_t i = 0; i < chunks; i++) {
		Chunk k = chunk_at(&t, i);
		int64_t steps = k.images * k.rows * t.steps, taps = t.kh * t.kw;
		#pragma omp for schedule(static) nowait
		for (int64_t j = 0; j < t.c_tiles * k.images * k.x_rows; j++)
			pack_x(&t, &k, xp + j * t.wp * CT, x, j);
		#pragma omp for schedule(static)
		for (int64_t j = 0; j < steps; j++) {
			int64_t row = j / t.steps, column = j % t.steps * (t.pairs ? 2 : 1);
			row = (k.image + row / k.rows) * t.oh + k.row + row % k.rows;
			pack_dy(&t, dyp + j * OT, steps * OT, dy, (row * t.ow + column) * t.o, column + 1 < t.ow);
		}
		#pragma omp for schedule(static)
		for (int64_t j = 0; j < tiles * taps; j++) {
			int64_t tap = j % taps, ct = j / taps / t.o_tiles, ot = j / taps % t.o_tiles;
			int64_t at = (tap / t.kw * t.dh * t.wp + tap % t.kw * t.dw) * CT;
			sum_tile(acc + j * OT * CT, dyp + ot * steps * OT,
				xp + ct * k.images * k.x_rows * t.wp * CT + at, &t, &k, t.o - ot * OT, i > 0);
		}
	}
	#pragma omp parallel for schedule(static)
	for (int64_t j = 0; j < tiles; j++)
		unpack(&t, args->at[0], acc, j);
}

/* As products of patches, which are (o, positions) x (positions, taps of all channels). */
static bool tiles_serve(const KConvDesc *d)
{
	return d->dtype == K_BF16 && d->o >= 32 && d->c * numel(d->rank, d->kernel) >= 128 && tiles_ready();
}

KPrim *conv_grad_w_create(const KConvDesc *d)
{
	bool few = d->c < VW || d->o < OT / 2; /* most of a tile would be padding */
	if (d->dtype == K_F64 || d->rank > 2 || !d->layout || d->group != 1 || few || tiles_serve(d))
		return NULL;
	Taps t = taps_of(d);
	int64_t bytes = (x_floats(&t) + dy_floats(&t) + dw_floats(&t)) * 4;
	if (bytes > d->work_bytes)
		return NULL;
	KPrim *p = prim_new("own:taps");
	p->conv = *d;
	p->work = bytes;
	p->run = run;
	return p;
}
