/* kernels/cpu/scan.h: ops that run along one axis of numbers of type T; scan.c includes it once per dtype. */

/* Whether a comes before b in the order of topk; NaN comes before all numbers. */
INLINE bool CONCAT(better, SUFFIX)(T a, T b, bool largest)
{
	if (is_nan(a) || is_nan(b))
		return is_nan(a) && !is_nan(b);
	return largest ? a > b : a < b;
}

void CONCAT(k_cumsum, SUFFIX)(T *y, const T *x, int64_t outer, int64_t n, int64_t inner, bool exclusive,
	bool reverse)
{
	#pragma omp parallel for schedule(static) if (outer * n * inner > PARALLEL_MIN)
	for (int64_t r = 0; r < outer * inner; r++) {
		int64_t base = r / inner * n * inner + r % inner;
		T sum = 0;
		for (int64_t i = 0; i < n; i++) {
			int64_t at = base + (reverse ? n - 1 - i : i) * inner;
			T v = x[at];
			y[at] = exclusive ? sum : (T)(sum + v);
			sum = (T)(sum + v);
		}
	}
}

static void CONCAT(arg, SUFFIX)(int64_t *y, const T *x, int64_t outer, int64_t n, int64_t inner, bool last,
	bool largest)
{
	#pragma omp parallel for schedule(static) if (outer * n * inner > PARALLEL_MIN)
	for (int64_t r = 0; r < outer * inner; r++) {
		const T *from = x + r / inner * n * inner + r % inner;
		int64_t best = 0;
		for (int64_t i = 1; i < n; i++) {
			bool wins = CONCAT(better, SUFFIX)(from[i * inner], from[best * inner], largest);
			bool loses = CONCAT(better, SUFFIX)(from[best * inner], from[i * inner], largest);
			if (wins || (last && !loses))
				best = i;
		}
		y[r] = best;
	}
}

void CONCAT(k_argmax, SUFFIX)(int64_t *y, const T *x, int64_t outer, int64_t n, int64_t inner, bool last)
{
	CONCAT(arg, SUFFIX)(y, x, outer, n, inner, last, true);
}

void CONCAT(k_argmin, SUFFIX)(int64_t *y, const T *x, int64_t outer, int64_t n, int64_t inner, bool last)
{
	CONCAT(arg, SUFFIX)(y, x, outer, n, inner, last, false);
}

/* Each pick is the best of the elements that come after the previous pick in the order (value, then index). */
void CONCAT(k_topk, SUFFIX)(T *y, int64_t *idx, const T *x, int64_t outer, int64_t n, int64_t inner,
	int64_t k, bool largest)
{
	#pragma omp parallel for schedule(static) if (outer * n * inner > PARALLEL_MIN)
	for (int64_t r = 0; r < outer * inner; r++) {
		const T *from = x + r / inner * n * inner + r % inner;
		int64_t to = r / inner * k * inner + r % inner, prev = -1;
		for (int64_t j = 0; j < k; j++) {
			int64_t best = -1;
			for (int64_t i = 0; i < n; i++) {
				T v = from[i * inner];
				bool open = prev < 0 || CONCAT(better, SUFFIX)(from[prev * inner], v, largest)
					|| (i > prev && !CONCAT(better, SUFFIX)(v, from[prev * inner], largest));
				if (open && (best < 0 || CONCAT(better, SUFFIX)(v, from[best * inner], largest)))
					best = i;
			}
			y[to + j * inner] = from[best * inner];
			idx[to + j * inner] = best;
			prev = best;
		}
	}
}

void CONCAT(k_in_range, SUFFIX)(T *y, const T *x, int64_t n, double low, double high, const char *what)
{
	#pragma omp parallel for schedule(static) if (n > PARALLEL_MIN)
	for (int64_t i = 0; i < n; i++) {
		double v = (double)x[i];
		bool good = v >= low && v <= high;
		if (!good)
			k_bad_input("%s %.10g at position %lld is outside %g..%g", what, v != v ? (double)NAN : v, (long long)i,
				low, high);
		y[i] = good ? x[i] : (T)low;
	}
}

void CONCAT(k_iota, SUFFIX)(T *y, int rank, const int64_t *dim, int axis, double start, double step)
{
	int64_t n = rank ? dim[axis] : 1, inner = rank ? numel(rank - axis - 1, dim + axis + 1) : 1;
	int64_t total = numel(rank, dim);
	for (int64_t i = 0; i < total; i++)
		y[i] = (T)(start + step * (double)(i / inner % n));
}
#undef T
#undef SUFFIX
