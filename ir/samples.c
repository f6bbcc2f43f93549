/* ir/samples.c: finds out how a value depends on the samples of a micro-batch.
 *
 * The analysis goes from a value back to the inputs, op by op, and keeps every answer.  A value has a part for each
 * sample along one axis, until a reduction turns the parts into a total; totals stay sums or means through linear ops.
 * An op mixes samples when it combines several of them in one number, or picks samples by their position in the batch.
 * Behind an op without a rule nothing is claimed: the samples are lost. */
#include "ir/samples_look.h"

#include <math.h>
#include <string.h>

/* ---- what all rules say ---- */

Samples look_lost(const Look *l)
{
	Samples x = l->out;
	x.kind = SAMPLES_LOST;
	for (int i = 0; i < l->op->n_in; i++) {
		x.lost = x.lost ? x.lost : l->in[i].lost;
		x.whole = x.whole || l->in[i].whole;
	}
	x.lost = x.lost ? x.lost : l->op;
	return x;
}

Samples look_mixed(const Look *l, Samples x)
{
	x.mixes = x.mixes ? x.mixes : l->op;
	return x;
}

/* Whether operand i depends on no sample, but has different numbers for different positions along the axis of
 * samples. */
bool look_is_placed(const Look *l, int i, int axis)
{
	const Value *v = op_in(l->op, i);
	return v && l->in[i].kind == SAMPLES_NONE && !samples_is_same(&l->in[i], v, axis);
}

Samples look_placed(const Look *l, Samples x)
{
	x.placed = x.placed || l->s->m->batch == 1 ? x.placed : l->op; /* a batch of one sample has only one position */
	return x;
}

/* Marks x, whose samples are along an axis, as placed if an operand is.  Operands are aligned at the right with a shape
 * of this rank. */
Samples look_with_places(const Look *l, Samples x, int rank)
{
	bool any = false;
	for (int i = 0; x.kind == SAMPLES_AXIS && i < l->op->n_in; i++)
		any = any || (op_in(l->op, i) && look_is_placed(l, i, x.axis - (rank - op_in(l->op, i)->type.rank)));
	return any ? look_placed(l, x) : x;
}

Samples look_along(const Look *l, const Samples *from, int axis)
{
	Samples x = *from;
	x.axis = axis;
	x.mixes = l->out.mixes;
	x.placed = l->out.placed;
	x.trained = l->out.trained;
	return x;
}

/* ---- elementwise ---- */

/* Whether all elements of v are one known number; *out is set to it. */
static bool number_of(const Value *v, double *out)
{
	while (v->op->kind == OP_CAST || v->op->kind == OP_BROADCAST || v->op->kind == OP_RESHAPE
			|| v->op->kind == OP_STOP_GRADIENT)
		v = op_in(v->op, 0);
	const Attr *a = v->op->kind == OP_CONST ? attr_find(v->op->attrs, "value") : NULL;
	if (!a || a->n != 1)
		return false;
	*out = dtype_is_float(v->type.dtype) ? a->floats[0] : (double)a->ints[0];
	return true;
}

static bool divides_by_batch(double factor, int64_t batch)
{
	double k = 1 / (factor * (double)batch);
	return factor != 1 && k > 0.999 && fabs(k - round(k)) < 1e-4 * k;
}

bool samples_is_scaled_by_batch(const SampleScan *s, const Samples *x)
{
	double f = fabs(x->scale);
	return x->kind == SAMPLES_SUM ? divides_by_batch(f, s->m->batch)
		: x->kind == SAMPLES_MEAN && f > 0 && divides_by_batch(1 / f, s->m->batch);
}

bool samples_is_plain(const SampleScan *s, const Samples *x)
{
	return (x->kind == SAMPLES_SUM || x->kind == SAMPLES_MEAN) && !x->unsure && !samples_is_scaled_by_batch(s, x);
}

/* The factor of a + b, which are of the same kind: that of the operand that is scaled by the batch size, if one is. */
static double telling(const SampleScan *s, const Samples *a, const Samples *b)
{
	return a->scale == b->scale || samples_is_scaled_by_batch(s, a) ? a->scale
		: samples_is_scaled_by_batch(s, b) ? b->scale : 1;
}

/* Elementwise ops on totals and values that depend on no sample. */
static Samples of_totals(const Look *l)
{
	const Samples *a = &l->in[0], *b = l->op->n_in > 1 ? &l->in[1] : a;
	const Samples *total = is_total(a) ? a : b, *other = total == a ? b : a;
	Samples x = *total;
	double factor = 1;
	x.mixes = l->out.mixes;
	x.placed = l->out.placed;
	x.trained = l->out.trained;
	switch (l->op->kind) {
	case OP_NEG: case OP_CAST: case OP_BROADCAST:
		return x;
	case OP_ADD: case OP_SUB:
		if (a->kind != b->kind && !(total->kind == SAMPLES_MEAN && other->kind == SAMPLES_NONE)) {
			x = look_lost(l);
			x.whole = true;
			return x;
		}
		x.scale = is_total(other) ? telling(l->s, a, b) : x.scale;
		return x;
	case OP_MUL: case OP_DIV:
		if (other->kind != SAMPLES_NONE || (l->op->kind == OP_DIV && total == b))
			return look_mixed(l, look_lost(l));
		if (number_of(op_in(l->op, total == a), &factor))
			x.scale *= l->op->kind == OP_MUL ? factor : 1 / factor;
		return x;
	default:
		return look_mixed(l, look_lost(l));
	}
}

/* Elementwise ops on parts of samples: operands are aligned at the right and must have the samples along one axis. */
static Samples of_parts(const Look *l)
{
	int rank = l->op->out[0]->type.rank;
	const Samples *first = NULL;
	Samples x = {0};
	bool apart = false, lost = false;
	for (int i = 0; i < l->op->n_in; i++) {
		const Samples *in = &l->in[i];
		lost = lost || in->kind == SAMPLES_LOST;
		apart = apart || is_total(in) || in->whole;
		if (in->kind != SAMPLES_AXIS)
			continue;
		int axis = in->axis + rank - op_in(l->op, i)->type.rank;
		apart = apart || (first && (axis != x.axis || !same_order(in, first)));
		x = first ? x : look_along(l, in, axis);
		first = first ? first : in;
	}
	x = first && !lost ? look_with_places(l, x, rank) : look_lost(l);
	return apart && first ? look_mixed(l, x) : x;
}

static Samples of_elementwise(const Look *l)
{
	bool totals = false, parts = false;
	double factor;
	for (int i = 0; i < l->op->n_in; i++) {
		totals = totals || is_total(&l->in[i]);
		parts = parts || l->in[i].kind == SAMPLES_AXIS || l->in[i].kind == SAMPLES_LOST;
	}
	if (totals && !parts)
		return of_totals(l);
	Samples x = of_parts(l);
	OpKind k = l->op->kind;
	if (k == OP_ADD || k == OP_SUB)
		x.scale = l->in[0].kind == l->in[1].kind ? telling(l->s, &l->in[0], &l->in[1]) : 1;
	else if (k == OP_MUL && number_of(op_in(l->op, 0), &factor))
		x.scale = l->in[1].scale * factor;
	else if ((k == OP_MUL || k == OP_DIV) && number_of(op_in(l->op, 1), &factor))
		x.scale = k == OP_MUL ? l->in[0].scale * factor : l->in[0].scale / factor;
	else if (k != OP_NEG && k != OP_CAST && k != OP_BROADCAST)
		x.scale = 1;
	return x;
}

/* ---- moves ---- */

/* Of one sample the batch ends where it begins, so it may be in the dim of the result that ends there, or in `at`, the
 * next one: [T,1,E] becomes [T*1,E] or [T,1*E].  It is taken to be in `at` if that has a dim of 1, or if what is behind
 * the sample axis becomes more dims, as with heads: [T,1,E] to [T,1*H,D]. */
static bool begins_next(const Type *from, int axis, const Type *to, int at)
{
	return to->dim[at] == 1 || to->rank - at > from->rank - axis - 1;
}

/* Finds the axis of the result that has the samples.  Dims before it must cover whole batches, dims behind it whole
 * samples: [T,B,E] to [T*B,E], and back. */
static Samples of_reshape(const Look *l)
{
	const Samples *in = &l->in[0];
	const Type *from = &op_in(l->op, 0)->type, *to = &l->op->out[0]->type;
	int64_t before = MAX(in->batches, 1), n = 1, batch = l->s->m->batch; /* before: rows of whole batches */
	Samples x = look_lost(l);
	for (int i = 0; i < in->axis; i++)
		before *= from->dim[i];
	for (int i = 0; i < to->rank && before && n <= before; n *= to->dim[i++]) {
		bool holds = in->batches ? n && before % n == 0 && to->dim[i] % (before / n * batch) == 0
			: n == before && to->dim[i] == from->dim[in->axis];
		if (!holds || (batch == 1 && n == before && x.kind == SAMPLES_AXIS && !begins_next(from, in->axis, to, i)))
			continue;
		x = look_along(l, in, i);
		x.batches = in->batches ? before / n : 0;
		if (n == before)
			break;
	}
	return x;
}

static Samples of_transpose(const Look *l)
{
	const Attr *perm = attr_find(l->op->attrs, "perm");
	for (int i = 0; i < perm->n; i++)
		if (perm->ints[i] == l->in[0].axis)
			return look_along(l, &l->in[0], i);
	return look_lost(l);
}

/* Number of elements of one batch along the sample axis; 0: samples are in no known order. */
static int64_t batch_along(const Samples *x, const Value *v)
{
	return x->batches ? v->type.dim[x->axis] / x->batches : 0;
}

/* Concatenation along the sample axis puts whole batches one behind the other, such as several views of the samples. */
static Samples of_concat(const Look *l)
{
	Samples x = is_total(&l->in[0]) ? l->in[0] : of_parts(l);
	for (int i = 0; i < l->op->n_in && is_total(&x); i++) {
		if (l->in[i].kind != x.kind)
			return look_lost(l);
		x = look_along(l, &x, 0);
		x.scale = telling(l->s, &x, &l->in[i]);
	}
	if (x.kind != SAMPLES_AXIS || x.axis != attr_get_int(l->op->attrs, "axis", 0))
		return x;
	x.mixes = l->out.mixes;
	int64_t one = batch_along(&l->in[0], op_in(l->op, 0));
	x.batches = 0;
	for (int i = 0; i < l->op->n_in; i++) {
		if (l->in[i].kind != SAMPLES_AXIS || l->in[i].axis != x.axis)
			return look_mixed(l, look_lost(l));
		one = batch_along(&l->in[i], op_in(l->op, i)) == one ? one : 0;
		x.batches += l->in[i].batches;
	}
	x.batches = one ? x.batches : 0;
	return x;
}

/* Takes `size` elements from `start` along the sample axis: some of several whole batches, or else samples picked by
 * their position, which mixes. */
static Samples of_cut(const Look *l, int64_t start, int64_t size)
{
	Samples x = look_along(l, &l->in[0], l->in[0].axis);
	int64_t one = batch_along(&x, op_in(l->op, 0));
	bool whole = one && start % one == 0 && size % one == 0;
	x.batches = whole ? size / one : 0;
	return whole ? x : look_mixed(l, x);
}

static Samples of_slice(const Look *l)
{
	int axis = l->in[0].axis;
	int64_t size = l->op->out[0]->type.dim[axis];
	bool dense = attr_find(l->op->attrs, "steps")->ints[axis] == 1 || size < 2;
	if (op_in(l->op, 0)->type.dim[axis] == size && dense)
		return look_along(l, &l->in[0], axis);
	Samples x = of_cut(l, attr_find(l->op->attrs, "starts")->ints[axis], size);
	return dense ? x : look_mixed(l, x);
}

static Samples of_split(const Look *l, const Value *v)
{
	const Attr *sizes = attr_find(l->op->attrs, "sizes");
	int64_t start = 0;
	if (l->in[0].axis != attr_get_int(l->op->attrs, "axis", 0))
		return look_along(l, &l->in[0], l->in[0].axis);
	for (int i = 0; i < v->index; i++)
		start += sizes->ints[i];
	return of_cut(l, start, sizes->ints[v->index]);
}

/* ---- choosing by index ---- */

static Samples of_gather(const Look *l)
{
	const Samples *x = &l->in[0], *ids = &l->in[1];
	int axis = (int)attr_get_int(l->op->attrs, "axis", 0), extra = op_in(l->op, 1)->type.rank - 1;
	if (x->kind == SAMPLES_NONE && ids->kind == SAMPLES_AXIS)
		return look_along(l, ids, ids->axis + axis);
	if (x->kind != SAMPLES_AXIS || ids->kind == SAMPLES_LOST || is_total(ids))
		return look_lost(l);
	if (x->axis == axis || ids->kind != SAMPLES_NONE)
		return look_mixed(l, look_lost(l));
	return look_along(l, x, x->axis < axis ? x->axis : x->axis + extra);
}

/* gather_elements and scatter_elements, which work element by element along one axis.  If an operand is shorter along
 * the axis of samples, only the first samples are used. */
static Samples of_elements(const Look *l)
{
	Samples x = of_parts(l);
	if (x.kind != SAMPLES_AXIS)
		return x;
	int64_t dim = l->op->out[0]->type.dim[x.axis];
	bool apart = x.axis == attr_get_int(l->op->attrs, "axis", 0), whole = true;
	for (int i = l->in[0].kind == SAMPLES_NONE; i < l->op->n_in; i++)
		whole = whole && op_in(l->op, i)->type.dim[x.axis] == dim;
	x.batches = whole ? x.batches : 0;
	return apart || !whole ? look_mixed(l, x) : x;
}

/* The axis of the op's operand that corresponds to an axis of its result; the op is a broadcast, cast or reshape.  For
 * a reshape, dims before the axis are known to be 1, so it is the first dim of the operand that is not 1. */
static int axis_in_operand(const Op *op, int axis)
{
	const Type *from = &op_in(op, 0)->type;
	if (op->kind == OP_BROADCAST)
		return axis - (op->out[0]->type.rank - from->rank);
	if (op->kind == OP_RESHAPE)
		for (axis = 0; axis < from->rank && from->dim[axis] == 1; axis++)
			;
	return axis;
}

/* Whether v is 0, 1, .., n-1 along its first axis and constant along all others: the number of the row. */
static bool is_row_number(const Value *v, int64_t n)
{
	int axis = 0;
	if (!v->type.rank || v->type.dim[0] != n)
		return false;
	while (v->op->kind == OP_RESHAPE || v->op->kind == OP_CAST || v->op->kind == OP_BROADCAST) {
		axis = axis_in_operand(v->op, axis);
		v = op_in(v->op, 0);
		if (axis < 0 || axis >= v->type.rank || v->type.dim[axis] != n)
			return false;
	}
	const Attr *a = v->op->kind == OP_CONST ? attr_find(v->op->attrs, "value") : NULL;
	if (v->op->kind == OP_IOTA)
		return attr_get_int(v->op->attrs, "axis", 0) == axis && attr_get_float(v->op->attrs, "start", 0) == 0
			&& attr_get_float(v->op->attrs, "step", 1) == 1;
	for (int i = 0; a && i < a->n; i++)
		if (dtype_is_float(v->type.dtype) || a->ints[i] != i)
			return false;
	return a && a->n == n && type_numel(&v->type) == n;
}

/* x[arange(B), ids], and gathers with batch dims: the first dims of both operands are rows of the batch.  One operand
 * may be the same for all samples. */
static Samples of_rows(const Look *l, bool numbered)
{
	const Samples *x = &l->in[0], *ids = &l->in[1], *parts = x->kind == SAMPLES_AXIS ? x : ids;
	const Op *tuple = op_in(l->op, 1)->op;
	bool x_fits = x->kind == SAMPLES_NONE || (x->kind == SAMPLES_AXIS && x->axis == 0);
	bool ids_fit = ids->kind == SAMPLES_NONE || (ids->kind == SAMPLES_AXIS && ids->axis == 0);
	if (!x_fits || !ids_fit || parts->kind != SAMPLES_AXIS)
		return look_lost(l);
	Samples y = look_along(l, parts, 0);
	bool places = look_is_placed(l, 0, 0) || (!numbered && look_is_placed(l, 1, 0));
	y.placed = numbered ? x->placed : y.placed; /* row numbers differ by position, but do not pick samples by it */
	for (int i = 1; numbered && i < tuple->n_in; i++) {
		const Samples *known = ptrmap_get(l->s->known, op_in(tuple, i));
		places = places || (known->kind == SAMPLES_NONE && !samples_is_same(known, op_in(tuple, i), 0));
		y.placed = y.placed ? y.placed : known->placed;
	}
	y = places ? look_placed(l, y) : y;
	return x->kind == ids->kind && !same_order(x, ids) ? look_mixed(l, y) : y;
}

static Samples of_gather_nd(const Look *l)
{
	const Samples *x = &l->in[0], *ids = &l->in[1];
	const Op *tuple = op_in(l->op, 1)->op;
	bool numbered = tuple->kind == OP_CONCAT && op_in(l->op, 0)->type.rank
		&& is_row_number(op_in(tuple, 0), op_in(l->op, 0)->type.dim[0]);
	if (attr_get_int(l->op->attrs, "batch_dims", 0) > 0 || numbered)
		return of_rows(l, numbered && !attr_get_int(l->op->attrs, "batch_dims", 0));
	int last = op_in(l->op, 1)->type.rank - 1;
	bool rows_of_ids = x->kind == SAMPLES_NONE && ids->kind == SAMPLES_AXIS && ids->axis < last;
	return rows_of_ids ? look_along(l, ids, ids->axis) : look_lost(l);
}

/* ---- reductions and products ---- */

static Samples of_reduce(const Look *l)
{
	const Attr *axes = attr_find(l->op->attrs, "axes");
	OpKind k = l->op->kind;
	bool linear = k == OP_REDUCE_SUM || k == OP_REDUCE_MEAN;
	int before = 0;
	Samples x = look_along(l, &l->in[0], l->in[0].axis);
	if (is_total(&x))
		return linear ? x : look_mixed(l, look_lost(l));
	for (int i = 0; i < axes->n; i++) {
		if (axes->ints[i] == x.axis) {
			x.kind = k == OP_REDUCE_SUM ? SAMPLES_SUM : SAMPLES_MEAN;
			return linear ? x : look_mixed(l, look_lost(l));
		}
		before += axes->ints[i] < x.axis;
	}
	x.axis -= attr_get_int(l->op->attrs, "keepdims", 0) ? 0 : before;
	return x;
}

/* A product that is not followed: parts of samples meet all samples there, if another operand holds them. */
static Samples lost_product(const Look *l)
{
	bool parts = false, all = false;
	for (int i = 0; i < l->op->n_in; i++) {
		parts = parts || l->in[i].kind == SAMPLES_AXIS;
		all = all || is_total(&l->in[i]) || l->in[i].whole;
	}
	return parts && all ? look_mixed(l, look_lost(l)) : look_lost(l);
}

/* Samples stay apart in rows of the left operand, in columns of the right one and in batch dims.  A row of one sample
 * times a column of another compares samples.  A contraction over the samples of both is a sum over samples. */
static Samples of_matmul(const Look *l)
{
	const Samples *in[2] = {&l->in[0], &l->in[1]};
	int rank = l->op->out[0]->type.rank, at[2] = {-1, -1};
	bool inner[2] = {0}, bias = op_in(l->op, 2);
	for (int i = 0; i < 2; i++) {
		bool turned = attr_get_int(l->op->attrs, i ? "tb" : "ta", 0);
		if (in[i]->kind == SAMPLES_LOST || (bias && l->in[2].kind != SAMPLES_NONE))
			return lost_product(l);
		if (is_total(in[i]) && in[!i]->kind == SAMPLES_NONE) /* a bias added once fits a mean, but not a sum */
			return bias && in[i]->kind == SAMPLES_SUM ? look_lost(l) : look_along(l, in[i], 0);
		if (is_total(in[i]))
			return look_mixed(l, look_lost(l));
		if (in[i]->kind != SAMPLES_AXIS)
			continue;
		at[i] = in[i]->axis + rank - op_in(l->op, i)->type.rank;
		int free = (i == 0) == turned ? rank - 1 : rank - 2; /* the axis of the operand's rows or columns */
		inner[i] = at[i] >= rank - 2 && at[i] != free;
		at[i] = at[i] >= rank - 2 && !inner[i] ? rank - 2 + i : at[i];
	}
	if (inner[0] || inner[1]) {
		Samples sum = look_along(l, in[inner[0] ? 0 : 1], 0);
		sum.kind = SAMPLES_SUM;
		bool joined = inner[0] && inner[1] && same_order(in[0], in[1]);
		return !joined ? look_mixed(l, look_lost(l)) : bias ? look_lost(l) : sum;
	}
	int first = at[0] >= 0 ? 0 : 1;
	Samples x = look_along(l, in[first], at[first]);
	x = at[first] < rank - 2 ? look_with_places(l, x, rank) : bias && look_is_placed(l, 2, x.axis - rank
		+ op_in(l->op, 2)->type.rank) ? look_placed(l, x) : x;
	return at[0] >= 0 && at[1] >= 0 && (at[0] != at[1] || !same_order(in[0], in[1])) ? look_mixed(l, x) : x;
}

/* ---- loops ---- */

/* What is known of operand i, as a step sees it: a slice of what is stacked lacks the first axis, along which samples
 * must not be.  Slices of a total are totals. */
static Samples of_argument(const Look *l, int i)
{
	Samples x = l->in[i];
	if (i < loop_states(l->op) || i >= loop_states(l->op) + loop_stacked(l->op) || is_total(&x))
		return x;
	if (x.kind == SAMPLES_NONE)
		x.same >>= 1;
	else if (x.kind != SAMPLES_AXIS || x.axis == 0)
		x = look_mixed(l, look_lost(l));
	else
		x.axis--;
	return x;
}

/* A state x that is a total before or after a step: it is one in all steps if it always is, of one factor; numbers that
 * depend on no sample are their own mean. */
static Samples of_total_state(const Look *l, Samples x, const Samples *was, const Samples *now)
{
	const Samples *total = is_total(was) ? was : now, *other = total == was ? now : was;
	bool always = was->kind == now->kind && was->scale == now->scale;
	if (!always && (total->kind != SAMPLES_MEAN || other->kind != SAMPLES_NONE)) {
		x.kind = SAMPLES_LOST;
		x.lost = x.lost ? x.lost : l->op;
		return look_mixed(l, x);
	}
	x.kind = total->kind;
	x.scale = total->scale;
	return x;
}

/* A state is at once what it was and what a step makes of it. */
static Samples of_state(const Look *l, const Samples *was, const Value *v, const Samples *now, const Value *next)
{
	const Samples *part = was->kind == SAMPLES_AXIS ? was : now;
	Samples x = *part;
	x.trained = was->trained || now->trained;
	x.unsure = was->unsure || now->unsure;
	x.mixes = was->mixes ? was->mixes : now->mixes;
	x.placed = was->placed ? was->placed : now->placed;
	x.same = was->same & now->same;
	x.whole = was->whole || now->whole;
	x.scale = 1;
	if (is_total(was) || is_total(now))
		return of_total_state(l, x, was, now);
	bool other = was->kind != now->kind || (part->kind == SAMPLES_AXIS && (was->axis != now->axis || !same_order(was,
		now)));
	if (!other)
		return x;
	bool constant = (was->kind == SAMPLES_AXIS && now->kind == SAMPLES_NONE)
		|| (was->kind == SAMPLES_NONE && now->kind == SAMPLES_AXIS);
	if (!constant) {
		x.kind = SAMPLES_LOST;
		x.lost = was->lost ? was->lost : now->lost ? now->lost : l->op;
		return x;
	}
	const Samples *rest = part == was ? now : was;
	return samples_is_same(rest, part == was ? next : v, x.axis) ? x : look_placed(l, x);
}

static bool same_samples(const Samples *a, const Samples *b)
{
	return a->kind == b->kind && (a->kind != SAMPLES_AXIS || (a->axis == b->axis && a->batches == b->batches))
		&& a->trained == b->trained && a->unsure == b->unsure && !a->mixes == !b->mixes && !a->placed == !b->placed
		&& a->same == b->same && a->whole == b->whole;
}

/* Goes through the body until no state becomes more than it was: each time some state gets a kind that it keeps or
 * leaves for LOST, or a mark, or loses a bit.  state: what operands are before the first step, then in all steps. */
static Samples follow(const Look *l, const Value *v, Samples *state)
{
	const Op *op = l->op, *yield = loop_yield(op);
	int n = loop_states(op);
	Value **arg = loop_arguments(op, l->s->a);
	Samples *before = NEW_N(l->s->a, Samples, n + 1);
	for (bool more = true; more;) {
		SampleScan *s = samples_new(l->s->m, l->s->a, l->s->statistics);
		more = false;
		for (int i = 0; i < op->n_in; i++)
			if (arg[i])
				ptrmap_put(s->known, arg[i], &state[i]);
		for (int i = 0; i < yield->n_in; i++) {
			Samples now = samples_of(s, op_in(yield, i));
			if (i < n)
				before[i] = of_state(l, &state[i], op_in(op, i), &now, op_in(yield, i));
			if (i == v->index && i >= n) {
				now.axis += now.kind == SAMPLES_AXIS;
				now.same <<= 1;
				before[n] = now;
			}
		}
		for (int i = 0; i < n; i++) {
			more = more || !same_samples(&before[i], &state[i]);
			state[i] = before[i];
		}
	}
	return before[MIN(v->index, n)];
}

/* A state that begins with zeros may be a sum over samples: that is tried where it is lost otherwise. */
static Samples of_loop(const Look *l, const Value *v)
{
	const Op *op = l->op;
	int n = loop_states(op);
	Samples *state = NEW_N(l->s->a, Samples, op->n_in + 1), *sums = NEW_N(l->s->a, Samples, op->n_in + 1);
	bool *tried = NEW_N(l->s->a, bool, n + 1), any = false, are = true;
	double first;
	for (int i = 0; i < op->n_in; i++)
		state[i] = sums[i] = of_argument(l, i);
	Samples x = follow(l, v, state);
	for (int i = 0; i < n; i++) {
		tried[i] = state[i].kind == SAMPLES_LOST && number_of(op_in(op, i), &first) && first == 0;
		sums[i].kind = tried[i] ? SAMPLES_SUM : sums[i].kind;
		any = any || tried[i];
	}
	Samples y = any ? follow(l, v, sums) : x;
	for (int i = 0; i < n; i++)
		are = are && (!tried[i] || sums[i].kind == SAMPLES_SUM);
	return are ? y : x;
}

/* ---- all ops ---- */

static Samples of_moved(const Look *l, const Value *v)
{
	Samples x = look_along(l, &l->in[0], l->in[0].axis);
	if (l->in[0].kind != SAMPLES_AXIS)
		return is_total(&x) && l->op->n_in == 1 ? x : look_lost(l);
	switch (l->op->kind) {
	case OP_RESHAPE: return of_reshape(l);
	case OP_TRANSPOSE: return of_transpose(l);
	case OP_SLICE: return of_slice(l);
	case OP_SPLIT: return of_split(l, v);
	default: return look_lost(l);
	}
}

static Samples of_op(const Look *l, const Value *v)
{
	OpKind k = l->op->kind;
	if (k == OP_STOP_GRADIENT)
		return l->in[0];
	if (op_info[k].flags & EW || k == OP_BROADCAST)
		return of_elementwise(l);
	switch (k) {
	case OP_RESHAPE: case OP_TRANSPOSE: case OP_SLICE: case OP_SPLIT: return of_moved(l, v);
	case OP_CONCAT: return of_concat(l);
	case OP_GATHER: return of_gather(l);
	case OP_GATHER_ELEMENTS: case OP_SCATTER_ELEMENTS: return of_elements(l);
	case OP_GATHER_ND: return of_gather_nd(l);
	case OP_REDUCE_SUM: case OP_REDUCE_MEAN: case OP_REDUCE_MAX: case OP_REDUCE_MIN: case OP_REDUCE_PROD:
		return l->in[0].kind == SAMPLES_LOST ? look_lost(l) : of_reduce(l);
	case OP_MATMUL: return of_matmul(l);
	case OP_LOOP: return of_loop(l, v);
	case OP_DROPOUT: case OP_DROPOUT_MASK: return look_along(l, &l->in[0], l->in[0].axis);
	default: return samples_of_layer(l, v);
	}
}

/* With batches of one sample: whether the analysis of v may be wrong because dims or factors of 1 look alike. */
static bool is_unsure(const Look *l, const Value *v, const Samples *x)
{
	const Op *op = l->op;
	double factor = 0;
	if (l->s->m->batch != 1)
		return false;
	if (op->kind == OP_RESHAPE && l->in[0].kind == SAMPLES_AXIS && x->kind == SAMPLES_AXIS)
		return op_in(op, 0)->type.dim[l->in[0].axis] != v->type.dim[x->axis];
	if ((op->kind == OP_MUL || op->kind == OP_DIV) && number_of(op_in(op, 1), &factor) && factor == 1)
		return true;
	return op->kind == OP_MUL && number_of(op_in(op, 0), &factor) && factor == 1;
}

/* Numbers drawn for each sample along an axis, or for all samples at once. */
static Samples of_random(const Look *l)
{
	Samples x = l->out;
	x.axis = (int)attr_get_int(l->op->attrs, "axis", -1);
	x.kind = x.axis < 0 ? SAMPLES_NONE : SAMPLES_AXIS;
	x.batches = x.axis < 0 ? 0 : 1;
	x.axis = MAX(x.axis, 0);
	return x;
}

static Samples look(const SampleScan *s, const Value *v, const Samples *in)
{
	Look l = {.s = s, .op = v->op, .in = in};
	bool any = false;
	if (v->op->kind == OP_INPUT && v->op->sym->batched)
		return (Samples){.kind = SAMPLES_AXIS, .batches = 1, .scale = 1};
	l.out.trained = v->op->kind == OP_PARAM;
	for (int i = 0; i < v->op->n_in; i++) {
		any = any || in[i].kind != SAMPLES_NONE;
		l.out.trained = l.out.trained || in[i].trained;
		l.out.unsure = l.out.unsure || in[i].unsure;
		l.out.mixes = l.out.mixes ? l.out.mixes : in[i].mixes;
		l.out.placed = l.out.placed ? l.out.placed : in[i].placed;
	}
	l.out.scale = 1;
	if (v->op->kind == OP_DRAW)
		return of_random(&l);
	Samples x = any || v->op->kind == OP_LOOP ? of_op(&l, v) : l.out;
	if (v->op->kind != OP_LOOP) /* whose bits are those that its steps leave */
		x.same = any ? 0 : samples_same_axes(v, in);
	x.unsure = any && (l.out.unsure || is_unsure(&l, v, &x));
	x.trained = x.trained && v->op->kind != OP_STOP_GRADIENT;
	return x;
}

SampleScan *samples_new(const Module *m, Arena *a, bool statistics)
{
	SampleScan *s = NEW(a, SampleScan);
	*s = (SampleScan){m, a, ptrmap_new(a), statistics};
	return s;
}

/* Evaluates operands first, without recursion: a chain of ops may be as long as the model. */
Samples samples_of(SampleScan *s, const Value *v)
{
	VEC(const Value *) stack = {0};
	if (!s->m->batch)
		return (Samples){.kind = SAMPLES_NONE, .scale = 1};
	if (!ptrmap_get(s->known, v))
		vec_push(s->a, &stack, v);
	while (stack.n) {
		const Value *top = stack.at[stack.n - 1];
		const Op *op = top->op;
		Samples *in = NEW_N(s->a, Samples, op->n_in + 1);
		int waiting = 0;
		for (int i = 0; i < op->n_in; i++) {
			const Value *x = op_in(op, i);
			const Samples *known = x ? ptrmap_get(s->known, x) : NULL;
			in[i] = known ? *known : (Samples){.scale = 1};
			if (x && !known) {
				vec_push(s->a, &stack, x);
				waiting++;
			}
		}
		if (waiting)
			continue;
		Samples *out = NEW(s->a, Samples);
		*out = look(s, top, in);
		ptrmap_put(s->known, top, out);
		stack.n--;
	}
	return *(const Samples *)ptrmap_get(s->known, v);
}
