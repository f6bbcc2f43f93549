/* tests/unit/test_roles.c: what initializers are taken for: metadata, names, values, lists; modes of modules. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

static const float ramp[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, zero[] = {0}, one[] = {1};

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

static void model_signature(OnnxText *m, const char *lines)
{
	Buf entry = {0};
	pb_str(&entry, 1, "pkg.torch.export.ExportedProgram.graph_signature");
	pb_str(&entry, 2, lines);
	pb_msg(&m->graph, 16, &entry);
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
	FrontendOptions say = {.say_roles = true}, strict = {.strict_params = true};
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

static Loaded load_listed(OnnxText *m, const char *text)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/list.txt", model_folder());
	FILE *f = fopen(path, "w");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	fputs(text, f);
	fclose(f);
	return load_model(m, &(FrontendOptions){.trainable = path, .strict_params = true});
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
		OnnxText *m = model_new();
		m->producer = torch ? "pytorch" : "other";
		model_input(m, "x", 1, "4,3");
		model_floats(m, "temp", "1", 1, ramp);
		model_op(m, "/Div", "Div", "x,temp", "y");
		model_output(m, "y");
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

/* ---- where gradients stop ---- */

static OnnxText *stopped(const char *op, const char *domain, const char *in)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3");
	Buf n = node_text("stop", op, in, "y");
	if (domain)
		pb_str(&n, 7, domain);
	else
		node_metadata(&n, "pkg.torch.onnx.fx_node",
			"%detach : [num_users=1] = call_function[target=torch.ops.aten.detach.default](args = (%x,), kwargs = {})");
	model_node(m, n);
	model_output(m, "y");
	return m;
}

static void test_stops(void)
{
	static const char *const cases[][2] = {{"StopGradient", "shardc"}, {"Identity", NULL}};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		Loaded l = load_model(stopped(cases[i][0], cases[i][1], "x"), NULL);
		CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
		CU_ASSERT_EQUAL(count_ops(l.m, OP_STOP_GRADIENT), 1);
		loaded_free(&l);
	}
	Loaded l = load_model(stopped("StopGradient", "shardc", "x,x"), NULL);
	expect(&l, "takes one operand and has one result");
	loaded_free(&l);
	l = load_model(stopped("StartGradient", "shardc", "x"), NULL);
	expect(&l, "domain \"shardc\" is not ONNX's");
	loaded_free(&l);
}

/* ---- modes ---- */

/* mode -1: its node says nothing. */
static void norm(OnnxText *m, const char *name, const char *in, const char *out, int mode)
{
	char list[128], node[32];
	snprintf(list, sizeof(list), "%s,%s.weight,%s.bias,%s.running_mean,%s.running_var", in, name, name, name, name);
	snprintf(node, sizeof(node), "/%s/BatchNormalization", name);
	static const char *const parts[] = {"weight", "bias", "running_mean", "running_var"};
	for (int i = 0; i < COUNT_OF(parts); i++) {
		char part[64];
		snprintf(part, sizeof(part), "%s.%s", name, parts[i]);
		model_floats(m, part, "3", i == 1 || i == 2 ? 3 : 1, i == 1 || i == 2 ? ramp : one);
	}
	Buf n = node_text(node, "BatchNormalization", list, out);
	if (mode >= 0)
		attr_i(&n, "training_mode", mode);
	model_node(m, n);
}

static OnnxText *norms(int first, int second)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3,2,2");
	norm(m, "bn1", "x", "h", first);
	norm(m, "bn2", "h", "y", second);
	model_output(m, "y");
	return m;
}

static void test_modes(void)
{
	static const char *const by_name[] = {"^bn2$"}, *const nothing[] = {"bn3"};
	FrontendOptions say = {.say_roles = true};
	Loaded l = load_model(norms(0, 1), &say);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_BATCH_NORM), 1);
	expect(&l, "use their running statistics: 1, \"bn1\"");
	loaded_free(&l);
	l = load_model(norms(0, 0), &say);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_BATCH_NORM), 2);
	expect(&l, "the model was exported in eval mode, its batch norms train on the batch's statistics all the same");
	loaded_free(&l);
	l = load_model(norms(1, 1), &(FrontendOptions){.bn_frozen = by_name, .n_bn_frozen = 1});
	CU_ASSERT_EQUAL(count_ops(l.m, OP_BATCH_NORM), 1);
	loaded_free(&l);
	l = load_model(norms(1, 1), &(FrontendOptions){.bn_frozen = nothing, .n_bn_frozen = 1});
	expect(&l, "\"frozen:bn3\" matches no batch norm; there are: \"bn1\", \"bn2\"");
	loaded_free(&l);
}

/* A module's forward may choose a mode, which shardc.export writes into the node; else the module's mode counts. */
static void test_modes_of_metadata(void)
{
	static const struct { int node, trained; bool module; } cases[] = {{0, 0, true}, {0, 0, false}, {1, 1, true},
		{1, 1, false}, {-1, 1, true}, {-1, 0, false}};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		char text[200];
		OnnxText *m = model_new();
		model_input(m, "x", 1, "4,3,2,2");
		norm(m, "bn1", "x", "y", cases[i].node);
		model_output(m, "y");
		snprintf(text, sizeof(text), "{\"format\":1,\"training\":true,\"tensors\":[],\"modules\":{\"bn1\":"
			"{\"class\":\"BatchNorm2d\",\"training\":%s}}}", cases[i].module ? "true" : "false");
		model_metadata(m, "shardc", text);
		Loaded l = load_model(m, NULL);
		UNIT_CHECK(count_ops(l.m, OP_BATCH_NORM) == cases[i].trained, "what the node says counts first");
		loaded_free(&l);
	}
}

/* What an export in eval mode is said to do to its batch norms is what is done to each of them. */
static void test_eval_norms(void)
{
	static const struct { int first, second; const char *says; } cases[] = {
		{0, 0, "eval mode, its batch norms use their running statistics"},
		{1, 1, "eval mode, its batch norms use the batch's statistics"},
		{0, 1, "eval mode, 1 of its batch norms train on the batch's statistics, 1 use their running ones"}};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		OnnxText *m = norms(cases[i].first, cases[i].second);
		model_metadata(m, "shardc", "{\"format\":1,\"training\":false,\"tensors\":[],\"modules\":{}}");
		Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
		expect(&l, cases[i].says);
		loaded_free(&l);
	}
}

typedef enum { HELD_INITIALIZER, HELD_IDENTITY, HELD_CONSTANT, HELD_COUNT } Held;

/* The boolean "mode", in one of the ways in which a file holds it. */
static void model_mode(OnnxText *m, Held held, bool v)
{
	Buf t = {0}, attr = {0}, node = node_text("", "Constant", "", "mode");
	pb_int(&t, 2, 9);
	pb_str(&t, 8, held == HELD_IDENTITY ? "held" : "mode");
	pb_bytes(&t, 9, &v, 1);
	if (held == HELD_CONSTANT) {
		pb_str(&attr, 1, "value");
		pb_msg(&attr, 5, &t);
		pb_int(&attr, 20, 4);
		pb_msg(&node, 5, &attr);
		model_node(m, node);
		return;
	}
	buf_free(&node);
	pb_msg(&m->graph, 5, &t);
	if (held == HELD_IDENTITY)
		model_op(m, "", "Identity", "held", "mode");
}

/* A dropout whose node says that it does not train is no module that trains. */
static void test_dropout_in_eval(void)
{
	for (int trains = 0; trains < 2; trains++) {
		for (int held = 0; held < HELD_COUNT; held++) {
			OnnxText *m = norms(0, 0);
			model_floats(m, "ratio", "", 1, (const float[]){.5f});
			model_mode(m, (Held)held, trains);
			model_op(m, "/Dropout", "Dropout", "y,ratio,mode", "z");
			Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
			UNIT_CHECK(count_ops(l.m, OP_BATCH_NORM) == (trains ? 0 : 2), "what eval norms stand beside");
			UNIT_CHECK((strstr(l.log, "was exported in eval mode") != NULL) == !trains, "the model's mode");
			loaded_free(&l);
		}
	}
}

/* dynamo lists what forward changes: the program keeps statistics that a batch norm reads, whatever their name. */
static void test_changed_buffers(void)
{
	OnnxText *m = norms(1, 1);
	model_floats(m, "mine.running_mean", "3,1,1", 3, ramp);
	model_op(m, "/mine/Sub", "Sub", "y,mine.running_mean", "z");
	model_signature(m, "add: BUFFER_MUTATION target='bn1.running_mean'\nadd_1: BUFFER_MUTATION target="
		"'bn2.num_batches_tracked'\nadd_2: BUFFER_MUTATION target='mine.running_mean'\n"
		"add_3: BUFFER_MUTATION target='mine.num_batches_tracked'\nadd_4: BUFFER_MUTATION target='seen'\n");
	Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
	static const struct { const char *name; bool warned; } cases[] = {{"bn1.running_mean", false},
		{"bn2.num_batches_tracked", false}, {"mine.running_mean", true}, {"mine.num_batches_tracked", true},
		{"seen", true}};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		char text[80];
		snprintf(text, sizeof(text), "forward changes buffer \"%s\"", cases[i].name);
		UNIT_CHECK((strstr(l.log, text) != NULL) == cases[i].warned, cases[i].name);
	}
	loaded_free(&l);
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
		UNIT_CHECK(!strstr(l.log, "\"p40\""), "what is listed");
		loaded_free(&l);
	}
}

/* A dropout with the ratio 0, or in eval mode, is such an Identity; the mode of the model is that of what trains. */
static void test_absent_dropouts(void)
{
	for (int mode = 0; mode < 2; mode++) {
		OnnxText *m = norms(mode, mode);
		Buf n = node_text("node_clone", "Identity", "y", "z");
		node_metadata(&n, "pkg.torch.onnx.class_hierarchy",
			"['M', 'torch.nn.modules.dropout.Dropout', 'aten.clone.default']");
		model_node(m, n);
		Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
		UNIT_CHECK((strstr(l.log, "exported in eval mode") == NULL) == mode, "the mode of what trains");
		expect(&l, mode ? "or with the ratio 0, beside modules that train: 1, first \"node_clone\""
			: "1 dropout is gone, first \"node_clone\", unless their ratio was 0");
		loaded_free(&l);
	}
}

/* The buffer of BCEWithLogitsLoss is no weight. */
static void test_pos_weight(void)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3");
	model_floats(m, "loss.pos_weight", "3", 3, ramp);
	model_op(m, "/loss/Mul", "Mul", "x,loss.pos_weight", "y");
	model_output(m, "y");
	Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
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

static void test_ignored_dropout(void)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3");
	model_op(m, "/Dropout", "Dropout", "x", "y");
	model_output(m, "y");
	Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
	UNIT_CHECK(!strstr(l.log, "it holds no dropout"), "a model with a dropout");
	expect(&l, "1 dropout is ignored, first node \"/Dropout\" with ratio 0.5");
	loaded_free(&l);
}

/* dynamo names an embedding's padding_idx, whose row is not trained. */
static void test_padding_row(void)
{
	static const char *const args[] = {"%p_w, %ids, 2", "%p_w, %ids", "%p_w, %ids, -1"};
	for (int i = 0; i < COUNT_OF(args); i++) {
		char fx[160];
		OnnxText *m = model_new();
		Buf n = node_text("g", "Gather", "w,ids", "y");
		snprintf(fx, sizeof(fx),
			"%%e : call_function[target=torch.ops.aten.embedding.default](args = (%s), kwargs = {})",
			args[i]);
		node_metadata(&n, "pkg.torch.onnx.fx_node", fx);
		model_input(m, "ids", 7, "4,5");
		model_floats(m, "w", "3,2", 6, ramp);
		model_node(m, n);
		model_output(m, "y");
		Loaded l = load_model(m, NULL);
		CU_ASSERT_EQUAL(count_ops(l.m, OP_STOP_GRADIENT), i ? 0 : 1);
		loaded_free(&l);
	}
}

/* dynamo writes a cross entropy without its label_smoothing, which its trace has. */
static void test_lost_smoothing(void)
{
	static const char *const more[] = {", None, 1, -100, 0.1", ", None, 1, -100", ""};
	for (int i = 0; i < COUNT_OF(more); i++) {
		char fx[160];
		OnnxText *m = model_new();
		Buf n = node_text("ce", "SoftmaxCrossEntropyLoss", "x,t", "y");
		snprintf(fx, sizeof(fx),
			"%%c : call_function[target=torch.ops.aten.cross_entropy_loss.default](args = (%%x, %%t%s), kwargs = {})",
			more[i]);
		node_metadata(&n, "pkg.torch.onnx.fx_node", fx);
		model_input(m, "x", 1, "4,3");
		model_input(m, "t", 7, "4");
		model_node(m, n);
		model_output(m, "y");
		Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
		bool said = strstr(l.log, "left label_smoothing=0.1 out of node \"ce\"");
		UNIT_CHECK(said == !i, "a loss that is another is named");
		loaded_free(&l);
	}
}

static int params_of(const Loaded *l)
{
	int n = 0;
	for (int i = 0; l->m && i < l->m->n_symbols; i++)
		n += l->m->symbols[i]->kind == SYM_PARAM;
	return n;
}

/* In eval mode TorchScript merges equal parameters and leaves an Identity for each; what is tied has one name. */
static void test_merged_by_value(void)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,2");
	model_floats(m, "a.weight", "2,2", 4, ramp);
	model_floats(m, "a.bias", "2", 1, zero);
	model_node(m, node_text("Identity_0", "Identity", "a.weight", "b.weight"));
	model_node(m, node_text("Identity_1", "Identity", "a.bias", "b.bias"));
	model_node(m, node_text("/a/Gemm", "Gemm", "x,a.weight,a.bias", "h"));
	model_node(m, node_text("/b/Gemm", "Gemm", "h,b.weight,b.bias", "i"));
	model_node(m, node_text("/c/Gemm", "Gemm", "i,b.weight,a.bias", "y"));
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
		model_node(m, node_text("/a/MatMul", "MatMul", "x,onnx::MatMul_7", "h"));
		model_node(m, node_text("/b/MatMul", "MatMul", "h,onnx::MatMul_7", "y"));
		model_output(m, "y");
		Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
		CU_ASSERT_EQUAL(params_of(&l), zeros ? 2 : 1);
		expect(&l, zeros ? "is all zeros and used by several modules, so it is guessed to be 2 tensors"
			: "stands in 2 modules, so it is guessed to be one tied parameter: \"a.weight\", \"b.weight\"");
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
	model_node(m, node_text("/pool/Pow", "Pow", "x,pool.p", "h"));
	model_node(m, node_text("/Pow", "Pow", "h,onnx::Pow_3", "i"));
	model_node(m, node_text("/Add", "Add", "i,onnx::Add_4", "y"));
	model_output(m, "y");
	Loaded l = load_model(m, &(FrontendOptions){.say_roles = true});
	CU_ASSERT_EQUAL(params_of(&l), 1);
	CU_ASSERT(symbol(&l, "pool.p")->kind == SYM_PARAM);
	expect(&l, "\"pool.p\" f32[] is guessed to be a trained parameter");
	expect(&l, "\"onnx::Add_4\" f32[2,9] is guessed to be a constant: the exporter folded it");
	loaded_free(&l);
}

void suite_roles(void);
void suite_roles(void)
{
	CU_TestInfo tests[] = {
		{"metadata are believed", test_metadata},
		{"bad metadata", test_bad_metadata},
		{"a guess is named", test_guess},
		{"a list settles it", test_list},
		{"a list with another name of a tie", test_list_of_ties},
		{"dropouts that drop nothing", test_absent_dropouts},
		{"a buffer of a loss", test_pos_weight},
		{"the weight of a frozen norm", test_frozen_norm},
		{"a loss without its smoothing", test_lost_smoothing},
		{"a parameter of one number", test_one_number},
		{"tables of sines and cosines", test_sinusoid},
		{"a module called twice", test_called_twice},
		{"parameters merged by value, by their names", test_merged_by_value},
		{"folded parameters merged by value", test_merged_when_folded},
		{"learned settings, folded tables", test_settings_and_tables},
		{"the padding row of an embedding", test_padding_row},
		{"where gradients stop", test_stops},
		{"modes of batch norms", test_modes},
		{"modes of batch norms with metadata", test_modes_of_metadata},
		{"batch norms of an export in eval mode", test_eval_norms},
		{"a dropout in eval mode", test_dropout_in_eval},
		{"buffers that forward changes", test_changed_buffers},
		{"many guesses", test_many_guesses},
		{"a dropout that is ignored", test_ignored_dropout},
		CU_TEST_INFO_NULL,
	};
	CU_SuiteInfo suites[] = {{"roles", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
	CU_register_suites(suites);
}
