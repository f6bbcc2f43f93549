/* frontend/onnx_batch.c: steps of a loop that do not depend on each other become one batch of steps.
 *
 * A value of each step is given.  If the ops that made them are the same in all steps, they are computed again at once,
 * with the steps as a further axis in front: slices one behind the other become a reshape, and other ops get the axis
 * added to their attributes.  So the bags of an EmbeddingBag, which is exported as a loop over bags, become one gather
 * and one reduction, and the axis of bags stays the axis of samples.  The ops of the steps are then unused. */
#include "frontend/onnx_import.h"

#include <string.h>

enum { BATCH_DEPTH_MAX = 32 };

/* A value of each step: the same one in all, or `now` with the steps as first axis; NULL: the steps are not alike. */
typedef struct Column { Value *const *at; Value *now; bool same; } Column;

typedef struct Batch {
	Import *im;
	int n;
	PtrMap *known;  /* value of the last step -> Column */
	int depth;
	bool alone;     /* nothing else reads the values on the way to this one */
} Batch;

static const Column *column(Batch *s, Value *const *x);

static Column *column_new(Batch *s, Value *const *x, Value *now, bool same)
{
	Column *c = NEW(s->im->arena, Column);
	*c = (Column){x, now, same};
	ptrmap_put(s->known, x[s->n - 1], c);
	return c;
}

/* ---- what is the same in all steps ---- */

static bool all_same(const Batch *s, Value *const *x)
{
	for (int t = 1; t < s->n; t++)
		if (x[t] != x[0])
			return false;
	return true;
}

/* Whether all steps made the value by one op of one kind, with as many operands and equal types. */
static bool same_op(const Batch *s, Value *const *x, bool attrs)
{
	const Op *first = x[0]->op;
	for (int t = 1; t < s->n; t++) {
		const Op *op = x[t]->op;
		if (!op || op->kind != first->kind || op->n_in != first->n_in || x[t]->index != x[0]->index
				|| op->n_out != 1 || op->sym || !type_equal(&x[t]->type, &x[0]->type)
				|| (attrs && !attr_equal(op->attrs, first->attrs)))
			return false;
	}
	return first->n_out == 1 && !first->sym && x[0]->type.rank < IR_MAX_RANK;
}

static const Column *operand(Batch *s, Value *const *x, int i)
{
	Value **of = NEW_N(s->im->arena, Value *, s->n + 1);
	for (int t = 0; t < s->n; t++)
		if (!(of[t] = op_in(x[t]->op, i)))
			return NULL;
	return column(s, of);
}

/* Whether all steps do the same with the same operands, so that their values are equal although each has its own op:
 * the value of the first step serves all.  Draws differ by their ids. */
static bool is_invariant(Batch *s, Value *const *x)
{
	const Op *first = x[0]->op;
	if (!same_op(s, x, true) || (!first->n_in && first->kind != OP_CONST))
		return false;
	for (int i = 0; i < first->n_in; i++) {
		bool any = false;
		for (int t = 0; t < s->n; t++)
			any = any || op_in(x[t]->op, i);
		const Column *c = any ? operand(s, x, i) : NULL;
		if (any && (!c || !c->same))
			return false;
	}
	return true;
}

/* ---- means ---- */

/* The sum that v is, divided by the number of its terms; NULL: it is none.  So dynamo writes the last bag of an
 * EmbeddingBag that takes means. */
static const Op *sum_of_mean(Import *im, Value *v)
{
	const Op *sum = v->op && v->op->kind == OP_DIV ? op_in(v->op, 0)->op : NULL;
	if (!sum || sum->kind != OP_REDUCE_SUM || pseudo_is(im, v))
		return NULL;
	const EvalTensor *by = import_known(im, op_in(v->op, 1));
	const Attr *axes = attr_find(sum->attrs, "axes");
	int64_t terms = 1;
	for (int i = 0; i < axes->n; i++)
		terms *= op_in(sum, 0)->type.dim[axes->ints[i]];
	bool mean = by && type_numel(&by->type) == 1 && dtype_is_float(by->type.dtype) && by->f[0] == (double)terms;
	return mean && type_equal(&v->type, &sum->out[0]->type) ? sum : NULL;
}

/* The values with such quotients written as means, where other steps have a mean. */
static Value *const *with_means(Batch *s, Value *const *x)
{
	Value **now = NULL;
	bool any = false;
	for (int t = 0; t < s->n; t++)
		any = any || x[t]->op->kind == OP_REDUCE_MEAN;
	for (int t = 0; any && t < s->n; t++) {
		const Op *sum = sum_of_mean(s->im, x[t]);
		if (!sum)
			continue;
		const Attr *axes = attr_find(sum->attrs, "axes");
		now = now ? now : memcpy(NEW_N(s->im->arena, Value *, s->n), x, sizeof(*x) * (size_t)s->n);
		now[t] = ir_reduce(&s->im->b, OP_REDUCE_MEAN, op_in(sum, 0), axes->n, axes->ints,
			attr_get_int(sum->attrs, "keepdims", 0));
	}
	return now ? now : x;
}

/* ---- ops with one more axis ---- */

static Type with_steps(const Batch *s, const Type *t)
{
	int64_t dim[IR_MAX_RANK] = {s->n};
	for (int i = 0; i < t->rank; i++)
		dim[i + 1] = t->dim[i];
	return type_tensor(t->dtype, t->rank + 1, dim);
}

/* The value with axes of 1 behind the steps, so that it lines up with results of this rank. */
static Value *lined_up(Batch *s, const Column *c, int rank)
{
	int64_t dim[IR_MAX_RANK] = {s->n};
	const Type *t = &c->now->type;
	int own = t->rank - 1;
	if (c->same || own >= rank)
		return c->now;
	for (int i = 0; i < rank; i++)
		dim[i + 1] = i < rank - own ? 1 : t->dim[i - (rank - own) + 1];
	return ir_reshape(&s->im->b, c->now, rank + 1, dim);
}

static Value *batch_elementwise(Batch *s, Value *const *x)
{
	const Op *op = x[0]->op;
	Value *in[4];
	if (op->n_in > COUNT_OF(in))
		return NULL;
	for (int i = 0; i < op->n_in; i++) {
		const Column *c = operand(s, x, i);
		if (!c)
			return NULL;
		in[i] = lined_up(s, c, x[0]->type.rank);
	}
	return ir_emit(&s->im->b, op->kind, op->n_in, in, op->attrs);
}

/* Where slices of a tensor begin along their axis; false if they differ in more than that. */
static bool slice_starts(const Batch *s, Value *const *x, int *axis, int64_t *starts)
{
	const Type *whole = &op_in(x[0]->op, 0)->type;
	*axis = -1;
	for (int i = 0; i < whole->rank; i++)
		if (x[0]->type.dim[i] != whole->dim[i])
			*axis = *axis < 0 ? i : IR_MAX_RANK;
	if (*axis < 0 || *axis >= whole->rank)
		return false;
	for (int t = 0; t < s->n; t++) {
		const int64_t *steps = attr_find(x[t]->op->attrs, "steps")->ints;
		starts[t] = attr_find(x[t]->op->attrs, "starts")->ints[*axis];
		for (int i = 0; i < whole->rank; i++)
			if (steps[i] != 1)
				return false;
	}
	return true;
}

/* Slices of the same tensor: they lie one behind the other, or else are gathered. */
static Value *batch_slices(Batch *s, Value *const *x)
{
	Builder *b = &s->im->b;
	Value *whole = op_in(x[0]->op, 0);
	int64_t *starts = NEW_N(s->im->arena, int64_t, s->n + 1), dim[IR_MAX_RANK];
	int axis, rank = whole->type.rank;
	bool tiles = true;
	for (int t = 1; t < s->n; t++)
		if (op_in(x[t]->op, 0) != whole)
			return NULL;
	if (!slice_starts(s, x, &axis, starts))
		return NULL;
	int64_t size = x[0]->type.dim[axis];
	for (int t = 1; t < s->n; t++)
		tiles = tiles && starts[t] == starts[t - 1] + size;
	if (!tiles)
		return NULL;
	for (int i = 0; i <= rank; i++)
		dim[i] = i == axis ? s->n : i == axis + 1 ? size : whole->type.dim[i - (i > axis)];
	Value *all = emit_slice(b, whole, axis, starts[0], s->n * size, 1);
	return emit_move_axis(b, ir_reshape(b, all, rank + 1, dim), axis, 0);
}

/* Neighbouring pieces of one split into pieces of one size, in the order of the tensor or backwards. */
static Value *batch_pieces(Batch *s, Value *const *x)
{
	Builder *b = &s->im->b;
	const Op *split = x[0]->op;
	int step = x[1]->index - x[0]->index, axis = (int)attr_get_int(split->attrs, "axis", 0);
	for (int t = 1; t < s->n; t++)
		if (x[t]->op != split || x[t]->index != x[0]->index + t * step || !type_equal(&x[t]->type, &x[0]->type))
			return NULL;
	const Attr *sizes = attr_find(split->attrs, "sizes");
	int first = MIN(x[0]->index, x[s->n - 1]->index), rank = x[0]->type.rank;
	int64_t start = 0, size = x[0]->type.dim[axis], dim[IR_MAX_RANK];
	if ((step != 1 && step != -1) || rank >= IR_MAX_RANK)
		return NULL;
	for (int i = 0; i < first; i++)
		start += sizes->ints[i];
	for (int i = 0; i <= rank; i++)
		dim[i] = i == axis ? s->n : x[0]->type.dim[i - (i > axis)];
	Value *all = emit_slice(b, op_in(split, 0), axis, start, s->n * size, 1);
	all = emit_move_axis(b, ir_reshape(b, all, rank + 1, dim), axis, 0);
	return step > 0 ? all : emit_slice(b, all, 0, s->n - 1, s->n, -1);
}

/* The list with `first` in front. */
static Attr *put_first(Batch *s, Attr *list, const Attr *old, int64_t first, int64_t add)
{
	int64_t v[IR_MAX_RANK + 1] = {first};
	for (int i = 0; i < old->n; i++)
		v[i + 1] = old->ints[i] + add;
	return attr_ints(s->im->m, list, old->name, old->n + 1, v);
}

static Value *batch_slice(Batch *s, Value *const *x)
{
	const Op *op = x[0]->op;
	if (!same_op(s, x, true))
		return batch_slices(s, x);
	const Column *c = operand(s, x, 0);
	if (!c || c->same)
		return NULL;
	Attr *a = put_first(s, NULL, attr_find(op->attrs, "starts"), 0, 0);
	a = put_first(s, a, attr_find(op->attrs, "sizes"), s->n, 0);
	return ir_emit(&s->im->b, OP_SLICE, 1, &c->now, put_first(s, a, attr_find(op->attrs, "steps"), 1, 0));
}

/* Elements of one tensor by a known index, each step the next one: x[:, t]. */
static Value *batch_elements(Batch *s, Value *const *x)
{
	Builder *b = &s->im->b;
	Value *whole = op_in(x[0]->op, 0);
	int axis = (int)attr_get_int(x[0]->op->attrs, "axis", 0);
	int64_t count = whole->type.dim[axis], first = 0;
	for (int t = 0; t < s->n; t++) {
		Value *id = op_in(x[t]->op, 1);
		bool one = op_in(x[t]->op, 0) == whole && type_numel(&id->type) == 1;
		const EvalTensor *at = one ? import_known(s->im, id) : NULL;
		int64_t k = at ? at->i[0] + (at->i[0] < 0 ? count : 0) : 0;
		first = t ? first : k;
		if (!at || k != first + t || k < 0 || k >= count)
			return NULL;
	}
	Type to = with_steps(s, &x[0]->type);
	Value *all = emit_move_axis(b, emit_slice(b, whole, axis, first, s->n, 1), axis, 0);
	return ir_reshape(b, all, to.rank, to.dim);
}

static Value *batch_gather(Batch *s, Value *const *x)
{
	Value *elements = batch_elements(s, x);
	if (elements)
		return elements;
	const Column *table = operand(s, x, 0), *ids = operand(s, x, 1);
	int axis = (int)attr_get_int(x[0]->op->attrs, "axis", 0);
	if (!table || !ids || table->same == ids->same)
		return NULL;
	Attr *a = attr_int(s->im->m, NULL, "axis", axis + !table->same);
	Value *y = ir_emit(&s->im->b, OP_GATHER, 2, (Value *[]){table->now, ids->now}, a);
	return table->same ? emit_move_axis(&s->im->b, y, axis, 0) : y;
}

static Value *batch_reduce(Batch *s, Value *const *x)
{
	const Op *op = x[0]->op;
	const Attr *axes = attr_find(op->attrs, "axes");
	const Column *c = operand(s, x, 0);
	int64_t at[IR_MAX_RANK];
	if (!c || c->same)
		return NULL;
	for (int i = 0; i < axes->n; i++)
		at[i] = axes->ints[i] + 1;
	return ir_reduce(&s->im->b, op->kind, c->now, axes->n, at, attr_get_int(op->attrs, "keepdims", 0));
}

static Value *batch_move(Batch *s, Value *const *x)
{
	const Op *op = x[0]->op;
	const Column *c = operand(s, x, 0);
	Type to = with_steps(s, &x[0]->type);
	int perm[IR_MAX_RANK] = {0};
	if (!c || c->same)
		return NULL;
	if (op->kind == OP_RESHAPE)
		return ir_reshape(&s->im->b, c->now, to.rank, to.dim);
	if (op->kind == OP_BROADCAST)
		return ir_broadcast(&s->im->b, lined_up(s, c, x[0]->type.rank), &to);
	const Attr *a = attr_find(op->attrs, "perm");
	for (int i = 0; i < a->n; i++)
		perm[i + 1] = (int)a->ints[i] + 1;
	return ir_transpose(&s->im->b, c->now, perm);
}

/* Whether all that reads the values, beyond the results that are asked for, is one op each. */
static bool read_alone(const Batch *s, Value *const *x)
{
	for (int t = 0; t < s->n; t++)
		if (x[t]->uses && (s->depth == 1 || x[t]->uses->next))
			return false;
	return true;
}

/* The left operands of products that nothing else needs, stacked, where they depend on each other: what a recurrent
 * cell gives out is multiplied with a matrix for all steps at once. */
static const Column *stacked(Batch *s, Value *const *x)
{
	Value **of = NEW_N(s->im->arena, Value *, s->n + 1);
	const Type *type = &op_in(x[0]->op, 0)->type;
	int64_t dim[IR_MAX_RANK] = {1};
	for (int i = 0; i < type->rank && type->rank < IR_MAX_RANK; i++)
		dim[i + 1] = type->dim[i];
	for (int t = 0; t < s->n; t++) {
		Value *v = op_in(x[t]->op, 0);
		if (!type_equal(&v->type, type) || type->rank >= IR_MAX_RANK)
			return NULL;
		of[t] = ir_reshape(&s->im->b, v, type->rank + 1, dim);
	}
	return column_new(s, of, emit_concat(&s->im->b, s->n, of, 0), false);
}

/* A product of matrices that differ by step with matrices that may be the same in all. */
static Value *batch_matmul(Batch *s, Value *const *x)
{
	const Op *op = x[0]->op;
	bool alone = s->alone;
	const Column *in[3] = {operand(s, x, 0), operand(s, x, 1), op_in(op, 2) ? operand(s, x, 2) : NULL};
	if (!in[0] && in[1] && in[1]->same && alone)
		in[0] = stacked(s, x);
	if (!in[0] || !in[1] || (op_in(op, 2) && (!in[2] || !in[2]->same)) || op->n_in > 3)
		return NULL;
	int rank = x[0]->type.rank;
	Value *y[3] = {lined_up(s, in[0], rank), lined_up(s, in[1], rank), in[2] ? in[2]->now : NULL};
	return ir_emit(&s->im->b, OP_MATMUL, 3, y, op->attrs);
}

static Value *batch_op(Batch *s, Value *const *x)
{
	x = with_means(s, x);
	OpKind k = x[0]->op->kind;
	if (k == OP_SLICE)
		return same_op(s, x, false) ? batch_slice(s, x) : NULL;
	if (k == OP_SPLIT)
		return batch_pieces(s, x);
	if (!same_op(s, x, true))
		return NULL;
	if (op_info[k].flags & EW)
		return batch_elementwise(s, x);
	switch (k) {
	case OP_RESHAPE: case OP_BROADCAST: case OP_TRANSPOSE: return batch_move(s, x);
	case OP_GATHER: return batch_gather(s, x);
	case OP_REDUCE_SUM: case OP_REDUCE_MEAN: case OP_REDUCE_MAX: case OP_REDUCE_MIN: return batch_reduce(s, x);
	case OP_MATMUL: return batch_matmul(s, x);
	default: return NULL;
	}
}

static const Column *column(Batch *s, Value *const *x)
{
	const Column *known = ptrmap_get(s->known, x[s->n - 1]);
	for (int t = 0; known && t < s->n; t++)
		known = known->at[t] == x[t] ? known : NULL;
	if (known)
		return known->now ? known : NULL;
	if (all_same(s, x))
		return column_new(s, x, x[0], true);
	if (s->depth == BATCH_DEPTH_MAX)
		return NULL;
	bool alone = s->alone;
	s->depth++;
	s->alone = alone && read_alone(s, x);
	bool same = is_invariant(s, x);
	Value *now = same ? x[0] : batch_op(s, x);
	s->depth--;
	s->alone = alone;
	const Column *c = column_new(s, x, now == &s->im->m->poison ? NULL : now, same);
	return c->now ? c : NULL;
}

static Batch batch_new(Import *im, int n, bool alone)
{
	return (Batch){.im = im, .n = n, .known = ptrmap_new(im->arena), .alone = alone};
}

static Value *batch(Batch *s, Value *const *x)
{
	for (int t = 0; t < s->n; t++)
		if (!x[t]->op || pseudo_is(s->im, x[t]))
			return NULL;
	if (s->n < 2 || x[0]->type.rank >= IR_MAX_RANK || all_same(s, x))
		return NULL;
	const Column *c = column(s, x);
	return c && !c->same ? c->now : NULL;
}

Value *batch_steps(Import *im, int n, Value *const *x)
{
	Batch s = batch_new(im, n, true);
	return batch(&s, x);
}

/* ---- products within steps ---- */

typedef VEC(Value *) ValueVec;

/* The results of the products behind an op (NULL: from the start on), up to another. */
static ValueVec products_between(Import *im, Op *before, const Op *last)
{
	ValueVec v = {0};
	Op *op = before ? before->next : im->m->first[SEC_FORWARD];
	for (; before != last && op; op = op == last ? NULL : op->next)
		if (op->kind == OP_MATMUL)
			vec_push(im->arena, &v, op->out[0]);
	return v;
}

/* Puts the pieces of a product, which was computed for all steps, in place of those of the steps. */
static void replace_products(Batch *s, Value *all, Value *const *x, PtrMap *now)
{
	Builder *b = &s->im->b;
	int64_t *sizes = NEW_N(s->im->arena, int64_t, s->n + 1);
	for (int t = 0; t < s->n; t++)
		sizes[t] = 1;
	Attr *a = attr_ints(b->m, attr_int(b->m, NULL, "axis", 0), "sizes", s->n, sizes);
	const Op *split = ir_emit_op(b, OP_SPLIT, 1, &all, a, NULL);
	for (int t = 0; t < s->n; t++) {
		Value *piece = ir_reshape(b, split->out[t], x[0]->type.rank, x[0]->type.dim);
		ir_replace_uses(x[t], piece);
		ptrmap_put(now, x[t], piece);
	}
}

PtrMap *batch_products(Import *im, int n, Op *const *ends)
{
	PtrMap *now = ptrmap_new(im->arena);
	ValueVec *of = NEW_N(im->arena, ValueVec, n + 1);
	Batch s = batch_new(im, n, false);
	for (int t = 0; t < n; t++) {
		of[t] = products_between(im, ends[t], ends[t + 1]);
		if (of[t].n != of[0].n)
			return now;
	}
	for (int k = 0; n > 1 && k < of[0].n; k++) {
		Value **x = NEW_N(im->arena, Value *, n);
		Op *last = im->m->last[SEC_FORWARD];
		for (int t = 0; t < n; t++)
			x[t] = of[t].at[k];
		Value *all = batch(&s, x);
		if (all)
			replace_products(&s, all, x, now);
		import_mark(im, last);
		/* All that these ops need stands before the first step's own product; what was made in vain is unused. */
		for (Op *op = last->next, *next; op; op = next) {
			next = op->next;
			ir_move_before(im->m, op, x[0]->op);
		}
	}
	return now;
}

/* ---- stacks ---- */

Value *emit_stack(Import *im, int n, Value *const *x, int axis, int *at_once)
{
	int64_t dim[IR_MAX_RANK];
	Value *now = batch_steps(im, n, x);
	*at_once += now != NULL;
	if (now)
		return emit_move_axis(&im->b, now, 0, axis);
	for (int i = 0; i <= x[0]->type.rank; i++)
		dim[i] = i == axis ? 1 : x[0]->type.dim[i - (i > axis)];
	Value **list = NEW_N(im->arena, Value *, n);
	for (int t = 0; t < n; t++)
		list[t] = ir_reshape(&im->b, x[t], x[0]->type.rank + 1, dim);
	return emit_concat(&im->b, n, list, axis);
}
