/* kernels/cpu/conv_patch.c: convolutions of 16-bit or f32 channels-last data as products of patches, where the library
 * has no kernel for the processor, or none whose scratch fits (it grows with an image and with threads): any groups,
 * strides, dilations and paddings, one to three spatial dims.
 *
 * What a position of the result meets, taps x channels of its group, is one row; rows are copied as they are by chunks
 * of K_PATCH_BYTES, or of f32 of what work has, and multiplied by weights that were brought into that order.  The
 * gradient of x is the forward with its taps turned round, where strides leave zeros in the rows.  A gradient of w is
 * summed in f32 over the chunks, in order.  Products round once from f32 sums. */
#include "kernels/cpu/conv_axis.h"
#include "kernels/cpu/conv_sums.h"
#include "kernels/cpu/prim.h"
#include "kernels/work.h"

typedef struct Patches {
	const KConvDesc *d;
	ConvAxis axis[3];
	const int64_t *to;            /* spatial dims of the result */
	int64_t group, in, out, taps; /* channels of a group on either side */
	int64_t rows, chunk, width;   /* rows in all and in a chunk, elements of a row */
	int64_t size;                 /* bytes of an element */
	int64_t packed;               /* bytes of the weights in this order, or of the sums of their gradient */
	bool turned;
} Patches;

static Patches patches_of(const KConvDesc *d, ConvKind kind)
{
	bool turned = kind == CONV_GRAD_X;
	int64_t c = d->c / d->group, o = d->o / d->group;
	Patches s = {.d = d, .to = turned ? d->in : d->out, .group = d->group,
		.in = turned ? o : c, .out = turned ? c : o, .taps = numel(d->rank, d->kernel), .turned = turned};
	for (int i = 0; i < d->rank; i++)
		s.axis[i] = conv_axis(d, i, turned);
	s.rows = d->n * numel(d->rank, s.to);
	s.width = s.taps * s.in;
	s.size = type_bytes(d->dtype);
	s.packed = round_up(s.group * s.out * s.width * (kind == CONV_GRAD_W ? 4 : s.size), 64);
	/* of f32 the passes plan no room for a whole chunk: most of what is left, the rest is the products' */
	int64_t room = is_half(d->dtype) ? K_PATCH_BYTES : MIN(K_PATCH_BYTES, (d->work_bytes - s.packed) / 4 * 3);
	s.chunk = MAX(1, MIN(s.rows, room / s.size / MAX(1, s.width)));
	return s;
}

/* Few bytes by two copies of a fixed size, which may overlap: a call would take longer. */
static inline void copy_bytes(char *to, const char *from, int64_t n)
{
	if (n >= 32 && n <= 64) {
		memcpy(to, from, 32);
		memcpy(to + n - 32, from + n - 32, 32);
	} else if (n >= 16 && n < 32) {
		memcpy(to, from, 16);
		memcpy(to + n - 16, from + n - 16, 16);
	} else {
		memcpy(to, from, (size_t)n);
	}
}

/* Taps along the last axis of one row; x: channels of the group where that axis begins.  Taps that lie side by side are
 * one copy where the operand's channels are those of one group. */
static void copy_taps(const Patches *s, char *to, const char *x, int64_t at)
{
	int last = s->d->rank - 1;
	const ConvAxis *a = &s->axis[last];
	int64_t taps = a->taps, from = at * a->step - a->left, row = s->in * s->size;
	if (s->group == 1 && a->up == 1 && a->dilation == 1) {
		int64_t before = MIN(taps, MAX(0, -from)), end = MAX(before, MIN(taps, a->from - from));
		if (before > 0)
			memset(to, 0, (size_t)(before * row));
		copy_bytes(to + before * row, x + (from + before) * row, (end - before) * row);
		if (end < taps)
			memset(to + end * row, 0, (size_t)((taps - end) * row));
		return;
	}
	for (int64_t k = 0; k < taps; k++, to += row) {
		int64_t p = conv_axis_met(a, at, k);
		if (p >= 0)
			copy_bytes(to, x + p * s->group * row, row);
		else
			memset(to, 0, (size_t)row);
	}
}

/* Row r of group g */
static void copy_row(const Patches *s, char *to, const char *x, int64_t r, int64_t g)
{
	int last = s->d->rank - 1;
	int64_t at[3], tap[3] = {0}, positions = numel(s->d->rank, s->to), taps = s->axis[last].taps, row = s->in * s->size;
	unravel(r % positions, s->d->rank, s->to, at);
	for (int64_t k = 0; k < s->taps; k += taps, to += taps * row) {
		int64_t p = r / positions;
		bool inside = true;
		for (int i = 0; i < last; i++) {
			int64_t q = conv_axis_met(&s->axis[i], at[i], tap[i]);
			inside = inside && q >= 0;
			p = p * s->axis[i].from + q;
		}
		if (inside)
			copy_taps(s, to, x + (p * s->axis[last].from * s->group + g) * row, at[last]);
		else
			memset(to, 0, (size_t)(taps * row));
		for (int i = last - 1; i >= 0 && ++tap[i] == s->d->kernel[i]; i--)
			tap[i] = 0;
	}
}

static void copy_chunk(const Patches *s, char *to, const char *x, int64_t row, int64_t rows, int64_t g)
{
	#pragma omp parallel for schedule(static)
	for (int64_t r = 0; r < rows; r++)
		copy_row(s, to + r * s->width * s->size, x, row + r, g);
}

/* Where weight (result channel o of group g, tap k, operand channel i) is in w (O, C/group, taps). */
static int64_t weight_at(const Patches *s, int64_t g, int64_t o, int64_t k, int64_t i)
{
	int64_t row = s->turned ? (g * s->in + i) * s->out + o : (g * s->out + o) * s->in + i;
	return row * s->taps + (s->turned ? s->taps - 1 - k : k);
}

/* A product of a chunk of `rows`, of which there is one full size and perhaps a smaller last one. */
static KPrim *chunk_product(const Patches *s, ConvKind kind, int64_t rows, int64_t work_bytes)
{
	KMatmulDesc m = {.dtype = s->d->dtype, .to = s->d->dtype, .m = rows, .n = s->out, .k = s->width, .tb = true,
		.bias = s->d->bias, .ldy = s->group * s->out, .work_bytes = work_bytes};
	if (kind == CONV_GRAD_W)
		m = (KMatmulDesc){.dtype = s->d->dtype, .to = K_F32, .m = s->out, .n = s->width, .k = rows, .ta = true,
			.add = true, .lda = s->group * s->out, .work_bytes = work_bytes};
	return k_matmul_create(&m);
}

static int64_t rows_bytes(const Patches *s) { return round_up(s->chunk * s->width * s->size, 64); }

/* Runs the products of all chunks and groups: y (rows, out) = patches weights^T, or weights += y^T patches. */
static void run_chunks(KPrim *p, const Patches *s, char *y, const void *x, char *weights, const void *bias,
	bool grad_w, char *work)
{
	char *rows = work;
	int64_t bytes = grad_w ? 4 : s->size;
	work += rows_bytes(s);
	for (int64_t r = 0; r < s->rows; r += s->chunk)
		for (int64_t g = 0; g < s->group; g++) {
			int64_t n = MIN(s->chunk, s->rows - r);
			char *at = y + (r * s->group + g) * s->out * s->size, *w = weights + g * s->out * s->width * bytes;
			KPrim *product = n == s->chunk ? p->inner : p->product[0];
			copy_chunk(s, rows, x, r, n, g);
			if (grad_w)
				k_matmul_run(product, w, at, rows, NULL, work);
			else
				k_matmul_run(product, at, rows, w, bias ? (const char *)bias + g * s->out * s->size : NULL, work);
		}
}

static void copy_weight(const Patches *s, void *to, int64_t i, const void *from, int64_t j)
{
	if (s->size == 4)
		((float *)to)[i] = ((const float *)from)[j];
	else
		((uint16_t *)to)[i] = ((const uint16_t *)from)[j];
}

static void run(KPrim *p, PrimArgs *t, char *work, ConvKind kind)
{
	Patches s = patches_of(&p->conv, kind);
	#pragma omp parallel for schedule(static)
	for (int64_t o = 0; o < s.group * s.out; o++)
		for (int64_t k = 0; k < s.taps; k++)
			for (int64_t i = 0; i < s.in; i++)
				copy_weight(&s, work, o * s.width + k * s.in + i, t->at[2], weight_at(&s, o / s.out, o % s.out, k, i));
	run_chunks(p, &s, t->at[0], t->at[1], work, t->at[3], false, work + s.packed);
}

static void forward(KPrim *p, PrimArgs *t, char *work) { run(p, t, work, CONV_FORWARD); }
static void grad_x(KPrim *p, PrimArgs *t, char *work) { run(p, t, work, CONV_GRAD_X); }

static void grad_w(KPrim *p, PrimArgs *t, char *work)
{
	Patches s = patches_of(&p->conv, CONV_GRAD_W);
	const float *acc = (const float *)(const void *)work;
	KDType to = is_half(p->conv.dtype) ? p->conv.to : K_F32;
	memset(work, 0, (size_t)s.packed);
	run_chunks(p, &s, t->at[2], t->at[1], work, NULL, true, work + s.packed);
	#pragma omp parallel for schedule(static)
	for (int64_t o = 0; o < s.group * s.out; o++)
		put_sums((char *)t->at[0] + o * s.width * type_bytes(to), to, acc + o * s.width, s.in, s.taps, s.taps, 0);
}

KPrim *conv_patch_create(const KConvDesc *d, ConvKind kind)
{
	static void (*const runs[])(KPrim *, PrimArgs *, char *) = {forward, grad_x, grad_w};
	if (d->dtype == K_F64 || d->layout != 1 || d->w_layout)
		return NULL;
	Patches s = patches_of(d, kind);
	int64_t before = s.packed + rows_bytes(&s), last = s.rows % s.chunk;
	if (before > d->work_bytes)
		return NULL;
	KPrim *p = prim_new("own:patches");
	p->conv = *d;
	p->inner = chunk_product(&s, kind, s.chunk, d->work_bytes - before);
	p->product[0] = last ? chunk_product(&s, kind, last, d->work_bytes - before) : NULL;
	p->work = before + MAX(p->inner->work, last ? p->product[0]->work : 0);
	p->run = runs[kind];
	return p;
}
