/* examples/hooks/exact.c: the built-in reductions, written with what a hook has.
 *
 *   shardc MODEL.onnx -o train --comm-hook=examples/hooks/exact.c:exact
 *
 * Where to begin from: each kind of reduction, and who wants what.  Gives the bits of a program without a hook. */
#include <string.h>

#include "runtime/hook.h"

int exact(const HookCall *c)
{
	switch (c->kind) {
	case HOOK_REDUCE_SCATTER:
		return hook_reduce_scatter(c, c->gradient, c->out_n, c->out, c->mean);
	case HOOK_ALL_REDUCE:
	case HOOK_ALL_REDUCE_SHARDS:
		return hook_all_reduce(c, c->gradient, c->n, c->mean);
	case HOOK_REDUCE:
		if (hook_all_reduce(c, c->gradient, c->n, c->mean))
			return 1;
		if (c->out)
			memcpy(c->out, c->gradient, (size_t)c->n * sizeof(float));
		return 0;
	}
	return 2;
}
