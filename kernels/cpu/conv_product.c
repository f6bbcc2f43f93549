/* kernels/cpu/conv_product.c: convolutions of channels-last data with a 1x1 kernel and no padding.  They are one
 * matrix product over positions, with the row-major weights as they are.  With strides, the input positions that the
 * kernel meets are first copied together, and the gradient of x is spread out after the product. */
#include "kernels/cpu/prim.h"

static bool has_stride(const KConvDesc *d)
{
	for (int i = 0; i < d->rank; i++)
		if (d->stride[i] != 1)
			return true;
	return false;
}

static int64_t bytes_of(const KConvDesc *d)
{
	return is_half(d->dtype) ? 2 : 4; /* f64 with strides is not served */
}

static int64_t gathered_bytes(const KConvDesc *d)
{
	return has_stride(d) ? round_up(d->n * numel(d->rank, d->out) * d->c * bytes_of(d), 64) : 0;
}

/* The flat input position, counted over samples too, of output row r. */
static int64_t source_row(const KConvDesc *d, int64_t r)
{
	int64_t positions = numel(d->rank, d->out), at[3], p = r / positions;
	unravel(r % positions, d->rank, d->out, at);
	for (int i = 0; i < d->rank; i++)
		p = p * d->in[i] + at[i] * d->stride[i];
	return p;
}

static const char *gather_rows(const KConvDesc *d, const char *x, char *work)
{
	int64_t rows = d->n * numel(d->rank, d->out), row = d->c * bytes_of(d);
	if (!has_stride(d))
		return x;
	#pragma omp parallel for schedule(static)
	for (int64_t r = 0; r < rows; r++)
		memcpy(work + r * row, x + source_row(d, r) * row, (size_t)row);
	return work;
}

/* Spreads the rows of the product over dx.  Positions that the kernel does not meet get the bias (c), or 0 where it is
 * NULL; the rows of the product have the bias already. */
static void spread_rows(const KConvDesc *d, char *dx, const char *from, const char *bias)
{
	int64_t positions = numel(d->rank, d->in), total = d->n * positions, row = d->c * bytes_of(d);
	#pragma omp parallel for schedule(static)
	for (int64_t p = 0; p < total; p++) {
		int64_t at[3], r = p / positions;
		bool met = true;
		unravel(p % positions, d->rank, d->in, at);
		for (int i = 0; i < d->rank; i++) {
			met = met && at[i] % d->stride[i] == 0 && at[i] / d->stride[i] < d->out[i];
			r = r * d->out[i] + at[i] / d->stride[i];
		}
		if (met)
			memcpy(dx + p * row, from + r * row, (size_t)row);
		else if (bias)
			memcpy(dx + p * row, bias, (size_t)row);
		else
			memset(dx + p * row, 0, (size_t)row);
	}
}

static void forward(KPrim *p, PrimArgs *t, char *work)
{
	PrimArgs s = *t;
	s.at[1] = (void *)(uintptr_t)gather_rows(&p->conv, t->at[1], work);
	p->inner->run(p->inner, &s, work + p->packed_bytes);
}

static void grad_x(KPrim *p, PrimArgs *t, char *work)
{
	PrimArgs s = *t;
	if (p->packed_bytes)
		s.at[0] = work;
	p->inner->run(p->inner, &s, work + p->packed_bytes);
	if (p->packed_bytes)
		spread_rows(&p->conv, t->at[0], s.at[0], t->at[3]);
}

/* dw (o, c) = dy (rows, o)^T x (rows, c).  A run's operands come in the order x, dy. */
static void grad_w(KPrim *p, PrimArgs *t, char *work)
{
	PrimArgs s = {{t->at[0], t->at[2], (void *)(uintptr_t)gather_rows(&p->conv, t->at[1], work), NULL}};
	p->inner->run(p->inner, &s, work + p->packed_bytes);
}

static bool is_product(const KConvDesc *d)
{
	for (int i = 0; i < d->rank; i++)
		if (d->kernel[i] != 1 || d->pad[i] != 0 || d->pad_end[i] != 0)
			return false;
	return d->layout == 1 && d->group == 1 && !d->w_layout && (d->dtype != K_F64 || !has_stride(d));
}

KPrim *conv_product_create(const KConvDesc *d, ConvKind kind)
{
	static void (*const runs[])(KPrim *, PrimArgs *, char *) = {forward, grad_x, grad_w};
	int64_t rows = d->n * numel(d->rank, d->out), gathered = gathered_bytes(d);
	KMatmulDesc m = {.dtype = d->dtype, .to = kind == CONV_GRAD_W ? d->to : d->dtype,
		.work_bytes = d->work_bytes - gathered};
	if (!is_product(d) || gathered > d->work_bytes)
		return NULL;
	if (kind == CONV_FORWARD)
		m.m = rows, m.n = d->o, m.k = d->c, m.tb = true, m.bias = d->bias;
	else if (kind == CONV_GRAD_X)
		m.m = rows, m.n = d->c, m.k = d->o, m.bias = d->bias;
	else
		m.m = d->o, m.n = d->c, m.k = rows, m.ta = true;
	KPrim *p = prim_new("");
	p->conv = *d;
	p->packed_bytes = gathered;
	p->inner = k_matmul_create(&m);
	memcpy(p->impl, p->inner->impl, sizeof p->impl);
	p->work = p->inner->work + gathered;
	p->run = runs[kind];
	return p;
}
