/* kernels/cpu/pool.h: average pooling and both gradients for elements of type T; pool.c includes it once per float
 * type. */

void CONCAT(k_max_pool_grad, SUFFIX)(T *dx, const T *dy, const int32_t *idx, const KPool *pool)
{
	Plane p = plane_of(pool);
	int64_t blocks = ceil_div(p.c, LANES);
	#pragma omp parallel for schedule(static) if (p.n * p.in * p.c > PARALLEL_MIN)
	for (int64_t t = 0; t < p.n * blocks; t++) {
		int64_t c0 = t % blocks * LANES, w = MIN(LANES, p.c - c0);
		T *to = dx + t / blocks * p.in * p.c + c0;
		int64_t yo = t / blocks * p.out * p.c + c0;
		for (int64_t i = 0; i < p.in; i++)
			memset(to + i * p.c, 0, (size_t)w * sizeof(T));
		for (int64_t q = 0; q < p.out; q++)
			for (int64_t j = 0; j < w; j++) {
				int64_t i = idx[yo + q * p.c + j];
				if (i >= 0)
					to[i * p.c + j] += dy[yo + q * p.c + j];
			}
	}
}

void CONCAT(k_avg_pool, SUFFIX)(T *y, const T *x, const KPool *pool)
{
	Plane p = plane_of(pool);
	#pragma omp parallel for schedule(static) if (p.n * p.out * p.c > PARALLEL_MIN)
	for (int64_t t = 0; t < p.n * p.out; t++) {
		int64_t n = t / p.out, q = t % p.out;
		int64_t count = pool_count(pool, q);
		T *to = y + t * p.c;
		memset(to, 0, (size_t)p.c * sizeof(T));
		Walk walk = walk_from(pool, pool->out, q);
		for (int64_t k = 0; k < p.kernel; k++, walk_on(pool, &walk)) {
			int64_t i = pool_input_at(pool, &walk);
			if (i >= 0)
				for (int64_t j = 0; j < p.c; j++)
					to[j] += x[(n * p.in + i) * p.c + j];
		}
		for (int64_t j = 0; j < p.c; j++)
			to[j] /= (T)MAX(1, count);
	}
}

void CONCAT(k_avg_pool_grad, SUFFIX)(T *dx, const T *dy, const KPool *pool)
{
	Plane p = plane_of(pool);
	int64_t blocks = ceil_div(p.c, LANES);
	#pragma omp parallel for schedule(static) if (p.n * p.in * p.c > PARALLEL_MIN)
	for (int64_t t = 0; t < p.n * blocks; t++) {
		int64_t c0 = t % blocks * LANES, w = MIN(LANES, p.c - c0);
		T *to = dx + t / blocks * p.in * p.c + c0;
		for (int64_t i = 0; i < p.in; i++)
			memset(to + i * p.c, 0, (size_t)w * sizeof(T));
		for (int64_t q = 0; q < p.out; q++) {
			const T *from = dy + (t / blocks * p.out + q) * p.c + c0;
			T scale = 1 / (T)MAX(1, pool_count(pool, q));
			Walk walk = walk_from(pool, pool->out, q);
			for (int64_t k = 0; k < p.kernel; k++, walk_on(pool, &walk)) {
				int64_t i = pool_input_at(pool, &walk);
				for (int64_t j = 0; i >= 0 && j < w; j++)
					to[i * p.c + j] += from[j] * scale;
			}
		}
	}
}
#undef T
#undef SUFFIX
