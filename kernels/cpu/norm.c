/* kernels/cpu/norm.c: layer norm, RMS norm and their gradients over rows.  Weight gradients are summed per
 * chunk of rows (kernels/work.h counts them) and then over chunks in order. */
#include "kernels/cpu/half.h"
#include "kernels/work.h"

#define TEMPLATE "kernels/cpu/norm.h"
#include "kernels/cpu/each_half.h"
#define TEMPLATE "kernels/cpu/norm.h"
#include "kernels/cpu/each_float.h"
