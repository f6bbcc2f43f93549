/* kernels/cuda/conv.cu: convolutions and their gradients: cuDNN's graphs where they serve, else our own loops.
 *
 * The library differs from kernels.h in three points, which copies in work bridge: with channels last its filters are
 * (O, kernel, I); its padding is as large at the end as at the beginning; its weight gradient of 16-bit operands is
 * 16-bit (f32 ones it has for some shapes and GPUs alone, and then without splitting their sums).  The last point
 * breaks a promise of kernels.h: an f32 gradient of 16-bit operands has been rounded to 16 bits on the way.
 *
 * A forward sum and its bias are rounded once where the library adds the bias.  In groups its engines with a bias are
 * not those for groups, so there, and in gradients of x, the sum is rounded, and rounded again after the bias is added.
 *
 * A convolution of one spatial dim runs as one of two. */
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

static int64_t filter_elements(const KConvDesc *d) { return d->o * (d->c / d->group) * product(d->rank, d->kernel); }

/* ---- choice ---- */

static bool library_serves(const KConvDesc *d)
{
	int64_t in = d->n * d->c * product(d->rank, d->in), out = d->n * d->o * product(d->rank, d->out);
	int64_t w = filter_elements(d);
	return in > 0 && out > 0 && w > 0 && in <= INT32_MAX && out <= INT32_MAX && w <= INT32_MAX && d->work_bytes >= 0;
}

/* Finds a plan within what copies leave of work, and places them behind its scratch. */
static bool plan(KPrim *p, bool bias)
{
	const KConvDesc *d = &p->conv;
	DnnConv *c = &p->dnn;
	int64_t size = dtype_bytes(d->dtype), w = c->repack || c->widen ? aligned(filter_elements(d) * size) : 0;
	int64_t x = c->padding.rims ? aligned(d->n * d->c * product(d->rank, c->padding.padded) * size) : 0;
	int64_t room = w + x ? (d->work_bytes - w - x) / WORK_ALIGN * WORK_ALIGN : d->work_bytes;
	if (d->work_bytes < w + x)
		return false;
	prim_new_graph(p);
	conv_graph(p->graph, d, p->kind, &c->padding, bias, prim_tf32());
	if (!graph_plan(p->graph, room)) {
		prim_free_graph(p);
		return false;
	}
	c->fused_bias = bias;
	c->w_at = aligned(p->graph->work);
	c->x_at = c->w_at + w;
	p->work = w + x ? c->x_at + x : p->graph->work;
	return true;
}

static const char *const kinds[] = {"conv", "conv_grad_x", "conv_grad_w"};

static bool on_library(KPrim *p)
{
	const KConvDesc *d = &p->conv;
	DnnConv *c = &p->dnn;
	if (!library_serves(d) || !conv_padding(&c->padding, d))
		return false;
	c->repack = d->layout && d->c > d->group && product(d->rank, d->kernel) > 1;
	c->widen = p->kind == CONV_GRAD_W && is_half(d->dtype) && d->to == K_F32;
	bool bias = p->kind == CONV_FORWARD && d->bias && d->group == 1;
	if (!(bias && plan(p, true)) && !plan(p, false))
		return false;
	snprintf(p->impl, sizeof p->impl, "cudnn:%s, engine %d%s%s", kinds[p->kind], (int)p->graph->engine,
		c->padding.rims ? ", padded" : "", c->fused_bias ? ", bias" : "");
	return true;
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
	memcpy(r.before, p->dnn.padding.before, sizeof r.before);
	memcpy(r.padded, p->dnn.padding.padded, sizeof r.padded);
	return r;
}

/* ---- run ---- */

template <class T> static const void *padded_x(const KPrim *p, const void *x, char *work)
{
	int64_t numel = p->conv.n * p->conv.c * product(p->conv.rank, p->dnn.padding.padded);
	if (!p->dnn.padding.rims)
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

/* bias: one that the graph adds, or NULL. */
static void run_graph(const KPrim *p, const void *x, const void *w, const void *y, const void *bias, void *work)
{
	const int64_t uid[] = {CONV_X, CONV_W, CONV_Y, CONV_BIAS};
	void *const at[] = {const_cast<void *>(x), const_cast<void *>(w), const_cast<void *>(y), const_cast<void *>(bias)};
	prim_dnn(); /* on the stream that kernels are launched on */
	prim_check_dnn(graph_run(p->graph, bias ? 4 : 3, uid, at, work), "run a convolution");
}

template <class T> static void forward(KPrim *p, void *y, const void *x, const void *w, const void *bias, char *work)
{
	bool fused = bias && p->dnn.fused_bias;
	run_graph(p, padded_x<T>(p, x, work), packed_w<T>(p, w, work), y, fused ? bias : NULL, work);
	if (bias && !fused)
		bias_to<T>(p, y, bias, p->conv.o, p->conv.out);
}

template <class T> static void grad_x(KPrim *p, void *dx, const void *dy, const void *w, const void *bias, char *work)
{
	bool rims = p->dnn.padding.rims;
	void *to = rims ? work + p->dnn.x_at : dx;
	int64_t numel = p->conv.n * p->conv.c * product(p->conv.rank, p->conv.in);
	run_graph(p, to, packed_w<T>(p, w, work), dy, NULL, work);
	if (rims)
		LAUNCH(cut_rim<T>, blocks_for(numel, 1024), 256, 0, k_stream, (T *)dx, (const T *)to, numel, rim_of(p));
	if (bias)
		bias_to<T>(p, dx, bias, p->conv.c, p->conv.in);
}

template <class T, class O> static void grad_w(KPrim *p, void *dw, const void *x, const void *dy, const void *,
	char *work)
{
	const DnnConv *c = &p->dnn;
	void *to = c->repack || c->widen ? work + c->w_at : dw;
	int64_t i = p->conv.c / p->conv.group, k = product(p->conv.rank, p->conv.kernel), numel = p->conv.o * i * k;
	run_graph(p, padded_x<T>(p, x, work), to, dy, NULL, work);
	if (to != dw) /* one row keeps the order */
		LAUNCH((swap_inner<T, O>), blocks_for(numel, 1024), 256, 0, k_stream, (O *)dw, (const T *)to, numel,
			c->repack ? i : 1, c->repack ? k : i * k);
}

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

/* Primitives of one description are one, so some of its places may begin at 16 bytes, as the library wants, and others
 * not.  Addresses are the plan's, so it is the same kernel in every run. */
static void run(KPrim *p, void *out, const void *a, const void *b, const void *bias, void *work)
{
	bool fits = aligned16(out) && aligned16(a) && aligned16(b) && aligned16(bias);
	if (p->graph && !fits)
		snprintf(p->impl, sizeof p->impl, "cudnn:%s, own where not aligned", kinds[p->kind]);
	(p->graph && !fits ? conv_plain_run(p) : p->run)(p, out, a, b, bias, (char *)work);
}

/* ---- life ---- */

static KPrim *create(const KConvDesc *d, ConvKind kind)
{
	if (d->w_layout)
		k_fail("conv: weights packed as %s are for CPUs; on CUDA they are row-major", d->w_layout);
	KPrim *p = prim_new();
	p->kind = kind;
	p->conv = at_least_2d(d);
	if (on_library(p)) {
		p->run = library_run(p);
		return p;
	}
	p->run = conv_plain_run(p);
	snprintf(p->impl, sizeof p->impl, "own:%s", kinds[kind]);
	return p;
}

KPrim *k_conv_create(const KConvDesc *d) { return create(d, CONV_FORWARD); }
KPrim *k_conv_grad_x_create(const KConvDesc *d) { return create(d, CONV_GRAD_X); }
KPrim *k_conv_grad_w_create(const KConvDesc *d) { return create(d, CONV_GRAD_W); }

void k_conv_run(KPrim *p, void *y, const void *x, const void *w, const void *bias, void *work)
{
	run(p, y, x, w, bias, work);
}

void k_conv_grad_x_run(KPrim *p, void *dx, const void *dy, const void *w, const void *bias, void *work)
{
	run(p, dx, dy, w, bias, work);
}

void k_conv_grad_w_run(KPrim *p, void *dw, const void *x, const void *dy, void *work)
{
	run(p, dw, x, dy, NULL, work);
}
