/* ir/compact.c: copies the ops of a module into new memory, in the order of their lists.
 *
 * Passes remove ops, make others and reorder them.  After a while a walk over a list jumps through memory that mostly
 * holds removed ops, and waits for each op it reads.  After compaction ops, with their operands and results, lie in the
 * order of their lists.  Ids of values follow the same order, which serves tables indexed by id.  Lists of uses keep
 * their order. */
#include "ir/ir.h"

typedef struct Compact {
	Arena *to;
	Value **value; /* by old id: the new value */
	int n_values;
} Compact;

static Value *move_value(Compact *c, const Value *from, Op *op)
{
	Value *v = NEW(c->to, Value);
	*v = *from;
	v->op = op;
	c->value[from->id] = v;
	v->id = c->n_values++;
	return v;
}

static Value **move_values(Compact *c, int n, Value *const *from, Op *op)
{
	Value **to = NEW_N(c->to, Value *, n);
	for (int i = 0; i < n; i++)
		to[i] = move_value(c, from[i], op);
	return to;
}

/* Copies an op to the end of a list.  The copy's operands still name old values (relink replaces them), and the `prev`
 * of each old operand slot points to the new slot. */
static Op *move_op(Compact *c, const Op *from, Op **first, Op **last)
{
	Op *op = NEW(c->to, Op);
	*op = *from;
	op->prev = *last;
	op->next = NULL;
	*(op->prev ? &op->prev->next : first) = op;
	*last = op;
	op->in = NEW_N(c->to, Use, op->n_in);
	for (int i = 0; i < op->n_in; i++) {
		op->in[i] = (Use){.value = from->in[i].value, .op = op};
		from->in[i].prev = &op->in[i];
	}
	op->out = move_values(c, op->n_out, from->out, op);
	return op;
}

static void move_body(Compact *c, const Op *from, Op *op)
{
	op->args = move_values(c, op->n_in, from->args, op);
	op->body_first = op->body_last = NULL;
	for (const Op *inner = from->body_first; inner; inner = inner->next)
		move_op(c, inner, &op->body_first, &op->body_last)->parent = op;
}

/* Replaces a value's list of old operand slots by the list of the new ones, in the same order. */
static void relink_uses(Value *v)
{
	Use *before = NULL, **at = &v->uses;
	for (const Use *was = v->uses; was; was = was->next) {
		Use *u = was->prev;
		u->prev = before;
		before = *at = u;
		at = &u->next;
	}
	*at = NULL;
}

static void relink(const Compact *c, Op *op)
{
	for (int i = 0; i < op->n_in; i++)
		if (op->in[i].value)
			op->in[i].value = c->value[op->in[i].value->id];
	for (int i = 0; i < op->n_out; i++)
		relink_uses(op->out[i]);
}

static void relink_fused(const Compact *c, Op *op)
{
	for (int i = 0; i < op->n_in; i++)
		relink_uses(op->args[i]);
	for (Op *inner = op->body_first; inner; inner = inner->next)
		relink(c, inner);
}

void ir_compact(Module *m)
{
	if (m->outer)
		ice("the body of a loop is compacted alone");
	Compact c = {.to = arena_new()};
	Arena *scratch = arena_new();
	c.value = NEW_N(scratch, Value *, MAX(m->n_values, 1));
	for (int s = 0; s < SEC_COUNT; s++) {
		const Op *op = m->first[s];
		m->first[s] = m->last[s] = NULL;
		for (; op; op = op->next) {
			Op *now = move_op(&c, op, &m->first[s], &m->last[s]);
			if (op->kind == OP_FUSED)
				move_body(&c, op, now);
		}
	}
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op) {
			relink(&c, op);
			if (op->kind == OP_FUSED)
				relink_fused(&c, op);
		}
	m->n_values = c.n_values;
	arena_free(scratch);
	arena_free(m->ops);
	m->ops = c.to;
}
