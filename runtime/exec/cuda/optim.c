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

/* Whether elements of a flat gradient belong to no parameter. */
static bool has_gaps(const SegmentList *seg, int64_t numel)
{
	for (int64_t i = 0; i < seg->n; i++)
		numel -= seg->at[i].length;
	return numel > 0;
}

void rt_zero_gaps(Rt *rt, int unit)
{
	const LayoutUnit *u = &rt->model->layout.unit[unit];
	LayoutRank who = device_rank(rt);
	int64_t ranks = layout_split(u->strategy, &who).ranks;
	for (int f = 0; f < u->n_flats; f++) {
		SegmentList seg = cuda_segments(rt, unit, f, true);
		int64_t numel = layout_flat_numel(u->flat[f].numel, ranks);
		if (u->flat[f].trainable && has_gaps(&rt->p->optim.segments[unit][f], numel))
			k_zero_gaps(rt->grad[unit][f], numel, seg.at, seg.n, dtype_info[u->flat[f].grad].bytes);
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
			if (u->flat[f].trainable)
				k_norm(&state_of(rt)->mine.norm, rt->grad_shard[units[i]][f], (KDType)layout_update_dtype(u, f, &who),
					seg.at, seg.n, p, parts);
		}
	}
}

void step_cast(const Rt *rt, const Cast *c)
{
	streams_cast(rt, c, compute(rt));
}

void rt_update_shard(Rt *rt, int unit)
{
	for (int f = 0; f < rt->model->layout.unit[unit].n_flats; f++)
		optim_update(rt, unit, f, cuda_segments(rt, unit, f, false), cuda_groups(rt));
}
