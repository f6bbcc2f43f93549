/* tests/unit/test_modes.c: which batch norms and dropouts of a model train, and where gradients stop. */
#include <stdio.h>
#include <string.h>

#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

static const float ramp[] = {1, 2, 3}, one[] = {1};

/* ---- where gradients stop ---- */

static OnnxText *stopped(const char *op, const char *domain, const char *in)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3");
	Buf n = node_text("stop", op, in, "y");
	if (domain)
		pb_str(&n, 7, domain);
	else
		node_fx(&n, "detach", "detach.default(%x,)");
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
	FrontendOptions say = {.say_roles = true};
	Loaded l = load_model(norms(0, 1), &say);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_BATCH_NORM), 1);
	expect(&l, "use their running statistics: 1, \"bn1\"");
	loaded_free(&l);
	l = load_model(norms(0, 0), &say);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_BATCH_NORM), 2);
	expect(&l, "the model was exported in eval mode, its batch norms train on the batch's statistics all the same");
	loaded_free(&l);
	l = load_model(norms(1, 1), &(FrontendOptions){.graph.bn.frozen = {{"^bn2$"}, 1}});
	CU_ASSERT_EQUAL(count_ops(l.m, OP_BATCH_NORM), 1);
	loaded_free(&l);
	l = load_model(norms(1, 1), &(FrontendOptions){.graph.bn.frozen = {{"bn3"}, 1}});
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
	static const char *const calls[] = {"embedding.default(%p_w, %ids, 2)", "embedding.default(%p_w, %ids)",
		"embedding.default(%p_w, %ids, -1)"};
	for (int i = 0; i < COUNT_OF(calls); i++) {
		OnnxText *m = model_new();
		Buf n = node_text("g", "Gather", "w,ids", "y");
		node_fx(&n, "e", calls[i]);
		model_input(m, "ids", 7, "4,5");
		model_floats(m, "w", "3,2", COUNT_OF(ramp), ramp);
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
	static const char *const calls[] = {"cross_entropy_loss.default(%x, %t, None, 1, -100, 0.1)",
		"cross_entropy_loss.default(%x, %t, None, 1, -100)", "cross_entropy_loss.default(%x, %t)"};
	for (int i = 0; i < COUNT_OF(calls); i++) {
		OnnxText *m = model_new();
		Buf n = node_text("ce", "SoftmaxCrossEntropyLoss", "x,t", "y");
		node_fx(&n, "c", calls[i]);
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

/* Probabilities as labels, which dynamo writes as class numbers of the scores' shape. */
static void test_probabilities(void)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3");
	model_input(m, "t", 7, "4,3");
	model_op(m, "ce", "SoftmaxCrossEntropyLoss", "x,t", "y");
	model_output(m, "y");
	Loaded l = load_model(m, NULL);
	CU_ASSERT_PTR_NULL(l.m);
	expect(&l, "labels of the scores' shape f32[4,3] are probabilities, of which the exporter made class");
	loaded_free(&l);
}

void suite_modes(void)
{
	CU_TestInfo tests[] = {
		{"dropouts that drop nothing", test_absent_dropouts},
		{"a loss without its smoothing", test_lost_smoothing},
		{"a loss of probabilities", test_probabilities},
		{"the padding row of an embedding", test_padding_row},
		{"where gradients stop", test_stops},
		{"modes of batch norms", test_modes},
		{"modes of batch norms with metadata", test_modes_of_metadata},
		{"batch norms of an export in eval mode", test_eval_norms},
		{"a dropout in eval mode", test_dropout_in_eval},
		{"buffers that forward changes", test_changed_buffers},
		{"a dropout that is ignored", test_ignored_dropout},
		CU_TEST_INFO_NULL,
	};
	CU_SuiteInfo suites[] = {{"modes", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
	CU_register_suites(suites);
}
