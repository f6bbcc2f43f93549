/* tests/oracle/state.h: what the oracle knows while a schedule runs: of every range of memory what it holds and who
 * touched it last, of every value what it means, of every stream how far it has come.  Private to oracle.c and
 * gradients.c. */
#ifndef SHARDC_TEST_ORACLE_STATE_H
#define SHARDC_TEST_ORACLE_STATE_H

#include "ir/ir.h"

/* ---- memory ---- */

/* Compute is a stream beside those of collectives. */
typedef int Stream;
enum { STREAM_COMPUTE = RT_STREAMS, STREAM_COUNT };

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

/* ---- what both files ask ---- */

#define SAY(o, ...) ((o)->fault = (o)->fault ? (o)->fault : arena_printf((o)->a, __VA_ARGS__))
#define FAULT(o, op, ...) SAY(o, "%s: %s %s", (o)->what, oracle_op_name(o, op), arena_printf((o)->a, __VA_ARGS__))

const char *oracle_op_name(Oracle *o, const Op *op);
/* op reads or writes r on stream s: a fault where another stream may be at it. */
void oracle_touch(Oracle *o, const Op *op, Stream s, Range *r, bool write);
/* Through views: the value whose memory v shows, and the parameter if it is one. */
const Value *oracle_root_of(const Value *v, const Symbol **sym);

static inline bool is_many(const Oracle *o)
{
	return o->m->variant != VARIANT_ONLY;
}

/* Units are updated in backward, and a gradient slot is theirs until then. */
static inline bool is_early(const Oracle *o)
{
	IR_FOR_OPS(o->m, SEC_BACKWARD, op)
		if (op->kind == OP_UPDATE_SHARD)
			return true;
	return false;
}

static inline bool ends_step(const Oracle *o)
{
	return o->m->variant == VARIANT_ONLY || o->m->variant == VARIANT_LAST;
}

/* Reduced gradients are summed, in memory apart from flat gradients. */
static inline bool sums_reduced(const Oracle *o)
{
	return is_many(o) && o->m->sync == SYNC_EVERY;
}

static inline UnitMemory *memory_of(Oracle *o, const Unit *u)
{
	return &o->unit[u->index];
}

static inline const StrategyInfo *strategy(const Unit *u)
{
	return &strategy_info[u->strategy];
}

/* ---- gradients.c ---- */

void oracle_zero_gaps(Oracle *o, const Op *op);
void oracle_carried_grad(Oracle *o, const Op *op);
void oracle_carry_grad(Oracle *o, const Op *op);
void oracle_collect(Oracle *o, const Op *op);
void oracle_reduce(Oracle *o, const Op *op);
void oracle_sumsq(Oracle *o, const Op *op);
void oracle_step_scalars(Oracle *o, const Op *op);
void oracle_update(Oracle *o, const Op *op);
void oracle_broadcast(Oracle *o, const Op *op);
void oracle_end_gradient(Oracle *o, const Op *op, UnitMemory *um); /* its memory is free */

#endif
