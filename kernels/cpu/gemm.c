/* kernels/cpu/gemm.c: the small products of gemm.h, by register tiles over m and n; the last columns, where they are
 * fewer than a vector, are computed in a padded copy.  Pairs of bf16 are multiplied on tile units, where the processor
 * has them, as far as whole tiles go. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/amx.h"

typedef void Tile(int64_t k, const float *a, int64_t ar, int64_t ak, const float *b, int64_t br, float *c,
	int64_t cr, bool add);

/* Functions of a tile: by its vectors, then by its rows. */
typedef Tile *const Tiles[3][13];

#define TILE(r, v, of, pairs) \
static void tile_##of##_##r##_##v(int64_t k, const float *a, int64_t ar, int64_t ak, const float *b, int64_t br, \
	float *c, int64_t cr, bool add) \
{ \
	gemm_tile(pairs, r < MR ? r : MR, v, k, a, ar, ak, b, br, c, cr, add, NULL); \
}
#define ROWS(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) \
	X(6, __VA_ARGS__) X(7, __VA_ARGS__) X(8, __VA_ARGS__) X(9, __VA_ARGS__) X(10, __VA_ARGS__) \
	X(11, __VA_ARGS__) X(12, __VA_ARGS__)
#define NAME(r, v, of) tile_##of##_##r##_##v,
#define TILES(of, pairs) \
ROWS(TILE, 1, of, pairs) \
ROWS(TILE, 2, of, pairs) \
static Tiles of = {{NULL}, {NULL, ROWS(NAME, 1, of)}, {NULL, ROWS(NAME, 2, of)}};
TILES(floats, false)
#if defined __AVX512BF16__
TILES(paired, true)
#endif

static void columns(Tiles tiles, int nv, int64_t m, int64_t k, const float *a, int64_t ar, int64_t ak, const float *b,
	int64_t br, float *c, int64_t cr, bool add)
{
	for (int64_t i = 0; i < m; i += MR)
		tiles[nv][MIN(MR, m - i)](k, a + i * ar, ar, ak, b, br, c + i * cr, cr, add);
}

/* n < VW columns: copies b and c through buffers of whole vectors. */
static void tail(Tiles tiles, int64_t m, int64_t n, int64_t k, const float *a, int64_t ar, int64_t ak, const float *b,
	int64_t br, float *c, int64_t cr, bool add)
{
	enum { DEEP = 256 };
	float bt[DEEP * VW], ct[MR * VW];
	for (int64_t p = 0; p < k; p += DEEP) {
		int64_t deep = MIN(DEEP, k - p);
		memset(bt, 0, sizeof bt);
		for (int64_t r = 0; r < deep; r++)
			memcpy(bt + r * VW, b + (p + r) * br, (size_t)n * sizeof *bt);
		for (int64_t i = 0; i < m; i += MR) {
			int64_t rows = MIN(MR, m - i);
			memset(ct, 0, sizeof ct);
			for (int64_t r = 0; r < rows && (add || p > 0); r++)
				memcpy(ct + r * VW, c + (i + r) * cr, (size_t)n * sizeof *ct);
			tiles[1][rows](deep, a + i * ar + p * ak, ar, ak, bt, VW, ct, VW, true);
			for (int64_t r = 0; r < rows; r++)
				memcpy(c + (i + r) * cr, ct + r * VW, (size_t)n * sizeof *ct);
		}
	}
}

static void small(Tiles tiles, int64_t m, int64_t n, int64_t k, const float *a, int64_t ar, int64_t ak,
	const float *b, int64_t br, float *c, int64_t cr, bool add)
{
	int64_t j = 0;
	for (; j + NV * VW <= n; j += NV * VW)
		columns(tiles, NV, m, k, a, ar, ak, b + j, br, c + j, cr, add);
	for (; j + VW <= n; j += VW)
		columns(tiles, 1, m, k, a, ar, ak, b + j, br, c + j, cr, add);
	if (j < n)
		tail(tiles, m, n - j, k, a, ar, ak, b + j, br, c + j, cr, add);
}

void gemm_small(int64_t m, int64_t n, int64_t k, const float *a, int64_t ar, int64_t ak, const float *b,
	int64_t br, float *c, int64_t cr, bool add)
{
	small(floats, m, n, k, a, ar, ak, b, br, c, cr, add);
}

#if defined HAS_AMX
/* Pairs of k that a turned panel of a holds. */
enum { TURNED = 64 };

/* to (rows, k) = pairs of a, whose column p begins at a + p * ak. */
static void turn_panel(float *to, const float *a, int64_t ak, int64_t rows, int64_t k)
{
	for (int64_t p = 0; p < k; p += SIDE)
		for (int64_t i = 0; i < rows; i += SIDE) {
			__m512i v[SIDE];
			#pragma GCC unroll 16
			for (int l = 0; l < SIDE; l++)
				v[l] = _mm512_loadu_si512(a + (p + l) * ak + i);
			turn_lines(v);
			#pragma GCC unroll 16
			for (int l = 0; l < SIDE; l++)
				_mm512_storeu_si512(to + (i + l) * k + p, v[l]);
		}
}

/* Rows of a panel, 16 or 32, by n columns and k pairs, which are multiples of 16. */
static void tiled_panel(int64_t rows, int64_t n, int64_t k, const float *a, int64_t ar, const float *b, int64_t br,
	float *c, int64_t cr, bool add)
{
	int64_t steps = k / SIDE, j = 0;
	Lines of_a = {(const char *)a, ar * 4, 64, SIDE * ar * 4}, of_b = {(const char *)b, br * 4, SIDE * br * 4, 64};
	for (; rows == PANEL && j + PANEL <= n; j += PANEL, of_b.at += PANEL * 4)
		tiles_square(c + j, cr, add, steps, of_a, of_b, (Written){0});
	for (; j < n; j += SIDE, of_b.at += SIDE * 4) {
		Lines line = of_a;
		for (int64_t i = 0; i < rows; i += SIDE, line.at += of_a.next)
			tiles_one(c + i * cr + j, cr, add, steps, line, of_b);
	}
}

/* m, n and k are multiples of 16; a's rows or its columns are contiguous. */
static void tiled(int64_t m, int64_t n, int64_t k, const float *a, int64_t ar, int64_t ak, const float *b, int64_t br,
	float *c, int64_t cr, bool add)
{
	float turned[PANEL * TURNED] __attribute__((aligned(64)));
	tiles_begin();
	for (int64_t i = 0; i < m; i += PANEL) {
		int64_t rows = MIN(PANEL, m - i);
		if (ak == 1)
			tiled_panel(rows, n, k, a + i * ar, ar, b, br, c + i * cr, cr, add);
		for (int64_t p = 0; ak != 1 && p < k; p += TURNED) {
			int64_t deep = MIN(TURNED, k - p);
			turn_panel(turned, a + i + p * ak, ak, rows, deep);
			tiled_panel(rows, n, deep, turned, deep, b + p * br, br, c + i * cr, cr, add || p > 0);
		}
	}
	tiles_end();
}

/* Whole tiles, then what is left of k, of the columns and of the rows by vectors. */
static void tiled_and_rest(int64_t m, int64_t n, int64_t k, const float *a, int64_t ar, int64_t ak, const float *b,
	int64_t br, float *c, int64_t cr, bool add)
{
	int64_t m0 = m / SIDE * SIDE, n0 = n / SIDE * SIDE, k0 = k / SIDE * SIDE;
	tiled(m0, n0, k0, a, ar, ak, b, br, c, cr, add);
	if (k0 < k)
		small(paired, m0, n0, k - k0, a + k0 * ak, ar, ak, b + k0 * br, br, c, cr, true);
	if (n0 < n)
		small(paired, m0, n - n0, k, a, ar, ak, b + n0, br, c + n0, cr, add);
	if (m0 < m)
		small(paired, m - m0, n, k, a + m0 * ar, ar, ak, b, br, c + m0 * cr, cr, add);
}
#endif

void gemm_pairs(int64_t m, int64_t n, int64_t k, const float *a, int64_t ar, int64_t ak, const float *b,
	int64_t br, float *c, int64_t cr, bool add)
{
#if defined HAS_AMX
	if (m >= SIDE && n >= SIDE && k >= SIDE && (ak == 1 || ar == 1) && tiles_ready()) {
		tiled_and_rest(m, n, k, a, ar, ak, b, br, c, cr, add);
		return;
	}
#endif
#if defined __AVX512BF16__
	small(paired, m, n, k, a, ar, ak, b, br, c, cr, add);
#else
	(void)m, (void)n, (void)k, (void)a, (void)ar, (void)ak, (void)b, (void)br, (void)c, (void)cr, (void)add;
	k_fail("this processor's vectors do not multiply bf16");
#endif
}

/* Brings the lines of a tile of c near, where the next tile's sums begin.  A row may lie in two. */
INLINE void fetch_tile(const float *c, int64_t cr)
{
	for (int i = 0; i < MR; i++) {
		__builtin_prefetch(c + i * cr, 1);
		__builtin_prefetch(c + i * cr + NV * VW - 1, 1);
	}
}

typedef void PanelTile(int64_t k, const float *a, int64_t ar, const float *b, float *c, int64_t cr, bool add,
	const float *ahead);
#define PANEL(r, ...) \
static void panel_##r(int64_t k, const float *a, int64_t ar, const float *b, float *c, int64_t cr, bool add, \
	const float *ahead) \
{ \
	fetch_tile(c + r * cr, cr); \
	gemm_tile(false, r < MR ? r : MR, NV, k, a, ar, 1, b, NV * VW, c, cr, add, ahead); \
}
ROWS(PANEL, )
#define PANEL_NAME(r, ...) panel_##r,
static PanelTile *const panels[] = {NULL, ROWS(PANEL_NAME, )};

void gemm_panel(int64_t m, int64_t k, const float *a, int64_t ar, const float *b, float *c, int64_t cr, bool add)
{
	for (int64_t i = 0, part = 0; i < m; i += MR, part++)
		panels[MIN(MR, m - i)](k, a + i * ar, ar, b, c + i * cr, cr, add,
			part > 0 && part <= NV ? b + (NV + part - 1) * k * VW : NULL);
}

typedef void PackedTile(int64_t k, const float *a, const float *b, float *c, int64_t cr, bool add,
	const float *ahead);
#define PACKED(r, ...) \
static void packed_##r(int64_t k, const float *a, const float *b, float *c, int64_t cr, bool add, \
	const float *ahead) \
{ \
	fetch_tile(c + r * cr, cr); \
	gemm_tile(false, r < MR ? r : MR, NV, k, a, 1, MR, b, NV * VW, c, cr, add, ahead); \
}
ROWS(PACKED, )
#define PACKED_NAME(r, ...) packed_##r,
static PackedTile *const packed[] = {NULL, ROWS(PACKED_NAME, )};

void gemm_packed(int64_t m, int64_t k, const float *a, const float *b, float *c, int64_t cr, bool add)
{
	for (int64_t i = 0, part = 0; i < m; i += MR, part++)
		packed[MIN(MR, m - i)](k, a + i * k, b, c + i * cr, cr, add,
			part > 0 && part <= NV ? b + (NV + part - 1) * k * VW : NULL);
}
