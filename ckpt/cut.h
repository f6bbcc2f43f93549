/* ckpt/cut.h: which elements of a tensor a rank holds, at any number of ranks, by the layout in state.json. */
#ifndef SHARDC_CKPT_CUT_H
#define SHARDC_CKPT_CUT_H

#include <jansson.h>

#include "base/layout.h"

/* at: the parameter's offset in its flat; listed: its index in state.json */
typedef struct CutParam { const char *name; int64_t at; int listed; } CutParam;
typedef struct CutFlat { CutParam *param; int n; } CutFlat; /* in rising order of `at` */
typedef struct CutUnit {
	const char *name;
	LayoutUnit layout;
	CutFlat flat[LAYOUT_MAX_FLATS];
} CutUnit;
typedef struct CutPlace { const CutUnit *unit; int flat; int64_t at; } CutPlace; /* where a parameter lies */
typedef struct Cut {
	CutUnit *unit;
	int n;              /* 0: the layout is not known */
	Map *by_param;      /* parameter name -> CutPlace */
	int64_t ranks, shard_size; /* of the checkpoint */
} Cut;

/* Reads state.json's layout; NULL after errors, which begin with `where`. */
Cut *cut_read(json_t *layout, Arena *a, const char *where, Diag *d);
/* Call this when the number of ranks changes.  Owners were chosen for the number of ranks that the program was compiled
 * for; at another number the owner of a unit is unknown (-1), and the unit is cut as under full_shard. */
void cut_forget_owners(Cut *c);
bool cut_has_unknown_owner(const Cut *c);
bool cut_has_groups(const Cut *c); /* whether some unit's strategy is hybrid_shard */

/* The part of a flat that this rank writes: elements [begin, begin + n) without padding at the end; n may be 0.  If
 * several ranks hold the same elements, only one of them writes them. */
LayoutRange cut_flat(const CutUnit *u, int flat, const LayoutRank *who);
/* The part of a parameter, or of one of its states, that this rank writes.  place NULL: the tensor of numel elements is
 * in no unit; it is cut as a flat of its own under full_shard if the layout is not known, else rank 0 writes all of
 * it. */
LayoutRange cut_tensor(const Cut *c, const CutPlace *place, int64_t numel, const LayoutRank *who);

#endif
