/* runtime/exec/cpu/device.c: the memory of a run on the CPU.
 *
 * There is one mapping for each category of the plan, of exactly the planned bytes, made once; steps do not map memory.
 * Large mappings start at multiples of 2 MiB, so that transparent huge pages fit.  Where there are peers, what they
 * read (parameters at rest, flat gradients, copies sent in another dtype, gathered flats of which each rank casts its
 * part, messages of sync.c) lies in the communicator's memory, which is one mapping with its counters.
 *
 * A mapping has the planned bytes and never grows, so a lack of memory shows before the first step. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/exec/private.h"

/* All that move memory of the host. */
#define COMM_ANY(text) text,
#define COMM_CUDA(text)
#define COMM_TEXT(id, text, reach, target, ...) COMM_##target(text)
const char *const device_comms[] = {COMMUNICATORS(COMM_TEXT) NULL};

enum { HUGE_PAGE = 2 << 20 };

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

int device_time_ops(Rt *rt, DeviceStep *step, void *context, Diag *d)
{
	(void)rt, (void)step, (void)context, (void)d;
	ice("--time-ops of a program for CPUs");
}

bool device_setup(Rt *rt, Diag *d)
{
	(void)d;
	rt->model->setup(rt);
	return true;
}

/* The arenas that peers read, in this order; gradients are last, since owners have more of them.  The file's part
 * follows after all memory, at the next page: parameters, then gradients again. */
static const ArenaKind shared[] = {ARENA_PARAMS, ARENA_GATHERED, ARENA_SEND, ARENA_GRADS, ARENA_AWAY_PARAMS,
	ARENA_AWAY_GRADS};

static bool in_comm(const Rt *rt, ArenaKind arena)
{
	if (rt->p->world.size < 2)
		return false;
	switch (arena) {
	case ARENA_PARAMS: case ARENA_SEND: case ARENA_GRADS: case ARENA_COMM: return true;
	case ARENA_AWAY_PARAMS: case ARENA_AWAY_GRADS: return true;
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
	char *at = mem->sync + sync, *file = comm_file(p->comm);
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
				mem->planned[i], device_arena_names[i], strerror(errno), mem->total);
			return false;
		}
	}
	return true;
}

bool device_map(Rt *rt, Diag *d)
{
	device_plan(rt);
	bool ok = offload_make(rt, d) && map_private(rt, d);
	if (agree_code(rt, ok ? EXIT_DONE : EXIT_RUN, d) || !map_comm(rt, d)) {
		device_unmap(rt);
		return false;
	}
	device_point(rt);
	rt->scalars = &rt->p->scalars;
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

void device_layout(const Rt *rt, LayoutModel *layout)
{
	(void)rt, (void)layout;
}

void device_tables(const Rt *rt)
{
	(void)rt;
}

/* ---- access from the host ---- */

void *device_open(const Rt *rt, const void *at, int64_t bytes, DeviceUse use)
{
	(void)rt, (void)bytes, (void)use;
	return (void *)(uintptr_t)at;
}

void device_close(const Rt *rt, const void *at, void *host, int64_t bytes, DeviceUse use)
{
	(void)rt, (void)at, (void)host, (void)bytes, (void)use;
}
