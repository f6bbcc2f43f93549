/* kernels/cpu/matmul_plain.h: one plain product for elements of type T; matmul_plain.c includes it once per dtype.
 * Each row of y is computed by one thread and the sum over k runs in order, so any number of threads gives equal
 * bits. */
static void CONCAT(rows, SUFFIX)(const KMatmulDesc *d, T *y, const T *a, const T *b, const T *bias)
{
	int64_t as = d->ta ? 1 : d->lda, ak = d->ta ? d->lda : 1, bk = d->tb ? 1 : d->ldb, bn = d->tb ? d->ldb : 1;
	#pragma omp parallel for schedule(static) if (d->m * d->n * d->k > PARALLEL_MIN)
	for (int64_t i = 0; i < d->m; i++) {
		T *row = y + i * d->ldy;
		for (int64_t j = 0; j < d->n && !d->add; j++)
			row[j] = bias ? bias[j] : 0;
		for (int64_t k = 0; k < d->k; k++) {
			T s = a[i * as + k * ak];
			const T *from = b + k * bk;
			for (int64_t j = 0; j < d->n; j++)
				row[j] = (T)(row[j] + s * from[j * bn]);
		}
	}
}

static void CONCAT(run, SUFFIX)(KPrim *p, PrimArgs *t, char *work)
{
	const KMatmulDesc *d = &p->matmul;
	int64_t at[6] = {0};
	int64_t count = numel(d->n_batch, d->batch);
	(void)work;
	for (int64_t i = 0; i < count; i++) {
		unravel(i, d->n_batch, d->batch, at);
		CONCAT(rows, SUFFIX)(d, (T *)t->at[0] + i * d->m * d->ldy,
			(const T *)t->at[1] + offset_of(d->n_batch, at, d->sa),
			(const T *)t->at[2] + offset_of(d->n_batch, at, d->sb), t->at[3]);
	}
}
#undef T
#undef SUFFIX
