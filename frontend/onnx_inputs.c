/* frontend/onnx_inputs.c: makes symbols of graph inputs and registers initializers; binds symbolic dims to numbers.
 *
 * Refuses dims that no flag binds, naming the input, the dim and the flag; negative and overflowing dims; inputs that
 * are neither tensors nor lists of tensors; flags that name nothing in the model. */
#include "frontend/onnx_pseudo.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/npy.h"

#include "base/sizes.h"

/* The text after "NAME=" of the option that names it, NULL = none. */
static const char *option_for(const OptionList *list, const char *name, bool *used)
{
	size_t len = strlen(name);
	const char *found = NULL;
	for (int i = 0; i < list->n; i++) {
		if (!strncmp(list->at[i], name, len) && list->at[i][len] == '=') {
			found = list->at[i] + len + 1;
			used[i] = true;
		}
	}
	return found;
}

typedef struct Used { bool *binds, *shapes, *consts; } Used;

/* Checks that each value of the flag has the form NAME=VALUE, and that no name is given two different values. */
static bool named_once(Import *im, const char *flag, const char *form, const OptionList *list)
{
	bool ok = true;
	for (int i = 0; i < list->n; i++) {
		if (*list->at[i] == '=' || !strchr(list->at[i], '=')) {
			diag_error(im->d, flag, "\"%s\" is not %s", list->at[i], form);
			ok = false;
		}
		for (int k = 0; k < i; k++) {
			size_t name = strcspn(list->at[i], "=");
			if (strncmp(list->at[i], list->at[k], name + 1) || !strcmp(list->at[i], list->at[k]))
				continue;
			diag_error(im->d, flag, "\"%.*s\" is given twice, as \"%s\" and \"%s\"", (int)name, list->at[i],
				list->at[k], list->at[i]);
			ok = false;
		}
	}
	return ok;
}

static bool parse_dim(const char *s, const char **end, int64_t *out)
{
	char *e;
	errno = 0;
	long long v = strtoll(s, &e, 10);
	*end = e;
	*out = v;
	return e != s && !errno && v >= 0;
}

static bool shape_of_option(Import *im, const char *where, const char *text, Type *t)
{
	const char *s = text;
	t->rank = 0;
	while (*s) {
		if (t->rank == IR_MAX_RANK || !parse_dim(s, &s, &t->dim[t->rank++]) || (*s && *s != 'x')
				|| (*s == 'x' && !s[1])) {
			diag_error(im->d, where, "--input-shape wants dims such as 8x128, not \"%s\"", text);
			return false;
		}
		s += *s == 'x';
	}
	return true;
}

/* Refuses an --input-shape that has another number where --bind has one, or, of several sizes, the one of this plan. */
static bool agrees_with_binds(Import *im, const char *where, const Onnx__TensorShapeProto *p, const Type *t, bool *used)
{
	bool good = true;
	for (size_t i = 0; p && i < p->n_dim && p->n_dim == (size_t)t->rank; i++) {
		const char *param = p->dim[i]->dim_param ? p->dim[i]->dim_param : "";
		const char *text = *param ? option_for(&im->o->graph.bind, param, used) : NULL;
		int64_t size[SIZES_MAX];
		int n = text ? sizes_of(text, size) : 0;
		if (!n || size[MAX(n - 1 - im->o->smaller, 0)] == t->dim[i])
			continue;
		diag_error(im->d, where, "--input-shape says that dimension %zu, \"%s\", is %" PRId64 ", and --bind %s=%s: "
			"leave one of them out", i, param, t->dim[i], param, text);
		good = false;
	}
	return good;
}

static bool bind_dim(Import *im, const char *where, const char *input, const Onnx__DimensionProto *dim,
	int index, bool *used, int64_t *out)
{
	const char *param = dim->dim_param ? dim->dim_param : "";
	if (dim->has_dim_value && !*param) {
		*out = dim->dim_value;
		if (*out < 0)
			diag_error(im->d, where, "dimension %d is negative: %" PRId64, index, *out);
		return *out >= 0;
	}
	const char *text = *param ? option_for(&im->o->graph.bind, param, used) : NULL;
	int64_t size[SIZES_MAX];
	int n = text ? sizes_of(text, size) : 0;
	if (n) {
		*out = size[MAX(n - 1 - im->o->smaller, 0)];
		return true;
	}
	if (text)
		diag_error(im->d, where, "--bind %s wants a number, not \"%s\"", param, text);
	else if (*param)
		diag_error(im->d, where, "dimension %d, \"%s\", is not bound: give --bind %s=N or --input-shape %s=...",
			index, param, param, input);
	else
		diag_error(im->d, where, "dimension %d is not known: give --input-shape %s=...", index, input);
	return false;
}

/* Reads the shape of input k of the graph in the folder of inputs; false: it is not there. */
static bool given_shape(Import *im, const char *name, int k, Type *t)
{
	const char *dir = im->o->inputs, *npy = dir ? npy_input(im->arena, dir, name, k) : NULL;
	const char *pb = arena_printf(im->arena, "%s/input_%d.pb", dir ? dir : "", k);
	HostTensor h = {.type = *t};
	Npy file;
	if (npy && npy_open(&file, npy, im->d)) {
		h.type = type_tensor(t->dtype, file.header.rank, file.header.dim);
		npy_close(&file);
	} else if (npy || !dir || access(pb, R_OK) || !onnx_tensor_load(pb, im->arena, &h, im->d)) {
		return false;
	}
	*t = type_tensor(t->dtype, h.type.rank, h.type.dim);
	return true;
}

/* Whether the shape has dims that no flag binds. */
static bool has_unbound(Import *im, const Onnx__TensorShapeProto *s, Used *used)
{
	for (size_t i = 0; s && i < s->n_dim; i++) {
		const char *param = s->dim[i]->dim_param;
		bool named = param && *param;
		if (named ? !option_for(&im->o->graph.bind, param, used->binds) : !s->dim[i]->has_dim_value)
			return true;
	}
	return !s;
}

/* k: the number of the input in the graph, for the file that has its shape where no flag gives it; -1: none has. */
static bool input_shape(Import *im, const char *where, const char *name, const Onnx__TensorTypeProto *p, int k,
	Used *used, Type *t)
{
	const char *text = option_for(&im->o->graph.input_shape, name, used->shapes);
	bool good = true;
	if (text)
		return shape_of_option(im, where, text, t) && agrees_with_binds(im, where, p->shape, t, used->binds);
	if (k >= 0 && has_unbound(im, p->shape, used) && given_shape(im, name, k, t))
		return true;
	if (!p->shape) {
		diag_error(im->d, where, "its shape is not known: give --input-shape %s=...", name);
		return false;
	}
	if (p->shape->n_dim > IR_MAX_RANK) {
		diag_error(im->d, where, "rank %zu is above %d", p->shape->n_dim, IR_MAX_RANK);
		return false;
	}
	t->rank = (int)p->shape->n_dim;
	for (int i = 0; i < t->rank; i++)
		good = bind_dim(im, where, name, p->shape->dim[i], i, used->binds, &t->dim[i]) && good;
	return good;
}

static bool input_type(Import *im, const char *where, const Onnx__ValueInfoProto *info, int k, Used *used, Type *t,
	const Narrow **narrow)
{
	const Onnx__TypeProto *p = info->type;
	DType dtype;
	if (!p || !p->tensor_type) {
		const char *what = !p ? "of unknown type" : p->has_map_type ? "a map" : "not a tensor";
		diag_error(im->d, where, "refused: it is %s, inputs are tensors, or sequences or optionals of them", what);
		return false;
	}
	if (!element_from_onnx(p->tensor_type->elem_type, &dtype, narrow)) {
		diag_error(im->d, where, "refused: dtype %s is not supported (elem_type %d)",
			onnx_dtype_name(p->tensor_type->elem_type), p->tensor_type->elem_type);
		return false;
	}
	*t = type_scalar(dtype);
	if (!input_shape(im, where, info->name, p->tensor_type, k, used, t))
		return false;
	if (onnx_dims_numel(t->rank, t->dim) < 0) {
		diag_error(im->d, where, "its dimensions overflow");
		return false;
	}
	return true;
}

static bool is_const(const Import *im, const char *name, bool *used)
{
	bool found = false;
	for (int i = 0; i < im->o->graph.constants.n; i++) {
		if (!strcmp(im->o->graph.constants.at[i], name))
			found = used[i] = true;
	}
	return found;
}

static void define(Import *im, Frame *frame, const char *where, const char *name, Value *v, Weight *w)
{
	if (map_has(frame->values, name)) {
		diag_error(im->d, where, "the name stands for two inputs or initializers");
		return;
	}
	OnnxValue *ov = NEW(im->arena, OnnxValue);
	ov->v = v;
	ov->w = w;
	map_put(frame->values, name, ov);
}

static void set_batch(Import *im, const char *where, Symbol *s, bool as_const)
{
	s->batched = !as_const && !im->o->infer && s->type.rank > 0;
	if (!s->batched)
		return;
	if (!s->type.dim[0])
		diag_error(im->d, where, "it has no samples: its first dimension is 0; give --const %s if that is no sample "
			"axis", s->name);
	if (!im->m->batch)
		im->m->batch = s->type.dim[0];
	if (s->type.dim[0] != im->m->batch)
		diag_error(im->d, where, "its first dimension is %" PRId64 ", that of the first input %" PRId64 ": give "
			"--const %s if it has no sample axis", s->type.dim[0], im->m->batch, s->name);
}

/* Adds the symbol of an input or of an element of one, whose name in the model is `onnx`. */
static Value *add_input(Import *im, const char *where, const char *name, const char *onnx, Type t, const Used *used)
{
	Symbol *s = ir_add_symbol(im->m, SYM_INPUT, name, t);
	if (strcmp(s->name, name) != 0)
		diag_error(im->d, where, "\"%s\" is the name of another input, too", name);
	s->onnx = ir_intern(im->m, onnx);
	set_batch(im, where, s, is_const(im, name, used->consts));
	im->b.loc = loc_new(im->m, "", "", "", "");
	return ir_read(&im->b, s);
}

/* ---- sequences and optionals ---- */

/* An input that is a list.  Each element is an input of its own, NAME.0, NAME.1, .. */
typedef struct ListInput {
	const char *name, *where;
	bool optional;                      /* of one tensor at most */
	const Onnx__TensorTypeProto *of;    /* the type of the elements */
	HostTensorVec given;                /* the elements in the folder of inputs; only their types count */
	bool is_given;
	int n;
} ListInput;

static const char *element_name(Import *im, const ListInput *l, int i)
{
	return arena_printf(im->arena, "%s.%d", l->name, i);
}

/* The type in a sequence or optional of this type; NULL: it is neither. */
static const Onnx__TypeProto *type_inside(Import *im, const Onnx__TypeProto *p)
{
	enum { ELEM_TYPE = 1 };
	bool list = p && (p->has_sequence_type || p->has_optional_type);
	ProtobufCBinaryData b = list && p->has_sequence_type ? p->sequence_type : list ? p->optional_type
		: (ProtobufCBinaryData){0};
	for (Wire w = wire_of((Span){b.data, b.len}); list && wire_next(&w);)
		if (w.field == ELEM_TYPE && w.type == 2)
			return onnx__type_proto__unpack(&im->onnx->allocator, w.bytes.n, w.bytes.at);
	return NULL;
}

/* Looks for the elements in the folder of inputs.  k: the number of the input in the graph. */
static bool find_given(Import *im, ListInput *l, int k)
{
	const char *dir = im->o->inputs, *pb = arena_printf(im->arena, "%s/input_%d.pb", dir ? dir : "", k), *npy;
	while (dir && !access((npy = npy_path(im->arena, dir, element_name(im, l, l->given.n))), R_OK)) {
		Npy file;
		if (!npy_open(&file, npy, im->d))
			return false;
		const NpyHeader *h = &file.header;
		vec_push(im->arena, &l->given, ((HostTensor){.type = type_tensor(h->dtype, h->rank, h->dim)}));
		npy_close(&file);
	}
	l->is_given = l->given.n > 0 || (dir && !access(pb, R_OK));
	return l->given.n || !l->is_given || onnx_list_load(pb, im->arena, &l->given, im->d);
}

/* Finds how many elements there are: as many as have an --input-shape, or are given; an optional tensor is there. */
static bool count_elements(Import *im, ListInput *l, int k, const Used *used)
{
	while (option_for(&im->o->graph.input_shape, element_name(im, l, l->n), used->shapes))
		l->n++;
	if (!l->n && !find_given(im, l, k))
		return false;
	if (l->n || l->is_given || l->optional) {
		l->n = l->n ? l->n : l->is_given ? l->given.n : 1;
		return true;
	}
	diag_error(im->d, l->where, "it is a sequence, and how many elements it has must be known: give the shape of each, "
		"--input-shape %s.0=DIMS --input-shape %s.1=DIMS ..", l->name, l->name);
	return false;
}

static bool element_type(Import *im, const ListInput *l, int i, Used *used, Type *t)
{
	const char *name = element_name(im, l, i), *text = option_for(&im->o->graph.input_shape, name, used->shapes);
	DType dtype;
	if (!dtype_from_onnx(l->of->elem_type, &dtype)) {
		diag_error(im->d, l->where, "refused: dtype %s is not supported (elem_type %d)",
			onnx_dtype_name(l->of->elem_type), l->of->elem_type);
		return false;
	}
	*t = type_scalar(dtype);
	if (!text && i < l->given.n)
		*t = type_tensor(dtype, l->given.at[i].type.rank, l->given.at[i].type.dim);
	else if (!input_shape(im, l->where, name, l->of, -1, used, t))
		return false;
	if (onnx_dims_numel(t->rank, t->dim) < 0)
		diag_error(im->d, l->where, "the dimensions of element %d overflow", i);
	return onnx_dims_numel(t->rank, t->dim) >= 0;
}

/* The value of an input that is a sequence or optional; NULL after an error. */
static Value *list_value(Import *im, ListInput *l, const Onnx__TypeProto *type, int k, Used *used)
{
	const Onnx__TypeProto *inside = type_inside(im, type), *deeper = type_inside(im, inside);
	const Onnx__TypeProto *of = deeper ? deeper : inside;
	Value *v;
	l->optional = type->has_optional_type && !deeper;
	if (!of || !of->tensor_type || (deeper && (type->has_sequence_type || !inside->has_sequence_type))) {
		diag_error(im->d, l->where, "refused: it is a list of other things than tensors");
		return NULL;
	}
	l->of = of->tensor_type;
	if (!count_elements(im, l, k, used))
		return NULL;
	Value **list = NEW_N(im->arena, Value *, l->n + 1);
	for (int i = 0; i < l->n; i++) {
		Type t;
		if (!element_type(im, l, i, used, &t))
			return NULL;
		list[i] = add_input(im, l->where, element_name(im, l, i), l->name, t, used);
	}
	v = sequence_new(im, l->optional ? PSEUDO_OPTIONAL : PSEUDO_SEQUENCE, l->n, list);
	return deeper ? sequence_new(im, PSEUDO_OPTIONAL, 1, &v) : v;
}

/* ---- inputs ---- */

/* k: the number of inputs before it in the graph that are no initializers. */
static bool import_input(Import *im, Frame *frame, const Onnx__ValueInfoProto *info, int k, Used *used)
{
	const char *name = info->name ? info->name : "";
	const char *where = arena_printf(im->arena, "%s: input \"%s\"", im->onnx->path,
		str_escape(im->arena, ESCAPE_IR, name));
	const Onnx__TypeProto *p = info->type;
	Value *v = NULL;
	Type t;
	const Narrow *narrow = NULL;
	if (p && (p->has_sequence_type || p->has_optional_type)) {
		ListInput l = {.name = name, .where = where};
		v = list_value(im, &l, p, k, used);
	} else if (input_type(im, where, info, k, used, &t, &narrow)) {
		v = add_input(im, where, name, name, t, used);
	}
	define(im, frame, where, name, v ? v : &im->m->poison, NULL);
	if (v && narrow) {
		v->op->sym->narrow = narrow->text;
		((OnnxValue *)map_get(frame->values, name))->narrow = narrow;
	}
	return v;
}

static void unused_option(Import *im, const char *flag, const OptionList *list, const bool *used, const char *what)
{
	for (int i = 0; i < list->n; i++)
		if (!used[i])
			diag_error(im->d, im->onnx->path, "%s %s: the model has no such %s", flag, list->at[i], what);
}

static bool dim_exists(const OnnxGraph *g, const char *bind)
{
	size_t n = strcspn(bind, "=");
	for (int i = 0; i < g->inputs.n; i++) {
		const Onnx__TypeProto *t = g->inputs.at[i]->type;
		const Onnx__TensorShapeProto *shape = t && t->tensor_type ? t->tensor_type->shape : NULL;
		for (size_t k = 0; shape && k < shape->n_dim; k++) {
			const char *p = shape->dim[k]->dim_param;
			if (p && strlen(p) == n && !strncmp(p, bind, n))
				return true;
		}
	}
	return false;
}

bool inputs_import(Import *im, Frame *frame)
{
	const OnnxGraph *g = &im->onnx->graph;
	const GraphOptions *o = &im->o->graph;
	Used used = {NEW_N(im->arena, bool, o->bind.n + 1), NEW_N(im->arena, bool, o->input_shape.n + 1),
		NEW_N(im->arena, bool, o->constants.n + 1)};
	bool good = named_once(im, "--bind", "DIM=N, such as batch=8", &o->bind);
	good = named_once(im, "--input-shape", "NAME=DIMS, such as x=8x128", &o->input_shape) && good;
	for (int i = 0; i < g->tensors.n; i++) {
		const OnnxTensor *t = &g->tensors.at[i];
		const char *where = arena_printf(im->arena, "%s: tensor \"%s\"", im->onnx->path,
			str_escape(im->arena, ESCAPE_IR, t->name));
		define(im, frame, where, t->name, NULL, params_add(im, t));
	}
	for (int i = 0, k = 0; i < g->inputs.n; i++) {
		const char *name = g->inputs.at[i]->name;
		if (!name || !map_has(im->weights, name)) /* IR version 3 lists initializers as inputs, too */
			good = import_input(im, frame, g->inputs.at[i], k++, &used) && good;
	}
	params_add_inner(im); /* behind the inputs: a name of a subgraph may be one of them */
	for (int i = 0; i < o->bind.n; i++)
		used.binds[i] = used.binds[i] || dim_exists(g, o->bind.at[i]);
	unused_option(im, "--bind", &o->bind, used.binds, "dimension");
	unused_option(im, "--input-shape", &o->input_shape, used.shapes, "input");
	unused_option(im, "--const", &o->constants, used.consts, "input");
	return good;
}
