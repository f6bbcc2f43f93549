/* kernels/cpu/reduce.c: sum, mean, max, min and product over any axes.
 *
 * Dims are merged into alternating runs of kept and reduced ones.  If the last run is reduced, a result is a sum of
 * rows; if it is kept, pieces of rows are accumulated column by column.  The reduced elements are cut into chunks by
 * shape alone; the chunks' partial results are on the stack and are merged in order, so the number of threads changes
 * no bit. */
#include <float.h>

#include "kernels/cpu/half.h"

typedef struct ReduceOp {
	int64_t bytes, acc_bytes, to_bytes; /* of an element, of an accumulator, of a result */
	void (*init)(void *acc, int64_t n);
	void (*row)(void *acc, const void *x, int64_t n);   /* joins n elements to *acc */
	void (*cols)(void *acc, const void *x, int64_t n);  /* joins x[i] to acc[i] */
	void (*merge)(void *acc, const void *part, int64_t n);
	void (*store)(void *y, const void *acc, int64_t n, int64_t count);
} ReduceOp;

enum { COLS = 256, ROW_PIECE = 8192, PARTIALS = 8192, CHUNK_MIN = 4096 };

/* The kept and reduced dims of the merged shape without the last one, each with x's strides. */
typedef struct Reduction {
	int kept_rank, red_rank;
	int64_t kept[K_MAX_RANK], kept_stride[K_MAX_RANK], red[K_MAX_RANK], red_stride[K_MAX_RANK];
	int64_t n;      /* length of a contiguous piece */
	bool last_kept; /* the last dim is kept, so pieces are columns; else they are reduced rows */
	int64_t outputs, rows, chunks; /* results; pieces of each; chunks of these pieces */
} Reduction;

static Reduction reduction_plan(int rank, const int64_t *dim, unsigned axes)
{
	Reduction r = {.n = 1, .last_kept = false};
	int64_t d[K_MAX_RANK], s[K_MAX_RANK];
	bool red[K_MAX_RANK];
	int m = axis_runs(rank, dim, axes, d, s, red);
	if (m) {
		r.n = d[m - 1];
		r.last_kept = !red[m - 1];
	}
	for (int i = 0; i < m - 1; i++)
		if (red[i])
			r.red[r.red_rank] = d[i], r.red_stride[r.red_rank++] = s[i];
		else
			r.kept[r.kept_rank] = d[i], r.kept_stride[r.kept_rank++] = s[i];
	r.outputs = numel(r.kept_rank, r.kept) * (r.last_kept ? r.n : 1);
	r.rows = numel(r.red_rank, r.red);
	if (!r.last_kept) { /* long rows count as several pieces */
		r.red[r.red_rank] = ceil_div(r.n, ROW_PIECE);
		r.red_stride[r.red_rank++] = ROW_PIECE;
		r.rows *= ceil_div(r.n, ROW_PIECE);
	}
	int64_t total = r.rows * (r.last_kept ? r.n : MIN(r.n, ROW_PIECE));
	r.chunks = MAX(1, MIN(MIN(r.rows, PARTIALS / MAX(1, r.outputs)), total / CHUNK_MIN));
	return r;
}

/* Reduces the pieces [from, to) of one kept index, columns [c0, c0 + n), or of one result of rows. */
static void reduce_part(const ReduceOp *op, const Reduction *r, void *acc, const char *x, int64_t c0,
	int64_t n, int64_t from, int64_t to)
{
	int64_t at[K_MAX_RANK];
	op->init(acc, n);
	if (from == to) /* nothing to reduce, so there is no first index */
		return;
	unravel(from, r->red_rank, r->red, at);
	int64_t o = offset_of(r->red_rank, at, r->red_stride);
	int last = r->red_rank - 1;
	for (int64_t i = from; i < to; i++) {
		if (r->last_kept && last >= 0 && at[last] + ROWS_EARLY < r->red[last])
			fetch_early(x + (o + c0 + ROWS_EARLY * r->red_stride[last]) * op->bytes, n * op->bytes);
		if (r->last_kept)
			op->cols(acc, x + (o + c0) * op->bytes, n);
		else
			op->row(acc, x + o * op->bytes, MIN(ROW_PIECE, r->n - at[r->red_rank - 1] * ROW_PIECE));
		o = advance(r->red_rank, r->red, r->red_stride, at, o);
	}
}

static void reduce(const ReduceOp *op, void *y, const void *x, int rank, const int64_t *dim, unsigned axes)
{
	Reduction r = reduction_plan(rank, dim, axes);
	double partial[PARTIALS]; /* [chunk][output], of any accumulator type */
	int64_t count = numel(rank, dim) / MAX(1, r.outputs);
	int64_t width = r.last_kept ? r.n : 1, blocks = ceil_div(width, COLS);
	int64_t groups = width ? r.outputs / width * blocks : 0;
	if (r.outputs == 0)
		return;
	if (count == 0 || numel(rank, dim) == 0)
		r.rows = 0, r.chunks = 1;
	#pragma omp parallel for schedule(static) if (r.outputs * count > PARALLEL_MIN)
	for (int64_t t = 0; t < groups * r.chunks; t++) {
		int64_t chunk = t / groups, g = t % groups, c0 = g % blocks * COLS, n = MIN(COLS, width - c0);
		int64_t at[K_MAX_RANK];
		double acc[COLS];
		unravel(g / blocks, r.kept_rank, r.kept, at);
		const char *from = (const char *)x + offset_of(r.kept_rank, at, r.kept_stride) * op->bytes;
		reduce_part(op, &r, acc, from, c0, n, r.rows * chunk / r.chunks, r.rows * (chunk + 1) / r.chunks);
		int64_t o = g / blocks * width + c0;
		if (r.chunks == 1)
			op->store((char *)y + o * op->to_bytes, acc, n, count);
		else
			memcpy((char *)partial + (chunk * r.outputs + o) * op->acc_bytes, acc,
				(size_t)(n * op->acc_bytes));
	}
	if (r.chunks == 1)
		return;
	for (int64_t c = 1; c < r.chunks; c++)
		op->merge(partial, (char *)partial + c * r.outputs * op->acc_bytes, r.outputs);
	op->store(y, partial, r.outputs, count);
}

/* Types of accumulators, and the mean from an accumulated sum, which integers truncate. */
#define FLOAT_ACC(T, t) typedef double Acc_##t; \
	static T mean_of_##t(double s, int64_t n) { return (T)(s / (double)n); }
#define SIGNED_ACC(T, t) typedef uint64_t Acc_##t; \
	static T mean_of_##t(uint64_t s, int64_t n) { return (T)(n ? (int64_t)s / n : 0); }
#define UNSIGNED_ACC(T, t) typedef uint64_t Acc_##t; \
	static T mean_of_##t(uint64_t s, int64_t n) { return (T)(n ? s / (uint64_t)n : 0); }
K_FLOATS(FLOAT_ACC)
FLOAT_ACC(float, bf16)
FLOAT_ACC(float, f16)
SIGNED_ACC(int64_t, i64)
SIGNED_ACC(int32_t, i32)
SIGNED_ACC(int16_t, i16)
SIGNED_ACC(int8_t, i8)
UNSIGNED_ACC(uint64_t, u64)
UNSIGNED_ACC(uint32_t, u32)
UNSIGNED_ACC(uint16_t, u16)
UNSIGNED_ACC(uint8_t, u8)

#define TEMPLATE "kernels/cpu/reduce.h"
#include "kernels/cpu/each_half.h"
#define TEMPLATE "kernels/cpu/reduce.h"
#include "kernels/cpu/each_number.h"

static void put_f32(void *y, const void *acc, int64_t n, int64_t count)
{
	float *to = y;
	const double *a = acc;
	(void)count;
	for (int64_t i = 0; i < n; i++)
		to[i] = (float)a[i];
}

#define SUM_TO_F32(T, W, t) \
void k_reduce_sum_##t##_f32(W *y, const T *x, int rank, const int64_t *dim, unsigned axes, void *work) \
{ \
	static const ReduceOp kernel = {sizeof(T), sizeof(double), sizeof(W), sum_init_##t, sum_row_##t, sum_cols_##t, \
		sum_merge_##t, put_f32}; \
	(void)work; \
	reduce(&kernel, y, x, rank, dim, axes); \
}
K_HALVES(SUM_TO_F32)
