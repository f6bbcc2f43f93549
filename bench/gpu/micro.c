/* bench/gpu/micro.c: what a GPU gives to kernels that run alone: ceilings of products and of copies, and the products
 * of GPT-2 124M's logits (65,536 tokens, bf16) whose rows of 50257 numbers follow each other, or lie 50304 apart.
 *
 * A line of JSON for each: its name, and {"ms", "rate", "unit"}, the median of several series between two events.  A
 * product has "us", too: the microseconds of all algorithms that the library proposes, its first choice first (--tune
 * of programs).  Kernels of a model's step are measured by its program instead: --trace, and alone --time-ops.
 *
 * usage: micro [tiny]      tiny: of a few rows, for the emulation */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/work.h"

enum { SERIES = 7, LONG_ENOUGH = 20 /* milliseconds of a series */, MOST = 200 /* calls in one */ };

typedef struct Product {
	const char *name;
	int64_t m, n, k, lda, ldb, ldy;
	bool ta, tb;
	KDType to;
	char *us; /* of all proposals; "": not measured */
} Product;

static cudaEvent_t from, till;
static void *work;

static void ok(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return;
	fprintf(stderr, "micro: %s: %s\n", what, cudaGetErrorString(e));
	exit(3);
}

/* Words of two bf16, or of one f32, of sizes in [0.5, 1) and either sign: products of equal numbers would take less
 * power than a step's.  The first TILE bytes are repeated. */
static void *memory(int64_t bytes)
{
	enum { TILE = 1 << 20 };
	static uint32_t tile[TILE / 4];
	char *p = NULL;
	for (uint32_t i = 0; i < TILE / 4; i++)
		tile[i] = 0x3f003f00 | (i * 2654435761u >> 3 & 0x807f807f);
	ok(cudaMalloc((void **)&p, (size_t)bytes), "cudaMalloc");
	int64_t done = bytes < TILE ? bytes : TILE;
	ok(cudaMemcpy(p, tile, (size_t)done, cudaMemcpyHostToDevice), "cudaMemcpy");
	for (int64_t more; done < bytes; done += more) {
		more = done < bytes - done ? done : bytes - done;
		ok(cudaMemcpyAsync(p + done, p, (size_t)more, cudaMemcpyDeviceToDevice, k_stream), "cudaMemcpyAsync");
	}
	ok(cudaStreamSynchronize(k_stream), "cudaStreamSynchronize");
	return p;
}

static float series(void (*call)(void *), void *context, int n)
{
	float ms = 0;
	ok(cudaEventRecord(from, k_stream), "cudaEventRecord");
	for (int i = 0; i < n; i++)
		call(context);
	ok(cudaEventRecord(till, k_stream), "cudaEventRecord");
	ok(cudaEventSynchronize(till), "cudaEventSynchronize");
	ok(cudaEventElapsedTime(&ms, from, till), "cudaEventElapsedTime");
	return ms / (float)n;
}

static int less(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

/* Milliseconds of a call. */
static double timed(void (*call)(void *), void *context)
{
	float ms[SERIES];
	series(call, context, 1);
	float one = series(call, context, 1);
	int n = one * MOST > LONG_ENOUGH ? (int)(LONG_ENOUGH / one) + 1 : MOST;
	for (int i = 0; i < SERIES; i++)
		ms[i] = series(call, context, n);
	qsort(ms, SERIES, sizeof *ms, less);
	return ms[SERIES / 2];
}

/* ---- copies ---- */

typedef struct Copy { void *to, *from; int64_t n; } Copy;
static void copy_by_driver(void *c)
{
	const Copy *a = c;
	ok(cudaMemcpyAsync(a->to, a->from, (size_t)a->n * 4, cudaMemcpyDeviceToDevice, k_stream), "cudaMemcpyAsync");
}
static void copy_by_kernel(void *c)
{
	const Copy *a = c;
	k_device_cast(a->to, K_F32, a->from, K_BF16, a->n);
}

static void put_copy(const char *name, double ms, double bytes)
{
	printf("{\"name\": \"%s\", \"ms\": %.4f, \"rate\": %.1f, \"unit\": \"GB/s\"}\n", name, ms, bytes * 1e-6 / ms);
}

/* Of n floats, and of n bf16 to floats: bytes that are read and written. */
static void copies(int64_t n)
{
	Copy a = {memory(n * 4), memory(n * 4), n};
	double ms = timed(copy_by_driver, &a);
	put_copy("copy by the driver", ms, (double)n * 8);
	ms = timed(copy_by_kernel, &a);
	put_copy("our cast of bf16 to f32", ms, (double)n * 6);
	ok(cudaFree(a.to), "cudaFree");
	ok(cudaFree(a.from), "cudaFree");
}

/* ---- products ---- */

typedef struct Run { KPrim *p; void *y, *a, *b; } Run;
static void run(void *c)
{
	const Run *r = c;
	k_matmul_run(r->p, r->y, r->a, r->b, NULL, work);
}

static KPrim *create(const Product *p)
{
	return k_matmul_create(&(KMatmulDesc){.dtype = K_BF16, .to = p->to, .m = p->m, .n = p->n, .k = p->k, .ta = p->ta,
		.tb = p->tb, .lda = p->lda, .ldb = p->ldb, .ldy = p->ldy, .work_bytes = K_LT_WORK});
}

static void goes_on(void *context) { (void)context; }

/* All that the library proposes, by itself, before what it takes first is timed below. */
static void propose(Product *p)
{
	KTuned counts;
	if (!k_tune_begin("", goes_on, NULL))
		return;
	k_prim_free(create(p));
	char *text = k_tune_end(&counts), *line = strchr(text, '\n'), *us = line ? strstr(line + 1, "us ") : NULL;
	p->us = us ? strndup(us + 3, strcspn(us + 3, "\n")) : strdup("");
	free(text);
}

static void product(Product *p)
{
	int64_t a = p->ta ? p->k : p->m, b = p->tb ? p->n : p->k;
	propose(p);
	int64_t y_bytes = p->m * p->ldy * (p->to == K_F32 ? 4 : 2);
	Run r = {create(p), memory(y_bytes), memory(a * p->lda * 2), memory(b * p->ldb * 2)};
	double ms = timed(run, &r);
	printf("{\"name\": \"%s\", \"ms\": %.4f, \"rate\": %.1f, \"unit\": \"TFLOP/s\", \"us\": \"%s\"}\n", p->name, ms,
		2e-9 * (double)p->m * (double)p->n * (double)p->k / ms, p->us);
	fflush(stdout);
	k_prim_free(r.p);
	ok(cudaFree(r.y), "cudaFree");
	ok(cudaFree(r.a), "cudaFree");
	ok(cudaFree(r.b), "cudaFree");
	free(p->us);
}

/* Logits (t, v) of x (t, d) and a table (v, d), and both gradients, with rows of `pitch`. */
static void logits(int64_t t, int64_t v, int64_t d, int64_t pitch)
{
	char name[3][64];
	static const char *const what[] = {"logits", "gradient of their input", "gradient of their table"};
	for (int i = 0; i < 3; i++)
		snprintf(name[i], sizeof name[i], "%s, rows of %lld", what[i], (long long)pitch);
	Product p[] = {
		{.name = name[0], .m = t, .n = v, .k = d, .lda = d, .ldb = d, .ldy = pitch, .tb = true, .to = K_BF16},
		{.name = name[1], .m = t, .n = d, .k = v, .lda = pitch, .ldb = d, .ldy = d, .to = K_BF16},
		{.name = name[2], .m = v, .n = d, .k = t, .lda = pitch, .ldb = d, .ldy = d, .ta = true, .to = K_F32},
	};
	for (int i = 0; i < 3; i++)
		product(&p[i]);
}

int main(int n, char **args)
{
	bool tiny = n > 1 && !strcmp(args[1], "tiny");
	int64_t side = tiny ? 128 : 8192, tokens = tiny ? 64 : 65536, words = tiny ? 301 : 50257, width = tiny ? 64 : 768;
	if (n > 1 + tiny) {
		fprintf(stderr, "usage: micro [tiny]\n");
		return 2;
	}
	ok(cudaStreamCreate(&k_stream), "cudaStreamCreate");
	ok(cudaEventCreate(&from), "cudaEventCreate");
	ok(cudaEventCreate(&till), "cudaEventCreate");
	k_cuda_open(false);
	work = memory(K_LT_WORK);
	copies(tiny ? 4096 : 1 << 28);
	product(&(Product){.name = "square product", .m = side, .n = side, .k = side, .lda = side, .ldb = side,
		.ldy = side, .to = K_BF16});
	logits(tokens, words, width, words);
	logits(tokens, words, width, (words + 63) / 64 * 64);
	k_cuda_close();
	return 0;
}
