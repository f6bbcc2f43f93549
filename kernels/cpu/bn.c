/* kernels/cpu/bn.c: batch-norm statistics, forward and for the gradient.
 *
 * Channels-last data is read from memory once: each block of 64 rows x 64 channels gives a mean and a centred second
 * moment while it is in cache.  These are joined in f64 over the blocks of a chunk, then over chunks in order.  So the
 * variance does not cancel, and the number of threads changes no bit.  The gradient's sums read up to WIDEST channels
 * of a row together: a row that is read in parts comes from memory at half the rate. */
#include "kernels/cpu/half.h"
#include "kernels/work.h"

enum { TILE = 64, WIDEST = 512, BLOCK = 64, PIECE = 4096, FOLDS_MIN = 4096 /* to be joined by more than one thread */ };

static int64_t bn_chunks(int64_t rows)
{
	return MAX(1, MIN(K_BN_CHUNKS, rows / BLOCK));
}

/* rows_<t>: `rows` rows of w elements, *step apart, as what they are computed in; the caller's buffer takes those that
 * must be widened, and *step becomes the distance of its rows. */
#define ROWS_OF(T, t) \
INLINE const T *rows_##t(T *to, const T *x, int64_t rows, int64_t w, int64_t *step) \
{ \
	(void)to, (void)rows, (void)w, (void)step; \
	return x; \
}
K_FLOATS(ROWS_OF)
#undef ROWS_OF
#define ROWS_OF(T, W, t) \
INLINE const W *rows_##t(W *to, const T *x, int64_t rows, int64_t w, int64_t *step) \
{ \
	for (int64_t i = 0; i < rows; i++) \
		widen_##t(to + i * w, x + i * *step, w); \
	*step = w; \
	return to; \
}
K_HALVES(ROWS_OF)
#undef ROWS_OF

#define TEMPLATE "kernels/cpu/bn.h"
#include "kernels/cpu/each_float.h"
#define TEMPLATE "kernels/cpu/bn.h"
#include "kernels/cpu/each_half.h"
