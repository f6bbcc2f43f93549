/* ir/eval_quant.c: values of ops on bits and on numbers of narrow types, written apart from those of kernels/ew.h. */
#include "ir/eval.h"

#include <math.h>
#include <string.h>

double eval_round_to(const Op *op, double x)
{
	int fraction = (int)attr_get_int(op->attrs, "fraction", 0), emin = (int)attr_get_int(op->attrs, "emin", 0);
	double max = attr_get_float(op->attrs, "max", 0);
	int exponent = 0, over = (int)attr_get_int(op->attrs, "over", 0);
	if (isnan(x))
		return x;
	frexp(x, &exponent); /* |x| is in 1/2..1 times 2^exponent */
	int unit = MAX(exponent - 1, emin) - fraction;
	double y = isinf(x) ? x : ldexp(rint(ldexp(x, -unit)), unit);
	if (fabs(y) > max)
		y = copysign(over == 0 ? max : over == 1 ? INFINITY : NAN, x);
	return y == 0 && !attr_get_int(op->attrs, "negzero", 0) ? 0 : y;
}

double eval_quantize(const Op *op, double x, double zero)
{
	double q = rint(x) + zero, lo = attr_get_float(op->attrs, "lo", 0);
	return isnan(q) ? lo : fmin(fmax(q, lo), attr_get_float(op->attrs, "hi", 0));
}

/* How fast the op's value rises with each of its operands, by its gradient, at x and zero. */
static double slope(const Op *op, double x, double zero)
{
	double q = rint(x) + zero, lo = attr_get_float(op->attrs, "lo", 0), hi = attr_get_float(op->attrs, "hi", 0);
	return op->kind != OP_QUANTIZE || (q >= lo && q <= hi);
}

bool eval_through(const EvalEnv *e, const Op *op, EvalTensor *const *in, EvalTensor *out)
{
	const EvalTensor *y = eval_value((EvalEnv *)(uintptr_t)e->through, op->out[0]), *was[2] = {NULL, NULL};
	int64_t stride[2][IR_MAX_RANK];
	for (int i = 0; i < op->n_in; i++) {
		was[i] = eval_value((EvalEnv *)(uintptr_t)e->through, op_in(op, i));
		eval_broadcast_strides(&in[i]->type, &out->type, stride[i]);
		if (!was[i])
			return false;
	}
	for (Walk w = walk_over(out->type.rank, out->type.dim); y && w.left; walk_next(&w)) {
		double before[2] = {0}, change = 0;
		for (int i = 0; i < op->n_in; i++) {
			int64_t at = walk_offset(&w, stride[i]);
			before[i] = was[i]->f[at];
			change += in[i]->f[at] - before[i];
		}
		out->f[w.k] = y->f[w.k] + slope(op, before[0], before[1]) * change;
	}
	return y;
}

static uint64_t bits_of(DType t, Scalar s)
{
	float f = (float)s.f;
	uint32_t u;
	uint64_t bits;
	switch (t) {
	case DT_F64: memcpy(&bits, &s.f, sizeof(bits)); return bits;
	case DT_F32: memcpy(&u, &f, sizeof(u)); return u;
	case DT_F16: return f16_from_float(f);
	case DT_BF16: return bf16_from_float(f);
	default: return (uint64_t)s.i;
	}
}

/* eval_fit cuts the integer to its dtype. */
Scalar eval_bitcast(const Op *op, const Scalar *s)
{
	uint64_t bits = bits_of(op_in(op, 0)->type.dtype, s[0]);
	uint32_t u = (uint32_t)bits;
	float f;
	double d;
	switch (attr_find(op->attrs, "to")->dtype) {
	case DT_F64: memcpy(&d, &bits, sizeof(d)); return (Scalar){.f = d};
	case DT_F32: memcpy(&f, &u, sizeof(f)); return (Scalar){.f = (double)f};
	case DT_F16: return (Scalar){.f = (double)f16_to_float((uint16_t)bits)};
	case DT_BF16: return (Scalar){.f = (double)bf16_to_float((uint16_t)bits)};
	default: return (Scalar){.i = (int64_t)bits};
	}
}
