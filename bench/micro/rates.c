/* bench/micro/rates.c: the rates that no training step on this machine exceeds, from which the floors of a step follow.
 *
 * usage: bench_rates SECONDS TYPE..      TYPE: f32, bf16 or f16; OMP_NUM_THREADS threads; make bench builds it
 *
 * Prints one JSON object: of each type the flop/s of the fastest of some large products and of some convolutions;
 * bytes/s, read and written, of a sum in place by the bytes that it works on, in rising order; exponentials a second of
 * numbers in the nearest cache.  Each is the best of several runs, which take SECONDS together or a little longer.
 * Exit status: 0; 2: SECONDS is no number above 0, or a type has no such name; 3: there is too little memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/ew.h"
#include "kernels/kernels.h"

enum { WORK = 64 << 20 };
enum { REPEATS = 3 };
static double patience; /* seconds that a body is repeated for, and at least REPEATS times */
static void *work;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Sets best to the shortest time of body. */
#define TIME(best, body) do { \
	best = INFINITY; \
	double from_ = now(); \
	for (int r_ = 0; r_ < REPEATS || now() - from_ < patience; r_++) { \
		double t_ = now(); \
		body; \
		best = fmin(best, now() - t_); \
	} \
} while (0)

/* Memory of n numbers near 1 in every type, touched by the threads that use it. */
static void *numbers(int64_t n)
{
	uint32_t *p = aligned_alloc(64, (size_t)(n * 4 + 63) / 64 * 64);
	if (!p)
		exit(3);
	#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < n; i++)
		p[i] = 0x3C003C00; /* 0.0078 in f32 and bf16, 1 in f16 */
	return p;
}

static double product(KDType type, int64_t m, int64_t n, int64_t k)
{
	KPrim *p = k_matmul_create(&(KMatmulDesc){.dtype = type, .to = type, .m = m, .n = n, .k = k, .tb = true,
		.work_bytes = WORK});
	void *a = numbers(m * k), *b = numbers(n * k), *y = numbers(m * n);
	double best;
	TIME(best, k_matmul_run(p, y, a, b, NULL, work));
	k_prim_free(p);
	free(a), free(b), free(y);
	return 2 * (double)m * (double)n * (double)k / best;
}

/* Of 8 maps of `in` x `in`; the fastest of the convolution and both of its gradients. */
static double convolution(KDType type, int64_t c, int64_t in, int64_t o, int64_t k)
{
	int64_t n = 8, pad = k / 2;
	KConvDesc d = {.dtype = type, .to = type, .rank = 2, .n = n, .c = c, .o = o, .group = 1, .in = {in, in},
		.out = {in, in}, .kernel = {k, k}, .stride = {1, 1}, .dilation = {1, 1}, .pad = {pad, pad},
		.pad_end = {pad, pad}, .layout = 1, .work_bytes = WORK};
	KPrim *run = k_conv_create(&d), *to_x = k_conv_grad_x_create(&d), *to_w = k_conv_grad_w_create(&d);
	void *x = numbers(n * in * in * c), *w = numbers(o * c * k * k), *y = numbers(n * in * in * o);
	double forward, grad_x, grad_w;
	TIME(forward, k_conv_run(run, y, x, w, NULL, work));
	TIME(grad_x, k_conv_grad_x_run(to_x, x, y, w, NULL, work));
	TIME(grad_w, k_conv_grad_w_run(to_w, w, x, y, work));
	k_prim_free(run), k_prim_free(to_x), k_prim_free(to_w);
	free(x), free(w), free(y);
	return 2 * (double)(n * in * in) * (double)(o * c * k * k) / fmin(forward, fmin(grad_x, grad_w));
}

/* x += y, both of half the bytes: nothing is read only because it is written. */
static double bandwidth(int64_t bytes)
{
	int64_t n = bytes / 8, rounds = 1 + (1 << 26) / bytes;
	float *x = numbers(n), *y = numbers(n);
	double best;
	TIME(best,
		_Pragma("omp parallel")
		for (int64_t r = 0; r < rounds; r++) {
			_Pragma("omp for simd schedule(static) nowait")
			for (int64_t i = 0; i < n; i++)
				x[i] += y[i];
		});
	free(x), free(y);
	return 12 * (double)(n * rounds) / best;
}

static double exponentials(void)
{
	enum { N = 2048, ROUNDS = 512 };
	double best, of_all = 0;
	TIME(best, of_all = 0;
		_Pragma("omp parallel reduction(+ : of_all)")
		{
			float x[N];
			for (int i = 0; i < N; i++)
				x[i] = (float)i * 1e-3f;
			for (int r = 0; r < ROUNDS; r++) {
				_Pragma("omp simd")
				for (int i = 0; i < N; i++)
					x[i] = ew_exp_f32(-x[i]);
			}
			of_all += N * ROUNDS + 0 * (double)x[N - 1];
		});
	return of_all / best;
}

static double best_product(KDType type)
{
	return fmax(product(type, 1024, 1024, 1024), fmax(product(type, 1024, 3072, 768), product(type, 2048, 2048, 2048)));
}

static double best_convolution(KDType type)
{
	return fmax(fmax(convolution(type, 64, 56, 64, 3), convolution(type, 128, 28, 128, 3)),
		fmax(convolution(type, 256, 14, 256, 3), convolution(type, 1024, 14, 256, 1)));
}

static void print_types(const char *name, double (*of)(KDType type), char **types, int n)
{
	static const char *const text[] = {[K_F32] = "f32", [K_BF16] = "bf16", [K_F16] = "f16"};
	printf("\"%s\": {", name);
	for (int i = 0; i < n; i++) {
		KDType type = 0;
		while (type < sizeof text / sizeof *text && (!text[type] || strcmp(text[type], types[i])))
			type++;
		if (type == sizeof text / sizeof *text) {
			fprintf(stderr, "rates: %s is none of f32, bf16, f16\n", types[i]);
			exit(2);
		}
		printf("%s\"%s\": %.4g", i ? ", " : "", types[i], of(type));
	}
	printf("}, ");
}

int main(int argc, char **argv)
{
	patience = argc > 1 ? strtod(argv[1], NULL) : 0;
	if (!(patience > 0)) {
		fprintf(stderr, "usage: bench_rates SECONDS TYPE.. (f32, bf16, f16)\n");
		return 2;
	}
	work = numbers(WORK / 4);
	printf("{");
	print_types("products", best_product, argv + 2, argc - 2);
	print_types("convolutions", best_convolution, argv + 2, argc - 2);
	printf("\"bandwidth\": [");
	for (int64_t bytes = 1 << 17; bytes <= 1 << 29; bytes *= 4)
		printf("%s[%lld, %.4g]", bytes > 1 << 17 ? ", " : "", (long long)bytes, bandwidth(bytes));
	printf("], \"special\": %.4g}\n", exponentials());
	free(work);
	return 0;
}
