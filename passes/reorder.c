/* passes/reorder.c: an order of ops in which memory dies earlier.
 *
 * Two moves, both only of ops without effects that read no buffer or state:
 *   hoist   an op that makes no more activation bytes than it frees runs as soon as its operands are
 *           there, in its section (a weight gradient lives in the flat gradient, so it makes none);
 *   sink    an op that makes more than it frees waits until its first reader, maybe in a later section.
 * Each is tried on the whole program, and the order with the lowest peak of live bytes stays, the original
 * one among equals.  Deterministic; linear but for values with many readers, whose death is not searched. */
#include "passes/passes.h"

enum { MANY_READERS = 16 };

typedef struct Reorder {
	Module *m;
	Buffers *b;      /* of the original order; op->order is the position in it */
	int *at;         /* by position: that of the op whose group it stands in now */
	Op **edge;       /* by position of a group's op: its first member (sink) or last (hoist) */
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

/* Whether a value that shows root's bytes is read behind position `from` by another op than `but`. */
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

/* Bytes of operands that nothing but op reads behind position `from`. */
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
	while (before->kind == OP_RESHARD || before->kind == OP_CARRY) /* which frees as well */
		before = before->next;
	ir_move_before(r->m, op, before);
	r->edge[target] = op;
	r->at[op->order] = target;
}

/* A view goes with its first reader; it costs nothing there, and what it shows may then sink too. */
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
		return; /* its unit may be resharded in between */
	if (!view && (reads_parameter(op) || made_bytes(r, op) <= freed_bytes(r, op, r->at[op->order])))
		return;
	ir_move_before(r->m, op, r->edge[target]);
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

static int64_t peak_of(Buffers *b, Arena *a)
{
	return buffers_live(b, NEW_N(a, int64_t, b->n_ops + 1));
}

typedef struct Order {
	Op **op;
	SectionKind *section;
	int n;
} Order;

static Order order_of(const Buffers *b, Arena *a)
{
	Order order = {b->op, NEW_N(a, SectionKind, b->n_ops), b->n_ops};
	for (int i = 0; i < b->n_ops; i++)
		order.section[i] = b->op[i]->section;
	return order;
}

static void restore(Module *m, const Order *order)
{
	for (int i = 0; i < order->n; i++) {
		ir_move_to_end(m, order->op[i], order->section[i]);
		order->op[i]->order = i;
	}
}

/* b: of the present order.  Returns those of the new one. */
static Buffers *try_moves(Module *m, bool eval, unsigned moves, Buffers *b, Arena *a)
{
	static const struct { MoveFn *move; bool backwards; } known[] = {{hoist_op, false}, {sink_op, true}};
	for (int i = 0; i < COUNT_OF(known); i++) {
		if (!(moves & 1u << i))
			continue;
		Reorder r = {m, b, NEW_N(a, int, b->n_ops), NEW_N(a, Op *, b->n_ops)};
		apply(&r, known[i].move, known[i].backwards);
		b = buffers_find(m, eval, a);
	}
	return b;
}

void schedule_reorder(Module *m, bool eval, Arena *a)
{
	enum { ALL_MOVES = 3 };
	Buffers *b = buffers_find(m, eval, a);
	Order first = order_of(b, a), best = first;
	int64_t lowest = peak_of(b, a);
	for (unsigned moves = 1; moves <= ALL_MOVES; moves++) {
		Buffers *moved = try_moves(m, eval, moves, b, a);
		int64_t peak = peak_of(moved, a);
		if (peak < lowest) {
			best = order_of(moved, a);
			lowest = peak;
		}
		restore(m, &first);
	}
	restore(m, &best);
}
