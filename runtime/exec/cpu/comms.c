/* runtime/exec/cpu/comms.c: how ranks of CPU programs can talk. */
#include "runtime/plane/control.h"

const char *const launch_comms[] = {"self", "shm", "mpi", NULL};
