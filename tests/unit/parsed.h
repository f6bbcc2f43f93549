/* tests/unit/parsed.h: parses modules that tests write as text, and looks up their parts. */
#ifndef SHARDC_TEST_PARSED_H
#define SHARDC_TEST_PARSED_H

#include "ir/ir.h"

Module *parsed(const char *text);                             /* where it does not parse the test ends */
Value *value_named(const Module *m, const char *name);        /* a result; where there is none the test ends */

#endif
