/* ir/samples_same.c: along which axes a value that depends on no sample is constant, as far as the graph shows: for
 * example a mask or a table of positions that was repeated for each sample.
 *
 * The result has a bit for each axis, computed from the bits of the operands.  The result of an op without a rule
 * counts as constant along no axis. */
#include "ir/samples_same.h"

/* Whether operand i is constant along axis `at` of a result of this rank; dims are aligned at the right. */
static bool aligned(const Op *op, const Samples *in, int i, int rank, int at)
{
	const Value *x = op_in(op, i);
	return !x || samples_is_same(&in[i], x, at - (rank - x->type.rank));
}

static bool all_aligned(const Op *op, const Samples *in, int at)
{
	bool same = true;
	for (int i = 0; i < op->n_in; i++)
		same = same && aligned(op, in, i, op->out[0]->type.rank, at);
	return same;
}

static bool const_is_same(const Op *op, int at)
{
	const Attr *a = attr_find(op->attrs, "value");
	const Type *t = &op->out[0]->type;
	int64_t inner = 1, row = t->dim[at];
	for (int i = at + 1; i < t->rank; i++)
		inner *= t->dim[i];
	for (int64_t i = 0; a && a->n > 1 && i < a->n; i++) {
		int64_t first = i - i / inner % row * inner;
		if (a->kind == ATTR_INTS ? a->ints[i] != a->ints[first] : a->floats[i] != a->floats[first])
			return false;
	}
	return a;
}

/* Whether x is constant along the axis, for an axis that the reshape keeps. */
static bool reshape_is_same(const Op *op, const Samples *x, int at)
{
	const Type *from = &op_in(op, 0)->type, *to = &op->out[0]->type;
	int64_t before = 1, n = 1;
	for (int i = 0; i < at; i++)
		before *= to->dim[i];
	for (int i = 0; i < from->rank; n *= from->dim[i++])
		if (n == before && from->dim[i] == to->dim[at])
			return x->same >> i & 1;
	return false;
}

static bool reduce_is_same(const Op *op, const Samples *x, int at)
{
	const Attr *axes = attr_find(op->attrs, "axes");
	for (int i = 0; i < axes->n && !attr_get_int(op->attrs, "keepdims", 0); i++)
		at += axes->ints[i] <= at;
	return x->same >> at & 1;
}

static bool matmul_is_same(const Op *op, const Samples *in, int at)
{
	int rank = op->out[0]->type.rank;
	bool same = !op_in(op, 2) || op->n_in < 3 || aligned(op, in, 2, rank, at);
	if (at < rank - 2)
		return same && aligned(op, in, 0, rank, at) && aligned(op, in, 1, rank, at);
	int i = at == rank - 1; /* rows come from the left operand, columns from the right one */
	bool turned = attr_get_int(op->attrs, i ? "tb" : "ta", 0);
	return same && samples_is_same(&in[i], op_in(op, i), op_in(op, i)->type.rank - ((i == 0) == turned ? 1 : 2));
}

static bool gather_is_same(const Op *op, const Samples *in, int at)
{
	int axis = (int)attr_get_int(op->attrs, "axis", 0), extra = op_in(op, 1)->type.rank;
	if (at >= axis && at < axis + extra)
		return in[1].same >> (at - axis) & 1;
	return in[0].same >> (at < axis ? at : at - extra + 1) & 1;
}

/* Along the batch only.  Masks are aligned at the right with [B,H,T,S]; documents have the batch as their first
 * axis. */
static bool attention_is_same(const Op *op, const Samples *in, int at)
{
	const Value *documents = op->n_in > 4 ? op_in(op, 4) : NULL;
	bool same = at == 0 && !attr_find(op->attrs, "p") && (!documents || samples_is_same(&in[4], documents, 0));
	for (int i = 0; i < 4 && i < op->n_in; i++)
		same = same && aligned(op, in, i, 4, at);
	return same;
}

static bool is_same_along(const Op *op, const Samples *in, int at)
{
	if (op_info[op->kind].flags & EW || op->kind == OP_BROADCAST)
		return all_aligned(op, in, at);
	switch (op->kind) {
	case OP_CONST: return const_is_same(op, at);
	case OP_IOTA: return at != attr_get_int(op->attrs, "axis", 0);
	case OP_RESHAPE: return reshape_is_same(op, in, at);
	case OP_TRANSPOSE: return in[0].same >> attr_find(op->attrs, "perm")->ints[at] & 1;
	case OP_STOP_GRADIENT: case OP_SLICE: case OP_SPLIT: case OP_SOFTMAX: case OP_LOG_SOFTMAX:
		return in[0].same >> at & 1;
	case OP_ATTENTION: return attention_is_same(op, in, at);
	case OP_CONV: return at == 0 && samples_is_same(&in[0], op_in(op, 0), 0);
	case OP_CONCAT: return at != attr_get_int(op->attrs, "axis", 0) && all_aligned(op, in, at);
	case OP_LAYER_NORM: case OP_RMS_NORM:
		return at < attr_get_int(op->attrs, "axis", 0) && all_aligned(op, in, at);
	case OP_REDUCE_SUM: case OP_REDUCE_MEAN: case OP_REDUCE_MAX: case OP_REDUCE_MIN: return reduce_is_same(op, in, at);
	case OP_MATMUL: return matmul_is_same(op, in, at);
	case OP_GATHER: return gather_is_same(op, in, at);
	default: return false;
	}
}

bool samples_is_same(const Samples *x, const Value *v, int axis)
{
	return axis < 0 || v->type.dim[axis] == 1 || x->same >> axis & 1;
}

unsigned samples_same_axes(const Value *v, const Samples *in)
{
	unsigned same = 0;
	bool ruled = v->index == 0 || v->op->kind == OP_SPLIT; /* the rules are those of first results, and of parts */
	for (int at = 0; ruled && at < v->type.rank; at++)
		same |= (unsigned)(v->type.dim[at] == 1 || is_same_along(v->op, in, at)) << at;
	return same;
}
