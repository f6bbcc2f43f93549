/* runtime/store/full.c: whole parameters and buffers outside a step, to read and to change, whichever strategy shards
 * them.
 *
 * The copies lie in memory of their own, in the type that the tensor is trained in (that of the f32 master where there
 * is one). Closing with write-back puts back the elements that this rank holds; where several ranks hold the same
 * elements, all must have written the same bytes, which is checked before anything is put back.  The caller (lib.c)
 * checks the order of calls.
 *
 * For each piece of a tensor every rank puts the elements that it holds into the staging memory, and the others of its
 * group take them from there. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/store/store.h"

struct FullParams {
	Arena *a;
	char *map;          /* all copies; NULL: none on this rank */
	int64_t bytes;
	char **at;          /* [tensor]: NULL where there is no copy, or none on this rank */
	bool rank0, writeback;
};

static bool is_shown(const RtTensor *t)
{
	return t->kind == RT_PARAM || t->kind == RT_BUFFER;
}

/* ---- gathering ---- */

/* Elements [first, first + n) of a tensor; me: this rank. */
typedef struct Piece { const RtModel *m; LayoutRank me; const RtTensor *t; int64_t first, n; bool rank0; } Piece;

/* Another rank of the same run. */
static LayoutRank rank_of(LayoutRank who, int rank)
{
	who.rank = rank;
	return who;
}

static const LayoutUnit *unit_of(const RtModel *m, const RtTensor *t)
{
	return &m->layout.unit[t->unit];
}

/* Whether only the owner of the tensor has its trained values, the master. */
static bool has_master(const RtModel *m, const RtTensor *t)
{
	return t->kind == RT_PARAM && t->trainable && unit_of(m, t)->flat[t->flat].master;
}

/* The trained values that this rank holds: those of the master, or of the parameter. */
static Slice trained(const Rt *rt, const RtTensor *t)
{
	return has_master(rt->model, t) ? slice_master(rt, t) : slice_at_rest(rt, t);
}

static LayoutRange trained_of_rank(const RtModel *m, const RtTensor *t, const LayoutRank *who)
{
	LayoutRange all = {0, tensor_numel(t)};
	if (!has_master(m, t))
		return slice_of_rank(m, t, false, who);
	return layout_range(unit_of(m, t), t->flat, who).n ? all : (LayoutRange){0, 0};
}

/* The elements of the piece that a rank holds. */
static LayoutRange held(const Piece *p, int rank)
{
	LayoutRank who = rank_of(p->me, rank);
	LayoutRange all = trained_of_rank(p->m, p->t, &who);
	int64_t begin = MAX(all.begin, p->first), end = MIN(all.begin + all.n, p->first + p->n);
	return end > begin ? (LayoutRange){begin, end - begin} : (LayoutRange){p->first, 0};
}

/* The group of ranks that together hold the tensor. */
static int64_t group_of(const Piece *p, int rank)
{
	LayoutRank who = rank_of(p->me, rank);
	return has_master(p->m, p->t) ? 0 : layout_split(unit_of(p->m, p->t)->strategy, &who).group;
}

/* Shards begin at multiples of 64 elements, so only the end needs rounding. */
static void full_range(const void *context, int taker, int giver, int64_t *begin, int64_t *bytes)
{
	const Piece *p = context;
	int size = dtype_info[p->t->dtype].bytes;
	LayoutRange r = held(p, giver);
	bool none = taker == giver || (p->rank0 && taker != 0) || group_of(p, taker) != group_of(p, giver);
	*begin = (r.begin - p->first) * size;
	*bytes = none ? 0 : round_up(r.n * size, 4);
}

static void gather_piece(const Piece *p, Comm *comm, const Staging *s, const Slice *mine, char *out)
{
	int size = dtype_info[p->t->dtype].bytes, me = (int)p->me.rank, ranks = (int)p->me.world;
	LayoutRange own = held(p, me);
	Exchange x = {.channel = RT_STREAM_SYNC, .ranks = s->ranks, .n = ranks, .me = me, .source = s->at,
		.range = full_range, .context = p};
	if (own.n)
		slice_convert(s->at + (own.begin - p->first) * size, p->t->dtype, p->t->dtype,
			mine->at + (own.begin - mine->first) * dtype_info[mine->dtype].bytes, mine->dtype, own.n);
	exchange_begin(comm, &x);
	for (int64_t at = 0, n; (n = exchange_take(comm, &x, at, INT64_MAX, s->from)); at += n)
		for (int i = 0; i < ranks; i++) {
			LayoutRange r = held(p, i);
			if (s->from[i] && at < r.n * size)
				memcpy(out + r.begin * size + at, s->from[i], (size_t)MIN(n, r.n * size - at));
		}
	exchange_end(comm, &x);
}

/* Whether some rank holds only a part: then all ranks take part in gathering the tensor. */
static bool is_split(const RtModel *m, const RtTensor *t, const LayoutRank *who)
{
	return t->kind == RT_PARAM && who->world > 1 &&
		(has_master(m, t) || layout_split(unit_of(m, t)->strategy, who).ranks > 1);
}

/* Brings a tensor's elements to its copy, `at`; NULL: this rank only takes part. */
static void fill_tensor(const Rt *rt, const FullParams *full, const RtTensor *t, char *at, const Staging *s)
{
	int64_t size = dtype_info[t->dtype].bytes, numel = tensor_numel(t);
	LayoutRank me = device_rank(rt);
	Slice mine = trained(rt, t);
	if (at && mine.n)
		slice_convert(at + mine.first * size, t->dtype, t->dtype, mine.at, mine.dtype, mine.n);
	if (!is_split(rt->model, t, &me))
		return;
	int64_t most = s->bytes / size / LAYOUT_ALIGN * LAYOUT_ALIGN;
	for (int64_t first = 0; first < numel; first += most) {
		Piece p = {rt->model, me, t, first, MIN(most, numel - first), full->rank0};
		gather_piece(&p, rt->p->comm, s, &mine, at);
		agree_alive(rt->p->control);
	}
}

static int64_t bytes_of(const RtModel *m)
{
	int64_t sum = 0;
	for (int i = 0; i < m->n_tensors; i++)
		if (is_shown(&m->tensors[i]))
			sum += round_up(MAX(tensor_bytes(&m->tensors[i]), 1), LAYOUT_ALIGN);
	return sum;
}

static bool map_copies(FullParams *full, Diag *d)
{
	void *p = mmap(NULL, (size_t)MAX(full->bytes, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	full->map = p == MAP_FAILED ? NULL : p;
	if (!full->map)
		diag_error(d, "full parameters", "%" PRId64 " bytes for copies of all of them cannot be mapped: %s",
			full->bytes, strerror(errno));
	return full->map;
}

static void free_copies(FullParams *full)
{
	if (full->map)
		munmap(full->map, (size_t)MAX(full->bytes, 1));
	arena_free(full->a);
}

FullParams *full_begin(const Rt *rt, bool writeback, bool rank0, Diag *d)
{
	Arena *a = arena_new();
	FullParams *full = NEW(a, FullParams);
	*full = (FullParams){.a = a, .at = NEW_N(a, char *, rt->model->n_tensors + 1), .rank0 = rank0,
		.writeback = writeback, .bytes = bytes_of(rt->model)};
	Held later;
	Diag *own = agree_begin(&later, d);
	if (!agree_end(rt, &later, (rank0 && rt->p->world.rank > 0) || map_copies(full, own), d)) {
		free_copies(full);
		return NULL;
	}
	Staging s = {0};
	if (rt->p->comm)
		s = staging_find(rt, a);
	char *at = full->map;
	for (int i = 0; i < rt->model->n_tensors; i++) {
		const RtTensor *t = &rt->model->tensors[i];
		full->at[i] = is_shown(t) ? at : NULL;
		if (is_shown(t))
			fill_tensor(rt, full, t, at, &s);
		at += at && is_shown(t) ? round_up(MAX(tensor_bytes(t), 1), LAYOUT_ALIGN) : 0;
	}
	return full;
}

char *full_at(const FullParams *full, int tensor)
{
	return full->at[tensor];
}

/* ---- putting back ---- */

/* One hash of all elements that this rank holds.  Ranks with equal shard numbers hold the same elements. */
static uint64_t hash_of_held(const Rt *rt, const FullParams *full, int i)
{
	const RtTensor *t = &rt->model->tensors[i];
	Slice mine = slice_at_rest(rt, t);
	int64_t size = dtype_info[t->dtype].bytes;
	return mine.n ? hash_bytes(full->at[i] + mine.first * size, (size_t)(mine.n * size), 1) : 0;
}

/* Whether two ranks hold the same elements of a parameter: because they have the same place in two groups, or because
 * all ranks hold them. */
static bool hold_the_same(Strategy s, LayoutRank me, LayoutRank other)
{
	return layout_split(s, &me).index == layout_split(s, &other).index;
}

/* The first parameter that ranks wrote differently; NULL if there is none.  The result is equal on all ranks. */
static const RtTensor *find_difference(const Rt *rt, const FullParams *full, int *rank)
{
	const World *w = &rt->p->world;
	LayoutRank me = device_rank(rt);
	const RtTensor *found = NULL;
	uint64_t *all = NEW_N(full->a, uint64_t, w->size);
	for (int i = 0; i < rt->model->n_tensors && rt->p->comm; i++) {
		const RtTensor *t = &rt->model->tensors[i];
		if (t->kind != RT_PARAM)
			continue;
		uint64_t mine = hash_of_held(rt, full, i);
		comm_all(rt->p->comm, &mine, sizeof(mine), all);
		double different = 0;
		for (int r = 0; r < w->size; r++)
			if (all[r] != mine && hold_the_same(unit_of(rt->model, t)->strategy, me, rank_of(me, r))) {
				*rank = different == 0 ? r : *rank;
				different = 1;
			}
		comm_sum(rt->p->comm, &different, 1);
		found = !found && different > 0 ? t : found;
	}
	return found;
}

bool full_end(const Rt *rt, FullParams *full, bool put, Diag *d)
{
	int rank = -1;
	put = put && full->writeback;
	const RtTensor *bad = put ? find_difference(rt, full, &rank) : NULL;
	for (int i = 0; i < rt->model->n_tensors && put && !bad; i++) {
		const RtTensor *t = &rt->model->tensors[i];
		if (!is_shown(t))
			continue;
		Slice mine = slice_at_rest(rt, t), master = slice_master(rt, t);
		slice_store(rt, &mine, 0, tensor_numel(t), full->at[i], t->dtype);
		slice_store(rt, &master, 0, tensor_numel(t), full->at[i], t->dtype);
	}
	if (bad)
		diag_error(d, bad->name, "several ranks hold the same elements of this parameter and have written different "
			"ones; nothing was put back");
	if (bad && rank >= 0)
		diag_note(d, bad->name, "rank %d has others than rank %d", rt->p->world.rank, rank);
	free_copies(full);
	return !bad;
}
