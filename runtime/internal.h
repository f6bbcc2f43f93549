/* runtime/internal.h: what the runtime's files share and emitted programs do not see. */
#ifndef SHARDC_RUNTIME_INTERNAL_H
#define SHARDC_RUNTIME_INTERNAL_H

#include "base/npy.h"
#include "base/safetensors.h"
#include "runtime/options.h"
#include "runtime/shardrt.h"

/* ---- cpu.c ---- */

bool cpu_supports(const char *name);
/* Reports all that is missing of the NULL-terminated list. */
bool cpu_check(const char *const *need, const char *program, Diag *d);

/* ---- schedule.c ---- */

typedef struct LrSchedule { Schedule kind; double lr, min_lr; int64_t warmup, steps; } LrSchedule;
double schedule_lr(const LrSchedule *s, int64_t step); /* of the step-th step, from 0 */
/* Where sample i of an epoch of n lies: a permutation of [0,n) for each seed and epoch. */
int64_t schedule_permute(uint64_t seed, int64_t epoch, int64_t i, int64_t n);

/* ---- device_cpu.c ---- */

typedef enum ArenaKind {
	ARENA_PARAMS, ARENA_GATHERED, ARENA_GRADS, ARENA_STATES, ARENA_BUFFERS, ARENA_INPUTS, ARENA_ACTIVATIONS, ARENA_WORKSPACE,
	ARENA_COMM, ARENA_COUNT
} ArenaKind;
typedef struct DeviceMemory {
	char *base[ARENA_COUNT];
	int64_t planned[ARENA_COUNT];
	int64_t total;
	LayoutPlaces places;
} DeviceMemory;
/* Maps every arena and sets the base pointers of rt. */
bool device_map(Rt *rt, Diag *d);
void device_unmap(Rt *rt);
void device_print_plan(const Rt *rt, FILE *out);
char *device_tensor(const Rt *rt, const RtTensor *t); /* where its elements are */
void device_set_threads(int64_t n); /* 0: leave as it is */
int device_threads(void);
static inline int64_t tensor_numel(const RtTensor *t)
{
	int64_t n = 1;
	for (int i = 0; i < t->rank; i++)
		n *= t->dim[i];
	return n;
}
static inline int64_t tensor_bytes(const RtTensor *t) { return tensor_numel(t) * dtype_info[t->dtype].bytes; }

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
/* Copies samples into the input buffers: row b of the batch = sample sample_of(first + b). */
void data_load(const DataSet *set, const Rt *rt, int64_t first);
/* As data_load, but from row n on every row is `filler`, a position as well. */
void data_load_part(const DataSet *set, const Rt *rt, int64_t first, int64_t n, int64_t filler);
/* The error of a kernel that met bad data in the batch from `first` on: names the file, the step, samples. */
void data_blame(const DataSet *set, int64_t first, const char *when, const char *bad, const char *program, Diag *d);
void data_prefetch(const DataSet *set, int64_t first); /* starts reading from the disk; returns at once */
bool data_load_consts(const Rt *rt, const TextList *consts, Diag *d);
/* The input that "NAME=FILE" names, and FILE; NULL after a message. */
const RtTensor *data_split_name(
	const RtModel *model, const char *text, const char **file, const char *flag, Diag *d);
const RtTensor *data_find_input(const RtModel *model, const char *name);
/* Columns of the inputs that a token stream feeds: appends to set->columns. */
bool tokens_open(DataSet *set, const RtModel *model, const char *text, const char *flag, Diag *d);
void tokens_load_row(const DataColumn *c, void *out, int64_t sample);

/* ---- weights.c ---- */

/* Which tensors get their first contents: all, or all but what a checkpoint holds. */
bool weights_load(const Rt *rt, bool from_checkpoint, Diag *d);

/* ---- optim.c ---- */

typedef struct OptimizerInfo OptimizerInfo;
typedef struct SegmentList { Segment *at; int64_t n; } SegmentList;
typedef struct Optimizer {
	const OptimizerInfo *info;
	bool momentum, nesterov;
	int n_states;
	SegmentList (*segments)[4]; /* [unit][flat] */
	Group group[2];             /* decayed, not decayed */
	LrSchedule lr;
	double clip_norm;           /* 0 = off */
	void *(*state[2])[4];       /* [state][unit][flat]: shards, f32 */
	double sumsq;               /* of the gradients of this step */
} Optimizer;
/* Reads model->optimizer: "sgd:momentum,nesterov".  NULL optimizer: no states. */
bool optim_init(Optimizer *opt, const RtModel *model, Arena *a, const char *program, Diag *d);
/* Hyper-parameters from the flags, defaults for those not given; refuses those that the optimizer lacks. */
bool optim_configure(Optimizer *opt, const RtModel *model, const RtOptions *o, Diag *d);
const char *optim_state_name(const Optimizer *opt, int state);

/* ---- report.c: what a step leaves behind ---- */

typedef struct StepResult {
	double loss, grad_norm;     /* grad_norm NaN when it is not computed */
	bool finite, empty;         /* empty: no valid element, so no update */
	bool has_accuracy;
	double accuracy;
} StepResult;
void report_begin(Rt *rt);      /* before forward and before an evaluation */
double report_loss(const Rt *rt);
/* Takes the message of the first bad input since the last call; false when there was none. */
bool report_take_bad_input(char *out, size_t n);
bool report_has_bad_input(void);

/* ---- log.c ---- */

typedef struct Log {
	FILE *file;
	const char *path;
	bool terminal, dirty;       /* dirty: a progress line stands on the terminal */
	int64_t n_steps, every, seen; /* seen: steps of this run */
	double total_ms, shown_ms;  /* of those steps; when the terminal's line was last written */
} Log;
typedef struct StepRecord {
	int64_t step;
	double epoch, lr, ms, samples_per_s, tokens_per_s;
	int64_t peak_bytes;
	StepResult result;
} StepRecord;
bool log_open(Log *log, const char *path, bool append, int64_t n_steps, Diag *d);
void log_step(Log *log, const StepRecord *r);
void log_eval(Log *log, int64_t step, const StepResult *r, int64_t n_samples);
void log_clear_line(Log *log);  /* before anything else is printed */
bool log_close(Log *log, Diag *d);

/* ---- checkpoint.c, resume.c ---- */

typedef struct Progress {
	int64_t step;               /* steps done */
	int64_t updates;            /* of them with an update */
	int64_t samples;            /* read so far */
} Progress;
typedef struct CheckpointList { SafeTensor *at; int n; } CheckpointList;
typedef struct Checkpoint {
	CheckpointList model, optim; /* made once; data points into the arenas */
	Arena *arena;
} Checkpoint;
void checkpoint_init(Checkpoint *c, const Rt *rt, Arena *a);
/* Writes DIR/step-NNNNNNNN and moves DIR/latest; on failure the older ones are as they were. */
bool checkpoint_save(const Checkpoint *c, const Rt *rt, const Progress *p, Diag *d);
/* The folder of the checkpoint that --resume means; NULL without a message: none (auto). */
bool resume_find(const RtOptions *o, Arena *a, const char **dir, Diag *d);
/* Progress and the flags that were not given. */
bool resume_read_state(const char *dir, const RtModel *model, RtOptions *o, Progress *p, Diag *d);
bool resume_load(const Checkpoint *c, const char *dir, Arena *a, Diag *d);

/* ---- eval.c, infer.c, main.c ---- */

/* One pass over the set; false after bad input. */
bool eval_run(Rt *rt, const DataSet *set, StepResult *out, int64_t *n_samples, Diag *d);
int infer_run(Rt *rt, Diag *d);

struct RtPrivate {
	Diag *diag;
	Arena *arena;
	RtOptions *options;
	DeviceMemory memory;
	Optimizer optim;
	StepScalars scalars;
	Progress progress;
	StepResult result;          /* of the last step: filled by rt_step_scalars and the driver */
};

#endif
