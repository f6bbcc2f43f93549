/* ir/verify_copies.c: checks copies between the memory of a device and that of its host, in one run of a program.
 *
 * A copy (offload, reload) runs on a stream of its own behind all that stands in front of it in the order of compute,
 * and compute follows its end from its `copied` on.  So a run is right if what a copy gives is read through its
 * `copied` alone, which stands in the same run.  That what it reads stays until then, and that nothing else lies where
 * it writes, is a matter of places (passes/memory/check.c). */
#include "ir/verify_plan.h"

static bool is_copy(const Op *op)
{
	return op->kind == OP_OFFLOAD || op->kind == OP_RELOAD;
}

/* The copy whose end op waits for; NULL: op is not such a wait, or a wrong one. */
static const Op *ended_by(const Op *op)
{
	const Op *copy = op->kind == OP_COPIED ? op_in(op, 0)->op : NULL;
	return copy && is_copy(copy) && op_in(copy, 0) == op_in(op, 1) ? copy : NULL;
}

/* The op that gives what x shows, through views of values that are there. */
static const Op *giver_of(const Value *x)
{
	while (op_info[x->op->kind].flags & VIEW && x->op->kind != OP_COPIED && op_in(x->op, 0))
		x = op_in(x->op, 0);
	return x->op;
}

static bool is_on_host(const Op *giver)
{
	const Op *copy = ended_by(giver);
	return copy && copy->kind == OP_OFFLOAD;
}

static void check_operand(Plan *p, const Op *op, int i)
{
	const Value *x = op_in(op, i);
	const Op *giver = giver_of(x), *ends = ended_by(op);
	bool reloads = op->kind == OP_RELOAD || (ends && ends->kind == OP_RELOAD && i == 1);
	if (is_copy(giver) && !(ends && i == 0))
		plan_fail(p, "copy-ended", giver, "%s reads %%%s, and nothing says that this %s has ended by then",
			op_info[op->kind].text, x->name, op_info[giver->kind].text);
	else if (is_on_host(giver) && !(reloads && giver == x->op))
		plan_fail(p, "copy-host", op, "%s reads %%%s, which lies in memory of the host: a reload alone can",
			op_info[op->kind].text, x->name);
}

void plan_run_copy(Plan *p, const Op *op)
{
	const Op *ends = ended_by(op);
	for (int i = 0; i < op->n_in; i++)
		if (op_in(op, i))
			check_operand(p, op, i);
	if (op->kind == OP_COPIED && !ends)
		plan_fail(p, "copy-whole", op, "a copied takes the result of an offload or reload, and what that copies");
	if (op->kind == OP_RELOAD && !is_on_host(op_in(op, 0)->op))
		plan_fail(p, "copy-host", op, "%%%s is reloaded, and no offload has put it into memory of the host",
			op_in(op, 0)->name);
	if (!ends)
		return;
	bool *ended = &p->copied[ends->out[0]->id];
	if (*ended)
		plan_fail(p, "copy-once", ends, "the end of this %s is waited for twice", op_info[ends->kind].text);
	*ended = true;
}

void plan_check_copies(Plan *p)
{
	for (int s = (int)p->first; s <= (int)p->last; s++)
		IR_FOR_OPS(p->m, s, op)
			if (is_copy(op) && !p->copied[op->out[0]->id])
				plan_fail(p, "copy-missing", op, "the end of this %s is never waited for", op_info[op->kind].text);
}
