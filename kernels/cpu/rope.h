/* kernels/cpu/rope.h: rotary position embedding for elements of type T; rope.c includes it once per dtype. */
static void CONCAT(rope_row, SUFFIX)(T *y, const T *x, const T *cs, const T *sn, const KRope *r)
{
	int64_t half = r->r / 2;
	float sign = r->inverse ? -1.0f : 1.0f;
	if (r->interleaved)
		for (int64_t i = 0; i < half; i++) {
			float a = LOAD(x[2 * i]), b = LOAD(x[2 * i + 1]), c = LOAD(cs[i]), s = sign * LOAD(sn[i]);
			y[2 * i] = STORE(a * c - b * s);
			y[2 * i + 1] = STORE(b * c + a * s);
		}
	else
		for (int64_t i = 0; i < half; i++) {
			float a = LOAD(x[i]), b = LOAD(x[half + i]), c = LOAD(cs[i]), s = sign * LOAD(sn[i]);
			y[i] = STORE(a * c - b * s);
			y[half + i] = STORE(b * c + a * s);
		}
	for (int64_t i = r->r; i < r->d; i++)
		y[i] = x[i];
}

void CONCAT(k_rope, SUFFIX)(T *y, const T *x, const T *cos, const T *sin, const KRope *r)
{
	int64_t rows = r->b * r->h * r->t, half = r->r / 2;
	Place p = place_of(r->layout, r->h, r->t, r->d, r->pitch);
	#pragma omp parallel for schedule(static) if (rows * r->d > PARALLEL_MIN)
	for (int64_t i = 0; i < rows; i++) {
		int64_t t = r->layout ? i / r->h % r->t : i % r->t, b = i / (r->h * r->t);
		int64_t h = r->layout ? i % r->h : i / r->t % r->h, at = b * p.batch + h * p.head + t * p.row;
		int64_t angle = ((r->cos_batched ? b * r->t : 0) + t) * half;
		CONCAT(rope_row, SUFFIX)(y + at, x + at, cos + angle, sin + angle, r);
	}
}
#undef T
#undef SUFFIX
