/* tests/fuzz/made.c: ONNX models that are well formed as files and made by an input's bytes: ops of the table with
 * attributes and integer operands that exporters never write (sizes, pads, strides, axes and bounds at the ends of
 * int64), through the whole pipeline: a plan, or a message.
 *
 * Bytes that are used up read as zeros, so that every input is a model. */
#include <math.h>

#include "tests/fuzz/pass_options.h"
#include "tests/unit/onnx_model.h"

typedef struct Bytes { const uint8_t *at, *end; } Bytes;

static uint32_t take(Bytes *b, uint32_t n)
{
	return b->at < b->end ? *b->at++ % n : 0;
}

static const char *const ops[] = {
#define ONNX_OP(op, since, until, importer) #op,
#include "frontend/onnx_ops.def"
};
static const int64_t sizes[] = {2, 3, 1, 4, 0, 5, 6, 8, 64, 1000, INT32_MAX, (int64_t)1 << 31, (int64_t)1 << 40,
	(int64_t)1 << 62, INT64_MAX};
static const int64_t numbers[] = {0, 1, 2, 3, -1, -2, 4, -3, 5, 7, 8, -4, -5, 16, 64, INT32_MAX, INT32_MIN,
	(int64_t)1 << 31, (int64_t)1 << 32, (int64_t)1 << 62, INT64_MAX - 1, INT64_MAX, INT64_MIN + 1, INT64_MIN};
static const char *const int_attrs[] = {"axis", "keepdims", "group", "to", "transA", "transB", "k", "largest",
	"ceil_mode", "batch_dims", "num_outputs", "noop_with_empty_axes", "exclusive", "reverse", "training_mode",
	"count_include_pad", "blocksize", "stash_type", "is_causal", "q_num_heads", "kv_num_heads", "interleaved",
	"num_heads", "rotary_embedding_dim", "num_groups", "start", "end", "allowzero", "upper", "storage_order"};
static const char *const list_attrs[] = {"axes", "perm", "shape", "pads", "strides", "dilations", "kernel_shape",
	"starts", "ends", "split", "output_padding", "output_shape", "repeats", "value_ints"};
static const char *const float_attrs[] = {"alpha", "beta", "epsilon", "value", "low", "high", "ratio", "scale", "bias",
	"lambd", "gamma", "cubic_coeff_a", "extrapolation_value", "momentum", "softcap", "min", "max"};
static const float floats[] = {0, 1, -1, 0.5f, 2, 1e-5f, 3e38f, -3e38f, 1e19f, -1e19f, (float)INFINITY, (float)NAN};
static const struct { const char *name, *value; } text_attrs[] = {{"mode", "reflect"}, {"mode", "edge"},
	{"mode", "wrap"}, {"mode", "linear"}, {"mode", "cubic"}, {"mode", "CRD"}, {"auto_pad", "SAME_UPPER"},
	{"auto_pad", "SAME_LOWER"}, {"auto_pad", "VALID"}, {"keep_aspect_ratio_policy", "not_larger"},
	{"keep_aspect_ratio_policy", "not_smaller"}, {"coordinate_transformation_mode", "align_corners"},
	{"coordinate_transformation_mode", "tf_crop_and_resize"}, {"reduction", "sum"}, {"reduction", "add"},
	{"reduction", "max"}, {"equation", "ii->i"}, {"equation", "ij,jk->ik"}, {"equation", "...i,...i->..."},
	{"direction", "LEFT"}, {"approximate", "tanh"}};
static const int types[] = {1, 1, 1, 7, 6, 9, 10, 11, 16}; /* of TensorProto: mostly f32 */

enum { MAX_VALUES = 24, MAX_NODES = 5 };
typedef struct Names { char at[MAX_VALUES][8]; int n; } Names;

static const char *add_name(Names *v, char letter)
{
	snprintf(v->at[v->n], sizeof(v->at[0]), "%c%d", letter, v->n);
	return v->at[v->n++];
}

static void add_input(OnnxText *m, Bytes *b, Names *v)
{
	char dims[160] = "";
	int rank = (int)take(b, 6), at = 0;
	for (int i = 0; i < rank; i++)
		at += snprintf(dims + at, sizeof(dims) - (size_t)at, "%s%lld", i ? "," : "",
			(long long)sizes[take(b, COUNT_OF(sizes))]);
	model_input(m, add_name(v, 'x'), types[take(b, COUNT_OF(types))], dims);
}

static int take_list(Bytes *b, int64_t *list)
{
	int n = (int)take(b, 9);
	for (int i = 0; i < n; i++)
		list[i] = numbers[take(b, COUNT_OF(numbers))];
	return n;
}

static void add_attrs(Bytes *b, Buf *node)
{
	int64_t list[8];
	for (uint32_t k = take(b, 5); k; k--) {
		uint32_t kind = take(b, 8);
		if (kind == 7) {
			attr_f(node, float_attrs[take(b, COUNT_OF(float_attrs))], floats[take(b, COUNT_OF(floats))]);
		} else if (kind == 6) {
			uint32_t i = take(b, COUNT_OF(text_attrs));
			attr_s(node, text_attrs[i].name, text_attrs[i].value);
		} else if (kind % 2) {
			const char *name = list_attrs[take(b, COUNT_OF(list_attrs))];
			int n = take_list(b, list);
			attr_is(node, name, n, list);
		} else {
			const char *name = int_attrs[take(b, COUNT_OF(int_attrs))];
			attr_i(node, name, numbers[take(b, COUNT_OF(numbers))]);
		}
	}
}

/* An operand: a value made before, none, a weight, or integers. */
static const char *operand(OnnxText *m, Bytes *b, Names *v)
{
	static const char *const dims[] = {"2", "3", "2,3", "4,2,3,3", "8,8", "1", ""};
	static const float ramp[] = {0.5f, -1, 2};
	int64_t list[8];
	uint32_t kind = take(b, 8);
	if (kind == 0 || v->n + 2 >= MAX_VALUES)
		return "";
	if (kind == 1) {
		const char *name = add_name(v, 'w');
		const char *shape = dims[take(b, COUNT_OF(dims))];
		model_floats(m, name, shape, COUNT_OF(ramp), take(b, 8) == 7 ? floats + take(b, COUNT_OF(floats) - 2) : ramp);
		return name;
	}
	if (kind <= 3) {
		const char *name = add_name(v, 'i');
		int n = take_list(b, list);
		model_ints(m, name, n, list);
		return name;
	}
	return v->at[take(b, (uint32_t)v->n)];
}

static void add_node(OnnxText *m, Bytes *b, Names *v)
{
	const char *op = ops[take(b, COUNT_OF(ops))];
	char in[64] = "", name[16];
	int at = 0;
	for (uint32_t k = 0, n = 1 + take(b, 5); k < n; k++)
		at += snprintf(in + at, sizeof(in) - (size_t)at, "%s%s", k ? "," : "", operand(m, b, v));
	if (v->n == MAX_VALUES)
		return;
	snprintf(name, sizeof(name), "/a/n%d", v->n);
	Buf node = node_text(name, op, in, add_name(v, 'y'));
	add_attrs(b, &node);
	model_node(m, node);
}

static OnnxText *make(Bytes *b)
{
	static const int opsets[] = {18, 13, 11, 9, 7, 20, 22, 24, 10, 6};
	OnnxText *m = model_new();
	Names v = {0};
	m->opset = opsets[take(b, COUNT_OF(opsets))];
	for (uint32_t k = take(b, 3); k != UINT32_MAX; k--)
		add_input(m, b, &v);
	for (uint32_t k = take(b, MAX_NODES); k != UINT32_MAX; k--)
		add_node(m, b, &v);
	model_output(m, v.at[v.n - 1]);
	return m;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	Options o = fuzz_options(fuzz_hash(bytes, n));
	PipelineView view = {0};
	FrontendOptions fo = {0};
	Bytes b = {bytes, bytes + n};
	Buf text = model_bytes(make(&b));
	FuzzFile f = fuzz_file(text.at, text.n);
	FuzzLog *log = fuzz_log();
	Module *m = onnx_load(f.path, &fo, &log->d);
	if (!m != (log->d.errors > 0))
		abort();
	if (m)
		pipeline_run(m, &o, &view, NULL, &log->d);
	ir_module_free(m);
	fuzz_log_free(log);
	buf_free(&text);
	close(f.fd);
	return 0;
}
