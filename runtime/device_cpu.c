/* runtime/device_cpu.c: the memory of a run on the CPU.
 *
 * One mapping for each category of the plan, of exactly the planned bytes, made once; a step allocates
 * nothing.  Large mappings start at 2 MiB, so that transparent huge pages fit.  Where there are peers, what they
 * read (parameters at rest, flat gradients, what is sent in another dtype, gathered flats of which each rank casts
 * its part, messages of sync.c) lies in the communicator's memory, one mapping with its counters.
 *
 * The one idea: base/layout.c says how many bytes; the cutting into units below must use them up exactly,
 * or it is an internal error. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/internal.h"

enum { HUGE_PAGE = 2 << 20 };

static const char *const arena_names[ARENA_COUNT] = {
	"parameters", "gathered", "gradients", "gradients in a file", "sent copies", "optimizer states", "buffers",
	"inputs", "activations", "workspace", "communication"};

/* A mapping of exactly `bytes`, on a huge page's boundary when it is at least one. */
static char *map_bytes(int64_t bytes)
{
	size_t slack = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
	char *p = mmap(NULL, (size_t)bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	if (!slack)
		return p;
	char *start = (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *end = (char *)(((uintptr_t)start + (size_t)bytes + page - 1) & ~(uintptr_t)(page - 1));
	char *mapped_end = (char *)(((uintptr_t)p + (size_t)bytes + slack + page - 1) & ~(uintptr_t)(page - 1));
	if (start > p)
		munmap(p, (size_t)(start - p));
	if (mapped_end > end)
		munmap(end, (size_t)(mapped_end - end));
	madvise(start, (size_t)(end - start), MADV_HUGEPAGE);
	return start;
}

static void plan(Rt *rt)
{
	DeviceMemory *mem = &rt->p->memory;
	LayoutModel layout = rt->model->layout;
	LayoutRank who = device_rank(rt);
	layout.hosts = rt->p->world.n_hosts;
	layout.n_states = rt->p->optim.n_states;
	LayoutMemory sum = layout_memory(&layout, &who);
	mem->places = layout_places(&layout, &who, rt->p->arena);
	const int64_t planned[ARENA_COUNT] = {sum.params + sum.file.params, sum.gathered, sum.grads, sum.file.grads,
		sum.send, sum.states + sum.file.states, sum.buffers, sum.inputs, sum.activations, sum.workspace, sum.comm};
	const bool in_file[ARENA_COUNT] = {[ARENA_PARAMS] = sum.file.params, [ARENA_KEPT] = sum.file.grads,
		[ARENA_STATES] = sum.file.states};
	memcpy(mem->planned, planned, sizeof(planned));
	mem->total = sum.total;
	for (int i = 0; i < ARENA_COUNT; i++) {
		mem->file_at[i] = in_file[i] ? mem->file_bytes : -1;
		mem->file_bytes += in_file[i] ? round_up(planned[i], OFFLOAD_PAGE) : 0;
	}
}

typedef void *Pointers[LAYOUT_MAX_FLATS];

/* Offsets in an arena as pointers; NULL where a rank holds nothing. */
static Pointers *pointers(const Rt *rt, ArenaKind arena, LayoutOffsets *offset)
{
	const LayoutModel *l = &rt->model->layout;
	Pointers *p = arena_alloc(rt->p->arena, sizeof(*p) * (size_t)MAX(l->n_units, 1));
	for (int u = 0; u < l->n_units; u++)
		for (int f = 0; f < LAYOUT_MAX_FLATS; f++)
			p[u][f] = offset[u][f] < 0 ? NULL : rt->p->memory.base[arena] + offset[u][f];
	return p;
}

/* Gradients that the update reads are in the file, flat gradients only where they are the same. */
static void point_kept(Rt *rt)
{
	const LayoutModel *l = &rt->model->layout;
	LayoutRank who = device_rank(rt);
	rt->grad_shard = pointers(rt, ARENA_KEPT, rt->p->memory.places.grad_shard);
	for (int u = 0; u < l->n_units; u++)
		if (layout_grad_stays(&l->unit[u], &who))
			memcpy(rt->grad[u], rt->grad_shard[u], sizeof(rt->grad[u]));
}

static void point_units(Rt *rt)
{
	const LayoutPlaces *at = &rt->p->memory.places;
	rt->param = pointers(rt, ARENA_PARAMS, at->param);
	rt->shard = pointers(rt, ARENA_PARAMS, at->param);
	rt->grad = pointers(rt, ARENA_GRADS, at->grad);
	rt->grad_shard = pointers(rt, ARENA_GRADS, at->grad_shard);
	if (rt->model->layout.offload == LAYOUT_OFFLOAD_PARAMS)
		point_kept(rt);
	for (int k = 0; k < rt->p->optim.n_states; k++)
		rt->p->optim.state[k] = pointers(rt, ARENA_STATES, at->state[k]);
	rt->p->optim.master = pointers(rt, ARENA_STATES, at->master);
	for (int u = 0; u < rt->model->layout.n_units; u++)
		rt_reshard(rt, u);
}

static bool in_file(const DeviceMemory *mem, ArenaKind arena)
{
	return mem->file_at[arena] >= 0;
}

static bool any_casts(const LayoutModel *l)
{
	for (int u = 0; u < l->n_units; u++)
		for (int f = 0; f < l->unit[u].n_flats; f++)
			if (layout_casts(&l->unit[u].flat[f]))
				return true;
	return false;
}

/* What peers read, in this order; gradients are last, since owners have more of them.  What is in the file follows
 * behind all memory, at the next page: parameters, then gradients again. */
static const ArenaKind shared[] = {ARENA_PARAMS, ARENA_GATHERED, ARENA_SEND, ARENA_GRADS, ARENA_KEPT};

static bool in_comm(const Rt *rt, ArenaKind arena)
{
	if (rt->p->world.size < 2)
		return false;
	switch (arena) {
	case ARENA_PARAMS: case ARENA_SEND: case ARENA_GRADS: case ARENA_KEPT: case ARENA_COMM: return true;
	case ARENA_GATHERED: return any_casts(&rt->model->layout);
	default: return false;
	}
}

static bool map_comm(Rt *rt, Diag *d)
{
	DeviceMemory *mem = &rt->p->memory;
	struct RtPrivate *p = rt->p;
	int64_t sync = layout_sync_bytes(&rt->model->layout, p->world.size);
	CommMemory size = {.bytes = sync, .file = mem->file};
	if (p->world.size < 2)
		return true;
	for (int i = 0; i < COUNT_OF(shared); i++) {
		if (in_file(mem, shared[i]))
			size.file_bytes = mem->file_at[shared[i]] + mem->planned[shared[i]];
		else if (in_comm(rt, shared[i]))
			size.bytes += mem->planned[shared[i]];
	}
	p->comm = comm_open(p->control, &p->world, &size, p->arena, d);
	if (!p->comm)
		return false;
	mem->sync = comm_memory(p->comm);
	char *at = mem->sync + sync, *file = mem->sync + round_up(size.bytes, OFFLOAD_PAGE);
	for (int i = 0; i < COUNT_OF(shared); i++) {
		if (!in_comm(rt, shared[i]))
			continue;
		bool offloaded = in_file(mem, shared[i]);
		mem->base[shared[i]] = offloaded ? file + mem->file_at[shared[i]] : at;
		at += offloaded ? 0 : mem->planned[shared[i]];
	}
	return true;
}

static char *map_file(const DeviceMemory *mem, ArenaKind arena)
{
	void *p = mmap(NULL, (size_t)mem->planned[arena], PROT_READ | PROT_WRITE, MAP_SHARED, mem->file,
		mem->file_at[arena]);
	return p == MAP_FAILED ? NULL : p;
}

static bool map_private(Rt *rt, Diag *d)
{
	DeviceMemory *mem = &rt->p->memory;
	for (int i = 0; i < ARENA_COUNT; i++) {
		if (mem->planned[i] == 0 || in_comm(rt, (ArenaKind)i))
			continue;
		mem->base[i] = in_file(mem, (ArenaKind)i) ? map_file(mem, (ArenaKind)i) : map_bytes(mem->planned[i]);
		if (!mem->base[i]) {
			diag_error(d, rt->p->options->program,
				"%" PRId64 " bytes for %s cannot be mapped: %s (the whole plan "
				"is %" PRId64 " bytes)",
				mem->planned[i], arena_names[i], strerror(errno), mem->total);
			return false;
		}
	}
	return true;
}

bool device_map(Rt *rt, Diag *d)
{
	DeviceMemory *mem = &rt->p->memory;
	plan(rt);
	bool ok = offload_make(rt, d) && map_private(rt, d);
	if (start_agree(rt, ok ? EXIT_DONE : EXIT_RUN, d) || !map_comm(rt, d)) {
		device_unmap(rt);
		return false;
	}
	point_units(rt);
	rt->state = mem->base[ARENA_BUFFERS];
	rt->input = mem->base[ARENA_INPUTS];
	rt->act = mem->base[ARENA_ACTIVATIONS];
	rt->work = mem->base[ARENA_WORKSPACE];
	rt->prim = NEW_N(rt->p->arena, void *, MAX(rt->model->n_prims, 1));
	return true;
}

void device_unmap(Rt *rt)
{
	DeviceMemory *mem = &rt->p->memory;
	for (int i = 0; i < ARENA_COUNT; i++) {
		if (mem->base[i] && !in_comm(rt, (ArenaKind)i))
			munmap(mem->base[i], (size_t)mem->planned[i]);
		mem->base[i] = NULL;
	}
	comm_close(rt->p->comm);
	rt->p->comm = NULL;
	offload_close(rt);
}

char *device_tensor(const Rt *rt, const RtTensor *t)
{
	switch (t->kind) {
	case RT_INPUT: return rt->input + t->offset;
	case RT_PARAM: return (char *)rt->param[t->unit][t->flat] +
		t->offset * dtype_info[rt->model->layout.unit[t->unit].flat[t->flat].param].bytes;
	case RT_BUFFER: case RT_DATA: case RT_STATE: return rt->state + t->offset;
	}
	ice("tensor \"%s\" has kind %d", t->name, (int)t->kind);
}

/* From the OpenMP runtime that the kernels bring; absent where nothing is parallel. */
__attribute__((weak)) void omp_set_num_threads(int n);
__attribute__((weak)) int omp_get_max_threads(void);

void device_set_threads(int64_t n)
{
	if (n > 0 && omp_set_num_threads)
		omp_set_num_threads((int)MIN(n, 4096));
}

int device_threads(void)
{
	return omp_get_max_threads ? omp_get_max_threads() : 1;
}

LayoutRank device_rank(const Rt *rt)
{
	const World *w = &rt->p->world;
	int64_t size = MAX(w->size, 1), given = rt->p->options->shard_size;
	return (LayoutRank){w->rank, size, given ? given : size / MAX(w->n_hosts, 1)};
}
