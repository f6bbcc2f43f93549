/* codegen/fused.c: writes elementwise ops, fused or single, as functions of fused.c or fused.cu.
 *
 * A kernel is determined by the body and by how each operand varies over the iteration space; adjacent dims are
 * merged where all operands allow it.  Sizes are arguments, so equal chains of different layers share one kernel.
 * Columns of a wider value are read and written by its row pitch.
 * Each element is computed independently, whichever thread computes it.
 *
 * Pointers are not restrict, since a result may overwrite an operand of the same type: for each element everything
 * is read before anything is written.
 *
 * 16-bit operands are widened when they are read, the body computes in f32, and its results are rounded when they
 * are stored: once, as if the body were one op.  An explicit cast rounds where it stands. */
#include "codegen/fused.h"

#include "codegen/lower.h"

#include <inttypes.h>
#include <string.h>

/* ---- the iteration space ---- */

static bool varies_along(const Type *t, const Type *space, int d)
{
	int k = d - (space->rank - t->rank);
	return k >= 0 && t->dim[k] != 1;
}

static bool same_variation(const Op *op, const Type *space, int d, int e)
{
	for (int i = 0; i < op->n_in; i++)
		if (varies_along(&op_in(op, i)->type, space, d) != varies_along(&op_in(op, i)->type, space, e))
			return false;
	return true;
}

static int64_t pitch_of(Value *v)
{
	return value_whole(v) == v ? 0 : value_pitch(v);
}

/* Sets pitches.  Returns whether there are any: then the last dim stays by itself.  One row has no pitch. */
static bool set_pitches(const Op *op, FusedSpace *s)
{
	const Type *t = &op->out[0]->type;
	bool any = false;
	if (t->rank < 2 || emit_product(t, 0, t->rank - 1) == 1)
		return false;
	for (int i = 0; i < op->n_in; i++)
		any |= (s->pitch[i] = pitch_of(op_in(op, i))) != 0;
	for (int i = 0; i < op->n_out; i++)
		any |= (s->y_pitch[i] = pitch_of(op->out[i])) != 0;
	return any;
}

static FusedSpace space_of(const Op *op)
{
	const Type *t = &op->out[0]->type;
	FusedSpace s = {0};
	int last = -1, apart = set_pitches(op, &s) ? t->rank - 1 : -1;
	for (int d = 0; d < t->rank; d++) {
		if (t->dim[d] == 1 && d != apart)
			continue;
		if (last >= 0 && d != apart && same_variation(op, t, last, d)) {
			s.dim[s.rank - 1] *= t->dim[d];
		} else {
			for (int i = 0; i < op->n_in; i++)
				s.varies[i] |= (unsigned)varies_along(&op_in(op, i)->type, t, d) << s.rank;
			s.dim[s.rank++] = t->dim[d];
		}
		last = d;
	}
	if (!s.rank) {
		s.rank = 1;
		s.dim[0] = 1;
	}
	return s;
}

/* ---- the body ---- */

const char *fused_ctype(const Value *v)
{
	return dtype_info[v->type.dtype].ctype;
}

/* The dtype in which a loop computes values of t. */
static DType computed(DType t)
{
	return dtype_is_half(t) ? DT_F32 : t;
}

/* Element i of a tensor of dtype t, converted to the dtype in which the loop computes. */
static const char *read_text(Emit *e, DType t, const char *from)
{
	return dtype_is_half(t) ? arena_printf(e->a, "ew_cast_%s_f32(%s)", dtype_info[t].text, from) : from;
}

static const char *write_text(Emit *e, DType t, const char *v)
{
	return dtype_is_half(t) ? arena_printf(e->a, "ew_cast_f32_%s(%s)", dtype_info[t].text, v) : v;
}

/* A float attribute as an argument of an op on dtype t; for integers it is clamped to the range of t. */
static const char *float_argument(Emit *e, DType t, double v)
{
	if (dtype_is_float(t))
		return emit_c_literal(e, t == DT_F64 ? DT_F64 : DT_F32, v, 0);
	int bits = 8 * dtype_info[t].bytes;
	bool is_signed = dtype_info[t].kind == CLASS_INT;
	double top = is_signed ? (double)(UINT64_C(1) << (bits - 1)) : 2.0 * (double)(UINT64_C(1) << (bits - 1));
	int64_t max = bits == 64 ? is_signed ? INT64_MAX : -1 : (int64_t)top - 1;
	int64_t min = !is_signed ? 0 : bits == 64 ? INT64_MIN : -(int64_t)top;
	return emit_c_literal(e, t, 0, v >= top ? max : v <= (is_signed ? -top : 0) ? min : (int64_t)v);
}

/* Adds the attributes, which follow the operands in the order of the op's row. */
static void put_attributes(Emit *e, Buf *b, const Op *op, DType t)
{
	for (const char *s = op_info[op->kind].attrs; *s; s += strspn(s, " ")) {
		size_t n = strcspn(s, ":");
		const char *name = arena_strndup(e->a, s, n);
		const Attr *a = attr_find(op->attrs, name);
		if (!a || a->kind == ATTR_INT)
			buf_printf(b, ", %" PRId64, a ? a->i : 0);
		else if (a->kind == ATTR_FLOAT)
			buf_printf(b, ", %s", float_argument(e, t, a->f));
		s += strcspn(s, " ");
	}
}

/* The C expression of an elementwise op whose operands are called names[]. */
static void put_expression(Emit *e, Buf *b, const Op *op, const char *const *names)
{
	DType t = computed(op_in(op, op->kind == OP_WHERE ? 2 : 0)->type.dtype), to = op->out[0]->type.dtype;
	if (op->kind == OP_CAST && dtype_is_half(to)) {
		const char *wide = names[0];
		if (t != DT_F32)
			wide = arena_printf(e->a, "ew_cast_%s_f32(%s)", dtype_info[t].text, wide);
		buf_printf(b, "%s", read_text(e, to, write_text(e, to, wide)));
		return;
	}
	if (op->kind == OP_BROADCAST) {
		buf_printf(b, "%s", names[0]);
		return;
	}
	if (op->kind == OP_BITCAST) {
		DType from = op_in(op, 0)->type.dtype;
		buf_printf(b, "%s", read_text(e, to, arena_printf(e->a, "ew_bitcast_%s_%s(%s)", dtype_info[from].text,
			dtype_info[to].text, write_text(e, from, names[0]))));
		return;
	}
	buf_printf(b, "ew_%s_%s", op_info[op->kind].text, dtype_info[t].text);
	if (op->kind == OP_CAST)
		buf_printf(b, "_%s", dtype_info[to].text);
	for (int i = 0; i < op->n_in; i++)
		buf_printf(b, i ? ", %s" : "(%s", names[i]);
	if (op->kind != OP_CAST)
		put_attributes(e, b, op, t);
	buf_printf(b, ")");
}

static void put_const(Emit *e, Buf *b, const Op *op)
{
	const Attr *a = attr_find(op->attrs, "value");
	DType type = op->out[0]->type.dtype, t = computed(type);
	if (dtype_is_half(type)) {
		double v = a->kind == ATTR_FLOATS ? a->floats[0] : (double)a->ints[0];
		buf_printf(b, "%s", emit_c_literal(e, t, dtype_round(type, v), 0));
		return;
	}
	if (a->kind == ATTR_FLOATS)
		buf_printf(b, "%s", emit_c_literal(e, t, a->floats[0], int_of_double(a->floats[0])));
	else
		buf_printf(b, "%s", emit_c_literal(e, t, (double)a->ints[0], a->ints[0]));
}

/* Computes v<k> for each op of the body and stores the results. */
static void put_ops(Emit *e, Buf *b, const Op *fused, const char *at, const char *in)
{
	PtrMap *name = ptrmap_new(e->a);
	int n = fused->n_in;
	for (int i = 0; i < fused->n_in; i++)
		ptrmap_put(name, fused->args[i], arena_printf(e->a, "v%d", i));
	for (const Op *op = fused->body_first; op; op = op->next) {
		const char *names[FUSED_TENSORS];
		for (int i = 0; i < op->n_in; i++)
			names[i] = ptrmap_get(name, op_in(op, i));
		if (op->kind == OP_YIELD) {
			for (int i = 0; i < op->n_in; i++)
				buf_printf(b, "%sy%d%s = %s;\n", in, i, at,
					write_text(e, op_in(op, i)->type.dtype, names[i]));
			continue;
		}
		ptrmap_put(name, op->out[0], arena_printf(e->a, "v%d", n));
		buf_printf(b, "%sconst %s v%d = ", in, dtype_info[computed(op->out[0]->type.dtype)].ctype, n++);
		if (op->kind == OP_CONST)
			put_const(e, b, op);
		else
			put_expression(e, b, op, names);
		buf_printf(b, ";\n");
	}
}

static void put_single(Emit *e, Buf *b, const Op *op, const char *at, const char *in)
{
	static const char *const names[] = {"v0", "v1", "v2"};
	Buf value = {0};
	put_expression(e, &value, op, names);
	buf_printf(b, "%sy0%s = %s;\n", in, at, write_text(e, op->out[0]->type.dtype, value.at));
	buf_free(&value);
}

void fused_body(Emit *e, Buf *b, const Op *op, const char *at, const char *in)
{
	if (op->kind == OP_FUSED)
		put_ops(e, b, op, at, in);
	else
		put_single(e, b, op, at, in);
}

void fused_read(Emit *e, Buf *b, const Value *v, int i, const char *in, const char *from)
{
	DType t = v->type.dtype;
	buf_printf(b, "%sconst %s v%d = %s;\n", in, dtype_info[computed(t)].ctype, i, read_text(e, t, from));
}

/* ---- the kernel ---- */

bool fused_moves(const FusedSpace *s, int operand)
{
	return s->varies[operand] >> (s->rank - 1) & 1;
}

void fused_signature(Buf *b, const Op *op, const FusedSpace *s)
{
	buf_printf(b, "(");
	for (int i = 0; i < op->n_out; i++)
		buf_printf(b, "%s *y%d, ", fused_ctype(op->out[i]), i);
	for (int i = 0; i < op->n_in; i++)
		buf_printf(b, "const %s *x%d, ", fused_ctype(op_in(op, i)), i);
	for (int d = 0; d < s->rank; d++)
		buf_printf(b, "%sint64_t n%d", d ? ", " : "", d);
	for (int i = 0; i < op->n_out; i++)
		if (s->y_pitch[i])
			buf_printf(b, ", int64_t q%d", i);
	for (int i = 0; i < op->n_in; i++)
		if (s->pitch[i])
			buf_printf(b, ", int64_t p%d", i);
	buf_printf(b, ")");
}

static const char *kernel_text(Emit *e, const Op *op, const FusedSpace *s, const char *name)
{
	Buf b = {0};
	(codegen_cuda(e->target) ? fused_cuda : fused_cpu)(e, &b, op, s, name);
	const char *text = arena_strndup(e->a, b.at, b.n);
	buf_free(&b);
	return text;
}

/* "fused_7_mul_add_relu": the name contains the first ops of the body, so that readers can tell kernels apart. */
static const char *kernel_name(Emit *e, const Op *op)
{
	enum { SHOWN = 4 };
	const char *name = arena_printf(e->a, "fused_%d", map_count(e->kernels));
	int n = 0;
	if (op->kind != OP_FUSED)
		return arena_printf(e->a, "%s_%s", name, op_info[op->kind].text);
	for (const Op *in = op->body_first; in && n < SHOWN; in = in->next) {
		if (in->kind == OP_YIELD || in->kind == OP_CONST)
			continue;
		name = arena_printf(e->a, "%s_%s", name, op_info[in->kind].text);
		n++;
	}
	return name;
}

/* Finds or writes the kernel.  Kernels are equal if their texts without the name are. */
static const char *kernel_of(Emit *e, const Op *op, const FusedSpace *s)
{
	const char *text = kernel_text(e, op, s, "");
	const char *name = map_get(e->kernels, text);
	if (name)
		return name;
	name = kernel_name(e, op);
	map_put(e->kernels, text, (void *)name);
	buf_printf(&e->fused, "%s", kernel_text(e, op, s, name));
	Buf b = {0};
	fused_signature(&b, op, s);
	buf_printf(&e->protos, "void %s%s;\n", name, b.at);
	buf_free(&b);
	return name;
}

void fused_call(Emit *e, const Op *op)
{
	if (op->n_in + op->n_out > FUSED_TENSORS)
		ice("%d operands and results in one loop", op->n_in + op->n_out);
	for (int i = 1; i < op->n_out; i++)
		if (!type_same_shape(&op->out[i]->type, &op->out[0]->type))
			ice("results of %%%s differ in shape", op->out[0]->name);
	FusedSpace s = space_of(op);
	Buf b = {0};
	buf_printf(&b, "%s(", kernel_of(e, op, &s));
	for (int i = 0; i < op->n_out; i++)
		buf_printf(&b, "%s, ", emit_value(e, op->out[i]));
	for (int i = 0; i < op->n_in; i++)
		buf_printf(&b, "%s, ", emit_value(e, op_in(op, i)));
	for (int d = 0; d < s.rank; d++)
		buf_printf(&b, d ? ", %" PRId64 : "%" PRId64, s.dim[d]);
	for (int i = 0; i < op->n_out; i++)
		if (s.y_pitch[i])
			buf_printf(&b, ", %" PRId64, s.y_pitch[i]);
	for (int i = 0; i < op->n_in; i++)
		if (s.pitch[i])
			buf_printf(&b, ", %" PRId64, s.pitch[i]);
	emit_line(e, "%s);", b.at);
	buf_free(&b);
}

void lower_ew(Emit *e, const Op *op)
{
	fused_call(e, op);
}

void lower_fused(Emit *e, const Op *op)
{
	fused_call(e, op);
}
