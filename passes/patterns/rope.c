/* passes/patterns/rope.c: recognises rotary position embeddings: x * cos + turned(x) * sin.
 *
 * turned(x) is (-b, a) if x is (a, b).  a and b are the halves of the last dim (Llama, GPT-NeoX), or its even and
 * odd elements (GPT-J); the op calls the latter form interleaved. */
#include "passes/patterns/patterns.h"

#include <string.h>

static bool splits_in_halves(const Op *split)
{
	int rank = split->in[0].value->type.rank;
	return split->n_out == 2 && axis_of(split) == rank - 1
		&& split->out[0]->type.dim[rank - 1] == split->out[1]->type.dim[rank - 1];
}

/* v without a transpose that keeps the last dim in place. */
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

/* What was rotated: x, transposed by perm. */
typedef struct Turned { Value *x; int perm[IR_MAX_RANK]; bool interleaved; Op *neg, *cat; } Turned;

/* Matches v = concat(-x.1, x.0), where x.0 and x.1 are the halves of x along the last axis, both transposed alike. */
static bool match_rotate_half(const Value *v, Turned *t)
{
	int perm[IR_MAX_RANK], rank = v->type.rank;
	t->cat = def_of(v, OP_CONCAT);
	if (!t->cat || t->cat->n_in != 2 || axis_of(t->cat) != rank - 1)
		return false;
	t->interleaved = false;
	t->neg = def_of(t->cat->in[0].value, OP_NEG);
	if (!t->neg)
		return false;
	Value *first = without_transpose(t->cat->in[1].value, t->perm);
	Value *second = without_transpose(t->neg->in[0].value, perm);
	Op *split = def_of(first, OP_SPLIT);
	if (!split || !splits_in_halves(split) || first != split->out[0] || second != split->out[1]
			|| memcmp(perm, t->perm, sizeof(int) * (size_t)rank))
		return false;
	t->x = split->in[0].value;
	return true;
}

/* Matches v = every second element of the last axis of x, starting at `first`: x, else NULL. */
static Value *match_every_second(const Value *v, int64_t first)
{
	Op *slice = def_of(v, OP_SLICE);
	int rank = v->type.rank;
	if (!slice)
		return NULL;
	const Type *x = &slice->in[0].value->type;
	const int64_t *start = ints_of(slice, "starts", rank), *step = ints_of(slice, "steps", rank);
	for (int k = 0; k < rank - 1; k++)
		if (v->type.dim[k] != x->dim[k] || step[k] != 1)
			return NULL;
	return start[rank - 1] == first && step[rank - 1] == 2 && 2 * v->type.dim[rank - 1] == x->dim[rank - 1]
		? slice->in[0].value : NULL;
}

/* The operand of a reshape that appends a dim of 1. */
static Value *without_last_one(Value *v)
{
	Op *op = def_of(v, OP_RESHAPE);
	Type t = v->type;
	if (!op || t.rank < 2 || t.dim[--t.rank] != 1)
		return NULL;
	return type_same_shape(&t, &op->in[0].value->type) ? op->in[0].value : NULL;
}

/* Matches v = stack(-odd(x), even(x)) along a new last axis, flattened; both transposed alike. */
static bool match_rotate_pairs(const Value *v, Turned *t)
{
	int perm[IR_MAX_RANK], rank = v->type.rank;
	Op *flat = def_of(v, OP_RESHAPE);
	t->cat = flat ? def_of(flat->in[0].value, OP_CONCAT) : NULL;
	if (!t->cat || t->cat->n_in != 2 || t->cat->out[0]->type.rank != rank + 1 || axis_of(t->cat) != rank)
		return false;
	Value *negated = without_last_one(t->cat->in[0].value), *even = without_last_one(t->cat->in[1].value);
	t->interleaved = true;
	t->neg = def_of(negated, OP_NEG);
	if (!t->neg || !even)
		return false;
	t->x = match_every_second(without_transpose(even, t->perm), 0);
	Value *other = match_every_second(without_transpose(t->neg->in[0].value, perm), 1);
	return t->x && t->x == other && !memcmp(perm, t->perm, sizeof(int) * (size_t)rank);
}

static bool is_turned_whole(Value *v, const Turned *t)
{
	int perm[IR_MAX_RANK], rank = v->type.rank;
	return rank == t->x->type.rank && without_transpose(v, perm) == t->x
		&& !memcmp(perm, t->perm, sizeof(int) * (size_t)rank);
}

/* ---- the rules ---- */

/* A table that broadcasts to x of four dims, as [T,R/2] or [B,T,R/2]; *layout is set to the layout that x then has. */
static Value *emit_table(Rewriter *r, Value *table, const Type *x, bool interleaved, int *layout)
{
	int64_t dim[4], shape[3];
	int extra = 4 - table->type.rank;
	for (int k = 0; k < 4; k++)
		dim[k] = k < extra ? 1 : table->type.dim[k - extra];
	if (extra < 0 || dim[3] != x->dim[3] || (dim[0] != 1 && dim[0] != x->dim[0]))
		return NULL;
	if (dim[1] == 1 && dim[2] == x->dim[2])
		*layout = 0;
	else if (dim[2] == 1 && dim[1] == x->dim[1])
		*layout = 1;
	else
		return NULL;
	Value *half = pattern_angles_once(r, table, interleaved);
	if (!half)
		return NULL;
	shape[0] = dim[0];
	shape[1] = dim[1] * dim[2];
	shape[2] = dim[3] / 2;
	return dim[0] == 1 ? ir_reshape(&r->b, half, 2, shape + 1) : ir_reshape(&r->b, half, 3, shape);
}

static Value *try_rope(Rewriter *r, Op *op, Op *by_cos, Op *by_sin, int turned)
{
	int layout_cos = 0, layout_sin = 0, whole;
	Turned t;
	Value *rotated = by_sin->in[turned].value;
	if (!match_rotate_half(rotated, &t) && !match_rotate_pairs(rotated, &t))
		return NULL;
	for (whole = 0; whole < 2 && !is_turned_whole(by_cos->in[whole].value, &t); whole++)
		;
	if (whole == 2)
		return NULL;
	Value *x = by_cos->in[whole].value, *cosine = by_cos->in[1 - whole].value;
	if (x->type.rank != 4 || !type_equal(&x->type, &op->out[0]->type)) {
		pattern_refuse(r, op, "rope", "its operand has %d dims, not 4", x->type.rank);
		return NULL;
	}
	Op *inner[] = {by_cos, by_sin, rotated->op, t.cat, t.cat->in[0].value->op, t.neg};
	if (!pattern_is_closed(r, op, "rope", inner, COUNT_OF(inner)))
		return NULL;
	Value *table[2] = {emit_table(r, cosine, &x->type, t.interleaved, &layout_cos),
		emit_table(r, by_sin->in[1 - turned].value, &x->type, t.interleaved, &layout_sin)};
	if (!table[0] || !table[1] || layout_cos != layout_sin || table[0]->type.rank != table[1]->type.rank) {
		pattern_refuse(r, op, "rope", "the tables do not hold every angle of [T,D] twice, as far as is known");
		return NULL;
	}
	Attr *attrs = attr_int(r->m, NULL, "interleaved", t.interleaved);
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
			|| rope->out[0]->n_uses != 1 || axis_of(op) != rank - 1 || axis_of(split) != rank - 1)
		return NULL;
	return ir_emit(&r->b, OP_ROPE, 3, (Value *[]){op_in(split, 0), op_in(rope, 1), op_in(rope, 2)}, rope->attrs);
}
