/* passes/cse.c: removes common subexpressions: of equal pure ops only the first is kept.
 *
 * Two ops are equal when their kind, attributes, operands, result types, symbol and unit are and, if they name a
 * symbol, no op between them has an effect on it.  Forward, backward and update share one table, since later
 * sections see the values of earlier ones; eval has its own.  The pass knows ops by their flags only.  EFFECT ops
 * are never merged; RNG ops may be, since equal ones draw equal numbers. */
#include "passes/passes.h"

typedef struct Entry { Op *op; uint64_t hash; int64_t version; } Entry;

typedef struct Cse {
	Module *m;
	Arena *scratch;
	Entry *slot; /* open addressing; n_slots is a power of two */
	int n, n_slots;
	PtrMap *version; /* Symbol or Unit -> number of effects on it so far */
} Cse;

static int64_t version_of(const Cse *c, const Op *op)
{
	return (intptr_t)ptrmap_get(c->version, op->sym) + (intptr_t)ptrmap_get(c->version, op->unit);
}

static void bump(Cse *c, const void *key)
{
	if (key)
		ptrmap_put(c->version, key, (void *)((intptr_t)ptrmap_get(c->version, key) + 1));
}

/* Operands of commutative ops compare as if the one with the lower id came first. */
static Value *operand(const Op *op, int i)
{
	if (op_info[op->kind].flags & COM && op->n_in == 2 && op->in[0].value->id > op->in[1].value->id)
		i = 1 - i;
	return op->in[i].value;
}

static uint64_t hash_attrs(const Attr *a, uint64_t h)
{
	for (; a; a = a->next) {
		uint64_t head[3] = {(uint64_t)(uintptr_t)a->name, (uint64_t)a->kind, (uint64_t)a->n};
		h = hash_bytes(head, sizeof(head), h);
		if (a->kind == ATTR_INTS)
			h = hash_bytes(a->ints, sizeof(*a->ints) * (size_t)a->n, h);
		else if (a->kind == ATTR_FLOATS)
			h = hash_bytes(a->floats, sizeof(*a->floats) * (size_t)a->n, h);
	}
	return h;
}

static uint64_t hash_op(const Op *op, int64_t version)
{
	uint64_t head[5] = {(uint64_t)op->kind, (uint64_t)op->n_in, (uint64_t)version,
		(uint64_t)(uintptr_t)op->sym, (uint64_t)(uintptr_t)op->unit};
	uint64_t h = hash_attrs(op->attrs, hash_bytes(head, sizeof(head), 0));
	for (int i = 0; i < op->n_in; i++) {
		int id = operand(op, i) ? operand(op, i)->id : -1;
		h = hash_bytes(&id, sizeof(id), h);
	}
	return h;
}

static bool equal_ops(const Op *a, const Op *b)
{
	if (a->kind != b->kind || a->n_in != b->n_in || a->n_out != b->n_out || a->sym != b->sym
			|| a->unit != b->unit || !attr_equal(a->attrs, b->attrs))
		return false;
	for (int i = 0; i < a->n_in; i++)
		if (operand(a, i) != operand(b, i))
			return false;
	for (int i = 0; i < a->n_out; i++)
		if (!type_equal(&a->out[i]->type, &b->out[i]->type))
			return false;
	return true;
}

static Entry *find(const Cse *c, const Op *op, uint64_t hash, int64_t version)
{
	unsigned mask = (unsigned)c->n_slots - 1, i = (unsigned)hash & mask;
	for (; c->slot[i].op; i = (i + 1) & mask) {
		const Entry *e = &c->slot[i];
		if (e->hash == hash && e->version == version && (e->op == op || equal_ops(e->op, op)))
			break;
	}
	return &c->slot[i];
}

static void grow(Cse *c)
{
	Cse old = *c;
	c->n_slots = c->n_slots ? c->n_slots * 2 : 1024;
	c->slot = NEW_N(c->scratch, Entry, c->n_slots);
	for (int i = 0; i < old.n_slots; i++)
		if (old.slot[i].op)
			*find(c, old.slot[i].op, old.slot[i].hash, old.slot[i].version) = old.slot[i];
}

static void clear(Cse *c)
{
	c->slot = NULL;
	c->n = c->n_slots = 0;
}

static void merge(Cse *c, Op *op)
{
	if (2 * (c->n + 1) > c->n_slots)
		grow(c);
	int64_t version = version_of(c, op);
	uint64_t hash = hash_op(op, version);
	Entry *e = find(c, op, hash, version);
	if (!e->op) {
		*e = (Entry){op, hash, version};
		c->n++;
		return;
	}
	for (int i = 0; i < op->n_out; i++)
		ir_replace_uses(op->out[i], e->op->out[i]);
	ir_remove(c->m, op);
}

bool pass_cse(Module *m, const Options *o, Diag *d)
{
	(void)o, (void)d;
	Cse c = {.m = m, .scratch = arena_new()};
	c.version = ptrmap_new(c.scratch);
	for (int s = 0; s < SEC_COUNT; s++) {
		if (s == SEC_EVAL)
			clear(&c);
		IR_FOR_OPS_SAFE(m, s, op) {
			if (op_has_effect(op)) {
				bump(&c, op->sym);
				bump(&c, op->unit);
			} else if (!op->body_first && !op->body && op->n_out && op->kind != OP_ARGUMENT) {
				merge(&c, op);
			}
		}
	}
	arena_free(c.scratch);
	return true;
}
