/* passes/canon/constants.c: rules of canon that compute what is known at compile time.
 *
 * A result becomes a literal when it has at most FOLD_MAX elements or when all its elements are one number; larger
 * results stay as the ops that compute them.  Constants of the model's file and parameters are never evaluated. */
#include "passes/canon/canon.h"

#include <string.h>

enum { FOLD_MAX = 4096, FOLD_OPERAND_MAX = 1 << 20 };

static bool has_literals_only(const Op *op)
{
	for (int i = 0; i < op->n_in; i++)
		if (op->in[i].value && !match_literal(op->in[i].value))
			return false;
	return op->n_in > 0;
}

Value *canon_fold(Rewriter *r, Op *op)
{
	/* A broadcast of a literal is kept: it is how a literal with repeated rows is written. */
	if (op_info[op->kind].flags & (EFFECT | SYM | SRC) || op_draws(op) || op->kind == OP_BROADCAST
			|| op->body_first || !has_literals_only(op))
		return NULL;
	Value *now[2] = {NULL, NULL};
	if (op->n_out > COUNT_OF(now))
		return NULL;
	for (int i = 0; i < op->n_out; i++) {
		EvalTensor *t = type_numel(&op->out[i]->type) > FOLD_MAX ? NULL
			: match_constant(r, op->out[i], FOLD_OPERAND_MAX);
		if (!t)
			return NULL;
		now[i] = rewrite_const(r, t);
	}
	for (int i = 1; i < op->n_out; i++)
		ir_replace_uses(op->out[i], now[i]);
	return now[0];
}

Value *canon_fold_splats(Rewriter *r, Op *op)
{
	if (!(op_info[op->kind].flags & EW) || type_numel(&op->out[0]->type) <= FOLD_MAX)
		return NULL;
	Value *in[3];
	for (int i = 0; i < op->n_in; i++)
		if (!const_splat(op->in[i].value))
			return NULL;
	for (int i = 0; i < op->n_in; i++)
		in[i] = rewrite_splat(r, const_splat(op->in[i].value), type_scalar(op->in[i].value->type.dtype));
	EvalTensor *t = match_constant(r, ir_emit(&r->b, op->kind, op->n_in, in, op->attrs), 1);
	return t ? rewrite_splat(r, const_splat(rewrite_const(r, t)), op->out[0]->type) : NULL;
}

/* The elements of a literal along an axis.  One stored element may stand for several. */
static bool repeats_along(const Op *op, const Attr *value, int axis)
{
	const Type *t = &op->out[0]->type;
	int64_t stride[IR_MAX_RANK], n = type_numel(t);
	type_strides(t, stride);
	for (int64_t i = 0; i < n; i++) {
		int64_t first = i - (i / stride[axis] % t->dim[axis]) * stride[axis];
		if (value->kind == ATTR_INTS ? value->ints[i] != value->ints[first]
				: memcmp(&value->floats[i], &value->floats[first], sizeof(double)) != 0)
			return false;
	}
	return true;
}

static Value *rows_of(Rewriter *r, const Op *op, const Attr *value, const Type *small)
{
	const Type *t = &op->out[0]->type;
	int64_t n = type_numel(t), stride[IR_MAX_RANK];
	EvalTensor kept = {.type = *small};
	int64_t *at = NEW_N(r->scratch, int64_t, n), count = 0;
	type_strides(t, stride);
	for (int64_t i = 0; i < n; i++) {
		bool keep = true;
		for (int k = 0; k < t->rank; k++)
			keep = keep && (small->dim[k] == t->dim[k] || !(i / stride[k] % t->dim[k]));
		if (keep)
			at[count++] = i;
	}
	if (value->kind == ATTR_INTS)
		kept.i = NEW_N(r->scratch, int64_t, count);
	else
		kept.f = NEW_N(r->scratch, double, count);
	for (int64_t i = 0; i < count; i++) {
		if (value->kind == ATTR_INTS)
			kept.i[i] = value->ints[at[i]];
		else
			kept.f[i] = value->floats[at[i]];
	}
	return rewrite_const(r, &kept);
}

Value *canon_shrink_const(Rewriter *r, Op *op)
{
	const Attr *value = attr_find(op->attrs, "value");
	Type small = op->out[0]->type;
	bool shrinks = false;
	if (value->n <= 1)
		return NULL;
	for (int k = 0; k < small.rank; k++)
		if (small.dim[k] > 1 && repeats_along(op, value, k)) {
			small.dim[k] = 1;
			shrinks = true;
		}
	if (!shrinks)
		return NULL;
	Value *rows = rows_of(r, op, value, &small);
	return const_splat(rows) ? rewrite_splat(r, const_splat(rows), op->out[0]->type)
		: ir_broadcast(&r->b, rows, &op->out[0]->type);
}

Value *canon_move_splat(Rewriter *r, Op *op)
{
	const Attr *value = const_splat(op->in[0].value);
	return value ? rewrite_splat(r, value, op->out[0]->type) : NULL;
}

Value *canon_concat_splats(Rewriter *r, Op *op)
{
	const Attr *first = op->n_in ? const_splat(op->in[0].value) : NULL;
	for (int i = 0; i < op->n_in; i++) {
		const Attr *a = const_splat(op->in[i].value);
		if (!a || a->kind != first->kind || (a->kind == ATTR_INTS ? a->ints[0] != first->ints[0]
				: memcmp(a->floats, first->floats, sizeof(double)) != 0))
			return NULL;
	}
	return first ? rewrite_splat(r, first, op->out[0]->type) : NULL;
}
