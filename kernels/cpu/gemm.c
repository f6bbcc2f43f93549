/* kernels/cpu/gemm.c: the small product of gemm.h, by register tiles over m and n; the last columns, where they are
 * fewer than a vector, are computed in a padded copy. */
#include "kernels/cpu/gemm.h"

typedef void Tile(int64_t k, const float *a, int64_t ar, int64_t ak, const float *b, int64_t br, float *c,
	int64_t cr, bool add);

#define TILE(r, v) \
static void tile_##r##_##v(int64_t k, const float *a, int64_t ar, int64_t ak, const float *b, int64_t br, \
	float *c, int64_t cr, bool add) \
{ \
	gemm_tile(r < MR ? r : MR, v, k, a, ar, ak, b, br, c, cr, add, NULL); \
}
#define ROWS(X, v) X(1, v) X(2, v) X(3, v) X(4, v) X(5, v) X(6, v) X(7, v) X(8, v) X(9, v) X(10, v) X(11, v) \
	X(12, v)
ROWS(TILE, 1)
ROWS(TILE, 2)
#define NAME(r, v) tile_##r##_##v,
static Tile *const tiles[3][13] = {{NULL}, {NULL, ROWS(NAME, 1)}, {NULL, ROWS(NAME, 2)}};

static void columns(int nv, int64_t m, int64_t k, const float *a, int64_t ar, int64_t ak, const float *b,
	int64_t br, float *c, int64_t cr, bool add)
{
	for (int64_t i = 0; i < m; i += MR)
		tiles[nv][MIN(MR, m - i)](k, a + i * ar, ar, ak, b, br, c + i * cr, cr, add);
}

/* n < VW columns: copies b and c through buffers of whole vectors. */
static void tail(int64_t m, int64_t n, int64_t k, const float *a, int64_t ar, int64_t ak, const float *b,
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

void gemm_small(int64_t m, int64_t n, int64_t k, const float *a, int64_t ar, int64_t ak, const float *b,
	int64_t br, float *c, int64_t cr, bool add)
{
	int64_t j = 0;
	for (; j + NV * VW <= n; j += NV * VW)
		columns(NV, m, k, a, ar, ak, b + j, br, c + j, cr, add);
	for (; j + VW <= n; j += VW)
		columns(1, m, k, a, ar, ak, b + j, br, c + j, cr, add);
	if (j < n)
		tail(m, n - j, k, a, ar, ak, b + j, br, c + j, cr, add);
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
#define PANEL(r, v) \
static void panel_##r(int64_t k, const float *a, int64_t ar, const float *b, float *c, int64_t cr, bool add, \
	const float *ahead) \
{ \
	fetch_tile(c + r * cr, cr); \
	gemm_tile(r < MR ? r : MR, NV, k, a, ar, 1, b, NV * VW, c, cr, add, ahead); \
}
ROWS(PANEL, 0)
#define PANEL_NAME(r, v) panel_##r,
static PanelTile *const panels[] = {NULL, ROWS(PANEL_NAME, 0)};

void gemm_panel(int64_t m, int64_t k, const float *a, int64_t ar, const float *b, float *c, int64_t cr, bool add)
{
	for (int64_t i = 0, part = 0; i < m; i += MR, part++)
		panels[MIN(MR, m - i)](k, a + i * ar, ar, b, c + i * cr, cr, add,
			part > 0 && part <= NV ? b + (NV + part - 1) * k * VW : NULL);
}

typedef void PackedTile(int64_t k, const float *a, const float *b, float *c, int64_t cr, bool add,
	const float *ahead);
#define PACKED(r, v) \
static void packed_##r(int64_t k, const float *a, const float *b, float *c, int64_t cr, bool add, \
	const float *ahead) \
{ \
	fetch_tile(c + r * cr, cr); \
	gemm_tile(r < MR ? r : MR, NV, k, a, 1, MR, b, NV * VW, c, cr, add, ahead); \
}
ROWS(PACKED, 0)
#define PACKED_NAME(r, v) packed_##r,
static PackedTile *const packed[] = {NULL, ROWS(PACKED_NAME, 0)};

void gemm_packed(int64_t m, int64_t k, const float *a, const float *b, float *c, int64_t cr, bool add)
{
	for (int64_t i = 0, part = 0; i < m; i += MR, part++)
		packed[MIN(MR, m - i)](k, a + i * k, b, c + i * cr, cr, add,
			part > 0 && part <= NV ? b + (NV + part - 1) * k * VW : NULL);
}
