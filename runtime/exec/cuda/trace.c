/* runtime/exec/cuda/trace.c: points of time on a GPU: a stamp is the number of an event, which is recorded on the
 * stream whose time it takes.  The event `base`, whose time on the host is known, ties both clocks. */
#include <time.h>

#include "runtime/exec/cuda/cuda.h"
#include "runtime/exec/private.h"

const bool trace_host_apart = true;

struct CudaTrace {
	cudaEvent_t *event, base;
	int64_t n, cap;
	int64_t base_ns;
};

bool trace_stamps_open(Rt *rt, int64_t n, Diag *d)
{
	(void)d;
	CudaTrace *t = rt->p->cuda->trace = NEW(rt->p->arena, CudaTrace);
	t->event = NEW_N(rt->p->arena, cudaEvent_t, n);
	cuda_must(cudaEventCreate(&t->base), "cudaEventCreate");
	for (t->cap = 0; t->cap < n; t->cap++)
		cuda_must(cudaEventCreate(&t->event[t->cap]), "cudaEventCreate");
	return true;
}

void trace_stamps_begin(Rt *rt)
{
	CudaTrace *t = rt->p->cuda->trace;
	struct timespec now;
	cuda_must(cudaEventRecord(t->base, rt->p->cuda->stream[CUDA_COMPUTE]), "cudaEventRecord");
	cuda_must(cudaEventSynchronize(t->base), "cudaEventSynchronize");
	clock_gettime(CLOCK_MONOTONIC, &now);
	t->base_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void trace_stamps_end(Rt *rt)
{
	(void)rt;
	cuda_must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void trace_stamps_close(Rt *rt)
{
	CudaTrace *t = rt->p->cuda->trace;
	for (int64_t i = 0; i < t->cap; i++)
		cudaEventDestroy(t->event[i]);
	cudaEventDestroy(t->base);
	rt->p->cuda->trace = NULL;
}

int64_t trace_stamp(Rt *rt, int stream)
{
	CudaTrace *t = rt->p->cuda->trace;
	if (t->n == t->cap)
		ice("a trace has %lld events only", (long long)t->cap);
	cuda_must(cudaEventRecord(t->event[t->n], rt->p->cuda->stream[stream]), "cudaEventRecord");
	return t->n++;
}

int64_t trace_ns(const Rt *rt, int64_t stamp)
{
	const CudaTrace *t = rt->p->cuda->trace;
	float ms = 0;
	cuda_must(cudaEventElapsedTime(&ms, t->base, t->event[stamp]), "cudaEventElapsedTime");
	return t->base_ns + (int64_t)((double)ms * 1e6);
}
