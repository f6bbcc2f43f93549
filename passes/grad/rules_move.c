/* passes/grad/rules_move.c: gradient rules of ops that move, select or reduce elements.
 *
 * Each adjoint is another op of ops.def: the gradient of a slice is placed into zeros, that of a gather is added
 * where the elements came from.  The gradient of a value of which only slices are used is one concat (grad_sum). */
#include "passes/grad/rules.h"

#include <string.h>

static Value *zeros_like(Builder *b, const Value *x)
{
	return ir_const_full(b, x->type, 0);
}

/* ---- sums ---- */

/* The value that a slice_grad writes, when it fills all dims of dx but one completely and in order. */
typedef struct Piece { Value *v; int64_t begin, end; } Piece;

static bool piece_of(Value *term, int *axis, Piece *out)
{
	const Op *op = term->op;
	if (op->kind != OP_SLICE_GRAD)
		return false;
	const Attr *start = attr_find(op->attrs, "starts"), *step = attr_find(op->attrs, "steps");
	const Type *dy = &op_in(op, 0)->type, *dx = &term->type;
	int cut = -1;
	for (int i = 0; i < dx->rank; i++) {
		if (step->ints[i] != 1 || (dy->dim[i] != dx->dim[i] && cut >= 0))
			return false;
		if (dy->dim[i] != dx->dim[i])
			cut = i;
	}
	if (cut < 0 || (*axis >= 0 && *axis != cut))
		return false;
	*axis = cut;
	*out = (Piece){op_in(op, 0), start->ints[cut], start->ints[cut] + dy->dim[cut]};
	return true;
}

/* Inserts p so that the pieces stay sorted; false when p overlaps one of them. */
static bool insert_piece(Piece *piece, int n, Piece p)
{
	int at = n;
	while (at > 0 && piece[at - 1].begin >= p.begin)
		at--;
	if ((at < n && piece[at].begin < p.end) || (at > 0 && piece[at - 1].end > p.begin))
		return false;
	memmove(piece + at + 1, piece + at, sizeof(*piece) * (size_t)(n - at));
	piece[at] = p;
	return true;
}

static void push_zeros(Builder *b, Value **list, int *n, Type type, int axis, int64_t size)
{
	type.dim[axis] = size;
	if (size)
		list[(*n)++] = ir_const_full(b, type, 0);
}

static Value *concat_pieces(Builder *b, const Type *type, const Piece *piece, int n, int axis)
{
	Value **list = NEW_N(b->m->arena, Value *, 2 * n + 1);
	int64_t end = 0;
	int count = 0;
	for (int i = 0; i < n; i++) {
		push_zeros(b, list, &count, *type, axis, piece[i].begin - end);
		list[count++] = piece[i].v;
		end = piece[i].end;
	}
	push_zeros(b, list, &count, *type, axis, type->dim[axis] - end);
	return ir_emit(b, OP_CONCAT, count, list, attr_int(b->m, NULL, "axis", axis));
}

/* Whether the term is rows added to zeros, as the gradient of an embedding is. */
static bool is_row_sum(const Value *term)
{
	return term->op->kind == OP_GATHER_GRAD && !op_sum(term->op);
}

/* sum + term; rows are added in place, without a tensor of mostly zeros. */
static Value *add_term(Builder *b, Value *sum, Value *term)
{
	if (!sum || !is_row_sum(term))
		return sum ? e_add(b, sum, term) : term;
	return ir_emit(b, OP_GATHER_GRAD, 3, (Value *[]){op_in(term->op, 0), op_in(term->op, 1), sum}, term->op->attrs);
}

Value *grad_sum(Builder *b, Value *const *term, int n)
{
	Value *sum = NULL;
	Piece *piece = NEW_N(b->m->arena, Piece, n + 1), p;
	bool *taken = NEW_N(b->m->arena, bool, n);
	int n_pieces = 0, axis = -1;
	for (int i = 0; i < n; i++) {
		if (piece_of(term[i], &axis, &p) && insert_piece(piece, n_pieces, p)) {
			taken[i] = true;
			n_pieces++;
		}
	}
	if (n_pieces > 1)
		sum = concat_pieces(b, &term[0]->type, piece, n_pieces, axis);
	for (int rows = 0; rows < 2; rows++)
		for (int i = 0; i < n; i++)
			if ((n_pieces < 2 || !taken[i]) && is_row_sum(term[i]) == rows)
				sum = add_term(b, sum, term[i]);
	return sum;
}

/* ---- shape ---- */

/* y = x in another shape;  dx = dy in x's */
void grad_reshape(GradCtx *c, Op *op, Value *const *dout)
{
	const Type *t = &op_in(op, 0)->type;
	grad_give(c, op_in(op, 0), ir_reshape(grad_builder(c), dout[0], t->rank, t->dim));
}

/* y dim i = x dim perm[i];  dx dim perm[i] = dy dim i */
void grad_transpose(GradCtx *c, Op *op, Value *const *dout)
{
	const Attr *perm = attr_find(op->attrs, "perm");
	int inverse[IR_MAX_RANK];
	for (int i = 0; i < perm->n; i++)
		inverse[perm->ints[i]] = i;
	grad_give(c, op_in(op, 0), ir_transpose(grad_builder(c), dout[0], inverse));
}

/* y = x repeated;  dx = dy summed over the repetitions, which grad_give does */
void grad_broadcast(GradCtx *c, Op *op, Value *const *dout)
{
	grad_give(c, op_in(op, 0), dout[0]);
}

/* ---- slices ---- */

static Value *slice(Builder *b, Value *x, const int64_t *start, const int64_t *size, const int64_t *step)
{
	int rank = x->type.rank;
	Attr *attrs = attr_ints(b->m, NULL, "starts", rank, start);
	attrs = attr_ints(b->m, attrs, "sizes", rank, size);
	return ir_emit(b, OP_SLICE, 1, &x, attr_ints(b->m, attrs, "steps", rank, step));
}

/* x[begin .. begin + size) along axis, backwards when flip. */
static Value *slice_axis(Builder *b, Value *x, int axis, int64_t begin, int64_t size, bool flip)
{
	int64_t start[IR_MAX_RANK] = {0}, sizes[IR_MAX_RANK], step[IR_MAX_RANK];
	for (int i = 0; i < x->type.rank; i++) {
		sizes[i] = x->type.dim[i];
		step[i] = 1;
	}
	if (!flip && size == sizes[axis])
		return x;
	start[axis] = flip ? begin + size - 1 : begin;
	sizes[axis] = size;
	step[axis] = flip ? -1 : 1;
	return slice(b, x, start, sizes, step);
}

/* dy put into zeros of shape `to`, from begin along axis. */
static Value *place_axis(Builder *b, Value *dy, int axis, int64_t begin, int64_t size)
{
	int64_t start[IR_MAX_RANK] = {0}, step[IR_MAX_RANK];
	Type to = dy->type;
	for (int i = 0; i < to.rank; i++)
		step[i] = 1;
	if (size == to.dim[axis])
		return dy;
	start[axis] = begin;
	to.dim[axis] = size;
	Attr *attrs = attr_ints(b->m, NULL, "starts", to.rank, start);
	attrs = attr_ints(b->m, attrs, "steps", to.rank, step);
	return ir_emit(b, OP_SLICE_GRAD, 1, &dy, attr_shape(b->m, attrs, &to));
}

/* y = x[start + step i];  dx[start + step i] = dy[i], else 0 */
void grad_slice(GradCtx *c, Op *op, Value *const *dout)
{
	Module *m = grad_builder(c)->m;
	Value *x = op_in(op, 0), *dy = dout[0];
	const Attr *start = attr_find(op->attrs, "starts"), *step = attr_find(op->attrs, "steps");
	Attr *attrs = attr_ints(m, NULL, "starts", start->n, start->ints);
	attrs = attr_ints(m, attrs, "steps", step->n, step->ints);
	grad_give(c, x, ir_emit(grad_builder(c), OP_SLICE_GRAD, 1, &dy, attr_shape(m, attrs, &x->type)));
}

/* y[start + step i] = x[i], else 0;  dx[i] = dy[start + step i] */
void grad_slice_grad(GradCtx *c, Op *op, Value *const *dout)
{
	grad_give(c, op_in(op, 0), slice(grad_builder(c), dout[0], attr_find(op->attrs, "starts")->ints,
		op_in(op, 0)->type.dim, attr_find(op->attrs, "steps")->ints));
}

/* The index in x from which the `size` elements of the border before (after) the n elements of x were copied. */
static int64_t border_origin(const char *mode, bool after, int64_t n, int64_t size)
{
	if (!strcmp(mode, "edge"))
		return after ? n - 1 : 0;
	if (!strcmp(mode, "reflect"))
		return after ? n - 1 - size : 1;
	return after ? 0 : n - size;
}

/* One axis of y = pad x: dx = the middle of dy.  Where the border repeats x, dy's border is added at the positions
 * that it was copied from (reflect: mirrored; edge: summed; wrap: at the other end). */
static Value *unpad_axis(Builder *b, Value *dy, const char *mode, int axis, int64_t n, int64_t before,
	int64_t after)
{
	Value *dx = slice_axis(b, dy, axis, before, n, false);
	for (int i = 0; i < 2 && strcmp(mode, "constant"); i++) {
		int64_t size = i ? after : before;
		if (!size)
			continue;
		Value *border = slice_axis(b, dy, axis, i ? before + n : 0, size, !strcmp(mode, "reflect"));
		if (!strcmp(mode, "edge"))
			border = ir_reduce(b, OP_REDUCE_SUM, border, 1, &(int64_t){axis}, true);
		dx = e_add(b, dx, place_axis(b, border, axis, border_origin(mode, i, n, size), n));
	}
	return dx;
}

/* y = x with a border;  dx: see unpad_axis, the last padded axis first */
void grad_pad(GradCtx *c, Op *op, Value *const *dout)
{
	const Type *x = &op_in(op, 0)->type;
	const Attr *before = attr_find(op->attrs, "before"), *after = attr_find(op->attrs, "after");
	const char *mode = attr_get_str(op->attrs, "mode", "constant");
	Value *dy = dout[0];
	for (int i = x->rank - 1; i >= 0; i--) {
		int64_t most = MAX(before->ints[i], after->ints[i]);
		if (strcmp(mode, "constant") && strcmp(mode, "edge") && most > x->dim[i]) {
			grad_refuse(c, op, "the gradient of a %s padding of %lld on %lld elements is not supported "
				"(at most the axis itself)", mode, (long long)most, (long long)x->dim[i]);
			return;
		}
		if (before->ints[i] || after->ints[i])
			dy = unpad_axis(grad_builder(c), dy, mode, i, x->dim[i], before->ints[i], after->ints[i]);
	}
	grad_give(c, op_in(op, 0), dy);
}

/* y = the operands side by side;  each gets its part of dy, by one split when all want theirs */
void grad_concat(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	int axis = op_axis(op);
	int64_t *size = NEW_N(b->m->arena, int64_t, op->n_in), begin = 0;
	bool all = op->n_in > 1;
	for (int i = 0; i < op->n_in; i++) {
		size[i] = op_in(op, i)->type.dim[axis];
		all = all && grad_wanted(c, op_in(op, i));
	}
	Attr *attrs = attr_ints(b->m, attr_int(b->m, NULL, "axis", axis), "sizes", op->n_in, size);
	Op *split = all ? ir_emit_op(b, OP_SPLIT, 1, dout, attrs, NULL) : NULL;
	for (int i = 0; i < op->n_in; begin += size[i++]) {
		if (all)
			grad_give(c, op_in(op, i), split->out[i]);
		else if (grad_wanted(c, op_in(op, i)))
			grad_give(c, op_in(op, i), slice_axis(b, dout[0], axis, begin, size[i], false));
	}
}

/* y0, y1, .. = parts of x;  dx = dy0, dy1, .. side by side, zeros for those without gradient */
void grad_split(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	int axis = op_axis(op);
	Value **part = NEW_N(b->m->arena, Value *, op->n_out);
	for (int i = 0; i < op->n_out; i++)
		part[i] = dout[i] ? dout[i] : zeros_like(b, op->out[i]);
	grad_give(c, op_in(op, 0), ir_emit(b, OP_CONCAT, op->n_out, part, attr_int(b->m, NULL, "axis", axis)));
}

/* ---- gathers and scatters ---- */

/* y = x[ids];  dx = dy added to zeros at ids */
void grad_gather(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	Attr *attrs = attr_shape(b->m, attr_int(b->m, NULL, "axis", op_axis(op)), &x->type);
	grad_give(c, x, ir_emit(b, OP_GATHER_GRAD, 2, (Value *[]){dout[0], op_in(op, 1)}, attrs));
}

/* The two ways to address elements: along an axis, or by index tuples. */
typedef struct Access { OpKind gather, scatter; } Access;
static const Access by_axis = {OP_GATHER_ELEMENTS, OP_SCATTER_ELEMENTS};
static const Access by_tuple = {OP_GATHER_ND, OP_SCATTER_ND};

static Value *take(Builder *b, Access a, const Op *op, Value *x, Value *ids)
{
	const Attr *axis = attr_find(op->attrs, "axis");
	Attr *attrs = axis ? attr_int(b->m, NULL, "axis", axis->i) : attr_int(b->m, NULL, "batch_dims", 0);
	return ir_emit(b, a.gather, 2, (Value *[]){x, ids}, attrs);
}

static Value *put(Builder *b, Access a, const Op *op, Value *onto, Value *ids, Value *x, const char *reduce)
{
	const Attr *axis = attr_find(op->attrs, "axis");
	Attr *attrs = axis ? attr_int(b->m, NULL, "axis", axis->i) : NULL;
	return ir_emit(b, a.scatter, 3, (Value *[]){onto, ids, x}, attr_str(b->m, attrs, "reduce", reduce));
}

/* y[i] = x[ids[i]] along axis;  dx = dy added to zeros at ids */
void grad_gather_elements(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	grad_give(c, x, put(b, by_axis, op, zeros_like(b, x), op_in(op, 1), dout[0], "add"));
}

/* Puts the indices of the batch dims in front of each tuple of ids. */
static Value *with_batch_indices(Builder *b, Value *ids, int batch_dims)
{
	Value *part[IR_MAX_RANK + 1];
	Type one = ids->type;
	one.dim[one.rank - 1] = 1;
	for (int i = 0; i < batch_dims; i++)
		part[i] = ir_emit_typed(b, OP_IOTA, 0, NULL, attr_int(b->m, NULL, "axis", i), one);
	part[batch_dims] = ids;
	Attr *axis = attr_int(b->m, NULL, "axis", ids->type.rank - 1);
	return batch_dims ? ir_emit(b, OP_CONCAT, batch_dims + 1, part, axis) : ids;
}

/* y = x at index tuples;  dx = dy added to zeros there */
void grad_gather_nd(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	Value *ids = with_batch_indices(b, op_in(op, 1), (int)attr_get_int(op->attrs, "batch_dims", 0));
	Value *zero = zeros_like(b, x);
	Attr *add = attr_str(b->m, NULL, "reduce", "add");
	grad_give(c, x, ir_emit(b, OP_SCATTER_ND, 3, (Value *[]){zero, ids, dout[0]}, add));
}

/* The derivative of a product by its factor f: the product of the other factors.  nonzero: the product of the
 * factors that are not 0; zeros: the number of those that are. */
static Value *product_without(Builder *b, Value *f, Value *nonzero, Value *zeros)
{
	Value *nothing = ir_const_float(b, f->type.dtype, 0);
	Value *is_zero = e_eq(b, f, nothing);
	Value *alone = e_select(b, e_is(b, zeros, 1), nonzero);
	Value *one = ir_const_float(b, f->type.dtype, 1);
	Value *divisor = ir_emit3(b, OP_WHERE, is_zero, one, f);
	Value *quotient = e_div(b, nonzero, divisor);
	Value *none = e_select(b, e_is(b, zeros, 0), quotient);
	return ir_emit3(b, OP_WHERE, is_zero, alone, none);
}

static Value *as_number(Builder *b, Value *cond, DType t)
{
	return ir_cast(b, cond, t);
}

static Value *without_zeros(Builder *b, Value *x)
{
	Value *one = ir_const_float(b, x->type.dtype, 1);
	return ir_emit3(b, OP_WHERE, e_is(b, x, 0), one, x);
}

/* y = x times u at ids;  dx = dy times the u there, du = dy times x and the other u */
static void scatter_mul(GradCtx *c, Op *op, Value *dy, Access a)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0), *ids = op_in(op, 1), *u = op_in(op, 2);
	DType t = x->type.dtype;
	Value *x_zero = as_number(b, e_is(b, x, 0), t), *u_zero = as_number(b, e_is(b, u, 0), t);
	Value *zeros = put(b, a, op, x_zero, ids, u_zero, "add");
	Value *nx = without_zeros(b, x), *nu = without_zeros(b, u);
	Value *nonzero = put(b, a, op, nx, ids, nu, "mul");
	if (grad_wanted(c, x))
		grad_give(c, x, e_mul(b, dy, product_without(b, x, nonzero, zeros)));
	if (grad_wanted(c, u)) {
		Value *there_nonzero = take(b, a, op, nonzero, ids), *there_zeros = take(b, a, op, zeros, ids);
		Value *others = product_without(b, u, there_nonzero, there_zeros);
		grad_give(c, u, e_mul(b, take(b, a, op, dy, ids), others));
	}
}

/* y = the largest (smallest) of x and u at ids;  dy is shared equally by those that reach it */
static void scatter_extremum(GradCtx *c, Op *op, Value *dy, Access a)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0), *ids = op_in(op, 1), *u = op_in(op, 2);
	Value *x_hit = as_number(b, e_eq(b, x, op->out[0]), x->type.dtype);
	Value *u_hit = as_number(b, e_eq(b, u, take(b, a, op, op->out[0], ids)), x->type.dtype);
	Value *share = e_div(b, dy, put(b, a, op, x_hit, ids, u_hit, "add"));
	if (grad_wanted(c, x))
		grad_give(c, x, e_mul(b, share, x_hit));
	if (grad_wanted(c, u))
		grad_give(c, u, e_mul(b, take(b, a, op, share, ids), u_hit));
}

/* Whether ids are literals and no two of them name the same element of x. */
static bool are_distinct(Builder *b, Access a, const Op *op, Value *x, Value *ids, Value *u)
{
	enum { MOST = 1 << 20 };
	if (ids->op->kind != OP_CONST || type_numel(&x->type) > MOST)
		return false;
	Arena *scratch = arena_new();
	Value *hits = put(b, a, op, zeros_like(b, x), ids, ir_const_full(b, u->type, 1), "add");
	const EvalTensor *t = eval_constant(eval_new(b->m, scratch), hits, MOST);
	bool once = t;
	for (int64_t i = 0, n = t ? type_numel(&t->type) : 0; i < n; i++)
		once = once && t->f[i] <= 1;
	arena_free(scratch);
	return once;
}

/* dy for the updates that survived: when several write one element only the last one counts; it is found by
 * numbering the updates. */
static Value *to_those_that_stayed(Builder *b, Access a, const Op *op, Value *dy, Value *ids, Value *u)
{
	int64_t n = type_numel(&u->type);
	Value *there = take(b, a, op, dy, ids);
	if (are_distinct(b, a, op, dy, ids, u))
		return there;
	DType counted = n <= INT32_MAX ? DT_I32 : DT_I64; /* f32 counts exactly only to 2^24 */
	Value *number = ir_emit_typed(b, OP_IOTA, 0, NULL, attr_int(b->m, NULL, "axis", 0), type_tensor(counted, 1, &n));
	number = ir_reshape(b, number, u->type.rank, u->type.dim);
	Type t = dy->type;
	t.dtype = counted;
	Value *last = put(b, a, op, ir_const_full(b, t, -1), ids, number, "none");
	return e_select(b, e_eq(b, take(b, a, op, last, ids), number), there);
}

/* y = x with u written (none) or added (add) at ids.
 * none: dx = dy, but 0 at ids; du = dy at ids where u survived.  add: dx = dy, du = dy at ids. */
static void scatter(GradCtx *c, Op *op, Value *dy, Access a)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0), *ids = op_in(op, 1), *u = op_in(op, 2);
	const char *reduce = attr_get_str(op->attrs, "reduce", "none");
	if (!strcmp(reduce, "mul")) {
		scatter_mul(c, op, dy, a);
		return;
	}
	if (!strcmp(reduce, "max") || !strcmp(reduce, "min")) {
		scatter_extremum(c, op, dy, a);
		return;
	}
	bool added = !strcmp(reduce, "add");
	if (added)
		grad_give(c, x, dy);
	else if (grad_wanted(c, x))
		grad_give(c, x, put(b, a, op, dy, ids, zeros_like(b, u), "none"));
	if (grad_wanted(c, u))
		grad_give(c, u, added ? take(b, a, op, dy, ids) : to_those_that_stayed(b, a, op, dy, ids, u));
}

/* y = x with updates along an axis: see scatter */
void grad_scatter_elements(GradCtx *c, Op *op, Value *const *dout)
{
	scatter(c, op, dout[0], by_axis);
}

/* y = x with updates at index tuples: see scatter */
void grad_scatter_nd(GradCtx *c, Op *op, Value *const *dout)
{
	scatter(c, op, dout[0], by_tuple);
}

/* y, i = the k largest;  dx = dy added to zeros at i */
void grad_topk(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	if (dout[0])
		grad_give(c, x, put(b, by_axis, op, zeros_like(b, x), op->out[1], dout[0], "add"));
}

/* y_i = sum of x_j, j <= i;  dx_j = sum of dy_i, i >= j: the same in the other direction */
void grad_cumsum(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Attr *attrs = attr_int(b->m, op->attrs, "reverse", !attr_get_int(op->attrs, "reverse", 0));
	grad_give(c, op_in(op, 0), ir_emit(b, OP_CUMSUM, 1, dout, attrs));
}

/* Of elements in the range; the step of others fails. */
void grad_in_range(GradCtx *c, Op *op, Value *const *dout)
{
	grad_give(c, op_in(op, 0), dout[0]);
}

/* ---- reductions ---- */

/* A reduced value with the reduced dims kept as dims of 1, so that it broadcasts against x. */
static Value *keep_dims(Builder *b, const Op *op, Value *reduced)
{
	Type t = op_in(op, 0)->type;
	const Attr *axes = attr_find(op->attrs, "axes");
	for (int i = 0; i < axes->n; i++)
		t.dim[axes->ints[i]] = 1;
	return ir_reshape(b, reduced, t.rank, t.dim);
}

static Value *reduce_like(Builder *b, const Op *op, OpKind kind, Value *x)
{
	const Attr *axes = attr_find(op->attrs, "axes");
	return ir_reduce(b, kind, x, axes->n, axes->ints, true);
}

/* y = sum x;  dx = dy everywhere */
void grad_reduce_sum(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	grad_give(c, x, ir_broadcast(b, keep_dims(b, op, dout[0]), &x->type));
}

/* y = sum x / n;  dx = dy / n everywhere */
void grad_reduce_mean(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	double n = (double)type_numel(&x->type) / (double)MAX(type_numel(&dout[0]->type), 1);
	Value *share = e_scale(b, keep_dims(b, op, dout[0]), 1 / n);
	grad_give(c, x, ir_broadcast(b, share, &x->type));
}

/* dy to the first of the largest (smallest) elements of x: reduced dims go last, as one, and elements are put at their
 * numbers in it. */
static Value *to_first(Builder *b, const Op *op, Value *dy)
{
	const Attr *axes = attr_find(op->attrs, "axes");
	Value *x = op_in(op, 0);
	int rank = x->type.rank, perm[IR_MAX_RANK], back[IR_MAX_RANK], kept = 0;
	int64_t flat[IR_MAX_RANK + 1], one[IR_MAX_RANK + 1], moved[IR_MAX_RANK];
	bool gone[IR_MAX_RANK] = {false};
	for (int i = 0; i < axes->n; i++)
		gone[axes->ints[i]] = true;
	for (int pass = 0, n = 0; pass < 2; pass++)
		for (int i = 0; i < rank; i++)
			if (gone[i] == pass)
				perm[n++] = i;
	for (int i = 0; i < rank; back[perm[i]] = i, i++)
		moved[i] = x->type.dim[perm[i]];
	for (; kept < rank - axes->n; kept++)
		flat[kept] = one[kept] = moved[kept];
	flat[kept] = one[kept] = 1;
	for (int i = kept; i < rank; i++)
		flat[kept] *= moved[i];
	Value *rows = ir_reshape(b, ir_transpose(b, x, perm), kept + 1, flat);
	Attr *axis = attr_int(b->m, NULL, "axis", kept);
	Value *at = ir_emit(b, op->kind == OP_REDUCE_MAX ? OP_ARGMAX : OP_ARGMIN, 1, &rows,
		attr_int(b->m, attr_int(b->m, axis, "keepdims", 1), "last", 0));
	Value *in[3] = {zeros_like(b, rows), at, ir_reshape(b, dy, kept + 1, one)};
	Value *dx = ir_emit(b, OP_SCATTER_ELEMENTS, 3, in, attr_str(b->m, axis, "reduce", "none"));
	return ir_transpose(b, ir_reshape(b, dx, rank, moved), back);
}

/* y = max x (min x);  dx = dy / count where x = y, count of such x;  first=1: dy at the first of them */
void grad_reduce_max(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	if (attr_get_int(op->attrs, "first", 0)) {
		grad_give(c, x, to_first(b, op, dout[0]));
		return;
	}
	Value *hit = as_number(b, e_eq(b, x, keep_dims(b, op, op->out[0])), x->type.dtype);
	Value *dy = keep_dims(b, op, dout[0]);
	Value *share = e_div(b, dy, reduce_like(b, op, OP_REDUCE_SUM, hit));
	grad_give(c, x, e_mul(b, hit, share));
}

/* y = product of x;  dx = dy times the other x */
void grad_reduce_prod(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	Value *zeros = reduce_like(b, op, OP_REDUCE_SUM, as_number(b, e_is(b, x, 0), x->type.dtype));
	Value *nonzero = reduce_like(b, op, OP_REDUCE_PROD, without_zeros(b, x));
	Value *others = product_without(b, x, nonzero, zeros);
	grad_give(c, x, e_mul(b, keep_dims(b, op, dout[0]), others));
}
