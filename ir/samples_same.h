/* ir/samples_same.h: along which axes a value that depends on no sample is the same; of samples.c alone. */
#ifndef SHARDC_IR_SAMPLES_SAME_H
#define SHARDC_IR_SAMPLES_SAME_H

#include "ir/samples.h"

/* Samples.same of v, whose operands depend on no sample; in: what is known of them. */
unsigned samples_same_axes(const Value *v, const Samples *in);
/* Whether v, of which x is known, is the same along the axis; below 0: an axis that others have. */
bool samples_is_same(const Samples *x, const Value *v, int axis);

#endif
