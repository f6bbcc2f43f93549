/* runtime/exec/cuda/step_kernels.cu: the small kernels of a step: its sums, and what the device decides for the next
 * step.
 *
 * Each runs as one thread and adds a few numbers in the same order as the CPU.
 *
 * The rules are in runtime/scalars.h, which the CPU uses, too. */
#include "kernels/cuda/common.cuh"
#include "runtime/exec/cuda/step.h"

/* Notes the first micro-batch of a step that has met bad input. */
static __device__ void note_bad(StepState *s, const KBad *bad)
{
	if (s->bad_sample0 < 0 && *(const volatile int *)&bad->kind != K_BAD_NONE)
		s->bad_sample0 = s->scalars.sample0;
}

static __global__ void begin(StepState *s, const StepInput *in, const KBad *bad)
{
	if (in->first) {
		memset(&s->mine, 0, sizeof(s->mine));
		s->bad_sample0 = -1;
	} else {
		note_bad(s, bad);
	}
	s->in = *in;
	s->scalars = in->scalars;
	s->scalars.step = s->counters.updates + 1;
	s->scalars.clip_coef = 1;
	s->scalars.loss_scale = (float)s->counters.loss_scale.scale;
}

static __global__ void add_loss(StepState *s, const float *sum, const float *weight, bool mean)
{
	s->mine.loss += *sum;
	s->mine.weight += mean ? 1 : *weight;
}

static __global__ void close_sums(StepState *s, const KBad *bad, bool found)
{
	note_bad(s, bad);
	s->mine.bad_input = s->bad_sample0 >= 0;
	s->mine.asked = s->in.asked;
	s->mine.not_finite = found;
}

static __global__ void decide(StepState *s, const StepSums *of, int n)
{
	StepOutcome *out = &s->outcome;
	const StepRules *rules = &s->in.rules;
	out->sums = of[0];
	for (int r = 1; r < n; r++)
		scalars_add(&out->sums, &of[r], rules->norm_p);
	scalars_decide(&s->scalars, &out->result, &out->sums, rules, &s->counters.loss_scale);
	s->halted = s->halted || scalars_halt(&out->result, &out->sums, rules);
	if (s->halted)
		s->scalars.skip = 1;
	else
		scalars_advance(&s->counters, &s->scalars, &out->result, rules);
	out->scalars = s->scalars;
	out->counters = s->counters;
	out->bad_sample0 = s->bad_sample0;
}

extern "C" void step_launch_begin(StepState *s, const StepInput *in, const KBad *bad, cudaStream_t stream)
{
	LAUNCH(begin, 1, 1, 0, stream, s, in, bad);
}

extern "C" void step_launch_loss(StepState *s, const float *sum, const float *weight, bool mean, cudaStream_t stream)
{
	LAUNCH(add_loss, 1, 1, 0, stream, s, sum, weight, mean);
}

extern "C" void step_launch_close(StepState *s, const KBad *bad, bool found, cudaStream_t stream)
{
	LAUNCH(close_sums, 1, 1, 0, stream, s, bad, found);
}

extern "C" void step_launch_decide(StepState *s, const StepSums *of, int n, cudaStream_t stream)
{
	LAUNCH(decide, 1, 1, 0, stream, s, of, n);
}
