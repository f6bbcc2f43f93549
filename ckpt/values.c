/* ckpt/values.c: reads elements of any dtype as numbers. */
#include <string.h>

#include "ckpt/ckpt.h"

double ckpt_number(const char *p, DType t)
{
	union { float f32; double f64; int64_t i64; int32_t i32; int16_t i16; int8_t i8; uint64_t u64; uint32_t u32;
		uint16_t u16; uint8_t u8; } v;
	memcpy(&v, p, (size_t)dtype_info[t].bytes);
	switch (t) {
	case DT_F32: return v.f32;
	case DT_F64: return v.f64;
	case DT_F16: return f16_to_float(v.u16);
	case DT_BF16: return bf16_to_float(v.u16);
	case DT_I64: return (double)v.i64;
	case DT_I32: return v.i32;
	case DT_I16: return v.i16;
	case DT_I8: return v.i8;
	case DT_U64: return (double)v.u64;
	case DT_U32: return v.u32;
	case DT_U16: return v.u16;
	case DT_U8: case DT_BOOL: return v.u8;
	case DT_E4M3: case DT_E5M2: case DT_COUNT: break;
	}
	ice("no dtype");
}

typedef struct Copy { char *out; int64_t first, size; } Copy;
typedef struct Read { DType dtype; double *out; int64_t first; } Read;

static void use(void *context, const char *from, int64_t first, int64_t n)
{
	const Read *r = context;
	int64_t size = dtype_info[r->dtype].bytes;
	for (int64_t i = 0; i < n; i++)
		r->out[first - r->first + i] = ckpt_number(from + i * size, r->dtype);
}

void ckpt_numbers(const CheckpointTensor *t, int64_t first, int64_t n, double *out)
{
	checkpoint_read(t, first, n, use, &(Read){t->dtype, out, first});
}

static void copy(void *context, const char *from, int64_t first, int64_t n)
{
	const Copy *c = context;
	memcpy(c->out + (first - c->first) * c->size, from, (size_t)(n * c->size));
}

void ckpt_bytes(const CheckpointTensor *t, int64_t first, int64_t n, char *out)
{
	checkpoint_read(t, first, n, copy, &(Copy){out, first, dtype_info[t->dtype].bytes});
}

void ckpt_release(const CheckpointTensor *t, int64_t first, int64_t n)
{
	int64_t size = dtype_info[t->dtype].bytes;
	for (int i = 0; i < t->n_pieces; i++) {
		const CheckpointPiece *p = &t->piece[i];
		int64_t begin = MAX(first, p->first), end = MIN(first + n, p->first + p->n);
		if (begin < end)
			safetensors_release(p->file, p->in->offset + (p->at + begin - p->first) * size, (end - begin) * size);
	}
}
