/* runtime/comm/mpi/object.h: what a training program and the shared object libshardrt_mpi.so know of each other.
 *
 * The program has no MPI in it: mpi.c opens the object when mpirun's variables or --comm=mpi ask for it.  The
 * object takes all it needs of the program through pointers, so the program exports nothing.
 *
 * The one idea: the object moves bytes between hosts and nothing else; memory of the host is comm/shm.c's. */
#ifndef SHARDC_COMM_MPI_H
#define SHARDC_COMM_MPI_H

#include "runtime/comm/private.h"

#define COMM_MPI_FILE "libshardrt_mpi.so"
#define COMM_MPI_SYMBOL "shardrt_mpi"

/* Both sides must have been compiled from the same headers. */
typedef struct MpiShape { int version; uint32_t comm, exchange, world; } MpiShape;
#define COMM_MPI_SHAPE {1, sizeof(Comm), sizeof(Exchange), sizeof(World)}

/* What MPI_Init said.  threads: several threads may call, one at a time. */
typedef struct MpiStart { int rank, size; bool threads; char version[128]; } MpiStart;

typedef struct MpiBackend {
	MpiShape shape;
	bool (*start)(MpiStart *out);
	void (*broadcast)(void *p, int bytes);  /* rank 0's, to all */
	/* Exchanges of all ranks, of which `local` serves those of this host; takes it over.  staging: where pieces
	 * of other hosts arrive, a part for each channel.  spins: polls before sleeping.  NULL: out of memory. */
	Comm *(*open)(Comm *local, const World *w, char *staging, int64_t bytes, int spins);
	void (*stop)(void);                     /* MPI_Finalize: waits for all ranks */
} MpiBackend;

#endif
