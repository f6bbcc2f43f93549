/* passes/layout.c: makes convolutions, pooling and batch norms channels-last.
 *
 * Each such op is rewritten between two transposes.  The transpose behind it, from [N,spatial,C] back to
 * [N,C,spatial], is then moved down through the ops that follow, until it meets the transpose of the next such op
 * and both cancel, or until it reaches an op whose meaning depends on the layout.  Weights keep their layout.  A
 * module without such ops is not changed. */
#include "passes/canon/canon.h"
#include "passes/rewrite/measure.h"
#include "passes/passes.h"

#include <string.h>

static const Type *type_of(const Op *op)
{
	return &op->out[0]->type;
}

/* ---- the two transposes ---- */

static void perm_to_last(int rank, int *perm) /* [N,C,spatial] -> [N,spatial,C] */
{
	perm[0] = 0;
	for (int i = 1; i < rank; i++)
		perm[i] = i == rank - 1 ? 1 : i + 1;
}

static void perm_to_first(int rank, int *perm)
{
	perm[0] = 0;
	for (int i = 1; i < rank; i++)
		perm[i] = i == 1 ? rank - 1 : i - 1;
}

static Value *to_last(Builder *b, Value *v)
{
	int perm[IR_MAX_RANK];
	perm_to_last(v->type.rank, perm);
	return v->type.rank < 3 ? v : ir_transpose(b, v, perm);
}

static Value *to_first(Builder *b, Value *v)
{
	int perm[IR_MAX_RANK];
	perm_to_first(v->type.rank, perm);
	return v->type.rank < 3 ? v : ir_transpose(b, v, perm);
}

/* If v is x with its channels moved first: x, else NULL. */
static Value *match_first(const Value *v)
{
	int perm[IR_MAX_RANK];
	if (!v || v->type.rank < 3)
		return NULL;
	perm_to_first(v->type.rank, perm);
	return match_transpose(v, v->type.rank, perm);
}

/* The position in [N,spatial,C] of dim k of [N,C,spatial]. */
static int dim_in_last(int k, int rank)
{
	return k == 0 ? 0 : k == 1 ? rank - 1 : k - 1;
}

/* Permutes a list with one entry per dim into the order of [N,spatial,C]. */
static Attr *permute_ints(Rewriter *r, const Op *op, Attr *attrs, const char *name, int rank)
{
	int64_t now[IR_MAX_RANK];
	const int64_t *v = ints_of(op, name, rank);
	for (int k = 0; k < rank; k++)
		now[dim_in_last(k, rank)] = v[k];
	return attr_ints(r->m, attrs, name, rank, now);
}

static Attr *permute_axis(Rewriter *r, const Op *op, int rank)
{
	return attr_int(r->m, op->attrs, "axis", dim_in_last(axis_of(op), rank));
}

/* ---- ops that have a layout ---- */

static Value *convert(Rewriter *r, Op *op)
{
	if (attr_get_int(op->attrs, "layout", 0))
		return NULL;
	Builder *b = &r->b;
	b->name = NULL;
	Value *in[3] = {to_last(b, op_in(op, 0)), op_in(op, 1), op_in(op, 2)};
	Attr *attrs = attr_int(r->m, op->attrs, "layout", 1);
	if (attr_find(attrs, "shape"))
		attrs = permute_ints(r, op, attrs, "shape", type_of(op)->rank);
	b->name = op->out[0]->name;
	Op *now = ir_emit_op(b, op->kind, op->n_in, in, attrs, NULL);
	for (int i = 1; i < op->n_out; i++) {
		Value *v = now->out[i];
		ir_replace_uses(op->out[i], to_first(b, v)); /* v itself where it is one number per channel */
		rewrite_take_name(v, op->out[i]);
	}
	return to_first(b, now->out[0]);
}

/* ---- ops that a transpose passes through ---- */

/* Whether v is computed by an op that is or will be channels-last, followed only by ops that keep the meaning of
 * each dim. */
static bool is_anchored(Rewriter *r, const Value *v)
{
	intptr_t known = (intptr_t)ptrmap_get(r->memo, v);
	if (!known) {
		bool yes = measure_is_anchor(v->op);
		for (int i = 0; !yes && measure_passes_anchor(v->op) && i < v->op->n_in; i++)
			yes = is_anchored(r, v->op->in[i].value);
		known = yes ? 2 : 1;
		ptrmap_put(r->memo, v, (void *)known);
	}
	return known == 2;
}

/* Visits ops in program order, so that the recursion above is never deep. */
static void find_anchored(Rewriter *r)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(r->m, s, op)
			for (int i = 0; i < op->n_out; i++)
				is_anchored(r, op->out[i]);
}

/* The type of v with dims of 1 added in front up to a rank. */
static Type raised(const Value *v, int rank)
{
	Type t = v->type;
	int extra = rank - v->type.rank;
	t.rank = rank;
	for (int k = 0; k < rank; k++)
		t.dim[k] = k < extra ? 1 : v->type.dim[k - extra];
	return t;
}

/* Whether moving dim 1 behind the others leaves the order of elements in memory as it is. */
static bool turns_for_free(const Type *t)
{
	int64_t behind = 1;
	for (int k = 2; k < t->rank; k++)
		behind *= t->dim[k];
	return t->rank < 3 || t->dim[1] == 1 || behind == 1;
}

/* The operand v of an op whose result, of the given rank, becomes channels-last. */
static Value *operand_to_last(Builder *b, Value *v, int rank)
{
	Value *x = match_first(v);
	if (x && v->type.rank == rank)
		return x;
	if (type_numel(&v->type) == 1 && v->type.rank <= 1)
		return v;
	Type t = raised(v, rank), last = t;
	if (t.dim[1] == type_numel(&v->type)) /* one number per channel: broadcasts along the last dim */
		return ir_reshape(b, v, 1, &t.dim[1]);
	if (!turns_for_free(&t))
		return to_last(b, ir_reshape(b, v, rank, t.dim));
	for (int k = 0; k < rank; k++)
		last.dim[dim_in_last(k, rank)] = t.dim[k];
	return ir_reshape(b, v, rank, last.dim);
}

/* What moving a transpose from the operands of an op to its result costs and saves: how many operands lose a
 * transpose, how many get one, and how many of each are anchored. */
typedef struct Trade { int lost, made, lost_anchored, made_anchored; bool anchored; } Trade;

static Trade trade_of(Rewriter *r, const Op *op)
{
	Trade t = {0};
	int rank = type_of(op)->rank;
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op->in[i].value;
		Type all = raised(v, rank);
		bool anchored = is_anchored(r, v), lost = v->type.rank == rank && match_first(v);
		bool made = !lost && all.dim[1] != type_numel(&v->type) && !turns_for_free(&all);
		t.anchored = t.anchored || anchored;
		t.lost += lost;
		t.made += made;
		t.lost_anchored += lost && anchored;
		t.made_anchored += made && anchored;
	}
	return t;
}

/* Whether the trade lowers the measure: LAYOUT, when anchored values lose more transposes than they get; WORK, when
 * no anchored value is concerned and there are fewer transposes afterwards.  A move that keeps the number must not
 * be made: [0,2,1] is its own inverse, so a move that only swaps the roles of two operands would be repeated
 * forever. */
static bool is_worth(const Trade *t)
{
	return t->anchored ? t->lost_anchored > t->made_anchored : t->lost > t->made;
}

static Value *through_elementwise(Rewriter *r, Op *op)
{
	enum { MAX_IN = 3 };
	int rank = type_of(op)->rank, turned = 0, whole = 0;
	Value *in[MAX_IN];
	if (!(op_info[op->kind].flags & EW) || op->n_in > MAX_IN)
		return NULL;
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op->in[i].value;
		bool is_whole = type_same_shape(&v->type, type_of(op));
		turned += is_whole && match_first(v);
		whole += is_whole;
	}
	if (!turned || 2 * turned < whole)
		return NULL;
	Trade t = trade_of(r, op);
	if (!is_worth(&t))
		return NULL;
	for (int i = 0; i < op->n_in; i++)
		in[i] = operand_to_last(&r->b, op->in[i].value, rank);
	r->b.name = op->out[0]->name;
	return to_first(&r->b, ir_emit(&r->b, op->kind, op->n_in, in, op->attrs));
}

static Value *through_dropout(Rewriter *r, Op *op)
{
	Value *x = match_first(op->in[0].value);
	if (!x || attr_get_int(op->attrs, "axis", 0) != 0)
		return NULL;
	return to_first(&r->b, ir_emit(&r->b, op->kind, 1, &x, op->attrs));
}

static Value *through_stop(Rewriter *r, Op *op)
{
	Value *x = match_first(op->in[0].value);
	return x ? to_first(&r->b, ir_emit1(&r->b, OP_STOP_GRADIENT, x)) : NULL;
}

static Value *through_axis_op(Rewriter *r, Op *op)
{
	Value *x = match_first(op->in[0].value);
	return x ? to_first(&r->b, ir_emit(&r->b, op->kind, 1, &x, permute_axis(r, op, x->type.rank))) : NULL;
}

static Value *through_pad(Rewriter *r, Op *op)
{
	Value *x = match_first(op->in[0].value);
	if (!x)
		return NULL;
	Attr *attrs = permute_ints(r, op, op->attrs, "before", x->type.rank);
	attrs = permute_ints(r, op, attrs, "after", x->type.rank);
	return to_first(&r->b, ir_emit(&r->b, OP_PAD, 1, &x, attrs));
}

static Value *through_concat(Rewriter *r, Op *op)
{
	int rank = type_of(op)->rank;
	Trade t = rank < 3 ? (Trade){0} : trade_of(r, op);
	if (!t.lost || 2 * t.lost < op->n_in || !is_worth(&t))
		return NULL;
	Value **in = NEW_N(r->scratch, Value *, op->n_in);
	for (int i = 0; i < op->n_in; i++) {
		Value *x = match_first(op->in[i].value);
		in[i] = x ? x : to_last(&r->b, op->in[i].value);
	}
	return to_first(&r->b, ir_emit(&r->b, OP_CONCAT, op->n_in, in, permute_axis(r, op, rank)));
}

static Value *through_split(Rewriter *r, Op *op)
{
	Value *x = match_first(op->in[0].value);
	if (!x)
		return NULL;
	Op *split = ir_emit_op(&r->b, OP_SPLIT, 1, &x, permute_axis(r, op, x->type.rank), NULL);
	for (int i = 1; i < op->n_out; i++)
		ir_replace_uses(op->out[i], to_first(&r->b, split->out[i]));
	return to_first(&r->b, split->out[0]);
}

static Value *through_gather(Rewriter *r, Op *op)
{
	Value *x = match_first(op->in[0].value);
	if (!x || op->in[1].value->type.rank != 1)
		return NULL;
	Value *in[2] = {x, op->in[1].value};
	return to_first(&r->b, ir_emit(&r->b, OP_GATHER, 2, in, permute_axis(r, op, x->type.rank)));
}

/* Without keepdims the remaining dims are put back in the order of [N,C,spatial]. */
static Value *through_reduce(Rewriter *r, Op *op)
{
	Value *x = match_first(op->in[0].value);
	const Attr *axes = attr_find(op->attrs, "axes");
	if (!x)
		return NULL;
	bool keep = attr_get_int(op->attrs, "keepdims", 0);
	int rank = x->type.rank, left[IR_MAX_RANK], perm[IR_MAX_RANK], n = 0;
	int64_t now[IR_MAX_RANK];
	bool gone[IR_MAX_RANK] = {false};
	for (int i = 0; i < axes->n; i++) {
		now[i] = dim_in_last(axes->ints[i], rank);
		gone[now[i]] = true;
	}
	Value *y = ir_emit(&r->b, op->kind, 1, &x, attr_ints(r->m, op->attrs, "axes", axes->n, now));
	if (keep)
		return to_first(&r->b, y);
	for (int k = 0, at = 0; k < rank; k++)
		left[k] = gone[k] ? -1 : at++;
	for (int k = 0; k < rank; k++)
		if (left[dim_in_last(k, rank)] >= 0)
			perm[n++] = left[dim_in_last(k, rank)];
	return ir_transpose(&r->b, y, perm);
}

/* Each rule lowers LAYOUT of passes/rewrite/measure.h, or keeps it and lowers WORK: an op becomes channels-last
 * once and stays so, and transposes only move down, away from such ops. */
static const Rule rules[] = {
	{OP_CONV, "layout 0 -> transpose, layout 1, transpose", convert},
	{OP_CONV_GRAD_X, "layout 0 -> transpose, layout 1, transpose", convert},
	{OP_MAX_POOL, "layout 0 -> transpose, layout 1, transpose", convert},
	{OP_AVG_POOL, "layout 0 -> transpose, layout 1, transpose", convert},
	{OP_BATCH_NORM, "layout 0 -> transpose, layout 1, transpose", convert},
	{RULE_ANY, "elementwise(transpose(x), y) -> transpose(elementwise(x, transpose(y)))", through_elementwise},
	{OP_DROPOUT, "dropout(transpose(x)) -> transpose(dropout(x))", through_dropout},
	{OP_STOP_GRADIENT, "stop_gradient(transpose(x)) -> transpose(stop_gradient(x))", through_stop},
	{OP_SOFTMAX, "softmax(transpose(x)) -> transpose(softmax(x))", through_axis_op},
	{OP_LOG_SOFTMAX, "log_softmax(transpose(x)) -> transpose(log_softmax(x))", through_axis_op},
	{OP_PAD, "pad(transpose(x)) -> transpose(pad(x))", through_pad},
	{OP_CONCAT, "concat(transpose(x), y) -> transpose(concat(x, transpose(y)))", through_concat},
	{OP_SPLIT, "split(transpose(x)) -> transposes(split(x))", through_split},
	{OP_GATHER, "gather(transpose(x), ids) -> transpose(gather(x, ids))", through_gather},
	{OP_REDUCE_SUM, "reduce(transpose(x)) -> transpose(reduce(x))", through_reduce},
	{OP_REDUCE_MEAN, "reduce(transpose(x)) -> transpose(reduce(x))", through_reduce},
	{OP_REDUCE_MAX, "reduce(transpose(x)) -> transpose(reduce(x))", through_reduce},
	{OP_REDUCE_MIN, "reduce(transpose(x)) -> transpose(reduce(x))", through_reduce},
	{OP_REDUCE_PROD, "reduce(transpose(x)) -> transpose(reduce(x))", through_reduce},
};

bool pass_layout(Module *m, const Options *o, Diag *d)
{
	const RuleSet sets[] = {{rules, COUNT_OF(rules)}, canon_rules};
	bool any = false;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			any = any || measure_is_anchor(op);
	if (!any)
		return true;
	rewrite_module(m, d, COUNT_OF(sets), sets, find_anchored, NULL);
	/* Merges equal transposes: an image that several convolutions read is transposed once. */
	return pass_cse(m, o, d);
}
