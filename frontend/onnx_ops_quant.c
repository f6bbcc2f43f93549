/* frontend/onnx_ops_quant.c: quantisation: QuantizeLinear, DequantizeLinear and the ops that compute on integers.
 *
 * Integers are computed as floats that hold them exactly: `quantize` gives these, and DequantizeLinear reads them past
 * the cast to integers, so that gradients pass straight through the pair.  A scale has the gradient that follows:
 * that of LSQ. */
#include "frontend/onnx_params.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- scales and zero points ---- */

/* The numbers of an operand that are in the file or follow from literals; NULL: they depend on data. */
static const double *numbers(Node *n, int i, int64_t *count)
{
	EvalTensor *t = node_known(n, i);
	const Symbol *s = n->in[i]->op->sym;
	const Weight *w = s && s->kind == SYM_DATA ? map_get(n->im->weights, s->onnx) : NULL;
	HostTensor h;
	*count = type_numel(&n->in[i]->type);
	if (!t && (!w || w->narrow || !weight_values(n->im, w, &h)))
		return NULL;
	double *v = NEW_N(n->im->arena, double, *count + 1);
	for (int64_t k = 0; k < *count; k++)
		v[k] = !t ? host_get_float(&h, k) : dtype_is_float(t->type.dtype) ? t->f[k] : (double)t->i[k];
	return v;
}

static bool check_scale(Node *n, int i)
{
	int64_t count;
	if (!dtype_is_float(n->in[i]->type.dtype))
		return node_error(n, "operand %d (scale) is %s, floats are wanted", i, type_str(n->im->arena, &n->in[i]->type));
	const double *v = numbers(n, i, &count);
	for (int64_t k = 0; v && k < count; k++)
		if (!(v[k] > 0) || isinf(v[k]))
			return node_error(n, "operand %d (scale) is %g at position %" PRId64 ": scales are positive and finite", i,
				v[k], k);
	return true;
}

/* Zero points of floats are zero. */
static bool check_float_zero(Node *n, int i)
{
	int64_t count;
	const double *v = numbers(n, i, &count);
	if (!v)
		return node_refuse(n, "its zero point depends on data: that of a float type is the constant 0, or absent");
	for (int64_t k = 0; k < count; k++)
		if (v[k] != 0)
			return node_error(n, "operand %d (zero point) is %g at position %" PRId64 ": that of a float type is 0", i,
				v[k], k);
	return true;
}

/* Repeats each element of s `block` times along axis, and cuts the last block where x ends. */
static Value *repeat(Builder *b, Value *s, int axis, int64_t block, const Type *x)
{
	int64_t dim[IR_MAX_RANK + 1];
	int rank = s->type.rank;
	for (int i = 0; i <= rank; i++)
		dim[i] = i <= axis ? s->type.dim[i] : i == axis + 1 ? 1 : s->type.dim[i - 1];
	s = ir_reshape(b, s, rank + 1, dim);
	dim[axis + 1] = block;
	Type wide = type_tensor(s->type.dtype, rank + 1, dim);
	s = ir_broadcast(b, s, &wide);
	memmove(dim + axis + 1, dim + axis + 2, sizeof(*dim) * (size_t)(rank - axis - 1));
	dim[axis] *= block;
	return emit_slice(b, ir_reshape(b, s, rank, dim), axis, 0, x->dim[axis], 1);
}

/* A scale or zero point as it broadcasts to x: one number, one for each index of an axis, or one for each block. */
static Value *spread(Node *n, int i, const char *what, const Type *x)
{
	Value *s = n->in[i], *bad = NULL;
	const Type *t = &s->type;
	int64_t block = node_int(n, "block_size", 0), given = node_int(n, "axis", 1), dim[IR_MAX_RANK];
	const char *have = type_str(n->im->arena, t), *of = type_str(n->im->arena, x);
	if (block < 0)
		return node_error(n, "block_size is %" PRId64, block), bad;
	if (t->rank <= 1 && type_numel(t) == 1)
		return ir_reshape(n->b, s, 0, NULL);
	int axis = node_axis(n, given, x->rank);
	if (axis < 0)
		return NULL;
	if (!block) {
		if (t->rank != 1 || t->dim[0] != x->dim[axis])
			return node_error(n, "operand %d (%s) is %s: %s wants one number, %" PRId64 " along axis %d, or "
				"block_size", i, what, have, of, x->dim[axis], axis), bad;
		for (int k = 0; k < x->rank; k++)
			dim[k] = k == axis ? t->dim[0] : 1;
		return ir_reshape(n->b, s, x->rank, dim);
	}
	if (x->rank == IR_MAX_RANK)
		return node_refuse(n, "blocks of a tensor of rank %d: at most %d are supported", x->rank, IR_MAX_RANK - 1), bad;
	bool fits = t->rank == x->rank;
	for (int k = 0; fits && k < x->rank; k++)
		fits = t->dim[k] == (k == axis ? ceil_div(x->dim[k], block) : x->dim[k]);
	if (!fits)
		return node_error(n, "operand %d (%s) is %s: blocks of %" PRId64 " along axis %d of %s want %" PRId64 " there "
			"and the same dimensions elsewhere", i, what, have, block, axis, of, ceil_div(x->dim[axis], block)), bad;
	return repeat(n->b, s, axis, MIN(block, MAX(x->dim[axis], 1)), x);
}

/* ---- integers as floats ---- */

/* A float through which gradients pass, and which holds the numbers of v, an integer that QuantizeLinear made and at
 * most moves and clips have changed; NULL: v comes from elsewhere. */
static Value *quantized(Builder *b, Value *v, int depth)
{
	enum { DEPTH = 64 };
	const Op *op = v->op;
	if (depth == DEPTH || !op || !op->n_in || !op_in(op, 0))
		return NULL;
	Value *x = op_in(op, 0);
	if (op->kind == OP_CAST && dtype_is_float(x->type.dtype))
		return x->op->kind == OP_QUANTIZE ? x : NULL;
	const Attr *limit = op->n_in == 2 && op_in(op, 1)->op ? attr_find(op_in(op, 1)->op->attrs, "value") : NULL;
	bool clips = (op->kind == OP_MIN || op->kind == OP_MAX) && limit && limit->n == 1 && limit->kind == ATTR_INTS;
	bool moves = op->kind == OP_RESHAPE || op->kind == OP_TRANSPOSE || op->kind == OP_SLICE || op->kind == OP_BROADCAST;
	Value *inner = clips || moves ? quantized(b, x, depth + 1) : NULL;
	if (!inner || moves)
		return inner ? ir_emit(b, op->kind, 1, &inner, op->attrs) : NULL;
	Attr *a = attr_float(b->m, NULL, "lo", op->kind == OP_MAX ? (double)limit->ints[0] : -INFINITY);
	a = attr_float(b->m, a, "hi", op->kind == OP_MIN ? (double)limit->ints[0] : INFINITY);
	return ir_emit(b, OP_QUANTIZE, 2, (Value *[]){inner, emit_float(b, inner, 0)}, a);
}

static Value *as_float(Builder *b, Value *v)
{
	Value *x = quantized(b, v, 0);
	return x ? ir_cast(b, x, DT_F32) : ir_cast(b, v, DT_F32);
}

typedef struct Grid { DType dtype; const Narrow *narrow; double lo, hi; } Grid;

/* The numbers that a type of quantised elements has; false: it is none. */
static bool grid_of(DType t, const Narrow *narrow, Grid *g)
{
	int bits = 8 * dtype_info[t].bytes;
	bool is_signed = dtype_info[t].kind == CLASS_INT, small = bits <= 16 && t != DT_BOOL;
	*g = (Grid){t, narrow, is_signed ? -ldexp(1, bits - 1) : 0, ldexp(1, is_signed ? bits - 1 : bits) - 1};
	if (narrow) {
		g->lo = narrow_min(narrow);
		g->hi = narrow->max;
		return narrow->special != NARROW_POWER;
	}
	return small && !dtype_is_float(t);
}

/* The integers nearest to x + zero on the grid (zero: NULL = 0), and x and zero in the same dtype. */
static Value *to_grid(Builder *b, Value *x, Value *zero, const Grid *g)
{
	zero = zero ? ir_cast(b, zero, x->type.dtype) : emit_float(b, x, 0);
	Attr *a = attr_float(b->m, attr_float(b->m, NULL, "lo", g->lo), "hi", g->hi);
	return ir_cast(b, ir_emit(b, OP_QUANTIZE, 2, (Value *[]){x, zero}, a), g->dtype);
}

/* ---- QuantizeLinear and DequantizeLinear ---- */

/* The type that zero point and output_dtype say; u8 if neither does. */
static bool output_grid(Node *n, Grid *g)
{
	DType to = DT_U8;
	const Narrow *narrow = NULL;
	bool given = node_int(n, "output_dtype", 0), has_zero = node_in(n, 2);
	if (given && !node_element(n, "output_dtype", &to, &narrow))
		return false;
	if (has_zero && given && (n->in[2]->type.dtype != to || n->in_narrow[2] != narrow))
		return node_error(n, "output_dtype is %s, its zero point is %s", narrow ? narrow->text : dtype_info[to].text,
			n->in_narrow[2] ? n->in_narrow[2]->text : type_str(n->im->arena, &n->in[2]->type));
	if (has_zero) {
		to = n->in[2]->type.dtype;
		narrow = n->in_narrow[2];
	}
	n->out_narrow[0] = narrow;
	return grid_of(to, narrow, g) || node_error(n, "%s is no type to quantise to", narrow ? narrow->text
		: dtype_info[to].text);
}

/* x / scale, rounded to the dtype of the division.  PyTorch, whose numbers its exports shall give, multiplies with the
 * reciprocal, which differs at ties. */
static bool divide(Node *n, Value *x, Value *scale, Value **out)
{
	Builder *b = n->b;
	DType t = n->in[1]->type.dtype;
	if (node_int(n, "precision", 0) && !node_dtype(n, "precision", &t))
		return false;
	if (!dtype_is_float(t))
		return node_error(n, "precision is %s, a float type is wanted", dtype_info[t].text);
	DType wide = t == DT_F64 ? DT_F64 : DT_F32;
	x = ir_cast(b, ir_cast(b, x, t), wide);
	scale = ir_cast(b, ir_cast(b, scale, t), wide);
	if (n->im->pytorch) {
		*out = emit_mul(b, x, ir_emit1(b, OP_RECIP, scale));
		return true;
	}
	*out = ir_cast(b, ir_cast(b, emit_div(b, x, scale), t), wide);
	return true;
}

static bool same_shape(Node *n)
{
	return !node_in(n, 2) || type_same_shape(&n->in[1]->type, &n->in[2]->type) || (type_numel(&n->in[1]->type) == 1
		&& type_numel(&n->in[2]->type) == 1) || node_error(n, "scale %s and zero point %s differ in shape",
		type_str(n->im->arena, &n->in[1]->type), type_str(n->im->arena, &n->in[2]->type));
}

bool import_quantize_linear(Node *n)
{
	Grid g;
	Builder *b = n->b;
	if (!node_want(n, 2, 3) || !check_scale(n, 1) || !same_shape(n) || !output_grid(n, &g))
		return false;
	Value *x = n->in[0];
	if (n->in_narrow[0] || (!dtype_is_float(x->type.dtype) && x->type.dtype != DT_I32))
		return node_error(n, "operand 0 is %s, floats or i32 are wanted", type_str(n->im->arena, &x->type));
	Value *scale = spread(n, 1, "scale", &x->type), *zero = NULL;
	if (!scale || (node_in(n, 2) && !(zero = spread(n, 2, "zero point", &x->type))) || !divide(n, x, scale, &x))
		return false;
	if (g.dtype != DT_F32) {
		n->out[0] = to_grid(b, x, zero, &g);
		return true;
	}
	bool saturate = node_int(n, "saturate", 1);
	if (zero && !check_float_zero(n, 2))
		return false;
	if (saturate) { /* within the range the gradient passes, beyond it there is none */
		Attr *a = attr_float(b->m, attr_float(b->m, NULL, "lo", g.lo), "hi", g.hi);
		x = ir_emit(b, OP_CLIP, 1, &x, a);
	}
	n->out[0] = emit_round_to(b, x, g.narrow, saturate);
	return true;
}

bool import_dequantize_linear(Node *n)
{
	Grid g;
	Builder *b = n->b;
	DType to;
	if (!node_want(n, 2, 3) || !check_scale(n, 1) || !same_shape(n))
		return false;
	Value *x = n->in[0], *zero = node_in(n, 2);
	if (!grid_of(x->type.dtype, n->in_narrow[0], &g) && x->type.dtype != DT_I32)
		return node_error(n, "operand 0 is %s, a quantised type is wanted", type_str(n->im->arena, &x->type));
	if (zero && (zero->type.dtype != x->type.dtype || n->in_narrow[2] != n->in_narrow[0]))
		return node_error(n, "operand 0 is %s, its zero point is %s", n->in_narrow[0] ? n->in_narrow[0]->text
			: type_str(n->im->arena, &x->type), n->in_narrow[2] ? n->in_narrow[2]->text
			: type_str(n->im->arena, &zero->type));
	if (zero && x->type.dtype == DT_F32 && !check_float_zero(n, 2))
		return false;
	to = n->in[1]->type.dtype;
	if (node_int(n, "output_dtype", 0) && !node_dtype(n, "output_dtype", &to))
		return false;
	Value *scale = spread(n, 1, "scale", &x->type);
	if (!scale || (zero && !(zero = spread(n, 2, "zero point", &x->type))))
		return false;
	Value *v = as_float(b, x);
	v = zero ? emit_sub(b, v, ir_cast(b, zero, DT_F32)) : v;
	n->out[0] = ir_cast(b, emit_mul(b, v, ir_cast(b, scale, DT_F32)), to);
	return true;
}

static Value *extreme(Builder *b, OpKind kind, OpKind with_zero, Value *x)
{
	int64_t axes[IR_MAX_RANK];
	for (int i = 0; i < x->type.rank; i++)
		axes[i] = i;
	return ir_emit2(b, with_zero, x->type.rank ? ir_reduce(b, kind, x, x->type.rank, axes, false) : x,
		emit_float(b, x, 0));
}

/* The range of all elements gives scale and zero point, through which no gradient flows, as in an observer. */
bool import_dynamic_quantize_linear(Node *n)
{
	Grid g;
	Builder *b = n->b;
	if (!node_want(n, 1, 1))
		return false;
	Value *x = n->in[0];
	if (x->type.dtype != DT_F32 || !type_numel(&x->type))
		return node_error(n, "operand 0 is %s, f32 of at least one element is wanted",
			type_str(n->im->arena, &x->type));
	if (!n->im->o->infer && samples_of(n->im->samples, x).kind == SAMPLES_AXIS)
		diag_warn(n->im->d, loc_where(b->m, b->loc), "its scale is that of the range of all samples of a batch, each "
			"rank's own: results depend on the batch size; QuantizeLinear with a fixed scale does not");
	grid_of(DT_U8, NULL, &g);
	Value *still = ir_emit1(b, OP_STOP_GRADIENT, x);
	Value *max = extreme(b, OP_REDUCE_MAX, OP_MAX, still), *min = extreme(b, OP_REDUCE_MIN, OP_MIN, still);
	Value *range = ir_emit3(b, OP_WHERE, ir_emit2(b, OP_EQ, max, min), emit_float(b, x, 1), emit_sub(b, max, min));
	Value *scale = emit_div(b, range, emit_float(b, x, 255));
	Value *from = emit_sub(b, emit_float(b, x, 0), emit_div(b, min, scale));
	Value *zero = to_grid(b, from, NULL, &g);
	n->out[0] = to_grid(b, emit_div(b, x, scale), zero, &g);
	if (n->n_out > 1)
		n->out[1] = scale;
	if (n->n_out > 2)
		n->out[2] = zero;
	return true;
}

/* ---- products of integers ---- */

/* The numbers of operand i less its zero point, operand `zero`, as f64, which holds sums of their products exactly.
 * A zero point for each row or column lies along `axis` of the operand (-1: it broadcasts as it is). */
static Value *centred(Node *n, int i, int zero, int axis)
{
	Builder *b = n->b;
	Value *x = n->in[i], *z = node_in(n, zero);
	int64_t dim[IR_MAX_RANK];
	Grid g;
	if (!grid_of(x->type.dtype, NULL, &g) || dtype_info[x->type.dtype].bytes != 1) {
		node_error(n, "operand %d is %s, i8 or u8 is wanted", i, type_str(n->im->arena, &x->type));
		return NULL;
	}
	Value *v = ir_cast(b, as_float(b, x), DT_F64);
	if (!z)
		return v;
	if (z->type.dtype != x->type.dtype) {
		node_error(n, "operand %d is %s, its zero point is %s", i, type_str(n->im->arena, &x->type),
			type_str(n->im->arena, &z->type));
		return NULL;
	}
	axis += axis < 0 ? x->type.rank : 0;
	for (int k = 0; k < x->type.rank; k++)
		dim[k] = k == axis ? x->type.dim[k] : 1;
	if (z->type.rank == 1 && type_numel(&z->type) == 1)
		z = ir_reshape(b, z, 0, NULL);
	else if (z->type.rank == 1 && axis >= 0 && axis < x->type.rank && z->type.dim[0] == x->type.dim[axis])
		z = ir_reshape(b, z, x->type.rank, dim);
	Type t;
	if (!type_broadcast(&x->type, &z->type, &t) || !type_same_shape(&t, &x->type)) {
		node_error(n, "operand %d is %s, its zero point %s fits neither as one number nor along an axis", i,
			type_str(n->im->arena, &x->type), type_str(n->im->arena, &z->type));
		return NULL;
	}
	return emit_sub(b, v, ir_cast(b, z, DT_F64));
}

/* Imports the node as if its operands were x, y and bias (NULL: there is none), of floats. */
static Value *product(Node *n, OnnxImporter *import, Value *x, Value *y, Value *bias)
{
	Node floats = *n;
	Value *in[3] = {x, y, bias}, *out[1] = {NULL};
	if (!x || !y)
		return NULL;
	floats.in = in;
	floats.out = out;
	floats.n_in = bias ? 3 : 2;
	floats.n_out = 1;
	return import(&floats) && out[0] != &n->im->m->poison ? out[0] : NULL;
}

static bool integer_product(Node *n, OnnxImporter *import, int row, int column)
{
	if (!node_want(n, 2, 4))
		return false;
	Value *x = centred(n, 0, 2, row);
	Value *v = product(n, import, x, x ? centred(n, 1, 3, column) : NULL, NULL);
	if (v)
		n->out[0] = ir_cast(n->b, ir_cast(n->b, v, DT_I64), DT_I32); /* i32 wraps */
	return v;
}

bool import_matmul_integer(Node *n) { return integer_product(n, import_matmul, -2, -1); }
bool import_conv_integer(Node *n) { return integer_product(n, import_conv, 0, 0); }

/* Where the operands of a product are that is quantised again: x, its scale and zero point, y, its, the result's. */
enum { Q_X, Q_X_SCALE, Q_X_ZERO, Q_Y, Q_Y_SCALE, Q_Y_ZERO, Q_SCALE, Q_ZERO, Q_BIAS };

/* A scale of a product: one number, or one for each index of an axis of the result. */
static Value *product_scale(Node *n, int i, const Type *result, int axis)
{
	Value *s = n->in[i];
	int64_t dim[IR_MAX_RANK];
	if (type_numel(&s->type) == 1)
		return ir_reshape(n->b, s, 0, NULL);
	axis += axis < 0 ? result->rank : 0;
	for (int k = 0; k < result->rank; k++)
		dim[k] = k == axis ? result->dim[k] : 1;
	if (s->type.rank == 1 && axis >= 0 && s->type.dim[0] == result->dim[axis])
		return ir_reshape(n->b, s, result->rank, dim);
	Type t;
	if (type_broadcast(&s->type, result, &t) && type_same_shape(&t, result) && s->type.rank == result->rank)
		return s;
	node_error(n, "operand %d (scale) is %s, which does not fit the result %s", i, type_str(n->im->arena, &s->type),
		type_str(n->im->arena, result));
	return NULL;
}

/* sum * (x_scale * y_scale / scale), rounded to the type of the zero point. */
static bool requantize(Node *n, Value *sum, int x_axis, int y_axis)
{
	Grid g;
	Builder *b = n->b;
	Value *zero = n->in[Q_ZERO];
	if (!grid_of(zero->type.dtype, n->in_narrow[Q_ZERO], &g) || type_numel(&zero->type) != 1)
		return node_error(n, "operand %d (zero point) is %s, one number of a quantised type is wanted", Q_ZERO,
			type_str(n->im->arena, &zero->type));
	Value *x = product_scale(n, Q_X_SCALE, &sum->type, x_axis), *y = product_scale(n, Q_Y_SCALE, &sum->type, y_axis);
	Value *out = product_scale(n, Q_SCALE, &sum->type, x_axis);
	if (!x || !y || !out)
		return false;
	Value *ratio = emit_div(b, emit_mul(b, x, y), out);
	n->out[0] = to_grid(b, emit_mul(b, sum, ir_cast(b, ratio, DT_F64)), ir_reshape(b, zero, 0, NULL), &g);
	return true;
}

static bool quantized_product(Node *n, OnnxImporter *import, bool conv)
{
	if (!node_want(n, 8, conv ? 9 : 8) || !check_scale(n, Q_X_SCALE) || !check_scale(n, Q_Y_SCALE)
			|| !check_scale(n, Q_SCALE))
		return false;
	Value *x = centred(n, Q_X, Q_X_ZERO, conv ? 0 : -2);
	Value *y = x ? centred(n, Q_Y, Q_Y_ZERO, conv ? 0 : -1) : NULL, *bias = node_in(n, Q_BIAS);
	if (bias && bias->type.dtype != DT_I32)
		return node_error(n, "operand %d (bias) is %s, i32 is wanted", Q_BIAS, type_str(n->im->arena, &bias->type));
	Value *sum = product(n, import, x, y, bias ? ir_cast(n->b, bias, DT_F64) : NULL);
	return sum && requantize(n, sum, conv ? 0 : -2, conv ? 1 : -1);
}

bool import_qlinear_matmul(Node *n) { return quantized_product(n, import_matmul, false); }
bool import_qlinear_conv(Node *n) { return quantized_product(n, import_conv, true); }

/* ---- BitCast ---- */

bool import_bit_cast(Node *n)
{
	DType to;
	if (!node_want(n, 1, 1) || !node_dtype(n, "to", &to))
		return false;
	DType from = n->in[0]->type.dtype;
	if (dtype_info[from].bytes != dtype_info[to].bytes)
		return node_error(n, "operand 0 is %s and `to` is %s: their elements differ in size",
			type_str(n->im->arena, &n->in[0]->type), dtype_info[to].text);
	n->out[0] = from == to ? n->in[0] : ir_emit(n->b, OP_BITCAST, 1, n->in, attr_dtype(n->b->m, NULL, "to", to));
	return true;
}
