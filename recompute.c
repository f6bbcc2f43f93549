/* recompute.c: --remat=auto.
 *
 * Values of blocks that are alike are one class, and so is each large value where there are no blocks; a choice is a
 * set of classes.  What a set keeps in memory and what its recomputation takes follow from the module in front of pass
 * remat, without a plan: backward reads what is not recomputed, and so do the ops that compute again.  From the empty
 * set on, the step with most bytes for a second is taken: a class, those that share its memory and, as far as that is
 * better, those that it is computed from.  The sets on this path are planned, by bisection, until the first that keeps
 * to the limit is found.  What it has and the set in front of it has not is left to as few blocks as the limit takes;
 * then classes that take time and are not needed for that are taken out again.  So every number of bytes that is
 * compared with the limit is that of a plan.  (Greedy rematerialisation by bytes for time: as XLA's; optimal sets, as
 * by Checkmate's programs or the minimal cut of PyTorch's partitioner, would need bytes at the peak to be sums, which
 * they are not.)
 * All is counted in steps and not in time, so that the choice is the same everywhere: with --wrap=auto seconds are
 * those of its machine, otherwise of rates that every processor of the target has. */
#include "recompute.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "passes/changes.h"
#include "passes/remat/remat.h"
#include "predict/cost.h"

enum {
	DEPTH = 4,   /* ops up to which a step looks for what its values are computed from */
	OTHERS = 8,  /* sets in front of the last that are planned if that is above the limit */
	RULE_SHOWN = 120, /* bytes of a rule in a message */
	TAKEN_OUT = 8  /* plans for classes that may be left out again */
};

/* What processors reach at least, where no machine is given: for comparing products with copies. */
static const struct Rates { double flops, bytes; } rates[] = {
	[TARGET_CPU] = {1e11, 2e10}, [TARGET_CUDA] = {4e14, 2e12},
};

typedef struct Figures { double seconds; int64_t bytes; } Figures; /* of computing again; kept of blocks */
typedef struct Set {
	bool *has;               /* by class: the blocks whose turn is before `blocks` recompute it, */
	const bool *rest;        /* and the other blocks these classes only; NULL: the same */
	int blocks;
	Figures of;
	LayoutMemory memory; bool planned;
} Set;

struct Recompute {
	Arena *a;
	Module *m;
	Options plain;           /* those of the plans, with the limit that is asked about */
	const Options *o;        /* the same */
	Sync sync;
	const Machine *machine;
	Restart start;           /* in front of pass remat */
	Remat *r;
	RematClasses classes;
	int *class_of;           /* by Value.id; -1: of none */
	int *turn;               /* by block: when it begins to recompute what some blocks do */
	double *seconds;         /* by Op.order, of the forward */
	double computing;        /* seconds of forward and backward */
	int *seen, round;        /* by Value.id: the round of kept_bytes in which it was counted */
	VEC(Set) path;
	Map *memory;             /* policy -> LayoutMemory of its plan */
	int64_t least_over;      /* bytes that the smallest set keeps whose plan was above the limit */
	Diag *d;
};
typedef Recompute Search;

/* ---- without a plan ---- */

/* again: where backward computes it. */
static double seconds_of(const Search *s, const Op *op, bool again)
{
	LayoutRank who = memory_rank(s->o);
	Work w = cost_of(op, &who);
	w.again = w.again || again;
	int64_t of_host = ceil_div(who.world, MAX(s->o->sharding.hosts, 1));
	if (s->machine) {
		MachineLayout rows = machine_rows(s->machine, machine_layout(s->machine, of_host, s->o->what.threads));
		return cost_seconds(s->machine, op, &w, rows, s->o->precision.matmul_precision == MATMUL_TF32).seconds;
	}
	const struct Rates *x = &rates[s->o->target.target];
	return MAX(w.flops / x->flops, w.bytes / x->bytes);
}

static bool is_again(const Search *s, const Op *op)
{
	for (int i = 0; i < op->n_out; i++)
		if (s->r->wanted[op->out[i]->id])
			return true;
	return false;
}

/* The bytes of a block's value that are kept for v, unless they were counted. */
static int64_t kept_for(Search *s, Value *v)
{
	if (!v || v->op->section != SEC_FORWARD || remat_is_recomputed(s->r, v))
		return 0;
	Value *root = value_root(v);
	bool inside = s->r->blocks->of_value[root->id] >= 0 || !s->r->blocks->n;
	bool counts = inside && s->seen[root->id] != s->round
		&& !s->r->fixed[root->id] && root->type.kind == TYPE_TENSOR;
	s->seen[root->id] = s->round;
	return counts ? type_bytes(&root->type) : 0;
}

static int64_t kept_for_operands(Search *s, const Op *op)
{
	int64_t bytes = 0;
	for (int i = 0; i < op->n_in; i++)
		bytes += kept_for(s, op_in(op, i));
	return bytes;
}

/* Whether the set is of some blocks alone as far as class k goes. */
static bool is_partial(const Set *x, int k)
{
	return x->has[k] && x->rest && !x->rest[k];
}

/* Whether the set has this value of class k. */
static bool has_value(const Search *s, const Set *x, int k, const Value *v)
{
	return x->has[k] && (!is_partial(x, k) || s->turn[s->r->blocks->of_value[v->id]] < x->blocks);
}

static Figures figures(Search *s, const Set *x)
{
	Figures f = {0};
	for (int k = 0; k < s->classes.n; k++)
		for (int i = 0; i < s->classes.at[k].n; i++) {
			const Value *v = s->classes.at[k].value[i];
			s->r->chosen[v->id] = has_value(s, x, k, v);
		}
	remat_find_wanted(s->r);
	s->round++;
	IR_FOR_OPS(s->r->m, SEC_BACKWARD, op)
		f.bytes += kept_for_operands(s, op);
	IR_FOR_OPS(s->r->m, SEC_FORWARD, op)
		if (is_again(s, op)) {
			f.seconds += s->seconds[op->order];
			f.bytes += kept_for_operands(s, op);
		}
	return f;
}

/* Adds to `has` the classes that share memory with those of it. */
static void add_sharers(const Search *s, bool *has)
{
	bool *shared = NEW_N(s->a, bool, s->r->m->n_values);
	for (int k = 0; k < s->classes.n; k++)
		for (int i = 0; i < s->classes.at[k].n && has[k]; i++)
			shared[value_root(s->classes.at[k].value[i])->id] = true;
	for (int k = 0; k < s->classes.n; k++)
		for (int i = 0; i < s->classes.at[k].n && !has[k]; i++)
			has[k] = shared[value_root(s->classes.at[k].value[i])->id];
}

/* Adds to `has` the classes from which those that `base` lacks are computed; false: there are no more. */
static bool add_operands(const Search *s, const bool *base, bool *has)
{
	bool *more = NEW_N(s->a, bool, s->classes.n), any = false;
	for (int k = 0; k < s->classes.n; k++)
		for (int i = 0; i < s->classes.at[k].n && has[k] && !base[k]; i++) {
			const Op *op = s->classes.at[k].value[i]->op;
			for (int j = 0; j < op->n_in; j++) {
				int c = op_in(op, j) ? s->class_of[op_in(op, j)->id] : -1;
				if (c >= 0 && !has[c])
					more[c] = any = true;
			}
		}
	for (int k = 0; k < s->classes.n; k++)
		has[k] = has[k] || more[k];
	return any;
}

static Set set_copy(const Search *s, const Set *x)
{
	Set copy = {.has = NEW_N(s->a, bool, s->classes.n), .rest = x->rest, .blocks = x->blocks, .of = x->of};
	memcpy(copy.has, x->has, sizeof(bool) * (size_t)s->classes.n);
	return copy;
}

/* Bytes for a second; what takes no time is as good as what takes a nanosecond. */
static double worth(const Set *from, const Set *to)
{
	return (double)(from->of.bytes - to->of.bytes) / (MAX(to->of.seconds - from->of.seconds, 0) + 1e-9);
}

/* The best step from a set; false: no step keeps less. */
static bool best_step(Search *s, const Set *from, Set *best)
{
	double most = 0;
	for (int k = 0; k < s->classes.n; k++) {
		if (from->has[k])
			continue;
		Set to = set_copy(s, from);
		to.has[k] = true;
		add_sharers(s, to.has);
		for (int depth = 0; depth <= DEPTH; depth++) {
			to.of = figures(s, &to);
			if (worth(from, &to) > most) {
				most = worth(from, &to);
				*best = set_copy(s, &to);
			}
			if (!add_operands(s, from->has, to.has))
				break;
		}
	}
	return most > 0;
}

/* From the empty set to the one of all classes, if that keeps less than any before it. */
static void find_path(Search *s)
{
	Set now = {.has = NEW_N(s->a, bool, s->classes.n)}, next;
	now.of = figures(s, &now);
	vec_push(s->a, &s->path, now);
	while (best_step(s, &now, &next)) {
		vec_push(s->a, &s->path, next);
		now = next;
	}
	Set all = set_copy(s, &now);
	memset(all.has, true, sizeof(bool) * (size_t)s->classes.n);
	all.of = figures(s, &all);
	if (all.of.bytes < now.of.bytes)
		vec_push(s->a, &s->path, all);
}

/* ---- with a plan ---- */

static const char *rule_of(const Search *s, const Set *x, int k)
{
	const char *partial = is_partial(x, k) ? remat_class_rule(s->r, &s->classes.at[k], s->turn, x->blocks) : NULL;
	return partial ? partial : s->classes.at[k].rule;
}

/* The policy of a set: the classes of it of which backward needs anything. */
static const char *policy_of(Search *s, const Set *x)
{
	Buf b = {0};
	figures(s, x);
	for (int k = 0; k < s->classes.n; k++) {
		bool any = false;
		for (int i = 0; i < s->classes.at[k].n && x->has[k]; i++)
			any = any || s->r->wanted[s->classes.at[k].value[i]->id];
		if (any)
			buf_printf(&b, "%s\n  %s", b.at ? "," : "{\"recompute\": [", rule_of(s, x, k));
	}
	if (b.at)
		buf_printf(&b, "\n]}\n");
	const char *text = b.at ? arena_strdup(s->a, b.at) : "none";
	buf_free(&b);
	return text;
}

static LayoutMemory memory_of(const Search *s, const char *policy)
{
	Options o = *s->o;
	Variants v;
	o.memory.remat = policy;
	bool ok = change_plan(&s->start, &o, s->sync, &v);
	LayoutMemory memory = ok ? pipeline_memory(&v, &o) : (LayoutMemory){.total = INT64_MAX};
	pipeline_free(&v);
	return memory;
}

static int64_t plan(Search *s, Set *x)
{
	const char *policy = x->planned ? NULL : policy_of(s, x);
	LayoutMemory *known = policy ? map_get(s->memory, policy) : NULL;
	if (policy && !known) {
		known = NEW(s->a, LayoutMemory);
		*known = memory_of(s, policy);
		map_put(s->memory, policy, known);
	}
	x->memory = x->planned ? x->memory : *known;
	x->planned = true;
	if (x->memory.total > s->o->memory.memory_limit)
		s->least_over = MIN(s->least_over, x->of.bytes);
	return x->memory.total;
}

/* Whether the plan is within the limits. */
static bool keeps(Search *s, Set *x)
{
	const MemoryOptions *o = &s->o->memory;
	return plan(s, x) <= o->memory_limit && (!o->host_limit || x->memory.host.total <= o->host_limit);
}

static bool fits(Search *s, int k)
{
	return keeps(s, &s->path.at[k]);
}

/* The set between two of the path to plan next: the first that would keep to the limit if plans differed by what blocks
 * keep and, every third time, the one in the middle. */
static int next_set(const Search *s, int low, int high, int tried)
{
	const Set *known = &s->path.at[high];
	int64_t room = s->o->memory.memory_limit - known->memory.total + known->of.bytes;
	int next = low + (high - low) / 2;
	if (tried % 3 == 2)
		return next;
	for (next = low + 1; next < high - 1 && s->path.at[next].of.bytes > room; next++)
		;
	return next;
}

/* The first set of the path that keeps to the limit, if bytes fall along it; -1: none was found. */
static int first_fitting(Search *s)
{
	int high = s->path.n - 1, low = -1, least = MAX(high - OTHERS, 0);
	while (high > least && !fits(s, high))
		high--;
	if (!fits(s, high))
		return fits(s, 0) ? 0 : -1;
	for (int tried = 0; high - low > 1; tried++) {
		int next = next_set(s, low, high, tried);
		*(fits(s, next) ? &high : &low) = next;
	}
	return high;
}

/* Where between two numbers of blocks the limit is met, if memory falls along a line; at first, and where it does not,
 * in the middle. */
static int next_blocks(const Search *s, int low, int high, int64_t above, int64_t below, int tried)
{
	double over = (double)above - (double)s->o->memory.memory_limit, step = (double)above - (double)below;
	int guess = tried % 2 == 0 && step > 0 ? low + (int)ceil(over / step * (high - low)) : low + (high - low) / 2;
	return MIN(MAX(guess, low + 1), high - 1);
}

/* The number with the binary digits of i in reverse, as many as numbers below n have.  As i counts up to the power of
 * two from n on, it takes each number once, and two that follow each other lie far apart. */
static int mirrored(int i, int n)
{
	int out = 0;
	for (int bit = 1; bit < n; bit *= 2, i /= 2)
		out = 2 * out + i % 2;
	return out;
}

/* Values of the first blocks live longest, so these are the first to recompute.  Those whose values --offload-acts puts
 * on the host have nothing to free but time to copy, and are the last; of these the next is far from the one before,
 * so that what is still copied lies evenly among what is not. */
static void find_turns(Search *s)
{
	int n = s->r->blocks->n, next = 0;
	s->turn = NEW_N(s->a, int, n);
	for (int i = 0; i < n; i++)
		if (!offload_has_block(s->o, i, n))
			s->turn[i] = next++;
	for (int i = 0; next < n; i++) {
		int block = mirrored(i, n);
		if (block < n && offload_has_block(s->o, block, n))
			s->turn[block] = next++;
	}
}

/* A set of the path that keeps to the limit, in as few blocks as that takes, the others as in the set before it. */
static Set in_few_blocks(Search *s, int at)
{
	Set found = s->path.at[at];
	int64_t above = plan(s, &s->path.at[at - 1]), below = plan(s, &found);
	for (int low = 0, high = s->r->blocks->n, tried = 0; high - low > 1; tried++) {
		Set x = set_copy(s, &s->path.at[at]);
		x.rest = s->path.at[at - 1].has;
		x.blocks = next_blocks(s, low, high, above, below, tried);
		x.of = figures(s, &x);
		bool is = keeps(s, &x);
		found = is ? x : found;
		*(is ? &below : &above) = x.memory.total;
		*(is ? &high : &low) = x.blocks;
	}
	return found;
}

/* The set without the classes that change nothing by themselves; bytes of its plan may differ. */
static Set without_unused(Search *s, const Set *found)
{
	Set now = set_copy(s, found);
	for (int k = 0; k < s->classes.n; k++) {
		if (!now.has[k])
			continue;
		now.has[k] = false;
		Figures f = figures(s, &now);
		now.has[k] = f.bytes > found->of.bytes || f.seconds > found->of.seconds;
	}
	now.of = figures(s, &now);
	return now;
}

/* Takes classes out again, those that take most time first, as long as the plan keeps to the limit.  A set that keeps
 * no less than one whose plan is above it is not planned. */
static Set without_idle(Search *s, const Set *found)
{
	Set now = without_unused(s, found);
	if (!keeps(s, &now))
		now = *found;
	bool *tried = NEW_N(s->a, bool, s->classes.n);
	for (int n = 0; n < TAKEN_OUT; n++) {
		int best = -1;
		Set without = {0};
		for (int k = 0; k < s->classes.n; k++) {
			Set x = set_copy(s, &now);
			x.has[k] = false;
			x.of = figures(s, &x);
			bool may = now.has[k] && !tried[k] && x.of.bytes < s->least_over;
			if (may && x.of.seconds < (best < 0 ? now.of.seconds : without.of.seconds)) {
				best = k;
				without = x;
			}
		}
		if (best < 0)
			break;
		tried[best] = true;
		if (keeps(s, &without))
			now = without;
	}
	return now;
}

/* ---- what is said ---- */

static double percent(const Search *s, double seconds)
{
	return s->computing > 0 ? 100 * seconds / s->computing : 0;
}

static const char *times(const Search *s)
{
	const struct Rates *x = &rates[s->o->target.target];
	return s->machine ? arena_printf(s->a, "on %s", s->machine->name)
		: arena_printf(s->a, "at %g flop/s and %g bytes/s", x->flops, x->bytes);
}

static void say_class(Search *s, const Set *x, int k)
{
	const RematClass *c = &s->classes.at[k];
	Set without = set_copy(s, x);
	without.has[k] = false;
	Figures f = figures(s, &without);
	int64_t bytes = f.bytes - x->of.bytes;
	const char *rule = rule_of(s, x, k), *cut = strlen(rule) > RULE_SHOWN ? ".." : "";
	int n = 0;
	for (int i = 0; i < c->n; i++)
		n += has_value(s, x, k, c->value[i]);
	diag_note(s->d, "--remat", "recomputes %.*s%s, %s as %s: keeps %s less, takes %.2f %% more",
		RULE_SHOWN, rule, cut, str_count(s->a, n, "value"), type_str(s->a, &c->value[0]->type),
		plan_human(s->a, MAX(bytes, 0)), percent(s, x->of.seconds - f.seconds));
}

/* next: on the path, of the step that would be taken if the limit were lower. */
static void say(Search *s, Set *x, int next_at)
{
	int64_t limit = s->o->memory.memory_limit, before = plan(s, &s->path.at[0]), total = plan(s, x);
	diag_note(s->d, "--remat", "the plan needs %" PRId64 " bytes, the limit is %" PRId64 ", and without recomputing it "
		"would be %" PRId64 "; forward and backward compute %.2f %% longer (%s)", total, limit, before,
		percent(s, x->of.seconds), times(s));
	for (int k = 0; k < s->classes.n; k++)
		if (x->has[k])
			say_class(s, x, k);
	if (next_at == s->path.n) {
		diag_note(s->d, "--remat", "there is nothing more whose recomputation frees memory");
		return;
	}
	Set next = set_copy(s, x);
	next.rest = NULL;
	for (int k = 0; k < s->classes.n; k++)
		next.has[k] = next.has[k] || s->path.at[next_at].has[k];
	next.of = figures(s, &next);
	diag_note(s->d, "--remat", "the next step would change the plan to %" PRId64 " bytes, and take %.2f %% more",
		plan(s, &next), percent(s, next.of.seconds - x->of.seconds));
}

/* Of the plans that were made, the least that a rank pins of memory of its host. */
static int64_t least_pinned(const Search *s)
{
	int64_t least = INT64_MAX;
	for (int k = 0; k < s->path.n; k++)
		if (s->path.at[k].planned)
			least = MIN(least, s->path.at[k].memory.host.total);
	return least;
}

static void refuse(Search *s)
{
	const Set *least = &s->path.at[0];
	for (int k = 1; k < s->path.n; k++)
		if (s->path.at[k].planned && s->path.at[k].memory.total < least->memory.total)
			least = &s->path.at[k];
	const LayoutMemory *m = &least->memory;
	if (m->total == INT64_MAX)
		diag_error(s->d, "--remat", "auto found no plan: leave it out to see why");
	else if (m->total <= s->o->memory.memory_limit)
		diag_error(s->d, "--host-limit", "the limit is %" PRId64 " bytes, and %s a rank pins at least %" PRId64 " of "
			"memory of its host", s->o->memory.host_limit, s->path.n > 1 ? "with recomputing"
			: "nothing can be recomputed for it:", least_pinned(s));
	else
		diag_error(s->d, "--memory-limit", "the limit is %" PRId64 " bytes, and %s the plan needs at least %" PRId64
			" at %" PRId64 " rank(s): parameters %" PRId64 ", states %" PRId64 ", gradients %" PRId64
			", gathered %" PRId64 ", activations %" PRId64 ", workspace %" PRId64 " (a smaller batch, more ranks or "
			"--offload=optim take less; shardc plan lists options)", s->o->memory.memory_limit,
			s->path.n > 1 ? "with recomputing" : "nothing can be recomputed for it:", m->total,
			MAX(s->o->sharding.world, 1), m->params, m->states, m->grads, m->gathered, m->activations, m->workspace);
}

/* ---- the search ---- */

static void measure_ops(Search *s)
{
	Module *m = s->r->m;
	int n = 0;
	ir_number(m);
	IR_FOR_OPS(m, SEC_FORWARD, op)
		n = MAX(n, (int)op->order + 1);
	s->seconds = NEW_N(s->a, double, n);
	IR_FOR_OPS(m, SEC_FORWARD, op) {
		s->computing += seconds_of(s, op, false);
		s->seconds[op->order] = seconds_of(s, op, true);
	}
	IR_FOR_OPS(m, SEC_BACKWARD, op)
		s->computing += seconds_of(s, op, false);
}

static void begin(Search *s, Module *m)
{
	s->r = remat_begin(m, s->a);
	s->classes = remat_classes(s->r);
	find_turns(s);
	s->seen = NEW_N(s->a, int, m->n_values);
	s->memory = map_new(s->a);
	s->class_of = NEW_N(s->a, int, m->n_values);
	for (int i = 0; i < m->n_values; i++)
		s->class_of[i] = -1;
	for (int k = 0; k < s->classes.n; k++)
		for (int i = 0; i < s->classes.at[k].n; i++)
			s->class_of[s->classes.at[k].value[i]->id] = k;
	measure_ops(s);
	find_path(s);
}

static const char *search(Search *s, bool may_each)
{
	int at = first_fitting(s);
	if (at < 0 && may_each && s->sync == SYNC_LAST) {
		s->sync = SYNC_EVERY;
		s->memory = map_new(s->a);
		for (int k = 0; k < s->path.n; k++)
			s->path.at[k].planned = false;
		at = first_fitting(s);
	}
	if (at < 0) {
		refuse(s);
		return NULL;
	}
	if (!at) {
		diag_note(s->d, "--remat", "nothing needs to be recomputed: the plan needs %" PRId64 " bytes, the limit is %"
			PRId64, plan(s, &s->path.at[0]), s->o->memory.memory_limit);
		return "none";
	}
	Set few = in_few_blocks(s, at), found = without_idle(s, &few);
	if (!s->d->silent)
		say(s, &found, few.rest ? at : at + 1);
	return policy_of(s, &found);
}

/* The passes from remat on. */
static const char *passes_behind(Arena *a)
{
	const char *names = "remat";
	for (int i = pass_index("remat") + 1; i < pass_count; i++)
		names = arena_printf(a, "%s,%s", names, pass_info[i].name);
	return names;
}

Recompute *recompute_begin(Module *m, const Options *o, Sync sync, const Machine *machine)
{
	Arena *a = arena_new();
	Recompute *s = NEW(a, Recompute);
	Diag silent = {.silent = true};
	PipelineView view = {.stop_after = pass_info[pass_index("remat") - 1].name};
	*s = (Recompute){.a = a, .plain = *o, .sync = sync, .machine = machine, .m = m};
	s->o = &s->plain;
	s->plain.memory.remat = NULL;
	s->plain.sharding.schedule_in = NULL;
	if (pipeline_run(m, s->o, &view, NULL, &silent) && m->level == LEVEL_TRAIN) {
		s->start = (Restart){.arena = a, .at = {pipeline_copy(m), passes_behind(a)}};
		begin(s, m);
	}
	return s;
}

const char *recompute_within(Recompute *s, int64_t limit, bool may_each, Arena *a, Diag *d)
{
	if (!s->start.at.m)
		return "none"; /* the build says what is wrong with the model */
	s->plain.memory.memory_limit = limit;
	s->least_over = INT64_MAX;
	s->d = d;
	const char *policy = search(s, may_each);
	return policy ? arena_strdup(a, policy) : NULL;
}

void recompute_end(Recompute *s)
{
	if (!s)
		return;
	pipeline_forget(&s->start);
	ir_module_free(s->m);
	arena_free(s->a);
}
