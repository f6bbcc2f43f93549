/* runtime/train/idle.c: notes, on the first rank, valid flags that change nothing in this run.
 *
 * idle.def has a row for every flag, so that a new flag does not compile until its row says when it does nothing. */
#include <string.h>

#include "runtime/train/train.h"

enum {
#define IDLE(field, ...) IDLE_##field,
#define USED(field) IDLE_##field,
#include "runtime/train/idle.def"
	IDLE_ROWS
};
_Static_assert((int)IDLE_ROWS == (int)OPT_COUNT, "idle.def has not one row for each of runtime/options.def");

static bool has_hybrid(const RtModel *m)
{
	for (int u = 0; u < m->layout.n_units; u++)
		if (m->layout.unit[u].strategy == STRATEGY_HYBRID_SHARD)
			return true;
	return false;
}

static void warn(const Session *s, OptionId id, const char *why)
{
	diag_warn(s->d, s->o.program, "--%s is not used: %s", option_info[id].flag, why);
}

/* Notes that clipping was compiled in but no limit is given. */
static void note_clip(const Session *s)
{
	const Optimizer *opt = &s->p.optim;
	const RtModel *m = s->rt.model;
	const RtOptions *o = &s->o;
	if (m->clip && !(opt->clip_norm > 0) && !o->text[OPT_clip_norm])
		diag_note(s->d, o->program, "compiled with --clip, but no limit is given: gradients are not clipped by their "
			"norm (--clip-norm X)");
	if (m->clip_value && !(opt->clip_value > 0) && !o->text[OPT_clip_value])
		diag_note(s->d, o->program, "compiled with --clip=value, but no limit is given: gradients are not clipped by "
			"value (--clip-value X)");
}

void idle_warn(const Session *s, bool trains)
{
	const RtOptions *o = &s->o;
	const RtModel *m = s->rt.model;
	int64_t world = session_world(s);
	if (!session_is_first(s))
		return;
#define IDLE(field, idle, why) \
	if (o->given[OPT_##field] && (idle)) \
		warn(s, OPT_##field, why);
#include "runtime/train/idle.def"
	if (trains)
		note_clip(s);
}
