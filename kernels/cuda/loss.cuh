/* kernels/cuda/loss.cuh: cross-entropy of a block of rows of logits, for kernels that have some of the rows at a
 * time. */
#ifndef SHARDC_CUDA_LOSS_CUH
#define SHARDC_CUDA_LOSS_CUH

#include "kernels/cuda/common.cuh"

struct LossBlock {
	void *logits;         /* (rows, c) of type f32, bf16 or f16, rows `pitch` elements apart */
	KDType type;
	const float *weights; /* (c) or NULL */
	const int64_t *labels;
	float *lse;           /* (rows): log-sum-exps; not of loss_block_grad */
	int64_t rows, c, pitch, ignore_index;
	double smoothing;
	int64_t first;        /* number of the first row, for messages */
};

/* Makes lse and, in parts, the loss and the weight of each chunk of rows.  Returns how many chunks there are; rows are
 * at least as many. */
int64_t loss_block(const LossBlock &b, double *parts);
void loss_join(float *sum, float *weight, const double *parts, int64_t chunks);
/* The same but for lse, and the logits become their gradient. */
int64_t loss_block_grad(const LossBlock &b, double *parts, const float *dloss);
/* best (rows): the first of the largest of each row. */
void loss_block_arg_max(int64_t *best, const LossBlock &b);

#endif
