/* ir/verify_plan.c: verifies the schedule of a PLAN, whichever way it was made.
 *
 * Compute runs its ops in order.  A collective runs on its stream, behind the earlier ones of that stream and
 * behind the last event that it or one of them was given.  Compute follows a collective from its wait on, or from
 * the wait of a later one of the same stream.  Nothing else is assumed; in particular, the position where a
 * collective is issued orders nothing.
 *
 * There are two checks of a program (forward, backward and update, or eval): what holds in each run by itself and,
 * over the runs step, step, eval, eval, step, what a gather may overtake.  This sequence contains every pair of
 * programs that can follow each other.  Only gathers outlast a run; all other collectives are waited for in their
 * own run.  All ranks issue the same collectives in the same order, because no op knows its rank.
 *
 * With several micro-batches (m->sync) each module is verified alone: what the previous one left (carried) is there
 * at its start, what the next one takes must be left at its end, and nothing else is assumed about what ran before.
 *
 * Compute is a line and each stream is a line, so the order of two ops of different lines is a comparison of two
 * positions: the last event that a stream has seen, and the last collective that compute has seen. */
#include "ir/verify_plan.h"

#include <stdlib.h>
#include <string.h>

void plan_fail(Plan *p, const char *rule, const Op *op, const char *fmt, ...)
{
	for (int i = 0; i < p->n; i++)
		if (p->out[i].op == op && !strcmp(p->out[i].rule, rule))
			return;
	if (p->n == p->max)
		return;
	va_list ap;
	va_start(ap, fmt);
	p->out[p->n++] = (PlanViolation){rule, op, arena_vprintf(p->arena, fmt, ap)};
	va_end(ap);
}

static bool is_comm(const Op *op)
{
	return op_info[op->kind].flags & COMM;
}

/* The collective whose end a wait waits for. */
static const Op *waited(const Op *wait)
{
	return wait->n_in && op_in(wait, 0) ? op_in(wait, 0)->op : wait;
}

const Op *plan_blamed(const Op *op)
{
	if (op->kind == OP_WAIT)
		return waited(op);
	bool ends = op->kind == OP_RESHARD || op->kind == OP_CARRY;
	if (ends && op->n_in && op_in(op, 0) && op_in(op, 0)->op->kind == OP_WAIT)
		return waited(op_in(op, 0)->op);
	return op;
}

static Collective *collective_of(Plan *p, const Op *op)
{
	return &p->collective[op->out[0]->id];
}

/* Whether compute, at its current position, follows the end of the collective. */
static bool is_over(Plan *p, const Op *op)
{
	const Collective *c = collective_of(p, op);
	return c->rank && c->rank <= p->ended[c->stream];
}

static const StrategyInfo *strategy_of(const Op *op)
{
	return &strategy_info[op->unit->strategy];
}

static bool is_trained(const Unit *u)
{
	for (int i = 0; i < u->n_flats; i++)
		if (u->flat[i].trainable)
			return true;
	return false;
}

/* ---- order of definition ---- */

static const Value *root_of(const Value *x)
{
	while (op_info[x->op->kind].flags & VIEW && op_in(x->op, 0))
		x = op_in(x->op, 0);
	return x;
}

static void fail_order(Plan *p, const Op *op, const Value *x)
{
	const Value *root = root_of(x);
	const Op *from = plan_blamed(root->op);
	const char *what = op_info[op->kind].text;
	if (x->type.kind == TYPE_EVENT)
		plan_fail(p, "order", plan_blamed(op), "%s stands in front of the record of its event %%%s", what, x->name);
	else if (root->op->kind == OP_WAIT && from->unit)
		plan_fail(p, "read-before-wait", from, "%s reads the result of this %s of unit %s before it is waited "
			"for", what, op_info[from->kind].text, from->unit->name);
	else if (op->kind == OP_WAIT)
		plan_fail(p, "order", from, "%%%s is waited for before it is issued", x->name);
	else if (from->kind == OP_COLLECT && is_comm(op))
		plan_fail(p, "reduce-waits", op, "%s of unit %s is issued before its gradient is collected", what,
			op->unit->name);
	else
		plan_fail(p, "order", is_comm(from) ? from : plan_blamed(op), "%s stands in front of what it reads, %%%s",
			what, x->name);
}

/* What a collective gives or takes may be read only by ops that know such values. */
static void check_kind(Plan *p, const Op *op, const Value *x)
{
	static const OpKind may[] = {OP_WAIT, OP_VIEW_OP, OP_RESHARD, OP_CARRY, OP_CARRY_GRAD, OP_SUMSQ, OP_UPDATE_SHARD};
	if (x->type.kind == TYPE_TENSOR || x->type.kind == TYPE_NONE || is_comm(op))
		return;
	for (int i = 0; i < COUNT_OF(may); i++)
		if (op->kind == may[i])
			return;
	plan_fail(p, "reader", plan_blamed(x->op), "%s reads %%%s, which is not a tensor", op_info[op->kind].text,
		x->name);
}

static void check_order(Plan *p)
{
	for (int s = (int)p->first; s <= (int)p->last; s++)
		IR_FOR_OPS(p->m, s, op) {
			for (int i = 0; i < op->n_in; i++) {
				const Value *x = op_in(op, i);
				if (x && !p->known[x->id])
					fail_order(p, op, x);
				else if (x)
					check_kind(p, op, x);
			}
			for (int i = 0; i < op->n_out; i++)
				p->known[op->out[i]->id] = true;
		}
}

/* Reports an op that the module's position among the micro-batches of a step does not allow. */
static bool check_variant(Plan *p, const Op *op, bool right, const char *rule)
{
	if (!right)
		plan_fail(p, rule, plan_blamed(op), "%s%s%s does not stand in micro-batch %s, sync=%s", op_info[op->kind].text,
			op->unit ? " of unit " : "", op->unit ? op->unit->name : "", variant_text[p->m->variant],
			sync_text[p->m->sync]);
	return right;
}

/* ---- every collective ---- */

static void check_number(Plan *p, const Op *op)
{
	int64_t seq = attr_get_int(op->attrs, "seq", 0);
	const char *stream = attr_get_str(op->attrs, "stream", "none"), *want = stream_info[op_stream(op->kind)].text;
	if (seq != p->seq + 1)
		plan_fail(p, "number", op, "collectives are numbered from 1 in the order of their issue: this one has "
			"number %lld after %lld", (long long)seq, (long long)p->seq);
	if (strcmp(stream, want))
		plan_fail(p, "stream", op, "%s runs on stream %s, this one on %s", op_info[op->kind].text, want, stream);
	p->seq = MIN(seq, INT64_MAX - 1);
}

/* Checks where a collective is issued: there the line of its stream meets that of compute. */
static void issue(Plan *p, const Op *op)
{
	RtStream stream = op_stream(op->kind);
	const Value *x = op->n_in ? op_in(op, op->n_in - 1) : NULL;
	if (x && x->type.kind == TYPE_EVENT)
		p->reached[stream] = MAX(p->reached[stream], p->event[x->id]);
	p->issued[stream]++;
	if (op->n_out && !op_blocks(op->kind))
		*collective_of(p, op) = (Collective){stream, p->issued[stream], NULL};
}

static bool takes_all_of(const Op *op, const Op *from)
{
	bool all = op->n_in == from->n_out;
	for (int i = 0; all && i < op->n_in; i++)
		all = op_in(op, i) == from->out[i];
	return all;
}

static void end_wait(Plan *p, const Op *op)
{
	const Op *from = waited(op);
	if (!is_comm(from) || !takes_all_of(op, from)) {
		plan_fail(p, "wait-whole", from, "a wait takes all results of one collective");
		return;
	}
	Collective *c = collective_of(p, from);
	if (c->wait)
		plan_fail(p, "wait-once", from, "%s of unit %s is waited for twice", op_info[from->kind].text,
			from->unit->name);
	c->wait = op;
	p->ended[c->stream] = MAX(p->ended[c->stream], c->rank);
	if (from->kind != OP_ALL_GATHER)
		return;
	UnitLife *u = &p->unit[from->unit->index];
	if (u->readable)
		plan_fail(p, "two-copies", from, "a second gathered copy of unit %s is waited for before the first is "
			"resharded", from->unit->name);
	u->readable = op;
	for (int i = 0; i < op->n_out; i++)
		p->shown[op->out[i]->id] = op;
}

/* ---- gathered values ---- */

static void begin_gather(Plan *p, const Op *op)
{
	int64_t slot = attr_get_int(op->attrs, "slot", -1);
	if (unit_is_resident(op->unit))
		plan_fail(p, "strategy", op, "unit %s rests whole on every rank (%s): there is nothing to gather",
			op->unit->name, strategy_of(op)->text);
	bool again = ir_is_carried(p->m, op->unit) && p->first != SEC_EVAL && (ir_goes_on(p->m)
		|| p->unit[op->unit->index].gather);
	check_variant(p, op, !again, "carry");
	if (op->n_out != op->unit->n_flats)
		plan_fail(p, "gather-whole", op, "unit %s has %d flats, %d are gathered", op->unit->name,
			op->unit->n_flats, op->n_out);
	if (attr_find(op->attrs, "slot") && (slot < 0 || slot >= p->n_gathers))
		plan_fail(p, "slot-number", op, "there is no slot %lld: %d gathers can use slots 0 to %d",
			(long long)slot, p->n_gathers, p->n_gathers - 1);
	if (op->n_out)
		p->unit[op->unit->index].gather = op;
}

/* Ends a gathered unit, by reshard or by carry into the next micro-batch. */
static void end_gathered(Plan *p, const Op *op)
{
	const Op *wait = op->n_in && op_in(op, 0) ? op_in(op, 0)->op : NULL;
	bool carried = wait && wait->kind == OP_CARRIED;
	if (!wait || (!carried && (wait->kind != OP_WAIT || waited(wait)->kind != OP_ALL_GATHER))
		|| !takes_all_of(op, wait)) {
		plan_fail(p, "reshard-whole", plan_blamed(op), "a %s ends all flats of one gather", op_info[op->kind].text);
		return;
	}
	bool stays = ir_is_carried(p->m, op->unit) && !ir_ends_step(p->m) && p->first != SEC_EVAL;
	if (!check_variant(p, op, stays == (op->kind == OP_CARRY), "carry"))
		return;
	if (stays && !carried && attr_find(waited(wait)->attrs, "slot"))
		plan_fail(p, "carry", waited(wait), "unit %s is carried into the next micro-batch in a slot, not in a "
			"region of its "
			"own", op->unit->name);
	bool *released = &p->released[wait->out[0]->id];
	if (*released)
		plan_fail(p, "reshard-once", carried ? wait : waited(wait), "unit %s is resharded twice after one gather",
			op->unit->name);
	*released = true;
	if (p->unit[op->unit->index].readable == wait)
		p->unit[op->unit->index].readable = NULL;
}

static void check_shown(Plan *p, const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		const Value *x = op_in(op, i);
		const Op *from = x ? p->shown[x->id] : NULL;
		if (op->kind == OP_VIEW_OP && !from)
			plan_fail(p, "reader", op, "parameter \"%s\" is read from %%%s, which is not its unit's gathered "
				"flat", op->sym->name, x ? x->name : "_");
		if (!from || op->kind == OP_RESHARD || op->kind == OP_CARRY)
			continue;
		if (op_info[op->kind].flags & VIEW && i == 0)
			p->shown[op->out[0]->id] = from;
		if (from->kind != OP_RESIDENT && p->released[from->out[0]->id])
			plan_fail(p, "read-after-reshard", plan_blamed(from), "%s%s%s reads unit %s after its reshard",
				op_info[op->kind].text, op->sym ? " of " : "", op->sym ? op->sym->name : "",
				plan_blamed(from)->unit->name);
		if (from->kind == OP_RESIDENT && p->unit[from->unit->index].update)
			plan_fail(p, "read-after-update", p->unit[from->unit->index].update, "%s reads parameters of unit "
				"%s, which its update has overwritten", op_info[op->kind].text, from->unit->name);
	}
}

static void begin_carried(Plan *p, const Op *op)
{
	UnitLife *u = &p->unit[op->unit->index];
	check_variant(p, op, ir_is_carried(p->m, op->unit) && ir_goes_on(p->m) && p->first != SEC_EVAL, "carry");
	if (op->n_out != op->unit->n_flats)
		plan_fail(p, "gather-whole", op, "unit %s has %d flats, %d are carried", op->unit->name,
			op->unit->n_flats, op->n_out);
	if (u->carried)
		plan_fail(p, "two-copies", op, "unit %s is taken up twice", op->unit->name);
	u->readable = u->carried = op;
	for (int i = 0; i < op->n_out; i++)
		p->shown[op->out[i]->id] = op;
}

static void begin_resident(Plan *p, const Op *op)
{
	if (!unit_is_resident(op->unit))
		plan_fail(p, "strategy", op, "unit %s is %s (%s): its parameters are gathered, not resident", op->unit->name,
			strategy_of(op)->group == GROUP_ONE ? "read in another dtype than it rests in" : "split over ranks",
			strategy_of(op)->text);
	for (int i = 0; i < op->n_out; i++)
		p->shown[op->out[i]->id] = op;
}

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
	return g->phase == GRAD_FREE || (g->phase == GRAD_REDUCING && is_over(p, g->reduce) && !g->readers);
}

static void zero_gaps(Plan *p, const Op *op)
{
	UnitLife *u = &p->unit[op->unit->index];
	GradRegion *g = grad_region(p, op);
	check_variant(p, op, (ir_sums_flats(p->m) && ir_goes_on(p->m)) == (op->kind == OP_CARRIED_GRAD), "carry-grad");
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

/* If an earlier sum was taken over, gradients must be added to it; otherwise they are written. */
static void check_sum(Plan *p, const Op *op, const Value *x)
{
	bool sums = p->unit[x->place.unit->index].zeroed->kind == OP_CARRIED_GRAD, adds = op->kind == OP_ACCUMULATE;
	if (adds != sums)
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
	for (; type_numel(&x->type) && low < u->n_params && !compare_places(&at[low], &want); low++)
		p->wrote[u->index][at[low].param] = x;
}

static void check_grad_places(Plan *p, const Op *op)
{
	if (op_info[op->kind].flags & VIEW || op->kind == OP_COLLECT)
		return;
	for (int i = 0; i < op->n_in; i++) {
		const Value *x = op_in(op, i);
		const GradRegion *g = is_grad(x) ? grad_of(p, x->place.unit) : NULL;
		bool lost = !g || (g->phase == GRAD_REDUCING
			&& (g->reduce->kind == OP_ALL_REDUCE || is_over(p, g->reduce)));
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
		x = x ? root_of(x) : NULL;
		n += x && x->op->kind == OP_ACCUMULATE;
		if (wrote ? x != wrote : x && is_grad(x))
			plan_fail(p, "contribution", op, "the gradient of \"%s\" that is collected, %s%s, is not what is "
				"written at its place",
				sym->name, x ? "%" : "none", x ? x->name : "");
		else if (sums && x && (x->op->kind == OP_ACCUMULATE ? x->op->sym != sym : !wrote))
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
	check_variant(p, op, ir_sums_flats(p->m) && !ir_ends_step(p->m), "carry-grad");
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
	return kind[strategy_of(op)->reduce];
}

static void check_reduce_op(Plan *p, const Op *op, const char *want)
{
	if (strcmp(attr_get_str(op->attrs, "op", ""), want))
		plan_fail(p, "reduce-op", op, "%s of unit %s (%s) wants op=\"%s\"", op_info[op->kind].text,
			op->unit->name, strategy_of(op)->text, want);
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
	if (strategy_of(op)->group != GROUP_SHARD)
		plan_fail(p, "strategy", op, "shards of unit %s (%s) are held once: there is nothing to all_reduce",
			op->unit->name, strategy_of(op)->text);
	if (u->across)
		plan_fail(p, "reduce-once", op, "the gradient of unit %s is all_reduced twice in a step",
			op->unit->name);
	if (wait->kind != OP_WAIT || waited(wait) != u->reduce)
		plan_fail(p, "reduce-order", op, "the shard of unit %s that is all_reduced is not that of its "
			"reduce_scatter", op->unit->name);
	check_variant(p, op, ir_ends_step(p->m), "reduce-once");
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
			strategy_of(op)->text, op_info[reduce_kind(op)].text, op_info[op->kind].text);
	if (!is_trained(op->unit))
		plan_fail(p, "strategy", op, "unit %s is not trained: it has no gradient", op->unit->name);
	if (u->reduce)
		plan_fail(p, "reduce-once", op, "the gradient of unit %s is reduced twice in a step", op->unit->name);
	if (op_in(op, 0)->op != u->collect || !g || g->phase != GRAD_COLLECTED)
		plan_fail(p, "reduce-collected", op, "what is reduced is not the collected gradient of unit %s",
			op->unit->name);
	else if (p->reached[RT_STREAM_REDUCE] <= u->collected_at)
		plan_fail(p, "reduce-waits", op, "%s of unit %s may start before the last contribution to its gradient "
			"is written: no event behind its collect", op_info[op->kind].text, op->unit->name);
	check_variant(p, op, !ir_sums_flats(p->m) || ir_ends_step(p->m), "reduce-once");
	check_reduce_op(p, op, strategy_of(op)->group == GROUP_SHARD ? "sum" : "mean");
	if (op->kind == OP_REDUCE)
		check_root(p, op);
	u->reduce = op;
	if (g)
		*g = (GradRegion){GRAD_REDUCING, op->unit, op, stays_in_flat(p, op) ? readers_of(op) : 0};
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
	if (!last || x->op->kind != OP_WAIT || waited(x->op) != last) {
		plan_fail(p, "reduced-read", last ? last : op, "%s reads a gradient of unit %s that is not the result "
			"of its last reduce", op_info[op->kind].text, unit->name);
		return;
	}
	GradRegion *g = grad_of(p, unit);
	if (g && g->readers)
		g->readers--;
	else if (stays_in_flat(p, last) && x->type.kind == TYPE_FLAT)
		plan_fail(p, "gradient-slot", last, "%s reads the gradient of unit %s after another one was begun in "
			"its memory", op_info[op->kind].text, unit->name);
}

static void update(Plan *p, const Op *op)
{
	UnitLife *u = &p->unit[op->unit->index];
	check_variant(p, op, ir_ends_step(p->m), "update-once");
	if (u->update)
		plan_fail(p, "update-once", op, "unit %s is updated twice in a step", op->unit->name);
	if (!p->step_scalars)
		plan_fail(p, "update-scalars", op, "unit %s is updated before step_scalars knows the step's scalars",
			op->unit->name);
	if (u->gather && !is_over(p, u->gather))
		plan_fail(p, "update-after-gather", u->gather, "the update of unit %s may overwrite parameters that "
			"this gather still reads: it is not waited for before", op->unit->name);
	u->update = op;
	u->updated_at = p->at;
}

static void broadcast(Plan *p, const Op *op)
{
	UnitLife *u = &p->unit[op->unit->index];
	if (!strategy_of(op)->owned)
		plan_fail(p, "strategy", op, "unit %s (%s) has no owner that could broadcast it", op->unit->name,
			strategy_of(op)->text);
	if (u->broadcast)
		plan_fail(p, "broadcast-once", op, "unit %s is broadcast twice in a step", op->unit->name);
	if (!u->update || p->reached[RT_STREAM_GATHER] <= u->updated_at)
		plan_fail(p, "broadcast-after-update", op, "the broadcast of unit %s may start before its update has "
			"written the parameters", op->unit->name);
	check_root(p, op);
	u->broadcast = op;
}

/* A blocking collective: it follows everything before it, and nothing behind it begins earlier. */
static void scalars(Plan *p, const Op *op)
{
	check_variant(p, op, ir_ends_step(p->m), "scalars-once");
	if (p->scalars)
		plan_fail(p, "scalars-once", op, "a second all_reduce_scalars in a step");
	if (p->step_scalars)
		plan_fail(p, "scalars-first", op, "all_reduce_scalars stands behind step_scalars, which reads what it "
			"sums");
	p->scalars = op;
}

static bool uses_float_buffer(const Op *op)
{
	return (op->kind == OP_READ || op->kind == OP_WRITE) && op->sym->kind == SYM_BUFFER
		&& dtype_is_float(op->sym->type.dtype);
}

static void broadcast_buffers(Plan *p, const Op *op)
{
	if (p->broadcast)
		plan_fail(p, "buffers-once", op, "a second broadcast_buffers in a step");
	if (p->buffer)
		plan_fail(p, "buffers-first", op, "broadcast_buffers stands behind the %s of buffer \"%s\", which it "
			"overwrites",
			op_info[p->buffer->kind].text, p->buffer->sym->name);
	p->broadcast = op;
}

/* ---- a run by itself ---- */

static void check_eval(Plan *p, const Op *op)
{
	static const OpKind not[] = {OP_ZERO_GAPS, OP_COLLECT, OP_UPDATE_SHARD, OP_STEP_SCALARS, OP_CARRY_GRAD,
		OP_CARRIED_GRAD, OP_ACCUMULATE};
	bool trains = is_comm(op) && op->kind != OP_ALL_GATHER;
	for (int i = 0; i < COUNT_OF(not); i++)
		trains = trains || op->kind == not[i];
	if (trains)
		plan_fail(p, "eval", op, "%s stands in eval, where nothing is trained", op_info[op->kind].text);
}

static void run_effect(Plan *p, const Op *op)
{
	switch (op->kind) {
	case OP_RECORD: p->event[op->out[0]->id] = p->at; break;
	case OP_WAIT: end_wait(p, op); break;
	case OP_RESHARD: case OP_CARRY: end_gathered(p, op); break;
	case OP_CARRIED: begin_carried(p, op); break;
	case OP_RESIDENT: begin_resident(p, op); break;
	case OP_ALL_GATHER: begin_gather(p, op); break;
	case OP_ZERO_GAPS: case OP_CARRIED_GRAD: zero_gaps(p, op); break;
	case OP_CARRY_GRAD: carry_grad(p, op); break;
	case OP_ACCUMULATE: p->unit[op->sym->unit->index].sums++; break;
	case OP_COLLECT: collect(p, op); break;
	case OP_REDUCE_SCATTER: case OP_ALL_REDUCE: case OP_REDUCE: check_reduce(p, op); break;
	case OP_BROADCAST_FLAT: broadcast(p, op); break;
	case OP_ALL_REDUCE_SCALARS: scalars(p, op); break;
	case OP_BROADCAST_BUFFERS: broadcast_buffers(p, op); break;
	case OP_STEP_SCALARS: p->step_scalars = op; break;
	case OP_REPORT_LOSS:
		if (p->scalars)
			plan_fail(p, "scalars-first", p->scalars, "all_reduce_scalars stands in front of report_loss, whose "
				"loss it sums");
		break;
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

static void run_op(Plan *p, const Op *op)
{
	p->at++;
	if (p->first == SEC_EVAL)
		check_eval(p, op);
	if (is_comm(op)) {
		check_number(p, op);
		issue(p, op);
	}
	if (!p->buffer && uses_float_buffer(op))
		p->buffer = op;
	check_shown(p, op);
	check_grad_places(p, op);
	run_effect(p, op);
}

/* Checks that every collective in flight has been waited for and every gathered unit released. */
static void check_ends(Plan *p)
{
	for (int s = (int)p->first; s <= (int)p->last; s++)
		IR_FOR_OPS(p->m, s, op) {
			if (op->kind == OP_CARRIED && op->n_out && !p->released[op->out[0]->id])
				plan_fail(p, "reshard-missing", op, "unit %s is taken up and never resharded or carried on",
					op->unit->name);
			if (!is_comm(op) || op_blocks(op->kind) || !op->n_out)
				continue;
			const Op *wait = collective_of(p, op)->wait;
			if (!wait)
				plan_fail(p, "wait-missing", op, "%s of unit %s is never waited for", op_info[op->kind].text,
					op->unit->name);
			else if (op->kind == OP_ALL_GATHER && !p->released[wait->out[0]->id])
				plan_fail(p, "reshard-missing", op, "unit %s is gathered and never resharded", op->unit->name);
		}
}

static void check_trained(Plan *p, const Unit *unit)
{
	const UnitLife *u = &p->unit[unit->index];
	const StrategyInfo *s = &strategy_info[unit->strategy];
	const Op *some = u->update ? u->update : u->reduce ? u->reduce : u->collect;
	bool ends = ir_ends_step(p->m);
	if (ir_sums_flats(p->m) && !ends) {
		if (!u->left)
			plan_fail(p, "carry-grad", some, "the gradient of unit %s is not carried into the next micro-batch",
				unit->name);
		return;
	}
	if (!u->reduce || (ends && s->group == GROUP_SHARD && !u->across))
		plan_fail(p, "reduce-once", some, "the gradient of unit %s (%s) is not reduced over %s ranks",
			unit->name, s->text, u->reduce ? "all" : "the");
	if (!ends)
		return;
	if (!u->update)
		plan_fail(p, "update-once", some, "unit %s is trained but not updated", unit->name);
	if (s->owned && !u->broadcast)
		plan_fail(p, "broadcast-once", some, "unit %s is updated by its owner and not broadcast", unit->name);
}

static void check_step(Plan *p)
{
	const Module *m = p->m;
	bool trains = false;
	for (int i = 0; i < m->n_units; i++)
		trains = trains || p->unit[i].zeroed || p->unit[i].collect || p->unit[i].reduce || p->unit[i].update;
	trains = trains || p->scalars || p->step_scalars;
	for (int i = 0; trains && i < m->n_units; i++)
		if (is_trained(m->units[i]))
			check_trained(p, m->units[i]);
	if (p->step_scalars && !p->scalars)
		plan_fail(p, "scalars-once", p->step_scalars, "step_scalars stands without an all_reduce_scalars that "
			"sums the loss");
}

static void clear(Plan *p, SectionKind first, SectionKind last)
{
	p->first = first;
	p->last = last;
	p->at = p->seq = 0;
	p->scalars = p->step_scalars = p->broadcast = p->buffer = NULL;
	memset(p->unit, 0, sizeof(*p->unit) * (size_t)p->m->n_units);
	memset(p->slot, 0, sizeof(*p->slot) * (size_t)p->m->n_units * 2);
	memset(p->reached, 0, sizeof(p->reached));
	memset(p->issued, 0, sizeof(p->issued));
	memset(p->ended, 0, sizeof(p->ended));
}

/* Checks one run.  The order of definition is checked first, since the other checks rely on it. */
static void check_run(Plan *p, SectionKind first, SectionKind last)
{
	int before = p->n;
	clear(p, first, last);
	check_order(p);
	if (p->n > before)
		return;
	for (int s = (int)first; s <= (int)last; s++)
		IR_FOR_OPS(p->m, s, op)
			run_op(p, op);
	check_ends(p);
	if (first != SEC_EVAL)
		check_step(p);
}

int ir_verify_plan(const Module *m, Arena *a, PlanViolation *out, int max)
{
	Plan p = {.m = m, .arena = a, .out = out, .max = max};
	int n_values = m->n_values + 1, n_units = m->n_units + 1;
	p.unit = NEW_N(a, UnitLife, n_units);
	p.place = NEW_N(a, GradPlace *, n_units);
	p.wrote = NEW_N(a, const Value **, n_units);
	for (int i = 0; i < m->n_units; i++)
		p.wrote[i] = NEW_N(a, const Value *, m->units[i]->n_params);
	p.slot = NEW_N(a, GradRegion, n_units * 2);
	p.collective = NEW_N(a, Collective, n_values);
	p.shown = NEW_N(a, const Op *, n_values);
	p.released = NEW_N(a, bool, n_values);
	p.known = NEW_N(a, bool, n_values);
	p.event = NEW_N(a, int64_t, n_values);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			p.n_gathers += op->kind == OP_ALL_GATHER;
	check_run(&p, SEC_FORWARD, SEC_UPDATE);
	check_run(&p, SEC_EVAL, SEC_EVAL);
	if (!p.n)
		plan_check_runs(&p);
	return p.n;
}
