/* passes/schedule/reorder.c: finds an order of ops in which memory dies earlier.
 *
 * There are two moves, both only of ops without effects that read no buffer or state:
 *   hoist   an op that makes no more activation bytes than it frees runs as soon as its operands are available in
 *           its section (a weight gradient lives in the flat gradient, so it makes no activation bytes);
 *   sink    an op that makes more than it frees waits until its first reader, which may be in a later section.
 * Each is tried on the whole program, and the order with the lowest peak of live bytes is taken, the original one
 * if no other is lower.  Deterministic; linear, because the death of values with many readers is not searched. */
#include "passes/passes.h"

enum { MANY_READERS = 16 };

typedef struct Reorder {
	Module *m;
	Buffers *b;      /* of the original order; op->order is the position in it */
	int *at;         /* by position: the position of the op to whose group it belongs now */
	Op **edge;       /* by position of a group's op: its first member (sink) or last (hoist) */
	int moves;
} Reorder;

/* ---- facts ---- */

static int64_t act_bytes(const Reorder *r, Value *v)
{
	int buffer = r->b->of_value[v->id];
	return buffer >= 0 && r->b->at[buffer].place.region == REGION_ACT ? round_up(type_bytes(&v->type), 64) : 0;
}

static int64_t made_bytes(const Reorder *r, const Op *op)
{
	int64_t sum = 0;
	for (int i = 0; i < op->n_out; i++)
		sum += act_bytes(r, op->out[i]);
	return sum;
}

/* Whether an op other than `but`, behind position `from`, reads a value that shows root's bytes. */
static bool read_behind(const Reorder *r, const Value *v, int from, const Op *but)
{
	if (v->n_uses > MANY_READERS)
		return true;
	for (const Use *u = v->uses; u; u = u->next) {
		if (op_info[u->op->kind].flags & VIEW) {
			if (read_behind(r, u->op->out[0], from, but))
				return true;
		} else if (u->op != but && r->at[u->op->order] > from) {
			return true;
		}
	}
	return false;
}

/* Bytes of the operands that no op but op reads behind position `from`. */
static int64_t freed_bytes(const Reorder *r, const Op *op, int from)
{
	int64_t sum = 0;
	for (int i = 0; i < op->n_in; i++) {
		Value *v = op_in(op, i) ? value_root(op_in(op, i)) : NULL;
		bool seen = false;
		for (int k = 0; k < i; k++)
			seen = seen || (v && op_in(op, k) && value_root(op_in(op, k)) == v);
		if (v && !seen && act_bytes(r, v) && !read_behind(r, v, from, op))
			sum += act_bytes(r, v);
	}
	return sum;
}

static bool is_movable(const Op *op)
{
	unsigned flags = op_info[op->kind].flags;
	if ((flags & (EFFECT | SYM | UNIT) && op->kind != OP_ACCUMULATE) || !op->n_out)
		return false;
	for (int i = 0; i < op->n_in; i++)
		if (op_in(op, i) && value_root(op_in(op, i))->op->kind == OP_READ)
			return false;
	return true;
}

static bool reads_parameter(const Op *op)
{
	for (int i = 0; i < op->n_in; i++)
		if (op_in(op, i) && value_root(op_in(op, i))->op->kind == OP_VIEW_OP)
			return true;
	return false;
}

/* ---- the two moves ---- */

static void hoist_op(Reorder *r, Op *op)
{
	int target = -1;
	for (int i = 0; i < op->n_in; i++) {
		const Op *def = op_in(op, i) ? op_in(op, i)->op : NULL;
		if (def && def->section == op->section)
			target = MAX(target, r->at[def->order]);
	}
	if (target < 0 || r->edge[target]->next == op || op_info[op->kind].flags & VIEW)
		return;
	int64_t made = made_bytes(r, op);
	if (made && made > freed_bytes(r, op, target))
		return;
	Op *before = r->edge[target]->next;
	while (before->kind == OP_RESHARD || before->kind == OP_CARRY) /* these free memory, too */
		before = before->next;
	ir_move_before(r->m, op, before);
	r->moves++;
	r->edge[target] = op;
	r->at[op->order] = target;
}

/* A view moves to its first reader; it costs nothing there, and the value that it shows may then sink too. */
static void sink_op(Reorder *r, Op *op)
{
	int target = r->b->n_ops;
	bool view = op_info[op->kind].flags & VIEW;
	for (int i = 0; i < op->n_out; i++)
		for (const Use *u = op->out[i]->uses; u; u = u->next)
			target = MIN(target, r->at[u->op->order]);
	if (target == r->b->n_ops || r->edge[target]->prev == op)
		return;
	if (r->b->op[target]->section != op->section && reads_parameter(op))
		return; /* the unit that it reads may be resharded in between */
	if (!view && (reads_parameter(op) || made_bytes(r, op) <= freed_bytes(r, op, r->at[op->order])))
		return;
	ir_move_before(r->m, op, r->edge[target]);
	r->moves++;
	r->edge[target] = op;
	r->at[op->order] = target;
}

typedef void MoveFn(Reorder *r, Op *op);

static void apply(Reorder *r, MoveFn *move, bool backwards)
{
	for (int i = 0; i < r->b->n_ops; i++) {
		r->at[i] = i;
		r->edge[i] = r->b->op[i];
	}
	for (int i = 0; i < r->b->n_ops; i++) {
		Op *op = r->b->op[backwards ? r->b->n_ops - 1 - i : i];
		if (is_movable(op))
			move(r, op);
	}
}

/* ---- the choice ---- */

typedef struct Order {
	Buffers *b;           /* the buffers of this order of ops */
	SectionKind *section; /* of each */
	int64_t peak;
} Order;

static Order order_of(Buffers *b, Arena *a)
{
	Order order = {b, NEW_N(a, SectionKind, b->n_ops), buffers_live(b, NEW_N(a, int64_t, b->n_ops + 1))};
	for (int i = 0; i < b->n_ops; i++)
		order.section[i] = b->op[i]->section;
	return order;
}

static void restore(Module *m, const Order *order)
{
	for (int i = 0; i < order->b->n_ops; i++) {
		ir_move_to_end(m, order->b->op[i], order->section[i]);
		order->b->op[i]->order = i;
	}
}

/* The order that a move makes of `present`; `present` itself when the move changes nothing. */
static Order moved(Module *m, bool eval, const Order *present, MoveFn *move, bool backwards, Arena *a)
{
	Buffers *b = present->b;
	Reorder r = {.m = m, .b = b, .at = NEW_N(a, int, b->n_ops), .edge = NEW_N(a, Op *, b->n_ops)};
	apply(&r, move, backwards);
	return r.moves ? order_of(buffers_find(m, eval, a), a) : *present;
}

void schedule_reorder(Module *m, bool eval, Arena *a)
{
	Order first = order_of(buffers_find(m, eval, a), a), best = first;
	Order sunk = moved(m, eval, &first, sink_op, true, a);
	if (sunk.b != first.b)
		restore(m, &first);
	Order hoisted = moved(m, eval, &first, hoist_op, false, a);
	Order both = hoisted.b == first.b ? sunk : moved(m, eval, &hoisted, sink_op, true, a);
	const Order *tried[] = {&hoisted, &sunk, &both};
	for (int i = 0; i < COUNT_OF(tried); i++)
		if (tried[i]->peak < best.peak)
			best = *tried[i];
	if (both.b != first.b)
		restore(m, &best);
}
