/* ir/eval_move.c: reference of data movement, indexing, scans and reductions.
 *
 * Every element moves as its eight bytes, so one loop serves floats and integers. */
#include "ir/eval.h"

#include <math.h>
#include <string.h>

Axis eval_axis(const Type *x, int axis)
{
	Axis a = {1, x->dim[axis], 1};
	for (int i = 0; i < axis; i++)
		a.outer *= x->dim[i];
	for (int i = axis + 1; i < x->rank; i++)
		a.inner *= x->dim[i];
	return a;
}

static Axis axis_of(const Op *op, const Type *x)
{
	return eval_axis(x, (int)attr_get_int(op->attrs, "axis", 0));
}

static void move(EvalTensor *y, int64_t to, const EvalTensor *x, int64_t from)
{
	memcpy(y->i + to, x->i + from, sizeof(*y->i));
}

static const int64_t *ints(const Op *op, const char *name)
{
	return attr_find(op->attrs, name)->ints;
}

/* ---- copies ---- */

static void copy_all(EvalTensor *y, const EvalTensor *x)
{
	for (int64_t i = 0, n = type_numel(&x->type); i < n; i++)
		move(y, i, x, i);
}

/* Results of views have no memory of their own. */
RULE(copy)
{
	if (out[0]->i)
		copy_all(out[0], in[0]);
	else
		out[0]->i = in[0]->i;
	return true;
}

RULE(transpose)
{
	int64_t stride[IR_MAX_RANK], to[IR_MAX_RANK];
	type_strides(&in[0]->type, stride);
	for (int i = 0; i < out[0]->type.rank; i++)
		to[i] = stride[ints(op, "perm")[i]];
	for (Walk w = walk_over(out[0]->type.rank, out[0]->type.dim); w.left; walk_next(&w))
		move(out[0], w.k, in[0], walk_offset(&w, to));
	return true;
}

RULE(broadcast)
{
	int64_t stride[IR_MAX_RANK];
	eval_broadcast_strides(&in[0]->type, &out[0]->type, stride);
	for (Walk w = walk_over(out[0]->type.rank, out[0]->type.dim); w.left; walk_next(&w))
		move(out[0], w.k, in[0], walk_offset(&w, stride));
	return true;
}

/* Offset in `whole` of element w of a slice. */
static int64_t slice_offset(const Op *op, const Walk *w, const Type *whole)
{
	const int64_t *start = ints(op, "starts"), *step = ints(op, "steps");
	int64_t stride[IR_MAX_RANK], at = 0;
	type_strides(whole, stride);
	for (int i = 0; i < w->rank; i++)
		at += (start[i] + step[i] * w->at[i]) * stride[i];
	return at;
}

RULE(slice)
{
	for (Walk w = walk_over(out[0]->type.rank, out[0]->type.dim); w.left; walk_next(&w))
		move(out[0], w.k, in[0], slice_offset(op, &w, &in[0]->type));
	return true;
}

RULE(slice_grad)
{
	for (Walk w = walk_over(in[0]->type.rank, in[0]->type.dim); w.left; walk_next(&w))
		move(out[0], slice_offset(op, &w, &out[0]->type), in[0], w.k);
	return true;
}

/* The coordinate of x that the padded coordinate i shows (0 = the first of x); -1 = the fill value. */
static int64_t pad_source(char mode, int64_t i, int64_t n)
{
	if (i >= 0 && i < n)
		return i;
	switch (mode) {
	case 'r': return i < 0 ? -i : 2 * (n - 1) - i;
	case 'e': return i < 0 ? 0 : n - 1;
	case 'w': return (i % n + n) % n;
	default: return -1;
	}
}

RULE(pad)
{
	const Type *x = &in[0]->type;
	char mode = attr_get_str(op->attrs, "mode", "c")[0];
	double fill = attr_get_float(op->attrs, "value", 0);
	Scalar value = dtype_is_float(x->dtype) ? (Scalar){.f = fill} : (Scalar){.i = int_of_double(fill)};
	int64_t stride[IR_MAX_RANK];
	type_strides(x, stride);
	for (Walk w = walk_over(out[0]->type.rank, out[0]->type.dim); w.left; walk_next(&w)) {
		int64_t from = 0;
		for (int i = 0; i < x->rank && from >= 0; i++) {
			int64_t at = pad_source(mode, w.at[i] - ints(op, "before")[i], x->dim[i]);
			from = at < 0 ? -1 : from + at * stride[i];
		}
		eval_put(out[0], w.k, from < 0 ? value : eval_get(in[0], from));
	}
	return true;
}

/* Copies between a whole tensor and a part of it that begins at `start` along the axis. */
static void move_part(EvalTensor *y, const EvalTensor *x, Axis whole, Axis part, int64_t start, bool cut)
{
	for (int64_t o = 0; o < part.outer; o++)
		for (int64_t i = 0; i < part.n * part.inner; i++) {
			int64_t in_part = o * part.n * part.inner + i;
			int64_t in_whole = (o * whole.n + start) * whole.inner + i;
			move(y, cut ? in_part : in_whole, x, cut ? in_whole : in_part);
		}
}

RULE(concat)
{
	int64_t start = 0;
	for (int i = 0; i < op->n_in; i++) {
		Axis part = axis_of(op, &in[i]->type);
		move_part(out[0], in[i], axis_of(op, &out[0]->type), part, start, false);
		start += part.n;
	}
	return true;
}

/* What rows have behind the parts has no content: NaN, so that a reader is found out. */
RULE(join)
{
	int64_t start = 0, numel = attr_find(op->attrs, "width") ? type_numel(&out[0]->type) : 0;
	for (int64_t i = 0; i < numel && dtype_is_float(out[0]->type.dtype); i++)
		eval_put(out[0], i, (Scalar){.f = NAN});
	for (int i = 0; i < op->n_in; i++) {
		Axis part = axis_of(op, &in[i]->type);
		part.n *= part.inner;
		part.inner = 1;
		move_part(out[0], in[i], axis_of(op, &out[0]->type), part, start, false);
		start += part.n;
	}
	return true;
}

RULE(columns)
{
	int64_t n = in[0]->type.dim[in[0]->type.rank - 1], start = attr_get_int(op->attrs, "start", 0);
	int64_t size = attr_get_int(op->attrs, "size", 0), numel = type_numel(&out[0]->type);
	*out[0] = eval_alloc(e, out[0]->type); /* a view, but evaluated tensors have no pitch */
	for (int64_t i = 0; i < numel; i++)
		move(out[0], i, in[0], i / size * n + start + i % size);
	return true;
}

RULE(rows)
{
	int64_t numel = type_numel(&out[0]->type), first = attr_get_int(op->attrs, "start", 0);
	*out[0] = eval_alloc(e, out[0]->type);
	for (int64_t i = 0; i < numel; i++)
		move(out[0], i, in[0], first * (numel / out[0]->type.dim[0]) + i);
	return true;
}

RULE(split)
{
	int64_t start = 0;
	for (int i = 0; i < op->n_out; i++) {
		Axis part = axis_of(op, &out[i]->type);
		move_part(out[i], in[0], axis_of(op, &in[0]->type), part, start, true);
		start += part.n;
	}
	return true;
}

/* ---- indexing ---- */

/* Makes a negative index count from the end; false = out of range. */
static bool index_fix(int64_t *id, int64_t n)
{
	if (*id < 0)
		*id += n;
	return *id >= 0 && *id < n;
}

RULE(gather)
{
	Axis x = axis_of(op, &in[0]->type);
	int64_t n = type_numel(&in[1]->type);
	for (int64_t o = 0; o < x.outer; o++)
		for (int64_t k = 0; k < n; k++) {
			int64_t id = in[1]->i[k];
			if (!index_fix(&id, x.n))
				return false;
			for (int64_t i = 0; i < x.inner; i++)
				move(out[0], (o * n + k) * x.inner + i, in[0], (o * x.n + id) * x.inner + i);
		}
	return true;
}

static Scalar plus(DType t, Scalar a, Scalar b)
{
	if (dtype_is_float(t))
		return (Scalar){.f = a.f + b.f};
	return (Scalar){.i = (int64_t)((uint64_t)a.i + (uint64_t)b.i)};
}

RULE(gather_grad)
{
	EvalTensor *dx = out[0];
	Axis x = axis_of(op, &dx->type);
	int64_t n = type_numel(&in[1]->type), numel = op_in(op, 2) ? type_numel(&dx->type) : 0;
	for (int64_t i = 0; i < numel; i++)
		eval_put(dx, i, eval_get(in[2], i));
	for (int64_t o = 0; o < x.outer; o++)
		for (int64_t k = 0; k < n; k++) {
			int64_t id = in[1]->i[k];
			if (!index_fix(&id, x.n))
				return false;
			for (int64_t i = 0; i < x.inner; i++) {
				int64_t to = (o * x.n + id) * x.inner + i;
				Scalar dy = eval_get(in[0], (o * n + k) * x.inner + i);
				eval_put(dx, to, plus(dx->type.dtype, eval_get(dx, to), dy));
			}
		}
	return true;
}

/* Offset in x of the element that element w of the indices names along the axis; -1 = out of range. */
static int64_t element_offset(const Op *op, const Walk *w, const Type *x, int64_t id)
{
	int axis = (int)attr_get_int(op->attrs, "axis", 0);
	int64_t stride[IR_MAX_RANK];
	type_strides(x, stride);
	if (!index_fix(&id, x->dim[axis]))
		return -1;
	return walk_offset(w, stride) + (id - w->at[axis]) * stride[axis];
}

RULE(gather_elements)
{
	for (Walk w = walk_over(in[1]->type.rank, in[1]->type.dim); w.left; walk_next(&w)) {
		int64_t from = element_offset(op, &w, &in[0]->type, in[1]->i[w.k]);
		if (from < 0)
			return false;
		move(out[0], w.k, in[0], from);
	}
	return true;
}

/* Combines y[to] with x[from] as the attribute reduce says. */
static void combine(const Op *op, EvalTensor *y, int64_t to, const EvalTensor *x, int64_t from)
{
	static const struct { const char *text; OpKind kind; } how[] = {
		{"add", OP_ADD}, {"mul", OP_MUL}, {"max", OP_MAX}, {"min", OP_MIN},
	};
	const char *reduce = attr_get_str(op->attrs, "reduce", "none");
	Scalar s[] = {eval_get(y, to), eval_get(x, from)};
	for (int i = 0; i < COUNT_OF(how); i++) {
		if (!strcmp(how[i].text, reduce)) {
			eval_put(y, to, eval_scalar_fn(how[i].kind, y->type.dtype)(op, s));
			return;
		}
	}
	eval_put(y, to, s[1]);
}

RULE(scatter_elements)
{
	copy_all(out[0], in[0]);
	for (Walk w = walk_over(in[1]->type.rank, in[1]->type.dim); w.left; walk_next(&w)) {
		int64_t to = element_offset(op, &w, &in[0]->type, in[1]->i[w.k]);
		if (to < 0)
			return false;
		combine(op, out[0], to, in[2], w.k);
	}
	return true;
}

/* For x as [batch, axes named by a tuple, inner]: the offset of the tuple at ids; -1 = out of range. */
static int64_t tuple_offset(const Type *x, int64_t batch_dims, const int64_t *id, int64_t n)
{
	int64_t stride[IR_MAX_RANK], at = 0;
	type_strides(x, stride);
	for (int64_t k = 0; k < n; k++) {
		int64_t one = id[k];
		if (!index_fix(&one, x->dim[batch_dims + k]))
			return -1;
		at += one * stride[batch_dims + k];
	}
	return at;
}

static int64_t numel_from(const Type *x, int64_t from)
{
	int64_t n = 1;
	for (int64_t i = from; i < x->rank; i++)
		n *= x->dim[i];
	return n;
}

RULE(gather_nd)
{
	const Type *x = &in[0]->type, *ids = &in[1]->type;
	int64_t batch_dims = attr_get_int(op->attrs, "batch_dims", 0), k = ids->dim[ids->rank - 1];
	int64_t per_batch = numel_from(x, batch_dims), inner = numel_from(x, batch_dims + k), tuples = 1;
	for (int i = 0; i < ids->rank - 1; i++)
		tuples *= ids->dim[i];
	int64_t batches = per_batch ? type_numel(x) / per_batch : 0;
	for (int64_t t = 0; t < tuples; t++) {
		int64_t at = tuple_offset(x, batch_dims, in[1]->i + t * k, k);
		if (at < 0)
			return false;
		for (int64_t i = 0; i < inner; i++)
			move(out[0], t * inner + i, in[0], t / (tuples / batches) * per_batch + at + i);
	}
	return true;
}

RULE(scatter_nd)
{
	const Type *x = &in[0]->type, *ids = &in[1]->type;
	int64_t k = ids->dim[ids->rank - 1], inner = numel_from(x, k), tuples = 1;
	for (int i = 0; i < ids->rank - 1; i++)
		tuples *= ids->dim[i];
	copy_all(out[0], in[0]);
	for (int64_t t = 0; t < tuples; t++) {
		int64_t at = tuple_offset(x, 0, in[1]->i + t * k, k);
		if (at < 0)
			return false;
		for (int64_t i = 0; i < inner; i++)
			combine(op, out[0], at + i, in[2], t * inner + i);
	}
	return true;
}

/* ---- ranges ---- */

/* Reports nothing: the oracle goes on as kernels do. */
RULE(in_range)
{
	double low = attr_get_float(op->attrs, "low", 0), high = attr_get_float(op->attrs, "high", 0);
	bool is_float = dtype_is_float(in[0]->type.dtype);
	for (int64_t i = 0; i < type_numel(&in[0]->type); i++) {
		Scalar x = eval_get(in[0], i);
		double v = is_float ? x.f : (double)x.i;
		Scalar least = is_float ? (Scalar){.f = low} : (Scalar){.i = (int64_t)low};
		eval_put(out[0], i, v >= low && v <= high ? x : least);
	}
	return true;
}

/* ---- along an axis ---- */

RULE(cumsum)
{
	Axis x = axis_of(op, &in[0]->type);
	bool exclusive = attr_get_int(op->attrs, "exclusive", 0), reverse = attr_get_int(op->attrs, "reverse", 0);
	for (int64_t o = 0; o < x.outer; o++)
		for (int64_t i = 0; i < x.inner; i++) {
			Scalar sum = {0};
			for (int64_t k = 0; k < x.n; k++) {
				int64_t at = (o * x.n + (reverse ? x.n - 1 - k : k)) * x.inner + i;
				Scalar now = plus(in[0]->type.dtype, sum, eval_get(in[0], at));
				eval_put(out[0], at, exclusive ? sum : now);
				sum = now;
			}
		}
	return true;
}

/* Whether a comes before b in descending (or ascending) order; NaN is the largest. */
static bool goes_before(const EvalTensor *t, int64_t a, int64_t b, bool largest)
{
	Scalar x = eval_get(t, a), y = eval_get(t, b);
	if (dtype_is_float(t->type.dtype)) {
		if (isnan(x.f) || isnan(y.f))
			return largest ? isnan(x.f) && !isnan(y.f) : !isnan(x.f) && isnan(y.f);
		return largest ? x.f > y.f : x.f < y.f;
	}
	if (t->type.dtype == DT_U64)
		return largest ? (uint64_t)x.i > (uint64_t)y.i : (uint64_t)x.i < (uint64_t)y.i;
	return largest ? x.i > y.i : x.i < y.i;
}

static bool arg_best(const Op *op, const EvalTensor *x, EvalTensor *y, bool largest)
{
	Axis a = axis_of(op, &x->type);
	bool last = attr_get_int(op->attrs, "last", 0);
	for (int64_t o = 0; o < a.outer; o++)
		for (int64_t i = 0; i < a.inner; i++) {
			int64_t best = 0, from = o * a.n * a.inner + i;
			for (int64_t k = 1; k < a.n; k++) {
				int64_t old = from + best * a.inner, now = from + k * a.inner;
				if (last ? !goes_before(x, old, now, largest) : goes_before(x, now, old, largest))
					best = k;
			}
			y->i[o * a.inner + i] = best;
		}
	return true;
}

RULE(argmax)
{
	return arg_best(op, in[0], out[0], true);
}

RULE(argmin)
{
	return arg_best(op, in[0], out[0], false);
}

/* Selects the best of the elements that are left, k times. */
RULE(topk)
{
	Axis x = axis_of(op, &in[0]->type), y = axis_of(op, &out[0]->type);
	bool largest = attr_get_int(op->attrs, "largest", 1);
	bool *taken = NEW_N(e->arena, bool, MAX(x.n, 1));
	for (int64_t o = 0; o < x.outer; o++)
		for (int64_t i = 0; i < x.inner; i++) {
			int64_t from = o * x.n * x.inner + i;
			memset(taken, 0, (size_t)x.n);
			for (int64_t k = 0; k < y.n; k++) {
				int64_t best = -1, to = (o * y.n + k) * y.inner + i;
				for (int64_t c = 0; c < x.n; c++)
					if (!taken[c] && (best < 0
						|| goes_before(in[0], from + c * x.inner, from + best * x.inner, largest)))
						best = c;
				taken[best] = true;
				move(out[0], to, in[0], from + best * x.inner);
				out[1]->i[to] = best;
			}
		}
	return true;
}

/* ---- reductions ---- */

static OpKind step_of(OpKind reduce)
{
	switch (reduce) {
	case OP_REDUCE_MAX: return OP_MAX;
	case OP_REDUCE_MIN: return OP_MIN;
	case OP_REDUCE_PROD: return OP_MUL;
	default: return OP_ADD;
	}
}

static void mean_of_sums(EvalTensor *y, int64_t count)
{
	for (int64_t i = 0, n = type_numel(&y->type); i < n; i++) {
		Scalar s = eval_get(y, i);
		if (dtype_is_float(y->type.dtype))
			eval_put(y, i, (Scalar){.f = s.f / (double)count});
		else
			eval_put(y, i, (Scalar){.i = count ? s.i / count : 0});
	}
}

RULE(reduce)
{
	const Type *x = &in[0]->type;
	const Attr *axes = attr_find(op->attrs, "axes");
	int64_t stride[IR_MAX_RANK], n = type_numel(&out[0]->type), along = 1;
	bool gone[IR_MAX_RANK] = {0}, *begun = NEW_N(e->arena, bool, MAX(n, 1));
	OpKind step = step_of(op->kind);
	ScalarFn *fn = eval_scalar_fn(step, x->dtype);
	for (int i = 0; i < axes->n; i++)
		gone[axes->ints[i]] = true;
	for (int64_t i = x->rank - 1, s = 1; i >= 0; i--) {
		stride[i] = gone[i] ? 0 : s;
		along *= gone[i] ? x->dim[i] : 1;
		s *= gone[i] ? 1 : x->dim[i];
	}
	if (step == OP_MUL)
		for (int64_t i = 0; i < n; i++)
			eval_put(out[0], i, dtype_is_float(x->dtype) ? (Scalar){.f = 1} : (Scalar){.i = 1});
	for (Walk w = walk_over(x->rank, x->dim); w.left; walk_next(&w)) {
		int64_t to = walk_offset(&w, stride);
		Scalar s[] = {eval_get(out[0], to), eval_get(in[0], w.k)};
		eval_put(out[0], to, begun[to] ? fn(op, s) : s[1]);
		begun[to] = true;
	}
	if (op->kind == OP_REDUCE_MEAN)
		mean_of_sums(out[0], along);
	return true;
}

RULE(norm)
{
	for (int i = 0; i < op->n_in; i++)
		for (int64_t k = 0, n = type_numel(&in[i]->type); k < n; k++)
			out[0]->f[0] += in[i]->f[k] * in[i]->f[k];
	return true;
}
