/* ir/shape_quant.c: types of ops on bits and on numbers of narrow types. */
#include "ir/shape.h"

RULE(bitcast)
{
	DType from = shape_in(op, 0)->dtype, to = attr_find(op->attrs, "to")->dtype;
	out[0] = *shape_in(op, 0);
	out[0].dtype = to;
	return dtype_info[from].bytes == dtype_info[to].bytes || shape_wrong(err, "bitcast of %s to %s: their sizes "
		"differ, %d and %d bytes", dtype_info[from].text, dtype_info[to].text, dtype_info[from].bytes,
		dtype_info[to].bytes);
}

/* The exponents are those that units of f32 allow. */
RULE(round_to)
{
	int64_t fraction = attr_get_int(op->attrs, "fraction", 0), emin = attr_get_int(op->attrs, "emin", 0);
	int64_t over = attr_get_int(op->attrs, "over", 0);
	double max = attr_get_float(op->attrs, "max", 0);
	out[0] = *shape_in(op, 0);
	if (fraction < 0 || fraction > 52 || emin < -100 || emin > 0 || !(max > 0))
		return shape_wrong(err, "round_to of %lld bits, exponents from %lld and numbers up to %g: expected 0..52, "
			"-100..0 and a positive number", (long long)fraction, (long long)emin, max);
	if (over < 0 || over > 2)
		return shape_wrong(err, "attribute over of round_to is %lld, expected 0, 1 or 2", (long long)over);
	return shape_want_float(err, op, 0);
}
