/* frontend/onnx_ops_const.c: constants, and shapes as values. */
#include "frontend/onnx_import.h"
#include "frontend/onnx_params.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- Constant ---- */

static bool constant_tensor(Node *n, const Onnx__AttributeProto *a)
{
	OnnxTensor *t = NEW(n->im->arena, OnnxTensor);
	Span bytes = {a->t.data, a->t.len};
	if (!onnx_tensor_parse(n->im->arena, n->im->onnx->file, bytes, t))
		return node_error(n, "its value is malformed");
	bool in_file = bytes.at >= t->file->bytes.at && bytes.at < t->file->bytes.at + t->file->bytes.n;
	t->name = n->proto->n_output ? n->proto->output[0] : n->name;
	n->out[0] = params_constant(n->im, t, in_file);
	n->out_narrow[0] = narrow_from_onnx(t->data_type);
	return n->out[0];
}

static Value *numbers(Node *n, DType t, int64_t count, bool scalar, const double *f, const int64_t *i)
{
	Type type = scalar ? type_scalar(t) : type_tensor(t, 1, &count);
	EvalTensor e = {.type = type};
	if (dtype_is_float(t))
		e.f = (double *)(uintptr_t)f;
	else
		e.i = (int64_t *)(uintptr_t)i;
	return emit_literal(n->b, &e);
}

bool import_constant(Node *n)
{
	const Onnx__AttributeProto *a;
	if (!node_want(n, 0, 0))
		return false;
	if ((a = node_attr(n, "value")) && a->has_t)
		return constant_tensor(n, a);
	if ((a = node_attr(n, "value_float"))) {
		n->out[0] = numbers(n, DT_F32, 1, true, &(double){(double)a->f}, NULL);
	} else if ((a = node_attr(n, "value_int"))) {
		n->out[0] = numbers(n, DT_I64, 1, true, NULL, &a->i);
	} else if ((a = node_attr(n, "value_ints"))) {
		n->out[0] = numbers(n, DT_I64, (int64_t)a->n_ints, false, NULL, a->ints);
	} else if ((a = node_attr(n, "value_floats"))) {
		double *f = NEW_N(n->im->arena, double, a->n_floats + 1);
		for (size_t i = 0; i < a->n_floats; i++)
			f[i] = (double)a->floats[i];
		n->out[0] = numbers(n, DT_F32, (int64_t)a->n_floats, false, f, NULL);
	} else {
		return node_refuse(n, "its value is a string or a sparse tensor");
	}
	return true;
}

bool import_constant_of_shape(Node *n)
{
	const Onnx__AttributeProto *a = node_attr(n, "value");
	const int64_t *dim;
	int rank;
	double v = 0;
	OnnxTensor t;
	Type type = type_scalar(DT_F32);
	if (!node_want(n, 1, 1) || !node_known_ints(n, 0, "shape", &dim, &rank))
		return false;
	if (rank > IR_MAX_RANK || onnx_dims_numel(rank, dim) < 0)
		return node_error(n, "its shape has a rank above 8, a negative or an overflowing dimension");
	if (a && a->has_t) {
		double *f;
		int64_t *i;
		if (!onnx_tensor_parse(n->im->arena, n->im->onnx->file, (Span){a->t.data, a->t.len}, &t)
				|| onnx_dims_numel(t.rank, t.dim) != 1)
			return node_error(n, "its value is not one element");
		if (!onnx_tensor_type(&t, &type))
			return node_refuse(n, "dtype %s is not supported", onnx_dtype_name(t.data_type));
		if (dtype_is_float(type.dtype) ? !onnx_tensor_floats(n->im->onnx, &t, n->im->arena, &f, n->im->d)
				: !onnx_tensor_ints(n->im->onnx, &t, n->im->arena, &i, n->im->d))
			return false;
		v = dtype_is_float(type.dtype) ? f[0] : (double)i[0];
	}
	n->out[0] = ir_const_full(n->b, type_tensor(type.dtype, rank, dim), v);
	return true;
}

/* ---- shapes ---- */

bool import_shape(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	const Type *t = &n->in[0]->type;
	int64_t start = node_int(n, "start", 0), end = node_int(n, "end", t->rank);
	start += start < 0 ? t->rank : 0;
	end += end < 0 ? t->rank : 0;
	start = MIN(MAX(start, 0), t->rank);
	end = MAX(MIN(MAX(end, 0), t->rank), start);
	int64_t count = end - start;
	n->out[0] = emit_ints(n->b, 1, &count, DT_I64, t->dim + start);
	return true;
}

bool import_size(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	n->out[0] = ir_const_int(n->b, DT_I64, type_numel(&n->in[0]->type));
	return true;
}

static bool known_scalar(Node *n, int i, double *f, int64_t *v)
{
	EvalTensor *t = node_known(n, i);
	if (!t || type_numel(&t->type) != 1)
		return node_refuse(n, "its bounds depend on data: they must be known at compile time");
	*f = dtype_is_float(t->type.dtype) ? t->f[0] : (double)t->i[0];
	*v = dtype_is_float(t->type.dtype) ? 0 : t->i[0];
	return true;
}

bool import_range(Node *n)
{
	double f[3];
	int64_t v[3], count;
	if (!node_want(n, 3, 3))
		return false;
	for (int i = 0; i < 3; i++)
		if (!known_scalar(n, i, &f[i], &v[i]))
			return false;
	DType t = n->in[0]->type.dtype;
	if (f[2] == 0)
		return node_error(n, "delta is 0");
	double steps = ceil((f[1] - f[0]) / f[2]);
	if (!(steps < (double)(INT64_C(1) << 40)))
		return node_error(n, "%g elements are too many", steps);
	count = steps > 0 ? (int64_t)steps : 0;
	n->out[0] = emit_iota(n->b, t, 1, &count, 0, f[0], f[2]);
	return true;
}

/* ---- triangles and diagonals ---- */

/* A [rows, cols] bool tensor: col - row compared with the diagonal k. */
static Value *diagonal(Builder *b, OpKind compare, int64_t rows, int64_t cols, int64_t k)
{
	int64_t down[2] = {rows, 1}, across[2] = {1, cols};
	Value *row = emit_iota(b, DT_I64, 2, down, 0, (double)k, 1);
	return ir_emit2(b, compare, emit_iota(b, DT_I64, 2, across, 1, 0, 1), row);
}

bool import_eye_like(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	const Type *t = &n->in[0]->type;
	DType to = t->dtype;
	if (node_has(n, "dtype") && !node_dtype(n, "dtype", &to))
		return false;
	if (t->rank != 2)
		return node_error(n, "wants rank 2, has %s", type_str(n->im->arena, t));
	int64_t k = MIN(MAX(node_int(n, "k", 0), -t->dim[0]), t->dim[1]);
	n->out[0] = ir_cast(n->b, diagonal(n->b, OP_EQ, t->dim[0], t->dim[1], k), to);
	return true;
}

bool import_trilu(Node *n)
{
	int64_t k = 0, upper = node_int(n, "upper", 1);
	double unused;
	if (!node_want(n, 1, 2) || (node_in(n, 1) && !known_scalar(n, 1, &unused, &k)))
		return false;
	Value *x = n->in[0];
	int rank = x->type.rank;
	if (rank < 2)
		return node_error(n, "wants rank 2 or more, has %s", type_str(n->im->arena, &x->type));
	int64_t rows = x->type.dim[rank - 2], cols = x->type.dim[rank - 1];
	k = MIN(MAX(k, -rows), cols);
	Value *keep = diagonal(n->b, upper ? OP_GE : OP_LE, rows, cols, k);
	n->out[0] = ir_emit3(n->b, OP_WHERE, keep, x, ir_const_full(n->b, type_scalar(x->type.dtype), 0));
	return true;
}
