/* frontend/onnx_ops_conv.c: convolution and pooling, in ONNX's channels-first layout.
 *
 * auto_pad and ceil_mode become explicit pads.  A pooling for which the IR has no op (dilated averages, p-norms)
 * becomes a depthwise convolution with a kernel of ones. */
#include "frontend/onnx_import.h"
#include "frontend/onnx_params.h"

#include <inttypes.h>
#include <string.h>

enum { SPATIAL_MAX = IR_MAX_RANK - 2 };

/* A window that slides over the spatial dims of x. */
typedef struct Window {
	int n;
	int64_t kernel[SPATIAL_MAX], strides[SPATIAL_MAX], dilations[SPATIAL_MAX];
	int64_t pads[2 * SPATIAL_MAX]; /* begins, then ends */
	int64_t extra[SPATIAL_MAX];    /* what ceil_mode adds at the end */
	int64_t out[SPATIAL_MAX];
} Window;

static bool ints_or(Node *n, const char *name, int count, int64_t otherwise, int64_t lowest, int64_t *out)
{
	const int64_t *list;
	int given = node_ints(n, name, &list);
	if (given >= 0 && given != count)
		return node_error(n, "%s has %d numbers, %d wanted", name, given, count);
	for (int i = 0; i < count; i++) {
		out[i] = given < 0 ? otherwise : list[i];
		if (out[i] < lowest || out[i] > INT32_MAX)
			return node_error(n, "%s has %" PRId64 ", which is below %" PRId64 " or too large", name, out[i],
				lowest);
	}
	return true;
}

/* Pads of SAME_*: as many windows as the stride gives without pads; an odd pad goes to the end (UPPER) or the start. */
static void pad_same(Window *w, int i, int64_t in, bool upper)
{
	int64_t reach = (w->kernel[i] - 1) * w->dilations[i] + 1;
	int64_t need = MAX((ceil_div(in, w->strides[i]) - 1) * w->strides[i] + reach - in, 0);
	w->pads[i] = upper ? need / 2 : need - need / 2;
	w->pads[w->n + i] = need - w->pads[i];
}

static bool window_read(Node *n, const Type *x, const int64_t *kernel, Window *w)
{
	*w = (Window){.n = x->rank - 2};
	if (w->n < 1 || w->n > SPATIAL_MAX)
		return node_error(n, "wants 1 to %d spatial dimensions, has %s", SPATIAL_MAX, type_str(n->im->arena, x));
	for (int i = 0; i < x->rank; i++)
		if (x->dim[i] > INT32_MAX)
			return node_error(n, "dimension %d of %s is too large", i, type_str(n->im->arena, x));
	if (kernel)
		memcpy(w->kernel, kernel, sizeof(*kernel) * (size_t)w->n);
	else if (!ints_or(n, "kernel_shape", w->n, 0, 1, w->kernel))
		return false;
	return ints_or(n, "strides", w->n, 1, 1, w->strides) && ints_or(n, "dilations", w->n, 1, 1, w->dilations)
		&& ints_or(n, "pads", 2 * w->n, 0, 0, w->pads);
}

/* Turns auto_pad and ceil_mode into pads.  A window that would start behind the input and its front pad is not
 * counted; with ceil_mode the first may reach beyond the input by less than a stride. */
static bool window_fit(Node *n, const Type *x, Window *w)
{
	const char *pad = node_str(n, "auto_pad", "NOTSET");
	bool ceil_mode = node_int(n, "ceil_mode", 0), same = !strncmp(pad, "SAME", 4);
	if (!same && strcmp(pad, "NOTSET") && strcmp(pad, "VALID"))
		return node_error(n, "auto_pad \"%s\" is unknown", pad);
	for (int i = 0; i < w->n; i++) {
		int64_t in = x->dim[2 + i], reach = (w->kernel[i] - 1) * w->dilations[i] + 1;
		if (same)
			pad_same(w, i, in, !strcmp(pad, "SAME_UPPER"));
		if (!strcmp(pad, "VALID"))
			w->pads[i] = w->pads[w->n + i] = 0;
		int64_t room = in + w->pads[i] + w->pads[w->n + i] - reach;
		if (room < 0 && (!ceil_mode || -room >= w->strides[i] || in + w->pads[i] < 1))
			return node_error(n, "a window of %" PRId64 " does not fit dimension %d of %s, padded", reach, 2 + i,
				type_str(n->im->arena, x));
		w->out[i] = room < 0 ? 1 : (ceil_mode ? ceil_div(room, w->strides[i]) : room / w->strides[i]) + 1;
		if ((w->out[i] - 1) * w->strides[i] >= in + w->pads[i])
			w->out[i]--;
		w->extra[i] = MAX((w->out[i] - 1) * w->strides[i] - room, 0);
	}
	return true;
}

static Attr *window_attrs(Module *m, const Window *w, Attr *a)
{
	a = attr_ints(m, a, "strides", w->n, w->strides);
	a = attr_ints(m, a, "pads", 2 * w->n, w->pads);
	a = attr_ints(m, a, "dilations", w->n, w->dilations);
	return attr_int(m, a, "layout", 0);
}

/* ---- convolution ---- */

static bool conv_window(Node *n, Window *w)
{
	const int64_t *kernel;
	if (!node_want(n, 2, 3))
		return false;
	const Type *x = &n->in[0]->type, *f = &n->in[1]->type;
	if (x->rank != f->rank || x->rank < 3)
		return node_error(n, "wants data and weights of the same rank, at least 3: %s and %s",
			type_str(n->im->arena, x), type_str(n->im->arena, f));
	int count = node_ints(n, "kernel_shape", &kernel);
	for (int i = 2; i < f->rank; i++)
		if (f->dim[i] > INT32_MAX || (count >= 0 && (count != f->rank - 2 || kernel[i - 2] != f->dim[i])))
			return node_error(n, "kernel_shape is not that of the weights, %s", type_str(n->im->arena, f));
	int64_t group = node_int(n, "group", 1);
	if (group < 1 || group > INT32_MAX || f->dim[1] > INT32_MAX)
		return node_error(n, "%" PRId64 " groups do not fit weights %s", group, type_str(n->im->arena, f));
	return window_read(n, x, f->dim + 2, w);
}

/* In eval mode TorchScript folds batch norms, and whatever else makes a convolution's weights, into new ones. */
static void note_computed_weights(Node *n)
{
	Import *im = n->im;
	if (im->pytorch && !im->signature && !im->meta && !strncmp(n->proto->input[1], "onnx::Conv", 10))
		vec_push(im->arena, &im->computed_convs, *n->scope ? n->scope : n->name);
}

/* Reads the bias, one number for each channel of the result.  PyTorch's dynamo exporter gives a three-dimensional
 * convolution without one zeros of [channels, 2], which add nothing.  False after an error. */
static bool conv_bias(Node *n, int64_t channels, Value **bias)
{
	*bias = node_in(n, 2);
	if (!*bias || ((*bias)->type.rank == 1 && (*bias)->type.dim[0] == channels))
		return true;
	const EvalTensor *t = node_known(n, 2);
	const Weight *w = t ? NULL : map_get(n->im->weights, n->proto->input[2]);
	double value = 1;
	bool zero = t ? dtype_is_float(t->type.dtype) : w && weight_is_splat(n->im, w, &value) && value == 0;
	for (int64_t i = 0; zero && t && i < type_numel(&t->type); i++)
		zero = t->f[i] == 0;
	if (!zero)
		return node_error(n, "its bias is %s, expected [%" PRId64 "]; only zeros may have another shape, which "
			"PyTorch's exporter writes: the file's exporter is wrong here",
			type_str(n->im->arena, &(*bias)->type), channels);
	*bias = NULL;
	return true;
}

bool import_conv(Node *n)
{
	Window w;
	Value *bias;
	if (!conv_window(n, &w) || !window_fit(n, &n->in[0]->type, &w) || !conv_bias(n, n->in[1]->type.dim[0], &bias))
		return false;
	Value *f = n->in[1];
	note_computed_weights(n);
	if (!bias && node_rewritten_by(n, "RemoveOptionalBiasFromConv") && !node_rewritten_by(n, "FuseBatchNorm")
			&& *n->scope)
		bias = params_restore(n, 2, "bias", type_tensor(f->type.dtype, 1, f->type.dim), 0);
	Attr *a = window_attrs(n->b->m, &w, attr_int(n->b->m, NULL, "group", node_int(n, "group", 1)));
	n->out[0] = ir_emit(n->b, OP_CONV, 3, (Value *[]){n->in[0], f, bias}, a);
	return true;
}

/* Which part of the full result of a transposed convolution is its result; begin may be negative. */
typedef struct Crop { int64_t full[SPATIAL_MAX], begin[SPATIAL_MAX], size[SPATIAL_MAX]; } Crop;

static bool transpose_crop(Node *n, Window *w, Crop *c)
{
	const int64_t *shape, *d = n->in[0]->type.dim + 2;
	const char *pad = node_str(n, "auto_pad", "NOTSET");
	int64_t more[SPATIAL_MAX];
	int count = node_ints(n, "output_shape", &shape);
	bool same = !strncmp(pad, "SAME", 4);
	if (!ints_or(n, "output_padding", w->n, 0, 0, more))
		return false;
	if (count >= 0 && count != w->n)
		return node_error(n, "output_shape has %d numbers, %d wanted", count, w->n);
	for (int i = 0; i < count; i++)
		if (shape[i] < 1 || shape[i] > INT32_MAX)
			return node_error(n, "output_shape has %" PRId64 ", 1 to %d are possible", shape[i], INT32_MAX);
	for (int i = 0; i < w->n; i++) {
		c->full[i] = w->strides[i] * (d[i] - 1) + (w->kernel[i] - 1) * w->dilations[i] + 1;
		c->begin[i] = same || count >= 0 ? 0 : w->pads[i];
		c->size[i] = c->full[i] + more[i] - (same ? 0 : w->pads[i] + w->pads[w->n + i]);
		if (count >= 0 || same) {
			c->size[i] = count >= 0 ? shape[i] : d[i] * w->strides[i];
			int64_t total = c->full[i] + more[i] - c->size[i];
			int64_t half = (total - (total < 0)) / 2; /* rounded down */
			c->begin[i] = !strcmp(pad, "SAME_UPPER") ? half : total - half;
		}
		if (c->size[i] < 1 || c->size[i] > INT32_MAX)
			return node_error(n, "dimension %d of its result would be %" PRId64, 2 + i, c->size[i]);
	}
	return true;
}

/* Whether the crop can be given as pads of a convolution's adjoint: it may not extend the full result at the front, and
 * at the end only by less than a stride. */
static bool crop_is_pads(const Window *w, const Crop *c, int64_t *pads)
{
	bool good = true;
	for (int i = 0; i < w->n; i++) {
		int64_t end = c->full[i] - c->begin[i] - c->size[i];
		pads[i] = c->begin[i];
		pads[w->n + i] = MAX(end, 0);
		good = good && c->begin[i] >= 0 && end > -w->strides[i];
	}
	return good;
}

static Value *crop_or_pad(Builder *b, Value *x, const Window *w, const Crop *c)
{
	int64_t before[IR_MAX_RANK] = {0}, after[IR_MAX_RANK] = {0};
	for (int i = 0; i < w->n; i++) {
		int64_t first = MAX(c->begin[i], 0), end = MIN(c->begin[i] + c->size[i], c->full[i]);
		before[2 + i] = MAX(-c->begin[i], 0);
		after[2 + i] = MAX(c->begin[i] + c->size[i] - c->full[i], 0);
		x = emit_slice(b, x, 2 + i, first, MAX(end - first, 0), 1);
	}
	int rank = x->type.rank;
	Attr *a = attr_ints(b->m, attr_ints(b->m, NULL, "before", rank, before), "after", rank, after);
	return ir_emit(b, OP_PAD, 1, &x, attr_float(b->m, attr_str(b->m, a, "mode", "constant"), "value", 0));
}

bool import_conv_transpose(Node *n)
{
	Window w;
	Crop c;
	int64_t group = node_int(n, "group", 1), shape[IR_MAX_RANK];
	if (!conv_window(n, &w) || !transpose_crop(n, &w, &c))
		return false;
	Value *x = n->in[0], *f = n->in[1], *bias;
	if (!conv_bias(n, f->type.dim[1] * group, &bias))
		return false;
	bool direct = crop_is_pads(&w, &c, w.pads);
	if (!direct)
		memset(w.pads, 0, sizeof(w.pads));
	shape[0] = x->type.dim[0];
	shape[1] = f->type.dim[1] * group;
	for (int i = 0; i < w.n; i++)
		shape[2 + i] = direct ? c.size[i] : c.full[i];
	Attr *a = window_attrs(n->b->m, &w, attr_int(n->b->m, NULL, "group", group));
	a = attr_ints(n->b->m, a, "shape", x->type.rank, shape);
	Value *v = ir_emit(n->b, OP_CONV_GRAD_X, 3, (Value *[]){x, f, direct ? bias : NULL}, a);
	if (!direct && v->op) {
		int64_t wide[IR_MAX_RANK] = {1, shape[1], 1, 1, 1, 1, 1, 1};
		v = crop_or_pad(n->b, v, &w, &c);
		if (bias)
			v = emit_add(n->b, v, ir_reshape(n->b, bias, x->type.rank, wide));
	}
	n->out[0] = v;
	return true;
}

/* ---- pooling ---- */

static bool pool_window(Node *n, Window *w)
{
	return node_want(n, 1, 1) && window_read(n, &n->in[0]->type, NULL, w)
		&& window_fit(n, &n->in[0]->type, w);
}

static void pad_extra(Window *w)
{
	for (int i = 0; i < w->n; i++)
		w->pads[w->n + i] += w->extra[i];
}

/* Converts indices within a plane to ONNX's, which count through the whole tensor: row-major, or with the first spatial
 * dim fastest. */
static Value *whole_indices(Node *n, Value *idx)
{
	const Type *x = &n->in[0]->type;
	int spatial = x->rank - 2;
	int64_t plane = 1, channel[IR_MAX_RANK] = {1, x->dim[1], 1, 1, 1, 1, 1, 1};
	int64_t sample[IR_MAX_RANK] = {x->dim[0], 1, 1, 1, 1, 1, 1, 1};
	for (int i = 0; i < spatial; i++)
		plane *= x->dim[2 + i];
	idx = ir_cast(n->b, idx, DT_I64);
	if (node_int(n, "storage_order", 0) && spatial == 2) {
		Value *cols = ir_const_int(n->b, DT_I64, x->dim[3]), *rows = ir_const_int(n->b, DT_I64, x->dim[2]);
		Attr *c_mod = attr_int(n->b->m, NULL, "fmod", 0);
		Value *col = ir_emit(n->b, OP_MOD, 2, (Value *[]){idx, cols}, c_mod);
		idx = emit_add(n->b, emit_mul(n->b, col, rows), emit_div(n->b, idx, cols));
	}
	Value *base = emit_add(n->b, emit_iota(n->b, DT_I64, x->rank, channel, 1, 0, (double)plane),
		emit_iota(n->b, DT_I64, x->rank, sample, 0, 0, (double)(plane * x->dim[1])));
	return emit_add(n->b, idx, base);
}

bool import_max_pool(Node *n)
{
	Window w;
	if (!pool_window(n, &w))
		return false;
	pad_extra(&w);
	Attr *a = window_attrs(n->b->m, &w, attr_ints(n->b->m, NULL, "kernel", w.n, w.kernel));
	const Op *op = ir_emit_op(n->b, OP_MAX_POOL, 1, n->in, a, NULL);
	if (!op)
		return false;
	n->out[0] = op->out[0];
	if (n->n_out > 1)
		n->out[1] = whole_indices(n, op->out[1]);
	return true;
}

/* Sums over windows: each channel is convolved with a kernel of ones. */
static Value *window_sum(Builder *b, Value *x, const Window *w)
{
	int64_t dim[IR_MAX_RANK] = {x->type.dim[1], 1};
	memcpy(dim + 2, w->kernel, sizeof(*dim) * (size_t)w->n);
	Value *ones = ir_const_full(b, type_tensor(x->type.dtype, w->n + 2, dim), 1);
	Attr *a = window_attrs(b->m, w, attr_int(b->m, NULL, "group", x->type.dim[1]));
	return ir_emit(b, OP_CONV, 2, (Value *[]){x, ones}, a);
}

/* How many elements each window covers.  Pads count only if count_pads; what ceil_mode adds never counts. */
static Value *window_count(Builder *b, const Type *x, const Window *w, bool count_pads)
{
	Window bare = *w;
	Type plane = *x;
	plane.dim[0] = plane.dim[1] = 1;
	for (int i = 0; i < w->n && count_pads; i++) {
		plane.dim[2 + i] += w->pads[i] + w->pads[w->n + i] - w->extra[i];
		bare.pads[i] = 0;
		bare.pads[w->n + i] = w->extra[i];
	}
	return window_sum(b, ir_const_full(b, plane, 1), &bare);
}

bool import_average_pool(Node *n)
{
	Window w;
	bool count_pads = node_int(n, "count_include_pad", 0), dilated = false;
	if (!pool_window(n, &w))
		return false;
	for (int i = 0; i < w.n; i++)
		dilated = dilated || w.dilations[i] != 1;
	if (dilated) {
		pad_extra(&w);
		n->out[0] = emit_div(n->b, window_sum(n->b, n->in[0], &w),
			window_count(n->b, &n->in[0]->type, &w, count_pads));
		return true;
	}
	Attr *a = window_attrs(n->b->m, &w, attr_ints(n->b->m, NULL, "kernel", w.n, w.kernel));
	a = attr_ints(n->b->m, attr_int(n->b->m, a, "count_pad", count_pads), "extra", w.n, w.extra);
	n->out[0] = ir_emit(n->b, OP_AVG_POOL, 1, n->in, a);
	return true;
}

bool import_lp_pool(Node *n)
{
	Window w;
	int64_t p = node_int(n, "p", 2);
	if (!pool_window(n, &w))
		return false;
	if (p < 1)
		return node_error(n, "p is %" PRId64, p);
	pad_extra(&w);
	Value *x = n->in[0], *exponent = emit_float(n->b, x, (double)p);
	Value *powers = p == 2 ? emit_mul(n->b, x, x) : ir_emit1(n->b, OP_ABS, x);
	powers = p > 2 ? ir_emit2(n->b, OP_POW, powers, exponent) : powers;
	n->out[0] = p == 1 ? window_sum(n->b, powers, &w) : emit_norm_root(n->b, window_sum(n->b, powers, &w), (double)p);
	return true;
}

/* ---- scattering windows ---- */

/* Col2Im sums columns [N, C*K, L] into an image.  It is a transposed convolution; kernel k is one at element k, else
 * zero. */
bool import_col2im(Node *n)
{
	const int64_t *image, *block;
	int n_image, n_block;
	Window w = {0};
	if (!node_want(n, 3, 3) || !node_known_ints(n, 1, "image_shape", &image, &n_image)
			|| !node_known_ints(n, 2, "block_shape", &block, &n_block))
		return false;
	const Type *x = &n->in[0]->type;
	w.n = n_image;
	if (x->rank != 3 || n_image < 1 || n_image > SPATIAL_MAX || n_block != n_image)
		return node_error(n, "wants columns of rank 3 and 1 to %d spatial dimensions", SPATIAL_MAX);
	if (!ints_or(n, "strides", w.n, 1, 1, w.strides) || !ints_or(n, "dilations", w.n, 1, 1, w.dilations)
			|| !ints_or(n, "pads", 2 * w.n, 0, 0, w.pads))
		return false;
	int64_t k = onnx_dims_numel(n_block, block), windows = 1;
	if (k < 1 || k > LITERAL_MAX || x->dim[1] % k)
		return node_error(n, "%" PRId64 " channels do not divide into blocks", x->dim[1]);
	int64_t columns[IR_MAX_RANK] = {x->dim[0], x->dim[1]}, shape[IR_MAX_RANK] = {x->dim[0], x->dim[1] / k};
	int64_t kernel[IR_MAX_RANK] = {x->dim[1], 1}, eye[3] = {x->dim[1] / k, k, k};
	for (int i = 0; i < w.n; i++) {
		if (image[i] < 0 || image[i] > INT32_MAX)
			return node_error(n, "dimension %d of the image is %" PRId64, i, image[i]);
		int64_t room = image[i] + w.pads[i] + w.pads[w.n + i] - (block[i] - 1) * w.dilations[i] - 1;
		shape[2 + i] = image[i];
		kernel[2 + i] = block[i];
		columns[2 + i] = room < 0 ? 0 : room / w.strides[i] + 1;
		if (__builtin_mul_overflow(windows, columns[2 + i], &windows))
			return node_error(n, "the windows over its image are too many");
	}
	if (windows != x->dim[2])
		return node_error(n, "%" PRId64 " columns, the windows are %" PRId64, x->dim[2], windows);
	Type t = type_tensor(DT_I64, 3, eye);
	Value *hit = ir_emit2(n->b, OP_EQ, emit_iota(n->b, DT_I64, 3, eye, 1, 0, 1),
		emit_iota(n->b, DT_I64, 3, (int64_t[]){1, 1, k}, 2, 0, 1));
	Value *f = ir_reshape(n->b, ir_cast(n->b, ir_broadcast(n->b, hit, &t), x->dtype), 2 + w.n, kernel);
	Attr *a = window_attrs(n->b->m, &w, attr_int(n->b->m, NULL, "group", eye[0]));
	a = attr_ints(n->b->m, a, "shape", 2 + w.n, shape);
	Value *dy = ir_reshape(n->b, n->in[0], 2 + w.n, columns);
	n->out[0] = ir_emit(n->b, OP_CONV_GRAD_X, 2, (Value *[]){dy, f}, a);
	return true;
}

/* MaxUnpool puts elements back where MaxPool took them.  Its indices count through the tensor that the windows
 * imply. */
bool import_max_unpool(Node *n)
{
	Window w;
	const int64_t *want = NULL;
	int count = -1;
	int64_t shape[IR_MAX_RANK], before[IR_MAX_RANK] = {0}, after[IR_MAX_RANK] = {0};
	if (!node_want(n, 2, 3) || (node_in(n, 2) && !node_known_ints(n, 2, "output_shape", &want, &count))
			|| !window_read(n, &n->in[0]->type, NULL, &w))
		return false;
	const Type *x = &n->in[0]->type;
	if (count >= 0 && count != x->rank)
		return node_error(n, "output_shape has %d numbers, %d wanted", count, x->rank);
	for (int i = 0; i < count; i++)
		if (want[i] < 0 || want[i] > INT32_MAX)
			return node_error(n, "output_shape has %" PRId64 ", 0 to %d are possible", want[i], INT32_MAX);
	for (int i = 0; i < x->rank; i++) {
		int s = i - 2;
		shape[i] = s < 0 ? x->dim[i]
			: (x->dim[i] - 1) * w.strides[s] - w.pads[s] - w.pads[w.n + s] + w.kernel[s];
		after[i] = count == x->rank ? want[i] - shape[i] : 0;
		if (shape[i] < 0 || shape[i] > INT32_MAX || after[i] < 0)
			return node_error(n, "dimension %d of its result would be %" PRId64 "%s", i, shape[i],
				after[i] < 0 ? ", above that of output_shape" : "");
	}
	int64_t numel = onnx_dims_numel(x->rank, shape), given = type_numel(x);
	if (numel < 0)
		return node_error(n, "its result overflows");
	Value *ids = ir_reshape(n->b, n->in[1], 1, &given), *flat = ir_reshape(n->b, n->in[0], 1, &given);
	Value *zeros = ir_const_full(n->b, type_tensor(x->dtype, 1, &numel), 0);
	Attr *a = attr_str(n->b->m, attr_int(n->b->m, NULL, "axis", 0), "reduce", "none");
	Value *y = ir_emit(n->b, OP_SCATTER_ELEMENTS, 3, (Value *[]){zeros, ids, flat}, a);
	y = y->op ? ir_reshape(n->b, y, x->rank, shape) : y;
	a = attr_ints(n->b->m, attr_ints(n->b->m, NULL, "before", x->rank, before), "after", x->rank, after);
	a = attr_float(n->b->m, attr_str(n->b->m, a, "mode", "constant"), "value", 0);
	n->out[0] = count == x->rank ? ir_emit(n->b, OP_PAD, 1, &y, a) : y;
	return true;
}
