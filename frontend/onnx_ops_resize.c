/* frontend/onnx_ops_resize.c: Resize and Upsample: interpolation, one axis at a time.
 *
 * Each element of a resized axis is a weighted sum of a few elements ("taps") of the input.  Their indices and weights
 * are known at compile time, so the op becomes gathers, products and sums.  Refuses sizes that depend on data. */
#include "frontend/onnx_import.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { TAPS_MAX = 64, AXIS_MAX = 1 << 16 };

typedef enum { MODE_NEAREST, MODE_LINEAR, MODE_CUBIC } Mode;

typedef struct Resize {
	Mode mode;
	bool antialias, exclude_outside;
	const char *transform, *nearest, *policy;
	double cubic_a, outside;          /* outside: the value for points outside the region of tf_crop_and_resize */
	double scale[IR_MAX_RANK], begin[IR_MAX_RANK], end[IR_MAX_RANK];
	int64_t size[IR_MAX_RANK];
	bool touched[IR_MAX_RANK];
} Resize;

/* The position in the input, of n elements, that element i of the result is taken from. */
static double source_of(const Resize *r, int axis, int64_t i, int64_t n)
{
	double scale = r->scale[axis], width = scale * (double)n, x = (double)i;
	const char *t = r->transform;
	if (!strcmp(t, "asymmetric"))
		return x / scale;
	if (!strcmp(t, "align_corners"))
		return width <= 1 ? 0 : x * (double)(n - 1) / (width - 1);
	if (!strcmp(t, "tf_crop_and_resize")) {
		double span = (r->end[axis] - r->begin[axis]) * (double)(n - 1);
		return r->begin[axis] * (double)(n - 1) + (width <= 1 ? span / 2 : x * span / (width - 1));
	}
	if (!strcmp(t, "pytorch_half_pixel") && width <= 1)
		return -0.5;
	double shift = strcmp(t, "half_pixel_symmetric") ? 0
		: (double)n / 2 * (1 - (double)r->size[axis] / width);
	return shift + (x + 0.5) / scale - 0.5;
}

static double nearest_of(const Resize *r, double x)
{
	if (!strcmp(r->nearest, "floor"))
		return floor(x);
	if (!strcmp(r->nearest, "ceil"))
		return ceil(x);
	return strcmp(r->nearest, "round_prefer_ceil") ? ceil(x - 0.5) : floor(x + 0.5);
}

/* The interpolation kernel at distance d, in elements of the coarser of the two sides. */
static double kernel(const Resize *r, double d)
{
	double a = r->cubic_a;
	d = fabs(d);
	if (r->mode == MODE_LINEAR)
		return d < 1 ? 1 - d : 0;
	if (d <= 1)
		return ((a + 2) * d - (a + 3)) * d * d + 1;
	return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

typedef struct Taps {
	int n;
	int64_t *at[TAPS_MAX];   /* index of each tap: [size] each */
	double *weight[TAPS_MAX];
	int64_t *inside;         /* [size]; 0 only for points outside the region of tf_crop_and_resize */
	bool all_inside;
} Taps;

static void tap_weights(const Resize *r, int axis, int64_t i, double x, int64_t n, Taps *taps)
{
	double fine = r->antialias ? MIN(r->scale[axis], 1.0) : 1.0, sum = 0;
	double first = floor(x - (r->mode == MODE_LINEAR ? 1 : 2) / fine) + 1;
	for (int k = 0; k < taps->n; k++) {
		double at = first + k, w = kernel(r, (at - x) * fine);
		bool outside = at < 0 || at > (double)(n - 1);
		taps->at[k][i] = (int64_t)MIN(MAX(at, 0.0), (double)(n - 1));
		taps->weight[k][i] = r->exclude_outside && outside ? 0 : w;
		sum += taps->weight[k][i];
	}
	for (int k = 0; k < taps->n && sum != 0; k++)
		taps->weight[k][i] /= sum;
}

static bool make_taps(Node *n, const Resize *r, int axis, int64_t dim, Taps *taps)
{
	int64_t size = r->size[axis];
	double fine = r->antialias ? MIN(r->scale[axis], 1.0) : 1.0, reach = (r->mode == MODE_LINEAR ? 2 : 4) / fine;
	taps->n = r->mode == MODE_NEAREST ? 1 : (int)MIN(ceil(reach), (double)TAPS_MAX + 1);
	if (taps->n > TAPS_MAX)
		return node_refuse(n, "antialiasing over more than %d elements is not supported", TAPS_MAX);
	for (int k = 0; k < taps->n; k++) {
		taps->at[k] = NEW_N(n->im->arena, int64_t, size + 1);
		taps->weight[k] = NEW_N(n->im->arena, double, size + 1);
	}
	taps->inside = NEW_N(n->im->arena, int64_t, size + 1);
	taps->all_inside = true;
	for (int64_t i = 0; i < size; i++) {
		double x = source_of(r, axis, i, dim);
		bool crop = !strcmp(r->transform, "tf_crop_and_resize");
		taps->inside[i] = !crop || (x >= 0 && x <= (double)(dim - 1));
		taps->all_inside = taps->all_inside && taps->inside[i];
		if (r->mode != MODE_NEAREST) {
			tap_weights(r, axis, i, x, dim, taps);
		} else {
			taps->at[0][i] = (int64_t)MIN(MAX(nearest_of(r, x), 0.0), (double)(dim - 1));
			taps->weight[0][i] = 1;
		}
	}
	return true;
}

static bool all_are(const double *v, int64_t n, double x)
{
	for (int64_t i = 0; i < n; i++)
		if (v[i] != x)
			return false;
	return true;
}

/* v placed along axis; all other dims are 1. */
static Value *along(Node *n, const EvalTensor *v, int rank, int axis)
{
	int64_t dim[IR_MAX_RANK];
	for (int i = 0; i < rank; i++)
		dim[i] = i == axis ? type_numel(&v->type) : 1;
	EvalTensor t = *v;
	t.type = type_tensor(v->type.dtype, rank, dim);
	return emit_literal(n->b, &t);
}

static Value *resize_axis(Node *n, Value *x, const Resize *r, int axis)
{
	Taps taps = {.n = 0};
	int64_t size = r->size[axis];
	Value *sum = NULL;
	if (!make_taps(n, r, axis, x->type.dim[axis], &taps))
		return &n->im->m->poison;
	for (int k = 0; k < taps.n; k++) {
		if (taps.n > 1 && all_are(taps.weight[k], size, 0))
			continue;
		Value *at = emit_ints(n->b, 1, &size, DT_I64, taps.at[k]);
		Value *part = ir_emit(n->b, OP_GATHER, 2, (Value *[]){x, at}, attr_int(n->b->m, NULL, "axis", axis));
		EvalTensor w = {.type = type_tensor(x->type.dtype, 1, &size), .f = taps.weight[k]};
		if (!all_are(taps.weight[k], size, 1))
			part = emit_mul(n->b, part, along(n, &w, x->type.rank, axis));
		sum = sum ? emit_add(n->b, sum, part) : part;
	}
	if (taps.all_inside || !sum)
		return sum ? sum : &n->im->m->poison;
	EvalTensor inside = {.type = type_tensor(DT_BOOL, 1, &size), .i = taps.inside};
	return ir_emit3(n->b, OP_WHERE, along(n, &inside, x->type.rank, axis), sum, emit_float(n->b, sum, r->outside));
}

/* ---- what the node says ---- */

static bool known_floats(Node *n, int i, const char *what, const double **out, int *count)
{
	EvalTensor *t = node_known(n, i);
	*count = -1;
	if (!node_in(n, i))
		return true;
	if (!t || !dtype_is_float(t->type.dtype))
		return node_refuse(n, "its %s depends on data: it must be known at compile time", what);
	*out = t->f;
	*count = (int)type_numel(&t->type);
	return true;
}

/* A dim times a scale as a number of elements; AXIS_MAX + 1 if it exceeds AXIS_MAX, 0 if it is not a number above 0. */
static int64_t elements(double x)
{
	return !(x > 0) ? 0 : (int64_t)MIN(x, (double)AXIS_MAX + 1);
}

/* keep_aspect_ratio_policy: all named axes get the same scale, the smallest or largest one. */
static void keep_aspect(Resize *r, const Type *t, const int *axes, int count)
{
	double scale = r->scale[axes[0]];
	bool larger = !strcmp(r->policy, "not_smaller");
	for (int k = 1; k < count; k++)
		scale = larger ? MAX(scale, r->scale[axes[k]]) : MIN(scale, r->scale[axes[k]]);
	for (int k = 0; k < count; k++) {
		r->scale[axes[k]] = scale;
		r->size[axes[k]] = elements(scale * (double)t->dim[axes[k]] + 0.5);
	}
}

static bool check_sizes(Node *n, const Type *t, const int *axes, int count, const Resize *r)
{
	for (int k = 0; k < count; k++) {
		int axis = axes[k];
		if (!(r->scale[axis] > 0) || r->size[axis] < 1 || r->size[axis] > AXIS_MAX)
			return node_error(n, "axis %d of %s would get %" PRId64 " elements by scale %g, 1 to %d are possible", axis,
				type_str(n->im->arena, t), r->size[axis], r->scale[axis], AXIS_MAX);
	}
	return true;
}

static bool read_sizes(Node *n, const Type *t, const double *scales, int n_scales, const int64_t *sizes,
	int n_sizes, const double *roi, int n_roi, Resize *r)
{
	const int64_t *list = NULL;
	int given = node_ints(n, "axes", &list), count = given < 0 ? t->rank : given, axes[IR_MAX_RANK];
	if (count > t->rank || !count || (n_sizes >= 0 ? n_sizes : n_scales) != count
			|| (n_roi >= 0 && n_roi && n_roi != 2 * count))
		return node_error(n, "scales, sizes, axes and roi do not fit %s", type_str(n->im->arena, t));
	for (int k = 0; k < count; k++) {
		int axis = axes[k] = node_axis(n, given < 0 ? k : list[k], t->rank);
		if (axis < 0)
			return false;
		double dim = (double)t->dim[axis];
		r->scale[axis] = n_sizes >= 0 ? (double)sizes[k] / dim : scales[k];
		r->size[axis] = n_sizes >= 0 ? sizes[k] : elements(floor(dim * scales[k]));
		r->begin[axis] = n_roi > 0 ? roi[k] : 0;
		r->end[axis] = n_roi > 0 ? roi[count + k] : 1;
		r->touched[axis] = true;
	}
	if (!check_sizes(n, t, axes, count, r))
		return false;
	if (n_sizes >= 0 && strcmp(r->policy, "stretch"))
		keep_aspect(r, t, axes, count);
	return check_sizes(n, t, axes, count, r);
}

static bool read_modes(Node *n, Resize *r)
{
	const char *mode = node_str(n, "mode", "nearest");
	bool old = n->opset < 11 || !strcmp(n->op, "Upsample");
	*r = (Resize){.transform = node_str(n, "coordinate_transformation_mode", old ? "asymmetric" : "half_pixel"),
		.nearest = node_str(n, "nearest_mode", old ? "floor" : "round_prefer_floor"),
		.policy = node_str(n, "keep_aspect_ratio_policy", "stretch"), .antialias = node_int(n, "antialias", 0),
		.exclude_outside = node_int(n, "exclude_outside", 0), .cubic_a = node_float(n, "cubic_coeff_a", -0.75),
		.outside = node_float(n, "extrapolation_value", 0)};
	r->mode = !strcmp(mode, "nearest") ? MODE_NEAREST : !strcmp(mode, "cubic") ? MODE_CUBIC : MODE_LINEAR;
	if (r->mode == MODE_LINEAR && strcmp(mode, "linear") && strcmp(mode, "bilinear"))
		return node_error(n, "mode \"%s\" is unknown", mode);
	return true;
}

static Value *resize_all(Node *n, Value *x, const Resize *r)
{
	for (int axis = 0; axis < x->type.rank && x->op; axis++) {
		bool whole = r->begin[axis] == 0 && r->end[axis] == 1; /* compared exactly: the numbers are given so */
		if (!r->touched[axis] || (r->size[axis] == x->type.dim[axis] && r->scale[axis] == 1 && whole))
			continue;
		if (!x->type.dim[axis]) {
			node_error(n, "axis %d is empty", axis);
			return &n->im->m->poison;
		}
		x = resize_axis(n, x, r, axis);
	}
	return x;
}

bool import_resize(Node *n)
{
	Resize r;
	const double *scales = NULL, *roi = NULL;
	const int64_t *sizes = NULL;
	int n_scales = -1, n_sizes = -1, n_roi = -1, at = n->opset < 11 ? 1 : 2;
	if (!node_want(n, 1, 4) || !read_modes(n, &r) || !known_floats(n, at, "scales", &scales, &n_scales))
		return false;
	if (at == 2 && !strcmp(r.transform, "tf_crop_and_resize") && !known_floats(n, 1, "roi", &roi, &n_roi))
		return false;
	if (node_in(n, 3) && !node_known_ints(n, 3, "sizes", &sizes, &n_sizes))
		return false;
	if (!read_sizes(n, &n->in[0]->type, scales, n_scales, sizes, n_sizes, roi, n_roi, &r))
		return false;
	n->out[0] = resize_all(n, n->in[0], &r);
	return true;
}

bool import_upsample(Node *n)
{
	Resize r;
	const double *scales = NULL;
	int count;
	const Onnx__AttributeProto *a = node_attr(n, "scales");
	if (!node_want(n, 1, 2) || !read_modes(n, &r) || !known_floats(n, 1, "scales", &scales, &count))
		return false;
	if (a) {
		double *list = NEW_N(n->im->arena, double, a->n_floats + 1);
		for (size_t i = 0; i < a->n_floats; i++)
			list[i] = (double)a->floats[i];
		scales = list;
		count = (int)a->n_floats;
	}
	if (!read_sizes(n, &n->in[0]->type, scales, count, NULL, -1, NULL, -1, &r))
		return false;
	n->out[0] = resize_all(n, n->in[0], &r);
	return true;
}
