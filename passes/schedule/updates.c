/* passes/schedule/updates.c: --update=backward, by which a unit is updated in backward, as soon as its gradient is
 * reduced and nothing of the step reads its parameters any more.
 *
 * Requires a PLAN's order but for events and slots: gathers, reshards, reduces and their waits stand where they are to
 * run.  Ensures that each update stands behind the wait for its unit's gradient, the last gather, reshard and reader
 * of the unit, and the reports that the step's scalars sum up; and that these scalars stand in front of the first
 * update.  Only updates and scalars move, so it may be applied again after the others have.
 *
 * Gradient memory is what this saves: it is held from the unit's zero_gaps to its update, by a few units at a time
 * (LOMO of Lv et al. 2023 and PyTorch's optimizers in backward do the same). */
#include "passes/passes.h"

typedef struct Update {
	Op *op, *at;     /* the update, and the op behind which it stands */
} Update;

typedef struct Updates {
	Module *m;
	Op **last;       /* by unit: its last gather, reshard or reader in backward; NULL = none */
	Op *report;      /* the last report of a step's scalars in backward; NULL = none */
	Update *at;
	int n, cap;
} Updates;

/* Pass optimizer refuses this of options; a text may have been made with others. */
bool updates_can_move(const Module *m, Diag *d)
{
	const Op *step = ir_find_in_step(m, OP_STEP_SCALARS);
	if (m->sync)
		diag_error(d, "--update=backward", "\"%s\" is one of several micro-batches: gradients of all units wait for "
			"the last one", m->name);
	else if (step && op_in(step, 0))
		diag_error(d, "--update=backward", "step_scalars of \"%s\" reads a norm of all gradients, %%%s: make the text "
			"with --grad-norm=off, and without --clip=P", m->name, op_in(step, 0)->name);
	else
		return true;
	return false;
}

static void note_reads(Updates *u, Op *op)
{
	bool holds = op->kind == OP_ALL_GATHER || op->kind == OP_RESHARD || op->kind == OP_RESIDENT;
	if (holds)
		u->last[op->unit->index] = op;
	for (int i = 0; i < op->n_in; i++) {
		const Op *root = op_in(op, i) ? value_root(op_in(op, i))->op : NULL;
		if (root && root->kind == OP_VIEW_OP)
			u->last[root->sym->unit->index] = op;
	}
	if (op->kind == OP_REPORT_LOSS || op->kind == OP_REPORT_ACC)
		u->report = op;
}

static Op *later(Op *a, Op *b)
{
	return !a || (b && b->order > a->order) ? b : a;
}

/* Numbers the ops of backward and lists the updates, by the ops behind which they stand. */
static void find_updates(Updates *u, Arena *a)
{
	int64_t n = 0;
	IR_FOR_OPS(u->m, SEC_BACKWARD, op) {
		op->order = n++;
		note_reads(u, op);
	}
	for (int s = SEC_BACKWARD; s <= SEC_UPDATE; s++)
		IR_FOR_OPS(u->m, s, op)
			if (op->kind == OP_UPDATE_SHARD) {
				Op *at = later(op_in(op, 0)->op, u->last[op->unit->index]);
				vec_push(a, u, ((Update){op, later(at, u->report)}));
			}
}

/* Puts the updates where they stand, those of one place in the order in which they were listed. */
static void put_updates(Updates *u)
{
	for (int i = u->n - 1; i >= 0; i--)
		ir_move_behind(u->m, u->at[i].op, u->at[i].at);
}

static void put_scalars(Module *m)
{
	static const OpKind scalars[] = {OP_ALL_REDUCE_SCALARS, OP_STEP_SCALARS};
	Op *first = ir_find_in_step(m, OP_UPDATE_SHARD);
	for (int i = 0; first && i < COUNT_OF(scalars); i++)
		ir_move_before(m, ir_find_in_step(m, scalars[i]), first);
}

void schedule_updates(Module *m)
{
	Arena *a = arena_new();
	Updates u = {.m = m, .last = NEW_N(a, Op *, MAX(m->n_units, 1))};
	find_updates(&u, a);
	put_updates(&u);
	put_scalars(m);
	arena_free(a);
}
