/* kernels/cpu/spatial.h: the kernels of spatial.c for elements of type T; spatial.c includes it once per float type. */

static void CONCAT(read_point, SUFFIX)(double *g, const T *grid, int64_t point, int rank)
{
	for (int d = 0; d < rank; d++)
		g[d] = (double)grid[point * rank + d];
}

/* The points of sample i from number `first` on. */
static void CONCAT(read_points, SUFFIX)(const KSample *s, const T *grid, int64_t i, int64_t first, Points *p)
{
	double g[3];
	KTaps taps[3];
	p->first = first;
	p->n = MIN(POINTS, s->points - first);
	for (int64_t k = 0; k < p->n; k++) {
		CONCAT(read_point, SUFFIX)(g, grid, i * s->points + first + k, s->rank);
		int total = sample_read(s, g, taps), n = 0;
		for (int t = 0; t < total; t++)
			n += sample_tap(s, taps, t, &p->at[k][n], &p->weight[k][n], NULL);
		p->taps[k] = n;
	}
}

void CONCAT(k_grid_sample, SUFFIX)(T *y, const T *x, const T *grid, const KSample *s)
{
	int64_t plane = numel(s->rank, s->in), runs = ceil_div(s->points, POINTS);
	#pragma omp parallel for schedule(static) if (s->n * s->c * s->points > PARALLEL_MIN)
	for (int64_t r = 0; r < s->n * runs; r++) {
		Points p;
		CONCAT(read_points, SUFFIX)(s, grid, r / runs, r % runs * POINTS, &p);
		for (int64_t c = r / runs * s->c; c < (r / runs + 1) * s->c; c++)
			for (int64_t k = 0; k < p.n; k++) {
				double sum = 0;
				for (int t = 0; t < p.taps[k]; t++)
					sum += p.weight[k][t] * (double)x[c * plane + p.at[k][t]];
				y[c * s->points + p.first + k] = (T)sum;
			}
	}
}

void CONCAT(k_grid_sample_grad_x, SUFFIX)(T *dx, const T *dy, const T *grid, const KSample *s, void *work)
{
	(void)work;
	int64_t plane = numel(s->rank, s->in), blocks = ceil_div(s->c, CHANNELS);
	#pragma omp parallel for schedule(static) if (s->n * s->c * s->points > PARALLEL_MIN)
	for (int64_t b = 0; b < s->n * blocks; b++) {
		int64_t i = b / blocks, c0 = i * s->c + b % blocks * CHANNELS, c1 = MIN(c0 + CHANNELS, (i + 1) * s->c);
		memset(dx + c0 * plane, 0, sizeof(T) * (size_t)((c1 - c0) * plane));
		for (int64_t first = 0; first < s->points; first += POINTS) {
			Points p;
			CONCAT(read_points, SUFFIX)(s, grid, i, first, &p);
			for (int64_t c = c0; c < c1; c++)
				for (int64_t k = 0; k < p.n; k++)
					for (int t = 0; t < p.taps[k]; t++)
						dx[c * plane + p.at[k][t]] += (T)(p.weight[k][t] * (double)dy[c * s->points + first + k]);
		}
	}
}

void CONCAT(k_grid_sample_grad_grid, SUFFIX)(T *dgrid, const T *dy, const T *x, const T *grid, const KSample *s)
{
	int64_t plane = numel(s->rank, s->in);
	#pragma omp parallel for schedule(static) if (s->n * s->c * s->points > PARALLEL_MIN)
	for (int64_t r = 0; r < s->n * s->points; r++) {
		double g[3], weight, slope[3], sum[3] = {0};
		int64_t at, i = r / s->points, point = r % s->points;
		KTaps taps[3];
		CONCAT(read_point, SUFFIX)(g, grid, r, s->rank);
		int total = sample_read(s, g, taps);
		for (int t = 0; t < total; t++) {
			double product = 0; /* of the pixel and dy, over channels */
			if (!sample_tap(s, taps, t, &at, &weight, slope))
				continue;
			for (int64_t c = i * s->c; c < (i + 1) * s->c; c++)
				product += (double)x[c * plane + at] * (double)dy[c * s->points + point];
			for (int d = 0; d < s->rank; d++)
				sum[d] += slope[d] * product;
		}
		for (int d = 0; d < s->rank; d++)
			dgrid[r * s->rank + d] = (T)sum[d];
	}
}

void CONCAT(k_roi_pool, SUFFIX)(T *y, const T *x, const T *rois, const int64_t *ids, const KRoi *r)
{
	int64_t plane = r->h * r->w, bins = r->ph * r->pw;
	#pragma omp parallel for schedule(static) if (r->rois * r->c * bins > PARALLEL_MIN / 16)
	for (int64_t t = 0; t < r->rois * r->c; t++) {
		int64_t roi = t / r->c, image = load_index(ids, roi, 8, r->n);
		double box[4];
		CONCAT(read_point, SUFFIX)(box, rois, roi, 4);
		for (int64_t k = 0; k < bins; k++)
			y[t * bins + k] = (T)CONCAT(roi_value, SUFFIX)(r, box, k, x + (image * r->c + t % r->c) * plane);
	}
}

void CONCAT(k_roi_pool_grad, SUFFIX)(T *dx, const T *dy, const T *x, const T *rois, const int64_t *ids, const KRoi *r,
	void *work)
{
	(void)work;
	int64_t plane = r->h * r->w, bins = r->ph * r->pw;
	#pragma omp parallel for schedule(static) if (r->rois * r->c * bins > PARALLEL_MIN / 16)
	for (int64_t t = 0; t < r->n * r->c; t++) {
		memset(dx + t * plane, 0, sizeof(T) * (size_t)plane);
		for (int64_t roi = 0; roi < r->rois; roi++) {
			double box[4];
			if (load_index(ids, roi, 8, r->n) != t / r->c)
				continue;
			CONCAT(read_point, SUFFIX)(box, rois, roi, 4);
			for (int64_t k = 0; k < bins; k++)
				CONCAT(roi_spread, SUFFIX)(r, box, k, (double)dy[(roi * r->c + t % r->c) * bins + k],
					x + t * plane, dx + t * plane);
		}
	}
}

void CONCAT(k_det, SUFFIX)(T *y, const T *x, int64_t count, int64_t n, void *work)
{
	(void)work;
	#pragma omp parallel for schedule(static) if (count * n * n * n > PARALLEL_MIN)
	for (int64_t m = 0; m < count; m++) {
		double a[K_DET_MAX * K_DET_MAX];
		for (int64_t i = 0; i < n * n; i++)
			a[i] = (double)x[m * n * n + i];
		y[m] = (T)det_eliminate(a, n);
	}
}

void CONCAT(k_det_grad, SUFFIX)(T *dx, const T *dy, const T *x, int64_t count, int64_t n, void *work)
{
	(void)work;
	#pragma omp parallel for schedule(static) if (count * n * n * n > PARALLEL_MIN)
	for (int64_t m = 0; m < count; m++) {
		double a[K_DET_MAX * K_DET_MAX], b[K_DET_MAX * K_DET_MAX], c[K_DET_MAX * K_DET_MAX];
		for (int64_t i = 0; i < n * n; i++)
			a[i] = b[i] = (double)x[m * n * n + i];
		det_cofactors(c, a, b, n);
		for (int64_t i = 0; i < n * n; i++)
			dx[m * n * n + i] = (T)((double)dy[m] * c[i]);
	}
}
#undef T
#undef SUFFIX
