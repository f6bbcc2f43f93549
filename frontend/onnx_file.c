/* frontend/onnx_file.c: maps an ONNX file and walks model, graph and initializers in place.
 *
 * A serialised message is read where it lies in the mapped file, so weights are never copied.  Only nodes, value infos
 * and functions are decoded by protobuf-c, from copies without doc strings, metadata that nobody reads and large
 * tensors.  Refuses files that are not ONNX models, truncated messages and unknown IR versions. */
#include "frontend/onnx_file.h"

#include <string.h>

#include "base/file.h"

enum { MODEL_IR_VERSION = 1, MODEL_PRODUCER = 2, MODEL_GRAPH = 7, MODEL_OPSET = 8,
	MODEL_METADATA = 14, MODEL_FUNCTION = 25 };
enum { GRAPH_NODE = 1, GRAPH_INIT = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12, GRAPH_INFO = 13,
	GRAPH_SPARSE_INIT = 15, GRAPH_METADATA = 16 };
enum { NODE_ATTRIBUTE = 5, NODE_METADATA = 9, ATTR_T = 5, ATTR_G = 6, ENTRY_KEY = 1, ENTRY_VALUE = 2 };
enum { IR_VERSION_MIN = 3, IR_VERSION_MAX = 14, NODE_COPY_MAX = 512, TENSOR_COPY_MAX = 1024 };

/* ---- files ---- */

FileMap *file_map(Arena *a, const char *path, const char *where, Diag *d)
{
	FileView view;
	const char *why;
	if (!file_view(&view, path, &why)) {
		diag_error(d, where, "cannot open \"%s\": %s", path, why);
		return NULL;
	}
	FileMap *f = NEW(a, FileMap);
	f->path = arena_strdup(a, path);
	f->bytes = (Span){view.at, (size_t)view.bytes};
	return f;
}

void file_unmap(FileMap *f)
{
	if (f)
		file_view_close(&(FileView){f->bytes.at, (int64_t)f->bytes.n});
}

/* ---- the wire format ---- */

bool wire_varint(Span *rest, uint64_t *out)
{
	uint64_t v = 0;
	for (size_t i = 0; i < rest->n && i < 10; i++) {
		v |= (uint64_t)(rest->at[i] & 0x7f) << (7 * i);
		if (!(rest->at[i] & 0x80)) {
			rest->at += i + 1;
			rest->n -= i + 1;
			*out = v;
			return true;
		}
	}
	return false;
}

static bool take(Wire *w, uint64_t n, Span *out)
{
	if (n > w->rest.n)
		return false;
	*out = (Span){w->rest.at, (size_t)n};
	w->rest.at += n;
	w->rest.n -= (size_t)n;
	return true;
}

static bool wire_value(Wire *w)
{
	uint64_t n;
	Span s;
	switch (w->type) {
	case 0:
		return wire_varint(&w->rest, &w->value);
	case 1: case 5:
		if (!take(w, w->type == 1 ? 8 : 4, &s))
			return false;
		w->value = 0;
		memcpy(&w->value, s.at, s.n);
		return true;
	case 2:
		return wire_varint(&w->rest, &n) && take(w, n, &w->bytes);
	default:
		return false;
	}
}

bool wire_next(Wire *w)
{
	uint64_t tag;
	if (w->bad || !w->rest.n)
		return false;
	w->bad = !wire_varint(&w->rest, &tag) || tag >> 3 == 0 || tag >> 3 > INT32_MAX;
	if (!w->bad) {
		w->field = (int)(tag >> 3);
		w->type = (int)(tag & 7);
		w->bytes = (Span){0};
		w->bad = !wire_value(w);
	}
	return !w->bad;
}

const char *wire_str(Arena *a, Span s)
{
	return s.n ? arena_strndup(a, (const char *)s.at, s.n) : "";
}

/* ---- nodes ---- */

static void *pb_alloc(void *arena, size_t n)
{
	return arena_alloc(arena, n);
}

static void pb_free(void *arena, void *p)
{
	(void)arena;
	(void)p;
}

static void put_varint(Buf *b, uint64_t v)
{
	do {
		char byte = (char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
		buf_put(b, &byte, 1);
	} while (v >>= 7);
}

static void put_bytes(Buf *b, int field, Span s)
{
	put_varint(b, (uint64_t)field << 3 | 2);
	put_varint(b, s.n);
	if (s.n)
		buf_put(b, (const char *)s.at, s.n);
}

/* Whether a StringStringEntryProto has this key; if so, *value is set to the bytes of its value. */
static bool entry_is(Span entry, const char *key, Span *value)
{
	bool found = false;
	*value = (Span){0};
	for (Wire w = wire_of(entry); wire_next(&w);) {
		if (w.field == ENTRY_KEY)
			found = w.bytes.n == strlen(key) && !memcmp(w.bytes.at, key, w.bytes.n);
		if (w.field == ENTRY_VALUE && w.type == 2)
			*value = w.bytes;
	}
	return found;
}

static bool wanted_metadata(Span entry)
{
	static const char *const keys[] = {"pkg.torch.onnx.name_scopes", "pkg.torch.onnx.fx_node",
		"pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.stack_trace", "pkg.onnxscript.rewriter.rule_name"};
	Span value;
	for (int i = 0; i < COUNT_OF(keys); i++)
		if (entry_is(entry, keys[i], &value))
			return true;
	return false;
}

/* The message in an attribute whose bytes stay where they are: a large tensor, or a graph.  field: 0 = none. */
typedef struct InPlace { int attribute, field; Span bytes; } InPlace;

static bool stays_in_place(const Wire *w)
{
	return w->type == 2 && (w->field == ATTR_G || (w->field == ATTR_T && w->bytes.n > TENSOR_COPY_MAX));
}

/* Copies an attribute to *node, all but the bytes of its first large tensor or graph. */
static bool put_attribute(Buf *node, Span attribute, InPlace *kept)
{
	Buf b = {0};
	Wire w = wire_of(attribute);
	const uint8_t *at = w.rest.at;
	for (; wire_next(&w); at = w.rest.at) {
		if (stays_in_place(&w) && !kept->field) {
			kept->field = w.field;
			kept->bytes = w.bytes;
			put_bytes(&b, w.field, (Span){at, 0});
		} else {
			buf_put(&b, (const char *)at, (size_t)(w.rest.at - at));
		}
	}
	put_bytes(node, NODE_ATTRIBUTE, (Span){(const uint8_t *)b.at, b.n});
	buf_free(&b);
	return !w.bad;
}

static Onnx__NodeProto *unpack_node(OnnxModel *m, Span bytes)
{
	return onnx__node_proto__unpack(&m->allocator, bytes.n, bytes.at);
}

static Onnx__NodeProto *walk_large_node(OnnxModel *m, Span bytes)
{
	VEC(InPlace) kept = {0};
	Buf b = {0};
	Wire w = wire_of(bytes);
	int n_attributes = 0;
	const uint8_t *at = w.rest.at;
	for (; wire_next(&w); at = w.rest.at) {
		InPlace message = {.attribute = n_attributes};
		if (w.field == NODE_METADATA && !wanted_metadata(w.bytes))
			continue;
		if (w.field != NODE_ATTRIBUTE) {
			buf_put(&b, (const char *)at, (size_t)(w.rest.at - at));
			continue;
		}
		w.bad = w.type != 2 || !put_attribute(&b, w.bytes, &message);
		if (message.field)
			vec_push(m->arena, &kept, message);
		n_attributes++;
	}
	Onnx__NodeProto *node = w.bad ? NULL : unpack_node(m, (Span){(const uint8_t *)b.at, b.n});
	for (int i = 0; node && i < kept.n; i++) {
		Onnx__AttributeProto *a = node->attribute[kept.at[i].attribute];
		ProtobufCBinaryData *to = kept.at[i].field == ATTR_T ? &a->t : &a->g;
		to->data = (uint8_t *)(uintptr_t)kept.at[i].bytes.at; /* only read */
		to->len = kept.at[i].bytes.n;
	}
	buf_free(&b);
	return node;
}

static Onnx__NodeProto *walk_node(OnnxModel *m, Span bytes)
{
	Onnx__NodeProto *node = bytes.n > NODE_COPY_MAX ? NULL : unpack_node(m, bytes);
	bool copied = node != NULL;
	for (size_t i = 0; copied && i < node->n_attribute; i++)
		copied = !node->attribute[i]->g.len;
	return copied ? node : walk_large_node(m, bytes);
}

/* ---- graph and model ---- */

static bool walk_info(OnnxModel *m, Span bytes, OnnxInfoVec *to)
{
	Onnx__ValueInfoProto *v = onnx__value_info_proto__unpack(&m->allocator, bytes.n, bytes.at);
	if (v)
		vec_push(m->arena, to, v);
	return v;
}

static bool walk_graph_field(OnnxModel *m, const Wire *w, OnnxGraph *out, Diag *d)
{
	Onnx__NodeProto *node;
	OnnxTensor tensor;
	Span value;
	switch (w->field) {
	case GRAPH_NODE:
		if ((node = walk_node(m, w->bytes)))
			vec_push(m->arena, &out->nodes, node);
		return node;
	case GRAPH_INIT:
		if (!onnx_tensor_parse(m->arena, m->file, w->bytes, &tensor))
			return false;
		vec_push(m->arena, &out->tensors, tensor);
		return true;
	case GRAPH_INPUT: return walk_info(m, w->bytes, &out->inputs);
	case GRAPH_OUTPUT: return walk_info(m, w->bytes, &out->outputs);
	case GRAPH_INFO: return walk_info(m, w->bytes, &out->infos);
	case GRAPH_SPARSE_INIT:
		diag_error(d, m->path, "sparse initializers are not supported");
		return true;
	case GRAPH_METADATA:
		if (w->type == 2 && entry_is(w->bytes, "pkg.torch.export.ExportedProgram.graph_signature", &value))
			out->signature = value;
		return true;
	default: return true;
	}
}

static const char *const graph_parts[] = {
	[GRAPH_NODE] = "node", [GRAPH_INIT] = "initializer", [GRAPH_INPUT] = "input", [GRAPH_OUTPUT] = "output",
	[GRAPH_INFO] = "value info",
};

static bool walk_graph(OnnxModel *m, Span bytes, OnnxGraph *out, Diag *d)
{
	int count[GRAPH_INFO + 1] = {0};
	Wire w = wire_of(bytes);
	while (wire_next(&w)) {
		int part = w.field <= GRAPH_INFO && graph_parts[w.field] ? w.field : 0;
		if (part && (w.type != 2 || !walk_graph_field(m, &w, out, d))) {
			diag_error(d, m->path, "%s %d of the graph is malformed (%zu bytes)", graph_parts[part],
				count[part], w.bytes.n);
			return false;
		}
		if (!part)
			walk_graph_field(m, &w, out, d);
		count[part]++;
	}
	if (w.bad)
		diag_error(d, m->path, "malformed graph: it ends %zu bytes early or holds a bad field", w.rest.n);
	return !w.bad;
}

const OnnxGraph *onnx_subgraph(OnnxModel *m, const Onnx__AttributeProto *a, Diag *d)
{
	typedef struct { bool good; OnnxGraph graph; } Walked;
	static const OnnxGraph empty;
	if (!a->g.len)
		return &empty;
	Walked *w = ptrmap_get(m->subgraphs, a->g.data);
	if (!w) {
		w = NEW(m->arena, Walked);
		ptrmap_put(m->subgraphs, a->g.data, w);
		w->good = walk_graph(m, (Span){a->g.data, a->g.len}, &w->graph, d);
	}
	return w->good ? &w->graph : NULL;
}

static bool walk_model_field(OnnxModel *m, const Wire *w, Span *graph, int *n_graphs)
{
	if (w->field == MODEL_IR_VERSION && w->type == 0)
		m->ir_version = (int64_t)w->value;
	if (w->type != 2)
		return true;
	if (w->field == MODEL_PRODUCER)
		m->producer = wire_str(m->arena, w->bytes);
	if (w->field == MODEL_GRAPH) {
		*graph = w->bytes;
		++*n_graphs;
	}
	Span value;
	if (w->field == MODEL_METADATA && entry_is(w->bytes, "shardc", &value)) {
		m->metadata = value;
		m->n_metadata++;
	}
	if (w->field == MODEL_OPSET) {
		Onnx__OperatorSetIdProto *o =
			onnx__operator_set_id_proto__unpack(&m->allocator, w->bytes.n, w->bytes.at);
		if (!o)
			return false;
		vec_push(m->arena, &m->opsets, ((OnnxOpset){o->domain ? o->domain : "", o->version}));
	}
	if (w->field == MODEL_FUNCTION) {
		Onnx__FunctionProto *f = onnx__function_proto__unpack(&m->allocator, w->bytes.n, w->bytes.at);
		if (!f)
			return false;
		vec_push(m->arena, &m->functions, f);
	}
	return true;
}

static bool walk_model(OnnxModel *m, Diag *d)
{
	Span graph = {0};
	int n_graphs = 0;
	Wire w = wire_of(m->file->bytes);
	bool good = true;
	while (good && wire_next(&w))
		good = walk_model_field(m, &w, &graph, &n_graphs);
	if (!good || w.bad) {
		diag_error(d, m->path, "not an ONNX model, or cut short: bad bytes near offset %zu of %zu",
			m->file->bytes.n - w.rest.n, m->file->bytes.n);
		return false;
	}
	if (!n_graphs) {
		diag_error(d, m->path, "not an ONNX model: it holds no graph");
		return false;
	}
	if (n_graphs > 1) {
		diag_error(d, m->path, "not an ONNX model: it holds %d graphs, as joined files do; one was expected", n_graphs);
		return false;
	}
	if (m->ir_version < IR_VERSION_MIN || m->ir_version > IR_VERSION_MAX) {
		diag_error(d, m->path, "IR version %lld is not one of %d..%d", (long long)m->ir_version,
			IR_VERSION_MIN, IR_VERSION_MAX);
		return false;
	}
	return walk_graph(m, graph, &m->graph, d);
}

OnnxModel *onnx_model_open(const char *path, Arena *a, Diag *d)
{
	OnnxModel *m = NEW(a, OnnxModel);
	const char *slash = strrchr(path, '/');
	m->arena = a;
	m->renamed = map_new(a);
	m->subgraphs = ptrmap_new(a);
	m->path = arena_strdup(a, path);
	m->dir = slash ? arena_strndup(a, path, (size_t)(slash + 1 - path)) : "";
	m->producer = "";
	m->allocator = (ProtobufCAllocator){pb_alloc, pb_free, a};
	m->file = file_map(a, path, path, d);
	if (!m->file)
		return NULL;
	if (!m->file->bytes.n)
		diag_error(d, path, "the file is empty");
	if (!m->file->bytes.n || !walk_model(m, d)) {
		onnx_model_close(m);
		return NULL;
	}
	return m;
}

void onnx_model_close(OnnxModel *m)
{
	if (!m)
		return;
	file_unmap(m->file);
	for (int i = 0; i < m->external.n; i++)
		file_unmap(m->external.at[i]);
}
