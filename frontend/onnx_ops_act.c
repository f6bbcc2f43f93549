/* frontend/onnx_ops_act.c: activations, built from elementwise ops where the IR has no op of their own.
 *
 * At a kink each takes the branch whose derivative PyTorch uses there. */
#include "frontend/onnx_blocks.h"

#include <math.h>
#include <string.h>

Value *emit_positive_or(Builder *b, Value *x, Value *other)
{
	return ir_emit3(b, OP_WHERE, ir_emit2(b, OP_GT, x, emit_float(b, x, 0)), x, other);
}

/* e^min(x, 0) - 1.  The minimum keeps it bounded, so that the derivative is finite even where the branch is not
 * taken. */
static Value *expm1_negative(Builder *b, Value *x)
{
	Value *zero = emit_float(b, x, 0);
	Value *low = ir_emit3(b, OP_WHERE, ir_emit2(b, OP_GT, x, zero), zero, x);
	return emit_shift(b, ir_emit1(b, OP_EXP, low), -1);
}

bool import_leaky_relu(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	n->out[0] = emit_positive_or(n->b, n->in[0], emit_scale(n->b, n->in[0], node_float(n, "alpha", 0.01)));
	return true;
}

/* The slope broadcasts to x aligned at the last dim; before opset 7 a vector of slopes has one slope per channel. */
bool import_prelu(Node *n)
{
	if (!node_want(n, 2, 2))
		return false;
	Value *x = n->in[0], *slope = n->in[1];
	int64_t dim[IR_MAX_RANK];
	if (n->opset < 7 && slope->type.rank == 1 && slope->type.dim[0] > 1 && x->type.rank > 1) {
		for (int i = 1; i < x->type.rank; i++)
			dim[i - 1] = i == 1 ? slope->type.dim[0] : 1;
		slope = ir_reshape(n->b, slope, x->type.rank - 1, dim);
	}
	n->out[0] = emit_positive_or(n->b, x, emit_mul(n->b, x, slope));
	return true;
}

bool import_elu(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	Value *low = emit_scale(n->b, expm1_negative(n->b, n->in[0]), node_float(n, "alpha", 1));
	n->out[0] = emit_positive_or(n->b, n->in[0], low);
	return true;
}

bool import_celu(Node *n)
{
	double alpha = node_float(n, "alpha", 1);
	if (!node_want(n, 1, 1))
		return false;
	Value *low = expm1_negative(n->b, emit_div(n->b, n->in[0], emit_float(n->b, n->in[0], alpha)));
	n->out[0] = emit_positive_or(n->b, n->in[0], emit_scale(n->b, low, alpha));
	return true;
}

bool import_selu(Node *n)
{
	double alpha = node_float(n, "alpha", 1.67326319217681884765625);
	double gamma = node_float(n, "gamma", 1.05070102214813232421875);
	if (!node_want(n, 1, 1))
		return false;
	Value *low = emit_scale(n->b, expm1_negative(n->b, n->in[0]), alpha);
	n->out[0] = emit_scale(n->b, emit_positive_or(n->b, n->in[0], low), gamma);
	return true;
}

bool import_thresholded_relu(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	Value *x = n->in[0], *above = ir_emit2(n->b, OP_GT, x, emit_float(n->b, x, node_float(n, "alpha", 1)));
	n->out[0] = ir_emit3(n->b, OP_WHERE, above, x, emit_float(n->b, x, 0));
	return true;
}

Value *emit_clip(Builder *b, Value *x, double lo, double hi)
{
	return ir_emit(b, OP_CLIP, 1, &x, attr_float(b->m, attr_float(b->m, NULL, "lo", lo), "hi", hi));
}

bool import_hard_sigmoid(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	Value *line = emit_scale(n->b, n->in[0], node_float(n, "alpha", 0.2));
	n->out[0] = emit_clip(n->b, emit_shift(n->b, line, node_float(n, "beta", 0.5)), 0, 1);
	return true;
}

bool import_hard_swish(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	Value *line = emit_shift(n->b, emit_scale(n->b, n->in[0], 1.0 / 6), 0.5);
	n->out[0] = emit_mul(n->b, n->in[0], emit_clip(n->b, line, 0, 1));
	return true;
}

bool import_softsign(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	n->out[0] = emit_div(n->b, n->in[0], emit_shift(n->b, ir_emit1(n->b, OP_ABS, n->in[0]), 1));
	return true;
}

bool import_mish(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	n->out[0] = emit_mul(n->b, n->in[0], ir_emit1(n->b, OP_TANH, ir_emit1(n->b, OP_SOFTPLUS, n->in[0])));
	return true;
}

bool import_shrink(Node *n)
{
	double lambd = node_float(n, "lambd", 0.5), bias = node_float(n, "bias", 0);
	if (!node_want(n, 1, 1))
		return false;
	Value *x = n->in[0], *zero = emit_float(n->b, x, 0);
	Value *low = ir_emit2(n->b, OP_LT, x, emit_float(n->b, x, -lambd));
	Value *high = ir_emit2(n->b, OP_GT, x, emit_float(n->b, x, lambd));
	Value *right = ir_emit3(n->b, OP_WHERE, high, emit_shift(n->b, x, -bias), zero);
	n->out[0] = ir_emit3(n->b, OP_WHERE, low, emit_shift(n->b, x, bias), right);
	return true;
}

bool import_gelu(Node *n)
{
	const char *approximate = node_str(n, "approximate", "none");
	bool tanh_form = !strcmp(approximate, "tanh");
	if (!node_want(n, 1, 1))
		return false;
	if (!tanh_form && strcmp(approximate, "none"))
		return node_error(n, "approximate is \"%s\", neither none nor tanh", approximate);
	n->out[0] = ir_emit(n->b, OP_GELU, 1, n->in, attr_int(n->b->m, NULL, "tanh", tanh_form));
	return true;
}

Value *emit_swish(Builder *b, Value *x, double alpha)
{
	if (alpha == 1) /* compared exactly: 1 is the default */
		return ir_emit1(b, OP_SILU, x);
	return emit_mul(b, x, ir_emit1(b, OP_SIGMOID, emit_scale(b, x, alpha)));
}

bool import_swish(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	n->out[0] = emit_swish(n->b, n->in[0], node_float(n, "alpha", 1));
	return true;
}

bool import_swiglu(Node *n)
{
	if (!node_want(n, 2, 2))
		return false;
	n->out[0] = emit_mul(n->b, emit_swish(n->b, n->in[0], node_float(n, "alpha", 1)), n->in[1]);
	return true;
}

/* ---- along an axis ---- */

/* Before opset 13 the axis attribute means all dims from axis on, taken as one dim. */
static Value *flatten_old(Node *n, Value *x, int axis)
{
	int64_t dim[2] = {1, 1};
	for (int i = 0; i < x->type.rank; i++)
		dim[i >= axis] *= x->type.dim[i];
	return ir_reshape(n->b, x, 2, dim);
}

static bool softmax_axis(Node *n, Value **x, int *axis)
{
	bool old = n->opset < 13;
	if (!node_want(n, 1, 1))
		return false;
	*x = n->in[0];
	*axis = node_axis(n, node_int(n, "axis", old ? 1 : -1), (*x)->type.rank);
	if (*axis < 0)
		return false;
	if (old && *axis != (*x)->type.rank - 1) {
		*x = flatten_old(n, *x, *axis);
		*axis = 1;
	}
	return true;
}

bool import_softmax(Node *n)
{
	Value *x;
	int axis;
	if (!softmax_axis(n, &x, &axis))
		return false;
	x = emit_softmax(n->b, n->op[0] == 'L' ? OP_LOG_SOFTMAX : OP_SOFTMAX, x, axis);
	n->out[0] = ir_reshape(n->b, x, n->in[0]->type.rank, n->in[0]->type.dim);
	return true;
}

bool import_hardmax(Node *n)
{
	Value *x;
	int axis;
	if (!softmax_axis(n, &x, &axis))
		return false;
	int64_t dim[IR_MAX_RANK];
	for (int i = 0; i < x->type.rank; i++)
		dim[i] = i == axis ? x->type.dim[i] : 1;
	Attr *a = attr_int(n->b->m, attr_int(n->b->m, NULL, "axis", axis), "last", 0);
	Value *best = ir_emit(n->b, OP_ARGMAX, 1, &x, attr_int(n->b->m, a, "keepdims", 1));
	Value *hit = ir_emit2(n->b, OP_EQ, emit_iota(n->b, DT_I64, x->type.rank, dim, axis, 0, 1), best);
	x = ir_cast(n->b, hit, x->type.dtype);
	n->out[0] = ir_reshape(n->b, x, n->in[0]->type.rank, n->in[0]->type.dim);
	return true;
}
