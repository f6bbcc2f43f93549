/* ir/shape_product.c: shape rules of matmul, and of matmul with an epilogue. */
#include "ir/epilogue.h"
#include "ir/shape.h"

/* What a product is added to: of the product's type. */
static bool want_sum(Module *m, const Op *op, const Type *out, Buf *err)
{
	if (!op_in(op, 3))
		return true;
	if (m->level < LEVEL_TRAIN || op_in(op, 2) || out->dtype != DT_F32)
		return shape_wrong(err, "a product may be added to a sum from level TRAIN on, without a bias and in f32; here "
			"the level is %s, the product %s%s", level_text[m->level], op_in(op, 2) ? "with a bias " : "",
			type_str(m->arena, out));
	return shape_want(m, err, op, 3, out);
}

/* The type of the product of operands 0 and 1. */
static bool product_type(Module *m, const Op *op, Type *out, Buf *err)
{
	Type a = *shape_in(op, 0), b = *shape_in(op, 1);
	int64_t ta = attr_get_int(op->attrs, "ta", 0), tb = attr_get_int(op->attrs, "tb", 0);
	if (a.dtype != b.dtype)
		return shape_wrong(err, "operands of %s differ in dtype: %s and %s", op_info[op->kind].text,
			dtype_info[a.dtype].text, dtype_info[b.dtype].text);
	if (a.rank < 2 || b.rank < 2)
		return shape_wrong(err, "operands of %s need at least 2 dimensions, they are %s and %s",
			op_info[op->kind].text, type_str(m->arena, &a), type_str(m->arena, &b));
	if (!shape_want_number(err, op, 0))
		return false;
	int64_t rows = a.dim[a.rank - 2 + ta], inner_a = a.dim[a.rank - 1 - ta];
	int64_t inner_b = b.dim[b.rank - 2 + tb], cols = b.dim[b.rank - 1 - tb];
	if (inner_a != inner_b)
		return shape_wrong(err, "inner dimensions differ: %lld and %lld (%s times %s)", (long long)inner_a,
			(long long)inner_b, type_str(m->arena, &a), type_str(m->arena, &b));
	a.rank -= 2;
	b.rank -= 2;
	if (!type_broadcast(&a, &b, out))
		return shape_wrong(err, "batch dimensions of %s do not broadcast: %s and %s", op_info[op->kind].text,
			type_str(m->arena, shape_in(op, 0)), type_str(m->arena, shape_in(op, 1)));
	out->dim[out->rank++] = rows;
	out->dim[out->rank++] = cols;
	return shape_to(err, op, out);
}

static Type bias_type(const Op *op, const Type *product)
{
	return type_tensor(shape_in(op, 0)->dtype, 1, &product->dim[product->rank - 1]);
}

RULE(matmul)
{
	if (!product_type(m, op, out, err))
		return false;
	Type bias = bias_type(op, out);
	return shape_want(m, err, op, 2, &bias) && want_sum(m, op, out, err);
}

/* Whether the operand whose columns are summed is a matrix whose rows are what the product sums over. */
static bool want_summed(Module *m, Buf *err, const Op *op, int summed)
{
	const char *text = attr_get_str(op->attrs, "epilogue", "");
	bool rows = attr_get_int(op->attrs, summed ? "tb" : "ta", 0) == !summed;
	if (shape_in(op, summed)->rank != 2 || !rows || op_in(op, 2))
		return shape_wrong(err, "matmul_epilogue with epilogue=\"%s\" wants %s=%d, a matrix as operand %d and no bias; "
			"it is %s", text, summed ? "tb" : "ta", !summed, summed + 1, type_str(m->arena, shape_in(op, summed)));
	return true;
}

RULE(matmul_epilogue)
{
	Epilogue e = op_epilogue(op);
	int summed = epilogue_summed(e);
	if (e == EPILOGUE_UNKNOWN)
		return shape_wrong(err, "matmul_epilogue with epilogue=\"%s\": expected gelu, gelu_grad, sums_a or sums_b",
			attr_get_str(op->attrs, "epilogue", ""));
	if (!product_type(m, op, out, err))
		return false;
	if (!dtype_is_half(shape_in(op, 0)->dtype) || (out->dtype == DT_F32) != epilogue_info[e].wide)
		return shape_wrong(err, "matmul_epilogue with epilogue=\"%s\" wants operands of 16 bits and gives %s; they are "
			"%s, it gives %s", epilogue_info[e].text, epilogue_info[e].wide ? "f32" : "their type",
			dtype_info[shape_in(op, 0)->dtype].text, dtype_info[out->dtype].text);
	if (summed >= 0) {
		out[1] = type_tensor(DT_F32, 1, &shape_in(op, summed)->dim[1]);
		return want_summed(m, err, op, summed) && want_sum(m, op, out, err);
	}
	Type bias = bias_type(op, out);
	if (e == EPILOGUE_GELU)
		out[1] = out[0];
	else if (!op_in(op, 2))
		return shape_wrong(err, "matmul_epilogue with epilogue=\"gelu_grad\" wants x, gelu's operand, as operand 3");
	return shape_want(m, err, op, 2, e == EPILOGUE_GELU ? &bias : out) && (!op_in(op, 3)
		|| shape_wrong(err, "matmul_epilogue with epilogue=\"%s\" adds to no sum", epilogue_info[e].text));
}
