/* passes/changes.h: plans that are made again with another option (changes.def). */
#ifndef SHARDC_CHANGES_H
#define SHARDC_CHANGES_H

#include "passes/passes.h"

typedef enum ChangeId {
#define CHANGE(id, ...) CHANGE_##id,
#include "passes/changes.def"
	CHANGES
} ChangeId;
typedef struct ChangeInfo { const char *option, *what; } ChangeInfo;
extern const ChangeInfo change_info[CHANGES];

/* Makes the change in *o, and in *sync.  --strategy takes the place of what --unit-strategy and --bcast-dtype say,
 * and of --shard-size where there are no groups. */
void change_options(ChangeId id, Options *o, Sync *sync);
/* Whether the change is of one option alone: with a policy file go the other options that it says. */
bool change_applies(ChangeId id, const Options *o);
/* Plans again, from `start`, with the options as they are but for --memory-limit, which does not hold.  Says nothing;
 * false: they are refused.  pipeline_free frees *out in any case. */
bool change_plan(const Restart *start, const Options *o, Sync sync, Variants *out);

#endif
