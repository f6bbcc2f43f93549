/* passes/passes.h: what the passes export: each is a function from Module to Module.  Each pass is one file, or one
 * folder, with one exported function.
 *
 * A pass returns false after it has reported to d what the *user* must change; a broken invariant is an ice().  No
 * pass knows the rank, and none but the printed peak depends on the world size. */
#ifndef SHARDC_PASSES_H
#define SHARDC_PASSES_H

#include "base/groups.h"
#include "base/optimizer.h"
#include "base/options.h"
#include "base/plan.h"
#include "base/pattern.h"
#include "ir/ir.h"

/* Whether an expression matches a parameter.  Where modules share the parameter, any of its names may match. */
static inline bool param_matches(const regex_t *re, const Symbol *s)
{
	bool any = pattern_matches(re, s->name);
	for (int i = 0; i < s->n_aliases; i++)
		any = any || pattern_matches(re, s->alias[i]);
	return any;
}

typedef bool PassFn(Module *m, const Options *o, Diag *d);
#define PASS(name, ...) PassFn pass_##name;
#include "passes/passes.def"

typedef struct PassInfo { const char *name; PassFn *run; Level from, to; const char *ensures; } PassInfo;
extern const PassInfo pass_info[];
extern const int pass_count;
int pass_index(const char *name);                          /* index in pass_info; -1: no such pass */
bool pass_is_among(const char *names, const char *name);   /* names: comma-separated */

/* A module in front of some passes, which are listed as --passes takes them.  m is NULL: the first was not run. */
typedef struct RestartAt { Module *m; const char *passes; } RestartAt;
/* A module as it was before the first pass that options of precision, memory and sharding change. */
typedef struct Restart {
	Arena *arena;              /* set by the caller */
	RestartAt at;
	RestartAt late;            /* in front of pass remat, as the passes before it left it with these options */
	Options of_late;
} Restart;

/* What pipeline_run shows while it runs. */
typedef struct PipelineView {
	const char *stop_after;    /* pass name or NULL */
	const char *dump_dir;      /* numbered files NN-pass.ir */
	const char *print_after;   /* comma-separated pass names */
	bool print_changed;
	struct CheckReport *check; /* checks every pass and reports the first difference here; NULL = off */
	FILE *out;
	Restart *restart;          /* NULL = not wanted */
	bool tried;                /* no program is made of it, only compared with others: it is verified at its end alone,
	                              and all the way when the user gets it */
} PipelineView;

/* shard/shard.c: what a gather of the unit casts: "f32 -> bf16, f32 -> e4m3"; NULL: nothing. */
const char *unit_cast(Module *m, const Unit *u);
/* fp8.c: finds the weights, f32 at rest, which only products read that pass fp8 would give 8-bit floats.  Pass units
 * gives them flats of their own. */
void fp8_weights(Module *m, PtrMap *found);
/* Whether operands and result of a product lie as products of 8-bit floats want them. */
bool fp8_fits(const Op *op);
/* fp8_gather.c: makes flats that are marked for it (Unit.f8) gathered in e4m3, where all products read them so. */
void fp8_gather(Module *m, Diag *d);

/* Runs all of passes.def and verifies the module after each pass.  If names is not NULL, runs only those passes
 * (comma-separated), in that order, from the level that m is at. */
bool pipeline_run(Module *m, const Options *o, const PipelineView *v, const char *names, Diag *d);

/* What --check-passes found: the first pass that changes what the module computes. */
typedef struct CheckReport {
	bool differs;
	int checked;               /* passes that were compared */
	const char *pass;
	const char *rule;          /* the rewrite rule that changed it; NULL = the pass has no rules */
	const char *what;          /* "output \"y\"", "gradient of \"w\"" */
	const char *op;            /* name of the first value that differs; NULL = unknown */
} CheckReport;                 /* strings live as long as the module */

/* Runs all of passes.def for every variant of the micro-batch (--accum); m becomes the variant `only`.  The view
 * shows the variant `shown`; dumps of the others are named NN-pass.first.ir and so on. */
bool pipeline_fork(Module *m, const Options *o, const PipelineView *v, Sync sync, Variant shown, Variants *out,
	Diag *d);
void pipeline_free(Variants *v);
void pipeline_forget(Restart *r);
/* A copy by way of the module's text, which shares nothing with it and may live longer. */
Module *pipeline_copy(const Module *m);
/* Plans the module again, with other options and without showing anything; false after messages.  tried: as in
 * PipelineView. */
bool pipeline_again(const Restart *r, const Options *o, Sync sync, bool tried, Variants *out, Diag *d);
/* What the rank that needs most maps, for a step of one micro-batch or, where they may be several, of any number. */
LayoutMemory pipeline_memory(const Variants *v, const Options *o);
/* Whether a program for the target of o can be made of a PLAN that was read from `file`, as it is, within
 * --memory-limit; false after messages. */
bool pipeline_accept(const Variants *v, const Options *o, Diag *d);
/* accept.c: what of that follows from inputs, sources and owners; false after messages. */
bool accept_declarations(const Module *m, Diag *d);

/* ---- shared by two or more passes ---- */

/* shard/blocks.c: repeated blocks, found by module scope ("h.0", "h.1", ...) or, where ops have no scopes, by
 * repeated subgraphs.  Deterministic, in program order.  Used by remat, units and codegen. */
typedef struct Blocks {
	int n;
	const char **name;         /* "h.0" */
	int *of_value;             /* by Value.id: the block of the forward op that defines it, -1 = none */
	bool repeated;             /* found by repetition, with made-up names */
} Blocks;
Blocks *blocks_find(Module *m, Arena *a);
const char *blocks_scope(Arena *a, const Loc *loc); /* the dotted module scope of an op, "" = unknown */

/* epilogue.c: whether the product in front of a gelu, or of a gelu_grad, is to compute it, so that pass fuse leaves it
 * apart; whether the result of a gelu is kept for backward, since a product computes the gradient. */
bool epilogue_takes(Module *m, const Op *op, const Options *o);
bool epilogue_keeps(Module *m, const Op *op, const Options *o);

/* attend.c: why our own kernels compute an attention, or the gradient of one, in a program for GPUs; NULL: cuDNN does,
 * where it takes it when the program starts.  An op does not know whether pass attend was run. */
const char *attend_own(const Op *op);

/* offload.c: whether --offload-acts puts what block number `block` of n leaves on the host. */
bool offload_has_block(const Options *o, int block, int n);

/* shard/policy_file.c: the options that the file of --wrap=file:POLICY.json says; the passes read the rest of it. */
typedef struct PolicyOption {
	const char *option;  /* "--strategy" */
	const char *text;    /* its value, "" of a flag; NULL: the flag must not be given */
	const char *at;      /* "policy.json: $.strategy" */
} PolicyOption;
typedef VEC(PolicyOption) PolicyOptions;
const char *policy_path(const Options *o); /* the file that --wrap names, or its text; NULL = none */
/* Reads the file that --wrap names; nothing where it names none.  False after messages about all that is wrong. */
bool policy_options(const Options *o, PolicyOptions *out, Arena *a, Diag *d);

/* What units of the file say of their parameters: Symbol -> dtype, for dtype_said. */
typedef struct ParamDtypes {
	PtrMap *param, *reduce;    /* in which they are gathered and computed with; in which gradients are sent */
	bool halves;               /* some are computed with in 16 bits */
} ParamDtypes;
/* Finds it by the names and the scopes that the module has, at any level from MODEL to TRAIN. */
bool policy_dtypes(Module *m, const Options *o, ParamDtypes *out, Arena *a, Diag *d);
DType dtype_said(const PtrMap *said, const Symbol *s, DType otherwise);

/* shard/policy_write.c: writes the units of a module at SHARD or later as a file that makes the same units; o: the
 * options that they were made with. */
void policy_write(FILE *f, const Module *m, const Options *o);
/* Refuses modules whose names units of a file cannot have; messages begin with `where`. */
bool policy_writable(const Module *m, const char *where, Diag *d);

/* optimizer/optimizers.c: parses --optimizer; text NULL = the default. */
bool optimizer_parse(const char *text, OptimizerChoice *out, Diag *d);
/* The optimizer of m's train block or, where m has no such block, that of the options. */
bool optimizer_of(const Module *m, const Options *o, OptimizerChoice *out, Diag *d);

/* optimizer/param_groups.c: parses each --param-group; NULL after messages. */
ParamGroup *param_groups_parse(const char *const *text, int n, const char *optimizer, Arena *a, Diag *d);
/* Puts each trained parameter into its group (Symbol.group). */
bool param_groups_assign(Symbol *const *trained, int n, const ParamGroup *group, int n_groups, Arena *a, Diag *d);

/* optimizer/optimizer.c: the dtype that backward writes into flat gradients: the one in which they are reduced, or f32
 * when micro-batches are summed in it. */
DType gradient_dtype(const Options *o, DType reduce);

/* optimizer/optimizers.c: what --clip asks for; NULL = no clipping. */
typedef struct Clip {
	double p;                  /* p of the p-norm, >= 1, may be infinite; 0 = clipping is not by norm */
	bool value;
	const char *text;          /* canonical; NULL = off */
} Clip;
bool clip_parse(const char *text, Clip *out, Arena *a, Diag *d);

/* optimizer/optimizers.c: what --loss-scale asks for; NULL = no scaling. */
typedef enum LossScaleKind { LOSS_SCALE_NONE, LOSS_SCALE_FIXED, LOSS_SCALE_DYNAMIC } LossScaleKind;
typedef struct LossScale {
	LossScaleKind kind;
	double value;              /* the scale of FIXED, the first scale of DYNAMIC */
	int64_t growth_interval;   /* of DYNAMIC: good steps before it doubles */
} LossScale;
bool loss_scale_parse(const char *text, LossScale *out, Diag *d);

/* optimizer/hook.c: parses --comm-hook=FILE.c:FUNCTION[:send=N,keep=N]. */
bool hook_parse(const char *text, Hook *out, Arena *a, Diag *d);

/* optimizer/train.c: makes m->train from the options and from what pass optimizer has parsed of them. */
typedef struct TrainParts {
	Clip clip;
	LossScale scale;
	const ParamGroup *group;
	int n_groups;
	Symbol *const *trained;
	int n_trained;
} TrainParts;
bool train_make(Module *m, const TrainParts *p, const Options *o, Diag *d);

/* grad/autodiff.c, grad/rules.c */
typedef struct GradCtx GradCtx;
/* A gradient rule.  dout[i] is the gradient of op->out[i], NULL when it has none.  The rule gives the operands
 * their gradients by grad_give. */
typedef void GradFn(GradCtx *c, Op *op, Value *const *dout);
Builder *grad_builder(GradCtx *c);                 /* emits at the end of backward, for op, in role grad */
void grad_give(GradCtx *c, Value *x, Value *dx);   /* dx: of x's shape, or of one that x was broadcast to */
bool grad_wanted(const GradCtx *c, const Value *x); /* false: x depends on no trainable parameter */
/* Differentiates: appends to SEC_BACKWARD the gradients of `loss` (seeded with `seed`) and returns, by Value.id,
 * the gradient of each forward value (NULL = none).  Tests may ask for the gradients of any values by `wanted`. */
Value **autodiff_build(Module *m, Value *loss, Value *seed, const bool *wanted, Diag *d);
/* The same of n values, each with a seed that stands in SEC_FORWARD or SEC_BACKWARD. */
Value **autodiff_from(Module *m, int n, Value *const *of, Value *const *seed, const bool *wanted, Diag *d);
Diag *grad_diag(const GradCtx *c);
/* Appends to the forward section dy/dx[i] of a y of one element; dx[i] is NULL where y does not depend on x[i].  False
 * where an op has no gradient, which is reported, or where *lacks, one of those made, is legal in backward only. */
bool autodiff_inside(Module *m, Value *y, int n, Value *const *x, Value **dx, const Op **lacks, Diag *d);

/* parts.c: values that lie side by side in rows of a wide tensor, without copies.  Orders: those of ir_number. */
typedef struct Parts {
	Value *const *at;
	int n, axis;               /* all have one rank; their dims from axis on are columns of a row */
} Parts;
/* Why the readers of these parts need copies, as a sentence without its end; NULL: they do not. */
const char *parts_unreadable(Module *m, const Parts *p);
/* Makes the readers of parts, for which parts_unreadable is NULL, read columns of `wide`, made in front of `near` or
 * later; what made the parts is left to the caller to remove. */
void parts_show(Module *m, Value *wide, const Parts *p, Op *near);
/* Whether one op makes these parts so that it may write them into wide rows. */
bool parts_joinable(const Parts *p);
/* The wide tensor, of rank axis + 1, into which that op writes them, made in front of the last rope that they pass
 * through.  The caller gives their readers that tensor, and drops each part then. */
Value *parts_join(Module *m, const Parts *p);
void parts_drop(Module *m, Value *part);

/* memory/buffers.c: which values share memory, and for how long.  A buffer holds a value, its views, and the values
 * that overwrite it in place.  Inputs, states, parameters and collectives have memory of their own (of_value = -1).
 * May be called at any level: schedule asks for the peak of an order, memory assigns the places. */
typedef struct Buffer {
	Value *value;              /* the first value that lives in the buffer */
	int64_t bytes;             /* a multiple of 64 */
	int first, last;           /* positions; it is live at both */
	Place place;               /* REGION_GRAD: a parameter's gradient; of others memory_pack sets the offset in
	                              the arena of activations or, REGION_HOST, in that of the host */
} Buffer;
typedef struct Buffers {
	Buffer *at;
	int n;
	int *of_value;             /* by Value.id */
	Op **op;                   /* by position */
	int n_ops;
} Buffers;
/* Finds the buffers of one program: forward, backward and update, or else eval. */
Buffers *buffers_find(Module *m, bool eval, Arena *a);
/* live[p]: bytes of the activation arena that are live at position p; returns the largest. */
int64_t buffers_live(const Buffers *b, int64_t *live);
Value *value_root(Value *v);                     /* the value whose bytes v shows, through views */
int inplace_operand(const Op *op, int result, int from); /* next operand, from `from` on, that may be overwritten */
/* Whether result y may lie where operand x does: of one type, both whole or both columns, so that each element is read
 * before it is overwritten. */
bool inplace_agrees(Value *x, Value *y);

/* schedule/schedule.c: puts zero_gaps of each flat gradient in front of the first op that writes into it.  Call it when
 * collects have moved: a value that was read behind its collect, and is no longer, lives in the flat gradient. */
void schedule_gaps(Module *m, Arena *a);
/* schedule/reorder.c: moves ops within their sections so that fewer bytes are live at the peak. */
void schedule_reorder(Module *m, bool eval, Arena *a);

/* memory/pack.c: sets the offsets so that no two blocks that are live at once overlap.  Returns the end of the last;
 * what ends within `enough` bytes is not improved.
 * above: by position, bytes that may lie above all blocks that are live then or later; they grow from one position to
 * the next.  The end with them shall be low, too, as much as the one without; NULL: there are none. */
typedef struct MemoryBlock { int64_t bytes, offset; int first, last; } MemoryBlock;
int64_t memory_pack(MemoryBlock *block, int n, int n_positions, const int64_t *above, int64_t enough, Arena *a);

/* No arena of a rank and no tensor is larger than this; pass memory refuses a larger one. */
#define MEMORY_SPACE_MAX (INT64_C(1) << 44)

/* memory/check.c: executes a PLAN on shadow memory, in which every byte knows the value that it holds.  Returns the
 * first violation as a sentence, and its op unless blamed is NULL; NULL when every op reads the values that it
 * should. */
const char *memory_check(Module *m, Arena *a, const Op **blamed);
/* The part of it that checks a step of a single rank, whose flat gradients lie where the layout says. */
const char *memory_check_alone(Module *m, const LayoutModel *l, Arena *a, const Op **blamed);

/* memory/memory.c: for a PLAN, the op at which most activation bytes are live, and the largest of its live values. */
enum { MEMORY_LARGEST = 5 };
typedef struct MemoryPeak {
	const Op *op;              /* NULL: no value needs memory */
	int64_t bytes;             /* live at op */
	const Value *largest[MEMORY_LARGEST];
	int64_t largest_bytes[MEMORY_LARGEST];
	int n;
} MemoryPeak;
MemoryPeak memory_peak(Module *m, Arena *a);
/* The bytes that activations and gradients that may lie among them need at least, in a step of one micro-batch,
 * wherever they lie and whatever units they are of.  fullest: set to the op at which they do, if it is any. */
int64_t memory_least(Module *m, const LayoutModel *l, const LayoutRank *who, const Op **fullest, Arena *a);
/* Checks a PLAN that was read from `file`: every value must have the place that pass memory would give it, and no
 * value may be overwritten while it is still needed. */
bool memory_accept(Module *m, Diag *d);
/* Whether what a rank maps for a PLAN is within --memory-limit and --host-limit; false after messages, which say where
 * memory peaks. */
bool memory_fits(Module *m, const Options *o, Diag *d);
/* Describes a module at SHARD (without slots yet) or at PLAN for base/layout.h. */
LayoutModel memory_layout(const Module *m, Arena *a);
/* Adds to the description what the options say: hosts, the snapshot and, for GPUs, the size of the tables
 * and that ranks communicate by nccl. */
void memory_complete(LayoutModel *l, const Module *m, const Options *o);
/* The same, with what --comm says of CUDA programs; sets *who to the rank that needs most memory. */
void memory_describe(LayoutModel *l, LayoutRank *who, const Module *m, const Options *o);
/* Describes a step of two micro-batches, or of more (`more`).  The evaluation is that of variant `only`. */
LayoutModel memory_join(const Variants *v, bool more, Arena *a);
/* Describes steps of `micro` micro-batches (1, 2, or 3 for more) of a program of several sizes: they use the same
 * memory one after the other. */
LayoutModel memory_sizes(const Sizes *s, int micro, Arena *a);
/* memory/sizes.c: puts the plans of several sizes, each made alone, into one memory; false after messages. */
bool sizes_join(Sizes *s, const Options *o, Diag *d);
/* The rank that the printed plan describes: o->world ranks, in groups of o->shard_size. */
LayoutRank memory_rank(const Options *o);

/* memory/memory.c: the value of PlanCollective.message. */
int64_t plan_message(const Module *m, const Op *op);
bool in_state_arena(const Symbol *s); /* whether it lies with buffers, whole on every rank */
/* schedule/file.c writes the schedule of a PLAN as text; schedule/edit.c applies an edited one to the module. */
void schedule_write(FILE *f, Module *m, const Options *o);
/* Moves the collectives of m, at PLAN, to where the file says.  Refuses a wrong edit and names the file's line and
 * the rule that it breaks; the module must not be used after that. */
bool schedule_apply(Module *m, const char *path, Diag *d);

/* schedule/prefetch.c: parses --backward-prefetch; messages begin with `where`. */
enum { PREFETCH_MAX = 1000000 };   /* the most units that are gathered ahead, and the most slots */
typedef struct BackwardPrefetch {
	bool none, post;           /* neither: `ahead` units before a unit's gradients */
	int64_t ahead;
} BackwardPrefetch;
bool prefetch_backward(const char *text, const char *where, BackwardPrefetch *out, Arena *a, Diag *d);

/* schedule/events.c: sets numbers and streams of collectives, and adds an event where their order needs one that no
 * other event implies.  Old events are removed.  Call it when everything but the events is in its final order. */
void schedule_events(Module *m);
/* Gives each flat gradient a slot that is free from its zero_gaps to the wait of its reduce, or to its unit's update if
 * that stands in backward. */
void schedule_grad_slots(Module *m);

/* schedule/updates.c: puts the updates, and the step's scalars, to where --update=backward wants them; refuses a module
 * in which they cannot stand there. */
void schedule_updates(Module *m);
bool updates_can_move(const Module *m, Diag *d);

/* optimizer/optimizer.c: what keeps units from being updated in backward: options that want the norm of all gradients,
 * or gradients that wait.  Returns how many there are. */
enum { UPDATE_BARRIERS = 5 };
typedef struct UpdateBarrier { const char *option, *why; } UpdateBarrier;
int update_barriers(const Options *o, UpdateBarrier out[UPDATE_BARRIERS]);

/* expand.c: the result of a batch norm with the given mean and variance, made of elementwise ops. */
Value *expand_normalize(Builder *b, const Op *batch_norm, Value *mean, Value *var);

/* patterns/data.c: the contents of a constant or a buffer in the model's file; false: unknown, or too big to read. */
bool data_contents(const Symbol *s, Arena *a, EvalTensor *t);

/* rows.c: the value of an option auto|N|off: 0, N or -1; false after a message. */
bool rows_asked(const char *option, const char *text, int64_t *asked, Diag *d);
/* Rows of the fewest blocks, all but the last of them equal, that have at most `bytes`, or `least` rows if those are
 * more; 0: one block is enough.  row_bytes > 0. */
int64_t rows_of_block(int64_t rows, int64_t row_bytes, int64_t bytes, int64_t least);

/* bodies.c: runs a pass on m and, where it has anything to do there, on the bodies of its loops; sets their level. */
bool pass_apply(const PassInfo *p, Module *m, const Options *o, Diag *d);

/* memory/loop.c: the memory of a loop's own values, at the end of its workspace. */
typedef struct LoopPlan {
	int64_t bytes;
	int64_t *other;            /* by state: where its second copy begins; */
	bool *only;                /* it has none: what is yielded overwrites it where it is last read */
	int64_t *slice;            /* by operand: where its slice is copied to, unless loop_is_direct */
} LoopPlan;
/* Gives the values of the body places: @act, in that memory; @input+i, where a step sees operand i; @state+i, where it
 * leaves result i. */
LoopPlan loop_plan(const Op *loop, Arena *a);
/* Whether steps read operand i, or write result i, where it lies: its slices begin at multiples of 64 bytes. */
bool loop_is_direct(const Op *loop, bool operand, int i);
int64_t loop_workspace(const Op *loop, const Options *o);

/* memory/workspace.c: scratch bytes of an op's kernel by the formulas of kernels/kernels.def. */
int64_t op_workspace(const Op *op, const Options *o);

#endif
