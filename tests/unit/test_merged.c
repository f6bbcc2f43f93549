/* tests/unit/test_merged.c: tensors that exporters merged or folded, and the role that each gets. */
#include <stdio.h>
#include <string.h>

#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

static const float ramp[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, zero[] = {0}, one[] = {1};

/* In eval mode TorchScript merges equal parameters and leaves an Identity for each; what is tied has one name. */
static void test_merged_by_value(void)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,2");
	model_floats(m, "a.weight", "2,2", 4, ramp);
	model_floats(m, "a.bias", "2", 1, zero);
	model_op(m, "Identity_0", "Identity", "a.weight", "b.weight");
	model_op(m, "Identity_1", "Identity", "a.bias", "b.bias");
	model_op(m, "/a/Gemm", "Gemm", "x,a.weight,a.bias", "h");
	model_op(m, "/b/Gemm", "Gemm", "h,b.weight,b.bias", "i");
	model_op(m, "/c/Gemm", "Gemm", "i,b.weight,a.bias", "y");
	model_output(m, "y");
	Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
	CU_ASSERT_EQUAL(params_of(&l), 4);
	CU_ASSERT(symbol(&l, "a.weight")->kind == SYM_PARAM);
	CU_ASSERT(symbol(&l, "b.weight")->kind == SYM_PARAM);
	CU_ASSERT(symbol(&l, "b.bias")->kind == SYM_PARAM);
	loaded_free(&l);
}

/* Folded transposes have no names: zeros are guessed to be several, others to be one. */
static void test_merged_when_folded(void)
{
	for (int zeros = 0; zeros < 2; zeros++) {
		OnnxText *m = model_new();
		model_input(m, "x", 1, "4,2");
		model_floats(m, "onnx::MatMul_7", "2,2", zeros ? 1 : 4, zeros ? zero : ramp);
		model_op(m, "/a/MatMul", "MatMul", "x,onnx::MatMul_7", "h");
		model_op(m, "/b/MatMul", "MatMul", "h,onnx::MatMul_7", "y");
		model_output(m, "y");
		Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
		CU_ASSERT_EQUAL(params_of(&l), zeros ? 2 : 1);
		expect(&l, zeros ? "is all zeros and used by several modules, so it is guessed to be 2 tensors"
			: "stands in 2 modules, so it is guessed to be one tied parameter: \"a.weight\", \"b.weight\"");
		loaded_free(&l);
	}
}

/* ---- merged tensors ---- */

typedef struct Wanted { const char *name; SymbolKind kind; bool trained; } Wanted;

static void expect_symbols(const Loaded *l, int n, const Wanted *wanted)
{
	for (int i = 0; i < n; i++) {
		const Symbol *s = symbol(l, wanted[i].name);
		UNIT_CHECK(s && s->kind == wanted[i].kind && s->trainable == wanted[i].trained, wanted[i].name);
	}
}

/* Merged by value in eval mode: what each tensor is, its own name and uses say. */
static void test_merged_with_buffers(void)
{
	static const Wanted wanted[] = {{"norm.mean", SYM_BUFFER, false}, {"fc.bias", SYM_PARAM, true},
		{"bn.running_mean", SYM_BUFFER, false}, {"ln.bias", SYM_PARAM, true}, {"scale", SYM_PARAM, true},
		{"ln.weight", SYM_PARAM, true}};
	OnnxText *m = model_new();
	m->producer = "pytorch";
	model_input(m, "x", 1, "4,2");
	model_floats(m, "norm.mean", "2", 1, zero);
	model_floats(m, "scale", "2", 1, one);
	model_floats(m, "fc.weight", "2,2", 4, ramp);
	model_floats(m, "bn.running_var", "2", 2, ramp);
	model_op(m, "", "Identity", "norm.mean", "fc.bias");
	model_op(m, "", "Identity", "norm.mean", "ln.bias");
	model_op(m, "", "Identity", "norm.mean", "bn.running_mean");
	model_op(m, "", "Identity", "scale", "ln.weight");
	model_op(m, "/Sub", "Sub", "x,norm.mean", "a");
	model_op(m, "/Mul", "Mul", "a,scale", "b");
	model_op(m, "/fc/Gemm", "Gemm", "b,fc.weight,fc.bias", "c");
	model_op(m, "/bn/BatchNormalization", "BatchNormalization", "c,ln.weight,fc.bias,bn.running_mean,bn.running_var",
		"d");
	model_op(m, "/ln/LayerNormalization", "LayerNormalization", "d,ln.weight,ln.bias", "y");
	model_output(m, "y");
	Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
	CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
	expect_symbols(&l, COUNT_OF(wanted), wanted);
	expect(&l, "\"norm.mean\" f32[2] is guessed to be a buffer: its name ends in \"mean\"; untied from tensor "
		"\"norm.mean\"");
	expect(&l, "\"scale\" f32[2] is guessed to be a trained parameter: used by Mul; untied from tensor \"scale\"");
	UNIT_CHECK(!strstr(l.log, "\"fc.bias\" f32[2] is guessed"), "its name says what it is");
	loaded_free(&l);
}

/* A node that dynamo decomposed, with what it read. */
static void model_fx(OnnxText *m, const char *op, const char *in, const char *out, const char *call, const char *scope)
{
	Buf n = node_text("", op, in, out);
	node_fx(&n, out, call);
	node_scope(&n, scope);
	model_node(m, n);
}

static void model_kind(OnnxText *m, const char *name, const char *kind)
{
	model_info(m, name, "pkg.torch.export.graph_signature.InputSpec.kind", kind);
}

/* dynamo's optimizer merges small tensors that are equal, with buffers, too; its nodes tell what they read. */
static void test_merged_by_optimizer(void)
{
	static const Wanted wanted[] = {{"a.weight", SYM_PARAM, true}, {"b.weight", SYM_PARAM, true},
		{"a.bias", SYM_PARAM, true}, {"shift", SYM_BUFFER, false}, {"once", SYM_BUFFER, false},
		{"c.weight", SYM_PARAM, true}};
	OnnxText *m = model_new();
	m->producer = "pytorch";
	model_signature(m, "p_a_weight: PARAMETER target='a.weight'\np_a_bias: PARAMETER target='a.bias'\n"
		"p_b_weight: PARAMETER target='b.weight'\np_c_weight: PARAMETER target='c.weight'\n"
		"b_shift: BUFFER target='shift' persistent=True\nb_once: BUFFER target='once' persistent=False\n"
		"x: USER_INPUT\n");
	model_input(m, "x", 1, "4,2");
	model_floats(m, "a.weight", "2,2", 4, ramp);
	model_floats(m, "a.bias", "2", 1, zero);
	model_floats(m, "c.weight", "2,2", 3, ramp);
	model_kind(m, "a.weight", "PARAMETER");
	model_kind(m, "a.bias", "PARAMETER");
	model_kind(m, "c.weight", "PARAMETER");
	model_fx(m, "Sub", "x,a.bias", "s", "sub.Tensor(%x, %b_shift)", "");
	model_fx(m, "Sub", "s,a.bias", "o", "sub.Tensor(%s, %b_once)", "");
	model_fx(m, "Gemm", "o,a.weight,a.bias", "h", "linear.default(%o, %p_a_weight, %p_a_bias)", "a");
	model_fx(m, "Gemm", "h,a.weight", "i", "linear.default(%h, %p_b_weight)", "b");
	model_fx(m, "Gemm", "i,c.weight", "j", "linear.default(%i, %p_c_weight)", "c");
	model_fx(m, "Gemm", "j,c.weight", "y", "linear.default(%j, %p_c_weight)", "tied");
	model_output(m, "y");
	Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
	CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
	expect_symbols(&l, COUNT_OF(wanted), wanted);
	CU_ASSERT_EQUAL(params_of(&l), 4);
	CU_ASSERT_EQUAL(symbol(&l, "a.weight")->n_aliases, 0);
	loaded_free(&l);
}

/* ---- what an optimizer folded ---- */

/* y = x times a constant called `name`, which was folded from w. */
static OnnxText *folded(const char *name, const char *from, const char *call, bool beside)
{
	OnnxText *m = model_new();
	m->producer = "pytorch";
	model_signature(m, "p_w: PARAMETER target='w'\nx: USER_INPUT\n");
	model_input(m, "x", 1, "4,2");
	model_floats(m, name, "2,2", 4, ramp);
	model_info(m, name, "pkg.onnxscript.optimizer.folded_from", from);
	if (beside) {
		model_floats(m, "w", "2,2", 3, ramp);
		model_kind(m, "w", "PARAMETER");
		model_fx(m, "Gemm", "x,w", "h", "linear.default(%x, %p_w)", "");
	}
	char in[40];
	snprintf(in, sizeof(in), "%s,%s", beside ? "h" : "x", name);
	model_fx(m, "MatMul", in, "y", call, "");
	model_output(m, "y");
	return m;
}

/* Only a transpose of the parameter is the parameter; another function of it is lost, and that is said. */
static void test_folded(void)
{
	static const char read[] = "linear.default(%x, %p_w)";
	static const struct { const char *name, *from, *call; bool is_w, beside; } cases[] = {
		{"val_0", "['w']", read, true, false},
		{"permute", "['w']", "linear.default(%x, %permute)", true, false},
		{"t_3", "['w']", "linear.default(%x, %t_3)", true, false},
		{"tanh", "['w']", "linear.default(%x, %tanh)", false, false},
		{"tanh", "['w']", "linear.default(%h, %tanh)", false, true},
		{"tan", "['w']", "linear.default(%x, %tan)", false, false},
		{"mul", "['val_0', 'w']", "linear.default(%x, %mul)", false, false},
		{"val_0", "['w']", "mm.default(%x, %p_w)", false, false},
		{"val_0", "['w']", "linear.default(%x, %p_w_2)", false, false}};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		Loaded l = load_model(folded(cases[i].name, cases[i].from, cases[i].call, cases[i].beside),
			&(FrontendOptions){.say_roles = true});
		CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
		UNIT_CHECK(params_of(&l) == (cases[i].is_w || cases[i].beside), cases[i].call);
		UNIT_CHECK((strstr(l.log, "parameter \"w\" is lost") != NULL) == !cases[i].is_w, cases[i].call);
		if (cases[i].beside)
			expect(&l, "\"w\" is lost where a function of it is used: the exporter folded it into the constant "
				"\"tanh\"");
		loaded_free(&l);
	}
	Loaded l = load_listed(folded("mul", "['val_0', 'w']", "linear.default(%x, %mul)", false), "w\n");
	CU_ASSERT_PTR_NULL(l.m);
	expect(&l, "list.txt:1: error: \"w\" cannot be trained: the exporter folded it into the constant \"mul\": "
		"export with optimize=False");
	loaded_free(&l);
}

/* The made-up name of what several were merged into lists all of them, a part's name that one. */
static void test_list_of_merged(void)
{
	static const struct { const char *list; bool a, b; } cases[] = {{"onnx::MatMul_7\n", true, true},
		{"b.weight\n", false, true}};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		OnnxText *m = model_new();
		m->producer = "pytorch";
		model_input(m, "x", 1, "4,2");
		model_floats(m, "onnx::MatMul_7", "2,2", 1, zero);
		model_op(m, "/a/MatMul", "MatMul", "x,onnx::MatMul_7", "h");
		model_op(m, "/b/MatMul", "MatMul", "h,onnx::MatMul_7", "y");
		model_output(m, "y");
		Loaded l = load_listed(m, cases[i].list);
		CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
		CU_ASSERT_EQUAL(symbol(&l, "a.weight")->trainable, cases[i].a);
		CU_ASSERT_EQUAL(symbol(&l, "b.weight")->trainable, cases[i].b);
		loaded_free(&l);
	}
}

/* A batch norm that is folded into the layer in front of it is lost, and said to be, whatever the layer; the layer's
 * weights keep their own names, though the node has the norm's place. */
static void test_folded_norm(void)
{
	static const struct { const char *op, *in, *x, *w; } cases[] = {
		{"Conv", "x,fc.weight,fc.bias", "4,2,3,3", "2,2,1,1"}, {"Gemm", "x,fc.weight,fc.bias", "4,2", "2,2"},
		{"ConvTranspose", "x,fc.weight,fc.bias", "4,2,3,3", "2,2,1,1"}};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		OnnxText *m = model_new();
		m->producer = "pytorch";
		model_signature(m, "p_fc_weight: PARAMETER target='fc.weight'\np_fc_bias: PARAMETER target='fc.bias'\n"
			"p_bn_weight: PARAMETER target='bn.weight'\np_bn_bias: PARAMETER target='bn.bias'\nx: USER_INPUT\n");
		model_input(m, "x", 1, cases[i].x);
		model_floats(m, "fc.weight", cases[i].w, 4, ramp);
		model_floats(m, "fc.bias", "2", 2, ramp);
		Buf n = node_text("", cases[i].op, cases[i].in, "y");
		char rule[64];
		snprintf(rule, sizeof(rule), "FuseBatchNormInto%s", cases[i].op);
		node_metadata(&n, "pkg.onnxscript.rewriter.rule_name", rule);
		node_fx(&n, "y", "batch_norm.default(%h, %p_bn_weight, %p_bn_bias)");
		node_scope(&n, "bn");
		model_node(m, n);
		model_output(m, "y");
		Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
		CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
		expect(&l, "warning: the exporter folded 1 batch norm into the layer in front, first \"bn\"");
		UNIT_CHECK(symbol(&l, "fc.weight") && symbol(&l, "fc.weight")->n_aliases == 0, cases[i].op);
		UNIT_CHECK(symbol(&l, "fc.bias") && symbol(&l, "fc.bias")->n_aliases == 0, cases[i].op);
		loaded_free(&l);
	}
}

/* TorchScript leaves no trace of a batch norm that it folded but the name of the convolution's weight. */
static void test_computed_weights(void)
{
	for (int computed = 0; computed < 2; computed++) {
		OnnxText *m = model_new();
		m->producer = "pytorch";
		const char *name = computed ? "onnx::Conv_7" : "conv.weight";
		model_input(m, "x", 1, "4,2,3,3");
		model_floats(m, name, "2,2,1,1", 4, ramp);
		char in[40];
		snprintf(in, sizeof(in), "x,%s", name);
		model_op(m, "/conv/Conv", "Conv", in, "y");
		model_output(m, "y");
		Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
		CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
		CU_ASSERT_PTR_NOT_NULL(symbol(&l, "conv.weight"));
		bool said = strstr(l.log, "warning: the exporter computed the weights of 1 convolution, first \"conv\"");
		UNIT_CHECK(said == computed, name);
		loaded_free(&l);
	}
}

void suite_merged(void)
{
	CU_TestInfo tests[] = {
		{"parameters merged by value, by their names", test_merged_by_value},
		{"folded parameters merged by value", test_merged_when_folded},
		{"parameters merged with buffers", test_merged_with_buffers},
		{"what an optimizer merged", test_merged_by_optimizer},
		{"what an optimizer folded", test_folded},
		{"a list of merged tensors", test_list_of_merged},
		{"batch norms that an optimizer folded", test_folded_norm},
		{"weights that TorchScript computed", test_computed_weights},
		CU_TEST_INFO_NULL,
	};
	CU_SuiteInfo suites[] = {{"merged", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
	CU_register_suites(suites);
}
