/* runtime/exec/cuda/nccl/nccl.c: the back end for NCCL, with a GPU for every rank.
 *
 * Each stream has a communicator, so that a gather and a reduction can run at once; for units of hybrid_shard,
 * communicators of the group and across groups are split off.  All flats of a unit are one launch.  What collective.c
 * says about places, casts and members holds here, too.  NCCL computes sums in the dtype that travels, and its mean
 * multiplies each rank's numbers by 1/n before it adds them; see divides_exactly.
 *
 * A single rank posts the same calls to communicators of one rank, each flat in place, which changes no bit, so that
 * one GPU can test calls, captures and registered memory; NCCL connects nothing there.  The plan of one rank has no
 * copies to send, and room only for the step's small messages.
 *
 * NCCL allocates the memory that collectives read and write, and it is registered with each communicator that uses it,
 * so that peers can read it in place.  NCCL requires that all ranks register it, or none, and use the same offset. This
 * holds: all ranks have the same arenas, and what the ranks of a call read from a peer (what a gather receives, what a
 * reduction sends) is at the same offset in them; only sizes differ where parameters have owners.
 *
 * No call blocks inside NCCL: a call that is not done is polled, and the watchdog ends a run in which that takes too
 * long.  To poll ends a call in NCCL, which expects one thread at a time; so the thread that calls owns all
 * communicators until its call is done, and notices failures itself.  The watchdog asks in between.  To abort a run
 * frees the communicators, so the watchdog becomes their owner first: whoever has them gives them up at the next poll
 * and never goes on.  One who does not return from a call within PATIENCE_MS keeps them, and the end of the process,
 * which follows, ends what runs.
 *
 * Each NCCL call is made from collective.c's description of a part. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"
#include "runtime/exec/cuda/backend.h"
#include "runtime/exec/cuda/cuda.h"
#include "runtime/exec/cuda/nccl/object.h"
#include "runtime/exec/private.h"

typedef enum { OF_ALL, OF_GROUP, OF_ACROSS, SIZES } Size;
static const char *const of_names[SIZES] = {"of all ranks", "of a group of hybrid_shard", "across the groups"};

typedef struct Nccl {
	const NcclBackend *lib;
	const char *path;
	bool has_peers;
	pthread_mutex_t owner;
	char broken[1000]; /* what a call said that failed, and which it was; "": none */
	atomic_bool aborted; /* communicators are freed, or soon will be */
	void *comm[RT_STREAMS][SIZES]; /* NULL: not needed */
	void *listed[RT_STREAMS][SIZES][ARENA_COUNT]; /* NCCL's handles of registered memory; NULL: none */
} Nccl;

static Nccl *nccl(const Rt *rt)
{
	return streams_backend_state(rt);
}

static void disown(Nccl *n) { pthread_mutex_unlock(&n->owner); }

static _Noreturn void sleep_until_the_end(void)
{
	for (;;)
		pause();
}

/* The owner calls this behind each call of NCCL.  Once the run is aborted it does not return: the process ends. */
static void yield_to_abort(Nccl *n)
{
	if (!atomic_load(&n->aborted))
		return;
	disown(n);
	sleep_until_the_end();
}

static void own(Nccl *n)
{
	pthread_mutex_lock(&n->owner);
	yield_to_abort(n);
}

/* The end of a peer breaks communicators, too, often before anybody knows of that end.  The watchdog, which finds out
 * whose it was and ends this process, has the better reason: it gets time for that, and what is known here. */
static _Noreturn void broken(Nccl *n, void *comm, const char *what)
{
	enum { PATIENCE_MS = 3000, NAP_MS = 10 };
	const struct timespec nap = {.tv_nsec = NAP_MS * 1000000L};
	yield_to_abort(n);
	snprintf(n->broken, sizeof(n->broken), "%s: %s", what, n->lib->why(comm));
	disown(n);
	for (int ms = 0; n->has_peers && ms < PATIENCE_MS; ms += NAP_MS) {
		nanosleep(&nap, NULL);
		if (atomic_load(&n->aborted))
			sleep_until_the_end();
	}
	k_fail("NCCL: %s (NCCL_DEBUG=INFO in the environment tells more)", n->broken);
	ice("k_fail returned");
}

/* Polls until a call is done, at growing intervals. */
static NcclState settle(Nccl *n, void *comm, NcclState s)
{
	yield_to_abort(n);
	for (long ns = 1000; s == NCCL_BUSY; ns = MIN(2 * ns, 1000000)) {
		const struct timespec t = {.tv_nsec = ns};
		nanosleep(&t, NULL);
		yield_to_abort(n);
		s = n->lib->state(comm);
		yield_to_abort(n);
	}
	return s;
}

static void must(Nccl *n, void *comm, NcclState s, const char *what)
{
	if (settle(n, comm, s) != NCCL_DONE)
		broken(n, comm, what);
}

/* ---- collectives ---- */

/* Whether NCCL may make the mean of n ranks: where 1/n is a power of two, so that dividing rounds nothing (but numbers
 * near 1e-38).  In f16 numbers below n * 2^-14 would lose bits, and the smallest all of them, without a word.  Its sums
 * are divided afterwards, in the wider dtype if there is one; a sum that overflows is an infinity, which the loss scale
 * answers. */
static bool divides_exactly(DType sent, int n)
{
	return sent != DT_F16 && (n & (n - 1)) == 0;
}

static int64_t bytes_of(DType t, int64_t n)
{
	return n * dtype_info[t].bytes;
}

static const char *source_of(const Part *p)
{
	return p->x.source;
}

/* The NCCL call for one part; a result that has to be cast is first made where its source was. */
static NcclCall call_of(const RtCollective *row, const Part *p, bool mean)
{
	char *source = (char *)(uintptr_t)source_of(p), *mine = source + bytes_of(p->sent, p->slab * p->x.me);
	bool direct = p->sent == p->made;
	switch (row->kind) {
	case RT_ALL_GATHER:
		return (NcclCall){NCCL_ALL_GATHER, p->cast.n ? p->cast.to : source, p->to, p->slab, p->sent, false, 0};
	case RT_REDUCE_SCATTER:
		return (NcclCall){NCCL_REDUCE_SCATTER, source, direct ? p->to : mine, p->slab, p->sent, mean, 0};
	case RT_ALL_REDUCE: case RT_ALL_REDUCE_SHARDS:
		return (NcclCall){NCCL_ALL_REDUCE, source, source, p->total, p->sent, mean, 0};
	case RT_REDUCE:
		return (NcclCall){NCCL_REDUCE, source, direct && p->only_taker == p->x.me ? p->to : source, p->total, p->sent,
			mean, p->only_taker};
	case RT_BROADCAST:
		return (NcclCall){NCCL_BROADCAST, source, source, p->total, p->sent, false, p->only_giver};
	default: ice("%s is no collective of a unit", collective_name(row->kind));
	}
}

/* After the call: moves the result to its place, and divides if NCCL did not. */
static void complete(Rt *rt, const RtCollective *row, const Part *p, const NcclCall *c, bool mean, cudaStream_t s)
{
	bool taken = (row->kind != RT_REDUCE || p->only_taker == p->x.me) &&
		(row->kind != RT_BROADCAST || p->only_giver != p->x.me);
	int64_t n = row->kind == RT_REDUCE_SCATTER ? p->slab : p->total;
	if (row->kind == RT_ALL_GATHER || !taken)
		return;
	if (c->recv != p->to || p->sent != p->made)
		streams_cast(rt, &(Cast){.to = p->to, .from = c->recv, .made = p->made, .given = p->sent, .n = n}, s);
	if (row->kind == RT_BROADCAST || mean || p->scale == 1)
		return;
	k_stream = s;
	k_device_scale(p->to, (KDType)p->made, n, p->scale);
	k_stream = rt->p->cuda->stream[CUDA_COMPUTE];
}

static void *comm_of(const Rt *rt, const RtCollective *row)
{
	bool group = strategy_info[rt->model->layout.unit[row->unit].strategy].group == GROUP_SHARD;
	Size size = row->kind == RT_ALL_REDUCE_SHARDS ? OF_ACROSS : group ? OF_GROUP : OF_ALL;
	void *const *comm = nccl(rt)->comm[row->stream];
	return size != OF_ALL && !comm[size] ? comm[OF_ALL] : comm[size];
}

/* All-reduces and reductions to an owner are described by the second half of their parts, which says where results go;
 * the first half only casts. */
static int describe(const Rt *rt, const RtCollective *row, Part *part, cudaStream_t s)
{
	const Collectives *all = streams_collectives(rt);
	int n = collective_parts(rt, row);
	bool halves = row->kind == RT_ALL_REDUCE || row->kind == RT_ALL_REDUCE_SHARDS || row->kind == RT_REDUCE;
	for (int k = 0; k < (halves ? n / 2 : n); k++) {
		collective_describe(rt, all, row, k, &part[k]);
		streams_cast(rt, &part[k].cast, s);
		if (halves)
			collective_describe(rt, all, row, n / 2 + k, &part[k]);
	}
	return halves ? n / 2 : n;
}

/* Describes the flats of a unit for a single rank, in place. */
static int describe_alone(const Rt *rt, const RtCollective *row, Part *part)
{
	const LayoutUnit *u = &rt->model->layout.unit[row->unit];
	LayoutRank who = device_rank(rt);
	int n = 0;
	for (int f = 0; f < u->n_flats; f++) {
		const LayoutFlat *flat = &u->flat[f];
		Part p = {.x.n = 1, .scale = 1, .sent = flat->grad, .to = rt->grad[row->unit][f]};
		if (!flat->trainable)
			continue;
		if (row->kind == RT_ALL_REDUCE_SHARDS) {
			p.sent = layout_update_dtype(u, f, &who);
			p.to = rt->grad_shard[row->unit][f];
		} else if (row->kind == RT_BROADCAST) {
			p.sent = flat->dtype;
			p.to = rt->shard[row->unit][f];
		}
		p.made = p.sent;
		p.x.source = p.to;
		p.slab = p.total = layout_flat_numel(flat->numel, 1);
		part[n++] = p;
	}
	return n;
}

static void nccl_issue(Rt *rt, const RtCollective *row, int seq, cudaStream_t s)
{
	Nccl *n = nccl(rt);
	Part part[LAYOUT_MAX_FLATS];
	NcclCall call[LAYOUT_MAX_FLATS];
	bool mean[LAYOUT_MAX_FLATS], goes[LAYOUT_MAX_FLATS], any = false;
	bool alone = rt->p->world.size < 2;
	int parts = alone && row->kind != RT_ALL_GATHER ? describe_alone(rt, row, part) : describe(rt, row, part, s);
	void *comm = comm_of(rt, row);
	(void)seq;
	for (int k = 0; k < parts; k++) {
		const Part *p = &part[k];
		mean[k] = p->scale == 1 / (float)p->x.n && divides_exactly(p->sent, p->x.n);
		call[k] = call_of(row, p, mean[k]);
		goes[k] = (alone || p->x.n > 1) && call[k].count;
		any = any || goes[k];
	}
	if (!any)
		return;
	own(n);
	must(n, comm, n->lib->begin(), "a launch");
	for (int k = 0; k < parts; k++) {
		bool failed = goes[k] && n->lib->post(comm, &call[k], s) == NCCL_FAILED;
		yield_to_abort(n);
		if (failed)
			broken(n, comm, collective_name(row->kind));
	}
	must(n, comm, n->lib->end(), collective_name(row->kind));
	disown(n);
	for (int k = 0; k < parts; k++)
		if (goes[k])
			complete(rt, row, &part[k], &call[k], mean[k], s);
}

static void post_small(Rt *rt, const NcclCall *c, cudaStream_t s)
{
	Nccl *n = nccl(rt);
	void *comm = n->comm[RT_STREAM_SYNC][OF_ALL];
	own(n);
	must(n, comm, n->lib->post(comm, c, s), "a small message");
	disown(n);
}

static void nccl_gather_small(Rt *rt, void *all, const void *mine, int64_t bytes, cudaStream_t s)
{
	post_small(rt, &(NcclCall){NCCL_ALL_GATHER, mine, all, bytes, DT_U8, false, 0}, s);
}

static void nccl_broadcast_small(Rt *rt, void *at, int64_t bytes, cudaStream_t s)
{
	post_small(rt, &(NcclCall){NCCL_BROADCAST, at, at, bytes, DT_U8, false, 0}, s);
}

/* ---- how ranks meet ---- */

static const NcclBackend *load(const Rt *rt, const char **path, Diag *d)
{
	const char *where = rt->p->options->program;
	void *object = object_open(&(ObjectWanted){COMM_NCCL_FILE, "--comm=nccl (the default where every rank has a GPU)",
		"build shardc where nvcc and NCCL are installed", "--comm=shm needs no NCCL"}, path, rt->p->arena, where, d);
	if (!object)
		return NULL;
	const NcclBackend *b = object_symbol(object, COMM_NCCL_SYMBOL);
	const NcclShape mine = COMM_NCCL_SHAPE;
	if (b && !memcmp(&b->shape, &mine, sizeof(mine)))
		return b;
	diag_error(d, where, "%s was built by another version of shardc than this program; compile the program again",
		*path);
	return NULL;
}

static const char *version_text(Arena *a, int v)
{
	return arena_printf(a, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

/* What a rank tells the others: whether it has NCCL, its version, and, from rank 0, the ids of communicators. */
typedef struct Met { int32_t ok, version; char id[RT_STREAMS][NCCL_ID_BYTES]; } Met;

static bool same_versions(const Rt *rt, const Nccl *n, const Met *all, Diag *d)
{
	Arena *a = rt->p->arena;
	const char *where = rt->p->options->program;
	int mine = all[rt->p->world.rank].version;
	if (mine / 10000 != n->lib->built / 10000) {
		diag_error(d, where, "rank %d: the NCCL library is version %s, %s was built for %s; install that, or build "
			"shardc with the other's headers", rt->p->world.rank, version_text(a, mine), n->path,
			version_text(a, n->lib->built));
		return false;
	}
	for (int r = 1; r < rt->p->world.size; r++)
		if (all[r].ok && all[r].version != all[0].version) {
			if (rt->p->world.rank == 0)
				diag_error(d, where, "rank %d has NCCL %s, rank 0 has NCCL %s: all ranks need the same library", r,
					version_text(a, all[r].version), version_text(a, all[0].version));
			return false;
		}
	return true;
}

/* All ranks learn all versions and rank 0's ids; false on all of them after a message. */
static bool meet(const Rt *rt, const Nccl *n, Met *of0, Diag *d)
{
	Met mine = {.ok = true, .version = n->lib->version()}, *all = NEW_N(rt->p->arena, Met, rt->p->world.size);
	for (int i = 0; rt->p->world.rank == 0 && i < RT_STREAMS; i++)
		if (n->lib->id(mine.id[i]) != NCCL_DONE) {
			diag_error(d, rt->p->options->program, "NCCL cannot start: %s (NCCL_SOCKET_IFNAME names the network to "
				"use, NCCL_DEBUG=INFO tells more)", n->lib->why(NULL));
			mine.ok = false;
		}
	if (!rt->p->control)
		all[0] = mine;
	else if (!control_all_gather(rt->p->control, &mine, sizeof(mine), all))
		return false;
	*of0 = all[0];
	for (int r = 0; r < rt->p->world.size; r++)
		if (!all[r].ok)
			return false;
	return same_versions(rt, n, all, d);
}

static bool opened(const Rt *rt, Nccl *n, void *comm, NcclState s, RtStream stream, Size of, Diag *d)
{
	if (settle(n, comm, s) == NCCL_DONE)
		return true;
	diag_error(d, rt->p->options->program, "rank %d: NCCL connects no communicator %s for %s: %s (%s; NCCL_DEBUG=INFO "
		"tells more, NCCL_SOCKET_IFNAME names the network to use)", rt->p->world.rank, of_names[of],
		stream_info[stream].carries, n->lib->why(comm), n->path);
	return false;
}

static bool open_all(const Rt *rt, Nccl *n, const Met *met, Diag *d)
{
	const World *w = &rt->p->world;
	LayoutRank who = device_rank(rt);
	LayoutSplit split = layout_split(STRATEGY_HYBRID_SHARD, &who);
	bool hybrid = false, ok = true;
	for (int u = 0; u < rt->model->layout.n_units; u++)
		hybrid = hybrid || strategy_info[rt->model->layout.unit[u].strategy].group == GROUP_SHARD;
	hybrid = hybrid && split.ranks > 1 && split.groups > 1;
	for (int i = 0; ok && i < RT_STREAMS; i++) {
		RtStream s = (RtStream)i;
		void **comm = n->comm[i];
		ok = opened(rt, n, comm[OF_ALL], n->lib->open(&comm[OF_ALL], met->id[i], w->size, w->rank), s, OF_ALL, d);
		if (!ok || !hybrid || s == RT_STREAM_SYNC)
			continue;
		NcclState group = n->lib->split(comm[OF_ALL], (int)split.group, w->rank, &comm[OF_GROUP]);
		ok = opened(rt, n, comm[OF_ALL], group, s, OF_GROUP, d) &&
			opened(rt, n, comm[OF_GROUP], NCCL_BUSY, s, OF_GROUP, d);
		if (!ok || s != RT_STREAM_REDUCE)
			continue;
		NcclState across = n->lib->split(comm[OF_ALL], (int)split.index, w->rank, &comm[OF_ACROSS]);
		ok = opened(rt, n, comm[OF_ALL], across, s, OF_ACROSS, d) &&
			opened(rt, n, comm[OF_ACROSS], NCCL_BUSY, s, OF_ACROSS, d);
	}
	return ok;
}

/* ---- memory ---- */

static const char *nccl_take(const Rt *rt, void **at, int64_t bytes)
{
	Nccl *n = nccl(rt);
	return n->lib->take(at, (size_t)bytes) == NCCL_DONE ? NULL : n->lib->why(NULL);
}

static void nccl_give(const Rt *rt, void *at)
{
	nccl(rt)->lib->give(at);
}

/* Whether collectives of a stream use an arena: gathers and broadcasts are on one stream, reductions on another. */
static bool meets(int stream, int arena)
{
	bool both = arena == ARENA_SEND, gathers = arena == ARENA_PARAMS || arena == ARENA_GATHERED;
	return stream == RT_STREAM_GATHER ? both || gathers : stream == RT_STREAM_REDUCE && (both || arena == ARENA_GRADS);
}

static bool register_all(const Rt *rt, Nccl *n, Diag *d)
{
	const DeviceMemory *mem = &rt->p->memory;
	for (int i = 0; i < RT_STREAMS; i++)
		for (int k = 0; k < SIZES; k++)
			for (int a = 0; a < ARENA_COUNT; a++) {
				void *comm = n->comm[i][k];
				if (!comm || !rt->p->cuda->lent[a] || !meets(i, a))
					continue;
				NcclState s = n->lib->enlist(comm, mem->base[a], (size_t)mem->planned[a], &n->listed[i][k][a]);
				if (settle(n, comm, s) == NCCL_DONE)
					continue;
				diag_error(d, rt->p->options->program, "rank %d: NCCL registers no memory for %s %s: %s",
					rt->p->world.rank, device_arena_names[a], of_names[k], n->lib->why(comm));
				return false;
			}
	return true;
}

static void deregister_all(Nccl *n)
{
	for (int i = 0; i < RT_STREAMS; i++)
		for (int k = 0; k < SIZES; k++)
			for (int a = 0; a < ARENA_COUNT; a++) {
				if (n->comm[i][k] && n->listed[i][k][a])
					settle(n, n->comm[i][k], n->lib->dismiss(n->comm[i][k], n->listed[i][k][a]));
				n->listed[i][k][a] = NULL;
			}
}

/* ---- life ---- */

static bool nccl_load(Rt *rt, void **state, Diag *d)
{
	Nccl *n = *state = NEW(rt->p->arena, Nccl);
	pthread_mutex_init(&n->owner, NULL);
	n->has_peers = rt->p->control;
	n->lib = load(rt, &n->path, d);
	return n->lib;
}

static bool open_and_register(const Rt *rt, Nccl *n, const Met *met, Diag *d)
{
	own(n);
	bool ok = open_all(rt, n, met, d) && register_all(rt, n, d);
	disown(n);
	return ok;
}

static bool nccl_open(Rt *rt, void **state, Diag *d)
{
	Nccl *n = *state;
	Met met;
	if (!meet(rt, n, &met, d))
		return false;
	if (!rt->p->control)
		return open_and_register(rt, n, &met, d);
	RankProgress *progress = control_progress(rt->p->control);
	progress_enter(progress, RT_STREAM_SYNC, OUTSIDE_NCCL);
	bool ok = open_and_register(rt, n, &met, d);
	progress_end(progress, RT_STREAM_SYNC);
	return ok;
}

static void each(Nccl *n, void (*f)(void *comm))
{
	for (int i = 0; i < RT_STREAMS; i++)
		for (int k = SIZES - 1; k >= 0; k--) {
			if (n->comm[i][k])
				f(n->comm[i][k]);
			n->comm[i][k] = NULL;
		}
}

static void nccl_close(Rt *rt)
{
	Nccl *n = nccl(rt);
	own(n);
	deregister_all(n);
	for (int i = 0; i < RT_STREAMS; i++)
		for (int k = 0; k < SIZES; k++)
			if (n->comm[i][k])
				settle(n, n->comm[i][k], n->lib->finish(n->comm[i][k]));
	each(n, n->lib->close);
	disown(n);
}

static const char *nccl_failed(void *state)
{
	Nccl *n = state;
	const char *why = NULL;
	if (pthread_mutex_trylock(&n->owner))
		return NULL;
	if (*n->broken)
		why = n->broken;
	for (int i = 0; i < RT_STREAMS; i++)
		for (int k = 0; k < SIZES; k++)
			if (!why && n->comm[i][k] && n->lib->state(n->comm[i][k]) == NCCL_FAILED)
				why = n->lib->why(n->comm[i][k]);
	disown(n);
	return why;
}

/* The caller's thread ends the process behind this, and has an alarm of a second. */
static void nccl_abort(void *state)
{
	enum { PATIENCE_MS = 200 };
	Nccl *n = state;
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += PATIENCE_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	atomic_store(&n->aborted, true);
	if (!pthread_mutex_timedlock(&n->owner, &until))
		each(n, n->lib->abort);
}

/* A collective that was aborted looks as if it had ended. */
static void nccl_trust(const Rt *rt)
{
	if (atomic_load(&nccl(rt)->aborted))
		sleep_until_the_end();
}

const Backend backend_nccl = {.name = "nccl", .captures = true, .chained = true, .load = nccl_load,
	.take = nccl_take, .give = nccl_give, .open = nccl_open, .close = nccl_close, .issue = nccl_issue,
	.gather_small = nccl_gather_small, .broadcast_small = nccl_broadcast_small, .failed = nccl_failed,
	.abort = nccl_abort, .trust = nccl_trust};
