/* tests/oracle/mutate.c: see mutate.h.
 *
 * One idea: most mutants must be wrong for a reason of scheduling, so operands keep their types and (nine
 * times of ten) ops stay behind what they take and before what takes them; collectives are numbered anew.
 * What is dropped takes its waits along, and its users get the nearest value of the same type. */
#include "tests/oracle/mutate.h"

#include <string.h>

/* ---- chance ---- */

uint64_t mutate_draw(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15u; /* splitmix64 */
	uint64_t z = *state;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static int below(Mutation *x, int64_t n)
{
	return (int)(mutate_draw(&x->random) % (uint64_t)n);
}

/* ---- what may be changed ---- */

static bool is_comm(const Op *op)
{
	return op_info[op->kind].flags & COMM;
}

/* What a micro-batch leaves or takes up, and what it does without others. */
static const OpKind twins[][2] = {{OP_CARRY, OP_RESHARD}, {OP_CARRIED_GRAD, OP_ZERO_GAPS}};

static bool may_carry(const Op *op)
{
	bool twin = op->kind == OP_ACCUMULATE || op->kind == OP_COLLECT || op->kind == OP_REDUCE_SCATTER
		|| op->kind == OP_ALL_REDUCE || op->kind == OP_REDUCE;
	for (int i = 0; i < COUNT_OF(twins); i++)
		twin = twin || op->kind == twins[i][0] || op->kind == twins[i][1];
	return twin;
}

/* Without the sum there is no gradient that others could read. */
static bool adds_product(const Op *op)
{
	return op->kind == OP_ACCUMULATE && op->n_in > 1;
}

static bool is_target(const Op *op)
{
	return is_comm(op) || op->kind == OP_WAIT || op->kind == OP_RESHARD || op->kind == OP_RECORD
		|| op->kind == OP_ZERO_GAPS || op->kind == OP_UPDATE_SHARD || op->kind == OP_ACCUMULATE || op->kind == OP_CARRY
		|| op->kind == OP_CARRIED || op->kind == OP_CARRY_GRAD || op->kind == OP_CARRIED_GRAD;
}

static bool has_slot(const Op *op)
{
	return op->kind == OP_ALL_GATHER || op->kind == OP_ZERO_GAPS;
}

static bool may_record(const Op *op)
{
	return is_comm(op) && !op_blocks(op->kind);
}

typedef bool Wanted(const Op *op);

/* A random op of those wanted, in all sections; NULL = there is none. */
static Op *pick(Mutation *x, Wanted *wanted)
{
	int n = 0;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(x->m, s, op)
			n += wanted(op);
	n = n ? below(x, n) : -1;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(x->m, s, op)
			if (wanted(op) && !n--)
				return op;
	return NULL;
}

static const char *name_of(Mutation *x, const Op *op)
{
	return arena_printf(x->m->arena, "%s%s%s (seq %lld, section %d, op %lld)", op_info[op->kind].text,
		op->unit ? " @" : "", op->unit ? op->unit->name : "", (long long)attr_get_int(op->attrs, "seq", 0),
		op->section, (long long)op->order);
}

#define SAID(x, ...) ((x)->said = arena_printf((x)->m->arena, __VA_ARGS__))

static void remove_attr(Op *op, const char *name)
{
	for (Attr **a = &op->attrs; *a; a = &(*a)->next)
		if (!strcmp((*a)->name, name)) {
			*a = (*a)->next;
			return;
		}
}

static void set_int(Module *m, Op *op, const char *name, int64_t v)
{
	remove_attr(op, name);
	op->attrs = attr_int(m, op->attrs, name, v);
}

static void set_str(Module *m, Op *op, const char *name, const char *v)
{
	remove_attr(op, name);
	op->attrs = attr_str(m, op->attrs, name, v);
}

static void number(Module *m)
{
	int64_t step = 0, eval = 0;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			if (is_comm(op))
				set_int(m, op, "seq", s == SEC_EVAL ? ++eval : ++step);
}

/* ---- events ---- */

static Value *event_of(const Op *op)
{
	Value *v = op->n_in ? op_in(op, op->n_in - 1) : NULL;
	return v && v->type.kind == TYPE_EVENT ? v : NULL;
}

static bool has_event(const Op *op)
{
	return is_comm(op) && event_of(op);
}

/* event NULL: none. */
static void set_event(Module *m, Op *op, Value *event)
{
	Value *in[3];
	int n = op->n_in - (event_of(op) != NULL);
	for (int i = 0; i < n; i++)
		in[i] = op_in(op, i);
	if (event)
		in[n++] = event;
	ir_set_n_in(m, op, n, in);
}

int count_events(const Module *m)
{
	int n = 0;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			n += has_event(op);
	return n;
}

const char *drop_event(Module *m, int k)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			if (has_event(op) && !k--) {
				Op *record = event_of(op)->op;
				Mutation x = {.m = m};
				set_event(m, op, NULL);
				if (!record->out[0]->n_uses)
					ir_remove(m, record);
				return name_of(&x, op);
			}
	return NULL;
}

static Value *record_before(Module *m, Op *before)
{
	Builder b = {.m = m, .section = before->section, .before = before, .loc = before->loc};
	return ir_emit(&b, OP_RECORD, 0, NULL, NULL);
}

void add_all_events(Module *m)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			if (may_record(op) && !event_of(op))
				set_event(m, op, record_before(m, op));
}

/* ---- links of ops ---- */

static Op *user_of(const Op *op, OpKind kind)
{
	for (const Use *u = op && op->n_out ? op->out[0]->uses : NULL; u; u = u->next)
		if (u->op->kind == kind)
			return u->op;
	return NULL;
}

/* The op that ends what a wait made readable. */
static Op *end_of(const Op *wait)
{
	Op *reshard = user_of(wait, OP_RESHARD);
	return reshard ? reshard : user_of(wait, OP_CARRY);
}

/* All uses of op's results become those of other. */
static void give_uses(Op *op, Op *other)
{
	for (int i = 0; i < op->n_out; i++)
		ir_replace_uses(op->out[i], other->out[i]);
}

static bool is_used(const Op *op)
{
	for (int i = 0; i < op->n_out; i++)
		if (op->out[i]->n_uses)
			return true;
	return false;
}

/* The gather of the same unit before this one in the same program. */
static Op *gather_before(const Op *gather)
{
	Op *found = NULL;
	for (Op *op = gather->prev; op && !found; op = op->prev)
		found = op->kind == OP_ALL_GATHER && op->unit == gather->unit ? op : NULL;
	return found;
}

static Op *earlier_gather(Module *m, const Op *gather)
{
	Op *found = gather_before(gather);
	for (int s = (int)gather->section - 1; !found && gather->section != SEC_EVAL && s >= 0; s--)
		for (Op *op = m->last[s]; op && !found; op = op->prev)
			found = op->kind == OP_ALL_GATHER && op->unit == gather->unit ? op : NULL;
	return found;
}

/* ---- drops ---- */

/* What read the copy of this gather reads the copy before it. */
static bool drop_gather(Mutation *x, Op *gather, bool keep)
{
	Op *wait = user_of(gather, OP_WAIT), *old = earlier_gather(x->m, gather), *held = user_of(old, OP_WAIT);
	Op *reshard = end_of(wait), *early = end_of(held);
	if (!reshard || !early)
		return false;
	SAID(x, "%s is dropped, the copy before it is %s", name_of(x, gather), keep ? "kept and read" : "read");
	ir_remove(x->m, keep ? early : reshard);
	give_uses(wait, held);
	ir_remove(x->m, wait);
	ir_remove(x->m, gather);
	if (keep && below(x, 2))
		remove_attr(old, "slot");
	return true;
}

static void drop_operand(Module *m, Op *op, const Value *v)
{
	Value **in = NEW_N(m->arena, Value *, op->n_in);
	int n = 0;
	for (int i = 0; i < op->n_in; i++)
		if (op_in(op, i) != v)
			in[n++] = op_in(op, i);
	ir_set_n_in(m, op, n, in);
}

/* Where the result has the operand's type (all_reduce), what is not reduced takes its place; else the unit is
 * left out of norm and update. */
static bool drop_reduce(Mutation *x, Op *op)
{
	Op *wait = user_of(op, OP_WAIT);
	if (!wait)
		return false;
	SAID(x, "%s is dropped", name_of(x, op));
	if (type_equal(&wait->out[0]->type, &op_in(op, 0)->type))
		ir_replace_uses(wait->out[0], op_in(op, 0));
	while (wait->out[0]->n_uses) {
		Op *user = wait->out[0]->uses->op;
		if (user->kind == OP_SUMSQ)
			drop_operand(x->m, user, wait->out[0]);
		else if (user->kind == OP_UPDATE_SHARD)
			ir_remove(x->m, user);
		else if (user->kind == OP_ALL_REDUCE)
			return drop_reduce(x, user);
		else
			ice("%s reads a reduced gradient", op_info[user->kind].text);
	}
	ir_remove(x->m, wait);
	ir_remove(x->m, op);
	return true;
}

static bool drop(Mutation *x)
{
	Op *op = pick(x, is_target);
	if (!op || op->kind == OP_RECORD || adds_product(op))
		return false;
	if (op->kind == OP_ALL_GATHER)
		return drop_gather(x, op, false);
	if (op->kind == OP_REDUCE_SCATTER || op->kind == OP_ALL_REDUCE || op->kind == OP_REDUCE)
		return drop_reduce(x, op);
	if (op->kind == OP_WAIT && is_used(op))
		return false;
	SAID(x, "%s is dropped", name_of(x, op));
	Op *wait = op->kind == OP_BROADCAST_FLAT ? user_of(op, OP_WAIT) : NULL;
	if (wait && !is_used(wait))
		ir_remove(x->m, wait);
	if (op->kind == OP_ACCUMULATE)
		ir_replace_uses(op->out[0], op_in(op, 0));
	if (op->kind == OP_ALL_REDUCE_SCALARS && op->n_in && op_in(op, 0))
		ir_replace_uses(op->out[0], op_in(op, 0));
	if (!is_used(op))
		ir_remove(x->m, op);
	return true;
}

static bool is_gather(const Op *op)
{
	return op->kind == OP_ALL_GATHER;
}

static bool keep_gathered(Mutation *x)
{
	Op *op = pick(x, is_gather);
	return op && drop_gather(x, op, true);
}

static bool is_event_user(const Op *op)
{
	return has_event(op);
}

static bool drop_an_event(Mutation *x)
{
	Op *op = pick(x, is_event_user);
	if (!op)
		return false;
	SAID(x, "%s loses its event", name_of(x, op));
	set_event(x->m, op, NULL);
	return true;
}

/* ---- moves ---- */

/* Before which op of its section it may stand: behind what it takes, before what takes it. */
static void window(Module *m, const Op *op, int64_t *first, int64_t *last)
{
	*first = 0;
	*last = m->last[op->section]->order + 1;
	for (int i = 0; i < op->n_in; i++)
		if (op_in(op, i) && op_in(op, i)->op->section == op->section)
			*first = MAX(*first, op_in(op, i)->op->order + 1);
	for (int i = 0; i < op->n_out; i++)
		for (const Use *u = op->out[i]->uses; u; u = u->next)
			if (u->op->section == op->section)
				*last = MIN(*last, u->op->order);
}

static void place(Module *m, Op *op, SectionKind s, int64_t at)
{
	Op *before = m->first[s];
	while (before && (before->order < at || before == op))
		before = before->next;
	if (before)
		ir_move_before(m, op, before);
	else
		ir_move_to_end(m, op, s);
}

static bool move_across(Mutation *x, Op *op)
{
	bool later = below(x, 2);
	SectionKind to = later ? op->section + 1 : op->section - 1;
	if (op->section == SEC_EVAL || to == SEC_EVAL || (op->section == SEC_FORWARD && !later))
		return false;
	SAID(x, "%s is moved to the %s of section %d", name_of(x, op), later ? "start" : "end", to);
	place(x->m, op, to, later ? below(x, 3) : INT64_MAX);
	return true;
}

static bool move(Mutation *x)
{
	Op *op = pick(x, is_target);
	int64_t first, last;
	if (!below(x, 12))
		return move_across(x, op);
	window(x->m, op, &first, &last);
	if (!below(x, 10)) {
		first = 0;
		last = x->m->last[op->section]->order + 1;
	} else if (below(x, 2)) { /* near */
		first = MAX(first, op->order - 5);
		last = MIN(last, op->order + 6);
	}
	int64_t to = first + below(x, MAX(last - first, 0) + 1);
	if (to == op->order || to == op->order + 1)
		return false;
	SAID(x, "%s is moved before op %lld", name_of(x, op), (long long)to);
	place(x->m, op, op->section, to);
	return true;
}

/* Two ops of a section change places. */
static bool swap(Mutation *x)
{
	Op *a = pick(x, is_target), *b = pick(x, is_target);
	for (int i = 0; i < 50 && (a == b || a->section != b->section || (i < 40 && a->kind != b->kind)); i++)
		b = pick(x, is_target);
	if (a == b || a->section != b->section)
		return false;
	SAID(x, "%s and %s change places", name_of(x, a), name_of(x, b));
	int64_t at_a = a->order, at_b = b->order;
	place(x->m, a, a->section, at_b);
	ir_number(x->m);
	place(x->m, b, b->section, at_a + (at_b < at_a));
	return true;
}

/* ---- copies ---- */

/* Gather, wait and reshard once more, one behind the other, anywhere in the section. */
static void gather_again(Mutation *x, Op *gather)
{
	Op *before = x->m->first[gather->section];
	for (int n = below(x, x->m->last[gather->section]->order + 1); n; n--)
		before = before->next;
	PtrMap *map = ptrmap_new(x->m->arena);
	Op *wait = user_of(gather, OP_WAIT), *reshard = end_of(wait);
	Builder b = {.m = x->m, .section = before->section, .before = before, .loc = gather->loc};
	Op *copy = ir_clone(&b, gather, map);
	set_event(x->m, copy, below(x, 2) ? record_before(x->m, copy) : NULL);
	if (below(x, 2))
		remove_attr(copy, "slot");
	SAID(x, "%s is done again before op %lld", name_of(x, gather), (long long)before->order);
	if (!reshard)
		return;
	b.loc = wait->loc;
	ir_clone(&b, wait, map);
	b.loc = reshard->loc;
	ir_clone(&b, reshard, map);
}

static bool duplicate(Mutation *x)
{
	Op *op = pick(x, is_target), *before = op->next;
	for (int n = below(x, 2) ? below(x, 20) : 0; n && before; n--)
		before = before->next;
	if (!before || op->kind == OP_RECORD)
		return false;
	SAID(x, "%s is done again before op %lld", name_of(x, op), (long long)before->order);
	Builder b = {.m = x->m, .section = before->section, .before = before, .loc = op->loc};
	if (op->kind == OP_ALL_GATHER && below(x, 3)) {
		gather_again(x, op);
		return true;
	}
	PtrMap *map = ptrmap_new(x->m->arena);
	ir_clone(&b, op, map);
	Op *wait = is_comm(op) && op->kind != OP_ALL_GATHER ? user_of(op, OP_WAIT) : NULL;
	if (wait && below(x, 2))
		ir_clone(&b, wait, map);
	return true;
}

/* ---- attributes and operands ---- */

static bool change_slot(Mutation *x)
{
	Op *op = pick(x, has_slot);
	int64_t old = op ? attr_get_int(op->attrs, "slot", -1) : -1, now = below(x, 5) - 1;
	if (!op || old == now)
		return false;
	SAID(x, "%s has slot %lld instead of %lld", name_of(x, op), (long long)now, (long long)old);
	remove_attr(op, "slot");
	if (now >= 0)
		set_int(x->m, op, "slot", now);
	return true;
}

static bool is_record(const Op *op)
{
	return op->kind == OP_RECORD;
}

/* Gives a collective the event of another record, also where it has none. */
static bool change_event(Mutation *x)
{
	Op *op = pick(x, may_record), *record = pick(x, is_record);
	if (!op || !record || event_of(op) == record->out[0])
		return false;
	bool eval = record->section == SEC_EVAL;
	bool before = record->section < op->section || (record->section == op->section && record->order < op->order);
	if (eval != (op->section == SEC_EVAL) || (!before && below(x, 8)))
		return false;
	SAID(x, "%s takes the event of %s", name_of(x, op), name_of(x, record));
	set_event(x->m, op, record->out[0]);
	return true;
}

static bool change_attr(Mutation *x)
{
	static const char *const streams[] = {"gather", "reduce", "sync"};
	Op *op = pick(x, is_comm);
	const char *way = op ? attr_get_str(op->attrs, "op", NULL) : NULL;
	if (!op)
		return false;
	if (way && below(x, 2)) {
		set_str(x->m, op, "op", strcmp(way, "mean") ? "mean" : "sum");
		SAID(x, "%s has op %s", name_of(x, op), attr_get_str(op->attrs, "op", ""));
		return true;
	}
	if (attr_find(op->attrs, "root") && below(x, 2)) {
		set_int(x->m, op, "root", (attr_get_int(op->attrs, "root", 0) + 1) % MAX(x->m->world, 2));
		SAID(x, "%s has another root", name_of(x, op));
		return true;
	}
	if (below(x, 2)) {
		Op *other = pick(x, is_comm);
		int64_t seq = attr_get_int(op->attrs, "seq", 0), at = attr_get_int(other->attrs, "seq", 0);
		set_int(x->m, op, "seq", at);
		set_int(x->m, other, "seq", seq);
		x->numbered = true;
		SAID(x, "%s and %s change numbers", name_of(x, op), name_of(x, other));
		return seq != at;
	}
	const char *stream = streams[below(x, 3)];
	if (!strcmp(stream, attr_get_str(op->attrs, "stream", "")))
		return false;
	set_str(x->m, op, "stream", stream);
	SAID(x, "%s runs on stream %s", name_of(x, op), stream);
	return true;
}

/* Its parameter becomes another of the unit that looks the same. */
static bool change_sum(Mutation *x, Op *op)
{
	const Unit *u = op->sym->unit;
	Symbol *other = u->params[below(x, u->n_params)];
	if (other == op->sym || !other->trainable || !type_equal(&other->type, &op->sym->type))
		return false;
	SAID(x, "%s adds to \"%s\" instead of \"%s\"", name_of(x, op), other->name, op->sym->name);
	op->sym = other;
	return true;
}

/* One of its gradients is said to be zero, or to be that of another parameter. */
static bool change_collect(Mutation *x, Op *op)
{
	int i = below(x, op->n_in), k = below(x, op->n_in);
	Value *a = op_in(op, i), *b = op_in(op, k);
	bool swaps = a && b && i != k && type_equal(&a->type, &b->type);
	if (!a || (!swaps && below(x, 2)))
		return false;
	SAID(x, "%s %s gradient %d", name_of(x, op), swaps ? "exchanges" : "loses", i);
	ir_set_in(op, i, swaps ? b : NULL);
	if (swaps)
		ir_set_in(op, k, a);
	return true;
}

/* Exchanges an op for its twin, lets a collective add where it replaced or the reverse, or spoils the sum of an
 * accumulate. */
static bool change_carry(Mutation *x)
{
	Op *op = pick(x, may_carry);
	if (!op || (!x->m->sync && op->kind != OP_COLLECT))
		return false;
	for (int i = 0; i < COUNT_OF(twins) * 2; i++)
		if (op->kind == twins[i / 2][i % 2]) {
			SAID(x, "%s becomes %s", name_of(x, op), op_info[twins[i / 2][1 - i % 2]].text);
			op->kind = twins[i / 2][1 - i % 2];
			if (op->kind == OP_CARRIED_GRAD)
				remove_attr(op, "slot");
			return true;
		}
	if (is_comm(op)) {
		bool adds = attr_find(op->attrs, "add");
		SAID(x, "%s %s", name_of(x, op), adds ? "is not added" : "is added");
		remove_attr(op, "add");
		if (!adds)
			set_int(x->m, op, "add", 1);
	} else if (op->kind == OP_COLLECT) {
		return op->n_in && change_collect(x, op);
	} else if (op->kind == OP_ACCUMULATE && below(x, 2)) {
		return change_sum(x, op);
	} else if (adds_product(op)) {
		SAID(x, "%s is a matmul and overwrites the sum", name_of(x, op));
		op->kind = OP_MATMUL;
		op->attrs = attr_dtype(x->m, op->attrs, "to", DT_F32);
		op->sym = NULL;
	} else if (op->kind == OP_ACCUMULATE && op->out[0]->n_uses) {
		SAID(x, "%s is not collected", name_of(x, op));
		ir_replace_uses(op->out[0], op_in(op, 0));
	} else {
		return false;
	}
	return true;
}

/* ---- all of them, the more useful ones more often ---- */

typedef struct Change { const char *name; bool (*make)(Mutation *x); int weight; } Change;
static const Change changes[] = {
	{"an op dropped", drop, 3}, {"a unit kept gathered", keep_gathered, 3}, {"no event", drop_an_event, 1},
	{"an op moved", move, 5}, {"two ops swapped", swap, 2}, {"an op done twice", duplicate, 2},
	{"another slot", change_slot, 2}, {"another event", change_event, 2}, {"another number, stream, op or root",
	change_attr, 1}, {"other gradients collected, summed or carried", change_carry, 2},
};
const int n_changes = COUNT_OF(changes);

const char *change_name(int change)
{
	return changes[change].name;
}

bool mutate(Mutation *x)
{
	int total = 0, change = 0;
	for (int i = 0; i < n_changes; i++)
		total += changes[i].weight;
	for (int at = below(x, total); at >= changes[change].weight; change++)
		at -= changes[change].weight;
	x->change = change;
	ir_number(x->m);
	if (!changes[change].make(x))
		return false;
	if (!x->numbered)
		number(x->m);
	return true;
}
