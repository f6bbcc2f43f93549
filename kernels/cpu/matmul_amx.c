/* kernels/cpu/matmul_amx.c: products of bf16 matrices on tile units (AMX).
 *
 * A tile is 16 lines of 64 bytes.  One instruction adds the product of two tiles to a third: of a's rows by columns of
 * 32 bf16, and of 16 pairs of b's rows by 16 columns.  Both operands are packed into such tiles first, in work, by all
 * threads together: an operand whose rows lie the other way is turned on the way.  Then each thread computes a
 * rectangle of y by blocks of 32 x 32, which stay in four tiles over DEEP of k.  For longer k sums are kept in y where
 * it is f32, else in work, and rounded once.  An element is one chain of sums in the order of k, whose cuts depend on k
 * alone: so bits do not depend on the number of threads.  Denormals count as zero.
 *
 * The order of loops is that of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008). */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/grid.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/prim.h"
#include "kernels/cpu/team.h"

#if defined HAS_AMX

/* Sums of a square; most of k that is summed at once; most rows and columns of a block; how many bytes of b's panels
 * are kept in the second cache while the panels of a pass by. */
enum { SQUARE = PANEL * PANEL, DEEP = 3072, MOST_SIDE = 1024, NEAR = 1 << 20 };

/* ---- packing ---- */

/* A matrix of rows `row` apart.  by_k: its rows are those of k, so a step of a tile is STEP of its rows; else SIDE rows
 * by STEP columns.  turn: these lines are columns of the tile, as pairs. */
typedef struct Operand { const uint16_t *at; int64_t row; bool by_k, turn; } Operand;

/* The first n of the 16 numbers at p, as 32-bit integers. */
INLINE __m512i wide_line(const uint16_t *p, __mmask16 n)
{
	return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(n, p));
}

/* One tile; `lines` rows of n columns are there, what is beyond counts as zero. */
INLINE void pack_tile(uint16_t *to, const uint16_t *from, int64_t row, int64_t lines, int64_t n, bool by_k, bool turn)
{
	__m512i v[SIDE];
	__mmask32 columns = (__mmask32)((1ull << n) - 1);
	#pragma GCC unroll 16
	for (int i = 0; i < SIDE; i++) {
		if (by_k) {
			__m512i low = 2 * i < lines ? wide_line(from + 2 * i * row, (__mmask16)columns) : _mm512_setzero_si512();
			__m512i high = 2 * i + 1 < lines ? wide_line(from + (2 * i + 1) * row, (__mmask16)columns) :
				_mm512_setzero_si512();
			v[i] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
		} else {
			v[i] = i < lines ? _mm512_maskz_loadu_epi16(columns, from + i * row) : _mm512_setzero_si512();
		}
	}
	if (turn)
		turn_lines(v);
	#pragma GCC unroll 16
	for (int i = 0; i < SIDE; i++)
		_mm512_store_si512(to + i * STEP, v[i]);
}

/* Of the panel's `count` rows of a or columns of b from `first` on, the elements [k, k + depth) of k, by steps of two
 * tiles. */
INLINE void pack_panel_as(uint16_t *to, const Operand *x, int64_t first, int64_t count, int64_t k, int64_t depth,
	bool by_k, bool turn)
{
	for (int64_t s = 0; s < depth; s += STEP)
		for (int64_t h = 0; h < PANEL; h += SIDE, to += TILE) {
			int64_t across = MAX(0, MIN(SIDE, count - h)), along = MIN(STEP, depth - s);
			const uint16_t *from = x->at + (by_k ? (k + s) * x->row + first + h : (first + h) * x->row + k + s);
			if (across == SIDE && along == STEP)
				pack_tile(to, from, x->row, by_k ? STEP : SIDE, by_k ? SIDE : STEP, by_k, turn);
			else
				pack_tile(to, from, x->row, by_k ? along : across, by_k ? across : along, by_k, turn);
		}
}

static void pack_panel(uint16_t *to, const Operand *x, int64_t first, int64_t count, int64_t k, int64_t depth)
{
	if (x->by_k && x->turn)
		pack_panel_as(to, x, first, count, k, depth, true, true);
	else if (x->by_k)
		pack_panel_as(to, x, first, count, k, depth, true, false);
	else if (x->turn)
		pack_panel_as(to, x, first, count, k, depth, false, true);
	else
		pack_panel_as(to, x, first, count, k, depth, false, false);
}

/* ---- a block of y ---- */

/* Rows [i, i + m) and columns [j, j + n) of y, summed over [k, k + depth) in `steps`; its packed operands, and its sums
 * by 32 x 32 where k has more than one part and y is not f32. */
typedef struct Block {
	const KMatmulDesc *d;
	char *y;
	const uint16_t *bias;
	int64_t i, j, m, n, k, depth, steps;
	uint16_t *a, *b;
	float *sums;
} Block;

static char *element(const Block *x, int64_t i, int64_t j)
{
	return x->y + ((x->i + i) * x->d->ldy + x->j + j) * type_bytes(x->d->to);
}

/* m rows of n columns of c + bias as bf16. */
static void put_half(uint16_t *to, int64_t row, const float *c, const uint16_t *bias, int64_t m, int64_t n)
{
	__mmask32 columns = (__mmask32)((1ull << n) - 1);
	__m512 low = _mm512_setzero_ps(), high = low;
	if (bias) {
		low = _mm512_castsi512_ps(_mm512_slli_epi32(wide_line(bias, (__mmask16)columns), 16));
		high = _mm512_castsi512_ps(_mm512_slli_epi32(wide_line(bias + SIDE, (__mmask16)(columns >> SIDE)), 16));
	}
	for (int64_t r = 0; r < m; r++, c += PANEL, to += row) {
		__m512bh both = _mm512_cvtne2ps_pbh(_mm512_add_ps(_mm512_load_ps(c + SIDE), high),
			_mm512_add_ps(_mm512_load_ps(c), low));
		_mm512_mask_storeu_epi16(to, columns, (__m512i)both);
	}
}

/* The same in f32; add: y += c. */
static void put_float(float *to, int64_t row, const float *c, const uint16_t *bias, int64_t m, int64_t n, bool add)
{
	float more[PANEL] = {0};
	if (bias)
		widen_bf16(more, bias, n);
	for (int64_t r = 0; r < m; r++, c += PANEL, to += row)
		for (int64_t l = 0; l < n; l++)
			to[l] = c[l] + (add ? to[l] : more[l]);
}

/* Writes m rows of n columns of c to y at (i, j), with what is added to them; the bias to the first part of k. */
static void put(const Block *x, const float *c, int64_t i, int64_t j, int64_t m, int64_t n, bool add)
{
	const uint16_t *bias = x->bias && (x->k == 0 || x->sums) ? x->bias + x->j + j : NULL;
	void *to = element(x, i, j);
	if (x->d->to == K_F32)
		put_float(to, x->d->ldy, c, bias, m, n, add);
	else
		put_half(to, x->d->ldy, c, bias, m, n);
}

/* c (32, 32) = or += packed panels of a and b. */
static void multiply(float *c, int64_t cr, const uint16_t *a, const uint16_t *b, int64_t steps, bool add)
{
	enum { BYTES = TILE * 2 };
	tiles_square(c, cr, add, steps, (const char *)a, 64, 2 * BYTES, BYTES, (const char *)b, 64, 2 * BYTES, BYTES);
}

/* The square at (i, j) of this block. */
static void one(const Block *x, int64_t i, int64_t j)
{
	const KMatmulDesc *d = x->d;
	float c[SQUARE] __attribute__((aligned(64)));
	const uint16_t *a = x->a + i * x->steps * STEP, *b = x->b + j * x->steps * STEP;
	int64_t m = MIN(PANEL, x->m - i), n = MIN(PANEL, x->n - j);
	bool first = x->k == 0, last = x->k + x->depth == d->k, whole = m == PANEL && n == PANEL;
	if (d->to == K_F32 && whole && !x->bias) {
		multiply((float *)(void *)element(x, i, j), d->ldy, a, b, x->steps, d->add || !first);
	} else if (x->sums) {
		float *s = x->sums + (i * round_up(x->n, PANEL) + j * PANEL);
		multiply(s, PANEL, a, b, x->steps, !first);
		if (last)
			put(x, s, i, j, m, n, d->add);
	} else {
		multiply(c, PANEL, a, b, x->steps, false);
		put(x, c, i, j, m, n, d->add || !first);
	}
}

/* Packs panels of the operand's `count` rows of a or columns of b.  Threads get what they will read, in order. */
static void pack(const Block *x, uint16_t *to, const Operand *o, int64_t first, int64_t count)
{
	#pragma omp for schedule(static) nowait
	for (int64_t at = 0; at < count; at += PANEL)
		pack_panel(to + at * x->steps * STEP, o, first + at, MIN(PANEL, count - at), x->k, x->depth);
}

/* All threads of the team together: packs b, and a unless it is there, then multiplies. */
static void block(const Block *x, const Operand *a, const Operand *b, bool pack_a)
{
	int64_t near = MAX(1, NEAR / (x->steps * STEP * PANEL * 2)) * PANEL;
	Grid g = grid_for(x->m, x->n, PANEL, PANEL, team_size());
	if (pack_a)
		pack(x, x->a, a, x->i, x->m);
	pack(x, x->b, b, x->j, x->n);
	#pragma omp barrier
	#pragma omp for schedule(static, 1)
	for (int64_t r = 0; r < g.rows * g.cols; r++) {
		Rectangle t = grid_at(g, x->m, x->n, PANEL, PANEL, r);
		for (int64_t from = t.j; from < t.j + t.n; from += near)
			for (int64_t i = t.i; i < t.i + t.m; i += PANEL)
				for (int64_t j = from; j < MIN(from + near, t.j + t.n); j += PANEL)
					one(x, i, j);
	}
}

/* ---- the product ---- */

/* Sides of a block and its part of k, and what these take of work; m = 0: nothing fits. */
typedef struct Sizes { int64_t m, n, depth, bytes; bool sums; } Sizes;

/* Few columns cost little, since a is packed once for all of them where k has one part; so they are given up first. */
static Sizes sizes_of(const KMatmulDesc *d)
{
	enum { LEAST_COLUMNS = 4 * PANEL };
	int64_t parts = ceil_div(d->k, DEEP), wide = MIN(MOST_SIDE, round_up(d->n, PANEL));
	Sizes s = {.depth = round_up(ceil_div(d->k, parts), STEP), .sums = parts > 1 && d->to != K_F32};
	for (s.m = MIN(MOST_SIDE, round_up(d->m, PANEL)); s.m > 0; s.m = s.m / 2 / PANEL * PANEL) {
		int64_t column = s.depth * 2 + (s.sums ? s.m * 4 : 0), of_a = s.m * s.depth * 2;
		s.n = MIN(wide, MAX(0, d->work_bytes - of_a) / column / PANEL * PANEL);
		s.bytes = of_a + s.n * column;
		if (s.n >= MIN(wide, LEAST_COLUMNS))
			break;
	}
	return s;
}

static void run(KPrim *p, PrimArgs *args, char *work)
{
	const KMatmulDesc *d = &p->matmul;
	Sizes s = sizes_of(d);
	Operand a = {args->at[1], d->lda, d->ta, d->ta}, b = {args->at[2], d->ldb, !d->tb, d->tb};
	Block x = {.d = d, .y = args->at[0], .bias = args->at[3], .a = (uint16_t *)(void *)work};
	x.b = x.a + s.m * s.depth;
	x.sums = s.sums ? (float *)(void *)(x.b + s.n * s.depth) : NULL;
	#pragma omp parallel firstprivate(x) if (d->m * d->n * d->k > PARALLEL_MIN)
	{
		tiles_begin();
		for (x.i = 0; x.i < d->m; x.i += s.m)
			for (x.j = 0; x.j < d->n; x.j += s.n)
				for (x.k = 0; x.k < d->k; x.k += s.depth) {
					x.m = MIN(s.m, d->m - x.i);
					x.n = MIN(s.n, d->n - x.j);
					x.depth = MIN(s.depth, d->k - x.k);
					x.steps = ceil_div(x.depth, STEP);
					block(&x, &a, &b, x.j == 0 || s.depth < d->k);
				}
		tiles_end();
	}
}

/* A batch, few rows, and turning a large a for few columns go to the library, which is faster with them. */
KPrim *matmul_amx_create(const KMatmulDesc *d)
{
	if (d->dtype != K_BF16 || d->n_batch > 0 || d->m < PANEL || d->n < (d->ta ? 4 * PANEL : SIDE) ||
		!sizes_of(d).m || !tiles_ready())
		return NULL;
	KPrim *p = prim_new("own:amx");
	p->matmul = *d;
	p->work = sizes_of(d).bytes;
	p->run = run;
	return p;
}

#else
KPrim *matmul_amx_create(const KMatmulDesc *d)
{
	(void)d;
	return NULL;
}
#endif
