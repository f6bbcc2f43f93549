/* codegen/pieces.h: the calls of a section, cut into the functions of step.c, and how text is laid out. */
#ifndef SHARDC_PIECES_H
#define SHARDC_PIECES_H

#include "codegen/emit.h"

/* Calls that stand in a row, of one module of the model (or of small neighbours). */
typedef struct Piece {
	const char *module;   /* dotted scope, "" = none */
	const Call *call;
	int n;
	struct Block *block;
	int row;              /* of the block */
} Piece;

/* What one function does, for each of its rows: pieces whose calls differ in parts only.  Calls of the runtime about
 * units may be absent from a row. */
typedef struct BlockLine { const Call **of; bool absent; } BlockLine; /* by row; NULL and absent: that row has none */
typedef struct Block {
	const Piece **row;
	int n_rows;
	const BlockLine *line;
	int n_lines;
	const char *name;     /* of the function, when it was written */
	const char *rows;     /* of its table */
} Block;
typedef VEC(Piece) Pieces;

typedef struct Scopes Scopes;
Scopes *scopes_new(const Module *m, Arena *a);
/* Without what all modules' names begin with: "h.0" of "model.transformer.h.0". */
const char *scopes_short(const Scopes *s, const char *module);

/* In the order of calls; every piece has a block. */
Pieces pieces_find(Emit *e, Scopes *s);

/* ---- body.c ---- */

/* Appends what stands between the braces of the function, and `fields` of a row and the `rows` when there are
 * several. */
void body_write(Emit *e, const Scopes *s, const Block *b, const char *label, Buf *body, Buf *fields, Buf *rows);
/* The declaration that begins with `head` of all names. */
void body_constants(const Map *names, const char *head, Buf *out);

/* ---- wrap.c ---- */

enum { WRAP_COLUMNS = 140 };
/* One statement and what it is, which stands behind it or above it and is cut when it is too long.  NULL = no word. */
void wrap_statement(Buf *out, const char *indent, const char *code, const char *comment);
/* The text, its lines of more columns broken behind commas and inside of strings. */
void wrap_text(Buf *out, const char *text, int columns);

/* ---- columns.c ---- */

typedef struct Column { int kind; const char *name; const int64_t *at; } Column; /* at: by row */
typedef struct Columns { Arena *a; int n_rows; VEC(Column) all; Map *names; } Columns;
Columns columns_new(Arena *a, int n_rows);
bool columns_constant(const Columns *c, const int64_t *v);
/* The first of name, name_2, .. that no column has. */
const char *columns_unused(const Columns *c, const char *name);
/* "b->name + 8": v of the column of this kind that has it (distance: and a number more in all rows), or a new one. */
const char *columns_text(Columns *c, int kind, bool distance, const char *name, const int64_t *v, const char *of);

#endif
