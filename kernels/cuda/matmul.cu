/* kernels/cuda/matmul.cu: matrix products on cublasLt.
 *
 * The library is column-major: y = op(a) op(b) in rows is y' = op(b)' op(a)' in columns, so operands are swapped and
 * nothing is copied.  Of the algorithms that it proposes, only those are used that do not split a sum, or that join
 * its parts in f32 in a fixed order.  The library takes one batch dim; where broadcasting leaves more, the host loops
 * over the others.  Products of 8-bit floats are wanted with the dim that is summed over last in both operands, and
 * take their scales from the device. */
#include <stdio.h>

#include "kernels/cuda/prim.cuh"

/* ---- batch dims ---- */

static void drop_dim(KMatmulDesc *d, int i)
{
	for (; i + 1 < d->n_batch; i++) {
		d->batch[i] = d->batch[i + 1];
		d->sa[i] = d->sa[i + 1];
		d->sb[i] = d->sb[i + 1];
	}
	d->n_batch--;
}

/* Drops batch dims of 1, folds a dim along which a's rows continue and b is the same into m, and merges neighbouring
 * dims that are one dim to both operands. */
static KMatmulDesc merge_batch(const KMatmulDesc *desc)
{
	KMatmulDesc d = k_matmul_rows(*desc);
	for (int i = d.n_batch - 1; i >= 0; i--)
		if (d.batch[i] == 1)
			drop_dim(&d, i);
	while (d.n_batch > 0 && !d.ta && d.sb[d.n_batch - 1] == 0 && d.sa[d.n_batch - 1] == d.m * d.lda)
		d.m *= d.batch[--d.n_batch];
	for (int i = d.n_batch - 2; i >= 0; i--)
		if (d.sa[i] == d.sa[i + 1] * d.batch[i + 1] && d.sb[i] == d.sb[i + 1] * d.batch[i + 1]) {
			d.batch[i + 1] *= d.batch[i];
			drop_dim(&d, i);
		}
	return d;
}

/* Elements between the matrices of y along each batch dim. */
static void y_strides(const KMatmulDesc *d, int64_t *stride)
{
	int64_t s = d->m * d->ldy;
	for (int i = d->n_batch - 1; i >= 0; i--) {
		stride[i] = s;
		s *= d->batch[i];
	}
}

/* The bytes that every matrix of the operand is aligned to, at most 64, which all tensors are (but see apart). */
static uint32_t alignment(const KMatmulDesc *d, const int64_t *stride, KDType t)
{
	int64_t a = 64;
	while (d->apart % a)
		a /= 2;
	for (int i = 0; i < d->n_batch; i++)
		while (stride[i] * dtype_bytes(t) % a)
			a /= 2;
	return (uint32_t)a;
}

/* ---- description ---- */

static cudaDataType_t lt_type(KDType t)
{
	if (is_f8(t))
		return t == K_E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
	return t == K_F64 ? CUDA_R_64F : t == K_BF16 ? CUDA_R_16BF : t == K_F16 ? CUDA_R_16F : CUDA_R_32F;
}

template <class V> static void set_op(LtProduct *l, cublasLtMatmulDescAttributes_t name, V value)
{
	prim_check_lt(cublasLtMatmulDescSetAttribute(l->op, name, &value, sizeof value), "describe a product");
}

template <class V> static void set_preference(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t name,
	V value)
{
	prim_check_lt(cublasLtMatmulPreferenceSetAttribute(p, name, &value, sizeof value), "describe a choice");
}

/* A row-major matrix of rows x cols, `row` elements from row to row, which the library sees as cols x rows. */
static cublasLtMatrixLayout_t matrix(KDType t, int64_t rows, int64_t cols, int64_t row, int32_t count, int64_t stride)
{
	cublasLtMatrixLayout_t l = NULL;
	prim_check_lt(cublasLtMatrixLayoutCreate(&l, lt_type(t), (uint64_t)cols, (uint64_t)rows, row),
		"describe a matrix");
	prim_check_lt(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
		"describe a batch");
	prim_check_lt(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
		sizeof stride), "describe a batch");
	return l;
}

static void describe(LtProduct *l, const KMatmulDesc *d)
{
	int64_t sy[6];
	y_strides(d, sy);
	l->strided = 0;
	for (int i = 1; i < d->n_batch; i++)
		if (d->batch[i] > d->batch[l->strided])
			l->strided = i;
	bool one = d->n_batch == 0;
	int32_t count = one ? 1 : (int32_t)d->batch[l->strided];
	int64_t s[3] = {one ? 0 : d->sa[l->strided], one ? 0 : d->sb[l->strided], one ? 0 : sy[l->strided]};
	l->a = matrix(d->dtype, d->ta ? d->k : d->m, d->ta ? d->m : d->k, d->lda, count, s[0]);
	l->b = matrix(matmul_b(d), d->tb ? d->n : d->k, d->tb ? d->k : d->n, d->ldb, count, s[1]);
	l->y = matrix(matmul_y(d), d->m, d->n, d->ldy, count, s[2]);
	cublasComputeType_t compute = d->dtype == K_F64 ? CUBLAS_COMPUTE_64F
		: d->dtype == K_F32 && prim_tf32() ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
	prim_check_lt(cublasLtMatmulDescCreate(&l->op, compute, d->dtype == K_F64 ? CUDA_R_64F : CUDA_R_32F),
		"describe a product");
	set_op<int32_t>(l, CUBLASLT_MATMUL_DESC_TRANSA, d->tb ? CUBLAS_OP_T : CUBLAS_OP_N);
	set_op<int32_t>(l, CUBLASLT_MATMUL_DESC_TRANSB, d->ta ? CUBLAS_OP_T : CUBLAS_OP_N);
}

/* ---- choice ---- */

template <class V> static V config(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t name)
{
	V value = 0;
	size_t written;
	prim_check_lt(cublasLtMatmulAlgoConfigGetAttribute(algo, name, &value, sizeof value, &written),
		"name an algorithm");
	return value;
}

bool matmul_may_take(const KPrim *p, const cublasLtMatmulHeuristicResult_t *r)
{
	if (r->state != CUBLAS_STATUS_SUCCESS || (int64_t)r->workspaceSize > p->matmul.work_bytes)
		return false;
	uint32_t scheme = config<uint32_t>(&r->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
	return scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

void matmul_take(KPrim *p, const cublasLtMatmulHeuristicResult_t *r)
{
	p->lt.algo = r->algo;
	p->lt.bytes = (int64_t)r->workspaceSize;
}

/* The proposals of the library for the description that may be taken, the best first; returns how many there are. */
static int proposals(const KPrim *p, cublasLtMatmulHeuristicResult_t *found, int most)
{
	const KMatmulDesc *d = &p->matmul;
	const LtProduct *l = &p->lt;
	cublasLtMatmulPreference_t wish;
	int64_t sy[6];
	int n = 0, fit = 0;
	y_strides(d, sy);
	prim_check_lt(cublasLtMatmulPreferenceCreate(&wish), "describe a choice");
	set_preference<uint64_t>(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)d->work_bytes);
	set_preference<uint32_t>(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
	set_preference(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(d, d->sb, matmul_b(d)));
	set_preference(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(d, d->sa, d->dtype));
	set_preference(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(d, sy, matmul_y(d)));
	set_preference(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(d, sy, matmul_y(d)));
	cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(prim_lt(), l->op, l->b, l->a, l->y, l->y, wish, most, found,
		&n);
	cublasLtMatmulPreferenceDestroy(wish);
	for (int i = 0; i < n && status == CUBLAS_STATUS_SUCCESS; i++)
		if (matmul_may_take(p, &found[i]))
			found[fit++] = found[i];
	return fit;
}

/* Chooses the best algorithm for the description; false when there is none. */
static bool choose(KPrim *p)
{
	cublasLtMatmulHeuristicResult_t found[TUNE_PROPOSALS];
	int n = proposals(p, found, tune_on() ? TUNE_PROPOSALS : PROPOSALS);
	if (n && tune_on())
		tune_choose(p, found, n);
	else if (n)
		matmul_take(p, &found[0]);
	return n > 0;
}

/* The library's epilogue adds the bias where bias and y have one type.  Otherwise, or where no algorithm has the
 * epilogue, y is filled with the bias first and the product added. */
static bool choose_with_bias(KPrim *p)
{
	const KMatmulDesc *d = &p->matmul;
	LtProduct *l = &p->lt;
	if (d->bias && d->dtype != K_F64 && matmul_y(d) == matmul_bias(d)) {
		set_op<int32_t>(l, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
		set_op<const void *>(l, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)64); /* has a bias's alignment */
		l->fused_bias = true;
		if (choose(p))
			return true;
		l->fused_bias = false;
		set_op<int32_t>(l, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
	}
	return choose(p);
}

/* ---- epilogues ---- */

/* The library's name; its A is our b, and its B our a. */
static cublasLtEpilogue_t epilogue_of(const KMatmulDesc *d)
{
	switch (d->epilogue) {
	case K_GELU: return d->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
	case K_GELU_GRAD: return CUBLASLT_EPILOGUE_DGELU;
	case K_SUMS_A: return CUBLASLT_EPILOGUE_BGRADB;
	case K_SUMS_B: return CUBLASLT_EPILOGUE_BGRADA;
	default: return CUBLASLT_EPILOGUE_DEFAULT;
	}
}

static bool has_aux(const KMatmulDesc *d) { return d->epilogue == K_GELU || d->epilogue == K_GELU_GRAD; }
static bool has_sums(const KMatmulDesc *d) { return d->epilogue == K_SUMS_A || d->epilogue == K_SUMS_B; }

/* What the library's reference asks: rows of x of a multiple of 8 elements.  Biases, their gradients and x have y's
 * type, and pointers stand for their alignment until a run sets them. */
static bool describe_epilogue(LtProduct *l, const KMatmulDesc *d)
{
	const void *aligned = (const void *)64;
	if (d->n_batch || (has_aux(d) && d->ldy % 8))
		return false;
	set_op<int32_t>(l, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(d));
	if (d->bias || has_sums(d))
		set_op(l, CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned);
	if (has_aux(d)) {
		set_op<int64_t>(l, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, d->ldy);
		set_op(l, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned);
	}
	l->fused_bias = d->bias;
	return true;
}

/* ---- run ---- */

template <class T, class O> static __global__ void fill_rows(O *y, const T *bias, int64_t numel, int64_t n, int64_t row)
{
	GRID_STRIDE(i, numel)
		y[i / n * row + i % n] = narrow<O>(widen(bias[i % n]));
}

template <class T, class O> static void prefill(const KMatmulDesc *d, void *y, const void *bias, int64_t rows)
{
	LAUNCH((fill_rows<T, O>), blocks_for(rows * d->n, 1024), 256, 0, k_stream, (O *)y, (const T *)bias,
		rows * d->n, d->n, d->ldy);
}

static void prefill_any(const KMatmulDesc *d, void *y, const void *bias, int64_t rows)
{
	bool wide = d->to == K_F32;
	if (d->dtype == K_F64)
		prefill<double, double>(d, y, bias, rows);
	else if (d->dtype == K_F32)
		prefill<float, float>(d, y, bias, rows);
	else if (matmul_bias(d) == K_BF16)
		wide ? prefill<Bf16, float>(d, y, bias, rows) : prefill<Bf16, Bf16>(d, y, bias, rows);
	else
		wide ? prefill<F16, float>(d, y, bias, rows) : prefill<F16, F16>(d, y, bias, rows);
}

cublasStatus_t matmul_launch(KPrim *p, char *y, const char *a, const char *b, const void *bias, void *work)
{
	LtProduct *l = &p->lt;
	bool f64 = p->matmul.dtype == K_F64;
	double alpha64 = 1, beta64 = p->matmul.add || (p->matmul.bias && !l->fused_bias) ? 1 : 0;
	float alpha32 = 1, beta32 = (float)beta64;
	const void *alpha = f64 ? (const void *)&alpha64 : &alpha32, *beta = f64 ? (const void *)&beta64 : &beta32;
	if (l->fused_bias)
		set_op<const void *>(l, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
	if (has_aux(&p->matmul))
		set_op<void *>(l, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, l->aux);
	if (has_sums(&p->matmul))
		set_op<void *>(l, CUBLASLT_MATMUL_DESC_BIAS_POINTER, l->aux);
	if (is_f8(p->matmul.dtype)) {
		set_op<const void *>(l, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, l->b_scale);
		set_op<const void *>(l, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, l->a_scale);
	}
	return cublasLtMatmul(prim_lt(), l->op, alpha, b, l->b, a, l->a, beta, y, l->y, y, l->y, &l->algo, work,
		(size_t)l->bytes, k_stream);
}

static void run(KPrim *p, void *y, const void *a, const void *b, const void *bias, char *work)
{
	const KMatmulDesc *d = &p->matmul;
	LtProduct *l = &p->lt;
	int64_t at[6] = {0}, sy[6], size = dtype_bytes(d->dtype), y_size = dtype_bytes(matmul_y(d)), launches = 1;
	y_strides(d, sy);
	for (int i = 0; i < d->n_batch; i++)
		launches *= i == l->strided ? 1 : d->batch[i];
	if (bias && !l->fused_bias)
		prefill_any(d, y, bias, d->n_batch ? sy[0] / d->ldy * d->batch[0] : d->m);
	for (int64_t c = 0; c < launches; c++) {
		int64_t oy = 0, oa = 0, ob = 0;
		for (int i = 0; i < d->n_batch; i++)
			oy += at[i] * sy[i], oa += at[i] * d->sa[i], ob += at[i] * d->sb[i];
		prim_check_lt(matmul_launch(p, (char *)y + oy * y_size, (const char *)a + oa * size,
			(const char *)b + ob * size, bias, work), "launch a product");
		for (int i = d->n_batch - 1; i >= 0; i--) {
			if (i != l->strided && ++at[i] < d->batch[i])
				break;
			at[i] = 0;
		}
	}
}

/* ---- life ---- */

static bool library_serves(const KMatmulDesc *d)
{
	int64_t numel = d->m * d->n, limit = INT32_MAX;
	for (int i = 0; i < d->n_batch; i++) {
		numel *= d->batch[i];
		if (d->batch[i] > limit)
			return false;
	}
	bool served = is_half(d->dtype) || is_f8(d->dtype) || d->dtype == K_F32 || d->dtype == K_F64;
	return served && numel > 0 && d->k > 0 && d->m <= limit
		&& d->n <= limit && d->k <= limit && d->work_bytes >= 0;
}

static void free_description(LtProduct *l)
{
	cublasLtMatmulDescDestroy(l->op);
	cublasLtMatrixLayoutDestroy(l->a);
	cublasLtMatrixLayoutDestroy(l->b);
	cublasLtMatrixLayoutDestroy(l->y);
	*l = LtProduct{};
}

/* Makes p run the library; false where it does not serve the product, or not with its epilogue. */
static bool take_library(KPrim *p)
{
	const KMatmulDesc *d = &p->matmul;
	if (!library_serves(d))
		return false;
	describe(&p->lt, d);
	if (d->epilogue ? !describe_epilogue(&p->lt, d) || !choose(p) : !choose_with_bias(p)) {
		free_description(&p->lt);
		return false;
	}
	p->run = run;
	p->work = p->lt.bytes;
	const cublasLtMatmulAlgo_t *algo = &p->lt.algo;
	snprintf(p->impl, sizeof p->impl, "cublasLt:algo %d tile %u split %d%s%s", config<int32_t>(algo,
		CUBLASLT_ALGO_CONFIG_ID), config<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_TILE_ID), config<int32_t>(algo,
		CUBLASLT_ALGO_CONFIG_SPLITK_NUM), d->epilogue ? ", epilogue" : d->bias && !p->lt.fused_bias ? ", bias first"
		: "", tune_on() ? ", tuned" : "");
	return true;
}

bool matmul_with_epilogue(KPrim *p, const KMatmulDesc *desc)
{
	p->matmul = merge_batch(desc);
	return take_library(p);
}

KPrim *k_matmul_create(const KMatmulDesc *desc)
{
	KPrim *p = prim_new();
	p->matmul = merge_batch(desc);
	if (!take_library(p))
		matmul_tiled(p);
	return p;
}

KPrim *k_matmul_f8_create(const KMatmulDesc *desc)
{
	KPrim *p = prim_new();
	p->matmul = merge_batch(desc);
	if (!take_library(p))
		k_fail("cublasLt has no product of 8-bit floats of %lld x %lld x %lld on this GPU: compile the program without "
			"--matmul-dtype=fp8", (long long)desc->m, (long long)desc->n, (long long)desc->k);
	return p;
}

void k_matmul_f8_run(KPrim *p, void *y, const void *a, const void *b, const float *a_scale, const float *b_scale,
	const void *bias, void *work)
{
	p->lt.a_scale = a_scale;
	p->lt.b_scale = b_scale;
	p->run(p, y, a, b, bias, (char *)work);
}

void k_matmul_run(KPrim *p, void *y, const void *a, const void *b, const void *bias, void *work)
{
	p->run(p, y, a, b, bias, (char *)work);
}
