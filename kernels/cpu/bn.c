/* kernels/cpu/bn.c: batch-norm statistics, forward and for the gradient.
 *
 * Channels-last data is read from memory once: each block of 64 rows x 64 channels gives a mean and a centred second
 * moment while it is in cache.  These are joined in f64 over the blocks of a chunk, then over chunks in order.  So the
 * variance does not cancel, and the number of threads changes no bit. */
#include "kernels/cpu/common.h"
#include "kernels/work.h"

enum { TILE = 64, BLOCK = 64, PIECE = 4096 };

static int64_t bn_chunks(int64_t rows)
{
	return MAX(1, MIN(K_BN_CHUNKS, rows / BLOCK));
}

#define TEMPLATE "kernels/cpu/bn.h"
#include "kernels/cpu/each_float.h"
