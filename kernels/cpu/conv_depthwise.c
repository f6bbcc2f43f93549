/* kernels/cpu/conv_depthwise.c: depthwise convolutions of 16-bit channels-last data, and their gradients.
 *
 * x and y are read and written in 16 bits; sums are f32 and are rounded once.  CT channels, which fill a line of the
 * cache, are one task.  Each row of the operand is widened once, into a ring of the rows that a row of the result
 * meets; the ring holds a tile of columns that fits the nearest cache, with zeros for the padding and, in the gradient
 * of x, between the columns that stride skips.  So the gradient of x is the forward with its taps turned round.
 *
 * The gradient of w is summed by K_DEPTHWISE_CHUNKS runs of rows, whose sums are added in order.  No bit depends on the
 * number of threads.
 *
 * Returns NULL for f32 and f64, channels-first data, more than two spatial dims, packed weights, several outputs for a
 * channel, kernels of more than TALL rows, and dilations whose ring would not fit. */
#include "kernels/cpu/conv_axis.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/prim.h"
#include "kernels/work.h"

enum { CT = K_DEPTHWISE_CHANNELS, DV = CT / VW, COLS = VW == 16 ? 4 : 2, TAPS = 3, TALL = 32, BAND = 32 };
enum { WIDE_MOST = 64, RING = 192 }; /* columns of a tile of the result, and of all rows of a ring */

typedef struct Depthwise {
	ConvAxis h, w;
	int64_t n, c, blocks, slots; /* blocks of channels; rows of the ring */
	int64_t cols, tiles, wide;   /* columns of a tile of the result, tiles, columns of a row of the ring */
	KDType type;
	bool turned;                 /* the last tap of w comes first */
} Depthwise;

/* Rows of the operand, widened: row r is at ring + r % slots * wide * CT.  Those before next are there. */
typedef struct Ring { float at[RING * CT]; int64_t next; } Ring;

/* ---- geometry ---- */

static Depthwise depthwise_of(const KConvDesc *d, bool turned)
{
	Depthwise s = {.h = conv_axis(d, d->rank - 2, turned), .w = conv_axis(d, d->rank - 1, turned), .n = d->n, .c = d->c,
		.blocks = ceil_div(d->c, CT), .type = d->dtype, .turned = turned};
	int64_t reach = (s.w.taps - 1) * s.w.dilation + 1;
	s.slots = (s.h.taps - 1) * s.h.dilation / s.h.up + 1;
	int64_t most = RING / s.slots < reach ? 0 : MIN(WIDE_MOST, (RING / s.slots - reach) / s.w.step + 1) / COLS * COLS;
	if (most == 0)
		return s; /* cols 0: not served */
	s.cols = MIN(most, round_up(ceil_div(s.w.to, ceil_div(s.w.to, most)), COLS));
	s.tiles = ceil_div(s.w.to, s.cols);
	s.wide = (s.cols - 1) * s.w.step + reach;
	return s;
}

static int64_t taps_of(const Depthwise *s) { return s->h.taps * s->w.taps; }
static int64_t block_floats(const Depthwise *s) { return taps_of(s) * CT; }
static int64_t first_at_least(int64_t t, int64_t up) { return t <= 0 ? 0 : ceil_div(t, up); }

/* Channels of a block; a whole one has loops of constant length. */
INLINE void widen_block(float *to, const uint16_t *from, KDType t, int64_t n)
{
	if (n == CT)
		widen(to, from, t, CT);
	else
		widen(to, from, t, n);
}

INLINE void narrow_block(uint16_t *to, const float *from, KDType t, int64_t n)
{
	if (n == CT)
		narrow(to, from, t, CT);
	else
		narrow(to, from, t, n);
}

/* ---- the ring ---- */

static void ring_start(Ring *r, const Depthwise *s)
{
	memset(r->at, 0, (size_t)(s->slots * s->wide * CT) * sizeof *r->at);
	r->next = 0;
}

/* Brings the rows that row i of the result meets into the ring.  x: channels of the block in an image's first element;
 * col: the tile's first column. */
static void ring_fill(Ring *r, const Depthwise *s, const uint16_t *x, int64_t i, int64_t col, int64_t channels)
{
	int64_t top = i * s->h.step - s->h.left, bottom = top + (s->h.taps - 1) * s->h.dilation;
	int64_t left = col * s->w.step - s->w.left;
	int64_t a = first_at_least(left, s->w.up), b = MIN(s->w.from, first_at_least(left + s->wide, s->w.up));
	int64_t end = bottom < 0 ? 0 : MIN(s->h.from, bottom / s->h.up + 1);
	for (int64_t q = MAX(r->next, first_at_least(top, s->h.up)); q < end; q++) {
		float *to = r->at + (q % s->slots * s->wide - left) * CT;
		const uint16_t *from = x + q * s->w.from * s->c;
		for (int64_t p = a; p < b; p++)
			widen_block(to + p * s->w.up * CT, from + p * s->c, s->type, channels);
	}
	r->next = MAX(r->next, end);
}

/* The ring's row that row i meets at tap k; NULL: none. */
static const float *ring_row(const Ring *r, const Depthwise *s, int64_t i, int64_t k)
{
	int64_t q = conv_axis_met(&s->h, i, k);
	return q < 0 ? NULL : r->at + q % s->slots * s->wide * CT;
}

/* ---- forward, and the gradient of x ---- */

/* COLS columns of the result; x: where the first one's first tap is in each row. */
INLINE void sum_columns(float *to, const Depthwise *s, const float *const *rows, int64_t x, const float *w,
	const float *bias)
{
	Vec sum[COLS][DV];
	#pragma GCC unroll 8
	for (int i = 0; i < COLS; i++)
		#pragma GCC unroll 8
		for (int j = 0; j < DV; j++)
			sum[i][j] = vec_load(bias + j * VW);
	for (int64_t k = 0; k < s->h.taps; k++) {
		if (!rows[k]) {
			w += s->w.taps * CT;
			continue;
		}
		const float *at = rows[k] + x;
		for (int64_t l = 0; l < s->w.taps; l++, w += CT, at += s->w.dilation * CT)
			#pragma GCC unroll 8
			for (int j = 0; j < DV; j++) {
				Vec v = vec_load(w + j * VW);
				#pragma GCC unroll 8
				for (int i = 0; i < COLS; i++)
					sum[i][j] += v * vec_load(at + i * s->w.step * CT + j * VW);
			}
	}
	#pragma GCC unroll 8
	for (int i = 0; i < COLS; i++)
		#pragma GCC unroll 8
		for (int j = 0; j < DV; j++)
			vec_store(to + i * CT + j * VW, sum[i][j]);
}

/* One block of channels of a tile of columns and a band of rows of one image. */
static void band(const Depthwise *s, uint16_t *y, const uint16_t *x, const float *w, const float *bias, int64_t task)
{
	Ring ring;
	float wide[WIDE_MOST * CT];
	int64_t bands = ceil_div(s->h.to, BAND), c0 = task % s->blocks * CT, tile = task / s->blocks % s->tiles;
	int64_t from = task / s->blocks / s->tiles % bands * BAND, image = task / s->blocks / s->tiles / bands;
	int64_t channels = MIN(CT, s->c - c0), col = tile * s->cols, cols = MIN(s->cols, s->w.to - col);
	x += image * s->h.from * s->w.from * s->c + c0;
	y += (image * s->h.to * s->w.to + col) * s->c + c0;
	ring_start(&ring, s);
	for (int64_t i = from; i < MIN(from + BAND, s->h.to); i++) {
		const float *rows[TALL];
		ring_fill(&ring, s, x, i, col, channels);
		for (int64_t k = 0; k < s->h.taps; k++)
			rows[k] = ring_row(&ring, s, i, k);
		for (int64_t j = 0; j < cols; j += COLS)
			sum_columns(wide + j * CT, s, rows, j * s->w.step * CT, w + c0 * taps_of(s), bias + c0);
		for (int64_t j = 0; j < cols; j++)
			narrow_block(y + (i * s->w.to + j) * s->c, wide + j * CT, s->type, channels);
	}
}

/* Weights (c, taps) as [block][tap][CT], in the order in which they are met, and behind them the bias; zeros where
 * there is none. */
static void widen_weights(const Depthwise *s, float *to, const uint16_t *w, const uint16_t *bias)
{
	int64_t taps = taps_of(s);
	float *b = to + s->blocks * block_floats(s);
	memset(to, 0, (size_t)(s->blocks * (block_floats(s) + CT)) * sizeof *to);
	#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < s->blocks; i++) {
		float *block = to + i * block_floats(s);
		for (int64_t c = i * CT; c < MIN(s->c, (i + 1) * CT); c++)
			for (int64_t k = 0; k < taps; k++) {
				uint16_t v = w[c * taps + (s->turned ? taps - 1 - k : k)];
				block[k * CT + c % CT] = s->type == K_BF16 ? load_bf16(v) : load_f16(v);
			}
	}
	if (bias)
		widen(b, bias, s->type, s->c);
}

static void run(KPrim *p, PrimArgs *t, char *work, bool turned)
{
	Depthwise s = depthwise_of(&p->conv, turned);
	int64_t tasks = s.n * ceil_div(s.h.to, BAND) * s.tiles * s.blocks;
	float *w = (float *)(void *)work;
	widen_weights(&s, w, t->at[2], t->at[3]);
	#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < tasks; i++)
		band(&s, t->at[0], t->at[1], w, w + s.blocks * block_floats(&s), i);
}

static void forward(KPrim *p, PrimArgs *t, char *work) { run(p, t, work, false); }
static void grad_x(KPrim *p, PrimArgs *t, char *work) { run(p, t, work, true); }

/* ---- the gradient of w ---- */

/* acc (taps, CT) += sums over columns; taps is a constant once this is inlined. */
INLINE void sum_taps(int taps, float *acc, const float *dy, const float *x, int64_t cols, int64_t step,
	int64_t dilation)
{
	Vec sum[TAPS][DV];
	#pragma GCC unroll 4
	for (int k = 0; k < taps; k++)
		#pragma GCC unroll 8
		for (int j = 0; j < DV; j++)
			sum[k][j] = vec_load(acc + k * CT + j * VW);
	for (int64_t i = 0; i < cols; i++, dy += CT, x += step)
		#pragma GCC unroll 8
		for (int j = 0; j < DV; j++) {
			Vec g = vec_load(dy + j * VW);
			#pragma GCC unroll 4
			for (int k = 0; k < taps; k++)
				sum[k][j] += g * vec_load(x + k * dilation + j * VW);
		}
	#pragma GCC unroll 4
	for (int k = 0; k < taps; k++)
		#pragma GCC unroll 8
		for (int j = 0; j < DV; j++)
			vec_store(acc + k * CT + j * VW, sum[k][j]);
}

static void sum_row(const Depthwise *s, float *acc, const float *dy, const float *x, int64_t cols)
{
	int64_t step = s->w.step * CT, dilation = s->w.dilation * CT, k = 0;
	for (; k + TAPS <= s->w.taps; k += TAPS)
		sum_taps(TAPS, acc + k * CT, dy, x + k * dilation, cols, step, dilation);
	for (; k < s->w.taps; k++)
		sum_taps(1, acc + k * CT, dy, x + k * dilation, cols, step, dilation);
}

static int64_t chunks_of(const Depthwise *s) { return MIN(K_DEPTHWISE_CHUNKS, s->n * s->h.to); }

/* Sums of one block of channels over a chunk of rows of all images, into acc (taps, CT). */
static void sum_chunk(const Depthwise *s, float *acc, const uint16_t *x, const uint16_t *dy, int64_t chunk, int64_t c0)
{
	Ring ring;
	float wide[WIDE_MOST * CT] = {0};
	int64_t rows = s->n * s->h.to, chunks = chunks_of(s), channels = MIN(CT, s->c - c0);
	memset(acc, 0, (size_t)block_floats(s) * sizeof *acc);
	for (int64_t col = 0; col < s->w.to; col += s->cols) {
		int64_t cols = MIN(s->cols, s->w.to - col);
		ring_start(&ring, s);
		for (int64_t r = rows * chunk / chunks; r < rows * (chunk + 1) / chunks; r++) {
			int64_t image = r / s->h.to, i = r % s->h.to;
			if (i == 0)
				ring.next = 0;
			ring_fill(&ring, s, x + image * s->h.from * s->w.from * s->c + c0, i, col, channels);
			for (int64_t j = 0; j < cols; j++)
				widen_block(wide + j * CT, dy + (r * s->w.to + col + j) * s->c + c0, s->type, channels);
			for (int64_t k = 0; k < s->h.taps; k++) {
				const float *at = ring_row(&ring, s, i, k);
				if (at)
					sum_row(s, acc + k * s->w.taps * CT, wide, at, cols);
			}
		}
	}
}

/* dw (c, taps) of one block from the sums of all chunks. */
static void join_chunks(const Depthwise *s, void *dw, KDType to, const float *acc, int64_t block)
{
	int64_t chunks = chunks_of(s), taps = taps_of(s), n = block_floats(s);
	for (int64_t k = 0; k < taps; k++) {
		float sum[CT] = {0};
		for (int64_t i = 0; i < chunks; i++)
			for (int64_t j = 0; j < CT; j++)
				sum[j] += acc[(i * s->blocks + block) * n + k * CT + j];
		for (int64_t c = block * CT; c < MIN(s->c, (block + 1) * CT); c++)
			narrow((char *)dw + (c * taps + k) * type_bytes(to), sum + c % CT, to, 1);
	}
}

static void grad_w(KPrim *p, PrimArgs *t, char *work)
{
	Depthwise s = depthwise_of(&p->conv, false);
	int64_t tasks = chunks_of(&s) * s.blocks;
	float *acc = (float *)(void *)work;
	#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < tasks; i++)
		sum_chunk(&s, acc + i * block_floats(&s), t->at[1], t->at[2], i / s.blocks, i % s.blocks * CT);
	#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < s.blocks; i++)
		join_chunks(&s, t->at[0], p->conv.to, acc, i);
}

KPrim *conv_depthwise_create(const KConvDesc *d, ConvKind kind)
{
	static void (*const runs[])(KPrim *, PrimArgs *, char *) = {forward, grad_x, grad_w};
	if (!is_half(d->dtype) || d->layout != 1 || d->rank > 2 || d->w_layout || d->c != d->group || d->o != d->group)
		return NULL;
	Depthwise s = depthwise_of(d, kind == CONV_GRAD_X);
	int64_t floats = kind == CONV_GRAD_W ? chunks_of(&s) * block_floats(&s) : block_floats(&s) + CT;
	if (s.cols == 0 || s.h.taps > TALL || s.blocks * floats * (int64_t)sizeof(float) > d->work_bytes)
		return NULL;
	KPrim *p = prim_new("own:depthwise");
	p->conv = *d;
	p->work = s.blocks * floats * (int64_t)sizeof(float);
	p->run = runs[kind];
	return p;
}
