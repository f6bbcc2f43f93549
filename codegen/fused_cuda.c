/* codegen/fused_cuda.c: writes fused kernels as kernels of fused.cu.
 *
 * Each kernel is three functions: one that computes an element by value, so that everything is read before anything
 * is written; the kernel, in which a thread handles `wide` neighbours along the innermost dim; and the function
 * that step.cu calls, which launches the kernel.  The width and the indices are decided here, from sizes and
 * addresses, so that every kernel is compiled only once.
 *
 * A result or an operand that varies along all dims needs no index: its offset is the thread's number. */
#include "codegen/fused.h"

#include <string.h>

const char fused_cuda_head[] = "#include \"kernels/cuda/fused.cuh\"\n\n";

/* ---- how many elements a thread takes ---- */

enum { ACCESS_BYTES = 16 };

/* The largest power of two, at most `most`, to a multiple of which elements of this value are aligned. */
static int aligned(const Value *v, int most)
{
	int64_t bytes = dtype_info[v->type.dtype].bytes;
	while (most > 1 && v->place.offset % (bytes * most)) /* arenas and flats begin at multiples of 64 bytes */
		most /= 2;
	return most;
}

static int width_of(const Op *op, const FusedSpace *s)
{
	int wide = ACCESS_BYTES;
	for (int i = 0; i < op->n_out; i++)
		wide = MIN(wide, ACCESS_BYTES / dtype_info[op->out[i]->type.dtype].bytes);
	for (int i = 0; i < op->n_in; i++)
		if (fused_moves(s, i))
			wide = MIN(wide, ACCESS_BYTES / dtype_info[op_in(op, i)->type.dtype].bytes);
	for (int i = 0; i < op->n_out; i++)
		wide = aligned(op->out[i], wide);
	for (int i = 0; i < op->n_in; i++)
		if (fused_moves(s, i))
			wide = aligned(op_in(op, i), wide);
	while (s->rank > 1 && s->dim[s->rank - 1] % wide)
		wide /= 2;
	for (int i = 0; i < op->n_in; i++)
		while (fused_moves(s, i) && s->pitch[i] % wide)
			wide /= 2;
	for (int i = 0; i < op->n_out; i++)
		while (s->y_pitch[i] % wide)
			wide /= 2;
	return wide;
}

static const char *index_type(const FusedSpace *s)
{
	int64_t n = 1, row = s->dim[s->rank - 1];
	for (int d = 0; d < s->rank - 1; d++)
		n *= s->dim[d];
	for (int i = 0; i < FUSED_TENSORS; i++)
		row = MAX(row, MAX(s->pitch[i], s->y_pitch[i]));
	n *= row;
	return n < INT64_C(1) << 30 ? "uint32_t" : "uint64_t";
}

/* ---- one element ---- */

static void put_element(Emit *e, Buf *b, const Op *op, const char *name)
{
	buf_printf(b, "static __device__ __forceinline__ void %s_element(", name);
	for (int i = 0; i < op->n_out; i++)
		buf_printf(b, "%s%s &y%d", i ? ", " : "", fused_ctype(op->out[i]), i);
	for (int i = 0; i < op->n_in; i++)
		buf_printf(b, ", %s x%d", fused_ctype(op_in(op, i)), i);
	buf_printf(b, ")\n{\n");
	for (int i = 0; i < op->n_in; i++)
		fused_read(e, b, op_in(op, i), i, "\t", arena_printf(e->a, "x%d", i));
	fused_body(e, b, op, "", "\t");
	buf_printf(b, "}\n\n");
}

/* The offset of a result's elements. */
static const char *y_offset(Emit *e, const FusedSpace *s, int result)
{
	int last = s->rank - 1;
	return s->y_pitch[result] ? arena_printf(e->a, "r%d * q%d + i%d", last, result, last) : "at";
}

/* y and x are the suffixes of the names of results, NULL = their elements, and of operands that vary; the other
 * operands have been read already. */
static void put_call(Emit *e, Buf *b, const Op *op, const FusedSpace *s, const char *name, const char *y, const char *x)
{
	buf_printf(b, "%s_element(", name);
	for (int i = 0; i < op->n_out; i++)
		buf_printf(b, "%sy%d%s", i ? ", " : "", i, y ? y : arena_printf(e->a, "[%s]", y_offset(e, s, i)));
	for (int i = 0; i < op->n_in; i++)
		buf_printf(b, ", x%d%s", i, fused_moves(s, i) ? x : "e");
	buf_printf(b, ");\n");
}

/* ---- indices ---- */

/* Whether the operand's offset is the number of the element. */
static bool varies_whole(const FusedSpace *s, int operand)
{
	return s->varies[operand] == (1u << s->rank) - 1 && !s->pitch[operand];
}

/* The dims whose indices some offset needs.  Results and operands that vary along all dims need none, unless they have
 * a pitch; of a result with one, the index along the last dim and the number of its row are enough. */
static unsigned wanted(const Op *op, const FusedSpace *s)
{
	unsigned dims = 0;
	for (int i = 0; i < op->n_in; i++)
		dims |= varies_whole(s, i) ? 0 : s->varies[i];
	for (int i = 0; i < op->n_out; i++)
		dims |= s->y_pitch[i] ? 1u << (s->rank - 1) : 0;
	return dims;
}

/* The first dim whose size is needed; s->rank: no size is. */
static int first_divider(const Op *op, const FusedSpace *s)
{
	unsigned dims = wanted(op, s);
	for (int d = 0; d < s->rank; d++)
		if (dims >> d & 1)
			return MAX(d, 1);
	return s->rank;
}

/* Declares r<d>: the item divided by the dims from d on; i<d>: its index along d. */
static void put_indices(Emit *e, Buf *b, const Op *op, const FusedSpace *s, int wide, const char *index)
{
	unsigned dims = wanted(op, s);
	int last = s->rank - 1, first = first_divider(op, s);
	for (int d = last; d >= first; d--) {
		const char *from = d == last ? "item" : arena_printf(e->a, "r%d", d + 1);
		buf_printf(b, "\tconst %s r%d = n%d.of(%s);\n", index, d, d, from);
		if (!(dims >> d & 1))
			continue;
		buf_printf(b, "\tconst %s i%d = ", index, d);
		if (d == last && wide > 1)
			buf_printf(b, "(item - r%d * n%d.n) * %d;\n", d, d, wide);
		else
			buf_printf(b, "%s - r%d * n%d.n;\n", from, d, d);
	}
	if (dims & 1 && s->rank > 1)
		buf_printf(b, "\tconst %s i0 = r1;\n", index);
}

/* The offset of an operand's elements: "(i0 * n1.n + i1) * (n2.n * 4) + i2". */
static const char *offset_of(Emit *e, const FusedSpace *s, int operand, int wide)
{
	int last = s->rank - 1;
	const char *sum = "";
	if (varies_whole(s, operand))
		return "at";
	for (int d = 0; d < s->rank; d++) {
		if (!(s->varies[operand] >> d & 1))
			continue;
		const char *size = d == last && s->pitch[operand] ? arena_printf(e->a, "p%d", operand)
			: d == last && wide > 1 ? arena_printf(e->a, "(n%d.n * %d)", d, wide) : arena_printf(e->a, "n%d.n", d);
		sum = !*sum ? arena_printf(e->a, "i%d", d)
			: arena_printf(e->a, strchr(sum, ' ') ? "(%s) * %s + i%d" : "%s * %s + i%d", sum, size, d);
	}
	if (*sum && s->pitch[operand] && !fused_moves(s, operand))
		sum = arena_printf(e->a, strchr(sum, ' ') ? "(%s) * p%d" : "%s * p%d", sum, operand);
	return *sum ? sum : "0";
}

/* ---- the kernel ---- */

/* Declares x<i>e: operands that are the same for all elements of an item; if an item is one element, all operands. */
static void put_single_reads(Emit *e, Buf *b, const Op *op, const FusedSpace *s, int wide)
{
	for (int i = 0; i < op->n_in; i++)
		if (wide == 1 || !fused_moves(s, i))
			buf_printf(b, "\tconst %s x%de = x%d[%s];\n", fused_ctype(op_in(op, i)), i, i, offset_of(e, s, i, wide));
}

/* Loads, computes and stores `wide` elements. */
static void put_wide(Emit *e, Buf *b, const Op *op, const FusedSpace *s, int wide, const char *name, const char *in)
{
	for (int i = 0; i < op->n_in; i++)
		if (fused_moves(s, i))
			buf_printf(b, "%sconst Vec<%s, %d> x%dv = load<%d>(x%d + %s);\n", in, fused_ctype(op_in(op, i)), wide, i,
				wide, i, offset_of(e, s, i, wide));
	for (int i = 0; i < op->n_out; i++)
		buf_printf(b, "%sVec<%s, %d> y%dv;\n", in, fused_ctype(op->out[i]), wide, i);
	buf_printf(b, "%sfor (int k = 0; k < %d; k++)\n%s\t", in, wide, in);
	put_call(e, b, op, s, name, "v.at[k]", "v.at[k]");
	for (int i = 0; i < op->n_out; i++)
		buf_printf(b, "%sstore(y%d + %s, y%dv);\n", in, i, y_offset(e, s, i), i);
}

/* Handles a row, whose last elements may be fewer than a thread takes. */
static void put_row(Emit *e, Buf *b, const Op *op, const FusedSpace *s, int wide, const char *name, const char *index)
{
	buf_printf(b, "\tconst %s at = fused_item<%s>()", index, index);
	buf_printf(b, wide > 1 ? " * %d;\n" : ";\n", wide);
	if (wide == 1) {
		buf_printf(b, "\tif (at >= n0)\n\t\treturn;\n");
		put_single_reads(e, b, op, s, wide);
		buf_printf(b, "\t");
		put_call(e, b, op, s, name, NULL, "e");
		return;
	}
	put_single_reads(e, b, op, s, wide);
	buf_printf(b, "\tif (at + %d <= n0) {\n", wide);
	put_wide(e, b, op, s, wide, name, "\t\t");
	buf_printf(b, "\t\treturn;\n\t}\n\tfor (%s k = at; k < n0; k++)\n\t\t", index);
	put_call(e, b, op, s, name, "[k]", "[k]");
}

static void put_rows(Emit *e, Buf *b, const Op *op, const FusedSpace *s, int wide, const char *name, const char *index)
{
	buf_printf(b, "\tconst %s item = fused_item<%s>();\n\tif (item >= items)\n\t\treturn;\n", index, index);
	put_indices(e, b, op, s, wide, index);
	buf_printf(b, wide > 1 ? "\tconst %s at = item * %d;\n" : "\tconst %s at = item;\n", index, wide);
	put_single_reads(e, b, op, s, wide);
	if (wide > 1) {
		put_wide(e, b, op, s, wide, name, "\t");
		return;
	}
	buf_printf(b, "\t");
	put_call(e, b, op, s, name, NULL, "e");
}

static void put_kernel(Emit *e, Buf *b, const Op *op, const FusedSpace *s, int wide, const char *name,
	const char *index)
{
	buf_printf(b, "static __global__ void __launch_bounds__(FUSED_THREADS) %s_kernel(", name);
	for (int i = 0; i < op->n_out; i++)
		buf_printf(b, "%s *y%d, ", fused_ctype(op->out[i]), i);
	for (int i = 0; i < op->n_in; i++)
		buf_printf(b, "const %s *x%d, ", fused_ctype(op_in(op, i)), i);
	buf_printf(b, s->rank == 1 ? "%s n0" : "%s items", index);
	for (int d = first_divider(op, s); d < s->rank; d++)
		buf_printf(b, ", Divider<%s> n%d", index, d);
	for (int i = 0; i < op->n_out; i++)
		if (s->y_pitch[i])
			buf_printf(b, ", %s q%d", index, i);
	for (int i = 0; i < op->n_in; i++)
		if (s->pitch[i])
			buf_printf(b, ", %s p%d", index, i);
	buf_printf(b, ")\n{\n");
	if (s->rank == 1)
		put_row(e, b, op, s, wide, name, index);
	else
		put_rows(e, b, op, s, wide, name, index);
	buf_printf(b, "}\n\n");
}

/* ---- its launch ---- */

static void put_launch(Buf *b, const Op *op, const FusedSpace *s, int wide, const char *name, const char *index)
{
	int last = s->rank - 1;
	buf_printf(b, "void %s", name);
	fused_signature(b, op, s);
	buf_printf(b, "\n{\n\tconst int64_t items = ");
	for (int d = 0; d < last; d++)
		buf_printf(b, "n%d * ", d);
	buf_printf(b, wide == 1 ? "n%d;\n" : last ? "n%d / %d;\n" : "ceil_div(n%d, %d);\n", last, wide);
	buf_printf(b, "\tLAUNCH(%s_kernel, fused_blocks(items), FUSED_THREADS, 0, k_stream, ", name);
	for (int i = 0; i < op->n_out; i++)
		buf_printf(b, "y%d, ", i);
	for (int i = 0; i < op->n_in; i++)
		buf_printf(b, "x%d, ", i);
	buf_printf(b, last ? "(%s)items" : "(%s)n0", index);
	for (int d = first_divider(op, s); d <= last; d++) {
		buf_printf(b, ", Divider<%s>(n%d", index, d);
		buf_printf(b, d == last && wide > 1 ? " / %d)" : ")", wide);
	}
	for (int i = 0; i < op->n_out; i++)
		if (s->y_pitch[i])
			buf_printf(b, ", (%s)q%d", index, i);
	for (int i = 0; i < op->n_in; i++)
		if (s->pitch[i])
			buf_printf(b, ", (%s)p%d", index, i);
	buf_printf(b, ");\n}\n\n");
}

void fused_cuda(Emit *e, Buf *b, const Op *op, const FusedSpace *s, const char *name)
{
	int wide = width_of(op, s);
	const char *index = index_type(s);
	put_element(e, b, op, name);
	put_kernel(e, b, op, s, wide, name, index);
	put_launch(b, op, s, wide, name, index);
}
