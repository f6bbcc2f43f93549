/* passes/tiles/tiles.h: what the files of pass tiles share. */
#ifndef SHARDC_TILES_H
#define SHARDC_TILES_H

#include "passes/passes.h"

/* What is known of an op of the section. */
typedef struct Look {
	Op *op;
	int64_t rows;       /* it works row by row, or sums up rows, of so many; 0: it does neither */
	bool in;            /* it works on wide values, and so does all that reads the wide ones that it makes */
	const Op *why;      /* of an op that makes wide values and is not in: the op that needs them whole */
	int parent;         /* of the tree of ops that are connected by inner values */
} Look;

typedef struct Tiles {
	Module *m;
	const Options *o;
	Diag *d;
	Arena *a;
	int64_t asked;      /* rows of a tile; 0 = by size */
	SectionKind section;
	bool *wide;         /* by Value.id, of values that were there before the pass */
	int n_values;
	Look *at;           /* by Op.order in the section */
	Op **tail;          /* the op behind which the next one is put that is to follow at[i].op */
	int n;
	int n_regions, n_small; /* that were cut, and that have no more rows than one tile */
} Tiles;

typedef struct Ops { Op **at; int n, cap; } Ops;

/* Ops that are connected by values which nothing else reads: what is cut into tiles of rows. */
typedef struct TileRegion {
	Ops ops;            /* in order */
	PtrMap *member;     /* of these ops */
	PtrMap *same;       /* value from outside -> the result of a norm of the region that is equal to it */
	int64_t rows, tile; /* of the values, and of a tile */
	const Value *widest; /* of the inner values that need memory of their own */
	int64_t after;      /* order of the last op that makes what the region reads; -1 = none in this section */
	Ops late;           /* what must move behind the region, since it reads what that makes; in order */
	const char *why;    /* why it stays whole; NULL = it need not */
} TileRegion;

/* find.c */
int64_t tiles_rows(const Type *t);                        /* rows of a tensor, all dims but the last; 0 = it has none */
bool tiles_sums(const Op *op);                            /* it sums up rows: the gradient of a weight or of a bias */
bool tiles_reads(const Op *op, int i);                    /* it reads operand i row by row, if that has as many rows */
bool tiles_fixed(const Type *t);                          /* one row, which all rows share */
Value *tiles_shown(Value *v);                             /* v, or what it shows in another shape of the same rows */
void tiles_mark(Tiles *t);                                /* sets wide */
void tiles_look(Tiles *t, SectionKind s);                 /* sets section, at, tail and n */
bool tiles_inner(const Tiles *t, const Value *v);         /* ops of one region alone make and read v */
int tiles_root(Tiles *t, int i);
void tiles_settle(Tiles *t, TileRegion *r);                   /* sets all from widest on, but tile */

/* build.c: puts the tiles in place of the region's ops. */
void tiles_build(Tiles *t, TileRegion *r);

#endif
