/* passes/changes.c: the table of changes.def, and planning again in silence. */
#include "passes/changes.h"

#include <string.h>

const ChangeInfo change_info[CHANGES] = {
#define CHANGE(id, option, what, ...) {option, what},
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
#define CHANGE(id, option, what, ...) case CHANGE_##id: __VA_ARGS__ break;
#include "passes/changes.def"
	case CHANGES: ice("change %d", (int)id);
	}
}

bool change_applies(ChangeId id, const Options *o)
{
	bool of_file = o->sharding.wrap.n && !strncmp(o->sharding.wrap.at[0], "file:", 5);
	return !of_file || strncmp(change_info[id].option, "--wrap=", 7);
}

bool change_plan(const Restart *start, const Options *o, Sync sync, Variants *out)
{
	Options changed = *o;
	Diag d = {.silent = true};
	changed.memory.memory_limit = 0;
	return pipeline_again(start, &changed, sync, true, out, &d);
}
