/* kernels/cpu/scan.c: cumulative sums, arg max and min, top k, iota, checked ranges.  One thread works in order
 * along the axis; threads share the other dims.  NaN counts as both the largest and the smallest element. */
#include "kernels/cpu/common.h"

#define TEMPLATE "kernels/cpu/scan.h"
#include "kernels/cpu/each_number.h"
