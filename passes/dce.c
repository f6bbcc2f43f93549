/* passes/dce.c: removes ops that nothing with an effect depends on.
 *
 * Marks ops from those with effects along their operands, then sweeps the rest.  Knows ops by their flags only: an
 * op with EFFECT stays even if nobody reads its results; any other op stays if a kept op reads it. */
#include "passes/passes.h"

typedef VEC(Op *) OpVec;

enum { DEAD, LIVE }; /* in op->order */

static void mark(Arena *scratch, OpVec *work, Op *op)
{
	if (op->order == LIVE)
		return;
	op->order = LIVE;
	vec_push(scratch, work, op);
}

static void mark_operands(Arena *scratch, OpVec *work, const Op *op)
{
	for (int i = 0; i < op->n_in; i++)
		if (op->in[i].value)
			mark(scratch, work, op->in[i].value->op);
}

static void sweep(Module *m)
{
	/* An op's users stand behind it, and later sections read earlier ones, so one backward walk is enough. */
	for (int s = SEC_COUNT - 1; s >= 0; s--) {
		for (Op *op = m->last[s], *prev; op; op = prev) {
			prev = op->prev;
			if (op->order == DEAD)
				ir_remove(m, op);
		}
	}
}

/* Drops what nothing reads of loops, of readers before what they read; returns whether there are any. */
static bool trim_loops(Module *m)
{
	bool any = false;
	for (int s = SEC_COUNT - 1; s >= 0; s--)
		for (Op *op = m->last[s]; op; op = op->prev)
			if (op->body) {
				loop_trim(m, op);
				any = true;
			}
	return any;
}

/* What only operands of loops needed that are gone now. */
static void sweep_sources(Module *m)
{
	for (int s = SEC_COUNT - 1; s >= 0; s--)
		ir_sweep(m, (SectionKind)s);
}

bool pass_dce(Module *m, const Options *o, Diag *d)
{
	(void)o, (void)d;
	Arena *scratch = arena_new();
	OpVec work = {0};
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			op->order = DEAD;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			if (op_has_effect(op))
				mark(scratch, &work, op);
	while (work.n)
		mark_operands(scratch, &work, work.at[--work.n]);
	sweep(m);
	if (trim_loops(m))
		sweep_sources(m);
	arena_free(scratch);
	return true;
}
