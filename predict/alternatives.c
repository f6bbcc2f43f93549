/* predict/alternatives.c: `shardc plan --machine --ask`: what other options would cost in time and memory.
 *
 * Each row is planned and predicted again with its option alone, so its numbers are those of a plan that was made with
 * it; they do not add up.  An option that is refused in this place, or that changes nothing, has no row. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "predict/private.h"

typedef struct Change {
	const char *option;
	bool (*make)(Options *o, const Machine *m); /* false: the option is what is planned already, or means nothing */
} Change;

/* ---- changes ---- */

static bool to_remat(Options *o, RematMode mode)
{
	bool differs = o->memory.remat != mode;
	o->memory.remat = mode;
	return differs;
}

static bool remat_block(Options *o, const Machine *m) { (void)m; return to_remat(o, REMAT_BLOCK); }
static bool remat_none(Options *o, const Machine *m) { (void)m; return to_remat(o, REMAT_NONE); }

static bool to_strategy(Options *o, Strategy strategy)
{
	bool differs = o->sharding.strategy != strategy && o->sharding.world > 1;
	o->sharding.strategy = strategy;
	o->sharding.unit_strategy.n = 0;
	o->given.strategy = true;
	return differs;
}

static bool full_shard(Options *o, const Machine *m) { (void)m; return to_strategy(o, STRATEGY_FULL_SHARD); }
static bool shard_grad_op(Options *o, const Machine *m) { (void)m; return to_strategy(o, STRATEGY_SHARD_GRAD_OP); }
static bool no_shard(Options *o, const Machine *m) { (void)m; return to_strategy(o, STRATEGY_NO_SHARD); }

/* Groups of a host each. */
static bool hybrid_shard(Options *o, const Machine *m)
{
	o->sharding.shard_size = (int64_t)m->of[MACHINE_RANKS];
	return o->sharding.world > o->sharding.shard_size && to_strategy(o, STRATEGY_HYBRID_SHARD);
}

static bool to_wrap(Options *o, const char *policy)
{
	bool was = o->sharding.wrap.n ? o->sharding.wrap.n == 1 && !strcmp(o->sharding.wrap.at[0], policy)
		: !strcmp(policy, "block");
	o->sharding.wrap = (OptionList){.at = {policy}, .n = 1};
	return !was && o->sharding.world > 1;
}

static bool wrap_block(Options *o, const Machine *m) { (void)m; return to_wrap(o, "block"); }
static bool wrap_each(Options *o, const Machine *m) { (void)m; return to_wrap(o, "each"); }
static bool wrap_none(Options *o, const Machine *m) { (void)m; return to_wrap(o, "none"); }

static bool to_prefetch(Options *o, const char *forward, const char *backward)
{
	o->sharding.forward_prefetch = forward;
	o->sharding.backward_prefetch = backward;
	o->sharding.limit_all_gathers = NULL;
	return o->sharding.world > 1;
}

static bool no_prefetch(Options *o, const Machine *m) { (void)m; return to_prefetch(o, "0", "none"); }
static bool prefetch_2(Options *o, const Machine *m) { (void)m; return to_prefetch(o, "2", "pre:2"); }

static bool param_bf16(Options *o, const Machine *m)
{
	(void)m;
	bool differs = o->precision.param_dtype == DT_F32;
	o->precision.param_dtype = DT_BF16;
	return o->given.param_dtype = true, differs;
}

static bool reduce_bf16(Options *o, const Machine *m)
{
	(void)m;
	bool differs = o->precision.reduce_dtype == DT_F32 && o->sharding.world > 1;
	o->precision.reduce_dtype = DT_BF16;
	return o->given.reduce_dtype = true, differs;
}

static bool to_world(Options *o, const Machine *m, int64_t world)
{
	bool owned = strategy_info[o->sharding.strategy].owned, fits = !m->cuda || world <= machine_world(m);
	o->sharding.world = world;
	o->sharding.hosts = m->cuda ? ceil_div(world, (int64_t)m->of[MACHINE_RANKS]) : o->sharding.hosts;
	return fits && !owned && world % MAX(o->sharding.hosts, 1) == 0;
}

static bool twice_the_ranks(Options *o, const Machine *m) { return to_world(o, m, 2 * MAX(o->sharding.world, 1)); }
static bool half_the_ranks(Options *o, const Machine *m)
{
	return o->sharding.world % 2 == 0 && to_world(o, m, o->sharding.world / 2);
}

static const Change change[] = {
	{"--remat=block", remat_block}, {"--remat=none", remat_none},
	{"--strategy=full_shard", full_shard}, {"--strategy=shard_grad_op", shard_grad_op},
	{"--strategy=no_shard", no_shard}, {"--strategy=hybrid_shard", hybrid_shard},
	{"--wrap=block", wrap_block}, {"--wrap=each", wrap_each}, {"--wrap=none", wrap_none},
	{"--forward-prefetch=0 --backward-prefetch=none", no_prefetch},
	{"--forward-prefetch=2 --backward-prefetch=pre:2", prefetch_2},
	{"--param-dtype=bf16", param_bf16}, {"--reduce-dtype=bf16", reduce_bf16},
	{"--world=", twice_the_ranks}, {"--world=", half_the_ranks},
};

/* ---- planning again ---- */

typedef struct Alternative {
	const char *option;
	int64_t bytes;
	double seconds, samples; /* of a step; a second, of all ranks */
} Alternative;

/* False: the option is refused here. */
static bool plan_with(const Restart *start, const Options *o, Sync sync, const Machine *m, FILE *nowhere,
	Alternative *out)
{
	Variants v = {0};
	Diag silent = {.out = nowhere, .quiet = true};
	Arena *a = arena_new();
	bool ok = pipeline_again(start, o, sync, &v, &silent);
	if (ok) {
		const Timeline *t = simulate(v.of[VARIANT_ONLY], predict_how(&v, o, m, a), a);
		out->bytes = pipeline_memory(&v, o).total;
		out->seconds = t->seconds;
		out->samples = (double)(v.of[VARIANT_ONLY]->batch * t->who.world) / t->seconds;
	}
	pipeline_free(&v);
	arena_free(a);
	return ok;
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

void alternatives_show(FILE *f, const Restart *start, const Variants *v, const Options *o, const Machine *m)
{
	Alternative all[COUNT_OF(change) + 1];
	FILE *nowhere = fopen("/dev/null", "w");
	Sync sync = v->of[VARIANT_ONLY]->sync;
	Arena *a = arena_new();
	int n = 0;
	Alternative *now = &all[n];
	if (nowhere && plan_with(start, o, sync, m, nowhere, now))
		all[n++].option = "(this plan)";
	for (int i = 0; i < COUNT_OF(change) && n; i++) {
		Options changed = *o;
		changed.memory.memory_limit = 0;
		if (!change[i].make(&changed, m) || !plan_with(start, &changed, sync, m, nowhere, &all[n]))
			continue;
		const char *option = change[i].option;
		all[n].option = option[strlen(option) - 1] == '='
			? arena_printf(a, "%s%" PRId64, option, changed.sharding.world) : option;
		n += all[n].bytes != now->bytes || all[n].seconds != now->seconds;
	}
	Alternative this_plan = *now;
	qsort(all, (size_t)n, sizeof(*all), faster);
	if (o->what.format == FORMAT_JSON)
		json_rows(f, all, n, m);
	else if (n)
		text_rows(f, all, n, &this_plan, m);
	if (nowhere)
		fclose(nowhere);
	arena_free(a);
}
