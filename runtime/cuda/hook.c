/* runtime/cuda/hook.c: programs for GPUs have no hooks: the compiler refuses --comm-hook for them. */
#include "runtime/internal.h"

bool hook_start(Rt *rt, Diag *d)
{
	(void)d;
	if (rt->model->hook)
		ice("a hook in a program for GPUs");
	return true;
}

void hook_stop(Rt *rt)
{
	(void)rt;
}
