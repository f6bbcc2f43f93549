/* kernels/cpu/softmax.c: softmax and log-softmax along any axis, and their gradients.  A row of -inf gives
 * NaN, as 0/0 does.  Along the last axis a thread takes rows, elsewhere neighbouring columns together. */
#include "kernels/cpu/common.h"
#include "kernels/cpu/ew.h"

enum { PIECE = 1024, LANES = 64 };

#define TEMPLATE "kernels/cpu/softmax.h"
#include "kernels/cpu/each_float.h"
