/* ir/shape.c: infers types of results from operands and attributes (the column shape of ops.def).
 *
 * ir_infer checks the attributes against the op's row, calls the row's rule, and refuses results whose size overflows.
 * Rules check all operands themselves, so a parsed text needs no other check of types.  This file has the rules of
 * sources, elementwise ops, effects and sharding; the others are in shape_move.c (data movement, reductions) and
 * shape_nn.c (ops with weights, attention, losses). */
#include "ir/shape.h"

#include <string.h>

static ShapeFn *const shape_rule[OP_COUNT] = {
#define OP(id, text, imin, imax, n_out, flags, first, last, attrs, shape, ...) [OP_##id] = shape_##shape,
#include "ir/ops.def"
};

/* ---- shared checks ---- */

bool shape_wrong(Buf *err, const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	buf_printf(err, "%s", text);
	return false;
}

static bool want_class(Buf *err, const Op *op, int i, bool ok, const char *what)
{
	if (ok)
		return true;
	return shape_wrong(err, "operand %d of %s must be %s, got %s", i + 1, op_info[op->kind].text, what,
		dtype_info[shape_in(op, i)->dtype].text);
}

bool shape_want_float(Buf *err, const Op *op, int i)
{
	const Type *t = shape_in(op, i);
	return !t || want_class(err, op, i, dtype_is_float(t->dtype), "of floats");
}

bool shape_want_number(Buf *err, const Op *op, int i)
{
	const Type *t = shape_in(op, i);
	return !t || want_class(err, op, i, dtype_is_number(t->dtype), "of numbers");
}

bool shape_want_index(Buf *err, const Op *op, int i)
{
	const Type *t = shape_in(op, i);
	return !t || want_class(err, op, i, t->dtype == DT_I64 || t->dtype == DT_I32, "i64 or i32");
}

bool shape_want_dtype(Buf *err, const Op *op, int i, DType dtype)
{
	const Type *t = shape_in(op, i);
	return !t || want_class(err, op, i, t->dtype == dtype, dtype_info[dtype].text);
}

bool shape_want(Module *m, Buf *err, const Op *op, int i, const Type *type)
{
	const Type *t = shape_in(op, i);
	if (!t || type_equal(t, type))
		return true;
	return shape_wrong(err, "operand %d of %s is %s, expected %s", i + 1, op_info[op->kind].text,
		type_str(m->arena, t), type_str(m->arena, type));
}

bool shape_want_shape(Module *m, Buf *err, const Op *op, int i, const Type *type)
{
	const Type *t = shape_in(op, i);
	if (!t || type_same_shape(t, type))
		return true;
	Type expected = *type;
	expected.dtype = t->dtype;
	return shape_want(m, err, op, i, &expected);
}

bool shape_want_rank(Buf *err, const Op *op, int i, int rank)
{
	const Type *t = shape_in(op, i);
	if (!t || t->rank == rank)
		return true;
	return shape_wrong(err, "operand %d of %s must have %d dimensions, got %d", i + 1, op_info[op->kind].text,
		rank, t->rank);
}

bool shape_axis(Buf *err, const Op *op, const Type *x, int *axis)
{
	int64_t a = attr_get_int(op->attrs, "axis", 0);
	*axis = (int)a;
	if (a >= 0 && a < x->rank)
		return true;
	return shape_wrong(err, "axis %lld of %s is not in 0..%d", (long long)a, op_info[op->kind].text,
		x->rank - 1);
}

const Attr *shape_ints(Buf *err, const Op *op, const char *name, int n)
{
	const Attr *a = attr_find(op->attrs, name);
	if (a && a->n == n)
		return a;
	shape_wrong(err, "attribute %s of %s has %d numbers, expected %d", name, op_info[op->kind].text,
		a ? a->n : 0, n);
	return NULL;
}

bool shape_from_attr(Buf *err, const Op *op, DType dtype, Type *out)
{
	const Attr *a = attr_find(op->attrs, "shape");
	if (a->n > IR_MAX_RANK)
		return shape_wrong(err, "shape has %d dimensions, at most %d are supported", a->n, IR_MAX_RANK);
	*out = type_tensor(dtype, a->n, a->ints);
	for (int i = 0; i < a->n; i++)
		if (a->ints[i] < 0)
			return shape_wrong(err, "dimension %d of shape is %lld, expected at least 0", i,
				(long long)a->ints[i]);
	return true;
}

bool shape_to(Buf *err, const Op *op, Type *out)
{
	const Attr *to = attr_find(op->attrs, "to");
	if (!to)
		return true;
	if (dtype_info[out->dtype].bytes != 2 || !dtype_is_float(out->dtype) || to->dtype != DT_F32)
		return shape_wrong(err, "%s of %s to %s: only the f32 result of 16-bit floats can be asked for",
			op_info[op->kind].text, dtype_info[out->dtype].text, dtype_info[to->dtype].text);
	out->dtype = to->dtype;
	return true;
}

Type shape_tail(const Type *t, int from, DType dtype)
{
	return type_tensor(dtype, t->rank - from, t->dim + from);
}

/* ---- ir_infer ---- */

static bool kind_fits(AttrKind kind, char letter)
{
	switch (letter) {
	case 'i': case 'a': case 'b': return kind == ATTR_INT;
	case 'f': return kind == ATTR_FLOAT;
	case 's': return kind == ATTR_STR;
	case 'd': return kind == ATTR_DTYPE;
	case 'I': return kind == ATTR_INTS;
	case 'F': return kind == ATTR_FLOATS;
	default: return kind == ATTR_INTS || kind == ATTR_FLOATS;
	}
}

static const Attr *find_key(const Attr *list, const char *key, size_t n)
{
	while (list && (strncmp(list->name, key, n) || list->name[n]))
		list = list->next;
	return list;
}

static bool value_fits(const Op *op, const Attr *a, char letter, Buf *err)
{
	int axis;
	if (letter == 'a' && shape_in(op, 0))
		return shape_axis(err, op, shape_in(op, 0), &axis);
	if (letter == 'b' && a->i != 0 && a->i != 1)
		return shape_wrong(err, "attribute %s of %s is %lld, expected 0 or 1", a->name, op_info[op->kind].text,
			(long long)a->i);
	return true;
}

/* Checks that the op has all attributes of its row (? = may be absent), each of its kind, and no others. */
static bool check_attrs(const Op *op, Buf *err)
{
	const OpInfo *info = &op_info[op->kind];
	int known = 0, present = 0;
	for (const char *s = info->attrs, *end; *s; s = end + strspn(end, " ")) {
		size_t n = strcspn(s, ":");
		end = s + n + strcspn(s + n, " ");
		const Attr *a = find_key(op->attrs, s, n);
		if (!a && end[-1] != '?')
			return shape_wrong(err, "%s lacks its attribute %.*s", info->text, (int)n, s);
		if (a && !kind_fits(a->kind, s[n + 1]))
			return shape_wrong(err, "attribute %.*s of %s has the wrong kind (%s)", (int)n, s, info->text,
				info->attrs);
		if (a && !value_fits(op, a, s[n + 1], err))
			return false;
		known += a != NULL;
	}
	for (const Attr *a = op->attrs; a; a = a->next)
		present++;
	if (known == present)
		return true;
	return shape_wrong(err, "%s has %d attribute(s) that it does not know; it knows: %s", info->text,
		present - known, *info->attrs ? info->attrs : "none");
}

static bool takes_layout(const Op *op, int i)
{
	return i == 1 && (op->kind == OP_CONV || op->kind == OP_CONV_GRAD_X);
}

/* Checks operands, symbol and unit.  Ops that appear at SHARD work on flats and shards; their own rules check these. */
static bool check_operands(Module *m, const Op *op, Buf *err)
{
	const OpInfo *info = &op_info[op->kind];
	if (op->n_in < info->n_in_min || (op->n_in > info->n_in_max && !(info->flags & VARIN)))
		return shape_wrong(err, "%s has %d operand(s), expected %d to %d", info->text, op->n_in,
			info->n_in_min, info->n_in_max);
	for (int i = 0; i < op->n_in; i++) {
		const Type *t = shape_in(op, i);
		if (!t && (i < info->n_in_min || (info->flags & VARIN && op->kind != OP_COLLECT)))
			return shape_wrong(err, "operand %d of %s is absent", i + 1, info->text);
		if (!t || info->level == LEVEL_SHARD)
			continue;
		if (t->kind != TYPE_TENSOR || (t->layout && !takes_layout(op, i)))
			return shape_wrong(err, "operand %d of %s is %s, expected a row-major tensor", i + 1, info->text,
				type_str(m->arena, t));
	}
	if (info->flags & SYM && !op->sym)
		return shape_wrong(err, "%s names no symbol", info->text);
	if (info->flags & UNIT && !op->unit)
		return shape_wrong(err, "%s names no unit", info->text);
	return true;
}

static bool check_size(Module *m, const Type *t, Buf *err)
{
	int64_t numel = 1;
	if (t->kind != TYPE_TENSOR)
		return true;
	for (int i = 0; i < t->rank; i++)
		if (t->dim[i] < 0 || __builtin_mul_overflow(numel, MAX(t->dim[i], 1), &numel)
			|| numel > INT64_C(1) << 46)
			return shape_wrong(err, "result %s has more than 2^46 elements or a negative dimension",
				type_str(m->arena, t));
	return true;
}

bool ir_infer(Module *m, const Op *op, const Type *given, Type *out, Buf *err)
{
	if (!check_operands(m, op, err) || !check_attrs(op, err) || !shape_rule[op->kind](m, op, given, out, err))
		return false;
	for (int i = 0; i < op->n_out; i++)
		if (!check_size(m, &out[i], err))
			return false;
	return true;
}

/* ---- sources, symbols ---- */

/* The kinds of symbols that an op may name, as a set of bits. */
static unsigned symbol_kinds(OpKind kind)
{
	switch (kind) {
	case OP_INPUT: return 1u << SYM_INPUT;
	case OP_PARAM: case OP_VIEW_OP: case OP_GRAD: case OP_UPDATE: return 1u << SYM_PARAM;
	case OP_READ: return 1u << SYM_BUFFER | 1u << SYM_DATA | 1u << SYM_STATE | 1u << SYM_SCALE;
	case OP_WRITE: return 1u << SYM_BUFFER | 1u << SYM_STATE;
	default: return 1u << SYM_OUTPUT;
	}
}

RULE(sym)
{
	if (!(symbol_kinds(op->kind) >> op->sym->kind & 1))
		return shape_wrong(err, "%s cannot name \"%s\", a symbol of another kind", op_info[op->kind].text,
			op->sym->name);
	if (out)
		out[0] = op->sym->type;
	return true;
}

RULE(write)
{
	if (!shape_sym(m, op, given, NULL, err))
		return false;
	return shape_want(m, err, op, 0, &op->sym->type);
}

/* A gradient may have another dtype than its parameter: that of the flat gradient. */
RULE(grad)
{
	if (!shape_sym(m, op, given, NULL, err))
		return false;
	return shape_want_shape(m, err, op, 0, &op->sym->type) && shape_want_float(err, op, 0);
}

RULE(scale)
{
	out[0] = type_scalar(DT_F32);
	return true;
}

static bool want_params(const Op *op, Type *out, Buf *err)
{
	return params_type(op->sym, op_n_params(op), out) || shape_wrong(err, "\"%s\" and %lld parameters behind it do not "
		"follow each other in their flat as one tensor", op->sym->name, (long long)op_n_params(op) - 1);
}

RULE(view)
{
	const Type *t = shape_in(op, 0);
	if (t->kind != TYPE_FLAT || t->unit != op->sym->unit || t->flat != op->sym->flat)
		return shape_wrong(err, "\"%s\" does not lie in %s", op->sym->name, type_str(m->arena, t));
	if (!shape_sym(m, op, given, out, err) || !want_params(op, out, err))
		return false;
	out[0].dtype = t->dtype;
	return true;
}

static bool declared(const Op *op, const Type *given, Type *out, Buf *err)
{
	if (!given || given->kind != TYPE_TENSOR || given->layout)
		return shape_wrong(err, "%s needs a tensor type to be stated", op_info[op->kind].text);
	out[0] = *given;
	return true;
}

RULE(const)
{
	const Attr *a = attr_find(op->attrs, "value");
	if (!declared(op, given, out, err))
		return false;
	int64_t numel = 1;
	for (int i = 0; i < given->rank; i++)
		if (given->dim[i] < 0 || __builtin_mul_overflow(numel, given->dim[i], &numel))
			return shape_wrong(err, "const of %s: too many elements", type_str(m->arena, given));
	if (a->n != 1 && a->n != numel)
		return shape_wrong(err, "const of %s has %d values, expected 1 or %lld",
			type_str(m->arena, given), a->n, (long long)numel);
	if (a->n && (a->kind == ATTR_FLOATS) != dtype_is_float(given->dtype))
		return shape_wrong(err, "const of %s has %s values", type_str(m->arena, given),
			a->kind == ATTR_FLOATS ? "float" : "integer");
	return true;
}

RULE(iota)
{
	int axis;
	if (!declared(op, given, out, err) || !shape_axis(err, op, given, &axis))
		return false;
	return dtype_is_number(given->dtype) || shape_wrong(err, "iota of bool");
}

/* fused: the body's yield gives the dtypes.  All results have one shape, and operands broadcast to it. */
RULE(fused)
{
	for (int i = 0; i < op->n_out; i++) {
		Type t;
		if (!given || given[i].kind != TYPE_TENSOR)
			return shape_wrong(err, "fused needs the types of its results to be stated");
		if (!type_same_shape(&given[i], &given[0]))
			return shape_wrong(err, "results of fused differ in shape: %s and %s",
				type_str(m->arena, &given[0]), type_str(m->arena, &given[i]));
		for (int k = 0; k < op->n_in; k++)
			if (!type_broadcast(shape_in(op, k), &given[i], &t) || !type_same_shape(&t, &given[i]))
				return shape_wrong(err, "operand %s of fused does not broadcast to %s",
					type_str(m->arena, shape_in(op, k)), type_str(m->arena, &given[i]));
		out[i] = given[i];
	}
	return true;
}

RULE(none)
{
	return true;
}

/* ---- elementwise ---- */

RULE(same)
{
	out[0] = *shape_in(op, 0);
	return true;
}

RULE(copied)
{
	out[0] = *shape_in(op, 0);
	return shape_want(m, err, op, 1, shape_in(op, 0));
}

RULE(float)
{
	out[0] = *shape_in(op, 0);
	return shape_want_float(err, op, 0);
}

RULE(number)
{
	out[0] = *shape_in(op, 0);
	return shape_want_number(err, op, 0);
}

RULE(in_range)
{
	double low = attr_get_float(op->attrs, "low", 0), high = attr_get_float(op->attrs, "high", 0);
	if (!(low <= high))
		return shape_wrong(err, "bounds of in_range are %g and %g", low, high);
	return shape_number(m, op, given, out, err);
}

RULE(not)
{
	out[0] = *shape_in(op, 0);
	return want_class(err, op, 0, !dtype_is_float(out[0].dtype), "of integers or bool");
}

RULE(clip)
{
	double lo = attr_get_float(op->attrs, "lo", 0), hi = attr_get_float(op->attrs, "hi", 0);
	if (lo != lo || hi != hi)
		return shape_wrong(err, "bounds of clip are %g and %g", lo, hi);
	return shape_number(m, op, given, out, err);
}

RULE(test)
{
	out[0] = *shape_in(op, 0);
	out[0].dtype = DT_BOOL;
	return shape_want_float(err, op, 0);
}

RULE(cast)
{
	out[0] = *shape_in(op, 0);
	out[0].dtype = attr_find(op->attrs, "to")->dtype;
	return true;
}

/* Both operands have the same dtype, and their shapes broadcast. */
static bool broadcast2(Module *m, const Op *op, int first, Type *out, Buf *err)
{
	const Type *a = shape_in(op, first), *b = shape_in(op, first + 1);
	if (a->dtype != b->dtype)
		return shape_wrong(err, "operands of %s differ in dtype: %s and %s", op_info[op->kind].text,
			dtype_info[a->dtype].text, dtype_info[b->dtype].text);
	if (!type_broadcast(a, b, out))
		return shape_wrong(err, "shapes do not broadcast: %s and %s", type_str(m->arena, a),
			type_str(m->arena, b));
	return true;
}

RULE(bcast)
{
	return broadcast2(m, op, 0, out, err) && shape_want_number(err, op, 0);
}

RULE(bcast_float)
{
	return broadcast2(m, op, 0, out, err) && shape_want_float(err, op, 0);
}

RULE(logic)
{
	if (!broadcast2(m, op, 0, out, err))
		return false;
	return want_class(err, op, 0, !dtype_is_float(out[0].dtype), "of integers or bool");
}

RULE(shift)
{
	if (!broadcast2(m, op, 0, out, err))
		return false;
	return want_class(err, op, 0, dtype_is_integer(out[0].dtype), "of integers");
}

RULE(eq)
{
	bool ok = broadcast2(m, op, 0, out, err);
	out[0].dtype = DT_BOOL;
	return ok;
}

RULE(cmp)
{
	return shape_want_number(err, op, 0) && shape_eq(m, op, given, out, err);
}

RULE(pow)
{
	const Type *a = shape_in(op, 0), *b = shape_in(op, 1);
	if (!shape_want_number(err, op, 0) || !shape_want_number(err, op, 1))
		return false;
	if (!type_broadcast(a, b, out))
		return shape_wrong(err, "shapes do not broadcast: %s and %s", type_str(m->arena, a),
			type_str(m->arena, b));
	out[0].dtype = a->dtype;
	return true;
}

RULE(where)
{
	Type both;
	if (!shape_want_dtype(err, op, 0, DT_BOOL) || !broadcast2(m, op, 1, &both, err))
		return false;
	if (!type_broadcast(&both, shape_in(op, 0), out))
		return shape_wrong(err, "shapes do not broadcast: condition %s and values %s",
			type_str(m->arena, shape_in(op, 0)), type_str(m->arena, &both));
	return true;
}

/* ---- the step's results ---- */

RULE(report)
{
	return shape_want_rank(err, op, 0, 0) && shape_want_rank(err, op, 1, 0)
		&& shape_want_float(err, op, 0) && shape_want_float(err, op, 1);
}

RULE(report_accuracy)
{
	const Type *logits = shape_in(op, 0);
	Type rows = *logits;
	if (logits->dtype == DT_I64)
		return shape_want_index(err, op, 1) && shape_want_shape(m, err, op, 1, &rows);
	rows.rank--;
	if (!logits->rank)
		return shape_wrong(err, "logits of report_accuracy have no axis of classes");
	return shape_want_float(err, op, 0) && shape_want_index(err, op, 1)
		&& shape_want_shape(m, err, op, 1, &rows);
}

RULE(norm)
{
	out[0] = type_scalar(DT_F64);
	return true;
}

/* ---- sharding ---- */

RULE(event)
{
	(void)op;
	out[0] = (Type){.kind = TYPE_EVENT};
	return true;
}

/* Checks the last operand of a collective that has one more than its data: it must be an event, after which it
 * starts. */
static bool want_event(Module *m, const Op *op, int n_data, Buf *err)
{
	for (int i = n_data; i < op->n_in; i++) {
		const Type *t = shape_in(op, i);
		if (!t || t->kind != TYPE_EVENT)
			return shape_wrong(err, "operand %d of %s @%s is %s, expected an event", i + 1,
				op_info[op->kind].text, op->unit->name, t ? type_str(m->arena, t) : "absent");
	}
	return true;
}

RULE(resident)
{
	for (int i = 0; i < op->n_out; i++) {
		if (i >= op->unit->n_flats)
			return shape_wrong(err, "unit %s has %d flat(s)", op->unit->name, op->unit->n_flats);
		out[i] = (Type){.kind = TYPE_FLAT, .dtype = op->unit->flat[i].param, .unit = op->unit, .flat = i};
	}
	return true;
}

RULE(gathered)
{
	if (!want_event(m, op, 0, err))
		return false;
	for (int i = 0; i < op->n_out; i++) {
		if (i >= op->unit->n_flats)
			return shape_wrong(err, "unit %s has %d flat(s)", op->unit->name, op->unit->n_flats);
		out[i] = (Type){.kind = TYPE_ASYNC_FLAT, .dtype = op->unit->flat[i].param, .unit = op->unit,
			.flat = i};
	}
	return true;
}

RULE(wait)
{
	for (int i = 0; i < op->n_out; i++) {
		const Type *t = shape_in(op, i);
		if (!t || (t->kind != TYPE_ASYNC_FLAT && t->kind != TYPE_ASYNC_SHARD))
			return shape_wrong(err, "wait for %s, which is not the result of a collective",
				t ? type_str(m->arena, t) : "nothing");
		out[i] = *t;
		out[i].kind = t->kind == TYPE_ASYNC_FLAT ? TYPE_FLAT : TYPE_SHARD;
	}
	return true;
}

/* Checks that the first n operands are flats or shards of the op's unit. */
static bool want_of_unit(Module *m, const Op *op, int n, TypeKind kind, Buf *err)
{
	for (int i = 0; i < n; i++) {
		const Type *t = shape_in(op, i);
		if (!t || t->kind != kind || t->unit != op->unit)
			return shape_wrong(err, "operand %d of %s @%s is %s", i + 1, op_info[op->kind].text,
				op->unit->name, t ? type_str(m->arena, t) : "absent");
	}
	return true;
}

RULE(reshard)
{
	return want_of_unit(m, op, op->n_in, TYPE_FLAT, err);
}

/* An update reads this rank's shard of the gradient, or the whole flat for a unit that is all_reduced. */
RULE(update_shard)
{
	TypeKind kind = strategy_info[op->unit->strategy].reduce == REDUCE_TO_ALL ? TYPE_FLAT : TYPE_SHARD;
	return want_of_unit(m, op, 1, kind, err);
}

RULE(sumsq)
{
	for (int i = 0; i < op->n_in; i++) {
		const Type *t = shape_in(op, i);
		if (!t || (t->kind != TYPE_SHARD && t->kind != TYPE_FLAT))
			return shape_wrong(err, "operand %d of sumsq is %s, expected a shard or a flat", i + 1,
				t ? type_str(m->arena, t) : "absent");
	}
	return shape_norm(m, op, given, out, err);
}

RULE(scalars)
{
	return shape_want_dtype(err, op, 0, DT_F64) && shape_norm(m, op, given, out, err);
}

RULE(collect)
{
	const Unit *u = op->unit;
	int n = 0;
	for (int i = 0; i < u->n_params; i++) {
		if (!u->params[i]->trainable)
			continue;
		Type grad = u->params[i]->type;
		grad.dtype = u->flat[u->params[i]->flat].grad;
		if (n < op->n_in && !shape_want(m, err, op, n, &grad))
			return false;
		n++;
	}
	if (n != op->n_in)
		return shape_wrong(err, "unit %s has %d trainable parameters, collect has %d operands", u->name, n,
			op->n_in);
	out[0] = (Type){.kind = TYPE_FLAT, .dtype = u->flat[0].grad, .unit = op->unit};
	return true;
}

static bool want_product(Module *m, const Op *op, const Type *type, Buf *err)
{
	Type product = {0};
	if (!attr_find(op->attrs, "ta") || !attr_find(op->attrs, "tb"))
		return shape_wrong(err, "a product that is added needs ta and tb");
	if (!shape_matmul(m, op, NULL, &product, err))
		return false;
	return type_same_matrix(&product, type) || shape_wrong(err, "the product is %s, the parameter \"%s\" %s",
		type_str(m->arena, &product), op->sym->name, type_str(m->arena, type));
}

/* The parameter's gradient is added at its offset in the flat gradient. */
RULE(accumulate)
{
	const Symbol *s = op->sym;
	Type type;
	bool product = op->n_in > 1;
	if (s->kind != SYM_PARAM || !s->unit || !s->trainable)
		return shape_wrong(err, "\"%s\" is no trained parameter of a unit", s->name);
	if (!product && (attr_find(op->attrs, "ta") || attr_find(op->attrs, "tb") || (op->n_in && op->attrs)))
		return shape_wrong(err, "ta and tb need the two operands of a product, there is one");
	if (!want_params(op, &type, err))
		return false;
	if (op->n_in && (!(product ? want_product(m, op, &type, err) : shape_want_shape(m, err, op, 0, &type))
			|| !shape_want_float(err, op, 0)))
		return false;
	out[0] = type;
	out[0].dtype = s->unit->flat[s->flat].grad;
	return true;
}

RULE(carry_grad)
{
	return want_of_unit(m, op, 1, TYPE_FLAT, err);
}

static bool reduced(Module *m, const Op *op, TypeKind from, TypeKind to, Type *out, Buf *err)
{
	const char *how = attr_get_str(op->attrs, "op", "");
	if (strcmp(how, "mean") && strcmp(how, "sum"))
		return shape_wrong(err, "%s by \"%s\", expected mean or sum", op_info[op->kind].text, how);
	if (!want_of_unit(m, op, 1, from, err) || !want_event(m, op, 1, err))
		return false;
	out[0] = *shape_in(op, 0);
	out[0].kind = to;
	if (to == TYPE_ASYNC_SHARD)
		out[0].dtype = op->unit->flat[out[0].flat].kept;
	return true;
}

RULE(reduce_scatter)
{
	return reduced(m, op, TYPE_FLAT, TYPE_ASYNC_SHARD, out, err);
}

RULE(all_reduce)
{
	const Type *t = shape_in(op, 0);
	bool shard = t && t->kind == TYPE_SHARD;
	return reduced(m, op, shard ? TYPE_SHARD : TYPE_FLAT, shard ? TYPE_ASYNC_SHARD : TYPE_ASYNC_FLAT, out, err);
}
