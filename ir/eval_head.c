/* ir/eval_head.c: evaluates loss heads: logits, losses and gradients, a row at a time.
 *
 * Where the separate ops would round logits and their gradients to 16 bits, they are rounded here. */
#include "ir/eval.h"

#include <math.h>

typedef struct Head {
	const EvalTensor *h, *w;
	const int64_t *labels;
	const double *weight, *bias;   /* per class; NULL = 1 each, none */
	int64_t rows, c, d, w_class, w_inner, ignore; /* w_class, w_inner: strides of w */
	double smoothing, all;         /* all: the sum of all weights */
	DType logits;
	bool round, round_d;           /* logits; what is multiplied to gradients */
	double *x;                     /* a row */
} Head;

static Head head_of(EvalEnv *e, const Op *op, EvalTensor *const *in, int first)
{
	bool tb = attr_get_int(op->attrs, "tb", 0);
	Head a = {.h = in[first], .w = in[first + 1], .labels = in[first + 2]->i,
		.weight = op_in(op, first + 3) ? in[first + 3]->f : NULL,
		.bias = op_in(op, first + 4) ? in[first + 4]->f : NULL};
	const Attr *to = attr_find(op->attrs, "to");
	a.c = a.w->type.dim[tb ? 0 : 1];
	a.d = a.w->type.dim[tb ? 1 : 0];
	a.rows = type_numel(&in[first + 2]->type);
	a.w_class = tb ? a.d : 1;
	a.w_inner = tb ? 1 : a.c;
	a.ignore = attr_get_int(op->attrs, "ignore_index", -100);
	a.smoothing = attr_get_float(op->attrs, "smoothing", 0);
	a.logits = to ? to->dtype : a.h->type.dtype;
	a.round = eval_rounds(e, a.logits);
	a.round_d = eval_rounds(e, a.h->type.dtype);
	a.x = NEW_N(e->arena, double, a.c);
	for (int64_t c = 0; c < a.c; c++)
		a.all += a.weight ? a.weight[c] : 1;
	return a;
}

/* Makes the logits of row r; returns their log-sum-exp. */
static double logits_of(const Head *a, int64_t r)
{
	double most = -INFINITY, sum = 0;
	for (int64_t c = 0; c < a->c; c++) {
		double x = a->bias ? a->bias[c] : 0;
		for (int64_t k = 0; k < a->d; k++)
			x += a->h->f[r * a->d + k] * a->w->f[c * a->w_class + k * a->w_inner];
		a->x[c] = eval_fit(a->logits, (Scalar){.f = x}, a->round).f;
		most = fmax(most, a->x[c]);
	}
	for (int64_t c = 0; c < a->c; c++)
		sum += exp(a->x[c] - most);
	return most + log(sum);
}

/* Adds the loss and the weight of row r; false: its label is out of range. */
static bool add_loss(const Head *a, int64_t r, double lse, EvalTensor *const *out)
{
	int64_t y = a->labels[r];
	if (y == a->ignore)
		return true;
	if (y < 0 || y >= a->c)
		return false;
	double w = a->weight ? a->weight[y] : 1;
	out[0]->f[0] += (1 - a->smoothing) * w * (lse - a->x[y]);
	for (int64_t c = 0; c < a->c && a->smoothing > 0; c++)
		out[0]->f[0] += a->smoothing / (double)a->c * (a->weight ? a->weight[c] : 1) * (lse - a->x[c]);
	out[1]->f[0] += w;
	return true;
}

RULE(linear_cross_entropy)
{
	Head a = head_of(e, op, in, 0);
	for (int64_t r = 0; r < a.rows; r++) {
		double lse = logits_of(&a, r);
		int64_t best = 0;
		if (!add_loss(&a, r, lse, out))
			return false;
		for (int64_t c = 1; c < a.c; c++)
			best = a.x[c] > a.x[best] ? c : best;
		out[2]->i[r] = best;
	}
	return true;
}

/* Turns the logits of row r into their gradient. */
static void gradient_of(const Head *a, int64_t r, double lse, double dloss)
{
	int64_t y = a->labels[r];
	bool counts = y != a->ignore;
	double w = counts ? (1 - a->smoothing) * (a->weight ? a->weight[y] : 1) : 0;
	double even = counts ? a->smoothing / (double)a->c : 0;
	for (int64_t c = 0; c < a->c; c++) {
		double dx = exp(a->x[c] - lse) * (w + even * a->all) - even * (a->weight ? a->weight[c] : 1);
		double d = eval_fit(a->logits, (Scalar){.f = dloss * (dx - (c == y ? w : 0))}, a->round).f;
		a->x[c] = eval_fit(a->h->type.dtype, (Scalar){.f = d}, a->round_d).f;
	}
}

static void add_gradients(const Head *a, int64_t r, double *dh, double *dw, double *db)
{
	for (int64_t c = 0; c < a->c; c++) {
		for (int64_t k = 0; k < a->d; k++) {
			int64_t at = c * a->w_class + k * a->w_inner;
			if (dh)
				dh[r * a->d + k] += a->x[c] * a->w->f[at];
			if (dw)
				dw[at] += a->x[c] * a->h->f[r * a->d + k];
		}
		if (db)
			db[c] += a->x[c];
	}
}

RULE(linear_cross_entropy_grad)
{
	Head a = head_of(e, op, in, 1);
	int n = 2;
	double *dh = attr_get_int(op->attrs, "dh", 0) ? out[n++]->f : NULL;
	double *dw = attr_get_int(op->attrs, "dw", 0) ? out[n++]->f : NULL;
	double *db = attr_get_int(op->attrs, "db", 0) ? out[n++]->f : NULL;
	for (int64_t i = 0; op_in(op, 6) && i < type_numel(&in[6]->type); i++)
		dw[i] = in[6]->f[i];
	for (int64_t r = 0; r < a.rows; r++) {
		double lse = logits_of(&a, r);
		if (!add_loss(&a, r, lse, out))
			return false;
		gradient_of(&a, r, lse, in[0]->f[0]);
		add_gradients(&a, r, dh, dw, db);
	}
	return true;
}
