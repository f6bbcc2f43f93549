/* kernels/cpu/matmul_f8.c: tensors as 8-bit floats with one scale, and products of them.
 *
 * Processors have no such products: operands are widened to bf16, which holds them exactly, and multiplied in f32; so
 * the numbers are those of a GPU but for the order of sums, and nothing is faster. */
#include "kernels/cpu/half.h"
#include "kernels/cpu/prim.h"
#include "kernels/f8.h"
#include "kernels/work.h"

#include <stdio.h>

/* The bits of |x| order as the numbers do, and NaN is the largest. */
void k_f8_scale_bf16(float *scale, const uint16_t *x, KDType to, int64_t n, void *work)
{
	uint16_t most = 0;
	(void)work;
	#pragma omp parallel for simd schedule(static) reduction(max : most) if (n > PARALLEL_MIN)
	for (int64_t i = 0; i < n; i++)
		most = MAX(most, (uint16_t)(x[i] & 0x7fff));
	*scale = f8_scale(ew_cast_bf16_f32(most), to == K_E4M3);
}

void k_f8_largest_f32(float *most, const float *x, int64_t n)
{
	uint32_t bits = ew_bits(*most);
	#pragma omp parallel for simd schedule(static) reduction(max : bits) if (n > PARALLEL_MIN)
	for (int64_t i = 0; i < n; i++)
		bits = MAX(bits, ew_bits(x[i]) & 0x7fffffff);
	*most = ew_float(bits);
}

enum { SIDE = 32 }; /* of a tile that is turned */

void k_turn_f8(uint8_t *y, const uint8_t *x, int64_t m, int64_t k)
{
	#pragma omp parallel for schedule(static) if (m * k > PARALLEL_MIN)
	for (int64_t r = 0; r < m; r += SIDE)
		for (int64_t c = 0; c < k; c += SIDE)
			for (int64_t i = r; i < MIN(r + SIDE, m); i++)
				for (int64_t j = c; j < MIN(c + SIDE, k); j++)
					y[j * m + i] = x[i * k + j];
}

void k_to_f8_bf16(uint8_t *rows, uint8_t *columns, const uint16_t *x, const float *scale, KDType to, int64_t m,
	int64_t k)
{
	float inverse = 1 / *scale;
	#pragma omp parallel for schedule(static) if (m * k > PARALLEL_MIN)
	for (int64_t r = 0; r < m; r += SIDE)
		for (int64_t c = 0; c < k; c += SIDE)
			for (int64_t i = r; i < MIN(r + SIDE, m); i++)
				for (int64_t j = c; j < MIN(c + SIDE, k); j++) {
					uint8_t y = f8_from_float(ew_cast_bf16_f32(x[i * k + j]) * inverse, to == K_E4M3);
					if (rows)
						rows[i * k + j] = y;
					if (columns)
						columns[j * m + i] = y;
				}
}

static void widen_f8(uint16_t *to, const uint8_t *from, KDType t, int64_t n)
{
	uint16_t value[256];
	for (int i = 0; i < 256; i++)
		value[i] = f8_to_bf16((uint8_t)i, t == K_E4M3);
	#pragma omp parallel for schedule(static) if (n > PARALLEL_MIN)
	for (int64_t i = 0; i < n; i++)
		to[i] = value[from[i]];
}

KPrim *k_matmul_f8_create(const KMatmulDesc *d)
{
	KPrim *p = prim_new("");
	KF8Work at = kwork_f8_at(d->m, d->n, d->k);
	KMatmulDesc inner = {.dtype = K_BF16, .to = K_F32, .m = d->m, .n = d->n, .k = d->k, .tb = true,
		.work_bytes = K_GEMM_WORK};
	p->matmul = *d;
	p->product[0] = k_matmul_create(&inner);
	p->work = at.product + k_prim_work(p->product[0]);
	snprintf(p->impl, sizeof p->impl, "widened:%.40s", k_prim_impl(p->product[0]));
	return p;
}

void k_matmul_f8_run(KPrim *p, void *y, const void *a, const void *b, const float *a_scale, const float *b_scale,
	const void *bias, void *work)
{
	const KMatmulDesc *d = &p->matmul;
	KF8Work at = kwork_f8_at(d->m, d->n, d->k);
	char *w = work;
	const float *sum = (const float *)(const void *)(w + at.y);
	float scale = *a_scale * *b_scale;
	widen_f8(work, a, d->dtype, d->m * d->k);
	widen_f8((uint16_t *)(void *)(w + at.b), b, d->b_dtype, d->n * d->k);
	k_matmul_run(p->product[0], w + at.y, work, w + at.b, NULL, w + at.product);
	#pragma omp parallel for schedule(static) if (d->m * d->n > PARALLEL_MIN)
	for (int64_t i = 0; i < d->m; i++)
		for (int64_t j = 0; j < d->n; j++) {
			int64_t o = i * d->n + j;
			float v = sum[o] * scale + (bias ? ew_cast_bf16_f32(((const uint16_t *)bias)[j]) : 0);
			if (d->to == K_BF16)
				((uint16_t *)y)[o] = ew_cast_f32_bf16(v);
			else
				((float *)y)[o] = d->add ? ((float *)y)[o] + v : v;
		}
}
