/* runtime/train/sizes.c: in programs of several sizes, whether padding changes the loss.
 *
 * A model may look at padding in ways that no compiler sees: a mean over positions, a mask with the other sense, a
 * window that looks ahead.  So before the first step, the first samples of the run that are smaller than the largest
 * size are evaluated at their size and at the largest, there with other token ids as padding, and a difference is
 * reported. */
#include <math.h>

#include "runtime/train/train.h"

enum { LOOKED_AT = 64 }; /* steps in whose samples a smaller size is looked for */

/* The loss of the run's samples from `first` on, one batch for each rank. */
static double loss_at(Session *s, int size, int64_t first)
{
	Rt *rt = &s->rt;
	StepScalars scalars = s->p.scalars;
	session_size(s, size);
	streams_program(rt, PROGRAM_EVAL);
	step_begin(rt, &scalars);
	data_load(&s->train, step_input(rt), first + s->p.world.rank * s->train.batch);
	step_run(rt, PROGRAM_EVAL, 0);
	step_sums(rt);
	streams_program(rt, PROGRAM_OUTSIDE);
	double sums[2] = {rt->loss_sum, rt->loss_weight};
	if (s->p.comm)
		comm_sum(s->p.comm, sums, COUNT_OF(sums));
	return sums[1] > 0 ? sums[0] / (rt->model->loss.adds ? 1 : sums[1]) : 0;
}

/* Whether products round so coarsely that only large differences tell something. */
static bool is_coarse(const Session *s)
{
	const LayoutModel *l = &s->rt.model->layout;
	for (int u = 0; u < l->n_units; u++)
		for (int f = 0; f < l->unit[u].n_flats; f++)
			if (dtype_is_half(l->unit[u].flat[f].param))
				return true;
	return s->rt.model->tf32;
}

void sizes_check(Session *s)
{
	int largest = s->rt.model->n_sizes - 1, size = largest;
	int64_t round = session_world(s) * s->train.batch, at = s->p.progress.samples - round;
	if (largest < 1 || !s->rt.model->eval)
		return;
	for (int i = 0; i < LOOKED_AT && size == largest; i++)
		size = data_size(&s->train, at += round, round);
	if (size == largest)
		return;
	double small = loss_at(s, size, at);
	s->train.sizes.other = true;
	double large = loss_at(s, largest, at);
	s->train.sizes.other = false;
	BadInput bad;
	bool met = report_take_bad_input(&bad); /* the step in which it is met again says it */
	if (!met && session_is_first(s) && fabs(small - large) > (is_coarse(s) ? 1e-2 : 2e-5) * fabs(large))
		diag_warn(s->d, s->o.program, "padding changes the loss: the same samples give %.6g at %s and %.6g at %s, with "
			"other padding: the model looks at padding, in a mean over positions, say, or by a mask of the other sense "
			"(docs/shapes.md)",
			small, s->rt.model->sizes[size].name, large, s->rt.model->sizes[largest].name);
}
