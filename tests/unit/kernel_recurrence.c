/* tests/unit/kernel_recurrence.c: recurrent layers against plain f64 loops, and their gradients against central
 * differences of these loops: sizes beyond a block of states and of samples, lengths, every option of the cells. */
#include "base/base.h"
#include "tests/unit/kernel_cases.h"

enum { PICKS = 40 };
static const double STEP = 1e-4;

/* A tensor: what the kernel reads, and the same numbers. */
typedef struct Tensor { void *at; double *v; int64_t n; } Tensor;

typedef struct Layer {
	KRecurrenceDesc d;
	int gates;
	Tensor x, r, h0, c0, bias, peep, dy, dh, dc; /* v = NULL: absent */
	int64_t *lengths;
	Tensor y, h, kept, c, all_c; /* of the forward kernel; v is not used */
} Layer;

static Tensor tensor_new(KDType t, int64_t n, double lo, double hi)
{
	Tensor a = {.v = case_doubles(n), .n = n};
	float *f = case_floats(n, lo, hi);
	a.at = t == K_F64 ? (void *)case_doubles(n) : case_halves(f, n, t);
	for (int64_t i = 0; i < n; i++) {
		a.v[i] = (double)f[i];
		if (t == K_F64)
			((double *)a.at)[i] = a.v[i];
	}
	return a;
}

static int64_t size_of(KDType t) { return t == K_F64 ? 8 : t == K_F32 ? 4 : 2; }

static Tensor result_new(KDType t, int64_t n)
{
	return (Tensor){.at = case_alloc(n * size_of(t)), .n = n};
}

static double element(const void *at, KDType t, int64_t i)
{
	if (t == K_F64)
		return ((const double *)at)[i];
	if (t == K_F32)
		return (double)((const float *)at)[i];
	uint16_t half = ((const uint16_t *)at)[i];
	return (double)(t == K_BF16 ? bf16_to_float(half) : f16_to_float(half));
}

/* ---- the reference ---- */

static double act(const KRecurrenceDesc *d, int i, double x, bool gate)
{
	double a = d->alpha[i], b = d->beta[i];
	if (gate && d->clip > 0)
		x = fmax(-d->clip, fmin(d->clip, x));
	switch (d->act[i]) {
	case K_ACT_SIGMOID: return 1 / (1 + exp(-x));
	case K_ACT_TANH: return tanh(x);
	case K_ACT_RELU: return fmax(x, 0);
	case K_ACT_AFFINE: return a * x + b;
	case K_ACT_LEAKY_RELU: return x < 0 ? a * x : x;
	case K_ACT_THRESHOLDED_RELU: return x > a ? x : 0;
	case K_ACT_SCALED_TANH: return a * tanh(b * x);
	case K_ACT_HARD_SIGMOID: return fmax(0, fmin(1, a * x + b));
	case K_ACT_ELU: return x < 0 ? a * (exp(x) - 1) : x;
	case K_ACT_SOFTSIGN: return x / (1 + fabs(x));
	default: return log(1 + exp(x));
	}
}

static double at(const Tensor *t, int64_t i) { return t->v ? t->v[i] : 0; }

/* Row j of r times h. */
static double dot(const Layer *l, int64_t j, const double *h)
{
	double s = 0;
	for (int64_t k = 0; k < l->d.h; k++)
		s += l->r.v[j * l->d.h + k] * h[k];
	return s;
}

/* One step of sample b: from h and c to what follows them in next and c. */
static void step(const Layer *l, const double *x, const double *h, double *next, double *c, double *rh)
{
	const KRecurrenceDesc *d = &l->d;
	int64_t n = d->h;
	for (int64_t j = 0; j < n && d->cell == K_CELL_GRU; j++)
		rh[j] = h[j] * act(d, 0, x[n + j] + dot(l, n + j, h) + at(&l->bias, n + j), true);
	for (int64_t j = 0; j < n; j++) {
		double z = x[j] + dot(l, j, h), before = c[j];
		if (d->cell == K_CELL_RNN) {
			next[j] = act(d, 0, z, true);
		} else if (d->cell == K_CELL_GRU) {
			double r = act(d, 0, x[n + j] + dot(l, n + j, h) + at(&l->bias, n + j), true), k = x[2 * n + j];
			k += d->after ? r * (dot(l, 2 * n + j, h) + at(&l->bias, 2 * n + j)) : dot(l, 2 * n + j, rh);
			z = act(d, 0, z + at(&l->bias, j), true);
			next[j] = (1 - z) * act(d, 1, k, true) + z * h[j];
		} else {
			double i = act(d, 0, z + at(&l->peep, j) * before, true);
			double f = act(d, 0, x[2 * n + j] + dot(l, 2 * n + j, h) + at(&l->peep, 2 * n + j) * before, true);
			c[j] = (d->couple ? 1 - i : f) * before + i * act(d, 1, x[3 * n + j] + dot(l, 3 * n + j, h), true);
			double o = act(d, 0, x[n + j] + dot(l, n + j, h) + at(&l->peep, n + j) * c[j], true);
			next[j] = o * act(d, 2, c[j], false);
		}
	}
}

/* Runs sample b; returns the sum of its results times dy, dh and dc.  y (T,B,H), h, c (B,H): NULL = not wanted. */
static double run_sample(const Layer *l, int64_t b, double *y, double *h_out, double *c_out)
{
	int64_t n = l->d.h, steps = l->lengths ? l->lengths[b] : l->d.t;
	double loss = 0, state[4][80] = {{0}}, *h = state[0], *next = state[1], *c = state[2];
	for (int64_t j = 0; j < n; j++) {
		h[j] = at(&l->h0, b * n + j);
		c[j] = at(&l->c0, b * n + j);
	}
	for (int64_t s = 0; s < steps; s++) {
		int64_t row = (l->d.reverse ? steps - 1 - s : s) * l->d.b + b;
		step(l, l->x.v + row * l->gates * n, h, next, c, state[3]);
		memcpy(h, next, sizeof state[0]);
		for (int64_t j = 0; j < n; j++) {
			loss += h[j] * at(&l->dy, row * n + j);
			if (y)
				y[row * n + j] = h[j];
		}
	}
	for (int64_t j = 0; j < n; j++) {
		loss += h[j] * at(&l->dh, b * n + j) + c[j] * at(&l->dc, b * n + j);
		if (h_out)
			h_out[b * n + j] = h[j];
		if (c_out)
			c_out[b * n + j] = c[j];
	}
	return loss;
}

/* ---- cases ---- */

/* alike: options that a case sets by bits. */
enum { REVERSE = 1, LENGTHS = 2, FIRST = 4, AFTER = 8, COUPLE = 16, PEEP = 32, CLIP = 64, IDS32 = 128 };

static Layer layer_new(KDType t, KCell cell, int flags, int64_t steps, int64_t samples, int64_t n)
{
	int gates = cell == K_CELL_LSTM ? 4 : cell == K_CELL_GRU ? 3 : 1;
	Layer l = {.gates = gates, .d = {.dtype = t, .cell = cell, .t = steps, .b = samples, .h = n,
		.reverse = flags & REVERSE, .after = flags & AFTER, .couple = flags & COUPLE,
		.clip = flags & CLIP ? 0.9 : 0, .act = {K_ACT_SIGMOID, K_ACT_TANH, K_ACT_TANH}}};
	if (cell == K_CELL_RNN)
		l.d.act[0] = K_ACT_TANH;
	double small = 1 / sqrt((double)n);
	l.x = tensor_new(t, steps * samples * gates * n, -1, 1);
	l.r = tensor_new(t, gates * n * n, -small, small);
	l.dy = tensor_new(t, steps * samples * n, -1, 1);
	l.dh = tensor_new(t, samples * n, -1, 1);
	if (flags & FIRST)
		l.h0 = tensor_new(t, samples * n, -1, 1);
	if (flags & AFTER)
		l.bias = tensor_new(t, 3 * n, -1, 1);
	if (cell == K_CELL_LSTM) {
		l.dc = tensor_new(t, samples * n, -1, 1);
		l.c0 = flags & FIRST ? tensor_new(t, samples * n, -1, 1) : l.c0;
		l.peep = flags & PEEP ? tensor_new(t, 3 * n, -1, 1) : l.peep;
	}
	if (flags & LENGTHS)
		l.lengths = case_ids(samples, steps + 1);
	return l;
}

static KShape shape3(int64_t *dim, int64_t a, int64_t b, int64_t c, KDType t)
{
	dim[0] = a, dim[1] = b, dim[2] = c;
	return (KShape){3, dim, (int)size_of(t)};
}

static void *work_of(Layer *l, bool grad)
{
	const KRecurrenceDesc *d = &l->d;
	int64_t x[3], r[3] = {l->gates * d->h, d->h, 0};
	KShape weights = {2, r, (int)size_of(d->dtype)}, rows = shape3(x, d->t, d->b, grad ? d->h : r[0], d->dtype);
	KWorkArgs a = {.in = {grad ? weights : rows, grad ? rows : weights}};
	int64_t cpu = grad ? kwork_recurrence_grad(&a) : kwork_recurrence(&a);
	int64_t cuda = grad ? kwork_cuda_recurrence_grad(&a) : kwork_cuda_recurrence(&a);
	l->d.work_bytes = case_cuda() ? cuda : cpu;
	return case_work(grad ? "recurrence_grad" : "recurrence", a);
}

static void *ids_of(const Layer *l, int flags)
{
	int32_t *ids = flags & IDS32 && l->lengths ? case_alloc(l->d.b * 4) : NULL;
	for (int64_t b = 0; ids && b < l->d.b; b++)
		ids[b] = (int32_t)l->lengths[b];
	return ids ? (void *)ids : l->lengths;
}

static void run_forward(Layer *l, int flags)
{
	const KRecurrenceDesc *d = &l->d;
	KDType t = d->dtype, wide = t == K_F64 ? K_F64 : K_F32;
	int64_t n = d->b * d->h;
	l->d.ids32 = flags & IDS32;
	l->y = result_new(t, d->t * n);
	l->h = result_new(t, n);
	l->c = result_new(t, n);
	l->all_c = result_new(wide, d->t * n);
	l->kept = result_new(wide, d->t * n * (l->gates + d->after));
	void *work = work_of(l, false);
	KPrim *p = k_recurrence_create(&l->d);
	bool lstm = d->cell == K_CELL_LSTM;
	case_true(k_prim_work(p) <= l->d.work_bytes, "recurrence: work");
	CASE_SAME_BITS("recurrence", l->y.at, l->y.n * size_of(t), k_recurrence_run(p, l->y.at, l->h.at, l->kept.at,
		lstm ? l->c.at : NULL, lstm ? l->all_c.at : NULL, l->x.at, l->r.at, l->h0.at, l->c0.at, ids_of(l, flags),
		l->bias.at, l->peep.at, work));
	k_prim_free(p);
}

static double bound(KDType t, double of_f32)
{
	return t == K_F64 ? 1e-6 : t == K_F32 ? of_f32 : 6 * case_half_bound(t);
}

static void close_to(const char *name, const Tensor *got, KDType t, const double *want, int64_t n)
{
	double *all = case_doubles(n);
	case_sync();
	for (int64_t i = 0; i < n; i++)
		all[i] = element(got->at, t, i);
	case_close64(name, all, want, n, bound(t, 3e-6));
}

static void check_forward(KDType t, KCell cell, int flags, int64_t steps, int64_t samples, int64_t n)
{
	Layer l = layer_new(t, cell, flags, steps, samples, n);
	double *y = case_doubles(steps * samples * n), *h = case_doubles(samples * n), *c = case_doubles(samples * n);
	for (int64_t b = 0; b < samples; b++)
		run_sample(&l, b, y, h, c);
	run_forward(&l, flags);
	close_to("recurrence: y", &l.y, t, y, steps * samples * n);
	close_to("recurrence: h", &l.h, t, h, samples * n);
	if (cell == K_CELL_LSTM)
		close_to("recurrence: c", &l.c, t, c, samples * n);
}

/* ---- gradients ---- */

/* The difference quotient of the losses of samples from..to in element i of v. */
static double quotient(const Layer *l, const Tensor *v, int64_t i, int64_t from, int64_t to)
{
	double was = v->v[i], loss[2] = {0, 0};
	for (int side = 0; side < 2; side++) {
		v->v[i] = was + (side ? STEP : -STEP);
		for (int64_t b = from; b < to; b++)
			loss[side] += run_sample(l, b, NULL, NULL, NULL);
	}
	v->v[i] = was;
	return (loss[1] - loss[0]) / (2 * STEP);
}

typedef struct Grads { Tensor dx, before, dh0, dc0, dpeep, product; } Grads;

/* got(i), an element of the gradient of v, against difference quotients at PICKS elements.  sample_of: rows of v are
 * samples' (T*B or B of them); else all samples read v. */
typedef double Got(const Layer *l, const Grads *g, int64_t i);

static void compare(const char *name, const Layer *l, const Grads *g, const Tensor *v, bool of_samples, Got *got)
{
	double want[PICKS], have[PICKS];
	int64_t n = v->v ? PICKS : 0;
	for (int64_t k = 0; k < n; k++) {
		int64_t i = case_random(v->n), rows = v->n == l->d.t * l->d.b * l->gates * l->d.h ? l->gates * l->d.h : l->d.h;
		int64_t b = of_samples ? i / rows % l->d.b : 0;
		want[k] = quotient(l, v, i, b, of_samples ? b + 1 : l->d.b);
		have[k] = got(l, g, i);
	}
	if (n)
		case_close64(name, have, want, n, bound(l->d.dtype, 2e-5));
}

static double got_dx(const Layer *l, const Grads *g, int64_t i) { return element(g->dx.at, l->d.dtype, i); }
static double got_dh0(const Layer *l, const Grads *g, int64_t i) { return element(g->dh0.at, l->d.dtype, i); }
static double got_dc0(const Layer *l, const Grads *g, int64_t i) { return element(g->dc0.at, l->d.dtype, i); }
static double got_dpeep(const Layer *l, const Grads *g, int64_t i) { return element(g->dpeep.at, l->d.dtype, i); }

static double got_dbias(const Layer *l, const Grads *g, int64_t i)
{
	double s = 0;
	for (int64_t row = 0; row < l->d.t * l->d.b; row++)
		s += element(g->product.at, l->d.dtype, row * 3 * l->d.h + i);
	return s;
}

/* dr as the product over all steps that the gradient rule makes of the results. */
static double got_dr(const Layer *l, const Grads *g, int64_t i)
{
	int64_t n = l->d.h, j = i / n, k = i % n, width = l->gates * n;
	bool late = l->d.cell == K_CELL_GRU && !l->d.after && j >= 2 * n;
	const Tensor *left = l->d.after ? &g->product : &g->dx, *right = late ? &g->product : &g->before;
	double s = 0;
	for (int64_t row = 0; row < l->d.t * l->d.b; row++)
		s += element(left->at, l->d.dtype, row * width + j) * element(right->at, l->d.dtype, row * n + k);
	return s;
}

static void check_gradients(KDType t, KCell cell, int flags, int64_t steps, int64_t samples, int64_t n)
{
	Layer l = layer_new(t, cell, flags, steps, samples, n);
	int64_t width = l.gates * n, rows = steps * samples;
	bool lstm = cell == K_CELL_LSTM;
	run_forward(&l, flags);
	Grads g = {result_new(t, rows * width), result_new(t, rows * n), result_new(t, samples * n),
		result_new(t, samples * n), result_new(t, 3 * n), result_new(t, rows * 3 * n)};
	void *work = work_of(&l, true);
	KPrim *p = k_recurrence_grad_create(&l.d);
	CASE_SAME_BITS("recurrence_grad", g.dx.at, g.dx.n * size_of(t), k_recurrence_grad_run(p, g.dx.at, g.before.at,
		g.dh0.at, lstm ? g.dc0.at : NULL, l.peep.at ? g.dpeep.at : NULL, cell == K_CELL_GRU ? g.product.at : NULL,
		l.r.at, l.y.at, l.kept.at, l.dy.at, l.dh.at, l.dc.at, lstm ? l.all_c.at : NULL, l.h0.at, l.c0.at,
		ids_of(&l, flags), l.peep.at, work));
	compare("recurrence_grad: dx", &l, &g, &l.x, true, got_dx);
	compare("recurrence_grad: dr", &l, &g, &l.r, false, got_dr);
	compare("recurrence_grad: dh0", &l, &g, &l.h0, true, got_dh0);
	compare("recurrence_grad: dc0", &l, &g, &l.c0, true, got_dc0);
	compare("recurrence_grad: dpeep", &l, &g, &l.peep, false, got_dpeep);
	compare("recurrence_grad: dbias", &l, &g, &l.bias, false, got_dbias);
	k_prim_free(p);
}

typedef void Check(KDType t, KCell cell, int flags, int64_t steps, int64_t samples, int64_t n);

static void each_case(Check *check)
{
	static const struct { KCell cell; int flags; int64_t t, b, h; } cases[] = {
		{K_CELL_LSTM, 0, 3, 50, 37}, {K_CELL_LSTM, FIRST | REVERSE | LENGTHS | PEEP, 4, 5, 3},
		{K_CELL_LSTM, FIRST | COUPLE | CLIP | PEEP, 3, 2, 33}, {K_CELL_LSTM, FIRST | LENGTHS | IDS32, 5, 3, 64},
		{K_CELL_GRU, AFTER, 3, 50, 37}, {K_CELL_GRU, AFTER | FIRST | REVERSE | LENGTHS | CLIP, 4, 5, 3},
		{K_CELL_GRU, FIRST, 3, 50, 37}, {K_CELL_GRU, FIRST | REVERSE | LENGTHS | IDS32 | CLIP, 4, 5, 3},
		{K_CELL_RNN, FIRST | LENGTHS, 3, 50, 37}, {K_CELL_RNN, REVERSE | CLIP, 4, 1, 1},
	};
	static const KDType types[] = {K_F32, K_F64, K_BF16, K_F16};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int k = 0; k < (i == 1 || i == 5 || i == 7 || i == 8 ? 4 : 1); k++)
			check(types[k], cases[i].cell, cases[i].flags, cases[i].t, cases[i].b, cases[i].h);
}

void case_recurrence(void)
{
	each_case(check_forward);
	Layer l = layer_new(K_F32, K_CELL_RNN, LENGTHS, 3, 2, 4);
	l.lengths[0] = 4;
	l.lengths[1] = 2;
	l.d.ids32 = false;
	void *work = work_of(&l, false);
	KPrim *p = k_recurrence_create(&l.d);
	l.y = result_new(K_F32, 3 * 2 * 4);
	k_recurrence_run(p, l.y.at, NULL, NULL, NULL, NULL, l.x.at, l.r.at, NULL, NULL, l.lengths, NULL, NULL, work);
	case_true(case_bad_inputs() == 1, "recurrence: a length beyond the steps is bad input");
	k_prim_free(p);
}

void case_recurrence_grad(void)
{
	each_case(check_gradients);
	Layer l = layer_new(K_F32, K_CELL_RNN, 0, 2, 2, 3);
	static const KActivation acts[] = {K_ACT_SIGMOID, K_ACT_AFFINE, K_ACT_LEAKY_RELU, K_ACT_SCALED_TANH,
		K_ACT_HARD_SIGMOID, K_ACT_ELU, K_ACT_SOFTSIGN, K_ACT_SOFTPLUS};
	for (size_t a = 0; a < sizeof acts / sizeof *acts; a++) {
		Grads g = {.dx = result_new(K_F32, l.x.n)};
		l.d.act[0] = acts[a];
		l.d.alpha[0] = 0.3;
		l.d.beta[0] = 0.5;
		run_forward(&l, 0);
		void *work = work_of(&l, true);
		KPrim *p = k_recurrence_grad_create(&l.d);
		k_recurrence_grad_run(p, g.dx.at, NULL, NULL, NULL, NULL, NULL, l.r.at, l.y.at, l.kept.at, l.dy.at, l.dh.at,
			NULL, NULL, NULL, NULL, NULL, NULL, work);
		case_sync();
		compare("recurrence_grad: activations", &l, &g, &l.x, true, got_dx);
		k_prim_free(p);
	}
}
