/* tests/unit/main.c: runs all suites, or those named, and exits with 1 if an assertion failed.
 *
 * Every rewrite is checked for progress: SHARDC_CHECK_REWRITES (passes/rewrite/progress.h).  usage: unit [SUITE ...] */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Suite { const char *name; void (*add)(void); } Suite;
static const Suite suites[] = {
#define SUITE(name) {#name, suite_##name},
#include "tests/unit/suites.def"
};

enum { N_SUITES = sizeof(suites) / sizeof(*suites) };

static int add_named(const char *name)
{
	for (int i = 0; i < N_SUITES; i++) {
		if (!strcmp(suites[i].name, name)) {
			suites[i].add();
			return 1;
		}
	}
	fprintf(stderr, "unit: there is no suite \"%s\"\n", name);
	return 0;
}

int main(int argc, char **argv)
{
	setenv("SHARDC_CHECK_REWRITES", "1", 1);
	if (CU_initialize_registry() != CUE_SUCCESS)
		return 1;
	for (int i = 0; argc < 2 && i < N_SUITES; i++)
		suites[i].add();
	for (int i = 1; i < argc; i++)
		if (!add_named(argv[i]))
			return 2;
	CU_basic_set_mode(CU_BRM_NORMAL);
	CU_basic_run_tests();
	unsigned failed = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
	unsigned run = CU_get_number_of_tests_run();
	CU_cleanup_registry();
	return failed || !run;
}
