/* base/filehash.h: a file's size and a hash of samples of it: enough to notice that it was replaced. */
#ifndef SHARDC_FILEHASH_H
#define SHARDC_FILEHASH_H

#include "base/base.h"

/* Of a whole file in memory: its size, its first and last block, and blocks spread evenly between.
 * The compiler stores it, the training binary compares it; the cost does not grow with the file. */
uint64_t filehash_sampled(const void *file, int64_t bytes);

#endif
