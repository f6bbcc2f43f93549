/* runtime/exec/cuda/step.h: what of a step lies in device memory, and the small kernels that work on it.
 *
 * The one idea: what decides how the next step goes (updates done, loss scale, whether the run has halted) is in
 * StepState, so the host issues a step before it knows how the one before went; a step behind one that halts changes
 * nothing that is kept. */
#ifndef SHARDC_RUNTIME_CUDA_STEP_H
#define SHARDC_RUNTIME_CUDA_STEP_H

#include "kernels/cuda/cuda.h"
#include "runtime/scalars.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the host tells a micro-batch.  It travels behind the inputs, in the same copy. */
typedef struct StepInput {
	StepScalars scalars;        /* what the host knows of them */
	StepRules rules;
	StepAsked asked;            /* of this rank */
	int32_t first;              /* of its step */
} StepInput;

/* What a step tells the host: copied to pinned memory at its end. */
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
	double part;                /* result of k_norm */
	int64_t found[2];           /* of k_not_finite */
	StepCounters counters;
	int64_t bad_sample0;
	int32_t halted;
	StepOutcome outcome;
} StepState;

/* The micro-batch at `in` begins; the sums and counters of the step, where it is the first.  bad: where kernels report
 * bad input, as the device sees it. */
void step_launch_begin(StepState *s, const StepInput *in, const KBad *bad, cudaStream_t stream);
void step_launch_loss(StepState *s, const float *sum, const float *weight, bool mean, cudaStream_t stream);
/* Joins what k_norm left in part to the norm of the step. */
void step_launch_norm(StepState *s, double p, cudaStream_t stream);
/* Closes the sums of this rank.  found: --check-nan found something. */
void step_launch_close(StepState *s, const KBad *bad, bool found, cudaStream_t stream);
/* Sums of n ranks, in their order, and what follows from them. */
void step_launch_decide(StepState *s, const StepSums *of, int n, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
