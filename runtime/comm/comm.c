/* runtime/comm/comm.c: what all communicators share: which one a run gets, and the small blocking exchanges.
 *
 * Every rank computes a sum over ranks itself, from the numbers of all in rank order, so that all get equal bits
 * without a second exchange. */
#include <string.h>

#include "runtime/comm/private.h"

/* ---- communicators that have a folder ---- */

#define BUILT_IN(name)
#define FOLDER(name) extern const CommBackend comm_##name;
#define DECLARED(id, text, reach, target, source, ...) source
COMMUNICATORS(DECLARED)
#undef BUILT_IN
#undef FOLDER
#define BUILT_IN(name) NULL
#define FOLDER(name) &comm_##name
#define BACKEND(id, text, reach, target, source, ...) [COMM_##id] = source,
static const CommBackend *const backends[] = {COMMUNICATORS(BACKEND)};

bool comm_start(Launch *l, const RtOptions *o, Arena *a, Diag *d)
{
	const CommBackend *b = backends[l->carrier];
	if (!b->start(l, o, a, d))
		return false;
	l->world.backend = b;
	return true;
}

void comm_stop(const World *w, int status)
{
	if (w->backend && w->backend->stop)
		w->backend->stop(w, status);
}

/* ---- any communicator ---- */

Comm *comm_open(struct Control *control, const World *w, const CommMemory *size, Arena *a, Diag *d)
{
	bool carried = w->n_hosts > 1 && size->outside, reaches = w->backend && w->backend->open;
	if (w->n_hosts > 1 && !reaches && !carried) {
		diag_error(d, "--comm", "%d ranks on %d hosts, which shared memory does not reach: start them with %s, with "
			"--comm=%s", w->size, w->n_hosts, comm_of_hosts()->starter, comm_of_hosts()->text);
		return NULL;
	}
	Comm *local = carried ? comm_control_open(control, w, size->bytes, a, d) : comm_shm_open(control, w, size, a, d);
	Comm *c = local && w->n_hosts > 1 && !carried ? w->backend->open(local, w, d) : local;
	if (!c) {
		comm_close(local);
		return NULL;
	}
	c->world = w;
	c->progress = control_progress(control);
	c->all_ranks = NEW_N(a, int, w->size);
	for (int i = 0; i < w->size; i++)
		c->all_ranks[i] = i;
	return c;
}

void comm_close(Comm *c)
{
	if (c)
		c->ops->close(c);
}

char *comm_memory(Comm *c)
{
	return c->memory;
}

char *comm_file(Comm *c)
{
	return c->file;
}

void *comm_mailbox(Comm *c)
{
	return c->mailbox;
}

/* The watchdog sees the waits of a program's collectives by their numbers, and waits between programs as
 * OUTSIDE_AGREE. */
void exchange_begin(Comm *c, const Exchange *x)
{
	if (x->channel == RT_STREAM_SYNC && !atomic_load(&c->progress->inside[RT_STREAM_SYNC])) {
		c->outside = true;
		progress_enter(c->progress, RT_STREAM_SYNC, OUTSIDE_AGREE);
	}
	c->ops->begin(c, x);
}

int64_t exchange_take(Comm *c, const Exchange *x, int64_t at, int64_t most, const char **from)
{
	return c->ops->take(c, x, at, most, from);
}

void exchange_end(Comm *c, const Exchange *x)
{
	c->ops->end(c, x);
	if (x->channel == RT_STREAM_SYNC && c->outside) {
		progress_end(c->progress, RT_STREAM_SYNC);
		c->outside = false;
	}
}

int64_t comm_piece(const Exchange *x, int64_t at, int64_t most, int64_t *offset)
{
	int64_t n = most;
	bool any = false;
	for (int i = 0; i < x->n; i++) {
		int64_t begin, bytes;
		x->range(x->context, x->me, i, &begin, &bytes);
		offset[i] = bytes > at ? begin + at : -1;
		n = bytes > at ? MIN(n, bytes - at) : n;
		any = any || bytes > at;
	}
	return any ? n : 0;
}

/* ---- small blocking exchanges ---- */

static void whole_mailbox(const void *context, int taker, int giver, int64_t *begin, int64_t *bytes)
{
	(void)taker, (void)giver;
	*begin = 0;
	*bytes = *(const int64_t *)context;
}

void comm_all(Comm *c, const void *mine, int64_t bytes, void *all)
{
	enum { MANY = 64 };
	int n = c->world->size;
	const char *few[MANY], **from = n > MANY ? (const char **)NULL : few;
	Arena *a = from ? NULL : arena_new();
	from = from ? from : NEW_N(a, const char *, n);
	Exchange x = {.channel = RT_STREAM_SYNC, .ranks = c->all_ranks, .n = n, .me = c->world->rank, .source = c->mailbox,
		.range = whole_mailbox, .context = &bytes};
	memcpy(c->mailbox, mine, (size_t)bytes);
	exchange_begin(c, &x);
	for (int64_t at = 0, k; (k = exchange_take(c, &x, at, bytes, from)); at += k)
		for (int i = 0; i < n; i++)
			memcpy((char *)all + i * bytes + at, from[i], (size_t)k);
	exchange_end(c, &x);
	if (a)
		arena_free(a);
}

void comm_sum(Comm *c, double *x, int n)
{
	Arena *a = arena_new();
	double *all = NEW_N(a, double, n * c->world->size);
	comm_all(c, x, n * (int64_t)sizeof(*x), all);
	memset(x, 0, sizeof(*x) * (size_t)n);
	for (int r = 0; r < c->world->size; r++)
		for (int i = 0; i < n; i++)
			x[i] += all[r * n + i];
	arena_free(a);
}

void comm_barrier(Comm *c)
{
	double nothing = 0;
	comm_sum(c, &nothing, 1);
}
