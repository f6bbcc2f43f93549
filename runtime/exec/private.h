/* runtime/exec/private.h: what the files of exec share: what a collective does, how it is counted, how a flat is
 * updated. */
#ifndef SHARDC_RUNTIME_EXEC_PRIVATE_H
#define SHARDC_RUNTIME_EXEC_PRIVATE_H

#include "runtime/exec/exec.h"

/* ---- cpu/features.c ---- */

bool cpu_supports(const char *name);

/* ---- device.c, cpu/device.c or cuda/device.c ---- */

/* Parts of device_map: device_plan sets bytes and offsets of all arenas; device_point sets the pointers, once
 * memory.base is known. */
void device_plan(Rt *rt);
void device_point(Rt *rt);

/* ---- cpu/offload.c ---- */

/* Makes the file, memory.file_bytes long, in which arenas begin with a page; does nothing where that is 0. */
bool offload_make(Rt *rt, Diag *d);
void offload_close(Rt *rt);
/* Advise the system about the parts of a unit that are in the file. */
void offload_before_gather(const Rt *rt, int unit);
void offload_before_update(Rt *rt, int unit);
void offload_after_update(const Rt *rt, int unit);

/* ---- collective.c: what a collective does, as exchanges ---- */

/* How a cast rounds stochastically.  next: with the random numbers of the step after this one.  id: in a part of a cast
 * (chance_parts), the parameter's. */
typedef struct Chance { bool on, next; uint64_t id; } Chance;
/* n elements that are cast to the dtype in which they travel, before they are sent: those of a flat from its element
 * `first` on or, in a part of a cast, those of one parameter from its element `first` on.  To e4m3 they are divided by
 * their scales (scales.c). */
typedef struct Cast {
	void *to;
	const void *from;
	DType made, given;
	int64_t n;
	int unit, flat;
	int64_t first;
	Chance chance;
} Cast;
/* One exchange of a collective, and what is made of the elements: copies side by side, or their sum. */
typedef struct Part {
	Exchange x;                 /* with one member nothing is exchanged: the work is done when the part begins */
	bool fold;                  /* the result is the sum of all sources; else copies of them */
	Cast cast;                  /* done first; n = 0: there is none */
	DType sent, made;           /* dtypes of the sources and of the result */
	char *to;
	int64_t stride;             /* copies: elements from the start of one member's copy to the next */
	float scale;                /* sums are multiplied by it */
	/* The range has `total` elements, in slabs of `slab`: whose number chooses the slab, and which member takes from
	 * which (-1: all). */
	enum { SLAB_ONE, SLAB_OF_TAKER, SLAB_OF_GIVER } which;
	int64_t slab, total;
	int only_taker, only_giver;
	bool not_own;
} Part;
typedef struct Collectives Collectives; /* the groups that this rank belongs to */
typedef struct Members { int *ranks, n, me; } Members; /* in the order of folds */
const Members *collective_members(const Rt *rt, const Collectives *c, const RtCollective *row);
Collectives *collectives_new(const Rt *rt, Arena *a);
int collective_parts(const Rt *rt, const RtCollective *row); /* number of exchanges; 0: nothing to do */
/* Describes one part.  Of an all-reduce and a reduce, the second half of the parts says where the result goes. */
void collective_describe(const Rt *rt, const Collectives *c, const RtCollective *row, int part, Part *out);
/* Describes one part, casts its source and publishes it. */
void collective_begin(const Rt *rt, const Collectives *c, const RtCollective *row, int part, Part *out);
int64_t collective_bytes(const Rt *rt, const Collectives *c, const RtCollective *row); /* bytes that come from peers */
int64_t collective_finish(const Rt *rt, const Part *p, const char **from); /* bytes that came from peers */
/* Where a gather puts a flat of its unit. */
char *collective_gathered(const Rt *rt, const RtCollective *row, int flat);
/* Called when a gather has been waited for: makes rt->param point to where it put its unit, until rt_reshard. */
void collective_arrived(Rt *rt, const RtCollective *row);
/* Called after a reduction whose result is summed over micro-batches: moves it from the flat gradient to where the sum
 * is kept. */
void collective_keep(const Rt *rt, const RtCollective *row);
int64_t collective_kept(const Rt *rt, const RtCollective *row, int flat, float **to, const float **from); /* elements */

/* ---- chance.c: --stochastic-rounding ---- */

uint64_t chance_id(const RtTensor *t);
/* Cuts a cast into parts and calls `use` for each; in a part either chance.id names the one parameter, or chance is
 * off. */
typedef void ChanceUse(const Rt *rt, const Cast *part);
void chance_parts(const Rt *rt, const Cast *c, ChanceUse *use);
void chance_cast(const Rt *rt, const Cast *c); /* on the host, with the host's scalars */
/* The random numbers that round parameters which are put into memory between steps: those of the next step.  They
 * follow from the seed and the counters as they are now (model_load changes both). */
uint64_t chance_key(const Rt *rt, uint64_t id);
uint64_t chance_step(const Rt *rt);

/* ---- scales.c: weights that are gathered in 8 bits ---- */

float *scales_at(const Rt *rt, int k); /* scale number k */
/* Raises most[k * stride] to the largest magnitude of this rank's elements with scale k. */
void scales_largest(const Rt *rt, float *most, int64_t stride);
typedef void ScaledCast(uint8_t *to, const float *from, const float *scale, int64_t n);
void scales_cast(const Rt *rt, const Cast *c, ScaledCast *use); /* to e4m3, by the scales */

/* ---- cpu/hook.c: --comm-hook ---- */

bool hook_takes(const Rt *rt, const RtCollective *row); /* whether the program's hook does this collective */
int64_t hook_run(const Rt *rt, Collectives *all, const RtCollective *row, const char **from); /* returns bytes from
                                                                                               * peers */
bool hook_start(Rt *rt, Diag *d);
void hook_stop(Rt *rt);

/* ---- cpu/stream.c or cuda/stream.c: when collectives run ---- */

typedef struct CommCounts { int64_t n, bytes; } CommCounts;
/* These enclose a blocking collective; bytes: received from peers. */
void streams_sync_begin(Rt *rt, int seq);
void streams_sync_end(Rt *rt, RtCollectiveKind kind, int64_t bytes);
CommCounts streams_counts(const Rt *rt, RtCollectiveKind kind); /* since the start */

/* ---- programs.c: a program's collectives, by number ---- */

const RtCollective *program_rows(const RtModel *m, Program program, int *n);
/* Tells the watchdog which program this rank begins, and in which step. */
void program_say(const Rt *rt, RankProgress *to, Program program);
/* What was counted since *told, which is updated to the present counts.  The times in ms are 0. */
CommCost cost_since(const CommCounts counts[RT_COLLECTIVE_KINDS], CommCost *told);

/* ---- trace.c, cpu/trace.c or cuda/trace.c: --trace ---- */

/* The number of the collective that the current op issues or waits for.  Returns the op's mark, for trace_transfer; -1:
 * nothing is recorded. */
int trace_seq(Rt *rt, int seq);
/* While rt->trace is the result, each mark of a program calls `op`. */
Trace *trace_marks(const Rt *rt, void (*op)(Rt *rt));
/* Whether the path is free, or has an empty file, or one that begins so. */
bool trace_may_replace(const char *path, const char *begin);
/* What runs beside computing: the collectives of a stream (its RtStream), or copies to and from memory of the host. */
enum { TRACE_OUT = RT_STREAMS, TRACE_IN, TRACE_BESIDE };
/* A collective or a copy ran between two stamps; one thread records those of a row.  beside: which. */
void trace_transfer(Rt *rt, int beside, int mark, int64_t begin, int64_t end, int64_t bytes);
/* A stamp stands for a point of time, which trace_ns tells once it has passed: CLOCK_MONOTONIC in nanoseconds. */
bool trace_stamps_open(Rt *rt, int64_t n, Diag *d); /* before the first of n stamps; false after a message */
void trace_stamps_begin(Rt *rt);                    /* recording begins */
void trace_stamps_end(Rt *rt);                      /* waits until all points have passed */
void trace_stamps_close(Rt *rt);
int64_t trace_stamp(Rt *rt, int stream);            /* stream RT_STREAMS: computing */
int64_t trace_ns(const Rt *rt, int64_t stamp);
extern const bool trace_host_apart;                 /* the host and what computes do not wait for each other */

/* ---- replicas.c: --check-replicas ---- */

uint64_t replicas_hash(uint64_t h, const void *p, int64_t bytes);
void replicas_gathered(Rt *rt, const RtCollective *row); /* a gather has been waited for */

/* ---- optim.c ---- */

double optim_norm_p(const RtModel *model); /* p of the norm of gradients that is computed */
/* Updates this rank's part of a flat by the optimizer's kernel, and rounds the working copy where there is a master.
 * Segments and groups are where kernels read them. */
void optim_update(const Rt *rt, int unit, int f, SegmentList segments, const Group *groups);

/* ---- cpu/step.c or cuda/step.c: a step as a session sees it ---- */

void step_cast(const Rt *rt, const Cast *c); /* where the step computes, in order with its kernels */

/* Finds the index of the first NaN and of the first infinity among n elements; -1: there is none.  Waits for the
 * result. */
void step_not_finite(Rt *rt, const void *x, int64_t n, DType dtype, int64_t *nan, int64_t *inf);

/* ---- report.c ---- */

StepRules report_rules(const Rt *rt);
StepAsked report_asked(const Rt *rt); /* of this rank; a request is reported once */

/* ---- average.c, check.c: --check-nan ---- */

bool average_takes(const RtTensor *t); /* average.c: which tensors have an average */
void check_begin(Rt *rt);

#endif
