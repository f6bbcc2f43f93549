/* calibrate/private.h: what the files of calibrate/ share with each other. */
#ifndef SHARDC_CALIBRATE_PRIVATE_H
#define SHARDC_CALIBRATE_PRIVATE_H

#include "calibrate/calibrate.h"
#include "predict/cost.h"

/* ---- probes.c ---- */

enum { PROBES_MAX = 16 };
typedef struct Probe { const char *name, *options, *text; } Probe; /* IR text at MODEL, and how it is compiled */
int probes_write(Probe *out, Arena *a); /* returns how many there are */

/* ---- samples.c ---- */

/* Writes a file of random samples for each input of the module, one micro-batch for each of `ranks`, and adds the flags
 * of the binary that name them.  Ids are in the range of what reads them.  False after a message. */
typedef VEC(char *) Words;
bool samples_write(const Module *m, const char *dir, int ranks, Words *argv, Arena *a, Diag *d);

/* ---- steps.c ---- */

/* What a run has recorded: of each op its seconds, of each collective those of the rank that came last. */
typedef struct StepOp { int number; double seconds; } StepOp;
typedef struct StepTransfer { RtCollectiveKind kind; double bytes, seconds; } StepTransfer;
typedef struct Steps {
	VEC(StepOp) ops;
	VEC(StepTransfer) transfers;
	double noise;        /* by how much of the fastest step the median step was slower */
	double seconds;      /* of all ops together */
} Steps;
/* Reads the traces of all ranks of one run: path and, of rank r > 0, path with .rankR in front of its end.  Each number
 * is the lower quartile over the steps: what a machine does that has nothing else to do, though others may have it for
 * some of the steps.  shared: ranks take turns on a core, so that an op has it alone or waits for a turn;
 * then it is the mean over the faster half of the steps.  False after messages. */
bool steps_read(const char *path, int ranks, bool shared, Steps *out, Arena *a, Diag *d);

/* ---- measured.c ---- */

typedef struct MeasuredKernel { MachineKernel row; Work work; } MeasuredKernel;
typedef struct Measured {
	VEC(MeasuredKernel) kernels;
	VEC(MachineCollective) collectives;
	Map *by_op;          /* "RxT SIGNATURE" -> seen */
	double noise;        /* the most of all runs */
	int cores;
} Measured;
/* Adds what a run of the module says.  Ops of one signature are one row, their mean; rows of earlier programs
 * stay. */
void measured_add(Measured *all, const Module *m, const Options *o, MachineLayout layout, const Steps *s, Arena *a);
/* Adds the rows of an older file.  Of what was measured now as well, the faster row stays: a machine is what it does
 * when nothing else runs. */
void measured_join(Measured *all, const Machine *old, Arena *a);
/* Writes a machine file, whose numbers are those of `old`, or follow from the rows if that is NULL; bf16: the processor
 * multiplies it.  False after a message. */
bool measured_write(const Measured *all, const Machine *old, const char *path, bool bf16, Diag *d);

#endif
