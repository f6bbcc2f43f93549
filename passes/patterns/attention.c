/* passes/patterns/attention.c: recognises scaled dot-product attention, and masks that need no tensor.
 *
 * The match starts at softmax(scores) times v and goes inwards: dropout may stand before the product, scores are a
 * matmul of q and k, scaled, perhaps capped by tanh, then masked; k and v may be groups of heads that were repeated to
 * the number of q's heads.  Two forms are refused, with a note under -v: dropout whose samples lie along the queries or
 * keys, and a finite mask chosen by `where` whose rows may be masked completely, since such a row is uniform in the
 * model but empty in the op. */
#include "passes/patterns/mask.h"

#include <math.h>

enum { MAX_INNER = 32 };

typedef struct Attention {
	Rewriter *r;
	Op *root, *scores;    /* the matmul with v; the matmul of q and k */
	Value *q, *k, *v;
	double scale, softcap; /* 0: none */
	Value *bias;          /* added to the scores, or NULL */
	Value *keep;          /* bool, or NULL */
	bool finite;          /* masked scores are a finite number */
	bool zero_empty;      /* rows of NaN are replaced by zeros */
	Op *dropout;          /* of the weights, or NULL */
	Op *inner[MAX_INNER];
	int n_inner;
} Attention;

static const char what[] = "attention";

static bool cover(Attention *a, Op *op)
{
	if (a->n_inner == MAX_INNER)
		return false;
	a->inner[a->n_inner++] = op;
	return true;
}

/* ---- from the weights to the scores ---- */

static Value *through_float_cast(Attention *a, Value *v)
{
	Op *cast = def_of(v, OP_CAST);
	if (!cast || !dtype_is_float(v->type.dtype) || !dtype_is_float(cast->in[0].value->type.dtype)
			|| !cover(a, cast))
		return v;
	return cast->in[0].value;
}

/* where(isnan(p), 0, p) -> p */
static Value *through_nan_to_zero(Attention *a, Value *v)
{
	Op *where = def_of(v, OP_WHERE), *isnan_op = where ? def_of(where->in[0].value, OP_ISNAN) : NULL;
	if (!isnan_op || isnan_op->in[0].value != where->in[2].value || !match_is(where->in[1].value, 0)
			|| !cover(a, where) || !cover(a, isnan_op))
		return v;
	a->zero_empty = true;
	return where->in[2].value;
}

/* dropout(p) -> p.  Exporters and the import may reshape p so that its samples have an axis, and back. */
static Value *through_dropout(Attention *a, Value *v)
{
	Op *back = def_of(v, OP_RESHAPE), *dropout = def_of(back ? back->in[0].value : v, OP_DROPOUT);
	if (!dropout || a->dropout)
		return v;
	Value *x = dropout->in[0].value;
	Op *there = back ? def_of(x, OP_RESHAPE) : NULL;
	x = there ? there->in[0].value : x;
	if (!type_equal(&x->type, &v->type) || (back && !cover(a, back)) || (there && !cover(a, there))
			|| !cover(a, dropout))
		return v;
	a->dropout = dropout;
	return x;
}

static Op *find_softmax(Attention *a)
{
	Value *p = NULL, *next = op_in(a->root, 0);
	while (next != p) {
		p = next;
		next = through_dropout(a, through_nan_to_zero(a, through_float_cast(a, p)));
	}
	Op *softmax = def_of(p, OP_SOFTMAX);
	return softmax && axis_of(softmax) == p->type.rank - 1 && cover(a, softmax) ? softmax : NULL;
}

/* ---- from the masked scores to q and k ---- */

static Value *both(Attention *a, Value *x, Value *y)
{
	return x ? ir_emit2(&a->r->b, OP_AND, x, y) : y;
}

/* One step inwards: the value that op masks, scales or caps; NULL when op does something else. */
typedef Value *StepFn(Attention *a, Op *op);

/* Whether a chain of such steps leads from v to a matmul.  It tells the scores from a mask, for which this rarely
 * holds. */
static bool leads_to_matmul(const Value *v, int depth)
{
	static const bool passes[OP_COUNT] = {[OP_ADD] = true, [OP_SUB] = true, [OP_MUL] = true, [OP_DIV] = true,
		[OP_WHERE] = true, [OP_CAST] = true, [OP_TANH] = true};
	if (v->op->kind == OP_MATMUL)
		return true;
	for (int i = 0; depth < 8 && passes[v->op->kind] && i < v->op->n_in; i++)
		if (leads_to_matmul(v->op->in[i].value, depth + 1))
			return true;
	return false;
}

static Value *masked_by(Attention *a, const Op *op, Value *scores, Value *mask, bool subtracted)
{
	Builder *b = &a->r->b;
	if (!leads_to_matmul(scores, 0) || !type_equal(&scores->type, &op->out[0]->type) || a->scale != 1
			|| a->softcap != 0)
		return NULL;
	if (subtracted)
		mask = ir_emit1(b, OP_NEG, mask);
	a->bias = a->bias ? ir_emit2(b, OP_ADD, a->bias, mask) : mask;
	return scores;
}

static Value *step_add(Attention *a, Op *op)
{
	Value *x = op->in[0].value, *y = op->in[1].value;
	Value *scores = masked_by(a, op, x, y, false);
	return scores ? scores : masked_by(a, op, y, x, false);
}

static Value *step_sub(Attention *a, Op *op)
{
	return masked_by(a, op, op->in[0].value, op->in[1].value, true);
}

static Value *step_where(Attention *a, Op *op)
{
	double low;
	for (int i = 1; i < 3; i++) {
		Value *scores = op->in[i].value, *cond = op->in[0].value;
		if (!match_number(op->in[3 - i].value, &low) || low > MASK_LOW
				|| !type_equal(&scores->type, &op->out[0]->type))
			continue;
		if (a->scale != 1 || a->softcap != 0)
			return NULL;
		a->keep = both(a, a->keep, i == 1 ? cond : ir_emit1(&a->r->b, OP_NOT, cond));
		a->finite = a->finite || !isinf(low);
		return scores;
	}
	return NULL;
}

static Value *step_scale(Attention *a, Op *op)
{
	Value *x;
	double number;
	if (!match_with_number(op, &x, &number) || !type_equal(&x->type, &op->out[0]->type) || number == 0)
		return NULL;
	if (def_of(x, OP_TANH)) {
		if (a->scale != 1 || a->softcap != 0 || op->kind != OP_MUL || number < 0 || !cover(a, x->op))
			return NULL;
		a->softcap = number;
		return x->op->in[0].value;
	}
	a->scale = op->kind == OP_MUL ? a->scale * number : a->scale / number;
	return x;
}

static Value *step_cast(Attention *a, Op *op)
{
	(void)a;
	Value *x = op->in[0].value;
	return dtype_is_float(x->type.dtype) ? x : NULL;
}

static StepFn *const step[OP_COUNT] = {[OP_ADD] = step_add, [OP_SUB] = step_sub, [OP_WHERE] = step_where,
	[OP_MUL] = step_scale, [OP_DIV] = step_scale, [OP_CAST] = step_cast};

static bool find_scores(Attention *a, Value *v)
{
	while (v && v->op->kind != OP_MATMUL) {
		Op *op = v->op;
		v = step[op->kind] && cover(a, op) ? step[op->kind](a, op) : NULL;
	}
	a->scores = v ? v->op : NULL;
	return a->scores && !op_in(a->scores, 2) && cover(a, a->scores);
}

/* Removes factors of q and k, which become part of the scale. */
static Value *unscaled(Attention *a, Value *v)
{
	double number;
	Value *x;
	while (v->op && (v->op->kind == OP_MUL || v->op->kind == OP_DIV) && match_with_number(v->op, &x, &number)
			&& type_equal(&x->type, &v->type)) {
		a->scale = v->op->kind == OP_MUL ? a->scale * number : a->scale / number;
		v = x;
	}
	return v;
}

static Value *swap_last_two(Builder *b, Value *v)
{
	int perm[IR_MAX_RANK], n = v->type.rank;
	for (int i = 0; i < n; i++)
		perm[i] = i < n - 2 ? i : 2 * n - 3 - i;
	Value *x = match_transpose(v, n, perm);
	return x ? x : ir_transpose(b, v, perm);
}

static void find_operands(Attention *a)
{
	Builder *b = &a->r->b;
	a->q = unscaled(a, op_in(a->scores, 0));
	a->k = unscaled(a, op_in(a->scores, 1));
	a->v = op_in(a->root, 1);
	if (attr_get_int(a->scores->attrs, "ta", 0))
		a->q = swap_last_two(b, a->q);
	if (!attr_get_int(a->scores->attrs, "tb", 0))
		a->k = swap_last_two(b, a->k);
	if (attr_get_int(a->root->attrs, "tb", 0))
		a->v = swap_last_two(b, a->v);
	if (a->softcap != 0)
		a->scale *= a->softcap;
}

/* ---- shapes ---- */

/* [T,D] and [B,T,D] as [B,1,T,D]: other shapes get dims of 1 for the missing ones. */
static Value *with_heads(Builder *b, Value *v, int rank)
{
	int64_t dim[4] = {1, 1, 1, 1};
	int n = v->type.rank;
	if (rank == 4 || n < 3)
		return rank == 4 || n == 0 ? v : ir_reshape(b, v, n, v->type.dim);
	dim[0] = v->type.dim[0];
	dim[2] = v->type.dim[1];
	dim[3] = v->type.dim[2];
	return ir_reshape(b, v, 4, dim);
}

static Value *operand_with_heads(Builder *b, Value *v)
{
	int64_t dim[4] = {1, 1, 0, 0};
	if (v->type.rank != 2)
		return with_heads(b, v, v->type.rank);
	dim[2] = v->type.dim[0];
	dim[3] = v->type.dim[1];
	return ir_reshape(b, v, 4, dim);
}

static bool shapes_fit(const Attention *a)
{
	const Type *q = &a->q->type, *k = &a->k->type, *v = &a->v->type;
	return q->rank == 4 && k->rank == 4 && v->rank == 4 && q->dim[0] == k->dim[0] && q->dim[0] == v->dim[0]
		&& k->dim[1] == v->dim[1] && q->dim[1] % k->dim[1] == 0 && q->dim[3] == k->dim[3]
		&& k->dim[2] == v->dim[2] && q->dtype == k->dtype && q->dtype == v->dtype
		&& q->dtype == a->root->out[0]->type.dtype;
}

static bool fit_shapes(Attention *a)
{
	Builder *b = &a->r->b;
	if (a->q->type.rank > 4 || a->k->type.rank != a->q->type.rank || a->v->type.rank != a->q->type.rank)
		return false;
	a->q = operand_with_heads(b, a->q);
	a->k = operand_with_heads(b, a->k);
	a->v = operand_with_heads(b, a->v);
	return shapes_fit(a);
}

/* ---- masks ---- */

static Value *mask_of(Attention *a, int rank)
{
	Builder *b = &a->r->b;
	Value *mask = a->keep;
	if (a->keep && a->bias) {
		Value *low = ir_const_float(b, a->bias->type.dtype, -INFINITY);
		mask = ir_emit3(b, OP_WHERE, a->keep, a->bias, low);
	} else if (a->bias) {
		mask = a->bias;
	}
	return mask ? with_heads(b, mask, rank) : NULL;
}

/* ---- dropout ---- */

/* How dropout sees its operand: (*pre, *rows, rest), rows = 0 without samples. */
static void rows_of_dropout(const Op *op, int64_t *pre, int64_t *rows)
{
	const Type *x = &op_in(op, 0)->type;
	int axis = (int)attr_get_int(op->attrs, "axis", -1);
	*pre = 1;
	for (int i = 0; i < axis; i++)
		*pre *= x->dim[i];
	*rows = axis < 0 ? 0 : x->dim[axis];
}

/* Whether all weights of a head belong to one sample. */
static bool dropout_fits(const Attention *a)
{
	int64_t pre, rows, heads = a->q->type.dim[0] * a->q->type.dim[1];
	if (!a->dropout)
		return true;
	rows_of_dropout(a->dropout, &pre, &rows);
	return pre > 0 && heads % pre == 0 && heads / pre % MAX(rows, 1) == 0
		&& attr_get_float(a->dropout->attrs, "p", 0) < 1;
}

static Attr *dropout_attrs(const Attention *a, Attr *attrs)
{
	Module *m = a->r->m;
	int64_t pre, rows;
	if (!a->dropout)
		return attrs;
	rows_of_dropout(a->dropout, &pre, &rows);
	attrs = attr_int(m, attr_int(m, attrs, "pre", pre), "rows", rows);
	attrs = attr_int(m, attrs, "id", attr_get_int(a->dropout->attrs, "id", 0));
	return attr_float(m, attrs, "p", attr_get_float(a->dropout->attrs, "p", 0));
}

static Value *emit_attention(Attention *a, Value *mask)
{
	Module *m = a->r->m;
	const Type *out = &a->root->out[0]->type;
	Value *in[4] = {a->q, a->k, a->v, mask};
	Attr *attrs = attr_float(m, NULL, "scale", a->scale);
	attrs = attr_str(m, attr_int(m, attrs, "layout", 0), "empty", a->zero_empty ? "zero" : "nan");
	if (a->softcap != 0)
		attrs = attr_float(m, attrs, "softcap", a->softcap);
	attrs = dropout_attrs(a, attrs);
	return ir_reshape(&a->r->b, ir_emit(&a->r->b, OP_ATTENTION, 4, in, attrs), out->rank, out->dim);
}

Value *pattern_attention(Rewriter *r, Op *op)
{
	Attention a = {.r = r, .root = op, .scale = 1};
	if (attr_get_int(op->attrs, "ta", 0) || op_in(op, 2))
		return NULL;
	Op *softmax = find_softmax(&a);
	if (!softmax)
		return NULL;
	if (!find_scores(&a, softmax->in[0].value)) {
		pattern_refuse(r, op, what, "its scores are not a scaled and masked product of queries and keys");
		return NULL;
	}
	find_operands(&a);
	if (!fit_shapes(&a)) {
		pattern_refuse(r, op, what, "batch and heads of q, k and v do not agree");
		return NULL;
	}
	if (a.q->type.dtype == DT_F64) {
		pattern_refuse(r, op, what, "there is no kernel of it for f64");
		return NULL;
	}
	if (!dropout_fits(&a)) {
		pattern_refuse(r, op, what, "the samples of its dropout lie along its queries or keys");
		return NULL;
	}
	if (!pattern_is_closed(r, op, what, a.inner, a.n_inner))
		return NULL;
	Value *mask = mask_of(&a, a.scores->out[0]->type.rank);
	int64_t scores[4] = {a.q->type.dim[0], a.q->type.dim[1], a.q->type.dim[2], a.k->type.dim[2]};
	if (a.finite && !mask_rows_are_never_empty(r, mask, scores)) {
		pattern_refuse(r, op, what, "a row may be masked altogether by a finite number, and is uniform then");
		return NULL;
	}
	return emit_attention(&a, mask);
}

/* ---- groups of heads ---- */

/* Where heads were copied for each query head of their group: the heads before that, else v. */
static Value *ungrouped(Builder *b, Value *v)
{
	Op *merge = def_of(v, OP_RESHAPE), *wide = def_of(merge ? merge->in[0].value : v, OP_BROADCAST);
	if (!wide || v->type.rank != 4)
		return v;
	const Type *x = &wide->in[0].value->type, *y = &wide->out[0]->type;
	if (!merge) { /* one head serves all query heads */
		bool heads_alone = x->rank == 4 && x->dim[0] == y->dim[0] && x->dim[2] == y->dim[2] && x->dim[3] == y->dim[3];
		return heads_alone && x->dim[1] == 1 ? wide->in[0].value : v;
	}
	if (y->rank != 5 || x->rank != 5 || x->dim[2] != 1 || x->dim[0] != y->dim[0] || x->dim[1] != y->dim[1]
			|| x->dim[3] != y->dim[3] || x->dim[4] != y->dim[4] || v->type.dim[1] != y->dim[1] * y->dim[2]
			|| v->type.dim[0] != y->dim[0])
		return v;
	int64_t dim[4] = {x->dim[0], x->dim[1], x->dim[3], x->dim[4]};
	return ir_reshape(b, wide->in[0].value, 4, dim);
}

Value *pattern_attention_groups(Rewriter *r, Op *op)
{
	Value *k = ungrouped(&r->b, op_in(op, 1)), *v = ungrouped(&r->b, op_in(op, 2));
	if (attr_get_int(op->attrs, "layout", 0) || k == op_in(op, 1) || k->type.dim[1] != v->type.dim[1])
		return NULL;
	return rewrite_again(r, op, op->n_in, (Value *[]){op_in(op, 0), k, v, op_in(op, 3), op_in(op, 4)}, op->attrs);
}

/* ---- masks ---- */

/* Batch, heads, queries and keys of an attention. */
static void scores_of(const Op *op, int64_t *scores)
{
	const int64_t *q = op_in(op, 0)->type.dim, *k = op_in(op, 1)->type.dim;
	bool swapped = attr_get_int(op->attrs, "layout", 0);
	scores[0] = q[0];
	scores[1] = q[swapped ? 2 : 1];
	scores[2] = q[swapped ? 1 : 2];
	scores[3] = k[swapped ? 1 : 2];
}

/* A limit of a band that holds besides the one that the op has. */
static Attr *narrowed(Rewriter *r, Attr *attrs, const char *name, bool has, int64_t limit)
{
	return has ? attr_int(r->m, attrs, name, MIN(limit, attr_get_int(attrs, name, limit))) : attrs;
}

/* Keeps the op, which says why (NULL: its mask is not large) its mask stays as it is.  This changes no value, so it is
 * no rewriting. */
static Value *with_whole_mask(Rewriter *r, Op *op, const char *why)
{
	Attr *attrs = attr_without(r->m, op->attrs, 1, (const char *[]){"why"});
	op->attrs = why ? attr_str(r->m, attrs, "why", why) : attrs;
	if (why)
		pattern_refuse(r, op, "a mask of a band, documents and keys", "%s", why);
	return NULL;
}

Value *pattern_attention_mask(Rewriter *r, Op *op)
{
	Value *mask = op_in(op, 3), *documents = op_in(op, 4);
	int64_t scores[4];
	MaskParts parts;
	if (!mask)
		return NULL;
	scores_of(op, scores);
	if (!mask_split(r, mask, scores, &parts))
		return with_whole_mask(r, op, parts.why);
	if (documents && parts.documents)
		return with_whole_mask(r, op, "it has documents, and the attention has others already");
	Attr *attrs = attr_without(r->m, op->attrs, 1, (const char *[]){"why"});
	attrs = narrowed(r, attrs, "left", parts.has_left, parts.left);
	attrs = narrowed(r, attrs, "right", parts.has_right, parts.right);
	return rewrite_again(r, op, 5, (Value *[]){op_in(op, 0), op_in(op, 1), op_in(op, 2), parts.rest,
		documents ? documents : parts.documents}, attrs);
}
