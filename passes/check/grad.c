/* passes/check/grad.c: compares gradients with finite differences of the loss, for --check-passes.
 *
 * Along one random direction over all parameters, the gradient predicts how fast the loss rises.  Differences of
 * the loss, evaluated in f64 on both sides, must agree with it.  Where the two sides disagree with each other there
 * is a kink (the edge of a relu, a tie of a maximum), which proves nothing.  Ops that round, through which gradients
 * pass as if they did not, do not round in these differences.  A wrong gradient is wrong at every
 * step width, so agreement at one width is enough.  When nothing agrees, each parameter is tried alone, and then
 * each value, from the loss backwards. */
#include "passes/check/check.h"

#include <math.h>
#include <string.h>

/* What is moved along its random direction: one value or one parameter; all parameters when both are NULL. */
typedef struct Along { const Symbol *param; const Value *value; } Along;

typedef struct Probe {
	Module *m, *now;   /* before and after autodiff, which removes stop_gradient ops */
	CheckData *data;
	CheckResult *base; /* of m, at the point itself */
	CheckResult *told; /* of now */
	const Op *report;
} Probe;

static const char *direction_of(Arena *a, const char *name)
{
	return arena_printf(a, "%s direction", name);
}

static EvalTensor moved(Arena *a, const EvalTensor *t, const char *name, double h)
{
	EvalTensor now = {.type = t->type};
	const char *direction = direction_of(a, name);
	int64_t n = type_numel(&t->type);
	now.f = NEW_N(a, double, n);
	for (int64_t i = 0; i < n; i++)
		now.f[i] = t->f[i] + h * check_random(direction, i);
	return now;
}

/* Values at stop_gradient ops are held constant, since no gradient passes there. */
static void pin_stops(const Probe *p, EvalEnv *e)
{
	IR_FOR_OPS(p->m, SEC_FORWARD, op) {
		const EvalTensor *t = op->kind == OP_STOP_GRADIENT ? eval_value(p->base->env[0], op->out[0]) : NULL;
		if (t)
			eval_pin(e, op->out[0], *t);
	}
}

static double loss_at(const Probe *p, Along along, double h)
{
	Arena *a = arena_new();
	EvalEnv *e = eval_new(p->m, a);
	eval_set_exact(e, true);
	eval_set_random(e, 11, 5, 3);
	eval_set_through(e, p->base->env[0]);
	check_bind(e, p->m, p->data, 0, a);
	IR_FOR_OPS(p->now, SEC_BACKWARD, op) {
		const Symbol *s = op->kind == OP_GRAD ? ir_find_symbol(p->m, op->sym->name) : NULL;
		if (s && !along.value && (!along.param || along.param == op->sym))
			eval_bind(e, s, moved(a, eval_symbol(e, s), s->name, h));
	}
	pin_stops(p, e);
	if (along.value)
		eval_pin(e, along.value, moved(a, eval_value(p->base->env[0], along.value), along.value->name, h));
	eval_section(e, SEC_FORWARD);
	const EvalTensor *sum = eval_value(e, op_in(p->report, 0));
	bool mean = attr_get_int(p->report->attrs, "mean", 0);
	double loss = sum ? sum->f[0] / (mean ? 1 : (double)attr_get_int(p->report->attrs, "n", 1)) : NAN;
	arena_free(a);
	return loss;
}

/* The slope that a gradient predicts, and in *size how large the terms are of which it is the sum. */
static double slope_of(const EvalTensor *g, const char *name, double *size)
{
	Arena *a = arena_new();
	const char *direction = direction_of(a, name);
	double sum = 0;
	for (int64_t i = 0, n = type_numel(&g->type); i < n; i++) {
		double x = g->f[i] * check_random(direction, i);
		sum += x;
		*size += fabs(x);
	}
	arena_free(a);
	return sum;
}

/* Whether the loss rises by `told` per step; size is that of told's terms.  *found: the slope that was measured. */
static bool agrees(const Probe *p, Along along, double told, double size, double *found)
{
	double at = loss_at(p, along, 0);
	if (!isfinite(told) || !isfinite(at))
		return true;
	for (double h = 1e-4; h > 1e-7; h /= 10) {
		double up = loss_at(p, along, h), down = loss_at(p, along, -h);
		double up4 = loss_at(p, along, h / 4), down4 = loss_at(p, along, -h / 4);
		double wide = (up - down) / (2 * h), narrow = (up4 - down4) / (h / 2);
		double bend = fabs(up - 2 * at + down) / h, bend4 = fabs(up4 - 2 * at + down4) / (h / 4);
		double noise = 1e-14 * (1 + fabs(at)) / h, slack = 1e-6 * (size + fabs(narrow)) + noise;
		*found = (16 * narrow - wide) / 15;
		if (!isfinite(wide) || !isfinite(narrow) || (bend4 > slack && bend4 > bend / 2))
			return true;
		if (fabs(wide - narrow) > 1e-3 * (fabs(wide) + fabs(narrow)) + noise)
			return true; /* the loss bends too fast for these steps to tell */
		if (fabs(*found - told) <= slack)
			return true;
	}
	return false;
}

static bool value_agrees(const Probe *p, const Value *v, const Value *g)
{
	const EvalTensor *x = eval_value(p->base->env[0], v), *t = eval_value(p->told->env[0], g);
	double size = 0, found;
	if (!x || !t || !type_same_shape(&x->type, &t->type) || !dtype_is_float(x->type.dtype))
		return true;
	double told = slope_of(t, v->name, &size);
	return agrees(p, (Along){.value = v}, told, size, &found);
}

/* Walks from the loss backwards to the first value whose gradient is wrong. */
static const Value *first_wrong(const Probe *p)
{
	Arena *a = arena_new();
	Map *gradient = map_new(a);
	const Value *found = NULL;
	IR_FOR_OPS(p->now, SEC_BACKWARD, op)
		for (int i = 0; i < op->n_out; i++)
			map_put(gradient, op->out[i]->name, op->out[i]);
	for (const Op *op = p->m->last[SEC_FORWARD]; op && !found; op = op->prev)
		for (int i = 0; i < op->n_out && !found; i++) {
			const Value *g = map_get(gradient, arena_printf(a, "d.%s", op->out[i]->name));
			if (g && !value_agrees(p, op->out[i], g))
				found = op->out[i];
		}
	arena_free(a);
	return found;
}

static const Symbol *find_wrong(const Probe *p, double *told, double *found, const Value **at)
{
	double sum = 0, sizes = 0;
	const Symbol *any = NULL;
	IR_FOR_OPS(p->now, SEC_BACKWARD, op) {
		const EvalTensor *g = op->kind == OP_GRAD ? eval_value(p->told->env[0], op_in(op, 0)) : NULL;
		if (g)
			sum += slope_of(g, op->sym->name, &sizes);
		any = g ? op->sym : any;
	}
	if (!any || agrees(p, (Along){0}, sum, sizes, found))
		return NULL;
	*told = sum;
	*at = first_wrong(p);
	IR_FOR_OPS(p->now, SEC_BACKWARD, op) {
		const EvalTensor *g = op->kind == OP_GRAD ? eval_value(p->told->env[0], op_in(op, 0)) : NULL;
		double size = 0, mine = g ? slope_of(g, op->sym->name, &size) : 0, rise;
		if (g && !agrees(p, (Along){.param = op->sym}, mine, size, &rise)) {
			*told = mine;
			*found = rise;
			return op->sym;
		}
	}
	return any;
}

const Symbol *check_gradients(Module *was, Module *now, CheckData *data, double *told, double *found, const Value **at)
{
	Probe p = {.m = was, .now = now, .data = data, .report = was->first[SEC_FORWARD]};
	while (p.report && p.report->kind != OP_REPORT_LOSS)
		p.report = p.report->next;
	*at = NULL;
	if (!p.report)
		return NULL;
	p.base = check_evaluate(was, data, 0);
	p.told = check_evaluate(now, data, 0);
	const Symbol *wrong = find_wrong(&p, told, found, at);
	check_result_free(p.base);
	check_result_free(p.told);
	return wrong;
}
