/* passes/schedule.c: fixes the order of everything.
 *
 * Requires SHARD.  Ensures a total order in which memory dies early, and numbers every collective:
 *
 *   compute  ---- ops ------------------------------------------->
 *   gather   all_gather seq=1 slot=0 | seq=2 slot=0 | ...          units of one section share a ring of
 *   reduce   reduce_scatter seq=7 | ...                            slots: k-th ring gather, slot k mod N
 *   sync     all_reduce_scalars
 *
 * seq counts the collectives of a step from 1, in the order in which every rank issues them; eval counts
 * its own.  A unit that stays gathered from forward into backward has a region of its own, no slot.
 *
 * Effects keep their order, and so do writes and the reads around them. */
#include "passes/passes.h"

#include <string.h>

/* Ring slots: the largest prefetch distance + 1; nothing is prefetched. */
enum { RING_SLOTS = 1 };

/* ---- numbers, streams, slots ---- */

static const char *stream_of(OpKind kind)
{
	switch (kind) {
	case OP_ALL_GATHER: case OP_BROADCAST_FLAT: return "gather";
	case OP_ALL_REDUCE_SCALARS: return "sync";
	default: return "reduce";
	}
}

/* Whether the unit gathered here is resharded in the same section. */
static bool is_ring_gather(const Op *gather)
{
	for (const Use *u = gather->n_out ? gather->out[0]->uses : NULL; u; u = u->next)
		for (const Use *r = u->op->kind == OP_WAIT ? u->op->out[0]->uses : NULL; r; r = r->next)
			if (r->op->kind == OP_RESHARD)
				return r->op->section == gather->section;
	return false;
}

typedef struct Counters { int64_t seq, ring; } Counters;

static void number_collectives(Module *m, SectionKind s, Counters *c)
{
	IR_FOR_OPS(m, s, op) {
		if (!(op_info[op->kind].flags & COMM))
			continue;
		op->attrs = attr_int(m, op->attrs, "seq", ++c->seq);
		op->attrs = attr_str(m, op->attrs, "stream", stream_of(op->kind));
		if (op->kind == OP_ALL_GATHER && is_ring_gather(op))
			op->attrs = attr_int(m, op->attrs, "slot", c->ring++ % RING_SLOTS);
	}
}

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
	Counters step = {0}, eval = {0};
	Arena *a = arena_new();
	(void)o, (void)d;
	schedule_reorder(m, false, a);
	schedule_reorder(m, true, a);
	settle_gaps(m, a);
	arena_free(a);
	for (SectionKind s = SEC_FORWARD; s < SEC_EVAL; s++)
		number_collectives(m, s, &step);
	number_collectives(m, SEC_EVAL, &eval);
	return true;
}
