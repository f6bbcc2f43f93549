/* passes/memory/held.h: what is in a rank's memory from which op of a step to which, and who holds the peak. */
#ifndef SHARDC_HELD_H
#define SHARDC_HELD_H

#include "passes/passes.h"

typedef enum HeldKind {
#define HELD(id, text) HELD_##id,
#include "passes/memory/held.def"
	HELD_KINDS
} HeldKind;
extern const char *const held_text[HELD_KINDS]; /* "gathered" */

/* Positions are numbers of ops, counted over forward, backward and update of each program in turn. */
typedef struct Held {
	HeldKind kind;
	const char *name;        /* "%linear_7", "gathered @h.3" */
	int64_t bytes;
	int first, last;         /* it is there at both */
	int op;                  /* that made it; -1: none did, it is there all the time */
} Held;
typedef struct HeldList {
	Held *at;
	int n, cap;
	const Op **op; int n_ops; /* of the positions */
	int peak;                /* the first position at which most is held */
	int64_t peak_bytes;
} HeldList;
/* The programs that run one after the other, at PLAN: one, or those of micro-batches; how they are laid out together,
 * and the rank that is asked about. */
typedef struct HeldOf {
	Module *const *m; int n;
	const LayoutModel *layout;
	const LayoutRank *who;
} HeldOf;
HeldList *held_find(const HeldOf *of, const Options *o, Arena *a);

typedef struct HeldShare { const char *name; int64_t bytes; } HeldShare;
typedef VEC(HeldShare) HeldShares;
typedef enum HeldBy {
	HELD_BY_CATEGORY,
	HELD_BY_MODULE,          /* values alone */
	HELD_BY_UNIT,            /* what is gathered, and gradients */
} HeldBy;
/* What is held at the peak, the most first. */
HeldShares held_shares(const HeldList *l, HeldBy by, Arena *a);

#endif
