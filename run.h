/* run.h: `shardc run`: runs a model's forward on arrays in files. */
#ifndef SHARDC_RUN_H
#define SHARDC_RUN_H

#include "codegen/codegen.h"

/* Compiles the planned forward-only module in a temporary folder and runs it.  It reads inputs/NAME.npy, or
 * inputs/input_K.npy or input_K.pb (a serialised TensorProto) for the K-th input, and writes outputs/NAME.npy; files of
 * narrow types hold bytes as those of ml_dtypes do.
 * keep: the path at which to leave the binary, NULL = remove it.  Returns an exit status. */
int run_model(Module *m, const char *keep, const char *inputs, const char *outputs, const CodegenTarget *o, Diag *d);

#endif
