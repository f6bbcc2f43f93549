/* kernels/cpu/pool_max.h: max pooling for elements of type T; pool.c includes it once per number type. */

/* One output position of one sample, channels [c0, c0 + w). */
static void CONCAT(max_at, SUFFIX)(T *y, int32_t *idx, const T *x, const Plane *p, int64_t q, int64_t c0,
	int64_t w)
{
	WIDE best[LANES];
	int32_t at[LANES];
	bool first = true;
	Walk walk = walk_from(p->p, p->p->out, q);
	for (int64_t k = 0; k < p->kernel; k++, walk_on(p->p, &walk)) {
		int64_t i = pool_input_at(p->p, &walk);
		if (i < 0)
			continue;
		const T *from = x + i * p->c + c0;
		for (int64_t j = 0; j < w; j++) {
			WIDE v = LOAD(from[j]);
			bool wins = first || v > best[j] || is_nan(v);
			best[j] = wins ? v : best[j];
			at[j] = wins ? (int32_t)i : at[j];
		}
		first = false;
	}
	for (int64_t j = 0; j < w; j++) {
		y[q * p->c + c0 + j] = STORE(first ? CONCAT(LOWEST, SUFFIX) : best[j]);
		if (idx)
			idx[q * p->c + c0 + j] = first ? -1 : at[j];
	}
}

void CONCAT(k_max_pool, SUFFIX)(T *y, int32_t *idx, const T *x, const KPool *pool)
{
	Plane p = plane_of(pool);
	#pragma omp parallel for schedule(static) if (p.n * p.out * p.c > PARALLEL_MIN)
	for (int64_t t = 0; t < p.n * p.out; t++) {
		int64_t n = t / p.out, yo = n * p.out * p.c;
		for (int64_t c = 0; c < p.c; c += LANES)
			CONCAT(max_at, SUFFIX)(y + yo, idx ? idx + yo : NULL, x + n * p.in * p.c, &p, t % p.out, c,
				MIN(LANES, p.c - c));
	}
}
#undef T
#undef SUFFIX
