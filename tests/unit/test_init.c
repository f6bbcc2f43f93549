/* tests/unit/test_init.c: random initial values: they equal the generator's numbers, and those of a part equal those of
 * the whole tensor. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/philox.h"
#include "kernels/kernels.h"
#include "tests/unit/unit.h"

enum { N = 1 << 20 };

typedef void InitFn(float *out, uint64_t key, int64_t first, int64_t n, float scale);

/* Any part of a tensor is what the whole has there. */
static void check_parts(InitFn *fn)
{
	static const int64_t parts[][2] = {{0, 1}, {0, N}, {1, 5}, {64, 64}, {1023, 2}, {4096, 12345}, {N - 7, 7}};
	float *whole = malloc(N * sizeof(float)), *part = malloc(N * sizeof(float));
	fn(whole, 99, 0, N, 0.25f);
	for (int i = 0; i < COUNT_OF(parts); i++) {
		fn(part, 99, parts[i][0], parts[i][1], 0.25f);
		CU_ASSERT(!memcmp(part, whole + parts[i][0], (size_t)parts[i][1] * sizeof(float)));
	}
	fn(part, 98, 0, N, 0.25f);
	CU_ASSERT(memcmp(part, whole, N * sizeof(float)));
	free(whole);
	free(part);
}

static void test_parts(void)
{
	check_parts(k_init_uniform_f32);
	check_parts(k_init_normal_f32);
}

/* Element i is word i % 4 of block i / 4, of the plain generator. */
static void test_words(void)
{
	static const int64_t first[] = {0, 4092, ((int64_t)1 << 34) + 8};
	uint64_t key = philox_key(7, 11);
	for (int k = 0; k < COUNT_OF(first); k++) {
		float uniform[16], normal[16];
		k_init_uniform_f32(uniform, key, first[k], 16, 2);
		k_init_normal_f32(normal, key, first[k], 16, 3);
		for (int64_t i = 0; i < 16; i++) {
			uint32_t b[4];
			philox_block(b, key, 0, (uint64_t)(first[k] + i) / 4, 0);
			int64_t pair = i % 4 / 2 * 2;
			double u = ((b[pair] >> 8) + 1) / 16777216.0, angle = (b[pair + 1] >> 8) / 16777216.0 * 6.28318530717959;
			double z = 3 * sqrt(-2 * log(u)) * (i % 2 ? sin(angle) : cos(angle));
			CU_ASSERT_DOUBLE_EQUAL(uniform[i], 2 * (((b[i % 4] >> 8) + 0.5) / 8388608.0 - 1), 1e-6);
			CU_ASSERT_DOUBLE_EQUAL(normal[i], z, 1e-5);
		}
	}
}

/* Moments up to the fourth, within six standard errors; bounds. */
static void check_law(InitFn *fn, double variance, double fourth, double most)
{
	float *x = malloc(N * sizeof(float));
	double m[5] = {0}, largest = 0;
	fn(x, philox_key(1, 2), 0, N, 1);
	for (int64_t i = 0; i < N; i++) {
		double p = x[i];
		for (int k = 1; k <= 4; k++, p *= x[i])
			m[k] += p / N;
		largest = MAX(largest, fabs((double)x[i]));
	}
	double unit = 6 / sqrt(N);
	CU_ASSERT_DOUBLE_EQUAL(m[1], 0, unit * sqrt(variance));
	CU_ASSERT_DOUBLE_EQUAL(m[2], variance, unit * sqrt(fourth - variance * variance));
	CU_ASSERT_DOUBLE_EQUAL(m[3], 0, unit * 4);
	CU_ASSERT_DOUBLE_EQUAL(m[4], fourth, unit * 10);
	CU_ASSERT(largest < most && largest > 0.75 * most);
	free(x);
}

static void test_laws(void)
{
	check_law(k_init_uniform_f32, 1.0 / 3, 1.0 / 5, 1);
	check_law(k_init_normal_f32, 1, 3, 5.78);
}

void suite_init(void)
{
	CU_pSuite s = CU_add_suite("init", NULL, NULL);
	CU_ADD_TEST(s, test_parts);
	CU_ADD_TEST(s, test_words);
	CU_ADD_TEST(s, test_laws);
}
