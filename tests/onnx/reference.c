/* tests/onnx/reference.c: ONNX backend tests through frontend and f64 reference, no code generation.
 *
 * usage: reference [-q] DIR...   each DIR holds model.onnx and test_data_set_*.  One line per test:
 * "pass|fail|refused NAME REASON" (-q: failures only); a summary at the end.  Exit 1 when any test failed. */
#include "frontend/frontend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Case {
	const char *dir, *name;
	Arena *a;
	Diag d;
	char *log;
	size_t n_log;
	char why[512];
} Case;

typedef enum { PASS, FAIL, REFUSED } Verdict;

static EvalTensor to_eval(Arena *a, const HostTensor *h)
{
	EvalTensor t = {.type = h->type};
	int64_t n = type_numel(&h->type);
	if (dtype_is_float(h->type.dtype)) {
		t.f = NEW_N(a, double, n + 1);
		for (int64_t i = 0; i < n; i++)
			t.f[i] = host_get_float(h, i);
	} else {
		t.i = NEW_N(a, int64_t, n + 1);
		for (int64_t i = 0; i < n; i++)
			t.i[i] = host_get_int(h, i);
	}
	return t;
}

static bool near(double got, double want, double rtol)
{
	if (isnan(got) || isnan(want))
		return isnan(got) && isnan(want);
	return got == want || fabs(got - want) <= 1e-6 + rtol * fabs(want); /* infinities are equal or not */
}

static bool same(Case *c, const EvalTensor *got, const EvalTensor *want, const char *name)
{
	double rtol = dtype_info[want->type.dtype].bytes == 2 ? 2e-2 : 1e-3;
	if (!type_equal(&got->type, &want->type)) {
		snprintf(c->why, sizeof(c->why), "%s is %s, expected %s", name, type_str(c->a, &got->type),
			type_str(c->a, &want->type));
		return false;
	}
	for (int64_t i = 0; i < type_numel(&got->type); i++) {
		bool is_float = dtype_is_float(got->type.dtype);
		double g = is_float ? dtype_round(got->type.dtype, got->f[i]) : (double)got->i[i];
		double w = is_float ? want->f[i] : (double)want->i[i];
		if (!near(g, w, rtol)) {
			snprintf(c->why, sizeof(c->why), "%s[%lld] is %.9g, expected %.9g", name, (long long)i, g, w);
			return false;
		}
	}
	return true;
}

static const char *data_path(Case *c, int set, const char *kind, int i)
{
	return arena_printf(c->a, "%s/test_data_set_%d/%s_%d.pb", c->dir, set, kind, i);
}

static bool bind_inputs(Case *c, Module *m, EvalEnv *e, int set)
{
	const char *dir = arena_printf(c->a, "%s/test_data_set_%d", c->dir, set);
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		HostTensor h;
		if (s->kind == SYM_INPUT) {
			if (!onnx_input_load(m, s, dir, c->a, &h, &c->d))
				return false;
			eval_bind(e, s, to_eval(c->a, &h));
		} else if (s->kind != SYM_OUTPUT) {
			if (!source_load(m, s, c->a, &h, &c->d))
				return false;
			eval_bind(e, s, to_eval(c->a, &h));
		}
	}
	return true;
}

/* Reads the expectation of an output: a file of its own, or the next element of the list that has its ONNX name. */
static bool expectation(Case *c, const Symbol *s, const Symbol *before, int set, int *n, int *element, HostTensor *h)
{
	bool goes_on = before && !strcmp(before->onnx, s->onnx);
	*element = goes_on ? *element + 1 : 0;
	*n += !goes_on;
	const char *path = data_path(c, set, "output", *n);
	HostTensorVec list;
	if (!strcmp(s->onnx, s->name))
		return onnx_tensor_load(path, c->a, h, &c->d);
	if (!onnx_list_load(path, c->a, &list, &c->d) || *element >= list.n)
		return false;
	*h = list.at[*element];
	return true;
}

static bool check_outputs(Case *c, Module *m, EvalEnv *e, int set)
{
	int n = -1, element = 0;
	const Symbol *before = NULL;
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		HostTensor h;
		if (s->kind != SYM_OUTPUT)
			continue;
		EvalTensor *got = eval_symbol(e, s);
		if (!expectation(c, s, before, set, &n, &element, &h) || !got) {
			snprintf(c->why, sizeof(c->why), "no value or no expectation of %s", s->name);
			return false;
		}
		before = s;
		EvalTensor want = to_eval(c->a, &h);
		if (!same(c, got, &want, s->name))
			return false;
	}
	return true;
}

static Verdict run_sets(Case *c, Module *m)
{
	for (int set = 0; set == 0 || !access(data_path(c, set, "output", 0), R_OK); set++) {
		EvalEnv *e = eval_new(m, c->a);
		if (!bind_inputs(c, m, e, set)) {
			snprintf(c->why, sizeof(c->why), "inputs cannot be read");
			return REFUSED;
		}
		eval_section(e, SEC_FORWARD);
		if (!check_outputs(c, m, e, set))
			return FAIL;
	}
	return PASS;
}

/* Whether outputs are random: conformance.py has what is checked of those. */
static bool draws(const Module *m)
{
	IR_FOR_OPS(m, SEC_FORWARD, op)
		if (op_draws(op))
			return true;
	return false;
}

static Verdict run_case(Case *c)
{
	FrontendOptions o = {.infer = true, .inputs = arena_printf(c->a, "%s/test_data_set_0", c->dir)};
	Module *m = onnx_load(arena_printf(c->a, "%s/model.onnx", c->dir), &o, &c->d);
	Verdict v = REFUSED;
	if (m && !ir_verify(m, NULL, &c->d)) {
		snprintf(c->why, sizeof(c->why), "does not verify");
		v = FAIL;
	} else if (m && draws(m)) {
		snprintf(c->why, sizeof(c->why), "it draws random numbers");
	} else if (m) {
		v = run_sets(c, m);
	}
	ir_module_free(m);
	return v;
}

int main(int argc, char **argv)
{
	static const char *const text[] = {"pass", "fail", "refused"};
	int count[3] = {0};
	bool quiet = argc > 1 && !strcmp(argv[1], "-q");
	for (int i = 1 + quiet; i < argc; i++) {
		const char *slash = strrchr(argv[i], '/');
		Case c = {.dir = argv[i], .name = slash ? slash + 1 : argv[i], .a = arena_new()};
		c.d.out = open_memstream(&c.log, &c.n_log);
		Verdict v = run_case(&c);
		fclose(c.d.out);
		if (c.log)
			c.log[strcspn(c.log, "\n")] = 0;
		if (!quiet || v == FAIL)
			printf("%s %s %s%s%s\n", text[v], c.name, c.why, *c.why && c.n_log ? ": " : "",
			v != PASS && c.log ? c.log : "");
		fflush(stdout);
		count[v]++;
		free(c.log);
		arena_free(c.a);
	}
	printf("passed %d, failed %d, refused %d\n", count[PASS], count[FAIL], count[REFUSED]);
	return count[FAIL] > 0;
}
