/* kernels/cpu/amx.h: tile units that multiply bf16 (AMX), where programs are compiled for a processor that has them.
 *
 * A tile is SIDE lines of 64 bytes: of a, a line is a row of 16 pairs of bf16; of b, a line is a pair of rows of 16
 * columns; of c, it is a row of 16 floats.  c += a b adds 32 products to each float.  Denormals count as zero. */
#ifndef SHARDC_CPU_AMX_H
#define SHARDC_CPU_AMX_H

#include "kernels/cpu/common.h"

#if defined __AMX_BF16__ && defined __AVX512BW__ && defined __AVX512VL__ && defined __AVX512BF16__
#define HAS_AMX 1
#include <immintrin.h>

/* STEP bf16 in a line; PANEL rows or columns of a square of four tiles; TILE bf16 in a tile. */
enum { SIDE = 16, STEP = 2 * SIDE, PANEL = 2 * SIDE, TILE = SIDE * STEP };

/* Whether the system keeps tiles for this process, which has to ask for that; any thread may call. */
bool tiles_ready(void);

/* The layout that LDTILECFG reads: tile i has rows[i] lines of bytes[i]. */
typedef struct TileShapes { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } TileShapes;
extern const TileShapes whole_tiles;

/* What uses tiles lies between these, on one thread. */
INLINE void tiles_begin(void) { _tile_loadconfig(&whole_tiles); }
INLINE void tiles_end(void) { _tile_release(); }

/* What was stored is in memory: compilers do not know what a tile load reads. */
INLINE void tiles_stored(void) { __asm__ volatile("" ::: "memory"); }

/* An operand: bytes from line to line of a tile, from a step's tiles to those of the next step, and from the first
 * tile of a step to the second, which is the lower one of a, the right one of b. */
typedef struct Lines { const char *at; int64_t row, step, next; } Lines;

/* Memory that is written after a product: rows of at most 128 bytes.  Each step fetches one. */
typedef struct Written { char *at; int64_t row, rows, bytes; } Written;

INLINE void fetch_row(Written *y)
{
	if (y->rows-- <= 0)
		return;
	__builtin_prefetch(y->at, 1);
	__builtin_prefetch(y->at + y->bytes - 1, 1);
	if (y->bytes > 64)
		__builtin_prefetch(y->at + 64, 1);
	y->at += y->row;
}

/* c (32, 32) = or += a b in `steps`, cr floats from row to row of c. */
INLINE void tiles_square(float *c, int64_t cr, bool add, int64_t steps, Lines a, Lines b, Written y)
{
	tiles_stored();
	if (add) {
		_tile_loadd(0, c, cr * 4);
		_tile_loadd(1, c + SIDE, cr * 4);
		_tile_loadd(2, c + SIDE * cr, cr * 4);
		_tile_loadd(3, c + SIDE * cr + SIDE, cr * 4);
	} else {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
	}
	for (int64_t s = 0; s < steps; s++, a.at += a.step, b.at += b.step) {
		_tile_loadd(4, a.at, a.row);
		_tile_loadd(6, b.at, b.row);
		_tile_loadd(7, b.at + b.next, b.row);
		_tile_loadd(5, a.at + a.next, a.row);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
		fetch_row(&y);
	}
	_tile_stored(0, c, cr * 4);
	_tile_stored(1, c + SIDE, cr * 4);
	_tile_stored(2, c + SIDE * cr, cr * 4);
	_tile_stored(3, c + SIDE * cr + SIDE, cr * 4);
}

/* The same of one tile of c. */
INLINE void tiles_one(float *c, int64_t cr, bool add, int64_t steps, Lines a, Lines b)
{
	tiles_stored();
	if (add)
		_tile_loadd(0, c, cr * 4);
	else
		_tile_zero(0);
	for (int64_t s = 0; s < steps; s++, a.at += a.step, b.at += b.step) {
		_tile_loadd(4, a.at, a.row);
		_tile_loadd(6, b.at, b.row);
		_tile_dpbf16ps(0, 4, 6);
	}
	_tile_stored(0, c, cr * 4);
}

/* v[i][j] becomes v[j][i], of pairs. */
INLINE void turn_lines(__m512i v[SIDE])
{
	__m512i t[SIDE];
	#pragma GCC unroll 16
	for (int i = 0; i < SIDE; i += 2) {
		t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
		t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
	}
	#pragma GCC unroll 16
	for (int i = 0; i < SIDE; i += 4) { /* v[i + c]: columns c, 4 + c, 8 + c, 12 + c of rows i to i + 3 */
		v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
		v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
		v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
		v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
	}
	#pragma GCC unroll 16
	for (int c = 0; c < 4; c++) {
		__m512i even = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x88), odd = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xdd);
		__m512i even2 = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0x88);
		__m512i odd2 = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0xdd);
		t[c] = _mm512_shuffle_i32x4(even, even2, 0x88);
		t[4 + c] = _mm512_shuffle_i32x4(odd, odd2, 0x88);
		t[8 + c] = _mm512_shuffle_i32x4(even, even2, 0xdd);
		t[12 + c] = _mm512_shuffle_i32x4(odd, odd2, 0xdd);
	}
	#pragma GCC unroll 16
	for (int i = 0; i < SIDE; i++)
		v[i] = t[i];
}
#else
INLINE bool tiles_ready(void) { return false; }
#endif
#endif
