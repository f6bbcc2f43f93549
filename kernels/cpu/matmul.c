/* kernels/cpu/matmul.c: matrix products.
 *
 * f32 and 16-bit products run on oneDNN: on its blocked gemm (as inner product or matmul) or on its batch-reduce
 * kernels, whichever measured faster for the transposition.  Our own kernels serve other dtypes, what the library lacks
 * or serves by its reference implementation only (f16 up to its version 2), bf16 products on tile units, large f32
 * products on vectors of 8 floats, and all where bits must not depend on the number of threads (k_threads_exact).  A
 * batch in which b is broadcast and a's matrices are contiguous is computed as one taller matrix. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/prim.h"

/* Folds batch dims into m where b does not change along them and a's rows continue from one matrix to the next. */
static KMatmulDesc matmul_fold(const KMatmulDesc *d)
{
	KMatmulDesc f = k_matmul_rows(*d);
	while (f.n_batch > 0 && !f.ta) {
		int last = f.n_batch - 1;
		if (f.batch[last] != 1 && (f.sb[last] != 0 || f.sa[last] != f.m * f.lda))
			break;
		f.m *= f.batch[last];
		f.n_batch--;
	}
	while (f.n_batch > 0 && f.batch[f.n_batch - 1] == 1)
		f.n_batch--;
	return f;
}

/* row: elements from row to row, of the transposed matrix from column to column. */
static void matrix_md(dnnl_memory_desc_t *md, const KMatmulDesc *d, int64_t rows, int64_t cols, int64_t row,
	KDType t, bool transposed, const int64_t *batch_stride)
{
	dnnl_dims_t dim, stride;
	int nb = d->n_batch;
	for (int i = 0; i < nb; i++) {
		dim[i] = batch_stride[i] == 0 ? 1 : d->batch[i];
		stride[i] = batch_stride[i] == 0 ? (transposed ? cols : rows) * row : batch_stride[i];
	}
	dim[nb] = rows;
	dim[nb + 1] = cols;
	stride[nb] = transposed ? 1 : row;
	stride[nb + 1] = transposed ? row : 1;
	prim_check(dnnl_memory_desc_init_by_strides(md, nb + 2, dim, prim_type(t), stride),
		"describe a matrix");
}

static bool accept_any(const char *impl, dnnl_primitive_desc_t pd, const void *context)
{
	(void)impl;
	return prim_scratch_bytes(pd) <= ((const KMatmulDesc *)context)->work_bytes;
}

/* f32: batch-reduce kernels are faster where b is transposed and has few columns, and for batches of small matrices.
 * 16-bit: they are faster on tile units (AMX) unless the sum is long or the result is f32; on vectors the blocked gemm
 * is. */
static bool accept_best(const char *impl, dnnl_primitive_desc_t pd, const void *context)
{
	const KMatmulDesc *d = context;
	bool brgemm = strncmp(impl, "brg", 3) == 0, want;
	if (is_half(d->dtype))
		want = strstr(impl, "amx") && (d->n_batch > 0 || (d->ta ? is_half(d->to) : d->n >= d->k));
	else
		want = d->n_batch > 0 || (!d->ta && d->tb && d->n <= d->k);
	return accept_any(impl, pd, context) && (!brgemm || want);
}

/* Every product has its arguments in this order: y, a, b[, bias], scratch. */
static void matmul_run(KPrim *p, PrimArgs *t, char *work)
{
	int bias = p->matmul.bias;
	for (int i = 0; i < 3 + bias; i++)
		prim_set(p, i, t->at[i]);
	prim_set(p, 3 + bias, work);
	prim_execute(p);
}

static KPrim *create_matmul(const KMatmulDesc *d, PrimAccept *accept)
{
	dnnl_memory_desc_t a, b, y, bias;
	int64_t whole[6];
	int64_t s = d->m * d->ldy;
	for (int i = d->n_batch - 1; i >= 0; i--) {
		whole[i] = s;
		s *= d->batch[i];
	}
	matrix_md(&a, d, d->m, d->k, d->lda, d->dtype, d->ta, d->sa);
	matrix_md(&b, d, d->k, d->n, d->ldb, d->dtype, d->tb, d->sb);
	matrix_md(&y, d, d->m, d->n, d->ldy, matmul_to(d), false, whole);
	if (d->bias) {
		dnnl_dims_t dim, stride;
		for (int i = 0; i < d->n_batch + 2; i++)
			dim[i] = 1, stride[i] = d->n;
		dim[d->n_batch + 1] = d->n;
		stride[d->n_batch + 1] = 1;
		prim_check(dnnl_memory_desc_init_by_strides(&bias, d->n_batch + 2, dim, prim_type(d->dtype), stride),
			"describe a bias");
	}
	dnnl_matmul_desc_t op;
	prim_check(dnnl_matmul_desc_init(&op, &a, &b, d->bias ? &bias : NULL, &y), "describe a matmul");
	dnnl_primitive_desc_t pd = prim_choose(&op, NULL, d->add, accept, d);
	if (!pd)
		return NULL;
	KPrim *p = prim_new("");
	p->matmul = *d;
	p->run = matmul_run;
	prim_add_arg(p, DNNL_ARG_DST, &y);
	prim_add_arg(p, DNNL_ARG_SRC, &a);
	prim_add_arg(p, DNNL_ARG_WEIGHTS, &b);
	if (d->bias)
		prim_add_arg(p, DNNL_ARG_BIAS, &bias);
	prim_take(p, pd);
	dnnl_primitive_desc_destroy(pd);
	return p;
}

/* Our own kernel is faster than the library's on vectors of 8 floats, where there are enough rows and columns to share
 * what packing costs: up to 2 times for gradients of weights, whose rows are often 4096 bytes apart, and at least as
 * fast for others (bench/NOTES.md).  A batch goes to the library, which is faster with small matrices. */
static bool own_pays(const KMatmulDesc *d)
{
	return VW == 8 && d->dtype == K_F32 && d->n_batch == 0 && d->m >= 128 && d->k >= 64 && d->n >= (d->ta ? 32 : 96);
}

static void md_2d(dnnl_memory_desc_t *md, int64_t rows, int64_t cols, KDType t, bool transposed)
{
	dnnl_dims_t dim = {rows, cols};
	prim_check(dnnl_memory_desc_init_by_tag(md, 2, dim, prim_type(t), transposed ? dnnl_ba : dnnl_ab),
		"describe a matrix");
}

/* y = a op(b) + bias as oneDNN's inner product: source a (m, k), weights (n, k). */
static KPrim *create_inner(const KMatmulDesc *d)
{
	dnnl_memory_desc_t a, w, y, bias;
	dnnl_inner_product_desc_t op;
	dnnl_dims_t n = {d->n};
	md_2d(&a, d->m, d->k, d->dtype, false);
	md_2d(&w, d->n, d->k, d->dtype, !d->tb);
	md_2d(&y, d->m, d->n, matmul_to(d), false);
	prim_check(dnnl_memory_desc_init_by_tag(&bias, 1, n, prim_type(d->dtype), dnnl_a), "describe a bias");
	if (dnnl_inner_product_forward_desc_init(&op, dnnl_forward_training, &a, &w, d->bias ? &bias : NULL, &y))
		return NULL;
	dnnl_primitive_desc_t pd = prim_choose(&op, NULL, d->add, accept_any, d);
	if (!pd)
		return NULL;
	KPrim *p = prim_new("");
	p->matmul = *d;
	p->run = matmul_run;
	prim_add_arg(p, DNNL_ARG_DST, &y);
	prim_add_arg(p, DNNL_ARG_SRC, &a);
	prim_add_arg(p, DNNL_ARG_WEIGHTS, &w);
	if (d->bias)
		prim_add_arg(p, DNNL_ARG_BIAS, &bias);
	prim_take(p, pd);
	dnnl_primitive_desc_destroy(pd);
	return p;
}

KPrim *k_matmul_create(const KMatmulDesc *desc)
{
	KMatmulDesc d = matmul_fold(desc);
	int64_t count = d.m * d.n;
	for (int i = 0; i < d.n_batch; i++)
		count *= d.batch[i];
	bool half = is_half(d.dtype), library = (half || d.dtype == K_F32) && count > 0 && d.k > 0;
	KPrim *p = library ? matmul_amx_create(&d) : NULL;
	if (p)
		return p;
	if (k_threads_exact && library)
		return half ? matmul_wide_create(&d) : matmul_packed_create(&d);
	if (library && own_pays(&d))
		return matmul_packed_create(&d);
	bool dense = d.lda == (d.ta ? d.m : d.k) && d.ldb == (d.tb ? d.k : d.n) && d.ldy == d.n;
	if (library && dense && !half && d.n_batch == 0 && !d.ta && !(d.tb && d.n <= d.k))
		p = create_inner(&d);
	if (library && !p)
		p = create_matmul(&d, accept_best);
	if (library && !p && half)
		p = create_matmul(&d, accept_any);
	return p ? p : half ? matmul_wide_create(&d) : matmul_plain_create(&d);
}

void k_matmul_run(KPrim *p, void *y, const void *a, const void *b, const void *bias, void *work)
{
	PrimArgs t = {{y, (void *)(uintptr_t)a, (void *)(uintptr_t)b, (void *)(uintptr_t)bias}};
	p->run(p, &t, work);
}
