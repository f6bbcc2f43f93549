/* tests/unit/test_epilogue.c: where GELU, its gradient and sums of columns are computed, by their costs. */
#include "passes/epilogue_cost.h"
#include "tests/unit/unit.h"

#include <math.h>

enum { ANYWHERE = 1 << IN_APART | 1 << IN_LOOP | 1 << IN_PRODUCT };

static Type rows_of(DType dtype, int64_t rows, int64_t cols)
{
	return type_tensor(dtype, 2, (int64_t[]){rows, cols});
}

static double total(const EpilogueRates *r, Follower what, Where where, const Type *t)
{
	EpilogueCost c = epilogue_cost(r, what, where, t);
	return epilogue_total(r, &c);
}

/* Passes, launches, what is kept (twice) and what an element costs besides, of 100 elements in 16 bits. */
static void totals_are_sums_of_their_parts(void)
{
	const EpilogueRates r = {"test", 1000, {[OF_GELU] = {[IN_PRODUCT] = 3}, [OF_GELU_GRAD] = {[IN_PRODUCT] = 5},
		[OF_SUMS] = {[IN_PRODUCT] = 7}}};
	const Type t = rows_of(DT_BF16, 10, 10);
	CU_ASSERT_EQUAL(total(&r, OF_GELU, IN_LOOP, &t), 2 * 200 + 1000);
	CU_ASSERT_EQUAL(total(&r, OF_GELU, IN_PRODUCT, &t), 200 + 3 * 100);
	CU_ASSERT_EQUAL(total(&r, OF_GELU_GRAD, IN_LOOP, &t), 5 * 200 + 1000);
	CU_ASSERT_EQUAL(total(&r, OF_GELU_GRAD, IN_PRODUCT, &t), 2 * 200 + 2 * 200 + 5 * 100);
	CU_ASSERT_EQUAL(total(&r, OF_SUMS, IN_APART, &t), 200 + 1000);
	CU_ASSERT_EQUAL(total(&r, OF_SUMS, IN_LOOP, &t), INFINITY);
	CU_ASSERT_EQUAL(total(&r, OF_SUMS, IN_PRODUCT, &t), 7 * 100);
	CU_ASSERT_EQUAL(total(&r, OF_GELU, IN_APART, &t), INFINITY);
}

/* Each part of a cost can decide. */
static void the_cheapest_place_is_taken(void)
{
	EpilogueRates r = {"test", 0, {[OF_GELU_GRAD] = {[IN_PRODUCT] = 1.5}, [OF_SUMS] = {[IN_PRODUCT] = 1}}};
	const Type t = rows_of(DT_BF16, 10, 10), none = rows_of(DT_BF16, 0, 10);
	CU_ASSERT_EQUAL(epilogue_where(&r, OF_GELU_GRAD, ANYWHERE, &t), IN_PRODUCT);
	r.more[OF_GELU_GRAD][IN_PRODUCT] = 2.5; /* what is kept makes this too much */
	CU_ASSERT_EQUAL(epilogue_where(&r, OF_GELU_GRAD, ANYWHERE, &t), IN_LOOP);
	r.launch = 100; /* that of the loop */
	CU_ASSERT_EQUAL(epilogue_where(&r, OF_GELU_GRAD, ANYWHERE, &t), IN_PRODUCT);
	CU_ASSERT_EQUAL(epilogue_where(&r, OF_GELU_GRAD, 1 << IN_LOOP, &t), IN_LOOP);
	CU_ASSERT_EQUAL(epilogue_where(&r, OF_SUMS, ANYWHERE, &t), IN_PRODUCT);
	CU_ASSERT_EQUAL(epilogue_where(&r, OF_SUMS, 1 << IN_APART, &t), IN_APART);
	r.more[OF_SUMS][IN_PRODUCT] = 3.5; /* more than reading 2 bytes and a launch */
	CU_ASSERT_EQUAL(epilogue_where(&r, OF_SUMS, ANYWHERE, &t), IN_APART);
	r.more[OF_SUMS][IN_PRODUCT] = INFINITY;
	CU_ASSERT_EQUAL(epilogue_where(&r, OF_SUMS, ANYWHERE, &none), IN_APART);
}

static Where where_on(EpilogueTarget on, Follower what, DType dtype, int64_t rows, int64_t cols)
{
	const Type t = rows_of(dtype, rows, cols);
	return epilogue_where(&epilogue_rates[on], what, ANYWHERE, &t);
}

/* The hidden layer of GPT-2's MLP, and one of few elements, whose launch is all that counts. */
static void targets_choose(void)
{
	for (int what = OF_GELU; what <= OF_GELU_GRAD; what++) {
		CU_ASSERT_EQUAL(where_on(EPILOGUE_ON_HOPPER, what, DT_BF16, 65536, 3072), IN_PRODUCT);
		CU_ASSERT_EQUAL(where_on(EPILOGUE_ON_AMPERE, what, DT_BF16, 65536, 3072), IN_LOOP);
		CU_ASSERT_EQUAL(where_on(EPILOGUE_ON_AMPERE, what, DT_BF16, 16, 48), IN_PRODUCT);
		CU_ASSERT_EQUAL(where_on(EPILOGUE_ON_CPU, what, DT_F32, 1024, 3072), IN_LOOP);
	}
	CU_ASSERT_EQUAL(where_on(EPILOGUE_ON_HOPPER, OF_SUMS, DT_BF16, 65536, 3072), IN_PRODUCT);
	CU_ASSERT_EQUAL(where_on(EPILOGUE_ON_AMPERE, OF_SUMS, DT_BF16, 65536, 3072), IN_PRODUCT);
	CU_ASSERT_EQUAL(where_on(EPILOGUE_ON_CPU, OF_SUMS, DT_F32, 1024, 3072), IN_APART);
}

static void options_name_the_target(void)
{
	Options o = {.target = {.target = TARGET_CPU, .arch = "x86-64-v3"}};
	CU_ASSERT_EQUAL(epilogue_target(&o), EPILOGUE_ON_CPU);
	o.target.target = TARGET_CUDA;
	o.target.arch = NULL;
	CU_ASSERT_EQUAL(epilogue_target(&o), EPILOGUE_ON_HOPPER);
	o.target.arch = "sm_89";
	CU_ASSERT_EQUAL(epilogue_target(&o), EPILOGUE_ON_AMPERE);
	o.target.arch = "sm_90a";
	CU_ASSERT_EQUAL(epilogue_target(&o), EPILOGUE_ON_HOPPER);
	o.target.arch = "sm_120";
	CU_ASSERT_EQUAL(epilogue_target(&o), EPILOGUE_ON_HOPPER);
}

void suite_epilogue(void)
{
	CU_pSuite s = CU_add_suite("epilogue", NULL, NULL);
	CU_add_test(s, "totals are sums of their parts", totals_are_sums_of_their_parts);
	CU_add_test(s, "the cheapest place is taken", the_cheapest_place_is_taken);
	CU_add_test(s, "targets choose", targets_choose);
	CU_add_test(s, "options name the target", options_name_the_target);
}
