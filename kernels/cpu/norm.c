/* kernels/cpu/norm.c: layer norm, RMS norm and their gradients over rows.  Weight gradients are summed per
 * chunk of rows (kernels/work.h counts them) and then over chunks in order. */
#include "kernels/cpu/half.h"
#include "kernels/work.h"

#define LINKAGE
#define NAME(op) k_##op
#define TEMPLATE "kernels/cpu/norm.h"
#include "kernels/cpu/each_float.h"
#undef LINKAGE
#undef NAME

/* 16-bit rows: those that fit on the stack are widened there once, since each is read several times. */
enum { ROW = 4096 };
#define LINKAGE static
#define NAME(op) long_##op
#define TEMPLATE "kernels/cpu/norm.h"
#include "kernels/cpu/each_half.h"
#define TEMPLATE "kernels/cpu/norm_half.h"
#include "kernels/cpu/each_half.h"
