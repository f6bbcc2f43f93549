/* passes/grad/rules.c: the table of gradient rules, and the rules of elementwise ops.
 *
 * A rule receives dy and adds to the gradients of its operands; its formula is in the comment above it.  A rule
 * reads y rather than x if either will do, since y is more often kept anyway.  Where a derivative does not exist,
 * the doc column of ops.def says which value is taken.  grad_give sums gradients over broadcast axes.
 * Other rules: rules_move.c, rules_nn.c. */
#include "passes/grad/rules.h"

#include <math.h>

GradFn *const grad_rule[OP_COUNT] = {
#define OP(id, text, imin, imax, out, flags, first, last, attrs, shape, grad, ...) [OP_##id] = grad_##grad,
#include "ir/ops.def"
};

/* The derivative is zero, or the operands are never wanted, so autodiff does not come here. */
void grad_stop(GradCtx *c, Op *op, Value *const *dout)
{
	(void)c, (void)dout;
	ice("gradient of %s asked for", op_info[op->kind].text);
}

/* Ops that only backward has.  No level allows them in a forward that is differentiated. */
void grad_nograd(GradCtx *c, Op *op, Value *const *dout)
{
	grad_stop(c, op, dout);
}

/* ---- one operand ---- */

#define UNARY(name, dx) \
	void grad_##name(GradCtx *c, Op *op, Value *const *dout) \
	{ \
		Builder *b = grad_builder(c); \
		Value *x = op_in(op, 0), *y = op->out[0], *dy = dout[0]; \
		(void)y; \
		grad_give(c, x, dx); \
	}

/* y = -x;  dx = -dy */
UNARY(neg, e_neg(b, dy))
/* y = |x|;  dx = dy sign x */
UNARY(abs, e_mul(b, dy, e_sign(b, x)))
/* y = e^x;  dx = dy y */
UNARY(exp, e_mul(b, dy, y))
/* y = ln x;  dx = dy / x */
UNARY(log, e_div(b, dy, x))
/* y = ln(1 + x);  dx = dy / (1 + x) */
UNARY(log1p, e_div(b, dy, e_shift(b, x, 1)))
/* y = sqrt x;  dx = dy / (2 y) */
UNARY(sqrt, e_div(b, dy, e_scale(b, y, 2)))
/* y = x^-1/2;  dx = -1/2 dy y^3 */
UNARY(rsqrt, e_scale(b, e_mul(b, e_mul(b, e_mul(b, dy, y), y), y), -0.5))
/* y = 1 / x;  dx = -dy y^2 */
UNARY(recip, e_neg(b, e_mul(b, e_mul(b, dy, y), y)))
/* y = sin x;  dx = dy cos x */
UNARY(sin, e_mul(b, dy, e_cos(b, x)))
/* y = cos x;  dx = -dy sin x */
UNARY(cos, e_neg(b, e_mul(b, dy, e_sin(b, x))))
/* y = tan x;  dx = dy (1 + y^2) */
UNARY(tan, e_mul(b, dy, e_shift(b, e_mul(b, y, y), 1)))
/* y = asin x;  dx = dy / sqrt(1 - x^2) */
UNARY(asin, e_mul(b, dy, e_rsqrt(b, e_from(b, 1, e_mul(b, x, x)))))
/* y = acos x;  dx = -dy / sqrt(1 - x^2) */
UNARY(acos, e_neg(b, e_mul(b, dy, e_rsqrt(b, e_from(b, 1, e_mul(b, x, x))))))
/* y = atan x;  dx = dy / (1 + x^2) */
UNARY(atan, e_div(b, dy, e_shift(b, e_mul(b, x, x), 1)))
/* y = sinh x;  dx = dy cosh x */
UNARY(sinh, e_mul(b, dy, e_cosh(b, x)))
/* y = cosh x;  dx = dy sinh x */
UNARY(cosh, e_mul(b, dy, e_sinh(b, x)))
/* y = asinh x;  dx = dy / sqrt(x^2 + 1) */
UNARY(asinh, e_mul(b, dy, e_rsqrt(b, e_shift(b, e_mul(b, x, x), 1))))
/* y = acosh x;  dx = dy / sqrt(x^2 - 1) */
UNARY(acosh, e_mul(b, dy, e_rsqrt(b, e_shift(b, e_mul(b, x, x), -1))))
/* y = atanh x;  dx = dy / (1 - x^2) */
UNARY(atanh, e_div(b, dy, e_from(b, 1, e_mul(b, x, x))))
/* y = tanh x;  dx = dy (1 - y^2) */
UNARY(tanh, e_mul(b, dy, e_from(b, 1, e_mul(b, y, y))))
/* y = 1 / (1 + e^-x);  dx = dy y (1 - y) */
UNARY(sigmoid, e_mul(b, dy, e_mul(b, y, e_from(b, 1, y))))
/* y = ln(1 + e^x);  dx = dy sigmoid x */
UNARY(softplus, e_mul(b, dy, e_sigmoid(b, x)))
/* y = erf x;  dx = dy 2/sqrt(pi) e^(-x^2) */
UNARY(erf, e_mul(b, dy, e_scale(b, e_exp(b, e_neg(b, e_mul(b, x, x))), M_2_SQRTPI)))
/* y = max(x, 0);  dx = y > 0 ? dy : 0 */
UNARY(relu, e_select(b, e_gt(b, y, ir_const_float(b, y->type.dtype, 0)), dy))
/* y = gelu x;  dx = dy gelu'(x), one op */
UNARY(gelu, ir_emit(b, OP_GELU_GRAD, 2, (Value *[]){x, dy}, op->attrs))
/* y of another dtype;  dx = dy in x's */
UNARY(cast, ir_cast(b, dy, x->type.dtype))

/* y = x s, s = sigmoid x;  dx = dy s (1 + x (1 - s)); written in x alone, so that y need not be kept */
void grad_silu(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0);
	Value *s = e_sigmoid(b, x);
	Value *slope = e_mul(b, s, e_shift(b, e_mul(b, x, e_from(b, 1, s)), 1));
	grad_give(c, x, e_mul(b, dout[0], slope));
}

/* y = min(max(x, lo), hi);  dx = lo < y < hi ? dy : 0, which is lo < x < hi.  At a bound on one side alone dx = dy:
 * PyTorch's clamp passes its bounds, and its relu6 and hardtanh, which have two, do not. */
void grad_clip(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *y = op->out[0], *inside = NULL;
	double lo = attr_get_float(op->attrs, "lo", -INFINITY), hi = attr_get_float(op->attrs, "hi", INFINITY);
	if (hi == INFINITY && lo != -INFINITY)
		inside = ir_emit2(b, OP_GE, op_in(op, 0), ir_const_float(b, y->type.dtype, lo));
	else if (lo == -INFINITY && hi != INFINITY)
		inside = ir_emit2(b, OP_LE, op_in(op, 0), ir_const_float(b, y->type.dtype, hi));
	else if (lo != -INFINITY) {
		inside = e_gt(b, y, ir_const_float(b, y->type.dtype, lo));
		Value *below = e_lt(b, y, ir_const_float(b, y->type.dtype, hi));
		inside = e_and(b, inside, below);
	}
	grad_give(c, op_in(op, 0), inside ? e_select(b, inside, dout[0]) : dout[0]);
}

/* ---- two and three operands ---- */

/* z = x + y;  dx = dz, dy = dz */
void grad_add(GradCtx *c, Op *op, Value *const *dout)
{
	grad_give(c, op_in(op, 0), dout[0]);
	grad_give(c, op_in(op, 1), dout[0]);
}

/* z = x - y;  dx = dz, dy = -dz */
void grad_sub(GradCtx *c, Op *op, Value *const *dout)
{
	grad_give(c, op_in(op, 0), dout[0]);
	if (grad_wanted(c, op_in(op, 1)))
		grad_give(c, op_in(op, 1), e_neg(grad_builder(c), dout[0]));
}

/* z = x y;  dx = dz y, dy = dz x */
void grad_mul(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	for (int i = 0; i < 2; i++)
		if (grad_wanted(c, op_in(op, i)))
			grad_give(c, op_in(op, i), e_mul(b, dout[0], op_in(op, 1 - i)));
}

/* z = x / y;  dx = dz / y, dy = -dz z / y */
void grad_div(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0), *y = op_in(op, 1);
	if (!grad_wanted(c, x) && !grad_wanted(c, y))
		return;
	Value *dx = e_div(b, dout[0], y);
	grad_give(c, x, dx);
	if (grad_wanted(c, y))
		grad_give(c, y, e_neg(b, e_mul(b, dx, op->out[0])));
}

/* Whether v is a constant of one value, which goes to *out. */
static bool splat(const Value *v, double *out)
{
	const Attr *a = v->op && v->op->kind == OP_CONST ? attr_find(v->op->attrs, "value") : NULL;
	if (!a || a->n != 1)
		return false;
	*out = a->kind == ATTR_FLOATS ? a->floats[0] : (double)a->ints[0];
	return true;
}

/* z = x^y;  dx = dz y x^(y-1), 0 where y = 0 */
static Value *pow_dx(Builder *b, Value *x, Value *y, Value *dz)
{
	double k;
	if (splat(y, &k)) {
		if (k == 0)
			return NULL;
		Value *power = k == 2 ? x : k == 1 ? NULL
			: e_pow(b, x, ir_const_float(b, x->type.dtype, k - 1));
		Value *d = e_scale(b, dz, k);
		return power ? e_mul(b, d, power) : d;
	}
	y = ir_cast(b, y, x->type.dtype);
	Value *power = e_pow(b, x, e_shift(b, y, -1));
	Value *d = e_mul(b, dz, e_mul(b, y, power));
	Value *zero = ir_const_float(b, x->type.dtype, 0);
	return ir_emit3(b, OP_WHERE, e_eq(b, y, zero), zero, d);
}

/* z = x^y;  dx: see pow_dx;  dy = dz z ln x, 0 where x = 0 */
void grad_pow(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0), *y = op_in(op, 1);
	if (grad_wanted(c, x))
		grad_give(c, x, pow_dx(b, x, y, dout[0]));
	if (grad_wanted(c, y)) {
		Value *zero = ir_const_float(b, x->type.dtype, 0);
		Value *is_zero = e_eq(b, x, zero);
		Value *log = ir_emit3(b, OP_WHERE, is_zero, zero, e_log(b, x));
		grad_give(c, y, e_mul(b, e_mul(b, dout[0], op->out[0]), log));
	}
}

/* z = x - k y with a whole number k;  dx = dz, dy = -dz k */
void grad_mod(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *x = op_in(op, 0), *y = op_in(op, 1);
	grad_give(c, x, dout[0]);
	if (grad_wanted(c, y)) {
		Value *k = e_round(b, e_div(b, e_sub(b, x, op->out[0]), y));
		grad_give(c, y, e_neg(b, e_mul(b, dout[0], k)));
	}
}

/* z = one of x and y;  the chosen one gets dz, half of it where they are equal */
static void extremum(GradCtx *c, Op *op, Value *dz, bool max)
{
	Builder *b = grad_builder(c);
	Value *half = NULL;
	for (int i = 0; i < 2; i++) {
		Value *x = op_in(op, i), *other = op_in(op, 1 - i);
		if (!grad_wanted(c, x))
			continue;
		if (!half) {
			Value *equal = e_eq(b, x, other);
			half = e_select(b, equal, e_scale(b, dz, 0.5));
		}
		grad_give(c, x, ir_emit3(b, OP_WHERE, max ? e_gt(b, x, other) : e_lt(b, x, other), dz, half));
	}
}

/* z = max(x, y);  dx = x > y ? dz : x = y ? dz/2 : 0 */
void grad_max(GradCtx *c, Op *op, Value *const *dout)
{
	extremum(c, op, dout[0], true);
}

/* z = min(x, y);  dx = x < y ? dz : x = y ? dz/2 : 0 */
void grad_min(GradCtx *c, Op *op, Value *const *dout)
{
	extremum(c, op, dout[0], false);
}

/* z = k ? x : y;  dx = k ? dz : 0, dy = k ? 0 : dz */
void grad_where(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Value *k = op_in(op, 0), *x = op_in(op, 1), *y = op_in(op, 2);
	if (grad_wanted(c, x))
		grad_give(c, x, e_select(b, k, dout[0]));
	if (grad_wanted(c, y)) {
		Value *zero = ir_const_float(b, dout[0]->type.dtype, 0);
		grad_give(c, y, ir_emit3(b, OP_WHERE, k, zero, dout[0]));
	}
}
