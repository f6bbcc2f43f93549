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
 * A wait that outlasts the watchdog's timeout ends the process (plane/watch.c), so no call here reports errors;
 * calls block, spinning briefly, then sleeping. */
#ifndef SHARDC_RUNTIME_COMM_H
#define SHARDC_RUNTIME_COMM_H

#include "base/layout.h"
#include "runtime/plane/plane.h"

typedef struct Comm Comm;

enum { COMM_MAILBOX = 2048 }; /* bytes of comm_mailbox */

/* ranks[i] is member i.  source lies in memory from comm_memory, at the same offset on all members. */
typedef struct Exchange {
	int channel;              /* an RtStream: exchanges of one happen one after the other */
	const int *ranks;
	int n, me;                /* members; my index among them */
	const void *source;
	/* Bytes that member `taker` takes from member `giver`'s source: offset and length, multiples of 4; length 0:
	 * nothing. */
	void (*range)(const void *context, int taker, int giver, int64_t *begin, int64_t *bytes);
	const void *context;
} Exchange;

/* ---- life ---- */

/* Memory that peers read: `bytes` of it, and behind that, at the next multiple of 4096, the first file_bytes of an
 * open file (0: none).  outside: it serves exchanges outside of programs only. */
typedef struct CommMemory { int64_t bytes, file_bytes; int file; bool outside; } CommMemory;
/* Maps it, at 64 bytes' alignment, and opens that of peers.  All ranks call it, with sizes that may differ; rank 0
 * reports what fails on any.  NULL after a message.  For two ranks and more. */
Comm *comm_open(Control *control, const World *w, const CommMemory *size, Arena *a, Diag *d);
void comm_close(Comm *c);
char *comm_memory(Comm *c);
/* One's own small source for RT_STREAM_SYNC exchanges (scalars, control word): COMM_MAILBOX bytes. */
void *comm_mailbox(Comm *c);

/* ---- exchanges ---- */

/* Publishes.  x must stay as it is until exchange_end. */
void exchange_begin(Comm *c, const Exchange *x);
/* from[i] = where bytes [at, at + n) of my range of member i's source can be read, NULL where that range ends
 * at or before `at`.  n, at most `most`, is returned; it is cut so that no range ends inside, 0 = all is taken. */
int64_t exchange_take(Comm *c, const Exchange *x, int64_t at, int64_t most, const char **from);
/* I have read everything; returns when all members have. */
void exchange_end(Comm *c, const Exchange *x);

/* ---- small blocking ones, over all ranks, on RT_STREAM_SYNC ---- */

/* all[r] = what rank r gave; at most COMM_MAILBOX bytes, a multiple of 4, equal on all ranks. */
void comm_all(Comm *c, const void *mine, int64_t bytes, void *all);
void comm_sum(Comm *c, double *x, int n);    /* in rank order: equal bits on all ranks; n at most 200 */
void comm_barrier(Comm *c);

/* ---- mpi/mpi.c: runs that mpirun started ---- */

/* Opens the shared object, calls MPI_Init, tells all ranks rank 0's address.  False after a message. */
bool mpi_start(Launch *l, const RtOptions *o, Arena *a, Diag *d);
/* After success: MPI_Finalize, which waits for all ranks.  After a failure nothing: mpirun ends the others. */
void mpi_stop(const World *w, int status);

/* ---- hosts.c ---- */

/* Which ranks really reach each other's memory: splits hosts that only look like one.  False: a rank is gone. */
bool hosts_find(Control *control, World *w, Arena *a);

/* ---- wait.c: a counter that another thread or process moves on ---- */

typedef _Atomic uint32_t Counter;

/* Returns when *c has reached `target` (differences wrap): spins `spins` times, then sleeps. */
void wait_reach(Counter *c, uint32_t target, int spins);
/* Adds 1, publishing what was written before, and wakes who sleeps on it. */
void wait_post(Counter *c);
/* Spins worth while: few when `threads` want more cores than this process may use. */
int wait_spins(int threads);

/* ---- object.c: shared objects that a training program opens when it needs them ---- */

/* What the message says where it is missing: "NEEDED_BY needs FILE, which is in none of ...; REMEDY, or name its
 * folder in SHARDRT_LIB; INSTEAD". */
typedef struct ObjectWanted { const char *file, *needed_by, *remedy, *instead; } ObjectWanted;
/* NULL after a message; *path: where it is. */
void *object_open(const ObjectWanted *wanted, const char **path, Arena *a, const char *where, Diag *d);
const void *object_symbol(void *object, const char *name); /* NULL: there is none */

#endif
