/* passes/residual.c: moves sums around a norm into the norm, so that a row is read and written once.
 *
 * Requires SHARD, before schedule.  Ensures that a layer or RMS norm of a sum of two tensors of its type takes the
 * second one as its residual, and that the sum becomes one more result of the norm for all other readers; and that
 * when another gradient is added to the gradient of a norm, and nothing else reads that gradient, the op of the
 * norm's gradient adds it itself.  Numbers stay as they are, since both are rounded as the adds were.
 *
 * The fused op stands where the norm stood.  So a sum moves down to the norm only if no op between them reads it,
 * and a gradient that is to be added must be available there already.  Sums that are part of a fused loop stay in
 * the loop. */
#include "passes/passes.h"

static bool is_norm(const Op *op)
{
	return op->kind == OP_LAYER_NORM || op->kind == OP_RMS_NORM;
}

static bool is_norm_grad(const Op *op)
{
	return op->kind == OP_LAYER_NORM_GRAD || op->kind == OP_RMS_NORM_GRAD;
}

/* Whether op adds two tensors of the result's type that stay as they are until they are read further down: nothing
 * writes to them, and they are no part of a unit, which may be gone by then. */
static bool is_plain_add(const Op *op)
{
	for (int i = 0; op->kind == OP_ADD && i < 2; i++) {
		Value *x = op_in(op, i);
		bool stays = x->op->kind != OP_READ && value_root(x)->op->kind != OP_VIEW_OP;
		if (!stays || !type_equal(&x->type, &op->out[0]->type))
			return false;
	}
	return op->kind == OP_ADD;
}

static bool read_before(const Value *v, const Op *end)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (u->op->section == end->section && u->op->order < end->order)
			return true;
	return false;
}

/* op with one operand more, which is the last that its kind takes; op is removed. */
static Op *with_residual(Module *m, Op *op, Value *residual)
{
	int last = op_info[op->kind].n_in_max - 1;
	Value **in = NEW_N(m->arena, Value *, last + 1);
	for (int i = 0; i < op->n_in; i++)
		in[i] = op_in(op, i);
	in[last] = residual;
	Builder b = {.m = m, .section = op->section, .before = op, .loc = op->loc, .name = op->out[0]->name};
	Op *now = ir_emit_op(&b, op->kind, last + 1, in, op->attrs, NULL);
	now->order = op->order;
	for (int i = 0; i < op->n_out; i++) {
		ir_replace_uses(op->out[i], now->out[i]);
		now->out[i]->name = op->out[i]->name; /* it replaces a value that is removed */
	}
	ir_remove(m, op);
	return now;
}

/* norm(x + r) */
static bool take_sum(Module *m, Op *norm)
{
	Op *add = op_in(norm, 0)->op;
	if (op_residual(norm) || !is_plain_add(add) || add->section != norm->section || read_before(add->out[0], norm))
		return false;
	Value *x = op_in(add, 0), *r = op_in(add, 1);
	ir_set_in(norm, 0, x);
	Op *now = with_residual(m, norm, r);
	Value *sum = now->out[now->n_out - 1];
	ir_replace_uses(add->out[0], sum);
	sum->name = add->out[0]->name;
	ir_remove(m, add);
	return true;
}

/* norm_grad(..) + ds */
static bool take_gradient(Module *m, Op *grad)
{
	Value *dx = grad->out[0];
	Op *add = dx->n_uses == 1 ? dx->uses->op : NULL;
	if (op_residual(grad) || !add || !is_plain_add(add) || add->section != grad->section)
		return false;
	Value *ds = op_in(add, op_in(add, 0) == dx);
	if (ds->op->section == grad->section && ds->op->order >= grad->order)
		return false;
	Value *sum = with_residual(m, grad, ds)->out[0];
	ir_replace_uses(add->out[0], sum);
	sum->name = add->out[0]->name;
	ir_remove(m, add);
	return true;
}

bool pass_residual(Module *m, const Options *o, Diag *d)
{
	int n_sums = 0, n_gradients = 0;
	(void)o;
	ir_number(m);
	for (int s = 0; s < SEC_COUNT; s++) {
		IR_FOR_OPS_SAFE(m, s, op)
			n_sums += is_norm(op) && take_sum(m, op);
		for (Op *op = m->last[s], *prev; op; op = prev) { /* backwards: the removed add stands behind */
			prev = op->prev;
			n_gradients += is_norm_grad(op) && take_gradient(m, op);
		}
	}
	if (n_sums + n_gradients)
		diag_info(d, "residual", "%d sums are computed by the norms that read them, %d by gradients of norms", n_sums,
			n_gradients);
	return true;
}
