/* tests/unit/test_fold.c: sums over ranks, and copies and casts of what ranks receive, bit by bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/private.h"
#include "tests/unit/unit.h"

enum { MOST_RANKS = 4 };

/* Element i of type f32, bf16 or f16. */
static float load(const void *p, KDType t, int64_t i)
{
	const uint16_t *h = p;
	return t == K_F32 ? ((const float *)p)[i] : t == K_BF16 ? bf16_to_float(h[i]) : f16_to_float(h[i]);
}

static void store(void *p, KDType t, int64_t i, float x)
{
	if (t == K_F32)
		((float *)p)[i] = x;
	else
		((uint16_t *)p)[i] = t == K_BF16 ? bf16_from_float(x) : f16_from_float(x);
}

typedef struct Fold { int n_in; int64_t n, shift; float scale; KDType in, out; bool in_place; } Fold;

static void check_fold(Fold f)
{
	char *in[MOST_RANKS], *wanted = calloc((size_t)f.n, 4), *out;
	int64_t size = f.in == K_F32 ? 4 : 2, out_bytes = f.n * (f.out == K_F32 ? 4 : 2);
	for (int k = 0; k < f.n_in; k++) {
		in[k] = malloc((size_t)((f.n + f.shift) * size));
		in[k] += f.shift * size;
		for (int64_t i = 0; i < f.n; i++) /* in f16 some overflow, some are denormal */
			store(in[k], f.in, i, (float)((rand() % 20001 - 10000) * pow(10, rand() % 12 - 11)));
	}
	for (int64_t i = 0; i < f.n; i++) {
		float sum = load(in[0], f.in, i);
		for (int k = 1; k < f.n_in; k++)
			sum += load(in[k], f.in, i);
		store(wanted, f.out, i, f.scale == 1 ? sum : sum * f.scale);
	}
	out = f.in_place ? in[f.n_in - 1] : malloc((size_t)f.n * 4);
	k_fold(out, f.out, (const void *const *)in, f.in, f.n_in, f.n, f.scale);
	CU_ASSERT_EQUAL(memcmp(out, wanted, (size_t)out_bytes), 0);
	for (int64_t i = 0; i < f.n; i++)
		store(wanted, f.out, i, load(in[0], f.in, i));
	if (!f.in_place) {
		k_copy_wide(out, wanted, out_bytes);
		CU_ASSERT_EQUAL(memcmp(out, wanted, (size_t)out_bytes), 0);
		k_cast_wide(out, f.out, in[0], f.in, f.n);
		CU_ASSERT_EQUAL(memcmp(out, wanted, (size_t)out_bytes), 0);
		free(out);
	}
	for (int k = 0; k < f.n_in; k++)
		free(in[k] - f.shift * size);
	free(wanted);
}

static void test_fold(void)
{
	static const int64_t sizes[] = {1, 64, 2047, 2048, 2049, 100003, (INT64_C(2) << 20) + 5};
	srand(3);
	for (int i = 0; i < COUNT_OF(sizes); i++)
		for (int n_in = 1; n_in <= MOST_RANKS; n_in++) {
			check_fold((Fold){n_in, sizes[i], 0, 1, K_F32, K_F32, false});
			check_fold((Fold){n_in, sizes[i], i % 3, 1.0f / 3, K_F32, K_F32, true});
		}
}

/* Every pair of types, the same bits as one element at a time. */
static void test_fold_16_bit(void)
{
	static const KDType types[] = {K_F32, K_BF16, K_F16};
	for (int a = 0; a < COUNT_OF(types); a++)
		for (int b = 0; b < COUNT_OF(types); b++)
			for (int n_in = 1; n_in <= MOST_RANKS; n_in++) {
				check_fold((Fold){n_in, 2051, 1, 1, types[a], types[b], false});
				check_fold((Fold){n_in, 100003, 0, 1.0f / 3, types[a], types[b], a == b});
			}
	check_fold((Fold){2, (INT64_C(5) << 20) + 5, 0, 0.5f, K_BF16, K_BF16, false});
}

void suite_fold(void)
{
	CU_pSuite s = CU_add_suite("fold", NULL, NULL);
	CU_ADD_TEST(s, test_fold);
	CU_ADD_TEST(s, test_fold_16_bit);
}
