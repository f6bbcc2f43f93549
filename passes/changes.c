/* passes/changes.c: the table of changes.def, and planning again in silence. */
#include "passes/changes.h"

#include <string.h>

const ChangeInfo change_info[CHANGES] = {
#define CHANGE(id, kind, option, what, ...) {CHANGE_OF_##kind, option, what},
#include "passes/changes.def"
};

const ChangeKindInfo change_kind_info[CHANGE_KINDS] = {
#define CHANGE_KIND(id, key, title) {key, title},
#include "passes/changes.def"
};

static void to_strategy(Options *o, Strategy strategy)
{
	o->sharding.strategy = strategy;
	o->sharding.unit_strategy.n = 0;
	o->sharding.shard_size = strategy == STRATEGY_HYBRID_SHARD ? o->sharding.shard_size : 0;
	o->given.strategy = true;
	o->given.bcast_dtype = false;
}

static void to_wrap(Options *o, const char *policy)
{
	o->sharding.wrap = (OptionList){.at = {policy}, .n = 1};
}

static void to_prefetch(Options *o, const char *forward, const char *backward)
{
	o->sharding.forward_prefetch = forward;
	o->sharding.backward_prefetch = backward;
}

void change_options(ChangeId id, Options *o, Sync *sync)
{
	switch (id) {
#define CHANGE(id, kind, option, what, ...) case CHANGE_##id: __VA_ARGS__ break;
#include "passes/changes.def"
	case CHANGES: ice("change %d", (int)id);
	}
}

const char *change_unfit(ChangeId id, const Options *o)
{
	bool of_file = o->sharding.wrap.n && !strncmp(o->sharding.wrap.at[0], "file:", 5);
	if (of_file && change_info[id].kind == CHANGE_OF_UNITS)
		return "the units are those of a policy file, and with it go the other options that it says";
	if (id == CHANGE_OFFLOAD_ACTS && !options_cuda(o))
		return "programs for CPUs have their values in memory of the host already";
	if (id == CHANGE_SYNC_EVERY && !options_many(o))
		return "a step has one micro-batch (--accum=many: several)";
	UpdateBarrier barrier[UPDATE_BARRIERS];
	if (id == CHANGE_UPDATE_BACKWARD && update_barriers(o, barrier))
		return barrier[0].why;
	return NULL;
}

bool change_plan_saying(const Restart *start, const Options *o, Sync sync, Variants *out, Diag *d)
{
	Options changed = *o;
	changed.memory.memory_limit = changed.memory.host_limit = 0;
	return pipeline_again(start, &changed, sync, true, out, d);
}

bool change_plan(const Restart *start, const Options *o, Sync sync, Variants *out)
{
	Diag d = {.silent = true};
	return change_plan_saying(start, o, sync, out, &d);
}
