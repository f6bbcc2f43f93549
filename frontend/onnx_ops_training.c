/* frontend/onnx_ops_training.c: ai.onnx.preview.training: optimizers as ops.
 *
 * They compute one update of tensors that a graph has as inputs, as the standard defines it; how shardc trains is not
 * up to them (--optimizer).  A graph in which onnxruntime-training has written out backward and update is no model to
 * train, and the message for its ops says so. */
#include "frontend/onnx_import.h"

#include <string.h>

/* The operands behind rate and step: n_groups tensors of each kind, all of one kind before the next. */
enum { RATE, STEP, FIRST };

static bool groups(Node *n, int kinds, int results, int *count)
{
	int rest = n->n_in - FIRST;
	*count = rest / kinds;
	if (rest < kinds || rest % kinds || n->n_out > results * *count)
		return node_error(n, "%d operands and %d results: rate, step and %d for each tensor are wanted, and at most %d "
			"results for each", n->n_in, n->n_out, kinds, results);
	for (int i = 0; i < n->n_in; i++)
		if (!node_in(n, i))
			return node_error(n, "operand %d is missing", i);
	if (type_numel(&n->in[RATE]->type) != 1 || type_numel(&n->in[STEP]->type) != 1)
		return node_error(n, "rate %s and step %s are not one number each", type_str(n->im->arena, &n->in[RATE]->type),
			type_str(n->im->arena, &n->in[STEP]->type));
	for (int i = FIRST; i < n->n_in; i++)
		if (!type_equal(&n->in[i]->type, &n->in[FIRST + (i - FIRST) % *count]->type)
				|| !dtype_is_float(n->in[i]->type.dtype))
			return node_error(n, "operand %d is %s, its tensor %s", i, type_str(n->im->arena, &n->in[i]->type),
				type_str(n->im->arena, &n->in[FIRST + (i - FIRST) % *count]->type));
	return true;
}

static Value *operand(const Node *n, int kind, int count, int i)
{
	return n->in[FIRST + kind * count + i];
}

static Value *number(Node *n, int i, DType t)
{
	return ir_cast(n->b, ir_reshape(n->b, n->in[i], 0, NULL), t);
}

/* The gradient of the loss with norm_coefficient / 2 times the squared norm of x. */
static Value *regularized(Node *n, Value *x, Value *g)
{
	double norm = node_float(n, "norm_coefficient", 0);
	return norm == 0 ? g : emit_add(n->b, emit_scale(n->b, x, norm), g);
}

static Value *square(Builder *b, Value *x)
{
	return emit_mul(b, x, x);
}

/* x / (sqrt h + epsilon) */
static Value *over_root(Node *n, Value *x, Value *h)
{
	return emit_div(n->b, x, emit_shift(n->b, ir_emit1(n->b, OP_SQRT, h), node_float(n, "epsilon", 1e-6)));
}

bool import_adagrad(Node *n)
{
	enum { X, G, H, KINDS };
	int count;
	Builder *b = n->b;
	if (!groups(n, KINDS, 2, &count))
		return false;
	Value *decay = emit_shift(b, emit_scale(b, number(n, STEP, DT_F64), node_float(n, "decay_factor", 0)), 1);
	Value *rate = emit_div(b, number(n, RATE, DT_F64), decay);
	for (int i = 0; i < count; i++) {
		Value *x = operand(n, X, count, i), *g = regularized(n, x, operand(n, G, count, i));
		Value *h = emit_add(b, operand(n, H, count, i), square(b, g));
		Value *step = emit_mul(b, ir_cast(b, rate, x->type.dtype), over_root(n, g, h));
		n->out[i] = emit_sub(b, x, step);
		if (count + i < n->n_out)
			n->out[count + i] = h;
	}
	return true;
}

/* rate sqrt(1 - beta^t) / (1 - alpha^t), rate where t is 0; in f64, where 1 - beta^t keeps its digits. */
static Value *adam_rate(Node *n, double alpha, double beta)
{
	Builder *b = n->b;
	Value *t = number(n, STEP, DT_F64), *rate = number(n, RATE, DT_F64), *one = emit_float(b, t, 1);
	Value *started = ir_emit2(b, OP_GT, t, emit_float(b, t, 0));
	Value *power = ir_emit3(b, OP_WHERE, started, t, one); /* where t is 0 the result is not used */
	Value *first = emit_sub(b, one, ir_emit2(b, OP_POW, emit_float(b, t, alpha), power));
	Value *second = emit_sub(b, one, ir_emit2(b, OP_POW, emit_float(b, t, beta), power));
	Value *corrected = emit_div(b, emit_mul(b, rate, ir_emit1(b, OP_SQRT, second)), first);
	return ir_emit3(b, OP_WHERE, started, corrected, rate);
}

bool import_adam(Node *n)
{
	enum { X, G, V, H, KINDS };
	int count;
	Builder *b = n->b;
	double alpha = node_float(n, "alpha", (double)0.9f), beta = node_float(n, "beta", (double)0.999f);
	if (!groups(n, KINDS, 3, &count))
		return false;
	Value *rate = adam_rate(n, alpha, beta);
	for (int i = 0; i < count; i++) {
		Value *x = operand(n, X, count, i), *g = regularized(n, x, operand(n, G, count, i));
		Value *v = emit_add(b, emit_scale(b, operand(n, V, count, i), alpha), emit_scale(b, g, 1 - alpha));
		Value *h = emit_add(b, emit_scale(b, operand(n, H, count, i), beta), emit_scale(b, square(b, g), 1 - beta));
		Value *now = emit_sub(b, x, emit_mul(b, ir_cast(b, rate, x->type.dtype), over_root(n, v, h)));
		n->out[i] = emit_scale(b, now, 1 - node_float(n, "norm_coefficient_post", 0));
		if (count + i < n->n_out)
			n->out[count + i] = v;
		if (2 * count + i < n->n_out)
			n->out[2 * count + i] = h;
	}
	return true;
}

bool import_momentum(Node *n)
{
	enum { X, G, V, KINDS };
	int count;
	Builder *b = n->b;
	double alpha = node_float(n, "alpha", 0), beta = node_float(n, "beta", 1);
	const char *mode = node_str(n, "mode", "");
	bool nesterov = !strcmp(mode, "nesterov");
	if (!nesterov && strcmp(mode, "standard") != 0)
		return node_error(n, "mode is \"%s\", neither standard nor nesterov", mode);
	if (!node_has(n, "alpha") || !node_has(n, "beta"))
		return node_error(n, "it lacks alpha or beta");
	if (!groups(n, KINDS, 2, &count))
		return false;
	for (int i = 0; i < count; i++) {
		Value *x = operand(n, X, count, i), *g = regularized(n, x, operand(n, G, count, i));
		Value *t = number(n, STEP, x->type.dtype), *zero = emit_float(b, x, 0);
		Value *weight = ir_emit3(b, OP_WHERE, ir_emit2(b, OP_GT, t, zero), emit_float(b, x, beta), emit_float(b, x, 1));
		Value *v = emit_add(b, emit_scale(b, operand(n, V, count, i), alpha), emit_mul(b, weight, g));
		Value *step = nesterov ? emit_add(b, g, emit_scale(b, v, alpha)) : v;
		n->out[i] = emit_sub(b, x, emit_mul(b, number(n, RATE, x->type.dtype), step));
		if (count + i < n->n_out)
			n->out[count + i] = v;
	}
	return true;
}

/* ---- the domain ---- */

bool training_domain(const char *domain)
{
	return !strcmp(domain, "ai.onnx.preview.training");
}

bool training_artifact(const char *domain, const char *op)
{
	static const char *const written[] = {"SoftmaxCrossEntropyLossInternal", "InPlaceAccumulator",
		"InPlaceAccumulatorV2", "AdamWOptimizer", "SGDOptimizerV2", "AdamOptimizer", "LambOptimizer", "ReduceAllL2",
		"ClipGradNorm", "YieldOp", "RecordEvent", "PassThrough", "ConcatTraining", "SplitTraining"};
	size_t n = strlen(op);
	bool found = n > 4 && !strcmp(op + n - 4, "Grad");
	for (int i = 0; i < COUNT_OF(written); i++)
		found = found || !strcmp(op, written[i]);
	return found && !strcmp(domain, "com.microsoft");
}
