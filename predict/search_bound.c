/* predict/search_bound.c: the least time of a step that any plan takes of those that the search may choose.
 *
 * A plan without recomputation stands for all that recompute, and one that has all values on the device for all that
 * have some on the host, as far as the user left that open.  Both keep the order of all other ops.  At each op what is
 * live in that plan and above the limit must be gone in the others: some bytes are computed again behind that op, since
 * who computes them in front of it has them there; of the others the copies out have ended in front of it, since memory
 * is free no sooner, and the copies in begin behind it.  So a step takes as long as each of these at least:
 *
 *   what is computed, values that are computed again included (bound.c);
 *   what is computed in front of that op, and the copies in;
 *   the copies out, and what stands behind that op: computing, slower beside the reduces of gradients that are written
 *     there, and what of these is exposed in any order;
 *   both copies.
 *
 * That is so at the op at which most is live, and the third also at the op of forward whose bytes leave the copies out
 * least time: what blocks leave is there when forward ends, and some time passes until backward begins to free it.  The
 * more is computed again the less is copied, and the bound is where the longest of all is shortest. */
#include "predict/searching.h"

#include <math.h>
#include <string.h>

double search_price(const Search *s, const Trial *x, double bytes)
{
	return (double)search_micro_batches(s, x) * price_seconds(s->price[x->pick[KNOB_BATCH]], bytes);
}

/* What the plans for which a trial stands have to free. */
typedef struct Freeing {
	double least, most;          /* bytes that are computed again */
	double copies;               /* seconds of all copies, if nothing is computed again */
	double front;                /* seconds of computing in front of the fullest op */
	bool sides;                  /* copies stand on both sides of that op */
} Freeing;

static double least_with(const Search *s, const Trial *x, const Freeing *f, double again)
{
	const Bound *b = &x->of.bound;
	const BoundAt *const at[] = {&b->fullest, &b->early};
	double bus = s->m->of[MACHINE_HOST], moved = again * (double)search_micro_batches(s, x);
	double more = again > 0 ? search_price(s, x, again) : 0, computing = bound_recomputing(b, more);
	double way = f->copies > 0 ? MAX(f->copies / 2 - moved / bus, 0) : 0;
	double least = MAX(MAX(computing, 2 * way), f->front + way);
	for (int i = 0; i < COUNT_OF(at) && f->sides; i++)
		least = MAX(least, MAX(way - at[i]->fewer / bus, 0) + bound_behind(at[i], more));
	return least;
}

/* All that is compared grows or falls ever more slowly with the bytes that are computed again, so the longest is
 * shortest at one place, which is found by thirds. */
static double least_of(const Search *s, const Trial *x, const Freeing *f)
{
	enum { THIRDS = 60 };
	double low = f->least, high = f->most;
	for (int i = 0; i < THIRDS && low < high; i++) {
		double left = low + (high - low) / 3, right = high - (high - low) / 3;
		if (least_with(s, x, f, left) <= least_with(s, x, f, right))
			high = right;
		else
			low = left;
	}
	return least_with(s, x, f, low);
}

/* What has to be freed where values may lie on the host: what may not be pinned there is computed again. */
static Freeing freeing_to_host(const Search *s, const Trial *x, double lacks)
{
	double way = lacks * (double)search_micro_batches(s, x) / s->m->of[MACHINE_HOST];
	double pinned = s->m->of[MACHINE_HOST_MEMORY] - (double)x->of.memory.host.total;
	return (Freeing){MAX(lacks - pinned, 0), lacks, 2 * way, x->of.before, true};
}

/* And where they may not, or those lie there that the user says. */
static Freeing freeing_here(const Trial *x, double lacks)
{
	double there = x->of.bound.copies > 0 ? (double)x->of.memory.host.activations : 0;
	return (Freeing){lacks, lacks + there, x->of.bound.copies, 0, false};
}

double search_bound(Search *s, const Trial *x, const Options *o)
{
	const Bound *b = &x->of.bound;
	bool again = s->knob[KNOB_REMAT].open && !x->pick[KNOB_REMAT];
	bool host = s->knob[KNOB_ACTS].open && search_matters(s, KNOB_ACTS, o);
	int64_t overpins = machine_overpins(s->m, x->of.memory.host.total), lacks = MAX(x->of.rigid - s->limit, 0);
	if (x->pick[KNOB_ACTS]) {
		Trial plain = *x;
		plain.pick[KNOB_ACTS] = 0;
		const Trial *of = search_try(s, &plain);
		return of ? of->bound : bound_recomputing(b, 0); /* too many trials */
	}
	if (host && overpins)
		return INFINITY;
	if (!host)
		lacks = MAX(lacks, overpins);
	if (!lacks && b->copies <= b->seconds)
		/* Memory that is freed may keep what backward gathers again. */
		return again || host ? bound_recomputing(b, 0) : b->seconds;
	Freeing f = host ? freeing_to_host(s, x, (double)lacks) : freeing_here(x, (double)lacks);
	Price **price = &s->price[x->pick[KNOB_BATCH]];
	if (!again)
		return f.least > 0 ? INFINITY : MAX(least_with(s, x, &f, 0), host ? 0 : b->seconds);
	if (!*price)
		*price = price_find(&batch_of(s, x)->start, o, &x->of.of, s->a);
	f.most = MIN(f.most, price_bytes(*price));
	return f.least > f.most ? INFINITY : least_of(s, x, &f);
}

/* What is saved in ops that are computed once, since others are computed again and passes behind remat find other ops:
 * the most in plans that were tried with and without. */
static double saved_by_remat(const Search *s)
{
	double most = 0;
	for (int i = 0; i < s->n; i++)
		for (int k = 0; k < s->n; k++) {
			const Trial *x = s->trial[i], *y = s->trial[k];
			Trial plain = *y;
			plain.pick[KNOB_REMAT] = 0;
			if (!x->refused && !y->refused && y->pick[KNOB_REMAT] && same_text(x->keep, y->keep)
					&& !memcmp(x->pick, plain.pick, sizeof(x->pick)))
				most = MAX(most, x->of.computing - y->of.computing);
		}
	return most;
}

/* The least of the bounds of all strategies and, where the user chose a recomputation, of that; those without any hold
 * for all.  Where something has to be computed again, the ops that read it may be faster than in these plans, by
 * Played.saved at most.  Where nothing is within the limit, it is the least of plans that are not. */
double search_least(const Search *s)
{
	double least = INFINITY, any = INFINITY, tried = saved_by_remat(s);
	for (int i = 0; i < s->n; i++) {
		const Trial *x = s->trial[i];
		if (x->refused || x->pick[KNOB_REMAT])
			continue;
		bool again = s->knob[KNOB_REMAT].open && x->of.memory.total > s->limit;
		double saved = MAX(x->of.rigid > s->limit ? tried : 0, again ? x->of.saved : 0);
		any = MIN(any, bound_recomputing(&x->of.bound, 0));
		least = MIN(least, x->bound - saved);
	}
	return isinf(least) ? any : least;
}
