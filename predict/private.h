/* predict/private.h: what the files of predict/ share with each other. */
#ifndef SHARDC_PREDICT_PRIVATE_H
#define SHARDC_PREDICT_PRIVATE_H

#include "passes/passes.h"
#include "predict/predict.h"
#include "predict/timeline.h"

/* How a plan is played: for the rank that needs most memory.  All of it lives in the arena. */
SimulateOptions *predict_how(const Variants *v, const Options *o, const Machine *m, Arena *a);

/* A plan that was made again with other options, and played. */
typedef struct Played {
	double seconds, samples; /* of a step, of all its micro-batches; samples of all ranks a second */
	LayoutMemory memory;
	int64_t rigid;           /* of its bytes, those that units and prefetch do not change */
	double bound;            /* timeline_bound, where a rank may have `limit` bytes */
} Played;
/* False: the plan is refused, or its time is not predicted; nothing is said. */
bool predict_played(const Restart *start, const Options *o, Sync sync, const Machine *m, int64_t limit, Played *out);

/* Prints what other options would cost, and the largest sizes that fit.  In JSON members of the plan's object. */
void alternatives_show(FILE *f, const PredictOf *of, const Variants *v, const Options *o);
/* largest.c: the largest batch, and other dims of --bind, that fit a rank, each alone; nothing if of->again is NULL. */
void largest_show(FILE *f, const PredictOf *of, const Options *o);

#endif
