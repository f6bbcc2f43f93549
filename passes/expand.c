/* passes/expand.c: batch norm as statistics plus elementwise ops.
 *
 * The statistics are the only reductions; the rest is two multiply-adds with per-channel vectors, which
 * fuse with the relu or the addition behind it.  Whoever read the statistics (the buffers' running
 * averages) reads those of bn_stats. */
#include "passes/passes.h"

typedef struct Channels {
	Builder b;
	const Type *x;
	bool last; /* channels are the last axis */
} Channels;

/* [C] shaped to broadcast against x. */
static Value *spread(Channels *c, Value *v)
{
	int64_t dim[IR_MAX_RANK];
	if (c->last)
		return v;
	for (int i = 0; i < c->x->rank; i++)
		dim[i] = i == 1 ? c->x->dim[1] : 1;
	return ir_reshape(&c->b, v, c->x->rank, dim);
}

static Channels channels(Module *m, Op *op, const Type *x)
{
	return (Channels){.b = {.m = m, .section = op->section, .before = op, .loc = op->loc}, .x = x,
		.last = attr_get_int(op->attrs, "layout", 0) || x->rank == 2};
}

/* 1 / sqrt(var + eps) */
static Value *inverse_deviation(Builder *b, const Op *op, Value *var)
{
	Value *eps = ir_const_float(b, var->type.dtype, attr_get_float(op->attrs, "eps", 0));
	return ir_emit1(b, OP_RSQRT, ir_emit2(b, OP_ADD, var, eps));
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

/* y = x s + t, s = w rstd, t = b - mean s */
static void expand_forward(Module *m, Op *op)
{
	Value *x = op_in(op, 0);
	Channels c = channels(m, op, &x->type);
	Builder *b = &c.b;
	Op *stats = ir_emit_op(b, OP_BN_STATS, 1, &x, layout_of(m, op), NULL);
	Value *mean = stats->out[0], *var = stats->out[1];
	Value *s = ir_emit2(b, OP_MUL, op_in(op, 1), inverse_deviation(b, op, var));
	Value *t = ir_emit2(b, OP_SUB, op_in(op, 2), ir_emit2(b, OP_MUL, mean, s));
	Value *scaled = ir_emit2(b, OP_MUL, x, spread(&c, s));
	Value *y = ir_emit2(b, OP_ADD, scaled, spread(&c, t));
	replace(m, op, (Value *[]){y, mean, var});
}

/* S1 = sum dy, S2 = sum dy xhat over the n elements of a channel;  db = S1, dw = S2,
 * dx = dy a + x k + t,  a = w rstd, k = -a rstd S2 / n, t = -a S1 / n - k mean */
static void expand_gradient(Module *m, Op *op)
{
	Value *dy = op_in(op, 0), *x = op_in(op, 1), *w = op_in(op, 2), *mean = op_in(op, 3), *var = op_in(op, 4);
	Channels c = channels(m, op, &x->type);
	Builder *b = &c.b;
	double eps = attr_get_float(op->attrs, "eps", 0);
	double n = (double)type_numel(&x->type) / (double)type_numel(&w->type);
	Op *stats = ir_emit_op(b, OP_BN_GRAD_STATS, 4, (Value *[]){dy, x, mean, var},
		attr_float(m, layout_of(m, op), "eps", eps), NULL);
	Value *now[3] = {op->out[0], stats->out[1], stats->out[0]};
	if (op->out[0]->n_uses) {
		Value *rstd = inverse_deviation(b, op, var);
		Value *a = ir_emit2(b, OP_MUL, w, rstd);
		Value *share = ir_emit2(b, OP_MUL, a, ir_const_float(b, a->type.dtype, -1 / n));
		Value *k = ir_emit2(b, OP_MUL, ir_emit2(b, OP_MUL, share, rstd), stats->out[1]);
		Value *t = ir_emit2(b, OP_MUL, share, stats->out[0]);
		t = ir_emit2(b, OP_SUB, t, ir_emit2(b, OP_MUL, k, mean));
		Value *from_dy = ir_emit2(b, OP_MUL, dy, spread(&c, a));
		Value *from_x = ir_emit2(b, OP_MUL, x, spread(&c, k));
		Value *sum = ir_emit2(b, OP_ADD, from_dy, from_x);
		now[0] = ir_emit2(b, OP_ADD, sum, spread(&c, t));
	}
	replace(m, op, now);
}

bool pass_expand(Module *m, const PassOptions *o, Diag *d)
{
	(void)o, (void)d;
	for (int s = 0; s < SEC_COUNT; s++) {
		IR_FOR_OPS_SAFE(m, s, op) {
			if (op->kind == OP_BATCH_NORM)
				expand_forward(m, op);
			else if (op->kind == OP_BATCH_NORM_GRAD)
				expand_gradient(m, op);
		}
	}
	return true;
}
