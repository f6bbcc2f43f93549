/* frontend/onnx_write.c: writes values of parameters and buffers back into their model.
 *
 * The model is walked in its serialised form, and most of the output consists of spans of the input.  Only fields that
 * hold weights, the nodes that read untied tensors, and the lengths of the messages around them are written anew.
 *
 * Refuses, naming the tensor: an untied tensor that functions or subgraphs read as two parameters, a parameter that the
 * body of a function lacks, bytes that two tensors share in part, and output files that are files of the input. */
#include "frontend/onnx_write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/unfinished.h"
#include "frontend/onnx_data.h"
#include "frontend/onnx_import.h"

enum { MODEL_GRAPH = 7, MODEL_FUNCTION = 25, GRAPH_NODE = 1, GRAPH_INIT = 5, NODE_INPUT = 1, NODE_ATTRIBUTE = 5,
	ATTR_T = 5, ATTR_G = 6, ATTR_TENSORS = 10, ATTR_GRAPHS = 11, FUNCTION_NODE = 7 };
enum { T_DIMS = 1, T_TYPE = 2, T_FLOATS = 4, T_INT32 = 5, T_INT64 = 7, T_NAME = 8, T_RAW = 9, T_DOUBLES = 10,
	T_UINT64 = 11, T_EXTERNAL = 13, T_LOCATION = 14, ENTRY_KEY = 1, ENTRY_VALUE = 2 };
enum { EXTERNAL_BYTES = 1024, MAX_DEPTH = 64, SCOPED_INITS_FROM = 4 };

typedef VEC(const OnnxPlace *) Places;
typedef struct Added { const OnnxFill *fill; const Type *type; const char *name; } Added;
/* A new name for an operand of a node; next: further edits of the same node. */
typedef struct Edit { int operand; const char *name; const struct Edit *next; } Edit;

struct OnnxWriter {
	Arena *a;
	OnnxModel *onnx;
	Module *m;
	OnnxPlaceVec places;
	NameVec absent;
	Diag *d;
	/* the plan */
	OnnxStore store;
	PtrMap *homes;         /* OnnxTensor -> OnnxFill */
	PtrMap *inner;         /* where a tensor with a fill begins in the file -> OnnxTensor, for those of subgraphs */
	VEC(Added) added;
	PtrMap *edits, *gone;  /* edits: NodeProto -> Edit; gone: the set of NodeProtos that are left out */
	Map *names;            /* value of the graph -> NodeProto that computes it, or the writer for inputs and
	                          initializers */
	const char *data_name; /* the name of the data file beside the model */
	DataFile data;
};

/* ---- opening ---- */

OnnxWriter *onnx_writer_open(const char *path, const FrontendOptions *o, Diag *d)
{
	Arena *a = arena_new();
	OnnxWriter *w = NEW(a, OnnxWriter);
	FrontendOptions names = *o;
	names.shapes_only = names.init_elsewhere = true;
	*w = (OnnxWriter){.a = a, .onnx = onnx_model_open(path, a, d)};
	ImportExtra extra = {.places = &w->places, .absent = &w->absent};
	w->m = w->onnx ? import_model(w->onnx, &names, a, &extra, d) : NULL;
	if (w->m)
		return w;
	onnx_writer_close(w);
	return NULL;
}

void onnx_writer_close(OnnxWriter *w)
{
	onnx_model_close(w->onnx);
	if (w->m)
		ir_module_free(w->m);
	arena_free(w->a);
}

const Module *onnx_writer_module(const OnnxWriter *w)
{
	return w->m;
}

int onnx_writer_tensors(const OnnxWriter *w, Arena *a, const char *const **names)
{
	const OnnxGraph *g = &w->onnx->graph;
	const char **list = NEW_N(a, const char *, g->tensors.n + 1);
	for (int i = 0; i < g->tensors.n; i++)
		list[i] = arena_strdup(a, g->tensors.at[i].name);
	*names = list;
	return g->tensors.n;
}

static const char *where(const OnnxWriter *w, const char *what, const char *name)
{
	return arena_printf(w->a, "%s: %s \"%s\"", w->onnx->path, what, str_escape(w->a, ESCAPE_IR, name));
}

/* Whether "SCOPE.weight" can be a name of the symbol in module SCOPE.  It can if SCOPE is not the symbol's own module
 * and holds no modules: a module that holds others may compute with their weights. */
static bool is_module_name(const OnnxWriter *w, const Symbol *s, const char *name)
{
	size_t n = (size_t)(strrchr(name, '.') + 1 - name);
	for (int i = 0; i < w->m->n_symbols; i++) {
		const Symbol *other = w->m->symbols[i];
		bool in = (other->kind == SYM_PARAM || other->kind == SYM_BUFFER) && !strncmp(other->name, name, n);
		if (in && (other == s || strchr(other->name + n, '.') || !strcmp(other->name, name)))
			return false;
	}
	return true;
}

int onnx_writer_aliases(const OnnxWriter *w, const Symbol *s, Arena *a, const char *const **names)
{
	Map *found = map_new(a);
	for (int i = 0; w->onnx->n_metadata && i < s->n_aliases; i++)
		map_put(found, s->alias[i], found);
	for (int i = 0; i < w->places.n; i++) {
		const char *name = w->places.at[i].module_name;
		if (w->places.at[i].symbol == s && name && is_module_name(w, s, name))
			map_put(found, name, found);
	}
	const char **list = NEW_N(a, const char *, map_count(found) + 1);
	for (int i = 0; i < map_count(found); i++)
		list[i] = map_key(found, i);
	*names = list;
	return map_count(found);
}

int onnx_writer_absent(const OnnxWriter *w, const char *const **names)
{
	*names = w->absent.at;
	return w->absent.n;
}

bool onnx_writer_stored(const OnnxWriter *w, const char *name, HostTensor *out)
{
	const OnnxGraph *g = &w->onnx->graph;
	Diag quiet = {.max_errors = -1};
	Span at;
	const FileMap *file;
	for (int i = 0; i < g->tensors.n; i++) {
		const OnnxTensor *t = &g->tensors.at[i];
		if (strcmp(t->name, name) != 0)
			continue;
		bool plain = onnx_tensor_type(t, &out->type) && (t->has_raw || !t->typed);
		if (!plain || !onnx_tensor_bytes(w->onnx, t, &at, &file, &quiet))
			return false;
		out->data = at.at;
		return true;
	}
	return false;
}

/* ---- the plan: which symbol goes where ---- */

static bool is_pinned(const OnnxPlace *p)
{
	return p->inner || !p->node;
}

/* Of several symbols that one tensor became, the one that keeps the tensor. */
static const Symbol *keeper(OnnxWriter *w, const OnnxTensor *t, const Places *places)
{
	const Symbol *s = NULL, *pinned = NULL;
	for (int i = 0; i < places->n; i++) {
		const OnnxPlace *p = places->at[i];
		if (is_pinned(p) && pinned && p->symbol != pinned)
			diag_error(w->d, where(w, "tensor", t->name), "it was untied into \"%s\" and \"%s\", and cannot "
				"become two tensors: a function or subgraph reads it, or it is an output", pinned->name,
				p->symbol->name);
		pinned = is_pinned(p) ? p->symbol : pinned;
		s = !strcmp(p->symbol->name, t->name) ? p->symbol : s;
	}
	return pinned ? pinned : s ? s : places->at[0]->symbol;
}

static const OnnxFill *fill_of(OnnxWriter *w, const OnnxPlace *p, DType dtype)
{
	OnnxFill *f = NEW(w->a, OnnxFill);
	*f = (OnnxFill){p->symbol, dtype, p->transposed};
	return f;
}

static void collect_names(OnnxWriter *w)
{
	const OnnxGraph *g = &w->onnx->graph;
	w->names = map_new(w->a);
	for (int i = 0; i < g->inputs.n; i++)
		map_put(w->names, g->inputs.at[i]->name ? g->inputs.at[i]->name : "", w);
	for (int i = 0; i < g->tensors.n; i++)
		map_put(w->names, g->tensors.at[i].name, w);
	for (int i = 0; i < g->nodes.n; i++)
		for (size_t k = 0; k < g->nodes.at[i]->n_output; k++)
			map_put(w->names, g->nodes.at[i]->output[k], g->nodes.at[i]);
}

/* Whether the new tensor of s can take the place of an Identity whose result has the symbol's name.  Such a node stands
 * for a tensor that the exporter merged into another.  This needs all readers of the result to read s; then the
 * Identity is removed. */
static bool takes_place(OnnxWriter *w, const Symbol *s, const Places *places)
{
	void *by = map_get(w->names, s->name);
	const Onnx__NodeProto *node = by == w ? NULL : by;
	if (!places->n || !node || !node->op_type || strcmp(node->op_type, "Identity"))
		return false;
	for (int i = 0; i < places->n; i++) {
		const OnnxPlace *p = places->at[i];
		if (p->alias && !strcmp(p->alias, s->name) && (p->symbol != s || is_pinned(p)))
			return false;
	}
	ptrmap_put(w->gone, node, (void *)(uintptr_t)node);
	return true;
}

static const char *new_name(OnnxWriter *w, const Symbol *s, const Places *places)
{
	const char *name = s->name;
	if (map_has(w->names, name) && takes_place(w, s, places))
		return name;
	for (int k = 1; map_has(w->names, name); k++)
		name = arena_printf(w->a, "%s.%d", s->name, k);
	map_put(w->names, name, w);
	return name;
}

static void edit_operand(OnnxWriter *w, const OnnxPlace *p, const char *name)
{
	Edit *e = NEW(w->a, Edit);
	*e = (Edit){p->operand, name, ptrmap_get(w->edits, p->node)};
	ptrmap_put(w->edits, p->node, e);
}

static void add_tensor(OnnxWriter *w, const OnnxPlace *p, const Type *type, const char *name)
{
	if (w->onnx->ir_version < SCOPED_INITS_FROM)
		diag_error(w->d, where(w, "parameter", p->symbol->name), "the model lacks its tensor, and models of "
			"IR version %d cannot have tensors that are no inputs: convert it to version %d or newer",
			(int)w->onnx->ir_version, SCOPED_INITS_FROM);
	vec_push(w->a, &w->added, ((Added){fill_of(w, p, type->dtype), type, name}));
}

/* Plans where the symbols of one tensor go: one keeps the tensor, each of the others gets a new one. */
static void plan_tensor(OnnxWriter *w, const OnnxTensor *t, const Places *places)
{
	const Symbol *keeps = keeper(w, t, places);
	Map *made = map_new(w->a); /* symbol -> its tensor's name */
	Type *type = NEW(w->a, Type);
	onnx_tensor_type(t, type);
	for (int i = 0; i < places->n; i++) {
		const OnnxPlace *p = places->at[i];
		if (p->symbol == keeps) {
			ptrmap_put(w->homes, t, (void *)(uintptr_t)fill_of(w, p, type->dtype));
			ptrmap_put(w->inner, t->proto.at, (void *)(uintptr_t)t);
			continue;
		}
		if (!map_has(made, p->symbol->name)) {
			const char *name = new_name(w, p->symbol, places);
			map_put(made, p->symbol->name, (void *)(uintptr_t)name);
			add_tensor(w, p, type, name);
		}
		const char *name = map_get(made, p->symbol->name);
		if (!is_pinned(p) && strcmp(p->node->input[p->operand], name))
			edit_operand(w, p, name);
	}
}

/* Plans a parameter that the exporter dropped: it gets a tensor and becomes an operand of its node again. */
static void plan_restored(OnnxWriter *w, const OnnxPlace *p)
{
	Places none = {0};
	if (p->inner) {
		diag_error(w->d, where(w, "parameter", p->symbol->name), "the exporter dropped it from the body of a "
			"function or subgraph: it cannot be written back; export with optimize=False");
		return;
	}
	const char *name = new_name(w, p->symbol, &none);
	add_tensor(w, p, &p->symbol->type, name);
	edit_operand(w, p, name);
}

static void plan(OnnxWriter *w)
{
	PtrMap *lists = ptrmap_new(w->a), *written = ptrmap_new(w->a);
	VEC(const OnnxTensor *) tensors = {0};
	collect_names(w);
	for (int i = 0; i < w->places.n; i++) {
		const OnnxPlace *p = &w->places.at[i];
		ptrmap_put(written, p->symbol, w);
		if (!p->tensor) {
			plan_restored(w, p);
			continue;
		}
		Places *list = ptrmap_get(lists, p->tensor);
		if (!list) {
			list = NEW(w->a, Places);
			ptrmap_put(lists, p->tensor, list);
			vec_push(w->a, &tensors, p->tensor);
		}
		vec_push(w->a, list, p);
	}
	for (int i = 0; i < tensors.n; i++)
		plan_tensor(w, tensors.at[i], ptrmap_get(lists, tensors.at[i]));
	for (int i = 0; i < w->m->n_symbols; i++) {
		const Symbol *s = w->m->symbols[i];
		if ((s->kind == SYM_PARAM || s->kind == SYM_BUFFER) && !ptrmap_get(written, s))
			diag_error(w->d, where(w, "parameter", s->name), "no tensor of the model holds it as it is: it cannot be "
				"written back");
	}
}

/* ---- tensors ---- */

static void put_entry(OnnxWriter *w, Rope *out, const char *key, const char *value)
{
	Rope entry = {0};
	rope_string(w->a, &entry, ENTRY_KEY, key);
	rope_string(w->a, &entry, ENTRY_VALUE, value);
	rope_message(w->a, out, T_EXTERNAL, &entry);
}

static void put_external(OnnxWriter *w, Rope *out, int64_t offset, int64_t bytes)
{
	put_entry(w, out, "location", w->data_name);
	put_entry(w, out, "offset", arena_printf(w->a, "%" PRId64, offset));
	put_entry(w, out, "length", arena_printf(w->a, "%" PRId64, bytes));
	rope_int(w->a, out, T_LOCATION, 1);
}

/* Writes a tensor whose data stays in the file beside the model. */
static bool put_kept(OnnxWriter *w, Rope *out, const OnnxTensor *t, const OnnxFill *fill)
{
	const char *path;
	int64_t bytes;
	if (!onnx_tensor_external(w->onnx, t, &path, &bytes, w->d))
		return false;
	int64_t at = data_keep(&w->data, path, t->offset, bytes, fill);
	if (at < 0)
		diag_error(w->d, where(w, "tensor", t->name), "\"%s\" does not hold its %" PRId64 " bytes at offset %"
			PRId64, path, bytes, t->offset);
	else
		put_external(w, out, at, bytes);
	return at >= 0;
}

/* Writes data into the model: as raw data, or as float_data or double_data if it was packed there in one piece. */
static void put_embedded(OnnxWriter *w, Rope *out, const OnnxTensor *t, Span bytes, const OnnxFill *fill, size_t n)
{
	Rope data = {0};
	bool packed = !t->external && t->typed && t->has_raw;
	int field = !packed ? T_RAW : t->data_type == dtype_info[DT_F64].onnx ? T_DOUBLES : T_FLOATS;
	if (fill)
		rope_fill(w->a, &data, fill, n);
	else
		rope_bytes(w->a, &data, bytes);
	rope_message(w->a, out, field, &data);
}

static bool put_data(OnnxWriter *w, Rope *out, const OnnxTensor *t, const OnnxFill *fill)
{
	Span bytes = {0};
	const FileMap *file;
	Type type;
	if (t->external && w->store != ONNX_STORE_EMBEDDED)
		return put_kept(w, out, t, fill);
	if (!fill && !onnx_tensor_bytes(w->onnx, t, &bytes, &file, w->d))
		return false;
	onnx_tensor_type(t, &type);
	size_t n = fill ? (size_t)type_bytes(&type) : bytes.n;
	if (w->store == ONNX_STORE_EXTERNAL && n >= EXTERNAL_BYTES)
		put_external(w, out, data_add(&w->data, bytes, fill, (int64_t)n), (int64_t)n);
	else
		put_embedded(w, out, t, bytes, fill, n);
	return true;
}

/* Whether the tensor's data is written anew; literal: the tensor stands inside a node. */
static bool is_moved(const OnnxWriter *w, const OnnxTensor *t, const OnnxFill *fill, bool literal)
{
	return fill || t->external ||
		(w->store == ONNX_STORE_EXTERNAL && !literal && t->has_raw && t->raw.n >= EXTERNAL_BYTES);
}

static bool holds_data(int field)
{
	return field == T_FLOATS || field == T_INT32 || field == T_INT64 || field == T_RAW || field == T_DOUBLES ||
		field == T_UINT64 || field == T_EXTERNAL || field == T_LOCATION;
}

/* home: the initializer that the tensor is; NULL for tensors inside nodes. */
static bool put_tensor(OnnxWriter *w, Rope *out, Span bytes, const OnnxTensor *home)
{
	OnnxTensor own;
	bool done = false;
	if (!home && !onnx_tensor_parse(w->a, w->onnx->file, bytes, &own))
		return false;
	const OnnxTensor *t = home ? home : &own;
	const OnnxFill *fill = home ? ptrmap_get(w->homes, home) : NULL;
	if (!is_moved(w, t, fill, !home)) {
		rope_bytes(w->a, out, bytes);
		return true;
	}
	Wire wire = wire_of(bytes);
	for (const uint8_t *at = wire.rest.at; wire_next(&wire); at = wire.rest.at) {
		if (!holds_data(wire.field))
			rope_bytes(w->a, out, (Span){at, (size_t)(wire.rest.at - at)});
		else if (!done && !put_data(w, out, t, fill))
			return false;
		done = done || holds_data(wire.field);
	}
	return done || put_data(w, out, t, fill);
}

/* Writes a new initializer. */
static void put_added(OnnxWriter *w, Rope *out, const Added *t)
{
	Rope body = {0}, data = {0};
	size_t n = (size_t)type_bytes(t->type);
	for (int i = 0; i < t->type->rank; i++)
		rope_int(w->a, &body, T_DIMS, (uint64_t)t->type->dim[i]);
	rope_int(w->a, &body, T_TYPE, (uint64_t)dtype_info[t->type->dtype].onnx);
	rope_string(w->a, &body, T_NAME, t->name);
	if (w->store == ONNX_STORE_EXTERNAL && n >= EXTERNAL_BYTES) {
		put_external(w, &body, data_add(&w->data, (Span){0}, t->fill, (int64_t)n), (int64_t)n);
	} else {
		rope_fill(w->a, &data, t->fill, n);
		rope_message(w->a, &body, T_RAW, &data);
	}
	rope_message(w->a, out, GRAPH_INIT, &body);
}

/* ---- graphs, nodes, attributes ---- */

typedef enum { PART_GRAPH, PART_NODE, PART_ATTRIBUTE, PART_TENSOR, PART_FUNCTION } PartKind;
/* The kind of message in field `field` of a part. */
static const struct { PartKind in; int field; PartKind kind; } nested[] = {
	{PART_GRAPH, GRAPH_NODE, PART_NODE}, {PART_GRAPH, GRAPH_INIT, PART_TENSOR},
	{PART_NODE, NODE_ATTRIBUTE, PART_ATTRIBUTE},
	{PART_ATTRIBUTE, ATTR_T, PART_TENSOR}, {PART_ATTRIBUTE, ATTR_TENSORS, PART_TENSOR},
	{PART_ATTRIBUTE, ATTR_G, PART_GRAPH}, {PART_ATTRIBUTE, ATTR_GRAPHS, PART_GRAPH},
	{PART_FUNCTION, FUNCTION_NODE, PART_NODE},
};

static bool put_part(OnnxWriter *w, Rope *out, PartKind kind, Span bytes, int depth);

/* Writes a field that is neither an operand nor a part of the top graph. */
static bool put_field(OnnxWriter *w, Rope *out, PartKind in, const Wire *field, Span as_written, int depth)
{
	Rope body = {0};
	for (int i = 0; i < COUNT_OF(nested); i++) {
		if (nested[i].in != in || nested[i].field != field->field || field->type != 2)
			continue;
		if (!put_part(w, &body, nested[i].kind, field->bytes, depth + 1))
			return false;
		rope_again(w->a, out, field->field, as_written, field->bytes, &body);
		return true;
	}
	rope_bytes(w->a, out, as_written);
	return true;
}

static bool put_part(OnnxWriter *w, Rope *out, PartKind kind, Span bytes, int depth)
{
	if (depth > MAX_DEPTH)
		diag_error(w->d, w->onnx->path, "its subgraphs nest deeper than %d", MAX_DEPTH);
	if (kind == PART_TENSOR || depth > MAX_DEPTH)
		return depth <= MAX_DEPTH && put_tensor(w, out, bytes, ptrmap_get(w->inner, bytes.at));
	Wire wire = wire_of(bytes);
	for (const uint8_t *at = wire.rest.at; wire_next(&wire); at = wire.rest.at)
		if (!put_field(w, out, kind, &wire, (Span){at, (size_t)(wire.rest.at - at)}, depth))
			return false;
	return !wire.bad;
}

static const char *edited(const Edit *e, int operand)
{
	for (; e; e = e->next)
		if (e->operand == operand)
			return e->name;
	return NULL;
}

static int operands_wanted(const Edit *e)
{
	int n = 0;
	for (; e; e = e->next)
		n = MAX(n, e->operand + 1);
	return n;
}

/* Writes a node of the top graph with edited operands, appending some where an exporter left the last ones out. */
static bool put_node(OnnxWriter *w, Rope *out, Span bytes, const Edit *edits)
{
	int n = 0;
	Wire wire = wire_of(bytes);
	for (const uint8_t *at = wire.rest.at; wire_next(&wire); at = wire.rest.at) {
		Span as_written = {at, (size_t)(wire.rest.at - at)};
		const char *name = wire.field == NODE_INPUT ? edited(edits, n) : NULL;
		n += wire.field == NODE_INPUT;
		if (name)
			rope_string(w->a, out, NODE_INPUT, name);
		else if (!put_field(w, out, PART_NODE, &wire, as_written, 1))
			return false;
	}
	for (; n < operands_wanted(edits); n++)
		rope_string(w->a, out, NODE_INPUT, edited(edits, n) ? edited(edits, n) : "");
	return !wire.bad;
}

static bool put_graph_field(OnnxWriter *w, Rope *out, const Wire *field, Span as_written, int *n_nodes, int *n_tensors)
{
	const OnnxGraph *g = &w->onnx->graph;
	Rope body = {0};
	if (field->field == GRAPH_NODE) {
		const Onnx__NodeProto *node = g->nodes.at[(*n_nodes)++];
		const Edit *edits = ptrmap_get(w->edits, node);
		if (ptrmap_get(w->gone, node))
			return true;
		if (!edits)
			return put_field(w, out, PART_GRAPH, field, as_written, 0);
		if (!put_node(w, &body, field->bytes, edits))
			return false;
	} else if (field->field == GRAPH_INIT) {
		if (!put_tensor(w, &body, field->bytes, &g->tensors.at[(*n_tensors)++]))
			return false;
	} else {
		rope_bytes(w->a, out, as_written);
		return true;
	}
	rope_again(w->a, out, field->field, as_written, field->bytes, &body);
	return true;
}

/* Writes the model's only graph, with its initializers as the plan says. */
static bool put_graph(OnnxWriter *w, Rope *out, Span bytes)
{
	int n_nodes = 0, n_tensors = 0;
	Wire wire = wire_of(bytes);
	for (const uint8_t *at = wire.rest.at; wire_next(&wire); at = wire.rest.at)
		if (!put_graph_field(w, out, &wire, (Span){at, (size_t)(wire.rest.at - at)}, &n_nodes, &n_tensors))
			return false;
	for (int i = 0; i < w->added.n; i++)
		put_added(w, out, &w->added.at[i]);
	return true;
}

static bool put_model(OnnxWriter *w, Rope *out)
{
	Wire wire = wire_of(w->onnx->file->bytes);
	for (const uint8_t *at = wire.rest.at; wire_next(&wire); at = wire.rest.at) {
		Span as_written = {at, (size_t)(wire.rest.at - at)};
		Rope body = {0};
		bool graph = wire.field == MODEL_GRAPH && wire.type == 2;
		if (!graph && (wire.field != MODEL_FUNCTION || wire.type != 2)) {
			rope_bytes(w->a, out, as_written);
			continue;
		}
		if (!(graph ? put_graph(w, &body, wire.bytes) : put_part(w, &body, PART_FUNCTION, wire.bytes, 1)))
			return false;
		rope_again(w->a, out, wire.field, as_written, wire.bytes, &body);
	}
	return true;
}

/* ---- files ---- */

static bool same_file(const char *a, const char *b)
{
	struct stat sa, sb;
	return !stat(a, &sa) && !stat(b, &sb) && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

static bool check_output(OnnxWriter *w, const char *path)
{
	bool ok = !same_file(path, w->onnx->path);
	for (int i = 0; i < w->data.sources.n; i++)
		ok = ok && !same_file(path, w->data.sources.at[i].path);
	if (!ok)
		diag_error(w->d, path, "this is a file of the model that is read: give another name");
	return ok;
}

static bool build(OnnxWriter *w, Rope *model, const char *path, const char *data_path)
{
	int before = w->d->errors;
	plan(w);
	if (w->d->errors == before && !put_model(w, model) && w->d->errors == before)
		diag_error(w->d, w->onnx->path, "it is malformed");
	if (w->d->errors > before || !check_output(w, path) || !check_output(w, data_path))
		return false;
	if (!data_sort(&w->data))
		diag_error(w->d, w->onnx->path, "two of its tensors share bytes of a data file in part: they cannot be written "
			"one by one");
	if (model->n > INT32_MAX)
		diag_error(w->d, path, "it would have %zu bytes, and a model has at most 2 GB: write weights beside it "
			"(--external)", model->n);
	return w->d->errors == before;
}

static bool write_file(OnnxWriter *w, const char *path, const Rope *model, const RopeValues *values)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	return file_close(fd, fd >= 0 &&
		(model ? rope_write(fd, model, 0, values) && !fsync(fd) : data_write(&w->data, fd, values)));
}

static bool write_files(OnnxWriter *w, const Rope *model, const char *path, const char *data_path,
	const RopeValues *values)
{
	int mark = unfinished_begin();
	const char *temp = unfinished_file(path), *data_temp = unfinished_file(data_path);
	bool data = w->data.parts.n > 0;
	bool ok = (!data || write_file(w, data_temp, NULL, values)) && write_file(w, temp, model, values) &&
		(!data || unfinished_move(data_temp, data_path)) && unfinished_move(temp, path);
	if (!ok)
		diag_error(w->d, path, "could not be written: %s; nothing was left", strerror(errno));
	unfinished_end(mark, ok);
	return ok;
}

bool onnx_writer_save(OnnxWriter *w, const char *path, OnnxStore store, OnnxRead *read, void *context, bool *input,
	Diag *d)
{
	Rope model = {0};
	const char *slash = strrchr(path, '/'), *data_path = arena_printf(w->a, "%s.data", path);
	RopeValues values = {read, context};
	w->d = d;
	w->store = store;
	w->data_name = arena_printf(w->a, "%s.data", slash ? slash + 1 : path);
	w->homes = ptrmap_new(w->a);
	w->inner = ptrmap_new(w->a);
	w->edits = ptrmap_new(w->a);
	w->gone = ptrmap_new(w->a);
	w->added.n = 0;
	data_init(&w->data, w->a);
	*input = !build(w, &model, path, data_path);
	return !*input && write_files(w, &model, path, data_path, &values);
}
