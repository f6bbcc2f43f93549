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
} Steps;
/* Reads the traces of all ranks of one run: path and, of rank r > 0, path with .rankR in front of its end.  Each number
 * is the mean over the fastest third of the steps, so that those in which others had the processor do not count, and
 * the ops of a step add up to a step that was there.  False after messages. */
bool steps_read(const char *path, int ranks, Steps *out, Arena *a, Diag *d);

/* ---- measured.c ---- */

typedef struct MeasuredKernel { MachineKernel row; Work work; } MeasuredKernel;
typedef struct Measured {
	VEC(MeasuredKernel) kernels;
	VEC(MachineCollective) collectives;
	Map *by_op;          /* "RxT SIGNATURE" -> seen */
	double noise;        /* the most of all runs */
	int cores;
} Measured;
/* Adds what a run of the module says.  Ops with one signature are one row, their mean; rows of earlier programs stay. */
void measured_add(Measured *all, const Module *m, const Options *o, MachineLayout layout, const Steps *s, Arena *a);
/* Writes a machine file; false after a message. */
bool measured_write(const Measured *all, const char *path, bool bf16, Diag *d);

#endif
