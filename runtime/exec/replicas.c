/* runtime/exec/replicas.c: --check-replicas: whether copies of parameters are equal on all ranks, to the bit.
 *
 * Copies at rest (whole units, or shards in several groups) are compared once, at the end; for gathered flats every
 * rank keeps a running hash of all those that it waited for.  Copies that differ are an error that names a unit and two
 * ranks.
 *
 * Each rank sends hashes and every rank compares all of them, so all come to the same result. */
#include <inttypes.h>
#include <string.h>

#include "runtime/exec/private.h"

uint64_t replicas_hash(uint64_t h, const void *p, int64_t bytes)
{
	const char *at = p;
	for (int64_t i = 0; i < bytes; i += (int64_t)sizeof(h)) {
		uint64_t word = 0;
		memcpy(&word, at + i, (size_t)MIN(bytes - i, (int64_t)sizeof(h)));
		h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
		h ^= h >> 32;
	}
	return h;
}

/* The hash of a range of an arena. */
static uint64_t hash_elements(const Rt *rt, uint64_t h, void *at, int64_t n, DType dtype)
{
	Slice all = {.n = n, .at = at, .dtype = dtype, .rounded = dtype};
	for (Slice piece = slice_begin(&all); slice_next(rt, &all, &piece, DEVICE_READ);)
		h = replicas_hash(h, piece.at, piece.n * dtype_info[dtype].bytes);
	return h;
}

void replicas_gathered(Rt *rt, const RtCollective *row)
{
	const LayoutUnit *u = &rt->model->layout.unit[row->unit];
	LayoutRank who = device_rank(rt);
	int64_t ranks = layout_split(u->strategy, &who).ranks;
	for (int f = 0; f < u->n_flats; f++)
		if (layout_is_gathered(&u->flat[f], ranks))
			rt->p->gathered_hash = hash_elements(rt, rt->p->gathered_hash, rt->param[row->unit][f],
				layout_flat_numel(u->flat[f].numel, ranks), u->flat[f].param);
}

static uint64_t hash_at_rest(const Rt *rt, int unit)
{
	const LayoutUnit *u = &rt->model->layout.unit[unit];
	LayoutRank who = device_rank(rt);
	uint64_t h = 0;
	for (int f = 0; f < u->n_flats; f++)
		h = hash_elements(rt, h, rt->shard[unit][f], layout_shard_numel(u->flat[f].numel,
			layout_split(u->strategy, &who).ranks), u->flat[f].dtype);
	return h;
}

/* Finds two ranks whose hashes should be equal, because they hold the same shard, and are not; unit -1: all ranks'
 * should be. */
static bool find_different(const Rt *rt, int unit, const uint64_t *hash, int *first, int *second)
{
	LayoutRank who = device_rank(rt);
	for (int b = 0; b < who.world; b++)
		for (int a = 0; a < b; a++) {
			LayoutRank of_a = {a, who.world, who.shard_size}, of_b = {b, who.world, who.shard_size};
			Strategy s = unit < 0 ? STRATEGY_NO_SHARD : rt->model->layout.unit[unit].strategy;
			if (hash[a] == hash[b] || layout_split(s, &of_a).index != layout_split(s, &of_b).index)
				continue;
			*first = a;
			*second = b;
			return true;
		}
	return false;
}

static bool compare(const Rt *rt, int unit, uint64_t mine, Arena *a, Diag *d)
{
	int first, second;
	uint64_t *all = NEW_N(a, uint64_t, rt->p->world.size);
	comm_all(rt->p->comm, &mine, sizeof(mine), all);
	if (!find_different(rt, unit, all, &first, &second))
		return true;
	if (rt->p->world.rank == 0)
		diag_error(d, "--check-replicas", "%s%s%s: the copies of rank %d and rank %d differ (hashes %016" PRIx64
			" and %016" PRIx64 ")", unit < 0 ? "gathered parameters" : "unit \"",
			unit < 0 ? "" : rt->model->unit_names[unit], unit < 0 ? "" : "\", at rest", first, second, all[first],
			all[second]);
	return false;
}

bool replicas_check(const Rt *rt, Diag *d)
{
	Arena *a = arena_new();
	bool ok = true;
	uint64_t at_rest = 0, one;
	for (int u = 0; rt->p->comm && u < rt->model->layout.n_units; u++) {
		one = hash_at_rest(rt, u);
		ok = compare(rt, u, one, a, d) && ok;
		at_rest = replicas_hash(at_rest, &one, sizeof(one));
	}
	if (rt->p->comm)
		ok = compare(rt, -1, rt->p->gathered_hash, a, d) && ok;
	if (ok && rt->p->world.rank == 0)
		printf("copies of parameters are equal on %d rank(s): gathered %016" PRIx64 ", at rest on rank 0 %016" PRIx64
			"\n", MAX(rt->p->world.size, 1), rt->p->gathered_hash, at_rest);
	arena_free(a);
	return ok;
}
