/* ir/shape_random.c: the shape rule of draw, whose result is stated. */
#include "ir/shape.h"

#include <math.h>
#include <string.h>

static bool check_bernoulli(const Op *op, Buf *err)
{
	double p = attr_get_float(op->attrs, "p", NAN);
	if (!(p >= 0 && p <= 1))
		return shape_wrong(err, "p of a bernoulli draw is %g, expected 0 to 1", p);
	return (attr_find(op->attrs, "lo") && attr_find(op->attrs, "hi"))
		|| shape_wrong(err, "a bernoulli draw needs lo and hi");
}

RULE(draw)
{
	const char *kind = attr_get_str(op->attrs, "kind", "");
	int axis;
	if (!given || given->kind != TYPE_TENSOR || given->layout)
		return shape_wrong(err, "draw needs a tensor type to be stated");
	out[0] = *given;
	if (!dtype_is_float(given->dtype))
		return shape_wrong(err, "draw of %s, expected floats", dtype_info[given->dtype].text);
	if (attr_get_int(op->attrs, "axis", 0) != -1 && !shape_axis(err, op, given, &axis))
		return false;
	if (!strcmp(kind, "bernoulli"))
		return check_bernoulli(op, err);
	return !strcmp(kind, "uniform") || !strcmp(kind, "normal")
		|| shape_wrong(err, "kind of draw is \"%s\", expected uniform, normal or bernoulli", kind);
}
