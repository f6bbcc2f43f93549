/* ir/eval.c: runs sections of a module in f64 and int64: the oracle of the tests, and the constant folder.
 *
 * Each rule (eval_*.c) defines its op as plain loops, so that it can be checked by reading.  Nothing is refused: an op
 * without a rule, or with bad data, leaves its results uncomputed. */
#include "ir/eval.h"

#include <string.h>

static EvalFn *const eval_rule[OP_COUNT] = {
#define OP(id, text, imin, imax, n_out, flags, first, last, attrs, shape, grad, eval, ...) \
	[OP_##id] = eval_##eval,
#include "ir/ops.def"
};

/* ---- environments ---- */

EvalEnv *eval_new(Module *m, Arena *a)
{
	EvalEnv *e = NEW(a, EvalEnv);
	e->m = m;
	e->arena = a;
	e->symbols = ptrmap_new(a);
	return e;
}

void eval_set_round(EvalEnv *e, bool round)
{
	e->round = round;
}

void eval_set_exact(EvalEnv *e, bool exact)
{
	e->exact = exact;
}

void eval_set_even_dropout(EvalEnv *e, bool even)
{
	e->even_dropout = even;
}

void eval_set_random(EvalEnv *e, uint64_t seed, uint64_t step, uint64_t sample0)
{
	e->seed = seed;
	e->step = step;
	e->sample0 = sample0;
}

void eval_set_through(EvalEnv *e, const EvalEnv *base)
{
	e->through = base;
}

EvalTensor eval_alloc(EvalEnv *e, Type t)
{
	EvalTensor x = {.type = t};
	x.i = NEW_N(e->arena, int64_t, type_numel(&t));
	return x;
}

void eval_bind(EvalEnv *e, const Symbol *sym, EvalTensor t)
{
	if (!type_same_shape(&t.type, &sym->type))
		ice("\"%s\" is %s, bound to %s", sym->name, type_str(e->arena, &sym->type),
			type_str(e->arena, &t.type));
	EvalTensor *copy = NEW(e->arena, EvalTensor);
	*copy = t;
	ptrmap_put(e->symbols, sym, copy);
}

/* Gives a symbol that was never bound, and whose contents are not in a file, its fill value. */
static EvalTensor *symbol_filled(EvalEnv *e, const Symbol *sym)
{
	EvalTensor t = eval_alloc(e, sym->type);
	for (int64_t i = 0, n = type_numel(&t.type); i < n; i++)
		eval_put(&t, i, dtype_is_float(t.type.dtype) ? (Scalar){.f = sym->src.fill}
			: (Scalar){.i = int_of_double(sym->src.fill)});
	eval_bind(e, sym, t);
	return ptrmap_get(e->symbols, sym);
}

EvalTensor *eval_symbol(EvalEnv *e, const Symbol *sym)
{
	EvalTensor *t = ptrmap_get(e->symbols, sym);
	bool fills = sym->kind == SYM_BUFFER || sym->kind == SYM_STATE || sym->kind == SYM_PARAM;
	if (t || !fills || sym->src.file || sym->src.init || sym->type.kind != TYPE_TENSOR)
		return t;
	return symbol_filled(e, sym);
}

/* Enlarges the tables indexed by value id when values were made since the last call. */
static void grow(EvalEnv *e)
{
	int n = e->m->n_values;
	if (n <= e->n)
		return;
	n = MAX(n, 2 * e->n);
	EvalTensor **value = NEW_N(e->arena, EvalTensor *, n);
	int64_t *refused = NEW_N(e->arena, int64_t, n);
	bool *constant = NEW_N(e->arena, bool, n);
	if (e->n) {
		memcpy(value, e->value, sizeof(*value) * (size_t)e->n);
		memcpy(refused, e->refused, sizeof(*refused) * (size_t)e->n);
		memcpy(constant, e->constant, sizeof(*constant) * (size_t)e->n);
	}
	for (int i = e->n; i < n; i++)
		refused[i] = -1;
	e->value = value;
	e->refused = refused;
	e->constant = constant;
	e->n = n;
}

EvalTensor *eval_value(EvalEnv *e, const Value *v)
{
	return v->id < e->n ? e->value[v->id] : NULL;
}

/* ---- running ops ---- */

static void fit(EvalEnv *e, EvalTensor *t)
{
	DType d = t->type.dtype;
	if (dtype_is_float(d) ? !eval_rounds(e, d) : dtype_info[d].bytes == 8)
		return;
	for (int64_t i = 0, n = type_numel(&t->type); i < n; i++)
		eval_put(t, i, eval_fit(d, eval_get(t, i), true));
}

/* Whether the result shares the bytes of an operand or a symbol. */
static bool is_alias(const Op *op)
{
	return op_info[op->kind].flags & (VIEW | SYM);
}

static bool run(EvalEnv *e, const Op *op)
{
	EvalTensor *small_in[8], *small_out[8];
	EvalTensor **in = op->n_in <= 8 ? small_in : NEW_N(e->arena, EvalTensor *, op->n_in);
	EvalTensor **out = op->n_out <= 8 ? small_out : NEW_N(e->arena, EvalTensor *, op->n_out);
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		in[i] = v ? e->value[v->id] : NULL;
		if (v && !in[i] && !(op_info[op->kind].flags & SYM && op_info[op->kind].n_out))
			return false;
	}
	for (int i = 0; i < op->n_out; i++) {
		const Type *t = &op->out[i]->type;
		if (t->kind != TYPE_TENSOR)
			return false;
		out[i] = NEW(e->arena, EvalTensor);
		*out[i] = is_alias(op) ? (EvalTensor){.type = *t} : eval_alloc(e, *t);
	}
	bool through = e->through && op_info[op->kind].flags & THROUGH;
	if (through ? !eval_through(e, op, in, out[0]) : !eval_rule[op->kind](e, op, in, out))
		return false;
	for (int i = 0; i < op->n_out; i++) {
		if (!is_alias(op))
			fit(e, out[i]);
		e->value[op->out[i]->id] = out[i];
	}
	return true;
}

void eval_pin(EvalEnv *e, const Value *v, EvalTensor t)
{
	EvalTensor *copy = NEW(e->arena, EvalTensor);
	*copy = t;
	e->pinned = e->pinned ? e->pinned : ptrmap_new(e->arena);
	ptrmap_put(e->pinned, v, copy);
}

void eval_section(EvalEnv *e, SectionKind s)
{
	grow(e);
	IR_FOR_OPS(e->m, s, op) {
		run(e, op);
		for (int i = 0; e->pinned && i < op->n_out; i++) {
			EvalTensor *t = ptrmap_get(e->pinned, op->out[i]);
			if (t)
				e->value[op->out[i]->id] = t;
		}
	}
}

/* ---- constants ---- */

/* Evaluation of a value fails for every max_numel up to the stored number: FINE = it never fails, INT64_MAX = the value
 * is not constant. */
enum { FINE = -1 };

static double numel_of(const Op *op, int operand)
{
	const Value *v = op_in(op, operand);
	return v ? (double)type_numel(&v->type) : 0;
}

/* Steps to compute an element of the first result, besides reading the operands once. */
static double steps_per_element(const Op *op)
{
	const Type *x = op->n_in ? &op_in(op, 0)->type : NULL;
	const Attr *kernel = attr_find(op->attrs, "kernel");
	double n = 1;
	switch (op->kind) {
	case OP_MATMUL: return (double)x->dim[x->rank - 1 - attr_get_int(op->attrs, "ta", 0)];
	case OP_TOPK: return (double)x->dim[attr_get_int(op->attrs, "axis", 0)];
	case OP_CONV: case OP_CONV_GRAD_X: case OP_CONV_GRAD_W: return numel_of(op, 1);
	case OP_ATTENTION: return numel_of(op, 1) + numel_of(op, 2);
	case OP_RECURRENCE: return (double)op_in(op, 1)->type.dim[0];
	default: break;
	}
	for (int i = 0; kernel && i < kernel->n; i++)
		n *= (double)kernel->ints[i];
	return n;
}

/* Cost of an op in steps.  A step takes less than a nanosecond.  An element that is made counts as MADE steps, because
 * it also takes eight bytes. */
static double steps_of(const Op *op)
{
	enum { MADE = 32 };
	double made = 0, read = 0;
	for (int i = 0; i < op->n_out; i++)
		made += (double)type_numel(&op->out[i]->type);
	for (int i = 0; i < op->n_in; i++)
		read += numel_of(op, i);
	return MADE * made + read + (op->n_out ? (double)type_numel(&op->out[0]->type) * steps_per_element(op) : 0);
}

static int64_t may_not_fold(const Op *op, int64_t max_numel)
{
	if (op_info[op->kind].flags & (SYM | UNIT | EFFECT | COMM) || op_draws(op) || op->body)
		return INT64_MAX;
	for (int i = 0; i < op->n_out; i++)
		if (op->out[i]->type.kind != TYPE_TENSOR || type_numel(&op->out[i]->type) > max_numel)
			return max_numel;
	return FINE;
}

static void settle(EvalEnv *e, const Op *op, int64_t why)
{
	for (int i = 0; i < op->n_out; i++) {
		int id = op->out[i]->id;
		e->constant[id] = why == FINE;
		e->refused[id] = MAX(e->refused[id], why);
	}
}

/* An operand of op that must be settled first; NULL = none.  If an operand was refused the result is NULL, and *why is
 * set. */
static Op *unsettled(EvalEnv *e, const Op *op, int64_t max_numel, int64_t *why)
{
	Op *found = NULL;
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		if (!v || e->constant[v->id])
			continue;
		if (!v->op || e->refused[v->id] >= max_numel) {
			*why = v->op ? e->refused[v->id] : INT64_MAX;
			return NULL;
		}
		found = v->op;
	}
	return found;
}

bool eval_exhausted(const EvalEnv *e)
{
	return e->folded > EVAL_STEPS;
}

void eval_assume(EvalEnv *e, const Value *v, EvalTensor t)
{
	grow(e);
	e->value[v->id] = NEW(e->arena, EvalTensor);
	*e->value[v->id] = t;
	e->constant[v->id] = true;
}

EvalTensor *eval_constant(EvalEnv *e, Value *v, int64_t max_numel)
{
	VEC(Op *) stack = {0};
	grow(e);
	if (!v->op || v->type.kind != TYPE_TENSOR)
		return NULL;
	if (!e->constant[v->id] && e->refused[v->id] < max_numel)
		vec_push(e->arena, &stack, v->op);
	while (stack.n) {
		Op *op = stack.at[stack.n - 1], *first = NULL;
		int64_t why = may_not_fold(op, max_numel);
		if (why == FINE)
			first = unsettled(e, op, max_numel, &why);
		if (first) {
			vec_push(e->arena, &stack, first);
			continue;
		}
		if (why == FINE)
			e->folded += steps_of(op);
		if (why == FINE && (eval_exhausted(e) || !run(e, op)))
			why = INT64_MAX;
		settle(e, op, why);
		stack.n--;
	}
	bool small = type_numel(&v->type) <= max_numel;
	return e->constant[v->id] && small ? e->value[v->id] : NULL;
}

/* ---- sources and effects ---- */

RULE(none)
{
	return !op->n_out;
}

/* A view may show a parameter in another dtype: the one that its flat is gathered in. */
static bool from_symbol(EvalEnv *e, const Op *op, EvalTensor *out)
{
	const EvalTensor *t = eval_symbol(e, op->sym);
	if (!t)
		return false;
	out->f = t->f;
	if (out->type.dtype == t->type.dtype || !dtype_is_float(out->type.dtype))
		return true;
	*out = eval_alloc(e, out->type);
	memcpy(out->f, t->f, sizeof(*t->f) * (size_t)type_numel(&t->type));
	fit(e, out);
	return true;
}

/* The loss scale cancels out in an update, so it is evaluated as 1. */
RULE(scale)
{
	out[0]->f[0] = 1;
	return true;
}

RULE(input)
{
	return from_symbol(e, op, out[0]);
}

RULE(param)
{
	return from_symbol(e, op, out[0]);
}

RULE(view)
{
	int64_t at = 0;
	bool f8 = dtype_is_scaled(op->out[0]->type.dtype);
	if (op_n_params(op) == 1 && !f8)
		return from_symbol(e, op, out[0]);
	*out[0] = eval_alloc(e, op->out[0]->type);
	for (int64_t i = 0; i < op_n_params(op); i++) {
		const EvalTensor *p = eval_symbol(e, op->sym->unit->params[op->sym->member + i]);
		int64_t n = p ? type_numel(&p->type) : 0;
		if (!p)
			return false;
		memcpy(out[0]->f + at, p->f, sizeof(*p->f) * (size_t)n);
		at += n;
	}
	if (f8)
		return eval_weight_f8(e, op->sym, out[0]);
	fit(e, out[0]);
	return true;
}

RULE(read)
{
	float scale;
	if (op->sym->kind != SYM_SCALE)
		return from_symbol(e, op, out[0]);
	if (!eval_weight_scale(e, op->sym, &scale))
		return false;
	*out[0] = eval_alloc(e, op->out[0]->type);
	out[0]->f[0] = scale;
	return true;
}

RULE(write)
{
	eval_bind(e, op->sym, *in[0]);
	return true;
}

RULE(const)
{
	const Attr *a = attr_find(op->attrs, "value");
	for (int64_t i = 0, n = type_numel(&out[0]->type); i < n; i++) {
		int64_t k = a->n == 1 ? 0 : i;
		eval_put(out[0], i, a->kind == ATTR_FLOATS ? (Scalar){.f = a->floats[k]} : (Scalar){.i = a->ints[k]});
	}
	return true;
}

RULE(iota)
{
	double start = attr_get_float(op->attrs, "start", 0), step = attr_get_float(op->attrs, "step", 1);
	Axis x = eval_axis(&out[0]->type, (int)attr_get_int(op->attrs, "axis", 0));
	for (int64_t i = 0, n = type_numel(&out[0]->type); i < n; i++) {
		double v = start + step * (double)(i / x.inner % x.n);
		eval_put(out[0], i, dtype_is_float(out[0]->type.dtype)
			? (Scalar){.f = v} : (Scalar){.i = int_of_double(v)});
	}
	return true;
}
