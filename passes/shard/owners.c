/* passes/shard/owners.c: decides which rank owns which parameter, and makes the units that follow from it (rules
 * O10 to S24 of docs/compatibility.md).
 *
 * Each rank has a load.  Parameters are visited in the order of registration (of symbols); each goes to the rank
 * with the smallest load, the lowest rank among equals, and adds its number of elements when it is trained, 1 when
 * it is frozen (O10, O11).  A group is split into one group per owner, sorted by ascending number of elements,
 * stable (O13).  With sharded_ddp, of the trained parameters of one owner in a group, small ones share a bucket
 * while it holds strictly less than min(2^23, trained elements of the model); each other one is a unit of its own
 * (S20).  A bucket into which nothing fits is not made (S24).  A frozen parameter stays in its owner's first unit. */
#include "passes/shard/wrap.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKET_MAX = 1 << 23 };

/* The rank with the smallest load, the lowest among equals, after `placed` parameters: they lie on the ranks below
 * `placed`, so the ranks above the next one are as empty as it is and need no look. */
static int least_loaded(const int64_t *load, int world, int placed)
{
	int best = 0;
	for (int r = 1; r < MIN(world, placed + 1); r++)
		if (load[r] < load[best])
			best = r;
	return best;
}

/* Symbol -> owner + 1, of the parameters in the groups. */
static PtrMap *find_owners(const Module *m, const Groups *groups, int world, Arena *a)
{
	PtrMap *managed = ptrmap_new(a), *owner = ptrmap_new(a);
	int64_t *load = NEW_N(a, int64_t, world);
	int placed = 0;
	for (int g = 0; g < groups->n; g++)
		for (int i = 0; i < groups->at[g].params.n; i++)
			ptrmap_put(managed, groups->at[g].params.at[i], owner);
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		if (!ptrmap_get(managed, s))
			continue;
		int to = least_loaded(load, world, placed++);
		load[to] += s->trainable ? type_numel(&s->type) : 1;
		ptrmap_put(owner, s, (void *)(intptr_t)(to + 1));
	}
	return owner;
}

/* Insertion sort, which keeps the order of equal elements. */
static void sort_by_numel(Params *p)
{
	for (int i = 1; i < p->n; i++) {
		Symbol *moved = p->at[i];
		int64_t numel = type_numel(&moved->type);
		int k = i;
		for (; k > 0 && type_numel(&p->at[k - 1]->type) > numel; k--)
			p->at[k] = p->at[k - 1];
		p->at[k] = moved;
	}
}

typedef struct Split {
	Groups *out;
	Strategy strategy;
	int64_t limit;       /* the largest number of elements of a bucket */
	Arena *a;
} Split;

static void add_whole(Split *s, const Group *g, int owner, const char *name, const Params *mine)
{
	Group part = {.name = name, .strategy = g->strategy, .owner = owner, .params = *mine, .said = g->said};
	vec_push(s->a, s->out, part);
}

static void add_buckets(Split *s, const Group *g, int owner, const char *name, const Params *mine)
{
	Params bucket = {0}, direct = {0};
	int64_t fill = 0;
	for (int i = 0; i < mine->n; i++) {
		Symbol *p = mine->at[i];
		int64_t numel = p->trainable ? type_numel(&p->type) : 0;
		bool fits = !p->trainable || fill + numel < s->limit;
		fill += fits ? numel : 0;
		vec_push(s->a, fits ? &bucket : &direct, p);
	}
	if (bucket.n)
		add_whole(s, g, owner, name, &bucket);
	for (int i = 0; i < direct.n; i++) {
		Params one = {0};
		vec_push(s->a, &one, direct.at[i]);
		add_whole(s, g, owner, direct.at[i]->name, &one);
	}
}

/* A parameter of a group, as its owner and its place there. */
typedef struct Owned {
	int owner, at;
} Owned;

static int compare_owned(const void *x, const void *y)
{
	const Owned *a = x, *b = y;
	return a->owner != b->owner ? a->owner - b->owner : a->at - b->at;
}

static void split_group(Split *s, const Group *g, const PtrMap *owner)
{
	int n = g->params.n;
	Owned *owned = NEW_N(s->a, Owned, n);
	for (int i = 0; i < n; i++)
		owned[i] = (Owned){(int)(intptr_t)ptrmap_get(owner, g->params.at[i]) - 1, i};
	qsort(owned, (size_t)n, sizeof(*owned), compare_owned);
	for (int i = 0, end; i < n; i = end) {
		Params mine = {0};
		for (end = i; end < n && owned[end].owner == owned[i].owner; end++)
			vec_push(s->a, &mine, g->params.at[owned[end].at]);
		const char *name = end - i == n ? g->name : arena_printf(s->a, "%s:%d", g->name, owned[i].owner);
		sort_by_numel(&mine);
		(s->strategy == STRATEGY_SHARDED_DDP ? add_buckets : add_whole)(s, g, owned[i].owner, name, &mine);
	}
}

void owners_split(const Module *m, Groups *groups, Strategy strategy, int world, Arena *a)
{
	Groups out = {0};
	Split s = {.out = &out, .strategy = strategy, .a = a};
	PtrMap *owner = find_owners(m, groups, world, a);
	for (int g = 0; g < groups->n; g++)
		for (int i = 0; i < groups->at[g].params.n; i++)
			if (groups->at[g].params.at[i]->trainable)
				s.limit += type_numel(&groups->at[g].params.at[i]->type);
	s.limit = MIN(s.limit, BUCKET_MAX);
	for (int g = 0; g < groups->n; g++)
		split_group(&s, &groups->at[g], owner);
	*groups = out;
}
