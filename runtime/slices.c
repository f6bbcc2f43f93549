/* runtime/slices.c: which elements of a tensor lie on a rank.
 *
 * The one idea: a rank holds one range of every flat, and a tensor is another range of the same flat; what
 * weights, checkpoints and resumes move is where the two overlap. */
#include "runtime/internal.h"

/* The elements of a tensor at [offset, offset + numel) of a flat of which [held) is here. */
static LayoutRange overlap(LayoutRange held, const RtTensor *t)
{
	int64_t begin = MAX(held.begin, t->offset), end = MIN(held.begin + held.n, t->offset + tensor_numel(t));
	return end > begin ? (LayoutRange){begin - t->offset, end - begin} : (LayoutRange){0, 0};
}

/* Units of which every rank has a copy rest whole also where one rank owns their states. */
static LayoutRange at_rest(const LayoutUnit *u, int flat, const LayoutRank *who)
{
	LayoutSplit split = layout_split(u->strategy, who);
	int64_t n = layout_shard_numel(u->flat[flat].numel, split.ranks);
	return (LayoutRange){split.index * n, n};
}

LayoutRange slice_of_rank(const RtModel *m, const RtTensor *t, const LayoutRank *who)
{
	if (t->kind != RT_PARAM)
		return (LayoutRange){0, tensor_numel(t)};
	return overlap(at_rest(&m->layout.unit[t->unit], t->flat, who), t);
}

/* held_at: where element held.begin of the flat is. */
static Slice slice(LayoutRange held, const RtTensor *t, void *held_at, DType dtype)
{
	LayoutRange part = overlap(held, t);
	if (!part.n)
		return (Slice){0};
	int64_t skip = t->offset + part.begin - held.begin;
	return (Slice){part.begin, part.n, (char *)held_at + skip * dtype_info[dtype].bytes};
}

Slice slice_at_rest(const Rt *rt, const RtTensor *t)
{
	if (t->kind != RT_PARAM)
		return (Slice){0, tensor_numel(t), device_tensor(rt, t)};
	LayoutRank who = device_rank(rt);
	LayoutRange held = at_rest(&rt->model->layout.unit[t->unit], t->flat, &who);
	return slice(held, t, rt->shard[t->unit][t->flat], t->dtype);
}

Slice slice_state(const Rt *rt, const RtTensor *t, int k)
{
	LayoutRank who = device_rank(rt);
	LayoutRange held = layout_range(&rt->model->layout.unit[t->unit], t->flat, &who);
	return slice(held, t, rt->p->optim.state[k][t->unit][t->flat], DT_F32);
}
