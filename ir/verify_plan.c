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

const Op *plan_waited(const Op *wait)
{
	return wait->n_in && op_in(wait, 0) ? op_in(wait, 0)->op : wait;
}

const Op *plan_blamed(const Op *op)
{
	if (op->kind == OP_WAIT)
		return plan_waited(op);
	bool ends = op->kind == OP_RESHARD || op->kind == OP_CARRY;
	if (ends && op->n_in && op_in(op, 0) && op_in(op, 0)->op->kind == OP_WAIT)
		return plan_waited(op_in(op, 0)->op);
	return op;
}

static Collective *collective_of(Plan *p, const Op *op)
{
	return &p->collective[op->out[0]->id];
}

bool plan_is_over(Plan *p, const Op *op)
{
	const Collective *c = collective_of(p, op);
	return c->rank && c->rank <= p->ended[c->stream];
}

const StrategyInfo *plan_strategy(const Op *op)
{
	return &strategy_info[op->unit->strategy];
}

bool plan_is_trained(const Unit *u)
{
	for (int i = 0; i < u->n_flats; i++)
		if (u->flat[i].trainable)
			return true;
	return false;
}

/* ---- order of definition ---- */

const Value *plan_root(const Value *x)
{
	while (op_info[x->op->kind].flags & VIEW && op_in(x->op, 0))
		x = op_in(x->op, 0);
	return x;
}

static void fail_order(Plan *p, const Op *op, const Value *x)
{
	const Value *root = plan_root(x);
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

bool plan_check_variant(Plan *p, const Op *op, bool right, const char *rule)
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
	const Op *from = plan_waited(op);
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
			op->unit->name, plan_strategy(op)->text);
	bool again = ir_is_carried(p->m, op->unit) && p->first != SEC_EVAL && (ir_goes_on(p->m)
		|| p->unit[op->unit->index].gather);
	plan_check_variant(p, op, !again, "carry");
	if (p->unit[op->unit->index].update)
		plan_fail(p, "gather-before-update", op, "unit %s is gathered after its update: a step reads parameters as the "
			"step before left them", op->unit->name);
	if (unit_is_scaled(op->unit) && !p->scales)
		plan_fail(p, "scales-first", op, "unit %s is gathered in e4m3, and no f8_scales stands in front of that",
			op->unit->name);
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
	if (!wait || (!carried && (wait->kind != OP_WAIT || plan_waited(wait)->kind != OP_ALL_GATHER))
		|| !takes_all_of(op, wait)) {
		plan_fail(p, "reshard-whole", plan_blamed(op), "a %s ends all flats of one gather", op_info[op->kind].text);
		return;
	}
	bool stays = ir_is_carried(p->m, op->unit) && !ir_ends_step(p->m) && p->first != SEC_EVAL;
	if (!plan_check_variant(p, op, stays == (op->kind == OP_CARRY), "carry"))
		return;
	if (stays && !carried && attr_find(plan_waited(wait)->attrs, "slot"))
		plan_fail(p, "carry", plan_waited(wait), "unit %s is carried into the next micro-batch in a slot, not in a "
			"region of its "
			"own", op->unit->name);
	bool *released = &p->released[wait->out[0]->id];
	if (*released)
		plan_fail(p, "reshard-once", carried ? wait : plan_waited(wait), "unit %s is resharded twice after one gather",
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
	plan_check_variant(p, op, ir_is_carried(p->m, op->unit) && ir_goes_on(p->m) && p->first != SEC_EVAL, "carry");
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
			plan_strategy(op)->group == GROUP_ONE ? "read in another dtype than it rests in" : "split over ranks",
			plan_strategy(op)->text);
	for (int i = 0; i < op->n_out; i++)
		p->shown[op->out[i]->id] = op;
}

/* ---- scalars and buffers ---- */

/* A blocking collective: it follows everything before it, and nothing behind it begins earlier. */
static void scalars(Plan *p, const Op *op)
{
	plan_check_variant(p, op, ir_ends_step(p->m), "scalars-once");
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

/* Scales are set in front of all that divides or multiplies by them. */
static void set_scales(Plan *p, const Op *op)
{
	if (p->scales)
		plan_fail(p, "scales-once", op, "a second f8_scales in a program");
	p->scales = op;
}

/* ---- a run by itself ---- */

static void check_eval(Plan *p, const Op *op)
{
	static const OpKind not[] = {OP_ZERO_GAPS, OP_COLLECT, OP_UPDATE_SHARD, OP_STEP_SCALARS, OP_CARRY_GRAD,
		OP_CARRIED_GRAD, OP_ACCUMULATE, OP_OFFLOAD, OP_RELOAD, OP_COPIED};
	bool trains = is_comm(op) && op->kind != OP_ALL_GATHER && op->kind != OP_F8_SCALES;
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
	case OP_ALL_REDUCE_SCALARS: scalars(p, op); break;
	case OP_BROADCAST_BUFFERS: broadcast_buffers(p, op); break;
	case OP_F8_SCALES: set_scales(p, op); break;
	case OP_STEP_SCALARS: p->step_scalars = op; break;
	case OP_REPORT_LOSS: case OP_REPORT_ACC:
		if (p->scalars)
			plan_fail(p, "scalars-first", p->scalars, "all_reduce_scalars stands in front of %s, which reports what it "
				"sums", op_info[op->kind].text);
		break;
	default: plan_run_grad(p, op); break;
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
	plan_run_copy(p, op);
	plan_check_grad_places(p, op);
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
		if (plan_is_trained(m->units[i]))
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
	p->scalars = p->step_scalars = p->broadcast = p->scales = p->buffer = NULL;
	p->early = ir_updates_early(p->m);
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
	plan_check_copies(p);
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
	p.copied = NEW_N(a, bool, n_values);
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
