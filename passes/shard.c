/* passes/shard.c: makes the life of every unit explicit.
 *
 * Requires SHARD (units are known).  Ensures that a parameter is read only as a view of its gathered
 * unit, between the unit's wait and its reshard; that the gradients of a unit are collected in flat order
 * and reduced once; that updates act on shards.
 *
 *   forward   gather @h.0, wait, ops of h.0, reshard      backward  gather @h.0, wait, its gradients, reshard
 *             (the root is gathered once and kept)                  collect, reduce_scatter, wait
 *   update    sumsq of the shards, all_reduce_scalars, step_scalars, update_shard per unit
 *
 * Liveness saves work: a unit that backward does not read is not gathered again, and a reshard that the
 * unit's own gather would follow at once is dropped.  eval has its own gathers.
 * Knows neither the rank nor the world size: at one shard the runtime makes gather and reduce no-ops. */
#include "passes/passes.h"

#include <string.h>

typedef struct UnitUse {
	Op *wait;        /* its results are the unit's flats */
	Op *last;        /* op that reads the unit last, so far */
	int64_t last_at; /* its number */
} UnitUse;

typedef struct Shard {
	Module *m;
	Diag *d;
	UnitUse *use;    /* by unit index; of the section at work, carried on from forward for held units */
	PtrMap *local;   /* parameter symbol or alias value -> the value to read in this section */
	int64_t at;      /* number of the op at work, sources not counted */
} Shard;

/* ---- parameters become views ---- */

static bool is_alias(const Op *op)
{
	return op_info[op->kind].flags & VIEW && op->n_in;
}

/* The `param` op that v shows, perhaps through views; NULL = it is no parameter. */
static Op *param_of(Value *v)
{
	while (v && is_alias(v->op))
		v = op_in(v->op, 0);
	return v && v->op->kind == OP_PARAM ? v->op : NULL;
}

static Builder builder_at(Shard *s, Op *before, SectionKind section, const Loc *loc)
{
	return (Builder){.m = s->m, .section = section, .before = before,
		.loc = loc_with_role(s->m, loc, "shard")};
}

static void gather(Shard *s, Unit *u, Op *before)
{
	Builder b = builder_at(s, before, before->section, before->loc);
	b.unit = u;
	b.name = arena_printf(s->m->arena, "%s.async", u->name);
	Op *op = ir_emit_op(&b, OP_ALL_GATHER, 0, NULL, NULL, NULL);
	b.name = arena_printf(s->m->arena, "%s.full", u->name);
	s->use[u->index].wait = ir_emit_op(&b, OP_WAIT, op->n_out, op->out, NULL, NULL);
}

/* The value that stands for v, a parameter or an alias of one, before op `at`. */
static Value *localize(Shard *s, Value *v, Op *at)
{
	const void *key = v->op->kind == OP_PARAM ? (void *)v->op->sym : (void *)v;
	Value *known = ptrmap_get(s->local, key);
	if (known)
		return known;
	Builder b = builder_at(s, at, at->section, v->op->loc);
	if (v->op->kind == OP_PARAM) {
		Symbol *sym = b.sym = v->op->sym;
		b.name = sym->name;
		known = ir_emit(&b, OP_VIEW_OP, 1, &s->use[sym->unit->index].wait->out[sym->flat], NULL);
	} else {
		Value *operand = localize(s, op_in(v->op, 0), at);
		PtrMap *map = ptrmap_new(s->m->arena);
		ptrmap_put(map, op_in(v->op, 0), operand);
		b.loc = v->op->loc;
		known = ir_clone(&b, v->op, map)->out[0];
	}
	ptrmap_put(s->local, key, known);
	return known;
}

static void localize_operands(Shard *s, Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		Op *param = param_of(op_in(op, i));
		if (!param)
			continue;
		Unit *u = param->sym->unit;
		UnitUse *use = &s->use[u->index];
		if (!use->wait)
			gather(s, u, op);
		use->last = op;
		use->last_at = s->at;
		ir_set_in(op, i, localize(s, op_in(op, i), op));
	}
}

static void reshard(Shard *s, Unit *u)
{
	UnitUse *use = &s->use[u->index];
	if (!use->wait)
		return;
	Builder b = builder_at(s, use->last->next, use->last->section, use->last->loc);
	b.unit = u;
	ir_emit(&b, OP_RESHARD, use->wait->n_out, use->wait->out, NULL);
	*use = (UnitUse){0};
}

static bool reads_unit(const Op *op, const Unit *u)
{
	for (int i = 0; i < op->n_in; i++) {
		const Op *param = param_of(op_in(op, i));
		if (param && param->sym->unit == u)
			return true;
	}
	return false;
}

/* Whether u stays gathered from forward into backward. */
static bool is_held(const Shard *s, const Unit *u, const bool *read_later)
{
	const Module *m = s->m;
	if (!read_later[u->index])
		return false;
	if (u->index == m->n_units - 1 && !strcmp(u->name, "root"))
		return true;
	IR_FOR_OPS(m, SEC_BACKWARD, op)
		if (op->n_in && !is_alias(op))
			return s->use[u->index].wait && s->use[u->index].last_at == s->at && reads_unit(op, u);
	return false;
}

/* Aliases with no reader left, and all `param` ops: their readers have views now. */
static void remove_params(Module *m, SectionKind section)
{
	for (Op *op = m->last[section], *prev; op; op = prev) {
		prev = op->prev;
		if ((is_alias(op) && !op->out[0]->n_uses && param_of(op->out[0])) || op->kind == OP_PARAM)
			ir_remove(m, op);
	}
}

static void read_views(Shard *s, SectionKind section)
{
	IR_FOR_OPS(s->m, section, op) {
		unsigned flags = op_info[op->kind].flags;
		if (flags & SRC || (is_alias(op) && param_of(op->out[0])))
			continue;
		s->at += !(flags & VIEW);
		localize_operands(s, op);
	}
}

static void find_reads(Module *m, SectionKind section, bool *reads)
{
	IR_FOR_OPS(m, section, op) {
		for (int i = 0; i < op->n_in; i++) {
			const Op *param = param_of(op_in(op, i));
			if (param && !is_alias(op))
				reads[param->sym->unit->index] = true;
		}
	}
}

static void forget_locals(Shard *s, const bool *held)
{
	PtrMap *kept = ptrmap_new(s->m->arena);
	for (int i = 0; held && i < s->m->n_symbols; i++) {
		Symbol *sym = s->m->symbols[i];
		Value *view = sym->kind == SYM_PARAM && held[sym->unit->index] ? ptrmap_get(s->local, sym) : NULL;
		if (view)
			ptrmap_put(kept, sym, view);
	}
	s->local = kept;
}

static void gather_units(Shard *s)
{
	Module *m = s->m;
	bool *later = NEW_N(m->arena, bool, m->n_units), *held = NEW_N(m->arena, bool, m->n_units);
	find_reads(m, SEC_BACKWARD, later);
	read_views(s, SEC_FORWARD);
	for (int u = 0; u < m->n_units; u++) {
		held[u] = s->use[u].wait && is_held(s, m->units[u], later);
		if (held[u])
			diag_info(s->d, m->units[u]->name, "stays gathered from forward into backward");
		else
			reshard(s, m->units[u]);
	}
	forget_locals(s, held);
	read_views(s, SEC_BACKWARD);
	for (int u = 0; u < m->n_units; u++)
		reshard(s, m->units[u]);
	forget_locals(s, NULL);
	read_views(s, SEC_EVAL);
	for (int u = 0; u < m->n_units; u++)
		reshard(s, m->units[u]);
	for (int section = SEC_COUNT - 1; section >= 0; section--)
		remove_params(m, (SectionKind)section);
}

/* ---- gradients ---- */

static bool is_before(const Op *a, const Op *b)
{
	return a->section != b->section ? a->section < b->section : a->order < b->order;
}

typedef struct Gradients {
	Value **of;      /* in flat order, NULL = none */
	int n;
	Op *first, *last; /* that compute them, in or after backward; NULL when all are older */
} Gradients;

static Gradients gradients_of(Module *m, const Unit *u, const PtrMap *updates)
{
	Gradients g = {.of = NEW_N(m->arena, Value *, u->n_params)};
	for (int i = 0; i < u->n_params; i++) {
		Op *update = ptrmap_get(updates, u->params[i]);
		if (!u->params[i]->trainable)
			continue;
		Value *v = g.of[g.n++] = update ? op_in(update, 0) : NULL;
		if (!v || v->op->section < SEC_BACKWARD)
			continue;
		if (!g.first || is_before(v->op, g.first))
			g.first = v->op;
		if (!g.last || is_before(g.last, v->op))
			g.last = v->op;
	}
	return g;
}

/* Returns this rank's shard of the unit's mean gradient. */
static Value *reduce_unit(Shard *s, Unit *u, const PtrMap *updates)
{
	Module *m = s->m;
	Gradients g = gradients_of(m, u, updates);
	Op *first = g.first && g.first->section == SEC_BACKWARD ? g.first : NULL;
	SectionKind section = g.last ? g.last->section : SEC_BACKWARD;
	const Loc *loc = g.last ? g.last->loc : loc_new(m, "", "", "", "");
	Builder b = builder_at(s, first ? first : m->first[SEC_BACKWARD], SEC_BACKWARD, loc);
	b.unit = u;
	ir_emit(&b, OP_ZERO_GAPS, 0, NULL, NULL);
	b = builder_at(s, g.last ? g.last->next : m->first[section], section, loc);
	b.unit = u;
	b.name = arena_printf(m->arena, "%s.grad", u->name);
	Value *flat = ir_emit(&b, OP_COLLECT, g.n, g.of, NULL);
	b.unit = u;
	b.name = arena_printf(m->arena, "%s.reduced", u->name);
	Value *sent = ir_emit(&b, OP_REDUCE_SCATTER, 1, &flat, attr_str(m, NULL, "op", "mean"));
	b.name = arena_printf(m->arena, "%s.mine", u->name);
	return ir_emit(&b, OP_WAIT, 1, &sent, NULL);
}

/* ---- updates ---- */

/* Scalars of all ranks: loss, weight and, where the model wants a norm, its sum of squares. */
static void reduce_scalars(Shard *s, Op *norm, Op *step, Value **shards, int n)
{
	Builder b = builder_at(s, step, SEC_UPDATE, step->loc);
	Value *sum = norm ? ir_emit(&b, OP_SUMSQ, n, shards, NULL) : NULL;
	Value *all = ir_emit(&b, OP_ALL_REDUCE_SCALARS, sum ? 1 : 0, &sum, NULL);
	if (norm) {
		ir_replace_uses(norm->out[0], all);
		ir_remove(s->m, norm);
	}
}

static Attr *update_attrs(Module *m, const Optimizer *opt)
{
	Attr *attrs = attr_str(m, NULL, "optimizer", opt->name);
	return opt->nesterov ? attr_int(m, attrs, "nesterov", 1) : attrs;
}

static void update_units(Shard *s, const Optimizer *opt)
{
	Module *m = s->m;
	PtrMap *updates = ptrmap_new(m->arena);
	Value **shards = NEW_N(m->arena, Value *, m->n_units);
	Op *norm = NULL, *step = NULL;
	int n = 0;
	IR_FOR_OPS(m, SEC_UPDATE, op) {
		if (op->kind == OP_UPDATE)
			ptrmap_put(updates, op->sym, op);
		norm = op->kind == OP_NORM ? op : norm;
		step = op->kind == OP_STEP_SCALARS ? op : step;
	}
	for (int u = 0; u < m->n_units; u++)
		if (m->units[u]->flat[0].trainable)
			shards[u] = reduce_unit(s, m->units[u], updates);
	IR_FOR_OPS_SAFE(m, SEC_UPDATE, op)
		if (op->kind == OP_UPDATE)
			ir_remove(m, op);
	Builder b = builder_at(s, NULL, SEC_UPDATE, step ? step->loc : loc_new(m, "", "", "", ""));
	for (int u = 0; u < m->n_units; u++) {
		if (!shards[u])
			continue;
		b.unit = m->units[u];
		ir_emit(&b, OP_UPDATE_SHARD, 1, &shards[u], update_attrs(m, opt));
	}
	for (int u = 0; u < m->n_units; u++)
		if (shards[u])
			shards[n++] = shards[u];
	if (step)
		reduce_scalars(s, norm, step, shards, n);
	else if (n)
		ice("update has no step_scalars");
}

bool pass_shard(Module *m, const PassOptions *o, Diag *d)
{
	Optimizer opt;
	Shard s = {.m = m, .d = d, .use = NEW_N(m->arena, UnitUse, m->n_units), .local = ptrmap_new(m->arena)};
	if (!optimizer_parse(o->optimizer, &opt, d))
		return false;
	ir_number(m);
	update_units(&s, &opt);
	gather_units(&s);
	return true;
}
