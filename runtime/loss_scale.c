/* runtime/loss_scale.c: how large the loss scale is: torch.amp.GradScaler's policy.
 *
 * Gradients in f16 lose what is below 6e-8.  Backward's seed is therefore multiplied by the scale, and what the update
 * reads is divided by it (StepScalars.grad_scale).  A scale that is too large shows as a norm or loss that is not
 * finite: that update is left out, and the scale halved.  What is not finite at a scale of 1 is no matter of the scale:
 * --on-nan decides.
 *
 * The one idea: the policy sees nothing but sums over all ranks, so all leave out the same update and go on with the
 * same scale, without a word more between them. */
#include <math.h>

#include "runtime/internal.h"

static const double growth = 2, backoff = 0.5, most = 0x1p126; /* a f32, as its inverse */

LossScale loss_scale_first(const RtModel *model)
{
	double init = model->loss_scale.init;
	if (model->loss_scale.dynamic && !model->grad_norm)
		ice("a dynamic loss scale without a norm of gradients");
	return (LossScale){.scale = init > 0 ? init : 1};
}

bool loss_scale_can_shrink(const RtModel *model, const LossScale *s)
{
	return model->loss_scale.dynamic && s->scale * backoff >= 1;
}

void loss_scale_advance(LossScale *s, const RtModel *model, const StepResult *r)
{
	if (!model->loss_scale.dynamic)
		return;
	s->good = r->finite ? s->good + 1 : 0;
	if (r->overflow)
		s->scale *= backoff;
	if (s->good < model->loss_scale.interval)
		return;
	s->scale = MIN(s->scale * growth, most);
	s->good = 0;
}
