/* base/dtype.c: the table of dtypes.def, lookups in it, and 16-bit float conversions. */
#include "base/narrow.h"

#include <math.h>
#include <string.h>

const DTypeInfo dtype_info[DT_COUNT] = {
#define DTYPE(id, text, bytes, class, ctype, onnx, st, npy) \
	[DT_##id] = {text, bytes, CLASS_##class, ctype, onnx, st, npy},
#include "base/dtypes.def"
};

static bool find(const char *const *field, const char *want, DType *out)
{
	/* field points at a member of dtype_info[0]; the same member of the other rows follows at the size of a row. */
	for (int t = 0; t < DT_COUNT; t++) {
		const char *have = *(const char *const *)(const void *)
			((const char *)(const void *)field + (size_t)t * sizeof(DTypeInfo));
		if (have && !strcmp(have, want)) {
			*out = (DType)t;
			return true;
		}
	}
	return false;
}

bool dtype_from_text(const char *text, DType *out)
{
	return find(&dtype_info[0].text, text, out);
}

bool dtype_from_npy(const char *descr, DType *out)
{
	return find(&dtype_info[0].npy, descr, out);
}

bool dtype_from_safetensors(const char *name, DType *out)
{
	return find(&dtype_info[0].safetensors, name, out);
}

bool dtype_from_onnx(int onnx, DType *out)
{
	for (int t = 0; t < DT_COUNT; t++) {
		if (dtype_info[t].onnx == onnx && onnx > 0) {
			*out = (DType)t;
			return true;
		}
	}
	return false;
}

static uint32_t bits_of(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof(u));
	return u;
}

static float float_of(uint32_t u)
{
	float x;
	memcpy(&x, &u, sizeof(x));
	return x;
}

uint16_t bf16_from_float(float x)
{
	uint32_t u = bits_of(x);
	if (x != x)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

uint16_t f16_from_float(float x)
{
	uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
	if (rest > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
	if (rest >= 0x477ff000) /* 65536 or more after rounding */
		return (uint16_t)(sign | 0x7c00);
	if (rest < 0x38800000) { /* subnormal: the f32 adder does the rounding */
		float shifted = float_of(rest) + 0.5f;
		return (uint16_t)(sign | (bits_of(shifted) - bits_of(0.5f)));
	}
	rest += 0xfff + (rest >> 13 & 1);
	return (uint16_t)(sign | (rest - 0x38000000) >> 13);
}

float f16_to_float(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
	if (exponent == 31)
		return float_of(sign | 0x7f800000 | mantissa << 13);
	if (exponent)
		return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
	float small = (float)mantissa * 0x1p-24f;
	return sign ? -small : small;
}

double dtype_round(DType t, double x)
{
	switch (t) {
	case DT_F64: return x;
	case DT_F32: return (float)x;
	case DT_F16: return f16_to_float(f16_from_float((float)x));
	case DT_BF16: return bf16_to_float(bf16_from_float((float)x));
	case DT_BOOL: return x != 0;
	case DT_I32: return (int32_t)int_of_double(x);
	case DT_I16: return (int16_t)int_of_double(x);
	case DT_I8: return (int8_t)int_of_double(x);
	case DT_U32: return (uint32_t)int_of_double(x);
	case DT_U16: return (uint16_t)int_of_double(x);
	case DT_U8: return (uint8_t)int_of_double(x);
	case DT_E4M3: return narrow_round(narrow_from_text("f8e4m3fn"), x);
	case DT_E5M2: return narrow_round(narrow_from_text("f8e5m2"), x);
	case DT_I64: case DT_U64: case DT_COUNT: break;
	}
	return trunc(x);
}
