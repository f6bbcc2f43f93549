/* runtime/exec/private.h: what files of exec know of each other: what a collective does, how it is counted, how a flat
 * is updated. */
#ifndef SHARDC_RUNTIME_EXEC_PRIVATE_H
#define SHARDC_RUNTIME_EXEC_PRIVATE_H

#include "runtime/exec/exec.h"

/* ---- cpu/features.c ---- */

bool cpu_supports(const char *name);

/* ---- device.c, cpu/device.c or cuda/device.c ---- */

/* Parts of device_map: bytes and offsets of all arenas; pointers, when memory.base is known. */
void device_plan(Rt *rt);
void device_point(Rt *rt);

/* ---- cpu/offload.c ---- */

enum { OFFLOAD_PAGE = 4096 }; /* arenas in the file begin at multiples of it */
/* Makes the file, memory.file_bytes long.  Nothing happens where that is 0. */
bool offload_make(Rt *rt, Diag *d);
void offload_close(Rt *rt);
/* Advice for the system, about what of a unit is in the file. */
void offload_before_gather(const Rt *rt, int unit);
void offload_before_update(Rt *rt, int unit);
void offload_after_update(const Rt *rt, int unit);

/* ---- collective.c: what a collective does, as exchanges ---- */

/* What is rounded stochastically: elements of a flat, from its element `first` on; of a part of a cast: of the
 * parameter `id`, from its element `first` on.  next: by the numbers of the step after this one. */
typedef struct Chance { bool on, next; int unit, flat; uint64_t id; int64_t first; } Chance;
/* n elements that are made in the dtype that travels, before they are sent. */
typedef struct Cast { void *to; const void *from; DType made, given; int64_t n; Chance chance; } Cast;
/* One exchange of a collective, and what becomes of the elements: copies side by side, or their sum. */
typedef struct Part {
	Exchange x;                 /* of one member: nothing is exchanged, the work was done when it began */
	bool fold;                  /* sum of all sources; else copies */
	Cast cast;                  /* first; n = 0: none */
	DType sent, made;           /* dtypes of the sources, and of what is made of them */
	char *to;
	int64_t stride;             /* copies: elements between those of one member and of the next */
	float scale;                /* of sums */
	/* Slabs of a range of `total` elements: whose number counts, and who takes from whom (-1: all). */
	enum { SLAB_ONE, SLAB_OF_TAKER, SLAB_OF_GIVER } which;
	int64_t slab, total;
	int only_taker, only_giver;
	bool not_own;
} Part;
typedef struct Collectives Collectives; /* members of the groups of this rank */
typedef struct Members { int *ranks, n, me; } Members; /* in the order of folds */
const Members *collective_members(const Rt *rt, const Collectives *c, const RtCollective *row);
Collectives *collectives_new(const Rt *rt, Arena *a);
int collective_parts(const Rt *rt, const RtCollective *row); /* exchanges; 0: nothing to do */
/* Of an all-reduce and a reduce the second half of the parts says where the result goes. */
void collective_describe(const Rt *rt, const Collectives *c, const RtCollective *row, int part, Part *out);
/* Casts, and publishes. */
void collective_begin(const Rt *rt, const Collectives *c, const RtCollective *row, int part, Part *out);
int64_t collective_bytes(const Rt *rt, const Collectives *c, const RtCollective *row); /* that come from peers */
int64_t collective_finish(const Rt *rt, const Part *p, const char **from); /* bytes that came from peers */
/* Where a gather puts a flat of its unit. */
char *collective_gathered(const Rt *rt, const RtCollective *row, int flat);
/* A gather has been waited for: rt->param is where it put its unit, until rt_reshard. */
void collective_arrived(Rt *rt, const RtCollective *row);
/* Behind a reduce whose result is a sum over micro-batches: from the flat gradient to where it is kept. */
void collective_keep(const Rt *rt, const RtCollective *row);
int64_t collective_kept(const Rt *rt, const RtCollective *row, int flat, float **to, const float **from); /* elements */

/* ---- chance.c: --stochastic-rounding ---- */

uint64_t chance_id(const RtTensor *t);
/* The parts of a cast in which chance is what one parameter's numbers are, or off. */
typedef void ChanceUse(const Rt *rt, const Cast *part);
void chance_parts(const Rt *rt, const Cast *c, ChanceUse *use);
void chance_cast(const Rt *rt, const Cast *c); /* on the host, at its scalars */
/* The numbers by which parameters that are put into memory between steps are rounded: those of the next step, of the
 * seed and the counters as they are now (model_load changes both). */
uint64_t chance_key(const Rt *rt, uint64_t id);
uint64_t chance_step(const Rt *rt);

/* ---- cpu/hook.c: --comm-hook ---- */

bool hook_takes(const Rt *rt, const RtCollective *row); /* whether the program's hook does this collective */
int64_t hook_run(const Rt *rt, Collectives *all, const RtCollective *row, const char **from); /* bytes from peers */
bool hook_start(Rt *rt, Diag *d);
void hook_stop(Rt *rt);

/* ---- cpu/stream.c or cuda/stream.c: when collectives run ---- */

typedef struct CommCounts { int64_t n, bytes; } CommCounts;
/* Around a collective that blocks; bytes: received from others. */
void streams_sync_begin(Rt *rt, int seq);
void streams_sync_end(Rt *rt, RtCollectiveKind kind, int64_t bytes);
CommCounts streams_counts(const Rt *rt, RtCollectiveKind kind); /* since the start */

/* ---- programs.c: a program's collectives, by number ---- */

const RtCollective *program_rows(const RtModel *m, Program program, int *n);
/* What was counted by kind since *told, which becomes what is counted now; ms are 0. */
CommCost cost_since(const CommCounts counts[RT_COLLECTIVE_KINDS], CommCost *told);

/* ---- replicas.c: --check-replicas ---- */

uint64_t replicas_hash(uint64_t h, const void *p, int64_t bytes);
void replicas_gathered(Rt *rt, const RtCollective *row); /* a gather has been waited for */

/* ---- optim.c ---- */

double optim_norm_p(const RtModel *model); /* which norm of gradients is computed */
/* One flat's part, updated by the optimizer's kernel; pointers and lists as kernels take them. */
void optim_update(const Optimizer *opt, const KUpdate *u);

/* ---- cpu/step.c or cuda/step.c: a step as a session sees it ---- */

/* The first NaN and the first infinity of n elements, -1: none.  Waits. */
void step_not_finite(Rt *rt, const void *x, int64_t n, DType dtype, int64_t *nan, int64_t *inf);

/* ---- report.c ---- */

StepRules report_rules(const Rt *rt);
StepAsked report_asked(const Rt *rt); /* of this rank; what is asked for once is taken */

/* ---- average.c, check.c: --check-nan ---- */

bool average_takes(const RtTensor *t); /* average.c: which tensors have an average */
void check_begin(Rt *rt);

#endif
