/* runtime/report.c: what a step says of itself: loss, accuracy, gradient norm, bad data; and the scalars
 * that follow from them for the update.
 *
 * Sums are f64 on the host, over all ranks.  The update is left out (skip = 1) when there is nothing to learn from (no
 * valid element), when a number is not finite, and when a kernel met data that is out of range.
 *
 * The one idea: backward is seeded 1/n for a static n and gradients are averaged over the W ranks; what the
 * true count C of all ranks makes of it is one factor, n*W/C, which reaches the update kernels as grad_scale, over the
 * loss scale that backward began with. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/internal.h"

/* Kernels report from any thread and know no Rt; the first message is kept. */
static atomic_int bad_input_state; /* 0 none, 1 being written, 2 there */
static char bad_input_text[400];

void rt_bad_input(const char *fmt, ...)
{
	int none = 0;
	if (!atomic_compare_exchange_strong(&bad_input_state, &none, 1))
		return;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(bad_input_text, sizeof(bad_input_text), fmt, ap);
	va_end(ap);
	atomic_store(&bad_input_state, 2);
}

volatile sig_atomic_t report_stop_signal;

bool report_has_bad_input(void)
{
	return atomic_load(&bad_input_state) != 0;
}

bool report_take_bad_input(char *out, size_t n)
{
	if (atomic_load(&bad_input_state) != 2)
		return false;
	snprintf(out, n, "%s", bad_input_text);
	atomic_store(&bad_input_state, 0);
	return true;
}

void report_begin(Rt *rt)
{
	rt->loss_sum = rt->loss_weight = rt->correct = rt->counted = 0;
	rt->p->optim.norm = 0;
	rt->p->sums = (StepSums){.stop = -1};
	check_begin(rt);
}

StepSums report_sums(const Rt *rt)
{
	int asked = rt->p->control ? control_stop_signal(rt->p->control) : 0;
	return (StepSums){rt->loss_sum, rt->loss_weight, rt->correct, rt->counted, rt->p->optim.norm,
		report_has_bad_input(), MAX(asked, report_stop_signal), rt->p->check.found,
		hyper_take_signal()};
}

void rt_report_loss(Rt *rt, const float *sum, const float *weight, bool mean)
{
	rt->loss_sum += *sum;
	rt->loss_weight += mean ? 1 : *weight;
}

void rt_report_accuracy(Rt *rt, const float *logits, const int64_t *labels, int64_t rows, int64_t c,
	int64_t ignore_index)
{
	double hits[2] = {0, 0};
	k_accuracy_f32(hits, logits, labels, rows, c, ignore_index);
	rt->correct += hits[0];
	rt->counted += hits[1];
}

static double norm_of(double sum, double p)
{
	return isinf(p) ? sum : p == 2 ? sqrt(sum) : pow(sum, 1 / p);
}

void rt_step_scalars(Rt *rt)
{
	const Optimizer *opt = &rt->p->optim;
	const StepSums *sum = &rt->p->sums;
	StepScalars *s = rt->scalars;
	StepResult *r = &rt->p->result;
	const RtLoss *loss = &rt->model->loss;
	if (sum->stop < 0)
		ice("the program did not sum its scalars up");
	*r = (StepResult){.loss = sum->weight == 0 ? 0 : sum->loss / sum->weight, .grad_norm = NAN,
		.empty = sum->weight == 0};
	double scale = r->empty ? 0 : loss->global ? loss->n * MAX(rt->p->world.size, 1) / sum->weight
		: 1.0 / (double)MAX(rt->p->accum, 1);
	scale /= rt->p->progress.loss_scale.scale;
	s->grad_scale = (float)scale;
	s->clip_coef = 1;
	s->clip_value = (float)opt->clip_value;
	r->finite = isfinite(r->loss) && sum->not_finite == 0;
	if (rt->model->grad_norm) {
		r->grad_norm = norm_of(sum->norm, optim_norm_p(rt->model)) * scale;
		r->finite = r->finite && isfinite(r->grad_norm);
		if (opt->clip_norm > 0)
			s->clip_coef = (float)MIN(opt->clip_norm / (r->grad_norm + 1e-6), 1.0);
	}
	r->overflow = !r->finite && loss_scale_can_shrink(rt->model, &rt->p->progress.loss_scale);
	s->skip = r->empty || !r->finite || sum->bad_input > 0;
}
