/* kernels/f8.h: 8-bit floats: e4m3 (numbers up to 448, no infinities) and e5m2 (up to 57344), as the OCP's "8-bit
 * Floating Point Specification (OFP8)" defines them, on one element.
 *
 * Included by kernels on the CPU and on CUDA.  All is integer arithmetic, so every machine gives the same bits,
 * whatever it does with denormals and fused products. */
#ifndef SHARDC_F8_H
#define SHARDC_F8_H

#include "kernels/ew.h"

/* The bits of fraction, the exponent of the smallest normal number and the largest number; x is e4m3, else e5m2. */
#define F8_FRACTION(x) ((x) ? 3 : 2)
#define F8_EMIN(x) ((x) ? -6 : -14)
#define F8_MAX(x) ((x) ? 448.0f : 57344.0f)

/* The scale of a tensor whose largest magnitude is `most`: below 2^-100, where 1 / scale would overflow, it is that of
 * 2^-100.  NaN and infinity go on into the scale, and so into every product. */
EW float f8_scale(float most, int e4m3) { return (most < 0x1p-100f ? 0x1p-100f : most) / F8_MAX(e4m3); }

/* The scale of weights of f32 with this largest magnitude, which products read as e4m3 of what bf16 makes of them. */
EW float f8_weight_scale(float most) { return f8_scale(ew_cast_bf16_f32(ew_cast_f32_bf16(most)), 1); }

/* To nearest, ties to even; beyond the largest number it is the largest, and NaN is NaN. */
EW uint8_t f8_from_float(float x, int e4m3)
{
	uint32_t u = ew_bits(x), rest = u & 0x7fffffff, exponent = rest >> 23;
	uint32_t sign = u >> 24 & 0x80, drop = 23 - F8_FRACTION(e4m3), first = 127 + F8_EMIN(e4m3);
	if (rest > 0x7f800000)
		return 0x7f;
	if (rest >= ew_bits(F8_MAX(e4m3)))
		return (uint8_t)(sign | (e4m3 ? 0x7e : 0x7b));
	if (exponent >= first) {
		rest += (1u << (drop - 1)) - 1 + (rest >> drop & 1);
		return (uint8_t)(sign | ((rest >> drop) - ((first - 1) << F8_FRACTION(e4m3))));
	}
	uint32_t shift = drop + first - (exponent ? exponent : 1);
	uint32_t m = exponent ? (rest & 0x7fffff) | 0x800000 : rest;
	if (shift > 24) /* less than half of the smallest number, or a tie with 0 */
		return (uint8_t)sign;
	return (uint8_t)(sign | (m + (1u << (shift - 1)) - 1 + (m >> shift & 1)) >> shift);
}

/* A weight of f32, times 1 / scale. */
EW uint8_t f8_from_weight(float x, float inverse)
{
	return f8_from_float(ew_cast_bf16_f32(ew_cast_f32_bf16(x)) * inverse, 1);
}

/* The same number as bf16, which holds all of both types. */
EW uint16_t f8_to_bf16(uint8_t x, int e4m3)
{
	uint32_t sign = (uint32_t)(x & 0x80) << 8, fraction = F8_FRACTION(e4m3), exponent = (x & 0x7fu) >> fraction;
	uint32_t m = x & ((1u << fraction) - 1);
	if (e4m3 ? (x & 0x7f) == 0x7f : exponent == 31)
		return (uint16_t)(sign | (!e4m3 && !m ? 0x7f80 : 0x7fc0));
	if (!exponent && !m)
		return (uint16_t)sign;
	int e = (int)exponent + 126 + F8_EMIN(e4m3);
	if (!exponent)
		for (e++; !(m >> fraction); e--)
			m <<= 1;
	return (uint16_t)(sign | (uint32_t)e << 7 | (m & ((1u << fraction) - 1)) << (7 - fraction));
}

#endif
