/* passes/grad/autodiff.c: builds the backward section by one reverse walk over the forward.
 *
 * Each value collects the gradient terms that its users give it.  When the walk reaches the op that defines the
 * value, the terms are summed in the order in which they came and handed to that op's rule (column grad of
 * ops.def).  The walk names no op.  Only values that depend on something trainable take part.  All reads of a
 * parameter are united into one op first, so that a tied parameter gets one summed gradient; each gradient ends in
 * a `grad` op.  No gradient passes a stop_gradient op; these ops are removed afterwards.  autodiff_inside does the same
 * for a gradient that a model itself computes, in its forward section.  Refuses a --freeze that
 * is not a regular expression, that matches nothing or that leaves nothing to train. */
#include "passes/grad/rules.h"
#include "passes/shard/wrap.h"

#include <string.h>

typedef VEC(Value *) Terms;

struct GradCtx {
	Module *m;
	Builder b;
	Diag *diag;
	Arena *scratch;
	int n;         /* forward values; ids from here on are backward's */
	bool *wanted;  /* by id: the value depends on something wanted */
	Terms *terms;  /* by id */
	Value **grad;  /* by id: the sum of the terms */
	bool failed;
};

Builder *grad_builder(GradCtx *c)
{
	return &c->b;
}

bool grad_wanted(const GradCtx *c, const Value *x)
{
	return x && x->id < c->n && c->wanted[x->id];
}

void grad_give(GradCtx *c, Value *x, Value *dx)
{
	if (!grad_wanted(c, x) || !dx)
		return;
	dx = ir_cast(&c->b, ir_unbroadcast(&c->b, dx, &x->type), x->type.dtype);
	vec_push(c->scratch, &c->terms[x->id], dx);
}

void grad_refuse(GradCtx *c, const Op *op, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	diag_error(c->diag, loc_where(c->m, op->loc), "%s", arena_vprintf(c->scratch, fmt, ap));
	va_end(ap);
	c->failed = true;
}

/* ---- the walk ---- */

static void mark_wanted(GradCtx *c)
{
	IR_FOR_OPS(c->m, SEC_FORWARD, op) {
		bool any = false;
		for (int i = 0; i < op->n_in; i++)
			any = any || grad_wanted(c, op->in[i].value);
		if (!any || grad_rule[op->kind] == grad_stop)
			continue;
		for (int i = 0; i < op->n_out; i++)
			if (dtype_is_float(op->out[i]->type.dtype))
				c->wanted[op->out[i]->id] = true;
	}
}

/* A gradient is named after its value; one that several values share is named after the first of them. */
static void name_gradient(GradCtx *c, Value *dx, const Value *x)
{
	if (dx->op->section == SEC_BACKWARD && strncmp(dx->name, "d.", 2))
		ir_rename(c->m, dx, arena_printf(c->scratch, "d.%s", x->name));
}

/* Sums the terms of v.  None can come later, since all users of v stand behind its op. */
static Value *settle(GradCtx *c, const Value *v)
{
	const Terms *t = &c->terms[v->id];
	if (t->n) {
		c->grad[v->id] = grad_sum(&c->b, t->at, t->n);
		name_gradient(c, c->grad[v->id], v);
	}
	return c->grad[v->id];
}

static void visit(GradCtx *c, Op *op)
{
	Value **dout = NEW_N(c->scratch, Value *, op->n_out);
	bool any = false, wanted = false;
	c->b.loc = loc_with_role(c->m, op->loc, "grad");
	for (int i = 0; i < op->n_out; i++) {
		dout[i] = settle(c, op->out[i]);
		any = any || dout[i];
	}
	for (int i = 0; i < op->n_in; i++)
		wanted = wanted || grad_wanted(c, op->in[i].value);
	if (any && wanted && grad_rule[op->kind] != grad_stop)
		grad_rule[op->kind](c, op, dout);
}

Diag *grad_diag(const GradCtx *c)
{
	return c->diag;
}

static void walk_back(GradCtx *c, int n, Value *const *of, Value *const *seed)
{
	Op *last = c->m->last[SEC_FORWARD];
	for (int i = 0; i < n; i++)
		if (grad_wanted(c, of[i]))
			vec_push(c->scratch, &c->terms[of[i]->id], seed[i]);
	for (Op *op = last; op; op = op->prev)
		visit(c, op);
}

Value **autodiff_from(Module *m, int n, Value *const *of, Value *const *seed, const bool *wanted, Diag *d)
{
	GradCtx c = {.m = m, .diag = d, .n = m->n_values, .scratch = arena_new(),
		.b = {.m = m, .section = SEC_BACKWARD}};
	c.wanted = NEW_N(c.scratch, bool, c.n);
	c.terms = NEW_N(c.scratch, Terms, c.n);
	c.grad = NEW_N(m->arena, Value *, c.n);
	memcpy(c.wanted, wanted, sizeof(bool) * (size_t)c.n);
	mark_wanted(&c);
	walk_back(&c, n, of, seed);
	arena_free(c.scratch);
	return c.failed ? NULL : c.grad;
}

Value **autodiff_build(Module *m, Value *loss, Value *seed, const bool *wanted, Diag *d)
{
	return autodiff_from(m, 1, &loss, &seed, wanted, d);
}

bool autodiff_inside(Module *m, Value *y, int n, Value *const *x, Value **dx, const Op **lacks, Diag *d)
{
	GradCtx c = {.m = m, .diag = d, .scratch = arena_new(), .b = {.m = m, .section = SEC_FORWARD, .loc = y->op->loc}};
	Value *seed = ir_broadcast(&c.b, ir_const_float(&c.b, y->type.dtype, 1), &y->type);
	const Op *last = m->last[SEC_FORWARD];
	c.n = m->n_values;
	c.wanted = NEW_N(c.scratch, bool, c.n);
	c.terms = NEW_N(c.scratch, Terms, c.n);
	c.grad = NEW_N(c.scratch, Value *, c.n);
	for (int i = 0; i < n; i++)
		c.wanted[x[i]->id] = true;
	mark_wanted(&c);
	walk_back(&c, 1, &y, &seed);
	for (int i = 0; i < n; i++)
		dx[i] = c.grad[x[i]->id];
	for (const Op *op = last->next; op && !*lacks; op = op->next)
		if (op_info[op->kind].level > LEVEL_MODEL)
			*lacks = op;
	arena_free(c.scratch);
	return !c.failed && !*lacks;
}

/* ---- what is trained ---- */

static bool freeze(Module *m, const char *pattern, Diag *d)
{
	regex_t re;
	int n = 0;
	if (!pattern_compile(&re, pattern, "--freeze", d))
		return false;
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		if (s->kind == SYM_PARAM && param_matches(&re, s)) {
			s->trainable = false;
			n++;
		}
	}
	regfree(&re);
	if (n)
		diag_info(d, "--freeze", "\"%s\": %d parameters are not trained", pattern, n);
	else
		diag_error(d, "--freeze", "\"%s\" matches no parameter; there are: %s%s", pattern,
			parameter_names(m, NULL, m->arena), parameter_near(m, pattern, m->arena));
	return n > 0;
}

/* Unites the reads of each parameter into its first one; wanted when the parameter is trained. */
static PtrMap *unite_reads(Module *m, Arena *scratch, bool *wanted)
{
	PtrMap *read = ptrmap_new(scratch);
	IR_FOR_OPS_SAFE(m, SEC_FORWARD, op) {
		if (op->kind != OP_PARAM)
			continue;
		Value *first = ptrmap_get(read, op->sym);
		if (first) {
			ir_replace_uses(op->out[0], first);
			ir_remove(m, op);
		} else {
			ptrmap_put(read, op->sym, op->out[0]);
			wanted[op->out[0]->id] = op->sym->trainable && dtype_is_float(op->sym->type.dtype);
		}
	}
	return read;
}

/* The sum that the forward reports, and its seed: 1/n for a sum over n elements, or 1 when it is a mean already.
 * With a loss scale the seed is multiplied by it, so that small gradients do not underflow in 16 bits. */
static Value *loss_and_seed(Module *m, bool scaled, Value **seed, Diag *d)
{
	Op *report = m->first[SEC_FORWARD];
	while (report && report->kind != OP_REPORT_LOSS)
		report = report->next;
	if (!report) {
		diag_error(d, m->file ? m->file : m->name, "the forward section reports no loss (run the pass loss "
			"first)");
		return NULL;
	}
	Builder b = {.m = m, .section = SEC_BACKWARD, .loc = loc_with_role(m, report->loc, "grad")};
	bool mean = attr_get_int(report->attrs, "mean", 0);
	double n = mean ? 1 : (double)attr_get_int(report->attrs, "n", 1);
	*seed = ir_const_float(&b, op_in(report, 0)->type.dtype, 1 / n);
	if (scaled) {
		Value *scale = ir_cast(&b, ir_emit(&b, OP_LOSS_SCALE, 0, NULL, NULL), (*seed)->type.dtype);
		*seed = ir_emit2(&b, OP_MUL, *seed, scale);
	}
	return op_in(report, 0);
}

static void say_untrained(Arena *scratch, const Module *m, const Symbol *s, int n, Diag *d)
{
	const char *more = n > 1 ? arena_printf(scratch, " and %d more", n - 1) : "";
	if (n)
		diag_warn(d, m->file ? m->file : m->name,
			"parameter \"%s\"%s: the loss does not depend on it, so it is not trained", s->name, more);
}

/* Ends each gradient in a `grad` op, in the order of the symbols.  Returns how many. */
static int keep_gradients(Module *m, Arena *scratch, const PtrMap *read, Value *const *grad, Diag *d)
{
	const Symbol *first = NULL;
	int n = 0, untrained = 0;
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		if (s->kind != SYM_PARAM || !s->trainable)
			continue;
		Value *v = ptrmap_get(read, s);
		if (v && grad[v->id]) {
			Builder b = {.m = m, .section = SEC_BACKWARD, .sym = s, .loc = grad[v->id]->op->loc};
			ir_emit1(&b, OP_GRAD, grad[v->id]);
			n++;
		} else {
			s->trainable = false;
			first = first ? first : s;
			untrained++;
		}
	}
	say_untrained(scratch, m, first, untrained, d);
	return n;
}

/* Removes the stop_gradient ops: only this pass needs them. */
static void drop_stops(Module *m)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS_SAFE(m, s, op) {
			if (op->body)
				drop_stops(op->body);
			if (op->kind == OP_STOP_GRADIENT) {
				ir_replace_uses(op->out[0], op_in(op, 0));
				ir_remove(m, op);
			}
		}
}

bool pass_autodiff(Module *m, const Options *o, Diag *d)
{
	if (!m->first[SEC_FORWARD] && m->first[SEC_EVAL]) { /* a program that only evaluates */
		drop_stops(m);
		return true;
	}
	LossScale scale;
	bool ok = loss_scale_parse(o->precision.loss_scale, &scale, d);
	for (int i = 0; i < o->graph.freeze.n; i++)
		ok = freeze(m, o->graph.freeze.at[i], d) && ok;
	if (!ok)
		return false;
	Value *seed = NULL, *loss = loss_and_seed(m, scale.kind != LOSS_SCALE_NONE, &seed, d);
	if (!loss)
		return false;
	Arena *scratch = arena_new();
	bool *wanted = NEW_N(scratch, bool, m->n_values);
	PtrMap *read = unite_reads(m, scratch, wanted);
	Value **grad = autodiff_build(m, loss, seed, wanted, d);
	ok = grad;
	if (ok && !keep_gradients(m, scratch, read, grad, d)) {
		diag_error(d, m->file ? m->file : m->name, "nothing is trained: no parameter is trainable and "
			"has a path to the loss");
		ok = false;
	}
	if (ok) {
		drop_stops(m);
		ir_sweep(m, SEC_BACKWARD); /* slices that became a concat, and gradients that nobody wants */
	}
	arena_free(scratch);
	return ok;
}
