/* passes/prefetch.c */
#include "passes/passes.h"

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


bool pass_prefetch(Module *m, const PassOptions *o, Diag *d)
{
	Counters step = {0}, eval = {0};
	(void)o, (void)d;
	for (SectionKind s = SEC_FORWARD; s < SEC_EVAL; s++)
		number_collectives(m, s, &step);
	number_collectives(m, SEC_EVAL, &eval);
	return true;
}
