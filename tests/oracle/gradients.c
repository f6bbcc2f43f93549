/* tests/oracle/gradients.c: what becomes of a flat gradient: begun, collected, reduced, taken by the update. */
#include "tests/oracle/state.h"

#include <string.h>

/* ---- gradients ---- */

void oracle_zero_gaps(Oracle *o, const Op *op)
{
	int64_t slot = attr_get_int(op->attrs, "slot", -1);
	UnitMemory *um = memory_of(o, op->unit);
	Grad *g = slot < 0 ? &um->own_grad : &o->grad_slot[slot];
	/* what is sent may be overwritten once the reduce has ended, even if its own wait stands later */
	if (g->unit && g->stage == STAGE_SENT && !is_early(o))
		memory_of(o, g->unit)->grad = NULL;
	else if (g->unit || um->grad) {
		FAULT(o, op, "begins a gradient where that of %s still lives", (g->unit ? g->unit : op->unit)->name);
		return;
	}
	oracle_touch(o, op, STREAM_COMPUTE, &g->range, true);
	g->unit = op->unit;
	g->stage = STAGE_OPEN;
	g->n = g->left = 0;
	g->mean = false;
	for (int i = 0; i < op->unit->n_params; i++)
		g->wrote[i] = NULL;
	um->grad = g;
}

void oracle_carried_grad(Oracle *o, const Op *op)
{
	UnitMemory *um = memory_of(o, op->unit);
	Grad *g = &um->own_grad;
	if (!g->unit || g->stage != STAGE_LEFT || g->left != o->run - 1) {
		FAULT(o, op, "finds no gradient that the micro-batch before left");
		return;
	}
	oracle_touch(o, op, STREAM_COMPUTE, &g->range, true);
	g->unit = op->unit; /* the same of another module */
	g->stage = STAGE_OPEN;
	g->left = 0;
	for (int i = 0; i < op->unit->n_params; i++)
		g->wrote[i] = NULL;
	um->grad = g;
}

void oracle_carry_grad(Oracle *o, const Op *op)
{
	UnitMemory *um = memory_of(o, op->unit);
	const Ref *ref = &o->ref[op_in(op, 0)->id];
	Grad *g = um->grad;
	if (ref->kind != REF_GRAD || ref->from->unit != op->unit || !g || g->stage != STAGE_COLLECTED) {
		FAULT(o, op, "does not find the unit's collected gradient");
		return;
	}
	if (g != &um->own_grad || ends_step(o))
		FAULT(o, op, "leaves %s to a next micro-batch that does not look there", g->range.name);
	oracle_touch(o, op, STREAM_COMPUTE, &g->range, true);
	g->stage = STAGE_LEFT;
	g->left = o->run;
	g->n++;
	um->grad = NULL;
}

void oracle_end_gradient(Oracle *o, const Op *op, UnitMemory *um)
{
	if (!um->grad)
		return;
	oracle_touch(o, op, STREAM_COMPUTE, &um->grad->range, true);
	um->grad->unit = NULL;
	um->grad = NULL;
}

/* Operands are the gradients of the trainable parameters in order; absent = zero. */
void oracle_collect(Oracle *o, const Op *op)
{
	UnitMemory *um = memory_of(o, op->unit);
	Grad *g = um->grad;
	int at = 0;
	if (!g || g->stage != STAGE_OPEN) {
		FAULT(o, op, "collects %s", g ? "what is collected already" : "a gradient that zero_gaps did not begin");
		return;
	}
	for (int i = 0; i < op->unit->n_params; i++) {
		const Symbol *sym = op->unit->params[i], *none = NULL;
		if (!sym->trainable)
			continue;
		const Value *v = op_in(op, at) ? oracle_root_of(op_in(op, at), &none) : NULL;
		at++;
		if (g->wrote[i] != v)
			FAULT(o, op, "does not find the gradient of \"%s\"", sym->name);
	}
	if (at != op->n_in)
		FAULT(o, op, "takes %d gradients of %d parameters", op->n_in, at);
	oracle_touch(o, op, STREAM_COMPUTE, &g->range, true);
	g->stage = STAGE_COLLECTED;
	o->ref[op->out[0]->id].kind = REF_GRAD;
}

static bool is_mean(const Op *op)
{
	return !strcmp(attr_get_str(op->attrs, "op", ""), "mean");
}

static void reduce_shard_again(Oracle *o, const Op *op, const Ref *ref)
{
	Mine *mine = &memory_of(o, op->unit)->mine;
	if (ref->kind != REF_MINE || ref->from->unit != op->unit)
		FAULT(o, op, "does not take the reduced shard of its unit");
	else if (mine->step != o->steps || mine->reach != REACH_GROUP || (mine->mean && is_mean(op)))
		FAULT(o, op, "reduces a shard that is not this step's sum of its group");
	if (attr_get_int(op->attrs, "add", 0))
		FAULT(o, op, "adds its result to its operand");
	oracle_touch(o, op, RT_STREAM_REDUCE, &mine->range, true);
	mine->reach = REACH_ALL;
	mine->mean |= is_mean(op);
}

/* The result, of n micro-batches, where the rank keeps it: in place of what was there, or added to it. */
static void keep_reduced(Oracle *o, const Op *op, int64_t n)
{
	Mine *mine = &memory_of(o, op->unit)->mine;
	Reach reach = strategy(op->unit)->group == GROUP_SHARD ? REACH_GROUP : REACH_ALL;
	bool adds = attr_get_int(op->attrs, "add", 0);
	if (adds && (mine->step != o->steps || mine->reach != reach || mine->mean != is_mean(op)))
		FAULT(o, op, "adds to what is no such sum of this step's gradients");
	oracle_touch(o, op, RT_STREAM_REDUCE, &mine->range, true);
	mine->n = n + (adds ? mine->n : 0);
	mine->step = o->steps;
	mine->mean = is_mean(op);
	mine->reach = reach;
	if (mine->n != o->micro)
		FAULT(o, op, "keeps the sum of %lld micro-batches, of %lld", (long long)mine->n, (long long)o->micro);
}

void oracle_reduce(Oracle *o, const Op *op)
{
	static const StrategyReduce way[OP_COUNT] = {[OP_REDUCE_SCATTER] = REDUCE_TO_SHARDS,
		[OP_ALL_REDUCE] = REDUCE_TO_ALL, [OP_REDUCE] = REDUCE_TO_OWNER};
	UnitMemory *um = memory_of(o, op->unit);
	Grad *g = um->grad;
	const Ref *ref = &o->ref[op_in(op, 0)->id];
	if (op->kind == OP_ALL_REDUCE && op_in(op, 0)->type.kind == TYPE_SHARD) {
		reduce_shard_again(o, op, ref);
		return;
	}
	if (strategy(op->unit)->reduce != way[op->kind])
		FAULT(o, op, "is not how %s reduces", strategy(op->unit)->text);
	if (op->kind == OP_REDUCE && attr_get_int(op->attrs, "root", -1) != op->unit->owner)
		FAULT(o, op, "reduces to a rank that does not own the unit");
	if (ref->kind != REF_GRAD || ref->from->unit != op->unit || !g || g->stage != STAGE_COLLECTED) {
		FAULT(o, op, "does not find the unit's collected gradient, or reduces it again");
		return;
	}
	bool in_place = op->kind == OP_ALL_REDUCE && !sums_reduced(o);
	oracle_touch(o, op, RT_STREAM_REDUCE, &g->range, in_place);
	g->stage = in_place ? STAGE_REDUCED : STAGE_SENT;
	g->mean = is_mean(op);
	if (!in_place)
		keep_reduced(o, op, g->n + 1);
	else if (g->n + 1 != o->micro || attr_get_int(op->attrs, "add", 0))
		FAULT(o, op, "reduces the sum of %lld micro-batches in its place, of %lld", (long long)g->n + 1,
			(long long)o->micro);
}

/* v must be this step's mean gradient over all ranks. */
static void read_reduced(Oracle *o, const Op *op, const Value *v)
{
	UnitMemory *um = memory_of(o, v->type.unit);
	const Ref *ref = &o->ref[v->id];
	if (ref->kind == REF_MINE) {
		oracle_touch(o, op, STREAM_COMPUTE, &um->mine.range, false);
		if (um->mine.step != o->steps || um->mine.reach != REACH_ALL || !um->mine.mean || um->mine.n != o->micro)
			FAULT(o, op, "reads %%%s, which is not this step's mean gradient of all ranks", v->name);
	} else if (ref->kind == REF_GRAD && um->grad) {
		oracle_touch(o, op, STREAM_COMPUTE, &um->grad->range, false);
		if (um->grad->stage != STAGE_REDUCED || !um->grad->mean)
			FAULT(o, op, "reads %%%s, which is not reduced to the mean of all ranks", v->name);
	} else {
		FAULT(o, op, "reads %%%s, which is no reduced gradient", v->name);
	}
}

/* ---- the update ---- */

void oracle_sumsq(Oracle *o, const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		const Unit *u = op_in(op, i)->type.unit;
		read_reduced(o, op, op_in(op, i));
		if (memory_of(o, u)->summed)
			FAULT(o, op, "counts the gradient of %s twice", u->name);
		memory_of(o, u)->summed = true;
	}
	for (int u = 0; u < o->m->n_units; u++)
		if (o->unit[u].trainable && !o->unit[u].summed)
			FAULT(o, op, "does not count the gradient of %s", o->m->units[u]->name);
}

void oracle_step_scalars(Oracle *o, const Op *op)
{
	o->n_step_scalars++;
	if (!o->n_scalars)
		FAULT(o, op, "runs before the scalars of all ranks are summed");
}

void oracle_update(Oracle *o, const Op *op)
{
	UnitMemory *um = memory_of(o, op->unit);
	if (!o->n_step_scalars || !ends_step(o))
		FAULT(o, op, "runs before step_scalars");
	if (op_in(op, 0)->type.unit != op->unit)
		FAULT(o, op, "takes another unit's gradient");
	read_reduced(o, op, op_in(op, 0));
	oracle_touch(o, op, STREAM_COMPUTE, &um->rest[0].range, true);
	if (um->rest[0].version++ != o->steps)
		FAULT(o, op, "updates the unit twice in a step");
	if (um->open)
		FAULT(o, op, "overwrites parameters of a unit that is still gathered");
	if (is_early(o) ? um->grad != NULL : strategy(op->unit)->reduce == REDUCE_TO_ALL && !sums_reduced(o))
		oracle_end_gradient(o, op, um);
}

void oracle_broadcast(Oracle *o, const Op *op)
{
	Rest *rest = memory_of(o, op->unit)->rest;
	if (!strategy(op->unit)->owned || attr_get_int(op->attrs, "root", -1) != op->unit->owner)
		FAULT(o, op, "does not send from the unit's owner");
	oracle_touch(o, op, RT_STREAM_GATHER, &rest[0].range, false);
	oracle_touch(o, op, RT_STREAM_GATHER, &rest[1].range, true);
	if (rest[1].version == o->steps + 1)
		FAULT(o, op, "sends what all ranks have");
	rest[1].version = rest[0].version;
	if (rest[0].version != o->steps + 1)
		FAULT(o, op, "sends parameters that this step has not updated");
}
