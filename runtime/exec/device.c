/* runtime/exec/device.c: the arenas of a run and the places in them, for any device.
 *
 * cpu/device.c or cuda/device.c maps the arenas, with exactly these bytes.
 *
 * base/layout.c computes bytes and offsets; base pointers turn the offsets into pointers. */
#include <string.h>
#include <unistd.h>

#include "runtime/exec/private.h"

const char *const device_arena_names[ARENA_COUNT] = {
	"parameters", "gathered", "gradients", "sent copies", "optimizer states", "buffers", "inputs", "activations",
	"workspace", "communication", "device tables", "offloaded parameters", "offloaded gradients",
	"offloaded optimizer states", "offloaded activations"};

bool device_has_snapshot(const Rt *rt)
{
	const RtOptions *o = rt->p->options;
	bool own_files = o->save_kind != CHECKPOINT_FULL || rt->p->world.size < 2;
	return o->save && o->save_every && own_files && !layout_offloads(&rt->model->layout);
}

void device_plan(Rt *rt)
{
	DeviceMemory *mem = &rt->p->memory;
	LayoutModel layout = rt->model->layout;
	LayoutRank who = device_rank(rt);
	layout.hosts = rt->p->world.n_hosts;
	layout.n_states = rt->p->optim.n_states;
	layout.snapshot = device_has_snapshot(rt);
	device_layout(rt, &layout);
	LayoutMemory sum = layout_memory(&layout, &who);
	mem->places = layout_places(&layout, &who, rt->p->arena);
	const int64_t planned[ARENA_COUNT] = {sum.params, sum.gathered, sum.grads - sum.grads_behind, sum.send, sum.states,
		sum.buffers, sum.inputs, sum.activations + sum.grads_behind, sum.workspace, sum.comm, sum.tables,
		sum.file.params + sum.host.params, sum.file.grads, sum.file.states + sum.host.states, sum.host.activations};
	memcpy(mem->planned, planned, sizeof(planned));
	mem->total = sum.total;
	mem->grads_behind = sum.grads_behind;
	mem->host = sum.host;
	mem->snapshot = sum.snapshot + sum.host.snapshot;
	const int64_t page = sysconf(_SC_PAGESIZE);
	for (int i = 0; i < ARENA_COUNT; i++) {
		bool in_file = arena_is_away(i) && planned[i] && !rt->model->need_cuda;
		mem->file_at[i] = in_file ? mem->file_bytes : -1;
		mem->file_bytes += in_file ? round_up(planned[i], page) : 0;
	}
}

typedef void *Pointers[LAYOUT_MAX_FLATS];

/* The arena in which a unit has these places. */
typedef ArenaKind ArenaOf(const Rt *rt, const LayoutUnit *u);

static ArenaKind arena_of_params(const Rt *rt, const LayoutUnit *u)
{
	(void)rt;
	return layout_params_away(u) ? ARENA_AWAY_PARAMS : ARENA_PARAMS;
}

static ArenaKind arena_of_reduced(const Rt *rt, const LayoutUnit *u)
{
	LayoutModel layout = rt->model->layout;
	LayoutRank who = device_rank(rt);
	layout.cuda.on = rt->model->need_cuda;
	if (layout_grad_over_acts(&layout, u, &who))
		return ARENA_ACTIVATIONS;
	return layout_grads_away(u, rt->model->need_cuda) ? ARENA_AWAY_GRADS : ARENA_GRADS;
}

/* Of flat gradients, those are in the file that the update reads. */
static ArenaKind arena_of_grads(const Rt *rt, const LayoutUnit *u)
{
	LayoutRank who = device_rank(rt);
	return layout_grad_stays(u, &who) ? arena_of_reduced(rt, u) : ARENA_GRADS;
}

static ArenaKind arena_of_states(const Rt *rt, const LayoutUnit *u)
{
	(void)rt;
	return layout_states_away(u) ? ARENA_AWAY_STATES : ARENA_STATES;
}

/* Turns offsets in arenas into pointers; NULL where a rank holds nothing. */
static Pointers *pointers(const Rt *rt, ArenaOf *arena_of, LayoutOffsets *offset)
{
	const LayoutModel *l = &rt->model->layout;
	Pointers *p = arena_alloc(rt->p->arena, sizeof(*p) * (size_t)MAX(l->n_units, 1));
	for (int u = 0; u < l->n_units; u++)
		for (int f = 0; f < LAYOUT_MAX_FLATS; f++)
			p[u][f] = offset[u][f] < 0 ? NULL : rt->p->memory.base[arena_of(rt, &l->unit[u])] + offset[u][f];
	return p;
}

void device_point(Rt *rt)
{
	const LayoutPlaces *at = &rt->p->memory.places;
	rt->param = pointers(rt, arena_of_params, at->param);
	rt->shard = pointers(rt, arena_of_params, at->param);
	rt->grad = pointers(rt, arena_of_grads, at->grad);
	rt->grad_shard = pointers(rt, arena_of_reduced, at->grad_shard);
	for (int k = 0; k < rt->p->optim.n_states; k++)
		rt->p->optim.state[k] = pointers(rt, arena_of_states, at->state[k]);
	rt->p->optim.master = pointers(rt, arena_of_states, at->master);
	for (int u = 0; u < rt->model->layout.n_units; u++)
		rt_reshard(rt, u);
	rt->state = rt->p->memory.base[ARENA_BUFFERS];
	rt->p->scales = rt->model->n_scales ? (float *)(void *)(rt->state + rt->model->scales->offset) : NULL;
	rt->input = rt->p->memory.base[ARENA_INPUTS];
	rt->act = rt->p->memory.base[ARENA_ACTIVATIONS];
	rt->work = rt->p->memory.base[ARENA_WORKSPACE];
	rt->host = rt->p->memory.base[ARENA_AWAY_ACTS];
	rt->prim = NEW_N(rt->p->arena, KPrim *, MAX(rt->model->n_prims, 1));
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

LayoutRank device_rank(const Rt *rt)
{
	const World *w = &rt->p->world;
	int64_t size = MAX(w->size, 1), given = rt->p->options->shard_size;
	return (LayoutRank){w->rank, size, given ? given : size / MAX(w->n_hosts, 1)};
}

void device_put(const Rt *rt, void *at, const void *from, int64_t bytes)
{
	for (int64_t done = 0; done < bytes; done += DEVICE_PIECE) {
		int64_t n = MIN(bytes - done, (int64_t)DEVICE_PIECE);
		char *host = device_open(rt, (char *)at + done, n, DEVICE_WRITE);
		memcpy(host, (const char *)from + done, (size_t)n);
		device_close(rt, (char *)at + done, host, n, DEVICE_WRITE);
	}
}

void device_zero(const Rt *rt, void *at, int64_t bytes)
{
	for (int64_t done = 0; done < bytes; done += DEVICE_PIECE) {
		int64_t n = MIN(bytes - done, (int64_t)DEVICE_PIECE);
		char *host = device_open(rt, (char *)at + done, n, DEVICE_WRITE);
		memset(host, 0, (size_t)n);
		device_close(rt, (char *)at + done, host, n, DEVICE_WRITE);
	}
}
