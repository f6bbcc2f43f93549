/* kernels/cpu/recurrence.c: recurrent layers: all steps of one direction, and back through them.
 *
 * The weights are packed once, so that a block of states reads its columns of all gates one after the other.  In a step
 * a thread computes the products of its blocks, its gates and its states while these are in cache; threads meet once a
 * step (twice in a gru whose last gate multiplies r h).  16-bit tensors are widened to f32, and states are rounded as y
 * is.  Each sum runs in one order, so any number of threads gives equal bits. */
#include "kernels/activation.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/prim.h"
#include "kernels/work.h"

/* The states of a block, and the samples that are computed together. */
enum { COLS = NV * VW, ROWS = 4 * MR };
_Static_assert(K_RECURRENCE_COLS % COLS == 0, "states are padded to whole blocks");

typedef struct Operands {
	const void *x, *r, *h0, *c0, *lengths, *bias, *peep;
	const void *y, *gates, *dy, *dh, *dc, *all_c; /* of the gradient alone */
} Operands;
typedef struct Results {
	void *y, *h, *gates, *c, *all_c;
	void *dx, *before, *dh0, *dc0, *dpeep, *product;
} Results;

static int gates_of(const KRecurrenceDesc *d)
{
	return d->cell == K_CELL_LSTM ? 4 : d->cell == K_CELL_GRU ? 3 : 1;
}

static int64_t step_at(const KRecurrenceDesc *d, int64_t i)
{
	return d->reverse ? d->t - 1 - i : i;
}

static int64_t length_at(const KRecurrenceDesc *d, const void *lengths, int64_t b)
{
	if (!lengths)
		return d->t;
	int64_t n = d->ids32 ? ((const int32_t *)lengths)[b] : ((const int64_t *)lengths)[b];
	return n < 0 || n > d->t ? d->t : n;
}

static void check_lengths(const KRecurrenceDesc *d, const void *lengths)
{
	for (int64_t b = 0; lengths && b < d->b; b++) {
		int64_t n = d->ids32 ? ((const int32_t *)lengths)[b] : ((const int64_t *)lengths)[b];
		if (n < 0 || n > d->t)
			k_bad_input("sequence length %lld of sample %lld is outside 0..%lld", (long long)n, (long long)b,
				(long long)d->t);
	}
}

/* c (m, COLS) = a (m, k) b (k, COLS), or c +=; panels lie one behind the other in the order of their use */
static void product_f32(int64_t m, int64_t k, const float *a, int64_t ar, const float *b, float *c, int64_t cr,
	bool add)
{
	gemm_panel(m, k, a, ar, b, c, cr, add);
}

static void product_f64(int64_t m, int64_t k, const double *a, int64_t ar, const double *b, double *c, int64_t cr,
	bool add)
{
	for (int64_t i = 0; i < m; i++) {
		for (int64_t j = 0; j < COLS && !add; j++)
			c[i * cr + j] = 0;
		for (int64_t p = 0; p < k; p++)
			for (int64_t j = 0; j < COLS; j++)
				c[i * cr + j] += a[i * ar + p] * b[p * COLS + j];
	}
}

/* Rows of n elements of the tensors' type, from element `at` on. */
INLINE void load_row_f32(float *to, const void *from, KDType t, int64_t at, int64_t n)
{
	widen(to, at_element(from, t, at), t, n);
}
INLINE void load_row_f64(double *to, const void *from, KDType t, int64_t at, int64_t n)
{
	(void)t;
	memcpy(to, (const double *)from + at, (size_t)n * sizeof *to);
}
INLINE void store_row_f32(void *to, const float *from, KDType t, int64_t at, int64_t n)
{
	narrow((char *)to + at * type_bytes(t), from, t, n);
}
INLINE void store_row_f64(void *to, const double *from, KDType t, int64_t at, int64_t n)
{
	(void)t;
	memcpy((double *)to + at, from, (size_t)n * sizeof *from);
}

/* The type of T: gates and all c are kept in it. */
static const KDType own_f32 = K_F32, own_f64 = K_F64;

#define TEMPLATE "kernels/cpu/recurrence.h"
#include "kernels/cpu/each_float.h"

static KPrim *create(const KRecurrenceDesc *d, bool grad)
{
	KPrim *p = prim_new(grad ? "own:recurrence_grad" : "own:recurrence");
	int64_t dim[2] = {gates_of(d) * d->h, d->h};
	KShape r = {2, dim, type_bytes(d->dtype)};
	p->recurrence = *d;
	p->work = kwork_recurrence_of(&r, d->b, grad ? 2 : 4, grad ? 2 : 0, r.bytes);
	return p;
}

KPrim *k_recurrence_create(const KRecurrenceDesc *d) { return create(d, false); }
KPrim *k_recurrence_grad_create(const KRecurrenceDesc *d) { return create(d, true); }

void k_recurrence_run(KPrim *p, void *y, void *h, void *gates, void *c, void *all_c, const void *x, const void *r,
	const void *h0, const void *c0, const void *lengths, const void *bias, const void *peep, void *work)
{
	Operands in = {.x = x, .r = r, .h0 = h0, .c0 = c0, .lengths = lengths, .bias = bias, .peep = peep};
	Results out = {.y = y, .h = h, .gates = gates, .c = c, .all_c = all_c};
	check_lengths(&p->recurrence, lengths);
	(p->recurrence.dtype == K_F64 ? forward_f64 : forward_f32)(&p->recurrence, &in, &out, work);
}

void k_recurrence_grad_run(KPrim *p, void *dx, void *before, void *dh0, void *dc0, void *dpeep, void *product,
	const void *r, const void *y, const void *gates, const void *dy, const void *dh, const void *dc, const void *all_c,
	const void *h0, const void *c0, const void *lengths, const void *peep, void *work)
{
	Operands in = {.r = r, .h0 = h0, .c0 = c0, .lengths = lengths, .peep = peep, .y = y, .gates = gates, .dy = dy,
		.dh = dh, .dc = dc, .all_c = all_c};
	Results out = {.dx = dx, .before = before, .dh0 = dh0, .dc0 = dc0, .dpeep = dpeep, .product = product};
	(p->recurrence.dtype == K_F64 ? backward_f64 : backward_f32)(&p->recurrence, &in, &out, work);
}
