/* runtime/train/print_plan.c: --print-plan: prints the program's units, collectives and memory for the ranks that it
 * runs on.
 *
 * Rank 0 prints, with its own memory: the bytes that were mapped.  `shardc plan` also prints through base/plan.c, so
 * both give the same text for the same number of ranks. */
#include <string.h>

#include "base/plan.h"
#include "runtime/train/train.h"

_Static_assert(sizeof(StepSums) == LAYOUT_SCALARS * sizeof(double), "all_reduce_scalars sends what is planned");

static PlanUnit *units_of(const RtModel *m, Arena *a)
{
	PlanUnit *units = NEW_N(a, PlanUnit, m->layout.n_units);
	for (int u = 0; u < m->layout.n_units; u++) {
		units[u] = (PlanUnit){.name = m->unit_names[u], .first = m->unit_uses ? m->unit_uses[u][0] : "",
			.last = m->unit_uses ? m->unit_uses[u][1] : ""};
	}
	for (int i = 0; i < m->n_tensors; i++) {
		const RtTensor *t = &m->tensors[i];
		if (t->kind != RT_PARAM || t->unit < 0)
			continue;
		units[t->unit].n_params++;
		units[t->unit].elements += tensor_numel(t);
		units[t->unit].trainable += t->trainable ? tensor_numel(t) : 0;
	}
	return units;
}

static PlanCollective *collectives_of(const RtCollective *c, int n, Arena *a)
{
	PlanCollective *out = NEW_N(a, PlanCollective, n);
	for (int i = 0; i < n; i++)
		out[i] = (PlanCollective){c[i].kind, c[i].stream, c[i].unit, c[i].slot, c[i].message};
	return out;
}

/* The programs that a step of accum micro-batches runs. */
static void micro_of(Plan *plan, const RtModel *m, int64_t accum, Arena *a)
{
	static const char *const name[RT_PROGRAMS] = {[RT_FIRST] = "first", [RT_MIDDLE] = "middle", [RT_LAST] = "last"};
	_Static_assert((int)RT_PROGRAMS == (int)PLAN_MICROS, "a plan has room for all programs of a step");
	for (int k = 0; k < RT_PROGRAMS; k++) {
		const RtProgram *p = &m->programs[k];
		int64_t times = k == RT_MIDDLE ? accum - 2 : 1;
		if (times)
			plan->micro[plan->n_micro++] = (PlanMicro){name[k], times, collectives_of(p->collectives, p->n, a), p->n};
	}
}

/* Bytes of an arena in the file; those in memory of a GPU's host are listed separately. */
static int64_t in_file(const DeviceMemory *m, ArenaKind arena)
{
	return m->file_at[arena] >= 0 ? m->planned[arena] : 0;
}

static LayoutMemory mapped(const DeviceMemory *m)
{
	const int64_t *p = m->planned;
	LayoutMemory sum = {.params = p[ARENA_PARAMS], .gathered = p[ARENA_GATHERED],
		.grads = p[ARENA_GRADS] + m->grads_behind, .grads_behind = m->grads_behind, .send = p[ARENA_SEND],
		.states = p[ARENA_STATES], .buffers = p[ARENA_BUFFERS], .inputs = p[ARENA_INPUTS],
		.activations = p[ARENA_ACTIVATIONS] - m->grads_behind,
		.workspace = p[ARENA_WORKSPACE], .comm = p[ARENA_COMM], .tables = p[ARENA_TABLES],
		.snapshot = m->snapshot - m->host.snapshot, .total = m->total,
		.host = m->host,
		.file = {.params = in_file(m, ARENA_AWAY_PARAMS), .grads = in_file(m, ARENA_AWAY_GRADS),
			.states = in_file(m, ARENA_AWAY_STATES)}};
	sum.file.total = sum.file.params + sum.file.grads + sum.file.states;
	return sum;
}

void plan_print(const Rt *rt, FILE *out)
{
	const RtModel *m = rt->model;
	const World *world = &rt->p->world;
	LayoutModel layout = m->layout;
	Plan plan = {.module = m->name, .layout = &layout, .who = device_rank(rt), .n_step = m->n_step,
		.n_eval = m->n_evaluation, .memory = mapped(&rt->p->memory)};
	if (plan.who.rank)
		return;
	Arena *a = arena_new();
	layout.hosts = world->n_hosts;
	device_layout(rt, &layout);
	bool alone = plan.who.world == 1, nccl = layout.cuda.on && !layout.cuda.staged;
	nccl = nccl && (!alone || comm_named(rt->p->options->comm) == COMM_NCCL);
	plan.comm = comm_info[comm_fitting(plan.who.world, world->n_hosts, nccl)].text;
	plan.unit = units_of(m, a);
	plan.step = collectives_of(m->step, m->n_step, a);
	if (rt->p->accum > 1)
		micro_of(&plan, m, rt->p->accum, a);
	plan.eval = collectives_of(m->evaluation, m->n_evaluation, a);
	plan_text_units(out, &plan);
	plan_text_collectives(out, &plan);
	plan_text_memory(out, &plan);
	arena_free(a);
}
