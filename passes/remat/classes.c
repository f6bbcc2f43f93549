/* passes/remat/classes.c: finds the values of repeated blocks that are alike, and a rule for each such class.
 *
 * In a model without repeated blocks each node is a class of its own, if its values are large enough to matter.
 * Values are alike if their nodes have one name but for the index of the block: /h.0/mlp/Gelu, /h.1/mlp/Gelu.  Where
 * names do not have it, they are the k-th ops of their kind in modules whose names differ in that index alone; where
 * these do not have it either, their ops stand at the same place of blocks with the same ops.
 * Rules have [0-9]+ where names have different numbers, and those of some blocks alone the numbers themselves.  One of
 * nodes is tried first, then one of modules, then one of modules and a kind of op; where all of them match other values
 * too, the rule lists the names of the nodes. */
#include "passes/remat/remat.h"

#include <ctype.h>
#include <string.h>

typedef struct Group {
	VEC(Value *) value;
	VEC(const char *) node;    /* distinct, in program order */
	VEC(const char *) scope;   /* of these */
	OpKind kind;               /* of the op that the first of them is in, or of the last op of its loop */
} Group;

typedef struct Finder {
	const Remat *r;
	uint64_t *family;          /* by block: hash of its ops */
	int *n_ops;                /* by block: ops so far */
	Map *place;                /* "BLOCK NODE" -> the key of its group */
	Map *ordinal;              /* "BLOCK SCOPE KIND" -> how many nodes so far, as an int in the arena */
	Map *group;                /* key -> Group */
	VEC(Group *) all;
} Finder;

static int block_of(const Remat *r, const Op *op)
{
	return op->n_out ? r->blocks->of_value[op->out[0]->id] : -1;
}

static const char *node_of(const Op *op)
{
	return op->loc->node ? op->loc->node : "";
}

/* Where there are no blocks, a node whose values have less than such a part of all bytes is no class. */
enum { SMALL = 256 };

static bool is_open(const Remat *r, const Op *op)
{
	for (int i = 0; i < op->n_out; i++)
		if (remat_is_open(r, op->out[i]))
			return true;
	return false;
}

static int64_t bytes_of(const Remat *r, const Op *op)
{
	int64_t bytes = 0;
	for (int i = 0; i < op->n_out; i++)
		bytes += remat_is_open(r, op->out[i]) ? type_bytes(&op->out[i]->type) : 0;
	return bytes;
}

static void hash_blocks(Finder *f)
{
	IR_FOR_OPS(f->r->m, SEC_FORWARD, op) {
		int block = block_of(f->r, op);
		for (int i = 0; i < op->n_out && block >= 0; i++) {
			const Type *t = &op->out[i]->type;
			DType dtype = t->dtype;
			uint64_t h = hash_bytes(&op->kind, sizeof(op->kind), f->family[block]);
			h = hash_bytes(&dtype, sizeof(dtype), h);
			f->family[block] = hash_bytes(t->dim, sizeof(*t->dim) * (size_t)t->rank, h);
		}
	}
}

/* The part of a block's name by which nodes name it: "layers.3" of "model.layers.3", "layer_3". */
static const char *short_name(const char *block)
{
	const char *last = strrchr(block, '.');
	if (!last || !isdigit((unsigned char)last[1]))
		return last ? last + 1 : block;
	const char *s = last;
	while (s > block && s[-1] != '.')
		s--;
	return s;
}

/* The name of a node or scope with # for the index of its block; NULL: it does not contain it. */
static const char *without_index(const Finder *f, const char *text, int block)
{
	const char *name = short_name(f->r->blocks->name[block]), *at = strstr(text, name);
	size_t n = strlen(name), digits = 0;
	while (digits < n && isdigit((unsigned char)name[n - 1 - digits]))
		digits++;
	if (f->r->blocks->repeated || !digits || !at || isdigit((unsigned char)at[n])
		|| (at > text && isalnum((unsigned char)at[-1])))
		return NULL;
	return arena_printf(f->r->a, "%.*s#%s", (int)(at + n - digits - text), text, at + n);
}

/* The kind of an op or, of a loop, that of the op that makes its result. */
static OpKind kind_of(const Op *op)
{
	const Op *last = op->body_last;
	return last && last->n_in && op_in(last, 0)->op ? op_in(last, 0)->op->kind : op->kind;
}

static int next_ordinal(Finder *f, const char *key)
{
	int *n = map_get(f->ordinal, key);
	if (!n)
		map_put(f->ordinal, key, n = NEW(f->r->a, int));
	return (*n)++;
}

static const char *new_key(Finder *f, const Op *op, int block)
{
	Arena *a = f->r->a;
	if (block < 0)
		return node_of(op);
	const char *node = without_index(f, node_of(op), block);
	const char *scope = node ? NULL : without_index(f, blocks_scope(a, op->loc), block);
	const char *kind = op_info[kind_of(op)].text;
	if (node)
		return node;
	if (scope)
		return arena_printf(a, "%s %s %d", scope, kind, next_ordinal(f, arena_printf(a, "%d %s %s", block, scope,
			kind)));
	return arena_printf(a, "%llx %d", (unsigned long long)f->family[block], f->n_ops[block]);
}

/* Ops of one node are in one group, since rules name nodes. */
static const char *key_of(Finder *f, const Op *op, int block)
{
	const char *id = arena_printf(f->r->a, "%d %s", block, node_of(op)), *key = map_get(f->place, id);
	if (!key)
		map_put(f->place, id, (void *)(key = new_key(f, op, block)));
	return key;
}

static void add(Finder *f, const Op *op, const char *key)
{
	Arena *a = f->r->a;
	Group *g = map_get(f->group, key);
	if (!g) {
		g = NEW(a, Group);
		g->kind = kind_of(op);
		map_put(f->group, key, g);
		vec_push(a, &f->all, g);
	}
	if (!g->node.n || strcmp(g->node.at[g->node.n - 1], node_of(op))) {
		vec_push(a, &g->node, node_of(op));
		vec_push(a, &g->scope, blocks_scope(a, op->loc));
	}
	for (int i = 0; i < op->n_out; i++)
		if (remat_is_open(f->r, op->out[i]))
			vec_push(a, &g->value, op->out[i]);
}

/* ---- expressions ---- */

static size_t digits_at(const char *s)
{
	size_t n = 0;
	while (isdigit((unsigned char)s[n]))
		n++;
	return n;
}

/* Appends the first n bytes of s so that an expression matches them. */
static void put_plain(Buf *out, const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		buf_printf(out, strchr(".[]()*+?{}|^$\\", s[i]) ? "\\%c" : "%c", s[i]);
}

/* Whether all names have the same number where the first has n digits at s; false in *alike: they differ elsewhere.
 * at[k]: where the k-th name is, moved on. */
static bool same_number(const char **at, int n_names, size_t n, bool *alike)
{
	bool same = true;
	const char *first = at[0];
	for (int k = 0; k < n_names; k++) {
		size_t has = digits_at(at[k]);
		*alike = *alike && has;
		same = same && has == n && !memcmp(at[k], first, n);
		at[k] += has;
	}
	return same;
}

/* Appends the numbers at which the names are, each once where equal ones follow each other. */
static void put_numbers(Buf *out, const char *const *at, int n_names)
{
	for (int k = 0; k < n_names; k++) {
		size_t n = digits_at(at[k]);
		bool again = k && digits_at(at[k - 1]) == n && !memcmp(at[k - 1], at[k], n);
		if (!again)
			buf_printf(out, "%s%.*s", k ? "|" : "(", (int)n, at[k]);
	}
	buf_printf(out, ")");
}

/* The names with [0-9]+ for the numbers in which they differ or, if listed, with these numbers; NULL: they differ in
 * more. */
static const char *with_numbers(const char *const *name, int n_names, bool listed, Arena *a)
{
	Buf out = {0};
	const char **at = NEW_N(a, const char *, n_names), **number = NEW_N(a, const char *, n_names);
	bool alike = true;
	for (int k = 0; k < n_names; k++)
		at[k] = name[k];
	buf_printf(&out, "^");
	while (*at[0] && alike) {
		const char *s = at[0];
		size_t n = digits_at(s);
		memcpy(number, at, sizeof(*at) * (size_t)n_names);
		if (n && !same_number(at, n_names, n, &alike)) {
			if (listed)
				put_numbers(&out, number, n_names);
			else
				buf_printf(&out, "[0-9]+");
		} else if (n) {
			put_plain(&out, s, n);
		} else {
			put_plain(&out, s, 1);
			for (int k = 0; k < n_names; k++)
				alike = alike && *at[k]++ == *s;
		}
	}
	for (int k = 0; k < n_names && alike; k++)
		alike = !*at[k];
	buf_printf(&out, "$");
	const char *text = alike ? arena_strdup(a, out.at) : NULL;
	buf_free(&out);
	return text;
}

static const char *with_names(const Group *g, Arena *a)
{
	Buf out = {0};
	for (int k = 0; k < g->node.n; k++) {
		buf_printf(&out, k ? "|" : g->node.n > 1 ? "^(" : "^");
		put_plain(&out, g->node.at[k], strlen(g->node.at[k]));
	}
	buf_printf(&out, g->node.n > 1 ? ")$" : "$");
	const char *text = arena_strdup(a, out.at);
	buf_free(&out);
	return text;
}

/* Whether the expression, of nodes or of scopes, matches none but the group's nodes; kind: OP_COUNT or the kind that
 * the rule asks for as well. */
static bool is_exact(const Remat *r, const Group *g, const char *expression, bool scopes, OpKind kind)
{
	regex_t re;
	Diag silent = {.quiet = true};
	Map *own = map_new(r->a), *missed = map_new(r->a);
	if (!expression || !pattern_compile(&re, expression, "", &silent))
		return false;
	for (int k = 0; k < g->node.n; k++)
		map_put(own, g->node.at[k], (void *)g);
	bool exact = true;
	IR_FOR_OPS(r->m, SEC_FORWARD, op) {
		bool inner = false;
		for (int i = 0; i < op->n_out; i++)
			inner = inner || remat_may(r, op->out[i]);
		const char *text = scopes ? blocks_scope(r->a, op->loc) : node_of(op);
		bool is = inner && (kind == OP_COUNT || remat_is_op(op, kind)) && pattern_matches(&re, text);
		exact = exact && (!is || map_get(own, node_of(op)));
		if (inner && !is && map_get(own, node_of(op)))
			map_put(missed, node_of(op), (void *)g);
	}
	for (int k = 0; k < g->node.n && kind == OP_COUNT; k++)
		exact = exact && !map_get(missed, g->node.at[k]);
	regfree(&re);
	return exact;
}

static const char *rule_of(const Remat *r, const Group *g, bool listed)
{
	Arena *a = r->a;
	const char *node = with_numbers(g->node.at, g->node.n, listed, a);
	const char *scope = with_numbers(g->scope.at, g->scope.n, listed, a);
	if (is_exact(r, g, node, false, OP_COUNT))
		return arena_printf(a, "{\"node\": \"%s\"}", str_escape(a, ESCAPE_JSON, node));
	if (is_exact(r, g, scope, true, OP_COUNT))
		return arena_printf(a, "{\"scope\": \"%s\"}", str_escape(a, ESCAPE_JSON, scope));
	if (is_exact(r, g, scope, true, g->kind))
		return arena_printf(a, "{\"scope\": \"%s\", \"op\": \"%s\"}", str_escape(a, ESCAPE_JSON, scope),
			op_info[g->kind].text);
	return arena_printf(a, "{\"node\": \"%s\"}", str_escape(a, ESCAPE_JSON, with_names(g, a)));
}

const char *remat_class_rule(const Remat *r, const RematClass *c, const int *turn, int blocks)
{
	Group g = {.kind = OP_COUNT};
	for (int i = 0; i < c->n; i++) {
		const Op *op = c->value[i]->op;
		int block = block_of(r, op);
		if (block >= 0 && turn[block] >= blocks)
			continue;
		g.kind = g.kind == OP_COUNT ? kind_of(op) : g.kind;
		if (g.node.n && !strcmp(g.node.at[g.node.n - 1], node_of(op)))
			continue;
		vec_push(r->a, &g.node, node_of(op));
		vec_push(r->a, &g.scope, blocks_scope(r->a, op->loc));
	}
	return g.node.n ? rule_of(r, &g, true) : NULL;
}

/* ---- the classes ---- */

RematClasses remat_classes(const Remat *r)
{
	Arena *a = r->a;
	Finder f = {.r = r, .family = NEW_N(a, uint64_t, r->blocks->n), .n_ops = NEW_N(a, int, r->blocks->n),
		.place = map_new(a), .ordinal = map_new(a), .group = map_new(a)};
	RematClasses out = {0};
	int64_t all = 0;
	hash_blocks(&f);
	IR_FOR_OPS(r->m, SEC_FORWARD, op)
		all += r->blocks->n ? 0 : bytes_of(r, op);
	IR_FOR_OPS(r->m, SEC_FORWARD, op) {
		int block = block_of(r, op);
		bool counts = block >= 0 || (!r->blocks->n && is_open(r, op) && bytes_of(r, op) > all / SMALL);
		if (counts && *node_of(op) && !r->fixed[op->out[0]->id])
			add(&f, op, key_of(&f, op, block));
		if (block >= 0)
			f.n_ops[block]++;
	}
	out.at = NEW_N(a, RematClass, f.all.n);
	for (int i = 0; i < f.all.n; i++) {
		Group *g = f.all.at[i];
		if (g->value.n)
			out.at[out.n++] = (RematClass){rule_of(r, g, false), g->value.at, g->value.n};
	}
	return out;
}
