/* runtime/exec/cuda/backend.h: how collectives of a program reach other ranks' GPUs.
 *
 *   self    one rank: gathers that cast, and sums over micro-batches
 *   nccl    a GPU for every rank; also one rank alone, where it is asked for
 *   staged  through host memory, where shm and mpi take over: GPUs may be shared
 *
 * stream.c orders them by events; what they issue is ordered by the stream alone. */
#ifndef SHARDC_RUNTIME_CUDA_BACKEND_H
#define SHARDC_RUNTIME_CUDA_BACKEND_H

#include <cuda_runtime_api.h>

#include "runtime/exec/cuda/words.h"
#include "runtime/exec/private.h"

typedef struct Backend {
	const char *name;
	bool captures; /* what it issues can stand in a CUDA graph */
	bool chained;  /* ranks must start collectives of different streams in one order */
	/* Before memory is taken.  *state is what streams_backend_state returns from then on.  NULL: nothing to do. */
	bool (*load)(Rt *rt, void **state, Diag *d);
	/* Memory of the device that it reads and writes, as it wants it; its return, after close.  NULL or why there is
	 * none; take is NULL: cudaMalloc's will do. */
	const char *(*take)(const Rt *rt, void **at, int64_t bytes);
	void (*give)(const Rt *rt, void *at);
	/* All ranks call it, outside of steps. */
	bool (*open)(Rt *rt, void **state, Diag *d);
	void (*close)(Rt *rt);
	/* On the collective's stream, which already waits for its event. */
	void (*issue)(Rt *rt, const RtCollective *row, int seq, cudaStream_t stream);
	/* The host's part of rt_wait, in the order of the stream, on which it issues what is left.  NULL: none. */
	void (*finish)(Rt *rt, const RtCollective *row, int seq, cudaStream_t stream);
	/* Equal pieces of all ranks, in rank order; device memory.  NULL: one rank needs none. */
	void (*gather_small)(Rt *rt, void *all, const void *mine, int64_t bytes, cudaStream_t stream);
	void (*broadcast_small)(Rt *rt, void *at, int64_t bytes, cudaStream_t stream); /* rank 0's, in place */
	/* Asked by the watchdog's thread: why nothing will end any more; NULL: all is well, or cannot be asked. */
	const char *(*failed)(void *state);
	void (*abort)(void *state);  /* by the thread that ends the process; NULL: nothing to do */
} Backend;

extern const Backend backend_self, backend_nccl, backend_staged;

/* Which one, from --comm, or by what the ranks have; equal on all ranks.  own_gpu: no other rank shares it.
 * All ranks call it once they have met. */
const Backend *backend_choose(const Rt *rt, bool own_gpu, Diag *d);

/* ---- stream.c ---- */

void *streams_backend_state(const Rt *rt);
const Collectives *streams_collectives(const Rt *rt);
cudaStream_t streams_of(const Rt *rt, RtStream stream);
/* What this rank sends goes through a back end, though it may be the only one. */
bool streams_talk(const Rt *rt);
/* Small messages of collectives that block, between streams_sync_begin and streams_sync_end, on the sync stream.
 * Of ranks that talk. */
void streams_gather(Rt *rt, void *all, const void *mine, int64_t bytes);
void streams_broadcast(Rt *rt, void *at, int64_t bytes);
/* Around every run of a program, in a capture or not: streams beside compute join it, and are joined again. */
void streams_fork(Rt *rt);
void streams_join(Rt *rt);
/* A captured program runs again: what it sends is counted. */
void streams_replay(Rt *rt);
/* Sums over micro-batches, behind a reduce. */
void streams_keep(const Rt *rt, const RtCollective *row, cudaStream_t stream);
/* A cast of collective.c, on a stream. */
void streams_cast(const Rt *rt, const Cast *c, cudaStream_t stream);

#endif
