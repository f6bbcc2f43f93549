/* runtime/exec/scales.c: weights that are gathered in 8 bits, each divided by its scale (passes/fp8_gather.c).
 *
 * The rows of RtModel.scales of one flat tile it: a row reaches to where the next one begins, the last to the flat's
 * end, and what no parameter covers is zero.  So each element of a shard has one scale. */
#include "kernels/f8.h"
#include "runtime/exec/private.h"

float *scales_at(const Rt *rt, int k)
{
	return rt->p->scales + k * (int)(LAYOUT_SCALE_BYTES / sizeof(float));
}

/* The part of elements [first, first + n) of a flat whose scale is number k. */
static LayoutRange part_of(const RtModel *m, int k, int64_t first, int64_t n)
{
	const RtScale *s = &m->scales[k], *next = k + 1 < m->n_scales ? s + 1 : NULL;
	int64_t begin = MAX(s->begin, first), end = first + n;
	if (next && next->unit == s->unit && next->flat == s->flat)
		end = MIN(end, next->begin);
	return (LayoutRange){begin, MAX(end - begin, 0)};
}

void scales_largest(const Rt *rt, float *most, int64_t stride)
{
	LayoutRank who = device_rank(rt);
	for (int k = 0; k < rt->model->n_scales; k++) {
		const RtScale *s = &rt->model->scales[k];
		const LayoutUnit *u = &rt->model->layout.unit[s->unit];
		LayoutSplit split = layout_split(u->strategy, &who);
		int64_t n = layout_shard_numel(u->flat[s->flat].numel, split.ranks), first = split.index * n;
		LayoutRange mine = part_of(rt->model, k, first, n);
		const float *shard = rt->shard[s->unit][s->flat];
		if (mine.n)
			k_f8_largest_f32(most + k * stride, shard + (mine.begin - first), mine.n);
	}
}

void scales_cast(const Rt *rt, const Cast *c, ScaledCast *use)
{
	int64_t first = c->first;
	for (int k = 0; k < rt->model->n_scales; k++) {
		const RtScale *s = &rt->model->scales[k];
		LayoutRange part = part_of(rt->model, k, first, c->n);
		int64_t skip = part.begin - first;
		if (s->unit == c->unit && s->flat == c->flat && part.n)
			use((uint8_t *)c->to + skip, (const float *)c->from + skip, scales_at(rt, k), part.n);
	}
}
