/* frontend/onnx_ops_known.c: imports the ops how long whose result is depends on values: these must be known at compile
 * time, as they are where a model computes them from its shapes and constants. */
#include "frontend/onnx_import.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RESULT_MAX = 1 << 16 };

static EvalTensor *known_operand(Node *n)
{
	EvalTensor *t = node_known(n, 0);
	if (!node_in(n, 0))
		node_error(n, "operand 0 is missing");
	else if (!t)
		node_refuse(n, "how long its result is depends on values, and every shape must be known when compiling: write "
			"it with masks (torch.where, one_hot), a mixture of experts with static capacity (docs/export.md, "
			"Mixtures of experts)");
	else if (type_numel(&t->type) > RESULT_MAX)
		node_refuse(n, "its operand has more than %d elements", RESULT_MAX);
	return t && type_numel(&t->type) <= RESULT_MAX ? t : NULL;
}

/* The indices of all elements that are not 0, one row for each dim. */
bool import_non_zero(Node *n)
{
	EvalTensor *t = known_operand(n);
	if (!t)
		return false;
	int rank = t->type.rank; /* 0: a result without rows */
	int64_t numel = type_numel(&t->type), stride[IR_MAX_RANK] = {1}, dim[2] = {rank, 0}, k = 0;
	bool floats = dtype_is_float(t->type.dtype);
	type_strides(&t->type, stride);
	for (int64_t i = 0; i < numel; i++)
		dim[1] += floats ? t->f[i] != 0 : t->i[i] != 0;
	int64_t *at = NEW_N(n->im->arena, int64_t, rank * dim[1] + 1);
	for (int64_t i = 0; i < numel; i++) {
		if (floats ? t->f[i] == 0 : t->i[i] == 0)
			continue;
		for (int d = 0; d < rank; d++)
			at[d * dim[1] + k] = i / stride[d] % t->type.dim[d];
		k++;
	}
	n->out[0] = emit_ints(n->b, 2, dim, DT_I64, at);
	return true;
}

/* ---- Unique ---- */

/* The slices of a tensor along an axis. */
typedef struct Slices {
	const EvalTensor *t;
	int64_t outer, n, inner;
} Slices;

static int compare_numbers(double a, double b)
{
	return isnan(a) || isnan(b) ? isnan(a) - isnan(b) : (a > b) - (a < b);
}

static int compare_slices(const Slices *s, int64_t a, int64_t b)
{
	for (int64_t o = 0; o < s->outer; o++)
		for (int64_t i = 0; i < s->inner; i++) {
			int64_t x = (o * s->n + a) * s->inner + i, y = (o * s->n + b) * s->inner + i;
			int c = dtype_is_float(s->t->type.dtype) ? compare_numbers(s->t->f[x], s->t->f[y])
				: (s->t->i[x] > s->t->i[y]) - (s->t->i[x] < s->t->i[y]);
			if (c)
				return c;
		}
	return 0;
}

static int by_slice(const void *a, const void *b, void *slices)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	int c = compare_slices(slices, x, y);
	return c ? c : (x > y) - (x < y);
}

static int by_first(const void *a, const void *b, void *first)
{
	int64_t x = ((const int64_t *)first)[*(const int64_t *)a], y = ((const int64_t *)first)[*(const int64_t *)b];
	return (x > y) - (x < y);
}

/* The groups of equal slices: the first slice of each group, in the order of the result; the group of each slice;
 * and how many are in each group. */
typedef struct Groups { int64_t n, *first, *of, *count; } Groups;

static Groups groups_of(Arena *a, Slices *s, bool sorted)
{
	int64_t *order = NEW_N(a, int64_t, s->n + 1), *least = NEW_N(a, int64_t, s->n + 1);
	Groups g = {0, NEW_N(a, int64_t, s->n + 1), NEW_N(a, int64_t, s->n + 1), NEW_N(a, int64_t, s->n + 1)};
	for (int64_t i = 0; i < s->n; i++)
		order[i] = i;
	qsort_r(order, (size_t)s->n, sizeof(*order), by_slice, s);
	for (int64_t i = 0; i < s->n; i++) {
		if (i == 0 || compare_slices(s, order[i - 1], order[i]))
			least[g.n++] = order[i];
		g.of[order[i]] = g.n - 1;
	}
	int64_t *rank = NEW_N(a, int64_t, g.n + 1), *place = NEW_N(a, int64_t, g.n + 1);
	for (int64_t k = 0; k < g.n; k++)
		rank[k] = k;
	if (!sorted)
		qsort_r(rank, (size_t)g.n, sizeof(*rank), by_first, least);
	for (int64_t k = 0; k < g.n; k++) {
		place[rank[k]] = k;
		g.first[k] = least[rank[k]];
	}
	for (int64_t i = 0; i < s->n; i++) {
		g.of[i] = place[g.of[i]];
		g.count[g.of[i]]++;
	}
	return g;
}

/* Y, the first index of each slice of Y in x, the index in Y of each slice of x, and how often each is in x. */
bool import_unique(Node *n)
{
	EvalTensor *t = known_operand(n);
	int axis = t && node_has(n, "axis") ? node_axis(n, node_int(n, "axis", 0), t->type.rank) : 0;
	if (!t || axis < 0)
		return false;
	int64_t numel = type_numel(&t->type);
	Slices s = {t, 1, numel, 1};
	Value *x = node_has(n, "axis") ? n->in[0] : ir_reshape(n->b, n->in[0], 1, &numel);
	s.n = x->type.dim[axis];
	for (int i = 0; i < x->type.rank; i++)
		*(i < axis ? &s.outer : &s.inner) *= i == axis ? 1 : x->type.dim[i];
	Groups g = groups_of(n->im->arena, &s, node_int(n, "sorted", 1));
	Value *out[4] = {NULL, emit_ints(n->b, 1, &g.n, DT_I64, g.first), emit_ints(n->b, 1, &s.n, DT_I64, g.of),
		emit_ints(n->b, 1, &g.n, DT_I64, g.count)};
	out[0] = ir_emit(n->b, OP_GATHER, 2, (Value *[]){x, out[1]}, attr_int(n->b->m, NULL, "axis", axis));
	for (int i = 0; i < n->n_out && i < COUNT_OF(out); i++)
		n->out[i] = out[i];
	return true;
}
