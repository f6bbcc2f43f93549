/* tests/unit/kernel_pitch.c: products and losses of rows that are columns of wider ones.
 *
 * What is beside the columns is NaN, so that a kernel that reads it gives NaN, and has to be as it was behind the
 * run. */
#include "tests/unit/kernel_cases.h"

enum { BATCH = 3, M = 37, N = 149, AT = 3, MORE = 11 };

static int bytes_of(KDType t)
{
	return t == K_F64 ? 8 : t == K_F32 ? 4 : 2;
}

/* A matrix in wider rows, and the same by itself. */
typedef struct Wide { void *at; int64_t rows, width, pitch; int size; } Wide;

static Wide wide_alloc(int64_t rows, int64_t width, int size, bool wider)
{
	Wide w = {NULL, rows, width, wider ? width + MORE : width, size};
	w.at = case_wide(rows, w.pitch, size);
	return w;
}

static void *columns(const Wide *w)
{
	return (char *)w->at + (w->pitch > w->width ? AT * w->size : 0);
}

static int64_t start(const Wide *w)
{
	return w->pitch > w->width ? AT : 0;
}

static Wide wide_of(const void *x, int64_t rows, int64_t width, int size, bool wider)
{
	Wide w = wide_alloc(rows, width, size, wider);
	case_put_columns(w.at, w.pitch, start(&w), x, rows, width, size);
	return w;
}

/* The columns; all else has to be what case_wide made of it. */
static void *taken(const Wide *w, const char *name)
{
	void *x, *clean = case_wide(w->rows, w->pitch, w->size);
	case_sync();
	x = case_take_columns(w->at, w->pitch, start(w), w->rows, w->width, w->size);
	case_put_columns(clean, w->pitch, start(w), x, w->rows, w->width, w->size);
	case_equal(name, w->at, clean, w->rows * w->pitch * w->size);
	return x;
}

/* ---- products ---- */

typedef struct Operands { float *a, *b, *bias, *sum; double *want; } Operands;

static Operands operands_of(const KMatmulDesc *d)
{
	int64_t n = d->n_batch ? BATCH : 1;
	return (Operands){case_floats(n * M * d->k, -1, 1), case_floats(d->k * N, -1, 1), case_floats(N, -1, 1),
		case_floats(n * M * N, -9, 9), case_doubles(n * M * N)};
}

static void want_product(const KMatmulDesc *d, const Operands *o)
{
	for (int64_t i = 0; i < (d->n_batch ? BATCH : 1) * M; i++)
		for (int64_t j = 0; j < N; j++) {
			double s = d->add ? o->sum[i * N + j] : d->bias ? o->bias[j] : 0;
			for (int64_t k = 0; k < d->k; k++)
				s += (double)o->a[d->ta ? i / M * M * d->k + k * M + i % M : i * d->k + k]
					* o->b[d->tb ? j * d->k + k : k * N + j];
			o->want[i * N + j] = s;
		}
}

/* flags: 1 a, 2 b, 4 y have wider rows, 8 ta, 16 tb, 32 a batch of a. */
static void check_product(KDType type, KDType to, int64_t k, int flags, bool add, bool bias, int64_t work_bytes)
{
	KMatmulDesc d = {.dtype = type, .to = to, .m = M, .n = N, .k = k, .ta = flags & 8, .tb = flags & 16, .add = add,
		.bias = bias, .n_batch = flags & 32 ? 1 : 0, .work_bytes = work_bytes};
	int64_t n = d.n_batch ? BATCH : 1, ra = d.ta ? k : M, rb = d.tb ? N : k;
	Operands o = operands_of(&d);
	int size = bytes_of(type), y_size = bytes_of(type == K_F32 ? type : to);
	void *ha = case_halves(o.a, n * M * k, type), *hb = case_halves(o.b, k * N, type);
	void *hbias = case_halves(o.bias, N, type);
	Wide a = wide_of(ha, n * ra, d.ta ? M : k, size, flags & 1), b = wide_of(hb, rb, d.tb ? k : N, size, flags & 2);
	Wide y = wide_alloc(n * M, N, y_size, flags & 4);
	if (add)
		case_put_columns(y.at, y.pitch, start(&y), o.sum, n * M, N, 4);
	d.lda = a.pitch, d.ldb = b.pitch, d.ldy = y.pitch;
	d.batch[0] = BATCH, d.sa[0] = ra * a.pitch;
	d.apart = size; /* columns begin anywhere */
	want_product(&d, &o);
	KPrim *p = k_matmul_create(&d);
	void *work = case_alloc(work_bytes > 0 ? work_bytes : 64);
	k_matmul_run(p, columns(&y), columns(&a), columns(&b), bias ? hbias : NULL, work);
	float *got = case_widened(taken(&y, "matmul: beside the columns of y"), n * M * N, type == K_F32 ? K_F32 : to);
	k_prim_free(p);
	case_close("matmul of columns", got, o.want, n * M * N, to == K_F32 ? 1e-5 : case_half_bound(to));
}

void check_pitched_products(void)
{
	static const KDType types[] = {K_F32, K_BF16, K_F16};
	for (int t = 0; t < 3; t++)
		for (int flags = 1; flags < 64; flags++) {
			KDType type = types[t];
			int64_t k = flags % 5 < 2 ? 71 : 96; /* the latter: a multiple of what tiles sum at once */
			int64_t work = flags % 3 ? K_GEMM_WORK : -1;
			if (!(flags & 7))
				continue;
			check_product(type, type, k, flags, false, flags & 1, work);
			check_product(type, K_F32, k, flags, true, false, work);
		}
}

/* ---- losses ---- */

static void check_loss(int64_t rows, int64_t c, KDType type, bool weighted, double e)
{
	float *x = case_floats(rows * c, -5, 5), *w = weighted ? case_floats(c, 0.2, 2) : NULL;
	float *dloss = case_floats(1, 1, 1);
	void *h = case_halves(x, rows * c, type), *grad = case_alloc(rows * c * 4);
	float *out = case_alloc((2 + rows) * 4), *want = case_alloc((2 + rows) * 4);
	int64_t *labels = case_ids(rows, c), dim[2] = {rows, c};
	void *work = case_work("cross_entropy", (KWorkArgs){.in = {{2, dim, bytes_of(type)}}});
	Wide logits = wide_of(h, rows, c, bytes_of(type), true), d = wide_alloc(rows, c, bytes_of(type), true);
	labels[rows / 2] = -100;
#define RUN(t, T) \
	k_cross_entropy_##t(want, want + 1, want + 2, (T *)h, labels, w, rows, c, c, -100, e, work); \
	k_cross_entropy_##t(out, out + 1, out + 2, (T *)columns(&logits), labels, w, rows, c, logits.pitch, -100, e, \
		work); \
	k_cross_entropy_grad_##t((T *)grad, dloss, (T *)h, labels, w, want + 2, rows, c, c, -100, e); \
	k_cross_entropy_grad_##t((T *)columns(&d), dloss, (T *)columns(&logits), labels, w, want + 2, rows, c, d.pitch, \
		-100, e); \
	k_cross_entropy_grad_##t((T *)columns(&logits), dloss, (T *)columns(&logits), labels, w, want + 2, rows, c, \
		logits.pitch, -100, e)
	if (type == K_F32) {
		RUN(f32, float);
	} else if (type == K_BF16) {
		RUN(bf16, uint16_t);
	} else {
		RUN(f16, uint16_t);
	}
#undef RUN
	case_sync();
	double *wanted = case_doubles(2 + rows);
	for (int64_t i = 0; i < 2 + rows; i++)
		wanted[i] = want[i];
	case_close("cross_entropy of columns", out, wanted, 2 + rows, 1e-6);
	case_equal("cross_entropy_grad of columns", taken(&d, "cross_entropy_grad: beside the columns"), grad,
		rows * c * bytes_of(type));
	case_equal("cross_entropy_grad over columns", taken(&logits, "cross_entropy_grad over columns: beside them"), grad,
		rows * c * bytes_of(type));
}

void check_pitched_losses(void)
{
	static const KDType types[] = {K_F32, K_BF16, K_F16};
	for (int t = 0; t < 3; t++)
		for (int v = 0; v < 4; v++) {
			check_loss(19, 1003, types[t], v & 1, v & 2 ? 0.1 : 0);
			check_loss(70, 7, types[t], v & 1, v & 2 ? 0.1 : 0);
			check_loss(2, 5001, types[t], v & 1, v & 2 ? 0.1 : 0);
		}
}
