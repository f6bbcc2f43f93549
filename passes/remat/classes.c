/* passes/remat/classes.c: finds the values of repeated blocks that are alike, and an expression for each such class.
 *
 * Values are alike if their nodes have one name but for the index of the block: /h.0/mlp/Gelu, /h.1/mlp/Gelu; where
 * names do not have it, if their ops stand at the same place of blocks with the same ops.  The expression has [0-9]+
 * where the names have different numbers, or lists all names where that would match others. */
#include "passes/remat/remat.h"

#include <ctype.h>
#include <string.h>

typedef struct Group {
	VEC(Value *) value;
	VEC(const char *) node;    /* distinct, in program order */
} Group;

typedef struct Finder {
	const Remat *r;
	uint64_t *family;          /* by block: hash of its ops */
	int *n_ops;                /* by block: ops so far */
	Map *place;                /* "BLOCK NODE" -> the key of its group */
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

/* The node's name with # for the index of its block; NULL: it does not contain it. */
static const char *without_index(const Finder *f, const char *node, int block)
{
	const char *name = short_name(f->r->blocks->name[block]), *at = strstr(node, name);
	size_t n = strlen(name), digits = 0;
	while (digits < n && isdigit((unsigned char)name[n - 1 - digits]))
		digits++;
	if (f->r->blocks->repeated || !digits || !at || isdigit((unsigned char)at[n])
		|| (at > node && isalnum((unsigned char)at[-1])))
		return NULL;
	return arena_printf(f->r->a, "%.*s#%s", (int)(at + n - digits - node), node, at + n);
}

static const char *key_of(Finder *f, const Op *op, int block)
{
	const char *id = arena_printf(f->r->a, "%d %s", block, node_of(op)), *key = map_get(f->place, id);
	const char *plain = key ? NULL : without_index(f, node_of(op), block);
	if (!key)
		key = plain ? plain
			: arena_printf(f->r->a, "%llx %d", (unsigned long long)f->family[block], f->n_ops[block]);
	map_put(f->place, id, (void *)key);
	return key;
}

static void add(Finder *f, const Op *op, const char *key)
{
	Arena *a = f->r->a;
	Group *g = map_get(f->group, key);
	if (!g) {
		g = NEW(a, Group);
		map_put(f->group, key, g);
		vec_push(a, &f->all, g);
	}
	if (!g->node.n || strcmp(g->node.at[g->node.n - 1], node_of(op)))
		vec_push(a, &g->node, node_of(op));
	for (int i = 0; i < op->n_out; i++)
		if (remat_is_inner(f->r, op->out[i]))
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

/* The names with [0-9]+ for the numbers in which they differ; NULL: they differ in more. */
static const char *with_numbers(const Group *g, Arena *a)
{
	Buf out = {0};
	const char **at = NEW_N(a, const char *, g->node.n);
	bool alike = true;
	for (int k = 0; k < g->node.n; k++)
		at[k] = g->node.at[k];
	buf_printf(&out, "^");
	while (*at[0] && alike) {
		const char *s = at[0];
		size_t n = digits_at(s);
		if (n && !same_number(at, g->node.n, n, &alike)) {
			buf_printf(&out, "[0-9]+");
		} else if (n) {
			put_plain(&out, s, n);
		} else {
			put_plain(&out, s, 1);
			for (int k = 0; k < g->node.n; k++)
				alike = alike && *at[k]++ == *s;
		}
	}
	for (int k = 0; k < g->node.n && alike; k++)
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

/* Whether the expression matches none but the group's nodes. */
static bool is_exact(const Remat *r, const Group *g, const char *expression)
{
	regex_t re;
	Diag silent = {.quiet = true};
	Map *own = map_new(r->a);
	if (!expression || !pattern_compile(&re, expression, "", &silent))
		return false;
	for (int k = 0; k < g->node.n; k++)
		map_put(own, g->node.at[k], (void *)g);
	bool exact = true;
	IR_FOR_OPS(r->m, SEC_FORWARD, op)
		exact = exact && (block_of(r, op) < 0 || map_get(own, node_of(op)) || !pattern_matches(&re, node_of(op)));
	regfree(&re);
	return exact;
}

RematClasses remat_classes(const Remat *r)
{
	Arena *a = r->a;
	Finder f = {.r = r, .family = NEW_N(a, uint64_t, r->blocks->n), .n_ops = NEW_N(a, int, r->blocks->n),
		.place = map_new(a), .group = map_new(a)};
	RematClasses out = {0};
	hash_blocks(&f);
	IR_FOR_OPS(r->m, SEC_FORWARD, op) {
		int block = block_of(r, op);
		if (block >= 0 && *node_of(op))
			add(&f, op, key_of(&f, op, block));
		if (block >= 0)
			f.n_ops[block]++;
	}
	out.at = NEW_N(a, RematClass, f.all.n);
	for (int i = 0; i < f.all.n; i++) {
		Group *g = f.all.at[i];
		const char *short_text = g->value.n ? with_numbers(g, a) : NULL;
		if (g->value.n)
			out.at[out.n++] = (RematClass){is_exact(r, g, short_text) ? short_text : with_names(g, a), g->value.at,
				g->value.n};
	}
	return out;
}
