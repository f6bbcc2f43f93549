/* codegen/codegen.h: a planned module -> a C program, its build, and the plan as a table. */
#ifndef SHARDC_CODEGEN_H
#define SHARDC_CODEGEN_H

#include "base/options.h"
#include "ir/ir.h"

/* What a program is built for, and by what; what it does is the module's. */
typedef struct CodegenTarget {
	TargetOptions options;  /* NULL: cc, of CUDA nvcc's own choice; nvcc; arch native, which of CUDA is never NULL */
	bool tf32;              /* CUDA: --matmul-precision=tf32 */
	bool library;           /* libmodel.so instead of a program */
	bool verbose;           /* print the compiler's commands */
	const char *text;       /* canonical text of the options that say so; recorded behind the module's */
} CodegenTarget;
/* Whether it is step.cu and fused.cu, for a GPU. */
static inline bool codegen_cuda(const CodegenTarget *t) { return t->options.target == TARGET_CUDA; }

/* Writes dir/step.c, dir/fused.c (CUDA: step.cu, fused.cu) and dir/Makefile, for a library model.h and model.pc, too
 * (dir is made when absent).  Refuses ops and dtypes that no kernel serves, and an arch without a runtime.  All files
 * appear, or none.  program: `only`, and the others where a step may have several micro-batches; at PLAN. */
bool codegen_write(const Variants *program, const CodegenTarget *t, const char *dir, Diag *d);

/* Compiles step, fused and the module's hook side by side and links them with the runtime into `output`, a program or a
 * library, which is replaced only when all went well. */
bool codegen_compile(const char *dir, const Module *m, const CodegenTarget *t, const char *output, Diag *d);

/* Whether there is a compiler for t, and a runtime: asked before anything is written. */
bool codegen_check_target(const CodegenTarget *t, Diag *d);

/* Whether the hook compiles and is what runtime/hook.h describes; the compiler's messages go to stderr. */
bool codegen_check_hook(const Hook *h, const CodegenTarget *t, Diag *d);

/* Removes what codegen_write made. */
void codegen_remove(const char *dir);

/* Whether t's arch has instructions that multiply numbers of a 16-bit dtype. */
bool codegen_multiplies(const CodegenTarget *t, DType dtype, Diag *d);

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
	const Variants *variants; /* of several micro-batches: their memory is printed too; NULL = there is one */
} CodegenPlan;
void codegen_plan_text(FILE *f, const Module *m, const CodegenPlan *p);
void codegen_plan_json(FILE *f, const Module *m, const CodegenPlan *p);

#endif
