/* codegen/pieces.h: cuts the calls of a section into the functions of step.c, and wraps text. */
#ifndef SHARDC_PIECES_H
#define SHARDC_PIECES_H

#include "codegen/emit.h"

/* Consecutive calls of one module of the model (or of small neighbouring modules). */
typedef struct Piece {
	const char *module;   /* dotted scope, "" = none */
	const Call *call;
	int n;
	struct Block *block;
	int row;              /* its row in the block */
} Piece;

/* A block is what one function does: the pieces that are its rows, whose calls differ only in parts.  Calls of the
 * runtime about units may be absent from a row. */
typedef struct BlockLine { const Call **of; bool absent; } BlockLine; /* by row; NULL, with absent set: it has none */
typedef struct Block {
	const Piece **row;
	int n_rows;
	const BlockLine *line;
	int n_lines;
	const char *name;     /* of the function, once it is written */
	const char *rows;     /* of its table of rows */
} Block;
typedef VEC(Piece) Pieces;

typedef struct Scopes Scopes;
Scopes *scopes_new(const Module *m, Arena *a);
/* The name without the common prefix of all modules: "h.0" of "model.transformer.h.0". */
const char *scopes_short(const Scopes *s, const char *module);

/* The pieces in the order of calls; every piece has a block. */
Pieces pieces_find(Emit *e, Scopes *s);

/* ---- body.c ---- */

/* Appends the body of the function to `body` and, if there are several rows, the fields of a row and the rows. */
void body_write(Emit *e, const Scopes *s, const Block *b, const char *label, Buf *body, Buf *fields, Buf *rows);
/* Writes one declaration of all names, which begins with `head`. */
void body_constants(const PlaceNames *names, const char *head, Buf *out);

/* ---- wrap.c ---- */

enum { WRAP_COLUMNS = 140 };
/* Writes one statement and a comment behind or above it, which is cut if it is too long; NULL = no comment. */
void wrap_statement(Buf *out, const char *indent, const char *code, const char *comment);
/* Writes the text; lines of more than `columns` columns are broken behind commas and inside strings. */
void wrap_text(Buf *out, const char *text, int columns);

/* ---- columns.c ---- */

typedef struct Column { int kind; const char *name; const int64_t *at; } Column; /* at: by row */
typedef struct Columns {
	Arena *a;
	int n_rows;
	VEC(Column *) all;
	Map *names, *found; /* names -> the last number given to it; kind and steps (columns.c) -> the column */
} Columns;
Columns columns_new(Arena *a, int n_rows);
bool columns_constant(const Columns *c, const int64_t *v);
/* The first of name, name_2, .. that no column has. */
const char *columns_unused(Columns *c, const char *name);
/* "b->name + 8": v as read from a column of this kind, or from a new one.  distance: v may also be a column plus a
 * number that is the same in all rows. */
const char *columns_text(Columns *c, int kind, bool distance, const char *name, const int64_t *v, const char *of);

#endif
