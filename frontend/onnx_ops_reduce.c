/* frontend/onnx_ops_reduce.c: reductions, global pooling, and norms along an axis. */
#include "frontend/onnx_import.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static Value *square(Builder *b, Value *x) { return emit_mul(b, x, x); }
static Value *same(Builder *b, Value *x) { (void)b; return x; }
static Value *absolute(Builder *b, Value *x) { return ir_emit1(b, OP_ABS, x); }
static Value *logarithm(Builder *b, Value *x) { return ir_emit1(b, OP_LOG, x); }

static Value *root(Builder *b, Value *x) { return emit_norm_root(b, x, 2); }

/* An ONNX reduction as after(reduce(before(x))). */
typedef struct Reduction {
	const char *onnx;
	OpKind kind;
	Value *(*before)(Builder *b, Value *x);
	Value *(*after)(Builder *b, Value *x);
} Reduction;

static const Reduction reductions[] = {
	{"ReduceL1", OP_REDUCE_SUM, absolute, same},
	{"ReduceL2", OP_REDUCE_SUM, square, root},
	{"ReduceLogSum", OP_REDUCE_SUM, same, logarithm},
	{"ReduceLogSumExp", OP_REDUCE_SUM, same, same}, /* written by log_sum_exp */
	{"ReduceMax", OP_REDUCE_MAX, same, same},
	{"ReduceMean", OP_REDUCE_MEAN, same, same},
	{"ReduceMin", OP_REDUCE_MIN, same, same},
	{"ReduceProd", OP_REDUCE_PROD, same, same},
	{"ReduceSum", OP_REDUCE_SUM, same, same},
	{"ReduceSumSquare", OP_REDUCE_SUM, square, same},
};

/* Subtracts the maximum before exponentiation, except where the maximum is infinite. */
static Value *log_sum_exp(Builder *b, Value *x, int n, const int64_t *axes, bool keepdims)
{
	int64_t dim[IR_MAX_RANK];
	int rank = 0;
	if (!type_numel(&x->type))
		return logarithm(b, ir_reduce(b, OP_REDUCE_SUM, ir_emit1(b, OP_EXP, x), n, axes, keepdims));
	Value *top = ir_reduce(b, OP_REDUCE_MAX, x, n, axes, true);
	Value *inf = ir_emit(b, OP_ISINF, 1, &top, attr_int(b->m, attr_int(b->m, NULL, "pos", 1), "neg", 1));
	top = ir_emit3(b, OP_WHERE, inf, emit_float(b, x, 0), top);
	Value *sum = ir_reduce(b, OP_REDUCE_SUM, ir_emit1(b, OP_EXP, emit_sub(b, x, top)), n, axes, true);
	Value *v = emit_add(b, logarithm(b, sum), top);
	for (int i = 0, k = 0; i < x->type.rank; i++) {
		bool reduced = k < n && axes[k] == i;
		k += reduced;
		if (!reduced)
			dim[rank++] = x->type.dim[i];
	}
	return keepdims ? v : ir_reshape(b, v, rank, dim);
}

/* The IR does not order bools, so they are reduced as integers and converted back. */
static Value *reduce_bool(Builder *b, OpKind kind, Value *x, int n, const int64_t *axes, bool keepdims)
{
	x = ir_reduce(b, kind, ir_cast(b, x, DT_I32), n, axes, keepdims);
	return ir_cast(b, x, DT_BOOL);
}

/* The result of a maximum or minimum over no elements: the least or the greatest number. */
static Value *extreme_of_none(Builder *b, OpKind kind, Value *x, int n, const int64_t *axes, bool keepdims)
{
	Type t = ir_reduce(b, OP_REDUCE_SUM, ir_cast(b, x, DT_F32), n, axes, keepdims)->type;
	bool least = kind == OP_REDUCE_MAX;
	int bits = 8 * dtype_info[x->type.dtype].bytes;
	t.dtype = x->type.dtype;
	if (dtype_is_float(t.dtype))
		return ir_const_full(b, t, least ? -INFINITY : INFINITY);
	bool is_unsigned = dtype_info[t.dtype].text[0] == 'u', is_bool = t.dtype == DT_BOOL;
	int64_t most = is_bool ? 1 : is_unsigned && bits == 64 ? -1 : (int64_t)(UINT64_MAX >> (64 - bits + !is_unsigned));
	Value *v = ir_const_int(b, t.dtype, least ? is_unsigned || is_bool ? 0 : -most - 1 : most);
	return ir_broadcast(b, v, &t);
}

/* A pool's gradient goes to the first of ties, and so does that of PyTorch's max and min along one axis. */
static void to_first_of_ties(Node *n)
{
	Op *op = n->out[0]->op;
	if (op && (op->kind == OP_REDUCE_MAX || op->kind == OP_REDUCE_MIN))
		op->attrs = attr_int(n->b->m, op->attrs, "first", 1);
}

bool import_reduce(Node *n)
{
	const Reduction *r = reductions;
	int64_t axes[IR_MAX_RANK];
	int count;
	bool given, keepdims = node_int(n, "keepdims", 1);
	if (!node_want(n, 1, 2))
		return false;
	Value *x = n->in[0];
	while (strcmp(r->onnx, n->op))
		r++;
	if (!node_axes(n, 1, x->type.rank, axes, &count, &given))
		return false;
	if (!given && !node_int(n, "noop_with_empty_axes", 0)) {
		for (count = 0; count < x->type.rank; count++)
			axes[count] = count;
	}
	bool extreme = r->kind == OP_REDUCE_MAX || r->kind == OP_REDUCE_MIN;
	if (extreme && count && !type_numel(&x->type)) {
		n->out[0] = extreme_of_none(n->b, r->kind, x, count, axes, keepdims);
	} else if (!strcmp(n->op, "ReduceLogSumExp")) {
		n->out[0] = count || given ? log_sum_exp(n->b, x, count, axes, keepdims) : x;
	} else if (x->type.dtype == DT_BOOL) {
		n->out[0] = reduce_bool(n->b, r->kind, x, count, axes, keepdims);
	} else {
		x = r->before(n->b, x);
		n->out[0] = r->after(n->b, count ? ir_reduce(n->b, r->kind, x, count, axes, keepdims) : x);
		if (count && (node_is_call(n, "aten.max.dim") || node_is_call(n, "aten.min.dim")))
			to_first_of_ties(n);
	}
	return true;
}

/* ---- pooling over everything ---- */

static int spatial_axes(const Value *x, int64_t *axes)
{
	int n = 0;
	for (int i = 2; i < x->type.rank; i++)
		axes[n++] = i;
	return n;
}

bool import_global_pool(Node *n)
{
	int64_t axes[IR_MAX_RANK];
	if (!node_want(n, 1, 1))
		return false;
	int count = spatial_axes(n->in[0], axes);
	OpKind kind = strcmp(n->op, "GlobalMaxPool") ? OP_REDUCE_MEAN : OP_REDUCE_MAX;
	n->out[0] = count ? ir_reduce(n->b, kind, n->in[0], count, axes, true) : n->in[0];
	if (count && kind == OP_REDUCE_MAX)
		to_first_of_ties(n);
	return true;
}

static Value *lp_norm(Builder *b, Value *x, int64_t p, int n, const int64_t *axes)
{
	if (p == 1)
		return ir_reduce(b, OP_REDUCE_SUM, absolute(b, x), n, axes, true);
	if (p == 2)
		return root(b, ir_reduce(b, OP_REDUCE_SUM, square(b, x), n, axes, true));
	Value *powers = ir_emit2(b, OP_POW, absolute(b, x), emit_float(b, x, (double)p));
	return emit_norm_root(b, ir_reduce(b, OP_REDUCE_SUM, powers, n, axes, true), (double)p);
}

bool import_global_lp_pool(Node *n)
{
	int64_t axes[IR_MAX_RANK], p = node_int(n, "p", 2);
	if (!node_want(n, 1, 1))
		return false;
	if (p < 1)
		return node_error(n, "p is %" PRId64, p);
	int count = spatial_axes(n->in[0], axes);
	n->out[0] = lp_norm(n->b, n->in[0], p, count, axes);
	return true;
}

/* LpNormalization: x divided by its norm; rows of zeros stay zeros. */
bool import_lp_normalization(Node *n)
{
	int64_t p = node_int(n, "p", 2);
	if (!node_want(n, 1, 1))
		return false;
	Value *x = n->in[0];
	int axis = node_axis(n, node_int(n, "axis", -1), x->type.rank);
	if (axis < 0 || p < 1)
		return axis < 0 ? false : node_error(n, "p is %" PRId64, p);
	Value *norm = lp_norm(n->b, x, p, 1, &(int64_t){axis}), *zero = emit_float(n->b, x, 0);
	Value *empty = ir_emit2(n->b, OP_EQ, norm, zero);
	n->out[0] = emit_div(n->b, x, ir_emit3(n->b, OP_WHERE, empty, emit_float(n->b, x, 1), norm));
	return true;
}
