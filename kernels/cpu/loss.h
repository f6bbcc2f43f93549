/* kernels/cpu/loss.h: cross-entropy of rows of logits, for kernels that have some of the rows at a time. */
#ifndef SHARDC_CPU_LOSS_H
#define SHARDC_CPU_LOSS_H

#include "kernels/kernels.h"

typedef struct Logits { const void *at; KDType type; int64_t rows, c, pitch; } Logits; /* pitch: from row to row */
typedef struct LossRule {
	const int64_t *labels;
	const float *weights; /* may be NULL */
	int64_t ignore_index;
	double smoothing;
	int64_t first;        /* number of the first row, for messages */
} LossRule;
typedef struct LossSums { double loss, weight; } LossSums;

/* lse (rows) gets the log-sum-exp of each row. */
LossSums loss_of_rows(float *lse, Logits x, LossRule rule);
/* dlogits, of the logits' type and pitch, may be the logits. */
void loss_grad_rows(void *dlogits, float dloss, const float *lse, Logits x, LossRule rule);
/* best (rows): the first of the largest of each row. */
void loss_arg_max(int64_t *best, Logits x);

#endif
