/* tests/random/gen_values.c: random numbers, types and operands: values that exist, or new symbols and literals of a
 * shape that fits more often than not. */
#include "tests/random/gen_ir.h"

uint64_t rng_next(Rng *r)
{
	uint64_t z = r->state += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

int64_t rng_in(Rng *r, int64_t lo, int64_t hi)
{
	return lo + (int64_t)(rng_next(r) % (uint64_t)(hi - lo + 1));
}

double rng_unit(Rng *r)
{
	return (double)(rng_next(r) >> 11) / 0x1p52 - 1;
}

/* ---- types ---- */

static int64_t some_dim(Gen *g)
{
	static const int64_t dims[] = {1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 6};
	return rng_one_of(g->r, 60) ? 0 : dims[rng_in(g->r, 0, COUNT_OF(dims) - 1)];
}

Type gen_type(Gen *g, DType t, int least_rank)
{
	Type type = type_tensor(t, 0, NULL);
	int most = rng_one_of(g->r, 6) ? 5 : 3;
	type.rank = (int)rng_in(g->r, least_rank, MAX(least_rank, most));
	do {
		for (int i = 0; i < type.rank; i++)
			type.dim[i] = some_dim(g);
	} while (type_numel(&type) > RANDOM_MAX_NUMEL);
	return type;
}

/* Dims of 1, leading dims gone. */
Type gen_companion(Gen *g, const Type *t, DType dtype)
{
	Type c = *t;
	c.dtype = dtype;
	if (rng_one_of(g->r, 2))
		return c;
	int drop = (int)rng_in(g->r, 0, rng_one_of(g->r, 2) ? t->rank : 0);
	c.rank = t->rank - drop;
	for (int i = 0; i < c.rank; i++)
		c.dim[i] = rng_one_of(g->r, 3) ? 1 : t->dim[i + drop];
	return c;
}

/* ---- sources ---- */

static Value *literal(Gen *g, Type t)
{
	bool is_float = dtype_is_float(t.dtype), splat = rng_one_of(g->r, 2) || !type_numel(&t)
		|| type_numel(&t) > RANDOM_MAX_NUMEL;
	static const double likely[] = {0, 1, 2, -1, 0.5, 3, 1e-5, 0.25};
	int n = splat ? 1 : (int)type_numel(&t);
	double f[RANDOM_MAX_NUMEL + 1];
	int64_t i[RANDOM_MAX_NUMEL + 1];
	for (int k = 0; k < n; k++) {
		f[k] = rng_one_of(g->r, 2) ? likely[rng_in(g->r, 0, 7)] : (double)(float)rng_unit(g->r);
		i[k] = t.dtype == DT_BOOL ? rng_in(g->r, 0, 1) : rng_in(g->r, t.dtype == DT_U8 ? 0 : -2, 3);
	}
	Attr *value = is_float ? attr_floats(g->m, NULL, "value", n, f) : attr_ints(g->m, NULL, "value", n, i);
	return ir_emit_typed(&g->b, OP_CONST, 0, NULL, value, t);
}

Value *gen_symbol(Gen *g, SymbolKind kind, Type t)
{
	static const char *const names[] = {"in", "out", "w", "buf", "data", "state"};
	Symbol *s = ir_add_symbol(g->m, kind, arena_printf(g->m->arena, "%s%d", names[kind], g->n_symbols++), t);
	s->trainable = kind == SYM_PARAM;
	return ir_read(&g->b, s);
}

Value *gen_source(Gen *g, Type t)
{
	static const SymbolKind kinds[] = {SYM_PARAM, SYM_PARAM, SYM_INPUT, SYM_DATA, SYM_BUFFER};
	if (rng_one_of(g->r, 4))
		return literal(g, t);
	if (rng_one_of(g->r, 12) && t.rank && t.dtype != DT_BOOL) {
		Attr *attrs = attr_int(g->m, NULL, "axis", rng_in(g->r, 0, t.rank - 1));
		if (rng_one_of(g->r, 2))
			attrs = attr_float(g->m, attr_float(g->m, attrs, "start", (double)rng_in(g->r, -2, 2)), "step",
				(double)rng_in(g->r, -1, 2));
		return ir_emit_typed(&g->b, OP_IOTA, 0, NULL, attrs, t);
	}
	SymbolKind kind = kinds[rng_in(g->r, 0, dtype_is_float(t.dtype) ? 4 : 3)];
	return gen_symbol(g, kind == SYM_PARAM && !dtype_is_float(t.dtype) ? SYM_INPUT : kind, t);
}

static bool is_wanted(const Value *v, Want want)
{
	DType t = v->type.dtype;
	return want == WANT_ANY || (want == WANT_BOOL ? t == DT_BOOL : want == WANT_FLOAT ? dtype_is_float(t)
		: !dtype_is_float(t) && t != DT_BOOL);
}

Value *gen_pick(Gen *g, Want want, int least_rank)
{
	for (int i = 0; i < 12 && g->pool.n; i++) {
		Value *v = g->pool.at[rng_in(g->r, rng_one_of(g->r, 2) ? 0 : MAX(g->pool.n - 4, 0), g->pool.n - 1)];
		if (is_wanted(v, want) && v->type.rank >= least_rank)
			return v;
	}
	DType t = want == WANT_BOOL ? DT_BOOL : want == WANT_INT ? DT_I64 : DT_F32;
	return gen_source(g, gen_type(g, t, least_rank));
}

Value *gen_floats(Gen *g, int least_rank)
{
	for (int i = 0; i < 8; i++) {
		Value *v = gen_pick(g, WANT_FLOAT, least_rank);
		if (v->type.dtype == DT_F32)
			return v;
	}
	return gen_source(g, gen_type(g, DT_F32, least_rank));
}

Value *gen_like(Gen *g, const Value *x)
{
	Type to;
	for (int i = 0; i < 6 && g->pool.n; i++) {
		Value *v = g->pool.at[rng_in(g->r, 0, g->pool.n - 1)];
		if (v->type.dtype == x->type.dtype && type_broadcast(&v->type, &x->type, &to)
				&& type_numel(&to) <= RANDOM_MAX_NUMEL)
			return v;
	}
	return gen_source(g, gen_companion(g, &x->type, x->type.dtype));
}

Value *gen_ids(Gen *g, Type t, int64_t n, bool negative)
{
	int64_t v[RANDOM_MAX_NUMEL + 1];
	int64_t count = type_numel(&t), begin = rng_in(g->r, negative ? -n : 0, MAX(n - 1, 0)), step = rng_in(g->r, -1, 2);
	t.dtype = DT_I64;
	if (rng_one_of(g->r, 3) || !count || !n)
		return gen_symbol(g, SYM_INPUT, t);
	bool even = rng_one_of(g->r, 2);
	for (int64_t i = 0; i < count; i++) {
		v[i] = even ? begin + step * i : rng_in(g->r, negative ? -n : 0, n - 1);
		if (v[i] < (negative ? -n : 0) || v[i] >= n)
			v[i] = rng_in(g->r, 0, n - 1);
	}
	return ir_emit_typed(&g->b, OP_CONST, 0, NULL, attr_ints(g->m, NULL, "value", (int)count, v), t);
}
