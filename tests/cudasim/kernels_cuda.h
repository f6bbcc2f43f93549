/* tests/cudasim/kernels_cuda.h: cases of kernels_cuda.c, by name. */
#ifndef SHARDC_KERNELS_CUDA_CASES_H
#define SHARDC_KERNELS_CUDA_CASES_H

#include "tests/unit/kernel_cases.h"

#define KERNEL_CUDA_CASES(X) X(casts) X(chance) X(scale) X(head_pads) X(not_finite) X(accuracy) X(odd) \
	X(many_rows) X(many_groups) X(many_heads) X(memory) X(nothing) X(attention) X(attention_masks)
#define CUDA_CASE(name) void case_cuda_##name(void);
KERNEL_CUDA_CASES(CUDA_CASE)
#undef CUDA_CASE

/* Of attention: whether cuDNN computes it; whether it has gradients for the device. */
bool cuda_by_library(const KPrim *p);
bool cuda_before_blackwell(void);
/* The emulation's cuDNN, without CUDASIM_CUDNN, serves all that our kernels ask it for; another one may refuse some. */
bool cuda_serves_all(void);

/* The dims of attention's operands and of its output. */
typedef struct AttentionDims { int64_t q[4], k[4], v[4], o[4]; } AttentionDims;
AttentionDims cuda_attention_dims(const KAttention *a);

#endif
