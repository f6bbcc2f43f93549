/* predict/alternatives.c: `shardc plan --machine --ask`: what other options would cost in time and memory.
 *
 * Each answer is planned and predicted again with its option alone, so its numbers are those of a plan that was made
 * with it; they do not add up. */
#include <inttypes.h>
#include <string.h>

#include "predict/answers.h"

enum { MANY = 64 }; /* ranks: of more, fewer groups are tried */

/* ---- changes of one option ---- */

static void add_change(Asking *s, ChangeId id)
{
	Options changed = *s->o;
	Sync sync = s->sync;
	const ChangeInfo *info = &change_info[id];
	change_options(id, &changed, &sync);
	const char *unfit = change_unfit(id, s->o);
	if (unfit)
		answers_leave_out(s, info->kind, info->option, unfit);
	else
		answers_add(s, info->kind, info->option, &changed, sync);
}

/* ---- units of so many bytes ---- */

static void add_wrap(Asking *s, const char *policy)
{
	Options changed = *s->o;
	changed.sharding.wrap = (OptionList){.at = {policy}, .n = 1};
	answers_add(s, CHANGE_OF_UNITS, answers_option(s, "--wrap", policy), &changed, s->sync);
}

static int64_t largest_unit(const Module *m)
{
	int64_t most = 0;
	for (int i = 0; i < m->n_units; i++) {
		int64_t n = 0;
		for (int k = 0; k < m->units[i]->n_params; k++)
			n += type_numel(&m->units[i]->params[k]->type);
		most = MAX(most, n);
	}
	return most;
}

/* Modules of a quarter of the largest unit; an eighth and a thirty-second of the model, in the order of use. */
static void add_sizes(Asking *s)
{
	int64_t bytes = 0, quarter = largest_unit(s->m) / 4;
	for (int i = 0; i < s->m->n_symbols; i++)
		if (s->m->symbols[i]->kind == SYM_PARAM)
			bytes += type_bytes(&s->m->symbols[i]->type);
	if (change_unfit(CHANGE_WRAP_EACH, s->o))
		return;
	if (quarter)
		add_wrap(s, arena_printf(s->a, "size:%" PRId64, quarter));
	for (int parts = 8; parts <= 32 && bytes; parts *= 4)
		add_wrap(s, arena_printf(s->a, "exec-order:%" PRId64, ceil_div(bytes, parts)));
}

/* ---- groups of ranks ---- */

/* hybrid_shard in groups of 2, 4, 8, .. ranks, but for those of a host, which it has without --shard-size. */
static void add_groups(Asking *s)
{
	int64_t world = MAX(s->o->sharding.world, 1), of_host = world / MAX(s->o->sharding.hosts, 1);
	bool any = false;
	for (int64_t size = 2; size < world; size *= world > MANY ? 4 : 2) {
		Options changed = *s->o;
		Sync sync = s->sync;
		if (world % size || (size == of_host && s->o->sharding.hosts > 1))
			continue;
		change_options(CHANGE_HYBRID_SHARD, &changed, &sync);
		changed.sharding.shard_size = size;
		changed.given.shard_size = any = true;
		answers_add(s, CHANGE_OF_STRATEGY, arena_printf(s->a, "%s --shard-size=%" PRId64,
			change_info[CHANGE_HYBRID_SHARD].option, size), &changed, sync);
	}
	if (!any)
		answers_leave_out(s, CHANGE_OF_STRATEGY, "--shard-size", arena_printf(s->a, "%" PRId64 " rank%s no smaller "
			"groups of two, four or more", world, world == 1 ? " has" : "s have"));
}

/* Other numbers of ranks, as far as the machine has them; owners are fixed for one number. */
static void add_world(Asking *s, int64_t world)
{
	const Options *o = s->o;
	const Machine *m = s->of->machine;
	Options changed = *o;
	const char *option = arena_printf(s->a, "--world=%" PRId64, world);
	changed.sharding.world = world;
	if (m->cuda)
		changed.sharding.hosts = ceil_div(world, (int64_t)m->of[MACHINE_RANKS]);
	int64_t hosts = MAX(changed.sharding.hosts, 1), group = MAX(o->sharding.shard_size, 1);
	const char *why = NULL;
	if (m->cuda && world > machine_world(m))
		why = arena_printf(s->a, "%s has %" PRId64 " ranks; a machine file of more hosts has more", m->file,
			machine_world(m));
	else if (strategy_info[o->sharding.strategy].owned)
		why = arena_printf(s->a, "owners of %s are made for one number of ranks",
			strategy_info[o->sharding.strategy].text);
	else if (world % hosts || world % group)
		why = arena_printf(s->a, "%" PRId64 " ranks are no multiple of %" PRId64 " %s", world,
			world % hosts ? hosts : group, world % hosts ? "hosts" : "of --shard-size");
	if (why)
		answers_leave_out(s, CHANGE_OF_RANKS, option, why);
	else
		answers_add(s, CHANGE_OF_RANKS, option, &changed, s->sync);
}

static void add_worlds(Asking *s)
{
	int64_t world = MAX(s->o->sharding.world, 1), all = s->of->machine->cuda ? machine_world(s->of->machine) : 0;
	add_world(s, 2 * world);
	if (all > 2 * world)
		add_world(s, all);
	if (world % 2 == 0)
		add_world(s, world / 2);
	if (world > 2 && world % 2)
		answers_leave_out(s, CHANGE_OF_RANKS, "fewer ranks", arena_printf(s->a, "%" PRId64 " has no half", world));
}

void alternatives_find(Asking *s)
{
	for (int k = 0; k < CHANGES; k++)
		add_change(s, (ChangeId)k);
	add_sizes(s);
	add_groups(s);
	add_worlds(s);
}
