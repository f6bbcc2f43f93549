/* kernels/cpu/conv_grad_w_amx.c: weight gradients of bf16 channels-last convolutions of one or two spatial dims, on
 * tile units.
 *
 * dw[o][tap][c] = the sum over positions of dy[position][o] x[what the position meets at the tap][c], which is a
 * product of dy^T and of rows of patches.  The product packs these rows from where they lie in x, so no patch is in
 * memory.  Sums are f32, and their order depends on shapes alone.
 *
 * Returns NULL for groups, three spatial dims, other dtypes, channels that are no multiple of 32 and few outputs;
 * conv_patch.c serves those. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv_axis.h"
#include "kernels/cpu/conv_sums.h"
#include "kernels/cpu/matmul_amx.h"
#include "kernels/cpu/prim.h"

#if defined HAS_AMX

typedef struct Source {
	const KConvDesc *d;
	ConvAxis high, wide;
	const uint16_t *x;
} Source;

static Source source_of(const KConvDesc *d, const void *x)
{
	return (Source){d, conv_axis(d, d->rank - 2, false), conv_axis(d, d->rank - 1, false), x};
}

/* Where x has what positions [k, k + n) of dy meet at a tap. */
static void find(const void *from, int64_t k, int64_t n, int64_t tap, const uint16_t **row)
{
	const Source *s = from;
	int64_t column = k % s->wide.to, line = k / s->wide.to, image = line / s->high.to;
	int64_t i = tap / s->wide.taps, j = tap % s->wide.taps;
	line %= s->high.to;
	int64_t h = conv_axis_met(&s->high, line, i);
	for (int64_t r = 0; r < n; r++) {
		int64_t w = conv_axis_met(&s->wide, column, j);
		row[r] = h < 0 || w < 0 ? NULL : s->x + ((image * s->high.from + h) * s->wide.from + w) * s->d->c;
		if (++column == s->wide.to) {
			column = 0;
			if (++line == s->high.to) {
				line = 0;
				image++;
			}
			h = conv_axis_met(&s->high, line, i);
		}
	}
}

static KMatmulDesc product_of(const KConvDesc *d)
{
	int64_t columns = numel(d->rank, d->kernel) * d->c;
	return (KMatmulDesc){.dtype = K_BF16, .to = K_F32, .m = d->o, .n = columns, .k = d->n * numel(d->rank, d->out),
		.ta = true, .lda = d->o, .ldb = columns, .ldy = columns};
}

static int64_t sums_bytes(const KMatmulDesc *m) { return round_up(m->m * m->n * 4, 64); }

static void run(KPrim *p, PrimArgs *t, char *work)
{
	const KConvDesc *d = &p->conv;
	Source s = source_of(d, t->at[1]);
	float *sums = (float *)(void *)work;
	matmul_amx_gathered(&p->matmul, sums, t->at[2], &(Gathered){d->c, find, &s}, work + sums_bytes(&p->matmul));
	int64_t width = p->matmul.n;
	#pragma omp parallel for schedule(static)
	for (int64_t o = 0; o < d->o; o++)
		put_sums((char *)t->at[0] + o * width * type_bytes(d->to), d->to, sums + o * width, d->c, width / d->c);
}

KPrim *conv_grad_w_amx_create(const KConvDesc *d)
{
	if (d->dtype != K_BF16 || d->rank > 2 || d->layout != 1 || d->w_layout || d->group != 1 || d->c % PANEL ||
		d->o < PANEL)
		return NULL;
	KMatmulDesc m = product_of(d);
	m.work_bytes = d->work_bytes - sums_bytes(&m);
	int64_t bytes = matmul_amx_gathered_work(&m);
	if (bytes < 0)
		return NULL;
	KPrim *p = prim_new("own:amx");
	p->conv = *d;
	p->matmul = m;
	p->work = sums_bytes(&m) + bytes;
	p->run = run;
	return p;
}

#else
KPrim *conv_grad_w_amx_create(const KConvDesc *d)
{
	(void)d;
	return NULL;
}
#endif
