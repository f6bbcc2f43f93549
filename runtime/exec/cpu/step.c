/* runtime/exec/cpu/step.c: a step on the CPU, which runs in the calling thread: its programs, and the rt_* calls that
 * compute.
 *
 * When step_run returns, the work is done and the results are there; sums of loss, accuracy and gradients are f64
 * numbers. */
#include "runtime/exec/private.h"

/* ---- programs ---- */

void step_open(Rt *rt)
{
	(void)rt;
}

void step_close(Rt *rt)
{
	(void)rt;
}

void step_begin(Rt *rt, const StepScalars *s)
{
	rt->p->scalars = *s;
	rt->loss_sum = rt->loss_weight = rt->correct = rt->counted = 0;
	rt->p->optim.norm = 0;
	rt->p->sums = (StepSums){.asked.stop = -1};
	rt->p->bad_sample0 = -1;
	check_begin(rt);
}

char *step_input(Rt *rt)
{
	return rt->input;
}

void step_run(Rt *rt, Program program, int64_t sample0)
{
	const RtModel *m = rt->model;
	RtProgram alone = {.forward = m->forward, .backward = m->backward, .update = m->update};
	rt->p->scalars.sample0 = sample0;
	trace_program(rt, program);
	if (program == PROGRAM_EVAL) {
		m->eval(rt);
	} else {
		const RtProgram *p = program == PROGRAM_STEP ? &alone : &m->programs[program - PROGRAM_FIRST];
		p->forward(rt);
		p->backward(rt);
		p->update(rt);
	}
	trace_program_end(rt);
	if (rt->p->bad_sample0 < 0 && report_has_bad_input())
		rt->p->bad_sample0 = sample0;
}

void step_end(Rt *rt)
{
	(void)rt;
}

int step_depth(const Rt *rt)
{
	(void)rt;
	return 1;
}

void step_result(Rt *rt)
{
	struct RtPrivate *p = rt->p;
	StepRules rules = report_rules(rt);
	StepCounters now = {p->progress.updates, p->progress.loss_scale};
	if (scalars_halt(&p->result, &p->sums, &rules))
		return;
	scalars_advance(&now, &p->scalars, &p->result, &rules);
	p->progress.updates = now.updates;
	p->progress.loss_scale = now.loss_scale;
}

void step_sums(Rt *rt)
{
	(void)rt;
}

void step_not_finite(Rt *rt, const void *x, int64_t n, DType dtype, int64_t *nan, int64_t *inf)
{
	(void)rt;
	k_not_finite(nan, inf, x, n, (KDType)dtype);
}

/* ---- what a step reports ---- */

void rt_report_loss(Rt *rt, const float *sum, const float *weight, bool mean)
{
	rt->loss_sum += *sum;
	rt->loss_weight += mean ? 1 : *weight;
}

void rt_report_accuracy(Rt *rt, const void *logits, KDType type, const int64_t *labels, int64_t rows, int64_t c,
	int64_t ignore_index)
{
	double hits[2] = {0, 0};
	k_accuracy(hits, logits, type, labels, rows, c, ignore_index);
	rt->correct += hits[0];
	rt->counted += hits[1];
}

void rt_step_scalars(Rt *rt)
{
	struct RtPrivate *p = rt->p;
	StepRules rules = report_rules(rt);
	if (p->sums.asked.stop < 0)
		ice("the program did not sum its scalars up");
	scalars_decide(rt->scalars, &p->result, &p->sums, &rules, &p->progress.loss_scale);
}

/* ---- gradients and updates ---- */

void rt_zero_gaps(Rt *rt, int unit)
{
	const LayoutUnit *u = &rt->model->layout.unit[unit];
	LayoutRank who = device_rank(rt);
	int64_t ranks = layout_split(u->strategy, &who).ranks;
	for (int f = 0; f < u->n_flats; f++) {
		const SegmentList *seg = &rt->p->optim.segments[unit][f];
		if (u->flat[f].trainable)
			k_zero_gaps(rt->grad[unit][f], layout_flat_numel(u->flat[f].numel, ranks), seg->at, seg->n,
				dtype_info[u->flat[f].grad].bytes);
	}
}

void rt_sumsq(Rt *rt, const int *units, int n)
{
	LayoutRank who = device_rank(rt);
	double p = optim_norm_p(rt->model);
	for (int i = 0; i < n; i++) {
		const LayoutUnit *u = &rt->model->layout.unit[units[i]];
		for (int f = 0; f < u->n_flats && layout_counts(u, &who); f++) {
			const SegmentList *seg = &rt->p->optim.mine[units[i]][f];
			if (u->flat[f].trainable)
				k_norm(&rt->p->optim.norm, rt->grad_shard[units[i]][f], (KDType)layout_update_dtype(u, f, &who),
					seg->at, seg->n, p, NULL);
		}
	}
}

void step_cast(const Rt *rt, const Cast *c)
{
	chance_cast(rt, c);
}

void rt_update_shard(Rt *rt, int unit)
{
	offload_before_update(rt, unit);
	for (int f = 0; f < rt->model->layout.unit[unit].n_flats; f++)
		optim_update(rt, unit, f, rt->p->optim.mine[unit][f], rt->p->optim.group);
	offload_after_update(rt, unit);
}
