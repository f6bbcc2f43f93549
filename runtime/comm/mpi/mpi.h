/* runtime/comm/mpi/mpi.h: runs that mpirun started. */
#ifndef SHARDC_RUNTIME_MPI_H
#define SHARDC_RUNTIME_MPI_H

#include "runtime/comm/ops.h"

/* Opens the shared object, calls MPI_Init, tells all ranks rank 0's address.  False after a message. */
bool mpi_start(Launch *l, const RtOptions *o, Arena *a, Diag *d);
/* After success: MPI_Finalize, which waits for all ranks.  After a failure nothing: mpirun ends the others. */
void mpi_stop(const World *w, int status);
/* Exchanges with ranks on other hosts beside those of this one.  NULL after a message. */
Comm *mpi_comm(Comm *local, const World *w, Diag *d);

/* ---- hosts.c ---- */

/* Which ranks really reach each other's memory: splits hosts that only look like one.  False: a rank is gone. */
bool hosts_find(Control *control, World *w, Arena *a);

#endif
