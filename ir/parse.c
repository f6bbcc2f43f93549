/* ir/parse.c: text -> module; the exact inverse of print.c.  Grammar: docs/ir.md.
 *
 * A recursive descent over tokens.  Every function reads what it is named after.  The first syntax error
 * ends the file with "FILE:LINE: error"; errors of meaning (shapes, unknown names) are reported op by op.
 * Nothing here trusts the text: counts are bounded by its length, numbers are range-checked. */
#include "ir/ir.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum { TOK_END, TOK_WORD, TOK_STRING, TOK_NUMBER, TOK_PUNCT } TokKind;

typedef struct Tok {
	TokKind kind;
	const char *text; /* of words, strings (unescaped) and numbers */
	char punct;
} Tok;

typedef struct Parser {
	Module *m;
	Diag *diag;
	Arena *arena;
	const char *file, *at;
	int line, tok_line; /* of the next character, of tok */
	int op_line;        /* not 0: errors belong to the op that started here */
	Tok tok;
	bool failed;
	Map *values; /* by name: defined so far */
	struct { const char *name; int64_t offset; int flat; Unit *unit; } *members; /* of unit lines */
	int n_members, cap_members;
} Parser;

static const char *where(const Parser *p)
{
	return arena_printf(p->arena, "%s:%d", p->file, p->op_line ? p->op_line : p->tok_line);
}

static void fail(Parser *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void fail(Parser *p, const char *fmt, ...)
{
	if (p->failed)
		return;
	va_list ap;
	va_start(ap, fmt);
	diag_error(p->diag, where(p), "%s", arena_vprintf(p->arena, fmt, ap));
	va_end(ap);
	p->failed = true;
	p->tok = (Tok){.kind = TOK_END, .text = ""};
}

/* ---- tokens ---- */

static void skip_space(Parser *p)
{
	for (;; p->at++) {
		if (*p->at == '#')
			while (*p->at && *p->at != '\n')
				p->at++;
		if (*p->at == '\n')
			p->line++;
		else if (!isspace((unsigned char)*p->at))
			return;
	}
}

static int hex4(const char *s)
{
	int v = 0;
	for (int i = 0; i < 4; i++) {
		if (!isxdigit((unsigned char)s[i]))
			return -1;
		v = v * 16 + (isdigit((unsigned char)s[i]) ? s[i] - '0' : tolower((unsigned char)s[i]) - 'a' + 10);
	}
	return v;
}

static void read_string(Parser *p)
{
	Buf b = {0};
	p->at++;
	while (*p->at && *p->at != '"' && *p->at != '\n') {
		if (*p->at != '\\') {
			buf_put(&b, p->at++, 1);
			continue;
		}
		char c = *++p->at;
		int code = c == 'u' ? hex4(p->at + 1) : -1;
		if (code > 0 && code < 0x80) {
			c = (char)code;
			p->at += 4;
		} else if (c == 'n' || c == 't') {
			c = c == 'n' ? '\n' : '\t';
		} else if (c != '"' && c != '\\') {
			break;
		}
		buf_put(&b, &c, 1);
		p->at++;
	}
	if (*p->at == '"')
		p->tok = (Tok){.kind = TOK_STRING, .text = arena_strndup(p->arena, b.at ? b.at : "", b.n)};
	else
		fail(p, "a string does not end on its line, or has an escape other than \\\" \\\\ \\n \\t \\u00XX");
	if (!p->failed)
		p->at++;
	buf_free(&b);
}

static bool is_number_char(char c)
{
	return ir_is_name_char(c) || c == '+' || c == '-';
}

static void next(Parser *p)
{
	if (p->failed)
		return;
	skip_space(p);
	p->tok_line = p->line;
	const char *start = p->at;
	char c = *start;
	if (!c) {
		p->tok = (Tok){.kind = TOK_END, .text = ""};
	} else if (c == '"') {
		read_string(p);
	} else if (isdigit((unsigned char)c) || (c == '-' && isalnum((unsigned char)start[1]))) {
		/* a sign belongs to a number only behind its exponent: 1e+5 but @act 64 +128 */
		for (p->at++; is_number_char(*p->at); p->at++)
			if ((*p->at == '+' || *p->at == '-') && tolower((unsigned char)p->at[-1]) != 'e')
				break;
		p->tok = (Tok){.kind = TOK_NUMBER, .text = arena_strndup(p->arena, start, (size_t)(p->at - start))};
	} else if (ir_is_name_char(c)) {
		while (ir_is_name_char(*p->at))
			p->at++;
		p->tok = (Tok){.kind = TOK_WORD, .text = arena_strndup(p->arena, start, (size_t)(p->at - start))};
	} else {
		p->at++;
		p->tok = (Tok){.kind = TOK_PUNCT, .punct = c, .text = arena_strndup(p->arena, start, 1)};
	}
}

static bool is_punct(const Parser *p, char c)
{
	return p->tok.kind == TOK_PUNCT && p->tok.punct == c;
}

static bool is_word(const Parser *p, const char *word)
{
	return p->tok.kind == TOK_WORD && !strcmp(p->tok.text, word);
}

static bool accept(Parser *p, char c)
{
	if (!is_punct(p, c))
		return false;
	next(p);
	return true;
}

static void expect(Parser *p, char c)
{
	if (!accept(p, c))
		fail(p, "expected '%c', found \"%s\"", c, p->tok.text);
}

static void expect_word(Parser *p, const char *word)
{
	if (!is_word(p, word))
		fail(p, "expected \"%s\", found \"%s\"", word, p->tok.text);
	next(p);
}

static const char *take(Parser *p, TokKind kind, const char *what)
{
	const char *text = p->tok.text;
	if (p->tok.kind != kind)
		fail(p, "expected %s, found \"%s\"", what, text);
	next(p);
	return text;
}

static int64_t integer(Parser *p)
{
	const char *text = take(p, TOK_NUMBER, "an integer");
	char *end;
	errno = 0;
	long long v = strtoll(text, &end, 10);
	if (!p->failed && (*end || errno))
		fail(p, "\"%s\" is not a 64-bit integer", text);
	return v;
}

/* Words that a value name may be: %12 is a number to the lexer. */
static const char *name(Parser *p, const char *what)
{
	if (p->tok.kind == TOK_NUMBER)
		return take(p, TOK_NUMBER, what);
	return take(p, TOK_WORD, what);
}

static int keyword(Parser *p, const char *const *words, int n, const char *what)
{
	const char *text = take(p, TOK_WORD, what);
	for (int i = 0; i < n; i++)
		if (!strcmp(words[i], text))
			return i;
	fail(p, "unknown %s \"%s\"", what, text);
	return 0;
}

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
		fail(p, "\"%s\" is not a number", text);
	return v;
}

static bool at_number(const Parser *p)
{
	return p->tok.kind == TOK_NUMBER || is_word(p, "inf") || is_word(p, "nan");
}

typedef VEC(int64_t) Ints;
typedef VEC(double) Floats;

/* [1,2] or [1.0,2.0]; returns true when floats. */
static bool number_list(Parser *p, Ints *ints, Floats *floats)
{
	bool is_float = false;
	expect(p, '[');
	while (!p->failed && !is_punct(p, ']')) {
		if (!at_number(p)) {
			fail(p, "expected a number, found \"%s\"", p->tok.text);
			break;
		}
		is_float = is_float || is_float_text(p->tok.text);
		vec_push(p->arena, floats, number(p, p->tok.text));
		vec_push(p->arena, ints, strtoll(p->tok.text, NULL, 10));
		next(p);
		if (!accept(p, ','))
			break;
	}
	expect(p, ']');
	return is_float;
}

static int small_ints(Parser *p, int64_t *out)
{
	Ints ints = {0};
	Floats floats = {0};
	number_list(p, &ints, &floats);
	if (ints.n > IR_MAX_RANK)
		fail(p, "%d dimensions, at most %d are allowed", ints.n, IR_MAX_RANK);
	for (int i = 0; !p->failed && i < ints.n; i++)
		out[i] = ints.at[i];
	return p->failed ? 0 : ints.n;
}

/* ---- types ---- */

static Unit *unit_ref(Parser *p)
{
	expect(p, '@');
	const char *text = p->tok.kind == TOK_STRING ? take(p, TOK_STRING, "a unit") : name(p, "a unit name");
	Unit *u = p->failed ? NULL : ir_find_unit(p->m, text);
	if (!u)
		fail(p, "unknown unit \"%s\"", text);
	return u;
}

static int flat_suffix(Parser *p)
{
	if (!accept(p, '/'))
		return 0;
	int64_t flat = integer(p);
	if (flat < 0 || flat >= UNIT_MAX_FLATS)
		fail(p, "flat %lld: a unit has at most %d", (long long)flat, UNIT_MAX_FLATS);
	return (int)flat;
}

static void tensor_type(Parser *p, const char *dtype, Type *t)
{
	t->kind = TYPE_TENSOR;
	if (!dtype_from_text(dtype, &t->dtype))
		fail(p, "unknown type \"%s\"", dtype);
	t->rank = small_ints(p, t->dim);
	int64_t numel = 1;
	for (int i = 0; i < t->rank; i++)
		if (t->dim[i] < 0 || __builtin_mul_overflow(numel, MAX(t->dim[i], 1), &numel) || numel > INT64_MAX / 16)
			fail(p, "dimension %lld is negative or makes the tensor too large", (long long)t->dim[i]);
	if (accept(p, ':'))
		t->layout = ir_intern(p->m, name(p, "a layout"));
}

static Type type(Parser *p)
{
	Type t = {0};
	bool async = is_word(p, "async");
	if (async)
		next(p);
	const char *word = take(p, TOK_WORD, "a type");
	if (!strcmp(word, "flat") || !strcmp(word, "shard")) {
		bool flat = !strcmp(word, "flat");
		t.kind = async ? flat ? TYPE_ASYNC_FLAT : TYPE_ASYNC_SHARD : flat ? TYPE_FLAT : TYPE_SHARD;
		t.unit = unit_ref(p);
		t.flat = flat_suffix(p);
		if (t.unit)
			t.dtype = t.unit->flat[t.flat].dtype;
	} else if (!strcmp(word, "none") && !async) {
		t.kind = TYPE_NONE;
	} else {
		tensor_type(p, word, &t);
	}
	return t;
}

static Place place(Parser *p)
{
	static const char *const regions[] = {"act", "input", "param", "grad", "state"};
	Place at = {0};
	if (!accept(p, '@'))
		return at;
	at.region = (Region)(keyword(p, regions, COUNT_OF(regions), "region") + REGION_ACT);
	if (at.region == REGION_PARAM || at.region == REGION_GRAD) {
		at.unit = unit_ref(p);
		at.flat = flat_suffix(p);
	}
	expect(p, '+');
	at.offset = integer(p);
	return at;
}

/* ---- attributes and locations ---- */

static Attr *attr(Parser *p, Attr *list)
{
	Module *m = p->m;
	const char *key = take(p, TOK_WORD, "an attribute");
	expect(p, '=');
	if (is_punct(p, '[')) {
		Ints ints = {0};
		Floats floats = {0};
		if (number_list(p, &ints, &floats))
			return attr_floats(m, list, key, floats.n, floats.at);
		return attr_ints(m, list, key, ints.n, ints.at);
	}
	if (p->tok.kind == TOK_STRING)
		return attr_str(m, list, key, take(p, TOK_STRING, "a string"));
	if (at_number(p)) {
		if (!is_float_text(p->tok.text))
			return attr_int(m, list, key, integer(p));
		double v = number(p, p->tok.text);
		next(p);
		return attr_float(m, list, key, v);
	}
	DType dtype = DT_F32;
	const char *word = take(p, TOK_WORD, "a value");
	if (!dtype_from_text(word, &dtype))
		fail(p, "\"%s\": expected a number, string, list or dtype", word);
	return attr_dtype(m, list, key, dtype);
}

static Attr *attrs(Parser *p)
{
	Attr *list = NULL;
	if (!accept(p, '{'))
		return NULL;
	do {
		list = attr(p, list);
	} while (accept(p, ','));
	expect(p, '}');
	return list;
}

static const Loc *location(Parser *p)
{
	const char *onnx = "", *scope = "", *role = "";
	if (!is_word(p, "loc"))
		return loc_new(p->m, "", "", "", "");
	next(p);
	expect(p, '(');
	const char *node = take(p, TOK_STRING, "a node name");
	if (accept(p, ':'))
		onnx = take(p, TOK_STRING, "an ONNX op type");
	if (accept(p, '@'))
		scope = take(p, TOK_STRING, "a scope");
	if (p->tok.kind == TOK_WORD)
		role = take(p, TOK_WORD, "a role");
	expect(p, ')');
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
	while (accept(p, '%')) {
		const char *text = name(p, "a value name");
		expect(p, ':');
		vec_push(p->arena, &t->out_name, text);
		vec_push(p->arena, &t->out_type, type(p));
		vec_push(p->arena, &t->out_place, place(p));
		if (!accept(p, ','))
			break;
	}
	if (t->out_name.n)
		expect(p, '=');
}

/* The first operand stands on the op's line: what follows on the next is that one's result. */
static void operands(Parser *p, OpText *t, int line)
{
	while (!p->failed && (t->in.n || p->tok_line == line) && (is_punct(p, '%') || is_word(p, "_"))) {
		Value *v = NULL;
		if (accept(p, '%')) {
			const char *text = name(p, "a value name");
			v = map_get(p->values, text);
			if (!v)
				fail(p, "%%%s is used before it is defined", text);
		} else {
			next(p);
		}
		vec_push(p->arena, &t->in, v);
		if (!accept(p, ','))
			return;
	}
}

/* What follows the op's name and comes before its operands. */
static void op_subject(Parser *p, OpText *t)
{
	unsigned flags = op_info[t->kind].flags;
	if (flags & UNIT && is_punct(p, '@'))
		t->unit = unit_ref(p);
	if (flags & SYM) {
		const char *text = take(p, TOK_STRING, "a symbol's name");
		t->sym = p->failed ? NULL : ir_find_symbol(p->m, text);
		if (!t->sym)
			fail(p, "unknown symbol \"%s\"", text);
	}
}

static void check_counts(Parser *p, const OpText *t, int n_out)
{
	const OpInfo *info = &op_info[t->kind];
	if (t->in.n < info->n_in_min)
		fail(p, "%s takes at least %d operand(s), got %d", info->text, info->n_in_min, t->in.n);
	else if (t->in.n > info->n_in_max && !(info->flags & VARIN))
		fail(p, "%s takes at most %d operand(s), got %d", info->text, info->n_in_max, t->in.n);
	else if (t->out_name.n != n_out)
		fail(p, "%s has %d result(s), got %d names", info->text, n_out, t->out_name.n);
	for (int i = 0; !p->failed && i < MIN(t->in.n, info->n_in_min); i++)
		if (!t->in.at[i])
			fail(p, "operand %d of %s must be present", i + 1, info->text);
}

/* ---- fused bodies ---- */

static Value *body_value(Parser *p, Value **v, int n)
{
	expect(p, '$');
	int64_t k = integer(p);
	if (p->failed || k < 0 || k >= n) {
		fail(p, "$%lld is not defined in this body", (long long)k);
		return NULL;
	}
	return v[k];
}

static DType body_dtype(Parser *p)
{
	DType dtype = DT_F32;
	expect(p, ':');
	const char *text = take(p, TOK_WORD, "a dtype");
	if (!p->failed && !dtype_from_text(text, &dtype))
		fail(p, "unknown dtype \"%s\"", text);
	return dtype;
}

static void body_op(Parser *p, Op *fused, Value **value, int *n)
{
	VEC(Value *) list = {0};
	OpKind kind = OP_YIELD;
	bool has_result = is_punct(p, '$');
	DType dtype = DT_F32;
	if (has_result) {
		expect(p, '$');
		if (integer(p) != *n)
			fail(p, "body values are numbered in order: $%d is next", *n);
		dtype = body_dtype(p);
		expect(p, '=');
	}
	const char *text = take(p, TOK_WORD, "an op");
	if (!p->failed && !op_from_text(text, &kind))
		fail(p, "unknown op \"%s\"", text);
	while (!p->failed && is_punct(p, '$')) {
		vec_push(p->arena, &list, body_value(p, value, *n));
		if (!accept(p, ','))
			break;
	}
	Attr *a = attrs(p);
	const OpInfo *info = &op_info[kind];
	bool elementwise = info->flags & EW || kind == OP_CONST || kind == OP_BROADCAST;
	if (!p->failed && (has_result ? !elementwise || list.n != info->n_in_min : kind != OP_YIELD))
		fail(p, "%s with %d operand(s) cannot stand in a fused body", info->text, list.n);
	if (p->failed)
		return;
	Value *v = ir_body_emit(p->m, fused, kind, list.n, list.at, a);
	if (v) {
		v->type.dtype = dtype;
		value[(*n)++] = v;
	}
}

/* An op takes at least five characters, which bounds the number of body values. */
static void fused_body(Parser *p, Op *fused)
{
	int n = fused->n_in;
	const char *end = strchr(p->at, '}');
	Value **value = NEW_N(p->arena, Value *, n + (end ? (end - p->at) / 5 : 0) + 1);
	for (int i = 0; i < n; i++)
		value[i] = fused->args[i];
	expect_word(p, "do");
	expect(p, '{');
	while (!p->failed && !is_punct(p, '}'))
		body_op(p, fused, value, &n);
	expect(p, '}');
	const Op *last = fused->body_last;
	if (!p->failed && (!last || last->kind != OP_YIELD || last->n_in != fused->n_out))
		fail(p, "a fused body ends with a yield of as many values as the op has results");
}

static Op *emit(Parser *p, OpText *t, Attr *list, SectionKind section)
{
	Builder b = {.m = p->m, .section = section, .diag = p->diag, .sym = t->sym, .unit = t->unit,
		.name = t->out_name.n ? t->out_name.at[0] : NULL};
	if (t->kind == OP_FUSED) {
		for (int i = 0; i < t->in.n; i++)
			if (!t->in.at[i])
				fail(p, "operand %d of fused must be present", i + 1);
		return p->failed ? NULL : ir_emit_fused(&b, t->in.n, t->in.at, t->out_name.n, t->out_type.at);
	}
	/* where a shape error is reported: the line, not the node that the op says it came from */
	const char *file = p->m->file;
	p->m->file = where(p);
	Op *op = ir_emit_op(&b, t->kind, t->in.n, t->in.at, list, t->out_type.at);
	p->m->file = file;
	if (!op)
		p->failed = true;
	return op;
}

static bool kind_fits(AttrKind kind, char letter)
{
	switch (letter) {
	case 'i': return kind == ATTR_INT;
	case 'f': return kind == ATTR_FLOAT;
	case 's': return kind == ATTR_STR;
	case 'd': return kind == ATTR_DTYPE;
	case 'I': return kind == ATTR_INTS;
	case 'F': return kind == ATTR_FLOATS;
	default: return kind == ATTR_INTS || kind == ATTR_FLOATS;
	}
}

/* Whether the attributes that the op's table row demands are there and of their kind, so that shape rules
 * may rely on them. */
static bool has_attrs(Parser *p, OpKind kind, const Attr *list)
{
	const char *s = op_info[kind].attrs;
	while (*s) {
		size_t n = strcspn(s, " "), colon = strcspn(s, ":");
		const char *key = arena_strndup(p->arena, s, MIN(colon, n));
		const Attr *a = attr_find(list, key);
		if (!a && s[n - 1] != '?')
			fail(p, "%s needs the attribute %s", op_info[kind].text, key);
		else if (a && !kind_fits(a->kind, s[colon + 1]))
			fail(p, "attribute %s of %s has the wrong kind", key, op_info[kind].text);
		s += n + strspn(s + n, " ");
	}
	return !p->failed;
}

static void define_results(Parser *p, const OpText *t, Op *op)
{
	check_counts(p, t, op->n_out);
	for (int i = 0; !p->failed && i < op->n_out; i++) {
		Value *v = op->out[i];
		if (op->kind != OP_FUSED && !type_equal(&v->type, &t->out_type.at[i])) {
			fail(p, "%%%s is declared %s but %s gives %s", t->out_name.at[i],
				type_str(p->arena, &t->out_type.at[i]), op_info[op->kind].text, type_str(p->arena, &v->type));
			return;
		}
		if (map_has(p->values, t->out_name.at[i])) {
			fail(p, "%%%s is defined twice", t->out_name.at[i]);
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
	int line = p->tok_line;
	results(p, &t);
	int op_line = p->tok_line;
	const char *text = take(p, TOK_WORD, "an op");
	if (!p->failed && !op_from_text(text, &t.kind))
		fail(p, "unknown op \"%s\"", text);
	if (p->failed)
		return;
	op_subject(p, &t);
	operands(p, &t, op_line);
	Attr *list = attrs(p);
	const OpInfo *info = &op_info[t.kind];
	p->op_line = line;
	if (t.kind == OP_YIELD)
		fail(p, "yield stands in fused bodies only");
	if (!(info->flags & VAROUT))
		check_counts(p, &t, info->n_out);
	else
		check_counts(p, &t, t.out_name.n);
	if (p->failed || !has_attrs(p, t.kind, list))
		return;
	Op *op = emit(p, &t, list, section);
	if (!op)
		return;
	p->op_line = 0;
	if (op->kind == OP_FUSED)
		fused_body(p, op);
	op->loc = location(p);
	p->op_line = line;
	define_results(p, &t, op);
	p->op_line = 0;
}

/* ---- symbols and units ---- */

static void perm_field(Parser *p, Source *src)
{
	int64_t perm[IR_MAX_RANK];
	int n = small_ints(p, perm);
	for (int i = 0; i < n; i++) {
		if (perm[i] < 0 || perm[i] >= n)
			fail(p, "perm: %lld is not an axis", (long long)perm[i]);
		src->perm[i] = (int)perm[i];
	}
}

static double float_field(Parser *p)
{
	double v = at_number(p) ? number(p, p->tok.text) : 0;
	if (!at_number(p))
		fail(p, "expected a number, found \"%s\"", p->tok.text);
	next(p);
	return v;
}

static void symbol_field(Parser *p, Symbol *s)
{
	const char *key = take(p, TOK_WORD, "a field");
	expect(p, '=');
	if (!strcmp(key, "trainable"))
		s->trainable = integer(p);
	else if (!strcmp(key, "batched"))
		s->batched = integer(p);
	else if (!strcmp(key, "param"))
		s->param = ir_intern(p->m, take(p, TOK_STRING, "a parameter"));
	else if (!strcmp(key, "onnx"))
		s->onnx = ir_intern(p->m, take(p, TOK_STRING, "a name"));
	else if (!strcmp(key, "file"))
		s->src.file = ir_intern(p->m, take(p, TOK_STRING, "a file"));
	else if (!strcmp(key, "offset"))
		s->src.offset = integer(p);
	else if (!strcmp(key, "at"))
		s->offset = integer(p);
	else if (!strcmp(key, "bytes"))
		s->src.bytes = integer(p);
	else if (!strcmp(key, "fill"))
		s->src.fill = float_field(p);
	else if (!strcmp(key, "dims"))
		s->src.rank = small_ints(p, s->src.dim);
	else if (!strcmp(key, "perm"))
		perm_field(p, &s->src);
	else if (strcmp(key, "dtype") || !dtype_from_text(p->tok.text, &s->src.dtype))
		fail(p, "unknown field \"%s\" of a symbol", key);
	else
		next(p);
}

static void symbol(Parser *p, SymbolKind kind)
{
	next(p);
	const char *text = take(p, TOK_STRING, "a name");
	expect(p, ':');
	Type t = type(p);
	if (p->failed)
		return;
	if (ir_find_symbol(p->m, text)) {
		fail(p, "symbol \"%s\" is declared twice", text);
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
	if (!accept(p, '{'))
		return;
	do {
		symbol_field(p, s);
	} while (accept(p, ','));
	expect(p, '}');
}

static void unit_flats(Parser *p, Unit *u)
{
	static const char *const words[] = {"frozen", "trainable"};
	expect(p, '[');
	while (!p->failed && !is_punct(p, ']')) {
		if (u->n_flats == UNIT_MAX_FLATS) {
			fail(p, "a unit has at most %d flats", UNIT_MAX_FLATS);
			return;
		}
		Flat *f = &u->flat[u->n_flats++];
		const char *dtype = take(p, TOK_WORD, "a dtype");
		if (!p->failed && !dtype_from_text(dtype, &f->dtype))
			fail(p, "unknown dtype \"%s\"", dtype);
		f->trainable = keyword(p, words, 2, "kind of flat");
		f->numel = integer(p);
		if (f->numel < 0 || f->numel > INT64_MAX / 64)
			fail(p, "a flat cannot have %lld elements", (long long)f->numel);
		if (!accept(p, ','))
			break;
	}
	expect(p, ']');
}

static void unit_params(Parser *p, Unit *u)
{
	expect(p, '[');
	while (!p->failed && p->tok.kind == TOK_STRING) {
		if (p->n_members == p->cap_members)
			p->members = arena_grow(p->arena, p->members, sizeof(*p->members), &p->cap_members);
		int i = p->n_members++;
		p->members[i].unit = u;
		p->members[i].name = take(p, TOK_STRING, "a parameter");
		expect(p, '@');
		p->members[i].offset = integer(p);
		p->members[i].flat = flat_suffix(p);
		u->n_params++;
		if (!accept(p, ','))
			break;
	}
	expect(p, ']');
}

static void unit_line(Parser *p)
{
	next(p);
	expect(p, '@');
	const char *text = p->tok.kind == TOK_STRING ? take(p, TOK_STRING, "a unit") : name(p, "a unit name");
	if (!p->failed && ir_find_unit(p->m, text))
		fail(p, "unit \"%s\" is declared twice", text);
	if (p->failed)
		return;
	Unit *u = ir_add_unit(p->m, text, "");
	expect(p, '{');
	expect_word(p, "strategy");
	expect(p, '=');
	u->strategy = ir_intern(p->m, take(p, TOK_STRING, "a strategy"));
	expect(p, ',');
	expect_word(p, "flats");
	expect(p, '=');
	unit_flats(p, u);
	expect(p, ',');
	expect_word(p, "params");
	expect(p, '=');
	unit_params(p, u);
	expect(p, '}');
}

/* Unit lines stand before the symbols they name; this joins them. */
static void resolve_members(Parser *p)
{
	for (int i = 0; i < p->m->n_units; i++) {
		Unit *u = p->m->units[i];
		u->params = NEW_N(p->m->arena, Symbol *, u->n_params);
		u->n_params = 0;
	}
	for (int i = 0; !p->failed && i < p->n_members; i++) {
		Symbol *s = ir_find_symbol(p->m, p->members[i].name);
		Unit *u = p->members[i].unit;
		if (!s || s->kind != SYM_PARAM) {
			fail(p, "unit \"%s\" names \"%s\", which is not a parameter", u->name, p->members[i].name);
			return;
		}
		s->unit = u;
		s->flat = p->members[i].flat;
		s->offset = p->members[i].offset;
		if (s->flat >= u->n_flats)
			fail(p, "parameter \"%s\": unit \"%s\" has no flat %d", s->name, u->name, s->flat);
		u->params[u->n_params++] = s;
	}
}

/* ---- modules ---- */

static void header(Parser *p)
{
	static const char *const levels[] = {"MODEL", "TRAIN", "SHARD", "PLAN"};
	Module *m = p->m;
	expect_word(p, "module");
	m->name = ir_intern(m, take(p, TOK_STRING, "a module name"));
	while (!p->failed && !is_punct(p, '{')) {
		const char *key = take(p, TOK_WORD, "a field or '{'");
		expect(p, '=');
		int64_t *field = !strcmp(key, "batch") ? &m->batch : !strcmp(key, "act_bytes") ? &m->act_bytes
			: !strcmp(key, "input_bytes") ? &m->input_bytes : !strcmp(key, "state_bytes") ? &m->state_bytes
			: !strcmp(key, "work_bytes") ? &m->work_bytes : NULL;
		if (!strcmp(key, "level"))
			m->level = (Level)keyword(p, levels, COUNT_OF(levels), "level");
		else if (!strcmp(key, "file"))
			m->file = ir_intern(m, take(p, TOK_STRING, "a file"));
		else if (field)
			*field = integer(p);
		else
			fail(p, "unknown field \"%s\" of a module", key);
	}
	expect(p, '{');
}

static void section(Parser *p)
{
	static const char *const sections[] = {"forward", "backward", "update", "eval"};
	SectionKind s = (SectionKind)keyword(p, sections, COUNT_OF(sections), "section");
	expect(p, '{');
	while (!p->failed && !is_punct(p, '}'))
		op_line(p, s);
	expect(p, '}');
}

static void module_body(Parser *p)
{
	static const char *const kinds[] = {"input", "output", "param", "buffer", "data", "state"};
	bool resolved = false;
	while (!p->failed && !is_punct(p, '}')) {
		int kind = -1;
		for (int i = 0; i < COUNT_OF(kinds); i++)
			if (is_word(p, kinds[i]))
				kind = i;
		if (is_word(p, "unit")) {
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
	expect(p, '}');
	if (!p->failed && p->tok.kind != TOK_END)
		fail(p, "text after the module's end: \"%s\"", p->tok.text);
}

Module *ir_parse(const char *file, const char *text, Diag *d)
{
	Parser p = {.m = ir_module_new(""), .diag = d, .file = file, .at = text, .line = 1};
	p.arena = arena_new();
	p.values = map_new(p.arena);
	next(&p);
	header(&p);
	module_body(&p);
	Module *m = p.m;
	/* names handed out by passes from here on must not collide with those in the text */
	for (int i = 0; !p.failed && i < map_count(p.values); i++)
		map_put(m->value_names, map_key(p.values, i), NULL);
	bool failed = p.failed;
	arena_free(p.arena);
	if (failed) {
		ir_module_free(m);
		return NULL;
	}
	return m;
}
