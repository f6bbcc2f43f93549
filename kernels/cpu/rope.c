/* kernels/cpu/rope.c: rotary position embedding.  Each pair of a head's first R dims is turned by the angle of its
 * position; inverse turns back, which is the gradient.  y may be x: a pair is read before it is written. */
#include "kernels/cpu/half.h"
#include "kernels/place.h"

#define T float
#define SUFFIX f32
#include "kernels/cpu/rope.h"
#define TEMPLATE "kernels/cpu/rope.h"
#include "kernels/cpu/each_half.h"
