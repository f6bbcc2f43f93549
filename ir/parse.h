/* ir/parse.h: what the parts of the parser share.  Private to ir/parse*.c. */
#ifndef SHARDC_IR_PARSE_H
#define SHARDC_IR_PARSE_H

#include "ir/lex.h"

/* A parameter that a unit's line names; symbols stand behind units. */
typedef struct Member { const char *name; int64_t offset; int flat; Unit *unit; } Member;

typedef struct Parser {
	Lexer lex;
	Module *m;
	Map *values; /* by name: defined so far */
	VEC(Member) members;
} Parser;

/* ---- parse.c ---- */

double parse_real(Parser *p);
int parse_ints(Parser *p, int64_t *out);     /* at most IR_MAX_RANK; returns how many */
Type parse_type(Parser *p);
DType parse_float_dtype(Parser *p);
const char *parse_unit_name(Parser *p);
int parse_flat_suffix(Parser *p);            /* "/1"; 0 where there is none */

/* ---- parse_fields.c ---- */

void parse_header(Parser *p);                /* up to the module's brace */
void parse_train(Parser *p);
void parse_unit(Parser *p);
void parse_symbol(Parser *p, SymbolKind kind);
void parse_members(Parser *p);               /* joins units with the symbols that they name */

#endif
