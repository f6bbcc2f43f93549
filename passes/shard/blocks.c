/* passes/shard/blocks.c: finds the repeated blocks of a model.
 *
 * First by module scope: "h.0" and "h.1" are elements of the container "h".  An element is a block when it has at
 * least two sub-scopes (so that the layers of a flat Sequential are not blocks).  Of nested containers the
 * outermost one is taken in which two elements compute the same: the layers of a ResNet rather than its stages, the
 * blocks of a T5 rather than their halves.  If there is no such container, an outermost container with two elements
 * is taken.  When no op has a scope, blocks are found by repetition: the longest stretch of the op list that
 * repeats itself with a fixed period, cut where the fewest bytes cross from one period to the next.
 *
 * Does not change the module.  Deterministic; cost is linear in the number of ops. */
#include "passes/passes.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static Blocks *no_blocks(const Module *m, Arena *a)
{
	Blocks *b = NEW(a, Blocks);
	b->of_value = NEW_N(a, int, m->n_values);
	for (int i = 0; i < m->n_values; i++)
		b->of_value[i] = -1;
	return b;
}

static void set_block(Blocks *b, const Op *op, int block)
{
	for (int i = 0; i < op->n_out; i++)
		b->of_value[op->out[i]->id] = block;
}

static bool is_source(const Op *op)
{
	return op_info[op->kind].flags & SRC;
}

/* ---- what makes two ops alike ---- */

static uint64_t hash_attrs(const Attr *attrs, uint64_t h)
{
	for (const Attr *a = attrs; a; a = a->next) {
		h = hash_bytes(a->name, strlen(a->name), h);
		if (!strcmp(a->name, "id")) /* of a dropout, and never equal */
			continue;
		if (a->kind == ATTR_INTS || a->kind == ATTR_FLOATS)
			h = hash_bytes(a->ints, sizeof(int64_t) * (size_t)a->n, h);
		else if (a->kind == ATTR_STR)
			h = hash_bytes(a->s, strlen(a->s), h);
		else if (a->kind == ATTR_DTYPE)
			h = hash_bytes(&a->dtype, sizeof(a->dtype), h);
		else
			h = hash_bytes(&a->i, sizeof(a->i), h);
	}
	return h;
}

static uint64_t hash_type(const Type *t, uint64_t h)
{
	DType dtype = t->dtype;
	h = hash_bytes(&dtype, sizeof(dtype), h);
	return hash_bytes(t->dim, sizeof(*t->dim) * (size_t)t->rank, h);
}

static uint64_t hash_op(const Op *op)
{
	uint64_t h = hash_attrs(op->attrs, hash_bytes(&op->kind, sizeof(op->kind), 1));
	for (int i = 0; i < op->n_in; i++)
		h = op_in(op, i) ? hash_type(&op_in(op, i)->type, h) : h + 1;
	for (int i = 0; i < op->n_out; i++)
		h = hash_type(&op->out[i]->type, h);
	for (const Op *inner = op->body_first; inner; inner = inner->next)
		h = hash_attrs(inner->attrs, hash_bytes(&inner->kind, sizeof(inner->kind), h));
	for (const Op *inner = op->body ? op->body->first[SEC_FORWARD] : NULL; inner; inner = inner->next)
		h = hash_attrs(inner->attrs, hash_bytes(&inner->kind, sizeof(inner->kind), h));
	return h;
}

/* ---- by scope ---- */

typedef struct Container { int n_blocks; } Container;

/* Containers whose names differ in indices only: "stages.0.layers", "stages.1.layers". */
typedef struct Family {
	Map *seen;            /* signatures of its elements */
	bool repeats;         /* two of them are alike */
} Family;

typedef struct Element {
	const char *name;     /* "h.0" */
	const char *child;    /* the first sub-scope that was seen, at any depth */
	bool many;            /* another sub-scope was seen */
	uint64_t signature;   /* hash of its ops, independent of their order */
	int index;            /* index of its block, -1 = it is not a block */
	Container *container;
	Family *family;
} Element;

typedef struct Scopes {
	Arena *a;
	Map *elements;        /* name -> Element */
	Map *containers;      /* name -> Container */
	Map *families;        /* name with # for digits -> Family */
	bool any;             /* some op has a scope */
	bool repeats;         /* some family repeats */
} Scopes;

/* TorchScript exports scopes as node names: "/h.0/attn/MatMul". */
const char *blocks_scope(Arena *a, const Loc *loc)
{
	if (loc->scope && *loc->scope)
		return loc->scope;
	const char *last = loc->node && loc->node[0] == '/' ? strrchr(loc->node, '/') : NULL;
	if (!last || last == loc->node)
		return "";
	char *s = arena_strndup(a, loc->node + 1, (size_t)(last - loc->node - 1));
	for (char *c = s; *c; c++)
		if (*c == '/')
			*c = '.';
	return s;
}

static bool all_digits(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isdigit((unsigned char)s[i]))
			return false;
	return n > 0;
}

/* The number of bytes of the container's name in an element's component: "h" of "h" + "3", "layer" of "layer_3"; -1
 * when the component has no index. */
static int container_length(const char *scope, const char *component, size_t n)
{
	const char *line = component + n;
	if (all_digits(component, n))
		return component > scope ? (int)(component - scope) - 1 : 0;
	while (line > component && isdigit((unsigned char)line[-1]))
		line--;
	if (line == component + n || line - 1 <= component || line[-1] != '_')
		return -1;
	return (int)(line - 1 - scope);
}

static Family *family_get(Scopes *s, const char *container)
{
	char *name = arena_strdup(s->a, container), *to = name;
	for (const char *c = container; *c; c++)
		if (!isdigit((unsigned char)*c))
			*to++ = *c;
		else if (to == name || to[-1] != '#')
			*to++ = '#';
	*to = 0;
	Family *f = map_get(s->families, name);
	if (f)
		return f;
	f = NEW(s->a, Family);
	f->seen = map_new(s->a);
	map_put(s->families, name, f);
	return f;
}

static Element *element_get(Scopes *s, const char *scope, size_t length, int container_len)
{
	char *name = arena_strndup(s->a, scope, length);
	Element *e = map_get(s->elements, name);
	if (e)
		return e;
	char *holder = arena_strndup(s->a, scope, (size_t)container_len);
	e = NEW(s->a, Element);
	e->name = name;
	e->index = -1;
	e->family = family_get(s, holder);
	e->container = map_get(s->containers, holder);
	if (!e->container)
		map_put(s->containers, holder, e->container = NEW(s->a, Container));
	map_put(s->elements, name, e);
	return e;
}

typedef void ElementFn(Scopes *s, Element *e, const char *rest, void *ctx);

/* Calls f for every indexed component of the scope, outermost first; rest is the part behind the component. */
static void for_elements(Scopes *s, const char *scope, ElementFn *f, void *ctx)
{
	for (const char *c = scope; *c;) {
		size_t n = strcspn(c, ".");
		int held = container_length(scope, c, n);
		if (held >= 0)
			f(s, element_get(s, scope, (size_t)(c + n - scope), held), c[n] ? c + n + 1 : "", ctx);
		c += n + (c[n] == '.');
	}
}

static void note_op(Scopes *s, Element *e, const char *rest, void *ctx)
{
	const uint64_t *hash = ctx;
	(void)s;
	e->signature += *hash;
	if (!*rest || e->many)
		return;
	if (!e->child)
		e->child = rest;
	else if (strcmp(e->child, rest))
		e->many = true;
	if (e->many)
		e->container->n_blocks++;
}

static void find_families(Scopes *s)
{
	for (int i = 0; i < map_count(s->elements); i++) {
		const Element *e = map_get(s->elements, map_key(s->elements, i));
		const char *key = arena_printf(s->a, "%llx", (unsigned long long)e->signature);
		if (!e->many)
			continue;
		e->family->repeats = e->family->repeats || map_has(e->family->seen, key);
		s->repeats = s->repeats || e->family->repeats;
		map_put(e->family->seen, key, NULL);
	}
}

static void outermost(Scopes *s, Element *e, const char *rest, void *ctx)
{
	Element **found = ctx;
	(void)rest;
	if (!*found && e->many && (s->repeats ? e->family->repeats : e->container->n_blocks >= 2))
		*found = e;
}

/* An op without a scope belongs to the block from which all of its computed operands come. */
static int block_of_operands(const Blocks *b, const Op *op)
{
	int block = -1, n = 0;
	for (int i = 0; i < op->n_in; i++) {
		Value *v = op_in(op, i);
		if (!v || is_source(v->op))
			continue;
		if (n++ && b->of_value[v->id] != block)
			return -1;
		block = b->of_value[v->id];
	}
	return block;
}

/* Finds blocks by scopes; NULL: no op has a scope. */
static Blocks *by_scope(Module *m, SectionKind section, Arena *a)
{
	Scopes s = {.a = a, .elements = map_new(a), .containers = map_new(a), .families = map_new(a)};
	Blocks *b = no_blocks(m, a);
	VEC(const char *) names = {0};
	IR_FOR_OPS(m, section, op) {
		const char *scope = blocks_scope(a, op->loc);
		uint64_t hash = hash_op(op);
		s.any = s.any || *scope;
		if (!is_source(op))
			for_elements(&s, scope, note_op, &hash);
	}
	if (!s.any)
		return NULL;
	find_families(&s);
	IR_FOR_OPS(m, section, op) {
		const char *scope = blocks_scope(a, op->loc);
		Element *e = NULL;
		if (is_source(op))
			continue;
		for_elements(&s, scope, outermost, &e);
		if (e && e->index < 0) {
			e->index = names.n;
			vec_push(a, &names, e->name);
		}
		set_block(b, op, e ? e->index : *scope ? -1 : block_of_operands(b, op));
	}
	b->n = names.n;
	b->name = names.at;
	return b;
}

/* ---- by repetition ---- */

enum { WINDOW = 3 };  /* ops whose hashes must agree before a distance is tried as a period; shortest period */

typedef struct Sequence {
	Op **op;
	uint64_t *hash;
	int n;
} Sequence;

/* Whether a result depends on inputs or parameters.  Other results, such as tables of rope or masks, are computed
 * once by the first op that needs them and belong to no block. */
static bool op_varies(const Op *op, const bool *varies)
{
	bool any = op->kind == OP_INPUT || op->kind == OP_PARAM;
	for (int i = 0; i < op->n_in && !any; i++)
		any = op_in(op, i) && varies[op_in(op, i)->id];
	return any;
}

static Sequence sequence_of(Module *m, SectionKind section, Arena *a)
{
	Sequence s = {0};
	bool *varies = NEW_N(a, bool, m->n_values);
	int n = 0;
	IR_FOR_OPS(m, section, op)
		n++;
	s.op = NEW_N(a, Op *, n);
	s.hash = NEW_N(a, uint64_t, n);
	IR_FOR_OPS(m, section, op) {
		bool any = op_varies(op, varies);
		for (int i = 0; i < op->n_out; i++)
			varies[op->out[i]->id] = any;
		if (is_source(op) || op_has_effect(op) || !any)
			continue;
		s.op[s.n] = op;
		s.hash[s.n++] = hash_op(op);
	}
	return s;
}

/* The longest run of i with hash[i] == hash[i + period]; length 0 when it is shorter than one period. */
static int longest_run(const Sequence *s, int period, int *start)
{
	int best = 0, run = 0;
	for (int i = 0; i + period < s->n; i++) {
		run = s->hash[i] == s->hash[i + period] ? run + 1 : 0;
		if (run > best) {
			best = run;
			*start = i - run + 1;
		}
	}
	return best >= period ? best : 0;
}

typedef struct Last { int at; } Last;

/* How often each distance separates equal windows. */
static int *window_distances(const Sequence *s, Arena *a)
{
	int *count = NEW_N(a, int, s->n + 1);
	Map *seen = map_new(a);
	for (int i = 0; i + WINDOW <= s->n; i++) {
		char key[20];
		snprintf(key, sizeof(key), "%016llx",
			(unsigned long long)hash_bytes(&s->hash[i], WINDOW * sizeof(*s->hash), 2));
		Last *last = map_get(seen, key);
		if (last)
			count[i - last->at]++;
		else
			map_put(seen, key, last = NEW(a, Last));
		last->at = i;
	}
	return count;
}

/* The period that covers most ops; of nearly equal ones the shortest. */
static int best_period(const Sequence *s, Arena *a, int *start, int *run)
{
	enum { TRIES = 8 };
	int *count = window_distances(s, a);
	int period = 0;
	*run = 0;
	for (int t = 0; t < TRIES; t++) {
		int most = 0, at = 0, length;
		for (int p = WINDOW; p < s->n; p++)
			if (count[p] > count[most])
				most = p;
		if (!count[most])
			break;
		count[most] = 0;
		length = longest_run(s, most, &at);
		if (!length)
			continue;
		int covered = length + most, best = *run + period;
		if (covered > best + best / 8 || (most < period && covered >= best - best / 8)) {
			period = most;
			*start = at;
			*run = length;
		}
	}
	return period;
}

/* crossing[i]: bytes of computed values that are made before op i of the sequence and read by op i or later. */
static int64_t *crossing_bytes(const Sequence *s, const Module *m, Arena *a)
{
	int64_t *delta = NEW_N(a, int64_t, s->n + 2);
	int *at = NEW_N(a, int, m->n_values);
	for (int i = 0; i < s->n; i++)
		for (int k = 0; k < s->op[i]->n_out; k++)
			at[s->op[i]->out[k]->id] = i + 1;
	for (int i = 0; i < s->n; i++) {
		for (int k = 0; k < s->op[i]->n_out; k++) {
			const Value *v = s->op[i]->out[k];
			int last = 0;
			for (const Use *u = v->uses; u; u = u->next)
				if (u->op->n_out)
					last = MAX(last, at[u->op->out[0]->id]);
			if (last > i + 1) {
				delta[i + 1] += type_bytes(&v->type);
				delta[last] -= type_bytes(&v->type);
			}
		}
	}
	for (int i = 1; i <= s->n; i++)
		delta[i] += delta[i - 1];
	return delta;
}

/* Moves the first cut to where the fewest bytes cross the cut one period later, as far as no block is lost by that. */
static int best_cut(const Sequence *s, const Module *m, int start, int period, int run, Arena *a)
{
	int64_t *crossing = crossing_bytes(s, m, a);
	int spare = (run + period) % period, best = start;
	for (int i = start; i <= start + spare; i++)
		if (crossing[i + period] < crossing[best + period])
			best = i;
	return best;
}

static bool uses_parameters(const Sequence *s, int start, int period)
{
	const Value *first = NULL;
	for (int i = start; i < start + period; i++) {
		for (int k = 0; k < s->op[i]->n_in; k++) {
			const Value *v = op_in(s->op[i], k);
			if (v && op_is_param_cast(v->op))
				v = op_in(v->op, 0);
			if (!v || v->op->kind != OP_PARAM)
				continue;
			if (first && first != v)
				return true;
			first = v;
		}
	}
	return false;
}

static Blocks *by_repetition(Module *m, SectionKind section, Arena *a)
{
	Blocks *b = no_blocks(m, a);
	Sequence s = sequence_of(m, section, a);
	int start = 0, run = 0, period = best_period(&s, a, &start, &run);
	if (!period || !uses_parameters(&s, start, period))
		return b;
	b->repeated = true;
	b->n = (run + period) / period;
	start = best_cut(&s, m, start, period, run, a);
	b->name = NEW_N(a, const char *, b->n);
	for (int k = 0; k < b->n; k++) {
		b->name[k] = arena_printf(a, "block.%d", k);
		for (int i = 0; i < period; i++)
			set_block(b, s.op[start + k * period + i], k);
	}
	return b;
}

Blocks *blocks_find(Module *m, Arena *a)
{
	SectionKind section = m->first[SEC_FORWARD] ? SEC_FORWARD : SEC_EVAL;
	Blocks *b = by_scope(m, section, a);
	return b ? b : by_repetition(m, section, a);
}
