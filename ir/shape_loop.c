/* ir/shape_loop.c: the types of loops, which follow from their bodies. */
#include "ir/shape.h"

RULE(argument)
{
	if (!given)
		return shape_wrong(err, "an argument must say its type");
	if (given->kind != TYPE_TENSOR || given->layout)
		return shape_wrong(err, "an argument must be a row-major tensor");
	out[0] = *given;
	return true;
}

static bool check_counts(const Op *op, Buf *err)
{
	int64_t states = attr_get_int(op->attrs, "states", 0), stacked = attr_get_int(op->attrs, "stacked", 0);
	if (loop_steps(op) < 1)
		return shape_wrong(err, "loop has %lld steps, expected at least 1", (long long)loop_steps(op));
	if (states < 0 || stacked < 0 || states > op->n_in || stacked > op->n_in - states)
		return shape_wrong(err, "loop has %d operand(s), expected at least its %lld states and %lld stacked ones",
			op->n_in, (long long)states, (long long)stacked);
	for (int i = 0; i < op->n_in; i++)
		if (!op_in(op, i) || op_in(op, i)->type.kind != TYPE_TENSOR)
			return shape_wrong(err, "operand %d of loop must be a tensor", i + 1);
	return true;
}

/* What a step sees of operand i; false if it has no slice for each step. */
static bool argument_type(Module *m, const Op *op, int i, Type *out, Buf *err)
{
	const Type *t = shape_in(op, i);
	bool stacked = i >= loop_states(op) && i < loop_states(op) + loop_stacked(op);
	*out = *t;
	if (!stacked)
		return true;
	if (!t->rank || t->dim[0] != loop_steps(op))
		return shape_wrong(err, "operand %d of loop is %s, expected a first axis of its %lld steps", i + 1,
			type_str(m->arena, t), (long long)loop_steps(op));
	*out = loop_slice(t);
	return true;
}

static bool check_arguments(Module *m, const Op *op, Buf *err)
{
	bool *seen = NEW_N(m->arena, bool, op->n_in + 1);
	Type want;
	for (int i = 0; i < op->n_in; i++)
		if (!argument_type(m, op, i, &want, err))
			return false;
	IR_FOR_OPS(op->body, SEC_FORWARD, arg) {
		if (arg->kind != OP_ARGUMENT)
			continue;
		int64_t k = attr_get_int(arg->attrs, "index", -1);
		if (k < 0 || k >= op->n_in || seen[k])
			return shape_wrong(err, "argument %lld of the body of loop %s", (long long)k,
				k < 0 || k >= op->n_in ? "stands for no operand" : "stands there twice");
		seen[k] = true;
		argument_type(m, op, (int)k, &want, err);
		if (!type_equal(&arg->out[0]->type, &want))
			return shape_wrong(err, "argument %lld of the body of loop is %s, expected %s", (long long)k,
				type_str(m->arena, &arg->out[0]->type), type_str(m->arena, &want));
	}
	return true;
}

RULE(loop)
{
	const Op *yield = op->body ? loop_yield(op) : NULL;
	if (!yield)
		return shape_wrong(err, "loop has no body that ends with a yield");
	if (!check_counts(op, err) || !check_arguments(m, op, err))
		return false;
	int states = loop_states(op);
	if (yield->n_in < states || !yield->n_in)
		return shape_wrong(err, "the body of loop yields %d value(s), expected at least one, and its %d states",
			yield->n_in, states);
	for (int i = 0; i < yield->n_in; i++) {
		const Type *t = op_in(yield, i) ? &op_in(yield, i)->type : NULL;
		if (!t || t->kind != TYPE_TENSOR || (i >= states && t->rank == IR_MAX_RANK))
			return shape_wrong(err, "value %d that the body of loop yields is no tensor of at most %d dims", i + 1,
				IR_MAX_RANK - (i >= states));
		out[i] = i < states ? *t : loop_stack(t, loop_steps(op));
		if (i < states && !type_equal(t, shape_in(op, i)))
			return shape_wrong(err, "state %d of loop is %s, but its body yields %s", i + 1,
				type_str(m->arena, shape_in(op, i)), type_str(m->arena, t));
	}
	return true;
}
