/* passes/schedule/schedule.c: fixes the order of computing.
 *
 * Requires SHARD.  Ensures a total order of each section in which memory dies early; that a unit is gathered in
 * front of its first reader and resharded behind its last one; that the gaps of a flat gradient are zeroed in front
 * of the first op that writes into it, and that it is reduced behind the last one.
 *
 * Ops with effects keep their order, and writes keep their order to the reads around them.  Ops that move no value
 * but begin or end the life of one (wait, reshard, zero_gaps, collect and its reduce) are then put where the new
 * order needs them. */
#include "passes/passes.h"

/* Numbers the ops of a section from n on; returns the next number. */
static int64_t number_section(Module *m, SectionKind s, int64_t n)
{
	IR_FOR_OPS(m, s, op)
		op->order = n++;
	return n;
}

/* Numbers ops across all sections, so that readers in a later section count as later. */
static void number_all(Module *m)
{
	int64_t n = 0;
	for (int s = 0; s < SEC_COUNT; s++)
		n = number_section(m, (SectionKind)s, n);
}

/* ---- gathers and reshards ---- */

static Op *first_reader(const Op *op)
{
	Op *first = NULL;
	for (int i = 0; i < op->n_out; i++)
		for (const Use *u = op->out[i]->uses; u; u = u->next)
			if (u->op->section == op->section && (!first || u->op->order < first->order))
				first = u->op;
	return first;
}

typedef struct Ops { Op **at; int n, cap; } Ops;

static Ops list_kind(Module *m, SectionKind s, OpKind kind, Arena *a)
{
	Ops ops = {0};
	IR_FOR_OPS(m, s, op)
		if (op->kind == kind)
			vec_push(a, &ops, op);
	return ops;
}

static void settle_views(Module *m, SectionKind s, Arena *a)
{
	Ops views = list_kind(m, s, OP_VIEW_OP, a);
	for (int i = 0; i < views.n; i++) {
		Op *reader = first_reader(views.at[i]);
		if (reader)
			ir_move_before(m, views.at[i], reader);
	}
}

static void settle_waits(Module *m, SectionKind s, Arena *a)
{
	Ops waits = list_kind(m, s, OP_WAIT, a);
	for (int i = 0; i < waits.n; i++) {
		Op *wait = waits.at[i], *gather = op_in(wait, 0)->op, *reader = first_reader(wait);
		if (gather->kind != OP_ALL_GATHER || gather->section != s || !reader || reader->kind != OP_VIEW_OP)
			continue;
		ir_move_before(m, gather, reader);
		ir_move_before(m, wait, reader);
	}
}

/* The op behind `last` that reads v last, directly or through views; `last` when there is none. */
static Op *last_reader(const Value *v, Op *last)
{
	for (const Use *u = v->uses; u; u = u->next) {
		if (op_info[u->op->kind].flags & VIEW)
			last = last_reader(u->op->out[0], last);
		else if (u->op->kind != OP_RESHARD && u->op->kind != OP_CARRY && (!last || u->op->order > last->order))
			last = u->op;
	}
	return last;
}

static void settle_reshards(Module *m, SectionKind s)
{
	IR_FOR_OPS_SAFE(m, s, op) {
		Op *last = NULL;
		for (int i = 0; (op->kind == OP_RESHARD || op->kind == OP_CARRY) && i < op->n_in; i++)
			last = last_reader(op_in(op, i), last);
		if (last && last->section == s && last->next != op)
			ir_move_before(m, op, last->next);
	}
}

/* ---- reduces ---- */

static Op *last_contribution(const Op *collect)
{
	Op *last = NULL;
	for (int i = 0; i < collect->n_in; i++) {
		Op *op = op_in(collect, i) ? value_root(op_in(collect, i))->op : NULL;
		if (op && op->section == collect->section && (!last || op->order > last->order))
			last = op;
	}
	return last;
}

static bool is_behind_collect(const Op *op, const Unit *u)
{
	if (op && op->kind == OP_WAIT)
		op = op_in(op, 0)->op;
	if (op && op->kind == OP_CARRY_GRAD)
		return op->unit == u;
	return op && op_info[op->kind].flags & COMM && op->unit == u && op->kind != OP_ALL_GATHER;
}

/* Puts op behind *at and makes it the new *at. */
static void put_behind(Module *m, Op *op, Op **at)
{
	ir_move_behind(m, op, *at);
	*at = op;
}

/* Puts the views of a gradient that stand behind position `from` behind *at, too. */
static void put_views_behind(Module *m, Value *v, int64_t from, Op **at)
{
	Op *op = v ? v->op : NULL;
	if (!op || !(op_info[op->kind].flags & VIEW) || op->section != (*at)->section || op->order <= from)
		return;
	put_views_behind(m, op_in(op, 0), from, at);
	op->order = from; /* done, in case another operand, here or of another collect, shows it too */
	put_behind(m, op, at);
}

static void settle_collect(Module *m, Op *collect)
{
	Op *at = last_contribution(collect);
	if (!at)
		return;
	int64_t from = at->order;
	while (at->next && (at->next->kind == OP_RESHARD || at->next->kind == OP_CARRY || at->next->order == from))
		at = at->next; /* over views, too, that another collect of the same gradient has put here */
	for (int i = 0; i < collect->n_in; i++)
		put_views_behind(m, op_in(collect, i), from, &at);
	for (Op *op = collect, *next; op == collect || is_behind_collect(op, collect->unit); op = next) {
		next = op->next;
		put_behind(m, op, &at);
	}
}

static void settle_collects(Module *m, Arena *a)
{
	Ops collects = list_kind(m, SEC_BACKWARD, OP_COLLECT, a);
	for (int i = 0; i < collects.n; i++)
		settle_collect(m, collects.at[i]);
}

static void put_gaps_before(Module *m, Op **zero, const Unit *u, Op *op)
{
	if (!u || !zero[u->index])
		return;
	if (zero[u->index]->next != op)
		ir_move_before(m, zero[u->index], op);
	zero[u->index] = NULL;
}

/* The gaps of a flat gradient are zeroed in front of the first op that writes into it; if only copies will, which
 * pass memory inserts, in front of its collect.  An op may write into several flats: a norm's weight and bias may
 * have different owners. */
void schedule_gaps(Module *m, Arena *a)
{
	Buffers *b = buffers_find(m, false, a);
	Op **zero = NEW_N(a, Op *, m->n_units);
	IR_FOR_OPS(m, SEC_BACKWARD, op)
		if (op->kind == OP_ZERO_GAPS || op->kind == OP_CARRIED_GRAD)
			zero[op->unit->index] = op;
	IR_FOR_OPS(m, SEC_BACKWARD, op) {
		for (int i = 0; i < op->n_out; i++) {
			int buffer = b->of_value[op->out[i]->id];
			put_gaps_before(m, zero, buffer >= 0 ? b->at[buffer].place.unit : NULL, op);
		}
		if (op->kind == OP_COLLECT)
			put_gaps_before(m, zero, op->unit, op);
	}
}

bool pass_schedule(Module *m, const Options *o, Diag *d)
{
	Arena *a = arena_new();
	(void)o, (void)d;
	schedule_reorder(m, false, a);
	schedule_reorder(m, true, a);
	number_all(m);
	for (SectionKind s = SEC_FORWARD; s < SEC_COUNT; s++) {
		int64_t begin = m->first[s] ? m->first[s]->order : 0;
		settle_views(m, s, a);
		number_section(m, s, begin);
		settle_waits(m, s, a);
		settle_reshards(m, s);
	}
	number_all(m);
	settle_collects(m, a);
	schedule_gaps(m, a);
	arena_free(a);
	return true;
}
