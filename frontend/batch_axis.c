/* frontend/batch_axis.c: along which axis of a value samples are counted.
 *
 * Followed backwards from a value to the inputs, op by op, each answer kept.  The samples may share their
 * axis with inner dims ([B,T,C] reshaped to [B*T,C]): the axis then counts B times as many rows, samples
 * first.  An op without a rule loses the axis; so does a value that mixes samples. */
#include "frontend/onnx_import.h"

#include <string.h>

enum { AXIS_NONE = -1, AXIS_LOST = -2 }; /* NONE: no samples in it (weights, masks) */

static int kept(Import *im, Value *v)
{
	return (int)(intptr_t)ptrmap_get(im->batch, v) - 3;
}

/* The new axis that begins where `axis` began and holds whole samples. */
static int through_reshape(const Import *im, const Type *from, const Type *to, int axis)
{
	int64_t outer = 1, n = 1;
	for (int i = 0; i < axis; i++)
		outer *= from->dim[i];
	for (int i = 0; i < to->rank; i++) {
		if (n == outer && to->dim[i] % im->m->batch == 0 && to->dim[i] >= im->m->batch)
			return i;
		n *= to->dim[i];
	}
	return AXIS_LOST;
}

static int through_transpose(const Op *op, int axis)
{
	const Attr *perm = attr_find(op->attrs, "perm");
	for (int i = 0; i < perm->n; i++)
		if (perm->ints[i] == axis)
			return i;
	return AXIS_LOST;
}

static int through_reduce(const Op *op, int axis)
{
	const Attr *axes = attr_find(op->attrs, "axes");
	int before = 0;
	for (int i = 0; i < axes->n; i++) {
		if (axes->ints[i] == axis)
			return AXIS_LOST;
		before += axes->ints[i] < axis;
	}
	return attr_get_int(op->attrs, "keepdims", 0) ? axis : axis - before;
}

/* The common axis of operands aligned at the right. */
static int through_broadcast(const Op *op, const int *axis)
{
	int rank = op->out[0]->type.rank, found = AXIS_NONE;
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		if (!v || axis[i] == AXIS_NONE)
			continue;
		int at = axis[i] == AXIS_LOST ? AXIS_LOST : axis[i] + rank - v->type.rank;
		if (at == AXIS_LOST || (found >= 0 && found != at))
			return AXIS_LOST;
		found = at;
	}
	return found;
}

/* Rows of the left operand, and batches of either, keep samples apart; its columns mix them. */
static int through_matmul(const Op *op, const int *axis)
{
	int rank = op->out[0]->type.rank, left = op_in(op, 0)->type.rank, right = op_in(op, 1)->type.rank;
	int at[2] = {axis[0] < 0 ? axis[0] : axis[0] + rank - left, axis[1] < 0 ? axis[1] : axis[1] + rank - right};
	bool ta = attr_get_int(op->attrs, "ta", 0);
	if (at[0] >= 0 && at[0] >= rank - 2)
		at[0] = at[0] == (ta ? rank - 1 : rank - 2) ? rank - 2 : AXIS_LOST;
	if (at[1] >= 0 && at[1] >= rank - 2)
		at[1] = AXIS_LOST;
	if (at[0] == AXIS_LOST || at[1] == AXIS_LOST || (at[0] >= 0 && at[1] >= 0 && at[0] != at[1]))
		return AXIS_LOST;
	return MAX(at[0], at[1]);
}

/* Rows chosen by ids: samples come from the ids, or from x when they are not along the axis of choice. */
static int through_gather(const Op *op, const int *axis)
{
	int along = (int)attr_get_int(op->attrs, "axis", 0), extra = op_in(op, 1)->type.rank - 1;
	if (axis[0] == AXIS_NONE)
		return axis[1] < 0 ? axis[1] : axis[1] + along;
	if (axis[0] < 0 || axis[0] == along || axis[1] != AXIS_NONE)
		return AXIS_LOST;
	return axis[0] < along ? axis[0] : axis[0] + extra;
}

static bool acts_along(const Op *op, int axis)
{
	const Attr *starts = attr_find(op->attrs, "starts"), *before = attr_find(op->attrs, "before");
	int rank = op->out[0]->type.rank;
	if (op->kind == OP_LAYER_NORM || op->kind == OP_RMS_NORM)
		return axis >= attr_get_int(op->attrs, "axis", 0);
	if (starts || before)
		return op_in(op, 0)->type.dim[axis] != op->out[0]->type.dim[axis];
	if (op->kind == OP_BATCH_NORM || op->kind == OP_CONV || op->kind == OP_CONV_GRAD_X || op->kind == OP_MAX_POOL
			|| op->kind == OP_AVG_POOL || op->kind == OP_ATTENTION || op->kind == OP_ROPE)
		return axis != 0;
	return attr_find(op->attrs, "axis") && attr_get_int(op->attrs, "axis", 0) == axis && rank;
}

static int of_op(const Import *im, const Op *op, const int *axis)
{
	if (op->kind == OP_INPUT)
		return op->sym->batched ? 0 : AXIS_NONE;
	if (op_info[op->kind].flags & EW || op->kind == OP_BROADCAST)
		return through_broadcast(op, axis);
	if (op->kind == OP_MATMUL)
		return through_matmul(op, axis);
	if (op->kind == OP_GATHER)
		return through_gather(op, axis);
	bool any = false;
	for (int i = 0; i < op->n_in; i++)
		any = any || axis[i] != AXIS_NONE;
	if (!any)
		return AXIS_NONE;
	if (axis[0] < 0)
		return AXIS_LOST;
	switch (op->kind) {
	case OP_RESHAPE: return through_reshape(im, &op_in(op, 0)->type, &op->out[0]->type, axis[0]);
	case OP_TRANSPOSE: return through_transpose(op, axis[0]);
	case OP_REDUCE_SUM: case OP_REDUCE_MEAN: case OP_REDUCE_MAX: case OP_REDUCE_MIN: case OP_REDUCE_PROD:
		return through_reduce(op, axis[0]);
	case OP_CONCAT: {
		int first = through_broadcast(op, axis);
		return first >= 0 && !acts_along(op, first) ? first : AXIS_LOST;
	}
	case OP_SPLIT: case OP_SLICE: case OP_PAD: case OP_CUMSUM: case OP_SOFTMAX: case OP_LOG_SOFTMAX:
	case OP_LAYER_NORM: case OP_RMS_NORM: case OP_BATCH_NORM: case OP_CONV: case OP_CONV_GRAD_X: case OP_MAX_POOL:
	case OP_AVG_POOL: case OP_ATTENTION: case OP_ROPE: case OP_DROPOUT: case OP_GATHER_ELEMENTS:
		return op->kind != OP_DROPOUT && acts_along(op, axis[0]) ? AXIS_LOST : axis[0];
	default: return AXIS_LOST;
	}
}

/* Operands first, without recursion: a chain may be as long as the model. */
int batch_axis(Import *im, Value *v)
{
	VEC(Value *) stack = {0};
	if (!im->m->batch)
		return AXIS_NONE;
	vec_push(im->arena, &stack, v);
	while (stack.n) {
		Value *top = stack.at[stack.n - 1];
		const Op *op = top->op;
		int *axis = NEW_N(im->arena, int, op->n_in + 1), waiting = 0;
		for (int i = 0; i < op->n_in; i++) {
			Value *in = op_in(op, i);
			axis[i] = in ? kept(im, in) : AXIS_NONE;
			if (in && axis[i] == -3) {
				vec_push(im->arena, &stack, in);
				waiting++;
			}
		}
		if (waiting)
			continue;
		ptrmap_put(im->batch, top, (void *)(intptr_t)(of_op(im, op, axis) + 3));
		stack.n--;
	}
	return MAX(kept(im, v), -1);
}
