/* passes/canon/canon.h: the rules of canon, by file.  The table that orders them is canon.def. */
#ifndef SHARDC_CANON_H
#define SHARDC_CANON_H

#include "passes/rewrite/rewrite.h"

#define RULE(kind, pattern, fn) RuleFn fn;
#include "passes/canon/canon.def"

extern const RuleSet canon_rules; /* for passes that end in canonical form too */

#endif
