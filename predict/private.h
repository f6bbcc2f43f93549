/* predict/private.h: what the files of predict/ share with each other. */
#ifndef SHARDC_PREDICT_PRIVATE_H
#define SHARDC_PREDICT_PRIVATE_H

#include "passes/passes.h"
#include "predict/predict.h"
#include "predict/price.h"
#include "predict/timeline.h"

/* How a plan is played: for the rank that needs most memory.  All of it lives in the arena. */
SimulateOptions *predict_how(const Variants *v, const Options *o, const Machine *m, Arena *a);

/* A plan that was made again with other options, and played. */
typedef struct Played {
	double seconds, samples; /* of a step, of all its micro-batches; samples of all ranks a second */
	LayoutMemory memory;
	int64_t rigid;           /* bound_bytes */
	Bound bound;             /* where a rank may have `limit` bytes */
	double computing;        /* alone, without what is computed again */
	double saved;            /* by how much less it would be, at most, if what ops read were computed again */
	double forward;          /* the part of it that forward takes */
	double before;           /* the part of it in front of the op at which most is live */
	PriceOf of;              /* how its ops run */
} Played;
/* Plays a plan; false after messages: its time is not predicted. */
bool predict_play(const Variants *v, const Options *o, const Machine *m, int64_t limit, Played *out, Diag *d);
/* Plans again and plays that.  False: the plan is refused, or its time is not predicted; nothing is said. */
bool predict_played(const Restart *start, const Options *o, Sync sync, const Machine *m, int64_t limit, Played *out);
/* partly.c: the units that backward gathers again, those of the end of the model first: *n of them. */
const char **gathered_again(const Module *m, int *n, Arena *a);

#endif
