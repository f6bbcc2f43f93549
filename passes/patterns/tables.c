/* passes/patterns/tables.c: finds tables of angles that hold every angle twice, and gives them without repetition.
 *
 * Rotary embeddings are exported with cos and sin for all dims of a head, while the rope op takes one angle per
 * pair of dims.  That both angles of a pair are equal must be proved, from how the table is made or from its
 * numbers. */
#include "passes/patterns/patterns.h"

enum { TABLE_MAX = 1 << 24, DEPTH_MAX = 16 };

static int64_t last_dim(const Value *v)
{
	return v->type.rank ? v->type.dim[v->type.rank - 1] : 1;
}

static bool has_equal_partners(const EvalTensor *t, bool pairs)
{
	int64_t d = t->type.dim[t->type.rank - 1], n = type_numel(&t->type);
	for (int64_t i = 0; i < n; i++)
		if (pairs ? i % 2 == 0 && t->f[i] != t->f[i + 1] : i % d < d / 2 && t->f[i] != t->f[i + d / 2])
			return false;
	return true;
}

/* Whether the last axis of v is known to hold every element twice. */
static bool is_doubled(Rewriter *r, Value *v, bool pairs)
{
	const Op *op = v->op;
	if (op->kind == OP_SLICE || op->kind == OP_GATHER) {
		Value *x = op->in[0].value;
		bool last = op->kind == OP_GATHER && axis_of(op) == x->type.rank - 1;
		return !last && last_dim(x) == last_dim(v) && is_doubled(r, x, pairs);
	}
	if (op->kind == OP_READ)
		return data_is_doubled(r, v, pairs);
	const EvalTensor *known = match_constant(r, v, TABLE_MAX);
	return known && has_equal_partners(known, pairs);
}

/* The operand that provides the op's last dim while the others are numbers; -1 when there is none. */
static int carrier(const Op *op)
{
	double number;
	if (op->kind == OP_RESHAPE || op->kind == OP_BROADCAST)
		return last_dim(op->in[0].value) == last_dim(op->out[0]) ? 0 : -1;
	if (!(op_info[op->kind].flags & EW) || op->n_in > 2)
		return -1;
	for (int i = 0; i < op->n_in; i++)
		if (op->n_in == 1 || match_number(op->in[1 - i].value, &number))
			return i;
	return -1;
}

static Value *once(Rewriter *r, Value *v, bool pairs, int depth);

static Value *once_carried(Rewriter *r, const Op *op, const Type *half, bool pairs, int depth)
{
	int carried = carrier(op);
	Value *x = once(r, op->in[carried].value, pairs, depth + 1), *in[2];
	if (!x)
		return NULL;
	if (op->kind == OP_RESHAPE)
		return ir_reshape(&r->b, x, half->rank, half->dim);
	if (op->kind == OP_BROADCAST)
		return ir_broadcast(&r->b, x, half);
	for (int i = 0; i < op->n_in; i++)
		in[i] = i == carried ? x : op->in[i].value;
	return ir_emit(&r->b, op->kind, op->n_in, in, op->attrs);
}

/* The value from which v was made by repeating everything: concat(x, x), or reshape(broadcast(x[..,1] to x[..,2])). */
static Value *written_twice(Rewriter *r, Value *v, const Type *half, bool pairs)
{
	const Op *op = v->op;
	if (!pairs)
		return op->kind == OP_CONCAT && op->n_in == 2 && op->in[0].value == op->in[1].value
			&& axis_of(op) == v->type.rank - 1 ? op->in[0].value : NULL;
	Op *wide = op->kind == OP_RESHAPE ? def_of(op->in[0].value, OP_BROADCAST) : NULL;
	Value *x = wide ? wide->in[0].value : NULL;
	if (!x || last_dim(wide->out[0]) != 2 || last_dim(x) != 1 || 2 * type_numel(&x->type) != type_numel(&v->type))
		return NULL;
	return ir_reshape(&r->b, x, half->rank, half->dim);
}

static Value *once(Rewriter *r, Value *v, bool pairs, int depth)
{
	Type half = v->type;
	if (depth > DEPTH_MAX || !v->type.rank || last_dim(v) % 2 || !dtype_is_float(v->type.dtype))
		return NULL;
	half.dim[half.rank - 1] /= 2;
	Value *x = written_twice(r, v, &half, pairs);
	if (x)
		return x;
	if (carrier(v->op) >= 0)
		return once_carried(r, v->op, &half, pairs, depth);
	if (!is_doubled(r, v, pairs))
		return NULL;
	int64_t start[IR_MAX_RANK] = {0}, step[IR_MAX_RANK];
	for (int k = 0; k < half.rank; k++)
		step[k] = pairs && k == half.rank - 1 ? 2 : 1;
	Attr *attrs = attr_ints(r->m, NULL, "starts", half.rank, start);
	attrs = attr_ints(r->m, attr_ints(r->m, attrs, "steps", half.rank, step), "sizes", half.rank, half.dim);
	return ir_emit(&r->b, OP_SLICE, 1, &v, attrs);
}

Value *pattern_angles_once(Rewriter *r, Value *table, bool pairs)
{
	return once(r, table, pairs, 0);
}
