/* ir/lex.h: the tokens of IR text; used only by lex.c and the parser. */
#ifndef SHARDC_IR_LEX_H
#define SHARDC_IR_LEX_H

#include "ir/ir.h"

typedef enum { TOK_END, TOK_WORD, TOK_STRING, TOK_NUMBER, TOK_PUNCT } TokKind;

typedef struct Tok {
	TokKind kind;
	const char *text; /* of words, strings (without escapes) and numbers */
	char punct;
} Tok;

/* The lexer.  After the first failure every token is TOK_END, so that callers need not check each step. */
typedef struct Lexer {
	Diag *diag;
	Arena *arena;
	const char *file, *at;
	const char *line_start; /* start of the line that `at` is in */
	int line;               /* line of the next character */
	TextPlace tok_at, taken_at; /* positions of tok and of the token before it */
	TextPlace op_at;        /* line != 0: errors are reported with the op that starts here */
	Tok tok;
	bool failed;
} Lexer;

Lexer lex_open(const char *file, const char *text, Arena *a, Diag *d);
void lex_next(Lexer *l);
const char *lex_where(const Lexer *l);           /* "dump.ir:17:5" */
void lex_fail(Lexer *l, const char *fmt, ...) PRINTF_LIKE(2, 3); /* reports the first failure, at the next token */
void lex_refuse(Lexer *l, const char *fmt, ...) PRINTF_LIKE(2, 3); /* the same, at the token that was taken last */
void lex_refuse_at(Lexer *l, const TextPlace *at, const char *fmt, ...) PRINTF_LIKE(3, 4); /* the same, at a token taken
                                                                                              earlier */
bool lex_is_punct(const Lexer *l, char c);
bool lex_is_word(const Lexer *l, const char *word);
bool lex_accept(Lexer *l, char c);               /* takes c if it is next */
void lex_expect(Lexer *l, char c);
void lex_expect_word(Lexer *l, const char *word);
const char *lex_take(Lexer *l, TokKind kind, const char *what); /* the token's text; what: its name in errors */
int64_t lex_integer(Lexer *l);
bool lex_is_integer(const char *text, int64_t *out); /* whether it fits 64 bits */
const char *lex_name(Lexer *l, const char *what); /* a word, or a number that is used as a name */
int lex_keyword(Lexer *l, const char *const *words, int n, const char *what); /* its index in words */

#endif
