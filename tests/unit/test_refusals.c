/* tests/unit/test_refusals.c: what a refusal says: the way out, the nearest op, module and line of source. */
#include <stdio.h>
#include <string.h>

#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

typedef struct Known { const char *domain, *op; } Known;

static const Known refused[] = {
#define REFUSED(domain, op, why) {domain, #op},
#include "frontend/onnx_refused.def"
};

static const Known compiled[] = {
#undef ONNX_OP
#undef ONNX_IN
#define ONNX_OP(op, since, until, importer) {"", #op},
#define ONNX_IN(domain, op, since, until, importer) {domain, #op},
#include "frontend/onnx_ops.def"
};

/* A node of this op; its domain, if any, is imported. */
static Buf node_of(const char *domain, const char *op)
{
	Buf n = node_text("n", op, "x", "y");
	if (*domain)
		pb_str(&n, 7, domain);
	return n;
}

static OnnxText *model_of(const char *domain, Buf node)
{
	OnnxText *m = model_new();
	m->domain = *domain ? domain : NULL;
	model_input(m, "x", 1, "4,3");
	model_node(m, node);
	model_output(m, "y");
	return m;
}

/* The model is refused, with this in what was said. */
static void refuses(OnnxText *m, const char *text)
{
	Loaded l = load_model(m, NULL);
	UNIT_CHECK(!l.m && l.errors > 0, text);
	expect(&l, text);
	loaded_free(&l);
}

static void test_tables(void)
{
	for (int i = 0; i < COUNT_OF(refused); i++)
		for (int k = 0; k < COUNT_OF(compiled); k++)
			UNIT_CHECK(strcmp(refused[i].op, compiled[k].op) != 0 || strcmp(refused[i].domain, compiled[k].domain) != 0,
				refused[i].op);
	for (int i = 0; i < COUNT_OF(refused); i++) {
		char text[96];
		snprintf(text, sizeof(text), "refused: 1 x %s (opset ", refused[i].op);
		refuses(model_of(refused[i].domain, node_of(refused[i].domain, refused[i].op)), text);
	}
}

static void test_way_out(void)
{
	static const char *const cases[][3] = {
		{"", "ImageDecoder", "give the program pixels as an input"},
		{"", "StringSplit", "give the program numbers as an input"},
		{"com.microsoft", "MatMulNBits", "compile the model from before quantisation"},
		{"com.microsoft", "PackedAttention", "without packing mode"},
		{"com.microsoft", "CDist", "save at ORT_ENABLE_BASIC"},
		{"com.microsoft.nchwc", "Conv", "save the optimised model at ORT_ENABLE_EXTENDED"},
		{"ai.onnx.ml", "TreeEnsembleRegressor", "cut it off the model"},
		{"org.pytorch.aten", "ATen", "export with dynamo=True"},
		{"mine", "Foo", "domain \"mine\" is not ONNX's and no function of the model has this name"},
		{"mine", "FusedMatMul", "; domain \"com.microsoft\" has an op of this name"},
		{"com.microsoft", "FastGelus", "; did you mean FastGelu?"},
		{"", "LayerNormalisation", "; did you mean LayerNormalization?"},
	};
	for (int i = 0; i < COUNT_OF(cases); i++)
		refuses(model_of(cases[i][0], node_of(cases[i][0], cases[i][1])), cases[i][2]);
}

static void test_opsets(void)
{
	OnnxText *m = model_of("", node_of("", "Gelu"));
	m->opset = 18;
	refuses(m, "its meaning in this opset is not supported: export with opset_version=20 or more");
	m = model_of("", node_of("", "Upsample"));
	m->opset = 18;
	refuses(m, "export with opset_version=9 or less");
	m = model_of("com.microsoft", node_of("com.microsoft", "Gelu"));
	m->domain = NULL;
	refuses(m, "the model imports no version of its domain, \"com.microsoft\"");
}

static const char trace[] = "File \"/home/u/model.py\", line 12, in forward\n    y = self.f(x)\n  File \"/opt/lib/"
	"site-packages/torch/nn/modules/module.py\", line 143, in forward\n    return F.g(x)";

static void test_origin(void)
{
	Buf n = node_of("", "StringSplit");
	node_scope(&n, "encoder.0");
	node_metadata(&n, "pkg.torch.onnx.stack_trace", trace);
	refuses(model_of("", n),
		"first at node \"n\" in module \"encoder.0\" (/home/u/model.py:12: y = self.f(x)): it works");
	n = node_of("", "StringSplit");
	pb_str(&n, 6, "/opt/lib/site-packages/torch/f.py(134): g\n/home/u/model.py(12): forward\n"
		"/home/u/main.py(3): main\n");
	refuses(model_of("", n), "first at node \"n\" (/home/u/model.py:12): it works");
	n = node_text("n", "Add", "x", "y");
	node_metadata(&n, "pkg.torch.onnx.stack_trace", trace);
	refuses(model_of("", n), "node \"n\" (Add): note: the node was made from /home/u/model.py:12: y = self.f(x)");
}

/* TorchScript's bfloat16, PyTorch's own number; from any other exporter it is the complex type that it says. */
static void test_miswritten_bf16(void)
{
	for (int torch = 0; torch < 2; torch++) {
		Buf n = node_of("", "Cast");
		attr_i(&n, "to", 15);
		OnnxText *m = model_of("", n);
		m->producer = torch ? "pytorch" : "other";
		Loaded l = load_model(m, NULL);
		expect(&l, torch ? "it casts to COMPLEX128, which PyTorch's exporter writes for bfloat16: bf16 is computed"
			: "refused: 1 x Cast (opset 18), first at node \"n\": dtype COMPLEX128 is not supported");
		CU_ASSERT_EQUAL(l.m != NULL, torch);
		if (l.m)
			CU_ASSERT_EQUAL(symbol(&l, "y")->type.dtype, DT_BF16);
		loaded_free(&l);
	}
}

/* Traces that are cut or no traces at all say nothing, or what is there. */
static void test_bad_traces(void)
{
	static const char *const traces[] = {"", "File \"", "File \"a.py", "File \"a.py\", line ",
		"File \"a.py\", line x\n", "File \"site-packages/", "\n\n", "a.py(", ".py(1", "(((", "a.py(1)\n"};
	for (int i = 0; i < COUNT_OF(traces); i++) {
		Buf n = node_of("", "StringSplit"), doc = node_of("", "StringSplit");
		node_metadata(&n, "pkg.torch.onnx.stack_trace", traces[i]);
		pb_str(&doc, 6, traces[i]);
		refuses(model_of("", n), "first at node \"n\"");
		refuses(model_of("", doc), "first at node \"n\"");
	}
}

void suite_refusals(void)
{
	CU_TestInfo tests[] = {
		{"an op is compiled or refused", test_tables},
		{"the way out, the nearest op", test_way_out},
		{"opsets", test_opsets},
		{"module and line of source", test_origin},
		{"traces that are none", test_bad_traces},
		{"a bfloat16 that is miswritten", test_miswritten_bf16},
		CU_TEST_INFO_NULL,
	};
	CU_SuiteInfo suites[] = {{"refusals", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
	CU_register_suites(suites);
}
