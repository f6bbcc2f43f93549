/* passes/check/check.c: implements --check-passes: evaluates the module before and after each pass at levels MODEL
 * and TRAIN, and reports the first pass that changes what it computes, with the rewrite rule and the op.
 *
 * The two evaluations may differ by rounding, since constants are folded in f32 and sums are reordered.  When they
 * differ, both modules are evaluated again with rounding to their dtypes, which measures how much rounding matters.
 * The comparison itself is made without rounding, so precision and legalize may move casts; for a pass that moves
 * elements it is made without dropout masks.  To find the rule of a rewriting pass, the pass is run again on the
 * text from before, with a limit on applications that is found by bisection. */
#include "passes/check/check.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/rewrite/rewrite.h"

/* Limits of one evaluation: about a second and half a gigabyte. */
static const double MAX_OPS = 4e8, MAX_ELEMENTS = 6e7;
/* ROUNDINGS: a pass may change a value by so many times the change that rounding makes.  EQUAL: a difference below
 * this, relative to the tensor, counts as none. */
static const double ROUNDINGS = 64, EQUAL = 1e-9;

struct Check {
	Arena *arena;
	CheckReport *report;
	CheckData data;
	CheckResult *last;   /* of the current module, in mode 0; NULL = not evaluated yet */
	bool skipping;
};

typedef struct Difference { const char *what, *text; } Difference;

typedef struct Run {
	Check *c;
	const PassInfo *pass;
	const Options *o;
	const char *before;  /* text of the module before the pass */
	unsigned mode;
	const char *drops;   /* "output buffer ": items with these first words may vanish; NULL = none may */
	double huge;         /* numbers of a larger magnitude are all alike */
} Run;

Check *check_new(CheckReport *report)
{
	Arena *a = arena_new();
	Check *c = NEW(a, Check);
	*c = (Check){.arena = a, .report = report, .data = {a, map_new(a)}};
	*report = (CheckReport){0};
	return c;
}

void check_free(Check *c)
{
	if (!c)
		return;
	check_result_free(c->last);
	arena_free(c->arena);
}

/* ---- comparing two evaluations ---- */

static Module *parse(const char *text, Arena *a)
{
	char *log = NULL;
	size_t n = 0;
	Diag d = {.out = open_memstream(&log, &n)};
	Module *m = ir_parse("before", text, &d);
	fclose(d.out);
	if (!m)
		ice("the text of a module cannot be read back: %s", arena_strdup(a, log));
	free(log);
	return m;
}

/* The largest change that rounding makes to an item. */
static double rounding(Run *r, Module *m, const CheckItem *item)
{
	CheckResult *rounded = check_evaluate(m, &r->c->data, r->mode | CHECK_ROUND);
	const CheckItem *other = check_find(rounded, item->what);
	CheckDistance d = {.most = INFINITY};
	if (other && other->computed)
		d = check_distance(&item->t, &other->t, INFINITY);
	check_result_free(rounded);
	return d.most;
}

/* Whether x, an item of module `of`, and y, one of module `after`, differ by no more than rounding explains. */
static bool within_rounding(Run *r, Module *of, Module *after, const CheckItem *x, const CheckItem *y, double most)
{
	return most <= ROUNDINGS * (rounding(r, of, x) + rounding(r, after, y));
}

static const char *numbers(Arena *a, const CheckItem *x, const CheckItem *y, const CheckDistance *d)
{
	return arena_printf(a, "element %" PRId64 " of %" PRId64 " is %.9g before and %.9g after it", d->at,
		type_numel(&x->t.type), check_element(&x->t, d->at), check_element(&y->t, d->at));
}

/* Whether y holds, for each row of the logits x, the class of its largest: what accuracy is counted by. */
static bool predicts(const EvalTensor *x, const EvalTensor *y)
{
	int64_t c = x->type.rank ? x->type.dim[x->type.rank - 1] : 0, rows = type_numel(&y->type);
	bool all = dtype_is_float(x->type.dtype) && y->type.dtype == DT_I64 && type_numel(&x->type) == rows * c;
	for (int64_t r = 0; r < rows && all; r++) {
		const double *row = x->f + r * c;
		double most = row[0];
		for (int64_t i = 1; i < c; i++)
			most = fmax(most, row[i]);
		all = y->i[r] >= 0 && y->i[r] < c && most - row[y->i[r]] <= EQUAL * fabs(most);
	}
	return all;
}

/* Whether y, an item of the module after the pass, still holds what x held. */
static bool is_kept(Run *r, Module *after, const CheckItem *x, const CheckItem *y, Difference *out)
{
	Arena *a = r->c->arena;
	out->what = x->what;
	if (!x->computed)
		return true; /* this data is not valid input for the program */
	if (!y->computed)
		out->text = "can no longer be computed from data that it could be computed from before";
	if (!y->computed)
		return false;
	CheckDistance d = check_distance(&x->t, &y->t, r->huge);
	if (!d.same_shape && x->op->kind == OP_REPORT_ACC && predicts(&x->t, &y->t))
		return true;
	if (!d.same_shape) {
		out->text = arena_printf(a, "is %s before and %s after it", type_str(a, &x->t.type), type_str(a, &y->t.type));
		return false;
	}
	if (d.most <= EQUAL * d.scale)
		return true;
	Module *before = parse(r->before, a);
	bool same = within_rounding(r, before, after, x, y, d.most);
	ir_module_free(before);
	out->text = numbers(a, x, y, &d);
	return same;
}

static bool may_go(const Run *r, const char *what)
{
	size_t n = strcspn(what, " ") + 1;
	for (const char *s = r->drops; s && *s; s += strcspn(s, " ") + 1)
		if (!strncmp(s, what, n))
			return true;
	return false;
}

/* Finds the first item of `before` that differs in `after`; false = there is none. */
static bool differ(Run *r, Module *m, const CheckResult *before, const CheckResult *after, Difference *out)
{
	for (int i = 0; i < before->n; i++) {
		const CheckItem *x = &before->item[i], *y = check_find(after, x->what);
		if (!y && may_go(r, x->what))
			continue;
		if (!y)
			*out = (Difference){.what = x->what, .text = "is no longer computed"};
		if (!y || !is_kept(r, m, x, y, out))
			return true;
	}
	return false;
}

/* ---- which rule ---- */

/* Runs the pass on the text from before with at most `limit` applications of rules, and compares.  *trace says what
 * was applied.  false: nothing differs. */
static bool differs_at(Run *r, int64_t limit, const CheckResult *before, RewriteTrace *trace, Difference *out)
{
	char *log = NULL;
	size_t n = 0;
	Diag d = {.out = open_memstream(&log, &n)};
	Module *m = parse(r->before, r->c->arena);
	*trace = (RewriteTrace){.limit = limit};
	m->trace = trace;
	bool ok = r->pass->run(m, r->o, &d), found = false;
	if (ok) {
		CheckResult *after = check_evaluate(m, &r->c->data, r->mode);
		found = differ(r, m, before, after, out);
		check_result_free(after);
	}
	trace->value = trace->rule ? arena_printf(r->c->arena, "%%%s", trace->value) : NULL;
	trace->loc = NULL;
	ir_module_free(m); /* which frees the names in it, too */
	fclose(d.out);
	free(log);
	return found;
}

/* Finds the first application of a rule that makes the difference; *trace->rule is NULL when none of them does. */
static void find_rule(Run *r, const CheckResult *before, RewriteTrace *trace, Difference *out)
{
	RewriteTrace t;
	Difference d = *out;
	int64_t low = 0; /* with none applied there is no difference, if the rules are to blame */
	if (!differs_at(r, INT64_MAX, before, &t, &d) || !t.n || differs_at(r, 0, before, trace, &d)) {
		*trace = (RewriteTrace){0};
		return;
	}
	int64_t high = t.n;
	while (high - low > 1) {
		int64_t middle = low + (high - low) / 2;
		if (differs_at(r, middle, before, &t, &d))
			high = middle;
		else
			low = middle;
	}
	differs_at(r, high, before, trace, out);
}

/* ---- which op ---- */

static void values_by_name(Module *m, Map *out)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			for (int i = 0; i < op->n_out; i++)
				map_put(out, op->out[i]->name, op->out[i]);
}

/* The first value that has the same name before and after but holds something else. */
static const Value *first_different(Run *r, Module *m, Module *old, const CheckResult *before, const CheckResult *after)
{
	Map *names = map_new(r->c->arena);
	values_by_name(old, names);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			for (int i = 0; i < op->n_out; i++) {
				const Value *was = map_get(names, op->out[i]->name);
				const EvalTensor *y = eval_value(after->env[s == SEC_EVAL], op->out[i]);
				const EvalTensor *x = was ? eval_value(before->env[s == SEC_EVAL], was) : NULL;
				if (!x || !y || was->op->section != op->section || !type_same_shape(&x->type, &y->type))
					continue;
				CheckDistance d = check_distance(x, y, r->huge);
				if (d.most > 1e-6 * d.scale)
					return op->out[i];
			}
	return NULL;
}

static const Value *find_op(Run *r, Module *m, const Difference *d)
{
	Module *old = parse(r->before, r->c->arena);
	CheckResult *before = check_evaluate(old, &r->c->data, r->mode);
	CheckResult *after = check_evaluate(m, &r->c->data, r->mode);
	const Value *v = first_different(r, m, old, before, after);
	const CheckItem *item = check_find(after, d->what);
	if (!v && item && item->op->n_in)
		v = op_in(item->op, 0);
	check_result_free(before);
	check_result_free(after);
	ir_module_free(old);
	return v;
}

/* ---- telling ---- */

static const char *where_of(const Module *m)
{
	return m->file ? m->file : m->name;
}

static void tell(Run *r, Module *m, const Difference *d, const RewriteTrace *t, const Value *at, Diag *diag)
{
	CheckReport *report = r->c->report;
	*report = (CheckReport){.differs = true, .checked = report->checked, .pass = r->pass->name, .rule = t->rule,
		.what = arena_strdup(m->arena, d->what)};
	report->op = t->rule ? arena_strdup(m->arena, t->value) : at ? arena_printf(m->arena, "%%%s", at->name) : NULL;
	diag_error(diag, at ? loc_where(m, at->op->loc) : where_of(m),
		"pass %s changes what the program computes: %s: %s", r->pass->name, d->what, d->text);
	if (t->rule)
		diag_note(diag, where_of(m), "by its rule \"%s\"%s%s%s, application %" PRId64 " of a rule, to what made %s",
			t->rule, t->detail ? " (" : "", t->detail ? t->detail : "", t->detail ? ")" : "", t->n, t->value);
	else if (at)
		diag_note(diag, where_of(m), "it begins at %%%s, the result of %s", at->name, op_info[at->op->kind].text);
	diag_note(diag, where_of(m), "this is an error of shardc, not of the model: --dump-ir=DIR writes the module before "
		"and after the pass");
}

/* ---- one pass ---- */

/* Sets what the pass may change by its definition. */
static void take_legal(Run *r)
{
	bool frozen = r->o->graph.bn.all == NORM_FROZEN;
	DType t = r->o->precision.param_dtype;
	r->huge = FLT_MAX; /* a larger number becomes infinite when it is folded in f32 */
	if (!strcmp(r->pass->name, "layout"))
		r->mode = CHECK_EVEN;
	if (!strcmp(r->pass->name, "loss")) /* from there on the loss replaces the outputs */
		r->drops = frozen ? "output buffer " : "output ";
	/* masks become the largest number of the dtype; units of a policy file may have f16 */
	if (!strcmp(r->pass->name, "precision") && (dtype_is_half(t) || policy_path(r->o)))
		r->huge = t == DT_F16 || policy_path(r->o) ? 6e4 : 3e38;
}

static bool affordable(Check *c, const Module *m, const PassInfo *p, Diag *d)
{
	CheckCost cost = check_cost(m);
	if (cost.ops <= MAX_OPS && cost.elements <= MAX_ELEMENTS)
		return true;
	if (!c->skipping)
		diag_warn(d, "--check-passes", "nothing is checked from pass %s on: the module has %.3g operations on "
			"%.3g elements, more than the %.3g and %.3g that it evaluates (a smaller batch or shape by --bind or "
			"--input-shape has the same ops)", p->name, cost.ops, cost.elements, MAX_OPS, MAX_ELEMENTS);
	c->skipping = true;
	return false;
}

/* Checks again with random contents of the model's constants, and reports a difference that the real contents hide. */
static void tell_dependence(Run *r, Module *m, Diag *d)
{
	Difference diff = {0};
	RewriteTrace t = {0};
	Run mine = *r;
	mine.mode |= CHECK_RANDOM;
	Module *old = parse(r->before, r->c->arena);
	CheckResult *before = check_evaluate(old, &r->c->data, mine.mode);
	CheckResult *after = check_evaluate(m, &r->c->data, mine.mode);
	if (differ(&mine, m, before, after, &diff)) {
		find_rule(&mine, before, &t, &diff);
		diag_note(d, where_of(m), "--check-passes: pass %s relies on what constants of the model hold%s%s%s",
			r->pass->name, t.rule ? ": rule \"" : "", t.rule ? t.rule : "", t.rule ? "\"" : "");
	}
	check_result_free(before);
	check_result_free(after);
	ir_module_free(old);
}

/* Checks the gradients when this pass is the first behind which there are any. */
static bool check_slope(Run *r, Module *m, Diag *d)
{
	double told = 0, found = 0;
	const Value *at = NULL;
	if (strcmp(r->pass->name, "autodiff"))
		return true;
	Module *was = parse(r->before, r->c->arena);
	const Symbol *wrong = check_gradients(was, m, &r->c->data, &told, &found, &at);
	if (wrong) {
		Difference diff = {.what = arena_printf(m->arena, "gradient of \"%s\"", wrong->name),
			.text = arena_printf(m->arena, "along a random direction the loss rises by %.9g, the gradient says %.9g",
				found, told)};
		tell(r, m, &diff, &(RewriteTrace){0}, at, d);
	}
	ir_module_free(was);
	return !wrong;
}

static bool is_same_in_eval(const Module *m)
{
	IR_FOR_OPS(m, SEC_FORWARD, op)
		if (op_draws(op) || op->kind == OP_BATCH_NORM)
			return false;
	return true;
}

/* Pass loss makes the evaluation a copy of the forward; the two must agree where nothing is random or a batch
 * statistic. */
static bool eval_differs(Run *r, Module *m, const CheckResult *after, Difference *out)
{
	const CheckItem *x = check_find(after, "loss"), *y = check_find(after, "eval: loss");
	bool asked = !strcmp(r->pass->name, "loss") && x && y && is_same_in_eval(m)
		&& r->o->graph.loss_norm != LOSS_NORM_RANK;
	if (!asked || !x->computed || !y->computed)
		return false;
	CheckDistance d = check_distance(&x->t, &y->t, r->huge);
	out->what = y->what;
	out->text = arena_printf(r->c->arena, "is %.9g, that of forward %.9g, and nothing is random in it",
		check_element(&y->t, 0), check_element(&x->t, 0));
	return d.most > EQUAL * d.scale && !within_rounding(r, m, m, x, y, d.most);
}

static bool compare(Run *r, Module *m, const CheckResult *before, Diag *d)
{
	Difference diff = {0};
	CheckResult *after = check_evaluate(m, &r->c->data, r->mode);
	bool differs = differ(r, m, before, after, &diff) || eval_differs(r, m, after, &diff), data = before->data;
	if (r->mode)
		check_result_free(after);
	else
		r->c->last = after;
	r->c->report->checked++;
	if (differs) {
		RewriteTrace t;
		find_rule(r, before, &t, &diff);
		tell(r, m, &diff, &t, find_op(r, m, &diff), d);
		return false;
	}
	if (data)
		tell_dependence(r, m, d);
	return check_slope(r, m, d);
}

bool check_run(Check *c, Module *m, const PassInfo *p, const Options *o, Diag *d)
{
	Run r = {.c = c, .pass = p, .o = o};
	if (p->to > LEVEL_TRAIN || !affordable(c, m, p, d))
		return pass_apply(p, m, o, d);
	r.before = ir_text(m, c->arena);
	take_legal(&r);
	CheckResult *before = r.mode ? NULL : c->last;
	if (!r.mode)
		c->last = NULL;
	before = before ? before : check_evaluate(m, &c->data, r.mode);
	check_result_free(c->last);
	c->last = NULL;
	/* The pass changes the module in place.  What is compared afterwards lives in the result, and its names in
	 * the text. */
	bool ok = pass_apply(p, m, o, d);
	if (ok && affordable(c, m, p, d))
		ok = compare(&r, m, before, d);
	check_result_free(before);
	return ok;
}
