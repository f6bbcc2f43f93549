/* passes/shard/wrap.c: --wrap -> groups of parameters, each of which becomes a unit.
 *
 * Policies that may be combined (block, each, size:N, scope:REGEX), and blocks, are asked about every module of the
 * tree, children first.  A module becomes a unit when any of them chooses it, given the parameters that its inner units
 * left over.  Ensures that no group is empty, that inner groups precede outer ones in the order of first use, and
 * that the remainder ("root") is last.
 * Refuses unknown policies, invalid numbers and regular expressions, policies that exclude each other, and
 * scope:REGEX that matches no module. */
#include "base/near.h"
#include "passes/shard/wrap.h"

#include <stdlib.h>
#include <string.h>

typedef enum { ARG_NONE, ARG_COUNT, ARG_REGEX, ARG_BYTES, ARG_PARTS, ARG_PATH } ArgKind;

static const struct { const char *text; ArgKind argument; bool alone; const char *doc; } policy_info[] = {
#define WRAP(id, text, argument, alone, doc) {text, ARG_##argument, alone, doc},
#include "passes/shard/wrap.def"
};

enum { PARTS_MAX = 1000000 };

/* ---- reading --wrap ---- */

int wrap_strategy(const char *text, const char *where, Arena *a, Diag *d)
{
	Strategy s;
	if (strategy_from_text(text, &s))
		return (int)s;
	char *known = arena_strdup(a, "");
	for (int k = 0; k < STRATEGY_COUNT; k++)
		known = arena_printf(a, "%s%s%s", known, k ? "|" : "", strategy_info[k].text);
	diag_error(d, where, "\"%s\" is no strategy; accepted: %s%s", text, known,
		near_choice(a, "--strategy", text, known));
	return STRATEGY_UNSET;
}

const char *parameter_names(const Module *m, const PtrMap *among, Arena *a)
{
	enum { SHOWN = 4 };
	char *text = arena_strdup(a, "");
	int n = 0;
	for (int i = 0; i < m->n_symbols && n <= SHOWN; i++) {
		const Symbol *s = m->symbols[i];
		if (s->kind != SYM_PARAM || (among && !ptrmap_get(among, s)))
			continue;
		text = arena_printf(a, "%s%s%s", text, n ? ", " : "", n < SHOWN ? s->name : "...");
		n++;
	}
	return n ? text : "none";
}

const char *parameter_near(const Module *m, const char *pattern, Arena *a)
{
	const char **names = NEW_N(a, const char *, m->n_symbols);
	int n = 0;
	for (int i = 0; i < m->n_symbols; i++)
		if (m->symbols[i]->kind == SYM_PARAM)
			names[n++] = m->symbols[i]->name;
	return near_pattern(a, pattern, names, n);
}

static void refuse_policy(const char *text, Arena *a, Diag *d)
{
	char *known = arena_strdup(a, "");
	const char *names[WRAP_COUNT];
	for (int k = 0; k < WRAP_COUNT; k++) {
		known = arena_printf(a, "%s%s%s (%s)", known, k ? ", " : "", policy_info[k].text, policy_info[k].doc);
		names[k] = policy_info[k].text;
	}
	if (!strncmp(text, "auto:", 5))
		diag_error(d, "--wrap", "\"%s\": auto takes no argument; it wants --machine=FILE", text);
	else
		diag_error(d, "--wrap", "there is no policy \"%s\"; accepted: %s%s", text, known,
			near_hint(a, "--wrap", arena_strndup(a, text, strcspn(text, ":")), names, WRAP_COUNT));
}

static bool check_argument(const WrapPolicy *p, Diag *d)
{
	ArgKind kind = policy_info[p->kind].argument;
	if (kind == ARG_NONE && p->argument) {
		diag_error(d, "--wrap", "\"%s\": %s takes no argument", p->text, policy_info[p->kind].text);
		return false;
	}
	if (kind != ARG_NONE && (!p->argument || !*p->argument)) {
		diag_error(d, "--wrap", "\"%s\" wants an argument: %s", p->text, policy_info[p->kind].doc);
		return false;
	}
	return kind != ARG_REGEX || pattern_check(p->argument, "--wrap", d);
}

static bool parse_parts(WrapPolicy *p)
{
	p->inverse = !strncmp(p->argument, "1/", 2);
	return str_to_size(p->argument + (p->inverse ? 2 : 0), false, &p->n) && p->n >= 1 && p->n <= PARTS_MAX;
}

static bool parse_policy(const char *text, WrapPolicy *out, Arena *a, Diag *d)
{
	size_t n = strcspn(text, ":");
	int k = 0;
	while (k < WRAP_COUNT && (strlen(policy_info[k].text) != n || strncmp(policy_info[k].text, text, n)))
		k++;
	if (k == WRAP_COUNT) {
		refuse_policy(text, a, d);
		return false;
	}
	*out = (WrapPolicy){.kind = (WrapKind)k, .text = text, .argument = text[n] ? text + n + 1 : NULL};
	if (!check_argument(out, d))
		return false;
	ArgKind kind = policy_info[k].argument;
	bool number = kind == ARG_COUNT || kind == ARG_BYTES;
	if (kind == ARG_PARTS && !parse_parts(out)) {
		diag_error(d, "--wrap", "\"%s\" is no number of blocks of a unit, such as blocks:2 or, for two units of each "
			"block, blocks:1/2; at most %d", text, PARTS_MAX);
		return false;
	}
	if (number && !str_to_count(out->argument, kind == ARG_BYTES, &out->n)) {
		diag_error(d, "--wrap", "\"%s\" is not a positive number%s", text,
			kind == ARG_BYTES ? " of bytes, such as exec-order:64M"
				: " of elements, such as size:1000000, size:60K or size:1e8");
		return false;
	}
	return true;
}

/* Refuses a policy that must stand alone together with another one that was given. */
static bool check_conflicts(const Wrap *w, Diag *d)
{
	for (int i = 0; i < w->policies.n; i++) {
		for (int k = i + 1; k < w->policies.n; k++) {
			const WrapPolicy *x = &w->policies.at[i], *y = &w->policies.at[k];
			bool alone = policy_info[x->kind].alone || policy_info[y->kind].alone;
			if (!alone || !strcmp(x->text, y->text))
				continue;
			diag_error(d, "--wrap", "\"%s\" and \"%s\" exclude each other: \"%s\" stands alone; give one of them",
				x->text, y->text, policy_info[x->kind].alone ? x->text : y->text);
			return false;
		}
	}
	return true;
}

bool wrap_parse(const Options *o, Wrap *out, Arena *a, Diag *d)
{
	bool ok = true;
	*out = (Wrap){.file.strategy = STRATEGY_UNSET};
	for (int i = 0; i < o->sharding.wrap.n; i++) {
		WrapPolicy p;
		if (parse_policy(o->sharding.wrap.at[i], &p, a, d))
			vec_push(a, &out->policies, p);
		else
			ok = false;
	}
	ok = check_conflicts(out, d) && ok;
	for (int i = 0; i < out->policies.n && ok; i++)
		if (out->policies.at[i].kind == WRAP_FILE && i == 0)
			ok = policy_read(out->policies.at[i].argument, &out->file, a, d);
	if (!o->sharding.wrap.n)
		vec_push(a, &out->policies, ((WrapPolicy){.kind = WRAP_BLOCK, .text = "block", .implied = true}));
	return ok;
}

/* ---- choosing units of the tree ---- */

static bool of_blocks(WrapKind kind)
{
	return kind == WRAP_BLOCK || kind == WRAP_BLOCKS;
}

/* Whether a policy is of blocks, or of what `also` is. */
static bool has_blocks(const Wrap *w, WrapKind also)
{
	for (int i = 0; i < w->policies.n; i++)
		if (of_blocks(w->policies.at[i].kind) || w->policies.at[i].kind == also)
			return true;
	return false;
}

typedef struct Chooser {
	const Wrap *w;
	regex_t *re;         /* by policy, for WRAP_SCOPE */
	int *matched;        /* by policy: number of modules that it matched */
	int *left;           /* by policy: number of those with parameters that no inner unit holds */
	int64_t large;       /* elements of a module that is large beside the blocks; 0 = there are no blocks */
	VEC(int) block;      /* first uses of the blocks */
} Chooser;

/* ---- modules beside the blocks ---- */

static int64_t elements_in(const TreeNode *n)
{
	int64_t sum = 0;
	for (int i = 0; i < n->child.n; i++)
		sum += elements_in(n->child.at[i]);
	for (int i = 0; i < n->own.n; i++)
		sum += type_numel(&n->own.at[i]->type);
	return sum;
}

/* Lists the blocks in n and marks the modules beside them; returns whether there are blocks in n.  A module with half
 * as many elements as the largest block is large. */
static bool find_beside(Chooser *c, TreeNode *n, Arena *a)
{
	bool holds = n->block;
	if (n->block) {
		c->large = MAX(c->large, MAX(elements_in(n) / 2, 1));
		vec_push(a, &c->block, n->first);
	}
	for (int i = 0; i < n->child.n && !n->block; i++)
		holds = find_beside(c, n->child.at[i], a) || holds;
	n->beside = !holds;
	return holds;
}

/* Whether a block begins while the module is in use: gathered for so long it would be no better off than in the
 * root. */
static bool spans_block(const Chooser *c, const TreeNode *n)
{
	for (int i = 0; i < c->block.n; i++)
		if (n->first < c->block.at[i] && c->block.at[i] <= n->last)
			return true;
	return false;
}

/* Whether n is a list of modules ("h" of "h.0", "h.1").  A list is never called, so size never wraps it (F14 of
 * docs/compatibility.md). */
static bool is_list(const TreeNode *n)
{
	for (int i = 0; i < n->child.n; i++) {
		const char *dot = strrchr(n->child.at[i]->name, '.'), *last = dot ? dot + 1 : n->child.at[i]->name;
		if (strspn(last, "0123456789") != strlen(last))
			return false;
	}
	return n->child.n && !n->own.n;
}

/* Whether a module beside the blocks (an embedding table, a head) is gathered better as a unit of its own, for as long
 * as it is read, than with the root, for the whole step. */
static bool is_large(const Chooser *c, const TreeNode *n, int64_t left)
{
	return n->beside && c->large && left >= c->large && n->first != FIRST_USE_NEVER && !is_list(n)
		&& !spans_block(c, n);
}

/* By size, a repeated block of which inner units have taken a part is a unit too, however little is left of it: what is
 * left of all blocks would be a root that grows with their number. */
static bool wants(const Chooser *c, int policy, const TreeNode *n, int64_t left)
{
	const WrapPolicy *p = &c->w->policies.at[policy];
	switch (p->kind) {
	case WRAP_BLOCK: case WRAP_BLOCKS: return n->block || is_large(c, n, left);
	case WRAP_EACH: return n->has_own;
	case WRAP_SIZE: return (left >= p->n && !is_list(n)) || (n->block && left > 0 && left < elements_in(n));
	case WRAP_SCOPE: return pattern_matches(&c->re[policy], n->name);
	default: return false;
	}
}

/* Chooses units in n and below; returns the number of elements in n that no unit holds. */
static int64_t choose_units(Chooser *c, TreeNode *n)
{
	int64_t left = 0;
	for (int i = 0; i < n->child.n; i++)
		left += choose_units(c, n->child.at[i]);
	for (int i = 0; i < n->own.n; i++)
		left += type_numel(&n->own.at[i]->type);
	if (!n->parent)
		return left;
	bool chosen = false;
	for (int p = 0; p < c->w->policies.n; p++) {
		if (!wants(c, p, n, left))
			continue;
		n->large = !chosen && of_blocks(c->w->policies.at[p].kind) && !n->block;
		chosen = true;
		c->matched[p]++;
		c->left[p] += left > 0;
	}
	n->unit = chosen && left > 0;
	return n->unit ? 0 : left;
}

/* Whether the expression matches one of the modules that share a parameter. */
static bool matches_user(const regex_t *re, const Home *h)
{
	return h && h->module && ((*h->module && pattern_matches(re, h->module))
		|| (*h->other && pattern_matches(re, h->other)));
}

/* Names the modules that share it; the model itself has no name. */
static const char *users_text(const Home *h, Arena *a)
{
	if (*h->module && *h->other)
		return arena_printf(a, "modules \"%s\" and \"%s\"", h->module, h->other);
	return arena_printf(a, "module \"%s\" and the model itself", *h->module ? h->module : h->other);
}

/* A parameter that a module of this name shares with another module, so that it belongs to their lowest common
 * module. */
static const Home *hoisted_from(const regex_t *re, const ModuleTree *t, const char **name)
{
	for (int i = 0; i < t->nodes.n; i++)
		for (int k = 0; k < t->nodes.at[i]->own.n; k++) {
			const Home *h = ptrmap_get(t->home, t->nodes.at[i]->own.at[k]);
			*name = t->nodes.at[i]->own.at[k]->name;
			if (matches_user(re, h))
				return h;
		}
	return NULL;
}

void wrap_refuse_scope(const char *where, const char *pattern, const regex_t *re, const ModuleTree *t, Arena *a,
	Diag *d)
{
	const char *name;
	const Home *h = hoisted_from(re, t, &name);
	if (h)
		diag_error(d, where, "\"%s\" matches no module with parameters of its own: \"%s\" is used by %s, so it "
			"belongs to the unit around both", pattern, name, users_text(h, a));
	else
		diag_error(d, where, "\"%s\" matches no module that holds parameters; there are: %s%s", pattern,
			module_names(t, a), module_near(t, pattern, a));
}

/* A tied parameter of a module that the expression matches: it belongs to a unit around all modules that share it. */
static const Symbol *tied_match(const regex_t *re, const TreeNode *n, const char **module, Arena *a)
{
	for (int i = 0; i < n->own.n; i++) {
		const Symbol *s = n->own.at[i];
		for (int k = -1; k < s->n_aliases; k++) {
			const char *name = k < 0 ? s->name : s->alias[k], *dot = strrchr(name, '.');
			*module = dot ? arena_strndup(a, name, (size_t)(dot - name)) : "";
			if (s->n_aliases && dot && pattern_matches(re, *module))
				return s;
		}
	}
	return NULL;
}

/* The unit around a module, or NULL when the expression matches that unit as well. */
static const TreeNode *other_unit(const regex_t *re, const TreeNode *n)
{
	while (!n->unit && n->parent)
		n = n->parent;
	return n->parent && pattern_matches(re, n->name) ? NULL : n;
}

static bool note_tied(const regex_t *re, const WrapPolicy *p, const ModuleTree *t, Arena *a, Diag *d)
{
	const char *module;
	for (int i = 0; i < t->nodes.n; i++) {
		const Symbol *s = tied_match(re, t->nodes.at[i], &module, a);
		const TreeNode *unit = s ? other_unit(re, t->nodes.at[i]) : NULL;
		if (!unit)
			continue;
		diag_note(d, "--wrap", "\"%s\" matches module \"%s\", whose parameter \"%s\" is tied: it belongs to the lowest "
			"common unit, %s", p->argument, module, s->name, unit->parent ? unit->name : "root");
		return true;
	}
	return false;
}

/* Notes parameters that belong to an outer unit, for an expression that matches other modules as well. */
static void note_hoisted(const regex_t *re, const WrapPolicy *p, const ModuleTree *t, Arena *a, Diag *d)
{
	for (int i = 0; i < t->nodes.n; i++)
		for (int k = 0; k < t->nodes.at[i]->own.n; k++) {
			const Symbol *s = t->nodes.at[i]->own.at[k];
			const Home *h = ptrmap_get(t->home, s);
			const TreeNode *unit = matches_user(re, h) ? other_unit(re, t->nodes.at[i]) : NULL;
			if (!unit)
				continue;
			diag_note(d, "--wrap", "\"%s\": \"%s\" is used by %s, so it belongs to the unit around both, %s",
				p->argument, s->name, users_text(h, a), unit->parent ? unit->name : "root");
			return;
		}
}

static bool check_matches(const Chooser *c, const ModuleTree *t, Arena *a, Diag *d)
{
	bool ok = true;
	for (int p = 0; p < c->w->policies.n; p++) {
		const WrapPolicy *policy = &c->w->policies.at[p];
		if (c->matched[p] && !c->left[p])
			diag_warn(d, "--wrap", "\"%s\": other units hold all parameters of the modules that it matches: it is not "
				"used", policy->text);
		if (c->matched[p] && policy->kind == WRAP_SCOPE && !note_tied(&c->re[p], policy, t, a, d))
			note_hoisted(&c->re[p], policy, t, a, d);
		if (c->matched[p] || policy->implied
				|| (policy->kind == WRAP_SCOPE && note_tied(&c->re[p], policy, t, a, d)))
			continue;
		if (policy->kind == WRAP_SCOPE) {
			wrap_refuse_scope("--wrap", policy->argument, &c->re[p], t, a, d);
			ok = false;
		} else {
			diag_warn(d, "--wrap", "\"%s\" found no module", policy->text);
		}
	}
	return ok;
}

static bool choose(const Wrap *w, ModuleTree *t, Arena *a, Diag *d)
{
	int n = w->policies.n;
	Chooser c = {.w = w, .re = NEW_N(a, regex_t, n), .matched = NEW_N(a, int, n), .left = NEW_N(a, int, n)};
	for (int p = 0; p < n; p++)
		if (w->policies.at[p].kind == WRAP_SCOPE && !pattern_compile(&c.re[p], w->policies.at[p].argument, "--wrap", d))
			return false;
	if (has_blocks(w, WRAP_BLOCK))
		find_beside(&c, t->root, a);
	choose_units(&c, t->root);
	bool ok = check_matches(&c, t, a, d);
	for (int p = 0; p < n; p++)
		if (w->policies.at[p].kind == WRAP_SCOPE)
			regfree(&c.re[p]);
	return ok;
}

/* ---- groups ---- */

/* Adds groups in post-order: an inner unit precedes the unit around it; the root is last. */
static void add_groups(TreeNode *n, Groups *out, Arena *a)
{
	for (int i = 0; i < n->child.n; i++)
		add_groups(n->child.at[i], out, a);
	if (!n->unit)
		return;
	n->group = out->n;
	vec_push(a, out, ((Group){.name = n->parent ? n->name : "root", .strategy = STRATEGY_UNSET, .owner = -1}));
}

typedef VEC(TreeNode *) Nodes;

static int compare_nodes(const void *x, const void *y)
{
	const TreeNode *a = *(TreeNode *const *)x, *b = *(TreeNode *const *)y;
	return a->first != b->first ? (a->first > b->first) - (a->first < b->first) : a->group - b->group;
}

/* The units of blocks and of large modules beside them in the order of use; none if nothing is large. */
static Nodes nodes_in_order(const ModuleTree *t, Arena *a)
{
	Nodes units = {0};
	bool large = false;
	for (int i = 0; i < t->nodes.n; i++) {
		TreeNode *n = t->nodes.at[i];
		large = large || (n->unit && n->large);
		if (n->unit && n->parent)
			vec_push(a, &units, n);
	}
	if (units.n)
		qsort(units.at, (size_t)units.n, sizeof(*units.at), compare_nodes);
	return large ? units : (Nodes){0};
}

/* The large module beside the blocks that is used directly behind (or else in front of) a parameter of the root, which
 * is gathered with it: a norm in front of the head is not gathered alone.  NULL: it stays in the root. */
static TreeNode *neighbour(const Nodes *units, const Home *h)
{
	int next = 0;
	while (next < units->n && units->at[next]->first <= h->first)
		next++;
	TreeNode *behind = next < units->n ? units->at[next] : NULL, *before = next ? units->at[next - 1] : NULL;
	if (h->module || h->first == FIRST_USE_NEVER)
		return NULL;
	if (behind && behind->large && h->last <= behind->last)
		return behind;
	return before && before->large && (!behind || h->last < behind->first) ? before : NULL;
}

/* Puts each parameter into the innermost unit around its module, or what is left beside a large module into its
 * unit. */
static void fill_groups(Module *m, const ModuleTree *t, Groups *out, Arena *a, Diag *d)
{
	Nodes units = nodes_in_order(t, a);
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		const Home *h = ptrmap_get(t->home, s);
		if (!h)
			continue;
		const TreeNode *n = h->node;
		while (!n->unit)
			n = n->parent;
		const TreeNode *beside = n->parent ? NULL : neighbour(&units, h);
		n = beside ? beside : n;
		Group *g = &out->at[n->group];
		vec_push(a, &g->params, s);
		if (h->module)
			diag_info(d, s->name, "is used by %s; it belongs to their lowest common unit, %s", users_text(h, a),
				g->name);
		if (beside)
			diag_info(d, s->name, "is gathered with unit %s, which is read next to it", g->name);
	}
	for (int i = 0; i < units.n; i++)
		if (units.at[i]->large)
			diag_info(d, units.at[i]->name, "is a unit of its own: it lies beside the blocks and is large beside them");
}

static void drop_empty(Groups *g)
{
	int n = 0;
	for (int i = 0; i < g->n; i++)
		if (g->at[i].params.n)
			g->at[n++] = g->at[i];
	g->n = n;
}

/* ---- exec-order ---- */

typedef struct Used { Symbol *s; int first, index; } Used;

static int compare_used(const void *x, const void *y)
{
	const Used *a = x, *b = y;
	return a->first != b->first ? (a->first > b->first) - (a->first < b->first) : a->index - b->index;
}

typedef VEC(Used) UsedList;

/* Those of the n parameters that are in the tree, in the order of first use. */
static UsedList used_in_order(Symbol *const *param, int n, const ModuleTree *t, Arena *a)
{
	UsedList used = {0};
	for (int i = 0; i < n; i++) {
		const Home *h = ptrmap_get(t->home, param[i]);
		if (h)
			vec_push(a, &used, ((Used){param[i], h->first, i}));
	}
	if (used.n)
		qsort(used.at, (size_t)used.n, sizeof(*used.at), compare_used);
	return used;
}

/* Packs parameters in the order of first use until the next one would exceed the bytes; parameters that are never
 * read belong to the root. */
static void exec_order(Module *m, const ModuleTree *t, int64_t bytes, Groups *out, Arena *a)
{
	UsedList used = used_in_order(m->symbols, m->n_symbols, t, a);
	int64_t fill = 0;
	bool never = false;
	for (int i = 0; i < used.n; i++) {
		int64_t more = type_bytes(&used.at[i].s->type);
		bool first_never = used.at[i].first == FIRST_USE_NEVER && !never;
		never = never || first_never;
		if (!out->n || first_never || (!never && fill + more > bytes)) {
			const char *name = never ? "root" : arena_printf(a, "exec.%d", out->n);
			vec_push(a, out, ((Group){.name = name, .strategy = STRATEGY_UNSET, .owner = -1}));
			fill = 0;
		}
		fill += more;
		vec_push(a, &out->at[out->n - 1].params, used.at[i].s);
	}
}

/* ---- several blocks a unit, several units a block ---- */

static Nodes blocks_in_order(const ModuleTree *t, Arena *a)
{
	Nodes blocks = {0};
	for (int i = 0; i < t->nodes.n; i++)
		if (t->nodes.at[i]->unit && t->nodes.at[i]->block)
			vec_push(a, &blocks, t->nodes.at[i]);
	if (blocks.n)
		qsort(blocks.at, (size_t)blocks.n, sizeof(*blocks.at), compare_nodes);
	return blocks;
}

/* Puts the parameters of up to n blocks that are used one after the other, and lie in one module, into one group. */
static void join_blocks(const ModuleTree *t, int64_t n, Groups *out, Arena *a)
{
	Nodes blocks = blocks_in_order(t, a);
	for (int i = 0, k; i < blocks.n; i = k) {
		Group *all = &out->at[blocks.at[i]->group];
		for (k = i + 1; k < blocks.n && k - i < n && blocks.at[k]->parent == blocks.at[i]->parent; k++) {
			Group *g = &out->at[blocks.at[k]->group];
			for (int p = 0; p < g->params.n; p++)
				vec_push(a, &all->params, g->params.at[p]);
			g->params.n = 0;
		}
		if (k - i > 1)
			all->name = arena_printf(a, "%s..%s", blocks.at[i]->name, blocks.at[k - 1]->name);
	}
}

/* Appends the parameters of g, in the order of first use, as up to n groups of about as many bytes. */
static void add_parts(const Group *g, const ModuleTree *t, int64_t n, Groups *out, Arena *a)
{
	UsedList used = used_in_order(g->params.at, g->params.n, t, a);
	double all = 0, fill = 0;
	int64_t part = -1;
	for (int i = 0; i < used.n; i++)
		all += (double)type_bytes(&used.at[i].s->type);
	for (int i = 0, parts = 0; i < used.n; i++) {
		double bytes = (double)type_bytes(&used.at[i].s->type);
		int64_t is = (int64_t)((double)n * (fill + bytes / 2) / all);
		if (is != part)
			vec_push(a, out, ((Group){.name = arena_printf(a, "%s.part%d", g->name, parts++), .strategy = g->strategy,
				.owner = -1}));
		vec_push(a, &out->at[out->n - 1].params, used.at[i].s);
		part = is;
		fill += bytes;
	}
}

static void cut_blocks(const ModuleTree *t, int64_t n, Groups *out, Arena *a)
{
	Groups all = *out;
	bool *block = NEW_N(a, bool, all.n);
	Nodes blocks = blocks_in_order(t, a);
	for (int i = 0; i < blocks.n; i++)
		block[blocks.at[i]->group] = true;
	*out = (Groups){0};
	for (int i = 0; i < all.n; i++)
		if (block[i])
			add_parts(&all.at[i], t, n, out, a);
		else
			vec_push(a, out, all.at[i]);
}

/* ---- all policies ---- */

static bool groups_of_file(Module *m, const Wrap *w, const ModuleTree *t, Groups *out, Arena *a, Diag *d)
{
	if (!policy_groups(&w->file, m, t, out, a, d))
		return false;
	for (int i = 0; i < out->n; i++)
		if (out->at[i].said && !out->at[i].params.n)
			diag_warn(d, out->at[i].said->at, "no parameter is left over, so there is no unit root: it is not used");
	return true;
}

bool wrap_groups(Module *m, const Wrap *w, const PtrMap *left_out, Groups *out, Arena *a, Diag *d)
{
	Blocks *blocks = has_blocks(w, WRAP_SIZE) ? blocks_find(m, a) : NULL;
	ModuleTree *t = module_tree(m, left_out, blocks, a);
	const WrapPolicy *first = &w->policies.at[0];
	if (first->kind == WRAP_EXEC_ORDER) {
		exec_order(m, t, first->n, out, a);
	} else if (first->kind == WRAP_FILE) {
		if (!groups_of_file(m, w, t, out, a, d))
			return false;
	} else {
		if (first->kind != WRAP_WHOLE && !choose(w, t, a, d))
			return false;
		add_groups(t->root, out, a);
		fill_groups(m, t, out, a, d);
		if (first->kind == WRAP_BLOCKS)
			(first->inverse ? cut_blocks : join_blocks)(t, first->n, out, a);
	}
	drop_empty(out);
	return true;
}
