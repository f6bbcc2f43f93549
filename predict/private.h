/* predict/private.h: what the files of predict/ share with each other. */
#ifndef SHARDC_PREDICT_PRIVATE_H
#define SHARDC_PREDICT_PRIVATE_H

#include "passes/passes.h"
#include "predict/predict.h"
#include "predict/timeline.h"

/* How a plan is played: for the rank that needs most memory.  All of it lives in the arena. */
SimulateOptions *predict_how(const Variants *v, const Options *o, const Machine *m, Arena *a);

/* Prints what other options would cost, and the largest sizes that fit.  In JSON members of the plan's object. */
void alternatives_show(FILE *f, const PredictOf *of, const Variants *v, const Options *o);
/* largest.c: the largest batch, and other dims of --bind, that fit a rank, each alone; nothing if of->again is NULL. */
void largest_show(FILE *f, const PredictOf *of, const Options *o);

#endif
