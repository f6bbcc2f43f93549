/* runtime/comm/private.h: what a communicator consists of: functions to begin, take from and end exchanges.
 *
 * comm/shm.c is one communicator; those that have a folder wrap it to reach other hosts; comm/control.c uses the
 * control plane. */
#ifndef SHARDC_RUNTIME_COMM_PRIVATE_H
#define SHARDC_RUNTIME_COMM_PRIVATE_H

#include "runtime/comm/comm.h"

typedef struct CommOps {
	void (*begin)(Comm *c, const Exchange *x);
	int64_t (*take)(Comm *c, const Exchange *x, int64_t at, int64_t most, const char **from);
	void (*end)(Comm *c, const Exchange *x);
	void (*close)(Comm *c);
} CommOps;

/* The first member of every communicator. */
struct Comm {
	const CommOps *ops;
	const World *world;
	char *memory, *file; /* comm_memory, comm_file */
	char *mailbox;      /* COMM_MAILBOX bytes that peers can read */
	int *all_ranks;     /* 0, 1, ... */
	RankProgress *progress;
	bool outside;       /* an exchange that belongs to no collective of a program is under way */
	/* If not NULL: while this rank waits for a peer, it is called repeatedly with the number of calls so far, and the
	 * rank does not sleep until the peer wakes it. */
	void (*idle)(void *context, int polls);
	void *idle_context;
};

/* Tells the processor that this thread only waits: the core's other thread gets on, and the loop takes less power. */
static inline void wait_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb"); /* about as long as x86's pause; yield takes no time at all */
#endif
}

/* Serves the ranks of this host; for members on other hosts, take sets from[i] to NULL. */
Comm *comm_shm_open(Control *control, const World *w, const CommMemory *size, Arena *a, Diag *d);
/* Serves all ranks, on any host, for exchanges outside of programs. */
Comm *comm_control_open(Control *control, const World *w, int64_t bytes, Arena *a, Diag *d);

/* Returns the length of the piece that begins at `at` in every range of x that reaches so far, without an end of a
 * range inside; offset[i]: where it begins in member i's source, or -1. */
int64_t comm_piece(const Exchange *x, int64_t at, int64_t most, int64_t *offset);

/* ---- shared_file.c: memory that peers map ---- */

/* Makes a file without a name, `bytes` long, in large pages where possible; -1 and errno on failure. */
int shared_file(int64_t bytes);
/* Opens for reading what descriptor `fd` of process `pid` of this user is now; the caller checks that it is the
 * expected file. -1 and errno on failure. */
int shared_open(int pid, int fd);
/* Maps all of fd at the boundary of a large page, followed by file_bytes of another file at the next multiple of
 * COMM_FILE_ALIGN; NULL and errno on failure. */
void *shared_map(int fd, int64_t bytes, int file, int64_t file_bytes, bool writable);

#endif
