/* ir/verify_shard.c: checks units, and the life of gathered values.
 *
 * Parameters lie in their unit's flats, aligned and without overlap.  A gathered flat is read only between its wait and
 * its reshard; every gather is waited for once and released once; gradients are reduced once, with their gaps zeroed.
 * These rules hold at SHARD, where nothing overlaps.  For a PLAN, verify_plan.c proves the whole schedule. */
#include "ir/verify.h"

#include "base/layout.h"

#include <string.h>

/* ---- units ---- */

static void check_member(Verify *v, const Unit *u, const Symbol *s, int64_t *end)
{
	if (s->unit != u || s->kind != SYM_PARAM || s->type.kind != TYPE_TENSOR) {
		verify_fail_at(v, u->at, "unit %s lists \"%s\", which is not its parameter", u->name, s->name);
		return;
	}
	if (s->flat < 0 || s->flat >= u->n_flats) {
		verify_fail_at(v, s->at, "\"%s\" lies in flat %d of unit %s, which has %d", s->name, s->flat, u->name,
			u->n_flats);
		return;
	}
	const Flat *f = &u->flat[s->flat];
	int64_t last;
	bool same = f->dtype == s->type.dtype || (f->master && s->type.dtype == DT_F32);
	if (!same || f->trainable != s->trainable)
		verify_fail_at(v, s->at, "\"%s\" lies in a flat of another dtype or trainability", s->name);
	else if (s->offset < end[s->flat] || s->offset % LAYOUT_ALIGN
		|| __builtin_add_overflow(s->offset, type_numel(&s->type), &last) || last > f->numel)
		verify_fail_at(v, s->at, "\"%s\" lies at %lld of unit %s: not aligned to %d, over its neighbour (which "
			"ends at %lld), or beyond the flat's %lld elements", s->name, (long long)s->offset, u->name,
			LAYOUT_ALIGN, (long long)end[s->flat], (long long)f->numel);
	else
		end[s->flat] = last;
}

/* In a program for GPUs a gather copies what rests in memory of the host. */
static void check_away(Verify *v, const Unit *u)
{
	LayoutOffload offload = ir_offload(v->m, u);
	bool away = v->m->train && v->m->train->cuda && offload == LAYOUT_OFFLOAD_PARAMS;
	for (int f = 0; v->m->train && f < u->n_flats; f++)
		if (u->flat[f].away != away)
			verify_fail_at(v, u->at, "flat %d of unit %s %s away, and offload=%s of a program for %s", f, u->name,
				away ? "is not" : "is", offload_text[offload], v->m->train->cuda ? "GPUs" : "CPUs");
}

static bool is_member(const Unit *u, const Symbol *first, int64_t i)
{
	return i < u->n_params - first->member && u->params[first->member + i]->flat == first->flat;
}

/* Scales stand one behind the other, in the order of their parameters, in which programs look them up. */
static bool is_in_order(const Module *m, const Symbol *s)
{
	const Symbol *before = s->index ? m->symbols[s->index - 1] : NULL, *first = scale_param(m, s);
	const Symbol *last = before && before->kind == SYM_SCALE ? scale_param(m, before) : NULL;
	for (int i = 0; !last && i < s->index; i++)
		if (m->symbols[i]->kind == SYM_SCALE)
			return false;
	return !last || !last->unit || last->unit->index < first->unit->index
		|| (last->unit == first->unit && last->member < first->member);
}

/* A scale is that of weights which follow each other in a flat that is gathered in e4m3. */
static void check_scale(Verify *v, const Symbol *s)
{
	const Symbol *first = scale_param(v->m, s);
	const Unit *u = first ? first->unit : NULL;
	bool f32 = s->type.kind == TYPE_TENSOR && s->type.dtype == DT_F32 && s->type.rank == 0;
	if (!f32 || !u || s->n_params < 1 || !is_member(u, first, s->n_params - 1)
			|| u->flat[first->flat].param != DT_E4M3)
		verify_fail_at(v, s->at, "scale \"%s\" is no f32[] of parameters that lie together in a flat with param=e4m3",
			s->name);
	else if (!is_in_order(v->m, s))
		verify_fail_at(v, s->at, "scale \"%s\" does not stand behind that of the parameters in front of its own",
			s->name);
}

/* Such a flat is f32 at rest, on the device, and has no owner; every parameter in it has one scale. */
static void check_scaled(Verify *v, const Unit *u, const int *scales)
{
	for (int f = 0; f < u->n_flats; f++) {
		const Flat *flat = &u->flat[f];
		if (flat->param == DT_E4M3 && (flat->dtype != DT_F32 || flat->away || strategy_info[u->strategy].owned))
			verify_fail_at(v, u->at, "flat %d of unit %s is gathered in e4m3: it must be f32 at rest, not away, and of "
				"a strategy without owners", f, u->name);
	}
	for (int k = 0; k < u->n_params; k++) {
		const Symbol *s = u->params[k];
		if (u->flat[s->flat].param == DT_E4M3 && scales[s->index] != 1)
			verify_fail_at(v, s->at, "\"%s\" is gathered in e4m3 and has %d scales", s->name, scales[s->index]);
	}
}

static void verify_scales(Verify *v)
{
	const Module *m = v->m;
	int *scales = NEW_N(v->arena, int, m->n_symbols), before = v->errors;
	for (int i = 0; i < m->n_symbols; i++)
		if (m->symbols[i]->kind == SYM_SCALE)
			check_scale(v, m->symbols[i]);
	for (int i = 0; i < m->n_symbols && v->errors == before; i++) {
		const Symbol *first = m->symbols[i]->kind == SYM_SCALE ? scale_param(m, m->symbols[i]) : NULL;
		for (int64_t k = 0; first && k < m->symbols[i]->n_params; k++)
			scales[first->unit->params[first->member + k]->index]++;
	}
	for (int i = 0; i < m->n_units && v->errors == before; i++)
		check_scaled(v, m->units[i], scales);
}

void verify_units(Verify *v)
{
	const Module *m = v->m;
	if (m->n_units && m->level < LEVEL_SHARD)
		verify_fail_at(v, m->units[0]->at, "there are units below level SHARD");
	for (int i = 0; i < m->n_units; i++) {
		const Unit *u = m->units[i];
		int64_t end[UNIT_MAX_FLATS] = {0};
		if (u->index != i)
			verify_fail_at(v, u->at, "unit %s is number %d but says %d", u->name, i, u->index);
		for (int k = 0; k < u->n_params; k++)
			check_member(v, u, u->params[k], end);
		check_away(v, u);
	}
	verify_scales(v);
	for (int i = 0; i < m->n_symbols && m->level >= LEVEL_SHARD; i++)
		if (m->symbols[i]->kind == SYM_PARAM && !m->symbols[i]->unit)
			verify_fail_at(v, m->symbols[i]->at, "parameter \"%s\" has no unit at level SHARD", m->symbols[i]->name);
}

/* ---- gathered values ---- */

typedef enum { NOT_WAITED, READABLE, RELEASED } Life;

typedef struct Program {
	Verify *v;
	const Value **root;  /* by Value.id: the gathered flat that the value shows; NULL = none */
	Life *life;          /* by Value.id: for async values and flats */
	bool *gaps, *reduced, *across; /* by unit */
} Program;

static void read_gathered(Program *p, const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		const Value *x = op_in(op, i), *root = x ? p->root[x->id] : NULL;
		if (root && p->life[root->id] == RELEASED)
			verify_fail(p->v, op, "operand %d lies in %%%s, which was resharded before", i + 1, root->name);
		if (root && op_info[op->kind].flags & VIEW)
			p->root[op->out[0]->id] = root;
	}
}

static void end_wait(Program *p, const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		const Value *async = op_in(op, i), *now = op->out[i];
		if (p->life[async->id] != NOT_WAITED)
			verify_fail(p->v, op, "%%%s is waited for twice", async->name);
		p->life[async->id] = RELEASED;
		p->life[now->id] = READABLE;
		p->root[now->id] = now->type.kind == TYPE_FLAT ? now : NULL;
	}
}

static void end_gathered(Program *p, const Op *op)
{
	for (int i = 0; i < op->n_in; i++)
		p->life[op_in(op, i)->id] = RELEASED;
}

/* A unit of hybrid_shard is reduced twice: first its flat, then its shard across groups. */
static void check_reduce(Program *p, const Op *op)
{
	int u = op->unit->index;
	bool across = op->kind == OP_ALL_REDUCE && op_in(op, 0)->type.kind == TYPE_SHARD;
	bool *reduced = across ? p->across : p->reduced;
	if (!across && !p->gaps[u])
		verify_fail(p->v, op, "the gaps of the unit's gradient were not zeroed before");
	if (across && (!p->reduced[u] || strategy_info[op->unit->strategy].group != GROUP_SHARD))
		verify_fail(p->v, op, "there are no shards of other groups, or they are not reduced yet");
	if (reduced[u])
		verify_fail(p->v, op, "the unit's gradient is reduced twice");
	reduced[u] = true;
}

/* Checks that units that every rank holds whole are not gathered, and that all others are. */
static void check_strategy(Program *p, const Op *op)
{
	bool whole = unit_is_resident(op->unit);
	for (int i = 0; op->kind == OP_CARRIED && i < op->n_out; i++) {
		p->life[op->out[i]->id] = READABLE;
		p->root[op->out[i]->id] = op->out[i];
	}
	if (whole != (op->kind == OP_RESIDENT))
		verify_fail(p->v, op, "unit %s (%s) %s", op->unit->name, strategy_info[op->unit->strategy].text,
			whole ? "rests whole on every rank: there is nothing to gather" : "is split over ranks: it is "
			"not resident");
}

static void step(Program *p, const Op *op)
{
	read_gathered(p, op);
	if (op_reduces(op->kind))
		check_reduce(p, op);
	else if (op->kind == OP_ALL_GATHER || op->kind == OP_RESIDENT || op->kind == OP_CARRIED)
		check_strategy(p, op);
	else if (op->kind == OP_WAIT)
		end_wait(p, op);
	else if (op->kind == OP_RESHARD || op->kind == OP_CARRY)
		end_gathered(p, op);
	else if (op->kind == OP_ZERO_GAPS || op->kind == OP_CARRIED_GRAD)
		p->gaps[op->unit->index] = true;
}

/* Checks, at the end of a program, that every collective was waited for and every gathered unit resharded. */
static void check_end(Program *p, const Op *op)
{
	for (int i = 0; i < op->n_out; i++) {
		const Value *x = op->out[i];
		bool gathered = p->root[x->id] == x && (op->kind == OP_CARRIED
			|| (op->kind == OP_WAIT && op_in(op, i)->op->kind == OP_ALL_GATHER));
		if (op_info[op->kind].flags & COMM && x->type.kind != TYPE_TENSOR && p->life[x->id] == NOT_WAITED)
			verify_fail(p->v, op, "%%%s is never waited for", x->name);
		if (gathered && p->life[x->id] != RELEASED)
			verify_fail(p->v, op, "%%%s is never resharded", x->name);
	}
}

static void check_program(Verify *v, SectionKind first, SectionKind last)
{
	const Module *m = v->m;
	Program p = {.v = v, .root = NEW_N(v->arena, const Value *, MAX(m->n_values, 1))};
	p.life = NEW_N(v->arena, Life, MAX(m->n_values, 1));
	p.gaps = NEW_N(v->arena, bool, MAX(m->n_units, 1));
	p.reduced = NEW_N(v->arena, bool, MAX(m->n_units, 1));
	p.across = NEW_N(v->arena, bool, MAX(m->n_units, 1));
	for (int s = (int)first; s <= (int)last; s++)
		IR_FOR_OPS(m, s, op)
			step(&p, op);
	for (int s = (int)first; s <= (int)last; s++)
		IR_FOR_OPS(m, s, op)
			check_end(&p, op);
}

/* Checks that all gathers of a unit in a step give the same bits. */
static void check_rounding(Verify *v)
{
	const char **of = NEW_N(v->arena, const char *, MAX(v->m->n_units, 1));
	for (int s = SEC_FORWARD; s < SEC_COUNT; s++) {
		IR_FOR_OPS(v->m, s, op) {
			const char *round = attr_get_str(op->attrs, "round", "nearest");
			if ((op->kind != OP_ALL_GATHER && op->kind != OP_UPDATE_SHARD) || !op->unit)
				continue;
			bool gathers = op->kind == OP_ALL_GATHER, chance = !strcmp(round, "stochastic");
			if (!chance && strcmp(round, "nearest"))
				verify_fail(v, op, "round=\"%s\" is not known: \"stochastic\", or none for nearest", round);
			else if (chance && s == SEC_EVAL)
				verify_fail(v, op, "evaluations round to nearest, and this is stochastic");
			else if (chance && !(gathers ? unit_gathers_rounded(op->unit) : unit_has_master(op->unit)))
				verify_fail(v, op, "nothing of unit %s is rounded from f32 to 16 bits here", op->unit->name);
			if (!gathers || s == SEC_EVAL)
				continue;
			const char **known = &of[op->unit->index];
			if (*known && strcmp(*known, round))
				verify_fail(v, op, "unit %s is gathered once with rounding to %s and now with %s: a step reads one "
					"value", op->unit->name, *known, round);
			*known = round;
		}
	}
}

/* Reports each violation of a PLAN's schedule with the name of its rule. */
static void check_plan(Verify *v)
{
	PlanViolation found[32];
	int n = ir_verify_plan(v->m, v->arena, found, COUNT_OF(found));
	for (int i = 0; i < n; i++)
		verify_fail(v, found[i].op, "%s (rule %s)", found[i].text, found[i].rule);
}

void verify_sharding(Verify *v)
{
	if (v->m->level < LEVEL_SHARD)
		return;
	check_rounding(v);
	if (v->m->level == LEVEL_PLAN) {
		check_plan(v);
		return;
	}
	check_program(v, SEC_FORWARD, SEC_UPDATE);
	check_program(v, SEC_EVAL, SEC_EVAL);
}
