/* kernels/cpu/conv.c: convolutions and their gradients on oneDNN.
 *
 * Weights arrive row-major, or in a packed layout that the caller names.  Most implementations want a layout of their
 * own, so a run first packs the weights into work; a weight gradient is computed there and unpacked.  Convolutions that
 * are matrix products go to conv_product.c, weight gradients to conv_grad_w_amx.c and, by taps, to conv_grad_w.c,
 * others of f32 on vectors of 8 floats, where the library is slower (bench/NOTES.md), to conv_tiles.c,
 * conv_grad_w_thin.c and conv_depthwise_f32.c, depthwise ones of 16-bit data to conv_depthwise.c, others for which the
 * library has only a reference implementation, or none whose scratch fits, to conv_patch.c, and what that does not
 * serve to conv_plain.c. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/prim.h"
#include "kernels/layouts.h"

typedef struct ConvChoice {
	const KConvDesc *d;
	ConvKind kind;
	bool direct; /* not as products of the library, which divide sums by threads */
	dnnl_memory_desc_t w; /* the caller's weights */
	dnnl_dims_t stride, dilation, pad, pad_end; /* in the library's convention */
} ConvChoice;

static void image_md(dnnl_memory_desc_t *md, const KConvDesc *d, int64_t c, const int64_t *spatial)
{
	dnnl_dims_t dim = {d->n, c}, stride;
	int64_t s = d->layout ? c : 1;
	for (int i = 0; i < d->rank; i++)
		dim[2 + i] = spatial[i];
	for (int i = d->rank - 1; i >= 0; i--) {
		stride[2 + i] = s;
		s *= spatial[i];
	}
	stride[1] = d->layout ? 1 : s;
	stride[0] = d->layout ? s : s * c;
	prim_check(dnnl_memory_desc_init_by_strides(md, d->rank + 2, dim, prim_type(d->dtype), stride),
		"describe an image");
}

static int weight_dims(const KConvDesc *d, dnnl_dims_t dim)
{
	int n = 0;
	if (d->group > 1)
		dim[n++] = d->group;
	dim[n++] = d->o / d->group;
	dim[n++] = d->c / d->group;
	for (int i = 0; i < d->rank; i++)
		dim[n++] = d->kernel[i];
	return n;
}

static void weight_md(dnnl_memory_desc_t *md, const KConvDesc *d, KDType t)
{
	dnnl_dims_t dim, stride;
	int n = weight_dims(d, dim);
	strides_of(n, dim, stride);
	prim_check(dnnl_memory_desc_init_by_strides(md, n, dim, prim_type(t), stride), "describe weights");
}

/* Weights have the dtype of all operands; their gradient may be f32. */
static KDType w_type(const ConvChoice *c)
{
	return c->kind == CONV_GRAD_W && is_half(c->d->dtype) ? c->d->to : c->d->dtype;
}

/* The descriptor of a named packed layout: first the outer strides, by the layout's nesting, then the inner blocks. */
static void packed_md(dnnl_memory_desc_t *md, const KConvDesc *d, const KLayout *l)
{
	weight_md(md, d, d->dtype);
	int g = d->group > 1, n = md->ndims;
	dnnl_blocking_desc_t *b = &md->format_desc.blocking;
	int od = l->nest == K_NEST_GK_G ? 0 : g, id = g + 1;
	md->padded_dims[od] = round_up(md->dims[od], l->ob);
	md->padded_dims[id] = round_up(md->dims[id], l->ib);
	bool two = l->ib > 1;
	b->inner_nblks = two ? 2 : 1;
	int outer = l->nest == K_NEST_OIK_IO && two ? id : od;
	b->inner_idxs[0] = outer;
	b->inner_blks[0] = outer == od ? l->ob : l->ib;
	b->inner_idxs[1] = two ? (outer == od ? id : od) : 0;
	b->inner_blks[1] = two ? (outer == od ? l->ib : l->ob) : 0;
	int order[8], k = 0; /* dims from the slowest */
	for (int i = 0; i < n; i++)
		if (l->nest != K_NEST_OKI_O || i != id)
			order[k++] = i;
	if (l->nest == K_NEST_OKI_O)
		order[k] = id;
	int64_t s = (int64_t)l->ob * l->ib;
	for (int i = n - 1; i >= 0; i--) {
		int at = order[i];
		b->strides[at] = s;
		s *= md->padded_dims[at] / (at == od ? l->ob : at == id ? l->ib : 1);
	}
}

static dnnl_query_t weights_query(ConvKind kind)
{
	return kind == CONV_GRAD_W ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
}

static int64_t packed_bytes(const ConvChoice *c, dnnl_primitive_desc_t pd)
{
	const dnnl_memory_desc_t *w = prim_md(pd, weights_query(c->kind));
	return dnnl_memory_desc_equal(w, &c->w) ? 0 : round_up((int64_t)dnnl_memory_desc_get_size(w), 64);
}

static bool accept_conv(const char *impl, dnnl_primitive_desc_t pd, const void *context)
{
	const ConvChoice *c = context;
	return !(c->direct && strstr(impl, "gemm")) && packed_bytes(c, pd) + prim_scratch_bytes(pd) <= c->d->work_bytes;
}

/* Chooses among the library's implementations; any: they may choose the layout of the weights. */
static dnnl_primitive_desc_t choose(ConvChoice *c, bool any, const dnnl_memory_desc_t *x,
	const dnnl_memory_desc_t *y, const dnnl_memory_desc_t *bias)
{
	dnnl_convolution_desc_t fwd, op;
	dnnl_memory_desc_t w = c->w;
	dnnl_dims_t dim;
	const dnnl_alg_kind_t direct = dnnl_convolution_direct;
	if (any)
		dnnl_memory_desc_init_by_tag(&w, weight_dims(c->d, dim), dim, prim_type(w_type(c)), dnnl_format_tag_any);
	if (dnnl_dilated_convolution_forward_desc_init(&fwd, dnnl_forward_training, direct, x, &w, bias, y,
		c->stride, c->dilation, c->pad, c->pad_end))
		return NULL;
	if (c->kind == CONV_FORWARD)
		return prim_choose(&fwd, NULL, false, accept_conv, c);
	dnnl_status_t bad = c->kind == CONV_GRAD_X
		? dnnl_dilated_convolution_backward_data_desc_init(&op, direct, x, &w, y, c->stride, c->dilation,
			c->pad, c->pad_end)
		: dnnl_dilated_convolution_backward_weights_desc_init(&op, direct, x, &w, NULL, y, c->stride,
			c->dilation, c->pad, c->pad_end);
	dnnl_primitive_desc_t hint = NULL, pd = NULL;
	if (!bad && dnnl_primitive_desc_create(&hint, &fwd, NULL, prim_engine(), NULL) == dnnl_success) {
		pd = prim_choose(&op, hint, false, accept_conv, c);
		dnnl_primitive_desc_destroy(hint);
	}
	return pd;
}

/* Arguments in order: the result, the two operands, bias; the kind of convolution says what the operands are. */
static void conv_run(KPrim *p, PrimArgs *t, char *work)
{
	bool grad_w = p->arg[0].arg == DNNL_ARG_DIFF_WEIGHTS;
	char *scratch = work + p->packed_bytes;
	for (int i = 0; i < p->n_args - 1; i++)
		prim_set(p, i, t->at[i]);
	prim_set(p, p->n_args - 1, scratch);
	if (p->reorder) {
		int at = grad_w ? 0 : 2;
		dnnl_memory_set_data_handle(p->reorder_arg[grad_w ? 1 : 0].memory, t->at[at]);
		dnnl_memory_set_data_handle(p->reorder_arg[grad_w ? 0 : 1].memory, work);
		prim_set(p, at, work);
	}
	if (p->reorder && !grad_w)
		dnnl_primitive_execute(p->reorder, prim_stream(), 2, p->reorder_arg);
	prim_execute(p);
	if (grad_w)
		dnnl_primitive_execute(p->reorder, prim_stream(), 2, p->reorder_arg);
}

static void add_reorder(KPrim *p, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to)
{
	dnnl_primitive_desc_t pd;
	dnnl_engine_t e = prim_engine();
	prim_check(dnnl_reorder_primitive_desc_create(&pd, from, e, to, e, NULL), "describe a reorder");
	prim_check(dnnl_primitive_create(&p->reorder, pd), "create a reorder");
	dnnl_primitive_desc_destroy(pd);
	p->reorder_arg[0].arg = DNNL_ARG_FROM;
	p->reorder_arg[1].arg = DNNL_ARG_TO;
	prim_check(dnnl_memory_create(&p->reorder_arg[0].memory, from, e, DNNL_MEMORY_NONE), "describe weights");
	prim_check(dnnl_memory_create(&p->reorder_arg[1].memory, to, e, DNNL_MEMORY_NONE), "describe weights");
}

static KPrim *create_by(const KConvDesc *d, ConvKind kind, bool direct)
{
	static const int ids[3][4] = {
		{DNNL_ARG_DST, DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS},
		{DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS},
		{DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, 0}};
	dnnl_memory_desc_t x, y, bias;
	dnnl_dims_t o = {d->o};
	ConvChoice c = {.d = d, .kind = kind, .direct = direct};
	for (int i = 0; i < d->rank; i++) {
		c.stride[i] = d->stride[i];
		c.dilation[i] = d->dilation[i] - 1;
		c.pad[i] = d->pad[i];
		c.pad_end[i] = d->pad_end[i];
	}
	const KLayout *layout = klayout_find(d->w_layout);
	image_md(&x, d, d->c, d->in);
	image_md(&y, d, d->o, d->out);
	prim_check(dnnl_memory_desc_init_by_tag(&bias, 1, o, prim_type(d->dtype), dnnl_a), "describe a bias");
	if (layout)
		packed_md(&c.w, d, layout);
	else
		weight_md(&c.w, d, w_type(&c));
	bool with_bias = d->bias && kind == CONV_FORWARD;
	dnnl_primitive_desc_t pd = choose(&c, true, &x, &y, with_bias ? &bias : NULL);
	if (!pd)
		pd = choose(&c, false, &x, &y, with_bias ? &bias : NULL);
	if (!pd)
		return NULL;
	const dnnl_memory_desc_t *w = prim_md(pd, weights_query(kind));
	const dnnl_memory_desc_t *mds[3][3] = {{&y, &x, w}, {&x, &y, w}, {w, &x, &y}};
	KPrim *p = prim_new("");
	p->conv = *d;
	p->run = conv_run;
	for (int i = 0; i < 3; i++)
		prim_add_arg(p, ids[kind][i], mds[kind][i]);
	if (with_bias)
		prim_add_arg(p, ids[kind][3], &bias);
	p->packed_bytes = packed_bytes(&c, pd);
	if (p->packed_bytes)
		add_reorder(p, kind == CONV_GRAD_W ? w : &c.w, kind == CONV_GRAD_W ? &c.w : w);
	prim_take(p, pd);
	p->work += p->packed_bytes;
	dnnl_primitive_desc_destroy(pd);
	return p;
}

static KPrim *create_any(const KConvDesc *d, ConvKind kind) { return create_by(d, kind, false); }

/* With bits for any number of threads: weight gradients are sums over the batch, which the library divides; else its
 * direct kernels sum each element on one thread.  16-bit convolutions go to conv_patch.c. */
static KPrim *create_library(const KConvDesc *d, ConvKind kind)
{
	if (!k_threads_exact)
		return create_any(d, kind);
	if (d->dtype != K_F32)
		return NULL;
	KPrim *p = kind == CONV_GRAD_W ? NULL : create_by(d, kind, true);
	return p ? p : conv_parts_create(d, kind, create_any);
}

/* ---- the bias of a transposed convolution, which the library's gradient does not add ---- */

#define ADD_BIAS(T, W, t) \
static void add_bias_##t(const KConvDesc *d, T *x, const T *bias) \
{ \
	int64_t spatial = numel(d->rank, d->in), rows = d->n * (d->layout ? spatial : d->c); \
	_Pragma("omp parallel for schedule(static)") \
	for (int64_t r = 0; r < rows; r++) { \
		int64_t n = d->layout ? d->c : spatial; \
		T *row = x + r * n; \
		W b = d->layout ? 0 : load_##t(bias[r % d->c]); \
		for (int64_t i = 0; i < n; i++) \
			row[i] = store_##t(load_##t(row[i]) + (d->layout ? load_##t(bias[i]) : b)); \
	} \
}
ADD_BIAS(float, float, f32)
K_HALVES(ADD_BIAS)

static void add_bias(const KConvDesc *d, void *x, const void *bias)
{
	if (d->dtype == K_F32)
		add_bias_f32(d, x, bias);
	else if (d->dtype == K_BF16)
		add_bias_bf16(d, x, bias);
	else
		add_bias_f16(d, x, bias);
}

static KPrim *create(const KConvDesc *d, ConvKind kind)
{
	KPrim *p = NULL;
	if (d->w_layout && !klayout_find(d->w_layout))
		k_fail("conv: unknown weight layout %s", d->w_layout);
	if (numel(d->rank, d->in) == 0 || numel(d->rank, d->out) == 0 || d->n == 0)
		return conv_plain_create(d, kind);
	if (kind == CONV_GRAD_W)
		p = conv_grad_w_thin_create(d);
	if (!p)
		p = conv_product_create(d, kind);
	if (!p)
		p = conv_depthwise_create(d, kind);
	if (!p && kind == CONV_GRAD_W)
		p = conv_grad_w_amx_create(d);
	if (!p && kind == CONV_GRAD_W)
		p = conv_grad_w_create(d);
	if (!p && kind == CONV_GRAD_W)
		p = conv_depthwise_grad_w_create(d);
	if (!p && VW == 8)
		p = conv_tiles_create(d, kind);
	if (!p && (d->dtype == K_F32 || is_half(d->dtype)))
		p = create_library(d, kind);
	if (!p)
		p = conv_patch_create(d, kind);
	return p ? p : conv_plain_create(d, kind);
}

KPrim *k_conv_create(const KConvDesc *d) { return create(d, CONV_FORWARD); }
KPrim *k_conv_grad_x_create(const KConvDesc *d) { return create(d, CONV_GRAD_X); }
KPrim *k_conv_grad_w_create(const KConvDesc *d) { return create(d, CONV_GRAD_W); }

static void run(KPrim *p, void *out, const void *a, const void *b, const void *bias, void *work)
{
	PrimArgs t = {{out, (void *)(uintptr_t)a, (void *)(uintptr_t)b, (void *)(uintptr_t)bias}};
	p->run(p, &t, work);
}

void k_conv_run(KPrim *p, void *y, const void *x, const void *w, const void *bias, void *work)
{
	run(p, y, x, w, bias, work);
}

void k_conv_grad_x_run(KPrim *p, void *dx, const void *dy, const void *w, const void *bias, void *work)
{
	run(p, dx, dy, w, bias, work);
	if (bias && (p->prim || p->n_slots > 0) && !p->inner)
		add_bias(&p->conv, dx, bias);
}

void k_conv_grad_w_run(KPrim *p, void *dw, const void *x, const void *dy, void *work)
{
	run(p, dw, x, dy, NULL, work);
}

void k_pack_f32(float *dst, const float *src, const char *layout, int64_t o, int64_t i, int64_t k,
	int64_t group)
{
	const KLayout *l = klayout_find(layout);
	if (!l) {
		k_fail("pack: unknown weight layout %s", layout);
		return;
	}
	if (l->nest == K_NEST_GK_G)
		o = group, i = 1, group = 1; /* a depthwise kernel has its channels where others have O */
	int64_t ob = l->ob, ib = l->ib, no = ceil_div(o, ob), ni = ceil_div(i, ib);
	bool k_first = l->nest == K_NEST_OKI_O || l->nest == K_NEST_GK_G;
	bool o_inner = l->nest != K_NEST_OIK_OI;
	#pragma omp parallel for schedule(static)
	for (int64_t go = 0; go < group * no; go++)
		for (int64_t t = 0; t < ni * k; t++) {
			int64_t bi = k_first ? t % ni : t / k, kk = k_first ? t / ni : t % k;
			float *to = dst + (go * ni * k + t) * ob * ib;
			for (int64_t oo = 0; oo < ob; oo++)
				for (int64_t ii = 0; ii < ib; ii++) {
					int64_t oa = go % no * ob + oo, ia = bi * ib + ii;
					to[o_inner ? ii * ob + oo : oo * ib + ii] = oa < o && ia < i
						? src[((go / no * o + oa) * i + ia) * k + kk] : 0;
				}
		}
}
