/* frontend/onnx_ops_scan.c: imports products along an axis, and writes at a place that differs by sample. */
#include "frontend/onnx_import.h"

#include <string.h>

/* x moved by k places along axis, away from the start or towards it; 1 comes in. */
static Value *shifted(Builder *b, Value *x, int axis, int64_t k, bool back)
{
	int64_t before[IR_MAX_RANK] = {0}, after[IR_MAX_RANK] = {0}, n = x->type.dim[axis];
	*(back ? &after[axis] : &before[axis]) = k;
	x = emit_slice(b, x, axis, back ? k : 0, n - k, 1);
	Attr *a = attr_ints(b->m, attr_str(b->m, NULL, "mode", "constant"), "before", x->type.rank, before);
	return ir_emit(b, OP_PAD, 1, &x, attr_float(b->m, attr_ints(b->m, a, "after", x->type.rank, after), "value", 1));
}

/* Products of 1, 2, 4, .. neighbours, so that the gradient is exact where elements are 0. */
bool import_cumprod(Node *n)
{
	const int64_t *list;
	int count;
	if (!node_want(n, 2, 2) || !node_known_ints(n, 1, "axis", &list, &count))
		return false;
	int axis = count == 1 ? node_axis(n, list[0], n->in[0]->type.rank) : -1;
	if (axis < 0)
		return count == 1 ? false : node_error(n, "axis has %d elements", count);
	Value *y = n->in[0];
	int64_t size = y->type.dim[axis];
	bool reverse = node_int(n, "reverse", 0);
	if (node_int(n, "exclusive", 0) && size)
		y = shifted(n->b, y, axis, 1, reverse);
	for (int64_t k = 1; k < size; k *= 2)
		y = emit_mul(n->b, y, shifted(n->b, y, axis, k, reverse));
	n->out[0] = y;
	return true;
}

/* The rows of update stand in the cache from the sample's index on, along axis. */
bool import_tensor_scatter(Node *n)
{
	if (!node_want(n, 2, 3))
		return false;
	Value *cache = n->in[0], *update = n->in[1], *start = node_in(n, 2);
	const char *mode = node_str(n, "mode", "linear");
	int rank = cache->type.rank, axis = rank ? node_axis(n, node_int(n, "axis", -2), rank) : 0;
	int64_t dim[IR_MAX_RANK];
	if (axis < 0)
		return false;
	if (strcmp(mode, "linear") && strcmp(mode, "circular"))
		return node_error(n, "mode is \"%s\", expected linear or circular", mode);
	if (axis == 0 || update->type.rank != rank)
		return node_error(n, "cache %s and update %s along axis %d: expected tensors of one rank, whose axis 0 is "
			"samples", type_str(n->im->arena, &cache->type), type_str(n->im->arena, &update->type), axis);
	for (int i = 0; i < rank; i++)
		dim[i] = i == axis ? update->type.dim[i] : 1;
	Value *at = emit_iota(n->b, DT_I64, rank, dim, axis, 0, 1);
	if (start && (start->type.rank != 1 || start->type.dim[0] != cache->type.dim[0]))
		return node_error(n, "write_indices are %s, expected one for each of %lld samples",
			type_str(n->im->arena, &start->type), (long long)cache->type.dim[0]);
	dim[axis] = 1;
	dim[0] = cache->type.dim[0];
	if (start)
		at = emit_add(n->b, at, ir_reshape(n->b, ir_cast(n->b, start, DT_I64), rank, dim));
	if (!strcmp(mode, "circular"))
		at = ir_emit(n->b, OP_MOD, 2, (Value *[]){at, ir_const_int(n->b, DT_I64, cache->type.dim[axis])},
			attr_int(n->b->m, NULL, "fmod", 0));
	Type full = update->type;
	full.dtype = DT_I64;
	Attr *a = attr_int(n->b->m, attr_str(n->b->m, NULL, "reduce", "none"), "axis", axis);
	n->out[0] = ir_emit(n->b, OP_SCATTER_ELEMENTS, 3, (Value *[]){cache, ir_broadcast(n->b, at, &full), update}, a);
	return true;
}
