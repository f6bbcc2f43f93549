/* ir/shape_spatial.c: shape rules of grid_sample, roi_pool and det, and of their gradients. */
#include "ir/shape.h"

#include <string.h>

enum { DET_MAX = 32 };

/* Checks that the attribute has one of the texts. */
static bool want_text(Buf *err, const Op *op, const char *name, int n, const char *const *texts)
{
	const char *given = attr_get_str(op->attrs, name, "");
	for (int i = 0; i < n; i++)
		if (!strcmp(given, texts[i]))
			return true;
	return shape_wrong(err, "%s has %s \"%s\", expected %s, %s or %s", op_info[op->kind].text, name, given, texts[0],
		texts[1], texts[2]);
}

/* ---- points of a grid ---- */

/* The type of samples of x at the points of grid. */
static bool sampled(Module *m, const Op *op, const Type *x, const Type *grid, Type *out, Buf *err)
{
	static const char *const modes[] = {"nearest", "linear", "cubic"}, *const coords[] = {"pixels", "centres", "edges"},
		*const pads[] = {"zeros", "border", "reflection"};
	if (!want_text(err, op, "mode", 3, modes) || !want_text(err, op, "padding", 3, pads)
			|| !want_text(err, op, "coords", 3, coords))
		return false;
	if (!dtype_is_float(x->dtype) || grid->dtype != x->dtype || x->rank < 3 || x->rank > 5 || grid->rank != x->rank
			|| grid->dim[0] != x->dim[0] || grid->dim[grid->rank - 1] != x->rank - 2)
		return shape_wrong(err, "%s of %s at the points %s: expected floats [N,C,in..] of one to three spatial dims "
			"and points [N,out..,one coordinate for each]", op_info[op->kind].text, type_str(m->arena, x),
			type_str(m->arena, grid));
	*out = *x;
	memcpy(out->dim + 2, grid->dim + 1, sizeof(*out->dim) * (size_t)(x->rank - 2));
	return true;
}

RULE(grid_sample)
{
	return sampled(m, op, shape_in(op, 0), shape_in(op, 1), out, err);
}

RULE(grid_sample_grad_x)
{
	Type dy;
	return shape_from_attr(err, op, shape_in(op, 0)->dtype, out)
		&& sampled(m, op, out, shape_in(op, 1), &dy, err) && shape_want(m, err, op, 0, &dy);
}

RULE(grid_sample_grad_grid)
{
	Type dy;
	*out = *shape_in(op, 2);
	return sampled(m, op, shape_in(op, 1), out, &dy, err) && shape_want(m, err, op, 0, &dy);
}

/* ---- boxes ---- */

/* The type of the bins of boxes; `first` is the operand x. */
static bool pooled(Module *m, const Op *op, int first, Type *out, Buf *err)
{
	static const char *const modes[] = {"avg", "max", "pool"};
	const Type *x = shape_in(op, first), *rois = shape_in(op, first + 1);
	const Attr *size = shape_ints(err, op, "size", 2);
	int64_t ratio = attr_get_int(op->attrs, "ratio", 0);
	if (!size || !want_text(err, op, "mode", 3, modes) || !shape_want_float(err, op, first)
			|| !shape_want_rank(err, op, first, 4))
		return false;
	if (size->ints[0] < 1 || size->ints[1] < 1 || ratio < 0 || ratio > INT32_MAX)
		return shape_wrong(err, "%s to [%lld,%lld] bins of %lld points, expected at least 1, and 0 or more points",
			op_info[op->kind].text, (long long)size->ints[0], (long long)size->ints[1], (long long)ratio);
	if (rois->dtype != x->dtype || rois->rank != 2 || rois->dim[1] != 4)
		return shape_wrong(err, "%s of %s in boxes %s, expected [boxes,4] of the same dtype", op_info[op->kind].text,
			type_str(m->arena, x), type_str(m->arena, rois));
	Type ids = type_tensor(DT_I64, 1, rois->dim);
	*out = type_tensor(x->dtype, 4, (int64_t[]){rois->dim[0], x->dim[1], size->ints[0], size->ints[1]});
	return shape_want(m, err, op, first + 2, &ids);
}

RULE(roi_pool)
{
	return pooled(m, op, 0, out, err);
}

RULE(roi_pool_grad)
{
	Type dy;
	*out = *shape_in(op, 1);
	return pooled(m, op, 1, &dy, err) && shape_want(m, err, op, 0, &dy);
}

/* ---- determinants ---- */

static bool determinants(Module *m, const Op *op, const Type *x, Type *out, Buf *err)
{
	int rank = x->rank;
	if (!dtype_is_float(x->dtype) || rank < 2 || x->dim[rank - 1] != x->dim[rank - 2] || x->dim[rank - 1] > DET_MAX)
		return shape_wrong(err, "%s of %s, expected floats [..,n,n] with n of at most %d", op_info[op->kind].text,
			type_str(m->arena, x), DET_MAX);
	*out = type_tensor(x->dtype, rank - 2, x->dim);
	return true;
}

RULE(det)
{
	return determinants(m, op, shape_in(op, 0), out, err);
}

RULE(det_grad)
{
	Type dy;
	*out = *shape_in(op, 1);
	return determinants(m, op, out, &dy, err) && shape_want(m, err, op, 0, &dy);
}
