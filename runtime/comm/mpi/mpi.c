/* runtime/comm/mpi/mpi.c: opens the shared object that talks MPI (object.c), and starts the run through it.
 *
 * Refuses an object of another version of shardc, one built for another MPI than the mpirun that started this process,
 * and --comm-threads=1 where the MPI library does not allow calls from several threads.
 *
 * A program is compiled without MPI and runs without it; the object is opened only where mpirun started the program or
 * --comm=mpi is given. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/comm/mpi/object.h"
#include "runtime/comm/private.h"

/* ---- starting ---- */

static const MpiBackend *load(const char **path, Arena *a, const char *where, Diag *d)
{
	const MpiShape mine = COMM_MPI_SHAPE;
	const ObjectWanted wanted = {COMM_MPI_FILE, "--comm=mpi (or mpirun)", "build shardc where an MPI is installed "
		"(Debian: libopenmpi-dev, openmpi-bin)", "--comm=shm with --ranks N needs no MPI"};
	void *object = object_open(&wanted, path, a, where, d);
	if (!object)
		return NULL;
	const MpiBackend *b = object_symbol(object, COMM_MPI_SYMBOL);
	if (b && !memcmp(&b->shape, &mine, sizeof(mine)))
		return b;
	diag_error(d, where, "%s was built by another version of shardc than this program; compile the program again",
		*path);
	return NULL;
}

/* All ranks of a host fail in the same way, so only one prints the message; the others wait a little, because mpirun
 * ends all ranks as soon as one has ended. */
static const MpiBackend *load_once(const Launch *l, const char **path, Arena *a, const char *where, Diag *d)
{
	FILE *nowhere = l->world.local_rank ? fopen("/dev/null", "w") : NULL;
	Diag quiet = {.out = nowhere};
	const MpiBackend *b = load(path, a, where, nowhere ? &quiet : d);
	if (nowhere)
		fclose(nowhere);
	if (!b && nowhere)
		usleep(500000);
	return b;
}

static bool check_start(const Launch *l, const MpiStart *s, const char *path, const RtOptions *o, Diag *d)
{
	if (s->size != l->world.size || s->rank != l->world.rank) {
		diag_error(d, o->program, "this is rank %d of %d by the launcher's variables, but rank %d of %d by MPI: %s was "
			"built with \"%s\", start the ranks with the mpirun of that", l->world.rank, l->world.size, s->rank,
			s->size, path, s->version);
		return false;
	}
	if (!s->threads && o->comm_threads > 0) {
		if (s->rank == 0)
			diag_error(d, o->program, "--comm-threads %lld: this MPI (%s) lets one thread of a program call it only; "
				"--comm-threads 0 needs no other", (long long)o->comm_threads, s->version);
		return false;
	}
	return true;
}

static bool start(Launch *l, const RtOptions *o, Arena *a, Diag *d)
{
	const char *path = NULL;
	MpiStart s = {0};
	const MpiBackend *b = load_once(l, &path, a, o->program, d);
	if (!b)
		return false;
	if (!b->start(&s)) {
		diag_error(d, o->program, "MPI cannot be started (%s)", path);
		return false;
	}
	if (!check_start(l, &s, path, o, d))
		return false;
	l->world.opened = b;
	l->world.threads = s.threads;
	char address[1024] = "";
	if (s.rank == 0 && control_listen(l, a, d))
		snprintf(address, sizeof(address), "%s", l->address);
	b->broadcast(address, sizeof(address));
	if (!*address)
		return false;
	l->address = arena_strdup(a, address);
	return true;
}

static const MpiBackend *opened(const World *w)
{
	return w->opened;
}

/* MPI_Finalize waits for all ranks; after a failure mpirun ends them, as soon as one has ended without it. */
static void stop(const World *w, int status)
{
	if (!status)
		opened(w)->stop();
}

/* ---- the communicator ---- */

static Comm *open_hosts(Comm *local, const World *w, Diag *d)
{
	int64_t bytes = layout_comm_bytes(w->size, w->n_hosts) - layout_comm_bytes(w->size, 1);
	char *staging = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (staging == MAP_FAILED) {
		diag_error(d, "--comm=mpi", "rank %d: %lld bytes for what comes from other hosts cannot be mapped: %s", w->rank,
			(long long)bytes, strerror(errno));
		return NULL;
	}
	return opened(w)->open(local, w, staging, bytes, wait_spins(1));
}

const CommBackend comm_mpi = {start, stop, open_hosts};
