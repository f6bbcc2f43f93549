/* ir/samples_layers.c: how layers treat the samples of their operands: norms, attention, recurrences, convolutions,
 * pools, losses.  A sample's images, rows and steps stay its own, unless an op works along the axis of samples. */
#include "ir/recurrence.h"
#include "ir/samples_look.h"

static Samples of_batch_norm(const Look *l, const Value *v)
{
	Samples x = look_along(l, &l->in[0], l->in[0].axis);
	int channel = attr_get_int(l->op->attrs, "layout", 0) ? op_in(l->op, 0)->type.rank - 1 : 1;
	if (x.axis != channel && l->s->statistics)
		x = look_mixed(l, x);
	if (x.axis == channel && (look_is_placed(l, 1, 0) || look_is_placed(l, 2, 0)))
		x = look_placed(l, x);
	if (v->index == 0)
		return x;
	x.kind = SAMPLES_LOST; /* mean and variance of a channel */
	x.lost = l->op;
	return look_mixed(l, x);
}

static Samples of_cross_entropy(const Look *l, const Value *v)
{
	const Type *logits = &op_in(l->op, 0)->type;
	const Samples *x = &l->in[0], *y = &l->in[1];
	bool both = x->kind == SAMPLES_AXIS && y->kind == SAMPLES_AXIS;
	bool apart = both && (x->axis != y->axis || !same_order(x, y));
	Samples sum = look_along(l, x->kind == SAMPLES_AXIS ? x : y, x->kind == SAMPLES_AXIS ? x->axis : y->axis);
	if (x->kind == SAMPLES_LOST || y->kind == SAMPLES_LOST || is_total(x) || is_total(y)
			|| (l->op->n_in > 2 && op_in(l->op, 2) && l->in[2].kind != SAMPLES_NONE))
		return look_lost(l);
	if (x->kind == SAMPLES_AXIS && x->axis == logits->rank - 1)
		return look_mixed(l, look_lost(l));
	sum.kind = v->index == 2 ? SAMPLES_AXIS : SAMPLES_SUM;
	sum.scale = 1;
	sum.trained = v->index == 1 ? false : sum.trained; /* this result is a count of labels */
	if ((x->kind == SAMPLES_AXIS && look_is_placed(l, 1, x->axis))
			|| (y->kind == SAMPLES_AXIS && look_is_placed(l, 0, y->axis)))
		sum = look_placed(l, sum);
	return apart ? look_mixed(l, sum) : sum;
}

/* Queries, keys and values belong to one sample each, and so do the mask and the documents. */
static Samples of_attention(const Look *l)
{
	const Samples *first = NULL;
	bool apart = false;
	for (int i = 0; i < l->op->n_in; i++) {
		const Value *v = op_in(l->op, i);
		if (l->in[i].kind == SAMPLES_LOST || is_total(&l->in[i]))
			return look_lost(l);
		if (l->in[i].kind != SAMPLES_AXIS)
			continue;
		int before = i == 4 ? 0 : 4 - v->type.rank; /* dims that broadcasting adds; documents are [B,T] */
		apart = apart || l->in[i].axis + before != 0 || (first && !same_order(first, &l->in[i]));
		first = first ? first : &l->in[i];
	}
	Samples x = look_with_places(l, look_along(l, first, 0), 4);
	x = look_is_placed(l, 4, 0) ? look_placed(l, x) : x;
	return apart ? look_mixed(l, x) : x;
}

/* Images and their points belong to one sample each. */
static Samples of_grid_sample(const Look *l)
{
	const Samples *x = &l->in[0], *grid = &l->in[1], *first = x->kind == SAMPLES_NONE ? grid : x;
	bool both = x->kind != SAMPLES_NONE && grid->kind != SAMPLES_NONE;
	if (first->kind != SAMPLES_AXIS || (both && grid->kind != SAMPLES_AXIS))
		return look_lost(l);
	Samples y = look_along(l, first, first->axis);
	if (first->axis || (both && (grid->axis || !same_order(x, grid))))
		return look_mixed(l, look_lost(l));
	y.scale = 1;
	return look_is_placed(l, 0, 0) || look_is_placed(l, 1, 0) ? look_placed(l, y) : y;
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
			return look_lost(l);
		first = first || l->in[i].kind == SAMPLES_NONE ? first : &l->in[i];
	}
	const EvalTensor *number = known_operand(l, 2);
	bool own = x->kind == SAMPLES_NONE || (n % batch == 0 && boxes_stay_apart(l, number));
	if (!own || n % batch)
		return look_mixed(l, look_lost(l)); /* a box of one sample may lie in the image of another one */
	Samples y = look_along(l, first, 0);
	bool same = ids->kind != SAMPLES_NONE || repeats(l, number, x->kind == SAMPLES_NONE ? 0 : images / batch);
	y.scale = 1;
	return same && (l->in[1].kind != SAMPLES_NONE || repeats(l, known_operand(l, 1), 0)) ? y : look_placed(l, y);
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
			return look_mixed(l, look_lost(l));
		apart = apart || (first && !same_order(first, &l->in[i]));
		first = first ? first : &l->in[i];
	}
	Samples x = look_along(l, first, v->type.rank - 2);
	x.scale = 1;
	for (int i = 0; i < l->op->n_in; i++)
		if (op_in(l->op, i) && (i == REC_X || i == REC_H0 || i == REC_C0 || i == REC_LENGTHS))
			x = look_is_placed(l, i, i == REC_X) ? look_placed(l, x) : x;
	return apart ? look_mixed(l, x) : x;
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
	Samples x = look_along(l, &l->in[0], l->in[0].axis);
	if (x.kind != SAMPLES_AXIS)
		return look_lost(l);
	for (int i = 1; i < l->op->n_in; i++) {
		bool same = l->in[i].kind == SAMPLES_AXIS && l->in[i].axis == x.axis && same_order(&l->in[i], &l->in[0])
			&& !is_scale(l->op, i);
		if (op_in(l->op, i) && l->in[i].kind != SAMPLES_NONE && !same)
			return look_mixed(l, look_lost(l));
	}
	for (int i = 1; l->op->kind == OP_ROPE && x.axis == 0 && i < l->op->n_in; i++)
		x = op_in(l->op, i)->type.rank == 3 && look_is_placed(l, i, 0) ? look_placed(l, x) : x;
	x.scale = 1;
	if (works_along(l->op, x.axis))
		return look_mixed(l, l->op->kind == OP_ROPE ? look_lost(l) : x);
	return x;
}

/* Whether operand i depends on no sample, and has other numbers for each of those that share the axis one by one.  What
 * was repeated for each sample, and then joined with the axis behind it, has not. */
static bool differs_by_sample(const Look *l, int i, int axis)
{
	const Value *v = op_in(l->op, i);
	if (!v || !look_is_placed(l, i, axis))
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
	Samples y = look_along(l, x, 0);
	y.scale = 1;
	if (x->kind == SAMPLES_AXIS && x->axis == 0 && (!own || batch == 1))
		return y;
	if (!grouped)
		return x->kind == SAMPLES_AXIS ? look_mixed(l, look_lost(l)) : look_lost(l);
	y.kind = SAMPLES_AXIS;
	y.axis = channel;
	y.batches = 1;
	bool places = differs_by_sample(l, 0, channel) || differs_by_sample(l, 1, 0) || differs_by_sample(l, 2, 0);
	return places ? look_placed(l, y) : y;
}

/* The last two dims are those of a matrix, which is one sample's. */
static Samples of_det(const Look *l)
{
	Samples x = of_layer(l);
	return x.kind == SAMPLES_AXIS && x.axis >= op_in(l->op, 0)->type.rank - 2 ? look_mixed(l, look_lost(l)) : x;
}

/* argmax and argmin, which remove an axis. */
static Samples of_choice(const Look *l)
{
	Samples x = of_layer(l);
	bool keeps = attr_get_int(l->op->attrs, "keepdims", 0);
	if (x.kind == SAMPLES_AXIS && x.axis == attr_get_int(l->op->attrs, "axis", 0))
		return look_mixed(l, look_lost(l));
	x.axis -= !keeps && x.axis > attr_get_int(l->op->attrs, "axis", 0);
	return x;
}

/* ---- all layers ---- */

Samples samples_of_layer(const Look *l, const Value *v)
{
	switch (l->op->kind) {
	case OP_CONV: case OP_CONV_GRAD_X: return of_conv(l);
	case OP_BATCH_NORM: return l->in[0].kind == SAMPLES_AXIS ? of_batch_norm(l, v) : look_lost(l);
	case OP_CROSS_ENTROPY: return of_cross_entropy(l, v);
	case OP_ATTENTION: return of_attention(l);
	case OP_GRID_SAMPLE: return of_grid_sample(l);
	case OP_ROI_POOL: return of_roi_pool(l);
	case OP_DET: return of_det(l);
	case OP_RECURRENCE: return of_recurrence(l, v);
	case OP_ARGMAX: case OP_ARGMIN: return of_choice(l);
	default: return op_info[l->op->kind].flags & WITHIN ? of_layer(l) : look_lost(l);
	}
}
