/* runtime/exec/cuda/step.c: a step on a GPU: the host issues it and takes its result later.
 *
 * The copy stream moves inputs of a micro-batch from one of two pinned slots to a staging area of the device while the
 * previous micro-batch computes; a copy inside the device moves them on to the input arena, whose addresses the
 * program's code has.  The numbers that change from step to step (StepInput) travel with them, so programs that are
 * replayed as graphs need no change.  The result of a step (StepOutcome) is copied to pinned memory at its end, and
 * read when a session asks for it.
 *
 * Only step_input (for a slot that is still being read), step_result and step_sums wait. */
#include <stddef.h>
#include <string.h>

#include "runtime/exec/cuda/backend.h"
#include "runtime/exec/cuda/cuda.h"
#include "runtime/exec/cuda/graph.h"
#include "runtime/exec/cuda/step.h"

enum { SLOTS = LAYOUT_CUDA_SLOTS, DEPTH = LAYOUT_CUDA_SLOTS };
_Static_assert(sizeof(StepState) <= LAYOUT_CUDA_STATE, "the plan has room for the state of a step");
_Static_assert(sizeof(StepInput) <= LAYOUT_CUDA_INPUT, "the plan has room for what a micro-batch is told");
_Static_assert(sizeof(StepOutcome) <= LAYOUT_CUDA_OUTCOME, "the plan has room for what a step leaves");

struct CudaStep {
	StepState *state;           /* device */
	StepSums *all;              /* device: the sums of all ranks */
	char *staging;              /* device: the next micro-batch's inputs, followed by its StepInput */
	char *slot[SLOTS];          /* pinned: same contents as the staging area */
	StepOutcome *outcome[DEPTH]; /* pinned */
	int64_t inputs;             /* bytes of the input arena */
	int64_t sent, issued, taken; /* counts: micro-batches sent, steps issued, results taken */
	StepScalars scalars;        /* scalars of the step that is being issued */
	bool first;                 /* the next micro-batch is the first of that step */
	cudaEvent_t copied[SLOTS], read, done[DEPTH];
};

static CudaStep *step_of(const Rt *rt)
{
	return rt->p->cuda->step;
}

static cudaStream_t compute(const Rt *rt)
{
	return rt->p->cuda->stream[CUDA_COMPUTE];
}

static void copy(void *to, const void *from, int64_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	cuda_must(cudaMemcpyAsync(to, from, (size_t)bytes, kind, stream), "cudaMemcpyAsync");
}

/* ---- life ---- */

static void first_state(const Rt *rt, CudaStep *t)
{
	StepState first = {.counters = {rt->p->progress.updates, rt->p->progress.loss_scale}, .bad_sample0 = -1};
	device_put(rt, t->state, &first, (int64_t)sizeof(first));
}

void step_open(Rt *rt)
{
	Cuda *c = rt->p->cuda;
	CudaStep *t = c->step = NEW(rt->p->arena, CudaStep);
	t->inputs = rt->p->memory.planned[ARENA_INPUTS];
	t->state = (StepState *)(void *)c->step_state;
	t->all = (StepSums *)(void *)(c->step_state + LAYOUT_CUDA_STATE);
	t->staging = c->step_staging;
	for (int i = 0; i < SLOTS; i++) {
		t->slot[i] = c->step_slot[i];
		cuda_must(cudaEventCreateWithFlags(&t->copied[i], cudaEventDisableTiming), "cudaEventCreate");
	}
	for (int i = 0; i < DEPTH; i++) {
		t->outcome[i] = (StepOutcome *)(void *)(c->step_outcome + i * LAYOUT_CUDA_OUTCOME);
		cuda_must(cudaEventCreateWithFlags(&t->done[i], cudaEventDisableTiming), "cudaEventCreate");
	}
	cuda_must(cudaEventCreateWithFlags(&t->read, cudaEventDisableTiming), "cudaEventCreate");
	rt->scalars = &t->state->scalars;
	first_state(rt, t);
	copies_open(rt);
	graph_open(rt);
}

void step_close(Rt *rt)
{
	CudaStep *t = rt->p->cuda ? step_of(rt) : NULL;
	if (!t)
		return;
	graph_close(rt);
	copies_close(rt);
	for (int i = 0; i < SLOTS; i++)
		cudaEventDestroy(t->copied[i]);
	for (int i = 0; i < DEPTH; i++)
		cudaEventDestroy(t->done[i]);
	cudaEventDestroy(t->read);
	rt->p->cuda->step = NULL;
}

/* ---- issuing ---- */

void step_begin(Rt *rt, const StepScalars *s)
{
	CudaStep *t = step_of(rt);
	t->scalars = *s;
	t->first = true;
	check_begin(rt);
}

char *step_input(Rt *rt)
{
	CudaStep *t = step_of(rt);
	int k = (int)(t->sent % SLOTS);
	if (t->sent >= SLOTS)
		cuda_must(cudaEventSynchronize(t->copied[k]), "cudaEventSynchronize");
	return t->slot[k];
}

static StepInput input_of(const Rt *rt, const CudaStep *t, Program program, int64_t sample0)
{
	bool ends = program == PROGRAM_STEP || program == PROGRAM_LAST;
	StepInput in = {.scalars = t->scalars, .rules = report_rules(rt), .first = t->first};
	in.scalars.sample0 = sample0;
	if (ends)
		in.asked = report_asked(rt);
	return in;
}

/* Copies inputs with samples; those without a sample axis keep what --const loaded. */
static void take_samples(Rt *rt, const CudaStep *t, cudaStream_t stream)
{
	for (int i = 0; i < rt->model->n_tensors; i++) {
		const RtTensor *x = &rt->model->tensors[i];
		if (x->kind == RT_INPUT && x->batched)
			copy(rt->input + x->offset, t->staging + x->offset, tensor_bytes(x), cudaMemcpyDeviceToDevice, stream);
	}
}

/* Sends the next micro-batch's inputs.  The staging area is free once the previous micro-batch has read it at its
 * start. */
static void send(Rt *rt, CudaStep *t)
{
	int k = (int)(t->sent % SLOTS);
	int64_t behind = round_up(t->inputs, LAYOUT_ALIGN);
	cudaStream_t to = rt->p->cuda->stream[CUDA_COPY], at = compute(rt);
	if (t->sent > 0)
		cuda_must(cudaStreamWaitEvent(to, t->read, 0), "cudaStreamWaitEvent");
	copy(t->staging, t->slot[k], behind + (int64_t)sizeof(StepInput), cudaMemcpyHostToDevice, to);
	cuda_must(cudaEventRecord(t->copied[k], to), "cudaEventRecord");
	cuda_must(cudaStreamWaitEvent(at, t->copied[k], 0), "cudaStreamWaitEvent");
	take_samples(rt, t, at);
	step_launch_begin(t->state, (const StepInput *)(const void *)(t->staging + behind), k_bad_report, at);
	cuda_must(cudaEventRecord(t->read, at), "cudaEventRecord");
	t->sent++;
}

void step_run(Rt *rt, Program program, int64_t sample0)
{
	CudaStep *t = step_of(rt);
	StepInput in = input_of(rt, t, program, sample0);
	memcpy(t->slot[t->sent % SLOTS] + round_up(t->inputs, LAYOUT_ALIGN), &in, sizeof(in));
	t->first = false;
	send(rt, t);
	graph_run(rt, program);
}

void step_end(Rt *rt)
{
	CudaStep *t = step_of(rt);
	int k = (int)(t->issued % DEPTH);
	if (t->issued - t->taken == DEPTH)
		ice("more than %d steps are under way", DEPTH);
	copy(t->outcome[k], &t->state->outcome, (int64_t)sizeof(StepOutcome), cudaMemcpyDeviceToHost, compute(rt));
	cuda_must(cudaEventRecord(t->done[k], compute(rt)), "cudaEventRecord");
	t->issued++;
}

/* ---- results ---- */

/* With --check-nan the host looks at the result of every op, so steps do not overlap. */
int step_depth(const Rt *rt)
{
	return rt->model->n_checks ? 1 : DEPTH;
}

/* A report of bad input from a later step stays until the result of that step is taken. */
void step_result(Rt *rt)
{
	CudaStep *t = step_of(rt);
	struct RtPrivate *p = rt->p;
	int k = (int)(t->taken % DEPTH);
	const StepOutcome *out = t->outcome[k];
	cuda_must(cudaEventSynchronize(t->done[k]), "a step");
	streams_trust(rt);
	p->scalars = out->scalars;
	p->sums = out->sums;
	p->result = out->result;
	p->bad_sample0 = out->bad_sample0;
	p->progress.updates = out->counters.updates;
	p->progress.loss_scale = out->counters.loss_scale;
	if (out->bad_sample0 >= 0)
		k_bad_take(p->cuda->bad);
	t->taken++;
}

void step_sums(Rt *rt)
{
	CudaStep *t = step_of(rt);
	StepSums *mine = &t->outcome[0]->sums;
	copy(mine, &t->state->mine, (int64_t)sizeof(*mine), cudaMemcpyDeviceToHost, compute(rt));
	cuda_must(cudaStreamSynchronize(compute(rt)), "an evaluation");
	streams_trust(rt);
	rt->loss_sum = mine->loss;
	rt->loss_weight = mine->weight;
	rt->correct = mine->correct;
	rt->counted = mine->counted;
	k_bad_take(rt->p->cuda->bad);
}

void step_not_finite(Rt *rt, const void *x, int64_t n, DType dtype, int64_t *nan, int64_t *inf)
{
	CudaStep *t = step_of(rt);
	int64_t *found = t->state->found, *seen = (int64_t *)(void *)t->outcome[0];
	k_not_finite(&found[0], &found[1], x, n, (KDType)dtype);
	copy(seen, found, 2 * (int64_t)sizeof(*found), cudaMemcpyDeviceToHost, compute(rt));
	cuda_must(cudaStreamSynchronize(compute(rt)), "--check-nan");
	streams_trust(rt);
	*nan = seen[0];
	*inf = seen[1];
}

/* ---- calls by programs ---- */

void rt_report_loss(Rt *rt, const float *sum, const float *weight, bool mean)
{
	step_launch_loss(step_of(rt)->state, sum, weight, mean, compute(rt));
}

void rt_report_accuracy(Rt *rt, const void *logits, KDType type, const int64_t *labels, int64_t rows, int64_t c,
	int64_t ignore_index)
{
	char *mine = (char *)&step_of(rt)->state->mine; /* correct and counted, side by side */
	k_accuracy((double *)(void *)(mine + offsetof(StepSums, correct)), logits, type, labels, rows, c, ignore_index);
}

void rt_all_reduce_scalars(Rt *rt, int seq)
{
	CudaStep *t = step_of(rt);
	step_launch_close(t->state, k_bad_report, rt->p->check.found, compute(rt));
	if (!streams_talk(rt))
		return;
	streams_sync_begin(rt, seq);
	streams_gather(rt, t->all, &t->state->mine, (int64_t)sizeof(StepSums));
	streams_sync_end(rt, RT_ALL_REDUCE_SCALARS, (int64_t)sizeof(StepSums) * (rt->p->world.size - 1));
}

void rt_step_scalars(Rt *rt)
{
	CudaStep *t = step_of(rt);
	int ranks = MAX(rt->p->world.size, 1);
	step_launch_decide(t->state, streams_talk(rt) ? t->all : &t->state->mine, ranks, compute(rt));
}
