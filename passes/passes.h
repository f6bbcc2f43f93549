/* passes/passes.h: Module -> Module.  One file per pass, one exported function each.
 *
 * A pass returns false after reporting to d what the *user* must change; a broken invariant is ice().
 * No pass knows the rank or, but for the printed peak, the world size. */
#ifndef SHARDC_PASSES_H
#define SHARDC_PASSES_H

#include "base/groups.h"
#include "base/optimizer.h"
#include "base/options.h"
#include "base/plan.h"
#include "base/pattern.h"
#include "ir/ir.h"

/* Whether an expression matches a parameter: by any of its names, where modules share it. */
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
int pass_index(const char *name);                          /* in pass_info; -1: there is none */
bool pass_is_among(const char *names, const char *name);   /* names: comma-separated */

/* What pipeline_run shows on the way. */
typedef struct PipelineView {
	const char *stop_after;    /* pass name or NULL */
	const char *dump_dir;      /* numbered files NN-pass.ir */
	const char *print_after;   /* comma-separated pass names */
	bool print_changed;
	struct CheckReport *check; /* every pass is checked, the first difference told here; NULL = no */
	FILE *out;
} PipelineView;

/* Runs all of passes.def, verifying after each pass.  names != NULL: just those (comma-separated), in
 * that order, from whatever level m is at. */
bool pipeline_run(Module *m, const Options *o, const PipelineView *v, const char *names, Diag *d);

/* What --check-passes found: the first pass behind which the module computes something else. */
typedef struct CheckReport {
	bool differs;
	int checked;               /* passes that were compared */
	const char *pass;
	const char *rule;          /* the rewrite rule whose application did it; NULL = the pass has none */
	const char *what;          /* "output \"y\"", "gradient of \"w\"" */
	const char *op;            /* name of the value where it begins; NULL = unknown */
} CheckReport;                 /* strings live as long as the module */

/* All of passes.def for each of them; m becomes `only`.  The view shows `shown`; files of the others are named
 * NN-pass.first.ir and so on. */
bool pipeline_fork(Module *m, const Options *o, const PipelineView *v, Sync sync, Variant shown, Variants *out,
	Diag *d);
void pipeline_free(Variants *v);
/* Of a PLAN that was read from `file`: whether a program can be made of it as it is.  cuda: of which target. */
bool pipeline_accept(const Variants *v, const char *file, bool cuda, Diag *d);

/* ---- shared by two or more passes ---- */

/* shard/blocks.c: repeated blocks, found by module scope ("h.0", "h.1", ...) or, where scopes say nothing, by
 * repeated subgraph.  Deterministic; program order.  Used by remat, units and codegen. */
typedef struct Blocks {
	int n;
	const char **name;         /* "h.0" */
	int *of_value;             /* by Value.id: the block of the forward op that defines it, -1 = none */
	bool repeated;             /* found by repetition: the names are made up */
} Blocks;
Blocks *blocks_find(Module *m, Arena *a);
const char *blocks_scope(Arena *a, const Loc *loc); /* the dotted module scope of an op, "" = unknown */

/* optimizer/optimizers.c: the meaning of --optimizer; NULL = the default. */
bool optimizer_parse(const char *text, OptimizerChoice *out, Diag *d);
/* That of the train block; where there is none, of the options. */
bool optimizer_of(const Module *m, const Options *o, OptimizerChoice *out, Diag *d);

/* optimizer/param_groups.c: the groups that --param-group asks for; NULL after messages. */
ParamGroup *param_groups_parse(const char *const *text, int n, const char *optimizer, Arena *a, Diag *d);
/* Puts each of the parameters that are trained into its group: Symbol.group. */
bool param_groups_assign(Symbol *const *trained, int n, const ParamGroup *group, int n_groups, Arena *a, Diag *d);

/* optimizer/optimizer.c: what backward writes into flat gradients: --reduce-dtype, or f32 to sum micro-batches in. */
DType gradient_dtype(const Options *o);

/* optimizer/optimizers.c: the meaning of --clip; NULL = off. */
typedef struct Clip {
	double p;                  /* of the norm, >= 1, may be infinite; 0 = not by norm */
	bool value;
	const char *text;          /* canonical; NULL = off */
} Clip;
bool clip_parse(const char *text, Clip *out, Arena *a, Diag *d);

/* optimizer/optimizers.c: the meaning of --loss-scale; NULL = none. */
typedef enum LossScaleKind { LOSS_SCALE_NONE, LOSS_SCALE_FIXED, LOSS_SCALE_DYNAMIC } LossScaleKind;
typedef struct LossScale {
	LossScaleKind kind;
	double value;              /* of FIXED, and what DYNAMIC begins with */
	int64_t growth_interval;   /* of DYNAMIC: good steps before it doubles */
} LossScale;
bool loss_scale_parse(const char *text, LossScale *out, Diag *d);

/* optimizer/hook.c: the meaning of --comm-hook=FILE.c:FUNCTION[:send=N,keep=N]. */
bool hook_parse(const char *text, Hook *out, Arena *a, Diag *d);

/* optimizer/train.c: makes m->train of the options and of what pass optimizer has read of them. */
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
/* dout[i] is the gradient of op->out[i], NULL when it has none.  Adds to the operands by grad_give. */
typedef void GradFn(GradCtx *c, Op *op, Value *const *dout);
Builder *grad_builder(GradCtx *c);                 /* at the end of backward, loc with role grad */
void grad_give(GradCtx *c, Value *x, Value *dx);   /* dx has x's shape, or what was broadcast from it */
bool grad_wanted(const GradCtx *c, const Value *x); /* false: no trainable parameter lies behind x */
/* Differentiates: appends to SEC_BACKWARD the gradients of `loss` (seeded with `seed`) and returns in
 * grad[value id] what each forward value got (NULL = none).  For tests: any wanted values. */
Value **autodiff_build(Module *m, Value *loss, Value *seed, const bool *wanted, Diag *d);

/* memory/buffers.c: which values share memory and for how long.  A buffer holds a value, its views, and what
 * overwrites it in place.  Inputs, states, parameters and collectives have places of their own (of_value
 * = -1).  At any level: schedule asks it for the peak of an order, memory places what it says. */
typedef struct Buffer {
	Value *value;              /* the first that lives in it */
	int64_t bytes;             /* a multiple of 64 */
	int first, last;           /* positions; it is live at both */
	Place place;               /* REGION_GRAD: of a parameter's gradient; REGION_ACT: offset by memory_pack */
} Buffer;
typedef struct Buffers {
	Buffer *at;
	int n;
	int *of_value;             /* by Value.id */
	Op **op;                   /* by position */
	int n_ops;
} Buffers;
/* Of one program: forward, backward and update, or eval. */
Buffers *buffers_find(Module *m, bool eval, Arena *a);
/* live[p]: bytes of the activation arena that are live at position p; returns the largest. */
int64_t buffers_live(const Buffers *b, int64_t *live);
Value *value_root(Value *v);                     /* through views: whose bytes these are */
int inplace_operand(const Op *op, int result, int from); /* next operand that result may overwrite, -1 = none */

/* schedule/reorder.c: moves ops within their sections so that fewer bytes are live at the peak. */
void schedule_reorder(Module *m, bool eval, Arena *a);

/* memory/pack.c: offsets, so that no two blocks that are live at once overlap; returns their end. */
typedef struct MemoryBlock { int64_t bytes, offset; int first, last; } MemoryBlock;
int64_t memory_pack(MemoryBlock *block, int n, int n_positions, Arena *a);

/* No arena of a rank and no tensor is larger; pass memory refuses what is. */
#define MEMORY_SPACE_MAX (INT64_C(1) << 44)

/* memory/check.c: executes a PLAN on shadow memory, where every byte knows the value that it holds.
 * Returns the first violation as a sentence, NULL when every op reads what it should. */
const char *memory_check(Module *m, Arena *a);

/* memory/memory.c: of a PLAN, the op where most activation bytes are live, and the largest of them. */
enum { MEMORY_LARGEST = 5 };
typedef struct MemoryPeak {
	const Op *op;              /* NULL: nothing needs memory */
	int64_t bytes;             /* live at op */
	const Value *largest[MEMORY_LARGEST];
	int64_t largest_bytes[MEMORY_LARGEST];
	int n;
} MemoryPeak;
MemoryPeak memory_peak(Module *m, Arena *a);
/* Of a PLAN that was read from `file`: whether every value has a place as pass memory gives it, and none is overwritten
 * while it is wanted. */
bool memory_accept(Module *m, const char *file, Diag *d);
/* What base/layout.h wants to know of a module at SHARD (no slots yet) or PLAN. */
LayoutModel memory_layout(const Module *m, Arena *a);
/* Adds what the options say of a plan: hosts, offload, the snapshot; of GPUs what tables hold, and that ranks talk by
 * nccl. */
void memory_complete(LayoutModel *l, const Module *m, const Options *o);
/* Of a step of two micro-batches, or of more; the evaluation is that of `only`. */
LayoutModel memory_join(const Variants *v, bool more, Arena *a);
/* Who the plan is printed for: o->world ranks, groups of o->shard_size. */
LayoutRank memory_rank(const Options *o);

/* memory/memory.c: PlanCollective.message. */
int64_t plan_message(const Module *m, const Op *op);
/* schedule/file.c, schedule/edit.c: the schedule of a PLAN as text, and an edited one back into the module. */
void schedule_write(FILE *f, Module *m, const Options *o);
/* Moves the collectives of m, at PLAN, to where the file says.  Refuses an edit with the file's line and the
 * rule that it breaks; the module is not used after that. */
bool schedule_apply(Module *m, const char *path, Diag *d);

/* schedule/events.c: numbers and streams of collectives, and events where their order needs one that no other implies.
 * Old events are forgotten.  Run it when everything but the events stands in its final order. */
void schedule_events(Module *m);
/* Slots of flat gradients: the smallest that is free from zero_gaps to the wait of the reduce. */
void schedule_grad_slots(Module *m);

/* expand.c: the result of a batch norm with this mean and variance, as elementwise ops. */
Value *expand_normalize(Builder *b, const Op *batch_norm, Value *mean, Value *var);

/* patterns/data.c: what a constant or a buffer holds, from the model's file; false: unknown, or too big to ask. */
bool data_contents(const Symbol *s, Arena *a, EvalTensor *t);

/* memory/workspace.c: scratch bytes of an op's kernel by the formulas of kernels/kernels.def. */
int64_t op_workspace(const Op *op, const Options *o);

#endif
