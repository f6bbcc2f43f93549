/* runtime/exec/cuda/backend.c: chooses the back end by which ranks of CUDA programs communicate.
 *
 * NCCL needs a GPU for every rank; where two ranks share one, or NCCL is not wanted, they communicate through memory of
 * the host. */
#include <string.h>

#include "runtime/exec/cuda/backend.h"

#define COMM_TEXT(id, text, ...) text,
const char *const device_comms[] = {COMMUNICATORS(COMM_TEXT) NULL};

/* What a rank tells the others about its GPU. */
typedef struct Gpu { int32_t own; } Gpu;

const Backend *backend_choose(const Rt *rt, bool own_gpu, Diag *d)
{
	const RtOptions *o = rt->p->options;
	const World *w = &rt->p->world;
	Gpu mine = {own_gpu}, *all = NEW_N(rt->p->arena, Gpu, MAX(w->size, 1));
	int shared = -1;
	bool nccl = comm_named(o->comm) == COMM_NCCL;
	if (w->size < 2)
		return nccl ? &backend_nccl : &backend_self;
	if (!control_all_gather(rt->p->control, &mine, sizeof(mine), all))
		return NULL;
	for (int r = w->size - 1; r >= 0; r--)
		shared = all[r].own ? shared : r;
	if (nccl && shared >= 0) {
		diag_error(d, o->program, "--comm=nccl wants a GPU for every rank, and rank %d shares one with a rank before "
			"it: start at most as many ranks on a host as it has GPUs, or let them share by --comm=shm", shared);
		return NULL;
	}
	if (!o->comm && shared >= 0 && w->n_hosts > 1 && !w->backend) {
		diag_error(d, o->program, "rank %d shares a GPU with a rank before it, so NCCL cannot be used, and the ranks "
			"are on %d hosts, which shared memory does not reach: start at most as many ranks on a host as it has "
			"GPUs, or start them with %s, with --comm=%s", shared, w->n_hosts, comm_of_hosts()->starter,
			comm_of_hosts()->text);
		return NULL;
	}
	return nccl || (!o->comm && shared < 0) ? &backend_nccl : &backend_staged;
}
