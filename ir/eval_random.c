/* ir/eval_random.c: reference of tensors of random numbers: the numbers of kernels/random.h, in f64. */
#include "ir/eval.h"

#include <math.h>
#include <string.h>

#include "base/philox.h"

/* The number of element i of a block with these words. */
static double normal(const uint32_t b[4], uint64_t i)
{
	const uint32_t *pair = b + i / 2 * 2;
	double radius = sqrt(-2 * log((double)(float)((pair[0] + 0.5) * 0x1p-32)));
	double angle = 2 * 3.14159265358979323846 * (pair[1] >> 8) * 0x1p-24;
	return radius * (i % 2 ? sin(angle) : cos(angle));
}

static double number(const Op *op, const char *kind, const uint32_t b[4], uint64_t i)
{
	DType t = op->out[0]->type.dtype;
	int bits = t == DT_F16 ? 11 : t == DT_BF16 ? 8 : 24;
	if (!strcmp(kind, "normal"))
		return normal(b, i);
	if (!strcmp(kind, "uniform"))
		return ldexp(b[i] >> (32 - bits), -bits);
	bool high = b[i] >= philox_threshold(attr_get_float(op->attrs, "p", 0));
	return attr_get_float(op->attrs, high ? "hi" : "lo", high);
}

RULE(draw)
{
	const Type *t = &op->out[0]->type;
	int axis = (int)attr_get_int(op->attrs, "axis", -1);
	const char *kind = attr_get_str(op->attrs, "kind", "");
	Axis rows = axis < 0 ? (Axis){0} : eval_axis(t, axis);
	uint64_t key = philox_key(e->seed, (uint64_t)attr_get_int(op->attrs, "id", 0));
	for (int64_t at = 0, n = type_numel(t); at < n; at++) {
		uint32_t b[4];
		uint64_t row = rows.n ? e->sample0 + (uint64_t)(at / rows.inner % rows.n) : 0;
		uint64_t inner = (uint64_t)(rows.n ? at / rows.inner / rows.n * rows.inner + at % rows.inner : at);
		philox_block(b, key, row, inner / 4, e->step);
		out[0]->f[at] = number(op, kind, b, inner % 4);
	}
	return true;
}
