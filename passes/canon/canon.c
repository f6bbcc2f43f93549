/* passes/canon/canon.c: brings the module into canonical form: known values are folded, identities removed,
 * transposes and reshapes merged, and biases moved into matmuls.
 *
 * The rules are the rows of canon.def; their functions are in the other files of this folder.  A rule keeps the
 * value (up to rounding), the type and the location.  Parameters are never folded. */
#include "passes/canon/canon.h"
#include "passes/loss/loss.h"

static const Rule rules[] = {
#define RULE(kind, pattern, fn) {kind, pattern, fn},
#include "passes/canon/canon.def"
};
const RuleSet canon_rules = {rules, COUNT_OF(rules)};

bool pass_canon(Module *m, const Options *o, Diag *d)
{
	(void)o;
	loss_note_samples(m, m);
	rewrite_module(m, d, 1, &canon_rules, NULL, NULL);
	return true;
}
