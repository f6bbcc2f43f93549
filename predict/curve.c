/* predict/curve.c: `shardc plan --machine --ask`: what memory buys in time, and time in memory.
 *
 * Within each limit the fastest plan is looked for among strategies, each with the recomputation that --remat=auto
 * chooses for that limit.  Each point is a plan that was made and played.  A strategy that needs more memory and is no
 * faster than another, both without recomputing and with that of whole blocks, is not looked at. */
#include <inttypes.h>
#include <string.h>

#include "passes/remat/remat.h"
#include "predict/answers.h"

#define KIB ((int64_t)1 << 10)
#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)
enum { INNER = 3, TRIED = 4 };

/* A strategy, with nothing and with whole blocks recomputed. */
typedef struct Way {
	Options o;
	Sync sync;
	const char *strategy;    /* its option; NULL: that of the plan */
	Played none, block;
	bool has_block;
} Way;

static bool make_way(Asking *s, int change, Way *w)
{
	*w = (Way){.o = *s->o, .sync = s->sync};
	if (change >= 0) {
		change_options((ChangeId)change, &w->o, &w->sync);
		w->strategy = change_info[change].option;
		if (w->o.sharding.strategy == s->o->sharding.strategy || answers_unfit(s, w->strategy))
			return false;
	}
	Options none = w->o, block = w->o;
	if (remat_mode(none.memory.remat) != REMAT_NONE)
		change_options(CHANGE_REMAT_NONE, &none, &w->sync);
	change_options(CHANGE_REMAT_BLOCK, &block, &w->sync);
	const Played *without = answers_played(s, &none, w->sync), *blocks = answers_played(s, &block, w->sync);
	w->has_block = without && blocks && blocks->memory.total < without->memory.total;
	w->none = without ? *without : (Played){0};
	w->block = w->has_block ? *blocks : (Played){0};
	return without;
}

static bool no_worse(const Played *x, const Played *than)
{
	return x->memory.total <= than->memory.total && x->seconds <= than->seconds * (1 + 1e-4);
}

static int find_ways(Asking *s, Way w[TRIED])
{
	static const int changes[] = {-1, CHANGE_FULL_SHARD, CHANGE_SHARD_GRAD_OP, CHANGE_NO_SHARD};
	int n = 0;
	for (int i = 0; i < COUNT_OF(changes); i++) {
		bool is = (i == 0 || s->o->sharding.world > 1) && make_way(s, changes[i], &w[n]);
		for (int k = 0; is && k < n; k++)
			is = !no_worse(&w[k].none, &w[n].none) || (w[n].has_block
				&& !(w[k].has_block && no_worse(&w[k].block, &w[n].block)));
		n += is;
	}
	return n;
}

static const char *option_of(const Asking *s, const Way *w, const char *remat)
{
	const char *text = w->strategy ? w->strategy : "";
	if (remat)
		text = arena_printf(s->a, "%s%s%s", text, *text ? " " : "", remat);
	return *text ? text : "(this plan)";
}

/* The plan, if it is faster and its host has room for what it has there. */
static void take(const Asking *s, CurvePoint *best, const Played *p, const char *option)
{
	if ((best->seconds > 0 && best->seconds <= p->seconds) || machine_overpins(s->of->machine, p->memory.host.total))
		return;
	best->seconds = p->seconds;
	best->bytes = p->memory.total;
	best->option = option;
}

/* What --remat=auto makes of this strategy within the limit. */
static void take_auto(Asking *s, const Way *w, CurvePoint *best)
{
	Options o = w->o;
	bool large = best->limit >= GIB;
	int64_t unit = large ? MIB : KIB;
	o.memory.memory_limit = best->limit / unit * unit;
	o.memory.remat = "auto";
	const char *policy = o.memory.memory_limit ? s->of->again->recompute(&o, s->of->again->context, s->a) : NULL;
	if (!policy || *policy != '{')
		return;
	const char *option = arena_printf(s->a, "--remat=auto --memory-limit=%" PRId64 "%c", o.memory.memory_limit / unit,
		large ? 'M' : 'K');
	o.memory.remat = policy;
	const Played *p = answers_played(s, &o, w->sync);
	if (p && p->memory.total <= best->limit)
		take(s, best, p, option_of(s, w, option));
}

/* The fastest plan within the limit. */
static CurvePoint fastest(Asking *s, const Way *w, int n, int64_t limit)
{
	CurvePoint best = {.limit = limit};
	RematMode given = remat_mode(s->o->memory.remat);
	const Answer *now = &s->out->plan.at[0];
	if (now->bytes <= limit && !machine_overpins(s->of->machine, now->pinned))
		best = (CurvePoint){limit, now->bytes, now->seconds, now->option};
	for (int i = 0; i < n; i++)
		if (w[i].none.memory.total <= limit)
			take(s, &best, &w[i].none, option_of(s, &w[i], given == REMAT_NONE ? NULL : "--remat=none"));
	for (int i = 0; i < n; i++)
		if (w[i].has_block && w[i].block.memory.total <= limit)
			take(s, &best, &w[i].block, option_of(s, &w[i], given == REMAT_BLOCK ? NULL : "--remat=block"));
	for (int i = 0; i < n; i++) {
		bool may = w[i].none.memory.total > limit && w[i].has_block && w[i].block.memory.total <= limit;
		if (may && (best.seconds <= 0 || w[i].none.seconds < best.seconds))
			take_auto(s, &w[i], &best);
	}
	return best;
}

static void add_point(Curve *c, const CurvePoint *p, Arena *a)
{
	const CurvePoint *last = c->at.n ? &c->at.at[c->at.n - 1] : NULL;
	if (p->seconds > 0 && (!last || p->seconds < last->seconds * (1 - 1e-4)))
		vec_push(a, &c->at, *p);
}

/* The least and the most that any of the ways needs. */
static void ends(const Way *w, int n, int64_t *least, int64_t *most)
{
	*least = INT64_MAX;
	*most = 0;
	for (int i = 0; i < n; i++) {
		*least = MIN(*least, w[i].has_block ? w[i].block.memory.total : w[i].none.memory.total);
		*most = MAX(*most, w[i].none.memory.total);
	}
}

void curve_find(Asking *s)
{
	Curve *c = &s->out->curve;
	Way *w = NEW_N(s->a, Way, TRIED);
	const Answer *now = &s->out->plan.at[0];
	int n = find_ways(s, w);
	int64_t least, most;
	if (!n) {
		c->why = "no plan without recomputing, or with that of blocks, has a time";
		return;
	}
	ends(w, n, &least, &most);
	most = MIN(most, s->limit);
	c->step = MIN(GIB, now->bytes / 8);
	for (int i = 0; i <= INNER + 1; i++) {
		CurvePoint p = fastest(s, w, n, i <= INNER ? least + (most - least) / (INNER + 1) * i : most);
		add_point(c, &p, s->a);
	}
	if (!c->at.n)
		c->why = arena_printf(s->a, "no plan is within %s", plan_human(s->a, s->limit));
	c->less = fastest(s, w, n, now->bytes - c->step);
	c->more = fastest(s, w, n, now->bytes + c->step);
}
