/* base/layout.c: the places and the sizes of all memory that depends on the number of ranks.
 *
 * A place is found by walking the units in order and adding up sizes; the size of an arena is where that walk ends.
 * `shardc plan`, which wants only sizes, therefore agrees with the runtime, which wants the places.
 *
 * What peers read (parameters at rest, flat gradients, gathered flats, what is sent) lies at the same offset on every
 * rank. */
#include "base/layout.h"

#include "base/collectives.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const StrategyInfo strategy_info[STRATEGY_COUNT] = {
#define STRATEGY(id, text, group, kept, reduce, owned, doc) {text, GROUP_##group, kept, REDUCE_##reduce, owned, doc},
#include "base/strategies.def"
};

/* Memory that ranks talk through: a page of counters; and between hosts, for each stream, staging memory for two pieces
 * from each rank on another host.  A piece is half a STAGE.  It is smaller when there are so many ranks that a stream
 * would need more than STAGE_MOST, but at least half a STAGE_LEAST. */
enum { COMM_PAGE = 4096, STAGE = 1 << 20, STAGE_LEAST = 1 << 13, STAGE_MOST = 1 << 26 };

bool strategy_from_text(const char *text, Strategy *out)
{
	for (int i = 0; i < STRATEGY_COUNT; i++) {
		if (!strcmp(strategy_info[i].text, text)) {
			*out = (Strategy)i;
			return true;
		}
	}
	return false;
}

const char *const offload_text[] = {"none", "optim", "params"};

bool offload_from_text(const char *text, LayoutOffload *out)
{
	for (int i = 0; i < COUNT_OF(offload_text); i++) {
		if (!strcmp(offload_text[i], text)) {
			*out = (LayoutOffload)i;
			return true;
		}
	}
	return false;
}

/* ---- shards ---- */

LayoutSplit layout_split(Strategy s, const LayoutRank *who)
{
	StrategyGroup group = strategy_info[s].group;
	int64_t ranks = group == GROUP_WORLD ? who->world : group == GROUP_SHARD ? who->shard_size : 1;
	return (LayoutSplit){ranks, who->rank % ranks, who->rank / ranks, who->world / ranks};
}

static bool has_owner(const LayoutUnit *u)
{
	return strategy_info[u->strategy].owned;
}

LayoutRange layout_range(const LayoutUnit *u, int flat, const LayoutRank *who)
{
	LayoutSplit split = layout_split(u->strategy, who);
	int64_t n = layout_shard_numel(u->flat[flat].numel, split.ranks);
	if (has_owner(u) && u->owner != who->rank)
		return (LayoutRange){0, 0};
	return (LayoutRange){split.index * n, n};
}

bool layout_counts(const LayoutUnit *u, const LayoutRank *who)
{
	return has_owner(u) ? u->owner == who->rank : layout_split(u->strategy, who).group == 0;
}

LayoutRange layout_saved(const LayoutUnit *u, int flat, const LayoutRank *who)
{
	LayoutRange r = layout_range(u, flat, who);
	r.n = layout_counts(u, who) ? MAX(MIN(r.n, u->flat[flat].numel - r.begin), 0) : 0;
	return r;
}

bool layout_grad_stays(const LayoutUnit *u, const LayoutRank *who)
{
	if (u->apart)
		return false;
	if (strategy_info[u->strategy].reduce == REDUCE_TO_OWNER)
		return who->world == 1;
	return layout_split(u->strategy, who).ranks == 1;
}

DType layout_update_dtype(const LayoutUnit *u, int flat, const LayoutRank *who)
{
	return layout_grad_stays(u, who) ? u->flat[flat].grad : u->flat[flat].kept;
}

LayoutRange layout_piece(int64_t n, int64_t members, int64_t me)
{
	int64_t most = layout_shard_numel(n, members), begin = MIN(me * most, n);
	return (LayoutRange){begin, MIN(most, n - begin)};
}

bool layout_offloads(const LayoutModel *m)
{
	bool any = false;
	for (int i = 0; i < m->n_units; i++)
		any = any || m->unit[i].offload != LAYOUT_OFFLOAD_NONE;
	return any;
}

/* ---- the walk ---- */

/* One walk over the units.  places are filled if they are not NULL; else only sizes are computed. */
typedef struct Walk {
	const LayoutModel *m;
	const LayoutRank *who;
	LayoutPlaces *places;
	int64_t *slot, *grad_slot; /* first the sizes, then the offsets */
} Walk;

/* Where the next bytes of a category go: in memory, or, of units that are offloaded, in its section of the file. */
typedef struct Ends { int64_t memory, file; } Ends;

static int64_t *end_of(Ends *e, bool away)
{
	return away ? &e->file : &e->memory;
}

static int64_t flat_bytes(const LayoutFlat *f, int64_t ranks, DType dtype)
{
	return layout_flat_numel(f->numel, ranks) * dtype_info[dtype].bytes;
}

int64_t layout_in_slot(const LayoutUnit *u, int flat, int64_t ranks)
{
	int64_t sum = 0;
	for (int f = 0; f < flat; f++)
		if (layout_is_gathered(&u->flat[f], ranks))
			sum += flat_bytes(&u->flat[f], ranks, u->flat[f].param);
	return sum;
}

static int64_t gathered_bytes(const LayoutUnit *u, int64_t ranks)
{
	return layout_in_slot(u, u->n_flats, ranks);
}

int64_t layout_grad_bytes(const LayoutUnit *u, int64_t ranks)
{
	int64_t sum = 0;
	for (int f = 0; f < u->n_flats; f++)
		sum += u->flat[f].trainable ? flat_bytes(&u->flat[f], ranks, u->flat[f].grad) : 0;
	return sum;
}

/* The number of elements of a flat that are sent from a copy in another dtype: of its gradient, or of what its owner
 * broadcasts.  A single rank sends nothing. */
static int64_t copied(const LayoutUnit *u, int flat, bool broadcast, const LayoutRank *who)
{
	const LayoutFlat *f = &u->flat[flat];
	LayoutSplit split = layout_split(u->strategy, who);
	if (who->world == 1 || !f->trainable)
		return 0;
	if (broadcast)
		return has_owner(u) && f->bcast != f->dtype ? layout_flat_numel(f->numel, 1) : 0;
	if (f->reduce != f->grad)
		return layout_flat_numel(f->numel, split.ranks);
	bool across = strategy_info[u->strategy].group == GROUP_SHARD && split.groups > 1;
	return across && f->reduce != layout_update_dtype(u, flat, who) ? layout_shard_numel(f->numel, split.ranks) : 0;
}

/* Turns n sizes into offsets that begin at `at`; returns the end. */
static int64_t to_offsets(int64_t *size, int n, int64_t at)
{
	for (int i = 0; i < n; i++) {
		int64_t bytes = size[i];
		size[i] = at;
		at += bytes;
	}
	return at;
}

static Ends place_params(const Walk *w)
{
	Ends ends = {0};
	for (int i = 0; i < w->m->n_units; i++) {
		const LayoutUnit *u = &w->m->unit[i];
		int64_t ranks = layout_split(u->strategy, w->who).ranks, *at = end_of(&ends, layout_params_away(u));
		for (int f = 0; f < u->n_flats; f++) {
			if (w->places)
				w->places->param[i][f] = *at;
			*at += layout_shard_numel(u->flat[f].numel, ranks) * dtype_info[u->flat[f].dtype].bytes;
		}
	}
	return ends;
}

static int64_t place_gathered(const Walk *w)
{
	const LayoutModel *m = w->m;
	memset(w->slot, 0, sizeof(*w->slot) * (size_t)m->n_slots);
	for (int i = 0; i < m->n_gathers; i++) {
		const LayoutUnit *u = &m->unit[m->gather[i].unit];
		int64_t ranks = layout_split(u->strategy, w->who).ranks;
		w->slot[m->gather[i].slot] = MAX(w->slot[m->gather[i].slot], gathered_bytes(u, ranks));
	}
	int64_t at = to_offsets(w->slot, m->n_slots, 0);
	for (int i = 0; i < m->n_units; i++) {
		const LayoutUnit *u = &m->unit[i];
		int64_t ranks = layout_split(u->strategy, w->who).ranks;
		if (!u->own_region)
			continue;
		for (int f = 0; w->places && f < u->n_flats; f++)
			if (layout_is_gathered(&u->flat[f], ranks))
				w->places->own[i][f] = at + layout_in_slot(u, f, ranks);
		at += gathered_bytes(u, ranks);
	}
	return at;
}

static bool grads_away(const Walk *w, const LayoutUnit *u)
{
	return layout_grads_away(u, w->m->cuda.on);
}

/* Whether the unit's slot holds its gradients until they are updated. */
static bool is_brief(const Walk *w, const LayoutUnit *u)
{
	return w->m->brief && u->grad_slot >= 0 && !grads_away(w, u);
}

static bool in_slot(const Walk *w, const LayoutUnit *u)
{
	return u->grad_slot >= 0 && (is_brief(w, u) || !layout_grad_stays(u, w->who));
}

bool layout_grad_may_lie_over_acts(const LayoutModel *m, const LayoutUnit *u, const LayoutRank *who)
{
	const Walk w = {.m = m, .who = who};
	return who->world == 1 && layout_grad_stays(u, who) && !in_slot(&w, u) && !grads_away(&w, u);
}

bool layout_grad_over_acts(const LayoutModel *m, const LayoutUnit *u, const LayoutRank *who)
{
	return u->acts_free && layout_grad_may_lie_over_acts(m, u, who);
}

/* Places a unit's flat gradient from `at` on; returns its end. */
static int64_t place_flats(const Walk *w, int unit, int64_t at)
{
	const LayoutUnit *u = &w->m->unit[unit];
	for (int f = 0; f < u->n_flats; f++) {
		if (!u->flat[f].trainable)
			continue;
		if (w->places)
			w->places->grad[unit][f] = at;
		at += flat_bytes(&u->flat[f], layout_split(u->strategy, w->who).ranks, u->flat[f].grad);
	}
	return at;
}

typedef struct Above { int64_t begin; int unit; } Above;

static int compare_above(const void *pa, const void *pb)
{
	const Above *a = pa, *b = pb;
	return a->begin != b->begin ? (a->begin > b->begin) - (a->begin < b->begin) : a->unit - b->unit;
}

/* Stacks flat gradients in the arena of activations: each lies above all that is in use from its beginning on, and
 * above those that are begun later, which have more room below.  Returns the bytes that the arena has to be longer
 * by. */
static int64_t place_over_acts(const Walk *w)
{
	const LayoutModel *m = w->m;
	Arena *a = arena_new();
	Above *unit = NEW_N(a, Above, m->n_units);
	int n = 0;
	int64_t end = 0;
	for (int i = 0; i < m->n_units; i++)
		if (layout_grad_over_acts(m, &m->unit[i], w->who))
			unit[n++] = (Above){m->act_bytes - m->unit[i].acts_free, i};
	if (n)
		qsort(unit, (size_t)n, sizeof(*unit), compare_above);
	for (int i = 0; i < n; i++)
		end = place_flats(w, unit[i].unit, MAX(end, unit[i].begin));
	arena_free(a);
	return MAX(end - m->act_bytes, 0);
}

/* Places the other flat gradients: first the shared slots, then regions of their own.  Gradients that are reduced in
 * place may lie in the file. */
static Ends place_flat_grads(const Walk *w)
{
	const LayoutModel *m = w->m;
	memset(w->grad_slot, 0, sizeof(*w->grad_slot) * (size_t)m->n_grad_slots);
	for (int i = 0; i < m->n_units; i++) {
		const LayoutUnit *u = &m->unit[i];
		int64_t ranks = layout_split(u->strategy, w->who).ranks;
		if (in_slot(w, u))
			w->grad_slot[u->grad_slot] = MAX(w->grad_slot[u->grad_slot], layout_grad_bytes(u, ranks));
	}
	Ends ends = {.memory = to_offsets(w->grad_slot, m->n_grad_slots, 0)};
	for (int i = 0; i < m->n_units; i++) {
		const LayoutUnit *u = &m->unit[i];
		int64_t shared = in_slot(w, u) ? w->grad_slot[u->grad_slot] : 0;
		bool away = grads_away(w, u) && layout_grad_stays(u, w->who);
		int64_t *at = in_slot(w, u) ? &shared : end_of(&ends, away);
		if (!layout_grad_over_acts(m, u, w->who))
			*at = place_flats(w, i, *at);
	}
	return ends;
}

static int64_t reduced_bytes(const Walk *w, const LayoutUnit *u)
{
	int64_t sum = 0;
	for (int f = 0; f < u->n_flats && !layout_grad_stays(u, w->who); f++)
		sum += u->flat[f].trainable ? layout_range(u, f, w->who).n * dtype_info[u->flat[f].kept].bytes : 0;
	return sum;
}

/* Makes slots, from `at` on, for the reduced shards of units that are updated in backward; returns their end. */
static int64_t place_reduced_slots(const Walk *w, bool owned, int64_t at)
{
	memset(w->grad_slot, 0, sizeof(*w->grad_slot) * (size_t)w->m->n_grad_slots);
	for (int i = 0; i < w->m->n_units; i++) {
		const LayoutUnit *u = &w->m->unit[i];
		if (is_brief(w, u) && has_owner(u) == owned)
			w->grad_slot[u->grad_slot] = MAX(w->grad_slot[u->grad_slot], reduced_bytes(w, u));
	}
	return to_offsets(w->grad_slot, w->m->n_grad_slots, at);
}

/* Places reduced shards: those of units with an owner, or those of the other units. */
static void place_reduced(const Walk *w, bool owned, Ends *ends)
{
	ends->memory = place_reduced_slots(w, owned, ends->memory);
	for (int i = 0; i < w->m->n_units; i++) {
		const LayoutUnit *u = &w->m->unit[i];
		bool stays = layout_grad_stays(u, w->who);
		int64_t shared = is_brief(w, u) ? w->grad_slot[u->grad_slot] : 0;
		int64_t *at = is_brief(w, u) ? &shared : end_of(ends, grads_away(w, u));
		for (int f = 0; f < u->n_flats; f++) {
			int64_t n = layout_range(u, f, w->who).n;
			if (!u->flat[f].trainable || has_owner(u) != owned)
				continue;
			if (w->places)
				w->places->grad_shard[i][f] = stays ? w->places->grad[i][f] : n ? *at : -1;
			*at += stays ? 0 : n * dtype_info[u->flat[f].kept].bytes;
		}
	}
}

/* Shards that only their owner has are placed last: peers read the others (hybrid_shard), so these need equal
 * offsets. */
static Ends place_grads(const Walk *w)
{
	Ends ends = place_flat_grads(w);
	place_reduced(w, false, &ends);
	place_reduced(w, true, &ends);
	return ends;
}

static int64_t largest_flat(const LayoutUnit *u, int64_t ranks)
{
	int64_t most = 0;
	for (int f = 0; f < u->n_flats; f++)
		most = MAX(most, u->flat[f].trainable ? layout_flat_numel(u->flat[f].numel, ranks) : 0);
	return most;
}

/* Places the copies that are sent: of the gradients, or of the broadcasts, of one unit at a time.  Collectives of a
 * stream run one after the other, so the bytes of the largest unit serve all. */
static int64_t place_copies(const Walk *w, bool broadcast, int64_t begin)
{
	int64_t most = 0;
	for (int i = 0; i < w->m->n_units; i++) {
		const LayoutUnit *u = &w->m->unit[i];
		int64_t at = begin;
		for (int f = 0; f < u->n_flats; f++) {
			int64_t n = copied(u, f, broadcast, w->who);
			if (w->places && n)
				(broadcast ? w->places->bcast : w->places->send)[i][f] = at;
			at += n * dtype_info[broadcast ? u->flat[f].bcast : u->flat[f].reduce].bytes;
		}
		most = MAX(most, at - begin);
	}
	return begin + most;
}

/* Places a hook's scratch memory for the largest flat, then what the hook keeps of each flat. */
static int64_t place_hook(const Walk *w, int64_t begin)
{
	int64_t most = 0;
	for (int i = 0; i < w->m->n_units; i++)
		most = MAX(most, largest_flat(&w->m->unit[i], layout_split(w->m->unit[i].strategy, w->who).ranks));
	if (w->places)
		w->places->hook_send = begin;
	int64_t at = begin + most * w->m->hook_send;
	for (int i = 0; i < w->m->n_units; i++) {
		const LayoutUnit *u = &w->m->unit[i];
		for (int f = 0; f < u->n_flats; f++) {
			if (!u->flat[f].trainable)
				continue;
			if (w->places)
				w->places->hook_keep[i][f] = at;
			at += layout_flat_numel(u->flat[f].numel, layout_split(u->strategy, w->who).ranks) * w->m->hook_keep;
		}
	}
	return at;
}

static int64_t place_send(const Walk *w)
{
	return place_hook(w, place_copies(w, true, place_copies(w, false, 0)));
}

/* Places one f32 number for every element that this rank updates: a state of the optimizer, or the master copy. */
static void place_state(const Walk *w, bool masters, LayoutOffsets *offset, Ends *ends)
{
	for (int i = 0; i < w->m->n_units; i++) {
		const LayoutUnit *u = &w->m->unit[i];
		int64_t *at = end_of(ends, layout_states_away(u));
		for (int f = 0; f < u->n_flats; f++) {
			bool has = u->flat[f].trainable && (!masters || u->flat[f].master);
			int64_t n = has ? layout_range(u, f, w->who).n : 0;
			if (offset)
				offset[i][f] = n ? *at : -1;
			*at += n * dtype_info[DT_F32].bytes;
		}
	}
}

static Ends place_states(const Walk *w)
{
	Ends ends = {0};
	for (int k = 0; k < w->m->n_states; k++)
		place_state(w, false, w->places ? w->places->state[k] : NULL, &ends);
	place_state(w, true, w->places ? w->places->master : NULL, &ends);
	return ends;
}

/* ---- GPUs ---- */

LayoutTables layout_tables(const LayoutModel *m, int64_t world)
{
	return (LayoutTables){.segments = round_up(2 * m->cuda.n_segments * LAYOUT_CUDA_SEGMENT, LAYOUT_ALIGN),
		.groups = round_up(2 * (m->cuda.n_groups + 1) * LAYOUT_CUDA_GROUP, LAYOUT_ALIGN),
		.state = LAYOUT_CUDA_STATE + round_up(world * LAYOUT_SCALARS * (int64_t)sizeof(double), LAYOUT_ALIGN),
		.norm = round_up((LAYOUT_CUDA_CHUNKS + m->cuda.n_segments) * (int64_t)sizeof(double), LAYOUT_ALIGN),
		.input = round_up(m->input_bytes, LAYOUT_ALIGN) + LAYOUT_CUDA_INPUT};
}

int64_t layout_cuda_pinned(const LayoutModel *m, int64_t world)
{
	return LAYOUT_CUDA_SLOTS * (layout_tables(m, world).input + LAYOUT_CUDA_OUTCOME) + LAYOUT_CUDA_BAD +
		(m->cuda.staged ? (world + 1) * LAYOUT_CUDA_MESSAGE : 0);
}

/* Whether there are several hosts between which only small messages pass through host memory; the GPUs' communicator
 * carries the rest. */
static bool is_carried(const LayoutModel *m)
{
	return m->hosts > 1 && !m->cuda.staged;
}

int64_t layout_cuda_window(const LayoutModel *m, const LayoutRank *who)
{
	int64_t most = LAYOUT_CUDA_MESSAGE;
	for (int i = 0; i < m->n_units; i++)
		for (int f = 0; f < m->unit[i].n_flats; f++)
			most = MAX(most, flat_bytes(&m->unit[i].flat[f], layout_split(m->unit[i].strategy, who).ranks,
				m->unit[i].flat[f].grad));
	int64_t share = LAYOUT_CUDA_CARRIED / who->world / LAYOUT_ALIGN * LAYOUT_ALIGN;
	if (is_carried(m))
		most = MIN(most, MAX(share, (int64_t)LAYOUT_CUDA_MESSAGE));
	return who->world == 1 ? 0 : MIN(most, (int64_t)LAYOUT_CUDA_WINDOW);
}

/* ---- saves ---- */

int64_t layout_snapshot_bytes(const LayoutModel *m, const LayoutRank *who)
{
	int64_t sum = (who->rank == 0) * m->saved_bytes + (who->world > 1 && m->average_bytes) * m->saved_bytes;
	for (int i = 0; i < m->n_units; i++)
		for (int f = 0; f < m->unit[i].n_flats; f++) {
			const LayoutFlat *flat = &m->unit[i].flat[f];
			int64_t f32 = dtype_info[DT_F32].bytes, size = dtype_info[flat->dtype].bytes;
			int64_t each = flat->trainable ? MAX(size, f32) + m->n_states * f32 : size;
			sum += layout_saved(&m->unit[i], f, who).n * each;
		}
	return sum;
}

/* Turns the bytes computed for a CPU into those of a device and its host. */
static void move_to_device(LayoutMemory *sum, const LayoutModel *m, const LayoutRank *who)
{
	LayoutTables t = layout_tables(m, who->world);
	int64_t mirrors = m->cuda.staged ? sum->params + sum->gathered + sum->send + sum->grads : 0;
	sum->tables = t.segments + t.groups + t.state + t.norm + t.input;
	sum->host.params = sum->file.params;
	sum->host.states = sum->file.states;
	sum->host.activations = m->host_bytes;
	sum->file = (struct LayoutFile){0};
	sum->host.pinned = layout_cuda_pinned(m, who->world);
	sum->host.comm = layout_comm_bytes(who->world, is_carried(m) ? 1 : m->hosts) + mirrors +
		layout_cuda_window(m, who) * (is_carried(m) ? who->world + 1 : 1);
	sum->host.snapshot = sum->snapshot;
	sum->snapshot = 0;
	sum->host.total = sum->host.params + sum->host.states + sum->host.activations + sum->host.pinned + sum->host.comm
		+ sum->host.snapshot;
	sum->comm = (who->world + 1) * layout_sync_bytes(m, who->world);
}

/* ---- results ---- */

static LayoutMemory measure(const Walk *w)
{
	const LayoutModel *m = w->m;
	bool alone = w->who->world == 1;
	int64_t behind = place_over_acts(w); /* before place_grads, which wants to know where flat gradients are */
	Ends params = place_params(w), grads = place_grads(w), states = place_states(w);
	LayoutMemory sum = {.params = params.memory, .gathered = place_gathered(w),
		.grads = grads.memory + behind, .grads_behind = behind, .send = place_send(w), .states = states.memory,
		.buffers = m->state_bytes + (alone ? 0 : m->average_bytes), .inputs = m->input_bytes,
		.activations = m->act_bytes, .workspace = m->work_bytes,
		.comm = layout_comm_bytes(w->who->world, m->hosts) + layout_sync_bytes(m, w->who->world),
		.snapshot = m->snapshot ? layout_snapshot_bytes(m, w->who) : 0,
		.file = {params.file, grads.file, states.file, 0}};
	sum.file.total = sum.file.params + sum.file.grads + sum.file.states;
	if (m->cuda.on)
		move_to_device(&sum, m, w->who);
	sum.total = sum.params + sum.gathered + sum.grads + sum.send + sum.states + sum.buffers + sum.inputs
		+ sum.activations + sum.workspace + sum.comm + sum.tables + sum.snapshot;
	return sum;
}

int64_t layout_comm_bytes(int64_t world, int64_t hosts)
{
	if (world == 1)
		return 0;
	int64_t elsewhere = hosts > 1 ? world - world / hosts : 0;
	return COMM_PAGE + RT_STREAMS * MAX(MIN(elsewhere * STAGE, STAGE_MOST), elsewhere * STAGE_LEAST);
}

int64_t layout_sync_bytes(const LayoutModel *m, int64_t world)
{
	return world == 1 ? 0 : round_up(m->sync_bytes, LAYOUT_ALIGN);
}

LayoutMemory layout_memory(const LayoutModel *m, const LayoutRank *who)
{
	Arena *a = arena_new();
	Walk w = {m, who, NULL, NEW_N(a, int64_t, m->n_slots + 1), NEW_N(a, int64_t, m->n_grad_slots + 1)};
	LayoutMemory sum = measure(&w);
	arena_free(a);
	return sum;
}

/* Appends to a list of units another one: lists have numbers, 0 is the empty one, and units that need the same memory
 * are the same unit here.  Returns the number of the longer list. */
static int longer_list(Map *lists, int list, const LayoutUnit *u)
{
	Buf key = {0};
	buf_printf(&key, "%d %d %d %d %d %d", list, u->strategy, u->grad_slot, u->own_region, u->apart, u->offload);
	for (int i = 0; i < u->n_flats; i++) {
		const LayoutFlat *f = &u->flat[i];
		buf_printf(&key, ", %" PRId64 " %d %d %d %d %d %d %d %d %d", f->numel, f->dtype, f->trainable, f->param,
			f->grad, f->reduce, f->kept, f->bcast, f->master, f->away);
	}
	if (map_add(lists, key.at))
		map_put(lists, key.at, (void *)(intptr_t)map_count(lists));
	list = (int)(intptr_t)map_get(lists, key.at);
	buf_free(&key);
	return list;
}

/* Ranks that own units of the same sizes in the same order need the same, so the first of them is measured. */
int64_t layout_rank_most(const LayoutModel *m, const LayoutRank *who)
{
	LayoutRank r = {0, who->world, who->shard_size};
	int64_t most = -1, at = 0, ends = 0; /* all ranks from ends on own nothing */
	for (int i = 0; i < m->n_units; i++)
		if (has_owner(&m->unit[i]))
			ends = MAX(ends, m->unit[i].owner + 1);
	ends = MIN(ends + 1, who->world);
	Arena *a = arena_new();
	Map *lists = map_new(a);
	int *owns = NEW_N(a, int, ends); /* rank -> number of the list of units that it owns */
	for (int i = 0; i < m->n_units; i++)
		if (has_owner(&m->unit[i]) && m->unit[i].owner >= 0 && m->unit[i].owner < ends)
			owns[m->unit[i].owner] = longer_list(lists, owns[m->unit[i].owner], &m->unit[i]);
	bool *measured = NEW_N(a, bool, map_count(lists) + 1);
	for (; r.rank < ends; r.rank++) {
		if (measured[owns[r.rank]])
			continue;
		measured[owns[r.rank]] = true;
		int64_t total = layout_memory(m, &r).total;
		at = total > most ? r.rank : at;
		most = MAX(total, most);
	}
	arena_free(a);
	return at;
}

LayoutMemory layout_memory_most(const LayoutModel *m, const LayoutRank *who)
{
	return layout_memory(m, &(LayoutRank){layout_rank_most(m, who), who->world, who->shard_size});
}

static LayoutOffsets *no_offsets(Arena *a, int n)
{
	LayoutOffsets *o = arena_alloc(a, sizeof(*o) * (size_t)MAX(n, 1));
	memset(o, -1, sizeof(*o) * (size_t)n);
	return o;
}

LayoutPlaces layout_places(const LayoutModel *m, const LayoutRank *who, Arena *a)
{
	int n = m->n_units;
	LayoutPlaces p = {.param = no_offsets(a, n), .own = no_offsets(a, n), .grad = no_offsets(a, n),
		.grad_shard = no_offsets(a, n), .state = {no_offsets(a, n), no_offsets(a, n)},
		.master = no_offsets(a, n), .send = no_offsets(a, n), .bcast = no_offsets(a, n), .hook_keep = no_offsets(a, n),
		.slot = NEW_N(a, int64_t, m->n_slots + 1)};
	Walk w = {m, who, &p, p.slot, NEW_N(a, int64_t, m->n_grad_slots + 1)};
	measure(&w);
	return p;
}
