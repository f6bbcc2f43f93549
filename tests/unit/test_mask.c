/* tests/unit/test_mask.c: what is proved of attention masks is exact.
 *
 * Random masks are built of what exporters and people write: comparisons of positions, offsets, windows, documents,
 * masks of keys, constants with an element flipped, limits that differ by sample, axes that are swapped.  Each is the
 * mask of an attention, which is evaluated before and after masks are split into their parts.  A mask that is a band or
 * a conjunction of a band, documents and masks of keys by its elements must also be found to be one, mostly. */
#include "passes/canon/canon.h"
#include "passes/patterns/mask.h"
#include "tests/unit/parsed.h"
#include "tests/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MASKS = 10000, B = 2, MOST = 7 };

typedef struct Gen {
	uint64_t state;
	Builder b;
	int64_t T, S;
	bool hard; /* a part was used that is no band, documents or mask of keys */
} Gen;

static int pick(Gen *g, int n)
{
	g->state = g->state * 6364136223846793005u + 1442695040888963407u;
	return (int)((g->state >> 33) % (uint64_t)n);
}

static Value *iota(Gen *g, DType t, int rank, const int64_t *dim, int axis, double start, double step)
{
	Attr *a = attr_float(g->b.m, attr_int(g->b.m, NULL, "axis", axis), "start", start);
	return ir_emit_typed(&g->b, OP_IOTA, 0, NULL, attr_float(g->b.m, a, "step", step), type_tensor(t, rank, dim));
}

static Value *ints(Gen *g, int rank, const int64_t *dim, const int64_t *v)
{
	Type t = type_tensor(DT_I64, rank, dim);
	return ir_emit_typed(&g->b, OP_CONST, 0, NULL, attr_ints(g->b.m, NULL, "value", (int)type_numel(&t), v), t);
}

static Value *cast(Gen *g, Value *v, DType to)
{
	return ir_cast(&g->b, v, to);
}

static Value *reshaped(Gen *g, Value *v, int64_t rows, int64_t columns)
{
	return ir_reshape(&g->b, v, 2, (int64_t[]){rows, columns});
}

/* ---- positions of queries [T,1] and of keys [1,S] ---- */

static Value *positions(Gen *g, bool of_queries)
{
	int64_t n = of_queries ? g->T : g->S, rows = of_queries ? n : 1, columns = of_queries ? 1 : n;
	double start = pick(g, 3) ? 0 : pick(g, 5) - 2, step = pick(g, 9) ? 1 : 2;
	DType t = pick(g, 3) ? DT_I64 : pick(g, 2) ? DT_F32 : DT_I32;
	Value *long_one;
	g->hard = g->hard || step != 1;
	switch (pick(g, 7)) {
	case 0: return iota(g, t, 2, (int64_t[]){rows, columns}, of_queries ? 0 : 1, start, step);
	case 1: return reshaped(g, iota(g, t, 1, &n, 0, start, step), rows, columns);
	case 2: { /* a part of longer ones, from its end when steps are negative */
		int64_t first = pick(g, 3), by = pick(g, 6) ? 1 : 2, many = first + by * n;
		Attr *a = attr_ints(g->b.m, NULL, "starts", 1, &first);
		a = attr_ints(g->b.m, attr_ints(g->b.m, a, "steps", 1, &by), "sizes", 1, &n);
		long_one = iota(g, t, 1, &many, 0, -(double)first, 1);
		g->hard = g->hard || by != 1;
		return reshaped(g, ir_emit(&g->b, OP_SLICE, 1, &long_one, a), rows, columns);
	}
	case 3: { /* looked up */
		int64_t many = n + 2;
		Value *ids = iota(g, DT_I64, 1, &n, 0, pick(g, 2) ? pick(g, 3) : pick(g, 3) - many, 1);
		Value *in[2] = {iota(g, t, 1, &many, 0, start, step), ids};
		return reshaped(g, ir_emit(&g->b, OP_GATHER, 2, in, attr_int(g->b.m, NULL, "axis", 0)), rows, columns);
	}
	case 5: { /* behind others, or (hard) across both */
		int64_t more = 2, first = pick(g, 4) ? more : pick(g, 2), by = 1;
		Value *in[2] = {iota(g, t, 1, &more, 0, 7, 1), iota(g, t, 1, &n, 0, start, step)};
		Attr *a = attr_ints(g->b.m, NULL, "starts", 1, &first);
		a = attr_ints(g->b.m, attr_ints(g->b.m, a, "steps", 1, &by), "sizes", 1, &n);
		long_one = ir_emit(&g->b, OP_CONCAT, 2, in, attr_int(g->b.m, NULL, "axis", 0));
		g->hard = g->hard || first < more;
		return reshaped(g, ir_emit(&g->b, OP_SLICE, 1, &long_one, a), rows, columns);
	}
	case 4: { /* counted */
		Value *ones = ir_const_full(&g->b, type_tensor(DT_I64, 1, &n), 1);
		Attr *a = attr_int(g->b.m, attr_int(g->b.m, attr_int(g->b.m, NULL, "axis", 0), "exclusive", 0), "reverse", 0);
		Value *count = cast(g, ir_emit(&g->b, OP_CUMSUM, 1, &ones, a), t);
		return reshaped(g, ir_emit2(&g->b, OP_SUB, count, ir_const_full(&g->b, type_scalar(t), 1)), rows, columns);
	}
	default: {
		Value *v = cast(g, iota(g, DT_I64, 2, (int64_t[]){rows, columns}, of_queries ? 0 : 1, 0, 1), t);
		return ir_emit2(&g->b, pick(g, 2) ? OP_ADD : OP_SUB, v, ir_const_full(&g->b, type_scalar(t), pick(g, 4)));
	}
	}
}

static OpKind comparison(Gen *g)
{
	static const OpKind kind[] = {OP_GE, OP_GT, OP_LE, OP_LT};
	return kind[pick(g, 4)];
}

static Value *compared(Gen *g, Value *x, Value *y, OpKind kind)
{
	if (!pick(g, 12)) { /* rounded products */
		Value *by = ir_const_float(&g->b, DT_F32, pick(g, 2) ? 0.1 : 3);
		x = ir_emit2(&g->b, OP_MUL, cast(g, x, DT_F32), by);
		y = ir_emit2(&g->b, OP_MUL, cast(g, y, DT_F32), by);
		g->hard = true;
		return ir_emit2(&g->b, kind, ir_emit2(&g->b, OP_SUB, x, y), ir_const_float(&g->b, DT_F32, pick(g, 3) / 10.0));
	}
	DType t = pick(g, 2) ? x->type.dtype : DT_F64;
	x = cast(g, x, t);
	y = cast(g, y, t);
	return pick(g, 2) ? ir_emit2(&g->b, kind, x, y) : ir_emit2(&g->b, kind, y, x);
}

static Value *gen_window(Gen *g)
{
	Value *q = cast(g, positions(g, true), DT_I64), *s = cast(g, positions(g, false), DT_I64);
	Value *d = ir_emit2(&g->b, OP_SUB, q, s), *w = ir_const_int(&g->b, DT_I64, pick(g, MOST));
	if (pick(g, 2))
		d = ir_emit1(&g->b, OP_ABS, d);
	return ir_emit2(&g->b, comparison(g), d, w);
}

/* ---- tables ---- */

static Value *gen_table(Gen *g)
{
	int64_t v[MOST * MOST], diagonal = pick(g, 5) - 2, width = pick(g, 3) ? MOST : 1 + pick(g, 3);
	bool flip = !pick(g, 3);
	for (int64_t i = 0; i < g->T * g->S; i++) {
		int64_t d = i / g->S - i % g->S;
		v[i] = d >= diagonal && d < diagonal + width;
	}
	if (flip)
		v[pick(g, (int)(g->T * g->S))] ^= 1;
	g->hard = g->hard || flip;
	Value *t = ints(g, 2, (int64_t[]){g->T, g->S}, v);
	if (!pick(g, 3)) { /* distances, one of them perhaps wrong */
		for (int64_t i = 0; i < g->T * g->S; i++)
			v[i] = llabs(i / g->S - i % g->S - diagonal) + (flip && i == width);
		t = ints(g, 2, (int64_t[]){g->T, g->S}, v);
		return ir_emit2(&g->b, comparison(g), t, ir_const_int(&g->b, DT_I64, width));
	}
	if (pick(g, 2))
		return cast(g, t, DT_BOOL);
	return ir_emit2(&g->b, OP_EQ, cast(g, t, DT_F32), ir_const_float(&g->b, DT_F32, pick(g, 4) ? 0 : 1));
}

/* ---- masks of samples ---- */

static Value *by_sample(Gen *g) /* queries and keys apart by other numbers in each sample */
{
	int64_t offset[B] = {pick(g, 3), pick(g, 3)};
	Value *q = cast(g, positions(g, true), DT_I64), *s = cast(g, positions(g, false), DT_I64);
	g->hard = true;
	return ir_emit2(&g->b, OP_GE, ir_emit2(&g->b, OP_ADD, q, ints(g, 4, (int64_t[]){B, 1, 1, 1}, offset)), s);
}

static Value *of_keys(Gen *g)
{
	Value *v = value_named(g->b.m, pick(g, 2) ? "pad" : "seen");
	if (v->type.rank == 2 && pick(g, 2))
		return ir_reshape(&g->b, cast(g, v, DT_BOOL), 4, (int64_t[]){B, 1, 1, g->S});
	if (v->type.rank == 2)
		v = ir_emit2(&g->b, OP_GT, ir_reshape(&g->b, v, 4, (int64_t[]){B, 1, 1, g->S}), ir_const_int(&g->b, DT_I64, 0));
	return v;
}

static Value *of_documents(Gen *g)
{
	Value *ids = value_named(g->b.m, "ids");
	if (pick(g, 3)) {
		int64_t rank = 3 + pick(g, 2), queries[4] = {B, 1, g->T, 1}, keys[4] = {B, 1, 1, g->S};
		if (rank == 3) {
			memcpy(queries, (int64_t[]){B, g->T, 1}, sizeof(int64_t) * 3);
			memcpy(keys, (int64_t[]){B, 1, g->S}, sizeof(int64_t) * 3);
		}
		Value *eq = ir_emit2(&g->b, OP_EQ, ir_reshape(&g->b, ids, (int)rank, queries),
			ir_reshape(&g->b, ids, (int)rank, keys));
		return ir_reshape(&g->b, eq, 4, (int64_t[]){B, 1, g->T, g->S});
	}
	/* blocks of equal length */
	Value *size = ir_const_int(&g->b, DT_I64, 1 + pick(g, 3));
	Value *q = iota(g, DT_I64, 2, (int64_t[]){g->T, 1}, 0, 0, 1);
	Value *s = iota(g, DT_I64, 2, (int64_t[]){1, g->S}, 1, 0, 1);
	if (!pick(g, 4)) { /* not the same numbers of both */
		s = ir_reshape(&g->b, ids, 4, (int64_t[]){B, 1, 1, g->S});
		g->hard = true;
	}
	return ir_emit2(&g->b, OP_EQ, ir_emit2(&g->b, OP_DIV, q, size), ir_emit2(&g->b, OP_DIV, s, size));
}

/* ---- whole masks ---- */

static Value *gen_bool(Gen *g, int depth);

static Value *gen_part(Gen *g)
{
	Value *q, *s;
	switch (pick(g, 9)) {
	case 0: return gen_window(g);
	case 1: return gen_table(g);
	case 2: return by_sample(g);
	case 3: return of_keys(g);
	case 4:
		if (g->T == g->S)
			return of_documents(g);
		/* fall through */
	default:
		q = positions(g, true);
		s = positions(g, false);
		return compared(g, q, s, comparison(g));
	}
}

static Value *gen_combined(Gen *g, int depth)
{
	static const int swap[2] = {1, 0};
	Value *x = gen_bool(g, depth + 1), *y, *one = ir_const_float(&g->b, DT_F32, 1);
	switch (pick(g, 14)) {
	case 13: /* positions of some, a number of others */
		g->hard = true;
		y = cast(g, positions(g, pick(g, 2)), DT_I64);
		y = ir_emit3(&g->b, OP_WHERE, x, y, ir_const_int(&g->b, DT_I64, pick(g, 5) - 1));
		return compared(g, y, positions(g, false), comparison(g));
	case 12: /* flat between, or (hard) rows of another length */
		if (x->type.rank != 2)
			return x;
		x = ir_reshape(&g->b, x, 1, (int64_t[]){type_numel(&x->type)});
		if (pick(g, 2) || type_numel(&x->type) != g->T * g->S)
			return reshaped(g, x, type_numel(&x->type) == g->S ? 1 : g->T, type_numel(&x->type) == g->T ? 1 : g->S);
		g->hard = true;
		return ir_transpose(&g->b, reshaped(g, x, g->S, g->T), swap);
	case 0: g->hard = true; return ir_emit2(&g->b, OP_OR, x, gen_bool(g, depth + 1));
	case 1: g->hard = true; return ir_emit3(&g->b, OP_WHERE, x, gen_bool(g, depth + 1), gen_bool(g, depth + 1));
	case 2: g->hard = true; return ir_emit1(&g->b, OP_NOT, x);
	case 3: /* products, or the smaller one, of numbers */
		y = gen_bool(g, depth + 1);
		return cast(g, ir_emit2(&g->b, pick(g, 2) ? OP_MUL : OP_MIN, cast(g, x, DT_F32), cast(g, y, DT_F32)), DT_BOOL);
	case 4: return ir_emit2(&g->b, OP_LT, ir_emit2(&g->b, OP_SUB, one, cast(g, x, DT_F32)), one);
	case 5: /* axes swapped */
		if (g->T == g->S && x->type.rank == 2)
			return ir_transpose(&g->b, x, swap);
		return x;
	case 6: g->hard = true; return ir_emit2(&g->b, OP_XOR, x, gen_bool(g, depth + 1));
	default: return ir_emit2(&g->b, OP_AND, x, gen_bool(g, depth + 1));
	}
}

static Value *gen_bool(Gen *g, int depth)
{
	return depth == 2 || !pick(g, 3) ? gen_part(g) : gen_combined(g, depth);
}

static Value *additive(Gen *g, Value *keep)
{
	static const double low[] = {-INFINITY, -INFINITY, -3.4028234663852886e+38, -1e9, -1e4};
	Value *zero = ir_const_float(&g->b, DT_F32, 0), *v = ir_const_float(&g->b, DT_F32, low[pick(g, 5)]);
	switch (pick(g, 4)) {
	case 0: return ir_emit3(&g->b, OP_WHERE, ir_emit1(&g->b, OP_NOT, keep), v, zero);
	case 1: /* (1 - keep) * low */
		v = ir_const_float(&g->b, DT_F32, low[2 + pick(g, 3)]);
		keep = ir_emit2(&g->b, OP_SUB, ir_const_float(&g->b, DT_F32, 1), cast(g, keep, DT_F32));
		return ir_emit2(&g->b, OP_MUL, keep, v);
	case 2: { /* and a bias */
		Value *bias = value_named(g->b.m, "bias");
		g->hard = true;
		return pick(g, 2) ? ir_emit3(&g->b, OP_WHERE, keep, bias, v)
			: ir_emit2(&g->b, OP_ADD, bias, ir_emit3(&g->b, OP_WHERE, keep, zero, v));
	}
	default: return ir_emit3(&g->b, OP_WHERE, keep, zero, v);
	}
}

/* ---- one mask ---- */

static Module *module_of(int64_t T, int64_t S)
{
	const struct { const char *name, *dtype; int rank; int64_t dim[4]; } input[] = {
		{"q", "f32", 4, {B, 2, T, 1}}, {"k", "f32", 4, {B, 2, S, 1}}, {"v", "f32", 4, {B, 2, S, 1}},
		{"pad", "bool", 4, {B, 1, 1, S}}, {"seen", "i64", 2, {B, S}}, {"ids", "i64", 2, {B, T}},
		{"bias", "f32", 3, {2, T, S}},
	};
	Buf text = {0}, ops = {0};
	buf_printf(&text, "module \"m\" level=MODEL {\n");
	for (size_t i = 0; i < sizeof(input) / sizeof(*input); i++) {
		const char *kind = strcmp(input[i].name, "bias") ? "input" : "param";
		char type[64];
		int n = snprintf(type, sizeof(type), "%s[", input[i].dtype);
		for (int k = 0; k < input[i].rank; k++)
			n += snprintf(type + n, sizeof(type) - (size_t)n, "%s%d", k ? "," : "", (int)input[i].dim[k]);
		buf_printf(&text, "%s \"%s\" : %s]\n", kind, input[i].name, type);
		buf_printf(&ops, "%%%s : %s] = %s \"%s\"\n", input[i].name, type, kind, input[i].name);
	}
	buf_printf(&text, "output \"y\" : f32[%d,2,%d,1]\nforward {\n%s}\n}\n", B, (int)T, ops.at);
	Module *m = parsed(text.at);
	buf_free(&text);
	buf_free(&ops);
	return m;
}

static EvalEnv *evaluated(Module *m, uint64_t seed)
{
	EvalEnv *e = eval_new(m, m->arena);
	Gen g = {.state = seed};
	eval_set_round(e, true);
	for (int i = 0; i < m->n_symbols; i++) {
		EvalTensor t = eval_alloc(e, m->symbols[i]->type);
		for (int64_t k = 0, n = type_numel(&t.type); k < n; k++)
			if (dtype_is_float(t.type.dtype))
				t.f[k] = pick(&g, 1000) / 500.0 - 1;
			else
				t.i[k] = pick(&g, 3) > 0;
		eval_bind(e, m->symbols[i], t);
	}
	eval_section(e, SEC_FORWARD);
	return e;
}

static double difference(const EvalTensor *a, const EvalTensor *b)
{
	double most = 0;
	for (int64_t i = 0, n = type_numel(&a->type); i < n; i++) {
		double d = isnan(a->f[i]) && isnan(b->f[i]) ? 0 : fabs(a->f[i] - b->f[i]);
		most = d <= most ? most : isnan(d) ? INFINITY : d;
	}
	return most;
}

/* Whether a bool mask is one band for all samples, which masks something but no row altogether. */
static bool is_band(const EvalTensor *t, int64_t T, int64_t S)
{
	int64_t n = type_numel(&t->type), lo = MOST, hi = -MOST;
	bool some = false;
	if (dtype_is_float(t->type.dtype) || n % (T * S) || t->type.rank < 2 || t->type.dim[t->type.rank - 1] != S
			|| t->type.dim[t->type.rank - 2] != T)
		return false;
	for (int64_t i = 0; i < n; i++)
		if (t->i[i]) {
			int64_t d = i / S % T - i % S;
			lo = MIN(lo, d);
			hi = MAX(hi, d);
		}
	for (int64_t i = 0; i < n; i++) {
		int64_t d = i / S % T - i % S;
		if (t->i[i] != (d >= lo && d <= hi))
			return false;
		some = some || !t->i[i];
	}
	return some && lo <= hi;
}

/* easy: made of bands, documents and masks of keys alone, which are not added; bands: those of them that are a band by
 * their elements.  small: no tensor with both queries and keys is left. */
typedef struct Tally { int wrong, bands, bands_found, easy, easy_small, hard_small, documents; } Tally;

static void count(Tally *n, const Gen *g, bool band, bool added, const Op *now)
{
	const Value *rest = op_in(now, 3);
	bool small = !rest || rest->type.rank < 2 || rest->type.dim[rest->type.rank - 2] == 1;
	bool easy = !g->hard && !added;
	n->bands += easy && band;
	n->bands_found += easy && band && !rest;
	n->easy += easy;
	n->easy_small += easy && small;
	n->hard_small += g->hard && small;
	n->documents += op_in(now, 4) != NULL;
}

/* An attention whose mask is random; *added: its mask is added to the scores. */
static Value *masked_attention(Gen *g, Value **keep, bool *added)
{
	Module *m = g->b.m;
	*keep = gen_bool(g, 0);
	*added = !pick(g, 3);
	Attr *a = attr_int(m, attr_float(m, NULL, "scale", 1), "layout", 0);
	Value *in[4] = {value_named(m, "q"), value_named(m, "k"), value_named(m, "v"), *added ? additive(g, *keep) : *keep};
	Value *y = ir_emit(&g->b, OP_ATTENTION, 4, in, attr_str(m, a, "empty", pick(g, 2) ? "nan" : "zero"));
	g->b.sym = ir_find_symbol(m, "y");
	ir_emit(&g->b, OP_OUTPUT, 1, &y, NULL);
	return y;
}

static void try_mask(uint64_t seed, bool fold, Tally *n)
{
	static const Rule rule = {OP_ATTENTION, "mask -> its parts", pattern_attention_mask};
	Gen g = {.state = seed * 0x9e3779b97f4a7c15u};
	Diag d = {.out = stderr};
	Value *keep;
	bool added;
	g.T = 2 + pick(&g, MOST - 1);
	g.S = pick(&g, 3) ? g.T : 2 + pick(&g, MOST - 1);
	Module *m = module_of(g.T, g.S);
	g.b = (Builder){.m = m, .section = SEC_FORWARD, .loc = m->first[SEC_FORWARD]->loc};
	Value *y = masked_attention(&g, &keep, &added);
	EvalEnv *was = evaluated(m, seed);
	EvalTensor want = *eval_value(was, y);
	bool band = is_band(eval_value(was, keep), g.T, g.S);
	RuleSet sets[2] = {{&rule, 1}, canon_rules};
	rewrite_module(m, &d, fold ? 2 : 1, sets, patterns_see_data, NULL);
	Op *now = NULL;
	IR_FOR_OPS(m, SEC_FORWARD, op)
		now = op->kind == OP_ATTENTION ? op : now;
	double off = now ? difference(&want, eval_value(evaluated(m, seed), now->out[0])) : INFINITY;
	if (off > 1e-5) {
		fprintf(stderr, "mask %d: the result differs by %g:\n%s", (int)seed, off, ir_text(m, m->arena));
		n->wrong++;
	} else {
		count(n, &g, band, added, now);
	}
	ir_module_free(m);
}

static void check_masks(int n_masks, bool fold)
{
	Tally n = {0};
	for (int i = 1; i <= n_masks; i++)
		try_mask((uint64_t)i, fold, &n);
	CU_ASSERT_EQUAL(n.wrong, 0);
	CU_ASSERT(n.bands > n_masks / 20 && n.bands_found > n.bands * 0.95);
	CU_ASSERT(n.easy > n_masks / 5 && n.easy_small > n.easy * 0.75); /* the others have two bands, or mask everything */
	CU_ASSERT(n.hard_small > n_masks / 10);
	CU_ASSERT(n.documents > n_masks / 40);
}

static void masks_are_split_exactly(void)
{
	check_masks(MASKS, false);
}

static void folded_masks_are_split_exactly(void)
{
	check_masks(MASKS / 10, true);
}

void suite_mask(void)
{
	CU_pSuite s = CU_add_suite("mask", NULL, NULL);
	CU_add_test(s, "what is proved of random masks holds for each element", masks_are_split_exactly);
	CU_add_test(s, "the same where constants are folded first", folded_masks_are_split_exactly);
}
