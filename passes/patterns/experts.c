/* passes/patterns/experts.c: names lookups that copy the weights of experts for every token.
 *
 * A mixture of experts that indexes its weights by what the router chose, w[chosen], is a gather of matrices: each
 * token reads a copy of its own, forward and backward, where products by expert read each weight once.  The program
 * is right, and it is seldom what anybody wants, so one warning says what it costs. */
#include "passes/patterns/patterns.h"

enum { DEEPEST = 8 };

/* Whether v is made of parameters by moving them: one of matrices, a stack of them, a transpose. */
static bool is_weight(const Value *v, int depth)
{
	const Op *op = v->op;
	bool moves = op->kind == OP_CAST || op->kind == OP_TRANSPOSE || op->kind == OP_CONCAT;
	if (op->kind == OP_PARAM)
		return true;
	if ((!moves && !(op_info[op->kind].flags & VIEW)) || !op->n_in || depth > DEEPEST)
		return false;
	for (int i = 0; i < op->n_in; i++)
		if (!is_weight(op_in(op, i), depth + 1))
			return false;
	return true;
}

/* Whether op copies matrices of a stack [E, .., ..], more of them than the stack has. */
static bool copies_matrices(const Op *op)
{
	bool lookup = (op->kind == OP_GATHER && !attr_get_int(op->attrs, "axis", 0)) ||
		(op->kind == OP_GATHER_ND && !attr_get_int(op->attrs, "batch_dims", 0));
	if (!lookup || op_in(op, 0)->type.rank < 3)
		return false;
	OpKind from = op_in(op, 1)->op->kind;
	const Type *ids = &op_in(op, 1)->type;
	bool first = op->kind == OP_GATHER || (ids->rank && ids->dim[ids->rank - 1] == 1);
	bool known = from == OP_CONST || from == OP_READ;
	return first && !known && type_numel(&op->out[0]->type) > type_numel(&op_in(op, 0)->type)
		&& is_weight(op_in(op, 0), 0);
}

static int64_t bytes_of(const Value *v, const Options *o)
{
	DType t = v->type.dtype == DT_F32 ? o->precision.param_dtype : v->type.dtype;
	return type_numel(&v->type) * dtype_info[t].bytes;
}

void name_copied_weights(Module *m, const Options *o, Diag *d)
{
	const Op *first = NULL;
	int64_t n = 0, bytes = 0, weights = 0;
	IR_FOR_OPS(m, SEC_FORWARD, op) {
		if (!copies_matrices(op))
			continue;
		first = first ? first : op;
		n++;
		bytes += bytes_of(op->out[0], o);
		weights += bytes_of(op_in(op, 0), o);
	}
	if (!first)
		return;
	const Type *stack = &op_in(first, 0)->type;
	diag_warn(d, loc_where(m, first->loc), "weights of %lld experts are copied for every token that chooses them: %lld "
		"bytes by %lld such node%s, where the weights are %lld bytes; experts with static capacity copy none "
		"(docs/export.md, Mixtures of experts)", (long long)stack->dim[0], (long long)bytes, (long long)n,
		n > 1 ? "s" : "", (long long)weights);
}
