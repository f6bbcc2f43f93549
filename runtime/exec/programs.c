/* runtime/exec/programs.c: a program's collectives by number: their names, and counts of them.
 *
 * The stream.c of the target decides when collectives run; the program decides which they are. */
#include "runtime/exec/private.h"

const RtCollective *program_rows(const RtModel *m, Program program, int *n)
{
	const RtProgram *many = program >= PROGRAM_FIRST && m->programs ? &m->programs[program - PROGRAM_FIRST] : NULL;
	if (program == PROGRAM_STEP) {
		*n = m->n_step;
		return m->step;
	}
	*n = many ? many->n : program == PROGRAM_EVAL ? m->n_evaluation : 0;
	return many ? many->collectives : program == PROGRAM_EVAL ? m->evaluation : NULL;
}

void program_size(Rt *rt, int size)
{
	RtModel *m = rt->p->model;
	const RtSize *s = &m->sizes[size];
	if (!m->n_sizes)
		return;
	rt->p->size = size;
	m->step = s->step.rows;
	m->n_step = s->step.n;
	m->evaluation = s->evaluation.rows;
	m->n_evaluation = s->evaluation.n;
	m->programs = s->programs;
	m->loss.n = s->n;
	m->forward = s->alone.forward;
	m->backward = s->alone.backward;
	m->update = s->alone.update;
	m->eval = s->eval;
	m->step_ops = s->alone.ops;
	m->eval_ops = s->eval_ops;
}

void program_say(const Rt *rt, RankProgress *to, Program program)
{
	atomic_store(&to->program, (int32_t)program);
	atomic_store(&to->step, rt->p->progress.step + (program == PROGRAM_STEP || program >= PROGRAM_FIRST));
}

/* The text is in a buffer of the calling thread, because the watchdog calls this, too. */
const char *streams_name(const void *context, int program, int seq)
{
	static _Thread_local char name[512];
	const RtModel *m = ((const Rt *)context)->model;
	int n;
	const RtCollective *rows = program_rows(m, (Program)program, &n);
	static const char *const outside[] = {[OUTSIDE_AGREE] = "agreement of all ranks", [OUTSIDE_NCCL] = "start of NCCL",
		[OUTSIDE_FILES] = "files of a checkpoint"};
	if (program == PROGRAM_OUTSIDE && seq >= OUTSIDE_AGREE && seq < COUNT_OF(outside))
		return outside[seq];
	if (seq < 1 || seq > n)
		return NULL;
	const RtCollective *row = &rows[seq - 1];
	snprintf(name, sizeof(name), "%s%s%s", collective_name(row->kind), row->unit < 0 ? "" : " @",
		row->unit < 0 ? "" : m->unit_names[row->unit]);
	return name;
}

/* The count of CommCost to which bytes of this kind belong besides the total; NULL: none. */
static int64_t *bytes_of_kind(CommCost *cost, RtCollectiveKind kind)
{
	switch (collective_info[kind].act) {
	case ACT_GATHER: return &cost->gathered;
	case ACT_REDUCE: case ACT_COMPLETE: return &cost->reduced;
	case ACT_BROADCAST: return &cost->broadcast;
	default: return NULL;
	}
}

CommCost cost_since(const CommCounts counts[RT_COLLECTIVE_KINDS], CommCost *told)
{
	CommCost now = {0};
	for (int kind = 0; kind < RT_COLLECTIVE_KINDS; kind++) {
		int64_t *bytes = bytes_of_kind(&now, (RtCollectiveKind)kind);
		now.n += counts[kind].n;
		now.bytes += counts[kind].bytes;
		if (bytes)
			*bytes += counts[kind].bytes;
	}
	CommCost cost = {.n = now.n - told->n, .bytes = now.bytes - told->bytes, .gathered = now.gathered - told->gathered,
		.reduced = now.reduced - told->reduced, .broadcast = now.broadcast - told->broadcast};
	*told = now;
	return cost;
}
