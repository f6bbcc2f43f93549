/* kernels/cuda/cuda.h: what a CUDA runtime tells the CUDA kernels, and what they tell it.  Plain C.
 *
 * The functions of kernels/kernels.h launch on k_stream and return.  A rank is one process with one device, so the
 * state of this library is global.  Neither the kernels nor the library allocate device memory after k_cuda_open and
 * the creation of primitives. */
#ifndef SHARDC_KERNELS_CUDA_H
#define SHARDC_KERNELS_CUDA_H

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The stream on which kernels are launched.  It is the compute stream, except while the runtime launches casts and
 * sums of a collective: around these it sets the collective's stream.  Never NULL. */
extern cudaStream_t k_stream;

/* The first bad input that a kernel met.  It is written once, by atomicCAS on `kind`, in host memory that the device
 * can write (cudaHostAlloc, mapped).  k_bad_report points to its device address; the runtime sets it before the first
 * launch. */
typedef enum KBadKind { K_BAD_NONE, K_BAD_LABEL, K_BAD_INDEX, K_BAD_LENGTH, K_BAD_OUTSIDE } KBadKind;
typedef struct KBad {
	int kind;
	int64_t position;
	const char *node;             /* k_node when the kernel was launched */
	union {
		struct {
			int64_t value, limit; /* value, at this position, is not in [0, limit) (an index: in [-limit, limit); a
			                         length: in [0, limit]) */
			int64_t ignored;      /* the label that is ignored */
		};
		struct { double number, low, high; const char *what; }; /* K_BAD_OUTSIDE */
	};
} KBad;
extern KBad *k_bad_report;
/* If *bad holds a report, calls k_bad_input with the words of the CPU kernels, k_node set, and clears the report. */
void k_bad_take(KBad *bad);

/* Opens and closes the libraries' handles for the current device.  tf32: products of f32 may use TF32
 * (--matmul-precision).  Failures go to k_fail. */
void k_cuda_open(bool tf32);
void k_cuda_close(void);
size_t k_dnn_version(void); /* 92801: cuDNN 9.28.1 */

/* ---- tuning (tune.cu): between these two, products that are created take the algorithms that were measured ---- */

typedef struct KTuned { int measured, known, unmeasured /* products */, not_understood /* lines */; } KTuned;
/* known: what k_tune_end returned in an earlier run, "": nothing; it must live until k_tune_end.  Products that it
 * lacks are run on k_stream, in device memory that is freed again, after a call of `progress`; where that is NULL, or
 * there is no memory for their operands, they take what the library proposes first, and count as unmeasured.  False,
 * and nothing begins: `known` is of another GPU or another library. */
typedef void KTuneProgress(void *context);
bool k_tune_begin(const char *known, KTuneProgress *progress, void *context);
/* The lines of all products that were created, and the others of `known`; the caller frees them. */
char *k_tune_end(KTuned *counts);
/* What a file is to say whose text is `now`: its lines, and those of `own`, which k_tune_end returned, of products that
 * it lacks, or has in the very lines of `known` that this run did not take.  NULL: `now` is of another GPU or library.
 * The caller frees it. */
char *k_tune_merge(const char *own, const char *known, const char *now);

/* On k_stream, as k_cast_wide of kernels.h; k_fold and k_cast_wide themselves run on the host in CUDA programs, too. */
void k_device_cast(void *out, KDType out_type, const void *in, KDType in_type, int64_t n);
void k_device_cast_f8(uint8_t *out, const float *in, const float *scale, int64_t n); /* as k_cast_f8_wide */
/* As k_cast_by_chance, with the key of id and of the step's seed, and with the step's number.  next: with the number
 * that the step after it will have. */
void k_device_cast_by_chance(void *out, KDType out_type, const float *in, int64_t n, uint64_t id, int64_t first,
	bool next, const StepScalars *s);
void k_device_scale(void *x, KDType type, int64_t n, float scale); /* x = x * scale, rounded once */

#ifdef __cplusplus
}
#endif
#endif
