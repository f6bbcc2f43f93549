/* runtime/comm/private.h: what a communicator is made of: a way to publish, take and end exchanges.
 *
 * comm/shm.c is one; mpi/object.c, a shared object (mpi/object.h), serves other hosts and wraps the first. */
#ifndef SHARDC_RUNTIME_COMM_PRIVATE_H
#define SHARDC_RUNTIME_COMM_PRIVATE_H

#include "runtime/comm/comm.h"

typedef struct CommOps {
	void (*begin)(Comm *c, const Exchange *x);
	int64_t (*take)(Comm *c, const Exchange *x, int64_t at, int64_t most, const char **from);
	void (*end)(Comm *c, const Exchange *x);
	void (*close)(Comm *c);
} CommOps;

/* What all of them begin with. */
struct Comm {
	const CommOps *ops;
	const World *world;
	char *memory;       /* comm_memory */
	char *mailbox;      /* COMM_MAILBOX bytes that peers can read */
	int *all_ranks;     /* 0, 1, ... */
	RankProgress *progress;
	bool outside;       /* an exchange that is no collective of a program is under way */
	/* Not NULL: called again and again while a peer is waited for, with the number of calls so far, instead of
	 * sleeping until the peer wakes this rank. */
	void (*idle)(void *context, int polls);
	void *idle_context;
};

/* Of the ranks of this host; members of an exchange on others get NULL from take. */
Comm *comm_shm_open(Control *control, const World *w, const CommMemory *size, Arena *a, Diag *d);
/* Of all ranks, wherever they are, for exchanges outside of programs. */
Comm *comm_control_open(Control *control, const World *w, int64_t bytes, Arena *a, Diag *d);

/* The piece at `at` that all ranges of x which reach it have in common: its length; offset[i] of member i's
 * source, or -1. */
int64_t comm_piece(const Exchange *x, int64_t at, int64_t most, int64_t *offset);

/* ---- mpi/mpi.c ---- */

/* Exchanges with ranks on other hosts beside those of this one.  NULL after a message. */
Comm *mpi_comm(Comm *local, const World *w, Diag *d);

/* ---- shared_file.c: memory that peers map ---- */

/* A file without a name, `bytes` long, in large pages where possible; -1 and errno. */
int shared_file(int64_t bytes);
/* That file of another process of this user, for reading, whatever it is now: the caller makes sure; -1 and errno. */
int shared_open(int pid, int fd);
/* Maps all of it at the boundary of a large page, and file_bytes of another file behind it, at the next multiple of
 * 4096; NULL and errno. */
void *shared_map(int fd, int64_t bytes, int file, int64_t file_bytes, bool writable);

#endif
