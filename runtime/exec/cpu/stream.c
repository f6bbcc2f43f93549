/* runtime/exec/cpu/stream.c: the rt_* calls of an emitted program that involve other ranks; it decides when collectives
 * run.
 *
 * A collective is issued at its place in the program and runs after all earlier ones of its stream: on the stream's
 * thread, beside the computing, or, where no core is left for a thread, inside the rt_wait for its result (or for a
 * later one of the stream).  If the stream is idle, the source is published when the collective is issued, so that
 * peers need not wait for this rank's rt_wait.  A plan's events need no work here: a rank computes in program order, so
 * everything before an issue has been done.
 *
 * A stream is a queue with a counter of ended collectives; threads and waits take the same work from it in the same
 * order, so their results have the same bits. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "runtime/exec/private.h"

enum { QUEUES = RT_STREAM_SYNC }; /* collectives on stream sync block, so it has no queue */

typedef struct Task { const RtCollective *row; int seq, mark; } Task; /* mark: of the op that issues it (trace_seq) */
typedef struct Stream {
	Rt *rt;
	RtStream id;
	Task *ring;
	uint32_t cap;
	Counter issued, ended;
	bool published;         /* part 0 of the first task has begun */
	Part part;
	const char **from;
	pthread_t thread;
	bool has_thread;
	atomic_bool quit;
	double ms;
	CommCounts counts[RT_COLLECTIVE_KINDS];
} Stream;

struct Streams {
	Stream stream[RT_STREAMS];
	Collectives *collectives;
	RankProgress *progress;
	const RtCollective *rows; /* collectives of the program that runs */
	int n_rows;
	uint32_t *turn;           /* [seq]: its number among its stream's collectives */
	int spins;
	double exposed_ms;
	double sync_began;        /* ms: when the current blocking collective began */
	int64_t sync_stamp;       /* the same, for a trace */
	int sync_mark;            /* its op */
	CommCost told;            /* what streams_cost has reported so far */
};

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ---- running ---- */

static uint32_t count(Counter *c)
{
	return atomic_load_explicit(c, memory_order_acquire);
}

static Task *first_task(Stream *s)
{
	return &s->ring[count(&s->ended) % s->cap];
}

static void run_first(Stream *s)
{
	const Streams *all = s->rt->p->streams;
	const Task *t = first_task(s);
	double begin = now_ms();
	int64_t stamp = t->mark < 0 ? 0 : trace_stamp(s->rt, (int)s->id);
	int64_t *bytes = &s->counts[t->row->kind].bytes, before = *bytes;
	int n = collective_parts(s->rt, t->row);
	progress_enter(all->progress, (int)s->id, t->seq);
	if (hook_takes(s->rt, t->row)) {
		s->counts[t->row->kind].bytes += hook_run(s->rt, all->collectives, t->row, s->from);
		n = 0;
	}
	for (int k = 0; k < n; k++) {
		if (k > 0 || !s->published)
			collective_begin(s->rt, all->collectives, t->row, k, &s->part);
		s->counts[t->row->kind].bytes += collective_finish(s->rt, &s->part, s->from);
	}
	collective_keep(s->rt, t->row);
	s->published = false;
	s->counts[t->row->kind].n++;
	progress_end(all->progress, (int)s->id);
	if (t->mark >= 0)
		trace_transfer(s->rt, s->id, t->mark, stamp, trace_stamp(s->rt, (int)s->id), *bytes - before);
	s->ms += now_ms() - begin;
	wait_post(&s->ended);
}

static void *work(void *argument)
{
	Stream *s = argument;
	device_set_threads(1);
	for (;;) {
		wait_reach(&s->issued, count(&s->ended) + 1, s->rt->p->streams->spins);
		if (atomic_load(&s->quit))
			return NULL;
		run_first(s);
	}
}

static void issue(Rt *rt, int seq)
{
	Streams *all = rt->p->streams;
	int mark = trace_seq(rt, seq);
	if (!all) {
		collective_keep(rt, &rt->p->rows[seq - 1]);
		return;
	}
	const RtCollective *row = &all->rows[seq - 1];
	Stream *s = &all->stream[row->stream];
	if (row->kind == RT_ALL_GATHER)
		offload_before_gather(rt, row->unit);
	uint32_t turn = count(&s->issued);
	bool idle = turn == count(&s->ended);
	if (turn - count(&s->ended) == s->cap)
		ice("collective %d: too many are under way", seq);
	s->ring[turn % s->cap] = (Task){row, seq, mark};
	all->turn[seq] = turn + 1;
	if (!s->has_thread && idle && collective_parts(rt, row) && !hook_takes(rt, row)) {
		collective_begin(rt, all->collectives, row, 0, &s->part);
		s->published = true;
	}
	wait_post(&s->issued);
}

static void wait_for(Rt *rt, int seq)
{
	Streams *all = rt->p->streams;
	Stream *s = &all->stream[all->rows[seq - 1].stream];
	double begin = now_ms();
	if (s->has_thread)
		wait_reach(&s->ended, all->turn[seq], all->spins);
	else
		while ((int32_t)(count(&s->ended) - all->turn[seq]) < 0)
			run_first(s);
	all->exposed_ms += now_ms() - begin;
}

/* ---- calls by programs ---- */

#define ISSUED(call) void rt_##call(Rt *rt, int seq) { issue(rt, seq); }
#include "base/collectives.def"

void rt_wait(Rt *rt, int seq)
{
	if (!rt->p->streams)
		return;
	const RtCollective *row = &rt->p->streams->rows[seq - 1];
	trace_seq(rt, seq);
	wait_for(rt, seq);
	if (row->kind == RT_ALL_GATHER && collective_parts(rt, row))
		collective_arrived(rt, row);
}

void streams_sync_begin(Rt *rt, int seq)
{
	Streams *all = rt->p->streams;
	all->sync_began = now_ms();
	all->sync_mark = trace_seq(rt, seq);
	all->sync_stamp = all->sync_mark < 0 ? 0 : trace_stamp(rt, RT_STREAM_SYNC);
	progress_enter(all->progress, RT_STREAM_SYNC, seq);
}

void streams_sync_end(Rt *rt, RtCollectiveKind kind, int64_t bytes)
{
	Streams *all = rt->p->streams;
	Stream *s = &all->stream[RT_STREAM_SYNC];
	double ms = now_ms() - all->sync_began;
	progress_end(all->progress, RT_STREAM_SYNC);
	if (all->sync_mark >= 0)
		trace_transfer(rt, RT_STREAM_SYNC, all->sync_mark, all->sync_stamp, trace_stamp(rt, RT_STREAM_SYNC), bytes);
	s->counts[kind].n++;
	s->counts[kind].bytes += bytes;
	s->ms += ms;
	all->exposed_ms += ms;
}

static StepSums sums_of(const Rt *rt)
{
	return (StepSums){rt->loss_sum, rt->loss_weight, rt->correct, rt->counted, rt->p->optim.norm,
		report_has_bad_input(), rt->p->check.found, report_asked(rt)};
}

void rt_all_reduce_scalars(Rt *rt, int seq)
{
	StepSums mine = sums_of(rt);
	if (!rt->p->comm) {
		rt->p->sums = mine;
		return;
	}
	Arena *a = rt->p->arena;
	ArenaMark mark = arena_mark(a);
	StepSums *of = NEW_N(a, StepSums, rt->p->world.size);
	streams_sync_begin(rt, seq);
	comm_all(rt->p->comm, &mine, sizeof(mine), of);
	rt->p->sums = of[0];
	for (int r = 1; r < rt->p->world.size; r++)
		scalars_add(&rt->p->sums, &of[r], optim_norm_p(rt->model));
	streams_sync_end(rt, RT_ALL_REDUCE_SCALARS, (int64_t)sizeof(mine) * (rt->p->world.size - 1));
	arena_rewind(a, mark);
}

/* ---- life ---- */

static bool start_thread(Stream *s)
{
	sigset_t none, before;
	sigfillset(&none);
	pthread_sigmask(SIG_SETMASK, &none, &before);
	s->has_thread = !pthread_create(&s->thread, NULL, work, s);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return s->has_thread;
}

bool streams_start(Rt *rt, bool threads, Diag *d)
{
	const RtModel *m = rt->model;
	struct RtPrivate *p = rt->p;
	int n = 0;
	if (!hook_start(rt, d))
		return false;
	for (int size = 0; size < MAX(m->n_sizes, 1); size++) {
		program_size(rt, size);
		for (int program = 0; program <= PROGRAM_LAST; program++) {
			int of_it;
			program_rows(m, (Program)program, &of_it);
			n = MAX(n, of_it);
		}
	}
	Streams *all = p->streams = NEW(p->arena, Streams);
	all->collectives = collectives_new(rt, p->arena);
	all->progress = p->control ? control_progress(p->control) : NEW(p->arena, RankProgress);
	all->turn = NEW_N(p->arena, uint32_t, n + 1);
	all->spins = wait_spins(threads ? QUEUES + device_threads() : 1);
	for (int i = 0; i < RT_STREAMS; i++) {
		Stream *s = &all->stream[i];
		s->rt = rt;
		s->id = (RtStream)i;
		for (s->cap = 1; s->cap < (uint32_t)n;) /* a power of two, because it must divide 2^32, where the counters
		                                         * wrap */
			s->cap *= 2;
		s->ring = NEW_N(p->arena, Task, s->cap);
		s->from = NEW_N(p->arena, const char *, MAX(p->world.size, 1));
	}
	for (int i = 0; threads && i < QUEUES; i++)
		if (!start_thread(&all->stream[i])) {
			diag_error(d, p->options->program, "a thread for communication cannot be started; --comm-threads 0 "
				"needs none");
			streams_stop(rt);
			return false;
		}
	return true;
}

void streams_stop(Rt *rt)
{
	for (int i = 0; rt->p->streams && i < QUEUES; i++) {
		Stream *s = &rt->p->streams->stream[i];
		if (!s->has_thread)
			continue;
		atomic_store(&s->quit, true);
		wait_post(&s->issued);
		pthread_join(s->thread, NULL);
	}
	rt->p->streams = NULL;
	hook_stop(rt);
}

/* Threads finish what they have; the rest is not needed. */
void streams_abandon(Rt *rt)
{
	Streams *all = rt->p->streams;
	for (int i = 0; all && i < QUEUES; i++) {
		Stream *s = &all->stream[i];
		if (s->has_thread)
			wait_reach(&s->ended, count(&s->issued), all->spins);
		while (count(&s->ended) != count(&s->issued))
			wait_post(&s->ended);
		s->published = false;
	}
}

void streams_program(Rt *rt, Program program)
{
	Streams *all = rt->p->streams;
	int n;
	rt->p->rows = program_rows(rt->model, program, &n);
	if (!all)
		return;
	for (int i = 0; i < RT_STREAMS; i++)
		if (count(&all->stream[i].issued) != count(&all->stream[i].ended))
			ice("a collective of stream %d was never waited for", i);
	all->rows = rt->p->rows;
	all->n_rows = n;
	program_say(rt, all->progress, program);
}

CommCost streams_cost(Rt *rt)
{
	Streams *all = rt->p->streams;
	CommCounts now[RT_COLLECTIVE_KINDS];
	if (!rt->p->comm)
		return (CommCost){0};
	for (int kind = 0; kind < RT_COLLECTIVE_KINDS; kind++)
		now[kind] = streams_counts(rt, (RtCollectiveKind)kind);
	CommCost cost = cost_since(now, &all->told);
	cost.exposed_ms = all->exposed_ms;
	for (int i = 0; i < RT_STREAMS; i++) {
		cost.ms += all->stream[i].ms;
		all->stream[i].ms = 0;
	}
	all->exposed_ms = 0;
	return cost;
}

CommCounts streams_counts(const Rt *rt, RtCollectiveKind kind)
{
	const Streams *all = rt->p->streams;
	CommCounts sum = {0};
	for (int i = 0; all && i < RT_STREAMS; i++) {
		sum.n += all->stream[i].counts[kind].n;
		sum.bytes += all->stream[i].counts[kind].bytes;
	}
	return sum;
}
