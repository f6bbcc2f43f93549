/* ckpt/model.h: matches the tensors of checkpoints with a model's parameters and buffers. */
#ifndef SHARDC_CKPT_MODEL_H
#define SHARDC_CKPT_MODEL_H

#include "ckpt/output.h"
#include "frontend/onnx_write.h"

/* Reads elements [first, first + n), rounded to `to` if they have another dtype, and releases the pages they lie on. */
void ckpt_elements(const CheckpointTensor *t, DType to, int64_t first, int64_t n, void *out);
/* Finds the options that the model is read with: `given`, the value of --options; if that is NULL, those that the
 * state.json of c records.  given and c may both be NULL.  False after errors. */
bool ckpt_model_options(const CkptCall *call, const char *given, const Checkpoint *c, CkptModelOptions *out, Arena *a);
/* Reads a model with the options that it was compiled with. */
OnnxWriter *ckpt_model(const char *path, const CkptModelOptions *o, Diag *d);
/* The row of --options in a command's table.  otherwise: text about the default for --help, or "". */
#define CKPT_MODEL_OPTIONS(to, otherwise) {"--options", CKPT_TEXT, &(to), "TEXT", "options of shardc that names and " \
	"shapes of MODEL follow from, \"--bind=batch=8\"" otherwise, false}
static inline bool ckpt_is_weight(const Symbol *s) { return s->kind == SYM_PARAM || s->kind == SYM_BUFFER; }
/* Whether the tensor has the symbol's shape and, if same_dtype, its dtype; reports an error if not. */
bool ckpt_fits(const char *where, const CheckpointTensor *t, const Symbol *s, bool same_dtype, Arena *a, Diag *d);

#endif
