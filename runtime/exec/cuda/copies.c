/* runtime/exec/cuda/copies.c: values that lie in memory of the host from forward to backward (--offload-acts).
 *
 * Copies out and copies in have a stream each, since a GPU has a copy engine for each direction: both run beside its
 * kernels.  A copy starts behind what compute was given before it; compute follows its end from rt_copied on.  Nothing
 * else orders them, and the host does not wait.  Every copy is waited for in its program, so a capture is complete. */
#include "runtime/exec/cuda/cuda.h"
#include "runtime/exec/private.h"

struct CudaCopies {
	cudaEvent_t begin;         /* the point of compute behind which a copy starts */
	cudaEvent_t *ended;        /* [number of the copy in its program] */
	int n;
};

void copies_open(Rt *rt)
{
	CudaCopies *c = rt->p->cuda->copies = NEW(rt->p->arena, CudaCopies);
	c->n = rt->model->n_copies;
	c->ended = NEW_N(rt->p->arena, cudaEvent_t, c->n + 1);
	cuda_must(cudaEventCreateWithFlags(&c->begin, cudaEventDisableTiming), "cudaEventCreate");
	for (int i = 1; i <= c->n; i++)
		cuda_must(cudaEventCreateWithFlags(&c->ended[i], cudaEventDisableTiming), "cudaEventCreate");
}

void copies_close(Rt *rt)
{
	CudaCopies *c = rt->p->cuda->copies;
	cudaEventDestroy(c->begin);
	for (int i = 1; i <= c->n; i++)
		cudaEventDestroy(c->ended[i]);
	rt->p->cuda->copies = NULL;
}

static cudaEvent_t ended(const Rt *rt, int copy)
{
	const CudaCopies *c = rt->p->cuda->copies;
	if (copy < 1 || copy > c->n)
		ice("there is no copy %d in this program", copy);
	return c->ended[copy];
}

static void issue(Rt *rt, int row, void *to, const void *from, int64_t bytes, int copy)
{
	const Cuda *c = rt->p->cuda;
	bool out = row == TRACE_OUT;
	cudaStream_t compute = c->stream[CUDA_COMPUTE], stream = c->stream[out ? CUDA_OUT : CUDA_IN];
	cuda_must(cudaEventRecord(c->copies->begin, compute), "cudaEventRecord");
	cuda_must(cudaStreamWaitEvent(stream, c->copies->begin, 0), "cudaStreamWaitEvent");
	int mark = trace_seq(rt, 0);
	int64_t began = mark >= 0 ? trace_stamp(rt, out ? CUDA_OUT : CUDA_IN) : 0;
	cuda_must(cudaMemcpyAsync(to, from, (size_t)bytes, out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream),
		out ? "a value cannot be copied to memory of the host" : "a value cannot be copied from memory of the host");
	if (mark >= 0)
		trace_transfer(rt, row, mark, began, trace_stamp(rt, out ? CUDA_OUT : CUDA_IN), bytes);
	cuda_must(cudaEventRecord(ended(rt, copy), stream), "cudaEventRecord");
}

void rt_offload(Rt *rt, void *to, const void *from, int64_t bytes, int copy)
{
	issue(rt, TRACE_OUT, to, from, bytes, copy);
}

void rt_reload(Rt *rt, void *to, const void *from, int64_t bytes, int copy)
{
	issue(rt, TRACE_IN, to, from, bytes, copy);
}

void rt_copied(Rt *rt, int copy)
{
	cuda_must(cudaStreamWaitEvent(rt->p->cuda->stream[CUDA_COMPUTE], ended(rt, copy), 0), "cudaStreamWaitEvent");
}
