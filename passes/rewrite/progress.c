/* passes/rewrite/progress.c: bounds the number of rewrites, and checks on request that each makes progress.
 *
 * The bound is far above what models need (at most 3 applications for each op, in all models of the tests) and low
 * enough that a runaway ends within seconds and with memory in proportion to the module.  The measure costs time in
 * proportion to ops times depth, so in large modules it is taken only after every n-th application.  It must have
 * fallen all the same; if it has not, the last n rules are reported. */
#include "passes/rewrite/progress.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "passes/rewrite/measure.h"

enum { STEPS_MIN = 2000, STEPS_PER_OP = 20, RECENT = 64, CHECKED_OPS_MAX = 20000, CHECKED_OPS_EACH = 150 };

struct Progress {
	Module *m;
	int64_t n_ops, limit, steps;
	const char *recent[RECENT]; /* the last patterns applied, as a ring by step */
	int64_t stride;             /* 0: the measure is not taken */
	Measure *before;
};

static bool is_checked(void)
{
#ifdef __SANITIZE_ADDRESS__
	static const char otherwise[] = "1";
#else
	static const char otherwise[] = "0";
#endif
	const char *wanted = getenv("SHARDC_CHECK_REWRITES");
	return !strcmp(wanted ? wanted : otherwise, "1");
}

int64_t progress_limit(int64_t n_ops)
{
	return STEPS_MIN + STEPS_PER_OP * n_ops;
}

Progress *progress_new(Module *m, Arena *a)
{
	Progress *p = NEW(a, Progress);
	p->m = m;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			p->n_ops++;
	p->limit = progress_limit(p->n_ops);
	if (is_checked() && p->n_ops <= CHECKED_OPS_MAX) {
		int64_t n = p->n_ops / CHECKED_OPS_EACH;
		p->stride = 1 + n * n;
		p->before = measure_new(m);
	}
	return p;
}

/* How often a pattern occurs among the recent ones. */
static int count_of(const Progress *p, const char *pattern)
{
	int n = 0;
	for (int i = 0; i < RECENT; i++)
		n += p->recent[i] == pattern;
	return n;
}

/* The pattern other than `other` that was applied most often recently. */
static const char *most_often(const Progress *p, const char *other)
{
	const char *most = NULL;
	for (int i = 0; i < RECENT; i++)
		if (p->recent[i] && p->recent[i] != other
				&& (!most || count_of(p, p->recent[i]) > count_of(p, most)))
			most = p->recent[i];
	return most;
}

_Noreturn static void runaway(const Progress *p, OpKind kind, const Loc *loc)
{
	const char *first = most_often(p, NULL), *second = most_often(p, first);
	ice("rewriting does not end: %" PRId64 " rules were applied to %" PRId64 " ops; at %s of %s the rule \"%s\" "
		"%s\"%s\"", p->steps, p->n_ops, op_info[kind].text, loc_where(p->m, loc), first,
		second ? "alternates with " : "repeats", second ? second : "");
}

static void check(Progress *p, const char *pattern, OpKind kind, const Loc *loc)
{
	Measure *now = measure_new(p->m);
	if (measure_compare(now, p->before) >= 0)
		ice("the measure does not fall: rule \"%s\" at %s of %s%s\n%s", pattern, op_info[kind].text,
			loc_where(p->m, loc), p->stride > 1 ? ", or a rule shortly before it" : "",
			measure_text(now, p->before, p->m->arena));
	measure_free(p->before);
	p->before = now;
}

void progress_rule(Progress *p, const char *pattern, OpKind kind, const Loc *loc)
{
	p->recent[p->steps++ % RECENT] = pattern;
	if (p->stride && p->steps % p->stride == 0)
		check(p, pattern, kind, loc);
	if (p->steps > p->limit)
		runaway(p, kind, loc);
}
