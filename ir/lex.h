/* ir/lex.h: the tokens of IR text; shared by lex.c and parse.c alone. */
#ifndef SHARDC_IR_LEX_H
#define SHARDC_IR_LEX_H

#include "ir/ir.h"

typedef enum { TOK_END, TOK_WORD, TOK_STRING, TOK_NUMBER, TOK_PUNCT } TokKind;

typedef struct Tok {
	TokKind kind;
	const char *text; /* of words, strings (unescaped) and numbers */
	char punct;
} Tok;

/* A place in the text: both count from 1, columns in bytes. */
typedef struct TextPlace { int line, column; } TextPlace;

/* After the first failure every token is TOK_END, so that callers need not check each step. */
typedef struct Lexer {
	Diag *diag;
	Arena *arena;
	const char *file, *at;
	const char *line_start; /* of the line of `at` */
	int line;               /* of the next character */
	TextPlace tok_at, taken_at; /* of tok, of the one before it */
	TextPlace op_at;        /* line not 0: errors belong to the op that started here */
	Tok tok;
	bool failed;
} Lexer;

Lexer lex_open(const char *file, const char *text, Arena *a, Diag *d);
void lex_next(Lexer *l);
const char *lex_where(const Lexer *l);           /* "dump.ir:17:5" */
void lex_fail(Lexer *l, const char *fmt, ...) PRINTF_LIKE(2, 3); /* the first failure is reported, at the token */
void lex_refuse(Lexer *l, const char *fmt, ...) PRINTF_LIKE(2, 3); /* likewise, at the token that was taken last */
void lex_refuse_at(Lexer *l, const TextPlace *at, const char *fmt, ...) PRINTF_LIKE(3, 4); /* at one taken before */
bool lex_is_punct(const Lexer *l, char c);
bool lex_is_word(const Lexer *l, const char *word);
bool lex_accept(Lexer *l, char c);               /* consumes c when it is next */
void lex_expect(Lexer *l, char c);
void lex_expect_word(Lexer *l, const char *word);
const char *lex_take(Lexer *l, TokKind kind, const char *what); /* the token's text; what names it in errors */
int64_t lex_integer(Lexer *l);
bool lex_is_integer(const char *text, int64_t *out); /* of 64 bits */
const char *lex_name(Lexer *l, const char *what); /* a word, or a number that serves as a name */
int lex_keyword(Lexer *l, const char *const *words, int n, const char *what); /* its index in words */

#endif
