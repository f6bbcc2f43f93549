/* tests/gradcheck/differences.c: gradients of ONNX models in f64, by the rules of the compiler and by differences.
 *
 * usage: differences DIR...   each DIR holds model.onnx with an output "loss", input_K.pb of each graph input (input
 * 0 is the only one with samples, input K is named kK), and trained, the names of the parameters that are trained.
 *
 * Each model goes through frontend and passes up to autodiff, and is evaluated in f64 without rounding.  For each DIR
 * a line "case DIR" is printed, and "refused MESSAGE", or "loss X" and a line for each parameter that has a gradient,
 * "gradient NAME x.." and "difference NAME x..": every element by the rules, and by differences of the loss. */
#include "frontend/frontend.h"
#include "passes/passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Two widths of central differences, of which the error of third order is taken out: what is left is of fifth order,
 * and a kink must be farther away than STEP. */
static const double STEP = 1e-3;

typedef struct Case {
	const char *dir;
	Arena *a;
	Diag d;
	Module *m;
	EvalTensor *bound; /* by index of the symbol */
	const Op *report;
} Case;

static EvalTensor to_eval(Arena *a, const HostTensor *h)
{
	EvalTensor t = {.type = h->type};
	int64_t n = type_numel(&h->type);
	bool is_float = dtype_is_float(h->type.dtype);
	if (is_float)
		t.f = NEW_N(a, double, n + 1);
	else
		t.i = NEW_N(a, int64_t, n + 1);
	for (int64_t i = 0; i < n; i++) {
		if (is_float)
			t.f[i] = host_get_float(h, i);
		else
			t.i[i] = host_get_int(h, i);
	}
	return t;
}

static const char *input_path(const Case *c, int k)
{
	return arena_printf(c->a, "%s/input_%d.pb", c->dir, k);
}

static bool load_symbols(Case *c)
{
	int n = 0;
	c->bound = NEW_N(c->a, EvalTensor, c->m->n_symbols);
	for (int i = 0; i < c->m->n_symbols; i++) {
		const Symbol *s = c->m->symbols[i];
		HostTensor h = {0};
		if (s->kind == SYM_OUTPUT)
			continue;
		bool ok = s->kind == SYM_INPUT
			? onnx_tensor_load(input_path(c, n++), c->a, &h, &c->d)
			: source_load(c->m, s, c->a, &h, &c->d);
		if (!ok)
			return false;
		c->bound[i] = to_eval(c->a, &h);
	}
	return true;
}

static EvalEnv *evaluate(const Case *c, Arena *a, bool backward)
{
	EvalEnv *e = eval_new(c->m, a);
	eval_set_exact(e, true);
	eval_set_random(e, 11, 5, 3);
	for (int i = 0; i < c->m->n_symbols; i++)
		if (c->m->symbols[i]->kind != SYM_OUTPUT)
			eval_bind(e, c->m->symbols[i], c->bound[i]);
	eval_section(e, SEC_FORWARD);
	if (backward)
		eval_section(e, SEC_BACKWARD);
	return e;
}

static double loss_at(const Case *c, double *x, double at)
{
	double keep = *x;
	Arena *a = arena_new();
	*x = at;
	const EvalTensor *t = eval_value(evaluate(c, a, false), op_in(c->report, 0));
	double loss = t ? t->f[0] : NAN;
	*x = keep;
	arena_free(a);
	return loss;
}

static double difference(const Case *c, double *x)
{
	double at = *x, slope[2];
	for (int k = 0; k < 2; k++) {
		double h = STEP / (1 << k);
		slope[k] = (loss_at(c, x, at + h) - loss_at(c, x, at - h)) / (2 * h);
	}
	return (4 * slope[1] - slope[0]) / 3;
}

static void print_gradient(const Case *c, const Symbol *s, const EvalTensor *g)
{
	int64_t n = type_numel(&g->type);
	double *x = NULL;
	for (int i = 0; i < c->m->n_symbols; i++)
		x = c->m->symbols[i] == s ? c->bound[i].f : x;
	printf("gradient %s", s->name);
	for (int64_t i = 0; i < n; i++)
		printf(" %.17g", g->f[i]);
	printf("\ndifference %s", s->name);
	for (int64_t i = 0; i < n; i++)
		printf(" %.17g", difference(c, &x[i]));
	printf("\n");
}

static void print_gradients(Case *c)
{
	IR_FOR_OPS(c->m, SEC_FORWARD, op)
		if (op->kind == OP_REPORT_LOSS)
			c->report = op;
	EvalEnv *e = evaluate(c, c->a, true);
	const EvalTensor *loss = eval_value(e, op_in(c->report, 0));
	printf("loss %.17g\n", loss ? loss->f[0] : NAN);
	IR_FOR_OPS(c->m, SEC_BACKWARD, op) {
		const EvalTensor *g = op->kind == OP_GRAD ? eval_value(e, op_in(op, 0)) : NULL;
		if (g)
			print_gradient(c, op->sym, g);
	}
}

static bool run_case(Case *c)
{
	Options o = {.graph = {.loss = "output:loss", .optimizer = "sgd", .dropout = DROPOUT_OFF}, .sharding.world = 1};
	FrontendOptions f = {0};
	PipelineView view = {.stop_after = "autodiff", .out = stdout};
	o.graph.trainable = arena_printf(c->a, "%s/trained", c->dir);
	for (int k = 1; !access(input_path(c, k), R_OK) && k < OPTION_LIST_MAX; k++)
		o.graph.constants.at[o.graph.constants.n++] = arena_printf(c->a, "k%d", k);
	f.graph = o.graph;
	c->m = onnx_load(arena_printf(c->a, "%s/model.onnx", c->dir), &f, &c->d);
	if (!c->m || !pipeline_run(c->m, &o, &view, NULL, &c->d) || !load_symbols(c))
		return false;
	print_gradients(c);
	return true;
}

int main(int argc, char **argv)
{
	int failed = 0;
	for (int i = 1; i < argc; i++) {
		char *log = NULL;
		size_t n = 0;
		Case c = {.dir = argv[i], .a = arena_new()};
		c.d.out = open_memstream(&log, &n);
		printf("case %s\n", c.dir);
		bool ok = run_case(&c);
		fclose(c.d.out);
		for (char *s = log; !ok && s && *s; s++)
			*s = *s == '\n' ? ' ' : *s;
		if (!ok)
			printf("refused %s\n", log ? log : "");
		failed += !ok;
		free(log);
		ir_module_free(c.m);
		arena_free(c.a);
	}
	return failed > 0;
}
