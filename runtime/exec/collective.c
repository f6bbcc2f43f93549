/* runtime/exec/collective.c: expresses every collective as exchanges: which rank takes which bytes from which other,
 * and where they go.
 *
 * Sums over ranks are left folds in rank order in f32, then one multiply by 1/W; a sum over groups goes on where the
 * sums inside the groups ended.  An all-reduce is two exchanges: each rank folds its own slab in place, then copies the
 * slabs of the others.  This is safe in place: the rank that folds a slab is the only one that reads it in the first
 * exchange, and it writes the slab afterwards; copies overwrite a slab only in the second exchange.
 *
 * What travels in another dtype than it has in memory is cast before it is published: a shard into its own part of the
 * gathered flat, a gradient or a broadcast into a copy.  A sum is rounded once, when it is written; the result of an
 * all-reduce or of a reduce to the owner has been sent, so all of it, including the rank's own slab, is rounded to the
 * dtype that travels.  At one shard a gather that casts is only that cast; gathers may round stochastically (chance.c).
 *
 * Where reduced gradients are summed over micro-batches, every reduction leaves its result in the flat gradient, in
 * place, and collective_keep takes it from there.
 *
 * A collective is described by a few numbers (Part): slabs, who takes which, and whether to copy or to fold; one loop
 * moves the bytes of all. */
#include "runtime/exec/private.h"

struct Collectives {
	Members all, group, across; /* all ranks; this rank's group of hybrid_shard; the ranks with its index in all
	                             * groups */
};

const char *collective_name(RtCollectiveKind kind)
{
	return collective_info[kind].said;
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

static int gathered_flats(const LayoutUnit *u, int64_t ranks)
{
	for (int f = 0; f < u->n_flats; f++)
		if (layout_is_gathered(&u->flat[f], ranks))
			return u->n_flats;
	return 0;
}

int collective_parts(const Rt *rt, const RtCollective *row)
{
	if (row->unit < 0)
		return 0;
	const LayoutUnit *u = unit_of(rt, row);
	LayoutSplit s = split_of(rt, row);
	int trained = rt->p->world.size < 2 ? 0 : trained_flats(u);
	switch (row->kind) {
	case RT_ALL_GATHER: return gathered_flats(u, s.ranks);
	case RT_REDUCE_SCATTER: return s.ranks > 1 ? trained : 0;
	case RT_ALL_REDUCE_SHARDS: return s.groups > 1 ? 2 * trained : 0;
	case RT_ALL_REDUCE: case RT_REDUCE: return 2 * trained;
	case RT_BROADCAST: return trained;
	default: return 0;
	}
}

char *collective_gathered(const Rt *rt, const RtCollective *row, int flat)
{
	const DeviceMemory *mem = &rt->p->memory;
	int64_t at = row->slot < 0 ? mem->places.own[row->unit][flat] :
		mem->places.slot[row->slot] + layout_in_slot(unit_of(rt, row), flat, split_of(rt, row).ranks);
	return mem->base[ARENA_GATHERED] + at;
}

void collective_arrived(Rt *rt, const RtCollective *row)
{
	const LayoutUnit *u = unit_of(rt, row);
	for (int f = 0; f < u->n_flats; f++)
		if (layout_is_gathered(&u->flat[f], split_of(rt, row).ranks))
			rt->param[row->unit][f] = collective_gathered(rt, row, f);
	if (rt->p->options->check_replicas)
		replicas_gathered(rt, row);
}

/* Sets the unit's pointers to NULL, so that code that still reads it fails at once. */
void rt_reshard(Rt *rt, int unit)
{
	LayoutRank who = device_rank(rt);
	const LayoutUnit *u = &rt->model->layout.unit[unit];
	for (int f = 0; f < u->n_flats; f++)
		if (layout_is_gathered(&u->flat[f], layout_split(u->strategy, &who).ranks))
			rt->param[unit][f] = NULL;
}

static int size_of(DType t)
{
	return dtype_info[t].bytes;
}

/* Where the copy in the dtype that travels lies; NULL: none is needed. */
static char *copy_at(const Rt *rt, int64_t offset)
{
	return offset < 0 ? NULL : rt->p->memory.base[ARENA_SEND] + offset;
}

/* The cast of a shard lies at its own part of the gathered flat. */
static void gather(const Rt *rt, const RtCollective *row, int f, Part *p)
{
	const LayoutFlat *flat = &unit_of(rt, row)->flat[f];
	if (!layout_is_gathered(flat, p->x.n))
		return;
	p->slab = p->total = p->stride = layout_shard_numel(flat->numel, p->x.n);
	p->sent = p->made = flat->param;
	p->to = collective_gathered(rt, row, f);
	p->x.source = rt->shard[row->unit][f];
	if (!layout_casts(flat))
		return;
	p->cast = (Cast){.to = p->to + p->x.me * p->slab * size_of(p->made), .from = rt->shard[row->unit][f],
		.made = p->made, .given = flat->dtype, .n = p->slab, .unit = row->unit, .flat = f, .first = p->x.me * p->slab,
		.chance.on = row->by_chance && flat->dtype == DT_F32 && dtype_is_half(p->made)};
	p->x.source = p->to;
	p->total = p->slab * p->x.n;
	p->which = SLAB_OF_GIVER;
	p->not_own = true;
}

/* A sum over groups continues the sums of the groups and is divided at the end; 16-bit sums are divided in two steps,
 * so that the sum of a group does not overflow. */
static float scale_of(const Rt *rt, const RtCollective *row, const LayoutFlat *flat)
{
	LayoutSplit s = split_of(rt, row);
	bool halves = size_of(flat->reduce) < size_of(DT_F32);
	switch (row->kind) {
	case RT_REDUCE_SCATTER:
		if (s.groups > 1)
			return halves ? 1 / (float)s.ranks : 1;
		break;
	case RT_ALL_REDUCE_SHARDS:
		if (halves)
			return 1 / (float)s.groups;
		break;
	default: break;
	}
	return 1 / (float)rt->p->world.size;
}

/* What is sent for the gradient at `at`: the gradient itself, or a copy of n elements, which is made now if `make`. */
static void send_gradient(const Rt *rt, const RtCollective *row, int f, void *at, DType dtype, int64_t n, bool make,
	Part *p)
{
	char *copy = copy_at(rt, rt->p->memory.places.send[row->unit][f]);
	p->sent = unit_of(rt, row)->flat[f].reduce;
	p->x.source = dtype == p->sent ? at : copy;
	if (dtype != p->sent && make)
		p->cast = (Cast){.to = copy, .from = at, .made = p->sent, .given = dtype, .n = n};
}

static void reduce_scatter(const Rt *rt, const RtCollective *row, int f, Part *p)
{
	const LayoutFlat *flat = &unit_of(rt, row)->flat[f];
	p->slab = layout_shard_numel(flat->numel, p->x.n);
	p->total = p->slab * p->x.n;
	p->which = SLAB_OF_TAKER;
	p->fold = true;
	p->scale = scale_of(rt, row, flat);
	send_gradient(rt, row, f, rt->grad[row->unit][f], flat->grad, p->total, true, p);
	bool apart = unit_of(rt, row)->apart;
	p->made = apart ? flat->grad : flat->kept;
	p->to = apart ? (char *)rt->grad[row->unit][f] + p->slab * p->x.me * size_of(flat->grad)
		: rt->grad_shard[row->unit][f];
}

/* All-reduces n elements at `at`: first this rank's slab is folded in what is sent, then the slabs of the others are
 * copied, and its own where a copy was sent. */
static void all_reduce(const Rt *rt, const RtCollective *row, int f, void *at, DType dtype, int64_t n, bool second,
	Part *p)
{
	const LayoutFlat *flat = &unit_of(rt, row)->flat[f];
	send_gradient(rt, row, f, at, dtype, n, !second, p);
	p->slab = p->stride = layout_shard_numel(n, p->x.n);
	p->total = n;
	p->which = second ? SLAB_OF_GIVER : SLAB_OF_TAKER;
	p->not_own = second && dtype == p->sent;
	p->fold = !second;
	p->scale = scale_of(rt, row, flat);
	p->made = second ? dtype : p->sent;
	p->to = second ? at : (char *)(uintptr_t)p->x.source + p->slab * p->x.me * size_of(p->sent);
}

/* As all_reduce, but only the owner collects the slabs, into memory of its own. */
static void reduce(const Rt *rt, const RtCollective *row, int f, bool second, Part *p)
{
	const LayoutUnit *u = unit_of(rt, row);
	const LayoutFlat *flat = &u->flat[f];
	bool owner = u->owner == rt->p->world.rank, direct = owner && flat->kept == flat->reduce;
	char *to = rt->grad_shard[row->unit][f];
	all_reduce(rt, row, f, rt->grad[row->unit][f], flat->grad, layout_flat_numel(flat->numel, 1), second, p);
	p->only_taker = second ? u->owner : -1;
	if (u->apart)
		return;
	p->not_own = second && direct;
	if (direct && !second)
		p->to = to + p->slab * p->x.me * size_of(flat->kept);
	if (!second)
		return;
	p->to = to;
	p->made = flat->kept;
}

static void broadcast(const Rt *rt, const RtCollective *row, int f, Part *p)
{
	const LayoutUnit *u = unit_of(rt, row);
	const LayoutFlat *flat = &u->flat[f];
	char *at = rt->shard[row->unit][f], *copy = copy_at(rt, rt->p->memory.places.bcast[row->unit][f]);
	p->slab = p->total = layout_flat_numel(flat->numel, 1);
	p->sent = flat->bcast;
	p->made = flat->dtype;
	p->only_giver = u->owner;
	p->not_own = true;
	p->x.source = p->sent == p->made ? at : copy;
	p->to = at;
	if (p->sent != p->made && u->owner == rt->p->world.rank)
		p->cast = (Cast){.to = copy, .from = at, .made = p->sent, .given = p->made, .n = p->total};
}

static void range_of(const void *context, int taker, int giver, int64_t *begin, int64_t *bytes)
{
	const Part *p = context;
	int64_t index = p->which == SLAB_OF_TAKER ? taker : p->which == SLAB_OF_GIVER ? giver : 0;
	bool none = (p->only_taker >= 0 && taker != p->only_taker) || (p->only_giver >= 0 && giver != p->only_giver) ||
		(p->not_own && taker == giver);
	int64_t first = MIN(index * p->slab, p->total);
	*begin = first * size_of(p->sent);
	*bytes = none ? 0 : MIN(p->slab, p->total - first) * size_of(p->sent);
}

const Members *collective_members(const Rt *rt, const Collectives *c, const RtCollective *row)
{
	bool group = strategy_info[unit_of(rt, row)->strategy].group == GROUP_SHARD;
	return row->kind == RT_ALL_REDUCE_SHARDS ? &c->across : group ? &c->group : &c->all;
}

/* At one shard there is nothing to exchange: a gather only casts. */
static bool is_local(const Part *p)
{
	return p->x.n == 1;
}

void collective_describe(const Rt *rt, const Collectives *c, const RtCollective *row, int part, Part *p)
{
	const LayoutUnit *u = unit_of(rt, row);
	const Members *m = collective_members(rt, c, row);
	bool gathers = row->kind == RT_ALL_GATHER, alone = gathers && split_of(rt, row).ranks == 1;
	int f = gathers ? part : nth_trained(u, part % trained_flats(u));
	bool second = !gathers && part >= trained_flats(u);
	LayoutRank who = device_rank(rt);
	*p = (Part){.x = {.channel = (int)row->stream, .ranks = m->ranks, .n = alone ? 1 : m->n, .me = alone ? 0 : m->me,
		.range = range_of, .context = p}, .scale = 1, .only_taker = -1, .only_giver = -1};
	switch (row->kind) {
	case RT_ALL_GATHER: gather(rt, row, f, p); break;
	case RT_REDUCE_SCATTER: reduce_scatter(rt, row, f, p); break;
	case RT_ALL_REDUCE:
		all_reduce(rt, row, f, rt->grad[row->unit][f], u->flat[f].grad, layout_flat_numel(u->flat[f].numel, 1),
			second, p);
		break;
	case RT_ALL_REDUCE_SHARDS:
		all_reduce(rt, row, f, rt->grad_shard[row->unit][f], layout_update_dtype(u, f, &who),
			layout_range(u, f, &who).n, second, p);
		break;
	case RT_REDUCE: reduce(rt, row, f, second, p); break;
	case RT_BROADCAST: broadcast(rt, row, f, p); break;
	default: ice("%s is no exchange of a unit", collective_name(row->kind));
	}
}

void collective_begin(const Rt *rt, const Collectives *c, const RtCollective *row, int part, Part *p)
{
	collective_describe(rt, c, row, part, p);
	if (p->cast.n)
		chance_cast(rt, &p->cast);
	if (!is_local(p))
		exchange_begin(rt->p->comm, &p->x);
}

int64_t collective_bytes(const Rt *rt, const Collectives *c, const RtCollective *row)
{
	int64_t sum = 0;
	for (int k = 0, n = collective_parts(rt, row); k < n; k++) {
		Part p;
		collective_describe(rt, c, row, k, &p);
		for (int i = 0; i < p.x.n; i++) {
			int64_t begin, bytes;
			range_of(&p, p.x.me, i, &begin, &bytes);
			sum += i == p.x.me ? 0 : bytes;
		}
	}
	return sum;
}

int64_t collective_kept(const Rt *rt, const RtCollective *row, int f, float **to, const float **from)
{
	bool reduces = collective_info[row->kind].act == ACT_REDUCE;
	const LayoutUnit *u = reduces ? unit_of(rt, row) : NULL;
	LayoutRank who = device_rank(rt);
	if (!u || !u->apart || f >= u->n_flats || !u->flat[f].trainable)
		return 0;
	LayoutRange range = layout_range(u, f, &who);
	*to = rt->grad_shard[row->unit][f];
	*from = (const float *)rt->grad[row->unit][f] + range.begin;
	return range.n;
}

void collective_keep(const Rt *rt, const RtCollective *row)
{
	for (int f = 0; f < LAYOUT_MAX_FLATS; f++) {
		float *to;
		const float *from;
		int64_t n = collective_kept(rt, row, f, &to, &from);
		if (n && row->add)
			k_accumulate_f32(to, from, n);
		else if (n)
			k_copy_wide(to, from, n * (int64_t)sizeof(*to));
	}
}

/* ---- moving bytes ---- */

/* Copies start with the next member's, so that ranks do not all read the same memory at once. */
static int64_t copy_piece(const Part *p, int64_t first, int64_t n, const char *const *from)
{
	int64_t foreign = 0;
	for (int k = 1; k <= p->x.n; k++) {
		int i = (p->x.me + k) % p->x.n;
		if (!from[i])
			continue;
		char *to = p->to + (i * p->stride + first) * size_of(p->made);
		if (p->sent == p->made)
			k_copy_wide(to, from[i], n * size_of(p->sent));
		else
			k_cast_wide(to, (KDType)p->made, from[i], (KDType)p->sent, n);
		foreign += i == p->x.me ? 0 : n;
	}
	return foreign;
}

int64_t collective_finish(const Rt *rt, const Part *p, const char **from)
{
	int64_t foreign = 0, size = size_of(p->sent);
	if (is_local(p))
		return 0;
	for (int64_t at = 0, n; (n = exchange_take(rt->p->comm, &p->x, at, INT64_MAX, from)); at += n) {
		int64_t first = at / size, count = n / size;
		if (!p->fold) {
			foreign += copy_piece(p, first, count, from);
			continue;
		}
		k_fold(p->to + first * size_of(p->made), (KDType)p->made, (const void *const *)from,
			(KDType)p->sent, p->x.n, count, p->scale);
		foreign += count * (p->x.n - 1);
	}
	exchange_end(rt->p->comm, &p->x);
	return foreign * size;
}
