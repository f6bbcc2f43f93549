/* runtime/comm/comm.h: how ranks move bytes between each other.
 *
 * Every collective is made of exchanges.  In an exchange each member offers one range of its memory (the
 * source), and takes from every member's source the bytes that the collective wants; what is done with
 * them (copy, fold in rank order) is collective.c's.  Nobody writes into another rank's memory, so the same
 * bytes in the same order give the same bits whatever moves them:
 *
 *   same host   peers' sources are mapped: a pointer into their memory (comm/shm.c)
 *   other host  pieces travel into staging memory (mpi/object.c, a shared object), or, outside of steps whose
 *               collectives are NCCL's, through the control plane (comm/control.c)
 *
 * An exchange is begun (the source is published, sends are posted), taken from piece by piece, and ended
 * (returns when nobody reads my source any more).  Channels are independent: exchanges of one channel
 * happen in the same order on all ranks, those of different channels in any.
 *
 * A wait that outlasts the watchdog's timeout ends the process (control.c), so no call here reports errors;
 * calls block, spinning briefly, then sleeping. */
#ifndef SHARDC_COMM_H
#define SHARDC_COMM_H

#include "base/base.h"
#include "base/layout.h"

typedef struct Comm Comm;

enum { COMM_GATHER, COMM_REDUCE, COMM_SYNC, COMM_CHANNELS }; /* as RtStream */
enum { COMM_MAILBOX = 2048 }; /* bytes of comm_mailbox */

/* ranks[i] is member i.  source lies in memory from comm_memory, at the same offset on all members. */
typedef struct Exchange {
	int channel;
	const int *ranks;
	int n, me;                /* members; my index among them */
	const void *source;
	/* Bytes that member `taker` takes from member `giver`'s source: offset and length, multiples of 4; length 0:
	 * nothing. */
	void (*range)(const void *context, int taker, int giver, int64_t *begin, int64_t *bytes);
	const void *context;
} Exchange;

/* ---- life ---- */

/* Who this process is; made by launch.c from --ranks, the launcher's variables, or MPI. */
typedef struct World {
	int rank, size;
	int local_rank, local_size; /* on this host */
	int host, n_hosts;
	int *host_of;               /* [rank] */
	const struct MpiBackend *mpi; /* mpi/object.h; NULL: not started by mpirun */
	bool mpi_threads;           /* and it may be called from several threads */
} World;

/* Memory that peers read: `bytes` of it, and behind that, at the next multiple of 4096, the first file_bytes of an
 * open file (0: none).  outside: it serves exchanges outside of programs only. */
typedef struct CommMemory { int64_t bytes, file_bytes; int file; bool outside; } CommMemory;
/* Maps it, at 64 bytes' alignment, and opens that of peers.  All ranks call it, with sizes that may differ; rank 0
 * reports what fails on any.  NULL after a message.  For two ranks and more. */
struct Control; /* control.h: where ranks tell each other how they can be reached */
Comm *comm_open(struct Control *control, const World *w, const CommMemory *size, Arena *a, Diag *d);
void comm_close(Comm *c);
char *comm_memory(Comm *c);
/* One's own small source for COMM_SYNC exchanges (scalars, control word): COMM_MAILBOX bytes. */
void *comm_mailbox(Comm *c);

/* ---- exchanges ---- */

/* Publishes.  x must stay as it is until exchange_end. */
void exchange_begin(Comm *c, const Exchange *x);
/* from[i] = where bytes [at, at + n) of my range of member i's source can be read, NULL where that range ends
 * at or before `at`.  n, at most `most`, is returned; it is cut so that no range ends inside, 0 = all is taken. */
int64_t exchange_take(Comm *c, const Exchange *x, int64_t at, int64_t most, const char **from);
/* I have read everything; returns when all members have. */
void exchange_end(Comm *c, const Exchange *x);

/* ---- small blocking ones, over all ranks, on COMM_SYNC ---- */

/* all[r] = what rank r gave; at most COMM_MAILBOX bytes, a multiple of 4, equal on all ranks. */
void comm_all(Comm *c, const void *mine, int64_t bytes, void *all);
void comm_sum(Comm *c, double *x, int n);    /* in rank order: equal bits on all ranks; n at most 200 */
void comm_barrier(Comm *c);

#endif
