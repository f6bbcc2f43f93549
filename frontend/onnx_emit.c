/* frontend/onnx_emit.c: short sequences of IR ops that several importers emit. */
#include "frontend/onnx_import.h"

#include <string.h>

Value *emit_float(Builder *b, const Value *like, double v)
{
	DType t = like->type.kind == TYPE_TENSOR ? like->type.dtype : DT_F32;
	return ir_const_float(b, t, dtype_is_float(t) ? dtype_round(t, v) : v);
}

Value *emit_ints(Builder *b, int rank, const int64_t *dim, DType t, const int64_t *v)
{
	Type type = type_tensor(t, rank, dim);
	return ir_emit_typed(b, OP_CONST, 0, NULL, attr_ints(b->m, NULL, "value", (int)type_numel(&type), v), type);
}

Value *emit_add(Builder *b, Value *x, Value *y) { return ir_emit2(b, OP_ADD, x, y); }
Value *emit_sub(Builder *b, Value *x, Value *y) { return ir_emit2(b, OP_SUB, x, y); }
Value *emit_mul(Builder *b, Value *x, Value *y) { return ir_emit2(b, OP_MUL, x, y); }
Value *emit_div(Builder *b, Value *x, Value *y) { return ir_emit2(b, OP_DIV, x, y); }

Value *emit_scale(Builder *b, Value *x, double v)
{
	return v == 1 ? x : emit_mul(b, x, emit_float(b, x, v)); /* compared exactly: exporters write 1 */
}

/* The gradient of a root at 0 is infinite, and would make NaN of a norm of zeros and of what is divided by a norm that
 * is clipped from below, as in torch.nn.functional.normalize. */
Value *emit_norm_root(Builder *b, Value *x, double p)
{
	if (!dtype_is_float(x->type.dtype))
		return p == 2 ? ir_emit1(b, OP_SQRT, x) : ir_emit2(b, OP_POW, x, emit_float(b, x, 1 / p));
	Value *zero = emit_float(b, x, 0), *none = ir_emit2(b, OP_EQ, x, zero);
	Value *some = ir_emit3(b, OP_WHERE, none, emit_float(b, x, 1), x);
	some = p == 2 ? ir_emit1(b, OP_SQRT, some) : ir_emit2(b, OP_POW, some, emit_float(b, x, 1 / p));
	return ir_emit3(b, OP_WHERE, none, zero, some);
}

Value *emit_shift(Builder *b, Value *x, double v)
{
	return emit_add(b, x, emit_float(b, x, v));
}

Value *emit_in_range(Builder *b, Value *x, double low, double high, const char *what)
{
	Attr *a = attr_float(b->m, attr_float(b->m, NULL, "low", low), "high", high);
	return ir_emit(b, OP_IN_RANGE, 1, &x, attr_str(b->m, a, "what", what));
}

Value *emit_slice(Builder *b, Value *x, int axis, int64_t start, int64_t size, int64_t step)
{
	int64_t starts[IR_MAX_RANK] = {0}, sizes[IR_MAX_RANK], steps[IR_MAX_RANK];
	int rank = x->type.rank;
	for (int i = 0; i < rank; i++) {
		sizes[i] = x->type.dim[i];
		steps[i] = 1;
	}
	if (start == 0 && size == sizes[axis] && step == 1)
		return x;
	starts[axis] = start;
	sizes[axis] = size;
	steps[axis] = step;
	Attr *a = attr_ints(b->m, NULL, "starts", rank, starts);
	a = attr_ints(b->m, a, "sizes", rank, sizes);
	return ir_emit(b, OP_SLICE, 1, &x, attr_ints(b->m, a, "steps", rank, steps));
}

Value *emit_matmul(Builder *b, Value *x, Value *y, Value *bias, bool ta, bool tb)
{
	Attr *a = attr_int(b->m, attr_int(b->m, NULL, "ta", ta), "tb", tb);
	return ir_emit(b, OP_MATMUL, 3, (Value *[]){x, y, bias}, a);
}

Value *emit_softmax(Builder *b, OpKind kind, Value *x, int axis)
{
	return ir_emit(b, kind, 1, &x, attr_int(b->m, NULL, "axis", axis));
}

Value *emit_iota(Builder *b, DType t, int rank, const int64_t *dim, int axis, double start, double step)
{
	Attr *a = attr_int(b->m, NULL, "axis", axis);
	if (start != 0)
		a = attr_float(b->m, a, "start", start);
	if (step != 1)
		a = attr_float(b->m, a, "step", step);
	return ir_emit_typed(b, OP_IOTA, 0, NULL, a, type_tensor(t, rank, dim));
}

Value *emit_literal(Builder *b, const EvalTensor *t)
{
	int64_t n = type_numel(&t->type);
	bool is_float = dtype_is_float(t->type.dtype), splat = n > 0;
	for (int64_t i = 1; i < n && splat; i++)
		splat = is_float ? !memcmp(&t->f[i], &t->f[0], sizeof(double)) : t->i[i] == t->i[0];
	int count = splat ? 1 : (int)n;
	Attr *a = is_float ? attr_floats(b->m, NULL, "value", count, t->f)
		: attr_ints(b->m, NULL, "value", count, t->i);
	return ir_emit_typed(b, OP_CONST, 0, NULL, a, t->type);
}

Value *emit_move_axis(Builder *b, Value *x, int from, int to)
{
	int perm[IR_MAX_RANK], n = 0;
	for (int i = 0; i < x->type.rank; i++) {
		if (n == to)
			perm[n++] = from;
		if (i != from)
			perm[n++] = i;
	}
	if (n < x->type.rank)
		perm[n] = from;
	return ir_transpose(b, x, perm);
}

Value *emit_concat(Builder *b, int n, Value *const *x, int axis)
{
	return n == 1 ? x[0] : ir_emit(b, OP_CONCAT, n, x, attr_int(b->m, NULL, "axis", axis));
}
