/* predict/partly.c: `shardc plan --machine --ask`: what is said of some units only: those that stay gathered after
 * forward, those that are computed with in another dtype, and the blocks that backward recomputes. */
#include <ctype.h>
#include <string.h>

#include "predict/answers.h"

enum { UNITS_SAID = 8 }; /* beside the blocks: more make a policy that nobody reads */

/* ---- units that stay gathered ---- */

const char **gathered_again(const Module *m, int *n, Arena *a)
{
	const char **name = NEW_N(a, const char *, m->n_units);
	*n = 0;
	IR_FOR_OPS(m, SEC_BACKWARD, op)
		if (op->kind == OP_ALL_GATHER && *n < m->n_units)
			name[(*n)++] = arena_strdup(a, op->unit->name);
	return name;
}

/* Whether a rank has the memory for n of them. */
static bool keeps(Asking *s, const char *const *name, int n, Options *out)
{
	*out = *s->o;
	out->sharding.unit_strategy = (OptionList){.at = {arena_printf(s->a, "%s=shard_grad_op", pattern_of_names(name, n,
		s->a))}, .n = 1};
	const Tried *x = answers_try(s, out, s->sync);
	return x->bytes && x->bytes <= s->limit && !machine_overpins(s->of->machine, x->pinned);
}

/* As many of the last units as fit: they are kept for the shortest time. */
static void add_kept(Asking *s)
{
	static const char option[] = "--unit-strategy=REGEX=shard_grad_op";
	Options o, best = *s->o;
	int n = 0, low = 0;
	const char **name = gathered_again(s->m, &n, s->a), *why = NULL;
	if (s->o->sharding.unit_strategy.n)
		why = "--unit-strategy says it of units already";
	else if (!n)
		why = "backward gathers no unit again";
	else if (s->o->sharding.strategy != STRATEGY_FULL_SHARD)
		why = "it is asked of full_shard alone, since no strategy keeps units of hybrid_shard gathered";
	for (int high = why ? 0 : n, at = n; low < high; at = (low + high + 1) / 2)
		if (keeps(s, name, at, &o)) {
			low = at;
			best = o;
		} else {
			high = at - 1;
		}
	if (!why && !low)
		why = arena_printf(s->a, "with the last unit alone, %s, a rank needs more than %s", name[0],
			plan_human(s->a, s->limit));
	if (why)
		answers_leave_out(s, CHANGE_OF_KEPT, option, why);
	else
		answers_add(s, CHANGE_OF_KEPT, answers_option(s, "--unit-strategy", best.sharding.unit_strategy.at[0]), &best,
			s->sync);
}

/* ---- blocks ---- */

/* The expression of a block's name with `index` in place of its last number; NULL: it ends in none. */
static const char *family_of(const char *name, const char *index, Arena *a)
{
	size_t n = strlen(name);
	while (n && isdigit((unsigned char)name[n - 1]))
		n--;
	if (!name[n])
		return NULL;
	const char *front = arena_strndup(a, name, n), *exactly = pattern_of_names(&front, 1, a);
	return arena_printf(a, "%.*s%s", (int)strlen(exactly) - 1, exactly, index);
}

/* The expressions of all blocks, each once; none where a block's name ends in no number. */
typedef VEC(const char *) Texts;
static Texts families(const Blocks *b, const char *index, Arena *a)
{
	Texts out = {0};
	for (int i = 0; i < b->n; i++) {
		const char *text = b->repeated ? NULL : family_of(b->name[i], index, a);
		bool known = false;
		if (!text)
			return (Texts){0};
		for (int k = 0; k < out.n; k++)
			known = known || !strcmp(out.at[k], text);
		if (!known)
			vec_push(a, &out, text);
	}
	return out;
}

/* Every other block is recomputed: those of even numbers. */
static void add_recomputed(Asking *s, const Blocks *b)
{
	Texts even = families(b, "[0-9]*[02468]([.]|$)", s->a);
	Options changed = *s->o;
	if (!even.n || b->n < 2) {
		answers_leave_out(s, CHANGE_OF_RECOMPUTE, "--remat of some blocks", b->repeated ? "the blocks have no names"
			: "the model has no blocks of one name and different numbers");
		return;
	}
	const char *rules = "";
	for (int i = 0; i < even.n; i++)
		rules = arena_printf(s->a, "%s%s{\"scope\": \"%s\"}", rules, i ? ", " : "",
			str_escape(s->a, ESCAPE_JSON, even.at[i]));
	changed.memory.remat = arena_printf(s->a, "{\"recompute\": [%s]}", rules);
	changed.given.remat = true;
	answers_add(s, CHANGE_OF_RECOMPUTE, answers_option(s, "--remat", changed.memory.remat), &changed, s->sync);
}

/* ---- precision of units ---- */

static bool is_block(const Blocks *b, const char *name)
{
	bool is = false;
	for (int i = 0; i < b->n && !is; i++)
		is = !strcmp(b->name[i], name);
	return is;
}

/* The units that are no blocks; *all: whether each block is a unit. */
static int units_beside(const Asking *s, const Blocks *b, const Unit *out[UNITS_SAID], bool *all)
{
	int n = 0, blocks = 0;
	for (int i = 0; i < s->m->n_units; i++) {
		const Unit *u = s->m->units[i];
		if (is_block(b, u->name))
			blocks++;
		else if (n++ < UNITS_SAID)
			out[n - 1] = u;
	}
	*all = blocks == b->n;
	return n;
}

static const char *member(const Asking *s, const Unit *u, const char *dtype)
{
	const char *text = arena_printf(s->a, "{\"name\": \"%s\"", str_escape(s->a, ESCAPE_JSON, u->name));
	for (int i = 0; i < u->n_params && strcmp(u->name, "root"); i++) {
		const char *name = u->params[i]->name;
		text = arena_printf(s->a, "%s%s\"%s\"%s", text, i ? ", " : ", \"params\": [",
			str_escape(s->a, ESCAPE_JSON, pattern_of_names(&name, 1, s->a)), i + 1 == u->n_params ? "]" : "");
	}
	return arena_printf(s->a, "%s%s}", text, dtype ? arena_printf(s->a, ", \"param_dtype\": \"%s\"", dtype) : "");
}

/* The policy that makes the units of the plan, in which `of` has this dtype, or each block if `of` is NULL. */
static const char *policy_of(const Asking *s, const Texts *blocks, const Unit *const *beside, int n, const Unit *of,
	const char *dtype)
{
	const char *text = "";
	for (int i = 0; i < blocks->n; i++)
		text = arena_printf(s->a, "%s%s{\"scope\": \"^%s$\"%s}", text, i ? ", " : "",
			str_escape(s->a, ESCAPE_JSON, blocks->at[i] + 1), of || !dtype ? "" : arena_printf(s->a,
			", \"param_dtype\": \"%s\"", dtype));
	for (int i = 0; i < n; i++)
		if (beside[i] == of || strcmp(beside[i]->name, "root"))
			text = arena_printf(s->a, "%s%s%s", text, *text ? ", " : "", member(s, beside[i], beside[i] == of ? dtype
				: NULL));
	return arena_printf(s->a, "file:{\"units\": [%s]}", text);
}

/* Whether the policy makes the units that the plan has. */
static bool makes_units(const Asking *s, const Options *o)
{
	Variants v;
	bool same = change_plan(s->of->start, o, s->sync, &v);
	const Module *m = v.of[VARIANT_ONLY];
	same = same && m->n_units == s->m->n_units;
	for (int i = 0; same && i < m->n_units; i++)
		same = !strcmp(m->units[i]->name, s->m->units[i]->name) && m->units[i]->n_params == s->m->units[i]->n_params;
	pipeline_free(&v);
	return same;
}

static void add_policy(Asking *s, const char *policy)
{
	Options changed = *s->o;
	changed.sharding.wrap = (OptionList){.at = {policy}, .n = 1};
	answers_add(s, CHANGE_OF_PRECISION, answers_option(s, "--wrap", policy), &changed, s->sync);
}

static bool has_norms(const Module *m)
{
	bool any = false;
	IR_FOR_OPS(m, SEC_FORWARD, op)
		any = any || op->kind == OP_LAYER_NORM || op->kind == OP_RMS_NORM;
	return any;
}

/* In a program of 16 bits each unit beside the blocks in f32; in one of f32 the blocks in bf16. */
static void add_dtypes(Asking *s, const Blocks *b)
{
	static const char option[] = "--wrap=file:POLICY.json with param_dtype of a unit";
	const Unit *beside[UNITS_SAID];
	bool all, halves = s->o->precision.param_dtype != DT_F32;
	int n = units_beside(s, b, beside, &all);
	Texts blocks = families(b, "[0-9]+", s->a);
	const char *why = s->m->n_units < 2 ? "there is one unit, of which --param-dtype says it"
		: change_unfit(CHANGE_WRAP_EACH, s->o) ? "the units are those of a policy file: say it there" : NULL;
	if (!why && (!all || !blocks.n || n > UNITS_SAID))
		why = "the units are not the blocks and a few others: --policy-out=FILE writes them, and param_dtype of a unit "
			"may be added there";
	Options plain = *s->o;
	if (!why) {
		plain.sharding.wrap = (OptionList){.at = {policy_of(s, &blocks, beside, n, NULL, NULL)}, .n = 1};
		why = makes_units(s, &plain) ? NULL : "no short policy makes these units: --policy-out=FILE writes them, and "
			"param_dtype of a unit may be added there";
	}
	if (why)
		answers_leave_out(s, CHANGE_OF_PRECISION, option, why);
	if (halves && has_norms(s->m))
		answers_leave_out(s, CHANGE_OF_PRECISION, "norms in f32",
			"they compute in f32 in any program (docs/precision.md)");
	for (int i = 0; !why && halves && i < n; i++)
		add_policy(s, policy_of(s, &blocks, beside, n, beside[i], "f32"));
	if (!why && !halves)
		add_policy(s, policy_of(s, &blocks, beside, n, NULL, "bf16"));
}

void partly_find(Asking *s)
{
	Blocks *b = blocks_find(s->m, s->a);
	add_kept(s);
	add_recomputed(s, b);
	add_dtypes(s, b);
}
