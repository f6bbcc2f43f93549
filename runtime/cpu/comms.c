/* runtime/cpu/comms.c: how ranks of CPU programs can talk. */
#include "runtime/control.h"

const char *const launch_comms[] = {"self", "shm", "mpi", NULL};
