/* frontend/onnx_ops_norm.c: normalisation.
 *
 * Batch norm in training is the op batch_norm followed by writes of its running statistics.  The op's attributes mean
 * and var name these buffers, so that evaluation can be derived from it.  Frozen batch norm becomes elementwise ops.
 * Instance and group norm become layer norms of a reshaped tensor. */
#include "frontend/onnx_blocks.h"

#include <inttypes.h>
#include <string.h>

/* Reshapes v of shape [C] so that it broadcasts to x of shape [N,C,...]. */
static Value *per_channel(Builder *b, Value *v, const Value *x)
{
	int64_t dim[IR_MAX_RANK];
	int rank = MAX(x->type.rank - 1, 1);
	for (int i = 0; i < rank; i++)
		dim[i] = i ? 1 : type_numel(&v->type);
	return ir_reshape(b, v, rank, dim);
}

/* ---- batch norm ---- */

static Value *frozen_norm(Node *n, double eps)
{
	Builder *b = n->b;
	Value *x = n->in[0], *mean = per_channel(b, n->in[3], x), *var = per_channel(b, n->in[4], x);
	Value *scale = emit_mul(b, per_channel(b, n->in[1], x),
		ir_emit1(b, OP_RSQRT, emit_shift(b, ir_cast(b, var, x->type.dtype), eps)));
	Value *centred = emit_sub(b, x, ir_cast(b, mean, x->type.dtype));
	return emit_add(b, emit_mul(b, centred, scale), per_channel(b, n->in[2], x));
}

static const Symbol *buffer_of(const Value *v)
{
	return v->op->kind == OP_READ && v->op->sym->kind == SYM_BUFFER ? v->op->sym : NULL;
}

/* Running statistics as ONNX defines them: new = momentum * old + (1 - momentum) * the statistics of this batch. */
static Value *running(Node *n, Value *old, Value *now, double momentum)
{
	now = ir_cast(n->b, now, old->type.dtype);
	return emit_add(n->b, emit_scale(n->b, old, momentum), emit_scale(n->b, now, 1 - momentum));
}

/* The statistic as last written: a module that is called again continues from what its first call wrote. */
static Value *latest(const Node *n, Value *v)
{
	Value *now = buffer_of(v) ? ptrmap_get(n->im->written, v->op->sym) : NULL;
	return now ? now : v;
}

static void write_running(Node *n, const Value *old, Value *now)
{
	const Symbol *s = buffer_of(old);
	if (!s)
		return;
	n->b->sym = old->op->sym;
	ir_emit(n->b, OP_WRITE, 1, &now, NULL);
	ptrmap_put(n->im->written, s, now);
}

void norms_end(Import *im)
{
	for (Op *op = im->m->last[SEC_FORWARD], *before; op; op = before) {
		before = op->prev;
		if (op->kind == OP_WRITE && ptrmap_get(im->written, op->sym) != op_in(op, 0))
			ir_remove(im->m, op);
	}
}

static bool training_norm(Node *n, double eps)
{
	Builder *b = n->b;
	const Type *x = &n->in[0]->type;
	double momentum = node_float(n, "momentum", 0.9);
	int64_t count = x->rank > 1 && x->dim[1] ? type_numel(x) / x->dim[1] : 0;
	const Symbol *mean = buffer_of(n->in[3]), *var = buffer_of(n->in[4]);
	Attr *a = attr_int(b->m, attr_float(b->m, NULL, "eps", eps), "layout", 0);
	if (mean && var)
		a = attr_str(b->m, attr_str(b->m, a, "mean", mean->name), "var", var->name);
	bool unbiased = n->im->pytorch && !n->im->o->graph.bn_biased && !n->im->o->infer && count > 0;
	if (unbiased)
		a = attr_int(b->m, a, "unbiased", 1);
	const Op *op = ir_emit_op(b, OP_BATCH_NORM, 3, n->in, a, NULL);
	if (!op)
		return false;
	Value *spread = unbiased && count > 1 ? emit_scale(b, op->out[2], (double)count / (double)(count - 1)) : op->out[2];
	Value *new_mean = running(n, latest(n, n->in[3]), op->out[1], momentum);
	Value *new_var = running(n, latest(n, n->in[4]), spread, momentum);
	n->out[0] = op->out[0];
	if (!n->im->o->infer) {
		write_running(n, n->in[3], new_mean);
		write_running(n, n->in[4], new_var);
	}
	if (n->n_out > 1)
		n->out[1] = new_mean;
	if (n->n_out > 2)
		n->out[2] = new_var;
	return true;
}

bool import_batch_norm(Node *n)
{
	double eps = node_float(n, "epsilon", 1e-5);
	if (!node_want(n, 5, 5))
		return false;
	if (n->in[0]->type.rank < 2)
		return node_error(n, "wants rank 2 or more, has %s", type_str(n->im->arena, &n->in[0]->type));
	if (n->opset < 9 && !node_int(n, "spatial", 1))
		return node_refuse(n, "spatial=0 is not supported");
	bool says = n->opset >= 14 ? node_int(n, "training_mode", 0) : n->opset < 7 ? !node_int(n, "is_test", 0)
		: n->n_out > 1;
	if (modes_norm_trains(n, says))
		return training_norm(n, eps);
	n->out[0] = frozen_norm(n, eps);
	for (int i = 1; i < n->n_out && i < 3; i++)
		n->out[i] = n->in[2 + i];
	return true;
}

/* ---- layer norms ---- */

Op *node_norm(Node *n, OpKind kind, Value *x, Value *w, Value *b, int axis, double eps)
{
	Attr *a = attr_float(n->b->m, attr_int(n->b->m, NULL, "axis", axis), "eps", eps);
	return ir_emit_op(n->b, kind, kind == OP_LAYER_NORM ? 3 : 2, (Value *[]){x, w, b}, a, NULL);
}

static bool is_tail(const Value *v, const Value *x, int axis)
{
	bool same = v->type.rank == x->type.rank - axis;
	for (int i = 0; same && i < v->type.rank; i++)
		same = v->type.dim[i] == x->type.dim[axis + i];
	return same;
}

/* A norm with scale and shift.  If their shape is not that of the normalised dims, they become elementwise ops after
 * it. */
static bool affine_norm(Node *n, OpKind kind)
{
	if (!node_want(n, kind == OP_LAYER_NORM ? 2 : 1, kind == OP_LAYER_NORM ? 3 : 2))
		return false;
	Value *x = n->in[0], *w = node_in(n, 1), *b = node_in(n, 2);
	int axis = node_axis(n, node_int(n, "axis", -1), x->type.rank);
	if (axis < 0)
		return false;
	bool inside = (!w || is_tail(w, x, axis)) && (!b || is_tail(b, x, axis)) && (w || !b);
	const Op *op = node_norm(n, kind, x, inside ? w : NULL, inside ? b : NULL, axis, node_float(n, "epsilon", 1e-5));
	if (!op)
		return false;
	Value *y = op->out[0];
	if (!inside && w)
		y = emit_mul(n->b, y, w);
	if (!inside && b)
		y = emit_add(n->b, y, b);
	n->out[0] = y;
	for (int i = 1; i < n->n_out && i < op->n_out && kind == OP_LAYER_NORM; i++)
		n->out[i] = op->out[i];
	return true;
}

bool import_layer_norm(Node *n)
{
	return affine_norm(n, OP_LAYER_NORM);
}

bool import_rms_norm(Node *n)
{
	return affine_norm(n, OP_RMS_NORM);
}

/* Reshapes x to [N, groups, rest], normalises each group, and restores x's shape. */
static Value *normalise_groups(Node *n, Value *x, int64_t groups)
{
	int64_t dim[3] = {x->type.dim[0], groups, 1};
	dim[2] = dim[0] && groups ? type_numel(&x->type) / (dim[0] * groups) : 0;
	const Op *op = node_norm(n, OP_LAYER_NORM, ir_reshape(n->b, x, 3, dim), NULL, NULL, 2,
		node_float(n, "epsilon", 1e-5));
	return op ? op->out[0] : &n->im->m->poison;
}

bool import_instance_norm(Node *n)
{
	if (!node_want(n, 3, 3))
		return false;
	Value *x = n->in[0];
	if (x->type.rank < 3)
		return node_error(n, "wants rank 3 or more, has %s", type_str(n->im->arena, &x->type));
	Value *y = normalise_groups(n, x, x->type.dim[1]);
	y = ir_reshape(n->b, y, x->type.rank, x->type.dim);
	n->out[0] = emit_add(n->b, emit_mul(n->b, y, per_channel(n->b, n->in[1], x)), per_channel(n->b, n->in[2], x));
	return true;
}

Value *emit_group_norm(Node *n, Value *x, Value *w, Value *b, int64_t groups)
{
	if (x->type.rank < 2 || groups < 1 || groups > x->type.dim[1] || x->type.dim[1] % groups) {
		node_error(n, "%" PRId64 " groups do not divide the channels of %s", groups,
			type_str(n->im->arena, &x->type));
		return NULL;
	}
	Value *y = ir_reshape(n->b, normalise_groups(n, x, groups), x->type.rank, x->type.dim);
	return emit_add(n->b, emit_mul(n->b, y, per_channel(n->b, w, x)), per_channel(n->b, b, x));
}

/* GroupNormalization: scale and shift are per group before opset 21 and per channel since. */
bool import_group_norm(Node *n)
{
	int64_t groups = node_int(n, "num_groups", 0);
	if (!node_want(n, 3, 3))
		return false;
	Value *x = n->in[0], *w = n->in[1], *b = n->in[2];
	if (n->opset >= 21 || x->type.rank < 2 || groups < 1 || groups > x->type.dim[1] || x->type.dim[1] % groups) {
		n->out[0] = emit_group_norm(n, x, w, b, groups);
		return n->out[0] != NULL;
	}
	Value *y = normalise_groups(n, x, groups);
	y = emit_add(n->b, emit_mul(n->b, y, per_channel(n->b, w, y)), per_channel(n->b, b, y));
	n->out[0] = ir_reshape(n->b, y, x->type.rank, x->type.dim);
	return true;
}

/* ---- the rarer ones ---- */

bool import_mean_variance_norm(Node *n)
{
	const int64_t *list = NULL, all[4] = {0, 2, 3, 0};
	int64_t axes[IR_MAX_RANK];
	if (!node_want(n, 1, 1))
		return false;
	Value *x = n->in[0];
	int count = node_ints(n, "axes", &list);
	if (count < 0) {
		list = all;
		count = 3;
	}
	if (count > x->type.rank)
		return node_error(n, "%d axes for rank %d", count, x->type.rank);
	for (int i = 0; i < count; i++) {
		int axis = node_axis(n, list[i], x->type.rank);
		if (axis < 0)
			return false;
		axes[i] = axis;
	}
	Value *centred = emit_sub(n->b, x, ir_reduce(n->b, OP_REDUCE_MEAN, x, count, axes, true));
	Value *var = ir_reduce(n->b, OP_REDUCE_MEAN, emit_mul(n->b, centred, centred), count, axes, true);
	n->out[0] = emit_div(n->b, centred, emit_shift(n->b, ir_emit1(n->b, OP_SQRT, var), 1e-9));
	return true;
}

/* LRN: x / (bias + alpha / size * sum of the squares of `size` channels around it)^beta. */
bool import_lrn(Node *n)
{
	int64_t size = node_int(n, "size", 1), before[IR_MAX_RANK] = {0}, after[IR_MAX_RANK] = {0};
	if (!node_want(n, 1, 1))
		return false;
	Value *x = n->in[0], *sum = NULL;
	if (x->type.rank < 2 || size < 1 || size > 4096)
		return node_error(n, "wants rank 2 or more and a size of 1 to 4096, has %s and %" PRId64,
			type_str(n->im->arena, &x->type), size);
	before[1] = (size - 1) / 2;
	after[1] = size - 1 - before[1];
	Attr *a = attr_ints(n->b->m, NULL, "before", x->type.rank, before);
	a = attr_ints(n->b->m, a, "after", x->type.rank, after);
	a = attr_float(n->b->m, attr_str(n->b->m, a, "mode", "constant"), "value", 0);
	Value *squares = emit_mul(n->b, x, x), *padded = ir_emit(n->b, OP_PAD, 1, &squares, a);
	for (int64_t i = 0; i < size && padded->op; i++) {
		Value *part = emit_slice(n->b, padded, 1, i, x->type.dim[1], 1);
		sum = sum ? emit_add(n->b, sum, part) : part;
	}
	sum = emit_scale(n->b, sum ? sum : padded, node_float(n, "alpha", 1e-4) / (double)size);
	sum = emit_shift(n->b, sum, node_float(n, "bias", 1));
	n->out[0] = emit_div(n->b, x, ir_emit2(n->b, OP_POW, sum, emit_float(n->b, x, node_float(n, "beta", 0.75))));
	return true;
}
