/* runtime/exec/cuda/words.h: the small kernels of collectives: counters of the watchdog, statistics of batch norms,
 * scales of weights. */
#ifndef SHARDC_RUNTIME_CUDA_WORDS_H
#define SHARDC_RUNTIME_CUDA_WORDS_H

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- progress_kernels.cu: the watchdog's counters, which the device writes ---- */

/* The words of RankProgress for one channel, as device pointers. */
typedef struct ProgressWords { int32_t *inside, *ended; int64_t *done; } ProgressWords;
void progress_device_enter(ProgressWords p, int seq, cudaStream_t stream);
void progress_device_end(ProgressWords p, int seq, cudaStream_t stream);

/* ---- sync_kernels.cu: messages of statistics; pairs of a channel lie side by side ---- */

void sync_pack(void *message, KDType dtype, const void *a, const void *b, int64_t channels, cudaStream_t stream);
/* all: `ranks` messages.  n: elements of a channel on each rank; 0: variances stay biased. */
void sync_merge_moments(void *const out[3], KDType dtype, const void *all, int ranks, int64_t channels, int64_t n,
	cudaStream_t stream);
void sync_merge_means(void *const out[2], KDType dtype, const void *all, int ranks, int64_t channels,
	cudaStream_t stream);

/* Sets n scales, `apart` floats apart, by the largest magnitudes that `ranks` messages have, `stride` floats apart. */
void sync_merge_scales(float *scale, int64_t apart, const float *all, int64_t stride, int ranks, int64_t n,
	cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
