/* passes/loss/axis.c: finds which axis of logits counts the classes, as far as the graph shows it.
 *
 * PyTorch's cross_entropy takes axis 1, while language models put the classes last: [B,T,V].  The last axis is
 * accepted where a linear layer made it of features; logits are followed back through ops that keep the axis in
 * place. */
#include "ir/samples.h"
#include "passes/loss/loss.h"

/* Where axis `at` of a reshape's result was before the reshape; -1 = it is a new axis. */
static int before_reshape(const Type *from, const Type *to, int at)
{
	int64_t inner = 1, n = 1;
	for (int i = at + 1; i < to->rank; i++)
		inner *= to->dim[i];
	for (int i = from->rank - 1; i >= 0; n *= from->dim[i--])
		if (n == inner && from->dim[i] == to->dim[at])
			return i;
	return -1;
}

/* The operand that has the axis, with shapes aligned at the right; *at becomes the axis in that operand. */
static const Value *elementwise_operand(const Op *op, int *at)
{
	int rank = op->out[0]->type.rank;
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		int axis = *at - (rank - v->type.rank);
		if (v->op->kind != OP_PARAM && v->op->kind != OP_CONST && v->op->kind != OP_READ && axis >= 0
				&& v->type.dim[axis] == op->out[0]->type.dim[*at]) {
			*at = axis;
			return v;
		}
	}
	return NULL;
}

/* The value that has the axis one op further back; NULL: the axis begins here. */
static const Value *step_back(const Op *op, int *at)
{
	OpKind k = op->kind;
	const Value *x = op->n_in ? op_in(op, 0) : NULL;
	if (op_info[k].flags & EW || k == OP_BROADCAST)
		return elementwise_operand(op, at);
	if (k == OP_TRANSPOSE) {
		*at = (int)attr_find(op->attrs, "perm")->ints[*at];
		return x;
	}
	if (k == OP_RESHAPE) {
		*at = before_reshape(&x->type, &op->out[0]->type, *at);
		return *at < 0 ? NULL : x;
	}
	if (k == OP_DROPOUT || k == OP_SLICE || k == OP_STOP_GRADIENT || k == OP_LAYER_NORM || k == OP_RMS_NORM)
		return x;
	return NULL;
}

bool loss_classes_are_last(const Module *m, const Value *logits)
{
	Arena *scratch = arena_new();
	SampleScan *scan = samples_new(m, scratch, false);
	int at = logits->type.rank - 1;
	const Value *v = logits;
	for (const Value *next; (next = step_back(v->op, &at)); v = next)
		;
	bool made = v->op->kind == OP_MATMUL && at == v->type.rank - 1
		&& samples_of(scan, op_in(v->op, 1)).kind == SAMPLES_NONE;
	arena_free(scratch);
	return made;
}
