/* ir/parse.c: reads a module from text; the exact inverse of print.c.  Grammar: docs/ir.md.
 *
 * A recursive descent over tokens; each function reads what it is named after.  parse_fields.c reads headers and
 * declarations, parse_loc.c locations.  The first syntax error ends the file with "FILE:LINE:COLUMN: error"; errors
 * of meaning (shapes, unknown names) are reported op by op.  The text is not trusted: counts are bounded by its
 * length, and numbers are checked against their range. */
#include "base/near.h"
#include "ir/parse.h"

#include <stdlib.h>
#include <string.h>

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

double parse_real(Parser *p)
{
	double v = at_number(p) ? number(p, p->lex.tok.text) : 0;
	if (!at_number(p))
		lex_fail(&p->lex, "expected a number, found \"%s\"", p->lex.tok.text);
	lex_next(&p->lex);
	return v;
}

typedef VEC(int64_t) Ints;
typedef VEC(double) Floats;

/* Reads [1,2] or [1.0,2.0]; the result is true for floats.  A whole number in a list of floats may exceed 64 bits. */
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

int parse_ints(Parser *p, int64_t *out)
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

const char *parse_unit_name(Parser *p)
{
	bool quoted = p->lex.tok.kind == TOK_STRING;
	return quoted ? lex_take(&p->lex, TOK_STRING, "a unit") : lex_name(&p->lex, "a unit name");
}

static Unit *unit_ref(Parser *p)
{
	lex_expect(&p->lex, '@');
	const char *text = parse_unit_name(p);
	Unit *u = p->lex.failed ? NULL : ir_find_unit(p->m, text);
	if (!u)
		lex_refuse(&p->lex, "unknown unit \"%s\"", text);
	return u;
}

int parse_flat_suffix(Parser *p)
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
	DType known = DT_F32;
	if (!dtype_from_text(dtype, &known))
		lex_refuse(&p->lex, "unknown type \"%s\"", dtype);
	t->kind = TYPE_TENSOR;
	t->dtype = known;
	t->rank = parse_ints(p, t->dim);
	int64_t numel = 1;
	for (int i = 0; i < t->rank; i++)
		if (t->dim[i] < 0 || __builtin_mul_overflow(numel, MAX(t->dim[i], 1), &numel) || numel > INT64_C(1) << 46)
			lex_refuse(&p->lex, "dimension %lld is negative or makes the tensor too large", (long long)t->dim[i]);
	if (lex_accept(&p->lex, ':'))
		t->layout = ir_intern(p->m, lex_name(&p->lex, "a layout"));
}

DType parse_float_dtype(Parser *p)
{
	DType t = DT_F32;
	const char *text = lex_take(&p->lex, TOK_WORD, "a dtype");
	if (!p->lex.failed && (!dtype_from_text(text, &t) || !dtype_is_float(t)))
		lex_refuse(&p->lex, "\"%s\" is no floating-point dtype", text);
	return t;
}

DType parse_flat_dtype(Parser *p)
{
	bool f8 = lex_is_word(&p->lex, dtype_info[DT_E4M3].text);
	if (f8)
		lex_next(&p->lex);
	return f8 ? DT_E4M3 : parse_float_dtype(p);
}

Type parse_type(Parser *p)
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
		t.flat = parse_flat_suffix(p);
		if (t.unit)
			t.dtype = t.unit->flat[t.flat].dtype;
		if (lex_accept(&p->lex, ':'))
			t.dtype = parse_flat_dtype(p);
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
	Place at = {0};
	if (!lex_accept(&p->lex, '@'))
		return at;
	at.region = (Region)(1 + lex_keyword(&p->lex, region_text + 1, REGION_COUNT - 1, "region"));
	if (at.region == REGION_PARAM || at.region == REGION_GRAD) {
		at.unit = unit_ref(p);
		at.flat = parse_flat_suffix(p);
	}
	lex_expect(&p->lex, '+');
	at.offset = lex_integer(&p->lex);
	return at;
}

/* ---- attributes ---- */

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

/* ---- ops ---- */

typedef struct OpText {
	VEC(const char *) out_name;
	VEC(Type) out_type;
	VEC(Place) out_place;
	VEC(Value *) in;
	OpKind kind;
	Symbol *sym;
	Unit *unit;
	Module *body;
} OpText;

static void results(Parser *p, OpText *t)
{
	while (lex_accept(&p->lex, '%')) {
		const char *text = lex_name(&p->lex, "a value name");
		lex_expect(&p->lex, ':');
		vec_push(p->lex.arena, &t->out_name, text);
		vec_push(p->lex.arena, &t->out_type, parse_type(p));
		vec_push(p->lex.arena, &t->out_place, place(p));
		if (!lex_accept(&p->lex, ','))
			break;
	}
	if (t->out_name.n)
		lex_expect(&p->lex, '=');
}

/* Reads operands.  The first one must stand on the op's line: a value on the next line is the result of the next op. */
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

/* Reads what stands between the op's name and its operands: the symbol or unit that it names. */
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

/* Emits the op while the parser still stands at it, so that errors have its line. */
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
	bool has_loc = lex_is_word(&p->lex, "loc");
	const Loc *loc = has_loc ? parse_loc(p) : NULL;
	if (!p->lex.failed)
		emit_in_body(p, fused, kind, &list, a, dtype, value);
	if (!p->lex.failed && has_loc)
		fused->body_last->loc = loc;
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

/* ---- loops ---- */

static void op_line(Parser *p, SectionKind section);

/* Reads the body of a loop, which has values of its own, and its locations in common with the module. */
static Module *loop_body(Parser *p)
{
	Module *outer = p->m, *body = ir_body_new(outer);
	Map *values = p->values;
	p->m = body;
	p->values = map_new(p->lex.arena);
	lex_expect_word(&p->lex, "do");
	lex_expect(&p->lex, '{');
	while (!p->lex.failed && !lex_is_punct(&p->lex, '}'))
		op_line(p, SEC_FORWARD);
	lex_expect(&p->lex, '}');
	for (int i = 0; i < map_count(p->values); i++)
		map_put(body->value_names, map_key(p->values, i), NULL);
	p->m = outer;
	p->values = values;
	return body;
}

static Op *emit(Parser *p, OpText *t, Attr *list, SectionKind section)
{
	Builder b = {.m = p->m, .section = section, .diag = p->lex.diag, .sym = t->sym, .unit = t->unit, .body = t->body,
		.name = t->out_name.n ? t->out_name.at[0] : NULL};
	if (t->kind == OP_FUSED) {
		for (int i = 0; i < t->in.n; i++)
			if (!t->in.at[i])
				lex_fail(&p->lex, "operand %d of fused must be present", i + 1);
		if (list)
			lex_fail(&p->lex, "fused has an attribute, %s; it knows none", list->name);
		return p->lex.failed ? NULL : ir_emit_fused(&b, t->in.n, t->in.at, t->out_name.n, t->out_type.at);
	}
	/* A shape error is reported at the line in the text, not at the node that the op's location names. */
	Module *whole = p->m->outer ? p->m->outer : p->m;
	const char *file = whole->file;
	whole->file = lex_where(&p->lex);
	Op *op = ir_emit_op(&b, t->kind, t->in.n, t->in.at, list, t->out_type.at);
	whole->file = file;
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
	if ((t.kind == OP_YIELD || t.kind == OP_ARGUMENT) && !p->m->outer)
		lex_fail(&p->lex, "%s stands in bodies only", info->text);
	if (t.kind == OP_LOOP && p->m->outer)
		lex_fail(&p->lex, "a loop cannot stand in the body of a loop");
	if (!(info->flags & VAROUT))
		check_counts(p, &t, info->n_out);
	else
		check_counts(p, &t, t.out_name.n);
	if (p->lex.failed)
		return;
	if (t.kind == OP_LOOP)
		t.body = loop_body(p);
	p->lex.op_at = at;
	Op *op = p->lex.failed ? NULL : emit(p, &t, list, section);
	if (!op)
		return;
	op->at = at;
	p->lex.op_at = (TextPlace){0};
	if (op->kind == OP_FUSED)
		fused_body(p, op);
	op->loc = parse_loc(p);
	p->lex.op_at = at;
	define_results(p, &t, op);
	p->lex.op_at = (TextPlace){0};
}

/* ---- modules ---- */

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
	bool resolved = false;
	while (!p->lex.failed && !lex_is_punct(&p->lex, '}')) {
		int kind = -1;
		for (int i = 0; i < SYM_COUNT; i++)
			if (lex_is_word(&p->lex, symbol_kind_text[i]))
				kind = i;
		if (lex_is_word(&p->lex, "train")) {
			parse_train(p);
		} else if (lex_is_word(&p->lex, "unit")) {
			parse_unit(p);
		} else if (kind >= 0) {
			parse_symbol(p, (SymbolKind)kind);
		} else if (lex_is_word(&p->lex, "locations")) {
			parse_locations(p);
		} else {
			if (!resolved)
				parse_members(p);
			resolved = true;
			section(p);
		}
	}
	if (!resolved)
		parse_members(p);
	resolve_locs(p);
	lex_expect(&p->lex, '}');
}

/* Reads the module that begins at the next token; NULL after an error. */
static Module *read_module(Lexer *lex)
{
	Parser p = {.m = ir_module_new(""), .lex = *lex, .values = map_new(lex->arena),
		.locations = locations_new(lex->arena)};
	parse_header(&p);
	module_body(&p);
	/* Names that passes make later must not collide with those in the text. */
	for (int i = 0; !p.lex.failed && i < map_count(p.values); i++)
		map_put(p.m->value_names, map_key(p.values, i), NULL);
	*lex = p.lex;
	if (!lex->failed)
		return p.m;
	ir_module_free(p.m);
	return NULL;
}

Module *ir_parse(const char *file, const char *text, Diag *d)
{
	Lexer lex = lex_open(file, text, arena_new(), d);
	lex_next(&lex);
	Module *m = read_module(&lex);
	if (m && lex.tok.kind != TOK_END) {
		lex_fail(&lex, "text after the module's end: \"%s\"", lex.tok.text);
		ir_module_free(m);
		m = NULL;
	}
	arena_free(lex.arena);
	return m;
}

/* ---- programs ---- */

/* Checks that all four variants are there and have the same sync. */
static void check_variants(Lexer *lex, const Variants *v)
{
	for (int k = 0; k < VARIANT_COUNT; k++)
		if (!v->of[k])
			lex_fail(lex, "a step of several micro-batches is four modules; that of variant=%s is missing",
				variant_text[k]);
	for (int k = 0; k < VARIANT_COUNT && !lex->failed; k++)
		if (v->of[k]->sync != v->of[VARIANT_LAST]->sync)
			lex_fail(lex, "variant=%s has sync=%s, the last has sync=%s", variant_text[k], sync_text[v->of[k]->sync],
				sync_text[v->of[VARIANT_LAST]->sync]);
}

bool ir_parse_program(const char *file, const char *text, Variants *out, Diag *d)
{
	Lexer lex = lex_open(file, text, arena_new(), d);
	Module *only = NULL;
	int n = 0;
	*out = (Variants){0};
	for (lex_next(&lex); !lex.failed && (!n || lex.tok.kind != TOK_END); n++) {
		if (n && !lex_is_word(&lex, "module"))
			lex_fail(&lex, "text after the module's end: \"%s\"", lex.tok.text);
		Module *m = read_module(&lex);
		if (!m)
			break;
		if (out->of[m->variant]) {
			lex_fail(&lex, "there are two modules of variant=%s", variant_text[m->variant]);
			ir_module_free(m);
			break;
		}
		out->of[m->variant] = only = m;
	}
	if (!lex.failed && n == 1)
		*out = (Variants){.of[VARIANT_ONLY] = only};
	else if (!lex.failed)
		check_variants(&lex, out);
	bool ok = !lex.failed;
	for (int k = 0; k < VARIANT_COUNT && !ok; k++)
		ir_module_free(out->of[k]);
	if (!ok)
		*out = (Variants){0};
	arena_free(lex.arena);
	return ok;
}
