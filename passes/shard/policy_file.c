/* passes/shard/policy_file.c: --wrap=file:POLICY.json -> groups of parameters.
 *
 *   {
 *     "strategy": "full_shard",                     of every unit that does not name one; as --strategy
 *     "ignore": ["REGEX", ...],                     as --ignore
 *     "units": [
 *       {"scope": "^h\\.[0-9]+$"},                  every outermost module that matches is a unit
 *       {"name": "head", "scope": "^(ln_f|head)$"}, with a name: all modules that match are one unit
 *       {"name": "emb", "params": ["^wte", "^wpe"], "strategy": "no_shard"}
 *     ]
 *   }
 *
 * Every member is optional.  A unit has either scope or params, and one with params needs a name.  Parameters that no
 * unit takes belong to the root.  Units must not overlap (F18 of docs/compatibility.md).  Errors are unknown members,
 * wrong types, names given twice, the names "root" and "ignored", and regular expressions that are invalid or match
 * nothing.  Each is reported with its path ("policy.json: $.units[2].scope"), all of them at once. */
#include "passes/shard/wrap.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

typedef struct FileReader {
	PolicyFile *file;
	Arena *a;
	Diag *d;
	bool ok;
} FileReader;

static void refuse(FileReader *r, const char *at, const char *text)
{
	diag_error(r->d, at, "%s", text);
	r->ok = false;
}

static const char *read_text(FileReader *r, const char *at, const json_t *v)
{
	const char *text = json_string_value(v);
	if (!text || !*text) {
		refuse(r, at, text ? "the string is empty" : "expected a string");
		return NULL;
	}
	return arena_strdup(r->a, text);
}

static const char *read_regex(FileReader *r, const char *at, const json_t *v)
{
	const char *text = read_text(r, at, v);
	r->ok = text && pattern_check(text, at, r->d) && r->ok;
	return text;
}

static const char **read_regexes(FileReader *r, const char *at, const json_t *v, int *n)
{
	if (!json_is_array(v) || !json_array_size(v)) {
		refuse(r, at, "expected an array of regular expressions");
		return NULL;
	}
	const char **list = NEW_N(r->a, const char *, json_array_size(v));
	for (size_t i = 0; i < json_array_size(v); i++) {
		const char *text = read_regex(r, arena_printf(r->a, "%s[%zu]", at, i), json_array_get(v, i));
		if (text)
			list[(*n)++] = text;
	}
	return list;
}

static int read_strategy(FileReader *r, const char *at, const json_t *v)
{
	const char *text = read_text(r, at, v);
	int strategy = text ? wrap_strategy(text, at, r->a, r->d) : STRATEGY_UNSET;
	r->ok = r->ok && strategy != STRATEGY_UNSET;
	return strategy;
}

static void read_name(FileReader *r, const char *at, const json_t *v, PolicyUnit *u)
{
	u->name = read_text(r, at, v);
	if (!u->name)
		return;
	if (!strcmp(u->name, "root") || !strcmp(u->name, "ignored"))
		refuse(r, at, arena_printf(r->a, "\"%s\" is the name of another unit, of what is left over; use another",
			u->name));
	for (int i = 0; i < r->file->units.n; i++)
		if (r->file->units.at[i].name && !strcmp(r->file->units.at[i].name, u->name))
			refuse(r, at, arena_printf(r->a, "\"%s\" is the name of %s already", u->name,
				strstr(r->file->units.at[i].at, "$.")));
}

static void read_unit(FileReader *r, const char *at, json_t *v)
{
	PolicyUnit u = {.at = at, .strategy = STRATEGY_UNSET};
	const char *key;
	json_t *member;
	if (!json_is_object(v)) {
		refuse(r, at, "expected an object with scope or params");
		return;
	}
	json_object_foreach(v, key, member) {
		const char *in = arena_printf(r->a, "%s.%s", at, str_escape(r->a, ESCAPE_JSON, key));
		if (!strcmp(key, "name"))
			read_name(r, in, member, &u);
		else if (!strcmp(key, "scope"))
			u.scope = read_regex(r, in, member);
		else if (!strcmp(key, "params"))
			u.params = read_regexes(r, in, member, &u.n_params);
		else if (!strcmp(key, "strategy"))
			u.strategy = read_strategy(r, in, member);
		else
			refuse(r, in, "unknown member; known are name, scope, params and strategy");
	}
	bool scope = json_object_get(v, "scope"), params = json_object_get(v, "params");
	if (scope == params)
		refuse(r, at, scope ? "has both scope and params; give one of them" : "has neither scope nor params");
	if (params && !json_object_get(v, "name"))
		refuse(r, at, "a unit of params needs a name");
	vec_push(r->a, &r->file->units, u);
}

static void read_member(FileReader *r, const char *key, json_t *v)
{
	const char *at = arena_printf(r->a, "%s: $.%s", r->file->path, str_escape(r->a, ESCAPE_JSON, key));
	if (!strcmp(key, "strategy")) {
		r->file->strategy = read_strategy(r, at, v);
	} else if (!strcmp(key, "ignore")) {
		r->file->ignore = read_regexes(r, at, v, &r->file->n_ignore);
	} else if (strcmp(key, "units")) {
		refuse(r, at, "unknown member; known are units, ignore and strategy");
	} else if (!json_is_array(v)) {
		refuse(r, at, "expected an array of units");
	} else {
		for (size_t i = 0; i < json_array_size(v); i++)
			read_unit(r, arena_printf(r->a, "%s[%zu]", at, i), json_array_get(v, i));
	}
}

bool policy_read(const char *path, PolicyFile *out, Arena *a, Diag *d)
{
	FileReader r = {.file = out, .a = a, .d = d, .ok = true};
	json_t *root = json_read(path, a, d), *v;
	const char *key;
	*out = (PolicyFile){.path = path, .strategy = STRATEGY_UNSET};
	if (root && !json_is_object(root))
		refuse(&r, path, "expected a JSON object with units, ignore or strategy");
	else
		json_object_foreach(root, key, v)
			read_member(&r, key, v);
	r.ok = r.ok && root;
	json_decref(root);
	return r.ok;
}

/* ---- groups ---- */

typedef struct Placer {
	Module *m;
	const ModuleTree *t;
	Groups *out;
	PtrMap *taken;       /* Symbol -> PolicyUnit */
	Arena *a;
	Diag *d;
	bool ok;
} Placer;

static void take(Placer *p, const PolicyUnit *u, const char *at, Group *g, Symbol *s)
{
	const PolicyUnit *was = ptrmap_get(p->taken, s);
	if (was && was != u) {
		diag_error(p->d, at, "parameter \"%s\" is in %s already; units must not overlap", s->name,
			strstr(was->at, "$."));
		p->ok = false;
	} else if (!was) {
		ptrmap_put(p->taken, s, (void *)(uintptr_t)u);
		vec_push(p->a, &g->params, s);
	}
}

/* The outermost module around n that matches, NULL = none. */
static const TreeNode *matching_module(const regex_t *re, const TreeNode *n)
{
	const TreeNode *found = NULL;
	for (; n->parent; n = n->parent)
		if (pattern_matches(re, n->name))
			found = n;
	return found;
}

static Group *group_named(Placer *p, int from, const char *name, int strategy)
{
	for (int i = from; i < p->out->n; i++)
		if (!strcmp(p->out->at[i].name, name))
			return &p->out->at[i];
	vec_push(p->a, p->out, ((Group){.name = name, .strategy = strategy, .owner = -1}));
	return &p->out->at[p->out->n - 1];
}

static void place_scope(Placer *p, const PolicyUnit *u)
{
	const char *at = arena_printf(p->a, "%s.scope", u->at);
	regex_t re;
	int from = p->out->n, found = 0;
	if (!pattern_compile(&re, u->scope, at, p->d)) {
		p->ok = false;
		return;
	}
	for (int i = 0; i < p->m->n_symbols; i++) {
		const Home *h = ptrmap_get(p->t->home, p->m->symbols[i]);
		const TreeNode *n = h ? matching_module(&re, h->node) : NULL;
		if (n && ++found)
			take(p, u, at, group_named(p, from, u->name ? u->name : n->name, u->strategy), p->m->symbols[i]);
	}
	if (!found)
		wrap_refuse_scope(at, u->scope, &re, p->t, p->a, p->d);
	p->ok = p->ok && found;
	regfree(&re);
}

static void place_params(Placer *p, const PolicyUnit *u)
{
	Group *g = group_named(p, p->out->n, u->name, u->strategy);
	for (int k = 0; k < u->n_params; k++) {
		const char *at = arena_printf(p->a, "%s.params[%d]", u->at, k);
		regex_t re;
		int found = 0;
		if (!pattern_compile(&re, u->params[k], at, p->d)) {
			p->ok = false;
			continue;
		}
		for (int i = 0; i < p->m->n_symbols; i++) {
			Symbol *s = p->m->symbols[i];
			if (!ptrmap_get(p->t->home, s) || !param_matches(&re, s))
				continue;
			found++;
			take(p, u, at, g, s);
		}
		regfree(&re);
		if (found)
			continue;
		diag_error(p->d, at, "\"%s\" matches no parameter; there are: %s%s", u->params[k],
			parameter_names(p->m, p->t->home, p->a), parameter_near(p->m, u->params[k], p->a));
		p->ok = false;
	}
}

static int first_use(const Placer *p, const Group *g)
{
	int first = FIRST_USE_NEVER;
	for (int i = 0; i < g->params.n; i++) {
		const Home *h = ptrmap_get(p->t->home, g->params.at[i]);
		first = MIN(first, h->first);
	}
	return first;
}

/* Sorts groups by first use; equal ones keep the order of the file. */
static void sort_groups(const Placer *p)
{
	for (int i = 1; i < p->out->n; i++) {
		Group moved = p->out->at[i];
		int first = first_use(p, &moved), k = i;
		for (; k > 0 && first_use(p, &p->out->at[k - 1]) > first; k--)
			p->out->at[k] = p->out->at[k - 1];
		p->out->at[k] = moved;
	}
}

bool policy_groups(const PolicyFile *f, Module *m, const ModuleTree *t, Groups *out, PtrMap *taken, Arena *a,
	Diag *d)
{
	Placer p = {.m = m, .t = t, .out = out, .taken = taken, .a = a, .d = d, .ok = true};
	for (int i = 0; i < f->units.n; i++)
		(f->units.at[i].scope ? place_scope : place_params)(&p, &f->units.at[i]);
	sort_groups(&p);
	return p.ok;
}
