/* frontend/onnx_ops_loss.c: SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss.
 *
 * The sum and the mean of softmax cross-entropy are the op cross_entropy.  Losses per element, and losses of given
 * log-probabilities, gather the label's log-probability instead. */
#include "frontend/onnx_import.h"

#include <string.h>

typedef struct LossArgs {
	Value *scores, *labels, *weights; /* labels are i64 */
	const char *reduction;
	bool ignores;
	int64_t ignore;
} LossArgs;

static bool loss_args(Node *n, LossArgs *a)
{
	if (!node_want(n, 2, 3))
		return false;
	a->scores = n->in[0];
	a->labels = ir_cast(n->b, n->in[1], DT_I64);
	a->weights = node_in(n, 2);
	a->reduction = node_str(n, "reduction", "mean");
	a->ignores = node_has(n, "ignore_index");
	a->ignore = node_int(n, "ignore_index", -100);
	if (strcmp(a->reduction, "none") && strcmp(a->reduction, "sum") && strcmp(a->reduction, "mean"))
		return node_error(n, "reduction \"%s\" is unknown", a->reduction);
	if (type_same_shape(&a->scores->type, &a->labels->type))
		return node_error(n, "labels of the scores' shape %s are probabilities, of which the exporter made class "
			"numbers: write -(target * log_softmax(scores, 1)).sum(1).mean(), or export the scores alone",
			type_str(n->im->arena, &a->scores->type));
	if (a->scores->type.rank < 2 || a->labels->type.rank != a->scores->type.rank - 1)
		return node_error(n, "scores %s and labels %s do not fit", type_str(n->im->arena, &a->scores->type),
			type_str(n->im->arena, &a->labels->type));
	return true;
}

static Value *sum_all(Builder *b, Value *x)
{
	int64_t axes[IR_MAX_RANK];
	for (int i = 0; i < x->type.rank; i++)
		axes[i] = i;
	return x->type.rank ? ir_reduce(b, OP_REDUCE_SUM, x, x->type.rank, axes, false) : x;
}

/* Losses -logp[label] * weight[label], with classes on axis 1; elements with the ignored label give 0. */
static void gathered_loss(Node *n, const LossArgs *a, Value *logp, bool reduce_none)
{
	Builder *b = n->b;
	Value *labels = a->labels, *zero = emit_float(b, logp, 0), *valid = NULL, *w = NULL;
	int64_t dim[IR_MAX_RANK];
	if (a->ignores) {
		valid = ir_emit1(b, OP_NOT, ir_emit2(b, OP_EQ, labels, ir_const_int(b, DT_I64, a->ignore)));
		labels = ir_emit3(b, OP_WHERE, valid, labels, ir_const_int(b, DT_I64, 0));
	}
	memcpy(dim, logp->type.dim, sizeof(dim));
	dim[1] = 1;
	Value *at = ir_reshape(b, labels, logp->type.rank, dim);
	Value *picked = ir_emit(b, OP_GATHER_ELEMENTS, 2, (Value *[]){logp, at}, attr_int(b->m, NULL, "axis", 1));
	Value *loss = ir_emit1(b, OP_NEG, ir_reshape(b, picked, labels->type.rank, labels->type.dim));
	if (a->weights)
		w = ir_emit(b, OP_GATHER, 2, (Value *[]){a->weights, labels}, attr_int(b->m, NULL, "axis", 0));
	if (valid)
		w = ir_emit3(b, OP_WHERE, valid, w ? w : emit_float(b, logp, 1), zero);
	if (w)
		loss = emit_mul(b, loss, w);
	if (valid)
		loss = ir_emit3(b, OP_WHERE, valid, loss, zero);
	if (!reduce_none) {
		double count = (double)type_numel(&labels->type);
		Value *total = w ? sum_all(b, ir_broadcast(b, w, &loss->type)) : emit_float(b, logp, count);
		loss = sum_all(b, loss);
		if (!strcmp(a->reduction, "mean"))
			loss = emit_div(b, loss, total);
	}
	n->out[0] = loss;
}

bool import_nll_loss(Node *n)
{
	LossArgs a;
	if (!loss_args(n, &a))
		return false;
	gathered_loss(n, &a, a.scores, !strcmp(a.reduction, "none"));
	return true;
}

bool import_softmax_cross_entropy(Node *n)
{
	LossArgs a;
	Builder *b = n->b;
	if (!loss_args(n, &a))
		return false;
	bool none = !strcmp(a.reduction, "none");
	Value *logp = none || n->n_out > 1 ? emit_softmax(b, OP_LOG_SOFTMAX, a.scores, 1) : NULL;
	if (n->n_out > 1)
		n->out[1] = logp;
	if (none) {
		gathered_loss(n, &a, logp, true);
		return true;
	}
	Value *last = emit_move_axis(b, a.scores, 1, a.scores->type.rank - 1);
	Attr *attrs = attr_float(b->m, attr_int(b->m, NULL, "ignore_index", a.ignore), "smoothing", 0);
	const Op *op = ir_emit_op(b, OP_CROSS_ENTROPY, 3, (Value *[]){last, a.labels, a.weights}, attrs, NULL);
	if (!op)
		return false;
	Value *loss = strcmp(a.reduction, "mean") ? op->out[0] : emit_div(b, op->out[0], op->out[1]);
	n->out[0] = ir_cast(b, loss, a.scores->type.dtype);
	return true;
}
