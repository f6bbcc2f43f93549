/* runtime/exec/exec.h: a device and what runs on it: memory, streams, collectives, steps, and the optimizer's numbers.
 *
 * What a run is to all folders from here on: Rt, of which emitted code sees the first part, and RtPrivate. */
#ifndef SHARDC_RUNTIME_EXEC_H
#define SHARDC_RUNTIME_EXEC_H

#include "base/optimizer.h"
#include "runtime/comm/comm.h"
#include "runtime/scalars.h"
#include "runtime/shardrt.h"

/* ---- schedule.c ---- */

typedef struct LrSchedule { Schedule kind; double lr, min_lr; int64_t warmup, steps; } LrSchedule;
double schedule_lr(const LrSchedule *s, int64_t step); /* of the step-th step, from 0 */
/* Where sample i of an epoch of n lies: a permutation of [0,n) for each seed and epoch. */
int64_t schedule_permute(uint64_t seed, int64_t epoch, int64_t i, int64_t n);

/* ---- device.c, cpu/device.c or cuda/device.c ---- */

typedef enum ArenaKind {
	ARENA_PARAMS, ARENA_GATHERED, ARENA_GRADS, ARENA_KEPT, ARENA_SEND, ARENA_STATES, ARENA_BUFFERS, ARENA_INPUTS,
	ARENA_ACTIVATIONS, ARENA_WORKSPACE, ARENA_COMM, ARENA_TABLES, ARENA_COUNT
} ArenaKind;
typedef struct DeviceMemory {
	char *base[ARENA_COUNT];
	int64_t planned[ARENA_COUNT];
	int64_t total;
	bool on_host[ARENA_COUNT];  /* GPUs: pinned memory of the host (--offload), so no part of the total */
	/* Messages of batch norms; NULL: one rank.  On GPUs of this rank, then room for those of all. */
	char *sync;
	struct LayoutHost host;     /* GPUs */
	/* GPUs, of several ranks: memory of the host that peers map. */
	char *window;               /* what tensors are sent through outside of steps; NULL: a flat gradient is */
	int64_t window_bytes;
	int64_t snapshot;           /* bytes that a save beside the steps copies; mapped by snapshot.c */
	char *mirror[ARENA_COUNT];  /* of arenas that peers read, where ranks talk through the host; else NULL */
	/* --offload: */
	int file;                     /* open; -1: none */
	int64_t file_bytes;           /* 0: none */
	bool file_behind;             /* memory is short: write what is done with */
	int64_t file_at[ARENA_COUNT]; /* where an arena begins in the file; -1: it is memory */
	LayoutPlaces places;
} DeviceMemory;
extern const char *const device_arena_names[ARENA_COUNT];
extern const char *const device_comms[]; /* what --comm may be, of the program's target; NULL-terminated */
/* Whether this program runs here: the processor or the GPU, before anything is allocated.  Reports all that is
 * missing. */
bool device_check(Rt *rt, Diag *d);
/* Maps every arena and sets the base pointers of rt. */
bool device_map(Rt *rt, Diag *d);
void device_unmap(Rt *rt); /* also of what device_map left half done */
void device_layout(const Rt *rt, LayoutModel *layout); /* adds what the device alone knows of a plan */
/* Memory of arenas as the host sees it until device_close: the memory itself, or a copy, which with DEVICE_READ has
 * its contents, and with DEVICE_WRITE is copied back.  Between steps. */
typedef enum DeviceUse { DEVICE_READ = 1, DEVICE_WRITE = 2 } DeviceUse;
void *device_open(const Rt *rt, const void *at, int64_t bytes, DeviceUse use);
void device_close(const Rt *rt, const void *at, void *host, int64_t bytes, DeviceUse use);
/* What kernels read of the optimizer (segments, groups) has changed.  Between steps. */
void device_tables(const Rt *rt);
/* Both work by pieces of DEVICE_PIECE bytes, so that copies of the host stay small.  Between steps. */
enum { DEVICE_PIECE = 64 << 20 };
void device_put(const Rt *rt, void *at, const void *from, int64_t bytes); /* from the host's memory */
void device_zero(const Rt *rt, void *at, int64_t bytes);
char *device_tensor(const Rt *rt, const RtTensor *t); /* where its elements are; parameters: the gathered ones */
LayoutRank device_rank(const Rt *rt); /* this rank, as layouts ask for it */
static inline int64_t tensor_numel(const RtTensor *t)
{
	int64_t n = 1;
	for (int i = 0; i < t->rank; i++)
		n *= t->dim[i];
	return n;
}
static inline int64_t tensor_bytes(const RtTensor *t) { return tensor_numel(t) * dtype_info[t->dtype].bytes; }
/* Whether saves of this run go on beside its steps: with --save-every, where each rank has files of its own and nothing
 * is offloaded.  The plan has memory for them. */
bool device_has_snapshot(const Rt *rt);

/* ---- threads.c ---- */

enum { THREADS_MAX = 4096 };
void device_set_threads(int64_t n); /* 0: leave as it is */
int device_threads(void);

/* ---- slices.c: which elements of a tensor a rank holds ---- */

/* An element of a float dtype; number_put takes every dtype. */
double number_get(const char *p, DType t);
void number_put(char *p, DType t, double x);
/* Elements [first, first + n) of a tensor lie at `at`; n = 0: none of them are here.  rounded: the dtype whose
 * values they have, dtype or a narrower one. */
typedef struct Slice {
	int64_t first, n;
	char *at;
	DType dtype, rounded;
	const Rt *chance_of;   /* what is put there is rounded by the numbers of its next step; NULL: to the nearest */
	uint64_t chance_id;
} Slice;
Slice slice_at_rest(const Rt *rt, const RtTensor *t);       /* parameters at rest; other tensors: all of it */
Slice slice_state(const Rt *rt, const RtTensor *t, int k);  /* the k-th state of a trainable parameter */
Slice slice_master(const Rt *rt, const RtTensor *t);        /* n = 0 also where the tensor has none */
/* What of elements [first, first + n), of dtype `from` at `in`, the slice holds is put there. */
void slice_put(const Slice *s, int64_t first, int64_t n, const char *in, DType from);
/* The same of a slice of an arena, which may be a device's. */
void slice_store(const Rt *rt, const Slice *s, int64_t first, int64_t n, const char *in, DType from);
/* A slice of an arena piece by piece, each as the host sees it (device_open):
 *	for (Slice piece = slice_begin(&s); slice_next(rt, &s, &piece, use);)
 * Without an end before the last. */
static inline Slice slice_begin(const Slice *s)
{
	Slice none = *s;
	none.n = 0;
	none.at = NULL;
	return none;
}
bool slice_next(const Rt *rt, const Slice *s, Slice *piece, DeviceUse use);
/* n elements from `element` on, of dtype `from`, `stride` apart, are put there. */
void slice_write(const Slice *s, int64_t element, int64_t n, const char *in, int64_t stride, DType from);
void slice_convert(char *out, DType to, DType rounded, const char *in, DType from, int64_t n);
/* The elements that a rank, not necessarily this one, holds at rest, or whose states it holds. */
LayoutRange slice_of_rank(const RtModel *m, const RtTensor *t, bool of_state, const LayoutRank *who);

/* ---- agree.c: what ranks decide together outside a step; all of them call, one rank decides alone ---- */

/* Messages are held back until it is known who failed: the first rank that did prints its own, else rank 0. */
typedef struct Held { Diag diag; char *text; size_t n; } Held;
Diag *agree_begin(Held *h, const Diag *d); /* where this rank's messages go until agree_end */
/* Whether all ranks are ok, the same answer on all; frees what was held.  Ranks of one run call it equally often. */
bool agree_end(const Rt *rt, Held *h, bool ok, Diag *d);
const char *agree_host(void); /* the name of this host, for messages */
/* Tells the watchdog, while other ranks wait for this one's files, that it moves: after each piece of work of bounded
 * size. */
void agree_alive(const Rt *rt);
/* Around work on files, or waiting for a thread that does it: where this rank does not move meanwhile for --timeout,
 * that is a hang, whether or not another rank waits for it.  No agreement in between. */
void agree_files_begin(const Rt *rt);
void agree_files_end(const Rt *rt);
/* One turn of a loop that waits for a thread of this rank, a millisecond: agree_alive, if `moved`, which says how far
 * the thread is, is no longer *seen. */
void agree_wait(const Rt *rt, int64_t moved, int64_t *seen);

/* Before ranks can talk through memory, over the control plane: */

/* Messages are held back, until agree_print_messages; of ranks that failed the lowest that has any prints. */
void agree_hold_messages(Rt *rt, Diag *d);
void agree_print_messages(Rt *rt, Diag *d);
/* The exit code of a stage: 0 where it is 0 on all ranks. */
int agree_code(Rt *rt, int code, const Diag *d);

/* ---- staging.c: bytes between ranks outside a step, through memory that a step uses otherwise ---- */

/* Memory that peers read, of equal size and place on all ranks: a flat gradient, free between steps. */
typedef struct Staging { char *at; int64_t bytes; int *ranks; const char **from; } Staging;
enum { STAGING_MOST = 250 << 20 };
Staging staging_find(const Rt *rt, Arena *a); /* its lists live in a */
/* Elements [first, first + n), which one rank has in the staging memory, to every rank that holds them. */
typedef struct Spreading {
	const RtTensor *t;
	bool of_state;              /* a state of t, not t */
	int only;                   /* rank that wants them; -1: all that hold them */
	int giver;                  /* rank that has them in the staging memory */
	DType dtype;                /* in which they travel */
	Slice slice, master;        /* where this rank's go */
} Spreading;
void staging_spread(const Rt *rt, const Staging *s, const Spreading *what, int64_t first, int64_t n);
/* How many elements of this dtype a piece has. */
int64_t staging_elements(const Staging *s, DType dtype);
/* All ranks' bytes, as in the staging memory, in rank order: use(context, from, at, n) for bytes [at, at + n). */
typedef void StagingUse(void *context, const char *const *from, int64_t at, int64_t n);
void staging_collect(const Rt *rt, const Staging *s, int64_t bytes, StagingUse *use, void *context);

/* ---- average.c ---- */

/* The bytes of one where all that have an average follow each other. */
int64_t average_bytes(const RtTensor *t);
/* Puts the average over ranks in place of every float buffer; the rank's own values wait in the shadow.
 * All ranks call both, between steps; nothing happens at one rank. */
void average_begin(Rt *rt);
void average_end(Rt *rt);
/* Where this rank's own values of a buffer are between average_begin and average_end. */
char *average_own(const Rt *rt, const RtTensor *t);

/* ---- cpu/stream.c or cuda/stream.c: when collectives run ---- */

typedef struct Streams Streams;
typedef enum {
	PROGRAM_STEP, PROGRAM_EVAL, PROGRAM_OUTSIDE, PROGRAM_FIRST, PROGRAM_MIDDLE, PROGRAM_LAST
} Program; /* as RankProgress.program */
/* Collectives run on threads beside the computing, or inside rt_wait. */
bool streams_start(Rt *rt, bool threads, Diag *d);
void streams_stop(Rt *rt); /* ends their threads and frees what they have */
/* At one rank: what a program that ended in the middle has issued. */
void streams_abandon(Rt *rt);
/* Which program's numbers the next rt_* calls mean; what was issued before has ended. */
void streams_program(Rt *rt, Program program);
/* Since the last call; exposed: the computing waited.  Bytes came from peers: all, and those of gathers, of reductions
 * and of broadcasts. */
typedef struct CommCost { double ms, exposed_ms; int64_t n, bytes, gathered, reduced, broadcast; } CommCost;
CommCost streams_cost(Rt *rt);
const char *streams_name(const void *rt, int program, int seq); /* "all_gather @h.3"; NULL: there is none */
const char *collective_name(RtCollectiveKind kind); /* "all_gather" */

/* ---- replicas.c: --check-replicas ---- */

/* Whether copies of parameters are equal on all ranks; all call it, between steps, and come to the same verdict. */
bool replicas_check(const Rt *rt, Diag *d);

/* ---- optim.c ---- */

typedef struct SegmentList { Segment *at; int64_t n; } SegmentList;
typedef struct Optimizer {
	const OptimizerInfo *info;
	bool nesterov;
	int n_states;
	SegmentList (*segments)[4]; /* [unit][flat]: of the whole flat */
	SegmentList (*mine)[4];     /* of the part that this rank updates, from its start */
	Group *group;               /* [2 * g]: of group g of the model, 0 = what is in none; [2 * g + 1]: not decayed */
	int64_t *began;             /* by tensor of the model: updates done when its states began */
	LrSchedule lr;
	double clip_norm, clip_value; /* 0 = off */
	void *(*state[OPTIMIZER_STATES])[4];       /* [state][unit][flat]: shards, f32 */
	void *(*master)[4];         /* [unit][flat]: f32, where the flat has a master and this rank updates it */
	double norm;                /* of the gradients of this step, this rank's part: sum of |g|^p, or largest |g| */
} Optimizer;
/* Reads model->optimizer: "sgd:momentum,nesterov".  NULL optimizer: no states. */
bool optim_init(Optimizer *opt, const RtModel *model, const LayoutRank *who, Arena *a, const char *program, Diag *d);
/* Hyper-parameters from the flags, defaults for those not given; refuses those that the optimizer lacks. */
bool optim_configure(Optimizer *opt, const RtModel *model, const RtOptions *o, Diag *d);
/* What --help says of a flag beside its row: the default in this program, or that it is refused; NULL: nothing. */
const char *optim_help(const RtModel *model, OptionId flag, Arena *a);
/* A parameter's states begin after so many updates, before the first step of this run. */
void optim_set_began(Optimizer *opt, const RtModel *model, int tensor, int64_t updates);
void optim_print_groups(const Optimizer *opt, const RtModel *model, FILE *out); /* nothing where all are in one */
const char *optim_state_name(const Optimizer *opt, int state); /* as files call it: "exp_avg" */

/* Why the program has no use for a flag; NULL: it has. */
const char *optim_refuses(const Optimizer *opt, const RtModel *model, OptionId flag, Arena *a);
/* Learning rates by the flags, and above them hyper (NULL: nothing). */
LrSchedule optim_schedule(const Optimizer *opt, const RtOptions *o, const double *hyper);
/* Puts in force what the flags say, and above them hyper (NULL: nothing). */
void optim_apply(Optimizer *opt, const RtModel *model, const RtOptions *o, const double *hyper);

/* ---- hyper.c ---- */

enum {
#define HYPER(key, ...) HYPER_##key,
#include "runtime/exec/hyper.def"
	HYPER_KEYS
};
/* All of these: HYPER_KEYS numbers, then GROUP_KEYS for each group of the model; NaN = not said.  NULL after
 * messages. */
double *hyper_read(const Rt *rt, const char *path, Diag *d);
double *hyper_from(const Rt *rt, void *json, const char *file, Diag *d); /* json: a json_t; file: begins messages */
/* Forgets what flags that are given say, too. */
void hyper_drop(double *value, const RtOptions *o, const char *where, Diag *d);
/* The key by which it says what the flag says; NULL: it says nothing of it. */
const char *hyper_key(const double *value, OptionId flag);
/* Forgets what the flag says, too: it is set anew. */
void hyper_forget(double *value, OptionId flag);
/* Rank 0's to all ranks, into rt->p->hyper; rank 0 has none (NULL): nothing changes.  All ranks call it, between
 * steps. */
bool hyper_share(Rt *rt, double *mine);
void hyper_put(Buf *b, Arena *a, const RtModel *m, const double *value); /* as a JSON object */
extern _Atomic int hyper_signal; /* this process was asked to read the file again */
bool hyper_take_signal(void);

/* ---- cpu/step.c or cuda/step.c: a step as a session sees it ---- */

/* Behind streams_start, when inputs without a sample axis and the counters are loaded. */
void step_open(Rt *rt);
void step_close(Rt *rt);
/* A step or a batch of an evaluation begins; s: what the host knows. */
void step_begin(Rt *rt, const StepScalars *s);
/* Memory of the host, laid out as the input arena, to fill with the samples of the next micro-batch. */
char *step_input(Rt *rt);
/* Takes that input; forward, backward and update of a micro-batch, or an evaluation.  streams_program came before. */
void step_run(Rt *rt, Program program, int64_t sample0);
void step_end(Rt *rt);          /* the step is issued */
int step_depth(const Rt *rt);   /* steps that may be issued before step_result takes the oldest */
/* Waits for the oldest step: rt->p->result, sums, scalars and bad_sample0 are its, and the counters of progress are as
 * they are behind it.  A step that halts the run (scalars_halt) leaves them, and all memory that a checkpoint saves, as
 * they were; so do steps that were issued behind it. */
void step_result(Rt *rt);
void step_sums(Rt *rt);         /* waits: rt->loss_sum .. counted of what ran since step_begin */

/* ---- report.c ---- */

/* Takes the message of the first bad input since the last call; false when there was none. */
bool report_take_bad_input(char *out, size_t n);
bool report_has_bad_input(void); /* which nobody has taken yet */

/* ---- check.c: --check-nan ---- */

typedef struct Check { bool *inf; bool found; char text[1000]; } Check; /* of this step; inf: by check */
void check_say(const Rt *rt, Diag *d); /* what this rank found in the step, if it asks for a message */

/* ---- a run ---- */

/* How far a run is: what a checkpoint says of it and a resume goes on from. */
typedef struct Progress {
	int64_t step;               /* steps done */
	int64_t updates;            /* of them with an update */
	int64_t samples;            /* read so far */
	int64_t steps_then;         /* --steps of the checkpoint that is resumed; 0: there is none */
	LossScale loss_scale;
} Progress;

typedef struct Cuda Cuda;       /* cuda/cuda.h */

/* What a run is beside what emitted code sees.  The session of train fills it; folders read it. */
struct RtPrivate {
	struct SavePlaces *places;  /* of store; NULL: rank 0's folder is everybody's */
	bool parts_are_newer;       /* than what the run goes on from, in some hosts' folders, which not all of them have */
	Diag *diag;
	Arena *arena;
	RtOptions *options;
	World world;                /* size 0 or 1: alone */
	Control *control;           /* NULL at one rank */
	Comm *comm;                 /* NULL at one rank */
	void *hook_state;
	bool hook_started;
	Streams *streams;           /* NULL before the first step */
	Cuda *cuda;                 /* NULL: a CPU, or before device_map */
	FILE *messages;             /* where they go, once they are not held back */
	char *held;                 /* messages of the start */
	size_t n_held;
	bool speaks;                /* and whether this rank prints its own */
	StepSums sums;
	StepAsked (*asked)(const Rt *rt); /* of this rank; what is asked for once is taken.  NULL: nothing */
	struct Snapshot *snapshot;  /* NULL: saves are waited for */
	DeviceMemory memory;
	Optimizer optim;
	double *hyper;              /* in force, of --hyper or a checkpoint; NULL: none */
	Check check;
	StepScalars scalars;
	Progress progress;
	uint64_t gathered_hash;     /* of --check-replicas */
	int64_t accum;              /* A: micro-batches of a step */
	int64_t bad_sample0;        /* of the step's first micro-batch with bad data; -1: none */
	const RtCollective *rows;   /* of the program that runs */
	StepResult result;          /* of the last step: filled by rt_step_scalars and the driver */
};

#endif
