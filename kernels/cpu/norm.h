/* kernels/cpu/norm.h: layer and RMS norm of elements of type T; norm.c includes it once per float type.  Row sums run
 * in f64; statistics and partial sums have the type that T is computed in. */

/* to[i] = a[i] + b[i]; to may be a or b.  This is a pass of its own over the row: a compiler would contract a sum next
 * to a product into one fused operation, whose bits differ from those of an add. */
static void CONCAT(add_row, SUFFIX)(T *to, const T *a, const T *b, int64_t n)
{
	#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		to[i] = STORE(LOAD(a[i]) + LOAD(b[i]));
}

static void CONCAT(layer_row, SUFFIX)(T *y, WIDE *mean, WIDE *rstd, const T *x, const T *w, const T *b,
	int64_t n, double eps)
{
	double s = 0, q = 0;
	#pragma omp simd reduction(+:s)
	for (int64_t i = 0; i < n; i++)
		s += LOAD(x[i]);
	double m = s / (double)n;
	#pragma omp simd reduction(+:q)
	for (int64_t i = 0; i < n; i++)
		q += (LOAD(x[i]) - m) * (LOAD(x[i]) - m);
	WIDE mt = (WIDE)m, r = (WIDE)(1 / sqrt(q / (double)n + eps));
	if (w && b)
		for (int64_t i = 0; i < n; i++)
			y[i] = STORE((LOAD(x[i]) - mt) * r * LOAD(w[i]) + LOAD(b[i]));
	else
		for (int64_t i = 0; i < n; i++)
			y[i] = STORE((LOAD(x[i]) - mt) * r * (w ? LOAD(w[i]) : 1) + (b ? LOAD(b[i]) : 0));
	if (mean)
		*mean = mt;
	if (rstd)
		*rstd = r;
}

static void CONCAT(rms_row, SUFFIX)(T *y, WIDE *rstd, const T *x, const T *w, int64_t n, double eps)
{
	double q = 0;
	#pragma omp simd reduction(+:q)
	for (int64_t i = 0; i < n; i++)
		q += (double)LOAD(x[i]) * LOAD(x[i]);
	WIDE r = (WIDE)(1 / sqrt(q / (double)n + eps));
	for (int64_t i = 0; i < n; i++)
		y[i] = STORE(LOAD(x[i]) * r * (w ? LOAD(w[i]) : 1));
	if (rstd)
		*rstd = r;
}

LINKAGE void CONCAT(NAME(layer_norm), SUFFIX)(T *y, WIDE *mean, WIDE *rstd, T *s, const T *x, const T *w, const T *b,
	const T *r, int64_t rows, int64_t cols, double eps)
{
	#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_MIN)
	for (int64_t i = 0; i < rows; i++) {
		if (r)
			CONCAT(add_row, SUFFIX)(s + i * cols, x + i * cols, r + i * cols, cols);
		CONCAT(layer_row, SUFFIX)(y + i * cols, mean ? mean + i : NULL, rstd ? rstd + i : NULL,
			(r ? s : x) + i * cols, w, b, cols, eps);
	}
}

LINKAGE void CONCAT(NAME(rms_norm), SUFFIX)(T *y, WIDE *rstd, T *s, const T *x, const T *w, const T *r, int64_t rows,
	int64_t cols, double eps)
{
	#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_MIN)
	for (int64_t i = 0; i < rows; i++) {
		if (r)
			CONCAT(add_row, SUFFIX)(s + i * cols, x + i * cols, r + i * cols, cols);
		CONCAT(rms_row, SUFFIX)(y + i * cols, rstd ? rstd + i : NULL, (r ? s : x) + i * cols, w, cols, eps);
	}
}

/* g = dy w, h = (x - mean) rstd:  dx = rstd (g - [mean g] - h mean(g h));  dw += dy h;  db += dy.
 * RMS norm is the same without the means.  dx may be dy. */
static void CONCAT(grad_row, SUFFIX)(T *dx, WIDE *restrict dw, WIDE *restrict db, const T *dy, const T *x,
	const T *w, WIDE m, WIDE rs, int64_t n, bool centred)
{
	double sg = 0, sh = 0;
	if (dw)
		for (int64_t i = 0; i < n; i++)
			dw[i] += LOAD(dy[i]) * ((LOAD(x[i]) - m) * rs);
	if (db)
		for (int64_t i = 0; i < n; i++)
			db[i] += LOAD(dy[i]);
	if (!dx)
		return;
	if (w) {
		#pragma omp simd reduction(+:sg, sh)
		for (int64_t i = 0; i < n; i++) {
			double g = LOAD(dy[i]) * LOAD(w[i]);
			sg += g;
			sh += g * ((LOAD(x[i]) - m) * rs);
		}
	} else {
		#pragma omp simd reduction(+:sg, sh)
		for (int64_t i = 0; i < n; i++) {
			double g = LOAD(dy[i]);
			sg += g;
			sh += g * ((LOAD(x[i]) - m) * rs);
		}
	}
	WIDE a = centred ? (WIDE)(sg / (double)n) : 0, c = (WIDE)(sh / (double)n);
	for (int64_t i = 0; i < n; i++)
		dx[i] = STORE(rs * (LOAD(dy[i]) * (w ? LOAD(w[i]) : 1) - a - (LOAD(x[i]) - m) * rs * c));
}

static void CONCAT(put_sum, SUFFIX)(void *to, bool wide, int64_t i, WIDE sum)
{
	if (wide)
		((WIDE *)to)[i] = sum;
	else
		((T *)to)[i] = STORE(sum);
}

/* Adds the chunks' sums, in order.  dw and db have the type of sums if wide, else T. */
static void CONCAT(join_chunks, SUFFIX)(void *dw, void *db, bool wide, const WIDE *work, int64_t chunks, int64_t cols)
{
	#pragma omp parallel for schedule(static) if (chunks * cols > PARALLEL_MIN)
	for (int64_t i = 0; i < cols; i++) {
		double sw = 0, sb = 0;
		for (int64_t c = 0; c < chunks; c++) {
			sw += dw ? work[2 * c * cols + i] : 0;
			sb += db ? work[(2 * c + 1) * cols + i] : 0;
		}
		if (dw)
			CONCAT(put_sum, SUFFIX)(dw, wide, i, (WIDE)sw);
		if (db)
			CONCAT(put_sum, SUFFIX)(db, wide, i, (WIDE)sb);
	}
}

/* work is [chunk][dw, db][cols]. */
static void CONCAT(norm_grad, SUFFIX)(T *dx, void *dw, void *db, bool wide, const T *dy, const T *x, const T *w,
	const WIDE *mean, const WIDE *rstd, const T *ds, int64_t rows, int64_t cols, WIDE *work)
{
	int64_t chunks = kwork_norm_chunks(rows);
	#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_MIN)
	for (int64_t c = 0; c < chunks; c++) {
		WIDE *pw = dw ? work + 2 * c * cols : NULL, *pb = db ? work + (2 * c + 1) * cols : NULL;
		if (pw)
			memset(pw, 0, (size_t)cols * sizeof(WIDE));
		if (pb)
			memset(pb, 0, (size_t)cols * sizeof(WIDE));
		for (int64_t r = rows * c / chunks; r < rows * (c + 1) / chunks; r++) {
			CONCAT(grad_row, SUFFIX)(dx ? dx + r * cols : NULL, pw, pb, dy + r * cols, x + r * cols, w,
				mean ? mean[r] : 0, rstd[r], cols, mean != NULL);
			if (dx && ds)
				CONCAT(add_row, SUFFIX)(dx + r * cols, dx + r * cols, ds + r * cols, cols);
		}
	}
	CONCAT(join_chunks, SUFFIX)(dw, db, wide, work, chunks, cols);
}
#undef T
#undef SUFFIX
