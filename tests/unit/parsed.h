/* tests/unit/parsed.h: modules that tests write as text, and what is in them. */
#ifndef SHARDC_TEST_PARSED_H
#define SHARDC_TEST_PARSED_H

#include "ir/ir.h"

Module *parsed(const char *text);                             /* where it does not parse the test ends */
Value *value_named(const Module *m, const char *name);        /* a result; where there is none the test ends */

#endif
