/* kernels/cuda/conv.cu: convolutions and their gradients on cuDNN.
 *
 * The library differs from kernels.h in three points, which copies in work bridge: with channels last its filters are
 * (O, kernel, I); its padding is as large at the end as at the beginning; its weight gradient of 16-bit operands is
 * 16-bit.  The last point breaks a promise of kernels.h: an f32 gradient of 16-bit operands has been rounded to 16
 * bits on the way.
 *
 * A forward sum and its bias are rounded once where the library adds the bias (channels last, not f64, shapes that it
 * takes).  Elsewhere the sum is rounded, and rounded again after the bias is added.
 *
 * Only algorithms with one order of sums are used, and of them the first that fits into work_bytes.  A convolution of
 * one spatial dim runs as one of two. */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/prim.cuh"

/* ---- geometry ---- */

enum { WORK_ALIGN = 256 };
static int64_t aligned(int64_t bytes) { return (bytes + WORK_ALIGN - 1) / WORK_ALIGN * WORK_ALIGN; }

/* The convolution with two or three spatial dims: a leading dim of 1 is added where there is one. */
static KConvDesc at_least_2d(const KConvDesc *from)
{
	KConvDesc d = *from;
	if (d.rank > 1)
		return d;
	d.rank = 2;
	d.in[1] = d.in[0], d.out[1] = d.out[0], d.kernel[1] = d.kernel[0], d.stride[1] = d.stride[0];
	d.dilation[1] = d.dilation[0], d.pad[1] = d.pad[0], d.pad_end[1] = d.pad_end[0];
	d.in[0] = d.out[0] = d.kernel[0] = d.stride[0] = d.dilation[0] = 1;
	d.pad[0] = d.pad_end[0] = 0;
	return d;
}

static int64_t product(int rank, const int64_t *dim)
{
	int64_t n = 1;
	for (int i = 0; i < rank; i++)
		n *= dim[i];
	return n;
}

static int64_t outputs(const KConvDesc *d, int i, int64_t in, int64_t pad)
{
	int64_t span = in + 2 * pad - d->dilation[i] * (d->kernel[i] - 1) - 1;
	return span < 0 ? 0 : span / d->stride[i] + 1;
}

/* Finds an even padding that gives the same outputs, with the rims that a copy of x must have besides; false when
 * there is none. */
static bool even_padding(const KConvDesc *d, DnnConv *c, int64_t *pad)
{
	for (int i = 0; i < d->rank; i++) {
		if (d->pad[i] < 0 || d->pad_end[i] < 0)
			return false;
		pad[i] = d->pad[i];
		c->before[i] = 0;
		c->padded[i] = d->in[i];
		if (outputs(d, i, d->in[i], pad[i]) != d->out[i]) {
			pad[i] = d->pad[i] < d->pad_end[i] ? d->pad[i] : d->pad_end[i];
			c->before[i] = d->pad[i] - pad[i];
			c->padded[i] = d->in[i] + d->pad[i] + d->pad_end[i] - 2 * pad[i];
			c->repad = true;
		}
		if (outputs(d, i, c->padded[i], pad[i]) != d->out[i])
			return false;
	}
	return true;
}

/* ---- description ---- */

static cudnnDataType_t dnn_type(KDType t)
{
	return t == K_F64 ? CUDNN_DATA_DOUBLE : t == K_BF16 ? CUDNN_DATA_BFLOAT16 : t == K_F16 ? CUDNN_DATA_HALF
		: CUDNN_DATA_FLOAT;
}

static bool image(cudnnTensorDescriptor_t t, const KConvDesc *d, int64_t channels, const int64_t *spatial)
{
	int dim[5] = {(int)d->n, (int)channels}, stride[5];
	int64_t s = d->layout ? channels : 1;
	for (int i = d->rank - 1; i >= 0; i--) {
		dim[2 + i] = (int)spatial[i];
		stride[2 + i] = (int)s;
		s *= spatial[i];
	}
	stride[1] = d->layout ? 1 : (int)s;
	stride[0] = (int)(d->layout ? s : s * channels);
	return cudnnSetTensorNdDescriptor(t, dnn_type(d->dtype), 2 + d->rank, dim, stride) == CUDNN_STATUS_SUCCESS;
}

static void create_descriptors(DnnConv *c)
{
	prim_check_dnn(cudnnCreateTensorDescriptor(&c->x), "describe an image");
	prim_check_dnn(cudnnCreateTensorDescriptor(&c->y), "describe an image");
	prim_check_dnn(cudnnCreateTensorDescriptor(&c->bias), "describe a bias");
	prim_check_dnn(cudnnCreateActivationDescriptor(&c->identity), "describe an activation");
	prim_check_dnn(cudnnCreateFilterDescriptor(&c->w), "describe filters");
	prim_check_dnn(cudnnCreateConvolutionDescriptor(&c->conv), "describe a convolution");
}

void prim_free_dnn(DnnConv *c)
{
	cudnnDestroyTensorDescriptor(c->x);
	cudnnDestroyTensorDescriptor(c->y);
	cudnnDestroyTensorDescriptor(c->bias);
	cudnnDestroyActivationDescriptor(c->identity);
	cudnnDestroyFilterDescriptor(c->w);
	cudnnDestroyConvolutionDescriptor(c->conv);
	c->conv = NULL;
}

static bool describe_bias(const KConvDesc *d, DnnConv *c)
{
	int dim[5] = {1, (int)d->o, 1, 1, 1}, stride[5] = {(int)d->o, 1, 1, 1, 1};
	return cudnnSetTensorNdDescriptor(c->bias, dnn_type(d->dtype), 2 + d->rank, dim, stride) == CUDNN_STATUS_SUCCESS
		&& cudnnSetActivationDescriptor(c->identity, CUDNN_ACTIVATION_IDENTITY, CUDNN_NOT_PROPAGATE_NAN, 0)
			== CUDNN_STATUS_SUCCESS;
}

/* Describes the convolution to the library; false when the library does not take it. */
static bool describe(const KConvDesc *d, DnnConv *c, const int64_t *pad)
{
	int w[5] = {(int)d->o, (int)(d->c / d->group)}, p[3], stride[3], dilation[3];
	for (int i = 0; i < d->rank; i++) {
		w[2 + i] = (int)d->kernel[i];
		p[i] = (int)pad[i];
		stride[i] = (int)d->stride[i];
		dilation[i] = (int)d->dilation[i];
	}
	cudnnMathType_t math = is_half(d->dtype) || (d->dtype == K_F32 && prim_tf32()) ? CUDNN_TENSOR_OP_MATH
		: CUDNN_FMA_MATH;
	return image(c->x, d, d->c, c->padded) && image(c->y, d, d->o, d->out)
		&& cudnnSetFilterNdDescriptor(c->w, dnn_type(d->dtype), d->layout ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
			2 + d->rank, w) == CUDNN_STATUS_SUCCESS
		&& cudnnSetConvolutionNdDescriptor(c->conv, d->rank, p, stride, dilation, CUDNN_CROSS_CORRELATION,
			d->dtype == K_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT) == CUDNN_STATUS_SUCCESS
		&& cudnnSetConvolutionGroupCount(c->conv, (int)d->group) == CUDNN_STATUS_SUCCESS
		&& cudnnSetConvolutionMathType(c->conv, math) == CUDNN_STATUS_SUCCESS;
}

/* ---- choice ---- */

static const struct { int algo; const char *name; } choices[3][2] = {
	{{CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, "IMPLICIT_PRECOMP_GEMM"},
		{CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, "IMPLICIT_GEMM"}},
	{{CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, "BWD_DATA_ALGO_1"}},
	{{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, "BWD_FILTER_ALGO_1"}}};

static bool workspace(const KPrim *p, int algo, size_t *bytes)
{
	const DnnConv *c = &p->dnn;
	cudnnStatus_t s = p->kind == CONV_FORWARD ? cudnnGetConvolutionForwardWorkspaceSize(prim_dnn(), c->x, c->w, c->conv,
			c->y, (cudnnConvolutionFwdAlgo_t)algo, bytes)
		: p->kind == CONV_GRAD_X ? cudnnGetConvolutionBackwardDataWorkspaceSize(prim_dnn(), c->w, c->y, c->conv, c->x,
			(cudnnConvolutionBwdDataAlgo_t)algo, bytes)
		: cudnnGetConvolutionBackwardFilterWorkspaceSize(prim_dnn(), c->x, c->y, c->conv, c->w,
			(cudnnConvolutionBwdFilterAlgo_t)algo, bytes);
	return s == CUDNN_STATUS_SUCCESS;
}

/* Plans work: the algorithm's workspace, then the copies of the weights and of x.  Returns the bytes in all. */
static int64_t plan_work(KPrim *p, int64_t bytes)
{
	const KConvDesc *d = &p->conv;
	DnnConv *c = &p->dnn;
	int64_t size = dtype_bytes(d->dtype);
	c->bytes = bytes;
	c->w_at = aligned(bytes);
	c->x_at = c->w_at;
	if (c->repack || c->widen)
		c->x_at += aligned(d->o * (d->c / d->group) * product(d->rank, d->kernel) * size);
	return c->repad ? c->x_at + d->n * d->c * product(d->rank, c->padded) * size
		: c->repack || c->widen ? c->x_at : bytes;
}

/* The cases that the library documents; for an identity activation it has this algorithm alone. */
static bool library_adds_bias(KPrim *p)
{
	const KConvDesc *d = &p->conv;
	return p->kind == CONV_FORWARD && d->bias && d->layout && d->dtype != K_F64
		&& p->dnn.algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM && describe_bias(d, &p->dnn);
}

static void name(KPrim *p, const char *algorithm)
{
	snprintf(p->impl, sizeof p->impl, "cudnn:%s%s%s", algorithm, p->dnn.repad ? ", padded" : "",
		p->dnn.fused_bias ? ", bias" : "");
}

static bool choose(KPrim *p)
{
	for (int i = 0; i < 2 && choices[p->kind][i].name; i++) {
		size_t bytes = 0;
		if (!workspace(p, choices[p->kind][i].algo, &bytes))
			continue;
		int64_t work = plan_work(p, (int64_t)bytes);
		if (work > p->conv.work_bytes)
			continue;
		p->dnn.algo = choices[p->kind][i].algo;
		p->work = work;
		p->dnn.fused_bias = library_adds_bias(p);
		name(p, choices[p->kind][i].name);
		return true;
	}
	return false;
}

static bool library_serves(const KConvDesc *d)
{
	int64_t in = d->n * d->c * product(d->rank, d->in), out = d->n * d->o * product(d->rank, d->out);
	int64_t w = d->o * (d->c / d->group) * product(d->rank, d->kernel);
	return in > 0 && out > 0 && w > 0 && in <= INT32_MAX && out <= INT32_MAX && w <= INT32_MAX && d->work_bytes >= 0;
}

/* ---- copies ---- */

/* Filters from (o, i, k) to (o, k, i), or back. */
template <class T, class O> static __global__ void swap_inner(O *to, const T *from, int64_t numel, int64_t rows,
	int64_t cols)
{
	GRID_STRIDE(e, numel) {
		int64_t o = e / (rows * cols), r = e / cols % rows, c = e % cols;
		to[e] = narrow<O>(widen(from[(o * cols + c) * rows + r]));
	}
}

/* An image, seen as (outer, spatial..., inner), and its copy with rims. */
typedef struct Rim { int rank; int64_t inner, in[3], before[3], padded[3]; } Rim;

/* The element of the copy where element e of the image stands, or the reverse; -1 in the rim. */
static __device__ int64_t across(const Rim &r, int64_t e, bool to_copy)
{
	int64_t at = e % r.inner, scale = r.inner;
	e /= r.inner;
	for (int i = r.rank - 1; i >= 0; i--) {
		int64_t from = to_copy ? r.in[i] : r.padded[i], to = to_copy ? r.padded[i] : r.in[i];
		int64_t p = e % from + (to_copy ? r.before[i] : -r.before[i]);
		if (p < 0 || p >= to)
			return -1;
		at += p * scale;
		scale *= to;
		e /= from;
	}
	return at + e * scale;
}

template <class T> static __global__ void add_rim(T *copy, const T *x, int64_t numel, Rim r)
{
	GRID_STRIDE(e, numel) {
		int64_t from = across(r, e, false);
		copy[e] = from < 0 ? narrow<T>(0) : x[from];
	}
}

template <class T> static __global__ void cut_rim(T *x, const T *copy, int64_t numel, Rim r)
{
	GRID_STRIDE(e, numel)
		x[e] = copy[across(r, e, true)];
}

/* The channel changes every `positions` elements. */
template <class T> static __global__ void add_bias(T *x, const T *bias, int64_t numel, int64_t channels,
	int64_t positions)
{
	GRID_STRIDE(e, numel)
		x[e] = narrow<T>(widen(x[e]) + widen(bias[e / positions % channels]));
}

static Rim rim_of(const KPrim *p)
{
	Rim r = {};
	r.rank = p->conv.rank;
	r.inner = p->conv.layout ? p->conv.c : 1;
	memcpy(r.in, p->conv.in, sizeof r.in);
	memcpy(r.before, p->dnn.before, sizeof r.before);
	memcpy(r.padded, p->dnn.padded, sizeof r.padded);
	return r;
}

/* ---- run ---- */

template <class T> static const void *padded_x(const KPrim *p, const void *x, char *work)
{
	int64_t numel = p->conv.n * p->conv.c * product(p->conv.rank, p->dnn.padded);
	if (!p->dnn.repad)
		return x;
	T *copy = (T *)(work + p->dnn.x_at);
	LAUNCH(add_rim<T>, blocks_for(numel, 1024), 256, 0, k_stream, copy, (const T *)x, numel, rim_of(p));
	return copy;
}

template <class T> static const void *packed_w(const KPrim *p, const void *w, char *work)
{
	int64_t i = p->conv.c / p->conv.group, k = product(p->conv.rank, p->conv.kernel), numel = p->conv.o * i * k;
	if (!p->dnn.repack)
		return w;
	T *copy = (T *)(work + p->dnn.w_at);
	LAUNCH((swap_inner<T, T>), blocks_for(numel, 1024), 256, 0, k_stream, copy, (const T *)w, numel, k, i);
	return copy;
}

template <class T> static void bias_to(const KPrim *p, void *x, const void *bias, int64_t channels,
	const int64_t *spatial)
{
	int64_t positions = product(p->conv.rank, spatial), numel = p->conv.n * channels * positions;
	LAUNCH(add_bias<T>, blocks_for(numel, 1024), 256, 0, k_stream, (T *)x, (const T *)bias, numel, channels,
		p->conv.layout ? 1 : positions);
}

/* alpha and beta have the type that is computed in.  Returns false when the library has nothing for this shape, which
 * is then so in every run. */
template <class T> static bool forward_with_bias(const KPrim *p, void *y, const void *x, const void *w,
	const void *bias, char *work)
{
	const DnnConv *c = &p->dnn;
	const Wide<T> one = 1, zero = 0;
	cudnnStatus_t s = cudnnConvolutionBiasActivationForward(prim_dnn(), &one, c->x, x, c->w, w, c->conv,
		(cudnnConvolutionFwdAlgo_t)c->algo, work, (size_t)c->bytes, &zero, c->y, y, c->bias, bias, c->identity, c->y,
		y);
	int category = CUDNN_STATUS_CATEGORY((int)s);
	if (category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM)
		return false;
	prim_check_dnn(s, "launch a convolution with a bias");
	return true;
}

template <class T> static void forward(KPrim *p, void *y, const void *x, const void *w, const void *bias, char *work)
{
	DnnConv *c = &p->dnn;
	const Wide<T> one = 1, zero = 0;
	x = padded_x<T>(p, x, work);
	w = packed_w<T>(p, w, work);
	if (bias && c->fused_bias) {
		if (forward_with_bias<T>(p, y, x, w, bias, work))
			return;
		c->fused_bias = false;
		name(p, choices[CONV_FORWARD][0].name);
	}
	prim_check_dnn(cudnnConvolutionForward(prim_dnn(), &one, c->x, x, c->w, w, c->conv,
		(cudnnConvolutionFwdAlgo_t)c->algo, work, (size_t)c->bytes, &zero, c->y, y), "launch a convolution");
	if (bias)
		bias_to<T>(p, y, bias, p->conv.o, p->conv.out);
}

template <class T> static void grad_x(KPrim *p, void *dx, const void *dy, const void *w, const void *bias, char *work)
{
	DnnConv *c = &p->dnn;
	const Wide<T> one = 1, zero = 0;
	void *to = c->repad ? work + c->x_at : dx;
	int64_t numel = p->conv.n * p->conv.c * product(p->conv.rank, p->conv.in);
	w = packed_w<T>(p, w, work);
	prim_check_dnn(cudnnConvolutionBackwardData(prim_dnn(), &one, c->w, w, c->y, dy, c->conv,
		(cudnnConvolutionBwdDataAlgo_t)c->algo, work, (size_t)c->bytes, &zero, c->x, to),
		"launch a convolution's gradient");
	if (c->repad)
		LAUNCH(cut_rim<T>, blocks_for(numel, 1024), 256, 0, k_stream, (T *)dx, (const T *)to, numel, rim_of(p));
	if (bias)
		bias_to<T>(p, dx, bias, p->conv.c, p->conv.in);
}

template <class T, class O> static void grad_w(KPrim *p, void *dw, const void *x, const void *dy, const void *,
	char *work)
{
	DnnConv *c = &p->dnn;
	const Wide<T> one = 1, zero = 0;
	void *to = c->repack || c->widen ? work + c->w_at : dw;
	int64_t i = p->conv.c / p->conv.group, k = product(p->conv.rank, p->conv.kernel), numel = p->conv.o * i * k;
	x = padded_x<T>(p, x, work);
	prim_check_dnn(cudnnConvolutionBackwardFilter(prim_dnn(), &one, c->x, x, c->y, dy, c->conv,
		(cudnnConvolutionBwdFilterAlgo_t)c->algo, work, (size_t)c->bytes, &zero, c->w, to),
		"launch a filter's gradient");
	if (to != dw) /* one row keeps the order */
		LAUNCH((swap_inner<T, O>), blocks_for(numel, 1024), 256, 0, k_stream, (O *)dw, (const T *)to, numel,
			c->repack ? i : 1, c->repack ? k : i * k);
}

/* ---- life ---- */

static PrimRun *library_run(const KPrim *p)
{
	static PrimRun *const runs[3][4] = {
		{forward<float>, forward<double>, forward<F16>, forward<Bf16>},
		{grad_x<float>, grad_x<double>, grad_x<F16>, grad_x<Bf16>},
		{grad_w<float, float>, grad_w<double, double>, grad_w<F16, F16>, grad_w<Bf16, Bf16>}};
	if (p->dnn.widen)
		return p->conv.dtype == K_F16 ? grad_w<F16, float> : grad_w<Bf16, float>;
	return runs[p->kind][p->conv.dtype];
}

static bool on_library(KPrim *p)
{
	DnnConv *c = &p->dnn;
	int64_t pad[3];
	KConvDesc *d = &p->conv;
	if (!library_serves(d) || !even_padding(d, c, pad))
		return false;
	c->repack = d->layout && d->c > d->group && product(d->rank, d->kernel) > 1;
	c->widen = p->kind == CONV_GRAD_W && is_half(d->dtype) && d->to == K_F32;
	create_descriptors(c);
	if (describe(d, c, pad) && choose(p)) {
		p->run = library_run(p);
		return true;
	}
	prim_free_dnn(c);
	return false;
}

static KPrim *create(const KConvDesc *d, ConvKind kind)
{
	if (d->w_layout)
		k_fail("conv: weights packed as %s are for CPUs; on CUDA they are row-major", d->w_layout);
	KPrim *p = prim_new();
	p->kind = kind;
	p->conv = at_least_2d(d);
	if (!on_library(p))
		conv_plain(p);
	return p;
}

KPrim *k_conv_create(const KConvDesc *d) { return create(d, CONV_FORWARD); }
KPrim *k_conv_grad_x_create(const KConvDesc *d) { return create(d, CONV_GRAD_X); }
KPrim *k_conv_grad_w_create(const KConvDesc *d) { return create(d, CONV_GRAD_W); }

void k_conv_run(KPrim *p, void *y, const void *x, const void *w, const void *bias, void *work)
{
	p->run(p, y, x, w, bias, (char *)work);
}

void k_conv_grad_x_run(KPrim *p, void *dx, const void *dy, const void *w, const void *bias, void *work)
{
	p->run(p, dx, dy, w, bias, (char *)work);
}

void k_conv_grad_w_run(KPrim *p, void *dw, const void *x, const void *dy, void *work)
{
	p->run(p, dw, x, dy, NULL, (char *)work);
}
