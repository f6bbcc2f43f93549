/* calibrate/samples.c: random samples for the inputs of a program that is measured. */
#include <errno.h>
#include <string.h>

#include "base/npy.h"
#include "calibrate/private.h"

enum { DEEP = 8, ANY = 1 << 30 };

/* How many classes or rows the op has for ids of its operand i; 0: they pass through it; -1: it does not say. */
static int64_t range_of(const Op *op, int i)
{
	const Type *first = op->n_in ? &op_in(op, 0)->type : NULL;
	switch (op->kind) {
	case OP_GATHER: return i == 1 ? first->dim[attr_get_int(op->attrs, "axis", 0)] : -1;
	case OP_CROSS_ENTROPY: return i == 1 ? first->dim[first->rank - 1] : -1;
	case OP_CROSS_ENTROPY_GRAD: return i == 2 ? op_in(op, 1)->type.dim[op_in(op, 1)->type.rank - 1] : -1;
	case OP_LINEAR_CROSS_ENTROPY: return i == 2 ? type_numel(&op_in(op, 1)->type) / first->dim[first->rank - 1] : -1;
	case OP_IN_RANGE: return (int64_t)attr_get_float(op->attrs, "high", 0) + 1;
	case OP_RESHAPE: case OP_SLICE: case OP_TRANSPOSE: case OP_BROADCAST: case OP_CAST: case OP_COPY: case OP_SPLIT:
	case OP_ROWS: case OP_COLUMNS: case OP_CONCAT: return 0;
	default: return -1;
	}
}

/* The least range that the readers of a value have; ANY: none says one. */
static int64_t least_range(const Module *m, const Value *v, int deep)
{
	int64_t least = ANY;
	for (int s = SEC_FORWARD; s <= SEC_BACKWARD && deep < DEEP; s++)
		IR_FOR_OPS(m, s, op)
			for (int i = 0; i < op->n_in; i++) {
				if (op_in(op, i) != v)
					continue;
				int64_t n = range_of(op, i);
				for (int k = 0; k < op->n_out && !n; k++)
					least = MIN(least, least_range(m, op->out[k], deep + 1));
				least = n > 0 ? MIN(least, n) : least;
			}
	return least;
}

static int64_t ids_of(const Module *m, const Symbol *s)
{
	int64_t n = ANY;
	for (int k = SEC_FORWARD; k <= SEC_BACKWARD; k++)
		IR_FOR_OPS(m, k, op)
			if (op->kind == OP_INPUT && op->sym == s)
				n = MIN(n, least_range(m, op->out[0], 0));
	return n == ANY ? 2 : n;
}

/* SplitMix64 (Steele, Lea, Flood, 2014). */
static uint64_t next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static void fill(void *at, DType dtype, int64_t n, int64_t range)
{
	uint64_t state = 1;
	for (int64_t i = 0; i < n; i++) {
		uint64_t x = next(&state);
		double real = (double)(x >> 11) / (double)(UINT64_C(1) << 53) * 2 - 1;
		switch (dtype) {
		case DT_F32: ((float *)at)[i] = (float)real; break;
		case DT_F64: ((double *)at)[i] = real; break;
		case DT_I32: ((int32_t *)at)[i] = (int32_t)(x % (uint64_t)range); break;
		case DT_I64: ((int64_t *)at)[i] = (int64_t)(x % (uint64_t)range); break;
		case DT_BOOL: ((uint8_t *)at)[i] = 1; break;
		default: memset((char *)at + i * dtype_info[dtype].bytes, 0, (size_t)dtype_info[dtype].bytes);
		}
	}
}

bool samples_write(const Module *m, const char *dir, int ranks, Words *argv, Arena *a, Diag *d)
{
	int number = 0;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		if (s->kind != SYM_INPUT)
			continue;
		Type t = s->type;
		if (s->batched)
			t.dim[0] *= ranks;
		const char *path = arena_printf(a, "%s/input_%d_%d.npy", dir, ranks, number++);
		void *at = arena_alloc(a, (size_t)MAX(type_bytes(&t), 1));
		fill(at, t.dtype, type_numel(&t), ids_of(m, s));
		if (!npy_write(path, t.dtype, t.rank, t.dim, at)) {
			diag_error(d, path, "%s", strerror(errno));
			return false;
		}
		vec_push(a, argv, arena_strdup(a, s->batched ? "--data" : "--const"));
		vec_push(a, argv, arena_printf(a, "%s=%s", s->name, path));
	}
	return true;
}
