/* passes/canon/canon.h: declares the functions of canon's rules, by file.  canon.def is the table that orders them. */
#ifndef SHARDC_CANON_H
#define SHARDC_CANON_H

#include "passes/rewrite/rewrite.h"

#define RULE(kind, pattern, fn) RuleFn fn;
#include "passes/canon/canon.def"

extern const RuleSet canon_rules; /* for other passes that must end in canonical form */

#endif
