/* base/narrow.c: the table of narrow.def, and the numbers that the bits of such types stand for. */
#include "base/narrow.h"

#include <math.h>
#include <string.h>

static const Narrow types[] = {
#define NARROW(id, text, onnx, bits, wide, fraction, emin, max, special) \
	{text, onnx, bits, DT_##wide, fraction, emin, max, NARROW_##special},
#include "base/narrow.def"
};

const Narrow *narrow_from_onnx(int onnx)
{
	for (int i = 0; i < COUNT_OF(types); i++)
		if (types[i].onnx == onnx)
			return &types[i];
	return NULL;
}

const Narrow *narrow_from_text(const char *text)
{
	for (int i = 0; i < COUNT_OF(types); i++)
		if (!strcmp(types[i].text, text))
			return &types[i];
	return NULL;
}

double narrow_min(const Narrow *t)
{
	return t->special == NARROW_UNSIGNED ? 0 : t->special == NARROW_INTEGER ? -t->max - 1
		: t->special == NARROW_POWER ? ldexp(1, t->emin) : -t->max;
}

int64_t narrow_packed(const Narrow *t, int64_t n)
{
	return (n * t->bits + 7) / 8;
}

/* A float with a sign: exponent 0 means that the fraction has no leading 1. */
static double decode_float(const Narrow *t, unsigned bits)
{
	unsigned rest = bits & ((1u << (t->bits - 1)) - 1), ones = (1u << (t->bits - 1)) - 1;
	unsigned fraction = rest & ((1u << t->fraction) - 1), exponent = rest >> t->fraction;
	bool negative = bits >> (t->bits - 1) & 1;
	if ((t->special == NARROW_NAN_ONES && rest == ones) || (t->special == NARROW_NAN_ZERO && negative && !rest))
		return NAN;
	if (t->special == NARROW_IEEE && exponent == ones >> t->fraction)
		return fraction ? NAN : negative ? -INFINITY : INFINITY;
	double scaled = exponent ? fraction + (1u << t->fraction) : fraction;
	double x = ldexp(scaled, t->emin - t->fraction + (exponent ? (int)exponent - 1 : 0));
	return negative ? -x : x;
}

double narrow_decode(const Narrow *t, unsigned bits)
{
	unsigned all = (1u << t->bits) - 1;
	bits &= all;
	switch (t->special) {
	case NARROW_UNSIGNED: return bits;
	case NARROW_INTEGER: return bits >> (t->bits - 1) ? (double)bits - (double)all - 1 : (double)bits;
	case NARROW_POWER: return bits == all ? NAN : ldexp(1, t->emin + (int)bits);
	case NARROW_NAN_ONES: case NARROW_NAN_ZERO: case NARROW_IEEE: case NARROW_NONE: break;
	}
	return decode_float(t, bits);
}

double narrow_round(const Narrow *t, double x)
{
	int exponent = 0;
	if (isnan(x) || fabs(x) >= t->max)
		return isnan(x) ? x : copysign(t->max, x);
	frexp(x, &exponent); /* |x| is in 1/2..1 times 2^exponent */
	int unit = MAX(exponent - 1, t->emin) - t->fraction;
	return ldexp(rint(ldexp(x, -unit)), unit);
}

unsigned narrow_encode(const Narrow *t, double x)
{
	for (unsigned bits = 0; bits < 1u << t->bits; bits++) {
		double v = narrow_decode(t, bits);
		if (x == x ? v == x && (x != 0 || signbit(v) == signbit(x)) : v != v)
			return bits;
	}
	return 0; /* -0 of a type that lacks it, and NaN */
}

static double wide_at(const Narrow *t, const void *p, int64_t i)
{
	return t->wide == DT_F32 ? (double)((const float *)p)[i] : t->wide == DT_I8 ? ((const int8_t *)p)[i]
		: ((const uint8_t *)p)[i];
}

void narrow_widen(const Narrow *t, void *out, const uint8_t *in, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		double x = narrow_decode(t, in[i]);
		if (t->wide == DT_F32)
			((float *)out)[i] = (float)x;
		else
			((uint8_t *)out)[i] = (uint8_t)(int)x;
	}
}

int64_t narrow_find_other(const Narrow *t, const void *in, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		double x = wide_at(t, in, i), y = narrow_decode(t, narrow_encode(t, x));
		if (x == x ? x != y : y == y)
			return i;
	}
	return -1;
}

void narrow_narrow(const Narrow *t, uint8_t *out, const void *in, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		out[i] = (uint8_t)narrow_encode(t, wide_at(t, in, i));
}
