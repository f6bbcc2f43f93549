/* tests/unit/onnx_model.c: see onnx_model.h. */
#include "tests/unit/onnx_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the wire format ---- */

static void varint(Buf *b, uint64_t v)
{
	do {
		char c = (char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
		buf_put(b, &c, 1);
	} while (v >>= 7);
}

void pb_int(Buf *b, int field, int64_t v)
{
	varint(b, (uint64_t)field << 3);
	varint(b, (uint64_t)v);
}

void pb_bytes(Buf *b, int field, const void *p, size_t n)
{
	varint(b, (uint64_t)field << 3 | 2);
	varint(b, n);
	buf_put(b, p, n);
}

void pb_str(Buf *b, int field, const char *s)
{
	pb_bytes(b, field, s, strlen(s));
}

void pb_msg(Buf *b, int field, Buf *msg)
{
	pb_bytes(b, field, msg->at ? msg->at : "", msg->n);
	buf_free(msg);
	*msg = (Buf){0};
}

static void put_list(Buf *b, int field, const char *list)
{
	for (const char *s = list; *list && s;) {
		const char *end = strchr(s, ',');
		pb_bytes(b, field, s, end ? (size_t)(end - s) : strlen(s));
		s = end ? end + 1 : NULL;
	}
}

/* ---- parts ---- */

OnnxText *model_new(void)
{
	OnnxText *m = calloc(1, sizeof(*m));
	m->ir_version = 10;
	m->opset = 18;
	m->producer = "pytorch";
	pb_str(&m->graph, 2, "g");
	return m;
}

Buf node_text(const char *name, const char *op, const char *in, const char *out)
{
	Buf b = {0};
	put_list(&b, 1, in);
	put_list(&b, 2, out);
	pb_str(&b, 3, name);
	pb_str(&b, 4, op);
	return b;
}

static void put_attr(Buf *node, const char *name, int type, Buf *value)
{
	Buf a = {0};
	pb_str(&a, 1, name);
	pb_int(&a, 20, type);
	buf_put(&a, value->at, value->n);
	buf_free(value);
	pb_msg(node, 5, &a);
}

void attr_i(Buf *node, const char *name, int64_t v)
{
	Buf b = {0};
	pb_int(&b, 3, v);
	put_attr(node, name, 2, &b);
}

void attr_f(Buf *node, const char *name, float v)
{
	Buf b = {0};
	varint(&b, 2 << 3 | 5);
	buf_put(&b, (const char *)&v, sizeof(v));
	put_attr(node, name, 1, &b);
}

void attr_s(Buf *node, const char *name, const char *v)
{
	Buf b = {0};
	pb_str(&b, 4, v);
	put_attr(node, name, 3, &b);
}

void attr_is(Buf *node, const char *name, int n, const int64_t *v)
{
	Buf b = {0};
	for (int i = 0; i < n; i++)
		pb_int(&b, 8, v[i]);
	put_attr(node, name, 7, &b);
}

void attr_ref(Buf *node, const char *name, const char *of)
{
	Buf b = {0};
	pb_str(&b, 21, of);
	put_attr(node, name, 2, &b);
}

void attr_graph(Buf *node, const char *name, Buf *graph)
{
	Buf b = {0};
	pb_msg(&b, 6, graph);
	put_attr(node, name, 5, &b);
}

static void put_entry(Buf *b, int field, const char *key, const char *value)
{
	Buf e = {0};
	pb_str(&e, 1, key);
	pb_str(&e, 2, value);
	pb_msg(b, field, &e);
}

void node_metadata(Buf *node, const char *key, const char *value)
{
	put_entry(node, 9, key, value);
}

void node_fx(Buf *node, const char *result, const char *call)
{
	char trace[256];
	int name = (int)strcspn(call, "(");
	snprintf(trace, sizeof(trace),
		"%%%s : [num_users=1] = call_function[target=torch.ops.aten.%.*s](args = %s, kwargs = {})", result, name, call,
		call + name);
	node_metadata(node, "pkg.torch.onnx.fx_node", trace);
}

void node_scope(Buf *node, const char *scope)
{
	char scopes[128];
	snprintf(scopes, sizeof(scopes), "['', '%s', 'op']", scope);
	node_metadata(node, "pkg.torch.onnx.name_scopes", scopes);
}

void model_node(OnnxText *m, Buf node)
{
	pb_msg(&m->graph, 1, &node);
}

void model_op(OnnxText *m, const char *name, const char *op, const char *in, const char *out)
{
	model_node(m, node_text(name, op, in, out));
}

/* Dims that are numbers get a value, others a name; "" stands for a scalar. */
static Buf shape_text(const char *dims)
{
	Buf shape = {0};
	for (const char *s = dims; *dims && s;) {
		const char *end = strchr(s, ',');
		size_t n = end ? (size_t)(end - s) : strlen(s);
		Buf dim = {0};
		if (*s == '-' || (*s >= '0' && *s <= '9'))
			pb_int(&dim, 1, strtoll(s, NULL, 10));
		else
			pb_bytes(&dim, 2, s, n);
		pb_msg(&shape, 1, &dim);
		s = end ? end + 1 : NULL;
	}
	return shape;
}

void model_input(OnnxText *m, const char *name, int dtype, const char *dims)
{
	Buf info = {0}, type = {0}, tensor = {0}, shape = shape_text(dims);
	pb_str(&info, 1, name);
	pb_int(&tensor, 1, dtype);
	pb_msg(&tensor, 2, &shape);
	pb_msg(&type, 1, &tensor);
	pb_msg(&info, 2, &type);
	pb_msg(&m->graph, 11, &info);
}

void model_output(OnnxText *m, const char *name)
{
	Buf info = {0};
	pb_str(&info, 1, name);
	pb_msg(&m->graph, 12, &info);
}

static Buf tensor_text(const char *name, int dtype, const char *dims, int64_t *numel)
{
	Buf t = {0};
	*numel = 1;
	for (const char *s = dims; *dims && s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) {
		pb_int(&t, 1, strtoll(s, NULL, 10));
		*numel *= strtoll(s, NULL, 10);
	}
	pb_int(&t, 2, dtype);
	pb_str(&t, 8, name);
	return t;
}

void model_floats(OnnxText *m, const char *name, const char *dims, int n, const float *v)
{
	int64_t numel;
	Buf t = tensor_text(name, 1, dims, &numel), raw = {0};
	for (int64_t i = 0; i < numel; i++)
		buf_put(&raw, (const char *)&v[i % n], sizeof(*v));
	pb_msg(&t, 9, &raw);
	pb_msg(&m->graph, 5, &t);
}

void model_ints(OnnxText *m, const char *name, int n, const int64_t *v)
{
	int64_t numel;
	char dims[16];
	snprintf(dims, sizeof(dims), "%d", n);
	Buf t = tensor_text(name, 7, dims, &numel);
	pb_bytes(&t, 9, v, sizeof(*v) * (size_t)n);
	pb_msg(&m->graph, 5, &t);
}

void model_external(OnnxText *m, const char *name, const char *dims, const char *location, const char *offset,
	const char *length)
{
	int64_t numel;
	Buf t = tensor_text(name, 1, dims, &numel);
	put_entry(&t, 13, "location", location);
	if (offset)
		put_entry(&t, 13, "offset", offset);
	if (length)
		put_entry(&t, 13, "length", length);
	pb_int(&t, 14, 1);
	pb_msg(&m->graph, 5, &t);
}

void model_info(OnnxText *m, const char *name, const char *key, const char *value)
{
	Buf info = {0};
	pb_str(&info, 1, name);
	put_entry(&info, 4, key, value);
	pb_msg(&m->graph, 13, &info);
}

void function_node(Buf *function, Buf node)
{
	pb_msg(function, 7, &node);
}

void model_signature(OnnxText *m, const char *lines)
{
	Buf entry = {0};
	pb_str(&entry, 1, "pkg.torch.export.ExportedProgram.graph_signature");
	pb_str(&entry, 2, lines);
	pb_msg(&m->graph, 16, &entry);
}

void model_metadata(OnnxText *m, const char *key, const char *value)
{
	Buf entry = {0};
	pb_str(&entry, 1, key);
	pb_str(&entry, 2, value);
	pb_msg(&m->metadata, 14, &entry);
}

void model_function(OnnxText *m, Buf function)
{
	pb_msg(&m->functions, 25, &function);
}

Buf model_bytes(OnnxText *m)
{
	Buf b = {0}, opset = {0};
	pb_int(&b, 1, m->ir_version);
	pb_str(&b, 2, m->producer);
	pb_int(&opset, 2, m->opset);
	pb_msg(&b, 8, &opset);
	if (m->domain) {
		pb_str(&opset, 1, m->domain);
		pb_int(&opset, 2, 1);
		pb_msg(&b, 8, &opset);
	}
	pb_msg(&b, 7, &m->graph);
	buf_put(&b, m->functions.at ? m->functions.at : "", m->functions.n);
	buf_free(&m->functions);
	buf_put(&b, m->metadata.at ? m->metadata.at : "", m->metadata.n);
	buf_free(&m->metadata);
	free(m);
	return b;
}

OnnxText *model_of_op(const char *node, const char *op, const char *x, const char *tensor, const char *dims)
{
	static const float ramp[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
	char in[64];
	OnnxText *m = model_new();
	snprintf(in, sizeof(in), "x,%s", tensor);
	model_input(m, "x", 1, x);
	model_floats(m, tensor, dims, COUNT_OF(ramp), ramp);
	model_op(m, node, op, in, "y");
	model_output(m, "y");
	return m;
}

/* ---- loading ---- */

static char folder[] = "/tmp/test_onnx_" "XX" "XX" "XX";

static void remove_folder(void)
{
	static const char *const files[] = {"model.onnx", "weights.bin"};
	char path[64];
	for (int i = 0; i < COUNT_OF(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
		unlink(path);
	}
	rmdir(folder);
}

const char *model_folder(void)
{
	static bool made;
	if (!made) {
		if (!mkdtemp(folder))
			ice("cannot make %s", folder);
		atexit(remove_folder);
		made = true;
	}
	return folder;
}

Loaded load_bytes(const void *p, size_t n, const FrontendOptions *o)
{
	static const FrontendOptions none;
	Loaded l = {0};
	size_t n_log = 0;
	char path[64];
	snprintf(path, sizeof(path), "%s/model.onnx", model_folder());
	FILE *f = fopen(path, "wb");
	if (!f || fwrite(p, 1, n, f) != n || fclose(f))
		ice("cannot write %s", path);
	Diag d = {.out = open_memstream(&l.log, &n_log), .verbose = true};
	l.m = onnx_load(path, o ? o : &none, &d);
	l.errors = d.errors;
	fclose(d.out);
	return l;
}

Loaded load_model(OnnxText *m, const FrontendOptions *o)
{
	Buf b = model_bytes(m);
	Loaded l = load_bytes(b.at, b.n, o);
	buf_free(&b);
	return l;
}

void loaded_free(Loaded *l)
{
	ir_module_free(l->m);
	free(l->log);
}

const Op *find_op(const Module *m, OpKind kind)
{
	IR_FOR_OPS(m, SEC_FORWARD, op)
		if (op->kind == kind)
			return op;
	return NULL;
}

int count_ops(const Module *m, OpKind kind)
{
	int n = 0;
	IR_FOR_OPS(m, SEC_FORWARD, op)
		n += op->kind == kind;
	return n;
}
