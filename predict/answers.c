/* predict/answers.c: finds the answers of --ask, and says where most memory is held. */
#include "predict/answers.h"

#include <stdlib.h>
#include <string.h>

/* ---- plans ---- */

/* Whether the options make the same plan; texts are the same if they lie in the same place. */
static bool is_same(const Tried *x, const Options *o, Sync sync)
{
	Options given = *o;
	given.given = x->o.given;
	return x->sync == sync && !memcmp(&x->o, &given, sizeof(given));
}

/* The first line of what was said, without "WHERE: error: ". */
static const char *reason_of(const char *text, Arena *a)
{
	static const char error[] = ": error: ";
	const char *at = strstr(text, error), *why = at ? at + strlen(error) : text;
	return arena_strndup(a, why, strcspn(why, "\n"));
}

static void make(const Asking *s, Tried *x)
{
	char *text = NULL;
	size_t n = 0;
	Variants v;
	Diag d = {.out = open_memstream(&text, &n), .quiet = true, .max_errors = 1};
	if (!d.out)
		ice("out of memory");
	bool planned = change_plan_saying(s->of->start, &x->o, x->sync, &v, &d);
	LayoutMemory memory = planned ? pipeline_memory(&v, &x->o) : (LayoutMemory){0};
	x->bytes = memory.total;
	x->pinned = memory.host.total;
	bool played = planned && predict_play(&v, &x->o, s->of->machine, s->limit, &x->of, &d);
	pipeline_free(&v);
	fclose(d.out);
	x->why = played ? NULL : reason_of(text, s->a);
	free(text);
}

const Tried *answers_try(Asking *s, const Options *o, Sync sync)
{
	for (int i = 0; i < s->tried.n; i++)
		if (is_same(s->tried.at[i], o, sync))
			return s->tried.at[i];
	Tried *x = NEW(s->a, Tried);
	x->o = *o;
	x->sync = sync;
	vec_push(s->a, &s->tried, x);
	make(s, x);
	return x;
}

const Played *answers_played(Asking *s, const Options *o, Sync sync)
{
	const Tried *x = answers_try(s, o, sync);
	return x->why ? NULL : &x->of;
}

/* ---- answers ---- */

const char *answers_option(const Asking *s, const char *name, const char *text)
{
	return arena_printf(s->a, "%s=%s", name, str_escape(s->a, ESCAPE_SHELL, text));
}

void answers_leave_out(Asking *s, ChangeKind kind, const char *option, const char *why)
{
	vec_push(s->a, &s->out->left_out, ((Answer){.kind = kind, .option = option, .why = why}));
}

const char *answers_unfit(const Asking *s, const char *option)
{
	for (int i = 0; i < s->said.n; i++) {
		const char *name = s->said.at[i].option, *at = option;
		size_t n = strlen(name);
		for (; (at = strstr(at, name)); at += n)
			if ((at == option || at[-1] == ' ') && at[n] == '=')
				return arena_printf(s->a, "%s says %s of it, and both may not be given", s->said.at[i].at,
					s->said.at[i].text ? s->said.at[i].text : "no");
	}
	return NULL;
}

void answers_add(Asking *s, ChangeKind kind, const char *option, const Options *changed, Sync sync)
{
	const char *unfit = answers_unfit(s, option);
	if (unfit) {
		answers_leave_out(s, kind, option, unfit);
		return;
	}
	const Tried *t = answers_try(s, changed, sync);
	const Answer *now = s->out->plan.n ? &s->out->plan.at[0] : NULL;
	Answer x = {.kind = kind, .option = option, .bytes = t->bytes, .pinned = t->pinned,
		.why = t->why};
	if (!x.why) {
		x.seconds = t->of.seconds;
		x.samples = t->of.samples;
	}
	bool same = now && !x.why && x.bytes == now->bytes && x.seconds == now->seconds;
	x.why = same ? "the plan is the same" : x.why;
	vec_push(s->a, same || !x.bytes ? &s->out->left_out : &s->out->plan, x);
}

/* Who holds most, when most is held. */
static void find_peak(Asking *s, const Variants *v)
{
	Arena *a = s->a;
	const Plan *plan = predict_how(v, s->o, s->of->machine, a)->plan;
	const HeldList *held = held_find(&(HeldOf){&s->m, 1, plan->layout, &plan->who}, s->o, a);
	const Op *op = held->n_ops ? held->op[held->peak] : NULL;
	s->out->modules = held_shares(held, HELD_BY_MODULE, a);
	s->out->units = held_shares(held, HELD_BY_UNIT, a);
	s->out->peak_bytes = held->peak_bytes;
	s->out->peak_op = !op ? "" : arena_printf(a, "%s%s%s of %s", op_info[op->kind].text,
		*op->loc->node ? " of node " : "", op->loc->node, section_text[op->section]);
}

Answers *answers_find(const AskOf *of, const Options *o, Arena *a)
{
	const Variants *v = &of->program->of[of->program->n - 1];
	Module *m = v->of[VARIANT_ONLY];
	Asking s = {.of = of, .o = o, .m = m, .sync = m->sync, .a = a, .out = NEW(a, Answers),
		.limit = o->memory.memory_limit ? o->memory.memory_limit : (int64_t)of->machine->of[MACHINE_MEMORY]};
	Diag silent = {.silent = true};
	policy_options(o, &s.said, a, &silent);
	answers_add(&s, CHANGE_OF_NONE, "(this plan)", o, s.sync);
	s.out->limit = s.limit;
	s.out->micro_batches = predict_micro_batches(o, m->batch);
	if (!s.out->plan.n)
		ice("a plan that was made cannot be made again");
	find_peak(&s, v);
	alternatives_find(&s);
	partly_find(&s);
	hybrid_find(&s);
	curve_find(&s);
	largest_find(&s);
	return s.out;
}
