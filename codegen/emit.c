/* codegen/emit.c: writes the text for lowering rules: pointers, literals, calls, shared objects.
 *
 * Refuses dtypes that an op's kernel does not support (kernels/kernels.def).  Objects are shared by their text, so
 * equal descriptors, constants and primitives exist once in step.c. */
#include "codegen/emit.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- literals ---- */

const char *emit_int(Emit *e, int64_t v)
{
	if (v == INT64_MIN)
		return "INT64_MIN";
	return arena_printf(e->a, "%" PRId64, v);
}

const char *emit_c_float(Emit *e, double v)
{
	if (isnan(v))
		return "NAN";
	if (isinf(v))
		return v > 0 ? "INFINITY" : "-INFINITY";
	char s[40];
	for (int digits = 6; digits <= 17; digits++) {
		snprintf(s, sizeof(s), "%.*g", digits, v);
		if (strtod(s, NULL) == v)
			break;
	}
	return arena_printf(e->a, strpbrk(s, ".e") ? "%s" : "%s.0", s);
}

const char *emit_c_literal(Emit *e, DType t, double f, int64_t i)
{
	if (t == DT_F16)
		return arena_printf(e->a, "0x%04x", f16_from_float((float)f)); /* raw bits */
	if (t == DT_BF16)
		return arena_printf(e->a, "0x%04x", bf16_from_float((float)f));
	switch (dtype_info[t].kind) {
	case CLASS_FLOAT: {
		const char *s = emit_c_float(e, t == DT_F32 ? (float)f : f);
		return t == DT_F32 && isfinite(f) ? arena_printf(e->a, "%sf", s) : s;
	}
	case CLASS_BOOL: return i ? "1" : "0";
	case CLASS_UINT: return arena_printf(e->a, "%" PRIu64 "u", (uint64_t)i);
	case CLASS_INT: case CLASS_SCALED: break;
	}
	return emit_int(e, i);
}

const char *emit_int_list(Emit *e, int n, const int64_t *v)
{
	Buf b = {0};
	buf_printf(&b, "{");
	for (int i = 0; i < n; i++)
		buf_printf(&b, i ? ", %s" : "%s", emit_int(e, v[i]));
	buf_printf(&b, n ? "}" : "0}");
	const char *s = arena_strndup(e->a, b.at, b.n);
	buf_free(&b);
	return s;
}

const char *emit_c_ints(Emit *e, int n, const int64_t *v)
{
	const char *list = emit_int_list(e, n, v);
	return arena_printf(e->a, "LIST(int64_t, %.*s)", (int)strlen(list) - 2, list + 1);
}

/* ---- pointers ---- */

const char *emit_part(Emit *e, PartKind kind, int64_t n, const char *name)
{
	Part part = {kind, n, name};
	vec_push(e->a, &e->parts, part);
	return arena_printf(e->a, "%c%d;", PART_HOLE, e->parts.n - 1);
}

bool emit_same_place(const Place *a, const Place *b)
{
	return a->region == b->region && a->unit == b->unit && a->flat == b->flat && a->offset == b->offset;
}

/* The name of the parameter that begins at this place, or whose gradient does, else `name`. */
static const char *param_at(const Emit *e, const Place *at, const char *name)
{
	char key[80];
	DType t = at->region == REGION_GRAD ? at->unit->flat[at->flat].grad : at->unit->flat[at->flat].param;
	snprintf(key, sizeof(key), "%d %d %" PRId64, at->unit->index, at->flat, at->offset / dtype_info[t].bytes);
	const char *param = map_get(e->places, key);
	return param ? param : name;
}

static const char *flat_place(Emit *e, const char *macro, PartKind kind, const Place *at, const char *name)
{
	return arena_printf(e->a, "%s(%s, %d, %s)", macro, emit_part(e, PART_UNIT, at->unit->index, "unit"), at->flat,
		emit_part(e, kind, at->offset, param_at(e, at, name)));
}

const char *emit_place(Emit *e, const Place *at, const char *name)
{
	if (e->loop)
		return loop_place(e, at);
	switch (at->region) {
	case REGION_ACT: return arena_printf(e->a, "ACT(%s)", emit_part(e, PART_ACT, at->offset, name));
	case REGION_HOST: return arena_printf(e->a, "HOST(%s)", emit_part(e, PART_HOST, at->offset, name));
	case REGION_INPUT: return arena_printf(e->a, "IN(%s)", emit_part(e, PART_IN, at->offset, name));
	case REGION_STATE: return arena_printf(e->a, "STATE(%s)", emit_part(e, PART_STATE, at->offset, name));
	case REGION_PARAM: return flat_place(e, "PARAM", PART_PARAM, at, name);
	case REGION_GRAD: return flat_place(e, "GRAD", PART_GRAD, at, name);
	case REGION_NONE: break;
	}
	return "NULL";
}

/* The name of what lies where v begins.  A view has the name of the value that it views; contents of a symbol have
 * the symbol's name in all sections. */
static const char *name_of_place(const Value *v)
{
	while (op_info[v->op->kind].flags & VIEW && v->op->kind != OP_VIEW_OP && v->op->n_in && op_in(v->op, 0) &&
		emit_same_place(&v->place, &op_in(v->op, 0)->place))
		v = op_in(v->op, 0);
	return v->op->sym && v->place.region != REGION_ACT ? v->op->sym->name : v->name;
}

const char *emit_value(Emit *e, const Value *v)
{
	if (!v)
		return "NULL";
	if (v->place.region == REGION_NONE && v->n_uses && type_numel(&v->type))
		ice("%%%s is used but has no place", v->name);
	return emit_place(e, &v->place, name_of_place(v));
}

/* ---- what is shared ---- */

const char *emit_shared(Emit *e, const char *type, const char *stem, const char *text)
{
	const char *key = arena_printf(e->a, "%s = %s", type, text);
	const char *name = map_get(e->shared, key);
	if (name)
		return name;
	name = arena_printf(e->a, "%s_%d", stem, map_count(e->shared));
	map_put(e->shared, key, (void *)name);
	const char *array = strstr(type, "[]");
	if (array)
		buf_printf(&e->statics, "static const %.*s %s[] = %s;\n", (int)(array - type), type, name, text);
	else
		buf_printf(&e->statics, "static const %s %s = %s;\n", type, name, text);
	return name;
}

const char *emit_prim(Emit *e, const char *create, const char *desc, const char *text)
{
	const char *key = arena_printf(e->a, "%s(LIST(%s, %s))", create, desc, text);
	intptr_t slot = (intptr_t)map_get(e->prims, key);
	if (!slot) {
		slot = map_count(e->prims) + 1;
		map_put(e->prims, key, (void *)slot);
		buf_printf(&e->setup, "\trt->prim[%d] = %s;\n", (int)slot - 1, key);
	}
	return arena_printf(e->a, "rt->prim[%d]", (int)slot - 1);
}

/* ---- statements ---- */

/* Rules create parts in any order; a call has the parts that occur in its text, in the order of its holes. */
static Call call_of(Emit *e, const char *text)
{
	VEC(Part) parts = {0};
	Buf b = {0};
	for (const char *s = text; *s; s++) {
		buf_put(&b, s, 1);
		if (*s != PART_HOLE)
			continue;
		vec_push(e->a, &parts, e->parts.at[strtol(s + 1, (char **)&s, 10)]);
	}
	Call call = {.op = e->op, .text = arena_strndup(e->a, b.at, b.n), .part = parts.at, .n_parts = parts.n,
		.comment = e->pending};
	buf_free(&b);
	return call;
}

void emit_line(Emit *e, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	const char *text = arena_vprintf(e->a, fmt, ap);
	va_end(ap);
	vec_push(e->a, &e->calls, call_of(e, e->at ? arena_printf(e->a, "%s, %s", e->at, text) : text));
	e->pending = e->at = NULL;
}

void emit_refuse(Emit *e, const Op *op, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	const char *text = arena_vprintf(e->a, fmt, ap);
	va_end(ap);
	diag_error(e->d, loc_where((Module *)e->m, op->loc), "%s", text);
}

/* ---- kernels ---- */

typedef enum {
	TYPES_F32, TYPES_F32H, TYPES_FLOATS, TYPES_HALVES, TYPES_NUMBERS, TYPES_ALL, TYPES_BYTES, TYPES_PRIM
} KernelTypes;
static const struct { const char *op; KernelTypes types; } kernels[] = {
#define KERNEL(op, types, work, cuda) {#op, TYPES_##types},
#include "kernels/kernels.def"
};
static const char *const types_text[] = {
	[TYPES_F32] = "f32", [TYPES_F32H] = "f32, bf16 and f16", [TYPES_FLOATS] = "f32 and f64",
	[TYPES_HALVES] = "f32, f64, bf16 and f16", [TYPES_ALL] = "any",
	[TYPES_NUMBERS] = "f32, f64, integers and bool", [TYPES_BYTES] = "any", [TYPES_PRIM] = "any",
};

const char *emit_suffix(DType t)
{
	return t == DT_BOOL ? "u8" : dtype_info[t].text;
}

static bool serves(KernelTypes types, DType t)
{
	switch (types) {
	case TYPES_F32: return t == DT_F32;
	case TYPES_F32H: return dtype_is_float(t) && t != DT_F64;
	case TYPES_FLOATS: return t == DT_F32 || t == DT_F64;
	case TYPES_NUMBERS: return t != DT_F16 && t != DT_BF16;
	case TYPES_HALVES: return dtype_is_float(t);
	case TYPES_ALL: case TYPES_BYTES: case TYPES_PRIM: break;
	}
	return true;
}

static KernelTypes kernel_types(const char *op)
{
	for (int i = 0; i < COUNT_OF(kernels); i++)
		if (!strcmp(kernels[i].op, op))
			return kernels[i].types;
	ice("kernels.def has no row for %s", op);
}

/* "o0 i1" -> "ACT(0), ACT(64)"; n0: result 0 as well, but NULL if nobody uses it. */
const char *emit_tensors(Emit *e, const Op *op, const char *spec)
{
	Buf b = {0};
	for (const char *s = spec; *s; s += strspn(s, " ")) {
		int k = atoi(s + 1);
		const Value *v = *s == 'i' ? op_in(op, k) : k < op->n_out ? op->out[k] : NULL;
		const char *arg = *s == 'n' && !v->n_uses ? "NULL" : emit_value(e, v);
		buf_printf(&b, b.n ? ", %s" : "%s", arg);
		s += strcspn(s, " ");
	}
	const char *args = arena_strndup(e->a, b.at ? b.at : "", b.n);
	buf_free(&b);
	return args;
}

static void kernel_call(Emit *e, const Op *op, DType t, const char *tensors, const char *more)
{
	const char *text = op_info[op->kind].text;
	KernelTypes types = kernel_types(text);
	if (!serves(types, t)) {
		emit_refuse(e, op, "%s of %s: its kernel computes %s only", text, dtype_info[t].text,
			types_text[types]);
		return;
	}
	const char *args = emit_tensors(e, op, tensors);
	bool bytes = types == TYPES_BYTES;
	emit_line(e, "k_%s%s%s%s(%s%s%s);", text, bytes ? "" : "_", bytes ? "" : emit_suffix(t),
		attr_find(op->attrs, "to") ? "_f32" : "", args, *args && *more ? ", " : "", more);
}

void emit_kernel(Emit *e, const Op *op, const char *tensors, const char *rest, ...)
{
	va_list ap;
	va_start(ap, rest);
	const char *more = arena_vprintf(e->a, rest, ap);
	va_end(ap);
	kernel_call(e, op, op->n_in ? op_in(op, 0)->type.dtype : op->out[0]->type.dtype, tensors, more);
}

void emit_kernel_of(Emit *e, const Op *op, DType t, const char *tensors, const char *rest, ...)
{
	va_list ap;
	va_start(ap, rest);
	const char *more = arena_vprintf(e->a, rest, ap);
	va_end(ap);
	kernel_call(e, op, t, tensors, more);
}

/* ---- shapes ---- */

int64_t emit_product(const Type *t, int from, int to)
{
	int64_t n = 1;
	for (int i = from; i < to; i++)
		n *= t->dim[i];
	return n;
}

Cut emit_cut(const Type *t, int64_t axis)
{
	int k = (int)(axis < 0 ? axis + t->rank : axis);
	if (!t->rank)
		return (Cut){1, 1, 1};
	return (Cut){emit_product(t, 0, k), t->dim[k], emit_product(t, k + 1, t->rank)};
}

int emit_axis(const Op *op, const char *name, int rank)
{
	int64_t axis = attr_get_int(op->attrs, name, 0);
	return (int)(axis < 0 ? axis + rank : axis);
}

const Attr *emit_list(const Op *op, const char *name)
{
	const Attr *a = attr_find(op->attrs, name);
	if (!a || a->kind != ATTR_INTS)
		ice("%s has no list %s", op_info[op->kind].text, name);
	return a;
}
