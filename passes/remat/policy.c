/* passes/remat/policy.c: reads what backward recomputes from JSON (docs/training.md).
 *
 * {"recompute": [RULE, ..], "keep": [RULE, ..]}: a rule is an object of at least one of "node" and "scope", regular
 * expressions of the ONNX node and the module scope of the op that makes a value, and "op", a kind of op, which may
 * stand inside a loop.  All of a rule's members must match.  Values that match a rule of "recompute" and none of "keep"
 * are chosen, inside and outside of blocks.
 *
 * Refuses, all at once, members that are unknown or of another type, wrong expressions, and rules that choose or keep
 * nothing: such a rule is a mistake, or one of another model. */
#include "passes/remat/remat.h"

#include <string.h>

#include "base/json.h"
#include "base/near.h"

typedef struct Rule {
	const char *at;              /* "remat.json: $.recompute[0]" */
	const char *text[2];         /* of the expressions of node and scope; NULL: any */
	regex_t re[2];
	OpKind op; bool has_op;
	bool usable;                 /* no problem of the rule itself was found */
	bool is;                     /* it matches the op that is looked at */
	int matches, inner, counts;  /* values; those that may be recomputed; those for which the rule decides */
	const struct Rule *rival;    /* a rule of "keep" that took one of its values */
} Rule;
typedef VEC(Rule *) RuleVec;

typedef struct Reader {
	Remat *r;
	const char *where;
	RuleVec recompute, keep;
	Diag *d;
} Reader;

static const char *const expressions[] = {"node", "scope"};

static const char *at_member(const Reader *p, const char *at, const char *key)
{
	return arena_printf(p->r->a, "%s.%s", at, str_escape(p->r->a, ESCAPE_JSON, key));
}

/* ---- reading ---- */

static bool unknown_member(const Reader *p, const char *at, const char *key, const char *known)
{
	diag_error(p->d, at_member(p, at, key), "unknown member; known are %s%s", known,
		near_choice(p->r->a, "--remat", key, known));
	return false;
}

static bool read_op(const Reader *p, Rule *rule, const char *at, const char *text)
{
	const char *kinds[OP_COUNT];
	for (int k = 0; k < OP_COUNT; k++) {
		kinds[k] = op_info[k].text;
		if (!strcmp(text, kinds[k])) {
			rule->op = (OpKind)k;
			return rule->has_op = true;
		}
	}
	diag_error(p->d, at, "there is no op \"%s\"%s (see shardc --list-ops)", text,
		near_hint(p->r->a, "--remat", text, kinds, OP_COUNT));
	return false;
}

static bool read_expression(const Reader *p, Rule *rule, int k, const char *at, const char *text)
{
	if (!pattern_compile(&rule->re[k], text, at, p->d))
		return false;
	rule->text[k] = text;
	return true;
}

static bool read_member(const Reader *p, Rule *rule, const char *key, const json_t *v)
{
	const char *at = at_member(p, rule->at, key);
	bool op = !strcmp(key, "op");
	int k = 0;
	while (k < COUNT_OF(expressions) && strcmp(key, expressions[k]))
		k++;
	if (!op && k == COUNT_OF(expressions))
		return unknown_member(p, rule->at, key, "node|scope|op");
	if (!json_is_string(v) || !*json_string_value(v)) {
		diag_error(p->d, at, "expected %s", op ? "the kind of an op, as \"matmul\"" : "a regular expression");
		return false;
	}
	const char *text = arena_strdup(p->r->a, json_string_value(v));
	return op ? read_op(p, rule, at, text) : read_expression(p, rule, k, at, text);
}

static void read_rule(const Reader *p, RuleVec *to, const char *at, json_t *v)
{
	Rule *rule = NEW(p->r->a, Rule);
	const char *key;
	json_t *member;
	rule->at = at;
	rule->usable = json_is_object(v) && json_object_size(v);
	if (!rule->usable)
		diag_error(p->d, at, "expected an object with at least one of \"node\", \"scope\" and \"op\"");
	json_object_foreach(v, key, member)
		rule->usable = read_member(p, rule, key, member) && rule->usable;
	vec_push(p->r->a, to, rule);
}

static void read_rules(const Reader *p, RuleVec *to, const char *key, json_t *list)
{
	const char *at = at_member(p, p->where, key);
	if (!json_is_array(list) || !json_array_size(list))
		diag_error(p->d, at, "%s array of rules, as [{\"scope\": \"mlp\", \"op\": \"gelu\"}]",
			list ? "expected a filled" : "is missing: an");
	for (size_t i = 0; i < json_array_size(list); i++)
		read_rule(p, to, arena_printf(p->r->a, "%s[%zu]", at, i), json_array_get(list, i));
}

static void read_root(Reader *p, json_t *root)
{
	const char *key;
	json_t *v;
	if (!json_is_object(root)) {
		diag_error(p->d, p->where, "expected an object: {\"recompute\": [..], \"keep\": [..]}");
		return;
	}
	json_object_foreach(root, key, v)
		if (!strcmp(key, "keep"))
			read_rules(p, &p->keep, key, v);
		else if (strcmp(key, "recompute"))
			unknown_member(p, p->where, key, "recompute|keep");
	read_rules(p, &p->recompute, "recompute", json_object_get(root, "recompute"));
}

/* ---- matching ---- */

bool remat_is_op(const Op *op, OpKind kind)
{
	bool is = op->kind == kind;
	for (const Op *inner = op->body_first; inner && !is; inner = inner->next)
		is = inner->kind == kind;
	return is;
}

static bool matches(const Rule *rule, const Op *op, const char *scope)
{
	const char *text[] = {op->loc->node ? op->loc->node : "", scope};
	if (!rule->usable || (rule->has_op && !remat_is_op(op, rule->op)))
		return false;
	for (int k = 0; k < COUNT_OF(text); k++)
		if (rule->text[k] && !pattern_matches(&rule->re[k], text[k]))
			return false;
	return true;
}

/* Whether rules may be about the op: it computes values. */
static bool is_computed(const Op *op)
{
	return op->n_out && !(op_info[op->kind].flags & SRC);
}

/* The first rule that matches; counts matches of all, and says which they are. */
static Rule *first_match(const RuleVec *rules, const Op *op, const char *scope, bool inner)
{
	Rule *first = NULL;
	for (int i = 0; i < rules->n; i++) {
		Rule *rule = rules->at[i];
		rule->is = matches(rule, op, scope);
		if (!rule->is)
			continue;
		rule->matches++;
		rule->inner += inner;
		first = first ? first : rule;
	}
	return first;
}

static void match_op(const Reader *p, const Op *op)
{
	const char *scope = blocks_scope(p->r->a, op->loc);
	bool inner = false;
	for (int i = 0; i < op->n_out; i++)
		inner = inner || remat_may(p->r, op->out[i]);
	Rule *again = first_match(&p->recompute, op, scope, inner);
	Rule *keep = first_match(&p->keep, op, scope, inner);
	if (!again || !inner)
		return;
	if (keep)
		keep->counts++;
	for (int i = 0; i < p->recompute.n; i++) {
		Rule *rule = p->recompute.at[i];
		if (rule->is) {
			rule->counts += !keep;
			rule->rival = keep ? keep : rule->rival;
		}
	}
	for (int i = 0; i < op->n_out && !keep; i++)
		p->r->chosen[op->out[i]->id] = true;
}

/* ---- rules without effect ---- */

/* The names that the rule's only expression may have meant. */
static const char *hint(const Reader *p, const Rule *rule)
{
	VEC(const char *) names = {0};
	int k = rule->text[0] ? 0 : 1;
	if (!rule->text[k] || (rule->text[0] && rule->text[1]))
		return "";
	IR_FOR_OPS(p->r->m, SEC_FORWARD, op)
		if (is_computed(op))
			vec_push(p->r->a, &names, k ? blocks_scope(p->r->a, op->loc) : op->loc->node ? op->loc->node : "");
	return near_pattern(p->r->a, rule->text[k], names.at, names.n);
}

static void check_rule(const Reader *p, const Rule *rule, bool keep)
{
	if (!rule->usable || rule->counts)
		return;
	if (!rule->matches)
		diag_error(p->d, rule->at, "matches none of the values that forward has in memory; a fused loop has the node "
			"of its result%s", hint(p, rule));
	else if (!rule->inner)
		diag_error(p->d, rule->at, "%s read outside of %s, or part of what happens once, so %s anyway",
			rule->matches == 1 ? "the value that matches is" : arena_printf(p->r->a, "all %d values that match are",
			rule->matches), rule->matches == 1 ? "its block" : "their blocks",
			rule->matches == 1 ? "it lives" : "they live");
	else if (keep)
		diag_error(p->d, rule->at, "keeps nothing that a rule of \"recompute\" chooses and no rule before it keeps: "
			"leave it out");
	else
		diag_error(p->d, rule->at, "contradicts \"keep\": every value that it chooses is kept, by %s among others",
			strchr(rule->rival->at, '$'));
}

static void free_rules(const RuleVec *rules)
{
	for (int i = 0; i < rules->n; i++)
		for (int k = 0; k < COUNT_OF(expressions); k++)
			if (rules->at[i]->text[k])
				regfree(&rules->at[i]->re[k]);
}

static void match_all(const Reader *p)
{
	IR_FOR_OPS(p->r->m, SEC_FORWARD, op)
		if (is_computed(op))
			match_op(p, op);
	for (int i = 0; i < p->recompute.n; i++)
		check_rule(p, p->recompute.at[i], false);
	for (int i = 0; i < p->keep.n; i++)
		check_rule(p, p->keep.at[i], true);
}

bool remat_policy(Remat *r, const char *policy, Diag *d)
{
	int before = d->errors;
	json_t *root = json_read_given(policy, "--remat", r->a, d);
	const char *name = *policy == '{' ? "--remat" : policy;
	if (!root)
		return false;
	Reader p = {.r = r, .where = arena_printf(r->a, "%s: $", name), .d = d};
	read_root(&p, root);
	json_decref(root);
	match_all(&p);
	free_rules(&p.recompute);
	free_rules(&p.keep);
	return d->errors == before;
}
