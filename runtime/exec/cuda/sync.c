/* runtime/exec/cuda/sync.c: small blocking collectives: statistics of batch norms, scales of weights, and float buffers
 * from rank 0.
 *
 * A rank's message is followed by room for those of all ranks, in planned device memory.
 *
 * The compute stream waits for the sync stream and the sync stream for it; the host does not wait. */
#include "runtime/exec/cuda/backend.h"
#include "runtime/exec/cuda/cuda.h"

static cudaStream_t stream_of(const Rt *rt)
{
	return streams_of(rt, RT_STREAM_SYNC);
}

static void copy(Rt *rt, void *to, const void *from, int64_t bytes, cudaStream_t s)
{
	(void)rt;
	cuda_must(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, s), "a message cannot be copied");
}

/* Gathers the pairs of vectors of all ranks. */
static char *gather(Rt *rt, int seq, DType dtype, int64_t c, const void *a, const void *b)
{
	int64_t bytes = 2 * c * dtype_info[dtype].bytes;
	char *mine = rt->p->memory.sync, *all = mine + layout_sync_bytes(&rt->model->layout, rt->p->world.size);
	if (bytes > rt->model->layout.sync_bytes)
		ice("collective %d sends %lld bytes, planned are %lld", seq, (long long)bytes,
			(long long)rt->model->layout.sync_bytes);
	streams_sync_begin(rt, seq);
	sync_pack(mine, (KDType)dtype, a, b, c, stream_of(rt));
	streams_gather(rt, all, mine, bytes);
	return all;
}

static int64_t from_peers(const Rt *rt, DType dtype, int64_t c)
{
	return 2 * c * dtype_info[dtype].bytes * (rt->p->world.size - 1);
}

void rt_all_reduce_moments(Rt *rt, int seq, DType dtype, int64_t c, void *mean, void *var, void *running,
	const void *my_mean, const void *my_var, int64_t n)
{
	int64_t bytes = c * dtype_info[dtype].bytes;
	cudaStream_t compute = rt->p->cuda->stream[CUDA_COMPUTE];
	if (rt->p->world.size < 2) {
		copy(rt, mean, my_mean, bytes, compute);
		copy(rt, var, my_var, bytes, compute);
		copy(rt, running, my_var, bytes, compute);
		return;
	}
	char *all = gather(rt, seq, dtype, c, my_mean, my_var);
	sync_merge_moments((void *const[]){mean, var, running}, (KDType)dtype, all, rt->p->world.size, c, n,
		stream_of(rt));
	streams_sync_end(rt, RT_ALL_REDUCE_MOMENTS, from_peers(rt, dtype, c));
}

void rt_all_reduce_means(Rt *rt, int seq, DType dtype, int64_t c, void *a, void *b, const void *my_a, const void *my_b)
{
	int64_t bytes = c * dtype_info[dtype].bytes;
	cudaStream_t compute = rt->p->cuda->stream[CUDA_COMPUTE];
	if (rt->p->world.size < 2) {
		copy(rt, a, my_a, bytes, compute);
		copy(rt, b, my_b, bytes, compute);
		return;
	}
	char *all = gather(rt, seq, dtype, c, my_a, my_b);
	sync_merge_means((void *const[]){a, b}, (KDType)dtype, all, rt->p->world.size, c, stream_of(rt));
	streams_sync_end(rt, RT_ALL_REDUCE_MEANS, from_peers(rt, dtype, c));
}

/* On one rank each magnitude is found in its scale's place. */
void rt_f8_scales(Rt *rt, int seq)
{
	int n = rt->model->n_scales, ranks = rt->p->world.size;
	int64_t apart = LAYOUT_SCALE_BYTES / (int64_t)sizeof(float), stride = ranks < 2 ? apart : 1;
	int64_t bytes = n * stride * (int64_t)sizeof(float);
	float *mine = ranks < 2 ? rt->p->scales : (float *)(void *)rt->p->memory.sync, *all = mine;
	streams_sync_begin(rt, seq);
	cuda_must(cudaMemsetAsync(mine, 0, (size_t)bytes, stream_of(rt)), "magnitudes of weights cannot be cleared");
	k_stream = stream_of(rt);
	scales_largest(rt, mine, stride);
	k_stream = rt->p->cuda->stream[CUDA_COMPUTE];
	if (ranks > 1) {
		all = mine + layout_sync_bytes(&rt->model->layout, ranks) / (int64_t)sizeof(float);
		streams_gather(rt, all, mine, bytes);
	}
	sync_merge_scales(rt->p->scales, apart, all, stride, ranks, n, stream_of(rt));
	streams_sync_end(rt, RT_F8_SCALES, bytes * (ranks - 1));
	streams_before_gathers(rt, seq);
}

/* Copies all buffers into the message (out), or from it into the buffers. */
static void copy_buffers(Rt *rt, char *message, bool out)
{
	for (int i = 0; i < rt->model->n_tensors; i++) {
		const RtTensor *t = &rt->model->tensors[i];
		if (!average_takes(t))
			continue;
		char *here = device_tensor(rt, t);
		copy(rt, out ? message : here, out ? here : message, tensor_bytes(t), stream_of(rt));
		message += average_bytes(t);
	}
}

void rt_broadcast_buffers(Rt *rt, int seq)
{
	int64_t bytes = rt->model->layout.average_bytes;
	bool first = rt->p->world.rank == 0;
	if (rt->p->world.size < 2)
		return;
	streams_sync_begin(rt, seq);
	if (first)
		copy_buffers(rt, rt->p->memory.sync, true);
	streams_broadcast(rt, rt->p->memory.sync, bytes);
	if (!first)
		copy_buffers(rt, rt->p->memory.sync, false);
	streams_sync_end(rt, RT_BROADCAST_BUFFERS, first ? 0 : bytes);
}
