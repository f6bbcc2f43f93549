/* codegen/codegen.h: a planned module -> a C program, its build, and the plan as a table. */
#ifndef SHARDC_CODEGEN_H
#define SHARDC_CODEGEN_H

#include "base/options.h"
#include "ir/ir.h"

/* What a program is built for, and with which tools.  What the program does is given by the module. */
typedef struct CodegenTarget {
	TargetOptions options;  /* NULL: cc (CUDA: nvcc's choice), nvcc; arch native (CUDA: never NULL) */
	bool tf32;              /* CUDA: --matmul-precision=tf32 */
	bool library;           /* libmodel.so instead of a program */
	bool verbose;           /* print the compiler's commands */
	const char *text;       /* canonical text of the target's options; recorded behind the module's */
} CodegenTarget;
/* Whether the program is step.cu and fused.cu, for a GPU. */
static inline bool codegen_cuda(const CodegenTarget *t) { return t->options.target == TARGET_CUDA; }

/* Writes dir/step.c, dir/fused.c (for CUDA step.cu, fused.cu) and dir/Makefile, for a library also model.h and
 * model.pc; creates dir if it does not exist.  Refuses ops and dtypes that have no kernel, and an arch without a
 * runtime.  Writes all files or none.  program: for each size `only`, and the other variants if a step may have several
 * micro-batches; all at PLAN. */
bool codegen_write(const Sizes *program, const CodegenTarget *t, const char *dir, Diag *d);

/* Compiles step, fused and the module's hook side by side and links them with the runtime into `output`, a program
 * or a library.  `output` is replaced only if everything succeeded. */
bool codegen_compile(const char *dir, const Module *m, const CodegenTarget *t, const char *output, Diag *d);

/* Whether t's compiler and runtime exist.  Call it before anything is written. */
bool codegen_check_target(const CodegenTarget *t, Diag *d);

/* Whether a plan or a text can be for t's arch, if it is a GPU's; neither compiler nor runtime are asked for. */
bool codegen_check_arch(const CodegenTarget *t, Diag *d);

/* Whether the hook compiles and has the type that runtime/hook.h declares; the compiler's messages go to stderr. */
bool codegen_check_hook(const Hook *h, const CodegenTarget *t, Diag *d);

/* Removes the files that codegen_write made. */
void codegen_remove(const char *dir);

/* Whether t's arch has instructions that multiply numbers of this 16-bit dtype. */
bool codegen_multiplies(const CodegenTarget *t, DType dtype, Diag *d);

/* ---- plan.c ---- */

/* An option that would take memory away, by a plan that was made with it. */
typedef struct CodegenHint {
	const char *option, *what; /* "--remat=block"; what happens then */
	int64_t saves, total;      /* bytes */
} CodegenHint;

/* What `shardc plan` prints: units, collectives, memory by category, the op at the peak of the activation arena and
 * the largest values that are live there.  The numbers come from pass memory and base/layout. */
typedef struct CodegenPlan {
	const LayoutModel *layout;
	LayoutRank who;         /* who.rank is the rank that needs most memory */
	const char *comm;       /* as requested; NULL = chosen by the hosts */
	bool brief;             /* the text leaves out the collectives */
	int64_t peak_bytes;
	const Op *peak_op;      /* NULL: the arena is empty */
	const Value *const *largest;
	const int64_t *largest_bytes;
	int n_largest;
	const Sizes *sizes;     /* several sizes: what each of them needs is printed too; NULL = one */
	const Variants *variants; /* several micro-batches: their memory is printed too; NULL = one */
} CodegenPlan;
void codegen_plan_text(FILE *f, const Module *m, const CodegenPlan *p);
/* Prints the members of a JSON object; hints are its last one. */
void codegen_plan_json(FILE *f, const Module *m, const CodegenPlan *p);
void codegen_hints_text(FILE *f, const CodegenHint *hint, int n);
void codegen_hints_json(FILE *f, const CodegenHint *hint, int n);

#endif
