/* ir/type.c: types, attributes and locations, which ops have besides operands. */
#include "ir/ir.h"

#include <string.h>

/* ---- types ---- */

Type type_tensor(DType dtype, int rank, const int64_t *dim)
{
	Type t = {.kind = TYPE_TENSOR, .dtype = dtype, .rank = rank};
	if (rank)
		memcpy(t.dim, dim, sizeof(int64_t) * (size_t)rank);
	return t;
}

bool type_same_shape(const Type *a, const Type *b)
{
	return a->rank == b->rank && !memcmp(a->dim, b->dim, sizeof(int64_t) * (size_t)a->rank);
}

bool type_same_matrix(const Type *a, const Type *b)
{
	if (a->rank < 2 || b->rank < 2 || a->kind != TYPE_TENSOR || b->kind != TYPE_TENSOR)
		return false;
	int64_t rows = a->dim[a->rank - 2], cols = a->dim[a->rank - 1];
	return rows == b->dim[b->rank - 2] && cols == b->dim[b->rank - 1] && type_numel(a) == rows * cols
		&& type_numel(b) == rows * cols;
}

bool type_equal(const Type *a, const Type *b)
{
	if (a->kind != b->kind || a->dtype != b->dtype)
		return false;
	if (a->kind == TYPE_TENSOR)
		return type_same_shape(a, b) && a->layout == b->layout;
	return a->unit == b->unit && a->flat == b->flat;
}

int64_t type_numel(const Type *t)
{
	return type_columns(t, 0);
}

int64_t type_columns(const Type *t, int axis)
{
	int64_t n = 1;
	for (int i = axis; i < t->rank; i++)
		n *= t->dim[i];
	return n;
}

int64_t type_bytes(const Type *t)
{
	return type_numel(t) * dtype_info[t->dtype].bytes;
}

void type_strides(const Type *t, int64_t *stride)
{
	int64_t n = 1;
	for (int i = t->rank - 1; i >= 0; i--) {
		stride[i] = n;
		n *= t->dim[i];
	}
}

bool ir_is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

static const char *const kind_text[] = {
	[TYPE_FLAT] = "flat", [TYPE_SHARD] = "shard",
	[TYPE_ASYNC_FLAT] = "async flat", [TYPE_ASYNC_SHARD] = "async shard", [TYPE_EVENT] = "event",
};

const char *ir_unit_str(Arena *a, const Unit *u)
{
	if (!u)
		return "@?";
	for (const char *s = u->name; *s; s++)
		if (!ir_is_name_char(*s))
			return arena_printf(a, "@\"%s\"", str_escape(a, ESCAPE_IR, u->name));
	return arena_printf(a, "@%s", u->name);
}

const char *type_str(Arena *a, const Type *t)
{
	if (t->kind == TYPE_NONE)
		return "none";
	if (t->kind == TYPE_EVENT)
		return kind_text[t->kind];
	if (t->kind != TYPE_TENSOR) {
		const char *unit = ir_unit_str(a, t->unit);
		bool rests = !t->unit || t->unit->flat[t->flat].dtype == t->dtype;
		const char *flat = t->flat ? arena_printf(a, "/%d", t->flat) : "";
		return arena_printf(a, "%s %s%s%s%s", kind_text[t->kind], unit, flat, rests ? "" : ":",
			rests ? "" : dtype_info[t->dtype].text);
	}
	Buf b = {0};
	buf_printf(&b, "%s[", dtype_info[t->dtype].text);
	for (int i = 0; i < t->rank; i++)
		buf_printf(&b, i ? ",%lld" : "%lld", (long long)t->dim[i]);
	buf_put(&b, "]", 1);
	if (t->layout)
		buf_printf(&b, ":%s", t->layout);
	const char *s = arena_strndup(a, b.at, b.n);
	buf_free(&b);
	return s;
}

bool type_broadcast(const Type *a, const Type *b, Type *out)
{
	Type r = *a;
	r.rank = MAX(a->rank, b->rank);
	for (int i = 0; i < r.rank; i++) {
		int ia = i - (r.rank - a->rank), ib = i - (r.rank - b->rank);
		int64_t da = ia < 0 ? 1 : a->dim[ia], db = ib < 0 ? 1 : b->dim[ib];
		if (da != db && da != 1 && db != 1)
			return false;
		r.dim[i] = da == 1 ? db : da;
	}
	*out = r;
	return true;
}

/* ---- locations ---- */

const Loc *loc_new(Module *m, const char *node, const char *onnx, const char *scope, const char *role)
{
	Loc *l = NEW(m->arena, Loc);
	l->node = ir_intern(m, node ? node : "");
	l->onnx = ir_intern(m, onnx ? onnx : "");
	l->scope = ir_intern(m, scope ? scope : "");
	l->role = ir_intern(m, role ? role : "");
	if (*l->node || *l->onnx || *l->scope)
		l->number = ++((Module *)ir_outermost(m))->n_locs;
	return l;
}

const Loc *loc_with_role(Module *m, const Loc *loc, const char *role)
{
	if (!strcmp(loc->role, role))
		return loc;
	Loc *l = NEW(m->arena, Loc);
	*l = *loc;
	l->role = ir_intern(m, role);
	return l;
}

const char *loc_where(Module *m, const Loc *loc)
{
	const Module *whole = ir_outermost(m);
	const char *file = whole->file ? whole->file : whole->name;
	const char *of = !strcmp(loc->role, "grad") ? "gradient of " : "";
	if (!*loc->node)
		return file;
	const char *node = str_escape(m->arena, ESCAPE_IR, loc->node);
	if (!*loc->onnx)
		return arena_printf(m->arena, "%s: %snode \"%s\"", file, of, node);
	return arena_printf(m->arena, "%s: %snode \"%s\" (%s)", file, of, node, loc->onnx);
}

const char *ir_where(const Module *m, TextPlace at)
{
	m = ir_outermost(m);
	if (m->text && at.line)
		return arena_printf(m->arena, "%s:%d:%d", m->text, at.line, at.column);
	return m->text ? m->text : m->file ? m->file : m->name;
}

/* ---- attributes ---- */

/* Inserts into a sorted list.  A list is immutable once it is shared, so the cells before the new one are copied. */
static Attr *insert(Module *m, Attr *list, Attr a)
{
	Attr *head = NULL, **tail = &head;
	for (; list && strcmp(list->name, a.name) < 0; list = list->next) {
		Attr *copy = NEW(m->arena, Attr);
		*copy = *list;
		*tail = copy;
		tail = &copy->next;
	}
	if (list && !strcmp(list->name, a.name))
		list = list->next;
	Attr *now = NEW(m->arena, Attr);
	*now = a;
	now->next = list;
	*tail = now;
	return head;
}

Attr *attr_int(Module *m, Attr *list, const char *name, int64_t v)
{
	return insert(m, list, (Attr){.name = ir_intern(m, name), .kind = ATTR_INT, .i = v});
}

Attr *attr_float(Module *m, Attr *list, const char *name, double v)
{
	return insert(m, list, (Attr){.name = ir_intern(m, name), .kind = ATTR_FLOAT, .f = v});
}

Attr *attr_str(Module *m, Attr *list, const char *name, const char *v)
{
	return insert(m, list, (Attr){.name = ir_intern(m, name), .kind = ATTR_STR, .s = ir_intern(m, v)});
}

Attr *attr_dtype(Module *m, Attr *list, const char *name, DType v)
{
	return insert(m, list, (Attr){.name = ir_intern(m, name), .kind = ATTR_DTYPE, .dtype = v});
}

Attr *attr_ints(Module *m, Attr *list, const char *name, int n, const int64_t *v)
{
	int64_t *copy = NEW_N(m->arena, int64_t, n);
	if (n)
		memcpy(copy, v, sizeof(*v) * (size_t)n);
	return insert(m, list, (Attr){.name = ir_intern(m, name), .kind = ATTR_INTS, .n = n, .ints = copy});
}

Attr *attr_floats(Module *m, Attr *list, const char *name, int n, const double *v)
{
	double *copy = NEW_N(m->arena, double, n);
	if (n)
		memcpy(copy, v, sizeof(*v) * (size_t)n);
	return insert(m, list, (Attr){.name = ir_intern(m, name), .kind = ATTR_FLOATS, .n = n, .floats = copy});
}

const Attr *attr_find(const Attr *list, const char *name)
{
	for (; list; list = list->next)
		if (!strcmp(list->name, name))
			return list;
	return NULL;
}

int64_t attr_get_int(const Attr *list, const char *name, int64_t otherwise)
{
	const Attr *a = attr_find(list, name);
	return a && a->kind == ATTR_INT ? a->i : otherwise;
}

double attr_get_float(const Attr *list, const char *name, double otherwise)
{
	const Attr *a = attr_find(list, name);
	return a && a->kind == ATTR_FLOAT ? a->f : otherwise;
}

const char *attr_get_str(const Attr *list, const char *name, const char *otherwise)
{
	const Attr *a = attr_find(list, name);
	return a && a->kind == ATTR_STR ? a->s : otherwise;
}

Attr *attr_without(Module *m, const Attr *list, int n, const char *const *names)
{
	Attr *head = NULL, **tail = &head;
	for (; list; list = list->next) {
		bool out = false;
		for (int i = 0; i < n; i++)
			out = out || !strcmp(list->name, names[i]);
		if (out)
			continue;
		*tail = NEW(m->arena, Attr);
		**tail = *list;
		tail = &(*tail)->next;
	}
	*tail = NULL;
	return head;
}

static bool one_equal(const Attr *a, const Attr *b)
{
	if (strcmp(a->name, b->name) || a->kind != b->kind || a->n != b->n)
		return false;
	switch (a->kind) {
	case ATTR_INT: return a->i == b->i;
	case ATTR_FLOAT: return !memcmp(&a->f, &b->f, sizeof(a->f));
	case ATTR_STR: return !strcmp(a->s, b->s);
	case ATTR_DTYPE: return a->dtype == b->dtype;
	case ATTR_INTS: return !a->n || !memcmp(a->ints, b->ints, sizeof(*a->ints) * (size_t)a->n);
	case ATTR_FLOATS: return !a->n || !memcmp(a->floats, b->floats, sizeof(*a->floats) * (size_t)a->n);
	}
	return false;
}

bool attr_equal(const Attr *a, const Attr *b)
{
	for (; a && b; a = a->next, b = b->next)
		if (!one_equal(a, b))
			return false;
	return !a && !b;
}
