/* base/sizes.h: several sizes of a symbolic dimension: --bind seq=128,256,512. */
#ifndef SHARDC_SIZES_H
#define SHARDC_SIZES_H

#include "base/base.h"

enum { SIZES_MAX = 16 };

/* Reads "DIM=N,N,.." as given to --bind, or what stands behind the "=": sets size[] and returns their number; 0: it is
 * not a list of sizes, or is one of more than SIZES_MAX. */
int sizes_of(const char *bind, int64_t size[SIZES_MAX]);
/* Whether a value of --bind has several sizes. */
bool sizes_several(const char *bind);

#endif
