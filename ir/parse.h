/* ir/parse.h: what the parts of the parser share.  Private to ir/parse*.c. */
#ifndef SHARDC_IR_PARSE_H
#define SHARDC_IR_PARSE_H

#include "ir/lex.h"

/* A parameter that a unit's line names; its symbol is declared later in the text. */
typedef struct Member { const char *name; int64_t offset; int flat; Unit *unit; } Member;

/* What a text says of the places where ops came from (parse_loc.c). */
typedef struct Locations Locations;

typedef struct Parser {
	Lexer lex;
	Module *m;
	Map *values; /* name -> Value, for the values defined so far */
	VEC(Member) members;
	Locations *locations;
} Parser;

/* ---- parse.c ---- */

double parse_real(Parser *p);
int parse_ints(Parser *p, int64_t *out);     /* at most IR_MAX_RANK of them; returns how many */
Type parse_type(Parser *p);
DType parse_float_dtype(Parser *p);
DType parse_flat_dtype(Parser *p); /* of a flat as it is gathered: one of floats, or e4m3 */
const char *parse_unit_name(Parser *p);
int parse_flat_suffix(Parser *p);            /* reads "/1"; 0 if there is no suffix */

/* ---- parse_loc.c ---- */

Locations *locations_new(Arena *a);
const Loc *parse_loc(Parser *p);             /* of an op; its names are known only after resolve_locs */
void parse_locations(Parser *p);             /* reads the section of locations */
void resolve_locs(Parser *p);                /* gives all locations their names; called when the module is read */

/* ---- parse_fields.c ---- */

void parse_header(Parser *p);                /* reads up to the module's opening brace */
void parse_train(Parser *p);
void parse_unit(Parser *p);
void parse_symbol(Parser *p, SymbolKind kind);
void parse_members(Parser *p);               /* connects units with the symbols that they name; called when both are
                                                read */

#endif
