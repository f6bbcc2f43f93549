/* kernels/cpu/conv_grad_w_amx.c: weight gradients of bf16 channels-last convolutions of one or two spatial dims, on
 * tile units.
 *
 * dw[o][tap][c] = the sum over positions of dy[position][o] x[what the position meets at the tap][c], which is a
 * product of dy^T and of rows of patches.  The product packs these rows from where they lie in x, so no patch is in
 * memory: by taps, whose channels lie side by side; of few channels by lines of taps, up to 32 numbers of x, and what
 * lies behind a shorter line is summed as well and not used.  Sums are f32, and their order depends on shapes alone.
 *
 * Returns NULL for all else: channels that are neither few nor a multiple of 32, few outputs, groups; and where its
 * scratch does not fit.  conv.c then asks others. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv_axis.h"
#include "kernels/cpu/conv_sums.h"
#include "kernels/cpu/matmul_amx.h"
#include "kernels/cpu/prim.h"

#if defined HAS_AMX

typedef struct Source {
	const KConvDesc *d;
	ConvAxis high, wide;
	const uint16_t *x;
} Source;

static Source source_of(const KConvDesc *d, const void *x)
{
	return (Source){d, conv_axis(d, d->rank - 2, false), conv_axis(d, d->rank - 1, false), x};
}

/* A position of dy. */
typedef struct Position { int64_t image, line, column; } Position;

static Position position_of(const Source *s, int64_t k)
{
	int64_t line = k / s->wide.to;
	return (Position){line / s->high.to, line % s->high.to, k % s->wide.to};
}

static void step(const Source *s, Position *at)
{
	if (++at->column < s->wide.to)
		return;
	at->column = 0;
	if (++at->line == s->high.to) {
		at->line = 0;
		at->image++;
	}
}

/* Where x has what positions [k, k + n) of dy meet at a tap. */
static void find_tap(const void *from, int64_t k, int64_t n, int64_t tap, const uint16_t **row, GatheredSpare *spare)
{
	const Source *s = from;
	(void)spare;
	Position at = position_of(s, k);
	int64_t i = tap / s->wide.taps, j = tap % s->wide.taps;
	for (int64_t r = 0; r < n; r++, step(s, &at)) {
		int64_t h = conv_axis_met(&s->high, at.line, i), w = conv_axis_met(&s->wide, at.column, j);
		row[r] = h < 0 || w < 0 ? NULL : s->x + ((at.image * s->high.from + h) * s->wide.from + w) * s->d->c;
	}
}

/* The same of a line of taps.  What reaches beyond a row of x, or 32 numbers beyond x, is copied. */
static void find_line(const void *from, int64_t k, int64_t n, int64_t i, const uint16_t **row, GatheredSpare *spare)
{
	const Source *s = from;
	Position at = position_of(s, k);
	int64_t c = s->d->c, width = s->wide.taps * c, all = s->wide.from * c, rows = s->d->n * s->high.from;
	for (int64_t r = 0; r < n; r++, step(s, &at)) {
		int64_t h = conv_axis_met(&s->high, at.line, i), first = (at.column * s->wide.step - s->wide.left) * c;
		int64_t before = MAX(0, -first), end = MIN(width, all - first);
		int64_t line = at.image * s->high.from + MAX(0, h);
		const uint16_t *x = s->x + line * all;
		if (h < 0 || before >= end) {
			row[r] = NULL;
		} else if (before == 0 && end == width && first + PANEL <= (rows - line) * all) {
			row[r] = x + first;
		} else {
			memset(spare[r], 0, sizeof spare[r]);
			memcpy(spare[r] + before, x + first + before, (size_t)(end - before) * sizeof *x);
			row[r] = spare[r];
		}
	}
}

/* Which of the two ways serves d; NONE: neither. */
typedef enum Way { NONE, BY_TAPS, BY_LINES } Way;
static Way way_of(const KConvDesc *d)
{
	int64_t line = d->kernel[d->rank - 1] * d->c;
	if (d->dtype != K_BF16 || d->rank > 2 || d->layout != 1 || d->w_layout || d->group != 1 || d->o < PANEL)
		return NONE;
	if (d->c % PANEL == 0)
		return BY_TAPS;
	return d->dilation[d->rank - 1] == 1 && line <= PANEL && line >= PANEL / 4 ? BY_LINES : NONE;
}

/* Columns of a part, and its taps. */
static int64_t width_of(const KConvDesc *d) { return way_of(d) == BY_TAPS ? d->c : PANEL; }
static int64_t line_of(const KConvDesc *d) { return way_of(d) == BY_TAPS ? 1 : d->kernel[d->rank - 1]; }

static KMatmulDesc product_of(const KConvDesc *d)
{
	int64_t columns = numel(d->rank, d->kernel) / line_of(d) * width_of(d);
	return (KMatmulDesc){.dtype = K_BF16, .to = K_F32, .m = d->o, .n = columns, .k = d->n * numel(d->rank, d->out),
		.ta = true, .lda = d->o, .ldy = columns};
}

static int64_t sums_bytes(const KMatmulDesc *m) { return round_up(m->m * m->n * 4, 64); }

static void run(KPrim *p, PrimArgs *t, char *work)
{
	const KConvDesc *d = &p->conv;
	const KMatmulDesc *m = &p->matmul;
	Source s = source_of(d, t->at[1]);
	Gathered rows = {width_of(d), way_of(d) == BY_TAPS ? find_tap : find_line, &s};
	float *sums = (float *)(void *)work;
	int64_t taps = numel(d->rank, d->kernel), line = line_of(d), bytes = taps * d->c * type_bytes(d->to);
	matmul_amx_gathered(m, sums, t->at[2], &rows, work + sums_bytes(m));
	#pragma omp parallel for schedule(static)
	for (int64_t o = 0; o < d->o; o++)
		put_sums((char *)t->at[0] + o * bytes, d->to, sums + o * m->n, d->c, taps, line, rows.width);
}

KPrim *conv_grad_w_amx_create(const KConvDesc *d)
{
	if (way_of(d) == NONE)
		return NULL;
	KMatmulDesc m = product_of(d);
	m.work_bytes = d->work_bytes - sums_bytes(&m);
	int64_t bytes = matmul_amx_gathered_work(&m);
	if (bytes < 0)
		return NULL;
	KPrim *p = prim_new("own:amx");
	p->conv = *d;
	p->matmul = m;
	p->work = sums_bytes(&m) + bytes;
	p->run = run;
	return p;
}

#else
KPrim *conv_grad_w_amx_create(const KConvDesc *d)
{
	(void)d;
	return NULL;
}
#endif
