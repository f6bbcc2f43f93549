/* runtime/exec/cuda/optim.c: the rt_* calls for gradients and updates of flats, as kernels on tables in device memory.
 *
 * It does the same as cpu/step.c, but segments and groups are the device's copies, and sums that the CPU adds on the
 * host stay on the device. */
#include "kernels/cuda/work.h"
#include "runtime/exec/cuda/backend.h"
#include "runtime/exec/cuda/cuda.h"
#include "runtime/exec/cuda/step.h"

_Static_assert((int)LAYOUT_CUDA_CHUNKS == (int)K_FLAT_CHUNKS, "the plan has room for the parts of a norm");

static cudaStream_t compute(const Rt *rt)
{
	return rt->p->cuda->stream[CUDA_COMPUTE];
}

/* Rt.scalars points to the first field of the step's state. */
static StepState *state_of(const Rt *rt)
{
	return (StepState *)(void *)rt->scalars;
}

void rt_zero_gaps(Rt *rt, int unit)
{
	const LayoutUnit *u = &rt->model->layout.unit[unit];
	LayoutRank who = device_rank(rt);
	int64_t ranks = layout_split(u->strategy, &who).ranks;
	for (int f = 0; f < u->n_flats; f++) {
		SegmentList seg = cuda_segments(rt, unit, f, true);
		if (u->flat[f].trainable)
			k_zero_gaps(rt->grad[unit][f], layout_flat_numel(u->flat[f].numel, ranks), seg.at, seg.n,
				dtype_info[u->flat[f].grad].bytes);
	}
}

void rt_sumsq(Rt *rt, const int *units, int n)
{
	LayoutRank who = device_rank(rt);
	double p = optim_norm_p(rt->model);
	void *parts = rt->p->cuda->step_norm;
	for (int i = 0; i < n; i++) {
		const LayoutUnit *u = &rt->model->layout.unit[units[i]];
		for (int f = 0; f < u->n_flats && layout_counts(u, &who); f++) {
			SegmentList seg = cuda_segments(rt, units[i], f, false);
			if (!u->flat[f].trainable || seg.n == 0)
				continue;
			k_norm(&state_of(rt)->part, NULL, rt->grad_shard[units[i]][f], (KDType)layout_update_dtype(u, f, &who),
				seg.at, seg.n, p, parts);
			step_launch_norm(state_of(rt), p, compute(rt));
		}
	}
}

/* As round_working_copy of cpu/step.c. */
static void round_working_copy(const Rt *rt, int unit, int f)
{
	const LayoutFlat *flat = &rt->model->layout.unit[unit].flat[f];
	const float *master = rt->p->optim.master[unit][f];
	void *to = rt->shard[unit][f], *half = flat->dtype == flat->bcast ? to : rt->grad_shard[unit][f];
	int64_t n = layout_flat_numel(flat->numel, 1);
	streams_cast(rt, &(Cast){.to = half, .from = master, .made = flat->bcast, .given = DT_F32, .n = n,
		.chance = {.on = rt->model->by_chance, .next = true, .unit = unit, .flat = f}}, compute(rt));
	if (half != to)
		k_device_cast(to, (KDType)flat->dtype, half, (KDType)flat->bcast, n);
}

void rt_update_shard(Rt *rt, int unit)
{
	Optimizer *opt = &rt->p->optim;
	const LayoutUnit *u = &rt->model->layout.unit[unit];
	LayoutRank who = device_rank(rt);
	for (int f = 0; f < u->n_flats; f++) {
		SegmentList seg = cuda_segments(rt, unit, f, false);
		if (!u->flat[f].trainable || seg.n == 0)
			continue;
		bool master = u->flat[f].master;
		KUpdate update = {.p = master ? opt->master[unit][f] : rt->shard[unit][f], .g = rt->grad_shard[unit][f],
			.g_type = (KDType)layout_update_dtype(u, f, &who), .segment = seg.at, .n_segments = seg.n,
			.group = cuda_groups(rt), .s = rt->scalars, .nesterov = opt->nesterov};
		for (int k = 0; k < opt->n_states; k++)
			update.state[k] = opt->state[k][unit][f];
		optim_update(opt, &update);
		if (master)
			round_working_copy(rt, unit, f);
	}
}
