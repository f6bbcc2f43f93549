/* runtime/comm/comm.h: how ranks exchange bytes.
 *
 * Every collective is made of exchanges.  In an exchange each member offers one range of its memory (the source), and
 * takes from every member's source the bytes that the collective wants; exec/collective.c decides what is done with
 * them (copy, or sum in rank order).  No rank writes into another rank's memory.  The same bytes in the same order give
 * the same bits, whichever way they travel:
 *
 *   same host   peers' sources are mapped: a pointer into their memory (comm/shm.c)
 *   other host  pieces travel into staging memory (mpi/object.c, or another folder's), or, outside of steps whose
 *               collectives are NCCL's, through the control plane (comm/control.c)
 *
 * A rank begins an exchange (its source is published, sends are posted), takes from it piece by piece, and ends it (the
 * call returns when no member reads this rank's source any more).  Channels are independent: exchanges of one channel
 * happen in the same order on all ranks, those of different channels in any order.
 *
 * When a wait outlasts the watchdog's timeout, the watchdog ends the process (plane/watch.c), so exchanges report no
 * errors.  Calls block: they spin briefly, then sleep. */
#ifndef SHARDC_RUNTIME_COMM_H
#define SHARDC_RUNTIME_COMM_H

#include "base/layout.h"
#include "runtime/plane/plane.h"

typedef struct Comm Comm;

enum { COMM_MAILBOX = 2048 }; /* bytes of comm_mailbox */

/* ranks[i] is member i.  source lies in what comm_open maps, at the same offset on all members of
 * its memory or of its file. */
typedef struct Exchange {
	int channel;              /* an RtStream; exchanges of one channel happen one after the other */
	const int *ranks;
	int n, me;                /* me: this rank's index among the n members */
	const void *source;
	/* Bytes that member `taker` takes from member `giver`'s source: offset and length, multiples of 4; length 0:
	 * nothing. */
	void (*range)(const void *context, int taker, int giver, int64_t *begin, int64_t *bytes);
	const void *context;
} Exchange;

/* ---- life ---- */

enum { COMM_FILE_ALIGN = 64 << 10 }; /* a multiple of every size of pages that x86-64 and AArch64 have */
/* Memory that peers read: `bytes` of it, and behind it the first file_bytes of an open file (0: none).
 * outside: it only serves exchanges outside of programs. */
typedef struct CommMemory { int64_t bytes, file_bytes; int file; bool outside; } CommMemory;
/* Maps this memory, aligned to 64 bytes, and opens that of peers.  All ranks call it, with sizes that may differ; rank
 * 0 reports a failure of any rank.  NULL after a message.  Only for two ranks or more. */
Comm *comm_open(Control *control, const World *w, const CommMemory *size, Arena *a, Diag *d);
void comm_close(Comm *c);
char *comm_memory(Comm *c);
/* The file's first byte, at a multiple of the size of pages; NULL where there is none. */
char *comm_file(Comm *c);
/* This rank's small source for RT_STREAM_SYNC exchanges, such as scalars: COMM_MAILBOX bytes. */
void *comm_mailbox(Comm *c);

/* ---- exchanges ---- */

/* Publishes the source.  *x must not change until exchange_end. */
void exchange_begin(Comm *c, const Exchange *x);
/* Sets from[i] to where bytes [at, at + n) of this rank's range of member i's source can be read; NULL where that range
 * ends at or before `at`.  Returns n, at most `most`, chosen so that no range ends inside the piece; 0 = everything has
 * been taken. */
int64_t exchange_take(Comm *c, const Exchange *x, int64_t at, int64_t most, const char **from);
/* Says that this rank has read everything; returns when all members have. */
void exchange_end(Comm *c, const Exchange *x);

/* ---- small blocking ones, over all ranks, on RT_STREAM_SYNC ---- */

/* all[r] = what rank r gave. bytes: at most COMM_MAILBOX, a multiple of 4, equal on all ranks. */
void comm_all(Comm *c, const void *mine, int64_t bytes, void *all);
void comm_sum(Comm *c, double *x, int n);    /* in rank order: equal bits on all ranks; n at most 200 */
void comm_barrier(Comm *c);

/* ---- communicators that have a folder (FOLDER in base/communicators.h) ---- */

/* They bring ranks together that their own launcher started, and may reach other hosts. */
typedef struct CommBackend {
	/* Tells all ranks rank 0's address (control_listen), in l->address; sets l->world.opened and threads.  False after
	 * a message. */
	bool (*start)(Launch *l, const RtOptions *o, Arena *a, Diag *d);
	/* Called at the end, with the exit status; NULL: there is nothing to end. */
	void (*stop)(const World *w, int status);
	/* Serves ranks on other hosts and, through `local`, which it then owns, those of this host.  NULL after a
	 * message.  A communicator that reaches one host only has no such function. */
	Comm *(*open)(Comm *local, const World *w, Diag *d);
} CommBackend;

/* Starts l->carrier, and sets l->world.backend.  False after a message. */
bool comm_start(Launch *l, const RtOptions *o, Arena *a, Diag *d);
/* Ends it, where there is one.  After a failure ranks do not wait for each other: their launcher ends them. */
void comm_stop(const World *w, int status);

/* ---- hosts.c ---- */

/* Finds out which ranks really reach each other's memory, and splits hosts that only look like one.  False: a rank is
 * gone. */
bool hosts_find(Control *control, World *w, Arena *a);

/* ---- wait.c: waiting for a counter that another thread or process advances ---- */

typedef _Atomic uint32_t Counter;

/* Returns when *c has reached `target` (the counter may wrap around): spins `spins` times, then sleeps. */
void wait_reach(Counter *c, uint32_t target, int spins);
/* Adds 1, publishes what was written before, and wakes those who sleep on the counter. */
void wait_post(Counter *c);
/* How many spins pay off: few where `threads` need more cores than this process may use. */
int wait_spins(int threads);

/* ---- object.c: shared objects that a training program opens when it needs them ---- */

/* The parts of the message when the object is missing: "NEEDED_BY needs FILE, which is in none of ...; REMEDY, or name
 * its folder in SHARDRT_LIB; INSTEAD". */
typedef struct ObjectWanted { const char *file, *needed_by, *remedy, *instead; } ObjectWanted;
/* NULL after a message; *path: where the object was found. */
void *object_open(const ObjectWanted *wanted, const char **path, Arena *a, const char *where, Diag *d);
const void *object_symbol(void *object, const char *name); /* NULL: there is none */

#endif
