/* passes/schedule/prefetch.c: decides when collectives are issued and waited for.
 *
 * Requires the final order of computing.  Ensures PLAN: every collective has its number, stream, slot, point of
 * issue, events and wait.
 *   gathers   in forward the unit that is N ahead is gathered directly behind a unit's wait (F67 and F71 of
 *             docs/compatibility.md); in backward the same (pre:N), or the next unit is gathered behind a unit's
 *             reshard and before its reduce (post), or nothing is gathered ahead (none).  Gathers never cross the
 *             start of their section and stay in the order of first use.
 *   ring      gathers that are resharded in their section share slots: the k-th takes slot k mod N.  One that is
 *             still readable when its slot is needed again gets a region of its own instead.  A gather is
 *             issued behind the reshard that frees its memory.
 *   reduces   are issued where they stand.  Each is waited for behind the issue of the next unit's reduce, the
 *             last ones at the end of backward.
 *   buffers   with --bn-sync=broadcast a step, or under --sync=every each micro-batch, begins by broadcasting
 *             rank 0's.
 * Refuses a ring that cannot hold a unit and those gathered ahead of it, and an order that schedule did not make.
 *
 * Only the issues of gathers and the waits of reduces move, since the order of computing is fixed.  events.c
 * derives the rest (events, numbers, gradient slots) from their positions. */
#include "base/near.h"
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_AHEAD = 1000000 };

typedef enum Ahead { AHEAD_PRE, AHEAD_POST } Ahead;

typedef struct Prefetch {
	Module *m;
	Arena *a;
	int64_t forward, backward; /* how many units are gathered ahead */
	Ahead how;                 /* how backward gathers ahead */
	bool slip;                 /* reduces are waited for one unit later */
	int64_t ring;              /* slots, 0 = none */
	int64_t start[SEC_COUNT];  /* positions where the sections start */
} Prefetch;

/* ---- options ---- */

static bool parse_count(const char *text, int64_t least, int64_t *out)
{
	return str_to_size(text, false, out) && *out >= least && *out <= MAX_AHEAD;
}

static void parse_backward(Prefetch *p, const char *text, Diag *d)
{
	p->slip = strcmp(text, "none");
	p->backward = 0;
	if (!strcmp(text, "post"))
		p->how = AHEAD_POST;
	else if (!strcmp(text, "pre"))
		p->backward = 1;
	else if (p->slip && (strncmp(text, "pre:", 4) || !parse_count(text + 4, 1, &p->backward)))
		diag_error(d, "--backward-prefetch", "\"%s\" is no way to prefetch; expected none, pre, pre:N (N units "
			"ahead, 1 to %d) or post%s", text, MAX_AHEAD,
			near_choice(p->m->arena, "--backward-prefetch", text, "none|pre|post"));
}

static void check_ring(const Prefetch *p, Diag *d)
{
	int64_t most = MAX(p->forward, p->backward);
	if (p->ring && p->ring <= most)
		diag_error(d, "--limit-all-gathers", "%lld slot(s) cannot hold a unit and the %lld that %s gathers ahead "
			"of it; expected at least %lld, or 0 for no ring", (long long)p->ring, (long long)most,
			p->forward == most ? "--forward-prefetch" : "--backward-prefetch", (long long)most + 1);
}

static bool parse_options(Prefetch *p, const ShardingOptions *o, Diag *d)
{
	int errors = d->errors;
	p->forward = p->backward = 1;
	p->slip = true;
	if (o->forward_prefetch && !parse_count(o->forward_prefetch, 0, &p->forward))
		diag_error(d, "--forward-prefetch", "\"%s\" is no number of units; expected 0 to %d%s", o->forward_prefetch,
			MAX_AHEAD, near_choice(p->m->arena, "--forward-prefetch", o->forward_prefetch, ""));
	if (o->backward_prefetch)
		parse_backward(p, o->backward_prefetch, d);
	p->ring = MAX(p->forward, p->backward) + 1;
	if (o->limit_all_gathers && !parse_count(o->limit_all_gathers, 0, &p->ring))
		diag_error(d, "--limit-all-gathers", "\"%s\" is no number of slots; expected 0 (no ring) to %d%s",
			o->limit_all_gathers, MAX_AHEAD, near_choice(p->m->arena, "--limit-all-gathers", o->limit_all_gathers, ""));
	if (d->errors == errors)
		check_ring(p, d);
	return d->errors == errors;
}

/* ---- gathers ---- */

typedef struct Gather {
	Op *issue, *wait, *reshard; /* reshard NULL: none */
	int64_t slot;               /* of the ring, -1 = a region of its own */
	int64_t at;                 /* position behind which it is issued */
} Gather;

typedef struct Gathers { Gather *at; int n, cap; } Gathers;

/* Lists the gathers in the order of first use and numbers the ops of the program. */
static Gathers list_gathers(Prefetch *p, SectionKind first, SectionKind last)
{
	Gathers g = {0};
	int64_t n = 0;
	for (SectionKind s = first; s <= last; s++) {
		p->start[s] = n++;
		IR_FOR_OPS(p->m, s, op) {
			op->order = n++;
			Op *issue = op->kind == OP_WAIT && op->n_in ? op_in(op, 0)->op : NULL;
			if (!issue || issue->kind != OP_ALL_GATHER || issue->section != s)
				continue;
			Op *reshard = ir_user(op->out[0], OP_RESHARD);
			vec_push(p->a, &g, ((Gather){.issue = issue, .wait = op, .reshard = reshard, .slot = -1}));
		}
	}
	return g;
}

/* The k-th gather whose reshard lies in its section takes slot k mod ring, unless the slot is needed again before
 * that reshard. */
static void assign_slots(Prefetch *p, Gathers *g)
{
	VEC(Gather *) ring = {0};
	for (int i = 0; i < g->n && p->ring; i++)
		if (g->at[i].reshard && g->at[i].reshard->section == g->at[i].wait->section)
			vec_push(p->a, &ring, &g->at[i]);
	int64_t k = 0;
	for (int64_t i = 0; i < ring.n; i++) {
		const Gather *next = i + p->ring < ring.n ? ring.at[i + p->ring] : NULL;
		if (next && next->wait->order < ring.at[i]->reshard->order)
			continue;
		ring.at[i]->slot = k++ % p->ring;
		ring.at[i]->issue->attrs = attr_int(p->m, ring.at[i]->issue->attrs, "slot", ring.at[i]->slot);
	}
}

/* Where gather i of its section should be issued if its memory were free: behind the op returned; NULL = behind
 * position *at, which is the start of the section or where the gather stands. */
static Op *planned_place(const Prefetch *p, Gather *of_section, int i, int64_t *at)
{
	const Gather *g = &of_section[i];
	bool backward = g->wait->section == SEC_BACKWARD;
	int64_t ahead = backward ? p->backward : p->forward;
	Op *behind = NULL;
	*at = g->issue->order;
	if (ahead > i)
		*at = p->start[g->wait->section];
	else if (ahead)
		behind = of_section[i - ahead].wait;
	else if (backward && p->how == AHEAD_POST && i && of_section[i - 1].reshard)
		behind = of_section[i - 1].reshard;
	if (behind && (behind->section != g->wait->section || behind->order > g->wait->order))
		behind = NULL;
	*at = behind ? behind->order : *at;
	return behind;
}

static void put_behind(Module *m, Op *op, Op *behind, SectionKind s)
{
	Op *before = behind ? behind->next : m->first[s];
	if (before != op)
		ir_move_before(m, op, before);
}

/* Moves gather i to its final point of issue.  freed: the reshard of the gather that used its memory before, NULL =
 * none. */
static void place_gather(Prefetch *p, Gather *of_section, int i, Op *freed)
{
	Gather *g = &of_section[i];
	const Gather *previous = i ? &of_section[i - 1] : NULL;
	Op *behind = planned_place(p, of_section, i, &g->at);
	bool stays = !behind && g->at == g->issue->order;
	if (freed && freed->section == g->wait->section && freed->order > g->at) {
		behind = freed;
		g->at = freed->order;
		stays = false;
	}
	if (previous && previous->at >= g->at) {
		behind = previous->issue;
		g->at = previous->at;
		stays = false;
	}
	if (!stays)
		put_behind(p->m, g->issue, behind, g->wait->section);
}

static void place_gathers(Prefetch *p, SectionKind first, SectionKind last)
{
	Gathers g = list_gathers(p, first, last);
	Op **slot = NEW_N(p->a, Op *, MIN(p->ring, g.n) + 1), **own = NEW_N(p->a, Op *, p->m->n_units);
	assign_slots(p, &g);
	for (int i = 0, start = 0; i < g.n; i++) {
		Gather *now = &g.at[i];
		if (now->wait->section != g.at[start].wait->section)
			start = i;
		Op **region = now->slot >= 0 ? &slot[now->slot] : &own[now->issue->unit->index];
		place_gather(p, &g.at[start], i - start, *region);
		*region = now->reshard;
	}
}

/* Warns when more units are to be gathered ahead than there are, and when nothing uses the ring. */
static void check_ahead(Prefetch *p, const ShardingOptions *o, Diag *d)
{
	Gathers g = list_gathers(p, SEC_FORWARD, SEC_EVAL);
	int64_t n[SEC_COUNT] = {0}, in_ring = 0;
	for (int i = 0; i < g.n; i++) {
		n[g.at[i].wait->section]++;
		in_ring += g.at[i].reshard && g.at[i].reshard->section == g.at[i].wait->section;
	}
	int64_t forward = MAX(n[SEC_FORWARD], n[SEC_EVAL]), backward = n[SEC_BACKWARD];
	if (o->forward_prefetch && g.n && p->forward > MAX(forward, 1))
		diag_warn(d, "--forward-prefetch", "forward gathers %lld time%s: %lld acts as %lld", (long long)forward,
			forward == 1 ? "" : "s", (long long)p->forward, (long long)MAX(forward, 1));
	if (o->backward_prefetch && g.n && p->backward > MAX(backward, 1))
		diag_warn(d, "--backward-prefetch", "backward gathers %lld time%s: pre:%lld acts as pre:%lld",
			(long long)backward, backward == 1 ? "" : "s", (long long)p->backward, (long long)MAX(backward, 1));
	if (o->limit_all_gathers && g.n && !in_ring)
		diag_warn(d, "--limit-all-gathers", "no unit is freed in the section that gathers it, so none is in the ring: "
			"%s is not used", o->limit_all_gathers);
}

/* ---- reduces ---- */

/* The reduce of the value that op, a collect or a wait, makes; NULL = none. */
static Op *reduce_behind(const Op *op)
{
	const Use *u = op->n_out ? op->out[0]->uses : NULL;
	for (; u; u = u->next)
		if (op_info[u->op->kind].flags & COMM)
			return u->op;
	return NULL;
}

static Op *wait_behind(const Op *collective)
{
	const Use *u = collective->n_out ? collective->out[0]->uses : NULL;
	return u && u->op->kind == OP_WAIT ? u->op : NULL;
}

static void put_next(Module *m, Op *op, Op **at)
{
	if (!op)
		return;
	if ((*at)->next && (*at)->next != op)
		ir_move_before(m, op, (*at)->next);
	else if (!(*at)->next && *at != op)
		ir_move_to_end(m, op, (*at)->section);
	*at = op;
}

/* The reduce of a unit; under hybrid_shard an all_reduce of its shard across groups follows. */
typedef struct Reduce { Op *collect, *issue, *wait, *across, *across_wait; } Reduce;

static Reduce reduce_of(Op *collect)
{
	Reduce r = {.collect = collect, .issue = reduce_behind(collect)};
	r.wait = r.issue ? wait_behind(r.issue) : NULL;
	r.across = r.wait ? reduce_behind(r.wait) : NULL;
	r.across_wait = r.across ? wait_behind(r.across) : NULL;
	return r;
}

typedef struct Reduces { Reduce *at; int n, cap; } Reduces;

static Reduces list_reduces(Prefetch *p)
{
	Reduces r = {0};
	int64_t n = 0;
	IR_FOR_OPS(p->m, SEC_BACKWARD, op) {
		op->order = n++;
		if (op->kind == OP_COLLECT && reduce_behind(op))
			vec_push(p->a, &r, reduce_of(op));
	}
	return r;
}

/* With `post` a unit is reduced behind its reshard, so that the next unit's gather is issued first (F77 of
 * docs/compatibility.md). */
static void reduce_behind_reshards(Prefetch *p)
{
	Reduces r = list_reduces(p);
	Op **reshard = NEW_N(p->a, Op *, p->m->n_units);
	IR_FOR_OPS(p->m, SEC_BACKWARD, op)
		if (op->kind == OP_RESHARD && op_in(op, 0)->op->section == SEC_BACKWARD)
			reshard[op->unit->index] = op;
	for (int i = 0; i < r.n; i++) {
		Op *at = reshard[r.at[i].collect->unit->index];
		if (!at || at->order < r.at[i].collect->order)
			continue;
		Op *chain[] = {r.at[i].collect, r.at[i].issue, r.at[i].wait, r.at[i].across, r.at[i].across_wait};
		for (int k = 0; k < COUNT_OF(chain); k++)
			put_next(p->m, chain[k], &at);
	}
}

/* Moves each wait behind the issue of the next unit's reduce. */
static void slip_waits(Prefetch *p)
{
	Reduces r = list_reduces(p);
	static const Reduce none;
	const Reduce *older = &none, *last = &none;
	for (int i = 0; i < r.n; i++) {
		Op *at = r.at[i].issue;
		put_next(p->m, older->across_wait, &at);
		put_next(p->m, last->wait, &at);
		put_next(p->m, last->across, &at);
		older = last;
		last = &r.at[i];
	}
	Op *rest[] = {older->across_wait, last->wait, last->across, last->across_wait};
	for (int i = 0; i < COUNT_OF(rest); i++)
		if (rest[i])
			ir_move_to_end(p->m, rest[i], SEC_BACKWARD);
}

/* Warns of options that say when units are gathered, if no unit is. */
static void check_used(const Prefetch *p, const ShardingOptions *o, Diag *d)
{
	const Module *m = p->m;
	const char *backward = p->slip ? o->backward_prefetch : NULL;
	const struct { const char *name, *value; } option[] = {{"--forward-prefetch", o->forward_prefetch},
		{"--backward-prefetch", backward}, {"--limit-all-gathers", o->limit_all_gathers}};
	for (int i = 0; i < m->n_units; i++)
		if (!unit_is_resident(m->units[i]))
			return;
	for (int i = 0; i < COUNT_OF(option); i++)
		if (option[i].value)
			diag_warn(d, option[i].name, "every unit rests whole on every rank, none is gathered: %s is not used",
				option[i].value);
}

/* ---- buffers ---- */

static const Op *first_write(const Module *m)
{
	for (int s = SEC_FORWARD; s <= SEC_UPDATE; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == OP_WRITE && op->sym->kind == SYM_BUFFER && dtype_is_float(op->sym->type.dtype))
				return op;
	return NULL;
}

/* Broadcasts buffers before any op reads or writes one; for micro-batches that are reduced together in the first
 * one only (S3 of docs/compatibility.md). */
static void broadcast_buffers(Module *m, const Options *o, Diag *d)
{
	if (o->graph.bn_sync != BN_SYNC_BROADCAST)
		return;
	if (m->sync == SYNC_LAST && ir_goes_on(m))
		return;
	const Op *write = first_write(m);
	if (!write) {
		diag_warn(d, "--bn-sync", "training writes no float buffer, so they are equal on all ranks: it is not used");
		return;
	}
	Builder b = {.m = m, .section = SEC_FORWARD, .before = m->first[SEC_FORWARD],
		.loc = loc_with_role(m, write->loc, "prefetch")};
	ir_emit_op(&b, OP_BROADCAST_BUFFERS, 0, NULL, NULL, NULL);
}

/* Checks that gradients are written only to memory whose gaps were zeroed before.  Pass schedule ensures this, and
 * the verifier cannot check it before memory is placed. */
static bool check_begun(Module *m, Diag *d)
{
	Arena *a = arena_new();
	Buffers *b = buffers_find(m, false, a);
	bool *begun = NEW_N(a, bool, m->n_units), ok = true;
	IR_FOR_OPS(m, SEC_BACKWARD, op) {
		if (op->kind == OP_ZERO_GAPS || op->kind == OP_CARRIED_GRAD)
			begun[op->unit->index] = true;
		for (int i = 0; i < op->n_out; i++) {
			int buffer = b->of_value[op->out[i]->id];
			const Unit *u = buffer >= 0 ? b->at[buffer].place.unit : NULL;
			if (!u || begun[u->index])
				continue;
			diag_error(d, loc_where(m, op->loc), "pass prefetch finds that %%%s is written into the flat gradient "
				"of unit %s in front of its zero_gaps: pass schedule, which settles the order, has to run "
				"between shard and prefetch",
				op->out[i]->name, u->name);
			begun[u->index] = true;
			ok = false;
		}
	}
	arena_free(a);
	return ok;
}

bool pass_prefetch(Module *m, const Options *o, Diag *d)
{
	Prefetch p = {.m = m};
	if (!parse_options(&p, &o->sharding, d) || !check_begun(m, d))
		return false;
	check_used(&p, &o->sharding, d);
	p.a = arena_new();
	check_ahead(&p, &o->sharding, d);
	if (p.how == AHEAD_POST)
		reduce_behind_reshards(&p);
	place_gathers(&p, SEC_FORWARD, SEC_UPDATE);
	place_gathers(&p, SEC_EVAL, SEC_EVAL);
	if (p.slip)
		slip_waits(&p);
	arena_free(p.a);
	broadcast_buffers(m, o, d);
	schedule_grad_slots(m);
	schedule_events(m);
	return !o->sharding.schedule_in || schedule_apply(m, o->sharding.schedule_in, d);
}
