/* codegen/fused.h: elementwise kernels: what all targets share, and the function that writes each target's text. */
#ifndef SHARDC_FUSED_H
#define SHARDC_FUSED_H

#include "codegen/emit.h"

enum { FUSED_TENSORS = 64 };

/* The iteration space after merging, and for each operand the dims along which it varies (bit d for dim d).
 * Results vary along all dims.  What is columns of a wider value has the number of elements from row to row, 0 where
 * rows follow each other: pitch of an operand, y_pitch of a result. */
typedef struct FusedSpace {
	int rank;
	int64_t dim[IR_MAX_RANK];
	unsigned varies[FUSED_TENSORS];
	int64_t pitch[FUSED_TENSORS], y_pitch[FUSED_TENSORS];
} FusedSpace;

/* ---- fused.c: what kernels are made of ---- */

const char *fused_ctype(const Value *v);
/* The parameters of the function that step.c calls: (float *y0, const float *x0, int64_t n0, int64_t n1), followed by
 * the pitches that are not 0, q0 of y0 and p0 of x0. */
void fused_signature(Buf *b, const Op *op, const FusedSpace *s);
/* Whether an operand varies along the innermost dim. */
bool fused_moves(const FusedSpace *s, int operand);
/* Reads operand i, whose element is the expression `from`, into v<i>, in the dtype in which the loop computes. */
void fused_read(Emit *e, Buf *b, const Value *v, int i, const char *in, const char *from);
/* Computes from v<i> the values that are stored in y<k><at>; in: the tabs of a line. */
void fused_body(Emit *e, Buf *b, const Op *op, const char *at, const char *in);

/* ---- fused_cpu.c, fused_cuda.c: write the function called `name`, and the head of the file ---- */

typedef void FusedText(Emit *e, Buf *b, const Op *op, const FusedSpace *s, const char *name);
FusedText fused_cpu, fused_cuda;
extern const char fused_cpu_head[], fused_cuda_head[];

#endif
