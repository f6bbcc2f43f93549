/* calibrate/calibrate.h: `shardc calibrate -o FILE.json [MODEL]`: measures this machine for predictions. */
#ifndef SHARDC_CALIBRATE_H
#define SHARDC_CALIBRATE_H

#include "base/options.h"
#include "codegen/codegen.h"

/* Compiles the probe programs (probes.def, probes_cuda.def), and `model` if it is not NULL, runs them with --trace in
 * the ways of runs.c, and writes o's output: a machine file (docs/prediction.md) in which each of their ops is a
 * measured kernel.  If that file is there and a model is given, only the model is measured and added to it.  `target`:
 * the compiler of all of them, and whether this machine's processors are measured or its GPUs.  Returns an exit
 * status: 0; 1: the input is wrong, or there is no GPU; 3: a program did not compile or run, or the file could not be
 * written.  The file appears as a whole or not at all. */
int calibrate(const Sizes *model, const Options *o, const CodegenTarget *target, Diag *d);

#endif
