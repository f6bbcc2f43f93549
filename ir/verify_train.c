/* ir/verify_train.c: checks the train block of a module against the module's ops and symbols.
 *
 * The module must have what the block promises: the optimizer's states, the groups that parameters are in, and the ops
 * that compute what is clipped, scaled and logged. */
#include "base/optimizer.h"
#include "ir/verify.h"

#include <math.h>
#include <string.h>

/* Reports a violation, at the line of the text where the block was read. */
static void fail(Verify *v, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void fail(Verify *v, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	verify_fail_at(v, v->m->train->at, "train: %s", arena_vprintf(v->arena, fmt, ap));
	va_end(ap);
}

/* ---- the optimizer ---- */

static void check_updates(Verify *v, const OptimizerInfo *opt)
{
	for (int s = SEC_BACKWARD; s <= SEC_UPDATE; s++)
		IR_FOR_OPS(v->m, s, op) {
			const char *does = op->kind == OP_UPDATE_SHARD ? attr_get_str(op->attrs, "optimizer", "") : opt->text;
			if (strcmp(does, opt->text)) {
				fail(v, "the optimizer is \"%s\", and update_shard of unit %s is that of \"%s\"", opt->text,
					op->unit ? op->unit->name : "", does);
				return;
			}
		}
}

/* The states that one flat has. */
typedef struct States { int n; unsigned has; } States; /* has: a bit for each of the optimizer's states */

/* Whether the symbol is this state of a flat: "root.exp_avg", or "root.exp_avg.1" for the unit's second flat. */
static bool is_state(const Symbol *s, const char *state)
{
	size_t unit = strlen(s->unit->name), n = strlen(state);
	const char *name = s->name + unit + 1;
	return !strncmp(s->name, s->unit->name, unit) && s->name[unit] == '.' && !strncmp(name, state, n)
		&& (!name[n] || name[n] == '.');
}

static States *states_of(Verify *v, const OptimizerInfo *opt)
{
	const Module *m = v->m;
	States *of = NEW_N(v->arena, States, m->n_units * UNIT_MAX_FLATS);
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		if (s->kind != SYM_STATE || !s->unit)
			continue;
		States *at = &of[s->unit->index * UNIT_MAX_FLATS + s->flat];
		at->n++;
		for (int k = 0; k < opt->n_states; k++)
			at->has |= (unsigned)is_state(s, opt->states[k]) << k;
	}
	return of;
}

static void check_states(Verify *v, const OptimizerInfo *opt, const Unit *u, int flat, const States *is)
{
	const char *name = v->m->train->optimizer;
	for (int k = 0; k < opt->n_states; k++)
		if (!(is->has >> k & 1)) {
			fail(v, "the optimizer \"%s\" keeps %s, and unit %s has no state \"%s.%s\" for its flat %d", name,
				opt->states[k], u->name, u->name, opt->states[k], flat);
			return;
		}
	if (is->n != opt->n_states)
		fail(v, "the optimizer \"%s\" keeps %d state(s), and flat %d of unit %s has %d", name, opt->n_states, flat,
			u->name, is->n);
}

static void check_optimizer(Verify *v)
{
	const Module *m = v->m;
	OptimizerChoice opt;
	const char *name = m->train->optimizer;
	if (!name || !optimizer_read(name, &opt)) {
		fail(v, name ? "optimizer=\"%s\" is not known; expected %s" : "%soptimizer= is missing; expected %s",
			name ? name : "", OPTIMIZER_FORMS);
		return;
	}
	check_updates(v, opt.info);
	States *of = states_of(v, opt.info);
	for (int i = 0; i < m->n_units && m->level >= LEVEL_SHARD; i++)
		for (int f = 0; f < m->units[i]->n_flats && !v->errors; f++)
			if (m->units[i]->flat[f].trainable)
				check_states(v, opt.info, m->units[i], f, &of[i * UNIT_MAX_FLATS + f]);
}

/* ---- parameter groups ---- */

static void check_group(Verify *v, int number)
{
	const Train *t = v->m->train;
	const ParamGroup *g = &t->group[number];
	if (!g->regex || !*g->regex)
		fail(v, "group %d names no parameters: match=\"REGEX\" is expected", number + 1);
	for (int k = 0; k < GROUP_KEYS; k++) {
		if (isnan(g->value[k]))
			continue;
		if (!group_value_right((GroupKey)k, g->value[k]))
			fail(v, "%s of group %d takes %s, not %g", group_key_info[k].name, number + 1,
				group_value_wanted((GroupKey)k), g->value[k]);
		else if (!group_key_used((GroupKey)k, t->optimizer))
			fail(v, "group %d has %s, which the optimizer \"%s\" does not read", number + 1, group_key_info[k].name,
				t->optimizer);
	}
}

static void check_groups(Verify *v)
{
	const Module *m = v->m;
	for (int i = 0; i < m->train->n_groups; i++)
		check_group(v, i);
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		if (s->group < 0 || s->group > m->train->n_groups)
			fail(v, "parameter \"%s\" is in group %d; expected one of the %d that the block has, or 0 for none",
				s->name, s->group, m->train->n_groups);
	}
}

/* ---- norm, clipping, loss scale ---- */

/* The clip attribute that step_scalars must have for this block. */
static const char *clip_text(const Verify *v)
{
	const Train *t = v->m->train;
	if (t->clip > 0)
		return arena_printf(v->arena, t->clip_value ? "%.17g,value" : "%.17g", t->clip);
	return t->clip_value ? "value" : "";
}

static void check_norm(Verify *v)
{
	const Train *t = v->m->train;
	const Op *norm = ir_find_in_step(v->m, OP_NORM), *sum = ir_find_in_step(v->m, OP_SUMSQ);
	norm = norm ? norm : sum;
	double p = norm ? attr_get_float(norm->attrs, "p", 2) : 2, wanted = t->clip > 0 ? t->clip : 2;
	if (t->norm && !norm)
		fail(v, "norm=1, and nothing in update computes a norm of gradients");
	else if (!t->norm && norm)
		fail(v, "update computes the norm of gradients, and norm=1 is missing");
	else if (norm && (p < wanted || p > wanted))
		fail(v, "the norm that gradients are clipped by is the %g-norm, and update computes the %g-norm", wanted, p);
}

static void check_clip(Verify *v)
{
	const Op *step = ir_find_in_step(v->m, OP_STEP_SCALARS);
	const char *says = clip_text(v), *room = step ? attr_get_str(step->attrs, "clip", "") : "";
	if (strcmp(says, room))
		fail(v, "gradients are clipped by \"%s\", and the program has room for \"%s\" (clip of step_scalars)", says,
			room);
}

static void check_loss_scale(Verify *v)
{
	const Train *t = v->m->train;
	bool scaled = ir_find_in_step(v->m, OP_LOSS_SCALE);
	if (!(t->loss_scale >= 0) || !isfinite((float)t->loss_scale) || (t->loss_scale > 0 && !((float)t->loss_scale > 0)))
		fail(v, "loss_scale is %g; expected a positive number that f32 holds", t->loss_scale);
	else if (t->growth_interval < 0 || (t->growth_interval && !(t->loss_scale > 0)))
		fail(v, "growth_interval is %lld; expected a number of steps, beside a loss_scale",
			(long long)t->growth_interval);
	else if (scaled != (t->loss_scale > 0))
		fail(v, scaled ? "backward scales the loss, and loss_scale is missing"
			: "loss_scale=%g, and backward has no loss_scale that it could be", t->loss_scale);
}

static void check_numbers(Verify *v)
{
	const Train *t = v->m->train;
	if (!(t->clip >= 1) && (t->clip < 0 || t->clip > 0 || isnan(t->clip)))
		fail(v, "clip is %g; expected the p of a norm: a number from 1 on, or inf", t->clip);
	else if (ir_ends_step(v->m) && (v->m->first[SEC_UPDATE] || ir_find_in_step(v->m, OP_STEP_SCALARS))) {
		check_norm(v);
		check_clip(v);
	}
	check_loss_scale(v);
}

/* ---- the hook ---- */

static void check_hook(Verify *v)
{
	enum { MOST = 999 };
	const Hook *h = &v->m->train->hook;
	if (!h->file != !h->function)
		fail(v, "a hook is a file and a function: hook=\"FILE.c\", hook_function=\"NAME\"");
	else if (h->file && (!*h->file || strpbrk(h->file, "\"\n") || !str_is_c_name(h->function)))
		fail(v, "hook \"%s\", function \"%s\": expected a path without double quotes and line breaks, and a name of C",
			h->file, h->function);
	else if (h->send < 0 || h->send > MOST || h->keep < 0 || h->keep > MOST || (!h->file && (h->send || h->keep)))
		fail(v, "hook_send is %lld and hook_keep %lld; expected bytes of an element of a gradient, at most %d, beside "
			"a hook", (long long)h->send, (long long)h->keep, MOST);
	else if (h->file && (v->m->train->cuda || v->m->sync == SYNC_EVERY))
		fail(v, "a hook reduces a gradient in memory of the host, once a step: cuda=1 and sync=every have none");
}

void verify_train(Verify *v)
{
	const Module *m = v->m;
	if (!m->train)
		return;
	if (m->level < LEVEL_TRAIN)
		fail(v, "the block stands at level TRAIN and later, and the module is at %s", level_text[m->level]);
	else if (m->sync != SYNC_NONE && !m->train->accum)
		fail(v, "the module is one micro-batch of several (sync=%s), and accum=1 is missing", sync_text[m->sync]);
	if (v->errors)
		return;
	check_optimizer(v);
	if (v->errors)
		return;
	check_groups(v);
	check_numbers(v);
	check_hook(v);
}
