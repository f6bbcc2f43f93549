/* runtime/comm/hosts.c: which ranks can read each other's memory: tried, not believed.
 *
 * Containers on one machine may have one hostname and no way to each other's processes.  Every rank opens a door,
 * a file in memory with a random number in it, and looks through those of the ranks that seem to be on its host,
 * the way by which comm/shm.c will map their memory.
 *
 * The one idea: a host is the ranks that reach the same lowest rank, if all of them reach all of them; where one
 * does not, each of them is a host of its own, which costs speed and is right. */
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "runtime/comm/private.h"

typedef struct Door { int32_t pid, fd; uint64_t number; } Door;
typedef struct Reach { int32_t lowest, all; } Reach;

static int open_door(Door *d)
{
	int fd = memfd_create("shardc-door", MFD_CLOEXEC);
	*d = (Door){.pid = (int32_t)getpid(), .fd = fd};
	if (fd < 0 || getrandom(&d->number, sizeof(d->number), 0) != sizeof(d->number) ||
		write(fd, &d->number, sizeof(d->number)) != sizeof(d->number))
		d->fd = -1;
	return fd;
}

static bool look_through(const Door *d)
{
	uint64_t number = 0;
	int fd = shared_open(d->pid, d->fd);
	bool ok = fd >= 0 && pread(fd, &number, sizeof(number), 0) == sizeof(number) && number == d->number;
	if (fd >= 0)
		close(fd);
	return ok;
}

/* What ranks say, before it is an index. */
static bool is_valid(const Reach *reach, int n)
{
	for (int r = 0; r < n; r++)
		if (reach[r].lowest < 0 || reach[r].lowest > r || reach[reach[r].lowest].lowest > reach[r].lowest)
			return false;
	return true;
}

/* reach[r].lowest of all ranks is known: does this one reach all of its own? */
static bool reaches_all(const World *w, const Door *door, const Reach *reach)
{
	for (int r = 0; r < w->size; r++)
		if (r != w->rank && w->host_of[r] == w->host && reach[r].lowest == reach[w->rank].lowest &&
			!look_through(&door[r]))
			return false;
	return true;
}

static void number_hosts(World *w, const Reach *reach, Arena *a)
{
	bool *whole = NEW_N(a, bool, w->size);
	int *number = NEW_N(a, int, w->size);
	for (int r = 0; r < w->size; r++)
		whole[r] = true;
	for (int r = 0; r < w->size; r++)
		whole[reach[r].lowest] = whole[reach[r].lowest] && reach[r].all;
	w->n_hosts = w->local_size = w->local_rank = 0;
	for (int r = 0; r < w->size; r++) {
		bool own = reach[r].lowest == r || !whole[reach[r].lowest];
		number[r] = own ? w->n_hosts++ : number[reach[r].lowest];
	}
	for (int r = 0; r < w->size; r++) {
		w->host_of[r] = number[r];
		w->local_size += number[r] == number[w->rank];
		w->local_rank += r < w->rank && number[r] == number[w->rank];
	}
	w->host = number[w->rank];
}

bool hosts_find(Control *control, World *w, Arena *a)
{
	ArenaMark mark = arena_mark(a);
	Door mine, *door = NEW_N(a, Door, w->size);
	Reach *reach = NEW_N(a, Reach, w->size), at = {.lowest = w->rank};
	int fd = open_door(&mine);
	bool ok = control_all_gather(control, &mine, sizeof(mine), door);
	for (int r = 0; ok && r < w->rank && at.lowest == w->rank; r++)
		if (w->host_of[r] == w->host && look_through(&door[r]))
			at.lowest = r;
	ok = ok && control_all_gather(control, &at, sizeof(at), reach) && is_valid(reach, w->size);
	at.all = ok && reaches_all(w, door, reach);
	ok = ok && control_all_gather(control, &at, sizeof(at), reach) && is_valid(reach, w->size);
	if (fd >= 0)
		close(fd);
	if (ok)
		number_hosts(w, reach, a);
	arena_rewind(a, mark);
	return ok;
}
