/* ir/verify_plan.h: what the parts of the verifier of schedules share.  Private to ir/verify_plan.c, verify_runs.c. */
#ifndef SHARDC_VERIFY_PLAN_H
#define SHARDC_VERIFY_PLAN_H

#include "ir/verify.h"

/* LEFT: to the next micro-batch. */
typedef enum { GRAD_FREE, GRAD_OPEN, GRAD_COLLECTED, GRAD_REDUCING, GRAD_LEFT } GradPhase;

/* Memory of a flat gradient: a slot, or a unit's own. */
typedef struct GradRegion {
	GradPhase phase;
	const Unit *unit;     /* whose gradient lies there */
	const Op *reduce;
	int readers;          /* of the result of an all_reduce in place that are still to come */
} GradRegion;

typedef struct UnitLife {
	const Op *readable;   /* the wait (or carried) of the gathered copy that may be read */
	const Op *gather;     /* the last one */
	const Op *zeroed, *collect, *left, *carried, *reduce, *across, *update, *broadcast; /* of this run */
	int sums;             /* accumulates of this run */
	int64_t updated_at, collected_at;
	GradRegion *grad;
} UnitLife;

typedef struct Collective {
	Stream stream;
	int64_t rank;         /* in its stream, from 1 */
	const Op *wait;
} Collective;

typedef struct GradPlace { int flat; int64_t offset; int param; } GradPlace; /* offset: in bytes */

typedef struct Plan {
	const Module *m;
	Arena *arena;
	PlanViolation *out;
	int max, n;
	SectionKind first, last; /* of the program at work */
	int n_gathers;        /* in all programs */
	int64_t at, seq;
	UnitLife *unit;
	GradPlace **place;    /* by unit, sorted: where gradients of its parameters lie; NULL: not asked for yet */
	const Value ***wrote; /* by unit, by index of the parameter: what was written at its gradient's place last */
	GradRegion *slot;     /* gradient slots, then own regions, by unit */
	Collective *collective; /* by id of the first result */
	const Op **shown;     /* by Value.id: the wait or resident whose flat it shows */
	bool *released;       /* by id of a wait's first result */
	bool *known;          /* by Value.id: defined above */
	int64_t *event;       /* by Value.id */
	int64_t reached[STREAM_COUNT]; /* the last event that the stream has seen */
	int64_t issued[STREAM_COUNT];  /* the last collective */
	int64_t ended[STREAM_COUNT];   /* the last one that compute knows is over */
	const Op *scalars, *step_scalars;
	const Op *broadcast;  /* of buffers */
	const Op *buffer;     /* the first op of this run that reads or writes one */
} Plan;

/* A violation of the rule at op, once. */
void plan_fail(Plan *p, const char *rule, const Op *op, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* The collective that is to blame for op, for messages. */
const Op *plan_blamed(const Op *op);

/* verify_runs.c: over several runs of the programs, what a gather may overtake. */
void plan_check_runs(Plan *p);

#endif
