/* runtime/exec/cpu/comms.c: how ranks of CPU programs can talk. */
#include "runtime/exec/exec.h"

const char *const device_comms[] = {"self", "shm", "mpi", NULL};
