/* tests/unit/test_names.c: names of parameters and buffers of ONNX models, which of them are one tensor, and which are
 * lost. */
#include <string.h>

#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

static const float ramp[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, zero[] = {0}, one[] = {1};

/* Two norms whose scale and shift an exporter merged into one tensor each. */
static OnnxText *merged(const float *scale)
{
	OnnxText *m = model_new();
	Buf a = node_text("n1", "LayerNormalization", "x,ln1.weight,ln1.bias", "h");
	Buf b = node_text("n2", "LayerNormalization", "h,ln1.weight,ln1.bias", "y");
	model_input(m, "x", 1, "4,3");
	model_floats(m, "ln1.weight", "3", scale == ramp ? 3 : 1, scale);
	model_floats(m, "ln1.bias", "3", 1, zero);
	node_scope(&a, "ln1");
	node_scope(&b, "ln2");
	model_node(m, a);
	model_node(m, b);
	model_output(m, "y");
	return m;
}

static void test_untie(void)
{
	static const UntieMode modes[] = {UNTIE_AUTO, UNTIE_ALL, UNTIE_NONE};
	static const int n_params[2][3] = {{4, 4, 2}, {3, 4, 2}}; /* merged ones; a real tie of weights */
	for (int real = 0; real < 2; real++) {
		for (int i = 0; i < 3; i++) {
			FrontendOptions o = {.graph.untie = modes[i]};
			Loaded l = good(merged(real ? ramp : one), &o);
			CU_ASSERT_EQUAL(count_ops(l.m, OP_PARAM), n_params[real][i]);
			if (i == 0) {
				symbol_of(&l, "ln2.bias", SYM_PARAM);
				expect(&l, "untied: \"ln2.bias\" from tensor \"ln1.bias\", all zeros");
			}
			loaded_free(&l);
		}
	}
}

/* Statistics are buffers even where the exporter merged them with a shift. */
static void test_merged_statistics(void)
{
	OnnxText *m = model_new();
	Buf n = node_text("bn", "BatchNormalization", "x,w,bn.bias,bn.bias,w", "y");
	model_input(m, "x", 1, "4,3,2,2");
	model_floats(m, "w", "3", 1, one);
	model_floats(m, "bn.bias", "3", 1, zero);
	node_scope(&n, "bn");
	model_node(m, n);
	model_output(m, "y");
	Loaded l = good(m, NULL);
	symbol_of(&l, "bn.weight", SYM_PARAM);
	symbol_of(&l, "bn.bias", SYM_PARAM);
	symbol_of(&l, "bn.running_mean", SYM_BUFFER);
	symbol_of(&l, "bn.running_var", SYM_BUFFER);
	loaded_free(&l);
}

/* Embedding [5,2] and its transpose, which constant folding stored beside it. */
static OnnxText *broken_tie(bool equal, bool dynamo)
{
	static const float table[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, turned[] = {1, 3, 5, 7, 9, 2, 4, 6, 8, 10};
	const char *head = dynamo ? "val_7" : "onnx::MatMul_7";
	char in[64];
	OnnxText *m = model_new();
	model_input(m, "ids", 7, "4,3");
	model_floats(m, "wte.weight", "5,2", 10, table);
	model_floats(m, head, "2,5", 10, equal ? turned : table);
	if (dynamo)
		model_info(m, head, "pkg.onnxscript.optimizer.folded_from", "['wte.weight']");
	model_op(m, "/wte/Gather", "Gather", "wte.weight,ids", "e");
	snprintf(in, sizeof(in), "e,%s", head);
	model_op(m, "/lm_head/MatMul", "MatMul", in, "y");
	model_output(m, "y");
	return m;
}

static void test_broken_tie(void)
{
	for (int dynamo = 0; dynamo < 2; dynamo++) {
		Loaded l = good(broken_tie(true, dynamo), NULL);
		CU_ASSERT_EQUAL(count_ops(l.m, OP_PARAM), 1);
		CU_ASSERT_EQUAL(count_ops(l.m, OP_TRANSPOSE), 1);
		expect(&l, "is the transpose of \"wte.weight\"");
		loaded_free(&l);
	}
	Loaded l = good(broken_tie(false, false), NULL);
	const Symbol *head = symbol_of(&l, "lm_head.weight", SYM_PARAM);
	HostTensor t;
	Diag d = {.out = stderr};
	CU_ASSERT_FATAL(head && source_load(l.m, head, l.m->arena, &t, &d));
	CU_ASSERT_STRING_EQUAL(head->onnx, "onnx::MatMul_7");
	CU_ASSERT_EQUAL(head->type.dim[0], 5);
	CU_ASSERT_EQUAL(host_get_float(&t, 1), 6); /* [0,1] of the framework's [5,2] */
	loaded_free(&l);
}

static void test_scope_of_path(void)
{
	Loaded l = good(model_of_op("/layer1/layer1.0/fc/MatMul", "MatMul", "4,3", "onnx::MatMul_3", "3,3"), NULL);
	symbol_of(&l, "layer1.0.fc.weight", SYM_PARAM);
	loaded_free(&l);
}

static void test_folded_vector(void)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3,2,2");
	model_floats(m, "onnx::Mul_8", "3,1,1", 11, ramp);
	model_floats(m, "onnx::Add_9", "1,2,2", 11, ramp);
	model_op(m, "/g/Mul", "Mul", "x,onnx::Mul_8", "h");
	model_op(m, "/g/Add", "Add", "h,onnx::Add_9", "y");
	model_output(m, "y");
	Loaded l = good(m, NULL);
	const Symbol *w = symbol_of(&l, "g.weight", SYM_PARAM);
	CU_ASSERT(w && w->type.rank == 1 && w->type.dim[0] == 3 && w->src.rank == 1);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_PARAM), 1); /* a table is no vector: it may come from a buffer */
	loaded_free(&l);
}

static void test_metadata_decides(void)
{
	const char *kind = "pkg.torch.export.graph_signature.InputSpec.kind";
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,20");
	model_floats(m, "scale", "20", 11, ramp);
	model_floats(m, "table", "20", 11, ramp);
	model_floats(m, "fixed", "20", 11, ramp);
	model_info(m, "scale", kind, "PARAMETER");
	model_info(m, "table", kind, "BUFFER");
	model_info(m, "fixed", kind, "CONSTANT_TENSOR");
	model_op(m, "a", "Mul", "x,scale", "p");
	model_op(m, "b", "Add", "p,table", "q");
	model_op(m, "c", "Add", "q,fixed", "y");
	model_output(m, "y");
	Loaded l = good(m, NULL);
	symbol_of(&l, "scale", SYM_PARAM);
	symbol_of(&l, "table", SYM_BUFFER);
	symbol_of(&l, "fixed", SYM_DATA);
	loaded_free(&l);
}

static void test_restored_and_lost(void)
{
	OnnxText *m = model_new();
	Buf n = node_text("g", "Gemm", "x,fc.weight", "h");
	model_input(m, "x", 1, "4,3");
	model_floats(m, "fc.weight", "3,20", 11, ramp);
	model_floats(m, "val_9", "1,20", 11, ramp);
	model_info(m, "val_9", "pkg.onnxscript.optimizer.folded_from", "['wpe.weight', 'position_ids', 'val_3']");
	node_scope(&n, "fc");
	node_metadata(&n, "pkg.onnxscript.rewriter.rule_name", "RemoveOptionalBiasFromGemm");
	model_node(m, n);
	model_op(m, "a", "Add", "h,val_9", "y");
	model_output(m, "y");
	Loaded l = good(m, NULL);
	const Symbol *bias = symbol_of(&l, "fc.bias", SYM_PARAM);
	CU_ASSERT(bias && !bias->src.file && bias->src.fill == 0 && bias->type.dim[0] == 20);
	symbol_of(&l, "val_9", SYM_DATA);
	expect(&l, "parameter \"wpe.weight\" is lost");
	CU_ASSERT_PTR_NULL(strstr(l.log, "position_ids\" is lost"));
	loaded_free(&l);
}

/* The trace of the node names the bias that was dropped, where its module's own name would give another. */
static void test_restored_by_trace(void)
{
	OnnxText *m = model_new();
	Buf n = node_text("g", "Gemm", "x,a.out_proj.weight", "y");
	m->producer = "pytorch";
	model_signature(m, "p_a_out_proj_weight: PARAMETER target='a.out_proj.weight'\n"
		"p_a_out_proj_bias: PARAMETER target='a.out_proj.bias'\nx: USER_INPUT\n");
	model_input(m, "x", 1, "4,3");
	model_floats(m, "a.out_proj.weight", "3,20", 11, ramp);
	node_scope(&n, "a");
	node_fx(&n, "y", "linear.default(%x, %p_a_out_proj_weight, %p_a_out_proj_bias)");
	node_metadata(&n, "pkg.onnxscript.rewriter.rule_name", "RemoveOptionalBiasFromGemm");
	model_node(m, n);
	model_output(m, "y");
	Loaded l = good(m, NULL);
	symbol_of(&l, "a.out_proj.bias", SYM_PARAM);
	loaded_free(&l);
}

/* ---- names of results ---- */

/* A node with the exporter's trace of it; call NULL: without. */
static void traced(OnnxText *m, const char *name, const char *op, const char *in, const char *out, const char *result,
	const char *call)
{
	Buf n = node_text(name, op, in, out);
	if (call)
		node_fx(&n, result, call);
	model_node(m, n);
}

/* y = (x - mean) * mean(x - mean) + mean, where the buffer and the mean have one name. */
static OnnxText *shadowed(const char *made, const char *last)
{
	OnnxText *m = model_new();
	model_signature(m, "b_mean: BUFFER target='mean' persistent=True\nx: USER_INPUT\n");
	model_input(m, "x", 1, "4,3");
	model_floats(m, "mean", "3", 3, ramp);
	traced(m, "n1", "Sub", "x,mean", "h", "sub", "f(%x, %b_mean)");
	traced(m, "n2", "ReduceMean", "h", "mean", "mean", made);
	traced(m, "n3", "Mul", "h,mean", "z", "mul", "f(%sub, %mean)");
	traced(m, "n4", "Add", "z,mean", "y", "y", last);
	model_output(m, "y");
	return m;
}

static void test_shadowed(void)
{
	static const char made[] = "f(%sub,)", last[] = "f(%mul, %b_mean)";
	static const char both[] = "f(%mean, %b_mean)", none[] = "f(%mean_1, %b_mean2)";
	Loaded l = good(shadowed(made, last), NULL);
	const Value *sub = op_in(find_op(l.m, OP_SUB), 1), *add = op_in(find_op(l.m, OP_ADD), 1);
	const Value *mul = op_in(find_op(l.m, OP_MUL), 1);
	CU_ASSERT(sub->op->kind == OP_READ && !strcmp(sub->op->sym->name, "mean"));
	CU_ASSERT(add->op->kind == OP_READ && add->op->sym == sub->op->sym);
	CU_ASSERT_EQUAL(mul->op->kind, OP_REDUCE_MEAN);
	loaded_free(&l);
	for (int i = 0; i < 2; i++) {
		l = load_model(shadowed(made, i ? both : none), NULL);
		expect(&l, "node \"n4\": error: \"mean\" is both an initializer and the result of node \"n2\"");
		loaded_free(&l);
	}
	l = load_model(shadowed(NULL, last), NULL);
	expect(&l, "node \"n2\" (ReduceMean): error: result \"mean\" is made twice");
	loaded_free(&l);
}

/* Bytes below and above a dot sort names of other modules around those of one. */
static void test_modules_among_names(void)
{
	static const char *const names[] = {"h.10.w", "h.1-x.w", "h.1/x", "h.1.attn.w", "h.1x.w", "h.2", "g"};
	Arena *a = arena_new();
	Map *m = map_new(a);
	for (int i = 0; i < COUNT_OF(names); i++)
		map_add(m, names[i]);
	Sorted sorted = map_sorted(m, a);
	static const char *const modules[] = {"h.1.attn", "h.1", "h.10", "h.1-x", "h"};
	static const char *const others[] = {"h.2", "h.1/x", "g", "i", "h.1.a"};
	for (int i = 0; i < COUNT_OF(modules); i++) {
		CU_ASSERT_TRUE(sorted_has_inside(&sorted, modules[i], strlen(modules[i])));
		CU_ASSERT_FALSE(sorted_has_inside(&sorted, others[i], strlen(others[i])));
	}
	arena_free(a);
}

void suite_names(void)
{
	CU_TestInfo tests[] = {
		{"merged parameters untied", test_untie},
		{"statistics merged with a shift", test_merged_statistics},
		{"ties broken by a transpose", test_broken_tie},
		{"scopes of TorchScript names", test_scope_of_path},
		{"vectors with dims of 1", test_folded_vector},
		{"metadata decides", test_metadata_decides},
		{"restored and lost parameters", test_restored_and_lost},
		{"a dropped bias by the trace", test_restored_by_trace},
		{"a result that is called as a buffer", test_shadowed},
		{"modules among names", test_modules_among_names},
		CU_TEST_INFO_NULL,
	};
	CU_SuiteInfo suites[] = {{"names", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
	CU_register_suites(suites);
}
