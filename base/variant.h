/* base/variant.h: the programs of a step of several micro-batches (--accum=many). */
#ifndef SHARDC_VARIANT_H
#define SHARDC_VARIANT_H

/* The micro-batch variants.  With --accum=many a model is compiled as four modules: one for a step of a single
 * micro-batch (`only`, which also has the evaluation), and one each for the first, the middle and the last of
 * several. */
typedef enum Variant { VARIANT_ONLY, VARIANT_FIRST, VARIANT_MIDDLE, VARIANT_LAST, VARIANT_COUNT } Variant;
/* When gradients are reduced: the sum once, in the last micro-batch; or those of every micro-batch, and the reduced
 * parts are summed.  NONE: there is one micro-batch. */
typedef enum Sync { SYNC_NONE, SYNC_LAST, SYNC_EVERY, SYNC_COUNT } Sync; /* NONE: there is one micro-batch */

#endif
