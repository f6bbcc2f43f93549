/* kernels/cpu/move.h: strided copying of elements of type T; move.c includes it once per element size. */

/* One run of n elements along the last dim. */
INLINE void CONCAT(run, SUFFIX)(T *y, int64_t ys, const T *x, int64_t xs, int64_t n)
{
	if (ys == 1 && xs == 1)
		memcpy(y, x, (size_t)n * sizeof(T));
	else if (ys == 1 && xs == 0)
		for (int64_t i = 0; i < n; i++)
			y[i] = x[0];
	else
		for (int64_t i = 0; i < n; i++)
			y[i * ys] = x[i * xs];
}

/* Copies elements [a, a + n) of the last dim for the outer indices [from, to) of all other dims. */
static void CONCAT(rows, SUFFIX)(T *y, const T *x, const Move *m, int64_t from, int64_t to,
	int64_t a, int64_t n)
{
	int last = m->rank - 1;
	int64_t at[K_MAX_RANK];
	unravel(from, last, m->dim, at);
	int64_t xo = offset_of(last, at, m->xs) + a * m->xs[last];
	int64_t yo = offset_of(last, at, m->ys) + a * m->ys[last];
	int64_t at2[K_MAX_RANK];
	memcpy(at2, at, sizeof at);
	for (int64_t i = from; i < to; i++) {
		CONCAT(run, SUFFIX)(y + yo, m->ys[last], x + xo, m->xs[last], n);
		xo = advance(last, m->dim, m->xs, at, xo);
		yo = advance(last, m->dim, m->ys, at2, yo);
	}
}

/* y is contiguous along the last dim, x along tile_dim: copies square tiles, so that both sides use whole cache
 * lines. */
static void CONCAT(tile, SUFFIX)(T *y, const T *x, const Move *m, int64_t task)
{
	enum { SIDE = 64 / sizeof(T) < 16 ? 16 : 64 / sizeof(T) };
	int last = m->rank - 1, j = m->tile_dim;
	int64_t at[K_MAX_RANK], dim[K_MAX_RANK];
	memcpy(dim, m->dim, sizeof dim);
	dim[j] = ceil_div(m->dim[j], TILE_STRIP);
	dim[last] = ceil_div(m->dim[last], SIDE);
	unravel(task, m->rank, dim, at);
	int64_t j0 = at[j] * TILE_STRIP, j1 = MIN(j0 + TILE_STRIP, m->dim[j]);
	int64_t l0 = at[last] * SIDE, ln = MIN(SIDE, m->dim[last] - l0);
	at[j] = 0;
	at[last] = 0;
	const T *from = x + offset_of(m->rank, at, m->xs) + l0 * m->xs[last];
	T *to = y + offset_of(m->rank, at, m->ys) + l0;
	int64_t xs = m->xs[last], ys = m->ys[j];
	for (int64_t a = j0; a < j1; a += SIDE) {
		int64_t an = MIN(SIDE, j1 - a);
		if (an == SIDE && ln == SIDE)
			for (int r = 0; r < SIDE; r++)
				for (int c = 0; c < SIDE; c++)
					to[(a + r) * ys + c] = from[a + r + c * xs];
		else
			for (int64_t r = 0; r < an; r++)
				for (int64_t c = 0; c < ln; c++)
					to[(a + r) * ys + c] = from[a + r + c * xs];
	}
}

static void CONCAT(move, SUFFIX)(T *y, const T *x, const Move *m)
{
	enum { SIDE = 64 / sizeof(T) < 16 ? 16 : 64 / sizeof(T) };
	int last = m->rank - 1;
	int64_t total = numel(m->rank, m->dim), n = m->dim[last];
	if (m->tile_dim >= 0) {
		int64_t tasks = total / n / m->dim[m->tile_dim] * ceil_div(n, SIDE)
			* ceil_div(m->dim[m->tile_dim], TILE_STRIP);
		#pragma omp parallel for schedule(static) if (total > PARALLEL_MIN)
		for (int64_t t = 0; t < tasks; t++)
			CONCAT(tile, SUFFIX)(y, x, m, t);
		return;
	}
	/* tasks of about equal size: long runs are cut, short ones bunched */
	int64_t outer = total / n, part = MIN(n, (int64_t)PARALLEL_MIN * 4), parts = ceil_div(n, part);
	int64_t bunch = MAX(1, PARALLEL_MIN / n), bunches = ceil_div(outer, bunch);
	#pragma omp parallel for schedule(static) if (total > PARALLEL_MIN)
	for (int64_t t = 0; t < bunches * parts; t++) {
		int64_t b = t / parts * bunch, a = t % parts * part;
		CONCAT(rows, SUFFIX)(y, x, m, b, MIN(b + bunch, outer), a, MIN(part, n - a));
	}
}

/* Pads by the modes that read elements of x again: an index map for each dim. */
static void CONCAT(pad, SUFFIX)(T *y, const T *x, int rank, const int64_t *dim, const int64_t *xdim,
	const int64_t *before, KPadMode mode)
{
	int64_t xs[K_MAX_RANK], total = numel(rank, dim), n = dim[rank - 1];
	strides_of(rank, xdim, xs);
	#pragma omp parallel for schedule(static) if (total > PARALLEL_MIN)
	for (int64_t r = 0; r < total / n; r++) {
		int64_t at[K_MAX_RANK], from = 0;
		unravel(r, rank - 1, dim, at);
		for (int d = 0; d < rank - 1; d++)
			from += pad_source(at[d] - before[d], xdim[d], mode) * xs[d];
		for (int64_t i = 0; i < n; i++)
			y[r * n + i] = x[from + pad_source(i - before[rank - 1], xdim[rank - 1], mode)];
	}
}
#undef T
#undef SUFFIX
