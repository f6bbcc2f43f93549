/* frontend/onnx_write.h: values of parameters and buffers, written back into the model that they came from.
 *
 * What import undid is done again: transposes, copies of tied tensors, scalars and vectors with dims of 1 around them.
 * Tensors that import took apart are written as several, and nodes read theirs.  All other bytes of the model stay. */
#ifndef SHARDC_ONNX_WRITE_H
#define SHARDC_ONNX_WRITE_H

#include "frontend/frontend.h"

typedef struct OnnxWriter OnnxWriter;
/* Elements [first, first + n) of a symbol's value, row by row in its own shape, as `dtype` into out. */
typedef void OnnxRead(void *context, const Symbol *s, DType dtype, int64_t first, int64_t n, void *out);
/* Where tensors lie: as in the model; all in it; those of a kilobyte and more beside it, in PATH.data. */
typedef enum { ONNX_STORE_AS_IS, ONNX_STORE_EMBEDDED, ONNX_STORE_EXTERNAL } OnnxStore;

/* Reads a model.  Weights are not needed, only where they would lie.  NULL after messages. */
OnnxWriter *onnx_writer_open(const char *path, const FrontendOptions *o, Diag *d);
const Module *onnx_writer_module(const OnnxWriter *w);
/* Names of the model's tensors in its order. */
int onnx_writer_tensors(const OnnxWriter *w, Arena *a, const char *const **names);
/* Other names that the model's own modules have for a symbol, as one parameter is used by several of them. */
int onnx_writer_aliases(const OnnxWriter *w, const Symbol *s, Arena *a, const char *const **names);
/* What the framework's state_dict has and the model does not use, as far as its exporter wrote that down. */
int onnx_writer_absent(const OnnxWriter *w, const char *const **names);
/* The value of one of them in the model's file, where shardc.export has put it; its data are the writer's.  False: the
 * file has none. */
bool onnx_writer_stored(const OnnxWriter *w, const char *name, HostTensor *out);
/* Writes path, and path.data where tensors lie beside it.  False after messages: `input` says that the model cannot be
 * written so (nothing was), else the disk failed and what was begun is removed. */
bool onnx_writer_save(OnnxWriter *w, const char *path, OnnxStore store, OnnxRead *read, void *context, bool *input,
	Diag *d);
void onnx_writer_close(OnnxWriter *w);

#endif
