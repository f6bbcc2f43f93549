/* codegen/lower_spatial.c: lowers sampling at points and in boxes, and determinants, to kernel calls. */
#include "codegen/lower.h"

#include <inttypes.h>
#include <string.h>

#define I64 "%" PRId64

/* The constant of kernels.h that stands for an attribute's text. */
static const char *constant(const Op *op, const char *attr, int n, const char *const (*pairs)[2])
{
	const char *text = attr_get_str(op->attrs, attr, "");
	for (int i = 0; i < n; i++)
		if (!strcmp(pairs[i][0], text))
			return pairs[i][1];
	ice("%s has %s \"%s\"", op_info[op->kind].text, attr, text);
}

static void sample_call(Emit *e, const Op *op, const Type *x, const Type *grid, const char *tensors, const char *work)
{
	static const char *const modes[][2] = {{"nearest", "K_NEAREST"}, {"linear", "K_LINEAR"}, {"cubic", "K_CUBIC"}};
	static const char *const pads[][2] = {{"zeros", "K_OUTSIDE_ZEROS"}, {"border", "K_OUTSIDE_BORDER"},
		{"reflection", "K_OUTSIDE_REFLECTION"}};
	static const char *const coords[][2] = {{"pixels", "K_COORDS_PIXELS"}, {"centres", "K_COORDS_CENTRES"},
		{"edges", "K_COORDS_EDGES"}};
	const char *text = arena_printf(e->a, "{.rank = %d, .n = " I64 ", .c = " I64 ", .points = " I64 ", .in = %s, "
		".mode = %s, .outside = %s, .coords = %s}", x->rank - 2, x->dim[0], x->dim[1],
		emit_product(grid, 1, grid->rank - 1), emit_int_list(e, x->rank - 2, x->dim + 2),
		constant(op, "mode", 3, modes), constant(op, "padding", 3, pads), constant(op, "coords", 3, coords));
	emit_kernel(e, op, tensors, "&%s%s", emit_shared(e, "KSample", "sample", text), work);
}

void lower_grid_sample(Emit *e, const Op *op)
{
	sample_call(e, op, &op_in(op, 0)->type, &op_in(op, 1)->type, "o0 i0 i1", "");
}

void lower_grid_sample_grad_x(Emit *e, const Op *op)
{
	sample_call(e, op, &op->out[0]->type, &op_in(op, 1)->type, "o0 i0 i1", ", WORK");
}

void lower_grid_sample_grad_grid(Emit *e, const Op *op)
{
	sample_call(e, op, &op_in(op, 1)->type, &op_in(op, 2)->type, "o0 i0 i1 i2", "");
}

static void roi_call(Emit *e, const Op *op, const Type *x, const Type *rois, const char *tensors, const char *work)
{
	static const char *const modes[][2] = {{"avg", "K_ROI_AVG"}, {"max", "K_ROI_MAX"}, {"pool", "K_ROI_PIXELS"}};
	const Attr *size = emit_list(op, "size");
	const char *text = arena_printf(e->a, "{.n = " I64 ", .c = " I64 ", .h = " I64 ", .w = " I64 ", .rois = " I64
		", .ph = " I64 ", .pw = " I64 ", .ratio = " I64 ", .scale = %s, .half_pixel = %s, .mode = %s}", x->dim[0],
		x->dim[1], x->dim[2], x->dim[3], rois->dim[0], size->ints[0], size->ints[1],
		attr_get_int(op->attrs, "ratio", 0), emit_c_float(e, attr_get_float(op->attrs, "scale", 1)),
		attr_get_int(op->attrs, "half_pixel", 0) ? "true" : "false", constant(op, "mode", 3, modes));
	emit_kernel(e, op, tensors, "&%s%s", emit_shared(e, "KRoi", "roi", text), work);
}

void lower_roi_pool(Emit *e, const Op *op)
{
	roi_call(e, op, &op_in(op, 0)->type, &op_in(op, 1)->type, "o0 i0 i1 i2", "");
}

void lower_roi_pool_grad(Emit *e, const Op *op)
{
	roi_call(e, op, &op_in(op, 1)->type, &op_in(op, 2)->type, "o0 i0 i1 i2 i3", ", WORK");
}

static void det_call(Emit *e, const Op *op, const Type *x, const char *tensors)
{
	emit_kernel(e, op, tensors, I64 ", " I64 ", WORK", emit_product(x, 0, x->rank - 2), x->dim[x->rank - 1]);
}

void lower_det(Emit *e, const Op *op)
{
	det_call(e, op, &op_in(op, 0)->type, "o0 i0");
}

void lower_det_grad(Emit *e, const Op *op)
{
	det_call(e, op, &op->out[0]->type, "o0 i0 i1");
}
