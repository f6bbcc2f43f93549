/* tests/cudasim/dnn.h: what the files of the emulated cuDNN share: convolutions (dnn.cpp) and operation graphs
 * (graphs.h). */
#ifndef CUDASIM_DNN_H
#define CUDASIM_DNN_H

#include "tests/cudasim/sim.h"

#include <cudnn.h>

struct cudnnContext { cudaStream_t stream; };

/* A convolution with 3 spatial dims, the first ones 1. */
struct SimConv { int64_t n, c, o, groups, in[3], out[3], kernel[3], stride[3], dilation[3], pad[3]; };
enum SimConvKind { SIM_CONV, SIM_CONV_GRAD_X, SIM_CONV_GRAD_W };

/* dnn.cpp: adds to y, x or w, by kind, what follows from the other two: x (n, c, in...), w (o, c / groups, kernel...),
 * y (n, o, out...). */
void sim_convolve(SimConvKind kind, const SimConv &s, double *x, double *w, double *y);

#endif
