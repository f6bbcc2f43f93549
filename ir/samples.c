/* ir/samples.c: finds out how a value depends on the samples of a micro-batch.
 *
 * The analysis goes from a value back to the inputs, op by op, and keeps every answer.  A value has a part for each
 * sample along one axis, until a reduction turns the parts into a total; totals stay sums or means through linear ops.
 * An op mixes samples when it combines several of them in one number, or picks samples by their position in the batch.
 * Behind an op without a rule nothing is claimed: the samples are lost. */
#include "ir/recurrence.h"
#include "ir/samples_same.h"

#include <math.h>
#include <string.h>

struct SampleScan {
	const Module *m;
	Arena *a;
	PtrMap *known;     /* Value -> Samples */
	bool statistics;
};

/* The op that is being analysed, with what is known of its operands. */
typedef struct Look {
	const SampleScan *s;
	const Op *op;
	const Samples *in;
	Samples out;       /* what all results of the op start from: kind NONE, and the operands' mixes, placed, trained and
	                      unsure */
} Look;

static Samples lost(const Look *l)
{
	Samples x = l->out;
	x.kind = SAMPLES_LOST;
	for (int i = 0; i < l->op->n_in && !x.lost; i++)
		x.lost = l->in[i].lost;
	x.lost = x.lost ? x.lost : l->op;
	return x;
}

static Samples mixed(const Look *l, Samples x)
{
	x.mixes = x.mixes ? x.mixes : l->op;
	return x;
}

/* Whether operand i depends on no sample, but has different numbers for different positions along the axis of
 * samples. */
static bool is_placed(const Look *l, int i, int axis)
{
	const Value *v = op_in(l->op, i);
	return v && l->in[i].kind == SAMPLES_NONE && !samples_is_same(&l->in[i], v, axis);
}

static Samples placed(const Look *l, Samples x)
{
	x.placed = x.placed || l->s->m->batch == 1 ? x.placed : l->op; /* a batch of one sample has only one position */
	return x;
}

/* Marks x, whose samples are along an axis, as placed if an operand is.  Operands are aligned at the right with a shape
 * of this rank. */
static Samples with_places(const Look *l, Samples x, int rank)
{
	bool any = false;
	for (int i = 0; x.kind == SAMPLES_AXIS && i < l->op->n_in; i++)
		any = any || (op_in(l->op, i) && is_placed(l, i, x.axis - (rank - op_in(l->op, i)->type.rank)));
	return any ? placed(l, x) : x;
}

static Samples along(const Look *l, const Samples *from, int axis)
{
	Samples x = *from;
	x.axis = axis;
	x.mixes = l->out.mixes;
	x.placed = l->out.placed;
	x.trained = l->out.trained;
	return x;
}

static bool is_total(const Samples *x)
{
	return x->kind == SAMPLES_SUM || x->kind == SAMPLES_MEAN;
}

/* Whether samples are at the same positions along the axis in both. */
static bool same_order(const Samples *a, const Samples *b)
{
	return a->batches && a->batches == b->batches;
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
		if (a->kind != b->kind && !(total->kind == SAMPLES_MEAN && other->kind == SAMPLES_NONE))
			return lost(l);
		x.scale = is_total(other) ? telling(l->s, a, b) : x.scale;
		return x;
	case OP_MUL: case OP_DIV:
		if (other->kind != SAMPLES_NONE || (l->op->kind == OP_DIV && total == b))
			return mixed(l, lost(l));
		if (number_of(op_in(l->op, total == a), &factor))
			x.scale *= l->op->kind == OP_MUL ? factor : 1 / factor;
		return x;
	default:
		return mixed(l, lost(l));
	}
}

/* Elementwise ops on parts of samples: operands are aligned at the right and must have the samples along one axis. */
static Samples of_parts(const Look *l)
{
	int rank = l->op->out[0]->type.rank;
	const Samples *first = NULL;
	Samples x = {0};
	bool apart = false;
	for (int i = 0; i < l->op->n_in; i++) {
		const Samples *in = &l->in[i];
		if (in->kind == SAMPLES_LOST)
			return lost(l);
		apart = apart || is_total(in);
		if (in->kind != SAMPLES_AXIS)
			continue;
		int axis = in->axis + rank - op_in(l->op, i)->type.rank;
		apart = apart || (first && (axis != x.axis || !same_order(in, first)));
		x = first ? x : along(l, in, axis);
		first = first ? first : in;
	}
	x = first ? with_places(l, x, rank) : lost(l);
	return apart && first ? mixed(l, x) : x;
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

/* Finds the axis of the result that has the samples.  Dims before it must cover whole batches, dims behind it whole
 * samples: [T,B,E] to [T*B,E], and back. */
static Samples of_reshape(const Look *l)
{
	const Samples *in = &l->in[0];
	const Type *from = &op_in(l->op, 0)->type, *to = &l->op->out[0]->type;
	int64_t before = MAX(in->batches, 1), n = 1, batch = l->s->m->batch; /* before: rows of whole batches */
	Samples x = lost(l);
	for (int i = 0; i < in->axis; i++)
		before *= from->dim[i];
	for (int i = 0; i < to->rank && before && n <= before; n *= to->dim[i++]) {
		bool holds = in->batches ? n && before % n == 0 && to->dim[i] % (before / n * batch) == 0
			: n == before && to->dim[i] == from->dim[in->axis];
		if (!holds)
			continue;
		x = along(l, in, i);
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
			return along(l, &l->in[0], i);
	return lost(l);
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
			return lost(l);
		x = along(l, &x, 0);
		x.scale = telling(l->s, &x, &l->in[i]);
	}
	if (x.kind != SAMPLES_AXIS || x.axis != attr_get_int(l->op->attrs, "axis", 0))
		return x;
	x.mixes = l->out.mixes;
	int64_t one = batch_along(&l->in[0], op_in(l->op, 0));
	x.batches = 0;
	for (int i = 0; i < l->op->n_in; i++) {
		if (l->in[i].kind != SAMPLES_AXIS || l->in[i].axis != x.axis)
			return mixed(l, lost(l));
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
	Samples x = along(l, &l->in[0], l->in[0].axis);
	int64_t one = batch_along(&x, op_in(l->op, 0));
	bool whole = one && start % one == 0 && size % one == 0;
	x.batches = whole ? size / one : 0;
	return whole ? x : mixed(l, x);
}

static Samples of_slice(const Look *l)
{
	int axis = l->in[0].axis;
	int64_t size = l->op->out[0]->type.dim[axis];
	bool dense = attr_find(l->op->attrs, "steps")->ints[axis] == 1 || size < 2;
	if (op_in(l->op, 0)->type.dim[axis] == size && dense)
		return along(l, &l->in[0], axis);
	Samples x = of_cut(l, attr_find(l->op->attrs, "starts")->ints[axis], size);
	return dense ? x : mixed(l, x);
}

static Samples of_split(const Look *l, const Value *v)
{
	const Attr *sizes = attr_find(l->op->attrs, "sizes");
	int64_t start = 0;
	if (l->in[0].axis != attr_get_int(l->op->attrs, "axis", 0))
		return along(l, &l->in[0], l->in[0].axis);
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
		return along(l, ids, ids->axis + axis);
	if (x->kind != SAMPLES_AXIS || ids->kind == SAMPLES_LOST || is_total(ids))
		return lost(l);
	if (x->axis == axis || ids->kind != SAMPLES_NONE)
		return mixed(l, lost(l));
	return along(l, x, x->axis < axis ? x->axis : x->axis + extra);
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
	return apart || !whole ? mixed(l, x) : x;
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
		return lost(l);
	Samples y = along(l, parts, 0);
	bool places = is_placed(l, 0, 0) || (!numbered && is_placed(l, 1, 0));
	y.placed = numbered ? x->placed : y.placed; /* row numbers differ by position, but do not pick samples by it */
	for (int i = 1; numbered && i < tuple->n_in; i++) {
		const Samples *known = ptrmap_get(l->s->known, op_in(tuple, i));
		places = places || (known->kind == SAMPLES_NONE && !samples_is_same(known, op_in(tuple, i), 0));
		y.placed = y.placed ? y.placed : known->placed;
	}
	y = places ? placed(l, y) : y;
	return x->kind == ids->kind && !same_order(x, ids) ? mixed(l, y) : y;
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
	return rows_of_ids ? along(l, ids, ids->axis) : lost(l);
}

/* ---- reductions and products ---- */

static Samples of_reduce(const Look *l)
{
	const Attr *axes = attr_find(l->op->attrs, "axes");
	OpKind k = l->op->kind;
	bool linear = k == OP_REDUCE_SUM || k == OP_REDUCE_MEAN;
	int before = 0;
	Samples x = along(l, &l->in[0], l->in[0].axis);
	if (is_total(&x))
		return linear ? x : mixed(l, lost(l));
	for (int i = 0; i < axes->n; i++) {
		if (axes->ints[i] == x.axis) {
			x.kind = k == OP_REDUCE_SUM ? SAMPLES_SUM : SAMPLES_MEAN;
			return linear ? x : mixed(l, lost(l));
		}
		before += axes->ints[i] < x.axis;
	}
	x.axis -= attr_get_int(l->op->attrs, "keepdims", 0) ? 0 : before;
	return x;
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
			return lost(l);
		if (is_total(in[i]) && in[!i]->kind == SAMPLES_NONE) /* a bias added once fits a mean, but not a sum */
			return bias && in[i]->kind == SAMPLES_SUM ? lost(l) : along(l, in[i], 0);
		if (is_total(in[i]))
			return mixed(l, lost(l));
		if (in[i]->kind != SAMPLES_AXIS)
			continue;
		at[i] = in[i]->axis + rank - op_in(l->op, i)->type.rank;
		int free = (i == 0) == turned ? rank - 1 : rank - 2; /* the axis of the operand's rows or columns */
		inner[i] = at[i] >= rank - 2 && at[i] != free;
		at[i] = at[i] >= rank - 2 && !inner[i] ? rank - 2 + i : at[i];
	}
	if (inner[0] || inner[1]) {
		Samples sum = along(l, in[inner[0] ? 0 : 1], 0);
		sum.kind = SAMPLES_SUM;
		bool joined = inner[0] && inner[1] && same_order(in[0], in[1]);
		return !joined ? mixed(l, lost(l)) : bias ? lost(l) : sum;
	}
	int first = at[0] >= 0 ? 0 : 1;
	Samples x = along(l, in[first], at[first]);
	x = at[first] < rank - 2 ? with_places(l, x, rank) : bias && is_placed(l, 2, x.axis - rank
		+ op_in(l->op, 2)->type.rank) ? placed(l, x) : x;
	return at[0] >= 0 && at[1] >= 0 && (at[0] != at[1] || !same_order(in[0], in[1])) ? mixed(l, x) : x;
}

/* ---- layers ---- */

static Samples of_batch_norm(const Look *l, const Value *v)
{
	Samples x = along(l, &l->in[0], l->in[0].axis);
	int channel = attr_get_int(l->op->attrs, "layout", 0) ? op_in(l->op, 0)->type.rank - 1 : 1;
	if (x.axis != channel && l->s->statistics)
		x = mixed(l, x);
	if (x.axis == channel && (is_placed(l, 1, 0) || is_placed(l, 2, 0)))
		x = placed(l, x);
	if (v->index == 0)
		return x;
	x.kind = SAMPLES_LOST; /* mean and variance of a channel */
	x.lost = l->op;
	return mixed(l, x);
}

static Samples of_cross_entropy(const Look *l, const Value *v)
{
	const Type *logits = &op_in(l->op, 0)->type;
	const Samples *x = &l->in[0], *y = &l->in[1];
	bool both = x->kind == SAMPLES_AXIS && y->kind == SAMPLES_AXIS;
	bool apart = both && (x->axis != y->axis || !same_order(x, y));
	Samples sum = along(l, x->kind == SAMPLES_AXIS ? x : y, x->kind == SAMPLES_AXIS ? x->axis : y->axis);
	if (x->kind == SAMPLES_LOST || y->kind == SAMPLES_LOST || is_total(x) || is_total(y)
			|| (l->op->n_in > 2 && op_in(l->op, 2) && l->in[2].kind != SAMPLES_NONE))
		return lost(l);
	if (x->kind == SAMPLES_AXIS && x->axis == logits->rank - 1)
		return mixed(l, lost(l));
	sum.kind = v->index == 2 ? SAMPLES_AXIS : SAMPLES_SUM;
	sum.scale = 1;
	sum.trained = v->index == 1 ? false : sum.trained; /* this result is a count of labels */
	if ((x->kind == SAMPLES_AXIS && is_placed(l, 1, x->axis)) || (y->kind == SAMPLES_AXIS && is_placed(l, 0, y->axis)))
		sum = placed(l, sum);
	return apart ? mixed(l, sum) : sum;
}

/* Queries, keys and values belong to one sample each, and so do the mask and the documents. */
static Samples of_attention(const Look *l)
{
	const Samples *first = NULL;
	bool apart = false;
	for (int i = 0; i < l->op->n_in; i++) {
		const Value *v = op_in(l->op, i);
		if (l->in[i].kind == SAMPLES_LOST || is_total(&l->in[i]))
			return lost(l);
		if (l->in[i].kind != SAMPLES_AXIS)
			continue;
		int before = i == 4 ? 0 : 4 - v->type.rank; /* dims that broadcasting adds; documents are [B,T] */
		apart = apart || l->in[i].axis + before != 0 || (first && !same_order(first, &l->in[i]));
		first = first ? first : &l->in[i];
	}
	Samples x = with_places(l, along(l, first, 0), 4);
	x = is_placed(l, 4, 0) ? placed(l, x) : x;
	return apart ? mixed(l, x) : x;
}

/* Images and their points belong to one sample each. */
static Samples of_grid_sample(const Look *l)
{
	const Samples *x = &l->in[0], *grid = &l->in[1], *first = x->kind == SAMPLES_NONE ? grid : x;
	bool both = x->kind != SAMPLES_NONE && grid->kind != SAMPLES_NONE;
	if (first->kind != SAMPLES_AXIS || (both && grid->kind != SAMPLES_AXIS))
		return lost(l);
	Samples y = along(l, first, first->axis);
	if (first->axis || (both && (grid->axis || !same_order(x, grid))))
		return mixed(l, lost(l));
	y.scale = 1;
	return is_placed(l, 0, 0) || is_placed(l, 1, 0) ? placed(l, y) : y;
}

/* ---- boxes of images ---- */

enum { BOXES_MAX = 1 << 16 }; /* elements of what is evaluated to see which boxes and images are a sample's */

/* Operand i, if the graph alone decides on it; NULL: it does not. */
static const EvalTensor *known_operand(const Look *l, int i)
{
	Module *m = (Module *)(uintptr_t)l->s->m; /* which evaluating leaves as it is */
	return l->in[i].kind == SAMPLES_NONE ? eval_constant(eval_new(m, l->s->a), l->op->in[i].value, BOXES_MAX) : NULL;
}

/* Whether all samples have the same rows of t, each number larger by `step` than that of the sample before. */
static bool repeats(const Look *l, const EvalTensor *t, int64_t step)
{
	int64_t n = t ? type_numel(&t->type) : 0, of_sample = MAX(n / l->s->m->batch, 1);
	for (int64_t i = of_sample; i < n; i++)
		if (dtype_is_float(t->type.dtype) ? t->f[i] != t->f[i % of_sample]
				: t->i[i] != t->i[i % of_sample] + step * (i / of_sample))
			return false;
	return t;
}

/* Whether each sample's boxes lie in images of this sample. */
static bool boxes_stay_apart(const Look *l, const EvalTensor *ids)
{
	int64_t images = op_in(l->op, 0)->type.dim[0], n = op_in(l->op, 2)->type.dim[0], batch = l->s->m->batch;
	for (int64_t i = 0; ids && i < n; i++) {
		int64_t image = ids->i[i] + (ids->i[i] < 0 ? images : 0);
		if (image < 0 || image / (images / batch) != i / (n / batch))
			return false;
	}
	return ids;
}

/* Boxes (rois) of images (x) whose numbers are ids.  The result has a row for each box, so samples lie along its first
 * axis where the ids are known and give each sample boxes of its own images. */
static Samples of_roi_pool(const Look *l)
{
	const Samples *x = &l->in[0], *ids = &l->in[2], *first = NULL;
	int64_t images = op_in(l->op, 0)->type.dim[0], n = op_in(l->op, 2)->type.dim[0], batch = l->s->m->batch;
	for (int i = 0; i < l->op->n_in; i++) {
		if (l->in[i].kind != SAMPLES_NONE && (l->in[i].kind != SAMPLES_AXIS || l->in[i].axis || l->in[i].batches != 1))
			return lost(l);
		first = first || l->in[i].kind == SAMPLES_NONE ? first : &l->in[i];
	}
	const EvalTensor *number = known_operand(l, 2);
	bool own = x->kind == SAMPLES_NONE || (n % batch == 0 && boxes_stay_apart(l, number));
	if (!own || n % batch)
		return mixed(l, lost(l)); /* a box of one sample may lie in the image of another one */
	Samples y = along(l, first, 0);
	bool same = ids->kind != SAMPLES_NONE || repeats(l, number, x->kind == SAMPLES_NONE ? 0 : images / batch);
	y.scale = 1;
	return same && (l->in[1].kind != SAMPLES_NONE || repeats(l, known_operand(l, 1), 0)) ? y : placed(l, y);
}

/* A recurrence: samples are along the second axis of what has steps, and along the first of states and lengths. */
static Samples of_recurrence(const Look *l, const Value *v)
{
	const Samples *first = NULL;
	bool apart = false;
	for (int i = 0; i < l->op->n_in; i++) {
		bool whole = i == REC_R || i == REC_BIAS || i == REC_P; /* weights, the same for all samples */
		if (l->in[i].kind == SAMPLES_NONE)
			continue;
		if (whole || l->in[i].kind != SAMPLES_AXIS || l->in[i].axis != (i == REC_X))
			return mixed(l, lost(l));
		apart = apart || (first && !same_order(first, &l->in[i]));
		first = first ? first : &l->in[i];
	}
	Samples x = along(l, first, v->type.rank - 2);
	x.scale = 1;
	for (int i = 0; i < l->op->n_in; i++)
		if (op_in(l->op, i) && (i == REC_X || i == REC_H0 || i == REC_C0 || i == REC_LENGTHS))
			x = is_placed(l, i, i == REC_X) ? placed(l, x) : x;
	return apart ? mixed(l, x) : x;
}

/* Whether the op works along this axis, or on the whole of a sample. */
static bool works_along(const Op *op, int axis)
{
	const Attr *before = attr_find(op->attrs, "before");
	switch (op->kind) {
	case OP_LAYER_NORM: case OP_RMS_NORM: return axis >= attr_get_int(op->attrs, "axis", 0);
	case OP_PAD: return before->ints[axis] || attr_find(op->attrs, "after")->ints[axis];
	case OP_MAX_POOL: case OP_AVG_POOL: case OP_ROPE: return axis != 0;
	default: return axis == attr_get_int(op->attrs, "axis", -1);
	}
}

/* Whether the operand is the scale or shift of a norm: every sample meets all of it, though it be made of samples. */
static bool is_scale(const Op *op, int i)
{
	bool norm = op->kind == OP_LAYER_NORM || op->kind == OP_RMS_NORM;
	return norm && op_in(op, i) && op_in(op, i)->type.rank < op_in(op, 0)->type.rank;
}

static Samples of_layer(const Look *l)
{
	Samples x = along(l, &l->in[0], l->in[0].axis);
	if (x.kind != SAMPLES_AXIS)
		return lost(l);
	for (int i = 1; i < l->op->n_in; i++) {
		bool same = l->in[i].kind == SAMPLES_AXIS && l->in[i].axis == x.axis && same_order(&l->in[i], &l->in[0])
			&& !is_scale(l->op, i);
		if (op_in(l->op, i) && l->in[i].kind != SAMPLES_NONE && !same)
			return mixed(l, lost(l));
	}
	for (int i = 1; l->op->kind == OP_ROPE && x.axis == 0 && i < l->op->n_in; i++)
		x = op_in(l->op, i)->type.rank == 3 && is_placed(l, i, 0) ? placed(l, x) : x;
	x.scale = 1;
	if (works_along(l->op, x.axis))
		return mixed(l, l->op->kind == OP_ROPE ? lost(l) : x);
	return x;
}

/* Whether operand i depends on no sample, and has other numbers for each of those that share the axis one by one.  What
 * was repeated for each sample, and then joined with the axis behind it, has not. */
static bool differs_by_sample(const Look *l, int i, int axis)
{
	const Value *v = op_in(l->op, i);
	if (!v || !is_placed(l, i, axis))
		return false;
	const Value *from = v->op->kind == OP_RESHAPE ? op_in(v->op, 0) : NULL;
	bool first = from && from->type.rank && from->type.dim[0] == l->s->m->batch;
	for (int k = 0; k < axis; k++)
		first = first && v->type.dim[k] == 1;
	return !first || !samples_is_same(ptrmap_get(l->s->known, from), from, 0);
}

/* Convolutions and transposed ones.  Images have their samples along the first axis, and all have the same weights; or
 * each sample has weights of its own, and is a group of the channels of one image. */
static Samples of_conv(const Look *l)
{
	const Samples *x = &l->in[0];
	const Value *image = op_in(l->op, 0);
	int channel = attr_get_int(l->op->attrs, "layout", 0) ? image->type.rank - 1 : 1;
	int64_t batch = l->s->m->batch;
	bool own = false, grouped = attr_get_int(l->op->attrs, "group", 1) % batch == 0;
	for (int i = 0; i < l->op->n_in; i++) { /* channels, and rows of weights and bias, sample by sample */
		int axis = i ? 0 : channel;
		if (!op_in(l->op, i) || l->in[i].kind == SAMPLES_NONE)
			continue;
		own = own || i;
		grouped = grouped && l->in[i].kind == SAMPLES_AXIS && l->in[i].axis == axis && l->in[i].batches == 1;
	}
	Samples y = along(l, x, 0);
	y.scale = 1;
	if (x->kind == SAMPLES_AXIS && x->axis == 0 && (!own || batch == 1))
		return y;
	if (!grouped)
		return x->kind == SAMPLES_AXIS ? mixed(l, lost(l)) : lost(l);
	y.kind = SAMPLES_AXIS;
	y.axis = channel;
	y.batches = 1;
	bool places = differs_by_sample(l, 0, channel) || differs_by_sample(l, 1, 0) || differs_by_sample(l, 2, 0);
	return places ? placed(l, y) : y;
}

/* The last two dims are those of a matrix, which is one sample's. */
static Samples of_det(const Look *l)
{
	Samples x = of_layer(l);
	return x.kind == SAMPLES_AXIS && x.axis >= op_in(l->op, 0)->type.rank - 2 ? mixed(l, lost(l)) : x;
}

/* argmax and argmin, which remove an axis. */
static Samples of_choice(const Look *l)
{
	Samples x = of_layer(l);
	bool keeps = attr_get_int(l->op->attrs, "keepdims", 0);
	if (x.kind == SAMPLES_AXIS && x.axis == attr_get_int(l->op->attrs, "axis", 0))
		return mixed(l, lost(l));
	x.axis -= !keeps && x.axis > attr_get_int(l->op->attrs, "axis", 0);
	return x;
}

/* ---- loops ---- */

/* What is known of operand i, as a step sees it: a slice of what is stacked lacks the first axis, along which samples
 * must not be. */
static Samples of_argument(const Look *l, int i)
{
	Samples x = l->in[i];
	if (i < loop_states(l->op) || i >= loop_states(l->op) + loop_stacked(l->op))
		return x;
	if (x.kind == SAMPLES_NONE)
		x.same >>= 1;
	else if (x.kind != SAMPLES_AXIS || x.axis == 0)
		x = mixed(l, lost(l));
	else
		x.axis--;
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
	x.scale = 1;
	bool other = was->kind != now->kind || (part->kind == SAMPLES_AXIS && (was->axis != now->axis || !same_order(was,
		now)));
	if (!other && !is_total(was))
		return x;
	bool constant = (was->kind == SAMPLES_AXIS && now->kind == SAMPLES_NONE)
		|| (was->kind == SAMPLES_NONE && now->kind == SAMPLES_AXIS);
	if (!constant) {
		x.kind = SAMPLES_LOST;
		x.lost = was->lost ? was->lost : now->lost ? now->lost : l->op;
		return x;
	}
	const Samples *rest = part == was ? now : was;
	return samples_is_same(rest, part == was ? next : v, x.axis) ? x : placed(l, x);
}

static bool same_samples(const Samples *a, const Samples *b)
{
	return a->kind == b->kind && (a->kind != SAMPLES_AXIS || (a->axis == b->axis && a->batches == b->batches))
		&& a->trained == b->trained && a->unsure == b->unsure && !a->mixes == !b->mixes && !a->placed == !b->placed
		&& a->same == b->same;
}

/* Goes through the body until no state becomes more than it was: each time some state gets a kind that it keeps or
 * leaves for LOST, or a mark, or loses a bit. */
static Samples of_loop(const Look *l, const Value *v)
{
	const Op *op = l->op, *yield = loop_yield(op);
	int n = loop_states(op);
	Value **arg = loop_arguments(op, l->s->a);
	Samples *state = NEW_N(l->s->a, Samples, op->n_in + 1), *before = NEW_N(l->s->a, Samples, n + 1);
	for (int i = 0; i < op->n_in; i++)
		state[i] = of_argument(l, i);
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
				now.same = 0;
				before[n] = is_total(&now) ? lost(l) : now;
			}
		}
		for (int i = 0; i < n; i++) {
			more = more || !same_samples(&before[i], &state[i]);
			state[i] = before[i];
		}
	}
	return before[MIN(v->index, n)];
}

/* ---- all ops ---- */

static Samples of_moved(const Look *l, const Value *v)
{
	Samples x = along(l, &l->in[0], l->in[0].axis);
	if (l->in[0].kind != SAMPLES_AXIS)
		return is_total(&x) && l->op->n_in == 1 ? x : lost(l);
	switch (l->op->kind) {
	case OP_RESHAPE: return of_reshape(l);
	case OP_TRANSPOSE: return of_transpose(l);
	case OP_SLICE: return of_slice(l);
	case OP_SPLIT: return of_split(l, v);
	default: return lost(l);
	}
}

static Samples of_op(const Look *l, const Value *v)
{
	OpKind k = l->op->kind;
	if (k == OP_STOP_GRADIENT)
		return l->in[0];
	if (op_info[k].flags & EW || k == OP_BROADCAST)
		return of_elementwise(l);
	if (k == OP_CONV || k == OP_CONV_GRAD_X)
		return of_conv(l);
	if (op_info[k].flags & WITHIN)
		return of_layer(l);
	switch (k) {
	case OP_RESHAPE: case OP_TRANSPOSE: case OP_SLICE: case OP_SPLIT: return of_moved(l, v);
	case OP_CONCAT: return of_concat(l);
	case OP_GATHER: return of_gather(l);
	case OP_GATHER_ELEMENTS: case OP_SCATTER_ELEMENTS: return of_elements(l);
	case OP_GATHER_ND: return of_gather_nd(l);
	case OP_REDUCE_SUM: case OP_REDUCE_MEAN: case OP_REDUCE_MAX: case OP_REDUCE_MIN: case OP_REDUCE_PROD:
		return l->in[0].kind == SAMPLES_LOST ? lost(l) : of_reduce(l);
	case OP_MATMUL: return of_matmul(l);
	case OP_BATCH_NORM: return l->in[0].kind == SAMPLES_AXIS ? of_batch_norm(l, v) : lost(l);
	case OP_CROSS_ENTROPY: return of_cross_entropy(l, v);
	case OP_ATTENTION: return of_attention(l);
	case OP_GRID_SAMPLE: return of_grid_sample(l);
	case OP_ROI_POOL: return of_roi_pool(l);
	case OP_DET: return of_det(l);
	case OP_RECURRENCE: return of_recurrence(l, v);
	case OP_LOOP: return of_loop(l, v);
	case OP_ARGMAX: case OP_ARGMIN: return of_choice(l);
	case OP_DROPOUT: case OP_DROPOUT_MASK: return along(l, &l->in[0], l->in[0].axis);
	default: return lost(l);
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
	Samples x = any ? of_op(&l, v) : l.out;
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
