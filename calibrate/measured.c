/* calibrate/measured.c: traces -> rows of measured kernels and collectives. */
#include <string.h>

#include "calibrate/private.h"
#include "passes/passes.h"

/* Ops by their number: forward, backward and update, from 0, as traces number them. */
typedef VEC(const Op *) Ops;
static Ops number_ops(const Module *m, Arena *a)
{
	Ops ops = {0};
	for (int s = SEC_FORWARD; s <= SEC_UPDATE; s++)
		IR_FOR_OPS(m, s, op)
			vec_push(a, &ops, op);
	return ops;
}

static LayoutRank rank_of(const Module *m, const Options *o, int ranks, Arena *a)
{
	Options of_ranks = *o;
	LayoutModel layout = memory_layout(m, a);
	LayoutRank who;
	of_ranks.sharding.world = ranks;
	memory_describe(&layout, &who, m, &of_ranks);
	return who;
}

/* A row that this run has begun, and how many ops it is the mean of. */
typedef struct Row { int at, n; } Row;

static void add_op(Measured *all, Map *begun, const Op *op, const Work *w, MachineLayout layout, double seconds,
	Arena *a)
{
	const char *text = cost_signature(op, w, a), *key = arena_printf(a, "%dx%d %s", layout.ranks, layout.threads, text);
	Row *row = map_get(begun, key);
	if (!row && map_get(all->by_op, key))
		return;
	if (!row) {
		row = NEW(a, Row);
		*row = (Row){.at = all->kernels.n};
		map_put(begun, key, row);
		map_put(all->by_op, key, row);
		MachineKernel k = {.op = text, .kind = op_info[op->kind].text, .layout = layout, .flops = w->flops,
			.bytes = w->bytes, .special = w->special};
		vec_push(a, &all->kernels, ((MeasuredKernel){k, *w}));
	}
	double *mean = &all->kernels.at[row->at].row.seconds;
	*mean += (seconds - *mean) / ++row->n;
}

/* One row for each kind, size and number of ranks: the fastest. */
static void add_collective(Measured *all, MachineCollective x, Arena *a)
{
	for (int i = 0; i < all->collectives.n; i++) {
		MachineCollective *c = &all->collectives.at[i];
		if (c->kind == x.kind && c->ranks == x.ranks && c->bytes == x.bytes) {
			c->seconds = MIN(c->seconds, x.seconds);
			return;
		}
	}
	vec_push(a, &all->collectives, x);
}

void measured_add(Measured *all, const Module *m, const Options *o, MachineLayout layout, const Steps *s, Arena *a)
{
	Ops ops = number_ops(m, a);
	LayoutRank who = rank_of(m, o, layout.ranks, a);
	Map *begun = map_new(a);
	for (int i = 0; i < s->ops.n; i++) {
		int number = s->ops.at[i].number;
		double seconds = s->ops.at[i].seconds;
		if (number >= ops.n)
			ice("a trace has an op %d, of %d", number, ops.n);
		Work w = cost_of(ops.at[number], &who);
		if (w.class != COST_NONE && w.class != COST_COLLECTIVE && seconds > 0)
			add_op(all, begun, ops.at[number], &w, layout, seconds, a);
	}
	for (int i = 0; i < s->transfers.n && layout.ranks > 1; i++) {
		const StepTransfer *t = &s->transfers.at[i];
		if (t->seconds > 0)
			add_collective(all, (MachineCollective){t->kind, layout.ranks, t->bytes, t->seconds}, a);
	}
}

void measured_join(Measured *all, const Machine *old, Arena *a)
{
	for (int i = 0; i < old->n_kernels; i++) {
		const MachineKernel *k = &old->kernel[i];
		const Row *now = map_get(all->by_op, arena_printf(a, "%dx%d %s", k->layout.ranks, k->layout.threads, k->op));
		double *seconds = now ? &all->kernels.at[now->at].row.seconds : NULL;
		if (now)
			*seconds = MIN(*seconds, k->seconds);
		else
			vec_push(a, &all->kernels, ((MeasuredKernel){.row = *k}));
	}
	for (int i = 0; i < old->n_collectives; i++)
		add_collective(all, old->collective[i], a);
}
