/* ir/samples_same.h: along which axes a value that depends on no sample is constant; for the files of samples only. */
#ifndef SHARDC_IR_SAMPLES_SAME_H
#define SHARDC_IR_SAMPLES_SAME_H

#include "ir/samples.h"

/* Samples.same of v, whose operands depend on no sample; in: the analysis of its operands. */
unsigned samples_same_axes(const Value *v, const Samples *in);
/* Whether v is constant along the axis; x: the analysis of v.  An axis below 0 is one that v lacks when it is
 * broadcast. */
bool samples_is_same(const Samples *x, const Value *v, int axis);

#endif
