/* kernels/cuda/work.h: how much scratch each CUDA kernel wants, as plain arithmetic on shapes (see kernels/work.h).
 *
 * Read by passes through kernels.def and by the kernels themselves, so that plan and use cannot differ. */
#ifndef SHARDC_KERNELS_CUDA_WORK_H
#define SHARDC_KERNELS_CUDA_WORK_H

#include "kernels/work.h"

static inline int64_t kwork_cuda_none(const KWorkArgs *a) { (void)a; return 0; }

#endif
