/* kernels/work.h: how much scratch each kernel wants, as plain arithmetic on shapes.
 *
 * Read by passes through kernels.def and by the kernels themselves, so that plan and use cannot differ.
 * No formula depends on the number of threads: chunks of a reduction are counted by shape alone, tiles
 * live on the threads' stacks. */
#ifndef SHARDC_KERNELS_WORK_H
#define SHARDC_KERNELS_WORK_H

#include <stdint.h>

/* An operand or result; dim NULL = absent.  bytes: of one element. */
typedef struct KShape { int rank; const int64_t *dim; int bytes; } KShape;

/* What a formula may look at: the op's operands, results and integer attributes of these names. */
typedef struct KWorkArgs {
	KShape in[8], out[8];
	int64_t axis, group, layout, ta, tb;
	int64_t cap;           /* --workspace; 0 = none */
} KWorkArgs;

enum { K_BN_CHUNKS = 64, K_NORM_CHUNKS = 64 };

static inline int64_t kwork_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static inline int64_t kwork_numel(const KShape *s, int from, int to)
{
	int64_t n = 1;
	for (int i = from; i < to; i++)
		n *= s->dim[i];
	return n;
}

/* Row chunks of a statistic: by rows only, at least 16 rows each. */
static inline int64_t kwork_norm_chunks(int64_t rows)
{
	int64_t n = (rows + 15) / 16;
	return n < 1 ? 1 : n > K_NORM_CHUNKS ? K_NORM_CHUNKS : n;
}

static inline int64_t kwork_none(const KWorkArgs *a) { (void)a; return 0; }

/* Operand 0 is x (rows, cols) cut at axis: two partial sums per chunk and column. */
static inline int64_t kwork_norm_grad(const KWorkArgs *a)
{
	const KShape *x = &a->in[0];
	int axis = (int)(a->axis < 0 ? a->axis + x->rank : a->axis);
	int64_t rows = kwork_numel(x, 0, axis), cols = kwork_numel(x, axis, x->rank);
	return kwork_norm_chunks(rows) * cols * 2 * x->bytes;
}

/* Channels-last statistics: per chunk and channel two f64. */
static inline int64_t kwork_bn(const KWorkArgs *a)
{
	const KShape *x = &a->in[0];
	return a->layout == 1 ? (int64_t)K_BN_CHUNKS * x->dim[x->rank - 1] * 2 * 8 : 0;
}

/* Primitives: what the fastest implementations use; under a smaller cap others serve. */
static inline int64_t kwork_capped(const KWorkArgs *a, int64_t bytes)
{
	return a->cap > 0 && bytes > a->cap ? a->cap : bytes;
}

/* Both operands as panels of the blocked product (kernels/cpu/gemm.h). */
enum { K_GEMM_WORK = 8 << 20 };
static inline int64_t kwork_matmul(const KWorkArgs *a) { return kwork_capped(a, K_GEMM_WORK); }

/* The weights in a kernel's own layout, padded to blocks of 64 x 16, and the library's scratch. */
enum { K_CONV_SCRATCH = 16 << 20 };
static inline int64_t kwork_conv_w(const KShape *w, int64_t group)
{
	int64_t o = kwork_up(w->dim[0] / group, 64), i = kwork_up(w->dim[1], 16);
	int64_t g = group;
	if (w->dim[1] == 1 && w->dim[0] == group)
		o = 1, i = 1, g = kwork_up(group, 64);
	return g * o * i * kwork_numel(w, 2, w->rank) * w->bytes;
}
static inline int64_t kwork_conv(const KWorkArgs *a)
{
	return kwork_capped(a, kwork_conv_w(&a->in[1], a->group ? a->group : 1) + K_CONV_SCRATCH);
}
static inline int64_t kwork_conv_grad_w(const KWorkArgs *a)
{
	return kwork_capped(a, kwork_conv_w(&a->out[0], a->group ? a->group : 1) + K_CONV_SCRATCH);
}

#endif
