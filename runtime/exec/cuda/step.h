/* runtime/exec/cuda/step.h: the state of a step in device memory, and the small kernels that work on it.
 *
 * Everything that the next step depends on (updates done, loss scale, whether the run has halted) is in StepState, so
 * the host can issue a step before it knows the outcome of the previous one; a step after one that halts changes
 * nothing that is kept. */
#ifndef SHARDC_RUNTIME_CUDA_STEP_H
#define SHARDC_RUNTIME_CUDA_STEP_H

#include "kernels/cuda/cuda.h"
#include "runtime/scalars.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the host passes to a micro-batch.  It follows the inputs in the same copy. */
typedef struct StepInput {
	StepScalars scalars;        /* as far as the host knows them */
	StepRules rules;
	StepAsked asked;            /* of this rank */
	int32_t first;              /* whether it is the first of its step */
} StepInput;

/* What a step reports to the host; copied to pinned memory at its end. */
typedef struct StepOutcome {
	StepScalars scalars;
	StepSums sums;
	StepResult result;
	StepCounters counters;
	int64_t bad_sample0;        /* of the first micro-batch in which this rank met bad data; -1: none */
} StepOutcome;

typedef struct StepState {
	StepScalars scalars;        /* Rt.scalars */
	StepInput in;               /* of the micro-batch that runs */
	StepSums mine;              /* of this rank since the step began */
	int64_t found[2];           /* of k_not_finite */
	StepCounters counters;
	int64_t bad_sample0;
	int32_t halted;
	StepOutcome outcome;
} StepState;

/* Begins the micro-batch whose input is `in`; if it is the first of its step, also resets the step's sums.  bad: where
 * kernels report bad input, as a device pointer. */
void step_launch_begin(StepState *s, const StepInput *in, const KBad *bad, cudaStream_t stream);
void step_launch_loss(StepState *s, const float *sum, const float *weight, bool mean, cudaStream_t stream);
/* Completes the sums of this rank.  found: --check-nan found something. */
void step_launch_close(StepState *s, const KBad *bad, bool found, cudaStream_t stream);
/* Adds the sums of n ranks, in rank order, and decides what follows from them. */
void step_launch_decide(StepState *s, const StepSums *of, int n, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
