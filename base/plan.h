/* base/plan.h: what `shardc plan` and a program's --print-plan print about units, collectives and memory.
 *
 * There is one printer for both: the compiler fills a Plan from the IR, the runtime from its tables.  The bytes of
 * a collective are those that one rank receives from others; what it reads from its own memory is not counted.
 * docs/training.md, "What a plan says", describes the keys of the JSON. */
#ifndef SHARDC_PLAN_H
#define SHARDC_PLAN_H

#include "base/collectives.h"
#include "base/layout.h"

/* One collective; its number is its index + 1. */
typedef struct PlanCollective {
	RtCollectiveKind kind;
	RtStream stream;
	int unit, slot;              /* -1 = none */
	int64_t message;             /* bytes that a rank offers; 0 = given by the unit, or it sends scalars */
} PlanCollective;

typedef struct PlanUnit {
	const char *name;
	int n_params;
	int64_t elements, trainable; /* elements of its parameters, without gaps */
	const char *first, *last;    /* "forward:/h.0/ln_1/Add": where compute first and last reads it in a step; "" */
} PlanUnit;

/* One of the programs of a step with several micro-batches. */
typedef struct PlanMicro {
	const char *name;            /* "first" */
	int64_t times;               /* how often it runs in a step */
	const PlanCollective *at;
	int n;
} PlanMicro;
enum { PLAN_MICROS = 3 };

typedef struct Plan {
	const char *module;
	const LayoutModel *layout;
	LayoutRank who;
	bool most;                   /* `who` is the rank that needs most */
	const char *comm;            /* a word of base/communicators.h */
	const PlanUnit *unit;        /* [layout->n_units] */
	const PlanCollective *step;  /* of forward, backward and update */
	int n_step;
	PlanMicro micro[PLAN_MICROS]; /* in place of step, where n_micro > 0 */
	int n_micro;
	const PlanCollective *eval;
	int n_eval;
	LayoutMemory memory;
} Plan;

/* A category of memory.  optional: plans that have nothing of it have no line of it either. */
typedef struct PlanCategory { const char *name; int64_t bytes; bool optional; } PlanCategory;
enum { PLAN_CATEGORIES = 12 };
/* The categories that add up to the total, in the order of plans. */
void plan_categories(const LayoutMemory *m, PlanCategory out[PLAN_CATEGORIES]);
/* "activations 8.0 KiB, parameters 4.0 KiB": those that have bytes, the largest first. */
const char *plan_memory_text(const LayoutMemory *m, Arena *a);

/* The elements that a unit needs in addition to its parameters' own, over all shards of one copy: gaps, and the
 * ends of shards. */
int64_t plan_padding(const LayoutUnit *u, int64_t elements, const LayoutRank *who);
/* The bytes that rank `who` receives in this collective. */
int64_t plan_received(const Plan *p, const PlanCollective *c);

void plan_text_units(FILE *f, const Plan *p);
void plan_text_collectives(FILE *f, const Plan *p);
void plan_text_memory(FILE *f, const Plan *p);
/* The members of the JSON object, each ended by ",\n". */
void plan_json(FILE *f, const Plan *p);
const char *plan_human(Arena *a, int64_t bytes); /* "1.5 MiB" */

#endif
