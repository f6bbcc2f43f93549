/* runtime/device_cpu.c: the memory of a run on the CPU.
 *
 * One mapping for each category of the plan, of exactly the planned bytes, made once; a step allocates
 * nothing.  Large mappings start at 2 MiB, so that transparent huge pages fit.
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
	"parameters", "gradients", "optimizer states", "buffers", "inputs", "activations", "workspace"};

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
	const RtModel *m = rt->model;
	DeviceMemory *mem = &rt->p->memory;
	const LayoutFlat **flats = NEW_N(rt->p->arena, const LayoutFlat *, m->n_units);
	int *n_flats = NEW_N(rt->p->arena, int, m->n_units);
	for (int u = 0; u < m->n_units; u++) {
		flats[u] = m->units[u].flat;
		n_flats[u] = m->units[u].n_flats;
	}
	LayoutModel layout = {.flats = flats, .n_flats = n_flats, .n_units = m->n_units,
		.n_states = rt->p->optim.n_states, .act_bytes = m->act_bytes, .input_bytes = m->input_bytes,
		.state_bytes = m->state_bytes, .work_bytes = m->work_bytes};
	LayoutMemory sum = layout_memory(&layout, 1);
	mem->planned[ARENA_PARAMS] = sum.params;
	mem->planned[ARENA_GRADS] = sum.grads;
	mem->planned[ARENA_STATES] = sum.states;
	mem->planned[ARENA_BUFFERS] = sum.buffers;
	mem->planned[ARENA_INPUTS] = sum.inputs;
	mem->planned[ARENA_ACTIVATIONS] = sum.activations;
	mem->planned[ARENA_WORKSPACE] = sum.workspace;
	mem->total = sum.total;
}

static char *cut(const DeviceMemory *mem, ArenaKind arena, int64_t *used, int64_t bytes)
{
	char *p = mem->base[arena] + *used;
	*used += bytes;
	if (*used > mem->planned[arena])
		ice("%s need %" PRId64 " bytes, planned are %" PRId64, arena_names[arena], *used,
			mem->planned[arena]);
	return p;
}

/* At one rank a gathered flat and its gradient are the shards themselves. */
static void cut_units(Rt *rt)
{
	const RtModel *m = rt->model;
	const DeviceMemory *mem = &rt->p->memory;
	Arena *a = rt->p->arena;
	int64_t used[ARENA_COUNT] = {0};
	rt->param = arena_alloc(a, sizeof(*rt->param) * (size_t)m->n_units);
	rt->grad = arena_alloc(a, sizeof(*rt->grad) * (size_t)m->n_units);
	for (int k = 0; k < rt->p->optim.n_states; k++)
		rt->p->optim.state[k] = arena_alloc(a, sizeof(*rt->p->optim.state[k]) * (size_t)m->n_units);
	for (int u = 0; u < m->n_units; u++)
		for (int f = 0; f < m->units[u].n_flats; f++) {
			const LayoutFlat *flat = &m->units[u].flat[f];
			int64_t numel = layout_shard_numel(flat->numel, 1), bytes = numel * dtype_info[flat->dtype].bytes;
			rt->param[u][f] = cut(mem, ARENA_PARAMS, &used[ARENA_PARAMS], bytes);
			if (!flat->trainable)
				continue;
			rt->grad[u][f] = cut(mem, ARENA_GRADS, &used[ARENA_GRADS], bytes);
			for (int k = 0; k < rt->p->optim.n_states; k++)
				rt->p->optim.state[k][u][f] = cut(mem, ARENA_STATES, &used[ARENA_STATES], numel * 4);
		}
	rt->shard = rt->param;
	rt->grad_shard = rt->grad;
	for (int i = ARENA_PARAMS; i <= ARENA_STATES; i++)
		if (used[i] != mem->planned[i])
			ice("%s use %" PRId64 " of %" PRId64 " planned bytes", arena_names[i], used[i], mem->planned[i]);
}

bool device_map(Rt *rt, Diag *d)
{
	DeviceMemory *mem = &rt->p->memory;
	plan(rt);
	for (int i = 0; i < ARENA_COUNT; i++) {
		if (mem->planned[i] == 0)
			continue;
		mem->base[i] = map_bytes(mem->planned[i]);
		if (!mem->base[i]) {
			diag_error(d, rt->p->options->program,
				"%" PRId64 " bytes for %s cannot be mapped: %s (the whole plan "
				"is %" PRId64 " bytes)",
				mem->planned[i], arena_names[i], strerror(errno), mem->total);
			device_unmap(rt);
			return false;
		}
	}
	cut_units(rt);
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
		if (mem->base[i])
			munmap(mem->base[i], (size_t)mem->planned[i]);
		mem->base[i] = NULL;
	}
}

void device_print_plan(const Rt *rt, FILE *out)
{
	const DeviceMemory *mem = &rt->p->memory;
	fprintf(out, "%-18s %16s\n", "memory", "planned bytes");
	for (int i = 0; i < ARENA_COUNT; i++)
		fprintf(out, "%-18s %16" PRId64 "\n", arena_names[i], mem->planned[i]);
	fprintf(out, "%-18s %16" PRId64 "\n", "total", mem->total);
}

char *device_tensor(const Rt *rt, const RtTensor *t)
{
	switch (t->kind) {
	case RT_INPUT: return rt->input + t->offset;
	case RT_PARAM: return (char *)rt->param[t->unit][t->flat] + t->offset * dtype_info[t->dtype].bytes;
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
