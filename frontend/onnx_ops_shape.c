/* frontend/onnx_ops_shape.c: reshaping, slicing, padding and joining.
 *
 * Shapes, starts and repeats must be known at compile time.  Limits such as INT64_MAX are clamped without overflow. */
#include "frontend/onnx_import.h"

#include <inttypes.h>
#include <string.h>

/* ---- reshape and its relatives ---- */

bool import_reshape(Node *n)
{
	const int64_t *want;
	int count, infer = -1;
	int64_t dim[IR_MAX_RANK], known = 1;
	if (!node_want(n, 2, 2) || !node_known_ints(n, 1, "shape", &want, &count))
		return false;
	const Type *t = &n->in[0]->type;
	if (count > IR_MAX_RANK)
		return node_error(n, "rank %d is above %d", count, IR_MAX_RANK);
	for (int i = 0; i < count; i++) {
		bool copy = want[i] == 0 && !node_int(n, "allowzero", 0);
		if (want[i] < -1 || (want[i] == -1 && infer >= 0) || (copy && i >= t->rank))
			return node_error(n, "shape has a bad entry %" PRId64 " at %d", want[i], i);
		dim[i] = copy ? t->dim[i] : want[i];
		if (want[i] == -1)
			infer = i;
	}
	if (infer >= 0) {
		dim[infer] = 1;
		known = onnx_dims_numel(count, dim);
		if (known <= 0 || type_numel(t) % known)
			return node_error(n, "%s cannot take a shape whose other dimensions multiply to %" PRId64,
				type_str(n->im->arena, t), known);
		dim[infer] = type_numel(t) / known;
	}
	if (onnx_dims_numel(count, dim) < 0)
		return node_error(n, "the shape's dimensions overflow");
	n->out[0] = ir_reshape(n->b, n->in[0], count, dim);
	return true;
}

bool import_flatten(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	const Type *t = &n->in[0]->type;
	int64_t axis = node_int(n, "axis", 1), dim[2] = {1, 1};
	if (axis < -t->rank || axis > t->rank)
		return node_error(n, "axis %" PRId64 " is outside %d..%d", axis, -t->rank, t->rank);
	axis += axis < 0 ? t->rank : 0;
	for (int i = 0; i < t->rank; i++)
		dim[i >= axis] *= t->dim[i];
	n->out[0] = ir_reshape(n->b, n->in[0], 2, dim);
	return true;
}

bool import_squeeze(Node *n)
{
	int64_t axes[IR_MAX_RANK], dim[IR_MAX_RANK];
	int count, rank = 0;
	bool given;
	if (!node_want(n, 1, 2))
		return false;
	const Type *t = &n->in[0]->type;
	if (!node_axes(n, 1, t->rank, axes, &count, &given))
		return false;
	for (int i = 0, k = 0; i < t->rank; i++) {
		bool named = k < count && axes[k] == i;
		k += named;
		if (named && t->dim[i] != 1)
			return node_error(n, "dimension %d of %s is not 1", i, type_str(n->im->arena, t));
		if (given ? !named : t->dim[i] != 1)
			dim[rank++] = t->dim[i];
	}
	n->out[0] = ir_reshape(n->b, n->in[0], rank, dim);
	return true;
}

bool import_unsqueeze(Node *n)
{
	int64_t axes[IR_MAX_RANK], dim[IR_MAX_RANK];
	const int64_t *list = NULL;
	int count;
	bool given;
	if (!node_want(n, 1, 2) || !node_list(n, "axes", 1, &list, &count))
		return false;
	const Type *t = &n->in[0]->type;
	int rank = t->rank + MAX(count, 0);
	if (rank > IR_MAX_RANK)
		return node_error(n, "rank %d is above %d", rank, IR_MAX_RANK);
	if (!node_axes(n, 1, rank, axes, &count, &given))
		return false;
	for (int i = 0, k = 0, from = 0; i < rank; i++) {
		bool fresh = k < count && axes[k] == i;
		k += fresh;
		dim[i] = fresh ? 1 : t->dim[from++];
	}
	n->out[0] = ir_reshape(n->b, n->in[0], rank, dim);
	return true;
}

bool import_transpose(Node *n)
{
	const int64_t *list;
	int perm[IR_MAX_RANK];
	bool seen[IR_MAX_RANK] = {false};
	if (!node_want(n, 1, 1))
		return false;
	int rank = n->in[0]->type.rank, count = node_ints(n, "perm", &list);
	if (count >= 0 && count != rank)
		return node_error(n, "perm has %d entries, the operand has rank %d", count, rank);
	for (int i = 0; i < rank; i++) {
		int64_t p = count < 0 ? rank - 1 - i : list[i] < 0 ? list[i] + rank : list[i];
		if (p < 0 || p >= rank || seen[p])
			return node_error(n, "perm is not a permutation of 0..%d", rank - 1);
		seen[p] = true;
		perm[i] = (int)p;
	}
	n->out[0] = ir_transpose(n->b, n->in[0], perm);
	return true;
}

bool import_expand(Node *n)
{
	const int64_t *list;
	int count;
	Type out;
	if (!node_want(n, 2, 2) || !node_known_ints(n, 1, "shape", &list, &count))
		return false;
	if (count > IR_MAX_RANK || onnx_dims_numel(count, list) < 0)
		return node_error(n, "its shape has a rank above 8, a negative or an overflowing dimension");
	Type want = type_tensor(n->in[0]->type.dtype, count, list);
	if (!type_broadcast(&n->in[0]->type, &want, &out))
		return node_error(n, "%s does not broadcast to %s", type_str(n->im->arena, &n->in[0]->type),
			type_str(n->im->arena, &want));
	n->out[0] = ir_broadcast(n->b, n->in[0], &out);
	return true;
}

/* Repeats x along one axis: inserts a dim of `times` before the axis and merges the two.  A tensor of the highest rank
 * has no room for that dim, so copies of it are joined instead. */
static Value *repeat_axis(Node *n, Value *x, int axis, int64_t times)
{
	Type t = x->type, wide = t;
	t.dim[axis] *= times;
	if (x->type.dim[axis] == 1)
		return ir_broadcast(n->b, x, &t);
	if (t.rank == IR_MAX_RANK) {
		Value **parts = NEW_N(n->im->arena, Value *, times);
		for (int64_t i = 0; i < times; i++)
			parts[i] = x;
		return emit_concat(n->b, (int)times, parts, axis);
	}
	wide.rank++;
	for (int i = t.rank; i > axis; i--)
		wide.dim[i] = x->type.dim[i - 1];
	wide.dim[axis] = 1;
	x = ir_reshape(n->b, x, wide.rank, wide.dim);
	wide.dim[axis] = times;
	return ir_reshape(n->b, ir_broadcast(n->b, x, &wide), t.rank, t.dim);
}

bool import_tile(Node *n)
{
	const int64_t *repeats;
	int count;
	if (!node_want(n, 2, 2) || !node_known_ints(n, 1, "repeats", &repeats, &count))
		return false;
	Value *x = n->in[0];
	if (count != x->type.rank)
		return node_error(n, "%d repeats for rank %d", count, x->type.rank);
	for (int i = 0; i < count && x->op; i++) {
		int64_t dim[IR_MAX_RANK + 1] = {repeats[i]};
		memcpy(dim + 1, x->type.dim, sizeof(*dim) * (size_t)count);
		if (onnx_dims_numel(count + 1, dim) < 0)
			return node_error(n, "repeat %" PRId64 " of axis %d is negative or overflows", repeats[i], i);
		if (x->type.rank == IR_MAX_RANK && x->type.dim[i] != 1 && repeats[i] > LITERAL_MAX)
			return node_refuse(n, "more than %d repeats of an axis of a tensor of rank %d are not supported",
				LITERAL_MAX, IR_MAX_RANK);
		if (repeats[i] != 1)
			x = repeat_axis(n, x, i, repeats[i]);
	}
	n->out[0] = x;
	return true;
}

/* ---- slices, pieces, joins ---- */

typedef struct SliceArgs {
	const int64_t *starts, *ends, *axes, *steps;
	int n_starts, n_ends, n_axes, n_steps;
} SliceArgs;

static bool slice_args(Node *n, SliceArgs *a)
{
	bool good = node_list(n, "starts", 1, &a->starts, &a->n_starts)
		&& node_list(n, "ends", 2, &a->ends, &a->n_ends)
		&& node_list(n, "axes", 3, &a->axes, &a->n_axes)
		&& node_list(n, "steps", 4, &a->steps, &a->n_steps);
	if (good && (a->n_starts < 0 || a->n_starts != a->n_ends || (a->n_axes >= 0 && a->n_axes != a->n_starts)
			|| (a->n_steps >= 0 && a->n_steps != a->n_starts)))
		return node_error(n, "starts, ends, axes and steps differ in length");
	return good;
}

static int64_t clamp(int64_t v, int64_t lo, int64_t hi)
{
	return v < lo ? lo : v > hi ? hi : v;
}

/* As Python's slice(start, end, step).indices(dim); *size is the number of elements. */
static void slice_range(int64_t dim, int64_t *start, int64_t end, int64_t *step, int64_t *size)
{
	int64_t s = *start < 0 ? *start + dim : *start, e = end < 0 ? end + dim : end;
	*step = clamp(*step, -dim - 1, dim + 1);
	if (*step > 0) {
		s = clamp(s, 0, dim);
		e = clamp(e, 0, dim);
		*size = e > s ? ceil_div(e - s, *step) : 0;
	} else {
		s = clamp(s, -1, dim - 1);
		e = clamp(e, -1, dim - 1);
		*size = s > e ? ceil_div(s - e, -*step) : 0;
	}
	*start = *size ? s : 0;
}

bool import_slice(Node *n)
{
	SliceArgs a = {0};
	if (!node_want(n, 1, 5) || !slice_args(n, &a))
		return false;
	Value *x = n->in[0];
	const Type *t = &x->type;
	int64_t starts[IR_MAX_RANK] = {0}, sizes[IR_MAX_RANK], steps[IR_MAX_RANK];
	bool whole = true;
	for (int i = 0; i < t->rank; i++) {
		sizes[i] = t->dim[i];
		steps[i] = 1;
	}
	for (int k = 0; k < a.n_starts; k++) {
		int axis = node_axis(n, a.n_axes >= 0 ? a.axes[k] : k, t->rank);
		if (axis < 0)
			return false;
		starts[axis] = a.starts[k];
		steps[axis] = a.n_steps >= 0 ? a.steps[k] : 1;
		if (!steps[axis])
			return node_error(n, "step 0 along axis %d", axis);
		slice_range(t->dim[axis], &starts[axis], a.ends[k], &steps[axis], &sizes[axis]);
		whole = whole && sizes[axis] == t->dim[axis] && steps[axis] == 1;
	}
	Attr *attrs = attr_ints(n->b->m, NULL, "starts", t->rank, starts);
	attrs = attr_ints(n->b->m, attrs, "sizes", t->rank, sizes);
	attrs = attr_ints(n->b->m, attrs, "steps", t->rank, steps);
	n->out[0] = whole ? x : ir_emit(n->b, OP_SLICE, 1, &x, attrs);
	return true;
}

bool import_split(Node *n)
{
	const int64_t *sizes = NULL;
	int count;
	int64_t *equal = NEW_N(n->im->arena, int64_t, n->n_out), sum = 0;
	if (!node_want(n, 1, 2) || !node_list(n, "split", 1, &sizes, &count))
		return false;
	if (n->n_out < 1)
		return node_error(n, "it has no result");
	const Type *t = &n->in[0]->type;
	int axis = node_axis(n, node_int(n, "axis", 0), t->rank);
	if (axis < 0)
		return false;
	if (count < 0) {
		int64_t each = ceil_div(t->dim[axis], n->n_out);
		for (int i = 0; i < n->n_out; i++)
			equal[i] = clamp(t->dim[axis] - i * each, 0, each);
		sizes = equal;
		count = n->n_out;
	}
	for (int i = 0; i < count && sum <= t->dim[axis]; i++)
		sum += sizes[i] < 0 || sizes[i] > t->dim[axis] ? t->dim[axis] + 1 : sizes[i];
	if (count != n->n_out || sum != t->dim[axis])
		return node_error(n, "%d pieces of sum %" PRId64 " for %d results and dimension %" PRId64, count, sum,
			n->n_out, t->dim[axis]);
	Attr *a = attr_ints(n->b->m, attr_int(n->b->m, NULL, "axis", axis), "sizes", count, sizes);
	const Op *op = count == 1 ? NULL : ir_emit_op(n->b, OP_SPLIT, 1, n->in, a, NULL);
	for (int i = 0; i < count; i++)
		n->out[i] = op ? op->out[i] : count == 1 ? n->in[0] : &n->im->m->poison;
	return true;
}

bool import_concat(Node *n)
{
	if (!node_want(n, 1, n->n_in))
		return false;
	for (int i = 0; i < n->n_in; i++)
		if (!n->in[i])
			return node_error(n, "operand %d is missing", i);
	int axis = node_axis(n, node_int(n, "axis", 0), n->in[0]->type.rank);
	if (axis < 0)
		return false;
	n->out[0] = emit_concat(n->b, n->n_in, n->in, axis);
	return true;
}

/* ---- padding ---- */

static Value *pad_or_crop(Node *n, Value *x, int64_t *before, int64_t *after, const char *mode, double value)
{
	int rank = x->type.rank;
	bool pads = false;
	for (int i = 0; i < rank; i++) {
		int64_t front = before[i] < 0 ? -before[i] : 0, back = after[i] < 0 ? -after[i] : 0;
		if (front > x->type.dim[i] || back > x->type.dim[i] - front) {
			node_error(n, "crops more than dimension %d of %s", i, type_str(n->im->arena, &x->type));
			return &n->im->m->poison;
		}
		x = emit_slice(n->b, x, i, front, x->type.dim[i] - front - back, 1);
		before[i] = MAX(before[i], 0);
		after[i] = MAX(after[i], 0);
		pads = pads || before[i] || after[i];
	}
	Attr *a = attr_ints(n->b->m, attr_ints(n->b->m, NULL, "before", rank, before), "after", rank, after);
	a = attr_float(n->b->m, attr_str(n->b->m, a, "mode", mode), "value", value);
	return pads ? ir_emit(n->b, OP_PAD, 1, &x, a) : x;
}

static bool pad_value(Node *n, double *value)
{
	EvalTensor *t = node_known(n, 2);
	*value = n->opset < 11 ? node_float(n, "value", 0) : 0;
	if (!node_in(n, 2))
		return true;
	if (!t || type_numel(&t->type) != 1)
		return node_refuse(n, "its constant_value depends on data");
	*value = dtype_is_float(t->type.dtype) ? t->f[0] : (double)t->i[0];
	return true;
}

bool import_pad(Node *n)
{
	const int64_t *pads = NULL, *axes = NULL;
	int n_pads, n_axes = -1;
	double value;
	int64_t before[IR_MAX_RANK] = {0}, after[IR_MAX_RANK] = {0};
	if (!node_want(n, 1, 4) || !node_list(n, "pads", 1, &pads, &n_pads) || !pad_value(n, &value)
			|| (node_in(n, 3) && !node_known_ints(n, 3, "axes", &axes, &n_axes)))
		return false;
	int rank = n->in[0]->type.rank, count = n_axes < 0 ? rank : n_axes;
	if (n_pads != 2 * count)
		return node_error(n, "%d pads for %d axes", n_pads, count);
	for (int k = 0; k < count; k++) {
		int axis = node_axis(n, n_axes < 0 ? k : axes[k], rank);
		if (axis < 0)
			return false;
		before[axis] = pads[k];
		after[axis] = pads[count + k];
		if (clamp(pads[k], -INT32_MAX, INT32_MAX) != pads[k]
				|| clamp(pads[count + k], -INT32_MAX, INT32_MAX) != pads[count + k])
			return node_error(n, "pads overflow along axis %d", axis);
	}
	n->out[0] = pad_or_crop(n, n->in[0], before, after, node_str(n, "mode", "constant"), value);
	return true;
}

bool import_center_crop_pad(Node *n)
{
	const int64_t *want, *axes = NULL;
	int count, n_axes = node_ints(n, "axes", &axes);
	int64_t before[IR_MAX_RANK] = {0}, after[IR_MAX_RANK] = {0};
	if (!node_want(n, 2, 2) || !node_known_ints(n, 1, "shape", &want, &count))
		return false;
	const Type *t = &n->in[0]->type;
	if (count != (n_axes < 0 ? t->rank : n_axes))
		return node_error(n, "%d sizes for %d axes", count, n_axes < 0 ? t->rank : n_axes);
	for (int k = 0; k < count; k++) {
		int axis = node_axis(n, n_axes < 0 ? k : axes[k], t->rank);
		if (axis < 0 || want[k] < 0 || want[k] > INT32_MAX)
			return axis < 0 ? false : node_error(n, "size %" PRId64 " is negative or overflows", want[k]);
		int64_t more = want[k] - t->dim[axis];
		before[axis] = more < 0 ? -(-more / 2) : more / 2;
		after[axis] = more - before[axis];
	}
	n->out[0] = pad_or_crop(n, n->in[0], before, after, "constant", 0);
	return true;
}

/* ---- blocks of pixels ---- */

static Value *shuffle(Node *n, Value *x, const int64_t wide[6], const int perm[6], const int64_t out[4])
{
	x = ir_reshape(n->b, x, 6, wide);
	return ir_reshape(n->b, ir_transpose(n->b, x, perm), 4, out);
}

static bool block_args(Node *n, int64_t *k, const int64_t **d)
{
	*k = node_int(n, "blocksize", 0);
	if (!node_want(n, 1, 1))
		return false;
	*d = n->in[0]->type.dim;
	if (n->in[0]->type.rank != 4 || *k < 1 || *k > INT32_MAX)
		return node_error(n, "wants rank 4 and a positive blocksize, has %s and %" PRId64,
			type_str(n->im->arena, &n->in[0]->type), *k);
	return true;
}

bool import_depth_to_space(Node *n)
{
	const int64_t *d;
	int64_t k;
	bool crd = !strcmp(node_str(n, "mode", "DCR"), "CRD");
	if (!block_args(n, &k, &d))
		return false;
	if (d[1] % (k * k))
		return node_error(n, "%" PRId64 " channels do not divide by %" PRId64 " squared", d[1], k);
	if (!d[1] && (d[2] > INT32_MAX || d[3] > INT32_MAX))
		return node_error(n, "blocks of %" PRId64 " make the dimensions of %s overflow", k,
			type_str(n->im->arena, &n->in[0]->type));
	int64_t c = d[1] / (k * k), out[4] = {d[0], c, d[2] * k, d[3] * k};
	int64_t dcr_dims[6] = {d[0], k, k, c, d[2], d[3]}, crd_dims[6] = {d[0], c, k, k, d[2], d[3]};
	n->out[0] = crd ? shuffle(n, n->in[0], crd_dims, (int[]){0, 1, 4, 2, 5, 3}, out)
		: shuffle(n, n->in[0], dcr_dims, (int[]){0, 3, 4, 1, 5, 2}, out);
	return true;
}

bool import_space_to_depth(Node *n)
{
	const int64_t *d;
	int64_t k;
	if (!block_args(n, &k, &d))
		return false;
	if (d[2] % k || d[3] % k)
		return node_error(n, "%" PRId64 "x%" PRId64 " does not divide by %" PRId64, d[2], d[3], k);
	int64_t channels[3] = {d[1], k, k}, numel = onnx_dims_numel(3, channels);
	if (numel < 0)
		return node_error(n, "blocks of %" PRId64 " make the channels of %s overflow", k,
			type_str(n->im->arena, &n->in[0]->type));
	int64_t wide[6] = {d[0], d[1], d[2] / k, k, d[3] / k, k}, out[4] = {d[0], numel, d[2] / k, d[3] / k};
	n->out[0] = shuffle(n, n->in[0], wide, (int[]){0, 3, 5, 1, 2, 4}, out);
	return true;
}
