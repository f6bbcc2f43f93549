/* ir/eval_recurrence.c: evaluates recurrent layers and their gradients, one sample and one step after the other.
 *
 * A state h is rounded as y is, since the next step reads it so. */
#include "ir/eval.h"
#include "ir/recurrence.h"

#include <math.h>
#include <string.h>

static double value_of(Activation a, double alpha, double beta, double x)
{
	switch (a) {
	case ACT_SIGMOID: return 1 / (1 + exp(-x));
	case ACT_TANH: return tanh(x);
	case ACT_RELU: return x <= 0 ? 0 : x;
	case ACT_AFFINE: return alpha * x + beta;
	case ACT_LEAKY_RELU: return x < 0 ? alpha * x : x;
	case ACT_THRESHOLDED_RELU: return x > alpha ? x : 0;
	case ACT_SCALED_TANH: return alpha * tanh(beta * x);
	case ACT_HARD_SIGMOID: return fmax(0, fmin(1, alpha * x + beta));
	case ACT_ELU: return x < 0 ? alpha * expm1(x) : x;
	case ACT_SOFTSIGN: return x / (1 + fabs(x));
	default: return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
	}
}

/* The derivative where the value is y. */
static double slope_of(Activation a, double alpha, double beta, double y)
{
	switch (a) {
	case ACT_SIGMOID: return y * (1 - y);
	case ACT_TANH: return 1 - y * y;
	case ACT_RELU: return y > 0;
	case ACT_AFFINE: return alpha;
	case ACT_LEAKY_RELU: return y > 0 ? 1 : alpha;
	case ACT_THRESHOLDED_RELU: return y > alpha;
	case ACT_SCALED_TANH: return alpha == 0 ? 0 : beta * (alpha - y * y / alpha);
	case ACT_HARD_SIGMOID: return y > 0 && y < 1 ? alpha : 0;
	case ACT_ELU: return y > 0 ? 1 : y + alpha;
	case ACT_SOFTSIGN: return (1 - fabs(y)) * (1 - fabs(y));
	default: return -expm1(-y);
	}
}

/* One sample of an op; NULL: absent. */
typedef struct Sample {
	Recurrence r;
	int64_t b, n;              /* its number; its steps */
	const double *w, *h0, *c0, *p, *bias;
	double *h, *c, *z;         /* states [H]; gate inputs [4 H] */
} Sample;

static const double *given(const Op *op, EvalTensor *const *in, int i)
{
	return op_in(op, i) ? in[i]->f : NULL;
}

/* Row i of a tensor of rows of H; NULL stays NULL. */
static const double *row(const double *x, int64_t i, int64_t h)
{
	return x ? x + i * h : NULL;
}

/* The step that is the i-th of the sample. */
static int64_t step_at(const Sample *s, int64_t i)
{
	return s->r.reverse ? s->n - 1 - i : i;
}

static double act(const Sample *s, int i, double x)
{
	return value_of(s->r.act[i], s->r.alpha[i], s->r.beta[i], x);
}

/* An activation of a gate: its input is clipped. */
static double gate(const Sample *s, int i, double x)
{
	return act(s, i, fmax(-s->r.clip, fmin(s->r.clip, x)));
}

static double slope(const Sample *s, int i, double y)
{
	return slope_of(s->r.act[i], s->r.alpha[i], s->r.beta[i], y);
}

/* The same of a gate.  Activations are monotone, so a value within the two of +-clip was not clipped. */
static double gate_slope(const Sample *s, int i, double y)
{
	double a = act(s, i, -s->r.clip), b = act(s, i, s->r.clip);
	return !isfinite(s->r.clip) || (y > fmin(a, b) && y < fmax(a, b)) ? slope(s, i, y) : 0;
}

/* Reads the sample's number of steps; false: it is out of range. */
static bool read_steps(Sample *s, const Op *op, EvalTensor *const *in, int lengths)
{
	s->n = op_in(op, lengths) ? in[lengths]->i[s->b] : s->r.t;
	return s->n >= 0 && s->n <= s->r.t;
}

/* z[j] = sum of w[j][k] h[k], for rows j of w from `from` to `to`. */
static void multiply(const Sample *s, int64_t from, int64_t to, const double *h)
{
	for (int64_t j = from; j < to; j++) {
		s->z[j] = 0;
		for (int64_t k = 0; k < s->r.h; k++)
			s->z[j] += s->w[j * s->r.h + k] * h[k];
	}
}

/* ---- forward: from x [G*H] of a step to its kept gates; states change ---- */

static void step_rnn(const Sample *s, const double *x, double *kept)
{
	multiply(s, 0, s->r.h, s->h);
	for (int64_t j = 0; j < s->r.h; j++)
		s->h[j] = kept[j] = gate(s, 0, x[j] + s->z[j]);
}

static void step_gru(const Sample *s, const double *x, double *kept)
{
	int64_t n = s->r.h;
	double *z = kept, *r = kept + n, *g = kept + 2 * n, *q = kept + 3 * n;
	multiply(s, 0, 3 * n, s->h);
	for (int64_t j = 0; j < 2 * n; j++)
		kept[j] = gate(s, 0, x[j] + s->z[j] + (s->bias ? s->bias[j] : 0));
	for (int64_t j = 0; j < n && s->r.after; j++)
		q[j] = s->z[2 * n + j] + (s->bias ? s->bias[2 * n + j] : 0);
	for (int64_t j = 0; j < n; j++)
		s->c[j] = r[j] * s->h[j];
	if (!s->r.after)
		multiply(s, 2 * n, 3 * n, s->c);
	for (int64_t j = 0; j < n; j++) {
		g[j] = gate(s, 1, x[2 * n + j] + (s->r.after ? r[j] * q[j] : s->z[2 * n + j]));
		s->h[j] = (1 - z[j]) * g[j] + z[j] * s->h[j];
	}
}

static void step_lstm(const Sample *s, const double *x, double *kept)
{
	int64_t n = s->r.h;
	const double *p = s->p;
	multiply(s, 0, 4 * n, s->h);
	for (int64_t j = 0; j < n; j++) {
		double before = s->c[j], *k = kept + j, *z = s->z + j;
		double i = k[0] = gate(s, 0, x[j] + z[0] + (p ? p[j] * before : 0));
		double f = k[2 * n] = s->r.couple ? 1 - i
			: gate(s, 0, x[2 * n + j] + z[2 * n] + (p ? p[2 * n + j] * before : 0));
		double g = k[3 * n] = gate(s, 1, x[3 * n + j] + z[3 * n]);
		double c = s->c[j] = f * before + i * g;
		k[n] = gate(s, 0, x[n + j] + z[n] + (p ? p[n + j] * c : 0));
		s->h[j] = k[n] * act(s, 2, c);
	}
}

static void round_state(const EvalEnv *e, DType t, double *h, int64_t n)
{
	for (int64_t j = 0; j < n; j++)
		h[j] = eval_fit(t, (Scalar){.f = h[j]}, eval_rounds(e, t)).f;
}

static void run_sample(EvalEnv *e, const Sample *s, const EvalTensor *x, EvalTensor *const *out)
{
	static void (*const step[CELL_COUNT])(const Sample *, const double *, double *) = {step_rnn, step_gru, step_lstm};
	int64_t n = s->r.h, width = cell_info[s->r.cell].gates * n;
	for (int64_t i = 0; i < s->n; i++) {
		int64_t at = step_at(s, i) * s->r.b + s->b;
		step[s->r.cell](s, x->f + at * width, out[REC_GATES]->f + at * s->r.kept);
		round_state(e, x->type.dtype, s->h, n);
		memcpy(out[REC_Y]->f + at * n, s->h, (size_t)n * sizeof *s->h);
		if (s->r.cell == CELL_LSTM)
			memcpy(out[REC_ALL_C]->f + at * n, s->c, (size_t)n * sizeof *s->c);
	}
	memcpy(out[REC_H]->f + s->b * n, s->h, (size_t)n * sizeof *s->h);
	if (s->r.cell == CELL_LSTM)
		memcpy(out[REC_C]->f + s->b * n, s->c, (size_t)n * sizeof *s->c);
}

RULE(recurrence)
{
	Sample s = {.w = in[REC_R]->f, .p = given(op, in, REC_P), .bias = given(op, in, REC_BIAS)};
	if (!recurrence_read(op, &s.r, NULL))
		return false;
	const double *h0 = given(op, in, REC_H0), *c0 = given(op, in, REC_C0);
	int64_t n = s.r.h;
	s.h = NEW_N(e->arena, double, n + 1);
	s.c = NEW_N(e->arena, double, n + 1);
	s.z = NEW_N(e->arena, double, 4 * n + 1);
	for (s.b = 0; s.b < s.r.b; s.b++) {
		if (!read_steps(&s, op, in, REC_LENGTHS))
			return false;
		for (int64_t j = 0; j < n; j++) {
			s.h[j] = h0 ? h0[s.b * n + j] : 0;
			s.c[j] = c0 ? c0[s.b * n + j] : 0;
		}
		run_sample(e, &s, in[REC_X], out);
	}
	return true;
}

/* ---- backward: s->h and s->c are dh and dc of the state that a step makes, and become those of the one before ---- */

/* One step of a sample: the kept gates, the states before and c behind it; what is written. */
typedef struct Back { const double *kept, *h, *c_before, *c; double *dx, *product, *dp; } Back;

static double at(const double *x, int64_t j) { return x ? x[j] : 0; }

/* s->z = sum over rows j of w, from `from` to `to`, of d[j] w[j]. */
static void multiply_back(const Sample *s, const double *d, int64_t from, int64_t to)
{
	memset(s->z, 0, (size_t)s->r.h * sizeof *s->z);
	for (int64_t j = from; j < to; j++)
		for (int64_t k = 0; k < s->r.h; k++)
			s->z[k] += d[j] * s->w[j * s->r.h + k];
}

static void back_rnn(const Sample *s, const Back *k)
{
	for (int64_t j = 0; j < s->r.h; j++)
		k->dx[j] = s->h[j] * gate_slope(s, 0, k->kept[j]);
	multiply_back(s, k->dx, 0, s->r.h);
	memcpy(s->h, s->z, (size_t)s->r.h * sizeof *s->h);
}

static void back_gru(const Sample *s, const Back *k)
{
	int64_t n = s->r.h;
	const double *z = k->kept, *r = k->kept + n, *g = k->kept + 2 * n, *q = k->kept + 3 * n;
	double *dx = k->dx;
	for (int64_t j = 0; j < n; j++) {
		dx[j] = s->h[j] * (at(k->h, j) - g[j]) * gate_slope(s, 0, z[j]);
		dx[2 * n + j] = s->h[j] * (1 - z[j]) * gate_slope(s, 1, g[j]);
	}
	if (!s->r.after)
		multiply_back(s, dx, 2 * n, 3 * n);
	for (int64_t j = 0; j < n; j++) {
		double drh = s->r.after ? 0 : s->z[j], dr = s->r.after ? dx[2 * n + j] * q[j] : drh * at(k->h, j);
		dx[n + j] = dr * gate_slope(s, 0, r[j]);
		s->h[j] = s->h[j] * z[j] + drh * r[j];
		if (s->r.after)
			k->product[2 * n + j] = dx[2 * n + j] * r[j];
		else
			k->product[j] = r[j] * at(k->h, j);
	}
	if (s->r.after)
		memcpy(k->product, dx, (size_t)(2 * n) * sizeof *dx);
	multiply_back(s, s->r.after ? k->product : dx, 0, (s->r.after ? 3 : 2) * n);
	for (int64_t j = 0; j < n; j++)
		s->h[j] += s->z[j];
}

static void back_lstm(const Sample *s, const Back *k)
{
	int64_t n = s->r.h;
	const double *i = k->kept, *o = i + n, *f = i + 2 * n, *g = i + 3 * n, *p = s->p;
	for (int64_t j = 0; j < n; j++) {
		double *dx = k->dx + j, y = act(s, 2, k->c[j]), before = at(k->c_before, j);
		dx[n] = s->h[j] * y * gate_slope(s, 0, o[j]);
		double dc = s->c[j] + s->h[j] * o[j] * slope(s, 2, y) + dx[n] * (p ? p[n + j] : 0);
		double df = dc * before, di = dc * g[j] - (s->r.couple ? df : 0);
		dx[0] = di * gate_slope(s, 0, i[j]);
		dx[2 * n] = s->r.couple ? 0 : df * gate_slope(s, 0, f[j]);
		dx[3 * n] = dc * i[j] * gate_slope(s, 1, g[j]);
		s->c[j] = dc * f[j] + (p ? dx[0] * p[j] + dx[2 * n] * p[2 * n + j] : 0);
		k->dp[j] += dx[0] * before;
		k->dp[n + j] += dx[n] * k->c[j];
		k->dp[2 * n + j] += dx[2 * n] * before;
	}
	multiply_back(s, k->dx, 0, 4 * n);
	memcpy(s->h, s->z, (size_t)n * sizeof *s->h);
}

static void back_sample(const Sample *s, const Op *op, EvalTensor *const *in, EvalTensor *const *out)
{
	static void (*const step[CELL_COUNT])(const Sample *, const Back *) = {back_rnn, back_gru, back_lstm};
	int64_t n = s->r.h, width = cell_info[s->r.cell].gates * n;
	const double *dy = given(op, in, RECG_DY), *all_c = given(op, in, RECG_ALL_C);
	for (int64_t i = s->n - 1; i >= 0; i--) {
		int64_t now = step_at(s, i) * s->r.b + s->b, before = step_at(s, i - 1) * s->r.b + s->b;
		Back k = {.kept = in[RECG_GATES]->f + now * s->r.kept, .c = row(all_c, now, n),
			.h = i ? row(in[RECG_Y]->f, before, n) : s->h0, .c_before = i ? row(all_c, before, n) : s->c0,
			.dx = out[RECG_DX]->f + now * width};
		if (s->r.cell == CELL_GRU)
			k.product = out[RECG_PRODUCT]->f + now * (s->r.after ? 3 : 1) * n;
		if (s->r.cell == CELL_LSTM)
			k.dp = out[RECG_DP]->f;
		for (int64_t j = 0; j < n; j++) {
			s->h[j] += dy ? dy[now * n + j] : 0;
			out[RECG_BEFORE]->f[now * n + j] = at(k.h, j);
		}
		step[s->r.cell](s, &k);
	}
	memcpy(out[RECG_DH0]->f + s->b * n, s->h, (size_t)n * sizeof *s->h);
	if (s->r.cell == CELL_LSTM)
		memcpy(out[RECG_DC0]->f + s->b * n, s->c, (size_t)n * sizeof *s->c);
}

RULE(recurrence_grad)
{
	Sample s = {.w = in[RECG_R]->f, .p = given(op, in, RECG_P)};
	if (!recurrence_read(op, &s.r, NULL))
		return false;
	const double *dh = given(op, in, RECG_DH), *dc = given(op, in, RECG_DC);
	int64_t n = s.r.h;
	s.h = NEW_N(e->arena, double, n + 1);
	s.c = NEW_N(e->arena, double, n + 1);
	s.z = NEW_N(e->arena, double, n + 1);
	for (s.b = 0; s.b < s.r.b; s.b++) {
		if (!read_steps(&s, op, in, RECG_LENGTHS))
			return false;
		s.h0 = row(given(op, in, RECG_H0), s.b, n);
		s.c0 = row(given(op, in, RECG_C0), s.b, n);
		for (int64_t j = 0; j < n; j++) {
			s.h[j] = dh ? dh[s.b * n + j] : 0;
			s.c[j] = dc ? dc[s.b * n + j] : 0;
		}
		back_sample(&s, op, in, out);
	}
	return true;
}
