/* runtime/plane/plane.h: how ranks are started, find each other, exchange small data at start, and are watched.
 *
 * One small control plane over sockets serves every communicator: bootstrap (every rank sends a small blob to all
 * others), comparison of schedules, heartbeats with counters, and the end of the run.  Tensors do not travel here
 * during steps.
 *
 *   --ranks N            the parent process is the hub: it starts the ranks, watches them, kills what hangs
 *   launcher's variables a thread of rank 0 is the hub (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE); ranks of one
 *                        host meet at a local socket named by MASTER_PORT, those of several at MASTER_ADDR:MASTER_PORT
 *   a carrier (mpirun)   as that, at an address that rank 0 tells the others through it
 *   srun                 as a launcher's, at MASTER_ADDR and MASTER_PORT, or on the job's first host */
#ifndef SHARDC_RUNTIME_PLANE_H
#define SHARDC_RUNTIME_PLANE_H

#include <stdatomic.h>

#include "base/collectives.h"
#include "base/communicators.h"
#include "runtime/options.h"

/* ---- what all folders know of ranks ---- */

/* Who this process is; made by launch.c from --ranks or the launcher's variables. */
typedef struct World {
	int rank, size;
	int local_rank, local_size; /* on this host */
	int host, n_hosts;
	int *host_of;               /* [rank] */
	const struct CommBackend *backend; /* of a communicator that has a folder (comm/comm.h); NULL: of none */
	const void *opened;         /* what it opened at the start */
	bool threads;               /* it may be called from several threads, one at a time */
} World;
/* Exit codes of a rank: success; bad data; wrong usage; a failed run or a lost rank. */
enum { EXIT_DONE = 0, EXIT_INPUT = 1, EXIT_USAGE = 2, EXIT_RUN = 3 };

/* ---- launch.c, supervise.c ---- */

/* A secret that only the ranks of a run know. given false: the key is one that everybody knows, and keeps nobody
 * out. */
typedef struct Secret { bool given; uint8_t key[32]; } Secret;
/* Reads SHARDC_SECRET, or the file named by SHARDC_SECRET_FILE; where neither is set, no secret is given.  False after
 * a message. */
bool secret_find(Secret *s, const char *where, Diag *d);

/* How this process came to be. */
typedef enum LaunchRole {
	LAUNCH_ALONE,   /* one rank: no control plane */
	LAUNCH_PARENT,  /* the parent of --ranks N: supervises the ranks, does not train */
	LAUNCH_RANK,    /* one of several ranks */
} LaunchRole;
typedef struct Launch {
	LaunchRole role;
	World world;          /* the fields about hosts hold what the launcher says; control_join corrects them */
	Communicator carrier; /* has brought the ranks together: that of --comm or of their launcher; UNSAID: none has */
	bool nccl;            /* ranks may use NCCL, which reaches other hosts */
	int hub_fd;           /* rank of --ranks N: its socket to the parent, else -1 */
	const char *address;  /* of the hub, "host:port" or what control_listen returned; NULL: hub_fd is used, or it is not
	                       * known yet */
	int listen_fd, local_fd; /* rank 0 after control_listen, else -1 */
	bool one_host;        /* known before ranks meet: then no socket listens on the network */
	Secret secret;
	FILE *messages;       /* where the watchdog and the hub print, which run on after control_join; NULL: where
	                       * control_join prints */
} Launch;
/* Reads the options and the launcher's variables.  False after a message about contradictions (--ranks under mpirun,
 * RANK without WORLD_SIZE, --comm=shm over several hosts): wrong usage.  Messages of ranks other than 0 get a prefix,
 * "[rank 3/8] ". comms: the values that --comm may have, NULL-terminated.  It calls no library such as MPI and starts
 * no thread. */
bool launch_find(Launch *l, const RtOptions *o, const char *const *comms, Arena *a, Diag *d);
/* Called by the parent: starts o->ranks copies of this program with these arguments, each pinned to its share of the
 * cores (not pinned where there are fewer cores than ranks), with OMP_NUM_THREADS set where neither it nor --threads is
 * given, and serves as their hub until all have ended.  Returns the exit status of the run: 0, or the status of the
 * rank that failed first; 3 for a lost one.  When the parent gets SIGINT or SIGTERM, the first signal reaches rank 0 as
 * control_stop_signal; a second one, half a second or more later, kills the ranks and the parent.  The ranks are
 * started with both signals ignored and must not die of them, because a terminal sends signals to all processes at
 * once. */
int launch_ranks(const Launch *l, const RtOptions *o, int argc, char **argv, Diag *d);

/* ---- control.c ---- */

/* Where a rank is, written by its threads and read by its watchdog.  Collectives are named by their number, seq. */
typedef struct RankProgress {
	_Atomic int64_t step;                  /* the step that runs, from 1; for an evaluation, the step before it */
	_Atomic int32_t program;               /* a Program of runtime/exec/exec.h: 0 step, 1 evaluation, 2 outside
	                                        * (loading, saving), 3 to 5 variants of a micro-batch */
	_Atomic int32_t inside[RT_STREAMS]; /* number of the collective that is being waited for, 0 = none */
	_Atomic int32_t ended[RT_STREAMS];  /* number of the one that ended last, 0 = none */
	_Atomic int64_t done[RT_STREAMS];   /* collectives ended since the start; in a stall it does not grow */
	/* A GPU writes the numbers above as it gets to a collective.  Before that the host issues it, which may not end
	 * either: the number of the one that is being issued, 0 = none, and how many have been. */
	_Atomic int32_t issuing[RT_STREAMS];
	_Atomic int64_t issued[RT_STREAMS];
} RankProgress;
/* Stand-ins for seq for what ranks wait for outside of programs. */
enum { OUTSIDE_AGREE = 1, OUTSIDE_NCCL, OUTSIDE_FILES };
static inline void progress_enter(RankProgress *p, int channel, int seq)
{
	atomic_store_explicit(&p->inside[channel], seq, memory_order_relaxed);
}
static inline void progress_end(RankProgress *p, int channel)
{
	int32_t seq = atomic_load_explicit(&p->inside[channel], memory_order_relaxed);
	atomic_store_explicit(&p->ended[channel], seq, memory_order_relaxed);
	atomic_store_explicit(&p->inside[channel], 0, memory_order_relaxed);
	atomic_fetch_add_explicit(&p->done[channel], 1, memory_order_relaxed);
}

static inline void progress_issue(RankProgress *p, int channel, int seq)
{
	atomic_store_explicit(&p->issuing[channel], seq, memory_order_relaxed);
}
static inline void progress_issued(RankProgress *p, int channel)
{
	atomic_store_explicit(&p->issuing[channel], 0, memory_order_relaxed);
	atomic_fetch_add_explicit(&p->issued[channel], 1, memory_order_relaxed);
}

typedef struct Control Control;
/* The text for collective `seq` of a program: "all_gather @h.3"; NULL: seq is past the last.  Called from the
 * watchdog's thread. */
typedef const char *CollectiveName(const void *context, int program, int seq);

/* Only with a carrier: rank 0 listens at all its addresses and makes a random key.  Returns both as text (at most 1023
 * characters) for the other ranks, which put it into Launch.address before control_join.  NULL after a message. */
const char *control_listen(Launch *l, Arena *a, Diag *d);
/* Connects to the hub, waits until all ranks are there, starts the watchdog thread, and sets the fields of l->world
 * about hosts from where the ranks really are.  LAUNCH_ALONE: returns a Control that works and has no thread.  NULL
 * after a message (of this rank or of the hub): the run has failed, and the caller exits with 3. */
Control *control_join(Launch *l, const RtOptions *o, Arena *a, Diag *d);
RankProgress *control_progress(Control *c);
void control_set_names(Control *c, CollectiveName *name, const void *context);
/* What the watchdog asks a device, and what it does before it ends the process; NULL: nothing. */
typedef struct DeviceWatch {
	const char *(*failed)(void *state); /* the reason why no collective will end any more; NULL: all is well */
	void (*abort)(void *state);
	void *state;
} DeviceWatch;
void control_set_device(Control *c, const DeviceWatch *w);
/* Gathers blobs of equal size from all ranks, in rank order, for bootstrap.  False when a rank is gone. */
bool control_all_gather(Control *c, const void *mine, int64_t bytes, void *all);
/* Compares a text with rank 0's.  Where the text of any rank differs, all ranks get false, and one message prints the
 * first differing line of both texts and says that binaries or flags differ. */
bool control_compare(Control *c, const char *text, Diag *d);
/* The signal by which the parent of --ranks asks for a stop; 0: none.  Only rank 0 is told. */
int control_stop_signal(Control *c);
/* Announces that this rank ends with this status; the others learn it at once.  After an error of one rank the others
 * end too, with status 3; a rank that ends without this call counts as lost.  Where this process has the hub, the call
 * returns when all ranks have left. c must not be used afterwards. */
void control_leave(Control *c, int status);
/* Ends this process from any thread.  Buffered stdout is written if that takes at most a second. */
_Noreturn void end_process(int status);
/* Seconds of --timeout; 0: nothing is watched. */
int64_t control_timeout(const RtOptions *o);

#endif
