/* predict/cost.c: the column cost of ir/ops.def, and the time of work on a machine. */
#include "predict/cost.h"

#include <math.h>
#include <string.h>

#include "base/optimizer.h"

const char *const cost_class_text[COST_CLASSES] = {"nothing", "matmul", "conv", "attention", "recurrence", "loops",
	"rows", "moves", "update", "collectives"};

/* ---- work ---- */

typedef Work CostFn(const Op *op, const LayoutRank *who);
#define OP(id, text, imin, imax, out, flags, first, last, attrs, shape, grad, eval, lower, cost, ...) \
	static CostFn cost_##cost;
#include "ir/ops.def"
static CostFn *const rule[OP_COUNT] = {
#define OP(id, text, imin, imax, out, flags, first, last, attrs, shape, grad, eval, lower, cost, ...) \
	[OP_##id] = cost_##cost,
#include "ir/ops.def"
};

static double numel(const Value *v)
{
	return v ? (double)type_numel(&v->type) : 0;
}

static double bytes_of(const Value *v)
{
	return v && v->type.kind == TYPE_TENSOR ? (double)type_bytes(&v->type) : 0;
}

static double results(const Op *op)
{
	double sum = 0;
	for (int i = 0; i < op->n_out; i++)
		sum += bytes_of(op->out[i]);
	return sum;
}

static double operands(const Op *op)
{
	double sum = 0;
	for (int i = 0; i < op->n_in; i++)
		sum += bytes_of(op_in(op, i));
	return sum;
}

/* Every operand is read and every result written. */
static Work streamed(const Op *op, CostClass class)
{
	return (Work){.class = class, .bytes = operands(op) + results(op), .calls = 1};
}

static Work cost_none(const Op *op, const LayoutRank *who)
{
	(void)op, (void)who;
	return (Work){.class = COST_NONE};
}

/* Tensors of several axes that are reduced, normalised or moved. */
static Work cost_stream(const Op *op, const LayoutRank *who)
{
	(void)who;
	bool rows = op_info[op->kind].flags & WITHIN || op->n_out > 1
		|| (op->kind >= OP_REDUCE_SUM && op->kind <= OP_REDUCE_PROD);
	return streamed(op, rows ? COST_ROWS : COST_MOVE);
}

/* Of operand 0 only what the results have is read. */
static Work cost_lookup(const Op *op, const LayoutRank *who)
{
	(void)who;
	Work w = streamed(op, COST_MOVE);
	w.bytes += results(op) - bytes_of(op_in(op, 0));
	return w;
}

static Work cost_collective(const Op *op, const LayoutRank *who)
{
	(void)op, (void)who;
	return (Work){.class = COST_COLLECTIVE};
}

/* An exponential or logarithm for each element of operand 0. */
static Work cost_softmax(const Op *op, const LayoutRank *who)
{
	(void)who;
	Work w = streamed(op, COST_ROWS);
	w.special = numel(op_in(op, op->kind == OP_CROSS_ENTROPY_GRAD));
	return w;
}

static Work cost_random(const Op *op, const LayoutRank *who)
{
	(void)who;
	Work w = streamed(op, COST_LOOP);
	w.special = op->n_out ? numel(op->out[0]) : 0;
	return w;
}

/* Whether a value of this op takes a processor many cycles. */
static bool is_special(OpKind kind)
{
	static const OpKind cheap[] = {OP_NEG, OP_ABS, OP_SIGN, OP_SQRT, OP_RSQRT, OP_RECIP, OP_RELU, OP_CLIP, OP_FLOOR,
		OP_CEIL, OP_ROUND, OP_NOT, OP_ISNAN, OP_ISINF, OP_ROUND_TO, OP_QUANTIZE, OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_MAX,
		OP_MIN, OP_EQ, OP_LT, OP_LE, OP_GT, OP_GE, OP_AND, OP_OR, OP_XOR, OP_SHL, OP_SHR, OP_CAST, OP_BITCAST,
		OP_WHERE};
	for (int i = 0; i < COUNT_OF(cheap); i++)
		if (cheap[i] == kind)
			return false;
	return op_info[kind].flags & EW;
}

static Work cost_ew(const Op *op, const LayoutRank *who)
{
	(void)who;
	Work w = streamed(op, COST_LOOP);
	w.special = is_special(op->kind) ? numel(op->out[0]) : 0;
	return w;
}

static Work cost_fused(const Op *op, const LayoutRank *who)
{
	(void)who;
	Work w = streamed(op, COST_LOOP);
	double n = 0;
	for (int i = 0; i < op->n_out; i++)
		n = MAX(n, numel(op->out[i]));
	for (const Op *b = op->body_first; b; b = b->next)
		w.special += is_special(b->kind) || op_info[b->kind].flags & RNG ? n : 0;
	return w;
}

enum { TILE = 128 };

/* `count` products of [m,k] and [k,n]. */
static Work product(CostClass class, double count, double m, double n, double k, DType dtype)
{
	return (Work){.class = class, .flops = 2 * count * m * n * k, .tiles = count * ceil(m / TILE) * ceil(n / TILE),
		.dtype = dtype, .calls = 1};
}

static Work cost_matmul(const Op *op, const LayoutRank *who)
{
	(void)who;
	const Type *a = &op_in(op, 0)->type, *y = &op->out[0]->type;
	bool ta = attr_get_int(op->attrs, "ta", 0);
	double k = a->rank < 2 ? (double)a->dim[0] : (double)a->dim[a->rank - (ta ? 2 : 1)];
	double n = y->rank ? (double)y->dim[y->rank - 1] : 1, m = y->rank > 1 ? (double)y->dim[y->rank - 2] : 1;
	double count = n * m > 0 ? numel(op->out[0]) / (n * m) : 0;
	Work w = product(COST_MATMUL, count, m, n, k, a->dtype);
	w.bytes = operands(op) + results(op);
	return w;
}

/* Their results stand side by side, so only the last column of tiles of them all, and only the last wave, is not full:
 * who has this part of the columns has no less of the tiles, and of the waves, than counted in fractions here. */
void cost_join(Work *w, const Op *op)
{
	w->part = true;
	w->tiles = numel(op->out[0]) / (TILE * TILE);
	w->calls = 0;
	w->bytes = MAX(w->bytes - bytes_of(op_in(op, 0)), 0);
}

/* Both scales are read by the way. */
static Work cost_matmul_f8(const Op *op, const LayoutRank *who)
{
	(void)who;
	const Type *b = &op_in(op, 1)->type;
	double n = (double)b->dim[0], k = (double)b->dim[1], m = k > 0 ? numel(op_in(op, 0)) / k : 0;
	Work w = product(COST_MATMUL, 1, m, n, k, DT_E4M3);
	w.bytes = operands(op) + results(op);
	return w;
}

/* The largest number of a tensor, and its quantisation; each of them reads it, the former by two kernels. */
static Work cost_f8(const Op *op, const LayoutRank *who)
{
	(void)who;
	Work w = streamed(op, COST_LOOP);
	w.calls = op->kind == OP_F8_SCALE ? 2 : 1;
	return w;
}

/* The three products of a convolution have equal flops: for each output the kernel's taps of a group's channels. */
static Work cost_conv(const Op *op, const LayoutRank *who)
{
	(void)who;
	const Value *y = op->kind == OP_CONV_GRAD_X ? op_in(op, 0) : op->kind == OP_CONV_GRAD_W ? op_in(op, 1) : op->out[0];
	const Value *w = op->kind == OP_CONV_GRAD_W ? op->out[0] : op_in(op, 1);
	double o = (double)w->type.dim[0], taps = o > 0 ? numel(w) / o : 0, rows = o > 0 ? numel(y) / o : 0;
	double group = (double)attr_get_int(op->attrs, "group", 1);
	Work work = product(COST_CONV, group, rows, o / group, taps, op_in(op, 0)->type.dtype);
	if (op->kind == OP_CONV_GRAD_W)
		work.tiles = 0; /* kernels split the rows among processors */
	work.bytes = operands(op) + results(op);
	return work;
}

/* The share of queries and keys that see each other: windows of `left` and `right` around the diagonal. */
static double seen(const Op *op, double t, double s)
{
	int64_t left = attr_get_int(op->attrs, "left", -1), right = attr_get_int(op->attrs, "right", -1);
	double pairs = t * s;
	if (pairs <= 0 || (!attr_find(op->attrs, "left") && !attr_find(op->attrs, "right")))
		return 1;
	double before = attr_find(op->attrs, "left") ? MIN((double)left, s) : s;
	double after = attr_find(op->attrs, "right") ? MIN((double)right, s) : s;
	double sum = 0;
	int64_t step = MAX((int64_t)(t / 1024), 1), rows = 0;
	for (int64_t row = 0; row < (int64_t)t; row += step, rows++)
		sum += MAX(MIN((double)row + after, s - 1) - MAX((double)row - before, 0) + 1, 0);
	return sum / ((double)rows * s);
}

/* What the library takes for a mask: a bias that one kernel writes, and kernels that look for rows without keys and, if
 * there are none, end at once. */
static void add_mask(Work *w, const Type *mask, double keys, bool grad)
{
	double biases = mask->rank ? (double)type_numel(mask) / (double)MAX(mask->dim[mask->rank - 1], 1) : 1;
	w->bytes += 2 * 4 * biases * keys;
	w->calls += grad ? 6 : 3;
}

static Work attend(const Op *op, int q, double products)
{
	const Type *a = &op_in(op, q)->type, *b = &op_in(op, q + 1)->type, *c = &op_in(op, q + 2)->type;
	bool layout = attr_get_int(op->attrs, "layout", 0);
	double t = (double)a->dim[layout ? 1 : 2], s = (double)b->dim[layout ? 1 : 2];
	double heads = (double)(a->dim[0] * a->dim[layout ? 2 : 1]), d = (double)(a->dim[3] + c->dim[3]) / 2;
	double keys = s * seen(op, t, s), pairs = heads * t * keys;
	Work w = {.class = COST_ATTENTION, .flops = 2 * products * pairs * d, .bytes = operands(op) + results(op),
		.special = pairs, .keys = keys, .dtype = a->dtype, .calls = 1, .backward = q,
		.library = attr_get_int(op->attrs, "library", 0)};
	if (w.library && op_in(op, q + 3))
		add_mask(&w, &op_in(op, q + 3)->type, s, q);
	return w;
}

static Work cost_attention(const Op *op, const LayoutRank *who)
{
	(void)who;
	return attend(op, 0, 2);
}

/* Scores once more, and the gradients of q, k, v and the weights. */
static Work cost_attention_grad(const Op *op, const LayoutRank *who)
{
	(void)who;
	return attend(op, 1, 5);
}

/* Of T steps one after the other: h_{t-1} r^T, of [B,H] and [G H,H]. */
static Work cost_recurrence(const Op *op, const LayoutRank *who)
{
	(void)who;
	bool grad = op->kind == OP_RECURRENCE_GRAD;
	const Value *r = op_in(op, !grad), *y = grad ? op_in(op, 1) : op->out[0];
	double steps = (double)y->type.dim[0], batch = (double)y->type.dim[1];
	Work w = product(COST_RECURRENCE, steps, batch, (double)r->type.dim[0], (double)r->type.dim[1], r->type.dtype);
	w.bytes = operands(op) + results(op) + steps * bytes_of(r);
	w.special = steps * batch * (double)r->type.dim[0];
	w.tiles /= steps;
	w.calls = steps;
	return w;
}

static Work logits(const Op *op, int h, double products)
{
	const Type *x = &op_in(op, h)->type, *w = &op_in(op, h + 1)->type;
	double d = (double)x->dim[x->rank - 1], rows = numel(op_in(op, h)) / d, c = numel(op_in(op, h + 1)) / d;
	double block = (double)attr_get_int(op->attrs, "block", 1);
	Work work = product(COST_MATMUL, products, rows, c, d, w->dtype);
	work.bytes = operands(op) + results(op) + products * rows * c * dtype_info[x->dtype].bytes;
	work.special = rows * c;
	work.calls = 2 * products * ceil(rows / MAX(block, 1));
	return work;
}

static Work cost_head(const Op *op, const LayoutRank *who)
{
	(void)who;
	return logits(op, 0, 1);
}

static Work cost_head_grad(const Op *op, const LayoutRank *who)
{
	(void)who;
	double products = 1 + (double)attr_get_int(op->attrs, "dh", 0) + (double)attr_get_int(op->attrs, "dw", 0);
	return logits(op, 1, products);
}

static Work cost_loop(const Op *op, const LayoutRank *who)
{
	double steps = (double)loop_steps(op);
	Work sum = {.class = COST_LOOP};
	IR_FOR_OPS(op->body, SEC_FORWARD, inner) {
		Work w = cost_of(inner, who);
		sum.flops += steps * w.flops;
		sum.bytes += steps * w.bytes;
		sum.special += steps * w.special;
		sum.calls += steps * w.calls;
		sum.dtype = w.flops > 0 ? w.dtype : sum.dtype;
	}
	return sum;
}

static Work cost_accumulate(const Op *op, const LayoutRank *who)
{
	(void)who;
	if (op->n_in < 2)
		return op->n_in ? streamed(op, COST_MOVE) : (Work){.class = COST_NONE};
	const Type *a = &op_in(op, 0)->type;
	double k = (double)a->dim[a->rank - (attr_get_int(op->attrs, "ta", 0) ? 2 : 1)], n = numel(op_in(op, 1)) / k;
	Work w = product(COST_MATMUL, 1, numel(op_in(op, 0)) / k, n, k, a->dtype);
	w.bytes = operands(op) + 2 * bytes_of(op->out[0]);
	return w;
}

/* ---- work on shards ---- */

static LayoutUnit layout_unit(const Unit *u)
{
	LayoutUnit l = {.strategy = u->strategy, .owner = u->owner, .n_flats = u->n_flats};
	memcpy(l.flat, u->flat, sizeof(l.flat));
	return l;
}

static double shard_bytes(const Unit *u, const LayoutRank *who, int states, bool written)
{
	double sum = 0;
	LayoutUnit l = layout_unit(u);
	for (int f = 0; f < u->n_flats; f++) {
		if (!u->flat[f].trainable)
			continue;
		double n = (double)layout_range(&l, f, who).n;
		int kept = dtype_info[layout_update_dtype(&l, f, who)].bytes;
		sum += n * (kept + (written ? 8.0 * (1 + states) + (u->flat[f].master ? 2 : 0) : 0));
	}
	return sum;
}

/* Sets what of an update's bytes may lie elsewhere: every number is read, and written again. */
static void find_offloadable(Work *w, const Unit *u, const LayoutRank *who, int states)
{
	LayoutUnit l = layout_unit(u);
	for (int f = 0; f < u->n_flats; f++) {
		double n = u->flat[f].trainable ? (double)layout_range(&l, f, who).n : 0;
		w->states += n * 4 * (states + (u->flat[f].master ? 1 : 0));
		w->rest += n * dtype_info[u->flat[f].dtype].bytes;
	}
}

static Work cost_update(const Op *op, const LayoutRank *who)
{
	OptimizerChoice choice = {0};
	const char *text = attr_get_str(op->attrs, "optimizer", NULL);
	int states = optimizer_read(text, &choice) ? choice.info->n_states : 0;
	Work w = {.class = COST_UPDATE, .bytes = shard_bytes(op->unit, who, states, true), .calls = 1};
	find_offloadable(&w, op->unit, who, states);
	return w;
}

/* Its operands are the gradients of units, by the waits that they come from. */
static Work cost_sumsq(const Op *op, const LayoutRank *who)
{
	Work w = {.class = COST_UPDATE, .calls = 1};
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		const Op *made = v->op->kind == OP_WAIT ? op_in(v->op, 0)->op : v->op;
		w.bytes += made->unit ? shard_bytes(made->unit, who, 0, false) : 0;
	}
	return w;
}

static bool reads_again(const Op *op)
{
	bool reads = false;
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		reads = reads || (v && v->op && op_is_again(v->op));
	}
	return reads;
}

Work cost_of(const Op *op, const LayoutRank *who)
{
	Work w = rule[op->kind](op, who);
	w.again = op_is_again(op) || reads_again(op);
	return w;
}

Work cost_of_issue(const Op *op, const LayoutRank *who)
{
	Work w = {.class = COST_NONE};
	bool gathers = op->kind == OP_ALL_GATHER && op->unit && !strategy_info[op->unit->strategy].owned;
	int64_t ranks = gathers ? layout_split(op->unit->strategy, who).ranks : 1;
	for (int f = 0; gathers && f < op->unit->n_flats; f++) {
		const Flat *flat = &op->unit->flat[f];
		double n = (double)layout_shard_numel(flat->numel, ranks);
		if (flat->param != flat->dtype)
			w = (Work){.class = COST_MOVE, .calls = w.calls + 1,
				.bytes = w.bytes + n * (dtype_info[flat->dtype].bytes + dtype_info[flat->param].bytes)};
	}
	return w;
}

char *cost_signature(const Op *op, const Work *w, Arena *a)
{
	if (op_info[op->kind].flags & COMM)
		return arena_printf(a, "%s %s of %.0f bytes %s", op_info[op->kind].text, attr_get_str(op->attrs, "cast", "f32"),
			w->bytes, attr_get_str(op->attrs, "round", "nearest"));
	if (w->class != COST_UPDATE)
		return ir_signature(op, a);
	const char *optimizer = attr_get_str(op->attrs, "optimizer", "");
	return arena_printf(a, "%s f32 of %.0f bytes%s%s", op_info[op->kind].text, w->bytes, *optimizer ? " " : "",
		optimizer);
}

const char *cost_row(const Op *op, const Work *w, Arena *a)
{
	const char *text = cost_signature(op, w, a);
	return w->again ? arena_printf(a, "%s" COST_AGAIN, text) : text;
}
