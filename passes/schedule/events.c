/* passes/schedule/events.c: derives from the order of a PLAN the numbers, streams, events and gradient slots of
 * collectives.
 *
 * Requires that gathers, waits, reshards and reduces stand where they are to run and that ring slots are assigned.
 * Ensures that every collective starts late enough, and that no event is left that an earlier event of its stream
 * implies.  Used by prefetch and, after an edit, by the schedule file.
 *
 * A stream runs in order, so the ops that a collective must not overtake are given by one point of compute; the
 * collective needs an event only if that point lies behind those of all earlier collectives of its stream. */
#include "passes/schedule/slots.h"

/* ---- old events are reused in order, so that the same schedule prints the same text ---- */

typedef VEC(Op *) Ops;
typedef struct Events {
	Module *m;
	Arena *scratch;
	Ops records;
	int n_used;
} Events;

enum { FOUND = -2 }; /* Op.order of records that are listed already */

static void drop_event(Events *e, Op *op)
{
	Value *in[2], *last = op->n_in ? op_in(op, op->n_in - 1) : NULL;
	if (!last || last->type.kind != TYPE_EVENT)
		return;
	for (int i = 0; i < op->n_in - 1; i++)
		in[i] = op_in(op, i);
	ir_set_n_in(e->m, op, op->n_in - 1, in);
	if (last->op->order != FOUND)
		vec_push(e->scratch, &e->records, last->op);
	last->op->order = FOUND;
}

/* Takes the events from the collectives and lists them in the collectives' order, which is the order of their
 * reuse. */
static void drop_events(Events *e)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(e->m, s, op)
			op->order = 0;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(e->m, s, op)
			if (op_info[op->kind].flags & COMM)
				drop_event(e, op);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(e->m, s, op)
			if (op->kind == OP_RECORD && op->order != FOUND)
				vec_push(e->scratch, &e->records, op);
}

static void remove_unused(Events *e)
{
	while (e->n_used < e->records.n)
		ir_remove(e->m, e->records.at[e->n_used++]);
}

/* Puts a record in front of `before`; NULL: at the end of section s. */
static Value *record(Events *e, const Loc *loc, SectionKind s, Op *before)
{
	Builder b = {.m = e->m, .section = s, .before = before, .loc = loc, .name = "ready"};
	if (e->n_used == e->records.n)
		return ir_emit(&b, OP_RECORD, 0, NULL, NULL);
	Op *op = e->records.at[e->n_used++];
	op->loc = loc;
	if (before)
		ir_move_before(e->m, op, before);
	else
		ir_move_to_end(e->m, op, s);
	return op->out[0];
}

/* Adds a record behind `after`, or at the start of section s, and makes it the last operand of the collective. */
static void add_event(Events *e, Op *collective, Op *after, SectionKind s)
{
	const Loc *loc = loc_with_role(e->m, collective->loc, "prefetch");
	Value *in[2];
	int n = 0;
	s = after ? after->section : s;
	Value *event = record(e, loc, s, after ? after->next : e->m->first[s]);
	for (; n < collective->n_in; n++)
		in[n] = op_in(collective, n);
	in[n++] = event;
	ir_set_n_in(e->m, collective, n, in);
}

/* ---- what a collective may not overtake ---- */

static Op *reshard_of(const Op *gather)
{
	Op *wait = gather->n_out ? ir_user(gather->out[0], OP_WAIT) : NULL;
	return wait && wait->n_out ? ir_user(wait->out[0], OP_RESHARD) : NULL;
}

/* The memory that a gather writes: a slot, or its unit's own region. */
static const void *region_of(const Op *gather)
{
	int64_t slot = attr_get_int(gather->attrs, "slot", -1);
	return slot >= 0 ? (const void *)(intptr_t)(slot + 1) : gather->unit;
}

/* One run of a program: forward, backward and update, or eval.  op->order gives the order of ops. */
typedef struct Program {
	SectionKind first, last;
	PtrMap *release;        /* region -> the reshard of its last gather */
	PtrMap *update;         /* unit -> its update_shard */
	int64_t reached[RT_STREAMS]; /* the point of the last event of each stream */
	PtrMap *after;          /* collective -> the op behind which it needs an event */
	Op *start;              /* the first gather that must wait for the previous program; NULL = none */
} Program;

static void number_ops(Module *m, Program *p)
{
	int64_t n = 1; /* 0 is the start of the program */
	for (int s = (int)p->first; s <= (int)p->last; s++)
		IR_FOR_OPS(m, s, op)
			op->order = n++;
}

static Op *must_follow(Program *p, const Op *op)
{
	switch (op->kind) {
	case OP_ALL_GATHER: return ptrmap_get(p->release, region_of(op));
	case OP_BROADCAST_FLAT: return ptrmap_get(p->update, op->unit);
	case OP_REDUCE_SCATTER: case OP_ALL_REDUCE: case OP_REDUCE: {
		Op *from = op_in(op, 0) ? op_in(op, 0)->op : NULL;
		return from && from->kind == OP_COLLECT ? from : NULL;
	}
	default: return NULL;
	}
}

/* A collective cannot wait for a point behind itself; the verifier reports what is wrong there. */
static void find_points(Events *e, Program *p)
{
	p->after = ptrmap_new(e->scratch);
	p->release = ptrmap_new(e->scratch);
	p->update = ptrmap_new(e->scratch);
	number_ops(e->m, p);
	for (int s = (int)p->first; s <= (int)p->last; s++)
		IR_FOR_OPS(e->m, s, op) {
			Op *point = must_follow(p, op);
			RtStream stream = op_stream(op->kind);
			if (point && point->order < op->order && point->order > p->reached[stream]) {
				p->reached[stream] = point->order;
				ptrmap_put(p->after, op, point);
			}
			if (op->kind == OP_ALL_GATHER && reshard_of(op))
				ptrmap_put(p->release, region_of(op), reshard_of(op));
			if (op->kind == OP_UPDATE_SHARD)
				ptrmap_put(p->update, op->unit, op);
		}
}

/* ---- from one run to the next ---- */

static int64_t later(int64_t order, const Op *op)
{
	return op && op->order > order ? op->order : order;
}

/* Whether `gather`, the first of its stream in a run, could overtake ops of the run `before`. */
static bool overtakes(const Program *before, const Op *gather)
{
	int64_t needed = later(0, ptrmap_get(before->release, region_of(gather)));
	needed = later(needed, ptrmap_get(before->update, gather->unit));
	return needed > before->reached[RT_STREAM_GATHER];
}

/* Finds the first gather that needs an event at the start of the program.  Gathers behind the first event of their
 * stream are safe; those in front of it may overtake the program that ran before.  With several micro-batches that
 * program is another module, about which nothing is assumed. */
static void find_start(const Module *m, Program *p, const Program *const before[2])
{
	for (int s = (int)p->first; s <= (int)p->last; s++)
		IR_FOR_OPS(m, s, op) {
			if (op_stream(op->kind) != RT_STREAM_GATHER)
				continue;
			if (ptrmap_get(p->after, op))
				return;
			bool must = op->kind == OP_ALL_GATHER && (m->sync || overtakes(before[0], op) || overtakes(before[1], op));
			if (must) {
				p->start = op;
				return;
			}
		}
}

static void add_events(Events *e, const Program *p)
{
	for (int s = (int)p->first; s <= (int)p->last; s++)
		IR_FOR_OPS(e->m, s, op) {
			Op *after = ptrmap_get(p->after, op);
			if (after || op == p->start)
				add_event(e, op, after, p->first);
		}
}

/* ---- numbers and slots ---- */

static void number_collectives(Module *m, const Program *p)
{
	int64_t seq = 0;
	for (int s = (int)p->first; s <= (int)p->last; s++)
		IR_FOR_OPS(m, s, op)
			if (op_info[op->kind].flags & COMM) {
				op->attrs = attr_int(m, op->attrs, "seq", ++seq);
				op->attrs = attr_str(m, op->attrs, "stream", stream_info[op_stream(op->kind)].text);
			}
}

void schedule_events(Module *m)
{
	Events e = {.m = m, .scratch = arena_new()};
	Program step = {.first = SEC_FORWARD, .last = SEC_UPDATE}, eval = {.first = SEC_EVAL, .last = SEC_EVAL};
	const Program *const both[] = {&step, &eval};
	drop_events(&e);
	find_points(&e, &step);
	find_points(&e, &eval);
	find_start(m, &step, both);
	find_start(m, &eval, both);
	add_events(&e, &step);
	add_events(&e, &eval);
	remove_unused(&e);
	number_collectives(m, &step);
	number_collectives(m, &eval);
	arena_free(e.scratch);
}

/* By unit: the op that ends the life of its flat gradient, an update in backward or the wait of its reduce; NULL: it
 * lives on as the reduced gradient. */
static Op **gradient_ends(const Module *m, Arena *a)
{
	Op **end = NEW_N(a, Op *, MAX(m->n_units, 1));
	for (int s = SEC_FORWARD; s <= SEC_UPDATE; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == OP_REDUCE_SCATTER || op->kind == OP_REDUCE || (op->kind == OP_ALL_REDUCE
				&& ir_sums_reduced(m) && op_in(op, 0)->type.kind == TYPE_FLAT))
				end[op->unit->index] = ir_user(op->out[0], OP_WAIT);
			else if (op->kind == OP_UPDATE_SHARD && s == SEC_BACKWARD)
				end[op->unit->index] = op;
	return end;
}

static int64_t gradient_bytes(const Unit *u)
{
	int64_t sum = 0;
	for (int f = 0; f < u->n_flats; f++)
		sum += u->flat[f].trainable ? u->flat[f].numel * dtype_info[u->flat[f].grad].bytes : 0;
	return sum;
}

void schedule_grad_slots(Module *m)
{
	Arena *a = arena_new();
	Op **ends = gradient_ends(m, a);
	VEC(Op *) begin = {0};
	VEC(SlotLife) lives = {0};
	Program step = {.first = SEC_FORWARD, .last = SEC_UPDATE};
	number_ops(m, &step);
	for (int s = SEC_FORWARD; s <= SEC_UPDATE; s++)
		IR_FOR_OPS(m, s, op) {
			const Op *end = op->kind == OP_ZERO_GAPS ? ends[op->unit->index] : NULL;
			if (!end)
				continue;
			vec_push(a, &begin, op);
			vec_push(a, &lives, ((SlotLife){op->order, end->order, gradient_bytes(op->unit), -1}));
		}
	slots_assign(lives.at, lives.n, a);
	for (int i = 0; i < begin.n; i++)
		begin.at[i]->attrs = attr_int(m, begin.at[i]->attrs, "slot", lives.at[i].slot);
	arena_free(a);
}
