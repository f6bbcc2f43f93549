/* passes/shard/policy_file.c: --wrap=file:POLICY.json -> groups of parameters.
 *
 *   {
 *     "strategy": "full_shard",                     of every unit that does not say one; as --strategy
 *     "ignore": ["REGEX", ...],                     as --ignore
 *     "units": [
 *       {"scope": "^h\\.[0-9]+$"},                  every outermost module that matches is a unit
 *       {"name": "head", "scope": "^(ln_f|head)$"}, with a name: all modules that match are one unit
 *       {"name": "emb", "params": ["^wte", "^wpe"], "strategy": "no_shard"},
 *       {"name": "root", "reshard_after_forward": true}
 *     ]
 *   }
 *
 * policy.def lists the members, all of which are optional.  A unit has either scope or params, and one with params
 * needs a name; the unit "root" has neither.  Parameters that no unit takes belong to the root.  Units must not overlap
 * (F18 of docs/compatibility.md).  Errors are unknown members, wrong types, names given twice, the name "ignored", and
 * regular expressions that are invalid or match nothing.  Each is reported with its path
 * ("policy.json: $.units[2].scope"), all of them at once. */
#include "passes/shard/wrap.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/near.h"

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

/* ---- values: read_KIND reads a value of a kind of policy.def into its field ---- */

typedef void ReadMember(FileReader *r, const char *at, json_t *v, void *field);

static const char *read_text(FileReader *r, const char *at, const json_t *v)
{
	const char *text = json_string_value(v);
	if (!text || !*text) {
		refuse(r, at, text ? "the string is empty" : "expected a string");
		return NULL;
	}
	return arena_strdup(r->a, text);
}

static void read_REGEX(FileReader *r, const char *at, json_t *v, void *field)
{
	const char *text = read_text(r, at, v);
	r->ok = text && pattern_check(text, at, r->d) && r->ok;
	*(const char **)field = text;
}

static void read_REGEXES(FileReader *r, const char *at, json_t *v, void *field)
{
	Regexes *list = field;
	if (!json_is_array(v) || !json_array_size(v)) {
		refuse(r, at, "expected an array of regular expressions");
		return;
	}
	for (size_t i = 0; i < json_array_size(v); i++) {
		const char *text = NULL;
		read_REGEX(r, arena_printf(r->a, "%s[%zu]", at, i), json_array_get(v, i), &text);
		if (text)
			vec_push(r->a, list, text);
	}
}

static void read_STRATEGY(FileReader *r, const char *at, json_t *v, void *field)
{
	const char *text = read_text(r, at, v);
	int strategy = text ? wrap_strategy(text, at, r->a, r->d) : STRATEGY_UNSET;
	r->ok = r->ok && strategy != STRATEGY_UNSET;
	*(int *)field = strategy;
}

static void read_BOOL(FileReader *r, const char *at, json_t *v, void *field)
{
	if (!json_is_boolean(v))
		refuse(r, at, "expected true or false");
	*(int *)field = json_is_true(v);
}

static void read_COUNT(FileReader *r, const char *at, json_t *v, void *field)
{
	long long n = json_is_integer(v) ? json_integer_value(v) : -1;
	if (n < 0 || n > PREFETCH_MAX)
		refuse(r, at, arena_printf(r->a, "expected a whole number, 0 to %d", PREFETCH_MAX));
	else
		*(int *)field = (int)n;
}

static void read_BACKWARD(FileReader *r, const char *at, json_t *v, void *field)
{
	BackwardPrefetch way;
	const char *text = read_text(r, at, v);
	r->ok = text && prefetch_backward(text, at, &way, r->a, r->d) && r->ok;
	*(const char **)field = text;
}

static void read_DTYPE(FileReader *r, const char *at, json_t *v, void *field)
{
	static const char known[] = "f32|bf16|f16";
	DType t;
	const char *text = read_text(r, at, v);
	if (text && str_is_choice(known, text) && dtype_from_text(text, &t))
		*(int *)field = (int)t;
	else if (text)
		refuse(r, at, arena_printf(r->a, "\"%s\" is refused; accepted: %s%s", text, known,
			near_choice(r->a, "--param-dtype", text, known)));
}

static void read_OFFLOAD(FileReader *r, const char *at, json_t *v, void *field)
{
	static const char known[] = "none|optim|params";
	LayoutOffload offload;
	const char *text = read_text(r, at, v);
	if (text && offload_from_text(text, &offload))
		*(int *)field = (int)offload;
	else if (text)
		refuse(r, at, arena_printf(r->a, "\"%s\" is refused; accepted: %s%s", text, known,
			near_choice(r->a, "--offload", text, known)));
}

static void read_ORDER(FileReader *r, const char *at, json_t *v, void *field)
{
	const char *text = read_text(r, at, v);
	*(bool *)field = text && !strcmp(text, "file");
	if (text && strcmp(text, "file") && strcmp(text, "use"))
		refuse(r, at, arena_printf(r->a, "\"%s\" is refused; accepted: use|file%s", text,
			near_choice(r->a, "order", text, "use|file")));
}

static void read_NAME(FileReader *r, const char *at, json_t *v, void *field)
{
	const char *name = *(const char **)field = read_text(r, at, v);
	if (!name)
		return;
	if (!strcmp(name, "ignored"))
		refuse(r, at, "\"ignored\" is the name of another unit, of what $.ignore and --ignore match; use another");
	for (int i = 0; i < r->file->units.n; i++)
		if (r->file->units.at[i].name && !strcmp(r->file->units.at[i].name, name))
			refuse(r, at, arena_printf(r->a, "\"%s\" is the name of %s already", name,
				strstr(r->file->units.at[i].at, "$.")));
}

/* ---- members ---- */

static bool is_root(const PolicyUnit *u)
{
	return u->name && !strcmp(u->name, "root");
}

typedef struct MemberRow {
	const char *key;
	ReadMember *read;
	size_t field;        /* in PolicyFile or PolicyUnit */
	const char *option;
} MemberRow;

static void read_member(FileReader *r, const char *where, const MemberRow *rows, int n, const char *key, json_t *v,
	void *to)
{
	const char *at = arena_printf(r->a, "%s.%s", where, str_escape(r->a, ESCAPE_JSON, key)), *known = "";
	const char **keys = NEW_N(r->a, const char *, n);
	for (int i = 0; i < n; i++) {
		if (!strcmp(key, rows[i].key)) {
			rows[i].read(r, at, v, (char *)to + rows[i].field);
			return;
		}
		keys[i] = rows[i].key;
		known = arena_printf(r->a, "%s%s%s", known, !i ? "" : i == n - 1 ? " and " : ", ", rows[i].key);
	}
	refuse(r, at, arena_printf(r->a, "unknown member%s; known are %s", near_hint(r->a, "policy", key, keys, n), known));
}

/* Checks which of name, scope and params a unit has. */
static void check_choice(FileReader *r, const PolicyUnit *u, const json_t *v)
{
	bool scope = json_object_get(v, "scope"), params = json_object_get(v, "params");
	if (is_root(u) && (scope || params))
		refuse(r, arena_printf(r->a, "%s.name", u->at), "\"root\" is the name of another unit, of what is left over; "
			"use another, or leave scope and params out");
	if (is_root(u))
		return;
	if (scope == params)
		refuse(r, u->at, scope ? "has both scope and params; give one of them" : "has neither scope nor params");
	if (params && !json_object_get(v, "name"))
		refuse(r, u->at, "a unit of params needs a name");
}

static const PolicyUnit says_nothing = {.strategy = STRATEGY_UNSET, .reshard_after_forward = -1,
	.forward_prefetch = -1, .backward_prefetch = -1, .param_dtype = -1, .reduce_dtype = -1, .offload = -1};

static void read_unit(FileReader *r, const char *at, json_t *v)
{
	static const MemberRow rows[] = {
#define UNIT_MEMBER(key, kind, doc) {#key, read_##kind, offsetof(PolicyUnit, key), ""},
#include "passes/shard/policy.def"
	};
	PolicyUnit u = says_nothing;
	const char *key;
	json_t *member;
	u.at = at;
	if (!json_is_object(v)) {
		refuse(r, at, "expected an object with scope or params");
		return;
	}
	json_object_foreach(v, key, member)
		read_member(r, at, rows, COUNT_OF(rows), key, member, &u);
	check_choice(r, &u, v);
	vec_push(r->a, &r->file->units, u);
}

static void read_UNITS(FileReader *r, const char *at, json_t *v, void *field)
{
	(void)field;
	if (!json_is_array(v))
		refuse(r, at, "expected an array of units");
	for (size_t i = 0; i < json_array_size(v); i++)
		read_unit(r, arena_printf(r->a, "%s[%zu]", at, i), json_array_get(v, i));
}

static const MemberRow file_rows[] = {
#define POLICY_MEMBER(key, kind, option, doc) {#key, read_##kind, offsetof(PolicyFile, key), option},
#include "passes/shard/policy.def"
};

bool policy_read(const char *path, PolicyFile *out, Arena *a, Diag *d)
{
	FileReader r = {.file = out, .a = a, .d = d, .ok = true};
	json_t *root = json_read_given(path, "--wrap", a, d), *v;
	const char *key, *name = *path == '{' ? "--wrap" : path, *where = arena_printf(a, "%s: $", name);
	*out = (PolicyFile){.path = name, .strategy = STRATEGY_UNSET, .forward_prefetch = -1, .limit_all_gathers = -1,
		.param_dtype = -1, .reduce_dtype = -1, .offload = -1};
	if (root && !json_is_object(root))
		refuse(&r, name, "expected a JSON object with units, ignore or strategy");
	else
		json_object_foreach(root, key, v)
			read_member(&r, where, file_rows, COUNT_OF(file_rows), key, v, out);
	r.ok = r.ok && root;
	json_decref(root);
	return r.ok;
}

/* ---- members that are options ---- */

/* text_KIND: the value of a member as the option's text; NULL: the file does not say it. */
static const char *text_STRATEGY(const void *field, Arena *a)
{
	int s = *(const int *)field;
	(void)a;
	return s == STRATEGY_UNSET ? NULL : strategy_info[s].text;
}

static const char *text_COUNT(const void *field, Arena *a)
{
	int n = *(const int *)field;
	return n < 0 ? NULL : arena_printf(a, "%d", n);
}

static const char *text_DTYPE(const void *field, Arena *a)
{
	int t = *(const int *)field;
	(void)a;
	return t < 0 ? NULL : dtype_info[t].text;
}

static const char *text_BACKWARD(const void *field, Arena *a)
{
	(void)a;
	return *(const char *const *)field;
}

static const char *text_OFFLOAD(const void *field, Arena *a)
{
	int offload = *(const int *)field;
	(void)a;
	return offload < 0 ? NULL : offload_text[offload];
}

static const char *text_none(const void *field, Arena *a)
{
	(void)field, (void)a;
	return NULL;
}
#define text_REGEXES text_none
#define text_ORDER text_none
#define text_UNITS text_none

const char *policy_path(const Options *o)
{
	static const char prefix[] = "file:";
	const char *text = o->sharding.wrap.n ? o->sharding.wrap.at[0] : "";
	return strncmp(text, prefix, strlen(prefix)) || !text[strlen(prefix)] ? NULL : text + strlen(prefix);
}

/* Whether the root is resharded after forward is --reshard-root. */
static void root_option(const PolicyFile *f, PolicyOptions *out, Arena *a)
{
	for (int i = 0; i < f->units.n; i++) {
		const PolicyUnit *u = &f->units.at[i];
		if (is_root(u) && u->reshard_after_forward >= 0)
			vec_push(a, out, ((PolicyOption){"--reshard-root", u->reshard_after_forward ? "" : NULL,
				arena_printf(a, "%s.reshard_after_forward", u->at)}));
	}
}

bool policy_options(const Options *o, PolicyOptions *out, Arena *a, Diag *d)
{
	PolicyFile f;
	const char *path = policy_path(o);
	if (!path)
		return true;
	if (!policy_read(path, &f, a, d))
		return false;
#define POLICY_MEMBER(key, kind, name, doc) \
	if (*(name) && text_##kind(&f.key, a)) \
		vec_push(a, out, ((PolicyOption){name, text_##kind(&f.key, a), arena_printf(a, "%s: $." #key, f.path)}));
#include "passes/shard/policy.def"
	root_option(&f, out, a);
	return true;
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

static Group *group_named(Placer *p, int from, const char *name, const PolicyUnit *u)
{
	for (int i = from; i < p->out->n; i++)
		if (!strcmp(p->out->at[i].name, name))
			return &p->out->at[i];
	vec_push(p->a, p->out, ((Group){.name = name, .strategy = u->strategy, .owner = -1, .said = u}));
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
			take(p, u, at, group_named(p, from, u->name ? u->name : n->name, u), p->m->symbols[i]);
	}
	if (!found)
		wrap_refuse_scope(at, u->scope, &re, p->t, p->a, p->d);
	p->ok = p->ok && found;
	regfree(&re);
}

/* The name that "^name$" alone matches, as --policy-out writes it; NULL: the expression matches others, too. */
static const char *only_name(const char *pattern, Arena *a)
{
	size_t n = strlen(pattern);
	char *name = arena_strdup(a, pattern), *end = name;
	if (n < 2 || pattern[0] != '^' || pattern[n - 1] != '$')
		return NULL;
	for (const char *s = pattern + 1; s < pattern + n - 1; s++) {
		if (*s == '\\' && ispunct((unsigned char)s[1]))
			s++;
		else if (strchr("\\.[]{}()*+?|^$", *s))
			return NULL;
		*end++ = *s;
	}
	*end = 0;
	return end > name && pattern[n - 2] != '\\' ? name : NULL;
}

static bool is_named(const Symbol *s, const char *name)
{
	bool any = !strcmp(s->name, name);
	for (int i = 0; i < s->n_aliases; i++)
		any = any || !strcmp(s->alias[i], name);
	return any;
}

/* Takes the parameters that the expression matches.  Files of many names would take long if each were tried on every
 * parameter.  Returns how many there are; -1 after an error. */
static int take_matching(Placer *p, const PolicyUnit *u, const char *at, const char *pattern, Group *g)
{
	const char *name = only_name(pattern, p->a);
	regex_t re;
	int found = 0;
	if (!name && !pattern_compile(&re, pattern, at, p->d))
		return -1;
	for (int i = 0; i < p->m->n_symbols; i++) {
		Symbol *s = p->m->symbols[i];
		if (!ptrmap_get(p->t->home, s) || !(name ? is_named(s, name) : param_matches(&re, s)))
			continue;
		found++;
		take(p, u, at, g, s);
	}
	if (!name)
		regfree(&re);
	return found;
}

static void place_params(Placer *p, const PolicyUnit *u)
{
	Group *g = group_named(p, p->out->n, u->name, u);
	for (int k = 0; k < u->params.n; k++) {
		const char *at = arena_printf(p->a, "%s.params[%d]", u->at, k);
		int found = take_matching(p, u, at, u->params.at[k], g);
		if (!found)
			diag_error(p->d, at, "\"%s\" matches no parameter; there are: %s%s", u->params.at[k],
				parameter_names(p->m, p->t->home, p->a), parameter_near(p->m, u->params.at[k], p->a));
		p->ok = p->ok && found > 0;
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

/* Puts the group of what is left over at its place. */
static void place_rest(Placer *p, const PolicyUnit *u, int at)
{
	Group root = {.name = "root", .strategy = u ? u->strategy : STRATEGY_UNSET, .owner = -1, .said = u};
	for (int i = 0; i < p->m->n_symbols; i++)
		if (ptrmap_get(p->t->home, p->m->symbols[i]) && !ptrmap_get(p->taken, p->m->symbols[i]))
			vec_push(p->a, &root.params, p->m->symbols[i]);
	vec_push(p->a, p->out, root);
	for (int i = p->out->n - 1; i > at; i--)
		p->out->at[i] = p->out->at[i - 1];
	p->out->at[at] = root;
}

bool policy_groups(const PolicyFile *f, Module *m, const ModuleTree *t, Groups *out, Arena *a, Diag *d)
{
	Placer p = {.m = m, .t = t, .out = out, .taken = ptrmap_new(a), .a = a, .d = d, .ok = true};
	const PolicyUnit *root = NULL;
	int root_at = 0;
	for (int i = 0; i < f->units.n; i++) {
		const PolicyUnit *u = &f->units.at[i];
		if (is_root(u))
			root = u;
		else
			(u->scope ? place_scope : place_params)(&p, u);
		root_at = root == u || !root ? out->n : root_at;
	}
	if (!f->order) {
		sort_groups(&p);
		root_at = out->n;
	}
	place_rest(&p, root, root_at);
	return p.ok;
}

/* ---- dtypes of single parameters ---- */

static bool says_dtypes(const PolicyFile *f)
{
	for (int i = 0; i < f->units.n; i++)
		if (f->units.at[i].param_dtype >= 0 || f->units.at[i].reduce_dtype >= 0)
			return true;
	return false;
}

static void put_dtypes(ParamDtypes *out, const Group *g)
{
	for (int i = 0; i < g->params.n && g->said; i++) {
		if (g->said->param_dtype >= 0)
			ptrmap_put(out->param, g->params.at[i], (void *)((intptr_t)g->said->param_dtype + 1));
		if (g->said->reduce_dtype >= 0)
			ptrmap_put(out->reduce, g->params.at[i], (void *)((intptr_t)g->said->reduce_dtype + 1));
		out->halves = out->halves || dtype_is_half((DType)MAX(g->said->param_dtype, 0));
	}
}

bool policy_dtypes(Module *m, const Options *o, ParamDtypes *out, Arena *a, Diag *d)
{
	Wrap w;
	Groups groups = {0};
	*out = (ParamDtypes){ptrmap_new(a), ptrmap_new(a), false};
	if (options_infer(o) || !policy_path(o))
		return true;
	if (!wrap_parse(o, &w, a, d))
		return false;
	if (!says_dtypes(&w.file))
		return true;
	PtrMap *left_out = ptrmap_new(a);
	if (!params_ignored(m, o, &w.file, left_out, a, d)
			|| !policy_groups(&w.file, m, module_tree(m, left_out, NULL, a), &groups, a, d))
		return false;
	for (int i = 0; i < groups.n; i++)
		put_dtypes(out, &groups.at[i]);
	return true;
}

DType dtype_said(const PtrMap *said, const Symbol *s, DType otherwise)
{
	void *t = ptrmap_get(said, s);
	return t ? (DType)((intptr_t)t - 1) : otherwise;
}
