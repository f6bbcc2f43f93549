/* ckpt/cut.h: which elements of a tensor a rank holds, as state.json's layout says it, for any number of ranks. */
#ifndef SHARDC_CKPT_CUT_H
#define SHARDC_CKPT_CUT_H

#include <jansson.h>

#include "base/layout.h"

typedef struct CutParam { const char *name; int64_t at; int listed; } CutParam; /* at: of its flat; listed: its place */
typedef struct CutFlat { CutParam *param; int n; } CutFlat; /* by rising `at` */
typedef struct CutUnit {
	const char *name;
	LayoutUnit layout;
	CutFlat flat[LAYOUT_MAX_FLATS];
} CutUnit;
typedef struct CutPlace { const CutUnit *unit; int flat; int64_t at; } CutPlace; /* of a parameter */
typedef struct Cut {
	CutUnit *unit;
	int n;              /* 0: the layout is not known */
	Map *by_param;      /* CutPlace */
	int64_t ranks, shard_size; /* of the checkpoint */
} Cut;

/* Of state.json's layout; NULL after messages that begin with `where`. */
Cut *cut_read(json_t *layout, Arena *a, const char *where, Diag *d);
/* Owners are those of the ranks that a program was compiled for: at another number of ranks who owns a unit is not
 * known (-1), and it is cut as full_shard is. */
void cut_forget_owners(Cut *c);
bool cut_has_unknown_owner(const Cut *c);
bool cut_has_groups(const Cut *c); /* some unit's strategy is hybrid_shard */

/* What of a flat this rank writes: elements [begin, begin + n), padding behind the last one excluded; n may be 0.  Of
 * several ranks that hold the same, one writes it. */
LayoutRange cut_flat(const CutUnit *u, int flat, const LayoutRank *who);
/* The same of a parameter's elements, or of one of its states; place NULL: of a tensor of numel elements that is in no
 * unit, as its own flat under full_shard where the layout is not known, else all on rank 0. */
LayoutRange cut_tensor(const Cut *c, const CutPlace *place, int64_t numel, const LayoutRank *who);

#endif
