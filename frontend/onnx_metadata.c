/* frontend/onnx_metadata.c: reads the metadata that shardc.export wrote into a model.
 *
 * The metadata are JSON under the model's key "shardc"; docs/export.md describes their form.  They come with the model,
 * so all of it is checked: kinds, dtypes and shapes against the initializers that are named, and that each name and
 * each initializer occurs once.  Unknown members are skipped, so that models of a later shardc.export still compile; an
 * unknown format number is refused. */
#include "frontend/onnx_metadata.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

enum { FORMAT = 1, BYTES_MAX = 64 << 20, NAME_MAX_BYTES = 4096 };

typedef struct Reader {
	const OnnxModel *onnx;
	ExportMetadata *out;
	Map *initializers;      /* name -> OnnxTensor */
	Map *names;             /* names and aliases of tensors that were already read */
	Arena *a;
	Diag *d;
	const char *where;      /* what is being read, for messages: "m.onnx: metadata: tensor \"fc.weight\"" */
} Reader;

static const char *shown(Reader *r, const char *name)
{
	return str_escape(r->a, ESCAPE_IR, name);
}

static void wrong(Reader *r, const char *key, const char *wanted)
{
	diag_error(r->d, r->where, "member \"%s\" is not %s: export the model again", key, wanted);
}

/* ---- members ---- */

/* Checks and copies a name; NULL after an error. */
static const char *take_name(Reader *r, const char *key, const json_t *v)
{
	if (json_is_string(v) && json_string_length(v) && json_string_length(v) <= NAME_MAX_BYTES)
		return arena_strdup(r->a, json_string_value(v));
	wrong(r, key, "a name of 1 to 4096 bytes");
	return NULL;
}

/* Reads a boolean member; an absent one has the value `otherwise`. */
static bool take_bool(Reader *r, const json_t *object, const char *key, bool otherwise)
{
	const json_t *v = json_object_get(object, key);
	if (v && !json_is_boolean(v))
		wrong(r, key, "true or false");
	return json_is_boolean(v) ? json_is_true(v) : otherwise;
}

static void take_kind(Reader *r, const json_t *object, MetaTensor *t)
{
	static const char *const kinds[] = {"parameter", "buffer", "constant"};
	const char *text = json_string_value(json_object_get(object, "kind"));
	for (int i = 0; i < COUNT_OF(kinds); i++) {
		if (text && !strcmp(text, kinds[i])) {
			t->kind = (MetaKind)i;
			return;
		}
	}
	wrong(r, "kind", "\"parameter\", \"buffer\" or \"constant\"");
}

static bool take_shape(Reader *r, const json_t *object, MetaTensor *t)
{
	const json_t *list = json_object_get(object, "shape");
	size_t n = json_array_size(list);
	bool good = json_is_array(list) && n <= IR_MAX_RANK;
	for (size_t i = 0; good && i < n; i++) {
		const json_t *dim = json_array_get(list, i);
		good = json_is_integer(dim) && json_integer_value(dim) >= 0;
		t->dim[i] = json_integer_value(dim);
	}
	t->rank = (int)n;
	if (!good)
		wrong(r, "shape", "a list of at most 8 dimensions");
	return good;
}

static bool is_new_name(Reader *r, const char *name)
{
	if (!map_has(r->names, name)) {
		map_put(r->names, name, r);
		return true;
	}
	diag_error(r->d, r->where, "the name \"%s\" is given twice in the metadata: export the model again",
		shown(r, name));
	return false;
}

static void take_aliases(Reader *r, const json_t *object, MetaTensor *t)
{
	const json_t *list = json_object_get(object, "aliases");
	if (list && !json_is_array(list))
		wrong(r, "aliases", "a list of names");
	for (size_t i = 0; i < json_array_size(list); i++) {
		const char *name = take_name(r, "aliases", json_array_get(list, i));
		if (name && is_new_name(r, name))
			vec_push(r->a, &t->alias, name);
	}
}

/* ---- tensors ---- */

static const char *torch_dtype(int onnx)
{
	static const char *const names[] = {[1] = "float32", [2] = "uint8", [3] = "int8", [4] = "uint16", [5] = "int16",
		[6] = "int32", [7] = "int64", [9] = "bool", [10] = "float16", [11] = "float64", [12] = "uint32",
		[13] = "uint64", [14] = "complex64", [15] = "complex128", [16] = "bfloat16"};
	return onnx > 0 && onnx < COUNT_OF(names) ? names[onnx] : NULL;
}

static const char *shape_text(Arena *a, int rank, const int64_t *dim)
{
	const char *text = "";
	for (int i = 0; i < rank; i++)
		text = arena_printf(a, "%s%s%" PRId64, text, i ? "," : "", dim[i]);
	return arena_printf(a, "[%s]", text);
}

/* Checks that the named initializer exists, belongs to no other tensor, and has the dtype and shape that are given. */
static void check_initializer(Reader *r, MetaTensor *t, bool has_shape)
{
	const OnnxTensor *held = map_get(r->initializers, t->initializer);
	const MetaTensor *other = map_get(r->out->by_initializer, t->initializer);
	const char *name = shown(r, t->initializer);
	if (!held) {
		diag_error(r->d, r->where, "the graph has no initializer \"%s\": the model was changed after its export, so "
			"export it again", name);
		return;
	}
	if (other) {
		diag_error(r->d, r->where, "initializer \"%s\" is tensor \"%s\" already", name, shown(r, other->name));
		return;
	}
	const char *dtype = torch_dtype(held->data_type);
	if (has_shape && (held->rank != t->rank || memcmp(held->dim, t->dim, sizeof(*t->dim) * (size_t)t->rank) != 0))
		diag_error(r->d, r->where, "its shape is %s, initializer \"%s\" has %s", shape_text(r->a, t->rank, t->dim),
			name, shape_text(r->a, held->rank, held->dim));
	if (t->dtype && dtype && strcmp(dtype, t->dtype) != 0)
		diag_error(r->d, r->where, "its dtype is %s, initializer \"%s\" has %s", shown(r, t->dtype), name, dtype);
	map_put(r->out->by_initializer, t->initializer, t);
}

static void read_tensor(Reader *r, size_t i, const json_t *object)
{
	const char *top = r->where;
	MetaTensor *t = NEW(r->a, MetaTensor);
	r->where = arena_printf(r->a, "%s: $.tensors[%zu]", top, i);
	t->name = take_name(r, "name", json_object_get(object, "name"));
	if (t->name) {
		r->where = arena_printf(r->a, "%s: tensor \"%s\"", top, shown(r, t->name));
		int before = r->d->errors;
		const json_t *held = json_object_get(object, "initializer"), *dtype = json_object_get(object, "dtype");
		is_new_name(r, t->name);
		take_kind(r, object, t);
		take_aliases(r, object, t);
		bool has_shape = take_shape(r, object, t);
		t->trained = take_bool(r, object, "requires_grad", t->kind == META_PARAMETER);
		t->persistent = take_bool(r, object, "persistent", true);
		t->initializer = !held ? t->name : json_is_null(held) ? NULL : take_name(r, "initializer", held);
		t->dtype = dtype ? take_name(r, "dtype", dtype) : NULL;
		if (t->initializer && r->d->errors == before)
			check_initializer(r, t, has_shape);
		vec_push(r->a, &r->out->tensors, t);
	}
	r->where = top;
}

/* ---- modules ---- */

static void read_module(Reader *r, const char *name, const json_t *object)
{
	const char *top = r->where;
	MetaModule *m = NEW(r->a, MetaModule);
	const json_t *class = json_object_get(object, "class");
	r->where = arena_printf(r->a, "%s: module \"%s\"", top, shown(r, name));
	if (!json_is_object(object))
		diag_error(r->d, r->where, "is not an object with \"class\" and \"training\"");
	if (class && !json_is_string(class))
		wrong(r, "class", "a string");
	m->training = take_bool(r, object, "training", r->out->training);
	map_put(r->out->modules, name, m);
	r->where = top;
}

/* ---- all of it ---- */

static void read_members(Reader *r, const json_t *root)
{
	const json_t *modules = json_object_get(root, "modules"), *tensors = json_object_get(root, "tensors");
	const json_t *format = json_object_get(root, "format");
	const char *name;
	json_t *v;
	if (!json_is_integer(format) || json_integer_value(format) != FORMAT) {
		diag_error(r->d, r->where, "its format is not 1, which is what this shardc reads: export with the "
			"shardc.export that belongs to it");
		return;
	}
	r->out->training = take_bool(r, root, "training", true);
	if (modules && !json_is_object(modules))
		wrong(r, "modules", "an object");
	if (!json_is_array(tensors))
		wrong(r, "tensors", "a list");
	json_object_foreach((json_t *)(uintptr_t)modules, name, v)
		read_module(r, name, v);
	for (size_t i = 0; i < json_array_size(tensors); i++)
		read_tensor(r, i, json_array_get(tensors, i));
}

static void read_text(Reader *r, Span text)
{
	json_error_t e;
	if (text.n > BYTES_MAX) {
		diag_error(r->d, r->where, "it has %zu bytes; 64 MiB are the limit", text.n);
		return;
	}
	json_t *root = json_loadb((const char *)text.at, text.n, JSON_REJECT_DUPLICATES, &e);
	if (!root)
		diag_error(r->d, r->where, "line %d column %d: %s: export the model again", e.line, e.column,
			shown(r, e.text));
	else if (!json_is_object(root))
		diag_error(r->d, r->where, "it is not a JSON object: export the model again");
	else
		read_members(r, root);
	json_decref(root);
}

ExportMetadata *metadata_read(const OnnxModel *onnx, Arena *a, Diag *d)
{
	Reader r = {.onnx = onnx, .out = NEW(a, ExportMetadata), .initializers = map_new(a), .names = map_new(a), .a = a,
		.d = d, .where = arena_printf(a, "%s: metadata \"shardc\"", onnx->path)};
	int before = d->errors;
	if (!onnx->n_metadata)
		return NULL;
	r.out->by_initializer = map_new(a);
	r.out->modules = map_new(a);
	for (int i = 0; i < onnx->graph.tensors.n; i++)
		map_put(r.initializers, onnx->graph.tensors.at[i].name, &onnx->graph.tensors.at[i]);
	if (onnx->n_metadata > 1)
		diag_error(d, r.where, "the model has it %d times: export it again", onnx->n_metadata);
	else
		read_text(&r, onnx->metadata);
	return d->errors == before ? r.out : NULL;
}
