/* ir/verify_plan.h: what the parts of the verifier of schedules share.  Private to
 * ir/verify_plan.c, verify_grads.c, verify_copies.c and verify_runs.c. */
#ifndef SHARDC_VERIFY_PLAN_H
#define SHARDC_VERIFY_PLAN_H

#include "ir/verify.h"

/* LEFT: carried to the next micro-batch. */
typedef enum { GRAD_FREE, GRAD_OPEN, GRAD_COLLECTED, GRAD_REDUCING, GRAD_LEFT } GradPhase;

/* The memory of a flat gradient: a shared slot, or a unit's own region. */
typedef struct GradRegion {
	GradPhase phase;
	const Unit *unit;     /* the unit whose gradient is there */
	const Op *reduce;
	int readers;          /* ops that still have to read the result of an all_reduce in place */
} GradRegion;

typedef struct UnitLife {
	const Op *readable;   /* the wait (or carried) of the gathered copy that may be read now */
	const Op *gather;     /* the last one */
	const Op *zeroed, *collect, *left, *carried, *reduce, *across, *update, *broadcast; /* those of this run */
	int sums;             /* accumulates in this run */
	int64_t updated_at, collected_at;
	GradRegion *grad;
} UnitLife;

typedef struct Collective {
	RtStream stream;
	int64_t rank;         /* position in its stream, from 1 */
	const Op *wait;
} Collective;

typedef struct GradPlace { int flat; int64_t offset; int param; } GradPlace; /* offset: bytes */

typedef struct Plan {
	const Module *m;
	Arena *arena;
	PlanViolation *out;
	int max, n;
	SectionKind first, last; /* of the program that is checked */
	int n_gathers;        /* gathers in all programs */
	int64_t at, seq;
	UnitLife *unit;
	GradPlace **place;    /* by unit, sorted: where the gradients of its parameters lie; NULL: not computed yet */
	const Value ***wrote; /* by unit and index of the parameter: the value last written at its gradient's place */
	GradRegion *slot;     /* gradient slots, then the own regions of units */
	Collective *collective; /* by id of the first result */
	const Op **shown;     /* by Value.id: the wait or resident whose flat the value shows */
	bool *released;       /* by id of a wait's first result */
	bool *copied;         /* by id of the result of a copy to or from the host: its end is waited for */
	bool *known;          /* by Value.id: it was defined before */
	int64_t *event;       /* by Value.id */
	int64_t reached[RT_STREAMS]; /* the position of the last event that the stream waits for */
	int64_t issued[RT_STREAMS];  /* the position of the stream's last collective */
	int64_t ended[RT_STREAMS];   /* the position of the last collective of the stream that compute knows has ended */
	bool early;           /* units are updated in backward: their gradients lie in their slots until then */
	const Op *scalars, *step_scalars;
	const Op *broadcast;  /* broadcast_buffers */
	const Op *scales;     /* f8_scales */
	const Op *buffer;     /* the first op of this run that reads or writes a buffer */
} Plan;

/* Reports a violation of the rule at op; each is reported once. */
void plan_fail(Plan *p, const char *rule, const Op *op, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* The collective that is to blame for a fault at op, for messages. */
const Op *plan_blamed(const Op *op);
/* The collective whose end a wait waits for. */
const Op *plan_waited(const Op *wait);
/* Whether compute, at its current position, follows the end of the collective. */
bool plan_is_over(Plan *p, const Op *op);
/* Reports an op that the module's position among the micro-batches of a step does not allow; returns `right`. */
bool plan_check_variant(Plan *p, const Op *op, bool right, const char *rule);
/* The value that x is a view of, through any number of views; x itself if it is none. */
const Value *plan_root(const Value *x);
const StrategyInfo *plan_strategy(const Op *op); /* the strategy of the op's unit */
bool plan_is_trained(const Unit *u);             /* whether some flat of the unit is trained */

/* verify_grads.c: checks the gradients that the op reads and writes in place. */
void plan_check_grad_places(Plan *p, const Op *op);
/* Checks an op that begins, ends, reduces or reads a flat gradient, and one that updates or broadcasts a unit; other
 * ops pass. */
void plan_run_grad(Plan *p, const Op *op);

/* verify_copies.c: checks an op that copies between device and host, that waits for a copy, or that reads what one
 * gives; and, at the end of a run, that all have been waited for. */
void plan_run_copy(Plan *p, const Op *op);
void plan_check_copies(Plan *p);

/* verify_runs.c: checks, over several runs of the programs, that gathers do not start too early. */
void plan_check_runs(Plan *p);

#endif
