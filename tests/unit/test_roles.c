/* tests/unit/test_roles.c: the roles that initializers get from metadata, names, values and lists. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

static const float ramp[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, zero[] = {0};

/* y = x w^T + b behind Add of "shift", which nothing says what it is. */
static OnnxText *model(const char *metadata, const char *producer)
{
	OnnxText *m = model_new();
	m->producer = producer;
	model_input(m, "x", 1, "4,3");
	model_floats(m, "fc.weight", "2,3", 11, ramp);
	model_floats(m, "fc.bias", "2", 11, ramp);
	model_floats(m, "shift", "2", 2, ramp);
	Buf n = node_text("/fc/Gemm", "Gemm", "x,fc.weight,fc.bias", "h");
	attr_i(&n, "transB", 1);
	model_node(m, n);
	model_op(m, "/Add", "Add", "h,shift", "y");
	model_output(m, "y");
	if (metadata)
		model_metadata(m, "shardc", metadata);
	return m;
}

#define TENSOR(name, kind, shape, more) \
	"{\"name\":\"" name "\",\"kind\":\"" kind "\",\"shape\":" shape ",\"dtype\":\"float32\"" more "}"
#define ALL(weight, bias, shift) \
	"{\"format\":1,\"training\":true,\"modules\":{},\"tensors\":[" weight "," bias "," shift "]}"
#define WEIGHT TENSOR("fc.weight", "parameter", "[2,3]", ",\"aliases\":[\"head.weight\"]")
#define BIAS TENSOR("fc.bias", "parameter", "[2]", ",\"requires_grad\":false")
#define SHIFT TENSOR("shift", "buffer", "[2]", "")

static void test_metadata(void)
{
	Loaded l = load_model(model(ALL(WEIGHT, BIAS, SHIFT), "pytorch"), NULL);
	CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
	const Symbol *w = symbol(&l, "fc.weight"), *b = symbol(&l, "fc.bias"), *s = symbol(&l, "shift");
	CU_ASSERT(w->kind == SYM_PARAM && w->trainable && w->n_aliases == 1);
	CU_ASSERT_STRING_EQUAL(w->alias[0], "head.weight");
	CU_ASSERT(b->kind == SYM_PARAM && !b->trainable);
	CU_ASSERT(s->kind == SYM_BUFFER);
	loaded_free(&l);
}

/* Metadata come with the model: each fault is an error that says where. */
static void test_bad_metadata(void)
{
	static const struct { const char *text, *says; } cases[] = {
		{"", "metadata \"shardc\": error: line 1"}, {"[]", "is not a JSON object"}, {"{\"format\":1", "line 1 column"},
		{"{}", "its format is not 1"}, {"{\"format\":2,\"tensors\":[]}", "its format is not 1"},
		{"{\"format\":1}", "member \"tensors\" is not a list"},
		{"{\"format\":1,\"format\":1,\"tensors\":[]}", "duplicate"},
		{"{\"format\":1,\"tensors\":[],\"modules\":[]}", "member \"modules\" is not an object"},
		{"{\"format\":1,\"tensors\":[],\"modules\":{\"a\":1}}", "module \"a\""},
		{"{\"format\":1,\"tensors\":[],\"modules\":{\"a\":{\"training\":3}}}",
			"member \"training\" is not true or false"},
		{"{\"format\":1,\"tensors\":[],\"modules\":{\"a\":{\"class\":3}}}",
			"module \"a\": error: member \"class\" is not a string"},
		{"{\"format\":1,\"training\":1,\"tensors\":[]}", "member \"training\" is not true or false"},
		{"{\"format\":1,\"tensors\":[7]}", "$.tensors[0]: error: member \"name\""},
		{"{\"format\":1,\"tensors\":[{\"name\":\"\"}]}", "member \"name\""},
		{ALL(WEIGHT, BIAS, TENSOR("shift", "bufer", "[2]", "")), "tensor \"shift\": error: member \"kind\""},
		{ALL(WEIGHT, BIAS, TENSOR("shift", "buffer", "[3]", "")), "its shape is [3], initializer \"shift\" has [2]"},
		{ALL(WEIGHT, BIAS, TENSOR("shift", "buffer", "[-2]", "")), "member \"shape\""},
		{ALL(WEIGHT, BIAS, TENSOR("shift", "buffer", "[1,1,1,1,1,1,1,1,2]", "")), "member \"shape\""},
		{ALL(WEIGHT, BIAS, TENSOR("shift", "buffer", "\"2\"", "")), "member \"shape\""},
		{ALL(WEIGHT, BIAS, TENSOR("gone", "buffer", "[2]", "")), "the graph has no initializer \"gone\""},
		{ALL(WEIGHT, BIAS, TENSOR("fc.bias", "buffer", "[2]", "")), "the name \"fc.bias\" is given twice"},
		{ALL(WEIGHT, BIAS, TENSOR("head.weight", "buffer", "[2]", "")), "the name \"head.weight\" is given twice"},
		{ALL(WEIGHT, BIAS, TENSOR("b", "buffer", "[2]", ",\"initializer\":\"fc.bias\"")),
			"is tensor \"fc.bias\" already"},
		{ALL(WEIGHT, BIAS, TENSOR("shift", "buffer", "[2]", ",\"persistent\":0")), "member \"persistent\""},
		{ALL(WEIGHT, BIAS, TENSOR("shift", "buffer", "[2]", ",\"aliases\":\"a\"")), "member \"aliases\""},
		{ALL(WEIGHT, BIAS, TENSOR("shift", "buffer", "[2]", ",\"aliases\":[1]")), "member \"aliases\""},
		{ALL(WEIGHT, BIAS, "{\"name\":\"shift\",\"kind\":\"buffer\",\"shape\":[2],\"dtype\":\"int64\"}"),
			"its dtype is int64, initializer \"shift\" has float32"},
	};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		Loaded l = load_model(model(cases[i].text, "pytorch"), NULL);
		CU_ASSERT_PTR_NULL(l.m);
		expect(&l, cases[i].says);
		loaded_free(&l);
	}
	OnnxText *twice = model(ALL(WEIGHT, BIAS, SHIFT), "pytorch");
	model_metadata(twice, "shardc", "{}");
	Loaded l = load_model(twice, NULL);
	expect(&l, "the model has it 2 times");
	loaded_free(&l);
}

/* Nothing says what "shift" is: it is trained and named, an error when guesses are, settled by a list. */
static void test_guess(void)
{
	FrontendOptions say = {.say_roles = true}, strict = {.graph.strict_params = true};
	Loaded l = load_model(model(NULL, "pytorch"), &say);
	CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
	CU_ASSERT(symbol(&l, "shift")->trainable);
	expect(&l, "3 parameters are trained (2 by name, 1 by guess)");
	expect(&l, "it holds no dropout, as after an export in eval mode");
	expect(&l, "warning: \"shift\" f32[2] is guessed to be a trained parameter: used by Add");
	loaded_free(&l);
	l = load_model(model(NULL, "pytorch"), &strict);
	CU_ASSERT_PTR_NULL(l.m);
	expect(&l, "error: \"shift\" f32[2] is guessed");
	expect(&l, "error: the file does not say which parameters have requires_grad=False");
	loaded_free(&l);
	l = load_model(model(ALL(WEIGHT, BIAS, SHIFT), "pytorch"), &strict);
	CU_ASSERT_PTR_NOT_NULL(l.m);
	loaded_free(&l);
}

static Loaded with_list(const char *text, const char *metadata)
{
	return load_listed(model(metadata, "pytorch"), text);
}

static void test_list(void)
{
	Loaded l = with_list("# ours\r\n  fc.bias\t\r\n\nhead.weight", ALL(WEIGHT, BIAS, SHIFT));
	CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
	CU_ASSERT(symbol(&l, "fc.bias")->trainable && symbol(&l, "fc.weight")->trainable);
	CU_ASSERT(symbol(&l, "shift")->kind == SYM_BUFFER);
	loaded_free(&l);
	l = with_list("shift", NULL);
	CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
	CU_ASSERT(symbol(&l, "shift")->trainable && !symbol(&l, "fc.weight")->trainable);
	loaded_free(&l);
	l = with_list("shift\nnone.such\nfc.weight\nfc.wieght\n", NULL);
	CU_ASSERT_PTR_NULL(l.m);
	expect(&l, "list.txt:2: error: no tensor of the model is called \"none.such\"");
	expect(&l, "list.txt:4: error: no tensor of the model is called \"fc.wieght\"");
	loaded_free(&l);
}

/* dynamo's graph has one name of a tied parameter, and PyTorch's list the other. */
static void test_list_of_ties(void)
{
	static const char *const lists[] = {"hb\nfc.weight\nshift\n", "hb\nfc.weight\nfc.bias\nshift\n"};
	for (int i = 0; i < COUNT_OF(lists); i++) {
		OnnxText *m = model(NULL, "pytorch");
		model_signature(m, "p_fc_weight: PARAMETER target='fc.weight'\np_hb: PARAMETER target='hb'\n"
			"p_fc_bias: PARAMETER target='fc.bias'\np_shift: PARAMETER target='shift'\nx: USER_INPUT\n");
		Loaded l = load_listed(m, lists[i]);
		CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
		expect(&l, "list.txt:1: note: the graph does not use \"hb\"");
		CU_ASSERT_EQUAL(symbol(&l, "fc.bias")->trainable, i);
		bool warned = strstr(l.log, "the graph has no \"hb\", and the list leaves out \"fc.bias\", now frozen");
		UNIT_CHECK(warned == !i, "what the list leaves out is named");
		loaded_free(&l);
	}
}

/* One number of its own: PyTorch's exporter writes only parameters and buffers under such names. */
static void test_one_number(void)
{
	for (int torch = 0; torch < 2; torch++) {
		OnnxText *m = model_of_op("/Div", "Div", "4,3", "temp", "1");
		m->producer = torch ? "pytorch" : "other";
		Loaded l = load_model(m, NULL);
		CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
		const Symbol *s = ir_find_symbol(l.m, "temp");
		CU_ASSERT_EQUAL(torch, s && s->kind == SYM_PARAM && s->trainable);
		loaded_free(&l);
	}
}

/* Rows of a table of [12,8]: interleaved, in halves (and turned by a scale and a shift), trained. */
static float table_at(int layout, int p, int c)
{
	int k = layout == 0 ? c / 2 : c % 4;
	bool cosine = layout == 0 ? c % 2 : c >= 4;
	double angle = p / pow(10000, k / 4.0), v = cosine ? cos(angle) : sin(angle);
	return (float)(layout == 2 ? 0.3 * v - 0.1 : layout == 3 ? v + 0.02 * sin(7.7 * p * (c + 1)) : v);
}

static void test_sinusoid(void)
{
	for (int layout = 0; layout < 4; layout++) {
		float v[96];
		for (int i = 0; i < 96; i++)
			v[i] = table_at(layout, i / 8, i % 8);
		OnnxText *m = model_new();
		model_input(m, "ids", 7, "4,3");
		model_floats(m, "pos.weight", "12,8", 96, v);
		model_op(m, "/pos/Gather", "Gather", "pos.weight,ids", "y");
		model_output(m, "y");
		Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
		CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
		CU_ASSERT_EQUAL(symbol(&l, "pos.weight")->trainable, layout == 3);
		if (layout < 3)
			expect(&l, "\"pos.weight\" f32[12,8] is guessed to be a frozen parameter: a table of sines and cosines");
		loaded_free(&l);
	}
}

/* TorchScript calls the second call of a module "fc_1": zeros are no merge then, unless fc_1 has tensors. */
static void test_called_twice(void)
{
	for (int real = 0; real < 2; real++) {
		OnnxText *m = model_new();
		model_input(m, "x", 1, "4,3");
		model_floats(m, "fc.weight", "3,3", 9, ramp);
		model_floats(m, "fc.bias", "3", 1, zero);
		if (real)
			model_floats(m, "fc_1.weight", "3,3", 9, ramp);
		model_op(m, "/fc/Gemm", "Gemm", "x,fc.weight,fc.bias", "h");
		model_op(m, "/fc_1/Gemm", "Gemm", real ? "h,fc_1.weight,fc.bias" : "h,fc.weight,fc.bias", "y");
		model_output(m, "y");
		Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
		CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
		CU_ASSERT_EQUAL(real, ir_find_symbol(l.m, "fc_1.bias") != NULL);
		if (real)
			expect(&l, "guessed to be 2 tensors that the exporter merged: \"fc.bias\", \"fc_1.bias\"");
		loaded_free(&l);
	}
}

/* Of many guesses forty are listed, and that there are more is said where there are. */
static void test_many_guesses(void)
{
	for (int n = 40; n < 42; n++) {
		OnnxText *m = model_new();
		char of[16] = "x", name[16], in[40];
		m->producer = "pytorch";
		model_input(m, "x", 1, "4,3");
		for (int i = 0; i < n; i++) {
			snprintf(name, sizeof(name), "p%d", i);
			snprintf(in, sizeof(in), "%s,%s", of, name);
			model_floats(m, name, "3", 3, ramp);
			snprintf(of, sizeof(of), "h%d", i);
			model_op(m, "/Add", "Add", in, of);
		}
		model_output(m, of);
		Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
		UNIT_CHECK((strstr(l.log, "there are more guesses") != NULL) == (n > 40), "more than are listed");
		expect(&l, "\"p39\"");
		UNIT_CHECK(!strstr(l.log, "\"p40\""), "what is listed");
		loaded_free(&l);
	}
}

/* The buffer of BCEWithLogitsLoss is no weight. */
static void test_pos_weight(void)
{
	Loaded l = load_model(model_of_op("/loss/Mul", "Mul", "4,3", "loss.pos_weight", "3"),
		&(FrontendOptions){.say_roles = true});
	CU_ASSERT_EQUAL(symbol(&l, "loss.pos_weight")->kind, SYM_BUFFER);
	expect(&l, "\"loss.pos_weight\" f32[3] is guessed to be a buffer: its name ends in \"pos_weight\"");
	loaded_free(&l);
}

/* The norm of detectors, by TorchScript: its four buffers, two of which are called as weights are. */
static void test_frozen_norm(void)
{
	for (int frozen = 0; frozen < 2; frozen++) {
		OnnxText *m = model_new();
		model_input(m, "x", 1, "4,3");
		model_floats(m, "bn.weight", "3", 3, ramp);
		model_floats(m, "bn.running_mean", "3", 3, ramp);
		model_floats(m, "bn.running_var", "3", 3, ramp);
		if (frozen) {
			model_op(m, "/bn/Sub", "Sub", "x,bn.running_mean", "a");
			model_op(m, "/bn/Div", "Div", "a,bn.running_var", "b");
			model_op(m, "/bn/Mul", "Mul", "b,bn.weight", "y");
		} else {
			model_floats(m, "bn.bias", "3", 3, ramp);
			model_op(m, "/bn/BatchNormalization", "BatchNormalization",
				"x,bn.weight,bn.bias,bn.running_mean,bn.running_var", "y");
		}
		model_output(m, "y");
		Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
		CU_ASSERT_EQUAL(symbol(&l, "bn.weight")->kind, frozen ? SYM_BUFFER : SYM_PARAM);
		if (frozen)
			expect(&l, "\"bn.weight\" f32[3] is guessed to be a buffer: no batch norm reads its module's running_mean");
		loaded_free(&l);
	}
}

/* An exponent or a bound under a module's name may be learned; what looks computed may hold a parameter. */
static void test_settings_and_tables(void)
{
	static const float mixed[] = {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f, .9f, 1.1f, 1.2f, 1.3f, 1.4f, 1.5f, 1.6f, 1.7f,
		1.8f, 1.9f};
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,2,9");
	model_floats(m, "pool.p", "", 1, mixed);
	model_floats(m, "onnx::Pow_3", "", 1, mixed);
	model_floats(m, "onnx::Add_4", "2,9", 18, mixed);
	model_op(m, "/pool/Pow", "Pow", "x,pool.p", "h");
	model_op(m, "/Pow", "Pow", "h,onnx::Pow_3", "i");
	model_op(m, "/Add", "Add", "i,onnx::Add_4", "y");
	model_output(m, "y");
	Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
	CU_ASSERT_EQUAL(params_of(&l), 1);
	CU_ASSERT(symbol(&l, "pool.p")->kind == SYM_PARAM);
	expect(&l, "\"pool.p\" f32[] is guessed to be a trained parameter");
	expect(&l, "\"onnx::Add_4\" f32[2,9] is guessed to be a constant: the exporter folded it");
	loaded_free(&l);
}

/* ---- names that look made up, weights of losses ---- */

static void test_const_names(void)
{
	static const struct { const char *name; bool trained; } cases[] = {{"constraint.weight", true},
		{"const_emb", true}, {"Constant", true}, {"const_2", false}, {"Constant_11", false},
		{"const_fold_opt__12", false}, {"const_2.weight", true}};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		OnnxText *m = model_of_op("/Add", "Add", "4,2", cases[i].name, "2");
		m->producer = "pytorch";
		Loaded l = load_model(m, NULL);
		UNIT_CHECK(params_of(&l) == cases[i].trained, cases[i].name);
		loaded_free(&l);
	}
	OnnxText *m = model_of_op("/fc/MatMul", "MatMul", "4,2", "/fc/Transpose_output_0", "2,2");
	m->producer = "pytorch";
	Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
	expect(&l, "is guessed to be a constant: the exporter made the name up, but it stands where weights of MatMul do");
	loaded_free(&l);
}

static void test_weights_of_losses(void)
{
	OnnxText *m = model_new();
	m->producer = "pytorch";
	model_input(m, "x", 1, "4,3");
	model_input(m, "t", 7, "4");
	model_floats(m, "norm.weight", "3", 3, ramp);
	model_floats(m, "loss.weight", "3", 3, ramp);
	model_op(m, "/norm/Mul", "Mul", "x,norm.weight", "h");
	model_op(m, "/loss/SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLoss", "h,t,loss.weight", "y");
	model_output(m, "y");
	Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
	CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
	CU_ASSERT_EQUAL(params_of(&l), 1);
	expect(&l, "1 parameter is trained (1 by name)");
	loaded_free(&l);
	m = model_new();
	m->producer = "pytorch";
	model_input(m, "x", 1, "4,3");
	model_floats(m, "bce.weight", "3", 3, ramp);
	model_op(m, "/bce/Mul", "Mul", "bce.weight,x", "h");
	model_op(m, "/bce/ReduceMean", "ReduceMean", "h", "y");
	model_output(m, "y");
	l = load_model(m, &(FrontendOptions){.say_roles = true});
	expect(&l, "\"bce.weight\" f32[3] is guessed to be a trained parameter: used by Mul, as weights of layers are not");
	loaded_free(&l);
}

/* ---- lists ---- */

/* A list may have the file's name of a tensor; what the report says is what is trained. */
static void test_list_of_tensors(void)
{
	static const struct { const char *list; bool trained; } cases[] = {{"onnx::MatMul_7\n", true},
		{"fc.weight\n", true}, {"shift\n", false}};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		OnnxText *m = model_new();
		m->producer = "pytorch";
		model_input(m, "x", 1, "4,2");
		model_floats(m, "onnx::MatMul_7", "2,2", 4, ramp);
		model_floats(m, "shift", "2", 2, ramp);
		model_op(m, "/fc/MatMul", "MatMul", "x,onnx::MatMul_7", "h");
		model_op(m, "/Add", "Add", "h,shift", "y");
		model_output(m, "y");
		Loaded l = load_listed(m, cases[i].list);
		CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
		CU_ASSERT_EQUAL(symbol(&l, "fc.weight")->trainable, cases[i].trained);
		CU_ASSERT_EQUAL(symbol(&l, "shift")->trainable, !cases[i].trained);
		loaded_free(&l);
	}
}

/* Text of the file cannot forge a line of what is said. */
static void test_escapes(void)
{
	OnnxText *m = model_new();
	m->producer = "pytorch";
	model_input(m, "x", 1, "4,2");
	model_floats(m, "p", "2", 2, ramp);
	model_floats(m, "z\nforged", "2,2", 1, zero);
	model_floats(m, "tanh", "2", 2, ramp);
	model_info(m, "tanh", "pkg.onnxscript.optimizer.folded_from", "['a\nforged']");
	model_op(m, "", "Identity", "z\nforged", "v\nforged");
	model_op(m, "/a", "Bad\nforged", "x,p,tanh,z\nforged", "h");
	model_op(m, "/b", "Mul", "h,v\nforged", "y");
	model_output(m, "y");
	Loaded l = load_model(m, &(FrontendOptions){.say_roles = true, .graph.untie = UNTIE_ALL});
	expect(&l, "used by Bad\\nforged");
	expect(&l, "parameter \"a\\nforged\" is lost");
	UNIT_CHECK(!strstr(l.log, "\nforged"), "no line begins in a name");
	loaded_free(&l);
}

/* What a session of onnxruntime folded keeps no name of a parameter: its weights are trained, and what else has enough
 * numbers is named as maybe lost.  A model that no session saved keeps its meaning. */
static void test_folded_by_runtime(void)
{
	static const float mixed[] = {0.5f, 0.25f, -0.75f, 1.5f, 0.125f, 2.25f, -0.5f};
	for (int saved = 0; saved < 2; saved++) {
		OnnxText *m = model_new();
		m->domain = saved ? "com.microsoft.nchwc" : NULL;
		model_input(m, "x", 1, "4,6");
		model_floats(m, "val_3", "6,7", 7, mixed);
		model_floats(m, "/wpe/Gather_output_0", "4,7", 7, mixed);
		model_op(m, "mm", "MatMul", "x,val_3", "h");
		model_op(m, "add", "Add", "h,/wpe/Gather_output_0", "y");
		model_output(m, "y");
		Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
		CU_ASSERT_EQUAL(params_of(&l), saved);
		if (saved) {
			expect(&l, "\"val_3\" f32[6,7] is guessed to be a trained parameter: onnxruntime folded it");
			expect(&l, "Gather_output_0\" f32[4,7] is guessed to be a constant: onnxruntime folded it, maybe from a "
				"parameter, which is then lost");
		}
		loaded_free(&l);
	}
}

void suite_roles(void)
{
	CU_TestInfo tests[] = {
		{"metadata are believed", test_metadata},
		{"bad metadata", test_bad_metadata},
		{"a guess is named", test_guess},
		{"a list settles it", test_list},
		{"a list with another name of a tie", test_list_of_ties},
		{"a buffer of a loss", test_pos_weight},
		{"the weight of a frozen norm", test_frozen_norm},
		{"a parameter of one number", test_one_number},
		{"tables of sines and cosines", test_sinusoid},
		{"a module called twice", test_called_twice},
		{"learned settings, folded tables", test_settings_and_tables},
		{"many guesses", test_many_guesses},
		{"names that begin as constants'", test_const_names},
		{"weights of losses", test_weights_of_losses},
		{"a list of the file's names", test_list_of_tensors},
		{"names are escaped", test_escapes},
		{"what onnxruntime folded", test_folded_by_runtime},
		CU_TEST_INFO_NULL,
	};
	CU_SuiteInfo suites[] = {{"roles", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
	CU_register_suites(suites);
}
