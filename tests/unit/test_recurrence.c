/* tests/unit/test_recurrence.c: what RNN, GRU and LSTM of ONNX become, and what is refused of them. */
#include <string.h>

#include "ir/recurrence.h"
#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

enum { F32 = 1, I32 = 6 };

/* A node with 2 directions at most, 3 steps, 3 samples, 4 features and 2 states, before it is added. */
typedef struct Layer { OnnxText *m; Buf node; } Layer;

/* in: names of operands, of which x, w, r, b, h, c and p are weights of fitting dims, and n is an input. */
static Layer layer(const char *op, const char *in, int dirs, int gates)
{
	static const float v[] = {0.5f, -0.25f, 0.125f, 1};
	char dims[64];
	Layer l = {.m = model_new(), .node = node_text("n", op, in, "y")};
	model_input(l.m, "x", F32, "3,3,4");
	model_input(l.m, "n", I32, "3");
	model_output(l.m, "y");
	snprintf(dims, sizeof dims, "%d,%d,4", dirs, gates * 2);
	model_floats(l.m, "w", dims, 4, v);
	snprintf(dims, sizeof dims, "%d,%d,2", dirs, gates * 2);
	model_floats(l.m, "r", dims, 4, v);
	snprintf(dims, sizeof dims, "%d,%d", dirs, gates * 4);
	model_floats(l.m, "b", dims, 4, v);
	snprintf(dims, sizeof dims, "%d,3,2", dirs);
	model_floats(l.m, "h", dims, 4, v);
	snprintf(dims, sizeof dims, "%d,6", dirs);
	model_floats(l.m, "p", dims, 4, v);
	return l;
}

static void attr_strings(Buf *node, const char *name, int n, const char *const *v)
{
	Buf a = {0};
	pb_str(&a, 1, name);
	for (int i = 0; i < n; i++)
		pb_str(&a, 9, v[i]);
	pb_int(&a, 20, 8);
	pb_msg(node, 5, &a);
}

static Loaded load(Layer l)
{
	model_node(l.m, l.node);
	return load_model(l.m, NULL);
}

static void bad(Layer l, const char *text)
{
	Loaded got = load(l);
	UNIT_CHECK(!got.m && got.errors > 0, text);
	expect(&got, text);
	loaded_free(&got);
}

static void bidirectional(Buf *node)
{
	attr_s(node, "direction", "bidirectional");
}

static void test_becomes(void)
{
	Layer l = layer("LSTM", "x,w,r,b,n,h,h,p", 2, 4);
	bidirectional(&l.node);
	attr_f(&l.node, "clip", 3);
	attr_i(&l.node, "input_forget", 1);
	model_node(l.m, l.node);
	Loaded got = good(l.m, NULL);
	Recurrence r;
	CU_ASSERT_FATAL(count_ops(got.m, OP_RECURRENCE) == 2);
	const Op *op = find_op(got.m, OP_RECURRENCE);
	CU_ASSERT(recurrence_read(op, &r, NULL) && r.cell == CELL_LSTM && !r.reverse && r.couple && r.clip == 3);
	CU_ASSERT(op_in(op, REC_H0) && op_in(op, REC_C0) && op_in(op, REC_LENGTHS) && op_in(op, REC_P));
	for (op = op->next; op->kind != OP_RECURRENCE;)
		op = op->next;
	CU_ASSERT(recurrence_read(op, &r, NULL) && r.reverse);
	loaded_free(&got);
}

/* Lengths that are all of the steps and states of zeros are left out. */
static void test_left_out(void)
{
	static const float zero = 0;
	static const int64_t all[] = {3, 3, 3};
	Layer l = layer("GRU", "x,w,r,b,all,val_7", 1, 3);
	model_floats(l.m, "val_7", "1,3,2", 1, &zero);
	model_ints(l.m, "all", 3, all);
	attr_i(&l.node, "linear_before_reset", 1);
	model_node(l.m, l.node);
	Loaded got = good(l.m, NULL);
	const Op *op = find_op(got.m, OP_RECURRENCE);
	CU_ASSERT_FATAL(op != NULL);
	CU_ASSERT(!op_in(op, REC_H0));
	CU_ASSERT(!op_in(op, REC_LENGTHS));
	CU_ASSERT(op_in(op, REC_BIAS) != NULL);
	loaded_free(&got);
}

static void test_activations(void)
{
	static const char *const some[] = {"HardSigmoid", "Elu", "relu"}, *const unknown[] = {"Swish"};
	static const char *const affine[] = {"Affine"};
	Layer l = layer("LSTM", "x,w,r", 1, 4);
	attr_strings(&l.node, "activations", 3, some);
	model_node(l.m, l.node);
	Loaded got = good(l.m, NULL);
	Recurrence r;
	CU_ASSERT_FATAL(find_op(got.m, OP_RECURRENCE) && recurrence_read(find_op(got.m, OP_RECURRENCE), &r, NULL));
	CU_ASSERT(r.act[0] == ACT_HARD_SIGMOID && r.act[1] == ACT_ELU && r.act[2] == ACT_RELU);
	CU_ASSERT(r.alpha[0] == 0.2 && r.beta[0] == 0.5 && r.alpha[1] == 1);
	loaded_free(&got);
	l = layer("RNN", "x,w,r", 1, 1);
	attr_strings(&l.node, "activations", 1, unknown);
	bad(l, "node \"n\" (RNN): error: there is no activation \"Swish\"; there are Sigmoid, Tanh, Relu, Affine,");
	l = layer("RNN", "x,w,r", 1, 1);
	attr_strings(&l.node, "activations", 1, affine);
	bad(l, "activation_alpha has no number for Affine");
	l = layer("GRU", "x,w,r", 1, 3);
	attr_strings(&l.node, "activations", 1, affine);
	bad(l, "1 activations, expected 2 for each of 1 directions");
}

static void test_bad_operands(void)
{
	static const float v = 1;
	static const int64_t beyond[] = {3, 4, 1}, negative[] = {3, -1, 1};
	Layer l = layer("LSTM", "x,w,r,b", 1, 3);
	bad(l, "node \"n\" (LSTM): error: operand 1 (W) is f32[1,6,4], expected f32[1,8,4]");
	l = layer("GRU", "x,w,r,p", 1, 3);
	bad(l, "operand 3 (B) is f32[1,6], expected f32[1,12]");
	l = layer("GRU", "x,w,b", 1, 3);
	bad(l, "X is f32[3,3,4] and R is f32[1,12]: both must have rank 3");
	l = layer("RNN", "x,w,r,,,h", 1, 1);
	attr_i(&l.node, "layout", 1);
	bad(l, "operand 5 (initial_h) is f32[1,3,2], expected f32[3,1,2]");
	l = layer("RNN", "x,w,r", 1, 1);
	attr_i(&l.node, "hidden_size", 3);
	bad(l, "hidden_size is 3, but R is f32[1,2,2]");
	l = layer("RNN", "x,w,r", 1, 1);
	bidirectional(&l.node);
	bad(l, "operand 1 (W) is f32[1,2,4], expected f32[2,2,4]");
	l = layer("RNN", "x,w,r,,len", 1, 1);
	model_ints(l.m, "len", 3, beyond);
	bad(l, "sequence length 4 of sample 1 is outside 0..3");
	l = layer("RNN", "x,w,r,,len", 1, 1);
	model_ints(l.m, "len", 3, negative);
	bad(l, "sequence length -1 of sample 1 is outside 0..3");
	l = layer("RNN", "x,w,r,,h", 1, 1);
	bad(l, "operand 4 (sequence_lens) is f32[1,3,2], expected");
	l = layer("RNN", "none,w,r", 1, 1);
	model_floats(l.m, "none", "0,3,4", 1, &v);
	bad(l, "X is f32[0,3,4]: it has no steps");
}

static void test_bad_attributes(void)
{
	static const char *const elu[] = {"Elu"};
	static const float below = -1;
	Layer l = layer("RNN", "x,w,r", 1, 1);
	attr_s(&l.node, "direction", "sideways");
	bad(l, "direction is \"sideways\", expected forward, reverse or bidirectional");
	l = layer("RNN", "x,w,r", 1, 1);
	attr_f(&l.node, "clip", 0);
	bad(l, "clip is 0, expected more than 0");
	l = layer("RNN", "x,w,r", 1, 1);
	attr_i(&l.node, "layout", 2);
	bad(l, "layout is 2, expected 0 or 1");
	l = layer("RNN", "x,w,r", 1, 1);
	attr_strings(&l.node, "activations", 1, elu);
	Buf a = {0};
	pb_str(&a, 1, "activation_alpha");
	pb_bytes(&a, 7, &below, sizeof below);
	pb_int(&a, 20, 6);
	pb_msg(&l.node, 5, &a);
	bad(l, "Elu with alpha -1: it may not be below 0 in a recurrent cell");
	l = layer("RNN", "x,w,r,,,h,h,p", 1, 1);
	bad(l, "8 operands, at most 6 wanted");
	l = layer("RNN", "x,w,r", 1, 1);
	pb_str(&l.node, 2, "h_n");
	pb_str(&l.node, 2, "more");
	bad(l, "3 results, expected at most 2");
}

void suite_recurrence(void)
{
	CU_TestInfo tests[] = {
		{"nodes become ops", test_becomes},
		{"what changes nothing is left out", test_left_out},
		{"activations", test_activations},
		{"operands that do not fit", test_bad_operands},
		{"attributes that are not valid", test_bad_attributes},
		CU_TEST_INFO_NULL,
	};
	CU_SuiteInfo suites[] = {{"recurrence", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
	CU_register_suites(suites);
}
