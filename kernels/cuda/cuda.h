/* kernels/cuda/cuda.h: what a CUDA runtime tells the CUDA kernels, and what they tell it.  Plain C.
 *
 * The functions of kernels/kernels.h launch on k_stream and return; a rank is one process with one device, so the
 * state of the library is global.  Nothing here or there allocates device memory after k_cuda_open. */
#ifndef SHARDC_KERNELS_CUDA_H
#define SHARDC_KERNELS_CUDA_H

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where kernels are launched: the compute stream, but for casts and sums of a collective, around which the runtime
 * sets its stream.  NULL is never used. */
extern cudaStream_t k_stream;

/* The first bad input that a kernel met: written once, by atomicCAS on `kind`, in host memory that the device can write
 * (cudaHostAlloc, mapped).  k_bad_report points to its device address; the runtime sets it before the first launch. */
typedef enum KBadKind { K_BAD_NONE, K_BAD_LABEL, K_BAD_INDEX } KBadKind;
typedef struct KBad {
	int kind;
	int64_t value, position, limit; /* what stands at that row is not in [0, limit) (an index: in [-limit, limit)) */
	int64_t ignored;                /* the label that would not count */
} KBad;
extern KBad *k_bad_report;
/* Calls k_bad_input, with the words of the CPU kernels, if *bad holds a report, and clears it. */
void k_bad_take(KBad *bad);

/* Handles of the libraries for the current device; tf32: --matmul-precision.  Failures go to k_fail. */
void k_cuda_open(bool tf32);
void k_cuda_close(void);

/* Sums over ranks, on k_stream; as k_fold and k_cast_wide of kernels.h, which are the host's in CUDA programs, too. */
void k_device_cast(void *out, KDType out_type, const void *in, KDType in_type, int64_t n);
/* As k_cast_by_chance, with the key of the step's seed and id, and the step's number; next: the number of the step
 * after it, as it will be. */
void k_device_cast_by_chance(void *out, KDType out_type, const float *in, int64_t n, uint64_t id, int64_t first,
	bool next, const StepScalars *s);
void k_device_scale(void *x, KDType type, int64_t n, float scale); /* x = x * scale, rounded once */

#ifdef __cplusplus
}
#endif
#endif
