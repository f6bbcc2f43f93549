/* passes/canon/elementwise.c: rules of canon for elementwise ops.
 *
 * Broadcasting is implicit in elementwise ops, so explicit broadcasts of their operands are removed, or moved
 * behind the op if it then computes less. */
#include "passes/canon/canon.h"
#include "passes/rewrite/measure.h"

enum { EW_MAX_IN = 3 };

/* The value that an operand was before it was broadcast.  A number that fills a tensor becomes a scalar. */
static Value *small_operand(Rewriter *r, Value *v)
{
	const Attr *number = const_splat(v);
	if (number && v->type.rank)
		return rewrite_splat(r, number, type_scalar(v->type.dtype));
	return strip_broadcast(v);
}

static bool joint_shape(Value *const *in, int n, Type *out)
{
	Type t = in[0]->type;
	for (int i = 1; i < n; i++)
		if (!type_broadcast(&t, &in[i]->type, &t))
			return false;
	*out = t;
	return true;
}

Value *canon_shrink_ew(Rewriter *r, Op *op)
{
	if (!(op_info[op->kind].flags & EW) || op->parent || op->n_in > EW_MAX_IN)
		return NULL;
	Value *in[EW_MAX_IN];
	bool changed = false;
	Type joint;
	for (int i = 0; i < op->n_in; i++) {
		in[i] = op->in[i].value;
		changed = changed || strip_broadcast(in[i]) != in[i] || (const_splat(in[i]) && in[i]->type.rank);
	}
	if (!changed)
		return NULL;
	for (int i = 0; i < op->n_in; i++)
		in[i] = small_operand(r, in[i]);
	if (!joint_shape(in, op->n_in, &joint))
		return NULL;
	return ir_broadcast(&r->b, ir_emit(&r->b, op->kind, op->n_in, in, op->attrs), &op->out[0]->type);
}

Value *canon_literal_second(Rewriter *r, Op *op)
{
	if (!(op_info[op->kind].flags & COM) || !measure_literal_is_first(op))
		return NULL;
	return ir_emit2(&r->b, op->kind, op->in[1].value, op->in[0].value);
}

Value *canon_mirror(Rewriter *r, Op *op)
{
	static const OpKind mirror[OP_COUNT] = {
		[OP_LT] = OP_GT, [OP_GT] = OP_LT, [OP_LE] = OP_GE, [OP_GE] = OP_LE};
	if (!measure_literal_is_first(op))
		return NULL;
	return ir_emit2(&r->b, mirror[op->kind], op->in[1].value, op->in[0].value);
}

/* ---- x op number ---- */

typedef enum { GIVES_X, GIVES_NUMBER, GIVES_SQUARE, GIVES_CUBE, GIVES_UNARY } Gives;
typedef enum { OF_ANY, OF_FLOAT, OF_INT, OF_BOOL } OfClass;

/* One identity: if x belongs to class `of`, then x op number is what `gives` says. */
typedef struct Identity { OpKind op; double number; OfClass of; Gives gives; OpKind unary; } Identity;
static const Identity identities[] = {
	{OP_ADD, 0, OF_ANY, GIVES_X, 0}, {OP_SUB, 0, OF_ANY, GIVES_X, 0},
	{OP_MUL, 1, OF_ANY, GIVES_X, 0}, {OP_DIV, 1, OF_ANY, GIVES_X, 0},
	{OP_MUL, 0, OF_INT, GIVES_NUMBER, 0}, {OP_MUL, -1, OF_ANY, GIVES_UNARY, OP_NEG},
	{OP_DIV, -1, OF_FLOAT, GIVES_UNARY, OP_NEG},
	{OP_POW, 1, OF_ANY, GIVES_X, 0}, {OP_POW, 2, OF_ANY, GIVES_SQUARE, 0},
	{OP_POW, 3, OF_ANY, GIVES_CUBE, 0}, {OP_POW, 0.5, OF_FLOAT, GIVES_UNARY, OP_SQRT},
	{OP_POW, -0.5, OF_FLOAT, GIVES_UNARY, OP_RSQRT}, {OP_POW, -1, OF_FLOAT, GIVES_UNARY, OP_RECIP},
	{OP_AND, 1, OF_BOOL, GIVES_X, 0}, {OP_AND, 0, OF_ANY, GIVES_NUMBER, 0},
	{OP_OR, 0, OF_ANY, GIVES_X, 0}, {OP_OR, 1, OF_BOOL, GIVES_NUMBER, 0},
	{OP_XOR, 0, OF_ANY, GIVES_X, 0}, {OP_XOR, 1, OF_BOOL, GIVES_UNARY, OP_NOT},
	{OP_EQ, 1, OF_BOOL, GIVES_X, 0}, {OP_EQ, 0, OF_BOOL, GIVES_UNARY, OP_NOT},
	{OP_SHL, 0, OF_ANY, GIVES_X, 0}, {OP_SHR, 0, OF_ANY, GIVES_X, 0},
};

static bool class_fits(OfClass of, DType t)
{
	DTypeClass c = dtype_info[t].kind;
	return of == OF_ANY || (of == OF_FLOAT && c == CLASS_FLOAT) || (of == OF_BOOL && c == CLASS_BOOL)
		|| (of == OF_INT && (c == CLASS_INT || c == CLASS_UINT));
}

static Value *identity_value(Rewriter *r, const Op *op, const Identity *row, Value *x)
{
	Builder *b = &r->b;
	Value *square;
	switch (row->gives) {
	case GIVES_X: return x;
	case GIVES_NUMBER: return ir_const_full(b, type_scalar(op->out[0]->type.dtype), row->number);
	case GIVES_SQUARE: return ir_emit2(b, OP_MUL, x, x);
	case GIVES_CUBE:
		square = ir_emit2(b, OP_MUL, x, x);
		return ir_emit2(b, OP_MUL, square, x);
	case GIVES_UNARY: return ir_emit1(b, row->unary, x);
	}
	return NULL;
}

Value *canon_identity(Rewriter *r, Op *op)
{
	Value *x;
	double number;
	if (!(op_info[op->kind].flags & EW) || op->n_in != 2 || !match_with_number(op, &x, &number))
		return NULL;
	for (int i = 0; i < COUNT_OF(identities); i++) {
		const Identity *row = &identities[i];
		if (row->op == op->kind && row->number == number && class_fits(row->of, x->type.dtype))
			return ir_broadcast(&r->b, identity_value(r, op, row, x), &op->out[0]->type);
	}
	return NULL;
}

/* ---- by op ---- */

Value *canon_sub(Rewriter *r, Op *op)
{
	Value *x = op->in[0].value, *y = op->in[1].value;
	if (match_is(x, 0))
		return ir_broadcast(&r->b, ir_emit1(&r->b, OP_NEG, y), &op->out[0]->type);
	if (def_of(y, OP_NEG))
		return ir_emit2(&r->b, OP_ADD, x, y->op->in[0].value);
	return NULL;
}

Value *canon_add(Rewriter *r, Op *op)
{
	for (int i = 0; i < 2; i++) {
		Op *neg = def_of(op->in[i].value, OP_NEG);
		if (neg)
			return ir_emit2(&r->b, OP_SUB, op->in[1 - i].value, neg->in[0].value);
	}
	return NULL;
}

Value *canon_div(Rewriter *r, Op *op)
{
	Value *y = op->in[1].value;
	if (!dtype_is_float(y->type.dtype) || !match_is(op->in[0].value, 1))
		return NULL;
	return ir_broadcast(&r->b, ir_emit1(&r->b, OP_RECIP, y), &op->out[0]->type);
}

Value *canon_recip(Rewriter *r, Op *op)
{
	Op *root = def_of(op->in[0].value, OP_SQRT);
	return root ? ir_emit1(&r->b, OP_RSQRT, root->in[0].value) : NULL;
}

Value *canon_twice(Rewriter *r, Op *op)
{
	(void)r;
	Op *inner = def_of(op->in[0].value, op->kind);
	return inner ? inner->in[0].value : NULL;
}

/* Whether dtype `to` can represent every value of dtype `from`. */
static bool widens(DType from, DType to)
{
	const DTypeInfo *f = &dtype_info[from], *t = &dtype_info[to];
	if (f->kind == CLASS_BOOL || from == to)
		return true;
	if (t->kind == CLASS_INT)
		return f->kind != CLASS_FLOAT && f->bytes < t->bytes;
	return f->kind == t->kind && f->bytes < t->bytes;
}

Value *canon_cast(Rewriter *r, Op *op)
{
	Value *x = op->in[0].value;
	DType to = op->out[0]->type.dtype;
	Op *inner = def_of(x, OP_CAST);
	if (x->type.dtype == to)
		return x;
	if (inner && widens(inner->in[0].value->type.dtype, x->type.dtype))
		return ir_cast(&r->b, inner->in[0].value, to);
	return NULL;
}

Value *canon_where(Rewriter *r, Op *op)
{
	Value *cond = op->in[0].value, *x = op->in[1].value, *y = op->in[2].value;
	double known;
	if (match_number(cond, &known))
		return ir_broadcast(&r->b, known != 0 ? x : y, &op->out[0]->type);
	if (x == y)
		return ir_broadcast(&r->b, x, &op->out[0]->type);
	if (def_of(cond, OP_NOT))
		return ir_emit3(&r->b, OP_WHERE, cond->op->in[0].value, y, x);
	return NULL;
}

Value *canon_dropout(Rewriter *r, Op *op)
{
	(void)r;
	return attr_get_float(op->attrs, "p", 1) == 0 ? op->in[0].value : NULL;
}
