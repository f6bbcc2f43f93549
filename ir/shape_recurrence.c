/* ir/shape_recurrence.c: reads and checks the attributes of recurrent layers, and infers their shapes.
 *
 * What backward wants of a forward pass is f32 where tensors are 16 bits wide. */
#include "ir/recurrence.h"
#include "ir/shape.h"

#include <math.h>
#include <string.h>

const ActivationInfo activation_info[ACT_COUNT] = {
#define ACTIVATION(id, text, onnx, alpha, beta) {#id, text, onnx, alpha, beta},
#include "base/activations.def"
};

const CellInfo cell_info[CELL_COUNT] = {
	[CELL_RNN] = {"rnn", 1, 1, "tanh"},
	[CELL_GRU] = {"gru", 3, 2, "sigmoid,tanh"},
	[CELL_LSTM] = {"lstm", 4, 3, "sigmoid,tanh,tanh"},
};

int recurrence_results(const Op *op)
{
	static const int forward[CELL_COUNT] = {3, 3, 5}, backward[CELL_COUNT] = {3, 4, 5};
	const char *cell = attr_get_str(op->attrs, "cell", "");
	for (int c = 0; c < CELL_COUNT; c++)
		if (!strcmp(cell, cell_info[c].text))
			return (op->kind == OP_RECURRENCE ? forward : backward)[c];
	return 3;
}

static bool wrong(Buf *err, const Op *op, const char *attr, const char *value, const char *expected)
{
	return !err ? false : shape_wrong(err, "%s of %s is \"%s\", expected %s", attr, op_info[op->kind].text, value,
		expected);
}

static bool read_cell(const Op *op, Recurrence *r, Buf *err)
{
	const char *text = attr_get_str(op->attrs, "cell", "");
	for (int c = 0; c < CELL_COUNT; c++)
		if (!strcmp(text, cell_info[c].text)) {
			r->cell = (Cell)c;
			return true;
		}
	return wrong(err, op, "cell", text, "rnn, gru or lstm");
}

static bool read_activation(const char *text, size_t n, Activation *out)
{
	for (int a = 0; a < ACT_COUNT; a++)
		if (strlen(activation_info[a].text) == n && !memcmp(activation_info[a].text, text, n)) {
			*out = (Activation)a;
			return true;
		}
	return false;
}

static bool read_numbers(const Op *op, const char *name, int n, double *out, Buf *err)
{
	const Attr *a = attr_find(op->attrs, name);
	for (int i = 0; i < n; i++)
		out[i] = a && i < a->n ? a->floats[i] : 0;
	if (a && a->n != n)
		return err && shape_wrong(err, "%s of %s has %d numbers, expected one for each of %d activations", name,
			op_info[op->kind].text, a->n, n);
	return true;
}

/* Activations whose derivative could not be told from the value. */
static bool is_ambiguous(Activation a, double alpha)
{
	return (a == ACT_ELU || a == ACT_LEAKY_RELU || a == ACT_THRESHOLDED_RELU) && !(alpha >= 0);
}

static bool read_acts(const Op *op, Recurrence *r, Buf *err)
{
	const char *all = attr_get_str(op->attrs, "acts", ""), *at = all;
	r->n_acts = cell_info[r->cell].acts;
	for (int i = 0; i < r->n_acts; i++) {
		size_t n = strcspn(at, ",");
		bool last = i == r->n_acts - 1;
		if (!read_activation(at, n, &r->act[i]) || (at[n] == ',') == last)
			return wrong(err, op, "acts", all, cell_info[r->cell].defaults);
		at += n + 1;
	}
	if (!read_numbers(op, "alpha", r->n_acts, r->alpha, err) || !read_numbers(op, "beta", r->n_acts, r->beta, err))
		return false;
	for (int i = 0; i < r->n_acts; i++)
		if (is_ambiguous(r->act[i], r->alpha[i]))
			return err && shape_wrong(err, "%s of %s has alpha %g, expected 0 or more",
				activation_info[r->act[i]].text, op_info[op->kind].text, r->alpha[i]);
	return true;
}

bool recurrence_read(const Op *op, Recurrence *r, Buf *err)
{
	bool grad = op->kind == OP_RECURRENCE_GRAD;
	const Value *w = op_in(op, grad ? RECG_R : REC_R), *x = op_in(op, grad ? RECG_Y : REC_X);
	*r = (Recurrence){.reverse = attr_get_int(op->attrs, "reverse", 0), .after = attr_get_int(op->attrs, "after", 0),
		.couple = attr_get_int(op->attrs, "couple", 0), .clip = attr_get_float(op->attrs, "clip", INFINITY)};
	if (!read_cell(op, r, err) || !read_acts(op, r, err))
		return false;
	if (!(r->clip > 0))
		return err && shape_wrong(err, "clip of %s is %g, expected more than 0", op_info[op->kind].text, r->clip);
	if ((r->after && r->cell != CELL_GRU) || (r->couple && r->cell != CELL_LSTM))
		return err && shape_wrong(err, "%s of an %s: %s", r->after ? "after" : "couple", cell_info[r->cell].text,
			r->after ? "only a gru has it" : "only an lstm has it");
	if (x->type.rank != 3 || w->type.rank != 2)
		return err && shape_wrong(err, "%s needs [T,B,C] and [G*H,H], got %d and %d dims", op_info[op->kind].text,
			x->type.rank, w->type.rank);
	r->t = x->type.dim[0];
	r->b = x->type.dim[1];
	r->h = w->type.dim[1];
	r->kept = (cell_info[r->cell].gates + r->after) * r->h;
	return true;
}

/* ---- shapes ---- */

/* [T,B,c] */
static Type steps(const Recurrence *r, int64_t c, DType t)
{
	return type_tensor(t, 3, (int64_t[]){r->t, r->b, c});
}

static Type state(const Recurrence *r, DType t)
{
	return type_tensor(t, 2, (int64_t[]){r->b, r->h});
}

/* Checks the states, lengths and peepholes, which are operands h0, h0 + 1, lengths and p. */
static bool want_shared(Module *m, const Op *op, const Recurrence *r, int h0, int lengths, int p, DType t, Buf *err)
{
	Type s = state(r, t), peep = type_tensor(t, 1, (int64_t[]){3 * r->h});
	Type n = type_tensor(op_in(op, lengths) ? op_in(op, lengths)->type.dtype : DT_I64, 1, &r->b);
	if (r->cell != CELL_LSTM && (op_in(op, h0 + 1) || op_in(op, p)))
		return shape_wrong(err, "%s has %s, expected none of a cell that is %s", op_info[op->kind].text,
			op_in(op, p) ? "peepholes" : "a state c", cell_info[r->cell].text);
	return shape_want(m, err, op, h0, &s) && shape_want(m, err, op, h0 + 1, &s) && shape_want_index(err, op, lengths)
		&& shape_want(m, err, op, lengths, &n) && shape_want(m, err, op, p, &peep);
}

static Type weights(const Recurrence *r, DType t)
{
	return type_tensor(t, 2, (int64_t[]){cell_info[r->cell].gates * r->h, r->h});
}

RULE(recurrence)
{
	Recurrence r;
	DType t = shape_in(op, REC_X)->dtype, wide = shape_stat_dtype(t);
	if (!shape_want_float(err, op, REC_X) || !recurrence_read(op, &r, err))
		return false;
	Type w = weights(&r, t), x = steps(&r, w.dim[0], t), bias = type_tensor(t, 1, (int64_t[]){w.dim[0]});
	if (op_in(op, REC_BIAS) && !r.after)
		return shape_wrong(err, "recurrence has a bias, expected none without after=1");
	if (!shape_want(m, err, op, REC_R, &w) || !shape_want(m, err, op, REC_X, &x)
			|| !shape_want(m, err, op, REC_BIAS, &bias)
			|| !want_shared(m, op, &r, REC_H0, REC_LENGTHS, REC_P, t, err))
		return false;
	out[REC_Y] = steps(&r, r.h, t);
	out[REC_H] = state(&r, t);
	out[REC_GATES] = steps(&r, r.kept, wide);
	if (r.cell == CELL_LSTM) {
		out[REC_C] = state(&r, t);
		out[REC_ALL_C] = steps(&r, r.h, wide);
	}
	return true;
}

RULE(recurrence_grad)
{
	Recurrence r;
	DType t = shape_in(op, RECG_Y)->dtype, wide = shape_stat_dtype(t);
	if (!shape_want_float(err, op, RECG_Y) || !recurrence_read(op, &r, err))
		return false;
	Type w = weights(&r, t), y = steps(&r, r.h, t), gates = steps(&r, r.kept, wide), s = state(&r, t);
	Type all_c = steps(&r, r.h, wide);
	bool lstm = r.cell == CELL_LSTM;
	if (lstm != (op_in(op, RECG_ALL_C) != NULL) || (!lstm && op_in(op, RECG_DC)))
		return shape_wrong(err, "recurrence_grad of an %s %s all c", cell_info[r.cell].text, lstm ? "lacks" : "has");
	if (!shape_want(m, err, op, RECG_R, &w) || !shape_want(m, err, op, RECG_Y, &y)
			|| !shape_want(m, err, op, RECG_GATES, &gates) || !shape_want(m, err, op, RECG_DY, &y)
			|| !shape_want(m, err, op, RECG_DH, &s) || !shape_want(m, err, op, RECG_DC, &s)
			|| !shape_want(m, err, op, RECG_ALL_C, &all_c)
			|| !want_shared(m, op, &r, RECG_H0, RECG_LENGTHS, RECG_P, t, err))
		return false;
	out[RECG_DX] = steps(&r, w.dim[0], t);
	out[RECG_BEFORE] = y;
	out[RECG_DH0] = s;
	if (lstm)
		out[RECG_DC0] = s;
	if (lstm)
		out[RECG_DP] = type_tensor(t, 1, (int64_t[]){3 * r.h});
	if (r.cell == CELL_GRU)
		out[RECG_PRODUCT] = steps(&r, r.after ? w.dim[0] : r.h, t);
	return true;
}
