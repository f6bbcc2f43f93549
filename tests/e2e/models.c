/* tests/e2e/models.c: makes the files that the end-to-end tests feed: small ONNX models, good and bad, .npy
 * files whose header says anything, and damaged copies.
 *
 * models list | models onnx NAME | models npy DESCR ORDER SHAPE BYTES | models flip FILE SEED COUNT |
 * models chain KIND NODES | models checkpoint DIR MEGABYTES RANKS STRATEGY..
 * The result goes to standard output, but for checkpoints.  One idea: every bad model is a small change of the same
 * good one. */
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/chain_models.h"
#include "tests/e2e/checkpoint_files.h"
#include "tests/unit/onnx_model.h"

enum { FLOAT = 1, STRING = 8 };
static const float ramp[] = {-0.5f, 0.25f, -0.125f, 0.5f, -0.25f, 0.375f, 0.125f};

/* Breaks out of C comments and strings, of make, of JSON, of DOT, of printf and of the IR's own quotes. */
#define HOSTILE "*/ \"quo'te\" \n ?\?/ \\ %s $(HOME) `id` #if <b>&amp; \x01 \xc3\xa9 " \
	"\xe2\x80\xae\xe2\x80\x8b\xe2\x80\xa8\xc2\x9b" /* right to left, zero width, line separator, control */

/* y = relu(x w) + b: the good one, whose parts the others replace. */
typedef struct Parts {
	const char *x, *w, *h, *y, *node; /* names */
	const char *dims;                 /* of x */
	const char *op, *in;              /* of the node behind the product */
	int dtype, opset, ir_version;
} Parts;

static const Parts plain = {
	.x = "x", .w = "fc.weight", .h = "h", .y = "y", .node = "/fc/MatMul", .dims = "N,4", .op = "Relu", .in = "h",
	.dtype = FLOAT, .opset = 18, .ir_version = 10,
};

/* An operand list cannot hold names with commas; these have none. */
static void add_nodes(OnnxText *m, const Parts *p)
{
	char in[512];
	snprintf(in, sizeof(in), "%s,%s", p->x, p->w);
	model_op(m, p->node, "MatMul", in, p->h);
	model_op(m, "/act/Act", p->op, p->in, "a");
	model_op(m, "/fc/Add", "Add", "a,fc.bias", p->y);
}

static OnnxText *begin(const Parts *p)
{
	OnnxText *m = model_new();
	m->opset = p->opset;
	m->ir_version = p->ir_version;
	model_input(m, p->x, p->dtype, p->dims);
	model_floats(m, "fc.bias", "3", 7, ramp);
	return m;
}

static OnnxText *build(const Parts *p)
{
	OnnxText *m = begin(p);
	model_floats(m, p->w, "4,3", 7, ramp);
	add_nodes(m, p);
	model_output(m, p->y);
	return m;
}

static OnnxText *build_external(const char *location, const char *offset, const char *length)
{
	OnnxText *m = begin(&plain);
	model_external(m, "fc.weight", "4,3", location, offset, length);
	add_nodes(m, &plain);
	model_output(m, "y");
	return m;
}

/* ---- the models ---- */

#define WITH(...) Parts p = plain; __VA_ARGS__; return build(&p)

static OnnxText *good(void) { return build(&plain); }
static OnnxText *hostile_names(void)
{
	WITH(p.x = "x" HOSTILE; p.w = "w" HOSTILE; p.h = p.in = "h" HOSTILE; p.y = "y" HOSTILE; p.node = "n" HOSTILE);
}
static OnnxText *name_not_utf8(void) { WITH(p.w = "w\xff\xfe"); }
static OnnxText *name_reserved(void) { WITH(p.w = "__metadata__"); }
static OnnxText *cycle(void) { WITH(p.in = "y"); }
static OnnxText *missing_input(void) { WITH(p.in = "nowhere"); }
static OnnxText *unknown_op(void) { WITH(p.op = "FancyNewOp"); }
static OnnxText *wrong_arity(void) { WITH(p.op = "Add"); }
static OnnxText *new_opset(void) { WITH(p.opset = 99); }
static OnnxText *new_ir_version(void) { WITH(p.ir_version = 99); }
static OnnxText *string_input(void) { WITH(p.dtype = STRING); }
static OnnxText *integer_input(void) { WITH(p.dtype = 7); }
static OnnxText *unknown_dtype(void) { WITH(p.dtype = 777); }
static OnnxText *negative_dim(void) { WITH(p.dims = "-2,4"); }
static OnnxText *zero_dim(void) { WITH(p.dims = "0,4"); }
static OnnxText *overflowing_dims(void) { WITH(p.dims = "4611686018427387904,4611686018427387904"); }
static OnnxText *huge_dim(void) { WITH(p.dims = "9223372036854775807,4"); }
static OnnxText *large_dim(void) { WITH(p.dims = "100000000000,4"); }
static OnnxText *inner_dims_differ(void) { WITH(p.dims = "N,5"); }

static OnnxText *external(void) { return build_external("weights.bin", "0", "48"); }
static OnnxText *external_short(void) { return build_external("weights.bin", "20", "48"); }
static OnnxText *external_past(void) { return build_external("weights.bin", "9223372036854775800", "48"); }
static OnnxText *external_length(void) { return build_external("weights.bin", "0", "12"); }
static OnnxText *external_negative(void) { return build_external("weights.bin", "-8", "48"); }
static OnnxText *external_missing(void) { return build_external("no.bin", NULL, NULL); }
static OnnxText *external_absolute(void) { return build_external("/etc/passwd", NULL, NULL); }
static OnnxText *external_leaves(void) { return build_external("sub/../../weights.bin", NULL, NULL); }
static OnnxText *external_folder(void) { return build_external("sub", NULL, NULL); }

/* 24 layers of 2048 by 2048: 100,663,296 parameters, of which there are shapes only. */
static OnnxText *wide(void)
{
	enum { LAYERS = 24 };
	OnnxText *m = model_new();
	m->opset = plain.opset;
	m->ir_version = plain.ir_version;
	model_input(m, "x0", FLOAT, "4,2048");
	for (int i = 0; i < LAYERS; i++) {
		char w[32], node[32], in[64], out[16], h[16];
		snprintf(w, sizeof(w), "layers.%d.weight", i);
		snprintf(node, sizeof(node), "/layers.%d/MatMul", i);
		snprintf(in, sizeof(in), "x%d,%s", i, w);
		snprintf(h, sizeof(h), "h%d", i);
		snprintf(out, sizeof(out), "x%d", i + 1);
		model_external(m, w, "2048,2048", "gone.bin", NULL, NULL);
		model_op(m, node, "MatMul", in, h);
		model_op(m, h, "Tanh", h, out);
	}
	model_output(m, "x24");
	return m;
}

/* Two layers and a GELU between them, as in GPT-2; there are shapes only. */
static OnnxText *gelu(void)
{
	OnnxText *m = model_new();
	Buf node = node_text("/act/Gelu", "Gelu", "h", "a");
	m->opset = 20;
	m->ir_version = plain.ir_version;
	attr_s(&node, "approximate", "tanh");
	model_input(m, "x", FLOAT, "N,768");
	model_external(m, "up.weight", "768,3072", "gone.bin", NULL, NULL);
	model_external(m, "down.weight", "3072,768", "gone.bin", NULL, NULL);
	model_op(m, "/up/MatMul", "MatMul", "x,up.weight", "h");
	model_node(m, node);
	model_op(m, "/down/MatMul", "MatMul", "a,down.weight", "y");
	model_output(m, "y");
	return m;
}

/* A table of 1,200,000 rows, 76,800,000 bytes, of which a sample reads one. */
static OnnxText *table(void)
{
	OnnxText *m = model_new();
	m->opset = plain.opset;
	m->ir_version = plain.ir_version;
	model_input(m, "x", 7, "8");
	model_external(m, "table.weight", "1200000,16", "table.bin", NULL, NULL);
	model_op(m, "/table/Gather", "Gather", "table.weight,x", "rows");
	model_mean(m, "rows");
	return m;
}

/* A convolution makes the output: of a signal's classes, or of one number for each place. */
static OnnxText *convolved(const char *x, const char *w)
{
	OnnxText *m = model_new();
	m->opset = plain.opset;
	m->ir_version = plain.ir_version;
	model_input(m, "x", FLOAT, x);
	model_floats(m, "conv.weight", w, 7, ramp);
	model_op(m, "/conv/Conv", "Conv", "x,conv.weight", "y");
	model_output(m, "y");
	return m;
}

static OnnxText *signal_classes(void) { return convolved("N,3,12", "5,3,1"); }
static OnnxText *places(void) { return convolved("N,3,8,8", "1,3,1,1"); }
static OnnxText *fixed_batch(void) { return convolved("4,3,12", "5,3,1"); }

/* A loss of the model's own: classes for a cross-entropy, and measured values that a choice reads. */
static OnnxText *own_loss(void)
{
	OnnxText *m = model_new();
	m->opset = plain.opset;
	m->ir_version = plain.ir_version;
	model_input(m, "x", FLOAT, "N,4");
	model_input(m, "cls", 7, "N");
	model_input(m, "val", FLOAT, "N,1");
	model_floats(m, "fc.weight", "4,3", 7, ramp);
	model_floats(m, "value.weight", "4,1", 4, ramp);
	model_floats(m, "zero", "1", 1, (float[]){0});
	model_op(m, "/fc/MatMul", "MatMul", "x,fc.weight", "scores");
	model_op(m, "/value/MatMul", "MatMul", "x,value.weight", "value");
	model_op(m, "/Loss", "SoftmaxCrossEntropyLoss", "scores,cls", "of_classes");
	model_op(m, "/Sub", "Sub", "value,val", "off");
	model_op(m, "/Less", "Less", "off,zero", "below");
	model_op(m, "/Neg", "Neg", "off", "over");
	model_op(m, "/Where", "Where", "below,over,off", "distance");
	model_op(m, "/Mean", "ReduceMean", "distance", "mean");
	model_op(m, "/Reshape", "Squeeze", "mean", "of_values");
	model_op(m, "/Add", "Add", "of_classes,of_values", "loss");
	model_output(m, "loss");
	return m;
}

/* A transpose of three dims. */
static void add_turned(OnnxText *m, const char *in, const char *out, const int64_t perm[3])
{
	Buf node = node_text(out, "Transpose", in, out);
	attr_is(&node, "perm", 3, perm);
	model_node(m, node);
}

static OnnxText *of_samples(const char *dims)
{
	OnnxText *m = model_new();
	m->opset = plain.opset;
	m->ir_version = plain.ir_version;
	model_input(m, "x", FLOAT, dims);
	model_floats(m, "fc.weight", "4,4", 7, ramp);
	model_ints(m, "rows", 2, (int64_t[]){-1, 4});
	return m;
}

static OnnxText *mean_of(OnnxText *m, const char *of)
{
	model_op(m, "/Mean", "ReduceMean", of, "mean");
	model_op(m, "/Squeeze", "Squeeze", "mean", "loss");
	model_output(m, "loss");
	return m;
}

/* Attention whose samples are never along the first axis: steps are, and then samples and their two heads together. */
static OnnxText *steps_first(void)
{
	static const int64_t swapped[] = {1, 0, 2}, last[] = {1, 2, 0};
	OnnxText *m = of_samples("N,6,4");
	model_ints(m, "steps", 3, (int64_t[]){6, -1, 4});
	model_ints(m, "heads", 3, (int64_t[]){6, -1, 2});
	add_turned(m, "x", "turned", swapped);
	model_op(m, "/Flat", "Reshape", "turned,rows", "flat");
	model_op(m, "/fc/MatMul", "MatMul", "flat,fc.weight", "projected");
	model_op(m, "/Steps", "Reshape", "projected,steps", "of_steps");
	model_op(m, "/Heads", "Reshape", "of_steps,heads", "of_heads");
	add_turned(m, "of_heads", "q", swapped);
	add_turned(m, "of_heads", "k", last);
	model_op(m, "/Scores", "MatMul", "q,k", "scores");
	model_op(m, "/Softmax", "Softmax", "scores", "weights");
	model_op(m, "/Mix", "MatMul", "weights,q", "mixed");
	add_turned(m, "mixed", "back", swapped);
	model_op(m, "/Join", "Reshape", "back,rows", "joined");
	return mean_of(m, "joined");
}

/* Each sample is compared with each: by a product, and by differences. */
static OnnxText *compared(void)
{
	OnnxText *m = of_samples("N,4");
	model_op(m, "/fc/MatMul", "MatMul", "x,fc.weight", "h");
	model_op(m, "/Turn", "Transpose", "h", "turned");
	model_op(m, "/Compare", "MatMul", "h,turned", "all");
	return mean_of(m, "all");
}

static OnnxText *pairs(void)
{
	OnnxText *m = of_samples("N,4");
	model_ints(m, "down", 3, (int64_t[]){-1, 1, 4});
	model_ints(m, "across", 3, (int64_t[]){1, -1, 4});
	model_op(m, "/fc/MatMul", "MatMul", "x,fc.weight", "h");
	model_op(m, "/Down", "Reshape", "h,down", "rows_of");
	model_op(m, "/Across", "Reshape", "h,across", "columns_of");
	model_op(m, "/Difference", "Sub", "rows_of,columns_of", "off");
	model_op(m, "/Abs", "Abs", "off", "distance");
	return mean_of(m, "distance");
}

/* What must lie in a range: probabilities, classes that are drawn, lengths. */
static OnnxText *ranges(void)
{
	OnnxText *m = begin(&plain);
	Buf cast = node_text("/Cast", "Cast", "class", "shift"), reverse = node_text("/Reverse", "ReverseSequence",
		"h2,lengths", "h3");
	attr_i(&cast, "to", FLOAT);
	attr_i(&reverse, "batch_axis", 0);
	attr_i(&reverse, "time_axis", 1);
	model_input(m, "p", FLOAT, "N,4");
	model_input(m, "logits", FLOAT, "N,4");
	model_input(m, "lengths", 7, "N");
	model_op(m, "/Bernoulli", "Bernoulli", "p", "kept");
	model_op(m, "/Mul", "Mul", "x,kept", "h1");
	model_op(m, "/Multinomial", "Multinomial", "logits", "class");
	model_node(m, cast);
	model_op(m, "/Add", "Add", "h1,shift", "h2");
	model_node(m, reverse);
	model_floats(m, "fc.weight", "4,3", 7, ramp);
	model_op(m, "/fc/MatMul", "MatMul", "h3,fc.weight", "z");
	model_op(m, "/fc/Add", "Add", "z,fc.bias", "y");
	model_output(m, "y");
	return m;
}

/* Rows of a small table are the scores of classes; shape: that of the ids. */
static OnnxText *lookup_of(const char *shape)
{
	OnnxText *m = model_new();
	m->opset = plain.opset;
	m->ir_version = plain.ir_version;
	model_input(m, "x", 7, shape);
	model_floats(m, "table.weight", "5,3", 7, ramp);
	model_op(m, "/table/Gather", "Gather", "table.weight,x", "y");
	model_output(m, "y");
	return m;
}

static OnnxText *lookup(void) { return lookup_of("N"); }
static OnnxText *lookup_texts(void) { return lookup_of("N,T"); }

static OnnxText *short_initializer(void)
{
	OnnxText *m = begin(&plain);
	Buf t = {0};
	pb_int(&t, 1, 4);
	pb_int(&t, 1, 3);
	pb_int(&t, 2, FLOAT);
	pb_str(&t, 8, "fc.weight");
	pb_bytes(&t, 9, ramp, 8);
	pb_msg(&m->graph, 5, &t);
	add_nodes(m, &plain);
	model_output(m, "y");
	return m;
}

static OnnxText *reshape_overflows(void)
{
	OnnxText *m = begin(&plain);
	model_ints(m, "to", 3, (int64_t[]){INT64_MAX, INT64_MAX, 2});
	model_op(m, "/Reshape", "Reshape", "x,to", "y");
	model_output(m, "y");
	return m;
}

static OnnxText *made_twice(void)
{
	OnnxText *m = build(&plain);
	model_op(m, "/again", "Relu", "x", "h");
	return m;
}

static OnnxText *two_outputs(void)
{
	OnnxText *m = build(&plain);
	model_output(m, "h");
	return m;
}

typedef struct Model { const char *name; OnnxText *(*make)(void); } Model;
#define MODEL(name) {#name, name}
static const Model models[] = {
	MODEL(good), MODEL(hostile_names), MODEL(name_not_utf8), MODEL(name_reserved), MODEL(cycle),
	MODEL(missing_input), MODEL(unknown_op), MODEL(wrong_arity), MODEL(new_opset), MODEL(new_ir_version),
	MODEL(string_input), MODEL(integer_input), MODEL(unknown_dtype), MODEL(negative_dim), MODEL(zero_dim),
	MODEL(overflowing_dims), MODEL(huge_dim), MODEL(large_dim), MODEL(inner_dims_differ), MODEL(external),
	MODEL(external_short), MODEL(external_past), MODEL(external_length), MODEL(external_negative),
	MODEL(external_missing), MODEL(external_absolute), MODEL(external_leaves), MODEL(external_folder),
	MODEL(short_initializer), MODEL(reshape_overflows), MODEL(made_twice), MODEL(two_outputs), MODEL(wide),
	MODEL(table), MODEL(signal_classes), MODEL(places), MODEL(fixed_batch), MODEL(own_loss), MODEL(ranges),
	MODEL(lookup), MODEL(lookup_texts), MODEL(steps_first), MODEL(compared), MODEL(pairs),
	MODEL(gelu),
};

/* ---- the commands ---- */

static int put_onnx(const char *name)
{
	for (int i = 0; i < COUNT_OF(models); i++) {
		if (strcmp(models[i].name, name))
			continue;
		Buf b = model_bytes(models[i].make());
		bool ok = fwrite(b.at, 1, b.n, stdout) == b.n;
		buf_free(&b);
		return !ok;
	}
	fprintf(stderr, "models: there is no model \"%s\"\n", name);
	return 2;
}

/* Elements are 0.25 k or k, k = 0, 1, 2, 0, ..: labels of three classes too. */
static int put_npy(const char *descr, const char *order, const char *shape, long long bytes)
{
	char dict[256];
	int n = snprintf(dict, sizeof(dict), "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }", descr, order, shape);
	int padded = (int)round_up(10 + n + 1, 64) - 10;
	printf("%cNUMPY%c%c%c%c%s%*s\n", 0x93, 1, 0, padded & 0xff, padded >> 8, dict, padded - n - 1, "");
	int size = MAX(atoi(descr + 2), 1);
	for (long long i = 0; i * size < bytes; i++) {
		char raw[16] = {(char)(i % 3)};
		float f = (float)(i % 3) * 0.25f;
		if (!strcmp(descr, "<f4"))
			memcpy(raw, &f, sizeof(f));
		fwrite(raw, 1, (size_t)MIN(size, 16), stdout);
	}
	return 0;
}

static int put_flipped(const char *path, uint64_t seed, int count)
{
	FILE *f = fopen(path, "rb");
	Buf b = {0};
	char chunk[4096];
	for (size_t n; f && (n = fread(chunk, 1, sizeof(chunk), f)) > 0;)
		buf_put(&b, chunk, n);
	if (!f || !b.n)
		return 2;
	fclose(f);
	for (int i = 0; i < count; i++) {
		uint64_t r = hash_bytes(&i, sizeof(i), seed);
		b.at[(r >> 8) % b.n] = (char)r;
	}
	bool ok = fwrite(b.at, 1, b.n, stdout) == b.n;
	buf_free(&b);
	return !ok;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "onnx") && argc == 3)
		return put_onnx(argv[2]);
	if (!strcmp(what, "chain") && argc == 4)
		return put_chain(argv[2], atoi(argv[3]));
	if (!strcmp(what, "npy") && argc == 6)
		return put_npy(argv[2], argv[3], argv[4], atoll(argv[5]));
	if (!strcmp(what, "flip") && argc == 5)
		return put_flipped(argv[2], strtoull(argv[3], NULL, 10), atoi(argv[4]));
	if (!strcmp(what, "checkpoint") && argc >= 5)
		return put_checkpoint(argv[2], atoi(argv[3]), atoi(argv[4]), argv + 5, argc - 5);
	for (int i = 0; i < COUNT_OF(models); i++)
		puts(models[i].name);
	return 0;
}
