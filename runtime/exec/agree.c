/* runtime/exec/agree.c: one result of all ranks, and one message.
 *
 * Every rank reads and writes files, and one failure is a failure of all; a disk that is full says so to
 * every rank, the user is told once.
 *
 * The one idea: messages go to memory first; a sum over ranks tells everyone who failed first, and that
 * rank prints. */
#include <stdlib.h>
#include <unistd.h>

#include "runtime/internal.h"

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

void agree_alive(const Rt *rt)
{
	if (rt->p->control)
		atomic_fetch_add_explicit(&control_progress(rt->p->control)->done[COMM_SYNC], 1, memory_order_relaxed);
}

void agree_files_begin(const Rt *rt)
{
	if (rt->p->control)
		progress_enter(control_progress(rt->p->control), COMM_SYNC, OUTSIDE_FILES);
}

void agree_files_end(const Rt *rt)
{
	if (rt->p->control)
		progress_end(control_progress(rt->p->control), COMM_SYNC);
}

void agree_wait(const Rt *rt, int64_t moved, int64_t *seen)
{
	if (moved != *seen)
		agree_alive(rt);
	*seen = moved;
	usleep(1000);
}
