/* passes/patterns/mask.c: follows coordinates of attention scores through the ops that make a mask.
 *
 * mask_term(v, at) says what the element of v at some indices is.  Ops that move data change the indices; elementwise
 * ops calculate with pieces; what remains is an element of a tensor (a leaf), and a bool leaf is an atom.  All numbers
 * are exact: a piece whose numbers the dtype cannot hold exactly becomes a leaf.  Comparisons of pieces that are linear
 * in q - s become diagonals; others hold everywhere or nowhere, or are atoms. */
#include "passes/patterns/mask.h"

#include <math.h>
#include <string.h>

enum { VISITS_MAX = 4096, DEPTH_MAX = 256, SAME_DEPTH = 8 };
static const double EXACT = 0x1p52;

void mask_begin(MaskProof *x, Rewriter *r, const int64_t *scores)
{
	*x = (MaskProof){.r = r, .extent = {1, (double)scores[0], (double)scores[1], (double)scores[2], (double)scores[3]}};
	x->space = (Space){.a = arena_new(), .all = {1 - scores[3], scores[2] - 1}};
	x->seen = ptrmap_new(x->space.a);
}

void mask_end(MaskProof *x)
{
	arena_free(x->space.a);
}

/* ---- linear functions ---- */

static Linear number(double c)
{
	return (Linear){{c}};
}

/* a + factor * b.  The factor 0 is no factor at all, so that 0 * inf does not occur. */
static Linear plus(const Linear *a, double factor, const Linear *b)
{
	Linear y = *a;
	for (int i = 0; i < N_COORDINATES && factor != 0; i++)
		y.c[i] += b->c[i] != 0 ? factor * b->c[i] : 0;
	return y;
}

static bool is_number(const Linear *l)
{
	for (int i = OF_B; i < N_COORDINATES; i++)
		if (l->c[i] != 0)
			return false;
	return true;
}

static void range_of(const MaskProof *x, const Linear *l, double *lo, double *hi)
{
	*lo = *hi = l->c[ONE];
	for (int i = OF_B; i < N_COORDINATES; i++) {
		double most = l->c[i] * (x->extent[i] - 1);
		*lo += MIN(most, 0);
		*hi += MAX(most, 0);
	}
}

/* Whether dtype t holds all values of l exactly.  A number must have been rounded to it already. */
static bool fits(const MaskProof *x, const Linear *l, DType t)
{
	double lo, hi, most = EXACT;
	if (is_number(l))
		return dtype_is_float(t) || fabs(l->c[ONE]) <= EXACT;
	range_of(x, l, &lo, &hi);
	for (int i = 0; i < N_COORDINATES; i++)
		if (l->c[i] != floor(l->c[i]))
			return false;
	if (dtype_is_float(t)) {
		most = t == DT_F64 ? EXACT : t == DT_F32 ? 0x1p24 : t == DT_F16 ? 0x1p11 : 0x1p8;
		return lo >= -most && hi <= most;
	}
	int bits = 8 * dtype_info[t].bytes;
	bool is_signed = dtype_info[t].kind == CLASS_INT;
	most = MIN(most, ldexp(1, is_signed ? bits - 1 : bits) - 1);
	return t != DT_BOOL && lo >= (is_signed ? -most : 0) && hi <= most;
}

/* ---- leaves ---- */

Leaf mask_leaf(const MaskProof *x, Value *v)
{
	Leaf leaf = {.v = v};
	for (int k = 0; k < v->type.rank; k++) {
		int on = OF_B + 4 - v->type.rank + k;
		if (v->type.dim[k] != 1 && x->extent[on] != 1)
			leaf.at[k].c[on] = 1;
	}
	return leaf;
}

bool mask_depends(const Leaf *leaf, Coordinate on)
{
	for (int k = 0; k < leaf->v->type.rank; k++)
		if (leaf->at[k].c[on] != 0)
			return true;
	return false;
}

int mask_coordinate(const Linear *at)
{
	int on = ONE;
	for (int i = OF_B; i < N_COORDINATES; i++)
		if (at->c[i] != 0) {
			if (on != ONE)
				return -1;
			on = i;
		}
	return on;
}

bool mask_is_tensor(const Leaf *leaf)
{
	bool used[N_COORDINATES] = {false};
	for (int k = 0; k < leaf->v->type.rank; k++) {
		int on = mask_coordinate(&leaf->at[k]);
		if (on < 0 || (on != ONE && used[on]))
			return false;
		used[on] = true;
	}
	return true;
}

/* ---- comparisons ---- */

static int64_t floor_div(int64_t a, int64_t b) /* b > 0 */
{
	return a / b - (a % b < 0);
}

/* Where l >= 0; NULL where that depends on more than q - s. */
static const Condition *at_least_zero(MaskProof *x, const Linear *l)
{
	double lo, hi, k = l->c[OF_Q], c = floor(l->c[ONE]);
	range_of(x, l, &lo, &hi);
	if (lo >= 0)
		return condition_run(&x->space, INT64_MIN, INT64_MAX);
	if (!(hi >= 0)) /* NaN is no number at least 0 */
		return condition_run(&x->space, 0, -1);
	if (l->c[OF_B] != 0 || l->c[OF_H] != 0 || k == 0 || k != -l->c[OF_S] || fabs(k) > EXACT || fabs(c) > EXACT)
		return NULL;
	if (k > 0) /* d >= -c / k, rounded up */
		return condition_run(&x->space, -floor_div((int64_t)c, (int64_t)k), INT64_MAX);
	return condition_run(&x->space, INT64_MIN, floor_div((int64_t)c, (int64_t)-k));
}

/* Where l > 0, which is not l >= 0 of -l. */
static const Condition *above_zero(MaskProof *x, const Linear *l)
{
	Linear zero = number(0), minus = plus(&zero, -1, l);
	const Condition *not_above = at_least_zero(x, &minus);
	if (isnan(l->c[ONE]))
		return condition_run(&x->space, 0, -1);
	return not_above ? condition_not(&x->space, not_above) : NULL;
}

static const Condition *is_zero(MaskProof *x, const Linear *l)
{
	Linear zero = number(0), minus = plus(&zero, -1, l);
	const Condition *a = at_least_zero(x, l), *b = at_least_zero(x, &minus);
	if ((a && condition_is_none(a)) || (b && condition_is_none(b)))
		return condition_run(&x->space, 0, -1);
	return a && b ? condition_and(&x->space, a, b) : NULL;
}

/* Where `a kind b`; NULL where that is not known. */
static const Condition *compared(MaskProof *x, OpKind kind, const Linear *a, const Linear *b)
{
	Linear ab = plus(a, -1, b), ba = plus(b, -1, a);
	if (is_number(a) && is_number(b) && a->c[ONE] == b->c[ONE]) /* inf - inf is not a number */
		ab = ba = number(0);
	switch (kind) {
	case OP_GE: return at_least_zero(x, &ab);
	case OP_LE: return at_least_zero(x, &ba);
	case OP_GT: return above_zero(x, &ab);
	case OP_LT: return above_zero(x, &ba);
	case OP_EQ: return is_zero(x, &ab);
	default: return NULL;
	}
}

/* ---- pieces ---- */

static const Condition *always(MaskProof *x)
{
	return condition_run(&x->space, INT64_MIN, INT64_MAX);
}

static Term term_linear(MaskProof *x, Linear l)
{
	return (Term){.n = 1, .piece = {{l, always(x)}}};
}

static bool add_piece(MaskProof *x, Term *t, Linear value, const Condition *when)
{
	if (condition_is_none(when))
		return true;
	for (int i = 0; i < t->n; i++)
		if (!memcmp(&t->piece[i].value, &value, sizeof(value))) {
			t->piece[i].when = condition_or(&x->space, t->piece[i].when, when);
			return true;
		}
	if (t->n == MASK_PIECES)
		return false;
	t->piece[t->n++] = (Piece){value, when};
	return true;
}

static bool add_bool(MaskProof *x, Term *t, const Condition *holds, const Condition *when)
{
	return holds && add_piece(x, t, number(1), condition_and(&x->space, when, holds))
		&& add_piece(x, t, number(0), condition_and(&x->space, when, condition_not(&x->space, holds)));
}

const Condition *mask_holds(MaskProof *x, const Term *t)
{
	const Condition *holds = condition_run(&x->space, 0, -1);
	for (int i = 0; i < t->n; i++)
		if (t->piece[i].value.c[ONE] != 0)
			holds = condition_or(&x->space, holds, t->piece[i].when);
	return holds;
}

/* ---- atoms ---- */

static bool same_leaf(const Leaf *a, const Leaf *b)
{
	return a->v == b->v && !memcmp(a->at, b->at, sizeof(Linear) * (size_t)a->v->type.rank);
}

static Term term_atom(MaskProof *x, const Leaf *leaf, const Leaf *ids)
{
	Term t = {0};
	int i = 0;
	while (i < x->n_atoms && !same_leaf(&x->atom[i].leaf, leaf))
		i++;
	if (i == MASK_ATOMS) {
		x->why = arena_printf(x->r->scratch, "it is made of more than %d unknown masks", MASK_ATOMS);
		return (Term){.leaf = *leaf};
	}
	if (i == x->n_atoms)
		x->atom[x->n_atoms++] = (Atom){*leaf, ids ? *ids : (Leaf){0}};
	add_bool(x, &t, condition_atom(&x->space, i), always(x));
	return t;
}

/* The element as it stands: an atom, or not known at all. */
static Term term_leaf(MaskProof *x, Value *v, const Linear *at)
{
	Leaf leaf = {.v = v};
	memcpy(leaf.at, at, sizeof(Linear) * (size_t)v->type.rank);
	return v->type.dtype == DT_BOOL && mask_is_tensor(&leaf) ? term_atom(x, &leaf, NULL) : (Term){.leaf = leaf};
}

/* ---- what is known of leaves: positions, literals, tables ---- */

static bool numbers_of(const Value *v, Linear *l)
{
	const Attr *a = const_splat(v);
	if (!a)
		return false;
	*l = number(a->kind == ATTR_INTS ? (double)a->ints[0] : dtype_round(v->type.dtype, a->floats[0]));
	return a->kind != ATTR_INTS || (v->type.dtype != DT_U64 && fabs(l->c[ONE]) <= EXACT);
}

static bool positions_of(const MaskProof *x, const Op *op, const Linear *at, Linear *l)
{
	double step = attr_get_float(op->attrs, "step", 1), start = attr_get_float(op->attrs, "start", 0);
	Linear first = number(start);
	if (step != floor(step) || start != floor(start))
		return false;
	*l = plus(&first, step, &at[attr_get_int(op->attrs, "axis", 0)]);
	return fits(x, l, op->out[0]->type.dtype);
}

/* The element of a table that is constant along each diagonal of its last two dims. */
static bool stripes_of(MaskProof *x, const Value *v, const Linear *at, Term *t)
{
	int rank = v->type.rank;
	const Stripes *s = rank >= 2 && (at[rank - 1].c[OF_S] != 0 || at[rank - 2].c[OF_S] != 0)
		? data_stripes(x->r, v) : NULL;
	for (int i = 0; s && i < s->n; i++) {
		Linear lo = number((double)s->at[i].lo), hi = number((double)s->at[i].hi);
		Linear d = plus(&at[rank - 2], -1, &at[rank - 1]);
		const Condition *from = compared(x, OP_GE, &d, &lo), *to = compared(x, OP_LE, &d, &hi);
		Linear from_lo = plus(&d, -1, &lo), first = number(s->at[i].first), y = plus(&first, s->at[i].step, &from_lo);
		if (!from || !to || !fits(x, &y, v->type.dtype)
				|| !add_piece(x, t, y, condition_and(&x->space, from, to)))
			return false;
	}
	return s;
}

/* Elements along one coordinate that can be computed now and are evenly spaced. */
static bool evenly_spaced(MaskProof *x, Value *v, const Linear *at, Linear *l)
{
	enum { MAX_ALONG = 1 << 22 };
	int on = ONE, rank = v->type.rank;
	int64_t stride[IR_MAX_RANK], first = 0, step = 0;
	type_strides(&v->type, stride);
	for (int k = 0; k < rank; k++) {
		int now = mask_coordinate(&at[k]);
		if (now < 0 || (now != ONE && on != ONE && now != on))
			return false;
		on = now != ONE ? now : on;
		first += stride[k] * (int64_t)at[k].c[ONE];
		step += now != ONE ? stride[k] * (int64_t)at[k].c[now] : 0;
	}
	const EvalTensor *t = match_constant(x->r, v, MAX_ALONG);
	if (!t)
		return false;
	bool real = dtype_is_float(v->type.dtype);
	double previous = 0, by = 0;
	for (int64_t i = 0, n = (int64_t)x->extent[on]; i < n; i++) {
		double now = real ? t->f[first + i * step] : (double)t->i[first + i * step];
		if (i == 0)
			*l = number(now);
		else if (i == 1)
			by = now - previous;
		if ((i > 1 && now - previous != by) || (i > 0 && (now != floor(now) || fabs(now) > EXACT)))
			return false;
		previous = now;
	}
	l->c[on] += on == ONE ? 0 : by;
	return fits(x, l, v->type.dtype);
}

static Term term_of_source(MaskProof *x, Value *v, const Linear *at)
{
	Linear l;
	Term t = {0};
	if (numbers_of(v, &l) || (v->op->kind == OP_IOTA && positions_of(x, v->op, at, &l)))
		return term_linear(x, l);
	if ((v->op->kind == OP_CONST || v->op->kind == OP_READ) && stripes_of(x, v, at, &t))
		return t;
	if (evenly_spaced(x, v, at, &l))
		return term_linear(x, l);
	return term_leaf(x, v, at);
}

/* ---- ops that move data: from indices of the result to the operand and its indices ---- */

typedef Value *MoveFn(MaskProof *x, const Value *v, const Linear *at, Linear *in);

void mask_operand(const Op *op, int i, const Linear *at, Linear *in)
{
	const Type *from = &op->in[i].value->type, *to = &op->out[0]->type;
	for (int k = 0; k < from->rank; k++)
		in[k] = from->dim[k] == 1 ? number(0) : at[to->rank - from->rank + k];
}

static Value *move_broadcast(MaskProof *x, const Value *v, const Linear *at, Linear *in)
{
	(void)x;
	mask_operand(v->op, 0, at, in);
	return v->op->in[0].value;
}

static Value *move_same(MaskProof *x, const Value *v, const Linear *at, Linear *in)
{
	(void)x;
	memcpy(in, at, sizeof(Linear) * (size_t)v->type.rank);
	return v->op->in[0].value;
}

static Value *move_transpose(MaskProof *x, const Value *v, const Linear *at, Linear *in)
{
	int perm[IR_MAX_RANK];
	(void)x;
	perm_of(v->op, perm);
	for (int k = 0; k < v->type.rank; k++)
		in[perm[k]] = at[k];
	return v->op->in[0].value;
}

static Value *move_slice(MaskProof *x, const Value *v, const Linear *at, Linear *in)
{
	const int64_t *start = ints_of(v->op, "starts", v->type.rank), *step = ints_of(v->op, "steps", v->type.rank);
	(void)x;
	for (int k = 0; k < v->type.rank; k++) {
		Linear first = number((double)start[k]);
		in[k] = plus(&first, (double)step[k], &at[k]);
	}
	return v->op->in[0].value;
}

static bool within(const MaskProof *x, const Linear *l, double lo, double hi)
{
	double least, most;
	range_of(x, l, &least, &most);
	return least >= lo && most <= hi;
}

static Value *move_split(MaskProof *x, const Value *v, const Linear *at, Linear *in)
{
	const int64_t *size = ints_of(v->op, "sizes", v->op->n_out);
	int axis = axis_of(v->op);
	Value *from = move_same(x, v, at, in);
	for (int i = 0; i < v->index; i++)
		in[axis].c[ONE] += (double)size[i];
	return from;
}

static Value *move_concat(MaskProof *x, const Value *v, const Linear *at, Linear *in)
{
	int axis = axis_of(v->op);
	move_same(x, v, at, in);
	for (int i = 0; i < v->op->n_in; i++) {
		double n = (double)v->op->in[i].value->type.dim[axis];
		if (within(x, &in[axis], 0, n - 1))
			return v->op->in[i].value;
		in[axis].c[ONE] -= n;
	}
	return NULL;
}

/* lin = n * outer + inner with 0 <= inner < n at every position: lin becomes outer. */
static bool divide(const MaskProof *x, Linear *lin, double n, Linear *inner)
{
	for (int i = 0; i < N_COORDINATES; i++) {
		double outer = floor(lin->c[i] / n);
		inner->c[i] = lin->c[i] - n * outer;
		lin->c[i] = outer;
	}
	return within(x, inner, 0, n - 1);
}

/* The indices for a reshape that only adds or drops dims of 1. */
static bool reshape_of_ones(const Type *from, const Type *to, const Linear *at, Linear *in)
{
	int j = 0;
	for (int k = 0; k < from->rank; k++) {
		in[k] = number(0);
		if (from->dim[k] == 1)
			continue;
		while (j < to->rank && to->dim[j] == 1)
			j++;
		if (j == to->rank || to->dim[j] != from->dim[k])
			return false;
		in[k] = at[j++];
	}
	return true;
}

static Value *move_reshape(MaskProof *x, const Value *v, const Linear *at, Linear *in)
{
	Value *from = v->op->in[0].value;
	int64_t stride[IR_MAX_RANK];
	Linear flat = number(0);
	if (reshape_of_ones(&from->type, &v->type, at, in))
		return from;
	type_strides(&v->type, stride);
	for (int k = 0; k < v->type.rank; k++)
		flat = plus(&flat, (double)stride[k], &at[k]);
	for (int k = from->type.rank - 1; k >= 0; k--)
		if (!divide(x, &flat, (double)from->type.dim[k], &in[k]))
			return NULL;
	return from;
}

/* An index in [0, n) that a tensor of ids holds; negative ones count from the end. */
static bool index_at(MaskProof *x, Value *ids, const Linear *at, double n, Linear *index)
{
	Term t = mask_term(x, ids, at);
	if (t.n != 1)
		return false;
	*index = t.piece[0].value;
	if (within(x, index, -n, -1))
		index->c[ONE] += n;
	return within(x, index, 0, n - 1);
}

static Value *move_gather(MaskProof *x, const Value *v, const Linear *at, Linear *in)
{
	Value *from = v->op->in[0].value, *ids = v->op->in[1].value;
	int axis = axis_of(v->op), extra = ids->type.rank;
	for (int k = 0; k < from->type.rank; k++)
		if (k != axis)
			in[k] = at[k < axis ? k : k - 1 + extra];
	return index_at(x, ids, at + axis, (double)from->type.dim[axis], &in[axis]) ? from : NULL;
}

static Value *move_gather_nd(MaskProof *x, const Value *v, const Linear *at, Linear *in)
{
	Value *from = v->op->in[0].value, *ids = v->op->in[1].value;
	int batch = (int)attr_get_int(v->op->attrs, "batch_dims", 0), outer = ids->type.rank - 1;
	int n = (int)ids->type.dim[outer];
	Linear tuple[IR_MAX_RANK];
	memcpy(tuple, at, sizeof(Linear) * (size_t)outer);
	for (int k = 0; k < from->type.rank; k++) {
		tuple[outer] = number(k - batch);
		if (k < batch)
			in[k] = at[k];
		else if (k >= batch + n)
			in[k] = at[outer + k - batch - n];
		else if (!index_at(x, ids, tuple, (double)from->type.dim[k], &in[k]))
			return NULL;
	}
	return from;
}

static MoveFn *const moves[OP_COUNT] = {[OP_BROADCAST] = move_broadcast, [OP_STOP_GRADIENT] = move_same,
	[OP_TRANSPOSE] = move_transpose, [OP_SLICE] = move_slice, [OP_SPLIT] = move_split, [OP_CONCAT] = move_concat,
	[OP_RESHAPE] = move_reshape, [OP_GATHER] = move_gather, [OP_GATHER_ND] = move_gather_nd};

/* ---- elementwise ops ---- */

/* The pieces that op makes of one piece of each operand, where all of these hold.  False where they are not known. */
static bool add_result(MaskProof *x, const Op *op, const Linear *in, const Condition *when, Term *t)
{
	Linear zero = number(0), y = zero;
	DType to = op->out[0]->type.dtype;
	bool known = true;
	for (int i = 0; i < op->n_in; i++)
		known = known && is_number(&in[i]);
	if (op->kind == OP_WHERE)
		return add_piece(x, t, in[in[0].c[ONE] != 0 ? 1 : 2], when);
	if (known) {
		double number_in[3] = {in[0].c[ONE], op->n_in > 1 ? in[1].c[ONE] : 0, op->n_in > 2 ? in[2].c[ONE] : 0};
		return eval_element(op, number_in, &y.c[ONE]) && add_piece(x, t, y, when);
	}
	switch (op->kind) {
	case OP_GE: case OP_GT: case OP_LE: case OP_LT: case OP_EQ:
		return add_bool(x, t, compared(x, op->kind, &in[0], &in[1]), when);
	case OP_CAST:
		if (to == DT_BOOL) {
			const Condition *none = is_zero(x, &in[0]);
			return none && add_bool(x, t, condition_not(&x->space, none), when);
		}
		y = in[0];
		break;
	case OP_NEG: y = plus(&zero, -1, &in[0]); break;
	case OP_ADD: y = plus(&in[0], 1, &in[1]); break;
	case OP_SUB: y = plus(&in[0], -1, &in[1]); break;
	case OP_MUL: {
		int factor = is_number(&in[0]) ? 0 : 1;
		if (!is_number(&in[factor]))
			return false;
		y = plus(&zero, in[factor].c[ONE], &in[1 - factor]);
		break;
	}
	case OP_ABS: case OP_MAX: case OP_MIN: {
		Linear other = op->kind == OP_ABS ? plus(&zero, -1, &in[0]) : in[1];
		const Condition *first = compared(x, op->kind == OP_MIN ? OP_LE : OP_GE, &in[0], &other);
		return first && fits(x, &other, to) && add_piece(x, t, in[0], condition_and(&x->space, when, first))
			&& add_piece(x, t, other, condition_and(&x->space, when, condition_not(&x->space, first)));
	}
	default: return false;
	}
	return fits(x, &y, to) && add_piece(x, t, y, when);
}

static bool all_combinations(MaskProof *x, const Op *op, const Term *in, Term *t)
{
	int n[3] = {1, 1, 1};
	for (int i = 0; i < op->n_in; i++)
		n[i] = in[i].n;
	for (int c = 0; c < n[0] * n[1] * n[2]; c++) {
		int pick[3] = {c % n[0], c / n[0] % n[1], c / n[0] / n[1]};
		Linear value[3];
		const Condition *when = always(x);
		for (int i = 0; i < op->n_in; i++) {
			value[i] = in[i].piece[pick[i]].value;
			when = condition_and(&x->space, when, in[i].piece[pick[i]].when);
		}
		if (!condition_is_none(when) && !add_result(x, op, value, when, t))
			return false;
	}
	return true;
}

/* ---- documents ---- */

/* Whether a and b are the same function of (b,q) and of (b,s). */
static bool same_but_for_query(MaskProof *x, const Leaf *a, const Leaf *b, int depth)
{
	Linear at[IR_MAX_RANK];
	int rank = a->v->type.rank;
	for (int k = 0; k < rank; k++) {
		at[k] = a->at[k];
		at[k].c[OF_S] = at[k].c[OF_Q];
		at[k].c[OF_Q] = 0;
	}
	Term now = mask_term(x, a->v, at), want = mask_term(x, b->v, b->at);
	if (now.n == 1 && want.n == 1)
		return !memcmp(&now.piece[0].value, &want.piece[0].value, sizeof(Linear));
	if (now.n || want.n)
		return false;
	if (same_leaf(&now.leaf, &want.leaf))
		return true;
	const Op *f = a->v->op, *g = b->v->op;
	bool alike = depth < SAME_DEPTH && f->kind == g->kind && op_info[f->kind].flags & EW && !f->body_first
		&& attr_equal(f->attrs, g->attrs);
	for (int i = 0; alike && i < f->n_in; i++) {
		Leaf fi = {.v = f->in[i].value}, gi = {.v = g->in[i].value};
		mask_operand(f, i, a->at, fi.at);
		mask_operand(g, i, b->at, gi.at);
		alike = type_equal(&fi.v->type, &gi.v->type) || fi.v->type.dtype == gi.v->type.dtype;
		alike = alike && same_but_for_query(x, &fi, &gi, depth + 1);
	}
	return alike;
}

/* eq(ids of q, ids of s), in either order, for as many queries as keys: *ids are those of q. */
static bool compares_documents(MaskProof *x, const Op *op, const Term *in, Leaf *ids)
{
	if (op->kind != OP_EQ || in[0].n || in[1].n || x->extent[OF_Q] != x->extent[OF_S]
			|| dtype_is_float(op->in[0].value->type.dtype))
		return false;
	for (int i = 0; i < 2; i++) {
		const Leaf *q = &in[i].leaf, *s = &in[1 - i].leaf;
		if (mask_depends(q, OF_Q) && !mask_depends(q, OF_S) && !mask_depends(q, OF_H) && !mask_depends(s, OF_Q)
				&& !mask_depends(s, OF_H) && mask_is_tensor(q) && same_but_for_query(x, q, s, 0)) {
			*ids = *q;
			return true;
		}
	}
	return false;
}

/* The op of this kind among the readers of v; NULL: there is none. */
static Op *used_by(const Value *v, OpKind kind)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (u->op->kind == kind)
			return u->op;
	return NULL;
}

static bool is_one(const Value *v)
{
	Linear l;
	return numbers_of(v, &l) && l.c[ONE] == 1;
}

/* Whether v is a slice from the start that leaves out the last element of the last axis. */
static bool is_without_last(const Value *v)
{
	int rank = v->type.rank;
	if (v->op->kind != OP_SLICE)
		return false;
	const int64_t *start = ints_of(v->op, "starts", rank), *step = ints_of(v->op, "steps", rank);
	bool ok = true;
	for (int k = 0; k < rank; k++)
		ok = ok && start[k] == 0 && step[k] == 1
			&& v->type.dim[k] + (k == rank - 1) == op_in(v->op, 0)->type.dim[k];
	return ok;
}

/* Whether v is p one place later along the last axis: something in front, and p without its last element. */
static bool is_before(const Value *v, const Value *p)
{
	bool cut = is_without_last(v);
	const Op *cat = cut ? op_in(v->op, 0)->op : v->op;
	if (cat->kind != OP_CONCAT || cat->n_in != 2 || axis_of(cat) != p->type.rank - 1
			|| op_in(cat, 0)->type.dim[p->type.rank - 1] != 1)
		return false;
	return cut ? op_in(cat, 1) == p : is_without_last(op_in(cat, 1)) && op_in(op_in(cat, 1)->op, 0) == p;
}

/* The numbers of documents that a model makes of positions, or NULL: where the position is not one more than the one
 * before, a document begins.  In the text: cumsum(not(p - before == 1)). */
static Value *documents_of(const Value *p)
{
	for (const Use *u = p->uses; u; u = u->next) {
		if (u->op->kind != OP_SUB || op_in(u->op, 0) != p || !is_before(op_in(u->op, 1), p))
			continue;
		const Op *same = used_by(u->op->out[0], OP_EQ), *begins = same ? used_by(same->out[0], OP_NOT) : NULL;
		const Op *number = begins ? used_by(begins->out[0], OP_CAST) : NULL;
		Op *sum = number ? used_by(number->out[0], OP_CUMSUM) : NULL;
		if (sum && is_one(op_in(same, op_in(same, 0) == u->op->out[0])) && axis_of(sum) == p->type.rank - 1
				&& !attr_get_int(sum->attrs, "exclusive", 0) && !attr_get_int(sum->attrs, "reverse", 0)
				&& !dtype_is_float(sum->out[0]->type.dtype))
			return sum->out[0];
	}
	return NULL;
}

/* Where q and s are in one of these documents, as an atom; NULL: the mask does not ask that. */
static const Condition *same_document(MaskProof *x, const Value *ids, const Value *like, const Linear *at)
{
	for (const Use *u = ids->uses; u; u = u->next) {
		Op *eq = used_by(u->op->kind == OP_RESHAPE ? u->op->out[0] : ids, OP_EQ);
		if (!eq || !type_same_shape(&eq->out[0]->type, &like->type))
			continue;
		Term t = mask_term(x, eq->out[0], at);
		const Condition *holds = mask_holds(x, &t);
		for (int i = 0; i < x->n_atoms; i++)
			if (holds && x->atom[i].ids.v == ids && condition_equal(holds, condition_atom(&x->space, i)))
				return holds;
	}
	return NULL;
}

/* p of q is compared with p of s, and documents begin where p does not go up by one: in one document p of q less p of s
 * is q - s, so there the comparison is one of q and s. */
static bool compares_positions(MaskProof *x, Value *v, const Linear *at, const Term *in, Term *out)
{
	const Op *op = v->op;
	bool asks = op->kind == OP_LE || op->kind == OP_LT || op->kind == OP_GE || op->kind == OP_GT;
	if (!asks || in[0].n || in[1].n || x->extent[OF_Q] != x->extent[OF_S]
			|| dtype_is_float(op->in[0].value->type.dtype))
		return false;
	int of_q = mask_depends(&in[0].leaf, OF_Q) ? 0 : 1;
	const Leaf *q = &in[of_q].leaf, *s = &in[1 - of_q].leaf;
	Value *ids = q->v == s->v && !mask_depends(q, OF_S) && !mask_depends(s, OF_Q) && mask_is_tensor(q)
		&& same_but_for_query(x, q, s, 0) ? documents_of(q->v) : NULL;
	const Condition *same = ids ? same_document(x, ids, v, at) : NULL;
	if (!same)
		return false;
	Term unknown = term_leaf(x, v, at);
	bool strict = op->kind == OP_LT || op->kind == OP_GT;
	bool q_is_later = (op->kind == OP_LE || op->kind == OP_LT) == (of_q == 1);
	const Condition *band = q_is_later ? condition_run(&x->space, strict, x->space.all.hi)
		: condition_run(&x->space, x->space.all.lo, -(int64_t)strict);
	const Condition *else_as = condition_and(&x->space, condition_not(&x->space, same), mask_holds(x, &unknown));
	return add_bool(x, out, condition_or(&x->space, condition_and(&x->space, same, band), else_as), always(x));
}

/* ---- the walk ---- */

static Term term_of_elementwise(MaskProof *x, Value *v, const Linear *at)
{
	const Op *op = v->op;
	Term in[3], t = {0};
	Leaf leaf = {.v = v}, ids;
	bool pieces = op->n_in <= COUNT_OF(in);
	for (int i = 0; i < op->n_in && i < COUNT_OF(in); i++) {
		Linear of[IR_MAX_RANK];
		mask_operand(op, i, at, of);
		in[i] = mask_term(x, op->in[i].value, of);
		pieces = pieces && in[i].n;
	}
	if (pieces && all_combinations(x, op, in, &t))
		return t;
	if (compares_positions(x, v, at, in, &t))
		return t;
	memcpy(leaf.at, at, sizeof(Linear) * (size_t)v->type.rank);
	if (mask_is_tensor(&leaf) && compares_documents(x, op, in, &ids))
		return term_atom(x, &leaf, &ids);
	return term_leaf(x, v, at);
}

static Term walk(MaskProof *x, Value *v, const Linear *at)
{
	Linear in[IR_MAX_RANK];
	Value *from = moves[v->op->kind] ? moves[v->op->kind](x, v, at, in) : NULL;
	if (from) {
		Term t = mask_term(x, from, in), here = {.leaf = {.v = v}};
		memcpy(here.leaf.at, at, sizeof(Linear) * (size_t)v->type.rank);
		bool stops = v->op->kind == OP_STOP_GRADIENT; /* a bias keeps it */
		return t.n || (!stops && (mask_is_tensor(&t.leaf) || !mask_is_tensor(&here.leaf))) ? t : term_leaf(x, v, at);
	}
	if (op_info[v->op->kind].flags & EW && !v->op->body_first)
		return term_of_elementwise(x, v, at);
	return term_of_source(x, v, at);
}

/* Whether v broadcasts to the scores as it is. */
static bool is_whole(const MaskProof *x, Value *v, const Linear *at)
{
	int rank = v->type.rank;
	if (rank > 4 || memcmp(mask_leaf(x, v).at, at, sizeof(Linear) * (size_t)rank) != 0)
		return false;
	for (int k = 0; k < rank; k++)
		if (v->type.dim[k] != 1 && (double)v->type.dim[k] != x->extent[OF_B + 4 - rank + k])
			return false;
	return true;
}

typedef struct Seen { struct Seen *next; Linear at[IR_MAX_RANK]; Term term; } Seen;

Term mask_term(MaskProof *x, Value *v, const Linear *at)
{
	size_t bytes = sizeof(Linear) * (size_t)v->type.rank;
	Term unknown = {.leaf = {.v = v}};
	memcpy(unknown.leaf.at, at, bytes);
	for (Seen *s = ptrmap_get(x->seen, v); s; s = s->next)
		if (!memcmp(s->at, at, bytes))
			return s->term;
	if (x->why)
		return unknown;
	if (x->visits++ > VISITS_MAX || x->depth == DEPTH_MAX)
		return term_leaf(x, v, at);
	x->depth++;
	Seen *s = NEW(x->space.a, Seen);
	s->term = walk(x, v, at);
	x->depth--;
	memcpy(s->at, at, bytes);
	s->next = ptrmap_get(x->seen, v);
	ptrmap_put(x->seen, v, s);
	if (x->space.overflow)
		x->why = "its diagonals are in too many pieces";
	if (v->type.dtype == DT_BOOL && s->term.n && is_whole(x, v, at))
		vec_push(x->space.a, &x->bools, v);
	return s->term;
}
