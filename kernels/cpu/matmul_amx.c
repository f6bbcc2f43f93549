/* kernels/cpu/matmul_amx.c: products of bf16 matrices on tile units (AMX).
 *
 * A tile is 16 lines of 64 bytes.  One instruction adds the product of two tiles to a third: of a's rows by columns of
 * 32 bf16, and of 16 pairs of b's rows by 16 columns.  All threads together pack b into such tiles, in work, and a
 * where its columns are rows in memory; else its tiles are loaded from where it lies, but for rows and steps of k that
 * are not whole, which are packed, too.  Then each thread computes a rectangle of y by blocks of 32 x 32, which stay in
 * four tiles over DEEP of k.  For longer k sums are kept in y where it is f32, else in work, and rounded once.  An
 * element is one chain of sums in the order of k, whose cuts depend on shapes alone: so bits do not depend on the
 * number of threads.  Denormals count as zero.
 *
 * The order of loops is that of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008).
 * Sizes are for processors whose third cache is a fifth as fast as the second one: what a thread packs of b, NEAR
 * bytes, is packed to where it packed before, and rows of y are fetched before they are written. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/grid.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/matmul_amx.h"
#include "kernels/cpu/prim.h"
#include "kernels/cpu/team.h"

#if defined HAS_AMX

/* SQUARE: sums of a block of y in tiles.  DEEP: most of k that is summed at once; LESS_DEEP: the same where a cache
 * holds y.  MOST_SIDE: rows and columns of a block.  NEAR: bytes of b's panels that stay in a thread's second cache
 * while those of a pass by.  BESIDE: panels that are packed side by side, so that what is read of a row of memory is
 * long. */
enum { SQUARE = PANEL * PANEL, DEEP = 2048, LESS_DEEP = 1024, MOST_SIDE = 1024, NEAR = 3 << 18, BESIDE = 8 };

/* ---- packing ---- */

/* A matrix of rows `row` apart.  by_k: its rows are those of k, so a step of a tile is STEP of its rows; else SIDE rows
 * by STEP columns.  turn: these lines are columns of the tile, as pairs.  gathered: rows that lie elsewhere, by_k. */
typedef struct Operand { const uint16_t *at; int64_t row; bool by_k, turn; const Gathered *gathered; } Operand;

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

/* A step of the panel at `first`, two tiles: `across` of its rows of a or columns of b are there, and `along` of k. */
INLINE void pack_step(uint16_t *to, const Operand *x, int64_t first, int64_t across, int64_t k, int64_t along,
	bool by_k, bool turn)
{
	for (int64_t h = 0; h < PANEL; h += SIDE, to += TILE) {
		int64_t some = MAX(0, MIN(SIDE, across - h));
		const uint16_t *from = x->at + (by_k ? k * x->row + first + h : (first + h) * x->row + k);
		if (some == SIDE && along == STEP)
			pack_tile(to, from, x->row, by_k ? STEP : SIDE, by_k ? SIDE : STEP, by_k, turn);
		else
			pack_tile(to, from, x->row, by_k ? along : some, by_k ? some : along, by_k, turn);
	}
}

/* Of `count` rows of a or columns of b from `first` on, panels of the elements [k, k + depth) of k. */
INLINE void pack_panels_as(uint16_t *to, const Operand *x, int64_t first, int64_t count, int64_t k, int64_t depth,
	bool by_k, bool turn)
{
	int64_t panel = round_up(depth, STEP) * PANEL;
	for (int64_t s = 0; s < depth; s += STEP)
		for (int64_t at = 0; at < count; at += PANEL)
			pack_step(to + at / PANEL * panel + s * PANEL, x, first + at, MIN(PANEL, count - at), k + s,
				MIN(STEP, depth - s), by_k, turn);
}

/* PANEL columns of a row; zeros where there is none. */
INLINE __m512i some_row(const uint16_t *row, int64_t column)
{
	return row ? _mm512_loadu_si512(row + column) : _mm512_setzero_si512();
}

/* The two tiles of a step, of PANEL columns of these rows. */
static void pack_rows(uint16_t *to, const uint16_t **row, int64_t column)
{
	for (int i = 0; i < SIDE; i++) {
		__m512i a = some_row(row[2 * i], column), b = some_row(row[2 * i + 1], column);
		__m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(a));
		__m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(a, 1));
		__m512i above = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(b));
		__m512i above_high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(b, 1));
		_mm512_store_si512(to + i * STEP, _mm512_or_si512(low, _mm512_slli_epi32(above, 16)));
		_mm512_store_si512(to + TILE + i * STEP, _mm512_or_si512(high, _mm512_slli_epi32(above_high, 16)));
	}
}

static void pack_gathered(uint16_t *to, const Gathered *x, int64_t first, int64_t count, int64_t k,
	int64_t depth)
{
	int64_t panel = round_up(depth, STEP) * PANEL;
	for (int64_t s = 0; s < depth; s += STEP) {
		const uint16_t *row[STEP] = {NULL};
		GatheredSpare spare[STEP];
		int64_t part = -1;
		for (int64_t at = first; at < first + count; at += PANEL) {
			if (at / x->width != part) {
				part = at / x->width;
				x->find(x->from, k + s, MIN(STEP, depth - s), part, row, spare);
			}
			pack_rows(to + (at - first) / PANEL * panel + s * PANEL, row, at % x->width);
		}
	}
}

static void pack_panels(uint16_t *to, const Operand *x, int64_t first, int64_t count, int64_t k, int64_t depth)
{
	if (x->gathered)
		pack_gathered(to, x->gathered, first, count, k, depth);
	else if (x->by_k && x->turn)
		pack_panels_as(to, x, first, count, k, depth, true, true);
	else if (x->by_k)
		pack_panels_as(to, x, first, count, k, depth, true, false);
	else if (x->turn)
		pack_panels_as(to, x, first, count, k, depth, false, true);
	else
		pack_panels_as(to, x, first, count, k, depth, false, false);
}

/* ---- a block of y ---- */

/* Rows [i, i + m) and columns [j, j + n) of y, summed over [k, k + depth) in `steps`; its packed operands, and its sums
 * by 32 x 32 where k has more than one part and y is not f32.  lies: whole panels of a are read where it lies. */
typedef struct Block {
	const KMatmulDesc *d;
	char *y;
	Operand of_a, of_b;
	const uint16_t *bias;
	int64_t i, j, m, n, k, depth, steps;
	bool lies;
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

static Lines packed(const uint16_t *panel)
{
	enum { BYTES = TILE * 2 };
	return (Lines){(const char *)panel, 64, 2 * BYTES, BYTES};
}

/* The panel of a at row i.  Where a lies as it is needed, only rows that are no panel are packed. */
static Lines panel_of_a(const Block *x, int64_t i)
{
	if (!x->lies)
		return packed(x->a + i * x->steps * STEP);
	if (i + PANEL > x->m)
		return packed(x->a);
	int64_t row = x->of_a.row * 2;
	return (Lines){(const char *)(x->of_a.at + (x->i + i) * x->of_a.row + x->k), row, 64, SIDE * row};
}

/* The square at (i, j) of this block. */
static void one(const Block *x, int64_t i, int64_t j)
{
	const KMatmulDesc *d = x->d;
	/* A load waits for a store before it that lies at the same place of another page.  Stores to c fill a page; which
	 * of them the next loads meet depends on where it begins: 4% of a product's time, measured. */
	float c[SQUARE] __attribute__((aligned(4096)));
	Lines a = panel_of_a(x, i), b = packed(x->b + j * x->steps * STEP);
	int64_t m = MIN(PANEL, x->m - i), n = MIN(PANEL, x->n - j), bytes = type_bytes(d->to);
	bool first = x->k == 0, last = x->k + x->depth == d->k, whole = m == PANEL && n == PANEL;
	Written y = {element(x, i, j), d->ldy * bytes, m, n * bytes};
	if (d->to == K_F32 && whole && !x->bias) {
		tiles_square((float *)(void *)y.at, d->ldy, d->add || !first, x->steps, a, b, y);
	} else if (x->sums) {
		float *s = x->sums + (i * round_up(x->n, PANEL) + j * PANEL);
		tiles_square(s, PANEL, !first, x->steps, a, b, last ? y : (Written){0});
		if (last)
			put(x, s, i, j, m, n, d->add);
	} else {
		tiles_square(c, PANEL, false, x->steps, a, b, y);
		put(x, c, i, j, m, n, d->add || !first);
	}
}

/* Packs panels of the operand's `count` rows of a or columns of b.  With few threads each packs what it will read. */
static void pack(const Block *x, uint16_t *to, const Operand *o, int64_t first, int64_t count)
{
	int64_t each = ceil_div(ceil_div(count, PANEL), team_size());
	int64_t beside = o->by_k ? ceil_div(each, ceil_div(each, BESIDE)) * PANEL : PANEL;
	#pragma omp for schedule(static) nowait
	for (int64_t at = 0; at < count; at += beside)
		pack_panels(to + at * x->steps * STEP, o, first + at, MIN(beside, count - at), x->k, x->depth);
}

static void pack_a(const Block *x)
{
	int64_t rest = x->m % PANEL;
	if (!x->lies)
		pack(x, x->a, &x->of_a, x->i, x->m);
	else if (rest > 0)
		pack(x, x->a, &x->of_a, x->i + x->m - rest, rest);
}

/* So many columns of b of this depth stay near. */
static int64_t near_columns(int64_t depth) { return MAX(1, NEAR / (depth * PANEL * 2)) * PANEL; }

/* All threads of the team together, behind what they have packed. */
static void multiply(const Block *x)
{
	int64_t near = near_columns(x->steps * STEP);
	Grid g = grid_for(x->m, x->n, PANEL, PANEL, team_size());
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

/* Sides of a block and its part of k, and what these take of work; m = 0: nothing fits.  of_a: rows that are packed. */
typedef struct Sizes { int64_t m, n, depth, of_a, bytes; bool sums; } Sizes;

/* Whether tiles of so deep a part of k are loaded from where a lies. */
static bool a_lies(const KMatmulDesc *d, int64_t depth) { return !d->ta && depth % STEP == 0; }

/* Where little fits, blocks have few columns first, and then few rows. */
static Sizes sizes_of(const KMatmulDesc *d)
{
	enum { LEAST_COLUMNS = 4 * PANEL };
	bool small = d->to == K_F32 && d->m * d->n * 4 <= NEAR;
	int64_t parts = ceil_div(d->k, small ? LESS_DEEP : DEEP), wide = MIN(MOST_SIDE, round_up(d->n, PANEL));
	Sizes s = {.depth = round_up(ceil_div(d->k, parts), STEP), .sums = parts > 1 && d->to != K_F32};
	for (s.m = MIN(MOST_SIDE, round_up(d->m, PANEL)); s.m > 0; s.m = s.m / 2 / PANEL * PANEL) {
		int64_t column = s.depth * 2 + (s.sums ? s.m * 4 : 0);
		s.of_a = a_lies(d, d->k) ? PANEL : s.m;
		s.n = MIN(wide, MAX(0, d->work_bytes - s.of_a * s.depth * 2) / column / PANEL * PANEL);
		s.bytes = s.of_a * s.depth * 2 + s.n * column;
		if (s.n >= MIN(wide, LEAST_COLUMNS))
			break;
	}
	return s;
}

/* Makes blocks of few columns, which each thread packs into its second cache, unless a is turned for each of them. */
static void fit_near(Sizes *s, const KMatmulDesc *d)
{
	if (!d->ta || s->depth >= d->k)
		s->n = MIN(s->n, near_columns(s->depth) * team_size());
}

/* Which order packs less, where k has one part.  True: blocks of the same rows follow each other, and a is packed once
 * for them; false: the same of columns and b. */
static bool by_rows(const Sizes *s, const KMatmulDesc *d)
{
	return !a_lies(d, d->k) && d->m + d->n * ceil_div(d->m, s->m) < d->n + d->m * ceil_div(d->n, s->n);
}

/* Of the whole team. */
static void blocks(Block x, Sizes s)
{
	const KMatmulDesc *d = x.d;
	fit_near(&s, d);
	bool rows = by_rows(&s, d), parts = s.depth < d->k;
	int64_t down = ceil_div(d->m, s.m), across = ceil_div(d->n, s.n);
	for (int64_t at = 0; at < down * across; at++) {
		x.i = (rows ? at / across : at % down) * s.m;
		x.j = (rows ? at % across : at / down) * s.n;
		x.m = MIN(s.m, d->m - x.i);
		x.n = MIN(s.n, d->n - x.j);
		for (x.k = 0; x.k < d->k; x.k += s.depth) {
			x.depth = MIN(s.depth, d->k - x.k);
			x.steps = ceil_div(x.depth, STEP);
			x.lies = a_lies(d, x.depth);
			if (parts || !rows || x.j == 0)
				pack_a(&x);
			if (parts || rows || x.i == 0)
				pack(&x, x.b, &x.of_b, x.j, x.n);
			multiply(&x);
		}
	}
}

static void product(const KMatmulDesc *d, const PrimArgs *args, const Gathered *gathered, char *work)
{
	Sizes s = sizes_of(d);
	Block x = {.d = d, .y = args->at[0], .bias = args->at[3], .a = (uint16_t *)(void *)work,
		.of_a = {args->at[1], d->lda, d->ta, d->ta, NULL}, .of_b = {args->at[2], d->ldb, !d->tb, d->tb, gathered}};
	x.b = x.a + s.of_a * s.depth;
	x.sums = s.sums ? (float *)(void *)(x.b + s.n * s.depth) : NULL;
	#pragma omp parallel if (d->m * d->n * d->k > PARALLEL_MIN)
	{
		tiles_begin();
		blocks(x, s);
		tiles_end();
	}
}

static void run(KPrim *p, PrimArgs *args, char *work) { product(&p->matmul, args, NULL, work); }

int64_t matmul_amx_gathered_work(const KMatmulDesc *d)
{
	Sizes s = sizes_of(d);
	return s.m && tiles_ready() ? s.bytes : -1;
}

void matmul_amx_gathered(const KMatmulDesc *d, float *y, const void *a, const Gathered *b, char *work)
{
	product(d, &(PrimArgs){{y, (void *)(uintptr_t)a, NULL, NULL}}, b, work);
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
