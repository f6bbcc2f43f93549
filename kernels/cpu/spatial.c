/* kernels/cpu/spatial.c: sampling at the points of a grid and in boxes, determinants, and their gradients.
 *
 * A gradient in x is scattered by one thread for each block of channels of a sample, which walks all points, or all
 * boxes, in order; so the order of sums holds for any number of threads. */
#include "kernels/cpu/common.h"
#include "kernels/det.h"
#include "kernels/sample.h"

enum { POINTS = 32, CHANNELS = 16 };

/* What a run of points reads: offsets in a plane, and their weights. */
typedef struct Points {
	int64_t first, n;
	int taps[POINTS];
	int64_t at[POINTS][K_TAPS_MAX];
	double weight[POINTS][K_TAPS_MAX];
} Points;

#define ROI_SUM T
#define ROI_ADD(sum, v) (*(sum) += (T)(v))
#define TEMPLATE "kernels/roi.h"
#include "kernels/cpu/each_float.h"
#define TEMPLATE "kernels/cpu/spatial.h"
#include "kernels/cpu/each_float.h"
