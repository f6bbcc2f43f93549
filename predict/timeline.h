/* predict/timeline.h: a step as slices of time on streams, predicted from a PLAN.
 *
 * Stream 0 is computing; 1 + s is the RtStream s of base/collectives.def; behind the host, of which nothing is
 * predicted, are copies to and from its memory.  Times are seconds since the step began. */
#ifndef SHARDC_TIMELINE_H
#define SHARDC_TIMELINE_H

#include "base/plan.h"
#include "predict/cost.h"

enum { TIMELINE_COMPUTE = 0, TIMELINE_HOST = 1 + RT_STREAMS, TIMELINE_OUT, TIMELINE_IN, TIMELINE_STREAMS };

/* An op that computes, a collective or a copy on its stream, or (waits) computing that waits for one, or (issues) what
 * is computed where one is issued. */
typedef struct Slice {
	const Op *op;           /* of a wait: the op that waits */
	int number;             /* of the op in its program: forward, backward and update, from 0 */
	int stream;
	bool waits, issues;
	int seq;                /* of a collective, a wait for it and its issue: its number, from 1; else 0 */
	int64_t bytes;          /* of a collective on its stream: that the rank receives; of a copy: all */
	double begin, end;
	double alone;           /* what an op would take if no collective ran beside it */
	CostClass class;
	CostEvidence evidence;
} Slice;

/* Why compute waits for a collective. */
typedef enum Exposed {
	EXPOSED_NOT,
	EXPOSED_FIRST,          /* nothing is computed before its result is needed */
	EXPOSED_LAST,           /* nothing is left to compute beside it */
	EXPOSED_BLOCKS,         /* its result is needed at once */
	EXPOSED_SLOT,           /* its ring slot was in use */
	EXPOSED_EVENT,          /* its memory was in use */
	EXPOSED_STREAM,         /* its stream was busy with others */
	EXPOSED_WIRE,           /* all of the step take this long over their wire */
	EXPOSED_LATE,           /* it takes longer than what is computed beside it */
	EXPOSED_INLINE,         /* no thread is left for it, so it runs where it is waited for */
} Exposed;

typedef struct Transfer {
	const Op *op;
	const PlanCollective *row;
	int seq;
	int64_t bytes;          /* that the rank receives */
	double issued, ready;   /* when it was issued; when its event and slot let it start */
	double begin, end;
	double talks;           /* when ranks begin to move bytes: a gather of what rests on the host copies before that */
	double moving, latency; /* what bytes take between ranks, and what is left of it without them; 0 if it blocks */
	double least, least_latency; /* the same at least if these bytes were in collectives of other sizes */
	double exposed;         /* while it runs and compute waits, for it or for one behind it */
	Exposed reason;
	struct Transfer *before;       /* on its stream; NULL: it is the first */
	const Op *freed;        /* EXPOSED_SLOT, EXPOSED_EVENT: what it had to wait for; NULL: unknown */
} Transfer;

typedef struct Timeline {
	const Module *m;
	const Machine *machine;
	LayoutRank who;
	MachineLayout layout;
	MachineLayout rows;     /* whose rows of kernels say what ops take */
	double turns;           /* CPU: as many times as long as alone ops take, as ranks take turns, and by the skew */
	bool threads;           /* CPU: collectives run beside computing */
	bool copy_engines;      /* CUDA: copy engines gather */
	Slice *slice; int n_slices;
	Transfer **transfer; int n_transfers;
	double seconds;         /* of the step */
	double computing;       /* without waits */
	double exposed;         /* sum of waits */
	double copying;         /* sum of copies to and from memory of the host */
	double copies_exposed;  /* the part of exposed that copies are waited for */
	double copies_apart;    /* the part of copying that no two copies can take at once: all out, then what is copied in
	                           behind the last of these */
	double alone;           /* computing, but for issues, if no collective ran beside it */
	double forward;         /* the part of alone that forward takes */
	double recomputed;      /* the part of alone that computes values again */
	double saved;           /* by how much less it would be if all that ops read were computed again just before */
	double least[RT_STREAMS]; /* sums of Transfer.least */
	bool one_wire;          /* CUDA: all bytes move over the links of a host, or all over the network */
	double again;           /* the part of least that gathers in backward take */
	int64_t again_bytes;
	double of_class[COST_CLASSES];
	double of_evidence[COST_EVIDENCES];
	double flops;           /* of products */
	double ideal, ideal_again; /* seconds of the products at the peak; of those that are recomputed */
} Timeline;

typedef struct SimulateOptions {
	const Machine *machine;
	const Plan *plan;       /* its layout, rank and number of hosts */
	int threads;            /* CPU: of each rank */
	bool comm_threads;      /* CPU: collectives have threads beside them */
	bool copy_engines;      /* CUDA: copy engines gather */
	bool tf32;
	Communicator comm;      /* how ranks talk; unsaid: as the machine's do by themselves */
} SimulateOptions;
/* Runs forward, backward and update of a module at PLAN, with the order and the events that it has.  Every rank is
 * taken to be as fast as the others, but for the machine's skew. */
Timeline *simulate(const Module *m, const SimulateOptions *o, Arena *a);

const char *exposed_text(const Transfer *t, Arena *a); /* "its ring slot was in use until reshard @h.3"; "" if hidden */

/* ---- bound.c ---- */

/* An op in front of which bytes have to be gone: that at which most is live, or the one of forward that leaves least
 * time to copy them out. */
typedef struct BoundAt {
	double behind;    /* seconds that no order has in front of it */
	double beside;    /* of these, what values that are computed again may take for nothing */
	double fewer;     /* bytes that are live there less than at the fullest op */
} BoundAt;
typedef struct Bound {
	double seconds;   /* no order of these collectives, and no units, make a step shorter */
	double roomy;     /* the same if there were room for all that backward gathers again */
	double beside;    /* of it, seconds that values which are computed again may take for nothing */
	double wire;      /* what its bytes alone take there, if there were that room; 0: not all of them share a wire */
	double copies;    /* seconds of its copies to and from memory of the host, whatever is computed beside them */
	BoundAt fullest, early;
} Bound;
/* Where much is live. */
typedef struct BoundLive {
	const Op *op[VARIANT_COUNT]; /* of each program the op at which most is; NULL: there is none */
	int64_t bytes;               /* that are live at the fullest of them */
} BoundLive;
/* m: the program of the timeline, and its number among the variants.  room: bytes that gathered units may keep after
 * forward so that backward need not gather them again. */
Bound timeline_bound(const Timeline *t, Module *m, Variant k, const BoundLive *live, double room);
/* Of plans that take `again` seconds or more for computing values again, all behind an op, with all the room that
 * backward wants: a step, and the part of it behind that op. */
double bound_recomputing(const Bound *b, double again);
double bound_behind(const BoundAt *at, double again);
/* Bytes that no units and no prefetch do without, if what is computed stays the same. */
int64_t bound_bytes(const Variants *v, const Plan *plan, const LayoutMemory *memory, int64_t micro_batches,
	BoundLive *live);
/* The part of Timeline.alone in front of an op, but for what is computed again; 0 without an op. */
double timeline_before(const Timeline *t, const Op *op);

/* ---- show.c: what `shardc plan --machine` prints ---- */

typedef struct Prediction {
	const Timeline *of[VARIANT_COUNT]; /* of micro-batches; those that a program does not have are NULL */
	int64_t micro_batches;             /* of a step */
	int64_t samples, tokens;           /* of a micro-batch of a rank; tokens 0: samples are no sequences */
	int64_t bytes, pinned;             /* that the rank needs; and of memory of its host */
} Prediction;
void prediction_text(FILE *f, const Prediction *p);
/* The member "prediction" of the plan's JSON object, ended by ",\n". */
void prediction_json(FILE *f, const Prediction *p);

/* ---- trace.c ---- */

/* Whether path is new, empty or an older trace: links, devices and all other files stay.  False after a message. */
bool timeline_may_replace(const char *path, Diag *d);
/* A program of a step, and its name in a trace: "step", or that of a micro-batch. */
typedef struct TimelinePart { const Timeline *t; const char *name; } TimelinePart;
/* Write timelines, one behind the other, as a trace for chrome://tracing and Perfetto (docs/trace.md).  program: its
 * largest size is theirs.  timeline_write: that of a step to a file that is made anew, false after a message. */
void timeline_put(FILE *f, const TimelinePart *part, int n, const Sizes *program);
bool timeline_write(const Timeline *t, const Sizes *program, const char *path, Diag *d);

#endif
