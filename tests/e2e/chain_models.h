/* tests/e2e/chain_models.h: models of any size, for bounds on the compiler's time. */
#ifndef SHARDC_CHAIN_MODELS_H
#define SHARDC_CHAIN_MODELS_H

#include "tests/unit/onnx_model.h"

/* The result, y, is one number: the mean of `last`. */
void model_mean(OnnxText *m, const char *last);
/* Writes the model of this kind and size to standard output.  Exit status. */
int put_chain(const char *kind, int n);

#endif
