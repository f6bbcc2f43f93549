/* calibrate/private.h: what the files of calibrate/ share with each other. */
#ifndef SHARDC_CALIBRATE_PRIVATE_H
#define SHARDC_CALIBRATE_PRIVATE_H

#include "calibrate/calibrate.h"
#include "predict/cost.h"

/* ---- host.c ---- */

/* What is measured.  ranks: cores that shardc may use, or GPUs, which are all alike. */
typedef struct Host {
	bool cuda;
	int ranks;
	double memory;       /* bytes of a rank */
	int processors;      /* of a GPU */
	double capability;   /* of a GPU: 9.0 of sm_90a */
	const char *name;    /* "node7, 2 cores" */
} Host;
/* False after a message: there is no GPU, or they differ. */
bool host_find(bool cuda, Host *out, Arena *a, Diag *d);

/* ---- runs.c ---- */

/* What follows from a run: rows of kernels, rows of collectives, how much slower kernels are beside collectives, a row
 * of the step. */
typedef enum RunYield {
	YIELDS_KERNELS = 1, YIELDS_COLLECTIVES = 2, YIELDS_CONTENTION = 4, YIELDS_STEP = 8,
} RunYield;
/* Runs that not every program has; a program names those that it has. */
typedef enum RunGroup { RUNS_ALWAYS = 0, RUNS_MPI = 1, RUNS_BESIDE = 2 } RunGroup;

/* One way to run a program. */
typedef struct RunAs {
	RunGroup group;
	int yields;          /* RunYields */
	MachineLayout layout;
	Communicator comm;
	bool threads;        /* CPUs: collectives have threads beside computing */
	int alone;           /* YIELDS_CONTENTION: the run, before this one, in which nothing runs beside the same ops */
	int turns;           /* that ranks take on a core; 1: each has its own, or a GPU */
} RunAs;
enum { RUNS_MAX = 8 };
/* The runs of programs on this host, in an order that puts a run behind the one that it refers to; returns how many
 * there are.  mpi: with ranks that mpirun starts. */
int runs_choose(RunAs *out, const Host *h, bool mpi);

/* ---- run.c ---- */

/* Runs a compiled program with --trace of so many steps, on random samples, and with what a run leaves in the folder
 * `dir`.  NULL, or what the program said as it failed; "" after a message of its own. */
const char *run_program(const char *program, const char *dir, const Module *m, const Host *h, const RunAs *as,
	int64_t steps, Arena *a, Diag *d);
const char *run_trace(const char *dir, Arena *a); /* what it has written */
/* From here on SIGINT, SIGTERM and SIGHUP end a program that runs, and the next one does not start. */
void run_catch_signals(void);
int run_stopped(void);                            /* the signal that came; 0: none */
bool run_has_mpirun(Arena *a);

/* ---- probes.c ---- */

enum { PROBES_MAX = 16 };
/* IR text at MODEL, how it is compiled, and the RunGroups that it has. */
typedef struct Probe { const char *name, *options, *text; int groups; } Probe;
/* Writes those of CPUs or GPUs; returns how many there are.  halvings: how often their sizes are halved. */
int probes_write(Probe *out, bool cuda, int halvings, Arena *a);

/* ---- samples.c ---- */

/* Writes a file of random samples for each input of the module, one micro-batch for each of `ranks`, and adds the flags
 * of the binary that name them.  Ids are in the range of what reads them.  False after a message. */
typedef VEC(char *) Words;
bool samples_write(const Module *m, const char *dir, int ranks, Words *argv, Arena *a, Diag *d);

/* ---- steps.c ---- */

/* What a run has recorded: of each op its seconds, and the share of them in which a collective moves bytes beside it;
 * of each collective the seconds of the rank that came last.  Ops are in the order of their numbers. */
typedef struct StepOp { int number; double seconds, beside; } StepOp;
typedef VEC(StepOp) StepOps;
typedef struct StepTransfer { RtCollectiveKind kind; double bytes, seconds; } StepTransfer;
typedef struct Steps {
	StepOps ops;
	StepOps issues;      /* what is computed where collectives are issued */
	VEC(StepTransfer) transfers;
	double seconds;      /* of all ops together */
	double whole;        /* of a step, from its begin to its end */
} Steps;
/* Reads the traces of all ranks of one run: path and, of rank r > 0, path with .rankR in front of its end.  The middle
 * half of its steps by their length counts, without those of more than three times the median, in which something
 * stopped the program.  Each number is the mean over the same steps, of collectives the lower quartile.  Ops and whole
 * steps are the first rank's, ops of ranks that take turns on cores in the time that they have one.  False after
 * messages. */
bool steps_read(const char *path, int ranks, Steps *out, Arena *a, Diag *d);
/* The mean over the middle half of n > 0 runs of one program in one layout by the length of their steps; all of fewer
 * than four count.  It lies in one of the runs, whose order changes.  *spread: by how much the steps of the slowest run
 * that counts are longer than those of the fastest, as a share. */
Steps steps_mean(Steps *run, int n, double *spread);
Steps steps_copy(const Steps *s, Arena *a);

/* ---- measured.c ---- */

typedef struct MeasuredKernel { MachineKernel row; Work work; } MeasuredKernel;
typedef struct Measured {
	const Host *host;
	VEC(MeasuredKernel) kernels;
	VEC(MachineCollective) collectives;
	VEC(MachineStep) steps;
	Map *by_op;          /* machine_key -> seen */
	double spread;       /* the most of programs whose steps take MACHINE_TINY at least */
	int n_beside;        /* ops that ran beside a collective for most of their time */
	double beside, longer; /* of them: seconds beside it; by how much longer they took than alone */
} Measured;
/* A run of a module, and what it has recorded. */
typedef struct MeasuredRun { const RunAs *as; const Steps *steps; } MeasuredRun;
/* Adds what a run of the module says.  Ops of one signature are one row, their mean; rows of earlier programs
 * stay. */
void measured_add(Measured *all, const Module *m, const Options *o, MeasuredRun r, Arena *a);
/* Adds by how much longer ops took beside collectives in one run than alone in the other. */
void measured_beside(Measured *all, const Module *m, const Options *o, MeasuredRun beside, MeasuredRun alone, Arena *a);
/* Adds the step of a run of a module in which collectives run inside of waits.  program: what tells it from others. */
void measured_step(Measured *all, const char *program, const Module *m, const Options *o, MeasuredRun r, Arena *a);
/* Adds the rows of an older file that were not measured now as well; to be called last. */
void measured_join(Measured *all, const Machine *old, Arena *a);
/* Writes a machine file, whose numbers are those of `old`, or follow from the rows if that is NULL; bf16: the processor
 * multiplies it.  False after a message. */
bool measured_write(const Measured *all, const Machine *old, const char *path, bool bf16, Diag *d);

#endif
