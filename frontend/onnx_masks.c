/* frontend/onnx_masks.c: recognises the dropouts that exporters write as random masks.
 *
 * So come Dropout1d to 3d, AlphaDropout, drop path and stochastic depth, and dropouts in place: a uniform number is
 * compared with a constant, and what is computed of that mask and of constants alone multiplies a tensor.  Each such
 * value has one of two numbers, (lo, hi), by the mask.  A draw all of whose uses are like this is a dropout: x (0, hi)
 * with hi = 1 / P(keep), or with hi = 1; or x (0, hi) + (lo', hi'), which is AlphaDropout.  It becomes dropout where
 * the mask has the shape of x, else a product with a bernoulli draw; evaluations and --dropout=off leave it out.  All
 * other draws are noise of the model, and act in evaluations as well. */
#include "frontend/onnx_import.h"

#include <math.h>
#include <string.h>

/* What is known of a value that depends on one draw and on constants. */
typedef struct Mask {
	struct Draw *draw;
	bool uniform;         /* the numbers of the draw; else it is lo or hi */
	bool shifted;         /* uniform numbers plus the probability to keep: only floor makes a mask of them */
	double lo, hi;
} Mask;

/* A product of a mask with something else, and the sum with another mask of the draw that may follow it. */
typedef struct Exit {
	Op *op, *sum;
	Value *x;             /* what is multiplied */
	Value *mask, *added;
	double lo, hi;
} Exit;

typedef struct Draw {
	Op *op;
	bool noise;           /* it has a use that no dropout has */
	double keep;          /* the probability of hi; 0: no comparison was met yet */
	VEC(Exit) exits;
} Draw;

typedef struct Masks {
	Import *im;
	PtrMap *known;        /* Value -> Mask */
	PtrMap *products;     /* the result of an Exit -> its number, plus 1, as a pointer */
	VEC(Draw *) draws;
	int plain, n_dropouts; /* dropouts of another form than the known layers'; all dropouts */
	const char *first_plain;
} Masks;

static Mask *mask_of(const Masks *s, const Value *v)
{
	return v ? ptrmap_get(s->known, v) : NULL;
}

static void know(Masks *s, const Value *v, Mask m)
{
	Mask *copy = NEW(s->im->arena, Mask);
	*copy = m;
	ptrmap_put(s->known, v, copy);
}

static bool is_movement(const Op *op)
{
	return op->kind == OP_RESHAPE || op->kind == OP_BROADCAST || op->kind == OP_TRANSPOSE
		|| op->kind == OP_STOP_GRADIENT;
}

/* The one number that a constant consists of; NAN when it does not. */
static double number_of(const Value *v)
{
	while (v && (v->op->kind == OP_CAST || is_movement(v->op)))
		v = op_in(v->op, 0);
	const Attr *a = v && v->op->kind == OP_CONST ? attr_find(v->op->attrs, "value") : NULL;
	return !a || a->n != 1 ? NAN : a->kind == ATTR_FLOATS ? a->floats[0] : (double)a->ints[0];
}

/* ---- masks ---- */

/* floor(u + keep), as older drop paths write it. */
static Value *addend_of_floor(const Op *op)
{
	const Op *add = op->kind == OP_FLOOR ? op_in(op, 0)->op : NULL;
	return add && add->kind == OP_ADD ? op->in[0].value : NULL;
}

/* A comparison of uniform numbers with a constant: hi is 1, and its probability is kept; false: it is another op. */
static bool compare(Masks *s, const Op *op, Mask *out)
{
	int at = mask_of(s, op_in(op, 0)) ? 0 : 1;
	bool less = op->kind == OP_LT || op->kind == OP_LE, greater = op->kind == OP_GT || op->kind == OP_GE;
	const Mask *u = mask_of(s, op_in(op, at));
	double c = op->n_in == 2 ? number_of(op_in(op, !at)) : NAN;
	bool floor = addend_of_floor(op);
	if (floor) {
		*out = *mask_of(s, op_in(op, 0));
		out->uniform = out->shifted = false;
		out->lo = 0;
		out->hi = 1;
		return true;
	}
	if (!u || u->shifted || !(c > 0 && c < 1) || (!less && !greater && op->kind != OP_ADD))
		return false;
	double keep = op->kind == OP_ADD || less == (at == 0) ? c : 1 - c;
	if (u->draw->keep && u->draw->keep != keep)
		return false;
	u->draw->keep = keep;
	bool sum = op->kind == OP_ADD;
	*out = (Mask){.draw = u->draw, .uniform = sum, .shifted = sum, .lo = 0, .hi = 1};
	return true;
}

static double known_number(Masks *s, Value *v)
{
	EvalTensor *t = eval_constant(s->im->eval, v, 1);
	return !t ? NAN : dtype_is_float(v->type.dtype) ? t->f[0] : (double)t->i[0];
}

static Value *scalar(Masks *s, DType t, double v)
{
	return dtype_is_float(t) ? ir_const_float(&s->im->b, t, v) : ir_const_int(&s->im->b, t, (int64_t)v);
}

/* The op's result with masks at lo, or at hi. */
static double value_at(Masks *s, const Op *op, bool hi)
{
	Value *in[3];
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		const Mask *m = mask_of(s, v);
		in[i] = scalar(s, v->type.dtype, !m ? number_of(v) : hi ? m->hi : m->lo);
	}
	return known_number(s, ir_emit(&s->im->b, op->kind, op->n_in, in, op->attrs));
}

/* Whether the op reads masks of one draw and constants alone, and its result is a mask of the masks' shape. */
static bool derive(Masks *s, const Op *op, Mask *out)
{
	const Mask *m = NULL;
	if (op->n_out != 1 || op->n_in > 3)
		return false;
	for (int i = 0; i < op->n_in; i++) {
		const Mask *x = mask_of(s, op_in(op, i));
		if (!x && (!op_in(op, i) || isnan(number_of(op_in(op, i)))))
			return false;
		if (x && ((m && m->draw != x->draw) || (!is_movement(op)
				&& !type_same_shape(&op_in(op, i)->type, &op->out[0]->type))))
			return false;
		m = x ? x : m;
	}
	*out = *m;
	if (is_movement(op) || (m->uniform && op->kind == OP_CAST))
		return !m->uniform || op->kind != OP_CAST || dtype_is_float(op->out[0]->type.dtype);
	if (m->uniform || !(op_info[op->kind].flags & EW))
		return compare(s, op, out);
	out->lo = value_at(s, op, false);
	out->hi = value_at(s, op, true);
	return isfinite(out->lo) && isfinite(out->hi);
}

/* ---- products ---- */

/* x * mask, or where(mask, x, 0). */
static bool is_product(Masks *s, Op *op, Exit *out)
{
	int at = mask_of(s, op_in(op, 0)) ? 0 : 1;
	const Mask *m = mask_of(s, op_in(op, at));
	bool product = op->kind == OP_MUL && !mask_of(s, op_in(op, !at));
	bool choice = op->kind == OP_WHERE && at == 0 && !mask_of(s, op_in(op, 1)) && number_of(op_in(op, 2)) == 0;
	if (!m || m->uniform || !(product || choice) || !dtype_is_float(op->out[0]->type.dtype))
		return false;
	*out = (Exit){.op = op, .x = op_in(op, choice ? 1 : !at), .mask = op_in(op, at), .lo = m->lo, .hi = m->hi};
	return type_same_shape(&out->x->type, &op->out[0]->type);
}

/* The sum of such a product with another mask of its draw. */
static bool is_sum(Masks *s, Op *op)
{
	for (int i = 0; i < 2 && op->kind == OP_ADD; i++) {
		const Mask *m = mask_of(s, op_in(op, i));
		uintptr_t k = (uintptr_t)ptrmap_get(s->products, op_in(op, !i));
		Exit *e = m && k && k <= (uintptr_t)m->draw->exits.n ? &m->draw->exits.at[k - 1] : NULL;
		if (e && !m->uniform && !e->sum && e->op->out[0] == op_in(op, !i) && op_in(op, !i)->n_uses == 1) {
			e->sum = op;
			e->added = op_in(op, i);
			return true;
		}
	}
	return false;
}

static void look(Masks *s, Op *op)
{
	Mask found;
	Exit e;
	bool any = false;
	if (op->kind == OP_DRAW && !strcmp(attr_get_str(op->attrs, "kind", ""), "uniform")) {
		Draw *d = NEW(s->im->arena, Draw);
		d->op = op;
		vec_push(s->im->arena, &s->draws, d);
		know(s, op->out[0], (Mask){.draw = d, .uniform = true});
		return;
	}
	for (int i = 0; i < op->n_in; i++)
		any = any || mask_of(s, op_in(op, i));
	if (!any || is_sum(s, op))
		return;
	if (derive(s, op, &found)) {
		know(s, op->out[0], found);
	} else if (is_product(s, op, &e)) {
		Draw *d = mask_of(s, e.mask)->draw;
		vec_push(s->im->arena, &d->exits, e);
		ptrmap_put(s->products, op->out[0], (void *)(uintptr_t)d->exits.n);
	} else {
		for (int i = 0; i < op->n_in; i++)
			if (mask_of(s, op_in(op, i)))
				mask_of(s, op_in(op, i))->draw->noise = true;
	}
}

/* ---- dropouts ---- */

static bool is_near(double x, double y, DType t)
{
	double eps = t == DT_F16 ? 0x1p-10 : t == DT_BF16 ? 0x1p-7 : 0x1p-20;
	return fabs(x - y) <= 2 * eps * fabs(y);
}

/* Whether what is left of x and what is added are the numbers of AlphaDropout, which keep the mean 0 and the variance 1
 * (Klambauer et al. 2017, "Self-normalizing neural networks", section 3). */
static bool is_alpha_dropout(const Masks *s, const Draw *d, const Exit *e)
{
	const Mask *added = mask_of(s, e->added);
	double p = 1 - d->keep, alpha = 1.7580993408473766, a = 1 / sqrt(d->keep * (1 + p * alpha * alpha));
	DType t = e->x->type.dtype;
	return is_near(e->hi, a, t) && is_near(added->lo, -alpha * a * d->keep, t) && is_near(added->hi, alpha * a * p, t);
}

/* The operand that the op divides by keep, or multiplies with 1 / keep; NULL: it does something else. */
static Value *scaled_by(const Op *op, double keep)
{
	for (int i = 0; i < 2 && (op->kind == OP_DIV || op->kind == OP_MUL); i++) {
		Value *x = op_in(op, !i);
		DType t = x->type.dtype;
		double c = number_of(op_in(op, i));
		bool scales = op->kind == OP_DIV ? i == 1 && is_near(c, keep, t) : is_near(c, 1 / keep, t);
		if (scales && type_same_shape(&x->type, &op->out[0]->type))
			return x;
	}
	return NULL;
}

/* Where the mask keeps x unscaled: takes x / keep in front of the product, or behind it, into the dropout. */
static void take_scale(Exit *e, double keep)
{
	Value *x = scaled_by(e->x->op, keep);
	Op *behind = e->op->out[0]->n_uses == 1 ? e->op->out[0]->uses->op : NULL;
	if (x)
		e->x = x;
	else if (behind && scaled_by(behind, keep) == e->op->out[0])
		e->op = behind;
	else
		return;
	e->hi = 1 / keep;
}

/* Whether the draw is a dropout; e->hi becomes exactly what dropout multiplies with. */
static bool is_dropout(Draw *d)
{
	bool all = !d->noise && d->exits.n && d->keep > 0;
	for (int i = 0; i < d->exits.n && all; i++) {
		Exit *e = &d->exits.at[i];
		DType t = e->x->type.dtype;
		all = e->lo == 0;
		if (e->sum || !all)
			continue;
		if (is_near(e->hi, 1, t) && !is_near(1 / d->keep, 1, t))
			take_scale(e, d->keep);
		else if (is_near(e->hi, 1 / d->keep, t))
			e->hi = 1 / d->keep;
		all = e->hi == 1 || e->hi == 1 / d->keep;
	}
	return all;
}

/* Numbers of dtype t where v has those of its draw: lo, hi, and off, which evaluations take for them. */
static Value *two_numbers(Masks *s, Builder *b, DType t, Value *v, const Draw *d, const double number[3])
{
	VEC(Op *) moves = {0};
	Module *m = s->im->m;
	for (Value *x = v; x->op != d->op; ) {
		if (is_movement(x->op) && x->op->kind != OP_STOP_GRADIENT)
			vec_push(s->im->arena, &moves, x->op);
		int i = 0;
		while (!mask_of(s, op_in(x->op, i)))
			i++;
		x = op_in(x->op, i);
	}
	Attr *a = attr_int(m, attr_str(m, NULL, "kind", "bernoulli"), "id", attr_get_int(d->op->attrs, "id", 0));
	a = attr_float(m, a, "p", dtype_round(DT_F32, 1 - d->keep));
	a = attr_int(m, a, "axis", attr_get_int(d->op->attrs, "axis", 0));
	a = attr_float(m, attr_float(m, attr_float(m, a, "lo", number[0]), "hi", number[1]), "off", number[2]);
	Type type = d->op->out[0]->type;
	type.dtype = t;
	Value *y = ir_emit_typed(b, OP_DRAW, 0, NULL, a, type);
	for (int i = moves.n - 1; i >= 0; i--)
		y = ir_emit(b, moves.at[i]->kind, 1, &y, moves.at[i]->attrs);
	return y;
}

/* Whether the mask has each element of the draw at the place that it has there, and x has their number. */
static bool is_full(const Masks *s, const Draw *d, const Exit *e)
{
	for (const Value *v = e->mask; v->op != d->op; ) {
		if (v->op->kind == OP_BROADCAST || v->op->kind == OP_TRANSPOSE)
			return false;
		int i = 0;
		while (!mask_of(s, op_in(v->op, i)))
			i++;
		v = op_in(v->op, i);
	}
	return type_same_shape(&e->x->type, &e->mask->type);
}

static void replace(Masks *s, const Draw *d, const Exit *e)
{
	Module *m = s->im->m;
	Op *last = e->sum ? e->sum : e->op;
	Builder b = {.m = m, .section = SEC_FORWARD, .before = last, .loc = last->loc};
	bool off = s->im->o->graph.dropout == DROPOUT_OFF, scaled = e->hi == 1 / d->keep && !e->sum;
	Value *y = e->x;
	const Type *t = &d->op->out[0]->type;
	if (!off && scaled && is_full(s, d, e)) {
		Attr *a = attr_int(m, attr_float(m, NULL, "p", dtype_round(DT_F32, 1 - d->keep)), "id",
			attr_get_int(d->op->attrs, "id", 0));
		a = attr_int(m, a, "axis", attr_get_int(d->op->attrs, "axis", 0));
		y = ir_reshape(&b, y, t->rank, t->dim);
		y = ir_reshape(&b, ir_emit(&b, OP_DROPOUT, 1, &y, a), e->x->type.rank, e->x->type.dim);
	} else if (!off) {
		y = ir_emit2(&b, OP_MUL, y, two_numbers(s, &b, y->type.dtype, e->mask, d, (double[]){0, e->hi, 1}));
	}
	if (!off && e->sum) {
		const Mask *added = mask_of(s, e->added);
		const double number[] = {added->lo, added->hi, 0};
		y = ir_emit2(&b, OP_ADD, y, two_numbers(s, &b, y->type.dtype, e->added, d, number));
	}
	ir_replace_uses(last->out[0], y);
	s->n_dropouts++;
	if ((e->sum ? !is_alpha_dropout(s, d, e) : e->hi == 1) && !s->plain++)
		s->first_plain = last->loc->node;
}

/* `shardc run` does what the model says, and the model may say that it is in training. */
static void say_infer(const Import *im)
{
	int n = 0;
	const char *first = "";
	IR_FOR_OPS(im->m, SEC_FORWARD, op) {
		bool dropout = op->kind == OP_DROPOUT || op->kind == OP_DROPOUT_MASK
			|| (op->kind == OP_DRAW && attr_find(op->attrs, "off"));
		first = dropout && !n++ ? op->loc->node : first;
	}
	if (n && im->o->graph.dropout == DROPOUT_AUTO)
		diag_note(im->d, im->onnx->path, "dropout acts in node \"%s\"%s, as the model was exported for training, so "
			"results are random: --dropout=off leaves it out", str_escape(im->arena, ESCAPE_IR, first),
			n > 1 ? " and others" : "");
}

void masks_resolve(Import *im)
{
	Masks s = {.im = im, .known = ptrmap_new(im->arena), .products = ptrmap_new(im->arena)};
	Op *end = im->m->last[SEC_FORWARD];
	im->b.loc = loc_new(im->m, "", "", "", "");
	for (Op *op = im->m->first[SEC_FORWARD], *last = end; op; op = op == last ? NULL : op->next)
		look(&s, op);
	for (int i = 0; i < s.draws.n; i++)
		for (int k = 0; is_dropout(s.draws.at[i]) && k < s.draws.at[i]->exits.n; k++)
			replace(&s, s.draws.at[i], &s.draws.at[i]->exits.at[k]);
	im->n_dropout_nodes += s.n_dropouts;
	if (im->o->infer)
		say_infer(im);
	if (s.plain && !im->o->infer && im->o->say_roles && im->o->graph.dropout == DROPOUT_AUTO)
		diag_note(im->d, im->onnx->path, "%d product%s with a random mask, first node \"%s\", %s taken for dropout, "
			"though of no known layer (it does not scale what it keeps, or puts other numbers than AlphaDropout's "
			"for the rest): evaluations leave %s out", s.plain, s.plain > 1 ? "s" : "",
			str_escape(im->arena, ESCAPE_IR, s.first_plain), s.plain > 1 ? "are" : "is", s.plain > 1 ? "them" : "it");
}
