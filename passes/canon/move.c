/* passes/canon/move.c: rules of canon for reshape, transpose, broadcast and trivial reductions.
 *
 * The normal form: a reshape that only adds or removes dims of 1 stands above a transpose, a transpose stands above
 * a broadcast, and two neighbours of the same kind are merged into one.  This brings ops next to each other that
 * cancel. */
#include "passes/canon/canon.h"

#include <string.h>

static const Type *type_of(const Op *op)
{
	return &op->out[0]->type;
}

/* ---- reshape ---- */

Value *canon_reshape_same(Rewriter *r, Op *op)
{
	(void)r;
	return type_same_shape(&op->in[0].value->type, type_of(op)) ? op->in[0].value : NULL;
}

Value *canon_reshape_twice(Rewriter *r, Op *op)
{
	Op *inner = def_of(op->in[0].value, OP_RESHAPE);
	return inner ? ir_reshape(&r->b, inner->in[0].value, type_of(op)->rank, type_of(op)->dim) : NULL;
}

/* Matches the dims of `to` to those of `from` when they differ by dims of 1 only: of[i] is the dim of
 * `from` that is dim i of `to`, -1 for a new one. */
static bool match_squeezed(const Type *from, const Type *to, int *of)
{
	int k = 0;
	for (int i = 0; i < to->rank; i++) {
		while (k < from->rank && from->dim[k] == 1 && to->dim[i] != 1)
			k++;
		if (k < from->rank && from->dim[k] == to->dim[i])
			of[i] = k++;
		else if (to->dim[i] == 1)
			of[i] = -1;
		else
			return false;
	}
	for (; k < from->rank; k++)
		if (from->dim[k] != 1)
			return false;
	return true;
}

Value *canon_reshape_squeezed(Rewriter *r, Op *op)
{
	Op *t = def_of(op->in[0].value, OP_TRANSPOSE);
	const Type *to = type_of(op);
	int of[IR_MAX_RANK], perm[IR_MAX_RANK], now[IR_MAX_RANK], rank = 0;
	int64_t dim[IR_MAX_RANK];
	if (!t || !match_squeezed(type_of(t), to, of))
		return NULL;
	/* the new dims of 1 come first in the operand, followed by its own dims in their order */
	perm_of(t, perm);
	for (int i = 0; i < to->rank; i++)
		if (of[i] < 0) {
			now[i] = rank;
			dim[rank++] = 1;
		}
	for (int k = 0; k < t->in[0].value->type.rank; k++)
		for (int i = 0; i < to->rank; i++)
			if (of[i] >= 0 && perm[of[i]] == k) {
				now[i] = rank;
				dim[rank++] = to->dim[i];
			}
	return ir_transpose(&r->b, ir_reshape(&r->b, t->in[0].value, rank, dim), now);
}

/* Splits the dims of `to` into consecutive groups, one for each dim of `from`: dim k of `from` is the product of
 * `to`'s dims begin[k]..begin[k+1].  The group is empty when dim k is 1 and was removed. */
static bool match_split(const Type *from, const Type *to, int *begin)
{
	int i = 0;
	if (!type_numel(to))
		return false;
	for (int k = 0; k < from->rank; k++) {
		int64_t product = 1;
		begin[k] = i;
		if (from->dim[k] == 1 && (i == to->rank || to->dim[i] != 1))
			continue;
		while (i < to->rank && (product != from->dim[k] || i == begin[k]))
			product *= to->dim[i++];
		if (product != from->dim[k])
			return false;
	}
	begin[from->rank] = i;
	return i == to->rank;
}

Value *canon_reshape_transpose(Rewriter *r, Op *op)
{
	Op *t = def_of(op->in[0].value, OP_TRANSPOSE);
	int begin[IR_MAX_RANK + 1], perm[IR_MAX_RANK], now[IR_MAX_RANK], at[IR_MAX_RANK], rank = 0;
	const Type *to = type_of(op);
	Type inner = *to;
	if (!t || !match_split(type_of(t), to, begin))
		return NULL;
	perm_of(t, perm);
	for (int k = 0; k < type_of(t)->rank; k++)
		at[perm[k]] = k;
	for (int k = 0; k < type_of(t)->rank; k++)
		for (int i = begin[at[k]]; i < begin[at[k] + 1]; i++) {
			now[i] = rank;
			inner.dim[rank++] = to->dim[i];
		}
	return ir_transpose(&r->b, ir_reshape(&r->b, t->in[0].value, inner.rank, inner.dim), now);
}

Value *canon_reshape_merged(Rewriter *r, Op *op)
{
	Op *t = def_of(op->in[0].value, OP_TRANSPOSE);
	const Type *to = type_of(op);
	int begin[IR_MAX_RANK + 1], perm[IR_MAX_RANK], now[IR_MAX_RANK], rank = 0;
	int64_t dim[IR_MAX_RANK];
	if (!t || !match_split(to, type_of(t), begin))
		return NULL;
	perm_of(t, perm);
	for (int k = 0; k < to->rank; k++) {
		if (begin[k] == begin[k + 1])
			return NULL;
		for (int i = begin[k]; i + 1 < begin[k + 1]; i++)
			if (perm[i + 1] != perm[i] + 1)
				return NULL;
	}
	for (int k = 0; k < type_of(t)->rank; k++)
		for (int i = 0; i < to->rank; i++)
			if (perm[begin[i]] == k) {
				now[i] = rank;
				dim[rank++] = to->dim[i];
			}
	return ir_transpose(&r->b, ir_reshape(&r->b, t->in[0].value, rank, dim), now);
}

Value *canon_reshape_matmul(Rewriter *r, Op *op)
{
	Op *mm = def_of(op->in[0].value, OP_MATMUL);
	Type to = *type_of(op);
	if (!mm || mm->out[0]->n_uses != 1 || attr_get_int(mm->attrs, "ta", 0) || type_of(mm)->rank != 2
			|| to.rank <= 2 || to.dim[to.rank - 1] != type_of(mm)->dim[1])
		return NULL;
	Value *in[3] = {op_in(mm, 0), op_in(mm, 1), op_in(mm, 2)};
	to.dim[to.rank - 1] = in[0]->type.dim[1];
	in[0] = ir_reshape(&r->b, in[0], to.rank, to.dim);
	return ir_emit(&r->b, OP_MATMUL, mm->n_in, in, mm->attrs);
}

/* ---- transpose ---- */

Value *canon_transpose_trivial(Rewriter *r, Op *op)
{
	Value *x = op->in[0].value;
	int perm[IR_MAX_RANK], last = -1;
	perm_of(op, perm);
	for (int i = 0; i < x->type.rank; i++) {
		if (x->type.dim[perm[i]] == 1)
			continue;
		if (perm[i] < last)
			return NULL;
		last = perm[i];
	}
	return ir_reshape(&r->b, x, type_of(op)->rank, type_of(op)->dim);
}

Value *canon_transpose_twice(Rewriter *r, Op *op)
{
	Op *inner = def_of(op->in[0].value, OP_TRANSPOSE);
	int p[IR_MAX_RANK], q[IR_MAX_RANK], now[IR_MAX_RANK];
	if (!inner)
		return NULL;
	perm_of(op, p);
	perm_of(inner, q);
	for (int i = 0; i < type_of(op)->rank; i++)
		now[i] = q[p[i]];
	return ir_transpose(&r->b, inner->in[0].value, now);
}

/* ---- transposes around elementwise ops ---- */

enum { DEEPEST = 8 };

/* Whether the dims of v other than 1, aligned at the end as broadcasting does, stand in the same order after perm. */
static bool keeps_order(const Value *v, int rank, const int *perm)
{
	int extra = rank - v->type.rank, last = -1;
	for (int i = 0; i < rank; i++) {
		if (perm[i] < extra || v->type.dim[perm[i] - extra] == 1)
			continue;
		if (perm[i] < last)
			return false;
		last = perm[i];
	}
	return true;
}

/* Whether perm undoes v's own transpose. */
static bool is_undone(const Value *v, int rank, const int *perm)
{
	const Op *t = def_of(v, OP_TRANSPOSE);
	int q[IR_MAX_RANK];
	bool undone = t && v->type.rank == rank;
	if (undone)
		perm_of(t, q);
	for (int i = 0; undone && i < rank; i++)
		undone = q[perm[i]] == i;
	return undone;
}

/* Whether v transposed by perm can be computed without a transpose; *n counts those that this undoes. */
static bool turns_free(const Value *v, int rank, const int *perm, int depth, int *n)
{
	const Op *op = v->op;
	if (is_undone(v, rank, perm))
		return ++*n;
	if (keeps_order(v, rank, perm))
		return true;
	if (!(op_info[op->kind].flags & EW) || op->n_out != 1 || v->n_uses != 1 || v->type.rank != rank || depth > DEEPEST)
		return false;
	for (int i = 0; i < op->n_in; i++)
		if (!op->in[i].value || !turns_free(op->in[i].value, rank, perm, depth + 1, n))
			return false;
	return true;
}

static Value *turned(Rewriter *r, Value *v, int rank, const int *perm)
{
	Op *op = v->op;
	if (is_undone(v, rank, perm))
		return op->in[0].value;
	if (keeps_order(v, rank, perm)) {
		int64_t dim[IR_MAX_RANK];
		int extra = rank - v->type.rank;
		for (int i = 0; i < rank; i++)
			dim[i] = perm[i] < extra ? 1 : v->type.dim[perm[i] - extra];
		return ir_reshape(&r->b, v, rank, dim);
	}
	Value **in = NEW_N(r->scratch, Value *, op->n_in);
	for (int i = 0; i < op->n_in; i++)
		in[i] = turned(r, op->in[i].value, rank, perm);
	Builder b = r->b;
	b.loc = op->loc;
	Value *now = ir_emit(&b, op->kind, op->n_in, in, op->attrs);
	rewrite_take_name(now, v);
	return now;
}

Value *canon_transpose_around(Rewriter *r, Op *op)
{
	Value *x = op->in[0].value;
	int perm[IR_MAX_RANK], n = 0;
	perm_of(op, perm);
	bool outer = op_info[x->op->kind].flags & EW && turns_free(x, x->type.rank, perm, 0, &n);
	return outer && n ? turned(r, x, x->type.rank, perm) : NULL;
}

/* v with dims of 1 added in front until it has the given rank. */
static Value *with_rank(Builder *b, Value *v, int rank)
{
	int64_t dim[IR_MAX_RANK];
	int extra = rank - v->type.rank;
	for (int i = 0; i < rank; i++)
		dim[i] = i < extra ? 1 : v->type.dim[i - extra];
	return ir_reshape(b, v, rank, dim);
}

Value *canon_transpose_broadcast(Rewriter *r, Op *op)
{
	Op *inner = def_of(op->in[0].value, OP_BROADCAST);
	int perm[IR_MAX_RANK];
	if (!inner)
		return NULL;
	perm_of(op, perm);
	Value *x = with_rank(&r->b, inner->in[0].value, type_of(op)->rank);
	return ir_broadcast(&r->b, ir_transpose(&r->b, x, perm), type_of(op));
}

/* ---- broadcast ---- */

Value *canon_broadcast_same(Rewriter *r, Op *op)
{
	Value *x = op->in[0].value;
	bool empty = !type_numel(&x->type); /* then repeating anything leaves the number of elements at 0 */
	if (empty ? !type_same_shape(&x->type, type_of(op)) : type_numel(&x->type) != type_numel(type_of(op)))
		return NULL;
	return ir_reshape(&r->b, x, type_of(op)->rank, type_of(op)->dim);
}

Value *canon_broadcast_twice(Rewriter *r, Op *op)
{
	Value *x = strip_broadcast(op->in[0].value);
	return x != op->in[0].value ? ir_broadcast(&r->b, x, type_of(op)) : NULL;
}

/* ---- reductions ---- */

Value *canon_reduce_nothing(Rewriter *r, Op *op)
{
	const Attr *axes = attr_find(op->attrs, "axes");
	Value *x = op->in[0].value;
	for (int i = 0; i < axes->n; i++)
		if (x->type.dim[axes->ints[i]] != 1)
			return NULL;
	return ir_reshape(&r->b, x, type_of(op)->rank, type_of(op)->dim);
}
