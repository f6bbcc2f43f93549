/* base/narrow.h: element types of narrow.def, which files have and the IR holds in a wider dtype. */
#ifndef SHARDC_NARROW_H
#define SHARDC_NARROW_H

#include "base/npy.h"

typedef enum { NARROW_NAN_ONES, NARROW_NAN_ZERO, NARROW_IEEE, NARROW_NONE, NARROW_POWER, NARROW_INTEGER,
	NARROW_UNSIGNED } NarrowSpecial;

typedef struct Narrow {
	const char *text; /* "f8e4m3fn" */
	int onnx;         /* TensorProto.DataType */
	int bits;         /* of one element: 8, 4 or 2 */
	DType wide;       /* f32, i8 or u8 */
	int fraction, emin;
	double max;       /* the largest finite number */
	NarrowSpecial special;
} Narrow;

/* NULL: no such type. */
const Narrow *narrow_from_onnx(int onnx);
const Narrow *narrow_from_text(const char *text);
double narrow_min(const Narrow *t);                   /* the lowest finite number */
/* The bytes of n elements that are packed, the first of them in the lowest bits. */
int64_t narrow_packed(const Narrow *t, int64_t n);
/* The number that the lowest bits of `bits` stand for. */
double narrow_decode(const Narrow *t, unsigned bits);
/* The nearest number of a float type, ties to even; beyond the largest it is the largest, and NaN is NaN. */
double narrow_round(const Narrow *t, double x);
/* The bits of a number that the type holds; of NaN where it has one, else 0. */
unsigned narrow_encode(const Narrow *t, double x);
/* Element i of packed bytes. */
static inline unsigned narrow_at(const Narrow *t, const uint8_t *packed, int64_t i)
{
	int per = 8 / t->bits;
	return (unsigned)packed[i / per] >> (i % per * t->bits) & ((1u << t->bits) - 1);
}
/* Sets n elements of dtype t->wide at `out` to those of `in`, one byte each, and the other way. */
void narrow_widen(const Narrow *t, void *out, const uint8_t *in, int64_t n);
/* The first of n elements of dtype t->wide that is no number of the type; -1: there is none. */
int64_t narrow_find_other(const Narrow *t, const void *in, int64_t n);
void narrow_narrow(const Narrow *t, uint8_t *out, const void *in, int64_t n);

#endif
