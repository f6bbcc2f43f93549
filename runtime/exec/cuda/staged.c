/* runtime/exec/cuda/staged.c: the back end that communicates through host memory which peers read, for ranks that share
 * a GPU or have no NCCL.
 *
 * When a collective is issued, its source is copied into the communicator's memory, which has the same places as the
 * device's arenas; rt_wait then blocks the host while collective.c runs on a host copy of Rt as on the CPU, and the
 * result is copied back to the device.  So sums have the same bits as those of CPU ranks.
 *
 * The plan's order of accesses to device memory also holds for the mirror: whoever may write a flat on the device may
 * write its mirror, since peers read the mirror only for the same collective. */
#include <inttypes.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "runtime/exec/cuda/backend.h"
#include "runtime/exec/cuda/cuda.h"

typedef struct Staged {
	Rt host;                /* a copy of Rt with pointers into the mirror */
	struct RtPrivate p;
	cudaEvent_t sent[RT_STREAMS];
	const char **from;
	char *message;          /* messages of all ranks, pinned */
} Staged;

/* n bytes of the flat at `device`, whose mirror is `host`. */
typedef struct Range { char *device, *host; int64_t n; } Range;

static Range range(void *device, void *host, int64_t first, int64_t n, DType t)
{
	int64_t size = dtype_info[t].bytes;
	return (Range){(char *)device + first * size, (char *)host + first * size, n * size};
}

/* The ranges of a flat that a collective reads and writes; n = 0: none. */
typedef struct Moved { Range sent, made; } Moved;

static Moved moved(const Rt *rt, const Rt *host, const RtCollective *row, int f)
{
	int u = row->unit;
	const LayoutUnit *unit = &rt->model->layout.unit[u];
	const LayoutFlat *flat = &unit->flat[f];
	LayoutRank who = device_rank(rt);
	LayoutSplit split = layout_split(unit->strategy, &who);
	int64_t whole = layout_flat_numel(flat->numel, split.ranks), shard = layout_shard_numel(flat->numel, split.ranks);
	LayoutRange mine = layout_range(unit, f, &who);
	DType kept = layout_update_dtype(unit, f, &who);
	Range none = {NULL, NULL, 0}, grad = range(rt->grad[u][f], host->grad[u][f], 0, whole, flat->grad);
	Range reduced = range(rt->grad_shard[u][f], host->grad_shard[u][f], 0, mine.n, kept), result = reduced;
	if (unit->apart)
		result = range(rt->grad[u][f], host->grad[u][f], mine.begin, mine.n, flat->grad);
	switch (row->kind) {
	case RT_ALL_GATHER:
		if (!layout_is_gathered(flat, split.ranks))
			return (Moved){none, none};
		return (Moved){flat->away ? none : range(rt->shard[u][f], host->shard[u][f], 0, shard, flat->dtype),
			range(collective_gathered(rt, row, f), collective_gathered(host, row, f), 0, whole, flat->param)};
	case RT_REDUCE_SCATTER: case RT_REDUCE: return (Moved){grad, result};
	case RT_ALL_REDUCE: return (Moved){grad, grad};
	case RT_ALL_REDUCE_SHARDS: return (Moved){reduced, reduced};
	case RT_BROADCAST: {
		Range all = range(rt->shard[u][f], host->shard[u][f], 0, whole, flat->dtype);
		bool owner = unit->owner == rt->p->world.rank;
		return (Moved){owner ? all : none, owner ? none : all};
	}
	default: ice("%s is not staged", collective_name(row->kind));
	}
}

static bool takes_part(const Rt *rt, const RtCollective *row, int f)
{
	return row->kind == RT_ALL_GATHER || rt->model->layout.unit[row->unit].flat[f].trainable;
}

static Staged *staged(const Rt *rt)
{
	return streams_backend_state(rt);
}

static void staged_issue(Rt *rt, const RtCollective *row, int seq, cudaStream_t stream)
{
	Staged *s = staged(rt);
	(void)seq;
	for (int f = 0; collective_parts(rt, row) && f < rt->model->layout.unit[row->unit].n_flats; f++) {
		Range r = takes_part(rt, row, f) ? moved(rt, &s->host, row, f).sent : (Range){NULL, NULL, 0};
		if (r.n)
			cuda_must(cudaMemcpyAsync(r.host, r.device, (size_t)r.n, cudaMemcpyDeviceToHost, stream),
				"what a collective sends cannot be copied");
	}
	cuda_must(cudaEventRecord(s->sent[row->stream], stream), "an event cannot be recorded");
}

/* Copies the scales of weights, by which this host divides, through the pinned memory of messages. */
static void take_scales(const Rt *rt, Staged *s, cudaStream_t stream)
{
	const char *from = (const char *)rt->p->scales;
	int64_t bytes = (int64_t)rt->model->n_scales * LAYOUT_SCALE_BYTES;
	for (int64_t at = 0, n; at < bytes; at += n) {
		n = MIN(bytes - at, COMM_MAILBOX);
		cuda_must(cudaMemcpyAsync(s->message, from + at, (size_t)n, cudaMemcpyDeviceToHost, stream),
			"scales of weights cannot be copied");
		cuda_must(cudaStreamSynchronize(stream), "scales of weights do not arrive");
		memcpy((char *)s->p.scales + at, s->message, (size_t)n);
	}
}

static bool divides(const Rt *rt, const RtCollective *row)
{
	const LayoutUnit *u = &rt->model->layout.unit[row->unit];
	return row->kind == RT_ALL_GATHER && layout_is_scaled(u->flat, u->n_flats);
}

/* Copies the step's scalars from the device, which alone knows its step. */
static void take_scalars(const Rt *rt, Staged *s, cudaStream_t stream)
{
	cuda_must(cudaMemcpyAsync(s->message, rt->scalars, sizeof(s->p.scalars), cudaMemcpyDeviceToHost, stream),
		"a step's scalars cannot be copied");
	cuda_must(cudaStreamSynchronize(stream), "a step's scalars do not arrive");
	memcpy(&s->p.scalars, s->message, sizeof(s->p.scalars));
}

static void staged_finish(Rt *rt, const RtCollective *row, int seq, cudaStream_t stream)
{
	Staged *s = staged(rt);
	int n = collective_parts(rt, row);
	(void)seq;
	cuda_must(cudaEventSynchronize(s->sent[row->stream]), "what a collective sends does not arrive");
	if (row->by_chance)
		take_scalars(rt, s, stream);
	if (divides(rt, row))
		take_scales(rt, s, stream);
	for (int k = 0; k < n; k++) {
		Part part;
		collective_begin(&s->host, streams_collectives(rt), row, k, &part);
		collective_finish(&s->host, &part, s->from);
	}
	for (int f = 0; n && f < rt->model->layout.unit[row->unit].n_flats; f++) {
		Range r = takes_part(rt, row, f) ? moved(rt, &s->host, row, f).made : (Range){NULL, NULL, 0};
		if (r.n)
			cuda_must(cudaMemcpyAsync(r.device, r.host, (size_t)r.n, cudaMemcpyHostToDevice, stream),
				"what a collective made cannot be copied");
	}
}

/* ---- small messages ---- */

/* Exchanges small messages through mailboxes, piece by piece; `message` holds this rank's piece, then those of all. */
static void small(Rt *rt, char *all, int64_t stride, const char *mine, int64_t bytes, int only, cudaStream_t stream)
{
	Staged *s = staged(rt);
	int world = rt->p->world.size;
	for (int64_t at = 0, n; at < bytes; at += n) {
		n = MIN(bytes - at, COMM_MAILBOX);
		int64_t padded = round_up(n, 4);
		cuda_must(cudaMemcpyAsync(s->message, mine + at, (size_t)n, cudaMemcpyDeviceToHost, stream),
			"a message cannot be copied");
		cuda_must(cudaStreamSynchronize(stream), "a message does not arrive");
		char *from = s->message + COMM_MAILBOX;
		comm_all(rt->p->comm, s->message, padded, from);
		for (int r = 0; r < world; r++)
			if (only < 0 || (r == only && r != rt->p->world.rank))
				cuda_must(cudaMemcpyAsync(all + r * stride + at, from + r * padded, (size_t)n, cudaMemcpyHostToDevice,
					stream), "a message cannot be copied");
		cuda_must(cudaStreamSynchronize(stream), "a message does not arrive");
	}
}

static void staged_gather_small(Rt *rt, void *all, const void *mine, int64_t bytes, cudaStream_t stream)
{
	small(rt, all, bytes, mine, bytes, -1, stream);
}

static void staged_broadcast_small(Rt *rt, void *at, int64_t bytes, cudaStream_t stream)
{
	small(rt, at, 0, at, bytes, 0, stream);
}

/* ---- life ---- */

static bool staged_open(Rt *rt, void **state, Diag *d)
{
	Arena *a = rt->p->arena;
	Staged *s = NEW(a, Staged);
	(void)d;
	s->p = *rt->p;
	s->host = *rt;
	s->host.p = &s->p;
	for (int i = 0; i < ARENA_COUNT; i++)
		s->p.memory.base[i] = arena_is_away(i) ? rt->p->memory.base[i] : rt->p->memory.mirror[i];
	device_point(&s->host);
	s->host.scalars = &s->p.scalars;
	s->p.scales = arena_alloc(a, (size_t)(MAX(rt->model->n_scales, 1) * LAYOUT_SCALE_BYTES));
	s->from = NEW_N(a, const char *, rt->p->world.size);
	for (int i = 0; i < RT_STREAMS; i++)
		cuda_must(cudaEventCreateWithFlags(&s->sent[i], cudaEventDisableTiming), "an event cannot be made");
	s->message = cuda_pinned(rt, (int64_t)COMM_MAILBOX * (rt->p->world.size + 1));
	*state = s;
	return true;
}

static void staged_close(Rt *rt)
{
	Staged *s = staged(rt);
	for (int i = 0; s && i < RT_STREAMS; i++)
		cudaEventDestroy(s->sent[i]);
}

const Backend backend_staged = {.name = "staged", .open = staged_open, .close = staged_close, .issue = staged_issue,
	.finish = staged_finish, .gather_small = staged_gather_small, .broadcast_small = staged_broadcast_small};
