/* runtime/comm/control.c: exchanges over the control plane, for ranks on several hosts whose collectives use NCCL: what
 * they send each other outside of steps (sums, averages, weights that rank 0 read) passes through the hub.
 *
 * This is slower than shared memory or MPI, but needs neither.  It only serves exchanges of all ranks outside of
 * programs.
 *
 * When an exchange begins, every rank gets all sources, up to the last byte that any member takes of any source; taking
 * just returns pointers into them. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/comm/private.h"

typedef struct Carried {
	Comm comm;
	Control *control;
	char *own, *came;        /* own: a page with the mailbox, then the memory; came: what came from all ranks */
	int64_t own_bytes, came_bytes;
	int64_t each;            /* bytes that came from each rank */
} Carried;

/* How many bytes of a source are sent. */
static int64_t reach(const Exchange *x)
{
	int64_t most = 0;
	for (int taker = 0; taker < x->n; taker++)
		for (int giver = 0; giver < x->n; giver++) {
			int64_t begin, bytes;
			x->range(x->context, taker, giver, &begin, &bytes);
			most = bytes ? MAX(most, begin + bytes) : most;
		}
	return most;
}

/* A rank is gone, so the control plane will end this process; this thread must not continue until then. */
static _Noreturn void wait_for_end(void)
{
	for (;;)
		pause();
}

static void carried_begin(Comm *c, const Exchange *x)
{
	Carried *s = (Carried *)c;
	s->each = reach(x);
	if (x->channel != RT_STREAM_SYNC || x->n != c->world->size || s->each * x->n > s->came_bytes)
		ice("an exchange of %d ranks and %lld bytes is not for the control plane", x->n, (long long)s->each);
	if (s->each && !control_all_gather(s->control, x->source, s->each, s->came))
		wait_for_end();
}

static int64_t carried_take(Comm *c, const Exchange *x, int64_t at, int64_t most, const char **from)
{
	const Carried *s = (const Carried *)c;
	int64_t offset[x->n], n = comm_piece(x, at, most, offset);
	for (int i = 0; i < x->n; i++)
		from[i] = n == 0 || offset[i] < 0 ? NULL : s->came + i * s->each + offset[i];
	return n;
}

static void carried_end(Comm *c, const Exchange *x)
{
	(void)c, (void)x; /* sources are read when an exchange begins */
}

static void carried_close(Comm *c)
{
	Carried *s = (Carried *)c;
	munmap(s->own, (size_t)s->own_bytes);
	munmap(s->came, (size_t)s->came_bytes);
}

static const CommOps carried_ops = {carried_begin, carried_take, carried_end, carried_close};

static char *map(int64_t bytes)
{
	void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

/* All ranks learn whether one could not map its memory. */
static bool all_have_room(Carried *s, Arena *a, Diag *d)
{
	const World *w = s->comm.world;
	int32_t error = s->own && s->came ? 0 : errno, *all = NEW_N(a, int32_t, w->size);
	if (!control_all_gather(s->control, &error, sizeof(error), all))
		return false;
	for (int r = 0; r < w->size; r++) {
		if (!all[r])
			continue;
		if (w->rank == 0)
			diag_error(d, "--comm=nccl", "rank %d: %lld bytes for what comes from other ranks cannot be mapped: %s", r,
				(long long)(s->own_bytes + s->came_bytes), strerror(all[r]));
		return false;
	}
	return true;
}

Comm *comm_control_open(Control *control, const World *w, int64_t bytes, Arena *a, Diag *d)
{
	enum { PAGE = 4096 };
	Carried *s = NEW(a, Carried);
	*s = (Carried){.comm = {.ops = &carried_ops, .world = w}, .control = control, .own_bytes = PAGE + bytes,
		.came_bytes = MAX(bytes, (int64_t)COMM_MAILBOX) * w->size};
	s->own = map(s->own_bytes);
	s->came = s->own ? map(s->came_bytes) : NULL;
	if (!all_have_room(s, a, d)) {
		if (s->own)
			munmap(s->own, (size_t)s->own_bytes);
		if (s->came)
			munmap(s->came, (size_t)s->came_bytes);
		return NULL;
	}
	s->comm.mailbox = s->own;
	s->comm.memory = s->own + PAGE;
	return &s->comm;
}
