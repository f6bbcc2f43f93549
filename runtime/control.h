/* runtime/control.h: how ranks are started, find each other, agree, and are watched.
 *
 * One small control plane over sockets, the same for every communicator: bootstrap (small blobs of all ranks
 * to all), comparison of schedules, heartbeats with counters, the end.  Data never travels here.
 *
 *   --ranks N            the parent process is the hub: it starts the ranks, watches them, kills what hangs
 *   launcher's variables rank 0 listens on MASTER_ADDR:MASTER_PORT (RANK, WORLD_SIZE, LOCAL_RANK,
 *                        LOCAL_WORLD_SIZE), a thread of rank 0 is the hub
 *   mpirun               as that, at an address that rank 0 tells the others through MPI */
#ifndef SHARDC_CONTROL_H
#define SHARDC_CONTROL_H

#include <stdatomic.h>

#include "runtime/comm.h"
#include "runtime/options.h"

/* ---- launch.c ---- */

/* How this process came to be. */
typedef enum LaunchRole {
	LAUNCH_ALONE,   /* one rank: no control plane */
	LAUNCH_PARENT,  /* of --ranks N: supervises, trains nothing */
	LAUNCH_RANK,    /* one of several ranks */
} LaunchRole;
typedef struct Launch {
	LaunchRole role;
	World world;
	bool mpi;             /* --comm=mpi or started by mpirun */
	int hub_fd;           /* rank of --ranks N: its socket to the parent, else -1 */
	const char *address;  /* of the hub, "host:port"; NULL: hub_fd */
} Launch;
/* Reads the options and the launcher's variables; reports contradictions (--ranks under mpirun, RANK without
 * WORLD_SIZE, --comm=shm over several hosts). */
bool launch_find(Launch *l, const RtOptions *o, Arena *a, Diag *d);
/* Of the parent: starts o->ranks copies of this program with these arguments, each pinned to its cores,
 * serves as their hub until all have ended.  Returns the exit status of the run. */
int launch_ranks(const Launch *l, const RtOptions *o, int argc, char **argv, Diag *d);

/* ---- control.c ---- */

/* What a rank is at, written by its threads and read by its watchdog.  seq: the collective's number. */
typedef struct RankProgress {
	_Atomic int64_t step;
	_Atomic int32_t program;               /* 0 step, 1 evaluation, 2 outside (loading, saving) */
	_Atomic int32_t inside[COMM_CHANNELS]; /* number of the collective that is being waited for, 0 = none */
	_Atomic int64_t done[COMM_CHANNELS];   /* collectives ended since the start: what a stall does not move */
} RankProgress;

typedef struct Control Control;
/* What the hub says of collective `seq` of a program: "all_gather @h.3". */
typedef const char *CollectiveName(const void *context, int program, int seq);

/* Connects to the hub and starts the watchdog thread.  NULL after a message. */
Control *control_join(const Launch *l, const RtOptions *o, Arena *a, Diag *d);
RankProgress *control_progress(Control *c);
void control_set_names(Control *c, CollectiveName *name, const void *context);
/* Blobs of equal size of all ranks, in rank order; for bootstrap.  False when a rank is gone. */
bool control_all_gather(Control *c, const void *mine, int64_t bytes, void *all);
/* Compares a text with rank 0's; where it differs every rank fails and the first differing line of both is
 * printed, once, with what it means: other binaries or flags. */
bool control_compare(Control *c, const char *text, Diag *d);
/* Says that this rank ends with this status: the others learn it at once.  After an error of one rank the
 * others end too, with status 3; a rank that ends without it counts as lost. */
void control_leave(Control *c, int status);

#endif
