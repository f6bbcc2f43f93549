/* runtime/internal.h: what the runtime's files share and emitted programs do not see. */
#ifndef SHARDC_RUNTIME_INTERNAL_H
#define SHARDC_RUNTIME_INTERNAL_H

#include <signal.h>

#include "base/npy.h"
#include "base/safetensors.h"
#include "runtime/comm/comm.h"
#include "runtime/plane/control.h"
#include "runtime/options.h"
#include "runtime/scalars.h"
#include "runtime/shardrt.h"

/* ---- cpu/features.c ---- */

bool cpu_supports(const char *name);

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
/* Whether this program runs here: the processor or the GPU, before anything is allocated.  Reports all that is
 * missing. */
bool device_check(Rt *rt, Diag *d);
/* Maps every arena and sets the base pointers of rt. */
bool device_map(Rt *rt, Diag *d);
void device_unmap(Rt *rt);
/* Parts of device_map: bytes and offsets of all arenas; pointers, when memory.base is known. */
void device_plan(Rt *rt);
void device_layout(const Rt *rt, LayoutModel *layout); /* adds what the device alone knows of a plan */
void device_point(Rt *rt);
/* Memory of arenas as the host sees it until device_close: the memory itself, or a copy, which with DEVICE_READ has
 * its contents, and with DEVICE_WRITE is copied back.  Between steps. */
typedef enum DeviceUse { DEVICE_READ = 1, DEVICE_WRITE = 2 } DeviceUse;
void *device_open(const Rt *rt, const void *at, int64_t bytes, DeviceUse use);
void device_close(const Rt *rt, const void *at, void *host, int64_t bytes, DeviceUse use);
/* What kernels read of the optimizer (segments, groups) has changed.  Between steps. */
void device_tables(const Rt *rt);
/* By pieces, so that copies stay small. */
enum { DEVICE_PIECE = 64 << 20 };
void device_put(const Rt *rt, void *at, const void *from, int64_t bytes);
void device_zero(const Rt *rt, void *at, int64_t bytes);
void device_print_plan(const Rt *rt, FILE *out);
char *device_tensor(const Rt *rt, const RtTensor *t); /* where its elements are; parameters: the gathered ones */
LayoutRank device_rank(const Rt *rt);
static inline int64_t tensor_numel(const RtTensor *t)
{
	int64_t n = 1;
	for (int i = 0; i < t->rank; i++)
		n *= t->dim[i];
	return n;
}
static inline int64_t tensor_bytes(const RtTensor *t) { return tensor_numel(t) * dtype_info[t->dtype].bytes; }

/* ---- threads.c ---- */

enum { THREADS_MAX = 4096 };
void device_set_threads(int64_t n); /* 0: leave as it is */
int device_threads(void);

/* ---- cpu/offload.c ---- */

enum { OFFLOAD_PAGE = 4096 }; /* arenas in the file begin at multiples of it */
/* Makes the file, memory.file_bytes long.  Nothing happens where that is 0. */
bool offload_make(Rt *rt, Diag *d);
void offload_close(Rt *rt);
/* Advice for the system, about what of a unit is in the file. */
void offload_before_gather(const Rt *rt, int unit);
void offload_before_update(Rt *rt, int unit);
void offload_after_update(const Rt *rt, int unit);

/* ---- data.c, tokens.c ---- */

/* Where the rows of one input come from: rows of an array, or cuts of a token stream. */
typedef struct DataColumn {
	const RtTensor *input;
	const char *path;
	Npy npy;                /* the map; for raw token files without a header */
	const uint8_t *first;
	int64_t n_samples, stride, row_bytes; /* sample i: row_bytes from first + i * stride */
	DType token; /* token streams: element type in the file, widened to the input's; else DT_COUNT */
} DataColumn;
typedef struct DataSet {
	DataColumn *columns;
	int n_columns;
	int64_t n_samples, batch;
	bool shuffle;
	uint64_t seed;
	int64_t tokens_per_sample; /* 0: not a token model */
} DataSet;
/* data: NAME=FILE of each batched input; tokens: [NAME=]FILE or NULL.  flag names them in messages. */
bool data_open(DataSet *set, const RtModel *model, Arena *a, const TextList *data, const char *tokens,
	const char *flag, Diag *d);
void data_close(DataSet *set);
/* Copies samples into inputs, laid out as their arena: row b of the batch = sample sample_of(first + b). */
void data_load(const DataSet *set, char *input, int64_t first);
/* As data_load, but from row n on every row is `filler`, a position as well. */
void data_load_part(const DataSet *set, char *input, int64_t first, int64_t n, int64_t filler);
/* The error of a kernel that met bad data in the batch from `first` on: names the file, the step, samples. */
void data_blame(const DataSet *set, int64_t first, const char *when, const char *bad, const char *program, Diag *d);
void data_prefetch(const DataSet *set, int64_t first); /* starts reading from the disk; returns at once */
/* Of each --const: given[its tensor's index] becomes true. */
bool data_load_consts(const Rt *rt, const TextList *consts, bool *given, Diag *d);
bool data_check_consts(const Rt *rt, const bool *given, Diag *d); /* no input without a sample axis is missing */
/* The input that "NAME=FILE" names, and FILE; NULL after a message. */
const RtTensor *data_split_name(
	const RtModel *model, const char *text, const char **file, const char *flag, Diag *d);
const RtTensor *data_find_input(const RtModel *model, const char *name);
/* Columns of the inputs that a token stream feeds: appends to set->columns. */
bool tokens_open(DataSet *set, const RtModel *model, const char *text, const char *flag, Diag *d);
void tokens_load_row(const DataColumn *c, void *out, int64_t sample);

/* ---- slices.c: which elements of a tensor a rank holds ---- */

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
Diag *agree_begin(Held *h, const Diag *d);
bool agree_end(const Rt *rt, Held *h, bool ok, Diag *d); /* whether all are ok */
const char *agree_host(void);
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

/* ---- shared_file.c: memory that peers map ---- */

/* A file without a name, `bytes` long, in large pages where possible; -1 and errno. */
int shared_file(int64_t bytes);
/* That file of another process of this user, for reading, whatever it is now: the caller makes sure; -1 and errno. */
int shared_open(int pid, int fd);
/* Maps all of it at the boundary of a large page, and file_bytes of another file behind it, at the next multiple of
 * 4096; NULL and errno. */
void *shared_map(int fd, int64_t bytes, int file, int64_t file_bytes, bool writable);

/* ---- staging.c: bytes between ranks outside a step, through memory that a step uses otherwise ---- */

/* Memory that peers read, of equal size and place on all ranks: a flat gradient, free between steps. */
typedef struct Staging { char *at; int64_t bytes; int *ranks; const char **from; } Staging;
enum { STAGING_MOST = 250 << 20 };
Staging staging_find(const Rt *rt, Arena *a);
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

/* ---- weights.c ---- */

/* Which tensors get their first contents: all, or all but what a checkpoint holds.  All ranks call it. */
bool weights_load(const Rt *rt, bool from_checkpoint, Diag *d);
/* Random elements of a tensor that has RtTensor.init (init.c). */
void init_random(const RtTensor *t, const Slice *s);
double number_get(const char *p, DType t); /* float dtypes */
void number_put(char *p, DType t, double x);

/* ---- average.c ---- */

/* Which tensors, and the bytes of one where all follow each other. */
bool average_takes(const RtTensor *t);
int64_t average_bytes(const RtTensor *t);
/* Puts the average over ranks in place of every float buffer; the rank's own values wait in the shadow.
 * All ranks call both, between steps; nothing happens at one rank. */
void average_begin(Rt *rt);
void average_end(Rt *rt);
/* Where this rank's own values of a buffer are between the two. */
char *average_own(const Rt *rt, const RtTensor *t);

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
const char *collective_name(RtCollectiveKind kind);
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

typedef struct Streams Streams;
typedef enum {
	PROGRAM_STEP, PROGRAM_EVAL, PROGRAM_OUTSIDE, PROGRAM_FIRST, PROGRAM_MIDDLE, PROGRAM_LAST
} Program; /* as RankProgress.program */
/* Collectives run on threads beside the computing, or inside rt_wait. */
bool streams_start(Rt *rt, bool threads, Diag *d);
void streams_stop(Rt *rt);
/* At one rank: what a program that ended in the middle has issued. */
void streams_abandon(Rt *rt);
/* Which program's numbers the next rt_* calls mean; what was issued before has ended. */
void streams_program(Rt *rt, Program program);
/* Since the last call; exposed: the computing waited.  Bytes came from peers: all, and those of gathers, of reductions
 * and of broadcasts. */
typedef struct CommCost { double ms, exposed_ms; int64_t n, bytes, gathered, reduced, broadcast; } CommCost;
CommCost streams_cost(Rt *rt);
typedef struct CommCounts { int64_t n, bytes; } CommCounts;
/* Around a collective that blocks; bytes: received from others. */
void streams_sync_begin(Rt *rt, int seq);
void streams_sync_end(Rt *rt, RtCollectiveKind kind, int64_t bytes);
CommCounts streams_counts(const Rt *rt, RtCollectiveKind kind); /* since the start */

/* ---- programs.c: a program's collectives, by number ---- */

enum { RT_COLLECTIVE_KINDS = RT_ALL_REDUCE_SCALARS + 1 };
const RtCollective *program_rows(const RtModel *m, Program program, int *n);
const char *streams_name(const void *rt, int program, int seq); /* "all_gather @h.3"; NULL: there is none */
/* What was counted by kind since *told, which becomes what is counted now; ms are 0. */
CommCost cost_since(const CommCounts counts[RT_COLLECTIVE_KINDS], CommCost *told);

/* ---- replicas.c: --check-replicas ---- */

uint64_t replicas_hash(uint64_t h, const void *p, int64_t bytes);
void replicas_gathered(Rt *rt, const RtCollective *row); /* a gather has been waited for */
/* Whether copies of parameters are equal on all ranks; all call it, between steps, and come to the same verdict. */
bool replicas_check(const Rt *rt, Diag *d);

/* ---- start.c: ranks agree before they can talk through memory ---- */

enum { EXIT_DONE = 0, EXIT_INPUT = 1, EXIT_USAGE = 2, EXIT_RUN = 3 };

/* Checks flags and program against the number of ranks; before any rank is started. */
bool start_check_world(const Rt *rt, Diag *d);
/* Messages are held back, until start_print_messages; of ranks that failed the lowest that has any prints. */
void start_hold_messages(Rt *rt, Diag *d);
void start_print_messages(Rt *rt, Diag *d);
/* The exit code of a stage: 0 where it is 0 on all ranks. */
int start_agree(Rt *rt, int code, const Diag *d);
/* Compares with rank 0's what must be equal on all ranks.  An exit code. */
int start_compare(Rt *rt, const DataSet *train, const DataSet *eval, Diag *d);
/* Whether communication gets threads: as asked, else where cores are left. */
bool start_comm_threads(const Rt *rt);

/* ---- optim.c ---- */

typedef struct OptimizerInfo OptimizerInfo;
typedef struct SegmentList { Segment *at; int64_t n; } SegmentList;
typedef struct Optimizer {
	const OptimizerInfo *info;
	bool momentum, nesterov;
	int n_states;
	SegmentList (*segments)[4]; /* [unit][flat]: of the whole flat */
	SegmentList (*mine)[4];     /* of the part that this rank updates, from its start */
	Group *group;               /* [2 * g]: of group g of the model, 0 = what is in none; [2 * g + 1]: not decayed */
	int64_t *began;             /* by tensor of the model: updates done when its states began */
	LrSchedule lr;
	double clip_norm, clip_value; /* 0 = off */
	void *(*state[2])[4];       /* [state][unit][flat]: shards, f32 */
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
double optim_norm_p(const RtModel *model); /* which norm of gradients is computed */
void optim_print_groups(const Optimizer *opt, const RtModel *model, FILE *out); /* nothing where all are in one */
const char *optim_state_name(const Optimizer *opt, int state);

/* Why the program has no use for a flag; NULL: it has. */
const char *optim_refuses(const Optimizer *opt, const RtModel *model, OptionId flag);
/* One flat's part, updated by the optimizer's kernel; pointers and lists as kernels take them. */
typedef struct Update {
	float *p, *m, *v;
	const void *g;
	KDType dtype; /* of g */
	const Segment *segment;
	int64_t n_segments;
	const Group *group;
	const StepScalars *s;
	bool nesterov;
} Update;
void optim_update(const Optimizer *opt, const Update *u);
/* Learning rates by the flags, and above them hyper (NULL: nothing). */
LrSchedule optim_schedule(const Optimizer *opt, const RtOptions *o, const double *hyper);
/* Puts in force what the flags say, and above them hyper (NULL: nothing). */
void optim_apply(Optimizer *opt, const RtModel *model, const RtOptions *o, const double *hyper);

/* ---- hyper.c ---- */

enum {
#define HYPER(key, ...) HYPER_##key,
#include "runtime/train/hyper.def"
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
/* The first NaN and the first infinity of n elements, -1: none.  Waits. */
void step_not_finite(Rt *rt, const void *x, int64_t n, DType dtype, int64_t *nan, int64_t *inf);

/* ---- report.c ---- */

/* Takes the message of the first bad input since the last call; false when there was none. */
bool report_take_bad_input(char *out, size_t n);
bool report_has_bad_input(void);
StepRules report_rules(const Rt *rt);
StepAsked report_asked(const Rt *rt); /* of this rank; what is asked for once is taken */

/* ---- signals.c ---- */

extern _Atomic int report_stop_signal; /* that this process was sent; 0 = none */
extern _Atomic int report_save_signal; /* SIGUSR1: 1 = asked to save */
/* Before the process has a second thread: all inherit that the signals of a run are blocked. */
void signals_block(const RtOptions *o);
/* A thread takes them from here on; false after a message: there is none.  SIGINT and SIGTERM end the process until
 * signals_catch_stops: then they ask for a stop; second: one of a kind that has been seen ends it, still. */
bool signals_start(const RtOptions *o, Diag *d);
void signals_catch_stops(bool second);

/* ---- check.c: --check-nan ---- */

typedef struct Check { bool *inf; bool found; char text[1000]; } Check; /* of this step; inf: by check */
void check_begin(Rt *rt);
void check_say(const Rt *rt, Diag *d); /* what this rank found in the step, if it asks for a message */

/* ---- log.c ---- */

typedef struct Log {
	int fd;                     /* -1: there is no file */
	const char *path;
	int error;                  /* errno of the first write that failed, 0: none did */
	bool cut;                   /* the file's last line has no end */
	Buf line;
	bool terminal, dirty;       /* dirty: a progress line stands on the terminal */
	int64_t n_steps, every, seen; /* seen: steps of this run */
	double total_ms, shown_ms;  /* of those steps; when the terminal's line was last written */
} Log;
typedef struct StepRecord {
	int64_t step;
	double epoch, lr, ms, samples_per_s, tokens_per_s;
	double save_ms;             /* that no step ran for a save, since the line before */
	CommCost comm;
	int64_t peak_bytes;
	double loss_scale;
	StepResult result;
} StepRecord;
bool log_open(Log *log, const char *path, bool append, int64_t n_steps, Diag *d);
void log_step(Log *log, const StepRecord *r);
void log_eval(Log *log, int64_t step, const StepResult *r, int64_t n_samples);
/* New hyper-parameters, or (json NULL) a file that was refused. */
void log_hyper(Log *log, int64_t step, const char *json);
void log_clear_line(Log *log);  /* before anything else is printed */
bool log_close(Log *log, Diag *d);

/* ---- snapshot.c, resume.c ---- */

typedef struct Progress {
	int64_t step;               /* steps done */
	int64_t updates;            /* of them with an update */
	int64_t samples;            /* read so far */
	int64_t steps_then;         /* --steps of the checkpoint that is resumed; 0: there is none */
	LossScale loss_scale;
} Progress;
/* Of the save under way beside the steps, this rank's part: its files are being written; are on the disk; could not be
 * written. */
typedef enum SaveState { SAVE_NONE, SAVE_WRITING, SAVE_WRITTEN, SAVE_FAILED } SaveState;
SaveState save_state(const Rt *rt);
/* Whether saves of this run go on beside its steps: with --save-every, where each rank has files of its own and nothing
 * is offloaded.  The plan has memory for it. */
bool snapshot_wanted(const Rt *rt);
/* The folder of the checkpoint that --resume means, NULL without a message: none (auto); progress, and the flags that
 * were not given. */
bool resume_begin(const Rt *rt, RtOptions *o, const char **dir, Progress *p, Diag *d);
bool resume_is_strict(const RtOptions *o); /* --strict */
typedef struct SaveSet SaveSet; /* save.h */
bool resume_load(const SaveSet *c, const char *dir, Arena *a, Diag *d);

/* ---- eval.c, infer.c, main.c ---- */

/* One pass over the set; false after bad input. */
bool eval_run(Rt *rt, const DataSet *set, StepResult *out, int64_t *n_samples, Diag *d);
int infer_run(Rt *rt, Diag *d);

typedef struct Cuda Cuda;       /* cuda/cuda.h */

/* Whose folder of --save each rank sees (places.c): lead[r] is the lowest rank that sees rank r's; lead NULL: rank
 * 0's.  gathers: of kind full, where some do not see rank 0's: rank 0 writes all.  run: a number of this run. */
typedef struct SavePlaces { int *lead; int n; bool gathers; uint64_t run; } SavePlaces;

struct RtPrivate {
	SavePlaces places;
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
