/* tests/random/gen_pattern.c: what patterns recognise, and what looks like it.
 *
 * Each function writes one pattern as an exporter does, over random shapes; `odd` is true once in a while, and then an
 * axis, a number, a sign or an operand is another one, so that recognising it would be wrong. */
#include "tests/random/gen_ir.h"

#include <math.h>
#include <string.h>

static bool odd(Gen *g)
{
	return rng_one_of(g->r, 8);
}

static bool coin(Gen *g)
{
	return rng_one_of(g->r, 2);
}

static Value *number(Gen *g, double v)
{
	return ir_const_float(&g->b, DT_F32, odd(g) ? v * 1.5 : (double)(float)v);
}

static Value *two(Gen *g, OpKind kind, Value *x, Value *y)
{
	bool turn = op_info[kind].flags & COM && coin(g);
	return ir_emit2(&g->b, kind, turn ? y : x, turn ? x : y);
}

/* Reduces over the last dims, from `axis` on, keeping them; an odd one over another axis or without them. */
static Value *over_last(Gen *g, OpKind kind, Value *x, int axis)
{
	int64_t axes[IR_MAX_RANK];
	int n = 0;
	for (int i = odd(g) ? 0 : axis; i < x->type.rank; i++)
		axes[n++] = i;
	return ir_reduce(&g->b, kind, x, n, axes, true);
}

static Value *root(Gen *g, Value *x, Value *square_mean)
{
	Builder *b = &g->b;
	Value *v = two(g, OP_ADD, square_mean, number(g, 1e-5));
	if (coin(g))
		return two(g, OP_MUL, x, ir_emit1(b, OP_RECIP, ir_emit1(b, OP_SQRT, v)));
	return ir_emit2(b, OP_DIV, x, ir_emit1(b, OP_SQRT, v));
}

static Value *affine(Gen *g, Value *y, int axis)
{
	Type t = y->type;
	memmove(t.dim, t.dim + axis, sizeof(int64_t) * (size_t)(t.rank - axis));
	t.rank -= axis;
	if (coin(g))
		y = two(g, OP_MUL, y, gen_source(g, odd(g) ? gen_companion(g, &y->type, DT_F32) : t));
	if (coin(g))
		y = two(g, OP_ADD, y, gen_source(g, odd(g) ? gen_companion(g, &y->type, DT_F32) : t));
	return y;
}

static Value *norm(Gen *g)
{
	Value *x = gen_floats(g, 1);
	int axis = (int)rng_in(g->r, 0, x->type.rank - 1);
	if (coin(g))
		axis = x->type.rank - 1;
	Value *d = coin(g) ? x : ir_emit2(&g->b, OP_SUB, x, over_last(g, OP_REDUCE_MEAN, x, axis));
	Value *square = coin(g) ? ir_emit2(&g->b, OP_POW, d, number(g, 2)) : two(g, OP_MUL, d, odd(g) ? x : d);
	return affine(g, root(g, d, over_last(g, OP_REDUCE_MEAN, square, axis)), axis);
}

static Value *soft_max(Gen *g)
{
	Builder *b = &g->b;
	Value *x = gen_floats(g, 1);
	int axis = x->type.rank - 1;
	Value *d = ir_emit2(b, OP_SUB, x, over_last(g, OP_REDUCE_MAX, x, axis));
	Value *e = ir_emit1(b, OP_EXP, d);
	Value *sum = over_last(g, OP_REDUCE_SUM, e, axis);
	if (coin(g))
		return ir_emit2(b, OP_DIV, odd(g) ? d : e, sum);
	return ir_emit2(b, OP_SUB, d, ir_emit1(b, OP_LOG, sum));
}

static Value *activation(Gen *g)
{
	Builder *b = &g->b;
	Value *x = gen_floats(g, 0), *other = odd(g) ? gen_source(g, gen_companion(g, &x->type, DT_F32)) : x;
	if (rng_one_of(g->r, 3))
		return two(g, OP_MUL, x, ir_emit1(b, OP_SIGMOID, other));
	if (coin(g)) {
		Value *erf = ir_emit1(b, OP_ERF, ir_emit2(b, OP_DIV, other, number(g, 1.4142135623730951)));
		return two(g, OP_MUL, two(g, OP_MUL, x, number(g, 0.5)), two(g, OP_ADD, erf, number(g, 1)));
	}
	Value *cube = ir_emit2(b, OP_POW, other, number(g, 3));
	Value *inner = two(g, OP_ADD, x, two(g, OP_MUL, cube, number(g, 0.044715)));
	Value *t = ir_emit1(b, OP_TANH, two(g, OP_MUL, inner, number(g, 0.7978845608028654)));
	return two(g, OP_MUL, two(g, OP_MUL, x, number(g, 0.5)), two(g, OP_ADD, t, number(g, 1)));
}

static Value *transposed(Gen *g, Value *x, int a, int c)
{
	int perm[IR_MAX_RANK];
	for (int i = 0; i < x->type.rank; i++)
		perm[i] = i;
	perm[a] = c;
	perm[c] = a;
	return ir_transpose(&g->b, x, perm);
}

static Value *heads(Gen *g, int64_t b, int64_t t, int64_t h, int64_t d)
{
	bool by_rows = coin(g);
	Value *x = gen_source(g, type_tensor(DT_F32, 3, (int64_t[]){b, t, h * d}));
	if (!by_rows)
		return gen_source(g, type_tensor(DT_F32, 4, (int64_t[]){b, h, t, d}));
	return transposed(g, ir_reshape(&g->b, x, 4, (int64_t[]){b, t, h, d}), 1, 2);
}

static Value *product(Gen *g, Value *x, Value *y, bool tb)
{
	Attr *attrs = attr_int(g->m, attr_int(g->m, NULL, "ta", 0), "tb", tb);
	return ir_emit(&g->b, OP_MATMUL, 2, (Value *[]){x, y}, attrs);
}

/* Drops weights [b,h,t,s] whose samples are in the first dim, or in a dim of a reshaped tensor. */
static Value *weights_dropped(Gen *g, Value *p, int64_t n)
{
	const Type t = p->type;
	int64_t heads = t.dim[0] * t.dim[1], pre = odd(g) ? heads : coin(g) ? 1 : t.dim[1], rows = odd(g) ? 1 : n;
	bool alone = odd(g), moved = pre != 1 || coin(g);
	Attr *attrs = attr_float(g->m, attr_int(g->m, NULL, "id", rng_in(g->r, 1, 3)), "p", 0.3);
	attrs = attr_int(g->m, attrs, "axis", alone ? -1 : moved ? 1 : 0);
	Value *x = !moved || heads % (pre * rows) ? p
		: ir_reshape(&g->b, p, 3, (int64_t[]){pre, rows, type_numel(&t) / (pre * rows)});
	return ir_reshape(&g->b, ir_emit(&g->b, OP_DROPOUT, 1, &x, attrs), 4, t.dim);
}

static Value *attention(Gen *g)
{
	Builder *b = &g->b;
	int64_t n = rng_in(g->r, 1, 2), h = rng_in(g->r, 1, 3), t = rng_in(g->r, 1, 4), d = rng_in(g->r, 1, 3);
	int64_t s = coin(g) ? t : rng_in(g->r, 1, 4);
	Value *q = heads(g, n, t, h, d), *k = heads(g, n, s, h, d), *v = heads(g, n, s, h, d);
	if (coin(g))
		q = two(g, OP_MUL, q, number(g, 0.5));
	Value *score = coin(g) ? product(g, q, k, true) : product(g, q, transposed(g, k, 2, 3), false);
	if (coin(g))
		score = coin(g) ? two(g, OP_MUL, score, number(g, 0.7)) : ir_emit2(b, OP_DIV, score, number(g, 1.5));
	if (coin(g))
		score = two(g, OP_ADD, score, gen_source(g, gen_companion(g, &score->type, DT_F32)));
	int64_t axis = odd(g) ? 2 : 3;
	Value *p = ir_emit(b, OP_SOFTMAX, 1, &score, attr_int(g->m, NULL, "axis", axis));
	if (rng_one_of(g->r, 3))
		p = weights_dropped(g, p, n);
	Value *o = p->type.dim[3] == v->type.dim[2] ? product(g, p, v, false) : p;
	if (coin(g) && o->type.kind == TYPE_TENSOR)
		o = ir_reshape(b, transposed(g, o, 1, 2), 3, (int64_t[]){n, t, h * o->type.dim[3]});
	return o;
}

static Value *part(Gen *g, Value *x, int64_t from, int64_t n)
{
	int64_t start[4] = {0, 0, 0, from}, step[4] = {1, 1, 1, 1}, size[4];
	memcpy(size, x->type.dim, sizeof(size));
	size[3] = n;
	Attr *attrs = attr_ints(g->m, attr_ints(g->m, NULL, "starts", 4, start), "sizes", 4, size);
	return ir_emit(&g->b, OP_SLICE, 1, &x, attr_ints(g->m, attrs, "steps", 4, step));
}

static Value *twice(Gen *g, Value *x, Value *y)
{
	return ir_emit(&g->b, OP_CONCAT, 2, (Value *[]){x, y}, attr_int(g->m, NULL, "axis", x->type.rank - 1));
}

static Value *rotation(Gen *g)
{
	Builder *b = &g->b;
	int64_t t = rng_in(g->r, 1, 4), half = rng_in(g->r, 1, 2), n = rng_in(g->r, 1, 2), h = rng_in(g->r, 1, 3);
	Value *x = heads(g, n, t, h, 2 * half), *angle = gen_source(g, type_tensor(DT_F32, 2, (int64_t[]){t, half}));
	Value *angles = twice(g, angle, odd(g) ? ir_emit1(b, OP_NEG, angle) : angle);
	Value *low = part(g, x, 0, half), *high = part(g, x, half, half);
	Value *turned = odd(g) ? twice(g, high, low) : twice(g, ir_emit1(b, OP_NEG, high), low);
	Value *cosine = two(g, OP_MUL, x, ir_emit1(b, OP_COS, angles));
	return two(g, OP_ADD, cosine, two(g, OP_MUL, turned, ir_emit1(b, OP_SIN, angles)));
}

static Value *loss(Gen *g)
{
	Builder *b = &g->b;
	int64_t n = rng_in(g->r, 1, 4), c = rng_in(g->r, 2, 4);
	Value *x = gen_source(g, type_tensor(DT_F32, 2, (int64_t[]){n, c}));
	Type t = type_tensor(DT_I64, 2, (int64_t[]){n, odd(g) ? 2 : 1});
	Symbol *s = ir_add_symbol(g->m, SYM_INPUT, arena_printf(g->m->arena, "label%d", g->n_symbols++), t);
	Value *y = ir_emit(b, OP_LOG_SOFTMAX, 1, &x, attr_int(g->m, NULL, "axis", odd(g) ? 0 : 1));
	Attr *axis = attr_int(g->m, NULL, "axis", odd(g) ? 0 : 1);
	y = ir_emit(b, OP_GATHER_ELEMENTS, 2, (Value *[]){y, ir_read(b, s)}, axis);
	y = ir_reduce(b, coin(g) ? OP_REDUCE_MEAN : OP_REDUCE_SUM, y, 2, (int64_t[]){0, 1}, coin(g));
	return ir_emit1(b, OP_NEG, y);
}

Op *gen_pattern(Gen *g)
{
	static Value *(*const patterns[])(Gen *) = {norm, norm, soft_max, activation, attention, attention, rotation, loss};
	Value *v = patterns[rng_in(g->r, 0, COUNT_OF(patterns) - 1)](g);
	return v->type.kind == TYPE_TENSOR ? v->op : NULL;
}
