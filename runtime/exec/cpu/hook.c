/* runtime/exec/cpu/hook.c: --comm-hook: calls a user's function in place of the built-in reduction of gradients
 * (hook.h).
 *
 * A hook that fails ends this process at once, since its exchanges may be incomplete; the control plane ends the
 * others.  Refuses sources that peers cannot read.
 *
 * A hook communicates through the same exchanges (Part) as built-in reductions, so a hook that does the same as they
 * gives the same bits. */
#include <inttypes.h>
#include <string.h>

#include "runtime/exec/private.h"
#include "runtime/hook.h"

struct HookLink {
	const Rt *rt;
	Collectives *collectives;
	const RtCollective *row;
	int flat;
	const int *ranks;        /* members */
	const char **from;
	int64_t foreign;         /* bytes that came from peers */
};

/* ---- where a reduction stands ---- */

static bool is_reduction(RtCollectiveKind kind)
{
	return collective_info[kind].act == ACT_REDUCE || collective_info[kind].act == ACT_COMPLETE;
}

/* Of the two reductions of hybrid_shard, one with a single member is left out; at one rank the hook is called for the
 * first. */
bool hook_takes(const Rt *rt, const RtCollective *row)
{
	if (!rt->model->hook || !is_reduction(row->kind))
		return false;
	LayoutRank who = device_rank(rt);
	LayoutSplit s = layout_split(rt->model->layout.unit[row->unit].strategy, &who);
	if (who.world == 1)
		return row->kind != RT_ALL_REDUCE_SHARDS;
	return row->kind == RT_REDUCE_SCATTER ? s.ranks > 1 : row->kind == RT_ALL_REDUCE_SHARDS ? s.groups > 1 : true;
}

static HookCall call_of(const Rt *rt, const HookLink *l, const Members *m)
{
	const RtCollective *row = l->row;
	const LayoutUnit *u = &rt->model->layout.unit[row->unit];
	LayoutRank who = device_rank(rt);
	int64_t ranks = layout_split(u->strategy, &who).ranks, groups = layout_split(u->strategy, &who).groups;
	bool shards = row->kind == RT_ALL_REDUCE_SHARDS;
	int f = l->flat;
	float *own = rt->grad_shard[row->unit][f];
	HookCall c = {.kind = HOOK_ALL_REDUCE, .unit = rt->model->unit_names[row->unit], .flat = f,
		.step = rt->p->progress.step + 1, .rank = (int)who.rank, .world = (int)who.world, .member = m->me,
		.members = m->n, .owner = -1, .mean = 1 / (float)who.world,
		.gradient = shards ? own : rt->grad[row->unit][f],
		.n = shards ? layout_range(u, f, &who).n : layout_flat_numel(u->flat[f].numel, ranks)};
	c.out = c.gradient;
	c.out_n = c.n;
	if (shards)
		c.kind = HOOK_ALL_REDUCE_SHARDS;
	else if (who.world > 1 && row->kind == RT_REDUCE_SCATTER) {
		c.kind = HOOK_REDUCE_SCATTER;
		c.mean = groups > 1 ? 1 : c.mean;
		c.out = own;
		c.out_n = c.n / m->n;
	} else if (who.world > 1 && row->kind == RT_REDUCE) {
		c.kind = HOOK_REDUCE;
		c.owner = u->owner;
		c.out = u->owner == who.rank ? own : NULL;
	}
	return c;
}

static void add_memory(const Rt *rt, const HookLink *l, HookCall *c)
{
	const LayoutModel *m = &rt->model->layout;
	const DeviceMemory *mem = &rt->p->memory;
	char *base = mem->base[ARENA_SEND];
	c->send_bytes = c->n * m->hook_send;
	c->send = c->send_bytes ? base + mem->places.hook_send : NULL;
	c->keep_bytes = c->kind == HOOK_ALL_REDUCE_SHARDS ? 0 : c->n * m->hook_keep;
	c->keep = c->keep_bytes ? base + mem->places.hook_keep[l->row->unit][l->flat] : NULL;
	c->state = rt->p->hook_state;
}

static void fail(const Rt *rt, const HookCall *c, int code)
{
	Diag d = *rt->p->diag;
	if (rt->p->world.size < 2)
		k_fail("the hook %s returned %d for unit \"%s\" in step %" PRId64, rt->model->hook->name, code, c->unit,
			c->step);
	d.out = stderr; /* not where messages are held back */
	diag_error(&d, rt->p->options->program, "the hook %s returned %d for unit \"%s\" in step %" PRId64
		", on rank %d of %d", rt->model->hook->name, code, c->unit, c->step, c->rank, c->world);
	end_process(EXIT_RUN);
}

int64_t hook_run(const Rt *rt, Collectives *all, const RtCollective *row, const char **from)
{
	const LayoutUnit *u = &rt->model->layout.unit[row->unit];
	const Members *m = collective_members(rt, all, row);
	HookLink l = {.rt = rt, .collectives = all, .row = row, .ranks = m->ranks, .from = from};
	for (int f = 0; f < u->n_flats; f++) {
		if (!u->flat[f].trainable)
			continue;
		l.flat = f;
		HookCall c = call_of(rt, &l, m);
		c.link = &l;
		add_memory(rt, &l, &c);
		int code = rt->model->hook->reduce(&c);
		if (code)
			fail(rt, &c, code);
	}
	return l.foreign;
}

/* ---- life ---- */

bool hook_start(Rt *rt, Diag *d)
{
	const RtHook *h = rt->model->hook;
	HookStart s = {rt->p->world.rank, (int)MAX(rt->p->world.size, 1)};
	int code = h && h->init ? h->init(&s, &rt->p->hook_state) : 0;
	if (code)
		diag_error(d, rt->p->options->program, "the hook %s could not start: %s_init returned %d", h->name, h->function,
			code);
	rt->p->hook_started = h && !code;
	return !code;
}

void hook_stop(Rt *rt)
{
	if (rt->p->hook_started && rt->model->hook->exit)
		rt->model->hook->exit(rt->p->hook_state);
	rt->p->hook_started = false;
}

/* ---- what a hook calls ---- */

/* Whether peers can read x: it lies in the call's gradient or in its scratch memory. */
static bool is_readable(const HookCall *c, const void *x, int64_t bytes)
{
	const char *at = x, *gradient = (const char *)c->gradient, *send = c->send;
	bool in_gradient = at >= gradient && at + bytes <= gradient + c->n * (int64_t)sizeof(float);
	bool in_send = send && at >= send && at + bytes <= send + c->send_bytes;
	return bytes >= 0 && bytes % 4 == 0 && (in_gradient || in_send);
}

static void range_of(const void *context, int taker, int giver, int64_t *begin, int64_t *bytes)
{
	const Part *p = context;
	int64_t index = p->which == SLAB_OF_TAKER ? taker : p->which == SLAB_OF_GIVER ? giver : 0;
	int64_t first = MIN(index * p->slab, p->total);
	*begin = first * dtype_info[p->sent].bytes;
	*bytes = p->not_own && taker == giver ? 0 : MIN(p->slab, p->total - first) * dtype_info[p->sent].bytes;
}

/* Makes and runs the exchange of p, whose other fields are set. */
static void run(const HookCall *c, Part *p, const void *source)
{
	HookLink *l = c->link;
	p->only_taker = p->only_giver = -1;
	p->x = (Exchange){.channel = (int)l->row->stream, .ranks = l->ranks, .n = c->members, .me = c->member,
		.source = source, .range = range_of, .context = p};
	exchange_begin(l->rt->p->comm, &p->x);
	l->foreign += collective_finish(l->rt, p, l->from);
}

static void scale_alone(float *out, const float *x, int64_t n, float scale)
{
	for (int64_t i = 0; i < n; i++)
		out[i] = x[i] * scale;
}

int hook_all_reduce(const HookCall *c, float *x, int64_t n, float scale)
{
	if (!is_readable(c, x, n * (int64_t)sizeof(float)))
		return -1;
	if (c->members == 1) {
		scale_alone(x, x, n, scale);
		return 0;
	}
	int64_t slab = layout_shard_numel(n, c->members);
	Part sum = {.fold = true, .to = (char *)(x + MIN(slab * c->member, n)), .sent = DT_F32, .made = DT_F32,
		.scale = scale, .which = SLAB_OF_TAKER, .slab = slab, .total = n};
	Part copy = {.to = (char *)x, .stride = slab, .sent = DT_F32, .made = DT_F32, .scale = 1, .which = SLAB_OF_GIVER,
		.slab = slab, .total = n, .not_own = true};
	run(c, &sum, x);
	run(c, &copy, x);
	return 0;
}

int hook_reduce_scatter(const HookCall *c, const float *x, int64_t n, float *out, float scale)
{
	if (!is_readable(c, x, n * c->members * (int64_t)sizeof(float)))
		return -1;
	if (c->members == 1) {
		scale_alone(out, x, n, scale);
		return 0;
	}
	Part p = {.fold = true, .to = (char *)out, .sent = DT_F32, .made = DT_F32, .scale = scale, .which = SLAB_OF_TAKER,
		.slab = n, .total = n * c->members};
	run(c, &p, x);
	return 0;
}

/* Collects `bytes` from each member, side by side; parts: the part for this member from each. */
static int collect(const HookCall *c, const void *x, int64_t bytes, bool parts, void *out)
{
	if (!is_readable(c, x, parts ? bytes * c->members : bytes) || bytes % 4)
		return -1;
	if (c->members == 1) {
		memcpy(out, x, (size_t)bytes);
		return 0;
	}
	Part p = {.to = out, .stride = bytes, .sent = DT_U8, .made = DT_U8, .scale = 1,
		.which = parts ? SLAB_OF_TAKER : SLAB_ONE, .slab = bytes, .total = parts ? bytes * c->members : bytes};
	run(c, &p, x);
	return 0;
}

int hook_all_gather(const HookCall *c, const void *x, int64_t bytes, void *out)
{
	return collect(c, x, bytes, false, out);
}

int hook_all_to_all(const HookCall *c, const void *x, int64_t bytes, void *out)
{
	return collect(c, x, bytes, true, out);
}

int hook_built_in(const HookCall *c)
{
	HookLink *l = c->link;
	const LayoutUnit *u = &l->rt->model->layout.unit[l->row->unit];
	int k = 0, trained = 0, parts = collective_parts(l->rt, l->row);
	for (int f = 0; f < u->n_flats; f++) {
		k += f < l->flat && u->flat[f].trainable;
		trained += u->flat[f].trainable;
	}
	for (Part p; k < parts; k += trained) {
		collective_begin(l->rt, l->collectives, l->row, k, &p);
		l->foreign += collective_finish(l->rt, &p, l->from);
	}
	return 0;
}
