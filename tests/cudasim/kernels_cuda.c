/* tests/cudasim/kernels_cuda.c: tests of what CUDA kernels have alone: casts and scales of collectives, places that no
 * vector access begins at, rows that no vector divides, more rows than a grid's y, and nothing at all.
 *
 * The one idea: what begins at an odd place is what begins at an even one, up to the order of sums. */
#include "base/philox.h"
#include "kernels/cuda/cuda.h"
#include "kernels/loss_head.h"
#include "tests/cudasim/kernels_cuda.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static const KDType wide_types[] = {K_F32, K_BF16, K_F16};
static int64_t bytes_of(KDType t) { return t == K_F64 ? 8 : t == K_F32 ? 4 : 2; }

/* Elements of a buffer from number `at` on. */
static void *from(void *p, KDType t, int64_t at) { return (char *)p + at * bytes_of(t); }

static void check_cast(KDType to, KDType of, int64_t n, int64_t skip)
{
	float *x = case_floats(n + 2, -70000, 70000);
	void *in = case_halves(x, n + 2, of), *got = case_alloc((n + 2) * 4), *want = case_alloc((n + 2) * 4);
	k_cast_wide(from(want, to, skip), to, from(in, of, skip), of, n);
	k_device_cast(from(got, to, skip), to, from(in, of, skip), of, n);
	case_equal("k_device_cast", got, want, (n + 2) * bytes_of(to)); /* nor is anything written beside */
}

/* Sizes and places that no vector divides; numbers beyond the largest, and those that are none. */
static void check_cast_f8(float scale, int64_t n, int64_t skip)
{
	float *in = case_floats(n + 2, -3, 3), *s = case_alloc(sizeof(*s));
	uint8_t *got = case_alloc(n + 2), *want = case_alloc(n + 2);
	*s = scale;
	in[0] = 70000;
	in[n / 2] = NAN;
	k_cast_f8_wide(want + skip, in + skip, s, n);
	k_device_cast_f8(got + skip, in + skip, s, n);
	case_equal("k_device_cast_f8", got, want, n + 2);
}

void case_cuda_casts(void)
{
	static const int64_t sizes[] = {0, 1, 7, 8, 9, 4099};
	for (int to = 0; to < 3; to++)
		for (int of = 0; of < 3; of++)
			for (int s = 0; s < 6; s++)
				for (int skip = 0; skip < 2; skip++)
					check_cast(wide_types[to], wide_types[of], sizes[s], skip);
	for (int s = 0; s < 6; s++)
		for (int skip = 0; skip < 2; skip++) {
			check_cast_f8(0.013f, sizes[s], skip);
			check_cast_f8(INFINITY, sizes[s], skip);
			check_cast_f8(NAN, sizes[s], skip);
		}
}

/* The cast gives the CPU's bits.  next: those of the next step, whose number depends on whether this update is left
 * out. */
static void check_chance(KDType t, int64_t n, int64_t skip, int64_t first, bool next, bool left_out)
{
	StepScalars *s = case_alloc(sizeof(*s));
	float *in = case_floats(n + 2, t == K_F16 ? -1e-4 : -3, t == K_F16 ? 1e-4 : 3);
	uint16_t *got = case_alloc((n + 2) * 2), *want = case_alloc((n + 2) * 2);
	*s = (StepScalars){.seed = 7, .step = 11, .rng_step = 5, .skip = left_out};
	in[0] = 70000;
	in[n / 2] = NAN;
	k_cast_by_chance(want + skip, t, in + skip, n, philox_key(7, 1234567), first, next && !left_out ? 12 : 11);
	k_device_cast_by_chance(got + skip, t, in + skip, n, 1234567, first, next, s);
	case_equal("k_device_cast_by_chance", got, want, (n + 2) * 2);
}

void case_cuda_chance(void)
{
	static const int64_t sizes[] = {0, 1, 3, 64, 4099}, first[] = {0, 64, 3, ((int64_t)1 << 34) + 2};
	for (int of = 0; of < 2; of++)
		for (int n = 0; n < 5; n++)
			for (int k = 0; k < 4; k++)
				for (int skip = 0; skip < 2; skip++)
					check_chance(wide_types[1 + of], sizes[n], skip, first[k], (n + k) % 2, (n + k) % 4 == 3);
}

void case_cuda_scale(void)
{
	static const float scales[] = {1, 0.25f, 1.0f / 3, 65536};
	int64_t n = 1027;
	for (int t = 0; t < 3; t++)
		for (int k = 0; k < 4; k++)
			for (int skip = 0; skip < 2; skip++) {
				float *x = case_floats(n, -3, 3);
				void *got = case_halves(x, n, wide_types[t]);
				if (wide_types[t] == K_F32)
					got = memcpy(case_alloc(n * 4), x, (size_t)n * 4);
				for (int64_t i = skip; i < n; i++)
					x[i] *= scales[k];
				void *want = case_halves(x, n, wide_types[t]);
				k_device_scale(from(got, wide_types[t], skip), wide_types[t], n - skip, scales[k]);
				case_equal("k_device_scale", got, want, n * bytes_of(wide_types[t]));
			}
}

/* A loss head narrows the f32 gradient of a block's logits, and leaves alone what lies between its rows, of either.  To
 * read there shows as a write: no number of bytes 0xA5 is narrowed to such bytes. */
void case_cuda_head_pads(void)
{
	for (int64_t c = 65; c < 1100; c += 1029) {
		KLossHeadDesc d = {.dtype = K_BF16, .to = K_F32, .rows = 5, .block = 3, .c = c, .d = 8, .tb = true, .dh = true,
			.dw = true, .ignore_index = -1, .work_bytes = 1 << 22};
		int64_t pitch = kwork_logits_pitch(c, true), at = head_places(&d, pitch, d.rows * 2 * 8).narrow;
		void *h = case_halves(case_floats(5 * 8, -1, 1), 5 * 8, K_BF16);
		void *w = case_halves(case_floats(c * 8, -1, 1), c * 8, K_BF16);
		float *sums = case_alloc(8), *dw = case_alloc(c * 8 * 4), *dloss = case_floats(1, 1, 1);
		uint16_t *dh = case_alloc(5 * 8 * 2), *pads = case_alloc(2);
		int64_t *labels = case_ids(5, c);
		char *work = case_alloc(1 << 22);
		memset(work, 0xA5, 1 << 22);
		memset(pads, 0xA5, 2);
		KPrim *p = k_linear_cross_entropy_create(&d);
		k_linear_cross_entropy_run(p, sums, sums + 1, NULL, dh, dw, NULL, dloss, h, w, labels, NULL, NULL, work);
		case_sync();
		for (int64_t i = 0; i < d.block * pitch; i++)
			if (i % pitch >= c)
				case_equal("between rows of a loss head's block", work + at + 2 * i, pads, 2);
		case_true(memcmp(work + at, pads, 2) != 0, "a loss head narrows its block");
		k_prim_free(p);
	}
}

/* Finds a NaN and an infinity among zeros, and again when another of each stands behind them; -1: there is none. */
static void check_not_finite(KDType t, int64_t n, int64_t nan_at, int64_t inf_at, int64_t skip)
{
	static const uint64_t nans[] = {[K_F32] = 0xFFC00001, [K_F64] = 0x7FF0000000000001, [K_BF16] = 0x7F81,
		[K_F16] = 0xFC01};
	static const uint64_t infs[] = {[K_F32] = 0xFF800000, [K_F64] = 0x7FF0000000000000, [K_BF16] = 0xFF80,
		[K_F16] = 0x7C00};
	int64_t size = bytes_of(t), *found = case_alloc(16);
	char *x = memset(case_alloc((n + 1) * size), 0, (size_t)((n + 1) * size)) + skip * size;
	for (int64_t at = nan_at; at >= 0 && at < n; at += 1000)
		memcpy(x + at * size, &nans[t], (size_t)size);
	for (int64_t at = inf_at; at >= 0 && at < n; at += 1000)
		memcpy(x + at * size, &infs[t], (size_t)size);
	k_not_finite(found, found + 1, x, n, t);
	case_sync();
	case_true(found[0] == nan_at && found[1] == inf_at, "k_not_finite");
}

void case_cuda_not_finite(void)
{
	static const KDType types[] = {K_F32, K_F64, K_BF16, K_F16};
	for (int t = 0; t < 4; t++)
		for (int skip = 0; skip < 2; skip++) {
			check_not_finite(types[t], 0, -1, -1, skip);
			check_not_finite(types[t], 5000, -1, -1, skip);
			check_not_finite(types[t], 5000, 0, 4999, skip);
			check_not_finite(types[t], 5001, 4000, 17, skip);
			check_not_finite(types[t], 1, -1, 0, skip);
		}
}

/* Sums of two calls; some labels do not count, some rows have ties, one begins with NaN. */
static void check_accuracy(int64_t rows, int64_t c)
{
	float *x = case_floats(rows * c + 1, 0, 6), *at = x + 1; /* no row begins at 16 bytes */
	int64_t *labels = case_ids(rows, c), right = 0, counted = 0;
	double *out = case_doubles(2);
	for (int64_t i = 0; i < rows * c; i++)
		at[i] = floorf(at[i]);
	at[0] = NAN;
	labels[0] = 0;
	for (int64_t r = 0; r < rows; r++) {
		int64_t best = 0;
		for (int64_t i = 1; i < c; i++)
			best = at[r * c + i] > at[r * c + best] ? i : best;
		labels[r] = r % 5 == 4 ? -7 : r % 2 ? best : labels[r];
		counted += labels[r] != -7;
		right += labels[r] == best;
	}
	k_accuracy(out, at, K_F32, labels, rows, c, -7);
	k_accuracy(out, at, K_F32, labels, rows, c, -7);
	case_sync();
	case_true(out[0] == (double)(2 * right) && out[1] == (double)(2 * counted), "k_accuracy");
}

void case_cuda_accuracy(void)
{
	check_accuracy(7, 50257);
	check_accuracy(700, 10);
	check_accuracy(3, 1);
	double *out = case_doubles(2);
	k_accuracy(out, NULL, K_F32, NULL, 0, 10, -7);
	case_sync();
	case_true(out[0] == 0 && out[1] == 0, "k_accuracy of nothing");
}

/* ---- odd places ---- */

static double *doubles(const float *x, int64_t n)
{
	double *d = case_doubles(n);
	case_sync();
	for (int64_t i = 0; i < n; i++)
		d[i] = x[i];
	return d;
}

/* x of floats or bf16, and the same one element further on. */
typedef struct Twice { void *even, *odd; } Twice;

static Twice twice(const void *x, int64_t bytes, int64_t size)
{
	Twice t = {case_alloc(bytes), (char *)case_alloc(bytes + size) + size};
	memcpy(t.even, x, (size_t)bytes);
	memcpy(t.odd, x, (size_t)bytes);
	return t;
}

static Twice twice_alloc(int64_t bytes, int64_t size) { return twice(case_alloc(bytes), bytes, size); }

static void same_floats(const char *name, Twice t, int64_t n)
{
	case_close(name, t.odd, doubles(t.even, n), n, 1e-6);
}

static void same_halves(const char *name, Twice t, int64_t n)
{
	case_close(name, case_widened(t.odd, n, K_BF16), doubles(case_widened(t.even, n, K_BF16), n), n, 0x1p-9);
}

static void check_odd_norm(int64_t rows, int64_t cols)
{
	int64_t n = rows * cols, dim[2] = {rows, cols};
	Twice x = twice(case_halves(case_floats(n, -1, 3), n, K_BF16), n * 2, 2), y = twice_alloc(n * 2, 2);
	Twice dy = twice(case_halves(case_floats(n, -1, 1), n, K_BF16), n * 2, 2), dx = twice_alloc(n * 2, 2);
	Twice w = twice(case_halves(case_floats(cols, -1, 1), cols, K_BF16), cols * 2, 2), dw = twice_alloc(cols * 2, 2);
	float *mean = case_alloc(rows * 4), *rstd = case_alloc(rows * 4);
	void *work = case_work("layer_norm_grad", (KWorkArgs){.in = {{2, dim, 2}}, .axis = 1});
	k_layer_norm_bf16(y.odd, mean, rstd, NULL, x.odd, w.odd, w.odd, NULL, rows, cols, 1e-5);
	k_layer_norm_bf16(y.even, mean, rstd, NULL, x.even, w.even, w.even, NULL, rows, cols, 1e-5);
	k_layer_norm_grad_bf16(dx.even, dw.even, NULL, dy.even, x.even, w.even, mean, rstd, NULL, rows, cols, work);
	case_sync();
	k_layer_norm_grad_bf16(dx.odd, dw.odd, NULL, dy.odd, x.odd, w.odd, mean, rstd, NULL, rows, cols, work);
	same_halves("layer_norm at an odd place", y, n);
	same_halves("layer_norm_grad at an odd place: dx", dx, n);
	same_halves("layer_norm_grad at an odd place: dw", dw, cols);
	k_softmax_bf16(y.even, x.even, rows, cols, 1);
	k_softmax_bf16(y.odd, x.odd, rows, cols, 1);
	same_halves("softmax at an odd place", y, n);
	k_softmax_grad_bf16(dx.even, dy.even, y.even, rows, cols, 1);
	k_softmax_grad_bf16(dx.odd, dy.odd, y.even, rows, cols, 1);
	same_halves("softmax_grad at odd and even places", dx, n);
}

static void check_odd_loss(int64_t rows, int64_t c)
{
	int64_t n = rows * c, dim[2] = {rows, c}, *labels = case_ids(rows, c);
	Twice x = twice(case_floats(n, -4, 4), n * 4, 4), d = twice_alloc(n * 4, 4);
	float *out = case_alloc(16), *lse = case_alloc(rows * 4), *loss = case_floats(1, 1, 1);
	void *work = case_work("cross_entropy", (KWorkArgs){.in = {{2, dim, 4}}});
	k_cross_entropy_f32(out, out + 1, lse, x.odd, labels, NULL, rows, c, c, -1, 0.1, work);
	k_cross_entropy_f32(out + 2, out + 3, lse, x.even, labels, NULL, rows, c, c, -1, 0.1, work);
	case_sync();
	case_true(fabsf(out[0] - out[2]) <= 1e-6f * out[2] && out[1] == out[3], "cross_entropy at an odd place");
	k_cross_entropy_grad_f32(d.even, loss, x.even, labels, NULL, lse, rows, c, c, -1, 0.1);
	k_cross_entropy_grad_f32(d.odd, loss, x.odd, labels, NULL, lse, rows, c, c, -1, 0.1);
	same_floats("cross_entropy_grad at an odd place", d, n);
	k_cross_entropy_grad_f32(d.odd, loss, x.even, labels, NULL, lse, rows, c, c, -1, 0.1);
	same_floats("cross_entropy_grad from an even to an odd place", d, n);
}

static void check_odd_moves(void)
{
	int64_t dim[3] = {6, 64, 48}, n = 6 * 64 * 48, perm[3] = {0, 2, 1}, out[3] = {1, 1, 48};
	Twice x = twice(case_floats(n, -1, 1), n * 4, 4), y = twice_alloc(n * 4, 4);
	float *sum = case_floats(n + 1, -1, 1);
	int64_t *ids = case_ids(100, 60);
	void *work = case_work("reduce_sum", (KWorkArgs){.in = {{3, dim, 4}}, .out = {{3, out, 4}}});
	k_transpose(y.even, x.even, 3, dim, perm, 4);
	k_transpose(y.odd, x.odd, 3, dim, perm, 4);
	same_floats("transpose at an odd place", y, n);
	k_gather(y.even, x.even, ids, 6, 64, 24, 100, 4, 8);
	k_gather(y.odd, x.odd, ids, 6, 64, 24, 100, 4, 8);
	same_floats("gather at an odd place", y, 6 * 100 * 24);
	k_reduce_sum_f32(y.even, x.even, 3, dim, 3, work);
	case_sync();
	k_reduce_sum_f32(y.odd, x.odd, 3, dim, 3, work);
	same_floats("reduce_sum at an odd place", y, 48);
	Twice s = twice(sum, n * 4, 4);
	k_accumulate_f32(s.even, x.even, n);
	k_accumulate_f32(s.odd, x.odd, n);
	same_floats("accumulate at an odd place", s, n);
	k_copy(s.odd, x.even, n * 4 - 3);
	case_equal("copy to an odd place", s.odd, x.even, n * 4 - 3);
}

static void run_conv(KPrim *p, int which, Twice y, Twice x, Twice w, bool odd, void *work)
{
	void *to[] = {y.even, x.even, w.even}, *at[] = {y.odd, x.odd, w.odd}, **use = odd ? at : to;
	if (which == 0)
		k_conv_run(p, use[0], use[1], use[2], NULL, work);
	else if (which == 1)
		k_conv_grad_x_run(p, use[1], use[0], use[2], NULL, work);
	else
		k_conv_grad_w_run(p, use[2], use[1], use[0], work);
}

/* cuDNN takes the convolution and its gradients at even places, and our own loops at others. */
static void check_odd_conv(void)
{
	KConvDesc d = {.dtype = K_BF16, .to = K_BF16, .rank = 2, .n = 2, .c = 16, .o = 8, .group = 1, .in = {6, 5},
		.out = {6, 5}, .kernel = {3, 3}, .stride = {1, 1}, .dilation = {1, 1}, .pad = {1, 1}, .pad_end = {1, 1},
		.layout = 1, .work_bytes = 1 << 20};
	int64_t numel[] = {2 * 8 * 30, 2 * 16 * 30, 8 * 16 * 9};
	void *work = case_alloc(1 << 20);
	Twice all[3];
	for (int which = 0; which < 3; which++) {
		KPrim *p = which == 0 ? k_conv_create(&d) : which == 1 ? k_conv_grad_x_create(&d) : k_conv_grad_w_create(&d);
		for (int i = 0; i < 3; i++)
			all[i] = twice(case_halves(case_floats(numel[i], -1, 1), numel[i], K_BF16), numel[i] * 2, 2);
		run_conv(p, which, all[0], all[1], all[2], false, work);
		case_sync();
		case_true(strstr(k_prim_impl(p), "engine") != NULL, k_prim_impl(p));
		run_conv(p, which, all[0], all[1], all[2], true, work);
		case_true(strstr(k_prim_impl(p), "own where not aligned") != NULL, k_prim_impl(p));
		same_halves("a convolution at an odd place", all[which], numel[which]);
		k_prim_free(p);
	}
}

static void check_odd_batch_norm(int64_t n, int64_t c, int64_t s, int layout)
{
	int64_t all = n * c * s, dim[3] = {n, layout ? s : c, layout ? c : s};
	Twice x = twice(case_halves(case_floats(all, 2, 4), all, K_BF16), all * 2, 2);
	Twice dy = twice(case_halves(case_floats(all, -1, 1), all, K_BF16), all * 2, 2);
	float *even = case_alloc(4 * c * 4), *odd = case_alloc(4 * c * 4);
	void *work = case_work("bn_stats", (KWorkArgs){.in = {{3, dim, 2}, {3, dim, 2}}, .layout = layout});
	k_bn_stats_bf16(even, even + c, x.even, n, c, s, layout, work);
	k_bn_grad_stats_bf16(even + 2 * c, even + 3 * c, dy.even, x.even, even, even + c, n, c, s, layout, 1e-5, work);
	case_sync();
	k_bn_stats_bf16(odd, odd + c, x.odd, n, c, s, layout, work);
	k_bn_grad_stats_bf16(odd + 2 * c, odd + 3 * c, dy.odd, x.odd, even, even + c, n, c, s, layout, 1e-5, work);
	case_close("bn_stats and bn_grad_stats at an odd place", odd, doubles(even, 4 * c), 4 * c, 1e-6);
}

void case_cuda_odd(void)
{
	check_odd_conv();
	check_odd_batch_norm(2, 64, 3000, 1);
	check_odd_batch_norm(2, 3, 24000, 0);
	check_odd_norm(5, 64);
	check_odd_norm(3, 770); /* rows of 16 bits that no 16 bytes divide */
	check_odd_norm(2, 9001);
	check_odd_loss(3, 50257);
	check_odd_loss(9, 12);
	check_odd_moves();
}

/* ---- many rows, and none ---- */

void case_cuda_many_rows(void)
{
	int64_t rows = 70001, n = rows * 4, dim[3] = {rows, 2, 2}, perm[3] = {0, 2, 1};
	float *x = case_floats(n, -1, 1), *y = case_alloc(n * 4);
	double *want = case_doubles(n);
	for (int64_t i = 0; i < n; i++)
		want[i] = x[i / 4 * 4 + i % 2 * 2 + i / 2 % 2];
	k_transpose(y, x, 3, dim, perm, 4);
	case_close("transpose of many rows", y, want, n, 0);
	for (int64_t r = 0; r < rows; r++) {
		double sum = 0;
		for (int i = 0; i < 4; i++)
			sum += exp(x[4 * r + i]);
		for (int i = 0; i < 4; i++)
			want[4 * r + i] = exp(x[4 * r + i]) / sum;
	}
	k_softmax_f32(y, x, rows, 4, 1);
	case_close("softmax of many rows", y, want, n, 1e-6);
	k_layer_norm_f32(y, NULL, NULL, NULL, x, NULL, NULL, NULL, rows, 4, 1e-5);
	for (int64_t r = 0; r < rows; r++) {
		double mean = 0, var = 1e-5;
		for (int i = 0; i < 4; i++)
			mean += (double)x[4 * r + i] / 4;
		for (int i = 0; i < 4; i++)
			var += ((double)x[4 * r + i] - mean) * ((double)x[4 * r + i] - mean) / 4;
		for (int i = 0; i < 4; i++)
			want[4 * r + i] = ((double)x[4 * r + i] - mean) / sqrt(var);
	}
	case_close("layer_norm of many rows", y, want, n, 2e-5);
}

/* More groups of columns than blocks that end last are counted for, each in two chunks. */
void case_cuda_many_groups(void)
{
	enum { KEPT = 4200, COUNT = 1030, COLUMNS = 2 };
	int64_t dim[3] = {KEPT, COUNT, COLUMNS}, out[3] = {KEPT, 1, COLUMNS};
	float *x = case_floats(KEPT * COUNT * COLUMNS, -1, 1.3), *y = case_alloc(KEPT * COLUMNS * 4);
	double *want = case_doubles(KEPT * COLUMNS);
	void *work = case_work("reduce_sum", (KWorkArgs){.in = {{3, dim, 4}}, .out = {{3, out, 4}}});
	for (int64_t k = 0; k < KEPT; k++)
		for (int64_t i = 0; i < COUNT * COLUMNS; i++)
			want[k * COLUMNS + i % COLUMNS] += x[k * COUNT * COLUMNS + i];
	k_reduce_sum_f32(y, x, 3, dim, 2, work);
	case_close("reduce_sum of many groups", y, want, KEPT * COLUMNS, 1e-6);
}

/* ---- memory ---- */

static volatile char *touched;
static void look(void) { (void)*touched; }
static void change(void) { *touched = 1; }

/* Whether a child process dies of it. */
static bool dies(void (*touch)(void))
{
	int status = 0;
	fflush(NULL);
	pid_t pid = fork();
	if (!pid) {
		freopen("/dev/null", "w", stderr);
		touch();
		_exit(0);
	}
	waitpid(pid, &status, 0);
	return !WIFEXITED(status) || WEXITSTATUS(status);
}

/* Tests look at results behind case_sync alone: what they forget is found on the emulation, too. */
void case_cuda_memory(void)
{
	char *x = case_alloc(100), *y = case_alloc(100);
	k_copy(y, x, 100);
	touched = x;
	case_true(!dies(look) && dies(change), "what a kernel reads can be read, and not written");
	touched = y;
	case_true(dies(look) && dies(change), "what a kernel writes cannot be touched");
	case_sync();
	case_true(!dies(look) && !dies(change), "all can be touched behind case_sync");
}

void case_cuda_nothing(void)
{
	int64_t dim[3] = {4, 0, 3}, perm[3] = {2, 0, 1}, zero[3] = {0}, rows[2] = {0, 5};
	float *y = case_floats(64, 1, 2), *want = memcpy(case_alloc(256), y, 256), *x = case_alloc(64);
	void *work = case_work("cross_entropy", (KWorkArgs){.in = {{2, rows, 4}}});
	k_copy(y, x, 0);
	k_fill(y, x, 0, 4);
	k_transpose(y, x, 3, dim, perm, 4);
	k_broadcast(y, x, 3, dim, zero, 4);
	k_gather(y, x, x, 1, 5, 3, 0, 4, 8);
	k_softmax_f32(y, x, 0, 5, 1);
	k_layer_norm_f32(y, NULL, NULL, NULL, x, NULL, NULL, NULL, 0, 5, 1e-5);
	k_accumulate_f32(y, x, 0);
	k_cumsum_f32(y, x, 0, 5, 1, false, false);
	k_reduce_sum_f32(y, x, 3, dim, 1, NULL);
	k_cross_entropy_grad_f32(y, x, x, NULL, NULL, x, 0, 5, 5, -1, 0);
	case_equal("of nothing comes nothing", y, want, 256);
	k_cross_entropy_f32(y, y + 1, x, x, NULL, NULL, 0, 5, 5, -1, 0, work);
	k_reduce_sum_f32(y + 2, x, 3, dim, 2, NULL);
	memset(want, 0, 2 * 4 + 12 * 4);
	case_equal("sums of nothing are 0", y, want, 2 * 4 + 12 * 4);
}
