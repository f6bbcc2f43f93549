/* passes/schedule/file.h: declarations that file.c and edit.c share.  Private to these two. */
#ifndef SHARDC_SCHEDULE_FILE_H
#define SHARDC_SCHEDULE_FILE_H

#include "passes/passes.h"

/* A point in front of the n-th counted op of the section; n = the number of counted ops: behind the last; -1 =
 * none. */
typedef struct SchedulePoint { SectionKind section; int64_t n; } SchedulePoint;
enum { AT_ISSUE, AT_WAIT, AT_RELEASE, AT_COUNT };

typedef struct ScheduleEntry {
	Op *issue, *wait, *release; /* NULL = it has none */
	SchedulePoint point[AT_COUNT];
	/* Fields of an edited file. */
	int line;                   /* 0 = not found yet */
	int64_t number;
	SchedulePoint to[AT_COUNT];
	int64_t slot;
} ScheduleEntry;

/* The collectives of one program, in order. */
typedef struct Schedule {
	ScheduleEntry *at;
	int n, cap;
	int64_t n_counted[SEC_COUNT];
} Schedule;

bool schedule_counts(const Op *op);
/* Lists the collectives.  op->order becomes the point in front of which an op stands, and for counted ops their
 * number. */
Schedule *schedule_list(Module *m, bool eval, Arena *a);
const char *schedule_unit(Arena *a, const Op *op); /* the unit as the file writes it; "-" = none */

#endif
