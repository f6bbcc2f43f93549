/* tests/unit/test_chance.c: stochastic rounding goes to a neighbour, has no bias, and uses the same random numbers for
 * a tensor and its parts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/philox.h"
#include "kernels/ew.h"
#include "kernels/kernels.h"
#include "tests/unit/unit.h"

enum { DRAWS = 1 << 16 };

static double value(uint16_t h, KDType t)
{
	return (double)(t == K_BF16 ? ew_cast_bf16_f32(h) : ew_cast_f16_f32(h));
}

/* x of every size that the type has, and where its numbers end. */
static const float plain[] = {1.001f, -1.001f, 3.14159274f, 0.0199999996f, -123.456001f, 0.333333343f, 2.0009765625f,
	6.10351563e-05f, 6.1e-05f, -3.3e-05f, 1.00000001e-07f, 4.0e-08f, -2.0e-09f, 65503.9f, 1e-37f, -1.1e-39f};

/* The mean of many draws is x, within 5 sigma; each draw is x's neighbour below or above. */
static void check_mean(float x, KDType t)
{
	static float in[DRAWS];
	static uint16_t out[DRAWS];
	double sum = 0, low = INFINITY, high = -INFINITY;
	for (int i = 0; i < DRAWS; i++)
		in[i] = x;
	k_cast_by_chance(out, t, in, DRAWS, philox_key(3, 4), 0, 1);
	for (int i = 0; i < DRAWS; i++) {
		double v = value(out[i], t);
		sum += v;
		low = fmin(low, v);
		high = fmax(high, v);
		uint16_t toward = (uint16_t)(out[i] + (fabs(v) > fabs((double)x) ? -1 : 1));
		bool beside = v == (double)x || (fabs(v) > fabs((double)x) ? fabs(value(toward, t)) <= fabs((double)x)
			: fabs(value(toward, t)) > fabs((double)x));
		CU_ASSERT(beside && (v == 0 || signbit(v) == signbit((double)x)));
	}
	double sigma = sqrt((high - (double)x) * ((double)x - low) / DRAWS);
	CU_ASSERT(low <= (double)x && high >= (double)x);
	CU_ASSERT(fabs(sum / DRAWS - (double)x) <= 5 * sigma + 0x1p-60 * fabs((double)x));
}

static void test_mean(void)
{
	for (int i = 0; i < COUNT_OF(plain); i++) {
		check_mean(plain[i], K_BF16);
		if (fabsf(plain[i]) > 1e-9f)
			check_mean(plain[i], K_F16);
	}
}

static void test_kept(void)
{
	static const uint32_t numbers[] = {0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
	for (int k = 0; k < COUNT_OF(numbers); k++)
		for (uint32_t h = 0; h < 1 << 16; h++) {
			float b = ew_cast_bf16_f32((bf16)h), f = ew_cast_f16_f32((f16)h);
			bool nan = isnan(b), none = isnan(f);
			CU_ASSERT(nan ? isnan(ew_cast_bf16_f32(ew_round_f32_bf16(b, numbers[k])))
				: ew_round_f32_bf16(b, numbers[k]) == h);
			CU_ASSERT(none ? isnan(ew_cast_f16_f32(ew_round_f32_f16(f, numbers[k])))
				: ew_round_f32_f16(f, numbers[k]) == h);
		}
}

/* Beyond the largest number as to nearest: never up to an infinity that nearest would not give. */
static void test_ends(void)
{
	static const float large[] = {3.38953139e38f, 3.395e38f, 3.4e38f, 65504, 65519.9f, 65520, 1e6f, INFINITY};
	for (int i = 0; i < COUNT_OF(large); i++)
		for (int sign = -1; sign <= 1; sign += 2) {
			float x = (float)sign * large[i];
			if (large[i] > 1e38f)
				CU_ASSERT(ew_round_f32_bf16(x, 0xFFFFFFFF) == ew_cast_f32_bf16(x));
			CU_ASSERT(ew_round_f32_f16(x, 0xFFFFFFFF) == ew_cast_f32_f16(x));
		}
}

/* Any part is what the whole has there, for any number of threads' pieces; another key or step is not. */
static void test_parts(void)
{
	static const int64_t parts[][2] = {{0, 1}, {1, 5}, {64, 64}, {255, 2}, {3, 4099}, {DRAWS - 7, 7}};
	static float in[DRAWS];
	static uint16_t whole[DRAWS], part[DRAWS];
	for (int i = 0; i < DRAWS; i++)
		in[i] = sinf((float)i);
	k_cast_by_chance(whole, K_BF16, in, DRAWS, 5, 0, 9);
	for (int i = 0; i < COUNT_OF(parts); i++) {
		k_cast_by_chance(part, K_BF16, in + parts[i][0], parts[i][1], 5, parts[i][0], 9);
		CU_ASSERT(!memcmp(part, whole + parts[i][0], (size_t)parts[i][1] * sizeof(*part)));
	}
	for (int i = 0; i < DRAWS; i += 997) {
		uint32_t b[4];
		philox_block(b, 5, 0, (uint64_t)i / 4, 9);
		CU_ASSERT_EQUAL(whole[i], ew_round_f32_bf16(in[i], b[i % 4]));
	}
	k_cast_by_chance(part, K_BF16, in, DRAWS, 5, 0, 10);
	CU_ASSERT(memcmp(part, whole, sizeof(part)));
	k_cast_by_chance(part, K_BF16, in, DRAWS, 6, 0, 9);
	CU_ASSERT(memcmp(part, whole, sizeof(part)));
}

void suite_chance(void)
{
	CU_pSuite s = CU_add_suite("chance", NULL, NULL);
	CU_ADD_TEST(s, test_mean);
	CU_ADD_TEST(s, test_kept);
	CU_ADD_TEST(s, test_ends);
	CU_ADD_TEST(s, test_parts);
}
