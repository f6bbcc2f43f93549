/* frontend/onnx_ops_fused.c: what onnxruntime's optimizers fuse, of the domain com.microsoft, without attention.
 *
 * Each becomes the ops that its parts would have become, so that an optimised model is the same program. */
#include "frontend/onnx_blocks.h"

#include <inttypes.h>
#include <string.h>

static const char *text_of(const Node *n, const Value *v)
{
	return type_str(n->im->arena, &v->type);
}

/* x + y; x itself where y is absent. */
static Value *add_optional(Builder *b, Value *x, Value *y)
{
	return y ? emit_add(b, x, y) : x;
}

/* ---- activations ---- */

static Value *gelu(Builder *b, Value *x, bool tanh_form)
{
	return ir_emit(b, OP_GELU, 1, &x, attr_int(b->m, NULL, "tanh", tanh_form));
}

bool import_ms_gelu(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	n->out[0] = gelu(n->b, n->in[0], false);
	return true;
}

bool import_ms_bias_gelu(Node *n)
{
	if (!node_want(n, 2, 2))
		return false;
	n->out[0] = gelu(n->b, emit_add(n->b, n->in[0], n->in[1]), false);
	return true;
}

bool import_ms_fast_gelu(Node *n)
{
	if (!node_want(n, 1, 2))
		return false;
	n->out[0] = gelu(n->b, add_optional(n->b, n->in[0], node_in(n, 1)), true);
	return true;
}

bool import_ms_quick_gelu(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	n->out[0] = emit_swish(n->b, n->in[0], node_float(n, "alpha", 1.702));
	return true;
}

/* The left half of x + bias times gelu of the right half. */
bool import_ms_bias_split_gelu(Node *n)
{
	if (!node_want(n, 2, 2))
		return false;
	Value *x = emit_add(n->b, n->in[0], n->in[1]);
	int last = x->type.rank - 1;
	if (last < 0 || x->type.dim[last] % 2)
		return node_error(n, "its last dimension is not even: %s", text_of(n, x));
	int64_t half = x->type.dim[last] / 2;
	Value *left = emit_slice(n->b, x, last, 0, half, 1), *right = emit_slice(n->b, x, last, half, half, 1);
	n->out[0] = emit_mul(n->b, left, gelu(n->b, right, false));
	return true;
}

/* The activation that the node's attribute `activation` names, of its result v; params: its numbers, alpha and beta. */
static Value *activation(Node *n, Value *v, int n_params, const float *params)
{
	const char *name = node_str(n, "activation", "");
	double alpha = n_params > 0 ? (double)params[0] : 0, beta = n_params > 1 ? (double)params[1] : 0;
	static const struct { const char *name; OpKind kind; } plain[] = {{"Relu", OP_RELU}, {"Tanh", OP_TANH},
		{"Sigmoid", OP_SIGMOID}, {"Softplus", OP_SOFTPLUS}, {"Gelu", OP_GELU}};
	for (int i = 0; i < COUNT_OF(plain); i++)
		if (!strcmp(name, plain[i].name))
			return plain[i].kind == OP_GELU ? gelu(n->b, v, false) : ir_emit1(n->b, plain[i].kind, v);
	if (!strcmp(name, "LeakyRelu"))
		return emit_positive_or(n->b, v, emit_scale(n->b, v, n_params ? alpha : 0.01));
	if (!strcmp(name, "Clip") && n_params == 2)
		return emit_clip(n->b, v, alpha, beta);
	if (!strcmp(name, "HardSigmoid") && n_params == 2)
		return emit_clip(n->b, emit_shift(n->b, emit_scale(n->b, v, alpha), beta), 0, 1);
	if (*name)
		node_refuse(n, "its activation \"%s\" with %d parameter(s) is not supported: save the model at "
			"ORT_ENABLE_BASIC",
			name, n_params);
	return *name ? NULL : v;
}

/* ---- norms ---- */

/* Norm of input + skip (+ bias), whose sum is result 3.  The bias is the last operand;
 * an rms norm has no beta in front of it. */
static bool skip_norm(Node *n, OpKind kind)
{
	bool layer = kind == OP_LAYER_NORM;
	if (!node_want(n, 3, layer ? 5 : 4))
		return false;
	Value *beta = layer ? node_in(n, 3) : NULL, *bias = node_in(n, layer ? 4 : 3);
	bool of_skip = n->in[1]->op->kind == OP_MATMUL; /* the bias goes to the product, of which it was a part */
	Value *s = emit_add(n->b, add_optional(n->b, n->in[of_skip], bias), n->in[!of_skip]);
	if (!s->op || !type_equal(&s->type, &n->in[0]->type))
		return !s->op ? false : node_error(n, "skip is %s, which does not broadcast to input, %s", text_of(n, n->in[1]),
			text_of(n, n->in[0]));
	const Op *op = node_norm(n, kind, s, n->in[2], beta, s->type.rank - 1, node_float(n, "epsilon", 1e-12));
	if (!op)
		return false;
	n->out[0] = op->out[0];
	for (int i = 1; layer && i < 3 && i < n->n_out; i++)
		n->out[i] = op->out[i];
	if (!layer && n->n_out > 2)
		n->out[2] = op->out[1];
	if (n->n_out > 3)
		n->out[3] = s;
	return true;
}

bool import_ms_skip_layer_norm(Node *n)
{
	return skip_norm(n, OP_LAYER_NORM);
}

bool import_ms_skip_rms_norm(Node *n)
{
	return skip_norm(n, OP_RMS_NORM);
}

/* Channels last by default; activation: 1 is silu. */
static bool group_norm(Node *n, Value *x)
{
	int64_t act = node_int(n, "activation", 0), last = node_int(n, "channels_last", 1);
	int rank = x->type.rank;
	if (rank < 3 || act < 0 || act > 1)
		return node_error(n, "wants rank 3 or more and activation 0 or 1, has %s and %" PRId64, text_of(n, x), act);
	Value *y = emit_group_norm(n, last ? emit_move_axis(n->b, x, rank - 1, 1) : x, n->in[1], n->in[2],
		node_int(n, "groups", 0));
	if (!y || !y->op)
		return false;
	y = act ? ir_emit1(n->b, OP_SILU, y) : y;
	n->out[0] = last ? emit_move_axis(n->b, y, 1, rank - 1) : y;
	return true;
}

bool import_ms_group_norm(Node *n)
{
	return node_want(n, 3, 3) && group_norm(n, n->in[0]);
}

/* x + skip + bias comes first and is result 1; skip may be a vector for each sample. */
bool import_ms_skip_group_norm(Node *n)
{
	if (!node_want(n, 4, 5))
		return false;
	Value *x = n->in[0], *skip = n->in[3], *bias = node_in(n, 4);
	bool last = node_int(n, "channels_last", 1);
	int64_t dim[IR_MAX_RANK];
	if (skip->type.rank == 2 && x->type.rank > 2) {
		for (int i = 0; i < x->type.rank; i++)
			dim[i] = i == 0 ? skip->type.dim[0] : i == (last ? x->type.rank - 1 : 1) ? skip->type.dim[1] : 1;
		skip = ir_reshape(n->b, skip, x->type.rank, dim);
	}
	for (int i = 0; bias && !last && i < x->type.rank - 1; i++)
		dim[i] = i ? 1 : type_numel(&bias->type);
	if (bias && !last)
		bias = ir_reshape(n->b, bias, x->type.rank - 1, dim);
	x = add_optional(n->b, emit_add(n->b, x, skip), bias);
	if (!x->op || !group_norm(n, x))
		return false;
	if (n->n_out > 1)
		n->out[1] = x;
	return true;
}

/* ---- embeddings ---- */

static Value *lookup(Node *n, Value *table, Value *ids)
{
	return ir_emit(n->b, OP_GATHER, 2, (Value *[]){table, ids}, attr_int(n->b->m, NULL, "axis", 0));
}

/* How many ones each row of a mask [B,S] has, as onnxruntime counts them; zeros without a mask. */
static Value *mask_index(Node *n, Value *mask, int64_t batch)
{
	if (!mask)
		return ir_const_full(n->b, type_tensor(DT_I32, 1, &batch), 0);
	Value *ones = ir_emit2(n->b, OP_EQ, mask, ir_const_int(n->b, mask->type.dtype, 1));
	return ir_reduce(n->b, OP_REDUCE_SUM, ir_cast(n->b, ones, DT_I32), 1, (int64_t[]){1}, false);
}

bool import_ms_embed_layer_norm(Node *n)
{
	if (n->n_in < 7 || !n->in[0] || !n->in[2] || !n->in[3] || !n->in[5] || !n->in[6] || n->n_in > 9)
		return node_error(n, "wants ids, words, positions, gamma and beta, and at most 9 operands");
	Value *ids = n->in[0], *mask = node_in(n, 7), *places = node_in(n, 8), *positions = n->in[3];
	if (ids->type.rank != 2 || positions->type.rank != 2 || (mask && mask->type.rank != 2))
		return node_error(n, "ids, positions and mask must have rank 2: %s, %s", text_of(n, ids), text_of(n,
			positions));
	if (!n->in[1] != !n->in[4])
		return node_error(n, "segment_ids and segment_embedding must come together");
	if (!places && ids->type.dim[1] > positions->type.dim[0])
		return node_error(n, "%s needs more than the %" PRId64 " positions of the table", text_of(n, ids),
			positions->type.dim[0]);
	positions = places ? lookup(n, positions, places) : emit_slice(n->b, positions, 0, 0, ids->type.dim[1], 1);
	Value *s = emit_add(n->b, lookup(n, n->in[2], ids), positions);
	if (n->in[1])
		s = emit_add(n->b, s, lookup(n, n->in[4], n->in[1]));
	const Op *op = s->op ? node_norm(n, OP_LAYER_NORM, s, n->in[5], n->in[6], 2, node_float(n, "epsilon", 1e-12))
		: NULL;
	if (!op)
		return false;
	n->out[0] = op->out[0];
	if (n->n_out > 1)
		n->out[1] = mask_index(n, mask, ids->type.dim[0]);
	if (n->n_out > 2)
		n->out[2] = s;
	return true;
}

/* ---- sums and softmax ---- */

bool import_ms_bias_add(Node *n)
{
	if (!node_want(n, 3, 3))
		return false;
	n->out[0] = emit_add(n->b, emit_add(n->b, n->in[0], n->in[1]), n->in[2]);
	return true;
}

bool import_ms_bias_softmax(Node *n)
{
	if (!node_want(n, 2, 2))
		return false;
	Value *x = n->in[0], *s = emit_add(n->b, x, n->in[1]);
	int axis = node_axis(n, node_int(n, "axis", 1), x->type.rank);
	if (axis < 0 || !s->op)
		return false;
	if (!type_equal(&s->type, &x->type))
		return node_error(n, "the bias, %s, does not broadcast to %s", text_of(n, n->in[1]), text_of(n, x));
	int64_t dim[2] = {1, 1};
	for (int i = 0; i < x->type.rank; i++)
		dim[i >= axis] *= x->type.dim[i];
	s = axis == x->type.rank - 1 ? emit_softmax(n->b, OP_SOFTMAX, s, axis)
		: emit_softmax(n->b, OP_SOFTMAX, ir_reshape(n->b, s, 2, dim), 1);
	n->out[0] = ir_reshape(n->b, s, x->type.rank, x->type.dim);
	return true;
}

/* ---- products ---- */

/* Moves dim 0 behind the batch dims, which is what transBatch undoes: [M,b..,K] -> [b..,M,K]. */
static Value *batch_first(Builder *b, Value *x)
{
	return x->type.rank > 2 ? emit_move_axis(b, x, 0, x->type.rank - 2) : x;
}

static Value *fused_product(Node *n)
{
	if (!node_want(n, 2, 2))
		return NULL;
	Value *x = n->in[0], *y = n->in[1];
	if (x->type.rank < 2 || y->type.rank < 2)
		return import_matmul(n) ? emit_scale(n->b, n->out[0], node_float(n, "alpha", 1)) : NULL;
	x = node_int(n, "transBatchA", 0) ? batch_first(n->b, x) : x;
	y = node_int(n, "transBatchB", 0) ? batch_first(n->b, y) : y;
	x = emit_matmul(n->b, x, y, NULL, node_int(n, "transA", 0) != 0, node_int(n, "transB", 0) != 0);
	return emit_scale(n->b, x, node_float(n, "alpha", 1));
}

bool import_ms_fused_matmul(Node *n)
{
	n->out[0] = fused_product(n);
	return n->out[0] && n->out[0]->op;
}

static bool activate_scalars(Node *n, Value *v)
{
	static const char *const names[] = {"activation_alpha", "activation_beta"};
	float params[2];
	int count = 0;
	while (count < 2 && node_has(n, names[count])) {
		params[count] = (float)node_float(n, names[count], 0);
		count++;
	}
	n->out[0] = v && v->op ? activation(n, v, count, params) : NULL;
	return n->out[0] != NULL;
}

bool import_ms_fused_matmul_activation(Node *n)
{
	return activate_scalars(n, fused_product(n));
}

bool import_ms_fused_gemm(Node *n)
{
	return import_gemm(n) && activate_scalars(n, n->out[0]);
}

/* ---- convolutions ---- */

/* Operand 3 is added before the activation. */
bool import_ms_fused_conv(Node *n)
{
	Value *sum = node_in(n, 3);
	const Onnx__AttributeProto *params = node_attr(n, "activation_params");
	if (n->n_in > 4)
		return node_error(n, "%d operands, at most 4 wanted", n->n_in);
	n->n_in = MIN(n->n_in, 3);
	while (n->n_in && !n->in[n->n_in - 1])
		n->n_in--;
	if (!import_conv(n) || !n->out[0]->op)
		return false;
	Value *y = add_optional(n->b, n->out[0], sum);
	n->out[0] = y->op ? activation(n, y, params ? (int)params->n_floats : 0, params ? params->floats : NULL) : NULL;
	return n->out[0] != NULL;
}

/* x is [N,..,C] and w [O,..,I/group]. */
bool import_ms_nhwc_conv(Node *n)
{
	if (!node_want(n, 2, 3))
		return false;
	int rank = n->in[0]->type.rank;
	if (rank < 3 || n->in[1]->type.rank != rank)
		return node_error(n, "wants operands of one rank, 3 or more: %s, %s", text_of(n, n->in[0]), text_of(n,
			n->in[1]));
	for (int i = 0; i < 2; i++)
		n->in[i] = emit_move_axis(n->b, n->in[i], rank - 1, 1);
	if (!import_conv(n) || !n->out[0]->op)
		return false;
	n->out[0] = emit_move_axis(n->b, n->out[0], 1, rank - 1);
	return true;
}
