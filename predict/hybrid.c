/* predict/hybrid.c: `shardc plan --machine --ask`: on how many hosts hybrid_shard is faster than full_shard.
 *
 * Both are planned on 2, 8, 32, .. and all hosts of the machine, all ranks of which are used, with the samples of a
 * rank as they are, until hybrid_shard is faster and a rank has the memory; then on half of these hosts, if these are
 * more than did not pay. */
#include <inttypes.h>

#include "predict/answers.h"

#define NOTICED 1e-3 /* of a step: less is no reason for another strategy */

static const Played *played(Asking *s, ChangeId strategy, int64_t hosts, int64_t of_host)
{
	Options changed = *s->o;
	Sync sync = s->sync;
	change_options(strategy, &changed, &sync);
	changed.sharding.world = hosts * of_host;
	changed.sharding.hosts = hosts;
	changed.sharding.shard_size = 0;
	return answers_played(s, &changed, sync);
}

/* False: there is no plan with a time. */
static bool try_hosts(Asking *s, int64_t hosts, int64_t of_host, HybridAt *out)
{
	const Played *full = played(s, CHANGE_FULL_SHARD, hosts, of_host);
	const Played *hybrid = full ? played(s, CHANGE_HYBRID_SHARD, hosts, of_host) : NULL;
	if (!hybrid)
		return false;
	*out = (HybridAt){hosts, hosts * of_host, full->seconds, hybrid->seconds, hybrid->memory.total,
		hybrid->seconds < full->seconds * (1 - NOTICED) && hybrid->memory.total <= s->limit
			&& !machine_overpins(s->of->machine, hybrid->memory.host.total)};
	return true;
}

/* More than all: there are no more. */
static int64_t next(int64_t hosts, int64_t all) { return hosts < all ? MIN(4 * hosts, all) : all + 1; }

void hybrid_find(Asking *s)
{
	Hybrid *x = &s->out->hybrid;
	const Machine *m = s->of->machine;
	HybridAt at = {0}, half;
	int64_t of_host = (int64_t)m->of[MACHINE_RANKS], all = (int64_t)m->of[MACHINE_HOSTS];
	if (all < 2)
		x->why = arena_printf(s->a, "%s describes one host, and hybrid_shard is for several", m->file);
	for (int64_t hosts = 2, before = 1; hosts <= all && !at.pays; before = hosts, hosts = next(hosts, all)) {
		if (!try_hosts(s, hosts, of_host, &at)) {
			x->why = "a plan with --strategy=full_shard or hybrid_shard and these options is refused, or has no time";
			return;
		}
		if (at.pays && hosts / 2 > before && try_hosts(s, hosts / 2, of_host, &half))
			vec_push(s->a, &x->at, half);
		vec_push(s->a, &x->at, at);
	}
}
