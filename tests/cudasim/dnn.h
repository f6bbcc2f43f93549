/* tests/cudasim/dnn.h: what the files of the emulated cuDNN share: convolutions (dnn.cpp) and operation graphs
 * (graphs.h). */
#ifndef CUDASIM_DNN_H
#define CUDASIM_DNN_H

#include "tests/cudasim/sim.h"

#include <cudnn.h>

struct cudnnContext { cudaStream_t stream; };

#endif
