/* base/pattern.h: the regular expressions of options and files: POSIX extended ones, as egrep's.  What only Perl's have
 * is refused, where regcomp would take it for something else: \d is the letter d there. */
#ifndef SHARDC_PATTERN_H
#define SHARDC_PATTERN_H

#include <regex.h>

#include "base/base.h"

/* Compiles, for pattern_matches; regfree frees it.  False after a message, which says what to write instead. */
bool pattern_compile(regex_t *re, const char *pattern, const char *where, Diag *d);
/* Whether it is right; says so if not. */
bool pattern_check(const char *pattern, const char *where, Diag *d);
static inline bool pattern_matches(const regex_t *re, const char *text) { return !regexec(re, text, 0, NULL, 0); }

#endif
