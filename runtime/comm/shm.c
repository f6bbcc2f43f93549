/* runtime/comm/shm.c: the communicator of one host, whose ranks read each other's memory.
 *
 * Each rank has one file (shared_file.c), a counter page followed by the memory that peers read, and maps the files of
 * all others read-only, through /proc/PID/fd/FD.  A rank writes only its own memory and its own counters, so a peer
 * that is late, stopped or gone cannot damage anything.  The numbers of a process and a descriptor may by now, or in
 * another container, lead to another file.  So a rank accepts a file as a peer's only if it holds the random number
 * that the peer announced, and the offloaded file behind it only if device and inode are those announced.
 *
 * For each channel a rank counts the exchanges that it has begun (its source may be read) and ended (it has stopped
 * reading the others').  The k-th exchange of a channel is the same one on all its members, so a rank waits by
 * comparing a member's counter with its own number of that exchange. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/comm/private.h"

enum { COUNTER_PAGE = 4096, LINE = 64 };
#define MOST_BYTES ((int64_t)1 << 46) /* limit for the address space of one rank */

typedef union Word { Counter count; char line[LINE]; } Word;
typedef struct CommPage {
	Word begun[RT_STREAMS], ended[RT_STREAMS];
	char mailbox[COMM_MAILBOX];
	uint64_t number[2]; /* random */
} CommPage;
_Static_assert(sizeof(CommPage) <= COUNTER_PAGE, "one page");

typedef struct Shm {
	Comm comm;
	CommPage **page;    /* [rank] */
	int64_t *bytes;     /* [rank]: bytes of its mapping, including the file */
	int64_t *behind;    /* [rank]: where in its mapping the file begins */
	int spins;
} Shm;

/* What ranks tell each other at start. */
typedef struct Address {
	int32_t pid, fd, error, file;
	int64_t bytes, file_bytes;
	uint64_t number[2], device, inode; /* number: of the memory; device and inode: of the file behind it */
	cpu_set_t cores;
} Address;

/* ---- exchanges ---- */

/* Waits for a peer's counter.  Where ranks on other hosts are served by polling, the polling goes on meanwhile. */
static void reach(const Shm *s, Counter *c, uint32_t target)
{
	if (!s->comm.idle) {
		wait_reach(c, target, s->spins);
		return;
	}
	for (int i = 0; (int32_t)(atomic_load_explicit(c, memory_order_acquire) - target) < 0; i++)
		s->comm.idle(s->comm.idle_context, i);
}

static CommPage *my_page(const Shm *s)
{
	return s->page[s->comm.world->rank];
}

static void shm_begin(Comm *c, const Exchange *x)
{
	wait_post(&my_page((Shm *)c)->begun[x->channel].count);
}

/* A peer's source, which has the offset of this rank's in the memory, or in the file behind it. */
static const char *source_of(const Shm *s, int peer, const void *mine)
{
	int me = s->comm.world->rank;
	int64_t at = (const char *)mine - (const char *)my_page(s);
	int64_t further = at < s->behind[me] ? 0 : s->behind[peer] - s->behind[me];
	return (const char *)s->page[peer] + at + further;
}

static int64_t shm_take(Comm *c, const Exchange *x, int64_t at, int64_t most, const char **from)
{
	Shm *s = (Shm *)c;
	int64_t offset[x->n], n = comm_piece(x, at, most, offset);
	uint32_t k = atomic_load_explicit(&my_page(s)->ended[x->channel].count, memory_order_relaxed) + 1;
	for (int i = 0; i < x->n; i++) {
		CommPage *page = s->page[x->ranks[i]];
		from[i] = n == 0 || offset[i] < 0 || !page ? NULL : source_of(s, x->ranks[i], x->source) + offset[i];
		if (from[i])
			reach(s, &page->begun[x->channel].count, k);
	}
	return n;
}

static void shm_end(Comm *c, const Exchange *x)
{
	Shm *s = (Shm *)c;
	Counter *mine = &my_page(s)->ended[x->channel].count;
	wait_post(mine);
	uint32_t k = atomic_load_explicit(mine, memory_order_relaxed);
	for (int i = 0; i < x->n; i++)
		if (s->page[x->ranks[i]])
			reach(s, &s->page[x->ranks[i]]->ended[x->channel].count, k);
}

static void shm_close(Comm *c)
{
	Shm *s = (Shm *)c;
	for (int i = 0; i < c->world->size; i++)
		if (s->page[i])
			munmap(s->page[i], (size_t)s->bytes[i]);
	memset(s->page, 0, sizeof(*s->page) * (size_t)c->world->size);
}

static const CommOps shm_ops = {shm_begin, shm_take, shm_end, shm_close};

/* ---- life ---- */

/* Where the file behind a rank's memory begins. */
static int64_t file_begin(const Address *a)
{
	return round_up(a->bytes, COMM_FILE_ALIGN);
}

/* Bytes of address space that a rank's memory takes, with the file behind it. */
static int64_t span(const Address *a)
{
	return a->file_bytes ? file_begin(a) + a->file_bytes : a->bytes;
}

/* Makes the shared memory of this rank; its file stays open until all peers have mapped it.  Returns 0 or errno. */
static int make_own(Address *mine, int *fd, CommPage **page)
{
	struct stat s = {0};
	if (mine->file_bytes && fstat(mine->file, &s))
		return errno;
	mine->device = s.st_dev;
	mine->inode = s.st_ino;
	if (getrandom(mine->number, sizeof(mine->number), 0) != sizeof(mine->number))
		return errno;
	*fd = shared_file(mine->bytes);
	void *p = *fd < 0 ? NULL : shared_map(*fd, mine->bytes, mine->file, mine->file_bytes, true);
	if (!p)
		return errno;
	*page = p;
#ifdef MADV_POPULATE_WRITE
	if (madvise(p, (size_t)mine->bytes, MADV_POPULATE_WRITE) && errno != EINVAL)
		return errno;
#endif
	memcpy((*page)->number, mine->number, sizeof(mine->number));
	return 0;
}

/* Returns 0 or errno; ESTALE: it is not the peer's file. */
static int check_file(const Address *peer, int file)
{
	struct stat s;
	if (fstat(file, &s))
		return errno;
	return s.st_dev == peer->device && s.st_ino == peer->inode && s.st_size >= peer->file_bytes ? 0 : ESTALE;
}

static int check_memory(const Address *peer, int fd)
{
	struct stat s;
	uint64_t number[2];
	if (fstat(fd, &s) || pread(fd, number, sizeof(number), offsetof(CommPage, number)) < 0)
		return errno;
	return s.st_size >= peer->bytes && !memcmp(number, peer->number, sizeof(number)) ? 0 : ESTALE;
}

static int map_peer(const Address *peer, CommPage **page)
{
	bool sizes = peer->bytes >= COUNTER_PAGE && peer->bytes <= MOST_BYTES && peer->file_bytes >= 0 &&
		peer->file_bytes <= MOST_BYTES;
	int fd = sizes ? shared_open(peer->pid, peer->fd) : -1, file = -1;
	int error = !sizes ? EINVAL : fd < 0 ? errno : check_memory(peer, fd);
	if (!error && peer->file_bytes)
		error = (file = shared_open(peer->pid, peer->file)) < 0 ? errno : check_file(peer, file);
	if (!error) {
		*page = shared_map(fd, peer->bytes, file, peer->file_bytes, false);
		error = *page ? 0 : errno;
	}
	if (fd >= 0)
		close(fd);
	if (file >= 0)
		close(file);
	return error;
}

/* All ranks learn whether one has failed; rank 0 prints which. */
static bool all_well(struct Control *control, const World *w, const Address *mine, Address *all, const char *what,
	Diag *d)
{
	if (!control_all_gather(control, mine, sizeof(*mine), all))
		return false;
	for (int r = 0; r < w->size; r++) {
		if (!all[r].error)
			continue;
		if (w->rank == 0)
			diag_error(d, "--comm=shm", "rank %d: %" PRId64 " bytes of shared memory cannot be %s: %s", r,
				all[r].bytes, what, strerror(all[r].error));
		return false;
	}
	return true;
}

/* Ranks that share cores with each other spin less, so that others can compute while they wait. */
static int choose_spins(const World *w, const Address *all)
{
	cpu_set_t any;
	int ranks = 0;
	CPU_ZERO(&any);
	for (int r = 0; r < w->size; r++) {
		if (w->host_of[r] != w->host)
			continue;
		CPU_OR(&any, &any, &all[r].cores);
		ranks++;
	}
	return wait_spins(CPU_COUNT(&any) >= ranks ? 1 : INT_MAX);
}

Comm *comm_shm_open(struct Control *control, const World *w, const CommMemory *size, Arena *a, Diag *d)
{
	Shm *s = NEW(a, Shm);
	*s = (Shm){.comm = {.ops = &shm_ops, .world = w}, .page = NEW_N(a, CommPage *, w->size),
		.bytes = NEW_N(a, int64_t, w->size), .behind = NEW_N(a, int64_t, w->size)};
	Address mine = {.pid = (int32_t)getpid(), .bytes = COUNTER_PAGE + size->bytes, .file = size->file,
		.file_bytes = size->file_bytes}, *all = NEW_N(a, Address, w->size);
	int fd = -1;
	mine.error = make_own(&mine, &fd, &s->page[w->rank]);
	mine.fd = fd;
	sched_getaffinity(0, sizeof(mine.cores), &mine.cores);
	bool ok = all_well(control, w, &mine, all, "made", d);
	s->spins = ok ? choose_spins(w, all) : 0;
	for (int r = 0; ok && r < w->size; r++) {
		s->bytes[r] = span(&all[r]);
		s->behind[r] = file_begin(&all[r]);
		if (r != w->rank && w->host_of[r] == w->host && !mine.error)
			mine.error = map_peer(&all[r], &s->page[r]);
	}
	ok = ok && all_well(control, w, &mine, all, "opened by it", d);
	if (fd >= 0)
		close(fd);
	if (!ok) {
		s->bytes[w->rank] = span(&mine);
		shm_close(&s->comm);
		return NULL;
	}
	s->comm.memory = (char *)my_page(s) + COUNTER_PAGE;
	s->comm.file = mine.file_bytes ? (char *)my_page(s) + file_begin(&mine) : NULL;
	s->comm.mailbox = my_page(s)->mailbox;
	return &s->comm;
}
