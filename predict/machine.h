/* predict/machine.h: what a machine does: a file whose numbers are published or measured, each with its source.
 *
 * docs/prediction.md describes the file.  Times are in seconds, sizes in bytes, rates per second. */
#ifndef SHARDC_MACHINE_H
#define SHARDC_MACHINE_H

#include "base/base.h"
#include "base/collectives.h"
#include "base/communicators.h"

typedef enum MachineNumber {
#define MACHINE(id, ...) MACHINE_##id,
#include "predict/machine.def"
	MACHINE_NUMBERS
} MachineNumber;

/* How a host is shared while a kernel runs: ranks that work at the same time, and the threads of each. */
typedef struct MachineLayout { int ranks, threads; } MachineLayout;

static inline bool machine_same_layout(MachineLayout x, MachineLayout y)
{
	return x.ranks == y.ranks && x.threads == y.threads;
}

/* A measured kernel; where ranks take turns on cores, how long it has one.  op: an ir_signature; kind: its first word;
 * tf32: on a GPU, its f32 products rounded to TF32. */
typedef struct MachineKernel {
	const char *op, *kind;
	MachineLayout layout;
	bool tf32;
	double seconds, flops, bytes, special; /* one call; the latter as cost_of counts them */
} MachineKernel;
/* A measured collective among ranks of one host; bytes: what each receives; comm: how they talked. */
typedef struct MachineCollective {
	RtCollectiveKind kind;
	int ranks;
	double bytes, seconds;
	Communicator comm;
} MachineCollective;

/* A measured step of a program on CPUs.  Of more ranks than cores, `ops` is as many times what they take of a core as
 * there are turns. */
typedef struct MachineStep {
	const char *program; /* what tells it from others; MACHINE_PROBE in front: no model's */
	MachineLayout layout;
	int collectives;     /* of several ranks */
	double ops, rest;    /* seconds: of its ops together; of the step without what its collectives take */
} MachineStep;
#define MACHINE_PROBE "probe "
/* Seconds: where steps are shorter, most of them is waking threads. */
#define MACHINE_TINY 1e-3
/* Of CPUs: how many times as long as its ops alone a step takes, and seconds more for each of its collectives. */
typedef struct MachineSkew { double times, each; } MachineSkew;

typedef struct Machine {
	const char *name, *file;
	bool cuda;
	double of[MACHINE_NUMBERS];
	const char *source[MACHINE_NUMBERS]; /* NULL: the file leaves the number out */
	MachineKernel *kernel; int n_kernels;
	MachineCollective *collective; int n_collectives;
	MachineStep *step; int n_steps;
	Map *by_op;                          /* machine_key -> a MachineKernel */
} Machine;

/* Reads a machine file.  NULL after messages, one for each problem of the file. */
Machine *machine_read(const char *path, Arena *a, Diag *d);
int64_t machine_world(const Machine *m); /* ranks of all its hosts */
/* ---- layouts.c ---- */

/* How so many ranks of a host run: with these threads each or, of 0, all cores shared out; {1, 1} on GPUs. */
MachineLayout machine_layout(const Machine *m, int64_t ranks, int64_t threads);
/* Ranks of the layout that run at a time. */
int machine_running(const Machine *m, MachineLayout l);
/* The layout of the rows of kernels that are read for l.  It is l itself unless its ranks take turns: then the nearest
 * in which ranks of so many threads do, or that of the ranks that run at a time if there is none. */
MachineLayout machine_rows(const Machine *m, MachineLayout l);
/* What steps of the nearest layout say, by least absolute deviations, scaled so that half of its models' steps are
 * longer than that and half are shorter; the layout has one rank, or a core for each of several, or fewer cores, as l
 * has.  {1, 0}: there is none, or a GPU. */
MachineSkew machine_skew(const Machine *m, MachineLayout l);

/* Bytes of memory of its host that a rank pins beyond what it may; 0 where the file does not say what it may. */
static inline int64_t machine_overpins(const Machine *m, int64_t bytes)
{
	double most = m->of[MACHINE_HOST_MEMORY];
	return most > 0 && (double)bytes > most ? bytes - (int64_t)most : 0;
}

/* A rank may pin no more than `most` bytes of memory of its host, whatever the file says; 0: as the file says. */
static inline void machine_limit_host(Machine *m, int64_t most)
{
	double *has = &m->of[MACHINE_HOST_MEMORY];
	if (most)
		*has = *has > 0 && *has < (double)most ? *has : (double)most;
}

/* What a measured kernel is found by. */
const char *machine_key(MachineLayout l, bool tf32, const char *op, Arena *a);
/* The communicator of a row that names none, and of ranks on one host that are told none. */
static inline Communicator machine_comm(bool cuda) { return cuda ? COMM_NCCL : COMM_SHM; }

#endif
