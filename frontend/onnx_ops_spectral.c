/* frontend/onnx_ops_spectral.c: Fourier transforms, windows and mel filters.
 *
 * A transform is a composition of products with constant matrices of at most LEAF_MAX rows, so that its gradient, its
 * kernels and its sharding are those of products.  A longer length N = N1 * N2 is N2 transforms of length N1, factors
 * on the unit circle, and N1 transforms of length N2 (Cooley and Tukey); a length without such a divisor is a circular
 * convolution of a power of two (Bluestein).  Constants take O(N) numbers.
 *
 * Rows that are transformed have the shape [outer, rows, parts, N]: parts are the real part, or the real and the
 * imaginary part.  The first dim of the model's tensor stays the first, so that its samples stay apart. */
#include "frontend/onnx_import.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { LEAF_MAX = 64, LENGTH_MAX = 1 << 17 };

/* What a transform is made with.  sign: of the exponent, -1 forward and 1 inverse. */
typedef struct Dft { Node *n; DType t; int sign; } Dft;

static double turn_cos(int64_t k, int64_t n) { return cos(2 * M_PI * (double)(k % n) / (double)n); }
static double turn_sin(int64_t k, int64_t n) { return sin(2 * M_PI * (double)(k % n) / (double)n); }

static Value *reshape4(Builder *b, Value *x, int64_t d0, int64_t d1, int64_t d2, int64_t d3)
{
	return ir_reshape(b, x, 4, (int64_t[]){d0, d1, d2, d3});
}

static Value *reshape5(Builder *b, Value *x, int64_t rows, int64_t d2, int64_t d3, int64_t d4)
{
	return ir_reshape(b, x, 5, (int64_t[]){x->type.dim[0], rows, d2, d3, d4});
}

/* A constant of `rank` dims; f is rounded to its dtype in place. */
static Value *table(const Dft *d, int rank, const int64_t *dim, double *f)
{
	EvalTensor t = {.type = type_tensor(d->t, rank, dim), .f = f};
	for (int64_t i = 0; i < type_numel(&t.type); i++)
		f[i] = dtype_round(d->t, f[i]);
	return emit_literal(d->n->b, &t);
}

/* Sets the last dim to n by zeros behind it or by leaving the end out. */
static Value *fit_last(Builder *b, Value *x, int64_t n)
{
	int rank = x->type.rank, last = rank - 1;
	int64_t before[IR_MAX_RANK] = {0}, after[IR_MAX_RANK] = {0}, now = x->type.dim[last];
	if (now >= n)
		return emit_slice(b, x, last, 0, n, 1);
	after[last] = n - now;
	Attr *a = attr_ints(b->m, attr_ints(b->m, NULL, "before", rank, before), "after", rank, after);
	return ir_emit(b, OP_PAD, 1, &x, attr_float(b->m, attr_str(b->m, a, "mode", "constant"), "value", 0));
}

/* x times c + i s, where parts are the dim before the last; the result has both parts. */
static Value *times_circle(const Dft *d, Value *x, Value *c, Value *s)
{
	Builder *b = d->n->b;
	int axis = x->type.rank - 2;
	Value *re = emit_slice(b, x, axis, 0, 1, 1), *im = x->type.dim[axis] > 1 ? emit_slice(b, x, axis, 1, 1, 1) : NULL;
	Value *part[2] = {emit_mul(b, re, c), emit_mul(b, re, s)};
	if (im) {
		part[0] = emit_sub(b, part[0], emit_mul(b, im, s));
		part[1] = emit_add(b, part[1], emit_mul(b, im, c));
	}
	return emit_concat(b, 2, part, axis);
}

/* ---- one product ---- */

/* x [outer, rows, parts, n] by a matrix: element (p, i), (q, k) of it is what part p of x[i] adds to part q of y[k]. */
static Value *dft_leaf(const Dft *d, Value *x, int64_t n, int64_t parts)
{
	const int64_t *dim = x->type.dim, in = dim[2] * n, out = parts * n;
	double *f = NEW_N(d->n->im->arena, double, in * out);
	for (int64_t r = 0; r < in; r++)
		for (int64_t c = 0; c < out; c++) {
			int64_t turn = r % n * (c % n);
			double sine = d->sign * turn_sin(turn, n);
			f[r * out + c] = r / n == c / n ? turn_cos(turn, n) : r / n ? -sine : sine;
		}
	Value *m = table(d, 2, (int64_t[]){in, out}, f);
	Value *y = ir_reshape(d->n->b, x, 3, (int64_t[]){dim[0], dim[1], in});
	return reshape4(d->n->b, emit_matmul(d->n->b, y, m, NULL, false, false), dim[0], dim[1], parts, n);
}

/* ---- two lengths ---- */

/* The divisor of n, up to LEAF_MAX, that splits it into the fewest and most equal lengths; 1: there is none. */
static int64_t dft_radix(int64_t n)
{
	double stages = ceil(log((double)n) / log(LEAF_MAX) - 1e-9), want = log((double)n) / stages;
	int64_t best = 1;
	for (int64_t k = 2; k <= LEAF_MAX; k++)
		if (n % k == 0 && (best == 1 || fabs(log((double)k) - want) < fabs(log((double)best) - want)))
			best = k;
	return best;
}

/* The factors e^(sign 2 pi i a b / n) for a below `as` and b below `bs`, [as, 1, bs]. */
static void dft_twiddles(const Dft *d, int64_t n, int64_t as, int64_t bs, Value **c, Value **s)
{
	double *cosine = NEW_N(d->n->im->arena, double, n), *sine = NEW_N(d->n->im->arena, double, n);
	for (int64_t i = 0; i < n; i++) {
		cosine[i] = turn_cos(i / bs * (i % bs), n);
		sine[i] = d->sign * turn_sin(i / bs * (i % bs), n);
	}
	*c = table(d, 3, (int64_t[]){as, 1, bs}, cosine);
	*s = table(d, 3, (int64_t[]){as, 1, bs}, sine);
}

static Value *dft_rows(const Dft *d, Value *x, int64_t n, int64_t parts);

/* Index i of x is n2 * i1 + i2, index k of y is k1 + n1 * k2. */
static Value *dft_split(const Dft *d, Value *x, int64_t n1, int64_t n2, int64_t parts)
{
	Builder *b = d->n->b;
	int64_t outer = x->type.dim[0], rows = x->type.dim[1], in = x->type.dim[2];
	Value *c, *s;
	x = ir_transpose(b, reshape5(b, x, rows, in, n1, n2), (int[]){0, 1, 4, 2, 3});
	x = dft_leaf(d, reshape4(b, x, outer, rows * n2, in, n1), n1, 2);
	dft_twiddles(d, n1 * n2, n2, n1, &c, &s);
	x = times_circle(d, reshape5(b, x, rows, n2, 2, n1), c, s);
	x = ir_transpose(b, x, (int[]){0, 1, 4, 3, 2});
	x = dft_rows(d, reshape4(b, x, outer, rows * n1, 2, n2), n2, parts);
	x = ir_transpose(b, reshape5(b, x, rows, n1, parts, n2), (int[]){0, 1, 3, 4, 2});
	return reshape4(b, x, outer, rows, parts, n1 * n2);
}

/* ---- any length ---- */

/* The transform of n complex numbers, a power of two, in place. */
static void host_dft(double *re, double *im, int64_t n)
{
	for (int64_t i = 1, j = 0; i < n; i++) {
		int64_t bit = n / 2;
		for (; j & bit; bit /= 2)
			j ^= bit;
		j ^= bit;
		if (i < j) {
			double r = re[i], m = im[i];
			re[i] = re[j], im[i] = im[j];
			re[j] = r, im[j] = m;
		}
	}
	for (int64_t half = 1; half < n; half *= 2)
		for (int64_t i = 0; i < n; i++) {
			if (i & half)
				continue;
			double c = turn_cos(i % half, 2 * half), s = -turn_sin(i % half, 2 * half);
			double r = re[i + half] * c - im[i + half] * s, m = re[i + half] * s + im[i + half] * c;
			re[i + half] = re[i] - r, im[i + half] = im[i] - m;
			re[i] += r, im[i] += m;
		}
}

/* With w(k) = e^(sign pi i k^2 / n), y[k] = w(k) * sum over i of (x[i] w(i)) / w(k - i): a convolution, which is a
 * product of transforms of a power of two. */
static Value *dft_chirp(const Dft *d, Value *x, int64_t n, int64_t parts)
{
	Builder *b = d->n->b;
	Arena *a = d->n->im->arena;
	int64_t m = 1;
	while (m < 2 * n - 1)
		m *= 2;
	double *wc = NEW_N(a, double, n), *ws = NEW_N(a, double, n);
	double *fc = NEW_N(a, double, m), *fs = NEW_N(a, double, m);
	memset(fc, 0, sizeof(*fc) * (size_t)m);
	memset(fs, 0, sizeof(*fs) * (size_t)m);
	for (int64_t k = 0; k < n; k++) {
		wc[k] = turn_cos(k * k, 2 * n);
		ws[k] = d->sign * turn_sin(k * k, 2 * n);
		fc[k] = fc[(m - k) % m] = wc[k] / (double)m;
		fs[k] = fs[(m - k) % m] = -ws[k] / (double)m;
	}
	host_dft(fc, fs, m);
	Dft there = {d->n, d->t, -1}, back = {d->n, d->t, 1};
	Value *c = table(d, 2, (int64_t[]){1, n}, wc), *s = table(d, 2, (int64_t[]){1, n}, ws);
	x = dft_rows(&there, fit_last(b, times_circle(d, x, c, s), m), m, 2);
	x = times_circle(d, x, table(d, 2, (int64_t[]){1, m}, fc), table(d, 2, (int64_t[]){1, m}, fs));
	x = times_circle(d, fit_last(b, dft_rows(&back, x, m, 2), n), c, s);
	return emit_slice(b, x, 2, 0, parts, 1);
}

/* Transforms the rows of x [outer, rows, 1 or 2, n]; parts: 1 for the real part of the result alone, else 2. */
static Value *dft_rows(const Dft *d, Value *x, int64_t n, int64_t parts)
{
	int64_t radix = n <= LEAF_MAX ? n : dft_radix(n);
	if (radix == n)
		return dft_leaf(d, x, n, parts);
	return radix > 1 ? dft_split(d, x, radix, n / radix, parts) : dft_chirp(d, x, n, parts);
}

/* ---- DFT ---- */

/* What a node asks for.  n: its length; bins: how many of the n numbers of a onesided spectrum there are, else n. */
typedef struct Spectrum { int axis; int64_t n, bins; bool inverse, onesided; } Spectrum;

static bool known_scalar(Node *n, int i, const char *what, int64_t *out)
{
	const int64_t *list;
	int count;
	if (!node_known_ints(n, i, what, &list, &count))
		return false;
	if (count != 1)
		return node_error(n, "%s has %d elements, expected one", what, count);
	*out = list[0];
	return true;
}

static bool check_length(Node *n, int64_t length)
{
	if (length < 1)
		return node_error(n, "its length is %" PRId64 ", expected at least 1", length);
	return length <= LENGTH_MAX || node_refuse(n, "a transform of %" PRId64 " is longer than %d, the longest whose "
		"constants a program can have; split the signal into frames", length, LENGTH_MAX);
}

static bool spectrum_read(Node *n, const Type *x, Spectrum *s)
{
	int64_t axis = node_int(n, "axis", 1);
	*s = (Spectrum){.inverse = node_int(n, "inverse", 0), .onesided = node_int(n, "onesided", 0)};
	if (!dtype_is_float(x->dtype) || x->rank < 2 || x->dim[x->rank - 1] < 1 || x->dim[x->rank - 1] > 2)
		return node_error(n, "wants floats of at least 2 dimensions, the last of 1 (real) or 2 (complex), got %s",
			type_str(n->im->arena, x));
	if (n->opset >= 20) {
		axis = -2;
		if (node_in(n, 2) && !known_scalar(n, 2, "axis", &axis))
			return false;
	}
	s->axis = node_axis(n, axis, x->rank);
	if (s->axis < 0)
		return false;
	bool complex = x->dim[x->rank - 1] == 2;
	if (s->axis == x->rank - 1)
		return node_error(n, "axis %d of %s is that of real and imaginary parts", s->axis, type_str(n->im->arena, x));
	if (s->onesided && complex != s->inverse)
		return node_error(n, "onesided wants %s, got %s", s->inverse ? "a complex spectrum" : "a real signal",
			type_str(n->im->arena, x));
	s->n = s->onesided && s->inverse ? 2 * (x->dim[s->axis] - 1) : x->dim[s->axis];
	if (node_in(n, 1) && !known_scalar(n, 1, "dft_length", &s->n))
		return false;
	if (!check_length(n, s->n))
		return false;
	s->bins = s->onesided ? s->n / 2 + 1 : s->n;
	return true;
}

/* The real signal of a onesided spectrum is the real part of the transform of twice what stands for two bins. */
static Value *whole_spectrum(const Dft *d, Value *x, const Spectrum *s)
{
	double *f = NEW_N(d->n->im->arena, double, s->bins);
	for (int64_t k = 0; k < s->bins; k++)
		f[k] = k == 0 || 2 * k == s->n ? 1 : 2;
	return fit_last(d->n->b, emit_mul(d->n->b, x, table(d, 1, &s->bins, f)), s->n);
}

/* x [outer, rows, 1 or 2, any] as the spectrum, or as the signal of one; not yet in the model's order of dims. */
static Value *transformed(const Dft *d, Value *x, const Spectrum *s)
{
	bool to_real = s->inverse && s->onesided;
	x = fit_last(d->n->b, x, s->inverse ? s->bins : s->n);
	if (to_real)
		x = whole_spectrum(d, x, s);
	x = dft_rows(d, x, s->n, to_real ? 1 : 2);
	if (s->inverse)
		return emit_scale(d->n->b, x, 1 / (double)s->n);
	return emit_slice(d->n->b, x, 3, 0, s->bins, 1);
}

bool import_dft(Node *n)
{
	Spectrum s;
	if (!node_want(n, 1, n->opset >= 20 ? 3 : 2) || !spectrum_read(n, &n->in[0]->type, &s))
		return false;
	Value *x = n->in[0];
	DType given = x->type.dtype;
	Dft d = {n, dtype_is_half(given) ? DT_F32 : given, s.inverse ? 1 : -1};
	int rank = x->type.rank, perm[IR_MAX_RANK], back[IR_MAX_RANK], count = 0;
	for (int i = 0; i < rank - 1; i++)
		if (i != s.axis)
			perm[count++] = i;
	perm[count++] = rank - 1;
	perm[count] = s.axis;
	for (int i = 0; i < rank; i++)
		back[perm[i]] = i;
	x = ir_transpose(n->b, ir_cast(n->b, x, d.t), perm);
	int64_t dim[IR_MAX_RANK], outer = rank > 2 && s.axis ? x->type.dim[0] : 1, rows = 1;
	memcpy(dim, x->type.dim, sizeof(dim));
	for (int i = outer == dim[0] && rank > 2 && s.axis; i < rank - 2; i++)
		rows *= dim[i];
	x = transformed(&d, reshape4(n->b, x, outer, rows, dim[rank - 2], dim[rank - 1]), &s);
	dim[rank - 2] = x->type.dim[2];
	dim[rank - 1] = x->type.dim[3];
	n->out[0] = ir_cast(n->b, ir_transpose(n->b, ir_reshape(n->b, x, rank, dim), back), given);
	return true;
}

/* ---- STFT ---- */

typedef struct Frames { int64_t step, length, taken, count; } Frames; /* taken: samples of a frame that have a window */

static bool frames_read(Node *n, const Type *x, Frames *f)
{
	const Value *window = node_in(n, 2);
	if (!dtype_is_float(x->dtype) || x->rank < 2 || x->rank > 3 || (x->rank == 3 && (x->dim[2] < 1 || x->dim[2] > 2)))
		return node_error(n, "wants a signal of floats [batch, samples, 1 or 2], got %s", type_str(n->im->arena, x));
	if (window && (window->type.rank != 1 || window->type.dtype != x->dtype))
		return node_error(n, "its window is %s, the signal %s", type_str(n->im->arena, &window->type),
			type_str(n->im->arena, x));
	f->length = window ? window->type.dim[0] : x->dim[1];
	if (!known_scalar(n, 1, "frame_step", &f->step)
			|| (node_in(n, 3) && !known_scalar(n, 3, "frame_length", &f->length)) || !check_length(n, f->length))
		return false;
	f->taken = window ? window->type.dim[0] : f->length;
	if (f->step < 1 || f->length > x->dim[1] || f->taken > f->length)
		return node_error(n, "frames of %" PRId64 " in steps of %" PRId64 ", with a window of %" PRId64
			", do not fit a signal of %" PRId64 " samples", f->length, f->step, f->taken, x->dim[1]);
	f->count = (x->dim[1] - f->length) / f->step + 1;
	return true;
}

bool import_stft(Node *n)
{
	Frames f;
	if (!node_want(n, 2, 4) || !frames_read(n, &n->in[0]->type, &f))
		return false;
	Builder *b = n->b;
	Value *x = n->in[0], *window = node_in(n, 2);
	DType given = x->type.dtype;
	Dft d = {n, dtype_is_half(given) ? DT_F32 : given, -1};
	int64_t parts = x->type.rank == 3 ? x->type.dim[2] : 1;
	Spectrum s = {.n = f.length, .bins = f.length, .onesided = node_int(n, "onesided", 1)};
	if (s.onesided && parts == 2)
		return node_error(n, "onesided wants a real signal, got %s", type_str(n->im->arena, &x->type));
	s.bins = s.onesided ? s.n / 2 + 1 : s.n;
	x = ir_reshape(b, ir_cast(b, x, d.t), 3, (int64_t[]){x->type.dim[0], x->type.dim[1], parts});
	Value *at = emit_add(b, emit_iota(b, DT_I64, 2, (int64_t[]){f.count, 1}, 0, 0, (double)f.step),
		emit_iota(b, DT_I64, 2, (int64_t[]){1, f.taken}, 1, 0, 1));
	x = ir_emit(b, OP_GATHER, 2, (Value *[]){x, at}, attr_int(b->m, NULL, "axis", 1));
	x = ir_transpose(b, x, (int[]){0, 1, 3, 2});
	if (window)
		x = emit_mul(b, x, ir_cast(b, window, d.t));
	x = transformed(&d, x, &s);
	n->out[0] = ir_cast(b, ir_transpose(b, x, (int[]){0, 1, 3, 2}), given);
	return true;
}

/* ---- windows ---- */

/* Emits a literal of the dtype that the node names. */
static bool emit_table(Node *n, int rank, const int64_t *dim, double *f)
{
	DType t = DT_F32;
	if (node_has(n, "output_datatype") && !node_dtype(n, "output_datatype", &t))
		return false;
	Dft d = {n, dtype_is_float(t) ? t : DT_F64, 0};
	n->out[0] = ir_cast(n->b, table(&d, rank, dim, f), t);
	return true;
}

/* a - b cos x + c cos 2x over one turn. */
static bool import_window(Node *n, double a, double b, double c)
{
	int64_t size;
	bool periodic = node_int(n, "periodic", 1);
	if (!node_want(n, 1, 1) || !known_scalar(n, 0, "size", &size))
		return false;
	if (size < 0 || size > LENGTH_MAX)
		return node_error(n, "its size is %" PRId64 ", 0 to %d are possible", size, LENGTH_MAX);
	double *f = NEW_N(n->im->arena, double, size + 1);
	int64_t turn = periodic ? size : size - 1;
	for (int64_t k = 0; k < size; k++)
		f[k] = turn ? a - b * turn_cos(k, turn) + c * turn_cos(2 * k, turn) : 1;
	return emit_table(n, 1, &size, f);
}

bool import_hann_window(Node *n) { return import_window(n, 0.5, 0.5, 0); }
bool import_hamming_window(Node *n) { return import_window(n, 25.0 / 46, 21.0 / 46, 0); }
bool import_blackman_window(Node *n) { return import_window(n, 0.42, 0.5, 0.08); }

/* ---- MelWeightMatrix ---- */

typedef struct Mel { int64_t bins, length, rate; double low, high; } Mel;

static bool known_float(Node *n, int i, const char *what, double *out)
{
	const EvalTensor *t = node_known(n, i);
	if (!t || !dtype_is_float(t->type.dtype) || type_numel(&t->type) != 1)
		return node_refuse(n, "its %s must be one float that is known at compile time", what);
	*out = t->f[0];
	return true;
}

/* The bin of the spectrum that edge i of the triangles lies in. */
static double mel_edge(const Mel *m, int64_t i)
{
	double low = 2595 * log1p(m->low / 700) / log(10), high = 2595 * log1p(m->high / 700) / log(10);
	double mel = low + (double)i * (high - low) / (double)(m->bins + 2);
	return floor((double)(m->length + 1) * 700 * expm1(mel / 2595 * log(10)) / (double)m->rate);
}

/* Column i rises from edge i to edge i + 1 and falls to edge i + 2. */
static void mel_fill(const Mel *m, double *f)
{
	for (int64_t i = 0; i < m->bins; i++) {
		int64_t left = (int64_t)mel_edge(m, i), top = (int64_t)mel_edge(m, i + 1);
		int64_t right = (int64_t)mel_edge(m, i + 2);
		for (int64_t k = left; k <= top; k++)
			f[k * m->bins + i] = top > left ? (double)(k - left) / (double)(top - left) : 1;
		for (int64_t k = top; k < right; k++)
			f[k * m->bins + i] = (double)(right - k) / (double)(right - top);
	}
}

bool import_mel_weight_matrix(Node *n)
{
	Mel m;
	if (!node_want(n, 5, 5) || !known_scalar(n, 0, "num_mel_bins", &m.bins)
			|| !known_scalar(n, 1, "dft_length", &m.length) || !known_scalar(n, 2, "sample_rate", &m.rate)
			|| !known_float(n, 3, "lower_edge_hertz", &m.low) || !known_float(n, 4, "upper_edge_hertz", &m.high))
		return false;
	int64_t dim[2] = {m.length / 2 + 1, m.bins};
	if (m.bins < 1 || m.bins > LENGTH_MAX || m.length < 1 || m.length > LENGTH_MAX || m.rate < 1
			|| dim[0] * m.bins > EVAL_MAX)
		return node_error(n, "%" PRId64 " mel bins of a spectrum of length %" PRId64 " at rate %" PRId64
			" are not possible", m.bins, m.length, m.rate);
	if (!(m.low >= 0) || !(m.high >= m.low) || !(mel_edge(&m, m.bins + 1) < (double)dim[0]))
		return node_error(n, "edges of %g and %g hertz do not fit a spectrum of %" PRId64 " bins at rate %" PRId64,
			m.low, m.high, dim[0], m.rate);
	double *f = NEW_N(n->im->arena, double, dim[0] * m.bins);
	memset(f, 0, sizeof(*f) * (size_t)(dim[0] * m.bins));
	mel_fill(&m, f);
	return emit_table(n, 2, dim, f);
}
