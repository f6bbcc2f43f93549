/* runtime/exec/cuda/tables.c: the optimizer's lists in device memory: segments of every trainable flat, and groups.
 *
 * Places follow from the model alone (a part of a flat has at most as many segments as the flat), so addresses stay the
 * same when a resume or --hyper changes the contents, and captured graphs stay valid. */
#include "runtime/exec/cuda/cuda.h"

_Static_assert(sizeof(Segment) == LAYOUT_CUDA_SEGMENT && sizeof(Group) == LAYOUT_CUDA_GROUP, "as planned");

/* Where the two lists of a flat begin: segments of the whole flat, then those of the part that this rank updates. */
static int64_t place(const Rt *rt, int unit, int flat)
{
	const LayoutModel *l = &rt->model->layout;
	int64_t n = 0;
	for (int u = 0; u <= unit; u++)
		for (int f = 0; f < (u < unit ? l->unit[u].n_flats : flat); f++)
			if (l->unit[u].flat[f].trainable)
				n += 2 * rt->p->optim.segments[u][f].n;
	return n;
}

SegmentList cuda_segments(const Rt *rt, int unit, int flat, bool whole)
{
	const Optimizer *opt = &rt->p->optim;
	if (!rt->model->layout.unit[unit].flat[flat].trainable)
		return (SegmentList){NULL, 0};
	Segment *at = rt->p->cuda->segments + place(rt, unit, flat);
	const SegmentList *all = &opt->segments[unit][flat];
	return whole ? (SegmentList){at, all->n} : (SegmentList){at + all->n, opt->mine[unit][flat].n};
}

const Group *cuda_groups(const Rt *rt)
{
	return rt->p->cuda->groups;
}

static void put_list(const Rt *rt, SegmentList to, const SegmentList *from)
{
	if (from->n)
		device_put(rt, to.at, from->at, from->n * (int64_t)sizeof(*from->at));
}

void device_tables(const Rt *rt)
{
	const Optimizer *opt = &rt->p->optim;
	const LayoutModel *l = &rt->model->layout;
	if (!opt->info)
		return;
	for (int u = 0; u < l->n_units; u++)
		for (int f = 0; f < l->unit[u].n_flats; f++) {
			if (!l->unit[u].flat[f].trainable)
				continue;
			put_list(rt, cuda_segments(rt, u, f, true), &opt->segments[u][f]);
			put_list(rt, cuda_segments(rt, u, f, false), &opt->mine[u][f]);
		}
	device_put(rt, rt->p->cuda->groups, opt->group, 2 * (rt->model->n_groups + 1) * (int64_t)sizeof(Group));
}
