/* runtime/shardrt.h: the interface between an emitted training program and the runtime.
 *
 * The emitted step.c defines one `const RtModel model` and main(), which calls rt_main.  Its functions are sequences of
 * calls on a few base pointers, and the sequence does not depend on data; the runtime owns memory, data, communication,
 * files and time.  No function here allocates memory once the first step has begun: every size is known before. */
#ifndef SHARDC_SHARDRT_H
#define SHARDC_SHARDRT_H

#include "base/base.h"
#include "base/collectives.h"
#include "base/groups.h"
#include "base/layout.h"
#include "base/sizes.h"
#include "kernels/kernels.h"
#include "runtime/hook.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Rt Rt;

typedef enum { RT_INPUT, RT_PARAM, RT_BUFFER, RT_DATA, RT_STATE } RtTensorKind;
typedef enum { RT_INIT_NONE, RT_INIT_UNIFORM, RT_INIT_NORMAL } RtInit;

/* A tensor that outlives a step, or an input.  Row-major. */
typedef struct RtTensor {
	RtTensorKind kind;
	const char *name;      /* the framework's */
	DType dtype;           /* of a parameter: that of its files; in memory it has the dtype of its flat */
	int rank;
	int64_t dim[8];
	/* where its bytes are */
	int unit, flat;        /* parameters and sharded states: index of the unit in model->layout, else -1 */
	int64_t offset;        /* elements in the flat; bytes in the input or state arena */
	/* where its initial contents come from; file NULL: `fill`, or random numbers by `init` */
	const char *file;
	int64_t file_offset, file_bytes;
	DType file_dtype;
	int file_rank;
	int64_t file_dim[8];
	int perm[8];           /* dim[i] = file_dim[perm[i]] */
	double fill;
	RtInit init;           /* random: uniform in (-scale, scale), or normal with the standard deviation `scale` */
	double scale;
	int64_t seed;
	bool trainable;
	bool batched;          /* inputs: the first axis counts samples */
	double pad;            /* inputs: what short samples are filled up with */
	bool pad_free;         /* pad + 1 would do, too */
	bool no_decay;         /* parameters: weight decay off */
	bool narrowed;         /* buffers: files hold the dtype `saved`, memory holds `dtype` (--buffer-dtype) */
	DType saved;
	int group;             /* parameters: which of RtModel.groups, from 1; 0 = none */
} RtTensor;

/* A file with initial weights.  The start of a run checks its size and filehash_sampled (base/filehash.h). */
typedef struct RtFile { const char *path; int64_t bytes; uint64_t hash; } RtFile;

/* A collective of the step or of an evaluation.  Its number is its index + 1: all ranks issue all collectives in this
 * order.  Collectives of one stream run one after the other, those of different streams concurrently. */
typedef struct RtCollective {
	RtCollectiveKind kind;
	RtStream stream;
	int unit;              /* -1 for blocking collectives */
	int slot;              /* RT_ALL_GATHER: slot of the ring, -1 = the unit's own region */
	int64_t message;       /* statistics and buffers: bytes that each rank offers */
	bool add;              /* reductions: the result is added to the sum kept from the step's earlier micro-batches */
	int after;             /* number of the rt_record after which it starts; 0: it has none of its own */
	bool by_chance;        /* RT_ALL_GATHER: its casts from f32 to 16 bits round stochastically */
} RtCollective;

/* A result that --check-nan looks at. from: numbers of the checks of the op's operands; -1: an infinity is expected
 * here, as from a mask. */
typedef struct RtCheck {
	const char *what; DType dtype; int rank; int64_t dim[8]; const int *from; int n_from;
} RtCheck;

/* An op of a program for which the code has a mark (rt_op).  name, node: as JSON has them between quotes. */
typedef enum RtOpKind { RT_COMPUTES, RT_ISSUES, RT_WAITS } RtOpKind; /* issues: a collective or a copy between GPU and
                                                                        host; waits: for one */
typedef enum RtSection { RT_FORWARD, RT_BACKWARD, RT_UPDATE, RT_EVAL } RtSection;
typedef struct RtOp {
	int number;            /* its position among all ops of the program, from 0 */
	RtSection section;
	RtOpKind kind;
	int unit;              /* -1: none */
	const char *name;      /* "matmul %qkv"; of a collective and of the wait for it "all_gather @h.1" */
	const char *node;      /* from which it was made; "": none */
	int kernel;            /* number of its row in RtModel.kernels, from 1; 0: none */
	bool changes;          /* it writes what it reads: another call would have other operands */
} RtOp;
/* What ops of one kind, shape and dtype compute and move, each time, on one rank: GPUs.  text: kind, operands and
 * results, as JSON has it between quotes; flops, dtype: of products. */
typedef struct RtKernel { const char *text; double flops, bytes; DType dtype; } RtKernel;
typedef struct RtOps { const RtOp *rows; int n; } RtOps; /* in the order in which the program passes the marks */

typedef struct RtLoss {
	bool global;           /* --loss-norm */
	double n;              /* the static element count n of backward's seed 1/n */
	bool adds;             /* the loss is the sum over ranks and micro-batches, not their mean */
	bool accuracy;         /* eval reports accuracy */
	const char *whole;     /* why an evaluation can only take whole batches; NULL: it can weigh each sample by itself */
	bool shift;            /* the loss shifts the labels itself (shift=1), so a token stream gives labels that equal the
	                        * inputs */
} RtLoss;

/* --loss-scale */
typedef struct RtLossScale {
	double init;           /* scale of the first step; 0: gradients are not scaled */
	bool dynamic;          /* halved when numbers overflow, doubled after `interval` steps without an overflow */
	int64_t interval;
} RtLossScale;

/* The variants of a micro-batch in a step that has several: the first, one in the middle, the last. */
enum { RT_FIRST, RT_MIDDLE, RT_LAST, RT_PROGRAMS };
typedef struct RtProgram {
	void (*forward)(Rt *rt);
	void (*backward)(Rt *rt);
	void (*update)(Rt *rt); /* first and middle variant: empty, or only the gradients that are computed late */
	const RtCollective *collectives; int n;
	RtOps ops;
} RtProgram;
/* One of the sizes of a program with several: what differs from the largest, which is that of RtModel. */
typedef struct RtCollectives { const RtCollective *rows; int n; } RtCollectives;
typedef struct RtSize {
	const char *name;            /* "seq=128" */
	const int64_t (*dims)[8];    /* of each input, in the order of RtModel.tensors */
	double n;                    /* RtLoss.n */
	RtCollectives step, evaluation;
	const RtProgram *programs;
	RtProgram alone;             /* without its collectives, which are `step` */
	void (*eval)(Rt *rt);
	RtOps eval_ops;
} RtSize;
/* --comm-hook: a function of the user reduces gradients. */
typedef struct RtHook {
	const char *name, *function; /* "FILE.c:FUNCTION", "FUNCTION" */
	HookReduce *reduce;
	HookInit *init;        /* NULL: the hook has none */
	HookExit *exit;
} RtHook;
/* offset: bytes in act; or region state/input when input >= 0 (tensor index) */
typedef struct RtOutput {
	const char *name; DType dtype; int rank; int64_t dim[8]; int64_t offset; int input;
} RtOutput;

/* A scale of weights that are gathered in 8 bits: of the elements of a flat from `begin` to where the next row of this
 * flat begins, and, in the last row of it, to the end.  offset: bytes in state. */
typedef struct RtScale { int unit, flat; int64_t begin, offset; } RtScale;

typedef struct RtModel {
	const char *name;
	const char *options;   /* compile options in canonical form */
	const char *versions;  /* compiler, oneDNN, ISA: recorded in checkpoints */
	const char *const *need_cpu; /* names for __builtin_cpu_supports, NULL-terminated */
	const char *need_cuda; /* CUDA programs, instead of need_cpu: the GPU architecture that the code was compiled for:
	                        * "sm_90a" */
	bool tf32;             /* CUDA: f32 products round their operands to TF32 (--matmul-precision) */
	const RtTensor *tensors; int n_tensors;
	const char *const *unit_names;
	const char *const (*unit_uses)[2]; /* where a step first and last reads each unit, for --print-plan; may be NULL */
	LayoutModel layout;    /* units, slots, bytes of the arenas; the runtime fills n_states */
	const RtCollective *step; int n_step;         /* collectives of forward, backward and update */
	const RtCollective *evaluation; int n_evaluation;
	const RtProgram *programs;    /* [RT_PROGRAMS]; NULL: a step is one micro-batch */
	const LayoutModel *layouts;   /* replace `layout` in steps of two micro-batches, and in steps of more */
	const RtSize *sizes; int n_sizes; /* --bind DIM=N,N,..: from the smallest to the largest; NULL: one */
	int64_t world;         /* the only number of ranks that this program runs at; 0 = any */
	const RtFile *files; int n_files;
	int64_t batch;         /* B */
	const char *optimizer; /* "adamw": the row of base/optimizers.def, with its variants: names the states and the
	                        * update kernel */
	const RtCheck *checks; int n_checks;    /* --check-nan */
	const RtScale *scales; int n_scales;    /* by unit, flat and begin; LAYOUT_SCALE_BYTES apart, the first one first */
	const ParamGroup *groups; int n_groups; /* --param-group */
	RtLoss loss;
	RtLossScale loss_scale;
	bool random;           /* a step or an evaluation draws random numbers (--seed) */
	bool by_chance;        /* working copies are rounded from masters stochastically (--stochastic-rounding) */
	bool grad_norm;        /* the update computes the p-norm of gradients */
	double norm_p;         /* 0 = 2; may be INFINITY */
	bool clip, clip_value; /* compiled with --clip=P, --clip=value */
	bool first_buffers;    /* evaluations and checkpoints take rank 0's float buffers, not the average over ranks */
	void (*setup)(Rt *rt); /* creates kernel primitives; called once, before the first step */
	void (*forward)(Rt *rt);
	void (*backward)(Rt *rt);
	void (*update)(Rt *rt);
	void (*eval)(Rt *rt);  /* NULL when the program cannot evaluate */
	int n_prims;           /* length of rt->prim */
	int n_copies;          /* CUDA: copies to and from memory of the host, at most, of a program */
	RtOps step_ops, eval_ops;
	uint64_t hash;         /* of the program: traces of another one have another number */
	const RtKernel *kernels; int n_kernels;
	const RtHook *hook;    /* NULL: gradients are reduced by the runtime */
	/* forward-only programs (shardc run): outputs left in the activation arena after eval */
	const RtOutput *outputs; int n_outputs;
} RtModel;

/* What emitted code sees.  All base pointers are 64-byte aligned and constant for the run. */
struct Rt {
	const RtModel *model;
	char *act, *input, *state, *work;
	char *host;            /* CUDA: memory of the host for values that a step leaves there; NULL: none */
	void *(*param)[4];     /* [unit][flat]: whole parameters as kernels read them: where the last rt_wait gathered them,
	                        * or where they rest */
	void *(*grad)[4];      /* flat gradients */
	void *(*shard)[4];     /* parameters at rest: this rank's shards, or whole units */
	void *(*grad_shard)[4]; /* what the update reads: the elements layout_range of the flat; NULL: this rank does not
	                         * update it */
	KPrim **prim;          /* kernel primitives made by setup */
	StepScalars *scalars;  /* read by kernels; written by the functions below and by the session */
	double loss_sum, loss_weight, correct, counted; /* sums of this rank since the step began */
	struct Trace *trace;   /* NULL: the code need not call rt_op */
	struct RtPrivate *p;
};

/* The next op of the program begins: what is computed from here to the next mark belongs to it. */
void rt_op(Rt *rt);

int rt_main(int argc, char **argv, const RtModel *model);
/* --emit=lib: step.c defines this function instead of main; the library (runtime/model.h) gets its model from it. */
const RtModel *rt_library_model(void);

/* Called from emitted code, in this order in a step. */
void rt_report_loss(Rt *rt, const float *sum, const float *weight, bool mean);
/* logits (rows, c), labels (rows): counts the correct predictions as k_accuracy does. */
void rt_report_accuracy(Rt *rt, const void *logits, KDType type, const int64_t *labels, int64_t rows, int64_t c,
	int64_t ignore_index);
/* seq: the collective's number.  A call that issues a collective returns at once; rt_wait returns when the result is
 * there and no peer still reads this rank's source. */
#define ISSUED(call) void rt_##call(Rt *rt, int seq);
#define BLOCKING(call, ...) void rt_##call(__VA_ARGS__);
#include "base/collectives.def"
void rt_wait(Rt *rt, int seq);
/* On CUDA only, where calls return before their work is done. rt_record: gives the point that the compute stream has
 * reached the number `event` of this program; a collective with after = event starts after this point. rt_enter and
 * rt_leave enclose the work of one function, for profilers. */
void rt_record(Rt *rt, int event);
void rt_enter(Rt *rt, const char *name);
void rt_leave(Rt *rt);
/* On CUDA only: copies to memory of the host and back, which run beside what computes.  copy: its number in this
 * program, from 1.  It starts after all that was called before; what is called behind rt_copied starts after its
 * end. */
void rt_offload(Rt *rt, void *to, const void *from, int64_t bytes, int copy);
void rt_reload(Rt *rt, void *to, const void *from, int64_t bytes, int copy);
void rt_copied(Rt *rt, int copy);
void rt_reshard(Rt *rt, int unit);               /* the gathered values are no longer needed */
/* --check-nan: rt_check looks at the result of check `number`, rt_check_gradient at a unit's reduced gradient. */
void rt_check(Rt *rt, int number, const void *x);
void rt_check_gradient(Rt *rt, int unit);
void rt_zero_gaps(Rt *rt, int unit);
void rt_sumsq(Rt *rt, const int *units, int n);  /* adds |g|^p of the units' gradient shards to the norm in rt->p */
void rt_step_scalars(Rt *rt);                    /* grad_scale, clip coefficient, bias corrections */
void rt_update_shard(Rt *rt, int unit);          /* applies the model's optimizer to the unit's segments */
/* A kernel reports bad input data (a label out of range): the run stops after this step, and nothing is saved. */
void rt_bad_input(const char *fmt, ...) PRINTF_LIKE(1, 2);

#ifdef __cplusplus
}
#endif

#endif
