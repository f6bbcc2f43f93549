/* codegen/codegen.h: a planned module -> a C program, its build, and the plan as a table. */
#ifndef SHARDC_CODEGEN_H
#define SHARDC_CODEGEN_H

#include "base/layout.h"
#include "ir/ir.h"

/* --comm-hook=FILE.c:FUNCTION.  file NULL: there is none. */
typedef struct HookSpec {
	const char *file, *function; /* absolute path */
	int64_t send, keep;          /* bytes per element of a flat gradient */
} HookSpec;
bool hook_parse(const char *text, HookSpec *out, Arena *a, Diag *d);

/* What the emitted program is told besides the module.  NULL = default. */
typedef struct CodegenOptions {
	const char *text;       /* canonical text of the compile options; recorded in checkpoints */
	const char *optimizer;  /* "adamw", "sgd:momentum,nesterov"; NULL = adamw */
	const char *loss_norm;  /* "global" | "rank" */
	bool shift;             /* the loss shifts labels itself */
	bool no_decay_1d;
	const char *loss_scale; /* "none" | "K" | "dynamic[:KEY=VALUE,..]" */
	bool check_nan;         /* a check behind each op with a float result */
	const char *const *param_group; /* each --param-group */
	int n_param_group;
	LayoutOffload offload;
	bool cuda;              /* step.cu and fused.cu, for a GPU */
	bool tf32;              /* CUDA: --matmul-precision=tf32 */
	const char *nvcc;       /* CUDA compiler; NULL = nvcc */
	const char *cc;         /* C compiler; NULL = cc; of CUDA: the host's, NULL = nvcc's own choice */
	const char *arch;       /* -march; NULL = native; of CUDA never NULL */
	const char *optimize;   /* of step.c: "0".."3"; NULL = 1 */
	bool verbose;           /* print the compiler's commands */
	HookSpec hook;
	bool library;           /* libmodel.so instead of a program */
	const struct Variants *variants; /* of several micro-batches a step: all modules; NULL = the one that is written */
} CodegenOptions;

/* Writes dir/step.c, dir/fused.c (CUDA: step.cu, fused.cu) and dir/Makefile, for a library model.h and model.pc, too
 * (dir is made when absent).  Refuses ops and dtypes that no kernel serves, and an arch without a runtime.  All files
 * appear, or none. */
bool codegen_write(const Module *m, const CodegenOptions *o, const char *dir, Diag *d);

/* Compiles step and fused side by side and links them with the runtime into `output`, a program or a
 * library, which is replaced only when all went well. */
bool codegen_compile(const char *dir, const CodegenOptions *o, const char *output, Diag *d);

/* Whether there is a compiler for o, and a runtime: asked before anything is written. */
bool codegen_check_target(const CodegenOptions *o, Diag *d);

/* Whether o->hook compiles and is what runtime/hook.h describes; the compiler's messages go to stderr. */
bool codegen_check_hook(const CodegenOptions *o, Diag *d);

/* Removes what codegen_write made. */
void codegen_remove(const char *dir);

/* Whether o->arch has instructions that multiply numbers of 16-bit dtype t. */
bool codegen_multiplies(const CodegenOptions *o, DType t, Diag *d);

/* ---- plan.c ---- */

/* What `shardc plan` prints: units, collectives, memory by category, the op at the peak of the activation
 * arena and the largest values that are live there.  The numbers are the memory pass's and base/layout's. */
typedef struct CodegenPlan {
	const LayoutModel *layout;
	LayoutRank who;         /* its rank is the one that needs most */
	const char *comm;       /* as asked for; NULL = what fits the hosts */
	bool brief;             /* text: no collectives */
	int64_t peak_bytes;
	const Op *peak_op;      /* NULL: the arena is empty */
	const Value *const *largest;
	const int64_t *largest_bytes;
	int n_largest;
	const struct Variants *variants; /* of several micro-batches: their memory is printed too; NULL = there is one */
} CodegenPlan;
void codegen_plan_text(FILE *f, const Module *m, const CodegenPlan *p);
void codegen_plan_json(FILE *f, const Module *m, const CodegenPlan *p);

#endif
