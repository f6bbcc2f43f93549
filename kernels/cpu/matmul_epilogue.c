/* kernels/cpu/matmul_epilogue.c: products with an epilogue, by the product and then a loop.
 *
 * oneDNN has no such products for training: its GELU keeps no operand, and its products give no sums.  So --target=cpu
 * makes none of them (pass epilogue), and what is here is for programs that are given as IR. */
#include "kernels/cpu/half.h"
#include "kernels/cpu/prim.h"

#include <stdio.h>

KPrim *k_matmul_epilogue_create(const KMatmulDesc *d)
{
	KPrim *p = prim_new("");
	KMatmulDesc product = *d;
	product.epilogue = K_NO_EPILOGUE;
	p->matmul = *d;
	p->product[0] = k_matmul_create(&product);
	p->work = k_prim_work(p->product[0]);
	snprintf(p->impl, sizeof p->impl, "apart:%.40s", k_prim_impl(p->product[0]));
	return p;
}

static void gelu_rows(const KMatmulDesc *d, uint16_t *y, const uint16_t *x)
{
	#pragma omp parallel for schedule(static) if (d->m * d->n > PARALLEL_MIN)
	for (int64_t i = 0; i < d->m * d->n; i++)
		y[i] = d->dtype == K_BF16 ? ew_gelu_bf16(x[i], 1) : ew_gelu_f16(x[i], 1);
}

static void gelu_grad_rows(const KMatmulDesc *d, uint16_t *y, const uint16_t *x)
{
	#pragma omp parallel for schedule(static) if (d->m * d->n > PARALLEL_MIN)
	for (int64_t i = 0; i < d->m * d->n; i++)
		y[i] = d->dtype == K_BF16 ? ew_gelu_grad_bf16(x[i], y[i], 1) : ew_gelu_grad_f16(x[i], y[i], 1);
}

static void sum_columns(const KMatmulDesc *d, float *sums, const uint16_t *x, int64_t cols)
{
	const int64_t dim[] = {d->k, cols};
	if (d->dtype == K_BF16)
		k_reduce_sum_bf16_f32(sums, x, 2, dim, 1, NULL);
	else
		k_reduce_sum_f16_f32(sums, x, 2, dim, 1, NULL);
}

void k_matmul_epilogue_run(KPrim *p, void *y, void *aux, const void *a, const void *b, const void *bias, void *work)
{
	const KMatmulDesc *d = &p->matmul;
	k_matmul_run(p->product[0], d->epilogue == K_GELU ? aux : y, a, b, bias, work);
	switch (d->epilogue) {
	case K_GELU: gelu_rows(d, y, aux); break;
	case K_GELU_GRAD: gelu_grad_rows(d, y, aux); break;
	case K_SUMS_A: sum_columns(d, aux, a, d->m); break;
	case K_SUMS_B: sum_columns(d, aux, b, d->n); break;
	case K_NO_EPILOGUE: break;
	}
}
