/* frontend/onnx_blocks.h: activations, norms and heads of attention, as importers of ONNX's and of fused ops share
 * them; for use inside frontend/ only. */
#ifndef SHARDC_ONNX_BLOCKS_H
#define SHARDC_ONNX_BLOCKS_H

#include "frontend/onnx_import.h"

/* ---- onnx_ops_act.c ---- */
Value *emit_positive_or(Builder *b, Value *x, Value *other); /* x > 0 ? x : other */
Value *emit_clip(Builder *b, Value *x, double lo, double hi);
Value *emit_swish(Builder *b, Value *x, double alpha);       /* x * sigmoid(alpha * x) */

/* ---- onnx_ops_norm.c ---- */
/* A norm over the dims from axis on; w and b may be NULL.  NULL after an error. */
Op *node_norm(Node *n, OpKind kind, Value *x, Value *w, Value *b, int axis, double eps);
/* The norm of groups of channels of x, [N,C,...], with scale and shift for each channel; NULL after an error.  Its
 * epsilon is the node's. */
Value *emit_group_norm(Node *n, Value *x, Value *w, Value *b, int64_t groups);

/* ---- onnx_ops_attention.c ---- */
Value *heads_split(Node *n, Value *x, int64_t heads);        /* [B,T,H*D] -> [B,H,T,D]; poison after an error */
Value *heads_join(Node *n, Value *x);                        /* [B,H,T,D] -> [B,T,H*D] */
/* [B,Hk,S,D] -> [B,heads,S,D], each head repeated for all queries that share it */
Value *heads_repeat(Node *n, Value *x, int64_t heads);

#endif
