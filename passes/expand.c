/* passes/expand.c: replaces batch norm by statistics and elementwise ops.
 *
 * The statistics are the only reductions; the rest is two multiply-adds with per-channel vectors, which fuse with
 * the relu or the addition behind them.  Readers of the norm's statistics (the running averages in buffers) read
 * those of bn_stats instead.
 *
 * With --bn-sync=sync the statistics of a training step are those of all ranks' batches: all_reduce_moments follows
 * bn_stats, and in backward all_reduce_means follows bn_grad_stats.  dx uses these means, because the loss is
 * summed over ranks and so dx needs sums over all elements divided by their number.  The gradients of scale and
 * shift stay the rank's own here; they are reduced with all others.  eval never synchronises. */
#include "passes/passes.h"

#include <string.h>

/* x op v for every channel, in the dtype of v [C]. */
static Value *with_channels(Builder *b, const Op *op, OpKind kind, Value *x, Value *v)
{
	bool last = x->type.rank == 2 || attr_get_int(op->attrs, "layout", 0);
	int64_t dim[IR_MAX_RANK];
	for (int i = 0; i < x->type.rank; i++)
		dim[i] = i == 1 ? x->type.dim[1] : 1;
	x = ir_cast(b, x, v->type.dtype);
	return ir_emit2(b, kind, x, last ? v : ir_reshape(b, v, x->type.rank, dim));
}

/* 1 / sqrt(var + eps) */
static Value *inverse_deviation(Builder *b, const Op *op, Value *var)
{
	Value *eps = ir_const_float(b, var->type.dtype, attr_get_float(op->attrs, "eps", 0));
	return ir_emit1(b, OP_RSQRT, ir_emit2(b, OP_ADD, var, eps));
}

/* y = x s + t, s = w rstd, t = b - mean s */
Value *expand_normalize(Builder *b, const Op *op, Value *mean, Value *var)
{
	Value *x = op_in(op, 0);
	DType dtype = mean->type.dtype;
	Value *w = ir_cast(b, op_in(op, 1), dtype), *bias = ir_cast(b, op_in(op, 2), dtype);
	Value *s = ir_emit2(b, OP_MUL, w, inverse_deviation(b, op, var));
	Value *t = ir_emit2(b, OP_SUB, bias, ir_emit2(b, OP_MUL, mean, s));
	Value *y = with_channels(b, op, OP_ADD, with_channels(b, op, OP_MUL, x, s), t);
	y = ir_cast(b, y, x->type.dtype);
	ir_rename(b->m, y, op->out[0]->name);
	return y;
}

static Attr *layout_of(Module *m, const Op *op)
{
	return attr_int(m, NULL, "layout", attr_get_int(op->attrs, "layout", 0));
}

static void replace(Module *m, Op *op, Value *const *now)
{
	for (int i = 0; i < op->n_out; i++)
		ir_replace_uses(op->out[i], now[i]);
	ir_remove(m, op);
}

/* The number of elements of one channel in this rank's batch. */
static int64_t channel_elements(const Op *op, const Value *x)
{
	int64_t channels = type_numel(&op->out[1]->type);
	return channels ? type_numel(&x->type) / channels : 0;
}

/* Backward reads the biased variance; running averages read the unbiased one, which is larger by n / (n-1). */
static void give_variance(Value *old, Value *var, Value *running)
{
	while (old->uses) {
		Op *user = old->uses->op;
		for (int i = 0; i < user->n_in; i++)
			if (op_in(user, i) == old)
				ir_set_in(user, i, user->kind == OP_BATCH_NORM_GRAD ? var : running);
	}
}

static void expand_forward(Module *m, Op *op, bool sync)
{
	Builder b = {.m = m, .section = op->section, .before = op, .loc = op->loc};
	Op *stats = ir_emit_op(&b, OP_BN_STATS, 1, (Value *[]){op_in(op, 0)}, layout_of(m, op), NULL);
	if (sync) {
		int64_t n = attr_get_int(op->attrs, "unbiased", 0) ? channel_elements(op, op_in(op, 0)) : 0;
		stats = ir_emit_op(&b, OP_ALL_REDUCE_MOMENTS, 2, stats->out, attr_int(m, NULL, "n", n), NULL);
		give_variance(op->out[2], stats->out[1], stats->out[2]);
	}
	Value *mean = stats->out[0], *var = stats->out[1];
	replace(m, op, (Value *[]){expand_normalize(&b, op, mean, var), mean, var});
}

/* S1 = sum dy, S2 = sum dy xhat over the n elements of a channel;  db = S1, dw = S2,
 * dx = dy a + x k + t,  a = w rstd, k = -a rstd S2 / n, t = -a S1 / n - k mean */
static void expand_gradient(Module *m, Op *op, bool sync)
{
	Value *dy = op_in(op, 0), *x = op_in(op, 1), *w = op_in(op, 2), *mean = op_in(op, 3), *var = op_in(op, 4);
	Builder bd = {.m = m, .section = op->section, .before = op, .loc = op->loc}, *b = &bd;
	double eps = attr_get_float(op->attrs, "eps", 0);
	double n = (double)type_numel(&x->type) / (double)type_numel(&w->type);
	Op *stats = ir_emit_op(b, OP_BN_GRAD_STATS, 4, (Value *[]){dy, x, mean, var},
		attr_float(m, layout_of(m, op), "eps", eps), NULL);
	DType dtype = stats->out[0]->type.dtype;
	Value *now[3] = {op->out[0]};
	now[1] = ir_cast(b, stats->out[1], w->type.dtype);
	now[2] = ir_cast(b, stats->out[0], w->type.dtype);
	if (op->out[0]->n_uses) {
		if (sync)
			stats = ir_emit_op(b, OP_ALL_REDUCE_MEANS, 2, stats->out, NULL, NULL);
		Value *rstd = inverse_deviation(b, op, var);
		Value *a = ir_emit2(b, OP_MUL, ir_cast(b, w, dtype), rstd);
		Value *share = ir_emit2(b, OP_MUL, a, ir_const_float(b, a->type.dtype, -1 / n));
		Value *k = ir_emit2(b, OP_MUL, ir_emit2(b, OP_MUL, share, rstd), stats->out[1]);
		Value *t = ir_emit2(b, OP_MUL, share, stats->out[0]);
		t = ir_emit2(b, OP_SUB, t, ir_emit2(b, OP_MUL, k, mean));
		Value *from_dy = with_channels(b, op, OP_MUL, dy, a);
		Value *from_x = with_channels(b, op, OP_MUL, x, k);
		Value *sum = with_channels(b, op, OP_ADD, ir_emit2(b, OP_ADD, from_dy, from_x), t);
		now[0] = ir_cast(b, sum, x->type.dtype);
		ir_rename(m, now[0], op->out[0]->name);
	}
	replace(m, op, now);
}

bool pass_expand(Module *m, const Options *o, Diag *d)
{
	bool sync = o->graph.bn_sync == BN_SYNC_SYNC, used = false;
	for (int s = 0; s < SEC_COUNT; s++) {
		IR_FOR_OPS_SAFE(m, s, op) {
			used = used || (op->kind == OP_BATCH_NORM && s != SEC_EVAL);
			if (op->kind == OP_BATCH_NORM)
				expand_forward(m, op, sync && s != SEC_EVAL);
			else if (op->kind == OP_BATCH_NORM_GRAD)
				expand_gradient(m, op, sync);
		}
	}
	if (sync && !used)
		diag_warn(d, "--bn-sync", "no batch norm takes the statistics of its batch in training: it is not used");
	return true;
}
