/* ir/verify_runs.c: checks that gathers do not start too early, over the runs step, step, eval, eval, step of a PLAN's
 * programs.  This sequence contains every pair of programs that can follow each other.
 *
 * Only gathers may start before the end of the run in front of theirs; all other collectives are waited for in their
 * own run (verify_plan.c proves each run first).  A gather starts after the last event that its stream waits for, which
 * is a position in the order of compute. */
#include "ir/verify_plan.h"

typedef struct Occupant {
	const Op *gather;
	int64_t released_at;  /* position of its reshard; 0: it was not resharded yet */
} Occupant;

typedef struct Runs {
	Plan *p;
	int64_t at, reached, began; /* at: position of compute; began: where the current run began */
	int64_t *updated_at;  /* by unit */
	int64_t *event;       /* by Value.id */
	Occupant *region;     /* slots, then own regions of units */
} Runs;

static Occupant *region_of(Runs *r, const Op *gather)
{
	int64_t slot = attr_get_int(gather->attrs, "slot", -1);
	return &r->region[slot >= 0 ? slot : r->p->n_gathers + gather->unit->index];
}

static void start_gather(Runs *r, const Op *op)
{
	const char *name = op->unit->name;
	Occupant *o = region_of(r, op);
	if (r->p->m->sync && r->reached < r->began)
		plan_fail(r->p, "gather-after-update", op, "this gather of unit %s may start before the program in front of "
			"this one has ended: no event since", name);
	if (r->updated_at[op->unit->index] && r->reached <= r->updated_at[op->unit->index])
		plan_fail(r->p, "gather-after-update", op, "this gather may read the parameters of unit %s before the "
			"previous step has updated them: no event since", name);
	if (o->gather && (!o->released_at || r->reached <= o->released_at))
		plan_fail(r->p, "slot-reuse", op, "the gather of unit %s may write %s before unit %s, which lies there, "
			"is resharded%s", name, attr_find(op->attrs, "slot") ? arena_printf(r->p->arena, "slot %lld",
			(long long)attr_get_int(op->attrs, "slot", 0)) : "its region", o->gather->unit->name,
			o->released_at ? ": no event since" : "");
	*o = (Occupant){op, 0};
}

static void run_gathers(Runs *r, SectionKind first, SectionKind last)
{
	for (int s = (int)first; s <= (int)last; s++)
		IR_FOR_OPS(r->p->m, s, op) {
			r->at++;
			if (op->kind == OP_RECORD)
				r->event[op->out[0]->id] = r->at;
			else if (op->kind == OP_UPDATE_SHARD)
				r->updated_at[op->unit->index] = r->at;
			else if ((op->kind == OP_RESHARD || op->kind == OP_CARRY) && plan_blamed(op)->kind == OP_ALL_GATHER)
				region_of(r, plan_blamed(op))->released_at = r->at;
			else if (op_stream(op->kind) != RT_STREAM_GATHER)
				continue;
			else if (op->n_in)
				r->reached = MAX(r->reached, r->event[op_in(op, 0)->id]);
			if (op->kind == OP_ALL_GATHER)
				start_gather(r, op);
		}
}

void plan_check_runs(Plan *p)
{
	Runs r = {.p = p, .updated_at = NEW_N(p->arena, int64_t, p->m->n_units + 1)};
	r.event = NEW_N(p->arena, int64_t, p->m->n_values + 1);
	r.region = NEW_N(p->arena, Occupant, p->n_gathers + p->m->n_units + 1);
	for (const char *run = "ssees"; *run; run++, r.began = r.at + 1)
		run_gathers(&r, *run == 's' ? SEC_FORWARD : SEC_EVAL, *run == 's' ? SEC_UPDATE : SEC_EVAL);
}
