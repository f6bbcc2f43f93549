/* passes/patterns_rope.c: recognises rotary position embeddings: x * cos + rotate_half(x) * sin.
 *
 * cos and sin hold every angle twice, once for each half of the heads' dims; the op wants them once, so
 * it must be provable, from how they are made or from their numbers, that the halves are equal. */
#include "passes/patterns.h"

#include <string.h>

enum { TABLE_MAX = 1 << 24, DEPTH_MAX = 16 };

static bool splits_in_halves(const Op *split)
{
	int rank = split->in[0].value->type.rank;
	return split->n_out == 2 && axis_of(split) == rank - 1
		&& split->out[0]->type.dim[rank - 1] == split->out[1]->type.dim[rank - 1];
}

/* v without a transpose that leaves the last dim where it is. */
static Value *without_transpose(Value *v, int *perm)
{
	int rank = v->type.rank;
	for (int i = 0; i < rank; i++)
		perm[i] = i;
	if (!def_of(v, OP_TRANSPOSE))
		return v;
	perm_of(v->op, perm);
	return perm[rank - 1] == rank - 1 ? v->op->in[0].value : v;
}

/* What rotate_half turned: x, transposed by perm. */
typedef struct Turned { Value *x; int perm[IR_MAX_RANK]; Op *neg; } Turned;

/* v is concat(-x.1, x.0) of the halves of x along the last axis, each transposed alike. */
static bool match_rotate_half(const Value *v, Turned *t)
{
	Op *cat = def_of(v, OP_CONCAT);
	int perm[IR_MAX_RANK], rank = v->type.rank;
	if (!cat || cat->n_in != 2 || attr_get_int(cat->attrs, "axis", 0) != rank - 1)
		return false;
	t->neg = def_of(cat->in[0].value, OP_NEG);
	if (!t->neg)
		return false;
	Value *first = without_transpose(cat->in[1].value, t->perm);
	Value *second = without_transpose(t->neg->in[0].value, perm);
	Op *split = def_of(first, OP_SPLIT);
	if (!split || !splits_in_halves(split) || first != split->out[0] || second != split->out[1]
			|| memcmp(perm, t->perm, sizeof(int) * (size_t)rank))
		return false;
	t->x = split->in[0].value;
	return true;
}

static bool is_turned_whole(Value *v, const Turned *t)
{
	int perm[IR_MAX_RANK], rank = v->type.rank;
	return rank == t->x->type.rank && without_transpose(v, perm) == t->x
		&& !memcmp(perm, t->perm, sizeof(int) * (size_t)rank);
}

/* ---- tables of angles ---- */

static int64_t last_dim(const Value *v)
{
	return v->type.rank ? v->type.dim[v->type.rank - 1] : 1;
}

static bool has_equal_halves(const EvalTensor *t)
{
	int64_t d = t->type.dim[t->type.rank - 1], n = type_numel(&t->type);
	for (int64_t i = 0; i < n; i++)
		if (i % d < d / 2 && t->f[i] != t->f[i + d / 2])
			return false;
	return true;
}

/* The second half of v along the last axis is known to be the first again. */
static bool is_doubled(Rewriter *r, Value *v)
{
	const Op *op = v->op;
	if (op->kind == OP_SLICE || op->kind == OP_GATHER) {
		Value *x = op->in[0].value;
		bool last = op->kind == OP_GATHER
			&& axis_of(op) == x->type.rank - 1;
		return !last && last_dim(x) == last_dim(v) && is_doubled(r, x);
	}
	const EvalTensor *known = match_constant(r, v, TABLE_MAX);
	return known && has_equal_halves(known);
}

/* Which operand of an op carries its last dim while the others are numbers; -1 when none does. */
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

static Value *half_of(Rewriter *r, Value *v, int depth);

static Value *half_of_carried(Rewriter *r, const Op *op, int carried, const Type *half, int depth)
{
	Value *x = half_of(r, op->in[carried].value, depth + 1), *in[2];
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

/* The first half of v along the last axis when the second is equal; NULL when that is not known. */
static Value *half_of(Rewriter *r, Value *v, int depth)
{
	Op *op = v->op;
	Type half = v->type;
	if (depth > DEPTH_MAX || !v->type.rank || last_dim(v) % 2 || !dtype_is_float(v->type.dtype))
		return NULL;
	half.dim[half.rank - 1] /= 2;
	if (op->kind == OP_CONCAT && op->n_in == 2 && op->in[0].value == op->in[1].value
			&& axis_of(op) == v->type.rank - 1)
		return op->in[0].value;
	if (carrier(op) >= 0)
		return half_of_carried(r, op, carrier(op), &half, depth);
	if (!is_doubled(r, v))
		return NULL;
	int64_t start[IR_MAX_RANK] = {0}, step[IR_MAX_RANK];
	for (int k = 0; k < IR_MAX_RANK; k++)
		step[k] = 1;
	Attr *attrs = attr_ints(r->m, NULL, "starts", half.rank, start);
	attrs = attr_ints(r->m, attr_ints(r->m, attrs, "steps", half.rank, step), "sizes", half.rank, half.dim);
	return ir_emit(&r->b, OP_SLICE, 1, &v, attrs);
}

/* A table that broadcasts to x of four dims, as [T,R/2] or [B,T,R/2]; sets which layout x then has. */
static Value *emit_table(Rewriter *r, Value *table, const Type *x, int *layout)
{
	int64_t dim[4], shape[3];
	int extra = 4 - table->type.rank;
	for (int k = 0; k < 4; k++)
		dim[k] = k < extra ? 1 : table->type.dim[k - extra];
	if (dim[3] != x->dim[3] || (dim[0] != 1 && dim[0] != x->dim[0]))
		return NULL;
	if (dim[1] == 1 && dim[2] == x->dim[2])
		*layout = 0;
	else if (dim[2] == 1 && dim[1] == x->dim[1])
		*layout = 1;
	else
		return NULL;
	Value *half = half_of(r, table, 0);
	if (!half)
		return NULL;
	shape[0] = dim[0];
	shape[1] = dim[1] * dim[2];
	shape[2] = dim[3] / 2;
	return dim[0] == 1 ? ir_reshape(&r->b, half, 2, shape + 1) : ir_reshape(&r->b, half, 3, shape);
}

/* ---- the rules ---- */

static Value *try_rope(Rewriter *r, Op *op, Op *by_cos, Op *by_sin, int turned)
{
	int layout_cos = 0, layout_sin = 0, whole;
	Turned t;
	Value *rotated = by_sin->in[turned].value;
	if (!match_rotate_half(rotated, &t))
		return NULL;
	for (whole = 0; whole < 2 && !is_turned_whole(by_cos->in[whole].value, &t); whole++)
		;
	if (whole == 2)
		return NULL;
	Value *x = by_cos->in[whole].value, *cosine = by_cos->in[1 - whole].value;
	if (x->type.rank != 4) {
		pattern_refuse(r, op, "rope", "its operand has %d dims, not 4", x->type.rank);
		return NULL;
	}
	Op *inner[] = {by_cos, by_sin, rotated->op, t.neg};
	if (!pattern_is_closed(r, op, "rope", inner, COUNT_OF(inner)))
		return NULL;
	Value *table[2] = {emit_table(r, cosine, &x->type, &layout_cos),
		emit_table(r, by_sin->in[1 - turned].value, &x->type, &layout_sin)};
	if (!table[0] || !table[1] || layout_cos != layout_sin || table[0]->type.rank != table[1]->type.rank) {
		pattern_refuse(r, op, "rope", "the tables do not hold every angle of [T,D] twice, as far as is known");
		return NULL;
	}
	Attr *attrs = attr_int(r->m, NULL, "interleaved", 0);
	attrs = attr_int(r->m, attr_int(r->m, attrs, "layout", layout_cos), "inverse", 0);
	return ir_emit(&r->b, OP_ROPE, 3, (Value *[]){x, table[0], table[1]}, attrs);
}

Value *pattern_rope(Rewriter *r, Op *op)
{
	for (int i = 0; i < 2; i++) {
		Op *by_cos = def_of(op->in[i].value, OP_MUL), *by_sin = def_of(op->in[1 - i].value, OP_MUL);
		for (int turned = 0; by_cos && by_sin && turned < 2; turned++) {
			Value *now = try_rope(r, op, by_cos, by_sin, turned);
			if (now)
				return now;
		}
	}
	return NULL;
}

Value *pattern_rope_part(Rewriter *r, Op *op)
{
	Op *rope = op->n_in == 2 ? def_of(op->in[0].value, OP_ROPE) : NULL;
	Op *split = rope ? def_of(op_in(rope, 0), OP_SPLIT) : NULL;
	int rank = op->out[0]->type.rank;
	if (!split || split->n_out != 2 || op_in(rope, 0) != split->out[0] || op->in[1].value != split->out[1]
			|| rope->out[0]->n_uses != 1
			|| axis_of(op) != rank - 1
			|| axis_of(split) != rank - 1)
		return NULL;
	return ir_emit(&r->b, OP_ROPE, 3, (Value *[]){op_in(split, 0), op_in(rope, 1), op_in(rope, 2)}, rope->attrs);
}
