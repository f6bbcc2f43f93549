/* ir/lex.c: splits IR text into words, strings, numbers and punctuation.
 *
 * Only the first error is reported, with its line and column; after it every token is the end of the file. */
#include "ir/lex.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

Lexer lex_open(const char *file, const char *text, Arena *a, Diag *d)
{
	return (Lexer){.diag = d, .arena = a, .file = file, .at = text, .line_start = text, .line = 1};
}

static const char *where(const Lexer *l, const TextPlace *token)
{
	const TextPlace *at = l->op_at.line ? &l->op_at : token;
	return arena_printf(l->arena, "%s:%d:%d", l->file, at->line, at->column);
}

const char *lex_where(const Lexer *l)
{
	return where(l, &l->tok_at);
}

static void fail_at(Lexer *l, const TextPlace *token, const char *what)
{
	if (l->failed)
		return;
	diag_error(l->diag, where(l, token), "%s", what);
	l->failed = true;
	l->tok = (Tok){.kind = TOK_END, .text = ""};
}

void lex_fail(Lexer *l, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fail_at(l, &l->tok_at, arena_vprintf(l->arena, fmt, ap));
	va_end(ap);
}

void lex_refuse(Lexer *l, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fail_at(l, &l->taken_at, arena_vprintf(l->arena, fmt, ap));
	va_end(ap);
}

void lex_refuse_at(Lexer *l, const TextPlace *at, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fail_at(l, at, arena_vprintf(l->arena, fmt, ap));
	va_end(ap);
}

/* ---- tokens ---- */

static void skip_space(Lexer *l)
{
	for (;; l->at++) {
		if (*l->at == '#')
			while (*l->at && *l->at != '\n')
				l->at++;
		if (*l->at == '\n') {
			l->line++;
			l->line_start = l->at + 1;
		} else if (!isspace((unsigned char)*l->at)) {
			return;
		}
	}
}

static long hex4(const char *s)
{
	long v = 0;
	for (int i = 0; i < 4; i++) {
		if (!isxdigit((unsigned char)s[i]))
			return -1;
		v = v * 16 + (isdigit((unsigned char)s[i]) ? s[i] - '0' : tolower((unsigned char)s[i]) - 'a' + 10);
	}
	return v;
}

/* Appends the character with this code as UTF-8. */
static void put_code(Buf *b, long code)
{
	int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
	for (int i = n - 1; i >= 0; i--) {
		long bits = code >> 6 * i;
		long byte = n == 1 ? bits : i == n - 1 ? (0xf00 >> n & 0xff) | bits : 0x80 | (bits & 0x3f);
		buf_put(b, &(char){(char)byte}, 1);
	}
}

/* Reads uXXXX, or a surrogate pair of two such escapes; returns its length in bytes, or 0 if it is malformed. */
static int read_code(const char *s, long *code)
{
	*code = hex4(s);
	bool high = *code >= 0xd800 && *code < 0xdc00;
	long low = high && s[4] == '\\' && s[5] == 'u' ? hex4(s + 6) : -1;
	if (high && low >= 0xdc00 && low < 0xe000) {
		*code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
		return 10;
	}
	return *code > 0 && (*code < 0xd800 || *code > 0xdfff) ? 4 : 0;
}

static void read_string(Lexer *l)
{
	Buf b = {0};
	l->at++;
	while (*l->at && *l->at != '"' && *l->at != '\n') {
		if (*l->at != '\\') {
			buf_put(&b, l->at++, 1);
			continue;
		}
		long code;
		char c = *++l->at;
		int n = c == 'u' ? read_code(l->at + 1, &code) : 0;
		if (n) {
			put_code(&b, code);
			l->at += n + 1;
			continue;
		}
		if (c == 'n' || c == 't') {
			c = c == 'n' ? '\n' : '\t';
		} else if (c != '"' && c != '\\') {
			break;
		}
		buf_put(&b, &c, 1);
		l->at++;
	}
	if (*l->at == '"')
		l->tok = (Tok){.kind = TOK_STRING, .text = arena_strndup(l->arena, b.at ? b.at : "", b.n)};
	else
		lex_fail(l, "a string does not end on its line, or has an escape other than \\\" \\\\ \\n \\t \\uXXXX");
	if (!l->failed)
		l->at++;
	buf_free(&b);
}

static bool is_number_char(char c)
{
	return ir_is_name_char(c) || c == '+' || c == '-';
}

void lex_next(Lexer *l)
{
	if (l->failed)
		return;
	skip_space(l);
	l->taken_at = l->tok_at;
	l->tok_at = (TextPlace){l->line, (int)MIN(l->at - l->line_start, INT32_MAX - 1) + 1};
	const char *start = l->at;
	char c = *start;
	if (!c) {
		l->tok = (Tok){.kind = TOK_END, .text = ""};
	} else if (c == '"') {
		read_string(l);
	} else if (isdigit((unsigned char)c) || (c == '-' && isalnum((unsigned char)start[1]))) {
		/* a sign belongs to a number only after e or E: 1e+5 is one token, @act 64 +128 is not */
		for (l->at++; is_number_char(*l->at); l->at++)
			if ((*l->at == '+' || *l->at == '-') && tolower((unsigned char)l->at[-1]) != 'e')
				break;
		l->tok = (Tok){.kind = TOK_NUMBER, .text = arena_strndup(l->arena, start, (size_t)(l->at - start))};
	} else if (ir_is_name_char(c)) {
		while (ir_is_name_char(*l->at))
			l->at++;
		l->tok = (Tok){.kind = TOK_WORD, .text = arena_strndup(l->arena, start, (size_t)(l->at - start))};
	} else {
		l->at++;
		l->tok = (Tok){.kind = TOK_PUNCT, .punct = c, .text = arena_strndup(l->arena, start, 1)};
	}
}

bool lex_is_punct(const Lexer *l, char c)
{
	return l->tok.kind == TOK_PUNCT && l->tok.punct == c;
}

bool lex_is_word(const Lexer *l, const char *word)
{
	return l->tok.kind == TOK_WORD && !strcmp(l->tok.text, word);
}

bool lex_accept(Lexer *l, char c)
{
	if (!lex_is_punct(l, c))
		return false;
	lex_next(l);
	return true;
}

void lex_expect(Lexer *l, char c)
{
	if (!lex_accept(l, c))
		lex_fail(l, "expected '%c', found \"%s\"", c, l->tok.text);
}

void lex_expect_word(Lexer *l, const char *word)
{
	if (!lex_is_word(l, word))
		lex_fail(l, "expected \"%s\", found \"%s\"", word, l->tok.text);
	lex_next(l);
}

const char *lex_take(Lexer *l, TokKind kind, const char *what)
{
	const char *text = l->tok.text;
	if (l->tok.kind != kind)
		lex_fail(l, "expected %s, found \"%s\"", what, text);
	lex_next(l);
	return text;
}

bool lex_is_integer(const char *text, int64_t *out)
{
	char *end;
	errno = 0;
	*out = strtoll(text, &end, 10);
	return !*end && !errno;
}

int64_t lex_integer(Lexer *l)
{
	const char *text = lex_take(l, TOK_NUMBER, "an integer");
	int64_t v = 0;
	if (!lex_is_integer(text, &v) && !l->failed)
		lex_refuse(l, "\"%s\" is not a 64-bit integer", text);
	return v;
}

/* Reads the name of a value.  It may be a number: the lexer reads %12 as one. */
const char *lex_name(Lexer *l, const char *what)
{
	if (l->tok.kind == TOK_NUMBER)
		return lex_take(l, TOK_NUMBER, what);
	return lex_take(l, TOK_WORD, what);
}

int lex_keyword(Lexer *l, const char *const *words, int n, const char *what)
{
	const char *text = lex_take(l, TOK_WORD, what);
	for (int i = 0; i < n; i++)
		if (!strcmp(words[i], text))
			return i;
	lex_refuse(l, "unknown %s \"%s\"", what, text);
	return 0;
}
