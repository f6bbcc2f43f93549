/* runtime/scalars.h: what a step's sums decide: its scalars, its result, whether it counts.  Arithmetic alone, in C and
 * in C++, for the host (cpu/step.c) and for one thread of a GPU (cuda/step_kernels.cu).
 *
 * The update is left out (skip = 1) when there is nothing to learn from (no valid element), when a number is not
 * finite, and when a kernel met data that is out of range.
 *
 * The loss scale is torch.amp.GradScaler's policy.  Gradients in f16 lose what is below 6e-8.  Backward's seed is
 * therefore multiplied by the scale, and what the update reads is divided by it (StepScalars.grad_scale).  A scale that
 * is too large shows as a norm or loss that is not finite: that update is left out, and the scale halved.  What is not
 * finite at a scale of 1 is no matter of the scale: --on-nan decides.
 *
 * The one idea: all of it follows from sums over all ranks and from rules that are equal on all, so all leave out the
 * same update and go on with the same scale, without a word more between them; and a GPU can decide it for itself,
 * before the host knows. */
#ifndef SHARDC_RUNTIME_SCALARS_H
#define SHARDC_RUNTIME_SCALARS_H

#include "kernels/ew.h"
#include "kernels/kernels.h"

typedef struct StepResult {
	double loss, grad_norm;     /* grad_norm NaN when it is not computed */
	bool finite, empty;         /* empty: no valid element, so no update */
	bool overflow;              /* not finite, and a smaller loss scale is the answer */
	bool has_accuracy;
	double accuracy;
} StepResult;

/* What a rank is asked for, and what of a save beside the steps it has done: how many ranks, but for `stop`. */
typedef struct StepAsked {
	double stop;                /* the highest number of a signal that asks to stop */
	double reload;              /* asked to read --hyper again */
	double save;                /* asked to save */
	double written;             /* whose part of the save under way is on the disk */
	double save_failed;         /* whose part could not be written */
} StepAsked;

/* Sums over ranks of what they say at the end of backward (or maxima: norm, stop): one message, equal on all ranks. */
typedef struct StepSums {
	double loss, weight, correct, counted;
	double norm;                /* of the gradients: sum of |g|^p, or largest |g| */
	double bad_input;           /* ranks that met bad data */
	double not_finite;          /* ranks that --check-nan found something on */
	StepAsked asked;
} StepSums;

typedef struct LossScale {
	double scale;               /* of the next step; 1 = gradients are as they are */
	int64_t good;               /* finite steps since it changed */
} LossScale;

/* What steps are judged by, of the model, the flags and the hyper-parameters in force. */
typedef struct StepRules {
	double loss_n;              /* RtLoss.n; 0: gradients are a mean over ranks and micro-batches alone */
	bool adds;                  /* RtLoss.adds: they are a sum over them */
	double world, accum;
	double norm_p;              /* of the norm of gradients; 0: it is not computed */
	double clip_norm, clip_value; /* 0 = off */
	int64_t interval;           /* of a dynamic loss scale; 0: it stays as it is */
	bool stops;                 /* --on-nan=stop */
} StepRules;

/* What of a run the outcome of a step changes. */
typedef struct StepCounters {
	int64_t updates;            /* steps with an update */
	LossScale loss_scale;
} StepCounters;

/* Joins what k_norm says of two parts. */
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

/* Backward is seeded 1/n for a static n and gradients are averaged over the W ranks; what the true count C of all ranks
 * makes of it is one factor, n*W/C (C = 1 where losses are added), over the loss scale that backward began with. */
EW double scalars_grad_scale(const StepSums *sum, const StepRules *rules, double loss_scale)
{
	double count = rules->adds ? 1 : sum->weight;
	double scale = sum->weight == 0 ? 0 : rules->loss_n > 0 ? rules->loss_n * rules->world / count : 1.0 / rules->accum;
	return scale / loss_scale;
}

/* Whether numbers that are not finite may be the scale's fault. */
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

/* The run ends behind this step, and the step does not count. */
EW bool scalars_halt(const StepResult *r, const StepSums *sum, const StepRules *rules)
{
	return sum->bad_input > 0 || (!r->finite && !r->overflow && rules->stops);
}

EW void scalars_advance_scale(LossScale *s, const StepResult *r, int64_t interval)
{
	const double growth = 2, backoff = 0.5, most = 0x1p126; /* a f32, as its inverse */
	s->good = r->finite ? s->good + 1 : 0;
	if (r->overflow)
		s->scale *= backoff;
	if (s->good < interval)
		return;
	s->scale = s->scale * growth < most ? s->scale * growth : most;
	s->good = 0;
}

/* Behind a step that counts. */
EW void scalars_advance(StepCounters *c, const StepScalars *s, const StepResult *r, const StepRules *rules)
{
	c->updates += !s->skip;
	if (rules->interval > 0)
		scalars_advance_scale(&c->loss_scale, r, rules->interval);
}

#endif
