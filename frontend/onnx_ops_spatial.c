/* frontend/onnx_ops_spatial.c: sampling at points and in boxes, deformable convolution, determinants, and the choice of
 * boxes, whose result has a size that only known values tell. */
#include "frontend/onnx_import.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- GridSample, AffineGrid ---- */

static Attr *sample_attrs(Module *m, const char *mode, const char *padding, const char *coords)
{
	Attr *a = attr_str(m, attr_str(m, NULL, "mode", mode), "padding", padding);
	return attr_str(m, a, "coords", coords);
}

/* The mode by its name in ir/ops.def; NULL: it is unknown.  Before opset 20 two of them had other names. */
static const char *sample_mode(const char *text)
{
	static const char *const names[][2] = {{"linear", "linear"}, {"bilinear", "linear"}, {"nearest", "nearest"},
		{"cubic", "cubic"}, {"bicubic", "cubic"}};
	for (int i = 0; i < COUNT_OF(names); i++)
		if (!strcmp(text, names[i][0]))
			return names[i][1];
	return NULL;
}

bool import_grid_sample(Node *n)
{
	const char *text = node_str(n, "mode", "linear"), *mode = sample_mode(text);
	const char *padding = node_str(n, "padding_mode", "zeros");
	if (!node_want(n, 2, 2))
		return false;
	if (!mode)
		return node_error(n, "mode \"%s\" is unknown", text);
	Value *x = n->in[0], *grid = n->in[1];
	if (!dtype_is_float(x->type.dtype) || !dtype_is_float(grid->type.dtype))
		return node_refuse(n, "samples of %s at points of %s: both must be floats; cast the image first",
			dtype_info[x->type.dtype].text, dtype_info[grid->type.dtype].text);
	DType given = x->type.dtype, t = dtype_info[grid->type.dtype].bytes > dtype_info[given].bytes
		? grid->type.dtype : given;
	Value *in[2] = {ir_cast(n->b, x, t), ir_cast(n->b, grid, t)};
	Attr *a = sample_attrs(n->b->m, mode, padding, node_int(n, "align_corners", 0) ? "centres" : "edges");
	n->out[0] = ir_cast(n->b, ir_emit(n->b, OP_GRID_SAMPLE, 2, in, a), given);
	return true;
}

/* The coordinates -1 to 1 along the dim of `size`, as a tensor of this rank whose other dims are 1. */
static Value *axis_coordinates(Node *n, DType t, int rank, int axis, int64_t size, bool align)
{
	int64_t dim[IR_MAX_RANK];
	double reach = size > 1 ? align ? 1 : 1 - 1 / (double)size : 0; /* one pixel is at 0, as in PyTorch */
	for (int i = 0; i < rank; i++)
		dim[i] = i == axis ? size : 1;
	return emit_iota(n->b, t, rank, dim, axis, -reach, size > 1 ? 2 * reach / (double)(size - 1) : 1);
}

/* AffineGrid: the coordinates of point p are theta[:, :, j] * p[j] summed up, the last of them being 1. */
bool import_affine_grid(Node *n)
{
	const int64_t *size;
	int count;
	bool align = node_int(n, "align_corners", 0);
	if (!node_want(n, 2, 2) || !node_known_ints(n, 1, "size", &size, &count))
		return false;
	Value *theta = n->in[0], *sum = NULL;
	const Type *t = &theta->type;
	int d = count - 2, rank = count; /* of the result: [N,out..,d] */
	if (count < 4 || count > 5 || !dtype_is_float(t->dtype) || t->rank != 3 || t->dim[0] != size[0] || t->dim[1] != d
			|| t->dim[2] != d + 1)
		return node_error(n, "wants matrices [N,2,3] and a size of 4 numbers, or [N,3,4] and 5, of the same N; got %s "
			"and %d numbers", type_str(n->im->arena, t), count);
	for (int i = 2; i < count; i++)
		if (size[i] < 1 || size[i] > INT32_MAX)
			return node_error(n, "dimension %d of its size is %" PRId64, i, size[i]);
	for (int j = 0; j <= d; j++) {
		int64_t wide[5] = {t->dim[0], 1, 1, 1, 1};
		wide[rank - 1] = d;
		Value *part = ir_reshape(n->b, emit_slice(n->b, theta, 2, j, 1, 1), rank, wide);
		if (j < d)
			part = emit_mul(n->b, part, axis_coordinates(n, t->dtype, rank, d - j, size[count - 1 - j], align));
		sum = sum ? emit_add(n->b, sum, part) : part;
	}
	n->out[0] = sum;
	return true;
}

/* ---- DeformConv ---- */

typedef struct Deform {
	int64_t strides[2], dilations[2], pads[4], kernel[2], out[2], n, c, group, offset_group;
} Deform;

static bool small_ints(Node *n, const char *name, int count, int64_t otherwise, int64_t lowest, int64_t *out)
{
	const int64_t *list;
	int given = node_ints(n, name, &list);
	if (given >= 0 && given != count)
		return node_error(n, "%s has %d numbers, %d wanted", name, given, count);
	for (int i = 0; i < count; i++) {
		out[i] = given < 0 ? otherwise : list[i];
		if (out[i] < lowest || out[i] > INT32_MAX)
			return node_error(n, "%s has %" PRId64 ", which is below %" PRId64 " or too large", name, out[i], lowest);
	}
	return true;
}

/* Whether an operand has these four dims; an absent one does. */
static bool want_dims(Node *n, int i, const char *what, const int64_t *dim)
{
	const Value *v = node_in(n, i);
	for (int k = 0; v && k < 4; k++)
		if (v->type.rank != 4 || v->type.dim[k] != dim[k])
			return node_error(n, "its %s is %s, expected [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", what,
				type_str(n->im->arena, &v->type), dim[0], dim[1], dim[2], dim[3]);
	return true;
}

static bool deform_read(Node *n, Deform *f)
{
	const Type *x = &n->in[0]->type, *w = &n->in[1]->type;
	f->group = node_int(n, "group", 1);
	f->offset_group = node_int(n, "offset_group", 1);
	if (x->rank != 4 || w->rank != 4)
		return node_refuse(n, "only two spatial dims are supported: data %s, weights %s", type_str(n->im->arena, x),
			type_str(n->im->arena, w));
	f->n = x->dim[0];
	f->c = x->dim[1];
	int64_t kernel[2];
	memcpy(f->kernel, w->dim + 2, sizeof(f->kernel));
	if (node_has(n, "kernel_shape") && (!small_ints(n, "kernel_shape", 2, 1, 1, kernel)
			|| memcmp(kernel, f->kernel, sizeof(kernel)) != 0))
		return node_error(n, "kernel_shape is not that of the weights, %s", type_str(n->im->arena, w));
	if (!small_ints(n, "strides", 2, 1, 1, f->strides) || !small_ints(n, "dilations", 2, 1, 1, f->dilations)
			|| !small_ints(n, "pads", 4, 0, 0, f->pads))
		return false;
	if (f->group < 1 || f->offset_group < 1 || f->c % f->group || w->dim[0] % f->group || f->c % f->offset_group
			|| w->dim[1] != f->c / f->group)
		return node_error(n, "%" PRId64 " groups and %" PRId64 " groups of offsets do not fit data %s and weights %s",
			f->group, f->offset_group, type_str(n->im->arena, x), type_str(n->im->arena, w));
	for (int i = 0; i < 2; i++) {
		int64_t room = x->dim[2 + i] + f->pads[i] + f->pads[2 + i] - (f->kernel[i] - 1) * f->dilations[i] - 1;
		if (f->kernel[i] < 1 || f->kernel[i] > INT32_MAX || x->dim[2 + i] > INT32_MAX || room < 0)
			return node_error(n, "a kernel %s does not fit %s, padded", type_str(n->im->arena, w),
				type_str(n->im->arena, x));
		f->out[i] = room / f->strides[i] + 1;
	}
	int64_t taps = f->offset_group * f->kernel[0] * f->kernel[1];
	return want_dims(n, 2, "offset", (int64_t[]){f->n, 2 * taps, f->out[0], f->out[1]})
		&& want_dims(n, 4, "mask", (int64_t[]){f->n, taps, f->out[0], f->out[1]});
}

/* The positions along dim i that a kernel without offsets reads, [1,K,oH,oW] by broadcasting. */
static Value *undeformed(Node *n, DType t, const Deform *f, int i)
{
	int64_t k[4] = {1, f->kernel[0], f->kernel[1], 1}, at[4] = {1, 1, 1, 1}, taps = f->kernel[0] * f->kernel[1];
	at[2 + i] = f->out[i];
	Value *tap = emit_iota(n->b, t, 4, k, 1 + i, (double)-f->pads[i], (double)f->dilations[i]);
	tap = ir_reshape(n->b, tap, 4, (int64_t[]){1, taps, 1, 1});
	return emit_add(n->b, tap, emit_iota(n->b, t, 4, at, 2 + i, 0, (double)f->strides[i]));
}

/* The pixels that each output position and tap of the kernel reads: [N, C, taps * positions]. */
static Value *deformed_columns(Node *n, const Deform *f)
{
	Builder *b = n->b;
	Value *x = n->in[0], *mask = node_in(n, 4), *coordinate[2];
	int64_t batch = f->n * f->offset_group, taps = f->kernel[0] * f->kernel[1], channels = f->c / f->offset_group;
	int64_t rows = taps * f->out[0];
	Value *offset = ir_reshape(b, n->in[2], 5, (int64_t[]){batch, taps, 2, f->out[0], f->out[1]});
	for (int i = 0; i < 2; i++) {
		Value *one = emit_slice(b, offset, 2, i, 1, 1);
		one = ir_reshape(b, one, 4, (int64_t[]){batch, taps, f->out[0], f->out[1]});
		one = emit_add(b, one, undeformed(n, x->type.dtype, f, i));
		coordinate[1 - i] = ir_reshape(b, one, 4, (int64_t[]){batch, rows, f->out[1], 1});
	}
	Value *grid = emit_concat(b, 2, coordinate, 3);
	x = ir_reshape(b, x, 4, (int64_t[]){batch, channels, x->type.dim[2], x->type.dim[3]});
	x = ir_emit(b, OP_GRID_SAMPLE, 2, (Value *[]){x, grid}, sample_attrs(b->m, "linear", "zeros", "pixels"));
	if (mask)
		x = emit_mul(b, x, ir_reshape(b, mask, 4, (int64_t[]){batch, 1, rows, f->out[1]}));
	return ir_reshape(b, x, 3, (int64_t[]){f->n, f->c, rows * f->out[1]});
}

/* DeformConv: a product of the weights with what the moved taps read. */
bool import_deform_conv(Node *n)
{
	Deform f;
	if (!node_want(n, 3, 5) || !deform_read(n, &f))
		return false;
	Builder *b = n->b;
	Value *w = n->in[1], *bias = node_in(n, 3);
	int64_t o = w->type.dim[0], inner = f.c / f.group * f.kernel[0] * f.kernel[1], positions = f.out[0] * f.out[1];
	if (bias && (bias->type.rank != 1 || bias->type.dim[0] != o))
		return node_error(n, "its bias is %s, expected [%" PRId64 "]", type_str(n->im->arena, &bias->type), o);
	Value *columns = ir_reshape(b, deformed_columns(n, &f), 4, (int64_t[]){f.n, f.group, inner, positions});
	w = ir_reshape(b, w, 3, (int64_t[]){f.group, o / f.group, inner});
	Value *y = emit_matmul(b, w, columns, NULL, false, false);
	y = ir_reshape(b, y, 4, (int64_t[]){f.n, o, f.out[0], f.out[1]});
	n->out[0] = bias ? emit_add(b, y, ir_reshape(b, bias, 4, (int64_t[]){1, o, 1, 1})) : y;
	return true;
}

/* ---- RoiAlign, MaxRoiPool, Det ---- */

static Attr *roi_attrs(Module *m, const char *mode, const int64_t *size, int64_t ratio, double scale, bool half_pixel)
{
	Attr *a = attr_ints(m, attr_str(m, NULL, "mode", mode), "size", 2, size);
	a = attr_float(m, attr_int(m, a, "ratio", ratio), "scale", scale);
	return attr_int(m, a, "half_pixel", half_pixel);
}

bool import_roi_align(Node *n)
{
	const char *mode = node_str(n, "mode", "avg"), *transform = n->opset < 16 ? "output_half_pixel"
		: node_str(n, "coordinate_transformation_mode", "half_pixel");
	int64_t size[2] = {node_int(n, "output_height", 1), node_int(n, "output_width", 1)};
	if (!node_want(n, 3, 3))
		return false;
	if (strcmp(mode, "avg") && strcmp(mode, "max"))
		return node_error(n, "mode \"%s\" is unknown", mode);
	if (strcmp(transform, "half_pixel") && strcmp(transform, "output_half_pixel"))
		return node_error(n, "coordinate_transformation_mode \"%s\" is unknown", transform);
	n->out[0] = ir_emit(n->b, OP_ROI_POOL, 3, n->in, roi_attrs(n->b->m, mode, size, node_int(n, "sampling_ratio", 0),
		node_float(n, "spatial_scale", 1), !strcmp(transform, "half_pixel")));
	return true;
}

/* MaxRoiPool's boxes begin with the number of their image. */
bool import_max_roi_pool(Node *n)
{
	int64_t size[2];
	if (!node_want(n, 2, 2) || !small_ints(n, "pooled_shape", 2, 0, 1, size))
		return false;
	Value *rois = n->in[1];
	if (rois->type.rank != 2 || rois->type.dim[1] != 5)
		return node_error(n, "wants boxes [boxes,5], got %s", type_str(n->im->arena, &rois->type));
	Value *ids = ir_reshape(n->b, emit_slice(n->b, rois, 1, 0, 1, 1), 1, rois->type.dim);
	Value *in[3] = {n->in[0], emit_slice(n->b, rois, 1, 1, 4, 1), ir_cast(n->b, ids, DT_I64)};
	n->out[0] = ir_emit(n->b, OP_ROI_POOL, 3, in, roi_attrs(n->b->m, "pool", size, 0,
		node_float(n, "spatial_scale", 1), false));
	return true;
}

bool import_det(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	n->out[0] = ir_emit(n->b, OP_DET, 1, n->in, NULL);
	return true;
}

/* ---- NonMaxSuppression ---- */

typedef struct Nms {
	const double *boxes, *scores;  /* [batches, n, 4], [batches, classes, n] */
	int64_t batches, classes, n, most;
	double iou, least;
	bool centres;
	int64_t *picked;               /* rows of (batch, class, box) */
	int64_t count;
} Nms;

static void nms_corners(const Nms *s, const double *box, double *out)
{
	for (int i = 0; i < 2; i++) {
		double a = s->centres ? box[i] - box[2 + i] / 2 : box[i], b = s->centres ? box[i] + box[2 + i] / 2 : box[2 + i];
		out[i] = fmin(a, b);
		out[2 + i] = fmax(a, b);
	}
}

static double nms_overlap(const Nms *s, const double *a, const double *b)
{
	double p[4], q[4];
	nms_corners(s, a, p);
	nms_corners(s, b, q);
	double both = fmax(0, fmin(p[2], q[2]) - fmax(p[0], q[0])) * fmax(0, fmin(p[3], q[3]) - fmax(p[1], q[1]));
	double all = (p[2] - p[0]) * (p[3] - p[1]) + (q[2] - q[0]) * (q[3] - q[1]) - both;
	return all > 0 ? both / all : 0;
}

/* Picks boxes of one class by falling score, the first of equals, unless they overlap with one that was picked. */
static void nms_class(Nms *s, int64_t batch, int64_t class, bool *done)
{
	const double *boxes = s->boxes + batch * s->n * 4, *score = s->scores + (batch * s->classes + class) * s->n;
	int64_t first = s->count;
	for (int64_t k = 0; k < s->n; k++)
		done[k] = !(score[k] > s->least);
	while (s->count - first < s->most) {
		int64_t best = -1;
		for (int64_t k = 0; k < s->n; k++)
			if (!done[k] && (best < 0 || score[k] > score[best]))
				best = k;
		if (best < 0)
			return;
		done[best] = true;
		bool apart = true;
		for (int64_t r = first; r < s->count && apart; r++)
			apart = nms_overlap(s, boxes + best * 4, boxes + s->picked[r * 3 + 2] * 4) <= s->iou;
		if (!apart)
			continue;
		memcpy(s->picked + s->count++ * 3, (int64_t[]){batch, class, best}, 3 * sizeof(int64_t));
	}
}

/* The number in an optional operand; false: it is not known, or not one number. */
static bool nms_number(Node *n, int i, double otherwise, double *out)
{
	const EvalTensor *t = node_in(n, i) ? node_known(n, i) : NULL;
	*out = otherwise;
	if (!node_in(n, i))
		return true;
	if (!t || type_numel(&t->type) != 1)
		return false;
	*out = dtype_is_float(t->type.dtype) ? t->f[0] : (double)t->i[0];
	return true;
}

bool import_non_max_suppression(Node *n)
{
	double most;
	if (!node_want(n, 2, 5))
		return false;
	const Type *b = &n->in[0]->type, *c = &n->in[1]->type;
	if (!dtype_is_float(b->dtype) || !dtype_is_float(c->dtype) || b->rank != 3 || c->rank != 3 || b->dim[2] != 4
			|| c->dim[0] != b->dim[0] || c->dim[2] != b->dim[1])
		return node_error(n, "wants boxes [batches,boxes,4] and scores [batches,classes,boxes], got %s and %s",
			type_str(n->im->arena, b), type_str(n->im->arena, c));
	Nms s = {.batches = b->dim[0], .classes = c->dim[1], .n = b->dim[1], .centres = node_int(n, "center_point_box", 0)};
	const EvalTensor *boxes = node_known(n, 0), *scores = node_known(n, 1);
	if (!boxes || !scores || !nms_number(n, 2, 0, &most) || !nms_number(n, 3, 0, &s.iou)
			|| !nms_number(n, 4, -INFINITY, &s.least))
		return node_refuse(n, "how many boxes it picks depends on data, and shapes must be known at compile time; "
			"choose boxes outside of the model, or a fixed number of them by TopK");
	s.boxes = boxes->f;
	s.scores = scores->f;
	s.most = (int64_t)fmin(fmax(most, 0), (double)s.n);
	s.picked = NEW_N(n->im->arena, int64_t, 3 * s.batches * s.classes * s.most + 1);
	bool *done = NEW_N(n->im->arena, bool, s.n + 1);
	for (int64_t k = 0; k < s.batches * s.classes; k++)
		nms_class(&s, k / s.classes, k % s.classes, done);
	n->out[0] = emit_ints(n->b, 2, (int64_t[]){s.count, 3}, DT_I64, s.picked);
	return true;
}
