/* tests/unit/test_kernels.c: every kernel of kernels/kernels.def against plain f64 loops: odd shapes, both
 * layouts, empty operands, equal bits for any number of threads.  A row without a case fails to link. */
#include "base/base.h"
#include "tests/unit/kernel_cases.h"

#include <malloc.h>
#include <stdarg.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

int omp_get_max_threads(void);
void omp_set_num_threads(int n);

static void *live[16384];
static int n_live, bad_inputs;
static uint64_t state = 1;

void case_threads(int n) { omp_set_num_threads(n); }

/* Another target's tests (tests/cudasim/kernels.c) have their own of these. */
__attribute__((weak)) void *case_memory(int64_t bytes, int64_t whole)
{
	(void)bytes;
	return aligned_alloc(64, (size_t)whole);
}
__attribute__((weak)) void case_release(void *p) { free(p); }
__attribute__((weak)) void case_sync(void) {}
__attribute__((weak)) bool case_cuda(void) { return false; }

/* No CUDA kernel may touch what lies behind the bytes asked for; the CPU's may, to 64 bytes. */
void *case_alloc(int64_t bytes)
{
	int64_t whole = (bytes + 127) / 64 * 64;
	char *p = case_memory(bytes, whole);
	CU_ASSERT_FATAL(p != NULL && n_live < 16384);
	memset(p, 0xA5, (size_t)whole);
	if (case_cuda())
		ASAN_POISON_MEMORY_REGION(p + bytes, (size_t)(whole - bytes));
	live[n_live++] = p;
	return p;
}

void *case_work(const char *op, KWorkArgs a)
{
	int64_t bytes = -1;
#define KERNEL(name, types, work, cuda) if (!strcmp(op, #name)) \
		bytes = kwork_##work(&a) > kwork_cuda_##cuda(&a) ? kwork_##work(&a) : kwork_cuda_##cuda(&a);
#include "kernels/kernels.def"
	CU_ASSERT_FATAL(bytes >= 0);
	return case_alloc(bytes);
}

static double uniform(void)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (double)(state >> 11) / 9007199254740992.0;
}

int64_t case_random(int64_t below) { return (int64_t)(uniform() * (double)below); }

void *case_bytes(const void *x, int64_t bytes) { return memcpy(case_alloc(bytes), x, (size_t)bytes); }

float *case_floats(int64_t n, double lo, double hi)
{
	float *p = case_alloc(n * 4);
	for (int64_t i = 0; i < n; i++)
		p[i] = (float)(lo + (hi - lo) * uniform());
	return p;
}

void *case_halves(float *x, int64_t n, KDType type)
{
	uint16_t *p = case_alloc(n * 2);
	for (int64_t i = 0; i < n && type != K_F32; i++) {
		p[i] = type == K_BF16 ? bf16_from_float(x[i]) : f16_from_float(x[i]);
		x[i] = type == K_BF16 ? bf16_to_float(p[i]) : f16_to_float(p[i]);
	}
	return type == K_F32 ? (void *)x : p;
}

float *case_widened(const void *x, int64_t n, KDType type)
{
	const uint16_t *from = x;
	float *to = case_alloc(n * 4);
	case_sync();
	for (int64_t i = 0; i < n; i++)
		to[i] = type == K_F32 ? ((const float *)x)[i] : type == K_BF16 ? bf16_to_float(from[i])
			: f16_to_float(from[i]);
	return to;
}

double *case_doubles(int64_t n)
{
	double *p = case_alloc(n * 8);
	memset(p, 0, (size_t)n * 8);
	return p;
}

void case_hide(float *mask, int64_t n, int64_t s, KDType type)
{
	float lowest = type == K_F16 ? -65504 : type == K_BF16 ? -0x1.FEp127f : -0x1.FFFFFEp127f;
	for (int64_t i = 0; i < n; i++) {
		int64_t row = i / s % 7;
		mask[i] = row == 5 ? lowest : row == 3 || (row == 1 && i % 3) ? fmaxf(lowest, -1e9f) : mask[i];
	}
}

int64_t *case_ids(int64_t n, int64_t below)
{
	int64_t *p = case_alloc(n * 8);
	for (int64_t i = 0; i < n; i++)
		p[i] = case_random(below);
	return p;
}

void *case_wide(int64_t rows, int64_t pitch, int size)
{
	int64_t bytes = rows * pitch * size;
	return memset(case_alloc(bytes), 0xFF, (size_t)bytes);
}

void case_put_columns(void *to, int64_t pitch, int64_t at, const void *x, int64_t rows, int64_t width, int size)
{
	for (int64_t i = 0; i < rows; i++)
		memcpy((char *)to + (i * pitch + at) * size, (const char *)x + i * width * size, (size_t)(width * size));
}

void *case_take_columns(const void *from, int64_t pitch, int64_t at, int64_t rows, int64_t width, int size)
{
	char *x = case_alloc(rows * width * size);
	case_sync();
	for (int64_t i = 0; i < rows; i++)
		memcpy(x + i * width * size, (const char *)from + (i * pitch + at) * size, (size_t)(width * size));
	return x;
}

static void close_enough(const char *name, double diff, double norm, int64_t n, double tol)
{
	char text[256];
	double error = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
	snprintf(text, sizeof text, "%s: error %.3g over %lld elements, at most %.3g", name, error,
		(long long)n, tol);
	UNIT_CHECK(error <= tol, text);
}

/* Equal infinities and NaNs count as no difference. */
static void add_diff(double got, double want, double *diff, double *norm)
{
	if (got == want || (isnan(got) && isnan(want)))
		*norm += isfinite(want) ? want * want : 0;
	else
		*diff += (got - want) * (got - want), *norm += want * want;
}

void case_close(const char *name, const float *got, const double *want, int64_t n, double tol)
{
	double diff = 0, norm = 0;
	case_sync();
	for (int64_t i = 0; i < n; i++)
		add_diff(got[i], want[i], &diff, &norm);
	close_enough(name, diff, norm, n, tol);
}

void case_close64(const char *name, const double *got, const double *want, int64_t n, double tol)
{
	double diff = 0, norm = 0;
	case_sync();
	for (int64_t i = 0; i < n; i++)
		add_diff(got[i], want[i], &diff, &norm);
	close_enough(name, diff, norm, n, tol);
}

void case_true(bool ok, const char *name) { UNIT_CHECK(ok, name); }

void case_equal(const char *name, const void *got, const void *want, int64_t bytes)
{
	case_sync();
	UNIT_CHECK(memcmp(got, want, (size_t)bytes) == 0, name);
}

int case_bad_inputs(void)
{
	case_sync();
	int n = bad_inputs;
	bad_inputs = 0;
	return n;
}

static void count_bad_input(const char *fmt, ...) { (void)fmt; bad_inputs++; }

void case_end(void)
{
	while (n_live)
		case_release(live[--n_live]);
	malloc_trim(0); /* the suites that fork would copy the page tables of what lies free */
	case_true(case_bad_inputs() == 0, "bad input was reported that no case expected");
}

#define HALF_CASE(name) static void test_half_##name(void) { state = 1; case_half_##name(); case_end(); }
KERNEL_HALF_CASES(HALF_CASE)
#undef HALF_CASE
#define KERNEL(op, types, work, cuda) static void test_##op(void) { state = 1; case_##op(); case_end(); }
#include "kernels/kernels.def"

void case_elementwise(void);
static void test_elementwise(void) { case_elementwise(); case_end(); }

void suite_kernels(void)
{
	CU_pSuite s = CU_add_suite("kernels", NULL, NULL);
	k_bad_input = count_bad_input;
#define HALF_CASE(name) CU_add_test(s, "16-bit " #name, test_half_##name);
	KERNEL_HALF_CASES(HALF_CASE)
#define KERNEL(op, types, work, cuda) CU_add_test(s, #op, test_##op);
#include "kernels/kernels.def"
	CU_add_test(s, "elementwise functions", test_elementwise);
}
