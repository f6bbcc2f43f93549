/* base/pattern.h: the regular expressions in options and files: POSIX extended ones, as egrep's.  Perl's constructs are
 * refused, because regcomp would silently read them as something else: \d as the letter d. */
#ifndef SHARDC_PATTERN_H
#define SHARDC_PATTERN_H

#include <regex.h>

#include "base/base.h"

/* Compiles an expression for pattern_matches; regfree frees it.  False after an error, which says what to write
 * instead. */
bool pattern_compile(regex_t *re, const char *pattern, const char *where, Diag *d);
/* Whether the expression is valid; reports an error if not. */
bool pattern_check(const char *pattern, const char *where, Diag *d);
/* The expression that exactly these names match, which have as much in common as can be said once: "^h\\.(1|2)$". */
char *pattern_of_names(const char *const *name, int n, Arena *a);
static inline bool pattern_matches(const regex_t *re, const char *text) { return !regexec(re, text, 0, NULL, 0); }

#endif
