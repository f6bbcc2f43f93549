/* passes/patterns/patterns.c: recognises norms, activations, softmax, attention and rope in the elementary ops into
 * which exporters break them, so that each has one gradient rule and one kernel.
 *
 * The patterns are rows of patterns.def; this file parses their text and matches it.  A match is not taken when a
 * value that it covers is used elsewhere, too; -v says so.  The patterns run together with canon's rules, which
 * clean up behind them. */
#include "passes/patterns/patterns.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/canon/canon.h"
#include "passes/passes.h"

enum { MAX_ARGS = 4, MAX_BOUND = 16, MAX_INNER = 32 };

typedef enum PatKind { PAT_VALUE, PAT_NUMBER, PAT_BOUND_NUMBER, PAT_OP, PAT_EITHER } PatKind;

typedef struct Pat {
	PatKind kind;
	const char *bind; /* the name that is bound to a value, an op's result or a number */
	double number;
	OpKind op;
	struct Pat *arg[MAX_ARGS];
	int n_args;
} Pat;

/* ---- reading the text ---- */

typedef struct Reader { Arena *arena; const char *at, *text; } Reader;

static void skip_space(Reader *p)
{
	while (isspace((unsigned char)*p->at))
		p->at++;
}

static bool take(Reader *p, char c)
{
	skip_space(p);
	if (*p->at != c)
		return false;
	p->at++;
	return true;
}

static const char *read_name(Reader *p)
{
	const char *begin = p->at;
	while (isalnum((unsigned char)*p->at) || *p->at == '_')
		p->at++;
	return arena_strndup(p->arena, begin, (size_t)(p->at - begin));
}

static Pat *read_pat(Reader *p);

/* Reads the arguments between an opening bracket, which was read already, and `close`. */
static void read_args(Reader *p, Pat *pat, char between, char close)
{
	do {
		if (pat->n_args == MAX_ARGS)
			ice("pattern %s: too many operands", p->text);
		pat->arg[pat->n_args++] = read_pat(p);
	} while (take(p, between));
	if (!take(p, close))
		ice("pattern %s: %c missing before \"%s\"", p->text, close, p->at);
}

static Pat *read_op(Reader *p)
{
	Pat *pat = NEW(p->arena, Pat);
	const char *name = read_name(p);
	pat->kind = PAT_OP;
	if (!op_from_text(name, &pat->op) || !take(p, '('))
		ice("pattern %s: \"%s\" is not an op with operands", p->text, name);
	read_args(p, pat, ',', ')');
	return pat;
}

static Pat *read_pat(Reader *p)
{
	Pat *pat = NEW(p->arena, Pat);
	if (take(p, '[')) {
		pat->kind = PAT_EITHER;
		read_args(p, pat, '|', ']');
	} else if (take(p, '?')) {
		const char *name = read_name(p);
		if (take(p, ':'))
			pat = read_op(p);
		pat->bind = name;
	} else if (take(p, '#')) {
		pat->kind = PAT_BOUND_NUMBER;
		pat->bind = read_name(p);
	} else if (isdigit((unsigned char)*p->at)) {
		char *end;
		pat->kind = PAT_NUMBER;
		pat->number = strtod(p->at, &end);
		p->at = end;
	} else {
		pat = read_op(p);
	}
	return pat;
}

/* ---- matching ---- */

typedef struct Bound { const char *name; Value *value; double number; } Bound;

struct Match {
	Bound bound[MAX_BOUND];
	int n_bound;
	Op *inner[MAX_INNER]; /* the ops that the pattern covers, the root first */
	int n_inner;
};

/* A list of what is still to be matched. */
typedef struct Goal { const Pat *pat; Value *value; const struct Goal *next; } Goal;

static bool solve(Match *mt, const Goal *goal);

static Bound *find_bound(const Match *mt, const char *name)
{
	for (int i = 0; i < mt->n_bound; i++)
		if (!strcmp(mt->bound[i].name, name))
			return (Bound *)&mt->bound[i];
	return NULL;
}

Value *match_value(const Match *mt, const char *name)
{
	const Bound *b = find_bound(mt, name);
	if (!b || !b->value)
		ice("the pattern binds no value ?%s", name);
	return b->value;
}

double match_bound_number(const Match *mt, const char *name)
{
	const Bound *b = find_bound(mt, name);
	if (!b)
		ice("the pattern binds no number #%s", name);
	return b->number;
}

static bool bind(Match *mt, const char *name, Value *v, double number)
{
	const Bound *b = name ? find_bound(mt, name) : NULL;
	if (!name)
		return true;
	if (b)
		return v ? b->value == v : b->number == number;
	if (mt->n_bound == MAX_BOUND)
		return false;
	mt->bound[mt->n_bound++] = (Bound){name, v, number};
	return true;
}

static bool is_number(const Value *v, double want)
{
	double got;
	want = dtype_round(v->type.dtype, want);
	return match_number(v, &got) && fabs(got - want) <= 2e-6 * fabs(want);
}

static bool solve_operands(Match *mt, const Goal *goal, bool swapped)
{
	const Op *op = goal->value->op;
	Goal arg[MAX_ARGS];
	for (int i = 0; i < goal->pat->n_args; i++)
		arg[i] = (Goal){goal->pat->arg[i], op_in(op, swapped ? 1 - i : i),
			i + 1 < goal->pat->n_args ? &arg[i + 1] : goal->next};
	return solve(mt, &arg[0]);
}

static bool solve_op(Match *mt, const Goal *goal)
{
	Value *v = goal->value;
	const Pat *pat = goal->pat;
	if (!v->op || v->op->kind != pat->op || v->index || v->op->n_in != pat->n_args || mt->n_inner == MAX_INNER)
		return false;
	if (!bind(mt, pat->bind, v, 0))
		return false;
	mt->inner[mt->n_inner++] = v->op;
	return solve_operands(mt, goal, false)
		|| (op_info[pat->op].flags & COM && pat->n_args == 2 && solve_operands(mt, goal, true));
}

static bool solve_either(Match *mt, const Goal *goal)
{
	for (int i = 0; i < goal->pat->n_args; i++)
		if (solve(mt, &(Goal){goal->pat->arg[i], goal->value, goal->next}))
			return true;
	return false;
}

static bool solve_one(Match *mt, const Goal *goal)
{
	const Pat *pat = goal->pat;
	double number;
	switch (pat->kind) {
	case PAT_VALUE: return bind(mt, pat->bind, goal->value, 0) && solve(mt, goal->next);
	case PAT_NUMBER: return is_number(goal->value, pat->number) && solve(mt, goal->next);
	case PAT_BOUND_NUMBER:
		return match_number(goal->value, &number) && bind(mt, pat->bind, NULL, number) && solve(mt, goal->next);
	case PAT_OP: return solve_op(mt, goal);
	case PAT_EITHER: return solve_either(mt, goal);
	}
	return false;
}

/* Matches this goal and all after it.  The bindings of a failed attempt are undone. */
static bool solve(Match *mt, const Goal *goal)
{
	if (!goal)
		return true;
	if (!goal->value)
		return false;
	int n_bound = mt->n_bound, n_inner = mt->n_inner;
	if (solve_one(mt, goal))
		return true;
	mt->n_bound = n_bound;
	mt->n_inner = n_inner;
	return false;
}

/* ---- refusals ---- */

void pattern_refuse(Rewriter *r, Op *op, const char *what, const char *fmt, ...)
{
	va_list ap;
	if (!r->d->verbose || ptrmap_get(r->told, op))
		return;
	va_start(ap, fmt);
	diag_info(r->d, loc_where(r->m, op->loc), "%%%s is not recognised as %s: %s", op->out[0]->name, what,
		arena_vprintf(r->scratch, fmt, ap));
	va_end(ap);
	ptrmap_put(r->told, op, op);
}

static bool is_among(Op *const *ops, int n, const Op *op)
{
	for (int i = 0; i < n; i++)
		if (ops[i] == op)
			return true;
	return false;
}

bool pattern_is_closed(Rewriter *r, Op *root, const char *what, Op *const *inner, int n)
{
	for (int i = 0; i < n; i++) {
		if (inner[i] == root)
			continue;
		for (int k = 0; k < inner[i]->n_out; k++)
			for (const Use *u = inner[i]->out[k]->uses; u; u = u->next) {
				if (u->op == root || is_among(inner, n, u->op))
					continue;
				pattern_refuse(r, root, what, "%%%s is also used by %s", inner[i]->out[k]->name,
					loc_where(r->m, u->op->loc));
				return false;
			}
	}
	return true;
}

/* ---- the pass ---- */

typedef struct Row { const char *name, *text; BuildFn *build; Pat *pat; } Row;
static const Row rows[] = {
#define PATTERN(name, text, build) {#name, text, build, NULL},
#include "passes/patterns/patterns.def"
};

static Value *match_rows(Rewriter *r, Op *op)
{
	const Row *row = r->context;
	for (int i = 0; i < COUNT_OF(rows); i++) {
		Match mt = {.n_bound = 0};
		if (!solve(&mt, &(Goal){row[i].pat, op->out[0], NULL}))
			continue;
		if (!pattern_is_closed(r, op, row[i].name, mt.inner, mt.n_inner))
			continue;
		r->detail = row[i].text;
		Value *now = row[i].build(r, op, &mt);
		if (now)
			return now;
	}
	return NULL;
}

/* These rules lower WORK, too, except the one for groups of heads, which removes a broadcast and so lowers SHAPE. */
static const Rule rules[] = {
	{RULE_ANY, "the rows of patterns.def", match_rows},
	{OP_READ, "data of few bands of diagonals -> comparisons of positions", pattern_banded_data},
	{OP_MATMUL, "matmul(softmax(matmul(q, k) * scale + mask), v) -> attention", pattern_attention},
	{OP_ATTENTION, "heads of k and v copied for each query head of a group -> the heads once",
		pattern_attention_groups},
	{OP_ATTENTION, "a mask that is known to be causal, or nothing -> right=, no mask", pattern_attention_mask},
	{OP_ADD, "x * cos + concat(-x.1, x.0) * sin -> rope", pattern_rope},
	{OP_CONCAT, "concat(rope(x.0), x.1) -> rope(x) of its first dims", pattern_rope_part},
};

bool pass_patterns(Module *m, const Options *o, Diag *d)
{
	const RuleSet sets[] = {{rules, COUNT_OF(rules)}, canon_rules};
	Arena *scratch = arena_new();
	Row *compiled = NEW_N(scratch, Row, COUNT_OF(rows));
	memcpy(compiled, rows, sizeof(rows));
	for (int i = 0; i < COUNT_OF(rows); i++) {
		Reader p = {scratch, rows[i].text, rows[i].text};
		compiled[i].pat = read_pat(&p);
		if (*p.at)
			ice("pattern %s: \"%s\" is left over", rows[i].text, p.at);
	}
	/* Merges equal values first: a name that occurs twice in a pattern matches only one and the same value. */
	bool ok = pass_cse(m, o, d);
	rewrite_module(m, d, COUNT_OF(sets), sets, patterns_see_data, compiled);
	arena_free(scratch);
	name_copied_weights(m, o, d);
	/* Merges tables of angles and masks that were made once per use. */
	return ok && pass_cse(m, o, d);
}
