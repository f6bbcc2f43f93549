/* predict/alternatives.c: `shardc plan --machine --ask`: what other options would cost in time and memory.
 *
 * Each row is planned and predicted again with its option alone, so its numbers are those of a plan that was made with
 * it; they do not add up.  An option that is refused in this place, or that changes nothing, has no row. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "passes/changes.h"
#include "predict/private.h"

#define MIB ((int64_t)1 << 20)

typedef struct Alternative {
	const char *option;
	int64_t bytes;
	double seconds, samples; /* of a step; a second, of all ranks */
} Alternative;

typedef struct Asking {
	const Restart *start;
	const Machine *m;
	Arena *a;
	Alternative at[CHANGES + 5]; /* this plan, each change, two of --remat=auto, twice and half the ranks */
	int n;
} Asking;

/* Adds a row for a plan with these options, if they are not refused and make a difference. */
static void add(Asking *all, const char *option, const Options *o, Sync sync)
{
	Played p;
	if (!predict_played(all->start, o, sync, all->m, 0, &p))
		return;
	Alternative x = {option, p.memory.total, p.seconds, p.samples};
	const Alternative *now = &all->at[0];
	if (!all->n || x.bytes != now->bytes || x.seconds != now->seconds)
		all->at[all->n++] = x;
}

/* Other numbers of ranks, as far as the machine has them; owners are fixed for one number. */
static void add_world(Asking *all, const Options *o, Sync sync, int64_t world)
{
	Options changed = *o;
	int64_t of_host = (int64_t)all->m->of[MACHINE_RANKS];
	changed.sharding.world = world;
	if (all->m->cuda)
		changed.sharding.hosts = ceil_div(world, of_host);
	bool fits = !all->m->cuda || world <= machine_world(all->m);
	if (fits && !strategy_info[o->sharding.strategy].owned && world % MAX(changed.sharding.hosts, 1) == 0
		&& world % MAX(o->sharding.shard_size, 1) == 0)
		add(all, arena_printf(all->a, "--world=%" PRId64, world), &changed, sync);
}

/* What recomputing less than blocks costs and frees: up to a third, and two thirds, of what --remat=block frees. */
static void add_recomputing(Asking *all, const PredictOf *of, const Options *o, Sync sync)
{
	const Alternative *block = NULL;
	for (int i = 1; i < all->n; i++)
		block = strcmp(all->at[i].option, change_info[CHANGE_REMAT_BLOCK].option) ? block : &all->at[i];
	if (!of->again || !block)
		return;
	int64_t most = all->at[0].bytes, least = block->bytes;
	for (int part = 1; part <= 2 && least < most; part++) {
		Options changed = *o;
		changed.memory.memory_limit = (most - (most - least) / 3 * part) / MIB * MIB;
		changed.memory.remat = "auto";
		const char *policy = of->again->recompute(&changed, of->again->context, all->a);
		const char *option = arena_printf(all->a, "--remat=auto --memory-limit=%" PRId64 "M",
			changed.memory.memory_limit / MIB);
		changed.memory.remat = policy;
		if (policy && *policy == '{')
			add(all, option, &changed, sync);
	}
}

static int faster(const void *x, const void *y)
{
	const Alternative *a = x, *b = y;
	return a->samples != b->samples ? (a->samples < b->samples ? 1 : -1) : strcmp(a->option, b->option);
}

/* ---- output ---- */

static void text_row(FILE *f, const Alternative *x, const Alternative *now, const Machine *m, Arena *a)
{
	bool fits = (double)x->bytes <= m->of[MACHINE_MEMORY];
	fprintf(f, "  %-46s %12.3f %12.2f %+8.1f%% %12s%s\n", x->option, x->seconds * 1e3, x->samples,
		100 * (x->samples / now->samples - 1), plan_human(a, x->bytes), fits ? "" : ", more than a rank has");
}

static void text_rows(FILE *f, const Alternative *at, int n, const Alternative *now, const Machine *m)
{
	Arena *a = arena_new();
	fprintf(f, "\nother plans, each predicted with its option alone, the fastest first\n  %-46s %12s %12s %9s %12s\n",
		"option", "step ms", "samples/s", "rate", "total memory");
	for (int i = 0; i < n; i++)
		text_row(f, &at[i], now, m, a);
	arena_free(a);
}

static void json_rows(FILE *f, const Alternative *at, int n, const Machine *m)
{
	fputs("  \"alternatives\": [", f);
	for (int i = 0; i < n; i++)
		fprintf(f, "%s\n    {\"option\": \"%s\", \"step_ms\": %.6g, \"samples_per_s\": %.6g, \"total\": %" PRId64
			", \"fits\": %s}", i ? "," : "", at[i].option, at[i].seconds * 1e3, at[i].samples, at[i].bytes,
			(double)at[i].bytes <= m->of[MACHINE_MEMORY] ? "true" : "false");
	fputs(n ? "\n  ],\n" : "],\n", f);
}

void alternatives_show(FILE *f, const PredictOf *of, const Variants *v, const Options *o)
{
	const Machine *m = of->machine;
	Asking all = {.start = of->start, .m = m, .a = arena_new()};
	Sync sync = v->of[VARIANT_ONLY]->sync;
	int64_t world = MAX(o->sharding.world, 1);
	add(&all, "(this plan)", o, sync);
	for (int k = 0; k < CHANGES && all.n; k++) {
		Options changed = *o;
		Sync then = sync;
		change_options((ChangeId)k, &changed, &then);
		if (change_applies((ChangeId)k, o))
			add(&all, change_info[k].option, &changed, then);
	}
	if (all.n)
		add_recomputing(&all, of, o, sync);
	if (all.n)
		add_world(&all, o, sync, 2 * world);
	if (all.n && world % 2 == 0)
		add_world(&all, o, sync, world / 2);
	Alternative now = all.at[0];
	qsort(all.at, (size_t)all.n, sizeof(*all.at), faster);
	if (o->what.format == FORMAT_JSON)
		json_rows(f, all.at, all.n, m);
	else if (all.n)
		text_rows(f, all.at, all.n, &now, m);
	largest_show(f, of, o);
	arena_free(all.a);
}
