/* codegen/fused.h: elementwise kernels: what is the same on every target, and the text of each. */
#ifndef SHARDC_FUSED_H
#define SHARDC_FUSED_H

#include "codegen/emit.h"

enum { FUSED_TENSORS = 64 };

/* The iteration space after merging, and along which of its dims each operand varies (bit d).  Results vary along
 * all of them. */
typedef struct FusedSpace {
	int rank;
	int64_t dim[IR_MAX_RANK];
	unsigned varies[FUSED_TENSORS];
} FusedSpace;

/* ---- fused.c: what kernels are made of ---- */

const char *fused_ctype(const Value *v);
/* (float *y0, const float *x0, int64_t n0, int64_t n1): of the function that step.c calls. */
void fused_signature(Buf *b, const Op *op, const FusedSpace *s);
/* Whether an operand varies along the innermost dim. */
bool fused_moves(const FusedSpace *s, int operand);
/* Operand i, which stands at `from`, becomes v<i>, in what its loop computes in. */
void fused_read(Emit *e, Buf *b, const Value *v, int i, const char *in, const char *from);
/* Computes from v<i> what is stored in y<k><at>; in: tabs. */
void fused_body(Emit *e, Buf *b, const Op *op, const char *at, const char *in);

/* ---- fused_cpu.c, fused_cuda.c: the function called `name`, and what stands above all of them ---- */

typedef void FusedText(Emit *e, Buf *b, const Op *op, const FusedSpace *s, const char *name);
FusedText fused_cpu, fused_cuda;
extern const char fused_cpu_head[], fused_cuda_head[];

#endif
