/* ir/verify_grads.c: the part of the verifier of schedules that follows a gradient in one run: it is begun, written,
 * collected, reduced (or carried to the next micro-batch) and read by the update, whose parameters may be broadcast. */
#include "ir/verify_plan.h"

#include <stdlib.h>
#include <string.h>

/* ---- gradients ---- */

static GradRegion *grad_region(Plan *p, const Op *op)
{
	int64_t slot = attr_get_int(op->attrs, "slot", -1);
	if (!attr_find(op->attrs, "slot"))
		return &p->slot[p->m->n_units + op->unit->index];
	if (slot >= 0 && slot < p->m->n_units)
		return &p->slot[slot];
	plan_fail(p, "slot-number", op, "there is no gradient slot %lld: %d units can use slots 0 to %d",
		(long long)slot, p->m->n_units, p->m->n_units - 1);
	return &p->slot[p->m->n_units + op->unit->index];
}

/* Whether the life of a flat gradient is over: after its reduce or, where the reduce leaves the sum in the flat,
 * after the last op that reads it there. */
static bool grad_is_free(Plan *p, const GradRegion *g)
{
	return g->phase == GRAD_FREE || (g->phase == GRAD_REDUCING && plan_is_over(p, g->reduce) && !g->readers);
}

static void zero_gaps(Plan *p, const Op *op)
{
	UnitLife *u = &p->unit[op->unit->index];
	GradRegion *g = grad_region(p, op);
	plan_check_variant(p, op, (ir_sums_flats(p->m) && ir_goes_on(p->m)) == (op->kind == OP_CARRIED_GRAD), "carry-grad");
	if (ir_sums_flats(p->m) && attr_find(op->attrs, "slot"))
		plan_fail(p, "carry-grad", op, "the gradient of unit %s is carried over micro-batches and lies in a slot",
			op->unit->name);
	if (u->zeroed)
		plan_fail(p, "zero-gaps", op, "the gradient of unit %s is begun twice in a step", op->unit->name);
	if (!grad_is_free(p, g))
		plan_fail(p, "gradient-slot", g->reduce ? g->reduce : op, "the gradient of unit %s is begun in memory "
			"where that of unit %s is not reduced yet", op->unit->name, g->unit->name);
	*g = (GradRegion){.phase = GRAD_OPEN, .unit = op->unit};
	for (int i = 0; i < op->unit->n_params; i++)
		p->wrote[op->unit->index][i] = NULL;
	u->zeroed = op;
	u->grad = g;
}

static bool is_grad(const Value *x)
{
	return x && x->type.kind == TYPE_TENSOR && x->place.region == REGION_GRAD && x->place.unit;
}

/* The region of the unit's gradient if it still holds it, else NULL. */
static GradRegion *grad_of(Plan *p, const Unit *u)
{
	GradRegion *g = p->unit[u->index].grad;
	return g && g->unit == u ? g : NULL;
}

/* The value whose place x takes over by being added to it; NULL = none.  memory_check proves that it is there. */
static const Value *sum_at(const Value *x)
{
	const Value *sum = op_sum(x->op);
	if (!sum)
		return NULL;
	const Place *a = &x->place, *b = &sum->place;
	return a->region == b->region && a->unit == b->unit && a->flat == b->flat && a->offset == b->offset ? sum : NULL;
}

/* If an earlier sum was taken over, gradients must be added to it; otherwise they are written. */
static void check_sum(Plan *p, const Op *op, const Value *x)
{
	bool sums = p->unit[x->place.unit->index].zeroed->kind == OP_CARRIED_GRAD, adds = op->kind == OP_ACCUMULATE;
	if (adds != sums && !sum_at(x))
		plan_fail(p, "contribution", op, "%%%s %s", x->name, adds ? "is added to a flat gradient that holds no sum"
			: "overwrites the sum of the micro-batches before");
}

static int compare_places(const void *a, const void *b)
{
	const GradPlace *x = a, *y = b;
	if (x->flat != y->flat)
		return x->flat < y->flat ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The places of the unit's gradients.  Frozen parameters have none, and those without elements are not written;
 * both get flat -1, where no gradient lies. */
static const GradPlace *places_of(Plan *p, const Unit *u)
{
	GradPlace *at = p->place[u->index];
	if (at)
		return at;
	at = p->place[u->index] = NEW_N(p->arena, GradPlace, u->n_params + 1);
	for (int i = 0; i < u->n_params; i++) {
		const Symbol *s = u->params[i];
		bool written = s->trainable && type_numel(&s->type);
		at[i] = (GradPlace){written ? s->flat : -1, s->offset * dtype_info[u->flat[s->flat].grad].bytes, i};
	}
	qsort(at, (size_t)u->n_params, sizeof(*at), compare_places);
	return at;
}

static void note_written(Plan *p, const Value *x)
{
	const Unit *u = x->place.unit;
	const GradPlace *at = places_of(p, u), want = {x->place.flat, x->place.offset, 0};
	int low = 0, high = u->n_params;
	while (low < high) {
		int mid = low + (high - low) / 2;
		if (compare_places(&at[mid], &want) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	int64_t end = want.offset + type_bytes(&x->type); /* several parameters, where their gradients are one product */
	for (; low < u->n_params && at[low].flat == want.flat && at[low].offset < end; low++)
		p->wrote[u->index][at[low].param] = x;
}

void plan_check_grad_places(Plan *p, const Op *op)
{
	if (op_info[op->kind].flags & VIEW || op->kind == OP_COLLECT)
		return;
	for (int i = 0; i < op->n_in; i++) {
		const Value *x = op_in(op, i);
		const GradRegion *g = is_grad(x) ? grad_of(p, x->place.unit) : NULL;
		bool lost = !g || (g->phase == GRAD_REDUCING
			&& (g->reduce->kind == OP_ALL_REDUCE || plan_is_over(p, g->reduce)));
		lost = lost || (g && g->phase == GRAD_LEFT);
		if (is_grad(x) && lost)
			plan_fail(p, "gradient-in-flight", g && g->reduce ? g->reduce : op, "%s reads %%%s in the flat "
				"gradient of unit %s, which the reduce may have overwritten", op_info[op->kind].text,
				x->name, x->place.unit->name);
	}
	for (int i = 0; i < op->n_out; i++) {
		const Value *x = op->out[i];
		const GradRegion *g = is_grad(x) ? grad_of(p, x->place.unit) : NULL;
		if (is_grad(x) && (!g || g->phase != GRAD_OPEN))
			plan_fail(p, "contribution", g && g->reduce ? g->reduce : op, "%%%s is written into the flat "
				"gradient of unit %s %s", x->name, x->place.unit->name, g ? "after its collect" : "before "
				"its zero_gaps");
		else if (is_grad(x))
			check_sum(p, op, x);
		if (is_grad(x))
			note_written(p, x);
	}
}

static bool is_sum_of(const Op *accumulate, const Symbol *s)
{
	const Symbol *first = accumulate->sym;
	int64_t member = s->member - first->member;
	return s->unit == first->unit && member >= 0 && member < op_n_params(accumulate);
}

/* A gradient that lies elsewhere is copied into the flat, and an absent one is zeroed.  Neither may overwrite what
 * was written there before or, with several micro-batches, the sum of earlier ones. */
static void check_collected(Plan *p, const Op *op)
{
	const UnitLife *u = &p->unit[op->unit->index];
	bool sums = u->zeroed && u->zeroed->kind == OP_CARRIED_GRAD;
	int at = 0, n = 0;
	for (int i = 0; i < op->unit->n_params; i++) {
		const Symbol *sym = op->unit->params[i];
		const Value *x = sym->trainable && at < op->n_in ? op_in(op, at) : NULL, *wrote = p->wrote[op->unit->index][i];
		at += sym->trainable;
		if (!type_numel(&sym->type) && !sums)
			continue;
		x = x ? plan_root(x) : NULL;
		const Value *first = x;
		while (first && sum_at(first))
			first = sum_at(first);
		n += first && first->op->kind == OP_ACCUMULATE && first->op->sym == sym;
		if (wrote ? x != wrote : x && is_grad(x))
			plan_fail(p, "contribution", op, "the gradient of \"%s\" that is collected, %s%s, is not what is "
				"written at its place",
				sym->name, x ? "%" : "none", x ? x->name : "");
		else if (sums && x && (first->op->kind == OP_ACCUMULATE ? !is_sum_of(first->op, sym) : !wrote))
			plan_fail(p, "contribution", op, "what is collected for \"%s\", %%%s, is not its sum and would "
				"overwrite that of the "
				"micro-batches before", sym->name, x->name);
	}
	if (sums && n != u->sums)
		plan_fail(p, "contribution", op, "%d sums of unit %s are collected, %d gradients are added to sums", n,
			op->unit->name,
			u->sums);
}

static void collect(Plan *p, const Op *op)
{
	UnitLife *u = &p->unit[op->unit->index];
	GradRegion *g = grad_of(p, op->unit);
	if (u->collect)
		plan_fail(p, "collect-once", op, "the gradients of unit %s are collected twice in a step",
			op->unit->name);
	else if (!g || g->phase != GRAD_OPEN)
		plan_fail(p, "zero-gaps", op, "the gaps of the gradient of unit %s are not zeroed before it is "
			"collected", op->unit->name);
	else
		g->phase = GRAD_COLLECTED;
	check_collected(p, op);
	u->collect = op;
	u->collected_at = p->at;
}

/* Ends a gradient by passing it on; this takes the place of the reduce. */
static void carry_grad(Plan *p, const Op *op)
{
	UnitLife *u = &p->unit[op->unit->index];
	GradRegion *g = grad_of(p, op->unit);
	plan_check_variant(p, op, ir_sums_flats(p->m) && !ir_ends_step(p->m), "carry-grad");
	if (op_in(op, 0)->op != u->collect || !g || g->phase != GRAD_COLLECTED)
		plan_fail(p, "reduce-collected", op, "what is carried is not the collected gradient of unit %s",
			op->unit->name);
	else
		g->phase = GRAD_LEFT;
	if (u->left)
		plan_fail(p, "reduce-once", op, "the gradient of unit %s is carried twice", op->unit->name);
	u->left = op;
}

/* ---- reduces ---- */

static OpKind reduce_kind(const Op *op)
{
	static const OpKind kind[] = {[REDUCE_TO_SHARDS] = OP_REDUCE_SCATTER, [REDUCE_TO_ALL] = OP_ALL_REDUCE,
		[REDUCE_TO_OWNER] = OP_REDUCE};
	return kind[plan_strategy(op)->reduce];
}

static void check_reduce_op(Plan *p, const Op *op, const char *want)
{
	if (strcmp(attr_get_str(op->attrs, "op", ""), want))
		plan_fail(p, "reduce-op", op, "%s of unit %s (%s) wants op=\"%s\"", op_info[op->kind].text,
			op->unit->name, plan_strategy(op)->text, want);
	bool adds = ir_sums_reduced(p->m) && ir_goes_on(p->m) && op_in(op, 0)->type.kind == TYPE_FLAT;
	if (attr_get_int(op->attrs, "add", 0) != adds)
		plan_fail(p, "reduce-op", op, "%s of unit %s %s in micro-batch %s, sync=%s", op_info[op->kind].text,
			op->unit->name,
			adds ? "has to be added to what is kept" : "has nothing to be added to", variant_text[p->m->variant],
			sync_text[p->m->sync]);
}

/* Whether the reduced gradient stays in the flat. */
static bool stays_in_flat(const Plan *p, const Op *reduce)
{
	return reduce->kind == OP_ALL_REDUCE && !ir_sums_reduced(p->m);
}

static void check_root(Plan *p, const Op *op)
{
	if (attr_get_int(op->attrs, "root", -1) != op->unit->owner)
		plan_fail(p, "owner", op, "unit %s is owned by rank %d, this %s has root %lld", op->unit->name,
			op->unit->owner, op_info[op->kind].text, (long long)attr_get_int(op->attrs, "root", -1));
}

/* With hybrid_shard: sums the shards of all groups; must follow the reduce_scatter on the same stream. */
static void reduce_across(Plan *p, const Op *op)
{
	UnitLife *u = &p->unit[op->unit->index];
	const Op *wait = op_in(op, 0)->op;
	if (plan_strategy(op)->group != GROUP_SHARD)
		plan_fail(p, "strategy", op, "shards of unit %s (%s) are held once: there is nothing to all_reduce",
			op->unit->name, plan_strategy(op)->text);
	if (u->across)
		plan_fail(p, "reduce-once", op, "the gradient of unit %s is all_reduced twice in a step",
			op->unit->name);
	if (wait->kind != OP_WAIT || plan_waited(wait) != u->reduce)
		plan_fail(p, "reduce-order", op, "the shard of unit %s that is all_reduced is not that of its "
			"reduce_scatter", op->unit->name);
	plan_check_variant(p, op, ir_ends_step(p->m), "reduce-once");
	check_reduce_op(p, op, "mean");
	u->across = op;
}

/* The number of ops that read what an in-place collective leaves in the flat. */
static int readers_of(const Op *reduce)
{
	int n = 0;
	for (const Use *w = reduce->out[0]->uses; w; w = w->next)
		n += w->op->kind == OP_WAIT && w->op->n_out ? w->op->out[0]->n_uses : 0;
	return n;
}

static void reduce_flat(Plan *p, const Op *op)
{
	UnitLife *u = &p->unit[op->unit->index];
	GradRegion *g = grad_of(p, op->unit);
	if (op->kind != reduce_kind(op))
		plan_fail(p, "strategy", op, "gradients of unit %s (%s) are reduced by %s, not by %s", op->unit->name,
			plan_strategy(op)->text, op_info[reduce_kind(op)].text, op_info[op->kind].text);
	if (!plan_is_trained(op->unit))
		plan_fail(p, "strategy", op, "unit %s is not trained: it has no gradient", op->unit->name);
	if (u->reduce)
		plan_fail(p, "reduce-once", op, "the gradient of unit %s is reduced twice in a step", op->unit->name);
	if (op_in(op, 0)->op != u->collect || !g || g->phase != GRAD_COLLECTED)
		plan_fail(p, "reduce-collected", op, "what is reduced is not the collected gradient of unit %s",
			op->unit->name);
	else if (p->reached[RT_STREAM_REDUCE] <= u->collected_at)
		plan_fail(p, "reduce-waits", op, "%s of unit %s may start before the last contribution to its gradient "
			"is written: no event behind its collect", op_info[op->kind].text, op->unit->name);
	plan_check_variant(p, op, !ir_sums_flats(p->m) || ir_ends_step(p->m), "reduce-once");
	check_reduce_op(p, op, plan_strategy(op)->group == GROUP_SHARD ? "sum" : "mean");
	if (op->kind == OP_REDUCE)
		check_root(p, op);
	u->reduce = op;
	if (g)
		*g = (GradRegion){GRAD_REDUCING, op->unit, op, p->early ? 1 : stays_in_flat(p, op) ? readers_of(op) : 0};
}

static void check_reduce(Plan *p, const Op *op)
{
	if (op->kind == OP_ALL_REDUCE && op_in(op, 0)->type.kind == TYPE_SHARD)
		reduce_across(p, op);
	else
		reduce_flat(p, op);
}

/* ---- update ---- */

/* Checks that sumsq and update_shard read the result of the unit's last reduce. */
static void read_reduced(Plan *p, const Op *op, const Value *x)
{
	const Unit *unit = x->type.unit;
	const UnitLife *u = &p->unit[unit->index];
	const Op *last = strategy_info[unit->strategy].group == GROUP_SHARD ? u->across : u->reduce;
	if (!last || x->op->kind != OP_WAIT || plan_waited(x->op) != last) {
		plan_fail(p, "reduced-read", last ? last : op, "%s reads a gradient of unit %s that is not the result "
			"of its last reduce", op_info[op->kind].text, unit->name);
		return;
	}
	GradRegion *g = grad_of(p, unit);
	if (g && g->readers)
		g->readers -= !p->early || op->kind == OP_UPDATE_SHARD;
	else if (p->early || (stays_in_flat(p, last) && x->type.kind == TYPE_FLAT))
		plan_fail(p, "gradient-slot", last, "%s reads the gradient of unit %s after another one was begun in "
			"its memory", op_info[op->kind].text, unit->name);
}

static void update(Plan *p, const Op *op)
{
	UnitLife *u = &p->unit[op->unit->index];
	plan_check_variant(p, op, ir_ends_step(p->m) && !(p->early && p->m->sync), "update-once");
	if (u->update)
		plan_fail(p, "update-once", op, "unit %s is updated twice in a step", op->unit->name);
	if (!p->step_scalars)
		plan_fail(p, "update-scalars", op, "unit %s is updated before step_scalars knows the step's scalars",
			op->unit->name);
	if (p->early && u->readable)
		plan_fail(p, "update-after-reads", op, "the update of unit %s overwrites parameters that are still gathered: "
			"it is not resharded before", op->unit->name);
	if (u->gather && !plan_is_over(p, u->gather))
		plan_fail(p, "update-after-gather", u->gather, "the update of unit %s may overwrite parameters that "
			"this gather still reads: it is not waited for before", op->unit->name);
	u->update = op;
	u->updated_at = p->at;
}

static void broadcast(Plan *p, const Op *op)
{
	UnitLife *u = &p->unit[op->unit->index];
	if (!plan_strategy(op)->owned)
		plan_fail(p, "strategy", op, "unit %s (%s) has no owner that could broadcast it", op->unit->name,
			plan_strategy(op)->text);
	if (u->broadcast)
		plan_fail(p, "broadcast-once", op, "unit %s is broadcast twice in a step", op->unit->name);
	if (!u->update || p->reached[RT_STREAM_GATHER] <= u->updated_at)
		plan_fail(p, "broadcast-after-update", op, "the broadcast of unit %s may start before its update has "
			"written the parameters", op->unit->name);
	check_root(p, op);
	u->broadcast = op;
}

void plan_run_grad(Plan *p, const Op *op)
{
	switch (op->kind) {
	case OP_ZERO_GAPS: case OP_CARRIED_GRAD: zero_gaps(p, op); break;
	case OP_CARRY_GRAD: carry_grad(p, op); break;
	case OP_ACCUMULATE: p->unit[op->sym->unit->index].sums++; break;
	case OP_COLLECT: collect(p, op); break;
	case OP_REDUCE_SCATTER: case OP_ALL_REDUCE: case OP_REDUCE: check_reduce(p, op); break;
	case OP_BROADCAST_FLAT: broadcast(p, op); break;
	case OP_SUMSQ:
		for (int i = 0; i < op->n_in; i++)
			read_reduced(p, op, op_in(op, i));
		break;
	case OP_UPDATE_SHARD:
		read_reduced(p, op, op_in(op, 0));
		update(p, op);
		break;
	default: break;
	}
}
