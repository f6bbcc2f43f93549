/* frontend/onnx_write.h: writes values of parameters and buffers back into the model that they came from.
 *
 * Import's changes are undone: symbols are transposed back, tied tensors that the file holds twice are both written,
 * and vectors get their dims of 1 again.  Tensors that import untied are written as several, and each node reads its
 * own.  All other bytes of the model stay as they are. */
#ifndef SHARDC_ONNX_WRITE_H
#define SHARDC_ONNX_WRITE_H

#include "frontend/frontend.h"

typedef struct OnnxWriter OnnxWriter;
/* Reads elements [first, first + n) of a symbol's value, row by row in the symbol's own shape, as `dtype` into out. */
typedef void OnnxRead(void *context, const Symbol *s, DType dtype, int64_t first, int64_t n, void *out);
/* Where tensors are stored: as in the model that is read; all inside the model; or those of a kilobyte and more beside
 * it, in PATH.data. */
typedef enum { ONNX_STORE_AS_IS, ONNX_STORE_EMBEDDED, ONNX_STORE_EXTERNAL } OnnxStore;

/* Reads a model.  Its weights are not needed, only where they are stored.  NULL after errors. */
OnnxWriter *onnx_writer_open(const char *path, const FrontendOptions *o, Diag *d);
const Module *onnx_writer_module(const OnnxWriter *w);
/* Names of the model's tensors in its order. */
int onnx_writer_tensors(const OnnxWriter *w, Arena *a, const char *const **names);
/* Further names that modules of the model have for a symbol, as several modules may use one parameter. */
int onnx_writer_aliases(const OnnxWriter *w, const Symbol *s, Arena *a, const char *const **names);
/* Names that the framework's state_dict has and the model does not use, as far as its exporter listed them. */
int onnx_writer_absent(const OnnxWriter *w, const char *const **names);
/* The value of one of those names that shardc.export stored in the model's file.  The data belong to the writer.
 * False: the file has no value for it. */
bool onnx_writer_stored(const OnnxWriter *w, const char *name, HostTensor *out);
/* Writes path, and path.data if tensors lie beside the model.  False after errors.  If *input is then true, the model
 * cannot be written this way and nothing was written; otherwise writing failed, and the unfinished files were
 * removed. */
bool onnx_writer_save(OnnxWriter *w, const char *path, OnnxStore store, OnnxRead *read, void *context, bool *input,
	Diag *d);
void onnx_writer_close(OnnxWriter *w);

#endif
