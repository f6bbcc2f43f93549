/* passes/schedule/prefetch.c: decides when collectives are issued and waited for.
 *
 * Requires the final order of computing.  Ensures PLAN: every collective has its number, stream, slot, point of
 * issue, events and wait.
 *   gathers   are issued ahead of their waits; units share memory (gathers.c).
 *   reduces   are issued where they stand.  Each is waited for behind the issue of the reduce that is
 *             --limit-reduces units later, the last ones at the end of backward.
 *   updates   with --update=backward stand in backward (updates.c).
 *   scales    of weights that are gathered in 8 bits are set at the start of a program.
 *   buffers   with --bn-sync=broadcast a step, or under --sync=every each micro-batch, begins by broadcasting
 *             rank 0's.
 * Refuses a ring that cannot hold a unit and those gathered ahead of it, and an order that schedule did not make.
 *
 * Only the issues of gathers and the waits of reduces move, since the order of computing is fixed.  events.c
 * derives the rest (events, numbers, gradient slots) from their positions. */
#include "base/near.h"
#include "passes/schedule/gathers.h"

#include <stdlib.h>
#include <string.h>

typedef struct Prefetch {
	Module *m;
	Arena *a;
	GatherPolicy gather;
	int64_t late;              /* units later than it is issued that a reduce is waited for */
} Prefetch;

/* ---- options ---- */

static bool parse_count(const char *text, int64_t least, int64_t *out)
{
	return str_to_size(text, false, out) && *out >= least && *out <= PREFETCH_MAX;
}

bool prefetch_backward(const char *text, const char *where, BackwardPrefetch *out, Arena *a, Diag *d)
{
	*out = (BackwardPrefetch){.none = !strcmp(text, "none"), .post = !strcmp(text, "post")};
	if (!strcmp(text, "pre"))
		out->ahead = 1;
	else if (!out->none && !out->post && (strncmp(text, "pre:", 4) || !parse_count(text + 4, 1, &out->ahead))) {
		diag_error(d, where, "\"%s\" is no way to prefetch; expected none, pre, pre:N (N units ahead, 1 to %d) or "
			"post%s", text, PREFETCH_MAX, near_choice(a, "--backward-prefetch", text, "none|pre|post"));
		return false;
	}
	return true;
}

static void parse_backward(Prefetch *p, const char *text, Diag *d)
{
	BackwardPrefetch way;
	if (!prefetch_backward(text, "--backward-prefetch", &way, p->m->arena, d))
		return;
	p->late = !way.none;
	p->gather.post = way.post;
	p->gather.backward = way.ahead;
}

/* The most units that are gathered ahead of one, and who says so. */
static int64_t most_ahead(const Prefetch *p, const char **who)
{
	const char *none;
	who = who ? who : &none;
	*who = p->gather.forward >= p->gather.backward ? "--forward-prefetch" : "--backward-prefetch";
	int64_t most = MAX(p->gather.forward, p->gather.backward);
	for (int i = 0; i < p->m->n_units; i++) {
		const Unit *u = p->m->units[i];
		int64_t ahead = MAX(u->forward_prefetch, u->backward_prefetch);
		if (ahead <= most || unit_is_resident(u))
			continue;
		*who = arena_printf(p->m->arena, "the %s of unit %s", u->forward_prefetch == ahead ? "forward_prefetch"
			: "backward_prefetch", u->name);
		most = ahead;
	}
	return most;
}

static void check_ring(const Prefetch *p, Diag *d)
{
	const char *who;
	int64_t most = most_ahead(p, &who);
	if (p->gather.ring && p->gather.ring <= most)
		diag_error(d, "--limit-all-gathers", "%lld slot(s) cannot hold a unit and the %lld that %s gathers ahead "
			"of it; expected at least %lld, or 0 for no ring", (long long)p->gather.ring, (long long)most, who,
			(long long)most + 1);
}

static bool parse_options(Prefetch *p, const ShardingOptions *o, Diag *d)
{
	int errors = d->errors;
	p->gather.forward = p->gather.backward = 1;
	p->late = 1;
	if (o->forward_prefetch && !parse_count(o->forward_prefetch, 0, &p->gather.forward))
		diag_error(d, "--forward-prefetch", "\"%s\" is no number of units; expected 0 to %d%s", o->forward_prefetch,
			PREFETCH_MAX, near_choice(p->m->arena, "--forward-prefetch", o->forward_prefetch, ""));
	if (o->backward_prefetch)
		parse_backward(p, o->backward_prefetch, d);
	if (o->limit_reduces && !parse_count(o->limit_reduces, 0, &p->late))
		diag_error(d, "--limit-reduces", "\"%s\" is no number of reduces; expected 0 (each is waited for at once) to "
			"%d%s", o->limit_reduces, PREFETCH_MAX, near_choice(p->m->arena, "--limit-reduces", o->limit_reduces, ""));
	p->gather.ring = most_ahead(p, NULL) + 1;
	p->gather.ring_given = o->limit_all_gathers;
	p->gather.reshard_root = o->reshard_root;
	if (o->limit_all_gathers && !parse_count(o->limit_all_gathers, 0, &p->gather.ring))
		diag_error(d, "--limit-all-gathers", "\"%s\" is no number of slots; expected 0 (no ring) to %d%s",
			o->limit_all_gathers, PREFETCH_MAX,
			near_choice(p->m->arena, "--limit-all-gathers", o->limit_all_gathers, ""));
	if (d->errors == errors)
		check_ring(p, d);
	return d->errors == errors;
}

/* ---- gathers ---- */

/* Warns when more units are to be gathered ahead than there are, and when nothing uses the ring. */
static void check_ahead(const Prefetch *p, const GatherCounts *n, const ShardingOptions *o, Diag *d)
{
	int64_t forward = MAX(n->in[SEC_FORWARD], n->in[SEC_EVAL]), backward = n->in[SEC_BACKWARD];
	bool some = forward || backward;
	if (o->forward_prefetch && some && p->gather.forward > MAX(forward, 1))
		diag_warn(d, "--forward-prefetch", "forward gathers %lld time%s: %lld acts as %lld", (long long)forward,
			forward == 1 ? "" : "s", (long long)p->gather.forward, (long long)MAX(forward, 1));
	if (o->backward_prefetch && some && p->gather.backward > MAX(backward, 1))
		diag_warn(d, "--backward-prefetch", "backward gathers %lld time%s: pre:%lld acts as pre:%lld",
			(long long)backward, backward == 1 ? "" : "s", (long long)p->gather.backward, (long long)MAX(backward, 1));
	if (o->limit_all_gathers && some && !n->freed)
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
	ir_move_behind(m, op, *at);
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
	schedule_gaps(p->m, p->a);
}

static const Reduce *reduce_at(const Reduces *r, int64_t i)
{
	static const Reduce none;
	return i >= 0 && i < r->n ? &r->at[i] : &none;
}

/* Moves each wait behind the issue of a later unit's reduce, and what follows across groups as far behind that. */
static void slip_waits(Prefetch *p, const ShardingOptions *o, Diag *d)
{
	Reduces r = list_reduces(p);
	if (o->limit_reduces && p->late > r.n)
		diag_warn(d, "--limit-reduces", "backward reduces %d time%s: %lld acts as %d", r.n, r.n == 1 ? "" : "s",
			(long long)p->late, r.n);
	p->late = MIN(p->late, r.n);
	for (int64_t i = 0; p->late && i < r.n + 2 * p->late; i++) {
		const Reduce *last = reduce_at(&r, i - p->late);
		Op *moved[] = {reduce_at(&r, i - 2 * p->late)->across_wait, last->wait, last->across};
		Op *at = reduce_at(&r, i)->issue;
		for (int k = 0; k < COUNT_OF(moved); k++)
			if (at)
				put_next(p->m, moved[k], &at);
			else if (moved[k])
				ir_move_to_end(p->m, moved[k], SEC_BACKWARD);
	}
}

/* Warns of options that say when units are gathered, if no unit is. */
static void check_used(const Prefetch *p, const ShardingOptions *o, Diag *d)
{
	const Module *m = p->m;
	const char *backward = p->late ? o->backward_prefetch : NULL;
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

/* ---- scales ---- */

/* The first gather of the sections that divides by scales; NULL: there is none. */
static const Op *scaled_gather(const Module *m, SectionKind from, SectionKind to)
{
	for (int s = (int)from; s <= (int)to; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == OP_ALL_GATHER && unit_is_scaled(op->unit))
				return op;
	return NULL;
}

/* Each program sets the scales by which its gathers divide, in front of the first. */
static void set_scales(Module *m)
{
	static const SectionKind first[] = {SEC_FORWARD, SEC_EVAL}, last[] = {SEC_UPDATE, SEC_EVAL};
	for (int k = 0; k < COUNT_OF(first); k++) {
		const Op *gather = scaled_gather(m, first[k], last[k]);
		Builder b = {.m = m, .section = first[k], .before = m->first[first[k]]};
		if (!gather)
			continue;
		b.loc = loc_with_role(m, gather->loc, "prefetch");
		ir_emit_op(&b, OP_F8_SCALES, 0, NULL, NULL, NULL);
	}
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
	if (p.gather.post)
		reduce_behind_reshards(&p);
	GatherCounts counts = gathers_place(m, &p.gather, d);
	check_ahead(&p, &counts, &o->sharding, d);
	slip_waits(&p, &o->sharding, d);
	arena_free(p.a);
	broadcast_buffers(m, o, d);
	set_scales(m);
	if (o->graph.update == UPDATE_IN_BACKWARD) {
		if (!updates_can_move(m, d))
			return false;
		schedule_updates(m);
	}
	schedule_grad_slots(m);
	schedule_events(m);
	return !o->sharding.schedule_in || schedule_apply(m, o->sharding.schedule_in, d);
}
