/* passes/units.c: parameters -> units, flats and offsets; optimizer states -> sharded symbols.
 *
 * Requires TRAIN.  Ensures that every parameter has a unit, a flat and an offset, that units stand in
 * post-order with the remainder ("root") last, and that the optimizer's states are declared.
 * Refuses wrap policies other than block and none, strategies other than full_shard, trainable
 * parameters that are not f32, and more than UNIT_MAX_FLATS kinds of parameter in a unit.
 *
 * The one idea: a parameter belongs to the block that holds all of its forward uses; what is used by
 * several blocks, or outside of them, belongs to their lowest common unit, the root. */
#include "passes/passes.h"

#include "base/layout.h"

#include <stdlib.h>
#include <string.h>

enum { NO_BLOCK = -1, NOT_USED = -2 };

typedef struct Placing {
	Module *m;
	Blocks *blocks;   /* NULL: everything is root */
	PtrMap *home;     /* Symbol -> (block + 3), see home_get */
} Placing;

/* ---- which block a parameter belongs to ---- */

static int home_get(const Placing *p, const Symbol *s)
{
	intptr_t stored = (intptr_t)ptrmap_get(p->home, s);
	return stored ? (int)stored - 3 : NOT_USED;
}

static void home_meet(Placing *p, const Symbol *s, int block)
{
	int was = home_get(p, s);
	int now = was == NOT_USED || was == block ? block : NO_BLOCK;
	ptrmap_put(p->home, s, (void *)(intptr_t)(now + 3));
}

static int block_of_use(const Placing *p, const Use *u)
{
	return u->op->n_out ? p->blocks->of_value[u->op->out[0]->id] : NO_BLOCK;
}

static void find_homes(Placing *p, SectionKind s)
{
	IR_FOR_OPS(p->m, s, op) {
		if (op->kind != OP_PARAM)
			continue;
		for (const Use *u = op->out[0]->uses; u; u = u->next)
			if (u->op->section == s)
				home_meet(p, op->sym, block_of_use(p, u));
	}
}

/* ---- flats and offsets ---- */

static bool flat_matches(const Flat *f, const Symbol *s)
{
	return f->dtype == s->type.dtype && f->trainable == s->trainable;
}

static int compare_flats(const void *a, const void *b)
{
	const Flat *x = a, *y = b;
	if (x->trainable != y->trainable)
		return y->trainable - x->trainable;
	return (int)x->dtype - (int)y->dtype;
}

static bool add_flats(const Module *m, Unit *u, Symbol *const *params, int n, Diag *d)
{
	for (int i = 0; i < n; i++) {
		int f = 0;
		while (f < u->n_flats && !flat_matches(&u->flat[f], params[i]))
			f++;
		if (f < u->n_flats)
			continue;
		if (f == UNIT_MAX_FLATS) {
			diag_error(d, m->file ? m->file : m->name, "unit %s would hold more than %d kinds of parameters with "
				"\"%s\" of %s; export the frozen ones in fewer dtypes", u->name, UNIT_MAX_FLATS, params[i]->name,
				dtype_info[params[i]->type.dtype].text);
			return false;
		}
		u->flat[u->n_flats++] = (Flat){.dtype = params[i]->type.dtype, .trainable = params[i]->trainable};
	}
	qsort(u->flat, (size_t)u->n_flats, sizeof(*u->flat), compare_flats);
	return true;
}

static void lay_out(Module *m, Unit *u, Symbol *const *params, int n)
{
	u->params = NEW_N(m->arena, Symbol *, n);
	for (int f = 0; f < u->n_flats; f++) {
		for (int i = 0; i < n; i++) {
			Symbol *s = params[i];
			if (!flat_matches(&u->flat[f], s))
				continue;
			s->unit = u;
			s->flat = f;
			s->offset = layout_next(u->flat[f].numel);
			u->flat[f].numel = s->offset + type_numel(&s->type);
			u->params[u->n_params++] = s;
		}
	}
}

typedef VEC(Symbol *) Params;

static bool add_unit(Module *m, const char *name, const Params *params, Diag *d)
{
	if (!params->n)
		return true;
	Unit *u = ir_add_unit(m, name, STRATEGY_FULL_SHARD);
	if (!add_flats(m, u, params->at, params->n, d))
		return false;
	lay_out(m, u, params->at, params->n);
	return true;
}

/* Units of the blocks in program order; what belongs to no block ends as the root. */
static bool add_units(Placing *p, Diag *d)
{
	Module *m = p->m;
	int n = p->blocks ? p->blocks->n : 0;
	Params *of_block = NEW_N(m->arena, Params, n + 1), *root = &of_block[n];
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		int home = home_get(p, s);
		if (s->kind == SYM_PARAM)
			vec_push(m->arena, home >= 0 ? &of_block[home] : root, s);
	}
	for (int b = 0; b < n; b++)
		if (!add_unit(m, p->blocks->name[b], &of_block[b], d))
			return false;
	return add_unit(m, "root", root, d);
}

/* ---- what is trained ---- */

/* Trained is what has an update; a parameter that the loss does not depend on is frozen. */
static bool find_trained(Module *m, Diag *d)
{
	PtrMap *updated = ptrmap_new(m->arena);
	bool ok = true;
	IR_FOR_OPS(m, SEC_UPDATE, op)
		if (op->kind == OP_UPDATE)
			ptrmap_put(updated, op->sym, op);
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		if (s->kind != SYM_PARAM)
			continue;
		s->trainable = ptrmap_get(updated, s);
		if (s->trainable && s->type.dtype != DT_F32) {
			diag_error(d, m->file ? m->file : m->name, "parameter \"%s\" is %s; only f32 is trained (export the "
				"model in float32, or --freeze it)", s->name, dtype_info[s->type.dtype].text);
			ok = false;
		}
	}
	return ok;
}

/* ---- optimizer states ---- */

static void declare_states(Module *m, const Optimizer *opt)
{
	for (int i = 0; i < m->n_units; i++) {
		Unit *u = m->units[i];
		for (int f = 0; f < u->n_flats; f++) {
			for (int k = 0; u->flat[f].trainable && k < opt->n_states; k++) {
				Type t = {.kind = TYPE_SHARD, .dtype = u->flat[f].dtype, .unit = u, .flat = f};
				const char *name = arena_printf(m->arena, "%s.%s", u->name, opt->states[k]);
				Symbol *s = ir_add_symbol(m, SYM_STATE, name, t);
				s->unit = u;
				s->flat = f;
			}
		}
	}
}

static bool check_options(const PassOptions *o, Diag *d)
{
	if (o->n_wrap && strcmp(o->wrap[0], "block") && strcmp(o->wrap[0], "none")) {
		diag_error(d, "--wrap", "\"%s\" is refused by this version; accepted: block (repeated blocks, the "
			"default), none (one unit)", o->wrap[0]);
		return false;
	}
	if (o->strategy && strcmp(o->strategy, "full_shard")) {
		diag_error(d, "--strategy", "\"%s\" is refused by this version; accepted: full_shard", o->strategy);
		return false;
	}
	return true;
}

bool pass_units(Module *m, const PassOptions *o, Diag *d)
{
	Optimizer opt;
	Placing p = {.m = m, .home = ptrmap_new(m->arena)};
	if (!check_options(o, d) || !optimizer_parse(o->optimizer, &opt, d) || !find_trained(m, d))
		return false;
	if (!o->n_wrap || !strcmp(o->wrap[0], "block")) {
		p.blocks = blocks_find(m, m->arena);
		find_homes(&p, m->first[SEC_FORWARD] ? SEC_FORWARD : SEC_EVAL);
	}
	if (!add_units(&p, d))
		return false;
	declare_states(m, &opt);
	return true;
}
