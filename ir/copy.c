/* ir/copy.c: copies a module that is below level SHARD, where plans with different options begin.
 *
 * A copy is what reading the module's text would give, ids and lists of uses included.  Nothing changes strings,
 * attributes and locations once they are made, so the copy shares them with the original, which must live longer. */
#include "ir/ir.h"

typedef struct Copy {
	Module *to;
	Symbol **symbol;  /* by index, of the outermost module */
	Value **value;    /* by old id, of this module */
	PtrMap *op;       /* old op -> new op */
	Arena *scratch;
} Copy;

static Value **copy_values(Copy *c, int n, Value *const *from, Op *op)
{
	Value **to = NEW_N(c->to->ops, Value *, n);
	for (int i = 0; i < n; i++) {
		to[i] = NEW(c->to->ops, Value);
		*to[i] = *from[i];
		to[i]->op = op;
		c->value[from[i]->id] = to[i];
	}
	return to;
}

static Module *copy_of(const Module *from, Module *to, Symbol **symbol);

static Op *copy_op(Copy *c, const Op *from, Op **first, Op **last)
{
	Op *op = NEW(c->to->ops, Op);
	*op = *from;
	op->prev = *last;
	op->next = NULL;
	*(op->prev ? &op->prev->next : first) = op;
	*last = op;
	op->in = NEW_N(c->to->ops, Use, op->n_in);
	op->out = copy_values(c, op->n_out, from->out, op);
	op->sym = from->sym ? c->symbol[from->sym->index] : NULL;
	ptrmap_put(c->op, from, op);
	if (from->body)
		op->body = copy_of(from->body, ir_body_new(c->to), c->symbol);
	if (from->kind != OP_FUSED)
		return op;
	op->args = copy_values(c, op->n_in, from->args, op);
	op->body_first = op->body_last = NULL;
	for (const Op *inner = from->body_first; inner; inner = inner->next)
		copy_op(c, inner, &op->body_first, &op->body_last)->parent = op;
	return op;
}

/* The list of the uses of `from`, in its order, as slots of the new ops. */
static void copy_uses(const Copy *c, const Value *from)
{
	Value *v = c->value[from->id];
	Use *before = NULL, **at = &v->uses;
	for (const Use *u = from->uses; u; u = u->next) {
		Op *op = ptrmap_get(c->op, u->op);
		Use *now = &op->in[u - u->op->in];
		*now = (Use){.value = v, .op = op, .prev = before};
		before = *at = now;
		at = &now->next;
	}
	*at = NULL;
}

static void copy_uses_of_op(const Copy *c, const Op *from)
{
	Op *op = ptrmap_get(c->op, from);
	for (int i = 0; i < from->n_out; i++)
		copy_uses(c, from->out[i]);
	for (int i = 0; i < from->n_in; i++) {
		op->in[i].op = op; /* also of an operand that is absent */
		if (from->kind == OP_FUSED)
			copy_uses(c, from->args[i]);
	}
	for (const Op *inner = from->body_first; inner; inner = inner->next)
		copy_uses_of_op(c, inner);
}

/* Copies ops, and counts and names of what they make, into a module that has none. */
static Module *copy_of(const Module *from, Module *to, Symbol **symbol)
{
	Copy c = {.to = to, .symbol = symbol, .scratch = arena_new()};
	c.value = NEW_N(c.scratch, Value *, from->n_values);
	c.op = ptrmap_new(c.scratch);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(from, s, op)
			copy_op(&c, op, &to->first[s], &to->last[s]);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(from, s, op)
			copy_uses_of_op(&c, op);
	to->at = from->at;
	to->n_values = from->n_values;
	to->n_locs = from->n_locs;
	to->value_names = map_copy(from->value_names, to->arena);
	arena_free(c.scratch);
	return to;
}

static void copy_symbols(Module *to, const Module *from)
{
	to->symbols = NEW_N(to->arena, Symbol *, from->n_symbols);
	to->n_symbols = to->cap_symbols = from->n_symbols;
	for (int i = 0; i < from->n_symbols; i++) {
		to->symbols[i] = NEW(to->arena, Symbol);
		*to->symbols[i] = *from->symbols[i];
		map_put(to->symbol_by_name, to->symbols[i]->name, to->symbols[i]);
	}
	to->symbol_names = map_copy(from->symbol_names, to->arena);
}

Module *ir_copy(const Module *from)
{
	if (from->n_units || from->outer)
		ice("a module with units, or the body of a loop, is copied");
	Module *to = ir_module_new(from->name);
	to->interned = map_copy(from->interned, to->arena);
	to->name = from->name;
	to->file = from->file;
	to->text = from->text;
	to->level = from->level;
	to->variant = from->variant;
	to->sync = from->sync;
	to->batch = from->batch;
	to->world = from->world;
	copy_symbols(to, from);
	if (from->train) {
		to->train = NEW(to->arena, Train);
		*to->train = *from->train;
	}
	return copy_of(from, to, to->symbols);
}
