/* tests/oracle/state.h: what the oracle knows while a schedule runs: of every range of memory what it holds and who
 * touched it last, of every value what it means, of every stream how far it has come.  Private to oracle.c. */
#ifndef SHARDC_TEST_ORACLE_STATE_H
#define SHARDC_TEST_ORACLE_STATE_H

#include "ir/ir.h"

/* ---- memory ---- */

typedef struct Clock { int64_t at[STREAM_COUNT]; } Clock;

/* Memory whose accesses are ordered as a whole.  Time 0: not yet. */
typedef struct Range {
	const char *name;
	Stream writer;
	int64_t written, read[STREAM_COUNT];
} Range;

typedef struct Rest { Range range; int64_t version; } Rest; /* trainable parameters; version: updates so far */
typedef struct Full {
	Range range;
	const Op *gather;      /* or carried; NULL: poison */
	int64_t version;
	int left;              /* the run that left it to the next micro-batch; 0: none */
} Full;
typedef enum Stage { STAGE_OPEN, STAGE_COLLECTED, STAGE_SENT, STAGE_REDUCED, STAGE_LEFT } Stage;
typedef struct Grad {
	Range range;
	const Unit *unit;      /* NULL: poison */
	Stage stage;
	bool mean;
	int64_t n;             /* micro-batches before this one that are summed in it */
	int left;              /* the run that left it */
	const Value **wrote;   /* by index in unit->params: what lies there; NULL: poison */
} Grad;
typedef enum Reach { REACH_NONE, REACH_GROUP, REACH_ALL } Reach;
typedef struct Mine {          /* reduced gradient, own memory */
	Range range;
	int64_t step, n;       /* n: micro-batches of the step in it */
	Reach reach;
	bool mean;
} Mine;

typedef struct UnitMemory {
	Rest rest[2];
	Full own;
	Grad own_grad;
	Mine mine;
	Grad *grad;            /* where its flat gradient lives now */
	const Op *open;        /* the gather that is readable now: behind its wait, before its reshard */
	bool trainable;
	bool summed;           /* this step's norm has its gradient */
} UnitMemory;

/* ---- values ---- */

typedef enum RefKind { REF_PLAIN, REF_ASYNC, REF_EVENT, REF_FULL, REF_REST, REF_GRAD, REF_MINE } RefKind;
typedef struct Ref {
	int run;               /* in which it was defined */
	RefKind kind;
	const Op *from;        /* the collective; of REF_GRAD the collect or the all_reduce */
	Clock at;              /* of an event, or the end of a collective */
	bool waited;
} Ref;

typedef struct Oracle {
	const Module *m;       /* that runs */
	const Module *of[VARIANT_COUNT]; /* of m's step; only the first when it is one micro-batch */
	Arena *a;
	const char *fault;
	Ref *ref;              /* by Value.id, of m */
	Ref *refs[VARIANT_COUNT];
	UnitMemory *unit;      /* by Unit.index */
	Full *slot;
	Grad *grad_slot;
	int64_t n_slots, n_grad_slots;
	Clock clock[STREAM_COUNT];
	int run;               /* of a program, step or eval, from 1 */
	int64_t steps;         /* updates that were done */
	int64_t micro;         /* number of this micro-batch in its step, from 1 */
	int64_t seq;
	int n_scalars, n_step_scalars; /* of this run */
	int n_broadcasts, n_buffer_uses; /* of float buffers */
	const char *what;      /* program and number, for messages */
} Oracle;

#endif
