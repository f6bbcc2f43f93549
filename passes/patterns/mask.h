/* passes/patterns/mask.h: what is proved of an attention mask from the ops that make it, whatever its size.
 *
 * A mask is a function of four coordinates: sample b, head h, query q and key s.  mask_split proves that a position may
 * be attended exactly if three things hold: q - s lies in a band, q and s belong to the same document, and what is left
 * as a tensor says so.  mask.c follows the coordinates through the ops; condition.c calculates with sets of positions.
 * Time and memory do not depend on the sizes, but for tables in the model's file, which are read once, row by row. */
#ifndef SHARDC_MASK_H
#define SHARDC_MASK_H

#include "passes/patterns/patterns.h"

/* ---- what attention asks ---- */

typedef struct MaskParts {
	bool has_left, has_right;
	int64_t left, right;  /* q - left <= s <= q + right */
	Value *documents;     /* ids [B|1,T]: q and s may only attend each other if theirs are equal; or NULL */
	Value *rest;          /* bool or float, broadcasts to [B,H,T,S]: what else masks or is added; or NULL */
	const char *why;      /* rest has both T and S: why nothing smaller was proved; else NULL */
} MaskParts;

/* Splits a mask that broadcasts to scores [B,H,T,S] and emits the parts at r->b.  False when the mask says itself what
 * was found: rest is the mask then, and nothing is emitted. */
bool mask_split(Rewriter *r, Value *mask, const int64_t *scores, MaskParts *parts);
/* Whether every row of a mask is known to keep at least one position. */
bool mask_rows_are_never_empty(Rewriter *r, Value *mask, const int64_t *scores);

/* An added number at most this large masks the position. */
#define MASK_LOW (-1e4)

/* ---- condition.c: sets of positions ---- */

enum { MASK_ATOMS = 6, MASK_RUNS = 64 };

/* Of the diagonals d = q - s from -(S-1) to T-1 those in runs: sorted, neither overlapping nor touching. */
typedef struct Run { int64_t lo, hi; } Run;
typedef struct Diagonals { int n; Run run[]; } Diagonals;

/* A set of positions (b,h,q,s).  Atoms are facts about a position that stay unknown; for each combination of the first
 * n of them (bit i of the index: atom i holds), the set has the positions on these diagonals. */
typedef struct Condition { int n; const Diagonals *at[]; } Condition;

typedef struct Space { Arena *a; Run all; bool overflow; } Space; /* overflow: a set would have had too many runs */

const Condition *condition_run(Space *x, int64_t lo, int64_t hi); /* may reach beyond all */
const Condition *condition_atom(Space *x, int atom);
const Condition *condition_and(Space *x, const Condition *a, const Condition *b);
const Condition *condition_or(Space *x, const Condition *a, const Condition *b);
const Condition *condition_not(Space *x, const Condition *a);
/* The condition if the atom is known to hold, or not to hold. */
const Condition *condition_given(Space *x, const Condition *a, int atom, bool holds);
bool condition_equal(const Condition *a, const Condition *b);
bool condition_is_none(const Condition *a);
bool condition_is_all(const Space *x, const Condition *a);
bool condition_asks(const Condition *a, int atom); /* whether it depends on the atom */
/* All positions for the combinations for which the set has any. */
const Condition *condition_any(Space *x, const Condition *a);
/* The diagonals of a set that consists of the same ones, or of none, for every combination; else NULL. */
const Diagonals *condition_diagonals(const Condition *a);

/* ---- mask.c: values as functions of the coordinates ---- */

enum { MASK_PIECES = 4 };
typedef enum Coordinate { ONE, OF_B, OF_H, OF_Q, OF_S, N_COORDINATES } Coordinate; /* ONE: the constant term */
/* c[ONE] + c[OF_B] b + ..; whole numbers below 2^52 but for the constant term of a number that depends on nothing. */
typedef struct Linear { double c[N_COORDINATES]; } Linear;
/* The element of v at these indices, one for each of its dims. */
typedef struct Leaf { Value *v; Linear at[IR_MAX_RANK]; } Leaf;

/* A value as a function: linear pieces, whose conditions exclude each other and cover all, or (n = 0) the element of a
 * tensor of which no more is known. */
typedef struct Piece { Linear value; const Condition *when; } Piece;
typedef struct Term { int n; Piece piece[MASK_PIECES]; Leaf leaf; } Term;

/* A bool that is not known.  ids.v: it says that ids, which depends on (b,q), is the same for (b,s); else NULL. */
typedef struct Atom { Leaf leaf, ids; } Atom;

typedef struct MaskProof {
	Rewriter *r;
	Space space;
	double extent[N_COORDINATES];
	int n_atoms, visits, depth;
	Atom atom[MASK_ATOMS];
	PtrMap *seen;       /* Value -> list of its terms by indices */
	VEC(Value *) bools; /* values of the mask's own coordinates, in the order in which they were visited */
	const char *why;    /* NULL, or why this mask is given up */
} MaskProof;

void mask_begin(MaskProof *x, Rewriter *r, const int64_t *scores);
void mask_end(MaskProof *x);
/* Indices of a value that broadcasts to the scores. */
Leaf mask_leaf(const MaskProof *x, Value *v);
Term mask_term(MaskProof *x, Value *v, const Linear *at);
/* Where a bool term holds. */
const Condition *mask_holds(MaskProof *x, const Term *t);
/* The indices of operand i of an elementwise op or a broadcast. */
void mask_operand(const Op *op, int i, const Linear *at, Linear *in);
/* Whether the leaf can be computed as a tensor [B|1,H|1,T|1,S|1]: each index depends on one coordinate at most, and no
 * two on the same. */
bool mask_is_tensor(const Leaf *leaf);
int mask_coordinate(const Linear *at); /* the one that an index depends on; ONE: none, -1: several */
bool mask_depends(const Leaf *leaf, Coordinate on);

/* ---- data.c: tables ---- */

/* The values of a matrix [R,C] (repeated over leading dims) that is constant along each diagonal d = r - c, as runs
 * from -(C-1) to R-1: first at lo, and more by `step` (a whole number) from diagonal to diagonal. */
typedef struct Stripe { int64_t lo, hi; double first, step; } Stripe;
typedef struct Stripes { int n; const Stripe *at; } Stripes;

/* v: a literal, or data of the file that no op writes.  NULL where it is no such matrix or cannot be read. */
const Stripes *data_stripes(Rewriter *r, const Value *v);

#endif
