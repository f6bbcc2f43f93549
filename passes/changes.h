/* passes/changes.h: plans that are made again with another option (changes.def). */
#ifndef SHARDC_CHANGES_H
#define SHARDC_CHANGES_H

#include "passes/passes.h"

typedef enum ChangeId {
#define CHANGE(id, ...) CHANGE_##id,
#include "passes/changes.def"
	CHANGES
} ChangeId;
typedef enum ChangeKind {
#define CHANGE_KIND(id, ...) CHANGE_OF_##id,
#include "passes/changes.def"
	CHANGE_KINDS
} ChangeKind;
typedef struct ChangeInfo { ChangeKind kind; const char *option, *what; } ChangeInfo;
typedef struct ChangeKindInfo { const char *key, *title; } ChangeKindInfo;
extern const ChangeInfo change_info[CHANGES];
extern const ChangeKindInfo change_kind_info[CHANGE_KINDS];

/* Makes the change in *o, and in *sync.  --strategy takes the place of what --unit-strategy and --bcast-dtype say,
 * and of --shard-size where there are no groups. */
void change_options(ChangeId id, Options *o, Sync *sync);
/* Why the change cannot be made alone; NULL: it can. */
const char *change_unfit(ChangeId id, const Options *o);
/* Plans again, from `start`, with the options as they are but for --memory-limit and --host-limit, which do not hold.
 * Says nothing; false: they are refused.  pipeline_free frees *out in any case. */
bool change_plan(const Restart *start, const Options *o, Sync sync, Variants *out);
/* The same, with messages to d. */
bool change_plan_saying(const Restart *start, const Options *o, Sync sync, Variants *out, Diag *d);

#endif
