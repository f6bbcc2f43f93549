/* kernels/cpu/norm_half.h: norms of 16-bit rows of at most ROW elements by the f32 functions; norm.c includes it once
 * per type. */
#define WIDEN CONCAT(widen, SUFFIX)
#define NARROW CONCAT(narrow, SUFFIX)

/* wx = to = wx + b, rounded; wb is scratch for a row. */
static void CONCAT(add_wide_row, SUFFIX)(T *to, float *wx, const T *b, float *wb, int64_t n)
{
	WIDEN(wb, b, n);
	add_row_f32(wx, wx, wb, n);
	NARROW(to, wx, n);
	WIDEN(wx, to, n);
}

void CONCAT(k_layer_norm, SUFFIX)(T *y, float *mean, float *rstd, T *s, const T *x, const T *w, const T *b, const T *r,
	int64_t rows, int64_t cols, double eps)
{
	if (cols > ROW) {
		CONCAT(long_layer_norm, SUFFIX)(y, mean, rstd, s, x, w, b, r, rows, cols, eps);
		return;
	}
	#pragma omp parallel if (rows * cols > PARALLEL_MIN)
	{
		float wx[ROW], wy[ROW], ww[ROW], wb[ROW];
		WIDEN(ww, w, w ? cols : 0);
		WIDEN(wb, b, b ? cols : 0);
		#pragma omp for schedule(static)
		for (int64_t i = 0; i < rows; i++) {
			WIDEN(wx, x + i * cols, cols);
			if (r)
				CONCAT(add_wide_row, SUFFIX)(s + i * cols, wx, r + i * cols, wy, cols);
			layer_row_f32(wy, mean ? mean + i : NULL, rstd ? rstd + i : NULL, wx, w ? ww : NULL, b ? wb : NULL,
				cols, eps);
			NARROW(y + i * cols, wy, cols);
		}
	}
}

void CONCAT(k_rms_norm, SUFFIX)(T *y, float *rstd, T *s, const T *x, const T *w, const T *r, int64_t rows,
	int64_t cols, double eps)
{
	if (cols > ROW) {
		CONCAT(long_rms_norm, SUFFIX)(y, rstd, s, x, w, r, rows, cols, eps);
		return;
	}
	#pragma omp parallel if (rows * cols > PARALLEL_MIN)
	{
		float wx[ROW], wy[ROW], ww[ROW];
		WIDEN(ww, w, w ? cols : 0);
		#pragma omp for schedule(static)
		for (int64_t i = 0; i < rows; i++) {
			WIDEN(wx, x + i * cols, cols);
			if (r)
				CONCAT(add_wide_row, SUFFIX)(s + i * cols, wx, r + i * cols, wy, cols);
			rms_row_f32(wy, rstd ? rstd + i : NULL, wx, w ? ww : NULL, cols, eps);
			NARROW(y + i * cols, wy, cols);
		}
	}
}

/* One chunk of rows, of either norm; partial sums stand as norm.h keeps them. */
static void CONCAT(grad_chunk, SUFFIX)(T *dx, float *pw, float *pb, const T *dy, const T *x, const float *w,
	const float *mean, const float *rstd, const T *ds, int64_t rows, int64_t cols)
{
	float wx[ROW], wdy[ROW], wdx[ROW];
	for (int64_t r = 0; r < rows; r++) {
		WIDEN(wx, x + r * cols, cols);
		WIDEN(wdy, dy + r * cols, cols);
		grad_row_f32(dx ? wdx : NULL, pw, pb, wdy, wx, w, mean ? mean[r] : 0, rstd[r], cols, mean != NULL);
		NARROW(dx + r * cols, wdx, dx ? cols : 0);
		WIDEN(wdx, dx + r * cols, dx && ds ? cols : 0);
		if (dx && ds)
			CONCAT(add_wide_row, SUFFIX)(dx + r * cols, wdx, ds + r * cols, wx, cols);
	}
}

static void CONCAT(short_norm_grad, SUFFIX)(T *dx, void *dw, void *db, bool wide, const T *dy, const T *x, const T *w,
	const float *mean, const float *rstd, const T *ds, int64_t rows, int64_t cols, float *work)
{
	int64_t chunks = kwork_norm_chunks(rows);
	float ww[ROW];
	WIDEN(ww, w, w ? cols : 0);
	#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_MIN)
	for (int64_t c = 0; c < chunks; c++) {
		int64_t from = rows * c / chunks, n = rows * (c + 1) / chunks - from;
		float *pw = dw ? work + 2 * c * cols : NULL, *pb = db ? work + (2 * c + 1) * cols : NULL;
		if (pw)
			memset(pw, 0, (size_t)cols * sizeof(*pw));
		if (pb)
			memset(pb, 0, (size_t)cols * sizeof(*pb));
		CONCAT(grad_chunk, SUFFIX)(dx ? dx + from * cols : NULL, pw, pb, dy + from * cols, x + from * cols,
			w ? ww : NULL, mean ? mean + from : NULL, rstd + from, ds ? ds + from * cols : NULL, n, cols);
	}
	CONCAT(join_chunks, SUFFIX)(dw, db, wide, work, chunks, cols);
}

static void CONCAT(any_norm_grad, SUFFIX)(T *dx, void *dw, void *db, bool wide, const T *dy, const T *x, const T *w,
	const float *mean, const float *rstd, const T *ds, int64_t rows, int64_t cols, float *work)
{
	if (cols > ROW)
		CONCAT(norm_grad, SUFFIX)(dx, dw, db, wide, dy, x, w, mean, rstd, ds, rows, cols, work);
	else
		CONCAT(short_norm_grad, SUFFIX)(dx, dw, db, wide, dy, x, w, mean, rstd, ds, rows, cols, work);
}
#undef WIDEN
#undef NARROW
#undef T
#undef SUFFIX
