/* Suite scalars: what follows from a step's sums: the loss, the factor of gradients, the clip coefficient. */
#include "runtime/scalars.h"
#include "tests/unit/unit.h"

static StepScalars scalars_of(StepSums sum, StepRules rules, StepResult *r)
{
	StepScalars s = {0};
	LossScale one = {.scale = 1};
	scalars_decide(&s, r, &sum, &rules, &one);
	return s;
}

/* max_norm / (norm + 1e-6), at most 1: the constant shows where norms are as small. */
static void clipping(void)
{
	static const struct { double norm, most, coef; } rows[] = {
		{1e-6, 1e-6, 0.5}, {3e-6, 1e-6, 0.25}, {4, 2, 2 / 4.000001}, {2, 2, 2 / 2.000001}, {1, 2, 1}, {0, 2, 1},
		{4, 0, 1}, /* off */
	};
	for (int i = 0; i < (int)(sizeof(rows) / sizeof(*rows)); i++) {
		StepResult r;
		StepSums sum = {.loss = 1, .weight = 1, .norm = rows[i].norm * rows[i].norm};
		StepRules rules = {.accum = 1, .world = 1, .norm_p = 2, .clip_norm = rows[i].most};
		StepScalars s = scalars_of(sum, rules, &r);
		CU_ASSERT_DOUBLE_EQUAL(s.clip_coef, rows[i].coef, 1e-7);
		CU_ASSERT_DOUBLE_EQUAL(r.grad_norm, rows[i].norm, 1e-12);
	}
}

/* Of 3 ranks with 2 micro-batches each, whose reduced gradients are means over ranks. */
static void reductions(void)
{
	StepResult r;
	StepSums numbers = {.loss = 12, .weight = 6};
	StepRules rules = {.world = 3, .accum = 2};
	CU_ASSERT_DOUBLE_EQUAL(scalars_of(numbers, rules, &r).grad_scale, 0.5, 0); /* one number each: their mean */
	CU_ASSERT_DOUBLE_EQUAL(r.loss, 2, 0);
	rules.loss_n = 1;
	rules.adds = true; /* their sum */
	CU_ASSERT_DOUBLE_EQUAL(scalars_of(numbers, rules, &r).grad_scale, 3, 0);
	CU_ASSERT_DOUBLE_EQUAL(r.loss, 12, 0);
	numbers.weight = 0; /* nothing to learn from */
	CU_ASSERT(scalars_of(numbers, rules, &r).skip && r.empty);
	rules = (StepRules){.world = 3, .accum = 2, .loss_n = 8};
	StepSums valid = {.loss = 80, .weight = 40}; /* of 48 elements 40 are valid */
	CU_ASSERT_DOUBLE_EQUAL(scalars_of(valid, rules, &r).grad_scale, 8 * 3 / 40.0, 1e-7);
	CU_ASSERT_DOUBLE_EQUAL(r.loss, 2, 0);
}

void suite_scalars(void)
{
	CU_pSuite s = CU_add_suite("scalars", NULL, NULL);
	CU_add_test(s, "the clip coefficient", clipping);
	CU_add_test(s, "means, sums and valid elements", reductions);
}
