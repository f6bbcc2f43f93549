/* tests/unit/test_onnx_bad.c: files that are not models, or are bad ones, give a message in the user's terms. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

static const float ramp[] = {1, 2, 3, 4, 5, 6, 7};

/* Refused, with this in what was said. */
static void bad(OnnxText *m, const char *text)
{
	Loaded l = load_model(m, NULL);
	UNIT_CHECK(!l.m && l.errors > 0, text);
	expect(&l, text);
	loaded_free(&l);
}

static OnnxText *with_input(const char *dims)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, dims);
	model_output(m, "y");
	return m;
}

static OnnxText *one_op(const char *op, const char *in)
{
	OnnxText *m = with_input("4,3");
	model_op(m, "n", op, in, "y");
	return m;
}

/* A model with most of what is walked: initializers, attributes, a function, metadata. */
static OnnxText *rich(void)
{
	static const int64_t perm[] = {1, 0};
	OnnxText *m = with_input("4,3");
	Buf f = {0}, opset = {0}, call = node_text("call", "F", "h", "y");
	Buf t = node_text("t", "Transpose", "x", "xt");
	attr_is(&t, "perm", 2, perm);
	node_metadata(&t, "pkg.torch.onnx.name_scopes", "['', 'a', 'b']");
	pb_str(&f, 1, "F");
	pb_str(&f, 4, "a");
	pb_str(&f, 5, "b");
	pb_str(&f, 10, "my");
	pb_int(&opset, 2, 18);
	pb_msg(&f, 9, &opset);
	function_node(&f, node_text("leaf", "Softmax", "a", "b"));
	model_function(m, f);
	pb_str(&call, 7, "my");
	model_floats(m, "w", "4,2", 7, ramp);
	model_ints(m, "axes", 1, perm);
	model_info(m, "w", "pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
	model_node(m, t);
	model_op(m, "mm", "MatMul", "xt,w", "q");
	model_op(m, "rs", "ReduceSum", "q,axes", "h");
	model_node(m, call);
	return m;
}

static void test_truncated(void)
{
	Buf b = model_bytes(rich());
	Loaded whole = load_bytes(b.at, b.n, NULL);
	CU_ASSERT_PTR_NOT_NULL(whole.m);
	loaded_free(&whole);
	for (size_t n = 0; n < b.n; n++) {
		Loaded l = load_bytes(b.at, n, NULL);
		CU_ASSERT((l.m != NULL) == (l.errors == 0));
		CU_ASSERT(n > 8 || !l.m);
		loaded_free(&l);
	}
	buf_free(&b);
}

static uint32_t next_random(uint32_t *state)
{
	*state = *state * 1664525 + 1013904223;
	return *state >> 8;
}

static void test_flipped_bytes(void)
{
	uint32_t state = 1;
	int loaded = 0;
	Buf b = model_bytes(rich());
	char *copy = malloc(b.n);
	for (int round = 0; round < 4000; round++) {
		memcpy(copy, b.at, b.n);
		for (int k = 0; k <= round % 3; k++)
			copy[next_random(&state) % b.n] = (char)next_random(&state);
		Loaded l = load_bytes(copy, b.n, NULL);
		CU_ASSERT((l.m != NULL) == (l.errors == 0));
		loaded += l.m != NULL;
		loaded_free(&l);
	}
	CU_ASSERT(loaded > 0 && loaded < 4000);
	free(copy);
	buf_free(&b);
}

static void test_random_bytes(void)
{
	uint32_t state = 7;
	unsigned char bytes[512];
	for (int round = 0; round < 500; round++) {
		size_t n = next_random(&state) % sizeof(bytes);
		for (size_t i = 0; i < n; i++)
			bytes[i] = (unsigned char)next_random(&state);
		Loaded l = load_bytes(bytes, n, NULL);
		CU_ASSERT_PTR_NULL(l.m);
		CU_ASSERT(l.errors > 0);
		loaded_free(&l);
	}
}

static void test_not_a_model(void)
{
	FrontendOptions none = {0};
	char *log = NULL;
	size_t n = 0;
	Loaded l = load_bytes("", 0, NULL);
	CU_ASSERT_PTR_NOT_NULL(strstr(l.log, "the file is empty"));
	loaded_free(&l);
	Diag d = {.out = open_memstream(&log, &n)};
	CU_ASSERT_PTR_NULL(onnx_load("/nonexistent/model.onnx", &none, &d));
	CU_ASSERT_PTR_NULL(onnx_load(model_folder(), &none, &d));
	fclose(d.out);
	CU_ASSERT_PTR_NOT_NULL(strstr(log, "cannot open \"/nonexistent/model.onnx\": No such file"));
	CU_ASSERT_PTR_NOT_NULL(strstr(log, "this is a folder"));
	free(log);
}

/* Files that were joined. */
static void test_two_graphs(void)
{
	Buf one = model_bytes(one_op("Relu", "x")), two = {0};
	Loaded l = load_bytes(one.at, one.n, NULL);
	CU_ASSERT_PTR_NOT_NULL(l.m);
	loaded_free(&l);
	buf_put(&two, one.at, one.n);
	buf_put(&two, one.at, one.n);
	l = load_bytes(two.at, two.n, NULL);
	CU_ASSERT(!l.m && strstr(l.log, "it holds 2 graphs, as joined files do"));
	loaded_free(&l);
	buf_free(&one);
	buf_free(&two);
}

static void test_versions(void)
{
	OnnxText *m = one_op("Relu", "x");
	m->opset = 99;
	bad(m, "opset 99 is unknown; 1..28 are known");
	m = one_op("Relu", "x");
	m->opset = 0;
	bad(m, "opset 0 is unknown");
	m = one_op("Relu", "x");
	m->ir_version = 99;
	bad(m, "IR version 99 is not one of 3..14");
}

static void test_wiring(void)
{
	bad(one_op("Relu", "nowhere"),
		"node \"n\" (Relu): error: operand 0, \"nowhere\", is not made before this node");
	bad(one_op("Relu", "y"), "the graph has a cycle");
	bad(one_op("Relu", "x,x"), "2 operands, at most 1 wanted");
	bad(one_op("Add", "x"), "operand 1 is missing");
	bad(one_op("NonZero", "x"), "how long its result is depends on values");
	bad(one_op("NonZeros", "x"), "there is no such op, or none that can be compiled");
	OnnxText *m = one_op("Relu", "x");
	model_op(m, "n2", "Relu", "x", "y");
	bad(m, "result \"y\" is made twice");
	m = one_op("Relu", "x");
	model_input(m, "x", 1, "4");
	bad(m, "input \"x\": error: the name stands for two inputs or initializers");
	m = one_op("Relu", "x");
	model_output(m, "z");
	bad(m, "output \"z\": error: no node makes it");
}

static void test_all_refusals_at_once(void)
{
	OnnxText *m = with_input("4,N");
	for (int i = 0; i < 3; i++) {
		char name[16], out[16];
		snprintf(name, sizeof(name), "u%d", i);
		snprintf(out, sizeof(out), "z%d", i);
		model_op(m, name, "RegexFullMatch", "x", out);
	}
	model_op(m, "l", "TfIdfVectorizer", "x", "y");
	Loaded l = load_model(m, NULL);
	CU_ASSERT_PTR_NOT_NULL(strstr(l.log, "refused: 3 x RegexFullMatch (opset 18), first at node \"u0\""));
	CU_ASSERT_PTR_NOT_NULL(strstr(l.log, "refused: 1 x TfIdfVectorizer (opset 18), first at node \"l\""));
	CU_ASSERT_PTR_NOT_NULL(strstr(l.log, "dimension 1, \"N\", is not bound"));
	CU_ASSERT_EQUAL(l.errors, 3);
	loaded_free(&l);
}

static void test_dtypes(void)
{
	OnnxText *m = one_op("Add", "x,i");
	model_ints(m, "i", 3, (int64_t[]){1, 2, 3});
	bad(m, "node \"n\" (Add): error: operands of add differ in dtype: f32 and i64");
	m = model_new();
	model_input(m, "s", 8, "4");
	model_op(m, "n", "Identity", "s", "y");
	model_output(m, "y");
	bad(m, "input \"s\": error: refused: dtype STRING is not supported");
	bad(one_op("BitwiseNot", "x"), "(BitwiseNot): error:");
}

static void test_dims(void)
{
	OnnxText *m = with_input("4,-3");
	model_op(m, "n", "Relu", "x", "y");
	bad(m, "input \"x\": error: dimension 1 is negative: -3");
	m = with_input("4611686018427387904,4611686018427387904");
	model_op(m, "n", "Relu", "x", "y");
	bad(m, "its dimensions overflow");
	m = one_op("Reshape", "x,to");
	model_ints(m, "to", 2, (int64_t[]){5, -1});
	bad(m, "f32[4,3] cannot take a shape whose other dimensions multiply to 5");
	m = one_op("Expand", "x,to");
	model_ints(m, "to", 3, (int64_t[]){INT64_MAX, 4, 3});
	bad(m, "an overflowing dimension");
	m = one_op("Tile", "x,to");
	model_ints(m, "to", 2, (int64_t[]){INT64_MAX, 1});
	bad(m, "is negative or overflows");
	m = with_input("1,1,1,1,1,1,1,1,1");
	model_op(m, "n", "Relu", "x", "y");
	bad(m, "rank 9 is above 8");
	m = one_op("MatMul", "x,w");
	model_floats(m, "w", "2,2", 7, ramp);
	bad(m, "node \"n\" (MatMul): error:");
}

static void test_bad_initializers(void)
{
	OnnxText *m = one_op("Add", "x,w");
	Buf t = {0};
	pb_int(&t, 1, -3);
	pb_int(&t, 2, 1);
	pb_str(&t, 8, "w");
	pb_msg(&m->graph, 5, &t);
	bad(m, "tensor \"w\": error: a dimension is negative");
	m = one_op("Add", "x,w");
	pb_int(&t, 1, 3);
	pb_int(&t, 2, 1);
	pb_str(&t, 8, "w");
	pb_bytes(&t, 9, ramp, 8);
	pb_msg(&m->graph, 5, &t);
	bad(m, "tensor \"w\": error: it holds 8 bytes, f32[3] needs 12");
	m = one_op("Add", "x,w");
	pb_int(&t, 1, INT64_C(1) << 40);
	pb_int(&t, 2, 1);
	pb_int(&t, 4, 0); /* float_data of the wrong wire type */
	pb_str(&t, 8, "w");
	pb_msg(&m->graph, 5, &t);
	bad(m, "tensor \"w\"");
}

static OnnxText *external(const char *location, const char *offset, const char *length)
{
	OnnxText *m = one_op("Add", "x,w");
	model_external(m, "w", "4,3", location, offset, length);
	return m;
}

static void test_external_data(void)
{
	char path[64];
	float data[16] = {1, 2, 3};
	snprintf(path, sizeof(path), "%s/weights.bin", model_folder());
	FILE *f = fopen(path, "wb");
	CU_ASSERT_FATAL(f && fwrite(data, 4, 16, f) == 16 && !fclose(f));
	Loaded l = load_model(external("weights.bin", "16", "48"), NULL);
	CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
	CU_ASSERT_EQUAL(ir_find_symbol(l.m, "w")->src.offset, 16);
	CU_ASSERT_STRING_EQUAL(ir_find_symbol(l.m, "w")->src.file, path);
	loaded_free(&l);
	bad(external("/etc/passwd", NULL, NULL),
		"location \"/etc/passwd\" is empty, absolute or leaves the model's folder");
	bad(external("../weights.bin", NULL, NULL), "leaves the model's folder");
	bad(external("a/../../weights.bin", NULL, NULL), "leaves the model's folder");
	bad(external("", NULL, NULL), "is empty, absolute");
	bad(external("missing.bin", NULL, NULL), "cannot open");
	bad(external("weights.bin", "20", "48"),
		"tensor \"w\": error: external data \"weights.bin\" is too short: offset 20 "
		"+ 48 bytes wanted, the file has 64");
	bad(external("weights.bin", "9223372036854775807", "48"), "is too short: offset 9223372036854775807");
	bad(external("weights.bin", "-4", "48"), "negative or not a number");
	bad(external("weights.bin", "0", "99999999999999999999"), "negative or not a number");
	bad(external("weights.bin", "0", "12"), "it holds 12 bytes, f32[4,3] needs 48");
}

/* Names may hold anything; the module's text reads back to itself. */
static void test_hostile_names(void)
{
	static const char name[] = "*/ \"quote\" \n ?\?/ \\ %s \x01 \xff";
	OnnxText *m = model_new();
	model_input(m, name, 1, "4,3");
	model_op(m, name, "Relu", name, "y");
	model_output(m, "y");
	Loaded l = load_model(m, NULL);
	CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
	Diag d = {.out = stderr};
	Module *again = ir_parse("names.ir", ir_text(l.m, l.m->arena), &d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(again);
	CU_ASSERT_PTR_NOT_NULL(ir_find_symbol(again, name));
	ir_module_free(again);
	loaded_free(&l);
}

static void test_attributes(void)
{
	OnnxText *m = with_input("4,3");
	Buf n = node_text("n", "Softmax", "x", "y");
	attr_i(&n, "axis", 7);
	model_node(m, n);
	bad(m, "axis 7 is outside -2..1");
	m = with_input("4,3");
	n = node_text("n", "Cast", "x", "y");
	attr_i(&n, "to", 8);
	model_node(m, n);
	bad(m, "refused: 1 x Cast (opset 18), first at node \"n\": dtype STRING is not supported");
	m = with_input("4,3");
	n = node_text("n", "Transpose", "x", "y");
	attr_is(&n, "perm", 2, (int64_t[]){0, 0});
	model_node(m, n);
	bad(m, "perm is not a permutation of 0..1");
	m = with_input("4,3,8,8");
	model_floats(m, "w", "2,3,3,3", 7, ramp);
	n = node_text("n", "Conv", "x,w", "y");
	attr_is(&n, "strides", 2, (int64_t[]){0, 1});
	model_node(m, n);
	bad(m, "strides has 0, which is below 1");
}

/* An op on x of these dims with an attribute of these numbers; where `operand` is given they are that operand. */
typedef struct Extreme {
	const char *op, *dims, *name;
	bool operand;
	int n;
	int64_t v[4];
	const char *text;
} Extreme;

static const Extreme extremes[] = {
	{"Tile", "5,0", "to", true, 2, {INT64_MAX, 1}, "node \"n\" (Tile): error: repeat 9223372036854775807 of axis 0"},
	{"DepthToSpace", "1,0,1099511627776,1", "blocksize", false, 0, {INT32_MAX},
		"node \"n\" (DepthToSpace): error: blocks of 2147483647 make the dimensions of"},
	{"SpaceToDepth", "1,4,0,0", "blocksize", false, 0, {INT32_MAX},
		"node \"n\" (SpaceToDepth): error: blocks of 2147483647 make the channels of"},
	{"SplitToSequence", "4,3", "to", true, 1, {INT64_MIN}, "node \"n\" (SplitToSequence): error: piece 0"},
	{"ReverseSequence", "3,2", "to", true, 2, {3, 4},
		"node \"n\" (ReverseSequence): error: its sequence length 4 is outside 0..3"},
	{"ReverseSequence", "3,2", "to", true, 2, {-1, 3}, "error: its sequence length -1 is outside 0..3"},
	{"OneHot", "4", "to", true, 1, {INT64_MAX}, "node \"n\" (OneHot): error:"},
	{"Cast", "4,3", "to", false, 0, {(INT64_C(1) << 32) + 7}, "dtype unknown is not supported (to is 4294967303)"},
	{"Pad", "4,3", "to", true, 4, {INT64_MIN, 0, 0, 0}, "node \"n\" (Pad): error: pads overflow along axis 0"},
	{"Slice", "4,3", "steps", false, 0, {INT64_MIN}, "node \"n\" (Slice): error:"},
	{"Flatten", "4,3", "axis", false, 0, {INT64_MIN}, "axis -9223372036854775808 is outside -2..2"},
	{"TopK", "4,3", "to", true, 1, {INT64_MAX}, "k is 9223372036854775807, the axis has 3"},
	{"Expand", "4,3", "to", true, 2, {INT64_MIN, 3}, "node \"n\" (Expand): error: its shape has"},
	{"ReduceSum", "4,3", "to", true, 1, {INT64_MIN}, "axis -9223372036854775808 is outside -2..1"},
	{"LRN", "1,2,3", "size", false, 0, {INT64_MAX}, "wants rank 2 or more and a size of 1 to 4096"},
	{"MaxPool", "1,1,8,8", "kernel_shape", false, 2, {INT64_MAX, 2}, "kernel_shape has 9223372036854775807"},
	{"AveragePool", "1,1,8,8", "kernel_shape", false, 2, {INT32_MAX, 2}, "a window of 2147483647 does not fit"},
};

/* Numbers at the ends of int64, where sums and products of them have no int64. */
static void test_extremes(void)
{
	for (int i = 0; i < COUNT_OF(extremes); i++) {
		const Extreme *e = &extremes[i];
		OnnxText *m = with_input(e->dims);
		Buf n = node_text("n", e->op, e->operand ? "x,to" : "x", "y");
		if (e->operand)
			model_ints(m, "to", e->n, e->v);
		else if (e->n)
			attr_is(&n, e->name, e->n, e->v);
		else
			attr_i(&n, e->name, e->v[0]);
		model_node(m, n);
		bad(m, e->text);
	}
}

/* Some of them mean something: all there is, the last row, a diagonal that is outside. */
static void test_extremes_with_meaning(void)
{
	OnnxText *m = with_input("4,3");
	Buf eye = node_text("eye", "EyeLike", "x", "e"), each = node_text("each", "Constant", "", "each");
	attr_i(&eye, "k", INT64_MAX);
	attr_i(&each, "value_int", INT64_MAX);
	model_node(m, eye);
	model_node(m, each);
	model_ints(m, "most", 1, (int64_t[]){INT64_MAX});
	model_ints(m, "least", 1, (int64_t[]){INT64_MIN});
	model_ints(m, "zero", 1, (int64_t[]){0});
	model_op(m, "split", "SplitToSequence", "x,each", "s");
	model_op(m, "at", "SequenceAt", "s,zero", "whole");
	model_op(m, "cut", "Slice", "whole,most,least,zero,least", "last");
	model_op(m, "add", "Add", "last,e", "y");
	Loaded l = load_model(m, NULL);
	const Op *cut = l.m ? find_op(l.m, OP_SLICE) : NULL;
	CU_ASSERT_PTR_NOT_NULL_FATAL(cut);
	CU_ASSERT_EQUAL(attr_find(cut->attrs, "starts")->ints[0], 3);
	CU_ASSERT_EQUAL(cut->out[0]->type.dim[0], 1);
	CU_ASSERT_EQUAL(count_ops(l.m, OP_SLICE), 1);
	loaded_free(&l);
}

/* Windows whose result is stated: its numbers are checked before any sum of them. */
static void test_extreme_windows(void)
{
	static const int64_t shapes[][2] = {{INT64_MIN, 8}, {8, INT64_MAX}, {INT64_MIN + 1, INT64_MIN}};
	for (int i = 0; i < COUNT_OF(shapes); i++) {
		OnnxText *m = with_input("1,3,8,8");
		Buf n = node_text("n", "ConvTranspose", "x,w", "y");
		model_floats(m, "w", "3,2,3,3", 7, ramp);
		attr_is(&n, "output_shape", 2, shapes[i]);
		model_node(m, n);
		bad(m, "node \"n\" (ConvTranspose): error: output_shape has ");
	}
	OnnxText *m = with_input("1,1,2,2");
	Buf n = node_text("n", "MaxUnpool", "x,ids,to", "y");
	attr_is(&n, "kernel_shape", 2, (int64_t[]){2, 2});
	model_input(m, "ids", 7, "1,1,2,2");
	model_ints(m, "to", 4, (int64_t[]){1, 1, INT64_MIN, 4});
	model_node(m, n);
	bad(m, "node \"n\" (MaxUnpool): error: output_shape has -9223372036854775808, 0 to 2147483647 are possible");
	m = with_input("1,1,9");
	n = node_text("n", "Col2Im", "x,image,block", "y");
	model_ints(m, "image", 3, (int64_t[]){INT32_MAX, INT32_MAX, INT32_MAX});
	model_ints(m, "block", 3, (int64_t[]){1, 1, 1});
	model_node(m, n);
	bad(m, "node \"n\" (Col2Im): error: the windows over its image are too many");
	m = with_input("1048576,0,3");
	n = node_text("n", "GroupNormalization", "x,w,w", "y");
	model_floats(m, "w", "3", 7, ramp);
	attr_i(&n, "num_groups", INT64_MAX);
	model_node(m, n);
	bad(m, "9223372036854775807 groups do not divide the channels of f32[1048576,0,3]");
	m = with_input("1,1099511627776");
	n = node_text("n", "Einsum", "x", "y");
	attr_s(&n, "equation", "ii->i");
	model_node(m, n);
	bad(m, "node \"n\" (Einsum): error: label i stands for dimensions of different size");
}

/* A shape that a few hundred bytes of constants compute for days: sorting and convolving a million numbers. */
static void test_endless_constants(void)
{
	OnnxText *m = with_input("4,3");
	model_ints(m, "size", 1, (int64_t[]){1000000});
	model_op(m, "c", "ConstantOfShape", "size", "ones");
	model_op(m, "top", "TopK", "ones,size", "sorted");
	model_op(m, "max", "ReduceMax", "sorted", "r");
	Buf n = node_text("cast", "Cast", "r", "shape");
	attr_i(&n, "to", 7);
	model_node(m, n);
	model_op(m, "n", "Reshape", "x,shape", "y");
	bad(m, "1 x Reshape (opset 18), first at node \"n\": its shape takes too long to compute");
	m = with_input("4,3");
	model_ints(m, "size", 4, (int64_t[]){1, 1, 1000, 1000});
	model_op(m, "c", "ConstantOfShape", "size", "image");
	n = node_text("conv", "Conv", "image,image", "made");
	attr_is(&n, "pads", 4, (int64_t[]){500, 500, 499, 499});
	model_node(m, n);
	model_op(m, "max", "ReduceMax", "made", "r");
	n = node_text("cast", "Cast", "r", "shape");
	attr_i(&n, "to", 7);
	model_node(m, n);
	model_op(m, "n", "Reshape", "x,shape", "y");
	bad(m, "its shape takes too long to compute");
}

/* A size that follows from another axis is checked as one that is given. */
static void test_extreme_sizes(void)
{
	OnnxText *m = with_input("1,4294967296");
	Buf n = node_text("n", "Resize", "x,,,sizes", "y");
	model_ints(m, "sizes", 2, (int64_t[]){65536, 1});
	attr_s(&n, "keep_aspect_ratio_policy", "not_smaller");
	model_node(m, n);
	bad(m, "node \"n\" (Resize): error: axis 1 of f32[1,4294967296] would get 65537 elements by scale 65536");
	m = with_input("0,4");
	n = node_text("n", "Resize", "x,,,sizes", "y");
	model_ints(m, "sizes", 2, (int64_t[]){8, 8});
	attr_s(&n, "keep_aspect_ratio_policy", "not_smaller");
	model_node(m, n);
	bad(m, "node \"n\" (Resize): error: axis 0 of f32[0,4] would get 0 elements by scale inf");
}

void suite_onnx_bad(void)
{
	CU_TestInfo tests[] = {
		{"cut short at every byte", test_truncated},
		{"flipped bytes", test_flipped_bytes},
		{"random bytes", test_random_bytes},
		{"not a model", test_not_a_model},
		{"joined models", test_two_graphs},
		{"unknown versions", test_versions},
		{"missing operands, cycles, doubles", test_wiring},
		{"all refusals at once", test_all_refusals_at_once},
		{"wrong dtypes", test_dtypes},
		{"bad dims", test_dims},
		{"bad initializers", test_bad_initializers},
		{"external data", test_external_data},
		{"hostile names", test_hostile_names},
		{"bad attributes", test_attributes},
		{"numbers at the ends of int64", test_extremes},
		{"those of them that mean something", test_extremes_with_meaning},
		{"windows and groups of such numbers", test_extreme_windows},
		{"constants without an end", test_endless_constants},
		{"sizes that follow from others", test_extreme_sizes},
		CU_TEST_INFO_NULL,
	};
	CU_SuiteInfo suites[] = {{"onnx_bad", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
	CU_register_suites(suites);
}
