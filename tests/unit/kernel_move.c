/* tests/unit/kernel_move.c: data movement, indexing, scans and reductions against index-by-index loops. */
#include "tests/unit/kernel_cases.h"

enum { SIZES = 4 };
static const int sizes[SIZES] = {1, 2, 4, 8};

/* y[i] of `size` bytes = x[from]. */
static void put(void *y, int64_t i, const void *x, int64_t from, int size)
{
	memcpy((char *)y + i * size, (const char *)x + from * size, (size_t)size);
}

static void *random_bytes(int64_t n)
{
	unsigned char *p = case_alloc(n);
	for (int64_t i = 0; i < n; i++)
		p[i] = (unsigned char)case_random(256);
	return p;
}

void case_copy(void)
{
	int64_t n = 700001;
	void *x = random_bytes(n), *y = case_alloc(n);
	k_copy(y, x, n);
	case_equal("copy", y, x, n);
	for (int k = 0; k < SIZES; k++) {
		void *want = case_alloc(99 * 8);
		for (int i = 0; i < 99; i++)
			put(want, i, x, 0, sizes[k]);
		k_fill(y, x, 99, sizes[k]);
		case_equal("fill", y, want, 99 * sizes[k]);
	}
}

void case_transpose(void)
{
	static const struct { int rank; int64_t dim[5], perm[5]; } cases[] = {
		{2, {37, 53}, {1, 0}}, {2, {128, 256}, {1, 0}}, {3, {5, 17, 33}, {2, 0, 1}}, {3, {5, 17, 33}, {0, 2,
			1}},
		{4, {3, 20, 7, 16}, {0, 2, 1, 3}}, {4, {2, 9, 8, 31}, {0, 2, 3, 1}}, {4, {2, 8, 31, 9}, {0, 3, 1, 2}},
		{5, {2, 3, 4, 5, 6}, {4, 2, 0, 3, 1}}, {1, {5}, {0}}, {3, {4, 0, 3}, {2, 1, 0}}, {4, {1, 200, 1,
			130}, {3, 0, 1, 2}},
	};
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
		for (int k = 0; k < SIZES; k++) {
			int rank = cases[c].rank;
			const int64_t *dim = cases[c].dim;
			int64_t n = case_numel(rank, dim), out[5], at[5], from[5];
			for (int i = 0; i < rank; i++)
				out[i] = dim[cases[c].perm[i]];
			void *x = random_bytes(n * 8), *y = case_alloc(n * 8), *want = case_alloc(n * 8);
			for (int64_t i = 0; i < n; i++) {
				case_unravel(i, rank, out, at);
				for (int d = 0; d < rank; d++)
					from[cases[c].perm[d]] = at[d];
				put(want, i, x, case_ravel(rank, dim, from), sizes[k]);
			}
			k_transpose(y, x, rank, dim, cases[c].perm, sizes[k]);
			case_equal("transpose", y, want, n * sizes[k]);
		}
}

void case_broadcast(void)
{
	static const struct { int rank; int64_t dim[4], stride[4]; } cases[] = {
		{3, {4, 5, 300}, {0, 0, 1}}, {3, {4, 5, 6}, {1, 0, 0}}, {4, {3, 2, 5, 7}, {0, 7, 0, 1}}, {2, {200,
			300}, {1, 0}}};
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
		for (int k = 0; k < SIZES; k++) {
			int64_t n = case_numel(cases[c].rank, cases[c].dim), at[4];
			void *x = random_bytes(400 * 8), *y = case_alloc(n * 8), *want = case_alloc(n * 8);
			for (int64_t i = 0; i < n; i++) {
				int64_t from = 0;
				case_unravel(i, cases[c].rank, cases[c].dim, at);
				for (int d = 0; d < cases[c].rank; d++)
					from += at[d] * cases[c].stride[d];
				put(want, i, x, from, sizes[k]);
			}
			k_broadcast(y, x, cases[c].rank, cases[c].dim, cases[c].stride, sizes[k]);
			case_equal("broadcast", y, want, n * sizes[k]);
		}
}

static const struct { int rank; int64_t xdim[3], dim[3], start[3], step[3]; } slices[] = {
	{3, {6, 9, 20}, {3, 4, 7}, {1, 8, 2}, {2, -2, 2}}, {2, {50, 900}, {20, 800}, {10, 50}, {1, 1}},
	{1, {7}, {7}, {6}, {-1}}, {3, {4, 5, 6}, {4, 0, 6}, {0, 2, 0}, {1, 1, 1}}, {3, {4, 5, 6}, {1, 1, 1}, {3,
		4, 5}, {1, 1, 1}}};
enum { N_SLICES = sizeof slices / sizeof *slices };

static int64_t slice_source(int c, int64_t i)
{
	int64_t at[3];
	case_unravel(i, slices[c].rank, slices[c].dim, at);
	for (int d = 0; d < slices[c].rank; d++)
		at[d] = slices[c].start[d] + slices[c].step[d] * at[d];
	return case_ravel(slices[c].rank, slices[c].xdim, at);
}

void case_slice(void)
{
	for (int c = 0; c < N_SLICES; c++)
		for (int k = 0; k < SIZES; k++) {
			int64_t n = case_numel(slices[c].rank, slices[c].dim), xn = case_numel(slices[c].rank,
				slices[c].xdim);
			void *x = random_bytes(xn * 8), *y = case_alloc(n * 8), *want = case_alloc(n * 8);
			for (int64_t i = 0; i < n; i++)
				put(want, i, x, slice_source(c, i), sizes[k]);
			k_slice(y, x, slices[c].rank, slices[c].dim, slices[c].xdim, slices[c].start, slices[c].step,
				sizes[k]);
			case_equal("slice", y, want, n * sizes[k]);
		}
}

void case_slice_grad(void)
{
	for (int c = 0; c < N_SLICES; c++)
		for (int k = 0; k < SIZES; k++) {
			int64_t n = case_numel(slices[c].rank, slices[c].dim), xn = case_numel(slices[c].rank,
				slices[c].xdim);
			void *dy = random_bytes(n * 8), *dx = case_alloc(xn * 8), *want = case_alloc(xn * 8);
			memset(want, 0, (size_t)xn * 8);
			for (int64_t i = 0; i < n; i++)
				put(want, slice_source(c, i), dy, i, sizes[k]);
			k_slice_grad(dx, dy, slices[c].rank, slices[c].dim, slices[c].xdim, slices[c].start,
				slices[c].step,
				sizes[k]);
			case_equal("slice_grad", dx, want, xn * sizes[k]);
		}
}

void case_pad(void)
{
	static const int64_t xdim[3] = {4, 5, 6}, before[3] = {1, 0, 3}, after[3] = {2, 4, 1};
	static const int expect[4][10] = { /* sources of the last dim: 3 before, 6, 1 after; -1 = the value */
		{-1, -1, -1, 0, 1, 2, 3, 4, 5, -1}, {3, 2, 1, 0, 1, 2, 3, 4, 5, 4}, {0, 0, 0, 0, 1, 2, 3, 4, 5, 5},
		{3, 4, 5, 0, 1, 2, 3, 4, 5, 0}};
	static const int first[4][7] = {{-1, 0, 1, 2, 3, -1, -1}, {1, 0, 1, 2, 3, 2, 1}, {0, 0, 1, 2, 3, 3, 3},
		{3, 0, 1, 2, 3, 0, 1}};
	static const int second[4][9] = {{0, 1, 2, 3, 4, -1, -1, -1, -1}, {0, 1, 2, 3, 4, 3, 2, 1, 0},
		{0, 1, 2, 3, 4, 4, 4, 4, 4}, {0, 1, 2, 3, 4, 0, 1, 2, 3}};
	for (int mode = 0; mode < 4; mode++)
		for (int k = 0; k < SIZES; k++) {
			void *x = random_bytes(120 * 8), *y = case_alloc(630 * 8), *want = case_alloc(630 * 8),
				*v = random_bytes(8);
			for (int64_t i = 0; i < 630; i++) {
				int a = first[mode][i / 90], b = second[mode][i / 10 % 9], c = expect[mode][i % 10];
				bool inside = a >= 0 && b >= 0 && c >= 0;
				put(want, i, inside ? x : v, inside ? (a * 5 + b) * 6 + c : 0, sizes[k]);
			}
			k_pad(y, x, 3, xdim, before, after, (KPadMode)mode, v, sizes[k]);
			case_equal("pad", y, want, 630 * sizes[k]);
		}
}

void case_concat(void)
{
	int64_t chunk[3] = {12, 8000, 4}, outer = 7, pitch = 8016;
	void *part[3], *want = case_alloc(pitch * outer), *y = case_alloc(pitch * outer);
	const void *in[3];
	for (int i = 0; i < 3; i++)
		in[i] = part[i] = random_bytes(chunk[i] * outer);
	for (int64_t o = 0, at = 0; o < outer; o++)
		for (int i = 0; i < 3; at += chunk[i++])
			memcpy((char *)want + at, (char *)part[i] + o * chunk[i], (size_t)chunk[i]);
	k_concat(y, in, 3, outer, chunk);
	case_equal("concat", y, want, pitch * outer);
}

void case_split(void)
{
	int64_t chunk[3] = {12, 8000, 4}, outer = 7, pitch = 8016;
	char *x = random_bytes(pitch * outer);
	for (int skip = 0; skip < 3; skip++) { /* one of the results is not wanted */
		void *y[3];
		for (int i = 0; i < 3; i++)
			y[i] = i == skip ? NULL : case_alloc(chunk[i] * outer);
		k_split(y, x, 3, outer, chunk);
		for (int64_t o = 0, at = 0; o < outer; o++)
			for (int i = 0; i < 3; at += chunk[i++])
				if (i != skip)
					case_equal("split", (char *)y[i] + o * chunk[i], x + at, chunk[i]);
	}
}

void case_gather(void)
{
	static const int64_t shapes[][4] = {{1, 50, 33, 70}, {3, 7, 1, 11}, {2, 5, 4, 0}, {4, 1000, 130, 90}};
	for (int c = 0; c < 4; c++)
		for (int k = 0; k < SIZES; k++) {
			int64_t outer = shapes[c][0], n = shapes[c][1], inner = shapes[c][2], m = shapes[c][3];
			void *x = random_bytes(outer * n * inner * 8), *y = case_alloc(outer * m * inner * 8);
			void *want = case_alloc(outer * m * inner * 8);
			int64_t *ids = case_ids(m, n);
			int32_t *ids4 = case_alloc(m * 4);
			for (int64_t i = 0; i < m; i++) {
				ids[i] -= i % 2 ? n : 0; /* half of them from the end */
				ids4[i] = (int32_t)ids[i];
			}
			for (int64_t i = 0; i < outer * m * inner; i++) {
				int64_t id = ids[i / inner % m], o = i / inner / m;
				put(want, i, x, (o * n + (id < 0 ? id + n : id)) * inner + i % inner, sizes[k]);
			}
			k_gather(y, x, ids, outer, n, inner, m, sizes[k], 8);
			case_equal("gather, i64", y, want, outer * m * inner * sizes[k]);
			k_gather(y, x, ids4, outer, n, inner, m, sizes[k], 4);
			case_equal("gather, i32", y, want, outer * m * inner * sizes[k]);
		}
	int64_t *bad = case_bytes((int64_t[]){4, -5}, 16);
	float *x = case_bytes((float[]){1, 2, 3, 4}, 16), *y = case_alloc(8);
	k_gather(y, x, bad, 1, 4, 1, 2, 4, 8);
	case_true(case_bad_inputs() == (case_cuda() ? 1 : 2) && y[0] == 1, "gather: indices out of range");
}

void case_gather_grad(void)
{
	static const int64_t shapes[][4] = {{1, 50, 33, 700}, {3, 7, 1, 11}, {2, 5, 4, 0}, {1, 3000, 129, 500}};
	for (int c = 0; c < 4; c++) {
		int64_t outer = shapes[c][0], n = shapes[c][1], inner = shapes[c][2], m = shapes[c][3];
		float *dy = case_floats(outer * m * inner, -1, 1), *dx = case_alloc(outer * n * inner * 4);
		double *want = case_doubles(outer * n * inner), *dx64 = case_doubles(outer * n * inner);
		double *dy64 = case_doubles(outer * m * inner);
		int64_t *ids = case_ids(m, n), dim[3] = {outer, m, inner};
		void *work = case_work("gather_grad", (KWorkArgs){.in = {{3, dim, 8}, {1, dim + 1, 8}}});
		for (int64_t i = 0; i < outer * m * inner; i++) {
			want[(i / inner / m * n + ids[i / inner % m]) * inner + i % inner] += dy[i];
			dy64[i] = dy[i];
		}
		CASE_SAME_BITS("gather_grad", dx, outer * n * inner * 4,
			k_gather_grad_f32(dx, dy, ids, outer, n, inner, m, false, 8, work));
		case_close("gather_grad", dx, want, outer * n * inner, 1e-6);
		k_gather_grad_f32(dx, dy, ids, outer, n, inner, m, true, 8, work);
		k_gather_grad_f64(dx64, dy64, ids, outer, n, inner, m, false, 8, work);
		case_close64("gather_grad f64", dx64, want, outer * n * inner, 1e-14);
		for (int64_t i = 0; i < outer * n * inner; i++)
			want[i] *= 2;
		case_close("gather_grad onto what is there", dx, want, outer * n * inner, 1e-6);
	}
}

void case_gather_elements(void)
{
	static const int64_t xdim[3] = {4, 9, 5}, dim[3] = {3, 40, 5};
	int64_t n = 600, at[3];
	void *x = random_bytes(180 * 8), *y = case_alloc(n * 8), *want = case_alloc(n * 8);
	int64_t *ids = case_ids(n, 9);
	for (int k = 0; k < SIZES; k++) {
		for (int64_t i = 0; i < n; i++) {
			case_unravel(i, 3, dim, at);
			at[1] = ids[i];
			put(want, i, x, case_ravel(3, xdim, at), sizes[k]);
		}
		k_gather_elements(y, x, ids, 3, dim, xdim, 1, sizes[k], 8);
		case_equal("gather_elements", y, want, n * sizes[k]);
	}
}

void case_gather_nd(void)
{
	static const int64_t xdim[2] = {6, 7};
	int64_t batch = 3, m = 11, inner = 5, *ids = case_alloc(66 * 8);
	void *x = random_bytes(3 * 42 * 5 * 8), *y = case_alloc(165 * 8), *want = case_alloc(165 * 8);
	for (int i = 0; i < 66; i++)
		ids[i] = case_random(i % 2 ? 7 : 6);
	for (int k = 0; k < SIZES; k++) {
		for (int64_t i = 0; i < batch * m * inner; i++) {
			int64_t r = i / inner, row = r / m * 42 + ids[2 * r] * 7 + ids[2 * r + 1];
			put(want, i, x, row * inner + i % inner, sizes[k]);
		}
		k_gather_nd(y, x, ids, batch, m, 2, xdim, inner, sizes[k], 8);
		case_equal("gather_nd", y, want, batch * m * inner * sizes[k]);
	}
}

static double combine(double a, double b, KScatter mode)
{
	return mode == K_SCATTER_NONE ? b : mode == K_SCATTER_ADD ? a + b : mode == K_SCATTER_MUL ? a * b
		: mode == K_SCATTER_MAX ? fmax(a, b) : fmin(a, b);
}

void case_scatter_elements(void)
{
	static const int64_t xdim[2] = {8, 6}, dim[2] = {5, 6};
	for (int mode = 0; mode < 5; mode++) {
		float *x = case_floats(48, -2, 2), *u = case_floats(30, -2, 2), *y = case_alloc(48 * 4);
		double *want = case_doubles(48);
		int64_t *ids = case_ids(30, 8);
		int32_t *xi = case_alloc(48 * 4), *ui = case_alloc(30 * 4), *yi = case_alloc(48 * 4);
		double want_i[48];
		for (int i = 0; i < 48; i++)
			want[i] = x[i], xi[i] = (int32_t)(want_i[i] = i % 7 - 3);
		for (int i = 0; i < 30; i++) {
			int64_t to = ids[i] * 6 + i % 6;
			ui[i] = i % 5 - 2;
			want[to] = combine(want[to], u[i], (KScatter)mode);
			want_i[to] = combine(want_i[to], ui[i], (KScatter)mode);
		}
		k_scatter_elements_f32(y, x, ids, u, 2, dim, xdim, 0, (KScatter)mode, 8);
		case_close("scatter_elements", y, want, 48, 1e-6);
		k_scatter_elements_i32(yi, xi, ids, ui, 2, dim, xdim, 0, (KScatter)mode, 8);
		case_sync();
		for (int i = 0; i < 48; i++)
			case_true(yi[i] == (int32_t)want_i[i], "scatter_elements i32");
	}
}

void case_scatter_nd(void)
{
	static const int64_t xdim[2] = {4, 3};
	for (int mode = 0; mode < 5; mode++) {
		float *x = case_floats(60, -2, 2), *u = case_floats(35, -2, 2);
		double *want = case_doubles(60);
		int64_t *ids = case_alloc(14 * 8);
		for (int i = 0; i < 60; i++)
			want[i] = x[i];
		for (int i = 0; i < 14; i++)
			ids[i] = case_random(i % 2 ? 3 : 4);
		for (int i = 0; i < 35; i++) {
			double *to = want + (ids[i / 5 * 2] * 3 + ids[i / 5 * 2 + 1]) * 5 + i % 5;
			*to = combine(*to, u[i], (KScatter)mode);
		}
		k_scatter_nd_f32(x, x, ids, u, 7, 2, xdim, 5, (KScatter)mode, 8);
		case_close("scatter_nd in place", x, want, 60, 1e-6);
	}
}

void case_cumsum(void)
{
	int64_t outer = 3, n = 17, inner = 4;
	float *x = case_floats(204, -1, 1), *y = case_alloc(204 * 4);
	for (int flags = 0; flags < 4; flags++) {
		double *want = case_doubles(204);
		bool exclusive = flags & 1, reverse = flags & 2;
		for (int64_t i = 0; i < 204; i++) {
			int64_t p = i / inner % n, base = i - p * inner;
			for (int64_t q = 0; q < n; q++)
				if ((reverse ? q > p : q < p) || (q == p && !exclusive))
					want[i] += x[base + q * inner];
		}
		k_cumsum_f32(y, x, outer, n, inner, exclusive, reverse);
		case_close("cumsum", y, want, 204, 1e-6);
	}
	int8_t *a = case_bytes((int8_t[]){100, 100, 1}, 3), *b = case_alloc(3);
	k_cumsum_i8(b, a, 1, 3, 1, false, false);
	case_sync();
	case_true(b[0] == 100 && b[1] == -56 && b[2] == -55, "cumsum wraps");
}

void case_in_range(void)
{
	float *x = case_alloc(20), *y = case_alloc(20);
	int64_t *a = case_alloc(24), *b = case_alloc(24);
	memcpy(x, (float[]){-0.5f, 0, 1, NAN, INFINITY}, 20);
	memcpy(a, (int64_t[]){INT64_MIN, 4, 5}, 24);
	k_in_range_f32(y, x, 5, 0, 1, "p");
	case_true(case_bad_inputs() == (case_cuda() ? 1 : 3), "in_range: numbers outside are bad input");
	case_true(y[0] == 0 && y[1] == 0 && y[2] == 1 && y[3] == 0 && y[4] == 0, "in_range: they give the low end");
	k_in_range_i64(b, a, 3, 0, 4, "n");
	case_true(case_bad_inputs() == (case_cuda() ? 1 : 2), "in_range: integers outside are bad input");
	case_true(b[0] == 0 && b[1] == 4 && b[2] == 0, "in_range of integers");
	k_in_range_f32(y, x + 1, 2, 0, 1, "p");
	case_true(case_bad_inputs() == 0 && y[1] == 1, "in_range: both ends belong to it");
}

static void check_arg(bool largest)
{
	int64_t outer = 5, n = 23, inner = 3, *got = case_alloc(15 * 8);
	float *x = case_floats(345, 0, 4);
	for (int i = 0; i < 345; i++)
		x[i] = floorf(x[i]); /* many ties */
	for (int last = 0; last < 2; last++) {
		(largest ? k_argmax_f32 : k_argmin_f32)(got, x, outer, n, inner, last);
		case_sync();
		for (int64_t r = 0; r < 15; r++) {
			int64_t base = r / inner * n * inner + r % inner, best = 0;
			for (int64_t i = 1; i < n; i++) {
				float a = x[base + i * inner], b = x[base + best * inner];
				if ((largest ? a > b : a < b) || (last && a == b))
					best = i;
			}
			case_true(got[r] == best, largest ? "argmax" : "argmin");
		}
	}
	x[5 * 3] = NAN;
	(largest ? k_argmax_f32 : k_argmin_f32)(got, x, outer, n, inner, false);
	case_sync();
	case_true(got[0] == 5, "NaN wins");
}

void case_argmax(void) { check_arg(true); }
void case_argmin(void) { check_arg(false); }

void case_topk(void)
{
	int64_t n = 29, inner = 2, k = 7, *idx = case_alloc(28 * 8);
	float *x = case_floats(116, 0, 6), *y = case_alloc(28 * 4);
	for (int i = 0; i < 116; i++)
		x[i] = floorf(x[i]);
	for (int largest = 0; largest < 2; largest++) {
		k_topk_f32(y, idx, x, 2, n, inner, k, largest);
		case_sync();
		for (int r = 0; r < 4; r++) {
			bool taken[29] = {false};
			for (int j = 0; j < k; j++) {
				int best = -1;
				for (int i = 0; i < n; i++) {
					float v = x[(r / 2 * n + i) * inner + r % 2];
					float b = best < 0 ? 0 : x[(r / 2 * n + best) * inner + r % 2];
					if (!taken[i] && (best < 0 || (largest ? v > b : v < b)))
						best = i;
				}
				taken[best] = true;
				int64_t at = (r / 2 * k + j) * inner + r % 2;
				case_true(idx[at] == best && y[at] == x[(r / 2 * n + best) * inner + r % 2], "topk");
			}
		}
	}
}

void case_iota(void)
{
	static const int64_t dim[3] = {2, 5, 3};
	float *y = case_alloc(30 * 4);
	int64_t *z = case_alloc(30 * 8);
	k_iota_f32(y, 3, dim, 1, 0.5, 0.25);
	k_iota_i64(z, 3, dim, 0, 7, -2);
	case_sync();
	for (int i = 0; i < 30; i++)
		case_true(y[i] == 0.5f + 0.25f * (float)(i / 3 % 5) && z[i] == 7 - 2 * (i / 15), "iota");
}

typedef void ReduceF32(float *, const float *, int, const int64_t *, unsigned, void *);
typedef void ReduceI32(int32_t *, const int32_t *, int, const int64_t *, unsigned, void *);
typedef double Combine(double, double);
static double add(double a, double b) { return a + b; }
static double times(double a, double b) { return a * b; }

static void check_reduce(const char *name, ReduceF32 *f, ReduceI32 *fi, Combine *step, double start,
	bool mean)
{
	static const struct { int rank; int64_t dim[4]; unsigned axes; } cases[] = {
		{2, {64, 300}, 2}, {2, {64, 300}, 1}, {2, {64, 300}, 3}, {2, {20000, 6}, 1}, {2, {3, 40000}, 2}, {1,
			{100001}, 1},
		{4, {3, 5, 7, 11}, 13}, {4, {3, 5, 7, 11}, 2}, {4, {3, 5, 7, 11}, 5}, {4, {8, 33, 40, 17}, 12}, {3,
			{1, 9, 1}, 1},
		{3, {4, 5, 6}, 0}, {3, {7, 1, 300}, 4}, {0, {0}, 0}, {3, {50, 700, 30}, 2},
		{3, {2, 3000, 136}, 2}, {2, {5000, 131}, 1}};
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		int rank = cases[c].rank;
		int64_t n = case_numel(rank, cases[c].dim), out[4], m = 1, at[4];
		for (int d = 0; d < rank; d++) {
			out[d] = cases[c].axes >> d & 1 ? 1 : cases[c].dim[d];
			m *= out[d];
		}
		void *work = case_work("reduce_sum", (KWorkArgs){.in = {{rank, cases[c].dim, 4}}, .out = {{rank, out, 4}}});
		double span = step == times ? 0.02 : 1;
		float *x = case_floats(n, step == times ? 1 - span : -span, step == times ? 1 + span : span + 0.3);
		float *y = case_alloc(m * 4);
		int32_t *xi = case_alloc(n * 4), *yi = case_alloc(m * 4);
		double *want = case_doubles(m), *want_i = case_doubles(m);
		for (int64_t i = 0; i < m; i++)
			want[i] = want_i[i] = start;
		for (int64_t i = 0; i < n; i++) {
			case_unravel(i, rank, cases[c].dim, at);
			for (int d = 0; d < rank; d++)
				at[d] = out[d] == 1 ? 0 : at[d];
			int64_t to = case_ravel(rank, out, at);
			xi[i] = (int32_t)(step == times ? (i % 3 ? 1 : -1) : i % 11 - 3);
			want[to] = step(want[to], x[i]);
			want_i[to] = step(want_i[to], xi[i]);
		}
		for (int64_t i = 0; mean && i < m; i++) {
			want[i] /= (double)(n / m);
			want_i[i] = trunc(want_i[i] / (double)(n / m));
		}
		CASE_SAME_BITS("reduce", y, m * 4, f(y, x, rank, cases[c].dim, cases[c].axes, work));
		case_close(name, y, want, m, 1e-6);
		fi(yi, xi, rank, cases[c].dim, cases[c].axes, work);
		case_sync();
		for (int64_t i = 0; i < m; i++)
			case_true(yi[i] == (int32_t)want_i[i], name);
	}
}

void case_reduce_sum(void) { check_reduce("reduce_sum", k_reduce_sum_f32, k_reduce_sum_i32, add, 0, false); }
void case_reduce_mean(void) { check_reduce("reduce_mean", k_reduce_mean_f32, k_reduce_mean_i32, add, 0,
	true); }
void case_reduce_prod(void) { check_reduce("reduce_prod", k_reduce_prod_f32, k_reduce_prod_i32, times, 1,
	false); }

void case_reduce_max(void)
{
	float *x = case_bytes((float[200]){[3] = 2, [150] = NAN}, 800), *y = case_alloc(4);
	check_reduce("reduce_max", k_reduce_max_f32, k_reduce_max_i32, fmax, -1e9, false);
	k_reduce_max_f32(y, x, 1, (int64_t[]){200}, 1, NULL);
	case_sync();
	case_true(isnan(*y), "reduce_max: NaN wins");
}

void case_reduce_min(void)
{
	check_reduce("reduce_min", k_reduce_min_f32, k_reduce_min_i32, fmin, 1e9, false);
}
