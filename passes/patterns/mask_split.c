/* passes/patterns/mask_split.c: what remains of a mask besides a band of diagonals and documents.
 *
 * A mask keeps positions (a Condition of mask.c) and may add a tensor of numbers to the scores of those (the bias).
 * Numbers of at most MASK_LOW mask, as -inf does, but for one difference: a row that is masked altogether by finite
 * numbers is uniform, and with -inf it is empty.  So finite numbers may be dropped only where no row can be empty. */
#include "passes/patterns/mask.h"

#include <math.h>
#include <string.h>

enum { WHOLE_DEPTH = 8, WALK_MAX = 1024, EVALUATED_MAX = 1 << 24 };

typedef struct Whole {
	const Condition *keep;
	bool finite;        /* a position is masked by a finite number */
	Leaf bias;          /* bias.v: NULL if nothing is added */
} Whole;

/* ---- from a value to what it keeps and adds ---- */

static Whole all_with_bias(MaskProof *x, const Leaf *bias)
{
	return (Whole){condition_run(&x->space, INT64_MIN, INT64_MAX), false, *bias};
}

/* Pieces that are 0 or low; anything else is a bias. */
static Whole whole_of_pieces(MaskProof *x, const Term *t, const Leaf *leaf)
{
	Whole w = {.keep = condition_run(&x->space, 0, -1)};
	for (int i = 0; i < t->n; i++) {
		const Linear *l = &t->piece[i].value;
		for (int k = OF_B; k < N_COORDINATES; k++)
			if (l->c[k] != 0)
				return all_with_bias(x, leaf);
		if (l->c[ONE] == 0) /* or -0.0, which is another piece */
			w.keep = condition_or(&x->space, w.keep, t->piece[i].when);
		else if (l->c[ONE] <= MASK_LOW)
			w.finite = w.finite || !isinf(l->c[ONE]);
		else
			return all_with_bias(x, leaf);
	}
	return w;
}

static Whole whole_of(MaskProof *x, Value *v, const Linear *at, int depth);

static Whole whole_of_operand(MaskProof *x, const Leaf *leaf, int i, int depth)
{
	Linear in[IR_MAX_RANK];
	mask_operand(leaf->v->op, i, leaf->at, in);
	return whole_of(x, leaf->v->op->in[i].value, in, depth + 1);
}

static Whole whole_of_sum(MaskProof *x, const Leaf *leaf, int depth)
{
	Whole a = whole_of_operand(x, leaf, 0, depth), b = whole_of_operand(x, leaf, 1, depth);
	if ((a.bias.v && b.bias.v) || a.finite || b.finite) /* a finite number and a bias may sum up to anything */
		return all_with_bias(x, leaf);
	return (Whole){condition_and(&x->space, a.keep, b.keep), false, a.bias.v ? a.bias : b.bias};
}

static Whole whole_of_choice(MaskProof *x, const Leaf *leaf, int depth)
{
	Linear in[IR_MAX_RANK];
	mask_operand(leaf->v->op, 0, leaf->at, in);
	Term cond = mask_term(x, leaf->v->op->in[0].value, in);
	for (int i = 1; cond.n && i < 3; i++) {
		Whole low = whole_of_operand(x, leaf, 3 - i, depth), w = whole_of_operand(x, leaf, i, depth);
		const Condition *chosen = mask_holds(x, &cond);
		if (low.bias.v || !condition_is_none(low.keep))
			continue;
		chosen = i == 1 ? chosen : condition_not(&x->space, chosen);
		return (Whole){condition_and(&x->space, chosen, w.keep), low.finite || w.finite, w.bias};
	}
	return all_with_bias(x, leaf);
}

static Whole whole_of(MaskProof *x, Value *v, const Linear *at, int depth)
{
	Term t = mask_term(x, v, at);
	Leaf own = {.v = v};
	memcpy(own.at, at, sizeof(Linear) * (size_t)v->type.rank);
	if (t.n && v->type.dtype == DT_BOOL)
		return (Whole){.keep = mask_holds(x, &t)};
	if (t.n)
		return whole_of_pieces(x, &t, &own);
	Whole w = all_with_bias(x, mask_is_tensor(&t.leaf) ? &t.leaf : &own);
	if (depth < WHOLE_DEPTH && t.leaf.v->op->kind == OP_ADD)
		w = whole_of_sum(x, &t.leaf, depth);
	else if (depth < WHOLE_DEPTH && t.leaf.v->op->kind == OP_WHERE)
		w = whole_of_choice(x, &t.leaf, depth);
	return w.bias.v && !mask_is_tensor(&w.bias) ? all_with_bias(x, &own) : w;
}

/* ---- rows ---- */

/* The positions that are kept whatever the atoms say.  on_diagonal: where the query is the key, so that it belongs to
 * its own document. */
static const Diagonals *kept_always(MaskProof *x, const Condition *keep, bool *on_diagonal)
{
	const Condition *k = keep;
	*on_diagonal = false;
	for (int i = 0; i < x->n_atoms; i++)
		if (x->atom[i].ids.v && condition_asks(keep, i)) {
			*on_diagonal = true;
			k = condition_given(&x->space, k, i, true);
		}
	for (int i = 0; i < x->n_atoms; i++)
		k = condition_and(&x->space, condition_given(&x->space, k, i, false), condition_given(&x->space, k, i, true));
	return k->at[0];
}

static bool rows_keep_some(MaskProof *x, const Condition *keep)
{
	bool on_diagonal;
	const Diagonals *d = kept_always(x, keep, &on_diagonal);
	int64_t T = (int64_t)x->extent[OF_Q], S = (int64_t)x->extent[OF_S];
	for (int i = 0; i < d->n; i++) {
		int64_t lo = d->run[i].lo, hi = d->run[i].hi;
		if (on_diagonal ? lo <= 0 && hi >= 0 && T <= S : lo <= 0 && T - hi <= S)
			return true;
	}
	return false;
}

/* Whether a bias may hold numbers that mask: an input may, parameters and positions do not. */
static bool may_mask(MaskProof *x, const Value *bias)
{
	VEC(const Op *) list = {0};
	PtrMap *seen = ptrmap_new(x->space.a);
	vec_push(x->space.a, &list, bias->op);
	for (int i = 0; i < list.n; i++) {
		const Op *op = list.at[i];
		if (op->kind == OP_INPUT || i == WALK_MAX)
			return true;
		for (int k = 0; k < op->n_in; k++) {
			const Value *v = op->in[k].value;
			if (!v || ptrmap_get(seen, v))
				continue;
			ptrmap_put(seen, v, list.at[0]->out[0]);
			vec_push(x->space.a, &list, v->op);
		}
	}
	return false;
}

static bool evaluated_rows_keep_some(Rewriter *r, Value *mask)
{
	const EvalTensor *t = mask->type.dtype == DT_BOOL ? match_constant(r, mask, EVALUATED_MAX) : NULL;
	if (!t)
		return false;
	int64_t n = type_numel(&t->type), row = t->type.rank ? t->type.dim[t->type.rank - 1] : 1;
	for (int64_t i = 0; i < n; i += row) {
		bool any = false;
		for (int64_t k = 0; k < row; k++)
			any = any || t->i[i + k];
		if (!any)
			return false;
	}
	return n > 0;
}

bool mask_rows_are_never_empty(Rewriter *r, Value *mask, const int64_t *scores)
{
	MaskProof x;
	mask_begin(&x, r, scores);
	Whole w = whole_of(&x, mask, mask_leaf(&x, mask).at, 0);
	bool ok = !x.why && rows_keep_some(&x, w.keep) && !(w.bias.v && may_mask(&x, w.bias.v));
	mask_end(&x);
	return ok || evaluated_rows_keep_some(r, mask);
}

/* ---- emitting ---- */

/* Whether t is dim without some of its leading dims of 1. */
static bool broadcasts_alike(const Type *t, const int64_t *dim)
{
	for (int k = 0; k < 4; k++)
		if (dim[k] != (k < 4 - t->rank ? 1 : t->dim[k - 4 + t->rank]))
			return false;
	return t->rank <= 4;
}

/* The leaf as a tensor that broadcasts to the scores. */
static Value *tensor_of(MaskProof *x, const Leaf *leaf)
{
	Builder *b = &x->r->b;
	int rank = leaf->v->type.rank, n = 0, perm[IR_MAX_RANK], at[N_COORDINATES] = {0};
	int64_t start[IR_MAX_RANK] = {0}, step[IR_MAX_RANK] = {0}, size[IR_MAX_RANK] = {0}, kept[IR_MAX_RANK] = {0};
	int64_t dim[4] = {1, 1, 1, 1};
	bool whole = true;
	for (int k = 0; k < rank; k++) {
		int on = mask_coordinate(&leaf->at[k]);
		start[k] = (int64_t)leaf->at[k].c[ONE];
		step[k] = on == ONE ? 1 : (int64_t)leaf->at[k].c[on];
		size[k] = on == ONE ? 1 : (int64_t)x->extent[on];
		whole = whole && start[k] == 0 && step[k] == 1 && size[k] == leaf->v->type.dim[k];
		if (on != ONE) {
			at[on] = n;
			dim[on - OF_B] = kept[n++] = size[k];
		}
	}
	Attr *attrs = attr_ints(x->r->m, NULL, "starts", rank, start);
	attrs = attr_ints(x->r->m, attr_ints(x->r->m, attrs, "steps", rank, step), "sizes", rank, size);
	Value *v = whole ? leaf->v : ir_emit(b, OP_SLICE, 1, (Value *[]){leaf->v}, attrs);
	bool in_order = true;
	for (int on = OF_B, k = 0; on < N_COORDINATES; on++)
		if (dim[on - OF_B] > 1) {
			in_order = in_order && at[on] == k;
			perm[k++] = at[on];
		}
	if (in_order && broadcasts_alike(&v->type, dim))
		return v;
	return ir_reshape(b, in_order ? v : ir_transpose(b, ir_reshape(b, v, n, kept), perm), 4, dim);
}

/* Elements of a tensor of the condition and the bias. */
static double size_of_rest(const MaskProof *x, const Condition *c, const Leaf *bias)
{
	bool on[N_COORDINATES] = {false};
	double n = 1;
	for (int i = 0; i <= x->n_atoms; i++) {
		const Leaf *leaf = i < x->n_atoms ? &x->atom[i].leaf : bias;
		for (int k = OF_B; leaf->v && (i == x->n_atoms || condition_asks(c, i)) && k < N_COORDINATES; k++)
			on[k] = on[k] || mask_depends(leaf, k);
	}
	for (int k = OF_B; k < N_COORDINATES; k++)
		n *= on[k] ? x->extent[k] : 1;
	return n;
}

/* A value of the mask's ops that says just this, and is no larger than need be. */
static Value *value_that_says(MaskProof *x, const Condition *c)
{
	double size = size_of_rest(x, c, &(Leaf){0});
	for (int i = 0; i < x->bools.n; i++) {
		Value *v = x->bools.at[i];
		Term t = mask_term(x, v, mask_leaf(x, v).at);
		if ((double)type_numel(&v->type) == size && condition_equal(mask_holds(x, &t), c))
			return v;
	}
	return NULL;
}

static Value *emit_atom(MaskProof *x, int i, bool holds)
{
	const Condition *atom = condition_atom(&x->space, i);
	Value *v = value_that_says(x, holds ? atom : condition_not(&x->space, atom));
	if (v)
		return v;
	v = value_that_says(x, atom);
	v = v ? v : tensor_of(x, &x->atom[i].leaf);
	return holds ? v : ir_emit1(&x->r->b, OP_NOT, v);
}

/* A bool tensor of a condition that has all diagonals or none for each combination of atoms, neither of them always.
 * NULL where it is no value of the mask's ops and no conjunction of atoms or their opposites. */
static Value *emit_condition(MaskProof *x, const Condition *c)
{
	Value *v = value_that_says(x, c);
	for (int i = 0; !v && i < x->n_atoms; i++) {
		bool holds = condition_asks(c, i) && condition_is_none(condition_given(&x->space, c, i, false));
		bool fails = condition_asks(c, i) && condition_is_none(condition_given(&x->space, c, i, true));
		if (!holds && !fails)
			continue;
		const Condition *others = condition_given(&x->space, c, i, holds);
		Value *rest = condition_is_all(&x->space, others) ? NULL : emit_condition(x, others);
		if (rest || condition_is_all(&x->space, others))
			v = rest ? ir_emit2(&x->r->b, OP_AND, emit_atom(x, i, holds), rest) : emit_atom(x, i, holds);
	}
	return v;
}

/* False where the condition cannot be emitted. */
static bool emit_rest(MaskProof *x, const Condition *c, const Leaf *bias, Value **rest)
{
	Builder *b = &x->r->b;
	bool all = condition_is_all(&x->space, c);
	Value *keep = all ? NULL : emit_condition(x, c), *added = bias->v && (all || keep) ? tensor_of(x, bias) : NULL;
	*rest = keep && added ? ir_emit3(b, OP_WHERE, keep, added, ir_const_float(b, added->type.dtype, -INFINITY))
		: keep ? keep : added;
	return all || keep;
}

static Value *emit_documents(MaskProof *x, const Leaf *ids)
{
	Value *v = tensor_of(x, ids);
	int64_t T = (int64_t)x->extent[OF_Q], dim[2] = {type_numel(&v->type) / T, T};
	v = ir_reshape(&x->r->b, v, 2, dim);
	return v->type.dtype == DT_I64 || v->type.dtype == DT_I32 ? v
		: ir_emit(&x->r->b, OP_CAST, 1, &v, attr_dtype(x->r->m, NULL, "to", DT_I64));
}

/* ---- splitting ---- */

static bool is_square(const Value *v)
{
	int rank = v->type.rank;
	return rank >= 2 && v->type.dim[rank - 1] > 1 && v->type.dim[rank - 2] > 1;
}

/* The atom depends on queries and keys together, so the mask cannot be smaller than it. */
static const char *why_atom(MaskProof *x, const Value *v)
{
	if (v->op->kind == OP_CONST)
		return "its numbers are no band of diagonals";
	if (v->op->kind == OP_READ)
		return arena_printf(x->r->scratch, "the numbers of %s are no band of diagonals, or cannot be read",
			v->op->sym->name);
	return arena_printf(x->r->scratch, "%s of node %s depends on queries and keys together", op_info[v->op->kind].text,
		v->op->loc->node);
}

static const char *why_whole(MaskProof *x, const Whole *w, const Diagonals *d)
{
	if (x->why)
		return x->why;
	if (w->bias.v)
		return w->bias.v->op->kind == OP_CONST || w->bias.v->op->kind == OP_READ ? why_atom(x, w->bias.v)
			: "it adds numbers other than 0 and -inf";
	if (w->finite && !rows_keep_some(x, w->keep))
		return "a row may be masked altogether, by a finite number, and is uniform then";
	for (int i = 0; i < x->n_atoms; i++) {
		const Leaf *leaf = &x->atom[i].leaf;
		if (condition_asks(w->keep, i) && mask_depends(leaf, OF_Q) && mask_depends(leaf, OF_S))
			return why_atom(x, leaf->v);
	}
	return d && d->n == 1 ? "it asks for queries and keys apart"
		: "it is no conjunction of a band of diagonals, documents and masks of keys";
}

/* The documents that the condition asks for; *c is what it asks besides. */
static const Leaf *take_documents(MaskProof *x, const Condition **c)
{
	for (int i = 0; i < x->n_atoms; i++)
		if (x->atom[i].ids.v && condition_asks(*c, i)
				&& condition_is_none(condition_given(&x->space, *c, i, false))) {
			*c = condition_given(&x->space, *c, i, true);
			return &x->atom[i].ids;
		}
	return NULL;
}

/* Whether the parts say more than the mask does. */
static bool is_progress(MaskProof *x, const Value *mask, const Condition *c, const Whole *w, const MaskParts *parts)
{
	bool no_rest = condition_is_all(&x->space, c) && !w->bias.v;
	bool becomes_bool = dtype_is_float(mask->type.dtype) && !w->bias.v;
	return parts->has_left || parts->has_right || no_rest || becomes_bool
		|| size_of_rest(x, c, &w->bias) < (double)type_numel(&mask->type);
}

static bool split(MaskProof *x, Value *mask, MaskParts *parts)
{
	Whole w = whole_of(x, mask, mask_leaf(x, mask).at, 0);
	const Diagonals *d = condition_diagonals(w.keep);
	*parts = (MaskParts){.why = is_square(mask) ? why_whole(x, &w, d) : NULL};
	if (x->why || !d || d->n != 1 || (w.finite && (w.bias.v || !rows_keep_some(x, w.keep))))
		return false;
	const Condition *c = condition_any(&x->space, w.keep);
	const Leaf *ids = take_documents(x, &c);
	parts->has_left = d->run[0].hi < x->space.all.hi;
	parts->has_right = d->run[0].lo > x->space.all.lo;
	parts->left = d->run[0].hi;
	parts->right = -d->run[0].lo;
	if ((!ids && !is_progress(x, mask, c, &w, parts)) || !emit_rest(x, c, &w.bias, &parts->rest))
		return false;
	parts->documents = ids ? emit_documents(x, ids) : NULL;
	parts->why = parts->rest && is_square(parts->rest) ? parts->why : NULL;
	return true;
}

bool mask_split(Rewriter *r, Value *mask, const int64_t *scores, MaskParts *parts)
{
	MaskProof x;
	mask_begin(&x, r, scores);
	bool done = split(&x, mask, parts);
	mask_end(&x);
	return done;
}
