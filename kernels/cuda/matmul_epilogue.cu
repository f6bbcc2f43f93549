/* kernels/cuda/matmul_epilogue.cu: products that compute a GELU, its gradient, or sums of columns beside themselves.
 *
 * cublasLt's epilogues do: GELU_AUX(_BIAS), DGELU, BGRADA and BGRADB.  Where it proposes no algorithm with an epilogue,
 * a kernel follows the product: that rounds a product of 16 bits once more, sums are f32 as well, and k_prim_impl
 * begins with "apart". */
#include <stdio.h>

#include "kernels/cuda/prim.cuh"

enum { THREADS = 256 };

template <class T, int V> static __global__ void gelu_of(T *y, const T *x, int64_t count)
{
	GRID_STRIDE(i, count) {
		Vec<T, V> v = load<V>(x + i * V);
		for (int k = 0; k < V; k++)
			v.at[k] = narrow<T>(ew_gelu_f32(widen(v.at[k]), 1));
		store(y + i * V, v);
	}
}

template <class T, int V> static __global__ void gelu_grad_of(T *y, const T *x, int64_t count)
{
	GRID_STRIDE(i, count) {
		Vec<T, V> v = load<V>(x + i * V), dy = load<V>(y + i * V);
		for (int k = 0; k < V; k++)
			v.at[k] = narrow<T>(ew_gelu_grad_f32(widen(v.at[k]), widen(dy.at[k]), 1));
		store(y + i * V, v);
	}
}

template <class T, int V> static void activate_by(bool grad, T *y, const T *x, int64_t count)
{
	unsigned grid = blocks_for(count, THREADS);
	if (grad)
		LAUNCH((gelu_grad_of<T, V>), grid, THREADS, 0, k_stream, y, x, count);
	else
		LAUNCH((gelu_of<T, V>), grid, THREADS, 0, k_stream, y, x, count);
}

template <class T> static void activate(bool grad, void *y, const void *x, int64_t n)
{
	if (n % vec_of<T> == 0 && aligned16(y) && aligned16(x))
		activate_by<T, vec_of<T>>(grad, (T *)y, (const T *)x, n / vec_of<T>);
	else
		activate_by<T, 1>(grad, (T *)y, (const T *)x, n);
}

static void sum_columns(const KMatmulDesc *d, float *sums, const void *x, int64_t cols, void *work)
{
	const int64_t dim[] = {d->k, cols};
	if (d->dtype == K_BF16)
		k_reduce_sum_bf16_f32(sums, (const uint16_t *)x, 2, dim, 1, work);
	else
		k_reduce_sum_f16_f32(sums, (const uint16_t *)x, 2, dim, 1, work);
}

static void run_apart(KPrim *p, void *y, void *aux, const void *a, const void *b, const void *bias, void *work)
{
	const KMatmulDesc *d = &p->matmul;
	bool grad = d->epilogue == K_GELU_GRAD;
	k_matmul_run(p->product[0], d->epilogue == K_GELU ? aux : y, a, b, bias, work);
	if (d->epilogue == K_SUMS_A)
		sum_columns(d, (float *)aux, a, d->m, work);
	else if (d->epilogue == K_SUMS_B)
		sum_columns(d, (float *)aux, b, d->n, work);
	else if (d->dtype == K_BF16)
		activate<Bf16>(grad, y, aux, d->m * d->n);
	else
		activate<F16>(grad, y, aux, d->m * d->n);
}

KPrim *k_matmul_epilogue_create(const KMatmulDesc *desc)
{
	KPrim *p = prim_new();
	KMatmulDesc plain = *desc;
	if (matmul_with_epilogue(p, desc))
		return p;
	plain.epilogue = K_NO_EPILOGUE;
	p->matmul = *desc;
	p->product[0] = k_matmul_create(&plain);
	p->work = desc->work_bytes;
	snprintf(p->impl, sizeof p->impl, "apart:%.50s", k_prim_impl(p->product[0]));
	return p;
}

void k_matmul_epilogue_run(KPrim *p, void *y, void *aux, const void *a, const void *b, const void *bias, void *work)
{
	p->lt.aux = aux;
	if (p->product[0])
		run_apart(p, y, aux, a, b, bias, work);
	else
		p->run(p, y, a, b, bias, (char *)work);
}
