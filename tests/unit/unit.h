/* tests/unit/unit.h: each tests/unit/test_X.c exports suite_X(), which adds its suite to CUnit's registry.
 *
 * suites.def is made by the Makefile from the names of the files. */
#ifndef SHARDC_UNIT_H
#define SHARDC_UNIT_H

#include <CUnit/Basic.h>

#define SUITE(name) void suite_##name(void);
#include "tests/unit/suites.def"
#undef SUITE

/* Fails with a message of one's own. */
#define UNIT_CHECK(ok, message) CU_assertImplementation((ok), __LINE__, (message), __FILE__, "", CU_FALSE)
/* Fails and ends the test. */
#define UNIT_END(message) CU_assertImplementation(CU_FALSE, __LINE__, (message), __FILE__, "", CU_TRUE)

#endif
