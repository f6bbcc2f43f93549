/* hints.c: plans the model again with options that may need less memory.
 *
 * A hint is a row: when it may help, what it changes, and what that means.  Its bytes are those of a plan that was made
 * with the option, so they are exact, for this option alone: hints do not add up.  What is planned again is the module
 * in front of pass precision, a small part of the work, and only rows are tried whose categories of memory are large
 * enough for a hint.  A plan that says the same of all but where optimizer states lie is not made again. */
#include "hints.h"

#include <stdlib.h>
#include <string.h>

typedef struct Row {
	const char *option;
	/* The bytes that it could take away at most; 0: it is given already, or means nothing here. */
	int64_t (*most)(const Options *o, Sync sync, const LayoutMemory *m);
	void (*change)(Options *o, Sync *sync);
	const char *what;
} Row;

static int64_t ranks(const Options *o)
{
	return MAX(o->sharding.world, 1);
}

/* ---- when a row may help ---- */

static int64_t of_remat(const Options *o, Sync sync, const LayoutMemory *m)
{
	(void)sync;
	return o->memory.remat == REMAT_NONE ? m->activations : 0;
}

static int64_t of_shards(const Options *o, Sync sync, const LayoutMemory *m)
{
	(void)sync;
	bool other = o->sharding.strategy != STRATEGY_FULL_SHARD || o->sharding.unit_strategy.n;
	return ranks(o) > 1 && other ? m->params + m->gathered + m->grads + m->states : 0;
}

static int64_t of_every(const Options *o, Sync sync, const LayoutMemory *m)
{
	bool may = !o->graph.comm_hook && !o->precision.keep_low_precision_grads;
	return options_many(o) && sync == SYNC_LAST && ranks(o) > 1 && may ? m->grads : 0;
}

static int64_t of_units(const Options *o, Sync sync, const LayoutMemory *m)
{
	(void)sync;
	bool gathers = !strategy_info[o->sharding.strategy].owned && o->sharding.strategy != STRATEGY_NO_SHARD;
	return ranks(o) > 1 && gathers ? m->gathered + m->grads - m->params : 0; /* reduced shards stay */
}

static int64_t of_blocks(const Options *o, Sync sync, const LayoutMemory *m)
{
	return o->sharding.wrap.n ? of_units(o, sync, m) : 0;
}

static int64_t of_param_dtype(const Options *o, Sync sync, const LayoutMemory *m)
{
	(void)sync;
	return o->precision.param_dtype == DT_F32 ? m->activations + m->gathered : 0;
}

static int64_t of_reduce_dtype(const Options *o, Sync sync, const LayoutMemory *m)
{
	(void)sync;
	bool may = !options_many(o) && !o->graph.comm_hook && ranks(o) > 1;
	return o->precision.reduce_dtype == DT_F32 && may ? m->grads / 2 : 0;
}

static int64_t of_optim(const Options *o, Sync sync, const LayoutMemory *m)
{
	(void)sync;
	return o->memory.offload == LAYOUT_OFFLOAD_NONE ? m->states : 0;
}

static int64_t of_params(const Options *o, Sync sync, const LayoutMemory *m)
{
	(void)sync;
	return o->memory.offload != LAYOUT_OFFLOAD_PARAMS ? m->states + m->params + m->grads : 0;
}

static int64_t of_logits(const Options *o, Sync sync, const LayoutMemory *m)
{
	(void)sync;
	return o->graph.loss_chunk && !strcmp(o->graph.loss_chunk, "off") ? m->activations : 0;
}

static int64_t of_inner(const Options *o, Sync sync, const LayoutMemory *m)
{
	(void)sync;
	return o->memory.tile_rows && !strcmp(o->memory.tile_rows, "off") ? m->activations : 0;
}

/* ---- what it changes ---- */

static void remat_block(Options *o, Sync *sync)
{
	(void)sync;
	o->memory.remat = REMAT_BLOCK;
}

static void full_shard(Options *o, Sync *sync)
{
	(void)sync;
	o->sharding.strategy = STRATEGY_FULL_SHARD;
	o->sharding.unit_strategy.n = 0;
	o->sharding.shard_size = 0;
	o->given.strategy = true;
	o->given.bcast_dtype = false;
}

static void sync_every(Options *o, Sync *sync)
{
	(void)o;
	*sync = SYNC_EVERY;
}

static void wrap(Options *o, const char *policy)
{
	o->sharding.wrap = (OptionList){.at = {policy}, .n = 1};
}

static void wrap_block(Options *o, Sync *sync)
{
	(void)sync;
	wrap(o, "block");
}

static void wrap_each(Options *o, Sync *sync)
{
	(void)sync;
	wrap(o, "each");
}

static void param_bf16(Options *o, Sync *sync)
{
	(void)sync;
	o->precision.param_dtype = DT_BF16;
	o->given.param_dtype = true;
}

static void reduce_bf16(Options *o, Sync *sync)
{
	(void)sync;
	o->precision.reduce_dtype = DT_BF16;
	o->given.reduce_dtype = true;
}

static void offload_optim(Options *o, Sync *sync)
{
	(void)sync;
	o->memory.offload = LAYOUT_OFFLOAD_OPTIM;
}

static void offload_params(Options *o, Sync *sync)
{
	(void)sync;
	o->memory.offload = LAYOUT_OFFLOAD_PARAMS;
}

static void chunk_auto(Options *o, Sync *sync)
{
	(void)sync;
	o->graph.loss_chunk = "auto";
}

static void tile_auto(Options *o, Sync *sync)
{
	(void)sync;
	o->memory.tile_rows = "auto";
}

static const Row row[] = {
	{"--remat=block", of_remat, remat_block, "backward computes the values of blocks again"},
	{"--strategy=full_shard", of_shards, full_shard, "every rank keeps its part of everything"},
	{"--sync=every", of_every, sync_every, "each micro-batch reduces its gradients, in place of whole sums"},
	{"--wrap=block", of_blocks, wrap_block, "a unit for each block"},
	{"--wrap=each", of_units, wrap_each, "smaller units, more collectives"},
	{"--loss-chunk=auto", of_logits, chunk_auto, "logits exist by blocks of rows"},
	{"--tile-rows=auto", of_inner, tile_auto, "inner values of blocks exist by tiles of rows"},
	{"--param-dtype=bf16", of_param_dtype, param_bf16, "computes in 16 bits"},
	{"--reduce-dtype=bf16", of_reduce_dtype, reduce_bf16, "sends gradients in 16 bits"},
	{"--offload=optim", of_optim, offload_optim, "optimizer states lie elsewhere"},
	{"--offload=params", of_params, offload_params, "parameters at rest and optimizer states lie elsewhere"},
};

/* ---- planning again ---- */

/* The bytes of a plan with the row's option; -1: it is refused. */
static int64_t plan_with(const Row *r, const Restart *start, const Options *o, Sync sync, FILE *nowhere)
{
	Options changed = *o;
	Variants v = {0};
	Diag silent = {.out = nowhere, .quiet = true};
	changed.memory.memory_limit = 0;
	r->change(&changed, &sync);
	bool ok = pipeline_again(start, &changed, sync, &v, &silent);
	int64_t total = ok ? pipeline_memory(&v, &changed).total : -1;
	pipeline_free(&v);
	return total;
}

/* The bytes of this very plan with optimizer states elsewhere, which changes nothing else. */
static int64_t plan_without_states(const Variants *plan, const Options *o)
{
	Train *train = plan->of[VARIANT_ONLY]->train;
	LayoutOffload was = train->offload;
	train->offload = LAYOUT_OFFLOAD_OPTIM;
	int64_t total = pipeline_memory(plan, o).total;
	train->offload = was;
	return total;
}

static int compare(const void *x, const void *y)
{
	const CodegenHint *a = x, *b = y;
	return (a->saves < b->saves) - (a->saves > b->saves);
}

int hints_find(const Restart *start, const Options *o, Variants *plan, CodegenHint out[HINTS_MAX])
{
	LayoutMemory memory = pipeline_memory(plan, o);
	Sync sync = plan->of[VARIANT_ONLY]->sync;
	FILE *nowhere = fopen("/dev/null", "w");
	int n = 0;
	int64_t without_states = memory.states ? plan_without_states(plan, o) : -1;
	pipeline_free(plan);
	*plan = (Variants){0};
	for (int i = 0; i < COUNT_OF(row) && nowhere && start->text && !o->sharding.schedule_in; i++) {
		if (row[i].most(o, sync, &memory) * HINTS_PART < memory.total)
			continue;
		int64_t total = row[i].change == offload_optim ? without_states
			: plan_with(&row[i], start, o, sync, nowhere);
		if (total >= 0 && (memory.total - total) * HINTS_PART >= memory.total)
			out[n++] = (CodegenHint){row[i].option, row[i].what, memory.total - total, total};
	}
	if (nowhere)
		fclose(nowhere);
	qsort(out, (size_t)n, sizeof(*out), compare);
	return n;
}
