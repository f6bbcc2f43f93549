/* kernels/cpu/matmul_amx.h: products on tiles (matmul_amx.c) with a right operand that is no matrix in memory. */
#ifndef SHARDC_CPU_MATMUL_AMX_H
#define SHARDC_CPU_MATMUL_AMX_H

#include "kernels/kernels.h"

/* Rows of b.  `width` columns, from a multiple of width on, are a part of a row and follow each other in memory.  find
 * says where the parts number `part` of rows [k, k + n) begin; NULL: they are zero. */
typedef struct Gathered {
	int64_t width;
	void (*find)(const void *from, int64_t k, int64_t n, int64_t part, const uint16_t **row);
	const void *from;
} Gathered;

/* The bytes of work with which y (m, n) = a^T b is computed, at most d->work_bytes, or -1 where it cannot be: operands
 * are bf16, y is f32, d->ta is set, and n is a multiple of 32, as widths have to be. */
int64_t matmul_amx_gathered_work(const KMatmulDesc *d);
void matmul_amx_gathered(const KMatmulDesc *d, float *y, const void *a, const Gathered *b, char *work);

#endif
