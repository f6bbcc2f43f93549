/* hints.c: plans the model again with options that may need less memory.
 *
 * A hint is a row: when it may help, what it changes, and what that means.  Its bytes are those of a plan that was made
 * with the option, so they are exact, for this option alone: hints do not add up.  What is planned again is the module
 * in front of pass precision, a small part of the work, and only rows are tried whose categories of memory are large
 * enough for a hint.  A plan that says the same of all but where optimizer states lie is not made again. */
#include "hints.h"

#include <stdlib.h>
#include <string.h>

#include "passes/changes.h"
#include "passes/remat/remat.h"

typedef struct Row {
	ChangeId change;
	/* The bytes that it could take away at most; 0: it is given already, or means nothing here. */
	int64_t (*most)(const Options *o, Sync sync, const LayoutMemory *m);
} Row;

static int64_t ranks(const Options *o)
{
	return MAX(o->sharding.world, 1);
}

/* ---- when a row may help ---- */

static int64_t of_remat(const Options *o, Sync sync, const LayoutMemory *m)
{
	(void)sync;
	return remat_mode(o->memory.remat) == REMAT_NONE ? m->activations : 0;
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

static int64_t of_acts(const Options *o, Sync sync, const LayoutMemory *m)
{
	(void)sync;
	bool given = o->memory.offload_acts && strcmp(o->memory.offload_acts, "none");
	return options_cuda(o) && !given ? m->activations : 0;
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

static int64_t of_gradients(const Options *o, Sync sync, const LayoutMemory *m)
{
	(void)sync;
	return o->graph.update == UPDATE_AT_END ? m->grads : 0;
}

static const Row row[] = {
	{CHANGE_REMAT_BLOCK, of_remat}, {CHANGE_FULL_SHARD, of_shards}, {CHANGE_SYNC_EVERY, of_every},
	{CHANGE_WRAP_BLOCK, of_blocks}, {CHANGE_WRAP_EACH, of_units}, {CHANGE_LOSS_CHUNK, of_logits},
	{CHANGE_TILE_ROWS, of_inner}, {CHANGE_PARAM_BF16, of_param_dtype}, {CHANGE_REDUCE_BF16, of_reduce_dtype},
	{CHANGE_OFFLOAD_OPTIM, of_optim}, {CHANGE_OFFLOAD_PARAMS, of_params}, {CHANGE_OFFLOAD_ACTS, of_acts},
	{CHANGE_UPDATE_BACKWARD, of_gradients},
};

/* ---- planning again ---- */

/* The bytes of a plan with the row's option; -1: it is refused. */
static int64_t plan_with(const Row *r, const Restart *start, const Options *o, Sync sync)
{
	Options changed = *o;
	Variants v;
	if (change_unfit(r->change, o))
		return -1;
	change_options(r->change, &changed, &sync);
	int64_t total = change_plan(start, &changed, sync, &v) ? pipeline_memory(&v, &changed).total : -1;
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
	int n = 0;
	int64_t without_states = memory.states ? plan_without_states(plan, o) : -1;
	pipeline_free(plan);
	*plan = (Variants){0};
	for (int i = 0; i < COUNT_OF(row) && start->at.m && !o->sharding.schedule_in; i++) {
		if (row[i].most(o, sync, &memory) * HINTS_PART < memory.total)
			continue;
		const ChangeInfo *info = &change_info[row[i].change];
		int64_t total = row[i].change == CHANGE_OFFLOAD_OPTIM ? without_states : plan_with(&row[i], start, o, sync);
		if (total >= 0 && (memory.total - total) * HINTS_PART >= memory.total)
			out[n++] = (CodegenHint){info->option, info->what, memory.total - total, total};
	}
	qsort(out, (size_t)n, sizeof(*out), compare);
	return n;
}
