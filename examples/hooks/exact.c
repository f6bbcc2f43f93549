/* examples/hooks/exact.c: the built-in reductions of gradients, written as a communication hook.
 *
 *   shardc MODEL.onnx -o train --comm-hook=examples/hooks/exact.c:exact
 *
 * A starting point for hooks: it shows each kind of reduction and which member needs which result.  The program gives
 * the same bits as one without a hook. */
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
