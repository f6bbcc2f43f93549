/* frontend/onnx_narrow.c: element types of base/narrow.def, which the IR holds in a wider dtype.
 *
 * What a name stands for has such a type (OnnxValue), not its IR value, which may have other names.  Ops that only
 * move elements pass it on; ops that compute in it are refused, as ONNX has none.  A large initializer stays packed, in
 * the file and in memory, and is spread where it is read. */
#include "frontend/onnx_import.h"

#include <math.h>
#include <string.h>

typedef enum { TAKES_AND_GIVES, TAKES } NarrowUse;

static const struct { const char *op; NarrowUse use; } uses[] = {
	{"Cast", TAKES}, {"CastLike", TAKES}, {"DequantizeLinear", TAKES}, {"Flatten", TAKES_AND_GIVES},
	{"Gather", TAKES_AND_GIVES}, {"Identity", TAKES_AND_GIVES}, {"Pad", TAKES_AND_GIVES}, {"QuantizeLinear", TAKES},
	{"Reshape", TAKES_AND_GIVES}, {"Shape", TAKES}, {"Size", TAKES}, {"Slice", TAKES_AND_GIVES},
	{"Split", TAKES_AND_GIVES}, {"Squeeze", TAKES_AND_GIVES}, {"Transpose", TAKES_AND_GIVES},
	{"Unsqueeze", TAKES_AND_GIVES}};

bool element_from_onnx(int onnx, DType *dtype, const Narrow **narrow)
{
	*narrow = narrow_from_onnx(onnx);
	if (!*narrow)
		return dtype_from_onnx(onnx, dtype);
	*dtype = (*narrow)->wide;
	return true;
}

bool narrow_take(Node *n)
{
	int at = -1;
	for (int i = 0; i < COUNT_OF(uses); i++)
		if (!strcmp(uses[i].op, n->op))
			at = i;
	for (int i = 0; i < n->n_in; i++)
		if (n->in_narrow[i] && at < 0)
			return node_refuse(n, "it cannot compute in %s: put a Cast to a wider type before it, or DequantizeLinear",
				onnx_dtype_name(n->in_narrow[i]->onnx));
	for (int i = 0; at >= 0 && uses[at].use == TAKES_AND_GIVES && n->n_in && i < n->n_out; i++)
		n->out_narrow[i] = n->in_narrow[0];
	return true;
}

/* ---- tensors ---- */

OnnxTensor narrow_packed_tensor(const OnnxTensor *t, const Narrow *type)
{
	enum { ONNX_UINT8 = 2 };
	OnnxTensor packed = *t;
	packed.data_type = ONNX_UINT8;
	packed.rank = 1;
	packed.dim[0] = narrow_packed(type, onnx_dims_numel(t->rank, t->dim));
	return packed;
}

bool narrow_tensor(Import *im, const OnnxTensor *t, const Narrow *type, EvalTensor *out)
{
	OnnxTensor packed = narrow_packed_tensor(t, type);
	int64_t *bytes, n = onnx_dims_numel(t->rank, t->dim);
	if (!onnx_tensor_ints(im->onnx, &packed, im->arena, &bytes, im->d))
		return false;
	int per = 8 / type->bits;
	*out = (EvalTensor){.type = type_tensor(type->wide, t->rank, t->dim)};
	out->i = NEW_N(im->arena, int64_t, n + 1);
	for (int64_t i = 0; i < n; i++) {
		double x = narrow_decode(type, (unsigned)bytes[i / per] >> (i % per * type->bits));
		if (type->wide == DT_F32)
			out->f[i] = x;
		else
			out->i[i] = (int64_t)x;
	}
	return true;
}

/* The bits of each element of packed bytes, as u8[bytes * per]. */
static Value *unpack(Builder *b, Value *bytes, const Narrow *t)
{
	int64_t n = bytes->type.dim[0], per = 8 / t->bits;
	if (per == 1)
		return bytes;
	Value *shift = emit_iota(b, DT_U8, 2, (int64_t[]){1, per}, 1, 0, t->bits);
	Value *bits = ir_emit2(b, OP_SHR, ir_reshape(b, bytes, 2, (int64_t[]){n, 1}), shift);
	Value *mask = ir_const_int(b, DT_U8, (1 << t->bits) - 1);
	return ir_reshape(b, ir_emit2(b, OP_AND, bits, mask), 1, (int64_t[]){n * per});
}

/* Makes a whole number of any dtype one of a narrow type, as C does: high bits go. */
static Value *wrap(Builder *b, Value *x, const Narrow *t)
{
	int64_t half = 1 << (t->bits - 1);
	Value *low = ir_emit2(b, OP_AND, ir_cast(b, x, t->wide), ir_const_int(b, t->wide, 2 * half - 1));
	if (t->special == NARROW_UNSIGNED)
		return low;
	return emit_sub(b, ir_emit2(b, OP_XOR, low, ir_const_int(b, t->wide, half)), ir_const_int(b, t->wide, half));
}

Value *narrow_spread(Builder *b, Value *bytes, const Narrow *t, const Type *as)
{
	EvalTensor table = {.type = type_tensor(DT_F32, 1, (int64_t[]){1 << t->bits})};
	double f[256];
	Value *bits = unpack(b, bytes, t);
	table.f = f;
	for (int i = 0; i < 1 << t->bits; i++)
		f[i] = narrow_decode(t, (unsigned)i);
	Value *v = t->wide == DT_F32 ? ir_emit(b, OP_GATHER, 2, (Value *[]){emit_literal(b, &table),
		ir_cast(b, bits, DT_I32)}, attr_int(b->m, NULL, "axis", 0)) : wrap(b, bits, t);
	return ir_reshape(b, emit_slice(b, v, 0, 0, type_numel(as), 1), as->rank, as->dim);
}

/* ---- casts ---- */

/* A power of two: the exponent of |x|, raised where `mode` says so, is the number's bits. */
static Value *cast_power(Node *n, Value *x, bool saturate, const char *mode)
{
	Builder *b = n->b;
	bool up = !strcmp(mode, "up"), nearest = !strcmp(mode, "nearest");
	if (!up && !nearest && strcmp(mode, "down") != 0) {
		node_error(n, "round_mode is \"%s\", neither up, down nor nearest", mode);
		return &n->im->m->poison;
	}
	Attr *to = attr_dtype(b->m, NULL, "to", DT_I32);
	x = ir_cast(b, x, DT_F32);
	Value *bits = ir_emit2(b, OP_AND, ir_emit(b, OP_BITCAST, 1, &x, to), ir_const_int(b, DT_I32, 0x7FFFFFFF));
	Value *exponent = ir_emit2(b, OP_SHR, bits, ir_const_int(b, DT_I32, 23)), *zero = ir_const_int(b, DT_I32, 0);
	Value *fraction = ir_emit2(b, OP_AND, bits, ir_const_int(b, DT_I32, 0x7FFFFF));
	/* Half a unit goes up, but from numbers below 2^-126 only what is above it. */
	Value *half = ir_emit3(b, OP_WHERE, ir_emit2(b, OP_GT, exponent, zero), ir_const_int(b, DT_I32, 0x3FFFFF),
		ir_const_int(b, DT_I32, 0x400000));
	Value *finite = ir_emit2(b, OP_LT, exponent, ir_const_int(b, DT_I32, saturate ? 254 : 255));
	Value *raise = ir_emit2(b, OP_GT, fraction, nearest ? half : zero);
	raise = ir_cast(b, ir_emit2(b, OP_AND, raise, finite), DT_I32);
	exponent = up || nearest ? emit_add(b, exponent, raise) : exponent;
	Value *result = ir_emit2(b, OP_SHL, exponent, ir_const_int(b, DT_I32, 23));
	result = ir_emit3(b, OP_WHERE, ir_emit2(b, OP_EQ, exponent, zero), ir_const_int(b, DT_I32, 0x400000), result);
	Value *none = ir_emit2(b, OP_EQ, exponent, ir_const_int(b, DT_I32, 255));
	result = ir_emit3(b, OP_WHERE, none, ir_const_int(b, DT_I32, 0x7FC00000), result);
	return ir_emit(b, OP_BITCAST, 1, &result, attr_dtype(b->m, NULL, "to", DT_F32));
}

Value *emit_round_to(Builder *b, Value *x, const Narrow *t, bool saturate)
{
	enum { OVER_MAX, OVER_INFINITE, OVER_NAN };
	DType in = x->type.dtype;
	x = ir_cast(b, x, in == DT_F32 || dtype_is_half(in) ? DT_F32 : DT_F64);
	if (t->special == NARROW_NONE)
		x = ir_emit3(b, OP_WHERE, ir_emit1(b, OP_ISNAN, x), emit_float(b, x, 0), x);
	int over = saturate || t->special == NARROW_NONE ? OVER_MAX : t->special == NARROW_IEEE ? OVER_INFINITE : OVER_NAN;
	Attr *a = attr_int(b->m, attr_int(b->m, NULL, "fraction", t->fraction), "emin", t->emin);
	a = attr_int(b->m, attr_float(b->m, a, "max", t->max), "over", over);
	a = attr_int(b->m, a, "negzero", t->special != NARROW_NAN_ZERO);
	return ir_cast(b, ir_emit(b, OP_ROUND_TO, 1, &x, a), DT_F32);
}

Value *emit_cast(Node *n, Value *x, DType to, const Narrow *narrow)
{
	bool saturate = node_int(n, "saturate", 1);
	if (!narrow)
		return ir_cast(n->b, x, to);
	if (narrow->special == NARROW_POWER)
		return cast_power(n, x, saturate, node_str(n, "round_mode", "up"));
	return to == DT_F32 ? emit_round_to(n->b, x, narrow, saturate) : wrap(n->b, x, narrow);
}
