/* passes/check/eval.c: evaluates a module on random data, for --check-passes.
 *
 * The contents of a symbol depend on its name alone, so that they are the same before and after a pass that adds
 * symbols.  Integers are ids, labels or counts: they stay below the smallest axis that they index, which is found
 * along their uses; they are 0 or 1 where no such axis is known.  Literals belong to the program and keep their
 * values.  Rules may have read constants of the model's file, so these keep their contents in the first run, and
 * get random ones in a second run. */
#include "passes/check/check.h"

#include "ir/recurrence.h"

#include <math.h>
#include <string.h>

/* ---- random contents ---- */

double check_random(const char *name, int64_t i)
{
	uint64_t h = hash_bytes(&i, sizeof(i), hash_bytes(name, strlen(name), 17));
	h ^= h >> 31;
	h *= 0x9e3779b97f4a7c15u;
	return (double)(h >> 11) / 0x1p52 - 1;
}

static int64_t dim_of(const Value *v, int64_t axis)
{
	int rank = v->type.rank;
	axis += axis < 0 ? rank : 0;
	return axis >= 0 && axis < rank ? v->type.dim[axis] : 1;
}

static int64_t smallest_dim(const Value *v, int n)
{
	int64_t least = INT64_MAX;
	for (int i = 0; i < v->type.rank && i < n; i++)
		least = MIN(least, v->type.dim[i]);
	return least;
}

/* The exclusive upper bound of values of operand i of op; INT64_MAX = none. */
static int64_t index_limit(const Op *op, int i)
{
	const Value *x = op_in(op, 0);
	int64_t axis = attr_get_int(op->attrs, "axis", 0);
	switch (op->kind) {
	case OP_GATHER: case OP_GATHER_ELEMENTS: case OP_SCATTER_ELEMENTS:
		return i == 1 ? dim_of(x, axis) : INT64_MAX;
	case OP_GATHER_ND: case OP_SCATTER_ND:
		return i == 1 ? smallest_dim(x, x->type.rank) : INT64_MAX;
	case OP_GATHER_GRAD: {
		const Attr *shape = attr_find(op->attrs, "shape");
		return i == 1 && shape && axis >= 0 && axis < shape->n ? shape->ints[axis] : INT64_MAX;
	}
	case OP_CROSS_ENTROPY: return i == 1 ? dim_of(x, -1) : INT64_MAX;
	case OP_RECURRENCE: return i == REC_LENGTHS ? dim_of(x, 0) + 1 : INT64_MAX;
	case OP_RECURRENCE_GRAD: return i == RECG_LENGTHS ? dim_of(op_in(op, RECG_Y), 0) + 1 : INT64_MAX;
	case OP_CROSS_ENTROPY_GRAD: return i == 2 ? dim_of(op_in(op, 1), -1) : INT64_MAX;
	default: return INT64_MAX;
	}
}

static bool passes_on(const Op *op)
{
	unsigned flags = op_info[op->kind].flags;
	return flags & (EW | VIEW) || op->kind == OP_TRANSPOSE || op->kind == OP_BROADCAST || op->kind == OP_SLICE
		|| op->kind == OP_SPLIT || op->kind == OP_CONCAT || op->kind == OP_PAD || op->kind == OP_GATHER;
}

/* Follows the uses of v; *least: the smallest limit found so far. */
static void lower_limit(const Value *v, PtrMap *seen, int depth, int64_t *least)
{
	if (depth > 64 || ptrmap_get(seen, v))
		return;
	ptrmap_put(seen, v, (void *)v);
	for (const Use *u = v->uses; u; u = u->next) {
		int64_t limit = index_limit(u->op, (int)(u - u->op->in));
		*least = MIN(*least, limit);
		for (int k = 0; passes_on(u->op) && k < u->op->n_out; k++)
			if (!dtype_is_float(u->op->out[k]->type.dtype) && u->op->out[k]->type.dtype != DT_BOOL)
				lower_limit(u->op->out[k], seen, depth + 1, least);
	}
}

static int64_t symbol_limit(Module *m, const Symbol *s, CheckData *data)
{
	intptr_t known = (intptr_t)map_get(data->limit, s->name);
	int64_t least = INT64_MAX;
	if (known)
		return known;
	PtrMap *seen = ptrmap_new(data->arena);
	for (int k = 0; k < SEC_COUNT; k++)
		IR_FOR_OPS(m, k, op)
			if (op->sym == s && op->n_out)
				lower_limit(op->out[0], seen, 0, &least);
	least = least == INT64_MAX ? 2 : MAX(least, 1);
	map_put(data->limit, s->name, (void *)(intptr_t)least);
	return least;
}

/* Weights are scaled so that sums over them stay near 1.  A parameter of one dim may be a scale or a variance, so
 * it is positive. */
static double element(const Symbol *s, int64_t i, double scale)
{
	double x = check_random(s->name, i);
	if (s->kind == SYM_BUFFER || (s->kind == SYM_PARAM && s->type.rank <= 1))
		return 1 + x / 2;
	return s->kind == SYM_PARAM ? x * scale : x;
}

static EvalTensor random_contents(Module *m, const Symbol *s, CheckData *data, Arena *a)
{
	EvalTensor t = {.type = s->type};
	int64_t n = type_numel(&s->type), limit = 2;
	double most = s->type.rank > 1 ? (double)n / (double)MAX(MAX(s->type.dim[0], s->type.dim[s->type.rank - 1]), 1) : 1;
	double scale = sqrt(3 / fmax(most, 1));
	t.i = NEW_N(a, int64_t, n);
	if (!dtype_is_float(s->type.dtype) && s->type.dtype != DT_BOOL)
		limit = symbol_limit(m, s, data);
	for (int64_t i = 0; i < n; i++) {
		if (dtype_is_float(s->type.dtype))
			t.f[i] = element(s, i, scale);
		else
			t.i[i] = (int64_t)((check_random(s->name, i) + 1) / 2 * (double)limit);
	}
	return t;
}

static bool is_written(const Module *m, const Symbol *s)
{
	for (int k = 0; k < SEC_COUNT; k++)
		IR_FOR_OPS(m, k, op)
			if (op->kind == OP_WRITE && op->sym == s)
				return true;
	return false;
}

bool check_bind(EvalEnv *e, Module *m, CheckData *data, unsigned mode, Arena *a)
{
	bool any = false;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		EvalTensor t;
		if (s->kind == SYM_OUTPUT || s->type.kind != TYPE_TENSOR)
			continue;
		bool fixed = s->kind == SYM_DATA || (s->kind == SYM_BUFFER && s->src.file && !is_written(m, s));
		bool real = !(mode & CHECK_RANDOM) && fixed && data_contents(s, a, &t);
		eval_bind(e, s, real ? t : random_contents(m, s, data, a));
		any = any || real;
	}
	return any;
}

/* ---- cost ---- */

static double numel(const Value *v)
{
	return v && v->type.kind == TYPE_TENSOR ? (double)type_numel(&v->type) : 0;
}

static double kernel_of(const Op *op)
{
	const Attr *k = attr_find(op->attrs, "kernel");
	double n = 1;
	for (int i = 0; k && i < k->n; i++)
		n *= (double)k->ints[i];
	return n;
}

/* Counts the operations of the reference's plain loops. */
static double op_cost(const Op *op)
{
	double out = op->n_out ? numel(op->out[0]) : 0, in = 0;
	for (int i = 0; i < op->n_in; i++)
		in += numel(op_in(op, i));
	const Value *w = op_in(op, 1);
	switch (op->kind) {
	case OP_LOOP: return in + (double)loop_steps(op) * check_cost(op->body).ops;
	case OP_MATMUL: return out * (double)dim_of(op_in(op, 0), attr_get_int(op->attrs, "ta", 0) ? -2 : -1);
	case OP_CONV: return out * numel(w) / (double)MAX(dim_of(w, 0), 1);
	case OP_CONV_GRAD_X: return numel(op_in(op, 0)) * numel(w) / (double)MAX(dim_of(w, 0), 1);
	case OP_CONV_GRAD_W: return numel(w) * out / (double)MAX(dim_of(op->out[0], 0), 1);
	case OP_ATTENTION: return 2 * out * (double)MAX(dim_of(w, 1), dim_of(w, 2));
	case OP_ATTENTION_GRAD: return 5 * numel(w) * (double)MAX(dim_of(op_in(op, 2), 1), dim_of(op_in(op, 2), 2));
	case OP_RECURRENCE: return out * (double)dim_of(w, 0);
	case OP_RECURRENCE_GRAD: return 2 * numel(w) * (double)dim_of(op_in(op, 0), 0);
	case OP_LINEAR_CROSS_ENTROPY: return numel(op_in(op, 2)) * numel(w);
	case OP_LINEAR_CROSS_ENTROPY_GRAD: return 3 * numel(op_in(op, 3)) * numel(op_in(op, 2));
	default: return (in + out) * kernel_of(op);
	}
}

CheckCost check_cost(const Module *m)
{
	CheckCost c = {0};
	for (int i = 0; i < m->n_symbols; i++)
		c.elements += m->symbols[i]->type.kind == TYPE_TENSOR ? (double)type_numel(&m->symbols[i]->type) : 0;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op) {
			c.ops += op_cost(op);
			for (int i = 0; i < op->n_out; i++)
				c.elements += op_info[op->kind].flags & (VIEW | SYM) ? 0 : numel(op->out[i]);
		}
	return c;
}

/* ---- what is kept ---- */

typedef VEC(CheckItem) Items;

static void add(CheckResult *r, Items *items, EvalEnv *e, const Op *op, int i, const char *what)
{
	const EvalTensor *t = eval_value(e, op_in(op, i));
	CheckItem item = {.what = what, .op = op, .computed = t};
	if (t)
		item.t = *t;
	vec_push(r->arena, items, item);
}

static void add_op(CheckResult *r, Items *items, EvalEnv *e, const Op *op, const char *of)
{
	Arena *a = r->arena;
	switch (op->kind) {
	case OP_OUTPUT: add(r, items, e, op, 0, arena_printf(a, "%soutput \"%s\"", of, op->sym->name)); break;
	case OP_WRITE: add(r, items, e, op, 0, arena_printf(a, "%s%s \"%s\"", of,
		op->sym->kind == SYM_BUFFER ? "buffer" : "state", op->sym->name)); break;
	case OP_GRAD: case OP_UPDATE:
		add(r, items, e, op, 0, arena_printf(a, "gradient of \"%s\"", op->sym->name)); break;
	case OP_REPORT_LOSS:
		add(r, items, e, op, 0, arena_printf(a, "%sloss", of));
		add(r, items, e, op, 1, arena_printf(a, "%sweight of the loss", of));
		break;
	case OP_REPORT_ACC:
		add(r, items, e, op, 0, arena_printf(a, "%slogits of the accuracy", of));
		add(r, items, e, op, 1, arena_printf(a, "%slabels of the accuracy", of));
		break;
	case OP_STEP_SCALARS:
		if (op_in(op, 0))
			add(r, items, e, op, 0, "norm of the gradients");
		break;
	default: break;
	}
}

CheckResult *check_evaluate(Module *m, CheckData *data, unsigned mode)
{
	static const SectionKind step[] = {SEC_FORWARD, SEC_BACKWARD, SEC_UPDATE};
	Arena *a = arena_new();
	CheckResult *r = NEW(a, CheckResult);
	Items items = {0};
	r->arena = a;
	for (int k = 0; k < 2; k++) {
		EvalEnv *e = r->env[k] = eval_new(m, a);
		eval_set_exact(e, !(mode & CHECK_ROUND));
		eval_set_round(e, mode & CHECK_ROUND);
		eval_set_even_dropout(e, mode & CHECK_EVEN);
		eval_set_random(e, 11, 5, 3);
		r->data = check_bind(e, m, data, mode, a) || r->data;
		for (int s = 0; s < (k ? 1 : COUNT_OF(step)); s++)
			eval_section(e, k ? SEC_EVAL : step[s]);
		for (int s = 0; s < (k ? 1 : COUNT_OF(step)); s++)
			IR_FOR_OPS(m, k ? SEC_EVAL : step[s], op)
				add_op(r, &items, e, op, k ? "eval: " : "");
	}
	r->item = items.at;
	r->n = items.n;
	return r;
}

void check_result_free(CheckResult *r)
{
	if (r)
		arena_free(r->arena);
}

const CheckItem *check_find(const CheckResult *r, const char *what)
{
	for (int i = r->n - 1; i >= 0; i--)
		if (!strcmp(r->item[i].what, what))
			return &r->item[i];
	return NULL;
}

/* ---- comparing ---- */

double check_element(const EvalTensor *t, int64_t i)
{
	return dtype_is_float(t->type.dtype) ? t->f[i] : (double)t->i[i];
}

static double as_infinite(double x, double huge)
{
	return x > huge ? INFINITY : x < -huge ? -INFINITY : x;
}

CheckDistance check_distance(const EvalTensor *a, const EvalTensor *b, double huge)
{
	CheckDistance d = {.same_shape = type_same_shape(&a->type, &b->type)};
	for (int64_t i = 0, n = d.same_shape ? type_numel(&a->type) : 0; i < n; i++) {
		double x = as_infinite(check_element(a, i), huge), y = as_infinite(check_element(b, i), huge);
		double gap = x == y || (isnan(x) && isnan(y)) ? 0 : isfinite(x) && isfinite(y) ? fabs(x - y) : INFINITY;
		d.scale = isfinite(x) ? fmax(d.scale, fabs(x)) : d.scale;
		if (gap > d.most) {
			d.most = gap;
			d.at = i;
		}
	}
	return d;
}
