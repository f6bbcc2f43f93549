/* passes/shard/shard.c: makes the life of every unit explicit, by its strategy (base/strategies.def).
 *
 * Requires SHARD (units are known).  Ensures that a parameter is read only as a view of its gathered unit, between
 * the unit's wait and its reshard, or of a unit that is resident as a whole; that the gradients of a unit are
 * collected in flat order and reduced once; that updates work on the part that a rank keeps.
 *
 *   forward   gather @h.0, wait, ops of h.0, reshard      backward  gather @h.0, wait, its gradients, reshard
 *             (units kept whole at rest: resident)                  collect, reduce_scatter, wait
 *             (kept units are not resharded here)           (hybrid: then all_reduce of the shard, wait;
 *                                                            whole: all_reduce, or reduce to the owner)
 *   update    sumsq of the shards, all_reduce_scalars, step_scalars, update_shard per unit
 *             (owned units: broadcast_flat behind it, waits at the end)
 *
 * Liveness saves work: a unit that backward does not read is not gathered again, and a reshard is dropped if the
 * same unit would be gathered again before any other unit is read.  Attribute `why` of a forward gather says so.
 * eval has its own gathers.
 * With several micro-batches (--accum=many, docs/ir.md) only the last one ends the step; the others have no update.
 *   sync=last   the flat gradient is passed on: first zero_gaps .. carry_grad, middle carried_grad, accumulate ..
 *               carry_grad, last carried_grad, accumulate .. its reduce; units of a strategy that keeps them
 *               gathered are gathered in the first alone: carry, carried .. carry, carried .. reshard (F94 of
 *               docs/compatibility.md); where the gradient is a product, the accumulate computes it
 *   sync=every  as one micro-batch, but the part that a rank keeps is added up (add=1); hybrid_shard's
 *               all_reduce over groups is issued in the last one only
 * Depends on neither the rank nor the world size: with one shard the runtime makes gather and reduce no-ops.
 * Refuses a module that is sharded already. */
#include "passes/passes.h"

#include <string.h>

typedef struct UnitUse {
	Op *flats;       /* whose results are the unit's flats: a wait, or resident */
	Op *last;        /* op that reads the unit last, so far */
	int64_t last_at; /* its number */
} UnitUse;

typedef struct Shard {
	Module *m;
	const Options *o;
	Diag *d;
	UnitUse *use;    /* by unit index, for the current section; held units keep theirs from forward */
	PtrMap *local;   /* parameter symbol or alias value -> the value to read in this section */
	int64_t at;      /* number of the current op, sources not counted */
} Shard;

/* ---- parameters become views ---- */

/* Whether a cast converts to the dtype in which its flat is gathered: then it needs no code, since its view has
 * that dtype. */
static bool is_gathered_so(const Op *op)
{
	if (!op_is_param_cast(op))
		return false;
	const Symbol *s = op_in(op, 0)->op->sym;
	return s->unit->flat[s->flat].param == op->out[0]->type.dtype;
}

static bool is_alias(const Op *op)
{
	return (op_info[op->kind].flags & VIEW && op->n_in) || is_gathered_so(op);
}

/* The `param` op that v shows, perhaps through views; NULL = v is not a parameter. */
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

/* Adds "f32 -> bf16" when a collective of the unit casts what it sends. */
static Attr *cast_attr(Module *m, Attr *attrs, DType from, DType to)
{
	return from == to ? attrs : attr_str(m, attrs, "cast", arena_printf(m->arena, "%s -> %s",
		dtype_info[from].text, dtype_info[to].text));
}

static Attr *round_attr(const Shard *s, Attr *attrs, bool rounds)
{
	return s->o->precision.stochastic_rounding && rounds ? attr_str(s->m, attrs, "round", "stochastic") : attrs;
}

const char *unit_cast(Module *m, const Unit *u)
{
	const char *text = NULL;
	for (int f = 0; f < u->n_flats; f++) {
		const Flat *x = &u->flat[f];
		bool said = x->param == x->dtype;
		for (int k = 0; k < f; k++)
			said = said || (u->flat[k].dtype == x->dtype && u->flat[k].param == x->param);
		if (!said)
			text = arena_printf(m->arena, "%s%s%s -> %s", text ? text : "", text ? ", " : "", dtype_info[x->dtype].text,
				dtype_info[x->param].text);
	}
	return text;
}

/* Evaluations round to nearest. */
static Attr *gather_cast(const Shard *s, const Unit *u, SectionKind section)
{
	const char *cast = unit_cast(s->m, u);
	return cast ? round_attr(s, attr_str(s->m, NULL, "cast", cast), section != SEC_EVAL && unit_gathers_rounded(u))
		: NULL;
}

/* Whether the unit is gathered already since the step's first micro-batch. */
static bool carried_into(const Module *m, const Unit *u, SectionKind section)
{
	return ir_is_carried(m, u) && ir_goes_on(m) && section != SEC_EVAL;
}

static void gather(Shard *s, Unit *u, Op *before)
{
	Builder b = builder_at(s, before, before->section, before->loc);
	Op *op = NULL;
	bool carried = carried_into(s->m, u, before->section);
	if (!unit_is_resident(u) && !carried) {
		b.unit = u;
		b.name = arena_printf(s->m->arena, "%s.async", u->name);
		op = ir_emit_op(&b, OP_ALL_GATHER, 0, NULL, gather_cast(s, u, b.section), NULL);
	}
	b.unit = op ? NULL : u;
	b.name = arena_printf(s->m->arena, "%s.full", u->name);
	s->use[u->index].flats = ir_emit_op(&b, op ? OP_WAIT : carried ? OP_CARRIED : OP_RESIDENT, op ? op->n_out : 0,
		op ? op->out : NULL, NULL, NULL);
}

/* The value to read instead of v, a parameter or an alias of one, in front of op `at`. */
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
		known = ir_emit(&b, OP_VIEW_OP, 1, &s->use[sym->unit->index].flats->out[sym->flat], NULL);
	} else if (is_gathered_so(v->op)) {
		known = localize(s, op_in(v->op, 0), at);
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
		if (!use->flats)
			gather(s, u, op);
		use->last = op;
		use->last_at = s->at;
		ir_set_in(op, i, localize(s, op_in(op, i), op));
	}
}

static void reshard(Shard *s, Unit *u)
{
	UnitUse *use = &s->use[u->index];
	if (use->flats && !unit_is_resident(u)) {
		Builder b = builder_at(s, use->last->next, use->last->section, use->last->loc);
		bool stays = ir_is_carried(s->m, u) && !ir_ends_step(s->m) && b.section != SEC_EVAL;
		b.unit = u;
		ir_emit(&b, stays ? OP_CARRY : OP_RESHARD, use->flats->n_out, use->flats->out, NULL);
	}
	*use = (UnitUse){0};
}

static void reshard_all(Shard *s)
{
	for (int u = 0; u < s->m->n_units; u++)
		reshard(s, s->m->units[u]);
}

/* Removes aliases without readers and all `param` ops: their readers use views now. */
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

/* ---- from forward into backward ---- */

typedef struct Later {
	bool *read;      /* by unit index: backward reads the unit */
	bool *first;     /* the first op of backward that reads any gathered unit reads this one */
	int64_t last_at; /* number of the last op of forward that reads a gathered unit */
} Later;

static Later find_later(Shard *s)
{
	const Module *m = s->m;
	Later later = {.read = NEW_N(m->arena, bool, m->n_units), .first = NEW_N(m->arena, bool, m->n_units)};
	const Op *first = NULL;
	IR_FOR_OPS(m, SEC_BACKWARD, op) {
		for (int i = 0; i < op->n_in; i++) {
			const Op *param = param_of(op_in(op, i));
			if (!param || is_alias(op))
				continue;
			later.read[param->sym->unit->index] = true;
			first = first || unit_is_resident(param->sym->unit) ? first : op;
			later.first[param->sym->unit->index] |= op == first;
		}
	}
	for (int u = 0; u < m->n_units; u++)
		if (!unit_is_resident(m->units[u]))
			later.last_at = MAX(later.last_at, s->use[u].last_at);
	return later;
}

static bool is_root(const Module *m, const Unit *u)
{
	return u->index == m->n_units - 1 && !strcmp(u->name, "root");
}

/* Why u, which backward reads, stays gathered from forward into backward; NULL = it is resharded. */
static const char *why_kept(const Shard *s, const Unit *u, const Later *later)
{
	const char *by = u->reshard_after_forward ? strategy_info[u->strategy].text : "reshard_after_forward is false";
	if (ir_is_carried(s->m, u))
		return arena_printf(s->m->arena, "kept over micro-batches: %s", by);
	if (unit_is_kept(u))
		return arena_printf(s->m->arena, "kept: %s", by);
	if (is_root(s->m, u) && !s->o->sharding.reshard_root)
		return "kept: root";
	if (later->first[u->index] && s->use[u->index].last_at == later->last_at)
		return "kept: read last in forward and first in backward";
	return NULL;
}

/* Ends the lives of units after forward; held[u]: u's flats stay readable in backward. */
static void end_forward(Shard *s, bool *held)
{
	Module *m = s->m;
	Later later = find_later(s);
	for (int i = 0; i < m->n_units; i++) {
		Unit *u = m->units[i];
		if (!s->use[i].flats)
			continue;
		held[i] = unit_is_resident(u);
		if (held[i] || !m->first[SEC_BACKWARD])
			continue;
		const char *why = later.read[i] || ir_is_carried(m, u) ? why_kept(s, u, &later)
			: "once: backward does not read it";
		Op *op = s->use[i].flats->kind == OP_WAIT ? op_in(s->use[i].flats, 0)->op : NULL;
		held[i] = why && later.read[i];
		if (why && op) {
			op->attrs = attr_str(m, op->attrs, "why", why);
			diag_info(s->d, u->name, "gathered once a step (%s)", why);
			bool asked = s->o->sharding.reshard_root && is_root(m, u);
			if (asked && !unit_is_kept(u) && !ir_is_carried(m, u))
				diag_warn(s->d, "--reshard-root", "the root is gathered once a step all the same (%s): it is not used",
					why);
		}
	}
	for (int i = 0; i < m->n_units; i++)
		if (!held[i])
			reshard(s, m->units[i]);
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
	bool *held = NEW_N(s->m->arena, bool, s->m->n_units);
	read_views(s, SEC_FORWARD);
	end_forward(s, held);
	forget_locals(s, held);
	read_views(s, SEC_BACKWARD);
	reshard_all(s);
	forget_locals(s, NULL);
	read_views(s, SEC_EVAL);
	reshard_all(s);
	for (int section = SEC_COUNT - 1; section >= 0; section--)
		remove_params(s->m, (SectionKind)section);
}

/* ---- gradients ---- */

static bool is_before(const Op *a, const Op *b)
{
	return a->section != b->section ? a->section < b->section : a->order < b->order;
}

typedef struct Gradients {
	Value **of;      /* in flat order, NULL = none */
	int n;
	Op *first, *last; /* ops that compute them, in or after backward; NULL when all are older */
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

static bool is_lone_product(const Value *g)
{
	return g->op->kind == OP_MATMUL && g->n_uses == 1 && !op_in(g->op, 2) && !op_sum(g->op) && g->type.dtype == DT_F32;
}

/* The first of the terms of gradient v, where one is added to the other. */
static Value *first_term(Value *v)
{
	while (op_sum(v->op) && v == v->op->out[op_sum_result(v->op)])
		v = op_sum(v->op);
	return v;
}

/* What is added to the running sum of gradient v: the first product, where others are added to it one after the other
 * and both sums are f32; else v. */
static Value *first_of_sum(Value *v, const Symbol *s)
{
	Value *first = first_term(v);
	return is_lone_product(first) && s->unit->flat[s->flat].grad == DT_F32 ? first : v;
}

/* Whether nothing reads gradient v but its update and the norm, which will read what is reduced. */
static bool is_only_updated(const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (u->op->kind != OP_UPDATE && u->op->kind != OP_NORM)
			return false;
	return true;
}

/* The loss head that makes the first term of gradient v and can add it to the running sum itself; NULL = none. */
static Op *head_of_sum(Value *v, const Symbol *s)
{
	Value *first = first_term(v);
	Op *head = first->op;
	bool adds = head->kind == OP_LINEAR_CROSS_ENTROPY_GRAD && first == head->out[op_sum_result(head)]
		&& attr_get_int(head->attrs, "dw", 0) && (first == v ? is_only_updated(v) : first->n_uses == 1);
	return adds && type_equal(&first->type, &v->type) && s->unit->flat[s->flat].grad == DT_F32 ? head : NULL;
}

/* Makes the loss head add its gradient of s to the running sum.  Returns the op that stands for the sum. */
static Op *add_head(Shard *s, Op *head, Symbol *sym)
{
	Builder b = builder_at(s, head, head->section, head->loc);
	Value *in[7] = {0};
	b.sym = sym;
	b.name = arena_printf(s->m->arena, "%s.carried", sym->name);
	for (int i = 0; i < COUNT_OF(in) - 1; i++)
		in[i] = op_in(head, i);
	in[COUNT_OF(in) - 1] = ir_emit(&b, OP_ACCUMULATE, 0, NULL, NULL);
	ir_set_n_in(s->m, head, COUNT_OF(in), in);
	in[COUNT_OF(in) - 1]->op->order = head->order - 1;
	return in[COUNT_OF(in) - 1]->op;
}

/* Takes note of what the gradients of a unit begin and end with. */
static void span(Gradients *g, Op *first, Op *last)
{
	/* of gradients with the same position the one inserted last stands first */
	g->first = !g->first || !is_before(g->first, first) ? first : g->first;
	g->last = !g->last || is_before(g->last, last) ? last : g->last;
}

/* Adds each gradient to its running sum directly behind the op that makes it; the sums replace the gradients. */
static void accumulate(Shard *s, const Unit *u, Gradients *g)
{
	Module *m = s->m;
	Op *start = m->first[SEC_BACKWARD];
	int64_t early = -1 - u->n_params;
	g->first = g->last = NULL;
	for (int i = 0, k = 0; i < u->n_params; i++) {
		if (!u->params[i]->trainable)
			continue;
		Value *v = g->of[k++];
		if (!v)
			continue;
		bool older = v->op->section < SEC_BACKWARD;
		Op *head = older ? NULL : head_of_sum(v, u->params[i]);
		if (head) {
			span(g, add_head(s, head, u->params[i]), v->op);
			continue;
		}
		Value *first = older ? v : first_of_sum(v, u->params[i]);
		Op *next = first == v ? NULL : first->uses->op;
		Builder b = builder_at(s, older ? start : first->op->next, older ? SEC_BACKWARD : first->op->section,
			first->op->loc);
		b.sym = u->params[i];
		b.name = arena_printf(m->arena, "%s.sum", u->params[i]->name);
		Op *op = ir_emit(&b, OP_ACCUMULATE, 1, &first, NULL)->op, *last = next ? v->op : op;
		op->order = older ? early++ : first->op->order;
		if (next)
			ir_set_in(next, next->n_in - 1, op->out[0]);
		else
			g->of[k - 1] = op->out[0];
		span(g, op, last);
	}
}

/* A product of two matrices that nothing else reads is added to the sum as it is computed, and is not stored in
 * between.  It may be short of leading dims of 1, which the parameter has. */
static bool add_product(Module *m, Op *sum)
{
	Value *g = op_in(sum, 0);
	Op *view = g->op->kind == OP_RESHAPE && g->n_uses == 1 && type_same_matrix(&op_in(g->op, 0)->type, &g->type)
		? g->op : NULL;
	g = view ? op_in(view, 0) : g;
	Op *product = g->op;
	if (!is_lone_product(g) || product->section != sum->section || sum->out[0]->type.dtype != DT_F32
			|| !type_same_matrix(&g->type, &sum->sym->type))
		return false;
	Attr *attrs = attr_int(m, NULL, "ta", attr_get_int(product->attrs, "ta", 0));
	attrs = attr_int(m, attrs, "tb", attr_get_int(product->attrs, "tb", 0));
	Builder b = {.m = m, .section = sum->section, .before = sum, .loc = product->loc, .sym = sum->sym,
		.name = sum->out[0]->name};
	Op *now = ir_emit(&b, OP_ACCUMULATE, 2, (Value *[]){op_in(product, 0), op_in(product, 1)}, attrs)->op;
	now->order = sum->order;
	ir_replace_uses(sum->out[0], now->out[0]);
	now->out[0]->name = sum->out[0]->name;
	ir_remove(m, sum);
	if (view)
		ir_remove(m, view);
	ir_remove(m, product);
	return true;
}

/* Must run before gather_units, which looks for the last readers of parameters, including those that a product
 * reads. */
static void add_products(Shard *s)
{
	int n = 0;
	for (int section = 0; section < SEC_COUNT; section++)
		IR_FOR_OPS_SAFE(s->m, section, op)
			n += op->kind == OP_ACCUMULATE && op->n_in == 1 && add_product(s->m, op);
	if (n)
		diag_info(s->d, "shard", "%d products are added to the sums of the micro-batches before", n);
}

/* One collective on a unit's gradient, and its wait.  A shard that is all_reduced is a sum already. */
static Value *reduced(Builder *b, Unit *u, OpKind kind, Value *grad, const char *how,
	const char *sent_name, const char *name)
{
	Module *m = b->m;
	Attr *attrs = attr_str(m, NULL, "op", how);
	if (ir_sums_reduced(m) && ir_goes_on(m) && grad->type.kind == TYPE_FLAT)
		attrs = attr_int(m, attrs, "add", 1);
	if (kind == OP_REDUCE)
		attrs = attr_int(m, attrs, "root", u->owner);
	attrs = cast_attr(m, attrs, grad->type.dtype, u->flat[0].reduce);
	b->unit = u;
	b->name = arena_printf(m->arena, "%s.%s", u->name, sent_name);
	Value *sent = ir_emit(b, kind, 1, &grad, attrs);
	b->name = arena_printf(m->arena, "%s.%s", u->name, name);
	return ir_emit(b, OP_WAIT, 1, &sent, NULL);
}

/* The part of the unit's mean gradient that this rank keeps: its shard, or all of it, or all of it on the owner
 * only. */
static Value *reduce_flat(Builder *b, Unit *u, Value *flat)
{
	const StrategyInfo *strategy = &strategy_info[u->strategy];
	if (strategy->reduce == REDUCE_TO_ALL)
		return reduced(b, u, OP_ALL_REDUCE, flat, "mean", "reduced", "mine");
	if (strategy->reduce == REDUCE_TO_OWNER)
		return reduced(b, u, OP_REDUCE, flat, "mean", "reduced", "mine");
	if (strategy->group == GROUP_WORLD)
		return reduced(b, u, OP_REDUCE_SCATTER, flat, "mean", "reduced", "mine");
	Value *shard = reduced(b, u, OP_REDUCE_SCATTER, flat, "sum", "summed", "group");
	return ir_ends_step(b->m) ? reduced(b, u, OP_ALL_REDUCE, shard, "mean", "reduced", "mine") : shard;
}

/* Reduces the gradient of a unit; NULL: the gradient is passed on to the next micro-batch. */
static Value *reduce_unit(Shard *s, Unit *u, const PtrMap *updates)
{
	Module *m = s->m;
	Gradients g = gradients_of(m, u, updates);
	bool goes_on = ir_sums_flats(m) && ir_goes_on(m);
	if (goes_on)
		accumulate(s, u, &g);
	Op *first = g.first && g.first->section == SEC_BACKWARD ? g.first : NULL;
	SectionKind section = g.last ? g.last->section : SEC_BACKWARD;
	const Loc *loc = g.last ? g.last->loc : loc_new(m, "", "", "", "");
	Op *start = first ? first : m->first[SEC_BACKWARD];
	Builder b = builder_at(s, start, SEC_BACKWARD, loc);
	b.unit = u;
	ir_emit(&b, goes_on ? OP_CARRIED_GRAD : OP_ZERO_GAPS, 0, NULL, NULL);
	b = builder_at(s, g.last ? g.last->next : start, section, loc); /* else right behind zero_gaps */
	b.unit = u;
	b.name = arena_printf(m->arena, "%s.grad", u->name);
	Value *flat = ir_emit(&b, OP_COLLECT, g.n, g.of, NULL);
	if (!ir_sums_flats(m) || ir_ends_step(m))
		return reduce_flat(&b, u, flat);
	b.unit = u;
	ir_emit(&b, OP_CARRY_GRAD, 1, &flat, NULL);
	return NULL;
}

/* ---- updates ---- */

/* Sums the scalars of all ranks: loss, weight and, where the program needs a norm, its sum of squares. */
static void reduce_scalars(Shard *s, Op *norm, Op *step, Value **shards, int n)
{
	Builder b = builder_at(s, step, SEC_UPDATE, step->loc);
	Value *sum = norm ? ir_emit(&b, OP_SUMSQ, n, shards, norm->attrs) : NULL;
	Value *all = ir_emit(&b, OP_ALL_REDUCE_SCALARS, sum ? 1 : 0, &sum, NULL);
	if (norm) {
		ir_replace_uses(norm->out[0], all);
		ir_remove(s->m, norm);
	}
}

static Attr *update_attrs(Module *m, const OptimizerChoice *opt)
{
	Attr *attrs = attr_str(m, NULL, "optimizer", opt->info->text);
	return opt->nesterov ? attr_int(m, attrs, "nesterov", 1) : attrs;
}

static void update_unit(Shard *s, Builder *b, Unit *u, Value *grad, const OptimizerChoice *opt, Op **sent)
{
	b->unit = u;
	Attr *how = update_attrs(s->m, opt);
	ir_emit(b, OP_UPDATE_SHARD, 1, &grad, round_attr(s, how, unit_has_master(u)));
	if (!strategy_info[u->strategy].owned)
		return;
	b->unit = u;
	b->name = arena_printf(s->m->arena, "%s.sending", u->name);
	Attr *attrs = cast_attr(s->m, attr_int(s->m, NULL, "root", u->owner), u->flat[0].dtype, u->flat[0].bcast);
	*sent = ir_emit_op(b, OP_BROADCAST_FLAT, 0, NULL, attrs, NULL);
}

/* grad: by unit index, NULL = the unit has nothing that is trained. */
static void emit_updates(Shard *s, Builder *b, Value **grad, const OptimizerChoice *opt)
{
	Module *m = s->m;
	Op **sent = NEW_N(m->arena, Op *, m->n_units);
	for (int u = 0; u < m->n_units; u++)
		if (grad[u])
			update_unit(s, b, m->units[u], grad[u], opt, &sent[u]);
	for (int u = 0; u < m->n_units; u++) {
		if (!sent[u])
			continue;
		b->name = arena_printf(m->arena, "%s.sent", m->units[u]->name);
		ir_emit_op(b, OP_WAIT, sent[u]->n_out, sent[u]->out, NULL, NULL);
	}
}

/* Removes what only the end of a step needs: updates, scalars, and ops that nothing else reads. */
static void remove_update(Module *m)
{
	static const OpKind ends[] = {OP_UPDATE, OP_NORM, OP_STEP_SCALARS};
	for (Op *op = m->last[SEC_UPDATE], *prev; op; op = prev) {
		prev = op->prev;
		bool goes = !op_has_effect(op);
		for (int i = 0; i < COUNT_OF(ends); i++)
			goes = goes || op->kind == ends[i];
		if (goes && !op_is_read(op))
			ir_remove(m, op);
	}
}

static void update_units(Shard *s, const OptimizerChoice *opt)
{
	Module *m = s->m;
	PtrMap *updates = ptrmap_new(m->arena);
	Value **grad = NEW_N(m->arena, Value *, m->n_units);
	Op *norm = NULL, *step = NULL;
	int n = 0;
	IR_FOR_OPS(m, SEC_UPDATE, op) {
		if (op->kind == OP_UPDATE)
			ptrmap_put(updates, op->sym, op);
		norm = op->kind == OP_NORM ? op : norm;
		step = op->kind == OP_STEP_SCALARS ? op : step;
	}
	for (int u = 0; u < m->n_units; u++)
		if (m->units[u]->n_flats && m->units[u]->flat[0].trainable)
			grad[u] = reduce_unit(s, m->units[u], updates);
	if (!ir_ends_step(m)) {
		remove_update(m);
		return;
	}
	IR_FOR_OPS_SAFE(m, SEC_UPDATE, op)
		if (op->kind == OP_UPDATE)
			ir_remove(m, op);
	Builder b = builder_at(s, NULL, SEC_UPDATE, step ? step->loc : loc_new(m, "", "", "", ""));
	emit_updates(s, &b, grad, opt);
	for (int u = 0; u < m->n_units; u++)
		if (grad[u])
			grad[n++] = grad[u];
	if (step)
		reduce_scalars(s, norm, step, grad, n);
	else if (n)
		ice("update has no step_scalars");
}

static void check_root(const Module *m, const Options *o, Diag *d)
{
	const Unit *last = m->n_units ? m->units[m->n_units - 1] : NULL;
	const Unit *root = last && is_root(m, last) ? last : NULL;
	if (!o->sharding.reshard_root)
		return;
	if (!root)
		diag_warn(d, "--reshard-root", "no unit is the root, it is not used");
	else if (unit_is_resident(root) || unit_is_kept(root))
		diag_warn(d, "--reshard-root", "the root is %s, which is not resharded after forward: it is not used",
			strategy_info[root->strategy].text);
}

/* Refuses a module at SHARD that this pass has sharded already. */
static bool check_once(const Module *m, Diag *d)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			if (op_info[op->kind].flags & UNIT) {
				diag_error(d, m->file ? m->file : m->name, "pass shard finds %s of unit %s: the module is sharded "
					"already", op_info[op->kind].text, op->unit ? op->unit->name : "none");
				return false;
			}
	return true;
}

/* Checks gradients of a text, which may come from passes that ran with other options. */
static bool check_gradients(const Module *m, Diag *d)
{
	int before = d->errors;
	IR_FOR_OPS(m, SEC_UPDATE, op) {
		if (op->kind != OP_UPDATE || !op->sym->unit || !op->sym->trainable)
			continue;
		DType is = op_in(op, 0)->type.dtype, wanted = op->sym->unit->flat[op->sym->flat].grad;
		if (is != wanted)
			diag_error(d, m->file ? m->file : m->name, "the gradient of \"%s\" is %s, and with these options it is "
				"collected as %s: give the --reduce-dtype and --accum that the text was made with", op->sym->name,
				dtype_info[is].text, dtype_info[wanted].text);
	}
	return d->errors == before;
}

/* Checks that the module has step_scalars, where the scalars of a step are summed; pass optimizer makes it. */
static bool check_step(const Module *m, Diag *d)
{
	const Op *update = NULL;
	if (!ir_ends_step(m))
		return true;
	IR_FOR_OPS(m, SEC_UPDATE, op) {
		if (op->kind == OP_STEP_SCALARS)
			return true;
		update = op->kind == OP_UPDATE && op->sym->trainable ? op : update;
	}
	if (update)
		diag_error(d, m->file ? m->file : m->name, "parameters are updated, \"%s\" the last, and no step_scalars "
			"stands before them: pass optimizer makes it", update->sym->name);
	return !update;
}

bool pass_shard(Module *m, const Options *o, Diag *d)
{
	OptimizerChoice opt;
	Shard s = {.m = m, .o = o, .d = d, .use = NEW_N(m->arena, UnitUse, m->n_units),
		.local = ptrmap_new(m->arena)};
	if (!optimizer_of(m, o, &opt, d))
		return false;
	if (!check_once(m, d) || !check_gradients(m, d) || !check_step(m, d))
		return false;
	check_root(m, o, d);
	ir_number(m);
	for (int section = 0; section < SEC_COUNT; section++)
		IR_FOR_OPS(m, section, op)
			op->order *= 2; /* room for ops that are inserted in front of others */
	update_units(&s, &opt);
	add_products(&s);
	gather_units(&s);
	return true;
}
