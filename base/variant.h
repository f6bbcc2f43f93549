/* base/variant.h: the programs of a step of several micro-batches (--accum=many). */
#ifndef SHARDC_VARIANT_H
#define SHARDC_VARIANT_H

/* The model is compiled as four modules: a step of one micro-batch (`only`, which has the evaluation), and the first,
 * middle and last one of several. */
typedef enum Variant { VARIANT_ONLY, VARIANT_FIRST, VARIANT_MIDDLE, VARIANT_LAST, VARIANT_COUNT } Variant;
/* When their gradients are reduced: the sum once, in the last one; or every one, and the kept part is summed. */
typedef enum Sync { SYNC_NONE, SYNC_LAST, SYNC_EVERY, SYNC_COUNT } Sync; /* NONE: there is one micro-batch */

#endif
