/* runtime/exec/agree.c: agreement of all ranks on one result, and one message about it.
 *
 * Every rank reads and writes files, and a failure of one is a failure of all; a full disk is an error on every rank,
 * but the user is told once.  The same holds at the start, when ranks cannot communicate through memory yet: all read
 * the same flags and files, so most errors occur on all of them.
 *
 * Messages go to memory first; then a sum over ranks, or at the start the control plane, tells all ranks which lowest
 * rank failed, and that rank prints. */
#include <stdlib.h>
#include <unistd.h>

#include "runtime/exec/exec.h"

enum { AT_ONCE = 200 }; /* numbers that one comm_sum takes */

const char *agree_host(void)
{
	static char name[256];
	if (gethostname(name, sizeof(name) - 1))
		return "?";
	return name;
}

Diag *agree_begin(Held *h, const Diag *d)
{
	*h = (Held){.diag = {.max_errors = d->max_errors, .verbose = d->verbose}};
	h->diag.out = d->out ? open_memstream(&h->text, &h->n) : NULL;
	return &h->diag;
}

/* The lowest rank that failed, -1 if none did. */
static int first_failure(const Rt *rt, bool ok)
{
	const World *w = &rt->p->world;
	if (!rt->p->comm)
		return ok ? -1 : 0;
	int first = -1;
	for (int base = 0; base < w->size; base += AT_ONCE) {
		double failed[AT_ONCE] = {0};
		int n = MIN(AT_ONCE, w->size - base);
		if (!ok && w->rank >= base && w->rank < base + n)
			failed[w->rank - base] = 1;
		comm_sum(rt->p->comm, failed, n);
		for (int i = 0; i < n && first < 0; i++)
			first = failed[i] != 0 ? base + i : -1;
	}
	return first;
}

bool agree_end(const Rt *rt, Held *h, bool ok, Diag *d)
{
	const World *w = &rt->p->world;
	int first = first_failure(rt, ok);
	if (h->diag.out)
		fclose(h->diag.out);
	if (MAX(first, 0) == w->rank) {
		if (h->text)
			fputs(h->text, d->out);
		d->errors += h->diag.errors;
		d->warnings += h->diag.warnings;
		if (first > 0)
			diag_note(d, rt->p->options->program, "this was rank %d of %d, on host %s", w->rank, w->size,
				agree_host());
	} else if (first >= 0) {
		d->errors++;
	}
	free(h->text);
	return first < 0;
}

void agree_alive(Control *control)
{
	if (control)
		atomic_fetch_add_explicit(&control_progress(control)->done[RT_STREAM_SYNC], 1, memory_order_relaxed);
}

void agree_files_begin(Control *control)
{
	if (control)
		progress_enter(control_progress(control), RT_STREAM_SYNC, OUTSIDE_FILES);
}

void agree_files_end(Control *control)
{
	if (control)
		progress_end(control_progress(control), RT_STREAM_SYNC);
}

void agree_wait(Control *control, int64_t moved, int64_t *seen)
{
	if (moved != *seen)
		agree_alive(control);
	*seen = moved;
	usleep(1000);
}

/* ---- before ranks can communicate through memory ---- */

static bool alone(const Rt *rt)
{
	return rt->p->world.size < 2;
}

void agree_hold_messages(Rt *rt, Diag *d)
{
	if (alone(rt))
		return;
	rt->p->messages = d->out;
	d->out = open_memstream(&rt->p->held, &rt->p->n_held);
}

typedef struct Outcome { int32_t code, has_message; } Outcome;

int agree_code(Rt *rt, int code, const Diag *d)
{
	struct RtPrivate *p = rt->p;
	if (alone(rt))
		return code;
	ArenaMark mark = arena_mark(p->arena);
	Outcome *all = NEW_N(p->arena, Outcome, p->world.size);
	fflush(d->out);
	Outcome mine = {code, p->held && p->n_held > 0};
	if (!control_all_gather(p->control, &mine, sizeof(mine), all)) {
		arena_rewind(p->arena, mark);
		return code ? code : EXIT_RUN;
	}
	int agreed = 0, speaker = -1;
	for (int r = 0; r < p->world.size; r++)
		all[r].code = all[r].code < 0 || all[r].code > EXIT_RUN ? EXIT_RUN : all[r].code;
	for (int r = 0; r < p->world.size; r++) {
		agreed = agreed ? agreed : all[r].code;
		if (speaker < 0 && all[r].code && all[r].has_message) {
			speaker = r;
			agreed = all[r].code;
		}
	}
	p->speaks = agreed ? speaker == p->world.rank : p->world.rank == 0;
	arena_rewind(p->arena, mark);
	return agreed;
}

void agree_print_messages(Rt *rt, Diag *d)
{
	struct RtPrivate *p = rt->p;
	if (alone(rt) || !p->held)
		return;
	fclose(d->out);
	d->out = p->messages;
	if (p->speaks)
		fwrite(p->held, 1, p->n_held, d->out);
	free(p->held);
	p->held = NULL;
	/* No rank ends before the message is printed, because the end of one rank ends the others. */
	char done = 1, *all = NEW_N(p->arena, char, p->world.size);
	control_all_gather(p->control, &done, 1, all);
}
