/* kernels/cpu/norm.c: layer norm, RMS norm and their gradients over rows.  Weight gradients are summed by chunks of
 * rows (kwork_norm_chunks of kernels/work.h), then over chunks in order. */
#include "kernels/cpu/half.h"
#include "kernels/work.h"

#define LINKAGE
#define NAME(op) k_##op
#define TEMPLATE "kernels/cpu/norm.h"
#include "kernels/cpu/each_float.h"
#undef LINKAGE
#undef NAME

/* Each 16-bit row is read several times, so rows of up to ROW elements are widened once, on the stack. */
enum { ROW = 4096 };
#define LINKAGE static
#define NAME(op) long_##op
#define TEMPLATE "kernels/cpu/norm.h"
#include "kernels/cpu/each_half.h"
#define TEMPLATE "kernels/cpu/norm_half.h"
#include "kernels/cpu/each_half.h"
