/* tests/unit/test_frontend.c: how ONNX models are imported: shapes, constants, functions, modes. */
#include <math.h>
#include <string.h>

#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

static const float ramp[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static OnnxText *linear(void)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3");
	model_floats(m, "fc.weight", "2,3", 11, ramp);
	model_floats(m, "fc.bias", "2", 11, ramp);
	Buf n = node_text("/fc/Gemm", "Gemm", "x,fc.weight,fc.bias", "y");
	attr_i(&n, "transB", 1);
	model_node(m, n);
	model_output(m, "y");
	return m;
}

static void test_linear(void)
{
	Loaded l = good(linear(), NULL);
	const Op *op = find_op(l.m, OP_MATMUL);
	CU_ASSERT_EQUAL(l.m->level, LEVEL_MODEL);
	CU_ASSERT_EQUAL(l.m->batch, 4);
	CU_ASSERT_PTR_NOT_NULL_FATAL(op);
	CU_ASSERT_EQUAL(op->n_in, 3);
	CU_ASSERT_EQUAL(attr_get_int(op->attrs, "tb", 0), 1);
	CU_ASSERT_STRING_EQUAL(op->loc->node, "/fc/Gemm");
	CU_ASSERT_STRING_EQUAL(op->loc->scope, "fc");
	CU_ASSERT_STRING_EQUAL(op->out[0]->name, "y");
	const Symbol *w = symbol_of(&l, "fc.weight", SYM_PARAM);
	CU_ASSERT(w && w->trainable && w->src.file && w->src.bytes == 24);
	HostTensor t;
	Diag d = {.out = stderr};
	CU_ASSERT_FATAL(source_load(l.m, w, l.m->arena, &t, &d));
	CU_ASSERT_EQUAL(host_get_float(&t, 5), 6);
	loaded_free(&l);
}

/* ---- dims and flags ---- */

static OnnxText *symbolic(void)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "batch,3");
	model_op(m, "r", "Relu", "x", "y");
	model_output(m, "y");
	return m;
}

static void test_dims(void)
{
	FrontendOptions bind = {.graph.bind = {{"batch=5"}, 1}};
	FrontendOptions shape = {.graph.input_shape = {{"x=7x3"}, 1}};
	Loaded l = good(symbolic(), &bind);
	CU_ASSERT_EQUAL(l.m->batch, 5);
	loaded_free(&l);
	l = good(symbolic(), &shape);
	CU_ASSERT_EQUAL(l.m->batch, 7);
	loaded_free(&l);
	l = load_model(symbolic(), NULL);
	CU_ASSERT_PTR_NULL(l.m);
	expect(&l, "input \"x\": error: dimension 0, \"batch\", is not bound: give --bind batch=N or "
		"--input-shape x=");
	loaded_free(&l);
}

/* Where the flags say the same of a dimension both may stand; neither is overruled in silence. */
static void test_flags_that_differ(void)
{
	FrontendOptions o = {.graph = {.bind = {{"batch=5"}, 1}, .input_shape = {{"x=5x3"}, 1}}};
	Loaded l = good(symbolic(), &o);
	CU_ASSERT_EQUAL(l.m->batch, 5);
	loaded_free(&l);
	o.graph.input_shape.at[0] = "x=7x3";
	l = load_model(symbolic(), &o);
	CU_ASSERT_PTR_NULL(l.m);
	expect(&l, "input \"x\": error: --input-shape says that dimension 0, \"batch\", is 7, and --bind batch=5");
	loaded_free(&l);
}

static void test_flags_that_name_nothing(void)
{
	FrontendOptions o = {.graph = {.bind = {{"batch=5", "seq=2"}, 2}, .input_shape = {{"q=1"}, 1},
		.constants = {{"z"}, 1}}};
	Loaded l = load_model(symbolic(), &o);
	expect(&l, "--bind seq=2: the model has no such dimension");
	expect(&l, "--input-shape q=1: the model has no such input");
	expect(&l, "--const z: the model has no such input");
	CU_ASSERT_EQUAL(l.errors, 3);
	loaded_free(&l);
}

static void test_sample_axis(void)
{
	FrontendOptions o = {.graph.constants = {{"pos"}, 1}};
	for (int given = 0; given < 2; given++) {
		OnnxText *m = model_new();
		model_input(m, "x", 1, "4,3");
		model_input(m, "pos", 1, "1,3");
		model_op(m, "a", "Add", "x,pos", "y");
		model_output(m, "y");
		Loaded l = load_model(m, given ? &o : NULL);
		CU_ASSERT_EQUAL(l.m != NULL, given);
		if (!given)
			expect(&l, "its first dimension is 1, that of the first input 4: give --const pos");
		else
			CU_ASSERT_FALSE(ir_find_symbol(l.m, "pos")->batched);
		loaded_free(&l);
	}
}

/* ---- what is known at compile time ---- */

static void test_shape_arithmetic(void)
{
	static const int64_t first[] = {0}, rest[] = {-1};
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3,2");
	model_ints(m, "zero", 1, first);
	model_ints(m, "minus", 1, rest);
	model_op(m, "s", "Shape", "x", "shape");
	model_op(m, "g", "Gather", "shape,zero", "dim");
	model_op(m, "c", "Concat", "dim,minus", "to");
	model_op(m, "r", "Reshape", "x,to", "y");
	model_output(m, "y");
	Loaded l = good(m, NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_CONST), 0);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_GATHER), 0);
	const Op *op = find_op(l.m, OP_RESHAPE);
	CU_ASSERT_FATAL(op && op->out[0]->type.rank == 2);
	CU_ASSERT_EQUAL(op->out[0]->type.dim[1], 6);
	loaded_free(&l);
}

static void test_slice_limits(void)
{
	static const int64_t axes[] = {0, 1}, starts[] = {1, INT64_MAX}, steps[] = {1, -2};
	static const int64_t ends[] = {INT64_MAX, INT64_MIN};
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,5");
	model_ints(m, "starts", 2, starts);
	model_ints(m, "ends", 2, ends);
	model_ints(m, "axes", 2, axes);
	model_ints(m, "steps", 2, steps);
	model_op(m, "s", "Slice", "x,starts,ends,axes,steps", "y");
	model_output(m, "y");
	Loaded l = good(m, NULL);
	const Op *op = find_op(l.m, OP_SLICE);
	CU_ASSERT_PTR_NOT_NULL_FATAL(op);
	CU_ASSERT_EQUAL(op->out[0]->type.dim[0], 3);
	CU_ASSERT_EQUAL(op->out[0]->type.dim[1], 3);
	CU_ASSERT_EQUAL(attr_find(op->attrs, "starts")->ints[1], 4);
	loaded_free(&l);
}

static Buf branch(const char *op)
{
	Buf g = {0}, n = node_text("inner", op, "x", "b"), out = {0};
	pb_msg(&g, 1, &n);
	pb_str(&out, 1, "b");
	pb_msg(&g, 12, &out);
	return g;
}

static void test_constant_condition(void)
{
	static const int64_t yes[] = {1};
	OnnxText *m = model_new();
	Buf then_branch = branch("Relu"), else_branch = branch("NonZero");
	Buf cast = node_text("c", "Cast", "one", "cond"), n = node_text("if", "If", "cond", "y");
	model_input(m, "x", 1, "4,3");
	model_ints(m, "one", 1, yes);
	attr_i(&cast, "to", 9);
	attr_graph(&n, "then_branch", &then_branch);
	attr_graph(&n, "else_branch", &else_branch);
	model_node(m, cast);
	model_node(m, n);
	model_output(m, "y");
	Loaded l = good(m, NULL);
	CU_ASSERT_PTR_NOT_NULL(find_op(l.m, OP_RELU));
	loaded_free(&l);
}

/* Long tables of positions, and of one number, are not stored. */
static void test_long_tables(void)
{
	static int64_t positions[5000], same[5000];
	for (int i = 0; i < 5000; i++) {
		positions[i] = 3 + 2 * i;
		same[i] = 7;
	}
	OnnxText *m = model_new();
	model_input(m, "x", 7, "4,5000");
	model_ints(m, "positions", 5000, positions);
	model_ints(m, "same", 5000, same);
	model_op(m, "a", "Add", "x,positions", "h");
	model_op(m, "b", "Add", "h,same", "y");
	model_output(m, "y");
	Loaded l = good(m, NULL);
	const Op *iota = find_op(l.m, OP_IOTA), *full = find_op(l.m, OP_CONST);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_READ), 0);
	CU_ASSERT_FATAL(iota && full);
	CU_ASSERT_EQUAL(attr_get_float(iota->attrs, "start", 0), 3);
	CU_ASSERT_EQUAL(attr_get_float(iota->attrs, "step", 1), 2);
	CU_ASSERT_EQUAL(attr_find(full->attrs, "value")->n, 1);
	loaded_free(&l);
}

/* ---- functions ---- */

static Buf function_text(const char *name, const char *in, const char *out)
{
	Buf f = {0}, opset = {0};
	pb_str(&f, 1, name);
	pb_str(&f, 4, in);
	pb_str(&f, 5, out);
	pb_str(&f, 10, "my");
	pb_int(&opset, 2, 18);
	pb_msg(&f, 9, &opset);
	return f;
}

static Buf call(const char *name, const char *function, const char *in, const char *out)
{
	Buf n = node_text(name, function, in, out);
	pb_str(&n, 7, "my");
	return n;
}

static void test_functions(void)
{
	OnnxText *m = model_new();
	Buf inner = function_text("Inner", "a", "b"), outer = function_text("Outer", "a", "b");
	Buf leaf = node_text("leaf", "LeakyRelu", "a", "b"), middle = call("mid", "Inner", "a", "b");
	Buf top = call("top", "Outer", "x", "y");
	attr_ref(&leaf, "alpha", "slope");
	attr_ref(&middle, "slope", "steep");
	attr_f(&top, "steep", 0.25f);
	function_node(&inner, leaf);
	function_node(&outer, middle);
	model_function(m, inner);
	model_function(m, outer);
	model_input(m, "x", 1, "4,3");
	model_node(m, top);
	model_output(m, "y");
	Loaded l = good(m, NULL);
	const Op *op = find_op(l.m, OP_WHERE), *scale = find_op(l.m, OP_MUL);
	CU_ASSERT_FATAL(op && scale);
	CU_ASSERT_STRING_EQUAL(op->loc->node, "top/mid/leaf");
	const Op *slope = op_in(scale, 1)->op;
	CU_ASSERT_EQUAL(attr_find(slope->attrs, "value")->floats[0], 0.25);
	loaded_free(&l);
}

static void test_recursive_function(void)
{
	OnnxText *m = model_new();
	Buf f = function_text("F", "a", "b");
	function_node(&f, call("again", "F", "a", "h"));
	function_node(&f, call("and_again", "F", "h", "b"));
	model_function(m, f);
	model_input(m, "x", 1, "4,3");
	model_node(m, call("top", "F", "x", "y"));
	model_output(m, "y");
	Loaded l = load_model(m, NULL);
	CU_ASSERT_PTR_NULL(l.m);
	expect(&l, "node \"top/again\" (F): error: function \"F\" calls itself");
	CU_ASSERT_EQUAL(l.errors, 1);
	loaded_free(&l);
}

/* Functions F0..Fn, each of which calls the next one twice; the last is one node. */
static OnnxText *doubling(int n, const char *leaf)
{
	Arena *a = arena_new();
	OnnxText *m = model_new();
	for (int i = 0; i <= n; i++) {
		Buf f = function_text(arena_printf(a, "F%d", i), "a", "b");
		const char *next = arena_printf(a, "F%d", i + 1);
		if (i < n) {
			function_node(&f, call("l", next, "a", "h"));
			function_node(&f, call("r", next, "h", "b"));
		} else {
			function_node(&f, node_text("leaf", leaf, "a", "b"));
		}
		model_function(m, f);
	}
	model_input(m, "x", 1, "4,3");
	model_node(m, call("top", "F0", "x", "y"));
	model_output(m, "y");
	arena_free(a);
	return m;
}

static void test_doubling_functions(void)
{
	Loaded l = good(doubling(8, "Relu"), NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_RELU), 256);
	loaded_free(&l);
	l = load_model(doubling(40, "Relu"), NULL);
	CU_ASSERT_PTR_NULL(l.m);
	expect(&l, "inlining the model's functions and unrolling its loops makes more than 204100 nodes");
	expect(&l, "onnx.inliner.inline_local_functions");
	CU_ASSERT_EQUAL(l.errors, 1);
	loaded_free(&l);
}

/* A call ends at its first error: 2^40 calls would say the same. */
static void test_error_in_doubling_functions(void)
{
	Loaded l = load_model(doubling(40, "FancyNewOp"), NULL);
	CU_ASSERT_PTR_NULL(l.m);
	expect(&l, "refused: 1 x FancyNewOp");
	CU_ASSERT_EQUAL(l.errors, 1);
	loaded_free(&l);
}

/* ---- training modes ---- */

/* An input "x" and what a norm "bn" holds. */
static OnnxText *norm_model(void)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3,2,2");
	model_floats(m, "bn.weight", "3", 3, ramp);
	model_floats(m, "bn.bias", "3", 3, ramp);
	model_floats(m, "bn.running_mean", "3", 3, ramp);
	model_floats(m, "bn.running_var", "3", 3, ramp);
	return m;
}

static OnnxText *batch_norm(void)
{
	OnnxText *m = norm_model();
	model_op(m, "/bn/BatchNormalization", "BatchNormalization",
		"x,bn.weight,bn.bias,bn.running_mean,bn.running_var", "y");
	model_output(m, "y");
	return m;
}

/* What the variance of the batch is multiplied with first: n / (n - 1), or the momentum where it stays biased. */
static double variance_factor(const Module *m)
{
	IR_FOR_OPS(m, SEC_FORWARD, op)
		if (op->kind == OP_MUL && op_in(op, 0)->op->kind == OP_BATCH_NORM && op_in(op, 0)->index == 2)
			return attr_find(op_in(op, 1)->op->attrs, "value")->floats[0];
	return 0;
}

static void test_batch_norm(void)
{
	Loaded l = good(batch_norm(), NULL);
	const Op *op = find_op(l.m, OP_BATCH_NORM);
	CU_ASSERT_PTR_NOT_NULL_FATAL(op);
	CU_ASSERT_STRING_EQUAL(attr_get_str(op->attrs, "mean", ""), "bn.running_mean");
	CU_ASSERT_STRING_EQUAL(attr_get_str(op->attrs, "var", ""), "bn.running_var");
	CU_ASSERT_EQUAL(count_ops(l.m, OP_WRITE), 2);
	CU_ASSERT_DOUBLE_EQUAL(variance_factor(l.m), 16.0 / 15, 1e-6);
	loaded_free(&l);
	l = good(batch_norm(), &(FrontendOptions){.graph.bn_biased = true});
	CU_ASSERT_DOUBLE_EQUAL(variance_factor(l.m), 0.1, 1e-6);
	loaded_free(&l);
	l = good(batch_norm(), &(FrontendOptions){.graph.bn.all = NORM_FROZEN});
	CU_ASSERT_PTR_NULL(find_op(l.m, OP_BATCH_NORM));
	CU_ASSERT_EQUAL(count_ops(l.m, OP_WRITE), 0);
	loaded_free(&l);
}

/* A norm that is called twice moves its statistics twice: 0.9 (0.9 old + 0.1 first) + 0.1 second, in one write. */
static void test_batch_norm_twice(void)
{
	OnnxText *m = norm_model();
	for (int i = 0; i < 2; i++) {
		Buf n = node_text(i ? "bn_1" : "bn", "BatchNormalization", i
			? "h,bn.weight,bn.bias,bn.running_mean,bn.running_var"
			: "x,bn.weight,bn.bias,bn.running_mean,bn.running_var", i ? "y" : "h");
		attr_i(&n, "training_mode", 1);
		model_node(m, n);
	}
	model_output(m, "y");
	Loaded l = good(m, NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_BATCH_NORM), 2);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_WRITE), 2);
	const Op *w = find_op(l.m, OP_WRITE);
	const Op *old = w ? op_in(op_in(op_in(w, 0)->op, 0)->op, 0)->op : NULL; /* what 0.9 multiplies */
	CU_ASSERT(old && old->kind == OP_ADD);
	loaded_free(&l);
}

/* x [4,6] -> [24] -> dropout -> [4,6] -> swapped -> dropout -> y */
static OnnxText *dropouts(bool lost)
{
	static const int64_t flat[] = {24}, rows[] = {4, 6};
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,6");
	model_ints(m, "flat", 1, flat);
	model_ints(m, "rows", 2, rows);
	model_op(m, "r1", "Reshape", "x,flat", "a");
	model_op(m, "d1", "Dropout", "a", "b");
	model_op(m, "r2", "Reshape", "b,rows", "c");
	model_op(m, "t", "Transpose", "c", "d");
	model_op(m, "m", lost ? "CumSum" : "Tanh", lost ? "d,one" : "d", "e");
	if (lost)
		model_ints(m, "one", 1, (int64_t[]){1});
	model_op(m, "d2", "Dropout", "e", "y");
	model_output(m, "y");
	return m;
}

static void test_dropout(void)
{
	FrontendOptions on = {.graph.dropout = DROPOUT_ON};
	Loaded l = good(dropouts(false), &on);
	const Op *first = find_op(l.m, OP_DROPOUT), *second = NULL;
	CU_ASSERT_EQUAL(count_ops(l.m, OP_DROPOUT), 2);
	IR_FOR_OPS(l.m, SEC_FORWARD, op)
		second = op->kind == OP_DROPOUT ? op : second;
	CU_ASSERT_EQUAL(attr_get_int(first->attrs, "axis", -1), 1); /* of [1,4,6]: 24 are not samples */
	CU_ASSERT(first->out[0]->type.rank == 3 && first->out[0]->type.dim[1] == 4);
	CU_ASSERT_EQUAL(attr_get_int(second->attrs, "axis", -1), 1);
	CU_ASSERT_NOT_EQUAL(attr_get_int(first->attrs, "id", -1), attr_get_int(second->attrs, "id", -1));
	loaded_free(&l);
	l = good(dropouts(false), NULL); /* no node says training_mode */
	CU_ASSERT_EQUAL(count_ops(l.m, OP_DROPOUT), 0);
	loaded_free(&l);
	l = load_model(dropouts(true), &on);
	expect(&l, "refused: 1 x Dropout (opset 18), first at node \"d2\": samples have met before it, in CumSum \"m\"");
	loaded_free(&l);
}

/* What a clip of a log replaces is an infinite log, never that of a number below 0, which is NaN. */
static void test_clipped_log(void)
{
	static const char *const ops[] = {"Max", "Clip"};
	for (int i = 0; i < COUNT_OF(ops); i++) {
		OnnxText *m = model_new();
		Buf c = node_text("low", "Constant", "", "low");
		attr_f(&c, "value_float", -100);
		model_node(m, c);
		model_input(m, "x", 1, "4,3");
		model_op(m, "log", "Log", "x", "l");
		model_op(m, "clip", ops[i], "l,low", "y");
		model_output(m, "y");
		Loaded l = good(m, NULL);
		const Op *where = find_op(l.m, OP_WHERE), *both = where ? op_in(where, 0)->op : NULL;
		CU_ASSERT(both && both->kind == OP_AND && op_in(both, 0)->op->kind == OP_GE);
		loaded_free(&l);
	}
}

void suite_frontend(void)
{
	CU_TestInfo tests[] = {
		{"a linear layer", test_linear},
		{"dims bound by flags", test_dims},
		{"flags that name nothing", test_flags_that_name_nothing},
		{"flags that differ", test_flags_that_differ},
		{"the sample axis of inputs", test_sample_axis},
		{"shape arithmetic", test_shape_arithmetic},
		{"limits of slices", test_slice_limits},
		{"a constant condition", test_constant_condition},
		{"functions inlined", test_functions},
		{"a function that calls itself", test_recursive_function},
		{"functions that double", test_doubling_functions},
		{"an error in functions that double", test_error_in_doubling_functions},
		{"a batch norm called twice", test_batch_norm_twice},
		{"long tables", test_long_tables},
		{"batch norm", test_batch_norm},
		{"dropout", test_dropout},
		{"a clipped log of a number below 0 is NaN", test_clipped_log},
		CU_TEST_INFO_NULL,
	};
	CU_SuiteInfo suites[] = {{"frontend", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
	CU_register_suites(suites);
}
