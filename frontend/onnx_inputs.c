/* frontend/onnx_inputs.c: makes symbols of graph inputs and registers initializers; binds symbolic dims to numbers.
 *
 * Refuses dims that no flag binds, naming the input, the dim and the flag; negative and overflowing dims; inputs that
 * are not tensors; flags that name nothing in the model. */
#include "frontend/onnx_import.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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

static bool input_shape(Import *im, const char *where, const char *name, const Onnx__TensorTypeProto *p,
	Used *used, Type *t)
{
	const char *text = option_for(&im->o->graph.input_shape, name, used->shapes);
	bool good = true;
	if (text)
		return shape_of_option(im, where, text, t);
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

static bool input_type(Import *im, const char *where, const Onnx__ValueInfoProto *info, Used *used, Type *t)
{
	const Onnx__TypeProto *p = info->type;
	DType dtype;
	if (!p || !p->tensor_type) {
		const char *what = !p ? "of unknown type" : p->has_sequence_type ? "a sequence"
			: p->has_optional_type ? "optional" : p->has_map_type ? "a map" : "not a tensor";
		diag_error(im->d, where, "refused: it is %s, inputs are tensors", what);
		return false;
	}
	if (!dtype_from_onnx(p->tensor_type->elem_type, &dtype)) {
		diag_error(im->d, where, "refused: dtype %s is not supported (elem_type %d)",
			onnx_dtype_name(p->tensor_type->elem_type), p->tensor_type->elem_type);
		return false;
	}
	*t = type_scalar(dtype);
	if (!input_shape(im, where, info->name, p->tensor_type, used, t))
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

static bool import_input(Import *im, Frame *frame, const Onnx__ValueInfoProto *info, Used *used)
{
	const char *name = info->name ? info->name : "";
	const char *where = arena_printf(im->arena, "%s: input \"%s\"", im->onnx->path,
		str_escape(im->arena, ESCAPE_IR, name));
	Type t;
	bool as_const = is_const(im, name, used->consts);
	if (map_has(im->weights, name))
		return true; /* IR version 3 lists initializers as inputs, too */
	if (!input_type(im, where, info, used, &t)) {
		define(im, frame, where, name, &im->m->poison, NULL);
		return false;
	}
	Symbol *s = ir_add_symbol(im->m, SYM_INPUT, name, t);
	s->onnx = ir_intern(im->m, name);
	set_batch(im, where, s, as_const);
	im->b.loc = loc_new(im->m, "", "", "", "");
	define(im, frame, where, name, ir_read(&im->b, s), NULL);
	return true;
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
	for (int i = 0; i < g->inputs.n; i++)
		good = import_input(im, frame, g->inputs.at[i], &used) && good;
	for (int i = 0; i < o->bind.n; i++)
		used.binds[i] = used.binds[i] || dim_exists(g, o->bind.at[i]);
	unused_option(im, "--bind", &o->bind, used.binds, "dimension");
	unused_option(im, "--input-shape", &o->input_shape, used.shapes, "input");
	unused_option(im, "--const", &o->constants, used.consts, "input");
	return good;
}
