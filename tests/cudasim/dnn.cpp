/* tests/cudasim/dnn.cpp: cuDNN's convolutions, emulated: plain loops that sum in the type of the computation.
 *
 * The one idea: three kinds of convolution are one walk over (output position, kernel position, channels), on copies
 * (sample, channel, 3 spatial dims).  Shapes, strides, workspaces and pointers are checked as the library would or
 * should; algorithms that sum by atomics end the process; the workspace is overwritten in every run. */
#include "tests/cudasim/dnn.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string.h>

#include <algorithm>

struct SimTensor { cudnnDataType_t type; int n, dim[5], stride[5]; };
struct SimFilter { cudnnDataType_t type; cudnnTensorFormat_t format; int n, dim[5]; };
struct SimActivation { bool identity; };
struct SimConvolution { int n, pad[3], stride[3], dilation[3], groups; cudnnDataType_t compute; cudnnMathType_t math; };

enum Kind { FORWARD, GRAD_X, GRAD_W };

static int64_t size_of(cudnnDataType_t t) { return t == CUDNN_DATA_DOUBLE ? 8 : t == CUDNN_DATA_FLOAT ? 4 : 2; }

static int64_t numel(int n, const int *dim)
{
	int64_t all = 1;
	for (int i = 0; i < n; i++)
		all *= dim[i];
	return all;
}

const char *cudnnGetErrorString(cudnnStatus_t s)
{
	return s == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : s == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM"
		: "CUDNN_STATUS_NOT_SUPPORTED";
}

/* ---- handles and descriptions ---- */

template <class T> static cudnnStatus_t create(T **p)
{
	*p = new T{};
	return CUDNN_STATUS_SUCCESS;
}

template <class T> static cudnnStatus_t destroy(T *p)
{
	delete p;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) { return create(handle); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return destroy(handle); }
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *t) { return create(t); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t) { return destroy(t); }
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *w) { return create(w); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t w) { return destroy(w); }
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *c) { return create(c); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t c) { return destroy(c); }

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *a) { return create(a); }
cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t a) { return destroy(a); }

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t a, cudnnActivationMode_t mode,
	cudnnNanPropagation_t, double)
{
	a->identity = mode == CUDNN_ACTIVATION_IDENTITY;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
	handle->stream = stream;
	return CUDNN_STATUS_SUCCESS;
}

static bool positive(int n, const int *x, int least)
{
	return std::all_of(x, x + n, [least](int v) { return v >= least; });
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t t, cudnnDataType_t type, int n, const int dim[],
	const int stride[])
{
	if (n < 4 || n > 5 || !positive(n, dim, 1) || !positive(n, stride, 1))
		return CUDNN_STATUS_BAD_PARAM;
	*t = {type, n, {}, {}};
	std::copy(dim, dim + n, t->dim);
	std::copy(stride, stride + n, t->stride);
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t w, cudnnDataType_t type, cudnnTensorFormat_t format,
	int n, const int dim[])
{
	if (n < 4 || n > 5 || !positive(n, dim, 1))
		return CUDNN_STATUS_BAD_PARAM;
	*w = {type, format, n, {}};
	std::copy(dim, dim + n, w->dim);
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t c, int n, const int pad[],
	const int stride[], const int dilation[], cudnnConvolutionMode_t mode, cudnnDataType_t compute)
{
	if (n < 2 || n > 3 || mode != CUDNN_CROSS_CORRELATION || !positive(n, pad, 0) || !positive(n, stride, 1)
		|| !positive(n, dilation, 1))
		return CUDNN_STATUS_BAD_PARAM;
	*c = {n, {}, {}, {}, 1, compute, CUDNN_DEFAULT_MATH};
	std::copy(pad, pad + n, c->pad);
	std::copy(stride, stride + n, c->stride);
	std::copy(dilation, dilation + n, c->dilation);
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t c, int groups)
{
	c->groups = groups;
	return groups > 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t c, cudnnMathType_t math)
{
	c->math = math;
	return CUDNN_STATUS_SUCCESS;
}

/* ---- what is served ---- */

/* Dense, in the order of the format. */
static bool packed(const SimTensor *t, bool channels_last)
{
	int s = channels_last ? t->dim[1] : 1;
	for (int i = t->n - 1; i >= 2; i--) {
		if (t->stride[i] != s && t->dim[i] > 1)
			return false;
		s *= t->dim[i];
	}
	if (t->dim[1] > 1 && t->stride[1] != (channels_last ? 1 : s))
		return false;
	return t->dim[0] == 1 || t->stride[0] == (channels_last ? s : s * t->dim[1]);
}

static cudnnStatus_t check(const SimTensor *x, const SimFilter *w, const SimConvolution *c, const SimTensor *y)
{
	bool last = w->format == CUDNN_TENSOR_NHWC, f64 = x->type == CUDNN_DATA_DOUBLE;
	if (x->n != w->n || x->n != y->n || x->n != c->n + 2 || x->type != w->type || x->type != y->type
		|| x->dim[0] != y->dim[0] || x->dim[1] != w->dim[1] * c->groups || w->dim[0] % c->groups
		|| y->dim[1] != w->dim[0] || f64 != (c->compute == CUDNN_DATA_DOUBLE))
		return CUDNN_STATUS_BAD_PARAM;
	for (int i = 0; i < c->n; i++) {
		int span = x->dim[2 + i] + 2 * c->pad[i] - c->dilation[i] * (w->dim[2 + i] - 1) - 1;
		if (span < 0 || y->dim[2 + i] != span / c->stride[i] + 1)
			return CUDNN_STATUS_BAD_PARAM;
	}
	return !packed(x, last) || !packed(y, last) || (last && f64) ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

static size_t workspace_of(Kind kind, const SimFilter *w, int algo)
{
	int64_t bytes = numel(w->n, w->dim) * size_of(w->type);
	if (algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM && kind == FORWARD)
		return 0;
	if (algo != 1) /* every other number that is used means sums by atomics */
		sim_die("cuDNN: an algorithm that sums by atomics has other bits in every run");
	return (size_t)(kind == GRAD_W ? 2 * bytes + 40 : bytes + 40);
}

static cudnnStatus_t workspace(Kind kind, cudnnHandle_t handle, const SimTensor *x, const SimFilter *w,
	const SimConvolution *c, const SimTensor *y, int algo, size_t *bytes)
{
	cudnnStatus_t s = handle ? check(x, w, c, y) : CUDNN_STATUS_BAD_PARAM;
	if (s == CUDNN_STATUS_SUCCESS)
		*bytes = workspace_of(kind, w, algo);
	return s;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
	const cudnnFilterDescriptor_t w, const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y,
	cudnnConvolutionFwdAlgo_t algo, size_t *bytes)
{
	return workspace(FORWARD, handle, x, w, c, y, algo, bytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, const cudnnFilterDescriptor_t w,
	const cudnnTensorDescriptor_t dy, const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t dx,
	cudnnConvolutionBwdDataAlgo_t algo, size_t *bytes)
{
	return workspace(GRAD_X, handle, dx, w, c, dy, algo, bytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
	const cudnnTensorDescriptor_t dy, const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t dw,
	cudnnConvolutionBwdFilterAlgo_t algo, size_t *bytes)
{
	return workspace(GRAD_W, handle, x, dw, c, dy, algo, bytes);
}

/* ---- the computation ---- */

struct Job {
	Kind kind;
	SimTensor x, y;
	SimFilter w;
	SimConvolution c;
	char *X, *Y, *W, *work;
	size_t bytes;
	char *B; /* a bias, or NULL */
};

/* Shapes with 3 spatial dims, the first ones 1. */
struct Shape { int64_t n, c, o, groups, in[3], out[3], kernel[3], stride[3], dilation[3], pad[3]; };

static Shape shape_of(const Job &j)
{
	Shape s = {j.x.dim[0], j.x.dim[1], j.y.dim[1], j.c.groups, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1},
		{}};
	for (int i = 0; i < j.c.n; i++) {
		int at = 3 - j.c.n + i;
		s.in[at] = j.x.dim[2 + i];
		s.out[at] = j.y.dim[2 + i];
		s.kernel[at] = j.w.dim[2 + i];
		s.stride[at] = j.c.stride[i];
		s.dilation[at] = j.c.dilation[i];
		s.pad[at] = j.c.pad[i];
	}
	return s;
}

static float round_tf32(float x)
{
	unsigned u = __float_as_uint(x);
	return x - x == 0 ? __uint_as_float((u + 0xFFF + (u >> 13 & 1)) & ~0x1FFFu) : x;
}

template <class V> static V fetch(const char *p, cudnnDataType_t t, int64_t i, bool tf32)
{
	if (t == CUDNN_DATA_DOUBLE)
		return (V)((const double *)p)[i];
	if (t == CUDNN_DATA_FLOAT)
		return (V)(tf32 ? round_tf32(((const float *)p)[i]) : ((const float *)p)[i]);
	unsigned short bits = ((const unsigned short *)p)[i];
	return (V)(t == CUDNN_DATA_BFLOAT16 ? __bfloat162float(__ushort_as_bfloat16(bits))
		: __half2float(__ushort_as_half(bits)));
}

template <class V> static void put(char *p, cudnnDataType_t t, int64_t i, V x)
{
	if (t == CUDNN_DATA_DOUBLE)
		((double *)p)[i] = (double)x;
	else if (t == CUDNN_DATA_FLOAT)
		((float *)p)[i] = (float)x;
	else
		((unsigned short *)p)[i] = t == CUDNN_DATA_BFLOAT16 ? __bfloat16_as_ushort(__float2bfloat16_rn((float)x))
			: __half_as_ushort(__float2half_rn((float)x));
}

/* Where element i of (first, channels, positions) stands in memory. */
static int64_t place(int64_t i, int64_t channels, int64_t positions, bool channels_last)
{
	int64_t at = i % positions, c = i / positions % channels, n = i / positions / channels;
	return channels_last ? (n * positions + at) * channels + c : i;
}

/* The walk: for each pair of a row of outputs and a kernel position, visit(y row, x row, w, outputs from .. to). */
template <class Visit> static void walk(const Shape &s, Visit visit)
{
	int64_t ig = s.c / s.groups, og = s.o / s.groups, in = s.in[0] * s.in[1] * s.in[2];
	int64_t out = s.out[0] * s.out[1] * s.out[2], taps = s.kernel[0] * s.kernel[1] * s.kernel[2];
	for (int64_t i = 0; i < s.n * s.o * ig; i++) {
		int64_t n = i / ig / s.o, o = i / ig % s.o, c = o / og * ig + i % ig;
		for (int64_t t = 0; t < taps; t++) {
			int64_t k[3] = {t / s.kernel[2] / s.kernel[1], t / s.kernel[2] % s.kernel[1], t % s.kernel[2]};
			int64_t shift = k[2] * s.dilation[2] - s.pad[2], from = 0, to = s.out[2];
			while (from < to && from * s.stride[2] + shift < 0)
				from++;
			while (to > from && (to - 1) * s.stride[2] + shift >= s.in[2])
				to--;
			for (int64_t q = 0; q < s.out[0] * s.out[1]; q++) {
				int64_t p0 = q / s.out[1] * s.stride[0] + k[0] * s.dilation[0] - s.pad[0];
				int64_t p1 = q % s.out[1] * s.stride[1] + k[1] * s.dilation[1] - s.pad[1];
				if (p0 >= 0 && p0 < s.in[0] && p1 >= 0 && p1 < s.in[1])
					visit((n * s.o + o) * out + q * s.out[2], (n * s.c + c) * in + (p0 * s.in[1] + p1) * s.in[2]
						+ shift, (o * ig + i % ig) * taps + t, from, to);
			}
		}
	}
}

template <class V> static void convolve(Kind kind, const Shape &s, V *x, V *y, V *w)
{
	int64_t step = s.stride[2];
	walk(s, [=](int64_t yr, int64_t xr, int64_t wi, int64_t from, int64_t to) {
		V sum = 0;
		if (kind == FORWARD)
			for (int64_t q = from; q < to; q++)
				y[yr + q] += w[wi] * x[xr + q * step];
		else if (kind == GRAD_X)
			for (int64_t q = from; q < to; q++)
				x[xr + q * step] += w[wi] * y[yr + q];
		else
			for (int64_t q = from; q < to; q++)
				sum += x[xr + q * step] * y[yr + q];
		if (kind == GRAD_W)
			w[wi] += sum;
	});
}

template <class V> static void compute(const Job &j)
{
	Shape s = shape_of(j);
	bool last = j.w.format == CUDNN_TENSOR_NHWC, tf32 = j.c.math == CUDNN_TENSOR_OP_MATH;
	int64_t in = s.in[0] * s.in[1] * s.in[2], out = s.out[0] * s.out[1] * s.out[2];
	const struct { char *p; int64_t numel, channels, positions; bool result; } parts[] = {
		{j.X, s.n * s.c * in, s.c, in, j.kind == GRAD_X}, {j.Y, s.n * s.o * out, s.o, out, j.kind == FORWARD},
		{j.W, numel(j.w.n, j.w.dim), s.c / s.groups, s.kernel[0] * s.kernel[1] * s.kernel[2], j.kind == GRAD_W}};
	std::vector<V> copy[3];
	for (int p = 0; p < 3; p++) {
		copy[p].assign((size_t)parts[p].numel, 0);
		for (int64_t i = 0; i < parts[p].numel && !parts[p].result; i++)
			copy[p][(size_t)i] = fetch<V>(parts[p].p, j.x.type, place(i, parts[p].channels, parts[p].positions, last),
				tf32);
	}
	if (j.bytes)
		memset(j.work, 0xA5, j.bytes);
	convolve(j.kind, s, copy[0].data(), copy[1].data(), copy[2].data());
	for (int64_t i = 0; j.B && i < parts[1].numel; i++)
		copy[1][(size_t)i] += fetch<V>(j.B, j.x.type, i / out % s.o, false);
	for (int p = 0; p < 3; p++)
		for (int64_t i = 0; i < parts[p].numel && parts[p].result; i++)
			put(parts[p].p, j.x.type, place(i, parts[p].channels, parts[p].positions, last), copy[p][(size_t)i]);
}

/* ---- launches ---- */

static bool holds(const void *scalar, cudnnDataType_t compute, double x)
{
	return (compute == CUDNN_DATA_DOUBLE ? *(const double *)scalar : *(const float *)scalar) == x;
}

static cudnnStatus_t launch(const char *call, cudnnHandle_t handle, Job j, int algo, size_t bytes, const void *alpha,
	const void *beta)
{
	cudnnStatus_t s = handle ? check(&j.x, &j.w, &j.c, &j.y) : CUDNN_STATUS_BAD_PARAM;
	int64_t size = size_of(j.x.type);
	if (s != CUDNN_STATUS_SUCCESS)
		return s;
	j.bytes = workspace_of(j.kind, &j.w, algo);
	if (bytes < j.bytes)
		sim_die("%s: a workspace of %zu bytes, but the algorithm needs %zu", call, bytes, j.bytes);
	if (!holds(alpha, j.c.compute, 1) || !holds(beta, j.c.compute, 0))
		sim_die("%s: only alpha 1 and beta 0 are emulated", call);
	std::string name = call;
	sim_must_reach(j.X, (size_t)(numel(j.x.n, j.x.dim) * size), (name + ": x").c_str());
	sim_must_reach(j.Y, (size_t)(numel(j.y.n, j.y.dim) * size), (name + ": y").c_str());
	sim_must_reach(j.W, (size_t)(numel(j.w.n, j.w.dim) * size), (name + ": w").c_str());
	if (j.B)
		sim_must_reach(j.B, (size_t)(j.y.dim[1] * size), (name + ": bias").c_str());
	if (j.bytes)
		sim_must_reach(j.work, j.bytes, (name + ": workspace").c_str());
	sim_issue_kernel(handle->stream, name, [j] {
		j.c.compute == CUDNN_DATA_DOUBLE ? compute<double>(j) : compute<float>(j);
		return true;
	});
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x,
	const void *X, const cudnnFilterDescriptor_t w, const void *W, const cudnnConvolutionDescriptor_t c,
	cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t bytes, const void *beta, const cudnnTensorDescriptor_t y,
	void *Y)
{
	Job j = {FORWARD, *x, *y, *w, *c, (char *)(uintptr_t)X, (char *)Y, (char *)(uintptr_t)W, (char *)workspace, 0,
		NULL};
	return launch("cudnnConvolutionForward", handle, j, algo, bytes, alpha, beta);
}

/* Identities alone, without another operand; groups and three spatial dims are refused, so that callers must have
 * another way. */
cudnnStatus_t cudnnConvolutionBiasActivationForward(cudnnHandle_t handle, const void *alpha1,
	const cudnnTensorDescriptor_t x, const void *X, const cudnnFilterDescriptor_t w, const void *W,
	const cudnnConvolutionDescriptor_t c, cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t bytes,
	const void *alpha2, const cudnnTensorDescriptor_t z, const void *, const cudnnTensorDescriptor_t bias,
	const void *B, const cudnnActivationDescriptor_t activation, const cudnnTensorDescriptor_t y, void *Y)
{
	Job j = {FORWARD, *x, *y, *w, *c, (char *)(uintptr_t)X, (char *)Y, (char *)(uintptr_t)W, (char *)workspace, 0,
		(char *)(uintptr_t)B};
	if (!activation->identity || algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM || z != y || !B
		|| bias->type != x->type || bias->n != y->n || bias->dim[1] != y->dim[1]
		|| numel(bias->n, bias->dim) != bias->dim[1])
		return CUDNN_STATUS_BAD_PARAM;
	if (c->groups > 1 || c->n > 2 || x->type == CUDNN_DATA_DOUBLE)
		return CUDNN_STATUS_NOT_SUPPORTED;
	return launch("cudnnConvolutionBiasActivationForward", handle, j, algo, bytes, alpha1, alpha2);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, const cudnnFilterDescriptor_t w,
	const void *W, const cudnnTensorDescriptor_t dy, const void *dY, const cudnnConvolutionDescriptor_t c,
	cudnnConvolutionBwdDataAlgo_t algo, void *workspace, size_t bytes, const void *beta,
	const cudnnTensorDescriptor_t dx, void *dX)
{
	Job j = {GRAD_X, *dx, *dy, *w, *c, (char *)dX, (char *)(uintptr_t)dY, (char *)(uintptr_t)W, (char *)workspace, 0,
		NULL};
	return launch("cudnnConvolutionBackwardData", handle, j, algo, bytes, alpha, beta);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x,
	const void *X, const cudnnTensorDescriptor_t dy, const void *dY, const cudnnConvolutionDescriptor_t c,
	cudnnConvolutionBwdFilterAlgo_t algo, void *workspace, size_t bytes, const void *beta,
	const cudnnFilterDescriptor_t dw, void *dW)
{
	Job j = {GRAD_W, *x, *dy, *dw, *c, (char *)(uintptr_t)X, (char *)(uintptr_t)dY, (char *)dW, (char *)workspace, 0,
		NULL};
	return launch("cudnnConvolutionBackwardFilter", handle, j, algo, bytes, alpha, beta);
}
