/* ir/shape_f8.c: types of products of 8-bit floats and of what makes their operands. */
#include "ir/shape.h"

/* Rows of operands and results begin at multiples of 16 bytes, as tensor cores want them. */
enum { MULTIPLE = 16 };

static bool want_f8(Buf *err, const Op *op, DType *to)
{
	*to = attr_find(op->attrs, "to")->dtype;
	return dtype_is_scaled(*to) || shape_wrong(err, "%s to %s: expected e4m3 or e5m2", op_info[op->kind].text,
		dtype_info[*to].text);
}

RULE(f8_scale)
{
	DType to;
	out[0] = type_tensor(DT_F32, 0, NULL);
	return want_f8(err, op, &to) && shape_want_dtype(err, op, 0, DT_BF16);
}

RULE(to_f8)
{
	const Type *x = shape_in(op, 0);
	Type scalar = type_tensor(DT_F32, 0, NULL);
	int n = 0;
	DType to;
	bool as_rows = attr_get_int(op->attrs, "rows", 0);
	if (!want_f8(err, op, &to) || !shape_want(m, err, op, 1, &scalar))
		return false;
	if (x->dtype != DT_BF16 && (x->dtype != to || as_rows))
		return shape_wrong(err, "to_f8 makes e4m3 or e5m2 of bf16, or columns of what is that; operand 1 is %s",
			type_str(m->arena, x));
	if (x->rank < 2 || !type_numel(x))
		return shape_wrong(err, "operand 1 of to_f8 needs elements in at least 2 dimensions, it is %s",
			type_str(m->arena, x));
	int64_t cols = x->dim[x->rank - 1], rows = type_numel(x) / cols;
	if (as_rows) {
		out[n] = *x;
		out[n++].dtype = to;
	}
	if (attr_get_int(op->attrs, "columns", 0))
		out[n++] = type_tensor(to, 2, (int64_t[]){cols, rows});
	return n || shape_wrong(err, "to_f8 with rows=0 and columns=0 gives nothing");
}

/* Whether a and b can be multiplied. */
static bool want_operands(Module *m, Buf *err, const Type *a, const Type *b)
{
	if (!dtype_is_scaled(a->dtype) || !dtype_is_scaled(b->dtype) || (a->dtype == DT_E5M2 && b->dtype == DT_E5M2))
		return shape_wrong(err, "operands of matmul_f8 must be e4m3, or one of them e5m2; they are %s and %s",
			dtype_info[a->dtype].text, dtype_info[b->dtype].text);
	if (a->rank < 2 || b->rank != 2 || a->dim[a->rank - 1] != b->dim[1])
		return shape_wrong(err, "operands of matmul_f8 must be [..,K] and [N,K], they are %s and %s",
			type_str(m->arena, a), type_str(m->arena, b));
	bool whole = type_numel(b) && b->dim[0] % MULTIPLE == 0 && b->dim[1] % MULTIPLE == 0;
	return whole || shape_wrong(err, "matmul_f8 of %s and %s: the dims of the second must be multiples of %d, and not "
		"0", type_str(m->arena, a), type_str(m->arena, b), MULTIPLE);
}

RULE(matmul_f8)
{
	const Type *a = shape_in(op, 0), *b = shape_in(op, 1);
	DType to = attr_find(op->attrs, "to")->dtype;
	Type scalar = type_tensor(DT_F32, 0, NULL);
	if (!want_operands(m, err, a, b))
		return false;
	if (to != DT_BF16 && to != DT_F32)
		return shape_wrong(err, "matmul_f8 to %s: expected bf16 or f32", dtype_info[to].text);
	out[0] = *a;
	out[0].dtype = to;
	out[0].dim[a->rank - 1] = b->dim[0];
	Type bias = type_tensor(DT_BF16, 1, b->dim);
	if (op_in(op, 5) && (op_in(op, 4) || to != DT_F32))
		return shape_wrong(err, "a product may be added to a sum without a bias and in f32; here it is %s%s",
			op_in(op, 4) ? "with a bias " : "", type_str(m->arena, out));
	return shape_want(m, err, op, 2, &scalar) && shape_want(m, err, op, 3, &scalar) && shape_want(m, err, op, 4, &bias)
		&& shape_want(m, err, op, 5, out);
}
