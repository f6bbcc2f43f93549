/* passes/passes.h: Module -> Module.  One file per pass, one exported function each.
 *
 * A pass returns false after reporting to d what the *user* must change; a broken invariant is ice().
 * No pass knows the rank or, but for the printed peak, the world size. */
#ifndef SHARDC_PASSES_H
#define SHARDC_PASSES_H

#include "ir/ir.h"

/* What the user chose; one field per compile option (DESIGN 5).  Filled by main.c, NULL = default. */
typedef struct PassOptions {
	/* graph */
	const char *loss;          /* "cross_entropy:axis=-1,..." */
	const char *loss_norm;     /* "global" | "rank" */
	const char *optimizer;     /* "adamw", "sgd:momentum,nesterov" */
	const char *freeze;        /* regex over parameter names */
	const char *bn;            /* "train" | "frozen" */
	bool bn_biased;            /* running variance as ONNX defines it, not as PyTorch */
	bool dropout;
	bool infer;                /* no loss, no training: only section eval, from the forward */
	bool grad_norm;            /* compute the norm of gradients */
	bool clip;                 /* leave room for clipping by norm */
	bool no_decay_1d;
	/* sharding */
	const char *wrap;          /* "block" | "none" */
	const char *strategy;      /* "full_shard" */
	int64_t world;
	/* memory */
	const char *remat;         /* "none" | "block" */
	int64_t memory_limit;      /* bytes, 0 = none */
	int64_t workspace;         /* bytes, cap of a kernel's scratch */
	/* target */
	int vector_bytes;          /* of --arch: 64 (AVX-512), 32 (AVX2) */
	bool bf16_units;
	int threads;
} PassOptions;

typedef bool PassFn(Module *m, const PassOptions *o, Diag *d);
#define PASS(name, ...) PassFn pass_##name;
#include "passes/passes.def"

typedef struct PassInfo { const char *name; PassFn *run; Level from, to; const char *ensures; } PassInfo;
extern const PassInfo pass_info[];
extern const int pass_count;

/* What pipeline_run shows on the way. */
typedef struct PipelineView {
	const char *stop_after;    /* pass name or NULL */
	const char *dump_dir;      /* numbered files NN-pass.ir */
	const char *print_after;   /* comma-separated pass names */
	bool print_changed;
	FILE *out;
} PipelineView;

/* Runs all of passes.def, verifying after each pass.  names != NULL: just those (comma-separated), in
 * that order, from whatever level m is at. */
bool pipeline_run(Module *m, const PassOptions *o, const PipelineView *v, const char *names, Diag *d);

/* ---- shared by two or more passes ---- */

/* blocks.c: repeated blocks, found by module scope ("h.0", "h.1", ...) or, where scopes say nothing, by
 * repeated subgraph.  Deterministic; program order.  Used by remat, units and codegen. */
typedef struct Blocks {
	int n;
	const char **name;         /* "h.0" */
	int *of_value;             /* by Value.id: the block of the forward op that defines it, -1 = none */
} Blocks;
Blocks *blocks_find(Module *m, Arena *a);

/* autodiff.c, grad_rules.c */
typedef struct GradCtx GradCtx;
/* dout[i] is the gradient of op->out[i], NULL when it has none.  Adds to the operands by grad_add. */
typedef void GradFn(GradCtx *c, Op *op, Value *const *dout);
Builder *grad_builder(GradCtx *c);                 /* at the end of backward, loc with role grad */
void grad_add(GradCtx *c, Value *x, Value *dx);    /* dx has x's shape, or what was broadcast from it */
bool grad_wanted(const GradCtx *c, const Value *x); /* false: no trainable parameter lies behind x */
/* Differentiates: appends to SEC_BACKWARD the gradients of `loss` (seeded with `seed`) and returns in
 * grad[value id] what each forward value got (NULL = none).  For tests: any wanted values. */
Value **autodiff_build(Module *m, Value *loss, Value *seed, const bool *wanted, Diag *d);

/* workspace.c: scratch bytes of an op's kernel by the formulas of kernels/kernels.def. */
int64_t op_workspace(const Op *op, const PassOptions *o);

#endif
