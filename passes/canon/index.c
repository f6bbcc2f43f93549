/* passes/canon/index.c: rules of canon for slice, split, concat, pad and gather.
 *
 * Slices move towards the sources, where they merge; slices that together cover an axis become one
 * split, whose gradient is one concat. */
#include "passes/canon/canon.h"

#include <math.h>
#include <string.h>

enum { IDS_MAX = 1 << 20 };

typedef struct Range { int64_t start[IR_MAX_RANK], size[IR_MAX_RANK], step[IR_MAX_RANK]; } Range;

static Range range_of(const Op *slice)
{
	Range g = {.start = {0}};
	int rank = slice->out[0]->type.rank;
	size_t bytes = sizeof(int64_t) * (size_t)rank;
	memcpy(g.start, ints_of(slice, "starts", rank), bytes);
	memcpy(g.size, ints_of(slice, "sizes", rank), bytes);
	memcpy(g.step, ints_of(slice, "steps", rank), bytes);
	return g;
}

static bool takes_all(const Range *g, const Type *t, int k)
{
	return g->size[k] == t->dim[k] && g->start[k] == 0 && (g->step[k] == 1 || t->dim[k] == 1);
}

static bool takes_everything(const Range *g, const Type *t)
{
	for (int k = 0; k < t->rank; k++)
		if (!takes_all(g, t, k))
			return false;
	return true;
}

/* Emits the slice x[r].  When it takes one element or none, the step has no meaning and is left out: it would not
 * resemble the steps of other slices of the axis.  An empty slice has no meaningful start either. */
static Value *emit_slice(Rewriter *r, Value *x, Range g)
{
	int rank = x->type.rank;
	if (takes_everything(&g, &x->type))
		return x;
	for (int k = 0; k < rank; k++) {
		g.start[k] = g.size[k] ? g.start[k] : 0;
		g.step[k] = g.size[k] > 1 ? g.step[k] : 1;
	}
	Attr *attrs = attr_ints(r->m, NULL, "starts", rank, g.start);
	attrs = attr_ints(r->m, attrs, "sizes", rank, g.size);
	return ir_emit(&r->b, OP_SLICE, 1, &x, attr_ints(r->m, attrs, "steps", rank, g.step));
}

static Range everything(const Type *t)
{
	Range g = {.start = {0}};
	for (int k = 0; k < t->rank; k++) {
		g.start[k] = 0;
		g.size[k] = t->dim[k];
		g.step[k] = 1;
	}
	return g;
}

/* ---- slice ---- */

Value *canon_slice_whole(Rewriter *r, Op *op)
{
	Range g = range_of(op);
	Value *x = op->in[0].value;
	(void)r;
	return takes_everything(&g, &x->type) ? x : NULL;
}

Value *canon_slice_twice(Rewriter *r, Op *op)
{
	Op *inner = def_of(op->in[0].value, OP_SLICE);
	if (!inner)
		return NULL;
	Range g = range_of(op), f = range_of(inner);
	for (int k = 0; k < op->out[0]->type.rank; k++) {
		g.start[k] = f.start[k] + f.step[k] * g.start[k];
		g.step[k] *= f.step[k];
	}
	return emit_slice(r, inner->in[0].value, g);
}

Value *canon_slice_transpose(Rewriter *r, Op *op)
{
	Op *t = def_of(op->in[0].value, OP_TRANSPOSE);
	int perm[IR_MAX_RANK];
	if (!t)
		return NULL;
	Range g = range_of(op), f = g;
	perm_of(t, perm);
	for (int k = 0; k < op->out[0]->type.rank; k++) {
		f.start[perm[k]] = g.start[k];
		f.size[perm[k]] = g.size[k];
		f.step[perm[k]] = g.step[k];
	}
	return ir_transpose(&r->b, emit_slice(r, t->in[0].value, f), perm);
}

Value *canon_slice_broadcast(Rewriter *r, Op *op)
{
	Op *wide = def_of(op->in[0].value, OP_BROADCAST);
	if (!wide)
		return NULL;
	Value *x = wide->in[0].value;
	int extra = wide->out[0]->type.rank - x->type.rank;
	Range g = range_of(op), f = everything(&x->type);
	for (int k = 0; k < x->type.rank; k++)
		if (x->type.dim[k] != 1 || wide->out[0]->type.dim[k + extra] == 1) {
			f.start[k] = g.start[k + extra];
			f.size[k] = g.size[k + extra];
			f.step[k] = g.step[k + extra];
		}
	return ir_broadcast(&r->b, emit_slice(r, x, f), &op->out[0]->type);
}

Value *canon_slice_concat(Rewriter *r, Op *op)
{
	Op *cat = def_of(op->in[0].value, OP_CONCAT);
	if (!cat)
		return NULL;
	Range g = range_of(op);
	int axis = axis_of(cat);
	int64_t last = g.start[axis] + g.step[axis] * (g.size[axis] - 1);
	int64_t low = MIN(g.start[axis], last), high = MAX(g.start[axis], last), begin = 0;
	for (int i = 0; g.size[axis] > 0 && i < cat->n_in; i++) {
		Value *piece = cat->in[i].value;
		int64_t end = begin + piece->type.dim[axis];
		if (low >= begin && high < end) {
			g.start[axis] -= begin;
			return emit_slice(r, piece, g);
		}
		begin = end;
	}
	return NULL;
}

/* The only axis along which a slice takes less than everything, with step 1; -1 when there is no such axis. */
static int cut_axis(const Op *slice)
{
	const Type *t = &slice->in[0].value->type;
	Range g = range_of(slice);
	int axis = -1;
	for (int k = 0; k < t->rank; k++) {
		if (takes_all(&g, t, k))
			continue;
		if (axis >= 0 || g.step[k] != 1)
			return -1;
		axis = k;
	}
	return axis;
}

/* The size along axis of a slice of x that starts at `start`; 0 = there is none. */
static int64_t part_from(const Value *x, int axis, int64_t start)
{
	for (const Use *u = x->uses; u; u = u->next) {
		if (u->op->kind != OP_SLICE || u->op->parent || cut_axis(u->op) != axis)
			continue;
		Range g = range_of(u->op);
		if (g.start[axis] == start && g.size[axis] > 0)
			return g.size[axis];
	}
	return 0;
}

Value *canon_slices_split(Rewriter *r, Op *op)
{
	enum { MAX_PARTS = 64, MAX_USES = 256 };
	Value *x = op->in[0].value, *mine = NULL;
	int axis = cut_axis(op), n = 0;
	int64_t size[MAX_PARTS], begin = 0;
	if (axis < 0 || x->op->parent || x->n_uses > MAX_USES)
		return NULL;
	while (begin < x->type.dim[axis]) {
		int64_t part = n < MAX_PARTS ? part_from(x, axis, begin) : 0;
		if (!part)
			return NULL;
		size[n++] = part;
		begin += part;
	}
	Attr *attrs = attr_ints(r->m, attr_int(r->m, NULL, "axis", axis), "sizes", n, size);
	Builder b = {.m = r->m, .section = x->op->section, .before = x->op->next, .loc = op->loc};
	Op *split = ir_emit_op(&b, OP_SPLIT, 1, &x, attrs, NULL);
	rewrite_enqueue(r, split);
	for (Use *u = x->uses, *next; u; u = next) {
		next = u->next;
		if (u->op->kind != OP_SLICE || u->op->parent || cut_axis(u->op) != axis)
			continue;
		Range g = range_of(u->op);
		begin = 0;
		for (int i = 0; i < n; begin += size[i++]) {
			if (g.start[axis] != begin || g.size[axis] != size[i])
				continue;
			if (u->op == op) {
				mine = split->out[i];
			} else {
				ir_replace_uses(u->op->out[0], split->out[i]);
				rewrite_take_name(split->out[i], u->op->out[0]);
			}
			rewrite_enqueue(r, u->op);
		}
	}
	return mine;
}

/* ---- concat and split ---- */

static bool same_axis(const Op *a, const Op *b)
{
	return axis_of(a) == axis_of(b);
}

Value *canon_concat_flat(Rewriter *r, Op *op)
{
	VEC(Value *) in = {0};
	if (op->n_in == 1)
		return op->in[0].value;
	for (int i = 0; i < op->n_in; i++) {
		Value *v = op->in[i].value;
		Op *inner = def_of(v, OP_CONCAT);
		if (!inner || v->n_uses != 1 || !same_axis(op, inner)) {
			vec_push(r->scratch, &in, v);
			continue;
		}
		for (int k = 0; k < inner->n_in; k++)
			vec_push(r->scratch, &in, inner->in[k].value);
	}
	return in.n > op->n_in ? ir_emit(&r->b, OP_CONCAT, in.n, in.at, op->attrs) : NULL;
}

Value *canon_concat_split(Rewriter *r, Op *op)
{
	Op *split = op->n_in ? def_of(op->in[0].value, OP_SPLIT) : NULL;
	(void)r;
	if (!split || split->n_out != op->n_in || !same_axis(op, split))
		return NULL;
	for (int i = 0; i < op->n_in; i++)
		if (op->in[i].value != split->out[i])
			return NULL;
	return split->in[0].value;
}

Value *canon_concat_transposes(Rewriter *r, Op *op)
{
	int perm[IR_MAX_RANK], axis = axis_of(op);
	Op *first = def_of(op->in[0].value, OP_TRANSPOSE);
	Value **in = NEW_N(r->scratch, Value *, op->n_in);
	if (!first)
		return NULL;
	perm_of(first, perm);
	for (int i = 0; i < op->n_in; i++) {
		in[i] = match_transpose(op->in[i].value, op->out[0]->type.rank, perm);
		if (!in[i])
			return NULL;
	}
	Value *cat = ir_emit(&r->b, OP_CONCAT, op->n_in, in, attr_int(r->m, op->attrs, "axis", perm[axis]));
	return ir_transpose(&r->b, cat, perm);
}

Value *canon_split_one(Rewriter *r, Op *op)
{
	(void)r;
	return op->n_out == 1 ? op->in[0].value : NULL;
}

Value *canon_split_transpose(Rewriter *r, Op *op)
{
	Op *t = def_of(op->in[0].value, OP_TRANSPOSE);
	int perm[IR_MAX_RANK];
	if (!t)
		return NULL;
	perm_of(t, perm);
	Attr *attrs = attr_int(r->m, op->attrs, "axis", perm[axis_of(op)]);
	Op *split = ir_emit_op(&r->b, OP_SPLIT, 1, &t->in[0].value, attrs, NULL);
	for (int i = 1; i < op->n_out; i++) {
		ir_replace_uses(op->out[i], ir_transpose(&r->b, split->out[i], perm));
		rewrite_take_name(split->out[i], op->out[i]);
	}
	return ir_transpose(&r->b, split->out[0], perm);
}

Value *canon_split_concat(Rewriter *r, Op *op)
{
	Op *cat = def_of(op->in[0].value, OP_CONCAT);
	(void)r;
	if (!cat || cat->n_in != op->n_out || !same_axis(op, cat))
		return NULL;
	for (int i = 0; i < op->n_out; i++)
		if (!type_same_shape(&op->out[i]->type, &cat->in[i].value->type))
			return NULL;
	for (int i = 1; i < op->n_out; i++)
		ir_replace_uses(op->out[i], cat->in[i].value);
	return cat->in[0].value;
}

/* ---- pad and gather ---- */

Value *canon_pad_nothing(Rewriter *r, Op *op)
{
	(void)r;
	return type_same_shape(&op->in[0].value->type, &op->out[0]->type) ? op->in[0].value : NULL;
}

/* Whether positions (an iota of any length) are ids of rows of dim: *first, *first + *step and so on. */
static bool positions_are_ids(const Value *ids, int64_t dim, int64_t *first, int64_t *step)
{
	const Op *op = def_of(ids, OP_IOTA);
	double start = op ? attr_get_float(op->attrs, "start", 0) : 0, by = op ? attr_get_float(op->attrs, "step", 1) : 0;
	double n = (double)type_numel(&ids->type), last = start + by * (n - 1);
	if (!op || n < 1 || type_numel(&ids->type) != ids->type.dim[attr_get_int(op->attrs, "axis", 0)]
			|| start != floor(start) || by != floor(by) || by == 0)
		return false;
	double shift = start < 0 && last < 0 ? (double)dim : 0;
	*first = (int64_t)(start + shift);
	*step = n == 1 ? 1 : (int64_t)by;
	return MIN(start, last) + shift >= 0 && MAX(start, last) + shift < (double)dim;
}

static bool literals_are_ids(Rewriter *r, Value *ids, int64_t dim, int64_t *first, int64_t *step)
{
	EvalTensor *known = match_literal(ids) ? match_constant(r, ids, IDS_MAX) : NULL;
	int64_t n = known ? type_numel(&ids->type) : 0, last = -1;
	*step = 1;
	for (int64_t i = 0; i < n; i++) {
		int64_t id = known->i[i] < 0 ? known->i[i] + dim : known->i[i];
		if (id < 0 || id >= dim)
			return false;
		*first = i ? *first : id;
		*step = i == 1 ? id - last : *step;
		if (i && (id - last != *step || !*step))
			return false;
		last = id;
	}
	return n > 0;
}

Value *canon_gather_slice(Rewriter *r, Op *op)
{
	Value *x = op->in[0].value, *ids = op->in[1].value;
	const Type *to = &op->out[0]->type;
	int axis = axis_of(op);
	int64_t n = type_numel(&ids->type), dim = x->type.dim[axis], first = 0, step = 1;
	if (!positions_are_ids(ids, dim, &first, &step) && !literals_are_ids(r, ids, dim, &first, &step))
		return NULL;
	Range g = everything(&x->type);
	g.start[axis] = first;
	g.size[axis] = n;
	g.step[axis] = step;
	return ir_reshape(&r->b, emit_slice(r, x, g), to->rank, to->dim);
}

Value *canon_gather_same(Rewriter *r, Op *op)
{
	Value *in[2] = {op->in[0].value, NULL};
	const Attr *id = const_splat(op->in[1].value);
	Type one = op->in[1].value->type;
	if (!id || type_numel(&one) < 2)
		return NULL;
	for (int k = 0; k < one.rank; k++)
		one.dim[k] = 1;
	in[1] = rewrite_splat(r, id, one);
	return ir_broadcast(&r->b, ir_emit(&r->b, OP_GATHER, 2, in, op->attrs), &op->out[0]->type);
}

Value *canon_gather_broadcast(Rewriter *r, Op *op)
{
	Op *wide = def_of(op->in[1].value, OP_BROADCAST);
	if (!wide)
		return NULL;
	Value *in[2] = {op->in[0].value, wide->in[0].value};
	int64_t dim[IR_MAX_RANK];
	int rank = wide->out[0]->type.rank, extra = rank - in[1]->type.rank;
	for (int i = 0; i < rank; i++)
		dim[i] = i < extra ? 1 : in[1]->type.dim[i - extra];
	in[1] = ir_reshape(&r->b, in[1], rank, dim);
	return ir_broadcast(&r->b, ir_emit(&r->b, OP_GATHER, 2, in, op->attrs), &op->out[0]->type);
}

/* The position in x that a tuple of ids names, one id for each of x's first axes; -1 when an id is out of range. */
static int64_t tuple_position(const Type *x, const int64_t *ids, int depth)
{
	int64_t at = 0;
	for (int k = 0; k < depth; k++) {
		int64_t id = ids[k] < 0 ? ids[k] + x->dim[k] : ids[k];
		if (id < 0 || id >= x->dim[k])
			return -1;
		at = at * x->dim[k] + id;
	}
	return at;
}

Value *canon_gather_nd_all(Rewriter *r, Op *op)
{
	Value *x = op->in[0].value, *ids = op->in[1].value;
	int depth = ids->type.rank ? (int)ids->type.dim[ids->type.rank - 1] : 0;
	int64_t rows = depth ? type_numel(&ids->type) / depth : 0, all = 1;
	if (attr_get_int(op->attrs, "batch_dims", 0) || !rows)
		return NULL;
	for (int k = 0; k < depth; k++)
		all *= x->type.dim[k];
	EvalTensor *known = rows == all ? match_constant(r, ids, IDS_MAX) : NULL;
	if (!known)
		return NULL;
	for (int64_t i = 0; i < rows; i++)
		if (tuple_position(&x->type, known->i + i * depth, depth) != i)
			return NULL;
	return ir_reshape(&r->b, x, op->out[0]->type.rank, op->out[0]->type.dim);
}
