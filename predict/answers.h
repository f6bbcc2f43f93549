/* predict/answers.h: what `shardc plan --ask` finds: other plans, sizes that fit, who holds the peak, what memory buys.
 *
 * Every number is one of a plan that was made again with the options of its answer.  What has no answer is there, too,
 * with the reason. */
#ifndef SHARDC_ANSWERS_H
#define SHARDC_ANSWERS_H

#include "passes/changes.h"
#include "passes/memory/held.h"
#include "predict/private.h"

/* A plan with other options. */
typedef struct Answer {
	ChangeKind kind;
	const char *option;      /* words of a shell; "(this plan)" */
	int64_t bytes, pinned;   /* that a rank needs; and of memory of its host */
	double seconds, samples; /* of a step; a second, of all ranks; 0: not predicted */
	const char *why;         /* why there is no time, or no plan; NULL */
} Answer;
typedef VEC(Answer) AnswerList;

/* The largest size of a dim of --bind. */
typedef struct Largest {
	const char *now;         /* "batch=16" */
	int64_t size, bytes;     /* 0: none fits */
	bool more;               /* larger ones were not tried */
	bool held;               /* larger ones fit, but --global-batch is no whole number of their micro-batches */
	const char *option;      /* words of a shell */
} Largest;
typedef VEC(Largest) LargestList;

/* full_shard beside hybrid_shard on a number of hosts. */
typedef struct HybridAt {
	int64_t hosts, world;
	double full, hybrid;     /* seconds of a step */
	int64_t hybrid_bytes;
	bool pays;               /* it is faster, and fits */
} HybridAt;
typedef struct Hybrid {
	VEC(HybridAt) at;        /* up to the first that pays */
	const char *why;         /* why none was tried; NULL */
} Hybrid;

/* The fastest plan within a limit, of strategies and recomputation. */
typedef struct CurvePoint {
	int64_t limit, bytes;
	double seconds;          /* 0: no plan is within the limit */
	const char *option;
} CurvePoint;
typedef struct Curve {
	VEC(CurvePoint) at;      /* with growing limits, each faster than the one before */
	int64_t step;            /* bytes more and less than this plan */
	CurvePoint less, more;
	const char *why;         /* why there is none; NULL */
} Curve;

struct Answers {
	AnswerList plan;         /* the first is the plan as it is */
	AnswerList left_out;
	HeldShares modules, units; /* at the peak */
	int64_t peak_bytes;
	const char *peak_op;
	int64_t limit;           /* bytes that a rank may have */
	int64_t micro_batches;   /* of the step of each plan */
	LargestList largest;
	const char *largest_why; /* why there is none; NULL */
	Hybrid hybrid;
	Curve curve;
};

/* A plan that was made again. */
typedef struct Tried {
	Options o;
	Sync sync;
	const char *why;         /* why it is refused, or has no time; NULL */
	int64_t bytes, pinned;   /* 0: it is refused */
	Played of;
} Tried;

/* What is asked about. */
typedef struct Asking {
	VEC(Tried *) tried;
	PolicyOptions said;      /* by a policy file */
	const AskOf *of;
	const Options *o;
	Module *m;               /* the step of one micro-batch, at PLAN */
	Sync sync;
	int64_t limit;           /* bytes that a rank may have */
	Arena *a;
	Answers *out;
} Asking;

/* Plans with these options and plays that, once. */
const Tried *answers_try(Asking *s, const Options *o, Sync sync);
/* The same; NULL: the plan is refused, or has no time. */
const Played *answers_played(Asking *s, const Options *o, Sync sync);
/* Why no user may give the option: a policy file says another value of it; NULL: one may. */
const char *answers_unfit(const Asking *s, const char *option);
/* Keeps the answer that a plan with these options gives, with the others or with what is left out. */
void answers_add(Asking *s, ChangeKind kind, const char *option, const Options *changed, Sync sync);
/* Keeps the reason why there is no such answer. */
void answers_leave_out(Asking *s, ChangeKind kind, const char *option, const char *why);
/* "--remat=TEXT", a word of a shell. */
const char *answers_option(const Asking *s, const char *name, const char *text);

void alternatives_find(Asking *s);  /* each change of changes.def, other groups, ranks and sizes of units */
void partly_find(Asking *s);        /* what is said of some units only */
void largest_find(Asking *s);
void hybrid_find(Asking *s);
void curve_find(Asking *s);

void answers_text(FILE *f, const Answers *x, const Machine *m);
void answers_json(FILE *f, const Answers *x, const Machine *m); /* members of the plan's object */

#endif
