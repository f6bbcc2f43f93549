/* predict/search_offload.c: what --wrap=auto puts into memory of the host. */
#include "predict/searching.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN 0.97     /* of the time of forward, that copies out may take and cost next to nothing */
#define MOSTLY_HIDDEN 0.85 /* likewise, where blocks leave different numbers of bytes */
enum { ROUNDS = 2, SMALLER_UNITS = 2 /* the values of --wrap behind "block" in search.def: parts of a block */ };

/* The trial with what K blocks leave on the host; NULL: no room for another value of the option. */
static const Trial *offload_blocks(Search *s, const Trial *from, int blocks)
{
	Knob *knob = &s->knob[KNOB_ACTS];
	const char *text = arena_printf(s->a, "block:%d", blocks);
	int i = 0;
	while (i < knob->n && strcmp(knob->value[i], text))
		i++;
	if (i == VALUES_MAX)
		return NULL;
	knob->value[i] = text;
	knob->n = MAX(knob->n, i + 1);
	return search_with(s, from, KNOB_ACTS, i);
}

/* The number of blocks whose values may lie on the host: all but the last. */
static int offloadable_blocks(const Search *s, const Trial *x)
{
	Arena *a = arena_new();
	int n = blocks_find(batch_of(s, x)->start.at.m, a)->n - 1;
	arena_free(a);
	return n;
}

/* How many blocks have values on the host; all: where all but the last do. */
static int blocks_there(const Search *s, const Trial *x, int all)
{
	const char *text = s->knob[KNOB_ACTS].value[x->pick[KNOB_ACTS]], *number = strchr(text, ':');
	return number ? atoi(number + 1) : all;
}

/* The trial with as few blocks on the host as fit, of `all` that the trial from has there; NULL: more are needed.  Each
 * block frees about as much, so the first guess is nearly right. */
static const Trial *offload_fewest(Search *s, const Trial *from, int all)
{
	const Trial *found = NULL, *none = search_with(s, from, KNOB_ACTS, 0);
	if (!none || none->refused)
		return NULL;
	int64_t above = none->of.memory.total, below = from->of.memory.total;
	for (int low = 0, high = all; high - low > 1;) {
		double part = above > below ? (double)(above - s->limit) / (double)(above - below) : 0.5;
		int next = MAX(MIN(low + (int)ceil(MIN(MAX(part, 0), 1) * (high - low)), high - 1), low + 1);
		const Trial *x = offload_blocks(s, from, next);
		bool fits = x && !x->refused && !x->over;
		found = fits ? x : found;
		*(fits ? &high : &low) = next;
		if (x && !x->refused)
			*(fits ? &below : &above) = x->of.memory.total;
	}
	return found;
}

/* Of the plans with the values of all blocks on the host the one with the least bound that could beat the best. */
static const Trial *best_offloading(const Search *s, const TrialVec *from)
{
	const Trial *x = NULL;
	for (int i = 0; i < from->n; i++) {
		const Trial *t = from->at[i];
		if (t->pick[KNOB_ACTS] && t->of.memory.host.activations && !t->pick[KNOB_REMAT] && (!x || t->bound < x->bound))
			x = t;
	}
	bool may = x && (!s->best || s->best->over || x->bound < s->best->of.seconds * (1 - NEGLIGIBLE));
	return may ? x : NULL;
}

/* The bytes whose copies out this part of forward hides, and that may be pinned beside what else is. */
static int64_t hidden_bytes(const Search *s, const Trial *x, double part)
{
	const struct LayoutHost *host = &x->of.memory.host;
	double hidden = part * x->of.forward / (double)search_micro_batches(s, x) * s->m->of[MACHINE_HOST];
	double pins = s->m->of[MACHINE_HOST_MEMORY] - (double)(host->total - host->activations);
	return (int64_t)MIN(MIN(hidden, pins), (double)host->activations);
}

/* The trial with as much recomputation as leaves no more than this part of forward hides, and than the device has room
 * for. */
static const Trial *recompute_copies(Search *s, const Trial *x, double part)
{
	const struct LayoutHost *host = &x->of.memory.host;
	int64_t room = MAX(s->limit - x->of.memory.total, 0);
	return search_recompute(s, x, MAX(host->total - host->activations + hidden_bytes(s, x, part) + room, 1));
}

/* The best with values of some blocks on the host and others computed again, with the units of x, which has those of
 * all blocks there. */
static const Trial *offload_with(Search *s, const Trial *x)
{
	int all = offloadable_blocks(s, x);
	const Trial *fewest = x->over ? NULL : offload_fewest(s, x, all);
	if (fewest && fewest->of.memory.host.activations <= hidden_bytes(s, x, HIDDEN))
		return fewest;
	const Trial *at = recompute_copies(s, x, HIDDEN), *other = recompute_copies(s, x, MOSTLY_HIDDEN);
	at = search_better(other, at) ? other : at;
	other = at && !at->refused ? offload_fewest(s, at, all) : NULL;
	at = search_better(other, at) ? other : at;
	const Trial *least = search_better(at, fewest) ? at : fewest;
	for (int round = 0; round < ROUNDS && at && !at->refused && at->of.memory.host.activations; round++) {
		int blocks = blocks_there(s, at, all);
		int64_t of_block = at->of.memory.host.activations / blocks;
		int next = (int)MIN(hidden_bytes(s, x, HIDDEN) / MAX(of_block, 1), all);
		const Trial *some = next < 1 || (round && next == blocks) ? NULL : next < all ? offload_blocks(s, x, next) : x;
		at = some && !some->refused ? search_recompute(s, some, 0) : NULL;
		least = search_better(at, least) ? at : least;
	}
	return least;
}

const Trial *search_offload(Search *s, const TrialVec *from)
{
	const Trial *x = best_offloading(s, from), *found = NULL;
	for (int part = 0; x && !x->refused && part <= SMALLER_UNITS; part++) {
		const Trial *at = offload_with(s, x);
		found = search_better(at, found) ? at : found;
		if (found && !found->over)
			break;
		x = search_picks(s, KNOB_WRAP) > SMALLER_UNITS ? search_with(s, x, KNOB_WRAP, part + 1) : NULL;
	}
	return found;
}

/* The fastest of the plans above the limit that are not among the `n` in done[], if it is faster than the best. */
static const Trial *fastest_over(const Search *s, const Trial *const *done, int n)
{
	const Trial *x = NULL;
	for (int i = 0; i < s->n; i++) {
		const Trial *t = s->trial[i];
		bool old = t->refused || !t->over || t->pick[KNOB_ACTS] || t->pick[KNOB_OFFLOAD];
		for (int k = 0; k < n; k++)
			old = old || done[k] == t;
		double most = x ? x->of.seconds : s->best->of.seconds * (1 - NEGLIGIBLE);
		if (!old && t->of.seconds < most)
			x = t;
	}
	return x;
}

void search_offload_faster(Search *s)
{
	const Trial *done[OVER_MAX], *x = NULL;
	for (int n = 0; n < OVER_MAX && !s->best->over && (x = fastest_over(s, done, n)); done[n++] = x) {
		for (int i = 1; i < search_picks(s, KNOB_OFFLOAD); i++)
			search_takes(s, search_with(s, x, KNOB_OFFLOAD, i));
		const Trial *all = search_picks(s, KNOB_ACTS) > 1 ? search_with(s, x, KNOB_ACTS, 1) : NULL;
		search_takes(s, all);
		if (all && !all->refused && !all->over)
			search_takes(s, offload_fewest(s, all, offloadable_blocks(s, all)));
	}
	if (!s->best->pick[KNOB_ACTS] || s->best->over)
		return;
	int all = offloadable_blocks(s, s->best);
	if (blocks_there(s, s->best, all) == all)
		search_takes(s, offload_fewest(s, s->best, all));
}
