/* ckpt/model.h: tensors of checkpoints beside a model's parameters and buffers. */
#ifndef SHARDC_CKPT_MODEL_H
#define SHARDC_CKPT_MODEL_H

#include "ckpt/output.h"
#include "frontend/onnx_write.h"

/* Elements [first, first + n), rounded to `to` where they are of another dtype; their pages are let go of. */
void ckpt_elements(const CheckpointTensor *t, DType to, int64_t first, int64_t n, void *out);
/* Reads a model as it was compiled; options: those of shardc, one text, NULL = none. */
OnnxWriter *ckpt_model(const char *path, const char *options, Arena *a, Diag *d);
static inline bool ckpt_is_weight(const Symbol *s) { return s->kind == SYM_PARAM || s->kind == SYM_BUFFER; }
/* Whether the tensor has the symbol's shape, and its dtype where it must; else a message. */
bool ckpt_fits(const char *where, const CheckpointTensor *t, const Symbol *s, bool same_dtype, Arena *a, Diag *d);

#endif
