/* codegen/lower_move.c: lowers data movement and index ops to kernel calls.
 *
 * Kernels take (outer, n, inner) around an axis, or whole shapes; they take element sizes instead of dtypes. */
#include "codegen/lower.h"

#include <inttypes.h>
#include <string.h>

#define I64 "%" PRId64

static int elem_bytes(const Value *v)
{
	return dtype_info[v->type.dtype].bytes;
}

static const char *dims(Emit *e, const Type *t)
{
	return emit_c_ints(e, t->rank, t->dim);
}

static const char *list(Emit *e, const Op *op, const char *name)
{
	const Attr *a = emit_list(op, name);
	return emit_c_ints(e, a->n, a->ints);
}

void lower_transpose(Emit *e, const Op *op)
{
	const Type *x = &op_in(op, 0)->type;
	emit_kernel(e, op, "o0 i0", "%d, %s, %s, %d", x->rank, dims(e, x), list(e, op, "perm"),
		elem_bytes(op->out[0]));
}

void lower_slice(Emit *e, const Op *op)
{
	const Type *x = &op_in(op, 0)->type;
	emit_kernel(e, op, "o0 i0", "%d, %s, %s, %s, %s, %d", x->rank, dims(e, &op->out[0]->type), dims(e, x),
		list(e, op, "starts"), list(e, op, "steps"), elem_bytes(op->out[0]));
}

void lower_slice_grad(Emit *e, const Op *op)
{
	const Type *dy = &op_in(op, 0)->type;
	emit_kernel(e, op, "o0 i0", "%d, %s, %s, %s, %s, %d", dy->rank, dims(e, dy), dims(e, &op->out[0]->type),
		list(e, op, "starts"), list(e, op, "steps"), elem_bytes(op->out[0]));
}

void lower_pad(Emit *e, const Op *op)
{
	static const struct { const char *text, *constant; } modes[] = {
		{"constant", "K_PAD_CONSTANT"}, {"reflect", "K_PAD_REFLECT"}, {"edge", "K_PAD_EDGE"},
		{"wrap", "K_PAD_WRAP"},
	};
	const char *text = attr_get_str(op->attrs, "mode", "constant"), *mode = NULL;
	const Type *x = &op_in(op, 0)->type;
	double v = attr_get_float(op->attrs, "value", 0);
	for (int i = 0; i < COUNT_OF(modes); i++)
		if (!strcmp(modes[i].text, text))
			mode = modes[i].constant;
	if (!mode)
		ice("pad has mode \"%s\"", text);
	emit_kernel(e, op, "o0 i0", "%d, %s, %s, %s, %s, LIST(%s, %s), %d", x->rank, dims(e, x),
		list(e, op, "before"), list(e, op, "after"), mode, dtype_info[x->dtype].ctype,
		emit_c_literal(e, x->dtype, v, int_of_double(v)), elem_bytes(op->out[0]));
}

void lower_in_range(Emit *e, const Op *op)
{
	emit_kernel(e, op, "o0 i0", "%" PRId64 ", %s, %s, %s", type_numel(&op->out[0]->type),
		emit_c_float(e, attr_get_float(op->attrs, "low", 0)), emit_c_float(e, attr_get_float(op->attrs, "high", 0)),
		emit_c_string(e, attr_get_str(op->attrs, "what", "value")));
}

/* The number of bytes of v per outer index: those of its dims from the axis on. */
static int64_t chunk_of(const Value *v, int axis)
{
	return emit_product(&v->type, axis, v->type.rank) * elem_bytes(v);
}

void lower_concat(Emit *e, const Op *op)
{
	const Type *y = &op->out[0]->type;
	int axis = emit_axis(op, "axis", y->rank);
	int64_t *chunk = NEW_N(e->a, int64_t, op->n_in);
	Buf parts = {0};
	for (int i = 0; i < op->n_in; i++) {
		chunk[i] = chunk_of(op_in(op, i), axis);
		buf_printf(&parts, i ? ", %s" : "%s", emit_value(e, op_in(op, i)));
	}
	emit_kernel(e, op, "o0", "LIST(const void *, %s), %d, " I64 ", %s", parts.at, op->n_in,
		emit_product(y, 0, axis), emit_c_ints(e, op->n_in, chunk));
	buf_free(&parts);
}

void lower_split(Emit *e, const Op *op)
{
	const Type *x = &op_in(op, 0)->type;
	int axis = emit_axis(op, "axis", x->rank);
	int64_t *chunk = NEW_N(e->a, int64_t, op->n_out);
	Buf parts = {0};
	for (int i = 0; i < op->n_out; i++) {
		chunk[i] = chunk_of(op->out[i], axis);
		buf_printf(&parts, i ? ", %s" : "%s", emit_value(e, op->out[i]));
	}
	emit_line(e, "k_split(LIST(void *, %s), %s, %d, " I64 ", %s);", parts.at, emit_value(e, op_in(op, 0)), op->n_out,
		emit_product(x, 0, axis), emit_c_ints(e, op->n_out, chunk));
	buf_free(&parts);
}

/* ---- by index ---- */

void lower_gather(Emit *e, const Op *op)
{
	const Value *x = op_in(op, 0), *ids = op_in(op, 1);
	Cut c = emit_cut(&x->type, attr_get_int(op->attrs, "axis", 0));
	emit_kernel(e, op, "o0 i0 i1", I64 ", " I64 ", " I64 ", " I64 ", %d, %d", c.outer, c.n, c.inner,
		type_numel(&ids->type), elem_bytes(x), elem_bytes(ids));
}

void lower_gather_grad(Emit *e, const Op *op)
{
	const Value *ids = op_in(op, 1);
	Cut c = emit_cut(&op->out[0]->type, attr_get_int(op->attrs, "axis", 0));
	const char *add = lower_sum(e, op) ? "true" : "false";
	emit_kernel(e, op, "o0 i0 i1", I64 ", " I64 ", " I64 ", " I64 ", %s, %d, WORK", c.outer, c.n, c.inner,
		type_numel(&ids->type), add, elem_bytes(ids));
}

void lower_gather_elements(Emit *e, const Op *op)
{
	const Value *x = op_in(op, 0), *ids = op_in(op, 1);
	emit_kernel(e, op, "o0 i0 i1", "%d, %s, %s, %d, %d, %d", x->type.rank, dims(e, &ids->type),
		dims(e, &x->type), emit_axis(op, "axis", x->type.rank), elem_bytes(x), elem_bytes(ids));
}

void lower_gather_nd(Emit *e, const Op *op)
{
	const Value *x = op_in(op, 0), *ids = op_in(op, 1);
	int b = (int)attr_get_int(op->attrs, "batch_dims", 0), last = ids->type.rank - 1;
	int depth = (int)ids->type.dim[last];
	emit_kernel(e, op, "o0 i0 i1", I64 ", " I64 ", %d, %s, " I64 ", %d, %d", emit_product(&x->type, 0, b),
		emit_product(&ids->type, b, last), depth, emit_c_ints(e, depth, x->type.dim + b),
		emit_product(&x->type, b + depth, x->type.rank), elem_bytes(x), elem_bytes(ids));
}

static const char *scatter_mode(const Op *op)
{
	static const struct { const char *text, *constant; } modes[] = {
		{"none", "K_SCATTER_NONE"}, {"add", "K_SCATTER_ADD"}, {"mul", "K_SCATTER_MUL"},
		{"max", "K_SCATTER_MAX"}, {"min", "K_SCATTER_MIN"},
	};
	const char *text = attr_get_str(op->attrs, "reduce", "none");
	for (int i = 0; i < COUNT_OF(modes); i++)
		if (!strcmp(modes[i].text, text))
			return modes[i].constant;
	ice("%s reduces by \"%s\"", op_info[op->kind].text, text);
}

void lower_scatter_elements(Emit *e, const Op *op)
{
	const Value *x = op_in(op, 0), *ids = op_in(op, 1);
	emit_kernel(e, op, "o0 i0 i1 i2", "%d, %s, %s, %d, %s, %d", x->type.rank, dims(e, &ids->type),
		dims(e, &x->type), emit_axis(op, "axis", x->type.rank), scatter_mode(op), elem_bytes(ids));
}

void lower_scatter_nd(Emit *e, const Op *op)
{
	const Value *x = op_in(op, 0), *ids = op_in(op, 1);
	int last = ids->type.rank - 1, depth = (int)ids->type.dim[last];
	emit_kernel(e, op, "o0 i0 i1 i2", I64 ", %d, %s, " I64 ", %s, %d", emit_product(&ids->type, 0, last),
		depth, emit_c_ints(e, depth, x->type.dim), emit_product(&x->type, depth, x->type.rank),
		scatter_mode(op), elem_bytes(ids));
}
