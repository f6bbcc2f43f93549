/* tests/cudasim/blas.cpp: cublasLt's products, emulated: plain loops that sum in the type of the computation.
 *
 * The one idea: what the library leaves to its caller is checked.  An algorithm remembers for which shapes, alignment
 * and workspace it was chosen, and a product that does not keep to them ends the process; the workspace is overwritten
 * in every run.  Proposals begin with what a careless caller would regret: sums by atomics, where they are allowed. */
#include "tests/cudasim/sim.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <math.h>
#include <string.h>

#include <algorithm>

struct cublasLtContext { bool open; };
struct SimMatmul {
	cublasComputeType_t compute;
	cudaDataType_t scale;
	int ta, tb, epilogue;
	void *bias, *aux;               /* bias: a gradient, too */
	int64_t aux_ld;
	const void *scale_of[2];        /* of A and B */
};
struct SimMatrix { cudaDataType_t type; uint64_t rows, cols; int64_t ld; int32_t count; int64_t stride; };
struct SimPreference { uint64_t bytes; uint32_t schemes, align[4]; /* A B C D */ };

/* What lies in cublasLtMatmulAlgo_t.data. */
enum { ALGO_ID, ALGO_TILE, ALGO_SPLIT, ALGO_SCHEME, ALGO_SHAPES, ALGO_ALIGN, ALGO_BYTES };

static bool is_f8(cudaDataType_t t) { return t == CUDA_R_8F_E4M3 || t == CUDA_R_8F_E5M2; }
static int64_t size_of(cudaDataType_t t)
{
	if (is_f8(t))
		return 1;
	return t == CUDA_R_64F ? 8 : t == CUDA_R_32F ? 4 : 2;
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
	return s == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : s == CUBLAS_STATUS_NOT_SUPPORTED
		? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_INVALID_VALUE";
}

/* ---- handles and descriptions ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
	*handle = new cublasLtContext{true};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
	delete handle;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *op, cublasComputeType_t compute, cudaDataType_t scale)
{
	*op = new SimMatmul{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL, NULL, 0,
		{NULL, NULL}};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t op)
{
	delete op;
	return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t take(void *to, size_t wanted, const void *value, size_t size)
{
	if (size != wanted)
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(to, value, size);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t name,
	const void *value, size_t size)
{
	if (name == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
		return take(&op->bias, sizeof op->bias, value, size);
	if (name == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER)
		return take(&op->aux, sizeof op->aux, value, size);
	if (name == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD)
		return take(&op->aux_ld, sizeof op->aux_ld, value, size);
	if (name == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER || name == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER)
		return take(&op->scale_of[name - CUBLASLT_MATMUL_DESC_A_SCALE_POINTER], sizeof op->bias, value, size);
	int *to = name == CUBLASLT_MATMUL_DESC_TRANSA ? &op->ta : name == CUBLASLT_MATMUL_DESC_TRANSB ? &op->tb
		: &op->epilogue;
	return take(to, sizeof *to, value, size);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
	uint64_t cols, int64_t ld)
{
	*layout = new SimMatrix{type, rows, cols, ld, 1, 0};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
	delete layout;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t name,
	const void *value, size_t size)
{
	return name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? take(&l->count, sizeof l->count, value, size)
		: take(&l->stride, sizeof l->stride, value, size);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
	*preference = new SimPreference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
	delete preference;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
	cublasLtMatmulPreferenceAttributes_t name, const void *value, size_t size)
{
	if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
		return take(&p->bytes, sizeof p->bytes, value, size);
	if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
		return take(&p->schemes, sizeof p->schemes, value, size);
	return take(&p->align[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], sizeof *p->align, value, size);
}

/* ---- choice ---- */

static bool same_layout(const SimMatrix *x, const SimMatrix *y)
{
	return x->type == y->type && x->rows == y->rows && x->cols == y->cols && x->ld == y->ld && x->count == y->count
		&& x->stride == y->stride;
}

static bool is_half(cudaDataType_t t) { return t == CUDA_R_16F || t == CUDA_R_16BF; }

/* What the library asks of products of 8-bit floats (its reference, cublasLtMatmul, "FP8"): A transposed, B not; types
 * that go together; dims and rows in multiples of 16 bytes; no batch that this emulates. */
static cublasStatus_t check_f8(const SimMatmul *op, const SimMatrix *a, const SimMatrix *b, const SimMatrix *d)
{
	bool types = is_f8(b->type) && !(a->type == CUDA_R_8F_E5M2 && b->type == CUDA_R_8F_E5M2)
		&& (d->type == CUDA_R_16BF || d->type == CUDA_R_32F);
	bool aligned = d->ld * size_of(d->type) % 16 == 0 && d->rows * (uint64_t)size_of(d->type) % 16 == 0;
	for (const SimMatrix *x : {a, b})
		aligned = aligned && x->ld % 16 == 0 && x->rows % 16 == 0;
	bool bias = op->epilogue != CUBLASLT_EPILOGUE_BIAS || d->type == CUDA_R_16BF;
	bool described = op->ta == CUBLAS_OP_T && op->tb == CUBLAS_OP_N && op->compute == CUBLAS_COMPUTE_32F
		&& op->scale == CUDA_R_32F && d->count == 1;
	return types && aligned && bias && described && sim_arch() >= 89 ? CUBLAS_STATUS_SUCCESS
		: CUBLAS_STATUS_NOT_SUPPORTED;
}

static bool adds_bias(const SimMatmul *op)
{
	return op->epilogue == CUBLASLT_EPILOGUE_BIAS || op->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
static bool has_aux(const SimMatmul *op)
{
	return adds_bias(op) ? op->epilogue != CUBLASLT_EPILOGUE_BIAS : op->epilogue == CUBLASLT_EPILOGUE_GELU_AUX
		|| op->epilogue == CUBLASLT_EPILOGUE_DGELU;
}
static bool has_sums(const SimMatmul *op)
{
	return op->epilogue == CUBLASLT_EPILOGUE_BGRADA || op->epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

/* What the reference says of epilogues for training.  Aux and sums have the type of D; rows of aux are told, and are a
 * multiple of 8 elements.  What is used of them is emulated: 16-bit operands, no batch, sums of an operand whose dim
 * that is summed over is the outer one.  CUDASIM_EPILOGUES=0: there are no algorithms with them. */
static cublasStatus_t check_epilogue(const SimMatmul *op, const SimMatrix *a, const SimMatrix *d)
{
	if (!has_aux(op) && !has_sums(op))
		return op->epilogue == CUBLASLT_EPILOGUE_DEFAULT || op->epilogue == CUBLASLT_EPILOGUE_BIAS
			? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
	if (has_aux(op) && (op->aux_ld % 8 || op->aux_ld < (int64_t)d->rows || (uintptr_t)op->aux % 16))
		return CUBLAS_STATUS_INVALID_VALUE;
	bool outer = op->epilogue == CUBLASLT_EPILOGUE_BGRADA ? !op->ta : has_aux(op) || op->tb;
	bool types = is_half(a->type) && (has_aux(op) ? d->type == a->type : true);
	return types && outer && d->count == 1 && sim_setting("CUDASIM_EPILOGUES", 1) ? CUBLAS_STATUS_SUCCESS
		: CUBLAS_STATUS_NOT_SUPPORTED;
}

static cublasStatus_t check_product(const SimMatmul *op, const SimMatrix *a, const SimMatrix *b, const SimMatrix *c,
	const SimMatrix *d)
{
	uint64_t m = op->ta ? a->cols : a->rows, k = op->ta ? a->rows : a->cols, n = op->tb ? b->rows : b->cols;
	const SimMatrix *all[] = {a, b, d};
	if (k != (op->tb ? b->cols : b->rows) || m != d->rows || n != d->cols || !same_layout(c, d) || !m || !n || !k)
		return CUBLAS_STATUS_INVALID_VALUE;
	for (const SimMatrix *x : all)
		if (x->ld < (int64_t)x->rows || x->count != d->count || x->count < 1)
			return CUBLAS_STATUS_INVALID_VALUE;
	if (d->count > 1 && d->stride < (int64_t)(m * n)) /* results overlap */
		return CUBLAS_STATUS_INVALID_VALUE;
	if (is_f8(a->type) || is_f8(b->type))
		return is_f8(a->type) && !has_aux(op) && !has_sums(op) ? check_f8(op, a, b, d) : CUBLAS_STATUS_NOT_SUPPORTED;
	if (op->scale_of[0] || op->scale_of[1]) /* scales are of 8-bit floats */
		return CUBLAS_STATUS_NOT_SUPPORTED;
	bool f64 = a->type == CUDA_R_64F, tf32 = op->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
	if (a->type != b->type || f64 != (op->compute == CUBLAS_COMPUTE_64F) || f64 != (op->scale == CUDA_R_64F)
		|| (tf32 && a->type != CUDA_R_32F) || (d->type != a->type && !(is_half(a->type) && d->type == CUDA_R_32F)))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (adds_bias(op) && (f64 || d->type != a->type))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	return check_epilogue(op, a, d);
}

static void mix(uint64_t *hash, uint64_t v) { *hash = (*hash ^ v) * 0x100000001B3u; }

static uint64_t shapes_of(const SimMatmul *op, const SimMatrix *a, const SimMatrix *b, const SimMatrix *d)
{
	const SimMatrix *all[] = {a, b, d};
	uint64_t hash = 14695981039346656037u;
	for (int v : {(int)op->compute, (int)op->scale, op->ta, op->tb, op->epilogue, (int)op->aux_ld})
		mix(&hash, (uint64_t)v);
	for (const SimMatrix *x : all)
		for (uint64_t v : {(uint64_t)x->type, x->rows, x->cols, (uint64_t)x->ld, (uint64_t)x->count,
			(uint64_t)x->stride})
			mix(&hash, v);
	return hash;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
	cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
	cublasLtMatmulPreference_t wish, int wanted, cublasLtMatmulHeuristicResult_t *results, int *found)
{
	cublasStatus_t s = handle ? check_product(op, a, b, c, d) : CUBLAS_STATUS_INVALID_VALUE;
	uint64_t k = op->ta ? a->rows : a->cols, parts = d->rows * d->cols * (uint64_t)d->count * 8, align = 0;
	*found = 0;
	if (s != CUBLAS_STATUS_SUCCESS)
		return s;
	for (int i = 3; i >= 0; i--)
		align = align << 16 | wish->align[i];
	uint32_t atomics = CUBLASLT_REDUCTION_SCHEME_INPLACE, joined = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	const struct { bool fits; uint64_t id, split, scheme, bytes; } offers[] = {
		{(wish->schemes & atomics) && k > 1, 23, 4, atomics, 0},
		{(wish->schemes & joined) && k >= 64 && parts <= wish->bytes, 21, 2, joined, parts},
		{true, 20, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0}};
	for (const auto &o : offers)
		if (o.fits && *found < wanted)
			results[(*found)++] = {{{o.id, 15, o.split, o.scheme, shapes_of(op, a, b, d), align, o.bytes}}, o.bytes,
				CUBLAS_STATUS_SUCCESS, 1, {}};
	return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) { return (size_t)sim_setting("CUDASIM_CUBLAS", 130100); }

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
	cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
	cublasLtMatmulHeuristicResult_t *result)
{
	cublasStatus_t s = handle ? check_product(op, a, b, c, d) : CUBLAS_STATUS_INVALID_VALUE;
	if (s == CUBLAS_STATUS_SUCCESS && (algo->data[ALGO_SHAPES] != shapes_of(op, a, b, d) || algo->data[ALGO_ID] < 20 ||
		algo->data[ALGO_ID] > 23))
		s = CUBLAS_STATUS_NOT_SUPPORTED;
	if (s == CUBLAS_STATUS_SUCCESS)
		result->workspaceSize = (size_t)algo->data[ALGO_BYTES], result->state = s; /* its algo stays as it was */
	return s;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
	cublasLtMatmulAlgoConfigAttributes_t name, void *value, size_t size, size_t *written)
{
	uint32_t v = (uint32_t)algo->data[name];
	*written = sizeof v;
	return take(value, sizeof v, &v, size);
}

/* ---- the product ---- */

struct Product {
	SimMatmul op;
	SimMatrix a, b, d;
	const char *A, *B;
	char *D, *work;
	size_t bytes;
	double alpha, beta;
	int64_t split;
};

static float round_tf32(float x)
{
	unsigned u = __float_as_uint(x);
	return x - x == 0 ? __uint_as_float((u + 0xFFF + (u >> 13 & 1)) & ~0x1FFFu) : x;
}

static double decode_f8(int bits, bool e4m3)
{
	int fraction = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, e = (bits & 0x7F) >> fraction, m = bits & ((1 << fraction) - 1);
	if (e4m3 ? (bits & 0x7F) == 0x7F : e == 31)
		return e4m3 || m ? NAN : bits & 0x80 ? -INFINITY : INFINITY;
	double x = ldexp(e ? m + (1 << fraction) : m, (e ? e : 1) - bias - fraction);
	return bits & 0x80 ? -x : x;
}

template <class W> static W fetch(const char *p, cudaDataType_t t, int64_t i, bool tf32)
{
	if (t == CUDA_R_64F)
		return (W)((const double *)p)[i];
	if (t == CUDA_R_32F)
		return (W)(tf32 ? round_tf32(((const float *)p)[i]) : ((const float *)p)[i]);
	if (is_f8(t))
		return (W)decode_f8(((const unsigned char *)p)[i], t == CUDA_R_8F_E4M3);
	unsigned short bits = ((const unsigned short *)p)[i];
	return (W)(t == CUDA_R_16BF ? __bfloat162float(__ushort_as_bfloat16(bits)) : __half2float(__ushort_as_half(bits)));
}

template <class W> static void put(char *p, cudaDataType_t t, int64_t i, W x)
{
	if (t == CUDA_R_64F)
		((double *)p)[i] = (double)x;
	else if (t == CUDA_R_32F)
		((float *)p)[i] = (float)x;
	else
		((unsigned short *)p)[i] = t == CUDA_R_16BF ? __bfloat16_as_ushort(__float2bfloat16_rn((float)x))
			: __half_as_ushort(__float2half_rn((float)x));
}

/* to[outer][inner]: columns of the matrix, or of its transpose, one after the other */
template <class W> static void gather(std::vector<W> &to, const char *p, const SimMatrix &x, bool transposed, bool tf32)
{
	int64_t rows = (int64_t)x.rows, cols = (int64_t)x.cols;
	to.resize((size_t)(rows * cols));
	for (int64_t c = 0; c < cols; c++)
		for (int64_t r = 0; r < rows; r++)
			to[(size_t)(transposed ? r * cols + c : c * rows + r)] = fetch<W>(p, x.type, c * x.ld + r, tf32);
}

/* acc[j][i] += sum over k in [first, end) of a[k][i] b[j][k], four columns at a time */
template <class W> static void multiply(W *__restrict__ acc, const W *__restrict__ a, const W *__restrict__ b,
	int64_t m, int64_t n, int64_t k, int64_t first, int64_t end)
{
	for (int64_t j = 0; j < n; j += 4) {
		int64_t some = std::min<int64_t>(4, n - j);
		W *y = acc + j * m;
		for (int64_t p = first; p < end; p++) {
			const W *__restrict__ from = a + p * m, *f = b + j * k + p;
			if (some == 4) {
				W f0 = f[0], f1 = f[k], f2 = f[2 * k], f3 = f[3 * k];
				for (int64_t i = 0; i < m; i++) {
					y[i] += f0 * from[i];
					y[m + i] += f1 * from[i];
					y[2 * m + i] += f2 * from[i];
					y[3 * m + i] += f3 * from[i];
				}
				continue;
			}
			for (int64_t c = 0; c < some; c++)
				for (int64_t i = 0; i < m; i++)
					y[c * m + i] += f[c * k] * from[i];
		}
	}
}

/* The tanh form, in f32. */
static float gelu(float x)
{
	return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
	float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
	return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

/* What is stored of x, element (r, c) of the product with beta C and bias. */
template <class W> static W finish(const Product &p, W x, int64_t r, int64_t c)
{
	if (adds_bias(&p.op))
		x += fetch<W>((const char *)p.op.bias, p.d.type, r, false);
	if (!has_aux(&p.op))
		return x;
	int64_t at = c * p.op.aux_ld + r;
	if (p.op.epilogue == CUBLASLT_EPILOGUE_DGELU)
		return x * (W)gelu_slope((float)fetch<W>((const char *)p.op.aux, p.d.type, at, false));
	put((char *)p.op.aux, p.d.type, at, x);
	return (W)gelu((float)x);
}

/* Sums over the outer dim of x, in W, by the parts of the product. */
template <class W> static void sum_outer(const Product &p, const char *from, const SimMatrix &x)
{
	int64_t n = (int64_t)x.rows, k = (int64_t)x.cols;
	for (int64_t r = 0; r < n; r++) {
		W sum = 0;
		for (int64_t part = 0; part < p.split; part++) {
			W some = 0;
			for (int64_t c = k * part / p.split; c < k * (part + 1) / p.split; c++)
				some += fetch<W>(from, x.type, c * x.ld + r, false);
			sum += some;
		}
		put((char *)p.op.bias, p.d.type, r, sum);
	}
}

template <class W> static void compute(const Product &p)
{
	bool tf32 = p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
	int64_t m = (int64_t)p.d.rows, n = (int64_t)p.d.cols, k = (int64_t)(p.op.ta ? p.a.rows : p.a.cols);
	std::vector<W> a, b, acc, some;
	W alpha = (W)p.alpha;
	for (const void *s : p.op.scale_of)
		alpha *= s ? (W)*(const float *)s : 1;
	if (p.bytes)
		memset(p.work, 0xA5, p.bytes);
	for (int32_t i = 0; i < p.d.count; i++) {
		if (i == 0 || p.a.stride)
			gather(a, p.A + i * p.a.stride * size_of(p.a.type), p.a, p.op.ta, tf32);
		if (i == 0 || p.b.stride)
			gather(b, p.B + i * p.b.stride * size_of(p.b.type), p.b, p.op.tb, tf32);
		char *to = p.D + i * p.d.stride * size_of(p.d.type);
		acc.assign((size_t)(m * n), 0);
		for (int64_t part = 0; part < p.split; part++) {
			some.assign((size_t)(m * n), 0);
			multiply(some.data(), a.data(), b.data(), m, n, k, k * part / p.split, k * (part + 1) / p.split);
			for (size_t j = 0; j < acc.size(); j++)
				acc[j] += some[j];
		}
		for (int64_t c = 0; c < n; c++)
			for (int64_t r = 0; r < m; r++) {
				W x = alpha * acc[(size_t)(c * m + r)];
				if (p.beta != 0)
					x += (W)p.beta * fetch<W>(to, p.d.type, c * p.d.ld + r, false);
				put(to, p.d.type, c * p.d.ld + r, finish<W>(p, x, r, c));
			}
	}
	if (has_sums(&p.op))
		p.op.epilogue == CUBLASLT_EPILOGUE_BGRADA ? sum_outer<W>(p, p.A, p.a) : sum_outer<W>(p, p.B, p.b);
}

/* ---- its launch ---- */

static void must_be_aligned(const void *p, uint64_t to, const char *what)
{
	if ((uintptr_t)p % to)
		sim_die("cublasLtMatmul: %s is at %p, but the algorithm was chosen for %d-byte alignment", what, p, (int)to);
}

static void must_reach_matrix(const void *p, const SimMatrix *x, const char *what)
{
	int64_t last = (x->count - 1) * x->stride + ((int64_t)x->cols - 1) * x->ld + (int64_t)x->rows;
	sim_must_reach(p, (size_t)(last * size_of(x->type)), what);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha, const void *A,
	cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta, const void *C,
	cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo, void *workspace,
	size_t bytes, cudaStream_t stream)
{
	cublasStatus_t s = handle ? check_product(op, a, b, c, d) : CUBLAS_STATUS_INVALID_VALUE;
	if (s != CUBLAS_STATUS_SUCCESS)
		return s;
	if (algo->data[ALGO_SHAPES] != shapes_of(op, a, b, d))
		sim_die("cublasLtMatmul: the algorithm was chosen for another product");
	if (algo->data[ALGO_SCHEME] != CUBLASLT_REDUCTION_SCHEME_NONE
		&& algo->data[ALGO_SCHEME] != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
		sim_die("cublasLtMatmul: an algorithm that sums by atomics or in 16 bits has other bits in every run");
	if (bytes < algo->data[ALGO_BYTES])
		sim_die("cublasLtMatmul: a workspace of %zu bytes, but the algorithm needs %zu", bytes,
			(size_t)algo->data[ALGO_BYTES]);
	if (C != D)
		sim_die("cublasLtMatmul: C differs from D; this is not emulated");
	const void *at[] = {A, B, C, D};
	const char *const names[] = {"A", "B", "C", "D"};
	for (int i = 0; i < 4; i++)
		must_be_aligned(at[i], algo->data[ALGO_ALIGN] >> 16 * i & 0xFFFF, names[i]);
	must_reach_matrix(A, a, "cublasLtMatmul: A");
	must_reach_matrix(B, b, "cublasLtMatmul: B");
	must_reach_matrix(D, d, "cublasLtMatmul: D");
	if (algo->data[ALGO_BYTES])
		sim_must_reach(workspace, (size_t)algo->data[ALGO_BYTES], "cublasLtMatmul: workspace");
	for (const void *scale : op->scale_of)
		if (scale)
			sim_must_reach(scale, sizeof(float), "cublasLtMatmul: scale");
	if (is_f8(a->type) && (!op->scale_of[0] || !op->scale_of[1]))
		sim_die("cublasLtMatmul: 8-bit floats without a scale are taken by 1");
	if (adds_bias(op) || has_sums(op))
		sim_must_reach(op->bias, (size_t)((int64_t)(op->epilogue == CUBLASLT_EPILOGUE_BGRADB ? d->cols : d->rows)
			* size_of(d->type)), "cublasLtMatmul: bias");
	if (has_sums(op))
		must_be_aligned(op->bias, 16, "the bias gradient");
	if (has_aux(op))
		sim_must_reach(op->aux, (size_t)((((int64_t)d->cols - 1) * op->aux_ld + (int64_t)d->rows) * size_of(d->type)),
			"cublasLtMatmul: aux");
	if ((long long)algo->data[ALGO_ID] == sim_setting("CUDASIM_SLOW_ALGO", -1))
		sim_take_time();
	bool f64 = op->scale == CUDA_R_64F;
	Product p = {*op, *a, *b, *d, (const char *)A, (const char *)B, (char *)D, (char *)workspace,
		(size_t)algo->data[ALGO_BYTES], f64 ? *(const double *)alpha : *(const float *)alpha,
		f64 ? *(const double *)beta : *(const float *)beta, (int64_t)algo->data[ALGO_SPLIT]};
	sim_issue_kernel(stream, "cublasLtMatmul", [p] {
		p.op.compute == CUBLAS_COMPUTE_64F ? compute<double>(p) : compute<float>(p);
		return true;
	});
	return CUBLAS_STATUS_SUCCESS;
}
