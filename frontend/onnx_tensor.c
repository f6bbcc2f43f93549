/* frontend/onnx_tensor.c: reads a TensorProto in place.
 *
 * Refuses, naming the tensor and the numbers: negative or overflowing dims, ranks above IR_MAX_RANK, data of the wrong
 * length, external data whose location is absolute or leaves the model's folder, or whose offset and length do not lie
 * in its file.  External files are mapped when a value is first needed. */
#include "frontend/onnx_import.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { T_DIMS = 1, T_TYPE = 2, T_SEGMENT = 3, T_FLOATS = 4, T_INT32 = 5, T_STRINGS = 6, T_INT64 = 7, T_NAME = 8,
	T_RAW = 9, T_DOUBLES = 10, T_UINT64 = 11, T_EXTERNAL = 13, T_LOCATION = 14 };
enum { ENTRY_KEY = 1, ENTRY_VALUE = 2, LOCATION_EXTERNAL = 1, ONNX_FLOAT = 1, ONNX_DOUBLE = 11 };

static const char *const onnx_dtypes[] = {"UNDEFINED", "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32",
	"INT64", "STRING", "BOOL", "FLOAT16", "DOUBLE", "UINT32", "UINT64", "COMPLEX64", "COMPLEX128", "BFLOAT16",
	"FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "UINT4", "INT4", "FLOAT4E2M1",
	"FLOAT8E8M0", "UINT2", "INT2"};

const char *onnx_dtype_name(int data_type)
{
	return data_type >= 0 && data_type < COUNT_OF(onnx_dtypes) ? onnx_dtypes[data_type] : "unknown";
}

int64_t onnx_dims_numel(int rank, const int64_t *dim)
{
	int64_t n = 1;
	bool zero = false;
	for (int i = 0; i < rank; i++) {
		if (dim[i] < 0)
			return -1;
		zero = zero || !dim[i];
		if (dim[i] && (n > (INT64_C(1) << 46) / dim[i]))
			return -1;
		n *= dim[i] ? dim[i] : 1;
	}
	return zero ? 0 : n;
}

bool onnx_tensor_type(const OnnxTensor *t, Type *out)
{
	DType dtype;
	if (t->problem || !dtype_from_onnx(t->data_type, &dtype))
		return false;
	*out = type_tensor(dtype, t->rank, t->dim);
	return true;
}

/* ---- parsing ---- */

static void add_dim(OnnxTensor *t, int64_t dim)
{
	if (t->rank == IR_MAX_RANK)
		t->problem = "its rank is above 8";
	else
		t->dim[t->rank++] = dim;
}

static bool parse_dims(OnnxTensor *t, const Wire *w)
{
	if (w->type == 0) {
		add_dim(t, (int64_t)w->value);
		return true;
	}
	uint64_t v;
	for (Span s = w->bytes; s.n; add_dim(t, (int64_t)v))
		if (!wire_varint(&s, &v))
			return false;
	return w->type == 2;
}

static int64_t parse_number(const char *s, const char **problem)
{
	char *end;
	errno = 0;
	long long v = strtoll(s, &end, 10);
	if (end == s || *end || errno || v < 0)
		*problem = "the offset or length of its external data is negative or not a number";
	return v;
}

static bool parse_external(Arena *a, OnnxTensor *t, Span entry)
{
	const char *key = "", *value = "";
	Wire w = wire_of(entry);
	while (wire_next(&w)) {
		if (w.field == ENTRY_KEY && w.type == 2)
			key = wire_str(a, w.bytes);
		if (w.field == ENTRY_VALUE && w.type == 2)
			value = wire_str(a, w.bytes);
	}
	if (!strcmp(key, "location"))
		t->location = value;
	if (!strcmp(key, "offset"))
		t->offset = parse_number(value, &t->problem);
	if (!strcmp(key, "length"))
		t->length = parse_number(value, &t->problem);
	return !w.bad;
}

/* float_data and double_data that are packed in one piece are already the little-endian array. */
static void parse_data(OnnxTensor *t, const Wire *w)
{
	if (w->type == 2 && !t->has_raw && !t->typed && (w->field == T_FLOATS || w->field == T_DOUBLES)) {
		t->raw = w->bytes;
		t->has_raw = true;
	} else {
		t->has_raw = false;
	}
	t->typed = true;
}

static bool parse_field(Arena *a, OnnxTensor *t, const Wire *w)
{
	switch (w->field) {
	case T_DIMS: return parse_dims(t, w);
	case T_TYPE: t->data_type = (int)w->value; return w->type == 0;
	case T_NAME: t->name = wire_str(a, w->bytes); return w->type == 2;
	case T_RAW: t->raw = w->bytes; t->has_raw = true; return w->type == 2;
	case T_EXTERNAL: return w->type == 2 && parse_external(a, t, w->bytes);
	case T_LOCATION: t->external = w->value == LOCATION_EXTERNAL; return w->type == 0;
	case T_SEGMENT: t->problem = "it is a segment of a tensor"; return true;
	case T_FLOATS: case T_INT32: case T_INT64: case T_DOUBLES: case T_UINT64: case T_STRINGS:
		parse_data(t, w);
		return true;
	default: return true;
	}
}

bool onnx_tensor_parse(Arena *a, const FileMap *f, Span proto, OnnxTensor *out)
{
	*out = (OnnxTensor){.name = "", .proto = proto, .length = -1, .file = f};
	Wire w = wire_of(proto);
	while (wire_next(&w))
		if (!parse_field(a, out, &w))
			return false;
	/* float_data may also hold complex numbers. */
	bool plain = out->data_type == ONNX_FLOAT || out->data_type == ONNX_DOUBLE;
	if (out->typed && out->has_raw && !plain)
		out->has_raw = false;
	if (!out->problem && onnx_dims_numel(out->rank, out->dim) < 0)
		out->problem = "a dimension is negative or the element count overflows";
	return !w.bad;
}

/* ---- where the bytes are ---- */

static const char *tensor_where(OnnxModel *m, const OnnxTensor *t)
{
	return arena_printf(m->arena, "%s: tensor \"%s\"", m->path, str_escape(m->arena, ESCAPE_IR, t->name));
}

static bool leaves_folder(const char *location)
{
	if (*location == '/' || !*location)
		return true;
	for (const char *s = location; s; s = strchr(s, '/') ? strchr(s, '/') + 1 : NULL)
		if (!strncmp(s, "..", 2) && (!s[2] || s[2] == '/'))
			return true;
	return false;
}

static const char *external_path(OnnxModel *m, const OnnxTensor *t, Diag *d)
{
	if (!t->location || leaves_folder(t->location)) {
		diag_error(d, tensor_where(m, t), "external data location \"%s\" is empty, absolute or leaves the model's "
			"folder", t->location ? str_escape(m->arena, ESCAPE_IR, t->location) : "");
		return NULL;
	}
	const char *path = arena_printf(m->arena, "%s%s", m->dir, t->location);
	m->beneath = m->beneath ? m->beneath : map_new(m->arena);
	if (map_has(m->beneath, t->location) || file_is_beneath(m->dir, t->location)) {
		map_put(m->beneath, t->location, NULL);
		return path;
	}
	char *real = realpath(path, NULL);
	diag_error(d, tensor_where(m, t), "external data \"%s\" is a link that leads out of the model's folder, to \"%s\": "
		"a model reads files of its own folder only; copy what it names there", path, real ? real : "?");
	free(real);
	return NULL;
}

static const FileMap *external_file(OnnxModel *m, const OnnxTensor *t, Diag *d)
{
	const char *where = tensor_where(m, t), *path = external_path(m, t, d);
	if (!path)
		return NULL;
	for (int i = 0; i < m->external.n; i++)
		if (!strcmp(m->external.at[i]->path, path))
			return m->external.at[i];
	FileMap *f = file_map(m->arena, path, where, d);
	if (f)
		vec_push(m->arena, &m->external, f);
	return f;
}

static bool external_bytes(OnnxModel *m, const OnnxTensor *t, int64_t want, Span *out, const FileMap **file,
	Diag *d)
{
	const FileMap *f = external_file(m, t, d);
	if (!f)
		return false;
	int64_t size = (int64_t)f->bytes.n, length = t->length < 0 ? want : t->length;
	if (t->offset > size || length > size - t->offset) {
		diag_error(d, tensor_where(m, t), "external data \"%s\" is too short: offset %" PRId64 " + %" PRId64
			" bytes wanted, the file has %" PRId64, t->location, t->offset, length, size);
		return false;
	}
	*out = (Span){f->bytes.at + t->offset, (size_t)length};
	*file = f;
	return true;
}

/* Reports faults of the tensor that do not depend on its bytes, and sets *type. */
static bool is_usable(OnnxModel *m, const OnnxTensor *t, Type *type, Diag *d)
{
	if (t->problem)
		diag_error(d, tensor_where(m, t), "%s", t->problem);
	else if (!onnx_tensor_type(t, type))
		diag_error(d, tensor_where(m, t), "dtype %s is not supported", onnx_dtype_name(t->data_type));
	else
		return true;
	return false;
}

static bool has_length(OnnxModel *m, const OnnxTensor *t, const Type *type, int64_t bytes, Diag *d)
{
	if (bytes == type_bytes(type))
		return true;
	diag_error(d, tensor_where(m, t), "it holds %" PRId64 " bytes, %s needs %" PRId64, bytes,
		type_str(m->arena, type), type_bytes(type));
	return false;
}

bool onnx_tensor_external(OnnxModel *m, const OnnxTensor *t, const char **path, int64_t *bytes, Diag *d)
{
	Type type;
	if (!is_usable(m, t, &type, d))
		return false;
	*path = external_path(m, t, d);
	*bytes = t->length < 0 ? type_bytes(&type) : t->length;
	return *path && has_length(m, t, &type, *bytes, d);
}

bool onnx_tensor_bytes(OnnxModel *m, const OnnxTensor *t, Span *bytes, const FileMap **file, Diag *d)
{
	Type type;
	if (!is_usable(m, t, &type, d))
		return false;
	*bytes = t->raw;
	*file = t->file;
	if (t->external && !external_bytes(m, t, type_bytes(&type), bytes, file, d))
		return false;
	return has_length(m, t, &type, (int64_t)bytes->n, d);
}

/* ---- elements ---- */

static int64_t raw_int(DType t, const uint8_t *p)
{
	union { uint8_t u8; int8_t i8; uint16_t u16; int16_t i16; uint32_t u32; int32_t i32; int64_t i64; } v = {0};
	memcpy(&v, p, (size_t)dtype_info[t].bytes);
	switch (t) {
	case DT_I64: case DT_U64: return v.i64;
	case DT_I32: return v.i32;
	case DT_U32: return v.u32;
	case DT_I16: return v.i16;
	case DT_U16: return v.u16;
	case DT_I8: return v.i8;
	case DT_BOOL: return v.u8 != 0;
	default: return v.u8;
	}
}

static double raw_float(DType t, const uint8_t *p)
{
	union { uint16_t u16; float f32; double f64; } v = {0};
	memcpy(&v, p, (size_t)dtype_info[t].bytes);
	switch (t) {
	case DT_F32: return (double)v.f32;
	case DT_F64: return v.f64;
	case DT_F16: return (double)f16_to_float(v.u16);
	default: return (double)bf16_to_float(v.u16);
	}
}

double host_get_float(const HostTensor *t, int64_t i)
{
	const uint8_t *p = (const uint8_t *)t->data + i * dtype_info[t->type.dtype].bytes;
	return dtype_is_float(t->type.dtype) ? raw_float(t->type.dtype, p) : (double)raw_int(t->type.dtype, p);
}

int64_t host_get_int(const HostTensor *t, int64_t i)
{
	const uint8_t *p = (const uint8_t *)t->data + i * dtype_info[t->type.dtype].bytes;
	return dtype_is_float(t->type.dtype) ? (int64_t)raw_float(t->type.dtype, p) : raw_int(t->type.dtype, p);
}

/* Stores one element of a *_data field: `bits` is the varint of an integer field, or the bits of a float. */
typedef void TypedFn(void *to, int64_t i, int field, uint64_t bits);

static bool typed_each(const OnnxTensor *t, int64_t n, TypedFn *fn, void *to, int64_t *count)
{
	int64_t i = 0;
	for (Wire w = wire_of(t->proto); wire_next(&w);) {
		if (w.field != T_FLOATS && w.field != T_INT32 && w.field != T_INT64 && w.field != T_DOUBLES
			&& w.field != T_UINT64)
			continue;
		if (w.type != 2) {
			if (i < n)
				fn(to, i, w.field, w.value);
			i++;
			continue;
		}
		size_t fixed = w.field == T_FLOATS ? 4 : w.field == T_DOUBLES ? 8 : 0;
		for (Span s = w.bytes; s.n; i++) {
			uint64_t bits = 0;
			if (fixed ? s.n < fixed : !wire_varint(&s, &bits))
				return false;
			if (fixed) {
				memcpy(&bits, s.at, fixed);
				s.at += fixed;
				s.n -= fixed;
			}
			if (i < n)
				fn(to, i, w.field, bits);
		}
	}
	*count = i;
	return true;
}

static void put_int(void *to, int64_t i, int field, uint64_t bits)
{
	((int64_t *)to)[i] = field == T_INT32 ? (int32_t)bits : (int64_t)bits;
}

static void put_float(void *to, int64_t i, int field, uint64_t bits)
{
	double f64;
	memcpy(&f64, &bits, sizeof(f64));
	((double *)to)[i] = field == T_FLOATS ? (double)wire_float(bits) : field == T_DOUBLES ? f64 : (double)bits;
}

/* Whether the *_data fields hold n elements; checked before memory is allocated for what the dims claim. */
static bool typed_fits(OnnxModel *m, const OnnxTensor *t, int64_t n, Diag *d)
{
	int64_t count = 0;
	if (typed_each(t, 0, NULL, NULL, &count) && count == n)
		return true;
	diag_error(d, tensor_where(m, t), "it holds %" PRId64 " elements, its shape has %" PRId64, count, n);
	return false;
}

static bool is_typed(const OnnxTensor *t)
{
	return t->typed && !t->has_raw && !t->external;
}

bool onnx_tensor_ints(OnnxModel *m, const OnnxTensor *t, Arena *a, int64_t **out, Diag *d)
{
	Span bytes;
	const FileMap *file;
	Type type;
	if (is_typed(t) && !t->problem && onnx_tensor_type(t, &type)) {
		int64_t n = type_numel(&type);
		if (!typed_fits(m, t, n, d))
			return false;
		*out = NEW_N(a, int64_t, MAX(n, 1));
		typed_each(t, n, put_int, *out, &n);
		for (int64_t i = 0; type.dtype == DT_BOOL && i < n; i++)
			(*out)[i] = (*out)[i] != 0;
		return true;
	}
	if (!onnx_tensor_bytes(m, t, &bytes, &file, d) || !onnx_tensor_type(t, &type))
		return false;
	int64_t n = type_numel(&type);
	*out = NEW_N(a, int64_t, MAX(n, 1));
	for (int64_t i = 0; i < n; i++)
		(*out)[i] = raw_int(type.dtype, bytes.at + i * dtype_info[type.dtype].bytes);
	return true;
}

bool onnx_tensor_floats(OnnxModel *m, const OnnxTensor *t, Arena *a, double **out, Diag *d)
{
	Span bytes;
	const FileMap *file;
	Type type;
	if (is_typed(t) && !t->problem && onnx_tensor_type(t, &type)) {
		int64_t n = type_numel(&type);
		if (!typed_fits(m, t, n, d))
			return false;
		*out = NEW_N(a, double, MAX(n, 1));
		typed_each(t, n, put_float, *out, &n);
		/* 16-bit floats are stored as bits in int32_data. */
		for (int64_t i = 0; i < n && dtype_info[type.dtype].bytes == 2; i++) {
			uint16_t bits = (uint16_t)(*out)[i];
			(*out)[i] = raw_float(type.dtype, (const uint8_t *)&bits);
		}
		return true;
	}
	if (!onnx_tensor_bytes(m, t, &bytes, &file, d) || !onnx_tensor_type(t, &type))
		return false;
	int64_t n = type_numel(&type);
	*out = NEW_N(a, double, MAX(n, 1));
	for (int64_t i = 0; i < n; i++)
		(*out)[i] = raw_float(type.dtype, bytes.at + i * dtype_info[type.dtype].bytes);
	return true;
}

/* ---- whole tensors ---- */

static void store_int(DType t, uint8_t *p, int64_t v)
{
	memcpy(p, &v, (size_t)dtype_info[t].bytes); /* the host is little-endian */
}

/* Reads a tensor of a narrow type, in its wide dtype. */
static bool load_narrow(OnnxModel *m, const OnnxTensor *t, const Narrow *type, HostTensor *out, Diag *d)
{
	Import im = {.arena = m->arena, .onnx = m, .d = d};
	EvalTensor e;
	if (!narrow_tensor(&im, t, type, &e))
		return false;
	int64_t n = type_numel(&e.type);
	uint8_t *data = arena_alloc(m->arena, (size_t)MAX(type_bytes(&e.type), 1));
	*out = (HostTensor){.type = e.type, .data = data};
	for (int64_t i = 0; i < n; i++) {
		if (type->wide == DT_F32)
			((float *)(void *)data)[i] = (float)e.f[i];
		else
			store_int(type->wide, data + i, e.i[i]);
	}
	return true;
}

/* Copies a serialised tensor, a part of the model's mapped file, to the arena. */
static bool load_tensor(OnnxModel *m, Span proto, HostTensor *out, Diag *d)
{
	Arena *a = m->arena;
	OnnxTensor t;
	if (!onnx_tensor_parse(a, m->file, proto, &t)) {
		diag_error(d, m->path, "not a serialised tensor");
		return false;
	}
	if (narrow_from_onnx(t.data_type) && !t.problem)
		return load_narrow(m, &t, narrow_from_onnx(t.data_type), out, d);
	if (!onnx_tensor_type(&t, &out->type)) {
		diag_error(d, m->path, "dtype %s is not supported", onnx_dtype_name(t.data_type));
		return false;
	}
	if (is_typed(&t)) {
		int64_t n = type_numel(&out->type), *ints;
		int size = dtype_info[out->type.dtype].bytes;
		uint8_t *data = arena_alloc(a, (size_t)MAX(type_bytes(&out->type), 1));
		if (!onnx_tensor_ints(m, &t, a, &ints, d)) /* 16-bit floats: the bits; f32 and f64 are in raw */
			return false;
		for (int64_t i = 0; i < n; i++)
			store_int(out->type.dtype, data + i * size, ints[i]);
		out->data = data;
		return true;
	}
	Span bytes;
	const FileMap *file;
	if (!onnx_tensor_bytes(m, &t, &bytes, &file, d))
		return false;
	out->data = arena_strndup(a, bytes.n ? (const char *)bytes.at : "", bytes.n);
	return true;
}

bool onnx_tensor_load(const char *path, Arena *a, HostTensor *out, Diag *d)
{
	OnnxModel m = {.arena = a, .path = path, .dir = "", .file = file_map(a, path, path, d)};
	bool good = m.file && load_tensor(&m, m.file->bytes, out, d);
	file_unmap(m.file);
	return good;
}

/* Adds the tensors of a SequenceProto, or of an OptionalProto, which holds one tensor or one sequence. */
static bool load_list(OnnxModel *m, Span proto, HostTensorVec *out, Diag *d)
{
	enum { TENSORS = 3, SEQUENCES = 5 };
	Wire w = wire_of(proto);
	while (wire_next(&w)) {
		HostTensor t;
		bool good = w.field != TENSORS || (w.type == 2 && load_tensor(m, w.bytes, &t, d));
		if (w.field == TENSORS && good)
			vec_push(m->arena, out, t);
		if (!good || (w.field == SEQUENCES && (w.type != 2 || !load_list(m, w.bytes, out, d))))
			return false;
	}
	if (w.bad)
		diag_error(d, m->path, "not a serialised sequence or optional");
	return !w.bad;
}

bool onnx_list_load(const char *path, Arena *a, HostTensorVec *out, Diag *d)
{
	OnnxModel m = {.arena = a, .path = path, .dir = "", .file = file_map(a, path, path, d)};
	*out = (HostTensorVec){0};
	bool good = m.file && load_list(&m, m.file->bytes, out, d);
	file_unmap(m.file);
	return good;
}

/* The input of the graph that the symbol is, or is an element of: its number, and that of the element. */
static int input_place(const Module *m, const Symbol *s, int *element)
{
	int k = -1;
	const char *before = NULL;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *x = m->symbols[i];
		if (x->kind != SYM_INPUT)
			continue;
		bool next = !x->onnx || !before || strcmp(x->onnx, before) != 0;
		k += next;
		*element = next ? 0 : *element + 1;
		before = x->onnx;
		if (x == s)
			break;
	}
	return k;
}

const char *onnx_input_path(const Module *m, const Symbol *s, const char *dir, Arena *a)
{
	int element;
	return arena_printf(a, "%s/input_%d.pb", dir, input_place(m, s, &element));
}

bool onnx_input_load(const Module *m, const Symbol *s, const char *dir, Arena *a, HostTensor *out, Diag *d)
{
	int element = 0;
	const char *path = arena_printf(a, "%s/input_%d.pb", dir, input_place(m, s, &element));
	HostTensorVec list;
	if (!s->onnx || !strcmp(s->onnx, s->name))
		return onnx_tensor_load(path, a, out, d);
	if (!onnx_list_load(path, a, &list, d))
		return false;
	if (element >= list.n) {
		diag_error(d, path, "it has %d element(s), the model was compiled for more", list.n);
		return false;
	}
	*out = list.at[element];
	return true;
}
