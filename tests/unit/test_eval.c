/* tests/unit/test_eval.c: compares the reference evaluator with results worked out by hand (eval_cases.def), and tests
 * its other properties: folding from constants alone, rounding, dropout that depends only on its key and counter,
 * symbols. */
#include "base/philox.h"
#include "ir/eval.h"
#include "tests/unit/parsed.h"
#include "tests/unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct EvalCase { const char *what, *ops; int n; const double *want; } EvalCase;

static const EvalCase cases[] = {
#define EVAL(what, ops, ...) \
	{what, ops, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (const double[]){__VA_ARGS__}},
#include "tests/unit/eval_cases.def"
};

/* A module whose forward is `ops`, after the declarations `symbols`. */
static Module *module_of(const char *symbols, const char *ops)
{
	Diag d = {.out = stderr};
	Buf text = {0};
	buf_printf(&text, "module \"t\" level=SHARD {\n%s\nforward {\n%s\n}\n}\n", symbols, ops);
	Module *m = ir_parse("case", text.at, &d);
	buf_free(&text);
	if (m && !ir_verify(m, NULL, &d)) {
		ir_module_free(m);
		return NULL;
	}
	return m;
}

static bool same(double a, double b)
{
	if (isnan(a) || isnan(b) || isinf(b))
		return isnan(a) ? isnan(b) : a == b;
	return fabs(a - b) <= 1e-12 * fmax(1, fabs(b));
}

static bool matches(const EvalTensor *t, int n, const double *want)
{
	if (!t || type_numel(&t->type) != n)
		return false;
	for (int i = 0; i < n; i++) {
		Scalar s = eval_get(t, i);
		if (!same(dtype_is_float(t->type.dtype) ? s.f : (double)s.i, want[i]))
			return false;
	}
	return true;
}

static void test_by_hand(void)
{
	for (int i = 0; i < COUNT_OF(cases); i++) {
		Module *m = module_of("", cases[i].ops);
		UNIT_CHECK(m != NULL, cases[i].what);
		if (!m)
			continue;
		Arena *a = arena_new();
		EvalEnv *run = eval_new(m, a), *fold = eval_new(m, a);
		Value *y = value_named(m, "y");
		eval_section(run, SEC_FORWARD);
		UNIT_CHECK(matches(eval_value(run, y), cases[i].n, cases[i].want), cases[i].what);
		UNIT_CHECK(matches(eval_constant(fold, y, 1000), cases[i].n, cases[i].want), cases[i].what);
		arena_free(a);
		ir_module_free(m);
	}
}

/* Every elementwise op has a function for the dtypes that its shape rule lets through. */
static void test_every_elementwise_op(void)
{
	for (int k = 0; k < OP_COUNT; k++) {
		bool some = eval_scalar_fn((OpKind)k, DT_F64) || eval_scalar_fn((OpKind)k, DT_I64);
		bool elementwise = op_info[k].flags & EW;
		UNIT_CHECK(some == elementwise, op_info[k].text);
	}
}

static void test_constants(void)
{
	Module *m = module_of("input \"x\" : f64[2]",
		"%x : f64[2] = input \"x\"\n %a : f64[2] = const {value=[1.0,2.0]}\n %b : f64[2] = add %a, %a\n"
		"%c : f64[2] = mul %b, %x\n %s : f64[] = reduce_sum %b {axes=[0], keepdims=0}\n"
		"%d : f64[8,2] = broadcast %b {shape=[8,2]}\n %e : f64[] = reduce_sum %d {axes=[0,1], keepdims=0}\n"
		"%r : f64[2] = dropout %a {axis=0, id=1, p=0.5}");
	Arena *a = arena_new();
	EvalEnv *e = eval_new(m, a);
	CU_ASSERT_PTR_NULL(eval_constant(e, value_named(m, "c"), 100));
	CU_ASSERT_PTR_NULL(eval_constant(e, value_named(m, "x"), 100));
	CU_ASSERT_PTR_NULL(eval_constant(e, value_named(m, "r"), 100));
	CU_ASSERT(matches(eval_constant(e, value_named(m, "s"), 100), 1, (double[]){6}));
	/* what is between counts too, and a refusal for its size is not for good */
	CU_ASSERT_PTR_NULL(eval_constant(e, value_named(m, "e"), 15));
	CU_ASSERT(matches(eval_constant(e, value_named(m, "e"), 16), 1, (double[]){48}));
	CU_ASSERT_PTR_NULL(eval_constant(e, value_named(m, "d"), 15));
	/* values made after the environment */
	Builder b = {.m = m, .section = SEC_FORWARD};
	Value *late = ir_emit2(&b, OP_MUL, value_named(m, "s"), ir_const_float(&b, DT_F64, 2));
	CU_ASSERT(matches(eval_constant(e, late, 100), 1, (double[]){12}));
	arena_free(a);
	ir_module_free(m);
}

/* A chain of 200,000 ops is folded without recursion, and asking along it stays linear. */
static void test_long_chain(void)
{
	enum { LENGTH = 200000 };
	Module *m = ir_module_new("chain");
	Builder b = {.m = m, .section = SEC_FORWARD};
	Value *one = ir_const_int(&b, DT_I64, 1), *v = one;
	for (int i = 1; i < LENGTH; i++)
		v = ir_emit2(&b, OP_ADD, v, one);
	Arena *a = arena_new();
	EvalEnv *e = eval_new(m, a);
	CU_ASSERT(matches(eval_constant(e, v, 1), 1, (double[]){LENGTH}));
	arena_free(a);
	ir_module_free(m);
}

static void test_rounding(void)
{
	Module *m = module_of("", "%a : f32[] = const {value=[1.0]}\n %b : f32[] = const {value=[3.0]}\n"
		"%y : f32[] = div %a, %b\n %h : bf16[] = cast %y {to=bf16}");
	Arena *a = arena_new();
	EvalEnv *exact = eval_new(m, a), *rounded = eval_new(m, a);
	eval_set_round(rounded, true);
	eval_section(exact, SEC_FORWARD);
	eval_section(rounded, SEC_FORWARD);
	CU_ASSERT_EQUAL(eval_value(exact, value_named(m, "y"))->f[0], 1.0 / 3);
	CU_ASSERT_EQUAL(eval_value(rounded, value_named(m, "y"))->f[0], (double)(1.0f / 3));
	CU_ASSERT_EQUAL(eval_value(rounded, value_named(m, "h"))->f[0], 0.333984375);
	arena_free(a);
	ir_module_free(m);
}

/* Bad data leaves a result uncomputed, and what depends on it. */
static void test_bad_data(void)
{
	Module *m = module_of("", "%x : f64[2] = const {value=[1.0]}\n %i : i64[1] = const {value=[2]}\n"
		"%g : f64[1] = gather %x, %i {axis=0}\n %y : f64[1] = neg %g\n %l : f64[1,2] = const {value=[0.0]}\n"
		"%s : f64[], %n : f64[], %e : f64[1] = cross_entropy %l, %i {ignore_index=-100, smoothing=0.0}");
	Arena *a = arena_new();
	EvalEnv *e = eval_new(m, a);
	eval_section(e, SEC_FORWARD);
	CU_ASSERT_PTR_NULL(eval_value(e, value_named(m, "g")));
	CU_ASSERT_PTR_NULL(eval_value(e, value_named(m, "y")));
	CU_ASSERT_PTR_NULL(eval_value(e, value_named(m, "s")));
	CU_ASSERT_PTR_NOT_NULL(eval_value(e, value_named(m, "l")));
	CU_ASSERT_PTR_NULL(eval_constant(e, value_named(m, "y"), 100));
	arena_free(a);
	ir_module_free(m);
}

static void test_symbols(void)
{
	Module *m = module_of("output \"o\" : f64[2]\n buffer \"n\" : f64[2] {fill=5.0}",
		"%n : f64[2] = read \"n\"\n %y : f64[2] = add %n, %n\n write \"n\" %y\n %z : f64[2] = read \"n\"\n"
		"output \"o\" %z");
	Arena *a = arena_new();
	EvalEnv *e = eval_new(m, a);
	for (int step = 1; step <= 2; step++)
		eval_section(e, SEC_FORWARD);
	CU_ASSERT(matches(eval_symbol(e, ir_find_symbol(m, "o")), 2, (double[]){20, 20}));
	CU_ASSERT(matches(eval_symbol(e, ir_find_symbol(m, "n")), 2, (double[]){20, 20}));
	arena_free(a);
	ir_module_free(m);
}

/* ---- dropout ---- */

/* Known answers of Philox4x32-10, as published with the Random123 library. */
static void test_philox_known_answers(void)
{
	static const struct { uint32_t c[4], k[2], want[4]; } known[] = {
		{{0}, {0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
			{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	};
	for (int i = 0; i < COUNT_OF(known); i++) {
		uint32_t c[4];
		memcpy(c, known[i].c, sizeof(c));
		philox_rounds(c, known[i].k[0], known[i].k[1]);
		CU_ASSERT(!memcmp(c, known[i].want, sizeof(c)));
	}
}

/* Evaluates dropout over [rows, 64] ones whose first row is sample0; returns the results. */
static EvalTensor *dropped(Arena *a, int rows, uint64_t seed, uint64_t step, uint64_t sample0)
{
	const char *text = arena_printf(a, "%%x : f64[%d,64] = const {value=[1.0]}\n"
		"%%y : f64[%d,64] = dropout %%x {axis=0, id=7, p=0.25}\n"
		"%%m : bool[%d,64] = dropout_mask %%x {axis=0, id=7, p=0.25}\n %%c : f64[%d,64] = cast %%m {to=f64}\n"
		"%%s : f64[] = const {value=[0.75]}\n %%e : f64[%d,64] = mul %%y, %%s\n"
		"%%z : f64[%d,64] = sub %%e, %%c",
		rows, rows, rows, rows, rows, rows);
	Module *m = module_of("", text);
	EvalEnv *e = eval_new(m, a);
	eval_set_random(e, seed, step, sample0);
	eval_section(e, SEC_FORWARD);
	EvalTensor *z = eval_value(e, value_named(m, "z"));
	for (int i = 0; i < rows * 64; i++)
		CU_ASSERT(fabs(z->f[i]) < 1e-15);
	EvalTensor *y = eval_value(e, value_named(m, "y"));
	ir_module_free(m);
	return y;
}

static void test_dropout(void)
{
	Arena *a = arena_new();
	EvalTensor *all = dropped(a, 64, 1, 2, 0), *half = dropped(a, 32, 1, 2, 32);
	EvalTensor *other_seed = dropped(a, 64, 2, 2, 0), *other_step = dropped(a, 64, 1, 3, 0);
	int kept = 0, same_seed = 0, same_step = 0;
	for (int i = 0; i < 64 * 64; i++) {
		kept += all->f[i] != 0;
		same_seed += all->f[i] == other_seed->f[i];
		same_step += all->f[i] == other_step->f[i];
		CU_ASSERT(all->f[i] == 0 || same(all->f[i], 1 / 0.75));
	}
	/* the second half of the samples on another rank has the same mask */
	CU_ASSERT(!memcmp(half->f, all->f + 32 * 64, sizeof(double) * 32 * 64));
	/* 3072 of 4096 are kept on average, with a standard deviation of 28; of two masks 2560 agree */
	CU_ASSERT(abs(kept - 3072) < 140);
	CU_ASSERT(abs(same_seed - 2560) < 160 && abs(same_step - 2560) < 160);
	arena_free(a);
}

void suite_eval(void)
{
	CU_pSuite s = CU_add_suite("eval", NULL, NULL);
	CU_add_test(s, "results worked out by hand", test_by_hand);
	CU_add_test(s, "every elementwise op has a scalar function", test_every_elementwise_op);
	CU_add_test(s, "constants fold from constants alone, within a size", test_constants);
	CU_add_test(s, "a long chain folds in linear time", test_long_chain);
	CU_add_test(s, "results are rounded to their dtype when asked to", test_rounding);
	CU_add_test(s, "bad data leaves results uncomputed", test_bad_data);
	CU_add_test(s, "symbols are read and written in order", test_symbols);
	CU_add_test(s, "Philox gives the published numbers", test_philox_known_answers);
	CU_add_test(s, "dropout depends on seed, id, sample and step only", test_dropout);
}
