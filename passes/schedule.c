/* passes/schedule.c: fixes the order of computing.
 *
 * Requires SHARD.  Ensures a total order of each section in which memory dies early, and that the gaps of a
 * flat gradient are zeroed in front of the first op that writes into it.
 *
 * Effects keep their order, and so do writes and the reads around them. */
#include "passes/passes.h"

/* ---- gaps ---- */

/* The gaps of a flat gradient are zeroed in front of the first op that writes into it. */
static void settle_gaps(Module *m, Arena *a)
{
	Buffers *b = buffers_find(m, false, a);
	Op **zero = NEW_N(a, Op *, m->n_units);
	IR_FOR_OPS(m, SEC_BACKWARD, op)
		if (op->kind == OP_ZERO_GAPS)
			zero[op->unit->index] = op;
	IR_FOR_OPS(m, SEC_BACKWARD, op) {
		for (int i = 0; i < op->n_out; i++) {
			int buffer = b->of_value[op->out[i]->id];
			const Unit *u = buffer >= 0 ? b->at[buffer].place.unit : NULL;
			if (!u || !zero[u->index])
				continue;
			if (zero[u->index]->order > op->order)
				ir_move_before(m, zero[u->index], op);
			zero[u->index] = NULL;
		}
	}
}

bool pass_schedule(Module *m, const PassOptions *o, Diag *d)
{
	Arena *a = arena_new();
	(void)o, (void)d;
	schedule_reorder(m, false, a);
	schedule_reorder(m, true, a);
	settle_gaps(m, a);
	arena_free(a);
	return true;
}
