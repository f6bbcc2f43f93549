/* tests/random/gen_ir.c: modules of random ops of ir/ops.def.
 *
 * Ops are drawn by kind, attributes by their name, operands by gen_values.c.  What the shape rule refuses is left
 * out. */
#include "tests/random/gen_ir.h"

#include <math.h>
#include <string.h>

/* ---- attributes by name ---- */

static Attr *ints(Gen *g, Attr *list, const char *name, int n, const int64_t *v)
{
	return attr_ints(g->m, list, name, n, v);
}

static int64_t some_axis(Gen *g, int rank)
{
	return rng_one_of(g->r, 25) ? rng_in(g->r, -rank - 1, rank + 1) : rng_in(g->r, 0, MAX(rank - 1, 0));
}

static Attr *some_axes(Gen *g, Attr *list, int rank)
{
	int64_t v[IR_MAX_RANK];
	int n = 0;
	for (int i = 0; i < rank; i++)
		if (rng_one_of(g->r, 2))
			v[n++] = i;
	return ints(g, list, "axes", n, v);
}

static Attr *some_perm(Gen *g, int rank)
{
	int64_t v[IR_MAX_RANK];
	for (int i = 0; i < rank; i++)
		v[i] = i;
	for (int i = rank - 1; i > 0; i--) {
		int k = (int)rng_in(g->r, 0, i);
		int64_t t = v[i];
		v[i] = v[k];
		v[k] = t;
	}
	return ints(g, NULL, "perm", rank, v);
}

/* The same elements in other dims: neighbours merged, dims split, dims of 1. */
static Attr *some_shape(Gen *g, const Type *t)
{
	int64_t v[2 * IR_MAX_RANK], left = type_numel(t);
	int n = 0;
	if (!left || rng_one_of(g->r, 2)) {
		for (int i = 0; i < t->rank; i++) {
			if (n && rng_one_of(g->r, 3))
				v[n - 1] *= t->dim[i];
			else
				v[n++] = t->dim[i];
			if (n < IR_MAX_RANK - 3 && rng_one_of(g->r, 6))
				v[n++] = 1;
		}
		return ints(g, NULL, "shape", n, v);
	}
	while (left > 1 && n < 4) {
		int64_t d = rng_in(g->r, 1, MIN(left, 6));
		if (left % d)
			continue;
		v[n++] = d;
		left /= d;
	}
	if (left > 1 || rng_one_of(g->r, 5))
		v[n++] = left;
	return ints(g, NULL, "shape", n, v);
}

static Attr *some_slice(Gen *g, const Type *t)
{
	int64_t start[IR_MAX_RANK], size[IR_MAX_RANK], step[IR_MAX_RANK];
	for (int i = 0; i < t->rank; i++) {
		bool whole = rng_one_of(g->r, 2) || !t->dim[i];
		step[i] = whole ? 1 : rng_one_of(g->r, 3) ? rng_in(g->r, -3, 3) : 1;
		step[i] = step[i] ? step[i] : -1;
		start[i] = whole ? 0 : rng_in(g->r, 0, t->dim[i] - 1);
		int64_t most = whole ? t->dim[i] : step[i] > 0 ? (t->dim[i] - start[i] + step[i] - 1) / step[i]
			: start[i] / -step[i] + 1;
		size[i] = whole ? most : rng_in(g->r, rng_one_of(g->r, 20) ? 0 : MIN(1, most), most);
		if (size[i] < 2 && rng_one_of(g->r, 2)) { /* any step near the axis will do, and any start of nothing */
			step[i] = rng_in(g->r, 1, t->dim[i] + 1) * (rng_one_of(g->r, 2) ? 1 : -1);
			start[i] = size[i] ? start[i] : rng_in(g->r, 0, t->dim[i]);
		}
	}
	return ints(g, ints(g, ints(g, NULL, "starts", t->rank, start), "sizes", t->rank, size), "steps", t->rank, step);
}

static Attr *some_pad(Gen *g, const Type *t)
{
	static const char *const modes[] = {"constant", "constant", "reflect", "edge", "wrap"};
	static const double values[] = {0, 0, 1, -0.5, INFINITY};
	int64_t before[IR_MAX_RANK], after[IR_MAX_RANK];
	for (int i = 0; i < t->rank; i++) {
		before[i] = rng_one_of(g->r, 2) ? 0 : rng_in(g->r, 0, 3);
		after[i] = rng_one_of(g->r, 2) ? 0 : rng_in(g->r, 0, 3);
	}
	Attr *list = ints(g, ints(g, NULL, "before", t->rank, before), "after", t->rank, after);
	list = attr_str(g->m, list, "mode", modes[rng_in(g->r, 0, 4)]);
	return attr_float(g->m, list, "value", values[rng_in(g->r, 0, 4)]);
}

static Attr *some_split(Gen *g, const Type *t, int axis)
{
	int64_t v[8], left = t->dim[axis];
	int n = 0;
	while (n < 5 && (left > 0 || !n)) {
		v[n] = rng_in(g->r, rng_one_of(g->r, 15) ? 0 : MIN(1, left), left);
		left -= v[n++];
	}
	if (left)
		v[n++] = left;
	return attr_int(g->m, ints(g, NULL, "sizes", n, v), "axis", axis);
}

/* Strides, pads, dilations of k spatial dims, and a kernel where there is no weight. */
typedef struct Window { int64_t kernel[3], stride[3], pad[6], dilation[3], extra[3]; int k; } Window;

static Window some_window(Gen *g, const Type *x, bool last)
{
	Window w = {.k = x->rank - 2};
	for (int i = 0; i < w.k; i++) {
		int64_t dim = x->dim[i + (last ? 1 : 2)];
		w.stride[i] = rng_in(g->r, 1, 3);
		w.dilation[i] = rng_one_of(g->r, 4) ? 2 : 1;
		w.kernel[i] = rng_in(g->r, 1, MAX(MIN(3, dim), 1));
		w.pad[i] = rng_in(g->r, 0, w.kernel[i] - 1);
		w.pad[i + w.k] = rng_in(g->r, 0, w.kernel[i] - 1);
		w.extra[i] = rng_one_of(g->r, 4) ? rng_in(g->r, 0, w.stride[i] - 1) : 0;
	}
	return w;
}

static Attr *window_attrs(Gen *g, const Window *w, Attr *list)
{
	list = ints(g, ints(g, list, "strides", w->k, w->stride), "pads", 2 * w->k, w->pad);
	return ints(g, list, "dilations", w->k, w->dilation);
}

/* An attribute that no rule below sets, by its name. */
static Attr *some_attr(Gen *g, Attr *list, const char *name, char kind, const Type *x)
{
	static const DType dtypes[] = {DT_F32, DT_F32, DT_F64, DT_I64, DT_I32, DT_BOOL, DT_F16, DT_BF16, DT_U8, DT_I8};
	static const double epsilons[] = {1e-5, 1e-12, 0.5, 0};
	if (kind == 'd')
		return attr_dtype(g->m, list, name, dtypes[rng_in(g->r, 0, COUNT_OF(dtypes) - 1)]);
	if (!strcmp(name, "axis"))
		return attr_int(g->m, list, name, some_axis(g, x->rank));
	if (!strcmp(name, "axes"))
		return some_axes(g, list, x->rank);
	if (!strcmp(name, "eps"))
		return attr_float(g->m, list, name, epsilons[rng_in(g->r, 0, 2)]);
	if (!strcmp(name, "lo") || !strcmp(name, "hi"))
		return attr_float(g->m, list, name, rng_one_of(g->r, 4) ? (*name == 'l' ? -INFINITY : INFINITY)
			: 0.4 * rng_unit(g->r));
	if (kind == 'f')
		return attr_float(g->m, list, name, rng_one_of(g->r, 3) ? 1 : fabs(rng_unit(g->r)));
	return attr_int(g->m, list, name, rng_in(g->r, 0, 1));
}

static Attr *other_attrs(Gen *g, OpKind kind, Attr *list, const Type *x)
{
	for (const char *s = op_info[kind].attrs; *s; s += strspn(s, " ")) {
		size_t n = strcspn(s, " "), k = strcspn(s, ":");
		const char *name = arena_strndup(g->m->arena, s, k);
		bool optional = s[n - 1] == '?';
		if (!attr_find(list, name) && !optional)
			list = some_attr(g, list, name, s[k + 1], x);
		s += n;
	}
	return list;
}

/* ---- ops that want more than a second operand of a like shape ---- */

static Op *emit(Gen *g, OpKind kind, int n, Value *const *in, Attr *list)
{
	for (int i = 0; i < n; i++)
		if (in[i] && in[i]->type.kind != TYPE_TENSOR)
			return NULL;
	return ir_emit_op(&g->b, kind, n, in, other_attrs(g, kind, list, &in[0]->type), NULL);
}

static Value *tensor(Gen *g, int rank, const int64_t *dim)
{
	Type t = type_tensor(DT_F32, rank, dim);
	return type_numel(&t) > 4 * RANDOM_MAX_NUMEL ? &g->m->poison : gen_source(g, t);
}

static Op *make_matmul(Gen *g)
{
	Value *in[3] = {gen_pick(g, WANT_FLOAT, 2)};
	const Type *a = &in[0]->type;
	bool ta = rng_one_of(g->r, 3), tb = rng_one_of(g->r, 3);
	int64_t k = a->dim[a->rank - (ta ? 2 : 1)], n = rng_in(g->r, 1, 4), dim[IR_MAX_RANK];
	Type batch = gen_companion(g, &(Type){.kind = TYPE_TENSOR, .dtype = DT_F32, .rank = a->rank - 2, .dim = {a->dim[0],
		a->dim[1], a->dim[2]}}, DT_F32);
	memcpy(dim, batch.dim, sizeof(dim));
	int rank = batch.rank + 2;
	dim[rank - 2] = tb ? n : k;
	dim[rank - 1] = tb ? k : n;
	in[1] = a->dtype == DT_F32 ? tensor(g, rank, dim) : gen_pick(g, WANT_FLOAT, 2);
	if (rng_one_of(g->r, 4))
		in[1] = rng_one_of(g->r, 2) ? in[0] : gen_pick(g, WANT_FLOAT, 2);
	in[2] = rng_one_of(g->r, 4) ? tensor(g, 1, &n) : NULL;
	Attr *list = attr_int(g->m, attr_int(g->m, NULL, "ta", ta), "tb", tb);
	return emit(g, OP_MATMUL, in[2] ? 3 : 2, in, list);
}

static Op *make_conv(Gen *g)
{
	Value *x = gen_pick(g, WANT_FLOAT, 3), *in[3] = {x};
	if (x->type.rank > 5)
		return NULL;
	bool last = rng_one_of(g->r, 3);
	Window w = some_window(g, &x->type, last);
	int64_t c = x->type.dim[last ? x->type.rank - 1 : 1], group = c > 1 && rng_one_of(g->r, 4) ? c : 1;
	int64_t dim[5] = {group * rng_in(g->r, 1, 3), c / group};
	memcpy(dim + 2, w.kernel, sizeof(w.kernel));
	in[1] = tensor(g, x->type.rank, dim);
	in[2] = rng_one_of(g->r, 3) ? tensor(g, 1, dim) : NULL;
	Attr *list = attr_int(g->m, attr_int(g->m, window_attrs(g, &w, NULL), "layout", last), "group", group);
	return emit(g, OP_CONV, in[2] ? 3 : 2, in, list);
}

static Op *make_conv_grad_x(Gen *g)
{
	Value *y = gen_pick(g, WANT_FLOAT, 3), *in[3] = {y};
	int rank = y->type.rank;
	if (rank > 5)
		return NULL;
	bool last = rng_one_of(g->r, 3);
	Window w = some_window(g, &y->type, last);
	int64_t o = y->type.dim[last ? rank - 1 : 1], group = o > 1 && rng_one_of(g->r, 4) ? o : 1;
	int64_t dim[5] = {o, rng_in(g->r, 1, 3)}, shape[5] = {y->type.dim[0]}, c = dim[1] * group;
	memcpy(dim + 2, w.kernel, sizeof(w.kernel));
	for (int i = 0; i < w.k; i++)
		shape[i + (last ? 1 : 2)] = (y->type.dim[i + (last ? 1 : 2)] - 1) * w.stride[i] + w.dilation[i]
			* (w.kernel[i] - 1) + 1 - w.pad[i] - w.pad[i + w.k] + rng_in(g->r, 0, w.stride[i] - 1);
	shape[last ? rank - 1 : 1] = c;
	in[1] = tensor(g, rank, dim);
	in[2] = rng_one_of(g->r, 3) ? tensor(g, 1, &c) : NULL;
	Attr *list = attr_int(g->m, attr_int(g->m, window_attrs(g, &w, NULL), "layout", last), "group", group);
	return emit(g, OP_CONV_GRAD_X, in[2] ? 3 : 2, in, ints(g, list, "shape", rank, shape));
}

static Op *make_pool(Gen *g, OpKind kind)
{
	Value *x = gen_pick(g, WANT_FLOAT, 3);
	if (x->type.rank > 5)
		return NULL;
	bool last = rng_one_of(g->r, 3);
	Window w = some_window(g, &x->type, last);
	Attr *list = attr_int(g->m, ints(g, window_attrs(g, &w, NULL), "kernel", w.k, w.kernel), "layout", last);
	if (kind == OP_AVG_POOL)
		list = ints(g, list, "extra", w.k, w.extra);
	return emit(g, kind, 1, &x, list);
}

static Op *make_grid_sample(Gen *g)
{
	static const char *const modes[] = {"nearest", "linear", "cubic"}, *const coords[] = {"pixels", "centres", "edges"},
		*const pads[] = {"zeros", "border", "reflection"};
	Value *x = gen_pick(g, WANT_FLOAT, 3);
	int64_t dim[5] = {x->type.dim[0]};
	if (x->type.rank > 5)
		return NULL;
	for (int i = 1; i < x->type.rank - 1; i++)
		dim[i] = rng_in(g->r, 1, 3);
	dim[x->type.rank - 1] = x->type.rank - 2;
	Attr *list = attr_str(g->m, attr_str(g->m, NULL, "mode", modes[rng_in(g->r, 0, 2)]), "padding",
		pads[rng_in(g->r, 0, 2)]);
	Value *in[2] = {x, gen_source(g, type_tensor(x->type.dtype, x->type.rank, dim))};
	return emit(g, OP_GRID_SAMPLE, 2, in, attr_str(g->m, list, "coords", coords[rng_in(g->r, 0, 2)]));
}

static Op *make_roi_pool(Gen *g)
{
	static const char *const modes[] = {"avg", "max", "pool"};
	Value *x = gen_pick(g, WANT_FLOAT, 4);
	int64_t boxes[2] = {rng_in(g->r, 1, 3), 4}, size[2] = {rng_in(g->r, 1, 3), rng_in(g->r, 1, 3)};
	if (x->type.rank != 4)
		return NULL;
	Attr *list = ints(g, attr_str(g->m, NULL, "mode", modes[rng_in(g->r, 0, 2)]), "size", 2, size);
	list = attr_float(g->m, attr_int(g->m, list, "ratio", rng_in(g->r, 0, 2)), "scale", 1);
	Value *in[3] = {x, gen_symbol(g, SYM_DATA, type_tensor(x->type.dtype, 2, boxes)), /* boxes get no gradient */
		gen_ids(g, type_tensor(DT_I64, 1, boxes), x->type.dim[0], false)};
	return emit(g, OP_ROI_POOL, 3, in, attr_int(g->m, list, "half_pixel", rng_one_of(g->r, 2)));
}

static Op *make_det(Gen *g)
{
	Type t = gen_type(g, DT_F32, 2);
	t.dim[t.rank - 1] = t.dim[t.rank - 2];
	Value *x = gen_source(g, t);
	return emit(g, OP_DET, 1, &x, NULL);
}

static Op *make_batch_norm(Gen *g)
{
	Value *in[3] = {gen_pick(g, WANT_FLOAT, 2)};
	const Type *x = &in[0]->type;
	bool last = x->rank > 2 && rng_one_of(g->r, 3);
	int64_t c = x->dim[last ? x->rank - 1 : 1];
	Type t = type_tensor(DT_F32, 1, &c);
	Attr *list = attr_int(g->m, NULL, "layout", last);
	if (rng_one_of(g->r, 2)) {
		list = attr_str(g->m, list, "mean", gen_symbol(g, SYM_BUFFER, t)->op->sym->name);
		list = attr_str(g->m, list, "var", gen_symbol(g, SYM_BUFFER, t)->op->sym->name);
		if (rng_one_of(g->r, 2))
			list = attr_int(g->m, list, "unbiased", 1);
	}
	in[1] = tensor(g, 1, &c);
	in[2] = tensor(g, 1, &c);
	return emit(g, OP_BATCH_NORM, 3, in, list);
}

static Op *make_norm(Gen *g, OpKind kind)
{
	Value *in[4] = {gen_pick(g, WANT_FLOAT, 1)};
	const Type *x = &in[0]->type;
	int axis = (int)rng_in(g->r, 0, x->rank - 1), n = 1;
	for (int i = 1; i < (kind == OP_LAYER_NORM ? 3 : 2); i++) {
		in[i] = rng_one_of(g->r, 4) ? NULL : tensor(g, x->rank - axis, x->dim + axis);
		n = in[i] ? i + 1 : n;
	}
	return emit(g, kind, n, in, attr_int(g->m, NULL, "axis", axis));
}

/* Which keys an attention's rows see. */
static Attr *limits(Gen *g, Attr *list)
{
	if (rng_one_of(g->r, 3))
		list = attr_int(g->m, list, "left", rng_in(g->r, -1, 3));
	if (rng_one_of(g->r, 2))
		list = attr_int(g->m, list, "right", rng_in(g->r, -1, 2));
	return list;
}

static Attr *weights_dropped(Gen *g, Attr *list, int64_t b, int64_t h)
{
	if (!rng_one_of(g->r, 4))
		return list;
	bool alone = rng_one_of(g->r, 4), split = rng_one_of(g->r, 3); /* without samples; samples behind the heads */
	list = attr_int(g->m, attr_int(g->m, list, "id", rng_in(g->r, 1, 3)), "pre", split && !alone ? h : 1);
	return attr_float(g->m, attr_int(g->m, list, "rows", alone ? 0 : b), "p", rng_one_of(g->r, 4) ? 0 : 0.3);
}

static Op *make_attention(Gen *g)
{
	int64_t b = rng_in(g->r, 1, 2), hk = rng_in(g->r, 1, 2), h = hk * rng_in(g->r, 1, 2), t = rng_in(g->r, 1, 4);
	int64_t s = rng_one_of(g->r, 2) ? t : rng_in(g->r, 1, 4), d = rng_in(g->r, 1, 3), dv = rng_in(g->r, 1, 3);
	bool rows = rng_one_of(g->r, 2);
	Value *in[5] = {tensor(g, 4, (int64_t[]){b, rows ? t : h, rows ? h : t, d}),
		tensor(g, 4, (int64_t[]){b, rows ? s : hk, rows ? hk : s, d}),
		tensor(g, 4, (int64_t[]){b, rows ? s : hk, rows ? hk : s, dv})};
	Type scores = type_tensor(DT_F32, 4, (int64_t[]){b, h, t, s});
	bool mask = rng_one_of(g->r, 2);
	if (mask)
		in[3] = gen_source(g, gen_companion(g, &scores, rng_one_of(g->r, 2) ? DT_BOOL : DT_F32));
	Attr *list = attr_str(g->m, attr_int(g->m, NULL, "layout", rows), "empty", rng_one_of(g->r, 4) ? "nan" : "zero");
	if (rng_one_of(g->r, 4))
		list = attr_float(g->m, list, "softcap", 2);
	list = weights_dropped(g, limits(g, list), b, h);
	if (t == s && rng_one_of(g->r, 4))
		in[4] = gen_source(g, type_tensor(rng_one_of(g->r, 2) ? DT_I64 : DT_I32, 2,
			(int64_t[]){rng_one_of(g->r, 2) ? b : 1, t}));
	return emit(g, OP_ATTENTION, 5, in, list);
}

static Op *make_rope(Gen *g)
{
	int64_t b = rng_in(g->r, 1, 2), h = rng_in(g->r, 1, 3), t = rng_in(g->r, 1, 4), half = rng_in(g->r, 1, 2);
	int64_t d = 2 * half + rng_in(g->r, 0, 2);
	bool rows = rng_one_of(g->r, 2), batched = rng_one_of(g->r, 3);
	int64_t angles[3] = {b, t, half};
	Value *in[3] = {tensor(g, 4, (int64_t[]){b, rows ? t : h, rows ? h : t, d})};
	in[1] = tensor(g, batched ? 3 : 2, batched ? angles : angles + 1);
	in[2] = tensor(g, batched ? 3 : 2, batched ? angles : angles + 1);
	return emit(g, OP_ROPE, 3, in, attr_int(g->m, NULL, "layout", rows));
}

static Op *make_cross_entropy(Gen *g)
{
	Value *in[3] = {gen_pick(g, WANT_FLOAT, 1)};
	Type labels = in[0]->type;
	int64_t c = labels.dim[--labels.rank];
	bool weighted = rng_one_of(g->r, 3);
	in[1] = gen_ids(g, labels, c, false);
	in[2] = weighted ? tensor(g, 1, &c) : NULL;
	Attr *list = attr_int(g->m, NULL, "ignore_index", rng_one_of(g->r, 2) ? -100 : 0);
	list = attr_float(g->m, list, "smoothing", rng_one_of(g->r, 2) ? 0 : 0.1);
	return emit(g, OP_CROSS_ENTROPY, weighted ? 3 : 2, in, list);
}

static Op *make_gather(Gen *g)
{
	Value *x = gen_pick(g, WANT_ANY, 1), *in[2] = {x};
	int axis = (int)rng_in(g->r, 0, x->type.rank - 1);
	Type t = gen_type(g, DT_I64, 0);
	t.rank = MIN(t.rank, 2);
	in[1] = gen_ids(g, t, x->type.dim[axis], true);
	return emit(g, OP_GATHER, 2, in, attr_int(g->m, NULL, "axis", axis));
}

static Op *make_elements(Gen *g, OpKind kind)
{
	static const char *const reduces[] = {"none", "add", "mul", "max", "min"};
	Value *x = gen_pick(g, WANT_FLOAT, 1), *in[3] = {x};
	int axis = (int)rng_in(g->r, 0, x->type.rank - 1);
	Type t = x->type;
	for (int i = 0; i < t.rank; i++)
		t.dim[i] = i == axis ? rng_in(g->r, 1, 4) : rng_in(g->r, MIN(1, t.dim[i]), t.dim[i]);
	if (type_numel(&t) > RANDOM_MAX_NUMEL)
		return NULL;
	in[1] = gen_ids(g, t, x->type.dim[axis], true);
	Attr *list = attr_int(g->m, NULL, "axis", axis);
	if (kind == OP_GATHER_ELEMENTS)
		return emit(g, kind, 2, in, list);
	t.dtype = x->type.dtype;
	in[2] = gen_source(g, t);
	return emit(g, kind, 3, in, attr_str(g->m, list, "reduce", reduces[rng_in(g->r, 0, 4)]));
}

static Value *tuples(Gen *g, const Type *x, int batch, int *depth)
{
	int64_t v[RANDOM_MAX_NUMEL + 1], n = 1;
	*depth = (int)rng_in(g->r, 1, x->rank - batch);
	Type t = type_tensor(DT_I64, 0, NULL);
	t.rank = batch + 2;
	memcpy(t.dim, x->dim, sizeof(int64_t) * (size_t)batch);
	bool all = !batch && rng_one_of(g->r, 3);
	for (int i = 0; i < *depth && all; i++)
		n *= x->dim[i];
	t.dim[batch] = all ? n : rng_in(g->r, 1, 4);
	t.dim[batch + 1] = *depth;
	int64_t count = type_numel(&t);
	if (count > RANDOM_MAX_NUMEL)
		return NULL;
	for (int64_t i = 0; i < count; i++) {
		int64_t dim = x->dim[batch + i % *depth], at = i / *depth;
		for (int64_t k = *depth - 1; k > i % *depth && all; k--)
			at /= x->dim[batch + k];
		v[i] = all && dim ? at % dim : dim ? rng_in(g->r, -dim, dim - 1) : 0;
		if (all && dim && rng_one_of(g->r, 3))
			v[i] -= dim;
	}
	if (count && rng_one_of(g->r, 4))
		return gen_symbol(g, SYM_INPUT, t);
	return ir_emit_typed(&g->b, OP_CONST, 0, NULL, attr_ints(g->m, NULL, "value", (int)count, v), t);
}

static Op *make_nd(Gen *g, OpKind kind)
{
	static const char *const reduces[] = {"none", "add", "mul", "max", "min"};
	Value *x = gen_pick(g, WANT_FLOAT, 1), *in[3] = {x};
	int batch = kind == OP_GATHER_ND && x->type.rank > 1 && rng_one_of(g->r, 3) ? 1 : 0, depth;
	if (!(in[1] = tuples(g, &x->type, batch, &depth)))
		return NULL;
	if (kind == OP_GATHER_ND)
		return emit(g, kind, 2, in, attr_int(g->m, NULL, "batch_dims", batch));
	Type t = x->type;
	t.rank = 1 + x->type.rank - depth;
	t.dim[0] = in[1]->type.dim[0];
	memcpy(t.dim + 1, x->type.dim + depth, sizeof(int64_t) * (size_t)(x->type.rank - depth));
	if (type_numel(&t) > RANDOM_MAX_NUMEL)
		return NULL;
	in[2] = gen_source(g, t);
	return emit(g, kind, 3, in, attr_str(g->m, NULL, "reduce", reduces[rng_in(g->r, 0, 4)]));
}

static Op *make_topk(Gen *g)
{
	Value *x = gen_pick(g, WANT_FLOAT, 1);
	int axis = (int)rng_in(g->r, 0, x->type.rank - 1);
	Attr *list = attr_int(g->m, attr_int(g->m, NULL, "axis", axis), "k", rng_in(g->r, MIN(1, x->type.dim[axis]),
		x->type.dim[axis]));
	return emit(g, OP_TOPK, 1, &x, list);
}

static Op *make_concat(Gen *g)
{
	Value *in[4] = {gen_pick(g, WANT_ANY, 1)};
	int axis = (int)rng_in(g->r, 0, in[0]->type.rank - 1), n = (int)rng_in(g->r, 1, 4);
	for (int i = 1; i < n; i++) {
		Type t = in[0]->type;
		t.dim[axis] = rng_in(g->r, 1, 3);
		in[i] = rng_one_of(g->r, 3) ? in[0] : gen_source(g, t);
		for (int k = 0; k < 6 && rng_one_of(g->r, 2); k++) {
			Value *v = g->pool.at[rng_in(g->r, 0, g->pool.n - 1)];
			t.dim[axis] = v->type.rank > axis ? v->type.dim[axis] : -1;
			if (type_equal(&t, &v->type))
				in[i] = v;
		}
	}
	return emit(g, OP_CONCAT, n, in, attr_int(g->m, NULL, "axis", axis));
}

static Op *make_dropout(Gen *g, OpKind kind)
{
	Value *x = gen_pick(g, WANT_FLOAT, 1);
	Attr *list = attr_int(g->m, attr_int(g->m, NULL, "id", rng_in(g->r, 1, 3)), "axis", rng_one_of(g->r, 3)
		? rng_in(g->r, -1, x->type.rank - 1) : 0);
	return emit(g, kind, 1, &x, attr_float(g->m, list, "p", rng_one_of(g->r, 4) ? 0 : 0.3));
}

static Op *make_draw(Gen *g)
{
	static const char *const kinds[] = {"uniform", "normal", "bernoulli"};
	Type t = gen_type(g, DT_F32, (int)rng_in(g->r, 1, 3));
	const char *kind = kinds[rng_in(g->r, 0, COUNT_OF(kinds) - 1)];
	Attr *list = attr_int(g->m, attr_str(g->m, NULL, "kind", kind), "id", rng_in(g->r, 4, 6));
	list = attr_int(g->m, list, "axis", rng_in(g->r, -1, t.rank - 1));
	if (kind == kinds[2]) {
		list = attr_float(g->m, attr_float(g->m, list, "p", 0.3), "lo", rng_one_of(g->r, 2) ? 0 : -1);
		list = attr_float(g->m, list, "hi", 1.5);
		list = rng_one_of(g->r, 2) ? attr_float(g->m, list, "off", 1) : list;
	}
	return ir_emit_typed(&g->b, OP_DRAW, 0, NULL, list, t)->op;
}

static Op *make_moving(Gen *g, OpKind kind)
{
	Value *x = gen_pick(g, WANT_ANY, kind == OP_SPLIT ? 1 : 0);
	const Type *t = &x->type;
	Type to;
	switch (kind) {
	case OP_RESHAPE: return emit(g, kind, 1, &x, some_shape(g, t));
	case OP_TRANSPOSE: return emit(g, kind, 1, &x, some_perm(g, t->rank));
	case OP_SLICE: return emit(g, kind, 1, &x, some_slice(g, t));
	case OP_PAD: return emit(g, kind, 1, &x, some_pad(g, t));
	case OP_SPLIT: return emit(g, kind, 1, &x, some_split(g, t, (int)rng_in(g->r, 0, t->rank - 1)));
	default: break;
	}
	Type other = gen_type(g, DT_F32, t->rank);
	for (int i = 0; i < t->rank; i++)
		if (t->dim[i] != 1 || rng_one_of(g->r, 2))
			other.dim[other.rank - t->rank + i] = t->dim[i];
	if (!type_broadcast(t, &other, &to) || type_numel(&to) > RANDOM_MAX_NUMEL)
		return NULL;
	return emit(g, OP_BROADCAST, 1, &x, ints(g, NULL, "shape", to.rank, to.dim));
}

/* Operands where the function is defined, more often than not. */
static Value *in_domain(Gen *g, OpKind kind, Value *x)
{
	Value *one = ir_const_float(&g->b, x->type.dtype, 1);
	if (rng_one_of(g->r, 5) || !dtype_is_float(x->type.dtype))
		return x;
	switch (kind) {
	case OP_LOG: case OP_SQRT: case OP_RSQRT: case OP_LOG1P: case OP_RECIP: case OP_POW:
		return ir_emit1(&g->b, OP_SOFTPLUS, x);
	case OP_ACOSH: return ir_emit2(&g->b, OP_ADD, ir_emit1(&g->b, OP_SOFTPLUS, x), one);
	case OP_ASIN: case OP_ACOS: case OP_ATANH: case OP_TAN: return ir_emit1(&g->b, OP_TANH, x);
	case OP_EXP: case OP_SINH: case OP_COSH: return ir_emit1(&g->b, OP_SIN, x);
	default: return x;
	}
}

static Op *make_plain(Gen *g, OpKind kind)
{
	static const bool logic[OP_COUNT] = {[OP_NOT] = true, [OP_AND] = true, [OP_OR] = true, [OP_XOR] = true};
	Value *in[3] = {0};
	int n = op_info[kind].n_in_min;
	Want want = kind == OP_SHL || kind == OP_SHR ? WANT_INT : logic[kind] ? (rng_one_of(g->r, 3) ? WANT_INT : WANT_BOOL)
		: rng_one_of(g->r, 6) ? WANT_ANY : WANT_FLOAT;
	if (kind == OP_WHERE) {
		in[1] = gen_pick(g, want, 0);
		in[0] = gen_source(g, gen_companion(g, &in[1]->type, DT_BOOL));
		for (int i = 0; i < 4 && rng_one_of(g->r, 2); i++) {
			Value *v = gen_pick(g, WANT_BOOL, 0);
			Type t;
			if (type_broadcast(&v->type, &in[1]->type, &t))
				in[0] = v;
		}
		in[2] = rng_one_of(g->r, 8) ? in[1] : gen_like(g, in[1]);
		return emit(g, kind, 3, in, NULL);
	}
	in[0] = in_domain(g, kind, gen_pick(g, want, 0));
	if (n > 1)
		in[1] = rng_one_of(g->r, 10) ? in[0] : gen_like(g, in[0]);
	if (n > 1 && (kind == OP_DIV || kind == OP_MOD) && dtype_is_float(in[0]->type.dtype) && !rng_one_of(g->r, 5))
		in[1] = ir_emit1(&g->b, OP_EXP, in[1]);
	if (n > 1 && rng_one_of(g->r, 2)) {
		Value *t = in[0];
		in[0] = in[1];
		in[1] = t;
	}
	return emit(g, kind, n, in, NULL);
}

static Op *make(Gen *g, OpKind kind)
{
	switch (kind) {
	case OP_MATMUL: return make_matmul(g);
	case OP_CONV: return make_conv(g);
	case OP_CONV_GRAD_X: return make_conv_grad_x(g);
	case OP_CONV_GRAD_W: case OP_RECURRENCE: return NULL;
	case OP_MAX_POOL: case OP_AVG_POOL: return make_pool(g, kind);
	case OP_GRID_SAMPLE: return make_grid_sample(g);
	case OP_ROI_POOL: return make_roi_pool(g);
	case OP_DET: return make_det(g);
	case OP_BATCH_NORM: return make_batch_norm(g);
	case OP_LAYER_NORM: case OP_RMS_NORM: return make_norm(g, kind);
	case OP_ATTENTION: return make_attention(g);
	case OP_ROPE: return make_rope(g);
	case OP_CROSS_ENTROPY: return make_cross_entropy(g);
	case OP_GATHER: return make_gather(g);
	case OP_GATHER_ELEMENTS: case OP_SCATTER_ELEMENTS: return make_elements(g, kind);
	case OP_GATHER_ND: case OP_SCATTER_ND: return make_nd(g, kind);
	case OP_TOPK: return make_topk(g);
	case OP_CONCAT: return make_concat(g);
	case OP_DROPOUT: case OP_DROPOUT_MASK: return make_dropout(g, kind);
	case OP_DRAW: return make_draw(g);
	case OP_RESHAPE: case OP_TRANSPOSE: case OP_BROADCAST: case OP_SLICE: case OP_SPLIT: case OP_PAD:
		return make_moving(g, kind);
	default: return make_plain(g, kind);
	}
}

static bool is_drawn(OpKind kind)
{
	const OpInfo *i = &op_info[kind];
	return i->level == LEVEL_MODEL && !(i->flags & (EFFECT | SRC | UNIT | SYM));
}

/* Half of all ops are drawn from those that rules move about. */
static OpKind some_kind(Gen *g)
{
	static const OpKind moved[] = {OP_RESHAPE, OP_TRANSPOSE, OP_BROADCAST, OP_SLICE, OP_CONCAT, OP_SPLIT, OP_PAD,
		OP_GATHER, OP_MATMUL, OP_ADD, OP_MUL, OP_SUB, OP_DIV, OP_NEG, OP_CAST, OP_WHERE, OP_REDUCE_SUM, OP_REDUCE_MEAN,
		OP_CONV, OP_SOFTMAX, OP_GATHER_ND};
	if (rng_one_of(g->r, 2))
		return moved[rng_in(g->r, 0, COUNT_OF(moved) - 1)];
	for (;;) {
		OpKind kind = (OpKind)rng_in(g->r, 0, OP_COUNT - 1);
		if (is_drawn(kind))
			return kind;
	}
}

Module *random_ir(Rng *r, Diag *d)
{
	Gen g = {.m = ir_module_new("random"), .r = r};
	g.b = (Builder){.m = g.m, .section = SEC_FORWARD, .diag = d, .loc = loc_new(g.m, "n", "", "", "")};
	int n = (int)rng_in(r, 1, 12);
	for (int i = 0; i < 2; i++)
		vec_push(g.m->arena, &g.pool, gen_source(&g, gen_type(&g, DT_F32, 1)));
	for (int i = 0; i < n; i++) {
		Op *op = rng_one_of(r, 6) ? gen_pattern(&g) : make(&g, some_kind(&g));
		for (int k = 0; op && k < op->n_out; k++)
			if (op->out[k]->type.kind == TYPE_TENSOR && type_numel(&op->out[k]->type) <= RANDOM_MAX_NUMEL)
				vec_push(g.m->arena, &g.pool, op->out[k]);
	}
	random_loss(g.m, r);
	return g.m;
}
