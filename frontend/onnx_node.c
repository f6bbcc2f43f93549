/* frontend/onnx_node.c: access to a node's attributes and to operands known at compile time; errors of nodes.
 *
 * Attributes of nodes in function bodies may refer to attributes of the call; they are resolved here, through nested
 * calls. */
#include "frontend/onnx_import.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

bool node_error(Node *n, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	const char *where = loc_where(n->im->m, n->b->loc), *line = node_line(n);
	diag_error(n->im->d, where, "%s", arena_vprintf(n->im->arena, fmt, ap));
	va_end(ap);
	if (line)
		diag_note(n->im->d, where, "the node was made from %s", line);
	return false;
}

/* ---- attributes ---- */

static const Onnx__AttributeProto *find_attr(size_t n, Onnx__AttributeProto *const *list, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(list[i]->name, name))
			return list[i];
	return NULL;
}

static const Onnx__AttributeProto *resolve(const Frame *f, const Onnx__NodeProto *node, const char *name)
{
	const Onnx__AttributeProto *a = find_attr(node->n_attribute, node->attribute, name);
	while (a && a->ref_attr_name && *a->ref_attr_name && f) {
		const char *ref = a->ref_attr_name;
		while (f && !f->function)
			f = f->outer;
		if (!f)
			return NULL;
		a = find_attr(f->call->n_attribute, f->call->attribute, ref);
		if (!a)
			return find_attr(f->function->n_attribute_proto, f->function->attribute_proto, ref);
		f = f->caller;
	}
	return a;
}

const Onnx__AttributeProto *node_attr(const Node *n, const char *name)
{
	return resolve(n->frame, n->proto, name);
}

bool node_has(const Node *n, const char *name)
{
	return node_attr(n, name);
}

int64_t node_int(const Node *n, const char *name, int64_t otherwise)
{
	const Onnx__AttributeProto *a = node_attr(n, name);
	return a && a->has_i ? a->i : otherwise;
}

double node_float(const Node *n, const char *name, double otherwise)
{
	const Onnx__AttributeProto *a = node_attr(n, name);
	return a && a->has_f ? (double)a->f : otherwise;
}

const char *node_str(const Node *n, const char *name, const char *otherwise)
{
	const Onnx__AttributeProto *a = node_attr(n, name);
	return a && a->has_s ? wire_str(n->im->arena, (Span){a->s.data, a->s.len}) : otherwise;
}

int node_ints(const Node *n, const char *name, const int64_t **out)
{
	const Onnx__AttributeProto *a = node_attr(n, name);
	if (!a)
		return -1;
	*out = a->ints;
	return (int)a->n_ints;
}

int node_axis(Node *n, int64_t axis, int rank)
{
	if (axis < -rank || axis >= MAX(rank, 1)) {
		node_error(n, "axis %" PRId64 " is outside %d..%d", axis, -rank, rank - 1);
		return -1;
	}
	return (int)(axis < 0 ? axis + rank : axis);
}

bool node_dtype(Node *n, const char *name, DType *out)
{
	const Narrow *narrow;
	if (!node_element(n, name, out, &narrow))
		return false;
	return !narrow || node_refuse(n, "%s is %s, in which it cannot compute: put a Cast behind it instead", name,
		onnx_dtype_name(narrow->onnx));
}

bool node_element(Node *n, const char *name, DType *out, const Narrow **narrow)
{
	int64_t given = node_int(n, name, 0);
	int onnx = given >= 0 && given <= INT32_MAX ? (int)given : -1;
	if (element_from_onnx(onnx, out, narrow))
		return true;
	return node_refuse(n, "dtype %s is not supported (%s is %" PRId64 ")", onnx_dtype_name(onnx), name, given);
}

/* ---- operands ---- */

bool node_want(Node *n, int n_min, int n_max)
{
	for (int i = 0; i < n_min; i++)
		if (!node_in(n, i))
			return node_error(n, "operand %d is missing", i);
	if (n->n_in > n_max)
		return node_error(n, "%d operands, at most %d wanted", n->n_in, n_max);
	return true;
}

EvalTensor *import_known(Import *im, Value *v)
{
	if (v && pseudo_is(im, v))
		return NULL;
	if (v && v->id < im->cap_known && im->known[v->id] == KNOWN_GIVEN)
		v = given_value(im, v);
	if (!v || v->id >= im->cap_known || im->known[v->id] != KNOWN_LITERALLY)
		return NULL;
	return eval_constant(im->eval, v, EVAL_MAX);
}

EvalTensor *node_known(Node *n, int i)
{
	return import_known(n->im, node_in(n, i));
}

bool node_known_ints(Node *n, int i, const char *what, const int64_t **out, int *count)
{
	Value *v = node_in(n, i);
	if (!v)
		return node_error(n, "operand %d (%s) is missing", i, what);
	if (dtype_is_float(v->type.dtype))
		return node_error(n, "operand %d (%s) is %s, integers are wanted", i, what,
			type_str(n->im->arena, &v->type));
	EvalTensor *t = node_known(n, i);
	if (!t && eval_exhausted(n->im->eval))
		return node_refuse(n, "its %s takes too long to compute: constants of a model may take some seconds", what);
	if (!t && v->id < n->im->cap_known && n->im->known[v->id] == KNOWN_LITERALLY)
		return node_refuse(n, "its %s follows from a constant of more than %d numbers, which is not computed at "
			"compile time", what, EVAL_MAX);
	if (!t)
		return node_refuse(n, "its %s depends on data: it must be known at compile time", what);
	*out = t->i;
	*count = (int)type_numel(&t->type);
	return true;
}

bool node_list(Node *n, const char *attr, int i, const int64_t **out, int *count)
{
	*count = node_ints(n, attr, out);
	if (*count >= 0 || !node_in(n, i))
		return true;
	return node_known_ints(n, i, attr, out, count);
}

bool node_axes(Node *n, int i, int rank, int64_t *axes, int *count, bool *given)
{
	const int64_t *list = NULL;
	bool seen[IR_MAX_RANK] = {false};
	int n_list;
	if (!node_list(n, "axes", i, &list, &n_list))
		return false;
	*given = n_list > 0;
	*count = 0;
	for (int k = 0; k < n_list; k++) {
		int axis = node_axis(n, list[k], rank);
		if (axis < 0)
			return false;
		if (rank && seen[axis])
			return node_error(n, "axis %d is named twice", axis);
		seen[axis] = true;
	}
	for (int k = 0; k < rank; k++)
		if (seen[k])
			axes[(*count)++] = k;
	return true;
}
