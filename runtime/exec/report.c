/* runtime/exec/report.c: bad input that kernels met, what a rank is asked to do, and the rules by which steps are
 * judged.
 *
 * Kernels report from any thread and have no Rt, so the first message of the process is kept. */
#include <stdatomic.h>
#include <string.h>

#include "runtime/exec/private.h"

static atomic_int bad_input_state; /* 0 none, 1 being written, 2 there */
static BadInput bad_input;

void rt_bad_input(const char *fmt, ...)
{
	int none = 0;
	if (!atomic_compare_exchange_strong(&bad_input_state, &none, 1))
		return;
	enum { NODE = 256 }; /* a longer name is cut, so that the words behind it are not */
	BadInput *b = &bad_input;
	va_list ap;
	b->what = k_node ? (size_t)snprintf(b->text, sizeof(b->text), "node \"%.*s\": ", NODE, k_node) : 0;
	va_start(ap, fmt);
	vsnprintf(b->text + b->what, sizeof(b->text) - b->what, fmt, ap);
	va_end(ap);
	atomic_store(&bad_input_state, 2);
}

bool report_has_bad_input(void)
{
	return atomic_load(&bad_input_state) != 0;
}

bool report_take_bad_input(BadInput *out)
{
	if (atomic_load(&bad_input_state) != 2)
		return false;
	*out = bad_input;
	atomic_store(&bad_input_state, 0);
	return true;
}

StepAsked report_asked(const Rt *rt)
{
	return rt->p->asked ? rt->p->asked(rt) : (StepAsked){0};
}

StepRules report_rules(const Rt *rt)
{
	const RtModel *m = rt->model;
	const struct RtPrivate *p = rt->p;
	return (StepRules){.loss_n = m->loss.global ? m->loss.n : 0, .adds = m->loss.adds,
		.world = (double)MAX(p->world.size, 1), .accum = (double)MAX(p->accum, 1),
		.norm_p = m->grad_norm ? optim_norm_p(m) : 0, .clip_norm = p->optim.clip_norm,
		.clip_value = p->optim.clip_value,
		.interval = m->loss_scale.dynamic ? m->loss_scale.interval : 0, .stops = p->options->on_nan != ON_NAN_SKIP};
}
