/* kernels/cpu/matmul_packed.c: products of f32 matrices that have the same bits for any number of threads.
 *
 * An element of y is one chain of multiply-adds over k.  Where y has too few elements for many threads and k is long,
 * k is cut into parts by shape alone, and their sums are added in order.  So no bit depends on how y is cut into
 * rectangles, of which each thread gets one, nor on the blocks in which a thread packs its operands: of b KC rows of
 * columns by panels of NR, of a MC rows by panels of MR.  Work holds sums of parts, then the blocks of b; where it is
 * too small for these, smaller ones are on the stack. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/grid.h"
#include "kernels/cpu/prim.h"
#include "kernels/cpu/team.h"

/* Blocks of a have MC rows: with KC columns about a third of the second cache. */
enum { MC = VW == 16 ? 24 * MR : 16 * MR };
enum { STACK_COLS = 128, MOST_COLS = 1024, FEW = 2 * MR };
/* Of parts of k: the least length, and with how many tiles of MR x NR there is work for many threads. */
enum { PART = 1024, TILES = 256, MOST_PARTS = 64 };

typedef struct Product {
	const KMatmulDesc *d;
	const float *a, *b, *bias;
	float *y;
	int64_t ldy, k, depth; /* of a part: sums over [k, k + depth) */
	bool add;
} Product;

/* ---- packing ---- */

enum { STRIP = 16 }; /* rows of a strip, which are fetched while the strip before is packed */

/* to[p][c] = from[p][c] of n <= width columns; those beyond n are 0.  The width is a constant once this is inlined. */
INLINE void pack_panel(float *to, const float *from, int64_t row, int64_t n, int64_t width, int64_t depth)
{
	for (int64_t p = 0; p < depth && n == width; p++) {
		__builtin_prefetch(from + (p + STRIP) * row);
		memcpy(to + p * width, from + p * row, (size_t)width * sizeof *to);
	}
	for (int64_t p = 0; p < depth && n < width; p++)
		for (int64_t c = 0; c < width; c++)
			to[p * width + c] = c < n ? from[p * row + c] : 0;
}

/* The same of n columns by panels.  STRIP rows of all panels are read before the next ones, since panels share lines
 * and pages of `from`. */
INLINE void pack_panels(float *to, const float *from, int64_t row, int64_t n, int64_t width, int64_t depth)
{
	for (int64_t p = 0; p < depth; p += STRIP)
		for (int64_t c = 0; c < n; c += width)
			pack_panel(to + c * depth + p * width, from + p * row + c, row, MIN(width, n - c), width,
				MIN(STRIP, depth - p));
}

typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

/* Swaps blocks of a row of `a` and one of `b`, which lie beside and below a matrix' diagonal. */
#define SWAP(a, b, ...) SWAP_(a, b, __VA_ARGS__)
#define SWAP_(a, b, i0, i1, i2, i3, i4, i5, i6, i7, s) do { \
	Eight t_ = __builtin_shufflevector(a, b, i0, i1, i2, i3, i4, i5, i6, i7); \
	b = __builtin_shufflevector(a, b, i0 + s, i1 + s, i2 + s, i3 + s, i4 + s, i5 + s, i6 + s, i7 + s); \
	a = t_; \
} while (0)

/* to[p][i] = from[i][p] for n <= 8 rows of 8 columns; to[p][n..8) = 0.  n and `width`, floats from to[p] to to[p + 1],
 * are constants once this is inlined; rows of `to` are written in order, so they may overlap. */
INLINE void transpose(float *to, int64_t width, const float *from, int64_t row, int n)
{
	Eight v[8] = {{0}};
	#pragma GCC unroll 8
	for (int i = 0; i < n; i++)
		v[i] = *(const Eight *)(from + i * row);
	#pragma GCC unroll 8
	for (int i = 0; i < 4; i++)
		SWAP(v[i], v[i + 4], 0, 1, 2, 3, 8, 9, 10, 11, 4);
	#pragma GCC unroll 8
	for (int i = 0; i < 8; i += i % 4 ? 3 : 1)
		SWAP(v[i], v[i + 2], 0, 1, 8, 9, 4, 5, 12, 13, 2);
	#pragma GCC unroll 8
	for (int i = 0; i < 8; i += 2)
		SWAP(v[i], v[i + 1], 0, 8, 2, 10, 4, 12, 6, 14, 1);
	#pragma GCC unroll 8
	for (int i = 0; i < 8; i++)
		*(Eight *)(to + i * width) = v[i];
}

/* MR rows of a as a panel.  What is written behind a column is overwritten by the next one. */
static void pack_turned_rows(float *to, const float *from, int64_t lda, int64_t depth)
{
	int64_t p = 0;
	for (; p + 8 <= depth; p += 8)
		#pragma GCC unroll 2
		for (int r = (MR - 1) / 8 * 8; r >= 0; r -= 8)
			transpose(to + p * MR + r, MR, from + r * lda + p, lda, MIN(8, MR - r));
	for (; p < depth; p++)
		for (int r = 0; r < MR; r++)
			to[p * MR + r] = from[r * lda + p];
}

/* m rows of op(a), by panels of MR: each its columns, one behind the other.  Rows beyond m are 0. */
static void pack_rows(const Product *x, float *to, int64_t i, int64_t m, int64_t k, int64_t depth)
{
	int64_t lda = x->d->lda, r = 0;
	if (x->d->ta) {
		pack_panels(to, x->a + k * lda + i, lda, m, MR, depth);
		return;
	}
	for (; r + MR <= m; r += MR)
		pack_turned_rows(to + r * depth, x->a + (i + r) * lda + k, lda, depth);
	for (int64_t p = 0; p < depth && r < m; p++)
		for (int64_t l = 0; l < MR; l++)
			to[r * depth + p * MR + l] = r + l < m ? x->a[(i + r + l) * lda + k + p] : 0;
}

/* One panel of n rows of b, which are columns of op(b). */
static void pack_turned(const Product *x, float *to, int64_t j, int64_t n, int64_t k, int64_t depth)
{
	int64_t ldb = x->d->ldb, c = 0;
	for (; c + 8 <= n; c += 8) {
		const float *from = x->b + (j + c) * ldb + k;
		int64_t p = 0;
		for (; p + 8 <= depth; p += 8)
			transpose(to + p * NR + c, NR, from + p, ldb, 8);
		for (; p < depth; p++)
			for (int64_t i = 0; i < 8; i++)
				to[p * NR + c + i] = from[i * ldb + p];
	}
	for (; c < n; c++)
		for (int64_t p = 0; p < depth; p++)
			to[p * NR + c] = x->b[(j + c) * ldb + k + p];
}

/* n columns of op(b), by panels of NR; columns beyond n are 0. */
static void pack_columns(const Product *x, float *to, int64_t j, int64_t n, int64_t k, int64_t depth)
{
	int64_t ldb = x->d->ldb;
	if (!x->d->tb) {
		pack_panels(to, x->b + k * ldb + j, ldb, n, NR, depth);
		return;
	}
	if (n % NR)
		memset(to + n / NR * NR * depth, 0, (size_t)(depth * NR) * sizeof *to);
	for (int64_t c = 0; c < n; c += NR)
		pack_turned(x, to + c * depth, j + c, MIN(NR, n - c), k, depth);
}

/* ---- one thread ---- */

/* y (m, n) = or += packed blocks of n < NR columns, beside y */
static void multiply_few(const Product *x, float *y, const float *a, const float *b, int64_t m, int64_t n,
	int64_t depth, bool add)
{
	float c[MC * NR];
	for (int64_t i = 0; i < m && add; i++)
		memcpy(c + i * NR, y + i * x->ldy, (size_t)n * sizeof *c);
	for (int64_t i = 0; i < m && add; i++)
		memset(c + i * NR + n, 0, (size_t)(NR - n) * sizeof *c);
	for (int64_t i = 0; i < m && n <= VW; i += MR) /* one vector of b's rows */
		gemm_small(MIN(MR, m - i), VW, depth, a + i * depth, 1, MR, b, NR, c + i * NR, NR, add);
	if (n > VW)
		gemm_packed(m, depth, a, b, c, NR, add);
	for (int64_t i = 0; i < m; i++)
		memcpy(y + i * x->ldy, c + i * NR, (size_t)n * sizeof *c);
}

static void start_from_bias(const Product *x, Rectangle t)
{
	for (int64_t i = 0; i < t.m; i++)
		memcpy(x->y + (t.i + i) * x->ldy + t.j, x->bias + t.j, (size_t)t.n * sizeof *x->y);
}

/* Few rows of y: b is read where it lies. */
static void few_rows(const Product *x, Rectangle t)
{
	const KMatmulDesc *d = x->d;
	gemm_small(t.m, t.n, x->depth, x->a + (d->ta ? x->k * d->lda + t.i : t.i * d->lda + x->k), d->ta ? 1 : d->lda,
		d->ta ? d->lda : 1, x->b + x->k * d->ldb + t.j, d->ldb, x->y + t.i * x->ldy + t.j, x->ldy, x->add || x->bias);
}

/* bp: room for KC rows of `cols` columns, which is a multiple of NR. */
static void rectangle(const Product *x, Rectangle t, float *bp, int64_t cols)
{
	float ap[MC * KC + 8]; /* the last column is written as eight floats */
	if (x->bias)
		start_from_bias(x, t);
	if (t.m <= FEW && !x->d->tb) {
		few_rows(x, t);
		return;
	}
	for (int64_t j = 0; j < t.n; j += cols)
		for (int64_t k = 0; k < x->depth; k += KC) {
			int64_t n = MIN(cols, t.n - j), depth = MIN(KC, x->depth - k);
			bool add = k > 0 || x->add || x->bias;
			pack_columns(x, bp, t.j + j, n, x->k + k, depth);
			for (int64_t i = 0; i < t.m; i += MC) {
				int64_t m = MIN(MC, t.m - i), c = 0;
				float *y = x->y + (t.i + i) * x->ldy + t.j + j;
				pack_rows(x, ap, t.i + i, m, x->k + k, depth);
				for (; c + NR <= n; c += NR)
					gemm_packed(m, depth, ap, bp + c * depth, y + c, x->ldy, add);
				if (c < n)
					multiply_few(x, y + c, ap, bp + c * depth, m, n - c, depth, add);
			}
		}
}

/* ---- threads ---- */

/* Parts of k, whose sums take half of the work at most. */
static int64_t parts_of(const KMatmulDesc *d)
{
	int64_t tiles = ceil_div(d->m, MR) * ceil_div(d->n, NR), room = d->work_bytes / 2 / (d->m * d->n * 4);
	if (d->n_batch > 0 || tiles >= TILES)
		return 1;
	return MAX(1, MIN(MIN(d->k / PART, ceil_div(TILES, tiles)), MIN(MOST_PARTS, room)));
}

/* Product number `at`: of a batch, or of a part of k. */
static Product product_at(const KPrim *p, const PrimArgs *args, char *work, int64_t at)
{
	const KMatmulDesc *d = &p->matmul;
	int64_t index[6] = {0}, parts = parts_of(d);
	Product x = {.d = d, .a = args->at[1], .b = args->at[2], .bias = args->at[3], .y = args->at[0], .ldy = d->ldy,
		.depth = d->k, .add = d->add};
	if (parts > 1) {
		x.k = d->k * at / parts;
		x.depth = d->k * (at + 1) / parts - x.k;
		x.y = (float *)(void *)work + at * d->m * d->n;
		x.ldy = d->n;
		x.bias = NULL;
		x.add = false;
		return x;
	}
	unravel(at, d->n_batch, d->batch, index);
	x.a += offset_of(d->n_batch, index, d->sa);
	x.b += offset_of(d->n_batch, index, d->sb);
	x.y += at * d->m * d->ldy;
	return x;
}

/* One rectangle of one product; `room` bytes of work are left for the blocks of b of all threads. */
static void run_task(const Product *x, Rectangle t, char *work, int64_t room)
{
	float few[KC * STACK_COLS];
	int64_t cols = MIN(MOST_COLS, room / team_size() / (KC * 4) / NR * NR);
	if (cols <= STACK_COLS)
		rectangle(x, t, few, STACK_COLS);
	else
		rectangle(x, t, (float *)(void *)work + team_rank() * cols * KC, cols);
}

static void add_parts(const KMatmulDesc *d, float *y, const float *part, const float *bias, int64_t parts)
{
	#pragma omp parallel for schedule(static) if (d->m * d->n * parts > PARALLEL_MIN)
	for (int64_t i = 0; i < d->m; i++)
		for (int64_t j = 0; j < d->n; j++) {
			float s = d->add ? y[i * d->ldy + j] : bias ? bias[j] : 0;
			for (int64_t p = 0; p < parts; p++)
				s += part[(p * d->m + i) * d->n + j];
			y[i * d->ldy + j] = s;
		}
}

static void run(KPrim *p, PrimArgs *args, char *work)
{
	const KMatmulDesc *d = &p->matmul;
	int64_t parts = parts_of(d), sums = parts > 1 ? round_up(parts * d->m * d->n * 4, 64) : 0;
	int64_t count = parts * numel(d->n_batch, d->batch), threads = team_most();
	Grid g = grid_for(d->m, d->n, MR, NR, ceil_div(threads, count));
	#pragma omp parallel for schedule(static, 1) if (count * d->m * d->n * d->k > PARALLEL_MIN)
	for (int64_t i = 0; i < count * g.rows * g.cols; i++) {
		Product x = product_at(p, args, work, i / (g.rows * g.cols));
		run_task(&x, grid_at(g, d->m, d->n, MR, NR, i % (g.rows * g.cols)), work + sums, d->work_bytes - sums);
	}
	if (parts > 1)
		add_parts(d, args->at[0], (const float *)(const void *)work, args->at[3], parts);
}

KPrim *matmul_packed_create(const KMatmulDesc *d)
{
	KPrim *p = prim_new("own:packed");
	p->matmul = *d;
	p->work = MAX(0, d->work_bytes);
	p->run = run;
	return p;
}
