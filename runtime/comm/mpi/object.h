/* runtime/comm/mpi/object.h: the interface between a training program and the shared object libshardrt_mpi.so.
 *
 * The program is not linked with MPI: mpi.c opens the object when mpirun's variables or --comm=mpi ask for it.  The
 * object gets everything it needs from the program through pointers, so the program exports no symbols.
 *
 * The object only moves bytes between hosts; comm/shm.c serves the ranks of one host. */
#ifndef SHARDC_COMM_MPI_H
#define SHARDC_COMM_MPI_H

#include "runtime/comm/private.h"

#define COMM_MPI_FILE "libshardrt_mpi.so"
#define COMM_MPI_SYMBOL "shardrt_mpi"

/* Both sides must have been compiled from the same headers. */
typedef struct MpiShape { int version; uint32_t comm, exchange, world; } MpiShape;
#define COMM_MPI_SHAPE {1, sizeof(Comm), sizeof(Exchange), sizeof(World)}

/* The result of MPI_Init. threads: several threads may call MPI, one at a time. */
typedef struct MpiStart { int rank, size; bool threads; char version[128]; } MpiStart;

typedef struct MpiBackend {
	MpiShape shape;
	bool (*start)(MpiStart *out);
	void (*broadcast)(void *p, int bytes);  /* from rank 0 to all */
	/* A communicator of all ranks, which uses `local` for those of this host and takes ownership of it. staging: where
	 * pieces from other hosts arrive, with a part for each channel. spins: polls before sleeping.  When memory runs out
	 * it aborts the run. */
	Comm *(*open)(Comm *local, const World *w, char *staging, int64_t bytes, int spins);
	void (*stop)(void);                     /* MPI_Finalize: waits for all ranks */
} MpiBackend;

#endif
