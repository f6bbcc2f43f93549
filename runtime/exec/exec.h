/* runtime/exec/exec.h: a device and what runs on it: memory, streams, collectives, steps, and the optimizer with its
 * hyper-parameters.
 *
 * It also defines the state of a run that exec, data, store and train share: Rt (runtime/shardrt.h), which emitted code
 * sees, and RtPrivate, which it does not. */
#ifndef SHARDC_RUNTIME_EXEC_H
#define SHARDC_RUNTIME_EXEC_H

#include "base/optimizer.h"
#include "runtime/comm/comm.h"
#include "runtime/scalars.h"
#include "runtime/shardrt.h"

/* ---- schedule.c ---- */

typedef struct LrSchedule { Schedule kind; double lr, min_lr; int64_t warmup, steps; } LrSchedule;
double schedule_lr(const LrSchedule *s, int64_t step); /* learning rate of step number `step`, from 0 */
/* The index in the data of sample i of an epoch of n samples: a permutation of [0,n) for each seed and epoch. */
int64_t schedule_permute(uint64_t seed, int64_t epoch, int64_t i, int64_t n);

/* ---- device.c, cpu/device.c or cuda/device.c ---- */

/* The last four have what is offloaded: of units, in sections of a file or, on GPUs, in pinned memory of the host; and
 * values from forward to backward (GPUs). */
typedef enum ArenaKind {
	ARENA_PARAMS, ARENA_GATHERED, ARENA_GRADS, ARENA_SEND, ARENA_STATES, ARENA_BUFFERS, ARENA_INPUTS,
	ARENA_ACTIVATIONS, ARENA_WORKSPACE, ARENA_COMM, ARENA_TABLES, ARENA_AWAY_PARAMS, ARENA_AWAY_GRADS,
	ARENA_AWAY_STATES, ARENA_AWAY_ACTS, ARENA_COUNT
} ArenaKind;
static inline bool arena_is_away(int arena) { return arena >= ARENA_AWAY_PARAMS; }
typedef struct DeviceMemory {
	char *base[ARENA_COUNT];
	int64_t planned[ARENA_COUNT];
	int64_t total;              /* without the arenas that are away */
	int64_t grads_behind;       /* bytes of the arena of activations that only flat gradients use */
	/* Messages of batch norms; NULL at one rank.  On GPUs this rank's message comes first, then room for those of all
	 * ranks. */
	char *sync;
	struct LayoutHost host;     /* GPUs */
	/* GPUs with several ranks: memory of the host that peers map. */
	char *window;               /* through which tensors are sent outside of steps; NULL: a flat gradient serves for
	                             * that */
	int64_t window_bytes;
	int64_t snapshot;           /* bytes that a save beside the steps copies; snapshot.c maps them */
	char *mirror[ARENA_COUNT];  /* copies in host memory of the arenas that peers read, where ranks communicate through
	                             * the host; else NULL */
	/* --offload on CPUs: */
	int file;                     /* open; -1: none */
	int64_t file_bytes;           /* 0: none */
	bool file_behind;             /* memory is short: pages that are done with are written early */
	int64_t file_at[ARENA_COUNT]; /* where an arena begins in the file; -1: it is not there */
	LayoutPlaces places;
} DeviceMemory;
extern const char *const device_arena_names[ARENA_COUNT];
extern const char *const device_comms[]; /* values of --comm that the program's target allows; NULL-terminated */
/* Whether the processor or the GPU can run this program; called before anything is allocated.  Reports everything that
 * is missing. */
bool device_check(Rt *rt, Diag *d);
/* Maps every arena and sets the base pointers of rt. */
bool device_map(Rt *rt, Diag *d);
/* Calls the program's setup, in which primitives are created; all ranks call it.  False after a message. */
bool device_setup(Rt *rt, Diag *d);
/* --time-ops, after session_start; on GPUs only.  step: runs one step and waits for it; returns 0 or an exit code.
 * Returns an exit code. */
typedef int DeviceStep(void *context);
int device_time_ops(Rt *rt, DeviceStep *step, void *context, Diag *d);
void device_unmap(Rt *rt); /* also cleans up after a device_map that failed half-way */
void device_layout(const Rt *rt, LayoutModel *layout); /* adds the parts of a plan that only the device knows */
/* Makes a range of an arena accessible to the host until device_close: returns the memory itself, or a copy, which with
 * DEVICE_READ has the contents, and with DEVICE_WRITE is copied back.  Called between steps. */
typedef enum DeviceUse { DEVICE_READ = 1, DEVICE_WRITE = 2 } DeviceUse;
void *device_open(const Rt *rt, const void *at, int64_t bytes, DeviceUse use);
void device_close(const Rt *rt, const void *at, void *host, int64_t bytes, DeviceUse use);
/* Tells the device that the optimizer's tables (segments, groups), which kernels read, have changed.  Called between
 * steps. */
void device_tables(const Rt *rt);
/* Both work in pieces of DEVICE_PIECE bytes, so that copies on the host stay small.  Called between steps. */
enum { DEVICE_PIECE = 64 << 20 };
void device_put(const Rt *rt, void *at, const void *from, int64_t bytes); /* from the host's memory */
void device_zero(const Rt *rt, void *at, int64_t bytes);
char *device_tensor(const Rt *rt, const RtTensor *t); /* where its elements are; for a parameter, the gathered ones */
LayoutRank device_rank(const Rt *rt); /* this rank, as functions of base/layout.h take it */
static inline int64_t tensor_numel(const RtTensor *t)
{
	int64_t n = 1;
	for (int i = 0; i < t->rank; i++)
		n *= t->dim[i];
	return n;
}
static inline int64_t tensor_bytes(const RtTensor *t) { return tensor_numel(t) * dtype_info[t->dtype].bytes; }
/* Whether this run writes its checkpoints beside its steps: with --save-every, where each rank writes files of its own
 * and nothing is offloaded.  The plan then has memory for the copy. */
bool device_has_snapshot(const Rt *rt);

/* ---- threads.c ---- */

enum { THREADS_MAX = 4096 };
void device_set_threads(int64_t n); /* 0: leaves the number as it is */
int device_threads(void);
/* With OMP_PROC_BIND or OMP_PLACES OpenMP binds the first thread to one processor as soon as it is loaded.  All that
 * this thread starts would have that one alone: gives it those of all places again.  Threads of kernels stay bound. */
void device_unbind(void);

/* ---- slices.c: which elements of a tensor a rank holds ---- */

/* Read and write one element.  number_get takes float dtypes only, number_put every dtype. */
double number_get(const char *p, DType t);
void number_put(char *p, DType t, double x);
/* Elements [first, first + n) of a tensor, which lie at `at`; n = 0: this rank holds none.  rounded: the dtype to whose
 * values they are rounded: dtype itself or a narrower one. */
typedef struct Slice {
	int64_t first, n;
	char *at;
	DType dtype, rounded;
	const Rt *chance_of;   /* values put there are rounded stochastically, with the random numbers of this run's next
	                        * step; NULL: to the nearest */
	uint64_t chance_id;
} Slice;
Slice slice_at_rest(const Rt *rt, const RtTensor *t);       /* of a parameter the part at rest on this rank; of other
                                                             * tensors all elements */
Slice slice_state(const Rt *rt, const RtTensor *t, int k);  /* the k-th state of a trainable parameter */
Slice slice_master(const Rt *rt, const RtTensor *t);        /* n = 0 also where the tensor has no master */
/* Takes elements [first, first + n), of dtype `from` at `in`, and puts those that the slice holds into it. */
void slice_put(const Slice *s, int64_t first, int64_t n, const char *in, DType from);
/* The same for a slice of an arena, which may be device memory. */
void slice_store(const Rt *rt, const Slice *s, int64_t first, int64_t n, const char *in, DType from);
/* Iterates over a slice of an arena in pieces, which the host can access (device_open):
 *	for (Slice piece = slice_begin(&s); slice_next(rt, &s, &piece, use);)
 * The loop must not be left before the last piece. */
static inline Slice slice_begin(const Slice *s)
{
	Slice none = *s;
	none.n = 0;
	none.at = NULL;
	return none;
}
bool slice_next(const Rt *rt, const Slice *s, Slice *piece, DeviceUse use);
/* Puts n elements, of dtype `from` and `stride` apart at `in`, into the slice from tensor element `element` on. */
void slice_write(const Slice *s, int64_t element, int64_t n, const char *in, int64_t stride, DType from);
void slice_convert(char *out, DType to, DType rounded, const char *in, DType from, int64_t n);
/* The range of elements that any rank holds at rest, or whose states it holds (of_state). */
LayoutRange slice_of_rank(const RtModel *m, const RtTensor *t, bool of_state, const LayoutRank *who);

/* ---- agree.c: what ranks decide together outside a step; all ranks make these calls, and a single rank decides alone
 * ---- */

/* Messages that are held back until it is known which ranks failed: the lowest of these prints its own; if none failed,
 * rank 0 does. */
typedef struct Held { Diag diag; char *text; size_t n; } Held;
Diag *agree_begin(Held *h, const Diag *d); /* returns where this rank's messages go until agree_end */
/* Whether all ranks are ok; the answer is the same on all.  Frees the held messages.  All ranks of a run call it
 * equally often. */
bool agree_end(const Rt *rt, Held *h, bool ok, Diag *d);
const char *agree_host(void); /* the name of this host, for messages */
/* Tells the watchdog that this rank makes progress while other ranks wait for its files.  Called after each piece of
 * work of bounded size.  Here and below, control NULL: there is no watchdog. */
void agree_alive(Control *control);
/* These enclose work on files, or waiting for a thread that does it: if this rank makes no progress in between for
 * --timeout, that counts as a hang, whether or not another rank waits for it.  The ranks must not agree on anything in
 * between. */
void agree_files_begin(Control *control);
void agree_files_end(Control *control);
/* One turn, of a millisecond, of a loop that waits for a thread of this rank.  moved: a number that grows as the thread
 * makes progress; if it differs from *seen, this calls agree_alive and updates *seen. */
void agree_wait(Control *control, int64_t moved, int64_t *seen);

/* Before ranks can communicate through memory, these use the control plane: */

/* Messages are held back until agree_print_messages; of the ranks that failed, the lowest that has messages prints
 * them. */
void agree_hold_messages(Rt *rt, Diag *d);
void agree_print_messages(Rt *rt, Diag *d);
/* The exit code of a stage at start, equal on all ranks: 0 if `code` is 0 on all. */
int agree_code(Rt *rt, int code, const Diag *d);

/* ---- staging.c: bytes between ranks outside a step, through memory that has another use in a step ---- */

/* Memory that peers read, of equal size and at the same place on all ranks: a flat gradient, which is free between
 * steps. */
typedef struct Staging { char *at; int64_t bytes; int *ranks; const char **from; } Staging;
enum { STAGING_MOST = 250 << 20 };
Staging staging_find(const Rt *rt, Arena *a); /* its lists are allocated in a */
/* Sends elements [first, first + n), which one rank has in the staging memory, to every rank that holds them. */
typedef struct Spreading {
	const RtTensor *t;
	bool of_state;              /* a state of t, not t */
	int only;                   /* the only rank that takes them; -1: all that hold them */
	int giver;                  /* rank that has them in the staging memory */
	DType dtype;                /* dtype in which they travel */
	Slice slice, master;        /* where this rank puts its elements */
} Spreading;
void staging_spread(const Rt *rt, const Staging *s, const Spreading *what, int64_t first, int64_t n);
/* How many elements of this dtype fit into a piece. */
int64_t staging_elements(const Staging *s, DType dtype);
/* Gives each rank the `bytes` bytes that every rank has in its staging memory: calls use(context, from, at, n) for
 * successive pieces [at, at + n), where from[r] points to rank r's bytes. */
typedef void StagingUse(void *context, const char *const *from, int64_t at, int64_t n);
void staging_collect(const Rt *rt, const Staging *s, int64_t bytes, StagingUse *use, void *context);

/* ---- average.c ---- */

/* Bytes that a buffer takes, with padding, where all buffers that are averaged follow each other. */
int64_t average_bytes(const RtTensor *t);
/* average_begin puts the average over ranks in place of every float buffer and keeps the rank's own values in the
 * shadow; average_end restores them.  All ranks call both, between steps; at one rank they do nothing. */
void average_begin(Rt *rt);
void average_end(Rt *rt);
/* Where this rank's own values of a buffer lie between average_begin and average_end. */
char *average_own(const Rt *rt, const RtTensor *t);

/* ---- cpu/stream.c or cuda/stream.c: when collectives run ---- */

typedef struct Streams Streams;
typedef enum {
	PROGRAM_STEP, PROGRAM_EVAL, PROGRAM_OUTSIDE, PROGRAM_FIRST, PROGRAM_MIDDLE, PROGRAM_LAST
} Program; /* as RankProgress.program */
/* threads: collectives run on threads beside the computing; else inside rt_wait. */
bool streams_start(Rt *rt, bool threads, Diag *d);
void streams_stop(Rt *rt); /* ends their threads and frees what they have */
/* At one rank: gets rid of the collectives that an aborted program has issued. */
void streams_abandon(Rt *rt);
/* Makes the programs of a size those of rt->model; nothing but streams_program may follow before they run. */
void program_size(Rt *rt, int size);
/* Says to which program the numbers of the next rt_* calls belong.  Everything issued before must have ended. */
void streams_program(Rt *rt, Program program);
/* Collectives since the last streams_cost; exposed_ms: while the computing waited.  bytes: received from peers, of
 * which those of gathers, reductions and broadcasts are counted apart. */
typedef struct CommCost { double ms, exposed_ms; int64_t n, bytes, gathered, reduced, broadcast; } CommCost;
CommCost streams_cost(Rt *rt);
const char *streams_name(const void *rt, int program, int seq); /* "all_gather @h.3"; NULL: there is none */
const char *collective_name(RtCollectiveKind kind); /* "all_gather" */

/* ---- trace.c: --trace ---- */

/* What the host does between ops. */
typedef enum TraceHost { TRACE_LOOP, TRACE_DATA, TRACE_EVAL, TRACE_SAVE, TRACE_LOG, TRACE_HOSTS } TraceHost;
/* Makes this rank's file and the memory for all that steps [first, last] record; false after a message.  Called before
 * the first step.  turns: ranks take turns on cores, so it also records how long ops of CPUs have had one. */
bool trace_open(Rt *rt, int64_t first, int64_t last, bool turns, Diag *d);
const char *trace_path(const Rt *rt, int rank, Arena *a); /* the file of a rank, with --trace */
/* The step of this number, from 1, begins: recording begins with `first`, and the file is written when the step after
 * `last` begins, or by trace_close.  The latter warns where no step was recorded, which leaves an older file as it is,
 * and returns false after messages if the file was not written completely; both do nothing where there is no trace. */
void trace_step(Rt *rt, int64_t step);
bool trace_close(Rt *rt, Diag *d);
void trace_host(Rt *rt, TraceHost what); /* from here to the next op or call */
/* These enclose the run of a program. */
void trace_program(Rt *rt, Program program);
void trace_program_end(Rt *rt);

/* ---- replicas.c: --check-replicas ---- */

/* Whether all copies of parameters are equal on all ranks.  All ranks call it, between steps, and get the same
 * answer. */
bool replicas_check(const Rt *rt, Diag *d);

/* ---- optim.c ---- */

typedef struct SegmentList { Segment *at; int64_t n; } SegmentList;
typedef struct Optimizer {
	const OptimizerInfo *info;
	bool nesterov;
	int n_states;
	SegmentList (*segments)[4]; /* [unit][flat]: segments of the whole flat */
	SegmentList (*mine)[4];     /* those of the part that this rank updates, counted from the start of that part */
	Group *group;               /* [2 * g]: numbers of group g of the model, where 0 = parameters of no group; [2 * g +
	                             * 1]: the same without weight decay */
	int64_t *began;             /* [tensor of the model]: updates done when its states began */
	LrSchedule lr;
	double clip_norm, clip_value; /* 0 = off */
	void *(*state[OPTIMIZER_STATES])[4];       /* [state][unit][flat]: shards, f32 */
	void *(*master)[4];         /* [unit][flat]: f32 master, where the flat has one and this rank updates it */
	double norm;                /* this rank's part of the norm of this step's gradients: the sum of |g|^p, or the
	                             * largest |g| */
} Optimizer;
/* Reads model->optimizer, as "sgd:momentum,nesterov"; NULL: there is no optimizer and no state. */
bool optim_init(Optimizer *opt, const RtModel *model, const LayoutRank *who, Arena *a, const char *program, Diag *d);
/* Sets hyper-parameters from the flags, with defaults for those not given; refuses flags that the optimizer has no use
 * for. */
bool optim_configure(Optimizer *opt, const RtModel *model, const RtOptions *o, Diag *d);
/* What --help says about a flag in addition to its row: the default in this program, or that it is refused; NULL:
 * nothing. */
const char *optim_help(const RtModel *model, OptionId flag, Arena *a);
/* Says that a parameter's states began after so many updates.  Called before the first step of this run. */
void optim_set_began(Optimizer *opt, const RtModel *model, int tensor, int64_t updates);
void optim_print_groups(const Optimizer *opt, const RtModel *model, FILE *out); /* prints nothing where there are no
                                                                                 * groups */
const char *optim_state_name(const Optimizer *opt, int state); /* its name in files: "exp_avg" */

/* The reason why the program has no use for a flag; NULL: it uses it. */
const char *optim_refuses(const Optimizer *opt, const RtModel *model, OptionId flag, Arena *a);
/* The learning-rate schedule of the flags, overridden by `hyper` (NULL: no overrides). */
LrSchedule optim_schedule(const Optimizer *opt, const RtOptions *o, const double *hyper);
/* Puts the values of the flags in force, overridden by `hyper` (NULL: no overrides). */
void optim_apply(Optimizer *opt, const RtModel *model, const RtOptions *o, const double *hyper);

/* ---- hyper.c ---- */

enum {
#define HYPER(key, ...) HYPER_##key,
#include "runtime/exec/hyper.def"
	HYPER_KEYS
};
/* Hyper-parameters of a file are one array: HYPER_KEYS numbers, then GROUP_KEYS for each group of the model; NaN = not
 * set. NULL after messages. */
double *hyper_read(const Rt *rt, const char *path, Diag *d);
double *hyper_from(const Rt *rt, void *json, const char *file, Diag *d); /* json: a json_t; file: begins messages */
/* Unsets the values that flags on the command line also set; a note begins with `where`. */
void hyper_drop(double *value, const RtOptions *o, const char *where, Diag *d);
/* The JSON key that sets what the flag sets; NULL: the array does not set it. */
const char *hyper_key(const double *value, OptionId flag);
/* Unsets what the flag sets, because it is being set anew. */
void hyper_forget(double *value, OptionId flag);
/* Sends rank 0's array to all ranks, into rt->p->hyper; if rank 0 has none (NULL), nothing changes.  All ranks call it,
 * between steps. */
bool hyper_share(Rt *rt, double *mine);
void hyper_put(Buf *b, Arena *a, const RtModel *m, const double *value); /* writes them as a JSON object */
extern _Atomic int hyper_signal; /* this process was asked to read the file again */
bool hyper_take_signal(void);

/* ---- cpu/step.c or cuda/step.c: a step as a session sees it ---- */

/* Called after streams_start, once inputs without a sample axis and the counters are loaded. */
void step_open(Rt *rt);
void step_close(Rt *rt);
/* Begins a step or a batch of an evaluation; s: the scalars as far as the host knows them. */
void step_begin(Rt *rt, const StepScalars *s);
/* Host memory with the same places as the input arena, to be filled with the samples of the next micro-batch. */
char *step_input(Rt *rt);
/* Takes that input and runs forward, backward and update of a micro-batch, or an evaluation.  Called after
 * streams_program. */
void step_run(Rt *rt, Program program, int64_t sample0);
void step_end(Rt *rt);          /* the step is issued */
int step_depth(const Rt *rt);   /* steps that may be issued before step_result takes the oldest */
/* Waits for the oldest step and sets result, sums, scalars and bad_sample0 of rt->p to those of this step, and the
 * counters of progress to their values after it.  A step that halts the run (scalars_halt), and steps issued after it,
 * leave these counters and all memory that a checkpoint saves as they were. */
void step_result(Rt *rt);
void step_sums(Rt *rt);         /* waits, then sets rt->loss_sum, loss_weight, correct and counted to the sums since
                                 * step_begin */

/* ---- report.c ---- */

/* Bad input that a kernel met: node "/embed/Gather": index 5 at position 7 is outside an axis of 5. */
typedef struct BadInput {
	char text[512];
	size_t what; /* where the words behind the node begin */
} BadInput;
/* Takes the first bad input since the last call; false when there was none. */
bool report_take_bad_input(BadInput *out);
bool report_has_bad_input(void); /* whether there is one that has not been taken yet */

/* ---- check.c: --check-nan ---- */

typedef struct Check { bool *inf; bool found; char text[1000]; } Check; /* findings in this step; inf: [number of a
                                                                         * check] */
void check_say(const Rt *rt, Diag *d); /* prints what this rank found in the step, if anything */

/* ---- the state of a run ---- */

/* How far a run is: a checkpoint saves it and a resume continues from it. */
typedef struct Progress {
	int64_t step;               /* steps done */
	int64_t updates;            /* those of them that made an update */
	int64_t samples;            /* read so far */
	int64_t steps_then;         /* --steps of the checkpoint that is resumed; 0: none is */
	LossScale loss_scale;
} Progress;

typedef struct Cuda Cuda;       /* cuda/cuda.h */
typedef struct Trace Trace;     /* trace.c */

/* The state of a run that emitted code does not see.  The session (train/session.c) fills it; all folders read it. */
struct RtPrivate {
	struct SavePlaces *places;  /* of store; NULL: all ranks see rank 0's folder */
	bool parts_are_newer;       /* some hosts' folders have parts of a newer checkpoint than the one resumed, but not
	                             * all hosts have their part */
	Diag *diag;
	Arena *arena;
	RtOptions *options;
	World world;                /* size 0 or 1: alone */
	Control *control;           /* NULL at one rank */
	Comm *comm;                 /* NULL at one rank */
	void *hook_state;
	bool hook_started;
	Streams *streams;           /* NULL before the first step */
	Cuda *cuda;                 /* NULL on a CPU and before device_map */
	FILE *messages;             /* where messages go once they are not held back */
	char *held;                 /* messages of the start */
	size_t n_held;
	bool speaks;                /* whether this rank prints its held messages */
	StepSums sums;
	StepAsked (*asked)(const Rt *rt); /* what this rank is asked to do; a request is reported once.  NULL: nothing */
	struct Snapshot *snapshot;  /* NULL: saves do not go on beside steps */
	DeviceMemory memory;
	Optimizer optim;
	double *hyper;              /* hyper-parameters of --hyper or a checkpoint that are in force; NULL: none */
	Check check;
	StepScalars scalars;
	float *scales;              /* of RtModel.scales, LAYOUT_SCALE_BYTES apart; NULL: there are none */
	Progress progress;
	uint64_t gathered_hash;     /* of --check-replicas */
	RtModel *model;             /* rt->model, whose programs are those of the size in use */
	int size;
	int64_t accum;              /* A: micro-batches of a step */
	int64_t bad_sample0;        /* first sample of the step's first micro-batch with bad data; -1: none */
	const RtCollective *rows;   /* collectives of the program that runs */
	Trace *trace;               /* NULL: none; rt->trace is the same while it records */
	StepResult result;          /* of the last step; filled by rt_step_scalars or step_result */
};

#endif
