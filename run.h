/* run.h: `shardc run`: a model's forward on arrays in files. */
#ifndef SHARDC_RUN_H
#define SHARDC_RUN_H

#include "codegen/codegen.h"

/* Compiles the planned forward-only module in a temporary folder and runs it: inputs/NAME.npy, or
 * inputs/input_K.npy or input_K.pb (a serialised TensorProto) for the K-th input, to outputs/NAME.npy.
 * keep: where to leave the binary, NULL = nowhere.  Returns an exit status. */
int run_model(Module *m, const char *keep, const char *inputs, const char *outputs, const CodegenTarget *o, Diag *d);

#endif
