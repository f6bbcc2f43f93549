/* ckpt/model.h: tensors of checkpoints beside a model's parameters and buffers. */
#ifndef SHARDC_CKPT_MODEL_H
#define SHARDC_CKPT_MODEL_H

#include "ckpt/output.h"
#include "frontend/onnx_write.h"

/* Elements [first, first + n), rounded to `to` where they are of another dtype; their pages are let go of. */
void ckpt_elements(const CheckpointTensor *t, DType to, int64_t first, int64_t n, void *out);
/* Options of shardc that a model is read with: `given`, the value of --options; where that is NULL what the state.json
 * of c says; both may be NULL.  False after messages. */
bool ckpt_model_options(const CkptCall *call, const char *given, const Checkpoint *c, CkptModelOptions *out, Arena *a);
/* Reads a model as it was compiled. */
OnnxWriter *ckpt_model(const char *path, const CkptModelOptions *o, Diag *d);
/* The row of --options in a command's table; otherwise: " (default: ..)", or "". */
#define CKPT_MODEL_OPTIONS(to, otherwise) {"--options", CKPT_TEXT, &(to), "TEXT", "options of shardc that names and " \
	"shapes of MODEL follow from, \"--bind=batch=8\"" otherwise, false}
static inline bool ckpt_is_weight(const Symbol *s) { return s->kind == SYM_PARAM || s->kind == SYM_BUFFER; }
/* Whether the tensor has the symbol's shape, and its dtype where it must; else a message. */
bool ckpt_fits(const char *where, const CheckpointTensor *t, const Symbol *s, bool same_dtype, Arena *a, Diag *d);

#endif
