/* kernels/cpu/matmul_amx.h: products on tiles (matmul_amx.c) with a right operand that is no matrix in memory. */
#ifndef SHARDC_CPU_MATMUL_AMX_H
#define SHARDC_CPU_MATMUL_AMX_H

#include "kernels/kernels.h"

/* Rows of b.  `width` columns, from a multiple of width on, are a part of a row and follow each other in memory.  find
 * says where the parts number `part` of rows [k, k + n) begin, at most 32 of them; NULL: they are zero.  Where width is
 * 32 a part may be put into spare first; each row has one. */
typedef uint16_t GatheredSpare[32];
typedef struct Gathered {
	int64_t width;
	void (*find)(const void *from, int64_t k, int64_t n, int64_t part, const uint16_t **row, GatheredSpare *spare);
	const void *from;
} Gathered;

/* The bytes of work with which y (m, n) = a^T b is computed, at most d->work_bytes; -1: more would be needed, or there
 * are no tile units.  d: operands in bf16, y in f32, ta, with lda and ldy; n and widths are multiples of 32. */
int64_t matmul_amx_gathered_work(const KMatmulDesc *d);
void matmul_amx_gathered(const KMatmulDesc *d, float *y, const void *a, const Gathered *b, char *work);

#endif
