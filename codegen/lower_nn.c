/* codegen/lower_nn.c: lowers linear algebra, convolution, pooling, norms, attention and losses to kernel calls.
 *
 * Primitives are created in setup(), one for each distinct descriptor; other descriptors are static tables.
 * Descriptors name only the fields that are not 0.
 * Refuses more than three spatial dims, for which there are no kernels. */
#include "codegen/lower.h"
#include "ir/epilogue.h"

#include <inttypes.h>
#include <string.h>

#define I64 "%" PRId64

/* ", .ta = true" */
static const char *flag(Emit *e, const char *field, bool v)
{
	return v ? arena_printf(e->a, ", .%s = true", field) : "";
}

static const char *number(Emit *e, const char *field, int64_t v)
{
	return v ? arena_printf(e->a, ", .%s = " I64, field, v) : "";
}

static const char *list(Emit *e, const char *field, int n, const int64_t *v)
{
	bool any = false;
	for (int i = 0; i < n; i++)
		any = any || v[i];
	return any ? arena_printf(e->a, ", .%s = %s", field, emit_int_list(e, n, v)) : "";
}

/* ", .k_pitch = 6144" of what is columns of wider rows. */
static const char *pitch_text(Emit *e, const char *field, Value *v)
{
	return number(e, field, value_whole(v) == v ? 0 : value_pitch(v));
}

/* The dtypes of the operands and of the result. */
static const char *dtypes_text(Emit *e, DType from, DType to)
{
	_Static_assert(DT_F32 == 0, "a field that is not named is f32");
	return arena_printf(e->a, to == DT_F32 ? ".dtype = %s" : ".dtype = %s, .to = %s", kdtype_constant(from),
		kdtype_constant(to));
}

/* ---- matmul ---- */

typedef struct Batch { int n; int64_t dim[IR_MAX_RANK], sa[IR_MAX_RANK], sb[IR_MAX_RANK]; } Batch;

/* The number of elements between matrices along dim d of y's batch dims; 0 if t is broadcast along it.  t: the operand,
 * or what it is columns of. */
static int64_t batch_stride(const Type *t, int y_rank, int d)
{
	int k = d - (y_rank - t->rank);
	return k < 0 || t->dim[k] == 1 ? 0 : emit_product(t, k + 1, t->rank);
}

/* The batch dims of y without dims of 1; neighbouring dims are merged if both operands have one stride for them. */
static Batch batch_of(const Type *a, const Type *b, const Type *y)
{
	Batch out = {0};
	for (int d = 0; d < y->rank - 2; d++) {
		int64_t sa = batch_stride(a, y->rank, d), sb = batch_stride(b, y->rank, d), n = y->dim[d];
		int last = out.n - 1;
		if (n == 1)
			continue;
		if (last >= 0 && out.sa[last] == sa * n && out.sb[last] == sb * n) {
			out.dim[last] *= n;
			out.sa[last] = sa;
			out.sb[last] = sb;
			continue;
		}
		out.dim[out.n] = n;
		out.sa[out.n] = sa;
		out.sb[out.n++] = sb;
	}
	return out;
}

static bool has_bias(const Op *op)
{
	return op_in(op, 2) && (op->kind != OP_MATMUL_EPILOGUE || op_epilogue(op) == EPILOGUE_GELU);
}

/* The description of a product; NULL: it is refused.  epilogue: its field, "" for none. */
static const char *product_text(Emit *e, const Op *op, const char *epilogue)
{
	const Type *a = &op_in(op, 0)->type, *y = &op->out[0]->type;
	bool ta = attr_get_int(op->attrs, "ta", 0), tb = attr_get_int(op->attrs, "tb", 0);
	bool add = lower_sum(e, op) || op->kind == OP_ACCUMULATE;
	int64_t m = y->dim[y->rank - 2], n = y->dim[y->rank - 1], k = a->dim[a->rank - (ta ? 2 : 1)];
	Batch batch = batch_of(&value_whole(op_in(op, 0))->type, &value_whole(op_in(op, 1))->type, y);
	if (batch.n == 1 && !ta && batch.sb[0] == 0 && batch.sa[0] == m * value_pitch(op_in(op, 0))) {
		m *= batch.dim[0]; /* all batches share one weight: they are rows of one matrix */
		batch.n = 0;
	}
	const char *lists = arena_printf(e->a, "%s%s%s%s", number(e, "n_batch", batch.n),
		list(e, "batch", batch.n, batch.dim), list(e, "sa", batch.n, batch.sa), list(e, "sb", batch.n, batch.sb));
	const char *rows = arena_printf(e->a, "%s%s%s", pitch_text(e, "lda", op_in(op, 0)),
		pitch_text(e, "ldb", op_in(op, 1)), pitch_text(e, "ldy", op->out[0]));
	const char *desc = arena_printf(e->a, "{%s, .m = " I64 ", .n = " I64 ", .k = " I64
		"%s%s%s%s%s%s%s%s}", dtypes_text(e, a->dtype, y->dtype), m, n, k, flag(e, "ta", ta),
		flag(e, "tb", tb), flag(e, "bias", has_bias(op)), flag(e, "add", add), lists, rows,
		number(e, "work_bytes", e->m->work_bytes), epilogue);
	if (batch.n > (*epilogue ? 0 : 6)) {
		emit_refuse(e, op, "%s with %d batch dims is refused; there may be %d", op_info[op->kind].text, batch.n,
			*epilogue ? 0 : 6);
		return NULL;
	}
	return desc;
}

/* Also lowers an accumulate of two operands: y is a sum then, and the product is added to it. */
void lower_matmul(Emit *e, const Op *op)
{
	const char *desc = product_text(e, op, "");
	if (desc)
		emit_line(e, "k_matmul_run(%s, %s, WORK);", emit_prim(e, "k_matmul_create", "KMatmulDesc", desc),
			emit_tensors(e, op, "o0 i0 i1 i2"));
}

void lower_matmul_epilogue(Emit *e, const Op *op)
{
	Epilogue kind = op_epilogue(op);
	const char *field = arena_printf(e->a, ", .epilogue = K_%s", epilogue_info[kind].id);
	const char *desc = product_text(e, op, field);
	if (!desc)
		return;
	const char *tensors = emit_tensors(e, op, kind == EPILOGUE_GELU ? "o0 o1 i0 i1 i2" : kind == EPILOGUE_GELU_GRAD
		? "o0 i2 i0 i1" : "o0 o1 i0 i1");
	emit_line(e, "k_matmul_epilogue_run(%s, %s%s, WORK);", emit_prim(e, "k_matmul_epilogue_create", "KMatmulDesc",
		desc), tensors, kind == EPILOGUE_GELU ? "" : ", NULL");
}

/* ---- products of 8-bit floats ---- */

static const char *f8_constant(const Op *op)
{
	return kdtype_constant(attr_find(op->attrs, "to")->dtype);
}

void lower_f8_scale(Emit *e, const Op *op)
{
	emit_line(e, "k_f8_scale_bf16(%s, %s, " I64 ", WORK);", emit_tensors(e, op, "o0 i0"), f8_constant(op),
		type_numel(&op_in(op, 0)->type));
}

void lower_to_f8(Emit *e, const Op *op)
{
	const Type *x = &op_in(op, 0)->type;
	int64_t k = x->dim[x->rank - 1];
	bool rows = attr_get_int(op->attrs, "rows", 0);
	if (dtype_is_scaled(x->dtype)) {
		emit_line(e, "k_turn_f8(%s, " I64 ", " I64 ");", emit_tensors(e, op, "o0 i0"), type_numel(x) / k, k);
		return;
	}
	const char *first = rows ? emit_value(e, op->out[0]) : "NULL";
	const char *second = op->n_out > rows ? emit_value(e, op->out[rows]) : "NULL";
	emit_line(e, "k_to_f8_bf16(%s, %s, %s, %s, " I64 ", " I64 ");", first, second, emit_tensors(e, op, "i0 i1"),
		f8_constant(op), type_numel(x) / k, k);
}

void lower_matmul_f8(Emit *e, const Op *op)
{
	const Type *a = &op_in(op, 0)->type, *b = &op_in(op, 1)->type;
	int64_t n = b->dim[0], k = b->dim[1];
	bool add = lower_sum(e, op);
	const char *desc = arena_printf(e->a, "{%s, .m = " I64 ", .n = " I64 ", .k = " I64
		", .tb = true%s%s%s, .b_dtype = %s}", dtypes_text(e, a->dtype, op->out[0]->type.dtype), type_numel(a) / k, n, k,
		flag(e, "bias", op_in(op, 4)), flag(e, "add", add), number(e, "work_bytes", e->m->work_bytes),
		kdtype_constant(b->dtype));
	emit_line(e, "k_matmul_f8_run(%s, %s, WORK);", emit_prim(e, "k_matmul_f8_create", "KMatmulDesc", desc),
		emit_tensors(e, op, "o0 i0 i1 i2 i3 i4"));
}

/* ---- spatial ops ---- */

enum { MAX_SPATIAL = 3 };

/* Where the spatial dims of x begin, depending on the layout; channels are dim 1 or the last dim. */
static const int64_t *spatial(const Type *x, int layout)
{
	return x->dim + (layout ? 1 : 2);
}

static int64_t channels(const Type *x, int layout)
{
	return x->dim[layout ? x->rank - 1 : 1];
}

/* A field of the window: n numbers of the attribute, or n times `otherwise` if it is absent. */
static const char *window_list(Emit *e, const Op *op, const char *field, const char *name, int from, int n,
	int64_t otherwise)
{
	const Attr *a = attr_find(op->attrs, name);
	int64_t v[MAX_SPATIAL];
	for (int i = 0; i < n; i++)
		v[i] = a && a->n >= from + n ? a->ints[from + i] : otherwise;
	return list(e, field, n, v);
}

static const char *image_text(Emit *e, const Type *x, int layout)
{
	return arena_printf(e->a, ".rank = %d, .n = " I64 ", .c = " I64, x->rank - 2, x->dim[0], channels(x, layout));
}

static const char *window_text(Emit *e, const Op *op, const Type *x, const Type *y, const char *kernel, int layout)
{
	int n = x->rank - 2;
	return arena_printf(e->a, "%s%s%s%s%s%s%s", list(e, "in", n, spatial(x, layout)),
		list(e, "out", n, spatial(y, layout)), kernel, window_list(e, op, "stride", "strides", 0, n, 1),
		window_list(e, op, "dilation", "dilations", 0, n, 1), window_list(e, op, "pad", "pads", 0, n, 0),
		window_list(e, op, "pad_end", "pads", n, n, 0));
}

static bool refuse_rank(Emit *e, const Op *op, const Type *x)
{
	bool refused = x->rank < 3 || x->rank > 2 + MAX_SPATIAL;
	if (refused)
		emit_refuse(e, op, "%s with %d spatial dims is refused; there may be 1 to %d", op_info[op->kind].text,
			x->rank - 2, MAX_SPATIAL);
	return refused;
}

/* The types of x, w and y as the descriptor names them, whichever of the three the op computes. */
typedef struct ConvTypes { const Type *x, *w, *y; } ConvTypes;

static void conv_call(Emit *e, const Op *op, ConvTypes t, const char *tensors)
{
	int layout = (int)attr_get_int(op->attrs, "layout", 0);
	const char *text = op_info[op->kind].text;
	if (refuse_rank(e, op, t.x))
		return;
	if (!dtype_is_float(t.x->dtype)) {
		emit_refuse(e, op, "%s of %s: its kernel computes floats only", text,
			dtype_info[t.x->dtype].text);
		return;
	}
	const char *packed = !t.w->layout ? "" : arena_printf(e->a, ", .w_layout = \"%s\"",
		str_escape(e->a, ESCAPE_C_STRING, t.w->layout));
	const char *kernel = list(e, "kernel", t.w->rank - 2, t.w->dim + 2);
	const char *desc = arena_printf(e->a, "{%s, %s, .o = " I64 ", .group = " I64 "%s%s%s%s%s}",
		dtypes_text(e, t.x->dtype, op->out[0]->type.dtype), image_text(e, t.x, layout), t.w->dim[0],
		attr_get_int(op->attrs, "group", 1), window_text(e, op, t.x, t.y, kernel, layout), number(e, "layout", layout),
		flag(e, "bias", op_in(op, 2)), packed, number(e, "work_bytes", e->m->work_bytes));
	const char *create = arena_printf(e->a, "k_%s_create", text);
	emit_line(e, "k_%s_run(%s, %s, WORK);", text, emit_prim(e, create, "KConvDesc", desc),
		emit_tensors(e, op, tensors));
}

void lower_conv(Emit *e, const Op *op)
{
	conv_call(e, op, (ConvTypes){&op_in(op, 0)->type, &op_in(op, 1)->type, &op->out[0]->type}, "o0 i0 i1 i2");
}

void lower_conv_grad_x(Emit *e, const Op *op)
{
	conv_call(e, op, (ConvTypes){&op->out[0]->type, &op_in(op, 1)->type, &op_in(op, 0)->type}, "o0 i0 i1 i2");
}

void lower_conv_grad_w(Emit *e, const Op *op)
{
	conv_call(e, op, (ConvTypes){&op_in(op, 0)->type, &op->out[0]->type, &op_in(op, 1)->type}, "o0 i0 i1");
}

void lower_pack(Emit *e, const Op *op)
{
	const Type *w = &op_in(op, 0)->type;
	const char *layout = attr_get_str(op->attrs, "layout", "");
	bool depthwise = *layout == 'G';
	int64_t o = depthwise ? 1 : w->dim[0], group = depthwise ? w->dim[0] : 1;
	emit_kernel(e, op, "o0 i0", "\"%s\", " I64 ", " I64 ", " I64 ", " I64,
		str_escape(e->a, ESCAPE_C_STRING, layout), o, w->dim[1], emit_product(w, 2, w->rank), group);
}

static void pool_call(Emit *e, const Op *op, const Type *x, const Type *y, const char *tensors)
{
	int layout = (int)attr_get_int(op->attrs, "layout", 0), n = x->rank - 2;
	if (refuse_rank(e, op, x))
		return;
	const char *text = arena_printf(e->a, "{%s%s%s%s%s}", image_text(e, x, layout),
		window_text(e, op, x, y, window_list(e, op, "kernel", "kernel", 0, n, 1), layout),
		window_list(e, op, "extra", "extra", 0, n, 0), number(e, "layout", layout),
		flag(e, "count_pad", attr_get_int(op->attrs, "count_pad", 0)));
	emit_kernel(e, op, tensors, "&%s", emit_shared(e, "KPool", "pool", text));
}

void lower_max_pool(Emit *e, const Op *op)
{
	pool_call(e, op, &op_in(op, 0)->type, &op->out[0]->type, "o0 n1 i0");
}

void lower_max_pool_grad(Emit *e, const Op *op)
{
	pool_call(e, op, &op->out[0]->type, &op_in(op, 0)->type, "o0 i0 i1");
}

void lower_avg_pool(Emit *e, const Op *op)
{
	pool_call(e, op, &op_in(op, 0)->type, &op->out[0]->type, "o0 i0");
}

void lower_avg_pool_grad(Emit *e, const Op *op)
{
	pool_call(e, op, &op->out[0]->type, &op_in(op, 0)->type, "o0 i0");
}

/* ---- norms ---- */

/* (n, c, s) of x; channels-last x has s in the middle. */
static const char *bn_sizes(Emit *e, const Op *op, const Type *x)
{
	int layout = (int)attr_get_int(op->attrs, "layout", 0);
	int64_t c = channels(x, layout), s = x->dim[0] && c ? type_numel(x) / (x->dim[0] * c) : 0;
	return arena_printf(e->a, I64 ", " I64 ", " I64 ", %d", x->dim[0], c, s, layout);
}

void lower_bn_stats(Emit *e, const Op *op)
{
	emit_kernel(e, op, "o0 o1 i0", "%s, WORK", bn_sizes(e, op, &op_in(op, 0)->type));
}

void lower_bn_grad_stats(Emit *e, const Op *op)
{
	emit_kernel(e, op, "o0 o1 i0 i1 i2 i3", "%s, %s, WORK", bn_sizes(e, op, &op_in(op, 1)->type),
		emit_c_float(e, attr_get_float(op->attrs, "eps", 1e-5)));
}

static const char *rows_cols(Emit *e, const Op *op, const Type *x)
{
	int axis = emit_axis(op, "axis", x->rank);
	return arena_printf(e->a, I64 ", " I64, emit_product(x, 0, axis), emit_product(x, axis, x->rank));
}

static const char *eps(Emit *e, const Op *op)
{
	return emit_c_float(e, attr_get_float(op->attrs, "eps", 1e-5));
}

/* Refuses operands of different dtypes: kernels have one type for x and the tensors that scale it. */
static bool refuse_mixed(Emit *e, const Op *op, int x, int from, int to)
{
	DType t = op_in(op, x)->type.dtype;
	for (int i = from; i <= to; i++)
		if (op_in(op, i) && op_in(op, i)->type.dtype != t) {
			emit_refuse(e, op, "%s of %s with operand %d of %s: its kernel wants one type, put a cast before it",
				op_info[op->kind].text, dtype_info[t].text, i, dtype_info[op_in(op, i)->type.dtype].text);
			return true;
		}
	return false;
}

void lower_layer_norm(Emit *e, const Op *op)
{
	if (refuse_mixed(e, op, 0, 1, 2))
		return;
	emit_kernel(e, op, "o0 n1 n2 o3 i0 i1 i2 i3", "%s, %s", rows_cols(e, op, &op_in(op, 0)->type), eps(e, op));
}

void lower_layer_norm_grad(Emit *e, const Op *op)
{
	if (refuse_mixed(e, op, 1, 2, 2))
		return;
	emit_kernel(e, op, "n0 n1 n2 i0 i1 i2 i3 i4 i5", "%s, WORK", rows_cols(e, op, &op_in(op, 1)->type));
}

void lower_rms_norm(Emit *e, const Op *op)
{
	if (refuse_mixed(e, op, 0, 1, 1))
		return;
	emit_kernel(e, op, "o0 n1 o2 i0 i1 i2", "%s, %s", rows_cols(e, op, &op_in(op, 0)->type), eps(e, op));
}

void lower_rms_norm_grad(Emit *e, const Op *op)
{
	if (refuse_mixed(e, op, 1, 2, 2))
		return;
	emit_kernel(e, op, "n0 n1 i0 i1 i2 i3 i4", "%s, WORK", rows_cols(e, op, &op_in(op, 1)->type));
}

/* ---- attention ---- */

static const char *mask_text(Emit *e, const Type *mask)
{
	int64_t stride[4] = {0}, full[IR_MAX_RANK];
	if (!mask)
		return "";
	type_strides(mask, full);
	for (int d = 0; d < mask->rank; d++)
		if (mask->dim[d] != 1)
			stride[d + 4 - mask->rank] = full[d];
	const char *kind = mask->dtype == DT_BOOL ? "K_MASK_BOOL" : mask->dtype == DT_F32 ? "K_MASK_FLOAT" : "K_MASK_HALF";
	return arena_printf(e->a, ", .mask = %s%s", kind, list(e, "mask_stride", 4, stride));
}

static const char *float_attr(Emit *e, const Op *op, const char *name, double otherwise)
{
	return emit_c_literal(e, DT_F32, attr_get_float(op->attrs, name, otherwise), 0);
}

/* ", .has_left = true, .left = 3", from attribute `name`. */
static const char *limit(Emit *e, const Op *op, const char *name)
{
	const Attr *a = attr_find(op->attrs, name);
	return a ? arena_printf(e->a, ", .has_%s = true%s", name, number(e, name, a->i)) : "";
}

static const char *documents_text(Emit *e, const Value *ids, int64_t samples)
{
	if (!ids)
		return "";
	return arena_printf(e->a, "%s%s", flag(e, "ids32", ids->type.dtype == DT_I32),
		number(e, "id_stride", ids->type.dim[0] == samples ? ids->type.dim[1] : 0));
}

static const char *chance_text(Emit *e, const Op *op)
{
	if (!op_draws(op))
		return "";
	return arena_printf(e->a, ", .p = %s, .pre = " I64 "%s", emit_c_float(e, attr_get_float(op->attrs, "p", 0)),
		attr_get_int(op->attrs, "pre", 1), number(e, "rows", attr_get_int(op->attrs, "rows", 0)));
}

static const char *pitches_text(Emit *e, const Op *op, int at)
{
	bool grad = op->kind == OP_ATTENTION_GRAD;
	return arena_printf(e->a, "%s%s%s%s%s%s", pitch_text(e, "q_pitch", op_in(op, at)),
		pitch_text(e, "k_pitch", op_in(op, at + 1)), pitch_text(e, "v_pitch", op_in(op, at + 2)),
		grad ? pitch_text(e, "dq_pitch", op->out[0]) : "", grad ? pitch_text(e, "dk_pitch", op->out[1]) : "",
		grad ? pitch_text(e, "dv_pitch", op->out[2]) : "");
}

/* "{.b = 2, ..}": an attention whose q is operand `at`, followed by k, v, the mask and the documents. */
static const char *attention_fields(Emit *e, const Op *op, int at)
{
	const Type *q = &op_in(op, at)->type, *k = &op_in(op, at + 1)->type, *v = &op_in(op, at + 2)->type;
	const Value *mask = op_in(op, at + 3);
	int layout = (int)attr_get_int(op->attrs, "layout", 0), h = layout ? 2 : 1, t = layout ? 1 : 2;
	bool empty_nan = strcmp(attr_get_str(op->attrs, "empty", "zero"), "zero") != 0;
	const char *sizes = arena_printf(e->a, ".b = " I64 ", .h = " I64 ", .hk = " I64 ", .t = " I64
		", .s = " I64 ", .d = " I64 ", .dv = " I64, q->dim[0], q->dim[h], k->dim[h], q->dim[t], k->dim[t],
		q->dim[3], v->dim[3]);
	bool capped = attr_get_float(op->attrs, "softcap", 0) != 0;
	return arena_printf(e->a, "{%s, .scale = %s%s%s%s%s%s%s%s%s%s%s}", sizes, float_attr(e, op, "scale", 1),
		capped ? ", .softcap = " : "", capped ? float_attr(e, op, "softcap", 0) : "",
		limit(e, op, "left"), limit(e, op, "right"), number(e, "layout", layout),
		mask_text(e, mask ? &mask->type : NULL), documents_text(e, op_in(op, at + 4), q->dim[0]),
		flag(e, "empty_nan", empty_nan), chance_text(e, op), pitches_text(e, op, at));
}

/* Refuses a mask that kernels do not support.  at: index of q; the mask follows k and v. */
static bool refuse_mask(Emit *e, const Op *op, int at)
{
	const Value *mask = op_in(op, at + 3);
	DType q = op_in(op, at)->type.dtype, t = mask ? mask->type.dtype : DT_BOOL;
	bool refused = t != DT_BOOL && t != DT_F32 && t != q;
	if (refused)
		emit_refuse(e, op, "%s of %s with a mask of %s: it may be bool, f32 or %s", op_info[op->kind].text,
			dtype_info[q].text, dtype_info[t].text, dtype_info[q].text);
	return refused;
}

/* What follows the operands: the descriptor, the dropout's id, the step's scalars. */
static const char *attention_text(Emit *e, const Op *op, int at)
{
	const char *id = op_draws(op) ? emit_part(e, PART_ID, attr_get_int(op->attrs, "id", 0), "id") : NULL;
	return arena_printf(e->a, "&%s, %s, WORK", emit_shared(e, "KAttention", "attention", attention_fields(e, op, at)),
		id ? arena_printf(e->a, "%s, rt->scalars", id) : "0, NULL");
}

/* An attention that cuDNN may compute is a primitive; tensors: its results and operands. */
static bool by_library(Emit *e, const Op *op, int at, const char *tensors)
{
	if (!attr_get_int(op->attrs, "library", 0) || !e->train->cuda)
		return false;
	bool stats = op->kind == OP_ATTENTION && op->out[1]->place.region != REGION_NONE;
	const char *text = op_info[op->kind].text, *create = arena_printf(e->a, "k_%s_create", text);
	const char *type = op_in(op, at)->type.dtype == DT_BF16 ? "K_BF16" : "K_F16";
	const char *desc = arena_printf(e->a, "{.dtype = %s, .a = %s%s%s}", type, attention_fields(e, op, at),
		flag(e, "stats", stats), number(e, "work_bytes", e->m->work_bytes));
	emit_line(e, "k_%s_run(%s, %s, WORK);", text, emit_prim(e, create, "KAttentionDesc", desc),
		emit_tensors(e, op, tensors));
	return true;
}

void lower_attention(Emit *e, const Op *op)
{
	if (refuse_mask(e, op, 0) || by_library(e, op, 0, "o0 o1 i0 i1 i2 i3"))
		return;
	emit_kernel(e, op, "o0 o1 i0 i1 i2 i3 i4", "%s", attention_text(e, op, 0));
}

void lower_attention_grad(Emit *e, const Op *op)
{
	if (refuse_mask(e, op, 1) || by_library(e, op, 1, "o0 o1 o2 i0 i1 i2 i3 i4 i6 i7"))
		return;
	emit_kernel(e, op, "o0 o1 o2 i0 i1 i2 i3 i4 i5 i6 i7", "%s", attention_text(e, op, 1));
}

/* "&rope": sizes of a rope, h heads of d columns each. */
static const char *rope_desc(Emit *e, const Op *op, int64_t h, int64_t d)
{
	const Type *x = &op_in(op, 0)->type, *c = &op_in(op, 1)->type;
	int layout = (int)attr_get_int(op->attrs, "layout", 0);
	const char *text = arena_printf(e->a, "{.b = " I64 ", .h = " I64 ", .t = " I64 ", .d = " I64 ", .r = " I64
		"%s%s%s%s%s}", x->dim[0], h, x->dim[layout ? 1 : 2], d, 2 * c->dim[c->rank - 1], number(e, "layout", layout),
		flag(e, "interleaved", attr_get_int(op->attrs, "interleaved", 0)),
		flag(e, "inverse", attr_get_int(op->attrs, "inverse", 0)), flag(e, "cos_batched", c->rank == 3),
		number(e, "pitch", x->rank == 3 ? x->dim[2] : 0));
	return emit_shared(e, "KRope", "rope", text);
}

void lower_rope(Emit *e, const Op *op)
{
	const Type *x = &op_in(op, 0)->type;
	if (!attr_find(op->attrs, "heads")) {
		int64_t h = x->dim[attr_get_int(op->attrs, "layout", 0) ? 2 : 1];
		emit_kernel(e, op, "o0 i0 i1 i2", "&%s", rope_desc(e, op, h, x->dim[3]));
		return;
	}
	int64_t heads = attr_get_int(op->attrs, "heads", 0), size = attr_get_int(op->attrs, "size", 0);
	Place at = op->out[0]->place;
	lower_in_place(e, op, 0, op_in(op, 0));
	at.offset += attr_get_int(op->attrs, "start", 0) * dtype_info[x->dtype].bytes;
	const char *columns = emit_place(e, &at, op->out[0]->name);
	emit_kernel(e, op, "", "%s, %s, %s, &%s", columns, columns, emit_tensors(e, op, "i1 i2"),
		rope_desc(e, op, heads, size / heads));
}

/* ---- losses, randomness ---- */

static const char *loss_text(Emit *e, const Op *op, Value *logits)
{
	const Type *t = &logits->type;
	int64_t c = t->dim[t->rank - 1];
	return arena_printf(e->a, I64 ", " I64 ", " I64 ", %s, %s", c ? type_numel(t) / c : 0, c, value_pitch(logits),
		emit_int(e, attr_get_int(op->attrs, "ignore_index", -100)),
		emit_c_float(e, attr_get_float(op->attrs, "smoothing", 0)));
}

void lower_cross_entropy(Emit *e, const Op *op)
{
	emit_kernel(e, op, "o0 o1 o2 i0 i1 i2", "%s, WORK", loss_text(e, op, op_in(op, 0)));
}

void lower_cross_entropy_grad(Emit *e, const Op *op)
{
	Value *logits = op_in(op, 1);
	emit_kernel_of(e, op, logits->type.dtype, "o0 i0 i1 i2 i3 i4", "%s", loss_text(e, op, logits));
}

/* A loss head whose h is operand `at`, followed by w, labels, class weights and bias. */
static void head_call(Emit *e, const Op *op, int at, bool add, const char *tensors)
{
	const Type *h = &op_in(op, at)->type, *w = &op_in(op, at + 1)->type;
	bool tb = attr_get_int(op->attrs, "tb", 0);
	const Attr *to = attr_find(op->attrs, "to");
	if (h->dtype != DT_F32 && !dtype_is_half(h->dtype)) {
		emit_refuse(e, op, "%s of %s: its kernel computes f32, bf16 and f16 only", op_info[op->kind].text,
			dtype_info[h->dtype].text);
		return;
	}
	const char *sizes = arena_printf(e->a, ".rows = " I64 ", .block = " I64 ", .c = " I64 ", .d = " I64,
		type_numel(&op_in(op, at + 2)->type), attr_get_int(op->attrs, "block", 0), w->dim[tb ? 0 : 1],
		w->dim[tb ? 1 : 0]);
	const char *flags = arena_printf(e->a, "%s%s%s%s%s%s", flag(e, "tb", tb), flag(e, "bias", op_in(op, at + 4)),
		flag(e, "dh", attr_get_int(op->attrs, "dh", 0)), flag(e, "dw", attr_get_int(op->attrs, "dw", 0)),
		flag(e, "db", attr_get_int(op->attrs, "db", 0)), flag(e, "add", add));
	const char *desc = arena_printf(e->a, "{%s, %s%s, .ignore_index = %s, .smoothing = %s%s}",
		dtypes_text(e, h->dtype, to ? to->dtype : h->dtype), sizes, flags,
		emit_int(e, attr_get_int(op->attrs, "ignore_index", -100)),
		emit_c_float(e, attr_get_float(op->attrs, "smoothing", 0)), number(e, "work_bytes", e->m->work_bytes));
	emit_line(e, "k_linear_cross_entropy_run(%s, %s, WORK);", emit_prim(e, "k_linear_cross_entropy_create",
		"KLossHeadDesc", desc), tensors);
}

void lower_linear_cross_entropy(Emit *e, const Op *op)
{
	head_call(e, op, 0, false, arena_printf(e->a, "%s, NULL, NULL, NULL, NULL, %s", emit_tensors(e, op, "o0 o1 n2"),
		emit_tensors(e, op, "i0 i1 i2 i3 i4")));
}

void lower_linear_cross_entropy_grad(Emit *e, const Op *op)
{
	static const char *const given[] = {"dh", "dw", "db"};
	const char *results = emit_tensors(e, op, "o0 o1");
	bool add = lower_sum(e, op);
	for (int i = 0, n = 2; i < COUNT_OF(given); i++) {
		bool has = attr_get_int(op->attrs, given[i], 0);
		const char *next = has ? emit_tensors(e, op, arena_printf(e->a, "o%d", n++)) : "NULL";
		results = arena_printf(e->a, "%s, %s%s", results, i ? "" : "NULL, ", next);
	}
	head_call(e, op, 1, add, arena_printf(e->a, "%s, %s", results, emit_tensors(e, op, "i0 i1 i2 i3 i4 i5")));
}

static const char *dropout_text(Emit *e, const Op *op)
{
	const Type *t = &op_in(op, 0)->type;
	int64_t axis = attr_get_int(op->attrs, "axis", 0);
	Cut c = axis < 0 ? (Cut){.outer = 1, .inner = type_numel(t)} : emit_cut(t, axis);
	return arena_printf(e->a, I64 ", " I64 ", " I64 ", %s, %s, rt->scalars", c.outer, c.n,
		c.inner, emit_c_float(e, attr_get_float(op->attrs, "p", 0.5)),
		emit_part(e, PART_ID, attr_get_int(op->attrs, "id", 0), "id"));
}

void lower_dropout(Emit *e, const Op *op)
{
	emit_kernel(e, op, "o0 i0", "%s", dropout_text(e, op));
}

void lower_dropout_mask(Emit *e, const Op *op)
{
	emit_kernel(e, op, "o0", "%s", dropout_text(e, op));
}
