/* frontend/onnx_ops_index.c: gathering, scattering, and searching along an axis. */
#include "frontend/onnx_import.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static Attr *axis_attr(Node *n, int axis)
{
	return attr_int(n->b->m, NULL, "axis", axis);
}

static bool operand_axis(Node *n, int64_t otherwise, int *axis)
{
	*axis = node_axis(n, node_int(n, "axis", otherwise), n->in[0]->type.rank);
	return *axis >= 0;
}

/* The padding_idx of an embedding that dynamo lowered; that row gets no gradient.  -1: there is none, or the model has
 * metadata of shardc.export, whose graphs stop that gradient themselves. */
static int64_t padding_of(const Node *n)
{
	const char *fx = n->im->meta ? NULL : names_metadata(n->proto, "pkg.torch.onnx.fx_node");
	const char *args = fx && strstr(fx, "aten.embedding.default](") ? strstr(fx, "](args = (") : NULL;
	long long row = -1;
	return args && sscanf(args, "](args = (%*[^,()], %*[^,()], %lld", &row) == 1 ? row : -1;
}

static Value *stop_row(Node *n, Value *y, int64_t row)
{
	int64_t dim[IR_MAX_RANK];
	const Type *t = &n->in[1]->type;
	Value *index = emit_ints(n->b, 0, NULL, t->dtype, &row);
	Value *hit = ir_emit2(n->b, OP_EQ, n->in[1], index);
	memcpy(dim, t->dim, sizeof(*dim) * (size_t)t->rank);
	dim[t->rank] = 1;
	return ir_emit3(n->b, OP_WHERE, ir_reshape(n->b, hit, t->rank + 1, dim), ir_emit1(n->b, OP_STOP_GRADIENT, y), y);
}

bool import_gather(Node *n)
{
	int axis;
	if (!node_want(n, 2, 2) || !operand_axis(n, 0, &axis))
		return false;
	n->out[0] = ir_emit(n->b, OP_GATHER, 2, n->in, axis_attr(n, axis));
	int64_t row = padding_of(n);
	bool table = n->out[0] && n->in[0]->type.rank == 2 && !axis && n->in[1]->type.rank < IR_MAX_RANK;
	if (row >= 0 && table && dtype_is_float(n->in[0]->type.dtype) && !n->im->o->infer)
		n->out[0] = stop_row(n, n->out[0], row);
	return true;
}

bool import_gather_elements(Node *n)
{
	int axis;
	if (!node_want(n, 2, 2) || !operand_axis(n, 0, &axis))
		return false;
	n->out[0] = ir_emit(n->b, OP_GATHER_ELEMENTS, 2, n->in, axis_attr(n, axis));
	return true;
}

bool import_gather_nd(Node *n)
{
	if (!node_want(n, 2, 2))
		return false;
	Attr *a = attr_int(n->b->m, NULL, "batch_dims", node_int(n, "batch_dims", 0));
	n->out[0] = ir_emit(n->b, OP_GATHER_ND, 2, n->in, a);
	return true;
}

bool import_scatter_elements(Node *n)
{
	int axis;
	if (!node_want(n, 3, 3) || !operand_axis(n, 0, &axis))
		return false;
	Attr *a = attr_str(n->b->m, axis_attr(n, axis), "reduce", node_str(n, "reduction", "none"));
	n->out[0] = ir_emit(n->b, OP_SCATTER_ELEMENTS, 3, n->in, a);
	return true;
}

bool import_scatter_nd(Node *n)
{
	if (!node_want(n, 3, 3))
		return false;
	Attr *a = attr_str(n->b->m, NULL, "reduce", node_str(n, "reduction", "none"));
	n->out[0] = ir_emit(n->b, OP_SCATTER_ND, 3, n->in, a);
	return true;
}

/* Compress keeps the rows of x along axis where a condition, known at compile time, holds; without an axis, of x
 * flattened. */
bool import_compress(Node *n)
{
	EvalTensor *cond = node_known(n, 1);
	if (!node_want(n, 2, 2))
		return false;
	if (!cond || dtype_is_float(cond->type.dtype))
		return node_refuse(n, "its condition depends on data, so the size of its result does: write it with masks "
			"(torch.where), which keep the size");
	Value *x = n->in[0];
	int axis = 0;
	int64_t numel = type_numel(&x->type), count = 0;
	if (node_has(n, "axis") && !operand_axis(n, 0, &axis))
		return false;
	if (!node_has(n, "axis"))
		x = ir_reshape(n->b, x, 1, &numel);
	int64_t limit = MIN(type_numel(&cond->type), x->type.dim[axis]);
	int64_t *ids = NEW_N(n->im->arena, int64_t, limit + 1);
	for (int64_t i = 0; i < limit; i++)
		if (cond->i[i])
			ids[count++] = i;
	Value *at = emit_ints(n->b, 1, &count, DT_I64, ids);
	n->out[0] = ir_emit(n->b, OP_GATHER, 2, (Value *[]){x, at}, axis_attr(n, axis));
	return true;
}

bool import_one_hot(Node *n)
{
	EvalTensor *depth = node_known(n, 1);
	int64_t dim[IR_MAX_RANK], wide[IR_MAX_RANK];
	if (!node_want(n, 3, 3))
		return false;
	if (!depth || type_numel(&depth->type) != 1)
		return node_refuse(n, "its depth depends on data: it must be known at compile time");
	int64_t classes = dtype_is_float(depth->type.dtype) ? int_of_double(depth->f[0]) : depth->i[0], two = 2;
	Value *ids = ir_cast(n->b, n->in[0], DT_I64), *values = n->in[2];
	int rank = ids->type.rank + 1, axis = rank > IR_MAX_RANK ? -1 : node_axis(n, node_int(n, "axis", -1), rank);
	if (axis < 0 || classes < 0 || values->type.rank != 1 || values->type.dim[0] != two)
		return axis < 0 ? false : node_error(n, "wants a depth of 0 or more and two values");
	for (int i = 0; i < rank; i++) {
		dim[i] = i == axis ? classes : 1;
		wide[i] = i == axis ? 1 : ids->type.dim[i - (i > axis)];
	}
	Value *negative = ir_emit2(n->b, OP_LT, ids, ir_const_int(n->b, DT_I64, 0));
	ids = ir_emit3(n->b, OP_WHERE, negative, emit_add(n->b, ids, ir_const_int(n->b, DT_I64, classes)), ids);
	ids = ir_reshape(n->b, ids, rank, wide);
	Value *hit = ir_emit2(n->b, OP_EQ, emit_iota(n->b, DT_I64, rank, dim, axis, 0, 1), ids);
	Value *off = ir_reshape(n->b, emit_slice(n->b, values, 0, 0, 1, 1), 0, NULL);
	Value *on = ir_reshape(n->b, emit_slice(n->b, values, 0, 1, 1, 1), 0, NULL);
	n->out[0] = ir_emit3(n->b, OP_WHERE, hit, on, off);
	return true;
}

bool import_arg_extreme(Node *n)
{
	int axis;
	if (!node_want(n, 1, 1) || !operand_axis(n, 0, &axis))
		return false;
	Attr *a = attr_int(n->b->m, axis_attr(n, axis), "last", node_int(n, "select_last_index", 0));
	a = attr_int(n->b->m, a, "keepdims", node_int(n, "keepdims", 1));
	n->out[0] = ir_emit(n->b, strcmp(n->op, "ArgMax") ? OP_ARGMIN : OP_ARGMAX, 1, n->in, a);
	return true;
}

bool import_topk(Node *n)
{
	const int64_t *list;
	int count, axis;
	int64_t k = node_int(n, "k", 0);
	if (!node_want(n, 1, 2) || !operand_axis(n, -1, &axis))
		return false;
	if (n->opset >= 10) {
		if (!node_known_ints(n, 1, "k", &list, &count))
			return false;
		if (count != 1)
			return node_error(n, "k has %d elements", count);
		k = list[0];
	}
	if (k < 0 || k > n->in[0]->type.dim[axis])
		return node_error(n, "k is %" PRId64 ", the axis has %" PRId64, k, n->in[0]->type.dim[axis]);
	Attr *a = attr_int(n->b->m, axis_attr(n, axis), "k", k);
	a = attr_int(n->b->m, a, "largest", node_int(n, "largest", 1));
	const Op *op = ir_emit_op(n->b, OP_TOPK, 1, n->in, a, NULL);
	for (int i = 0; i < n->n_out && i < 2; i++)
		n->out[i] = op ? op->out[i] : &n->im->m->poison;
	return true;
}

bool import_cumsum(Node *n)
{
	const int64_t *list;
	int count;
	if (!node_want(n, 2, 2) || !node_known_ints(n, 1, "axis", &list, &count))
		return false;
	int axis = count == 1 ? node_axis(n, list[0], n->in[0]->type.rank) : -1;
	if (axis < 0)
		return count == 1 ? false : node_error(n, "axis has %d elements", count);
	Attr *a = attr_int(n->b->m, axis_attr(n, axis), "exclusive", node_int(n, "exclusive", 0));
	n->out[0] = ir_emit(n->b, OP_CUMSUM, 1, n->in, attr_int(n->b->m, a, "reverse", node_int(n, "reverse", 0)));
	return true;
}

/* ReverseSequence: out[t] = x[len - 1 - t] where t < len, else x[t]. */
bool import_reverse_sequence(Node *n)
{
	if (!node_want(n, 2, 2))
		return false;
	Value *x = n->in[0];
	int batch = node_axis(n, node_int(n, "batch_axis", 1), x->type.rank);
	int time = node_axis(n, node_int(n, "time_axis", 0), x->type.rank);
	if (batch < 0 || time < 0)
		return false;
	if (batch == time || type_numel(&n->in[1]->type) != x->type.dim[batch])
		return node_error(n, "wants one length per element of axis %d, and the time axis %d to be another",
			batch, time);
	int64_t along[IR_MAX_RANK], across[IR_MAX_RANK];
	for (int i = 0; i < x->type.rank; i++) {
		along[i] = i == time ? x->type.dim[i] : 1;
		across[i] = i == batch ? x->type.dim[i] : 1;
	}
	Type wide = x->type;
	wide.dtype = DT_I64;
	Value *t = emit_iota(n->b, DT_I64, x->type.rank, along, time, 0, 1);
	const EvalTensor *known = node_known(n, 1);
	for (int64_t i = 0; known && i < x->type.dim[batch]; i++)
		if (known->i[i] < 0 || known->i[i] > x->type.dim[time])
			return node_error(n, "its sequence length %lld is outside 0..%lld", (long long)known->i[i],
				(long long)x->type.dim[time]);
	Value *len = ir_cast(n->b, n->in[1], DT_I64);
	len = known ? len : emit_in_range(n->b, len, 0, (double)x->type.dim[time], "sequence length");
	len = ir_reshape(n->b, len, x->type.rank, across);
	Value *last = emit_sub(n->b, len, ir_const_int(n->b, DT_I64, 1));
	Value *at = ir_emit3(n->b, OP_WHERE, ir_emit2(n->b, OP_LT, t, len), emit_sub(n->b, last, t), t);
	at = ir_broadcast(n->b, at, &wide);
	n->out[0] = ir_emit(n->b, OP_GATHER_ELEMENTS, 2, (Value *[]){x, at}, axis_attr(n, time));
	return true;
}
