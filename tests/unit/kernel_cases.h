/* tests/unit/kernel_cases.h: what the kernel tests share.  A case is a function named case_<op>; the table in
 * test_kernels.c needs one for each row of kernels/kernels.def. */
#ifndef SHARDC_KERNEL_CASES_H
#define SHARDC_KERNEL_CASES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/cuda/work.h"
#include "tests/unit/unit.h"

#define KERNEL(op, types, work, cuda) void case_##op(void);
#include "kernels/kernels.def"
/* kernel_half.c: families of kernels that also serve 16-bit types */
#define KERNEL_HALF_CASES(X) X(norms) X(batch_norm) X(softmax) X(attention) X(rope) X(dropout) X(gather_grad) X(pool) \
	X(reduce) X(accumulate) X(cross_entropy)
#define HALF_CASE(name) void case_half_##name(void);
KERNEL_HALF_CASES(HALF_CASE)
#undef HALF_CASE

/* Buffers live until the test of the row ends; values are reproducible, uniform in [lo, hi). */
void *case_alloc(int64_t bytes);
/* What case_alloc is made of: `bytes` for kernels, `whole` for the host. */
void *case_memory(int64_t bytes, int64_t whole);
void case_release(void *p);
/* Waits for results.  Between a kernel's call and this a test may read what the kernel reads, and touch nothing that it
 * writes; case_close, case_equal and their like begin with it. */
void case_sync(void);
void case_end(void); /* of a test: frees buffers, and wants no bad input untold */
bool case_cuda(void); /* the kernels are CUDA's; those tell of the first bad input only */
void *case_bytes(const void *x, int64_t bytes); /* a copy */
float *case_floats(int64_t n, double lo, double hi);
double *case_doubles(int64_t n);
/* The same numbers as elements of type f32, bf16 or f16, where x is rounded to what they hold. */
void *case_halves(float *x, int64_t n, KDType type);
float *case_widened(const void *x, int64_t n, KDType type);
static inline double case_half_bound(KDType t) { return t == K_BF16 ? 0x1p-8 : t == K_F16 ? 0x1p-11 : 1e-6; }
/* Hides keys in a mask of n elements, s keys a row, by finite numbers that `type` holds: all keys of some rows, by the
 * lowest one or another, and some keys of others. */
void case_hide(float *mask, int64_t n, int64_t s, KDType type);
int64_t *case_ids(int64_t n, int64_t below);
int64_t case_random(int64_t below);
/* Norm of the difference over the norm of want at most tol; says the name, the error and the sizes. */
void case_close(const char *name, const float *got, const double *want, int64_t n, double tol);
void case_close64(const char *name, const double *got, const double *want, int64_t n, double tol);
void case_equal(const char *name, const void *got, const void *want, int64_t bytes);
void case_true(bool ok, const char *name);

/* Wider rows: (rows, pitch) elements of `size` bytes, all NaN.  case_put_columns makes those from column `at` on an
 * x (rows, width), case_take_columns gives them back. */
void *case_wide(int64_t rows, int64_t pitch, int size);
void case_put_columns(void *to, int64_t pitch, int64_t at, const void *x, int64_t rows, int64_t width, int size);
void *case_take_columns(const void *from, int64_t pitch, int64_t at, int64_t rows, int64_t width, int size);

/* kernel_attention.c: attention and its gradients by loops in f64, without documents and dropout; the mask is bool or
 * f32.  The results are zeros before. */
typedef struct CaseAttention { float *q, *k, *v, *dy; void *mask; double *o, *lse, *dq, *dk, *dv; } CaseAttention;
void case_attention_f64(const KAttention *a, const CaseAttention *x);

/* kernel_pitch.c: tensors in wider rows, for the cases of products and losses. */
void check_pitched_products(void);
void check_pitched_losses(void);

/* Scratch for the kernel of an op, enough for either target. */
void *case_work(const char *op, KWorkArgs a);

/* bad input reported by kernels since the last call */
int case_bad_inputs(void);

/* Runs body for 1, 2 and 3 threads and wants equal bits of out (bytes). */
#define CASE_SAME_BITS(name, out, bytes, body) do { \
	void *first_ = case_alloc(bytes); \
	for (int threads_ = 1; threads_ <= 3; threads_++) { \
		case_threads(threads_); \
		body; \
		case_sync(); \
		if (threads_ == 1) \
			memcpy(first_, (out), (size_t)(bytes)); \
		else \
			case_equal(name ": bits change with the number of threads", (out), first_, (bytes)); \
	} \
	case_threads(2); \
} while (0)
void case_threads(int n);

static inline int64_t case_numel(int rank, const int64_t *dim)
{
	int64_t n = 1;
	for (int i = 0; i < rank; i++)
		n *= dim[i];
	return n;
}

static inline void case_unravel(int64_t i, int rank, const int64_t *dim, int64_t *at)
{
	for (int d = rank - 1; d >= 0; d--) {
		at[d] = i % dim[d];
		i /= dim[d];
	}
}

static inline int64_t case_ravel(int rank, const int64_t *dim, const int64_t *at)
{
	int64_t o = 0;
	for (int d = 0; d < rank; d++)
		o = o * dim[d] + at[d];
	return o;
}

#endif
