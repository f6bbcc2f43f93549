/* tests/unit/test_spatial.c: spectral and spatial nodes that are wrong give a message in the user's terms. */
#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

static const float ramp[] = {1, 2, 3, 4, 5, 6, 7};

/* A node of inputs of these dims ("2,3,4,4;2,3,4,2", all f32), then literals of integers, and one attribute. */
typedef struct Wrong {
	const char *op, *inputs;
	int n_literals;
	int64_t literal[2];
	const char *attr, *text; /* of a text, or of a number where text is NULL */
	int64_t number;
	const char *said;
} Wrong;

static const Wrong wrong[] = {
	{"DFT", "2,4,3", 0, {0}, NULL, NULL, 0, "the last of 1 (real) or 2 (complex), got f32[2,4,3]"},
	{"DFT", "2,4,2", 0, {0}, "axis", NULL, 2, "axis 2 of f32[2,4,2] is that of real and imaginary parts"},
	{"DFT", "2,4,2", 0, {0}, "axis", NULL, INT64_MIN, "axis -9223372036854775808 is outside -3..2"},
	{"DFT", "2,4,2", 0, {0}, "onesided", NULL, 1, "onesided wants a real signal, got f32[2,4,2]"},
	{"DFT", "2,4,2", 1, {0}, NULL, NULL, 0, "its length is 0, expected at least 1"},
	{"DFT", "2,4,2", 1, {INT64_C(1) << 31}, NULL, NULL, 0, "a transform of 2147483648 is longer than 131072"},
	{"DFT", "2,0,2", 0, {0}, NULL, NULL, 0, "its length is 0, expected at least 1"},
	{"STFT", "1,30,1", 1, {0}, NULL, NULL, 0, "frames of 30 in steps of 0"},
	{"STFT", "1,30,2", 1, {3}, NULL, NULL, 0, "onesided wants a real signal, got f32[1,30,2]"},
	{"STFT", "30", 1, {3}, NULL, NULL, 0, "wants a signal of floats [batch, samples, 1 or 2], got f32[30]"},
	{"HannWindow", "", 1, {-1}, NULL, NULL, 0, "its size is -1, 0 to 131072 are possible"},
	{"BlackmanWindow", "", 1, {INT64_MAX}, NULL, NULL, 0, "its size is 9223372036854775807"},
	{"GridSample", "2,3,4,4;2,3,4", 0, {0}, NULL, NULL, 0, "f32[2,3,4,4] at the points f32[2,3,4]"},
	{"GridSample", "2,3,4,4;1,3,4,2", 0, {0}, NULL, NULL, 0, "f32[2,3,4,4] at the points f32[1,3,4,2]"},
	{"GridSample", "2,3,4,4;2,3,4,2", 0, {0}, "mode", "area", 0, "mode \"area\" is unknown"},
	{"GridSample", "2,3,4,4;2,3,4,2", 0, {0}, "padding_mode", "wrap", 0, "has padding \"wrap\", expected zeros"},
	{"Det", "2,2,3", 0, {0}, NULL, NULL, 0, "det of f32[2,2,3], expected floats [..,n,n] with n of at most 32"},
	{"Det", "33,33", 0, {0}, NULL, NULL, 0, "det of f32[33,33]"},
	{"RoiAlign", "2,3,4,4;2,5", 2, {0, 1}, NULL, NULL, 0, "in boxes f32[2,5], expected [boxes,4]"},
	{"RoiAlign", "2,3,4,4;1,4", 2, {0, 1}, NULL, NULL, 0, "operand 3 of roi_pool is i64[2], expected i64[1]"},
	{"RoiAlign", "2,3,4,4;2,4", 2, {0, 1}, "output_width", NULL, 0, "roi_pool to [1,0] bins"},
	{"RoiAlign", "2,3,4,4;2,4", 2, {0, 1}, "sampling_ratio", NULL, -1, "bins of -1 points"},
	{"RoiAlign", "2,3,4,4;2,4", 2, {0, 1}, "mode", "median", 0, "mode \"median\" is unknown"},
	{"MaxRoiPool", "2,3,4,4;2,4", 0, {0}, NULL, NULL, 0, "pooled_shape has 0, which is below 1"},
	{"DeformConv", "1,2,4,4;2,2,2,2;1,8,3,2", 0, {0}, NULL, NULL, 0, "its offset is f32[1,8,3,2], expected [1,8,3,3]"},
	{"DeformConv", "1,2,4,4;2,2,2,2;1,8,3,3", 0, {0}, "group", NULL, 3, "3 groups and 1 groups of offsets do not fit"},
	{"DeformConv", "1,2,4;2,2,2;1,8,3", 0, {0}, NULL, NULL, 0, "only two spatial dims are supported"},
	{"NonMaxSuppression", "1,3,4;1,1,3", 0, {0}, NULL, NULL, 0, "choose boxes outside of the model, or a fixed number"},
	{"Conv", "1,2,4,4;3,2,2,2;3,2", 0, {0}, NULL, NULL, 0, "its bias is f32[3,2], expected [3]; only zeros may"},
};

static void test_wrong(void)
{
	for (int i = 0; i < COUNT_OF(wrong); i++) {
		const Wrong *w = &wrong[i];
		OnnxText *m = model_new();
		Buf in = {0};
		int count = 0;
		for (const char *p = w->inputs; *p; p += strcspn(p, ";") + (p[strcspn(p, ";")] == ';')) {
			char name[16], dims[64];
			snprintf(name, sizeof(name), "x%d", count);
			snprintf(dims, sizeof(dims), "%.*s", (int)strcspn(p, ";"), p);
			model_input(m, name, 1, dims);
			buf_printf(&in, count++ ? ",%s" : "%s", name);
		}
		if (w->n_literals) {
			model_ints(m, "given", w->n_literals, w->literal);
			buf_printf(&in, count ? ",given" : "given");
		}
		Buf n = node_text("n", w->op, in.at, "y");
		if (w->attr && w->text)
			attr_s(&n, w->attr, w->text);
		else if (w->attr)
			attr_i(&n, w->attr, w->number);
		model_node(m, n);
		model_output(m, "y");
		m->opset = strcmp(w->op, "DFT") ? 22 : 18; /* the one with axis as an attribute */
		Loaded l = load_model(m, NULL);
		UNIT_CHECK(!l.m && l.errors > 0, w->said);
		expect(&l, w->said);
		loaded_free(&l);
		buf_free(&in);
	}
}

/* Zeros may stand for a bias whatever their shape, as PyTorch's exporter writes them. */
static void test_zero_bias(void)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "1,2,4,4");
	model_floats(m, "w", "3,2,2,2", 7, ramp);
	model_floats(m, "val_5", "3,2", 1, (float[]){0});
	model_op(m, "n", "Conv", "x,w,val_5", "y");
	model_output(m, "y");
	Loaded l = load_model(m, NULL);
	UNIT_CHECK(l.m && !l.errors, "a zero bias of [3,2]");
	loaded_free(&l);
}

/* A cast to 15, PyTorch's number of bfloat16 and ONNX's of complex128, whose result meets a bfloat16 or f32. */
static Loaded cast_to_15(int other)
{
	OnnxText *m = model_new();
	Buf cast = node_text("c", "Cast", "x", "a"), peer = node_text("p", "Cast", "x", "b");
	Buf back = node_text("f", "Cast", "z", "y");
	model_input(m, "x", 1, "2,3");
	attr_i(&cast, "to", 15);
	attr_i(&peer, "to", other);
	attr_i(&back, "to", 1);
	model_node(m, peer);
	model_node(m, cast);
	model_op(m, "m", "Mul", "a,b", "z");
	model_node(m, back);
	model_output(m, "y");
	m->producer = "pytorch";
	return load_model(m, NULL);
}

static void test_cast_to_15(void)
{
	Loaded l = cast_to_15(16);
	UNIT_CHECK(l.m && !l.errors, "a cast that means bfloat16");
	expect(&l, "casts to COMPLEX128, which PyTorch's exporter writes for bfloat16");
	loaded_free(&l);
	l = cast_to_15(1);
	UNIT_CHECK(!l.m, "a product of bf16 and f32");
	loaded_free(&l);
}

void suite_spatial(void)
{
	CU_TestInfo tests[] = {
		{"wrong nodes", test_wrong},
		{"a zero bias of any shape", test_zero_bias},
		{"casts to bfloat16 by PyTorch's number", test_cast_to_15},
		CU_TEST_INFO_NULL,
	};
	CU_SuiteInfo suites[] = {{"spatial", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
	CU_register_suites(suites);
}
