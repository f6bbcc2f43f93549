/* runtime/scalars.h: computes from a step's sums its scalars, its result, and whether it counts.  It is pure
 * arithmetic, valid as C and as C++, for the host (cpu/step.c) and for one thread of a GPU (cuda/step_kernels.cu).
 *
 * The update is left out (skip = 1) when no element is valid, when a number is not finite, and when a kernel met data
 * that is out of range.
 *
 * The loss scale follows the policy of torch.amp.GradScaler.  Gradients in f16 lose values below 6e-8.  Backward's seed
 * is therefore multiplied by the scale, and what the update reads is divided by it (StepScalars.grad_scale).  When the
 * scale is too large, the norm or the loss is not finite: that update is left out, and the scale is halved.  If the
 * scale cannot be halved (it would fall below 1), it is not the cause, and --on-nan decides.
 *
 * Everything follows from sums over all ranks and from rules that are equal on all ranks.  So all ranks leave out the
 * same updates and continue with the same scale without further communication, and a GPU can decide by itself, before
 * the host knows the sums. */
#ifndef SHARDC_RUNTIME_SCALARS_H
#define SHARDC_RUNTIME_SCALARS_H

#include "kernels/ew.h"
#include "kernels/kernels.h"

typedef struct StepResult {
	double loss, grad_norm;     /* grad_norm NaN when it is not computed */
	bool finite, empty;         /* empty: no valid element, so no update */
	bool overflow;              /* not finite, and the loss scale can be made smaller */
	bool has_accuracy;
	double accuracy;
} StepResult;

/* What a rank was asked to do, and how far its part of a save beside the steps is.  Summed over ranks, each number
 * except `stop` counts the ranks for which it is true. */
typedef struct StepAsked {
	double stop;                /* the highest number of the signals that asked to stop */
	double reload;              /* asked to read --hyper again */
	double save;                /* asked to save */
	double written;             /* its part of the save under way is on the disk */
	double save_failed;         /* its part could not be written */
} StepAsked;

/* Sums over ranks of what each reports at the end of backward; `stop` and an infinity norm are maxima.  They travel as
 * one message and are equal on all ranks. */
typedef struct StepSums {
	double loss, weight, correct, counted;
	double norm;                /* of the gradients: the sum of |g|^p, or the largest |g| */
	double bad_input;           /* ranks that met bad data */
	double not_finite;          /* ranks that --check-nan found something on */
	StepAsked asked;
} StepSums;

typedef struct LossScale {
	double scale;               /* of the next step; 1 = gradients are not scaled */
	int64_t good;               /* finite steps since the scale changed */
} LossScale;

/* The rules by which steps are judged; they come from the model, the flags and the hyper-parameters in force. */
typedef struct StepRules {
	double loss_n;              /* RtLoss.n; 0: gradients are just the mean over ranks and micro-batches */
	bool adds;                  /* RtLoss.adds: gradients are the sum over ranks and micro-batches */
	double world, accum;
	double norm_p;              /* p of the norm of gradients; 0: the norm is not computed */
	double clip_norm, clip_value; /* 0 = off */
	int64_t interval;           /* of a dynamic loss scale; 0: the scale is fixed */
	bool stops;                 /* --on-nan=stop */
} StepRules;

/* The counters of a run that the outcome of a step changes. */
typedef struct StepCounters {
	int64_t updates;            /* steps with an update */
	LossScale loss_scale;
} StepCounters;

/* Joins the results of k_norm for two parts. */
EW double scalars_join_norm(double a, double b, double p)
{
	if (!isinf(p))
		return a + b;
	return isnan(a) || a > b ? a : b;
}

EW void scalars_add(StepSums *to, const StepSums *of, double norm_p)
{
	to->loss += of->loss;
	to->weight += of->weight;
	to->correct += of->correct;
	to->counted += of->counted;
	to->norm = scalars_join_norm(to->norm, of->norm, norm_p);
	to->bad_input += of->bad_input;
	to->not_finite += of->not_finite;
	to->asked.stop = to->asked.stop > of->asked.stop ? to->asked.stop : of->asked.stop;
	to->asked.reload += of->asked.reload;
	to->asked.save += of->asked.save;
	to->asked.written += of->asked.written;
	to->asked.save_failed += of->asked.save_failed;
}

EW double scalars_norm(double sum, double p)
{
	return isinf(p) ? sum : p == 2 ? sqrt(sum) : pow(sum, 1 / p);
}

/* The factor by which the update multiplies gradients.  Backward is seeded with 1/n for a static n, and gradients are
 * averaged over the W ranks; the true count C of all ranks corrects this by the factor n*W/C (C = 1 where losses are
 * added).  The result is divided by the loss scale that backward began with. */
EW double scalars_grad_scale(const StepSums *sum, const StepRules *rules, double loss_scale)
{
	double count = rules->adds ? 1 : sum->weight;
	double scale = sum->weight == 0 ? 0 : rules->loss_n > 0 ? rules->loss_n * rules->world / count : 1.0 / rules->accum;
	return scale / loss_scale;
}

/* Whether the loss scale may be the cause of numbers that are not finite. */
EW bool scalars_can_shrink(const StepRules *rules, const LossScale *s)
{
	return rules->interval > 0 && s->scale * 0.5 >= 1;
}

EW void scalars_decide(StepScalars *s, StepResult *r, const StepSums *sum, const StepRules *rules, const LossScale *ls)
{
	double scale = scalars_grad_scale(sum, rules, ls->scale);
	r->empty = sum->weight == 0;
	r->loss = r->empty ? 0 : sum->loss / (rules->adds ? 1 : sum->weight);
	r->grad_norm = NAN;
	r->has_accuracy = false;
	r->accuracy = 0;
	r->finite = isfinite(r->loss) && sum->not_finite == 0;
	s->grad_scale = (float)scale;
	s->clip_coef = 1;
	s->clip_value = (float)rules->clip_value;
	if (rules->norm_p > 0) {
		r->grad_norm = scalars_norm(sum->norm, rules->norm_p) * scale;
		r->finite = r->finite && isfinite(r->grad_norm);
		double coef = rules->clip_norm / (r->grad_norm + 1e-6);
		if (rules->clip_norm > 0)
			s->clip_coef = (float)(coef < 1.0 ? coef : 1.0);
	}
	r->overflow = !r->finite && scalars_can_shrink(rules, ls);
	s->skip = r->empty || !r->finite || sum->bad_input > 0;
}

/* Whether the run ends after this step; then the step does not count. */
EW bool scalars_halt(const StepResult *r, const StepSums *sum, const StepRules *rules)
{
	return sum->bad_input > 0 || (!r->finite && !r->overflow && rules->stops);
}

EW void scalars_advance_scale(LossScale *s, const StepResult *r, int64_t interval)
{
	const double growth = 2, backoff = 0.5, most = 0x1p126; /* so that the scale and its inverse are normal f32
	                                                         * numbers */
	s->good = r->finite ? s->good + 1 : 0;
	if (r->overflow)
		s->scale *= backoff;
	if (s->good < interval)
		return;
	s->scale = s->scale * growth < most ? s->scale * growth : most;
	s->good = 0;
}

/* Called after a step that counts. */
EW void scalars_advance(StepCounters *c, const StepScalars *s, const StepResult *r, const StepRules *rules)
{
	c->updates += !s->skip;
	if (rules->interval > 0)
		scalars_advance_scale(&c->loss_scale, r, rules->interval);
}

#endif
