/* runtime/collective.c: every collective as exchanges: who takes which bytes of whom, and where they go.
 *
 * Sums over ranks are left folds in rank order in f32, then one multiply by 1/W; a sum over groups goes on
 * where the sums inside the groups ended.  All-reduces are two exchanges: everyone folds its own slab in place,
 * then copies the others'.  That is safe in place: a slab is written by the rank that folds it after it alone
 * has read it, and by a copy after its folder has ended the first exchange.
 *
 * The one idea: a collective is a few numbers (Part): slabs, whose slab, who takes part, and copy or fold; the
 * loop that moves bytes is one. */
#include "runtime/internal.h"

/* Ranks in the order of folds. */
typedef struct Members { int *ranks, n, me; } Members;
struct Collectives {
	Members all, group, across; /* everyone; my group of hybrid_shard; those with my index in other groups */
};

const char *collective_name(RtCollectiveKind kind)
{
	switch (kind) {
	case RT_ALL_GATHER: return "all_gather";
	case RT_REDUCE_SCATTER: return "reduce_scatter";
	case RT_ALL_REDUCE: return "all_reduce";
	case RT_ALL_REDUCE_SHARDS: return "all_reduce of shards";
	case RT_REDUCE: return "reduce";
	case RT_BROADCAST: return "broadcast";
	case RT_ALL_REDUCE_SCALARS: return "all_reduce_scalars";
	}
	ice("collective %d", (int)kind);
}

/* first, first + step, ... */
static Members members(Arena *a, int64_t first, int64_t step, int64_t n, int64_t me)
{
	Members m = {NEW_N(a, int, n), (int)n, (int)me};
	for (int64_t i = 0; i < n; i++)
		m.ranks[i] = (int)(first + i * step);
	return m;
}

Collectives *collectives_new(const Rt *rt, Arena *a)
{
	Collectives *c = NEW(a, Collectives);
	LayoutRank who = device_rank(rt);
	LayoutSplit s = layout_split(STRATEGY_HYBRID_SHARD, &who);
	c->all = members(a, 0, 1, who.world, who.rank);
	c->group = members(a, s.group * s.ranks, 1, s.ranks, s.index);
	c->across = members(a, s.index, s.ranks, s.groups, s.group);
	return c;
}

/* ---- which exchanges ---- */

static const LayoutUnit *unit_of(const Rt *rt, const RtCollective *row)
{
	return &rt->model->layout.unit[row->unit];
}

static LayoutSplit split_of(const Rt *rt, const RtCollective *row)
{
	LayoutRank who = device_rank(rt);
	return layout_split(unit_of(rt, row)->strategy, &who);
}

static int trained_flats(const LayoutUnit *u)
{
	int n = 0;
	for (int f = 0; f < u->n_flats; f++)
		n += u->flat[f].trainable;
	return n;
}

static int nth_trained(const LayoutUnit *u, int k)
{
	for (int f = 0; f < u->n_flats; f++)
		if (u->flat[f].trainable && k-- == 0)
			return f;
	ice("a unit has no trainable flat %d", k);
}

int collective_parts(const Rt *rt, const RtCollective *row)
{
	if (rt->p->world.size < 2 || row->unit < 0)
		return 0;
	const LayoutUnit *u = unit_of(rt, row);
	LayoutSplit s = split_of(rt, row);
	switch (row->kind) {
	case RT_ALL_GATHER: return s.ranks > 1 ? u->n_flats : 0;
	case RT_REDUCE_SCATTER: return s.ranks > 1 ? trained_flats(u) : 0;
	case RT_ALL_REDUCE_SHARDS: return s.groups > 1 ? 2 * trained_flats(u) : 0;
	case RT_ALL_REDUCE: case RT_REDUCE: return 2 * trained_flats(u);
	case RT_BROADCAST: return trained_flats(u);
	case RT_ALL_REDUCE_SCALARS: return 0;
	}
	return 0;
}

char *collective_gathered(const Rt *rt, const RtCollective *row, int flat)
{
	const DeviceMemory *mem = &rt->p->memory;
	int64_t at = row->slot < 0 ? mem->places.own[row->unit][flat] :
		mem->places.slot[row->slot] + layout_in_slot(unit_of(rt, row), flat, split_of(rt, row).ranks);
	return mem->base[ARENA_GATHERED] + at;
}

static void gather(const Rt *rt, const RtCollective *row, int f, Part *p)
{
	const LayoutFlat *flat = &unit_of(rt, row)->flat[f];
	p->slab = p->total = layout_shard_numel(flat->numel, p->x.n) * dtype_info[flat->dtype].bytes;
	p->x.source = rt->shard[row->unit][f];
	p->to = collective_gathered(rt, row, f);
	p->stride = p->slab;
}

static void reduce_scatter(const Rt *rt, const RtCollective *row, int f, Part *p)
{
	const LayoutFlat *flat = &unit_of(rt, row)->flat[f];
	p->slab = layout_shard_numel(flat->numel, p->x.n) * dtype_info[flat->dtype].bytes;
	p->total = p->slab * p->x.n;
	p->which = SLAB_OF_TAKER;
	p->fold = true;
	/* Across groups the sum goes on, and is divided there. */
	p->scale = split_of(rt, row).groups > 1 ? 1 : 1 / (float)rt->p->world.size;
	p->x.source = rt->grad[row->unit][f];
	p->to = rt->grad_shard[row->unit][f];
}

/* Of n elements at `at`, in place: the fold of my slab, then copies of the others'. */
static void all_reduce(const Rt *rt, void *at, int64_t n, bool second, Part *p)
{
	p->slab = layout_shard_numel(n, p->x.n) * (int64_t)sizeof(float);
	p->total = n * (int64_t)sizeof(float);
	p->which = second ? SLAB_OF_GIVER : SLAB_OF_TAKER;
	p->not_own = second;
	p->fold = !second;
	p->scale = 1 / (float)rt->p->world.size;
	p->x.source = at;
	p->to = (char *)at + (second ? 0 : p->slab * p->x.me);
	p->stride = p->slab;
}

/* As all_reduce, but only the owner collects, into memory of its own. */
static void reduce(const Rt *rt, const RtCollective *row, int f, bool second, Part *p)
{
	const LayoutUnit *u = unit_of(rt, row);
	all_reduce(rt, rt->grad[row->unit][f], layout_flat_numel(u->flat[f].numel, 1), second, p);
	if (u->owner == rt->p->world.rank)
		p->to = (char *)rt->grad_shard[row->unit][f] + (second ? 0 : p->slab * p->x.me);
	p->only_taker = second ? u->owner : -1;
}

static void broadcast(const Rt *rt, const RtCollective *row, int f, Part *p)
{
	const LayoutUnit *u = unit_of(rt, row);
	p->slab = p->total = layout_flat_numel(u->flat[f].numel, 1) * dtype_info[u->flat[f].dtype].bytes;
	p->only_giver = u->owner;
	p->not_own = true;
	p->x.source = p->to = rt->shard[row->unit][f];
}

static void range_of(const void *context, int taker, int giver, int64_t *begin, int64_t *bytes)
{
	const Part *p = context;
	int64_t index = p->which == SLAB_OF_TAKER ? taker : p->which == SLAB_OF_GIVER ? giver : 0;
	bool none = (p->only_taker >= 0 && taker != p->only_taker) || (p->only_giver >= 0 && giver != p->only_giver) ||
		(p->not_own && taker == giver);
	*begin = MIN(index * p->slab, p->total);
	*bytes = none ? 0 : MIN(p->slab, p->total - *begin);
}

void collective_begin(const Rt *rt, Collectives *c, const RtCollective *row, int part, Part *p)
{
	const LayoutUnit *u = unit_of(rt, row);
	bool group = strategy_info[u->strategy].group == GROUP_SHARD;
	const Members *m = row->kind == RT_ALL_REDUCE_SHARDS ? &c->across : group ? &c->group : &c->all;
	int f = row->kind == RT_ALL_GATHER ? part : nth_trained(u, part % trained_flats(u));
	bool second = row->kind != RT_ALL_GATHER && part >= trained_flats(u);
	LayoutRank who = device_rank(rt);
	*p = (Part){.x = {.channel = (int)row->stream, .ranks = m->ranks, .n = m->n, .me = m->me, .range = range_of,
		.context = p}, .scale = 1, .only_taker = -1, .only_giver = -1};
	switch (row->kind) {
	case RT_ALL_GATHER: gather(rt, row, f, p); break;
	case RT_REDUCE_SCATTER: reduce_scatter(rt, row, f, p); break;
	case RT_ALL_REDUCE: all_reduce(rt, rt->grad[row->unit][f], layout_flat_numel(u->flat[f].numel, 1), second, p);
		break;
	case RT_ALL_REDUCE_SHARDS:
		all_reduce(rt, rt->grad_shard[row->unit][f], layout_range(u, f, &who).n, second, p);
		break;
	case RT_REDUCE: reduce(rt, row, f, second, p); break;
	case RT_BROADCAST: broadcast(rt, row, f, p); break;
	case RT_ALL_REDUCE_SCALARS: ice("scalars are no exchange of a unit");
	}
	exchange_begin(rt->p->comm, &p->x);
}

/* ---- the bytes ---- */

/* Copies begin with the next member's, so that not all ranks read the same memory at once. */
static int64_t copy_piece(const Part *p, int64_t at, int64_t n, const char *const *from)
{
	int64_t foreign = 0;
	for (int k = 1; k <= p->x.n; k++) {
		int i = (p->x.me + k) % p->x.n;
		if (!from[i])
			continue;
		k_copy_wide(p->to + i * p->stride + at, from[i], n);
		foreign += i == p->x.me ? 0 : n;
	}
	return foreign;
}

int64_t collective_finish(const Rt *rt, const Part *p, const char **from)
{
	int64_t foreign = 0;
	for (int64_t at = 0, n; (n = exchange_take(rt->p->comm, &p->x, at, INT64_MAX, from)); at += n) {
		if (!p->fold) {
			foreign += copy_piece(p, at, n, from);
			continue;
		}
		k_fold(p->to + at, K_F32, (const void *const *)from, K_F32, p->x.n, n / (int64_t)sizeof(float), p->scale);
		foreign += n * (p->x.n - 1);
	}
	exchange_end(rt->p->comm, &p->x);
	return foreign;
}
