/* passes/grad/rules.h: what autodiff.c and the files rules_*.c share.
 *
 * At most one argument of a call of an emitter may be an emitter call itself: C does not define the order in which
 * arguments are evaluated, and the order of ops must not depend on the C compiler. */
#ifndef SHARDC_GRAD_RULES_H
#define SHARDC_GRAD_RULES_H

#include "passes/passes.h"

#define OP(id, text, imin, imax, out, flags, first, last, attrs, shape, grad, ...) GradFn grad_##grad;
#include "ir/ops.def"

extern GradFn *const grad_rule[OP_COUNT]; /* the grad column of ops.def */

/* Reports that op has no gradient in the requested direction; the differentiation then fails. */
void grad_refuse(GradCtx *c, const Op *op, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Returns the sum of the terms, all of one type, in their order except that gathered rows come last.  Slices of one
 * value that do not overlap become one concat, and rows are added in place, so that no tensors of mostly zeros are
 * summed. */
Value *grad_sum(Builder *b, Value *const *term, int n);

#define EMIT1(name, kind) \
	static inline Value *e_##name(Builder *b, Value *x) { return ir_emit1(b, OP_##kind, x); }
#define EMIT2(name, kind) \
	static inline Value *e_##name(Builder *b, Value *x, Value *y) { return ir_emit2(b, OP_##kind, x, y); }
EMIT1(neg, NEG) EMIT1(exp, EXP) EMIT1(log, LOG) EMIT1(sin, SIN) EMIT1(cos, COS) EMIT1(sinh, SINH)
EMIT1(cosh, COSH) EMIT1(rsqrt, RSQRT) EMIT1(sigmoid, SIGMOID) EMIT1(sign, SIGN) EMIT1(round, ROUND)
EMIT2(add, ADD) EMIT2(sub, SUB) EMIT2(mul, MUL) EMIT2(div, DIV) EMIT2(pow, POW)
EMIT2(eq, EQ) EMIT2(lt, LT) EMIT2(gt, GT) EMIT2(and, AND)
#undef EMIT1
#undef EMIT2

/* k * x, x + k, k - x, compare with k; k becomes a rank-0 constant of x's dtype */
static inline Value *e_scale(Builder *b, Value *x, double k)
{
	return k == 1 ? x : e_mul(b, x, ir_const_float(b, x->type.dtype, k));
}
static inline Value *e_shift(Builder *b, Value *x, double k)
{
	return e_add(b, x, ir_const_float(b, x->type.dtype, k));
}
static inline Value *e_from(Builder *b, double k, Value *x)
{
	return e_sub(b, ir_const_float(b, x->type.dtype, k), x);
}
static inline Value *e_is(Builder *b, Value *x, double k)
{
	return e_eq(b, x, ir_const_float(b, x->type.dtype, k));
}
/* cond ? x : 0 */
static inline Value *e_select(Builder *b, Value *cond, Value *x)
{
	return ir_emit3(b, OP_WHERE, cond, x, ir_const_float(b, x->type.dtype, 0));
}

static inline int op_axis(const Op *op)
{
	return (int)attr_get_int(op->attrs, "axis", 0);
}
static inline Attr *attr_shape(Module *m, Attr *list, const Type *t)
{
	return attr_ints(m, list, "shape", t->rank, t->dim);
}

#endif
