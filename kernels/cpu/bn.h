/* kernels/cpu/bn.h: per-channel statistics, of type WIDE, of elements of type T; bn.c includes it once per type.  Rows
 * of 16-bit elements are widened where they are read, into a buffer that stays in cache. */
#define ROWS CONCAT(rows, SUFFIX)

/* Joins the mean and the sum of squared deviations of nb elements to those of n (Chan, Golub and LeVeque 1979). */
INLINE void CONCAT(fold, SUFFIX)(double *mean, double *m2, double n, double mean_b, double m2_b, double nb)
{
	double d = mean_b - *mean, all = n + nb;
	*mean += d * nb / all;
	*m2 += m2_b + d * d * n * nb / all;
}

/* Statistics of rows [from, to) of channels [c0, c0 + w), w <= TILE, by blocks that stay in cache and are read
 * twice. */
static void CONCAT(stats_tile, SUFFIX)(double *mean, double *m2, const T *x, int64_t c, int64_t c0, int64_t w,
	int64_t from, int64_t to)
{
	WIDE wide[BLOCK * TILE];
	for (int64_t r = from; r < to; r += BLOCK) {
		int64_t rows = MIN(BLOCK, to - r), step = c;
		WIDE s[TILE] = {0}, q[TILE] = {0};
		const WIDE *at = ROWS(wide, x + r * c + c0, rows, w, &step);
		for (int64_t i = 0; i < rows; i++) {
			if (r + i + ROWS_EARLY < to)
				fetch_early(x + (r + i + ROWS_EARLY) * c + c0, w * (int64_t)sizeof *x);
			for (int64_t j = 0; j < w; j++)
				s[j] += at[i * step + j];
		}
		for (int64_t j = 0; j < w; j++)
			s[j] /= (WIDE)rows;
		for (int64_t i = 0; i < rows; i++)
			for (int64_t j = 0; j < w; j++)
				q[j] += (at[i * step + j] - s[j]) * (at[i * step + j] - s[j]);
		for (int64_t j = 0; j < w; j++)
			CONCAT(fold, SUFFIX)(mean + j, m2 + j, (double)(r - from), s[j], q[j], (double)rows);
	}
}

/* Channels last.  work is [chunk][mean, m2][c]. */
static void CONCAT(stats_last, SUFFIX)(WIDE *mean, WIDE *var, const T *x, int64_t rows, int64_t c, double *work)
{
	int64_t tiles = ceil_div(c, TILE), chunks = bn_chunks(rows);
	#pragma omp parallel for schedule(static) if (rows * c > PARALLEL_MIN)
	for (int64_t t = 0; t < tiles * chunks; t++) {
		int64_t k = t / tiles, c0 = t % tiles * TILE, w = MIN(TILE, c - c0);
		double *m = work + 2 * k * c + c0, *q = m + c;
		memset(m, 0, (size_t)w * sizeof *m);
		memset(q, 0, (size_t)w * sizeof *q);
		CONCAT(stats_tile, SUFFIX)(m, q, x, c, c0, w, rows * k / chunks, rows * (k + 1) / chunks);
	}
	#pragma omp parallel for schedule(static) if (chunks * c > FOLDS_MIN)
	for (int64_t i = 0; i < c; i++) {
		double m = 0, q = 0;
		for (int64_t k = 0; k < chunks; k++) {
			int64_t a = rows * k / chunks, b = rows * (k + 1) / chunks;
			CONCAT(fold, SUFFIX)(&m, &q, (double)a, work[2 * k * c + i], work[(2 * k + 1) * c + i],
				(double)(b - a));
		}
		mean[i] = (WIDE)m;
		var[i] = (WIDE)(q / (double)rows);
	}
}

/* Channels first: x is (n, c, s), so channel i is n runs of s elements. */
static void CONCAT(stats_first, SUFFIX)(WIDE *mean, WIDE *var, const T *x, int64_t n, int64_t c, int64_t s)
{
	#pragma omp parallel for schedule(static) if (n * c * s > PARALLEL_MIN)
	for (int64_t i = 0; i < c; i++) {
		WIDE wide[PIECE];
		double m = 0, q = 0, count = 0;
		for (int64_t b = 0; b < n; b++)
			for (int64_t p = 0; p < s; p += PIECE) {
				int64_t len = MIN(PIECE, s - p), step = 0;
				const WIDE *at = ROWS(wide, x + (b * c + i) * s + p, 1, len, &step);
				double sum = 0, dev = 0;
				#pragma omp simd reduction(+:sum)
				for (int64_t j = 0; j < len; j++)
					sum += at[j];
				sum /= (double)len;
				#pragma omp simd reduction(+:dev)
				for (int64_t j = 0; j < len; j++)
					dev += (at[j] - sum) * (at[j] - sum);
				CONCAT(fold, SUFFIX)(&m, &q, count, sum, dev, (double)len);
				count += (double)len;
			}
		mean[i] = (WIDE)m;
		var[i] = (WIDE)(q / count);
	}
}

void CONCAT(k_bn_stats, SUFFIX)(WIDE *mean, WIDE *var, const T *x, int64_t n, int64_t c, int64_t s, int layout,
	void *work)
{
	if (layout)
		CONCAT(stats_last, SUFFIX)(mean, var, x, n * s, c, work);
	else
		CONCAT(stats_first, SUFFIX)(mean, var, x, n, c, s);
}

/* w <= most; most is a constant once this is inlined, by which the compiler unrolls loops over few channels. */
INLINE void CONCAT(grad_tile, SUFFIX)(int most, double *sd, double *sx, const T *dy, const T *x, const WIDE *mean,
	int64_t c, int64_t w, int64_t from, int64_t to)
{
	WIDE wide_dy[WIDEST], wide_x[WIDEST];
	if (w > most)
		return;
	for (int64_t r = from; r < to; r += BLOCK) {
		int64_t end = MIN(r + BLOCK, to), step = 0;
		WIDE d[WIDEST], q[WIDEST];
		memset(d, 0, (size_t)most * sizeof *d);
		memset(q, 0, (size_t)most * sizeof *q);
		for (int64_t i = r; i < end; i++) {
			const WIDE *g = ROWS(wide_dy, dy + i * c, 1, w, &step), *at = ROWS(wide_x, x + i * c, 1, w, &step);
			if (i + ROWS_EARLY < to) {
				fetch_early(dy + (i + ROWS_EARLY) * c, w * (int64_t)sizeof *dy);
				fetch_early(x + (i + ROWS_EARLY) * c, w * (int64_t)sizeof *x);
			}
			for (int64_t j = 0; j < w; j++) {
				d[j] += g[j];
				q[j] += g[j] * (at[j] - mean[j]);
			}
		}
		for (int64_t j = 0; j < w; j++) {
			sd[j] += d[j];
			sx[j] += q[j];
		}
	}
}

static void CONCAT(grad_last, SUFFIX)(WIDE *sum_dy, WIDE *sum_dy_xhat, const T *dy, const T *x, const WIDE *mean,
	const WIDE *var, int64_t rows, int64_t c, double eps, double *work)
{
	int64_t wide = c <= WIDEST ? WIDEST : TILE, tiles = ceil_div(c, wide), chunks = bn_chunks(rows);
	#pragma omp parallel for schedule(static) if (rows * c > PARALLEL_MIN)
	for (int64_t t = 0; t < tiles * chunks; t++) {
		int64_t k = t / tiles, c0 = t % tiles * wide, w = MIN(wide, c - c0);
		int64_t from = rows * k / chunks, to = rows * (k + 1) / chunks;
		double *d = work + 2 * k * c + c0, *q = d + c;
		memset(d, 0, (size_t)w * sizeof *d);
		memset(q, 0, (size_t)w * sizeof *q);
		if (w <= TILE)
			CONCAT(grad_tile, SUFFIX)(TILE, d, q, dy + c0, x + c0, mean + c0, c, w, from, to);
		else
			CONCAT(grad_tile, SUFFIX)(WIDEST, d, q, dy + c0, x + c0, mean + c0, c, w, from, to);
	}
	#pragma omp parallel for schedule(static) if (chunks * c > FOLDS_MIN)
	for (int64_t i = 0; i < c; i++) {
		double d = 0, q = 0;
		for (int64_t k = 0; k < chunks; k++) {
			d += work[2 * k * c + i];
			q += work[(2 * k + 1) * c + i];
		}
		sum_dy[i] = (WIDE)d;
		sum_dy_xhat[i] = (WIDE)(q / sqrt((double)var[i] + eps));
	}
}

void CONCAT(k_bn_grad_stats, SUFFIX)(WIDE *sum_dy, WIDE *sum_dy_xhat, const T *dy, const T *x, const WIDE *mean,
	const WIDE *var, int64_t n, int64_t c, int64_t s, int layout, double eps, void *work)
{
	if (layout) {
		CONCAT(grad_last, SUFFIX)(sum_dy, sum_dy_xhat, dy, x, mean, var, n * s, c, eps, work);
		return;
	}
	#pragma omp parallel for schedule(static) if (n * c * s > PARALLEL_MIN)
	for (int64_t i = 0; i < c; i++) {
		WIDE wide_dy[PIECE], wide_x[PIECE];
		double d = 0, q = 0, m = mean[i];
		for (int64_t b = 0; b < n; b++)
			for (int64_t p = 0; p < s; p += PIECE) {
				int64_t len = MIN(PIECE, s - p), from = (b * c + i) * s + p, step = 0;
				const WIDE *g = ROWS(wide_dy, dy + from, 1, len, &step);
				const WIDE *at = ROWS(wide_x, x + from, 1, len, &step);
				#pragma omp simd reduction(+:d, q)
				for (int64_t j = 0; j < len; j++) {
					d += g[j];
					q += g[j] * (at[j] - m);
				}
			}
		sum_dy[i] = (WIDE)d;
		sum_dy_xhat[i] = (WIDE)(q / sqrt((double)var[i] + eps));
	}
}
#undef ROWS
#undef T
#undef SUFFIX
