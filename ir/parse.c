/* ir/parse.c: text -> module; the exact inverse of print.c.  Grammar: docs/ir.md.
 *
 * A recursive descent over tokens.  Every function reads what it is named after.  The first syntax error
 * ends the file with "FILE:LINE:COLUMN: error"; errors of meaning (shapes, unknown names) are reported op by op.
 * Nothing here trusts the text: counts are bounded by its length, numbers are range-checked. */
#include "base/near.h"
#include "ir/lex.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Parser {
	Lexer lex;
	Module *m;
	Map *values; /* by name: defined so far */
	struct { const char *name; int64_t offset; int flat; Unit *unit; } *members; /* of unit lines */
	int n_members, cap_members;
} Parser;

/* ---- numbers and lists ---- */

static bool is_float_text(const char *s)
{
	return strpbrk(s, ".eE") || !strcmp(s, "inf") || !strcmp(s, "-inf") || !strcmp(s, "nan");
}

static double number(Parser *p, const char *text)
{
	char *end;
	double v = strtod(text, &end);
	if (*end || end == text)
		lex_fail(&p->lex, "\"%s\" is not a number", text);
	return v;
}

static bool at_number(const Parser *p)
{
	return p->lex.tok.kind == TOK_NUMBER || lex_is_word(&p->lex, "inf") || lex_is_word(&p->lex, "nan");
}

typedef VEC(int64_t) Ints;
typedef VEC(double) Floats;

/* [1,2] or [1.0,2.0]; returns true when floats.  Among those a whole number may be beyond 64 bits. */
static bool number_list(Parser *p, Ints *ints, Floats *floats)
{
	bool is_float = false;
	const char *beyond = NULL;
	TextPlace at = {0};
	lex_expect(&p->lex, '[');
	while (!p->lex.failed && !lex_is_punct(&p->lex, ']')) {
		if (!at_number(p)) {
			lex_fail(&p->lex, "expected a number, found \"%s\"", p->lex.tok.text);
			break;
		}
		const char *text = p->lex.tok.text;
		bool whole = !is_float_text(text);
		int64_t i = 0;
		is_float = is_float || !whole;
		if (whole && !lex_is_integer(text, &i) && !beyond) {
			beyond = text;
			at = p->lex.tok_at;
		}
		vec_push(p->lex.arena, floats, number(p, text));
		vec_push(p->lex.arena, ints, i);
		lex_next(&p->lex);
		if (!lex_accept(&p->lex, ','))
			break;
	}
	lex_expect(&p->lex, ']');
	if (beyond && !is_float)
		lex_refuse_at(&p->lex, &at, "\"%s\" is not a 64-bit integer", beyond);
	return is_float;
}

static int small_ints(Parser *p, int64_t *out)
{
	Ints ints = {0};
	Floats floats = {0};
	if (number_list(p, &ints, &floats))
		lex_refuse(&p->lex, "expected whole numbers, found a list of floats");
	if (ints.n > IR_MAX_RANK)
		lex_refuse(&p->lex, "%d dimensions, at most %d are allowed", ints.n, IR_MAX_RANK);
	for (int i = 0; !p->lex.failed && i < ints.n; i++)
		out[i] = ints.at[i];
	return p->lex.failed ? 0 : ints.n;
}

/* ---- types ---- */

static const char *unit_name(Parser *p)
{
	bool quoted = p->lex.tok.kind == TOK_STRING;
	return quoted ? lex_take(&p->lex, TOK_STRING, "a unit") : lex_name(&p->lex, "a unit name");
}

static Unit *unit_ref(Parser *p)
{
	lex_expect(&p->lex, '@');
	const char *text = unit_name(p);
	Unit *u = p->lex.failed ? NULL : ir_find_unit(p->m, text);
	if (!u)
		lex_refuse(&p->lex, "unknown unit \"%s\"", text);
	return u;
}

static int flat_suffix(Parser *p)
{
	if (!lex_accept(&p->lex, '/'))
		return 0;
	int64_t flat = lex_integer(&p->lex);
	if (flat < 0 || flat >= UNIT_MAX_FLATS)
		lex_refuse(&p->lex, "flat %lld: a unit has at most %d", (long long)flat, UNIT_MAX_FLATS);
	return (int)flat;
}

static void tensor_type(Parser *p, const char *dtype, Type *t)
{
	t->kind = TYPE_TENSOR;
	if (!dtype_from_text(dtype, &t->dtype))
		lex_refuse(&p->lex, "unknown type \"%s\"", dtype);
	t->rank = small_ints(p, t->dim);
	int64_t numel = 1;
	for (int i = 0; i < t->rank; i++)
		if (t->dim[i] < 0 || __builtin_mul_overflow(numel, MAX(t->dim[i], 1), &numel) || numel > INT64_C(1) << 46)
			lex_refuse(&p->lex, "dimension %lld is negative or makes the tensor too large", (long long)t->dim[i]);
	if (lex_accept(&p->lex, ':'))
		t->layout = ir_intern(p->m, lex_name(&p->lex, "a layout"));
}

static DType float_dtype(Parser *p)
{
	DType t = DT_F32;
	const char *text = lex_take(&p->lex, TOK_WORD, "a dtype");
	if (!p->lex.failed && (!dtype_from_text(text, &t) || !dtype_is_float(t)))
		lex_refuse(&p->lex, "\"%s\" is no floating-point dtype", text);
	return t;
}

static Type type(Parser *p)
{
	Type t = {0};
	bool async = lex_is_word(&p->lex, "async");
	if (async)
		lex_next(&p->lex);
	const char *word = lex_take(&p->lex, TOK_WORD, "a type");
	if (!strcmp(word, "flat") || !strcmp(word, "shard")) {
		bool flat = !strcmp(word, "flat");
		t.kind = async ? flat ? TYPE_ASYNC_FLAT : TYPE_ASYNC_SHARD : flat ? TYPE_FLAT : TYPE_SHARD;
		t.unit = unit_ref(p);
		t.flat = flat_suffix(p);
		if (t.unit)
			t.dtype = t.unit->flat[t.flat].dtype;
		if (lex_accept(&p->lex, ':'))
			t.dtype = float_dtype(p);
	} else if (!strcmp(word, "none") && !async) {
		t.kind = TYPE_NONE;
	} else if (!strcmp(word, "event") && !async) {
		t.kind = TYPE_EVENT;
	} else {
		tensor_type(p, word, &t);
	}
	return t;
}

static Place place(Parser *p)
{
	static const char *const regions[] = {"act", "input", "param", "grad", "state"};
	Place at = {0};
	if (!lex_accept(&p->lex, '@'))
		return at;
	at.region = (Region)(lex_keyword(&p->lex, regions, COUNT_OF(regions), "region") + REGION_ACT);
	if (at.region == REGION_PARAM || at.region == REGION_GRAD) {
		at.unit = unit_ref(p);
		at.flat = flat_suffix(p);
	}
	lex_expect(&p->lex, '+');
	at.offset = lex_integer(&p->lex);
	return at;
}

/* ---- attributes and locations ---- */

static Attr *attr(Parser *p, Attr *list)
{
	Module *m = p->m;
	if (p->lex.tok.kind == TOK_WORD && attr_find(list, p->lex.tok.text))
		lex_fail(&p->lex, "attribute %s is given twice", p->lex.tok.text);
	const char *key = lex_take(&p->lex, TOK_WORD, "an attribute");
	lex_expect(&p->lex, '=');
	if (lex_is_punct(&p->lex, '[')) {
		Ints ints = {0};
		Floats floats = {0};
		if (number_list(p, &ints, &floats))
			return attr_floats(m, list, key, floats.n, floats.at);
		return attr_ints(m, list, key, ints.n, ints.at);
	}
	if (p->lex.tok.kind == TOK_STRING)
		return attr_str(m, list, key, lex_take(&p->lex, TOK_STRING, "a string"));
	if (at_number(p)) {
		if (!is_float_text(p->lex.tok.text))
			return attr_int(m, list, key, lex_integer(&p->lex));
		double v = number(p, p->lex.tok.text);
		lex_next(&p->lex);
		return attr_float(m, list, key, v);
	}
	DType dtype = DT_F32;
	const char *word = lex_take(&p->lex, TOK_WORD, "a value");
	if (!dtype_from_text(word, &dtype))
		lex_refuse(&p->lex, "\"%s\": expected a number, string, list or dtype", word);
	return attr_dtype(m, list, key, dtype);
}

static Attr *attrs(Parser *p)
{
	Attr *list = NULL;
	if (!lex_accept(&p->lex, '{'))
		return NULL;
	do {
		list = attr(p, list);
	} while (lex_accept(&p->lex, ','));
	lex_expect(&p->lex, '}');
	return list;
}

static const Loc *location(Parser *p)
{
	const char *onnx = "", *scope = "", *role = "";
	if (!lex_is_word(&p->lex, "loc"))
		return loc_new(p->m, "", "", "", "");
	lex_next(&p->lex);
	lex_expect(&p->lex, '(');
	const char *node = lex_take(&p->lex, TOK_STRING, "a node name");
	if (lex_accept(&p->lex, ':'))
		onnx = lex_take(&p->lex, TOK_STRING, "an ONNX op type");
	if (lex_accept(&p->lex, '@'))
		scope = lex_take(&p->lex, TOK_STRING, "a scope");
	if (p->lex.tok.kind == TOK_WORD)
		role = lex_take(&p->lex, TOK_WORD, "a role");
	lex_expect(&p->lex, ')');
	return loc_new(p->m, node, onnx, scope, role);
}

/* ---- ops ---- */

typedef struct OpText {
	VEC(const char *) out_name;
	VEC(Type) out_type;
	VEC(Place) out_place;
	VEC(Value *) in;
	OpKind kind;
	Symbol *sym;
	Unit *unit;
} OpText;

static void results(Parser *p, OpText *t)
{
	while (lex_accept(&p->lex, '%')) {
		const char *text = lex_name(&p->lex, "a value name");
		lex_expect(&p->lex, ':');
		vec_push(p->lex.arena, &t->out_name, text);
		vec_push(p->lex.arena, &t->out_type, type(p));
		vec_push(p->lex.arena, &t->out_place, place(p));
		if (!lex_accept(&p->lex, ','))
			break;
	}
	if (t->out_name.n)
		lex_expect(&p->lex, '=');
}

/* The first operand stands on the op's line: what follows on the next is that one's result. */
static void operands(Parser *p, OpText *t, int line)
{
	while (!p->lex.failed && (t->in.n || p->lex.tok_at.line == line)) {
		if (!lex_is_punct(&p->lex, '%') && !lex_is_word(&p->lex, "_"))
			return;
		Value *v = NULL;
		if (lex_accept(&p->lex, '%')) {
			const char *text = lex_name(&p->lex, "a value name");
			v = map_get(p->values, text);
			if (!v)
				lex_refuse(&p->lex, "%%%s is used before it is defined", text);
		} else {
			lex_next(&p->lex);
		}
		vec_push(p->lex.arena, &t->in, v);
		if (!lex_accept(&p->lex, ','))
			return;
	}
}

/* What follows the op's name and comes before its operands. */
static void op_subject(Parser *p, OpText *t)
{
	unsigned flags = op_info[t->kind].flags;
	if (flags & UNIT && lex_is_punct(&p->lex, '@'))
		t->unit = unit_ref(p);
	if (flags & SYM) {
		const char *text = lex_take(&p->lex, TOK_STRING, "a symbol's name");
		t->sym = p->lex.failed ? NULL : ir_find_symbol(p->m, text);
		if (!t->sym)
			lex_refuse(&p->lex, "unknown symbol \"%s\"", text);
	}
}

static void check_counts(Parser *p, const OpText *t, int n_out)
{
	const OpInfo *info = &op_info[t->kind];
	if (t->in.n < info->n_in_min)
		lex_fail(&p->lex, "%s takes at least %d operand(s), got %d", info->text, info->n_in_min, t->in.n);
	else if (t->in.n > info->n_in_max && !(info->flags & VARIN))
		lex_fail(&p->lex, "%s takes at most %d operand(s), got %d", info->text, info->n_in_max, t->in.n);
	else if (t->out_name.n != n_out)
		lex_fail(&p->lex, "%s has %d result(s), got %d names", info->text, n_out, t->out_name.n);
	for (int i = 0; !p->lex.failed && i < MIN(t->in.n, info->n_in_min); i++)
		if (!t->in.at[i])
			lex_fail(&p->lex, "operand %d of %s must be present", i + 1, info->text);
}

static const char *op_hint(Parser *p, const char *text)
{
	const char *known[OP_COUNT];
	for (int k = 0; k < OP_COUNT; k++)
		known[k] = op_info[k].text;
	return near_hint(p->lex.arena, "op", text, known, OP_COUNT);
}

/* ---- fused bodies ---- */

static Value *body_value(Parser *p, Value **v, int n)
{
	lex_expect(&p->lex, '$');
	int64_t k = lex_integer(&p->lex);
	if (p->lex.failed || k < 0 || k >= n) {
		lex_refuse(&p->lex, "$%lld is not defined in this body", (long long)k);
		return NULL;
	}
	return v[k];
}

static DType body_dtype(Parser *p)
{
	DType dtype = DT_F32;
	lex_expect(&p->lex, ':');
	const char *text = lex_take(&p->lex, TOK_WORD, "a dtype");
	if (!p->lex.failed && !dtype_from_text(text, &dtype))
		lex_refuse(&p->lex, "unknown dtype \"%s\"", text);
	return dtype;
}

typedef VEC(Value *) Values;

/* The op where it stands: what is wrong with it is told there. */
static void emit_in_body(Parser *p, Op *fused, OpKind kind, const Values *in, Attr *list, DType dtype, Values *value)
{
	Buf err = {0};
	Type declared = type_scalar(dtype);
	Value *v = NULL;
	if (!ir_body_try(p->m, fused, kind, in->n, in->at, list, dtype, &v, &err))
		lex_fail(&p->lex, "%s", err.at);
	else if (v && !type_equal(&v->type, &declared))
		lex_fail(&p->lex, "$%d is declared %s but %s gives %s", value->n, dtype_info[dtype].text, op_info[kind].text,
			type_str(p->lex.arena, &v->type));
	else if (v)
		vec_push(p->lex.arena, value, v);
	buf_free(&err);
}

static void body_op(Parser *p, Op *fused, Values *value)
{
	Values list = {0};
	OpKind kind = OP_YIELD;
	TextPlace at = p->lex.tok_at;
	bool has_result = lex_is_punct(&p->lex, '$');
	DType dtype = DT_F32;
	if (has_result) {
		lex_expect(&p->lex, '$');
		if (lex_integer(&p->lex) != value->n)
			lex_refuse(&p->lex, "body values are numbered in order: $%d is next", value->n);
		dtype = body_dtype(p);
		lex_expect(&p->lex, '=');
	}
	const char *text = lex_take(&p->lex, TOK_WORD, "an op");
	if (!p->lex.failed && !op_from_text(text, &kind))
		lex_refuse(&p->lex, "unknown op \"%s\"%s", text, op_hint(p, text));
	while (!p->lex.failed && lex_is_punct(&p->lex, '$')) {
		vec_push(p->lex.arena, &list, body_value(p, value->at, value->n));
		if (!lex_accept(&p->lex, ','))
			break;
	}
	Attr *a = attrs(p);
	const OpInfo *info = &op_info[kind];
	p->lex.op_at = at;
	bool elementwise = info->flags & EW || kind == OP_CONST || kind == OP_BROADCAST;
	if (!p->lex.failed && (has_result ? !elementwise || list.n != info->n_in_min : kind != OP_YIELD))
		lex_fail(&p->lex, "%s with %d operand(s) cannot stand in a fused body", info->text, list.n);
	if (!p->lex.failed)
		emit_in_body(p, fused, kind, &list, a, dtype, value);
	p->lex.op_at = (TextPlace){0};
}

static void fused_body(Parser *p, Op *fused)
{
	Values value = {0};
	for (int i = 0; i < fused->n_in; i++)
		vec_push(p->lex.arena, &value, fused->args[i]);
	lex_expect_word(&p->lex, "do");
	lex_expect(&p->lex, '{');
	while (!p->lex.failed && !lex_is_punct(&p->lex, '}'))
		body_op(p, fused, &value);
	lex_expect(&p->lex, '}');
	const Op *last = fused->body_last;
	if (!p->lex.failed && (!last || last->kind != OP_YIELD || last->n_in != fused->n_out))
		lex_refuse(&p->lex, "a fused body ends with a yield of as many values as the op has results");
}

static Op *emit(Parser *p, OpText *t, Attr *list, SectionKind section)
{
	Builder b = {.m = p->m, .section = section, .diag = p->lex.diag, .sym = t->sym, .unit = t->unit,
		.name = t->out_name.n ? t->out_name.at[0] : NULL};
	if (t->kind == OP_FUSED) {
		for (int i = 0; i < t->in.n; i++)
			if (!t->in.at[i])
				lex_fail(&p->lex, "operand %d of fused must be present", i + 1);
		if (list)
			lex_fail(&p->lex, "fused has an attribute, %s; it knows none", list->name);
		return p->lex.failed ? NULL : ir_emit_fused(&b, t->in.n, t->in.at, t->out_name.n, t->out_type.at);
	}
	/* where a shape error is reported: the line, not the node that the op says it came from */
	const char *file = p->m->file;
	p->m->file = lex_where(&p->lex);
	Op *op = ir_emit_op(&b, t->kind, t->in.n, t->in.at, list, t->out_type.at);
	p->m->file = file;
	if (!op)
		p->lex.failed = true;
	return op;
}

static void define_results(Parser *p, const OpText *t, Op *op)
{
	check_counts(p, t, op->n_out);
	for (int i = 0; !p->lex.failed && i < op->n_out; i++) {
		Value *v = op->out[i];
		if (op->kind != OP_FUSED && !type_equal(&v->type, &t->out_type.at[i])) {
			lex_fail(&p->lex, "%%%s is declared %s but %s gives %s", t->out_name.at[i],
				type_str(p->lex.arena, &t->out_type.at[i]), op_info[op->kind].text, type_str(p->lex.arena, &v->type));
			return;
		}
		if (map_has(p->values, t->out_name.at[i])) {
			lex_fail(&p->lex, "%%%s is defined twice", t->out_name.at[i]);
			return;
		}
		v->place = t->out_place.at[i];
		v->name = ir_intern(p->m, t->out_name.at[i]);
		map_put(p->values, v->name, v);
	}
}

static void op_line(Parser *p, SectionKind section)
{
	OpText t = {0};
	TextPlace at = p->lex.tok_at;
	results(p, &t);
	int op_line = p->lex.tok_at.line;
	const char *text = lex_take(&p->lex, TOK_WORD, "an op");
	if (!p->lex.failed && !op_from_text(text, &t.kind))
		lex_refuse(&p->lex, "unknown op \"%s\"%s", text, op_hint(p, text));
	if (p->lex.failed)
		return;
	op_subject(p, &t);
	operands(p, &t, op_line);
	Attr *list = attrs(p);
	const OpInfo *info = &op_info[t.kind];
	p->lex.op_at = at;
	if (t.kind == OP_YIELD)
		lex_fail(&p->lex, "yield stands in fused bodies only");
	if (!(info->flags & VAROUT))
		check_counts(p, &t, info->n_out);
	else
		check_counts(p, &t, t.out_name.n);
	if (p->lex.failed)
		return;
	Op *op = emit(p, &t, list, section);
	if (!op)
		return;
	p->lex.op_at = (TextPlace){0};
	if (op->kind == OP_FUSED)
		fused_body(p, op);
	op->loc = location(p);
	p->lex.op_at = at;
	define_results(p, &t, op);
	p->lex.op_at = (TextPlace){0};
}

/* ---- symbols and units ---- */

static void perm_field(Parser *p, Source *src)
{
	int64_t perm[IR_MAX_RANK];
	int n = small_ints(p, perm);
	for (int i = 0; i < n; i++) {
		if (perm[i] < 0 || perm[i] >= n)
			lex_refuse(&p->lex, "perm: %lld is not an axis", (long long)perm[i]);
		src->perm[i] = (int)perm[i];
	}
}

static double float_field(Parser *p)
{
	double v = at_number(p) ? number(p, p->lex.tok.text) : 0;
	if (!at_number(p))
		lex_fail(&p->lex, "expected a number, found \"%s\"", p->lex.tok.text);
	lex_next(&p->lex);
	return v;
}

static void init_field(Parser *p, Source *src)
{
	static const char *const laws[] = {"uniform", "normal"};
	const char *text = lex_take(&p->lex, TOK_STRING, "a distribution");
	for (int i = 0; !p->lex.failed && i < COUNT_OF(laws); i++)
		if (!strcmp(text, laws[i]))
			src->init = laws[i];
	if (!p->lex.failed && !src->init)
		lex_refuse(&p->lex, "init: \"%s\" is neither \"uniform\" nor \"normal\"", text);
}

static void saved_field(Parser *p, Symbol *s)
{
	s->saved = float_dtype(p);
	s->narrowed = true;
	if (s->kind != SYM_BUFFER || !dtype_is_float(s->type.dtype))
		lex_refuse(&p->lex, "only a buffer of floats is saved in another dtype than it has");
}

static void alias_field(Parser *p, Symbol *s)
{
	const char *name = ir_intern(p->m, lex_take(&p->lex, TOK_STRING, "a name"));
	bool full = (s->n_aliases & (s->n_aliases - 1)) == 0; /* room for the next power of two */
	const char **all = full ? NEW_N(p->m->arena, const char *, 2 * s->n_aliases + 1) : s->alias;
	for (int i = 0; full && i < s->n_aliases; i++)
		all[i] = s->alias[i];
	all[s->n_aliases++] = name;
	s->alias = all;
	if (s->kind != SYM_PARAM)
		lex_refuse(&p->lex, "only a parameter has further names");
}

static void symbol_field(Parser *p, Symbol *s)
{
	const char *key = lex_take(&p->lex, TOK_WORD, "a field");
	lex_expect(&p->lex, '=');
	if (!strcmp(key, "trainable"))
		s->trainable = lex_integer(&p->lex);
	else if (!strcmp(key, "alias"))
		alias_field(p, s);
	else if (!strcmp(key, "group"))
		s->group = (int)lex_integer(&p->lex);
	else if (!strcmp(key, "batched"))
		s->batched = lex_integer(&p->lex);
	else if (!strcmp(key, "saved"))
		saved_field(p, s);
	else if (!strcmp(key, "param"))
		s->param = ir_intern(p->m, lex_take(&p->lex, TOK_STRING, "a parameter"));
	else if (!strcmp(key, "onnx"))
		s->onnx = ir_intern(p->m, lex_take(&p->lex, TOK_STRING, "a name"));
	else if (!strcmp(key, "file"))
		s->src.file = ir_intern(p->m, lex_take(&p->lex, TOK_STRING, "a file"));
	else if (!strcmp(key, "offset"))
		s->src.offset = lex_integer(&p->lex);
	else if (!strcmp(key, "at"))
		s->offset = lex_integer(&p->lex);
	else if (!strcmp(key, "bytes"))
		s->src.bytes = lex_integer(&p->lex);
	else if (!strcmp(key, "fill"))
		s->src.fill = float_field(p);
	else if (!strcmp(key, "init"))
		init_field(p, &s->src);
	else if (!strcmp(key, "scale"))
		s->src.scale = float_field(p);
	else if (!strcmp(key, "seed"))
		s->src.seed = lex_integer(&p->lex);
	else if (!strcmp(key, "dims"))
		s->src.rank = small_ints(p, s->src.dim);
	else if (!strcmp(key, "perm"))
		perm_field(p, &s->src);
	else if (strcmp(key, "dtype") || !dtype_from_text(p->lex.tok.text, &s->src.dtype))
		lex_fail(&p->lex, "unknown field \"%s\" of a symbol", key);
	else
		lex_next(&p->lex);
}

static void symbol(Parser *p, SymbolKind kind)
{
	lex_next(&p->lex);
	const char *text = lex_take(&p->lex, TOK_STRING, "a name");
	lex_expect(&p->lex, ':');
	Type t = type(p);
	if (p->lex.failed)
		return;
	if (ir_find_symbol(p->m, text)) {
		lex_refuse(&p->lex, "symbol \"%s\" is declared twice", text);
		return;
	}
	Symbol *s = ir_add_symbol(p->m, kind, text, t);
	s->src.dtype = t.dtype;
	s->src.rank = t.rank;
	for (int i = 0; i < t.rank; i++) {
		s->src.dim[i] = t.dim[i];
		s->src.perm[i] = i;
	}
	s->unit = t.unit;
	s->flat = t.flat;
	if (!lex_accept(&p->lex, '{'))
		return;
	do {
		symbol_field(p, s);
	} while (lex_accept(&p->lex, ','));
	lex_expect(&p->lex, '}');
}

/* param=bf16 grad=bf16 ... master away */
static void flat_roles(Parser *p, Flat *f)
{
	static const char *const roles[] = {"param", "grad", "reduce", "kept", "bcast", "master", "away"};
	DType *const dtype[] = {&f->param, &f->grad, &f->reduce, &f->kept, &f->bcast};
	while (!p->lex.failed && !lex_is_punct(&p->lex, ',') && !lex_is_punct(&p->lex, ']')) {
		int role = lex_keyword(&p->lex, roles, COUNT_OF(roles), "role of a flat");
		if (role >= COUNT_OF(dtype)) {
			*(role == COUNT_OF(dtype) ? &f->master : &f->away) = true;
			continue;
		}
		lex_expect(&p->lex, '=');
		*dtype[role] = float_dtype(p);
	}
}

static void unit_flats(Parser *p, Unit *u)
{
	static const char *const words[] = {"frozen", "trainable"};
	lex_expect(&p->lex, '[');
	while (!p->lex.failed && !lex_is_punct(&p->lex, ']')) {
		if (u->n_flats == UNIT_MAX_FLATS) {
			lex_fail(&p->lex, "a unit has at most %d flats", UNIT_MAX_FLATS);
			return;
		}
		Flat *f = &u->flat[u->n_flats++];
		const char *dtype = lex_take(&p->lex, TOK_WORD, "a dtype");
		if (!p->lex.failed && !dtype_from_text(dtype, &f->dtype))
			lex_refuse(&p->lex, "unknown dtype \"%s\"", dtype);
		f->trainable = lex_keyword(&p->lex, words, 2, "kind of flat");
		f->numel = lex_integer(&p->lex);
		if (f->numel < 0 || f->numel > INT64_MAX / 64)
			lex_refuse(&p->lex, "a flat cannot have %lld elements", (long long)f->numel);
		*f = (Flat)LAYOUT_FLAT(f->dtype, f->trainable, f->numel);
		flat_roles(p, f);
		if (!lex_accept(&p->lex, ','))
			break;
	}
	lex_expect(&p->lex, ']');
}

static void unit_params(Parser *p, Unit *u)
{
	lex_expect(&p->lex, '[');
	while (!p->lex.failed && p->lex.tok.kind == TOK_STRING) {
		if (p->n_members == p->cap_members)
			p->members = arena_grow(p->lex.arena, p->members, sizeof(*p->members), &p->cap_members);
		int i = p->n_members++;
		p->members[i].unit = u;
		p->members[i].name = lex_take(&p->lex, TOK_STRING, "a parameter");
		lex_expect(&p->lex, '@');
		p->members[i].offset = lex_integer(&p->lex);
		p->members[i].flat = flat_suffix(p);
		u->n_params++;
		if (!lex_accept(&p->lex, ','))
			break;
	}
	lex_expect(&p->lex, ']');
}

static void unit_line(Parser *p)
{
	lex_next(&p->lex);
	lex_expect(&p->lex, '@');
	const char *text = unit_name(p);
	if (!p->lex.failed && ir_find_unit(p->m, text))
		lex_refuse(&p->lex, "unit \"%s\" is declared twice", text);
	if (p->lex.failed)
		return;
	Unit *u = ir_add_unit(p->m, text, STRATEGY_FULL_SHARD);
	lex_expect(&p->lex, '{');
	lex_expect_word(&p->lex, "strategy");
	lex_expect(&p->lex, '=');
	const char *strategy = lex_take(&p->lex, TOK_STRING, "a strategy");
	if (!p->lex.failed && !strategy_from_text(strategy, &u->strategy))
		lex_refuse(&p->lex, "unknown strategy \"%s\"", strategy);
	lex_expect(&p->lex, ',');
	if (lex_is_word(&p->lex, "owner")) {
		lex_next(&p->lex);
		lex_expect(&p->lex, '=');
		u->owner = (int)lex_integer(&p->lex);
		lex_expect(&p->lex, ',');
	}
	lex_expect_word(&p->lex, "flats");
	lex_expect(&p->lex, '=');
	unit_flats(p, u);
	lex_expect(&p->lex, ',');
	lex_expect_word(&p->lex, "params");
	lex_expect(&p->lex, '=');
	unit_params(p, u);
	lex_expect(&p->lex, '}');
}

/* Unit lines stand before the symbols they name; this joins them. */
static void resolve_members(Parser *p)
{
	for (int i = 0; i < p->m->n_units; i++) {
		Unit *u = p->m->units[i];
		u->params = NEW_N(p->m->arena, Symbol *, u->n_params);
		u->n_params = 0;
	}
	for (int i = 0; !p->lex.failed && i < p->n_members; i++) {
		Symbol *s = ir_find_symbol(p->m, p->members[i].name);
		Unit *u = p->members[i].unit;
		if (!s || s->kind != SYM_PARAM) {
			lex_fail(&p->lex, "unit \"%s\" names \"%s\", which is not a parameter", u->name, p->members[i].name);
			return;
		}
		s->unit = u;
		s->flat = p->members[i].flat;
		s->offset = p->members[i].offset;
		if (s->flat >= u->n_flats)
			lex_fail(&p->lex, "parameter \"%s\": unit \"%s\" has no flat %d", s->name, u->name, s->flat);
		u->params[u->n_params++] = s;
	}
}

/* ---- modules ---- */

static void header(Parser *p)
{
	Module *m = p->m;
	lex_expect_word(&p->lex, "module");
	m->name = ir_intern(m, lex_take(&p->lex, TOK_STRING, "a module name"));
	while (!p->lex.failed && !lex_is_punct(&p->lex, '{')) {
		const char *key = lex_take(&p->lex, TOK_WORD, "a field or '{'");
		lex_expect(&p->lex, '=');
		int64_t *field = !strcmp(key, "batch") ? &m->batch : !strcmp(key, "world") ? &m->world
			: !strcmp(key, "act_bytes") ? &m->act_bytes : !strcmp(key, "input_bytes") ? &m->input_bytes
			: !strcmp(key, "state_bytes") ? &m->state_bytes : !strcmp(key, "work_bytes") ? &m->work_bytes : NULL;
		if (!strcmp(key, "level"))
			m->level = (Level)lex_keyword(&p->lex, level_text, LEVEL_COUNT, "level");
		else if (!strcmp(key, "variant"))
			m->variant = (Variant)lex_keyword(&p->lex, variant_text, VARIANT_COUNT, "variant");
		else if (!strcmp(key, "sync"))
			m->sync = (Sync)lex_keyword(&p->lex, sync_text, SYNC_COUNT, "mode");
		else if (!strcmp(key, "file"))
			m->file = ir_intern(m, lex_take(&p->lex, TOK_STRING, "a file"));
		else if (field)
			*field = lex_integer(&p->lex);
		else
			lex_refuse(&p->lex, "unknown field \"%s\" of a module", key);
	}
	if (m->variant != VARIANT_ONLY && m->sync == SYNC_NONE)
		lex_fail(&p->lex, "variant=%s wants sync=last or sync=every", variant_text[m->variant]);
	lex_expect(&p->lex, '{');
}

static void section(Parser *p)
{
	SectionKind s = (SectionKind)lex_keyword(&p->lex, section_text, SEC_COUNT, "section");
	lex_expect(&p->lex, '{');
	while (!p->lex.failed && !lex_is_punct(&p->lex, '}'))
		op_line(p, s);
	lex_expect(&p->lex, '}');
}

static void module_body(Parser *p)
{
	static const char *const kinds[] = {"input", "output", "param", "buffer", "data", "state"};
	bool resolved = false;
	while (!p->lex.failed && !lex_is_punct(&p->lex, '}')) {
		int kind = -1;
		for (int i = 0; i < COUNT_OF(kinds); i++)
			if (lex_is_word(&p->lex, kinds[i]))
				kind = i;
		if (lex_is_word(&p->lex, "unit")) {
			unit_line(p);
		} else if (kind >= 0) {
			symbol(p, (SymbolKind)kind);
		} else {
			if (!resolved)
				resolve_members(p);
			resolved = true;
			section(p);
		}
	}
	if (!resolved)
		resolve_members(p);
	lex_expect(&p->lex, '}');
	if (!p->lex.failed && p->lex.tok.kind != TOK_END)
		lex_fail(&p->lex, "text after the module's end: \"%s\"", p->lex.tok.text);
}

Module *ir_parse(const char *file, const char *text, Diag *d)
{
	Parser p = {.m = ir_module_new(""), .lex = lex_open(file, text, arena_new(), d)};
	p.values = map_new(p.lex.arena);
	lex_next(&p.lex);
	header(&p);
	module_body(&p);
	Module *m = p.m;
	/* names handed out by passes from here on must not collide with those in the text */
	for (int i = 0; !p.lex.failed && i < map_count(p.values); i++)
		map_put(m->value_names, map_key(p.values, i), NULL);
	bool failed = p.lex.failed;
	arena_free(p.lex.arena);
	if (failed) {
		ir_module_free(m);
		return NULL;
	}
	return m;
}
