/* tests/unit/test_gradient.c: Gradient of ai.onnx.preview.training: what it becomes, and what it refuses.  Its numbers
 * are compared with PyTorch's by tests/onnx/control.py and tests/gradcheck. */
#include <string.h>

#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

enum { FLOAT = 1, INT64 = 7 };

static void strings(Buf *node, const char *name, const char *list)
{
	Buf a = {0};
	pb_str(&a, 1, name);
	for (const char *at = list; *at;) {
		size_t n = strcspn(at, ",");
		pb_bytes(&a, 9, at, n);
		at += n + (at[n] == ',');
	}
	pb_int(&a, 20, 8);
	pb_msg(node, 5, &a);
}

/* results = Gradient(operands) for lists of names that commas separate; zs "": none */
static void gradient(OnnxText *m, const char *operands, const char *results, const char *xs, const char *zs,
	const char *y)
{
	Buf node = node_text("g", "Gradient", operands, results);
	pb_str(&node, 7, "ai.onnx.preview.training");
	strings(&node, "xs", xs);
	if (*zs)
		strings(&node, "zs", zs);
	attr_s(&node, "y", y);
	model_node(m, node);
}

/* y = sum x x w; n is x in integers, d is x with half of it dropped, s = sum d; nothing reads c */
static OnnxText *model(void)
{
	OnnxText *m = model_new();
	Buf cast = node_text("cast", "Cast", "x", "n"), sum = node_text("sum", "ReduceSum", "xxw", "y");
	Buf sum_d = node_text("sum of d", "ReduceSum", "d", "s");
	m->domain = "ai.onnx.preview.training";
	m->opset = 17;
	model_input(m, "x", FLOAT, "2,3");
	model_floats(m, "w", "3", 3, (const float[]){1, 2, 3});
	model_floats(m, "c", "2,3", 1, (const float[]){1});
	model_op(m, "square", "Mul", "x,x", "xx");
	model_op(m, "scale", "Mul", "xx,w", "xxw");
	attr_i(&sum, "keepdims", 0);
	model_node(m, sum);
	attr_i(&cast, "to", INT64);
	model_node(m, cast);
	model_op(m, "drop", "Dropout", "x", "d");
	attr_i(&sum_d, "keepdims", 0);
	model_node(m, sum_d);
	return m;
}

static void bad(const char *operands, const char *results, const char *xs, const char *zs, const char *y,
	const char *text)
{
	OnnxText *m = model();
	gradient(m, operands, results, xs, zs, y);
	model_output(m, "y");
	Loaded l = load_model(m, NULL);
	UNIT_CHECK(!l.m && l.errors > 0, text);
	expect(&l, text);
	loaded_free(&l);
}

static void test_refused(void)
{
	bad("x", "g1", "", "", "y", "xs names no tensor");
	bad("x", "g1", "q", "", "y", "xs names \"q\", which no input, initializer or node before this one makes");
	bad("x,w", "g1", "x", "q", "y", "zs names \"q\", which no input");
	bad("x", "g1", "x", "", "q", "y names \"q\", which no input");
	bad("x", "g1", "x", "", "", "y names \"\", which no input");
	bad("x", "g1", "x", "", "w", "y is the initializer \"w\": it is computed from nothing");
	bad("x", "g1", "x", "w", "y", "1 operands and 1 results: xs and zs name 2 tensors");
	bad("x", "g1,g2", "x", "", "y", "1 operands and 2 results");
	bad("x,x", "g1,g2", "x,x", "", "y", "\"x\" is named twice in xs and zs");
	bad("xx,x", "g1", "xx", "x", "y", "\"xx\" is computed from another tensor in xs and zs");
	bad("x,xx", "g1,g2", "x,xx", "", "y", "\"xx\" is computed from another");
	bad("w,w", "g1", "w", "w", "y", "\"w\" is named twice in xs and zs");
	bad("xx,x", "g1", "xx", "w", "y", "zs names the initializer \"w\", but operand 1 is \"x\"");
	bad(",x", "g1", "xx", "x", "y", "operand 0, the value of \"xx\", is missing");
	bad("y", "g1", "x", "", "y", "operand 0 is f32[], but \"x\" is f32[2,3]");
	bad("n", "g1", "n", "", "y", "xs names \"n\", which is i64[2,3]: floats have gradients, integers do not");
	bad("x", "g1", "x", "", "n", "y, \"n\", is i64[2,3]: it must be a float");
	bad("x", "g1", "x", "", "xx", "y, \"xx\", is f32[2,3]: the gradient of several numbers is not one tensor");
	bad("x", "g1", "x", "", "x", "y, \"x\", is f32[2,3]");
}

/* Refused for what lies between. */
static void test_between(void)
{
	OnnxText *m = model();
	Buf sum = node_text("sum of p", "ReduceSum", "p", "o");
	attr_i(&sum, "keepdims", 0);
	model_op(m, "norm", "LayerNormalization", "x,w", "p");
	model_node(m, sum);
	gradient(m, "x", "g1", "x", "", "o");
	model_output(m, "g1");
	Loaded l = load_model(m, NULL);
	CU_ASSERT(!l.m);
	expect(&l, "the gradient of node \"norm\" (LayerNormalization) needs the op layer_norm_grad, which has no gradient "
		"itself");
	loaded_free(&l);
	m = model();
	gradient(m, "x", "g1", "x", "", "s");
	model_output(m, "g1");
	l = load_model(m, &(FrontendOptions){.graph.dropout = DROPOUT_ON});
	CU_ASSERT(!l.m);
	expect(&l, "between x and y draws random numbers");
	loaded_free(&l);
}

/* Whether output `name` is known, and zero in all elements. */
static bool is_zero(const Module *m, const char *name)
{
	Arena *a = arena_new();
	bool zero = false;
	IR_FOR_OPS(m, SEC_FORWARD, op) {
		EvalTensor *t = op->kind == OP_OUTPUT && !strcmp(op->sym->name, name)
			? eval_constant(eval_new((Module *)m, a), op_in(op, 0), 100) : NULL;
		for (int64_t i = 0; t && i < type_numel(&t->type); i++)
			zero = t->f[i] == 0 && (zero || i == 0);
	}
	arena_free(a);
	return zero;
}

/* A tensor that y does not depend on has zeros, also one whose values are given by another tensor. */
static void test_zeros(void)
{
	OnnxText *m = model();
	gradient(m, "c,x", "g1,g2", "c,xx", "", "y");
	model_output(m, "g1");
	model_output(m, "g2");
	Loaded l = good(m, NULL);
	CU_ASSERT_FATAL(l.m != NULL);
	CU_ASSERT(is_zero(l.m, "g1") && !is_zero(l.m, "g2"));
	loaded_free(&l);
}

/* A y that is a mean over samples is warned of, a sum is not. */
static void test_samples(void)
{
	for (int mean = 0; mean < 2; mean++) {
		OnnxText *m = model();
		Buf reduce = node_text("reduce", mean ? "ReduceMean" : "ReduceSum", "xxw", "o");
		attr_i(&reduce, "keepdims", 0);
		model_node(m, reduce);
		gradient(m, "x", "g1", "x", "", "o");
		model_output(m, "g1");
		Loaded l = good(m, NULL);
		CU_ASSERT(!strstr(l.log, "y is a mean over samples: the gradient of a sample depends on how many") == !mean);
		loaded_free(&l);
	}
}

void suite_gradient(void)
{
	CU_TestInfo tests[] = {
		{"names and types that are refused", test_refused},
		{"ops between x and y that are refused", test_between},
		{"tensors that y does not depend on have zeros", test_zeros},
		{"means over samples are warned of", test_samples},
		CU_TEST_INFO_NULL,
	};
	CU_SuiteInfo suites[] = {{"gradient", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
	CU_register_suites(suites);
}
