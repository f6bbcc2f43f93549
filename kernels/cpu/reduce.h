/* kernels/cpu/reduce.h: the inner loops of reductions of elements of type T; reduce.c includes it once per dtype.
 * Sums and products of floats run in f64, those of integers in 64 bits that wrap. */
#define ACC CONCAT(Acc, SUFFIX)

#define REDUCE(op, A, start, step, finish) \
static void CONCAT(op##_init, SUFFIX)(void *acc, int64_t n) \
{ \
	A *a = acc; \
	for (int64_t i = 0; i < n; i++) \
		a[i] = start; \
} \
static void CONCAT(op##_cols, SUFFIX)(void *acc, const void *x, int64_t n) \
{ \
	A *restrict a = acc; \
	const T *restrict from = x; \
	for (int64_t i = 0; i < n; i++) { \
		A s = a[i], v = (A)LOAD(from[i]); \
		a[i] = step; \
	} \
} \
static void CONCAT(op##_merge, SUFFIX)(void *acc, const void *part, int64_t n) \
{ \
	A *a = acc; \
	const A *from = part; \
	for (int64_t i = 0; i < n; i++) { \
		A s = a[i], v = from[i]; \
		a[i] = step; \
	} \
} \
static void CONCAT(op##_store, SUFFIX)(void *y, const void *acc, int64_t n, int64_t count) \
{ \
	T *to = y; \
	const A *a = acc; \
	(void)count; \
	for (int64_t i = 0; i < n; i++) { \
		A s = a[i]; \
		to[i] = STORE((WIDE)(finish)); \
	} \
}

#define REDUCE_ROW(op, A, clause, start, step) \
static void CONCAT(op##_row, SUFFIX)(void *acc, const void *x, int64_t n) \
{ \
	const T *from = x; \
	A s = start; \
	_Pragma(clause) \
	for (int64_t i = 0; i < n; i++) { \
		A v = (A)LOAD(from[i]); \
		s = step; \
	} \
	CONCAT(op##_merge, SUFFIX)(acc, &s, 1); \
}

/* max and min, where a NaN wins: 64 lanes along the row, then across the lanes. */
#define REDUCE_ROW_LANES(op) \
static void CONCAT(op##_row, SUFFIX)(void *acc, const void *x, int64_t n) \
{ \
	WIDE lane[64]; \
	CONCAT(op##_init, SUFFIX)(lane, 64); \
	for (int64_t i = 0; i < n; i += 64) \
		CONCAT(op##_cols, SUFFIX)(lane, (const T *)x + i, MIN(64, n - i)); \
	for (int i = 0; i < 64; i++) \
		CONCAT(op##_merge, SUFFIX)(acc, lane + i, 1); \
}

REDUCE(sum, ACC, 0, s + v, s)
REDUCE_ROW(sum, ACC, "omp simd reduction(+:s)", 0, s + v)
REDUCE(mean, ACC, 0, s + v, CONCAT(mean_of, SUFFIX)(s, count))
REDUCE_ROW(mean, ACC, "omp simd reduction(+:s)", 0, s + v)
REDUCE(prod, ACC, 1, s * v, s)
REDUCE_ROW(prod, ACC, "omp simd reduction(*:s)", 1, s * v)
REDUCE(max, WIDE, CONCAT(LOWEST, SUFFIX), v > s || is_nan(v) ? v : s, s)
REDUCE_ROW_LANES(max)
REDUCE(min, WIDE, CONCAT(HIGHEST, SUFFIX), v < s || is_nan(v) ? v : s, s)
REDUCE_ROW_LANES(min)

#define REDUCE_KERNEL(op, A) \
void CONCAT(k_reduce_##op, SUFFIX)(T *y, const T *x, int rank, const int64_t *dim, unsigned axes, \
	void *work) \
{ \
	static const ReduceOp kernel = {sizeof(T), sizeof(A), sizeof(T), CONCAT(op##_init, SUFFIX), \
		CONCAT(op##_row, SUFFIX), CONCAT(op##_cols, SUFFIX), CONCAT(op##_merge, SUFFIX), \
		CONCAT(op##_store, SUFFIX)}; \
	(void)work; \
	reduce(&kernel, y, x, rank, dim, axes); \
}
REDUCE_KERNEL(sum, ACC)
REDUCE_KERNEL(mean, ACC)
REDUCE_KERNEL(prod, ACC)
REDUCE_KERNEL(max, WIDE)
REDUCE_KERNEL(min, WIDE)

#undef REDUCE
#undef REDUCE_ROW
#undef REDUCE_ROW_LANES
#undef REDUCE_KERNEL
#undef ACC
#undef T
#undef SUFFIX
