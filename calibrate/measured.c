/* calibrate/measured.c: traces -> rows of measured kernels, collectives and steps. */
#include <string.h>

#include "calibrate/private.h"
#include "passes/passes.h"

/* The share of its time in which an op has a collective beside it, if it is to say how much slower it is then. */
static const double mostly = 0.5;

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

static void add_op(Measured *all, Map *begun, const Op *op, const Work *w, const MachineKernel *like, Arena *a)
{
	const char *text = cost_row(op, w, a), *key = machine_key(like->layout, like->tf32, text, a);
	Row *row = map_get(begun, key);
	if (!row && map_get(all->by_op, key))
		return;
	if (!row) {
		row = NEW(a, Row);
		*row = (Row){.at = all->kernels.n};
		map_put(begun, key, row);
		map_put(all->by_op, key, row);
		MachineKernel k = {.op = text, .kind = op_info[op->kind].text, .layout = like->layout, .tf32 = like->tf32,
			.flops = w->flops, .bytes = w->bytes, .special = w->special};
		vec_push(a, &all->kernels, ((MeasuredKernel){k, *w}));
	}
	double *mean = &all->kernels.at[row->at].row.seconds;
	*mean += (like->seconds - *mean) / ++row->n;
}

/* One row for each kind, communicator, size and number of ranks: the first, so a model's before a probe's, and what was
 * measured now before an older file's. */
static void add_collective(Measured *all, MachineCollective x, Arena *a)
{
	for (int i = 0; i < all->collectives.n; i++) {
		const MachineCollective *c = &all->collectives.at[i];
		if (c->kind == x.kind && c->comm == x.comm && c->ranks == x.ranks && c->bytes == x.bytes)
			return;
	}
	vec_push(a, &all->collectives, x);
}

static bool are_alike(const StepTransfer *x, const StepTransfer *y)
{
	return x->kind == y->kind && x->bytes == y->bytes;
}

/* Collectives that are alike are one row, their mean. */
static void add_collectives(Measured *all, MeasuredRun r, Arena *a)
{
	const StepTransfer *t = r.steps->transfers.at;
	for (int i = 0, n = r.steps->transfers.n; i < n; i++) {
		int first = 0, like = 0;
		double sum = 0;
		while (!are_alike(&t[first], &t[i]))
			first++;
		for (int k = i; k < n && first == i; k++)
			if (are_alike(&t[k], &t[i])) {
				sum += t[k].seconds;
				like++;
			}
		if (sum > 0)
			add_collective(all, (MachineCollective){t[i].kind, r.as->layout.ranks, t[i].bytes, sum / like,
				r.as->comm}, a);
	}
}

static const Op *op_of(const Ops *ops, const StepOp *s)
{
	if (s->number >= ops->n)
		ice("a trace has an op %d, of %d", s->number, ops->n);
	return ops->at[s->number];
}

static bool computes(const Work *w, const StepOp *s)
{
	return w->class != COST_NONE && w->class != COST_COLLECTIVE && s->seconds > 0;
}

static void add_ops(Measured *all, const Module *m, const Options *o, MeasuredRun r, Arena *a)
{
	Ops ops = number_ops(m, a);
	LayoutRank who = rank_of(m, o, r.as->layout.ranks, a);
	Map *begun = map_new(a);
	for (int i = 0; i < r.steps->ops.n; i++) {
		const StepOp *s = &r.steps->ops.at[i];
		const Op *op = op_of(&ops, s);
		Work w = cost_of(op, &who);
		bool tf32 = all->host->cuda && cost_rounds(&w, ir_train(m)->tf32);
		MachineKernel like = {.layout = r.as->layout, .tf32 = tf32, .seconds = s->seconds};
		if (computes(&w, s))
			add_op(all, begun, op, &w, &like, a);
	}
	for (int i = 0; i < r.steps->issues.n && !all->host->cuda; i++) {
		const StepOp *s = &r.steps->issues.at[i];
		const Op *op = op_of(&ops, s);
		Work w = cost_of_issue(op, &who);
		MachineKernel like = {.layout = r.as->layout, .seconds = s->seconds};
		if (computes(&w, s))
			add_op(all, begun, op, &w, &like, a);
	}
}

/* The seconds of what issues compute that has rows. */
static double issuing(const Module *m, const Options *o, MeasuredRun r, Arena *a)
{
	Ops ops = number_ops(m, a);
	LayoutRank who = rank_of(m, o, r.as->layout.ranks, a);
	double sum = 0;
	for (int i = 0; i < r.steps->issues.n; i++) {
		const StepOp *s = &r.steps->issues.at[i];
		Work w = cost_of_issue(op_of(&ops, s), &who);
		sum += computes(&w, s) ? s->seconds : 0;
	}
	return sum;
}

void measured_add(Measured *all, const Module *m, const Options *o, MeasuredRun r, Arena *a)
{
	if (r.as->yields & YIELDS_KERNELS)
		add_ops(all, m, o, r, a);
	if (r.as->yields & YIELDS_COLLECTIVES)
		add_collectives(all, r, a);
}

/* ---- contention ---- */

static const StepOp *same_op(const Steps *s, int number)
{
	for (int i = 0; i < s->ops.n; i++)
		if (s->ops.at[i].number == number)
			return &s->ops.at[i];
	return NULL;
}

/* Updates have other work at another number of ranks. */
void measured_beside(Measured *all, const Module *m, const Options *o, MeasuredRun beside, MeasuredRun alone, Arena *a)
{
	Ops ops = number_ops(m, a);
	LayoutRank who = rank_of(m, o, beside.as->layout.ranks, a), other = rank_of(m, o, alone.as->layout.ranks, a);
	for (int i = 0; i < beside.steps->ops.n; i++) {
		const StepOp *s = &beside.steps->ops.at[i], *t = same_op(alone.steps, s->number);
		const Op *op = op_of(&ops, s);
		Work w = cost_of(op, &who), as_alone = cost_of(op, &other);
		if (!t || !computes(&w, s) || !computes(&as_alone, t) || w.bytes != as_alone.bytes || s->beside < mostly)
			continue;
		all->n_beside++;
		all->beside += s->seconds * s->beside;
		all->longer += s->seconds - t->seconds;
	}
}

/* ---- whole steps ---- */

/* One row for each program and layout: the first, as of collectives. */
static void add_step(Measured *all, MachineStep x, Arena *a)
{
	for (int i = 0; i < all->steps.n; i++) {
		const MachineStep *s = &all->steps.at[i];
		if (!strcmp(s->program, x.program) && machine_same_layout(s->layout, x.layout))
			return;
	}
	vec_push(a, &all->steps, x);
}

void measured_step(Measured *all, const char *program, const Module *m, const Options *o, MeasuredRun r, Arena *a)
{
	MachineLayout l = r.as->layout;
	MachineStep s = {.program = program, .layout = l, .collectives = l.ranks > 1 ? r.steps->transfers.n : 0,
		.ops = r.as->turns * (r.steps->seconds + issuing(m, o, r, a)), .rest = r.steps->whole};
	for (int i = 0; i < r.steps->transfers.n; i++)
		s.rest -= r.steps->transfers.at[i].seconds;
	if (s.ops > 0 && s.rest > 0)
		add_step(all, s, a);
}

void measured_join(Measured *all, const Machine *old, Arena *a)
{
	for (int i = 0; i < old->n_kernels; i++) {
		const MachineKernel *k = &old->kernel[i];
		if (!map_get(all->by_op, machine_key(k->layout, k->tf32, k->op, a)))
			vec_push(a, &all->kernels, ((MeasuredKernel){.row = *k}));
	}
	for (int i = 0; i < old->n_steps; i++)
		add_step(all, old->step[i], a);
	for (int i = 0; i < old->n_collectives; i++)
		add_collective(all, old->collective[i], a);
}
