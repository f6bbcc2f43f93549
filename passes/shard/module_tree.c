/* passes/shard/module_tree.c: builds the tree of modules to which a model's parameters belong.
 *
 * A dotted name tells the module: "h.0.attn.c_attn.weight" is a parameter of module h.0.attn.c_attn.  Where names
 * tell nothing ("onnx::MatMul_123", "w"), or where the model's scopes are named differently from its parameters,
 * the scopes of the ops that read a parameter tell it.  In a model without scopes, blocks that were found by
 * repetition are the modules; they are named after their parameters where the names agree.
 *
 * A parameter that several modules read (a tied one) belongs to their lowest common module, so that any choice of
 * units above gives it to the lowest common unit. */
#include "base/near.h"
#include "passes/shard/wrap.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64, NO_BLOCK = -1, NOT_READ = -2 }; /* deeper names are cut: the tree is walked recursively */

/* ---- what readers say ---- */

typedef struct Readers {
	const char *common;  /* the common scope of all readers; NULL: there is none */
	const char *scope, *other; /* scopes of the first reader and of one in another scope (NULL: none) */
	int first, last, block;
} Readers;

typedef struct Finder {
	Module *m;
	Arena *a;
	SectionKind section;
	const Blocks *blocks;
	Readers *of;         /* by index in m->symbols */
	bool scopes;         /* some op has a scope */
} Finder;

/* "h.0.attn", "h.0.mlp" -> "h.0" */
static const char *common_scope(Arena *a, const char *x, const char *y)
{
	size_t n = 0, whole = 0;
	for (; x[n] && x[n] == y[n]; n++)
		if (x[n] == '.')
			whole = n;
	if ((!x[n] || x[n] == '.') && (!y[n] || y[n] == '.'))
		whole = n;
	return arena_strndup(a, x, whole);
}

/* Whether scope x is y or lies inside y. */
static bool scope_in(const char *x, const char *y)
{
	size_t n = strlen(y);
	return !n || (!strncmp(x, y, n) && (!x[n] || x[n] == '.'));
}

static void note_reader(Finder *f, Readers *r, const Op *op)
{
	const char *scope = blocks_scope(f->a, op->loc);
	int block = f->blocks && op->n_out ? f->blocks->of_value[op->out[0]->id] : NO_BLOCK;
	bool earlier = (int)op->order < r->first;
	r->first = MIN(r->first, (int)op->order);
	r->last = MAX(r->last, (int)op->order);
	r->block = r->block == NOT_READ || r->block == block ? block : NO_BLOCK;
	if (!r->common) {
		r->common = r->scope = scope;
		return;
	}
	r->common = common_scope(f->a, r->common, scope);
	if (!strcmp(scope, r->scope))
		return;
	r->other = earlier ? r->scope : r->other ? r->other : scope;
	r->scope = earlier ? scope : r->scope;
}

/* Notes the readers of v.  Views, casts and transposes of a parameter count as read where their results are read. */
static void note_readers(Finder *f, Readers *r, const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next) {
		if (u->op->section != f->section || u->op->parent)
			continue;
		bool shows = u->op->kind == OP_TRANSPOSE || op_info[u->op->kind].flags & VIEW
			|| op_is_param_cast(u->op);
		if (shows && u->op->n_out)
			note_readers(f, r, u->op->out[0]);
		else
			note_reader(f, r, u->op);
	}
}

static void find_readers(Finder *f)
{
	PtrMap *index = ptrmap_new(f->a);
	f->of = NEW_N(f->a, Readers, f->m->n_symbols);
	for (int i = 0; i < f->m->n_symbols; i++) {
		f->of[i] = (Readers){.first = FIRST_USE_NEVER, .block = NOT_READ};
		ptrmap_put(index, f->m->symbols[i], &f->of[i]);
	}
	IR_FOR_OPS(f->m, f->section, op) {
		f->scopes = f->scopes || *blocks_scope(f->a, op->loc);
		if (op->kind == OP_PARAM)
			note_readers(f, ptrmap_get(index, op->sym), op->out[0]);
	}
}

/* ---- what names say ---- */

/* The module that a dotted name tells; NULL: the name tells nothing. */
static const char *module_of_name(Arena *a, const char *name)
{
	const char *dot = strrchr(name, '.');
	return !dot || dot == name || strstr(name, "::") ? NULL : arena_strndup(a, name, (size_t)(dot - name));
}

/* Whether names and scopes name the same modules, by majority of the parameters that have both.  A parameter that
 * is read in a sibling of its module does not count, since a fused op has the scope in which it ends. */
static bool names_agree(const Finder *f)
{
	int same = 0, apart = 0;
	for (int i = 0; i < f->m->n_symbols; i++) {
		const char *scope = f->of[i].scope;
		const Symbol *s = f->m->symbols[i];
		const char *named = s->kind == SYM_PARAM ? module_of_name(f->a, s->name) : NULL;
		if (!named || !scope || !*scope)
			continue;
		const char *last = strrchr(named, '.');
		if (scope_in(named, scope) || scope_in(scope, named))
			same++;
		else if (strlen(common_scope(f->a, named, scope)) != (last ? (size_t)(last - named) : 0))
			apart++;
	}
	return same >= apart;
}

/* Where the part of a dotted name ends that is behind the one that ends at `end`. */
static size_t next_part(const char *name, size_t end)
{
	end += name[end] == '.';
	return end + strcspn(name + end, ".");
}

/* The block + 1 to which all parameters of a module belong; a module of several blocks is not 0, and no block. */
static Map *blocks_of_modules(const Finder *f)
{
	enum { SEVERAL = -1 };
	Map *of = map_new(f->a);
	for (int i = 0; i < f->m->n_symbols; i++) {
		const Symbol *s = f->m->symbols[i];
		const char *named = s->kind == SYM_PARAM ? module_of_name(f->a, s->name) : NULL;
		size_t end = 0;
		for (int depth = 0; named && named[end] && depth < MAX_DEPTH; depth++) {
			const char *name = arena_strndup(f->a, named, end = next_part(named, end));
			intptr_t block = f->of[i].block < 0 ? SEVERAL : f->of[i].block + 1;
			intptr_t known = (intptr_t)map_get(of, name);
			map_put(of, name, (void *)(known && known != block ? SEVERAL : block));
		}
	}
	return of;
}

/* The outermost module around `inside` that holds parameters of block b only; NULL: there is none. */
static const char *module_of_block(const Finder *f, const Map *blocks, const char *inside, int b)
{
	size_t end = 0;
	for (int depth = 0; inside && inside[end] && depth < MAX_DEPTH; depth++) {
		const char *name = arena_strndup(f->a, inside, end = next_part(inside, end));
		if ((intptr_t)map_get(blocks, name) == b + 1)
			return name;
	}
	return NULL;
}

/* Names blocks that were found by repetition: each after the outermost module that holds parameters of this block
 * only; NULL when names do not show the blocks. */
static const char **names_of_blocks(const Finder *f)
{
	int n = f->blocks->n;
	const char **name = NEW_N(f->a, const char *, n);
	const Map *blocks = blocks_of_modules(f);
	for (int i = 0; i < f->m->n_symbols; i++) {
		int b = f->of[i].block;
		const char *named = module_of_name(f->a, f->m->symbols[i]->name);
		if (b >= 0 && !named)
			return NULL;
		if (b >= 0)
			name[b] = name[b] ? common_scope(f->a, name[b], named) : named;
	}
	for (int b = 0; b < n; b++)
		if (!(name[b] = module_of_block(f, blocks, name[b], b)))
			return NULL;
	return name;
}

/* ---- the tree ---- */

typedef struct Planter {
	ModuleTree *t;
	Map *by_name;
	Arena *a;
} Planter;

static TreeNode *node_get(Planter *p, const char *name)
{
	TreeNode *at = p->t->root;
	const char *end = name;
	for (int depth = 0; *end && depth < MAX_DEPTH; depth++) {
		end += strcspn(end, ".");
		char *prefix = arena_strndup(p->a, name, (size_t)(end - name));
		TreeNode *next = map_get(p->by_name, prefix);
		if (!next) {
			next = NEW(p->a, TreeNode);
			*next = (TreeNode){.name = prefix, .parent = at, .first = FIRST_USE_NEVER};
			vec_push(p->a, &at->child, next);
			vec_push(p->a, &p->t->nodes, next);
			map_put(p->by_name, prefix, next);
		}
		at = next;
		end += *end == '.';
	}
	return at;
}

static const char *home_of(const Finder *f, const Symbol *s, const Readers *r, bool by_names, bool by_blocks)
{
	const char *named = by_names ? module_of_name(f->a, s->name) : NULL;
	if (by_blocks && r->block >= 0)
		return f->blocks->name[r->block];
	if (!named)
		return r->common ? r->common : "";
	return r->other ? common_scope(f->a, named, r->common) : named;
}

static void plant(const Finder *f, Planter *p, const PtrMap *left_out, bool by_blocks)
{
	bool by_names = !f->scopes || names_agree(f);
	for (int i = 0; i < f->m->n_symbols; i++) {
		Symbol *s = f->m->symbols[i];
		Readers *r = &f->of[i];
		if (s->kind != SYM_PARAM || ptrmap_get(left_out, s))
			continue;
		if (!f->scopes)
			r->other = NULL; /* it is not known where it is read */
		Home *h = NEW(p->a, Home);
		h->node = node_get(p, home_of(f, s, r, by_names, by_blocks));
		h->first = r->first;
		h->last = r->last;
		h->module = r->other ? r->scope : NULL;
		h->other = r->other;
		h->node->has_own = h->node->has_own || !r->other;
		vec_push(p->a, &h->node->own, s);
		ptrmap_put(p->t->home, s, h);
		for (TreeNode *n = h->node; n; n = n->parent) {
			n->first = MIN(n->first, r->first);
			n->last = MAX(n->last, r->last);
		}
	}
}

static void mark_blocks(const Finder *f, Planter *p, const char *const *name)
{
	for (int b = 0; b < f->blocks->n; b++) {
		TreeNode *n = map_get(p->by_name, name[b]);
		if (n)
			n->block = true;
	}
}

/* Insertion sort is stable, and most children are in order already. */
static void sort_children(TreeNode *n)
{
	for (int i = 1; i < n->child.n; i++) {
		TreeNode *moved = n->child.at[i];
		int k = i;
		for (; k > 0 && n->child.at[k - 1]->first > moved->first; k--)
			n->child.at[k] = n->child.at[k - 1];
		n->child.at[k] = moved;
	}
}

ModuleTree *module_tree(Module *m, const PtrMap *left_out, const Blocks *blocks, Arena *a)
{
	ModuleTree *t = NEW(a, ModuleTree);
	Finder f = {.m = m, .a = a, .blocks = blocks, .section = m->first[SEC_FORWARD] ? SEC_FORWARD : SEC_EVAL};
	Planter p = {.t = t, .by_name = map_new(a), .a = a};
	t->root = NEW(a, TreeNode);
	*t->root = (TreeNode){.name = "", .unit = true, .first = FIRST_USE_NEVER};
	t->home = ptrmap_new(a);
	vec_push(a, &t->nodes, t->root);
	ir_number(m);
	find_readers(&f);
	const char *const *name = blocks ? blocks->name : NULL;
	const char **found = blocks && blocks->repeated ? names_of_blocks(&f) : NULL;
	plant(&f, &p, left_out, blocks && blocks->repeated && !found);
	if (blocks)
		mark_blocks(&f, &p, found ? found : name);
	for (int i = 0; i < t->nodes.n; i++)
		sort_children(t->nodes.at[i]);
	return t;
}

const char *module_names(const ModuleTree *t, Arena *a)
{
	enum { SHOWN = 6 };
	char *text = arena_strdup(a, "");
	int n = 0;
	for (int i = 1; i < t->nodes.n && n <= SHOWN; i++, n++)
		text = arena_printf(a, "%s%s%s", text, n ? ", " : "", n < SHOWN ? t->nodes.at[i]->name : "...");
	return n ? text : "none";
}

const char *module_near(const ModuleTree *t, const char *pattern, Arena *a)
{
	const char **names = NEW_N(a, const char *, t->nodes.n);
	for (int i = 1; i < t->nodes.n; i++)
		names[i - 1] = t->nodes.at[i]->name;
	return near_pattern(a, pattern, names, t->nodes.n - 1);
}
