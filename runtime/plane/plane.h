/* runtime/plane/plane.h: how ranks are started, find each other, agree, and are watched.
 *
 * One small control plane over sockets, the same for every communicator: bootstrap (small blobs of all ranks
 * to all), comparison of schedules, heartbeats with counters, the end.  Data never travels here.
 *
 *   --ranks N            the parent process is the hub: it starts the ranks, watches them, kills what hangs
 *   launcher's variables a thread of rank 0 is the hub (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE); ranks of one
 *                        host meet at a local socket named by MASTER_PORT, those of several at MASTER_ADDR:MASTER_PORT
 *   mpirun               as that, at an address that rank 0 tells the others through MPI
 *   srun                 as a launcher's, at MASTER_ADDR and MASTER_PORT, or on the job's first host */
#ifndef SHARDC_RUNTIME_PLANE_H
#define SHARDC_RUNTIME_PLANE_H

#include <stdatomic.h>

#include "base/collectives.h"
#include "runtime/options.h"

/* ---- what ranks are to all folders ---- */

/* Who this process is; made by launch.c from --ranks, the launcher's variables, or MPI. */
typedef struct World {
	int rank, size;
	int local_rank, local_size; /* on this host */
	int host, n_hosts;
	int *host_of;               /* [rank] */
	const struct MpiBackend *mpi; /* comm/mpi/object.h; NULL: not started by mpirun */
	bool mpi_threads;           /* and it may be called from several threads */
} World;
/* With which a rank ends: bad data; wrong usage; a run that failed, or a rank that was lost. */
enum { EXIT_DONE = 0, EXIT_INPUT = 1, EXIT_USAGE = 2, EXIT_RUN = 3 };

/* ---- launch.c, supervise.c ---- */

/* What the ranks of a run share, and nobody else knows; without one given: of no use against anybody. */
typedef struct Secret { bool given; uint8_t key[32]; } Secret;
/* Of SHARDC_SECRET, or the file of SHARDC_SECRET_FILE; none of them set: not given.  False after a message. */
bool secret_find(Secret *s, const char *where, Diag *d);

/* How this process came to be. */
typedef enum LaunchRole {
	LAUNCH_ALONE,   /* one rank: no control plane */
	LAUNCH_PARENT,  /* of --ranks N: supervises, trains nothing */
	LAUNCH_RANK,    /* one of several ranks */
} LaunchRole;
typedef struct Launch {
	LaunchRole role;
	World world;          /* fields of hosts: as the launcher says; as it is after control_join */
	bool mpi;             /* --comm=mpi or started by mpirun */
	bool nccl;            /* ranks may have GPUs of their own, which reach other hosts */
	int hub_fd;           /* rank of --ranks N: its socket to the parent, else -1 */
	const char *address;  /* of the hub, "host:port" or control_listen's; NULL: hub_fd, or not known yet */
	int listen_fd, local_fd; /* rank 0 after control_listen, else -1 */
	bool one_host;        /* known before ranks meet: nothing listens on a network */
	Secret secret;
	FILE *messages;       /* of the watchdog and the hub, which outlive the joining; NULL: where its own go */
} Launch;
/* Reads the options and the launcher's variables; reports contradictions (--ranks under mpirun, RANK without
 * WORLD_SIZE, --comm=shm over several hosts): wrong usage.  Messages of ranks other than 0 get a prefix,
 * "[rank 3/8] ".  comms: what --comm may be, NULL-terminated.  Touches no library, starts no thread. */
bool launch_find(Launch *l, const RtOptions *o, const char *const *comms, Arena *a, Diag *d);
/* Of the parent: starts o->ranks copies of this program with these arguments, each pinned to its cores (none
 * where there are fewer cores than ranks), with OMP_NUM_THREADS set where neither it nor --threads says;
 * serves as their hub until all have ended.  Returns the exit status of the run: 0, or that of the rank that
 * failed first; 3 for a lost one.
 * SIGINT and SIGTERM of the parent: the first reaches rank 0 as control_stop_signal, a second one half a second
 * or more later kills the ranks and the parent.  Its ranks are started with both ignored and must not die of them: a
 * terminal signals all at once. */
int launch_ranks(const Launch *l, const RtOptions *o, int argc, char **argv, Diag *d);

/* ---- control.c ---- */

/* What a rank is at, written by its threads and read by its watchdog.  seq: the collective's number. */
typedef struct RankProgress {
	_Atomic int64_t step;                  /* being run, from 1; an evaluation: that after which it runs */
	_Atomic int32_t program;               /* 0 step, 1 evaluation, 2 outside (loading, saving) */
	_Atomic int32_t inside[RT_STREAMS]; /* number of the collective that is being waited for, 0 = none */
	_Atomic int32_t ended[RT_STREAMS];  /* number of the one that ended last, 0 = none */
	_Atomic int64_t done[RT_STREAMS];   /* collectives ended since the start: what a stall does not move */
} RankProgress;
/* Numbers of what ranks wait for outside of programs. */
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

typedef struct Control Control;
/* What is said of collective `seq` of a program: "all_gather @h.3"; NULL: seq is past the last.
 * Called from the watchdog's thread. */
typedef const char *CollectiveName(const void *context, int program, int seq);

/* mpi only: rank 0 listens at all its addresses, with a random key; returns them as text (at most 1023 characters)
 * for the others, which put it into Launch.address before control_join.  NULL after a message. */
const char *control_listen(Launch *l, Arena *a, Diag *d);
/* Connects to the hub, waits until all ranks are there, starts the watchdog thread; fills the fields of hosts
 * of l->world from where the ranks really are.  LAUNCH_ALONE: a Control that works and has no thread.  NULL
 * after a message (of this rank or of the hub): the run has failed, exit with 3. */
Control *control_join(Launch *l, const RtOptions *o, Arena *a, Diag *d);
RankProgress *control_progress(Control *c);
void control_set_names(Control *c, CollectiveName *name, const void *context);
/* What the watchdog asks of a device, and what it does before it ends the process; NULL: nothing. */
typedef struct DeviceWatch {
	const char *(*failed)(void *state); /* why nothing will end any more; NULL: all is well */
	void (*abort)(void *state);
	void *state;
} DeviceWatch;
void control_set_device(Control *c, const DeviceWatch *w);
/* Blobs of equal size of all ranks, in rank order; for bootstrap.  False when a rank is gone. */
bool control_all_gather(Control *c, const void *mine, int64_t bytes, void *all);
/* Compares a text with rank 0's; where it differs all ranks get false and the first differing line of both is
 * printed, once, with what it means: other binaries or flags. */
bool control_compare(Control *c, const char *text, Diag *d);
/* The signal by which the parent of --ranks asks for a stop; 0: none.  Rank 0 alone learns it. */
int control_stop_signal(Control *c);
/* Says that this rank ends with this status: the others learn it at once.  After an error of one rank the
 * others end too, with status 3; a rank that ends without it counts as lost.  Where this process has the hub,
 * returns when all ranks have left.  c is not used after it. */
void control_leave(Control *c, int status);
/* Ends this process from any thread: what stands in stdout is written, if that takes at most a second. */
_Noreturn void end_process(int status);
/* Seconds of --timeout; 0: nothing is watched. */
int64_t control_timeout(const RtOptions *o);

#endif
