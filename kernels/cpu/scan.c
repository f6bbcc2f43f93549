/* kernels/cpu/scan.c: cumulative sums, arg max and min, top k, iota.  Along the axis one thread works in
 * order; threads share the other dims.  NaN counts as both the largest and the smallest. */
#include "kernels/cpu/common.h"

#define TEMPLATE "kernels/cpu/scan.h"
#include "kernels/cpu/each_number.h"
