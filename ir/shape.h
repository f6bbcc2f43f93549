/* ir/shape.h: what the shape rules share.  Private to ir/shape*.c.
 *
 * A rule writes the types of an op's results to out or, if operands do not fit, a sentence with both values to err. */
#ifndef SHARDC_SHAPE_H
#define SHARDC_SHAPE_H

#include "ir/ir.h"

#define UNUSED __attribute__((unused))
#define RULE(name) \
	bool shape_##name(UNUSED Module *m, UNUSED const Op *op, UNUSED const Type *given, UNUSED Type *out, \
		UNUSED Buf *err)

#define OP(id, text, imin, imax, n_out, flags, first, last, attrs, shape, ...) ShapeFn shape_##shape;
#include "ir/ops.def"

/* Writes the sentence and returns false. */
bool shape_wrong(Buf *err, const char *fmt, ...) PRINTF_LIKE(2, 3);

static inline const Type *shape_in(const Op *op, int i)
{
	const Value *v = op_in(op, i);
	return v ? &v->type : NULL;
}

static inline bool dtype_is_number(DType t) { return t != DT_BOOL && !dtype_is_scaled(t); }
static inline bool dtype_is_integer(DType t) { return dtype_is_number(t) && !dtype_is_float(t); }
/* Statistics, sums and log-sum-exps of 16-bit tensors are computed in f32. */
static inline DType shape_stat_dtype(DType t) { return t == DT_F64 ? DT_F64 : DT_F32; }

bool shape_want_float(Buf *err, const Op *op, int operand);
bool shape_want_number(Buf *err, const Op *op, int operand);
bool shape_want_index(Buf *err, const Op *op, int operand); /* checks that it is i32 or i64 */
bool shape_want_dtype(Buf *err, const Op *op, int operand, DType dtype);
/* Checks an operand's type; an absent operand passes. */
bool shape_want(Module *m, Buf *err, const Op *op, int operand, const Type *type);
bool shape_want_shape(Module *m, Buf *err, const Op *op, int operand, const Type *type);
bool shape_want_rank(Buf *err, const Op *op, int operand, int rank);
bool shape_axis(Buf *err, const Op *op, const Type *x, int *axis); /* reads the attribute axis and checks that it is in
                                                                      0 .. rank-1 */
const Attr *shape_ints(Buf *err, const Op *op, const char *name, int n); /* an attribute that must have n numbers; NULL
                                                                            after an error */
/* Makes a type of the attribute shape and the dtype. */
bool shape_from_attr(Buf *err, const Op *op, DType dtype, Type *out);
/* Applies the attribute `to`, which only 16-bit operands may have: the result is f32 and is never rounded to their
 * dtype. */
bool shape_to(Buf *err, const Op *op, Type *out);
/* A type of the dims of t from index `from` on. */
Type shape_tail(const Type *t, int from, DType dtype);

#endif
