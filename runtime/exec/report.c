/* runtime/exec/report.c: bad input that kernels met, what a rank is asked to do, and the rules by which steps are
 * judged.
 *
 * Kernels report from any thread and have no Rt, so the first message of the process is kept. */
#include <stdatomic.h>
#include <string.h>

#include "runtime/exec/private.h"

static atomic_int bad_input_state; /* 0 none, 1 being written, 2 there */
static char bad_input_text[400];

void rt_bad_input(const char *fmt, ...)
{
	int none = 0;
	if (!atomic_compare_exchange_strong(&bad_input_state, &none, 1))
		return;
	va_list ap;
	int n = k_node ? snprintf(bad_input_text, sizeof(bad_input_text), "node \"%s\": ", k_node) : 0;
	size_t at = MIN((size_t)n, sizeof(bad_input_text) - 1);
	va_start(ap, fmt);
	vsnprintf(bad_input_text + at, sizeof(bad_input_text) - at, fmt, ap);
	va_end(ap);
	atomic_store(&bad_input_state, 2);
}

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
