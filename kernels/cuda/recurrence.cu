/* kernels/cuda/recurrence.cu: recurrent layers: in each step a product of cublasLt and one kernel for gates and states.
 *
 * A gru whose last gate multiplies r h has two of both.  A thread computes one state of one sample.  16-bit operands of
 * a product have f32 results, states are rounded as y is, and the gradients that a product reads are rounded, too. */
#include "kernels/activation.h"
#include "kernels/cuda/prim.cuh"
#include "kernels/cuda/work.h"

#include <stdio.h>

__device__ __forceinline__ float act(KActivation a, float alpha, float beta, float x)
{
	return act_f32(a, alpha, beta, x);
}
__device__ __forceinline__ double act(KActivation a, double alpha, double beta, double x)
{
	return act_f64(a, alpha, beta, x);
}
__device__ __forceinline__ float slope(KActivation a, float alpha, float beta, float y)
{
	return slope_f32(a, alpha, beta, y);
}
__device__ __forceinline__ double slope(KActivation a, double alpha, double beta, double y)
{
	return slope_f64(a, alpha, beta, y);
}

enum Phase { WHOLE, FIRST, LAST }; /* of a step: a gru that multiplies r h has FIRST and LAST */
enum { THREADS = 128 };

/* What kernels read of the descriptor. */
template <class W> struct Cell {
	KCell kind;
	int64_t t, b, h;
	int gates, kept;           /* of x; of what backward reads */
	bool reverse, after, couple, ids32;
	W clip, alpha[3], beta[3]; /* clip 0 = none */
	KActivation act[3];
	const void *lengths;

	__device__ int64_t steps(int64_t i) const
	{
		int64_t n = !lengths ? t : ids32 ? ((const int32_t *)lengths)[i] : ((const int64_t *)lengths)[i];
		return n < 0 || n > t ? t : n;
	}
	__device__ W value(int i, W x) const { return ::act(act[i], alpha[i], beta[i], x); }
	__device__ W gate(int i, W x) const
	{
		return value(i, clip > 0 ? x > clip ? clip : x < -clip ? -clip : x : x);
	}
	__device__ W derivative(int i, W y) const { return slope(act[i], alpha[i], beta[i], y); }
	__device__ W gate_derivative(int i, W y) const
	{
		if (clip > 0) {
			W a = value(i, clip), c = value(i, -clip);
			if (!(y > (a < c ? a : c) && y < (a < c ? c : a)))
				return 0;
		}
		return derivative(i, y);
	}
};

/* Element i, 0 where the tensor is absent. */
template <class T> __device__ __forceinline__ Wide<T> at(const T *x, int64_t i) { return x ? widen(x[i]) : Wide<T>(0); }
template <class T> __device__ __forceinline__ void put(T *x, int64_t i, Wide<T> v)
{
	if (x)
		x[i] = narrow<T>(v);
}

static __global__ void check_lengths(const void *lengths, bool ids32, int64_t b, int64_t t, Bad bad)
{
	GRID_STRIDE(i, b) {
		int64_t n = ids32 ? ((const int32_t *)lengths)[i] : ((const int64_t *)lengths)[i];
		if (n < 0 || n > t)
			report_bad(bad, K_BAD_LENGTH, n, i, t);
	}
}

/* ---- forward ---- */

template <class T> struct Forward {
	using W = Wide<T>;
	T *y;
	W *gates, *all_c;
	const T *x, *bias, *peep;
	W *z, *c;                  /* the product (B, its columns); the state c (B,H), or a gru's gate z between phases */
	T *h, *rh;                 /* (B,H) */
};

template <class T>
__device__ void lstm_state(const Cell<Wide<T>> &k, const Forward<T> &a, int64_t row, int64_t b, int64_t j)
{
	using W = Wide<T>;
	int64_t n = k.h;
	const W *z = a.z + b * 4 * n + j;
	const T *x = a.x + row * 4 * n + j;
	W before = a.c[b * n + j];
	W i = k.gate(0, widen(x[0]) + z[0] + at(a.peep, j) * before);
	W f = k.couple ? 1 - i : k.gate(0, widen(x[2 * n]) + z[2 * n] + at(a.peep, 2 * n + j) * before);
	W g = k.gate(1, widen(x[3 * n]) + z[3 * n]), c = f * before + i * g;
	W o = k.gate(0, widen(x[n]) + z[n] + at(a.peep, n + j) * c);
	W kept[4] = {i, o, f, g};
	for (int q = 0; q < 4 && a.gates; q++)
		a.gates[(row * 4 + q) * n + j] = kept[q];
	if (a.all_c)
		a.all_c[row * n + j] = c;
	a.c[b * n + j] = c;
	a.h[b * n + j] = a.y[row * n + j] = narrow<T>(o * k.value(2, c));
}

template <class T>
__device__ void gru_state(const Cell<Wide<T>> &k, const Forward<T> &a, int64_t row, int64_t b, int64_t j, Phase phase)
{
	using W = Wide<T>;
	int64_t n = k.h, state = b * n + j, columns = phase == WHOLE ? 3 * n : phase == FIRST ? 2 * n : n;
	const W *z = a.z + b * columns + j;
	const T *x = a.x + row * 3 * n + j;
	W *kept = a.gates ? a.gates + row * k.kept * n + j : nullptr;
	W h = widen(a.h[state]), update = a.c[state], in;
	if (phase != LAST) {
		update = k.gate(0, widen(x[0]) + z[0] + at(a.bias, j));
		W r = k.gate(0, widen(x[n]) + z[n] + at(a.bias, n + j)), q = k.after ? z[2 * n] + at(a.bias, 2 * n + j) : W(0);
		for (int i = 0; kept && i < (k.after ? 4 : 2); i++)
			if (i != 2)
				kept[i * n] = i == 0 ? update : i == 1 ? r : q;
		in = widen(x[2 * n]) + r * q;
		if (phase == FIRST) {
			a.c[state] = update;
			a.rh[state] = narrow<T>(r * h);
			return;
		}
	} else {
		in = widen(x[2 * n]) + z[0];
	}
	W g = k.gate(1, in);
	if (kept)
		kept[2 * n] = g;
	a.h[state] = a.y[row * n + j] = narrow<T>((1 - update) * g + update * h);
}

template <class T> static __global__ void forward_step(Cell<Wide<T>> k, Forward<T> a, int64_t t, Phase phase)
{
	using W = Wide<T>;
	GRID_STRIDE(state, k.b * k.h) {
		int64_t b = state / k.h, j = state % k.h, row = t * k.b + b;
		if (t >= k.steps(b)) {
			for (int g = 0; g < k.kept && a.gates; g++)
				a.gates[(row * k.kept + g) * k.h + j] = 0;
			put(a.y, row * k.h + j, W(0));
			if (a.all_c)
				a.all_c[row * k.h + j] = 0;
			if (phase == FIRST)
				a.rh[state] = a.h[state];
		} else if (k.kind == K_CELL_LSTM) {
			lstm_state(k, a, row, b, j);
		} else if (k.kind == K_CELL_GRU) {
			gru_state(k, a, row, b, j, phase);
		} else {
			W h = k.gate(0, widen(a.x[row * k.h + j]) + a.z[state]);
			if (a.gates)
				a.gates[row * k.h + j] = h;
			a.h[state] = a.y[row * k.h + j] = narrow<T>(h);
		}
	}
}

/* to = from, or zeros */
template <class A, class B> static __global__ void states(A *to, const B *from, int64_t n)
{
	GRID_STRIDE(i, n)
		to[i] = narrow<A>(from ? widen(from[i]) : Wide<A>(0));
}

template <class A, class B> static void set_states(A *to, const B *from, int64_t n)
{
	if (to)
		LAUNCH((states<A, B>), blocks_for(n, THREADS), THREADS, 0, k_stream, to, from, n);
}

/* ---- backward ---- */

template <class T> struct Backward {
	using W = Wide<T>;
	T *dx, *before, *product;
	const T *y, *h0, *c0, *dy, *peep;
	const W *gates, *all_c;
	T *dg;                     /* gradient of h r^T (B,G*H); of a gru that multiplies r h: (B,2*H), then dn (B,H) */
	W *z, *dc, *dh;            /* the product that reaches h (B,H); states */
	bool first;                /* there is no product yet */
};

/* Puts the gradient of gate g of x, and that of h r^T. */
template <class T>
__device__ void put_gate(const Cell<Wide<T>> &k, const Backward<T> &a, int64_t row, int64_t b, int64_t j, int g,
	Wide<T> dx, Wide<T> d_product)
{
	bool late = k.kind == K_CELL_GRU && !k.after;
	int64_t n = k.h, dg = late && g == 2 ? k.b * 2 * n + b * n + j : b * (late ? 2 : k.gates) * n + g * n + j;
	put(a.dx, row * k.gates * n + g * n + j, dx);
	a.dg[dg] = narrow<T>(d_product);
	if (k.after)
		put(a.product, (row * 3 + g) * n + j, d_product);
}

template <class T>
__device__ void lstm_back(const Cell<Wide<T>> &k, const Backward<T> &a, int64_t row, int64_t b, int64_t j, Wide<T> dh,
	Wide<T> before)
{
	using W = Wide<T>;
	int64_t n = k.h;
	const W *kept = a.gates + row * 4 * n + j;
	W i = kept[0], o = kept[n], f = kept[2 * n], g = kept[3 * n], y = k.value(2, a.all_c[row * n + j]);
	W d_o = dh * y * k.gate_derivative(0, o);
	W dc = a.dc[b * n + j] + dh * o * k.derivative(2, y) + at(a.peep, n + j) * d_o, df = dc * before;
	W di = (dc * g - (k.couple ? df : 0)) * k.gate_derivative(0, i);
	df = k.couple ? 0 : df * k.gate_derivative(0, f);
	W dn = dc * i * k.gate_derivative(1, g);
	a.dc[b * n + j] = dc * f + at(a.peep, j) * di + at(a.peep, 2 * n + j) * df;
	a.dh[b * n + j] = 0;
	W d[4] = {di, d_o, df, dn};
	for (int q = 0; q < 4; q++)
		put_gate(k, a, row, b, j, q, d[q], d[q]);
}

template <class T>
__device__ void gru_back(const Cell<Wide<T>> &k, const Backward<T> &a, int64_t row, int64_t b, int64_t j, Wide<T> dh,
	Wide<T> before)
{
	using W = Wide<T>;
	int64_t n = k.h;
	const W *kept = a.gates + row * k.kept * n + j;
	W z = kept[0], r = kept[n], g = kept[2 * n];
	W dz = dh * (before - g) * k.gate_derivative(0, z), dn = dh * (1 - z) * k.gate_derivative(1, g);
	a.dh[b * n + j] = dh * z;
	put_gate(k, a, row, b, j, 0, dz, dz);
	put_gate(k, a, row, b, j, 2, dn, k.after ? dn * r : dn);
	if (k.after) {
		W dr = dn * kept[3 * n] * k.gate_derivative(0, r);
		put_gate(k, a, row, b, j, 1, dr, dr);
	}
}

/* h, or c, before the step of this row: of the neighbour in the sample, or the first one. */
template <class A, class B>
__device__ Wide<A> state_before(const A *all, const B *first, int64_t t, int64_t b, int64_t j, int64_t steps,
	bool reverse, int64_t samples, int64_t n)
{
	int64_t step = reverse ? t + 1 : t - 1;
	return step >= 0 && step < steps ? widen(all[(step * samples + b) * n + j]) : (Wide<A>)at(first, b * n + j);
}

template <class T>
__device__ void empty_back(const Cell<Wide<T>> &k, const Backward<T> &a, int64_t row, int64_t b, int64_t j)
{
	for (int g = 0; g < k.gates; g++)
		put_gate(k, a, row, b, j, g, Wide<T>(0), Wide<T>(0));
	put(a.before, row * k.h + j, Wide<T>(0));
	if (k.kind == K_CELL_GRU && !k.after)
		put(a.product, row * k.h + j, Wide<T>(0));
}

template <class T> static __global__ void backward_step(Cell<Wide<T>> k, Backward<T> a, int64_t t)
{
	using W = Wide<T>;
	GRID_STRIDE(state, k.b * k.h) {
		int64_t b = state / k.h, j = state % k.h, row = t * k.b + b, steps = k.steps(b);
		W dh = a.dh[state] + (a.first ? W(0) : a.z[state]);
		if (t >= steps) {
			a.dh[state] = dh;
			empty_back(k, a, row, b, j);
			continue;
		}
		W before = state_before(a.y, a.h0, t, b, j, steps, k.reverse, k.b, k.h);
		put(a.before, row * k.h + j, before);
		dh += at(a.dy, row * k.h + j);
		if (k.kind == K_CELL_LSTM) {
			lstm_back(k, a, row, b, j, dh, state_before(a.all_c, a.c0, t, b, j, steps, k.reverse, k.b, k.h));
		} else if (k.kind == K_CELL_GRU) {
			gru_back(k, a, row, b, j, dh, before);
		} else {
			W d = dh * k.gate_derivative(0, a.gates[row * k.h + j]);
			a.dh[state] = 0;
			put_gate(k, a, row, b, j, 0, d, d);
		}
	}
}

/* Gate r of a gru that multiplies r h, from z = d(r h). */
template <class T> static __global__ void backward_reset(Cell<Wide<T>> k, Backward<T> a, int64_t t)
{
	using W = Wide<T>;
	GRID_STRIDE(state, k.b * k.h) {
		int64_t b = state / k.h, j = state % k.h, row = t * k.b + b, steps = k.steps(b);
		if (t >= steps)
			continue;
		W before = state_before(a.y, a.h0, t, b, j, steps, k.reverse, k.b, k.h), r = a.gates[(row * 3 + 1) * k.h + j];
		W dr = a.z[state] * before * k.gate_derivative(0, r);
		a.dh[state] += a.z[state] * r;
		put_gate(k, a, row, b, j, 1, dr, dr);
		put(a.product, row * k.h + j, r * before);
	}
}

/* dh0 = dh + z */
template <class T> static __global__ void first_state(T *dh0, Backward<T> a, int64_t n)
{
	GRID_STRIDE(i, n)
		dh0[i] = narrow<T>(a.dh[i] + (a.first ? Wide<T>(0) : a.z[i]));
}

/* Over all steps, the sum of a gate's gradient times c: before the step for i and f, behind it for o. */
template <class T> static __global__ void peepholes(T *dpeep, Cell<Wide<T>> k, Backward<T> a)
{
	using W = Wide<T>;
	GRID_STRIDE(i, 3 * k.h) {
		int64_t g = i / k.h, j = i % k.h;
		W sum = 0;
		for (int64_t row = 0; row < k.t * k.b; row++) {
			int64_t t = row / k.b, b = row % k.b, steps = k.steps(b);
			if (t >= steps)
				continue;
			W c = g == 1 ? a.all_c[row * k.h + j]
				: state_before(a.all_c, a.c0, t, b, j, steps, k.reverse, k.b, k.h);
			sum += widen(a.dx[(row * 4 + g) * k.h + j]) * c;
		}
		dpeep[i] = narrow<T>(sum);
	}
}

/* ---- primitives ---- */

/* The products of a step; P_LAST: of a gru that multiplies r h. */
enum { P_STEP, P_LAST };

static int gates_of(const KRecurrenceDesc *d) { return d->cell == K_CELL_LSTM ? 4 : d->cell == K_CELL_GRU ? 3 : 1; }
static bool is_late(const KRecurrenceDesc *d) { return d->cell == K_CELL_GRU && !d->after; }
static KRecurrenceWork places(const KRecurrenceDesc *d)
{
	return kwork_cuda_recurrence_at(d->b, d->h, gates_of(d) * d->h, dtype_bytes(d->dtype));
}

/* (B,H) times the transpose of `gates` gates of r; back: (B,gates*H) times r. */
static KPrim *product(const KRecurrenceDesc *d, int gates, bool back)
{
	KMatmulDesc m = {};
	m.dtype = d->dtype;
	m.to = d->dtype == K_F64 ? K_F64 : K_F32;
	m.m = d->b;
	m.n = back ? d->h : gates * d->h;
	m.k = back ? gates * d->h : d->h;
	m.tb = !back;
	m.work_bytes = d->work_bytes - places(d).product;
	m.apart = is_late(d) ? d->h * dtype_bytes(d->dtype) : 0;
	return k_matmul_create(&m);
}

static KPrim *create(const KRecurrenceDesc *d, bool back)
{
	KPrim *p = prim_new();
	int64_t most = 0;
	p->recurrence = *d;
	p->product[P_STEP] = product(d, is_late(d) ? 2 : gates_of(d), back);
	if (is_late(d))
		p->product[P_LAST] = product(d, 1, back);
	for (int i = P_STEP; i <= P_LAST; i++) {
		int64_t bytes = p->product[i] ? k_prim_work(p->product[i]) : 0;
		most = bytes > most ? bytes : most;
	}
	p->work = places(d).product + most;
	snprintf(p->impl, sizeof p->impl, "steps:%.40s", k_prim_impl(p->product[P_STEP]));
	return p;
}

KPrim *k_recurrence_create(const KRecurrenceDesc *d) { return create(d, false); }
KPrim *k_recurrence_grad_create(const KRecurrenceDesc *d) { return create(d, true); }

template <class W> static Cell<W> cell_of(const KRecurrenceDesc *d, const void *lengths)
{
	Cell<W> k = {};
	k.kind = d->cell;
	k.t = d->t, k.b = d->b, k.h = d->h;
	k.gates = gates_of(d), k.kept = k.gates + d->after;
	k.reverse = d->reverse, k.after = d->after, k.couple = d->couple, k.ids32 = d->ids32;
	k.clip = (W)d->clip;
	k.lengths = lengths;
	for (int i = 0; i < 3; i++)
		k.act[i] = d->act[i], k.alpha[i] = (W)d->alpha[i], k.beta[i] = (W)d->beta[i];
	return k;
}

template <class T> static void forward(KPrim *p, Forward<T> a, T *h, T *c, const T *r, const T *h0, const T *c0,
	const void *lengths, char *work)
{
	const KRecurrenceDesc *d = &p->recurrence;
	KRecurrenceWork at = places(d);
	Cell<Wide<T>> k = cell_of<Wide<T>>(d, lengths);
	int64_t n = d->b * d->h;
	unsigned blocks = blocks_for(n, THREADS);
	a.z = (Wide<T> *)(work + at.z);
	a.h = (T *)(work + at.h);
	a.c = (Wide<T> *)(work + at.c);
	a.rh = (T *)(work + at.more);
	set_states(a.h, h0, n);
	set_states(a.c, c0, n);
	for (int64_t s = 0; s < d->t; s++) {
		int64_t t = d->reverse ? d->t - 1 - s : s;
		k_matmul_run(p->product[P_STEP], a.z, a.h, r, nullptr, work + at.product);
		LAUNCH((forward_step<T>), blocks, THREADS, 0, k_stream, k, a, t, is_late(d) ? FIRST : WHOLE);
		if (!is_late(d))
			continue;
		k_matmul_run(p->product[P_LAST], a.z, a.rh, r + 2 * d->h * d->h, nullptr, work + at.product);
		LAUNCH((forward_step<T>), blocks, THREADS, 0, k_stream, k, a, t, LAST);
	}
	set_states(h, (const T *)a.h, n);
	set_states(c, (const Wide<T> *)a.c, n);
}

template <class T> static void backward(KPrim *p, Backward<T> a, T *dh0, T *dc0, T *dpeep, const T *r, const T *dh,
	const T *dc, const void *lengths, char *work)
{
	const KRecurrenceDesc *d = &p->recurrence;
	KRecurrenceWork at = places(d);
	Cell<Wide<T>> k = cell_of<Wide<T>>(d, lengths);
	int64_t n = d->b * d->h;
	unsigned blocks = blocks_for(n, THREADS);
	a.dg = (T *)(work + at.z);
	a.z = (Wide<T> *)(work + at.h);
	a.dc = (Wide<T> *)(work + at.c);
	a.dh = (Wide<T> *)(work + at.more);
	a.first = true;
	set_states(a.dh, dh, n);
	set_states(a.dc, dc, n);
	for (int64_t s = d->t - 1; s >= 0; s--) {
		int64_t t = d->reverse ? d->t - 1 - s : s;
		LAUNCH((backward_step<T>), blocks, THREADS, 0, k_stream, k, a, t);
		a.first = false;
		if (is_late(d)) {
			k_matmul_run(p->product[P_LAST], a.z, a.dg + 2 * n, r + 2 * d->h * d->h, nullptr, work + at.product);
			LAUNCH((backward_reset<T>), blocks, THREADS, 0, k_stream, k, a, t);
		}
		k_matmul_run(p->product[P_STEP], a.z, a.dg, r, nullptr, work + at.product);
	}
	if (dh0)
		LAUNCH((first_state<T>), blocks, THREADS, 0, k_stream, dh0, a, n);
	set_states(dc0, (const Wide<T> *)a.dc, n);
	if (dpeep)
		LAUNCH((peepholes<T>), blocks_for(3 * d->h, THREADS), THREADS, 0, k_stream, dpeep, k, a);
}

/* ---- the tensors by type ---- */

#define BY_TYPE(t, ...) \
	do { \
		if ((t) == K_BF16) { using T = Bf16; __VA_ARGS__; } \
		else if ((t) == K_F16) { using T = F16; __VA_ARGS__; } \
		else if ((t) == K_F64) { using T = double; __VA_ARGS__; } \
		else { using T = float; __VA_ARGS__; } \
	} while (0)

void k_recurrence_run(KPrim *p, void *y, void *h, void *gates, void *c, void *all_c, const void *x, const void *r,
	const void *h0, const void *c0, const void *lengths, const void *bias, const void *peep, void *work)
{
	const KRecurrenceDesc *d = &p->recurrence;
	if (lengths)
		LAUNCH(check_lengths, blocks_for(d->b, THREADS), THREADS, 0, k_stream, lengths, d->ids32, d->b, d->t,
			bad_here());
	BY_TYPE(d->dtype,
		Forward<T> a = {};
		a.y = (T *)y, a.gates = (Wide<T> *)gates, a.all_c = (Wide<T> *)all_c;
		a.x = (const T *)x, a.bias = (const T *)bias, a.peep = (const T *)peep;
		forward<T>(p, a, (T *)h, (T *)c, (const T *)r, (const T *)h0, (const T *)c0, lengths, (char *)work));
}

void k_recurrence_grad_run(KPrim *p, void *dx, void *before, void *dh0, void *dc0, void *dpeep, void *product,
	const void *r, const void *y, const void *gates, const void *dy, const void *dh, const void *dc, const void *all_c,
	const void *h0, const void *c0, const void *lengths, const void *peep, void *work)
{
	BY_TYPE(p->recurrence.dtype,
		Backward<T> a = {};
		a.dx = (T *)dx, a.before = (T *)before, a.product = (T *)product;
		a.y = (const T *)y, a.h0 = (const T *)h0, a.c0 = (const T *)c0, a.dy = (const T *)dy, a.peep = (const T *)peep;
		a.gates = (const Wide<T> *)gates, a.all_c = (const Wide<T> *)all_c;
		backward<T>(p, a, (T *)dh0, (T *)dc0, (T *)dpeep, (const T *)r, (const T *)dh, (const T *)dc, lengths,
			(char *)work));
}
