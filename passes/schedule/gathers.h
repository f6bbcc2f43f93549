/* passes/schedule/gathers.h: where gathers are issued, and where they write.  Private to passes/schedule. */
#ifndef SHARDC_SCHEDULE_GATHERS_H
#define SHARDC_SCHEDULE_GATHERS_H

#include "passes/passes.h"

typedef struct GatherPolicy {
	int64_t forward, backward; /* how many units are gathered ahead */
	bool post;                 /* backward gathers behind reshards, if it gathers nothing ahead */
	int64_t ring;              /* units that are gathered at a time, 0 = any number, without slots */
	bool ring_given;           /* the user said how many */
	bool reshard_root;         /* the root is freed after forward */
} GatherPolicy;

typedef struct GatherCounts {
	int64_t in[SEC_COUNT];
	int64_t freed;             /* gathers that are freed in their section */
} GatherCounts;

/* Moves the gathers to their points of issue and gives them slots.  Waits and reshards must stand where they stay. */
GatherCounts gathers_place(Module *m, const GatherPolicy *p, Diag *d);

#endif
