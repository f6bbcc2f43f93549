/* runtime/exec/cuda/self.c: the back end of one rank, whose only collectives are gathers that cast to another dtype,
 * and sums over micro-batches. */
#include "runtime/exec/cuda/backend.h"

static bool self_open(Rt *rt, void **state, Diag *d)
{
	(void)rt, (void)d;
	*state = NULL;
	return true;
}

static void self_close(Rt *rt)
{
	(void)rt;
}

static void self_issue(Rt *rt, const RtCollective *row, int seq, cudaStream_t stream)
{
	(void)seq;
	for (int k = 0, n = collective_parts(rt, row); k < n; k++) {
		Part p;
		collective_describe(rt, streams_collectives(rt), row, k, &p);
		streams_cast(rt, &p.cast, stream);
	}
}

const Backend backend_self = {.name = "self", .captures = true, .open = self_open, .close = self_close,
	.issue = self_issue};
