/* tests/unit/test_subgraphs.c: If, Loop, Scan and sequences become what their steps compute; what has no fixed length
 * is refused. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

static const float ramp[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

/* ---- models ---- */

static Buf node_with(const char *name, const char *op, const char *in, const char *out, OnnxText *body)
{
	Buf n = node_text(name, op, in, out);
	attr_graph(&n, "body", &body->graph);
	free(body);
	return n;
}

/* A graph with inputs, whose types are not looked at, and outputs; lists are separated by commas. */
static OnnxText *body_new(const char *inputs, const char *outputs)
{
	OnnxText *b = model_new();
	char list[256], *rest = list, *name;
	snprintf(list, sizeof(list), "%s", inputs);
	while (*inputs && (name = strsep(&rest, ",")))
		model_input(b, name, 1, "1");
	snprintf(list, sizeof(list), "%s", outputs);
	for (rest = list; *outputs && (name = strsep(&rest, ","));)
		model_output(b, name);
	return b;
}

/* A model with input x of these dims, output y and an integer m. */
static OnnxText *model_with(const char *dims, int64_t m)
{
	OnnxText *t = model_new();
	t->producer = "hand";
	model_input(t, "x", 1, dims);
	model_output(t, "y");
	model_ints(t, "m", 1, &m);
	return t;
}

/* s = s . w */
static OnnxText *product_body(void)
{
	OnnxText *b = body_new("i,go,s", "go,sn,sn");
	model_op(b, "mm", "MatMul", "s,w", "sn");
	return b;
}

static OnnxText *product_loop(int64_t steps)
{
	OnnxText *t = model_with("4,3", steps);
	model_floats(t, "w", "3,3", 11, ramp);
	model_node(t, node_with("l", "Loop", "m,,x", "y,all", product_body()));
	model_output(t, "all");
	return t;
}

static void bad_with(OnnxText *m, const FrontendOptions *o, const char *text)
{
	Loaded l = load_model(m, o);
	UNIT_CHECK(!l.m && l.errors > 0, text);
	expect(&l, text);
	loaded_free(&l);
}

static void bad(OnnxText *m, const char *text)
{
	bad_with(m, NULL, text);
}

/* ---- Loop ---- */

static void test_loop_shares_parameters(void)
{
	Loaded l = good(product_loop(3), NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_MATMUL), 3);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_PARAM), 1);
	CU_ASSERT(type_equal(&symbol(&l, "all")->type, &(Type){.kind = TYPE_TENSOR, .dtype = DT_F32, .rank = 3,
		.dim = {3, 4, 3}}));
	CU_ASSERT(symbol_of(&l, "w", SYM_PARAM)->trainable);
	CU_ASSERT_STRING_EQUAL(find_op(l.m, OP_MATMUL)->loc->node, "l/0/mm");
	loaded_free(&l);
}

/* A loop that does not run gives its states as they were, and empty results of the right shape. */
static void test_loop_without_steps(void)
{
	Loaded l = good(product_loop(0), NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_MATMUL), 0);
	CU_ASSERT_EQUAL(symbol(&l, "all")->type.dim[0], 0);
	CU_ASSERT_EQUAL(symbol(&l, "all")->type.dim[1], 4);
	loaded_free(&l);
}

static bool body_has(const Op *loop, OpKind kind)
{
	IR_FOR_OPS(loop->body, SEC_FORWARD, op)
		if (op->kind == kind)
			return true;
	return false;
}

/* A long loop stays one; its parameter is an operand, and the same in all steps. */
static void test_long_loop_stays(void)
{
	Loaded l = good(product_loop(5000), NULL);
	const Op *loop = find_op(l.m, OP_LOOP);
	CU_ASSERT_FATAL(loop && loop_steps(loop) == 5000);
	CU_ASSERT(count_ops(l.m, OP_MATMUL) == 0 && count_ops(l.m, OP_ARGUMENT) == 0 && body_has(loop, OP_MATMUL));
	CU_ASSERT_EQUAL(count_ops(l.m, OP_PARAM), 1);
	CU_ASSERT_EQUAL(op_in(loop, loop->n_in - 1)->op->kind, OP_PARAM);
	CU_ASSERT_EQUAL(symbol(&l, "all")->type.dim[0], 5000);
	loaded_free(&l);
}

static void test_loops_as_asked(void)
{
	Loaded l = good(product_loop(3), &(FrontendOptions){.graph.loops = LOOPS_KEEP});
	CU_ASSERT_EQUAL(count_ops(l.m, OP_LOOP), 1);
	loaded_free(&l);
	l = good(product_loop(5000), &(FrontendOptions){.graph.loops = LOOPS_UNROLL});
	CU_ASSERT(count_ops(l.m, OP_LOOP) == 0 && count_ops(l.m, OP_MATMUL) == 5000);
	loaded_free(&l);
}

/* A long loop that cannot stay one, since a batch norm in it writes statistics, is unrolled as if that had not been
 * tried: each step goes on from the statistics that the step before it wrote. */
static void test_no_trace_of_an_attempt(void)
{
	int writes[2];
	for (int i = 0; i < 2; i++) {
		OnnxText *t = model_with("4,3", 2500), *b = body_new("i,go,s", "go,sn");
		model_floats(t, "bn.running_mean", "3", 3, ramp);
		model_floats(t, "bn.running_var", "3", 3, ramp);
		model_floats(t, "bn.weight", "3", 3, ramp);
		model_op(b, "bn", "BatchNormalization", "s,bn.weight,bn.weight,bn.running_mean,bn.running_var", "r");
		model_op(b, "relu", "Relu", "r", "sn");
		model_node(t, node_with("l", "Loop", "m,,x", "y", b));
		Loaded l = good(t, &(FrontendOptions){.graph.bn.all = NORM_TRAIN,
			.graph.loops = i ? LOOPS_UNROLL : LOOPS_AUTO});
		CU_ASSERT_EQUAL(count_ops(l.m, OP_BATCH_NORM), 2500);
		writes[i] = count_ops(l.m, OP_WRITE);
		loaded_free(&l);
	}
	CU_ASSERT(writes[0] == 2 && writes[1] == 2);
}

/* A While whose condition follows from its own counter ends by itself. */
static OnnxText *counting(const char *compare)
{
	OnnxText *t = model_with("4,3", 5), *b = body_new("i,go,k,s", "more,kn,sn");
	int64_t one = 1, zero = 0;
	model_ints(t, "one", 1, &one);
	model_ints(t, "zero", 1, &zero);
	model_op(t, "c", "Less", "zero,one", "yes");
	model_op(b, "add", "Add", "k,one", "kn");
	model_op(b, "less", "Less", compare, "more");
	model_op(b, "relu", "Relu", "s", "sn");
	model_node(t, node_with("l", "Loop", ",yes,zero,x", ",y", b));
	return t;
}

static void test_while_that_counts(void)
{
	Loaded l = good(counting("kn,m"), NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_RELU), 5);
	loaded_free(&l);
	bad(counting("zero,one"), "its steps are unrolled, to at most 65536 nodes");
	bad_with(counting("kn,m"), &(FrontendOptions){.graph.loops = LOOPS_KEEP}, "it cannot be kept as a loop, as "
		"--loops=keep asks: it has a condition and no trip count");
}

/* Steps that do not depend on each other, as those of an EmbeddingBag, are computed at once. */
static void test_steps_at_once(void)
{
	OnnxText *t = model_with("6,4", 3), *b = body_new("i,go", "go,z");
	int64_t two = 2, zero = 0;
	model_floats(t, "w", "4,5", 11, ramp);
	model_ints(t, "two", 1, &two);
	model_ints(t, "zero", 1, &zero);
	model_op(b, "from", "Mul", "i,two", "f");
	model_op(b, "to", "Add", "f,two", "e");
	model_op(b, "rows", "Slice", "x,f,e,zero", "r");
	model_op(b, "mm", "MatMul", "r,w", "p");
	model_op(b, "act", "Tanh", "p", "q");
	model_op(b, "sum", "ReduceSum", "q,zero", "z");
	model_node(t, node_with("l", "Loop", "m,", "y", b));
	Loaded l = good(t, NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_MATMUL), 1);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_REDUCE_SUM), 1);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_SLICE), 0);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_CONCAT), 0);
	CU_ASSERT_EQUAL(symbol(&l, "y")->type.dim[0], 3);
	loaded_free(&l);
}

/* What each step computes of the same values is there for each step, alone and beside what differs. */
static void test_same_in_all_steps(void)
{
	for (int alone = 0; alone < 2; alone++) {
		OnnxText *t = model_with("3,4", 3), *b = body_new("i,go", alone ? "go,s" : "go,z");
		model_floats(t, "w", "4,4", 11, ramp);
		model_op(b, "at", "Gather", "x,i", "xt");
		model_op(b, "same", "Add", "w,w", "s");
		model_op(b, "mm", "MatMul", "xt,s", "z");
		model_node(t, node_with("l", "Loop", "m,", "y", b));
		Loaded l = good(t, NULL);
		const Type *y = &symbol(&l, "y")->type;
		CU_ASSERT_EQUAL(y->rank, alone ? 3 : 2);
		CU_ASSERT_EQUAL(y->dim[0], 3);
		CU_ASSERT_EQUAL(count_ops(l.m, OP_CONCAT), alone);
		loaded_free(&l);
	}
}

/* Of a recurrent cell, h = tanh(x[t] . w + h . u), the products with x[t] are one. */
static void test_products_at_once(void)
{
	OnnxText *t = model_with("5,4,3", 5), *b = body_new("i,go,h", "go,hn");
	model_floats(t, "w", "3,3", 11, ramp);
	model_floats(t, "u", "3,3", 11, ramp);
	model_op(t, "start", "ReduceSum", "x,m0", "h0");
	model_ints(t, "m0", 1, &(int64_t){0});
	model_op(t, "flat", "Squeeze", "h0,m0", "h1");
	model_op(b, "at", "Gather", "x,i", "xt");
	model_op(b, "in", "MatMul", "xt,w", "a");
	model_op(b, "rec", "MatMul", "h,u", "r");
	model_op(b, "add", "Add", "a,r", "s");
	model_op(b, "act", "Tanh", "s", "hn");
	model_node(t, node_with("l", "Loop", "m,,h1", "y", b));
	Loaded l = good(t, NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_MATMUL), 6);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_GATHER), 0);
	CU_ASSERT_EQUAL(find_op(l.m, OP_MATMUL)->out[0]->type.rank, 3);
	loaded_free(&l);
}

/* What a step gives out is multiplied for all steps at once, unless the next step reads the product, too. */
static void test_outputs_at_once(void)
{
	for (int feeds = 0; feeds < 2; feeds++) {
		OnnxText *t = model_with("4,3", 5), *b = body_new("i,go,h", feeds ? "go,o,o" : "go,hn,o");
		model_floats(t, "u", "3,3", 11, ramp);
		model_op(b, "rec", "Sigmoid", "h", "hn");
		model_op(b, "out", "MatMul", "hn,u", "o");
		model_node(t, node_with("l", "Loop", "m,,x", ",y", b));
		Loaded l = good(t, NULL);
		CU_ASSERT_EQUAL(count_ops(l.m, OP_MATMUL), feeds ? 5 : 1);
		CU_ASSERT_EQUAL(count_ops(l.m, OP_SIGMOID), 5);
		loaded_free(&l);
	}
}

/* Steps that seem alike, each of which reads the one before twice: looked at once, not 2^32 times. */
static void test_alike_but_chained(void)
{
	OnnxText *t = model_with("4,3", 100), *b = body_new("i,go,s", "go,z,z");
	model_op(t, "p0", "Mul", "x,x", "p");
	model_op(t, "q0", "Add", "p,p", "z0");
	model_op(b, "p", "Mul", "s,s", "p");
	model_op(b, "q", "Mul", "s,s", "q");
	model_op(b, "z", "Add", "p,q", "z");
	model_node(t, node_with("l", "Loop", "m,,z0", ",y", b));
	Loaded l = good(t, NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_MUL), 201);
	loaded_free(&l);
}

/* A function of each piece of a tensor is one of the tensor. */
static void test_pieces_at_once(void)
{
	OnnxText *t = model_with("4,3", 1), *b = body_new("p", "q");
	model_floats(t, "w", "3,3", 11, ramp);
	model_op(b, "mm", "MatMul", "p,w", "q");
	model_op(t, "split", "SplitToSequence", "x", "s");
	model_node(t, node_with("map", "SequenceMap", "s", "r", b));
	Buf n = node_text("cat", "ConcatFromSequence", "r", "y");
	attr_i(&n, "axis", 0);
	model_node(t, n);
	Loaded l = good(t, NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_MATMUL), 1);
	CU_ASSERT_EQUAL(symbol(&l, "y")->type.dim[0], 4);
	loaded_free(&l);
}

/* ---- names ---- */

/* A body's input hides an outer initializer, which is then no parameter of it. */
static void test_hidden_names(void)
{
	OnnxText *t = model_with("4,3", 2), *b = body_new("i,go,w", "go,wn");
	model_floats(t, "w", "3,3", 11, ramp);
	model_op(b, "mm", "Relu", "w", "wn");
	model_node(t, node_with("l", "Loop", "m,,x", "y", b));
	Loaded l = good(t, NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_PARAM), 0);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_RELU), 2);
	loaded_free(&l);
}

/* Two subgraphs with a weight "w" each, and one more outside: three parameters. */
static OnnxText *inner_weights(const char *producer)
{
	OnnxText *t = model_with("4,3", 2);
	t->producer = producer;
	model_floats(t, "w", "3,3", 11, ramp);
	model_op(t, "first", "MatMul", "x,w", "h0");
	for (int i = 0; i < 2; i++) {
		OnnxText *b = product_body();
		model_floats(b, "w", "3,3", 11 - i, ramp);
		model_node(t, node_with(i ? "b" : "a", "Loop", i ? "m,,h1" : "m,,h0", i ? "y" : "h1", b));
	}
	return t;
}

static void test_inner_weights(void)
{
	Loaded l = good(inner_weights("hand"), NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_MATMUL), 5);
	CU_ASSERT_EQUAL(params_of(&l), 3);
	CU_ASSERT_PTR_NOT_NULL(symbol_of(&l, "w", SYM_PARAM));
	CU_ASSERT_PTR_NOT_NULL(symbol_of(&l, "a.w", SYM_PARAM));
	CU_ASSERT_PTR_NOT_NULL(symbol_of(&l, "b.w", SYM_PARAM));
	loaded_free(&l);
	l = good(inner_weights("pytorch"), NULL); /* whose exporters put parameters into the main graph */
	CU_ASSERT_EQUAL(params_of(&l), 1);
	loaded_free(&l);
}

/* ---- If ---- */

static OnnxText *branches(const char *cond)
{
	OnnxText *t = model_with("4,3", 1), *then = body_new("", "a"), *other = body_new("", "b");
	int64_t zero = 0;
	model_ints(t, "zero", 1, &zero);
	model_op(t, "c", "Less", "zero,m", "yes");
	model_op(t, "s", "ReduceSum", "x", "sum");
	model_op(t, "d", "Less", "sum,sum", "maybe");
	model_op(then, "t", "Relu", "x", "a");
	model_op(other, "e", "ReduceSum", "x", "b");
	Buf n = node_text("if", "If", cond, "y");
	attr_graph(&n, "then_branch", &then->graph);
	attr_graph(&n, "else_branch", &other->graph);
	free(then);
	free(other);
	node_scope(&n, "net.gate");
	model_node(t, n);
	return t;
}

/* Of branches whose results differ in rank the one that is taken counts. */
static void test_if(void)
{
	Loaded l = good(branches("yes"), NULL);
	CU_ASSERT_EQUAL(symbol(&l, "y")->type.rank, 2);
	loaded_free(&l);
	bad(branches("maybe"), "first at node \"if\" in module \"net.gate\": its condition depends on data, and only one "
		"branch is compiled");
}

static void test_depth(void)
{
	OnnxText *inner = body_new("", "r");
	OnnxText *t = model_with("4,3", 1);
	int64_t zero = 0;
	model_op(inner, "leaf", "Relu", "x", "r");
	for (int i = 0; i < 70; i++) {
		OnnxText *b = body_new("", "r");
		Buf n = node_text("if", "If", "yes", "r");
		attr_graph(&n, "then_branch", &inner->graph);
		free(inner);
		model_node(b, n);
		inner = b;
	}
	model_ints(t, "zero", 1, &zero);
	model_op(t, "c", "Less", "zero,m", "yes");
	Buf n = node_text("top", "If", "yes", "y");
	attr_graph(&n, "then_branch", &inner->graph);
	free(inner);
	model_node(t, n);
	bad(t, "subgraphs nest deeper than 64");
}

/* ---- bad loops ---- */

static OnnxText *loop_of(const char *in, const char *out, OnnxText *body)
{
	OnnxText *t = model_with("4,3", 2);
	model_floats(t, "w", "3,3", 11, ramp);
	Buf n = node_with("l", "Loop", in, out, body);
	node_scope(&n, "rnn.cell");
	node_metadata(&n, "pkg.torch.onnx.stack_trace", "File \"net.py\", line 12, in forward");
	model_node(t, n);
	return t;
}

static OnnxText *data_trip(void)
{
	OnnxText *t = model_with("4,3", 2);
	model_op(t, "at", "ArgMax", "x", "k");
	model_op(t, "max", "ReduceMax", "k", "trip");
	model_floats(t, "w", "3,3", 11, ramp);
	Buf n = node_with("l", "Loop", "trip,,x", "y,all", product_body());
	node_scope(&n, "rnn.cell");
	node_metadata(&n, "pkg.torch.onnx.stack_trace", "File \"net.py\", line 12, in forward");
	model_node(t, n);
	return t;
}

static OnnxText *data_condition(void)
{
	OnnxText *t = model_with("4,3", 2), *b = body_new("i,go,s", "more,sn");
	int64_t zero = 0;
	model_ints(t, "zero", 1, &zero);
	model_op(t, "c", "Less", "zero,m", "yes");
	model_op(b, "relu", "Relu", "s", "sn");
	model_op(b, "sum", "ReduceSum", "sn", "t");
	model_op(b, "less", "Less", "t,t", "more");
	model_node(t, node_with("l", "Loop", "m,yes,x", "y", b));
	return t;
}

static void test_bad_counts(void)
{
	bad(product_loop(-3), "node \"l\" (Loop): error: its trip count is -3, a number of 0 or more is wanted");
	bad(product_loop(INT64_C(1) << 40), "its steps are unrolled, to at most 65536 nodes, and it has 65537 steps");
	bad(data_trip(), "its trip count is not static");
	bad(data_trip(), "--bind NAME=N");
	bad(data_trip(), "in module \"rnn.cell\" (net.py:12)");
	bad(data_condition(), "whether it goes on depends on data");
	OnnxText *b = body_new("i,go,s", "no,sn");
	model_op(b, "less", "Less", "i,i", "no");
	model_op(b, "relu", "Relu", "s", "sn");
	bad(loop_of("m,,x", "y", b), "its body ends it at step 0 of 2, but it has no condition");
	bad(loop_of(",,x", "y", product_body()), "it has neither a trip count nor a condition, so it never ends");
}

static void test_bad_bodies(void)
{
	OnnxText *b = body_new("i,go", "go");
	bad(loop_of("m,,x", "y", b), "its body has 2 input(s), and 3 are given");
	b = body_new("i,go,s", "go");
	bad(loop_of("m,,x", "y", b), "its body has 1 output(s)");
	b = body_new("i,go,s", "go,nothing");
	bad(loop_of("m,,x", "y", b), "its subgraph never makes \"nothing\"");
	b = body_new("i,go,go", "go,go");
	bad(loop_of("m,,x", "y", b), "\"go\" stands for two inputs or initializers of its subgraph");
	b = body_new("i,go,s", "go,s");
	model_op(b, "r", "Relu", "s", "s");
	bad(loop_of("m,,x", "y", b), "result \"s\" is made twice");
	b = body_new("i,go,s", "go,sn,sn"); /* a state that grows */
	model_op(b, "c", "Concat", "s,s", "sn");
	bad(loop_of("m,,x", "y,all", b), "result 1 cannot be stacked: step 0 makes f32[8,3], step 1 f32[16,3]");
	OnnxText *t = model_with("4,3", 2);
	model_op(t, "l", "Loop", "m,,x", "y");
	bad(t, "it has no graph in its attribute \"body\"");
}

/* ---- Scan ---- */

static OnnxText *scan_of(const char *in, int64_t scanned, int64_t axis)
{
	OnnxText *t = model_with("4,3", 2), *b = body_new("s,e", "sn,sn");
	model_op(b, "add", "Add", "s,e", "sn");
	model_floats(t, "h", "3", 3, ramp);
	model_floats(t, "long", "7,3", 11, ramp);
	Buf n = node_with("sc", "Scan", in, "y,all", b);
	attr_i(&n, "num_scan_inputs", scanned);
	attr_is(&n, "scan_input_axes", 1, &axis);
	model_node(t, n);
	return t;
}

/* Of opset 8, which has an axis of samples in front. */
static OnnxText *scan_of_samples(void)
{
	OnnxText *t = model_with("2,4,3", 2), *b = body_new("s,e", "sn,sn");
	t->opset = 8;
	model_op(b, "add", "Add", "s,e", "sn");
	model_floats(t, "h", "2,3", 6, ramp);
	Buf n = node_with("sc", "Scan", ",h,x", "y,all", b);
	attr_i(&n, "num_scan_inputs", 1);
	model_node(t, n);
	return t;
}

static void test_scan_of_samples(void)
{
	Loaded l = good(scan_of_samples(), NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_ADD), 8);
	loaded_free(&l);
	bad_with(scan_of_samples(), &(FrontendOptions){.graph.loops = LOOPS_KEEP}, "it cannot be kept as a loop, as "
		"--loops=keep asks: a Scan of opset 8 may have samples of several lengths");
}

static void test_scan(void)
{
	Loaded l = good(scan_of("h,x", 1, 0), NULL);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_ADD), 4);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_SPLIT), 1);
	loaded_free(&l);
	l = good(scan_of("h,x", 1, -2), NULL);
	loaded_free(&l);
	bad(scan_of("h,x", 1, 5), "axis 5 is outside -2..1");
	bad(scan_of("h,x", 3, 0), "num_scan_inputs is 3, and it has 2 operand(s)");
	bad(scan_of("h,x", 0, 0), "num_scan_inputs is 0");
	bad(scan_of("x,long", 2, 0), "scan_input_axes and scan_input_directions have 1 and 0 numbers, 2 are wanted");
}

/* ---- sequences ---- */

static OnnxText *sequence_at(int64_t at, const char *op)
{
	OnnxText *t = model_with("4,3", at);
	model_op(t, "split", "SplitToSequence", "x", "s");
	model_op(t, "at", op, "s,m", "y");
	return t;
}

static void test_sequences(void)
{
	Loaded l = good(sequence_at(-1, "SequenceAt"), NULL);
	CU_ASSERT_EQUAL(symbol(&l, "y")->type.dim[0], 1);
	loaded_free(&l);
	bad(sequence_at(4, "SequenceAt"), "position is outside a sequence of 4");
	bad(sequence_at(-5, "SequenceErase"), "position is outside a sequence of 4");
	l = good(sequence_at(0, "SequenceErase"), NULL); /* the elements are outputs */
	CU_ASSERT_PTR_NOT_NULL(symbol_of(&l, "y.0", SYM_OUTPUT));
	CU_ASSERT_PTR_NOT_NULL(symbol_of(&l, "y.2", SYM_OUTPUT));
	CU_ASSERT_PTR_NULL(ir_find_symbol(l.m, "y.3"));
	loaded_free(&l);
	OnnxText *t = model_with("4,3", 1);
	model_op(t, "o", "Optional", "", "o");
	model_op(t, "get", "OptionalGetElement", "o", "y");
	bad(t, "the optional is empty");
	t = model_with("4,3", 1);
	model_op(t, "split", "SplitToSequence", "x", "s");
	model_op(t, "relu", "Relu", "s", "y");
	bad(t, "it takes a sequence");
}

/* An input that is a list of f32 tensors: a sequence (field 4 of TypeProto), or optional (9). */
static void list_input(OnnxText *m, const char *name, int field, bool dims)
{
	Buf tensor = {0}, shape = {0}, type = {0}, list = {0}, outer = {0}, info = {0}, dim = {0};
	pb_int(&tensor, 1, 1);
	pb_int(&dim, 1, 3);
	if (dims) {
		pb_msg(&shape, 1, &dim);
		pb_msg(&tensor, 2, &shape);
	} else {
		buf_free(&dim);
	}
	pb_msg(&type, 1, &tensor);
	pb_msg(&list, 1, &type);
	pb_msg(&outer, field, &list);
	pb_str(&info, 1, name);
	pb_msg(&info, 2, &outer);
	pb_msg(&m->graph, 11, &info);
}

static OnnxText *of_list(int field, bool dims, const char *op)
{
	OnnxText *t = model_with("4,3", 1);
	list_input(t, "s", field, dims);
	model_op(t, "n", op, "s", "y");
	return t;
}

/* The elements of an input that is a list are inputs; how many there are the user says. */
static void test_list_inputs(void)
{
	FrontendOptions three = {.infer = true, .graph.input_shape = {{"s.0=2x3", "s.1=5", "s.2=4"}, 3}};
	Loaded l = good(of_list(4, false, "SequenceLength"), &three);
	CU_ASSERT_EQUAL(symbol_of(&l, "s.1", SYM_INPUT)->type.dim[0], 5);
	CU_ASSERT_PTR_NOT_NULL(symbol_of(&l, "s.2", SYM_INPUT));
	loaded_free(&l);
	l = good(of_list(9, true, "OptionalGetElement"), &(FrontendOptions){.infer = true});
	CU_ASSERT_EQUAL(symbol_of(&l, "s.0", SYM_INPUT)->type.dim[0], 3);
	CU_ASSERT_PTR_NOT_NULL(symbol_of(&l, "y", SYM_OUTPUT));
	loaded_free(&l);
	bad(of_list(4, true, "SequenceLength"), "it is a sequence, and how many elements it has must be known: give the "
		"shape of each, --input-shape s.0=DIMS");
	bad(of_list(9, false, "OptionalGetElement"), "its shape is not known: give --input-shape s.0=");
}

void suite_subgraphs(void)
{
	CU_pSuite s = CU_add_suite("subgraphs", NULL, NULL);
	CU_add_test(s, "steps share parameters", test_loop_shares_parameters);
	CU_add_test(s, "a loop without steps", test_loop_without_steps);
	CU_add_test(s, "a long loop stays one", test_long_loop_stays);
	CU_add_test(s, "loops as asked", test_loops_as_asked);
	CU_add_test(s, "no trace of an attempt", test_no_trace_of_an_attempt);
	CU_add_test(s, "a while that counts", test_while_that_counts);
	CU_add_test(s, "steps at once", test_steps_at_once);
	CU_add_test(s, "the same in all steps", test_same_in_all_steps);
	CU_add_test(s, "products at once", test_products_at_once);
	CU_add_test(s, "outputs at once", test_outputs_at_once);
	CU_add_test(s, "alike but chained", test_alike_but_chained);
	CU_add_test(s, "pieces at once", test_pieces_at_once);
	CU_add_test(s, "hidden names", test_hidden_names);
	CU_add_test(s, "weights inside", test_inner_weights);
	CU_add_test(s, "If", test_if);
	CU_add_test(s, "depth", test_depth);
	CU_add_test(s, "bad counts", test_bad_counts);
	CU_add_test(s, "bad bodies", test_bad_bodies);
	CU_add_test(s, "Scan", test_scan);
	CU_add_test(s, "Scan of samples", test_scan_of_samples);
	CU_add_test(s, "sequences", test_sequences);
	CU_add_test(s, "lists as inputs", test_list_inputs);
}
