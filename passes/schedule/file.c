/* passes/schedule/file.c: writes the schedule of a PLAN as text: one line per collective, with the points where it
 * is issued, waited for and released.
 *
 * A point is a gap between two ops that compute something: SECTION+N lies in front of the N-th, SECTION+end behind
 * the last.  Ops of the schedule itself (collectives, waits, reshards, records, zero_gaps, resident, updates in
 * backward), views and copies of pass memory are not counted, so that an edit does not move the other points.
 * Events and gradient slots are not written, since they follow from the order.  edit.c reads the file back. */
#include "passes/schedule/file.h"

#include <string.h>

/* Copies that pass memory inserts are not counted: a schedule file is written after that pass but applied before
 * it. */
bool schedule_counts(const Op *op)
{
	bool early = op->section == SEC_BACKWARD && (op->kind == OP_UPDATE_SHARD || op->kind == OP_STEP_SCALARS);
	if (early || op_info[op->kind].flags & (COMM | VIEW) || (op->kind == OP_COPY && !strcmp(op->loc->role, "memory")))
		return false;
	return op->kind != OP_WAIT && op->kind != OP_RESHARD && op->kind != OP_RECORD && op->kind != OP_ZERO_GAPS
		&& op->kind != OP_RESIDENT && op->kind != OP_CARRIED && op->kind != OP_CARRY && op->kind != OP_CARRIED_GRAD
		&& op->kind != OP_CARRY_GRAD && op->kind != OP_OFFLOAD && op->kind != OP_RELOAD;
}

static SchedulePoint point_of(const Op *op)
{
	return op ? (SchedulePoint){op->section, op->order} : (SchedulePoint){0, -1};
}

Schedule *schedule_list(Module *m, bool eval, Arena *a)
{
	Schedule *out = NEW(a, Schedule);
	SectionKind first = eval ? SEC_EVAL : SEC_FORWARD, last = eval ? SEC_EVAL : SEC_UPDATE;
	for (SectionKind s = first; s <= last; s++) {
		IR_FOR_OPS(m, s, op) {
			op->order = out->n_counted[s];
			out->n_counted[s] += schedule_counts(op);
		}
	}
	for (SectionKind s = first; s <= last; s++)
		IR_FOR_OPS(m, s, op) {
			if (!(op_info[op->kind].flags & COMM))
				continue;
			ScheduleEntry e = {.issue = op, .wait = op->n_out ? ir_user(op->out[0], OP_WAIT) : NULL};
			if (op->kind == OP_ALL_GATHER && e.wait && e.wait->n_out)
				e.release = ir_user(e.wait->out[0], OP_RESHARD);
			e.point[AT_ISSUE] = point_of(op);
			e.point[AT_WAIT] = point_of(e.wait);
			e.point[AT_RELEASE] = point_of(e.release);
			vec_push(a, out, e);
		}
	return out;
}

const char *schedule_unit(Arena *a, const Op *op)
{
	return op->unit ? ir_unit_str(a, op->unit) : "-";
}

/* ---- writing ---- */

static void put_header(FILE *f, const Module *m, const LayoutRank *who)
{
	fprintf(f, "# Schedule of the collectives of \"%s\", one line each.\n", str_escape(m->arena, ESCAPE_IR,
		m->name));
	fprintf(f, "# bytes: what rank 0 of %lld receives from others; for reading only.\n# A point SECTION+N "
		"lies in front of the N-th op (from 0) of the section that computes something, SECTION+end\n# "
		"behind the last; collectives, waits, reshards, zero_gaps, residents and views are not counted.\n# "
		"To edit: move points; change slots of all_gathers (-: the unit's own region); change the order of "
		"issue by\n# moving lines and numbering them again from 1.  Every line must stay.  Where points "
		"are equal, what was moved\n# there to be waited for or released comes first, what was moved there "
		"to be issued last, by number.  Events and\n# slots of gradients follow from the order.  shardc "
		"--schedule-in=THIS checks the edit and takes it.\n", (long long)who->world);
}

static const char *point_text(Arena *a, const Schedule *s, const SchedulePoint *p)
{
	if (p->n < 0)
		return "-";
	if (p->n == s->n_counted[p->section])
		return arena_printf(a, "%s+end", section_text[p->section]);
	return arena_printf(a, "%s+%lld", section_text[p->section], (long long)p->n);
}

static void put_line(FILE *f, Module *m, const Schedule *s, const ScheduleEntry *e, const Plan *plan,
	int width, Arena *a)
{
	const Op *op = e->issue;
	PlanCollective c = {.kind = op_collective(op), .unit = op->unit ? op->unit->index : -1, .slot = -1,
		.message = plan_message(m, op)};
	const Attr *slot = op->kind == OP_ALL_GATHER ? attr_find(op->attrs, "slot") : NULL;
	fprintf(f, "%4lld  %-18s %-*s %-6s %4s %12lld", (long long)attr_get_int(op->attrs, "seq", 0),
		op_info[op->kind].text, width, schedule_unit(a, op), attr_get_str(op->attrs, "stream", "-"), slot
		? arena_printf(a, "%lld", (long long)slot->i) : "-", (long long)plan_received(plan, &c));
	for (int k = 0; k < AT_COUNT; k++)
		fprintf(f, "  %-13s", point_text(a, s, &e->point[k]));
	fprintf(f, "  # %s\n", str_escape(a, ESCAPE_C_COMMENT, loc_where(m, op->loc)));
}

static void put_part(FILE *f, Module *m, bool eval, const Plan *plan, Arena *a)
{
	Schedule *s = schedule_list(m, eval, a);
	int width = 4;
	for (int i = 0; i < s->n; i++)
		width = MAX(width, (int)strlen(schedule_unit(a, s->at[i].issue)));
	if (s->n)
		fprintf(f, "\n[%s]\n#no   %-18s %-*s %-6s %4s %12s  %-13s  %-13s  %s\n", eval ? "eval" : "train",
			"op", width, "unit", "stream", "slot", "bytes", "issue", "wait", "release");
	for (int i = 0; i < s->n; i++)
		put_line(f, m, s, &s->at[i], plan, width, a);
}

void schedule_write(FILE *f, Module *m, const Options *o)
{
	Arena *a = arena_new();
	LayoutModel layout = memory_layout(m, a);
	Plan plan = {.module = m->name, .layout = &layout, .who = memory_rank(o)};
	put_header(f, m, &plan.who);
	put_part(f, m, false, &plan, a);
	put_part(f, m, true, &plan, a);
	arena_free(a);
}
