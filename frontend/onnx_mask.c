/* frontend/onnx_mask.c: computes causal masks that an exporter stored as tensors.
 *
 * A constant [..., T, S] may hold one value on and below a diagonal and another one above it, the same for every
 * leading index.  It becomes comparisons of two iotas: passes recognise these, and no T x S tensor is stored. */
#include "frontend/onnx_params.h"

#include <string.h>

typedef struct Triangle { int64_t rows, cols, diagonal; double low, high; } Triangle;

static double at(const HostTensor *t, int64_t i)
{
	return host_get_float(t, i);
}

/* Finds the diagonal, such that elements with col <= row + diagonal are low, from the first row with both values. */
static bool find_triangle(const HostTensor *t, Triangle *tri)
{
	int rank = t->type.rank;
	tri->rows = t->type.dim[rank - 2];
	tri->cols = t->type.dim[rank - 1];
	int64_t last = tri->rows * tri->cols - 1, k = 0;
	tri->low = at(t, (tri->rows - 1) * tri->cols);
	tri->high = at(t, tri->cols - 1);
	if (tri->low == tri->high || tri->rows < 2 || tri->cols < 2 || last < 0)
		return false;
	while (k < tri->cols && at(t, k) == tri->low)
		k++;
	tri->diagonal = k - 1;
	return k > 0;
}

static bool is_triangle(const HostTensor *t, const Triangle *tri)
{
	int64_t plane = tri->rows * tri->cols, n = type_numel(&t->type);
	for (int64_t i = 0; i < n; i++) {
		int64_t row = i % plane / tri->cols, col = i % tri->cols;
		if (at(t, i) != (col <= row + tri->diagonal ? tri->low : tri->high))
			return false;
	}
	return true;
}

Value *onnx_mask_value(Import *im, const Weight *w)
{
	Builder *b = &im->b;
	Span bytes;
	const FileMap *file;
	Triangle tri;
	if (w->type.rank < 2 || w->type.dim[w->type.rank - 1] < 2 || !type_numel(&w->type)
			|| (w->t->typed && !w->t->has_raw) || !onnx_tensor_bytes(im->onnx, w->t, &bytes, &file, im->d))
		return NULL;
	HostTensor t = {w->type, bytes.at};
	if (!find_triangle(&t, &tri) || !is_triangle(&t, &tri))
		return NULL;
	int64_t rows[2] = {tri.rows, 1}, cols[2] = {1, tri.cols};
	Value *row = emit_iota(b, DT_I64, 2, rows, 0, (double)tri.diagonal, 1);
	Value *v = ir_emit2(b, OP_LE, emit_iota(b, DT_I64, 2, cols, 1, 0, 1), row);
	if (w->type.dtype != DT_BOOL)
		v = ir_emit3(b, OP_WHERE, v, ir_const_full(b, type_scalar(w->type.dtype), tri.low),
			ir_const_full(b, type_scalar(w->type.dtype), tri.high));
	else if (tri.low == 0)
		v = ir_emit1(b, OP_NOT, v);
	return ir_broadcast(b, v, &w->type);
}
