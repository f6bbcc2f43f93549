/* tests/cudasim/kernels_attention_mask.c: masked attention as a primitive of CUDA programs, against f64.
 *
 * What the library serves it is given as a bias; kv heads with a row whose keys are all hidden, by whatever number, are
 * our own kernels', in the same run.  So one bound holds for all rows: those without keys are zeros (or NaN), with a
 * log-sum-exp of -inf, and have no gradient.
 *
 * Heuristics of the library may refuse any of these on a GPU, and our kernels compute it then: the numbers are checked
 * the same, and a line says what it served. */
#include <stdio.h>

#include "tests/cudasim/kernels_cuda.h"
#include "tests/cudasim/masks.h"

typedef struct Masked {
	KAttention a;
	KDType type;
	int64_t nq, nk, nv, no, rows, dim[4], n; /* elements; rows of all heads; of the mask */
	uint16_t *q, *k, *v, *dy;
	void *mask;
	CaseAttention want;
} Masked;

static uint8_t *some_bools(const Masked *c, Hides hides)
{
	uint8_t *seen = case_alloc(c->n);
	for (int64_t i = 0; i < c->n; i++) {
		int64_t at[4];
		case_unravel(i, 4, c->dim, at);
		int64_t hidden = at[0] * 7 + 5; /* of each sample */
		seen[i] = hides == END ? at[3] < c->a.s - hidden : hides == BEGINNING ? at[3] >= hidden
			: hides == ROWS ? at[2] % 5 != 2 : at[3] == at[2] || case_random(3) != 0;
	}
	return seen;
}

static float *some_floats(const Masked *c, Hides hides, KDType type)
{
	float *x = case_floats(c->n, -3, 3);
	if (hides == ROWS_BY_FLOATS)
		case_hide(x, c->n, c->dim[3], type);
	for (int64_t i = 0; i < c->n; i++) {
		int64_t row = i / c->dim[3] % 7;
		bool whole = hides == ROWS_BY_FLOATS && row == 6;
		if (whole || (row == 2 && i % 3))
			x[i] = -INFINITY;
		else if (row == 4 && i % 5 == 0)
			x[i] = -1e4f;
	}
	return x;
}

static Masked masked_of(const MaskCase *of, KDType type)
{
	KAttention a = of->a;
	int64_t rows = a.b * a.h * a.t, keys = a.b * a.hk * a.s;
	Masked c = {.type = type, .nq = rows * a.d, .nk = keys * a.d, .nv = keys * a.dv, .no = rows * a.dv, .rows = rows};
	c.n = mask_dims(of, c.dim, a.mask_stride);
	c.a = a;
	c.want = (CaseAttention){.q = case_floats(c.nq, -2, 2), .k = case_floats(c.nk, -2, 2),
		.v = case_floats(c.nv, -1, 1), .dy = case_floats(c.no, -1, 1), .o = case_doubles(c.no),
		.lse = case_doubles(rows), .dq = case_doubles(c.nq), .dk = case_doubles(c.nk), .dv = case_doubles(c.nv)};
	c.q = case_halves(c.want.q, c.nq, type), c.k = case_halves(c.want.k, c.nk, type);
	c.v = case_halves(c.want.v, c.nv, type), c.dy = case_halves(c.want.dy, c.no, type);
	KAttention f64 = a;
	if (a.mask == K_MASK_BOOL) {
		c.mask = c.want.mask = some_bools(&c, of->hides);
	} else {
		float *x = some_floats(&c, of->hides, a.mask == K_MASK_HALF ? type : K_F32);
		c.mask = a.mask == K_MASK_HALF ? case_halves(x, c.n, type) : x;
		c.want.mask = x;
		f64.mask = K_MASK_FLOAT;
	}
	case_attention_f64(&f64, &c.want);
	return c;
}

static void close_to(const char *name, const Masked *c, const uint16_t *got, const double *want, int64_t n)
{
	case_close(name, case_widened(got, n, c->type), want, n, 2 * case_half_bound(c->type));
}

static void check_grad(const Masked *c, KPrim *p, const uint16_t *o, const float *lse, void *work)
{
	uint16_t *dq = case_alloc(c->nq * 2), *dk = case_alloc(c->nk * 2), *dv = case_alloc(c->nv * 2);
	CASE_SAME_BITS("masked attention_grad of a primitive", dq, c->nq * 2,
		k_attention_grad_run(p, dq, dk, dv, c->dy, c->q, c->k, c->v, c->mask, o, lse, work));
	close_to("masked attention_grad of a primitive: dq", c, dq, c->want.dq, c->nq);
	close_to("masked attention_grad of a primitive: dk", c, dk, c->want.dk, c->nk);
	close_to("masked attention_grad of a primitive: dv", c, dv, c->want.dv, c->nv);
}

/* Rows that see a key have log-sum-exps as exact as any; their sum would be lost in those of hidden rows. */
static void check_lse(const Masked *c, const float *lse)
{
	float *got = case_alloc(c->rows * 4);
	double *want = case_doubles(c->rows);
	case_sync();
	for (int64_t i = 0; i < c->rows; i++) {
		bool fine = fabs(c->want.lse[i]) <= K_LSE_COARSE;
		got[i] = fine ? lse[i] : 0;
		want[i] = fine ? c->want.lse[i] : 0;
	}
	case_close("masked attention of a primitive: lse", got, want, c->rows, 2e-6);
	case_close("masked attention of a primitive: lse of hidden rows", lse, c->want.lse, c->rows, 2e-6);
}

/* How many the library serves, of those that it may. */
typedef struct Served { int of, may; } Served;

static void count_served(Served *n, const KPrim *p, bool may, const char *what)
{
	bool is = cuda_by_library(p);
	case_true(may ? is || !cuda_serves_all() : !is, what);
	n->of += is;
	n->may += may;
}

/* served: of MaskCase.  n: of forward, and of the gradient. */
static void check(const Masked *c, int served, Served n[2])
{
	const KAttention *a = &c->a;
	AttentionDims dims = cuda_attention_dims(a);
	KShape q = {4, dims.q, 2}, k = {4, dims.k, 2}, v = {4, dims.v, 2}, o = {4, dims.o, 2}, mask = {4, c->dim, 1};
	KWorkArgs forward = {.layout = a->layout, .library = true, .in = {q, k, v, mask}}, grad = forward;
	memcpy(grad.in, (KShape[]){o, q, k, v, mask}, 5 * sizeof q);
	int64_t bytes = kwork_cuda_attention(&forward), grad_bytes = kwork_cuda_attention_grad(&grad);
	KAttentionDesc d = {.dtype = c->type, .a = *a, .stats = true, .work_bytes = bytes}, none = d;
	none.work_bytes = 0;
	KPrim *lib = k_attention_create(&d), *own_grad = k_attention_grad_create(&none);
	d.stats = false;
	KPrim *without = k_attention_create(&d);
	d.work_bytes = grad_bytes;
	KPrim *lib_grad = k_attention_grad_create(&d);
	count_served(&n[0], lib, served > 0, "the library serves a masked attention, or our kernels do");
	count_served(&n[1], lib_grad, served > 1 && cuda_before_blackwell(), "the same of its gradient");
	case_true(k_prim_work(lib) <= bytes && k_prim_work(lib_grad) <= grad_bytes, "a masked attention's scratch");
	uint16_t *y = case_alloc(c->no * 2), *y1 = case_alloc(c->no * 2), *own = case_alloc(c->no * 2);
	float *lse = case_alloc(c->rows * 4), *own_lse = case_alloc(c->rows * 4);
	void *work = case_alloc(bytes), *grad_work = case_alloc(grad_bytes);
	CASE_SAME_BITS("masked attention of a primitive", y, c->no * 2,
		k_attention_run(lib, y, lse, c->q, c->k, c->v, c->mask, work));
	close_to("masked attention of a primitive", c, y, c->want.o, c->no);
	check_lse(c, lse);
	k_attention_run(without, y1, NULL, c->q, c->k, c->v, c->mask, work);
	case_equal("masked attention of a primitive without lse", y1, y, c->no * 2);
	(c->type == K_BF16 ? k_attention_bf16 : k_attention_f16)(own, own_lse, c->q, c->k, c->v, c->mask, NULL, a, 0, NULL,
		NULL);
	check_grad(c, lib_grad, y, lse, grad_work);
	check_grad(c, lib_grad, own, own_lse, grad_work);
	check_grad(c, own_grad, y, lse, grad_work);
	k_prim_free(lib);
	k_prim_free(without);
	k_prim_free(lib_grad);
	k_prim_free(own_grad);
}

void case_cuda_attention_masks(void)
{
	Served n[2] = {{0}};
	for (int i = 0; i < 2 * (int)(sizeof mask_cases / sizeof *mask_cases); i++) {
		MaskCase of = mask_cases[i / 2];
		of.a.layout = i % 2;
		of.a.scale = 1 / sqrtf((float)of.a.d);
		Masked c = masked_of(&of, (i / 2 + i) % 2 ? K_F16 : K_BF16);
		check(&c, of.served, n);
	}
	printf("\n    cuDNN computes %d of %d masked attentions and %d of %d gradients of them  ", n[0].of, n[0].may,
		n[1].of, n[1].may);
}
