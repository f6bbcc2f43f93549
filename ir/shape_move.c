/* ir/shape_move.c: shape rules of data movement, indexing and reductions.
 *
 * Adjoints (slice_grad, gather_grad) have the shape of the forward op's operand as an attribute.  Their rule infers the
 * forward op for that shape and compares, so that both rules cannot drift apart. */
#include "ir/shape.h"

#include <string.h>

/* ---- views and copies ---- */

RULE(reshape)
{
	const Type *x = shape_in(op, 0);
	if (!shape_from_attr(err, op, x->dtype, out))
		return false;
	int64_t numel = 1;
	for (int i = 0; i < out->rank; i++)
		if (__builtin_mul_overflow(numel, out->dim[i], &numel))
			numel = -1;
	if (numel == type_numel(x))
		return true;
	return shape_wrong(err, "reshape from %s to %s changes the number of elements", type_str(m->arena, x),
		type_str(m->arena, out));
}

RULE(transpose)
{
	const Type *x = shape_in(op, 0);
	const Attr *perm = shape_ints(err, op, "perm", x->rank);
	unsigned seen = 0;
	if (!perm)
		return false;
	*out = *x;
	for (int i = 0; i < x->rank; i++) {
		int64_t p = perm->ints[i];
		if (p < 0 || p >= x->rank || seen >> p & 1)
			return shape_wrong(err, "perm of transpose is not a permutation of 0..%d (entry %d is %lld)",
				x->rank - 1, i, (long long)p);
		seen |= 1u << p;
		out->dim[i] = x->dim[p];
	}
	return true;
}

RULE(broadcast)
{
	const Type *x = shape_in(op, 0);
	Type both;
	if (!shape_from_attr(err, op, x->dtype, out))
		return false;
	if (type_broadcast(x, out, &both) && type_same_shape(&both, out))
		return true;
	return shape_wrong(err, "%s does not broadcast to %s", type_str(m->arena, x), type_str(m->arena, out));
}

/* ---- slices ---- */

/* Checks that x[start + step * i], i < size, stays inside x.  Even if at most one element is taken, start and step must
 * be near x, so that sums and products of them in passes cannot overflow. */
static bool check_slice(const Type *x, const int64_t *start, const int64_t *step, const int64_t *size,
	Buf *err)
{
	for (int i = 0; i < x->rank; i++) {
		int64_t span, last;
		if (size[i] < 0 || step[i] == 0)
			return shape_wrong(err, "slice of axis %d has size %lld and step %lld", i, (long long)size[i],
				(long long)step[i]);
		if (start[i] < 0 || start[i] > x->dim[i] || step[i] < -x->dim[i] - 1 || step[i] > x->dim[i] + 1)
			return shape_wrong(err, "slice of axis %d starts at %lld with step %lld, but the axis has %lld", i,
				(long long)start[i], (long long)step[i], (long long)x->dim[i]);
		if (size[i] == 0)
			continue;
		if (__builtin_mul_overflow(step[i], size[i] - 1, &span)
			|| __builtin_add_overflow(start[i], span, &last)
			|| start[i] >= x->dim[i] || last < 0 || last >= x->dim[i])
			return shape_wrong(err,
				"slice of axis %d starts at %lld, takes %lld with step %lld, but the axis has %lld", i,
				(long long)start[i], (long long)size[i], (long long)step[i], (long long)x->dim[i]);
	}
	return true;
}

RULE(slice)
{
	const Type *x = shape_in(op, 0);
	const Attr *starts = shape_ints(err, op, "starts", x->rank);
	const Attr *sizes = shape_ints(err, op, "sizes", x->rank);
	const Attr *steps = shape_ints(err, op, "steps", x->rank);
	if (!starts || !sizes || !steps)
		return false;
	*out = type_tensor(x->dtype, x->rank, sizes->ints);
	return check_slice(x, starts->ints, steps->ints, sizes->ints, err);
}

RULE(slice_grad)
{
	const Type *dy = shape_in(op, 0);
	if (!shape_from_attr(err, op, dy->dtype, out) || !shape_want_rank(err, op, 0, out->rank))
		return false;
	const Attr *starts = shape_ints(err, op, "starts", dy->rank);
	const Attr *steps = shape_ints(err, op, "steps", dy->rank);
	return starts && steps && check_slice(out, starts->ints, steps->ints, dy->dim, err);
}

RULE(pad)
{
	const Type *x = shape_in(op, 0);
	const char *mode = attr_get_str(op->attrs, "mode", "");
	const Attr *before = shape_ints(err, op, "before", x->rank);
	const Attr *after = shape_ints(err, op, "after", x->rank);
	bool constant = !strcmp(mode, "constant"), reflect = !strcmp(mode, "reflect");
	bool wrap = !strcmp(mode, "wrap");
	if (!before || !after)
		return false;
	if (!constant && !reflect && !wrap && strcmp(mode, "edge"))
		return shape_wrong(err, "pad by \"%s\", expected constant, reflect, edge or wrap", mode);
	*out = *x;
	for (int i = 0; i < x->rank; i++) {
		int64_t b = before->ints[i], a = after->ints[i], most = x->dim[i] - reflect;
		if (b < 0 || a < 0 || __builtin_add_overflow(x->dim[i], b, &out->dim[i])
			|| __builtin_add_overflow(out->dim[i], a, &out->dim[i]))
			return shape_wrong(err, "pad of axis %d by %lld and %lld", i, (long long)b, (long long)a);
		bool too_far = reflect ? b > most || a > most : (a || b) && most == 0;
		if (!constant && too_far)
			return shape_wrong(err, "pad of axis %d by %lld and %lld in mode %s, but the axis has %lld", i,
				(long long)b, (long long)a, mode, (long long)x->dim[i]);
	}
	return true;
}

/* The attribute axis of a row that says axis:a. */
static int axis_of(const Op *op)
{
	return (int)attr_get_int(op->attrs, "axis", 0);
}

RULE(concat)
{
	int axis = axis_of(op);
	*out = *shape_in(op, 0);
	for (int i = 1; i < op->n_in; i++) {
		const Type *x = shape_in(op, i);
		Type fits = *x;
		if (x->rank == out->rank)
			fits.dim[axis] = out->dim[axis];
		if (x->dtype != out->dtype || !type_same_shape(&fits, out))
			return shape_wrong(err, "concat along axis %d: %s does not fit %s", axis, type_str(m->arena, x),
				type_str(m->arena, shape_in(op, 0)));
		if (__builtin_add_overflow(out->dim[axis], x->dim[axis], &out->dim[axis]))
			return shape_wrong(err, "concat along axis %d overflows", axis);
	}
	return true;
}

RULE(columns)
{
	int64_t start = attr_get_int(op->attrs, "start", 0), size = attr_get_int(op->attrs, "size", 0);
	*out = *shape_in(op, 0);
	int64_t n = out->rank ? out->dim[out->rank - 1] : 0;
	if (start < 0 || size < 1 || start > n - size)
		return shape_wrong(err, "columns %lld to %lld of %s", (long long)start, (long long)size + start,
			type_str(m->arena, out));
	int64_t heads = attr_get_int(op->attrs, "heads", 0);
	out->dim[out->rank - 1] = size;
	if (!attr_find(op->attrs, "heads"))
		return true;
	if (heads < 1 || size % heads || out->rank == IR_MAX_RANK)
		return shape_wrong(err, "%lld columns as %lld heads", (long long)size, (long long)heads);
	out->dim[out->rank - 1] = heads;
	out->dim[out->rank++] = size / heads;
	return true;
}

RULE(join)
{
	int axis = axis_of(op);
	int64_t columns = 0;
	*out = *shape_in(op, 0);
	for (int i = 0; i < op->n_in; i++) {
		const Type *x = shape_in(op, i);
		Type rows = *x, first = *shape_in(op, 0);
		rows.rank = MIN(x->rank, axis);
		first.rank = axis;
		if (!type_equal(&rows, &first))
			return shape_wrong(err, "join from axis %d on: %s does not fit %s", axis, type_str(m->arena, x),
				type_str(m->arena, shape_in(op, 0)));
		if (__builtin_add_overflow(columns, type_columns(x, axis), &columns))
			return shape_wrong(err, "join from axis %d on overflows", axis);
	}
	int64_t width = attr_get_int(op->attrs, "width", columns);
	if (width < columns)
		return shape_wrong(err, "join of %lld columns in rows of %lld", (long long)columns, (long long)width);
	out->rank = axis + 1;
	out->dim[axis] = width;
	return true;
}

RULE(rows)
{
	int64_t start = attr_get_int(op->attrs, "start", 0), size = attr_get_int(op->attrs, "size", 0);
	*out = *shape_in(op, 0);
	if (!out->rank || start < 0 || size < 1 || start > out->dim[0] - size)
		return shape_wrong(err, "rows %lld to %lld of %s", (long long)start, (long long)size + start,
			type_str(m->arena, out));
	out->dim[0] = size;
	return true;
}

RULE(split)
{
	const Type *x = shape_in(op, 0);
	const Attr *sizes = shape_ints(err, op, "sizes", op->n_out);
	int64_t sum = 0;
	int axis = axis_of(op);
	if (!sizes)
		return false;
	for (int i = 0; i < op->n_out; i++) {
		out[i] = *x;
		out[i].dim[axis] = sizes->ints[i];
		if (sizes->ints[i] < 0 || __builtin_add_overflow(sum, sizes->ints[i], &sum))
			return shape_wrong(err, "split with size %lld", (long long)sizes->ints[i]);
	}
	return sum == x->dim[axis] || shape_wrong(err, "split of axis %d into %lld in all, but the axis has %lld",
		axis, (long long)sum, (long long)x->dim[axis]);
}

/* ---- indexing ---- */

/* The shape of x with the axis replaced by the shape of ids. */
static bool gathered(const Type *x, const Type *ids, int axis, Type *out, Buf *err)
{
	if (x->rank + ids->rank - 1 > IR_MAX_RANK)
		return shape_wrong(err, "gather gives %d dimensions, at most %d are supported",
			x->rank + ids->rank - 1, IR_MAX_RANK);
	*out = type_tensor(x->dtype, axis, x->dim);
	for (int i = 0; i < ids->rank; i++)
		out->dim[out->rank++] = ids->dim[i];
	for (int i = axis + 1; i < x->rank; i++)
		out->dim[out->rank++] = x->dim[i];
	return true;
}

RULE(gather)
{
	return shape_want_index(err, op, 1) && gathered(shape_in(op, 0), shape_in(op, 1), axis_of(op), out, err);
}

RULE(gather_grad)
{
	Type dy;
	int axis;
	return shape_from_attr(err, op, shape_in(op, 0)->dtype, out) && shape_want_index(err, op, 1)
		&& shape_want_number(err, op, 0) && shape_axis(err, op, out, &axis)
		&& gathered(out, shape_in(op, 1), axis, &dy, err) && shape_want(m, err, op, 0, &dy)
		&& shape_want(m, err, op, 2, out);
}

/* Checks that ids has x's rank and, except along the axis, is not longer than x. */
static bool check_elements(Module *m, const Op *op, Buf *err)
{
	const Type *x = shape_in(op, 0), *ids = shape_in(op, 1);
	int axis = axis_of(op);
	if (!shape_want_index(err, op, 1) || !shape_want_rank(err, op, 1, x->rank))
		return false;
	for (int i = 0; i < x->rank; i++)
		if (i != axis && ids->dim[i] > x->dim[i])
			return shape_wrong(err, "axis %d of the indices %s is longer than in %s", i,
				type_str(m->arena, ids), type_str(m->arena, x));
	return true;
}

RULE(gather_elements)
{
	*out = *shape_in(op, 1);
	out->dtype = shape_in(op, 0)->dtype;
	return check_elements(m, op, err);
}

static bool check_reduce(const Op *op, Buf *err)
{
	static const char *const how[] = {"none", "add", "mul", "max", "min"};
	const char *s = attr_get_str(op->attrs, "reduce", "");
	for (int i = 0; i < COUNT_OF(how); i++)
		if (!strcmp(how[i], s))
			return i == 0 || shape_want_number(err, op, 0);
	return shape_wrong(err, "%s by \"%s\", expected none, add, mul, max or min", op_info[op->kind].text, s);
}

RULE(scatter_elements)
{
	Type updates = *shape_in(op, 1);
	*out = *shape_in(op, 0);
	updates.dtype = out->dtype;
	return check_reduce(op, err) && check_elements(m, op, err) && shape_want(m, err, op, 2, &updates);
}

/* The shape of x[ids] for ids [..., K], where each K-tuple indexes the axes behind the first `batch`. */
static bool nd_shape(Module *m, const Op *op, int64_t batch, Type *out, Buf *err)
{
	const Type *x = shape_in(op, 0), *ids = shape_in(op, 1);
	if (!shape_want_index(err, op, 1))
		return false;
	if (!ids->rank || batch < 0 || batch >= ids->rank || batch > x->rank
		|| ids->dim[ids->rank - 1] > x->rank - batch)
		return shape_wrong(err, "indices %s with %lld batch dimensions do not fit %s",
			type_str(m->arena, ids), (long long)batch, type_str(m->arena, x));
	int from = (int)(batch + ids->dim[ids->rank - 1]);
	if (ids->rank - 1 + x->rank - from > IR_MAX_RANK)
		return shape_wrong(err, "%s gives %d dimensions, at most %d are supported", op_info[op->kind].text,
			ids->rank - 1 + x->rank - from, IR_MAX_RANK);
	for (int i = 0; i < batch; i++)
		if (ids->dim[i] != x->dim[i])
			return shape_wrong(err, "batch dimension %d differs: %lld and %lld", i, (long long)x->dim[i],
				(long long)ids->dim[i]);
	*out = type_tensor(x->dtype, ids->rank - 1, ids->dim);
	for (int i = from; i < x->rank; i++)
		out->dim[out->rank++] = x->dim[i];
	return true;
}

RULE(gather_nd)
{
	return nd_shape(m, op, attr_get_int(op->attrs, "batch_dims", 0), out, err);
}

RULE(scatter_nd)
{
	Type updates;
	*out = *shape_in(op, 0);
	return check_reduce(op, err) && nd_shape(m, op, 0, &updates, err) && shape_want(m, err, op, 2, &updates);
}

/* ---- along an axis ---- */

static void drop_axis(Type *t, int axis, bool keep)
{
	if (keep) {
		t->dim[axis] = 1;
		return;
	}
	t->rank--;
	for (int i = axis; i < t->rank; i++)
		t->dim[i] = t->dim[i + 1];
	t->dim[t->rank] = 0;
}

RULE(argmax)
{
	const Type *x = shape_in(op, 0);
	int axis = axis_of(op);
	*out = *x;
	out->dtype = DT_I64;
	if (!shape_want_number(err, op, 0))
		return false;
	if (x->dim[axis] == 0)
		return shape_wrong(err, "%s over axis %d of %s, which is empty", op_info[op->kind].text, axis,
			type_str(m->arena, x));
	drop_axis(out, axis, attr_get_int(op->attrs, "keepdims", 0));
	return true;
}

RULE(topk)
{
	const Type *x = shape_in(op, 0);
	int64_t k = attr_get_int(op->attrs, "k", 0);
	int axis = axis_of(op);
	if (!shape_want_number(err, op, 0))
		return false;
	if (k < 0 || k > x->dim[axis])
		return shape_wrong(err, "topk of %lld along axis %d, which has %lld", (long long)k, axis,
			(long long)x->dim[axis]);
	out[0] = *x;
	out[0].dim[axis] = k;
	out[1] = out[0];
	out[1].dtype = DT_I64;
	return true;
}

RULE(reduce)
{
	const Type *x = shape_in(op, 0);
	const Attr *axes = attr_find(op->attrs, "axes");
	bool keep = attr_get_int(op->attrs, "keepdims", 0);
	bool order = op->kind == OP_REDUCE_MAX || op->kind == OP_REDUCE_MIN;
	unsigned seen = 0;
	if (!order && !shape_want_number(err, op, 0))
		return false;
	*out = *x;
	for (int i = 0; i < axes->n; i++) {
		int64_t a = axes->ints[i];
		if (a < 0 || a >= x->rank || seen >> a & 1)
			return shape_wrong(err, "axes of %s: %lld is not in 0..%d or stands twice",
				op_info[op->kind].text, (long long)a, x->rank - 1);
		seen |= 1u << a;
	}
	for (int i = x->rank - 1; i >= 0; i--)
		if (seen >> i & 1)
			drop_axis(out, i, keep);
	if (order && type_numel(x) == 0 && type_numel(out) > 0)
		return shape_wrong(err, "%s of %s, which is empty", op_info[op->kind].text, type_str(m->arena, x));
	return shape_to(err, op, out);
}
