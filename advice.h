/* advice.h: `shardc init`: looks at a model and says how to train it. */
#ifndef SHARDC_ADVICE_H
#define SHARDC_ADVICE_H

#include "frontend/frontend.h"
#include "passes/passes.h"

/* Gives every dim of the model's inputs that is free and not bound by o a size with which the model can be looked at,
 * as values of --bind and --input-shape in o, which live as long as the arena.  False after an error. */
bool advice_bind(Options *o, Arena *a, Diag *d);

/* Prints to out what the inputs of m mean, the loss that fits its outputs with the reason, how to write its data, and
 * the commands that compile and train it.  m: at level MODEL behind pass patterns; o: with which it was read. */
void advice_print(FILE *out, const Module *m, const Options *o, Arena *a);

#endif
