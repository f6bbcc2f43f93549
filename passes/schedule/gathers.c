/* passes/schedule/gathers.c: decides where gathers are issued, which are not needed, and which share memory.
 *
 *   issue     in forward the unit that is N ahead is gathered directly behind a unit's wait (F67 and F71 of
 *             docs/compatibility.md); in backward the same (pre:N), or the next unit is gathered behind a unit's
 *             reshard and before its reduce (post), or nothing is gathered ahead (none).  Gathers never cross the
 *             start of their section and stay in the order of first use.
 *   limit     a gather is issued behind the reshard that leaves less than `ring` units gathered.  Units that are
 *             still readable when that many later ones are read (the root; parts of a block that is recomputed)
 *             do not count, since no point of issue could wait for them.
 *   turn      a unit is not resharded at the end of forward if nothing else is gathered before backward gathers it
 *             again: no more units are gathered at any time than without that.
 *   slots     gathers share slots.  Those that count take the ring's slots in turn, the others any slot that is free
 *             meanwhile; or, if less memory is needed so and the user did not size the ring, each the lowest slot
 *             that is free, the largest first.
 *
 * Only the issues of gathers move, since the order of computing is fixed. */
#include "passes/schedule/gathers.h"

#include <string.h>

#include "passes/schedule/slots.h"

typedef struct Gather {
	Op *issue, *wait, *reshard; /* reshard NULL: none in this program */
	bool counts;                /* against the limit */
	int64_t at;                 /* position behind which it is issued */
	Op *behind;                 /* what stands there; NULL: the start of the section, or it stays where it is */
	bool kept;                  /* not needed: the copy that forward has gathered is kept */
} Gather;

typedef struct Gathers { Gather *at; int n, cap; } Gathers;

typedef struct Placer {
	Module *m;
	Arena *a;
	const GatherPolicy *p;
	int64_t start[SEC_COUNT];   /* positions where the sections start */
	Gathers g;                  /* in the order of first use, those of eval last */
} Placer;

static SectionKind section_of(const Gather *g)
{
	return g->wait->section;
}

/* Lists the gathers and numbers the ops of all programs. */
static void list_gathers(Placer *p)
{
	int64_t n = 0;
	p->g.n = 0;
	for (int s = 0; s < SEC_COUNT; s++) {
		p->start[s] = n++;
		IR_FOR_OPS(p->m, s, op) {
			op->order = n++;
			Op *issue = op->kind == OP_WAIT && op->n_in ? op_in(op, 0)->op : NULL;
			if (issue && issue->kind == OP_ALL_GATHER && (int)issue->section == s)
				vec_push(p->a, &p->g, ((Gather){.issue = issue, .wait = op,
					.reshard = ir_user(op->out[0], OP_RESHARD)}));
		}
	}
}

/* ---- points of issue ---- */

/* Whether `ring` more units are read before the reshard of gather i: if so, it does not count. */
static void find_counting(Placer *p)
{
	VEC(Gather *) freed = {0};
	for (int i = 0; i < p->g.n; i++)
		if (p->g.at[i].reshard)
			vec_push(p->a, &freed, &p->g.at[i]);
	for (int i = 0; i < freed.n && p->p->ring; i++) {
		const Gather *next = p->p->ring < freed.n - i ? freed.at[i + p->p->ring] : NULL;
		freed.at[i]->counts = !next || next->wait->order >= freed.at[i]->reshard->order;
	}
}

/* How many units ahead the gather's own unit wants it; -1: as the others. */
static int ahead_said(const Gather *g)
{
	return section_of(g) == SEC_BACKWARD ? g->issue->unit->backward_prefetch : g->issue->unit->forward_prefetch;
}

/* Where gather i of its section should be issued if any number of units could be gathered. */
static void plan_issue(const Placer *p, Gather *of_section, int i)
{
	Gather *g = &of_section[i];
	bool backward = section_of(g) == SEC_BACKWARD;
	int said = ahead_said(g);
	int64_t ahead = said >= 0 ? said : backward ? p->p->backward : p->p->forward;
	Op *behind = NULL;
	g->at = g->issue->order;
	if (ahead > i)
		g->at = p->start[section_of(g)];
	else if (ahead)
		behind = of_section[i - ahead].wait;
	else if (said < 0 && backward && p->p->post && i && of_section[i - 1].reshard)
		behind = of_section[i - 1].reshard;
	bool usable = behind && behind->section == section_of(g) && behind->order <= g->wait->order;
	g->behind = usable ? behind : NULL;
	g->at = usable ? behind->order : g->at;
}

/* Reshards of the counting gathers that were issued so far, in the order of time. */
typedef VEC(Op *) Live;

static void drop_freed(Live *live, int64_t at)
{
	int freed = 0;
	while (freed < live->n && live->at[freed]->order <= at)
		freed++;
	for (int i = freed; i < live->n; i++)
		live->at[i - freed] = live->at[i];
	live->n -= freed;
}

/* Delays the gather until fewer than `ring` units are gathered. */
static void limit(Placer *p, Live *live, Gather *g)
{
	if (!g->counts)
		return;
	drop_freed(live, g->at);
	if (live->n >= p->p->ring) {
		g->behind = live->at[live->n - p->p->ring];
		g->at = g->behind->order;
		drop_freed(live, g->at);
	}
	vec_push(p->a, live, g->reshard);
	for (int i = live->n - 1; i > 0 && live->at[i - 1]->order > live->at[i]->order; i--) {
		Op *earlier = live->at[i];
		live->at[i] = live->at[i - 1];
		live->at[i - 1] = earlier;
	}
}

static void plan_issues(Placer *p)
{
	Live live = {0};
	list_gathers(p);
	find_counting(p);
	for (int i = 0, first = 0; i < p->g.n; i++) {
		Gather *g = &p->g.at[i];
		if (section_of(g) != section_of(&p->g.at[first]))
			first = i;
		plan_issue(p, &p->g.at[first], i - first);
		if (i > first && g[-1].at > g->at) {
			g->at = g[-1].at;
			g->behind = g[-1].behind;
		}
		limit(p, &live, g);
	}
}

/* Warns of gathers that are issued fewer units ahead than their own units want. */
static void check_said(const Placer *p, Diag *d)
{
	for (int i = 0, first = 0; i < p->g.n; i++) {
		const Gather *g = &p->g.at[i];
		first = section_of(g) != section_of(&p->g.at[first]) ? i : first;
		int before = i - first, said = ahead_said(g), ahead = 0;
		bool waits = g->at < g->issue->order;
		for (int k = first; k < i; k++)
			ahead += p->g.at[k].wait->order > g->at;
		ahead += waits && (ahead < before || g->at == p->start[section_of(g)]);
		if (said > ahead && section_of(g) != SEC_EVAL)
			diag_warn(d, g->issue->unit->name, "is gathered %d unit%s ahead in %s, not %d: units are gathered in the "
				"order of their use, as far as the ring's slots and the section reach", ahead, ahead == 1 ? "" : "s",
				section_of(g) == SEC_BACKWARD ? "backward" : "forward", said);
	}
}

/* ---- from forward into backward ---- */

static const char why_kept[] = "kept: nothing else is gathered before backward reads it";

static bool is_root(const Module *m, const Unit *u)
{
	return u->index == m->n_units - 1 && !strcmp(u->name, "root");
}

/* Whether the gather has one wait, which takes what the gather of forward gives; a text may say anything. */
static bool is_like(const Gather *forward, const Gather *backward)
{
	bool same = forward->wait->n_out == backward->wait->n_out && backward->issue->n_out == backward->wait->n_in;
	for (int i = 0; same && i < backward->issue->n_out; i++)
		same = backward->issue->out[i]->n_uses == 1;
	return same;
}

/* Removes a gather of backward: its readers read the copy that forward has gathered. */
static void keep(Module *m, Gather *forward, Gather *backward)
{
	for (int f = 0; f < backward->wait->n_out; f++)
		ir_replace_uses(backward->wait->out[f], forward->wait->out[f]);
	ir_remove(m, forward->reshard);
	ir_remove(m, backward->wait);
	ir_remove(m, backward->issue);
	backward->kept = true;
	forward->issue->attrs = attr_str(m, forward->issue->attrs, "why", why_kept);
}

/* Keeps the units with which forward ends and backward begins.  Returns whether there are any. */
static bool keep_last(Placer *p, Diag *d)
{
	Gather **forward = NEW_N(p->a, Gather *, p->m->n_units);
	const Gather *previous = NULL; /* the last one that is not removed */
	bool any = false;
	for (int i = 0; i < p->g.n && section_of(&p->g.at[i]) <= SEC_BACKWARD; i++) {
		Gather *g = &p->g.at[i], **same = &forward[g->issue->unit->index];
		if (section_of(g) == SEC_FORWARD) {
			previous = *same = g;
			continue;
		}
		const Op *end = *same ? (*same)->reshard : NULL;
		bool asked = p->p->reshard_root && is_root(p->m, g->issue->unit);
		if (!end || end->section != SEC_FORWARD || previous->at >= end->order || asked || !is_like(*same, g))
			break;
		diag_info(d, g->issue->unit->name, "gathered once a step (%s)", why_kept);
		keep(p->m, *same, g);
		any = true;
	}
	return any;
}

/* ---- slots ---- */

static int64_t gathered_bytes(const Unit *u)
{
	int64_t sum = 0;
	for (int f = 0; f < u->n_flats; f++)
		sum += u->flat[f].numel * dtype_info[u->flat[f].param].bytes;
	return sum;
}

/* The gathers that are freed in their program, and the memory that each needs. */
typedef struct Lives { SlotLife *at; const Unit **unit; int n; } Lives;

typedef enum Which { ALL_LIVES, OF_RING_IN_STEP, OF_RING_IN_EVAL, BESIDE_RING } Which;

static bool is_which(const Gather *g, Which which)
{
	bool eval = section_of(g) == SEC_EVAL;
	switch (which) {
	case OF_RING_IN_STEP: return g->counts && !eval;
	case OF_RING_IN_EVAL: return g->counts && eval;
	case BESIDE_RING: return !g->counts;
	default: return true;
	}
}

static Lives lives_of(const Placer *p, Which which)
{
	Lives l = {NEW_N(p->a, SlotLife, p->g.n), NEW_N(p->a, const Unit *, p->g.n), 0};
	for (int i = 0; i < p->g.n; i++) {
		const Gather *g = &p->g.at[i];
		if (!g->reshard || !is_which(g, which))
			continue;
		l.unit[l.n] = g->issue->unit;
		l.at[l.n++] = (SlotLife){g->at, g->reshard->order, gathered_bytes(g->issue->unit), -1};
	}
	return l;
}

/* Takes the slots of one unit alone away: it gets a region of its own, which is as large.  Numbers the rest from
 * `first` on. */
static void share(const Placer *p, Lives *l, int n_slots, int first)
{
	const Unit **only = NEW_N(p->a, const Unit *, n_slots);
	bool *shared = NEW_N(p->a, bool, n_slots);
	int *number = NEW_N(p->a, int, n_slots);
	for (int i = 0; i < l->n; i++) {
		int k = l->at[i].slot;
		shared[k] = shared[k] || (only[k] && only[k] != l->unit[i]);
		only[k] = l->unit[i];
	}
	for (int k = 0; k < n_slots; k++)
		number[k] = shared[k] ? first++ : -1;
	for (int i = 0; i < l->n; i++)
		l->at[i].slot = number[l->at[i].slot];
}

/* The slots of the gathers in list order, -1 = none, and about the bytes that they need with regions of their own. */
typedef struct Assignment { int *slot; int64_t bytes; } Assignment;

static void take(const Placer *p, Assignment *to, const Lives *l, Which which)
{
	for (int i = 0, k = 0; i < p->g.n; i++)
		if (p->g.at[i].reshard && is_which(&p->g.at[i], which))
			to->slot[i] = l->at[k++].slot;
}

static Assignment new_assignment(const Placer *p)
{
	Assignment out = {NEW_N(p->a, int, p->g.n), 0};
	for (int i = 0; i < p->g.n; i++)
		out.slot[i] = -1;
	return out;
}

static int64_t largest_sum(const Placer *p, const Assignment *s, int n_slots)
{
	int64_t *most = NEW_N(p->a, int64_t, n_slots), sum = 0;
	for (int i = 0; i < p->g.n; i++)
		if (s->slot[i] >= 0)
			most[s->slot[i]] = MAX(most[s->slot[i]], gathered_bytes(p->g.at[i].issue->unit));
	for (int k = 0; k < n_slots; k++)
		sum += most[k];
	return sum;
}

static Assignment assign_in_turn(const Placer *p)
{
	Assignment out = new_assignment(p);
	int ring = (int)MIN(p->p->ring, p->g.n), used = 0;
	for (Which which = OF_RING_IN_STEP; which <= OF_RING_IN_EVAL; which++) {
		Lives l = lives_of(p, which);
		slots_by_time(l.at, l.n, ring, p->a);
		for (int i = 0; i < l.n; i++)
			used = MAX(used, l.at[i].slot + 1);
		take(p, &out, &l, which);
	}
	Lives rest = lives_of(p, BESIDE_RING);
	int n_slots = slots_by_size(rest.at, rest.n, p->a);
	out.bytes = largest_sum(p, &out, used) + slots_bytes(rest.at, rest.n, n_slots, p->a);
	share(p, &rest, n_slots, used);
	take(p, &out, &rest, BESIDE_RING);
	return out;
}

static Assignment assign_by_size(const Placer *p)
{
	Assignment out = new_assignment(p);
	Lives l = lives_of(p, ALL_LIVES);
	int n_slots = slots_by_size(l.at, l.n, p->a);
	out.bytes = slots_bytes(l.at, l.n, n_slots, p->a);
	share(p, &l, n_slots, 0);
	take(p, &out, &l, ALL_LIVES);
	return out;
}

static void assign_slots(const Placer *p)
{
	if (!p->p->ring)
		return;
	Assignment turn = assign_in_turn(p), size = assign_by_size(p);
	const Assignment *best = !p->p->ring_given && size.bytes < turn.bytes ? &size : &turn;
	for (int i = 0; i < p->g.n; i++) {
		Op *issue = p->g.at[i].issue;
		if (best->slot[i] >= 0)
			issue->attrs = attr_int(p->m, issue->attrs, "slot", best->slot[i]);
	}
}

/* ---- moves ---- */

static void move_gathers(const Placer *p)
{
	for (int i = 0; i < p->g.n; i++) {
		const Gather *g = &p->g.at[i], *previous = i ? &p->g.at[i - 1] : NULL;
		bool together = previous && section_of(previous) == section_of(g) && previous->at >= g->at;
		const Op *behind = together ? previous->issue : g->behind;
		Op *before = behind ? behind->next : p->m->first[section_of(g)];
		bool stays = !behind && g->at == g->issue->order;
		if (!stays && before != g->issue)
			ir_move_before(p->m, g->issue, before);
	}
}

GatherCounts gathers_place(Module *m, const GatherPolicy *policy, Diag *d)
{
	Placer p = {.m = m, .a = arena_new(), .p = policy};
	GatherCounts counts = {0};
	plan_issues(&p);
	if (keep_last(&p, d))
		plan_issues(&p);
	check_said(&p, d);
	assign_slots(&p);
	move_gathers(&p);
	for (int i = 0; i < p.g.n; i++) {
		const Gather *g = &p.g.at[i];
		counts.in[section_of(g)]++;
		counts.freed += g->reshard && g->reshard->section == section_of(g);
	}
	arena_free(p.a);
	return counts;
}
