/* runtime/mpi.c: finds and opens the shared object that talks MPI, and starts the run through it.
 *
 * Refuses an object of another version of shardc, one built for another MPI than the mpirun that started this
 * process, and threads where the MPI library cannot have them.  Messages name every place that was searched.
 *
 * The one idea: a program is compiled without MPI and runs without it; where mpirun started it, the object is
 * searched beside the program, where the runtime was that it was linked with (its run path), and in SHARDRT_LIB. */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/comm_mpi.h"
#include "runtime/mpi.h"
#include "runtime/wait.h"

/* ---- where it is ---- */

static const char *program_dir(Arena *a)
{
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	if (n <= 0)
		return ".";
	path[n] = '\0';
	*strrchr(path, '/') = '\0';
	return arena_strdup(a, path);
}

/* The folders of the program's run path: those that the loader itself would search before the system's. */
static int run_path(Arena *a, const char **out, int most)
{
	Dl_serinfo size, *list;
	void *self = dlopen(NULL, RTLD_NOW);
	int n = 0;
	if (self && !dlinfo(self, RTLD_DI_SERINFOSIZE, &size)) {
		list = arena_alloc(a, size.dls_size);
		memset(list, 0, size.dls_size);
		list->dls_size = size.dls_size;
		list->dls_cnt = size.dls_cnt;
		for (unsigned i = 0; !dlinfo(self, RTLD_DI_SERINFO, list) && i < list->dls_cnt && n < most; i++)
			if (!access(arena_printf(a, "%s/%s", list->dls_serpath[i].dls_name, COMM_MPI_FILE), F_OK) ||
				!access(arena_printf(a, "%s/libshardrt.a", list->dls_serpath[i].dls_name), F_OK))
				out[n++] = arena_strdup(a, list->dls_serpath[i].dls_name);
	}
	if (self)
		dlclose(self);
	return n;
}

static void *open_object(const char **path, Arena *a, const char *where, Diag *d)
{
	enum { MOST = 16 };
	const char *dir[MOST + 2] = {program_dir(a)}, *given = getenv("SHARDRT_LIB"), *searched = "";
	int n = 1 + run_path(a, dir + 1, MOST);
	if (given && *given)
		dir[n++] = given;
	for (int i = 0; i < n; i++) {
		*path = arena_printf(a, "%s/%s", dir[i], COMM_MPI_FILE);
		if (access(*path, F_OK)) {
			searched = arena_printf(a, "%s%s%s", searched, *searched ? ", " : "", dir[i]);
			continue;
		}
		void *object = dlopen(*path, RTLD_NOW | RTLD_GLOBAL);
		if (!object)
			diag_error(d, where, "%s cannot be opened: %s", *path, dlerror());
		return object;
	}
	diag_error(d, where, "--comm=mpi (or mpirun) needs %s, which is in none of %s%s; build shardc where an MPI is "
		"installed (Debian: libopenmpi-dev, openmpi-bin), or name its folder in SHARDRT_LIB; --comm=shm with "
		"--ranks N needs no MPI", COMM_MPI_FILE, searched, given && *given ? "" : " (SHARDRT_LIB is not set)");
	return NULL;
}

/* ---- starting ---- */

static const MpiBackend *load(const char **path, Arena *a, const char *where, Diag *d)
{
	const MpiShape mine = COMM_MPI_SHAPE;
	void *object = open_object(path, a, where, d);
	if (!object)
		return NULL;
	const MpiBackend *b = dlsym(object, COMM_MPI_SYMBOL);
	if (b && !memcmp(&b->shape, &mine, sizeof(mine)))
		return b;
	diag_error(d, where, "%s was built by another version of shardc than this program; compile the program again",
		*path);
	return NULL;
}

/* All ranks of a host fail alike: one says it, before the end of another ends it. */
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

bool mpi_start(Launch *l, const RtOptions *o, Arena *a, Diag *d)
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
	l->world.mpi = b;
	l->world.mpi_threads = s.threads;
	char address[1024] = "";
	if (s.rank == 0 && control_listen(l, a, d))
		snprintf(address, sizeof(address), "%s", l->address);
	b->broadcast(address, sizeof(address));
	if (!*address)
		return false;
	l->address = arena_strdup(a, address);
	return true;
}

void mpi_stop(const World *w, int status)
{
	if (w->mpi && status == 0)
		w->mpi->stop();
}

/* ---- the communicator ---- */

Comm *mpi_comm(Comm *local, const World *w, Diag *d)
{
	int64_t bytes = layout_comm_bytes(w->size, w->n_hosts) - layout_comm_bytes(w->size, 1);
	char *staging = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (staging == MAP_FAILED) {
		diag_error(d, "--comm=mpi", "rank %d: %lld bytes for what comes from other hosts cannot be mapped: %s", w->rank,
			(long long)bytes, strerror(errno));
		return NULL;
	}
	return w->mpi->open(local, w, staging, bytes, wait_spins(1));
}
