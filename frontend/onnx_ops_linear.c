/* frontend/onnx_ops_linear.c: MatMul and Gemm. */
#include "frontend/onnx_import.h"

#include <string.h>

/* MatMul: a vector on the left is taken as a row, on the right as a column; its dimension is dropped from the
 * result. */
bool import_matmul(Node *n)
{
	if (!node_want(n, 2, 2))
		return false;
	Value *x = n->in[0], *y = n->in[1];
	bool row = x->type.rank == 1, column = y->type.rank == 1;
	if (!x->type.rank || !y->type.rank)
		return node_error(n, "operands are scalars: %s and %s", type_str(n->im->arena, &x->type),
			type_str(n->im->arena, &y->type));
	if (row)
		x = ir_reshape(n->b, x, 2, (int64_t[]){1, x->type.dim[0]});
	if (column)
		y = ir_reshape(n->b, y, 2, (int64_t[]){y->type.dim[0], 1});
	Value *v = emit_matmul(n->b, x, y, NULL, false, false);
	int64_t dim[IR_MAX_RANK];
	int rank = 0;
	for (int i = 0; i < v->type.rank; i++)
		if (!(row && i == v->type.rank - 2) && !(column && i == v->type.rank - 1))
			dim[rank++] = v->type.dim[i];
	n->out[0] = row || column ? ir_reshape(n->b, v, rank, dim) : v;
	return true;
}

/* C as the bias operand of matmul, one number per column; NULL where it has another shape. */
static Value *row_bias(Node *n, Value *c, int64_t columns)
{
	const Type *t = &c->type;
	bool row = type_numel(t) == columns && t->rank && t->dim[t->rank - 1] == columns;
	return row ? ir_reshape(n->b, c, 1, &columns) : NULL;
}

bool import_gemm(Node *n)
{
	bool ta = node_int(n, "transA", 0), tb = node_int(n, "transB", 0);
	double alpha = node_float(n, "alpha", 1), beta = node_float(n, "beta", 1);
	if (!node_want(n, 2, 3))
		return false;
	Value *x = n->in[0], *y = n->in[1], *c = node_in(n, 2);
	if (x->type.rank != 2 || y->type.rank != 2)
		return node_error(n, "operands must have rank 2: %s and %s", type_str(n->im->arena, &x->type),
			type_str(n->im->arena, &y->type));
	int64_t columns = y->type.dim[!tb];
	if (!c && node_rewritten_by(n, "RemoveOptionalBiasFromGemm") && *n->scope)
		c = params_restore(n, 2, "bias", type_tensor(y->type.dtype, 1, &columns), 0);
	if (beta == 0)
		c = NULL;
	Value *bias = c && alpha == 1 && beta == 1 ? row_bias(n, c, columns) : NULL;
	Value *v = emit_scale(n->b, emit_matmul(n->b, x, y, bias, ta, tb), alpha);
	n->out[0] = c && !bias ? emit_add(n->b, v, emit_scale(n->b, c, beta)) : v;
	return true;
}
