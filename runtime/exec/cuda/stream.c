/* runtime/exec/cuda/stream.c: the rt_* calls of an emitted program that involve other ranks; it orders collectives on
 * the device.
 *
 * Every stream of a PLAN is a CUDA stream.  A collective starts after its event and after the earlier ones of its
 * stream; in rt_wait the compute stream waits for its end.  Nothing else orders streams, except for back ends that need
 * all ranks to start collectives in one order (Backend.chained).  Events belong to a program, so a captured program
 * does not use those of another.
 *
 * The calls only issue work, which is the same whether it runs now or is captured.  The bytes of each collective are
 * stored, so that a replay can count them again. */
#include <math.h>
#include <nvtx3/nvToolsExt.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"
#include "runtime/exec/cuda/backend.h"
#include "runtime/exec/cuda/cuda.h"

enum { PROGRAM_COUNT = PROGRAM_LAST + 1 };

/* The events of a program, and data of its collectives, by number from 1. */
typedef struct Ordered {
	const RtCollective *rows;
	int n, n_recorded;
	cudaEvent_t *recorded;     /* [rt_record] */
	cudaEvent_t *entered, *ended; /* [seq] */
	int *mark;                 /* [seq]: of the op that issued it (trace_seq) */
	int64_t *began;            /* [seq]: stamp of a trace */
	int64_t *bytes;            /* [seq]: bytes from peers; of blocking ones, those of the last run */
	bool *idle;                /* [seq]: there is nothing to do */
} Ordered;

struct Streams {
	const Backend *backend;
	Collectives *collectives;
	RankProgress *progress;
	ProgressWords words[RT_STREAMS];
	void *registered;
	size_t registered_bytes;
	Ordered (*program)[PROGRAM_COUNT]; /* [size] */
	int n_sizes;
	Ordered *now;              /* NULL: outside of programs */
	int before;                /* seq of the collective that was issued last in this run of the program; 0: none */
	struct { int *seq, begin, end; } open[RT_STREAMS]; /* issued collectives whose host part is left to do */
	int sync_seq;              /* seq of the collective that blocks now */
	cudaEvent_t fork, join[RT_STREAMS];
	CommCounts counts[RT_COLLECTIVE_KINDS];
	CommCost told;
};

static cudaStream_t compute(const Rt *rt)
{
	return rt->p->cuda->stream[CUDA_COMPUTE];
}

cudaStream_t streams_of(const Rt *rt, RtStream stream)
{
	return rt->p->cuda->stream[stream];
}

bool streams_talk(const Rt *rt) { return rt->p->streams->backend->gather_small; }
void *streams_backend_state(const Rt *rt) { return rt->p->cuda->backend_state; }
const Collectives *streams_collectives(const Rt *rt) { return rt->p->streams->collectives; }

void streams_trust(const Rt *rt)
{
	const Backend *b = rt->p->cuda->backend;
	if (b->trust)
		b->trust(rt);
}

static void record(cudaEvent_t e, cudaStream_t s)
{
	cuda_must(cudaEventRecord(e, s), "an event cannot be recorded");
}

static void wait_event(cudaStream_t s, cudaEvent_t e)
{
	cuda_must(cudaStreamWaitEvent(s, e, 0), "a stream cannot wait for an event");
}

/* ---- functions for back ends ---- */

static void cast_part(const Rt *rt, const Cast *c)
{
	if (c->chance.on)
		k_device_cast_by_chance(c->to, (KDType)c->made, c->from, c->n, c->chance.id, c->first, c->chance.next,
			rt->scalars);
	else
		k_device_cast(c->to, (KDType)c->made, c->from, (KDType)c->given, c->n);
}

void streams_cast(const Rt *rt, const Cast *c, cudaStream_t stream)
{
	if (!c->n)
		return;
	if (c->made == c->given) {
		size_t bytes = (size_t)(c->n * dtype_info[c->made].bytes);
		cuda_must(cudaMemcpyAsync(c->to, c->from, bytes, cudaMemcpyDefault, stream), "a shard cannot be copied");
		return;
	}
	k_stream = stream;
	if (dtype_is_scaled(c->made))
		scales_cast(rt, c, k_device_cast_f8);
	else
		chance_parts(rt, c, cast_part);
	k_stream = compute(rt);
}

void streams_keep(const Rt *rt, const RtCollective *row, cudaStream_t stream)
{
	for (int f = 0; f < LAYOUT_MAX_FLATS; f++) {
		float *to;
		const float *from;
		int64_t n = collective_kept(rt, row, f, &to, &from);
		if (n && row->add) {
			k_stream = stream;
			k_accumulate_f32(to, from, n);
			k_stream = compute(rt);
		} else if (n)
			cuda_must(cudaMemcpyAsync(to, from, (size_t)n * sizeof(*to), cudaMemcpyDeviceToDevice, stream),
				"a reduced gradient cannot be kept");
	}
}

/* ---- around a collective ---- */

/* Makes a collective start after the one that was issued before it: ranks that start collectives of two streams in
 * different orders can deadlock. */
static void chain(Streams *all, int seq, cudaStream_t s)
{
	if (!all->backend->chained)
		return;
	if (all->before)
		wait_event(s, all->now->entered[all->before]);
	record(all->now->entered[seq], s);
	all->before = seq;
}

static void enter(Rt *rt, int seq, RtStream stream)
{
	Streams *all = rt->p->streams;
	cudaStream_t s = streams_of(rt, stream);
	chain(all, seq, s);
	if (rt->p->world.size > 1)
		progress_device_enter(all->words[stream], seq, s);
	all->now->mark[seq] = trace_seq(rt, seq);
	if (all->now->mark[seq] >= 0)
		all->now->began[seq] = trace_stamp(rt, (int)stream);
}

static void leave(Rt *rt, int seq, RtStream stream)
{
	Streams *all = rt->p->streams;
	cudaStream_t s = streams_of(rt, stream);
	if (rt->p->world.size > 1)
		progress_device_end(all->words[stream], seq, s);
	if (all->now->mark[seq] >= 0)
		trace_transfer(rt, stream, all->now->mark[seq], all->now->began[seq], trace_stamp(rt, (int)stream),
			all->now->bytes[seq]);
	record(all->now->ended[seq], s);
}

static void count(Streams *all, int seq)
{
	CommCounts *c = &all->counts[all->now->rows[seq - 1].kind];
	c->n++;
	c->bytes += all->now->bytes[seq];
}

static const RtCollective *row_of(const Streams *all, int seq)
{
	if (!all->now || seq < 1 || seq > all->now->n)
		ice("there is no collective %d in this program", seq);
	return &all->now->rows[seq - 1];
}

static void issue(Rt *rt, int seq)
{
	Streams *all = rt->p->streams;
	const RtCollective *row = row_of(all, seq);
	cudaStream_t s = streams_of(rt, row->stream);
	trace_seq(rt, seq);
	count(all, seq);
	/* Also if there is nothing to do: later collectives of the stream need no event that this one has waited for. */
	if (row->after)
		wait_event(s, all->now->recorded[row->after]);
	if (all->now->idle[seq])
		return;
	enter(rt, seq, row->stream);
	progress_issue(all->progress, row->stream, seq);
	all->backend->issue(rt, row, seq, s);
	progress_issued(all->progress, row->stream);
	if (all->backend->finish) {
		all->open[row->stream].seq[all->open[row->stream].end++] = seq;
		return;
	}
	streams_keep(rt, row, s);
	leave(rt, seq, row->stream);
}

/* Does the host's part of a collective and of the earlier ones of its stream. */
static void finish(Rt *rt, RtStream stream, int seq)
{
	Streams *all = rt->p->streams;
	cudaStream_t s = streams_of(rt, stream);
	while (all->open[stream].begin < all->open[stream].end && all->open[stream].seq[all->open[stream].begin] <= seq) {
		int first = all->open[stream].seq[all->open[stream].begin++];
		const RtCollective *row = row_of(all, first);
		all->backend->finish(rt, row, first, s);
		streams_keep(rt, row, s);
		leave(rt, first, stream);
	}
}

/* ---- calls by programs ---- */

#define ISSUED(call) void rt_##call(Rt *rt, int seq) { issue(rt, seq); }
#include "base/collectives.def"

void rt_record(Rt *rt, int event)
{
	const Ordered *o = rt->p->streams->now;
	/* Else no collective waits for it; with --time-ops, which captures ops one by one, the host waits instead. */
	if (event <= o->n_recorded && !rt->p->cuda->times)
		record(o->recorded[event], compute(rt));
}

void rt_wait(Rt *rt, int seq)
{
	Streams *all = rt->p->streams;
	const RtCollective *row = row_of(all, seq);
	trace_seq(rt, seq);
	if (all->now->idle[seq])
		return;
	finish(rt, row->stream, seq);
	wait_event(compute(rt), all->now->ended[seq]);
	if (row->kind == RT_ALL_GATHER)
		collective_arrived(rt, row);
}

void rt_enter(Rt *rt, const char *name)
{
	(void)rt;
	nvtxRangePushA(name);
}

void rt_leave(Rt *rt)
{
	(void)rt;
	nvtxRangePop();
}

/* ---- blocking collectives ---- */

void streams_sync_begin(Rt *rt, int seq)
{
	Streams *all = rt->p->streams;
	row_of(all, seq);
	all->sync_seq = seq;
	record(all->fork, compute(rt));
	wait_event(streams_of(rt, RT_STREAM_SYNC), all->fork);
	enter(rt, seq, RT_STREAM_SYNC);
}

void streams_sync_end(Rt *rt, RtCollectiveKind kind, int64_t bytes)
{
	Streams *all = rt->p->streams;
	int seq = all->sync_seq;
	if (row_of(all, seq)->kind != kind)
		ice("collective %d is not %s", seq, collective_name(kind));
	all->now->bytes[seq] = bytes;
	leave(rt, seq, RT_STREAM_SYNC);
	wait_event(compute(rt), all->now->ended[seq]);
	count(all, seq);
}

void streams_before_gathers(Rt *rt, int seq)
{
	wait_event(streams_of(rt, RT_STREAM_GATHER), rt->p->streams->now->ended[seq]);
}

void streams_gather(Rt *rt, void *all, const void *mine, int64_t bytes)
{
	Streams *s = rt->p->streams;
	progress_issue(s->progress, RT_STREAM_SYNC, s->sync_seq);
	s->backend->gather_small(rt, all, mine, bytes, streams_of(rt, RT_STREAM_SYNC));
	progress_issued(s->progress, RT_STREAM_SYNC);
}

void streams_broadcast(Rt *rt, void *at, int64_t bytes)
{
	Streams *s = rt->p->streams;
	progress_issue(s->progress, RT_STREAM_SYNC, s->sync_seq);
	s->backend->broadcast_small(rt, at, bytes, streams_of(rt, RT_STREAM_SYNC));
	progress_issued(s->progress, RT_STREAM_SYNC);
}

/* ---- captures ---- */

void streams_fork(Rt *rt)
{
	Streams *all = rt->p->streams;
	all->before = 0;
	record(all->fork, compute(rt));
	for (int i = 0; i < RT_STREAMS; i++)
		wait_event(streams_of(rt, (RtStream)i), all->fork);
}

void streams_join(Rt *rt)
{
	Streams *all = rt->p->streams;
	for (int i = 0; i < RT_STREAMS; i++) {
		if (all->open[i].begin < all->open[i].end)
			ice("a collective of stream %d was never waited for", i);
		all->open[i].begin = all->open[i].end = 0;
		record(all->join[i], streams_of(rt, (RtStream)i));
		wait_event(compute(rt), all->join[i]);
	}
}

void streams_replay(Rt *rt)
{
	for (int seq = 1; seq <= rt->p->streams->now->n; seq++)
		count(rt->p->streams, seq);
}

/* ---- life ---- */

static cudaEvent_t new_event(void)
{
	cudaEvent_t e;
	cuda_must(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "an event cannot be made");
	return e;
}

static cudaEvent_t *new_events(Arena *a, int n)
{
	cudaEvent_t *e = NEW_N(a, cudaEvent_t, n + 1);
	for (int i = 1; i <= n; i++)
		e[i] = new_event();
	return e;
}

static void free_events(const cudaEvent_t *e, int n)
{
	for (int i = 1; i <= n; i++)
		cudaEventDestroy(e[i]);
}

/* Whether a collective sends, casts and keeps nothing.  One rank with a back end that communicates sends to itself. */
static bool is_idle(const Rt *rt, const RtCollective *row)
{
	float *to;
	const float *from;
	bool busy = streams_talk(rt) && rt->p->world.size < 2;
	for (int f = 0; f < LAYOUT_MAX_FLATS; f++)
		busy = busy || (row->unit >= 0 && collective_kept(rt, row, f, &to, &from));
	return !busy && !collective_parts(rt, row);
}

static void order_program(Rt *rt, Program program)
{
	Arena *a = rt->p->arena;
	Ordered *o = &rt->p->streams->program[rt->p->size][program];
	o->rows = program_rows(rt->model, program, &o->n);
	for (int i = 0; i < o->n; i++)
		o->n_recorded = MAX(o->n_recorded, o->rows[i].after);
	o->recorded = new_events(a, o->n_recorded);
	o->entered = new_events(a, o->n);
	o->ended = new_events(a, o->n);
	o->bytes = NEW_N(a, int64_t, o->n + 1);
	o->mark = NEW_N(a, int, o->n + 1);
	o->began = NEW_N(a, int64_t, o->n + 1);
	o->idle = NEW_N(a, bool, o->n + 1);
	for (int i = 0; i < o->n; i++) {
		if (o->rows[i].unit < 0)
			continue;
		o->bytes[i + 1] = collective_bytes(rt, rt->p->streams->collectives, &o->rows[i]);
		o->idle[i + 1] = is_idle(rt, &o->rows[i]);
	}
}

/* Lets the device write the counters that the watchdog reads. */
static void share_progress(Rt *rt)
{
	Streams *all = rt->p->streams;
	if (rt->p->world.size < 2)
		return;
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *at = (char *)all->progress, *first = at - (uintptr_t)at % page;
	void *device;
	all->registered_bytes = (size_t)round_up(at + sizeof(*all->progress) - first, (int64_t)page);
	cuda_must(cudaHostRegister(first, all->registered_bytes, cudaHostRegisterMapped),
		"the watchdog's counters cannot be shared with the device");
	all->registered = first;
	cuda_must(cudaHostGetDevicePointer(&device, first, 0), "the watchdog's counters have no address on the device");
	RankProgress *p = (RankProgress *)(void *)((char *)device + (at - first));
	for (int i = 0; i < RT_STREAMS; i++)
		all->words[i] = (ProgressWords){(int32_t *)&p->inside[i], (int32_t *)&p->ended[i], (int64_t *)&p->done[i]};
}

bool streams_start(Rt *rt, bool threads, Diag *d)
{
	(void)threads; /* the device needs no threads */
	struct RtPrivate *p = rt->p;
	Streams *all = p->streams = NEW(p->arena, Streams);
	all->collectives = collectives_new(rt, p->arena);
	all->progress = p->control ? control_progress(p->control) : NEW(p->arena, RankProgress);
	all->backend = p->cuda->backend;
	all->fork = new_event();
	for (int i = 0; i < RT_STREAMS; i++)
		all->join[i] = new_event();
	int most = 0;
	all->n_sizes = MAX(rt->model->n_sizes, 1);
	all->program = arena_alloc(p->arena, (size_t)all->n_sizes * sizeof(*all->program));
	memset(all->program, 0, (size_t)all->n_sizes * sizeof(*all->program));
	for (int k = 0; k < all->n_sizes; k++) {
		program_size(rt, k);
		for (int i = 0; i < PROGRAM_COUNT; i++) {
			order_program(rt, (Program)i);
			most = MAX(most, all->program[k][i].n);
		}
	}
	for (int i = 0; i < RT_STREAMS; i++)
		all->open[i].seq = NEW_N(p->arena, int, most + 1);
	share_progress(rt);
	if (!all->backend->open(rt, &p->cuda->backend_state, d)) {
		streams_stop(rt);
		return false;
	}
	void *state = p->cuda->backend_state;
	if (p->control)
		control_set_device(p->control, &(DeviceWatch){all->backend->failed, all->backend->abort, state});
	return true;
}

void streams_stop(Rt *rt)
{
	Streams *all = rt->p->streams;
	if (!all)
		return;
	if (rt->p->control)
		control_set_device(rt->p->control, &(DeviceWatch){NULL, NULL, NULL});
	all->backend->close(rt);
	for (int i = 0; i < all->n_sizes * PROGRAM_COUNT; i++) {
		const Ordered *o = &all->program[0][i];
		free_events(o->recorded, o->n_recorded);
		free_events(o->entered, o->n);
		free_events(o->ended, o->n);
	}
	cudaEventDestroy(all->fork);
	for (int i = 0; i < RT_STREAMS; i++)
		cudaEventDestroy(all->join[i]);
	if (all->registered)
		cudaHostUnregister(all->registered);
	rt->p->streams = NULL;
}

/* The collectives that an aborted program has issued are not needed; they run in order before all that follows. */
void streams_abandon(Rt *rt)
{
	(void)rt;
}

void streams_program(Rt *rt, Program program)
{
	Streams *all = rt->p->streams;
	int n;
	rt->p->rows = program_rows(rt->model, program, &n);
	if (!all)
		return;
	all->now = &all->program[rt->p->size][program];
	program_say(rt, all->progress, program);
}

/* The times of collectives are not known, because they run on the device, mostly in a graph. */
CommCost streams_cost(Rt *rt)
{
	Streams *all = rt->p->streams;
	if (rt->p->world.size < 2)
		return (CommCost){0};
	CommCost cost = cost_since(all->counts, &all->told);
	cost.ms = cost.exposed_ms = (double)NAN;
	return cost;
}

CommCounts streams_counts(const Rt *rt, RtCollectiveKind kind)
{
	return rt->p->streams ? rt->p->streams->counts[kind] : (CommCounts){0};
}
