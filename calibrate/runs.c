/* calibrate/runs.c: the ways in which programs are run on a host. */
#include "calibrate/private.h"

static void add(RunAs *out, int *n, RunAs run)
{
	if (*n == RUNS_MAX)
		ice("a host has more than %d ways to run programs", RUNS_MAX);
	out[(*n)++] = run;
}

static void put(RunAs *out, int *n, int yields, int ranks, int threads, Communicator comm)
{
	add(out, n, (RunAs){.yields = yields, .layout = {ranks, threads}, .comm = comm, .turns = 1});
}

/* As binaries share the cores: one rank with one, one with all, a rank for each, and two for each. */
static void share_cores(RunAs *out, int *n, int cores)
{
	int one = YIELDS_KERNELS | YIELDS_STEP, all = one | YIELDS_COLLECTIVES;
	put(out, n, one, 1, 1, COMM_SHM);
	if (cores > 1) {
		put(out, n, one, 1, cores, COMM_SHM);
		put(out, n, all, cores, 1, COMM_SHM);
	}
	put(out, n, all, 2 * cores, 1, COMM_SHM);
	out[*n - 1].turns = 2;
}

/* Ranks of one thread on every second core: what is left is for the threads of their collectives.  Ops are alone where
 * collectives run inside of waits. */
static void leave_cores(RunAs *out, int *n, int cores)
{
	RunAs run = {.group = RUNS_BESIDE, .yields = YIELDS_KERNELS, .layout = {cores / 2, 1}, .comm = COMM_SHM,
		.turns = 1};
	int alone = *n;
	add(out, n, run);
	run.yields = YIELDS_CONTENTION;
	run.threads = true;
	run.alone = alone;
	add(out, n, run);
}

/* A rank has a GPU of its own, so kernels take as long on all as on one, unless a collective runs beside them. */
static void share_gpus(RunAs *out, int *n, int gpus)
{
	put(out, n, YIELDS_KERNELS, 1, 1, COMM_SELF);
	if (gpus > 1)
		put(out, n, YIELDS_COLLECTIVES | YIELDS_CONTENTION, gpus, 1, COMM_NCCL);
}

int runs_choose(RunAs *out, const Host *h, bool mpi)
{
	int n = 0;
	if (h->cuda) {
		share_gpus(out, &n, h->ranks);
		return n;
	}
	share_cores(out, &n, h->ranks);
	if (h->ranks / 2 > 1)
		leave_cores(out, &n, h->ranks);
	if (mpi)
		add(out, &n, (RunAs){.group = RUNS_MPI, .yields = YIELDS_COLLECTIVES, .layout = {MAX(h->ranks, 2), 1},
			.comm = COMM_MPI, .turns = h->ranks > 1 ? 1 : 2});
	return n;
}
