/* base/filehash.h: a hash of a file's size and of samples of its bytes, to notice that a file was replaced. */
#ifndef SHARDC_FILEHASH_H
#define SHARDC_FILEHASH_H

#include "base/base.h"

/* The hash of a whole file in memory: its size, its first and last block, and blocks spread evenly between them.  The
 * compiler stores it and the training binary compares it.  The cost does not grow with the file. */
uint64_t filehash_sampled(const void *file, int64_t bytes);

#endif
