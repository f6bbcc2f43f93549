/* runtime/comm/hosts.c: finds out by trying which ranks can read each other's memory.
 *
 * Containers on one machine may share a hostname without access to each other's processes.  Every rank makes a "door",
 * a file in memory with a random number in it, and tries to read the doors of the ranks that seem to be on its host, in
 * the way in which comm/shm.c will map their memory.
 *
 * Ranks that reach the same lowest rank form a host if each of them reaches all the others; if one does not, each of
 * these ranks counts as a host of its own, which is slower but correct. */
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

/* Checks numbers from other ranks before they are used as indices. */
static bool is_valid(const Reach *reach, int n)
{
	for (int r = 0; r < n; r++)
		if (reach[r].lowest < 0 || reach[r].lowest > r || reach[reach[r].lowest].lowest > reach[r].lowest)
			return false;
	return true;
}

/* Whether this rank reaches all ranks with the same reach[].lowest, which is known of all ranks by now. */
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
