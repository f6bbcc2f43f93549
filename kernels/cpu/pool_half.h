/* kernels/cpu/pool_half.h: average pooling and both gradients for 16-bit T; pool.c includes it.  Every result element
 * is summed in f32 and rounded once; a gradient therefore visits, for each input position, the windows over it. */

void CONCAT(k_avg_pool, SUFFIX)(T *y, const T *x, const KPool *pool)
{
	Plane p = plane_of(pool);
	int64_t blocks = ceil_div(p.c, LANES);
	#pragma omp parallel for schedule(static) if (p.n * p.out * p.c > PARALLEL_MIN)
	for (int64_t t = 0; t < p.n * p.out * blocks; t++) {
		int64_t n = t / blocks / p.out, q = t / blocks % p.out, c0 = t % blocks * LANES, w = MIN(LANES, p.c - c0);
		float sum[LANES] = {0}, count = (float)MAX(1, pool_count(pool, q));
		Walk walk = walk_from(pool, pool->out, q);
		for (int64_t k = 0; k < p.kernel; k++, walk_on(pool, &walk)) {
			int64_t i = pool_input_at(pool, &walk);
			for (int64_t j = 0; i >= 0 && j < w; j++)
				sum[j] += LOAD(x[(n * p.in + i) * p.c + c0 + j]);
		}
		for (int64_t j = 0; j < w; j++)
			y[(t / blocks) * p.c + c0 + j] = STORE(sum[j] / count);
	}
}

/* idx is that of max pooling, NULL for average pooling. */
static void CONCAT(pool_grad, SUFFIX)(T *dx, const T *dy, const int32_t *idx, const KPool *pool)
{
	Plane p = plane_of(pool);
	int64_t blocks = ceil_div(p.c, LANES);
	#pragma omp parallel for schedule(static) if (p.n * p.in * p.c > PARALLEL_MIN)
	for (int64_t t = 0; t < p.n * p.in * blocks; t++) {
		int64_t n = t / blocks / p.in, i = t / blocks % p.in, c0 = t % blocks * LANES, w = MIN(LANES, p.c - c0);
		float sum[LANES] = {0};
		Walk walk = walk_from(pool, pool->in, i);
		for (int64_t k = 0; k < p.kernel; k++, walk_on(pool, &walk)) {
			int64_t q = pool_output_at(pool, &walk);
			if (q < 0)
				continue;
			int64_t at = (n * p.out + q) * p.c + c0;
			float scale = idx ? 1 : 1 / (float)MAX(1, pool_count(pool, q));
			if (idx)
				for (int64_t j = 0; j < w; j++)
					sum[j] += idx[at + j] == i ? LOAD(dy[at + j]) : 0;
			else
				for (int64_t j = 0; j < w; j++)
					sum[j] += LOAD(dy[at + j]) * scale;
		}
		for (int64_t j = 0; j < w; j++)
			dx[(t / blocks) * p.c + c0 + j] = STORE(sum[j]);
	}
}

void CONCAT(k_max_pool_grad, SUFFIX)(T *dx, const T *dy, const int32_t *idx, const KPool *pool)
{
	CONCAT(pool_grad, SUFFIX)(dx, dy, idx, pool);
}

void CONCAT(k_avg_pool_grad, SUFFIX)(T *dx, const T *dy, const KPool *pool)
{
	CONCAT(pool_grad, SUFFIX)(dx, dy, NULL, pool);
}
#undef T
#undef SUFFIX
