/* runtime/exec/cuda/device.c: the memory of a run on a GPU.
 *
 * There is one allocation for each arena of the plan, of exactly the planned bytes, and one cudaHostAlloc for all
 * pinned memory; a step allocates nothing.  If the back end has an allocator, it allocates what collectives read and
 * write. Arenas that must begin with zeros (gaps between parameters, states) are cleared; those that a step writes
 * before it reads are not.  With several ranks, each maps memory of the host that its peers read: a window for what is
 * sent outside of steps and, where collectives go through the host, mirrors of what they send.
 *
 * What --offload moves off the device has arenas in pinned host memory: gathers copy from there, and updates read and
 * write in place, so that each number crosses the bus once in each direction.  It needs no memory on the device and
 * no schedule of its own.
 *
 * Refuses, before anything is allocated, a plan that needs more than the free memory.
 *
 * base/layout.c counts all of it, so `shardc plan --target=cuda` prints exactly what is allocated. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/cuda/backend.h"
#include "runtime/exec/cuda/cuda.h"

_Static_assert(sizeof(KBad) <= LAYOUT_CUDA_BAD && (int)COMM_MAILBOX == (int)LAYOUT_CUDA_MESSAGE, "as planned");

/* ---- which GPU, and with whom ---- */

typedef struct Gpu { char uuid[16]; int32_t host, unused; } Gpu;
typedef struct Sharing { int before, all; } Sharing; /* number of ranks that use this rank's GPU: lower ones; all */

static bool find_sharing(const Rt *rt, Sharing *out)
{
	const World *w = &rt->p->world;
	struct cudaDeviceProp p;
	*out = (Sharing){0, 1};
	if (w->size < 2)
		return true;
	cuda_must(cudaGetDeviceProperties(&p, rt->p->cuda->device), "cudaGetDeviceProperties");
	Gpu mine = {.host = w->host}, *all = NEW_N(rt->p->arena, Gpu, w->size);
	memcpy(mine.uuid, p.uuid.bytes, sizeof(mine.uuid));
	if (!control_all_gather(rt->p->control, &mine, sizeof(mine), all))
		return false;
	out->all = 0;
	for (int r = 0; r < w->size; r++) {
		bool same = !memcmp(&all[r], &mine, sizeof(mine));
		out->all += same;
		out->before += same && r < w->rank;
	}
	return true;
}

/* ---- the plan ---- */

void device_layout(const Rt *rt, LayoutModel *layout)
{
	const RtModel *m = rt->model;
	layout->cuda = (LayoutCuda){.on = true, .n_groups = m->n_groups,
		.staged = rt->p->cuda->backend == &backend_staged};
	for (int i = 0; i < m->n_tensors; i++)
		layout->cuda.n_segments += m->tensors[i].kind == RT_PARAM && m->tensors[i].trainable;
}

/* Beside the plan a GPU has the code of kernels, which it loads when they are first run: this much is a guess. */
static const int64_t code_bytes = INT64_C(512) << 20;

static void warn_of_code(const Rt *rt, int64_t left, Diag *d)
{
	if (left < code_bytes && rt->p->world.rank == 0)
		diag_warn(d, rt->p->options->program, "the plan leaves %" PRId64 " bytes of GPU %d free, and kernels of cuBLAS "
			"and cuDNN are loaded when they are first run: where that fails, compile for a smaller batch", left,
			rt->p->cuda->device);
}

/* Ranks that share a GPU check at the same time, so each counts the memory of all of them. */
static bool check_memory(const Rt *rt, int ranks, Diag *d)
{
	const DeviceMemory *mem = &rt->p->memory;
	size_t available, all;
	int largest = ARENA_GATHERED;
	char shared[64] = "";
	cuda_must(cudaMemGetInfo(&available, &all), "cudaMemGetInfo");
	int64_t left = (int64_t)available / ranks - mem->total;
	if (left >= 0) {
		warn_of_code(rt, left, d);
		return true;
	}
	for (int i = 0; i < ARENA_COUNT; i++)
		largest = !arena_is_away(i) && mem->planned[i] > mem->planned[largest] ? i : largest;
	if (ranks > 1)
		snprintf(shared, sizeof(shared), " for %d ranks that share it", ranks);
	diag_error(d, rt->p->options->program, "the plan is %" PRId64 " bytes of device memory, most of them %s (%" PRId64
		"), and GPU %d has %zu free%s, of %zu: compile for a smaller batch, or run on more ranks",
		mem->total, device_arena_names[largest], mem->planned[largest], rt->p->cuda->device, available, shared, all);
	return false;
}

/* ---- what is allocated ---- */

/* Arenas with elements that a step reads though nothing has written them. */
static bool begins_as_zeros(ArenaKind arena)
{
	switch (arena) {
	case ARENA_GATHERED: case ARENA_SEND: case ARENA_ACTIVATIONS: case ARENA_WORKSPACE: case ARENA_COMM:
	case ARENA_AWAY_ACTS: return false;
	default: return true;
	}
}

/* The arenas that collectives read and write, in the order of the mirrors that peers read; gradients are last, since
 * owners have more of them. */
static const ArenaKind sent[] = {ARENA_PARAMS, ARENA_GATHERED, ARENA_SEND, ARENA_GRADS};

static bool is_sent(int arena)
{
	bool is = false;
	for (int i = 0; i < COUNT_OF(sent); i++)
		is = is || (int)sent[i] == arena;
	return is;
}

/* Allocates an arena.  NULL, or the reason of a failure. */
static const char *take(Rt *rt, int arena, void **at)
{
	const DeviceMemory *mem = &rt->p->memory;
	Cuda *c = rt->p->cuda;
	size_t bytes = (size_t)mem->planned[arena];
	if (!bytes)
		return NULL;
	if (c->backend->take && is_sent(arena)) {
		const char *why = c->backend->take(rt, at, mem->planned[arena]);
		c->lent[arena] = !why;
		return why;
	}
	cudaError_t e = arena_is_away(arena) ? cudaHostAlloc(at, bytes, cudaHostAllocMapped) : cudaMalloc(at, bytes);
	return e == cudaSuccess ? NULL : cudaGetErrorString(e);
}

static void give(const Rt *rt, int arena)
{
	const DeviceMemory *mem = &rt->p->memory;
	if (rt->p->cuda->lent[arena])
		rt->p->cuda->backend->give(rt, mem->base[arena]);
	else if (arena_is_away(arena) && mem->base[arena])
		cudaFreeHost(mem->base[arena]);
	else
		cudaFree(mem->base[arena]);
}

static bool allocate(Rt *rt, Diag *d)
{
	DeviceMemory *mem = &rt->p->memory;
	cudaStream_t stream = rt->p->cuda->stream[CUDA_COMPUTE];
	for (int i = 0; i < ARENA_COUNT; i++) {
		void *at = NULL;
		const char *why = take(rt, i, &at);
		if (why) {
			diag_error(d, rt->p->options->program, "%" PRId64 " bytes for %s cannot be allocated %s GPU %d: %s (the "
				"whole plan is %" PRId64 " bytes)", mem->planned[i], device_arena_names[i], arena_is_away(i) ?
				"in pinned memory of the host of" : "on", rt->p->cuda->device, why, mem->total);
			return false;
		}
		mem->base[i] = at;
		if (at && begins_as_zeros((ArenaKind)i))
			cuda_must(cudaMemsetAsync(at, 0, (size_t)mem->planned[i], stream), "cudaMemsetAsync");
	}
	cuda_must(cudaStreamSynchronize(stream), "first contents");
	return true;
}

static bool pin(Rt *rt, Diag *d)
{
	Cuda *c = rt->p->cuda;
	int64_t comm = rt->p->memory.host.comm;
	c->pinned_bytes = rt->p->memory.host.pinned;
	void *at = NULL;
	cudaError_t e = cudaHostAlloc(&at, (size_t)c->pinned_bytes, cudaHostAllocMapped);
	if (e != cudaSuccess)
		diag_error(d, rt->p->options->program, "%" PRId64 " bytes of pinned memory of the host cannot be allocated: %s "
			"(beside them the plan has %" PRId64 " that peers map)", c->pinned_bytes, cudaGetErrorString(e), comm);
	c->pinned = at;
	return e == cudaSuccess;
}

void *cuda_pinned(Rt *rt, int64_t bytes)
{
	Cuda *c = rt->p->cuda;
	char *at = c->pinned + c->pinned_used;
	c->pinned_used += round_up(bytes, LAYOUT_ALIGN);
	if (c->pinned_used > c->pinned_bytes)
		ice("%" PRId64 " bytes of pinned memory, planned are %" PRId64, c->pinned_used, c->pinned_bytes);
	memset(at, 0, (size_t)bytes);
	return at;
}

static bool map_comm(Rt *rt, Diag *d)
{
	struct RtPrivate *p = rt->p;
	DeviceMemory *mem = &p->memory;
	Cuda *c = p->cuda;
	LayoutRank who = device_rank(rt);
	bool staged = c->backend == &backend_staged;
	if (p->world.size < 2)
		return true;
	LayoutModel layout = rt->model->layout;
	layout.hosts = p->world.n_hosts;
	device_layout(rt, &layout);
	mem->window_bytes = layout_cuda_window(&layout, &who);
	CommMemory size = {.bytes = mem->window_bytes, .file = -1, .outside = !staged};
	for (int i = 0; staged && i < COUNT_OF(sent); i++)
		size.bytes += mem->planned[sent[i]];
	p->comm = comm_open(p->control, &p->world, &size, p->arena, d);
	if (!p->comm)
		return false;
	char *at = mem->window = comm_memory(p->comm);
	at += mem->window_bytes;
	for (int i = 0; staged && i < COUNT_OF(sent); i++) {
		mem->mirror[sent[i]] = at;
		at += mem->planned[sent[i]];
	}
	if (!staged)
		return true;
	cuda_must(cudaHostRegister(mem->window, (size_t)size.bytes, cudaHostRegisterDefault),
		"memory that peers map cannot be pinned");
	c->shared = mem->window;
	return true;
}

/* Sets the pointers to parts of arenas. */
static void place(Rt *rt)
{
	Cuda *c = rt->p->cuda;
	LayoutModel layout = rt->model->layout;
	device_layout(rt, &layout);
	LayoutTables t = layout_tables(&layout, MAX(rt->p->world.size, 1));
	char *at = rt->p->memory.base[ARENA_TABLES];
	void *bad;
	c->segments = (Segment *)(void *)at;
	c->groups = (Group *)(void *)(at + t.segments);
	c->step_state = at + t.segments + t.groups;
	c->step_norm = c->step_state + t.state;
	c->step_staging = c->step_norm + t.norm;
	for (int i = 0; i < LAYOUT_CUDA_SLOTS; i++)
		c->step_slot[i] = cuda_pinned(rt, t.input);
	c->step_outcome = cuda_pinned(rt, (int64_t)LAYOUT_CUDA_SLOTS * LAYOUT_CUDA_OUTCOME);
	c->bad = cuda_pinned(rt, LAYOUT_CUDA_BAD);
	cuda_must(cudaHostGetDevicePointer(&bad, c->bad, 0), "cudaHostGetDevicePointer");
	k_bad_report = bad;
	rt->p->memory.sync = rt->p->world.size > 1 ? rt->p->memory.base[ARENA_COMM] : NULL;
	device_point(rt);
}

/* ---- life ---- */

/* Streams of communication get priority over the compute stream. */
static void make_streams(Cuda *c)
{
	int least, greatest;
	cuda_must(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
	for (int i = 0; i < CUDA_STREAMS; i++)
		cuda_must(cudaStreamCreateWithPriority(&c->stream[i], cudaStreamNonBlocking,
			i == CUDA_COMPUTE ? least : greatest), "cudaStreamCreateWithPriority");
	k_stream = c->stream[CUDA_COMPUTE];
}

bool device_map(Rt *rt, Diag *d)
{
	Cuda *c = rt->p->cuda = NEW(rt->p->arena, Cuda);
	Sharing sharing;
	cuda_must(cudaGetDevice(&c->device), "cudaGetDevice");
	if (!find_sharing(rt, &sharing))
		return false;
	c->backend = backend_choose(rt, sharing.before == 0, d);
	if (!c->backend)
		return false;
	device_plan(rt);
	bool ok = (!c->backend->load || c->backend->load(rt, &c->backend_state, d)) && check_memory(rt, sharing.all, d);
	if (agree_code(rt, ok ? EXIT_DONE : EXIT_RUN, d))
		return false;
	make_streams(c);
	k_cuda_open(rt->model->tf32);
	ok = allocate(rt, d) && pin(rt, d);
	if (agree_code(rt, ok ? EXIT_DONE : EXIT_RUN, d) || !map_comm(rt, d)) {
		device_unmap(rt);
		return false;
	}
	place(rt);
	return true;
}

/* Errors of the device were reported where they occurred; here they are ignored. */
void device_unmap(Rt *rt)
{
	Cuda *c = rt->p->cuda;
	DeviceMemory *mem = &rt->p->memory;
	if (!c)
		return;
	cudaDeviceSynchronize();
	if (c->stream[CUDA_COMPUTE])
		k_cuda_close();
	for (int i = 0; i < CUDA_STREAMS; i++)
		if (c->stream[i])
			cudaStreamDestroy(c->stream[i]);
	for (int i = 0; i < ARENA_COUNT; i++) {
		give(rt, i);
		mem->base[i] = mem->mirror[i] = NULL;
	}
	k_bad_report = NULL;
	cudaFreeHost(c->pinned);
	if (c->shared)
		cudaHostUnregister(c->shared);
	comm_close(rt->p->comm);
	rt->p->comm = NULL;
	rt->p->cuda = NULL;
	mem->window = NULL;
}

/* ---- access from the host ---- */

/* The arena to which an address belongs; ARENA_COUNT: none. */
static int arena_of(const Rt *rt, const char *at)
{
	const DeviceMemory *mem = &rt->p->memory;
	int i = 0;
	while (i < ARENA_COUNT && !(mem->base[i] && at >= mem->base[i] && at < mem->base[i] + mem->planned[i]))
		i++;
	return i;
}

static bool on_device(const Rt *rt, const char *at)
{
	int arena = arena_of(rt, at);
	return arena < ARENA_COUNT && !arena_is_away(arena);
}

void *device_open(const Rt *rt, const void *at, int64_t bytes, DeviceUse use)
{
	if (!bytes || arena_of(rt, at) == ARENA_COUNT)
		return (void *)(uintptr_t)at;
	cuda_must(cudaDeviceSynchronize(), "what was issued before");
	streams_trust(rt);
	if (!on_device(rt, at))
		return (void *)(uintptr_t)at;
	void *host = malloc((size_t)bytes);
	if (!host)
		ice("out of memory");
	if (use & DEVICE_READ)
		cuda_must(cudaMemcpy(host, at, (size_t)bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
	return host;
}

void device_close(const Rt *rt, const void *at, void *host, int64_t bytes, DeviceUse use)
{
	if (!on_device(rt, at) || !bytes)
		return;
	if (use & DEVICE_WRITE)
		cuda_send((void *)(uintptr_t)at, host, (size_t)bytes);
	free(host);
}
