/* passes/rewrite/rewrite.c: the worklist behind canon, patterns and layout, and the questions that their rules ask.
 *
 * Every op is visited in program order; a change puts the new ops and their users back on the list.  Sweeps are
 * repeated until one changes nothing; progress.c counts the applications.  Ops that become unused are removed
 * before the next rule is tried, so that rules can rely on use counts and never rewrite what nothing reads, which
 * would not lower the measure.  op->order holds whether an op is on the list or removed. */
#include "passes/rewrite/rewrite.h"

#include <math.h>
#include <string.h>

#include "passes/rewrite/progress.h"

enum { IDLE, QUEUED, GONE }; /* in op->order */

void rewrite_enqueue(Rewriter *r, Op *op)
{
	if (op->order != IDLE)
		return;
	op->order = QUEUED;
	vec_push(r->scratch, &r->queue, op);
}

static void enqueue_users(Rewriter *r, const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (!u->op->parent)
			rewrite_enqueue(r, u->op);
}

static bool is_unused(const Op *op)
{
	return !op_has_effect(op) && !op_is_read(op);
}

/* Removes op, and the ops that only it used; its other operands have one user less. */
static void remove_op(Rewriter *r, Op *op)
{
	VEC(Op *) gone = {0};
	vec_push(r->scratch, &gone, op);
	while (gone.n) {
		Op *now = gone.at[--gone.n];
		if (now->order == GONE)
			continue;
		if (!is_unused(now)) {
			rewrite_enqueue(r, now);
			continue;
		}
		for (int i = 0; i < now->n_in; i++)
			if (now->in[i].value)
				vec_push(r->scratch, &gone, now->in[i].value->op);
		ir_remove(r->m, now);
		now->order = GONE;
	}
}

/* Removes unused ops among those on the list from index `first` on. */
static void remove_unused(Rewriter *r, int first)
{
	for (int i = r->queue.n - 1; i >= first; i--)
		if (r->queue.at[i]->order != GONE && is_unused(r->queue.at[i]))
			remove_op(r, r->queue.at[i]);
}

void rewrite_take_name(Value *now, Value *old)
{
	const char *name = old->name;
	old->name = now->name;
	now->name = name;
}

/* The op's result that computes a new value, behind the ops that only move it. */
static Value *computed(Value *v, int first_new_id)
{
	static const bool moves[OP_COUNT] = {[OP_RESHAPE] = true, [OP_TRANSPOSE] = true, [OP_BROADCAST] = true};
	while (moves[v->op->kind] && v->op->in[0].value->id >= first_new_id)
		v = v->op->in[0].value;
	return v;
}

/* The replacement takes over the old name if it was made for this replacement. */
static void replace(Rewriter *r, Op *op, Value *now, int first_new_id)
{
	Value *old = op->out[0];
	if (!type_equal(&old->type, &now->type))
		ice("%%%s : %s replaced by %s", old->name, type_str(r->scratch, &old->type),
			type_str(r->scratch, &now->type));
	ir_replace_uses(old, now);
	if (now->id >= first_new_id)
		rewrite_take_name(computed(now, first_new_id), old);
	enqueue_users(r, now);
}

static void note_applied(Rewriter *r, const Rule *rule, const Op *op, const char *name)
{
	RewriteTrace *t = r->m->trace;
	if (t)
		*t = (RewriteTrace){t->limit, t->n + 1, rule->pattern, r->detail, op->loc, name};
}

static bool apply(Rewriter *r, const Rule *rule, Op *op)
{
	Op *prev = op->prev;
	int first_new_id = r->m->n_values, first_queued = r->queue.n;
	const char *name = op->out[0]->name;
	r->detail = NULL;
	r->b = (Builder){.m = r->m, .section = op->section, .before = op, .loc = op->loc,
		.name = op->out[0]->name};
	Value *now = rule->fn(r, op);
	for (Op *made = prev ? prev->next : r->m->first[op->section]; made != op; made = made->next)
		rewrite_enqueue(r, made);
	if (!now)
		return false;
	note_applied(r, rule, op, name);
	replace(r, op, now, first_new_id);
	if (!is_unused(op))
		ice("rule %s: results of %s are left", rule->pattern, op_info[op->kind].text);
	remove_op(r, op);
	remove_unused(r, first_queued);
	progress_rule(r->progress, rule->pattern, op->kind, op->loc);
	return true;
}

static bool apply_any(Rewriter *r, Op *op, int n_sets, const RuleSet *sets)
{
	if (op_has_effect(op) || !op->n_out || (r->m->trace && r->m->trace->n >= r->m->trace->limit))
		return false;
	for (int s = 0; s < n_sets; s++)
		for (int i = 0; i < sets[s].n; i++) {
			const Rule *rule = &sets[s].rule[i];
			if ((rule->kind == (int)op->kind || rule->kind == RULE_ANY) && apply(r, rule, op))
				return true;
		}
	return false;
}

static bool sweep(Rewriter *r, int n_sets, const RuleSet *sets)
{
	bool changed = false;
	r->queue.n = r->head = 0;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(r->m, s, op)
			rewrite_enqueue(r, op);
	remove_unused(r, 0);
	while (r->head < r->queue.n) {
		Op *op = r->queue.at[r->head++];
		if (op->order == GONE)
			continue;
		op->order = IDLE;
		if (is_unused(op))
			remove_op(r, op);
		else if (apply_any(r, op, n_sets, sets))
			changed = true;
	}
	return changed;
}

void rewrite_module(Module *m, Diag *d, int n_sets, const RuleSet *sets, PrepareFn *prepare, void *context)
{
	Rewriter r = {.m = m, .d = d, .scratch = arena_new(), .context = context};
	r.progress = progress_new(m, r.scratch);
	r.told = ptrmap_new(r.scratch);
	r.memo = ptrmap_new(r.scratch);
	r.env = eval_new(m, r.scratch);
	eval_set_round(r.env, true);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			op->order = IDLE;
	if (prepare)
		prepare(&r);
	while (sweep(&r, n_sets, sets))
		;
	if (eval_exhausted(r.env))
		diag_note(d, ir_where(m, (TextPlace){0}), "its constants take too long to compute while "
			"compiling: each step computes the others, and no pattern that asks for their numbers is recognised");
	arena_free(r.scratch);
}

Value *rewrite_again(Rewriter *r, Op *op, int n_in, Value *const *in, Attr *attrs)
{
	Op *now = ir_emit_op(&r->b, op->kind, n_in, in, attrs, NULL);
	for (int i = 1; i < op->n_out; i++) {
		ir_replace_uses(op->out[i], now->out[i]);
		rewrite_take_name(now->out[i], op->out[i]);
	}
	return now->out[0];
}

/* ---- constants ---- */

const Attr *const_splat(const Value *v)
{
	const Attr *a = def_of(v, OP_CONST) ? attr_find(v->op->attrs, "value") : NULL;
	return a && a->n == 1 ? a : NULL;
}

bool match_number(const Value *v, double *out)
{
	while (v && v->op && (v->op->kind == OP_BROADCAST || v->op->kind == OP_RESHAPE
			|| (v->op->kind == OP_CAST && dtype_is_float(v->type.dtype)
				&& dtype_is_float(v->op->in[0].value->type.dtype))))
		v = v->op->in[0].value;
	const Attr *a = const_splat(v);
	if (a)
		*out = a->kind == ATTR_INTS ? (double)a->ints[0] : a->floats[0];
	return a;
}

bool match_with_number(const Op *op, Value **x, double *number)
{
	for (int i = 1; i >= (op_info[op->kind].flags & COM ? 0 : 1); i--)
		if (match_number(op->in[i].value, number)) {
			*x = op->in[1 - i].value;
			return true;
		}
	return false;
}

bool match_literal(const Value *v)
{
	if (def_of(v, OP_BROADCAST))
		v = v->op->in[0].value;
	return def_of(v, OP_CONST) || def_of(v, OP_IOTA);
}

EvalTensor *match_constant(Rewriter *r, Value *v, int64_t max_numel)
{
	return type_numel(&v->type) <= max_numel ? eval_constant(r->env, v, max_numel) : NULL;
}

static bool all_equal(const EvalTensor *t, int64_t n)
{
	for (int64_t i = 1; i < n; i++)
		if (dtype_is_float(t->type.dtype) ? memcmp(&t->f[i], &t->f[0], sizeof(t->f[0])) : t->i[i] != t->i[0])
			return false;
	return n > 0;
}

Value *rewrite_const(Rewriter *r, const EvalTensor *t)
{
	int64_t n = type_numel(&t->type);
	int literals = all_equal(t, n) ? 1 : (int)n;
	Attr *value = dtype_is_float(t->type.dtype) ? attr_floats(r->m, NULL, "value", literals, t->f)
		: attr_ints(r->m, NULL, "value", literals, t->i);
	return ir_emit_typed(&r->b, OP_CONST, 0, NULL, value, t->type);
}

Value *rewrite_splat(Rewriter *r, const Attr *value, Type type)
{
	Attr *copy = value->kind == ATTR_INTS ? attr_ints(r->m, NULL, "value", 1, value->ints)
		: attr_floats(r->m, NULL, "value", 1, value->floats);
	return ir_emit_typed(&r->b, OP_CONST, 0, NULL, copy, type);
}

/* ---- shapes ---- */

const int64_t *ints_of(const Op *op, const char *name, int n)
{
	const Attr *a = attr_find(op->attrs, name);
	if (!a || a->kind != ATTR_INTS || a->n != n)
		ice("%s lacks %d %s", op_info[op->kind].text, n, name);
	return a->ints;
}

void perm_of(const Op *transpose, int *perm)
{
	int rank = transpose->out[0]->type.rank;
	const int64_t *p = ints_of(transpose, "perm", rank);
	for (int i = 0; i < rank; i++)
		perm[i] = (int)p[i];
}

Value *match_transpose(const Value *v, int rank, const int *perm)
{
	int p[IR_MAX_RANK];
	Op *t = def_of(v, OP_TRANSPOSE);
	if (!t || v->type.rank != rank)
		return NULL;
	perm_of(t, p);
	return memcmp(p, perm, sizeof(int) * (size_t)rank) ? NULL : t->in[0].value;
}

static bool only_puts_ones_in_front(const Type *from, const Type *to)
{
	int extra = to->rank - from->rank;
	if (extra < 0 || memcmp(from->dim, to->dim + extra, sizeof(int64_t) * (size_t)from->rank))
		return false;
	for (int i = 0; i < extra; i++)
		if (to->dim[i] != 1)
			return false;
	return true;
}

Value *strip_broadcast(Value *v)
{
	if (def_of(v, OP_BROADCAST))
		return v->op->in[0].value;
	if (def_of(v, OP_RESHAPE) && only_puts_ones_in_front(&v->op->in[0].value->type, &v->type))
		return v->op->in[0].value;
	return v;
}
