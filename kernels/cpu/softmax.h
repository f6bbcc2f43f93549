/* kernels/cpu/softmax.h: softmax, log-softmax and both gradients for elements of type T; softmax.c includes it once
 * per type. */

/* Returns the largest of n elements and sets *sum to the sum of e^(x - largest). */
static WIDE CONCAT(exp_sum, SUFFIX)(const T *x, int64_t n, double *sum)
{
	double total = 0;
	WIDE m = CONCAT(max_of, SUFFIX)(x, n);
	WIDE shift = m == -(WIDE)INFINITY ? 0 : m;
	for (int64_t p = 0; p < n; p += PIECE) {
		int64_t end = MIN(p + PIECE, n);
		WIDE s = 0;
		#pragma omp simd reduction(+:s)
		for (int64_t i = p; i < end; i++)
			s += CONCAT(wide_exp, SUFFIX)(LOAD(x[i]) - shift);
		total += (double)s;
	}
	*sum = total;
	return shift;
}

static void CONCAT(row, SUFFIX)(T *y, const T *x, int64_t n, bool logarithm)
{
	double sum;
	WIDE m = CONCAT(exp_sum, SUFFIX)(x, n, &sum);
	WIDE scale = (WIDE)(1 / sum), less = (WIDE)log(sum);
	if (logarithm)
		for (int64_t i = 0; i < n; i++)
			y[i] = STORE(LOAD(x[i]) - m - less); /* not m + less, which is m where it is large */
	else
		for (int64_t i = 0; i < n; i++)
			y[i] = STORE(CONCAT(wide_exp, SUFFIX)(LOAD(x[i]) - m) * scale);
}

/* w neighbouring columns at once. */
static void CONCAT(cols, SUFFIX)(T *y, const T *x, int64_t n, int64_t stride, int64_t w, bool logarithm)
{
	WIDE m[LANES], s[LANES] = {0};
	for (int64_t j = 0; j < w; j++)
		m[j] = LOAD(x[j]);
	for (int64_t i = 1; i < n; i++)
		for (int64_t j = 0; j < w; j++)
			m[j] = LOAD(x[i * stride + j]) > m[j] ? LOAD(x[i * stride + j]) : m[j];
	for (int64_t j = 0; j < w; j++)
		m[j] = m[j] == -(WIDE)INFINITY ? 0 : m[j];
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < w; j++)
			s[j] += CONCAT(wide_exp, SUFFIX)(LOAD(x[i * stride + j]) - m[j]);
	for (int64_t j = 0; j < w; j++)
		s[j] = logarithm ? CONCAT(wide_log, SUFFIX)(s[j]) : 1 / s[j];
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < w; j++) {
			WIDE v = LOAD(x[i * stride + j]);
			y[i * stride + j] = STORE(logarithm ? v - m[j] - s[j] : CONCAT(wide_exp, SUFFIX)(v - m[j]) * s[j]);
		}
}

static void CONCAT(softmax, SUFFIX)(T *y, const T *x, int64_t outer, int64_t n, int64_t inner, bool logarithm)
{
	int64_t blocks = ceil_div(inner, LANES);
	#pragma omp parallel for schedule(static) if (outer * n * inner > PARALLEL_MIN)
	for (int64_t t = 0; t < outer * blocks; t++) {
		int64_t j = t % blocks * LANES, at = t / blocks * n * inner + j;
		if (inner == 1)
			CONCAT(row, SUFFIX)(y + at, x + at, n, logarithm);
		else
			CONCAT(cols, SUFFIX)(y + at, x + at, n, inner, MIN(LANES, inner - j), logarithm);
	}
}

/* softmax: dx = y (dy - sum(dy y));  log: dx = dy - e^y sum(dy).  dx may be dy or y. */
static void CONCAT(grad_row, SUFFIX)(T *dx, const T *dy, const T *y, int64_t n, int64_t stride,
	bool logarithm)
{
	double s = 0;
	#pragma omp simd reduction(+:s)
	for (int64_t i = 0; i < n; i++)
		s += (double)LOAD(dy[i * stride]) * (logarithm ? 1 : LOAD(y[i * stride]));
	WIDE sum = (WIDE)s;
	if (logarithm)
		for (int64_t i = 0; i < n; i++)
			dx[i * stride] = STORE(LOAD(dy[i * stride]) - CONCAT(wide_exp, SUFFIX)(LOAD(y[i * stride])) * sum);
	else
		for (int64_t i = 0; i < n; i++)
			dx[i * stride] = STORE(LOAD(y[i * stride]) * (LOAD(dy[i * stride]) - sum));
}

static void CONCAT(softmax_grad, SUFFIX)(T *dx, const T *dy, const T *y, int64_t outer, int64_t n,
	int64_t inner, bool logarithm)
{
	#pragma omp parallel for schedule(static) if (outer * n * inner > PARALLEL_MIN)
	for (int64_t r = 0; r < outer * inner; r++) {
		int64_t at = r / inner * n * inner + r % inner;
		if (inner == 1)
			CONCAT(grad_row, SUFFIX)(dx + at, dy + at, y + at, n, 1, logarithm);
		else
			CONCAT(grad_row, SUFFIX)(dx + at, dy + at, y + at, n, inner, logarithm);
	}
}

void CONCAT(k_softmax, SUFFIX)(T *y, const T *x, int64_t outer, int64_t n, int64_t inner)
{
	CONCAT(softmax, SUFFIX)(y, x, outer, n, inner, false);
}
void CONCAT(k_log_softmax, SUFFIX)(T *y, const T *x, int64_t outer, int64_t n, int64_t inner)
{
	CONCAT(softmax, SUFFIX)(y, x, outer, n, inner, true);
}
void CONCAT(k_softmax_grad, SUFFIX)(T *dx, const T *dy, const T *y, int64_t outer, int64_t n, int64_t inner)
{
	CONCAT(softmax_grad, SUFFIX)(dx, dy, y, outer, n, inner, false);
}
void CONCAT(k_log_softmax_grad, SUFFIX)(T *dx, const T *dy, const T *y, int64_t outer, int64_t n,
	int64_t inner)
{
	CONCAT(softmax_grad, SUFFIX)(dx, dy, y, outer, n, inner, true);
}
#undef T
#undef SUFFIX
