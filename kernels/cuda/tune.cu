/* kernels/cuda/tune.cu: which algorithm of cublasLt a product takes where one was measured (--tune).
 *
 * The library orders its proposals by a model of the device.  Here each is run on operands of its own, and the quickest
 * is kept as a line of text, which a later run gives back: so a choice is measured once, and every run that has the
 * text computes the same bits.  An algorithm is written as its bytes, which the library takes back in the same version,
 * and cublasLtMatmulAlgoCheck asks whether it still fits. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/prim.cuh"

#define KEY_ENDS " = "

static struct {
	bool on;
	KTuneProgress *progress;
	void *context;
	const char *known;     /* header and lines of earlier runs, or "" */
	FILE *out;             /* lines of this run */
	char *text;
	size_t bytes;
	KTuned counts;
} tune;

/* ---- text: a header, then "PRODUCT = ALGORITHM, MICROSECONDS of each proposal" ---- */

static const char *next_line(const char *at)
{
	at += strcspn(at, "\n");
	return at + (*at == '\n');
}

/* Whether times end a line as put_line writes them: "", or ", us " and numbers with one digit behind the point. */
static bool are_times(const char *at, const char *end)
{
	static const char digits[] = "0123456789";
	for (const char *before = ", us "; at < end; before = " ") {
		if (strncmp(at, before, strlen(before)))
			return false;
		at += strlen(before);
		size_t whole = strspn(at, digits);
		if (whole && at[whole] == '.' && strspn(at + whole + 1, digits) == 1)
			at += whole + 2;
		else if (*at++ != '-')
			return false;
	}
	return at == end;
}

/* Bytes of the key that the line begins with; 0 for a line that is not as put_line writes it, which counts for
 * nothing. */
static size_t key_bytes(const char *line)
{
	const size_t digits = 2 * sizeof(cublasLtMatmulAlgo_t);
	size_t n = strcspn(line, "\n");
	const char *key_end = (const char *)memmem(line, n, KEY_ENDS, strlen(KEY_ENDS));
	const char *algo = key_end ? key_end + strlen(KEY_ENDS) : NULL;
	bool ok = algo && strspn(algo, "0123456789abcdef") == digits && are_times(algo + digits, line + n);
	return ok ? (size_t)(algo - line) : 0;
}

/* The rest of the line with this key of n bytes; NULL: there is none. */
static const char *line_of(const char *text, const char *key, size_t n)
{
	for (const char *at = text; *at; at = next_line(at))
		if (!strncmp(at, key, n) && key_bytes(at) == n)
			return at + n;
	return NULL;
}

static void put_header(char *to, size_t room)
{
	struct cudaDeviceProp p;
	int device = 0;
	launched(cudaGetDevice(&device), "tuning");
	launched(cudaGetDeviceProperties(&p, device), "tuning");
	snprintf(to, room, "products of %s (%d.%d), cublasLt %zu\n", p.name, p.major, p.minor, cublasLtGetVersion());
}

bool k_tune_begin(const char *known, KTuneProgress *progress, void *context)
{
	char header[400];
	put_header(header, sizeof(header));
	if (*known && strncmp(known, header, strlen(header)))
		return false;
	tune = {};
	tune.on = true;
	tune.progress = progress;
	tune.context = context;
	tune.known = known;
	tune.out = open_memstream(&tune.text, &tune.bytes);
	if (!tune.out)
		k_fail("out of memory for choices of products");
	fputs(header, tune.out);
	fflush(tune.out); /* into tune.text */
	for (const char *at = *known ? next_line(known) : known; *at; at = next_line(at))
		tune.counts.not_understood += !key_bytes(at);
	return true;
}

static bool same_line(const char *a, const char *b)
{
	size_t n = strcspn(a, "\n");
	return strcspn(b, "\n") == n && !memcmp(a, b, n);
}

static void put_rest(FILE *out, const char *line)
{
	fprintf(out, "%.*s\n", (int)strcspn(line, "\n"), line);
}

char *k_tune_merge(const char *own, const char *known, const char *now)
{
	char *text = NULL;
	size_t bytes, n;
	if (*now && !same_line(own, now))
		return NULL;
	FILE *out = open_memstream(&text, &bytes);
	if (!out)
		k_fail("out of memory for choices of products");
	put_rest(out, own);
	for (const char *at = own; *at; at = next_line(at)) {
		if (!(n = key_bytes(at)))
			continue;
		const char *new_one = line_of(now, at, n), *old = new_one ? line_of(known, at, n) : NULL;
		fprintf(out, "%.*s", (int)n, at);
		put_rest(out, new_one && !(old && same_line(old, new_one)) ? new_one : at + n);
	}
	for (const char *at = now; *at; at = next_line(at))
		if ((n = key_bytes(at)) && !line_of(own, at, n))
			put_rest(out, at);
	if (fclose(out))
		k_fail("out of memory for choices of products");
	return text;
}

/* Lines of products that this program does not have are kept for those that do. */
char *k_tune_end(KTuned *counts)
{
	if (fclose(tune.out))
		k_fail("out of memory for choices of products");
	char *text = k_tune_merge(tune.text, tune.known, tune.known);
	free(tune.text);
	tune.on = false;
	*counts = tune.counts;
	return text;
}

bool tune_on(void) { return tune.on; }

static const char *name_of(KDType t)
{
	switch (t) {
	case K_F32: return "f32";
	case K_F64: return "f64";
	case K_BF16: return "bf16";
	case K_F16: return "f16";
	case K_E4M3: return "e4m3";
	case K_E5M2: return "e5m2";
	default: return "?";
	}
}

static void key_of(const KMatmulDesc *d, char *to, size_t room)
{
	int n = snprintf(to, room, "%s%s%s to %s%s, %lld x %lld x %lld, rows %lld%s %lld%s %lld", name_of(d->dtype),
		is_f8(d->dtype) ? " with " : "", is_f8(d->dtype) ? name_of(d->b_dtype) : "", name_of(d->to),
		prim_tf32() ? " by tf32" : "", (long long)d->m, (long long)d->n, (long long)d->k, (long long)d->lda,
		d->ta ? "t" : "", (long long)d->ldb, d->tb ? "t" : "", (long long)d->ldy);
	for (int i = 0; i < d->n_batch; i++)
		n += snprintf(to + n, room - (size_t)n, ", batch %lld by %lld %lld", (long long)d->batch[i],
			(long long)d->sa[i], (long long)d->sb[i]);
	static const char *const epilogues[] = {"",
#define EPILOGUE(id, text, ...) ", " text,
#include "base/epilogues.def"
	};
	snprintf(to + n, room - (size_t)n, "%s%s%s, apart %lld, work %lld" KEY_ENDS, d->bias ? ", bias" : "",
		d->add ? ", add" : "", epilogues[d->epilogue], (long long)d->apart, (long long)d->work_bytes);
}

/* Of the digits that key_bytes has seen. */
static cublasLtMatmulAlgo_t read_algo(const char *line)
{
	cublasLtMatmulAlgo_t algo;
	unsigned char *to = (unsigned char *)&algo;
	for (size_t i = 0; i < sizeof algo; i++, line += 2) {
		const char two[] = {line[0], line[1], '\0'};
		to[i] = (unsigned char)strtol(two, NULL, 16);
	}
	return algo;
}

/* n: times that were measured, 0 for a product that could not be; "-" for a proposal that could not be run. */
static void put_line(const char *key, const cublasLtMatmulAlgo_t *algo, const float *us, int n)
{
	const unsigned char *from = (const unsigned char *)algo;
	fputs(key, tune.out);
	for (size_t i = 0; i < sizeof *algo; i++)
		fprintf(tune.out, "%02x", from[i]);
	for (int i = 0; i < n; i++) {
		fputs(i ? " " : ", us ", tune.out);
		us[i] < FLT_MAX ? fprintf(tune.out, "%.1f", us[i]) : fputs("-", tune.out);
	}
	fputc('\n', tune.out);
	fflush(tune.out); /* into tune.text */
}

/* ---- measuring ---- */

/* Words of four 8-bit numbers, of two 16-bit ones, of one f32, or of half an f64, whose sizes are in [0.5, 1): products
 * of zeros would take less power than those of a step. */
static __global__ void fill(uint32_t *x, int64_t words, uint32_t always, uint32_t some)
{
	GRID_STRIDE(i, words)
		x[i] = always | ((uint32_t)i * 2654435761u >> 3 & some);
}

static void fill_words(void *x, int64_t bytes, uint32_t always, uint32_t some)
{
	LAUNCH(fill, blocks_for(bytes / 4, 1024), 256, 0, k_stream, (uint32_t *)x, bytes / 4, always, some);
}

static void fill_operand(void *x, int64_t bytes, KDType t)
{
	switch (t) {
	case K_E4M3: fill_words(x, bytes, 0x30303030, 0x87878787); break;
	case K_E5M2: fill_words(x, bytes, 0x38383838, 0x83838383); break;
	case K_BF16: fill_words(x, bytes, 0x3f003f00, 0x807f807f); break;
	case K_F16: fill_words(x, bytes, 0x38003800, 0x83ff83ff); break;
	case K_F32: fill_words(x, bytes, 0x3f000000, 0x807fffff); break;
	default: fill_words(x, bytes, 0x3fe00000, 0x800fffff);
	}
}

typedef struct Trial {
	KPrim *p;
	char *memory, *y, *a, *b, *bias, *work;
} Trial;

/* Bytes of what one launch reaches of an operand, in whole lines. */
static int64_t reached(const KMatmulDesc *d, int64_t rows, int64_t row, int64_t apart, int strided, KDType t)
{
	int64_t elements = rows * row + (d->n_batch ? (d->batch[strided] - 1) * apart : 0);
	return ceil_div(elements * dtype_bytes(t), 256) * 256;
}

/* Bytes of what an epilogue reads or writes beside y: of y's size, or a sum for each row or column. */
static int64_t aux_bytes(const KMatmulDesc *d, int64_t y)
{
	int64_t sums = ceil_div((d->m > d->n ? d->m : d->n) * 4, 256) * 256;
	return !d->epilogue ? 0 : y > sums ? y : sums;
}

/* Allocates operands, which no tensor of the step is, and workspace; false: there is no memory for them. */
static bool trial_begin(Trial *t, KPrim *p, int64_t work)
{
	const KMatmulDesc *d = &p->matmul;
	int s = p->lt.strided;
	int64_t y_apart = d->m * d->ldy;
	for (int i = d->n_batch - 1; i > s; i--)
		y_apart *= d->batch[i];
	int64_t y = reached(d, d->m, d->ldy, y_apart, s, matmul_y(d)), bias = ceil_div(d->n * 8, 256) * 256;
	int64_t a = reached(d, d->ta ? d->k : d->m, d->lda, d->n_batch ? d->sa[s] : 0, s, d->dtype);
	int64_t b = reached(d, d->tb ? d->n : d->k, d->ldb, d->n_batch ? d->sb[s] : 0, s, matmul_b(d));
	int64_t aux = aux_bytes(d, y), scales = is_f8(d->dtype) ? 256 : 0;
	*t = {};
	t->p = p;
	if (cudaMalloc((void **)&t->memory, (size_t)(y + a + b + bias + aux + scales + work)) != cudaSuccess) {
		cudaGetLastError(); /* it is dealt with */
		return false;
	}
	t->y = t->memory;
	t->a = t->y + y;
	t->b = t->a + a;
	t->bias = t->b + b;
	p->lt.aux = t->bias + bias;
	char *scale = t->bias + bias + aux;
	t->work = scale + scales;
	launched(cudaMemsetAsync(t->y, 0, (size_t)y, k_stream), "tuning");
	fill_operand(t->a, a, d->dtype);
	fill_operand(t->b, b, matmul_b(d));
	fill_operand(t->bias, bias + aux, matmul_bias(d));
	if (scales) {
		p->lt.a_scale = p->lt.b_scale = (float *)(void *)scale;
		fill_words(scale, scales, 0x3f800000, 0); /* 1 */
	}
	return true;
}

static void trial_end(const Trial *t)
{
	launched(cudaStreamSynchronize(k_stream), "tuning");
	launched(cudaFree(t->memory), "tuning");
}

static bool run_once(const Trial *t)
{
	return matmul_launch(t->p, t->y, t->a, t->b, t->bias, t->work) == CUBLAS_STATUS_SUCCESS;
}

/* Microseconds of a launch, the mean of `times` that follow each other; FLT_MAX if the library cannot do it after all,
 * as it sometimes finds out no sooner. */
static float take_time(const Trial *t, cudaEvent_t begin, cudaEvent_t end, int times)
{
	float ms = 0;
	if (!run_once(t)) /* loads the kernel */
		return FLT_MAX;
	launched(cudaEventRecord(begin, k_stream), "tuning");
	for (int i = 0; i < times; i++)
		run_once(t);
	launched(cudaEventRecord(end, k_stream), "tuning");
	launched(cudaEventSynchronize(end), "tuning");
	launched(cudaEventElapsedTime(&ms, begin, end), "tuning");
	return ms * 1e3f / (float)times;
}

/* us[i]: of proposal i, the less of two rounds; a round takes about two milliseconds, or one launch. */
static void measure(const Trial *t, const cublasLtMatmulHeuristicResult_t *found, int n, float *us)
{
	const float round_us = 2000, most = 50;
	cudaEvent_t begin, end;
	launched(cudaEventCreate(&begin), "tuning");
	launched(cudaEventCreate(&end), "tuning");
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < n; i++) {
			matmul_take(t->p, &found[i]);
			float once = round ? us[i] : take_time(t, begin, end, 1);
			float times = once * most < round_us ? most : once < round_us ? round_us / once : 1;
			float now = take_time(t, begin, end, (int)times);
			us[i] = round && us[i] < now ? us[i] : now;
		}
	launched(cudaEventDestroy(begin), "tuning");
	launched(cudaEventDestroy(end), "tuning");
}

/* The quickest, or the library's first where none is 2% quicker, or where the first takes less than SMALL microseconds,
 * which are the host's: so noise changes no choice. */
static int quickest(const float *us, int n)
{
	const float SMALL = 10;
	int best = 0;
	for (int i = 1; i < n; i++)
		if (us[i] < us[best])
			best = i;
	return us[0] >= SMALL && us[best] < us[0] * 0.98f ? best : 0;
}

/* ---- choice ---- */

/* Takes what the line names; false: there is none, or the library does not take it for this product. */
static bool take_line(KPrim *p, const char *line)
{
	cublasLtMatmulHeuristicResult_t r = {};
	if (!line)
		return false;
	cublasLtMatmulAlgo_t algo = read_algo(line);
	if (cublasLtMatmulAlgoCheck(prim_lt(), p->lt.op, p->lt.b, p->lt.a, p->lt.y, p->lt.y, &algo, &r) !=
		CUBLAS_STATUS_SUCCESS)
		return false;
	r.algo = algo; /* the check sets all but this */
	bool may = matmul_may_take(p, &r);
	if (may)
		matmul_take(p, &r);
	return may;
}

void tune_choose(KPrim *p, const cublasLtMatmulHeuristicResult_t *found, int n)
{
	char key[1200]; /* 800 at most: of 6 batch dims and 64-bit sizes */
	float us[TUNE_PROPOSALS];
	int64_t work = 0;
	Trial t;
	key_of(&p->matmul, key, sizeof key);
	if (take_line(p, line_of(tune.text, key, strlen(key))))
		return;
	const char *line = line_of(tune.known, key, strlen(key));
	if (take_line(p, line)) {
		fputs(key, tune.out);
		put_rest(tune.out, line);
		fflush(tune.out);
		tune.counts.known++;
		return;
	}
	for (int i = 0; i < n; i++)
		work = (int64_t)found[i].workspaceSize > work ? (int64_t)found[i].workspaceSize : work;
	matmul_take(p, &found[0]);
	if (!tune.progress || !trial_begin(&t, p, work)) {
		put_line(key, &found[0].algo, NULL, 0);
		tune.counts.unmeasured++;
		return;
	}
	tune.progress(tune.context);
	measure(&t, found, n, us);
	trial_end(&t);
	const cublasLtMatmulHeuristicResult_t *best = &found[quickest(us, n)];
	matmul_take(p, best);
	put_line(key, &best->algo, us, n);
	tune.counts.measured++;
}
