/* ir/eval_loop.c: runs loops step by step, each in an environment of its own. */
#include "ir/eval.h"

#include <string.h>

/* What step `at` sees of operand i. */
static EvalTensor argument_of(const Op *op, int i, EvalTensor *const *in, EvalTensor *const *state, int64_t at)
{
	int states = loop_states(op);
	EvalTensor t = i < states ? *state[i] : *in[i];
	if (i < states || i >= states + loop_stacked(op))
		return t;
	t.type = loop_slice(&in[i]->type);
	t.i = in[i]->i + at * type_numel(&t.type);
	return t;
}

/* An environment for the steps, which rounds and draws as e does. */
static EvalEnv *step_env(const EvalEnv *e, const Op *op, Arena *a)
{
	EvalEnv *s = eval_new(op->body, a);
	s->round = e->round;
	s->exact = e->exact;
	s->even_dropout = e->even_dropout;
	s->seed = e->seed;
	s->step = e->step;
	s->sample0 = e->sample0;
	s->args = NEW_N(a, EvalTensor, op->n_in + 1);
	return s;
}

RULE(argument)
{
	int64_t k = attr_get_int(op->attrs, "index", 0);
	if (!e->args)
		return false;
	memcpy(out[0]->i, e->args[k].i, sizeof(int64_t) * (size_t)type_numel(&out[0]->type));
	return true;
}

/* Runs one step: reads state, and leaves the new states in out[0..states) and slices in the other results. */
static bool run_step(const EvalEnv *e, const Op *op, EvalTensor *const *in, EvalTensor *const *state, int64_t at,
	EvalTensor *const *out)
{
	Arena *a = arena_new();
	EvalEnv *s = step_env(e, op, a);
	const Op *yield = loop_yield(op);
	bool good = true;
	for (int i = 0; i < op->n_in; i++)
		s->args[i] = argument_of(op, i, in, state, at);
	eval_section(s, SEC_FORWARD);
	for (int i = 0; i < yield->n_in && good; i++) {
		const EvalTensor *t = eval_value(s, op_in(yield, i));
		int64_t n = type_numel(&op_in(yield, i)->type);
		good = t;
		if (t)
			memcpy(out[i]->i + (i < loop_states(op) ? 0 : at * n), t->i, sizeof(int64_t) * (size_t)n);
	}
	arena_free(a);
	return good;
}

/* THROUGH ops would need the values of the same step in another environment, and none stands in a body. */
RULE(loop)
{
	int n = loop_states(op);
	EvalTensor **state = NEW_N(e->arena, EvalTensor *, n + 1);
	for (int i = 0; i < n; i++) {
		state[i] = NEW(e->arena, EvalTensor);
		*state[i] = eval_alloc(e, in[i]->type);
		memcpy(state[i]->i, in[i]->i, sizeof(int64_t) * (size_t)type_numel(&in[i]->type));
	}
	for (int64_t t = 0; t < loop_steps(op); t++) {
		if (!run_step(e, op, in, state, attr_get_int(op->attrs, "reverse", 0) ? loop_steps(op) - 1 - t : t, out))
			return false;
		for (int i = 0; i < n; i++)
			memcpy(state[i]->i, out[i]->i, sizeof(int64_t) * (size_t)type_numel(&in[i]->type));
	}
	return true;
}
