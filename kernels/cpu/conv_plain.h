/* kernels/cpu/conv_plain.h: direct convolution loops for elements of type T; conv_plain.c includes it once per dtype.
 * A weight gradient of 16-bit operands may be f32. */

/* Output channel o of sample n: visits every pair of an output position and a kernel position that meets the input. */
static void CONCAT(forward_one, SUFFIX)(const ConvShape *s, int64_t n, int64_t o, T *y, const T *x,
	const T *w, const T *bias)
{
	const KConvDesc *d = s->d;
	int64_t g = o / s->og;
	for (int64_t q = 0; q < s->out; q++) {
		WIDE acc = bias ? LOAD(bias[o]) : 0;
		for (int64_t k = 0; k < s->kernel; k++) {
			int64_t p = conv_input_at(d, q, k);
			for (int64_t i = 0; p >= 0 && i < s->ig; i++)
				acc += LOAD(x[n * s->xn + (g * s->ig + i) * s->xc + p * s->xs])
					* LOAD(w[(o * s->ig + i) * s->kernel + k]);
		}
		y[n * s->yn + o * s->yc + q * s->ys] = STORE(acc);
	}
}

static void CONCAT(forward, SUFFIX)(KPrim *p, PrimArgs *t, char *work)
{
	ConvShape s = conv_shape(&p->conv);
	int64_t tasks = p->conv.n * p->conv.o;
	(void)work;
	#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < tasks; i++)
		CONCAT(forward_one, SUFFIX)(&s, i / p->conv.o, i % p->conv.o, t->at[0], t->at[1], t->at[2], t->at[3]);
}

static void CONCAT(grad_x_one, SUFFIX)(const ConvShape *s, int64_t n, int64_t c, T *dx, const T *dy,
	const T *w, const T *bias)
{
	int64_t g = c / s->ig, i = c % s->ig;
	T *plane = dx + n * s->xn + c * s->xc;
	for (int64_t p = 0; p < s->in; p++) {
		WIDE acc = bias ? LOAD(bias[c]) : 0;
		for (int64_t o = g * s->og; o < (g + 1) * s->og; o++)
			for (int64_t k = s->kernel - 1; k >= 0; k--) { /* output positions in order */
				int64_t q = conv_output_at(s->d, p, k);
				if (q >= 0)
					acc += LOAD(dy[n * s->yn + o * s->yc + q * s->ys])
						* LOAD(w[(o * s->ig + i) * s->kernel + k]);
			}
		plane[p * s->xs] = STORE(acc);
	}
}

static void CONCAT(grad_x, SUFFIX)(KPrim *p, PrimArgs *t, char *work)
{
	ConvShape s = conv_shape(&p->conv);
	int64_t tasks = p->conv.n * p->conv.c;
	(void)work;
	#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < tasks; i++)
		CONCAT(grad_x_one, SUFFIX)(&s, i / p->conv.c, i % p->conv.c, t->at[0], t->at[1], t->at[2], t->at[3]);
}

static void CONCAT(grad_w, SUFFIX)(KPrim *p, PrimArgs *t, char *work)
{
	ConvShape s = conv_shape(&p->conv);
	const KConvDesc *d = &p->conv;
	T *dw = t->at[0];
	float *dw32 = is_half(d->dtype) && d->to == K_F32 ? t->at[0] : NULL;
	const T *x = t->at[1], *dy = t->at[2];
	int64_t tasks = d->o * s.ig;
	(void)work;
	#pragma omp parallel for schedule(static)
	for (int64_t j = 0; j < tasks; j++) {
		int64_t o = j / s.ig, c = o / s.og * s.ig + j % s.ig;
		for (int64_t k = 0; k < s.kernel; k++) {
			WIDE acc = 0;
			for (int64_t n = 0; n < d->n; n++)
				for (int64_t q = 0; q < s.out; q++) {
					int64_t at = conv_input_at(d, q, k);
					if (at >= 0)
						acc += LOAD(x[n * s.xn + c * s.xc + at * s.xs]) * LOAD(dy[n * s.yn + o * s.yc + q * s.ys]);
				}
			if (dw32)
				dw32[j * s.kernel + k] = (float)acc;
			else
				dw[j * s.kernel + k] = STORE(acc);
		}
	}
}
#undef T
#undef SUFFIX
