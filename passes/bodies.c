/* passes/bodies.c: runs a pass on a module and, where it is of use there, on the bodies of its loops.
 *
 * A body is a module that has ops in its forward section only, and no symbols, so passes need not know of bodies.  A
 * pass that is not listed here sees a loop as one op with operands and results, and leaves its body as it is. */
#include "passes/passes.h"

static PassFn *const inside[] = {pass_canon, pass_cse, pass_fuse};

bool pass_apply(const PassInfo *p, Module *m, const Options *o, Diag *d)
{
	bool enters = false;
	if (!p->run(m, o, d))
		return false;
	for (int i = 0; i < COUNT_OF(inside); i++)
		enters = enters || inside[i] == p->run;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op) {
			if (op->body && enters && !p->run(op->body, o, d))
				return false;
			if (op->body)
				op->body->level = p->to;
		}
	return true;
}
